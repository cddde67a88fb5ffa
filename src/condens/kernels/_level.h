/* All kernels for one level of instructions, LEVEL, in both storage types. */

#define REAL float
#define LARGEST FLT_MAX
#define SMALLEST (FLT_MIN * 0x1p32)
#define EXP near_exp
#define SHORT_EXP short_exp
#define LINES 4 /* cache lines of a block */
#define NAME(x) AT_LEVEL(x##_f32)
#define PROBLEM problem_f32
#define DRAWS draws_f32
#define LAYER layer_f32
#define MLP mlp_f32
#define TENSOR tensor_f32
#define STEP step_f32
#define ROOT sqrtf
#define PACK vec_f32
#define HALF half_f32
#include "_nll.h"
#include "_sample.h"
#include "_dropout.h"
#include "_mlp.h"
#include "_adamw.h"
#undef REAL
#undef LARGEST
#undef SMALLEST
#undef EXP
#undef SHORT_EXP
#undef LINES
#undef NAME
#undef PROBLEM
#undef DRAWS
#undef LAYER
#undef MLP
#undef TENSOR
#undef STEP
#undef ROOT
#undef PACK
#undef HALF

#define REAL double
#define LARGEST DBL_MAX
#define SMALLEST (DBL_MIN * 0x1p64)
#define EXP fast_exp
#define SHORT_EXP fast_exp
#define LINES 8
#define NAME(x) AT_LEVEL(x##_f64)
#define PROBLEM problem_f64
#define DRAWS draws_f64
#define LAYER layer_f64
#define MLP mlp_f64
#define TENSOR tensor_f64
#define STEP step_f64
#define ROOT sqrt
#define PACK vec_f64
#define HALF half_f64
#include "_nll.h"
#include "_sample.h"
#include "_dropout.h"
#include "_mlp.h"
#include "_adamw.h"
#undef REAL
#undef LARGEST
#undef SMALLEST
#undef EXP
#undef SHORT_EXP
#undef LINES
#undef NAME
#undef PROBLEM
#undef DRAWS
#undef LAYER
#undef MLP
#undef TENSOR
#undef STEP
#undef ROOT
#undef PACK
#undef HALF
