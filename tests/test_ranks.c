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

typedef struct case_of_ranks {
    const test_model *model;
    gpp_pipe_options options;
    result result[MOST_RANKS];
} case_of_ranks;

static void train_on_rank(gpp_comm *comm, void *arg)
{
    case_of_ranks *c = arg;
    gpp_pipe_options o = c->options;
    o.comm = comm;
    gpp_pipe *pipe = test_pipe_new(c->model, &o);
    train(pipe, &c->result[gpp_comm_rank(comm)]);
    gpp_pipe_free(pipe);
}

static void expect_same(const test_model *model, const gpp_pipe_options *options, int ranks,
                        const char *why)
{
    case_of_ranks c = {model, *options, {{{0}, {0}}}};
    result alone = {{0}, {0}};
    gpp_pipe_options o = *options;
    o.partitions = 0;
    gpp_pipe *pipe = test_pipe_new(model, &o);
    train(pipe, &alone);
    gpp_pipe_free(pipe);
    on_ranks(ranks, train_on_rank, &c);
    for (int r = 0; r < ranks; r++) {
        cr_expect_eq(test_trace_differs(&alone.common, &c.result[r].common), -1,
                     "%s, %s, rank %d of %d", model->why, why, r, ranks);
        if (r == ranks - 1)
            cr_expect_eq(test_trace_differs(&alone.outputs, &c.result[r].outputs), -1,
                         "%s, %s: outputs", model->why, why);
        result_free(&c.result[r]);
    }
    result_free(&alone);
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
    }
}
