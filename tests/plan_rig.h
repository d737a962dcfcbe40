/*
 * tests/plan_rig.h: steps to plan, for the tests of plans: chosen by hand or drawn at random.
 *
 * A draw depends only on the calls before it, so a test program does the same each time.
 */
#ifndef GPP_TESTS_PLAN_RIG_H
#define GPP_TESTS_PLAN_RIG_H

#include "graph/plan/plan.h"

enum {
    PLAN_RIG_N = 6,        /* most partitions, and devices, that are drawn */
    PLAN_RIG_REPLICAS = 4, /* most replicas that are drawn */
    PLAN_RIG_MOST = PLAN_RIG_N * PLAN_RIG_REPLICAS, /* most partitions that the rig has room for */
    PLAN_RIG_M = 9,                                 /* most micro-batches that are drawn */
    PLAN_RIG_R = 14 * PLAN_RIG_REPLICAS             /* most edges */
};

/** A spec and the arrays that it points to. */
typedef struct plan_rig {
    gpp__plan_spec spec;
    gpp__stage_sizes stage[PLAN_RIG_MOST];
    gpp__edge edge[PLAN_RIG_R]; /* edge j < n goes from partition j to j + 1 */
    int device_of[PLAN_RIG_MOST], node_of[PLAN_RIG_MOST];
} plan_rig;

/** How many of m micro-batches are checkpointed. mode 0: always, 1: except_last, 2: never. */
int plan_rig_checkpointed(int mode, int m);

typedef enum plan_rig_kind {
    TRAIN,    /* forward, loss, backward, update */
    EVALUATE, /* forward, loss */
    KEEP,     /* forward for a later ... */
    BACK,     /* ... backward from the caller's gradients */
    APPLY     /* update alone */
} plan_rig_kind;

/** Choose n partitions on n devices in a chain. Their backwards read only tapes and gradients. */
void plan_rig_init(plan_rig *r, plan_rig_kind kind, int n, int m, int mode);
/** Add an edge with a gradient. A recompute reads it at its end. Returns its number. */
int plan_rig_route(plan_rig *r, int from, int to, const char *name);
/** Draw partitions of any size and need, on any devices, with any edges between them. */
void plan_rig_draw(plan_rig *r, plan_rig_kind kind);
/** Make replicas of it, each on other devices or on some of the same, with drawn micro-batches: the
 * last replicas may have fewer, or none. */
void plan_rig_replicate(plan_rig *r, int replicas, int mode);
/** Point the spec to the rig's arrays. */
const gpp__plan_spec *plan_rig_spec(plan_rig *r);
/** Make the plan; a failure ends the test. Free it with gpp__plan_free. */
gpp__plan *plan_rig_plan(plan_rig *r);

/** Number of buffers of a class for partition (edge, device) j. */
int plan_rig_slots(const gpp__plan *plan, gpp__class cls, int j);
/** Index of a task, or -1. */
int plan_rig_find(const gpp__plan *plan, int kind, int i, int j);

/** Draw a number in 0 ... below - 1; draw true or false. */
unsigned plan_rig_random(unsigned below);
bool plan_rig_coin(void);

#endif
