/*
 * sched/walk.h: the walk through a step by its table and its data.
 *
 * The tasks of a step are numbered by table: those of device 0 in their order, then those of
 * device 1, and so on. The walk reaches a task when it is the next one of its device and all tasks
 * it needs are done. If the walk reaches the end of every table, no execution can deadlock, and the
 * order in which it reached the tasks is an order of submission: it respects tables and data.
 *
 * Pure: no runtime, no model.
 */
#ifndef GPP_SCHED_WALK_H
#define GPP_SCHED_WALK_H

#include "sched/table.h"

/* --- tasks by number -------------------------------------------------------------------------- */

/** The number of every task of a step. */
typedef struct gpp__task_index {
    const gpp__table *table; /* the caller's, like the shape */
    const gpp__step_shape *shape;
    size_t tasks;
    int32_t *first;  /* [devices + 1] the number of a device's first task */
    int32_t *number; /* by kind, micro-batch and partition; -1: not of this step */
} gpp__task_index;

/**
 * Number the tasks of a table. Free with gpp__index_release, also after a failure.
 * @return GPP_OK, GPP_EINVAL (the table does not have every task of the step once, on its device:
 * the message names the first one that is wrong), GPP_ENOMEM
 */
gpp_status gpp__index_init(gpp__task_index *index, const gpp__table *table,
                           const gpp__step_shape *shape, gpp_error *err);
void gpp__index_release(gpp__task_index *index);

/** The number of a task; -1: the step has no such task. */
int32_t gpp__index_find(const gpp__task_index *index, int kind, int i, int j);
/** Give task k the number number[k]. After that, `first` is out of date. */
void gpp__index_renumber(gpp__task_index *index, const int32_t number[]);

/* --- the walk --------------------------------------------------------------------------------- */

typedef struct gpp__walk gpp__walk;

/** A device that waits for ever. */
typedef struct gpp__stuck {
    int device;              /* -1: none is stuck */
    const gpp__entry *at;    /* where it waits, */
    const gpp__entry *needs; /* and for which task */
    int other;               /* the device of that task. The same device: its own table is wrong */
    const gpp__entry *other_at; /* where the other device waits */
} gpp__stuck;

struct gpp__walk {
    const gpp__task_index *index;
    /** The number of a task that `entry` needs and that is not done; -1: all are done. */
    int32_t (*missing)(const gpp__walk *walk, const gpp__entry *entry);
    void *data; /* of `missing` */

    int32_t *rank;    /* [tasks] out: 0 is the task reached first; -1: not reached. Free it */
    gpp__stuck stuck; /* out */
};

static inline bool gpp__walk_is_done(const gpp__walk *walk, int32_t task)
{
    return walk->rank[task] >= 0;
}

/**
 * Walk as far as possible. Devices take turns, so the order is also close to that of an execution.
 * O(tasks) calls of `missing` where a task waits for few others: a device that cannot go on is
 * asked again only when the task that it waits for is done.
 * @return false: no memory
 */
bool gpp__walk_run(gpp__walk *walk);

/**
 * The time at which a task starts that takes `ms`: as soon as its device is free and its data is
 * there. The device is free again when the task has ended.
 */
static inline double gpp__walk_start(double *device_free, double data_there, double ms)
{
    double start = data_there > *device_free ? data_there : *device_free;
    *device_free = start + ms;
    return start;
}

#endif
