/* codelets/program.c: making a program's steps and running them. Placing their tensors is
 * program_build.c's. */
#include "codelets/program_internal.h"

#include <stdlib.h>
#include <string.h>

/* --- changes of layout at the model's two ends, as operators of their own
 * ------------------------------------------ */

static gpp_status to_last_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    gpp__to_channels_last(run->pool, &k->layer->in[0], k->rows, io->in[0], io->out[0]);
    return GPP_OK;
}
static gpp_status to_last_backward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    if (io->grad_in[0])
        gpp__to_channels_first(run->pool, &k->layer->in[0], k->rows, io->grad_out[0],
                               io->grad_in[0]);
    return GPP_OK;
}
static gpp_status to_first_forward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    gpp__to_channels_first(run->pool, &k->layer->in[0], k->rows, io->in[0], io->out[0]);
    return GPP_OK;
}
static gpp_status to_first_backward(const gpp__kernel *k, const gpp__run *run, const gpp__io *io)
{
    if (io->grad_in[0])
        gpp__to_channels_last(run->pool, &k->layer->in[0], k->rows, io->grad_out[0],
                              io->grad_in[0]);
    return GPP_OK;
}

static const gpp_op op_to_last = {.name = "channels_last",
                                  .infer = gpp__infer_same,
                                  .forward = to_last_forward,
                                  .backward = to_last_backward};
static const gpp_op op_to_first = {.name = "channels_first",
                                   .infer = gpp__infer_same,
                                   .forward = to_first_forward,
                                   .backward = to_first_backward};

/* --- making
 * --------------------------------------------------------------------------------------------------------
 */

size_t gpp__boundary_bytes(const gpp__desc *tensor, int count, int64_t rows, size_t offset[])
{
    size_t at = 0;
    for (int t = 0; t < count; t++) {
        if (offset)
            offset[t] = at;
        at += gpp__align(gpp__desc_bytes(&tensor[t]) * (size_t)rows);
    }
    return at;
}

static bool changes_layout(const gpp__desc *d, int count)
{
    return count == 1 && d->dtype == GPP_F32 && !gpp__layout_free(d);
}

static void add_layout_step(gpp__program *p, int end, const gpp_op *op, const gpp__desc *d,
                            int index)
{
    gpp__layer *l = &p->end_layer[end];
    *l = (gpp__layer){.op = op, .index = index, .in_count = 1, .out_count = 1};
    l->in[0] = l->out[0] = *d;
    p->step[++p->steps] = (gpp__step){.layer = l, .in_stage = -1};
}

/** Steps 1 … steps: the stage's layers, with a change of layout before or behind them at the
 * model's ends. */
static void list_steps(gpp__program *p)
{
    const gpp__stage *s = p->stage;
    const gpp__layer *first = &s->layer[0], *last = &s->layer[s->count - 1];
    if (s->model_input && changes_layout(first->in, first->in_count))
        add_layout_step(p, 0, &op_to_last, &first->in[0], first->index);
    for (int k = 0; k < s->count; k++)
        p->step[++p->steps] = (gpp__step){.layer = &s->layer[k], .in_stage = k};
    if (s->model_output && changes_layout(last->out, last->out_count))
        add_layout_step(p, 1, &op_to_first, &last->out[0], last->index);
}

static gpp_status prepare_step(gpp__program *p, gpp__step *step, gpp_error *err)
{
    const gpp_op *op = step->layer->op;
    step->view = op->is_view && op->is_view(step->layer);
    step->passes = step->view || (op->passes_in_eval && op->passes_in_eval(step->layer));
    step->kernel = (gpp__kernel){.layer = step->layer, .rows = p->rows, .threads = p->threads};
    step->kernel.store = step->in_stage < 0 ? NULL : &p->stage->store[step->in_stage];
    if (step->view || p->rows == 0 || !op->prepare)
        return GPP_OK;
    gpp_status status = op->prepare(&step->kernel, err);
    step->prepared = status == GPP_OK;
    return status;
}

gpp_status gpp__program_new(gpp__program **program, const gpp__stage *stage, int64_t rows,
                            int threads, bool grad_input, gpp_error *err)
{
    *program = NULL;
    gpp__program *p = calloc(1, sizeof *p);
    if (!p)
        return gpp__fail(err, GPP_ENOMEM, "a program of %d layers", stage->count);
    p->stage = stage;
    p->rows = rows;
    p->threads = threads;
    p->grad_input = grad_input;
    p->step = calloc((size_t)stage->count + 3, sizeof *p->step);
    gpp_status status = GPP_ENOMEM;
    if (!p->step) {
        gpp__fail(err, status, "a program of %d layers", stage->count);
        goto free_program;
    }
    list_steps(p);
    for (int k = 1; k <= p->steps; k++) {
        status = prepare_step(p, &p->step[k], err);
        if (status != GPP_OK)
            goto free_program;
    }
    status = gpp__program_place(p, err);
    if (status != GPP_OK)
        goto free_program;
    *program = p;
    return GPP_OK;
free_program:
    gpp__program_free(p);
    return status;
}

void gpp__program_free(gpp__program *p)
{
    if (!p)
        return;
    for (int k = 1; k <= p->steps; k++)
        if (p->step[k].prepared && p->step[k].layer->op->release)
            p->step[k].layer->op->release(&p->step[k].kernel);
    for (int w = 0; w < GPP__PASSES; w++) {
        free(p->way[w].value);
        free(p->way[w].runs);
        free(p->way[w].copies);
        free(p->way[w].scratch_at);
    }
    free(p->kept);
    free(p->grad);
    free(p->step);
    free(p);
}

const gpp__program_info *gpp__program_get_info(const gpp__program *p)
{
    return &p->info;
}

/* --- running
 * -------------------------------------------------------------------------------------------------------
 */

static char *block_of(const gpp__cell_io *io, gpp__block block)
{
    switch (block) {
    case GPP__AT_IN:
        return (char *)io->in;
    case GPP__AT_OUT:
        return io->out;
    case GPP__AT_TAPE:
        return io->tape;
    case GPP__AT_SCRATCH:
        return io->scratch;
    case GPP__AT_GRAD_OUT:
        return (char *)io->grad_out;
    case GPP__AT_GRAD_IN:
        return io->grad_in;
    case GPP__AT_NOWHERE:
        break;
    }
    return NULL;
}

static char *at(const gpp__cell_io *io, gpp__place place)
{
    char *base = block_of(io, place.block);
    return base ? base + place.offset : NULL;
}

/** Pointers to the tensors of value `k`, whose block begins at `base` (NULL: all NULL). */
static void tensors_of(const gpp__program *p, int k, const gpp__desc *desc, int count, char *base,
                       bool floats_only, void *out[])
{
    for (int t = 0; t < count; t++)
        out[t] = base && (!floats_only || desc[t].dtype == GPP_F32) ? base + p->step[k].tensor_at[t]
                                                                    : NULL;
}

static void layer_memory(const gpp__program *p, const gpp__step *s, const gpp__cell_io *cell,
                         gpp__io *io)
{
    if (s->in_stage < 0)
        return;
    const gpp__stage *stage = p->stage;
    io->params = cell->params + stage->param_at[s->in_stage];
    if (s->kernel.store->packed_bytes)
        io->packed = cell->params + stage->packed_at[s->in_stage];
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

/** A view's tensor, exactly: an end may be the caller's memory, which is not rounded up. */
static void copy_view(const gpp__program *p, const gpp__step *s, const char *from, char *to)
{
    if (to)
        memcpy(to, from, (size_t)p->rows * gpp__desc_bytes(&s->layer->out[0]));
}

gpp_status gpp__program_forward(const gpp__program *p, gpp__pass pass, const gpp__run *run,
                                const gpp__cell_io *cell)
{
    if (p->rows == 0)
        return GPP_OK;
    const gpp__way *way = &p->way[pass];
    bool keeps = pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE;
    for (int k = 1; k <= p->steps; k++) {
        const gpp__step *s = &p->step[k];
        const gpp__layer *l = s->layer;
        if (way->copies[k])
            copy_view(p, s, at(cell, way->value[k - 1]), at(cell, way->value[k]));
        if (!way->runs[k])
            continue;
        gpp__io io = {.scratch = cell->scratch ? cell->scratch + way->scratch_at[k] : NULL};
        tensors_of(p, k - 1, l->in, l->in_count, at(cell, way->value[k - 1]), false,
                   (void **)io.in);
        tensors_of(p, k, l->out, l->out_count, at(cell, way->value[k]), false, io.out);
        if (keeps && s->active && s->kernel.saved_bytes)
            io.saved = cell->tape + s->saved_at;
        layer_memory(p, s, cell, &io);
        gpp_status status = l->op->forward(&s->kernel, run, &io);
        if (status != GPP_OK)
            return blame(run, l, status, pass == GPP__PASS_RECOMPUTE ? "recomputation" : "forward");
    }
    return GPP_OK;
}

static gpp_status backward_step(const gpp__program *p, int k, const gpp__run *run,
                                const gpp__cell_io *cell)
{
    const gpp__step *s = &p->step[k];
    const gpp__layer *l = s->layer;
    gpp__io io = {.scratch = cell->scratch ? cell->scratch + s->backward_scratch_at : NULL,
                  .accumulate = cell->accumulate};
    if (l->op->backward_needs & GPP_NEEDS_INPUT)
        tensors_of(p, k - 1, l->in, l->in_count, at(cell, p->kept[k - 1]), false, (void **)io.in);
    if (l->op->backward_needs & GPP_NEEDS_OUTPUT)
        tensors_of(p, k, l->out, l->out_count, at(cell, p->kept[k]), false, io.out);
    if (s->kernel.saved_bytes)
        io.saved = cell->tape + s->saved_at;
    tensors_of(p, k, l->out, l->out_count, at(cell, p->grad[k]), true, (void **)io.grad_out);
    if (s->wants)
        tensors_of(p, k - 1, l->in, l->in_count, at(cell, p->grad[k - 1]), true, io.grad_in);
    layer_memory(p, s, cell, &io);
    if (s->in_stage >= 0 && l->param_count)
        io.grads = cell->grads + p->stage->grad_at[s->in_stage];
    gpp_status status = l->op->backward(&s->kernel, run, &io);
    return status == GPP_OK ? GPP_OK : blame(run, l, status, "backward");
}

gpp_status gpp__program_backward(const gpp__program *p, const gpp__run *run,
                                 const gpp__cell_io *cell)
{
    if (p->rows == 0) {
        if (!cell->accumulate && cell->grads)
            memset(cell->grads, 0, p->stage->grads_bytes);
        return GPP_OK;
    }
    for (int k = p->steps; k >= 1; k--) {
        const gpp__step *s = &p->step[k];
        if (!s->active)
            break; /* nothing before it learns either */
        if (s->copies_grad)
            copy_view(p, s, at(cell, p->grad[k]), at(cell, p->grad[k - 1]));
        if (s->view)
            continue;
        gpp_status status = backward_step(p, k, run, cell);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}
