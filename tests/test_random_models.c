/*
 * Random models: layers of all kinds, skips that cross each other and the cuts, tuples, composite
 * layers, operators of a user, odd batch sizes. Each is run in random pipes and compared with
 * itself in one partition: bit for bit with the same chunks, and within rounding with one chunk.
 *
 * The seed is printed with every failure; GRIDPIPE_RANDOM_MODELS says how many models, and
 * GRIDPIPE_RANDOM_SEED which one comes first.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/ranks.h"
#include "tests/support.h"

TEST_STARPU_LOSES_REQUESTS

enum { MOST_SKIPS = 6, TEXT = 4096, PIPES_EACH = 2 };

/* Sums of gradients over at most 12 rows in another order, through at most 16 layers: a few 1e-6 of
 * the largest value; attention and normalisations divide by small numbers now and then. */
static const double tolerance = 1e-5;

typedef struct shape {
    int rank;
    int64_t dim[3];
} shape;

/* A model that grows: its text, the tensors its last layer gives, the skips nobody has popped. */
typedef struct growing {
    uint64_t state;
    char text[TEXT];
    size_t length;
    int tensors; /* 1 or 2, of shape `now` */
    shape now;
    int skips, made; /* pending; ever */
    struct {
        int id;
        shape is;
    } skip[MOST_SKIPS];
} growing;

static int draw(growing *g, int count)
{
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((g->state >> 33) % (uint64_t)count);
}

__attribute__((format(printf, 2, 3))) static void say(growing *g, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g->length += (size_t)vsnprintf(g->text + g->length, TEXT - g->length, format, args);
    va_end(args);
    cr_assert_lt(g->length, TEXT);
}

static bool same_shape(const shape *a, const shape *b)
{
    return a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim);
}

/* --- kinds of layers -------------------------------------------------------------------------- */

static void elementwise(growing *g)
{
    static const char *const names[] = {"relu",       "tanh",     "sigmoid",       "gelu",
                                        "leaky_relu", "identity", "dropout p=0.25"};
    say(g, "%s\n", names[draw(g, 7)]);
}

static void mix(growing *g) /* something with parameters */
{
    if (g->now.rank == 3) {
        g->now.dim[0] = 2 + draw(g, 3);
        say(g, "conv2d out=%d kernel=3 padding=1\n", (int)g->now.dim[0]);
    } else {
        g->now.dim[g->now.rank - 1] = 2 * (2 + draw(g, 3));
        say(g, "linear out=%d\n", (int)g->now.dim[g->now.rank - 1]);
    }
}

static void normalise(growing *g)
{
    if (g->now.rank == 3)
        say(g, "instancenorm\n");
    else if (g->now.rank == 2 && g->now.dim[1] % 2 == 0)
        say(g, "self_attention heads=2 causal=%d\n", draw(g, 2));
    else
        say(g, "layernorm shape=%d\n", (int)g->now.dim[g->now.rank - 1]);
}

static void stash(growing *g)
{
    if (g->skips == MOST_SKIPS)
        return;
    g->skip[g->skips].id = g->made++;
    g->skip[g->skips++].is = g->now;
    say(g, "stash name=s ns=%d\n", g->made - 1);
}

/* Pops pending skip `k` in whichever way fits. */
static void pop(growing *g, int k)
{
    int id = g->skip[k].id;
    shape is = g->skip[k].is;
    g->skip[k] = g->skip[--g->skips];
    if (same_shape(&is, &g->now) && draw(g, 2)) {
        say(g, "pop name=s ns=%d mode=add\n", id);
    } else if (draw(g, 2) && is.rank == 3) {
        say(g, "pop name=s ns=%d mode=add { conv2d out=%d kernel=1; relu }\n", id,
            (int)g->now.dim[0]);
    } else if (draw(g, 2) && is.rank < 3) {
        say(g, "pop name=s ns=%d mode=add { linear out=%d }\n", id, (int)g->now.dim[is.rank - 1]);
    } else if (g->now.rank == 2) {
        say(g, "pop name=s ns=%d mode=cat dim=2\n", id);
        g->now.dim[1] += is.dim[1];
    } else {
        say(g, "pop name=s ns=%d mode=cat dim=1\n", id);
        g->now.dim[0] += is.dim[0];
    }
}

static void composite(growing *g)
{
    if (g->now.rank == 3)
        say(g, "chain { conv2d out=%d kernel=3 padding=1; chain { relu; identity } }\n",
            (int)g->now.dim[0]);
    else
        say(g, "chain { linear out=%d; tanh; dropout p=0.2 }\n", (int)g->now.dim[g->now.rank - 1]);
}

/* Into two tensors, which operators of a user work on, also across cuts; then into one. */
static void fork_and_join(growing *g)
{
    int d = g->now.rank == 2 ? 1 : 0;
    if (g->now.dim[d] % 2)
        return;
    say(g, "split dim=%d parts=2\n", d + 1);
    for (int k = draw(g, 3); k > 0; k--)
        say(g, "muladd\n");
    switch (draw(g, 3)) {
    case 0:
        say(g, "cat dim=%d\n", d + 1);
        return;
    case 1:
        say(g, "add\n");
        break;
    default:
        say(g, "mul\n");
        break;
    }
    g->now.dim[d] /= 2;
}

static void one_layer(growing *g)
{
    switch (draw(g, 10)) {
    case 0:
    case 1:
        mix(g);
        break;
    case 2:
        elementwise(g);
        break;
    case 3:
    case 4:
        stash(g);
        break;
    case 5:
    case 6:
        if (g->skips)
            pop(g, draw(g, g->skips));
        break;
    case 7:
        composite(g);
        break;
    case 8:
        fork_and_join(g);
        break;
    default:
        normalise(g);
        break;
    }
}

/* --- models ----------------------------------------------------------------------------------- */

typedef struct random_model {
    char text[TEXT];
    gpp_dtype dtype;
    int rank;
    int64_t dim[3];
} random_model;

static random_model grow(uint64_t seed)
{
    growing g = {.state = seed * 2654435761u + 1};
    random_model m = {.dtype = GPP_F32};
    draw(&g, 2);
    int kind = draw(&g, 4);
    if (kind == 0) {
        m.rank = 3;
        m.dim[0] = 2 + draw(&g, 2), m.dim[1] = 4 + draw(&g, 3), m.dim[2] = 4 + draw(&g, 3);
        g.now = (shape){3, {m.dim[0], m.dim[1], m.dim[2]}};
    } else if (kind == 1) {
        m.dtype = GPP_I64;
        m.rank = 1;
        m.dim[0] = 2 + draw(&g, 4);
        g.now = (shape){2, {m.dim[0], 4, 0}};
        say(&g, "embedding num=7 dim=4\n");
    } else {
        m.rank = 1;
        m.dim[0] = 4 + 2 * draw(&g, 3);
        g.now = (shape){1, {m.dim[0], 0, 0}};
    }
    for (int k = 3 + draw(&g, 10); k > 0; k--)
        one_layer(&g);
    while (g.skips)
        pop(&g, g.skips - 1);
    say(&g, g.now.rank == 3 ? "conv2d out=2 kernel=3\n" : "linear out=3\n");
    memcpy(m.text, g.text, sizeof m.text);
    return m;
}

static gpp_model *build(const random_model *r, uint64_t seed)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK);
    cr_assert_eq(gpp_model_register(model, &test_op_muladd, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(model, r->text, &err), GPP_OK, "seed %llu: %s\n%s",
                 (unsigned long long)seed, err.msg, r->text);
    cr_assert_eq(gpp_model_set_input(model, r->dtype, r->rank, r->dim, &err), GPP_OK,
                 "seed %llu: %s\n%s", (unsigned long long)seed, err.msg, r->text);
    return model;
}

/* --- running ---------------------------------------------------------------------------------- */

/* A run of a pipe. Ranks that run it together are threads, with the same batch. */
typedef struct job {
    const gpp_model *model;
    gpp_pipe_options options;
    uint64_t seed;
    const char *text;
    test_batch batch;
    test_trace trace[TEST_MOST_RANKS];
} job;

static gpp_pipe *pipe_of(const job *j, gpp_comm *comm)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    gpp_pipe_options o = j->options;
    o.seed = j->seed;
    o.loss = "mse reduction=mean";
    o.optimizer = "sgd lr=0.02 momentum=0.5";
    o.comm = comm;
    cr_assert_eq(gpp_pipe_new(&pipe, j->model, &o, &err), GPP_OK, "seed %llu: %s\n%s",
                 (unsigned long long)j->seed, err.msg, j->text);
    return pipe;
}

/* Loss, outputs, all gradients, then the parameters after a step. When the call returns on one
 * rank, all ranks have written what is theirs. */
static void run_pipe(job *j, gpp_pipe *pipe, test_trace *t)
{
    gpp_error err = GPP_ERROR_INIT;
    const test_batch *b = &j->batch;
    bool floats = b->x.dtype == GPP_F32;
    double loss;
    cr_assert_eq(
        gpp_pipe_gradients(pipe, &b->x, &b->target, &b->y, floats ? &b->grad_x : NULL, &loss, &err),
        GPP_OK, "seed %llu: %s\n%s", (unsigned long long)j->seed, err.msg, j->text);
    float small = (float)loss;
    test_trace_add(t, &small, 1);
    test_trace_add(t, b->y.data, (size_t)test_tensor_count(&b->y));
    if (floats)
        test_trace_add(t, b->grad_x.data, (size_t)test_tensor_count(&b->grad_x));
    test_trace_grads(t, pipe);
    cr_assert_eq(gpp_pipe_step(pipe, &b->x, &b->target, NULL, &loss, &err), GPP_OK, "%s", err.msg);
    test_trace_params(t, pipe);
}

static test_trace run(const gpp_model *model, gpp_pipe_options o, int64_t rows, uint64_t seed,
                      const char *text)
{
    job j = {.model = model, .options = o, .seed = seed, .text = text};
    gpp_pipe *pipe = pipe_of(&j, NULL);
    j.batch = test_batch_new(pipe, rows, seed);
    run_pipe(&j, pipe, &j.trace[0]);
    test_batch_free(&j.batch);
    gpp_pipe_free(pipe);
    return j.trace[0];
}

static void run_rank(gpp_comm *comm, void *arg)
{
    job *j = arg;
    gpp_pipe *pipe = pipe_of(j, comm);
    run_pipe(j, pipe, &j->trace[gpp_comm_rank(comm)]);
    gpp_pipe_free(pipe);
}

/* The same over ranks, each of which has the whole result. */
static void check_ranks(const test_trace *one, const gpp_model *model, gpp_pipe_options o,
                        int64_t rows, uint64_t seed, const char *text)
{
    int ranks = 2 + (int)(seed % 2);
    job j = {.model = model, .options = o, .seed = seed, .text = text};
    gpp_pipe *pipe = pipe_of(&j, NULL);
    j.batch = test_batch_new(pipe, rows, seed);
    gpp_pipe_free(pipe);
    test_on_ranks(ranks, run_rank, &j);
    for (int r = 0; r < ranks; r++) {
        long at = test_trace_differs(one, &j.trace[r]);
        cr_expect_eq(at, -1,
                     "seed %llu: %d partitions on %d ranks, %d chunks of %d rows, %s: float "
                     "%ld of rank %d differs\n%s",
                     (unsigned long long)seed, o.partitions, ranks, o.chunks, (int)rows,
                     gpp_checkpoint_name(o.checkpoint), at, r, text);
        test_trace_free(&j.trace[r]);
    }
    test_batch_free(&j.batch);
}

static double loss_at(gpp_pipe *p, const test_batch *b)
{
    double loss = NAN;
    p->steps = 0; /* the same dropout masks */
    cr_assert_eq(gpp_pipe_gradients(p, &b->x, &b->target, NULL, &b->grad_x, &loss, NULL), GPP_OK);
    return loss;
}

/* Along its own direction a gradient is as steep as it is long. Steps of 1e-3 in float32 and a relu
 * here and there leave 1 %; a gradient that lacks a branch is off by more. */
static void check_slope(const gpp_model *model, uint64_t seed, const char *text)
{
    enum { ROWS = 4 };
    const double h = 1e-3;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.seed = seed;
    o.loss = "mse reduction=sum";
    cr_assert_eq(gpp_pipe_new(&p, model, &o, &err), GPP_OK, "%s", err.msg);
    test_batch b = test_batch_new(p, ROWS, seed);
    if (b.x.dtype == GPP_F32) {
        int64_t count = test_tensor_count(&b.x);
        float *x = b.x.data, *g = test_room((size_t)count * sizeof *g);
        loss_at(p, &b);
        memcpy(g, b.grad_x.data, (size_t)count * sizeof *g);
        double length = sqrt(test_dot(g, g, count)), side[2];
        for (int s = 0; s < 2; s++) {
            for (int64_t k = 0; k < count; k++)
                x[k] += (float)((s ? -2 : 1) * h * g[k] / (length > 0 ? length : 1));
            side[s] = loss_at(p, &b);
        }
        double slope = (side[0] - side[1]) / (2 * h);
        cr_expect(fabs(slope - length) <= 0.03 * length + 1e-2,
                  "seed %llu: the loss rises by %g, the gradient says %g\n%s",
                  (unsigned long long)seed, slope, length, text);
        free(g);
    }
    test_batch_free(&b);
    gpp_pipe_free(p);
}

static void random_cut(growing *g, int layers, int balance[], gpp_pipe_options *o)
{
    int left = layers;
    o->partitions = 1 + draw(g, layers < 8 ? layers : 8);
    o->checkpoint = (gpp_checkpoint)draw(g, 3);
    o->activation_limit = 0;
    for (int j = 0; j < o->partitions; j++) {
        int room = left - (o->partitions - 1 - j);
        balance[j] = j == o->partitions - 1 ? left : 1 + draw(g, room);
        left -= balance[j];
    }
    o->balance = balance;
}

/* Another order of tasks gives the bits of ascending backwards in one partition. */
static void check_order(const gpp_model *model, const char *text, growing *g, int chunks,
                        int64_t rows, uint64_t seed)
{
    int balance[8];
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = chunks;
    o.ascending_backward = true;
    test_trace one = run(model, o, rows, seed, text);
    random_cut(g, gpp_model_layers(model), balance, &o);
    o.ascending_backward = false;
    o.schedule = gpp_schedule_name(1 + (size_t)draw(g, 4));
    test_trace cut = run(model, o, rows, seed, text);
    cr_expect_eq(test_trace_differs(&one, &cut), -1,
                 "seed %llu: %s, %d partitions (the first of %d layers), %d chunks of %d rows, %s: "
                 "float %ld differs\n%s",
                 (unsigned long long)seed, o.schedule, o.partitions, balance[0], chunks, (int)rows,
                 gpp_checkpoint_name(o.checkpoint), test_trace_differs(&one, &cut), text);
    test_trace_free(&one);
    test_trace_free(&cut);
}

/* Replicas give the same bits however they are cut and wherever they are, and nearly those of one
 * pipe. */
static void check_replicas(const gpp_model *model, const char *text, growing *g,
                           const test_trace *whole, int chunks, int64_t rows, uint64_t seed)
{
    int balance[8];
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 1 + chunks / 2;
    o.replicas = 2 + draw(g, 3);
    test_trace one = run(model, o, rows, seed, text);
    double off = rows ? test_distance(one.value, whole->value, (int64_t)one.count) : 0;
    cr_expect(off <= tolerance, "seed %llu: %d replicas, %d chunks of %d rows are off by %g\n%s",
              (unsigned long long)seed, o.replicas, o.chunks, (int)rows, off, text);
    random_cut(g, gpp_model_layers(model), balance, &o);
    test_trace cut = run(model, o, rows, seed, text);
    cr_expect_eq(test_trace_differs(&one, &cut), -1,
                 "seed %llu: %d replicas, %d partitions, %d chunks of %d rows, %s: float %ld "
                 "differs\n%s",
                 (unsigned long long)seed, o.replicas, o.partitions, o.chunks, (int)rows,
                 gpp_checkpoint_name(o.checkpoint), test_trace_differs(&one, &cut), text);
    check_ranks(&one, model, o, rows, seed, text);
    test_trace_free(&one);
    test_trace_free(&cut);
}

static void check(uint64_t seed)
{
    random_model r = grow(seed);
    gpp_model *model = build(&r, seed);
    growing g = {.state = seed};
    int64_t rows = draw(&g, 12) ? 1 + draw(&g, 11) : 0;
    int balance[8];
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    test_trace whole = run(model, o, rows, seed, r.text);
    o.chunks = 1 + draw(&g, 5);
    test_trace one = run(model, o, rows, seed, r.text);
    cr_assert_eq(whole.count, one.count);
    double off = rows ? test_distance(one.value, whole.value, (int64_t)one.count) : 0;
    cr_expect(off <= tolerance, "seed %llu: %d chunks of %d rows are off by %g\n%s",
              (unsigned long long)seed, o.chunks, (int)rows, off, r.text);
    for (int k = 0; k < PIPES_EACH; k++) {
        random_cut(&g, gpp_model_layers(model), balance, &o);
        if (k == 0)
            test_tighten(model, &o, rows, (size_t)64 + (size_t)draw(&g, 512));
        test_trace cut = run(model, o, rows, seed, r.text);
        cr_expect_eq(test_trace_differs(&one, &cut), -1,
                     "seed %llu: %d partitions (the first of %d layers), %d chunks of %d rows, %s: "
                     "float %ld differs\n%s",
                     (unsigned long long)seed, o.partitions, balance[0], o.chunks, (int)rows,
                     gpp_checkpoint_name(o.checkpoint), test_trace_differs(&one, &cut), r.text);
        test_trace_free(&cut);
        if (k == 0 ? seed % 8 == 0 : seed % 8 != 0)
            check_ranks(&one, model, o, rows, seed, r.text);
    }
    check_order(model, r.text, &g, o.chunks, rows, seed);
    check_slope(model, seed, r.text);
    if (seed % 4 == 0)
        check_replicas(model, r.text, &g, &whole, o.chunks, rows, seed);
    test_trace_free(&whole);
    test_trace_free(&one);
    gpp_model_free(model);
}

TestSuite(random_models, .init = test_keep_runtime, .fini = test_release_runtime);

Test(random_models, no_cut_changes_a_bit_and_chunks_only_the_rounding)
{
    uint64_t first = test_setting("GRIDPIPE_RANDOM_SEED", 1),
             count = test_setting("GRIDPIPE_RANDOM_MODELS", 500);
    for (uint64_t seed = first; seed < first + count; seed++)
        check(seed);
    printf("random models: seeds %llu ... %llu\n", (unsigned long long)first,
           (unsigned long long)(first + count - 1));
}
