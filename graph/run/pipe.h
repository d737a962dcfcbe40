/*
 * graph/run/pipe.h: the inside of a gpp_pipe, and what the files of this folder offer one another.
 *
 * A pipe is a recipe and what runs it. The files, in reading order:
 *
 *     pipe.c          makes and frees a pipe; what it says about itself
 *     runtime.c       starts or joins the process's StarPU (runtime.h); runtime_cuda.c: on GPUs
 *     executors.c     gives each device its worker, threads and lane
 *     handles.c       makes the handles behind buffers; lets the host use a buffer
 *     params.c        parameters and buffers by name: initial values, get, set, freeze
 *     tensors.c       checks the caller's tensors and enters them in the job
 *     task_graph.c    makes and caches task graphs
 *     step.c          the public calls that run something
 *     flight.c        submits a task graph, waits for it and takes its results
 *     fetch.c         hands the caller's tensors to StarPU for devices that have to copy them
 *     state.c         running statistics of a pass; puts parameters back after a failed update
 *     rates.c         learning rates, groups and what the optimizer counts
 *     device_call.c   runs a function on a device outside steps
 *     record.c        records what steps do and makes a trace of it
 *     watchdog.c      reports a step that has stopped moving
 *     at_exit.c       ends steps when the program ends
 *     ledger.c        lists the arrays that a file may hold (ledger.h)
 *     state_file.c    saves and loads parameters and the state of training
 *     gather.c        one record of all ranks (record.h)
 *     share.c         files of a pipe that several ranks run
 *     comm.c          what ranks agree on (comm.h); threads.c: ranks that are threads
 */
#ifndef GPP_RUN_PIPE_H
#define GPP_RUN_PIPE_H

#include <gridpipe/balance.h>
#include <gridpipe/pipe.h>

#include "codelets/tasks/cell.h"
#include "graph/plan/step.h"
#include "graph/run/comm.h"
#include "graph/run/runtime.h"
#include "sched/policy.h"

/** A plan with its cells and handles, ready to be submitted again and again. The flags and rows of
 * `step`, `instance` and `flight` are its key in the cache. */
typedef struct gpp__task_graph {
    gpp__step_plan step;
    int instance;         /* 0, or the index + 1 of the kept forward whose buffers it uses */
    int flight;           /* index of the flight that runs it */
    size_t here;          /* tasks that run on this rank */
    uint64_t used;        /* the cache's clock when it was last asked for */
    gpp__cell *cell;      /* [tasks] */
    gpp__ticket *ticket;  /* [tasks] */
    double *ms;           /* [tasks] how long each task took when it last ran */
    char *result;         /* [tasks * GPP__RESULT_BYTES] page-locked; NULL: no device is a GPU */
    gpp__handle **handle; /* [plan->buffers] NULL: this rank does not use it */
} gpp__task_graph;

enum { GPP__TASK_GRAPHS = 16 };

/** The task graphs used last (task_graph.c). */
typedef struct gpp__graph_cache {
    gpp__task_graph *graph[GPP__TASK_GRAPHS];
    uint64_t clock; /* finds the one that was not used for longest */
} gpp__graph_cache;

/** The handles of one class for one partition, edge, device, fetch or flight, by slot. */
typedef struct gpp__slots {
    int count;
    gpp__handle **handle;
} gpp__slots;

/** What a pipe has of each of its recipe's devices. */
typedef struct gpp__pipe_device {
    const gpp__device *in_recipe;
    gpp__executor executor;
    gpp__lane *lane;
    gpp__meter meter; /* of bytes in use */
    size_t planned;   /* bytes of the handles that the device pays for */
    int worker;       /* StarPU's number; -1: none yet */
    unsigned node;    /* memory node */
} gpp__pipe_device;

/** Flight 0 is for calls that wait, the others are for submitted steps. */
enum { GPP__FLIGHTS = 1 + GPP_MAX_SUBMITTED };

/** A run of a task graph: launched, landed, and then its outcome. */
typedef struct gpp__flight {
    gpp__job job;
    double launched;        /* when all ranks had agreed to launch it; seconds, CLOCK_MONOTONIC */
    bool hangs;             /* a task of this rank has not returned when the step was given up */
    gpp__task_graph *graph; /* the last one launched; NULL: none yet, or it was freed */
    bool flying;            /* launched, not landed */
    char *learn_attr;       /* [parameters][optimizer->attr_size] for its update */
    uint64_t steps;         /* the pipe's `steps` and `updates` at its launch */
    int64_t updates;
    double lr;
    int record; /* index of the recorder's step, -1: none */
    gpp_status status;
    gpp_error error;
    double loss; /* of the mini-batch; NAN without one */
    gpp_step_stats stats;
} gpp__flight;

/** Submitted steps that the caller has not waited for, oldest first. */
typedef struct gpp__submitted {
    int flight[GPP_MAX_SUBMITTED]; /* index of each step's flight */
    int count;
    int landed; /* the first `landed` of them have landed */
} gpp__submitted;

enum { GPP__KEPT_LISTS = 3 };

/** A forward that waits for its backward. */
typedef struct gpp__kept_forward {
    bool used;
    int name; /* -1: the call did not ask for one */
    gpp__batch rows;
    uint64_t step;                      /* of the random generator */
    gpp__slots *slots[GPP__KEPT_LISTS]; /* its edges, tapes and partial tapes */
} gpp__kept_forward;

typedef struct gpp__kept {
    gpp__kept_forward *forward; /* [count] */
    int count, next_name;
} gpp__kept;

/** A parameter group's own values; NAN: the optimizer's value counts. */
typedef struct gpp__group {
    double lr, weight_decay;
} gpp__group;

/** How parameters learn (rates.c). */
typedef struct gpp__learning {
    char *lr_schedule;     /* text; NULL: the rate is constant */
    double base_lr;        /* before the lr_schedule */
    gpp__group *group;     /* [recipe->parameters] */
    gpp__learned *learned; /* [recipe->replicas][recipe->parameters] */
    int *learn_at;         /* [network->nodes] first parameter of an operator */
} gpp__learning;

/** Where gpp_pipe_keep_losses wants unreduced losses (tensors.c). */
typedef struct gpp__kept_losses {
    gpp__rows each;
    int64_t rows;
} gpp__kept_losses;

/** The step that was waited for last. */
typedef struct gpp__last_step {
    bool known;
    gpp_step_stats stats;         /* bound_ms is computed from `graph`, unless that is NULL */
    const gpp__task_graph *graph; /* has the step's task times; NULL: they are gone */
} gpp__last_step;

/** A step that stops moving (watchdog.c, flight.c). */
typedef struct gpp__watchdog {
    double seconds; /* without a task ending after which a step fails; 0: wait for ever */
    bool stuck;     /* tasks of a step that failed so have not ended yet */
    bool held;      /* nor will they: a dead rank's messages have their buffers */
    char *late[GPP__MAX_TENSORS]; /* the step's memory that those tasks may still write */
} gpp__watchdog;

/** The pipe's entry in the list of pipes that have launched something (at_exit.c). */
typedef struct gpp__exit_entry {
    bool listed;
    gpp_pipe *next;
} gpp__exit_entry;

struct gpp_pipe {
    gpp__recipe *own_recipe; /* only gpp_pipe_freeze changes it */
    const gpp__recipe *recipe;

    gpp_comm *comm;  /* the ranks that run it; NULL: this process alone */
    uint64_t number; /* of the communicator's pipes */

    gpp__runtime runtime;
    gpp__pipe_device *device; /* [recipe->devices] those of other ranks are zeros */
    int *node_of;             /* [recipe->devices] memory node */

    gpp__slots *slots[GPP__CLASSES]; /* [slot_lists] */
    int slot_lists; /* the most of partitions, devices, edges, fetches and flights */
    gpp__kept kept;

    gpp__plan_choice choice;
    gpp__program_cache programs;
    gpp__graph_cache cache;

    uint64_t seed;
    gpp__learning learning;
    gpp__kept_losses losses;
    double *divisor; /* [recipe->replicas] of the loss, by each replica's part of a mini-batch; only
                        this rank's are known */
    char *told;      /* room for what the ranks tell each other of a step (flight.c) */

    gpp__flight flight[GPP__FLIGHTS];
    gpp__submitted submitted;
    uint64_t runs;               /* launched */
    uint64_t settled;            /* the last run when a failure was last reported */
    atomic_uint_fast64_t failed; /* run that has failed and was not reported; UINT64_MAX: none */
    gpp__last_step last;

    uint64_t steps;     /* training passes launched: the random generator's step */
    int64_t updates;    /* updates launched, those skipped for gradients that are not finite too */
    bool has_grads;     /* there are gradients to read and to update from */
    bool adds;          /* gradients add up over calls */
    bool as_evaluation; /* passes that go back run layers in evaluation mode */
    bool pending;       /* there are gradients that no update has used */
    bool ran;           /* tasks were submitted since it was cleared */
    bool broken;        /* a failure has left parameters or tasks in an unknown state */

    gpp__watchdog watchdog;
    struct gpp__recorder *recorder; /* NULL: nothing is recorded (record.c) */
    gpp__exit_entry at_exit;
};

/** As gpp__ranks_gather, among the ranks of the pipe. */
static inline gpp_status gpp__agree(const gpp_pipe *p, const char *what, gpp_status status,
                                    uint64_t key, gpp_error *err)
{
    return gpp__ranks_gather(&p->recipe->ranks, what, status, key, NULL, 0, NULL, err);
}
/** A task that runs on this rank. */
static inline bool gpp__runs_here(const gpp_pipe *p, const gpp__task_graph *g, size_t task)
{
    return gpp__recipe_has(p->recipe, g->step.plan->task[task].device);
}

/* --- executors: what runs the tasks of each device (executors.c) ------------------------------ */

gpp_status gpp__executors_start(gpp_pipe *pipe, gpp_error *err);
/** Hear of the memory nodes of other ranks' devices. @param status  of this rank so far */
gpp_status gpp__executors_agree(gpp_pipe *pipe, gpp_status status, gpp_error *err);
void gpp__executors_stop(gpp_pipe *pipe);

/* --- handles: the memory of buffers (handles.c) ----------------------------------------------- */

/** The handle of a buffer, registered with at least `bytes`.
 * @param other  second device that uses it, which may need a copy; -1: none */
gpp_status gpp__slot_get(gpp_pipe *pipe, int instance, gpp__class cls, int j, int slot,
                         size_t bytes, int device, int other, gpp__handle **handle, gpp_error *err);
/** Get a handle for every buffer that this rank uses. */
gpp_status gpp__slots_fill(gpp_pipe *pipe, gpp__task_graph *graph, gpp_error *err);
/** Bytes by which a plan's buffers would raise what is planned for a device. */
size_t gpp__slots_missing(const gpp_pipe *pipe, const gpp__task_graph *graph, int device);
/** Which list of its class has a buffer's handle. Losses and norms are read when the next step has
 * begun, so each flight has its own. */
static inline int gpp__slot_list(const gpp__task_graph *graph, const gpp__buffer *b)
{
    return b->cls == GPP__LOSSES || b->cls == GPP__NORMS ? graph->flight : b->j;
}
/** Which slot of its list has a buffer's handle. On an edge, the first micro-batch of a submitted
 * evaluation has a slot of its flight's own, so it need not wait for the last micro-batch of the
 * evaluation before. */
int gpp__slot_of(const gpp__task_graph *graph, const gpp__buffer *b);
/** Empty lists, pipe->slot_lists of them. NULL: no memory. */
gpp__slots *gpp__slots_new(const gpp_pipe *pipe);
void gpp__slots_free_all(gpp_pipe *pipe);

/** An entry of pipe->kept.forward that is not in use. */
gpp_status gpp__kept_find(gpp_pipe *pipe, int *index, gpp_error *err);
/** Forget all kept forwards. */
void gpp__discard_kept(gpp_pipe *pipe);

/** Between these two the host may use a buffer: on the memory node where its device has it if the
 * host can reach that node, else in main memory. */
gpp_status gpp__slot_acquire(gpp_pipe *pipe, gpp__class cls, int j, int slot, int mode, char **data,
                             gpp_error *err);
void gpp__slot_release(gpp_pipe *pipe, gpp__class cls, int j, int slot);
/** The same for the first buffer of a list. */
static inline gpp_status gpp__host_acquire(gpp_pipe *p, gpp__class cls, int j, int mode,
                                           char **data, gpp_error *err)
{
    return gpp__slot_acquire(p, cls, j, 0, mode, data, err);
}
static inline void gpp__host_release(gpp_pipe *p, gpp__class cls, int j)
{
    gpp__slot_release(p, cls, j, 0);
}

/* --- parameters (params.c) and learning (rates.c) --------------------------------------------- */

/** Room for what the pipe counts and was told for each parameter. */
gpp_status gpp__params_list(gpp_pipe *pipe, gpp_error *err);
/** The memory of parameters and optimizer state, and their initial values. */
gpp_status gpp__params_init(gpp_pipe *pipe, gpp_error *err);
void gpp__params_release(gpp_pipe *pipe);
/** `name` is the name of parameter `k`, or of its layer. */
bool gpp__param_is(const gpp_pipe *pipe, int k, const char *name);

/** Give the flight's job the rates and counts for its update. */
gpp_status gpp__learn_prepare(gpp_pipe *pipe, gpp__flight *flight, gpp_error *err);
/** Take back what the updates of run `run`, which has failed, have counted. */
void gpp__learn_restore(gpp_pipe *pipe, uint64_t run);

/* --- device calls: work on buffers outside steps (device_call.c) ------------------------------ */

enum { GPP__CALL_BUFFERS = 4 };
/** The first slot of a class for partition, edge or device `list`. */
typedef struct gpp__call_buffer {
    gpp__class cls;
    int list;
    int mode; /* GPP__READ ... */
} gpp__call_buffer;
typedef struct gpp__device_call {
    /** @param data  [buffers] where the device has the buffers. What the function writes to the
     * host's memory is there when the call is done. */
    gpp_status (*run)(const gpp__run *run, char *const data[], void *arg);
    void *arg;
    int buffers;
    gpp__call_buffer buffer[GPP__CALL_BUFFERS];
} gpp__device_call;
gpp_status gpp__device_call_run(gpp_pipe *pipe, int device, const gpp__device_call *call,
                                gpp_error *err);
/** Pack the weights of a parameter block again, after its parameters have changed. */
gpp_status gpp__pack_block(gpp_pipe *pipe, int home, gpp_error *err);

/* --- the caller's tensors (tensors.c) --------------------------------------------------------- */

/** A call's tensors, one for each input or output of the model. All are optional but x. */
typedef struct gpp__call {
    unsigned flags;
    const gpp_tensor *x, *target, *y, *grad_y, *grad_x;
} gpp__call;
/** Check the tensors and enter them in the job. @param batch  out: rows */
gpp_status gpp__take_tensors(gpp_pipe *pipe, gpp__job *job, const gpp__call *call,
                             gpp__batch *batch, gpp_error *err);
/**
 * An input that is not cut into micro-batches gets a gradient from each of the `pieces`. Split lets
 * the job write them all into memory of its own; join adds them up into the caller's tensor.
 * @param room  [inputs] NULL before split; join needs it
 * @param done  the step has succeeded: add up
 */
gpp_status gpp__split_fixed_gradients(const gpp_pipe *pipe, gpp__job *job, int pieces, char *room[],
                                      gpp_error *err);
void gpp__join_fixed_gradients(const gpp_pipe *pipe, gpp__job *job, int pieces, char *room[],
                               bool done);

/* --- task graphs (task_graph.c) --------------------------------------------------------------- */

/** The task graph of a step, from the cache or made, with new buffers where it needs them. It
 * belongs to the pipe.
 * @param instance  0, or index + 1 of a kept forward
 * @param flight    index of the flight that will run it */
gpp_status gpp__task_graph_get(gpp_pipe *pipe, unsigned flags, const gpp__batch *rows, int instance,
                               int flight, gpp__task_graph **graph, gpp_error *err);
void gpp__task_graph_free_all(gpp_pipe *pipe);

/* --- fetches: the caller's tensors on devices that have to copy them (fetch.c) ---------------- */

/** Before a launch: start copying from where the caller has the tensors now. After a failure
 * nothing reads them any more. */
gpp_status gpp__fetches_begin(const gpp_pipe *pipe, const gpp__task_graph *graph,
                              const gpp__job *job, gpp_error *err);
/** Wait for copies under way, where tasks that would read them could not be submitted. */
void gpp__fetches_wait(const gpp__task_graph *graph);

/* --- launching and landing (flight.c). Flights land in the order in which they were launched. - */

/** Room for what launches and landings exchange. */
gpp_status gpp__flights_init(gpp_pipe *pipe, gpp_error *err);
/** The flight that a call that waits, or a submitted step, may use next. NULL: all are in use. */
gpp__flight *gpp__flight_free(gpp_pipe *pipe, bool waits);
int gpp__flight_index(const gpp_pipe *pipe, const gpp__flight *flight);
/**
 * Submit the tasks of `graph`; the job knows its tensors. On failure no task was submitted and no
 * step is counted. Where StarPU refuses a task, the launch succeeds, the landing fails and the pipe
 * is broken.
 */
gpp_status gpp__flight_launch(gpp_pipe *pipe, gpp__flight *flight, gpp__task_graph *graph,
                              uint64_t step, gpp_error *err);
/** Wait for a flight, then take its loss, counts and statistics, or put state back after a failure.
 * @return its outcome, which is in flight->status too */
gpp_status gpp__flight_land(gpp_pipe *pipe, gpp__flight *flight);
/** The lower bound of pipe->last's time. */
gpp_status gpp__flight_bound(const gpp_pipe *pipe, double *ms, gpp_error *err);
/** Land all submitted steps. The caller can still wait for them. */
void gpp__settle(gpp_pipe *pipe);
/** The caller was told of the failure: steps launched from now on run again. */
void gpp__failure_seen(gpp_pipe *pipe);

/* --- state that a pass changes (state.c) ------------------------------------------------------ */

/** Fold the statistics of a pass that has succeeded into the layers' buffers. */
gpp_status gpp__commit_statistics(gpp_pipe *pipe, const gpp__task_graph *graph, gpp_error *err);
/** Put back what updates of a step that has failed have changed. */
gpp_status gpp__restore_backup(gpp_pipe *pipe, const gpp__task_graph *graph, gpp_error *err);

/* --- recording what steps do (record.c) ------------------------------------------------------- */

/** A step begins. Does nothing where nothing is recorded. Steps end in the order in which they
 * begin. @param step  out: index of its record, -1: none */
gpp_status gpp__record_begin(gpp_pipe *pipe, const gpp__task_graph *graph, int *step,
                             gpp_error *err);
/** All tasks of a step have ended. */
void gpp__record_end(gpp_pipe *pipe, const gpp__flight *flight);
void gpp__recorder_free(gpp_pipe *pipe);

/* --- steps that stop moving (watchdog.c, flight.c) -------------------------------------------- */

/** Describe who waits for whom in a step that does not move.
 * @param runs  out: a task of this rank runs
 * @return GPP_ETIMEDOUT */
gpp_status gpp__stall_report(const gpp_pipe *pipe, const gpp__flight *flight, bool *runs,
                             gpp_error *err);
/** Wait for tasks of a step that has failed with GPP_ETIMEDOUT. */
void gpp__stuck_settle(gpp_pipe *pipe);

/* --- the program may end while steps run (at_exit.c) ------------------------------------------ */

/** Before a pipe's first launch. @return GPP_OK or GPP_ENOMEM */
gpp_status gpp__exit_watch(gpp_pipe *pipe, gpp_error *err);
/** Before a pipe is freed. */
void gpp__exit_forget(gpp_pipe *pipe);
/** Begin a job. When another thread is ending the program, the step is cancelled at once. */
void gpp__exit_begin_job(gpp__job *job, uint64_t run, size_t tasks);
/** All tasks of a pass have run, so what they use is initialised. @param trained  backwards too */
void gpp__exit_note_success(bool trained);

#endif
