/*
 * graph/plan_internal.h: what the files that make a plan share.
 *
 *   plan.c         the pieces put together; questions to a finished plan
 *   plan_order.c   table entries become tasks in an order of submission: the proof that they can
 * run plan_access.c  what each task reads and writes; buffers and bytes plan_slots.c   which values
 * share a buffer
 *
 * Values are what tasks hand to each other inside a step: an activation b(i, j) and a gradient
 * g(i, j) for each micro-batch i and boundary j = 1 ... n, a tape t(i, j) for each cell. Those of a
 * boundary, and the tapes of a partition, are one pool: they have one size and may share buffers.
 */
#ifndef GPP_GRAPH_PLAN_INTERNAL_H
#define GPP_GRAPH_PLAN_INTERNAL_H

#include "graph/plan.h"

typedef struct gpp__plan_maker {
    const gpp__plan_spec *spec;
    gpp__step_shape shape; /* window and wait_for_all included */
    int n, m;
    size_t cells; /* n · m */
    gpp__table table;
    gpp__plan *plan;

    /* plan_order.c */
    int32_t *id;               /* task of a (kind, i, j), -1: none */
    int32_t *first_b, *last_b; /* [n] tasks: a partition's first and last backward; -1: none */
    int32_t *gate_before;      /* [n] the gate that opens before partition j's, -1: none */

    /* plan_slots.c; values are numbered by the functions below */
    int32_t *slot;       /* [3 · cells] */
    int32_t *pool_slots; /* [2 n] slots of boundaries 1 ... n, then of tapes 0 ... n - 1 */
} gpp__plan_maker;

/** Letters and numbers of a task: "B(2,1)", "L(2)", "U(1)". Returns `out`. */
typedef char gpp__task_text[32];
const char *gpp__task_name(int kind, int i, int j, gpp__task_text out);

/** The task of a cell, or -1. */
int32_t gpp__plan_find(const gpp__plan_maker *maker, int kind, int i, int j);

/**
 * The tasks that (kind, i, j) needs done, by data: what the runtime will enforce, either because
 * the data passes through a buffer or because both are on one device. A few may be missing from
 * `need` that follow from the others.
 * @return their number
 */
enum { GPP__MAX_NEEDS = 5 };
int gpp__plan_needs(const gpp__plan_maker *maker, int kind, int i, int j,
                    int32_t need[GPP__MAX_NEEDS]);

/** True when partition j's last backward is a gate: updates wait for it, where they wait for all.
 * Partition 0's is one; the backwards of another are not known to have ended by then when it hands
 * no gradient down. */
bool gpp__plan_is_gate(const gpp__plan_maker *maker, int j);

/** Table to tasks, in an order of submission. GPP_EINVAL when the table cannot run. */
gpp_status gpp__plan_order(gpp__plan_maker *maker, gpp_error *err);

/** Fill the accesses of all tasks; `buffer` is a value's number or, for the other roles, whose it
 * is. */
void gpp__plan_access(gpp__plan_maker *maker);

/** Give every value a slot. */
gpp_status gpp__plan_slots(gpp__plan_maker *maker, gpp_error *err);

/** Make the buffers, let accesses refer to them, count bytes. */
gpp_status gpp__plan_buffers(gpp__plan_maker *maker, gpp_error *err);

/* --- values and pools */

static inline int32_t gpp__value_activation(const gpp__plan_maker *maker, int i, int j)
{
    return (j - 1) * maker->m + i;
}
static inline int32_t gpp__value_gradient(const gpp__plan_maker *maker, int i, int j)
{
    return (int32_t)maker->cells + (j - 1) * maker->m + i;
}
static inline int32_t gpp__value_tape(const gpp__plan_maker *maker, int i, int j)
{
    return (int32_t)(2 * maker->cells) + j * maker->m + i;
}
/** 0 ... n-1: boundary 1 ... n; n ... 2n-1: tapes of partition 0 ... n-1. */
static inline int gpp__value_pool(const gpp__plan_maker *maker, int32_t value)
{
    int row = value / maker->m;
    return row < maker->n ? row : row - maker->n;
}
static inline bool gpp__role_is_value(int role)
{
    return role >= GPP__ROLE_IN && role <= GPP__ROLE_TAPE;
}
/** True for a plan whose activations and tapes outlive it, or come from such a plan. */
static inline bool gpp__plan_is_half(const gpp__plan_maker *maker)
{
    return maker->shape.keep || (maker->shape.backward && !maker->shape.forward);
}

#endif
