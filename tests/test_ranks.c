/*
 * tests/test_ranks.c: pipes that several ranks run together: here the ranks are threads. What they
 * compute is what one process computes, bit for bit.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(ranks, .init = test_keep_runtime, .fini = test_release_runtime);

/* --- ranks that are threads ------------------------------------------------------------------- */

typedef void rank_fn(gpp_comm *comm, void *arg);

typedef struct rank_thread {
    pthread_t thread;
    gpp_comm *comm;
    rank_fn *run;
    void *arg;
} rank_thread;

static void *run_rank(void *arg)
{
    rank_thread *r = arg;
    r->run(r->comm, r->arg);
    return NULL;
}

enum { MOST_RANKS = 8 };

static void on_ranks(int ranks, rank_fn *run, void *arg)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_comm *comm[MOST_RANKS];
    rank_thread thread[MOST_RANKS];
    cr_assert_eq(gpp_comm_threads(comm, ranks, &err), GPP_OK, "%s", err.msg);
    for (int r = 0; r < ranks; r++) {
        thread[r] = (rank_thread){.comm = comm[r], .run = run, .arg = arg};
        cr_assert(!pthread_create(&thread[r].thread, NULL, run_rank, &thread[r]));
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(thread[r].thread, NULL);
    for (int r = 0; r < ranks; r++)
        gpp_comm_free(comm[r]);
}

/* --- the same bits ---------------------------------------------------------------------------- */

enum { STEPS = 3 };
static const int64_t rows[STEPS] = {11, 12, 5};

/* What a training gives: what all ranks have, and the outputs, which the last partition's has. */
typedef struct result {
    test_trace common, outputs;
} result;

static void train(gpp_pipe *pipe, result *r)
{
    for (int s = 0; s < STEPS; s++) {
        test_batch b = test_batch_new(pipe, rows[s], 100 + (uint64_t)s);
        gpp_error err = GPP_ERROR_INIT;
        double loss = 0;
        float halves[2];
        cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), GPP_OK, "%s",
                     err.msg);
        memcpy(halves, &loss, sizeof loss);
        test_trace_add(&r->common, halves, 2);
        test_trace_add(&r->outputs, b.y.data, (size_t)test_tensor_count(&b.y));
        test_trace_grads(&r->common, pipe);
        test_trace_params(&r->common, pipe);
        test_batch_free(&b);
    }
}

static void result_free(result *r)
{
    test_trace_free(&r->common);
    test_trace_free(&r->outputs);
}

typedef void what_fn(gpp_pipe *pipe, result *r);

typedef struct case_of_ranks {
    const test_model *model;
    gpp_pipe_options options;
    what_fn *what;
    result result[MOST_RANKS];
} case_of_ranks;

static void train_on_rank(gpp_comm *comm, void *arg)
{
    case_of_ranks *c = arg;
    gpp_pipe_options o = c->options;
    o.comm = comm;
    gpp_pipe *pipe = test_pipe_new(c->model, &o);
    c->what(pipe, &c->result[gpp_comm_rank(comm)]);
    gpp_pipe_free(pipe);
}

/* The rank of the last partition, which writes the outputs. */
static int end_rank(const gpp_pipe_options *o, int ranks)
{
    bool in_turn = o->schedule && !strcmp(o->schedule, "interleaved");
    return in_turn ? (o->partitions - 1) % ranks : (o->partitions - 1) * ranks / o->partitions;
}

static void expect_same_of(what_fn *what, const test_model *model, const gpp_pipe_options *options,
                           int ranks, const char *why)
{
    case_of_ranks c = {model, *options, what, {{{0}, {0}}}};
    result alone = {{0}, {0}};
    gpp_pipe_options o = *options;
    o.partitions = 0;
    gpp_pipe *pipe = test_pipe_new(model, &o);
    what(pipe, &alone);
    gpp_pipe_free(pipe);
    on_ranks(ranks, train_on_rank, &c);
    for (int r = 0; r < ranks; r++) {
        cr_expect_eq(test_trace_differs(&alone.common, &c.result[r].common), -1,
                     "%s, %s, rank %d of %d", model->why, why, r, ranks);
        if (r == end_rank(options, ranks))
            cr_expect_eq(test_trace_differs(&alone.outputs, &c.result[r].outputs), -1,
                         "%s, %s: outputs", model->why, why);
        result_free(&c.result[r]);
    }
    result_free(&alone);
}

static void expect_same(const test_model *model, const gpp_pipe_options *options, int ranks,
                        const char *why)
{
    expect_same_of(train, model, options, ranks, why);
}

Test(ranks, a_step_gives_what_one_process_gives)
{
    for (const test_model *m = test_models; m->text; m++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = 4;
        o.partitions = 2;
        expect_same(m, &o, 2, "two partitions");
        o.partitions = 4;
        expect_same(m, &o, 2, "two partitions each");
        o.partitions = 3;
        expect_same(m, &o, 3, "three ranks");
        expect_same(m, &o, 4, "a rank without partitions");
    }
}

static const test_model skips = {"skips",
                                 "conv2d out=4 kernel=3 padding=1; batchnorm; relu; stash name=a; "
                                 "conv2d out=4 kernel=3 padding=1; "
                                 "stash name=b; relu; dropout p=0.3; pop name=b mode=add; conv2d "
                                 "out=4 kernel=3 padding=1; relu; "
                                 "pop name=a mode=cat; conv2d out=3 kernel=1",
                                 3,
                                 {2, 8, 8},
                                 "mse"};
static const gpp_checkpoint modes[] = {GPP_CHECKPOINT_EXCEPT_LAST, GPP_CHECKPOINT_ALWAYS,
                                       GPP_CHECKPOINT_NEVER};
enum { MODES = sizeof modes / sizeof *modes };

Test(ranks, every_schedule_and_mode_gives_the_same)
{
    for (size_t k = 0; gpp_schedule_name(k); k++)
        for (int mode = 0; mode < MODES; mode++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 4;
            o.partitions = 4;
            o.schedule = gpp_schedule_name(k);
            o.ascending_backward = true;
            o.checkpoint = modes[mode];
            expect_same(&skips, &o, 2, gpp_schedule_name(k));
            expect_same(&skips, &o, 4, gpp_schedule_name(k));
        }
}

Test(ranks, options_that_need_all_partitions_give_the_same)
{
    static const struct {
        const char *why;
        double clip_norm;
        bool skip_nonfinite, nan_is_error, deferred_batch_norm;
        const char *optimizer;
    } cases[] = {
        {"norms are clipped", 0.05, false, false, false, "adam lr=0.01"},
        {"updates may be skipped", 0, true, false, false, "adam lr=0.01"},
        {"losses are checked", 0, false, true, false, NULL},
        {"deferred batch normalisation", 0, false, false, true, NULL},
        {"all of them", 0.05, true, true, true, "adamw lr=0.01"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = 3;
        o.partitions = 4;
        o.clip_norm = cases[k].clip_norm;
        o.skip_nonfinite = cases[k].skip_nonfinite;
        o.nan_is_error = cases[k].nan_is_error;
        o.deferred_batch_norm = cases[k].deferred_batch_norm;
        o.optimizer = cases[k].optimizer;
        expect_same(&skips, &o, 2, cases[k].why);
        expect_same(&skips, &o, 3, cases[k].why);
        o.schedule = "zb-h1";
        o.ascending_backward = true;
        expect_same(&skips, &o, 4, cases[k].why);
    }
}

/* --- other calls ------------------------------------------------------------------------------ */

static void must(gpp_status status, const gpp_error *err)
{
    cr_assert_eq(status, GPP_OK, "%s", err->msg);
}

static void add_double(test_trace *t, double value)
{
    float halves[2];
    memcpy(halves, &value, sizeof value);
    test_trace_add(t, halves, 2);
}

static void forwards_and_backwards(gpp_pipe *pipe, result *r)
{
    gpp_error err = GPP_ERROR_INIT;
    test_batch a = test_batch_new(pipe, 7, 1), b = test_batch_new(pipe, 9, 2);
    int first, second;
    double loss;
    must(gpp_pipe_forward(pipe, &a.x, &a.y, &first, &err), &err);
    must(gpp_pipe_forward(pipe, &b.x, &b.y, &second, &err), &err);
    must(gpp_pipe_evaluate(pipe, &b.x, &b.target, NULL, &loss, &err), &err);
    add_double(&r->common, loss);
    must(gpp_pipe_accumulate(pipe, true, &err), &err);
    must(gpp_pipe_backward(pipe, first, &a.x, &a.grad_y, &a.grad_x, &err), &err);
    must(gpp_pipe_backward(pipe, second, &b.x, &b.grad_y, NULL, &err), &err);
    test_trace_add(&r->outputs, a.y.data, (size_t)test_tensor_count(&a.y));
    test_trace_add(&r->outputs, b.y.data, (size_t)test_tensor_count(&b.y));
    test_trace_grads(&r->common, pipe);
    must(gpp_pipe_gradients(pipe, &a.x, &a.target, NULL, NULL, &loss, &err), &err);
    add_double(&r->common, loss);
    must(gpp_pipe_update(pipe, &err), &err);
    test_trace_grads(&r->common, pipe);
    test_trace_params(&r->common, pipe);
    test_batch_free(&a);
    test_batch_free(&b);
}

static void submitted_steps(gpp_pipe *pipe, result *r)
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
            must(gpp_pipe_wait(pipe, &loss, &err), &err);
            add_double(&r->common, loss);
            must(gpp_pipe_last_step(pipe, &stats, &err), &err);
            add_double(&r->common, stats.lr);
        }
        if (k < SUBMITTED && k % 4 == 2)
            must(gpp_pipe_submit_evaluation(pipe, &b[k].x, &b[k].target, &b[k].y, &err), &err);
        else if (k < SUBMITTED)
            must(gpp_pipe_submit(pipe, &b[k].x, &b[k].target, &b[k].y, &err), &err);
    }
    for (int k = 0; k < SUBMITTED; k++) {
        test_trace_add(&r->outputs, b[k].y.data, (size_t)test_tensor_count(&b[k].y));
        test_batch_free(&b[k]);
    }
    test_trace_params(&r->common, pipe);
}

static void settings(gpp_pipe *pipe, result *r)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_parameter_info info;
    for (int k = 0; k < gpp_pipe_parameters(pipe); k += 2) {
        must(gpp_pipe_parameter(pipe, k, &info, &err), &err);
        float *value = malloc((size_t)info.count * sizeof *value);
        test_fill(value, info.count, (uint64_t)k, -0.3, 0.3);
        must(gpp_pipe_set(pipe, info.name, value, info.count, &err), &err);
        free(value);
    }
    train(pipe, r);
    must(gpp_pipe_freeze(pipe, info.name, true, &err), &err);
    must(gpp_pipe_set_lr(pipe, 0.02, &err), &err);
    must(gpp_pipe_set_training(pipe, false, &err), &err);
    for (int k = 0; k < gpp_pipe_buffers(pipe); k++) {
        gpp_buffer_info buffer;
        must(gpp_pipe_buffer(pipe, k, &buffer, &err), &err);
        float value[64] = {0};
        must(gpp_pipe_get_buffer(pipe, buffer.name, value, buffer.count, &err), &err);
        test_trace_add(&r->common, value, (size_t)buffer.count);
    }
    test_batch b = test_batch_new(pipe, 8, 5);
    double loss;
    must(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), &err);
    add_double(&r->common, loss);
    test_trace_params(&r->common, pipe);
    test_batch_free(&b);
}

Test(ranks, every_kind_of_call_gives_the_same)
{
    static const struct {
        const char *why;
        what_fn *what;
    } calls[] = {
        {"forward and backward", forwards_and_backwards},
        {"submitted steps", submitted_steps},
        {"setting, freezing", settings},
    };
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++)
        for (int mode = 0; mode < MODES; mode++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 3;
            o.partitions = 4;
            o.checkpoint = modes[mode];
            expect_same_of(calls[k].what, &skips, &o, 2, calls[k].why);
            expect_same_of(calls[k].what, &test_models[0], &o, 4, calls[k].why);
        }
}
