/*
 * tests/test_ops.c: what single operators do that others do not: initial values, shapes, views,
 * kinks and ties, the masks of dropout. What all of them do: test_operators.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/philox.h"
#include "tests/slopes.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* --- initial values --------------------------------------------------------------------------- */

Test(ops, initial_values_are_uniform_within_one_over_the_root_of_the_fan_in)
{
    static const struct {
        const char *spec;
        int rank;
        int64_t dim[3];
        double fan_in;
    } layers[] = {
        {.spec = "linear out=200", .rank = 1, .dim = {300}, .fan_in = 300},
        {.spec = "conv2d out=64 kernel=3", .rank = 3, .dim = {32, 3, 3}, .fan_in = 32 * 9},
        {.spec = "conv2d out=256 kernel=5,3 groups=4",
         .rank = 3,
         .dim = {64, 5, 5},
         .fan_in = 16 * 15},
    };
    for (size_t k = 0; k < COUNT(layers); k++) {
        const char *spec = layers[k].spec;
        test_rig *rig = test_rig_of(spec, layers[k].rank, layers[k].dim, 1, 1);
        double bound = 1 / sqrt(layers[k].fan_in);
        test_rig_init(rig, 5);
        for (int p = 0; p < rig->layer.param_count; p++) {
            const float *value = test_rig_param(rig, p);
            int64_t n = rig->layer.param[p].count;
            double mean = 0, square = 0, most = 0;
            for (int64_t e = 0; e < n; e++) {
                mean += value[e] / (double)n;
                square += (double)value[e] * value[e] / (double)n;
                most = fmax(most, fabs((double)value[e]));
            }
            /* Variance bound²/3, that of a square 4/45 bound⁴; five standard deviations each. */
            cr_expect_leq(most, bound * (1 + 1e-6), "%s", spec);
            cr_expect_gt(most, bound * (1 - 20 / (double)n), "%s", spec);
            cr_expect_leq(fabs(mean), 5 * bound / sqrt(3 * (double)n), "%s", spec);
            cr_expect_leq(fabs(square / (bound * bound) - 1 / 3.0), 5 * sqrt(4 / 45.0 / (double)n),
                          "%s", spec);
        }
        test_rig_free(rig);
    }
}

static bool differ_everywhere(const float *a, const float *b, int64_t count)
{
    int64_t equal = 0;
    for (int64_t k = 0; k < count; k++)
        equal += a[k] == b[k];
    return equal <= 1 + count / 1000;
}

Test(ops, initial_values_are_a_function_of_seed_layer_and_parameter)
{
    gpp__desc in = {.dtype = GPP_F32, .rank = 1, .dim = {40}};
    static const struct {
        int index;
        uint64_t seed;
        bool same;
        char why[24];
    } others[] = {
        {.index = 3, .seed = 7, .same = true, .why = "all equal"},
        {.index = 4, .seed = 7, .why = "another layer"},
        {.index = 3, .seed = 8, .why = "another seed"},
        {.index = 3, .seed = 7 + (UINT64_C(1) << 40), .why = "another seed, high bits"},
    };
    test_rig *rig, *other;
    cr_assert_eq(test_rig_new(&rig, "linear out=40", 3, &in, 1, 1, NULL), GPP_OK);
    test_rig_init(rig, 7);
    for (size_t k = 0; k < COUNT(others); k++) {
        cr_assert_eq(test_rig_new(&other, "linear out=40", others[k].index, &in, 1, 1, NULL),
                     GPP_OK);
        test_rig_init(other, others[k].seed);
        const float *a = test_rig_param(rig, 0), *b = test_rig_param(other, 0);
        cr_expect(others[k].same ? test_same(a, b, 1600) : differ_everywhere(a, b, 1600), "%s",
                  others[k].why);
        test_rig_free(other);
    }
    cr_expect(differ_everywhere(test_rig_param(rig, 0), test_rig_param(rig, 1), 40),
              "weight and bias");
    test_rig_free(rig);
}

/* --- shapes ----------------------------------------------------------------------------------- */

Test(ops, small_operators_infer_their_shapes)
{
    static const struct {
        char spec[16];
        gpp__desc in, out;
    } shapes[] = {
        {"relu",
         {.dtype = GPP_F32, .rank = 3, .dim = {4, 5, 6}},
         {.dtype = GPP_F32, .rank = 3, .dim = {4, 5, 6}}},
        {"dropout",
         {.dtype = GPP_F32, .rank = 2, .dim = {4, 5}},
         {.dtype = GPP_F32, .rank = 2, .dim = {4, 5}}},
        {"identity",
         {.dtype = GPP_F32, .rank = 7, .dim = {1, 2, 3, 1, 2, 3, 1}},
         {.dtype = GPP_F32, .rank = 7, .dim = {1, 2, 3, 1, 2, 3, 1}}},
        {"identity",
         {.dtype = GPP_I64, .rank = 1, .dim = {4}},
         {.dtype = GPP_I64, .rank = 1, .dim = {4}}},
        {"flatten",
         {.dtype = GPP_F32, .rank = 3, .dim = {4, 5, 6}},
         {.dtype = GPP_F32, .rank = 1, .dim = {120}}},
        {"flatten",
         {.dtype = GPP_F32, .rank = 1, .dim = {7}},
         {.dtype = GPP_F32, .rank = 1, .dim = {7}}},
        {"flatten",
         {.dtype = GPP_F32, .rank = 0, .dim = {0}},
         {.dtype = GPP_F32, .rank = 1, .dim = {1}}},
    };
    for (size_t k = 0; k < COUNT(shapes); k++) {
        gpp__layer layer = {.op = gpp__op_find(shapes[k].spec), .in_count = 1};
        layer.in[0] = shapes[k].in;
        cr_assert_eq(layer.op->infer(&layer, NULL), GPP_OK, "%s", shapes[k].spec);
        cr_expect_eq(layer.out_count, 1);
        cr_expect_eq(layer.param_count, 0);
        cr_expect(gpp__desc_equal(&layer.out[0], &shapes[k].out), "%s, case %zu", shapes[k].spec,
                  k);
    }
}

Test(ops, only_outputs_that_are_the_input_in_memory_are_views)
{
    static const struct {
        char spec[16];
        int rank;
        int64_t dim[3];
        bool view, in_evaluation;
    } views[] = {
        {"identity", .rank = 3, .dim = {3, 4, 5}, .view = true, .in_evaluation = true},
        {"flatten", .rank = 3, .dim = {3, 4, 5}},
        {"flatten", .rank = 3, .dim = {1, 4, 5}, .view = true, .in_evaluation = true},
        {"flatten", .rank = 3, .dim = {3, 1, 1}, .view = true, .in_evaluation = true},
        {"flatten", .rank = 3, .dim = {3, 1, 2}},
        {"flatten", .rank = 2, .dim = {3, 4}, .view = true, .in_evaluation = true},
        {"dropout p=0.1", .rank = 1, .dim = {4}, .in_evaluation = true},
        {"dropout p=0", .rank = 1, .dim = {4}, .view = true, .in_evaluation = true},
        {"dropout p=1", .rank = 1, .dim = {4}, .in_evaluation = true},
        {"relu", .rank = 1, .dim = {4}},
    };
    for (size_t k = 0; k < COUNT(views); k++) {
        test_rig *rig = test_rig_of(views[k].spec, views[k].rank, views[k].dim, 1, 1);
        const gpp_op *op = rig->layer.op;
        bool view = op->is_view && op->is_view(&rig->layer);
        bool passes = view || (op->passes_in_eval && op->passes_in_eval(&rig->layer));
        cr_expect_eq(view, views[k].view, "%s, case %zu", views[k].spec, k);
        cr_expect_eq(passes, views[k].in_evaluation, "%s, case %zu", views[k].spec, k);
        test_rig_free(rig);
    }
}

/* --- relu, maxpool2d, flatten ----------------------------------------------------------------- */

Test(ops, relu_has_slope_0_at_0_and_passes_nan_on)
{
    static const float x[] = {-INFINITY, -1, -0.0f, 0, 1e-40f, 2, INFINITY, NAN};
    static const float want_y[] = {0, 0, 0, 0, 1e-40f, 2, INFINITY, NAN};
    static const float want_grad[] = {0, 0, 0, 0, 3, 3, 3, 3};
    float y[8], grad[8], threes[8] = {3, 3, 3, 3, 3, 3, 3, 3};
    test_rig *rig = test_rig_of("relu", 1, (int64_t[]){8}, 1, 1);
    test_rig_forward(rig, x, y);
    test_rig_backward(rig, threes, grad, false);
    for (int k = 0; k < 8; k++) {
        cr_expect(y[k] == want_y[k] || (isnan(y[k]) && isnan(want_y[k])), "relu(%g) is %g",
                  (double)x[k], (double)y[k]);
        cr_expect_eq(grad[k], want_grad[k], "slope at %g is %g", (double)x[k], (double)grad[k] / 3);
    }
    test_rig_free(rig);
}

Test(ops, maxpool2d_gives_the_gradient_of_a_tie_to_the_first_and_passes_nan_on)
{
    /* 40 channels alike, so that vectors and what is left over are tried; two windows of 2 x 2. */
    static const float image[2][4] = {{5, 5, 1, NAN}, {5, 5, 7, 7}}; /* rows */
    static const float want[2][4] = {{1, 0, 0, 2}, {0, 0, 0, 0}};
    enum { C = 40 };
    float x[C * 8], y[C * 2], grad_y[C * 2], grad_x[C * 8];
    test_rig *rig = test_rig_of("maxpool2d kernel=2", 3, (int64_t[]){C, 2, 4}, 1, 1);
    for (int c = 0; c < C; c++) {
        memcpy(x + c * 8, image, sizeof image);
        grad_y[2 * c] = 1;
        grad_y[2 * c + 1] = 2;
    }
    test_rig_forward(rig, x, y);
    test_rig_backward(rig, grad_y, grad_x, false);
    for (int c = 0; c < C; c++) {
        cr_expect(y[2 * c] == 5 && isnan(y[2 * c + 1]), "channel %d: %g %g", c, (double)y[2 * c],
                  (double)y[2 * c + 1]);
        for (int k = 0; k < 8; k++)
            cr_expect_eq(grad_x[c * 8 + k], want[k / 4][k % 4], "channel %d, element %d: %g", c, k,
                         (double)grad_x[c * 8 + k]);
    }
    test_rig_free(rig);
}

Test(ops, flatten_keeps_the_order_of_indices_and_its_backward_undoes_it)
{
    static const int64_t shapes[][3] = {{3, 4, 5}, {64, 7, 7}, {2, 1, 9},   {17, 33, 2},
                                        {1, 6, 6}, {5, 1, 1},  {130, 9, 15}};
    for (size_t k = 0; k < COUNT(shapes); k++) {
        test_rig *rig = test_rig_of("flatten", 3, shapes[k], 3, 2);
        int64_t count = test_rig_inputs(rig);
        float *x = test_floats(count), *y = test_floats(count);
        test_fill(x, count, 4, -1, 1);
        test_rig_forward(rig, x, y);
        cr_expect(test_same(x, y, count), "forward, case %zu", k);
        test_rig_backward(rig, x, y, false);
        cr_expect(test_same(x, y, count), "backward, case %zu", k);
        free(x);
        free(y);
        test_rig_free(rig);
    }
}

/* --- dropout ---------------------------------------------------------------------------------- */

/* The mask (0, or the factor of kept ones) for `rows` rows of `row` elements. */
static void mask_of(const char *spec, int index, uint64_t seed, uint64_t step, int64_t row0,
                    int64_t rows, int64_t row, float *mask)
{
    gpp__desc in = {.dtype = GPP_F32, .rank = 1, .dim = {row}};
    test_rig *rig;
    float *ones = test_floats(rows * row);
    cr_assert_eq(test_rig_new(&rig, spec, index, &in, rows, 1, NULL), GPP_OK);
    test_fill(ones, rows * row, 0, 1, 1);
    rig->run.seed = seed;
    rig->run.step = step;
    rig->run.row0[0] = row0;
    cr_assert_eq(test_rig_forward(rig, ones, mask), GPP_OK);
    free(ones);
    test_rig_free(rig);
}

static int64_t count_kept(const float *mask, int64_t count)
{
    int64_t kept = 0;
    for (int64_t k = 0; k < count; k++)
        kept += mask[k] != 0;
    return kept;
}

Test(dropout, keeps_1_minus_p_of_the_elements_and_scales_them_up)
{
    static const double ps[] = {0, 1e-3, 0.1, 0.5, 0.9, 0.999, 1};
    enum { N = 400000 };
    float *mask = test_floats(N);
    for (size_t k = 0; k < COUNT(ps); k++) {
        char spec[32];
        double p = ps[k];
        snprintf(spec, sizeof spec, "dropout p=%g", p);
        mask_of(spec, 1, 11, 0, 0, 40, N / 40, mask);
        double kept = (double)count_kept(mask, N) / N;
        /* Five standard deviations of a binomial. */
        cr_expect_leq(fabs(kept - (1 - p)), 5 * sqrt(p * (1 - p) / N), "p = %g keeps %g", p, kept);
        for (int e = 0; e < N; e++)
            if (mask[e] != 0)
                cr_assert_float_eq(mask[e], 1 / (1 - p), 1e-6 / (1 - p), "p = %g", p);
    }
    free(mask);
}

Test(dropout, mask_is_the_documented_function_of_philox)
{
    /* Rows of 45 from row 3: blocks of 32 begin and end inside rows, units and vectors. */
    enum { ROW = 45, ROWS = 50, ROW0 = 3, LAYER = 9 };
    const uint64_t seed = UINT64_C(0x123456789abcdef0), step = 77;
    float mask[ROW * ROWS];
    mask_of("dropout p=0.25", LAYER, seed, step, ROW0, ROWS, ROW, mask);
    for (uint64_t k = 0; k < ROW * ROWS; k++) {
        uint64_t e = ROW0 * ROW + k;
        gpp__philox r = gpp__philox4x32(
            seed, (uint64_t)GPP__STREAM_DROPOUT << 56 | (uint64_t)LAYER << 32 | step,
            e / 32 * 8 + e % 8);
        float want = gpp__philox_uniform(r.v[e % 32 / 8]) >= 0.25f ? 1 / 0.75f : 0;
        cr_assert_eq(mask[k], want, "element %d", (int)k);
    }
}

Test(dropout, mask_is_the_same_however_the_rows_are_cut)
{
    static const int64_t rows_of[][2] = {{3, 5}, {1, 7}, {7, 1}};
    static const int64_t row_lengths[] = {1, 31, 32, 100, 70001};
    for (size_t l = 0; l < COUNT(row_lengths); l++) {
        int64_t row = row_lengths[l];
        float *whole = test_floats(8 * row), *parts = test_floats(8 * row);
        mask_of("dropout", 2, 5, 6, 10, 8, row, whole);
        for (size_t k = 0; k < COUNT(rows_of); k++) {
            int64_t first = rows_of[k][0];
            mask_of("dropout", 2, 5, 6, 10, first, row, parts);
            mask_of("dropout", 2, 5, 6, 10 + first, rows_of[k][1], row, parts + first * row);
            cr_expect(test_same(whole, parts, 8 * row), "rows of %d, cut after %d", (int)row,
                      (int)first);
        }
        free(whole);
        free(parts);
    }
}

Test(dropout, mask_differs_between_steps_layers_seeds_and_rows)
{
    enum { N = 4096 };
    static const struct {
        int index;
        uint64_t seed, step;
        int64_t row0;
        char why[24];
    } others[] = {
        {.index = 2, .seed = 5, .step = 7, .why = "next step"},
        {.index = 2, .seed = 5, .step = 6 + (UINT64_C(1) << 32), .why = "step beyond 2^32"},
        {.index = 3, .seed = 5, .step = 6, .why = "next layer"},
        {.index = 2, .seed = 6, .step = 6, .why = "next seed"},
        {.index = 2, .seed = 5 + (UINT64_C(1) << 32), .step = 6, .why = "seed beyond 2^32"},
        {.index = 2, .seed = 5, .step = 6, .row0 = 1, .why = "next row"},
    };
    float base[N], other[N];
    mask_of("dropout", 2, 5, 6, 0, 1, N, base);
    for (size_t k = 0; k < COUNT(others); k++) {
        int equal = 0;
        mask_of("dropout", others[k].index, others[k].seed, others[k].step, others[k].row0, 1, N,
                other);
        for (int e = 0; e < N; e++)
            equal += base[e] == other[e];
        /* Independent masks agree in half of the places, standard deviation 32. */
        cr_expect(abs(equal - N / 2) < 6 * 32, "%s: %d of %d agree", others[k].why, equal, N);
    }
}

Test(dropout, rows_of_a_tensor_that_is_not_cut_count_anew_in_each_micro_batch)
{
    enum { ROW = 40, ROWS = 3 };
    gpp__desc in = {.rank = 1, .dim = {ROW}, .batch = GPP_ROWS_FIXED, .rows = ROWS};
    const int64_t batch[GPP__BATCHES] = {7};
    float ones[ROW * ROWS], y[ROW * ROWS], whole[5 * ROW * ROWS];
    test_rig *rig;
    test_fill(ones, ROW * ROWS, 0, 1, 1);
    mask_of("dropout", 2, 1, 0, 0, 5 * ROWS, ROW, whole);
    cr_assert_eq(test_rig_new_tuple(&rig, "dropout", 2, &in, 1, batch, 1, NULL), GPP_OK);
    for (int i = 0; i < 5; i++) {
        rig->run.micro_batch = i;
        rig->run.row0[0] = 100; /* of a mini-batch it is no part of */
        test_rig_forward(rig, ones, y);
        cr_expect(test_same(y, whole + i * ROW * ROWS, ROW * ROWS), "micro-batch %d", i);
    }
    test_rig_free(rig);
}

Test(dropout, backward_uses_the_mask_of_the_forward)
{
    enum { N = 3 * 1000 };
    float ones[N], y[N], grad[N];
    test_rig *rig = test_rig_of("dropout p=0.4", 1, (int64_t[]){1000}, 3, 2);
    rig->run.step = 12;
    rig->run.row0[0] = 5;
    test_fill(ones, N, 0, 1, 1);
    test_rig_forward(rig, ones, y);
    test_rig_backward(rig, ones, grad, false);
    cr_expect(test_same(y, grad, N));
    test_rig_free(rig);
}

Test(dropout, evaluation_passes_everything_on)
{
    float x[100], y[100], out[100];
    test_rig *rig = test_rig_of("dropout p=0.9", 1, (int64_t[]){50}, 2, 1);
    rig->run.training = false;
    test_fill(x, 100, 8, -1, 1);
    test_rig_forward(rig, x, y);
    cr_expect(test_same(x, y, 100), "as programs do it");
    gpp__io io = {.in = {x}, .out = {out}};
    rig->layer.op->cpu.forward(&rig->kernel, &rig->run, &io);
    cr_expect(test_same(x, out, 100), "when its kernel is called all the same");
    test_rig_free(rig);
}

/* oneDNN 2.6 does, in strided 1 x 1 convolutions of few channels, unless it is given more than it
 * asks for. */
Test(ops, nothing_is_written_behind_scratch_wherever_it_begins)
{
    enum { GUARD = 256 };
    static const char *const specs[] = {"conv2d out=8 kernel=1 stride=2 bias=0",
                                        "conv2d out=8 kernel=1",
                                        "conv2d out=5 kernel=3",
                                        "conv2d out=4 kernel=3 groups=4",
                                        "conv2d out=16 kernel=3 stride=2 padding=1",
                                        "conv_transpose2d out=6 kernel=2 stride=2"};
    const gpp__desc in = {.rank = 3, .dim = {4, 16, 16}};
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++)
        for (size_t shift = 0; shift < 128; shift += 64) {
            gpp_error err = GPP_ERROR_INIT;
            test_rig *rig;
            cr_assert_eq(test_rig_new(&rig, specs[k], 0, &in, 3, 1, &err), GPP_OK, "%s", err.msg);
            size_t f = rig->kernel.forward_scratch, b = rig->kernel.backward_scratch;
            size_t bytes = gpp__align(f > b ? f : b);
            char *room = aligned_alloc(128, (bytes + 2 * GUARD + 127) & ~(size_t)127);
            char *own = rig->scratch, *end = room + shift + bytes;
            memset(room, 0x55, bytes + 2 * GUARD);
            rig->scratch = room + shift;
            int64_t x = test_rig_inputs(rig), y = test_rig_outputs(rig);
            float *values = test_room((size_t)(x > y ? x : y) * sizeof *values);
            test_fill(values, x > y ? x : y, 1, -1, 1);
            test_rig_init(rig, 1);
            cr_assert_eq(test_rig_forward(rig, values, NULL), GPP_OK);
            for (int again = 0; again < 2; again++)
                cr_assert_eq(test_rig_backward(rig, values, NULL, again), GPP_OK);
            for (int g = 0; g < GUARD; g++)
                cr_assert_eq(end[g], 0x55, "%s: byte %d behind scratch at %zu", specs[k], g, shift);
            rig->scratch = own;
            test_rig_free(rig);
            free(values);
            free(room);
        }
}
