/*
 * tests/test_arith.c: operators that combine, cut, place and rename tensors, functions of one
 * number, pooling, interpolation, softmax: plain loops that say what is where, accuracy and limits.
 * What holds for every operator: test_operators.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/philox.h"
#include "tests/operators.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* A rig for one tensor of a rank, on one thread. */
static test_rig *rig_of(const char *spec, int rank, const int64_t dim[], int64_t rows)
{
    return test_rig_of(spec, rank, dim, rows, 1);
}

/* --- what is where ---------------------------------------------------------------------------- */

/* A tensor as the user sees it: rows and dimensions in order, indices into it. */
typedef struct shape {
    int rank;
    int64_t dim[5]; /* dim[0] the rows */
} shape;

static shape shape_of(const test_rig *rig, const gpp__desc *desc)
{
    shape s = {desc->rank + 1, {gpp__desc_rows(desc, rig->kernel.batch)}};
    memcpy(s.dim + 1, desc->dim, (size_t)desc->rank * sizeof *s.dim);
    return s;
}

static int64_t elements(const shape *s)
{
    int64_t count = 1;
    for (int k = 0; k < s->rank; k++)
        count *= s->dim[k];
    return count;
}

/* Element `e` of a tensor of shape `s` in one of shape `in`, moved by `by` along dimension `dim`;
 * -1 when it is outside. */
static int64_t moved(int64_t e, const shape *s, const shape *in, int dim, int64_t by)
{
    int64_t index[5], at = 0;
    for (int k = s->rank - 1; k >= 0; k--, e /= s->dim[k + 1])
        index[k] = e % s->dim[k];
    index[dim] += by;
    for (int k = 0; k < in->rank; k++) {
        if (index[k] < 0 || index[k] >= in->dim[k])
            return -1;
        at = at * in->dim[k] + index[k];
    }
    return at;
}

/* Whether the parts lie one behind the other along `dim` in `whole`, zeros where none is. */
static bool lie_side_by_side(const shape *whole, const float *data, int dim, int parts,
                             const shape part[], void *const from[])
{
    float *want = test_floats(elements(whole));
    test_fill(want, elements(whole), 0, 0, 0);
    int64_t at = 0;
    for (int t = 0; t < parts; at += part[t++].dim[dim])
        for (int64_t e = 0; e < elements(&part[t]); e++)
            want[moved(e, &part[t], whole, dim, at)] = ((const float *)from[t])[e];
    bool same = test_same(want, data, elements(whole));
    free(want);
    return same;
}

/* The dimension, of tensors of `rank` dimensions with the rows, that an operator joins or cuts. */
static int dim_of(const test_op_case *c, int rank)
{
    const char *at = strstr(c->spec, "dim=");
    int dim = at ? atoi(at + strlen("dim=")) : 1;
    return dim < 0 ? dim + rank : dim;
}

static void expect_joined(const test_op_case *c)
{
    test_probe p = test_probe_new(c, 0, 1);
    shape whole = shape_of(p.rig, &p.rig->layer.out[0]), part[TEST_OP_INPUTS];
    int dim = dim_of(c, whole.rank);
    for (int t = 0; t < p.inputs; t++)
        part[t] = shape_of(p.rig, &p.rig->layer.in[t]);
    test_probe_value(&p);
    test_probe_back(&p, false);
    cr_expect(lie_side_by_side(&whole, p.y[0], dim, p.inputs, part, p.x), "%s", c->spec);
    int64_t at = 0;
    for (int t = 0; t < p.inputs; at += part[t++].dim[dim])
        for (int64_t e = 0; e < elements(&part[t]); e++)
            cr_assert_eq(p.grad[t][e], p.w[0][moved(e, &part[t], &whole, dim, at)],
                         "%s: gradient %d, element %d", c->spec, t, (int)e);
    test_probe_free(&p);
}

Test(arith, joined_tensors_lie_one_behind_the_other_and_the_backward_takes_them_apart)
{
    EACH_SMALL_CASE(c)
    if (test_op_is(c, "cat") || strstr(c->spec, "mode=cat"))
        expect_joined(c);
}

static void expect_cut(const test_op_case *c)
{
    test_probe p = test_probe_new(c, 0, 1);
    shape whole = shape_of(p.rig, &p.rig->layer.in[0]), part[GPP__MAX_TENSORS];
    int dim = dim_of(c, whole.rank);
    for (int t = 0; t < p.outputs; t++)
        part[t] = shape_of(p.rig, &p.rig->layer.out[t]);
    test_probe_value(&p);
    test_probe_back(&p, false);
    cr_expect(lie_side_by_side(&whole, p.x[0], dim, p.outputs, part, p.y), "%s, forward", c->spec);
    cr_expect(lie_side_by_side(&whole, p.grad[0], dim, p.outputs, part, (void *const *)p.w),
              "%s, backward", c->spec);
    test_probe_free(&p);
}

Test(arith, split_cuts_what_cat_joins)
{
    EACH_SMALL_CASE(c)
    if (test_op_is(c, "split"))
        expect_cut(c);
}

Test(arith, an_added_skip_is_filled_up_with_zeros_at_the_bottom_and_the_right)
{
    static const test_op_case c = {
        TEST_OP("pop name=a mode=add pad=1", "", 2, IMAGE(3, 4, 5), IMAGE(3, 5, 3))};
    test_probe p = test_probe_new(&c, 0, 1);
    shape whole = shape_of(p.rig, &p.rig->layer.out[0]);
    cr_assert(whole.dim[2] == 5 && whole.dim[3] == 5);
    test_probe_value(&p);
    for (int64_t e = 0; e < elements(&whole); e++) {
        float want = 0;
        for (int t = 0; t < 2; t++) {
            shape part = shape_of(p.rig, &p.rig->layer.in[t]);
            int64_t at = moved(e, &whole, &part, 1, 0);
            want += at < 0 ? 0 : ((const float *)p.x[t])[at];
        }
        cr_assert_eq(((const float *)p.y[0])[e], want, "element %d", (int)e);
    }
    test_probe_free(&p);
}

Test(arith, a_padded_image_lies_where_the_sides_say)
{
    static const test_op_case c = {
        TEST_OP("pad left=1 right=2 top=3 value=-4", "", 2, IMAGE(9, 4, 5))};
    test_probe p = test_probe_new(&c, 0, 1);
    shape whole = shape_of(p.rig, &p.rig->layer.out[0]),
          part = shape_of(p.rig, &p.rig->layer.in[0]);
    cr_assert(whole.dim[2] == 7 && whole.dim[3] == 8);
    test_probe_value(&p);
    for (int64_t e = 0; e < elements(&whole); e++) {
        shape wide = part; /* the part with the columns on its left */
        wide.dim[3] = whole.dim[3];
        int64_t up = moved(e, &whole, &wide, 2, -3);
        int64_t at = up < 0 ? -1 : moved(up, &wide, &part, 3, -1);
        cr_assert_eq(((const float *)p.y[0])[e], at < 0 ? -4 : ((const float *)p.x[0])[at],
                     "element %d", (int)e);
    }
    test_probe_free(&p);
}

Test(arith, conversions_of_layout_undo_each_other_and_put_channels_last)
{
    static const test_op_case last = {TEST_OP("channels_last", "", 2, IMAGE(3, 4, 5))};
    static const test_op_case first = {TEST_OP("channels_first", "", 2, IMAGE(3, 4, 5))};
    test_probe p = test_probe_new(&last, 0, 1), q = test_probe_new(&first, 0, 1);
    test_probe_value(&p);
    const float *x = p.x[0], *y = p.y[0];
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 3; c++)
            for (int at = 0; at < 20; at++)
                cr_assert_eq(y[(n * 20 + at) * 3 + c], x[(n * 3 + c) * 20 + at]);
    memcpy(q.x[0], y, 120 * sizeof *y);
    test_probe_value(&q);
    cr_expect(test_same(q.y[0], x, 120));
    test_probe_free(&p);
    test_probe_free(&q);
}

/* --- skips ------------------------------------------------------------------------------------ */

Test(arith, a_stash_declares_its_skip_as_its_last_output_and_a_pop_as_its_last_input)
{
    static const struct {
        char spec[48];
        int inputs, outputs, stashes, pops;
        bool view;
    } known[] = {
        {"stash name=a ns=b", .inputs = 1, .outputs = 2, .stashes = 1, .view = true},
        {"unstash name=a ns=b", .inputs = 1, .outputs = 1, .pops = 1, .view = true},
        {"pop name=a ns=b mode=add", .inputs = 2, .outputs = 1, .pops = 1},
        {"combine mode=add", .inputs = 2, .outputs = 1},
    };
    for (size_t k = 0; k < COUNT(known); k++) {
        const test_op_case c = {.spec = known[k].spec,
                                .inputs = known[k].inputs,
                                .in = {MATRIX(3, 4), MATRIX(3, 4)},
                                .rows = 2};
        test_probe p = test_probe_new(&c, 0, 1);
        const test_rig *rig = p.rig;
        const gpp__layer *layer = &rig->layer;
        cr_expect_eq(layer->out_count, known[k].outputs, "%s", c.spec);
        cr_expect_eq(layer->stashes, known[k].stashes, "%s", c.spec);
        cr_expect_eq(layer->pops, known[k].pops, "%s", c.spec);
        cr_expect_eq(layer->skips, layer->pops + layer->stashes, "%s", c.spec);
        cr_expect_eq(layer->op->is_view && layer->op->is_view(layer), known[k].view, "%s", c.spec);
        if (layer->skips) {
            cr_expect_str_eq(layer->skip[0].name, "a", "%s", c.spec);
            cr_expect_str_eq(layer->skip[0].ns, "b", "%s", c.spec);
            cr_expect_eq(layer->skip[0].stash, layer->stashes > 0, "%s", c.spec);
        }
        test_probe_free(&p);
    }
}

Test(arith, a_tensor_of_integers_can_be_put_aside_and_passed)
{
    static const char *const specs[] = {"stash name=a", "unstash name=a", "fork outputs=2", "pass"};
    for (size_t k = 0; k < COUNT(specs); k++) {
        gpp__desc in = {.dtype = GPP_I64, .rank = 3, .dim = {2, 3, 2}, .batch = 1};
        const int64_t batch[GPP__BATCHES] = {7, 2};
        int64_t x[24], y[2][24];
        test_rig *rig;
        for (int e = 0; e < 24; e++)
            x[e] = 100 + e;
        cr_assert_eq(test_rig_new_tuple(&rig, specs[k], 0, &in, 1, batch, 1, NULL), GPP_OK);
        void *out[GPP__MAX_TENSORS] = {y[0], y[1]};
        test_rig_forward_tuple(rig, (const void *const[]){x}, out);
        for (int t = 0; t < rig->layer.out_count; t++) {
            cr_expect(gpp__desc_equal(&rig->layer.out[t], &in), "%s", specs[k]);
            cr_expect_eq(memcmp(y[t], x, sizeof x), 0, "%s", specs[k]);
        }
        test_rig_free(rig);
    }
}

Test(arith, an_absent_skip_adds_nothing_and_cannot_be_joined)
{
    static const test_op_case add = {
        TEST_OP("pop name=a mode=add", "", 2, IMAGE(3, 4, 5), IMAGE(3, 4, 5))};
    static const test_op_case padded = {
        TEST_OP("pop name=a mode=add pad=1", "", 2, IMAGE(3, 4, 5), IMAGE(3, 4, 4))};
    static const test_op_case cat = {TEST_OP("pop name=a mode=cat", "", 2, VECTOR(3), VECTOR(3))};
    const test_op_case *both[] = {&add, &padded};
    for (int k = 0; k < 2; k++) {
        test_probe p = test_probe_new(both[k], 0, 1);
        const void *in[] = {p.x[0], NULL};
        cr_assert_eq(test_rig_forward_tuple(p.rig, in, p.y), GPP_OK);
        cr_expect(test_same(p.y[0], p.x[0], 120), "%s: forward", p.c->spec);
        float *wanted[] = {p.grad[0], NULL};
        test_rig_backward_tuple(p.rig, (const float *const *)p.w, wanted, false);
        cr_expect(test_same(p.grad[0], p.w[0], 120), "%s: backward", p.c->spec);
        test_probe_free(&p);
    }
    test_probe p = test_probe_new(&cat, 0, 1);
    gpp_error err = GPP_ERROR_INIT;
    p.rig->run.err = &err;
    p.rig->run.micro_batch = 3;
    cr_expect_eq(test_rig_forward_tuple(p.rig, (const void *const[]){p.x[0], NULL}, p.y),
                 GPP_EINVAL);
    cr_expect(strstr(err.msg, "absent") && strstr(err.msg, "micro-batch 3"), "%s", err.msg);
    test_probe_free(&p);
}

/* --- functions of one number ------------------------------------------------------------------ */

static double gelu_in_double(double x)
{
    return 0.5 * x * erfc(-x * sqrt(0.5));
}

static double gelu_tanh_in_double(double x)
{
    return x / (1 + exp(-2 * sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static double sigmoid_in_double(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu_in_double(double x)
{
    return x / (1 + exp(-x));
}

static double softplus_in_double(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static double elu_in_double(double x)
{
    return x > 0 ? x : expm1(x);
}

Test(arith, functions_are_accurate_relative_to_each_value)
{
    /* Errors as the files say, with a margin of two; the cubic polynomial in gelu's other form
     * costs as many units as its argument is large. */
    static const struct {
        char spec[24];
        double (*f)(double), lo, hi, most;
    } known[] = {
        {"gelu", gelu_in_double, .lo = -12.9, .hi = 12, .most = 1e-6},
        {"gelu", gelu_in_double, .lo = -1e-3, .hi = 1e-3, .most = 1e-6},
        {"gelu approximate=tanh", gelu_tanh_in_double, .lo = -5, .hi = 12, .most = 5e-6},
        {"tanh", tanh, .lo = -12, .hi = 12, .most = 4e-7},
        {"tanh", tanh, .lo = -1e-3, .hi = 1e-3, .most = 4e-7},
        {"sigmoid", sigmoid_in_double, .lo = -87, .hi = 20, .most = 4e-7},
        {"silu", silu_in_double, .lo = -80, .hi = 20, .most = 4e-7},
        {"softplus", softplus_in_double, .lo = -80, .hi = 30, .most = 5e-7},
        {"elu", elu_in_double, .lo = -30, .hi = 3, .most = 4e-7},
        {"elu", elu_in_double, .lo = -1e-3, .hi = 1e-3, .most = 4e-7},
    };
    enum { N = 30011 };
    static float x[N], y[N];
    for (size_t k = 0; k < COUNT(known); k++) {
        test_rig *rig = rig_of(known[k].spec, 1, (int64_t[]){N}, 1);
        double most = 0, at = 0;
        for (int e = 0; e < N; e++)
            x[e] = (float)(known[k].lo + (known[k].hi - known[k].lo) * e / (N - 1));
        test_rig_forward(rig, x, y);
        for (int e = 0; e < N; e++) {
            double want = known[k].f((double)x[e]);
            double off = want == 0 ? fabs((double)y[e]) : fabs((double)y[e] / want - 1);
            if (off > most)
                most = off, at = (double)x[e];
        }
        cr_expect(most <= known[k].most, "%s: error %.3g at %g", known[k].spec, most, at);
        test_rig_free(rig);
    }
}

Test(arith, functions_go_to_their_limits_and_pass_nan_on)
{
    static const struct {
        char spec[24];
        float at[5]; /* of -inf, -200, 0, 200, inf */
    } known[] = {
        {"tanh", {-1, -1, 0, 1, 1}},
        {"sigmoid", {0, 0, 0.5f, 1, 1}},
        {"gelu", {NAN, 0, 0, 200, INFINITY}},
        {"silu", {NAN, 0, 0, 200, INFINITY}},
        {"softplus", {0, 0, 0.693147f, 200, INFINITY}},
        {"elu", {-1, -1, 0, 200, INFINITY}},
        {"leaky_relu slope=0.5", {-INFINITY, -100, 0, 200, INFINITY}},
        {"relu6", {0, 0, 0, 6, 6}},
        {"hardtanh max=3", {-1, -1, 0, 3, 3}},
    };
    static const float x[] = {-INFINITY, -200, 0, 200, INFINITY, NAN};
    for (size_t k = 0; k < COUNT(known); k++) {
        test_rig *rig = rig_of(known[k].spec, 1, (int64_t[]){6}, 1);
        float y[6];
        test_rig_forward(rig, x, y);
        for (int e = 0; e < 5; e++) /* infinity times zero is a NaN, of either sign */
            cr_expect(y[e] == known[k].at[e] || isnan(known[k].at[e]) ||
                          fabsf(y[e] - known[k].at[e]) < 1e-6f,
                      "%s(%g) is %g", known[k].spec, (double)x[e], (double)y[e]);
        cr_expect(isnan(y[5]), "%s(NaN) is %g", known[k].spec, (double)y[5]);
        test_rig_free(rig);
    }
}

Test(arith, softmax_of_huge_and_of_infinitely_small_scores_is_finite_and_sums_to_1)
{
    static const float x[] = {-1e4f, 1e4f, 1e4f, -INFINITY};
    static const char *const specs[] = {"softmax", "softmax dim=1"};
    float y[4], columns[12], z[12];
    test_rig *rig = rig_of(specs[0], 1, (int64_t[]){4}, 1);
    test_rig_forward(rig, x, y);
    cr_expect(y[0] == 0 && y[1] == 0.5f && y[2] == 0.5f && y[3] == 0, "%s", specs[0]);
    test_rig_free(rig);
    rig = rig_of(specs[1], 2, (int64_t[]){4, 3}, 1);
    for (int k = 0; k < 12; k++)
        columns[k] = x[k / 3];
    test_rig_forward(rig, columns, z);
    for (int k = 0; k < 12; k++)
        cr_expect_eq(z[k], y[k / 3], "%s", specs[1]);
    test_rig_free(rig);
}

/* --- images ----------------------------------------------------------------------------------- */

Test(arith, nearest_takes_the_input_at_the_exact_quotient)
{
    /* 41 is a factor whose reciprocal in float32 is below 1/41. */
    static const int64_t sizes[][2] = {{3, 123}, {7, 3}, {8, 8}, {5, 12}, {1, 9}};
    for (size_t k = 0; k < COUNT(sizes); k++) {
        int64_t in = sizes[k][0], out = sizes[k][1];
        char spec[32];
        const test_op_case c = {.spec = spec, .inputs = 1, .in = {IMAGE(1, 1, in)}, .rows = 1};
        snprintf(spec, sizeof spec, "upsample size=1,%d", (int)out);
        test_probe p = test_probe_new(&c, 0, 1);
        test_probe_value(&p);
        for (int64_t o = 0; o < out; o++)
            cr_expect_eq(((const float *)p.y[0])[o], ((const float *)p.x[0])[o * in / out],
                         "%s of %d: %d", spec, (int)in, (int)o);
        test_probe_free(&p);
    }
}

Test(arith, pooling_and_interpolation_keep_a_constant)
{
    static const char *const specs[] = {"adaptive_avgpool2d out=3,2",
                                        "adaptive_avgpool2d out=1",
                                        "avgpool2d kernel=3",
                                        "avgpool2d kernel=3 stride=2 padding=1 count_include_pad=0",
                                        "upsample scale=3",
                                        "upsample scale=3 mode=bilinear",
                                        "upsample size=5,17 mode=bilinear align_corners=1"};
    for (size_t k = 0; k < COUNT(specs); k++) {
        const test_op_case c = {.spec = specs[k], .inputs = 1, .in = {IMAGE(11, 13, 9)}, .rows = 2};
        test_probe p = test_probe_new(&c, 0, 1);
        test_fill(p.x[0], test_rig_input(p.rig, 0), 0, 3, 3);
        test_probe_value(&p);
        for (int64_t e = 0; e < test_rig_output(p.rig, 0); e++) /* a few roundings */
            cr_assert_float_eq(((const float *)p.y[0])[e], 3, 2e-6, "%s", specs[k]);
        test_probe_free(&p);
    }
}

Test(arith, dropout2d_drops_whole_channels_by_the_documented_numbers)
{
    enum { C = 45, PIXELS = 6, ROWS = 5, ROW0 = 3, ID = 9 };
    static const test_op_case c = {TEST_OP("dropout2d p=0.25", "", ROWS, IMAGE(C, 2, 3))};
    test_probe p = test_probe_new(&c, 0, 1);
    p.rig->layer.id = ID;
    p.rig->run.row0[0] = ROW0;
    test_fill(p.x[0], C * PIXELS * ROWS, 0, 1, 1);
    test_probe_value(&p);
    for (uint64_t k = 0; k < C * ROWS; k++) {
        uint64_t e = ROW0 * C + k;
        gpp__philox r = gpp__philox4x32(1, (uint64_t)GPP__STREAM_DROPOUT << 56 | (uint64_t)ID << 32,
                                        e / 32 * 8 + e % 8);
        float want = gpp__philox_uniform(r.v[e % 32 / 8]) >= 0.25f ? 1 / 0.75f : 0;
        for (int at = 0; at < PIXELS; at++)
            cr_assert_eq(((const float *)p.y[0])[k * PIXELS + (uint64_t)at], want, "channel %d",
                         (int)k);
    }
    test_probe_free(&p);
}

/* --- what operators share --------------------------------------------------------------------- */

#define FIXED(n, r, ...)                                                                           \
    {                                                                                              \
        .rank = r, .dim = {__VA_ARGS__}, .batch = GPP_ROWS_FIXED, .rows = n                        \
    }

Test(arith, descriptions_are_equal_when_type_shape_and_rows_are)
{
    static const gpp__desc a = FIXED(3, 2, 4, 5), same = FIXED(3, 2, 4, 5);
    static const gpp__desc others[] = {FIXED(2, 2, 4, 5),
                                       MATRIX(4, 5),
                                       FIXED(3, 2, 4, 6),
                                       FIXED(3, 1, 4),
                                       {.rank = 2, .dim = {4, 5}, .batch = 1}};
    gpp__desc integer = a, free_rows = VECTOR(4), unused = {.rank = 1, .dim = {4, 9}};
    integer.dtype = GPP_I64;
    unused.rows = 17;
    cr_expect(gpp__desc_equal(&a, &same));
    cr_expect(gpp__desc_equal(&free_rows, &unused), "rows and dimensions that mean nothing");
    cr_expect_not(gpp__desc_equal(&a, &integer));
    for (size_t k = 0; k < COUNT(others); k++)
        cr_expect_not(gpp__desc_equal(&a, &others[k]), "case %zu", k);
}

Test(arith, a_layer_trains_when_it_has_a_parameter_that_is_neither_frozen_nor_a_buffer)
{
    gpp__layer layer = {.op = gpp__op_find("linear")};
    cr_expect_not(gpp__layer_trains(&layer));
    gpp__add_buffer(&layer, "seen", GPP_I64, 1, (int64_t[]){1});
    cr_expect_not(gpp__layer_trains(&layer));
    gpp__add_param(&layer, "weight", 2, (int64_t[]){3, 4});
    cr_expect(gpp__layer_trains(&layer));
    layer.param[1].frozen = true;
    cr_expect_not(gpp__layer_trains(&layer));
    cr_expect(layer.param[0].buffer && layer.param[0].dtype == GPP_I64);
    cr_expect(!layer.param[1].buffer && layer.param[1].dtype == GPP_F32);
    cr_expect_eq(layer.param[1].count, 12);
}
