/*
 * sched/policy.h: the StarPU scheduling policy that enforces an order table.
 *
 * A *lane* is the order of one device in one pipe: positions 0, 1, 2, ... counted through all
 * steps. A task carries a *ticket* (lane, position) in its sched_data. The policy hands the worker
 * of a lane the task at the lane's next position, and no other, as soon as StarPU has reported it
 * ready. Until then the worker waits, whatever else is ready. Devices wait for each other only
 * through data. The inputs of a ready task are prefetched, also while its device still works on
 * another.
 *
 * Tasks without a ticket (the application's own) run first come, first served, between ours.
 *
 * A worker that waits for a task polls for a short while, then lets other threads have its core
 * between polls. It then sleeps until a task is pushed to it: while a step runs, as soon as another
 * thread wants the core; between steps, after a while. It does not sleep in a scheduling context
 * inside the application's StarPU, since tasks of the application do not pass through this policy
 * there and could not wake it; nor, while a step runs, where there are several memory nodes, since
 * it moves data between polls.
 */
#ifndef GPP_SCHED_POLICY_H
#define GPP_SCHED_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gpp__lane gpp__lane;

/** The place of a task in its lane. It must live until the task has run. */
typedef struct gpp__ticket {
    gpp__lane *lane;
    uint64_t position;
    bool timed;              /* fill in `ready` */
    double ready;            /* out: when StarPU reported it ready; seconds, CLOCK_MONOTONIC */
    void (*done)(void *arg); /* called when the task's device is done with it, before tasks that
                                depend on it may start; may be NULL */
    void *arg;
} gpp__ticket;

struct starpu_sched_policy;
extern struct starpu_sched_policy gpp__policy;

/** False: the policy of `context` got no memory, and nothing may be submitted. */
bool gpp__policy_ready(unsigned context);

/**
 * A lane on `worker` in the scheduling context `context`, which runs gpp__policy. Free with
 * gpp__lane_free.
 * @param capacity  the most positions that may be outstanding at once; gpp__lane_reserve raises it
 */
gpp_status gpp__lane_new(gpp__lane **lane, unsigned context, int worker, size_t capacity,
                         gpp_error *err);
/** All tasks of the lane must have run. NULL is fine. */
void gpp__lane_free(gpp__lane *lane);

/** There is room for `count` more positions. */
bool gpp__lane_has_room(const gpp__lane *lane, size_t count);
/** Make room for `count` more positions. A lane can grow only when nothing is outstanding: else
 * GPP_ESTATE. */
gpp_status gpp__lane_reserve(gpp__lane *lane, size_t count, gpp_error *err);
/** Give out `count` reserved positions and return the first. A task must be submitted for each. */
uint64_t gpp__lane_extend(gpp__lane *lane, size_t count);

/**
 * Give up the order: ready tasks run in any order, and the lane no longer waits for a particular
 * one. For a step of which some tasks could not be submitted.
 */
void gpp__lane_abandon(gpp__lane *lane);
/** Give the lane an order again. All its tasks must have run. */
void gpp__lane_restore(gpp__lane *lane);

/** For reports: the position to run next, and whether its task is ready. The lane may have moved on
 * when this returns. */
uint64_t gpp__lane_next(const gpp__lane *lane, bool *ready);

/** Between these two calls a step runs: its workers are woken, and poll as in a step. Calls nest. */
void gpp__policy_busy(unsigned context);
void gpp__policy_idle(unsigned context);

#endif
