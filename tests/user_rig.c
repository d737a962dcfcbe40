/* tests/user_rig.c: see user_rig.h. */
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
        status = op->prepare(&r->kernel, &r->err);
    r->params = test_room(r->layer.param_bytes);
    r->grads = test_room(r->layer.param_bytes);
    r->saved = test_room(r->kernel.saved_bytes);
    r->run = (gpp__run){.training = true, .micro_batch = 2, .row0 = {8, 16}, .err = &r->err};
    return status;
}

void user_rig_release(user_rig *r)
{
    gpp__user_op_op(r->user)->release(&r->kernel);
    gpp__user_op_drop(r->user);
    free(r->layer.attr);
    free(r->params);
    free(r->grads);
    free(r->saved);
}

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
    if (todo->look)
        todo->look(call, todo->arg);
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
