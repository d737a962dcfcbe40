/* codelets/program/program.c: making a program's instructions, and the values between them. */
#include "codelets/program/internal.h"

#include <stdlib.h>
#include <string.h>

/* --- making ----------------------------------------------------------------------------------- */

gpp_status gpp__program_no_memory(const gpp__stage *stage, gpp_error *err)
{
    return gpp__fail(err, GPP_ENOMEM, "a program of %d layers", stage->count);
}

/* The number of a port, or -1. */
static int port_of(const int *port, int count, int value)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (port[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && port[low] == value ? low : -1;
}

static void add_local(gpp__program *p, int id, const uint8_t *flow)
{
    const gpp__stage *s = p->stage;
    const gpp__value *v = &s->network->value[id];
    int born = v->producer - s->first + 1, used = v->consumer - s->first + 1;
    gpp__local *l = &p->local[p->locals++];
    *l = (gpp__local){
        .value = v,
        .id = id,
        .born = born < 1 ? 0 : born,
        .used = v->consumer < s->first || used > s->count ? s->count + 1 : used,
        .in_port = born < 1 ? port_of(s->in, s->ins, id) : -1,
        .out_port = port_of(s->out, s->outs, id),
        .bytes = gpp__value_bytes(v, p->batch),
        .exact = (size_t)gpp__desc_rows(&v->desc, p->batch) * gpp__desc_bytes(&v->desc),
        .grad = v->desc.dtype == GPP_F32 && (flow[id] & GPP__HAS_GRAD) == GPP__HAS_GRAD,
    };
}

/* Locals in the order in which they are born: what comes in, then instruction by instruction. */
static void list_locals(gpp__program *p, const uint8_t *flow)
{
    const gpp__stage *s = p->stage;
    for (int port = 0; port < s->ins; port++)
        add_local(p, s->in[port], flow);
    for (int k = 1; k <= p->instructions; k++)
        for (int t = 0; t < p->instruction[k].layer->out_count; t++) {
            p->instruction[k].out[t] = p->locals;
            add_local(p, p->instruction[k].layer->to[t], flow);
        }
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        if (l->used <= p->instructions)
            p->instruction[l->used].in[l->value->consumer_slot] = v;
    }
}

static bool has_gradient_to_pass(const gpp__program *p, const gpp__instruction *op)
{
    bool gets = false, wants = op->trains;
    for (int t = 0; t < op->layer->out_count; t++)
        gets |= p->local[op->out[t]].grad;
    for (int t = 0; t < op->layer->in_count; t++)
        wants |= p->local[op->in[t]].grad;
    return gets && wants;
}

static gpp_status prepare(gpp__program *p, int k, gpp_error *err)
{
    gpp__instruction *op = &p->instruction[k];
    const gpp__layer *l = op->layer;
    op->view = l->op->is_view && l->op->is_view(l);
    op->view_in_eval = op->view || (l->op->passes_in_eval && l->op->passes_in_eval(l));
    op->trains = gpp__layer_trains(l);
    op->records = l->op->stats_bytes && l->op->stats_bytes(l) > 0;
    op->active =
        has_gradient_to_pass(p, op) && (op->view || gpp__stage_kernels(p->stage, l)->backward);
    const gpp__desc *rows = l->in_count ? &l->in[0] : &l->out[0];
    op->kernel = (gpp__kernel){.layer = l,
                               .rows = gpp__desc_rows(rows, p->batch),
                               .threads = p->threads,
                               .store = &p->stage->store[k - 1],
                               .cuda = p->stage->cuda};
    memcpy(op->kernel.batch, p->batch, sizeof p->batch);
    const gpp__kernels *kernels = gpp__stage_kernels(p->stage, l);
    if (op->view || p->empty || !kernels->prepare)
        return GPP_OK;
    gpp_status status = kernels->prepare(&op->kernel, err);
    op->prepared = status == GPP_OK;
    return status;
}

static gpp_status make_instructions(gpp__program *p, const uint8_t *flow, gpp_error *err)
{
    const gpp__stage *s = p->stage;
    for (int k = 0; k < s->count; k++)
        p->tensors += (size_t)(s->layer[k].in_count + s->layer[k].out_count);
    p->instruction = calloc((size_t)s->count + 1, sizeof *p->instruction);
    p->slots = calloc(p->tensors + 1, sizeof *p->slots);
    p->local = calloc(p->tensors + (size_t)s->ins + 1, sizeof *p->local);
    if (!p->instruction || !p->slots || !p->local)
        return gpp__program_no_memory(s, err);
    int *slot = p->slots;
    for (p->instructions = 0; p->instructions < s->count;) {
        const gpp__layer *l = &s->layer[p->instructions++];
        p->instruction[p->instructions] =
            (gpp__instruction){.layer = l, .in = slot, .out = slot + l->in_count};
        slot += l->in_count + l->out_count;
    }
    list_locals(p, flow);
    for (int k = 1; k <= p->instructions; k++) {
        gpp_status status = prepare(p, k, err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

static bool is_empty(const int64_t rows[GPP__BATCHES], const gpp__network *network)
{
    bool empty = false;
    for (int t = 0; t < network->inputs; t++) {
        const gpp__desc *d = &network->value[network->input[t]].desc;
        empty |= d->batch != GPP_ROWS_FIXED && rows[d->batch] == 0;
    }
    return empty;
}

gpp_status gpp__program_new(gpp__program **program, const gpp__stage *stage,
                            const int64_t rows[GPP__BATCHES], int threads, const uint8_t flow[],
                            gpp_error *err)
{
    *program = NULL;
    gpp__program *p = calloc(1, sizeof *p);
    if (!p)
        return gpp__program_no_memory(stage, err);
    p->stage = stage;
    p->threads = threads;
    memcpy(p->batch, rows, sizeof p->batch);
    p->empty = is_empty(rows, stage->network);
    gpp_status status = make_instructions(p, flow, err);
    if (status == GPP_OK)
        status = gpp__program_compile(p, err);
    if (status == GPP_OK)
        *program = p;
    else
        gpp__program_free(p);
    return status;
}

void gpp__program_free(gpp__program *p)
{
    if (!p)
        return;
    for (int k = 1; p->instruction && k <= p->instructions; k++) {
        gpp__instruction *op = &p->instruction[k];
        const gpp__kernels *kernels = gpp__stage_kernels(p->stage, op->layer);
        if (op->prepared && kernels->release)
            kernels->release(&op->kernel);
    }
    for (int pass = 0; pass < GPP__PASSES; pass++)
        gpp__list_release(&p->list[pass]);
    free(p->port);
    free(p->local);
    free(p->slots);
    free(p->instruction);
    free(p);
}

const gpp__program_info *gpp__program_get_info(const gpp__program *p)
{
    return &p->info;
}
