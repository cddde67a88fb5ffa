/* The loss of networks and all its gradients: an MLP of residual blocks with a mixture as its
 * head, for each of several members. Some rows at a time go forward and back while everything
 * about them is in the cache, batch-last: [F, b]. A matrix is then read in place both ways, and
 * only the gradient of a matrix needs its rows batch-first.
 *
 *     h = act(W x + c + pieces of x),  h <- h + mask * act(W h + c),  outputs = W [h, x] + c
 *
 * Included once for each storage type and level of instructions. */

typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
#define VEC NAME(vec)
#define VEC_LANES ((ptrdiff_t)(VECTOR_BYTES / sizeof(REAL)))
#define PADDED(n) (((n) + VEC_LANES - 1) / VEC_LANES * VEC_LANES)

/* C[i, j] = start[i] or C[i, j] or 0, plus sum over k of A[k * ak + i * ai] * B[k * ldb + j], for
 * some rows and vectors of columns. Of the last vector `rest` numbers are there. */
INLINE void NAME(tile)(const int rows, const int vectors, ptrdiff_t K, const REAL *A, ptrdiff_t ak,
                       ptrdiff_t ai, const REAL *B, ptrdiff_t ldb, REAL *C, ptrdiff_t ldc,
                       const REAL *start, int add, ptrdiff_t rest)
{
    VEC sum[TILE_ROWS][2];
    const size_t last = (size_t)rest * sizeof(REAL);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            sum[i][v] = (VEC){0};
            if (start)
                sum[i][v] += start[i];
            else if (add && v + 1 == vectors && rest < VEC_LANES)
                memcpy(&sum[i][v], C + i * ldc + v * VEC_LANES, last);
            else if (add)
                sum[i][v] = *(const VEC *)(C + i * ldc + v * VEC_LANES);
        }
    for (ptrdiff_t k = 0; k < K; k++, A += ak, B += ldb) {
        VEC b[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            b[v] = *(const VEC *)(B + v * VEC_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[i][v] += A[i * ai] * b[v];
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            if (v + 1 == vectors && rest < VEC_LANES)
                memcpy(C + i * ldc + v * VEC_LANES, &sum[i][v], last);
            else
                *(VEC *)(C + i * ldc + v * VEC_LANES) = sum[i][v];
}

/* The whole product. B has whole vectors in every line; C may end within one. */
INLINE void NAME(product)(ptrdiff_t I, ptrdiff_t J, ptrdiff_t K, const REAL *A, ptrdiff_t ak,
                          ptrdiff_t ai, const REAL *B, ptrdiff_t ldb, REAL *C, ptrdiff_t ldc,
                          const REAL *start, int add)
{
    for (ptrdiff_t j = 0; j < J; j += 2 * VEC_LANES) {
        const int vectors = J - j > VEC_LANES ? 2 : 1;
        const ptrdiff_t left = J - j - (vectors - 1) * VEC_LANES;
        const ptrdiff_t rest = left < VEC_LANES ? left : VEC_LANES;
#define TILE(rows, vectors)                                                                        \
    NAME(tile)(rows, vectors, K, A + i * ai, ak, ai, B + j, ldb, C + i * ldc + j, ldc,             \
               start ? start + i : NULL, add, rest)
        ptrdiff_t i = 0;
        if (vectors == 2) {
            for (; i + TILE_ROWS <= I; i += TILE_ROWS)
                TILE(TILE_ROWS, 2);
            for (; i < I; i++)
                TILE(1, 2);
        } else {
            for (; i + TILE_ROWS <= I; i += TILE_ROWS)
                TILE(TILE_ROWS, 1);
            for (; i < I; i++)
                TILE(1, 1);
        }
#undef TILE
    }
}

/* Of [F, b] the transpose [b, F], or the other way round; `from` has rows of `n` numbers. */
static void NAME(turn)(const REAL *from, ptrdiff_t from_ld, ptrdiff_t rows, ptrdiff_t n, REAL *to,
                       ptrdiff_t to_ld)
{
    const ptrdiff_t whole_rows = rows / LANES * LANES, whole = n / LANES * LANES;
    for (ptrdiff_t i = 0; i < whole_rows; i += LANES)
        for (ptrdiff_t j = 0; j < whole; j += LANES)
            NAME(transpose)(from + i * from_ld + j, from_ld, to + j * to_ld + i, to_ld);
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t j = i < whole_rows ? whole : 0; j < n; j++)
            to[j * to_ld + i] = from[i * from_ld + j];
}

/* h = act(a) and its derivative, for the SiLU a / (1 + exp(-a)), in place of a and beside it. */
INLINE void NAME(activate)(REAL *a, REAL *slope, ptrdiff_t count)
{
    SIMD for (ptrdiff_t i = 0; i < count; i++)
    {
        const REAL s = 1 / (1 + SHORT_EXP(-a[i])), y = a[i] * s;
        slope[i] = s + y * (1 - s);
        a[i] = y;
    }
}

typedef struct {
    REAL *input;           /* [S, ld] */
    REAL *hidden, *slope;  /* [L, H, ld] each */
    REAL *change;          /* [H, ld]: what a block adds, later a gradient */
    REAL *gradient;        /* [H, ld] */
    REAL *mask;            /* [H, ld] */
    REAL *outputs, *pulled; /* [P, ld] each */
    REAL *turned;          /* [b, H] or [b, P], with whole vectors in each line */
    REAL *below, *inside;  /* [bins, H] each */
    REAL *position;        /* [N, ld] */
    int32_t *bin;          /* [N, ld] */
    REAL *loss;            /* [b] */
    char *rest;            /* of the loss of mixtures */
} NAME(mlp_scratch);

INLINE ptrdiff_t NAME(mlp_outputs)(const MLP *p)
{
    return p->components * (1 + p->dimensions + p->packed);
}

static PROBLEM NAME(mlp_problem)(const MLP *p, const NAME(mlp_scratch) *s, ptrdiff_t ld)
{
    const ptrdiff_t K = p->components, D = p->dimensions, T = p->packed;
    return (PROBLEM){.components = K, .dimensions = D, .packed = T,
                     .logits = s->outputs, .means = s->outputs + K * ld,
                     .factors = s->outputs + K * (1 + D) * ld,
                     .target_b = p->target_r, .target_d = 1, .logits_b = 1, .logits_k = ld,
                     .means_b = 1, .means_k = D * ld, .means_d = ld,
                     .factors_b = 1, .factors_k = T * ld, .factors_t = ld,
                     .weights_b = p->weights_r, .loss = s->loss,
                     .to_logits = s->pulled, .to_means = s->pulled + K * ld,
                     .to_factors = s->pulled + K * (1 + D) * ld,
                     .row_weight = 1.0 / (double)p->rows, .floor = p->floor,
                     .tightness = p->tightness};
}

/* Lays out the scratch of up to BLOCK rows; returns its bytes. */
static size_t NAME(mlp_layout)(const MLP *p, char *memory, NAME(mlp_scratch) *s)
{
    const size_t ld = BLOCK, H = (size_t)PADDED(p->width), P = (size_t)NAME(mlp_outputs)(p);
    const size_t wide = (size_t)PADDED((ptrdiff_t)P), L = (size_t)p->depth;
    char *next = memory;
#define ROOM(place, count) s->place = (void *)next, next += ((count) * sizeof *s->place + 63) / 64 * 64
    ROOM(input, (size_t)(p->numbers + p->vectors) * ld);
    ROOM(hidden, L * H * ld);
    ROOM(slope, L * H * ld);
    ROOM(change, H * ld);
    ROOM(gradient, H * ld);
    ROOM(mask, H * ld);
    ROOM(outputs, P * ld);
    ROOM(pulled, P * ld);
    ROOM(turned, (wide > H ? wide : H) * ld);
    ROOM(below, (size_t)p->bins * H);
    ROOM(inside, (size_t)p->bins * H);
    ROOM(position, (size_t)(p->bins ? p->numbers : 0) * ld);
    ROOM(bin, (size_t)(p->bins ? p->numbers : 0) * ld);
    ROOM(loss, ld);
#undef ROOM
    s->rest = next;
    const PROBLEM mixture = NAME(mlp_problem)(p, s, BLOCK);
    return (size_t)(next - memory) + NAME(scratch_bytes)(&mixture);
}

/* How many bins a number has. */
INLINE ptrdiff_t NAME(bins_of)(const MLP *p, ptrdiff_t c)
{
    ptrdiff_t count = 0;
    while (count < p->bins && p->slope[c * p->bins + count] > 0)
        count++;
    return count;
}

/* The bin of each row in each number, and the position within it from -1/2 to 1/2. */
static void NAME(locate)(const MLP *p, const NAME(mlp_scratch) *s, ptrdiff_t ld)
{
    for (ptrdiff_t c = 0; c < p->numbers; c++) {
        const ptrdiff_t count = NAME(bins_of)(p, c);
        const REAL *x = s->input + c * ld, *edge = p->edge + c * p->bins;
        const REAL *slope = p->slope + c * p->bins;
        REAL *position = s->position + c * ld;
        int32_t *bin = s->bin + c * ld;
        if (!count)
            continue;
        SIMD for (ptrdiff_t r = 0; r < ld; r++)
            bin[r] = 0;
        for (ptrdiff_t j = 1; j < count; j++)
            SIMD for (ptrdiff_t r = 0; r < ld; r++)
                bin[r] += x[r] >= edge[j];
        SIMD for (ptrdiff_t r = 0; r < ld; r++)
        {
            const REAL y = (x[r] - edge[bin[r]]) * slope[bin[r]], low = y < 0 ? 0 : y;
            position[r] = (low > 1 ? 1 : low) - (REAL)0.5;
        }
    }
}

/* Adds the first layer's products with the bins of all columns to `sums` [b, H]. Below the bin of a
 * row each counts +1/2, above it -1/2: one line of running sums stands for all of them. */
static void NAME(add_pieces)(const MLP *p, const NAME(mlp_scratch) *s, ptrdiff_t ld, ptrdiff_t n,
                             const REAL *weight, REAL *sums)
{
    const ptrdiff_t H = p->width, wide = PADDED(H);
    for (ptrdiff_t c = 0; c < p->numbers; c++) {
        const ptrdiff_t places = c * p->bins, count = NAME(bins_of)(p, c);
        const int32_t *bin = s->bin + c * ld;
        const REAL *W = weight + places * H;
        if (!count)
            continue;
        SIMD for (ptrdiff_t h = 0; h < H; h++)
            s->below[h] = 0;
        for (ptrdiff_t j = 1; j < count; j++)
            SIMD for (ptrdiff_t h = 0; h < H; h++)
                s->below[h] -= (REAL)0.5 * W[j * H + h];
        for (ptrdiff_t j = 1; j < count; j++)
            SIMD for (ptrdiff_t h = 0; h < H; h++)
                s->below[j * wide + h] =
                    s->below[(j - 1) * wide + h] + (REAL)0.5 * (W[(j - 1) * H + h] + W[j * H + h]);
        for (ptrdiff_t r = 0; r < n; r++) {
            const REAL *line = s->below + bin[r] * wide, *own = W + bin[r] * H;
            const REAL position = s->position[c * ld + r];
            REAL *sum = sums + r * wide;
            SIMD for (ptrdiff_t h = 0; h < H; h++)
                sum[h] += line[h] + position * own[h];
        }
    }
}

/* Adds to the gradient of the bins' weights, from gradients [b, H] of what they were added to. */
static void NAME(pull_pieces)(const MLP *p, const NAME(mlp_scratch) *s, ptrdiff_t ld, ptrdiff_t n,
                              const REAL *pulled, REAL *to_weight)
{
    const ptrdiff_t H = p->width, wide = PADDED(H);
    for (ptrdiff_t c = 0; c < p->numbers; c++) {
        const ptrdiff_t places = c * p->bins, count = NAME(bins_of)(p, c);
        const int32_t *bin = s->bin + c * ld;
        REAL *to = to_weight + places * H;
        if (!count)
            continue;
        memset(s->inside, 0, (size_t)(count * wide) * sizeof(REAL));
        for (ptrdiff_t r = 0; r < n; r++) {
            const REAL *from = pulled + r * wide, position = s->position[c * ld + r];
            REAL *sum = s->inside + bin[r] * wide, *own = to + bin[r] * H;
            SIMD for (ptrdiff_t h = 0; h < H; h++)
            {
                sum[h] += from[h];
                own[h] += position * from[h];
            }
        }
        /* Half of the sum over higher bins, less half of that over lower ones. */
        REAL *run = s->below;
        SIMD for (ptrdiff_t h = 0; h < H; h++)
            run[h] = 0;
        for (ptrdiff_t j = 1; j < count; j++)
            SIMD for (ptrdiff_t h = 0; h < H; h++)
                run[h] += (REAL)0.5 * s->inside[j * wide + h];
        SIMD for (ptrdiff_t h = 0; h < H; h++)
            to[h] += run[h];
        for (ptrdiff_t j = 1; j < count; j++) {
            const REAL *lower = s->inside + (j - 1) * wide, *own = lower + wide;
            SIMD for (ptrdiff_t h = 0; h < H; h++)
            {
                run[h] -= (REAL)0.5 * (lower[h] + own[h]);
                to[j * H + h] += run[h];
            }
        }
    }
}

/* Adds to the gradients of a layer: of its matrix, between lines that it read and gradients of
 * what it made, `turned` [b, J]; and of its bias. */
INLINE void NAME(pull_matrix)(ptrdiff_t I, ptrdiff_t J, ptrdiff_t n, const REAL *lines, ptrdiff_t ld,
                              const REAL *turned, REAL *to_weight)
{
    NAME(product)(I, J, n, lines, 1, ld, turned, PADDED(J), to_weight, J, NULL, 1);
}

INLINE void NAME(pull_bias)(ptrdiff_t J, ptrdiff_t n, const REAL *turned, REAL *to_bias)
{
    for (ptrdiff_t r = 0; r < n; r++)
        SIMD for (ptrdiff_t j = 0; j < J; j++)
            to_bias[j] += turned[r * PADDED(J) + j];
}

/* Some rows of a member, forward and back; returns their part of the loss. */
static double NAME(mlp_rows)(const MLP *p, ptrdiff_t m, ptrdiff_t start, ptrdiff_t n,
                             const NAME(mlp_scratch) *s)
{
    const ptrdiff_t H = p->width, N = p->numbers, V = p->vectors, S = N + V;
    const ptrdiff_t P = NAME(mlp_outputs)(p), ld = PADDED(n), L = p->depth, plane = H * ld;
    const ptrdiff_t first = S + N * p->bins, last = H + (p->shortcut ? S : 0);
    const ptrdiff_t later = N * (1 + p->bins); /* where the vectors' lines of the matrix are */
    const LAYER *layer = p->layers, *head = p->layers + L;
    /* Rows that are not there are zero. */
    if (ld > n)
        memset(s->input, 0, (size_t)(S * ld) * sizeof(REAL));
    NAME(turn)(p->input + m * p->numbers_m + start * p->numbers_r, p->numbers_r, n, N, s->input, ld);
    if (V)
        NAME(turn)(p->given + m * p->vectors_m + start * p->vectors_r, p->vectors_r, n, V,
                   s->input + N * ld, ld);

    const REAL *W = layer->weight + m * first * H, *c = layer->bias + m * H;
    REAL *h = s->hidden;
    NAME(product)(H, ld, N, W, H, 1, s->input, ld, h, ld, c, 0);
    if (V)
        NAME(product)(H, ld, V, W + later * H, H, 1, s->input + N * ld, ld, h, ld, NULL, 1);
    if (p->bins) {
        NAME(locate)(p, s, ld);
        NAME(turn)(h, ld, H, ld, s->turned, PADDED(H));
        NAME(add_pieces)(p, s, ld, n, W + N * H, s->turned);
        NAME(turn)(s->turned, PADDED(H), ld, H, h, ld);
    }
    NAME(activate)(h, s->slope, plane);
    for (ptrdiff_t l = 1; l < L; l++) {
        const REAL *mask = layer[l].mask ? layer[l].mask + (m * p->rows + start) * H : NULL;
        REAL *before = h, *slope = s->slope + l * plane, *change = s->change;
        h = s->hidden + l * plane;
        NAME(product)(H, ld, H, layer[l].weight + m * H * H, H, 1, before, ld, change, ld,
                      layer[l].bias + m * H, 0);
        NAME(activate)(change, slope, plane);
        if (mask) {
            if (ld > n)
                memset(s->mask, 0, (size_t)plane * sizeof(REAL));
            NAME(turn)(mask, H, n, H, s->mask, ld);
            SIMD for (ptrdiff_t i = 0; i < plane; i++)
            {
                h[i] = before[i] + s->mask[i] * change[i];
                slope[i] *= s->mask[i];
            }
        } else {
            SIMD for (ptrdiff_t i = 0; i < plane; i++)
                h[i] = before[i] + change[i];
        }
    }
    const REAL *to_outputs = head->weight + m * last * P;
    NAME(product)(P, ld, H, to_outputs, P, 1, h, ld, s->outputs, ld, head->bias + m * P, 0);
    if (p->shortcut)
        NAME(product)(P, ld, S, to_outputs + H * P, P, 1, s->input, ld, s->outputs, ld, NULL, 1);

    PROBLEM mixture = NAME(mlp_problem)(p, s, ld);
    double loss = 0;
    mixture.batch = n;
    mixture.target = p->target + m * p->target_m + start * p->target_r;
    mixture.weights = p->weights ? p->weights + m * p->weights_m + start * p->weights_r : NULL;
    if (p->each)
        mixture.to_logits = mixture.to_means = mixture.to_factors = NULL;
    if (ld > n)
        memset(s->pulled, 0, (size_t)(P * ld) * sizeof(REAL));
    NAME(block)(&mixture, 0, n, s->rest);
    if (p->each) {
        memcpy(p->each + m * p->rows + start, s->loss, (size_t)n * sizeof(REAL));
        return 0;
    }
    for (ptrdiff_t r = 0; r < n; r++) {
        const double weight = p->weights ? (double)mixture.weights[r * p->weights_r] : mixture.row_weight;
        loss += weight == 0 ? 0 : weight * (double)s->loss[r];
    }

    REAL *to_head = head->to_weight + m * last * P, *g = s->gradient, *change = s->change;
    NAME(turn)(s->pulled, ld, P, n, s->turned, PADDED(P));
    NAME(pull_bias)(P, n, s->turned, head->to_bias + m * P);
    NAME(pull_matrix)(H, P, n, h, ld, s->turned, to_head);
    if (p->shortcut)
        NAME(pull_matrix)(S, P, n, s->input, ld, s->turned, to_head + H * P);
    NAME(product)(H, ld, P, to_outputs, 1, P, s->pulled, ld, g, ld, NULL, 0);
    for (ptrdiff_t l = L - 1; l >= 0; l--) {
        const REAL *slope = s->slope + l * plane;
        SIMD for (ptrdiff_t i = 0; i < plane; i++)
            change[i] = g[i] * slope[i];
        NAME(turn)(change, ld, H, n, s->turned, PADDED(H));
        NAME(pull_bias)(H, n, s->turned, layer[l].to_bias + m * H);
        if (l) {
            NAME(pull_matrix)(H, H, n, s->hidden + (l - 1) * plane, ld, s->turned,
                              layer[l].to_weight + m * H * H);
            NAME(product)(H, ld, H, layer[l].weight + m * H * H, 1, H, change, ld, g, ld, NULL, 1);
        }
    }
    REAL *to_first = layer->to_weight + m * first * H;
    NAME(pull_matrix)(N, H, n, s->input, ld, s->turned, to_first);
    if (V)
        NAME(pull_matrix)(V, H, n, s->input + N * ld, ld, s->turned, to_first + later * H);
    if (p->bins)
        NAME(pull_pieces)(p, s, ld, n, s->turned, to_first + N * H);
    if (p->to_vectors) {
        REAL *pull = s->input; /* no longer needed */
        NAME(product)(V, ld, H, W + later * H, 1, H, change, ld, pull, ld, NULL, 0);
        if (p->shortcut)
            NAME(product)(V, ld, P, to_outputs + (H + N) * P, 1, P, s->pulled, ld, pull, ld, NULL, 1);
        NAME(turn)(pull, ld, V, n, p->to_vectors + (m * p->rows + start) * V, V);
    }
    return loss;
}

typedef struct {
    const MLP *problem;
    int threads, failed;
} NAME(mlp_job);

static void NAME(mlp_part)(NAME(mlp_job) *job, int thread)
{
    const MLP *p = job->problem;
    const ptrdiff_t H = p->width, S = p->numbers + p->vectors, P = NAME(mlp_outputs)(p);
    NAME(mlp_scratch) s;
    char *memory = scratch_memory(NAME(mlp_layout)(p, NULL, &s));
    if (!memory) {
        job->failed = 1;
        return;
    }
    NAME(mlp_layout)(p, memory, &s);
    const unsigned kept = ignore_subnormals();
    for (ptrdiff_t m = thread; m < p->members; m += job->threads) {
        for (ptrdiff_t l = 0; l <= p->depth && !p->each; l++) {
            const ptrdiff_t from = l == 0          ? S + p->numbers * p->bins
                                   : l < p->depth ? H
                                                  : H + (p->shortcut ? S : 0);
            const ptrdiff_t to = l < p->depth ? H : P;
            memset(p->layers[l].to_weight + m * from * to, 0, (size_t)(from * to) * sizeof(REAL));
            memset(p->layers[l].to_bias + m * to, 0, (size_t)to * sizeof(REAL));
        }
        double loss = 0;
        for (ptrdiff_t start = 0; start < p->rows; start += BLOCK)
            loss += NAME(mlp_rows)(p, m, start, p->rows - start < BLOCK ? p->rows - start : BLOCK, &s);
        if (!p->each)
            p->loss[m] = (REAL)loss;
    }
    restore_subnormals(kept);
    scratch_done(memory);
}

/* Returns 0, or 1 where there was no memory for scratch. Each member has one thread, so that the
 * result is the same whatever their number. */
static int NAME(mlp)(const MLP *p, int threads)
{
    NAME(mlp_job) job = {p, threads < p->members ? threads : (int)p->members, 0};
#ifdef _OPENMP
    if (job.threads > 1) {
#pragma omp parallel num_threads(job.threads)
        for (int t = omp_get_thread_num(); t < job.threads; t += omp_get_num_threads())
            NAME(mlp_part)(&job, t);
        return job.failed;
    }
#endif
    for (int t = 0; t < job.threads; t++)
        NAME(mlp_part)(&job, t);
    return job.failed;
}
#undef VEC
#undef VEC_LANES
#undef PADDED
