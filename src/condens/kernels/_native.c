/* The native kernels as a Python module. Tensors come as addresses and strides: nothing of
 * torch's C++ interface is used, so one build serves every version of it. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#define BLOCK 64 /* samples at a time */
#define LANES 8  /* lines and samples of a tile to transpose */
#define STAGED 128 /* lines of a factor copied at a time, or one factor's */
#define DRAWS_PER_COMPONENT 32 /* in a turn, at least, were all weights equal */
#define THREADS 1024 /* at most, however many are asked for */
#define MAX_DEPTH 32 /* hidden layers */
#define MAX_TENSORS 256 /* parameters of a step */
#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define SIMD _Pragma("omp simd")
#define EACH(s) SIMD for (int s = 0; s < BLOCK; s++)

typedef double vec_f64 __attribute__((vector_size(64), aligned(8)));
typedef float vec_f32 __attribute__((vector_size(32), aligned(4)));
typedef double half_f64 __attribute__((vector_size(32), aligned(8)));
typedef float half_f32 __attribute__((vector_size(16), aligned(4)));

#include "_scratch.h"
#include "_partial.h"
#include "_problem.h"
#include "_scalar.h"

#define JOIN_(x, y) x##_##y
#define JOIN(x, y) JOIN_(x, y)
#define AT_LEVEL(x) JOIN(x, LEVEL)

/* Of a tile of a matrix product: as many sums as there are registers for. */
#define VECTOR_BYTES 16
#define TILE_ROWS 4
#define LEVEL plain
#include "_level.h"
#undef LEVEL
#undef VECTOR_BYTES

/* The better levels of x86-64, chosen when the module is loaded. */
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#define LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define VECTOR_BYTES 32
#define LEVEL v3
#include "_level.h"
#undef LEVEL
#undef VECTOR_BYTES
#undef TILE_ROWS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define VECTOR_BYTES 64
#define TILE_ROWS 8
#define LEVEL v4
#include "_level.h"
#undef LEVEL
#pragma GCC pop_options
#endif

typedef struct {
    const char *name;
    int (*nll_f32)(const problem_f32 *, int), (*nll_f64)(const problem_f64 *, int);
    int (*sample_f32)(const draws_f32 *, int), (*sample_f64)(const draws_f64 *, int);
    void (*mask_f32)(const uint64_t *, long long, long long, long long, uint64_t, uint64_t, int,
                     float, float *);
    void (*mask_f64)(const uint64_t *, long long, long long, long long, uint64_t, uint64_t, int,
                     double, double *);
    int (*mlp_f32)(const mlp_f32 *, int), (*mlp_f64)(const mlp_f64 *, int);
    int (*adamw_f32)(const step_f32 *, int), (*adamw_f64)(const step_f64 *, int);
} level;

#define BOTH(kernel, x) kernel##_f32_##x, kernel##_f64_##x
#define THE_LEVEL(name, x) {name, BOTH(nll, x), BOTH(sample, x), BOTH(mask, x), BOTH(mlp, x), BOTH(adamw, x)}
static const level levels[] = {
#ifdef LEVELS
    THE_LEVEL("x86-64-v4", v4),
    THE_LEVEL("x86-64-v3", v3),
#endif
    THE_LEVEL("baseline", plain),
};
#define BASELINE ((int)(sizeof levels / sizeof *levels) - 1)
static const level *used = levels + BASELINE;

/* Whether this machine has the instructions of a level. */
static int supported(int i)
{
#ifdef LEVELS
    __builtin_cpu_init();
    if (i == 0)
        return __builtin_cpu_supports("x86-64-v4");
    if (i == 1)
        return __builtin_cpu_supports("x86-64-v3");
#endif
    return i == BASELINE;
}

#define STEP_REALS 9
#include "_checks.h"

static int numbers(const char *name, PyObject *const *args, Py_ssize_t count, Py_ssize_t expected,
                   long long *a)
{
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd numbers, got %zd", name, expected, count);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        a[i] = PyLong_AsLongLong(args[i]);
        if (a[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

#define ARGUMENTS 28

static PyObject *nll(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long a[ARGUMENTS];
    (void)self;
    double real[3] = {0};
    for (int i = 0; i < 3 && i < count; i++)
        real[i] = PyFloat_AsDouble(args[i]);
    if (PyErr_Occurred() || !numbers("nll", args + 3, count - 3, ARGUMENTS, a) ||
        !nll_checked(real, a))
        return NULL;
    const int threads = a[1] < THREADS ? (int)a[1] : THREADS;
    int failed = 0;
#define FILL(REAL)                                                                                 \
    {                                                                                              \
        a[2], a[3], a[4], a[5],                                                                    \
        (const REAL *)a[6], (const REAL *)a[7], (const REAL *)a[8], (const REAL *)a[9],            \
        (const REAL *)a[10], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24], a[25], a[26], \
        a[27], (REAL *)a[11], (REAL *)a[12], (REAL *)a[13], (REAL *)a[14], (REAL *)a[15],          \
        (REAL *)a[16], real[0], real[1], real[2]                                                   \
    }
    Py_BEGIN_ALLOW_THREADS
    if (a[0]) {
        problem_f64 p = FILL(double);
        failed = used->nll_f64(&p, threads);
    } else {
        problem_f32 p = FILL(float);
        failed = used->nll_f32(&p, threads);
    }
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define DRAW_ARGUMENTS 18

static PyObject *sample(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long a[DRAW_ARGUMENTS];
    (void)self;
    if (!numbers("sample", args, count, DRAW_ARGUMENTS, a) || !sample_checked(a))
        return NULL;
    const int threads = a[1] < THREADS ? (int)a[1] : THREADS;
    int failed = 0;
#define FILL_DRAWS(REAL)                                                                           \
    {                                                                                              \
        a[2], a[3], a[4], a[5], a[6], (REAL *)a[7], (const double *)a[8], (const double *)a[9],    \
        (const REAL *)a[10], (const REAL *)a[11], a[12], a[13], a[14], a[15], a[16], a[17]         \
    }
    Py_BEGIN_ALLOW_THREADS
    if (a[0]) {
        draws_f64 p = FILL_DRAWS(double);
        failed = used->sample_f64(&p, threads);
    } else {
        draws_f32 p = FILL_DRAWS(float);
        failed = used->sample_f32(&p, threads);
    }
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define PARTIAL_ARGUMENTS 15

static PyObject *partial_density(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long a[PARTIAL_ARGUMENTS];
    (void)self;
    const double reach = count ? PyFloat_AsDouble(args[0]) : 0;
    if (PyErr_Occurred() || !numbers("partial", args + 1, count - 1, PARTIAL_ARGUMENTS, a) ||
        !partial_checked(reach, a))
        return NULL;
    const int threads = a[0] < THREADS ? (int)a[0] : THREADS;
    const partial_rows p = {
        a[1], a[2], a[3], a[4], reach,
        (const double *)a[5], (const double *)a[6], (const double *)a[7], (const double *)a[8],
        (const double *)a[9],
        (double *)a[10], (double *)a[11], (double *)a[12], (double *)a[13], (double *)a[14],
    };
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    failed = partial(&p, threads);
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define MASK_ARGUMENTS 9

static void run_mask(double kept, const long long *a)
{
#define MASKED (const uint64_t *)a[7], a[1], a[2], a[3], (uint64_t)a[4], (uint64_t)a[5], (int)a[6]
    if (a[0])
        used->mask_f64(MASKED, kept, (double *)a[8]);
    else
        used->mask_f32(MASKED, (float)kept, (float *)a[8]);
}

static PyObject *mask(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long a[MASK_ARGUMENTS];
    (void)self;
    const double kept = count ? PyFloat_AsDouble(args[0]) : 0;
    if (PyErr_Occurred() || !numbers("mask", args + 1, count - 1, MASK_ARGUMENTS, a) ||
        !mask_checked(a))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    run_mask(kept, a);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#define MLP_ARGUMENTS 30
#define LAYER_ARGUMENTS 5

/* Returns 0, or 1 where there was no memory for scratch. */
static int run_mlp(const double *real, const long long *a)
{
    const long long depth = a[8];
    const int threads = a[1] < THREADS ? (int)a[1] : THREADS;
#define FILL_MLP(REAL)                                                                             \
    {                                                                                              \
        a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],                       \
        (const REAL *)a[13], (const REAL *)a[14], (const REAL *)a[15], (const REAL *)a[16],        \
        (const REAL *)a[17], (const REAL *)a[18], (REAL *)a[19], (REAL *)a[20],                    \
        (REAL *)a[21], a[22], a[23], a[24], a[25], a[26], a[27], a[28], a[29], real[0], real[1],   \
        {{0}}                                                                                      \
    }
#define FILL_LAYERS(REAL)                                                                          \
    for (long long l = 0; l <= depth; l++) {                                                       \
        const long long *next = a + MLP_ARGUMENTS + LAYER_ARGUMENTS * l;                           \
        p.layers[l].weight = (const REAL *)next[0], p.layers[l].bias = (const REAL *)next[1];      \
        p.layers[l].mask = (const REAL *)next[2];                                                  \
        p.layers[l].to_weight = (REAL *)next[3], p.layers[l].to_bias = (REAL *)next[4];            \
    }
    if (a[0]) {
        mlp_f64 p = FILL_MLP(double);
        FILL_LAYERS(double)
        return used->mlp_f64(&p, threads);
    }
    mlp_f32 p = FILL_MLP(float);
    FILL_LAYERS(float)
    return used->mlp_f32(&p, threads);
}

/* Reads the depth, which says how many numbers follow; returns 0 where it is none. */
static int depth_of(PyObject *number, long long *depth)
{
    *depth = number ? PyLong_AsLongLong(number) : 1;
    if (PyErr_Occurred())
        return 0;
    if (*depth >= 1 && *depth <= MAX_DEPTH)
        return 1;
    PyErr_Format(PyExc_ValueError, "the depth is %lld, but 1 to %d was expected. Call "
                 "condens.kernels.networks.mlp with layers.", *depth, MAX_DEPTH);
    return 0;
}

static int reals(PyObject *const *args, Py_ssize_t count, int expected, double *real)
{
    for (int i = 0; i < expected; i++)
        real[i] = i < count ? PyFloat_AsDouble(args[i]) : 0;
    return !PyErr_Occurred();
}

static PyObject *mlp(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long a[MLP_ARGUMENTS + LAYER_ARGUMENTS * (MAX_DEPTH + 1)], depth;
    (void)self;
    double real[2];
    if (!reals(args, count, 2, real) || !depth_of(count > 10 ? args[10] : NULL, &depth) ||
        !numbers("mlp", args + 2, count - 2, MLP_ARGUMENTS + LAYER_ARGUMENTS * (depth + 1), a) ||
        !mlp_checked(real, a))
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = run_mlp(real, a);
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define STEP_ARGUMENTS 5
#define TENSOR_ARGUMENTS 7

/* Returns whether the step was taken. */
static int run_adamw(const double *real, const long long *a)
{
    const int threads = a[1] < THREADS ? (int)a[1] : THREADS;
#define FILL_STEP(REAL)                                                                            \
    p.members = a[2], p.count = a[3], p.lengths = (double *)a[4];                                  \
    p.rate = real[0], p.beta1 = real[1], p.beta2 = real[2], p.eps = real[3], p.decay = real[4];    \
    p.clip = real[5], p.follow = real[6], p.correction_1 = real[7], p.correction_2 = real[8];      \
    for (long long i = 0; i < a[3]; i++) {                                                         \
        const long long *next = a + STEP_ARGUMENTS + TENSOR_ARGUMENTS * i;                         \
        p.tensors[i].size = next[0], p.tensors[i].decayed = next[1];                               \
        p.tensors[i].gradient = (const REAL *)next[2], p.tensors[i].weight = (REAL *)next[3];      \
        p.tensors[i].first = (REAL *)next[4], p.tensors[i].second = (REAL *)next[5];               \
        p.tensors[i].average = (REAL *)next[6];                                                    \
    }
    if (a[0]) {
        step_f64 p;
        FILL_STEP(double)
        return used->adamw_f64(&p, threads);
    }
    step_f32 p;
    FILL_STEP(float)
    return used->adamw_f32(&p, threads);
}

static PyObject *adamw(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long a[STEP_ARGUMENTS + TENSOR_ARGUMENTS * MAX_TENSORS];
    (void)self;
    double real[STEP_REALS];
    if (!reals(args, count, STEP_REALS, real))
        return NULL;
    /* How many parameters there are says how many numbers. */
    const int place = STEP_REALS + 3;
    const long long tensors = count > place ? PyLong_AsLongLong(args[place]) : 1;
    if (PyErr_Occurred())
        return NULL;
    if (tensors < 1 || tensors > MAX_TENSORS)
        return PyErr_Format(PyExc_ValueError, "there are %lld parameters, but 1 to %d were expected. "
                            "Call condens.kernels.networks.AdamW with tensors.", tensors, MAX_TENSORS);
    if (!numbers("adamw", args + STEP_REALS, count - STEP_REALS,
                 STEP_ARGUMENTS + TENSOR_ARGUMENTS * tensors, a) ||
        !adamw_checked(real, a))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    run_adamw(real, a);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* What differs from step to step. */
#define ROWS_ARGUMENTS 12
#define SCHEDULE 4
#define MAX_STEPS 64
#define STEPS_REALS 7
#define STEPS_ARGUMENTS 4

/* Fills in the rows of a step: how many, their place in the epoch, then where numbers, targets,
 * weights and the losses are. */
static void fill_rows(const long long *rows, long long *network)
{
    network[3] = rows[0];
    network[13] = rows[2], network[22] = rows[3], network[23] = rows[4];
    network[17] = rows[5], network[26] = rows[6], network[27] = rows[7];
    network[18] = rows[8], network[28] = rows[9], network[29] = rows[10];
    network[19] = rows[11];
}

/* The mask of a layer, whose bits are counted as `condens.nn.randomness` does. */
static void fill_mask(const long long *network, long long layer, const long long *rows, long long calls,
                      long long dropped, long long bases, long long *a)
{
    const long long values[MASK_ARGUMENTS] = {
        network[0], network[2], rows[0], network[7], rows[1], calls << 32, dropped + INT16_MIN, bases,
        network[MLP_ARGUMENTS + LAYER_ARGUMENTS * layer + 2]};
    memcpy(a, values, sizeof values);
}

/* steps(floor, tightness, beta1, beta2, eps, decay, clip, count, rows, schedule, bases, and those of
 * mlp, the values dropped by each layer, and those of adamw): steps of training, one after the
 * other. Returns how many were taken: at the first whose numbers are not finite it ends. */
static PyObject *steps(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    enum { LAYERS = MAX_DEPTH + 1, OF_LAYER = LAYER_ARGUMENTS + 1 + 2 * TENSOR_ARGUMENTS };
    long long a[STEPS_ARGUMENTS + MLP_ARGUMENTS + STEP_ARGUMENTS + OF_LAYER * LAYERS], depth;
    long long rows[MAX_STEPS * ROWS_ARGUMENTS], of_mask[MASK_ARGUMENTS];
    double given[STEPS_REALS], schedule[MAX_STEPS * SCHEDULE];
    (void)self;
    const int place = STEPS_REALS + STEPS_ARGUMENTS + 8;
    if (!reals(args, count, STEPS_REALS, given) ||
        !depth_of(count > place ? args[place] : NULL, &depth) ||
        !numbers("steps", args + STEPS_REALS, count - STEPS_REALS,
                 STEPS_ARGUMENTS + MLP_ARGUMENTS + STEP_ARGUMENTS + OF_LAYER * (depth + 1), a))
        return NULL;
    long long *network = a + STEPS_ARGUMENTS;
    const long long *dropped = network + MLP_ARGUMENTS + LAYER_ARGUMENTS * (depth + 1);
    const long long *optimiser = dropped + depth + 1, taken = a[0];
    if (taken < 1 || taken > MAX_STEPS || !a[1] || !a[2] || a[1] % 8 || a[2] % 8 || a[1] < 0 || a[2] < 0 ||
        optimiser[0] != network[0] || optimiser[2] != network[2] || optimiser[3] != 2 * (depth + 1))
        return PyErr_Format(PyExc_ValueError, "the steps are %lld, but 1 to %d of one network were "
                            "expected. Call condens.kernels.networks.Steps.", taken, MAX_STEPS);
    memcpy(rows, (const void *)a[1], (size_t)taken * ROWS_ARGUMENTS * sizeof *rows);
    memcpy(schedule, (const void *)a[2], (size_t)taken * SCHEDULE * sizeof *schedule);
#define REALS_OF(i)                                                                                \
    {schedule[SCHEDULE * (i)], given[2], given[3], given[4], given[5], given[6],                   \
     schedule[SCHEDULE * (i) + 1], schedule[SCHEDULE * (i) + 2], schedule[SCHEDULE * (i) + 3]}
    for (long long i = 0; i < taken; i++) {
        const double real[STEP_REALS] = REALS_OF(i);
        fill_rows(rows + ROWS_ARGUMENTS * i, network);
        if (!mlp_checked(given, network) || !adamw_checked(real, optimiser))
            return NULL;
        for (long long l = 0; l <= depth; l++)
            if (network[MLP_ARGUMENTS + LAYER_ARGUMENTS * l + 2]) {
                fill_mask(network, l, rows + ROWS_ARGUMENTS * i, 1, dropped[l], a[3], of_mask);
                if (!mask_checked(of_mask))
                    return NULL;
            }
    }
    if (network[21])
        return PyErr_Format(PyExc_ValueError, "the losses of rows have memory, but a step makes "
                            "gradients. Call condens.kernels.networks.Steps.");
    long long done = 0;
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; done < taken; done++) {
        const double real[STEP_REALS] = REALS_OF(done);
        double total = 0;
        fill_rows(rows + ROWS_ARGUMENTS * done, network);
        for (long long l = 0, calls = 0; l <= depth; l++)
            if (network[MLP_ARGUMENTS + LAYER_ARGUMENTS * l + 2]) {
                fill_mask(network, l, rows + ROWS_ARGUMENTS * done, ++calls, dropped[l], a[3], of_mask);
                run_mask(65536.0 / (double)(65536 - dropped[l]), of_mask);
            }
        failed = run_mlp(given, network);
        for (long long m = 0; m < network[2] && !failed; m++)
            total += network[0] ? ((const double *)network[19])[m] : ((const float *)network[19])[m];
        if (failed || !isfinite(total) || !run_adamw(real, optimiser))
            break;
    }
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_NoMemory();
    return PyLong_FromLongLong(done);
}

static PyObject *level_name(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    return PyUnicode_FromString(used->name);
}

static PyObject *use(PyObject *self, PyObject *name)
{
    (void)self;
    for (int i = 0; i <= BASELINE; i++)
        if (PyUnicode_CompareWithASCIIString(name, levels[i].name) == 0 && supported(i)) {
            used = levels + i;
            Py_RETURN_TRUE;
        }
    Py_RETURN_FALSE;
}

static PyMethodDef methods[] = {
    {"level", level_name, METH_NOARGS, "Name the instructions in use."},
    {"use", use, METH_O, "Use a level of instructions, if this machine has them; tell whether."},
    {"sample", (PyCFunction)(void (*)(void))sample, METH_FASTCALL,
     "Standard normal noise to draws, in place; see condens.kernels.native."},
    {"nll", (PyCFunction)(void (*)(void))nll, METH_FASTCALL,
     "Negative log-likelihood and its gradients; see condens.kernels.native."},
    {"partial", (PyCFunction)(void (*)(void))partial_density, METH_FASTCALL,
     "Log density of what was observed, and its gradients; see condens.kernels.native."},
    {"mask", (PyCFunction)(void (*)(void))mask, METH_FASTCALL,
     "The mask of dropout of rows; see condens.kernels.native."},
    {"mlp", (PyCFunction)(void (*)(void))mlp, METH_FASTCALL,
     "The loss of networks and all its gradients; see condens.kernels.networks."},
    {"adamw", (PyCFunction)(void (*)(void))adamw, METH_FASTCALL,
     "A step of AdamW with a clip and a moving average; see condens.kernels.networks."},
    {"steps", (PyCFunction)(void (*)(void))steps, METH_FASTCALL,
     "Steps of training networks; see condens.kernels.networks."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Native kernels of condens.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    if (!scratch_begin()) {
        PyErr_SetString(PyExc_ImportError, "no key is left for what a thread keeps");
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    for (int i = BASELINE; i >= 0; i--)
        if (supported(i))
            used = levels + i;
#ifdef _OPENMP
    const int openmp = 1;
#else
    const int openmp = 0;
#endif
    if (made && PyModule_AddIntConstant(made, "openmp", openmp) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
