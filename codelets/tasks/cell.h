/*
 * codelets/tasks/cell.h: the StarPU codelets: forward, recompute, backward, loss, seed, output, update.
 *
 * A task's argument is a gpp__cell, its buffers are found by role. What all cells of a step share
 * is the gpp__job.
 *
 * Failure: StarPU has no task that fails, so a cell that fails leaves its clock cycle in
 * job->stop_clock, and cells of later cycles return at once: the graph drains. Cells of the same or
 * earlier cycles still run, so the failure reported in the end is the one of the earliest cycle,
 * lowest partition first, whatever the timing.
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

/** A device while a pipe lives: a worker, its cores, the threads of the other cores; or a worker
 * that drives a CUDA device. */
typedef struct gpp__executor {
    uint64_t id; /* of this device of this pipe, unique in the process: workers remember whose they
                    are bound to */
    struct hwloc_topology *topology;
    struct hwloc_bitmap_s
        *home; /* core of the worker's own thread; NULL: leave its binding alone */
    gpp__pool *pool;
    char **ports;           /* room for the ports of any cell: a device runs one at a time */
    struct gpp__cuda *cuda; /* for tasks to launch on; NULL: CPU cores */
    bool
        fetches; /* does not reach the caller's memory: what it reads of it is lent (graph/run/fetch.c) */
    const struct gpp__mover *mover; /* NULL: CPU cores */
    double last_end;                /* of a task; where tasks run behind the worker's back */
} gpp__executor;

/** A dense tensor of the caller, by rows. */
typedef struct gpp__rows {
    char *data;   /* NULL: none */
    size_t bytes; /* of one row */
    int batch;    /* as in its gpp__desc */
    int64_t rows; /* with GPP_ROWS_FIXED: of one micro-batch */
} gpp__rows;

/** What an optimizer counts for one parameter. Its updates change it, so that a step may be
 * submitted before it is known whether the one before will update anything. */
typedef struct gpp__learned {
    int64_t updates; /* it has had */
    double scalar[GPP__MAX_SCALARS];
    uint64_t run; /* of the job that changed it last, before which it was: */
    int64_t updates_before;
    double scalar_before[GPP__MAX_SCALARS];
} gpp__learned;

typedef struct gpp__job {
    uint64_t seed, step;
    bool training, nan_is_error;
    gpp__rows x[GPP__MAX_TENSORS], grad_x[GPP__MAX_TENSORS]; /* by input of the model */
    gpp__rows y[GPP__MAX_TENSORS], grad_y[GPP__MAX_TENSORS]; /* by output */
    gpp__rows target, each;                                  /* each: where unreduced losses go */
    int64_t loss_rows; /* of the output in all micro-batches */
    double loss_divisor;
    const float *class_weight;
    int64_t class_weights;
    const gpp_loss *loss;
    const void *loss_attr;
    const gpp__desc *y_desc, *target_desc;
    const gpp_optimizer *optimizer;
    const void *optimizer_attr;
    const char *learn_attr; /* [learns][optimizer->attr_size] with the parameter's rate and decay */
    gpp__learned *learned;  /* [learns] shared by all jobs of a pipe */
    const int *learn_at;    /* [network->nodes] first parameter of an operator */
    int learns;             /* parameters */
    int micro_batches;
    double clip_norm; /* 0: no clipping */
    bool skip_nonfinite;
    atomic_bool skipped;    /* an update has seen gradients that are not finite */
    _Atomic double norm;    /* of all gradients; set by updates */
    atomic_bool norm_there; /* their device has its sums, and nobody has looked */

    atomic_int stop_clock; /* cells of later cycles do not run */
    atomic_int updates;    /* partitions whose update has begun */
    pthread_mutex_t lock;  /* what follows */
    pthread_cond_t done;
    gpp_error error; /* of the earliest cycle, lowest partition */
    int error_clock;
    size_t left;  /* tasks to finish */
    double ended; /* when the last one had, CLOCK_MONOTONIC; then this was called: */
    void (*over)(void *arg);
    void *over_arg;

    uint64_t run; /* number of this step, from 1, ascending in the order of submission */
    atomic_uint_fast64_t *failed; /* of the first step that has failed: later ones do nothing.
                                     Shared by all jobs of a pipe; UINT64_MAX: none has */
} gpp__job;

struct gpp__cell;
/** What a value means that a cell's device has made for the host to see. */
typedef gpp_status (*gpp__inspector)(struct gpp__cell *cell, const void *value, gpp_error *err);
enum { GPP__RESULT_BYTES = 8 }; /* bytes of such a value */

typedef struct gpp__cell {
    gpp__job *job;
    gpp__executor *device;
    const gpp__stage *stage;
    const gpp__program *program;
    gpp__pass pass; /* of its program; of forwards, recomputations, backwards and weights */
    int i, j, clock;
    int64_t row0[GPP__BATCHES], rows[GPP__BATCHES];
    bool first;   /* backward: assigns gradients */
    bool updated; /* an update: it has begun */
    int accesses;
    const gpp__access *access; /* [accesses] what the task's buffers are */
    double start, end;         /* seconds, CLOCK_MONOTONIC; equal when it did not run */
    int worker;                /* that ran it */
    void *
        result; /* [GPP__RESULT_BYTES] page-locked memory for the value that is judged; NULL: cores */
    gpp__inspector inspect;            /* when the device is done; NULL: nothing to judge */
    atomic_uint_fast64_t begun, ended; /* the last of the job's runs in which it has */
} gpp__cell;

struct starpu_codelet;
extern struct starpu_codelet gpp__forward_codelet, gpp__recompute_codelet, gpp__backward_codelet,
    gpp__weight_codelet, gpp__loss_codelet, gpp__seed_codelet, gpp__output_codelet,
    gpp__norm_codelet, gpp__update_codelet;

/** @param failed  outlives the job */
void gpp__job_init(gpp__job *job, atomic_uint_fast64_t *failed);
void gpp__job_release(gpp__job *job);
/** Begin step `run` of `tasks` tasks, each of which must get gpp__cell_finished as its callback
 * with the cell as argument. */
void gpp__job_begin(gpp__job *job, uint64_t run, size_t tasks);
/** Tasks that have not begun end without effect, as do those of later steps. */
void gpp__job_stop(gpp__job *job);
/** From any thread: let a step that runs fail with GPP_ECANCELED; tasks that have not begun end
 * without effect. @param also_updating  false: a step whose updates have begun goes on */
void gpp__job_cancel(gpp__job *job, const char *why, bool also_updating);
void gpp__cell_finished(void *cell);
/** Where tasks run behind the worker's back: to be called when the device is done with one, before
 * those that depend on it are let go. */
void gpp__cell_done(void *cell);
/** For a task that there will not be. */
void gpp__job_finished(gpp__job *job);
/** Wait for all tasks. @return the step's status; a failure is copied to `err` */
gpp_status gpp__job_wait(gpp__job *job, gpp_error *err);
/** Wait until all tasks have ended, or none has for so long. @return whether all have */
bool gpp__job_wait_while_moving(gpp__job *job, double seconds);
/* Bytes of scratch beside a program's own, where the caller's memory is not the device's. */
/** For forwards, recomputations and backwards. */
size_t gpp__cell_staging(const gpp__stage *stage, const int64_t rows[GPP__BATCHES]);
/** For the loss of a micro-batch of so many rows of the output. */
size_t gpp__loss_staging(const gpp_loss *loss, const void *attr, const gpp__desc *y, int64_t rows);
/** For norms and updates of a block, behind what unpacked gradients need (gpp__stage_room). */
size_t gpp__update_staging(const gpp__stage *stage, const struct gpp__mover *mover);

/** As it was before the update of job `run`, if that is the last it has had. */
void gpp__learned_restore(gpp__learned *learned, uint64_t run);

/** Seconds, CLOCK_MONOTONIC: the clock of cells. */
double gpp__cell_now(void);

#endif
