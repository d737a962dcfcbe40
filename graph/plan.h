/*
 * graph/plan.h: one step as data: tasks, what they read and write, the order of each device,
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

#include "codelets/role.h"
#include "sched/table.h"

/** What the data of partition j needs, in bytes; where micro-batches have two sizes, the larger's.
 */
typedef struct gpp__stage_sizes {
    size_t params; /* parameters and packed weights */
    size_t grads, optimizer;
    size_t input;   /* boundary in: partition 0: the caller's tensor, not
                       counted */
    size_t output;  /* boundary out */
    size_t tape;    /* 0: none */
    size_t scratch; /* largest any of its tasks needs */
    bool backward_reads_input, backward_reads_output;
    bool recompute_reads_input; /* false when nothing has to be recomputed */
    bool gives_grad_input;      /* B writes the gradient of its input */
    bool trains;                /* has parameters */
    bool may_fail;
} gpp__stage_sizes;

typedef struct gpp__plan_spec {
    gpp__step_shape shape;
    const gpp__schedule *schedule;
    const gpp__stage_sizes *stage; /* [partitions] */
    const int *node_of;            /* [devices] memory node; NULL: all share one */
    int window; /* without backward: how many micro-batches a partition may run ahead of the next;
                   0: any */
    bool wait_for_all; /* U's wait for the step's last backward (something may fail) */
} gpp__plan_spec;

typedef enum gpp__class {
    GPP__PARAMS,
    GPP__GRADS,
    GPP__OPTIMIZER, /* one of each partition, kept between steps */
    GPP__BOUNDARY,  /* before partition j (j = n: the outputs); activations and their gradients */
    GPP__TAPE,
    GPP__SCRATCH, /* of partition j; of device j */
    GPP__LOSSES,
    GPP__GATE, /* one value each */
    GPP__CLASSES
} gpp__class;
const char *gpp__class_name(gpp__class c);

/** A buffer: slot `slot` of class `cls` for partition (boundary, device) `j`. */
typedef struct gpp__buffer {
    uint8_t cls;
    int32_t j, slot;
    int32_t device; /* to which its bytes count */
    int32_t other;  /* device that holds a second copy when its memory node differs, else -1 */
    size_t bytes;
} gpp__buffer;

enum { GPP__READ = 1, GPP__WRITE = 2, GPP__READWRITE = 3, GPP__WORKSPACE = 4 };

typedef struct gpp__access {
    uint8_t role, mode;
    int32_t buffer; /* index into plan->buffer */
} gpp__access;

#define GPP__MAX_ACCESSES 10

typedef struct gpp__task {
    uint8_t kind;
    bool checkpointed; /* F whose tape is not kept */
    bool first;        /* B that is its partition's first: assigns gradients instead of adding */
    uint8_t access_count;
    int32_t i, j, device;
    int32_t order; /* position in its device's table */
    int32_t clock; /* clock cycle of GPipe's lockstep picture: i+j for F, counted on through the
                      backward */
    gpp__access access[GPP__MAX_ACCESSES];
} gpp__task;

typedef struct gpp__plan {
    gpp__step_shape shape; /* device_of points into the plan */
    int *device_of;
    size_t tasks;
    gpp__task *task; /* in an order of submission that respects tables and data */
    size_t *count;   /* [devices] */
    int32_t **table; /* [devices][count] task indices in order of execution */
    size_t buffers;
    gpp__buffer *buffer;
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

/**
 * torch.chunk's rule: pieces of ceil(rows/chunks) until the rows are used up, so there may be fewer
 * than `chunks`; for rows == 0, `chunks` empty ones. Returns their number, sets the size of all but
 * the last and of the last.
 */
int gpp__chunk(int64_t rows, int chunks, int64_t *size, int64_t *last);

#endif
