/*
 * graph/run/pipe.h: the inside of gpp_pipe, shared by pipe.c (making), task_graph.c (plans made
 * executable), step.c (running) and params.c (parameters by name).
 */
#ifndef GPP_GRAPH_PIPE_H
#define GPP_GRAPH_PIPE_H

#include <gridpipe/balance.h>
#include <gridpipe/pipe.h>

#include "codelets/tasks/cell.h"
#include "graph/plan/step.h"
#include "graph/run/runtime.h"
#include "sched/policy.h"

/** A plan with everything its tasks need, ready to be submitted again and again. */
typedef struct gpp__task_graph {
    gpp__step_plan step; /* its flags and rows are the key, with: */
    int instance;        /* of the buffers that outlive it: 0, or a kept forward's */
    int turn;            /* of the flights that run it */
    uint64_t used;       /* clock of the cache */
    gpp__cell *cell;     /* [tasks] */
    gpp__ticket *ticket; /* [tasks] */
    double *ms;          /* [tasks] that they took when they ran last */
    char *result;        /* [tasks · GPP__RESULT_BYTES] page-locked; NULL: no task is a GPU's */
    gpp__handle **block; /* [plan->buffers] */
} gpp__task_graph;

enum { GPP__TASK_GRAPHS = 16 };

/** The blocks of one class for one partition (edge, device), by slot. */
typedef struct gpp__slots {
    int count;
    gpp__handle **block;
} gpp__slots;

typedef struct gpp__device_state {
    const gpp__device *device;
    gpp__executor executor;
    gpp__lane *lane;
    gpp__meter meter;
    size_t planned;
    int worker;
    unsigned node;
} gpp__device_state;

/** Flights at once: that of calls that wait, and of steps that were submitted. */
enum { GPP__FLIGHTS = 1 + GPP_MAX_SUBMITTED };

/** A plan's run: launched, landed, and then what came of it. */
typedef struct gpp__flight {
    gpp__job job;
    gpp__task_graph *graph; /* what it runs, or has run; NULL: nothing yet, or that is forgotten */
    bool flying;            /* launched, not landed */
    char *learn_attr;       /* [parameters][optimizer->attr_size] for its update */
    uint64_t steps;         /* the pipe's numbers when it was launched */
    int64_t updates;
    double lr;
    int noted; /* step of the recorder, -1: none */
    gpp_status status;
    gpp_error error;
    double loss; /* of the mini-batch; NAN without one */
    gpp_step_stats stats;
} gpp__flight;

enum { GPP__KEPT_LISTS = 3 };

/** A forward that waits for its backward: what it has made is in instance (its index + 1). */
typedef struct gpp__kept {
    bool used;
    int name; /* -1: the call did not ask for one */
    gpp__batch rows;
    uint64_t step;                      /* of the random generator */
    gpp__slots *slots[GPP__KEPT_LISTS]; /* edges, tapes, what is kept beside them */
} gpp__kept;

/** What a group says of a parameter; NAN: what the optimizer says. */
typedef struct gpp__group {
    double lr, weight_decay;
} gpp__group;

struct gpp_pipe {
    gpp__recipe *own_recipe; /* changed by gpp_pipe_freeze alone */
    const gpp__recipe *recipe;

    gpp__runtime runtime;
    gpp__device_state *state; /* [recipe->devices] */
    int *node_of;             /* [recipe->devices] memory node */

    gpp__slots *slots[GPP__CLASSES]; /* [slot_lists] */
    int slot_lists;                  /* most of partitions, devices, edges and fetches */
    gpp__kept *kept;                 /* [kepts] */
    int kepts, next_name;

    gpp__plan_choice choice;
    gpp__program_cache programs;
    gpp__task_graph *graph[GPP__TASK_GRAPHS];
    uint64_t clock; /* by which the one is found that was not used for longest */

    /* Learning. */
    uint64_t seed;
    char *lr_schedule_text; /* NULL: the rate is constant */
    double base_lr;         /* before the schedule */
    gpp__group *group;      /* [recipe->parameters] */
    gpp__learned *learned;  /* [recipe->parameters] */
    int *learn_at;          /* [network->nodes] first parameter of an operator */
    gpp__rows each;         /* where unreduced losses go */
    int64_t each_rows;

    /* Steps that run. */
    gpp__flight flight[GPP__FLIGHTS]; /* 0: of calls that wait */
    int queue[GPP_MAX_SUBMITTED];     /* flights of submitted steps, in their order */
    int queued;                       /* that the caller has not waited for */
    int landed;                       /* the first so many of them have landed */
    uint64_t runs;                    /* launched */
    atomic_uint_fast64_t failed; /* run that has failed and was not reported; UINT64_MAX: none */

    /* What has come of them. */
    bool has_last;
    gpp_step_stats last; /* of the last call that was waited for; without its bound as long as: */
    const gpp__task_graph *last_graph; /* has the times of its tasks */
    uint64_t steps;                    /* training passes launched: the random generator's step */
    int64_t updates; /* of the optimizer, launched; also those skipped because gradients were not
                        finite */
    bool has_grads;
    bool adds;          /* gradients add up over calls */
    bool as_evaluation; /* passes that go back run layers in evaluation mode */
    bool pending;       /* there are gradients that no update has used */
    bool ran;           /* tasks were submitted since it was cleared */
    bool broken;        /* a step failed after some partitions were updated */
    double watchdog;    /* seconds without a task ending after which a step fails; 0: none */
    bool stuck;         /* tasks of a step that has failed so have not ended yet */
    char *late[GPP__MAX_TENSORS]; /* the step's memory that those tasks may still write */

    struct gpp__recorder *recorder; /* NULL: nothing is noted (record.c) */
    bool watched;                   /* has launched something, and is in at_exit.c's list: */
    gpp_pipe *next_watched;
};

/* --- executors: what runs the tasks of each device (executors.c) ------------------------------- */

gpp_status gpp__executors_start(gpp_pipe *pipe, gpp_error *err);
void gpp__executors_stop(gpp_pipe *pipe);

/** The executable plan of a step; made, and buffers with it, when it is new. Belongs to the pipe.
 * @param instance  0, or that of a kept forward  @param turn  of the flight that will run it */
gpp_status gpp__task_graph_get(gpp_pipe *pipe, unsigned flags, const gpp__batch *rows, int instance,
                               int turn, gpp__task_graph **graph, gpp_error *err);
void gpp__task_graph_free_all(gpp_pipe *pipe);

/** The block of a buffer, registered with at least `bytes`. */
gpp_status gpp__slot_get(gpp_pipe *pipe, int instance, gpp__class cls, int j, int slot,
                         size_t bytes, int device, int other, gpp__handle **block, gpp_error *err);
/* --- the caller's tensors on devices that have to fetch them (fetches.c) ---------------------- */

/** Before a launch: where the caller has them. When it fails, nothing reads them any more. */
gpp_status gpp__fetches_begin(const gpp_pipe *pipe, const gpp__task_graph *graph,
                              const gpp__job *job, gpp_error *err);
/** Wait for what is on its way, where tasks that would read it could not be submitted. */
void gpp__fetches_wait(const gpp__task_graph *graph);

/** Bytes by which a plan's buffers would make a device's plan grow. */
size_t gpp__slots_missing(const gpp_pipe *pipe, const gpp__task_graph *graph, int device);
/** Which list of its class's a buffer's slots are in. */
static inline int gpp__slot_list(const gpp__task_graph *e, const gpp__buffer *b)
{
    return b->cls == GPP__LOSSES || b->cls == GPP__NORMS
               ? e->turn
               : b->j; /* read when the next step has begun */
}
/** Which of its list's slots a buffer is in. The first micro-batch of a submitted evaluation has
 * one of its turn's: it need not wait for the last of the evaluation before. */
int gpp__slot_of(const gpp__task_graph *e, const gpp__buffer *b);
/** Empty lists, one for each partition, device or crossing. NULL: no memory. */
gpp__slots *gpp__slots_new(const gpp_pipe *pipe);
void gpp__slots_free_all(gpp_pipe *pipe);
/** An entry of pipe->kept that is not in use. */
gpp_status gpp__kept_find(gpp_pipe *pipe, int *index, gpp_error *err);

/** Buffers for the host to use between these two, on the memory node where their device has them.
 */
gpp_status gpp__host_acquire(gpp_pipe *pipe, gpp__class cls, int j, int mode, char **data,
                             gpp_error *err);
void gpp__host_release(gpp_pipe *pipe, gpp__class cls, int j);

/* Work on buffers outside steps (device_call.c). */
enum { GPP__MOST_USES = 4 };
/** The first slot of a class of partition, edge or device `list`. */
typedef struct gpp__call_buffer {
    gpp__class cls;
    int list;
    int mode; /* GPP__READ ... */
} gpp__call_buffer;
typedef struct gpp__device_call {
    /** @param data  [uses] where the device has the buffers; what it gives the host is there when
     * the call is done */
    gpp_status (*run)(const gpp__run *run, char *const data[], void *arg);
    void *arg;
    int uses;
    gpp__call_buffer use[GPP__MOST_USES];
} gpp__device_call;
gpp_status gpp__device_call_run(gpp_pipe *pipe, int device, const gpp__device_call *call,
                                gpp_error *err);
/** Make packed weights from the parameters of a block again. */
gpp_status gpp__pack_block(gpp_pipe *pipe, int home, gpp_error *err);

/** A call's tensors, one for each input or output, all optional but x. */
typedef struct gpp__call {
    unsigned flags;
    const gpp_tensor *x, *target, *y, *grad_y, *grad_x;
} gpp__call;
/** Check them and note them in the job (tensors.c). @param batch out: rows */
gpp_status gpp__take_tensors(gpp_pipe *pipe, gpp__job *job, const gpp__call *call,
                             gpp__batch *batch, gpp_error *err);
/** Inputs that are not cut have a gradient from each of the `pieces`: let the job write all of
 * them, then add them up for the caller. @param room [inputs] NULL before the first, for both */
gpp_status gpp__split_fixed_gradients(const gpp_pipe *pipe, gpp__job *job, int pieces, char *room[],
                                      gpp_error *err);
void gpp__join_fixed_gradients(const gpp_pipe *pipe, gpp__job *job, int pieces, char *room[],
                               bool done);

/** Give the flight's job what its update learns with (rates.c). */
gpp_status gpp__learn_prepare(gpp_pipe *pipe, gpp__flight *flight, gpp_error *err);
/** Forget what the updates of run `run`, which has failed, have counted. */
void gpp__learn_restore(gpp_pipe *pipe, uint64_t run);

/* --- launching and landing (flight.c). Flights land in the order in which they were launched. --- */

/** The flight that a call that waits, or a submitted step, may use next. NULL: all are in use. */
gpp__flight *gpp__flight_free(gpp_pipe *pipe, bool waits);
int gpp__flight_index(const gpp_pipe *pipe, const gpp__flight *flight);
/**
 * Submit the tasks of `graph`; the job knows its tensors. Nothing has changed when it fails, unless
 * the pipe is broken.
 */
gpp_status gpp__flight_launch(gpp_pipe *pipe, gpp__flight *flight, gpp__task_graph *graph,
                              uint64_t step, gpp_error *err);
/** Wait for it and do what its end asks for: state put back after a failure, statistics, counts,
 * the loss. Its outcome is in the flight then, and returned. */
gpp_status gpp__flight_land(gpp_pipe *pipe, gpp__flight *flight);
/** The bound of pipe->last. */
gpp_status gpp__flight_bound(const gpp_pipe *pipe, double *ms, gpp_error *err);
/** Land all submitted steps. The caller can still wait for them. */
void gpp__settle(gpp_pipe *pipe);
/** A failure was reported: what comes next runs again. */
void gpp__failure_seen(gpp_pipe *pipe);
/** Parameter `k` of the pipe is, or is of the layer, called `name`. */
bool gpp__param_is(const gpp_pipe *pipe, int k, const char *name);

/* --- the program may end while steps run (at_exit.c) ------------------------------------------ */

/** Before a pipe's first launch. @return GPP_OK or GPP_ENOMEM */
gpp_status gpp__exit_watch(gpp_pipe *pipe, gpp_error *err);
/** Before a pipe is freed. */
void gpp__exit_forget(gpp_pipe *pipe);
/** gpp__job_begin; while another thread ends the program, the step is cancelled at once. */
void gpp__exit_begin_job(gpp__job *job, uint64_t run, size_t tasks);
/** All tasks of a pass have run, so what they use is initialised. @param trained  backwards too */
void gpp__exit_note_success(bool trained);

/* --- noting what steps do (record.c) ------------------------------------------------------------ */

/** A step begins. Does nothing where nothing is recorded. Steps end in the order in which they begin.
 * @param step  out: its number, -1: none */
gpp_status gpp__record_begin(gpp_pipe *pipe, const gpp__task_graph *graph, int *step,
                             gpp_error *err);
/** All tasks of a step have ended. */
void gpp__record_end(gpp_pipe *pipe, const gpp__flight *flight);
void gpp__recorder_free(gpp_pipe *pipe);

/** GPP_ETIMEDOUT: who waits for whom in a step that does not move (watchdog.c). */
gpp_status gpp__stall_report(const gpp_pipe *pipe, const gpp__flight *flight, gpp_error *err);
/** Wait for tasks that a watchdog has given up. */
void gpp__stuck_settle(gpp_pipe *pipe);

/** Fold the statistics of the step that has just succeeded into the layers' buffers (state.c). */
gpp_status gpp__commit_statistics(gpp_pipe *pipe, const gpp__task_graph *graph, gpp_error *err);
/** Put back what updates of the step that has just failed have changed. */
gpp_status gpp__restore_backup(gpp_pipe *pipe, const gpp__task_graph *graph, gpp_error *err);
/** Forget all kept forwards. */
void gpp__discard_kept(gpp_pipe *pipe);

/** What the pipe counts and was told for each parameter. */
gpp_status gpp__params_list(gpp_pipe *pipe, gpp_error *err);
/** The memory of parameters and optimizer state, and their initial values. */
gpp_status gpp__params_init(gpp_pipe *pipe, gpp_error *err);
void gpp__params_release(gpp_pipe *pipe);

#endif
