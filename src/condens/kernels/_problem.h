/* What a kernel is asked: tensors by address and strides. Gradients have the strides of
 * what they are gradients of; to_factors is NULL where only the loss is wanted, weights
 * where every row counts once, to_target where its gradient is not wanted. */

typedef struct {
    ptrdiff_t batch, components, dimensions, packed;
    const float *target, *logits, *means, *factors, *weights;
    ptrdiff_t target_b, target_d, logits_b, logits_k;
    ptrdiff_t means_b, means_k, means_d, factors_b, factors_k, factors_t, weights_b;
    float *loss, *to_target, *to_logits, *to_means, *to_factors;
} problem_f32;

typedef struct {
    ptrdiff_t batch, components, dimensions, packed;
    const double *target, *logits, *means, *factors, *weights;
    ptrdiff_t target_b, target_d, logits_b, logits_k;
    ptrdiff_t means_b, means_k, means_d, factors_b, factors_k, factors_t, weights_b;
    double *loss, *to_target, *to_logits, *to_means, *to_factors;
} problem_f64;
