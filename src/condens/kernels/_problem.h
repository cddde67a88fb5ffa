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

/* A linear layer of M members: matrices [M, F, P], biases [M, P], and where to write their
 * gradients. A mask [M, b, P] of dropout, or NULL. All contiguous. */
typedef struct {
    const float *weight, *bias, *mask;
    float *to_weight, *to_bias;
} layer_f32;

/* Networks of M members. Each reads numbers and vectors, of which only the numbers have bins with
 * edges and slopes [N, bins]; gradients of the vectors [M, b, V] are NULL where they are not
 * wanted. The layers are `depth` hidden ones and the head. Numbers, vectors and targets are
 * contiguous in their last axis. With `each` the losses of rows [M, b] are written there, and
 * nothing else. */
typedef struct {
    ptrdiff_t members, rows, numbers, vectors, bins, width, depth;
    ptrdiff_t components, dimensions, packed, shortcut;
    const float *input, *given, *edge, *slope, *target, *weights;
    float *loss, *to_vectors, *each;
    ptrdiff_t numbers_m, numbers_r, vectors_m, vectors_r, target_m, target_r, weights_m, weights_r;
    double floor, tightness;
    layer_f32 layers[MAX_DEPTH + 1];
} mlp_f32;

/* A linear layer of M members: matrices [M, F, P], biases [M, P], and where to write their
 * gradients. A mask [M, b, P] of dropout, or NULL. All contiguous. */
typedef struct {
    const double *weight, *bias, *mask;
    double *to_weight, *to_bias;
} layer_f64;

/* Networks of M members. Each reads numbers and vectors, of which only the numbers have bins with
 * edges and slopes [N, bins]; gradients of the vectors [M, b, V] are NULL where they are not
 * wanted. The layers are `depth` hidden ones and the head. Numbers, vectors and targets are
 * contiguous in their last axis. With `each` the losses of rows [M, b] are written there, and
 * nothing else. */
typedef struct {
    ptrdiff_t members, rows, numbers, vectors, bins, width, depth;
    ptrdiff_t components, dimensions, packed, shortcut;
    const double *input, *given, *edge, *slope, *target, *weights;
    double *loss, *to_vectors, *each;
    ptrdiff_t numbers_m, numbers_r, vectors_m, vectors_r, target_m, target_r, weights_m, weights_r;
    double floor, tightness;
    layer_f64 layers[MAX_DEPTH + 1];
} mlp_f64;

/* A parameter of M members, of `size` numbers each, contiguous; `average` may be NULL. */
typedef struct {
    ptrdiff_t size, decayed;
    float *weight;
    const float *gradient;
    float *first, *second, *average;
} tensor_f32;

typedef struct {
    ptrdiff_t members, count;
    double rate, beta1, beta2, eps, decay, clip, follow, correction_1, correction_2;
    double *lengths; /* [M] */
    tensor_f32 tensors[MAX_TENSORS];
} step_f32;

/* A parameter of M members, in double. */
typedef struct {
    ptrdiff_t size, decayed;
    double *weight;
    const double *gradient;
    double *first, *second, *average;
} tensor_f64;

typedef struct {
    ptrdiff_t members, count;
    double rate, beta1, beta2, eps, decay, clip, follow, correction_1, correction_2;
    double *lengths; /* [M] */
    tensor_f64 tensors[MAX_TENSORS];
} step_f64;
