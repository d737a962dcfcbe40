/*
 * codelets/program/compile.c: compiling a program: where every tensor of its forward passes lies,
 * and the lists of actions of all passes.
 *
 * A group is in an in-port, in the out-port of the version in it that goes out, on the tape when
 * one of its versions is taped, or in scratch. A version that goes out twice, or comes in and goes
 * out, is copied. Of an optional value the head is part of its memory.
 */
#include "codelets/program/internal.h"

#include <stdlib.h>
#include <string.h>

/* --- the tape --------------------------------------------------------------------------------- */

/** Offsets on the tape of each taped group and of what operators save. All of them live from the
 * forward to the backward. */
static void lay_tape(gpp__program *p, gpp__grouping *g)
{
    size_t at = 0;
    for (int v = 0; v < p->locals; v++)
        if (g->group[v] == v && g->group_taped[v] && g->out[v] < 0 && p->local[v].in_port < 0) {
            g->tape_at[v] = at;
            at += gpp__align(g->bytes[v]);
        }
    for (int k = 1; k <= p->instructions; k++) {
        gpp__instruction *op = &p->instruction[k];
        if (op->active && op->kernel.saved_bytes) {
            op->saved_at = at;
            at += gpp__align(op->kernel.saved_bytes);
        }
    }
    p->info.tape_bytes = at;
}

static gpp__location locate(const gpp__program *p, const gpp__grouping *g, int v, bool tape)
{
    int group = g->group[v];
    bool head = p->local[g->version[v]].value->optional;
    if (p->local[group].in_port >= 0)
        return (gpp__location){GPP__AREA_IN, head, (uint16_t)p->local[group].in_port, 0};
    if (g->out[group] >= 0)
        return (gpp__location){GPP__AREA_OUT, head, (uint16_t)g->out[group], 0};
    if (tape && g->group_taped[group])
        return (gpp__location){GPP__AREA_TAPE, head, 0, g->tape_at[group]};
    return (gpp__location){GPP__AREA_SCRATCH, head, 0, 0};
}

static gpp__location saved_on_tape(const gpp__instruction *op)
{
    bool saves = op->active && op->kernel.saved_bytes;
    return (gpp__location){.area = saves ? GPP__AREA_TAPE : GPP__AREA_NONE, .offset = op->saved_at};
}

/* --- layouts ---------------------------------------------------------------------------------- */

/** Where a forward pass has its tensors. */
typedef struct layout {
    gpp__location *write, *read; /* [locals] where a value is made, and found */
    bool *runs;                  /* [instructions + 1] it calls its kernel */
    size_t *scratch_at;          /* [instructions + 1] its workspace */
    const bool *copies;          /* [locals] a value goes out by copy; NULL: none does */
    size_t scratch_bytes;
} layout;

static bool layout_init(layout *l, const gpp__program *p)
{
    size_t locals = (size_t)p->locals + 1, instructions = (size_t)p->instructions + 1;
    *l = (layout){.write = calloc(locals, sizeof *l->write),
                  .read = calloc(locals, sizeof *l->read),
                  .runs = calloc(instructions, sizeof *l->runs),
                  .scratch_at = calloc(instructions, sizeof *l->scratch_at)};
    return l->write && l->read && l->runs && l->scratch_at;
}

static void layout_release(layout *l)
{
    free(l->write);
    free(l->read);
    free(l->runs);
    free(l->scratch_at);
}

/* A version that a recomputation finds: it came in, or the out-port still has it for the backward.
 */
static bool is_available(const gpp__program *p, const gpp__grouping *g, int root)
{
    return p->local[g->group[root]].in_port >= 0 || (g->taped[root] && g->out[g->group[root]] >= 0);
}

/** Which instructions a recomputation runs: those that fill the tape, and what they need. */
static gpp_status mark_recomputed(const gpp__program *p, const gpp__grouping *g, layout *l,
                                  gpp_error *err)
{
    bool *needed = calloc((size_t)p->locals + 1, sizeof *needed);
    if (!needed)
        return gpp__program_no_memory(p->stage, err);
    for (int k = p->instructions; k >= 1; k--) {
        const gpp__instruction *op = &p->instruction[k];
        if (op->view)
            continue;
        bool runs = op->active && op->kernel.saved_bytes > 0;
        for (int t = 0; t < op->layer->out_count; t++) {
            int root = g->version[op->out[t]];
            runs |= !is_available(p, g, root) && (needed[root] || g->taped[root]);
        }
        l->runs[k] = runs;
        for (int t = 0; runs && t < op->layer->in_count; t++)
            needed[g->version[op->in[t]]] = true;
    }
    free(needed);
    return GPP_OK;
}

/* A recomputation makes its values beside the out-ports: other partitions may be reading these. */
static void leave_ports_alone(const gpp__program *p, const gpp__grouping *g, layout *l)
{
    for (int v = 0; v < p->locals; v++) {
        if (l->write[v].area != GPP__AREA_OUT)
            continue;
        l->write[v].area = GPP__AREA_SCRATCH;
        l->write[v].port = 0;
        if (!is_available(p, g, g->version[v]))
            l->read[v] = l->write[v];
    }
    l->copies = NULL;
}

/* --- scratch ---------------------------------------------------------------------------------- */

/* Extends the life of a group's scratch to instruction k, if that is where the value is. */
static void touch(const gpp__grouping *g, gpp__span *span, int v, const gpp__location *at, int k)
{
    gpp__span *s = &span[g->group[v]];
    if (at->area != GPP__AREA_SCRATCH)
        return;
    if (!s->bytes)
        s->first = k;
    s->bytes = g->bytes[g->group[v]];
    s->last = k;
}

static void note_scratch(const gpp__program *p, const gpp__grouping *g, const layout *l,
                         gpp__span *span)
{
    for (int k = 1; k <= p->instructions; k++) {
        const gpp__instruction *op = &p->instruction[k];
        if (l->runs[k]) {
            span[p->locals + k] = (gpp__span){op->kernel.forward_scratch, k, k, 0};
            for (int t = 0; t < op->layer->in_count; t++)
                touch(g, span, op->in[t], &l->read[op->in[t]], k);
            for (int t = 0; t < op->layer->out_count; t++)
                touch(g, span, op->out[t], &l->write[op->out[t]], k);
        }
        for (int t = 0; t < op->layer->out_count; t++)
            if (l->copies && l->copies[op->out[t]])
                touch(g, span, op->out[t], &l->read[op->out[t]], k);
    }
}

/** A span for each group that lives in scratch, and one for each workspace. */
static gpp_status locate_scratch(const gpp__program *p, const gpp__grouping *g, layout *l,
                                 gpp_error *err)
{
    size_t count = (size_t)p->locals + (size_t)p->instructions + 1;
    gpp__span *span = calloc(count, sizeof *span);
    if (!span)
        return gpp__program_no_memory(p->stage, err);
    note_scratch(p, g, l, span);
    gpp_status status = gpp__arena_place(span, count, &l->scratch_bytes, err);
    for (int v = 0; v < p->locals; v++) {
        size_t offset = span[g->group[v]].offset;
        if (l->write[v].area == GPP__AREA_SCRATCH)
            l->write[v].offset = offset;
        if (l->read[v].area == GPP__AREA_SCRATCH)
            l->read[v].offset = offset;
    }
    for (int k = 1; k <= p->instructions; k++)
        l->scratch_at[k] = span[p->locals + k].offset;
    free(span);
    return status;
}

/* --- forward passes --------------------------------------------------------------------------- */

static gpp_status lay_out(const gpp__program *p, gpp__pass pass, const gpp__grouping *g,
                          const gpp__partial *partial, layout *l, gpp_error *err)
{
    bool tape = pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE;
    gpp_status status = GPP_OK;
    l->copies = g->copies;
    for (int v = 0; v < p->locals; v++) {
        l->read[v] = locate(p, g, v, tape);
        if (partial && partial->group[g->group[v]].area != GPP__AREA_NONE) {
            l->read[v].area = GPP__AREA_PARTIAL;
            l->read[v].offset = partial->group[g->group[v]].offset;
        }
        l->write[v] = l->read[v];
    }
    for (int k = 1; k <= p->instructions; k++)
        l->runs[k] = !gpp__is_view(&p->instruction[k], pass == GPP__PASS_EVALUATE);
    if (pass == GPP__PASS_RECOMPUTE) {
        status = mark_recomputed(p, g, l, err);
        leave_ports_alone(p, g, l);
    }
    return status == GPP_OK ? locate_scratch(p, g, l, err) : status;
}

static void add_forward(gpp__program *p, gpp__pass pass, const layout *l,
                        const gpp__partial *partial, int k)
{
    const gpp__instruction *op = &p->instruction[k];
    gpp__action *a = gpp__list_add_forward(&p->list[pass], p, k);
    for (int t = 0; t < gpp__tensors(op); t++)
        a->at[t] = (t < op->layer->in_count ? l->read : l->write)[gpp__tensor(op, t)];
    a->scratch_at = l->scratch_at[k];
    a->keeps = pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE;
    if (a->keeps)
        a->saved = saved_on_tape(op);
    else if (partial)
        a->saved = partial->saved[k];
    a->keeps |= a->saved.area != GPP__AREA_NONE;
}

/* Exactly the value's bytes: an end may be the caller's memory, which is not rounded up. */
static void add_copy_out(gpp__program *p, gpp__pass pass, const layout *l, int k, int v)
{
    const gpp__local *local = &p->local[v];
    gpp__location to = {.area = GPP__AREA_OUT, .port = (uint16_t)local->out_port};
    gpp__list_add_copy(&p->list[pass], k, l->read[v], to, local->exact);
}

gpp_status gpp__compile_forward(gpp__program *p, gpp__pass pass, const gpp__grouping *g,
                                const gpp__partial *partial, gpp_error *err)
{
    layout l;
    gpp__list *list = &p->list[pass];
    gpp_status status = GPP_OK;
    if (!layout_init(&l, p) || !gpp__list_init(list, p, (size_t)p->instructions, p->tensors))
        status = gpp__program_no_memory(p->stage, err);
    else
        status = lay_out(p, pass, g, partial, &l, err);
    for (int k = 1; status == GPP_OK && k <= p->instructions; k++) {
        const gpp__instruction *op = &p->instruction[k];
        if (l.runs[k])
            add_forward(p, pass, &l, partial, k);
        for (int t = 0; t < op->layer->out_count; t++)
            if (l.copies && l.copies[op->out[t]])
                add_copy_out(p, pass, &l, k, op->out[t]);
    }
    list->scratch_bytes = l.scratch_bytes;
    layout_release(&l);
    return status;
}

/* --- backward passes -------------------------------------------------------------------------- */

/* Every tensor is where keeping forwards leave it. */
static void add_backward(gpp__program *p, gpp__pass pass, const gpp__grouping *g,
                         const gpp__grads *grads, int k)
{
    const gpp__instruction *op = &p->instruction[k];
    gpp__action *a = gpp__list_add_backward(&p->list[pass], p, pass, k, grads);
    for (int t = 0; a && t < gpp__tensors(op); t++)
        if (gpp__backward_reads(p, g, op, t))
            a->at[t] = locate(p, g, gpp__tensor(op, t), true);
    if (a)
        a->saved = saved_on_tape(op);
}

static gpp_status compile_backward(gpp__program *p, const gpp__grouping *g, bool split,
                                   gpp_error *err)
{
    gpp__list *backward = &p->list[GPP__PASS_BACKWARD], *weight = &p->list[GPP__PASS_WEIGHT];
    gpp__grads grads;
    size_t calls = (size_t)p->instructions, scratch = 0;
    gpp_status status = GPP_OK;
    if (!gpp__grads_init(&grads, p, split) || !gpp__list_init(backward, p, calls, p->tensors) ||
        (split && !gpp__list_init(weight, p, calls, p->tensors)))
        status = gpp__program_no_memory(p->stage, err);
    else
        status = gpp__grads_locate(p, &grads, NULL, NULL, 0, &scratch, err);
    if (status == GPP_OK)
        gpp__list_add_zero_inputs(backward, p, false);
    for (int k = p->instructions; status == GPP_OK && k >= 1; k--) {
        add_backward(p, GPP__PASS_BACKWARD, g, &grads, k);
        if (split)
            add_backward(p, GPP__PASS_WEIGHT, g, &grads, k);
    }
    backward->scratch_bytes = scratch;
    gpp__grads_release(&grads);
    return status;
}

/* --- all of it -------------------------------------------------------------------------------- */

static gpp_status make_ports(gpp__program *p, gpp_error *err)
{
    size_t count = (size_t)p->stage->ins + (size_t)p->stage->outs;
    p->port = calloc(count + 1, sizeof *p->port);
    if (!p->port)
        return gpp__program_no_memory(p->stage, err);
    p->info.in = p->port;
    p->info.out = p->port + p->stage->ins;
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        gpp__port port = {.bytes = l->bytes, .grad = l->grad};
        if (l->in_port >= 0)
            p->port[l->in_port] = port;
        if (l->out_port >= 0)
            p->port[p->stage->ins + l->out_port] = port;
    }
    return GPP_OK;
}

static size_t most_scratch(const gpp__program *p)
{
    size_t most = 0;
    for (int pass = 0; pass < GPP__PASSES; pass++)
        most = p->list[pass].scratch_bytes > most ? p->list[pass].scratch_bytes : most;
    return most;
}

gpp_status gpp__program_compile(gpp__program *p, gpp_error *err)
{
    gpp__grouping train = {0}, evaluate = {0};
    gpp_status status = make_ports(p, err);
    if (!gpp__grouping_init(&train, p->locals) || !gpp__grouping_init(&evaluate, p->locals))
        status = gpp__program_no_memory(p->stage, err);
    if (status != GPP_OK)
        goto release;
    gpp__group_values(p, false, &train);
    gpp__group_values(p, true, &evaluate);
    lay_tape(p, &train);
    for (int pass = 0; status == GPP_OK && pass <= GPP__PASS_RECOMPUTE; pass++)
        status = gpp__compile_forward(p, (gpp__pass)pass,
                                      pass == GPP__PASS_EVALUATE ? &evaluate : &train, NULL, err);
    if (status == GPP_OK)
        status = compile_backward(p, &train, false, err);
    if (status != GPP_OK)
        goto release;
    p->info.scratch_bytes = most_scratch(p);
    gpp__lists_mark_ports(p);
    if (p->empty)
        gpp__lists_clear(p);
release:
    gpp__grouping_release(&train);
    gpp__grouping_release(&evaluate);
    return status;
}

/* A split backward needs no more scratch than the whole one did. Scratch is left as it is. */
gpp_status gpp__program_split(gpp__program *p, gpp_error *err)
{
    gpp__grouping g = {0};
    gpp_status status = GPP_OK;
    if (p->scripted)
        return gpp__fail(err, GPP_EINVAL, "a backward by a script cannot be split");
    if (!gpp__grouping_init(&g, p->locals))
        status = gpp__program_no_memory(p->stage, err);
    if (status == GPP_OK) {
        gpp__group_values(p, false, &g);
        lay_tape(p, &g);
        status = compile_backward(p, &g, true, err);
    }
    if (status == GPP_OK && p->empty)
        gpp__lists_clear(p);
    gpp__grouping_release(&g);
    return status;
}
