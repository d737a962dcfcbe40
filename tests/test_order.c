/*
 * The policy: what was executed, seen by the tasks' own clocks, is the order table's order on every
 * device, and every task began after those whose data it reads had ended.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"

static const test_model chain = {
    "a chain",
    "linear out=8; relu; linear out=8; relu; linear out=8; relu; linear out=4",
    1,
    {6},
    "mse reduction=sum"};

static void expect_table_order(const gpp__task_graph *g, const char *what)
{
    for (int d = 0; d < g->step.plan->shape.devices; d++)
        for (size_t k = 1; k < g->step.plan->count[d]; k++) {
            const gpp__cell *a = &g->cell[g->step.plan->table[d][k - 1]],
                            *b = &g->cell[g->step.plan->table[d][k]];
            cr_expect(a->end <= b->start,
                      "%s: device %d, position %zu began before its predecessor had ended", what, d,
                      k);
            cr_expect_eq(a->worker, b->worker, "%s: device %d used two workers", what, d);
        }
}

static void expect_data_order(const gpp__task_graph *g, const char *what)
{
    const gpp__plan *p = g->step.plan;
    long *writer = malloc(p->buffers * sizeof *writer);
    memset(writer, -1, p->buffers * sizeof *writer);
    for (size_t k = 0; k < p->tasks;
         k++) /* in the order of submission, which defines who reads whose value */
        for (int a = 0; a < p->task[k].access_count; a++) {
            const gpp__access *x = &p->task[k].access[a];
            if (x->mode == GPP__WORKSPACE)
                continue;
            if ((x->mode & GPP__READ) && writer[x->buffer] >= 0)
                cr_expect(g->cell[writer[x->buffer]].end <= g->cell[k].start,
                          "%s: task %zu began before its data", what, k);
            if (x->mode & GPP__WRITE)
                writer[x->buffer] = (long)k;
        }
    free(writer);
}

static void run_and_check(int partitions, int chunks, gpp_checkpoint mode, int64_t rows)
{
    char what[96];
    snprintf(what, sizeof what, "%d partitions, %d chunks, %s", partitions, chunks,
             gpp_checkpoint_name(mode));
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.chunks = chunks;
    o.checkpoint = mode;
    gpp_pipe *pipe = test_pipe_new(&chain, &o);
    test_batch b = test_batch_new(pipe, rows, 1);
    gpp_error err = GPP_ERROR_INIT;
    for (int step = 0; step < 3; step++) {
        cr_assert_eq(gpp_pipe_step(pipe, &b.x, &b.target, NULL, NULL, &err), GPP_OK, "%s: %s", what,
                     err.msg);
        expect_table_order(pipe->flight[0].graph, what);
        expect_data_order(pipe->flight[0].graph, what);
    }
    test_batch_free(&b);
    gpp_pipe_free(pipe);
}

Test(order, devices_follow_their_tables_and_data_for_every_mode_and_size)
{
    test_keep_runtime();
    for (int n = 1; n <= 4; n++)
        for (int m = 1; m <= 9; m++)
            for (int mode = 0; mode < 3; mode++)
                run_and_check(n, m, (gpp_checkpoint)mode, m);
    test_release_runtime();
}

Test(order, the_policy_is_ours_though_the_environment_names_another)
{
    setenv("STARPU_SCHED", "eager", 1);
    run_and_check(2, 6, GPP_CHECKPOINT_ALWAYS, 12);
    cr_expect_str_eq(getenv("STARPU_SCHED"), "eager", "the caller's environment is the caller's");
    unsetenv("STARPU_SCHED");
}

/* A recomputation waits for nothing but its predecessor on the device. Each backward of the second
 * device does not end before the first has recomputed the same micro-batch: a recomputation that
 * waited for the gradient would never begin. */
Test(order, a_recomputation_starts_before_its_gradient_is_there)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    int64_t dim = 4;
    gpp_model_new(&model, &err);
    gpp__model_add_op(model, &test_op_meet, NULL, NULL, 0, &err);
    gpp_model_add(model, "linear", NULL, (gpp_attr[]){GPP_INT("out", 4)}, 1, &err);
    gpp__model_add_op(model, &test_op_meet, NULL, (gpp_attr[]){GPP_INT("waits", 1)}, 1, &err);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, &dim, &err), GPP_OK, "%s", err.msg);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.balance = (int[]){2, 1};
    o.chunks = 4;
    o.checkpoint = GPP_CHECKPOINT_ALWAYS;
    o.loss = "mse";
    gpp_pipe *pipe;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    if (pipe->recipe->devices < 2)
        cr_skip_test("one core: both partitions share a device");
    test_batch b = test_batch_new(pipe, 8, 1);
    cr_expect_eq(gpp_pipe_gradients(pipe, &b.x, &b.target, NULL, NULL, NULL, &err), GPP_OK, "%s",
                 err.msg);
    test_batch_free(&b);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(order, two_pipes_at_once_keep_to_their_own_tables)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 3;
    gpp_pipe *a = test_pipe_new(&chain, &o), *b = test_pipe_new(&chain, &o);
    test_batch x = test_batch_new(a, 7, 1);
    gpp_error err = GPP_ERROR_INIT;
    for (int step = 0; step < 5; step++) {
        cr_assert_eq(gpp_pipe_step(a, &x.x, &x.target, NULL, NULL, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_pipe_step(b, &x.x, &x.target, NULL, NULL, &err), GPP_OK, "%s", err.msg);
        expect_table_order(a->flight[0].graph, "first pipe");
        expect_table_order(b->flight[0].graph, "second pipe");
    }
    test_trace ta = {0}, tb = {0};
    test_trace_params(&ta, a);
    test_trace_params(&tb, b);
    cr_expect_eq(test_trace_differs(&ta, &tb), -1);
    test_trace_free(&ta);
    test_trace_free(&tb);
    test_batch_free(&x);
    gpp_pipe_free(a);
    gpp_pipe_free(b);
}
