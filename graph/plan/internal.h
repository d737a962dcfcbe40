/*
 * graph/plan/internal.h: what the files that make a plan from a spec share.
 *
 *   plan.c     checks the spec and puts the pieces together; answers questions to a finished plan
 *   order.c    table entries become tasks in an order of submission, which proves that they can run
 *   access.c   what each task reads and writes
 *   slots.c    which items share a buffer
 *   buffers.c  the buffers behind the items, and bytes
 *   messages.c what goes from rank to rank
 *
 * An *item* is what one task hands to another inside a step:
 *
 *   a(i, r), g(i, r)  micro-batch i's activation on edge r and, where one comes back, its gradient
 *   t(i, j)           the tape of cell (i, j)
 *   p(i, j)           the partial tape of a cell that is recomputed, where it has one
 *   d(i, j)           the deferred gradients that a split backward leaves for its W
 *
 * Items of one *pool* have one size and may share buffers. A pool has the items of an edge, or the
 * tapes, the partial tapes or the deferred gradients of a partition.
 */
#ifndef GPP_GRAPH_PLAN_INTERNAL_H
#define GPP_GRAPH_PLAN_INTERNAL_H

#include "graph/plan/plan.h"
#include "sched/walk.h"

/** Edges by the partition at one of their ends: partition j has list[first[j]] up to, without,
 * list[first[j + 1]], ascending. j = n is the caller. */
typedef struct gpp__links {
    int32_t *first; /* [n + 2] */
    int32_t *list;  /* [edges] */
} gpp__links;

typedef struct gpp__plan_maker {
    const gpp__plan_spec *spec;
    gpp__step_shape shape; /* window and wait_for_all included */
    int n, edges;
    int replicas, depth; /* partitions of a replica */
    int m;               /* the most micro-batches of a replica */
    size_t cells;        /* n · m */
    int32_t items;       /* (2 edges + 3 n) · m */
    int pools;           /* edges + 3 n */
    gpp__table table;
    gpp__plan *plan;

    /* plan.c */
    gpp__links in, out; /* edges to and from a partition */
    bool *learns;       /* [n] home j holds parameters of a partition that trains */
    bool *commits;      /* [n] home j's update folds in statistics of a partition */
    bool *gate;     /* [n] the last backward of j is a gate: updates wait for it, where they wait
                       for all backwards. A replica's first partition has a gate. So has one that
                       hands no
                       gradient to an earlier one: nothing else tells that its backward has ended.
                       Any other partition's backwards come before the last backward of an earlier
                       partition, and so on down to a gate */
    int32_t *reach; /* [n] the last partition whose gradient comes back to j through every boundary
                       between them; n: the caller. So j's backward follows from the backwards of
                       all partitions up to that one */

    /* order.c */
    gpp__task_index index;
    size_t needs; /* number of plan->need */
    int32_t *
        first_b; /* [n] (these are in one piece) the first task of j that writes gradients of parameters: a W where
                             j has W's, else a backward; -1: none */
    int32_t *last_b;      /* [n] the last backward of j; -1: none */
    int32_t *done_b;      /* [n] home j: the last backward or W of all partitions with that home;
                             others: the last of j */
    int32_t *gate_before; /* [n] the gate that opens before the gate of j; -1: none */
    int32_t *last_f;      /* [n] the last forward of j; -1: none */
    int32_t *done_on;     /* [devices] the last backward or W of a device; -1: none. With split
                             backwards these are the gates. They have no order among themselves: W's
                             end everywhere at about the same time */

    /* slots.c; the functions below number the items */
    int32_t *slot;       /* [items] */
    int32_t *pool_slots; /* [pools] number of slots */
} gpp__plan_maker;

/** Make tasks from the table, in an order of submission. GPP_EINVAL when the table cannot run. */
gpp_status gpp__plan_order(gpp__plan_maker *maker, gpp_error *err);

/** Fill in the accesses of all tasks. For now, `buffer` is the number of an item or, for other
 * roles, the partition, device or fetch whose buffer it is. */
gpp_status gpp__plan_access(gpp__plan_maker *maker, gpp_error *err);

/** Give every item a slot. */
gpp_status gpp__plan_slots(gpp__plan_maker *maker, gpp_error *err);

/** Make the buffers, and point accesses to them. */
gpp_status gpp__plan_buffers(gpp__plan_maker *maker, gpp_error *err);

/** Find the messages between ranks and the copies they need. */
gpp_status gpp__plan_messages(gpp__plan_maker *maker, gpp_error *err);

/** Count the bytes of all buffers and copies. */
gpp_status gpp__plan_count(gpp__plan_maker *maker, gpp_error *err);

/* --- replicas --------------------------------------------------------------------------------- */

/** The last partition of the replica of j. It stands for the caller. */
static inline int gpp__plan_end(const gpp__plan_maker *maker, int j)
{
    return (j / maker->depth + 1) * maker->depth - 1;
}
/** The replica has micro-batches in this step. */
static inline bool gpp__plan_works(const gpp__plan_maker *maker, int r)
{
    return gpp__shape_pieces(&maker->shape, r) > 0;
}
/** Partition j of its replica, in replica r. */
static inline int gpp__plan_in(const gpp__plan_maker *maker, int j, int r)
{
    return r * maker->depth + j % maker->depth;
}

/** Backwards of partition j add to the gradients at hand: those of one replica, as all have the
 * same. */
static inline bool gpp__plan_adds(const gpp__plan_maker *maker, int j)
{
    return maker->spec->accumulate && j < maker->depth;
}

/* --- edges ------------------------------------------------------------------------------------ */

/** The first of the edges to partition j (n: to the caller), and of those from partition j. The
 * list goes on up to where that of j + 1 begins. */
static inline const int32_t *gpp__edges_to(const gpp__plan_maker *maker, int j)
{
    return maker->in.list + maker->in.first[j];
}
static inline const int32_t *gpp__edges_from(const gpp__plan_maker *maker, int j)
{
    return maker->out.list + maker->out.first[j];
}
/** The device at the begin of an edge, and the device at its end. */
static inline int gpp__edge_producer(const gpp__plan_maker *maker, int r)
{
    return maker->shape.device_of[maker->plan->edge[r].from];
}
static inline int gpp__edge_consumer(const gpp__plan_maker *maker, int r)
{
    const gpp__edge *edge = &maker->plan->edge[r];
    return maker->shape
        .device_of[edge->to < maker->n ? edge->to : gpp__plan_end(maker, edge->from)];
}

/* --- items and pools -------------------------------------------------------------------------- */

static inline int32_t gpp__item_activation(const gpp__plan_maker *maker, int i, int r)
{
    return r * maker->m + i % maker->m;
}
static inline int32_t gpp__item_gradient(const gpp__plan_maker *maker, int i, int r)
{
    return (maker->edges + r) * maker->m + i % maker->m;
}
static inline int32_t gpp__item_tape(const gpp__plan_maker *maker, int i, int j)
{
    return (2 * maker->edges + j) * maker->m + i % maker->m;
}
static inline int32_t gpp__item_partial(const gpp__plan_maker *maker, int i, int j)
{
    return (2 * maker->edges + maker->n + j) * maker->m + i % maker->m;
}
static inline int32_t gpp__item_deferred(const gpp__plan_maker *maker, int i, int j)
{
    return (2 * maker->edges + 2 * maker->n + j) * maker->m + i % maker->m;
}
/** Pools 0 ... edges - 1 are the edges'. Then come n pools of tapes, n of partial tapes and n of
 * deferred gradients, by partition. */
static inline int gpp__item_pool(const gpp__plan_maker *maker, int32_t item)
{
    int row = item / maker->m;
    return row < maker->edges ? row : row - maker->edges;
}
static inline bool gpp__role_is_item(int role)
{
    return role >= GPP__ROLE_IN && role <= GPP__ROLE_DEFERRED;
}
/** The partition of a pool that is no edge's. */
static inline int gpp__pool_partition(const gpp__plan_maker *maker, int pool)
{
    return (pool - maker->edges) % maker->n;
}
/** Updates wait for all backwards by a gate of each device, instead of one of each replica. */
static inline bool gpp__plan_gates_devices(const gpp__plan_maker *maker)
{
    return maker->shape.wait_for_all && maker->shape.split;
}
/** The plan is the forward of a step whose backward is planned apart, or that backward: activations
 * and tapes pass from the one to the other. */
static inline bool gpp__plan_is_half(const gpp__plan_maker *maker)
{
    return maker->shape.keep || (maker->shape.backward && !maker->shape.forward);
}

#endif
