/* Rows observed in part: the log density of the entries that are not NaN, and its gradients.
 *
 * One place at a time the columns of the missing dimensions move to the front of U, and each
 * time a rotation of two rows makes it triangular again: U P = Q R. The trailing block of R is
 * the factor of the observed ones. A rotation makes no entry of the diagonal from a difference,
 * so that no condition number is squared.
 *
 * All tensors are contiguous and double. */

#define LOG_2PI 1.8378770664093453

typedef struct {
    int64_t rows, components, dimensions, packed;
    double reach; /* latents from here on are beyond the precision of the result */
    const double *target, *logits, *means, *factors, *weights; /* weights, or NULL for ones */
    double *value, *to_target, *to_logits, *to_means, *to_factors; /* gradients, or all NULL */
} partial_rows;

/* Room for one component. */
typedef struct {
    double *upper;    /* R [D, D] */
    double *rotated;  /* the transpose of Q [D, D] */
    double *diagonal; /* log-diagonal of R [D] */
    double *offset;   /* x − μ in the order of R's columns, the missing ones where |z| is least */
    double *latent;   /* the last entries of R (x − μ) [D]: the others are zero */
    double *solved;   /* a column of U_m's pseudo-inverse [D] */
    int64_t *order;   /* the dimensions of R's columns [D] */
} partial_room;

/* Where entry (i, j), i < j, lies among packed numbers. */
INLINE int64_t partial_place(int64_t d, int64_t i, int64_t j)
{
    return d * (i + 1) - i * (i + 1) / 2 + j - i - 1;
}

static void partial_rotate(double *above, double *below, int64_t start, int64_t stop, double c,
                           double s)
{
    for (int64_t j = start; j < stop; j++) {
        const double a = above[j], b = below[j];
        above[j] = c * a + s * b;
        below[j] = s * a - c * b;
    }
}

/* Move column `from` to the front, as far as `to`. */
static void partial_forward(const partial_room *m, int64_t d, int64_t to, int64_t from)
{
    for (int64_t i = from; i > to; i--) {
        double *above = m->upper + (i - 1) * d, *below = m->upper + i * d;
        for (int64_t r = 0; r < i - 1; r++) {
            double *row = m->upper + r * d, kept = row[i];
            row[i] = row[i - 1], row[i - 1] = kept;
        }
        const int64_t moved = m->order[i];
        m->order[i] = m->order[i - 1], m->order[i - 1] = moved;
        const double size = hypot(above[i], below[i]), c = above[i] / size, s = below[i] / size;
        const double end = above[i - 1];
        partial_rotate(above, below, i + 1, d, c, s);
        above[i] = c * end, below[i] = s * end, above[i - 1] = size, below[i - 1] = 0;
        partial_rotate(m->rotated + (i - 1) * d, m->rotated + i * d, 0, d, c, s);
        const double both = m->diagonal[i - 1] + m->diagonal[i];
        m->diagonal[i - 1] = log(size), m->diagonal[i] = both - m->diagonal[i - 1];
    }
}

/* Return log p of one component and write its gradients by mean and factor, where wanted. */
static double partial_component(const partial_rows *p, const partial_room *m, const double *target,
                                const double *mean, const double *factor, double *to_mean,
                                double *to_factor)
{
    const int64_t d = p->dimensions, full = p->packed != d;
    const double largest = log(DBL_MAX) - 1; /* as functional.saturated_exp has it */
    int64_t missing = 0;
    memset(m->upper, 0, sizeof(double) * d * d);
    memset(m->rotated, 0, sizeof(double) * d * d);
    for (int64_t i = 0; i < d; i++) {
        m->order[i] = i, m->diagonal[i] = factor[i], m->rotated[i * d + i] = 1;
        m->upper[i * d + i] = exp(factor[i] > largest ? largest : factor[i]);
        for (int64_t j = i + 1; full && j < d; j++)
            m->upper[i * d + j] = factor[partial_place(d, i, j)];
    }
    for (int64_t j = 0; j < d; j++)
        if (isnan(target[j])) {
            if (full)
                partial_forward(m, d, missing, j);
            else
                m->order[j] = m->order[missing], m->order[missing] = j;
            missing++;
        }
    double density = 0;
    int beyond = 0;
    for (int64_t i = d - 1; i >= missing; i--) {
        const int64_t dim = full ? i : m->order[i];
        const double *row = m->upper + dim * d;
        m->offset[i] = target[m->order[i]] - mean[m->order[i]];
        double z = row[dim] * m->offset[i];
        for (int64_t j = i + 1; full && j < d; j++)
            z += row[j] * m->offset[j];
        m->latent[i] = z;
        beyond |= fabs(z) >= p->reach || isinf(m->offset[i]);
        density += m->diagonal[dim] - 0.5 * (z * z + LOG_2PI);
    }
    if (to_mean) {
        memset(to_mean, 0, sizeof(double) * d);
        memset(to_factor, 0, sizeof(double) * p->packed);
    }
    if (beyond)
        return -INFINITY;
    if (!to_mean)
        return density;
    if (!full) {
        for (int64_t i = missing; i < d; i++) {
            const int64_t dim = m->order[i];
            to_mean[dim] = m->upper[dim * d + dim] * m->latent[i];
            to_factor[dim] = 1 - to_mean[dim] * m->offset[i];
        }
        return density;
    }
    for (int64_t i = missing - 1; i >= 0; i--) {
        double sum = 0;
        for (int64_t j = i + 1; j < d; j++)
            sum += m->upper[i * d + j] * m->offset[j];
        m->offset[i] = -sum / m->upper[i * d + i];
    }
    for (int64_t j = missing; j < d; j++)
        for (int64_t i = missing; i <= j; i++)
            to_mean[m->order[j]] += m->upper[i * d + j] * m->latent[i];
    for (int64_t r = 0; r < d; r++) {
        double z = 0;
        for (int64_t i = missing; i < d; i++)
            z += m->rotated[i * d + r] * m->latent[i];
        for (int64_t i = missing - 1; i >= 0; i--) {
            double sum = m->rotated[i * d + r];
            for (int64_t j = i + 1; j < missing; j++)
                sum -= m->upper[i * d + j] * m->solved[j];
            m->solved[i] = sum / m->upper[i * d + i];
        }
        for (int64_t j = 0; j < d; j++) {
            const int64_t column = m->order[j];
            const double slope = -z * m->offset[j] - (j < missing ? m->solved[j] : 0);
            if (column > r)
                to_factor[partial_place(d, r, column)] = slope;
            else if (column == r)
                to_factor[r] = 1 + slope * exp(factor[r] > largest ? largest : factor[r]);
        }
    }
    return density;
}

static void partial_row(const partial_rows *p, const partial_room *m, double *joint, int64_t row)
{
    const int64_t k = p->components, d = p->dimensions, t = p->packed;
    const double *target = p->target + row * d, *logits = p->logits + row * k;
    double *to_target = p->to_target ? p->to_target + row * d : NULL;
    double *to_logits = p->to_logits ? p->to_logits + row * k : NULL;
    double *to_means = p->to_means ? p->to_means + row * k * d : NULL;
    double *to_factors = p->to_factors ? p->to_factors + row * k * t : NULL;
    int64_t observed = 0;
    for (int64_t j = 0; j < d; j++)
        observed += !isnan(target[j]);
    double highest = -INFINITY, top = -INFINITY, all = 0, total = 0;
    for (int64_t c = 0; c < k; c++) {
        joint[c] = logits[c] + partial_component(p, m, target, p->means + (row * k + c) * d,
                                                 p->factors + (row * k + c) * t,
                                                 to_means ? to_means + c * d : NULL,
                                                 to_means ? to_factors + c * t : NULL);
        highest = logits[c] > highest ? logits[c] : highest;
        top = joint[c] > top ? joint[c] : top;
    }
    for (int64_t c = 0; c < k; c++) {
        all += exp(logits[c] - highest);
        total += isinf(top) && !isnan(joint[c]) ? 0 : exp(joint[c] - top);
    }
    const double weight = p->weights ? p->weights[row] : 1;
    const int counts = observed && weight != 0; /* else it takes no part, even if it is infinite */
    /* Logits that are no weights, such as +inf or nothing but -inf, make everything NaN. A target
     * that no component can hold has no gradient either. */
    const int held = total != 0 || isnan(all), known = counts && held;
    const double density = held ? log(total) + top - log(all) - highest : -INFINITY;
    p->value[row] = counts ? weight * density : 0;
    if (!to_means)
        return;
    memset(to_target, 0, sizeof(double) * d);
    for (int64_t c = 0; c < k; c++) {
        const double responsibility = known ? weight * exp(joint[c] - top) / total : 0;
        to_logits[c] = known ? responsibility - weight * exp(logits[c] - highest) / all : 0;
        /* A component without responsibility takes no part, even if its gradient is infinite. */
        for (int64_t j = 0; j < d; j++) {
            to_means[c * d + j] = responsibility == 0 ? 0 : responsibility * to_means[c * d + j];
            to_target[j] -= to_means[c * d + j];
        }
        for (int64_t j = 0; j < t; j++)
            to_factors[c * t + j] = responsibility == 0 ? 0 : responsibility * to_factors[c * t + j];
    }
}

/* Doubles that a thread needs: its room and a joint density for each component. */
INLINE size_t partial_doubles(size_t d, size_t k)
{
    return 2 * d * d + 4 * d + k;
}

static int partial(const partial_rows *p, int threads)
{
    const size_t d = (size_t)p->dimensions, k = (size_t)p->components, doubles = partial_doubles(d, k);
    const size_t count = threads > 1 && p->rows >= 64 ? (size_t)threads : 1;
    char *memory = malloc(count * (doubles * sizeof(double) + d * sizeof(int64_t)) + 1);
    if (!memory)
        return 1;
#ifdef _OPENMP
#pragma omp parallel num_threads(count)
#endif
    {
#ifdef _OPENMP
        const size_t thread = (size_t)omp_get_thread_num();
#else
        const size_t thread = 0;
#endif
        double *room = (double *)memory + thread * doubles, *rest = room + 2 * d * d;
        int64_t *order = (int64_t *)(memory + count * doubles * sizeof(double)) + thread * d;
        const partial_room m = {
            room, room + d * d, rest, rest + d, rest + 2 * d, rest + 3 * d, order,
        };
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
        for (int64_t row = 0; row < p->rows; row++)
            partial_row(p, &m, rest + 4 * d, row);
    }
    free(memory);
    return 0;
}
