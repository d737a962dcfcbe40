/*
 * graph/plan/plan.h: one step as data: tasks, what they read and write, the order of each device,
 * buffers and bytes.
 *
 * Pure: nothing here runs. A plan is made from a schedule table and the sizes of the partitions'
 * data. Making it proves that every device can go through its table with all data dependencies met.
 * The plan gives each item that tasks hand to each other a buffer (a slot), by live ranges. So it
 * knows the bytes of each device before anything is allocated.
 *
 * Slots: item Y may take the buffer of item X when every access to X happens before Y's writer *in
 * any execution*, that is by tables and data dependencies alone (checked with vector clocks).
 * Sharing therefore never makes a task wait that would not have waited anyway.
 */
#ifndef GPP_GRAPH_PLAN_H
#define GPP_GRAPH_PLAN_H

#include <stdio.h>

#include "base/ints.h"
#include "codelets/tasks/role.h"
#include "sched/table.h"

/** What the data of a partition needs, in bytes. Where micro-batches have two sizes, the larger one
 * counts. */
typedef struct gpp__stage_sizes {
    size_t params; /* parameters and packed weights; a home's are those of all its partitions */
    size_t grads, optimizer;
    size_t tape;     /* 0: none */
    size_t partial;  /* partial tape of a micro-batch that is recomputed; 0: none */
    size_t deferred; /* deferred gradients of a micro-batch whose backward is split; 0: none */
    size_t scratch;  /* the most that a task of the partition needs */
    size_t stats;    /* statistics of one micro-batch; 0: none */
    size_t sharded;  /* bytes of parameters that replicas update by shards; 0: they do not */
    int home;    /* the partition that holds its parameters, gradients and optimizer state: itself
                    or, of its replica's on its device that share some, the first */
    bool trains; /* has parameters that learn */
    bool may_fail;
} gpp__stage_sizes;

/**
 * A value that goes from one partition to another: a micro-batch has one buffer from the producer
 * to the consumer, and partitions between them never see it. Edges from j-1 to j are boundaries,
 * edges to `partitions`, the caller, are outputs of the model, and all others are skips. The
 * model's inputs are no edges: they are the caller's memory or, where a device cannot reach that,
 * fetches.
 */
typedef struct gpp__edge {
    int from, to;          /* from < to <= partitions */
    int out_port, in_port; /* of the producer and of the consumer; the in_port of an output of the
                              model is its number */
    size_t bytes;          /* > 0 */
    bool grad;             /* a gradient of the same size comes back */
    bool backward_reads_out, recompute_reads_out; /* at the producer; W's read like backwards */
    bool backward_reads_in, recompute_reads_in;   /* at the consumer, alike */
    const char *name; /* of a skip, for pictures; NULL: it has none. The plan copies the name */
} gpp__edge;

/** A tensor of the caller's that a partition's device has to fetch. Each piece has a buffer of its
 * own, which is filled before the first task that reads the piece and stays for the others. */
typedef struct gpp__fetch {
    int to;       /* a partition; `partitions` + r: losses and seeds of replica r */
    int in_port;  /* of the partition; for losses and seeds a gpp__end_port */
    size_t bytes; /* > 0; of a micro-batch, or of the whole tensor */
    bool whole;   /* every micro-batch reads all of it */
    bool backward_reads, recompute_reads;
} gpp__fetch;

typedef struct gpp__plan_spec {
    gpp__step_shape shape; /* `trains` comes from the stages. Backwards are ascending, or split, if
                              the shape or the schedule says so */
    const gpp__schedule *schedule;
    const gpp__stage_sizes *stage; /* [partitions] */
    const gpp__edge *edge; /* [edges] every partition has one to the next of its replica, the last
                              one to the caller */
    int edges;
    const gpp__fetch *fetch; /* [fetches] by ascending partition */
    int fetches;
    const int *node_of; /* [devices] memory node; NULL: all share one */
    const int *rank_of; /* [devices] rank; NULL: all are on one. Ranks share no memory */
    int window; /* without backward: how many micro-batches a partition may run ahead of the next;
                   0: any number */
    bool wait_for_all;   /* U's wait for the step's last backward, since something may fail */
    bool accumulate;     /* gradients are added to those that are there */
    bool statistics;     /* forwards write their partition's statistics */
    size_t norms;        /* with shape.norms: bytes of all sums of squares; may be 0 */
    size_t loss_scratch; /* the most that an L needs; 0: nothing */
    bool backup;         /* U's save what they change, params + optimizer bytes (class BACKUP) */
} gpp__plan_spec;

/** What a buffer is for, and whose it is. */
typedef enum gpp__class {
    GPP__PARAMS,    /* of home j; lasts from step to step */
    GPP__GRADS,     /* alike */
    GPP__OPTIMIZER, /* alike */
    GPP__EDGE,      /* of edge j: activations and their gradients */
    GPP__TAPE,      /* of partition j */
    GPP__PARTIAL,   /* of partition j: partial tapes */
    GPP__DEFERRED,  /* of partition j: deferred gradients */
    GPP__SCRATCH,   /* of device j */
    GPP__STATS,     /* of partition j: a record of each micro-batch */
    GPP__BACKUP,    /* of home j: parameters, then optimizer state, before the update */
    GPP__LOSSES,    /* the only one: the loss of each micro-batch; slot r has replica r's */
    GPP__NORMS,     /* the only one: sums of squares of all partitions; slot r is replica r's */
    GPP__GATE,      /* of replica j, or of device j with split backwards: it carries an order */
    GPP__FETCHED,   /* of fetch j; slot i is micro-batch i's */
    GPP__UNPACKED,  /* of device j: gradients in the caller's layout; no plan has such buffers */
    GPP__SHARD, /* of home j: shard `slot` of its gradients, in their memory. Replica `slot` adds
                       the replicas' shards up, and has a copy where it shares no memory with j */
    GPP__ALL_STATS,   /* of partition j: the records of all replicas' micro-batches */
    GPP__PARAM_SHARD, /* of home j: shard `slot` of its parameters, in their memory. Replica `slot`
                         updates it */
    GPP__CLASSES
} gpp__class;
const char *gpp__class_name(gpp__class c);

/** A buffer: slot `slot` of class `cls` for partition (edge, device) `j`. */
typedef struct gpp__buffer {
    uint8_t cls;
    int32_t j, slot;
    int32_t device; /* to which its bytes count */
    int32_t other;  /* the device on another memory node that holds a second copy; -1: none */
    size_t bytes;   /* with the note, where other ranks may read it (codelets/tasks/note.h) */
} gpp__buffer;

/** What a task has written goes to another rank, which reads it next. */
typedef struct gpp__message {
    int32_t task, buffer;
    int32_t from, to; /* ranks */
    int32_t into;     /* the buffer there: the same one, or the shard of another replica */
} gpp__message;

/** One more copy of a buffer, on a rank that neither `device` nor `other` is on. */
typedef struct gpp__copy {
    int32_t buffer;
    int32_t device; /* to which its bytes count */
} gpp__copy;

typedef struct gpp__task {
    uint8_t kind;
    bool checkpointed; /* an F that writes no tape, since an R follows */
    bool first;        /* the partition's first task that writes gradients of parameters: it assigns
                          them instead of adding to them. Never set when gradients accumulate */
    int32_t i, j, device;
    int32_t order; /* position in its device's table */
    int32_t clock; /* cycle of GPipe's lockstep picture: i+j for an F, counted on through the
                      backwards; all W's come after them */
    int32_t access_count, needs;
    gpp__access *access; /* [access_count] points into plan->access */
    const int32_t
        *need; /* [needs] points into plan->need: tasks that must be done before this one */
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
    int32_t *need;       /* of all tasks: the runtime enforces these needs by data, because a buffer
                            is handed on or both tasks are on one device. (The window's needs follow
                            from shared buffers if forwards go by ascending micro-batch.) A need
                            that follows from others and from the tables may be missing; a need may
                            be there twice */
    size_t buffers;
    gpp__buffer *buffer;
    int edges;
    gpp__edge *edge;
    int fetches;
    gpp__fetch *fetch;
    int *rank_of; /* [devices]; NULL: all are on one rank */
    size_t messages, copies;
    gpp__message *message; /* by ascending task, then by ascending receiver */
    gpp__copy *copy;
    size_t *bytes; /* [devices] of all buffers, which is the planned peak */
} gpp__plan;

/** @return GPP_OK, GPP_EINVAL (the table cannot run: the message names the first task that waits
 * for ever), GPP_ENOMEM */
gpp_status gpp__plan_new(gpp__plan **plan, const gpp__plan_spec *spec, gpp_error *err);
void gpp__plan_free(gpp__plan *plan);

/** Bytes that a buffer takes on its device. A shard is in the memory of what it is a part of. */
static inline size_t gpp__plan_own_bytes(const gpp__buffer *b)
{
    return b->cls == GPP__SHARD || b->cls == GPP__PARAM_SHARD ? 0 : b->bytes;
}
/** The replica of a partition. */
static inline int gpp__plan_replica(const gpp__plan *plan, int j)
{
    return j / gpp__shape_depth(&plan->shape);
}
/** The rank of a device. */
static inline int gpp__plan_rank(const gpp__plan *plan, int device)
{
    return plan->rank_of ? plan->rank_of[device] : 0;
}
/** The buffer ends with a note, since several ranks may read it. */
bool gpp__plan_has_note(const gpp__plan *plan, const gpp__buffer *buffer);
/** The device of a rank to which the bytes of a buffer's copy there count; -1: it has no copy. */
int gpp__plan_payer(const gpp__plan *plan, size_t buffer, int rank);

/**
 * The longest path through tables and data: when the last task ends if each task takes ms[task] and
 * starts as soon as its device is free and its data is there.
 * @param start  [tasks] out: when each task starts; may be NULL
 */
gpp_status gpp__plan_makespan(const gpp__plan *plan, const double ms[], double start[], double *end,
                              gpp_error *err);

/* Pictures (draw.c), written to `out`. False: a write error. */
bool gpp__plan_grid(const gpp__plan *plan, FILE *out);
bool gpp__plan_dot(const gpp__plan *plan, FILE *out);
bool gpp__plan_text(const gpp__plan *plan, FILE *out);

#endif
