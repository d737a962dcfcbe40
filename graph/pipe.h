/*
 * graph/pipe.h: the inside of gpp_pipe, shared by pipe.c (making), exec.c (plans made executable),
 * step.c (running) and params.c (parameters by name).
 */
#ifndef GPP_GRAPH_PIPE_H
#define GPP_GRAPH_PIPE_H

#include <gridpipe/pipe.h>

#include "codelets/cell.h"
#include "graph/model.h"
#include "graph/plan.h"
#include "graph/runtime.h"
#include "sched/devices.h"
#include "sched/policy.h"

/* What a step consists of: the key of its plan, with the rows of the mini-batch. */
enum {
    GPP__DO_FORWARD = 1,
    GPP__DO_BACKWARD = 2,
    GPP__DO_LOSS = 4,
    GPP__DO_UPDATE = 8,
    GPP__DO_OUTPUTS = 16,
    GPP__DO_KEEP = 32,       /* forward whose tape stays for a later backward */
    GPP__DO_GRAD_INPUT = 64, /* programs that can give the gradient of the model's input */
};

/** The programs of all partitions for one number of rows. */
typedef struct gpp__progset {
    int64_t rows;
    bool grad_input;
    int users;              /* execs */
    gpp__program **program; /* [partitions] */
} gpp__progset;

/** A plan with everything its tasks need, ready to be submitted again and again. */
typedef struct gpp__exec {
    unsigned flags;
    int64_t rows;
    uint64_t used; /* clock of the cache */
    gpp__plan *plan;
    gpp__progset *full,
        *last;               /* last: of the last micro-batch when it is shorter, else full again */
    gpp__cell *cell;         /* [tasks] */
    gpp__ticket *ticket;     /* [tasks] */
    gpp__block_data **block; /* [plan->buffers] */
} gpp__exec;

enum { GPP__EXECS = 8, GPP__PROGSETS = 2 * GPP__EXECS + 2 };

/** The blocks of one class for one partition (boundary, device), by slot. */
typedef struct gpp__slots {
    int count;
    gpp__block_data **block;
} gpp__slots;

typedef struct gpp__device_state {
    const gpp__device *device;
    gpp__cpu cpu;
    gpp__lane *lane;
    gpp__meter meter;
    size_t planned;
    int worker;
    unsigned node;
} gpp__device_state;

struct gpp_pipe {
    gpp_model *model;
    int partitions;
    int *balance, *first; /* [partitions] layers; index of the first */
    int chunks;
    gpp_checkpoint checkpoint;
    uint64_t seed;
    bool nan_is_error, ascending;
    size_t memory_limit;
    gpp__desc y_desc, target_desc;

    const gpp_loss *loss;
    void *loss_attr;
    const gpp_optimizer *optimizer;
    void *optimizer_attr;

    gpp__runtime runtime;
    bool has_runtime;
    gpp__device *device; /* [devices] */
    gpp__device_state *state;
    int devices;
    int *device_of; /* [partitions] */
    int *node_of;   /* [devices] memory node */
    const char **device_name;
    int *device_threads;

    gpp__stage *stage;               /* [partitions] */
    int stages;                      /* initialised */
    gpp__slots *slots[GPP__CLASSES]; /* [partitions + 1 or devices] */

    gpp__exec *exec[GPP__EXECS];
    gpp__progset *progset[GPP__PROGSETS];
    uint64_t clock;
    const gpp__exec *last; /* what ran last */

    gpp__job job;
    uint64_t steps;  /* training passes begun: the random generator's step */
    int64_t updates; /* of the optimizer, done */
    bool has_grads;
    int64_t kept_rows;  /* rows of a forward waiting for its backward; -1: none */
    uint64_t kept_step; /* its random generator's step */
    bool broken;        /* a step failed after some partitions were updated */

    gpp_parameter_info *parameter; /* [parameters] */
    int parameters;
    char *parameter_names;
};

/** The executable plan of a step; made, and buffers with it, when it is new. Belongs to the pipe.
 */
gpp_status gpp__exec_get(gpp_pipe *pipe, unsigned flags, int64_t rows, gpp__exec **exec,
                         gpp_error *err);
/** Only the plan, for a picture. Free with gpp__plan_free. */
gpp_status gpp__exec_plan(gpp_pipe *pipe, unsigned flags, int64_t rows, gpp__plan **plan,
                          gpp_error *err);
void gpp__exec_free_all(gpp_pipe *pipe);

/** The block of a buffer, registered with at least `bytes`. */
gpp_status gpp__slot_get(gpp_pipe *pipe, gpp__class cls, int j, int slot, size_t bytes, int device,
                         int other, gpp__block_data **block, gpp_error *err);
void gpp__slots_free_all(gpp_pipe *pipe);

/** Bytes of the optimizer's state for a partition; 0 without an optimizer. */
size_t gpp__optimizer_bytes(const gpp_pipe *pipe, int partition);
/** Parameters: their names, their memory, their initial values. */
gpp_status gpp__params_init(gpp_pipe *pipe, gpp_error *err);
void gpp__params_release(gpp_pipe *pipe);

#endif
