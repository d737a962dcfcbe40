/*
 * tests/cuda/test_cuda_products.c: the kinds of arithmetic of products and convolutions, and
 * convolutions by columns against cuDNN's. Operators against the CPU's: test_cuda_operators.c.
 *
 * In the emulation cuDNN lists, before what has to be chosen, algorithms that fail, want too much
 * memory, differ from call to call or round, and refuses some shapes (cudnn.cpp); cuBLAS rounds
 * operands wherever it may.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cuda/conv.h"
#include "codelets/cuda/gemm.h"
#include "codelets/ops/convolution.h"
#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* Sums of float32 in another order; on a device also by Winograd's transforms, which lose another
 * digit. */
#ifdef GPP_EMULATION
#define TOLERANCE 1e-5
#else
#define TOLERANCE 1e-4
#endif

/* --- arithmetic ------------------------------------------------------------------------------- */

enum { SIDE = 16 };

/* x as an operand of every element of x · 1. */
static float through_product(gpp__math math, float x)
{
    gpp__cuda *cuda = cuda_device(math);
    float a[SIDE * SIDE], b[SIDE * SIDE] = {0};
    const void *a_as, *b_as;
    gpp_error err = GPP_ERROR_INIT;
    for (int k = 0; k < SIDE * SIDE; k++)
        a[k] = x, b[k] = k % (SIDE + 1) == 0;
    void *room[5] = {cuda_copy_of(a, sizeof a), cuda_copy_of(b, sizeof b)};
    for (int k = 2; k < 5; k++)
        room[k] = cuda_room(sizeof a);
    cr_assert(!gpp__cuda_operands(cuda, room[0], SIDE * SIDE, room[2], &a_as, &err), "%s", err.msg);
    cr_assert(!gpp__cuda_operands(cuda, room[1], SIDE * SIDE, room[3], &b_as, &err), "%s", err.msg);
    gpp__cuda_product product = {.m = SIDE, .n = SIDE, .k = SIDE, .c = room[4], .c_step = SIDE};
    product.a = gpp__cuda_matrix_of(a_as, SIDE, false);
    product.b = gpp__cuda_matrix_of(b_as, SIDE, false);
    cr_assert(!gpp__cuda_multiply(cuda, NULL, &product, &err), "%s", err.msg);
    cuda_get(a, room[4], sizeof a);
    for (int k = 0; k < 5; k++)
        cuda_free(room[k]);
    return a[SIDE + 1];
}

/* Bits behind the point: float32 23, TF32 10, bfloat16 7. cuBLAS may compute more exactly than TF32
 * asks for; the emulation does not. */
Test(cuda_products, products_round_operands_to_what_the_arithmetic_keeps)
{
    const float ten = 1 + 0x1p-10f, twelve = 1 + 0x1p-12f, seven = 1 + 0x1p-7f;
    cr_expect_eq(through_product(GPP__MATH_F32, twelve), twelve);
    cr_expect_eq(through_product(GPP__MATH_TF32, ten), ten);
#ifdef GPP_EMULATION
    cr_expect_eq(through_product(GPP__MATH_TF32, twelve), 1);
#endif
    cr_expect_eq(through_product(GPP__MATH_BF16, seven), seven);
    cr_expect_eq(through_product(GPP__MATH_BF16, ten), 1);
}

/* --- convolutions by cuDNN and by columns ----------------------------------------------------- */

typedef struct conv_case {
    const char *why, *spec;
    int64_t dim[3], rows;
} conv_case;

/* One convolution and its tensors. */
typedef struct convolution {
    test_rig *rig;
    gpp__cuda *cuda;
    gpp__conv_shape shape;
    int64_t rows, images, maps, weights; /* numbers */
    void *image, *map, *weight;
} convolution;

static void *random_room(int64_t count, uint64_t seed)
{
    float *x = malloc((size_t)count * sizeof *x);
    test_fill(x, count, seed, -1, 1);
    void *room = cuda_copy_of(x, (size_t)count * sizeof *x);
    free(x);
    return room;
}

static convolution make(const conv_case *c, gpp__math math)
{
    convolution v = {.cuda = cuda_device(math), .rows = c->rows};
    gpp__desc in = {.rank = 3, .dim = {c->dim[0], c->dim[1], c->dim[2]}};
    gpp_error err = GPP_ERROR_INIT;
    cr_assert(!test_rig_new(&v.rig, c->spec, 0, &in, c->rows, 1, &err), "%s", err.msg);
    const gpp__layer *layer = &v.rig->layer;
    v.shape = gpp__convolution_shape(layer, &layer->in[0], &layer->out[0]);
    v.images = test_rig_inputs(v.rig);
    v.maps = test_rig_outputs(v.rig);
    v.weights = layer->param[0].count;
    v.image = random_room(v.images, 1);
    v.map = random_room(v.maps, 2);
    v.weight = random_room(v.weights, 3);
    return v;
}

static void unmake(convolution *v)
{
    cuda_free(v->image);
    cuda_free(v->map);
    cuda_free(v->weight);
    test_rig_free(v->rig);
}

static int64_t result_count(const convolution *v, gpp__conv_way way)
{
    return way == GPP__CONV_FORWARD ? v->maps : way == GPP__CONV_DATA ? v->images : v->weights;
}

/* The result of one way, on the host. `add`: to ones. */
static float *result_of(const convolution *v, gpp__conv_way way, bool library, bool add)
{
    gpp__run run = {.cuda = v->cuda};
    gpp__cuda_conv *conv;
    gpp_error err = GPP_ERROR_INIT;
    int64_t count = result_count(v, way);
    float *out = malloc((size_t)count * sizeof *out);
    for (int64_t k = 0; k < count; k++)
        out[k] = add ? 1 : NAN;
    void *to = cuda_copy_of(out, (size_t)count * sizeof *out);
    cr_assert(
        !gpp__cuda_conv_new(&conv, v->cuda, &v->rig->layer, &v->shape, v->rows, library, &err),
        "%s", err.msg);
    void *scratch = cuda_room(gpp__cuda_conv_scratch(conv, way));
    gpp__cuda_conv_args args = {v->image, v->map, v->weight, to, add, scratch};
    if (way == GPP__CONV_FORWARD)
        args.map = to;
    if (way == GPP__CONV_DATA)
        args.image = to;
    cr_assert(!gpp__cuda_conv_run(conv, way, &run, &args), "%s", err.msg);
    cuda_get(out, to, (size_t)count * sizeof *out);
    gpp__cuda_conv_free(conv);
    cuda_free(scratch);
    cuda_free(to);
    return out;
}

static void compare_ways(const conv_case *c, const convolution *v, bool add)
{
    static const char *const name[] = {"forward", "data", "weights"};
    for (int way = add ? GPP__CONV_WEIGHTS : 0; way < GPP__CONV_WAYS; way++) {
        float *want = result_of(v, (gpp__conv_way)way, true, add);
        float *got = result_of(v, (gpp__conv_way)way, false, add);
        double off = test_distance(got, want, result_count(v, (gpp__conv_way)way));
        cr_expect(off <= TOLERANCE, "%s: %s is off by %g", c->why, name[way], off);
        free(want);
        free(got);
    }
}

Test(cuda_products, convolutions_by_columns_are_cudnns)
{
    static const conv_case cases[] = {
        {"as in most networks", "conv2d out=4 kernel=3 padding=1", .dim = {3, 6, 5}, .rows = 3},
        {"nothing symmetric", "conv2d out=3 kernel=3,2 stride=2,1 padding=2,0", .dim = {2, 7, 6},
         .rows = 2},
        {"a stride beyond the kernel", "conv2d out=3 kernel=2 stride=3", .dim = {2, 9, 8},
         .rows = 2},
        {"dilated", "conv2d out=4 kernel=3 padding=2 dilation=2,1", .dim = {2, 7, 7}, .rows = 2},
        {"grouped", "conv2d out=6 kernel=3 padding=1 groups=2", .dim = {4, 5, 5}, .rows = 2},
        {"depthwise", "conv2d out=8 kernel=3 groups=4", .dim = {4, 5, 5}, .rows = 2},
        {"more rows than columns at a time", "conv2d out=1 kernel=3", .dim = {4, 66, 66},
         .rows = 33},
    };
    for (size_t k = 0; k < COUNT(cases); k++) {
        convolution v = make(&cases[k], GPP__MATH_F32);
        compare_ways(&cases[k], &v, false);
        compare_ways(&cases[k], &v, true);
        unmake(&v);
    }
}

static bool by_library(const char *spec, gpp__conv_way way, bool deterministic)
{
    const conv_case c = {.spec = spec, .dim = {4, 6, 6}, .rows = 2};
    gpp__cuda_conv *conv;
    gpp_error err = GPP_ERROR_INIT;
    convolution v = make(&c, GPP__MATH_F32);
    gpp__cuda cuda = *v.cuda;
    cuda.deterministic = deterministic;
    cr_assert(!gpp__cuda_conv_new(&conv, &cuda, &v.rig->layer, &v.shape, v.rows, true, &err));
    bool library = gpp__cuda_conv_by_library(conv, way);
    gpp__cuda_conv_free(conv);
    unmake(&v);
    return library;
}

Test(cuda_products, a_pointwise_convolution_is_a_product)
{
    for (int way = 0; way < GPP__CONV_WAYS; way++)
        cr_expect(!by_library("conv2d out=3 kernel=1", (gpp__conv_way)way, true));
}

/* What cuDNN has depends on its version; the emulation's is known. */
Test(cuda_products, columns_are_for_what_cudnn_does_not_do_as_asked)
{
    const char *plain = "conv2d out=4 kernel=3",
               *stride = "conv2d out=4 kernel=3 stride=2 groups=2";
    const char *dilated = "conv2d out=4 kernel=2 dilation=2 groups=2";
    cuda_device(GPP__MATH_F32);
#ifndef GPP_EMULATION
    cr_skip_test("about the emulated cuDNN");
#endif
    for (int way = 0; way < GPP__CONV_WAYS; way++)
        cr_expect(by_library(plain, (gpp__conv_way)way, true), "way %d", way);
    cr_expect(!by_library(dilated, GPP__CONV_WEIGHTS, true), "unsupported");
    cr_expect(!by_library(stride, GPP__CONV_DATA, true), "deterministic is not to be had");
    cr_expect(by_library(stride, GPP__CONV_DATA, false), "and is not asked for");
}

/* Columns of a row of images so large are more than stand by for cuDNN. */
Test(cuda_products, a_refusal_of_cudnn_without_room_for_columns_is_a_failure)
{
    conv_case c = {.spec = "conv2d out=8 kernel=3 padding=1", .dim = {64, 70, 105}, .rows = 2};
    gpp__cuda_conv *conv;
    gpp_error err = GPP_ERROR_INIT;
    cuda_device(GPP__MATH_F32);
#ifndef GPP_EMULATION
    cr_skip_test("about the emulated cuDNN");
#endif
    convolution v = make(&c, GPP__MATH_F32);
    gpp__run run = {.cuda = v.cuda, .err = &err};
    cr_assert(!gpp__cuda_conv_new(&conv, v.cuda, &v.rig->layer, &v.shape, v.rows, true, &err));
    void *scratch = cuda_room(gpp__cuda_conv_scratch(conv, GPP__CONV_WEIGHTS));
    gpp__cuda_conv_args args = {v.image, v.map, v.weight, v.weight, false, scratch};
    cr_expect_eq(gpp__cuda_conv_run(conv, GPP__CONV_WEIGHTS, &run, &args), GPP_EKERNEL);
    cr_expect(strstr(err.msg, "cudnnConvolutionBackwardFilter") && strstr(err.msg, "conv2d"), "%s",
              err.msg);
    gpp__cuda_conv_free(conv);
    cuda_free(scratch);
    unmake(&v);
}

/* An image of one number x, a window of 1: what a convolution makes of an operand. */
static float through_convolution(gpp__math math, float x)
{
    conv_case c = {.spec = "conv2d out=1 kernel=3 padding=1 bias=0", .dim = {1, 1, 1}, .rows = 1};
    float window[9] = {[4] = 1};
    uint16_t half[9] = {[4] = 0x3f80}; /* 1 as bfloat16 */
    convolution v = make(&c, math);
    cuda_put(v.image, &x, sizeof x);
    if (math == GPP__MATH_BF16)
        cuda_put(v.weight, half, sizeof half);
    else
        cuda_put(v.weight, window, sizeof window);
    float *out = result_of(&v, GPP__CONV_FORWARD, true, false), y = out[0];
    free(out);
    unmake(&v);
    return y;
}

Test(cuda_products, convolutions_round_operands_to_what_the_arithmetic_keeps)
{
    const float ten = 1 + 0x1p-10f, twelve = 1 + 0x1p-12f, seven = 1 + 0x1p-7f;
    cr_expect_eq(through_convolution(GPP__MATH_F32, twelve), twelve);
    cr_expect_eq(through_convolution(GPP__MATH_TF32, ten), ten);
#ifdef GPP_EMULATION
    cr_expect_eq(through_convolution(GPP__MATH_TF32, twelve), 1);
#endif
    cr_expect_eq(through_convolution(GPP__MATH_BF16, seven), seven);
    cr_expect_eq(through_convolution(GPP__MATH_BF16, ten), 1);
}
