/* tests/parity.c: see tests/parity.h. */
#include "tests/parity.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/run/pipe.h"
#include "tests/support.h"

parity_diary parity_diary_now;
const char *const parity_modes[3] = {"except_last", "always", "never"};
static pthread_mutex_t diary_lock = PTHREAD_MUTEX_INITIALIZER;

int parity_count(char kind, int id)
{
    int count = 0;
    for (int k = 0; k < parity_diary_now.events; k++) {
        const parity_event *e = &parity_diary_now.event[k];
        count += (!kind || e->kind == kind) && (id < 0 || e->id == id);
    }
    return count;
}

int parity_find(char kind, int id, int i)
{
    for (int k = 0; k < parity_diary_now.events; k++) {
        const parity_event *e = &parity_diary_now.event[k];
        if (e->kind == kind && e->id == id && e->i == i)
            return k;
    }
    return -1;
}

static int64_t elements(const gpp_tensor *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++)
        count *= t->dim[d];
    return count;
}

/* --- act -------------------------------------------------------------------------------------- */

/* It saves a number only so that its cells have something to recompute. */
static gpp_status act_infer(gpp_signature *s)
{
    s->outputs = s->inputs;
    memcpy(s->out, s->in, (size_t)s->inputs * sizeof *s->in);
    s->saved = 1;
    s->saving[0] = (gpp_shape){.dtype = GPP_F32, .batch = GPP_ROWS_FIXED, .rows = 1};
    return GPP_OK;
}

static void note(const gpp_call *call, char kind)
{
    parity_diary *d = &parity_diary_now;
    pthread_mutex_lock(&diary_lock);
    if (d->events < (int)(sizeof d->event / sizeof *d->event))
        d->event[d->events++] = (parity_event){
            .kind = kind,
            .id = (int)call->attr[0][0],
            .i = call->micro_batch,
            .checkpointing = gpp_is_checkpointing(call),
            .recomputing = gpp_is_recomputing(call),
            .training = call->training,
            .rows = call->in[0].dim[0],
            .thread = (unsigned long)pthread_self(),
        };
    pthread_mutex_unlock(&diary_lock);
}

/* Ends a call: waits, counts it, and fails if the test has asked for that. */
static gpp_status finish(gpp_call *call, char kind)
{
    parity_diary *d = &parity_diary_now;
    double ms = call->attr[1][kind == 'B'];
    struct timespec t = {(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000};
    if (ms > 0)
        nanosleep(&t, NULL);
    pthread_mutex_lock(&diary_lock);
    d->ended++;
    pthread_mutex_unlock(&diary_lock);
    if (d->fail.kind != kind || d->fail.id != (int)call->attr[0][0] ||
        (d->fail.i >= 0 && d->fail.i != call->micro_batch))
        return GPP_OK;
    return d->fail.says ? gpp_call_fail(call, d->fail.status, "%s", d->fail.says) : d->fail.status;
}

static size_t bytes_of(const gpp_tensor *t)
{
    return (size_t)elements(t) * gpp_dtype_size(t->dtype);
}

static gpp_status act_forward(gpp_call *call)
{
    char kind = gpp_is_recomputing(call) ? 'R' : 'F';
    note(call, kind);
    for (int t = 0; t < call->inputs; t++)
        if (bytes_of(&call->in[t]))
            memcpy(call->out[t].data, call->in[t].data, bytes_of(&call->in[t]));
    if (call->saving[0].data)
        *(float *)call->saving[0].data = 1;
    return finish(call, kind);
}

static gpp_status act_backward(gpp_call *call)
{
    note(call, 'B');
    for (int t = 0; t < call->inputs; t++)
        if (call->grad_in[t].data && call->grad_out[t].data && bytes_of(&call->in[t]))
            memcpy(call->grad_in[t].data, call->grad_out[t].data, bytes_of(&call->in[t]));
    return finish(call, 'B');
}

static const gpp_operator_key act_keys[] = {
    {"id", 1, false, 0, 0, 100}, {"ms", 2, false, 0, 0, 1000}, {0}};
static const gpp_operator act = {
    .name = "act",
    .keys = act_keys,
    .infer = act_infer,
    .forward = act_forward,
    .backward = act_backward,
};

/* --- muladd, rowsum --------------------------------------------------------------------------- */

static gpp_status muladd_infer(gpp_signature *s)
{
    if (s->inputs != 2)
        return GPP_ESHAPE;
    s->outputs = 2;
    s->out[0] = s->out[1] = s->in[0];
    return GPP_OK;
}

static gpp_status muladd_forward(gpp_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data;
    float *product = call->out[0].data, *sum = call->out[1].data;
    for (int64_t k = 0; k < elements(&call->in[0]); k++) {
        product[k] = a[k] * b[k];
        sum[k] = a[k] + b[k];
    }
    return GPP_OK;
}

static gpp_status muladd_backward(gpp_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data;
    const float *gp = call->grad_out[0].data, *gs = call->grad_out[1].data;
    float *ga = call->grad_in[0].data, *gb = call->grad_in[1].data;
    for (int64_t k = 0; k < elements(&call->in[0]); k++) {
        if (ga)
            ga[k] = (gp ? gp[k] * b[k] : 0) + (gs ? gs[k] : 0);
        if (gb)
            gb[k] = (gp ? gp[k] * a[k] : 0) + (gs ? gs[k] : 0);
    }
    return GPP_OK;
}

static const gpp_operator muladd = {
    .name = "muladd",
    .flags = GPP_OP_NEEDS_INPUT,
    .infer = muladd_infer,
    .forward = muladd_forward,
    .backward = muladd_backward,
};

static gpp_status rowsum_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    s->out[0].batch = GPP_ROWS_FIXED;
    s->out[0].rows = 1;
    return GPP_OK;
}

static gpp_status rowsum_forward(gpp_call *call)
{
    const float *x = call->in[0].data;
    float *y = call->out[0].data;
    int64_t row = elements(&call->out[0]);
    for (int64_t k = 0; k < row; k++)
        y[k] = 0;
    for (int64_t k = 0; k < call->in[0].dim[0] * row; k++)
        y[k % row] += x[k];
    return GPP_OK;
}

static gpp_status rowsum_backward(gpp_call *call)
{
    const float *g = call->grad_out[0].data;
    float *to = call->grad_in[0].data;
    int64_t row = elements(&call->out[0]);
    for (int64_t k = 0; g && to && k < call->in[0].dim[0] * row; k++)
        to[k] = g[k % row];
    return GPP_OK;
}

static const gpp_operator rowsum = {
    .name = "rowsum",
    .infer = rowsum_infer,
    .forward = rowsum_forward,
    .backward = rowsum_backward,
};

/* --- models and pipes ------------------------------------------------------------------------- */

void parity_register(gpp_model *model, const gpp_operator *op)
{
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_register(model, op, &err), GPP_OK, "%s", err.msg);
}

gpp_model *parity_model(const char *text)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    memset(&parity_diary_now, 0, sizeof parity_diary_now);
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK, "%s", err.msg);
    parity_register(model, &act);
    parity_register(model, &muladd);
    parity_register(model, &rowsum);
    if (text)
        cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    return model;
}

void parity_input(gpp_model *model, int rank, const int64_t dim[])
{
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, rank, dim, &err), GPP_OK, "%s", err.msg);
}

gpp_model *parity_with(const char *text, const gpp_shape in[], int count)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = parity_model(text);
    cr_assert_eq(gpp_model_set_inputs(model, in, count, &err), GPP_OK, "%s", err.msg);
    return model;
}

gpp_pipe *parity_pipe(const gpp_model *model, int partitions, const int balance[], int chunks,
                      gpp_checkpoint mode)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    o.partitions = partitions;
    o.balance = balance;
    o.chunks = chunks;
    o.checkpoint = mode;
    o.seed = 3;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    return pipe;
}

/* A model without layers has no partition either. */
gpp_pipe *parity_plain(const gpp_model *model)
{
    return parity_pipe(model, gpp_model_layers(model) ? 1 : 0, NULL, 1, GPP_CHECKPOINT_NEVER);
}

gpp_pipe *parity_linear(const char *text, int64_t in, int partitions, const int balance[],
                        int chunks, gpp_checkpoint mode)
{
    gpp_model *model = parity_model(text);
    parity_input(model, 1, &in);
    gpp_pipe *pipe = parity_pipe(model, partitions, balance, chunks, mode);
    gpp_model_free(model);
    return pipe;
}

void parity_pass(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *y, const gpp_tensor *grad_y,
                 const gpp_tensor *grad_x)
{
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_forward(pipe, x, y, NULL, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_backward(pipe, -1, x, grad_y, grad_x, &err), GPP_OK, "%s", err.msg);
}

void parity_same_gradients(gpp_pipe *a, gpp_pipe *b, double tolerance, const char *why)
{
    cr_assert_eq(gpp_pipe_parameters(a), gpp_pipe_parameters(b));
    for (int k = 0; k < gpp_pipe_parameters(a); k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_parameter_info info;
        cr_assert_eq(gpp_pipe_parameter(a, k, &info, &err), GPP_OK);
        float *ga = malloc((size_t)info.count * sizeof *ga);
        float *gb = malloc((size_t)info.count * sizeof *gb);
        cr_assert_eq(gpp_pipe_gradient(a, info.name, ga, info.count, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_pipe_gradient(b, info.name, gb, info.count, &err), GPP_OK, "%s", err.msg);
        double d = test_distance(ga, gb, info.count);
        cr_expect(d <= tolerance, "%s: gradients of %s differ by %g", why, info.name, d);
        free(ga);
        free(gb);
    }
}

int parity_tasks(const gpp_pipe *pipe, int kind)
{
    int count = 0;
    for (size_t k = 0; k < pipe->flight[0].graph->step.plan->tasks; k++)
        count += pipe->flight[0].graph->step.plan->task[k].kind == kind;
    return count;
}
