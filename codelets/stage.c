/* codelets/stage.c: a partition's layers with their stores: what its programs share (program.h). */
#include <stdlib.h>

#include "codelets/program.h"

static gpp_status init_store(gpp__stage *s, int k, int64_t rows, gpp_error *err)
{
    const gpp__layer *l = &s->layer[k];
    s->store[k] = (gpp__store){.layer = l, .grad_bytes = l->param_bytes};
    return l->op->store_init ? l->op->store_init(&s->store[k], rows > 0 ? rows : 1, err) : GPP_OK;
}

static void lay_out(gpp__stage *s)
{
    for (int k = 0; k < s->count; k++) {
        s->param_at[k] = s->plain_bytes;
        s->grad_at[k] = s->grads_bytes;
        s->plain_bytes += gpp__align(s->layer[k].param_bytes);
        s->grads_bytes += gpp__align(s->store[k].grad_bytes);
        s->trains |= s->layer[k].param_count > 0;
        s->may_fail |= s->layer[k].op->may_fail;
    }
    s->params_bytes = s->plain_bytes;
    for (int k = 0; k < s->count; k++) {
        s->packed_at[k] = s->params_bytes;
        s->params_bytes += gpp__align(s->store[k].packed_bytes);
    }
}

gpp_status gpp__stage_init(gpp__stage *s, const gpp__layer *layers, int count, int64_t rows,
                           gpp_error *err)
{
    size_t n = (size_t)count;
    *s = (gpp__stage){.layer = layers};
    s->store = calloc(n, sizeof *s->store);
    s->param_at = calloc(n, sizeof *s->param_at);
    s->packed_at = calloc(n, sizeof *s->packed_at);
    s->grad_at = calloc(n, sizeof *s->grad_at);
    gpp_status status = GPP_OK;
    if (!s->store || !s->param_at || !s->packed_at || !s->grad_at)
        status = gpp__fail(err, GPP_ENOMEM, "a partition of %d layers", count);
    for (; status == GPP_OK && s->count < count; s->count++)
        if ((status = init_store(s, s->count, rows, err)) != GPP_OK)
            break;
    if (status != GPP_OK) {
        gpp__stage_release(s);
        return status;
    }
    lay_out(s);
    return GPP_OK;
}

void gpp__stage_release(gpp__stage *s)
{
    for (int k = 0; k < s->count; k++)
        if (s->layer[k].op->store_release)
            s->layer[k].op->store_release(&s->store[k]);
    free(s->store);
    free(s->param_at);
    free(s->packed_at);
    free(s->grad_at);
    *s = (gpp__stage){0};
}

gpp_status gpp__stage_pack(const gpp__stage *s, const gpp__run *run, char *params)
{
    for (int k = 0; k < s->count; k++) {
        if (!s->store[k].packed_bytes)
            continue;
        gpp_status status = s->layer[k].op->pack(&s->store[k], run, params + s->param_at[k],
                                                 params + s->packed_at[k]);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

gpp_status gpp__stage_grads(const gpp__stage *s, const gpp__run *run, int k, char *grads,
                            char *room, char **plain)
{
    *plain = grads + s->grad_at[k];
    if (!s->layer[k].op->unpack_grads)
        return GPP_OK;
    gpp_status status = s->layer[k].op->unpack_grads(&s->store[k], run, *plain, room);
    *plain = room;
    return status;
}
