/*
 * graph/run/pipe.h: the inside of gpp_pipe, shared by pipe.c (making), exec.c (plans made executable),
 * step.c (running) and params.c (parameters by name).
 */
#ifndef GPP_GRAPH_PIPE_H
#define GPP_GRAPH_PIPE_H

#include <gridpipe/balance.h>
#include <gridpipe/pipe.h>

#include "codelets/tasks/cell.h"
#include "graph/model/model.h"
#include "graph/plan/plan.h"
#include "graph/run/runtime.h"
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
    GPP__DO_ADD = 128,       /* to the gradients at hand */
};

/** Rows of a mini-batch, or of its pieces, for each of the model's batches. */
typedef struct gpp__batch {
    int64_t rows[GPP__BATCHES];
} gpp__batch;

typedef struct gpp__script gpp__script;

/** The programs of all partitions for one number of rows. */
typedef struct gpp__program_set {
    gpp__batch rows;
    bool grad_input;
    int users;              /* execs */
    gpp__program **program; /* [partitions] */
    gpp__script **script;   /* [partitions] that the programs follow (budget.c); NULL: none */
    int copies;             /* micro-batches of a step; 0 without scripts */
    gpp__batch step[2];     /* rows of all pieces but the last, and of the last, for which scripts
                               were chosen */
} gpp__program_set;

/** What a program does with what it cannot keep: moves for gpp__program_follow. */
struct gpp__script {
    int moves;
    gpp__move move[];
};

/** A plan with everything its tasks need, ready to be submitted again and again. */
typedef struct gpp__task_graph {
    unsigned flags;
    gpp__batch rows;
    int instance;  /* of the buffers that outlive it: 0, or a kept forward's */
    int turn;      /* of the flights that run it */
    uint64_t used; /* clock of the cache */
    gpp__plan *plan;
    gpp__program_set *full,
        *last;           /* last: of the last micro-batch when it is shorter, else full again */
    gpp__cell *cell;     /* [tasks] */
    gpp__ticket *ticket; /* [tasks] */
    double *ms;          /* [tasks] that they took when they ran last */
    char *result;        /* [tasks · GPP__RESULT_BYTES] page-locked; NULL: no task is a GPU's */
    gpp__handle **block; /* [plan->buffers] */
} gpp__task_graph;

enum { GPP__TASK_GRAPHS = 16, GPP__PROGRAM_SETS = 2 * GPP__TASK_GRAPHS + 2 };

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

/** A value that goes from one partition to another, or to the caller. */
typedef struct gpp__crossing {
    int value, from, to, out_port, in_port;
    char name[2 * GPP__NAME]; /* of a skip, with its namespace; "": a boundary's */
} gpp__crossing;

/** Flights at once: that of calls that wait, and of steps that were submitted. */
enum { GPP__FLIGHTS = 1 + GPP_MAX_SUBMITTED };

/** A plan's run: launched, landed, and then what came of it. */
typedef struct gpp__flight {
    gpp__job job;
    gpp__task_graph *exec; /* what it runs, or has run; NULL: nothing yet, or that is forgotten */
    bool flying;           /* launched, not landed */
    char *learn_attr;      /* [parameters][optimizer->attr_size] for its update */
    uint64_t steps;        /* the pipe's numbers when it was launched */
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

/** A parameter or buffer by its name. */
typedef struct gpp__named {
    const char *name;
    int node, param;  /* operator of the network, its parameter */
    int partition, k; /* where that operator is: stage, number in it */

    double lr, weight_decay; /* of a parameter: its group's; NAN: the optimizer's */
} gpp__named;

struct gpp_pipe {
    gpp_model *model;
    const gpp__network *network; /* the model's */
    int partitions;              /* >= 1, also of a model without layers */
    int *balance, *first;        /* [partitions] layers; index of the first */
    int *home;                   /* [partitions] whose parameter block it uses */
    const char **requested;      /* [partitions] device by placement of layers, else NULL */
    bool shares;                 /* some partitions have one block together */
    int batches;                 /* mini-batches of different size that go in */
    int crossings;
    gpp__crossing *crossing;
    int chunks;
    gpp_checkpoint checkpoint;
    uint64_t seed;
    bool nan_is_error, ascending;
    const gpp__schedule *schedule; /* of tasks */
    gpp__schedule own_schedule;    /* of a table of the user's, */
    char *table_text;              /* which is this */
    size_t memory_limit;
    size_t activation_limit;  /* 0: what memory_limit leaves */
    gpp_operator_profile *op; /* [network->nodes] times to choose by; NULL: guesses */
    gpp__desc y_desc, target_desc;

    const gpp_loss *loss;
    gpp_loss *user_loss; /* made from options.loss_function */
    void *loss_attr;
    char *loss_text, *optimizer_text, *schedule_text; /* as given; NULL: none */
    float *class_weight;
    int64_t class_weights; /* how many; 0: none */
    gpp__rows each;        /* where unreduced losses go */
    int64_t each_rows;
    const gpp_optimizer *optimizer;
    void *optimizer_attr;
    double base_lr; /* before the schedule */
    double clip_norm;
    bool skip_nonfinite;
    gpp__learned *learned; /* [parameters] */
    int *learn_at;         /* [network->nodes] first parameter of an operator */

    bool draft; /* never runs: no workers, buffers or parameters, made to be planned */
    gpp__cuda_mode cuda_mode;
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
    gpp__slots *slots[GPP__CLASSES]; /* [slot_lists] */
    int slot_lists;                  /* most of partitions, devices, crossings and fetches */
    gpp__kept *kept;
    int kepts, next_name;

    gpp__task_graph *exec[GPP__TASK_GRAPHS];
    gpp__program_set *progset[GPP__PROGRAM_SETS];
    uint64_t clock;

    gpp__flight flight[GPP__FLIGHTS]; /* 0: of calls that wait */
    int queue[GPP_MAX_SUBMITTED];     /* flights of submitted steps, in their order: */
    int queued, landed;          /* not waited for by the caller; of them, the first have landed */
    uint64_t runs;               /* launched */
    atomic_uint_fast64_t failed; /* run that has failed and was not reported; UINT64_MAX: none */
    gpp_step_stats last; /* of the last call that was waited for; without its bound as long as */
    const gpp__task_graph *last_exec; /* has the times of its tasks */
    bool has_last;
    uint64_t steps;       /* training passes launched: the random generator's step */
    int64_t updates;      /* of the optimizer, launched; also those skipped for want of finite
                             gradients */
    bool has_grads, adds; /* adds: gradients add up over calls */
    bool as_evaluation;   /* passes that go back run layers in evaluation mode */
    bool pending;         /* there are gradients that no update has used */
    bool ran;             /* tasks were submitted since it was cleared */
    bool broken;          /* a step failed after some partitions were updated */
    double watchdog;      /* seconds without a task ending after which a step fails; 0: none */
    bool stuck;           /* tasks of a step that has failed so have not ended yet */
    char *late[GPP__MAX_TENSORS];   /* memory of the step's that those may still write */
    struct gpp__recorder *recorder; /* NULL: nothing is noted (trace.h) */
    bool watched;                   /* has launched something, and is in at_exit.c's list: */
    gpp_pipe *next_watched;

    gpp__named *named; /* parameters, then buffers */
    int parameters, buffers;
    char *names;
};

/** A pipe that is never run, only planned (gpp__task_graph_plan): the runtime is not started, nothing
 * large is allocated, and no limit of memory applies. */
gpp_status gpp__pipe_draft(gpp_pipe **pipe, const gpp_model *model, const gpp_pipe_options *options,
                           gpp_error *err);
/** What a training step of it consists of (GPP__DO_...), as far as it has a loss and an optimizer.
 */
unsigned gpp__pipe_training(const gpp_pipe *pipe);

/* Making a pipe (pipe.c): its loss and optimizer (choose.c), its partitions and what goes between
 * them (cut.c), their devices (place.c). */
gpp_status gpp__choose_loss(gpp_pipe *pipe, const gpp_pipe_options *options, gpp_error *err);
gpp_status gpp__choose_optimizer(gpp_pipe *pipe, const gpp_pipe_options *options, gpp_error *err);
gpp_status gpp__choose_schedule(gpp_pipe *pipe, const gpp_pipe_options *options, gpp_error *err);
gpp_status gpp__cut(gpp_pipe *pipe, const gpp_pipe_options *options, gpp_error *err);
gpp_status gpp__cut_check_placement(const gpp_pipe *pipe, const gpp_pipe_options *options,
                                    gpp_error *err);
gpp_status gpp__cut_homes(gpp_pipe *pipe, gpp_error *err);
gpp_status gpp__cut_crossings(gpp_pipe *pipe, gpp_error *err);
gpp_status gpp__place_devices(gpp_pipe *pipe, const gpp_pipe_options *options, gpp_error *err);
gpp_status gpp__place_ports(gpp_pipe *pipe, gpp_error *err);
/** Bytes that a device may need by plan: options.memory_limit, or what a GPU has if that is less.
 * 0: any. */
size_t gpp__place_limit(const gpp_pipe *pipe, int device);
/** Loss and optimizer can be where the partitions are. */
gpp_status gpp__place_check(const gpp_pipe *pipe, gpp_error *err);
/** What this thread prepares the kernels of partition `j` with, until gpp__place_prepared; NULL: it
 * is on CPU cores. */
gpp_status gpp__place_prepare(gpp_pipe *pipe, int j, struct gpp__cuda **cuda, gpp_error *err);
void gpp__place_prepared(struct gpp__cuda *cuda);
void gpp__place_release(gpp_pipe *pipe);

/** The executable plan of a step; made, and buffers with it, when it is new. Belongs to the pipe.
 * @param instance  0, or that of a kept forward  @param turn  of the flight that will run it */
gpp_status gpp__task_graph_get(gpp_pipe *pipe, unsigned flags, const gpp__batch *rows, int instance,
                               int turn, gpp__task_graph **exec, gpp_error *err);
/** Programs of a step that was cut into `m` pieces: of all but the last, and of the last. Give them
 * back with gpp__program_set_put. */
gpp_status gpp__program_sets_get(gpp_pipe *pipe, const gpp__batch *full, const gpp__batch *last,
                                 int m, bool grad_input, bool trains, gpp__program_set *set[2],
                                 gpp_error *err);
void gpp__program_set_put(gpp_pipe *pipe, gpp__program_set *set);
/** A plan over given programs. */
gpp_status gpp__task_graph_make_plan(gpp_pipe *pipe, unsigned flags, int m,
                                     const gpp__program_set *full, const gpp__program_set *last,
                                     gpp__plan **plan, gpp_error *err);

/* What is kept and what is made again, where there is room for a part (budget.c). */

/** Choose by the programs of `full`, and let them and those of `last`, which may be the same,
 * follow.
 */
gpp_status gpp__budget_choose(gpp_pipe *pipe, gpp__program_set *full, gpp__program_set *last, int m,
                              gpp_error *err);
/** Keep the times of a profile. */
gpp_status gpp__budget_take_times(gpp_pipe *pipe, const gpp_profile *profile, gpp_error *err);
/** A guess of an operator's forward, in flops (cut.c). */
double gpp__guess_cost(const gpp__layer *layer);

/** Plan and programs of a step, of a draft as well; nothing that could run. Release with
 * gpp__task_graph_put. */
gpp_status gpp__task_graph_draft(gpp_pipe *pipe, unsigned flags, const gpp__batch *rows,
                                 gpp__task_graph *exec, gpp_error *err);
void gpp__task_graph_put(gpp_pipe *pipe, gpp__task_graph *exec);
/** Only the plan, for a picture. Free with gpp__plan_free. */
gpp_status gpp__task_graph_plan(gpp_pipe *pipe, unsigned flags, const gpp__batch *rows,
                                gpp__plan **plan, gpp_error *err);
void gpp__task_graph_free_all(gpp_pipe *pipe);

/** The block of a buffer, registered with at least `bytes`. */
gpp_status gpp__slot_get(gpp_pipe *pipe, int instance, gpp__class cls, int j, int slot,
                         size_t bytes, int device, int other, gpp__handle **block, gpp_error *err);
/* --- the caller's tensors on devices that have to fetch them (fetches.c) ---------------------- */

/** How many there are at most. */
int gpp__fetches_most(const gpp_pipe *pipe);
/** Those of a step. @return their number */
int gpp__fetches_find(const gpp_pipe *pipe, const gpp__program_set *full,
                      const gpp__program_set *last, gpp__fetch fetch[]);
/** Before a launch: where the caller has them. When it fails, nothing reads them any more. */
gpp_status gpp__fetches_begin(const gpp_pipe *pipe, const gpp__task_graph *exec,
                              const gpp__job *job, gpp_error *err);
/** Wait for what is on its way, where tasks that would read it could not be submitted. */
void gpp__fetches_wait(const gpp__task_graph *exec);

/** Bytes by which a plan's buffers would make a device's plan grow. */
size_t gpp__slots_missing(const gpp_pipe *pipe, const gpp__task_graph *exec, int device);
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
gpp_status gpp__host_acquire(gpp_pipe *pipe, gpp__class cls, int j,
                             enum starpu_data_access_mode mode, char **data, gpp_error *err);
void gpp__host_release(gpp_pipe *pipe, gpp__class cls, int j);

/* Work on buffers outside steps (call.c). */
enum { GPP__MOST_USES = 4 };
/** The first slot of a class of partition, edge or device `list`. */
typedef struct gpp__call_buffer {
    gpp__class cls;
    int list;
    enum starpu_data_access_mode mode;
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
 * Submit the tasks of `exec`; the job knows its tensors. Nothing has changed when it fails, unless
 * the pipe is broken.
 */
gpp_status gpp__flight_launch(gpp_pipe *pipe, gpp__flight *flight, gpp__task_graph *exec,
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

/** GPP_ETIMEDOUT: who waits for whom in a step that does not move (watchdog.c). */
gpp_status gpp__stall_report(const gpp_pipe *pipe, const gpp__flight *flight, gpp_error *err);
/** Wait for tasks that a watchdog has given up. */
void gpp__stuck_settle(gpp_pipe *pipe);

/** Fold the statistics of the step that has just succeeded into the layers' buffers (state.c). */
gpp_status gpp__commit_statistics(gpp_pipe *pipe, const gpp__task_graph *exec, gpp_error *err);
/** Put back what updates of the step that has just failed have changed. */
gpp_status gpp__restore_backup(gpp_pipe *pipe, const gpp__task_graph *exec, gpp_error *err);
/** Forget all kept forwards. */
void gpp__discard_kept(gpp_pipe *pipe);

/** The stage that knows how long the blocks of partition j are. */
const gpp__stage *gpp__block_end(const gpp_pipe *pipe, int partition);
/** Bytes of the optimizer's state in a partition's block; 0 without an optimizer. */
size_t gpp__optimizer_bytes(const gpp_pipe *pipe, int partition);
/** Count and name the parameters and buffers. A plan's buffers depend on their number, so this
 * comes before the first plan, a draft's as well. */
gpp_status gpp__params_list(gpp_pipe *pipe, gpp_error *err);
/** The memory of parameters and optimizer state, and their initial values. */
gpp_status gpp__params_init(gpp_pipe *pipe, gpp_error *err);
void gpp__params_release(gpp_pipe *pipe);

#endif
