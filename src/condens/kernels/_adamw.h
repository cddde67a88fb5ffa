/* A step of AdamW for the parameters of members, each with its gradient clipped to a length, and
 * their moving average after it, in one pass over memory. */

/* The squared length of a member's gradient. */
static double NAME(square)(const STEP *p, ptrdiff_t m)
{
    double total = 0;
    for (ptrdiff_t i = 0; i < p->count; i++) {
        const ptrdiff_t size = p->tensors[i].size;
        const REAL *g = p->tensors[i].gradient + m * size;
        double sum = 0;
        _Pragma("omp simd reduction(+ : sum)") for (ptrdiff_t j = 0; j < size; j++)
            sum += (double)g[j] * (double)g[j];
        total += sum;
    }
    return total;
}

static void NAME(advance)(const STEP *p, ptrdiff_t m, double length)
{
    const double shortened = p->clip / (length + 1e-6);
    const REAL factor = (REAL)(shortened < 1 ? shortened : 1.0);
    const REAL beta = (REAL)(1 - p->beta1), gamma = (REAL)(1 - p->beta2), eps = (REAL)p->eps;
    const REAL size_1 = (REAL)(p->rate / p->correction_1);
    const REAL root_2 = (REAL)(1 / sqrt(p->correction_2)), follow = (REAL)p->follow;
    for (ptrdiff_t i = 0; i < p->count; i++) {
        const TENSOR t = p->tensors[i];
        const REAL shrink = (REAL)(1 - p->rate * (t.decayed ? p->decay : 0));
        REAL *w = t.weight + m * t.size, *first = t.first + m * t.size;
        REAL *second = t.second + m * t.size, *mean = t.average ? t.average + m * t.size : NULL;
        const REAL *g = t.gradient + m * t.size;
        SIMD for (ptrdiff_t j = 0; j < t.size; j++)
        {
            const REAL own = g[j] * factor;
            const REAL f = first[j] + beta * (own - first[j]);
            const REAL s = second[j] + gamma * (own * own - second[j]);
            first[j] = f, second[j] = s;
            w[j] = w[j] * shrink - size_1 * f / (ROOT(s) * root_2 + eps);
        }
        if (mean)
            SIMD for (ptrdiff_t j = 0; j < t.size; j++)
                mean[j] += follow * (w[j] - mean[j]);
    }
}

/* Writes the length of each member's gradient; takes the step if all are finite, and tells whether. */
static int NAME(adamw)(const STEP *p, int threads)
{
    const unsigned kept = ignore_subnormals();
    int finite = 1;
    (void)threads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (ptrdiff_t m = 0; m < p->members; m++)
        p->lengths[m] = sqrt(NAME(square)(p, m));
    for (ptrdiff_t m = 0; m < p->members; m++)
        finite &= p->lengths[m] < INFINITY;
    if (finite) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
        for (ptrdiff_t m = 0; m < p->members; m++) {
            const unsigned own = ignore_subnormals();
            NAME(advance)(p, m, p->lengths[m]);
            restore_subnormals(own);
        }
    }
    restore_subnormals(kept);
    return finite;
}
