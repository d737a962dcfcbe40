/*
 * tests/test_random_calls.c: random options, and random sequences of calls, on two pipes of one
 * model that are cut differently. Statuses, losses, outputs, gradients, parameters, statistics and
 * state files must be the same bits.
 *
 * What is compared is what the calls promise. After a call that fails, or a step that was
 * cancelled, the caller's outputs and kept losses hold anything: tasks that had begun have written,
 * the others have not, and which is a matter of time. So only those of successes are compared; and
 * kept losses, which all steps write to one place, only when no other step is in flight.
 *
 *   GRIDPIPE_RANDOM_SEED=0 GRIDPIPE_RANDOM_CALLS=100000   a run at length: sequences from a seed on
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/files.h"
#include "tests/pipes.h"
#include "tests/ranks.h"
#include "tests/support.h"

TEST_STARPU_LOSES_REQUESTS

enum { MOST = 24, CLASSES = 4, CALLS = 50, PASSES = 6 };
/* So many sequences draw all pairs of options; then they are drawn anew. */
enum { ROUND = 120, SEQUENCES = 4 * ROUND };
enum { NONE = -1, NO_PASS = -2 }; /* NO_PASS: no forward has this name */
/* What an input holds that the operator `touchy` refuses. */
#define REFUSED 43.0f

#define COUNT(table) (sizeof table / sizeof *table)

/* --- options ---------------------------------------------------------------------------------- */

/* What may be chosen, independently of each other. */
enum {
    MODEL,
    CHUNKS,
    PARTITIONS, /* of the second pipe; the first has one */
    PLACES,     /* of its partitions */
    FIRST_MODE,
    SECOND_MODE,
    ORDER,
    BATCH,
    CLIP,
    SKIP,
    NAN_ERROR,
    DEFERRED,
    LOSS,
    WEIGHTS,
    OPTIMIZER,
    LR_SCHEDULE,
    FROZEN, /* and the rest from the first call on, which calls may change */
    ACCUMULATE,
    KEEP_LOSSES,
    AS_EVALUATION,
    WATCHDOG,
    REPLICAS, /* of both pipes */
    SHARDS,   /* of the second one */
    OPTIONS
};

typedef struct model_text {
    const char *text;
    int rank;
    int64_t dim[3], row; /* row: elements */
    bool has_records;    /* batch normalisation: a NaN would stay in its statistics */
} model_text;

static const model_text models[] = {
    {"linear out=6 @first; batchnorm @bn; touchy; relu; stash name=s; linear out=6; dropout p=0.3; "
     "pop name=s mode=add; linear out=6; tanh; linear out=4",
     1,
     {6},
     6,
     true},
    {"linear out=8 @first; tanh; touchy; linear out=8 @b; layernorm shape=8; gelu; stash name=x; "
     "dropout p=0.2; linear out=8; pop name=x mode=cat dim=1; linear out=4",
     1,
     {6},
     6,
     false},
    {"conv2d out=4 kernel=3 padding=1 @first; batchnorm; relu; touchy; conv2d out=4 kernel=3 "
     "padding=1; batchnorm momentum=none; maxpool2d kernel=2; dropout p=0.2; flatten; linear out=4",
     3,
     {2, 4, 4},
     32,
     true},
    {"linear out=6 @first; touchy; chain { relu; linear out=6; dropout p=0.5 } @c; split dim=1 "
     "parts=2; mul; linear out=5; softplus; linear out=4",
     1,
     {6},
     6,
     false},
};
static const char *const orders[] = {"gpipe", "ascending", "1f1b", "interleaved", "zb-h1", "auto"};
enum { GPIPE, ASCENDING, ZB_H1 = 4, AUTO };
static const char *const losses[] = {"cross_entropy", "cross_entropy reduction=sum",
                                     "cross_entropy label_smoothing=0.1 reduction=none", "mse"};
enum { MSE = 3 };
static const char *const optimizers[] = {
    "sgd lr=0.05",     "sgd lr=0.02 momentum=0.9 weight_decay=0.01",
    "adam lr=0.01",    "adamw lr=0.01",
    "rmsprop lr=0.01", "adagrad",
    "nadam lr=0.01",   "adadelta"};
static const char *const lr_schedules[] = {NULL, "cosine steps=50", "step size=5 warmup=3",
                                           "onecycle max=0.1 steps=400"};
#define FIVE "cpu:0", "cpu:0", "cpu:0", "cpu:0", "cpu:0"
static const char *const same_place[] = {FIVE, FIVE, FIVE};

/* Choices of each. */
static const int choices[OPTIONS] = {
    [MODEL] = COUNT(models),
    [CHUNKS] = 5,
    [PARTITIONS] = 5,
    [PLACES] = 2,
    [FIRST_MODE] = 3,
    [SECOND_MODE] = 4,
    [ORDER] = COUNT(orders),
    [BATCH] = 2,
    [CLIP] = 2,
    [SKIP] = 2,
    [NAN_ERROR] = 2,
    [DEFERRED] = 2,
    [LOSS] = COUNT(losses),
    [WEIGHTS] = 2,
    [OPTIMIZER] = 8,
    [LR_SCHEDULE] = COUNT(lr_schedules),
    [FROZEN] = 2,
    [ACCUMULATE] = 2,
    [KEEP_LOSSES] = 2,
    [AS_EVALUATION] = 2,
    [WATCHDOG] = 2,
    [REPLICAS] = 3,
    [SHARDS] = 2,
};
enum { MOST_CHOICES = 8 };

/* Refused by the library: a split backward with a budget, class weights of a loss without
 * classes. One replica has no shards. */
static bool possible(const int c[OPTIONS])
{
    return (c[REPLICAS] || !c[SHARDS]) &&
           !(c[ORDER] >= ZB_H1 && c[SECOND_MODE] == GPP_CHECKPOINT_BUDGET) &&
           !(c[LOSS] == MSE && c[WEIGHTS]);
}

/* Which pairs of choices have been drawn. */
static bool met[OPTIONS][MOST_CHOICES][OPTIONS][MOST_CHOICES];

static int new_pairs(const int c[OPTIONS])
{
    int count = 0;
    for (int a = 0; a < OPTIONS; a++)
        for (int b = 0; b < a; b++)
            count += !met[a][c[a]][b][c[b]];
    return count;
}

static void note_pairs(const int c[OPTIONS])
{
    for (int a = 0; a < OPTIONS; a++)
        for (int b = 0; b < a; b++)
            met[a][c[a]][b][c[b]] = true;
}

/* Whether any choice of the others makes this pair possible. */
static bool pair_possible(int a, int x, int b, int y)
{
    int c[OPTIONS] = {[REPLICAS] = 1};
    c[a] = x;
    c[b] = y;
    return possible(c);
}

static int count_pairs(int *possible_pairs)
{
    int count = 0;
    *possible_pairs = 0;
    for (int a = 0; a < OPTIONS; a++)
        for (int x = 0; x < choices[a]; x++)
            for (int b = 0; b < a; b++)
                for (int y = 0; y < choices[b]; y++) {
                    *possible_pairs += pair_possible(a, x, b, y);
                    count += met[a][x][b][y];
                }
    return count;
}

/* --- a sequence ------------------------------------------------------------------------------- */

typedef enum call_kind {
    STEP,
    GRADIENTS,
    EVALUATE,
    SUBMIT,
    SUBMIT_EVALUATION,
    WAIT,
    FORWARD,
    BACKWARD,
    DISCARD,
    UPDATE,
    ACCUMULATES,
    DISCARD_GRADIENTS,
    FREEZE,
    GROUP,
    RATE,
    GET_AND_SET,
    GET_GRADIENT,
    BUFFERS,
    SAVE,
    LOAD,
    TRAINING,
    KEEP,
    RECORD,
    KINDS
} call_kind;

/* A call, the same for both pipes. */
typedef struct call {
    call_kind kind;
    int rows, pick, pass;
    bool first, second; /* choices of its own */
} call;

typedef struct side {
    gpp_pipe *pipe;
    int pass[PASSES];
    float y[GPP_MAX_SUBMITTED][MOST * CLASSES], each[MOST * CLASSES];
    test_trace got; /* what the call has given */
} side;

typedef struct sequence {
    uint64_t seed, state;
    int choice[OPTIONS];
    const model_text *model;
    float x[MOST * 32], grad_y[MOST * CLASSES], values[MOST * CLASSES];
    int64_t classes[MOST];
    int kept_rows; /* for which losses are kept; 0: they are not */
    struct {
        bool y;
        int rows;
    } submitted[GPP_MAX_SUBMITTED]; /* in a ring, as y of the sides: */
    int oldest, count;
    int last_kept; /* of these, the one that writes kept losses last; NONE: none of them does */
    int pass_rows[PASSES]; /* of kept forwards; 0: none */
    int go_back_soon;      /* so many of the next calls mostly belong to these */
    float pass_x[PASSES][MOST * 32];
    char folder[256], log[CALLS * 32];
    side side[2];
    /* Where ranks run the second pipe together, each has the whole sequence and a first pipe of its
     * own. */
    gpp_comm *comm;
    bool sees_x, sees_y; /* tasks of this rank write gradients of x, and y */
} sequence;

static int draw(sequence *s, int below)
{
    s->state = s->state * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((s->state >> 33) % (uint64_t)below);
}

static void say(sequence *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(sequence *s, const char *format, ...)
{
    size_t length = strlen(s->log);
    va_list args;
    va_start(args, format);
    vsnprintf(s->log + length, sizeof s->log - length, format, args);
    va_end(args);
}

static void draw_options(sequence *s)
{
    int best = -1;
    for (int attempt = 0; attempt < 30; attempt++) {
        int c[OPTIONS];
        for (int k = 0; k < OPTIONS; k++)
            c[k] = draw(s, choices[k]);
        if (!possible(c) || new_pairs(c) <= best)
            continue;
        best = new_pairs(c);
        memcpy(s->choice, c, sizeof c);
    }
    note_pairs(s->choice);
}

/* --- what is compared ------------------------------------------------------------------------- */

static void give_number(side *d, double x)
{
    float halves[2];
    memcpy(halves, &x, sizeof x);
    test_trace_add(&d->got, halves, 2);
}

static void give_status(side *d, gpp_status status, const gpp_error *err)
{
    give_number(d, status);
    if (status == GPP_OK)
        return;
    give_number(d, err->layer);
    give_number(d, err->micro_batch);
    give_number(d, err->msg[0] != 0);
}

static void give_stats(side *d)
{
    gpp_step_stats stats;
    gpp_status status = gpp_pipe_last_step(d->pipe, &stats, NULL);
    give_number(d, status);
    if (status != GPP_OK)
        return;
    give_number(d, stats.lr);
    give_number(d, stats.grad_norm);
    give_number(d, stats.skipped);
    give_number(d, stats.micro_batches);
}

static void give_each(const sequence *s, side *d, int rows)
{
    if (s->sees_y)
        test_trace_add(&d->got, d->each, (size_t)(rows * (s->choice[LOSS] == MSE ? CLASSES : 1)));
}

static void expect_same(sequence *s, bool *good)
{
    long at = test_trace_differs(&s->side[0].got, &s->side[1].got);
    if (at >= 0 && *good) {
        char options[OPTIONS * 4] = "";
        for (int k = 0; k < OPTIONS; k++)
            sprintf(options + strlen(options), "%d ", s->choice[k]);
        cr_expect(false,
                  "seed %llu, options %s(%s, %s): result %ld of %zu and %zu of the last of%s",
                  (unsigned long long)s->seed, options, orders[s->choice[ORDER]],
                  gpp_checkpoint_name((gpp_checkpoint)s->choice[SECOND_MODE]), at,
                  s->side[0].got.count, s->side[1].got.count, s->log);
        *good = false;
    }
    s->side[0].got.count = s->side[1].got.count = 0;
}

/* --- calls ------------------------------------------------------------------------------------ */

static gpp_tensor inputs(const sequence *s, float *x, int rows)
{
    gpp_tensor t = {x, GPP_F32, s->model->rank + 1, {rows}};
    memcpy(&t.dim[1], s->model->dim, (size_t)s->model->rank * sizeof *t.dim);
    return t;
}

static gpp_tensor matrix(float *data, int rows)
{
    return (gpp_tensor){data, GPP_F32, 2, {rows, CLASSES}};
}

static gpp_tensor target_of(sequence *s, int rows)
{
    return s->choice[LOSS] == MSE ? matrix(s->values, rows)
                                  : (gpp_tensor){s->classes, GPP_I64, 1, {rows}};
}

/* A pass over a mini-batch that is waited for. */
static void run_now(sequence *s, side *d, const call *c)
{
    float y[MOST * CLASSES], grad_x[MOST * 32];
    gpp_error err = GPP_ERROR_INIT;
    gpp_tensor x = inputs(s, s->x, c->rows), t = target_of(s, c->rows), out = matrix(y, c->rows),
               gx = inputs(s, grad_x, c->rows);
    double loss = NAN;
    bool wants_x = c->kind == GRADIENTS && c->second, target = c->kind != EVALUATE || c->second;
    const gpp_tensor *outputs = c->first ? &out : NULL;
    gpp_status status =
        c->kind == STEP ? gpp_pipe_step(d->pipe, &x, &t, outputs, &loss, &err)
        : c->kind == GRADIENTS
            ? gpp_pipe_gradients(d->pipe, &x, &t, outputs, wants_x ? &gx : NULL, &loss, &err)
            : gpp_pipe_evaluate(d->pipe, &x, target ? &t : NULL, outputs, target ? &loss : NULL,
                                &err);
    give_status(d, status, &err);
    give_stats(d);
    if (status != GPP_OK)
        return;
    give_number(d, loss);
    if (c->first && s->sees_y)
        test_trace_add(&d->got, y, (size_t)(c->rows * CLASSES));
    if (wants_x && s->sees_x)
        test_trace_add(&d->got, grad_x, (size_t)(c->rows * s->model->row));
    if (target && s->kept_rows)
        give_each(s, d, c->rows);
}

static int place_of(const sequence *s, int k)
{
    return (s->oldest + k) % GPP_MAX_SUBMITTED;
}

static void submit(sequence *s, side *d, const call *c)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_tensor x = inputs(s, s->x, c->rows), t = target_of(s, c->rows),
               y = matrix(d->y[place_of(s, s->count)], c->rows);
    const gpp_tensor *outputs = c->first ? &y : NULL;
    gpp_status status =
        c->kind == SUBMIT
            ? gpp_pipe_submit(d->pipe, &x, &t, outputs, &err)
            : gpp_pipe_submit_evaluation(d->pipe, &x, c->second ? &t : NULL, outputs, &err);
    give_status(d, status, &err);
}

static void wait_for_one(sequence *s, side *d, const call *c)
{
    (void)c;
    gpp_error err = GPP_ERROR_INIT;
    double loss = NAN;
    gpp_status status = gpp_pipe_wait(d->pipe, &loss, &err);
    give_status(d, status, &err);
    give_stats(d);
    if (status != GPP_OK)
        return;
    give_number(d, loss);
    if (s->submitted[s->oldest].y && s->sees_y)
        test_trace_add(&d->got, d->y[s->oldest], (size_t)(s->submitted[s->oldest].rows * CLASSES));
    if (s->last_kept == s->oldest)
        give_each(s, d, s->submitted[s->oldest].rows);
}

static void go_forward(sequence *s, side *d, const call *c)
{
    float y[MOST * CLASSES];
    gpp_error err = GPP_ERROR_INIT;
    gpp_tensor x = inputs(s, s->pass_x[c->pass], c->rows), out = matrix(y, c->rows);
    gpp_status status = gpp_pipe_forward(d->pipe, &x, &out, &d->pass[c->pass], &err);
    give_status(d, status, &err);
    if (status == GPP_OK && s->sees_y)
        test_trace_add(&d->got, y, (size_t)(c->rows * CLASSES));
}

static void go_back(sequence *s, side *d, const call *c)
{
    float grad_x[MOST * 32];
    gpp_error err = GPP_ERROR_INIT;
    int rows = s->pass_rows[c->pass] ? s->pass_rows[c->pass] : 1;
    gpp_tensor x = inputs(s, s->pass_x[c->pass], rows), gx = inputs(s, grad_x, rows),
               gy = matrix(s->grad_y, rows);
    gpp_status status =
        gpp_pipe_backward(d->pipe, s->pass_rows[c->pass] ? d->pass[c->pass] : NO_PASS, &x, &gy,
                          c->first ? &gx : NULL, &err);
    give_status(d, status, &err);
    if (status == GPP_OK && c->first && s->sees_x)
        test_trace_add(&d->got, grad_x, (size_t)(rows * s->model->row));
}

static void get_and_set(sequence *s, side *d, const call *c)
{
    (void)s;
    enum { ROOM = 512 };
    float value[ROOM];
    gpp_error err = GPP_ERROR_INIT;
    gpp_parameter_info info;
    gpp_pipe_parameter(d->pipe, c->pick % gpp_pipe_parameters(d->pipe), &info, NULL);
    cr_assert(info.count <= ROOM);
    bool gradient = c->kind == GET_GRADIENT;
    gpp_status status = gradient ? gpp_pipe_gradient(d->pipe, info.name, value, info.count, &err)
                                 : gpp_pipe_get(d->pipe, info.name, value, info.count, &err);
    give_status(d, status, &err);
    if (status == GPP_OK)
        test_trace_add(&d->got, value, (size_t)info.count);
    if (status != GPP_OK || gradient || !c->first)
        return;
    value[c->pick % info.count] += 0.125f;
    give_status(d, gpp_pipe_set(d->pipe, info.name, value, info.count, &err), &err);
}

static void give_buffers(sequence *s, side *d, const call *c)
{
    (void)s, (void)c;
    for (int k = 0; k < gpp_pipe_buffers(d->pipe); k++) {
        float value[64] = {0};
        gpp_buffer_info info;
        gpp_pipe_buffer(d->pipe, k, &info, NULL);
        cr_assert((size_t)info.count * gpp_dtype_size(info.dtype) <= sizeof value);
        give_number(d, gpp_pipe_get_buffer(d->pipe, info.name, value, info.count, NULL));
        test_trace_add(&d->got, value, COUNT(value));
    }
}

static gpp_status keep_losses(const sequence *s, side *d, const call *c, gpp_error *err)
{
    int row = s->choice[LOSS] == MSE ? CLASSES : 1;
    gpp_tensor each = {d->each, GPP_F32, row > 1 ? 2 : 1, {c->rows, row}};
    return gpp_pipe_keep_losses(d->pipe, c->first && c->rows ? &each : NULL, err);
}

static gpp_status try_change(sequence *s, side *d, const call *c, gpp_error *err)
{
    static const char *const names[] = {"first", "first.weight", "first.bias", "nothing"};
    char path[512], name[8];
    int k = d != s->side;
    snprintf(name, sizeof name, "f%d", c->kind == LOAD ? 1 - k : k); /* load the other's */
    test_path(s->folder, name, path);
    switch (c->kind) {
    case DISCARD:
        return gpp_pipe_discard(d->pipe, s->pass_rows[c->pass] ? d->pass[c->pass] : NO_PASS, err);
    case UPDATE:
        return gpp_pipe_update(d->pipe, err);
    case ACCUMULATES:
        return gpp_pipe_accumulate(d->pipe, c->first, err);
    case DISCARD_GRADIENTS:
        return gpp_pipe_discard_gradients(d->pipe, err);
    case FREEZE:
        return gpp_pipe_freeze(d->pipe, names[c->pick % 4], c->first, err);
    case GROUP:
        return gpp_pipe_set_group(d->pipe, names[c->pick % 4], c->first ? 0.02 : NAN,
                                  c->second ? 0.001 : NAN, err);
    case RATE:
        return gpp_pipe_set_lr(d->pipe, c->pick % 50 / 1000.0, err);
    case SAVE:
        return gpp_pipe_save_state(d->pipe, path, NULL, 0, err);
    case LOAD:
        return gpp_pipe_load_state(d->pipe, path, NULL, err);
    case TRAINING:
        return gpp_pipe_set_training(d->pipe, c->first, err);
    case RECORD:
        return gpp_pipe_record(d->pipe, c->pick % 3, err);
    case KEEP:
        return keep_losses(s, d, c, err);
    default:
        return GPP_EINVAL;
    }
}

static void change(sequence *s, side *d, const call *c)
{
    gpp_error err = GPP_ERROR_INIT;
    give_status(d, try_change(s, d, c, &err), &err);
}

/* How often a call is drawn, and what it does on one of the pipes. */
static const struct {
    const char *name;
    int weight;
    void (*run)(sequence *s, side *d, const call *c);
} kinds[KINDS] = {
    [STEP] = {"step", 10, run_now},
    [GRADIENTS] = {"gradients", 5, run_now},
    [EVALUATE] = {"evaluate", 5, run_now},
    [SUBMIT] = {"submit", 14, submit},
    [SUBMIT_EVALUATION] = {"submit_eval", 5, submit},
    [WAIT] = {"wait", 14, wait_for_one},
    [FORWARD] = {"forward", 5, go_forward},
    [BACKWARD] = {"backward", 5, go_back},
    [DISCARD] = {"discard", 2, change},
    [UPDATE] = {"update", 5, change},
    [ACCUMULATES] = {"accumulate", 2, change},
    [DISCARD_GRADIENTS] = {"discard_gradients", 2, change},
    [FREEZE] = {"freeze", 2, change},
    [GROUP] = {"set_group", 2, change},
    [RATE] = {"set_lr", 2, change},
    [GET_AND_SET] = {"get_and_set", 3, get_and_set},
    [GET_GRADIENT] = {"gradient", 4, get_and_set},
    [BUFFERS] = {"buffers", 2, give_buffers},
    [SAVE] = {"save", 2, change},
    [LOAD] = {"load", 1, change},
    [TRAINING] = {"training", 2, change},
    [KEEP] = {"keep_losses", 3, change},
    [RECORD] = {"record", 1, change},
};

/* Everything gives its status first. */
static gpp_status status_of(const side *d)
{
    double first;
    memcpy(&first, d->got.value, sizeof first);
    return (gpp_status)first;
}

/* Kept forwards are gone after it, or when it lands. */
static bool discards_kept(const call *c)
{
    return c->kind == STEP || c->kind == SUBMIT || c->kind == UPDATE || c->kind == LOAD ||
           c->kind == FREEZE || (c->kind == GET_AND_SET && c->first);
}

/* What both pipes have done is known now. */
static void follow(sequence *s, const call *c, gpp_status status)
{
    bool ok = status == GPP_OK, submits = c->kind == SUBMIT || c->kind == SUBMIT_EVALUATION;
    bool evaluates = c->kind == EVALUATE || c->kind == SUBMIT_EVALUATION;
    bool keeps = s->kept_rows && (!evaluates || c->second);
    if (c->kind == KEEP)
        s->kept_rows = c->first && ok ? c->rows : 0;
    if ((c->kind == STEP || c->kind == GRADIENTS || c->kind == EVALUATE) && keeps)
        s->last_kept = NONE;
    if (submits && ok) {
        int at = place_of(s, s->count++);
        s->submitted[at].y = c->first;
        s->submitted[at].rows = c->rows;
        s->last_kept = keeps ? at : s->last_kept;
    }
    if (c->kind == WAIT && s->count) {
        s->last_kept = s->last_kept == s->oldest ? NONE : s->last_kept;
        s->oldest = place_of(s, 1);
        s->count--;
    }
    if (c->kind == FORWARD)
        s->pass_rows[c->pass] = ok ? c->rows : 0;
    if ((c->kind == BACKWARD || c->kind == DISCARD) && ok)
        s->pass_rows[c->pass] = 0;
    if (discards_kept(c) && ok && draw(s, 8)) /* else their names are used again: an error */
        memset(s->pass_rows, 0, sizeof s->pass_rows);
    s->go_back_soon = c->kind == FORWARD && ok ? 6 : s->go_back_soon - (s->go_back_soon > 0);
}

static void run_call(sequence *s, const call *c, bool *good)
{
    for (int k = 0; k < 2; k++) {
        kinds[c->kind].run(s, &s->side[k], c);
        give_number(&s->side[k], gpp_pipe_submitted(s->side[k].pipe));
    }
    gpp_status status = status_of(&s->side[0]);
    expect_same(s, good);
    follow(s, c, status);
}

/* --- drawing a call --------------------------------------------------------------------------- */

/* Inputs stay as they are while steps are submitted. */
static void draw_inputs(sequence *s)
{
    const int *c = s->choice;
    for (int k = 0; k < MOST * s->model->row; k++)
        s->x[k] = (float)draw(s, 1000) / 500 - 1;
    for (int k = 0; k < MOST; k++)
        s->classes[k] = draw(s, CLASSES);
    for (int k = 0; k < MOST * CLASSES; k++) {
        s->grad_y[k] = (float)draw(s, 100) / 50 - 1;
        s->values[k] = (float)draw(s, 100) / 50 - 1;
    }
    int at = draw(s, MOST * (int)s->model->row);
    if (draw(s, 8) == 0)
        s->x[at] = REFUSED;
    else if (draw(s, 8) == 0 && (c[NAN_ERROR] || (c[SKIP] && !s->model->has_records)))
        s->x[at] = NAN;
}

static call_kind draw_kind(sequence *s)
{
    static const call_kind near_forwards[] = {FORWARD,  BACKWARD,     BACKWARD,  BACKWARD,
                                              EVALUATE, GET_GRADIENT, GRADIENTS, DISCARD};
    int total = 0, at = 0, kind = 0;
    if (s->go_back_soon && draw(s, 5))
        return near_forwards[draw(s, COUNT(near_forwards))];
    for (int k = 0; k < KINDS; k++)
        total += kinds[k].weight;
    for (at = draw(s, total); at >= kinds[kind].weight; kind++)
        at -= kinds[kind].weight;
    return (call_kind)kind;
}

static call draw_call(sequence *s)
{
    call c = {.kind = draw_kind(s)};
    static const int usual[] = {MOST, MOST, 12, 7};
    c.rows = draw(s, 3) ? usual[draw(s, 4)] : draw(s, MOST + 1);
    if (s->kept_rows && c.kind != KEEP && draw(s, 10))
        c.rows = s->kept_rows;
    c.pick = draw(s, 1000);
    c.first = draw(s, 2);
    c.second = draw(s, 2);
    c.pass = draw(s, PASSES);
    if (c.kind == FORWARD) /* where there is none yet */
        for (int k = 0; k < PASSES && s->pass_rows[c.pass]; k++)
            c.pass = (c.pass + 1) % PASSES;
    if (c.kind == FORWARD)
        memcpy(s->pass_x[c.pass], s->x, sizeof s->x);
    else if (c.kind == BACKWARD || c.kind == DISCARD)
        for (int k = 0; k < PASSES && !s->pass_rows[c.pass]; k++)
            c.pass = (c.pass + 1) % PASSES;
    return c;
}

/* --- pipes ------------------------------------------------------------------------------------ */

static gpp_status touchy_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

/* Passes its input on. What it refuses comes through a layer in front, so it looks for what is out
 * of all proportion. */
static gpp_status touchy_forward(gpp_call *c)
{
    const float *x = c->in[0].data;
    int64_t count = test_tensor_count(&c->in[0]);
    memcpy(c->out[0].data, x, (size_t)count * sizeof *x);
    for (int64_t k = 0; k < count; k++)
        if (fabsf(x[k]) > REFUSED / 8)
            return GPP_EKERNEL;
    return GPP_OK;
}

static gpp_status touchy_backward(gpp_call *c)
{
    if (c->grad_in[0].data)
        memcpy(c->grad_in[0].data, c->grad_out[0].data,
               (size_t)test_tensor_count(&c->grad_in[0]) * sizeof(float));
    return GPP_OK;
}

static const gpp_operator touchy = {.name = "touchy",
                                    .infer = touchy_infer,
                                    .forward = touchy_forward,
                                    .backward = touchy_backward};

static gpp_model *model_of(const sequence *s)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    gpp_model_new(&m, &err);
    gpp_model_register(m, &touchy, &err);
    gpp_model_add_text(m, s->model->text, &err);
    gpp_model_set_input(m, GPP_F32, s->model->rank, s->model->dim, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    return m;
}

/* What both pipes have: the first in one partition, its backwards in the second's order. */
static gpp_pipe_options common(const sequence *s)
{
    static const float weights[CLASSES] = {0.5f, 1, 2, 0.25f};
    const int *c = s->choice;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 1 + c[CHUNKS];
    o.replicas = 1 + c[REPLICAS];
    o.checkpoint = (gpp_checkpoint)c[FIRST_MODE];
    o.seed = s->seed;
    o.loss = losses[c[LOSS]];
    o.optimizer = optimizers[c[OPTIMIZER]];
    o.lr_schedule = lr_schedules[c[LR_SCHEDULE]];
    o.nan_is_error = c[NAN_ERROR];
    o.batch = c[BATCH] ? MOST : 0;
    o.ascending_backward = c[ORDER] != GPIPE;
    o.deferred_batch_norm = c[DEFERRED];
    o.clip_norm = c[CLIP] ? 0.5 : 0;
    o.skip_nonfinite = c[SKIP];
    o.class_weights = c[WEIGHTS] ? weights : NULL;
    o.class_weight_count = c[WEIGHTS] ? CLASSES : 0;
    return o;
}

/* A partition of the second pipe is on this rank, in all replicas. */
static bool is_here(const sequence *s, int partition)
{
    gpp_pipe_info info;
    bool here = true;
    gpp_pipe_get_info(s->side[1].pipe, &info);
    for (int r = 0; r < info.replicas && s->comm; r++) {
        int device = info.device_of[r * info.partitions + partition];
        here &= atoi(info.device_name[device] + strlen("rank:")) == gpp_comm_rank(s->comm);
    }
    return here;
}

static void make_pipes(sequence *s)
{
    const int *c = s->choice;
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = model_of(s);
    gpp_pipe_options o = common(s);
    cr_assert_eq(gpp_pipe_new(&s->side[0].pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    o.partitions = 1 + c[PARTITIONS];
    o.checkpoint = (gpp_checkpoint)c[SECOND_MODE];
    o.shard_optimizer = c[SHARDS];
    o.devices = c[PLACES] ? same_place : NULL;
    o.device_count = c[PLACES] ? COUNT(same_place) : 0;
    if (c[ORDER] > ASCENDING) {
        o.ascending_backward = draw(s, 2);
        o.schedule = orders[c[ORDER]];
    }
    if (o.checkpoint == GPP_CHECKPOINT_BUDGET)
        test_tighten(model, &o, MOST, 512 + (size_t)draw(s, 4000));
    o.comm = s->comm;
    cr_assert_eq(gpp_pipe_new(&s->side[1].pipe, model, &o, &err), GPP_OK, "seed %llu: %s",
                 (unsigned long long)s->seed, err.msg);
    s->sees_x = is_here(s, 0);
    s->sees_y = is_here(s, o.partitions - 1);
    gpp_model_free(model);
}

static void begin_with(sequence *s, call_kind kind, bool on, bool *good)
{
    call c = {.kind = kind, .rows = MOST, .first = on};
    run_call(s, &c, good);
}

/* --- whole sequences -------------------------------------------------------------------------- */

static void expect_planned_memory(const sequence *s)
{
    for (int k = 0; k < 2; k++) {
        gpp_pipe_info info;
        gpp_pipe_get_info(s->side[k].pipe, &info);
        for (int d = 0; d < info.devices; d++) {
            size_t planned, peak;
            gpp_pipe_memory(s->side[k].pipe, d, &planned, &peak, NULL);
            cr_expect_leq(peak, planned, "seed %llu: pipe %d, device %d: %zu bytes, %zu planned",
                          (unsigned long long)s->seed, k, d, peak, planned);
        }
    }
}

/* Gradients that wait for an update are in no state file. */
static void expect_same_state(sequence *s, bool *good)
{
    call last[] = {{.kind = WAIT}, {.kind = DISCARD_GRADIENTS}, {.kind = SAVE}};
    while (s->count && *good)
        run_call(s, &last[0], good);
    for (size_t k = 1; k < COUNT(last) && *good; k++)
        run_call(s, &last[k], good);
    size_t bytes[2];
    char path[512], *file[2];
    for (int k = 0; k < 2; k++) /* rank 0 has written the second one */
        file[k] = test_bytes_read(test_path(s->folder, k ? "f1" : "f0", path), &bytes[k]);
    if (*good) {
        cr_assert(file[0] && file[1], "seed %llu: no state", (unsigned long long)s->seed);
        cr_expect(bytes[0] == bytes[1] && !memcmp(file[0], file[1], bytes[0]),
                  "seed %llu: the states differ after%s", (unsigned long long)s->seed, s->log);
    }
    free(file[0]);
    free(file[1]);
}

static void play(sequence *s)
{
    bool good = true;
    s->model = &models[s->choice[MODEL]];
    s->last_kept = NONE;
    draw_inputs(s);
    make_pipes(s);
    for (int k = 0; k < 2 && s->choice[WATCHDOG]; k++)
        gpp_pipe_set_watchdog(s->side[k].pipe, 200, NULL);
    begin_with(s, FREEZE, s->choice[FROZEN], &good);
    begin_with(s, ACCUMULATES, s->choice[ACCUMULATE], &good);
    begin_with(s, KEEP, s->choice[KEEP_LOSSES], &good);
    begin_with(s, TRAINING, !s->choice[AS_EVALUATION], &good);
    for (int q = 0; q < CALLS && good; q++) {
        if (s->count == 0 && draw(s, 4) == 0)
            draw_inputs(s);
        call c = draw_call(s);
        say(s, " %s:%d%s%s", kinds[c.kind].name, c.rows, c.first ? "+" : "", c.second ? "*" : "");
        run_call(s, &c, &good);
    }
    if (draw(s, 4)) /* else they are freed with steps in flight */
        expect_same_state(s, &good);
    expect_planned_memory(s);
    for (int k = 0; k < 2; k++) {
        gpp_pipe_free(s->side[k].pipe);
        test_trace_free(&s->side[k].got);
    }
}

/* Options depend on those of the seeds before it, from a multiple of ROUND on. */
static sequence *sequence_of(uint64_t seed)
{
    sequence *s = calloc(1, sizeof *s);
    cr_assert(s);
    s->seed = seed;
    s->state = seed * 2654435761u + 12345;
    if (seed % ROUND == 0)
        memset(met, 0, sizeof met);
    draw_options(s);
    return s;
}

TestSuite(random_calls, .init = test_keep_runtime, .fini = test_release_runtime, .timeout = 86400);

Test(random_calls, give_the_same_bits_on_two_pipes_that_are_cut_differently)
{
    uint64_t first = test_setting("GRIDPIPE_RANDOM_SEED", 0),
             count = test_setting("GRIDPIPE_RANDOM_CALLS", SEQUENCES);
    for (uint64_t seed = first - first % ROUND; seed < first + count; seed++) {
        sequence *s = sequence_of(seed);
        test_folder_new(s->folder);
        if (seed >= first)
            play(s);
        test_folder_remove(s->folder);
        free(s);
    }
    int all, pairs = count_pairs(&all);
    cr_expect(pairs == all || (first + count) % ROUND, "%d of %d pairs of options were drawn",
              pairs, all);
    printf("random calls: seeds %llu ... %llu, %d of %d pairs of options\n",
           (unsigned long long)first, (unsigned long long)(first + count - 1), pairs, all);
}

/* --- over ranks ------------------------------------------------------------------------------- */

static void play_on_rank(gpp_comm *comm, void *arg)
{
    sequence *s = malloc(sizeof *s);
    cr_assert(s);
    *s = *(const sequence *)arg;
    s->comm = comm;
    gpp_comm_set_timeout(comm, 100, NULL); /* a rank that has found a difference stops */
    play(s);
    free(s);
}

Test(random_calls, give_the_same_bits_on_a_pipe_over_ranks)
{
    enum { OVER_RANKS = 120 };
    uint64_t first = test_setting("GRIDPIPE_RANDOM_SEED", 0),
             count = test_setting("GRIDPIPE_RANDOM_CALLS", OVER_RANKS);
    count = count < OVER_RANKS ? count : OVER_RANKS;
    for (uint64_t seed = first - first % ROUND; seed < first + count; seed++) {
        sequence *s = sequence_of(seed);
        test_folder_new(s->folder);
        if (seed >= first)
            test_on_mortal_ranks(2 + (int)(seed % 2), play_on_rank, s);
        test_folder_remove(s->folder);
        free(s);
    }
}
