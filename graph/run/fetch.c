/*
 * graph/run/fetch.c: the caller's tensors where devices do not reach the caller's memory: inputs and
 * targets are lent to the runtime, which copies each micro-batch's piece to the device that reads
 * it, while that one computes.
 *
 * A fetch is a tensor for one partition, or the target for the losses. Its pieces have buffers of
 * their own, whose home is where the caller has the data: a launch only says where that is now.
 * Each turn of flights has its own, so the next step's pieces can be on their way while this one
 * runs.
 */
#include <stdlib.h>

#include "graph/plan/fetches.h"
#include "graph/run/pipe.h"

/* --- lending ---------------------------------------------------------------------------------- */

/* The tensor of a fetch. */
static gpp__rows tensor_of(const gpp_pipe *p, const gpp__job *job, const gpp__fetch *l)
{
    if (l->to < p->recipe->partitions)
        return job->x[gpp__model_input(p->recipe, l->to, l->in_port)->producer_slot];
    if (l->in_port == GPP__END_TARGET)
        return job->target;
    if (l->in_port >= GPP__END_GRAD)
        return job->grad_y[l->in_port - GPP__END_GRAD];
    return (gpp__rows){(char *)p->recipe->class_weight, sizeof(float), GPP_ROWS_FIXED,
                       p->recipe->class_weights};
}

static gpp_status lend_piece(const gpp_pipe *p, const gpp__task_graph *g, const gpp__job *job,
                             const gpp__fetch *l, int i, gpp__handle *handle, gpp_error *err)
{
    const gpp__rows t = tensor_of(p, job, l);
    const gpp__program_set *set =
        i == g->step.plan->shape.micro_batches - 1 ? g->step.last : g->step.full;
    bool fixed = t.batch == GPP_ROWS_FIXED;
    int64_t rows = fixed ? t.rows : set->rows.rows[t.batch],
            row0 = l->whole ? 0 : i * (fixed ? t.rows : g->step.full->rows.rows[t.batch]);
    if (!t.data)
        rows = row0 = 0;
    return gpp__handle_fetch(handle, t.data + (size_t)row0 * t.bytes, (size_t)rows * t.bytes, err);
}

/* What no task asks for any more may still be on its way. */
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
            status = lend_piece(p, g, job, &g->step.plan->fetch[b->j], b->slot, g->handle[k], err);
    }
    if (status != GPP_OK)
        gpp__fetches_wait(g);
    return status;
}
