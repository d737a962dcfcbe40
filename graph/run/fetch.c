/*
 * graph/run/fetch.c: fetches: the caller's tensors on devices that cannot read the caller's memory.
 * StarPU copies the rows of each micro-batch to the device that reads them, while the device
 * computes.
 *
 * A fetch is a tensor for one partition, or one for the loss. Each micro-batch of a fetch has a
 * buffer whose data is the caller's: a launch only tells the buffer's handle where the data is now.
 * Each flight has handles of its own, so the rows of the next step can be copied while this step
 * runs.
 */
#include <stdlib.h>

#include "graph/plan/fetches.h"
#include "graph/run/pipe.h"

/* --- fetching --------------------------------------------------------------------------------- */

/* The tensor of the caller's that a fetch copies. */
static gpp__rows tensor_of(const gpp_pipe *p, const gpp__job *job, const gpp__fetch *f)
{
    if (f->to < p->recipe->partitions)
        return job->x[gpp__model_input(p->recipe, f->to, f->in_port)->producer_slot];
    if (f->in_port == GPP__END_TARGET)
        return job->target;
    if (f->in_port >= GPP__END_GRAD)
        return job->grad_y[f->in_port - GPP__END_GRAD];
    return (gpp__rows){(char *)p->recipe->class_weight, sizeof(float), GPP_ROWS_FIXED,
                       p->recipe->class_weights};
}

static gpp_status fetch_rows(const gpp_pipe *p, const gpp__task_graph *g, const gpp__job *job,
                             const gpp__fetch *f, int slot, gpp__handle *handle, gpp_error *err)
{
    const gpp__rows t = tensor_of(p, job, f);
    int n = p->recipe->partitions,
        replica = f->to < n ? f->to / gpp__recipe_depth(p->recipe) : f->to - n,
        i = replica * gpp__shape_share(&g->step.plan->shape) + slot;
    const gpp__program_set *set =
        i == g->step.plan->shape.micro_batches - 1 ? g->step.last : g->step.full;
    bool fixed = t.batch == GPP_ROWS_FIXED;
    int64_t rows = fixed ? t.rows : set->rows.rows[t.batch],
            row0 = f->whole ? 0 : i * (fixed ? t.rows : g->step.full->rows.rows[t.batch]);
    if (!t.data)
        rows = row0 = 0;
    return gpp__handle_fetch(handle, t.data + (size_t)row0 * t.bytes, (size_t)rows * t.bytes, err);
}

/* A copy may still be under way although no task will read it. */
void gpp__fetches_wait(const gpp__task_graph *g)
{
    for (size_t k = 0; k < g->step.plan->buffers; k++)
        if (g->step.plan->buffer[k].cls == GPP__FETCHED)
            gpp__handle_wait(g->handle[k]);
}

gpp_status gpp__fetches_begin(const gpp_pipe *p, const gpp__task_graph *g, const gpp__job *job,
                              gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (size_t k = 0; k < g->step.plan->buffers && status == GPP_OK; k++) {
        const gpp__buffer *b = &g->step.plan->buffer[k];
        if (b->cls == GPP__FETCHED)
            status = fetch_rows(p, g, job, &g->step.plan->fetch[b->j], b->slot, g->handle[k], err);
    }
    if (status != GPP_OK)
        gpp__fetches_wait(g);
    return status;
}
