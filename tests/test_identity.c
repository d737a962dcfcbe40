/*
 * Invariant 2: for the same chunks, results are identical bit for bit whatever the number of
 * partitions, the balance, the devices and the checkpoint mode. And invariant 1: they equal the
 * unpartitioned model's.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(identity, .init = test_keep_runtime, .fini = test_release_runtime);

static const int64_t uneven[] = {10, 10, 7, 10, 3};

static test_trace trace_of(const test_model *m, gpp_pipe_options o, int steps, const int64_t *rows)
{
    gpp_pipe *pipe = test_pipe_new(m, &o);
    test_trace t = {0};
    test_train(pipe, steps, rows, &t);
    gpp_pipe_free(pipe);
    return t;
}

static void expect_identical(const test_model *m, int chunks, bool ascending)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = chunks;
    o.seed = 7;
    o.ascending_backward = ascending;
    o.checkpoint = GPP_CHECKPOINT_NEVER;
    test_trace one = trace_of(m, o, 5, uneven);
    for (o.partitions = 1; o.partitions <= 4; o.partitions++)
        for (int mode = 0; mode < 3; mode++) {
            o.checkpoint = (gpp_checkpoint)mode;
            test_trace t = trace_of(m, o, 5, uneven);
            long at = test_trace_differs(&one, &t);
            cr_expect_eq(at, -1, "%s, chunks %d: %d partitions, %s: float %ld of %zu differs",
                         m->why, chunks, o.partitions, gpp_checkpoint_name(o.checkpoint), at,
                         one.count);
            test_trace_free(&t);
        }
    test_trace_free(&one);
}

Test(identity, five_steps_have_the_same_bits_for_every_cut_and_mode)
{
    for (const test_model *m = test_models; m->text; m++)
        expect_identical(m, 4, false);
}

Test(identity, backwards_by_ascending_micro_batch_too)
{
    expect_identical(&test_models[0], 4, true);
}

Test(identity, one_micro_batch_too)
{
    expect_identical(&test_models[0], 1, false);
}

Test(identity, hand_made_balances_have_the_same_bits)
{
    static const int balance[][4] = {{1, 10, 0}, {10, 1, 0},   {5, 6, 0},   {2, 1, 8},
                                     {6, 4, 1},  {1, 1, 1, 8}, {3, 3, 1, 4}};
    static const int parts[] = {2, 2, 2, 3, 3, 4, 4};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 3;
    o.partitions = 1;
    test_trace one = trace_of(&test_models[0], o, 2, uneven);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        o.partitions = parts[k];
        o.balance = balance[k];
        test_trace t = trace_of(&test_models[0], o, 2, uneven);
        cr_expect_eq(test_trace_differs(&one, &t), -1, "balance %zu", k);
        test_trace_free(&t);
    }
    test_trace_free(&one);
}

Test(identity, devices_with_more_or_fewer_threads_have_the_same_bits)
{
    static const char *const shared[] = {"cpu", "cpu", "cpu"}, *const first[] = {"cpu:0", "cpu:0",
                                                                                 "cpu:0"};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 2;
    o.partitions = 3;
    o.device_count = 3;
    o.devices = first;
    test_trace one = trace_of(&test_models[0], o, 2, uneven);
    o.devices = shared;
    test_trace all = trace_of(&test_models[0], o, 2, uneven);
    cr_expect_eq(test_trace_differs(&one, &all), -1);
    test_trace_free(&one);
    test_trace_free(&all);
}

/* Without dropout a run in one piece is the reference: 1e-5 of the largest value is what float32
 * sums of another grouping may differ by. */
Test(identity, results_equal_the_model_in_one_piece)
{
    static const test_model m = {
        "no dropout",
        "conv2d out=8 kernel=3 padding=1; relu; maxpool2d kernel=2; flatten; linear out=20; "
        "relu; linear out=10",
        3,
        {1, 8, 8},
        "cross_entropy reduction=mean"};
    for (int64_t rows = 1; rows <= 13; rows += 3)
        for (int chunks = 1; chunks <= 16; chunks += 5) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            test_trace whole = trace_of(&m, o, 1, &rows);
            o.partitions = 3;
            o.chunks = chunks;
            test_trace cut = trace_of(&m, o, 1, &rows);
            cr_assert_eq(whole.count, cut.count);
            double loss[2];
            memcpy(&loss[0], whole.value, sizeof *loss);
            memcpy(&loss[1], cut.value, sizeof *loss);
            cr_expect(fabs(loss[0] - loss[1]) <= 1e-6 * fabs(loss[0]),
                      "rows %d chunks %d: loss %g and %g", (int)rows, chunks, loss[0], loss[1]);
            double d = test_distance(cut.value + 2, whole.value + 2, (int64_t)whole.count - 2);
            cr_expect(d <= 1e-5, "rows %d chunks %d: distance %g", (int)rows, chunks, d);
            test_trace_free(&whole);
            test_trace_free(&cut);
        }
}

Test(identity, forward_and_backward_give_the_gradients_of_the_same_chunks)
{
    const test_model *m = &test_models[2]; /* mse: its gradient is easy to give by hand */
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 4;
    gpp_model *model = test_model_new(m);
    test_trace first = {0};
    for (o.partitions = 1; o.partitions <= 4; o.partitions++)
        for (int mode = 0; mode <= GPP_CHECKPOINT_BUDGET; mode++) {
            gpp_error err = GPP_ERROR_INIT;
            o.checkpoint = (gpp_checkpoint)mode;
            o.activation_limit = 0;
            if (mode == GPP_CHECKPOINT_BUDGET)
                test_tighten(model, &o, 10, 64);
            gpp_pipe *pipe = test_pipe_new(m, &o);
            test_batch b = test_batch_new(pipe, 10, 5);
            cr_assert_eq(gpp_pipe_forward(pipe, &b.x, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
            cr_assert_eq(gpp_pipe_backward(pipe, -1, &b.x, &b.grad_y, &b.grad_x, &err), GPP_OK,
                         "%s", err.msg);
            test_trace t = {0};
            test_trace_add(&t, b.y.data, (size_t)test_tensor_count(&b.y));
            test_trace_add(&t, b.grad_x.data, (size_t)test_tensor_count(&b.grad_x));
            test_trace_grads(&t, pipe);
            if (!first.count)
                first = t;
            cr_expect_eq(test_trace_differs(&first, &t), -1, "%d partitions, mode %d", o.partitions,
                         mode);
            if (first.value != t.value)
                test_trace_free(&t);
            test_batch_free(&b);
            gpp_pipe_free(pipe);
        }
    gpp_model_free(model);
    test_trace_free(&first);
}

/* d loss / d x along a random direction, from grad_x and from two evaluations of the loss. float32
 * outputs of size 1 carry 6e-8; a step of 1e-2 divides that to 1e-5, and the third derivative adds
 * about as much. */
Test(identity, the_input_gradient_is_the_slope_of_the_loss)
{
    static const test_model m = {
        "smooth", "linear out=12; linear out=5; linear out=6", 1, {9}, "mse reduction=sum"};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    o.partitions = 2;
    o.chunks = 3;
    gpp_pipe *pipe = test_pipe_new(&m, &o);
    test_batch b = test_batch_new(pipe, 8, 5), d = test_batch_new(pipe, 8, 9);
    cr_assert_eq(gpp_pipe_forward(pipe, &b.x, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
    float *y = b.y.data, *t = b.target.data, *g = b.grad_y.data, *x = b.x.data;
    for (int64_t k = 0; k < test_tensor_count(&b.y); k++)
        g[k] = 2 * (y[k] - t[k]);
    cr_assert_eq(gpp_pipe_backward(pipe, -1, &b.x, &b.grad_y, &b.grad_x, &err), GPP_OK, "%s",
                 err.msg);
    double slope = test_dot(b.grad_x.data, d.x.data, test_tensor_count(&b.x)), loss[2];
    for (int side = 0; side < 2; side++) {
        for (int64_t k = 0; k < test_tensor_count(&b.x); k++)
            x[k] += (side ? -2e-2f : 1e-2f) * ((float *)d.x.data)[k];
        cr_assert_eq(gpp_pipe_evaluate(pipe, &b.x, &b.target, NULL, &loss[side], &err), GPP_OK,
                     "%s", err.msg);
    }
    cr_expect(fabs((loss[0] - loss[1]) / 2e-2 - slope) <= 1e-3 * fabs(slope),
              "slope %g, gradient %g", (loss[0] - loss[1]) / 2e-2, slope);
    test_batch_free(&b);
    test_batch_free(&d);
    gpp_pipe_free(pipe);
}
