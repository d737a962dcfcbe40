/*
 * codelets/tasks/cell.h: the StarPU codelets: forward, recompute, backward, weight, loss, seed,
 * output, reduce, gather, norm, update, collect.
 *
 * A task's argument is a gpp__cell, which finds the task's buffers by their roles. All cells of a
 * step share a gpp__job.
 *
 * Failure: StarPU has no task that fails. A cell that fails leaves its clock cycle in
 * job->stop_clock, and cells of later cycles return at once, so the graph drains. Cells of the same
 * or earlier cycles still run. The failure reported in the end is therefore the one of the earliest
 * cycle, lowest partition first, whatever the timing.
 */
#ifndef GPP_CODELETS_CELL_H
#define GPP_CODELETS_CELL_H

#include <pthread.h>
#include <stdatomic.h>

#include "codelets/loss.h"
#include "codelets/optimizer.h"
#include "codelets/program/program.h"
#include "codelets/tasks/handle.h"
#include "codelets/tasks/role.h"

/** What runs a device's tasks while a pipe lives: a worker with the threads of its device's cores,
 * or a worker that drives a CUDA device. */
typedef struct gpp__executor {
    uint64_t id; /* unique in the process: a worker remembers which executor it is bound to */
    struct hwloc_topology *topology;
    struct hwloc_bitmap_s *home; /* core of the worker's own thread; NULL: do not bind it */
    gpp__pool *pool;
    char **ports;           /* room for the ports, or shards, of any cell: a device runs one at a
                               time */
    struct gpp__cuda *cuda; /* for tasks to launch on; NULL: CPU cores */
    bool fetches;           /* cannot read the caller's memory (graph/run/fetch.c) */
    const struct gpp__mover *mover; /* NULL: CPU cores */
    double last_end; /* of the last task, where tasks go on after the worker has launched them */
} gpp__executor;

/** A dense tensor of the caller, by rows. */
typedef struct gpp__rows {
    char *data;   /* NULL: none */
    size_t bytes; /* of one row */
    int batch;    /* as in its gpp__desc */
    int64_t rows; /* with GPP_ROWS_FIXED: of one micro-batch */
} gpp__rows;

/** What an optimizer counts for one parameter. Updates themselves count, so a step can be submitted
 * before it is known whether the step before it will update anything. */
typedef struct gpp__learned {
    int64_t updates; /* that the parameter has had */
    double scalar[GPP__MAX_SCALARS];
    uint64_t run;                           /* of the job that changed this last */
    int64_t updates_before;                 /* as it was before that job */
    double scalar_before[GPP__MAX_SCALARS]; /* as it was before that job */
} gpp__learned;

/** No task can end any more: gpp__job.moves. */
#define GPP__NEVER UINT64_MAX

typedef struct gpp__job {
    uint64_t seed, step;
    bool training, nan_is_error;
    gpp__rows x[GPP__MAX_TENSORS], grad_x[GPP__MAX_TENSORS]; /* by input of the model */
    gpp__rows y[GPP__MAX_TENSORS], grad_y[GPP__MAX_TENSORS]; /* by output */
    gpp__rows target, each;                                  /* each: where unreduced losses go */
    int64_t loss_rows; /* rows of the output in all micro-batches */
    double loss_divisor;
    const float *class_weight;
    int64_t class_weights;
    const gpp_loss *loss;
    const void *loss_attr;
    const gpp__desc *y_desc, *target_desc;
    const gpp_optimizer *optimizer;
    const void *optimizer_attr;
    const char *learn_attr; /* [learns][optimizer->attr_size] with the parameter's rate and decay */
    gpp__learned *learned;  /* [replicas][learns] shared by all jobs of a pipe */
    const int *learn_at;    /* [network->nodes] first parameter of an operator */
    int learns;             /* parameters */
    int micro_batches;
    double clip_norm; /* 0: no clipping */
    bool skip_nonfinite;
    atomic_bool skipped;    /* an update has seen gradients that are not finite */
    _Atomic double norm;    /* of all gradients; set by updates */
    atomic_bool norm_there; /* the host has not read the norm's sums, which are on a device */

    atomic_int stop_clock; /* cells of later cycles do not run */
    atomic_int updates;    /* partitions whose update has begun */
    pthread_mutex_t lock;  /* of all fields down to over_arg */
    pthread_cond_t done;
    gpp_error error; /* of the earliest cycle, lowest partition */
    int error_clock;
    size_t left;             /* tasks to finish */
    double ended;            /* when the last task had finished, CLOCK_MONOTONIC */
    void (*over)(void *arg); /* called when the last task has finished; NULL: not wanted */
    void *over_arg;

    uint64_t run; /* number of this step, from 1, ascending in the order of submission */
    atomic_uint_fast64_t *failed; /* number of the first step that has failed; later steps do
                                     nothing. Shared by all jobs of a pipe; UINT64_MAX: none has */
    uint64_t settled; /* failures of steps up to this number were reported before this step began */

    /* Where other ranks take part. */
    atomic_uint_fast64_t *ended_here; /* counts tasks that have ended; NULL: nobody asks */
    /* Tasks that have ended on all ranks; GPP__NEVER: a rank has died. NULL: no other ranks. */
    uint64_t (*moves)(void *arg);
    void *moves_arg;
} gpp__job;

struct gpp__cell;
/** Inspects a value that a cell's device has made and the host has to know. */
typedef gpp_status (*gpp__inspector)(struct gpp__cell *cell, const void *value, gpp_error *err);
enum { GPP__RESULT_BYTES = 8 }; /* room for such a value */

typedef struct gpp__cell {
    gpp__job *job;
    gpp__executor *device;
    const gpp__stage *stage;
    const gpp__program *program;
    gpp__pass pass; /* of the program, in cells that run one */
    int i, j, clock;
    int replica, share;            /* of j; the most micro-batches of a replica */
    int64_t shard_floats;          /* reduce: of a shard */
    size_t state_begin, state_end; /* update: bytes of each of the optimizer's arrays that it has */
    bool collects;                 /* update: others have the rest, and a collect follows */
    int64_t row0[GPP__BATCHES], rows[GPP__BATCHES];
    bool first; /* backward or weight: assigns gradients of parameters instead of adding to them */
    bool updated; /* update: it has begun */
    int accesses;
    const gpp__access *access; /* [accesses] what the task's buffers are */
    double start, end;         /* seconds, CLOCK_MONOTONIC; equal when it did not run */
    int worker;                /* that ran it */
    bool notes;                /* some of its buffers have notes */
    void *result; /* [GPP__RESULT_BYTES] page-locked memory for an inspected value; NULL: cores */
    gpp__inspector inspect; /* called when the device is done; NULL: there is nothing to inspect */
    atomic_uint_fast64_t begun, ended; /* last run of the job in which the cell began, and ended */
} gpp__cell;

struct starpu_codelet;
extern struct starpu_codelet gpp__forward_codelet, gpp__recompute_codelet, gpp__backward_codelet,
    gpp__weight_codelet, gpp__loss_codelet, gpp__seed_codelet, gpp__output_codelet,
    gpp__reduce_codelet, gpp__gather_codelet, gpp__norm_codelet, gpp__update_codelet,
    gpp__collect_codelet;

/** @param failed  outlives the job */
void gpp__job_init(gpp__job *job, atomic_uint_fast64_t *failed);
void gpp__job_release(gpp__job *job);
/** Begin step `run` of `tasks` tasks, each of which must get gpp__cell_finished as its callback
 * with the cell as argument. */
void gpp__job_begin(gpp__job *job, uint64_t run, size_t tasks);
/** Tasks that have not begun end without effect, as do those of later steps. */
void gpp__job_stop(gpp__job *job);
/** Let a step that runs fail with GPP_ECANCELED: tasks that have not begun end without effect. May
 * be called from any thread.
 * @param also_updating  false: a step whose updates have begun goes on */
void gpp__job_cancel(gpp__job *job, const char *why, bool also_updating);
void gpp__cell_finished(void *cell);
/** Must be called when a GPU is done with a task that its worker has launched, before tasks that
 * depend on it may begin. */
void gpp__cell_done(void *cell);
/** Count a task as finished that will never be submitted. */
void gpp__job_finished(gpp__job *job);
/** Wait for all tasks. @return the step's status; a failure is copied to `err` */
gpp_status gpp__job_wait(gpp__job *job, gpp_error *err);
/** Wait until all tasks have ended, or until none has ended, on any rank, for so many seconds.
 * @return whether all have ended */
bool gpp__job_wait_while_moving(gpp__job *job, double seconds);

/* Bytes of scratch beside a program's own, where the caller's memory is not the device's. */
/** For forwards, recomputations and backwards. */
size_t gpp__cell_staging(const gpp__stage *stage, const int64_t rows[GPP__BATCHES]);
/** For the loss of a micro-batch of so many rows of the output. */
size_t gpp__loss_staging(const gpp_loss *loss, const void *attr, const gpp__desc *y, int64_t rows);
/** For norms and updates of a parameter block, behind what unpacked gradients need
 * (gpp__stage_room). */
size_t gpp__update_staging(const gpp__stage *stage, const struct gpp__mover *mover);

/** Undo the count of job `run`, if that was the last update. */
void gpp__learned_restore(gpp__learned *learned, uint64_t run);

/** Seconds, CLOCK_MONOTONIC: the clock of cells. */
double gpp__cell_now(void);

#endif
