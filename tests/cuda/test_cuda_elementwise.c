/*
 * tests/cuda/test_cuda_elementwise.c: operators that work element by element, and softmaxes, on
 * CUDA against the CPU.
 *
 * Counts that are no multiple of four take the way without packs. The larger cases have more
 * elements than a grid has threads in one stride.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)
#define VECTOR(n)                                                                                  \
    {                                                                                              \
        .rank = 1, .dim = { n }                                                                    \
    }
#define MATRIX(a, b)                                                                               \
    {                                                                                              \
        .rank = 2, .dim = { a, b }                                                                 \
    }
#define IMAGE(c, h, w)                                                                             \
    {                                                                                              \
        .rank = 3, .dim = { c, h, w }                                                              \
    }

/* --- functions of one number ------------------------------------------------------------------ */

/* Where both sides do the same operations; the compiler may fuse some of a device's. */
#define ROUNDINGS 1e-6
/* tanhf and erfcf of a device's library against polynomials of the CPU's: a few units in the last
 * place of each. */
#define LIBRARIES 2e-6

ParameterizedTestParameters(cuda_elementwise, functions_of_one_number_are_the_cpus)
{
    static cuda_case cases[] = {
        {"relu copies or clears", "relu", 1, {VECTOR(12)}, 0, CUDA_FILL_TIES},
        {"relu, no multiple of four", "relu", 1, {IMAGE(3, 5, 5)}, 0, CUDA_FILL_UNIFORM},
        {"relu6, both kinks", "relu6", 1, {IMAGE(4, 3, 2)}, 0, CUDA_FILL_TIES},
        {"hardtanh, at its ends", "hardtanh min=-1 max=2", 1, {VECTOR(10)}, 0, CUDA_FILL_TIES},
        {"leaky_relu, at its kink",
         "leaky_relu slope=0.1",
         1,
         {VECTOR(7)},
         ROUNDINGS,
         CUDA_FILL_TIES},
        {"elu", "elu alpha=1.5", 1, {VECTOR(13)}, ROUNDINGS, CUDA_FILL_UNIFORM},
        {"elu, fours", "elu", 1, {VECTOR(8)}, ROUNDINGS, CUDA_FILL_UNIFORM},
        {"sigmoid", "sigmoid", 1, {VECTOR(9)}, ROUNDINGS, CUDA_FILL_UNIFORM},
        {"silu", "silu", 1, {IMAGE(4, 4, 3)}, ROUNDINGS, CUDA_FILL_UNIFORM},
        {"tanh", "tanh", 1, {VECTOR(21)}, LIBRARIES, CUDA_FILL_UNIFORM},
        {"gelu of the distribution", "gelu", 1, {VECTOR(40)}, LIBRARIES, CUDA_FILL_UNIFORM},
        {"gelu by tanh", "gelu approximate=tanh", 1, {VECTOR(11)}, LIBRARIES, CUDA_FILL_UNIFORM},
        {"softplus", "softplus", 1, {VECTOR(12)}, ROUNDINGS, CUDA_FILL_UNIFORM},
        {"softplus on both sides of its threshold",
         "softplus beta=2 threshold=1",
         1,
         {VECTOR(30)},
         ROUNDINGS,
         CUDA_FILL_UNIFORM},
        {"one element", "tanh", 1, {VECTOR(1)}, LIBRARIES, CUDA_FILL_UNIFORM},
        {"many", "sigmoid", 1, {VECTOR(4001)}, ROUNDINGS, CUDA_FILL_UNIFORM},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_elementwise, functions_of_one_number_are_the_cpus)
{
    cuda_check(c);
}

/* --- numbers at the edge ---------------------------------------------------------------------- */

/* What both sides are given: far out, nearly nothing, and no number. */
static const float edges[] = {NAN,    INFINITY, -INFINITY, 1e30f, -1e30f, 0.0f,   -0.0f, 89.0f,
                              -89.0f, 20.5f,    -20.5f,    1e-6f, -1e-6f, 1e-40f, -9.0f, 6.0f};
enum { EDGES = sizeof edges / sizeof *edges };

typedef struct edge_case {
    char spec[40];
    bool image; /* the operator needs one */
} edge_case;

/* NaN and infinities where the other has them; else close relative to the value, or to 1e-6, below
 * which tails may end at different places. */
static bool near(float got, float want)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs((double)got - want) <= 1e-5 * fabs((double)want) + 1e-11;
}

/* One call of a device's function with the rig's tensors; what the call gives into `to`. */
static void call_edges(const test_rig *rig, const gpp__kernels *op, const float *grad, float *to)
{
    gpp__run run = rig->run;
    gpp__io io = {.params = NULL};
    void *x = cuda_copy_of(edges, sizeof edges), *y = cuda_room(sizeof edges), *dy = NULL;
    gpp_error err = GPP_ERROR_INIT;
    run.cuda = cuda_device(GPP__MATH_F32);
    run.err = &err;
    io.in[0] = x;
    io.out[0] = y;
    if (grad) {
        dy = cuda_copy_of(grad, sizeof edges);
        io.grad_out[0] = dy;
        io.grad_in[0] = y;
        io.in[0] = io.out[0] = x; /* which of them is read: the caller's knows */
    }
    gpp_status status = (grad ? op->backward : op->forward)(&rig->kernel, &run, &io);
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
    cuda_get(to, y, sizeof edges);
    cuda_free(x);
    cuda_free(y);
    cuda_free(dy);
}

/* The same call of the CPU's. */
static void call_cpu(const test_rig *rig, const float *grad, float *to)
{
    gpp__io io = {.in = {edges}, .out = {to}};
    if (grad) {
        io.out[0] = (void *)edges;
        io.grad_out[0] = grad;
        io.grad_in[0] = to;
    }
    const gpp__kernels *op = &rig->layer.op->cpu;
    cr_assert_eq((grad ? op->backward : op->forward)(&rig->kernel, &rig->run, &io), GPP_OK);
}

static void check_edges(const char *spec, const gpp__kernels *op)
{
    const gpp__desc in = VECTOR(EDGES);
    float grad[EDGES], got[EDGES], want[EDGES];
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    cr_assert_eq(test_rig_new(&rig, spec, 0, &in, 1, 1, &err), GPP_OK, "%s", err.msg);
    for (int k = 0; k < EDGES; k++)
        grad[k] = k % 5 == 4 ? -2.0f : 1.5f;
    for (int back = 0; back < 2; back++) {
        call_edges(rig, op, back ? grad : NULL, got);
        call_cpu(rig, back ? grad : NULL, want);
        for (int k = 0; k < EDGES; k++)
            cr_expect(near(got[k], want[k]), "%s, %s of %g: %.9g, the CPU's is %.9g", spec,
                      back ? "gradient" : "value", (double)edges[k], (double)got[k],
                      (double)want[k]);
    }
    test_rig_free(rig);
}

Test(cuda_elementwise, edges_and_no_numbers_give_what_the_cpu_gives)
{
    static const struct {
        const char *spec;
        const gpp__kernels *op;
    } cases[] = {
        {"relu", &gpp__cuda_relu},         {"relu6", &gpp__cuda_relu6},
        {"hardtanh", &gpp__cuda_hardtanh}, {"leaky_relu", &gpp__cuda_leaky_relu},
        {"elu", &gpp__cuda_elu},           {"sigmoid", &gpp__cuda_sigmoid},
        {"silu", &gpp__cuda_silu},         {"tanh", &gpp__cuda_tanh},
        {"gelu", &gpp__cuda_gelu},         {"gelu approximate=tanh", &gpp__cuda_gelu},
        {"softplus", &gpp__cuda_softplus},
    };
    for (size_t k = 0; k < COUNT(cases); k++)
        check_edges(cases[k].spec, cases[k].op);
}

/* --- sums and products ------------------------------------------------------------------------ */

ParameterizedTestParameters(cuda_elementwise, sums_and_products_are_the_cpus_bit_for_bit)
{
    static cuda_case cases[] = {
        {"two", "add", 2, {VECTOR(8), VECTOR(8)}, 0, CUDA_FILL_UNIFORM},
        {"four, no multiple of four",
         "add",
         4,
         {IMAGE(3, 3, 1), IMAGE(3, 3, 1), IMAGE(3, 3, 1), IMAGE(3, 3, 1)},
         0,
         CUDA_FILL_UNIFORM},
        {"two factors", "mul", 2, {VECTOR(12), VECTOR(12)}, 0, CUDA_FILL_UNIFORM},
        {"three, one of them zero here and there",
         "mul",
         3,
         {MATRIX(3, 5), MATRIX(3, 5), MATRIX(3, 5)},
         0,
         CUDA_FILL_TIES},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_elementwise, sums_and_products_are_the_cpus_bit_for_bit)
{
    cuda_check(c);
}

/* --- dropout ---------------------------------------------------------------------------------- */

ParameterizedTestParameters(cuda_elementwise, masks_of_dropout_are_the_cpus_bit_for_bit)
{
    static cuda_case cases[] = {
        {"parts of blocks of 32", "dropout p=0.5", 1, {VECTOR(7)}, 0, CUDA_FILL_UNIFORM},
        {"whole blocks", "dropout p=0.25", 1, {VECTOR(96)}, 0, CUDA_FILL_UNIFORM},
        {"an image", "dropout p=0.9", 1, {IMAGE(3, 5, 4)}, 0, CUDA_FILL_UNIFORM},
        {"nothing is kept", "dropout p=1", 1, {VECTOR(5)}, 0, CUDA_FILL_UNIFORM},
        {"channels", "dropout2d p=0.5", 1, {IMAGE(5, 3, 3)}, 0, CUDA_FILL_UNIFORM},
        {"channels in fours", "dropout2d p=0.3", 1, {IMAGE(8, 2, 3)}, 0, CUDA_FILL_UNIFORM},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_elementwise, masks_of_dropout_are_the_cpus_bit_for_bit)
{
    cuda_check(c);
}

/* One forward of dropout of `row` ones a row, at a place in the run. */
static void mask_at(const char *spec, const gpp__kernels *op, const gpp__run *run, int64_t row,
                    int64_t rows)
{
    const gpp__desc in = VECTOR(row);
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    size_t bytes = (size_t)(rows * row) * sizeof(float);
    float *x = test_room(bytes), *got = test_room(bytes), *want = test_room(bytes);
    cr_assert_eq(test_rig_new(&rig, spec, 3, &in, rows, 1, &err), GPP_OK, "%s", err.msg);
    for (int64_t k = 0; k < rows * row; k++)
        x[k] = 1;
    gpp__pool *pool = rig->run.pool; /* the rig's */
    rig->run = *run;
    rig->run.pool = pool;
    cr_assert_eq(test_rig_forward(rig, x, want), GPP_OK);
    void *to = cuda_room(bytes);
    gpp__io io = {.in = {cuda_copy_of(x, bytes)}, .out = {to}};
    rig->run.cuda = cuda_device(GPP__MATH_F32);
    cr_assert_eq(op->forward(&rig->kernel, &rig->run, &io), GPP_OK);
    cuda_get(got, to, bytes);
    cr_expect(test_same(got, want, rows * row), "seed %llu, step %llu, row %lld",
              (unsigned long long)run->seed, (unsigned long long)run->step,
              (long long)run->row0[0]);
    cuda_free((void *)io.in[0]);
    cuda_free(to);
    test_rig_free(rig);
    free(x);
    free(got);
    free(want);
}

Test(cuda_elementwise, masks_are_a_function_of_seed_step_and_row)
{
    static const gpp__run runs[] = {
        {.training = true, .seed = 1, .row0 = {0}},
        {.training = true, .seed = UINT64_C(0xfedcba9876543210), .step = 77, .row0 = {13}},
        {.training = true, .seed = 2, .step = UINT64_C(0x300000001), .row0 = {1 << 20}},
        {.training = true, .seed = 3, .row0 = {INT64_C(1) << 40}},
    };
    for (size_t k = 0; k < COUNT(runs); k++) {
        mask_at("dropout p=0.5", &gpp__cuda_dropout, &runs[k], 11, 5);
        mask_at("dropout p=0.1", &gpp__cuda_dropout, &runs[k], 64, 3);
    }
}

Test(cuda_elementwise, dropout_evaluates_to_its_input)
{
    static const gpp__run run = {.training = false, .seed = 1};
    mask_at("dropout p=0.5", &gpp__cuda_dropout, &run, 11, 5);
}

/* --- softmaxes -------------------------------------------------------------------------------- */

/* Σ exp is summed in another order than the CPU's, from other exponentials. */
#define SUMS 2e-6

ParameterizedTestParameters(cuda_elementwise, softmaxes_are_the_cpus_along_any_dimension)
{
    static cuda_case cases[] = {
        {"few classes, many lines of a block", "softmax", 1, {VECTOR(3)}, SUMS, CUDA_FILL_UNIFORM},
        {"one class", "softmax", 1, {VECTOR(1)}, SUMS, CUDA_FILL_UNIFORM},
        {"a group of 16", "softmax", 1, {VECTOR(10)}, SUMS, CUDA_FILL_UNIFORM},
        {"a block for a line, several elements a thread",
         "softmax",
         1,
         {VECTOR(700)},
         SUMS,
         CUDA_FILL_UNIFORM},
        {"ties", "log_softmax", 1, {VECTOR(33)}, SUMS, CUDA_FILL_TIES},
        {"channels, innermost in memory",
         "softmax dim=1",
         1,
         {IMAGE(6, 3, 5)},
         SUMS,
         CUDA_FILL_UNIFORM},
        {"height: lines side by side",
         "softmax dim=2",
         1,
         {IMAGE(6, 3, 5)},
         SUMS,
         CUDA_FILL_UNIFORM},
        {"width, longer than a group",
         "log_softmax dim=3",
         1,
         {IMAGE(2, 3, 21)},
         SUMS,
         CUDA_FILL_UNIFORM},
        {"the first of two", "log_softmax dim=1", 1, {MATRIX(9, 40)}, SUMS, CUDA_FILL_UNIFORM},
        {"more lines than the emulated device's blocks take at once",
         "softmax",
         1,
         {MATRIX(90, 33)},
         SUMS,
         CUDA_FILL_UNIFORM},
        {"the last of two", "log_softmax", 1, {MATRIX(4, 17)}, SUMS, CUDA_FILL_UNIFORM},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_elementwise, softmaxes_are_the_cpus_along_any_dimension)
{
    cuda_check(c);
}
