/*
 * Orders of tasks beside GPipe's: the bits of GPipe with ascending backwards, however the model is
 * cut and in every mode; the memory that their papers promise; tables of the user's.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(schedule_runs, .init = test_keep_runtime, .fini = test_release_runtime);

static const int64_t uneven[] = {10, 7, 10};

static const test_model branches = {
    "skips, a block with a branch, normalisations, dropout",
    "conv2d out=4 kernel=3 padding=1; batchnorm; relu; stash name=a; maxpool2d kernel=2; "
    "conv2d out=8 kernel=3 padding=1; relu; stash name=b; conv2d out=8 kernel=3 padding=1; "
    "pop name=b mode=add { conv2d out=8 kernel=1; relu }; relu; dropout p=0.2; "
    "upsample scale=2; pop name=a mode=cat dim=1; conv2d out=2 kernel=3 padding=1; flatten; "
    "layernorm shape=128; linear out=3",
    3,
    {2, 8, 8},
    "mse"};

static gpp_pipe_options options(const char *schedule, int partitions, gpp_checkpoint mode)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.chunks = 4;
    o.seed = 7;
    o.checkpoint = mode;
    o.schedule = schedule;
    o.optimizer = "sgd lr=0.05 momentum=0.9";
    return o;
}

static test_trace trace_of(const test_model *m, const gpp_pipe_options *o)
{
    gpp_pipe *pipe = test_pipe_new(m, o);
    test_trace t = {0};
    test_train(pipe, 3, uneven, &t);
    gpp_pipe_free(pipe);
    return t;
}

static void expect_same_bits(const test_model *m)
{
    gpp_pipe_options o = options(NULL, 1, GPP_CHECKPOINT_NEVER);
    o.ascending_backward = true;
    test_trace one = trace_of(m, &o);
    for (size_t s = 1; gpp_schedule_name(s); s++)
        for (int n = 1; n <= 4; n++)
            for (int mode = 0; mode < 3; mode++) {
                o = options(gpp_schedule_name(s), n, (gpp_checkpoint)mode);
                test_trace t = trace_of(m, &o);
                cr_expect_eq(test_trace_differs(&one, &t), -1,
                             "%s, %s, %d partitions, %s: float %ld of %zu differs", m->why,
                             o.schedule, n, gpp_checkpoint_name(o.checkpoint),
                             test_trace_differs(&one, &t), t.count);
                test_trace_free(&t);
            }
    test_trace_free(&one);
}

Test(schedule_runs, every_order_gives_the_same_bits)
{
    for (const test_model *m = test_models; m->text; m++)
        expect_same_bits(m);
}

Test(schedule_runs, skips_branches_and_statistics_too)
{
    expect_same_bits(&branches);
}

/* --- order ------------------------------------------------------------------------------------ */

/* What the last step's devices did, in the order of their tables. */
static void expect_table_order(const gpp_pipe *pipe, const char *why)
{
    const gpp__task_graph *g = pipe->flight[0].graph;
    for (int d = 0; d < g->step.plan->shape.devices; d++)
        for (size_t k = 1; k < g->step.plan->count[d]; k++) {
            const gpp__cell *a = &g->cell[g->step.plan->table[d][k - 1]],
                            *b = &g->cell[g->step.plan->table[d][k]];
            cr_expect_leq(a->end, b->start, "%s: device %d, tasks %zu and %zu overlap", why, d,
                          k - 1, k);
        }
}

static const test_model chain = {
    "eight linears",
    "linear out=6; linear out=6; linear out=6; linear out=6; linear out=6; linear out=6; "
    "linear out=6; linear out=6",
    1,
    {6},
    "mse"};

Test(schedule_runs, what_runs_is_what_the_table_says)
{
    static const int chunks[] = {1, 2, 3, 8, 16};
    for (size_t s = 0; gpp_schedule_name(s); s++)
        for (int n = 1; n <= 8; n++)
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                gpp_pipe_options o =
                    options(gpp_schedule_name(s), n, (gpp_checkpoint)((n + (int)c) % 3));
                o.chunks = chunks[c];
                gpp_pipe *pipe = test_pipe_new(&chain, &o);
                test_trace t = {0};
                test_train(pipe, 1, (int64_t[]){16}, &t);
                test_batch b = test_batch_new(pipe, 16, 1);
                cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, NULL), GPP_OK);
                expect_table_order(pipe, o.schedule);
                test_batch_free(&b);
                test_trace_free(&t);
                gpp_pipe_free(pipe);
            }
}

Test(schedule_runs, forwards_and_backwards_may_be_calls_of_their_own)
{
    for (size_t s = 0; gpp_schedule_name(s); s++)
        for (int n = 1; n <= 3; n++) {
            gpp_error err = GPP_ERROR_INIT;
            gpp_pipe_options o = options(gpp_schedule_name(s), n, GPP_CHECKPOINT_EXCEPT_LAST);
            gpp_pipe_options plain = options(NULL, 1, GPP_CHECKPOINT_NEVER);
            plain.ascending_backward = s > 0;
            gpp_pipe *p[] = {test_pipe_new(&branches, &plain), test_pipe_new(&branches, &o)};
            test_trace t[2] = {{0}};
            for (int k = 0; k < 2; k++) {
                test_batch b = test_batch_new(p[k], 10, 5);
                cr_assert_eq(gpp_pipe_forward(p[k], &b.x, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
                cr_assert_eq(gpp_pipe_backward(p[k], -1, &b.x, &b.grad_y, &b.grad_x, &err), GPP_OK,
                             "%s", err.msg);
                test_trace_add(&t[k], b.grad_x.data, (size_t)test_tensor_count(&b.grad_x));
                test_trace_grads(&t[k], p[k]);
                test_batch_free(&b);
                gpp_pipe_free(p[k]);
            }
            cr_expect_eq(test_trace_differs(&t[0], &t[1]), -1, "%s, %d partitions", o.schedule, n);
            test_trace_free(&t[0]);
            test_trace_free(&t[1]);
        }
}

/* --- memory ----------------------------------------------------------------------------------- */

static int slots(const gpp_pipe *pipe, gpp__class cls, int j)
{
    int count = 0;
    for (size_t k = 0; k < pipe->flight[0].graph->step.plan->buffers; k++)
        count += pipe->flight[0].graph->step.plan->buffer[k].cls == cls &&
                 pipe->flight[0].graph->step.plan->buffer[k].j == j;
    return count;
}

/* Tapes of partition j under 1F1B: min(m, n - j); under GPipe m. */
Test(schedule_runs, one_forward_one_backward_holds_few_micro_batches)
{
    enum { N = 2 };
    for (int m = 1; m <= 8; m *= 2)
        for (int s = 0; s < 2; s++) {
            gpp_pipe_options o = options(s ? "1f1b" : "gpipe", N, GPP_CHECKPOINT_NEVER);
            o.chunks = m;
            gpp_pipe *pipe = test_pipe_new(&chain, &o);
            test_trace t = {0};
            test_train(pipe, 1, (int64_t[]){16}, &t);
            for (int j = 0; j < N; j++) {
                int expected = s && m > N - j ? N - j : m;
                cr_expect_eq(slots(pipe, GPP__TAPE, j), expected, "%s, m=%d: partition %d has %d",
                             o.schedule, m, j, slots(pipe, GPP__TAPE, j));
            }
            for (int d = 0; d < pipe->recipe->devices; d++) {
                size_t planned, peak;
                gpp_pipe_memory(pipe, d, &planned, &peak, NULL);
                cr_expect(peak <= planned + planned / 20 && planned <= peak + peak / 20);
            }
            test_trace_free(&t);
            gpp_pipe_free(pipe);
        }
}

/* --- tables of the user's --------------------------------------------------------------------- */

Test(schedule_runs, a_table_of_ones_own_is_followed)
{
    static const char *const devices[] = {"cpu:0", "cpu:0"};
    gpp_pipe_options o = options("1f1b", 1, GPP_CHECKPOINT_NEVER);
    o.chunks = 2;
    gpp_pipe *plain = test_pipe_new(&chain, &o);
    o.partitions = 2;
    o.devices = devices;
    o.device_count = 2;
    o.schedule = "table:F0.0 F0.1 F1.0 B0.1 B0.0 F1.1 B1.1 B1.0";
    gpp_pipe *own = test_pipe_new(&chain, &o);
    test_trace t[2] = {{0}};
    test_train(plain, 2, (int64_t[]){16, 16}, &t[0]);
    test_train(own, 2, (int64_t[]){16, 16}, &t[1]);
    cr_expect_eq(test_trace_differs(&t[0], &t[1]), -1);
    expect_table_order(own, "a table");
    test_trace_free(&t[0]);
    test_trace_free(&t[1]);
    gpp_pipe_free(plain);
    gpp_pipe_free(own);
}

Test(schedule_runs, wrong_orders_are_refused)
{
    static const struct {
        const char *schedule, *message;
        gpp_status status;
        gpp_checkpoint mode;
    } cases[] = {
        {"gpipes", "no schedule is called \"gpipes\"; there are gpipe, 1f1b,", GPP_ENOENT, 2},
        {"zb-h1", "which checkpoint budget cannot have", GPP_EINVAL, GPP_CHECKPOINT_BUDGET},
        {"table:F0.0 F0.1 B0.0 B0.1", "B(0,0)", GPP_EINVAL, 2},
        {"table:F0.0 F0.1 B0.1", "B(0,0)", GPP_EINVAL, 2},
        {"table:F0.0 X", "line 1", GPP_ESYNTAX, 2},
    };
    static const char *const devices[] = {"cpu:0", "cpu:0"};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_pipe_options o = options(cases[k].schedule, 2, cases[k].mode);
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_new(&chain);
        gpp_pipe *pipe;
        o.devices = devices;
        o.device_count = 2;
        o.chunks = 1;
        o.batch = 4;
        o.loss = "mse";
        cr_expect_eq(gpp_pipe_new(&pipe, model, &o, &err), cases[k].status, "%s: %s",
                     cases[k].schedule, err.msg);
        cr_expect(strstr(err.msg, cases[k].message), "\"%s\" in \"%s\"", cases[k].message, err.msg);
        gpp_model_free(model);
    }
}

Test(schedule_runs, interleaving_gives_every_device_a_partition_in_every_round)
{
    gpp_pipe_options o = options("interleaved", 4, GPP_CHECKPOINT_NEVER);
    gpp_pipe *pipe = test_pipe_new(&chain, &o);
    for (int j = 0; j < 4; j++)
        cr_expect_eq(pipe->recipe->device_of[j], j % pipe->recipe->devices);
    gpp_pipe_free(pipe);
}
