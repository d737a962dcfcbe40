/*
 * sched/policy.h: the StarPU scheduling policy that enforces an order table.
 *
 * A *lane* is one device's order in one pipe: positions 0, 1, 2, ... counted through all steps. A
 * task carries a ticket (lane, position) in its sched_data. The policy hands the worker of a lane
 * the task at the lane's next position, and no other, as soon as StarPU has reported it ready;
 * until then the worker waits, whatever else is ready. Devices do not wait for each other but
 * through data. The inputs of a ready task are
 * prefetched, also while its device still works on another.
 *
 * Tasks without a ticket (the application's own) run first come, first served, between ours.
 *
 * While no step runs, and on workers without a lane, a worker sleeps instead of spinning; not in a
 * scheduling context inside the application's StarPU, whose own tasks could not wake it.
 */
#ifndef GPP_SCHED_POLICY_H
#define GPP_SCHED_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gpp__lane gpp__lane;

/** Must live until the task has run. */
typedef struct gpp__ticket {
    gpp__lane *lane;
    uint64_t position;
    bool timed;              /* the next is wanted */
    double ready;            /* out: when StarPU reported it ready; seconds, CLOCK_MONOTONIC */
    void (*done)(void *arg); /* called when its device is done with it, before those that depend on
                                it are let go; NULL: not */
    void *arg;
} gpp__ticket;

struct starpu_sched_policy;
extern struct starpu_sched_policy gpp__policy;

/** Whether the policy of `context` got its memory; without it nothing may be submitted. */
bool gpp__policy_ready(unsigned context);

/**
 * A lane on `worker` in the scheduling context `context`, which runs gpp__policy. Free with
 * gpp__lane_free.
 * @param capacity  most positions that may be outstanding at once; gpp__lane_reserve makes it more
 */
gpp_status gpp__lane_new(gpp__lane **lane, unsigned context, int worker, size_t capacity,
                         gpp_error *err);
/** All its tasks must have run. NULL is fine. */
void gpp__lane_free(gpp__lane *lane);

/** Make room for `count` more positions. */
bool gpp__lane_has_room(const gpp__lane *lane, size_t count);
gpp_status gpp__lane_reserve(gpp__lane *lane, size_t count, gpp_error *err);
/** Give out `count` reserved positions, of which the first is returned. Every one must be
 * submitted. */
uint64_t gpp__lane_extend(gpp__lane *lane, size_t count);

/**
 * Give up the order: tasks that are or become ready run in any order, and the lane waits for
 * nothing any more. For a step of which some tasks could not be submitted.
 */
void gpp__lane_abandon(gpp__lane *lane);
/** Give it an order again. All its tasks must have run. */
void gpp__lane_restore(gpp__lane *lane);

/** For reports: the position to run next, and whether its task is ready. It may move on meanwhile.
 */
uint64_t gpp__lane_next(const gpp__lane *lane, bool *ready);

/** Between these two, workers of the context's lanes wait actively. They nest. */
void gpp__policy_busy(unsigned context);
void gpp__policy_idle(unsigned context);

#endif
