/* What a kernel is asked: tensors by address and strides. Gradients have the strides of
 * what they are gradients of; to_factors is NULL where only the loss is wanted, weights
 * where every row has the same weight, `row_weight`, to_target and total where they are not wanted.
 * The scales exp(-u) of the factors' diagonals become floor + 1 / (exp(u) + tightness):
 * tightness is one over the ceiling. */

typedef struct {
    ptrdiff_t batch, components, dimensions, packed;
    const float *target, *logits, *means, *factors, *weights;
    ptrdiff_t target_b, target_d, logits_b, logits_k;
    ptrdiff_t means_b, means_k, means_d, factors_b, factors_k, factors_t, weights_b;
    float *loss, *total, *to_target, *to_logits, *to_means, *to_factors;
    double row_weight, floor, tightness;
} problem_f32;

typedef struct {
    ptrdiff_t batch, components, dimensions, packed;
    const double *target, *logits, *means, *factors, *weights;
    ptrdiff_t target_b, target_d, logits_b, logits_k;
    ptrdiff_t means_b, means_k, means_d, factors_b, factors_k, factors_t, weights_b;
    double *loss, *total, *to_target, *to_logits, *to_means, *to_factors;
    double row_weight, floor, tightness;
} problem_f64;

/* Noise [S, B, D] to become draws, uniform [S, B] and cumulative weights [B, K], all contiguous. */
typedef struct {
    ptrdiff_t draws, batch, components, dimensions, packed;
    float *noise;
    const double *uniform, *cumulative;
    const float *means, *factors;
    ptrdiff_t means_b, means_k, means_d, factors_b, factors_k, factors_t;
} draws_f32;

/* Noise [S, B, D] to become draws, uniform [S, B] and cumulative weights [B, K], all contiguous. */
typedef struct {
    ptrdiff_t draws, batch, components, dimensions, packed;
    double *noise;
    const double *uniform, *cumulative;
    const double *means, *factors;
    ptrdiff_t means_b, means_k, means_d, factors_b, factors_k, factors_t;
} draws_f64;
