/* Masks of dropout: 16 bits of SplitMix64 for each entry, four entries a word, as
 * condens.nn.randomness.RowDraws has them. Row number r of a member has the key hash(base + r). */

/* Zero where an entry's bits, as a signed number, lie below the limit; else `kept`. */
static void NAME(mask)(const uint64_t *bases, long long members, long long rows, long long columns,
                       uint64_t place, uint64_t first, int limit, REAL kept, REAL *mask)
{
    uint64_t words[BLOCK];
    int16_t halves[4 * BLOCK];
    for (long long number = 0; number < members * rows; number++, mask += columns) {
        const uint64_t row = place + (uint64_t)(number % rows);
        const uint64_t key = hashed(bases[number / rows] + row * GOLDEN);
        for (long long start = 0; start < columns; start += 4 * BLOCK) {
            const uint64_t word = key + (first + (uint64_t)start / 4) * GOLDEN;
            const long long left = columns - start;
            const int count = left < 4 * BLOCK ? (int)left : 4 * BLOCK;
            EACH(s) words[s] = hashed(word + (uint64_t)s * GOLDEN);
            memcpy(halves, words, sizeof halves);
            REAL *part = mask + start;
            SIMD for (int i = 0; i < count; i++)
                part[i] = halves[i] < limit ? 0 : kept;
        }
    }
}
