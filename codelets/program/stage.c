/*
 * codelets/program/stage.c: a partition's operators with their stores, and its ports: what its
 * programs share (program.h).
 *
 * The parameter block has every operator's parameters and buffers, then every operator's packed
 * weights. Stages on one device whose operators share parameters have one block, each a part of it.
 */
#include <stdlib.h>
#include <string.h>

#include "codelets/move.h"
#include "codelets/program/program.h"

/* --- ports ------------------------------------------------------------------------------------ */

static bool inside(const gpp__stage *s, int node)
{
    return node >= s->first && node < s->first + s->count;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void find_ports(gpp__stage *s)
{
    const gpp__value *value = s->network->value;
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *l = &s->layer[k];
        for (int t = 0; t < l->in_count; t++)
            if (!inside(s, value[l->from[t]].producer))
                s->in[s->ins++] = l->from[t];
        for (int t = 0; t < l->out_count; t++)
            if (value[l->to[t]].consumer != GPP__NOBODY && !inside(s, value[l->to[t]].consumer))
                s->out[s->outs++] = l->to[t];
    }
    qsort(s->in, (size_t)s->ins, sizeof *s->in, by_number);
    qsort(s->out, (size_t)s->outs, sizeof *s->out, by_number);
}

static size_t count_tensors(const gpp__stage *s, int count)
{
    size_t tensors = 0;
    for (int k = 0; k < count; k++)
        tensors += (size_t)(s->layer[k].in_count + s->layer[k].out_count);
    return tensors;
}

/* --- stores and offsets ----------------------------------------------------------------------- */

static gpp_status init_store(gpp__stage *s, int k, int64_t rows, gpp_error *err)
{
    const gpp__layer *l = &s->layer[k];
    const gpp__kernels *kernels = gpp__stage_kernels(s, l);
    s->store[k] = (gpp__store){.layer = l, .grad_bytes = l->param_bytes, .cuda = s->cuda};
    return kernels->store_init && rows != GPP__NO_STORES
               ? kernels->store_init(&s->store[k], rows > 0 ? rows : 1, err)
               : GPP_OK;
}

/* Only programs on CPU cores can tell what is absent: elsewhere the host would read memory that
 * is still to be written. */
static gpp_status check_device(const gpp__stage *s, const gpp__layer *l, gpp_error *err)
{
    bool view = l->op->is_view && l->op->is_view(l), optional = l->op->may_stash_none;
    for (int t = 0; t < l->in_count; t++)
        optional |= s->network->value[l->from[t]].optional;
    if (!s->cuda || (!optional && (view || l->op->cuda)))
        return GPP_OK;
    return gpp__fail_layer(
        err, GPP_EUNSUPPORTED, l->index, "%s (layer %d, \"%s\") cannot be on a CUDA device: %s",
        l->op->name, l->index, l->label,
        optional ? "what it stashes or takes may be absent" : "it has no kernels for it");
}

/* The stage of this one's block that has the operator. */
static const gpp__stage *stage_of(const gpp__stage *s, int node)
{
    while (s && !inside(s, node))
        s = s->before;
    return s;
}

static void lay_out(gpp__stage *s)
{
    size_t params = s->params_at, grads = s->grads_at, state = s->state_at_end;
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *l = &s->layer[k];
        const gpp__stage *owner = l->shares < 0 ? NULL : stage_of(s, l->shares);
        if (owner)
            owner->shared[l->shares - owner->first] = true;
        s->grad_at[k] = grads;
        grads += gpp__align(s->store[k].grad_bytes);
        s->param_at[k] = owner ? owner->param_at[l->shares - owner->first] : params;
        s->state_at[k] = owner ? owner->state_at[l->shares - owner->first] : state;
        params += owner ? 0 : gpp__align(l->param_bytes);
        state += owner ? 0 : gpp__align(l->param_bytes);
        s->stats_at[k] = s->stats_bytes;
        s->stats_bytes += l->op->stats_bytes ? gpp__align(l->op->stats_bytes(l)) : 0;
        s->may_fail |= l->op->may_fail;
    }
    for (int k = 0; k < s->count; k++) {
        s->packed_at[k] = params;
        params += gpp__align(s->store[k].packed_bytes);
    }
    s->params_end = params;
    s->grads_end = grads;
    s->state_at_end = state;
}

static bool allocate(gpp__stage *s, int count)
{
    size_t n = (size_t)count, tensors = count_tensors(s, count) + 1;
    s->store = calloc(n, sizeof *s->store);
    s->param_at = calloc(n, sizeof *s->param_at);
    s->packed_at = calloc(n, sizeof *s->packed_at);
    s->grad_at = calloc(n, sizeof *s->grad_at);
    s->state_at = calloc(n, sizeof *s->state_at);
    s->stats_at = calloc(n, sizeof *s->stats_at);
    s->shared = calloc(n, sizeof *s->shared);
    s->in = calloc(tensors, sizeof *s->in);
    s->out = calloc(tensors, sizeof *s->out);
    return s->store && s->param_at && s->packed_at && s->grad_at && s->state_at && s->stats_at &&
           s->shared && s->in && s->out;
}

gpp_status gpp__stage_init(gpp__stage *s, const gpp__network *network, int first, int count,
                           gpp__stage *before, int64_t rows, struct gpp__cuda *cuda, gpp_error *err)
{
    *s = (gpp__stage){
        .network = network, .cuda = cuda, .first = first, .layer = network->node + first};
    gpp_status status = GPP_OK;
    if (!allocate(s, count))
        status = gpp__fail(err, GPP_ENOMEM, "a partition of %d layers", count);
    for (int k = 0; status == GPP_OK && k < count; k++)
        status = check_device(s, &s->layer[k], err);
    for (; status == GPP_OK && s->count < count; s->count++)
        if ((status = init_store(s, s->count, rows, err)) != GPP_OK)
            break;
    if (status != GPP_OK) {
        gpp__stage_release(s);
        return status;
    }
    if (before) {
        s->before = before;
        before->after = s;
        s->params_at = before->params_end;
        s->grads_at = before->grads_end;
        s->state_at_end = before->state_at_end;
    }
    lay_out(s);
    find_ports(s);
    return GPP_OK;
}

void gpp__stage_release(gpp__stage *s)
{
    for (int k = 0; k < s->count; k++)
        if (gpp__stage_kernels(s, &s->layer[k])->store_release)
            gpp__stage_kernels(s, &s->layer[k])->store_release(&s->store[k]);
    free(s->store);
    free(s->param_at);
    free(s->packed_at);
    free(s->grad_at);
    free(s->state_at);
    free(s->stats_at);
    free(s->shared);
    free(s->in);
    free(s->out);
    *s = (gpp__stage){0};
}

/* --- parameters and gradients ----------------------------------------------------------------- */

bool gpp__stage_trains(const gpp__stage *s)
{
    for (int k = 0; k < s->count; k++)
        if (gpp__layer_trains(&s->layer[k]))
            return true;
    return false;
}

gpp_status gpp__stage_pack(const gpp__stage *s, const gpp__run *run, char *params)
{
    for (int k = 0; k < s->count; k++) {
        if (!s->store[k].packed_bytes)
            continue;
        gpp_status status =
            gpp__stage_kernels(s, &s->layer[k])
                ->pack(&s->store[k], run, params + s->param_at[k], params + s->packed_at[k]);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

gpp_status gpp__stage_commit(const gpp__stage *s, const gpp__run *run, int count, const char *stats,
                             char *params)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < s->count && status == GPP_OK; k++) {
        const gpp__layer *l = &s->layer[k];
        if (l->op->stats_bytes && l->op->stats_bytes(l))
            status = gpp__stage_kernels(s, l)->commit(l, run, count, stats + s->stats_at[k],
                                                      s->stats_bytes, params + s->param_at[k]);
    }
    return status;
}

static gpp_status unpack(const gpp__stage *s, const gpp__run *run, int k, const char *grads,
                         char *room)
{
    const gpp__kernels *kernels = gpp__stage_kernels(s, &s->layer[k]);
    if (kernels->unpack_grads)
        return kernels->unpack_grads(&s->store[k], run, grads + s->grad_at[k], room);
    gpp__copy_bytes(run, room, grads + s->grad_at[k], s->layer[k].param_bytes);
    return GPP_OK;
}

static void add_grads(const gpp__layer *l, const gpp__run *run, const char *from, char *to)
{
    for (int p = 0; p < l->param_count; p++) {
        const float *x = gpp__param_at(l, from, p);
        float *sum = (float *)(to + l->param[p].offset);
        if (!l->param[p].buffer)
            gpp__add_floats(run, sum, x, l->param[p].count);
    }
}

size_t gpp__stage_room(const gpp__stage *s)
{
    size_t most = 0;
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *l = &s->layer[k];
        size_t bytes = gpp__align(l->param_bytes);
        if (l->shares < 0 && l->param_count && s->shared[k])
            bytes *= 2;
        else if (!gpp__stage_kernels(s, l)->unpack_grads)
            continue;
        most = bytes > most ? bytes : most;
    }
    return most;
}

gpp_status gpp__stage_grads(const gpp__stage *s, const gpp__run *run, int k, char *grads,
                            char *room, char **plain)
{
    const gpp__layer *l = &s->layer[k];
    int node = s->first + k;
    *plain = grads + s->grad_at[k];
    bool shared = s->shared[k];
    if (!gpp__stage_kernels(s, l)->unpack_grads && !shared)
        return GPP_OK;
    *plain = room;
    gpp_status status = unpack(s, run, k, grads, room);
    char *other = room + gpp__align(l->param_bytes);
    for (; shared && s; s = s->after)
        for (int q = 0; status == GPP_OK && q < s->count; q++)
            if (s->layer[q].shares == node) {
                status = unpack(s, run, q, grads, other);
                add_grads(l, run, other, room);
            }
    return status;
}
