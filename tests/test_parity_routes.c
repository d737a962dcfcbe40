/*
 * tests/test_parity_routes.c: the way of skips between partitions, and how long they live:
 * torchgpipe's tests/skip/test_inspect_skip_layout.py, test_leak.py, test_tracker.py and the lives
 * of test_portal.py, read off the plan (PARITY.md). A route is one buffer for each micro-batch,
 * from the partition that stashes to the one that pops.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "graph/run/pipe.h"
#include "tests/parity.h"
#include "tests/support.h"

enum { ROWS = 4 };

typedef enum way { TRAIN, EVALUATE } way;

/* A pipe that has run once. */
static gpp_pipe *run(const char *text, int partitions, const int balance[], gpp_checkpoint mode,
                     way how)
{
    gpp_pipe *pipe = parity_linear(text, 1, partitions, balance, ROWS, mode);
    float v[ROWS] = {1, 2, 3, 4}, w[ROWS], g[ROWS];
    gpp_tensor x = {v, GPP_F32, 2, {ROWS, 1}}, y = {w, GPP_F32, 2, {ROWS, 1}};
    gpp_tensor gx = {g, GPP_F32, 2, {ROWS, 1}}, target = y;
    gpp_error err = GPP_ERROR_INIT;
    target.data = v;
    if (how == EVALUATE)
        cr_assert_eq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, &err), GPP_OK, "%s", err.msg);
    else
        parity_pass(pipe, &x, &y, &target, &gx);
    return pipe;
}

/* The same with a loss, so that one plan has the forwards and the backwards. */
static gpp_pipe *step(const char *text, int partitions, const int balance[], gpp_checkpoint mode)
{
    gpp_model *model = parity_model(text);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    float v[ROWS] = {1, 2, 3, 4};
    gpp_tensor x = {v, GPP_F32, 2, {ROWS, 1}}, target = x;
    parity_input(model, 1, (int64_t[]){1});
    o.partitions = partitions;
    o.balance = balance;
    o.chunks = ROWS;
    o.checkpoint = mode;
    o.loss = "mse";
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_gradients(pipe, &x, &target, NULL, NULL, NULL, &err), GPP_OK, "%s",
                 err.msg);
    gpp_model_free(model);
    return pipe;
}

/* --- layouts ---------------------------------------------------------------------------------- */

/* "0->2 foo, 1->2 ns.bar": routes of skips, by destination, then source. */
static void expect_routes(const char *text, int partitions, const int balance[], const char *want)
{
    gpp_pipe *pipe = run(text, partitions, balance, GPP_CHECKPOINT_EXCEPT_LAST, EVALUATE);
    const gpp__plan *plan = pipe->flight[0].graph->step.plan;
    char got[256] = "";
    size_t used = 0;
    cr_assert_eq(plan->edges, pipe->recipe->edges);
    for (int to = 1; to < partitions; to++)
        for (int from = 0; from < to; from++)
            for (int r = 0; r < plan->edges; r++) {
                const gpp__value *v = &pipe->recipe->network->value[pipe->recipe->edge[r].value];
                const gpp__edge *route = &plan->edge[r];
                if (route->name && route->to == to && route->from == from)
                    used += (size_t)snprintf(got + used, sizeof got - used, "%s%d->%d %s%s%s",
                                             used ? ", " : "", from, to, v->name.ns,
                                             v->name.ns[0] ? "." : "", v->name.name);
            }
    cr_expect_str_eq(got, want);
    gpp_pipe_free(pipe);
}

Test(skip_inspect_skip_layout, test_no_skips)
{
    expect_routes("act; act", 2, (int[]){1, 1}, "");
}

Test(skip_inspect_skip_layout, test_inner_partition)
{
    expect_routes("stash name=foo; pop name=foo mode=add; act", 2, (int[]){2, 1}, "");
}

Test(skip_inspect_skip_layout, test_adjoining_partitions)
{
    expect_routes("stash name=foo; pop name=foo mode=add", 2, (int[]){1, 1}, "0->1 foo");
}

Test(skip_inspect_skip_layout, test_far_partitions)
{
    expect_routes("stash name=foo; act; pop name=foo mode=add", 3, (int[]){1, 1, 1}, "0->2 foo");
}

Test(skip_inspect_skip_layout, test_pop_2_from_different_partitions)
{
    expect_routes("stash name=foo; stash name=bar; pop name=bar mode=add; pop name=foo mode=add", 3,
                  (int[]){1, 1, 2}, "0->2 foo, 1->2 bar");
}

Test(skip_inspect_skip_layout, test_namespace)
{
    expect_routes("stash name=foo ns=1; stash name=foo ns=2; pop name=foo ns=2 mode=add; "
                  "pop name=foo ns=1 mode=add",
                  3, (int[]){1, 1, 2}, "0->2 1.foo, 1->2 2.foo");
}

/* Two on one way, one of them in the default namespace: upstream cannot sort them. */
Test(skip_inspect_skip_layout, namespaces_and_none_on_one_route)
{
    expect_routes("stash name=foo; stash name=foo ns=1; act; pop name=foo ns=1 mode=add; "
                  "pop name=foo mode=add",
                  3, (int[]){2, 1, 2}, "0->2 foo, 0->2 1.foo");
}

/* --- lives ------------------------------------------------------------------------------------ */

static int skip_route(const gpp__plan *plan)
{
    for (int r = 0; r < plan->edges; r++)
        if (plan->edge[r].name)
            return r;
    return -1;
}

/* Kinds of tasks of micro-batch i in partition j that touch the skip itself: "F", "FR". */
static void users(const gpp__plan *plan, int i, int j, int mode, char out[8])
{
    int r = skip_route(plan), count = 0;
    for (size_t k = 0; k < plan->tasks; k++)
        for (int a = 0; a < plan->task[k].access_count; a++) {
            const gpp__task *t = &plan->task[k];
            const gpp__buffer *b = &plan->buffer[t->access[a].buffer];
            bool value = t->access[a].role == GPP__ROLE_IN || t->access[a].role == GPP__ROLE_OUT;
            if (b->cls == GPP__EDGE && b->j == r && value && t->i == i && t->j == j &&
                t->access[a].mode == mode && count < 7)
                out[count++] = gpp__kind_letter((gpp__kind)t->kind);
        }
    out[count] = '\0';
}

static int slots(const gpp__plan *plan)
{
    int r = skip_route(plan), count = 0;
    for (size_t k = 0; k < plan->buffers; k++)
        count += plan->buffer[k].cls == GPP__EDGE && plan->buffer[k].j == r;
    return count;
}

/* Partitions: one that stashes, one between, one that pops. There is a gradient, and `act` makes
 * recomputations necessary for it. */
static const char remote[] =
    "chain { linear out=1; act; stash name=foo }; act; chain { pop name=foo mode=add; act }";
static const int three[] = {1, 1, 1};

/* Written once, by the forward; popped by the forward and, under checkpointing, once more by the
 * recomputation, after which its buffer is free. */
static void expect_life(const gpp__plan *plan, int checkpointed)
{
    char kinds[8];
    for (int i = 0; i < ROWS; i++) {
        users(plan, i, 0, GPP__WRITE, kinds);
        cr_expect_str_eq(kinds, "F", "stash, micro-batch %d: by \"%s\"", i, kinds);
        users(plan, i, 2, GPP__READ, kinds);
        cr_expect_str_eq(kinds, i < checkpointed ? "FR" : "F", "pop, micro-batch %d: by \"%s\"", i,
                         kinds);
        for (int mode = GPP__READ; mode <= GPP__READWRITE; mode++) {
            users(plan, i, 1, mode, kinds);
            cr_expect_str_eq(kinds, "", "the partition between never sees it");
        }
    }
    cr_expect_leq(slots(plan), 2 * ROWS, "a value and a gradient for each micro-batch at most");
}

Test(skip_leak, test_delete_portal_tensor)
{
    static const int checkpointed[] = {ROWS - 1, ROWS, 0};
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *train = step(remote, 3, three, (gpp_checkpoint)mode);
        expect_life(train->flight[0].graph->step.plan, checkpointed[mode]);
        gpp_pipe_free(train);
        gpp_pipe *eval = run(remote, 3, three, (gpp_checkpoint)mode, EVALUATE);
        expect_life(eval->flight[0].graph->step.plan, 0);
        gpp_pipe_free(eval);
    }
}

/* Without partitions there is nothing to carry. */
Test(skip_leak, test_no_portal_without_gpipe)
{
    for (int how = TRAIN; how <= EVALUATE; how++) {
        gpp_pipe *pipe = run(remote, 1, NULL, GPP_CHECKPOINT_EXCEPT_LAST, (way)how);
        cr_expect_eq(skip_route(pipe->flight[0].graph->step.plan), -1);
        gpp_pipe_free(pipe);
    }
}

Test(skip_portal, test_tensor_life)
{
    gpp_pipe *never = step(remote, 3, three, GPP_CHECKPOINT_NEVER);
    gpp_pipe *always = step(remote, 3, three, GPP_CHECKPOINT_ALWAYS);
    cr_expect_leq(
        slots(never->flight[0].graph->step.plan), slots(always->flight[0].graph->step.plan),
        "what is not popped again is free earlier: %d, %d",
        slots(never->flight[0].graph->step.plan), slots(always->flight[0].graph->step.plan));
    gpp_pipe_free(never);
    gpp_pipe_free(always);
}

/* --- test_tracker.py -------------------------------------------------------------------------- */

/* A recomputation does not stash again: what was stashed is still where it was. */
Test(skip_tracker, test_reuse_portal)
{
    char kinds[8];
    gpp_pipe *pipe = step(remote, 3, three, GPP_CHECKPOINT_ALWAYS);
    cr_assert_eq(parity_tasks(pipe, GPP__RECOMPUTE), 3 * ROWS);
    for (int mode = GPP__WRITE; mode <= GPP__READWRITE; mode++) {
        users(pipe->flight[0].graph->step.plan, 0, 0, mode, kinds);
        cr_expect_str_eq(kinds, mode == GPP__WRITE ? "F" : "");
    }
    gpp_pipe_free(pipe);
}

Test(skip_tracker, test_no_copy_no_portal)
{
    gpp_pipe *pipe = step("chain { linear out=1; act; stash name=foo }; pop name=foo mode=add; act",
                          2, (int[]){2, 1}, GPP_CHECKPOINT_EXCEPT_LAST);
    cr_expect_eq(skip_route(pipe->flight[0].graph->step.plan), -1);
    gpp_pipe_free(pipe);
}

Test(skip_tracker, test_tensor_life_without_checkpointing)
{
    gpp_pipe *pipe = step(remote, 3, three, GPP_CHECKPOINT_NEVER);
    expect_life(pipe->flight[0].graph->step.plan, 0);
    gpp_pipe_free(pipe);
}

Test(skip_tracker, test_tensor_life_with_checkpointing)
{
    gpp_pipe *pipe = step(remote, 3, three, GPP_CHECKPOINT_ALWAYS);
    expect_life(pipe->flight[0].graph->step.plan, ROWS);
    gpp_pipe_free(pipe);
}
