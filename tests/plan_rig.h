/*
 * tests/plan_rig.h: steps to plan, for the tests of plans: chosen by hand or drawn at random.
 *
 * A draw is a function of the calls before it alone: a test program does the same each time.
 */
#ifndef GPP_TESTS_PLAN_RIG_H
#define GPP_TESTS_PLAN_RIG_H

#include "graph/plan/plan.h"

enum {
    PLAN_RIG_N = 6,    /* most partitions (and devices) that are drawn, */
    PLAN_RIG_MOST = 8, /* that there is room for, */
    PLAN_RIG_M = 9,    /* micro-batches, */
    PLAN_RIG_R = 14    /* edges */
};

/** A spec and what it points to. */
typedef struct plan_rig {
    gpp__plan_spec spec;
    gpp__stage_sizes stage[PLAN_RIG_MOST];
    gpp__edge edge[PLAN_RIG_R]; /* edge j < n goes from partition j to j + 1 */
    int device_of[PLAN_RIG_MOST], node_of[PLAN_RIG_MOST];
} plan_rig;

/** Of m micro-batches; mode 0: always, 1: except_last, 2: never. */
int plan_rig_checkpointed(int mode, int m);

typedef enum plan_rig_kind {
    TRAIN,    /* forward, loss, backward, update */
    EVALUATE, /* forward, loss */
    KEEP,     /* forward for a later ... */
    BACK,     /* ... backward from the caller's gradients */
    APPLY     /* update alone */
} plan_rig_kind;

/** n partitions on n devices in a chain, whose backwards read nothing but tapes and gradients. */
void plan_rig_init(plan_rig *r, plan_rig_kind kind, int n, int m, int mode);
/** One more edge, with a gradient, read by a recompute at its end. Returns its number. */
int plan_rig_route(plan_rig *r, int from, int to, const char *name);
/** Partitions of any size and need on any devices, and any edges between them. */
void plan_rig_draw(plan_rig *r, plan_rig_kind kind);
/** Point the spec to the rig's arrays. */
const gpp__plan_spec *plan_rig_spec(plan_rig *r);
/** The plan, which there must be. Free with gpp__plan_free. */
gpp__plan *plan_rig_plan(plan_rig *r);

/** Buffers of a class for partition (edge, device) j. */
int plan_rig_slots(const gpp__plan *plan, gpp__class cls, int j);
/** The task, or -1. */
int plan_rig_find(const gpp__plan *plan, int kind, int i, int j);

/** Uniform in 0 ... below - 1; true or false. */
unsigned plan_rig_random(unsigned below);
bool plan_rig_coin(void);

#endif
