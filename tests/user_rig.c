/* tests/user_rig.c: see tests/user_rig.h. */
#include "tests/user_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "tests/support.h"

gpp__desc user_features(int batch)
{
    return (gpp__desc){.dtype = GPP_F32, .rank = 1, .dim = {F}, .batch = batch};
}

/* Does what the library does between adding a layer and its first call, and fills parameters and
 * gradients with NAN. */
gpp_status user_rig_init(user_rig *r, const gpp_operator *def, int ins, const gpp__desc in[])
{
    memset(r, 0, sizeof *r);
    r->err = (gpp_error)GPP_ERROR_INIT;
    cr_assert_eq(gpp__user_op_new(&r->user, def, &r->err), GPP_OK, "%s", r->err.msg);
    const gpp_op *op = gpp__user_op_op(r->user);
    r->layer = (gpp__layer){.op = op, .label = "mine", .index = 5, .id = 9};
    r->layer.attr = calloc(1, op->attr_size);
    if (op->keys)
        gpp__attr_defaults(op->keys, r->layer.attr);
    if (op->skips)
        op->skips(&r->layer);
    r->layer.in_count = ins;
    memcpy(r->layer.in, in, (size_t)ins * sizeof *in);
    gpp_status status = op->infer(&r->layer, &r->err);
    for (int p = 0; !status && p < r->layer.param_count; p++) {
        r->layer.param[p].offset = r->layer.param_bytes;
        r->layer.param_bytes += gpp__align((size_t)r->layer.param[p].count * sizeof(float));
    }
    r->kernel = (gpp__kernel){.layer = &r->layer, .rows = ROWS, .batch = {ROWS, 2 * ROWS}};
    if (!status)
        status = op->cpu.prepare(&r->kernel, &r->err);
    r->params = test_room(r->layer.param_bytes);
    r->grads = test_room(r->layer.param_bytes);
    r->saved = test_room(r->kernel.saved_bytes);
    r->run = (gpp__run){.training = true, .micro_batch = 2, .row0 = {8, 16}, .err = &r->err};
    return status;
}

void user_rig_release(user_rig *r)
{
    gpp__user_op_op(r->user)->cpu.release(&r->kernel);
    gpp__user_op_drop(r->user);
    free(r->layer.attr);
    free(r->params);
    free(r->grads);
    free(r->saved);
}

/* --- gate ------------------------------------------------------------------------------------- */

static gpp_status gate_infer(gpp_signature *s)
{
    s->outputs = 2;
    s->out[0] = s->out[1] = s->stash[0] = s->saving[0] = s->saving[1] = s->in[0];
    s->params = 1;
    s->param[0] = (gpp_param_shape){"weight", 1, {s->in[0].dim[0]}};
    s->saved = 2;
    return GPP_OK;
}

static gpp_status gate_forward(gpp_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data, *w = call->param[0].data;
    const float *p = gpp_call_pop(call, "p")->data;
    float *y0 = call->out[0].data, *y1 = call->out[1].data, *s = gpp_call_stash(call, "s")->data;
    int64_t features = call->in[0].dim[1], count = call->in[0].dim[0] * features;
    for (int64_t k = 0; k < count; k++) {
        y0[k] = (float)call->attr[0][0] * w[k % features] * a[k] + b[k];
        y1[k] = a[k] * b[k] + (p ? p[k] : 0);
        s[k] = 2 * a[k];
    }
    for (int t = 0; t < 2; t++)
        if (call->saving[t].data)
            memcpy(call->saving[t].data, call->in[t].data, (size_t)count * sizeof(float));
    return GPP_OK;
}

static float at(const gpp_tensor *t, int64_t k)
{
    return t->data ? ((const float *)t->data)[k] : 0;
}

static void add(const gpp_tensor *t, int64_t k, float v)
{
    if (t->data)
        ((float *)t->data)[k] += v;
}

static gpp_status gate_backward(gpp_call *call)
{
    const float *a = call->saving[0].data, *b = call->saving[1].data, *w = call->param[0].data;
    const gpp_tensor *gs = gpp_call_grad_stash(call, "s"), *gp = gpp_call_grad_pop(call, "p");
    int64_t features = call->grad_out[0].dim[1], count = call->grad_out[0].dim[0] * features;
    float scale = (float)call->attr[0][0];
    for (int64_t k = 0; k < count; k++) {
        float g0 = at(&call->grad_out[0], k), g1 = at(&call->grad_out[1], k);
        add(&call->grad_in[0], k, scale * w[k % features] * g0 + b[k] * g1 + 2 * at(gs, k));
        add(&call->grad_in[1], k, g0 + a[k] * g1);
        add(gp, k, g1);
        add(&call->grad_param[0], k % features, scale * a[k] * g0);
    }
    return GPP_OK;
}

static const char *const name_p[] = {"p", NULL}, *const name_s[] = {"s", NULL};
static const gpp_operator_key gate_keys[] = {{"scale", 1, false, 1.5, 0, 10}, {0}};
const gpp_operator user_gate = {
    .name = "gate",
    .keys = gate_keys,
    .stash = name_s,
    .pop = name_p,
    .infer = gate_infer,
    .forward = gate_forward,
    .backward = gate_backward,
};

/* --- probe ------------------------------------------------------------------------------------ */

static gpp_status probe_infer(gpp_signature *s)
{
    const user_script *todo = s->user;
    s->outputs = 1;
    s->out[0] = s->in[0];
    s->stash[0] = s->stash[1] = s->in[0];
    if (todo->declare)
        todo->declare(s);
    return todo->declare ? todo->status : GPP_OK;
}

/* Follows the script: stashes and pops, then what the test has in mind. */
static gpp_status probe_call(gpp_call *call)
{
    const user_script *todo = call->user;
    for (const char *act = todo->acts; act && *act; act += act[2] ? 3 : 2) {
        char name[] = {act[1], '\0'};
        if (act[0] == 's')
            gpp_call_stash(call, name);
        else if (act[0] == 'n')
            gpp_call_stash_none(call, name);
        else
            gpp_call_pop(call, name);
    }
    if (todo->result)
        todo->result(call, todo->arg);
    if (todo->says)
        gpp_call_fail(call, todo->status, "%s", todo->says);
    return todo->status;
}

static const char *const names_ab[] = {"a", "b", NULL}, *const names_cd[] = {"c", "d", NULL};

gpp_operator user_probe(user_script *todo, bool skips)
{
    gpp_operator def = GPP_OPERATOR_INIT;
    def.name = "probe";
    def.user = todo;
    def.infer = probe_infer;
    def.forward = def.backward = probe_call;
    if (skips) {
        def.stash = names_ab;
        def.pop = names_cd;
    }
    return def;
}
