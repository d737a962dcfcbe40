/* codelets/program/program.c: making a program's steps. Placing their tensors is program_build.c's, running
 * them program_run.c's. */
#include "codelets/program/internal.h"

#include <stdlib.h>
#include <string.h>

/* --- making ----------------------------------------------------------------------------------- */

static gpp_status no_memory(const gpp__stage *stage, gpp_error *err)
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

/* Locals in the order in which they are born: what comes in, then step by step. */
static void list_locals(gpp__program *p, const uint8_t *flow)
{
    const gpp__stage *s = p->stage;
    for (int port = 0; port < s->ins; port++)
        add_local(p, s->in[port], flow);
    for (int k = 1; k <= p->steps; k++)
        for (int t = 0; t < p->step[k].layer->out_count; t++) {
            p->step[k].out[t] = p->locals;
            add_local(p, p->step[k].layer->to[t], flow);
        }
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        if (l->used <= p->steps)
            p->step[l->used].in[l->value->consumer_slot] = v;
    }
}

static bool has_gradient_to_pass(const gpp__program *p, const gpp__step *s)
{
    bool gets = false, wants = s->trains;
    for (int t = 0; t < s->layer->out_count; t++)
        gets |= p->local[s->out[t]].grad;
    for (int t = 0; t < s->layer->in_count; t++)
        wants |= p->local[s->in[t]].grad;
    return gets && wants;
}

static gpp_status prepare_step(gpp__program *p, int k, gpp_error *err)
{
    gpp__step *step = &p->step[k];
    const gpp__layer *l = step->layer;
    const gpp_op *op = l->op;
    step->view = op->is_view && op->is_view(l);
    step->passes = step->view || (op->passes_in_eval && op->passes_in_eval(l));
    step->trains = gpp__layer_trains(l);
    step->records = op->stats_bytes && op->stats_bytes(l) > 0;
    step->active =
        has_gradient_to_pass(p, step) && (step->view || gpp__stage_kernels(p->stage, l)->backward);
    const gpp__desc *rows = l->in_count ? &l->in[0] : &l->out[0];
    step->kernel = (gpp__kernel){.layer = l,
                                 .rows = gpp__desc_rows(rows, p->batch),
                                 .threads = p->threads,
                                 .store = &p->stage->store[k - 1],
                                 .cuda = p->stage->cuda};
    memcpy(step->kernel.batch, p->batch, sizeof p->batch);
    const gpp__kernels *kernels = gpp__stage_kernels(p->stage, l);
    if (step->view || p->empty || !kernels->prepare)
        return GPP_OK;
    gpp_status status = kernels->prepare(&step->kernel, err);
    step->prepared = status == GPP_OK;
    return status;
}

static gpp_status make_steps(gpp__program *p, const uint8_t *flow, gpp_error *err)
{
    const gpp__stage *s = p->stage;
    size_t slots = 0;
    for (int k = 0; k < s->count; k++)
        slots += (size_t)(s->layer[k].in_count + s->layer[k].out_count);
    p->step = calloc((size_t)s->count + 1, sizeof *p->step);
    p->slots = calloc(slots + 1, sizeof *p->slots);
    p->local = calloc(slots + (size_t)s->ins + 1, sizeof *p->local);
    if (!p->step || !p->slots || !p->local)
        return no_memory(s, err);
    int *slot = p->slots;
    for (p->steps = 0; p->steps < s->count;) {
        const gpp__layer *l = &s->layer[p->steps++];
        p->step[p->steps] = (gpp__step){.layer = l, .in = slot, .out = slot + l->in_count};
        slot += l->in_count + l->out_count;
    }
    list_locals(p, flow);
    for (int k = 1; k <= p->steps; k++) {
        gpp_status status = prepare_step(p, k, err);
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
        return no_memory(stage, err);
    p->stage = stage;
    p->threads = threads;
    memcpy(p->batch, rows, sizeof p->batch);
    p->empty = is_empty(rows, stage->network);
    gpp_status status = make_steps(p, flow, err);
    if (status == GPP_OK)
        status = gpp__program_place(p, err);
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
    for (int k = 1; p->step && k <= p->steps; k++) {
        gpp__step *s = &p->step[k];
        if (s->prepared && gpp__stage_kernels(p->stage, s->layer)->release)
            gpp__stage_kernels(p->stage, s->layer)->release(&s->kernel);
    }
    for (int w = 0; w < GPP__PASSES; w++) {
        free(p->way[w].root);
        free(p->way[w].write);
        free(p->way[w].read);
        free(p->way[w].copies);
        free(p->way[w].runs);
        free(p->way[w].scratch_at);
    }
    gpp__phase_free(p->phase);
    free(p->held);
    free(p->grad);
    free(p->port);
    free(p->local);
    free(p->slots);
    free(p->step);
    free(p);
}

const gpp__program_info *gpp__program_get_info(const gpp__program *p)
{
    return &p->info;
}
