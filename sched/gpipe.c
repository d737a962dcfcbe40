/*
 * sched/gpipe.c: the GPipe schedule: all forwards by ascending micro-batch, then all backwards by
 * descending one, each after its recompute if it is checkpointed.
 * Huang et al., "GPipe", arXiv 1811.06965, figure 2c; recompute as in Kim et al., "torchgpipe",
 * arXiv 2004.09910. R(i, j) comes right after the partition's previous backward: it runs while its
 * gradient is still on the way, and only one recomputed micro-batch of a partition is alive. Where
 * backwards are split, each W follows its B.
 *
 * Each partition has an order of its own, which never changes. A device with one partition has just
 * that order. Where several partitions share a device, their orders are woven together: of the next
 * tasks of its partitions that are ready, an idle device takes the one that GPipe prefers. Forwards
 * come before backwards, backwards before norms, norms before updates. Within a phase the order of
 * its micro-batches counts, then the direction in which the phase goes through the partitions.
 */
#include "sched/weave.h"

/* The k-th micro-batch to go back; also the place k of micro-batch i, as the map is its own
 * inverse. */
static int nth_back(const gpp__step_shape *s, int k)
{
    return s->ascending ? k : s->micro_batches - 1 - k;
}

static void fill(gpp__orders *o, const gpp__step_shape *s, int j)
{
    for (int i = 0; i < s->micro_batches && s->forward; i++)
        gpp__orders_put_forward(o, s, i, j);
    for (int k = 0; k < s->micro_batches && s->backward; k++) {
        gpp__orders_put_backward(o, s, nth_back(s, k), j);
        gpp__orders_put_weight(o, s, nth_back(s, k), j);
    }
    gpp__orders_put_end(o, s, j);
}

static uint64_t preference(const gpp__step_shape *s, const gpp__entry *e)
{
    uint64_t phase, turn, across = (uint64_t)(s->partitions - 1 - e->j);
    if (e->kind == GPP__NORM || e->kind == GPP__UPDATE) {
        phase = e->kind == GPP__NORM ? 2 : 3;
        turn = 0;
    } else if (e->kind == GPP__FORWARD || e->kind == GPP__OUTPUT || !s->backward) {
        phase = 0;
        turn = (uint64_t)e->i;
        across = (uint64_t)e->j;
    } else {
        phase = 1;
        turn = (uint64_t)nth_back(s, e->i);
    }
    return phase << 62 | turn << 31 | across;
}

static gpp_status generate(const gpp__schedule *self, const gpp__step_shape *shape,
                           gpp__table *table, gpp_error *err)
{
    gpp__orders orders;
    (void)self;
    *table = (gpp__table){0};
    gpp_status status = gpp__shape_check(shape, err);
    if (status == GPP_OK)
        status = gpp__orders_init(&orders, shape, err);
    if (status != GPP_OK)
        return status;
    for (int j = 0; j < shape->partitions; j++)
        fill(&orders, shape, j);
    status = gpp__orders_weave(&orders, shape, preference, table, NULL, err);
    gpp__orders_release(&orders);
    return status;
}

gpp_status gpp__gpipe_ascending(const gpp__step_shape *shape, gpp__table *table, gpp_error *err)
{
    gpp__step_shape ascending = *shape;
    ascending.ascending = true;
    return gpp__schedule_gpipe.generate(&gpp__schedule_gpipe, &ascending, table, err);
}

const gpp__schedule gpp__schedule_gpipe = {
    .name = "gpipe",
    .about = "all forwards, then all backwards",
    .generate = generate,
};
