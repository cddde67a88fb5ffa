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
