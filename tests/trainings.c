/* tests/trainings.c: see trainings.h. */
#include "tests/trainings.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

const test_model test_skips = {"skips",
                               "conv2d out=4 kernel=3 padding=1; batchnorm; relu; stash name=a; "
                               "conv2d out=4 kernel=3 padding=1; "
                               "stash name=b; relu; dropout p=0.3; pop name=b mode=add; conv2d "
                               "out=4 kernel=3 padding=1; relu; "
                               "pop name=a mode=cat; conv2d out=3 kernel=1",
                               3,
                               {2, 8, 8},
                               "mse"};
const gpp_checkpoint test_modes[TEST_MODES] = {GPP_CHECKPOINT_EXCEPT_LAST, GPP_CHECKPOINT_ALWAYS,
                                               GPP_CHECKPOINT_NEVER};

void test_result_free(test_result *r)
{
    test_trace_free(&r->common);
    test_trace_free(&r->outputs);
}

void test_must(gpp_status status, const gpp_error *err)
{
    cr_assert_eq(status, GPP_OK, "%s", err->msg);
}

void test_result_add(test_result *r, double value)
{
    float halves[2];
    memcpy(halves, &value, sizeof value);
    test_trace_add(&r->common, halves, 2);
}

void test_steps(gpp_pipe *pipe, test_result *r)
{
    enum { STEPS = 3 };
    static const int64_t rows[STEPS] = {11, 12, 5};
    for (int s = 0; s < STEPS; s++) {
        test_batch b = test_batch_new(pipe, rows[s], 100 + (uint64_t)s);
        gpp_error err = GPP_ERROR_INIT;
        double loss = 0;
        cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), GPP_OK, "%s",
                     err.msg);
        test_result_add(r, loss);
        test_trace_add(&r->outputs, b.y.data, (size_t)test_tensor_count(&b.y));
        test_trace_grads(&r->common, pipe);
        test_trace_params(&r->common, pipe);
        test_batch_free(&b);
    }
}

void test_halves(gpp_pipe *pipe, test_result *r)
{
    gpp_error err = GPP_ERROR_INIT;
    test_batch a = test_batch_new(pipe, 7, 1), b = test_batch_new(pipe, 9, 2);
    int first, second;
    double loss;
    test_must(gpp_pipe_forward(pipe, &a.x, &a.y, &first, &err), &err);
    test_must(gpp_pipe_forward(pipe, &b.x, &b.y, &second, &err), &err);
    test_must(gpp_pipe_evaluate(pipe, &b.x, &b.target, NULL, &loss, &err), &err);
    test_result_add(r, loss);
    test_must(gpp_pipe_accumulate(pipe, true, &err), &err);
    test_must(gpp_pipe_backward(pipe, first, &a.x, &a.grad_y, &a.grad_x, &err), &err);
    test_must(gpp_pipe_backward(pipe, second, &b.x, &b.grad_y, NULL, &err), &err);
    test_trace_add(&r->outputs, a.y.data, (size_t)test_tensor_count(&a.y));
    test_trace_add(&r->outputs, b.y.data, (size_t)test_tensor_count(&b.y));
    test_trace_grads(&r->common, pipe);
    test_must(gpp_pipe_gradients(pipe, &a.x, &a.target, NULL, NULL, &loss, &err), &err);
    test_result_add(r, loss);
    test_must(gpp_pipe_update(pipe, &err), &err);
    test_trace_grads(&r->common, pipe);
    test_trace_params(&r->common, pipe);
    test_batch_free(&a);
    test_batch_free(&b);
}

void test_submitted(gpp_pipe *pipe, test_result *r)
{
    enum { SUBMITTED = 9, AT_ONCE = 3 };
    gpp_error err = GPP_ERROR_INIT;
    test_batch b[SUBMITTED];
    for (int k = 0; k < SUBMITTED; k++)
        b[k] = test_batch_new(pipe, k == 5 ? 6 : 10, (uint64_t)k);
    for (int k = 0; k < SUBMITTED + AT_ONCE; k++) {
        double loss = 0;
        gpp_step_stats stats;
        if (k >= AT_ONCE) {
            test_must(gpp_pipe_wait(pipe, &loss, &err), &err);
            test_result_add(r, loss);
            test_must(gpp_pipe_last_step(pipe, &stats, &err), &err);
            test_result_add(r, stats.lr);
        }
        if (k < SUBMITTED && k % 4 == 2)
            test_must(gpp_pipe_submit_evaluation(pipe, &b[k].x, &b[k].target, &b[k].y, &err), &err);
        else if (k < SUBMITTED)
            test_must(gpp_pipe_submit(pipe, &b[k].x, &b[k].target, &b[k].y, &err), &err);
    }
    for (int k = 0; k < SUBMITTED; k++) {
        test_trace_add(&r->outputs, b[k].y.data, (size_t)test_tensor_count(&b[k].y));
        test_batch_free(&b[k]);
    }
    test_trace_params(&r->common, pipe);
}

void test_settings(gpp_pipe *pipe, test_result *r)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_parameter_info info;
    for (int k = 0; k < gpp_pipe_parameters(pipe); k += 2) {
        test_must(gpp_pipe_parameter(pipe, k, &info, &err), &err);
        float *value = malloc((size_t)info.count * sizeof *value);
        test_fill(value, info.count, (uint64_t)k, -0.3, 0.3);
        test_must(gpp_pipe_set(pipe, info.name, value, info.count, &err), &err);
        free(value);
    }
    test_steps(pipe, r);
    test_must(gpp_pipe_freeze(pipe, info.name, true, &err), &err);
    test_must(gpp_pipe_set_lr(pipe, 0.02, &err), &err);
    test_must(gpp_pipe_set_training(pipe, false, &err), &err);
    for (int k = 0; k < gpp_pipe_buffers(pipe); k++) {
        gpp_buffer_info buffer;
        test_must(gpp_pipe_buffer(pipe, k, &buffer, &err), &err);
        float value[64] = {0};
        test_must(gpp_pipe_get_buffer(pipe, buffer.name, value, buffer.count, &err), &err);
        test_trace_add(&r->common, value, (size_t)buffer.count);
    }
    test_batch b = test_batch_new(pipe, 8, 5);
    double loss;
    test_must(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), &err);
    test_result_add(r, loss);
    test_trace_params(&r->common, pipe);
    test_batch_free(&b);
}
