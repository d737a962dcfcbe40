/*
 * balance/sizes.c: a model's layers, each compiled as a partition of its own, and their bytes.
 *
 * Bytes come from the programs' own accounting. Inside one partition, a value between two layers is
 * on the tape if a backward reads it, and values that are the same bytes are there once (a view
 * copies nothing). The value belongs to the layer that makes it. So for layers a ... b-1
 *
 *     tape(a ... b-1) = sum of activation_bytes - what stays in the boundary behind b-1
 *
 * Every value made at or before layer u and read later goes through a cut behind u. The model's
 * inputs are the caller's memory and belong to no layer.
 */
#include <stdlib.h>
#include <string.h>

#include "balance/internal.h"

/* --- compiling -------------------------------------------------------------------------------- */

/* 64 TiB: a larger tensor is a mistake, and with smaller ones no size overflows. */
#define MOST_BYTES 0x1p46

gpp_status gpp__rows_check(const gpp__network *n, const int64_t rows[GPP__BATCHES], gpp_error *err)
{
    double bytes = 0;
    for (int v = 0; v < n->values; v++) {
        const gpp__desc *d = &n->value[v].desc;
        bytes += (double)gpp__desc_bytes(d) * (double)gpp__desc_rows(d, rows);
    }
    return bytes <= MOST_BYTES ? GPP_OK
                               : gpp__fail(err, GPP_ENOMEM,
                                           "a micro-batch of %lld rows has %.3g bytes of "
                                           "activations",
                                           (long long)rows[0], bytes);
}

static gpp_status compile(gpp__layers *l, const gpp__bench *bench, gpp_error *err)
{
    const gpp__network *n = l->network;
    int threads = gpp__pool_threads(bench->pool);
    gpp_status status = GPP_OK;
    gpp__network_flow(n, false, l->flow);
    for (; status == GPP_OK && l->count < n->units; l->count += status == GPP_OK) {
        int u = l->count, first = n->first[u];
        gpp__stage *before = u ? &l->stage[u - 1] : NULL;
        status = gpp__stage_init(&l->stage[u], n, first, n->first[u + 1] - first, before,
                                 l->rows[0], bench->cuda, err);
        if (status != GPP_OK)
            break;
        status = gpp__program_new(&l->program[u], &l->stage[u], l->rows, threads, l->flow, err);
        if (status != GPP_OK)
            gpp__stage_release(&l->stage[u]);
    }
    return status;
}

gpp_status gpp__layers_init(gpp__layers *l, const gpp__network *network,
                            const int64_t rows[GPP__BATCHES], const gpp__bench *bench,
                            gpp_error *err)
{
    size_t units = (size_t)network->units + 1;
    *l = (gpp__layers){.network = network,
                       .stage = calloc(units, sizeof *l->stage),
                       .program = calloc(units, sizeof *l->program),
                       .flow = calloc((size_t)network->values + 1, sizeof *l->flow)};
    memcpy(l->rows, rows, sizeof l->rows);
    gpp_status status = gpp__rows_check(network, rows, err);
    if (status == GPP_OK && (!l->stage || !l->program || !l->flow))
        status = gpp__fail(err, GPP_ENOMEM, "programs of %d layers", network->units);
    if (status == GPP_OK)
        status = compile(l, bench, err);
    if (status != GPP_OK)
        gpp__layers_release(l);
    return status;
}

void gpp__layers_release(gpp__layers *l)
{
    for (int u = 0; u < l->count; u++) {
        gpp__program_free(l->program[u]);
        gpp__stage_release(&l->stage[u]);
    }
    free(l->stage);
    free(l->program);
    free(l->flow);
    *l = (gpp__layers){0};
}

/* --- bytes ------------------------------------------------------------------------------------ */

static size_t parameter_bytes(const gpp__stage *s)
{
    size_t bytes = 0;
    for (int k = 0; k < s->count; k++) {
        const gpp__layer *node = &s->layer[k];
        for (int p = 0; node->shares < 0 && p < node->param_count; p++)
            if (!node->param[p].buffer)
                bytes += (size_t)node->param[p].count * gpp_dtype_size(node->param[p].dtype);
    }
    return bytes;
}

/* For each value, the first of the values that are the same bytes. Views make no new bytes. */
static void find_roots(const gpp__network *n, int root[])
{
    for (int v = 0; v < n->values; v++)
        root[v] = v;
    for (int k = 0; k < n->nodes; k++) {
        const gpp__layer *node = &n->node[k];
        bool view = node->op->is_view && node->op->is_view(node);
        for (int t = 0; view && t < node->out_count; t++)
            root[node->to[t]] = root[node->from[t < node->in_count ? t : node->in_count - 1]];
    }
}

static void mark_kept(const gpp__layers *l, const int root[], bool kept[])
{
    for (int u = 0; u < l->count; u++) {
        const gpp__stage *s = &l->stage[u];
        const gpp__program_info *info = gpp__program_get_info(l->program[u]);
        for (int port = 0; port < s->ins; port++)
            kept[root[s->in[port]]] |= info->in[port].backward_reads;
        for (int port = 0; port < s->outs; port++)
            kept[root[s->out[port]]] |= info->out[port].backward_reads;
    }
}

/* Add a value to the layers between which it is alive, as differences that are summed up later. */
static void add_crossing(const gpp__network *n, const gpp__value *v, size_t bytes,
                         gpp_layer_profile layer[])
{
    int from = n->node[v->producer].index;
    int to = v->consumer == GPP__CALLER ? n->units : n->node[v->consumer].index;
    *(v->skip ? &layer[from].skip_bytes : &layer[from].output_bytes) += bytes;
    if (to < n->units)
        *(v->skip ? &layer[to].skip_bytes : &layer[to].output_bytes) -= bytes;
}

static void size_values(const gpp__layers *l, const bool kept[], gpp_layer_profile layer[])
{
    const gpp__network *n = l->network;
    for (int v = 0; v < n->values; v++) {
        const gpp__value *value = &n->value[v];
        size_t bytes = gpp__value_bytes(value, l->rows);
        if (value->producer == GPP__CALLER)
            continue;
        if (kept[v])
            layer[n->node[value->producer].index].activation_bytes += bytes;
        if (value->consumer != GPP__NOBODY)
            add_crossing(n, value, bytes, layer);
    }
    for (int u = 1; u < l->count; u++) {
        layer[u].output_bytes += layer[u - 1].output_bytes;
        layer[u].skip_bytes += layer[u - 1].skip_bytes;
    }
}

gpp_status gpp__layers_size(const gpp__layers *l, gpp_layer_profile layer[], gpp_error *err)
{
    size_t values = (size_t)l->network->values + 1;
    int *root = calloc(values, sizeof *root);
    bool *kept = calloc(values, sizeof *kept);
    gpp_status status = GPP_OK;
    if (!root || !kept) {
        status = gpp__fail(err, GPP_ENOMEM, "sizes of %d layers", l->count);
        goto free_arrays;
    }
    for (int u = 0; u < l->count; u++) {
        layer[u].parameter_bytes = parameter_bytes(&l->stage[u]);
        layer[u].activation_bytes = gpp__program_get_info(l->program[u])->tape_bytes;
        layer[u].output_bytes = layer[u].skip_bytes = 0;
    }
    find_roots(l->network, root);
    mark_kept(l, root, kept);
    if (l->count)
        size_values(l, kept, layer);
free_arrays:
    free(root);
    free(kept);
    return status;
}
