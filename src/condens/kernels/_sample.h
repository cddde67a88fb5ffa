/* Draws from a batch of mixtures: standard normal noise [S, B, D] becomes samples, in place.
 * Draws of one component share W, the inverse of its factor: x = mu + W noise is a sum of
 * W's columns, PANEL coordinates at a time, and rows are read and written as they lie.
 * Included once for each level and storage type; the arithmetic is in double. */

#define TOGETHER 8   /* draws that share a pass over W */
#define AHEAD 16     /* draws until a row that is fetched now is needed */
#define LONGEST 1024 /* draws of a member in a turn: its neighbours' rows lie in the same pages */

/* Coordinates in a vector of the machine: GCC 12 makes wider ones by way of memory. */
#if defined(__AVX512F__)
#define PANEL 8
#elif defined(__AVX__)
#define PANEL 4
#else
#define PANEL 2
#endif

typedef double NAME(wide) __attribute__((vector_size(sizeof(double) * PANEL), aligned(8)));
typedef REAL NAME(narrow) __attribute__((vector_size(sizeof(REAL) * PANEL), aligned(sizeof(REAL))));

typedef struct {
    ptrdiff_t turn, row;             /* draws of a turn; numbers in a row of noise */
    NAME(wide) *panels;              /* W, panel by panel, each column by column */
    double *noise;                   /* TOGETHER rows */
    double *mean, *inverse, *factor; /* of a component: D, D and T numbers */
    int32_t *component;              /* of a turn's draws, for LANES members */
    int32_t *order, *first;          /* those of a member sorted; where each component begins */
} NAME(room);

/* Lays out the room for a thread's work; returns 0 where there is no memory. */
static int NAME(enter)(const DRAWS *p, NAME(room) *r)
{
    const ptrdiff_t K = p->components, D = p->dimensions, T = p->packed;
    const ptrdiff_t longest = K * DRAWS_PER_COMPONENT > LONGEST ? K * DRAWS_PER_COMPONENT : LONGEST;
    const ptrdiff_t turns = (p->draws + longest - 1) / longest;
    r->turn = turns ? (p->draws + turns - 1) / turns : 0;
    r->row = (D + PANEL - 1) / PANEL * PANEL;
    const size_t numbers = (size_t)(r->row * (D + TOGETHER + 2) + T);
    const size_t indices = (size_t)((LANES + 1) * r->turn + AHEAD + K + 1);
    char *memory = scratch_memory(numbers * sizeof(double) + indices * sizeof(int32_t));
    if (!memory)
        return 0;
    double *next = (double *)memory;
    r->panels = (NAME(wide) *)next, next += r->row * D;
    r->noise = next, next += r->row * TOGETHER;
    r->mean = next, next += r->row;
    r->inverse = next, next += r->row;
    r->factor = next, next += T;
    r->component = (int32_t *)next;
    r->order = r->component + LANES * r->turn;
    r->first = r->order + r->turn + AHEAD;
    memset(r->order + r->turn, 0, AHEAD * sizeof *r->order); /* rows to fetch after the last */
    return 1;
}

/* Where the panel of coordinate i begins; the last one ends with the row. */
INLINE ptrdiff_t NAME(panel)(ptrdiff_t i, ptrdiff_t D)
{
    const ptrdiff_t last = D > PANEL ? D - PANEL : 0;
    return i < last ? i : last;
}

/* W from U W = 1, a panel at a time: column j is that of the identity, less U[m, j] times
 * each column m before it, over U[j, j]. */
static void NAME(invert)(const NAME(room) *r, ptrdiff_t D)
{
    NAME(wide) *W = r->panels;
    for (ptrdiff_t i = 0; i < D; i += PANEL, W += D) {
        const ptrdiff_t from = NAME(panel)(i, D);
        for (ptrdiff_t j = from; j < D; j++) {
            NAME(wide) column = {0};
            if (j < from + PANEL)
                column[j - from] = 1.0;
            /* Rows of the strict triangle: D - 1, D - 2, .. entries. */
            const double *u = r->factor + D + from * (2 * D - from - 1) / 2 + j - from - 1;
            for (ptrdiff_t m = from; m < j; u += D - m - 2, m++)
                column -= *u * W[m];
            W[j] = column * r->inverse[j];
        }
    }
}

/* x = mu + W noise for `count` draws at once; the others repeat the first. */
INLINE void NAME(apply)(REAL *const *rows, ptrdiff_t count, const NAME(room) *r, ptrdiff_t D)
{
    for (ptrdiff_t l = 0; l < TOGETHER; l++) {
        const REAL *from = rows[l < count ? l : 0];
        double *to = r->noise + l * r->row;
        if (D < PANEL)
            for (ptrdiff_t i = 0; i < D; i++)
                to[i] = from[i];
        else
            for (ptrdiff_t i = 0; i < D; i += PANEL) {
                const ptrdiff_t at = NAME(panel)(i, D);
                *(NAME(wide) *)(to + at) =
                    __builtin_convertvector(*(const NAME(narrow) *)(from + at), NAME(wide));
            }
    }
    const NAME(wide) *W = r->panels;
    for (ptrdiff_t i = 0; i < D; i += PANEL, W += D) {
        const ptrdiff_t at = NAME(panel)(i, D);
        NAME(wide) x[TOGETHER];
        for (int l = 0; l < TOGETHER; l++)
            x[l] = *(const NAME(wide) *)(r->mean + at);
        for (ptrdiff_t j = at; j < D; j++)
            for (int l = 0; l < TOGETHER; l++)
                x[l] += W[j] * r->noise[l * r->row + j];
        for (int l = 0; l < TOGETHER; l++) {
            const NAME(narrow) rounded = __builtin_convertvector(x[l], NAME(narrow));
            if (l >= count)
                continue;
            if (D < PANEL)
                for (ptrdiff_t d = 0; d < D; d++)
                    rows[l][d] = rounded[d];
            else
                *(NAME(narrow) *)(rows[l] + at) = rounded;
        }
    }
}

/* One draw by back substitution: for few, an inverse would cost more. */
static void NAME(substitute)(REAL *row, const NAME(room) *r, ptrdiff_t D)
{
    double *x = r->noise;
    const double *u = r->factor + D * (D + 1) / 2;
    for (ptrdiff_t i = D - 1; i >= 0; i--) {
        double sum = 0;
        u -= D - 1 - i; /* entries (i, i+1) .. (i, D-1) */
#pragma omp simd reduction(+ : sum)
        for (ptrdiff_t j = i + 1; j < D; j++)
            sum += u[j - i - 1] * x[j];
        x[i] = ((double)row[i] - sum) * r->inverse[i];
        row[i] = (REAL)(r->mean[i] + x[i]);
    }
}

/* One draw of a diagonal factor. */
INLINE void NAME(scale)(REAL *row, const NAME(room) *r, ptrdiff_t D)
{
    SIMD for (ptrdiff_t i = 0; i < D; i++)
        row[i] = (REAL)(r->mean[i] + r->inverse[i] * (double)row[i]);
}

/* The components of draws start .. start + S - 1 of some members from b on: together, because
 * their uniform numbers share lines. */
static void NAME(choose)(const DRAWS *p, ptrdiff_t b, ptrdiff_t members, ptrdiff_t start,
                         ptrdiff_t S, const NAME(room) *r)
{
    for (ptrdiff_t s = 0; s < S; s += BLOCK) {
        const ptrdiff_t n = S - s < BLOCK ? S - s : BLOCK;
        const double *uniform = p->uniform + (start + s) * p->batch + b;
        double u[LANES][BLOCK] ALIGNED = {{0}};
        for (ptrdiff_t l = 0; l < n; l++)
            for (ptrdiff_t m = 0; m < members; m++)
                u[m][l] = uniform[l * p->batch + m];
        for (ptrdiff_t m = 0; m < members; m++) {
            const double *cumulative = p->cumulative + (b + m) * p->components;
            const double total = cumulative[p->components - 1];
            int64_t k[BLOCK] ALIGNED = {0};
            EACH(l) u[m][l] *= total;
            /* Counted, not searched for: a branch here would be a coin toss. Rounding may reach
             * the total; a component without weight is never drawn. */
            for (ptrdiff_t j = 0; cumulative[j] < total; j++)
                EACH(l) k[l] += u[m][l] >= cumulative[j];
            for (ptrdiff_t l = 0; l < n; l++)
                r->component[m * r->turn + s + l] = (int32_t)k[l];
        }
    }
}

static void NAME(sort)(const int32_t *component, ptrdiff_t S, ptrdiff_t K, const NAME(room) *r)
{
    memset(r->first, 0, (size_t)(K + 1) * sizeof *r->first);
    for (ptrdiff_t s = 0; s < S; s++)
        r->first[component[s]]++;
    for (ptrdiff_t k = 0; k < K; k++)
        r->first[k + 1] += r->first[k];
    for (ptrdiff_t s = S - 1; s >= 0; s--) /* each bound moves from the end to the beginning */
        r->order[--r->first[component[s]]] = (int32_t)s;
}

/* The sorted draws of member b, whose noise for the first of them is at `noise`. */
static void NAME(member)(const DRAWS *p, ptrdiff_t b, REAL *noise, const NAME(room) *r)
{
    const ptrdiff_t D = p->dimensions, T = p->packed, step = p->batch * D;
    for (ptrdiff_t k = 0; k < p->components; k++) {
        const ptrdiff_t begin = r->first[k], end = r->first[k + 1];
        if (begin == end)
            continue;
        const REAL *U = p->factors + b * p->factors_b + k * p->factors_k;
        const REAL *mu = p->means + b * p->means_b + k * p->means_k;
        for (ptrdiff_t t = 0; t < T; t++)
            r->factor[t] = U[t * p->factors_t];
        for (ptrdiff_t i = 0; i < D; i++)
            r->mean[i] = mu[i * p->means_d], r->inverse[i] = fast_exp(-r->factor[i]);
        /* An inverse costs about as much as one substitution, or D / 32 of them. */
        const int diagonal = T == D, many = end - begin > 1 + D / 32;
        if (!diagonal && many)
            NAME(invert)(r, D);
        for (ptrdiff_t at = begin; at < end; at += TOGETHER) {
            const ptrdiff_t count = end - at < TOGETHER ? end - at : TOGETHER;
            REAL *rows[TOGETHER];
            for (ptrdiff_t l = 0; l < count; l++) {
                const REAL *ahead = noise + r->order[at + l + AHEAD] * step;
                for (ptrdiff_t i = 0; i < D; i += 64 / (ptrdiff_t)sizeof(REAL))
                    __builtin_prefetch(ahead + i, 1);
                __builtin_prefetch(ahead + D - 1, 1);
                rows[l] = noise + r->order[at + l] * step;
            }
            if (!diagonal && many)
                NAME(apply)(rows, count, r, D);
            else
                for (ptrdiff_t l = 0; l < count; l++)
                    diagonal ? NAME(scale)(rows[l], r, D) : NAME(substitute)(rows[l], r, D);
        }
    }
}

static void NAME(some_draws)(const DRAWS *p, int thread, int threads, int *failed)
{
    NAME(room) r;
    if (!p->draws || !p->batch)
        return;
    if (!NAME(enter)(p, &r)) {
        *failed = 1;
        return;
    }
    const ptrdiff_t turns = (p->draws + r.turn - 1) / r.turn;
    const ptrdiff_t tiles = (p->batch + LANES - 1) / LANES, jobs = turns * tiles;
    for (ptrdiff_t i = jobs * thread / threads; i < jobs * (thread + 1) / threads; i++) {
        const ptrdiff_t start = i / tiles * r.turn, b = i % tiles * LANES;
        const ptrdiff_t S = p->draws - start < r.turn ? p->draws - start : r.turn;
        const ptrdiff_t members = p->batch - b < LANES ? p->batch - b : LANES;
        NAME(choose)(p, b, members, start, S, &r);
        for (ptrdiff_t m = 0; m < members; m++) {
            NAME(sort)(r.component + m * r.turn, S, p->components, &r);
            NAME(member)(p, b + m, p->noise + (start * p->batch + b + m) * p->dimensions, &r);
        }
    }
    scratch_done((char *)r.panels);
}

/* Returns 0, or 1 where there was no memory for scratch. */
static int NAME(sample)(const DRAWS *p, int threads)
{
    int failed = 0;
    if (p->draws * p->batch < threads)
        threads = (int)(p->draws * p->batch);
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            for (int t = omp_get_thread_num(); t < threads; t += omp_get_num_threads())
                NAME(some_draws)(p, t, threads, &failed);
        }
        return failed;
    }
#endif
    for (int t = 0; t < threads; t++)
        NAME(some_draws)(p, t, threads, &failed);
    return failed;
}

#undef PANEL
