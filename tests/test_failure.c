/*
 * Invariant 4: a layer that fails while a step runs ends the step cleanly. The failure of the
 * earliest clock cycle, lowest partition first, is reported; nothing hangs; state is as before; the
 * pipe goes on.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <starpu.h>
#include <string.h>

#include "tests/pipes.h"

TestSuite(failure, .init = test_keep_runtime, .fini = test_release_runtime);

/** linear, faulty 0 | linear, faulty 1 | linear, faulty 2: a fault can be set in each of three
 * partitions. */
static gpp_pipe *faulty_pipe(int chunks, gpp_checkpoint mode, bool nan_is_error)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_model_new(&model, &err);
    for (int k = 0; k < 3; k++) {
        gpp_model_add(model, "linear", NULL, (gpp_attr[]){GPP_INT("out", 5)}, 1, &err);
        gpp__model_add_op(model, &test_op_faulty, NULL, (gpp_attr[]){GPP_INT("id", k)}, 1, &err);
    }
    int64_t dim = 4;
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, &dim, &err), GPP_OK, "%s", err.msg);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 3;
    o.balance = (int[]){2, 2, 2};
    o.chunks = chunks;
    o.checkpoint = mode;
    o.loss = "mse";
    o.optimizer = "sgd lr=0.1 momentum=0.9";
    o.nan_is_error = nan_is_error;
    if (mode == GPP_CHECKPOINT_BUDGET)
        test_tighten(model, &o, 8, 1);
    gpp_pipe *pipe;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    memset(test_faults, 0, sizeof test_faults);
    return pipe;
}

static gpp_status step(gpp_pipe *pipe, uint64_t seed, gpp_error *err)
{
    test_batch b = test_batch_new(pipe, 8, seed);
    gpp_error_clear(err);
    gpp_status status = gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, err);
    test_batch_free(&b);
    return status;
}

Test(failure, leaves_the_state_as_it_was_and_the_pipe_usable)
{
    for (int mode = 0; mode <= GPP_CHECKPOINT_BUDGET; mode++)
        for (int when = TEST_FAIL_FORWARD; when <= TEST_FAIL_BACKWARD; when++)
            for (int id = 0; id < 3; id++) {
                gpp_error err = GPP_ERROR_INIT;
                gpp_pipe *hit = faulty_pipe(4, (gpp_checkpoint)mode, false);
                gpp_pipe *spared = faulty_pipe(4, (gpp_checkpoint)mode, false);
                bool fails = when != TEST_FAIL_RECOMPUTE || mode != GPP_CHECKPOINT_NEVER;
                for (uint64_t s = 0; s < 6; s++) {
                    test_faults[id] =
                        (test_fault_at){s % 2 ? (test_fault)when : TEST_NO_FAULT, s == 3 ? -1 : 2};
                    gpp_status status = step(hit, s, &err);
                    cr_assert_eq(status, s % 2 && fails ? GPP_EKERNEL : GPP_OK,
                                 "mode %d when %d id %d: %s", mode, when, id, err.msg);
                    if (status != GPP_OK) {
                        cr_expect_eq(err.layer, 2 * id + 1);
                        cr_expect_eq(err.partition, id);
                        float g[5];
                        cr_expect_eq(gpp_pipe_gradient(hit, "0.bias", g, 5, NULL), GPP_ESTATE);
                    }
                    test_faults[id].when = TEST_NO_FAULT;
                    if (status == GPP_OK)
                        cr_assert_eq(step(spared, s, &err), GPP_OK, "%s", err.msg);
                }
                test_trace a = {0}, b = {0};
                test_trace_params(&a, hit);
                test_trace_params(&b, spared);
                cr_expect_eq(test_trace_differs(&a, &b), -1, "mode %d when %d id %d", mode, when,
                             id);
                test_trace_free(&a);
                test_trace_free(&b);
                gpp_pipe_free(hit);
                gpp_pipe_free(spared);
            }
}

Test(failure, of_the_earliest_cycle_and_lowest_partition_is_reported)
{
    static const struct {
        char why[48];
        test_fault_at fault[3];
        int partition, micro_batch;
    } cases[] = {
        {"one cycle: lowest partition",
         {{TEST_FAIL_FORWARD, 2}, {TEST_FAIL_FORWARD, 0}, {0, 0}},
         0,
         1},
        {"earlier cycle in a higher partition",
         {{TEST_FAIL_FORWARD, 6}, {TEST_FAIL_FORWARD, 0}, {0, 0}},
         1,
         0},
        {"forward before backward",
         {{TEST_FAIL_BACKWARD, -1}, {0, 0}, {TEST_FAIL_FORWARD, 6}},
         2,
         3},
        {"backward: last micro-batch first", {{0, 0}, {TEST_FAIL_BACKWARD, -1}, {0, 0}}, 1, 3},
        {"backward: the last partition is first",
         {{TEST_FAIL_BACKWARD, 6}, {0, 0}, {TEST_FAIL_BACKWARD, 2}},
         0,
         3},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int again = 0; again < 20; again++) {
            gpp_pipe *pipe = faulty_pipe(4, GPP_CHECKPOINT_EXCEPT_LAST, false);
            memcpy(test_faults, cases[k].fault, sizeof cases[k].fault);
            gpp_error err = GPP_ERROR_INIT;
            cr_assert_eq(step(pipe, 1, &err), GPP_EKERNEL);
            cr_expect_eq(err.partition, cases[k].partition, "%s: partition %d", cases[k].why,
                         err.partition);
            cr_expect_eq(err.micro_batch, cases[k].micro_batch, "%s: micro-batch %d", cases[k].why,
                         err.micro_batch);
            cr_expect(strlen(err.msg) > 10, "%s: \"%s\"", cases[k].why, err.msg);
            gpp_pipe_free(pipe);
        }
}

Test(failure, later_cycles_do_not_run)
{
    gpp_pipe *pipe = faulty_pipe(4, GPP_CHECKPOINT_NEVER, false);
    test_faults[0] = (test_fault_at){TEST_FAIL_FORWARD, 0};
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(step(pipe, 1, &err), GPP_EKERNEL);
    const gpp__task_graph *g = NULL;
    for (int k = 0; k < GPP__TASK_GRAPHS; k++)
        g = pipe->cache.graph[k] ? pipe->cache.graph[k] : g;
    int ran = 0;
    for (size_t k = 0; k < g->step.plan->tasks; k++)
        ran += g->cell[k].end > g->cell[k].start;
    cr_expect_eq(ran, 1, "the first cell of all failed, yet %d cells ran", ran);
    gpp_pipe_free(pipe);
}

Test(failure, of_a_loss_that_is_not_finite_can_be_asked_for)
{
    for (int asked = 0; asked < 2; asked++) {
        gpp_pipe *pipe = faulty_pipe(4, GPP_CHECKPOINT_EXCEPT_LAST, asked);
        test_trace before = {0}, after = {0};
        test_trace_params(&before, pipe);
        test_batch b = test_batch_new(pipe, 8, 3);
        ((float *)b.x.data)[13] = NAN;
        gpp_error err = GPP_ERROR_INIT;
        double loss = 0;
        gpp_status status = gpp_pipe_step(pipe, &b.x, &b.target, NULL, &loss, &err);
        cr_expect_eq(status, asked ? GPP_ENUMERIC : GPP_OK, "%s", err.msg);
        test_trace_params(&after, pipe);
        if (asked)
            cr_expect_eq(test_trace_differs(&before, &after), -1);
        else
            cr_expect(isnan(loss));
        test_trace_free(&before);
        test_trace_free(&after);
        test_batch_free(&b);
        gpp_pipe_free(pipe);
    }
}

Test(failure, of_a_target_out_of_range_is_a_failed_step)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 3;
    o.partitions = 2;
    gpp_pipe *pipe = test_pipe_new(&test_models[1], &o);
    test_batch b = test_batch_new(pipe, 8, 3);
    gpp_error err = GPP_ERROR_INIT;
    ((int64_t *)b.target.data)[4] = 7;
    cr_expect_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "7"), "%s", err.msg);
    gpp_error_clear(&err);
    ((int64_t *)b.target.data)[4] = 6;
    cr_expect_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), GPP_OK, "%s", err.msg);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

/* An optimizer that does what sgd does, until it is told to fail: after so many parameters. */
static atomic_int updates_left;
static const gpp_optimizer *succeeding;
static gpp_status failing_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                                 float *param, const float *grad, float *const state[])
{
    if (atomic_fetch_sub(&updates_left, 1) <= 0)
        return GPP_EKERNEL;
    return succeeding->update(attr, t, scalar, count, param, grad, state);
}

Test(failure, of_an_optimizer_puts_back_what_it_has_updated)
{
    enum { PARAMETERS = 6, STEPS = 30 };
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *hit = faulty_pipe(4, GPP_CHECKPOINT_EXCEPT_LAST, false);
    gpp_pipe *spared = faulty_pipe(4, GPP_CHECKPOINT_EXCEPT_LAST, false);
    succeeding = hit->recipe->optimizer;
    gpp_optimizer failing = *succeeding;
    failing.update = failing_update;
    failing.may_fail = true;
    hit->own_recipe->optimizer = &failing;
    for (int s = 0; s < STEPS; s++) {
        int most = s % 2 ? s / 2 % PARAMETERS : PARAMETERS;
        atomic_store(&updates_left, most);
        gpp_status status = step(hit, (uint64_t)s, &err);
        cr_assert_eq(status, s % 2 ? GPP_EKERNEL : GPP_OK, "step %d: %s", s, err.msg);
        if (status == GPP_OK)
            cr_assert_eq(step(spared, (uint64_t)s, &err), GPP_OK, "%s", err.msg);
        else
            cr_expect(strstr(err.msg, "optimizer"), "%s", err.msg);
        test_trace a = {0}, b = {0};
        test_trace_params(&a, hit);
        test_trace_params(&b, spared);
        cr_expect_eq(test_trace_differs(&a, &b), -1, "step %d: %d of %d parameters were updated", s,
                     most, PARAMETERS);
        test_trace_free(&a);
        test_trace_free(&b);
    }
    gpp_pipe_free(hit);
    gpp_pipe_free(spared);
}

Test(failure, a_thousand_failing_steps_between_good_ones_change_nothing)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *hit = faulty_pipe(4, GPP_CHECKPOINT_EXCEPT_LAST, false);
    gpp_pipe *spared = faulty_pipe(4, GPP_CHECKPOINT_EXCEPT_LAST, false);
    size_t bytes[2][3];
    for (int s = 0; s < 1000; s++) {
        test_faults[s % 3] = (test_fault_at){TEST_FAIL_FORWARD + s / 3 % 3, 2 * (s / 9 % 3)};
        cr_assert_eq(step(hit, (uint64_t)s, &err), GPP_EKERNEL, "step %d", s);
        test_faults[s % 3].when = TEST_NO_FAULT;
        cr_assert_eq(step(hit, (uint64_t)s, &err), GPP_OK, "step %d: %s", s, err.msg);
        cr_assert_eq(step(spared, (uint64_t)s, &err), GPP_OK, "%s", err.msg);
        for (int d = 0; s == 10 || s == 999 ? d < hit->recipe->devices : false; d++)
            bytes[s == 999][d] = atomic_load(&hit->device[d].meter.now);
    }
    test_trace a = {0}, b = {0};
    test_trace_params(&a, hit);
    test_trace_params(&b, spared);
    cr_expect_eq(test_trace_differs(&a, &b), -1);
    for (int d = 0; d < hit->recipe->devices; d++)
        cr_expect_eq(bytes[0][d], bytes[1][d], "device %d: memory grew", d);
    test_trace_free(&a);
    test_trace_free(&b);
    gpp_pipe_free(hit);
    gpp_pipe_free(spared);
}

/* No call of ours leads StarPU to refuse a task, so one is made that no worker can run. */
Test(failure, of_a_submission_ends_the_step_and_the_pipe_can_be_freed)
{
    gpp_pipe *pipe = faulty_pipe(4, GPP_CHECKPOINT_ALWAYS, false);
    gpp_error err = GPP_ERROR_INIT;
    uint32_t where = gpp__backward_codelet.where;
    gpp__backward_codelet.where = STARPU_CUDA;
    cr_expect_eq(step(pipe, 1, &err), GPP_ERUNTIME);
    cr_expect(strstr(err.msg, "refused"), "%s", err.msg);
    gpp__backward_codelet.where = where;
    cr_expect_eq(step(pipe, 1, &err), GPP_ESTATE, "what was not run cannot be made up for");
    gpp_pipe_free(pipe);
}
