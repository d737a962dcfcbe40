/*
 * graph/plan/plan.h: one step as data: tasks, what they read and write, the order of each device,
 * buffers and bytes.
 *
 * Pure: nothing here runs. A plan is made from a schedule table and the sizes of the partitions'
 * data, is proven runnable (every device can go through its table with all data dependencies met),
 * assigns values to buffers (slots) from their live ranges, and knows each device's bytes before
 * anything is allocated.
 *
 * Slots: value Y may take the buffer of value X when every access to X happens before Y's writer
 * *in any execution*, that is by tables and data dependencies alone (checked with vector clocks).
 * Sharing therefore never makes a task wait that would not have waited anyway.
 */
#ifndef GPP_GRAPH_PLAN_H
#define GPP_GRAPH_PLAN_H

#include <stdio.h>

#include "base/ints.h"
#include "codelets/tasks/role.h"
#include "sched/table.h"

/** What the data of partition j needs, in bytes; where micro-batches have two sizes, the larger's.
 */
typedef struct gpp__stage_sizes {
    size_t params; /* parameters and packed weights; of all partitions with the same home */
    size_t grads, optimizer;
    size_t tape;     /* 0: none */
    size_t partial;  /* of a micro-batch that is recomputed, from forward to backward; 0: nothing */
    size_t deferred; /* of a micro-batch whose backward is split, from B to W; 0: nothing */
    size_t scratch;  /* largest any of its tasks needs */
    size_t stats;    /* of one micro-batch; 0: none */
    int home;        /* partition that holds its parameters, gradients and optimizer state: itself,
                       or the first of those on its device that share some */
    bool trains;     /* has parameters that learn */
    bool may_fail;
} gpp__stage_sizes;

/**
 * A value on its way from one partition to another: one buffer a micro-batch from its producer to
 * its consumer; partitions between never see it. Boundaries are edges from j-1 to j, skips any
 * others, the model's outputs edges to `partitions`, the caller. The model's inputs are no edges:
 * they are the caller's memory, and where a device cannot reach that, fetches.
 */
typedef struct gpp__edge {
    int from, to;          /* from < to <= partitions */
    int out_port, in_port; /* which of the producer's out-ports and the consumer's in-ports it is;
                              in_port of an output of the model: which one */
    size_t bytes;          /* > 0 */
    bool grad;             /* a gradient comes back, as large */
    bool backward_reads_out, recompute_reads_out; /* at the producer; a W reads what a backward */
    bool backward_reads_in, recompute_reads_in;   /* at the consumer; does */
    const char *name; /* of a skip, for pictures; NULL: a boundary's. The plan copies it */
} gpp__edge;

/** A tensor of the caller's that a partition reads on a device which has to fetch it. Each piece
 * has a buffer of its own, fetched before the first task that reads it and kept for the others. */
typedef struct gpp__fetch {
    int to;       /* partition; `partitions`: losses and seeds */
    int in_port;  /* of the partition; of losses and seeds a gpp__end_port */
    size_t bytes; /* > 0; of a micro-batch, or of all of it */
    bool whole;   /* every micro-batch reads all of it */
    bool backward_reads, recompute_reads;
} gpp__fetch;

typedef struct gpp__plan_spec {
    gpp__step_shape shape; /* `trains` is taken from the stages; ascending and split backwards are
                              the step's if it, or the schedule, has them */
    const gpp__schedule *schedule;
    const gpp__stage_sizes *stage; /* [partitions] */
    const gpp__edge *edge;         /* [edges] every partition but the last has one to the next; the
                                      last one to the caller */
    int edges;
    const gpp__fetch *fetch; /* [fetches] by ascending partition */
    int fetches;
    const int *node_of; /* [devices] memory node; NULL: all share one */
    int window; /* without backward: how many micro-batches a partition may run ahead of the next;
                   0: any */
    bool wait_for_all;   /* U's wait for the step's last backward (something may fail) */
    bool accumulate;     /* gradients are added to those at hand */
    bool statistics;     /* forwards write their partition's statistics */
    size_t norms;        /* with shape.norms: bytes of all sums of squares; may be 0 */
    size_t loss_scratch; /* largest any L needs; 0: none */
    bool backup; /* U's save what they change, with bytes params + optimizer (class BACKUP) */
} gpp__plan_spec;

typedef enum gpp__class {
    GPP__PARAMS,
    GPP__GRADS,
    GPP__OPTIMIZER, /* one of each partition, kept between steps */
    GPP__EDGE,      /* of edge j: activations and their gradients */
    GPP__TAPE,
    GPP__PARTIAL,
    GPP__DEFERRED, /* of partition j */
    GPP__SCRATCH,  /* of partition j; of device j */
    GPP__STATS,    /* of partition j: a record of each micro-batch */
    GPP__BACKUP, /* of partition j's home: parameters, then optimizer state, as before the update */
    GPP__LOSSES,
    GPP__NORMS,
    GPP__GATE,     /* one value each; with split backwards a gate of each device */
    GPP__FETCHED,  /* of fetch j: what a device has fetched of it; slot i is micro-batch i's */
    GPP__UNPACKED, /* of device j: gradients that somebody looks at; of no plan */
    GPP__CLASSES
} gpp__class;
const char *gpp__class_name(gpp__class c);

/** A buffer: slot `slot` of class `cls` for partition (edge, device) `j`. */
typedef struct gpp__buffer {
    uint8_t cls;
    int32_t j, slot;
    int32_t device; /* to which its bytes count */
    int32_t other;  /* device that holds a second copy when its memory node differs, else -1 */
    size_t bytes;
} gpp__buffer;

typedef struct gpp__task {
    uint8_t kind;
    bool checkpointed; /* F whose tape is not kept */
    bool first;        /* B, or W where its partition has some, that is its partition's first, and
                          gradients are not accumulated: it assigns them instead of adding */
    int32_t i, j, device;
    int32_t order; /* position in its device's table */
    int32_t clock; /* clock cycle of GPipe's lockstep picture: i+j for F, counted on through the
                      backward; W's after all of them */
    int32_t access_count, needs;
    gpp__access *access; /* [access_count] in the plan's */
    const int32_t *need; /* [needs] in the plan's: the tasks that must be done before this one */
} gpp__task;

typedef struct gpp__plan {
    gpp__step_shape shape; /* device_of and trains point into the plan; cost is NULL */
    int *device_of;
    bool *trains;
    size_t tasks;
    gpp__task *task;     /* in an order of submission that respects tables and data */
    size_t *count;       /* [devices] */
    int32_t **table;     /* [devices][count] task indices in order of execution */
    gpp__access *access; /* of all tasks */
    int32_t *need;       /* of all tasks: what the runtime enforces by data, because a buffer is
                            handed on or both tasks are on one device. A need that follows from
                            others and from the tables may be missing; one may be there twice */
    size_t buffers;
    gpp__buffer *buffer;
    int edges;
    gpp__edge *edge;
    int fetches;
    gpp__fetch *fetch;
    size_t *bytes; /* [devices] planned peak */
} gpp__plan;

/** @return GPP_OK, GPP_EINVAL (the table cannot run: the message names the first task that waits
 * for ever), GPP_ENOMEM */
gpp_status gpp__plan_new(gpp__plan **plan, const gpp__plan_spec *spec, gpp_error *err);
void gpp__plan_free(gpp__plan *plan);

/**
 * End of the last task when each task takes ms[task] and starts as soon as its device and its data
 * are free: the longest path through tables and data dependencies.
 * @param start  [tasks] out: when each starts; may be NULL
 */
gpp_status gpp__plan_makespan(const gpp__plan *plan, const double ms[], double start[], double *end,
                              gpp_error *err);

/* Pictures (plan_draw.c). Written to `out`; false on a write error. */
bool gpp__plan_grid(const gpp__plan *plan, FILE *out);
bool gpp__plan_dot(const gpp__plan *plan, FILE *out);
bool gpp__plan_text(const gpp__plan *plan, FILE *out);

#endif
