/*
 * sched/one_f_one_b.c: 1F1B: as many forwards as it takes until the first gradient comes back, then
 * one forward and one backward in turns, then the backwards that are left, all by ascending
 * micro-batch. Narayanan et al., "Memory-efficient pipeline-parallel DNN training"
 * (PipeDream-flush), arXiv 2006.09503; Narayanan et al., "Efficient large-scale language model
 * training on GPU clusters using Megatron-LM", arXiv 2104.04473, section 2.2.1. Partition j of n
 * never has more than n - j micro-batches between forward and backward, where GPipe has all m. With
 * balanced partitions a step takes as long as GPipe's, (m + n - 1)(F + B).
 *
 * A recompute comes right before its backward and after the forward before that: the next partition
 * waits for the forward, and the recompute runs while the gradient is on its way.
 *
 * Where partitions share a device, backwards go first, because they free memory.
 */
#include "sched/weave.h"

/* The W of a recomputed micro-batch comes at once: the next recompute needs the buffer of its
 * tape. */
static void put_backward(gpp__orders *o, const gpp__step_shape *s, int i, int j, int lag)
{
    gpp__orders_put_backward(o, s, i, j);
    if (i < s->checkpointed)
        gpp__orders_put_weight(o, s, i, j);
    else if (i - lag >= s->checkpointed)
        gpp__orders_put_weight(o, s, i - lag, j);
}

static void fill(gpp__orders *o, const gpp__step_shape *s, int j, int in_flight, int lag)
{
    int m = s->micro_batches, ahead = (in_flight < m ? in_flight : m) - 1;
    for (int i = 0; i < m + ahead; i++) {
        if (i < m)
            gpp__orders_put_forward(o, s, i, j);
        if (i >= ahead)
            put_backward(o, s, i - ahead, j, lag);
    }
    int late = m - lag > s->checkpointed ? m - lag : s->checkpointed;
    for (int i = late; i < m; i++)
        gpp__orders_put_weight(o, s, i, j);
    gpp__orders_put_end(o, s, j);
}

static uint64_t preference(const gpp__step_shape *s, const gpp__entry *e)
{
    uint64_t n = (uint64_t)s->partitions, turn = (uint64_t)(e->i + 1),
             across = n - 1 - (uint64_t)e->j;
    switch (e->kind) {
    case GPP__FORWARD:
    case GPP__OUTPUT:
        return UINT64_C(1) << 62 | turn << 31 | (uint64_t)e->j;
    case GPP__WEIGHT:
        return UINT64_C(2) << 62 | turn << 31 | across;
    case GPP__NORM:
        return UINT64_C(3) << 62 | across;
    case GPP__UPDATE:
        return UINT64_C(3) << 62 | (n + across);
    default:
        return turn << 31 | across;
    }
}

gpp_status gpp__one_f_one_b(const gpp__step_shape *shape, gpp__number_of *in_flight,
                            gpp__number_of *lag, gpp__table *table, double *end, gpp_error *err)
{
    gpp__orders orders;
    *table = (gpp__table){0};
    gpp_status status = gpp__shape_check(shape, err);
    if (status == GPP_OK)
        status = gpp__orders_init(&orders, shape, err);
    if (status != GPP_OK)
        return status;
    for (int j = 0; j < shape->partitions; j++)
        fill(&orders, shape, j, in_flight(shape, j), lag ? lag(shape, j) : 0);
    status = gpp__orders_weave(&orders, shape, preference, table, end, err);
    gpp__orders_release(&orders);
    return status;
}

int gpp__partitions_from(const gpp__step_shape *s, int j)
{
    return s->partitions - j;
}

static gpp_status generate(const gpp__schedule *self, const gpp__step_shape *shape,
                           gpp__table *table, gpp_error *err)
{
    (void)self;
    if (!gpp__shape_is_whole(shape))
        return gpp__gpipe_ascending(shape, table, err);
    return gpp__one_f_one_b(shape, gpp__partitions_from, NULL, table, NULL, err);
}

const gpp__schedule gpp__schedule_1f1b = {
    .name = "1f1b",
    .about = "forwards and backwards in turns: GPipe's time, memory for n - j micro-batches",
    .ascending = true,
    .generate = generate,
};
