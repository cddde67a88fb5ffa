/* The negative log-likelihood of a Gaussian mixture and all its gradients, one block of
 * samples at a time. Included once for each storage type, with REAL, LARGEST, SMALLEST and
 * NAME defined; the arithmetic is always in double.
 *
 * Everything is addressed by strides, so batch-first and batch-last tensors are read in
 * place. Where the samples of a line are contiguous the line is used as it lies; otherwise,
 * and for the last short block, lines are copied to scratch and back. */

typedef struct {
    REAL *target, *logits, *means, *factors; /* copied lines: D, K, and a group's D and T each */
    double *exact, *joint, *prior;           /* 2D, K and K lines: d and d exp(U), and so on */
    REAL *offset, *latent, *pulled, *scaled;    /* K x D lines each: d, z, v and d exp(U) */
    REAL *slope;                             /* K x D lines: what bounds leave of a gradient */
    REAL *to_target, *scale;                 /* D lines each */
} NAME(scratch);

/* Components copied together: rows of a few numbers alone would not fill a tile. */
INLINE ptrdiff_t NAME(group)(const PROBLEM *p)
{
    const ptrdiff_t most = STAGED / p->packed;
    return most < 1 ? 1 : most < p->components ? most : p->components;
}

INLINE int NAME(bounded)(const PROBLEM *p)
{
    return p->floor > 0 || p->tightness > 0;
}

static size_t NAME(scratch_bytes)(const PROBLEM *p)
{
    const size_t K = p->components, D = p->dimensions, T = p->packed, G = NAME(group)(p);
    return BLOCK * (sizeof(REAL) * (3 * D + K + G * (D + T) + (NAME(bounded)(p) ? 5 : 4) * K * D) +
                    sizeof(double) * (2 * K + 2 * D));
}

static NAME(scratch) NAME(lay_out)(const PROBLEM *p, char *memory)
{
    const size_t K = p->components, D = p->dimensions, G = NAME(group)(p);
    NAME(scratch) s;
    double *next = (double *)memory;
    s.exact = next, next += 2 * D * BLOCK;
    s.joint = next, next += K * BLOCK;
    s.prior = next, next += K * BLOCK;
    REAL *lines = (REAL *)next;
    s.offset = lines, lines += K * D * BLOCK;
    s.latent = lines, lines += K * D * BLOCK;
    s.pulled = lines, lines += K * D * BLOCK;
    s.scaled = lines, lines += K * D * BLOCK;
    s.slope = NAME(bounded)(p) ? lines : NULL;
    lines += NAME(bounded)(p) ? K * D * BLOCK : 0;
    s.to_target = lines, lines += D * BLOCK;
    s.scale = lines, lines += D * BLOCK;
    s.target = lines, lines += D * BLOCK;
    s.logits = lines, lines += K * BLOCK;
    s.means = lines, lines += G * D * BLOCK;
    s.factors = lines;
    return s;
}

/* Memory that is needed next, fetched while there is work on what is here: as many cache
 * lines for every line of a factor as it has. Past the end of a tensor nothing happens. */
typedef struct {
    const char *base;
    ptrdiff_t outer, inner; /* bytes */
    int shift;
} NAME(ahead);

#define FETCH(next, t, writing)                                                                    \
    {                                                                                              \
        const ptrdiff_t first = (t) * LINES;                                                       \
        const char *at = (next).base + (first >> (next).shift) * (next).outer +                    \
                         (first & (((ptrdiff_t)1 << (next).shift) - 1)) * (next).inner;            \
        for (int q = 0; q < LINES; q++, at += (next).inner)                                        \
            __builtin_prefetch(at, writing, 2);                                                    \
    }

/* From line to line where samples are contiguous; else through all samples, a cache line of
 * each, before the next cache line of each. Long rows the machine fetches by itself. */
INLINE NAME(ahead) NAME(look_ahead)(const REAL *base, ptrdiff_t row, ptrdiff_t step, ptrdiff_t T)
{
    const ptrdiff_t size = sizeof(REAL);
    if (step == 1)
        return (NAME(ahead)){(const char *)base, row * size, 64, LINES == 4 ? 2 : 3};
    if (T * size > 2048)
        return (NAME(ahead)){(const char *)base, 0, 0, 6};
    return (NAME(ahead)){(const char *)base, 64, step * size, 6};
}

/* Eight lines of eight numbers become eight columns: halves of lines i and i + 4 are loaded
 * side by side, and each half of that is a square of four to transpose. */
INLINE void NAME(transpose)(const REAL *from, ptrdiff_t from_ld, REAL *to, ptrdiff_t to_ld)
{
    for (int right = 0; right < LANES; right += LANES / 2) {
        PACK r[LANES / 2], t[LANES / 2];
        for (int i = 0; i < LANES / 2; i++)
            r[i] = __builtin_shufflevector(*(const HALF *)(from + i * from_ld + right),
                                           *(const HALF *)(from + (i + 4) * from_ld + right),
                                           0, 1, 2, 3, 4, 5, 6, 7);
        for (int i = 0; i < 2; i++) {
            t[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
            t[i + 2] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
        }
        for (int i = 0; i < 2; i++) {
            REAL *pair = to + (right + 2 * i) * to_ld;
            *(PACK *)pair = __builtin_shufflevector(t[2 * i], t[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13);
            *(PACK *)(pair + to_ld) =
                __builtin_shufflevector(t[2 * i], t[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
}

/* Lines of n numbers, row by row, from anywhere; the rest of a short line repeats its first. */
INLINE void NAME(gather)(const REAL *from, ptrdiff_t row, ptrdiff_t step, ptrdiff_t rows,
                         ptrdiff_t n, REAL *to)
{
    ptrdiff_t done = 0; /* rows of every whole group of samples that are copied */
    const ptrdiff_t groups = n / LANES * LANES;
    if (step == 1) {
        for (ptrdiff_t i = 0; i < rows; i++)
            memcpy(to + i * BLOCK, from + i * row, (size_t)n * sizeof(REAL));
    } else {
        if (row == 1 && rows >= LANES) {
            done = rows; /* the last tile overlaps the one before */
            for (ptrdiff_t s = 0; s < groups; s += LANES)
                for (ptrdiff_t next = 0, i; next < rows; next += LANES) {
                    i = next < rows - LANES ? next : rows - LANES;
                    NAME(transpose)(from + s * step + i, step, to + i * BLOCK + s, BLOCK);
                }
        }
        for (ptrdiff_t s = 0; s < n; s++)
            for (ptrdiff_t i = s < groups ? done : 0; i < rows; i++)
                to[i * BLOCK + s] = from[s * step + i * row];
    }
    if (n < BLOCK)
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t s = n; s < BLOCK; s++)
                to[i * BLOCK + s] = to[i * BLOCK];
}

INLINE void NAME(scatter)(const REAL *from, REAL *to, ptrdiff_t row, ptrdiff_t step,
                          ptrdiff_t rows, ptrdiff_t n)
{
    ptrdiff_t done = 0;
    const ptrdiff_t groups = n / LANES * LANES;
    if (step == 1) {
        for (ptrdiff_t i = 0; i < rows; i++)
            memcpy(to + i * row, from + i * BLOCK, (size_t)n * sizeof(REAL));
        return;
    }
    if (row == 1 && rows >= LANES) {
        done = rows;
        for (ptrdiff_t s = 0; s < groups; s += LANES)
            for (ptrdiff_t next = 0, i; next < rows; next += LANES) {
                i = next < rows - LANES ? next : rows - LANES;
                NAME(transpose)(from + i * BLOCK + s, BLOCK, to + s * step + i, step);
            }
    }
    for (ptrdiff_t s = 0; s < n; s++)
        for (ptrdiff_t i = s < groups ? done : 0; i < rows; i++)
            to[s * step + i * row] = from[i * BLOCK + s];
}

/* The same for `count` components, as one where nothing lies between them. */
INLINE void NAME(gather_group)(const REAL *from, ptrdiff_t apart, ptrdiff_t row, ptrdiff_t step,
                               ptrdiff_t count, ptrdiff_t rows, ptrdiff_t n, REAL *to)
{
    if (apart == rows * row)
        rows *= count, count = 1;
    for (ptrdiff_t k = 0; k < count; k++)
        NAME(gather)(from + k * apart, row, step, rows, n, to + k * rows * BLOCK);
}

INLINE void NAME(scatter_group)(const REAL *from, REAL *to, ptrdiff_t apart, ptrdiff_t row,
                                ptrdiff_t step, ptrdiff_t count, ptrdiff_t rows, ptrdiff_t n)
{
    if (apart == rows * row)
        rows *= count, count = 1;
    for (ptrdiff_t k = 0; k < count; k++)
        NAME(scatter)(from + k * rows * BLOCK, to + k * apart, row, step, rows, n);
}

/* A component that cannot be held takes no part; a NaN in the input stays one. Rare. */
static __attribute__((noinline)) void NAME(set_aside)(double *a, const double *square,
                                                      REAL *d, REAL *z, REAL *v, REAL *scaled,
                                                      ptrdiff_t D, const REAL *U, ptrdiff_t ld,
                                                      ptrdiff_t T)
{
    for (int s = 0; s < BLOCK; s++) {
        if (square[s] < LARGEST)
            continue;
        int nan = 0;
        for (ptrdiff_t i = 0; i < D; i++)
            nan |= isnan(d[i * BLOCK + s]);
        for (ptrdiff_t t = 0; t < T; t++)
            nan |= isnan(U[t * ld + s]);
        a[s] = nan ? NAN : -INFINITY;
        if (!nan)
            for (ptrdiff_t i = 0; i < D; i++)
                d[i * BLOCK + s] = z[i * BLOCK + s] = v[i * BLOCK + s] = scaled[i * BLOCK + s] = 0;
    }
}

/* 1 / (floor + 1 / (exp(u) + tightness)), its logarithm, and what is left of du. Beyond u = 300
 * a scale is its floor to all digits. Where there is no bound, what u has beyond the range of
 * the exponential still counts in the logarithm. */
INLINE double NAME(bounded_scale)(double u, double floor, double tightness, double *log_scale,
                                  double *left)
{
    const double top = floor > 0 ? 300.0 : 708.0;
    const double above = floor > 0 ? 0.0 : INFINITY, below = tightness > 0 ? 0.0 : -INFINITY;
    double held = u > top ? top : u; /* NaN stays NaN */
    held = held < -708.0 ? -708.0 : held;
    double beyond = u - held > above ? above : u - held;
    beyond = beyond < below ? below : beyond;
    /* q / h with h = floor q + 1, by one division */
    const double e = EXP(held), q = e + tightness, h = floor * q + 1.0;
    const double inverse = 1.0 / (q * h), scale = q * (q * inverse);
    *log_scale = fast_log(scale) + beyond;
    *left = e * inverse;
    return scale;
}

INLINE double NAME(clip)(double x, double most)
{
    return x > most ? most : x < -most ? -most : x; /* NaN stays NaN */
}

/* What gradients are made of, once more in double for samples where it left the range of REAL
 * on its way, and within that range: where r = 0, infinity would become NaN. Rare. */
static __attribute__((noinline)) void NAME(mend)(const REAL *probe, const double *exact,
                                                 const REAL *U, ptrdiff_t ld, ptrdiff_t D,
                                                 ptrdiff_t T, double floor, double tightness,
                                                 REAL *d, const REAL *z, REAL *v, REAL *scaled)
{
    for (int s = 0; s < BLOCK; s++) {
        if (probe[s] - probe[s] == 0)
            continue;
        for (ptrdiff_t j = 0; j < D; j++) {
            const double *difference = exact + s, *latent = exact + D * BLOCK + s;
            double ignored, scale = EXP((double)U[j * ld + s]);
            if (floor > 0 || tightness > 0)
                scale = NAME(bounded_scale)(U[j * ld + s], floor, tightness, &ignored, &ignored);
            double sum = scale * latent[j * BLOCK];
            /* Column j of the strict triangle: in row i, entry j - i - 1 of D - 1 - i. */
            const REAL *entry = U + (D + j - 1) * ld + s;
            for (ptrdiff_t i = 0; i < (T > D ? j : 0); i++, entry += (D - 1 - i) * ld)
                sum += (double)*entry * latent[i * BLOCK];
            const double length = fabs((double)z[j * BLOCK + s]);
            const ptrdiff_t at = j * BLOCK + s;
            v[at] = (REAL)NAME(clip)(sum, LARGEST);
            d[at] = (REAL)NAME(clip)(difference[j * BLOCK], LARGEST);
            scaled[at] = (REAL)NAME(clip)(difference[j * BLOCK] * scale,
                                       length > 1 ? LARGEST / length : LARGEST);
        }
    }
}

/* z = U d, v = U' z and log p + logit of one component. U is read once from memory; z and
 * its square are summed in double, what only scales a gradient is kept in REAL. */
INLINE void NAME(component)(const REAL *x, const REAL *mu, ptrdiff_t mu_ld, const REAL *U,
                            ptrdiff_t ld, const REAL *logit, ptrdiff_t D, ptrdiff_t T,
                            double *exact, REAL *scale_of, double floor, double tightness,
                            REAL *slope, REAL *d, REAL *z, REAL *v, REAL *scaled,
                            double *a, double *prior, NAME(ahead) next, ptrdiff_t line)
{
    double square[BLOCK] ALIGNED, sum[BLOCK] ALIGNED, scale[BLOCK] ALIGNED;
    REAL probe[BLOCK] ALIGNED; /* finite while all is */
    EACH(s) sum[s] = prior[s] = logit[s], square[s] = 0, probe[s] = 0;
    for (ptrdiff_t i = 0; i < D; i++) {
        const REAL *xi = x + i * BLOCK, *mi = mu + i * mu_ld, *ui = U + i * ld;
        double *ei = exact + i * BLOCK, *ti = ei + D * BLOCK;
        REAL *di = d + i * BLOCK, *vi = v + i * BLOCK, *oi = scaled + i * BLOCK;
        REAL *si = scale_of + i * BLOCK;
        FETCH(next, line + i, 0);
        if (slope) {
            REAL *left = slope + i * BLOCK;
            EACH(s)
            {
                double log_scale, rest;
                scale[s] = NAME(bounded_scale)(ui[s], floor, tightness, &log_scale, &rest);
                sum[s] += log_scale;
                left[s] = (REAL)rest;
            }
        } else {
            EACH(s) scale[s] = EXP(ui[s]), sum[s] += ui[s];
        }
        EACH(s)
        {
            const double difference = (double)xi[s] - (double)mi[s];
            ei[s] = difference;
            di[s] = (REAL)difference;
            vi[s] = 0;
            si[s] = (REAL)scale[s];
            ti[s] = difference * scale[s];
            oi[s] = (REAL)ti[s];
        }
    }
    const REAL *row = U + D * ld; /* row m holds columns m+1 .. D-1 */
    line += D;
    for (ptrdiff_t m = 0; m < D; m++) {
        double *total = exact + (D + m) * BLOCK;
        REAL *zm = z + m * BLOCK;
        ptrdiff_t j = m + 1;
        if (T > D) {
            /* Four columns at a time: the sum is loaded and stored a quarter as often. */
            for (; j + 3 < D; j += 4, row += 4 * ld, line += 4) {
                for (int q = 0; q < 4; q++)
                    FETCH(next, line + q, 0);
                const REAL *u0 = row, *u1 = u0 + ld, *u2 = u1 + ld, *u3 = u2 + ld;
                const double *d0 = exact + j * BLOCK, *d1 = d0 + BLOCK, *d2 = d1 + BLOCK,
                             *d3 = d2 + BLOCK;
                EACH(s)
                total[s] += (double)u0[s] * d0[s] + (double)u1[s] * d1[s] +
                            (double)u2[s] * d2[s] + (double)u3[s] * d3[s];
            }
            for (; j < D; j++, row += ld, line++) {
                FETCH(next, line, 0);
                const double *dj = exact + j * BLOCK;
                EACH(s) total[s] += (double)row[s] * dj[s];
            }
        }
        const REAL *sm = scale_of + m * BLOCK;
        const REAL *dm = d + m * BLOCK, *om = scaled + m * BLOCK;
        REAL *vm = v + m * BLOCK;
        EACH(s)
        {
            zm[s] = (REAL)total[s];
            vm[s] += sm[s] * zm[s];
            square[s] += total[s] * total[s];
            probe[s] += zm[s] * om[s] + dm[s] + vm[s];
        }
        /* The row again, while it is in the nearest cache. */
        if (T > D) {
            row -= (D - 1 - m) * ld;
            for (j = m + 1; j < D; j++, row += ld) {
                REAL *vj = v + j * BLOCK;
                EACH(s) vj[s] += row[s] * zm[s];
            }
        }
    }
    int lost = 0, odd = 0;
    EACH(s) a[s] = sum[s] - 0.5 * square[s];
    for (int s = 0; s < BLOCK; s++)
        lost |= !(square[s] < LARGEST), odd |= probe[s] - probe[s] != 0;
    if (odd)
        NAME(mend)(probe, exact, U, ld, D, T, floor, tightness, d, z, v, scaled);
    if (lost)
        NAME(set_aside)(a, square, d, z, v, scaled, D, U, ld, T);
}

/* log of the sum of K lines' exponentials, into `total`; the lines become their softmax. A
 * sample whose lines are all -inf has log -inf and a softmax of zeros. */
INLINE void NAME(softmax)(double *lines, ptrdiff_t K, double *total)
{
    double top[BLOCK] ALIGNED, sum[BLOCK] ALIGNED;
    EACH(s) top[s] = -INFINITY, sum[s] = 0;
    for (ptrdiff_t k = 0; k < K; k++)
        EACH(s)
        {
            const double a = lines[k * BLOCK + s];
            top[s] = (a > top[s]) | (a != a) ? a : top[s];
        }
    EACH(s) total[s] = top[s] == -INFINITY ? 0.0 : top[s];
    for (ptrdiff_t k = 0; k < K; k++)
        EACH(s)
        {
            const double responsibility = EXP(lines[k * BLOCK + s] - total[s]);
            sum[s] += responsibility;
            lines[k * BLOCK + s] = responsibility;
        }
    EACH(s)
    {
        const int lost = top[s] == -INFINITY;
        const double whole = lost ? 1.0 : sum[s];
        total[s] = lost ? -INFINITY : fast_log(whole) + total[s];
        sum[s] = 1.0 / whole;
    }
    for (ptrdiff_t k = 0; k < K; k++)
        EACH(s) lines[k * BLOCK + s] *= sum[s];
}

/* Gradients of one component from its responsibility r (times the row's weight). U's is
 * written once. */
INLINE void NAME(gradients)(const REAL *r, ptrdiff_t D, ptrdiff_t T, const REAL *d, const REAL *z,
                            const REAL *v, const REAL *scaled, const REAL *slope, REAL *to_U, ptrdiff_t ld, REAL *to_mu,
                            ptrdiff_t mu_ld, REAL *to_x, NAME(ahead) next, ptrdiff_t line)
{
    for (ptrdiff_t i = 0; i < D; i++) {
        const REAL *zi = z + i * BLOCK, *vi = v + i * BLOCK, *oi = scaled + i * BLOCK;
        REAL *mi = to_mu + i * mu_ld, *ui = to_U + i * ld, *xi = to_x + i * BLOCK;
        FETCH(next, line + i, 1);
        EACH(s)
        {
            REAL pull = r[s] * vi[s];
            mi[s] = -pull;
            xi[s] += pull;
            ui[s] = r[s] * (zi[s] * oi[s] - (REAL)1);
        }
        if (slope) {
            const REAL *left = slope + i * BLOCK;
            EACH(s) ui[s] *= left[s];
        }
    }
    if (T == D)
        return;
    REAL *row = to_U + D * ld;
    line += D;
    for (ptrdiff_t m = 0; m + 1 < D; m++) {
        REAL weighted[BLOCK] ALIGNED;
        const REAL *zm = z + m * BLOCK;
        EACH(s) weighted[s] = r[s] * zm[s];
        for (ptrdiff_t j = m + 1; j < D; j++, row += ld, line++) {
            FETCH(next, line, 1);
            const REAL *dj = d + j * BLOCK;
            EACH(s) row[s] = weighted[s] * dj[s];
        }
    }
}

/* What follows the group that ends before component `after`: the next, or the next block's. */
INLINE NAME(ahead) NAME(after)(const PROBLEM *p, const REAL *factors, ptrdiff_t start, ptrdiff_t after)
{
    if (after >= p->components)
        after = 0, start += BLOCK;
    return NAME(look_ahead)(factors + start * p->factors_b + after * p->factors_k, p->factors_t,
                            p->factors_b, p->packed);
}

static void NAME(block)(const PROBLEM *p, ptrdiff_t start, ptrdiff_t n, char *memory)
{
    const ptrdiff_t K = p->components, D = p->dimensions, T = p->packed;
    const NAME(scratch) s = NAME(lay_out)(p, memory);
    const int whole = n == BLOCK, gradients = p->to_factors != NULL;
    const int factors_lie = whole && p->factors_b == 1, means_lie = whole && p->means_b == 1;
    const ptrdiff_t group = factors_lie ? 1 : NAME(group)(p);
    const ptrdiff_t ld = factors_lie ? p->factors_t : BLOCK, mu_ld = means_lie ? p->means_d : BLOCK;
    NAME(gather)(p->target + start * p->target_b, p->target_d, p->target_b, D, n, s.target);
    NAME(gather)(p->logits + start * p->logits_b, p->logits_k, p->logits_b, K, n, s.logits);
    for (ptrdiff_t from = 0; from < K; from += group) {
        const ptrdiff_t count = K - from < group ? K - from : group;
        const REAL *U = p->factors + start * p->factors_b + from * p->factors_k;
        const REAL *mu = p->means + start * p->means_b + from * p->means_k;
        const NAME(ahead) next = NAME(after)(p, p->factors, start, from + group);
        if (!factors_lie)
            NAME(gather_group)(U, p->factors_k, p->factors_t, p->factors_b, count, T, n, s.factors);
        if (!means_lie)
            NAME(gather_group)(mu, p->means_k, p->means_d, p->means_b, count, D, n, s.means);
        for (ptrdiff_t i = 0; i < count; i++) {
            const ptrdiff_t k = from + i, lines = k * D * BLOCK;
            NAME(component)(s.target, means_lie ? mu + i * p->means_k : s.means + i * D * BLOCK,
                            mu_ld, factors_lie ? U : s.factors + i * T * BLOCK, ld,
                            s.logits + k * BLOCK, D, T, s.exact, s.scale, p->floor, p->tightness,
                            s.slope ? s.slope + lines : NULL, s.offset + lines,
                            s.latent + lines, s.pulled + lines, s.scaled + lines,
                            s.joint + k * BLOCK, s.prior + k * BLOCK, next, i * T);
        }
    }
    double weight[BLOCK] ALIGNED, log_joint[BLOCK] ALIGNED, log_prior[BLOCK] ALIGNED;
    REAL loss[BLOCK] ALIGNED;
    NAME(softmax)(s.joint, K, log_joint);
    NAME(softmax)(s.prior, K, log_prior);
    const double constant = 0.91893853320467274178 * (double)D;
    EACH(i) loss[i] = (REAL)(log_prior[i] - log_joint[i] + constant);
    memcpy(p->loss + start, loss, (size_t)n * sizeof(REAL));
    if (!gradients)
        return;
    for (int i = 0; i < BLOCK; i++) {
        const double given = p->weights ? (double)p->weights[(start + (i < n ? i : 0)) * p->weights_b] : p->row_weight;
        weight[i] = log_joint[i] == -INFINITY ? 0.0 : given;
    }
    memset(s.to_target, 0, (size_t)D * BLOCK * sizeof(REAL));
    for (ptrdiff_t from = 0; from < K; from += group) {
        const ptrdiff_t count = K - from < group ? K - from : group;
        REAL *to_U = p->to_factors + start * p->factors_b + from * p->factors_k;
        REAL *to_mu = p->to_means + start * p->means_b + from * p->means_k;
        const NAME(ahead) next = NAME(after)(p, p->to_factors, start, from + group);
        for (ptrdiff_t i = 0; i < count; i++) {
            const ptrdiff_t k = from + i, lines = k * D * BLOCK;
            const double *joint = s.joint + k * BLOCK, *prior = s.prior + k * BLOCK;
            REAL *to_logit = s.logits + k * BLOCK, r[BLOCK] ALIGNED;
            EACH(l)
            {
                /* Smaller ones would make subnormal numbers, which slow whatever reads
                 * them several times over. */
                const double responsibility = joint[l] < SMALLEST ? 0.0 : weight[l] * joint[l];
                to_logit[l] = (REAL)((prior[l] < SMALLEST ? 0.0 : weight[l] * prior[l]) - responsibility);
                r[l] = (REAL)responsibility;
            }
            NAME(gradients)(r, D, T, s.offset + lines, s.latent + lines, s.pulled + lines,
                            s.scaled + lines, s.slope ? s.slope + lines : NULL,
                            factors_lie ? to_U : s.factors + i * T * BLOCK, ld,
                            means_lie ? to_mu + i * p->means_k : s.means + i * D * BLOCK, mu_ld,
                            s.to_target, next, i * T);
        }
        if (!factors_lie)
            NAME(scatter_group)(s.factors, to_U, p->factors_k, p->factors_t, p->factors_b, count, T, n);
        if (!means_lie)
            NAME(scatter_group)(s.means, to_mu, p->means_k, p->means_d, p->means_b, count, D, n);
    }
    NAME(scatter)(s.logits, p->to_logits + start * p->logits_b, p->logits_k, p->logits_b, K, n);
    if (p->to_target)
        NAME(scatter)(s.to_target, p->to_target + start * p->target_b, p->target_d, p->target_b, D, n);
}

typedef struct {
    const PROBLEM *problem;
    int threads, failed;
} NAME(job);

static void NAME(part)(NAME(job) *job, int thread)
{
    const PROBLEM *p = job->problem;
    const ptrdiff_t blocks = (p->batch + BLOCK - 1) / BLOCK;
    const ptrdiff_t first = blocks * thread / job->threads;
    const ptrdiff_t last = blocks * (thread + 1) / job->threads;
    char *memory = scratch_memory(NAME(scratch_bytes)(p));
    if (!memory)
        job->failed = 1;
    else
        for (ptrdiff_t i = first; i < last; i++) {
            ptrdiff_t start = i * BLOCK, rest = p->batch - start;
            NAME(block)(p, start, rest < BLOCK ? rest : BLOCK, memory);
        }
    scratch_done(memory);
}

/* The weighted sum of the rows' losses, the same whatever the number of threads. A row
 * without weight takes no part, be its loss infinite. */
static void NAME(add_up)(const PROBLEM *p)
{
    double total = 0;
    _Pragma("omp simd reduction(+ : total)") for (ptrdiff_t i = 0; i < p->batch; i++)
    {
        const double weight = p->weights ? (double)p->weights[i * p->weights_b] : p->row_weight;
        total += weight == 0 ? 0 : weight * (double)p->loss[i];
    }
    *p->total = (REAL)total;
}

static void NAME(all_parts)(NAME(job) *job)
{
#ifdef _OPENMP
    if (job->threads > 1) {
#pragma omp parallel num_threads(job->threads)
        {
            /* The runtime may grant fewer threads than asked for. */
            for (int t = omp_get_thread_num(); t < job->threads; t += omp_get_num_threads())
                NAME(part)(job, t);
        }
        return;
    }
#endif
    for (int t = 0; t < job->threads; t++)
        NAME(part)(job, t);
}

/* Returns 0, or 1 where there was no memory for scratch. */
static int NAME(nll)(const PROBLEM *p, int threads)
{
    const ptrdiff_t blocks = (p->batch + BLOCK - 1) / BLOCK;
    NAME(job) job = {p, threads < blocks ? threads : (int)blocks, 0};
    NAME(all_parts)(&job);
    if (p->total && !job.failed)
        NAME(add_up)(p);
    return job.failed;
}
#undef FETCH
