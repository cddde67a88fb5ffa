/* exp and log without branches or calls, so that a loop over samples becomes vector code.
 * Bits move through memcpy, which costs nothing. */

INLINE int64_t bits_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE double from_bits(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* To about one rounding: 2^k times a polynomial on |r| <= log(2)/2. Zero below -708; above
 * 708, that of 708. NaN stays NaN. */
INLINE double fast_exp(double x)
{
    const double shift = 6755399441055744.0; /* 1.5 * 2^52: rounds, k is left in the low bits */
    double y = x < 708.0 ? x : 708.0;
    y = y > -708.0 ? y : -708.0;
    double t = y * 1.4426950408889634 + shift, k = t - shift;
    double r = y - k * 0.693147180369123816490;
    r = r - k * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    double whole = from_bits((int64_t)((uint64_t)bits_of(p) + ((uint64_t)bits_of(t) << 52)));
    whole = x < -708.0 ? 0.0 : whole;
    return x == x ? whole : x;
}

/* For storage in float: to 1e-12, in fewer steps. That of -708 below it, of 708 above. */
INLINE double near_exp(double x)
{
    const double shift = 6755399441055744.0;
    double y = x > 708.0 ? 708.0 : x;
    y = y < -708.0 ? -708.0 : y;
    const double t = y * 1.4426950408889634 + shift, k = t - shift;
    const double r = y - k * 0.69314718055994530942;
    double p = 0.000024727141715325629;
    p = p * r + 0.00019915495917619590;
    p = p * r + 0.0013889179223924085;
    p = p * r + 0.0083332668999227258;
    p = p * r + 0.041666664212712492;
    p = p * r + 0.16666666886100032;
    p = p * r + 0.50000000006206994;
    p = p * r + 0.99999999998054609;
    p = p * r + 0.99999999999976116;
    return from_bits((int64_t)((uint64_t)bits_of(p) + ((uint64_t)bits_of(t) << 52)));
}

/* In float, to about one rounding: that of -87 below it, of 88 above. NaN stays NaN. */
INLINE float short_exp(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23 */
    float y = x > 88.0f ? 88.0f : x;
    y = y < -87.0f ? -87.0f : y;
    const float t = y * 1.442695041f + shift, k = t - shift;
    float r = y - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits, power;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&power, &t, sizeof power);
    bits += power << 23;
    memcpy(&p, &bits, sizeof p);
    return p;
}

/* Subnormal numbers, which slow whatever reads them, count as zero until they are restored. */
INLINE unsigned ignore_subnormals(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    const unsigned kept = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(kept | 0x8040);
    return kept;
#else
    return 0;
#endif
}

INLINE void restore_subnormals(unsigned kept)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_ldmxcsr(kept);
#else
    (void)kept;
#endif
}

/* Of positive normal numbers, to about two roundings: 2 artanh((m - 1)/(m + 1)) + k log 2,
 * with m between sqrt(1/2) and sqrt(2). */
INLINE double fast_log(double x)
{
    /* The bias keeps the shifted number positive: AVX2 has no arithmetic shift of 64 bits. */
    const uint64_t offset = (uint64_t)bits_of(x) - 0x3FE6A09E667F3BCD + ((uint64_t)2048 << 52);
    const int32_t exponent = (int32_t)(offset >> 52) - 2048;
    const double m = from_bits((int64_t)((uint64_t)bits_of(x) - ((uint64_t)(int64_t)exponent << 52)));
    const double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 1.0 / 21.0;
    p = p * q + 1.0 / 19.0;
    p = p * q + 1.0 / 17.0;
    p = p * q + 1.0 / 15.0;
    p = p * q + 1.0 / 13.0;
    p = p * q + 1.0 / 11.0;
    p = p * q + 1.0 / 9.0;
    p = p * q + 1.0 / 7.0;
    p = p * q + 1.0 / 5.0;
    p = p * q + 1.0 / 3.0;
    p = p * q + 1.0;
    return (double)exponent * 0.693147180559945309417 + 2.0 * s * p;
}

#define GOLDEN 0x9E3779B97F4A7C15u /* 2^64 over the golden ratio */

/* SplitMix64 (Steele, Lea and Flood, 2014). */
INLINE uint64_t hashed(uint64_t word)
{
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
    word = (word ^ word >> 27) * 0x94D049BB133111EBu;
    return word ^ word >> 31;
}
