/*
 * tests/test_replicas.c: copies of a pipeline that train together. What they compute depends on
 * their number and on the pieces of a mini-batch, not on how the model is cut or where its copies
 * are.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/ranks.h"
#include "tests/support.h"
#include "tests/trainings.h"

TEST_STARPU_LOSES_REQUESTS

TestSuite(replicas, .init = test_keep_runtime, .fini = test_release_runtime);

/* --- the same bits wherever they are ---------------------------------------------------------- */

typedef struct case_of_replicas {
    const test_model *model;
    gpp_pipe_options options;
    test_what *what;
    test_result result[TEST_MOST_RANKS];
} case_of_replicas;

static void run_on_rank(gpp_comm *comm, void *arg)
{
    case_of_replicas *c = arg;
    gpp_pipe_options o = c->options;
    o.comm = comm;
    gpp_pipe *pipe = test_pipe_new(c->model, &o);
    c->what(pipe, &c->result[comm ? gpp_comm_rank(comm) : 0]);
    gpp_pipe_free(pipe);
}

/* The outputs of all ranks together: each has some. */
static void join_outputs(test_result result[], int ranks)
{
    test_trace *all = &result[0].outputs;
    for (int r = 1; r < ranks; r++)
        for (size_t k = 0; k < all->count; k++)
            all->value[k] = isnan(all->value[k]) ? result[r].outputs.value[k] : all->value[k];
}

static void expect(const test_result *want, case_of_replicas *c, int ranks, const char *why)
{
    if (ranks == 1)
        run_on_rank(NULL, c);
    else
        test_on_ranks(ranks, run_on_rank, c);
    join_outputs(c->result, ranks);
    cr_expect_eq(test_trace_differs(&want->outputs, &c->result[0].outputs), -1,
                 "%s, %s, %d replicas of %d partitions on %d ranks: outputs", c->model->why, why,
                 c->options.replicas, c->options.partitions, ranks);
    for (int r = 0; r < ranks; r++) {
        cr_expect_eq(test_trace_differs(&want->common, &c->result[r].common), -1,
                     "%s, %s, %d replicas of %d partitions, rank %d of %d", c->model->why, why,
                     c->options.replicas, c->options.partitions, r, ranks);
        test_result_free(&c->result[r]);
    }
    memset(c->result, 0, sizeof c->result);
}

/* Replicas on one device, then cut in other ways and on several devices and ranks. */
static void expect_same_of(test_what *what, const test_model *model,
                           const gpp_pipe_options *options, const int ranks[], const char *why)
{
    static const char *one[TEST_MOST_RANKS] = {"cpu:0", "cpu:0", "cpu:0", "cpu:0",
                                               "cpu:0", "cpu:0", "cpu:0", "cpu:0"};
    case_of_replicas c = {.model = model, .options = *options, .what = what};
    test_result want = {{0}, {0}};
    c.options.partitions = 0;
    c.options.shard_optimizer = false;
    c.options.devices = one;
    c.options.device_count = options->replicas;
    run_on_rank(NULL, &c);
    want = c.result[0];
    memset(c.result, 0, sizeof c.result);
    c.options = *options;
    for (int k = 0; ranks[k]; k++)
        expect(&want, &c, ranks[k], why);
    test_result_free(&want);
}

static const int few_ranks[] = {1, 2, 0}, some_ranks[] = {1, 2, 3, 4, 0};

Test(replicas, steps_give_the_same_wherever_replicas_are)
{
    for (const test_model *m = test_models; m->text; m++)
        for (int replicas = 2; replicas <= 4; replicas++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 2;
            o.partitions = 2;
            o.replicas = replicas;
            o.optimizer = "adam lr=0.01";
            expect_same_of(test_steps, m, &o, replicas == 2 ? some_ranks : few_ranks, "steps");
        }
}

Test(replicas, every_schedule_and_mode_gives_the_same)
{
    for (size_t k = 0; gpp_schedule_name(k); k++)
        for (int mode = 0; mode < TEST_MODES; mode++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 2;
            o.partitions = 3;
            o.replicas = 2;
            o.schedule = gpp_schedule_name(k);
            o.ascending_backward = true;
            o.checkpoint = test_modes[mode];
            expect_same_of(test_steps, &test_skips, &o, few_ranks, gpp_schedule_name(k));
        }
}

Test(replicas, options_that_need_all_partitions_give_the_same)
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
        o.partitions = 2;
        o.replicas = 2;
        o.clip_norm = cases[k].clip_norm;
        o.skip_nonfinite = cases[k].skip_nonfinite;
        o.nan_is_error = cases[k].nan_is_error;
        o.deferred_batch_norm = cases[k].deferred_batch_norm;
        o.optimizer = cases[k].optimizer;
        expect_same_of(test_steps, &test_skips, &o, some_ranks, cases[k].why);
        o.schedule = "zb-h1";
        o.ascending_backward = true;
        o.replicas = 3;
        expect_same_of(test_steps, &test_skips, &o, few_ranks, cases[k].why);
    }
}

Test(replicas, every_kind_of_call_gives_the_same)
{
    static const struct {
        const char *why;
        test_what *what;
    } calls[] = {
        {"forward and backward", test_halves},
        {"submitted steps", test_submitted},
        {"setting, freezing", test_settings},
    };
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++)
        for (int mode = 0; mode < TEST_MODES; mode++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 2;
            o.partitions = 2;
            o.replicas = 2;
            o.checkpoint = test_modes[mode];
            expect_same_of(calls[k].what, &test_skips, &o, some_ranks, calls[k].why);
            o.replicas = 3;
            expect_same_of(calls[k].what, &test_models[0], &o, few_ranks, calls[k].why);
        }
}

Test(replicas, sharded_optimizer_state_gives_the_same)
{
    static const struct {
        const char *optimizer;
        double clip_norm;
        test_what *what;
    } cases[] = {
        {"sgd lr=0.1 momentum=0.9", 0, test_steps},
        {"adam lr=0.01", 0.05, test_steps},
        {"nadam lr=0.01", 0, test_submitted},
        {"adamw lr=0.01", 0, test_halves},
        {"rmsprop lr=0.01 momentum=0.5", 0, test_settings},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int replicas = 2; replicas <= 4; replicas++) {
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.chunks = 2;
            o.partitions = 2;
            o.replicas = replicas;
            o.optimizer = cases[k].optimizer;
            o.clip_norm = cases[k].clip_norm;
            o.shard_optimizer = true;
            expect_same_of(cases[k].what, &test_skips, &o, replicas < 4 ? some_ranks : few_ranks,
                           o.optimizer);
        }
}

Test(replicas, wrong_options_are_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_new(&test_skips);
    gpp_pipe *pipe;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.replicas = -1;
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "replicas"), "%s", err.msg);
    o.replicas = 1 << 12;
    o.chunks = 1 << 12;
    gpp_error_clear(&err);
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "4096 replicas of 4096 chunks"), "%s", err.msg);
    gpp_model_free(model);
}

/* --- parts of a mini-batch -------------------------------------------------------------------- */

/* Spoil the rows that this rank need not have. */
static void spoil(gpp_tensor *t, const gpp_part *part)
{
    int64_t each, last, count = test_tensor_count(t) / t->dim[0];
    gpp__chunk(t->dim[0], part->chunks, &each, &last);
    for (int64_t k = 0; k < t->dim[0] * count; k++)
        if (k / count < part->first * each || k / count >= part->end * each)
            ((float *)t->data)[k] = NAN;
}

static void steps_on_parts(gpp_pipe *pipe, test_result *r)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    for (int64_t rows = 5; rows <= 12; rows += 7) {
        double loss;
        test_batch b = test_batch_new(pipe, rows, (uint64_t)rows);
        spoil(&b.x, &info.part);
        spoil(&b.target, &info.part);
        test_must(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), &err);
        test_result_add(r, loss);
        test_trace_add(&r->outputs, b.y.data, (size_t)test_tensor_count(&b.y));
        test_trace_params(&r->common, pipe);
        test_batch_free(&b);
    }
}

Test(replicas, ranks_need_only_the_rows_of_their_replicas)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 2;
    o.partitions = 2;
    o.replicas = 2;
    expect_same_of(steps_on_parts, &test_skips, &o, some_ranks, "parts");
    o.replicas = 4;
    expect_same_of(steps_on_parts, &test_skips, &o, some_ranks, "parts");
}

/* --- the right numbers ------------------------------------------------------------------------ */

/* Plain arithmetic: nothing of the model depends on where a row is in the mini-batch. */
static const test_model plain = {
    "plain", "linear out=7; tanh; linear out=5; tanh; linear out=3", 1, {6}, "mse reduction=sum"};

static gpp_tensor rows_of(const gpp_tensor *t, int64_t first, int64_t rows)
{
    gpp_tensor part = *t;
    part.data = (float *)t->data + first * test_tensor_count(t) / t->dim[0];
    part.dim[0] = rows;
    return part;
}

/* Sum over a binary tree of parts. */
static void add_up(test_trace part[], int parts)
{
    for (int span = 1; span < parts; span *= 2)
        for (int r = 0; r + span < parts; r += 2 * span)
            for (size_t k = 0; k < part[r].count; k++)
                part[r].value[k] += part[r + span].value[k];
}

/* Each part of the mini-batch goes through a pipe of its own. */
Test(replicas, gradients_are_the_sum_over_a_tree_of_the_replicas_gradients)
{
    enum { MOST = 5, CHUNKS = 2, ROWS = 3 };
    for (int replicas = 2; replicas <= MOST; replicas++) {
        test_trace part[MOST] = {{0}}, got = {0};
        gpp_error err = GPP_ERROR_INIT;
        double loss, sum = 0;
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = CHUNKS;
        o.partitions = 2;
        gpp_pipe *alone = test_pipe_new(&plain, &o);
        o.replicas = replicas;
        gpp_pipe *all = test_pipe_new(&plain, &o);
        test_batch b = test_batch_new(all, replicas * CHUNKS * ROWS, 5);
        for (int r = 0; r < replicas; r++) {
            gpp_tensor x = rows_of(&b.x, r * CHUNKS * ROWS, CHUNKS * ROWS),
                       target = rows_of(&b.target, r * CHUNKS * ROWS, CHUNKS * ROWS);
            test_must(gpp_pipe_gradients(alone, &x, &target, NULL, NULL, &loss, &err), &err);
            test_trace_grads(&part[r], alone);
            sum += loss;
        }
        add_up(part, replicas);
        test_must(gpp_pipe_gradients(all, &b.x, &b.target, NULL, NULL, &loss, &err), &err);
        test_trace_grads(&got, all);
        cr_expect_eq(test_trace_differs(&part[0], &got), -1, "%d replicas", replicas);
        cr_expect_eq(loss, sum);
        for (int r = 0; r < replicas; r++)
            test_trace_free(&part[r]);
        test_trace_free(&got);
        test_batch_free(&b);
        gpp_pipe_free(alone);
        gpp_pipe_free(all);
    }
}

static double farthest(const test_trace *a, const test_trace *b)
{
    double most = 0;
    cr_assert_eq(a->count, b->count);
    for (size_t k = 0; k < a->count; k++)
        most = fmax(most, fabs((double)a->value[k] - b->value[k]));
    return most;
}

/* What one training step leaves: outputs and running statistics, then gradients and parameters. */
static void one_step(const test_model *model, const gpp_pipe_options *o, test_trace *exact,
                     test_trace *near)
{
    gpp_error err = GPP_ERROR_INIT;
    double loss;
    gpp_pipe *pipe = test_pipe_new(model, o);
    test_batch b = test_batch_new(pipe, 11, 3);
    test_must(gpp_pipe_step(pipe, &b.x, &b.target, &b.y, &loss, &err), &err);
    float rounded = (float)loss;
    test_trace_add(exact, b.y.data, (size_t)test_tensor_count(&b.y));
    test_trace_add(near, &rounded, 1);
    for (int k = 0; k < gpp_pipe_buffers(pipe); k++) {
        gpp_buffer_info buffer;
        float value[64] = {0};
        test_must(gpp_pipe_buffer(pipe, k, &buffer, &err), &err);
        test_must(gpp_pipe_get_buffer(pipe, buffer.name, value, buffer.count, &err), &err);
        test_trace_add(exact, value, (size_t)buffer.count);
    }
    test_trace_grads(near, pipe);
    test_trace_params(near, pipe);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

/* As many pieces in one pipe: all but the order of some sums is the same. */
Test(replicas, a_step_is_that_of_one_pipe_with_as_many_pieces)
{
    const test_model *models[] = {&test_models[0], &test_models[1], &test_models[2], &test_skips};
    for (size_t k = 0; k < 2 * sizeof models / sizeof *models; k++) {
        const test_model *model = models[k / 2];
        test_trace exact[2] = {{0}}, near[2] = {{0}};
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.deferred_batch_norm = k % 2;
        o.clip_norm = 0.1;
        o.partitions = 2;
        o.chunks = 6;
        one_step(model, &o, &exact[0], &near[0]);
        o.chunks = 2;
        o.replicas = 3;
        one_step(model, &o, &exact[1], &near[1]);
        cr_expect_eq(test_trace_differs(&exact[0], &exact[1]), -1, "%s", model->why);
        cr_expect_lt(farthest(&near[0], &near[1]), 1e-5, "%s", model->why);
        for (int t = 0; t < 2; t++) {
            test_trace_free(&exact[t]);
            test_trace_free(&near[t]);
        }
    }
}
