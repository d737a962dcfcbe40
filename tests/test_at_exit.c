/*
 * tests/test_at_exit.c: programs that end while steps run. Each is a process of its own. When
 * exit() comes to the handlers that were registered before the first step, or in it, no operator
 * may be running or begin to, and what the steps have left is what their statuses say.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codelets/tasks/internal.h"
#include "tests/pipes.h"

enum { ROWS = 8, FEATURES = 6, STEPS = 3 };

/* How the process ends; a status of 0 is what it should end with. */
enum { RUNNING = 3, BEGUN, NOT_READY, WRONG_STATUS, WRONG_PARAMETERS, TOOK_PART };

static gpp_pipe *pipe_of_program;
static float *outputs;
static atomic_int inside, calls;
static int stay_inside; /* operators that do not come back */

/* --- an operator that takes its time ---------------------------------------------------------- */

static enum { NOTHING, EXIT, BLOCK } misdeed;
static int misdeed_at; /* call */

static gpp_status slow_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static void expect_quiet(void);

/* As a static object of C++ does that is made when it is first used. */
static void register_late(void)
{
    atexit(expect_quiet);
}

static void be_slow(void)
{
    static pthread_once_t first = PTHREAD_ONCE_INIT;
    pthread_once(&first, register_late);
    int call = atomic_fetch_add(&calls, 1);
    atomic_fetch_add(&inside, 1);
    if (misdeed != NOTHING && call == misdeed_at) {
        stay_inside = 1;
        if (misdeed == EXIT)
            exit(0);
        for (;;)
            pause();
    }
    usleep(1000);
    atomic_fetch_sub(&inside, 1);
}

static gpp_status slow_forward(gpp_call *c)
{
    be_slow();
    memcpy(c->out[0].data, c->in[0].data, (size_t)test_tensor_count(&c->in[0]) * sizeof(float));
    return GPP_OK;
}

static gpp_status slow_backward(gpp_call *c)
{
    be_slow();
    if (c->grad_in[0].data)
        memcpy(c->grad_in[0].data, c->grad_out[0].data,
               (size_t)test_tensor_count(&c->grad_in[0]) * sizeof(float));
    return GPP_OK;
}

static const gpp_operator slow = {
    .name = "slow", .infer = slow_infer, .forward = slow_forward, .backward = slow_backward};

/* --- the program ------------------------------------------------------------------------------ */

static float x[ROWS * FEATURES];
static int64_t target[ROWS];

static gpp_pipe *slow_pipe(void)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_model *model;
    gpp_pipe *p = NULL;
    o.partitions = 2;
    o.balance = (int[]){3, 2};
    o.chunks = 4;
    o.loss = "cross_entropy";
    o.optimizer = "adam";
    if (gpp_model_new(&model, NULL) == GPP_OK && gpp_model_register(model, &slow, NULL) == GPP_OK &&
        gpp_model_add_text(model, "linear out=6 @a; batchnorm; slow; linear out=6 @b; slow",
                           NULL) == GPP_OK &&
        gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){FEATURES}, NULL) == GPP_OK)
        gpp_pipe_new(&p, model, &o, NULL);
    gpp_model_free(model);
    return p;
}

static gpp_status submit(float *inputs, int64_t *classes, float *y, bool evaluates)
{
    gpp_tensor in = {inputs, GPP_F32, 2, {ROWS, FEATURES}}, out = {y, GPP_F32, 2, {ROWS, FEATURES}};
    gpp_tensor want = {classes, GPP_I64, 1, {ROWS}};
    return evaluates ? gpp_pipe_submit_evaluation(pipe_of_program, &in, &want, &out, NULL)
                     : gpp_pipe_submit(pipe_of_program, &in, &want, &out, NULL);
}

static bool submit_all(bool evaluates)
{
    bool done = true;
    for (int k = 0; k < STEPS; k++)
        done &= submit(x, target, outputs, evaluates) == GPP_OK;
    return done;
}

/* The first submissions make plans, for which they wait for what runs. */
static bool make_plans(bool evaluates)
{
    bool done = submit_all(evaluates);
    while (gpp_pipe_submitted(pipe_of_program))
        done &= gpp_pipe_wait(pipe_of_program, NULL, NULL) == GPP_OK;
    atomic_store(&calls, 0);
    return done;
}

/* Its tensors are gone when it has returned, as main's are. */
static __attribute__((noinline)) bool submit_from_a_frame(void)
{
    float inputs[ROWS * FEATURES] = {0}, y[ROWS * FEATURES];
    int64_t classes[ROWS] = {0};
    bool done = true;
    for (int k = 0; k < STEPS; k++)
        done &= submit(inputs, classes, y, false) == GPP_OK;
    return done;
}

/* Under AddressSanitizer the frame lies deeper than the calls of exit: it would not have what is
 * read there overlap the fences of theirs. */
static __attribute__((noinline)) bool submit_from_far_down(void)
{
#ifdef __SANITIZE_ADDRESS__
    volatile char between[1 << 16];
    between[0] = 0;
    return submit_from_a_frame() && between[0] == 0;
#else
    return submit_from_a_frame();
#endif
}

static void expect_quiet(void)
{
    int before = atomic_load(&calls);
    if (atomic_load(&inside) != stay_inside)
        _exit(RUNNING);
    usleep(20000);
    if (atomic_load(&calls) != before)
        _exit(BEGUN);
}

static void parameters_after(gpp_pipe *p, int steps, float value[FEATURES * FEATURES])
{
    gpp_tensor in = {x, GPP_F32, 2, {ROWS, FEATURES}}, want = {target, GPP_I64, 1, {ROWS}};
    for (int k = 0; k < steps; k++)
        if (gpp_pipe_step(p, &in, &want, NULL, NULL, NULL) != GPP_OK)
            _exit(NOT_READY);
    if (gpp_pipe_get(p, "b.weight", value, FEATURES * FEATURES, NULL) != GPP_OK)
        _exit(NOT_READY);
}

/* A handler of the application's: some steps have succeeded, the others were cancelled, and the
 * parameters are those of the former. */
static void expect_what_statuses_say(void)
{
    gpp_error err = GPP_ERROR_INIT;
    float got[FEATURES * FEATURES], expected[FEATURES * FEATURES];
    int good = 0, cancelled = 0;
    while (gpp_pipe_submitted(pipe_of_program)) {
        gpp_status status = gpp_pipe_wait(pipe_of_program, NULL, &err);
        good += status == GPP_OK && !cancelled;
        cancelled += status == GPP_ECANCELED;
    }
    if (good + cancelled != STEPS || !strstr(err.msg, "the program is ending") != !cancelled)
        _exit(WRONG_STATUS);
    parameters_after(pipe_of_program, 0, got);
    gpp_pipe *other = slow_pipe();
    parameters_after(other, STEPS + good, expected); /* the plans' as well */
    if (memcmp(got, expected, sizeof got))
        _exit(WRONG_PARAMETERS);
    gpp_pipe_free(other);
    gpp_pipe_free(pipe_of_program);
}

/* An optimizer whose updates, once begun, wait until the program is about to end. */
static const gpp_optimizer *plain;
static atomic_bool held_back, about_to_end;

static gpp_status late_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                              float *param, const float *grad, float *const state[])
{
    atomic_store(&held_back, true);
    while (!atomic_load(&about_to_end))
        usleep(1000);
    usleep(5000);
    return plain->update(attr, t, scalar, count, param, grad, state);
}

static void update_late(void)
{
    static gpp_optimizer late;
    plain = pipe_of_program->recipe->optimizer;
    late = *plain;
    late.update = late_update;
    pipe_of_program->own_recipe->optimizer = &late;
}

static void *end_soon(void *delay)
{
    usleep(*(useconds_t *)delay);
    exit(0);
    return NULL;
}

/* Goes on calling while another thread ends the program: no step begins any more. */
static void step_for_ever(void)
{
    gpp_tensor in = {x, GPP_F32, 2, {ROWS, FEATURES}}, want = {target, GPP_I64, 1, {ROWS}};
    for (;;)
        gpp_pipe_step(pipe_of_program, &in, &want, NULL, NULL, NULL);
}

/* What only workers refer to, who are not there in a forked child, is no leak. */
static int is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

/* A child process of the program's ends: it has no workers to wait for, and the parent goes on. */
static void end_in_a_child(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        stay_inside = atomic_load(&inside);
        is_child = 1;
        exit(0);
    }
    if (waitpid(child, &status, 0) != child || status)
        _exit(TOOK_PART);
    while (gpp_pipe_submitted(pipe_of_program))
        if (gpp_pipe_wait(pipe_of_program, NULL, NULL) != GPP_OK)
            _exit(TOOK_PART);
}

/* --- ways to end ------------------------------------------------------------------------------ */

typedef enum way {
    RETURNS,
    FRAME,
    EVALUATIONS,
    HANDLER,
    UPDATING,
    THREAD,
    OPERATOR,
    STUCK,
    CHILD,
    WAYS
} way;
static const char *const names[WAYS] = {
    "steps are submitted",        "tensors in a frame that is gone",
    "evaluations are submitted",  "a handler waits for them",
    "a step has begun to update", "another thread ends the program",
    "an operator ends it",        "a task that never comes back",
    "a forked child ends",
};

static void run_program(way w, useconds_t delay)
{
    pthread_t thread;
    atexit(expect_quiet);
    if (w == HANDLER || w == UPDATING)
        atexit(expect_what_statuses_say);
    outputs = malloc(ROWS * FEATURES * sizeof *outputs);
    pipe_of_program = slow_pipe();
    if (!pipe_of_program || !outputs || !make_plans(w == EVALUATIONS))
        _exit(NOT_READY);
    misdeed = w == OPERATOR ? EXIT : w == STUCK ? BLOCK : NOTHING;
    misdeed_at = (int)(delay / 1000);
    if (w == UPDATING)
        update_late();
    if (w == STUCK)
        gpp_pipe_set_watchdog(pipe_of_program, 0.1, NULL);
    if (w == THREAD) {
        pthread_create(&thread, NULL, end_soon, &delay);
        step_for_ever();
    }
    if (!(w == FRAME ? submit_from_far_down() : submit_all(w == EVALUATIONS)))
        _exit(NOT_READY);
    if (w == OPERATOR)
        for (;;)
            pause();
    while (w == UPDATING && !atomic_load(&held_back))
        usleep(1000);
    usleep(delay);
    if (w == CHILD)
        end_in_a_child();
    atomic_store(&about_to_end, true);
    exit(0);
}

static void expect_quiet_end(way w, useconds_t delay)
{
    int status;
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0)
        run_program(w, delay);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0, "%s, %u us after: status %x", names[w], (unsigned)delay,
                 (unsigned)status);
}

TestSuite(at_exit, .timeout = 300);

Test(at_exit, steps_that_run_are_cancelled_and_what_has_begun_is_waited_for)
{
    for (way w = RETURNS; w < WAYS; w++)
        for (useconds_t delay = 0; delay < 40000; delay += 9000)
            expect_quiet_end(w, delay);
}

Test(at_exit, a_step_is_cancelled_or_updates_but_not_both)
{
    for (int begun = 0; begun < 2; begun++)
        for (int force = 0; force < 2; force++) {
            atomic_uint_fast64_t failed;
            gpp__job job;
            atomic_init(&failed, UINT64_MAX);
            gpp__job_init(&job, &failed);
            gpp__job_begin(&job, 1, 1);
            if (begun)
                cr_expect(gpp__job_begin_update(&job, 3));
            gpp__job_cancel(&job, "enough", force);
            bool cancelled = force || !begun;
            cr_expect_eq(job.error.code, cancelled ? GPP_ECANCELED : GPP_OK);
            cr_expect_eq(gpp__job_begin_update(&job, 4), !cancelled);
            gpp__job_release(&job);
        }
}
