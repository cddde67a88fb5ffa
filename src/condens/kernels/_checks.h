/* Checks of the numbers of a call. How large the tensors at the addresses are, only
 * condens.kernels.native can know. */

#define MAX_NUMBERS ((long long)1 << 55) /* numbers in a tensor: far beyond any memory */

/* Memory from the first number of a tensor to its last. */
typedef struct {
    long long start, stop;
} range;

/* Whether there is such a mixture, and no product of its sizes overflows, nor its scratch. */
static int sized(long long rows, long long K, long long D, long long T)
{
    return rows >= 0 && K > 0 && D > 0 && D < 1 << 24 && (T == D || T == D * (D + 1) / 2) &&
           K < MAX_NUMBERS / (64 * BLOCK) / (1 + D + T) && rows < MAX_NUMBERS / (K * (1 + D + T));
}

/* Finds the memory of a tensor that is there; returns whether there can be such memory. */
static int located(long long address, long long size, int axes, const long long *sizes,
                   const long long *strides, range *found)
{
    long long last = 0, step;
    for (int i = 0; i < axes; i++)
        if (strides[i] < 0 || __builtin_mul_overflow(sizes[i], strides[i], &step) ||
            (last += sizes[i] ? step - strides[i] : 0) >= MAX_NUMBERS)
            return 0;
    *found = (range){address, address ? address + (last + 1) * size : 0};
    return address >= 0 && address < MAX_NUMBERS && address % size == 0;
}

/* Whether the first ranges, which are written, meet none of the others. */
static int apart(const range *ranges, int written, int all)
{
    for (int i = 0; i < written; i++)
        for (int j = i + 1; j < all; j++)
            if (ranges[i].start < ranges[j].stop && ranges[j].start < ranges[i].stop)
                return 0;
    return 1;
}

#define REFUSE(text) return PyErr_SetString(PyExc_ValueError, text), 0
#define NO_SIZES "the sizes are those of no mixture, but K, D >= 1 and T = D or D(D+1)/2 were " \
                 "expected. Call condens.kernels.native with tensors."
#define NO_MEMORY "an address or a stride is that of no tensor, but aligned memory was " \
                  "expected. Call condens.kernels.native with tensors."
#define SHARED "memory to write shares memory with another argument, but separate memory was " \
               "expected. Clone one of them."
#define NO_THREAD "the number of threads is below one, but at least one was expected. " \
                  "Call torch.set_num_threads(1)."

/* nll(row_weight, floor, tightness, double, threads, sizes[4], addresses[11], strides[11]) */
static int nll_checked(const double *real, const long long *a)
{
    const long long *sizes = a + 2, *strides = a + 17, size = a[0] ? sizeof(double) : sizeof(float);
    const long long *target = a + 6, *weights = a + 10, *loss = a + 11, *to_target = a + 13;
    const long long rows = sizes[0], one = 1;
    const long long shapes[4][3] = {
        {rows, sizes[2]}, {rows, sizes[1]}, {rows, sizes[1], sizes[2]}, {rows, sizes[1], sizes[3]}};
    static const int axes[4] = {2, 2, 3, 3}, first[4] = {0, 2, 4, 7};
    if (!sized(rows, sizes[1], sizes[2], sizes[3]))
        REFUSE(NO_SIZES);
    if (a[1] < 1)
        REFUSE(NO_THREAD);
    if (!(real[1] >= 0 && real[1] <= 1e30 && real[2] >= 0 && real[2] <= 1e30))
        REFUSE("a bound of the scales is outside of 0 to 1e30, but a number within was expected. "
               "Choose floor and ceiling in units of the standardised target.");
    range ranges[11]; /* loss, total and gradients, then what is read */
    if (!located(loss[1], size, 0, NULL, NULL, ranges + 1))
        REFUSE(NO_MEMORY);
    if (!rows)
        return 1;
    int known = located(loss[0], size, 1, &rows, &one, ranges) && loss[0] &&
                located(*weights, size, 1, &rows, strides + 10, ranges + 10);
    for (int i = 0; i < 4; i++)
        known = known && target[i] &&
                located(to_target[i], size, axes[i], shapes[i], strides + first[i], ranges + 2 + i) &&
                located(target[i], size, axes[i], shapes[i], strides + first[i], ranges + 6 + i);
    if (!known)
        REFUSE(NO_MEMORY);
    const int all = to_target[1] && to_target[2] && to_target[3];
    if (!all && (to_target[0] || to_target[1] || to_target[2] || to_target[3]))
        REFUSE("some gradients have memory, but all but the target's must, or none. Pass all.");
    if (!apart(ranges, 6, 11))
        REFUSE(SHARED);
    return 1;
}

/* sample(double, threads, sizes[5], addresses[5], strides[6]) */
static int sample_checked(const long long *a)
{
    const long long draws = a[2], *sizes = a + 3, *address = a + 7, *strides = a + 12;
    const long long size = a[0] ? sizeof(double) : sizeof(float), one = 1;
    if (!sized(sizes[0], sizes[1], sizes[2], sizes[3]) || sizes[1] > INT32_MAX / DRAWS_PER_COMPONENT ||
        draws < 0 || (draws && sizes[0] * (1 + sizes[2]) >= MAX_NUMBERS / draws))
        REFUSE(NO_SIZES);
    if (a[1] < 1)
        REFUSE(NO_THREAD);
    if (!draws || !sizes[0])
        return 1;
    const long long noise = draws * sizes[0] * sizes[2], uniform = draws * sizes[0];
    const long long weights = sizes[0] * sizes[1];
    const long long of_factors[] = {sizes[0], sizes[1], sizes[3]};
    range ranges[5];
    if (!(address[0] && address[1] && address[2] && address[3] && address[4]) ||
        !located(address[0], size, 1, &noise, &one, ranges) ||
        !located(address[1], sizeof(double), 1, &uniform, &one, ranges + 1) ||
        !located(address[2], sizeof(double), 1, &weights, &one, ranges + 2) ||
        !located(address[3], size, 3, sizes, strides, ranges + 3) ||
        !located(address[4], size, 3, of_factors, strides + 3, ranges + 4))
        REFUSE(NO_MEMORY);
    if (!apart(ranges, 1, 5))
        REFUSE(SHARED);
    return 1;
}

/* partial(reach, threads, sizes[4], addresses[10]), all in double and contiguous */
static int partial_checked(double reach, const long long *a)
{
    const long long *sizes = a + 1, *read = a + 5, *value = a + 10, *gradients = a + 11, one = 1;
    const long long rows = sizes[0], K = sizes[1], D = sizes[2], T = sizes[3];
    if (!sized(rows, K, D, T) || D > 1 << 20)
        REFUSE(NO_SIZES);
    if (a[0] < 1)
        REFUSE(NO_THREAD);
    if (!(reach > 0))
        REFUSE("the reach is not positive, but a positive number was expected. "
               "Call condens.kernels.native.partial with tensors.");
    if (!rows)
        return 1;
    const long long numbers[5] = {rows * D, rows * K, rows * K * D, rows * K * T, rows};
    range ranges[10]; /* value and gradients, then what is read, weights last */
    int known = *value && located(*value, sizeof(double), 1, &rows, &one, ranges);
    for (int i = 0; i < 4; i++)
        known = known && read[i] &&
                located(gradients[i], sizeof(double), 1, numbers + i, &one, ranges + 1 + i);
    for (int i = 0; i < 5; i++)
        known = known && located(read[i], sizeof(double), 1, numbers + i, &one, ranges + 5 + i);
    if (!known)
        REFUSE(NO_MEMORY);
    for (int i = 1; i < 4; i++)
        if (!gradients[i] != !gradients[0])
            REFUSE("some gradients have memory, but all must, or none. Pass all.");
    if (!apart(ranges, 5, 10))
        REFUSE(SHARED);
    return 1;
}

/* mask(kept, double, members, rows, columns, place, first, limit, bases, mask), all contiguous */
static int mask_checked(const long long *a)
{
    const long long size = a[0] ? sizeof(double) : sizeof(float), one = 1;
    long long numbers;
    range ranges[2];
    if (a[1] < 0 || a[2] < 0 || a[3] < 0 || __builtin_mul_overflow(a[1], a[2], &numbers) ||
        __builtin_mul_overflow(numbers, a[3], &numbers) || numbers >= MAX_NUMBERS)
        REFUSE("the sizes are those of no tensor, but 0 or more numbers were expected. "
               "Call condens.kernels.native with tensors.");
    if (a[6] < INT16_MIN || a[6] > INT16_MAX + 1)
        REFUSE("the limit is not one of 16 bits, but a part of 65536 was expected. "
               "Call condens.kernels.native.mask with a number of values to drop.");
    if (!numbers)
        return 1;
    if (!a[7] || !a[8] || !located(a[8], size, 1, &numbers, &one, ranges) ||
        !located(a[7], sizeof(uint64_t), 1, a + 1, &one, ranges + 1))
        REFUSE(NO_MEMORY);
    if (!apart(ranges, 1, 2))
        REFUSE(SHARED);
    return 1;
}

/* mlp(floor, tightness, double, threads, sizes[11], addresses[9], strides[8], layers[5 (L + 1)]):
 * see mlp_f32. */
static int mlp_checked(const double *real, const long long *a)
{
    const long long size = a[0] ? sizeof(double) : sizeof(float), *sizes = a + 2, one = 1;
    const long long members = sizes[0], rows = sizes[1], N = sizes[2], V = sizes[3], bins = sizes[4];
    const long long H = sizes[5], depth = sizes[6], K = sizes[7], D = sizes[8], T = sizes[9];
    const long long *address = a + 13, *strides = a + 22, each = a[21];
    const long long most = 1 << 20; /* of most axes: no product below overflows */
    if (!sized(rows, K, D, T) || members < 1 || rows < 0 || N < 0 || V < 0 || N + V < 1 || bins < 0 ||
        H < 1 || members > 1 << 10 || rows > 1 << 24 || N > most || V > most || bins > most ||
        H > most || N * (1 + bins) > most || K * (1 + D + T) > most || (sizes[10] & ~1LL))
        REFUSE("the sizes are those of no network, but one or more members, columns and layers "
               "were expected. Call condens.kernels.networks.mlp with tensors.");
    if (a[1] < 1)
        REFUSE(NO_THREAD);
    if (!(real[0] >= 0 && real[0] <= 1e30 && real[1] >= 0 && real[1] <= 1e30))
        REFUSE("a bound of the scales is outside of 0 to 1e30, but a number within was expected. "
               "Choose floor and ceiling in units of the standardised target.");
    /* Written: losses, gradients of vectors and of layers; then what is read. */
    range ranges[3 + 2 * (MAX_DEPTH + 1) + 6 + 3 * (MAX_DEPTH + 1)];
    const long long read[6][3] = {{members, rows, N}, {members, rows, V}, {N * bins}, {N * bins},
                                  {members, rows, D}, {members, rows}};
    static const int axes[6] = {3, 3, 1, 1, 3, 2};
    const long long steps[6][3] = {{strides[0], strides[1], 1}, {strides[2], strides[3], 1}, {1}, {1},
                                   {strides[4], strides[5], 1}, {strides[6], strides[7]}};
    const long long of_vectors = members * rows * V, of_rows = members * rows, P = K * (1 + D + T), S = N + V;
    int known = !address[6] == !!each && located(address[6], size, 1, &members, &one, ranges) &&
                located(address[7], size, 1, &of_vectors, &one, ranges + 1) &&
                located(each, size, 1, &of_rows, &one, ranges + 2) &&
                (!rows || (address[4] && (!N || address[0]) && (!V || address[1]))) &&
                (!(N && bins) || (address[2] && address[3])) && (!address[7] || (V && !each));
    int written = 3, all = 3 + 2 * ((int)depth + 1);
    for (int i = 0; i < 6; i++)
        known = known && located(address[i], size, axes[i], read[i], steps[i], ranges + all++);
    for (long long l = 0; l <= depth; l++) {
        const long long *layer = a + 30 + 5 * l, to = l < depth ? H : P;
        const long long from = l == 0 ? S + N * bins : l < depth ? H : H + (sizes[10] ? S : 0);
        const long long matrix = members * from * to, bias = members * to, mask = members * rows * to;
        known = known && layer[0] && layer[1] && !layer[3] == !!each && !layer[4] == !!each &&
                (!layer[2] || (l > 0 && l < depth)) &&
                located(layer[3], size, 1, &matrix, &one, ranges + written) &&
                located(layer[4], size, 1, &bias, &one, ranges + written + 1) &&
                located(layer[0], size, 1, &matrix, &one, ranges + all) &&
                located(layer[1], size, 1, &bias, &one, ranges + all + 1) &&
                located(layer[2], size, 1, &mask, &one, ranges + all + 2);
        written += 2, all += 3;
    }
    if (!known)
        REFUSE(NO_MEMORY);
    if (!apart(ranges, written, all))
        REFUSE(SHARED);
    return 1;
}

/* adamw(reals[9], double, threads, members, count, lengths, tensors[7 count]): see step_f32. */
static int adamw_checked(const double *real, const long long *a)
{
    const long long size = a[0] ? sizeof(double) : sizeof(float), members = a[2], count = a[3], one = 1;
    if (a[1] < 1)
        REFUSE(NO_THREAD);
    for (int i = 0; i < STEP_REALS; i++)
        if (!(real[i] >= 0) || (i != 5 && !isfinite(real[i])) || (i > 6 && real[i] == 0))
            REFUSE("a number of the step is below 0 or not finite, but rates from 0 and positive "
                   "corrections were expected. Call condens.kernels.networks.AdamW.step.");
    if (members < 0 || members > 1 << 20)
        REFUSE("the number of members is none, but 0 to 2^20 were expected. "
               "Call condens.kernels.networks.AdamW with tensors.");
    range ranges[1 + 5 * MAX_TENSORS];
    int known = (!members || a[4]) && located(a[4], sizeof(double), 1, &members, &one, ranges);
    for (long long i = 0; i < count; i++) {
        const long long *tensor = a + 5 + 7 * i;
        known = known && tensor[0] >= 0 && tensor[0] < (long long)1 << 34;
        const long long numbers = known ? members * tensor[0] : 0;
        known = known && (!numbers || (tensor[2] && tensor[3] && tensor[4] && tensor[5]));
        /* Gradients, which are read, come last. */
        for (int j = 0; j < 5; j++) {
            const long long place = j ? 4 * i + j : 1 + 4 * count + i;
            known = known && located(tensor[2 + j], size, 1, &numbers, &one, ranges + place);
        }
    }
    if (!known)
        REFUSE(NO_MEMORY);
    if (!apart(ranges, 1 + 4 * (int)count, 1 + 5 * (int)count))
        REFUSE(SHARED);
    return 1;
}
