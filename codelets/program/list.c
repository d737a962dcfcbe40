/*
 * codelets/program/list.c: writing the lists of actions that passes consist of.
 *
 * All that can be known before a pass runs is decided here, so that running a list only looks up
 * addresses. A list has room for all that its pass can have from the beginning: adding cannot fail.
 */
#include <stdlib.h>

#include "codelets/program/internal.h"

/* --- adding ----------------------------------------------------------------------------------- */

void gpp__list_release(gpp__list *l)
{
    free(l->action);
    free(l->at);
    *l = (gpp__list){0};
}

bool gpp__list_init(gpp__list *l, const gpp__program *p, size_t calls, size_t tensors)
{
    /* A value is copied at most once, and set to zero at most once. The gradients of an
     * instruction's parameters are set to zero at most once, and so are all statistics. */
    size_t moved = 2 * (size_t)p->locals, zeroed = (size_t)p->instructions + 1;
    gpp__list_release(l);
    l->action = calloc(calls + moved + zeroed, sizeof *l->action);
    l->at = calloc(2 * tensors + 2 * moved + zeroed, sizeof *l->at);
    return l->action && l->at;
}

static gpp__action *add(gpp__list *l, gpp__verb verb, int k, int locations)
{
    gpp__action *a = &l->action[l->actions++];
    *a = (gpp__action){.verb = (uint8_t)verb, .k = k, .at = l->at + l->locations};
    l->locations += locations;
    return a;
}

gpp__action *gpp__list_add_forward(gpp__list *l, const gpp__program *p, int k)
{
    return add(l, GPP__ACT_FORWARD, k, gpp__tensors(&p->instruction[k]));
}

void gpp__list_add_copy(gpp__list *l, int k, gpp__location from, gpp__location to, size_t bytes)
{
    gpp__action *a = add(l, GPP__ACT_COPY, k, 2);
    a->at[0] = from;
    a->at[1] = to;
    a->bytes = bytes;
}

static void add_zero(gpp__list *l, int k, gpp__location at, size_t bytes)
{
    gpp__action *a = add(l, GPP__ACT_ZERO, k, 1);
    a->at[0] = at;
    a->bytes = bytes;
}

/* No gradient comes back to instruction k. Its parameters must be told so. */
static void add_zero_params(gpp__list *l, const gpp__program *p, int k)
{
    if (p->instruction[k].trains)
        add_zero(l, k, (gpp__location){.area = GPP__AREA_GRADS, .offset = p->stage->grad_at[k - 1]},
                 p->stage->store[k - 1].grad_bytes);
}

/* --- backwards -------------------------------------------------------------------------------- */

void gpp__list_add_zero_inputs(gpp__list *l, const gpp__program *p, bool all)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *local = &p->local[v];
        bool float32 = local->value->desc.dtype == GPP_F32;
        if (local->in_port >= 0 && float32 && (all || !local->grad))
            add_zero(l, 0,
                     (gpp__location){.area = GPP__AREA_GRAD_IN, .port = (uint16_t)local->in_port},
                     local->exact + gpp__local_lead(local));
    }
}

/* What a split backward leaves for the weight pass, where it does not lie there already. Absent
 * ones, too: their heads say so. */
static void add_deferred(gpp__list *l, const gpp__program *p, int k, const gpp__grads *grads)
{
    const gpp__instruction *op = &p->instruction[k];
    for (int t = 0; t < op->layer->out_count; t++) {
        const gpp__local *v = &p->local[op->out[t]];
        gpp__location from = grads->at[op->out[t]], to = grads->deferred[op->out[t]];
        if (to.area == GPP__AREA_NONE || (from.area == to.area && from.offset == to.offset))
            continue;
        from.head = to.head = false;
        gpp__list_add_copy(l, k, from, to, v->exact + gpp__local_lead(v));
    }
}

gpp__action *gpp__list_add_backward(gpp__list *l, const gpp__program *p, gpp__pass pass, int k,
                                    const gpp__grads *grads)
{
    const gpp__instruction *op = &p->instruction[k];
    bool inputs = pass == GPP__PASS_BACKWARD, params = !inputs || !grads->split;
    int ins = op->layer->in_count, tensors = gpp__tensors(op);
    if (!op->active && params)
        add_zero_params(l, p, k);
    if (!op->active || (!inputs && !op->trains))
        return NULL;
    if (!params && op->trains)
        add_deferred(l, p, k, grads);
    gpp__action *a = add(l, op->view ? GPP__ACT_SUM : GPP__ACT_BACKWARD, k, 2 * tensors);
    a->inputs = inputs;
    a->params = params && op->trains;
    a->scratch_at = inputs ? grads->scratch_at[k] : 0;
    for (int t = 0; t < tensors; t++) {
        const gpp__location *at = inputs ? grads->at : grads->deferred;
        if (inputs || t >= ins)
            a->at[tensors + t] = at[gpp__tensor(op, t)];
    }
    return a;
}

/* --- ports ------------------------------------------------------------------------------------ */

static void mark_ports(gpp__program *p, const gpp__list *l, bool again)
{
    for (int q = 0; q < l->locations; q++) {
        bool in = l->at[q].area == GPP__AREA_IN, out = l->at[q].area == GPP__AREA_OUT;
        gpp__port *port = &p->port[out ? p->stage->ins + l->at[q].port : l->at[q].port];
        if (in || out)
            *(again ? &port->recompute_reads : &port->backward_reads) = true;
    }
}

void gpp__lists_mark_ports(gpp__program *p)
{
    for (int k = 0; k < p->stage->ins + p->stage->outs; k++)
        p->port[k].backward_reads = p->port[k].recompute_reads = false;
    mark_ports(p, &p->list[GPP__PASS_RECOMPUTE], true);
    mark_ports(p, &p->list[GPP__PASS_BACKWARD], false);
}

/* --- programs without rows -------------------------------------------------------------------- */

/* Outputs of no rows may have bytes all the same; records of statistics are empty. */
static void clear_outputs(gpp__program *p, gpp__list *l)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *local = &p->local[v];
        if (local->out_port >= 0)
            add_zero(l, 0,
                     (gpp__location){.area = GPP__AREA_OUT, .port = (uint16_t)local->out_port},
                     local->exact + gpp__local_lead(local));
    }
    add_zero(l, 0, (gpp__location){.area = GPP__AREA_STATS}, p->stage->stats_bytes);
}

void gpp__lists_clear(gpp__program *p)
{
    for (int pass = 0; pass < GPP__PASSES; pass++) {
        gpp__list *l = &p->list[pass];
        l->actions = l->locations = 0;
        if (pass < GPP__PASS_RECOMPUTE)
            clear_outputs(p, l);
    }
    gpp__pass learns = p->list[GPP__PASS_WEIGHT].action ? GPP__PASS_WEIGHT : GPP__PASS_BACKWARD;
    gpp__list_add_zero_inputs(&p->list[GPP__PASS_BACKWARD], p, true);
    for (int k = 1; k <= p->instructions; k++)
        add_zero_params(&p->list[learns], p, k);
}
