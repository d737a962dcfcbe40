/*
 * tests/test_skip_pipes.c: skips in whole pipes: tensors that are stashed or not, the partitions
 * they go from and to, and which tasks read and write them.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "graph/run/pipe.h"
#include "tests/parity.h"
#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(skip_pipes, .init = test_keep_runtime, .fini = test_release_runtime);

/* --- values and gradients --------------------------------------------------------------------- */

/* "keep" stashes its last input, or nothing if `absent` is set and the first number of the
 * micro-batch is negative. "take" adds what it pops. Both pass their first input on. */
static gpp_status pass_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    s->stash[0] = s->in[s->inputs - 1];
    return GPP_OK;
}

static size_t bytes_of(const gpp_tensor *t)
{
    return (size_t)(t->dim[0] * t->dim[1]) * sizeof(float);
}

static gpp_status keep_forward(gpp_call *call)
{
    const gpp_tensor *last = &call->in[call->inputs - 1], *to = gpp_call_stash(call, "foo");
    memcpy(call->out[0].data, call->in[0].data, bytes_of(&call->in[0]));
    if (to)
        memcpy(to->data, last->data, bytes_of(last));
    if (call->user && *(const float *)last->data < 0)
        gpp_call_stash_none(call, "foo");
    return GPP_OK;
}

static gpp_status take_forward(gpp_call *call)
{
    const gpp_tensor *from = gpp_call_pop(call, "foo");
    const float *x = call->in[0].data, *p = from ? from->data : NULL;
    for (int64_t k = 0; k < call->in[0].dim[0]; k++)
        ((float *)call->out[0].data)[k] = x[k] + (p ? p[k] : 0);
    return GPP_OK;
}

static void add_gradient(const gpp_tensor *from, const gpp_tensor *to)
{
    if (!from || !to || !from->data || !to->data)
        return;
    for (int64_t k = 0; k < from->dim[0]; k++)
        ((float *)to->data)[k] += ((const float *)from->data)[k];
}

static gpp_status keep_backward(gpp_call *call)
{
    add_gradient(&call->grad_out[0], &call->grad_in[0]);
    add_gradient(gpp_call_grad_stash(call, "foo"), &call->grad_in[call->inputs - 1]);
    return GPP_OK;
}

static gpp_status take_backward(gpp_call *call)
{
    add_gradient(&call->grad_out[0], &call->grad_in[0]);
    add_gradient(&call->grad_out[0], gpp_call_grad_pop(call, "foo"));
    return GPP_OK;
}

static gpp_model *kept_and_taken(const char *text, bool absent)
{
    static const char *const foo[] = {"foo", NULL};
    static int yes;
    const gpp_operator keep = {.name = "keep",
                               .stash = foo,
                               .infer = pass_infer,
                               .forward = keep_forward,
                               .backward = keep_backward,
                               .user = absent ? &yes : NULL};
    const gpp_operator take = {.name = "take",
                               .pop = foo,
                               .infer = pass_infer,
                               .forward = take_forward,
                               .backward = take_backward};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    parity_register(model, &keep);
    parity_register(model, &take);
    gpp_model_add_text(model, text, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    return model;
}

Test(skip_pipes, a_skip_may_be_absent_in_all_or_some_micro_batches)
{
    static const float want[2][2] = {{1, 1}, {2, 1}}; /* gradients */
    gpp_model *model = kept_and_taken("keep; take", true);
    parity_input(model, 1, (int64_t[]){1});
    for (int mode = 0; mode < 3; mode++)
        for (int partitions = 1; partitions <= 2; partitions++)
            for (int some = 0; some < 2; some++) {
                gpp_pipe *pipe = parity_pipe(model, partitions, NULL, 2, (gpp_checkpoint)mode);
                float v[] = {some ? 1 : -1, -1}, w[2], one[] = {1, 1}, g[2];
                gpp_tensor x = {v, GPP_F32, 2, {2, 1}}, y = {w, GPP_F32, 2, {2, 1}};
                gpp_tensor gy = {one, GPP_F32, 2, {2, 1}}, gx = {g, GPP_F32, 2, {2, 1}};
                parity_pass(pipe, &x, &y, &gy, &gx);
                for (int k = 0; k < 2; k++)
                    cr_expect(g[k] == want[some][k] && w[k] == want[some][k] * v[k],
                              "%s, %d partitions: %g %g", parity_modes[mode], partitions, g[k],
                              w[k]);
                gpp_pipe_free(pipe);
            }
    gpp_model_free(model);
}

/* The second of two inputs is stashed: the output is twice the first, and the second. */
Test(skip_pipes, an_input_that_is_stashed_has_its_gradient_if_that_is_wanted)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {1}}};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = kept_and_taken("keep; stash name=x; pop name=x mode=add; take", false);
    cr_assert_eq(gpp_model_set_inputs(model, in, 2, &err), GPP_OK, "%s", err.msg);
    for (int mode = 0; mode < 3; mode++)
        for (int partitions = 1; partitions <= 4; partitions++)
            for (int wanted = 0; wanted < 2; wanted++) {
                gpp_pipe *pipe = parity_pipe(model, partitions, NULL, 1, (gpp_checkpoint)mode);
                float t1[] = {3}, t2[] = {5}, w[1], one[] = {1}, g1[] = {9}, g2[] = {9};
                gpp_tensor x[] = {{t1, GPP_F32, 2, {1, 1}}, {t2, GPP_F32, 2, {1, 1}}};
                gpp_tensor gx[] = {{g1, GPP_F32, 2, {1, 1}},
                                   {wanted ? g2 : NULL, GPP_F32, 2, {1, 1}}};
                gpp_tensor y = {w, GPP_F32, 2, {1, 1}}, gy = {one, GPP_F32, 2, {1, 1}};
                parity_pass(pipe, x, &y, &gy, gx);
                cr_expect_eq(w[0], 11);
                cr_expect(g1[0] == 2 && g2[0] == (wanted ? 1 : 9), "%s: %g, %g", parity_modes[mode],
                          g1[0], g2[0]);
                gpp_pipe_free(pipe);
            }
    gpp_model_free(model);
}

/* What was stashed is not what an operator in place makes of it afterwards. */
Test(skip_pipes, what_was_stashed_is_not_changed_by_operators_in_place)
{
    for (int mode = 0; mode < 3; mode++)
        for (int partitions = 1; partitions <= 4; partitions++) {
            gpp_pipe *pipe = parity_linear("act; stash name=bar; relu; pop mode=add name=bar", 2,
                                           partitions, NULL, 2, (gpp_checkpoint)mode);
            float v[] = {1, -2, 3, -4}, w[4], one[] = {1, 1, 1, 1}, g[4];
            gpp_tensor x = {v, GPP_F32, 2, {2, 2}}, y = {w, GPP_F32, 2, {2, 2}};
            gpp_tensor gy = {one, GPP_F32, 2, {2, 2}}, gx = {g, GPP_F32, 2, {2, 2}};
            parity_pass(pipe, &x, &y, &gy, &gx);
            cr_expect(test_same(w, (float[]){2, -2, 6, -4}, 4));
            cr_expect(test_same(g, (float[]){2, 1, 2, 1}, 4), "%g %g %g %g", g[0], g[1], g[2],
                      g[3]);
            cr_expect(test_same(v, (float[]){1, -2, 3, -4}, 4), "the caller's tensor is read only");
            gpp_pipe_free(pipe);
        }
}

/* --- the partitions that skips go from and to ------------------------------------------------- */

enum { ROWS = 4 };

/* A pipe that has run once: an evaluation, or a forward and backward in one plan. */
static gpp_pipe *ran(const char *text, int partitions, const int balance[], gpp_checkpoint mode,
                     bool training)
{
    gpp_model *model = parity_model(text);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    float v[ROWS] = {1, 2, 3, 4}, w[ROWS];
    gpp_tensor x = {v, GPP_F32, 2, {ROWS, 1}}, y = {w, GPP_F32, 2, {ROWS, 1}};
    parity_input(model, 1, (int64_t[]){1});
    o.partitions = partitions;
    o.balance = balance;
    o.chunks = ROWS;
    o.checkpoint = mode;
    o.loss = "mse";
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_status status = training ? gpp_pipe_gradients(pipe, &x, &x, NULL, NULL, NULL, &err)
                                 : gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, &err);
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

static const gpp__plan *plan_of(const gpp_pipe *pipe)
{
    return pipe->flight[0].graph->step.plan;
}

/* "0->2 foo, 1->2 ns.bar": edges of skips, by destination, then source. */
static void write_edges(const gpp_pipe *pipe, char *text, size_t size)
{
    const gpp__plan *plan = plan_of(pipe);
    size_t used = 0;
    text[0] = '\0';
    cr_assert_eq(plan->edges, pipe->recipe->edges);
    for (int to = 1; to < plan->shape.partitions; to++)
        for (int from = 0; from < to; from++)
            for (int r = 0; r < plan->edges; r++) {
                const gpp__value *v = &pipe->recipe->network->value[pipe->recipe->edge[r].value];
                const gpp__edge *edge = &plan->edge[r];
                if (edge->name && edge->to == to && edge->from == from)
                    used += (size_t)snprintf(text + used, size - used, "%s%d->%d %s%s%s",
                                             used ? ", " : "", from, to, v->name.ns,
                                             v->name.ns[0] ? "." : "", v->name.name);
            }
}

Test(skip_pipes, a_skip_goes_from_where_it_is_stashed_to_where_it_is_popped)
{
    static const struct {
        const char *why, *text;
        int partitions, balance[3];
        const char *edges;
    } cases[] = {
        {"no skips", "act; act", 2, {1, 1}, ""},
        {"one partition",
         "chain { linear out=1; act; stash name=foo }; act; pop name=foo mode=add",
         1,
         {3},
         ""},
        {"inside a partition", "stash name=foo; pop name=foo mode=add; act", 2, {2, 1}, ""},
        {"to the next one", "stash name=foo; pop name=foo mode=add", 2, {1, 1}, "0->1 foo"},
        {"over one", "stash name=foo; act; pop name=foo mode=add", 3, {1, 1, 1}, "0->2 foo"},
        {"two to one partition",
         "stash name=foo; stash name=bar; pop name=bar mode=add; pop name=foo mode=add",
         3,
         {1, 1, 2},
         "0->2 foo, 1->2 bar"},
        {"one name in two namespaces",
         "stash name=foo ns=1; stash name=foo ns=2; pop name=foo ns=2 mode=add; "
         "pop name=foo ns=1 mode=add",
         3,
         {1, 1, 2},
         "0->2 1.foo, 1->2 2.foo"},
        {"one way, one of two in the default namespace",
         "stash name=foo; stash name=foo ns=1; act; pop name=foo ns=1 mode=add; "
         "pop name=foo mode=add",
         3,
         {2, 1, 2},
         "0->2 foo, 0->2 1.foo"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int training = 0; training < 2; training++) {
            char edges[256];
            gpp_pipe *pipe = ran(cases[k].text, cases[k].partitions, cases[k].balance,
                                 GPP_CHECKPOINT_EXCEPT_LAST, training);
            write_edges(pipe, edges, sizeof edges);
            cr_expect_str_eq(edges, cases[k].edges, "%s: %s", cases[k].why, edges);
            gpp_pipe_free(pipe);
        }
}

/* --- lives ------------------------------------------------------------------------------------ */

static int skip_edge(const gpp__plan *plan)
{
    for (int r = 0; r < plan->edges; r++)
        if (plan->edge[r].name)
            return r;
    return -1;
}

/* Kinds of tasks of micro-batch i in partition j that access the skip itself: "F", "FR". */
static void users(const gpp__plan *plan, int i, int j, int mode, char out[8])
{
    int r = skip_edge(plan), count = 0;
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
    int r = skip_edge(plan), count = 0;
    for (size_t k = 0; k < plan->buffers; k++)
        count += plan->buffer[k].cls == GPP__EDGE && plan->buffer[k].j == r;
    return count;
}

/* @param recomputed  how many micro-batches are */
static void expect_life(const gpp__plan *plan, int recomputed)
{
    char kinds[8];
    for (int i = 0; i < ROWS; i++) {
        users(plan, i, 0, GPP__WRITE, kinds);
        cr_expect_str_eq(kinds, "F", "stash, micro-batch %d: by \"%s\"", i, kinds);
        users(plan, i, 0, GPP__READWRITE, kinds);
        cr_expect_str_eq(kinds, "", "a recomputation does not stash again");
        users(plan, i, 2, GPP__READ, kinds);
        cr_expect_str_eq(kinds, i < recomputed ? "FR" : "F", "pop, micro-batch %d: by \"%s\"", i,
                         kinds);
        for (int mode = GPP__READ; mode <= GPP__READWRITE; mode++) {
            users(plan, i, 1, mode, kinds);
            cr_expect_str_eq(kinds, "", "the partition between never sees it");
        }
    }
    cr_expect_leq(slots(plan), 2 * ROWS, "a value and a gradient for each micro-batch at most");
}

/* There is a gradient, and `act` makes recomputations necessary for it. */
Test(skip_pipes, a_skip_is_written_by_its_forward_and_read_by_forwards_and_recomputations)
{
    static const char text[] =
        "chain { linear out=1; act; stash name=foo }; act; chain { pop name=foo mode=add; act }";
    static const int balance[] = {1, 1, 1}, recomputed[] = {ROWS - 1, ROWS, 0};
    int buffers[3];
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *train = ran(text, 3, balance, (gpp_checkpoint)mode, true);
        expect_life(plan_of(train), recomputed[mode]);
        cr_expect_eq(parity_tasks(train, GPP__RECOMPUTE), 3 * recomputed[mode]);
        buffers[mode] = slots(plan_of(train));
        gpp_pipe_free(train);
        gpp_pipe *eval = ran(text, 3, balance, (gpp_checkpoint)mode, false);
        expect_life(plan_of(eval), 0);
        gpp_pipe_free(eval);
    }
    cr_expect_leq(buffers[GPP_CHECKPOINT_NEVER], buffers[GPP_CHECKPOINT_ALWAYS],
                  "what is not popped again is free earlier");
}
