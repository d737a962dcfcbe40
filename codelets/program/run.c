/*
 * codelets/program/run.c: running a program: its ways forwards, its backward, whole, by a script or
 * split, from the places that program_build.c has given its tensors.
 */
#include "codelets/move.h"
#include "codelets/program/internal.h"

static char *block_of(const gpp__cell_io *io, gpp__location at)
{
    switch ((gpp__block)at.block) {
    case GPP__AT_IN:
        return (char *)io->in[at.port];
    case GPP__AT_OUT:
        return io->out[at.port];
    case GPP__AT_TAPE:
        return io->tape;
    case GPP__AT_PARTIAL:
        return io->kept;
    case GPP__AT_DEFERRED:
        return io->held;
    case GPP__AT_SCRATCH:
        return io->scratch;
    case GPP__AT_GRAD_OUT:
        return (char *)io->grad_out[at.port];
    case GPP__AT_GRAD_IN:
        return io->grad_in[at.port];
    case GPP__AT_NOWHERE:
        break;
    }
    return NULL;
}

static char *at(const gpp__cell_io *io, gpp__location place)
{
    char *base = block_of(io, place);
    return base ? base + place.offset : NULL;
}

/* What is in front of an optional value. */
static void set_present(char *head, bool present)
{
    *(int64_t *)head = present;
}
static bool is_present(const char *head)
{
    return *(const int64_t *)head != 0;
}

/* The data of local `v` at `base`; NULL when there is none or it is absent. */
static char *data_of(const gpp__local *v, char *base)
{
    if (!base || !v->value->optional)
        return base;
    return is_present(base) ? base + GPP__HEAD : NULL;
}

/* A value's data is behind the head of the value whose memory it is, in whose place it is found. */
static char *data_at(const gpp__program *p, const int root[], int v, gpp__location place,
                     const gpp__cell_io *cell)
{
    return data_of(&p->local[root[v]], at(cell, place));
}

/* A call of a step on its way. @param room  [2 · GPP__MAX_TENSORS] for its places */
static gpp__action call_of(const gpp__program *p, const gpp__way *way, int k, gpp__location room[])
{
    const gpp__step *s = &p->step[k];
    int ins = s->layer->in_count;
    for (int t = 0; t < ins; t++)
        room[t] = way->read[s->in[t]];
    for (int t = 0; t < s->layer->out_count; t++)
        room[ins + t] = way->write[s->out[t]];
    return (gpp__action){.step = k, .at = room, .scratch_at = way->scratch_at[k]};
}

/* The backward of a step that finds everything where keeping forwards leave it. */
static gpp__action back_of(const gpp__program *p, int k, gpp__location room[])
{
    const gpp__step *s = &p->step[k];
    const gpp__way *way = &p->way[GPP__PASS_KEEP];
    int ins = s->layer->in_count;
    for (int t = 0; t < ins + s->layer->out_count; t++)
        room[t] = way->read[t < ins ? s->in[t] : s->out[t - ins]];
    return (gpp__action){.step = k,
                         .back = true,
                         .at = room,
                         .saved = {GPP__AT_TAPE, 0, s->saved_at},
                         .scratch_at = s->backward_scratch_at};
}

static void layer_memory(const gpp__program *p, int k, const gpp__cell_io *cell, gpp__io *io)
{
    const gpp__stage *stage = p->stage;
    if (p->step[k].layer->param_count)
        io->params = cell->params + stage->param_at[k - 1];
    if (stage->store[k - 1].packed_bytes)
        io->packed = cell->params + stage->packed_at[k - 1];
}

/** Makes sure that a failure names its layer and says something. */
static gpp_status blame(const gpp__run *run, const gpp__layer *l, gpp_status status,
                        const char *way)
{
    if (run->err && run->err->code == GPP_OK)
        gpp__fail_layer(run->err, status, l->index, "%s (layer %d, \"%s\"): %s failed: %s",
                        l->op->name, l->index, l->label, way, gpp_status_text(status));
    else if (run->err && run->err->layer < 0)
        run->err->layer = l->index;
    return status;
}

/* The skip that is popped as input `t`; NULL: that input is none. */
static const gpp__skip *popped_as(const gpp__layer *l, int t)
{
    int pop = t - (l->in_count - l->pops);
    for (int k = 0; pop >= 0 && k < l->skips; k++)
        if (!l->skip[k].stash && pop-- == 0)
            return &l->skip[k];
    return NULL;
}

static gpp_status refuse_none(const gpp__run *run, const gpp__layer *l, int t)
{
    const gpp__skip *skip = popped_as(l, t);
    return gpp__fail_layer(run->err, GPP_EINVAL, l->index,
                           "%s (layer %d, \"%s\"): nothing was stashed%s%s%s for micro-batch %d, "
                           "and it cannot do without",
                           l->op->name, l->index, l->label, skip ? " as \"" : "",
                           skip ? skip->name : "", skip ? "\"" : "", run->micro_batch);
}

/* Inputs of a call. False when one is absent that must not be. */
static bool gather_inputs(const gpp__program *p, const int root[], const gpp__action *call,
                          const gpp__cell_io *cell, const void *in[], int *missing)
{
    const gpp__step *s = &p->step[call->step];
    *missing = -1;
    for (int t = 0; t < s->layer->in_count; t++) {
        in[t] = data_at(p, root, s->in[t], call->at[t], cell);
        if (!in[t] && p->local[root[s->in[t]]].value->optional)
            *missing = t;
    }
    return *missing < 0 || s->layer->op->takes_none || s->layer->op->passes_none;
}

static void mark_outputs(const gpp__program *p, const gpp__action *call, const gpp__cell_io *cell,
                         uint32_t absent)
{
    const gpp__step *s = &p->step[call->step];
    for (int t = 0; t < s->layer->out_count; t++)
        if (p->local[s->out[t]].value->optional)
            set_present(at(cell, call->at[s->layer->in_count + t]), !(absent >> t & 1));
}

static gpp_status forward_step(const gpp__program *p, const int root[], const gpp__action *call,
                               const gpp__run *run, const gpp__cell_io *cell)
{
    int k = call->step;
    const gpp__step *s = &p->step[k];
    const gpp__layer *l = s->layer;
    uint32_t absent = 0;
    int missing;
    gpp__io io = {.scratch = cell->scratch ? cell->scratch + call->scratch_at : NULL,
                  .absent = &absent};
    if (!gather_inputs(p, root, call, cell, io.in, &missing))
        return refuse_none(run, l, missing);
    if (missing == 0 && l->op->passes_none) {
        mark_outputs(p, call, cell, 1);
        return GPP_OK;
    }
    for (int t = 0; t < l->out_count; t++) {
        char *base = at(cell, call->at[l->in_count + t]);
        io.out[t] = base ? base + gpp__local_lead(&p->local[s->out[t]]) : NULL;
    }
    if (call->keeps && s->active && s->kernel.saved_bytes)
        io.saved = at(cell, call->saved);
    if (cell->stats && s->records && run->training && !run->recomputing)
        io.stats = cell->stats + p->stage->stats_at[k - 1];
    layer_memory(p, k, cell, &io);
    gpp_status status = gpp__stage_kernels(p->stage, l)->forward(&s->kernel, run, &io);
    if (status == GPP_OK)
        mark_outputs(p, call, cell, absent);
    return status;
}

/* Views that go out, to where they go. Exactly: an end may be the caller's memory, which is not
 * rounded up. */
static gpp_status copy_out(const gpp__program *p, const gpp__way *way, int v, const gpp__run *run,
                           const gpp__cell_io *cell)
{
    const gpp__local *l = &p->local[v];
    char *to = cell->out[l->out_port];
    const char *from = data_at(p, way->root, v, way->read[v], cell);
    if (!to)
        return GPP_OK;
    if (!from) {
        const gpp__layer *layer = p->step[l->born].layer;
        return blame(run, layer, refuse_none(run, layer, layer->in_count - 1), "forward");
    }
    gpp__copy_bytes(run, to, from, l->exact);
    return GPP_OK;
}

/* Nothing runs for a mini-batch without rows: outputs that have some all the same are zero, records
 * are empty. */
static void clear_outputs(const gpp__program *p, gpp__pass pass, const gpp__run *run,
                          const gpp__cell_io *cell)
{
    for (int v = 0; v < p->locals && pass != GPP__PASS_RECOMPUTE; v++) {
        const gpp__local *l = &p->local[v];
        char *to = l->out_port < 0 ? NULL : cell->out[l->out_port];
        if (to)
            gpp__zero(run, to, l->exact + gpp__local_lead(l));
    }
    if (cell->stats)
        gpp__zero(run, cell->stats, p->stage->stats_bytes);
}

static void note_lap(const gpp__cell_io *cell, int k)
{
    if (cell->lap)
        cell->lap(cell->laps, k - 1);
}

/* Where step k saves for its backward on this way, GPP__AT_NOWHERE: it does not. */
static gpp__location saves(const gpp__program *p, gpp__pass pass, int k)
{
    if (pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE)
        return (gpp__location){GPP__AT_TAPE, 0, p->step[k].saved_at};
    return pass == GPP__PASS_DROP && p->phase ? p->phase->kept_saved[k]
                                              : (gpp__location){GPP__AT_NOWHERE, 0, 0};
}

/* The script's moves up to the first backward one. */
static gpp_status recompute_by_script(const gpp__program *p, const gpp__run *run,
                                      const gpp__cell_io *cell)
{
    gpp_status status = GPP_OK;
    for (int q = 0; status == GPP_OK && q < p->phase->split; q++) {
        const gpp__action *call = &p->phase->call[q];
        status = forward_step(p, p->way[GPP__PASS_KEEP].root, call, run, cell);
        if (status != GPP_OK)
            return blame(run, p->step[call->step].layer, status, "recomputation");
    }
    return GPP_OK;
}

gpp_status gpp__program_forward(const gpp__program *p, gpp__pass pass, const gpp__run *run,
                                const gpp__cell_io *cell)
{
    gpp__location room[2 * GPP__MAX_TENSORS];
    if (p->empty) {
        clear_outputs(p, pass, run, cell);
        return GPP_OK;
    }
    if (pass == GPP__PASS_RECOMPUTE && p->phase)
        return recompute_by_script(p, run, cell);
    const gpp__way *way = &p->way[pass];
    for (int k = 1; k <= p->steps; k++) {
        const gpp__step *s = &p->step[k];
        gpp_status status = GPP_OK;
        if (way->runs[k]) {
            gpp__action call = call_of(p, way, k, room);
            call.saved = saves(p, pass, k);
            call.keeps = call.saved.block != GPP__AT_NOWHERE;
            status = forward_step(p, way->root, &call, run, cell);
        }
        for (int t = 0; status == GPP_OK && t < s->layer->out_count; t++)
            if (way->copies[s->out[t]])
                status = copy_out(p, way, s->out[t], run, cell);
        if (status != GPP_OK)
            return blame(run, s->layer, status,
                         pass == GPP__PASS_RECOMPUTE ? "recomputation" : "forward");
        note_lap(cell, k);
    }
    return GPP_OK;
}

/* --- backward --------------------------------------------------------------------------------- */

/* The gradient of local `v`: NULL: none, or absent. */
static char *grad_of(const gpp__program *p, int v, const gpp__cell_io *cell)
{
    return p->local[v].grad ? data_of(&p->local[v], at(cell, p->grad[v])) : NULL;
}

/* Where to write the gradient of input local `v`, which is as absent as the input itself. */
static char *grad_room(const gpp__program *p, int v, const void *in, const gpp__cell_io *cell)
{
    char *base = p->local[v].grad ? at(cell, p->grad[v]) : NULL;
    if (!base || !p->local[v].value->optional)
        return base;
    set_present(base, in != NULL);
    return in ? base + GPP__HEAD : NULL;
}

/* The gradient of input `t` of a view: the sum of those of the outputs that are this input, in
 * their order. */
static void backward_view(const gpp__program *p, const gpp__action *call, int t,
                          const gpp__run *run, const gpp__cell_io *cell)
{
    const gpp__step *s = &p->step[call->step];
    int v = s->in[t];
    const int *root = p->way[GPP__PASS_KEEP].root;
    if (!p->local[v].grad)
        return;
    char *sum = grad_room(p, v, data_at(p, root, v, call->at[t], cell), cell);
    bool begun = false;
    for (int o = 0; sum && o < s->layer->out_count; o++) {
        char *part = gpp__view_source(s->layer, o) == t ? grad_of(p, s->out[o], cell) : NULL;
        if (!part)
            continue;
        if (begun)
            gpp__add_floats(run, (float *)sum, (const float *)part,
                            (int64_t)(p->local[v].exact / sizeof(float)));
        else if (part != sum)
            gpp__copy_bytes(run, sum, part, p->local[v].exact);
        begun = true;
    }
    if (sum && !begun)
        gpp__zero(run, sum, p->local[v].exact);
}

/* No gradient comes back to operator k: the first micro-batch says so. */
static void zero_grads(const gpp__program *p, int k, const gpp__run *run, const gpp__cell_io *cell)
{
    if (p->step[k].trains && !cell->accumulate && cell->grads)
        gpp__zero(run, cell->grads + p->stage->grad_at[k - 1], p->stage->store[k - 1].grad_bytes);
}

/* The gradients of what operator k has given are all zero, or nobody has asked for them. */
static void pass_zeros(const gpp__program *p, int k, const gpp__run *run, const gpp__cell_io *cell,
                       const gpp__io *io)
{
    const gpp__step *s = &p->step[k];
    zero_grads(p, k, run, cell);
    for (int t = 0; t < s->layer->in_count; t++)
        if (io->grad_in[t])
            gpp__zero(run, io->grad_in[t], p->local[s->in[t]].exact);
}

/* What a split backward leaves of operator k, where it does not lie there already. */
static void hold(const gpp__program *p, int k, const gpp__run *run, const gpp__cell_io *cell)
{
    const gpp__step *s = &p->step[k];
    for (int t = 0; t < s->layer->out_count; t++) {
        int v = s->out[t];
        const char *from = at(cell, p->grad[v]);
        char *to = at(cell, p->held[v]);
        if (to && from && to != from)
            gpp__copy_bytes(run, to, from, p->local[v].exact + gpp__local_lead(&p->local[v]));
    }
}

/* Gradients of an operator's inputs, and, unless the backward is split, of its parameters. */
static gpp_status backward_step(const gpp__program *p, const gpp__action *call, const gpp__run *run,
                                const gpp__cell_io *cell)
{
    int k = call->step;
    const gpp__step *s = &p->step[k];
    const gpp__layer *l = s->layer;
    const int *root = p->way[GPP__PASS_KEEP].root;
    const void *in[GPP__MAX_TENSORS];
    int missing;
    gpp__io io = {.scratch = cell->scratch ? cell->scratch + call->scratch_at : NULL,
                  .accumulate = cell->accumulate};
    bool any = false;
    gather_inputs(p, root, call, cell, in, &missing);
    for (int t = 0; t < l->in_count; t++) {
        io.grad_in[t] = grad_room(p, s->in[t], in[t], cell);
        if (l->op->backward_needs & GPP_NEEDS_INPUT)
            io.in[t] = in[t];
        if (io.grad_in[t] && l->op->zero_grads)
            gpp__zero(run, io.grad_in[t], p->local[s->in[t]].exact);
    }
    for (int t = 0; t < l->out_count; t++) {
        io.grad_out[t] = grad_of(p, s->out[t], cell);
        any |= io.grad_out[t] != NULL;
        if (l->op->backward_needs & GPP_NEEDS_OUTPUT)
            io.out[t] = data_at(p, root, s->out[t], call->at[l->in_count + t], cell);
    }
    if (missing == 0 && l->op->passes_none)
        return GPP_OK;
    if (!any) {
        pass_zeros(p, k, run, cell, &io);
        return GPP_OK;
    }
    if (s->kernel.saved_bytes)
        io.saved = at(cell, call->saved);
    layer_memory(p, k, cell, &io);
    if (s->trains && !p->held)
        io.grads = cell->grads + p->stage->grad_at[k - 1];
    if (s->trains && p->held) {
        bool wanted = false;
        hold(p, k, run, cell);
        for (int t = 0; t < l->in_count; t++)
            wanted |= io.grad_in[t] != NULL;
        if (!wanted)
            return GPP_OK;
    }
    return gpp__stage_kernels(p->stage, l)->backward(&s->kernel, run, &io);
}

/* Gradients of an operator's parameters, from what a split backward has left. */
static gpp_status weight_step(const gpp__program *p, const gpp__action *call, const gpp__run *run,
                              const gpp__cell_io *cell)
{
    int k = call->step, missing;
    const gpp__step *s = &p->step[k];
    const gpp__layer *l = s->layer;
    const int *root = p->way[GPP__PASS_KEEP].root;
    const void *in[GPP__MAX_TENSORS];
    gpp__io io = {.scratch = cell->scratch, .accumulate = cell->accumulate};
    bool any = false;
    gather_inputs(p, root, call, cell, in, &missing);
    for (int t = 0; t < l->in_count; t++)
        if (l->op->backward_needs & GPP_NEEDS_INPUT)
            io.in[t] = in[t];
    for (int t = 0; t < l->out_count; t++) {
        int v = s->out[t];
        io.grad_out[t] = p->local[v].grad ? data_of(&p->local[v], at(cell, p->held[v])) : NULL;
        any |= io.grad_out[t] != NULL;
        if (l->op->backward_needs & GPP_NEEDS_OUTPUT)
            io.out[t] = data_at(p, root, v, call->at[l->in_count + t], cell);
    }
    if (!any || (missing == 0 && l->op->passes_none)) {
        zero_grads(p, k, run, cell);
        return GPP_OK;
    }
    if (s->kernel.saved_bytes)
        io.saved = at(cell, call->saved);
    layer_memory(p, k, cell, &io);
    io.grads = cell->grads + p->stage->grad_at[k - 1];
    return gpp__stage_kernels(p->stage, l)->backward(&s->kernel, run, &io);
}

/* Gradients of what came in: of all of it, or only where none is computed. */
static void clear_inputs(const gpp__program *p, const gpp__run *run, const gpp__cell_io *cell,
                         bool all)
{
    for (int v = 0; v < p->locals; v++) {
        const gpp__local *l = &p->local[v];
        bool float32 = l->value->desc.dtype == GPP_F32;
        char *to = l->in_port >= 0 && float32 ? cell->grad_in[l->in_port] : NULL;
        if (to && (all || !l->grad))
            gpp__zero(run, to, l->exact + gpp__local_lead(l));
    }
}

static gpp_status go_back(const gpp__program *p, const gpp__action *call, const gpp__run *run,
                          const gpp__cell_io *cell)
{
    const gpp__step *s = &p->step[call->step];
    if (!s->active) {
        zero_grads(p, call->step, run, cell);
        return GPP_OK;
    }
    for (int t = 0; s->view && t < s->layer->in_count; t++)
        backward_view(p, call, t, run, cell);
    gpp_status status = s->view ? GPP_OK : backward_step(p, call, run, cell);
    return status == GPP_OK ? GPP_OK : blame(run, s->layer, status, "backward");
}

/* The script's moves from the first backward one on. */
static gpp_status backward_by_script(const gpp__program *p, const gpp__run *run,
                                     const gpp__cell_io *cell)
{
    gpp__run again = *run;
    gpp_status status = GPP_OK;
    again.recomputing = true;
    for (int q = p->phase->split; status == GPP_OK && q < p->phase->calls; q++) {
        const gpp__action *call = &p->phase->call[q];
        if (call->back) {
            status = go_back(p, call, run, cell);
            continue;
        }
        status = forward_step(p, p->way[GPP__PASS_KEEP].root, call, &again, cell);
        if (status != GPP_OK)
            return blame(run, p->step[call->step].layer, status, "recomputation");
    }
    return status;
}

gpp_status gpp__program_backward(const gpp__program *p, const gpp__run *run,
                                 const gpp__cell_io *cell)
{
    gpp__location room[2 * GPP__MAX_TENSORS];
    clear_inputs(p, run, cell, p->empty);
    if (p->empty) {
        for (int k = 1; k <= p->steps; k++)
            zero_grads(p, k, run, cell);
        return GPP_OK;
    }
    if (p->phase)
        return backward_by_script(p, run, cell);
    for (int k = p->steps; k >= 1; k--) {
        gpp__action call = back_of(p, k, room);
        gpp_status status = go_back(p, &call, run, cell);
        if (status != GPP_OK)
            return status;
        note_lap(cell, k);
    }
    return GPP_OK;
}

gpp_status gpp__program_weight(const gpp__program *p, const gpp__run *run, const gpp__cell_io *cell)
{
    gpp__location room[2 * GPP__MAX_TENSORS];
    for (int k = p->steps; k >= 1; k--) {
        const gpp__step *s = &p->step[k];
        if (!s->active || p->empty) {
            zero_grads(p, k, run, cell);
            continue;
        }
        if (!s->trains || s->view)
            continue;
        gpp__action call = back_of(p, k, room);
        gpp_status status = weight_step(p, &call, run, cell);
        if (status != GPP_OK)
            return blame(run, s->layer, status, "backward");
    }
    return GPP_OK;
}
