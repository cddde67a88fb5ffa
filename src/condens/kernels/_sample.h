/* Draws from a batch of mixtures: standard normal noise [S, B, D] becomes samples, in place.
 * Draws of one component share its factor: they are solved GROUP at a time, each lane one
 * draw. Included once for each level and storage type; the arithmetic is in double. */

typedef struct {
    double *factor, *inverse, *lanes; /* T, D and D x GROUP numbers */
    ptrdiff_t *order, *first;         /* S draws sorted by component, K + 1 bounds */
} NAME(room);

static size_t NAME(room_bytes)(const DRAWS *p)
{
    size_t T = p->packed, D = p->dimensions, K = p->components, S = p->draws;
    return sizeof(double) * (T + D + D * GROUP + 8) + sizeof(ptrdiff_t) * (2 * S + K + 1);
}

/* x = mu + U^-1 noise for `count` draws at once; lanes beyond repeat the first. */
INLINE void NAME(substitute)(REAL *const *rows, ptrdiff_t count, ptrdiff_t width, const REAL *mu,
                             ptrdiff_t mu_d, const double *U, const double *inverse, double *x,
                             ptrdiff_t D, ptrdiff_t T)
{
    for (ptrdiff_t l = 0; l < width; l++) {
        const REAL *row = rows[l < count ? l : 0];
        for (ptrdiff_t i = 0; i < D; i++)
            x[i * width + l] = row[i];
    }
    const double *end = U + T;
    for (ptrdiff_t i = D - 1; i >= 0; i--) {
        double *xi = x + i * width;
        if (T > D) {
            const double *row = end -= D - 1 - i; /* entries (i, i+1) .. (i, D-1) */
            for (ptrdiff_t j = i + 1; j < D; j++) {
                const double u = row[j - i - 1], *xj = x + j * width;
                SIMD for (ptrdiff_t l = 0; l < width; l++) xi[l] -= u * xj[l];
            }
        }
        SIMD for (ptrdiff_t l = 0; l < width; l++) xi[l] *= inverse[i];
    }
    for (ptrdiff_t l = 0; l < count; l++)
        for (ptrdiff_t i = 0; i < D; i++)
            rows[l][i] = (REAL)((double)mu[i * mu_d] + x[i * width + l]);
}

/* Draws start .. start + S - 1 of member b. */
static void NAME(member)(const DRAWS *p, ptrdiff_t b, ptrdiff_t start, ptrdiff_t S, char *memory)
{
    const ptrdiff_t K = p->components, D = p->dimensions, T = p->packed;
    NAME(room) r;
    r.factor = (double *)memory;
    r.inverse = r.factor + T;
    r.lanes = (double *)(((uintptr_t)(r.inverse + D) + 63) / 64 * 64);
    r.order = (ptrdiff_t *)(r.lanes + D * GROUP);
    ptrdiff_t *component = r.order + S;
    r.first = component + S;
    const double *cumulative = p->cumulative + b * K, total = cumulative[K - 1];
    ptrdiff_t last = 0; /* rounding may reach the total; a component without weight is never drawn */
    while (cumulative[last] < total)
        last++;
    for (ptrdiff_t k = 0; k <= K; k++)
        r.first[k] = 0;
    for (ptrdiff_t s = 0; s < S; s++) {
        const double u = p->uniform[(start + s) * p->batch + b] * total;
        ptrdiff_t k = 0; /* counted, not searched for: a branch here would be a coin toss */
        for (ptrdiff_t j = 0; j < last; j++)
            k += u >= cumulative[j];
        component[s] = k;
        r.first[k + 1]++;
    }
    for (ptrdiff_t k = 0; k < K; k++)
        r.first[k + 1] += r.first[k];
    for (ptrdiff_t s = S - 1; s >= 0; s--)
        r.order[--r.first[component[s] + 1]] = s;
    /* Every bound has moved to the start of its component: first[k + 1] is where k begins. */
    for (ptrdiff_t k = 0; k < K; k++) {
        const ptrdiff_t begin = r.first[k + 1], stop = k + 1 < K ? r.first[k + 2] : S;
        if (begin == stop)
            continue;
        const REAL *U = p->factors + b * p->factors_b + k * p->factors_k;
        const REAL *mu = p->means + b * p->means_b + k * p->means_k;
        for (ptrdiff_t t = 0; t < T; t++)
            r.factor[t] = U[t * p->factors_t];
        for (ptrdiff_t i = 0; i < D; i++)
            r.inverse[i] = fast_exp(-r.factor[i]);
        for (ptrdiff_t at = begin; at < stop;) {
            const ptrdiff_t left = stop - at, width = left > SMALL ? GROUP : SMALL;
            const ptrdiff_t count = left < width ? left : width;
            REAL *rows[GROUP];
            for (ptrdiff_t l = 0; l < count; l++)
                rows[l] = p->noise + ((start + r.order[at + l]) * p->batch + b) * D;
            if (width == GROUP)
                NAME(substitute)(rows, count, GROUP, mu, p->means_d, r.factor, r.inverse, r.lanes, D, T);
            else
                NAME(substitute)(rows, count, SMALL, mu, p->means_d, r.factor, r.inverse, r.lanes, D, T);
            at += count;
        }
    }
}

static void NAME(some_members)(const DRAWS *p, int thread, int threads, int *failed)
{
    char *memory = scratch_memory(NAME(room_bytes)(p));
    if (!memory) {
        *failed = 1;
        return;
    }
    const ptrdiff_t from = p->batch * thread / threads, to = p->batch * (thread + 1) / threads;
    /* Members whose rows lie side by side take turns, a few hundred draws each: the lines
     * they share are then fetched once for all of them. */
    const ptrdiff_t neighbours = NEARBY / ((ptrdiff_t)sizeof(REAL) * p->dimensions);
    const ptrdiff_t turn = neighbours > 1 ? TURN : p->draws, together = neighbours > 1 ? neighbours : 1;
    for (ptrdiff_t b = from; b < to; b += together)
        for (ptrdiff_t start = 0; start < p->draws; start += turn)
            for (ptrdiff_t i = b; i < b + together && i < to; i++) {
                const ptrdiff_t left = p->draws - start;
                NAME(member)(p, i, start, left < turn ? left : turn, memory);
            }
}

/* Returns 0, or 1 where there was no memory for scratch. */
static int NAME(sample)(const DRAWS *p, int threads)
{
    int failed = 0;
    threads = threads < p->batch ? threads : (int)p->batch;
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            for (int t = omp_get_thread_num(); t < threads; t += omp_get_num_threads())
                NAME(some_members)(p, t, threads, &failed);
        }
        return failed;
    }
#endif
    for (int t = 0; t < threads; t++)
        NAME(some_members)(p, t, threads, &failed);
    return failed;
}
