/*
 * tests/cuda/test_cuda_products.c: linear, self_attention and convolutions on CUDA against the
 * CPU's; the kinds of arithmetic; convolutions by columns against cuDNN's.
 *
 * In the emulation cuDNN lists, before what has to be chosen, algorithms that fail, want too much
 * memory, differ from call to call or round, and refuses some shapes (cudnn.cpp); cuBLAS rounds
 * operands wherever it may.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cuda/conv.h"
#include "codelets/cuda/gemm.h"
#include "codelets/ops/convolution.h"
#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* Sums of float32 in another order than the CPU's. */
#define FLOAT 1e-5
/* Convolutions on a device also by Winograd's transforms, which lose another digit. */
#ifdef GPP_EMULATION
#define CONV FLOAT
#else
#define CONV 1e-4
#endif
/* TF32 cuts an operand after 10 bits, 2^-10 of it, so a product is off by up to 2^-9. Errors of a
 * sum cancel; those of attention's stages add up, to no more than twice that. */
#define TF32_OFF 4e-3
/* bfloat16 rounds after 7: 2^-9 of an operand, 2^-8 of a product, four times that after several
 * stages, of which cuDNN's results are one. */
#define BF16_OFF 1.6e-2

#define LINE(a)                                                                                    \
    {                                                                                              \
        {                                                                                          \
            .rank = 1, .dim = { a }                                                                \
        }                                                                                          \
    }
#define TABLE(a, b)                                                                                \
    {                                                                                              \
        {                                                                                          \
            .rank = 2, .dim = { a, b }                                                             \
        }                                                                                          \
    }
#define IMAGE(c, h, w)                                                                             \
    {                                                                                              \
        {                                                                                          \
            .rank = 3, .dim = { c, h, w }                                                          \
        }                                                                                          \
    }

#define CASE(why_, spec_, in_, ...)                                                                \
    {                                                                                              \
        .why = why_, .spec = spec_, .in = in_, .tolerance = __VA_ARGS__                            \
    }

/* --- operators -------------------------------------------------------------------------------- */

ParameterizedTestParameters(cuda_products, linear_is_the_cpus)
{
    static cuda_case cases[] = {
        CASE("plain", "linear out=5", LINE(7), FLOAT),
        CASE("without bias", "linear out=5 bias=0", LINE(7), FLOAT),
        CASE("one column out", "linear out=1", LINE(9), FLOAT),
        CASE("one column in", "linear out=4", LINE(1), FLOAT),
        CASE("over the last of two dimensions", "linear out=3", TABLE(4, 6), FLOAT),
        CASE("no size a multiple of a warp", "linear out=37", LINE(65), FLOAT),
        CASE("TF32", "linear out=13", LINE(40), TF32_OFF, .math = GPP__MATH_TF32),
        CASE("bfloat16", "linear out=13", LINE(40), BF16_OFF, .math = GPP__MATH_BF16),
        CASE("bfloat16 without bias", "linear out=6 bias=0", TABLE(3, 5), BF16_OFF,
             .math = GPP__MATH_BF16),
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_products, linear_is_the_cpus)
{
    cuda_check(c);
}

ParameterizedTestParameters(cuda_products, self_attention_is_the_cpus)
{
    static cuda_case cases[] = {
        CASE("one head", "self_attention heads=1", TABLE(5, 4), FLOAT),
        CASE("heads outnumber the rows, or not", "self_attention heads=4", TABLE(6, 12), FLOAT),
        CASE("causal", "self_attention heads=2 causal=1", TABLE(7, 6), FLOAT),
        CASE("one position", "self_attention heads=3 causal=1", TABLE(1, 9), FLOAT),
        CASE("one column a head", "self_attention heads=5", TABLE(3, 5), FLOAT),
        CASE("more keys than a warp has threads", "self_attention heads=2 causal=1", TABLE(75, 4),
             FLOAT, .most_rows = 2),
        CASE("TF32", "self_attention heads=2", TABLE(6, 8), TF32_OFF, .math = GPP__MATH_TF32),
        CASE("bfloat16", "self_attention heads=2", TABLE(6, 8), BF16_OFF, .math = GPP__MATH_BF16),
        CASE("bfloat16, causal", "self_attention heads=4 causal=1", TABLE(9, 8), BF16_OFF,
             .math = GPP__MATH_BF16),
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_products, self_attention_is_the_cpus)
{
    cuda_check(c);
}

/* Two strips of queries, the second one short. */
ParameterizedTestParameters(cuda_products, self_attention_of_several_strips_is_the_cpus)
{
    static cuda_case cases[] = {
        CASE("all keys", "self_attention heads=1", TABLE(515, 2), FLOAT, .most_rows = 1),
        CASE("causal: early strips see fewer keys", "self_attention heads=1 causal=1",
             TABLE(515, 2), FLOAT, .most_rows = 1),
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_products, self_attention_of_several_strips_is_the_cpus)
{
    cuda_check(c);
}

ParameterizedTestParameters(cuda_products, conv2d_is_the_cpus)
{
    static cuda_case cases[] = {
        CASE("as in most networks", "conv2d out=4 kernel=3 padding=1", IMAGE(3, 6, 5), CONV),
        CASE("one channel, without bias", "conv2d out=4 kernel=3 bias=0", IMAGE(1, 5, 5), CONV),
        CASE("pointwise", "conv2d out=5 kernel=1", IMAGE(6, 3, 4), CONV),
        CASE("pointwise with a stride", "conv2d out=5 kernel=1 stride=2", IMAGE(6, 3, 4), CONV),
        CASE("pointwise in groups", "conv2d out=6 kernel=1 groups=3", IMAGE(9, 3, 2), CONV),
        CASE("nothing symmetric", "conv2d out=3 kernel=3,2 stride=2,1 padding=2,0", IMAGE(2, 7, 6),
             CONV),
        CASE("dilated", "conv2d out=4 kernel=3 padding=2 dilation=2", IMAGE(2, 7, 7), CONV),
        CASE("grouped", "conv2d out=6 kernel=3 padding=1 groups=2", IMAGE(4, 5, 5), CONV),
        CASE("depthwise", "conv2d out=4 kernel=3 groups=4", IMAGE(4, 5, 5), CONV),
        CASE("grouped and dilated", "conv2d out=4 kernel=2 dilation=3,2 groups=2", IMAGE(6, 5, 6),
             CONV),
        CASE("grouped with a stride", "conv2d out=6 kernel=3,2 stride=2 padding=1 groups=2",
             IMAGE(4, 6, 5), CONV),
        CASE("last rows unused", "conv2d out=2 kernel=5 stride=3", IMAGE(2, 10, 10), CONV,
             .most_rows = 7),
        CASE("a kernel as large as the image", "conv2d out=3 kernel=4,3", IMAGE(2, 4, 3), CONV),
        CASE("what cuDNN lists and then refuses", "conv2d out=2 kernel=3 padding=1",
             IMAGE(2, 66, 2), CONV, .most_rows = 7),
        CASE("bfloat16, what cuDNN lists and then refuses", "conv2d out=2 kernel=3 padding=1",
             IMAGE(2, 66, 2), BF16_OFF, .math = GPP__MATH_BF16, .most_rows = 2),
        CASE("TF32", "conv2d out=4 kernel=3 padding=1", IMAGE(3, 6, 5), TF32_OFF,
             .math = GPP__MATH_TF32),
        CASE("bfloat16", "conv2d out=4 kernel=3 padding=1", IMAGE(3, 6, 5), BF16_OFF,
             .math = GPP__MATH_BF16),
        CASE("bfloat16, pointwise", "conv2d out=4 kernel=1 bias=0", IMAGE(3, 6, 5), BF16_OFF,
             .math = GPP__MATH_BF16),
        CASE("bfloat16, by columns", "conv2d out=4 kernel=2 dilation=2 groups=2", IMAGE(4, 5, 5),
             BF16_OFF, .math = GPP__MATH_BF16),
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_products, conv2d_is_the_cpus)
{
    cuda_check(c);
}

ParameterizedTestParameters(cuda_products, conv_transpose2d_is_the_cpus)
{
    static cuda_case cases[] = {
        CASE("doubling", "conv_transpose2d out=3 kernel=2 stride=2", IMAGE(4, 3, 5), CONV),
        CASE("with an output padding", "conv_transpose2d out=2 kernel=3 stride=2 output_padding=1",
             IMAGE(3, 4, 3), CONV),
        CASE("nothing symmetric", "conv_transpose2d out=4 kernel=3,2 stride=1,2 padding=1,0",
             IMAGE(3, 4, 3), CONV),
        CASE("pointwise, without bias", "conv_transpose2d out=4 kernel=1 bias=0", IMAGE(3, 4, 3),
             CONV),
        CASE("grouped and dilated", "conv_transpose2d out=4 kernel=2 dilation=2 groups=2",
             IMAGE(6, 3, 4), CONV),
        CASE("grouped with a stride", "conv_transpose2d out=6 kernel=3 stride=2 groups=3",
             IMAGE(3, 3, 4), CONV),
        CASE("TF32", "conv_transpose2d out=3 kernel=3 stride=2", IMAGE(4, 3, 3), TF32_OFF,
             .math = GPP__MATH_TF32),
        CASE("bfloat16", "conv_transpose2d out=3 kernel=3 stride=2", IMAGE(4, 3, 3), BF16_OFF,
             .math = GPP__MATH_BF16),
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_products, conv_transpose2d_is_the_cpus)
{
    cuda_check(c);
}

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
    char why[56], spec[72];
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
        cr_expect(off <= CONV, "%s: %s is off by %g", c->why, name[way], off);
        free(want);
        free(got);
    }
}

ParameterizedTestParameters(cuda_products, convolutions_by_columns_are_cudnns)
{
    static conv_case cases[] = {
        {"as in most networks", "conv2d out=4 kernel=3 padding=1", {3, 6, 5}, 3},
        {"nothing symmetric", "conv2d out=3 kernel=3,2 stride=2,1 padding=2,0", {2, 7, 6}, 2},
        {"a stride beyond the kernel", "conv2d out=3 kernel=2 stride=3", {2, 9, 8}, 2},
        {"dilated", "conv2d out=4 kernel=3 padding=2 dilation=2,1", {2, 7, 7}, 2},
        {"grouped", "conv2d out=6 kernel=3 padding=1 groups=2", {4, 5, 5}, 2},
        {"depthwise", "conv2d out=8 kernel=3 groups=4", {4, 5, 5}, 2},
        {"more rows than columns at a time", "conv2d out=1 kernel=3", {4, 66, 66}, 33},
    };
    return cr_make_param_array(conv_case, cases, COUNT(cases));
}

ParameterizedTest(conv_case *c, cuda_products, convolutions_by_columns_are_cudnns)
{
    convolution v = make(c, GPP__MATH_F32);
    compare_ways(c, &v, false);
    compare_ways(c, &v, true);
    unmake(&v);
}

static bool by_library(const char *spec, gpp__conv_way way, bool deterministic)
{
    conv_case c = {.dim = {4, 6, 6}, .rows = 2};
    gpp__cuda_conv *conv;
    gpp_error err = GPP_ERROR_INIT;
    strcpy(c.spec, spec);
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
