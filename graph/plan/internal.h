/*
 * graph/plan/internal.h: what the files that make a plan share.
 *
 *   plan.c         the pieces put together; the check of a spec; questions to a finished plan
 *   plan_order.c   table entries become tasks in an order of submission: the proof that they can
 *                  run
 *   plan_access.c  what each task reads and writes
 *   plan_buffers.c the buffers behind it, and bytes
 *   plan_slots.c   which values share a buffer
 *
 * Values are what tasks hand to each other inside a step: an activation a(i, r) and, where one
 * comes back, a gradient g(i, r) for each micro-batch i and edge r; for each cell a tape t(i, j)
 * and, where it is recomputed in part, what is kept for it, k(i, j), and, where its backward is
 * split, what that holds for its W, h(i, j). Those of a edge, the tapes of a partition, what is
 * kept and what is held in it, are one pool each: they have one size and may share buffers.
 */
#ifndef GPP_GRAPH_PLAN_INTERNAL_H
#define GPP_GRAPH_PLAN_INTERNAL_H

#include "graph/plan/plan.h"
#include "sched/walk.h"

/** Edges by the partition at one of their ends: of partition j those from list[first[j]] to before
 * list[first[j + 1]], ascending. j = n: the caller. */
typedef struct gpp__links {
    int32_t *first; /* [n + 2] */
    int32_t *list;  /* [edges] */
} gpp__links;

typedef struct gpp__plan_maker {
    const gpp__plan_spec *spec;
    gpp__step_shape shape; /* window and wait_for_all included */
    int n, m, edges;
    size_t cells;    /* n · m */
    int32_t values;  /* (2 edges + 3 n) · m */
    int pools;       /* edges + 3 n */
    int last_device; /* of partition n - 1, which stands for the caller */
    gpp__table table;
    gpp__plan *plan;

    /* plan.c */
    gpp__links in, out; /* edges to and from a partition */
    bool *learns;       /* [n] of a home: a partition whose parameters it holds trains, */
    bool *commits;      /* [n] leaves statistics that its update folds in */
    bool *gate;         /* [n] the partition's last backward is a gate: updates wait for it, where
                           they wait for all. Partition 0's is one. So is that of a partition that
                           hands no gradient to an earlier one: by nothing else is it known to have
                           ended by then. Every other partition's backwards come before a last
                           backward of an earlier one, and so on down to a gate */
    int32_t *reach;     /* [n] the last partition whose gradient comes back to j by every boundary
                           between; n: the caller's. So j's backward follows from the backwards of
                           all up to there */

    /* plan_order.c */
    gpp__task_index index;
    size_t needs;         /* of all tasks, in plan->need */
    int32_t *first_b;     /* [n] tasks: a partition's first backward, or W; -1: none */
    int32_t *last_b;      /* [n] its last backward */
    int32_t *done_b;      /* [n] of a home: the last backward or W of all that have it; of the
                             others: their own */
    int32_t *gate_before; /* [n] the gate that opens before partition j's, -1: none */
    int32_t *done_on;     /* [devices] the last backward or W of a device; -1: none. With split
                             backwards these are the gates, and none comes before another: W's end
                             everywhere at about the same time */

    /* plan_slots.c; values are numbered by the functions below */
    int32_t *slot;       /* [values] */
    int32_t *pool_slots; /* [pools] slots of edges, of tapes, of what is kept, of what is held */
} gpp__plan_maker;

/** Table to tasks, in an order of submission. GPP_EINVAL when the table cannot run. */
gpp_status gpp__plan_order(gpp__plan_maker *maker, gpp_error *err);

/** Fill the accesses of all tasks; `buffer` is a value's number or, for the other roles, whose it
 * is. */
gpp_status gpp__plan_access(gpp__plan_maker *maker, gpp_error *err);

/** Give every value a slot. */
gpp_status gpp__plan_slots(gpp__plan_maker *maker, gpp_error *err);

/** Make the buffers, let accesses refer to them, count bytes. */
gpp_status gpp__plan_buffers(gpp__plan_maker *maker, gpp_error *err);

/* --- edges ------------------------------------------------------------------------------------ */

/** The first of the edges to partition j (n: to the caller), from partition j. They end where
 * those of j + 1 begin. */
static inline const int32_t *gpp__edges_to(const gpp__plan_maker *maker, int j)
{
    return maker->in.list + maker->in.first[j];
}
static inline const int32_t *gpp__edges_from(const gpp__plan_maker *maker, int j)
{
    return maker->out.list + maker->out.first[j];
}
/** The device on which a edge begins, and that on which it ends. */
static inline int gpp__edge_producer(const gpp__plan_maker *maker, int r)
{
    return maker->shape.device_of[maker->plan->edge[r].from];
}
static inline int gpp__edge_consumer(const gpp__plan_maker *maker, int r)
{
    int to = maker->plan->edge[r].to;
    return to < maker->n ? maker->shape.device_of[to] : maker->last_device;
}

/* --- values and pools ------------------------------------------------------------------------- */

static inline int32_t gpp__value_activation(const gpp__plan_maker *maker, int i, int r)
{
    return r * maker->m + i;
}
static inline int32_t gpp__value_gradient(const gpp__plan_maker *maker, int i, int r)
{
    return (maker->edges + r) * maker->m + i;
}
static inline int32_t gpp__value_tape(const gpp__plan_maker *maker, int i, int j)
{
    return (2 * maker->edges + j) * maker->m + i;
}
static inline int32_t gpp__value_partial(const gpp__plan_maker *maker, int i, int j)
{
    return (2 * maker->edges + maker->n + j) * maker->m + i;
}
static inline int32_t gpp__value_deferred(const gpp__plan_maker *maker, int i, int j)
{
    return (2 * maker->edges + 2 * maker->n + j) * maker->m + i;
}
/** 0 ... edges - 1: those; then the tapes of partition 0 ... n-1, then what is kept, then what is
 * held in them. */
static inline int gpp__value_pool(const gpp__plan_maker *maker, int32_t value)
{
    int row = value / maker->m;
    return row < maker->edges ? row : row - maker->edges;
}
static inline bool gpp__role_is_value(int role)
{
    return role >= GPP__ROLE_IN && role <= GPP__ROLE_DEFERRED;
}
/** The partition of a pool of tapes, of what is kept or of what is held. */
static inline int gpp__pool_partition(const gpp__plan_maker *maker, int pool)
{
    return (pool - maker->edges) % maker->n;
}
/** Updates wait for all, and so for the gate of each device. */
static inline bool gpp__plan_gates_devices(const gpp__plan_maker *maker)
{
    return maker->shape.wait_for_all && maker->shape.split;
}
/** True for a plan whose activations and tapes outlive it, or come from such a plan. */
static inline bool gpp__plan_is_half(const gpp__plan_maker *maker)
{
    return maker->shape.keep || (maker->shape.backward && !maker->shape.forward);
}

#endif
