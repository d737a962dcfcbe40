/*
 * tests/test_watchdog.c: steps that do not move end with who waits for whom, whatever the speed of
 * the machine: what blocks does so until the test lets it go.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/pipe.h"
#include "tests/pipes.h"

TestSuite(watchdog, .timeout = 300);

/* --- an operator that waits at a gate --------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool shut;
    bool in_backward; /* where it waits */
    int micro_batch;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

static void shut(bool in_backward, int micro_batch)
{
    gate.shut = true;
    gate.in_backward = in_backward;
    gate.micro_batch = micro_batch;
}

static void *open_gate(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&gate.lock);
    gate.shut = false;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
    return NULL;
}

static gpp_status pass(gpp_call *call, bool backward, const gpp_tensor *from, const gpp_tensor *to)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.shut && gate.in_backward == backward && gate.micro_batch == call->micro_batch)
        pthread_cond_wait(&gate.opened, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    if (from->data && to->data)
        memcpy(to->data, from->data, (size_t)test_tensor_count(from) * sizeof(float));
    return GPP_OK;
}

static gpp_status forward(gpp_call *call)
{
    return pass(call, false, call->in, call->out);
}

static gpp_status backward(gpp_call *call)
{
    return pass(call, true, call->grad_out, call->grad_in);
}

static gpp_status infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static const gpp_operator gate_op = {
    .name = "gate", .infer = infer, .forward = forward, .backward = backward};

enum { ROWS = 8, CHUNKS = 4 };
/* What is shut stays shut, so a longer time changes nothing but the time these tests take. */
#define SOON 0.1
/* Tasks that do nothing have ended by then even on a machine that does much else. */
#define DRAINED 2.0
/* Nothing here takes so long, however slow the machine. */
#define NEVER 10000.0

/* Two partitions on two devices where there are as many; the gate is in the second. */
static gpp_pipe *gated_pipe(void)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    const int balance[] = {1, 2};
    o.partitions = 2;
    o.balance = balance;
    o.chunks = CHUNKS;
    o.loss = "mse";
    o.optimizer = "sgd lr=0.1";
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK);
    cr_assert_eq(gpp_model_register(model, &gate_op, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(model, "linear out=5; gate; linear out=3", &err), GPP_OK, "%s",
                 err.msg);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){6}, &err), GPP_OK);
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

static gpp_status step(gpp_pipe *pipe, test_batch *b, gpp_error *err)
{
    return gpp_pipe_step(pipe, &b->x, &b->target, NULL, NULL, err);
}

Test(watchdog, a_step_that_moves_is_left_alone)
{
    gpp_pipe *pipe = gated_pipe(), *plain = gated_pipe();
    test_batch b = test_batch_new(pipe, ROWS, 1);
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_set_watchdog(pipe, NEVER, &err), GPP_OK);
    for (int s = 0; s < 3; s++) {
        cr_assert_eq(step(pipe, &b, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(step(plain, &b, &err), GPP_OK, "%s", err.msg);
    }
    test_trace with = {0}, without = {0};
    test_trace_params(&with, pipe);
    test_trace_params(&without, plain);
    cr_expect_eq(test_trace_differs(&with, &without), -1);
    test_trace_free(&with);
    test_trace_free(&without);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
    gpp_pipe_free(plain);
}

/* Whether the message says what it should; on a machine so slow that the gate has not been reached,
 * other tasks are in the way. */
static bool says_who_waits(double seconds, bool last_try)
{
    gpp_pipe *pipe = gated_pipe();
    if (pipe->recipe->devices < 2)
        cr_skip_test("one device waits for nobody");
    test_batch b = test_batch_new(pipe, ROWS, 1);
    gpp_error err = GPP_ERROR_INIT, next = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_set_watchdog(pipe, seconds, NULL), GPP_OK);
    shut(true, CHUNKS - 1);
    cr_expect_eq(step(pipe, &b, &err), GPP_ETIMEDOUT, "%s", err.msg);
    char runs[128], waits[160];
    snprintf(runs, sizeof runs, "%s runs backward (%d, 1), layers 1 to 2, for ",
             pipe->recipe->device_name[1], CHUNKS - 1);
    snprintf(waits, sizeof waits,
             "%s waits for its next, backward (%d, 0): backward (%d, 1) on %s has not delivered "
             "the gradient of boundary 1",
             pipe->recipe->device_name[0], CHUNKS - 1, CHUNKS - 1, pipe->recipe->device_name[1]);
    bool says = strstr(err.msg, runs) && strstr(err.msg, waits) && err.micro_batch == CHUNKS - 1 &&
                err.partition == 1;
    cr_expect(says || !last_try, "%s", err.msg);
    cr_expect_eq(step(pipe, &b, &next), GPP_ESTATE, "%s", next.msg);
    open_gate(NULL);
    gpp_pipe_free(pipe);
    test_batch_free(&b);
    return says;
}

Test(watchdog, says_which_task_runs_and_who_waits_for_what)
{
    bool said = false;
    for (double seconds = SOON; !said && seconds < 20; seconds *= 4)
        said = says_who_waits(seconds, seconds >= 5);
    cr_expect(said);
}

Test(watchdog, a_pipe_with_a_task_that_does_not_come_back_is_freed_when_it_does)
{
    gpp_pipe *pipe = gated_pipe();
    test_batch b = test_batch_new(pipe, ROWS, 1);
    pthread_t later;
    cr_assert_eq(gpp_pipe_set_watchdog(pipe, SOON, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_record(pipe, 1, NULL), GPP_OK);
    shut(false, 1);
    cr_expect_eq(step(pipe, &b, NULL), GPP_ETIMEDOUT);
    gpp_trace *trace;
    cr_expect_eq(gpp_pipe_trace(pipe, &trace, NULL), GPP_ESTATE, "its tasks still write");
    cr_assert_eq(pthread_create(&later, NULL, open_gate, NULL), 0);
    gpp_pipe_free(pipe);
    pthread_join(later, NULL);
    test_batch_free(&b);

    /* The workers are fit for another pipe. */
    pipe = gated_pipe();
    b = test_batch_new(pipe, ROWS, 1);
    cr_expect_eq(step(pipe, &b, NULL), GPP_OK);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

Test(watchdog, gradients_of_a_step_that_was_given_up_are_written_to_no_freed_memory)
{
    gpp_pipe *pipe = gated_pipe();
    test_batch b = test_batch_new(pipe, ROWS, 1);
    cr_assert_eq(gpp_pipe_set_watchdog(pipe, SOON, NULL), GPP_OK);
    shut(true, 0);
    cr_expect_eq(gpp_pipe_gradients(pipe, &b.x, &b.target, &b.y, &b.grad_x, NULL, NULL),
                 GPP_ETIMEDOUT);
    open_gate(NULL);
    gpp_pipe_free(pipe);
    test_batch_free(&b);
}

/* A step of another size wants larger buffers, which are the hanging step's, too. */
Test(watchdog, a_step_behind_one_that_was_given_up_is_refused_at_once)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe = gated_pipe();
    test_batch b = test_batch_new(pipe, ROWS, 1), larger = test_batch_new(pipe, 8 * ROWS, 1);
    cr_assert_eq(gpp_pipe_set_watchdog(pipe, SOON, NULL), GPP_OK);
    shut(false, 1);
    cr_expect_eq(gpp_pipe_submit(pipe, &b.x, &b.target, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_pipe_submit(pipe, &larger.x, &larger.target, NULL, &err), GPP_ESTATE);
    cr_expect(gate.shut, "it has waited for the hanging step");
    cr_expect_eq(gpp_pipe_wait(pipe, NULL, NULL), GPP_ETIMEDOUT);
    open_gate(NULL);
    gpp_pipe_free(pipe);
    test_batch_free(&b);
    test_batch_free(&larger);
}

/* An order that cannot go on: a position is given out to which no task belongs. */
Test(watchdog, an_order_that_nobody_fills_is_given_up_and_the_pipe_goes_on)
{
    gpp_pipe *pipe = gated_pipe(), *plain = gated_pipe();
    int last = pipe->recipe->devices - 1;
    test_batch b = test_batch_new(pipe, ROWS, 1);
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_set_watchdog(pipe, DRAINED, NULL), GPP_OK);
    cr_assert_eq(gpp__lane_reserve(pipe->device[last].lane, 1, NULL), GPP_OK);
    gpp__lane_extend(pipe->device[last].lane, 1);
    cr_expect_eq(step(pipe, &b, &err), GPP_ETIMEDOUT, "%s", err.msg);
    char waits[128];
    snprintf(waits, sizeof waits, "%s waits for position 0 of its order",
             pipe->recipe->device_name[last]);
    cr_expect(strstr(err.msg, waits), "%s", err.msg);
    cr_expect_not(pipe->watchdog.stuck);
    /* Nothing was updated, and everything has an order again. */
    cr_assert_eq(gpp_pipe_set_watchdog(pipe, NEVER, NULL), GPP_OK);
    for (int s = 0; s < 3; s++) {
        gpp_error_clear(&err);
        cr_assert_eq(step(pipe, &b, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(step(plain, &b, &err), GPP_OK, "%s", err.msg);
    }
    test_trace with = {0}, without = {0};
    test_trace_params(&with, pipe);
    test_trace_params(&without, plain);
    cr_expect_eq(test_trace_differs(&with, &without), -1);
    test_trace_free(&with);
    test_trace_free(&without);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
    gpp_pipe_free(plain);
}

Test(watchdog, needs_a_pipe_and_a_time)
{
    gpp_pipe *pipe = gated_pipe();
    cr_expect_eq(gpp_pipe_set_watchdog(NULL, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_set_watchdog(pipe, -1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_set_watchdog(pipe, 0.0 / 0.0, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_set_watchdog(pipe, 1e300, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_set_watchdog(pipe, 0, NULL), GPP_OK);
    gpp_pipe_free(pipe);
}
