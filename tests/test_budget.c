/*
 * GPP_CHECKPOINT_BUDGET: what a partition keeps fits into the bytes it is given, results do not
 * depend on how many these are, and more bytes are never worse.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/networks.h"
#include "tests/pipes.h"
#include "tests/support.h"

static const int64_t uneven[] = {10, 7, 10};

static gpp_pipe_options options(int partitions, size_t limit)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.chunks = 4;
    o.seed = 7;
    o.checkpoint = GPP_CHECKPOINT_BUDGET;
    o.activation_limit = limit;
    return o;
}

/* The most that any partition of the pipe's last plan has between forwards and backwards, by its
 * buffers, and the forward moves in all scripts. */
static size_t bytes_between(const gpp_pipe *pipe, int *again)
{
    const gpp__exec *e = pipe->last;
    size_t most = 0;
    *again = 0;
    for (int j = 0; j < pipe->partitions; j++) {
        size_t bytes = 0;
        for (size_t k = 0; k < e->plan->buffers; k++) {
            const gpp__buffer *b = &e->plan->buffer[k];
            if (b->j == j && (b->cls == GPP__TAPE || b->cls == GPP__KEPT))
                bytes += b->bytes;
        }
        most = bytes > most ? bytes : most;
        for (int q = 0; q < e->full->script[j]->moves; q++)
            *again += !e->full->script[j]->move[q].back;
    }
    return most;
}

/* Steps under smaller and smaller limits, until nothing fits. Returns how many did. */
static int squeeze(const test_model *m, int partitions, const test_trace *expected)
{
    size_t limit = (size_t)1 << 30;
    int rounds = 0, again = 0;
    for (;; rounds++) {
        gpp_pipe_options o = options(partitions, limit);
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_new(m);
        gpp_pipe *pipe;
        o.loss = m->loss;
        o.optimizer = "sgd lr=0.05 momentum=0.9";
        o.batch = 10;
        gpp_status status = gpp_pipe_new(&pipe, model, &o, &err);
        gpp_model_free(model);
        if (status != GPP_OK) {
            cr_expect_eq(status, GPP_ENOMEM, "%s: %s", m->why, err.msg);
            cr_expect(strstr(err.msg, "activation_limit"), "%s", err.msg);
            return rounds;
        }
        test_trace t = {0};
        int moves;
        test_train(pipe, 3, uneven, &t);
        cr_expect_eq(test_trace_differs(expected, &t), -1,
                     "%s, %d partitions, %zu bytes: float %ld of %zu differs", m->why, partitions,
                     limit, test_trace_differs(expected, &t), t.count);
        size_t bytes = bytes_between(pipe, &moves);
        cr_expect_leq(bytes, limit, "%s: %zu bytes", m->why, bytes);
        cr_expect(rounds || !moves, "%s: something is made again in spite of all the room", m->why);
        again = moves > again ? moves : again;
        test_trace_free(&t);
        gpp_pipe_free(pipe);
        limit = bytes - bytes / 8 - 1;
        if (bytes == 0)
            return rounds + 1;
    }
}

static void expect_same_bits(const test_model *m, int least_rounds)
{
    for (int partitions = 1; partitions <= 3; partitions += 2) {
        gpp_pipe_options o = options(1, 0);
        o.checkpoint = GPP_CHECKPOINT_NEVER;
        o.optimizer = "sgd lr=0.05 momentum=0.9";
        gpp_pipe *pipe = test_pipe_new(m, &o);
        test_trace t = {0};
        test_train(pipe, 3, uneven, &t);
        gpp_pipe_free(pipe);
        int rounds = squeeze(m, partitions, &t);
        cr_expect_geq(rounds, least_rounds, "%s, %d partitions: %d limits fit", m->why, partitions,
                      rounds);
        test_trace_free(&t);
    }
}

Test(budget, steps_have_the_same_bits_whatever_there_is_room_for)
{
    for (const test_model *m = test_models; m->text; m++)
        expect_same_bits(m, 3);
}
