/*
 * tests/test_arith.c: operators that combine, cut, place and rename tensors, functions of one
 * number, pooling, interpolation, softmax: reference vectors, central differences, plain loops that
 * say what is where, independence of threads, refusals.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/philox.h"
#include "tests/slopes.h"

#define COUNT(table) (sizeof table / sizeof *table)
#define MOST         4 /* tensors of a case */

/* --- reference vectors ------------------------------------------------------------------------ */

Test(arith, reference_vectors_are_met_within_1e_5_of_the_largest_value)
{
    static const test_known known[] = {
        {"add", 1},
        {"mul", 1},
        {"cat", 1},
        {"tanh", 2},
        {"sigmoid", 2},
        {"gelu", 3},
        {"leaky_relu", 1},
        {"silu", 1},
        {"elu", 1},
        {"relu6", 1},
        {"hardtanh", 1},
        {"softplus", 1},
        {"upsample", 6},
        {"avgpool2d", 5},
        {"pad", 1},
        {"adaptive_avgpool2d", 3},
        {"softmax", 3},
        {"log_softmax", 1},
        {"conv_transpose2d", 3},
    };
    test_expect_vectors("layer", known, COUNT(known));
}

/* --- central differences ---------------------------------------------------------------------- */

typedef struct arith_case {
    char spec[72];
    int inputs;
    struct {
        int rank;
        int64_t dim[4];
    } in[MOST];
    int64_t rows;
    bool curved; /* no kinks, but no straight lines either: inputs within -2 ... 2 */
    char why[48];
} arith_case;

static const arith_case cases[] = {
    {"add", 2, {{2, {3, 4}}, {2, {3, 4}}}, 3, false, "two"},
    {"add", 4, {{3, {3, 4, 5}}, {3, {3, 4, 5}}, {3, {3, 4, 5}}, {3, {3, 4, 5}}}, 2, false, "four"},
    {"add", 2, {{0, {0}}, {0, {0}}}, 5, false, "numbers"},
    {"mul", 2, {{2, {3, 4}}, {2, {3, 4}}}, 3, true, "two"},
    {"mul", 3, {{1, {37}}, {1, {37}}, {1, {37}}}, 2, true, "three"},
    {"cat dim=1", 2, {{3, {3, 4, 5}}, {3, {2, 4, 5}}}, 2, false, "channels"},
    {"cat dim=2", 2, {{3, {3, 4, 5}}, {3, {3, 1, 5}}}, 2, false, "lines"},
    {"cat dim=-1", 3, {{3, {3, 4, 5}}, {3, {3, 4, 2}}, {3, {3, 4, 1}}}, 2, false, "columns"},
    {"cat dim=1", 3, {{1, {5}}, {1, {7}}, {1, {1}}}, 3, false, "vectors"},
    {"cat dim=2", 2, {{4, {2, 3, 4, 2}}, {4, {2, 5, 4, 2}}}, 2, false, "rank 4"},
    {"split dim=1 parts=3", 1, {{3, {6, 4, 5}}}, 2, false, "channels"},
    {"split dim=2 parts=2", 1, {{3, {3, 4, 5}}}, 2, false, "lines"},
    {"split dim=-1 parts=2", 1, {{2, {3, 8}}}, 3, false, "the last"},
    {"split dim=1 parts=1", 1, {{1, {7}}}, 3, false, "one part"},
    {"pop name=a mode=add", 2, {{3, {3, 4, 5}}, {3, {3, 4, 5}}}, 2, false, "add"},
    {"pop name=a mode=add pad=1",
     2,
     {{3, {3, 4, 5}}, {3, {3, 5, 3}}},
     2,
     false,
     "add, both padded"},
    {"pop name=a mode=cat pad=1", 2, {{3, {3, 4, 4}}, {3, {2, 5, 5}}}, 2, false, "U-Net's"},
    {"pop name=a mode=cat pad=1 dim=3", 2, {{3, {3, 4, 4}}, {3, {3, 5, 2}}}, 2, false, "lines pad"},
    {"pop name=a mode=cat dim=1 pad=1", 2, {{1, {16}}, {1, {15}}}, 3, false, "vectors"},
    {"combine mode=add", 2, {{2, {3, 4}}, {2, {3, 4}}}, 2, false, "add"},
    {"combine mode=cat dim=2", 2, {{2, {3, 4}}, {2, {3, 2}}}, 2, false, "cat"},
    {"stash name=a", 1, {{3, {3, 4, 5}}}, 2, false, "two views"},
    {"unstash name=a", 1, {{2, {3, 4}}}, 2, false, "one view"},
    {"fork outputs=3", 1, {{3, {3, 4, 5}}}, 2, false, "three views"},
    {"pass", 2, {{3, {3, 4, 5}}, {1, {4}}}, 2, false, "two views"},
    {"channels_last", 1, {{3, {3, 4, 5}}}, 2, false, "image"},
    {"channels_last", 1, {{3, {1, 4, 5}}}, 2, false, "a view"},
    {"channels_first", 1, {{3, {33, 4, 5}}}, 2, false, "image"},
    {"tanh", 1, {{2, {5, 7}}}, 2, true, ""},
    {"sigmoid", 1, {{1, {37}}}, 2, true, ""},
    {"gelu", 1, {{3, {3, 4, 5}}}, 2, true, "erf"},
    {"gelu approximate=tanh", 1, {{1, {37}}}, 2, true, "tanh"},
    {"silu", 1, {{1, {37}}}, 2, true, ""},
    {"softplus", 1, {{1, {37}}}, 2, true, ""},
    {"softplus beta=3 threshold=30", 1, {{1, {37}}}, 2, true, "beta"},
    {"softplus beta=2 threshold=-50", 1, {{1, {37}}}, 2, false, "above the threshold"},
    {"leaky_relu", 1, {{1, {37}}}, 2, false, ""},
    {"leaky_relu slope=0.3", 1, {{3, {3, 4, 5}}}, 2, false, "slope"},
    {"leaky_relu slope=0", 1, {{1, {9}}}, 2, false, "as relu"},
    {"relu6", 1, {{1, {150}}}, 1, false, ""},
    {"hardtanh", 1, {{1, {37}}}, 2, false, ""},
    {"hardtanh min=-0.5 max=2", 1, {{1, {37}}}, 2, false, "ends"},
    {"elu alpha=1", 1, {{1, {37}}}, 2, true, "smooth at 0"},
    {"adaptive_avgpool2d out=1", 1, {{3, {4, 5, 6}}}, 2, false, "mean of all"},
    {"adaptive_avgpool2d out=2,3", 1, {{3, {3, 7, 8}}}, 2, false, "overlapping"},
    {"adaptive_avgpool2d out=5,4", 1, {{3, {9, 3, 3}}}, 2, false, "larger"},
    {"avgpool2d kernel=2", 1, {{3, {3, 6, 4}}}, 2, false, ""},
    {"avgpool2d kernel=3,2 stride=2,1 padding=1,0", 1, {{3, {34, 7, 6}}}, 2, false, "asymmetric"},
    {"avgpool2d kernel=3 stride=2 padding=1 count_include_pad=0",
     1,
     {{3, {3, 8, 9}}},
     2,
     false,
     ""},
    {"avgpool2d kernel=3 stride=2 ceil=1", 1, {{3, {3, 6, 6}}}, 2, false, "windows stick out"},
    {"avgpool2d kernel=5 stride=5 padding=2 ceil=1", 1, {{3, {2, 4, 9}}}, 1, false, "only padding"},
    {"upsample scale=2", 1, {{3, {3, 4, 5}}}, 2, false, "nearest"},
    {"upsample scale=3,1", 1, {{3, {40, 2, 3}}}, 2, false, "of one side"},
    {"upsample size=3,5", 1, {{3, {2, 8, 7}}}, 2, false, "smaller: some inputs unused"},
    {"upsample scale=2 mode=bilinear", 1, {{3, {3, 4, 5}}}, 2, false, "bilinear"},
    {"upsample size=7,3 mode=bilinear align_corners=1", 1, {{3, {3, 4, 5}}}, 2, false, "corners"},
    {"upsample size=1 mode=bilinear align_corners=1", 1, {{3, {3, 4, 5}}}, 2, false, "one pixel"},
    {"pad left=1 top=2", 1, {{3, {3, 4, 5}}}, 2, false, "some sides"},
    {"pad left=1 right=2 top=3 bottom=1 value=-4", 1, {{3, {9, 4, 5}}}, 2, false, "all sides"},
    {"pad", 1, {{3, {2, 3, 3}}}, 2, false, "none: a view"},
    {"softmax", 1, {{1, {9}}}, 3, true, "last"},
    {"softmax dim=1", 1, {{3, {5, 3, 4}}}, 2, true, "channels"},
    {"softmax dim=2", 1, {{3, {5, 3, 4}}}, 2, true, "lines"},
    {"softmax dim=1", 1, {{2, {5, 70}}}, 2, true, "strided, several blocks"},
    {"log_softmax", 1, {{2, {3, 9}}}, 2, true, "last"},
    {"log_softmax dim=3", 1, {{3, {5, 3, 4}}}, 2, true, "columns"},
    {"conv_transpose2d out=3 kernel=3 stride=2 padding=1 output_padding=1",
     1,
     {{3, {4, 4, 5}}},
     2,
     false,
     "doubles"},
    {"conv_transpose2d out=6 kernel=2,3 groups=2 bias=0", 1, {{3, {4, 3, 4}}}, 2, false, "groups"},
    {"conv_transpose2d out=2 kernel=3 dilation=2", 1, {{3, {3, 3, 3}}}, 1, false, "dilated"},
};

/* Large enough for several units of work. */
static const arith_case large_cases[] = {
    {"add", 3, {{3, {30, 57, 59}}, {3, {30, 57, 59}}, {3, {30, 57, 59}}}, 3, false, ""},
    {"mul", 2, {{1, {100000}}, {1, {100000}}}, 3, true, ""},
    {"cat", 2, {{3, {30, 57, 59}}, {3, {5, 57, 59}}}, 3, false, ""},
    {"split parts=2", 1, {{3, {30, 57, 59}}}, 3, false, ""},
    {"pop name=a mode=cat pad=1", 2, {{3, {16, 56, 58}}, {3, {8, 57, 59}}}, 3, false, ""},
    {"pop name=a mode=add pad=1", 2, {{3, {16, 56, 58}}, {3, {16, 55, 59}}}, 3, false, ""},
    {"channels_last", 1, {{3, {30, 57, 59}}}, 3, false, ""},
    {"gelu", 1, {{3, {30, 57, 59}}}, 3, true, ""},
    {"tanh", 1, {{3, {30, 57, 59}}}, 3, true, ""},
    {"leaky_relu", 1, {{3, {30, 57, 59}}}, 3, false, ""},
    {"softplus", 1, {{3, {30, 57, 59}}}, 3, true, ""},
    {"adaptive_avgpool2d out=3", 1, {{3, {30, 57, 59}}}, 3, false, ""},
    {"avgpool2d kernel=3 stride=2 padding=1", 1, {{3, {30, 57, 59}}}, 3, false, ""},
    {"upsample scale=2 mode=bilinear", 1, {{3, {30, 33, 35}}}, 3, false, ""},
    {"pad left=1 bottom=1", 1, {{3, {30, 57, 59}}}, 3, false, ""},
    {"softmax dim=1", 1, {{3, {30, 57, 59}}}, 3, true, ""},
    {"log_softmax", 1, {{2, {300, 500}}}, 3, true, ""},
    {"conv_transpose2d out=16 kernel=2 stride=2", 1, {{3, {32, 20, 20}}}, 9, false, ""},
};

/* A rig with everything it needs for f = Σ w·y over all outputs, and its gradients. */
typedef struct probe {
    const arith_case *c;
    test_rig *rig;
    int inputs, outputs;
    void *x[GPP__MAX_TENSORS], *y[GPP__MAX_TENSORS];
    float *w[GPP__MAX_TENSORS], *grad[GPP__MAX_TENSORS];
} probe;

static test_rig *rig_of(const arith_case *c, int threads)
{
    gpp__desc in[MOST] = {{0}};
    const int64_t batch[GPP__BATCHES] = {c->rows};
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    for (int t = 0; t < c->inputs; t++) {
        in[t].rank = c->in[t].rank;
        memcpy(in[t].dim, c->in[t].dim, sizeof c->in[t].dim);
    }
    gpp_status status = test_rig_new_tuple(&rig, c->spec, 0, in, c->inputs, batch, threads, &err);
    cr_assert_eq(status, GPP_OK, "%s: %s", c->spec, err.msg);
    rig->run.err = NULL;
    return rig;
}

static probe probe_new(const arith_case *c, int threads)
{
    probe p = {.c = c, .rig = rig_of(c, threads), .inputs = c->inputs};
    p.outputs = p.rig->layer.out_count;
    for (int t = 0; t < p.inputs; t++) {
        int64_t count = test_rig_input(p.rig, t);
        p.x[t] = test_floats(count);
        p.grad[t] = test_floats(count);
        if (c->curved)
            test_fill(p.x[t], count, 30 + (uint64_t)t, -2, 2);
        else
            test_fill_apart(p.x[t], count, 30 + (uint64_t)t, 0.1);
    }
    for (int t = 0; t < p.outputs; t++) {
        p.y[t] = test_floats(test_rig_output(p.rig, t));
        p.w[t] = test_floats(test_rig_output(p.rig, t));
        test_fill(p.w[t], test_rig_output(p.rig, t), 70 + (uint64_t)t, -1, 1);
    }
    for (int k = 0; k < p.rig->layer.param_count; k++)
        test_fill(test_rig_param(p.rig, k), p.rig->layer.param[k].count, 100 + (uint64_t)k, -1, 1);
    return p;
}

static void probe_free(probe *p)
{
    for (int t = 0; t < GPP__MAX_TENSORS; t++) {
        free(p->x[t]);
        free(p->y[t]);
        free(p->w[t]);
        free(p->grad[t]);
    }
    test_rig_free(p->rig);
}

static double probe_value(probe *p)
{
    double sum = 0;
    cr_assert_eq(test_rig_forward_tuple(p->rig, (const void *const *)p->x, p->y), GPP_OK, "%s",
                 p->c->spec);
    for (int t = 0; t < p->outputs; t++)
        sum += test_dot(p->w[t], p->y[t], test_rig_output(p->rig, t));
    return sum;
}

static void probe_back(probe *p)
{
    gpp_status status = test_rig_backward_tuple(p->rig, (const float *const *)p->w, p->grad, false);
    cr_assert_eq(status, GPP_OK, "%s", p->c->spec);
}

/*
 * Half the difference of f at at + STEP·u and at - STEP·u, against Σ gradient·u, for random signs
 * u. Kinks are at least 0.05 away from inputs. Straight functions have rounding errors alone, below
 * 1e-6 · |x| √n / STEP next to slopes of √n, with |x| up to 20: 2e-3 at worst for the largest
 * cases, in fact far less, as errors are random. Curved ones have a truncation error of STEP²
 * f'''/6, f''' below 27 (softplus with beta=3), so below 5e-4.
 */
#define STEP      0.01f
#define TOLERANCE 2e-3

static double value_of(void *argument)
{
    return probe_value(argument);
}

static void expect_slopes(const arith_case *c)
{
    probe p = probe_new(c, 2);
    const test_slopes s = {c->spec, c->why, value_of, &p, STEP, TOLERANCE, 0};
    probe_value(&p);
    probe_back(&p);
    for (int t = 0; t < p.inputs; t++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", t);
        test_expect_slope(&s, p.x[t], test_rig_input(p.rig, t), p.grad[t], name);
    }
    test_expect_param_slopes(&s, p.rig);
    probe_free(&p);
}

Test(arith, gradients_are_the_slopes_of_central_differences)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        expect_slopes(&cases[k]);
}

/* --- what must not change results ------------------------------------------------------------- */

static void expect_same_results(const arith_case *c, int threads)
{
    probe one = probe_new(c, 1), many = probe_new(c, threads);
    cr_expect(isfinite(probe_value(&one)), "%s: an output is not written", c->spec);
    probe_value(&many);
    probe_back(&one);
    probe_back(&many);
    for (int t = 0; t < one.outputs; t++)
        cr_expect(test_same(one.y[t], many.y[t], test_rig_output(one.rig, t)),
                  "%s: %d threads change output %d", c->spec, threads, t);
    for (int t = 0; t < one.inputs; t++)
        cr_expect(test_same(one.grad[t], many.grad[t], test_rig_input(one.rig, t)),
                  "%s: %d threads change gradient %d", c->spec, threads, t);
    for (int k = 0; k < one.rig->layer.param_count; k++) {
        int64_t count = one.rig->layer.param[k].count;
        float *a = test_floats(count), *b = test_floats(count);
        test_rig_grad(one.rig, k, a);
        test_rig_grad(many.rig, k, b);
        cr_expect(test_same(a, b, count), "%s: %d threads change a parameter's gradient", c->spec,
                  threads);
        free(a);
        free(b);
    }
    probe_free(&one);
    probe_free(&many);
}

Test(arith, results_do_not_depend_on_threads)
{
    for (int threads = 2; threads <= 3; threads++) {
        for (size_t k = 0; k < COUNT(cases); k++)
            expect_same_results(&cases[k], threads);
        for (size_t k = 0; k < COUNT(large_cases); k++)
            expect_same_results(&large_cases[k], threads);
    }
}

Test(arith, a_gradient_does_not_depend_on_which_others_are_wanted)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        probe p = probe_new(&cases[k], 1), q = probe_new(&cases[k], 1);
        probe_value(&p);
        probe_value(&q);
        probe_back(&p);
        for (int t = 0; t < p.inputs; t++) {
            float *only[GPP__MAX_TENSORS] = {NULL};
            only[t] = q.grad[t];
            test_rig_backward_tuple(q.rig, (const float *const *)q.w, only, false);
            cr_expect(test_same(p.grad[t], q.grad[t], test_rig_input(p.rig, t)), "%s: x%d",
                      cases[k].spec, t);
        }
        probe_free(&p);
        probe_free(&q);
    }
}

Test(arith, parameter_gradients_add_up_when_asked)
{
    int tried = 0;
    for (size_t k = 0; k < COUNT(cases) + COUNT(large_cases); k++) {
        const arith_case *c = k < COUNT(cases) ? &cases[k] : &large_cases[k - COUNT(cases)];
        probe p = probe_new(c, 2);
        for (int param = 0; param < p.rig->layer.param_count; param++, tried++) {
            int64_t count = p.rig->layer.param[param].count;
            float *once = test_floats(count), *twice = test_floats(count);
            probe_value(&p);
            probe_back(&p);
            test_rig_grad(p.rig, param, once);
            test_rig_backward_tuple(p.rig, (const float *const *)p.w, p.grad, true);
            test_rig_grad(p.rig, param, twice);
            for (int64_t e = 0; e < count; e++)
                once[e] *= 2;
            /* The sum of two equal numbers, of units in another order: rounding alone. */
            cr_expect(test_distance(twice, once, count) < 1e-6, "%s: %s", c->spec,
                      p.rig->layer.param[param].name);
            free(once);
            free(twice);
        }
        probe_free(&p);
    }
    cr_expect_geq(tried, 6);
}

/* Zeros and a gradient that is absent are the same. */
Test(arith, absent_gradients_of_some_outputs_are_zeros)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        probe p = probe_new(&cases[k], 1), q = probe_new(&cases[k], 1);
        for (int absent = 0; p.outputs > 1 && absent < p.outputs; absent++) {
            const float *some[GPP__MAX_TENSORS];
            memcpy(some, q.w, sizeof some);
            some[absent] = NULL;
            test_fill(p.w[absent], test_rig_output(p.rig, absent), 0, 0, 0);
            probe_value(&p);
            probe_value(&q);
            probe_back(&p);
            test_rig_backward_tuple(q.rig, some, q.grad, false);
            for (int t = 0; t < p.inputs; t++)
                cr_expect(test_same(p.grad[t], q.grad[t], test_rig_input(p.rig, t)),
                          "%s: without output %d", cases[k].spec, absent);
            memcpy(p.w[absent], q.w[absent],
                   (size_t)test_rig_output(p.rig, absent) * sizeof(float));
        }
        probe_free(&p);
        probe_free(&q);
    }
}

Test(arith, working_in_place_changes_no_bit)
{
    int tried = 0;
    for (size_t k = 0; k < COUNT(cases) + COUNT(large_cases); k++) {
        const arith_case *c = k < COUNT(cases) ? &cases[k] : &large_cases[k - COUNT(cases)];
        probe p = probe_new(c, 2), q = probe_new(c, 2);
        q.rig->in_place = q.rig->layer.op->in_place;
        if (q.rig->in_place) {
            probe_value(&p);
            probe_value(&q);
            probe_back(&p);
            probe_back(&q);
            cr_expect(test_same(p.y[0], q.y[0], test_rig_output(p.rig, 0)), "%s: forward", c->spec);
            for (int t = 0; t < p.inputs; t++)
                cr_expect(test_same(p.grad[t], q.grad[t], test_rig_input(p.rig, t)),
                          "%s: backward, x%d", c->spec, t);
            tried++;
        }
        probe_free(&p);
        probe_free(&q);
    }
    cr_expect_geq(tried, 10);
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

Test(arith, joined_tensors_lie_one_behind_the_other_and_the_backward_takes_them_apart)
{
    static const struct {
        size_t of;
        int dim;
    } joined[] = {{5, 1}, {6, 2}, {7, 3}, {8, 1}, {9, 2}, {16, 1}, {17, 3}, {18, 1}, {20, 2}};
    for (size_t k = 0; k < COUNT(joined); k++) {
        probe p = probe_new(&cases[joined[k].of], 1);
        const char *spec = p.c->spec;
        cr_assert(strstr(spec, "cat"), "case %zu is %s", k, spec);
        shape whole = shape_of(p.rig, &p.rig->layer.out[0]), part[MOST];
        for (int t = 0; t < p.inputs; t++)
            part[t] = shape_of(p.rig, &p.rig->layer.in[t]);
        probe_value(&p);
        probe_back(&p);
        cr_expect(lie_side_by_side(&whole, p.y[0], joined[k].dim, p.inputs, part, p.x), "%s", spec);
        int64_t at = 0;
        for (int t = 0; t < p.inputs; at += part[t++].dim[joined[k].dim])
            for (int64_t e = 0; e < elements(&part[t]); e++)
                cr_assert_eq(p.grad[t][e], p.w[0][moved(e, &part[t], &whole, joined[k].dim, at)],
                             "%s: gradient %d, element %d", spec, t, (int)e);
        probe_free(&p);
    }
}

Test(arith, split_cuts_what_cat_joins)
{
    static const int dims[] = {1, 2, 2, 1};
    for (size_t k = 0; k < 4; k++) {
        probe p = probe_new(&cases[10 + k], 1);
        cr_assert(strstr(p.c->spec, "split"), "%s", p.c->spec);
        shape whole = shape_of(p.rig, &p.rig->layer.in[0]), part[MOST];
        for (int t = 0; t < p.outputs; t++)
            part[t] = shape_of(p.rig, &p.rig->layer.out[t]);
        probe_value(&p);
        probe_back(&p);
        cr_expect(lie_side_by_side(&whole, p.x[0], dims[k], p.outputs, part, p.y), "%s, forward",
                  p.c->spec);
        cr_expect(lie_side_by_side(&whole, p.grad[0], dims[k], p.outputs, part, (void *const *)p.w),
                  "%s, backward", p.c->spec);
        probe_free(&p);
    }
}

Test(arith, an_added_skip_is_filled_up_with_zeros_at_the_bottom_and_the_right)
{
    probe p = probe_new(&cases[15], 1); /* (3, 4, 5) and (3, 5, 3) */
    shape whole = shape_of(p.rig, &p.rig->layer.out[0]);
    cr_assert(whole.dim[2] == 5 && whole.dim[3] == 5);
    probe_value(&p);
    for (int64_t e = 0; e < elements(&whole); e++) {
        float want = 0;
        for (int t = 0; t < 2; t++) {
            shape part = shape_of(p.rig, &p.rig->layer.in[t]);
            int64_t at = moved(e, &whole, &part, 1, 0);
            want += at < 0 ? 0 : ((const float *)p.x[t])[at];
        }
        cr_assert_eq(((const float *)p.y[0])[e], want, "element %d", (int)e);
    }
    probe_free(&p);
}

Test(arith, a_padded_image_lies_where_the_sides_say)
{
    static const arith_case c = {
        "pad left=1 right=2 top=3 value=-4", 1, {{3, {9, 4, 5}}}, 2, false, ""};
    probe p = probe_new(&c, 1);
    shape whole = shape_of(p.rig, &p.rig->layer.out[0]),
          part = shape_of(p.rig, &p.rig->layer.in[0]);
    cr_assert(whole.dim[2] == 7 && whole.dim[3] == 8);
    probe_value(&p);
    for (int64_t e = 0; e < elements(&whole); e++) {
        shape wide = part; /* the part with the columns on its left */
        wide.dim[3] = whole.dim[3];
        int64_t up = moved(e, &whole, &wide, 2, -3);
        int64_t at = up < 0 ? -1 : moved(up, &wide, &part, 3, -1);
        cr_assert_eq(((const float *)p.y[0])[e], at < 0 ? -4 : ((const float *)p.x[0])[at],
                     "element %d", (int)e);
    }
    probe_free(&p);
}

Test(arith, conversions_of_layout_undo_each_other_and_put_channels_last)
{
    static const arith_case last = {"channels_last", 1, {{3, {3, 4, 5}}}, 2, false, ""};
    static const arith_case first = {"channels_first", 1, {{3, {3, 4, 5}}}, 2, false, ""};
    probe p = probe_new(&last, 1), q = probe_new(&first, 1);
    probe_value(&p);
    const float *x = p.x[0], *y = p.y[0];
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 3; c++)
            for (int at = 0; at < 20; at++)
                cr_assert_eq(y[(n * 20 + at) * 3 + c], x[(n * 3 + c) * 20 + at]);
    memcpy(q.x[0], y, 120 * sizeof *y);
    probe_value(&q);
    cr_expect(test_same(q.y[0], x, 120));
    probe_free(&p);
    probe_free(&q);
}

/* --- skips ------------------------------------------------------------------------------------ */

Test(arith, a_stash_declares_its_skip_as_its_last_output_and_a_pop_as_its_last_input)
{
    static const struct {
        char spec[48];
        int inputs, outputs, stashes, pops;
        bool view;
    } known[] = {
        {"stash name=a ns=b", 1, 2, 1, 0, true},
        {"unstash name=a ns=b", 1, 1, 0, 1, true},
        {"pop name=a ns=b mode=add", 2, 1, 0, 1, false},
        {"combine mode=add", 2, 1, 0, 0, false},
    };
    for (size_t k = 0; k < COUNT(known); k++) {
        arith_case c = {.inputs = known[k].inputs, .in = {{2, {3, 4}}, {2, {3, 4}}}, .rows = 2};
        memcpy(c.spec, known[k].spec, sizeof known[k].spec);
        test_rig *rig = rig_of(&c, 1);
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
        test_rig_free(rig);
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
    static const arith_case add = {
        "pop name=a mode=add", 2, {{3, {3, 4, 5}}, {3, {3, 4, 5}}}, 2, false, ""};
    static const arith_case padded = {
        "pop name=a mode=add pad=1", 2, {{3, {3, 4, 5}}, {3, {3, 4, 4}}}, 2, false, ""};
    static const arith_case cat = {"pop name=a mode=cat", 2, {{1, {3}}, {1, {3}}}, 2, false, ""};
    const arith_case *both[] = {&add, &padded};
    for (int k = 0; k < 2; k++) {
        probe p = probe_new(both[k], 1);
        const void *in[] = {p.x[0], NULL};
        cr_assert_eq(test_rig_forward_tuple(p.rig, in, p.y), GPP_OK);
        cr_expect(test_same(p.y[0], p.x[0], 120), "%s: forward", p.c->spec);
        float *wanted[] = {p.grad[0], NULL};
        test_rig_backward_tuple(p.rig, (const float *const *)p.w, wanted, false);
        cr_expect(test_same(p.grad[0], p.w[0], 120), "%s: backward", p.c->spec);
        probe_free(&p);
    }
    probe p = probe_new(&cat, 1);
    gpp_error err = GPP_ERROR_INIT;
    p.rig->run.err = &err;
    p.rig->run.micro_batch = 3;
    cr_expect_eq(test_rig_forward_tuple(p.rig, (const void *const[]){p.x[0], NULL}, p.y),
                 GPP_EINVAL);
    cr_expect(strstr(err.msg, "absent") && strstr(err.msg, "micro-batch 3"), "%s", err.msg);
    probe_free(&p);
}

/* --- rows ------------------------------------------------------------------------------------- */

Test(arith, outputs_have_the_rows_of_the_inputs)
{
    static const gpp__desc kinds[] = {
        {.rank = 3, .dim = {4, 4, 4}, .batch = 2},
        {.rank = 3, .dim = {4, 4, 4}, .batch = GPP_ROWS_FIXED, .rows = 3},
    };
    const int64_t batch[GPP__BATCHES] = {9, 9, 2, 9};
    for (size_t kind = 0; kind < COUNT(kinds); kind++)
        for (size_t k = 0; k < COUNT(cases); k++) {
            bool images = cases[k].in[0].rank == 3;
            gpp__desc in[MOST];
            test_rig *rig;
            for (int t = 0; t < cases[k].inputs; t++) {
                in[t] = kinds[kind];
                memcpy(in[t].dim, cases[k].in[t].dim, sizeof cases[k].in[t].dim);
            }
            if (!images)
                continue;
            gpp_status status =
                test_rig_new_tuple(&rig, cases[k].spec, 0, in, cases[k].inputs, batch, 1, NULL);
            cr_assert_eq(status, GPP_OK, "%s", cases[k].spec);
            for (int t = 0; t < rig->layer.out_count; t++) {
                cr_expect_eq(rig->layer.out[t].batch, kinds[kind].batch, "%s", cases[k].spec);
                cr_expect_eq(rig->layer.out[t].rows, kinds[kind].rows, "%s", cases[k].spec);
            }
            test_rig_free(rig);
        }
}

/* --- refusals --------------------------------------------------------------------------------- */

typedef struct refusal {
    char spec[64];
    int inputs;
    gpp__desc in[MOST];
    gpp_status status;
    char says[64]; /* in the message */
} refusal;

#define F(r, ...)                                                                                  \
    {                                                                                              \
        .rank = r, .dim = { __VA_ARGS__ }                                                          \
    }
#define I(r, ...)                                                                                  \
    {                                                                                              \
        .dtype = GPP_I64, .rank = r, .dim = { __VA_ARGS__ }                                        \
    }
#define OTHER(r, ...)                                                                              \
    {                                                                                              \
        .rank = r, .dim = {__VA_ARGS__}, .batch = 1                                                \
    }
#define FIXED(n, r, ...)                                                                           \
    {                                                                                              \
        .rank = r, .dim = {__VA_ARGS__}, .batch = GPP_ROWS_FIXED, .rows = n                        \
    }

static const refusal refusals[] = {
    {"add", 1, {F(1, 3)}, GPP_ESHAPE, "takes 2 to 16 tensors, got 1"},
    {"add", 2, {F(1, 3), F(1, 4)}, GPP_ESHAPE, "input 1 is (4), input 0 is (3)"},
    {"add", 2, {F(1, 3), I(1, 3)}, GPP_ESHAPE, "input 1 is int64"},
    {"add", 2, {F(1, 3), OTHER(1, 3)}, GPP_ESHAPE, "rows of different mini-batches"},
    {"add", 2, {FIXED(2, 1, 3), FIXED(3, 1, 3)}, GPP_ESHAPE, "rows of different mini-batches"},
    {"mul", 3, {F(2, 3, 4), F(2, 3, 4), F(1, 12)}, GPP_ESHAPE, "input 2 is (12)"},
    {"cat dim=0", 2, {F(1, 3), F(1, 3)}, GPP_ESHAPE, "dim 0 is the batch"},
    {"cat dim=-2", 2, {F(1, 3), F(1, 3)}, GPP_ESHAPE, "dim -2 is the batch"},
    {"cat dim=2", 2, {F(1, 3), F(1, 3)}, GPP_ESHAPE, "no dim 2 in a sample (3)"},
    {"cat dim=-3", 2, {F(1, 3), F(1, 3)}, GPP_ESHAPE, "no dim -3"},
    {"cat dim=1", 2, {F(2, 3, 4), F(2, 3, 5)}, GPP_ESHAPE, "may differ in dim 1 alone"},
    {"cat dim=1", 2, {F(2, 3, 4), F(1, 3)}, GPP_ESHAPE, "input 1 is (3), input 0 is (3, 4)"},
    {"cat dim=1", 2, {F(0, 0), F(0, 0)}, GPP_ESHAPE, "needs 1 dimension"},
    {"split parts=2", 1, {F(1, 5)}, GPP_ESHAPE, "dim 1 has 5, which is no multiple of parts=2"},
    {"split parts=2 dim=0", 1, {F(1, 4)}, GPP_ESHAPE, "is the batch"},
    {"split", 1, {F(1, 4)}, GPP_EINVAL, "parts is missing"},
    {"split parts=17", 1, {F(1, 17)}, GPP_EINVAL, "parts must be 1 ... 16"},
    {"split parts=2", 2, {F(1, 4), F(1, 4)}, GPP_ESHAPE, "takes 1 tensor, got 2"},
    {"stash", 1, {F(1, 4)}, GPP_EINVAL, "name is missing"},
    {"stash name=a", 2, {F(1, 4), F(1, 4)}, GPP_ESHAPE, "takes 1 tensor, got 2"},
    {"unstash name=a", 2, {F(1, 4), F(1, 4)}, GPP_ESHAPE, "takes 0 tensors, got 1"},
    {"pop name=a", 2, {F(1, 4), F(1, 4)}, GPP_EINVAL, "mode is missing"},
    {"pop mode=add", 2, {F(1, 4), F(1, 4)}, GPP_EINVAL, "name is missing"},
    {"pop name=a mode=add", 3, {F(1, 4), F(1, 4), F(1, 4)}, GPP_ESHAPE, "takes 1 tensor, got 2"},
    {"pop name=a mode=sub", 2, {F(1, 4), F(1, 4)}, GPP_EINVAL, "one of add, cat"},
    {"pop name=a mode=add", 2, {F(1, 4), F(1, 5)}, GPP_ESHAPE, "the popped tensor is (5)"},
    {"pop name=a mode=add", 2, {F(1, 4), I(1, 4)}, GPP_ESHAPE, "the popped tensor is int64"},
    {"pop name=a mode=add", 2, {F(1, 4), OTHER(1, 4)}, GPP_ESHAPE, "different mini-batches"},
    {"pop name=a mode=add pad=1", 2, {F(1, 4), F(1, 5)}, GPP_ESHAPE, "needs equal shapes"},
    {"pop name=a mode=cat", 2, {F(3, 2, 4, 4), F(3, 2, 5, 4)}, GPP_ESHAPE, "or pad=1"},
    {"pop name=a mode=add pad=1", 2, {F(3, 2, 4, 4), F(3, 3, 4, 4)}, GPP_ESHAPE, "equal shapes"},
    {"pop name=a mode=cat dim=0", 2, {F(1, 4), F(1, 5)}, GPP_ESHAPE, "is the batch"},
    {"combine mode=add", 1, {F(1, 4)}, GPP_ESHAPE, "takes 2 tensors, got 1"},
    {"tanh", 1, {I(1, 4)}, GPP_ESHAPE, "takes float32, got int64"},
    {"gelu approximate=erf", 1, {F(1, 4)}, GPP_EINVAL, "one of none, tanh"},
    {"leaky_relu slope=-1", 1, {F(1, 4)}, GPP_EINVAL, "slope"},
    {"elu alpha=-1", 1, {F(1, 4)}, GPP_EINVAL, "alpha"},
    {"softplus beta=0", 1, {F(1, 4)}, GPP_EINVAL, "beta"},
    {"hardtanh min=1 max=1", 1, {F(1, 4)}, GPP_EINVAL, "min=1 must be below max=1"},
    {"adaptive_avgpool2d", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "out is missing"},
    {"adaptive_avgpool2d out=0", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "out must be 1"},
    {"adaptive_avgpool2d out=1", 1, {F(2, 4, 4)}, GPP_ESHAPE, "expected 3"},
    {"avgpool2d kernel=3 padding=2", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "padding 2 is more than half"},
    {"avgpool2d kernel=5", 1, {F(3, 2, 6, 4)}, GPP_ESHAPE, "width 4, kernel 5 needs at least 5"},
    {"upsample", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "none of scale and size"},
    {"upsample scale=2 size=3", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "each of scale and size"},
    {"upsample scale=2 align_corners=1", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "mode=bilinear"},
    {"upsample scale=1.5", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "scale"},
    {"upsample scale=32767", 1, {F(3, 2, 99999, 4)}, GPP_ESHAPE, "too large"},
    {"pad left=-1", 1, {F(3, 2, 4, 4)}, GPP_EINVAL, "left"},
    {"softmax dim=0", 1, {F(1, 4)}, GPP_ESHAPE, "is the batch"},
    {"softmax", 1, {F(0, 0)}, GPP_ESHAPE, "0 dimensions"},
    {"log_softmax dim=2", 1, {F(1, 4)}, GPP_ESHAPE, "no dim 2"},
    {"dropout2d", 1, {F(1, 4)}, GPP_ESHAPE, "expected 3"},
    {"conv_transpose2d out=4 kernel=2 groups=3", 1, {F(3, 3, 4, 4)}, GPP_ESHAPE, "4 output"},
    {"conv_transpose2d out=4 kernel=2 output_padding=1",
     1,
     {F(3, 3, 4, 4)},
     GPP_EINVAL,
     "output_padding 1 must be below stride 1"},
    {"conv_transpose2d out=4 kernel=2 padding=4",
     1,
     {F(3, 3, 4, 9)},
     GPP_ESHAPE,
     "height 4 becomes -3"},
    {"channels_last", 1, {F(2, 3, 4)}, GPP_ESHAPE, "expected 3"},
    {"fork outputs=17", 1, {F(2, 3, 4)}, GPP_EINVAL, "outputs must be 1 ... 16"},
};

Test(arith, what_does_not_fit_is_refused_with_what_was_found_and_where)
{
    for (size_t k = 0; k < COUNT(refusals); k++) {
        const refusal *r = &refusals[k];
        const int64_t batch[GPP__BATCHES] = {2, 2};
        gpp_error err = GPP_ERROR_INIT;
        test_rig *rig;
        gpp_status status = test_rig_new_tuple(&rig, r->spec, 5, r->in, r->inputs, batch, 1, &err);
        cr_expect_eq(status, r->status, "%s: %d, %s", r->spec, status, err.msg);
        cr_expect(strstr(err.msg, r->says), "%s: \"%s\" does not say \"%s\"", r->spec, err.msg,
                  r->says);
        /* What attributes alone tell is said before there is a layer. */
        cr_expect(err.layer == 5 ? strstr(err.msg, "(layer 5, \"layer\")") != NULL
                                 : err.layer == -1 && status == GPP_EINVAL,
                  "%s: layer %d, %s", r->spec, err.layer, err.msg);
        test_rig_free(rig);
    }
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
        {"gelu", gelu_in_double, -12.9, 12, 1e-6},
        {"gelu", gelu_in_double, -1e-3, 1e-3, 1e-6},
        {"gelu approximate=tanh", gelu_tanh_in_double, -5, 12, 5e-6},
        {"tanh", tanh, -12, 12, 4e-7},
        {"tanh", tanh, -1e-3, 1e-3, 4e-7},
        {"sigmoid", sigmoid_in_double, -87, 20, 4e-7},
        {"silu", silu_in_double, -80, 20, 4e-7},
        {"softplus", softplus_in_double, -80, 30, 5e-7},
        {"elu", elu_in_double, -30, 3, 4e-7},
        {"elu", elu_in_double, -1e-3, 1e-3, 4e-7},
    };
    enum { N = 30011 };
    static float x[N], y[N];
    for (size_t k = 0; k < COUNT(known); k++) {
        arith_case c = {.inputs = 1, .in = {{1, {N}}}, .rows = 1};
        memcpy(c.spec, known[k].spec, sizeof known[k].spec);
        test_rig *rig = rig_of(&c, 1);
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
        cr_expect(most <= known[k].most, "%s: error %.3g at %g", c.spec, most, at);
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
        arith_case c = {.inputs = 1, .in = {{1, {6}}}, .rows = 1};
        memcpy(c.spec, known[k].spec, sizeof known[k].spec);
        test_rig *rig = rig_of(&c, 1);
        float y[6];
        test_rig_forward(rig, x, y);
        for (int e = 0; e < 5; e++) /* infinity times zero is a NaN, of either sign */
            cr_expect(y[e] == known[k].at[e] || isnan(known[k].at[e]) ||
                          fabsf(y[e] - known[k].at[e]) < 1e-6f,
                      "%s(%g) is %g", c.spec, (double)x[e], (double)y[e]);
        cr_expect(isnan(y[5]), "%s(NaN) is %g", c.spec, (double)y[5]);
        test_rig_free(rig);
    }
}

Test(arith, softmax_of_huge_and_of_infinitely_small_scores_is_finite_and_sums_to_1)
{
    static const float x[] = {-1e4f, 1e4f, 1e4f, -INFINITY};
    static const char *const specs[] = {"softmax", "softmax dim=1"};
    float y[4], columns[12], z[12];
    arith_case c = {.inputs = 1, .in = {{1, {4}}}, .rows = 1};
    memcpy(c.spec, "softmax", 8);
    test_rig *rig = rig_of(&c, 1);
    test_rig_forward(rig, x, y);
    cr_expect(y[0] == 0 && y[1] == 0.5f && y[2] == 0.5f && y[3] == 0, "%s", specs[0]);
    test_rig_free(rig);
    arith_case strided = {.inputs = 1, .in = {{2, {4, 3}}}, .rows = 1};
    memcpy(strided.spec, specs[1], strlen(specs[1]) + 1);
    rig = rig_of(&strided, 1);
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
        arith_case c = {.inputs = 1, .in = {{3, {1, 1, in}}}, .rows = 1};
        snprintf(c.spec, sizeof c.spec, "upsample size=1,%d", (int)out);
        probe p = probe_new(&c, 1);
        probe_value(&p);
        for (int64_t o = 0; o < out; o++)
            cr_expect_eq(((const float *)p.y[0])[o], ((const float *)p.x[0])[o * in / out],
                         "%s of %d: %d", c.spec, (int)in, (int)o);
        probe_free(&p);
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
        arith_case c = {.inputs = 1, .in = {{3, {11, 13, 9}}}, .rows = 2};
        memcpy(c.spec, specs[k], strlen(specs[k]) + 1);
        probe p = probe_new(&c, 1);
        test_fill(p.x[0], test_rig_input(p.rig, 0), 0, 3, 3);
        probe_value(&p);
        for (int64_t e = 0; e < test_rig_output(p.rig, 0); e++) /* a few roundings */
            cr_assert_float_eq(((const float *)p.y[0])[e], 3, 2e-6, "%s", specs[k]);
        probe_free(&p);
    }
}

Test(arith, dropout2d_drops_whole_channels_by_the_documented_numbers)
{
    enum { C = 45, PIXELS = 6, ROWS = 5, ROW0 = 3, ID = 9 };
    arith_case c = {"dropout2d p=0.25", 1, {{3, {C, 2, 3}}}, ROWS, false, ""};
    probe p = probe_new(&c, 1);
    p.rig->layer.id = ID;
    p.rig->run.row0[0] = ROW0;
    test_fill(p.x[0], C * PIXELS * ROWS, 0, 1, 1);
    probe_value(&p);
    for (uint64_t k = 0; k < C * ROWS; k++) {
        uint64_t e = ROW0 * C + k;
        gpp__philox r = gpp__philox4x32(1, (uint64_t)GPP__STREAM_DROPOUT << 56 | (uint64_t)ID << 32,
                                        e / 32 * 8 + e % 8);
        float want = gpp__philox_uniform(r.v[e % 32 / 8]) >= 0.25f ? 1 / 0.75f : 0;
        for (int at = 0; at < PIXELS; at++)
            cr_assert_eq(((const float *)p.y[0])[k * PIXELS + (uint64_t)at], want, "channel %d",
                         (int)k);
    }
    probe_free(&p);
}

/* --- what operators share --------------------------------------------------------------------- */

Test(arith, descriptions_are_equal_when_type_shape_and_rows_are)
{
    static const gpp__desc a = FIXED(3, 2, 4, 5), same = FIXED(3, 2, 4, 5);
    static const gpp__desc others[] = {FIXED(2, 2, 4, 5), F(2, 4, 5), FIXED(3, 2, 4, 6),
                                       FIXED(3, 1, 4), OTHER(2, 4, 5)};
    gpp__desc integer = a, free_rows = F(1, 4), unused = F(1, 4, 9);
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
