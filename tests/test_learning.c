/*
 * How parameters learn: groups, schedules, clipping by the norm of all gradients, updates that do
 * not take place, class weights, single losses, losses of the caller's. Always: the same bits
 * however the model is cut.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(learning, .init = test_keep_runtime, .fini = test_release_runtime);

#define OK(call) cr_assert_eq((call), GPP_OK, "%s", err.msg)

static const test_model convs = {
    "convolutions and linears",
    "conv2d out=6 kernel=3 padding=1 @a; relu; batchnorm @b; conv2d out=4 kernel=3 @c; flatten; "
    "linear out=12 @d; relu; linear out=5 @e",
    3,
    {2, 7, 7},
    "cross_entropy reduction=mean"};

static gpp_pipe *pipe_new(int partitions, gpp_pipe_options o)
{
    o.partitions = partitions;
    o.chunks = 3;
    if (!o.optimizer)
        o.optimizer = "sgd lr=1";
    return test_pipe_new(&convs, &o);
}

static const gpp_pipe_options plain = GPP_PIPE_OPTIONS_INIT;

static void step(gpp_pipe *p, uint64_t seed, gpp_step_stats *stats)
{
    gpp_error err = GPP_ERROR_INIT;
    test_batch b = test_batch_new(p, 8, seed);
    OK(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err));
    if (stats)
        OK(gpp_pipe_last_step(p, stats, &err));
    test_batch_free(&b);
}

static test_trace params_of(gpp_pipe *p)
{
    test_trace t = {0};
    test_trace_params(&t, p);
    return t;
}

/* --- clipping --------------------------------------------------------------------------------- */

static double norm_of(const test_trace *t)
{
    double sum = 0;
    for (size_t k = 0; k < t->count; k++)
        sum += (double)t->value[k] * t->value[k];
    return sqrt(sum);
}

Test(learning, gradients_are_scaled_to_the_norm)
{
    static const double limits[] = {0.01, 0.3, 1000};
    for (int k = 0; k < 3; k++) {
        gpp_step_stats stats;
        gpp_pipe_options o = plain;
        o.clip_norm = limits[k];
        gpp_pipe *p = pipe_new(1, o);
        test_trace before = params_of(p), grads = {0};
        step(p, 1, &stats);
        test_trace after = params_of(p);
        test_trace_grads(&grads, p);
        double norm = norm_of(&grads), factor = limits[k] / (norm + 1e-6);
        cr_expect_float_eq(stats.grad_norm, norm, 1e-9 * norm, "%g and %g", stats.grad_norm, norm);
        for (size_t e = 0; e < before.count; e++)
            before.value[e] -= (float)(fmin(factor, 1) * grads.value[e]);
        cr_expect_leq(test_distance(after.value, before.value, (int64_t)after.count), 1e-6);
        test_trace_free(&before);
        test_trace_free(&after);
        test_trace_free(&grads);
        gpp_pipe_free(p);
    }
}

Test(learning, clipping_gives_the_same_bits_for_every_cut)
{
    gpp_pipe_options o = plain;
    o.clip_norm = 0.1;
    o.optimizer = "sgd lr=0.5 momentum=0.9";
    test_trace one = {0};
    for (int n = 1; n <= 6; n++)
        for (int mode = 0; mode < 3; mode++) {
            o.checkpoint = (gpp_checkpoint)mode;
            gpp_pipe *p = pipe_new(n, o);
            for (uint64_t s = 0; s < 3; s++)
                step(p, s, NULL);
            test_trace t = params_of(p);
            if (!one.count)
                test_trace_params(&one, p);
            cr_expect_eq(test_trace_differs(&one, &t), -1, "%d partitions, mode %d", n, mode);
            test_trace_free(&t);
            gpp_pipe_free(p);
        }
    test_trace_free(&one);
}

/* --- updates that do not take place ----------------------------------------------------------- */

Test(learning, gradients_that_are_not_finite_update_nothing)
{
    for (int n = 1; n <= 4; n++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_step_stats stats;
        gpp_pipe_options o = plain;
        o.skip_nonfinite = true;
        o.optimizer = "adam lr=0.01";
        gpp_pipe *hit = pipe_new(n, o), *spared = pipe_new(n, o);
        for (uint64_t s = 0; s < 4; s++) {
            test_batch b = test_batch_new(hit, 8, 77);
            ((float *)b.x.data)[30] = s % 2 ? INFINITY : NAN;
            test_trace before = params_of(hit);
            OK(gpp_pipe_gradients(hit, &b.x, &b.target, NULL, NULL, NULL, &err));
            OK(gpp_pipe_update(hit, &err));
            OK(gpp_pipe_last_step(hit, &stats, &err));
            cr_expect(stats.skipped && !isfinite(stats.grad_norm));
            test_trace after = params_of(hit);
            cr_expect_eq(test_trace_differs(&before, &after), -1);
            hit->steps = spared->steps;
            step(hit, s, &stats);
            cr_expect_not(stats.skipped);
            step(spared, s, NULL);
            test_trace_free(&before);
            test_trace_free(&after);
            test_batch_free(&b);
        }
        test_trace a = params_of(hit), b = params_of(spared);
        cr_expect_eq(test_trace_differs(&a, &b), -1, "%d partitions", n);
        test_trace_free(&a);
        test_trace_free(&b);
        gpp_pipe_free(hit);
        gpp_pipe_free(spared);
    }
}

/* --- groups and schedules --------------------------------------------------------------------- */

static float *weight_of(gpp_pipe *p, const char *name, int64_t *count)
{
    gpp_parameter_info info = {0};
    for (int k = 0; k < gpp_pipe_parameters(p); k++) {
        gpp_pipe_parameter(p, k, &info, NULL);
        if (!strcmp(info.name, name))
            break;
    }
    float *value = test_room((size_t)info.count * sizeof *value);
    cr_assert_eq(gpp_pipe_get(p, name, value, info.count, NULL), GPP_OK, "%s", name);
    *count = info.count;
    return value;
}

/* Change of a parameter in one step, as a multiple of its gradient. */
static double slope(gpp_pipe *p, const char *name, uint64_t seed)
{
    int64_t count;
    float *before = weight_of(p, name, &count);
    step(p, seed, NULL);
    float *after = weight_of(p, name, &count), *grad = test_room((size_t)count * sizeof *grad);
    cr_assert_eq(gpp_pipe_gradient(p, name, grad, count, NULL), GPP_OK);
    for (int64_t k = 0; k < count; k++)
        after[k] = before[k] - after[k];
    double s = test_dot(after, grad, count) / test_dot(grad, grad, count);
    free(before);
    free(after);
    free(grad);
    return s;
}

Test(learning, groups_have_rates_of_their_own)
{
    for (int n = 1; n <= 3; n++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe_options o = plain;
        o.optimizer = "sgd lr=0.1";
        gpp_pipe *p = pipe_new(n, o);
        OK(gpp_pipe_set_group(p, "a", 0.02, NAN, &err));
        OK(gpp_pipe_set_group(p, "d.weight", 0, NAN, &err));
        /* differences of float32 numbers of size 0.3: 1e-8 of 1e-3 */
        cr_expect_float_eq(slope(p, "a.weight", 1), 0.02, 1e-5);
        cr_expect_float_eq(slope(p, "d.weight", 2), 0, 1e-9);
        cr_expect_float_eq(slope(p, "d.bias", 3), 0.1, 1e-4);
        OK(gpp_pipe_set_lr(p, 0.2, &err));
        cr_expect_float_eq(slope(p, "e.weight", 4), 0.2, 1e-4);
        cr_expect_float_eq(slope(p, "a.weight", 5), 0.02, 1e-5);
        OK(gpp_pipe_set_group(p, "a", NAN, NAN, &err));
        cr_expect_float_eq(slope(p, "a.weight", 6), 0.2, 1e-4);
        cr_expect_eq(gpp_pipe_set_group(p, "nobody", 1, 1, NULL), GPP_ENOENT);
        cr_expect_eq(gpp_pipe_set_group(p, "a", -1, 1, NULL), GPP_EINVAL);
        cr_expect_eq(gpp_pipe_set_group(p, "a", 1, INFINITY, NULL), GPP_EINVAL);
        cr_expect_eq(gpp_pipe_set_group(NULL, "a", 1, 1, NULL), GPP_EINVAL);
        gpp_pipe_free(p);
    }
}

Test(learning, a_group_may_decay_by_itself)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain;
    o.optimizer = "sgd lr=0.1";
    gpp_pipe *p = pipe_new(2, o), *q = pipe_new(2, o);
    int64_t count;
    float *w = weight_of(p, "c.weight", &count);
    OK(gpp_pipe_set_group(p, "c", NAN, 0.5, &err));
    step(p, 1, NULL);
    step(q, 1, NULL);
    float *decayed = weight_of(p, "c.weight", &count), *kept = weight_of(q, "c.weight", &count);
    for (int64_t k = 0; k < count; k++)
        cr_expect_float_eq(decayed[k], kept[k] - 0.1f * 0.5f * w[k], 1e-7f);
    free(w);
    free(decayed);
    free(kept);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

Test(learning, schedules_count_updates)
{
    gpp_pipe_options o = plain;
    o.optimizer = "sgd lr=0.1";
    o.lr_schedule = "step size=2 gamma=0.1";
    gpp_pipe *p = pipe_new(2, o);
    static const double rates[] = {0.1, 0.1, 0.01, 0.01, 0.001};
    for (uint64_t s = 0; s < 5; s++) {
        gpp_step_stats stats;
        step(p, s, &stats);
        cr_expect_float_eq(stats.lr, rates[s], 1e-12, "update %d: %g", (int)s, stats.lr);
    }
    gpp_pipe_free(p);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = test_model_new(&convs);
    o.lr_schedule = "staircase";
    cr_expect_neq(gpp_pipe_new(&p, m, &o, &err), GPP_OK);
    cr_expect(strstr(err.msg, "staircase"), "%s", err.msg);
    gpp_model_free(m);
}

/* A parameter that learns later counts its own updates: Adam's bias correction begins anew. */
Test(learning, every_parameter_counts_its_own_updates)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain;
    o.optimizer = "adam lr=0.01";
    gpp_pipe *p = pipe_new(2, o);
    OK(gpp_pipe_freeze(p, "e", true, &err));
    for (uint64_t s = 0; s < 5; s++)
        step(p, s, NULL);
    OK(gpp_pipe_freeze(p, "e", false, &err));
    int64_t count;
    float *before = weight_of(p, "e.bias", &count);
    step(p, 6, NULL);
    float *after = weight_of(p, "e.bias", &count);
    for (int64_t k = 0; k < count; k++) /* the first update of Adam is lr · sign(g) */
        cr_expect_float_eq(fabsf(after[k] - before[k]), 0.01f, 1e-5f);
    free(before);
    free(after);
    gpp_pipe_free(p);
}

/* With one and the same gradient every update of Adam is lr · sign(g), if its number is right. */
Test(learning, updates_are_counted)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = plain;
    o.optimizer = "adam lr=0.01";
    gpp_pipe *p = pipe_new(2, o);
    test_batch b = test_batch_new(p, 8, 1);
    OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err));
    int64_t count;
    float *before = weight_of(p, "e.bias", &count);
    for (int t = 1; t <= 3; t++) {
        OK(gpp_pipe_update(p, &err));
        float *now = weight_of(p, "e.bias", &count);
        for (int64_t k = 0; k < count; k++)
            cr_expect_float_eq(fabsf(now[k] - before[k]), 0.01f * (float)t, 1e-5f, "update %d", t);
        free(now);
    }
    free(before);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

/* --- losses ----------------------------------------------------------------------------------- */

static gpp_status half_target(const gpp_shape *y, gpp_shape *target, void *user, gpp_error *err)
{
    (void)user;
    (void)err;
    *target = *y;
    return GPP_OK;
}

/* Half the mean squared error. */
static gpp_status half_run(const gpp_loss_call *c, double *value)
{
    const float *y = c->y.data, *t = c->target.data;
    float *g = c->grad_y.data;
    int64_t count = test_tensor_count(&c->y), row = c->y.dim[0] ? count / c->y.dim[0] : 1;
    double divisor = (double)(c->batch_rows * row);
    if (*(int *)c->user && c->micro_batch == 1)
        return GPP_EKERNEL;
    *value = 0;
    for (int64_t k = 0; k < count; k++) {
        *value += 0.5 * (y[k] - t[k]) * (y[k] - t[k]) / divisor;
        if (g)
            g[k] = (float)((y[k] - t[k]) / divisor);
    }
    return GPP_OK;
}

Test(learning, a_loss_of_the_callers_is_a_loss)
{
    static const test_model m = {
        "linears", "linear out=9 @a; tanh; linear out=4 @b", 1, {6}, "mse reduction=mean"};
    int fails = 0;
    gpp_loss_function half = {
        .name = "half", .target = half_target, .run = half_run, .user = &fails};
    for (int n = 1; n <= 3; n++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_new(&m);
        gpp_pipe_options o = plain;
        gpp_pipe *p, *q;
        o.partitions = n;
        o.chunks = 3;
        o.optimizer = "sgd lr=0.1";
        o.loss = m.loss;
        OK(gpp_pipe_new(&q, model, &o, &err));
        o.loss_function = &half;
        cr_expect_eq(gpp_pipe_new(&p, model, &o, NULL), GPP_EINVAL, "two losses");
        o.loss = NULL;
        OK(gpp_pipe_new(&p, model, &o, &err));
        test_batch b = test_batch_new(q, 7, 1);
        double mine, theirs;
        OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, &mine, &err));
        OK(gpp_pipe_gradients(q, &b.x, &b.target, NULL, NULL, &theirs, &err));
        cr_expect_float_eq(mine, theirs / 2, 1e-6 * theirs); /* differences in float32 */
        float g[54], h[54];
        OK(gpp_pipe_gradient(p, "a.weight", g, 54, &err));
        OK(gpp_pipe_gradient(q, "a.weight", h, 54, &err));
        for (int k = 0; k < 54; k++)
            h[k] /= 2;
        cr_expect_leq(test_distance(g, h, 54), 1e-6);
        test_trace before = params_of(p);
        fails = 1;
        cr_expect_eq(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err), GPP_EKERNEL);
        cr_expect_eq(err.micro_batch, 1);
        fails = 0;
        test_trace after = params_of(p);
        cr_expect_eq(test_trace_differs(&before, &after), -1);
        gpp_error_clear(&err);
        OK(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err));
        test_trace_free(&before);
        test_trace_free(&after);
        test_batch_free(&b);
        gpp_pipe_free(p);
        gpp_pipe_free(q);
        gpp_model_free(model);
    }
}

Test(learning, single_losses_are_given_on_request)
{
    gpp_error err = GPP_ERROR_INIT;
    float each[8];
    gpp_tensor room = {each, GPP_F32, 1, {8}};
    for (int n = 1; n <= 3; n++) {
        gpp_pipe *p = pipe_new(n, plain);
        test_batch b = test_batch_new(p, 8, 1);
        double loss, sum = 0;
        OK(gpp_pipe_keep_losses(p, &room, &err));
        OK(gpp_pipe_evaluate(p, &b.x, &b.target, NULL, &loss, &err));
        for (int k = 0; k < 8; k++)
            sum += each[k];
        cr_expect_float_eq(sum / 8, loss, 1e-6);
        test_batch few = test_batch_new(p, 5, 1);
        cr_expect_eq(gpp_pipe_evaluate(p, &few.x, &few.target, NULL, &loss, NULL), GPP_ESHAPE);
        OK(gpp_pipe_keep_losses(p, NULL, &err));
        OK(gpp_pipe_evaluate(p, &few.x, &few.target, NULL, &loss, &err));
        test_batch_free(&b);
        test_batch_free(&few);
        gpp_pipe_free(p);
    }
}

/* Micro-batches in which some targets do not count: the divisor is the mini-batch's. */
Test(learning, weights_and_ignored_targets_make_one_divisor_for_all_micro_batches)
{
    static const test_model m = {"linears", "linear out=5", 1, {6}, NULL};
    static const float weights[5] = {0.5f, 2, 1, 0.25f, 3};
    double whole = 0;
    for (int chunks = 1; chunks <= 8; chunks++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *p;
        gpp_model *model = test_model_new(&m);
        gpp_pipe_options o = plain;
        o.chunks = chunks;
        o.loss = "cross_entropy ignore_index=2";
        o.class_weights = weights;
        o.class_weight_count = 4;
        cr_expect_eq(gpp_pipe_new(&p, model, &o, NULL), GPP_ESHAPE, "five classes, four weights");
        o.class_weight_count = 5;
        OK(gpp_pipe_new(&p, model, &o, &err));
        test_batch b = test_batch_new(p, 8, 1);
        double loss;
        OK(gpp_pipe_evaluate(p, &b.x, &b.target, NULL, &loss, &err));
        whole = chunks == 1 ? loss : whole;
        cr_expect_float_eq(loss, whole, 1e-6 * whole, "%d chunks: %g and %g", chunks, loss, whole);
        test_batch_free(&b);
        gpp_pipe_free(p);
        gpp_model_free(model);
    }
}
