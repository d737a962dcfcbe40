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

#include "graph/run/pipe.h"

/* Whether the runtime has to bring data to the device. */
static bool is_far(const gpp_pipe *p, int j)
{
    return p->stage[j].cuda && p->node_of[p->device_of[j]] != STARPU_MAIN_RAM;
}

static const gpp__value *input_of(const gpp_pipe *p, int j, int k)
{
    const gpp__value *v = &p->network->value[p->stage[j].in[k]];
    return v->producer == GPP__CALLER ? v : NULL;
}

int gpp__fetches_most(const gpp_pipe *p)
{
    return p->network->inputs + GPP__END_GRAD + p->network->outputs;
}

static size_t bytes_of(const gpp__desc *d, const gpp__desc *rows_of, const gpp__program_set *set)
{
    size_t bytes = (size_t)gpp__desc_rows(rows_of, set->rows.rows) * gpp__desc_bytes(d);
    return bytes ? bytes : 1; /* without rows it is still a buffer */
}

static size_t most_bytes(const gpp__desc *d, const gpp__desc *rows_of, const gpp__program_set *full,
                         const gpp__program_set *last)
{
    size_t a = bytes_of(d, rows_of, full), b = bytes_of(d, rows_of, last);
    return a > b ? a : b;
}

/* Of losses and seeds. */
static int find_ends(const gpp_pipe *p, const gpp__program_set *full, const gpp__program_set *last,
                     gpp__fetch fetch[])
{
    int count = 0, to = p->partitions;
    if (p->loss)
        fetch[count++] = (gpp__fetch){.to = to,
                                      .in_port = GPP__END_TARGET,
                                      .bytes = most_bytes(&p->target_desc, &p->y_desc, full, last)};
    if (p->class_weight)
        fetch[count++] = (gpp__fetch){.to = to,
                                      .in_port = GPP__END_WEIGHTS,
                                      .bytes = (size_t)p->class_weights * sizeof(float),
                                      .whole = true};
    for (int k = 0; k < p->network->outputs; k++) {
        const gpp__desc *d = &p->network->value[p->network->output[k]].desc;
        fetch[count++] = (gpp__fetch){
            .to = to, .in_port = GPP__END_GRAD + k, .bytes = most_bytes(d, d, full, last)};
    }
    return count;
}

int gpp__fetches_find(const gpp_pipe *p, const gpp__program_set *full, const gpp__program_set *last,
                      gpp__fetch fetch[])
{
    int count = 0, end = p->partitions - 1;
    for (int j = 0; j <= end; j++) {
        const gpp__port *port = gpp__program_get_info(full->program[j])->in;
        for (int k = 0; is_far(p, j) && k < p->stage[j].ins; k++) {
            const gpp__value *v = input_of(p, j, k);
            if (v)
                fetch[count++] = (gpp__fetch){.to = j,
                                              .in_port = k,
                                              .bytes = most_bytes(&v->desc, &v->desc, full, last),
                                              .whole = v->desc.batch == GPP_ROWS_FIXED,
                                              .backward_reads = port[k].backward_reads,
                                              .recompute_reads = port[k].recompute_reads};
        }
    }
    return is_far(p, end) ? count + find_ends(p, full, last, fetch + count) : count;
}

/* --- lending ---------------------------------------------------------------------------------- */

/* The tensor of a fetch. */
static gpp__rows tensor_of(const gpp_pipe *p, const gpp__job *job, const gpp__fetch *l)
{
    if (l->to < p->partitions)
        return job->x[input_of(p, l->to, l->in_port)->producer_slot];
    if (l->in_port == GPP__END_TARGET)
        return job->target;
    if (l->in_port >= GPP__END_GRAD)
        return job->grad_y[l->in_port - GPP__END_GRAD];
    return (gpp__rows){(char *)p->class_weight, sizeof(float), GPP_ROWS_FIXED, p->class_weights};
}

static gpp_status lend_piece(const gpp_pipe *p, const gpp__task_graph *e, const gpp__job *job,
                             const gpp__fetch *l, int i, gpp__handle *block, gpp_error *err)
{
    const gpp__rows t = tensor_of(p, job, l);
    const gpp__program_set *set = i == e->plan->shape.micro_batches - 1 ? e->last : e->full;
    bool fixed = t.batch == GPP_ROWS_FIXED;
    int64_t rows = fixed ? t.rows : set->rows.rows[t.batch],
            row0 = l->whole ? 0 : i * (fixed ? t.rows : e->full->rows.rows[t.batch]);
    if (!t.data)
        rows = row0 = 0;
    return gpp__handle_fetch(block, t.data + (size_t)row0 * t.bytes, (size_t)rows * t.bytes, err);
}

/* What no task asks for any more may still be on its way. */
void gpp__fetches_wait(const gpp__task_graph *e)
{
    for (size_t k = 0; k < e->plan->buffers; k++)
        if (e->plan->buffer[k].cls == GPP__FETCHED)
            gpp__handle_wait(e->block[k]);
}

gpp_status gpp__fetches_begin(const gpp_pipe *p, const gpp__task_graph *e, const gpp__job *job,
                              gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (size_t k = 0; k < e->plan->buffers && status == GPP_OK; k++) {
        const gpp__buffer *b = &e->plan->buffer[k];
        if (b->cls == GPP__FETCHED)
            status = lend_piece(p, e, job, &e->plan->fetch[b->j], b->slot, e->block[k], err);
    }
    if (status != GPP_OK)
        gpp__fetches_wait(e);
    return status;
}
