/*
 * tests/test_submit.c: steps that are submitted before the last has ended. Their results are those
 * of steps that are waited for, bit for bit; nothing waits that need not; and a step that fails
 * leaves nothing behind, of itself or of those after it.
 *
 * Nothing here depends on time: what must happen at once waits for each other, with a patience that
 * only a test that fails comes to the end of.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "graph/trace/trace.h"
#include "tests/files.h"
#include "tests/states.h"
#include "tests/support.h"

TestSuite(submit, .timeout = 600);

#define COUNT(table)   (sizeof table / sizeof *table)
#define OK(call, what) cr_assert_eq((call), GPP_OK, "%s: %s", (what), err.msg)

/* --- counting allocations: as in test_memory.c ------------------------------------------------ */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAN_COUNT 0
#else
#define CAN_COUNT 1
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern char __executable_start, etext;
#endif

static atomic_bool counting;
static atomic_int own_calls;

#if CAN_COUNT
static void note(const void *caller)
{
    const char *c = caller;
    if (atomic_load(&counting) && c >= &__executable_start && c < &etext)
        atomic_fetch_add(&own_calls, 1);
}
__attribute__((noinline)) void *malloc(size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}
__attribute__((noinline)) void *calloc(size_t n, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_calloc(n, bytes);
}
__attribute__((noinline)) void *realloc(void *old, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_realloc(old, bytes);
}
__attribute__((noinline)) int posix_memalign(void **out, size_t align, size_t bytes)
{
    note(__builtin_return_address(0));
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}
__attribute__((noinline)) void *aligned_alloc(size_t align, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_memalign(align, bytes);
}
#endif

/* --- mini-batches, run at once or submitted --------------------------------------------------- */

typedef enum what { TRAIN, POISONED, EVALUATE, OUTPUTS, RATE, GROUP, END } what;

typedef struct move {
    what what; /* POISONED: trained on x with a NaN; OUTPUTS: evaluated without a target; RATE,
                  GROUP: a change of rates, no mini-batch */
    int rows;
    bool y; /* the outputs of a training step are wanted */
} move;

enum { MOVES = 20 };

/* In POISONED's place there is a step of another size where nothing is skipped. */
static const move moves[] = {
    {TRAIN, 12, true},  {TRAIN, 12, true},  {EVALUATE, 12, 0}, {TRAIN, 12, true}, {RATE, 0, 0},
    {TRAIN, 11, false}, {OUTPUTS, 12, 0},   {TRAIN, 12, true}, {POISONED, 8, 0},  {TRAIN, 12, true},
    {GROUP, 0, 0},      {TRAIN, 12, true},  {TRAIN, 0, true},  {EVALUATE, 11, 0}, {TRAIN, 12, true},
    {RATE, 0, 0},       {TRAIN, 12, false}, {TRAIN, 12, true}, {EVALUATE, 12, 0}, {END, 0, 0}};

/* Runs of moves: mini-batches in flight, and what came of them. */
typedef struct player {
    gpp_pipe *pipe;
    const char *why;
    test_batch batch[MOVES];
    const gpp_tensor *y[MOVES];
    int queue[MOVES], first, end; /* submitted */
    float poison;
    bool skips[MOVES];
    test_trace results;
} player;

static void add_double(test_trace *t, double x)
{
    float halves[2];
    memcpy(halves, &x, sizeof x);
    test_trace_add(t, halves, 2);
}

/* What a caller sees of a step: its loss, its outputs, what it says of itself but times. */
static void note_step(player *p, int k, double loss)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_step_stats stats;
    test_trace *t = &p->results;
    OK(gpp_pipe_last_step(p->pipe, &stats, &err), p->why);
    cr_expect(stats.bound_ms > 0 && stats.bound_ms <= stats.step_ms * 1.000001, "%s: %g of %g ms",
              p->why, stats.bound_ms, stats.step_ms);
    add_double(t, loss);
    add_double(t, stats.lr);
    add_double(t, stats.grad_norm);
    add_double(t, stats.skipped);
    add_double(t, stats.micro_batches);
    cr_expect_eq(stats.skipped, p->skips[k], "%s", p->why);
    if (p->y[k])
        test_trace_add(t, p->batch[k].y.data, (size_t)test_tensor_count(&p->batch[k].y));
}

static bool is_step(what w)
{
    return w == TRAIN || w == POISONED;
}

static void wait_one(player *p)
{
    gpp_error err = GPP_ERROR_INIT;
    double loss = -1;
    OK(gpp_pipe_wait(p->pipe, &loss, &err), p->why);
    note_step(p, p->queue[p->first++], loss);
}

static void run_now(player *p, int k, what w)
{
    gpp_error err = GPP_ERROR_INIT;
    double loss = NAN;
    const test_batch *b = &p->batch[k];
    const gpp_tensor *target = w == OUTPUTS ? NULL : &b->target;
    OK(is_step(w) ? gpp_pipe_step(p->pipe, &b->x, target, p->y[k], &loss, &err)
                  : gpp_pipe_evaluate(p->pipe, &b->x, target, p->y[k], target ? &loss : NULL, &err),
       p->why);
    note_step(p, k, loss);
}

static void submit_now(player *p, int k, what w)
{
    gpp_error err = GPP_ERROR_INIT;
    const test_batch *b = &p->batch[k];
    OK(is_step(w) ? gpp_pipe_submit(p->pipe, &b->x, &b->target, p->y[k], &err)
                  : gpp_pipe_submit_evaluation(p->pipe, &b->x, w == OUTPUTS ? NULL : &b->target,
                                               p->y[k], &err),
       p->why);
    p->queue[p->end++] = k;
}

static void change_rates(player *p, const move *m, int k)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_parameter_info info;
    OK(gpp_pipe_parameter(p->pipe, 0, &info, &err), p->why);
    OK(m->what == RATE ? gpp_pipe_set_lr(p->pipe, 0.01 + 0.003 * k, &err)
                       : gpp_pipe_set_group(p->pipe, info.name, 0.002 * k, NAN, &err),
       p->why);
}

/* @param ahead  steps in flight; 0: each is waited for by the call that runs it */
static void play(player *p, int ahead)
{
    int k = 0;
    for (; moves[k].what != END; k++) {
        what w = moves[k].what;
        if (w == RATE || w == GROUP) {
            change_rates(p, &moves[k], k);
            continue;
        }
        p->batch[k] = test_batch_new(p->pipe, moves[k].rows, 10 + (uint64_t)k);
        p->y[k] = moves[k].y || !is_step(w) ? &p->batch[k].y : NULL;
        if (w == POISONED)
            ((float *)p->batch[k].x.data)[3] = p->poison;
        p->skips[k] = w == POISONED && isnan(p->poison);
        if (!ahead)
            run_now(p, k, w);
        else
            submit_now(p, k, w);
        cr_expect_eq(gpp_pipe_submitted(p->pipe), p->end - p->first, "%s", p->why);
        if (ahead && p->end - p->first == ahead)
            wait_one(p);
    }
    while (p->first < p->end)
        wait_one(p);
    while (k-- > 0)
        if (p->batch[k].x.data)
            test_batch_free(&p->batch[k]);
}

/* --- results ---------------------------------------------------------------------------------- */

/* A model, how it is cut, and what of it is frozen. */
typedef struct layout {
    const char *text;
    int balance[4]; /* {0}: any */
    const char *frozen;
} layout;

static const layout parted_norm = {NULL, {1, 1, 9}, "bn1"};
static const layout norm_first = {"batchnorm @bn; flatten; linear out=5", {1, 2}, "bn"};
static const layout bare_first = {
    "flatten; dropout p=0.3; linear out=8; linear out=5", {2, 1, 1}, NULL};
static const layout bare_last = {"flatten; linear out=5; tanh; dropout p=0.3", {2, 2}, NULL};
/* c's parameters are a's. */
static const layout tied = {"flatten; linear out=192 @a; tanh; dropout p=0.2; linear out=192 @b; "
                            "relu; linear out=192 @c; batchnorm; linear out=5 @d",
                            {0},
                            NULL};

enum { CLIPPED = 1, SKIPS = 2, DEFERRED = 4, AS_EVALUATION = 8, SCHEDULED = 16 };

typedef struct submit_case {
    const char *why, *schedule, *optimizer;
    int partitions, chunks;
    gpp_checkpoint mode;
    unsigned flags;
    const layout *layout; /* NULL: test_stateful's, cut anywhere */
} submit_case;

static gpp_model *model_of(const submit_case *c)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    const char *text = c->layout ? c->layout->text : NULL;
    OK(gpp_model_new(&m, &err), c->why);
    OK(gpp_model_add_text(m, text ? text : test_stateful.text, &err), c->why);
    if (c->layout == &tied)
        OK(gpp_model_share(m, 6, 1, &err), c->why);
    OK(gpp_model_set_input(m, GPP_F32, 3, test_stateful.dim, &err), c->why);
    return m;
}

static gpp_pipe_options options_of(const submit_case *c)
{
    static const char *const same[] = {"cpu:0", "cpu:0", "cpu:0", "cpu:0"};
    gpp_pipe_options o = test_cut(c->partitions, c->mode);
    o.chunks = c->chunks;
    o.schedule = c->partitions > 1 ? c->schedule : "gpipe";
    o.ascending_backward = c->partitions == 1 && c->schedule && strcmp(c->schedule, "gpipe");
    o.loss = "cross_entropy reduction=mean";
    o.optimizer = c->optimizer;
    o.clip_norm = c->flags & CLIPPED ? 0.1 : 0;
    o.skip_nonfinite = c->flags & SKIPS;
    o.deferred_batch_norm = c->flags & DEFERRED;
    o.lr_schedule = c->flags & SCHEDULED ? "cosine steps=12 min=0.001 warmup=2" : NULL;
    if (c->partitions > 1 && c->layout && c->layout->balance[0])
        o.balance = c->layout->balance;
    if (c->layout == &tied) { /* parameters in several partitions: those of one device */
        o.devices = same;
        o.device_count = c->partitions;
    }
    return o;
}

static gpp_pipe *pipe_of(const submit_case *c)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    gpp_pipe_options o = options_of(c);
    gpp_model *model = model_of(c);
    OK(gpp_pipe_new(&pipe, model, &o, &err), c->why);
    gpp_model_free(model);
    if (c->layout && c->layout->frozen)
        OK(gpp_pipe_freeze(pipe, c->layout->frozen, true, &err), c->why);
    if (c->flags & AS_EVALUATION)
        OK(gpp_pipe_set_training(pipe, false, &err), c->why);
    return pipe;
}

typedef struct outcome {
    test_trace results;
    char *state;
    size_t bytes;
} outcome;

static outcome outcome_of(const submit_case *c, const char *folder, int ahead)
{
    char why[200];
    snprintf(why, sizeof why, "%s, %d ahead", c->why, ahead);
    player p = {.pipe = pipe_of(c), .why = why};
    outcome o;
    p.poison = c->flags & SKIPS ? NAN : 0.25f;
    play(&p, ahead);
    o.results = p.results;
    o.state = test_state(p.pipe, folder, &o.bytes);
    gpp_pipe_free(p.pipe);
    return o;
}

static void outcome_free(outcome *o)
{
    test_trace_free(&o->results);
    free(o->state);
}

static bool has_nan(const test_trace *t, size_t at)
{
    return isnan(t->value[at]);
}

/* @param stride from one number of steps in flight to the next that is tried */
static void expect_same_results(const submit_case *c, int stride)
{
    char folder[256];
    test_folder_new(folder);
    submit_case alone = *c; /* backwards in the same order, each step waited for */
    alone.partitions = 1;
    outcome want = outcome_of(&alone, folder, 0);
    for (int ahead = 0; ahead <= GPP_MAX_SUBMITTED; ahead += stride) {
        outcome got = outcome_of(c, folder, ahead);
        long at = test_trace_differs(&want.results, &got.results);
        cr_expect_eq(at, -1, "%s, %d ahead: result %ld of %zu%s", c->why, ahead, at,
                     want.results.count,
                     at >= 0 && has_nan(&got.results, (size_t)at) ? " is NaN" : "");
        cr_expect(want.bytes == got.bytes && !memcmp(want.state, got.state, want.bytes),
                  "%s, %d ahead: the state is another", c->why, ahead);
        outcome_free(&got);
    }
    outcome_free(&want);
    test_folder_remove(folder);
}

static void expect_all_same(const submit_case cases[], size_t count)
{
    submit_case first = cases[0];
    first.why = "keeps the runtime";
    gpp_pipe *keeper = pipe_of(&first);
    /* How many steps are in flight is the business of plans and StarPU, whatever the devices are. On
     * emulated GPUs, where a step takes six times as long, none and the most are enough. */
    bool on_gpus = keeper->recipe->device[0].kind == GPP__DEVICE_CUDA;
    for (size_t k = 0; k < count; k++)
        expect_same_results(&cases[k], on_gpus ? GPP_MAX_SUBMITTED : 1);
    gpp_pipe_free(keeper);
}

#define LAST   GPP_CHECKPOINT_EXCEPT_LAST
#define ALWAYS GPP_CHECKPOINT_ALWAYS
#define NEVER  GPP_CHECKPOINT_NEVER

#define ADAM  "adam lr=0.01"
#define NADAM "nadam lr=0.01"
#define SGD   "sgd lr=0.05 momentum=0.9"

Test(submit, gives_the_bits_of_steps_that_are_waited_for_in_every_order_of_tasks)
{
    static const submit_case cases[] = {
        {"one partition", NULL, ADAM, 1, 2, LAST, 0, NULL},
        {"gpipe", "gpipe", ADAM, 2, 3, ALWAYS, 0, NULL},
        {"gpipe, three", "gpipe", SGD, 3, 2, LAST, 0, NULL},
        {"1f1b", "1f1b", NADAM, 3, 3, NEVER, 0, NULL},
        {"zb-h1", "zb-h1", "adamw lr=0.01", 2, 3, NEVER, 0, NULL},
        {"auto", "auto", ADAM, 3, 3, LAST, 0, NULL},
        {"interleaved", "interleaved", "rmsprop lr=0.01", 4, 4, LAST, 0, NULL},
    };
    expect_all_same(cases, COUNT(cases));
}

Test(submit, gives_the_bits_of_steps_that_are_waited_for_with_every_kind_of_state)
{
    static const submit_case cases[] = {
        {"statistics of mini-batches", NULL, ADAM, 2, 3, LAST, DEFERRED, NULL},
        {"the same in one partition", NULL, ADAM, 1, 3, ALWAYS, DEFERRED, NULL},
        {"a frozen partition with statistics", NULL, ADAM, 3, 2, LAST, 0, &parted_norm},
        {"a frozen first partition", NULL, ADAM, 2, 2, LAST, 0, &norm_first},
        {"a frozen first partition, 1f1b", "1f1b", ADAM, 2, 3, NEVER, 0, &norm_first},
        {"a frozen first partition, zb-h1", "zb-h1", ADAM, 2, 3, NEVER, 0, &norm_first},
        {"no parameters in the first", NULL, NADAM, 3, 2, LAST, CLIPPED, &bare_first},
        {"no parameters in the last", NULL, ADAM, 2, 2, LAST, 0, &bare_last},
        {"shared parameters in one partition", NULL, ADAM, 1, 2, LAST, 0, &tied},
        {"shared parameters in three", NULL, NADAM, 3, 3, LAST, 0, &tied},
        {"shared parameters, 1f1b", "1f1b", SGD, 2, 3, LAST, 0, &tied},
        {"layers in evaluation mode", NULL, ADAM, 2, 2, LAST, AS_EVALUATION, NULL},
    };
    expect_all_same(cases, COUNT(cases));
}

Test(submit, gives_the_bits_of_steps_that_are_waited_for_when_updates_are_clipped_or_skipped)
{
    static const submit_case cases[] = {
        {"skipped", NULL, NADAM, 2, 2, LAST, SKIPS, NULL},
        {"all", NULL, "adam lr=0.01 amsgrad=1", 3, 3, LAST, SCHEDULED | CLIPPED | SKIPS, NULL},
        {"skipped, zb-h1", "zb-h1", "sgd lr=0.05 momentum=0.5", 2, 3, NEVER, SKIPS, NULL},
        {"by schedule", NULL, "adagrad lr=0.01 lr_decay=0.1", 2, 2, LAST, SCHEDULED, NULL},
        {"one partition", NULL, "adamax lr=0.01", 1, 1, LAST, CLIPPED | SCHEDULED, NULL},
        {"shared", NULL, ADAM, 3, 2, LAST, CLIPPED, &tied},
        {"frozen and skipped", "1f1b", NADAM, 2, 3, NEVER, SKIPS | SCHEDULED, &norm_first},
    };
    expect_all_same(cases, COUNT(cases));
}

/* --- what happens at once --------------------------------------------------------------------- */

/* Where tasks of two partitions meet: an early one counts, a late one waits until it has. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool on;
    int early, late, steps; /* passes that have begun early, and late, of so many */
    int last;               /* micro-batch that waits */
    bool shut;              /* who sees MARK waits, who sees REFUSED fails, */
    int waiting;            /* as so many do, */
    bool left;              /* and one has lost its patience */
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum { PATIENCE = 20 }; /* seconds */
#define MARK    42.0f
#define REFUSED 43.0f

static void meet(int steps, int last)
{
    meeting.early = meeting.late = 0;
    meeting.steps = steps;
    meeting.last = last;
    meeting.on = true;
}

static void count_early(void)
{
    pthread_mutex_lock(&meeting.lock);
    meeting.early++;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.lock);
}

static struct timespec patience(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE;
    return end;
}

/* In pass k, from 0, until pass k + 1 has begun early; the last one does not wait. */
static bool wait_for_next(void)
{
    struct timespec end = patience();
    int late = 0;
    pthread_mutex_lock(&meeting.lock);
    int pass = meeting.late++;
    int wanted = pass + 2 < meeting.steps ? pass + 2 : meeting.steps;
    while (meeting.on && meeting.early < wanted && !late)
        late = pthread_cond_timedwait(&meeting.changed, &meeting.lock, &end);
    pthread_mutex_unlock(&meeting.lock);
    return !late;
}

/* Until it is let in. */
static void wait_outside(void)
{
    struct timespec end = patience();
    int late = 0;
    pthread_mutex_lock(&meeting.lock);
    meeting.waiting++;
    pthread_cond_broadcast(&meeting.changed);
    while (meeting.shut && !late)
        late = pthread_cond_timedwait(&meeting.changed, &meeting.lock, &end);
    meeting.left |= late != 0;
    pthread_mutex_unlock(&meeting.lock);
}

static int count_waiting(void)
{
    pthread_mutex_lock(&meeting.lock);
    int count = meeting.waiting++;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.lock);
    return count;
}

/* Until somebody waits outside, or was refused. */
static void wait_for_others(void)
{
    struct timespec end = patience();
    int late = 0;
    pthread_mutex_lock(&meeting.lock);
    while (meeting.shut && !meeting.waiting && !late)
        late = pthread_cond_timedwait(&meeting.changed, &meeting.lock, &end);
    pthread_mutex_unlock(&meeting.lock);
}

static void shut(void)
{
    meeting.shut = true;
    meeting.waiting = 0;
    meeting.left = false;
}

static void open_all(void)
{
    pthread_mutex_lock(&meeting.lock);
    meeting.shut = false;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.lock);
}

static void *open_later(void *arg)
{
    open_all();
    return arg;
}

static gpp_status copy_on(const gpp_tensor *from, const gpp_tensor *to)
{
    if (from->data && to->data)
        memcpy(to->data, from->data, (size_t)test_tensor_count(from) * sizeof(float));
    return GPP_OK;
}

static gpp_status early_forward(gpp_call *call)
{
    if (call->micro_batch == 0 && !gpp_is_recomputing(call))
        count_early();
    return copy_on(call->in, call->out);
}

static gpp_status late_forward(gpp_call *call)
{
    if (meeting.on && call->micro_batch == meeting.last && !gpp_is_recomputing(call) &&
        !wait_for_next())
        return gpp_call_fail(call, GPP_EKERNEL, "the next step did not begin");
    const float *x = call->in[0].data;
    if (meeting.shut && x[0] == MARK)
        wait_outside();
    if (meeting.shut && x[0] == REFUSED)
        return gpp_call_fail(call, GPP_EINVAL, "refused after %d", count_waiting());
    return copy_on(call->in, call->out);
}

static gpp_status pass_back(gpp_call *call)
{
    return copy_on(call->grad_out, call->grad_in);
}

static gpp_status same_shape(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static const gpp_operator early_op = {
    .name = "early", .infer = same_shape, .forward = early_forward, .backward = pass_back};
static const gpp_operator late_op = {
    .name = "late", .infer = same_shape, .forward = late_forward, .backward = pass_back};

/* An operator that refuses what is not finite, where it is told to. */
static struct {
    const char *label; /* NULL: nowhere */
    bool in_backward;
    gpp_status status;
} picky;

static bool all_finite(const gpp_tensor *t)
{
    const float *x = t->data;
    bool all = true;
    for (int64_t k = 0; x && k < test_tensor_count(t); k++)
        all &= isfinite(x[k]) != 0;
    return all;
}

static gpp_status picky_pass(gpp_call *call, bool backward, const gpp_tensor *from,
                             const gpp_tensor *to)
{
    bool looks = picky.label && !strcmp(picky.label, call->label) && picky.in_backward == backward;
    if (looks && !all_finite(from)) {
        wait_for_others();
        return gpp_call_fail(call, picky.status, "not finite");
    }
    return copy_on(from, to);
}

static gpp_status picky_forward(gpp_call *call)
{
    return picky_pass(call, false, call->in, call->out);
}

static gpp_status picky_backward(gpp_call *call)
{
    return picky_pass(call, true, call->grad_out, call->grad_in);
}

static const gpp_operator picky_op = {
    .name = "picky", .infer = same_shape, .forward = picky_forward, .backward = picky_backward};

enum { ROWS = 8 };

static gpp_pipe *meeting_pipe(const char *text, const int balance[], int chunks,
                              const char *schedule)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    gpp_pipe_options o = test_cut(2, NEVER);
    o.balance = balance;
    o.chunks = chunks;
    o.schedule = schedule;
    o.loss = "mse";
    o.optimizer = "sgd lr=0.1";
    OK(gpp_model_new(&model, &err), text);
    OK(gpp_model_register(model, &early_op, &err), text);
    OK(gpp_model_register(model, &late_op, &err), text);
    OK(gpp_model_register(model, &picky_op, &err), text);
    OK(gpp_model_add_text(model, text, &err), text);
    OK(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){6}, &err), text);
    OK(gpp_pipe_new(&pipe, model, &o, &err), text);
    gpp_model_free(model);
    if (pipe->recipe->devices < 2)
        cr_skip_test("what one device does is done one after the other");
    return pipe;
}

typedef gpp_status (*submitter)(gpp_pipe *, const test_batch *, gpp_error *);

static gpp_status submit_train(gpp_pipe *p, const test_batch *b, gpp_error *err)
{
    return gpp_pipe_submit(p, &b->x, &b->target, NULL, err);
}

static gpp_status submit_evaluation(gpp_pipe *p, const test_batch *b, gpp_error *err)
{
    return gpp_pipe_submit_evaluation(p, &b->x, &b->target, NULL, err);
}

/* Neither losses nor outputs. */
static gpp_status submit_nothing(gpp_pipe *p, const test_batch *b, gpp_error *err)
{
    return gpp_pipe_submit_evaluation(p, &b->x, NULL, NULL, err);
}

/* @param ahead  in flight at once */
static void run_ahead(gpp_pipe *pipe, const test_batch *b, submitter submit, int steps, int ahead,
                      const char *why)
{
    for (int k = 0; k < steps + ahead - 1; k++) {
        gpp_error err = GPP_ERROR_INIT;
        if (k < steps)
            OK(submit(pipe, b, &err), why);
        if (k >= ahead - 1)
            OK(gpp_pipe_wait(pipe, NULL, &err), why);
    }
}

Test(submit, evaluations_follow_one_another_through_the_partitions)
{
    enum { STEPS = 6 };
    for (int chunks = 1; chunks <= 5; chunks++) {
        char why[64];
        snprintf(why, sizeof why, "%d micro-batches", chunks);
        gpp_pipe *pipe =
            meeting_pipe("early; linear out=5; late; linear out=3", (int[]){2, 2}, chunks, NULL);
        test_batch b = test_batch_new(pipe, 2 * chunks, 1);
        run_ahead(pipe, &b, submit_evaluation, 2, 2, why); /* plans are made */
        meet(STEPS, chunks - 1);
        run_ahead(pipe, &b, submit_evaluation, STEPS, 2, why);
        cr_expect_eq(meeting.late, STEPS, "%s", why);
        meeting.on = false;
        test_batch_free(&b);
        gpp_pipe_free(pipe);
    }
}

/* --- an optimizer that waits ------------------------------------------------------------------ */

static const gpp_optimizer *plain;
enum { SECOND = 5 * 3 }; /* elements of the second partition's weight */

static gpp_status meeting_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                                 float *param, const float *grad, float *const state[])
{
    if (meeting.on && count == SECOND && !wait_for_next())
        return GPP_EKERNEL;
    return plain->update(attr, t, scalar, count, param, grad, state);
}

Test(submit, a_partition_whose_update_is_done_begins_the_next_step)
{
    enum { STEPS = 6 };
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1", "auto"};
    for (size_t k = 0; k < COUNT(schedules); k++) {
        gpp_pipe *pipe =
            meeting_pipe("early; linear out=5; linear out=3", (int[]){2, 1}, 4, schedules[k]);
        plain = pipe->recipe->optimizer;
        gpp_optimizer waiting = *plain;
        waiting.update = meeting_update;
        pipe->own_recipe->optimizer = &waiting;
        test_batch b = test_batch_new(pipe, ROWS, 1);
        run_ahead(pipe, &b, submit_train, 2, 2, schedules[k]);
        meet(STEPS, 3);
        run_ahead(pipe, &b, submit_train, STEPS, 2, schedules[k]);
        cr_expect_eq(meeting.late, STEPS, "%s", schedules[k]);
        meeting.on = false;
        pipe->own_recipe->optimizer = plain;
        test_batch_free(&b);
        gpp_pipe_free(pipe);
    }
}

/* More tasks in flight than a device has room for at first. */
Test(submit, steps_of_many_tasks_overlap_too)
{
    enum { STEPS = 4, MANY = 700 };
    gpp_pipe *pipe =
        meeting_pipe("early; linear out=5; late; linear out=3", (int[]){2, 2}, MANY, NULL);
    test_batch b = test_batch_new(pipe, MANY, 1);
    run_ahead(pipe, &b, submit_evaluation, 4, 2, "many");
    meet(STEPS, MANY - 1);
    run_ahead(pipe, &b, submit_evaluation, STEPS, 2, "many");
    cr_expect_eq(meeting.late, STEPS);
    meeting.on = false;
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

/* --- failures --------------------------------------------------------------------------------- */

/* An optimizer that fails at the parameters of so many elements when their gradient is not finite:
 * by then it has made others NaN. */
static int64_t failing_count;

static gpp_status failing_update(const void *attr, int64_t t, const double scalar[], int64_t count,
                                 float *param, const float *grad, float *const state[])
{
    if (count == failing_count && !isfinite(grad[0]))
        return GPP_EKERNEL;
    return plain->update(attr, t, scalar, count, param, grad, state);
}

typedef enum fault { LAYER, BACK, LOSS, OPTIMIZER } fault;

typedef struct failure_case {
    const char *why;
    fault fault;
    const char *label; /* LAYER, BACK: of the operator */
    int64_t count;     /* OPTIMIZER: elements of the parameter at which it fails */
    const char *optimizer;
    double clip_norm;
    gpp_status status;
    bool frozen; /* what comes first only keeps statistics */
} failure_case;

/* With statistics in two partitions, dropout, and an operator that may fail in each. */
static const char *const failing_text =
    "linear out=7 @l0; batchnorm @bn0; dropout p=0.3; picky @p0; linear out=6 @l1; batchnorm "
    "momentum=none @bn1; picky @p1; linear out=5 @l2; picky @p2; linear out=3 @l3";

/* The same with nothing that may fail but the loss. */
static const char *const sound_text =
    "linear out=7 @l0; batchnorm @bn0; dropout p=0.3; identity @p0; linear out=6 @l1; batchnorm "
    "momentum=none @bn1; identity @p1; linear out=5 @l2; identity @p2; linear out=3 @l3";

static gpp_pipe *failing_pipe(const failure_case *c, int partitions, const char *schedule)
{
    static const int balance[][3] = {{10}, {4, 6}, {4, 3, 3}};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    gpp_pipe_options o = test_cut(partitions, LAST);
    o.balance = balance[partitions - 1];
    o.chunks = 3;
    o.schedule = schedule;
    o.loss = "mse";
    o.optimizer = c->optimizer;
    o.lr_schedule = "step size=2 gamma=0.5 warmup=3";
    o.clip_norm = c->clip_norm;
    o.nan_is_error = c->fault == LOSS;
    OK(gpp_model_new(&model, &err), c->why);
    OK(gpp_model_register(model, &picky_op, &err), c->why);
    OK(gpp_model_add_text(model, c->fault == LOSS ? sound_text : failing_text, &err), c->why);
    OK(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){4}, &err), c->why);
    OK(gpp_pipe_new(&pipe, model, &o, &err), c->why);
    gpp_model_free(model);
    for (int k = 0; k < 2 && c->frozen; k++)
        OK(gpp_pipe_freeze(pipe, k ? "bn0" : "l0", true, &err), c->why);
    return pipe;
}

/* Where a failure is among the steps in flight. */
typedef struct place_of_failure {
    int before, after; /* steps submitted before it, and after it and before it was reported */
    bool evaluation;   /* what fails is one */
    bool asked;        /* other calls are tried before it is reported */
} place_of_failure;

static const place_of_failure places[] = {
    {0, 0, false, true},  {0, 1, false, false}, {1, 2, false, true}, {2, 1, false, false},
    {0, 3, false, false}, {1, 1, true, true},   {0, 2, true, false}};

typedef struct trial {
    const failure_case *c;
    const place_of_failure *at;
    gpp_pipe *hit, *spared;
    const char *folder, *why;
    uint64_t seed;
    test_batch batch[GPP_MAX_SUBMITTED];
} trial;

static bool can_evaluate(const failure_case *c)
{
    return c->fault == LAYER || c->fault == LOSS;
}

/* A step on both pipes, in the second by a call that waits; results and state are the same. */
static void step_both(trial *t)
{
    gpp_error err = GPP_ERROR_INIT;
    test_batch a = test_batch_new(t->hit, 9, ++t->seed), b = test_batch_new(t->hit, 9, t->seed);
    double loss[2];
    OK(gpp_pipe_submit(t->hit, &a.x, &a.target, &a.y, &err), t->why);
    OK(gpp_pipe_wait(t->hit, &loss[0], &err), t->why);
    OK(gpp_pipe_step(t->spared, &b.x, &b.target, &b.y, &loss[1], &err), t->why);
    cr_expect_eq(loss[0], loss[1], "%s", t->why);
    cr_expect(!memcmp(a.y.data, b.y.data, (size_t)test_tensor_count(&a.y) * sizeof(float)), "%s",
              t->why);
    test_batch_free(&a);
    test_batch_free(&b);
}

static void expect_same_state(const trial *t, const char *when)
{
    char why[256];
    size_t bytes;
    char *state = test_state(t->spared, t->folder, &bytes);
    snprintf(why, sizeof why, "%s, %s: the state is another", t->why, when);
    test_expect_state(t->hit, t->folder, state, bytes, why);
    free(state);
}

/* Steps before, the one that fails, steps after it; the second of those is an evaluation. */
static void submit_all(trial *t)
{
    int fails = t->at->before;
    for (int k = 0; k <= fails + t->at->after; k++) {
        gpp_error err = GPP_ERROR_INIT;
        test_batch *b = &t->batch[k];
        *b = test_batch_new(t->hit, 9, ++t->seed);
        if (k == fails)
            ((float *)b->x.data)[4 * 4] = NAN; /* in micro-batch 1 */
        bool evaluates = (k == fails && t->at->evaluation) || k == fails + 2;
        OK(evaluates ? gpp_pipe_submit_evaluation(t->hit, &b->x, &b->target, &b->y, &err)
                     : gpp_pipe_submit(t->hit, &b->x, &b->target, &b->y, &err),
           t->why);
        if (k < fails)
            OK(gpp_pipe_step(t->spared, &b->x, &b->target, NULL, NULL, &err), t->why);
    }
}

/* Parameters can be read first. */
static void expect_nothing_runs(trial *t)
{
    const test_batch *b = &t->batch[0];
    gpp_pipe *p = t->hit;
    test_trace a = {0}, c = {0};
    test_trace_params(&a, p);
    cr_expect_eq(gpp_pipe_step(p, &b->x, &b->target, NULL, NULL, NULL), GPP_ESTATE, "%s", t->why);
    cr_expect_eq(gpp_pipe_evaluate(p, &b->x, NULL, NULL, NULL, NULL), GPP_ESTATE, "%s", t->why);
    cr_expect_eq(gpp_pipe_gradients(p, &b->x, &b->target, NULL, NULL, NULL, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_pipe_update(p, NULL), GPP_ESTATE, "%s", t->why);
    test_trace_params(&c, t->spared);
    cr_expect_eq(test_trace_differs(&a, &c), -1, "%s: parameters", t->why);
    test_trace_free(&a);
    test_trace_free(&c);
    expect_same_state(t, "before it is reported");
}

static void wait_for_all(trial *t)
{
    int fails = t->at->before;
    cr_expect_eq(gpp_pipe_submitted(t->hit), fails + 1 + t->at->after, "%s", t->why);
    for (int k = 0; k <= fails + t->at->after; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_step_stats stats;
        double loss = -1;
        gpp_status want = k < fails ? GPP_OK : k == fails ? t->c->status : GPP_ECANCELED;
        gpp_status got = gpp_pipe_wait(t->hit, &loss, &err);
        cr_expect(got == want && err.code == got, "%s: step %d: %s: %s", t->why, k,
                  gpp_status_name(got), err.msg);
        cr_expect_eq(loss == -1, k >= fails, "%s: step %d: loss %g", t->why, k, loss);
        cr_expect_eq(gpp_pipe_last_step(t->hit, &stats, NULL), k < fails ? GPP_OK : GPP_ESTATE);
        if (k == fails && t->c->fault != OPTIMIZER)
            cr_expect_eq(err.micro_batch, 1, "%s: %s", t->why, err.msg);
        test_batch_free(&t->batch[k]);
    }
}

static void try_failure(trial *t)
{
    step_both(t);
    submit_all(t);
    if (t->at->asked)
        expect_nothing_runs(t);
    wait_for_all(t);
    expect_same_state(t, "when it is reported");
    step_both(t);
    step_both(t);
    expect_same_state(t, "two steps later");
}

static void try_failures(const failure_case *c, int partitions, const char *schedule,
                         const char *folder)
{
    char why[200];
    gpp_optimizer failing;
    trial t = {.c = c, .folder = folder, .why = why};
    t.hit = failing_pipe(c, partitions, schedule);
    t.spared = failing_pipe(c, partitions, schedule);
    plain = t.hit->recipe->optimizer;
    if (c->fault == OPTIMIZER) {
        failing = *plain;
        failing.update = failing_update;
        failing.may_fail = true;
        t.hit->own_recipe->optimizer = &failing;
    }
    failing_count = c->count;
    picky.label = c->label;
    picky.in_backward = c->fault == BACK;
    picky.status = c->status;
    for (size_t k = 0; k < COUNT(places); k++) {
        t.at = &places[k];
        snprintf(why, sizeof why, "%s, %d partitions, %s, %d before%s, %d after", c->why,
                 partitions, schedule, t.at->before, t.at->evaluation ? " an evaluation" : "",
                 t.at->after);
        if (!t.at->evaluation || can_evaluate(c))
            try_failure(&t);
    }
    picky.label = NULL;
    gpp_pipe_free(t.hit);
    gpp_pipe_free(t.spared);
}

static void expect_undone(const failure_case cases[], size_t count)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    char folder[256];
    test_folder_new(folder);
    failure_case first = cases[0];
    gpp_pipe *keeper = failing_pipe(&first, 1, "gpipe");
    for (size_t k = 0; k < count; k++)
        for (int n = 1; n <= 3; n++)
            try_failures(&cases[k], n, schedules[(k + (size_t)n) % 3], folder);
    gpp_pipe_free(keeper);
    test_folder_remove(folder);
}

Test(submit, a_failed_step_and_those_submitted_after_it_change_nothing)
{
    static const failure_case cases[] = {
        {"a forward in the first partition", LAYER, "p0", 0, ADAM, 0, GPP_EKERNEL, false},
        {"a forward further back", LAYER, "p1", 0, NADAM, 0, GPP_EKERNEL, false},
        {"a forward in the last partition", LAYER, "p2", 0, ADAM, 0, GPP_ENOMEM, false},
        {"a layer that says it was cancelled", LAYER, "p2", 0, ADAM, 0, GPP_ECANCELED, false},
        {"a backward in the last partition", BACK, "p2", 0, ADAM, 0, GPP_EKERNEL, false},
        {"a backward in the first partition", BACK, "p0", 0, ADAM, 0.1, GPP_EINVAL, false},
        {"a loss that is not finite", LOSS, NULL, 0, NADAM, 0, GPP_ENUMERIC, false},
        {"a loss behind statistics alone", LOSS, NULL, 0, ADAM, 0, GPP_ENUMERIC, true},
    };
    expect_undone(cases, COUNT(cases));
}

Test(submit, an_optimizer_that_fails_half_way_is_undone)
{
    static const failure_case cases[] = {
        {"at the first parameter", OPTIMIZER, NULL, 4 * 7, ADAM, 0, GPP_EKERNEL, false},
        {"at a bias", OPTIMIZER, NULL, 6, NADAM, 0, GPP_EKERNEL, false},
        {"in the last partition", OPTIMIZER, NULL, 5 * 3, NADAM, 0, GPP_EKERNEL, false},
        {"of gradients that are clipped", OPTIMIZER, NULL, 6 * 5, ADAM, 0.1, GPP_EKERNEL, false},
        {"with statistics alone elsewhere", OPTIMIZER, NULL, 5 * 3, ADAM, 0, GPP_EKERNEL, true},
        {"the same, clipped", OPTIMIZER, NULL, 6, NADAM, 0.1, GPP_EKERNEL, true},
    };
    expect_undone(cases, COUNT(cases));
}

/* --- the watchdog ----------------------------------------------------------------------------- */

/* What is shut stays shut, so a longer time changes nothing but the time these tests take. */
#define SOON 0.1
/* Tasks that do nothing have ended by then even on a machine that does much else. */
#define DRAINED 2.0
/* Nothing here takes so long, however slow the machine. */
#define NEVER_SOON 10000.0

/* The second of two partitions has an operator that waits outside. */
static gpp_pipe *shut_pipe(void)
{
    return meeting_pipe("early; late; linear out=3", (int[]){1, 2}, 4, NULL);
}

Test(submit, a_step_that_does_not_move_is_told_and_those_after_it_are_cancelled)
{
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *p = shut_pipe();
        test_batch b = test_batch_new(p, ROWS, 1), marked = test_batch_new(p, ROWS, 1);
        submitter submit = evaluates ? submit_evaluation : submit_train;
        ((float *)marked.x.data)[0] = MARK;
        OK(gpp_pipe_set_watchdog(p, NEVER_SOON, &err), "watched");
        run_ahead(p, &b, submit, 4, 3, "moves");
        OK(gpp_pipe_set_watchdog(p, SOON, &err), "watched");
        shut();
        OK(submit(p, &marked, &err), "does not move");
        OK(submit(p, &b, &err), "behind it");
        wait_for_others();
        cr_expect_eq(gpp_pipe_wait(p, NULL, &err), GPP_ETIMEDOUT, "%s", err.msg);
        cr_expect(strstr(err.msg, "no task has ended for") && err.code == GPP_ETIMEDOUT, "%s",
                  err.msg);
        gpp_error_clear(&err);
        cr_expect_eq(gpp_pipe_wait(p, NULL, &err), GPP_ECANCELED, "%s", err.msg);
        cr_expect_eq(gpp_pipe_submitted(p), 0);
        cr_expect_eq(submit(p, &b, NULL), GPP_ESTATE);
        cr_expect_eq(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, NULL), GPP_ESTATE);
        cr_expect_eq(gpp_pipe_freeze(p, "2", true, NULL), GPP_ESTATE, "its tasks still run");
        cr_expect_eq(gpp_pipe_save_state(p, "/nowhere", NULL, 0, NULL), GPP_ESTATE);
        cr_expect_not(meeting.left);
        open_all();
        gpp_pipe_free(p);
        test_batch_free(&b);
        test_batch_free(&marked);
    }
}

/* What does not come back may be found out by any call that waits, or by freeing. */
Test(submit, a_step_that_does_not_move_is_found_by_whatever_waits_for_it)
{
    for (int how = 0; how < 4; how++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *p = shut_pipe();
        test_batch marked = test_batch_new(p, ROWS, 1);
        pthread_t later;
        ((float *)marked.x.data)[0] = MARK;
        shut();
        OK(gpp_pipe_set_watchdog(p, SOON, &err), "watched");
        OK(submit_train(p, &marked, &err), "does not move");
        wait_for_others();
        if (how == 0)
            cr_expect_eq(gpp_pipe_step(p, &marked.x, &marked.target, NULL, NULL, NULL), GPP_ESTATE);
        if (how == 1)
            cr_expect_eq(gpp_pipe_freeze(p, "2", true, NULL), GPP_ESTATE);
        if (how == 2)
            cr_expect_eq(gpp_pipe_save_state(p, "/nowhere", NULL, 0, NULL), GPP_ESTATE);
        cr_expect_not(meeting.left, "%d", how);
        cr_assert_eq(pthread_create(&later, NULL, open_later, NULL), 0);
        gpp_pipe_free(p);
        pthread_join(later, NULL);
        test_batch_free(&marked);
    }
}

/* An order that cannot go on: a position is given out to which no task belongs. */
Test(submit, steps_in_an_order_that_nobody_fills_are_given_up_and_the_pipe_goes_on)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = shut_pipe(), *q = shut_pipe();
    int last = p->recipe->devices - 1;
    test_batch b = test_batch_new(p, ROWS, 1);
    run_ahead(p, &b, submit_train, 3, 3, "moves");
    run_ahead(q, &b, submit_train, 3, 3, "moves");
    OK(gpp_pipe_set_watchdog(p, DRAINED, &err), "watched");
    OK(gpp__lane_reserve(p->device[last].lane, 1, &err), "nobody's");
    gpp__lane_extend(p->device[last].lane, 1);
    for (int k = 0; k < 3; k++)
        OK(submit_train(p, &b, &err), "waits for nobody");
    for (int k = 0; k < 3; k++) {
        gpp_error_clear(&err);
        cr_expect_eq(gpp_pipe_wait(p, NULL, &err), k ? GPP_ECANCELED : GPP_ETIMEDOUT, "%s",
                     err.msg);
    }
    cr_expect_not(p->watchdog.stuck);
    OK(gpp_pipe_set_watchdog(p, NEVER_SOON, NULL), "watched");
    gpp_error_clear(&err);
    run_ahead(p, &b, submit_train, 3, 2, "goes on");
    run_ahead(q, &b, submit_train, 3, 2, "goes on");
    test_trace x = {0}, y = {0};
    test_trace_params(&x, p);
    test_trace_params(&y, q);
    cr_expect_eq(test_trace_differs(&x, &y), -1);
    test_trace_free(&x);
    test_trace_free(&y);
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

/* The step after one that fails does not come back: the failure is reported nevertheless. */
Test(submit, a_failure_is_reported_although_a_later_step_does_not_move)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = meeting_pipe("late; picky @p1; linear out=3", (int[]){1, 2}, 2, NULL);
    test_batch b = test_batch_new(p, ROWS, 1), marked = test_batch_new(p, ROWS, 1);
    run_ahead(p, &b, submit_evaluation, 4, 2, "moves");
    OK(gpp_pipe_set_watchdog(p, DRAINED, &err), "watched");
    ((float *)b.x.data)[6 * ROWS - 1] = NAN;
    ((float *)marked.x.data)[0] = MARK;
    picky.label = "p1";
    picky.in_backward = false;
    picky.status = GPP_EKERNEL;
    shut();
    OK(submit_evaluation(p, &b, &err), "fails when the other waits");
    OK(submit_evaluation(p, &marked, &err), "does not move");
    wait_for_others();
    cr_expect_eq(gpp_pipe_wait(p, NULL, &err), GPP_EKERNEL, "%s", err.msg);
    cr_expect_not(meeting.left, "it was waited for");
    cr_expect_eq(gpp_pipe_wait(p, NULL, NULL), GPP_ECANCELED);
    cr_expect_eq(submit_train(p, &b, NULL), GPP_ESTATE);
    picky.label = NULL;
    open_all();
    gpp_pipe_free(p);
    test_batch_free(&b);
    test_batch_free(&marked);
}

Test(submit, the_first_step_that_fails_is_reported_even_if_a_later_one_has_failed_before)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = meeting_pipe("late; picky @p1; linear out=3", (int[]){1, 2}, 2, NULL);
    test_batch b = test_batch_new(p, ROWS, 1), refused = test_batch_new(p, ROWS, 1);
    run_ahead(p, &b, submit_evaluation, 4, 2, "moves");
    ((float *)b.x.data)[6 * ROWS - 1] = NAN;
    ((float *)refused.x.data)[0] = REFUSED;
    picky.label = "p1";
    picky.in_backward = false;
    picky.status = GPP_EKERNEL;
    shut();
    OK(submit_evaluation(p, &b, &err), "fails when the other has failed");
    OK(submit_evaluation(p, &refused, &err), "fails at once");
    cr_expect_eq(gpp_pipe_wait(p, NULL, &err), GPP_EKERNEL, "%s", err.msg);
    cr_expect_eq(gpp_pipe_wait(p, NULL, NULL), GPP_ECANCELED);
    OK(submit_evaluation(p, &refused, NULL), "by itself");
    cr_expect_eq(gpp_pipe_wait(p, NULL, NULL), GPP_EINVAL);
    picky.label = NULL;
    open_all();
    gpp_pipe_free(p);
    test_batch_free(&b);
    test_batch_free(&refused);
}

/* --- limits and misuse ------------------------------------------------------------------------ */

static const test_model small = {
    "two linears and dropout", "linear out=6; dropout p=0.2; tanh; linear out=3", 1, {4}, "mse"};

static gpp_pipe *small_pipe(int partitions, int chunks)
{
    gpp_pipe_options o = test_cut(partitions, LAST);
    o.chunks = chunks;
    return test_pipe_new(&small, &o);
}

Test(submit, more_steps_than_there_is_room_for_are_refused_and_the_others_go_on)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = small_pipe(2, 2), *q = small_pipe(2, 2);
    test_batch b = test_batch_new(p, 8, 1);
    for (int k = 0; k < GPP_MAX_SUBMITTED; k++) {
        cr_expect_eq(gpp_pipe_submitted(p), k);
        OK(gpp_pipe_submit(p, &b.x, &b.target, NULL, &err), "within the limit");
    }
    cr_expect_eq(gpp_pipe_submit(p, &b.x, &b.target, NULL, &err), GPP_ESTATE);
    cr_expect(strstr(err.msg, "4 steps"), "%s", err.msg);
    cr_expect_eq(gpp_pipe_submit_evaluation(p, &b.x, NULL, NULL, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_pipe_submitted(p), GPP_MAX_SUBMITTED);
    for (int k = 0; k < GPP_MAX_SUBMITTED; k++) {
        gpp_error_clear(&err);
        OK(gpp_pipe_wait(p, NULL, &err), "the refused one changes nothing");
        OK(gpp_pipe_step(q, &b.x, &b.target, NULL, NULL, &err), "alone");
    }
    test_trace x = {0}, y = {0};
    test_trace_params(&x, p);
    test_trace_params(&y, q);
    cr_expect_eq(test_trace_differs(&x, &y), -1);
    test_trace_free(&x);
    test_trace_free(&y);
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

Test(submit, wrong_calls_are_told_and_change_nothing)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = small_pipe(2, 2);
    test_batch b = test_batch_new(p, 8, 1);
    double loss = 7;
    cr_expect_eq(gpp_pipe_wait(p, &loss, &err), GPP_ESTATE);
    cr_expect(strlen(err.msg) > 10 && loss == 7, "%s", err.msg);
    cr_expect_eq(gpp_pipe_wait(NULL, &loss, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_submitted(NULL), 0);
    cr_expect_eq(gpp_pipe_submit(NULL, &b.x, &b.target, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_submit_evaluation(NULL, &b.x, NULL, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_submit(p, NULL, &b.target, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_submit(p, &b.x, NULL, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_submit_evaluation(p, NULL, NULL, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_submit(p, &b.x, &b.target, &b.x, NULL), GPP_ESHAPE);
    cr_expect_eq(gpp_pipe_submitted(p), 0);
    test_batch_free(&b);
    gpp_pipe_free(p);

    gpp_model *model = test_model_new(&small);
    OK(gpp_pipe_new(&p, model, NULL, &err), "without loss and optimizer");
    gpp_model_free(model);
    b = test_batch_new(p, 8, 1);
    cr_expect_eq(gpp_pipe_submit(p, &b.x, &b.y, NULL, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_pipe_submit_evaluation(p, &b.x, &b.y, NULL, NULL), GPP_ESTATE);
    gpp_error_clear(&err);
    OK(gpp_pipe_submit_evaluation(p, &b.x, NULL, &b.y, &err), "outputs need neither");
    OK(gpp_pipe_wait(p, &loss, &err), "outputs need neither");
    cr_expect(isnan(loss));
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(submit, mini_batches_that_do_not_fit_between_good_ones_change_nothing)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = small_pipe(2, 2), *q = small_pipe(2, 2);
    test_batch b = test_batch_new(p, 8, 1), other = test_batch_new(p, 7, 2);
    gpp_tensor wide = b.x;
    wide.dim[1] = 3;
    for (int k = 0; k < 4; k++) {
        double loss[2];
        gpp_error_clear(&err);
        OK(gpp_pipe_submit(p, &b.x, &b.target, NULL, &err), "good");
        cr_expect_eq(gpp_pipe_submit(p, &b.x, &other.target, NULL, NULL), GPP_ESHAPE);
        cr_expect_eq(gpp_pipe_submit(p, &wide, &b.target, NULL, NULL), GPP_ESHAPE);
        cr_expect_eq(gpp_pipe_submit_evaluation(p, &b.x, NULL, &other.y, NULL), GPP_ESHAPE);
        OK(gpp_pipe_submit(p, &other.x, &other.target, NULL, &err), "good");
        cr_expect_eq(gpp_pipe_submitted(p), 2);
        for (int s = 0; s < 2; s++) {
            test_batch *now = s ? &other : &b;
            OK(gpp_pipe_wait(p, &loss[0], &err), "good");
            OK(gpp_pipe_step(q, &now->x, &now->target, NULL, &loss[1], &err), "alone");
            cr_expect_eq(loss[0], loss[1]);
        }
    }
    test_batch_free(&b);
    test_batch_free(&other);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

Test(submit, a_pipe_may_be_freed_with_steps_in_flight)
{
    for (int waited = 0; waited < 3; waited++)
        for (int fails = 0; fails < 2; fails++) {
            gpp_error err = GPP_ERROR_INIT;
            failure_case c = {"freed", LAYER, "p1", 0, ADAM, 0, GPP_EKERNEL, false};
            gpp_pipe *p = failing_pipe(&c, 2, "gpipe");
            picky.label = fails ? "p1" : NULL;
            picky.in_backward = false;
            picky.status = GPP_EKERNEL;
            test_batch b = test_batch_new(p, 9, 1);
            ((float *)b.x.data)[4] = NAN;
            for (int k = 0; k < 3; k++)
                OK(submit_train(p, &b, &err), "in flight");
            for (int k = 0; k < waited; k++)
                gpp_pipe_wait(p, NULL, NULL);
            gpp_pipe_free(p);
            test_batch_free(&b);
            picky.label = NULL;
        }
}

Test(submit, other_calls_wait_for_what_is_in_flight_and_keep_its_results)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = small_pipe(2, 2), *q = small_pipe(2, 2);
    test_batch b[3], again = test_batch_new(p, 8, 0);
    double want[5], got[5];
    float w[24];
    for (int k = 0; k < 3; k++) {
        b[k] = test_batch_new(p, 8, (uint64_t)k);
        OK(gpp_pipe_submit(p, &b[k].x, &b[k].target, &b[k].y, &err), "in flight");
    }
    OK(gpp_pipe_step(p, &again.x, &again.target, NULL, &got[3], &err), "waits for three");
    OK(gpp_pipe_get(p, "0.weight", w, 24, &err), "reads");
    OK(gpp_pipe_evaluate(p, &again.x, &again.target, NULL, &got[4], &err), "waits for nothing");
    cr_expect_eq(gpp_pipe_submitted(p), 3, "they can still be waited for");
    for (int k = 0; k < 3; k++) {
        gpp_step_stats stats;
        OK(gpp_pipe_wait(p, &got[k], &err), "has landed");
        OK(gpp_pipe_last_step(p, &stats, &err), "of what was waited for");
        cr_expect(stats.lr > 0 && stats.bound_ms > 0 && stats.efficiency > 0);
        OK(gpp_pipe_step(q, &b[k].x, &b[k].target, &again.y, &want[k], &err), "alone");
        cr_expect(!memcmp(again.y.data, b[k].y.data, 8 * 3 * sizeof(float)), "step %d", k);
    }
    OK(gpp_pipe_step(q, &again.x, &again.target, NULL, &want[3], &err), "alone");
    OK(gpp_pipe_evaluate(q, &again.x, &again.target, NULL, &want[4], &err), "alone");
    for (int k = 0; k < 5; k++)
        cr_expect_eq(got[k], want[k], "%d: %g, %g", k, got[k], want[k]);
    for (int k = 0; k < 3; k++)
        test_batch_free(&b[k]);
    test_batch_free(&again);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

/* Plans of many sizes push out those of a step that is still to be waited for. */
Test(submit, stats_of_a_step_outlive_its_plan)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_step_stats stats;
    gpp_pipe *p = small_pipe(2, 2);
    test_batch b = test_batch_new(p, 8, 1);
    OK(gpp_pipe_submit(p, &b.x, &b.target, NULL, &err), "first");
    for (int rows = 9; rows < 9 + 2 * GPP__TASK_GRAPHS; rows++) {
        test_batch other = test_batch_new(p, rows, 1);
        OK(gpp_pipe_evaluate(p, &other.x, NULL, NULL, NULL, &err), "of another size");
        test_batch_free(&other);
    }
    OK(gpp_pipe_wait(p, NULL, &err), "first");
    OK(gpp_pipe_last_step(p, &stats, &err), "first");
    cr_expect(stats.bound_ms > 0 && stats.efficiency > 0, "%g of %g ms", stats.bound_ms,
              stats.step_ms);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

/* The memory is the caller's again when NULL has been given. */
Test(submit, losses_of_every_step_are_kept_where_its_submission_found_them)
{
    enum { STEPS = 4, CELLS = 8 * 3 };
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = small_pipe(2, 2), *q = small_pipe(2, 2);
    test_batch b = test_batch_new(p, 8, 1);
    float *each[STEPS], want[CELLS];
    gpp_tensor t = b.target;
    for (int k = 0; k < STEPS; k++) {
        t.data = each[k] = test_room(CELLS * sizeof(float));
        OK(gpp_pipe_keep_losses(p, &t, &err), "kept");
        OK(gpp_pipe_submit(p, &b.x, &b.target, NULL, &err), "kept");
    }
    OK(gpp_pipe_keep_losses(p, NULL, &err), "not any more");
    cr_expect_eq(p->submitted.landed, STEPS, "steps in flight still write");
    t.data = want;
    OK(gpp_pipe_keep_losses(q, &t, &err), "kept");
    for (int k = 0; k < STEPS; k++) {
        float *mine = each[k];
        OK(gpp_pipe_step(q, &b.x, &b.target, NULL, NULL, &err), "alone");
        cr_expect(!memcmp(mine, want, sizeof want), "step %d", k);
        free(mine);
        OK(gpp_pipe_wait(p, NULL, &err), "its memory is no longer needed");
    }
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

Test(submit, gradients_that_add_up_are_used_by_the_first_step_submitted)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = small_pipe(2, 2), *q = small_pipe(2, 2);
    test_batch b = test_batch_new(p, 8, 1);
    float g[24];
    for (int k = 0; k < 2; k++) {
        OK(gpp_pipe_accumulate(k ? q : p, true, &err), "adds");
        OK(gpp_pipe_gradients(k ? q : p, &b.x, &b.target, NULL, NULL, NULL, &err), "adds");
    }
    run_ahead(p, &b, submit_train, 3, 2, "adds");
    for (int k = 0; k < 3; k++)
        OK(gpp_pipe_step(q, &b.x, &b.target, NULL, NULL, &err), "adds");
    test_trace x = {0}, y = {0};
    test_trace_params(&x, p);
    test_trace_params(&y, q);
    test_trace_grads(&x, p);
    test_trace_grads(&y, q);
    cr_expect_eq(test_trace_differs(&x, &y), -1);
    OK(gpp_pipe_discard_gradients(p, &err), "discards");
    OK(submit_train(p, &b, &err), "discards");
    OK(gpp_pipe_gradient(p, "0.weight", g, 24, &err), "of the step in flight");
    OK(gpp_pipe_wait(p, NULL, &err), "discards");
    test_trace_free(&x);
    test_trace_free(&y);
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
}

/* --- memory ----------------------------------------------------------------------------------- */

Test(submit, a_steady_state_with_steps_in_flight_allocates_nothing)
{
    if (!CAN_COUNT)
        cr_skip_test("a sanitizer owns malloc");
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    for (int ahead = 2; ahead <= GPP_MAX_SUBMITTED; ahead++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe_options o = test_cut(2, NEVER);
        o.schedule = schedules[ahead - 2];
        o.chunks = 4;
        o.lr_schedule = "step size=3 gamma=0.9";
        gpp_pipe *p = test_pipe_new(&test_models[0], &o);
        test_batch b[GPP_MAX_SUBMITTED];
        size_t peak[2] = {0, 0};
        for (int k = 0; k < ahead; k++)
            b[k] = test_batch_new(p, 16, (uint64_t)k);
        for (int k = 0; k < 28; k++) {
            test_batch *now = &b[k % ahead];
            atomic_store(&own_calls, 0);
            atomic_store(&counting, k >= 4 * ahead);
            OK(k % 3 ? gpp_pipe_submit(p, &now->x, &now->target, &now->y, &err)
                     : gpp_pipe_submit_evaluation(p, &now->x, &now->target, NULL, &err),
               "steady");
            if (gpp_pipe_submitted(p) == ahead)
                OK(gpp_pipe_wait(p, NULL, &err), "steady");
            atomic_store(&counting, false);
            cr_expect_eq(own_calls, 0, "%d ahead, step %d: %d allocations", ahead, k, own_calls);
            OK(gpp_pipe_memory(p, 0, NULL, &peak[k > 4 * ahead], &err), "steady");
        }
        cr_expect_eq(peak[0], peak[1], "%d ahead: %zu bytes, then %zu", ahead, peak[0], peak[1]);
        gpp_pipe_free(p);
        for (int k = 0; k < ahead; k++)
            test_batch_free(&b[k]);
    }
}

/* --- traces ----------------------------------------------------------------------------------- */

static gpp_trace *trace_of(const gpp_pipe *p)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace *t;
    OK(gpp_pipe_trace(p, &t, &err), "a trace");
    OK(gpp__trace_check(t, NULL, &err), "contradicts itself");
    return t;
}

static size_t lasting(const gpp_pipe *p, int device)
{
    size_t bytes = 0;
    for (int j = 0; j < p->recipe->partitions; j++)
        if (p->recipe->device_of[j] == device && p->recipe->home[j] == j)
            bytes += gpp__align(gpp__recipe_block_end(p->recipe, j)->params_end) +
                     gpp__align(gpp__recipe_optimizer_bytes(p->recipe, j));
    return bytes;
}

/* From what lasts, back to it, and never more than there was. */
static void expect_bytes(const gpp_pipe *p, const gpp_trace *t, const char *why)
{
    for (int d = 0; d < t->devices; d++) {
        size_t first = SIZE_MAX, last = SIZE_MAX, most = 0;
        for (int k = 0; k < t->points; k++) {
            if (t->point[k].device != d)
                continue;
            first = first == SIZE_MAX ? t->point[k].bytes : first;
            last = t->point[k].bytes;
            most = last > most ? last : most;
        }
        cr_expect_eq(first, lasting(p, d), "%s, device %d: begins with %zu of %zu bytes", why, d,
                     first, lasting(p, d));
        cr_expect_eq(last, lasting(p, d), "%s, device %d: ends with %zu of %zu bytes", why, d, last,
                     lasting(p, d));
        cr_expect(most > lasting(p, d) && most <= t->device[d].peak,
                  "%s, device %d: %zu of %zu bytes", why, d, most, t->device[d].peak);
    }
}

/* Every task once, devices in the order of the steps, and no forward of a partition before its
 * update in the step before. */
static void expect_order(const gpp_pipe *p, const gpp_trace *t, int tasks, const char *why)
{
    int *count = calloc((size_t)t->steps, sizeof *count),
        *step = calloc((size_t)t->devices, sizeof *step);
    double *updated = calloc((size_t)(t->steps * t->partitions), sizeof *updated);
    for (int k = 0; k < t->tasks; k++) {
        const gpp_trace_task *task = &t->task[k];
        count[task->step]++;
        cr_expect_geq(task->step, step[task->device], "%s: device %d goes back", why, task->device);
        step[task->device] = task->step;
        if (task->kind == 'U')
            updated[task->step * t->partitions + p->recipe->home[task->partition]] = task->end_ms;
        if (task->kind == 'F' && task->step > 0)
            cr_expect(
                task->start_ms >=
                    updated[(task->step - 1) * t->partitions + p->recipe->home[task->partition]],
                "%s: F(%d, %d) of step %d before the update", why, task->micro_batch,
                task->partition, task->step);
    }
    for (int s = 0; s < t->steps; s++)
        cr_expect(count[s] == tasks && t->step[s].status == GPP_OK, "%s, step %d: %d of %d tasks",
                  why, s, count[s], tasks);
    free(count);
    free(step);
    free(updated);
}

static gpp_trace_report *report_of(const gpp_trace *t)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace_report *r;
    OK(gpp_trace_report_new(&r, t, NULL, &err), "a report");
    return r;
}

/* What a device did adds up to the time it had, and to its tasks' times. */
static void expect_sums(const gpp_trace *t, const char *why)
{
    gpp_trace_report *r = report_of(t);
    for (int d = 0; d < t->devices; d++) {
        double busy = 0;
        int tasks = 0;
        for (int k = 0; k < t->tasks; k++)
            if (t->task[k].device == d) {
                busy += t->task[k].end_ms - t->task[k].start_ms;
                tasks++;
            }
        for (int s = 0; s <= t->steps; s++) {
            const gpp_trace_share *x = s < t->steps ? &r->share[s * t->devices + d] : &r->all[d];
            double parts = x->busy_ms + x->warm_up_ms + x->transfer_ms + x->runtime_ms +
                           x->imbalance_ms + x->data_ms + x->drain_ms;
            cr_expect_float_eq(parts, x->span_ms, 1e-6 + 1e-9 * parts, "%s: %g of %g ms", why,
                               parts, x->span_ms);
            cr_expect(x->warm_up_ms >= 0 && x->drain_ms >= 0 && x->data_ms >= 0 &&
                          x->imbalance_ms >= 0 && x->runtime_ms >= 0,
                      "%s: less than nothing", why);
        }
        cr_expect_float_eq(busy, r->all[d].busy_ms, 1e-6, "%s: busy for %g of %g ms", why,
                           r->all[d].busy_ms, busy);
        cr_expect_eq(tasks, r->all[d].tasks, "%s", why);
    }
    gpp_trace_report_free(r);
}

static void expect_files(const gpp_trace *t, const char *why)
{
    char folder[256], path[512];
    gpp_error err = GPP_ERROR_INIT;
    test_folder_new(folder);
    for (int format = GPP_TRACE_CSV; format <= GPP_TRACE_SVG; format++) {
        char *text, *again;
        gpp_trace *back;
        OK(gpp_trace_text(t, (gpp_trace_format)format, &text, &err), why);
        cr_expect(strlen(text) > 100, "%s, format %d", why, format);
        if (format == GPP_TRACE_CSV) {
            OK(gpp_trace_write(t, test_path(folder, "t.csv", path), GPP_TRACE_CSV, &err), why);
            OK(gpp_trace_read(&back, path, &err), why);
            OK(gpp_trace_text(back, GPP_TRACE_CSV, &again, &err), why);
            cr_expect_str_eq(again, text, "%s", why);
            gpp_string_free(again);
            gpp_trace_free(back);
        }
        gpp_string_free(text);
    }
    for (int form = GPP_TRACE_REPORT_TEXT; form <= GPP_TRACE_REPORT_JSON; form++) {
        char *text;
        gpp_trace_report *r = report_of(t);
        OK(gpp_trace_report_text(r, (gpp_trace_report_form)form, &text, &err), why);
        gpp_string_free(text);
        gpp_trace_report_free(r);
    }
    test_folder_remove(folder);
}

/* Whether the first task of step s starts before the last one of the step before has ended. */
static bool overlaps(const gpp_trace *t, int s)
{
    double begin = INFINITY, end = 0;
    for (int k = 0; k < t->tasks; k++) {
        if (t->task[k].step == s)
            begin = fmin(begin, t->task[k].start_ms);
        if (t->task[k].step == s - 1)
            end = fmax(end, t->task[k].end_ms);
    }
    return begin < end;
}

enum { RECORDED = 5 };

/* Each step begins before the last has ended, or after it. */
static void expect_gaps(const gpp_trace *t, bool overlap, const char *why)
{
    gpp_trace_report *r = report_of(t);
    cr_expect_eq(t->steps, RECORDED, "%s", why);
    for (int s = 1; s < t->steps; s++) {
        cr_expect_eq(overlaps(t, s), overlap, "%s, step %d", why, s);
        cr_expect_eq(r->gap_ms[s] < 0, overlap, "%s, step %d: %g ms", why, s, r->gap_ms[s]);
    }
    gpp_trace_report_free(r);
}

static void expect_sound(const gpp_pipe *p, const gpp_trace *t, bool overlap, const char *why)
{
    expect_gaps(t, overlap, why);
    expect_order(p, t, t->tasks / RECORDED, why);
    expect_bytes(p, t, why);
    expect_sums(t, why);
    expect_files(t, why);
}

Test(submit, a_trace_shows_the_gap_between_evaluations_and_that_it_is_gone)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = meeting_pipe("early; linear out=5; late; linear out=3", (int[]){2, 2}, 3, NULL);
    test_batch b = test_batch_new(p, ROWS, 1);
    OK(gpp_pipe_record(p, RECORDED, &err), "waits");
    for (int k = 0; k < RECORDED; k++)
        OK(gpp_pipe_evaluate(p, &b.x, &b.target, NULL, NULL, &err), "waits");
    gpp_trace *t = trace_of(p);
    expect_sound(p, t, false, "one after the other");
    gpp_trace_free(t);
    run_ahead(p, &b, submit_evaluation, 3, 3, "moves");
    OK(gpp_pipe_record(p, RECORDED, &err), "submits");
    meet(RECORDED, 2);
    run_ahead(p, &b, submit_evaluation, RECORDED, 3, "submits");
    meeting.on = false;
    t = trace_of(p);
    expect_sound(p, t, true, "submitted");
    gpp_trace_free(t);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(submit, a_trace_shows_updates_beside_the_next_steps_forwards)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    for (size_t k = 0; k < COUNT(schedules); k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *p =
            meeting_pipe("early; linear out=5; linear out=3", (int[]){2, 1}, 4, schedules[k]);
        plain = p->recipe->optimizer;
        gpp_optimizer waiting = *plain;
        waiting.update = meeting_update;
        p->own_recipe->optimizer = &waiting;
        test_batch b = test_batch_new(p, ROWS, 1);
        run_ahead(p, &b, submit_train, 2, 2, schedules[k]);
        OK(gpp_pipe_record(p, RECORDED, &err), "submits");
        meet(RECORDED, 3);
        run_ahead(p, &b, submit_train, RECORDED, 2, schedules[k]);
        meeting.on = false;
        gpp_trace *t = trace_of(p);
        expect_sound(p, t, true, schedules[k]);
        gpp_trace_free(t);
        p->own_recipe->optimizer = plain;
        test_batch_free(&b);
        gpp_pipe_free(p);
    }
}

/* Whatever overlaps, with statistics, dropout, recomputations and updates that wait for norms. */
Test(submit, traces_of_submitted_steps_of_every_kind_are_sound)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved"};
    static const submitter submit[] = {submit_train, submit_evaluation, submit_nothing};
    for (int n = 1; n <= 4; n++)
        for (int how = 0; how < 3; how++) {
            gpp_error err = GPP_ERROR_INIT;
            gpp_pipe_options o = test_cut(n, LAST);
            o.schedule = schedules[n == 4 ? 2 : n % 2];
            o.chunks = n == 4 ? 4 : 3;
            o.clip_norm = n > 2;
            gpp_pipe *p = test_pipe_new(&test_stateful, &o);
            test_batch b = test_batch_new(p, 12, 1);
            run_ahead(p, &b, submit[how], 3, 3, "moves");
            OK(gpp_pipe_record(p, RECORDED, &err), "records");
            run_ahead(p, &b, submit[how], RECORDED + 2, 3, "runs");
            gpp_trace *t = trace_of(p);
            cr_expect_eq(t->steps, RECORDED);
            expect_order(p, t, t->tasks / RECORDED, o.schedule);
            expect_bytes(p, t, o.schedule);
            expect_sums(t, o.schedule);
            expect_files(t, o.schedule);
            gpp_trace_free(t);
            test_batch_free(&b);
            gpp_pipe_free(p);
        }
}

/* As in test_trace.c; which of two steps in flight something was moved for the runtime does not
 * say. */
Test(submit, fetched_bytes_are_those_that_the_runtime_moves_between_memory_nodes)
{
    setenv("HWLOC_SYNTHETIC", "numa:2(memory=4GB) core:1 pu:1", 1);
    setenv("STARPU_USE_NUMA", "1", 1);
    gpp_error err = GPP_ERROR_INIT;
    size_t moved = 0, fetched = 0;
    gpp_pipe *p = small_pipe(2, 3);
    test_batch b = test_batch_new(p, 8, 1);
    if (p->recipe->devices < 2 || p->node_of[0] == p->node_of[1])
        cr_skip_test("this StarPU does not tell memory nodes apart");
    run_ahead(p, &b, submit_train, 3, 3, "moves");
    OK(gpp_pipe_record(p, RECORDED, &err), "records");
    for (int k = 0; k < RECORDED; k++) {
        OK(submit_train(p, &b, &err), "records");
        gpp__job_wait(&p->flight[p->submitted.flight[p->submitted.count - 1]].job,
                      NULL); /* has moved all it moves */
        if (k >= 2)
            OK(gpp_pipe_wait(p, NULL, &err), "records");
    }
    while (gpp_pipe_submitted(p))
        OK(gpp_pipe_wait(p, NULL, &err), "records");
    gpp_trace *t = trace_of(p);
    for (int k = 0; k < t->links; k++)
        moved += t->link[k].bytes;
    for (int k = 0; k < t->tasks; k++)
        fetched += t->task[k].fetched_bytes;
    cr_expect(fetched > 0 && moved == fetched, "%zu bytes moved, %zu fetched", moved, fetched);
    gpp_trace_free(t);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(submit, a_trace_holds_what_has_landed_and_says_what_was_cancelled)
{
    gpp_error err = GPP_ERROR_INIT;
    failure_case c = {"recorded", LAYER, "p1", 0, ADAM, 0, GPP_EKERNEL, false};
    gpp_pipe *p = failing_pipe(&c, 2, "gpipe");
    gpp_trace *t;
    test_batch b = test_batch_new(p, 9, 1), bad = test_batch_new(p, 9, 1);
    ((float *)bad.x.data)[0] = NAN;
    picky.label = "p1";
    picky.in_backward = false;
    picky.status = GPP_EKERNEL;
    OK(gpp_pipe_record(p, 4, &err), "records");
    for (int k = 0; k < 4; k++)
        OK(submit_train(p, k == 1 ? &bad : &b, &err), "records");
    OK(gpp_pipe_wait(p, NULL, &err), "the first");
    t = trace_of(p);
    cr_expect(t->steps >= 1 && t->step[0].status == GPP_OK);
    gpp_trace_free(t);
    while (gpp_pipe_submitted(p))
        gpp_pipe_wait(p, NULL, NULL);
    t = trace_of(p);
    cr_expect_eq(t->steps, 4);
    for (int s = 0; s < t->steps; s++)
        cr_expect_eq(t->step[s].status, s == 0 ? GPP_OK : s == 1 ? GPP_EKERNEL : GPP_ECANCELED);
    for (int k = 0; k < t->tasks; k++)
        cr_expect(t->task[k].step == 0 || t->task[k].kind != 'U', "nothing was updated");
    expect_files(t, "cancelled");
    gpp_trace_free(t);
    picky.label = NULL;
    OK(submit_train(p, &b, &err), "beyond what is recorded");
    OK(gpp_pipe_record(p, 0, &err), "stops");
    OK(gpp_pipe_wait(p, NULL, &err), "and is none the worse for it");
    test_batch_free(&b);
    test_batch_free(&bad);
    gpp_pipe_free(p);
}
