/*
 * GPP_CHECKPOINT_BUDGET: what a partition keeps fits into the bytes it is given, results do not
 * depend on how many these are, and more bytes are never worse.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "codelets/program/internal.h"
#include "codelets/program/times.h"
#include "tests/networks.h"
#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(budget, .init = test_keep_runtime, .fini = test_release_runtime);

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
    const gpp__task_graph *g = pipe->flight[0].graph;
    size_t most = 0;
    *again = 0;
    for (int j = 0; j < pipe->recipe->partitions; j++) {
        size_t bytes = 0;
        for (size_t k = 0; k < g->step.plan->buffers; k++) {
            const gpp__buffer *b = &g->step.plan->buffer[k];
            if (b->j == j && (b->cls == GPP__TAPE || b->cls == GPP__PARTIAL))
                bytes += b->bytes;
        }
        most = bytes > most ? bytes : most;
        for (int q = 0; q < g->step.full->script[j]->moves; q++)
            *again += !g->step.full->script[j]->move[q].back;
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

static const test_model branches = {
    "long and short skips, a block with a branch, batch normalisation",
    "conv2d out=4 kernel=3 padding=1; batchnorm; relu; stash name=a; maxpool2d kernel=2; "
    "conv2d out=8 kernel=3 padding=1; batchnorm; relu; stash name=b; "
    "conv2d out=8 kernel=3 padding=1; pop name=b mode=add { conv2d out=8 kernel=1; relu }; relu; "
    "dropout p=0.2; upsample scale=2; pop name=a mode=cat dim=1; conv2d out=2 kernel=3 padding=1; "
    "flatten; linear out=3",
    3,
    {2, 8, 8},
    "mse"};
static const test_model small = {
    "a chain of few operators",
    "linear out=8; relu; linear out=8; relu; layernorm shape=8; linear out=8; relu; linear out=4",
    1,
    {8},
    "mse"};

/* Tensors that no backward reads are the smallest ones: the best places to begin again from. */
static const test_model waists = {
    "small tensors between large ones that no backward reads",
    "conv2d out=1 kernel=1; upsample scale=4; conv2d out=4 kernel=3 padding=1; relu; "
    "conv2d out=1 kernel=1; avgpool2d kernel=4; upsample scale=4; conv2d out=4 kernel=3 padding=1; "
    "tanh; conv2d out=1 kernel=1; avgpool2d kernel=4; upsample scale=4; "
    "conv2d out=4 kernel=3 padding=1; sigmoid; avgpool2d kernel=4",
    3,
    {2, 4, 4},
    "mse"};

Test(budget, skips_branches_and_statistics_too)
{
    expect_same_bits(&branches, 3);
    expect_same_bits(&waists, 3);
    expect_same_bits(&small, 3);
}

/* Bytes of the pipe's only device by plan. */
static size_t planned(const gpp_pipe *pipe)
{
    size_t bytes = 0;
    cr_assert_eq(gpp_pipe_memory(pipe, 0, &bytes, NULL, NULL), GPP_OK);
    return bytes;
}

static gpp_status try_limit(const test_model *m, size_t limit, gpp_pipe **pipe, gpp_error *err)
{
    static const char *const core[] = {"cpu:0"};
    gpp_pipe_options o = options(1, 0);
    gpp_model *model = test_model_new(m);
    o.devices = core;
    o.device_count = 1;
    o.memory_limit = limit;
    o.batch = 10;
    o.loss = m->loss;
    o.optimizer = "sgd lr=0.05 momentum=0.9";
    gpp_status status = gpp_pipe_new(pipe, model, &o, err);
    gpp_model_free(model);
    return status;
}

/* Limits from all that could be used down to what is too little; each is used, but for `piece`
 * bytes. */
static void expect_used(const test_model *m, size_t piece)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    cr_assert_eq(try_limit(m, 0, &pipe, &err), GPP_OK, "%s", err.msg);
    size_t all = planned(pipe), limit = all;
    int fitting = 0;
    gpp_pipe_free(pipe);
    for (; try_limit(m, limit, &pipe, &err) == GPP_OK; limit -= all / 24, fitting++) {
        size_t bytes = planned(pipe);
        cr_expect_leq(bytes, limit, "%s: %zu bytes planned, the limit is %zu", m->why, bytes,
                      limit);
        cr_expect_geq(bytes + piece, limit, "%s: %zu of %zu bytes used", m->why, bytes, limit);
        test_trace t = {0};
        test_train(pipe, 1, (int64_t[]){10}, &t);
        cr_expect_leq(planned(pipe), limit);
        test_trace_free(&t);
        gpp_pipe_free(pipe);
    }
    cr_expect_eq(err.code, GPP_ENOMEM, "%s", err.msg);
    cr_expect_geq(fitting, 3, "%s: %d limits fit", m->why, fitting);
}

Test(budget, a_memory_limit_is_used_up_and_never_exceeded)
{
    /* What is kept comes in pieces as large as an activation, of each of 4 micro-batches of 3 rows;
     * a few, since less may be kept, but nothing else instead. */
    expect_used(&branches, 5 * 4 * 3 * 4 * 64 * sizeof(float));
    expect_used(&waists, 5 * 4 * 3 * 4 * 256 * sizeof(float));
    expect_used(&small, 5 * 4 * 3 * 64);
}

/* --- sections and scripts --------------------------------------------------------------------- */

static gpp__recipe *plan_of(const test_model *m, size_t limit, gpp__program_cache *programs,
                            gpp__step_plan *e)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = options(1, limit);
    gpp_model *model = test_model_new(m);
    gpp__recipe *recipe;
    gpp__batch rows = {{10}};
    o.loss = m->loss;
    cr_assert_eq(gpp__recipe_new(&recipe, model, &o, NULL, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    *programs = (gpp__program_cache){.recipe = recipe};
    cr_assert_eq(gpp__step_plan_init(e, programs, NULL, gpp__recipe_training(recipe), &rows, &err),
                 GPP_OK, "%s", err.msg);
    return recipe;
}

Test(budget, sections_end_where_nothing_is_done_in_place)
{
    static const test_model m = {
        "", "linear out=8; relu; linear out=8; tanh; linear out=8", 1, {8}, "mse"};
    static const int first[] = {0, 2, 4}, count[] = {2, 2, 1};
    gpp__step_plan e;
    gpp__program_cache programs;
    gpp__recipe *recipe = plan_of(&m, 0, &programs, &e);
    gpp__section section[5];
    int sections;
    cr_assert_eq(gpp__program_sections(e.full->program[0], section, &sections, NULL), GPP_OK);
    cr_assert_eq(sections, 3, "%d sections", sections);
    for (int k = 0; k < 3; k++) {
        cr_expect_eq(section[k].first, first[k]);
        cr_expect_eq(section[k].count, count[k]);
        /* 3 rows of 8 floats, 96 -> 128 bytes: what relu and tanh give, which their backwards and
         * those of the next linears read. */
        cr_expect_eq(section[k].tape, k < 2 ? 128 : 0, "section %d: %zu", k, section[k].tape);
        cr_expect_eq(section[k].input, k ? 128 : 0, "section %d: %zu", k, section[k].input);
        cr_expect_eq(section[k].extra, 0);
    }
    gpp__step_plan_release(&e, &programs);
    gpp__recipe_free(recipe);
}

Test(budget, scripts_that_part_what_is_done_in_place_are_refused)
{
    static const test_model m = {"", "linear out=8; relu; linear out=8", 1, {8}, "mse"};
    static const struct {
        const char *message;
        int moves;
        gpp__move move[8];
    } cases[] = {
        {"parts what operators do in place", 4, {{false, 1}, {true, 2}, {true, 1}, {true, 0}}},
        {"operator 1 goes back before", 3, {{true, 1}, {true, 2}, {true, 0}}},
        {"1 operators never go back", 2, {{true, 2}, {true, 1}}},
        {"moves operator 3 of 3", 1, {{true, 3}}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp__step_plan e;
        gpp__program_cache programs;
        gpp_error err = GPP_ERROR_INIT;
        gpp__recipe *recipe = plan_of(&m, 0, &programs, &e);
        cr_expect_eq(gpp__program_follow(e.full->program[0], cases[k].move, cases[k].moves, &err),
                     GPP_EINVAL);
        cr_expect(strstr(err.msg, cases[k].message), "\"%s\" in \"%s\"", cases[k].message, err.msg);
        gpp__step_plan_release(&e, &programs);
        gpp__recipe_free(recipe);
    }
}

/* Whether operator `op` of the only partition runs again. */
static bool runs_again(const gpp_pipe *pipe, int op)
{
    const gpp__program *p = pipe->flight[0].graph->step.full->program[0];
    return p->scripted && (gpp__program_runs(p, GPP__PASS_RECOMPUTE, op) ||
                           gpp__program_runs(p, GPP__PASS_BACKWARD, op));
}

/* In a recomputation of its own, or between the backwards of others. */
Test(budget, what_runs_again_is_told_so)
{
    static const int64_t dim = 8;
    int again = 0, kept = 0;
    for (size_t limit = 300; limit < 4000; limit += 100) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model;
        gpp_pipe *pipe;
        gpp_model_new(&model, &err);
        gpp_model_add_text(model, "linear out=8", &err);
        gpp__model_add_op(model, &test_op_faulty, NULL, (gpp_attr[]){GPP_INT("id", 1)}, 1, &err);
        gpp_model_add_text(model, "linear out=8; tanh; linear out=8; tanh; linear out=8; tanh",
                           &err);
        gpp_model_set_input(model, GPP_F32, 1, &dim, &err);
        gpp_pipe_options o = options(1, limit);
        o.loss = "mse";
        gpp_status status = gpp_pipe_new(&pipe, model, &o, &err);
        gpp_model_free(model);
        cr_assert_eq(status, GPP_OK, "%s", err.msg);
        test_batch b = test_batch_new(pipe, 8, 3);
        test_faults[1] = (test_fault_at){TEST_NO_FAULT, -1};
        status = gpp_pipe_gradients(pipe, &b.x, &b.target, NULL, NULL, NULL, &err);
        if (status == GPP_OK) {
            bool expected = runs_again(pipe, 1);
            again += expected;
            kept += !expected;
            test_faults[1].when = TEST_FAIL_RECOMPUTE;
            status = gpp_pipe_gradients(pipe, &b.x, &b.target, NULL, NULL, NULL, &err);
            cr_expect_eq(status, expected ? GPP_EKERNEL : GPP_OK, "%zu bytes", limit);
        }
        gpp_error_clear(&err);
        test_batch_free(&b);
        gpp_pipe_free(pipe);
    }
    cr_expect(again > 2 && kept > 2, "%d limits make it run again, %d do not", again, kept);
}

Test(budget, limits_belong_to_the_mode)
{
    gpp_model *model = test_model_new(&small);
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = options(1, 4096);
    gpp_pipe *pipe;
    o.checkpoint = GPP_CHECKPOINT_NEVER;
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "activation_limit is given, but checkpoint is never"), "%s", err.msg);
    gpp_model_free(model);
}
