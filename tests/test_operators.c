/*
 * tests/test_operators.c: what must hold for every operator, over the rows of operators.c:
 * reference vectors, central differences, independence of threads and of how rows are cut,
 * gradients that add up, gradients that are not wanted, work in place; and what operators refuse.
 *
 * A property that does not hold for an operator says so where it is checked, with the reason.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/operators.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* Nobody computes anything: one unit of work has nothing to share. */
static bool only_views(const gpp_op *op)
{
    return strcmp(op->name, "stash") == 0 || strcmp(op->name, "unstash") == 0;
}

Test(operators, every_one_has_small_and_large_cases)
{
    for (const gpp_op *const *op = gpp__ops; *op; op++) {
        int small = 0, large = 0;
        EACH_CASE(c)
        if (test_op_is(c, (*op)->name))
            *(c->large ? &large : &small) += 1;
        cr_expect(small > 0 && (large > 0 || only_views(*op)), "%s: %d small and %d large cases",
                  (*op)->name, small, large);
    }
}

Test(operators, reference_vectors_are_met_within_1e_5_of_the_largest_value)
{
    static const test_known known[] = {
        {"linear", 4},
        {"conv2d", 16},
        {"relu", 1},
        {"maxpool2d", 5},
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
        {"batchnorm", 7},
        {"conv_transpose2d", 3},
        {"layernorm", 4},
        {"groupnorm", 1},
        {"instancenorm", 1},
        {"embedding", 2},
        {"self_attention", 5},
    };
    test_expect_vectors("operator", known, COUNT(known));
}

Test(operators, gradients_are_the_slopes_of_central_differences)
{
    EACH_CASE(c)
    {
        /* A padding row is looked up like any other, but has no gradient by definition. */
        if (c->large || strstr(c->spec, "padding_idx"))
            continue;
        test_probe p = test_probe_new(c, 0, 2);
        test_probe_slopes(&p);
        test_probe_free(&p);
    }
}

/* --- threads and cuts ------------------------------------------------------------------------- */

static int64_t record_of(const test_probe *p)
{
    return (int64_t)(p->rig->layer.op->stats_bytes(&p->rig->layer) / sizeof(float));
}

Test(operators, results_do_not_depend_on_threads)
{
    EACH_CASE(c)
    {
        float *one = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            int64_t count;
            test_probe p = test_probe_new(c, 0, threads);
            for (int again = 0; again < (threads == 1 ? 2 : 1); again++) {
                float *all = test_probe_results(&p, &count);
                /* A record of statistics is not of float32. */
                int64_t floats = count - (p.rig->stats ? record_of(&p) : 0);
                for (int64_t k = 0; k < floats && !one && c->values != TEST_SPECIAL; k++)
                    cr_assert(isfinite(all[k]), "%s: element %d of the results is not written",
                              c->spec, (int)k);
                cr_expect(!one || test_same(one, all, count), "%s (%s): %d threads change a bit",
                          c->spec, c->why, threads);
                float *done = one ? all : NULL;
                one = one ? one : all;
                free(done);
            }
            test_probe_free(&p);
        }
        free(one);
    }
}

static float *grad_of(const test_probe *p, int param)
{
    float *grad = test_floats(p->rig->layer.param[param].count);
    test_rig_grad(p->rig, param, grad);
    return grad;
}

/* Rows `begin` ... of a tensor of `all` rows and `count` elements. */
static size_t part_at(int64_t count, int64_t all, int64_t begin)
{
    return (size_t)(count / all * begin);
}

static test_probe part_of(const test_probe *whole, int64_t begin, int64_t end, int threads)
{
    const test_op_case *c = whole->c;
    test_probe p = test_probe_new(c, end - begin, threads);
    p.rig->run.row0[0] = begin;
    for (int t = 0; t < p.inputs; t++) {
        size_t size = gpp_dtype_size(c->in[t].dtype);
        size_t at = part_at(test_rig_input(whole->rig, t), c->rows, begin);
        memcpy(p.x[t], (const char *)whole->x[t] + at * size,
               (size_t)test_rig_input(p.rig, t) * size);
    }
    for (int t = 0; t < p.outputs; t++)
        memcpy(p.w[t], whole->w[t] + part_at(test_rig_output(whole->rig, t), c->rows, begin),
               (size_t)test_rig_output(p.rig, t) * sizeof(float));
    return p;
}

/* Runs rows begin ... end of the whole probe on their own, and compares. Gradients of parameters
 * are added to `sums`, one array for each. */
static void expect_part(const test_probe *whole, int64_t begin, int64_t end, int threads,
                        float *const sums[])
{
    const test_op_case *c = whole->c;
    test_probe p = part_of(whole, begin, end, threads);
    test_probe_value(&p);
    test_probe_back(&p, false);
    for (int t = 0; t < p.outputs; t++) {
        const float *y = whole->y[t];
        y += part_at(test_rig_output(whole->rig, t), c->rows, begin);
        cr_expect(test_same(p.y[t], y, test_rig_output(p.rig, t)),
                  "%s (%s): output %d of rows %d ... %d", c->spec, c->why, t, (int)begin, (int)end);
    }
    for (int t = 0; t < p.inputs; t++) {
        int64_t at = (int64_t)part_at(test_rig_input(whole->rig, t), c->rows, begin);
        cr_expect(!p.grad[t] || test_same(p.grad[t], whole->grad[t] + at, test_rig_input(p.rig, t)),
                  "%s (%s): gradient %d of rows %d ... %d", c->spec, c->why, t, (int)begin,
                  (int)end);
    }
    for (int k = 0; k < p.rig->layer.param_count; k++) {
        float *grad = sums[k] ? grad_of(&p, k) : NULL;
        for (int64_t e = 0; sums[k] && e < p.rig->layer.param[k].count; e++)
            sums[k][e] += grad[e];
        free(grad);
    }
    test_probe_free(&p);
}

/* Sums of up to 1e5 products in another order; relative to the largest value. */
#define ORDER_TOLERANCE 1e-5

static void expect_parts(const test_op_case *c)
{
    /* One row, in which no block of rows is full; about a third of the rows; the rest. */
    int64_t rows = c->rows, third = rows < 6 ? 2 : 1 + rows / 3;
    float *sums[GPP__MAX_PARAMS] = {NULL};
    test_probe whole = test_probe_new(c, 0, 2);
    const gpp__layer *layer = &whole.rig->layer;
    test_probe_value(&whole);
    test_probe_back(&whole, false);
    for (int k = 0; k < layer->param_count; k++)
        if (!layer->param[k].buffer) {
            sums[k] = test_floats(layer->param[k].count);
            test_fill(sums[k], layer->param[k].count, 0, 0, 0);
        }
    expect_part(&whole, 0, 1, 1, sums);
    expect_part(&whole, 1, third, 1, sums);
    if (third < rows)
        expect_part(&whole, third, rows, 2, sums);
    for (int k = 0; k < layer->param_count; k++) {
        float *grad = sums[k] ? grad_of(&whole, k) : NULL;
        double off = grad ? test_distance(sums[k], grad, layer->param[k].count) : 0;
        cr_expect(off <= ORDER_TOLERANCE, "%s (%s): the gradient of %s is off by %.3g", c->spec,
                  c->why, layer->param[k].name, off);
        free(grad);
        free(sums[k]);
    }
    test_probe_free(&whole);
}

Test(operators, what_rows_give_does_not_depend_on_the_rows_beside_them)
{
    EACH_CASE(c)
    /* Batchnorm's statistics are those of the micro-batch: test_norm.c. */
    if (c->rows > 1 && !test_op_is(c, "batchnorm"))
        expect_parts(c);
}

Test(operators, outputs_have_the_rows_of_the_inputs)
{
    static const gpp__desc kinds[] = {{.batch = 2}, {.batch = GPP_ROWS_FIXED, .rows = 3}};
    const int64_t batch[GPP__BATCHES] = {9, 9, 2, 9};
    for (size_t kind = 0; kind < COUNT(kinds); kind++)
        EACH_SMALL_CASE(c)
        {
            gpp__desc in[TEST_OP_INPUTS];
            test_rig *rig;
            for (int t = 0; t < c->inputs; t++) {
                in[t] = c->in[t];
                in[t].batch = kinds[kind].batch;
                in[t].rows = kinds[kind].rows;
            }
            gpp_status status = test_rig_new_tuple(&rig, c->spec, 0, in, c->inputs, batch, 1, NULL);
            cr_assert_eq(status, GPP_OK, "%s", c->spec);
            for (int t = 0; t < rig->layer.out_count; t++) {
                cr_expect_eq(rig->layer.out[t].batch, kinds[kind].batch, "%s", c->spec);
                cr_expect_eq(rig->layer.out[t].rows, kinds[kind].rows, "%s", c->spec);
            }
            test_rig_free(rig);
        }
}

/* --- gradients of parameters ------------------------------------------------------------------ */

/* Sums of equal numbers. Units in another order leave rounding alone; where there is one unit and
 * each sum is added as a whole, twice as much is exact. */
static void expect_times(const test_probe *p, int param, const float *once, int times)
{
    const test_op_case *c = p->c;
    const char *name = p->rig->layer.param[param].name;
    int64_t count = p->rig->layer.param[param].count;
    bool exact = times == 2 && !c->large && (c->bend == TEST_NORMAL || c->bend == TEST_ATTENDS);
    float *sum = grad_of(p, param), *want = test_floats(count);
    for (int64_t e = 0; e < count; e++)
        want[e] = once[e] * (float)times;
    cr_expect(exact ? test_same(sum, want, count) : test_distance(sum, want, count) < 1e-6,
              "%s (%s): %d times %s", c->spec, c->why, times, name);
    free(sum);
    free(want);
}

Test(operators, parameter_gradients_add_up_when_asked_and_are_assigned_otherwise)
{
    EACH_CASE(c)
    {
        test_probe p = test_probe_new(c, 0, 2), fresh = test_probe_new(c, 0, 2);
        float *no_grad[GPP__MAX_TENSORS] = {NULL};
        test_probe_value(&p);
        test_probe_value(&fresh);
        test_rig_backward_tuple(fresh.rig, (const float *const *)fresh.w, no_grad, false);
        test_probe_back(&p, false);
        test_probe_back(&p, false); /* assigned: as if there had been none before */
        for (int times = 1; times <= (c->large ? 2 : 3); times++) {
            for (int k = 0; k < p.rig->layer.param_count; k++) {
                if (p.rig->layer.param[k].buffer)
                    continue;
                float *once = grad_of(&fresh, k);
                expect_times(&p, k, once, times);
                free(once);
            }
            test_probe_back(&p, true);
        }
        test_probe_free(&p);
        test_probe_free(&fresh);
    }
}

Test(operators, parameter_gradients_do_not_depend_on_whether_input_gradients_are_wanted)
{
    EACH_SMALL_CASE(c)
    {
        test_probe p = test_probe_new(c, 0, 1);
        float *none[GPP__MAX_TENSORS] = {NULL};
        test_probe_value(&p);
        for (int k = 0; k < p.rig->layer.param_count; k++) {
            if (p.rig->layer.param[k].buffer)
                continue;
            test_probe_back(&p, false);
            float *with = grad_of(&p, k);
            test_rig_backward_tuple(p.rig, (const float *const *)p.w, none, false);
            float *without = grad_of(&p, k);
            cr_expect(test_same(with, without, p.rig->layer.param[k].count), "%s: %s", c->spec,
                      p.rig->layer.param[k].name);
            free(with);
            free(without);
        }
        test_probe_free(&p);
    }
}

/* --- gradients of inputs ---------------------------------------------------------------------- */

Test(operators, an_input_gradient_does_not_depend_on_which_others_are_wanted)
{
    EACH_SMALL_CASE(c)
    {
        test_probe p = test_probe_new(c, 0, 1), q = test_probe_new(c, 0, 1);
        test_probe_value(&p);
        test_probe_value(&q);
        test_probe_back(&p, false);
        for (int frozen = 0; frozen < 2; frozen++)
            for (int t = 0; t < p.inputs; t++) {
                float *only[GPP__MAX_TENSORS] = {NULL};
                q.rig->frozen = frozen;
                only[t] = q.grad[t];
                test_rig_backward_tuple(q.rig, (const float *const *)q.w, only, false);
                cr_expect(!q.grad[t] || test_same(p.grad[t], q.grad[t], test_rig_input(p.rig, t)),
                          "%s (%s): x%d%s", c->spec, c->why, t, frozen ? ", frozen" : "");
            }
        test_probe_free(&p);
        test_probe_free(&q);
    }
}

/* Zeros and a gradient that is absent are the same. */
Test(operators, absent_gradients_of_some_outputs_are_zeros)
{
    EACH_SMALL_CASE(c)
    {
        test_probe p = test_probe_new(c, 0, 1), q = test_probe_new(c, 0, 1);
        for (int absent = 0; p.outputs > 1 && absent < p.outputs; absent++) {
            const float *some[GPP__MAX_TENSORS];
            int64_t count = test_rig_output(p.rig, absent);
            memcpy(some, q.w, sizeof some);
            some[absent] = NULL;
            test_fill(p.w[absent], count, 0, 0, 0);
            test_probe_value(&p);
            test_probe_value(&q);
            test_probe_back(&p, false);
            test_rig_backward_tuple(q.rig, some, q.grad, false);
            for (int t = 0; t < p.inputs; t++)
                cr_expect(test_same(p.grad[t], q.grad[t], test_rig_input(p.rig, t)),
                          "%s: without output %d", c->spec, absent);
            memcpy(p.w[absent], q.w[absent], (size_t)count * sizeof(float));
        }
        test_probe_free(&p);
        test_probe_free(&q);
    }
}

/* --- outputs ---------------------------------------------------------------------------------- */

Test(operators, a_forward_without_backward_and_a_repeated_one_give_the_same_outputs)
{
    EACH_SMALL_CASE(c)
    {
        test_probe p = test_probe_new(c, 0, 1), q = test_probe_new(c, 0, 1);
        test_probe_value(&p);
        for (int repeated = 0; repeated < 2; repeated++) {
            q.rig->discard = !repeated;
            q.rig->run.recomputing = repeated;
            test_probe_value(&q);
            for (int t = 0; t < p.outputs; t++)
                cr_expect(test_same(p.y[t], q.y[t], test_rig_output(p.rig, t)), "%s (%s): %s",
                          c->spec, c->why, repeated ? "repeated" : "without backward");
        }
        test_probe_free(&p);
        test_probe_free(&q);
    }
}

Test(operators, working_in_place_changes_no_bit)
{
    int tried = 0;
    EACH_CASE(c)
    {
        test_probe p = test_probe_new(c, 0, 2), q = test_probe_new(c, 0, 2);
        q.rig->in_place = q.rig->layer.op->in_place;
        if (q.rig->in_place) {
            int64_t count;
            float *apart = test_probe_results(&p, &count), *over = test_probe_results(&q, &count);
            cr_expect(test_same(apart, over, count), "%s (%s)", c->spec, c->why);
            free(apart);
            free(over);
            tried++;
        }
        test_probe_free(&p);
        test_probe_free(&q);
    }
    cr_expect_geq(tried, 12);
}

/* --- refusals --------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *spec;
    int inputs;
    gpp__desc in[TEST_OP_INPUTS];
    gpp_status status;
    const char *says; /* in the message */
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
    {"linear out=3",
     1,
     {F(3, 64, 7, 7)},
     GPP_ESHAPE,
     "linear (layer 5, \"layer\"): input (64, 7, 7) is an image (channels, height, width); put a "
     "flatten before it"},
    {"conv2d out=8 kernel=5",
     1,
     {F(3, 3, 4, 4)},
     GPP_ESHAPE,
     "conv2d (layer 5, \"layer\"): input is 4 x 4, kernel 5 x 5 needs at least 5 x 5"},
    {"conv2d out=8 kernel=3,2 dilation=2,1 padding=0,1",
     1,
     {F(3, 3, 4, 4)},
     GPP_ESHAPE,
     "conv2d (layer 5, \"layer\"): input is 4 x 4, kernel 3 x 2 needs at least 5 x 1"},
    {"conv2d out=8 kernel=3 groups=2",
     1,
     {F(3, 3, 9, 9)},
     GPP_ESHAPE,
     "conv2d (layer 5, \"layer\"): 2 groups do not divide 3 input channels"},
    {"conv2d out=9 kernel=3 groups=2",
     1,
     {F(3, 4, 9, 9)},
     GPP_ESHAPE,
     "conv2d (layer 5, \"layer\"): 2 groups do not divide 9 output channels"},
    {"conv2d out=8 kernel=3",
     1,
     {F(1, 30)},
     GPP_ESHAPE,
     "conv2d (layer 5, \"layer\"): input (30) has 1 dimensions besides the batch, expected 3"},
    {"maxpool2d kernel=3 padding=2",
     1,
     {F(3, 3, 9, 9)},
     GPP_EINVAL,
     "maxpool2d (layer 5, \"layer\"): padding 2 x 2 is more than half of kernel 3 x 3"},
    {"maxpool2d kernel=4",
     1,
     {F(3, 3, 9, 3)},
     GPP_ESHAPE,
     "maxpool2d (layer 5, \"layer\"): input is 9 x 3, kernel 4 x 4 needs at least 4 x 4"},
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
    {"batchnorm",
     1,
     {F(4, 2, 2, 2, 2)},
     GPP_ESHAPE,
     "batchnorm (layer 5, \"layer\"): input (2, 2, 2, 2) has 4 dimensions besides the batch, "
     "expected 1 to 3"},
    {"batchnorm", 1, {F(0, 0)}, GPP_ESHAPE, "expected 1 to 3"},
    {"batchnorm", 1, {I(1, 4)}, GPP_ESHAPE, "int64"},
    {"batchnorm momentum=2", 1, {F(1, 4)}, GPP_EINVAL, "momentum"},
    {"batchnorm eps=-1", 1, {F(1, 4)}, GPP_EINVAL, "eps"},
    {"batchnorm momentum=some", 1, {F(1, 4)}, GPP_EINVAL, "momentum"},
    {"layernorm", 1, {F(1, 4)}, GPP_EINVAL, "shape"},
    {"layernorm shape=5", 1, {F(2, 5, 4)}, GPP_ESHAPE, "(5, 4) does not end in"},
    {"layernorm shape=3,5,4", 1, {F(2, 5, 4)}, GPP_ESHAPE, "shape (3, 5, 4)"},
    {"layernorm shape=1", 1, {F(0, 0)}, GPP_ESHAPE, "dimensions"},
    {"groupnorm", 1, {F(1, 4)}, GPP_EINVAL, "groups"},
    {"groupnorm groups=4", 1, {F(3, 6, 2, 2)}, GPP_ESHAPE, "4 groups"},
    {"groupnorm groups=0", 1, {F(1, 4)}, GPP_EINVAL, "groups"},
    {"instancenorm", 1, {F(1, 4)}, GPP_ESHAPE, "expected 2 to 3"},
    {"instancenorm", 1, {F(3, 4, 1, 1)}, GPP_ESHAPE, "more than 1 value"},
    {"instancenorm groups=2", 1, {F(2, 4, 4)}, GPP_ENOENT, "groups"},
    {"self_attention heads=3", 1, {F(2, 4, 8)}, GPP_ESHAPE, "3 heads do not divide 8"},
    {"self_attention heads=2", 1, {F(1, 8)}, GPP_ESHAPE, "expected 2"},
    {"self_attention heads=2", 1, {I(2, 4, 8)}, GPP_ESHAPE, "int64"},
    {"self_attention", 1, {F(2, 4, 8)}, GPP_EINVAL, "heads"},
    {"self_attention heads=2 causal=2", 1, {F(2, 4, 8)}, GPP_EINVAL, "causal"},
    {"embedding num=4 dim=2", 1, {F(1, 4)}, GPP_ESHAPE, "got float32"},
    {"embedding num=4 dim=2", 1, {I(7, 1, 1, 1, 1, 1, 1, 1)}, GPP_ESHAPE, "at most 6"},
    {"embedding num=4", 1, {I(1, 4)}, GPP_EINVAL, "dim"},
    {"embedding num=4 dim=2 padding_idx=4", 1, {I(1, 4)}, GPP_EINVAL, "-4 ... 3"},
    {"embedding num=4 dim=2 padding_idx=-5", 1, {I(1, 4)}, GPP_EINVAL, "is -5"},
    {"position_embedding length=3", 1, {F(2, 4, 8)}, GPP_ESHAPE, "4 positions"},
    {"position_embedding length=3", 1, {F(1, 3)}, GPP_ESHAPE, "expected 2"},
    {"position_embedding", 1, {F(2, 4, 8)}, GPP_EINVAL, "length"},
    {"relu", 1, {I(1, 4)}, GPP_ESHAPE, "relu (layer 5, \"layer\"): takes float32, got int64"},
    {"dropout", 1, {I(1, 4)}, GPP_ESHAPE, "dropout (layer 5, \"layer\"): takes float32, got int64"},
    {"flatten", 1, {I(1, 4)}, GPP_ESHAPE, "flatten (layer 5, \"layer\"): takes float32, got int64"},
    {"relu", 2, {F(1, 4), F(1, 4)}, GPP_ESHAPE, "relu (layer 5, \"layer\"): takes 1 tensor, got 2"},
    {"dropout p=-0.1", 1, {F(1, 4)}, GPP_EINVAL, "dropout"},
    {"dropout p=1.01", 1, {F(1, 4)}, GPP_EINVAL, "dropout"},
    {"dropout q=0.1", 1, {F(1, 4)}, GPP_ENOENT, "dropout"},
};

Test(operators, what_does_not_fit_is_refused_with_what_was_found_and_where)
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
                                 : err.layer == -1 && status != GPP_ESHAPE,
                  "%s: layer %d, %s", r->spec, err.layer, err.msg);
        test_rig_free(rig);
    }
}
