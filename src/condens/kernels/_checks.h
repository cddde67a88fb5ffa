/* What the numbers of a call must be, whoever makes it. What lies at the addresses only
 * condens.kernels.native can know. */

#define MOST ((long long)1 << 55) /* numbers in a tensor: far beyond any memory */

/* Whether there is such a mixture, and no product of its sizes overflows, nor its scratch. */
static int sized(long long rows, long long K, long long D, long long T)
{
    return rows >= 0 && K > 0 && D > 0 && D < 1 << 24 && (T == D || T == D * (D + 1) / 2) &&
           K < MOST / (64 * BLOCK) / (1 + D + T) && rows < MOST / (K * (1 + D + T));
}

/* Whether a tensor's numbers lie within what can be addressed. */
static int spanned(const long long *sizes, const long long *strides, int axes)
{
    long long last = 0, step;
    for (int i = 0; i < axes; i++)
        if (strides[i] < 0 || __builtin_mul_overflow(sizes[i], strides[i], &step) ||
            __builtin_add_overflow(last, step, &last) || last >= MOST)
            return 0;
    return 1;
}

/* Whether addresses are those of numbers of this size; some may be NULL. */
static int placed(const long long *addresses, int count, long long size, int nullable)
{
    for (int i = 0; i < count; i++)
        if (addresses[i] % size || (!addresses[i] && !nullable))
            return 0;
    return 1;
}

static PyObject *refused(const char *name, const char *why)
{
    PyErr_Format(PyExc_ValueError, "%s was called with %s; call condens.kernels.native", name, why);
    return NULL;
}

/* nll(share, floor, tightness, double, threads, sizes[4], addresses[11], strides[11]) */
static int nll_checked(const double *real, const long long *a)
{
    const long long *sizes = a + 2, *read = a + 6, *write = a + 11, *strides = a + 17;
    const long long size = a[0] ? sizeof(double) : sizeof(float);
    const long long of_target[] = {sizes[0], sizes[2]}, of_factors[] = {sizes[0], sizes[1], sizes[3]};
    const int all = write[3] && write[4] && write[5];
    const int none = !write[2] && !write[3] && !write[4] && !write[5];
    if (!sized(sizes[0], sizes[1], sizes[2], sizes[3]))
        return refused("nll", "sizes that no mixture has"), 0;
    if (!spanned(of_target, strides, 2) || !spanned(sizes, strides + 2, 2) ||
        !spanned(sizes, strides + 4, 3) || !spanned(of_factors, strides + 7, 3) ||
        !spanned(sizes, strides + 10, 1))
        return refused("nll", "strides that no tensor has"), 0;
    if (!placed(read, 11, size, 1) || (sizes[0] && (!placed(read, 4, size, 0) || !write[0])))
        return refused("nll", "an address that no tensor has"), 0;
    if (sizes[0] && !all && !none)
        return refused("nll", "some of the gradients and not all"), 0;
    if (!(real[1] >= 0 && real[1] <= 1e30 && real[2] >= 0 && real[2] <= 1e30))
        return refused("nll", "bounds that no scale has"), 0;
    return a[1] >= 1 || (refused("nll", "no thread"), 0);
}

/* sample(double, threads, sizes[5], addresses[5], strides[6]) */
static int sample_checked(const long long *a)
{
    const long long *sizes = a + 3, *addresses = a + 7, *strides = a + 12;
    const long long size = a[0] ? sizeof(double) : sizeof(float), draws = a[2];
    const long long of_factors[] = {sizes[0], sizes[1], sizes[3]};
    if (!sized(sizes[0], sizes[1], sizes[2], sizes[3]) || sizes[1] > INT32_MAX / SHARE ||
        draws < 0 || (draws && sizes[0] && sizes[0] * sizes[2] >= MOST / draws))
        return refused("sample", "sizes that no mixture has"), 0;
    if (!spanned(sizes, strides, 3) || !spanned(of_factors, strides + 3, 3))
        return refused("sample", "strides that no tensor has"), 0;
    if (!placed(addresses, 5, size, !draws || !sizes[0]) ||
        !placed(addresses + 1, 2, sizeof(double), 1))
        return refused("sample", "an address that no tensor has"), 0;
    return a[1] >= 1 || (refused("sample", "no thread"), 0);
}

/* partial(reach, threads, sizes[4], addresses[10]), all in double and contiguous */
static int partial_checked(double reach, const long long *a)
{
    const long long *sizes = a + 1, *read = a + 5, *gradients = a + 11;
    const int all = gradients[0] && gradients[1] && gradients[2] && gradients[3];
    const int none = !gradients[0] && !gradients[1] && !gradients[2] && !gradients[3];
    if (!sized(sizes[0], sizes[1], sizes[2], sizes[3]) || sizes[2] > 1 << 20)
        return refused("partial", "sizes that no mixture has"), 0;
    if (!placed(read, 10, sizeof(double), 1) ||
        (sizes[0] && (!placed(read, 4, sizeof(double), 0) || !a[10])))
        return refused("partial", "an address that no tensor has"), 0;
    if (sizes[0] && !all && !none)
        return refused("partial", "some of the gradients and not all"), 0;
    if (!(reach > 0))
        return refused("partial", "a reach that no latent has"), 0;
    return a[0] >= 1 || (refused("partial", "no thread"), 0);
}
