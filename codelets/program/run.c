/*
 * codelets/program/run.c: running a pass: its list of actions, one after the other.
 */
#include "codelets/move.h"
#include "codelets/program/internal.h"

/** An action that runs, and what it runs with. */
typedef struct call {
    const gpp__program *p;
    const gpp__action *a;
    const gpp__instruction *op;
    const gpp__run *run;
    const gpp__cell_io *cell;
} call;

/* --- addresses -------------------------------------------------------------------------------- */

static char *area_of(const gpp__cell_io *cell, gpp__location at)
{
    switch ((gpp__area)at.area) {
    case GPP__AREA_IN:
        return (char *)cell->in[at.port];
    case GPP__AREA_OUT:
        return cell->out[at.port];
    case GPP__AREA_GRAD_IN:
        return cell->grad_in[at.port];
    case GPP__AREA_GRAD_OUT:
        return (char *)cell->grad_out[at.port];
    case GPP__AREA_TAPE:
        return cell->tape;
    case GPP__AREA_PARTIAL:
        return cell->partial;
    case GPP__AREA_DEFERRED:
        return cell->deferred;
    case GPP__AREA_SCRATCH:
        return cell->scratch;
    case GPP__AREA_GRADS:
        return cell->grads;
    case GPP__AREA_STATS:
        return cell->stats;
    case GPP__AREA_NONE:
        break;
    }
    return NULL;
}

/* Where the tensor is, or its head. NULL: it is not there, or not wanted. */
static char *address(const call *c, gpp__location at)
{
    char *area = area_of(c->cell, at);
    return area ? area + at.offset : NULL;
}

static void set_present(char *head, bool present)
{
    *(int64_t *)head = present;
}

/* The tensor's data; NULL when there is none or it is absent. */
static char *data(const call *c, gpp__location at)
{
    char *base = address(c, at);
    if (!base || !at.head)
        return base;
    return *(const int64_t *)base ? base + GPP__HEAD : NULL;
}

/* Room for the gradient of an input, which is as absent as the input. */
static char *room(const call *c, gpp__location at, bool present)
{
    char *base = address(c, at);
    if (!base || !at.head)
        return base;
    set_present(base, present);
    return present ? base + GPP__HEAD : NULL;
}

static const gpp__location *input(const call *c, int t)
{
    return &c->a->at[t];
}
static const gpp__location *output(const call *c, int t)
{
    return &c->a->at[c->op->layer->in_count + t];
}
static const gpp__location *grad_in(const call *c, int t)
{
    return &c->a->at[gpp__tensors(c->op) + t];
}
static const gpp__location *grad_out(const call *c, int t)
{
    return &c->a->at[gpp__tensors(c->op) + c->op->layer->in_count + t];
}

/* Bytes of input `t`, and of its gradient. */
static size_t input_bytes(const call *c, int t)
{
    return c->p->local[c->op->in[t]].exact;
}

/* --- failures --------------------------------------------------------------------------------- */

/* The skip that is popped as input `t`; NULL: that input is none. */
static const gpp__skip *popped_as(const gpp__layer *l, int t)
{
    int pop = t - (l->in_count - l->pops);
    for (int k = 0; pop >= 0 && k < l->skips; k++)
        if (!l->skip[k].stash && pop-- == 0)
            return &l->skip[k];
    return NULL;
}

static gpp_status refuse_none(const call *c, int t)
{
    const gpp__layer *l = c->op->layer;
    const gpp__skip *skip = popped_as(l, t);
    return gpp__fail_layer(c->run->err, GPP_EINVAL, l->index,
                           "%s (layer %d, \"%s\"): nothing was stashed%s%s%s for micro-batch %d, "
                           "and it cannot do without",
                           l->op->name, l->index, l->label, skip ? " as \"" : "",
                           skip ? skip->name : "", skip ? "\"" : "", c->run->micro_batch);
}

/* Makes sure that a failure names its layer and says something. */
static gpp_status blame(const call *c, gpp__pass pass, gpp_status status)
{
    const gpp__layer *l = c->op->layer;
    bool back = c->a->verb == GPP__ACT_BACKWARD || c->a->verb == GPP__ACT_SUM;
    const char *what = back ? "backward" : pass < GPP__PASS_RECOMPUTE ? "forward" : "recomputation";
    gpp_error *err = c->run->err;
    if (err && err->code == GPP_OK)
        gpp__fail_layer(err, status, l->index, "%s (layer %d, \"%s\"): %s failed: %s", l->op->name,
                        l->index, l->label, what, gpp_status_text(status));
    else if (err && err->layer < 0)
        err->layer = l->index;
    return status;
}

/* --- forward ---------------------------------------------------------------------------------- */

static gpp__io io_of(const call *c)
{
    const gpp__stage *stage = c->p->stage;
    int k = c->a->k - 1;
    gpp__io io = {.scratch = c->cell->scratch ? c->cell->scratch + c->a->scratch_at : NULL,
                  .saved = address(c, c->a->saved)};
    if (c->op->layer->param_count)
        io.params = c->cell->params + stage->param_at[k];
    if (stage->store[k].packed_bytes)
        io.packed = c->cell->params + stage->packed_at[k];
    return io;
}

/* Returns an input that is absent, -1: none is. */
static int gather_inputs(const call *c, const void *in[])
{
    int missing = -1;
    for (int t = 0; t < c->op->layer->in_count; t++) {
        in[t] = data(c, *input(c, t));
        if (!in[t] && input(c, t)->head)
            missing = t;
    }
    return missing;
}

static void mark_outputs(const call *c, uint32_t absent)
{
    for (int t = 0; t < c->op->layer->out_count; t++)
        if (output(c, t)->head)
            set_present(address(c, *output(c, t)), !(absent >> t & 1));
}

static gpp_status run_forward(const call *c)
{
    const gpp__layer *l = c->op->layer;
    uint32_t absent = 0;
    gpp__io io = io_of(c);
    int missing = gather_inputs(c, io.in);
    io.absent = &absent;
    if (missing >= 0 && !l->op->takes_none && !l->op->passes_none)
        return refuse_none(c, missing);
    if (missing == 0 && l->op->passes_none) {
        mark_outputs(c, 1);
        return GPP_OK;
    }
    for (int t = 0; t < l->out_count; t++) {
        char *base = address(c, *output(c, t));
        io.out[t] = base && output(c, t)->head ? base + GPP__HEAD : base;
    }
    if (c->cell->stats && c->op->records && c->run->training && !c->run->recomputing)
        io.stats = c->cell->stats + c->p->stage->stats_at[c->a->k - 1];
    gpp_status status = gpp__stage_kernels(c->p->stage, l)->forward(&c->op->kernel, c->run, &io);
    if (status == GPP_OK)
        mark_outputs(c, absent);
    return status;
}

/* --- backward --------------------------------------------------------------------------------- */

/* The gradient of input `t` of a view is the sum of those of the outputs that are this input, in
 * their order. */
static void sum_gradients(const call *c, int t)
{
    size_t bytes = input_bytes(c, t);
    char *sum = room(c, *grad_in(c, t), data(c, *input(c, t)) != NULL);
    bool begun = false;
    for (int o = 0; sum && o < c->op->layer->out_count; o++) {
        char *part = gpp__view_source(c->op->layer, o) == t ? data(c, *grad_out(c, o)) : NULL;
        if (!part)
            continue;
        if (begun)
            gpp__add_floats(c->run, (float *)sum, (const float *)part,
                            (int64_t)(bytes / sizeof(float)));
        else if (part != sum)
            gpp__copy_bytes(c->run, sum, part, bytes);
        begun = true;
    }
    if (sum && !begun)
        gpp__zero(c->run, sum, bytes);
}

static gpp_status run_sum(const call *c)
{
    for (int t = 0; t < c->op->layer->in_count; t++)
        sum_gradients(c, t);
    return GPP_OK;
}

/* The gradients of what the operator has given are all zero, or nobody has asked for them. */
static void pass_zeros(const call *c, const gpp__io *io)
{
    int k = c->a->k - 1;
    if (c->a->params && !c->cell->accumulate && c->cell->grads)
        gpp__zero(c->run, c->cell->grads + c->p->stage->grad_at[k],
                  c->p->stage->store[k].grad_bytes);
    for (int t = 0; t < c->op->layer->in_count; t++)
        if (io->grad_in[t])
            gpp__zero(c->run, io->grad_in[t], input_bytes(c, t));
}

/* Fills in the gradients. Returns whether any comes back; `wanted`: whether any is to be made. */
static bool gather_gradients(const call *c, const void *in[], gpp__io *io, bool *wanted)
{
    const gpp__layer *l = c->op->layer;
    bool any = false;
    *wanted = c->a->params;
    for (int t = 0; t < l->in_count; t++) {
        io->grad_in[t] = room(c, *grad_in(c, t), in[t] != NULL);
        *wanted |= io->grad_in[t] != NULL;
        if (io->grad_in[t] && l->op->zero_grads)
            gpp__zero(c->run, io->grad_in[t], input_bytes(c, t));
    }
    for (int t = 0; t < l->out_count; t++) {
        io->grad_out[t] = data(c, *grad_out(c, t));
        any |= io->grad_out[t] != NULL;
    }
    return any;
}

static gpp_status run_backward(const call *c)
{
    const gpp__layer *l = c->op->layer;
    const void *in[GPP__MAX_TENSORS];
    gpp__io io = io_of(c);
    int missing = gather_inputs(c, in);
    io.accumulate = c->cell->accumulate;
    bool wanted, any = gather_gradients(c, in, &io, &wanted);
    bool passed = missing == 0 && l->op->passes_none; /* nothing came in, so nothing went out */
    if (!any || passed) {
        pass_zeros(c, &io);
        return GPP_OK;
    }
    for (int t = 0; t < l->in_count && (l->op->backward_needs & GPP_NEEDS_INPUT); t++)
        io.in[t] = in[t];
    for (int t = 0; t < l->out_count && (l->op->backward_needs & GPP_NEEDS_OUTPUT); t++)
        io.out[t] = data(c, *output(c, t));
    if (c->a->params)
        io.grads = c->cell->grads + c->p->stage->grad_at[c->a->k - 1];
    if (c->op->trains && !wanted)
        return GPP_OK;
    return gpp__stage_kernels(c->p->stage, l)->backward(&c->op->kernel, c->run, &io);
}

/* --- copies and zeros ------------------------------------------------------------------------- */

static gpp_status run_copy(const call *c)
{
    const gpp__location *from = &c->a->at[0];
    const char *source = data(c, *from);
    char *to = address(c, c->a->at[1]);
    if (to && !source && from->head)
        return refuse_none(c, c->op->layer->in_count - 1);
    if (to && source)
        gpp__copy_bytes(c->run, to, source, c->a->bytes);
    return GPP_OK;
}

/* Gradients of parameters add up: only the first micro-batch sets them. */
static gpp_status run_zero(const call *c)
{
    char *at = address(c, c->a->at[0]);
    if (at && !(c->a->at[0].area == GPP__AREA_GRADS && c->cell->accumulate))
        gpp__zero(c->run, at, c->a->bytes);
    return GPP_OK;
}

/* --- passes ----------------------------------------------------------------------------------- */

gpp_status gpp__program_run(const gpp__program *p, gpp__pass pass, const gpp__run *run,
                            const gpp__cell_io *cell)
{
    static gpp_status (*const act[GPP__ACTS])(const call *c) = {[GPP__ACT_FORWARD] = run_forward,
                                                                [GPP__ACT_BACKWARD] = run_backward,
                                                                [GPP__ACT_SUM] = run_sum,
                                                                [GPP__ACT_COPY] = run_copy,
                                                                [GPP__ACT_ZERO] = run_zero};
    const gpp__list *list = &p->list[pass];
    gpp__run again = *run; /* for forwards, which after the first time must have no side effects */
    again.recomputing |= pass >= GPP__PASS_RECOMPUTE;
    for (int q = 0; q < list->actions; q++) {
        const gpp__action *a = &list->action[q];
        const call c = {p, a, &p->instruction[a->k], a->verb == GPP__ACT_FORWARD ? &again : run,
                        cell};
        gpp_status status = act[a->verb](&c);
        if (status != GPP_OK)
            return blame(&c, pass, status);
        bool last = q + 1 == list->actions || list->action[q + 1].k != a->k;
        if (cell->lap && a->k && last)
            cell->lap(cell->laps, a->k - 1);
    }
    return GPP_OK;
}
