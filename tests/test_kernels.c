/*
 * tests/test_kernels.c: the numerical heart of the heavy operators: our own matrix products and
 * convolution gradients against plain loops in double; sizes of outputs; sizes beyond our tables.
 * What holds for every operator: test_operators.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/conv.h"
#include "codelets/cpu/gemm.h"
#include "tests/support.h"

/* A float32 sum of k products of numbers in [-1, 1), against double: k roundings of partial sums
 * that stay near sqrt(k/9), with a factor of 4 to spare. */
static double rounding(int64_t k)
{
    return 4 * (sqrt((double)k) + 1) * sqrt((double)k / 9 + 1) * 0x1p-24;
}

static float *numbers(int64_t count, uint64_t seed)
{
    float *x = test_room((size_t)count * sizeof *x);
    test_fill(x, count, seed, -1, 1);
    return x;
}

/* --- matrix products -------------------------------------------------------------------------- */

typedef struct gemm_case {
    int64_t m, n, k;
} gemm_case;
static const gemm_case gemm_cases[] = {
    {1, 1, 1},    {1, 40, 3},  {5, 7, 9},   {6, 16, 256},  {7, 17, 10},
    {12, 32, 64}, {13, 33, 5}, {64, 8, 31}, {64, 24, 100}, {25, 65, 256},
};

static double product(const float *a, const float *b, int64_t stride, int64_t k)
{
    double sum = 0;
    for (int64_t p = 0; p < k; p++)
        sum += (double)a[p] * b[p * stride];
    return sum;
}

/* c starts as ones where it is added to, as NaN where not; its padding must survive. */
static void expect_product(const gemm_case *t, bool transposed, bool add)
{
    int64_t m = t->m, n = t->n, k = t->k, lda = k + 3, ldb = (transposed ? k : n) + 2, ldc = n + 5;
    float *a = numbers(m * lda, 1), *b = numbers((transposed ? n : k) * ldb, 2);
    float *panels = test_room((size_t)(gpp__gemm_padded(n) * k) * sizeof *panels);
    float *c = test_room((size_t)(m * ldc) * sizeof *c);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ldc; j++)
            c[i * ldc + j] = j >= n ? 77 : add ? 1 : NAN;
    (transposed ? gpp__gemm_pack_t : gpp__gemm_pack)(n, k, b, ldb, panels);
    gpp__gemm(m, n, k, a, lda, panels, c, ldc, add);
    double worst = 0;
    int64_t spoilt = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            if (j >= n) {
                spoilt += c[i * ldc + j] != 77;
                continue;
            }
            double want =
                product(a + i * lda, transposed ? b + j * ldb : b + j, transposed ? 1 : ldb, k);
            double off = fabs(c[i * ldc + j] - want - add);
            worst = off <= worst ? worst : off;
        }
    cr_expect(worst <= rounding(k), "%lld x %lld x %lld%s%s: off by %.3g", (long long)m,
              (long long)n, (long long)k, transposed ? ", transposed" : "", add ? ", added" : "",
              worst);
    cr_expect_eq(spoilt, 0, "wrote past the last column");
    free(a);
    free(b);
    free(c);
    free(panels);
}

Test(kernels, matrix_products_of_any_size_equal_plain_loops)
{
    for (size_t k = 0; k < sizeof gemm_cases / sizeof *gemm_cases; k++)
        for (int form = 0; form < 4; form++)
            expect_product(&gemm_cases[k], form & 1, form & 2);
}

Test(kernels, an_element_of_a_product_has_the_same_bits_however_the_rows_are_cut)
{
    enum { M = 29, N = 48, K = 200 };
    float *a = numbers(M * K, 1), *b = numbers(N * K, 2), *whole = test_room(M * N * sizeof *whole);
    float *cut = test_room(M * N * sizeof *cut);
    float *panels = test_room((size_t)(gpp__gemm_padded(N) * K) * sizeof *panels);
    gpp__gemm_pack(N, K, b, N, panels);
    gpp__gemm(M, N, K, a, K, panels, whole, N, false);
    for (int64_t step = 1; step < M; step++) {
        for (int64_t i = 0; i < M; i += step)
            gpp__gemm(M - i < step ? M - i : step, N, K, a + i * K, K, panels, cut + i * N, N,
                      false);
        cr_expect(test_same(whole, cut, M * N), "%lld rows at a time", (long long)step);
    }
    free(a);
    free(b);
    free(whole);
    free(cut);
    free(panels);
}

Test(kernels, transposing_moves_every_element_and_adds_to_its_row)
{
    static const int64_t sizes[] = {1, 3, 7, 8, 9, 16, 21, 40};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    for (int r = 0; r < COUNT; r++)
        for (int c = 0; c < COUNT; c++)
            for (int with = 0; with < 2; with++) {
                int64_t rows = sizes[r], columns = sizes[c], wrong = 0;
                float *from = numbers(rows * (columns + 1), 1), *add = numbers(rows, 2);
                float *to = test_room((size_t)(columns * (rows + 2)) * sizeof *to);
                gpp__transpose(rows, columns, from, columns + 1, to, rows + 2, with ? add : NULL);
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t j = 0; j < columns; j++)
                        wrong += to[j * (rows + 2) + i] !=
                                 from[i * (columns + 1) + j] + (with ? add[i] : 0);
                cr_expect_eq(wrong, 0, "%lld x %lld", (long long)rows, (long long)columns);
                free(from);
                free(add);
                free(to);
            }
}

/* --- gradients of convolutions ---------------------------------------------------------------- */

typedef struct conv_case {
    const char *why;
    int64_t rows;
    gpp__conv_shape s; /* out is filled in */
} conv_case;

/* Strides and dilations that are not given are 1, and so is the number of groups. */
/* clang-format off */
static const conv_case conv_cases[] = {
    {.why = "one channel: rows of a tile are taps", .rows = 3,
     .s = {.in_channels = 1, .out_channels = 32, .in = {9, 9}, .kernel = {3, 3},
           .padding = {1, 1}, .bias = true}},
    {.why = "several slices, the last one padded", .rows = 2,
     .s = {.in_channels = 70, .out_channels = 20, .in = {6, 5}, .kernel = {3, 3},
           .padding = {1, 1}, .bias = true}},
    {.why = "several panels", .rows = 2,
     .s = {.in_channels = 4, .out_channels = 70, .in = {5, 6}, .kernel = {2, 2}}},
    {.why = "an image cut into blocks of lines", .rows = 1,
     .s = {.in_channels = 32, .out_channels = 8, .in = {40, 37}, .kernel = {3, 3},
           .padding = {1, 1}, .bias = true}},
    {.why = "several images in a block, the last not full", .rows = 70,
     .s = {.in_channels = 8, .out_channels = 8, .in = {2, 2}, .kernel = {3, 3},
           .padding = {1, 1}, .bias = true}},
    {.why = "strides that leave a remainder", .rows = 3,
     .s = {.in_channels = 5, .out_channels = 9, .in = {11, 10}, .kernel = {3, 2},
           .stride = {2, 3}, .padding = {1, 0}, .bias = true}},
    {.why = "dilation", .rows = 2,
     .s = {.in_channels = 6, .out_channels = 9, .in = {12, 13}, .kernel = {3, 2},
           .stride = {1, 2}, .padding = {2, 3}, .dilation = {2, 3}, .bias = true}},
    {.why = "padding beyond the kernel", .rows = 2,
     .s = {.in_channels = 3, .out_channels = 5, .in = {4, 3}, .kernel = {3, 3},
           .padding = {5, 4}, .bias = true}},
    {.why = "one pixel", .rows = 4,
     .s = {.in_channels = 9, .out_channels = 7, .in = {1, 1}, .kernel = {1, 1},
           .bias = true}},
    {.why = "a line longer than a block", .rows = 1,
     .s = {.in_channels = 32, .out_channels = 4, .in = {3, 400}, .kernel = {3, 3},
           .padding = {1, 1}, .bias = true}},
};
/* clang-format on */

static double plain_gradient(const gpp__conv_shape *s, int64_t rows, const float *x,
                             const float *dy, int64_t o, int64_t c, int64_t h, int64_t w)
{
    double sum = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < s->out[0]; i++)
            for (int64_t j = 0; j < s->out[1]; j++) {
                int64_t y = i * s->stride[0] - s->padding[0] + h * s->dilation[0];
                int64_t z = j * s->stride[1] - s->padding[1] + w * s->dilation[1];
                if (y < 0 || z < 0 || y >= s->in[0] || z >= s->in[1])
                    continue;
                sum += (double)x[((r * s->in[0] + y) * s->in[1] + z) * s->in_channels + c] *
                       dy[((r * s->out[0] + i) * s->out[1] + j) * s->out_channels + o];
            }
    return sum;
}

static void expect_gradient(const char *why, const gpp__conv_shape *s, int64_t rows)
{
    int64_t taps = s->kernel[0] * s->kernel[1], positions = rows * s->out[0] * s->out[1];
    float *x = numbers(rows * s->in[0] * s->in[1] * s->in_channels, 1);
    float *dy = numbers(positions * s->out_channels, 2);
    gpp__conv_grad *g;
    cr_assert_eq(gpp__conv_grad_new(&g, s, NULL), GPP_OK);
    float *dw = test_room(gpp__conv_grad_bytes(g)), *db = test_room((size_t)s->out_channels * 4);
    float *plain = test_room((size_t)(s->out_channels * s->in_channels * taps) * 4);
    void *scratch = test_room(gpp__conv_grad_scratch(g));
    gpp__conv_grad_run(g, rows, x, dy, dw, s->bias ? db : NULL, scratch);
    gpp__conv_grad_unpack(g, dw, plain);
    double worst = 0, worst_bias = 0;
    for (int64_t o = 0; o < s->out_channels; o++) {
        double sum = 0;
        for (int64_t p = 0; p < positions; p++)
            sum += dy[p * s->out_channels + o];
        if (s->bias && !(fabs(db[o] - sum) <= worst_bias))
            worst_bias = fabs(db[o] - sum);
        for (int64_t e = 0; e < s->in_channels * taps; e++) {
            int64_t c = e / taps, h = e % taps / s->kernel[1], w = e % s->kernel[1];
            double off = fabs(plain[o * s->in_channels * taps + e] -
                              plain_gradient(s, rows, x, dy, o, c, h, w));
            worst = off <= worst ? worst : off;
        }
    }
    cr_expect(worst <= rounding(positions), "%s: weights off by %.3g", why, worst);
    cr_expect(worst_bias <= 2 * rounding(positions), "%s: bias off by %.3g", why, worst_bias);
    gpp__conv_grad_free(g);
    free(x);
    free(dy);
    free(dw);
    free(db);
    free(plain);
    free(scratch);
}

Test(kernels, convolution_gradients_equal_plain_loops)
{
    for (size_t k = 0; k < sizeof conv_cases / sizeof *conv_cases; k++) {
        gpp__conv_shape s = conv_cases[k].s;
        s.groups = 1;
        for (int d = 0; d < 2; d++) {
            s.stride[d] = s.stride[d] ? s.stride[d] : 1;
            s.dilation[d] = s.dilation[d] ? s.dilation[d] : 1;
            int64_t reach = s.dilation[d] * (s.kernel[d] - 1) + 1;
            s.out[d] = (s.in[d] + 2 * s.padding[d] - reach) / s.stride[d] + 1;
        }
        expect_gradient(conv_cases[k].why, &s, conv_cases[k].rows);
    }
}

Test(kernels, convolution_gradients_in_groups_are_left_to_others)
{
    gpp__conv_shape s = {.groups = 2,
                         .in_channels = 4,
                         .out_channels = 4,
                         .in = {5, 5},
                         .out = {3, 3},
                         .kernel = {3, 3},
                         .stride = {1, 1},
                         .dilation = {1, 1},
                         .bias = true};
    gpp__conv_grad *g;
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__conv_grad_new(&g, &s, &err), GPP_EUNSUPPORTED);
    cr_expect_null(g);
}

/* --- shapes ----------------------------------------------------------------------------------- */

Test(kernels, output_sizes_follow_pytorch)
{
    static const struct {
        const char *why, *spec;
        int64_t in[2], out[2];
    } cases[] = {
        {"a remainder is dropped", "maxpool2d kernel=2", {5, 7}, {2, 3}},
        {"or kept", "maxpool2d kernel=2 ceil=1", {5, 7}, {3, 4}},
        {"no window starts in the right padding",
         "maxpool2d kernel=2 stride=2 padding=1 ceil=1",
         {4, 5},
         {3, 3}},
        {"stride beyond the kernel", "maxpool2d kernel=1 stride=3 ceil=1", {4, 5}, {2, 2}},
        {"dilation", "maxpool2d kernel=3 stride=1 dilation=2", {5, 8}, {1, 4}},
        {"convolution drops it as well", "conv2d out=2 kernel=3 stride=2", {8, 9}, {3, 4}},
        {"padding on both sides", "conv2d out=2 kernel=3,5 padding=1,0", {8, 9}, {8, 5}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp__desc in = {.rank = 3, .dim = {2, cases[k].in[0], cases[k].in[1]}};
        gpp_error err = GPP_ERROR_INIT;
        test_rig *rig;
        cr_assert_eq(test_rig_new(&rig, cases[k].spec, 0, &in, 1, 1, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(rig->layer.out[0].dim[1], cases[k].out[0], "%s: height", cases[k].why);
        cr_expect_eq(rig->layer.out[0].dim[2], cases[k].out[1], "%s: width", cases[k].why);
        test_rig_free(rig);
    }
}

/* A window of more than 256 places keeps them in another form. */
Test(kernels, maxpool2d_with_a_large_window_finds_the_maximum_and_routes_the_gradient_to_it)
{
    gpp__desc in = {.rank = 3, .dim = {9, 20, 40}};
    test_rig *rig;
    cr_assert_eq(test_rig_new(&rig, "maxpool2d kernel=20,20 stride=20", 0, &in, 2, 1, NULL),
                 GPP_OK);
    int64_t count = test_rig_inputs(rig), outs = test_rig_outputs(rig);
    cr_assert_eq(outs, 2 * 9 * 2);
    float *x = test_room((size_t)count * 4), *dx = test_room((size_t)count * 4);
    float *y = test_room((size_t)outs * 4), *dy = numbers(outs, 6);
    test_fill_apart(x, count, 7, 0.01);
    cr_assert_eq(test_rig_forward(rig, x, y), GPP_OK);
    cr_assert_eq(test_rig_backward(rig, dy, dx, false), GPP_OK);
    for (int64_t image = 0; image < 18; image++)
        for (int64_t half = 0; half < 2; half++) {
            const float *from = x + image * 800 + half * 20, *grad = dx + image * 800 + half * 20;
            float best = -INFINITY, sum = 0, at_best = 0;
            for (int h = 0; h < 20; h++)
                for (int w = 0; w < 20; w++) {
                    sum += fabsf(grad[h * 40 + w]);
                    if (from[h * 40 + w] > best)
                        best = from[h * 40 + w], at_best = grad[h * 40 + w];
                }
            cr_expect_eq(y[image * 2 + half], best);
            cr_expect_eq(at_best, dy[image * 2 + half]);
            cr_expect_eq(sum, fabsf(at_best), "the gradient goes nowhere else");
        }
    test_rig_free(rig);
    free(x);
    free(dx);
    free(y);
    free(dy);
}

Test(kernels, convolutions_wider_than_our_tables_are_left_to_the_library)
{
    gpp__conv_shape s = {.groups = 1,
                         .in_channels = 1,
                         .out_channels = 2,
                         .in = {1, 1},
                         .out = {1, 1},
                         .kernel = {2, 2},
                         .stride = {1, 1},
                         .padding = {268435456, 268435456},
                         .dilation = {536870911, 536870911}};
    gpp__conv_grad *grad = NULL;
    cr_expect_eq(gpp__conv_grad_new(&grad, &s, NULL), GPP_EUNSUPPORTED);
    cr_expect_null(grad);
    test_rig *rig;
    gpp_error err = GPP_ERROR_INIT;
    gpp__desc in = {.rank = 3, .dim = {3, 1, 1}};
    cr_assert_eq(test_rig_new(&rig, "conv2d out=2 kernel=2 dilation=100000 padding=50000", 0, &in,
                              3, 1, &err),
                 GPP_OK, "%s", err.msg);
    test_rig_init(rig, 1);
    float *x = numbers(test_rig_inputs(rig), 1), *y = numbers(test_rig_outputs(rig), 2), bias[2];
    cr_expect_eq(test_rig_forward(rig, x, y), GPP_OK);
    cr_expect_eq(test_rig_backward(rig, y, NULL, false), GPP_OK);
    test_rig_grad(rig, 1, bias);
    double want = 0;
    for (int64_t k = 0; k < test_rig_outputs(rig) / 6; k++)
        want += y[k] + y[test_rig_outputs(rig) / 3 + k] + y[2 * test_rig_outputs(rig) / 3 + k];
    cr_expect_float_eq(bias[0], want, 1e-4);
    free(x);
    free(y);
    test_rig_free(rig);
}
