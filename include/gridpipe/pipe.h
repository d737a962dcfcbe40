/*
 * include/gridpipe/pipe.h: a model cut into partitions on devices, ready to run.
 *
 * A pipe holds the parameters, their gradients, the optimizer's state and every buffer a step
 * needs. It runs on the StarPU task runtime, which the first pipe of a process starts and the last
 * one stops (or which the application has started itself). One thread at a time may use a pipe;
 * several pipes may exist. Pipes do not survive fork: a child process must not touch its parent's.
 *
 * Results do not depend on the cut: for the same chunks and seed, outputs, losses, gradients and
 * parameters are identical bit for bit whatever the number of partitions, their devices (of one
 * kind) and the checkpoint mode.
 *
 * Schedule and checkpointing: Huang et al., "GPipe", arXiv 1811.06965; Kim et al., "torchgpipe",
 * arXiv 2004.09910.
 */
#ifndef GRIDPIPE_PIPE_H
#define GRIDPIPE_PIPE_H

#include <gridpipe/error.h>
#include <gridpipe/loss.h>
#include <gridpipe/model.h>

GPP_BEGIN_DECLS

typedef struct gpp_pipe gpp_pipe;
struct gpp_profile;

/** Which micro-batches keep only their boundary and are recomputed before their backward. */
typedef enum gpp_checkpoint {
    GPP_CHECKPOINT_EXCEPT_LAST = 0, /* all but the last micro-batch that is actually produced */
    GPP_CHECKPOINT_ALWAYS = 1,
    GPP_CHECKPOINT_NEVER = 2,

    /* Recompute as little as possible: keep as much of every micro-batch as fits into
     * activation_limit. Where not even one micro-batch's recomputation fits, recompute it piece by
     * piece. */
    GPP_CHECKPOINT_BUDGET = 3,
} gpp_checkpoint;

/** "except_last", "always", "never", "budget"; NULL for a value outside the enum. */
GPP_API const char *gpp_checkpoint_name(gpp_checkpoint mode);

/** The mode of that name. @return GPP_OK or GPP_EINVAL (the message lists them) */
GPP_API gpp_status gpp_checkpoint_parse(const char *name, gpp_checkpoint *mode, gpp_error *err);

/** What matrix products and convolutions on a GPU compute with. Tensors, parameters and sums are
 * float32 in any case. */
typedef enum gpp_math {
    GPP_MATH_F32 = 0,  /* float32 */
    GPP_MATH_TF32 = 1, /* operands rounded to TF32: ten bits behind the point */
    GPP_MATH_BF16 = 2, /* operands rounded to bfloat16: seven bits behind the point */
} gpp_math;

/** Start from GPP_PIPE_OPTIONS_INIT, which leaves every choice to the library; fields may be added
 * at the end. */
typedef struct gpp_pipe_options {
    size_t struct_size; /* set by GPP_PIPE_OPTIONS_INIT */

    /* 0: one partition or, when layers are placed (gpp_model_place) and there is no balance, as
     * many as the placement implies. Without a balance the cut makes the costliest partition as
     * cheap as possible, by a guess from the layers' flops and bytes. */
    int partitions;

    /* [partitions] number of layers of each partition, all >= 1, sum = layers of the model. NULL:
     * chosen automatically, or by the placement. */
    const int *balance;

    /*
     * [device_count] where partition j runs:
     *
     *   "cpu"         every core this process may use
     *   "cpu:K"       core K; cores have logical numbers, from 0
     *   "cpu:A-B,C"   those cores
     *   "cuda:K"      GPU K, as CUDA counts (docs/gpu.md)
     *
     * Partitions may share a device: name it repeatedly. Surplus entries are ignored. NULL: the
     * GPUs, ordered such that neighbours are near each other; without GPUs, the cores this process
     * may use, divided into one set for each partition.
     *
     * Layers may be placed instead, with devices NULL. Then consecutive layers on the same device
     * form a partition; a layer without a placement is where the one before it is. With a balance,
     * or with devices, every placed layer must be in a partition on its device.
     */
    const char *const *devices;
    int device_count;

    /* How many micro-batches to cut a mini-batch into, >= 1. By torch.chunk's rule a micro-batch
     * has ceil(B/chunks) rows, and the last one what is left. */
    int chunks;
    gpp_checkpoint checkpoint;
    uint64_t seed; /* of initial parameters and dropout */

    /* "cross_entropy reduction=mean label_smoothing=0.1". docs/reference.md describes the losses,
     * gpp_loss_name lists their names. NULL: none. With reduction=none the loss is the sum, and
     * gradients are those of the sum. */
    const char *loss;

    /* "adam lr=0.001 betas=0.9,0.98". docs/reference.md describes the optimizers,
     * gpp_optimizer_name lists their names. NULL: none. */
    const char *optimizer;

    /* A loss that is not finite fails the step with GPP_ENUMERIC, and nothing is updated. */
    bool nan_is_error;

    /* Rows of the largest mini-batch expected. Buffers for it are allocated at once. 0: allocate at
     * the first step. */
    int64_t batch;

    /* Bytes that a device may need according to the plan. A larger plan is refused with GPP_ENOMEM.
     * 0: no limit. */
    size_t memory_limit;

    /* Run backwards by ascending micro-batch. Sums then differ in the last bits. */
    bool ascending_backward;

    /* Batch normalisations that track statistics update them once for the whole mini-batch instead
     * of for every micro-batch, with the biased variance, as torchgpipe does. */
    bool deferred_batch_norm;

    const float *class_weights; /* [class_weight_count] of cross_entropy and nll; copied */
    int class_weight_count;
    const gpp_loss_function *loss_function; /* a loss of the caller's, instead of `loss`; copied */
    /* How the learning rate changes with the number of updates: gridpipe/lr_schedule.h. NULL: it
     * does not change. */
    const char *lr_schedule;

    /* > 0: scale the gradients so that their norm, over all parameters that learn, is at most this.
     * The cost is one reading of the gradients; and no partition's update starts before every
     * backward is done. */
    double clip_norm;

    /* Skip an update whose gradients are not all finite; gpp_step_stats.skipped says so. The cost
     * is that of clip_norm. */
    bool skip_nonfinite;

    /* With GPP_CHECKPOINT_BUDGET: bytes for what a partition keeps or recomputes for its backwards,
     * of all micro-batches together (the classes "kept" and "tape" of GPP_PICTURE_TEXT). 0: what
     * memory_limit leaves. */
    size_t activation_limit;

    /* With GPP_CHECKPOINT_BUDGET: times from which to choose what to keep (gridpipe/balance.h).
     * Read during the call. NULL: a guess from flops and bytes. */
    const struct gpp_profile *profile;

    /*
     * The order in which devices run their tasks: a name (gpp_schedule_name lists them), or
     * "table:" followed by a table of the caller's. docs/reference.md explains both. NULL: gpipe.
     * Only gpipe runs backwards by descending micro-batch; the others give the same bits as gpipe
     * with ascending_backward. Schedules that compute the gradients of parameters in tasks of their
     * own (zb-h1, auto) cannot be combined with GPP_CHECKPOINT_BUDGET.
     */
    const char *schedule;

    gpp_math cuda_math; /* what matrix products and convolutions on GPUs compute with */

    /* On GPUs, let libraries use algorithms whose sums run in any order. They may be faster, but
     * two runs, or two cuts, then differ in the last bits. */
    bool cuda_any_algorithm;

    /*
     * Ranks that run the pipe together (gridpipe/comm.h). Partitions go to ranks in blocks, and on
     * each rank to its devices; with `devices`, "rank:2/cpu:0" says which rank, "rank:2" leaves the
     * cores to it. The communicator outlives the pipe. NULL: this process is alone.
     */
    struct gpp_comm *comm;

    /*
     * Copies of the pipeline that train together (data parallelism): each runs its part of every
     * mini-batch, cut into `chunks` pieces, then their gradients are added up, and all of them make
     * the same update. Their partitions go to ranks and devices behind one another: partition j of
     * replica r is number r * partitions + j in `devices` and wherever the library numbers
     * partitions. A schedule or table is that of one replica. Results depend on replicas and
     * chunks, not on where the replicas are. 0 counts as 1.
     */
    int replicas;

    /*
     * With replicas: each keeps the optimizer's state of its shard of every partition's parameters
     * alone, updates that shard, and sends it to the others (ZeRO stage 1: Rajbhandari et al.,
     * arXiv 1910.02054). The state takes 1 / replicas of the memory on each; what is sent grows by
     * half. Results are the same bits. Partitions that share parameters keep the whole state.
     * GPP_EUNSUPPORTED: an update of the optimizer may fail, so it could not be undone everywhere.
     */
    bool shard_optimizer;
} gpp_pipe_options;

#define GPP_PIPE_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(gpp_pipe_options), 0, NULL, NULL, 0, 1, GPP_CHECKPOINT_EXCEPT_LAST, 0, NULL, NULL,  \
            false, 0, 0, false, false, NULL, 0, NULL, NULL, 0, false, 0, NULL, NULL, GPP_MATH_F32, \
            false, NULL, 1, false                                                                  \
    }

/** Names of the built-in losses, optimizers and schedules (orders of tasks), NULL past the last.
 * Static storage. */
GPP_API const char *gpp_loss_name(size_t k);
GPP_API const char *gpp_optimizer_name(size_t k);
GPP_API const char *gpp_schedule_name(size_t k);

/**
 * Cut `model`, place its partitions, initialise its parameters.
 *
 * @param pipe     out; NULL on failure. Free with gpp_pipe_free
 * @param model    its input must be set (gpp_model_set_input); copied, so the caller may free it
 * @param options  NULL: all defaults
 * @return GPP_OK, GPP_EINVAL (an option is out of range; the message says what is allowed),
 *         GPP_ESYNTAX, GPP_ENOENT (loss or optimizer: unreadable, unknown), GPP_ESHAPE (the loss
 * cannot take the model's output), GPP_ESTATE (no input set), GPP_ENODEV (no such device, or
 *         fewer `devices` than partitions; without a list partitions share what there is),
 *         GPP_ENOMEM (also: the plan exceeds memory_limit), GPP_EKERNEL, GPP_ERUNTIME (StarPU could
 *         not be started)
 */
GPP_API gpp_status gpp_pipe_new(gpp_pipe **pipe, const gpp_model *model,
                                const gpp_pipe_options *options, gpp_error *err);

/** Frees the pipe and everything it holds; NULL is fine. */
GPP_API void gpp_pipe_free(gpp_pipe *pipe);

/**
 * One training step: forward, loss, backward, update. Here and below, outputs (y, grad_x) must not
 * overlap inputs.
 *
 * x and y are arrays of tensors: x[k] is input k of the model, y[k] is output k. A loss needs a
 * model with one output. A model without layers gives its inputs back.
 *
 * After a failure inside the step, parameters, optimizer state and buffers are as before the step.
 * Its gradients are discarded, the content of y is undefined, and the pipe stays usable.
 *
 * With B = 0 (for all batches) no layer runs: outputs with fixed rows and gradients are zero, and
 * the update takes place.
 *
 * @param x       [inputs] (B, input shape), any B >= 0. Inputs of the same batch have the same B.
 *                Inputs of different batches must be cut into the same number of pieces. An input
 *                with GPP_ROWS_FIXED has that many rows (rank 0 is allowed for one scalar)
 * @param target  cross_entropy, nll: GPP_I64, a class for each position; others: GPP_F32, the shape
 *                of the output
 * @param y       [outputs] out: (B, output shape). NULL when no output is wanted; data NULL for a
 * single output that is not. An output with r fixed rows gives r rows for each of the
 *                m micro-batches, so m·r
 * @param loss    out: the whole mini-batch's loss, as an unpipelined model gives it; NaN for a mean
 *                over no rows; may be NULL
 * @return GPP_OK, GPP_ESHAPE, GPP_ESTATE (no loss or no optimizer was chosen), GPP_ENUMERIC,
 *         GPP_EKERNEL, GPP_ECANCELED (another thread ends the program), ...
 */
GPP_API gpp_status gpp_pipe_step(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                 const gpp_tensor *y, double *loss, gpp_error *err);

/** How many steps may be submitted and not yet waited for. */
#define GPP_MAX_SUBMITTED 4

/**
 * Submit a training step (gpp_pipe_step) without waiting for it. A step may be submitted before the
 * previous one has ended: a partition whose update is done begins the next step's forwards at once,
 * and the caller prepares the next mini-batch while this one runs. Results are those of
 * gpp_pipe_step, bit for bit.
 *
 *     gpp_pipe_submit(pipe, &x[0], &target[0], NULL, &err);
 *     for (int k = 1; k < steps; k++) {
 *         gpp_pipe_submit(pipe, &x[k], &target[k], NULL, &err);
 *         gpp_pipe_wait(pipe, &loss, &err);                         (of step k-1)
 *     }
 *     gpp_pipe_wait(pipe, &loss, &err);
 *
 * Every other call, except one that changes a rate, first waits for all submitted steps to end.
 * gpp_pipe_wait still gives their results. A step of a new size also waits, once. A step uses the
 * learning rate at the time of its submission.
 *
 * When a step fails, the steps submitted before gpp_pipe_wait has reported the failure do nothing
 * and end with GPP_ECANCELED. Until then other calls that run something return GPP_ESTATE. The
 * content of y, and of the memory of gpp_pipe_keep_losses, is undefined for such steps: some of
 * their tasks may have written.
 *
 * A program may end, by exit or by returning from main, while steps are submitted. These steps, and
 * whatever other threads are running, are cancelled. The exit waits for tasks that have begun, as
 * long as one ends every 10 seconds (or the watchdog's time), and for all of a step whose updates
 * have begun. The memory that the steps use must still exist. Arrays local to main do when main
 * calls exit, but not when main returns: a task may be writing outputs to them at that instant.
 *
 * @param x, target, y  as in gpp_pipe_step; their elements must stay as they are, and y must not be
 *                      read, until gpp_pipe_wait has given this step
 * @return GPP_OK, or with nothing submitted GPP_ESTATE (GPP_MAX_SUBMITTED steps are submitted; no
 * loss or no optimizer), GPP_ESHAPE, GPP_EINVAL or GPP_ENOMEM. gpp_pipe_wait returns failures
 *         inside the step
 */
GPP_API gpp_status gpp_pipe_submit(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                   const gpp_tensor *y, gpp_error *err);
/** Submit an evaluation (gpp_pipe_evaluate) in the same way, so that mini-batches follow one
 * another through the partitions without a gap. @param target, y  may be NULL */
GPP_API gpp_status gpp_pipe_submit_evaluation(gpp_pipe *pipe, const gpp_tensor *x,
                                              const gpp_tensor *target, const gpp_tensor *y,
                                              gpp_error *err);
/**
 * Wait for the oldest step that was submitted and not waited for.
 * @param loss  out: as in gpp_pipe_step; NaN for an evaluation without target; may be NULL
 * @return the status of the step: GPP_OK, GPP_ENUMERIC, GPP_EKERNEL, ..., GPP_ECANCELED (an earlier
 *         step has failed, or the program is ending); GPP_ESTATE with no step submitted, GPP_EINVAL
 */
GPP_API gpp_status gpp_pipe_wait(gpp_pipe *pipe, double *loss, gpp_error *err);
/** How many steps were submitted and not yet waited for. */
GPP_API int gpp_pipe_submitted(const gpp_pipe *pipe);

/**
 * A step without the update: forward, loss and backward as in gpp_pipe_step. The gradients stay for
 * gpp_pipe_gradient and gpp_pipe_update. They replace those of an earlier call, unless gradients
 * accumulate (gpp_pipe_accumulate).
 *
 * @param grad_x  [inputs] out: gradient of the loss, in the shapes of x; zero for an input that the
 * loss does not depend on. NULL: none is wanted; data NULL for one that is not wanted,
 *                and for integers
 */
GPP_API gpp_status gpp_pipe_gradients(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                      const gpp_tensor *y, const gpp_tensor *grad_x, double *loss,
                                      gpp_error *err);

/**
 * Set whether passes with a backward are in training mode; initially they are. When they are not,
 * layers behave as in an evaluation: dropout passes its input on, and batch normalisation uses the
 * running statistics without changing them. Gradients and updates work as before.
 */
GPP_API gpp_status gpp_pipe_set_training(gpp_pipe *pipe, bool on, gpp_error *err);

/**
 * Set whether gradients add up over calls of gpp_pipe_gradients and gpp_pipe_backward, until the
 * next gpp_pipe_update or gpp_pipe_discard_gradients (the update of gpp_pipe_step counts as well).
 * Initially they do not. A failure inside a step discards the sum. Gradients are summed, not
 * averaged: k calls with a mean loss give k times the gradient of their mean.
 */
GPP_API gpp_status gpp_pipe_accumulate(gpp_pipe *pipe, bool on, gpp_error *err);
/** Discard the gradients, also those that have added up. */
GPP_API gpp_status gpp_pipe_discard_gradients(gpp_pipe *pipe, gpp_error *err);

/**
 * Outputs in training mode, keeping what gpp_pipe_backward needs. Several forwards may be kept at
 * once, each with memory of its own; setting a parameter or an update discards all of them.
 *
 * @param y     [outputs] out: (B, output shape)
 * @param pass  out: a number that names this forward, and never a later one. NULL: the forward has
 *              no number, and replaces an earlier one without a number
 */
GPP_API gpp_status gpp_pipe_forward(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *y,
                                    int *pass, gpp_error *err);

/**
 * Backward of a kept forward, from the gradient of its outputs. Afterwards the forward is no longer
 * kept.
 *
 * @param pass    from gpp_pipe_forward; -1: the forward without a number
 * @param x       the same tensors that were given to gpp_pipe_forward, unchanged
 * @param grad_y  [outputs] (B, output shape); data NULL: zero, and for integers
 * @param grad_x  [inputs] out: (B, input shape). NULL: none is wanted; data NULL for one that is
 * not
 *                wanted, and for integers
 * @return GPP_OK, GPP_ESTATE (no such forward), GPP_ESHAPE, ...
 */
GPP_API gpp_status gpp_pipe_backward(gpp_pipe *pipe, int pass, const gpp_tensor *x,
                                     const gpp_tensor *grad_y, const gpp_tensor *grad_x,
                                     gpp_error *err);

/** Forget a kept forward. @param pass as in gpp_pipe_backward. @return GPP_OK or GPP_ESTATE */
GPP_API gpp_status gpp_pipe_discard(gpp_pipe *pipe, int pass, gpp_error *err);

/** Update the parameters with the current gradients. @return GPP_OK or GPP_ESTATE (no optimizer, or
 * no gradients) */
GPP_API gpp_status gpp_pipe_update(gpp_pipe *pipe, gpp_error *err);

/**
 * Evaluation: dropout passes its input on, nothing is kept and nothing recomputed.
 *
 * @param target  NULL when no loss is wanted
 * @param y       NULL when outputs are not wanted
 * @param loss    may be NULL
 */
GPP_API gpp_status gpp_pipe_evaluate(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                     const gpp_tensor *y, double *loss, gpp_error *err);

/**
 * Write the unreduced losses of every call with a target to the caller's memory, whatever the
 * reduction.
 * @param each  float32, in the target's shape for cross_entropy and nll, otherwise in the output's,
 * with as many rows as the calls that follow. A submitted step writes to the memory that
 *              was set when it was submitted, so the memory must stay until this function is called
 *              with NULL, which stops the writing and waits for submitted steps
 */
GPP_API gpp_status gpp_pipe_keep_losses(gpp_pipe *pipe, const gpp_tensor *each, gpp_error *err);

/**
 * Give parameters a learning rate and a weight decay of their own (a parameter group).
 * @param name          "<label>.<parameter>", or "<label>" of a layer for all of its parameters
 * @param lr            base rate, to which the schedule applies; NAN: the optimizer's
 * @param weight_decay  NAN: the optimizer's
 * @return GPP_OK, GPP_ENOENT, GPP_ESTATE (no optimizer), GPP_EINVAL (negative, or the optimizer
 *         knows no weight decay)
 */
GPP_API gpp_status gpp_pipe_set_group(gpp_pipe *pipe, const char *name, double lr,
                                      double weight_decay, gpp_error *err);

/** Change the (base) learning rate from the next step on. @return GPP_OK, GPP_ESTATE (no optimizer)
 * or GPP_EINVAL (not >= 0) */
GPP_API gpp_status gpp_pipe_set_lr(gpp_pipe *pipe, double lr, gpp_error *err);

/** A parameter of the model. Strings live as long as the pipe. */
typedef struct gpp_parameter_info {
    const char *name; /* "<label>.<parameter>": "0.weight" */
    int layer, partition;
    int rank;
    int64_t dim[GPP_MAX_RANK]; /* [rank] as in PyTorch: conv2d weight (out, in/groups, kH, kW) */
    int64_t count;             /* elements */
} gpp_parameter_info;

/** Number of parameters, in the order of the layers. */
GPP_API int gpp_pipe_parameters(const gpp_pipe *pipe);

/** @return GPP_OK or GPP_ENOENT (index out of 0 … gpp_pipe_parameters - 1) */
GPP_API gpp_status gpp_pipe_parameter(const gpp_pipe *pipe, int index, gpp_parameter_info *info,
                                      gpp_error *err);

/**
 * Copy a parameter out, in, or its gradient out. float32, row-major, in the shape of
 * gpp_parameter_info.
 *
 * @param name   "<label>.<parameter>"
 * @param count  elements of `data`, for checking
 * @return GPP_OK, GPP_ENOENT, GPP_ESHAPE (count differs), GPP_ESTATE (no gradient: none computed,
 *         or the step failed)
 */
GPP_API gpp_status gpp_pipe_get(gpp_pipe *pipe, const char *name, float data[], int64_t count,
                                gpp_error *err);
GPP_API gpp_status gpp_pipe_set(gpp_pipe *pipe, const char *name, const float data[], int64_t count,
                                gpp_error *err);
GPP_API gpp_status gpp_pipe_gradient(gpp_pipe *pipe, const char *name, float data[], int64_t count,
                                     gpp_error *err);

/**
 * Freeze parameters, or let them learn again. For frozen parameters no gradient is computed, nor
 * any gradient that only they would need, and the optimizer leaves them and their state alone. Kept
 * forwards and gradients are discarded.
 * @param name  "<label>.<parameter>", or "<label>" of a layer for all of its parameters
 * @return GPP_OK, GPP_ENOENT, GPP_ESTATE (the pipe is unusable)
 */
GPP_API gpp_status gpp_pipe_freeze(gpp_pipe *pipe, const char *name, bool frozen, gpp_error *err);

/**
 * State of layers that is no parameter: running statistics of batch normalisation
 * ("bn1.running_mean", "bn1.running_var", float32; "bn1.num_batches_tracked", int64). It changes
 * when a pass in training mode has succeeded.
 */
typedef struct gpp_buffer_info {
    const char *name;
    int layer, partition;
    gpp_dtype dtype;
    int rank;
    int64_t dim[GPP_MAX_RANK];
    int64_t count; /* elements */
} gpp_buffer_info;
GPP_API int gpp_pipe_buffers(const gpp_pipe *pipe);
GPP_API gpp_status gpp_pipe_buffer(const gpp_pipe *pipe, int index, gpp_buffer_info *info,
                                   gpp_error *err);
/** Copy a buffer out or in. @param count  elements of `data`, which have the buffer's type */
GPP_API gpp_status gpp_pipe_get_buffer(gpp_pipe *pipe, const char *name, void *data, int64_t count,
                                       gpp_error *err);
GPP_API gpp_status gpp_pipe_set_buffer(gpp_pipe *pipe, const char *name, const void *data,
                                       int64_t count, gpp_error *err);

/** The pipe's copy of the model, with deferred batch normalisation where that was chosen. It lives
 * as long as the pipe. gpp_model_layer and gpp_model_find describe its layers. */
GPP_API const gpp_model *gpp_pipe_model(const gpp_pipe *pipe);
/** Partition of a layer. @param layer  index; negative numbers count from the end. @return -1:
 * there is no such layer */
GPP_API int gpp_pipe_partition_of(const gpp_pipe *pipe, int layer);

/** How the pipe was cut and placed. Pointers live as long as the pipe. */
typedef struct gpp_pipe_info {
    int layers, partitions, devices, chunks; /* partitions and chunks of a replica */
    gpp_checkpoint checkpoint;
    const int *balance;             /* [partitions] */
    const int *device_of;           /* [replicas * partitions] index of its device */
    const char *const *device_name; /* [devices] "cpu:0", "cpu:2-3" */
    const int *device_threads;      /* [devices] cores its kernels use */
    int replicas;
    gpp_part part; /* of a mini-batch: the pieces of all replicas that are, in part, on this rank */
} gpp_pipe_info;
GPP_API void gpp_pipe_get_info(const gpp_pipe *pipe, gpp_pipe_info *info);

/**
 * Set a watchdog: a step fails with GPP_ETIMEDOUT when none of its tasks has ended for this long.
 * Choose a time longer than any task takes. For each device the message says which task it runs and
 * since when, or which task it waits for, and which data are still missing from which task and
 * device. Initially there is no watchdog.
 *
 * Tasks that have not begun by then run without effect. When all tasks have ended within the same
 * time again, the step has failed like any other. A running task cannot be stopped from outside.
 * When one does not return, the pipe is unusable, and tensors that were given to the step must stay
 * until gpp_pipe_free. gpp_pipe_free, and every call that looks at parameters, waits for the task.
 *
 * @param seconds  0: no watchdog
 * @return GPP_OK or GPP_EINVAL
 */
GPP_API gpp_status gpp_pipe_set_watchdog(gpp_pipe *pipe, double seconds, gpp_error *err);

/** What the last step did; with submitted steps, the last one waited for. Times are wall clock
 * milliseconds. */
typedef struct gpp_step_stats {
    int micro_batches; /* actually produced */
    int tasks;
    double step_ms; /* from the start of its first task to the end of its last */

    /* Longest path through the schedule, with the task times measured in this very step. No runtime
     * could be faster without changing the tasks or their order. */
    double bound_ms;
    double efficiency; /* bound_ms / step_ms */
    double lr;         /* of the update, by lr_schedule; 0 when there was no update */
    double grad_norm;  /* before clipping; NAN unless options.clip_norm or skip_nonfinite */
    bool skipped;      /* the update did not take place (options.skip_nonfinite) */
} gpp_step_stats;

/** @return GPP_OK or GPP_ESTATE (nothing has run) */
GPP_API gpp_status gpp_pipe_last_step(const gpp_pipe *pipe, gpp_step_stats *stats, gpp_error *err);

/**
 * Memory of device `device` in bytes: what the plan needs for the steps seen so far (or
 * options.batch), and the most that was allocated. Both count parameters, gradients, optimizer
 * state, boundaries, tapes and workspace, but not the caller's tensors.
 */
GPP_API gpp_status gpp_pipe_memory(const gpp_pipe *pipe, int device, size_t *planned, size_t *peak,
                                   gpp_error *err);

typedef enum gpp_picture {
    /* Text: a row for each device, a column for each unit of time, and cells F0 F1 R0 B0 as in
     * GPipe's figure. */
    GPP_PICTURE_GRID = 0,
    /* Graphviz: tasks, data and order. */
    GPP_PICTURE_DOT = 1,
    /* The plan with a line for each task (kind, cell, device, what it reads and writes), and then
     * the buffers. */
    GPP_PICTURE_TEXT = 2,
} gpp_picture;

/**
 * The training step's plan for a mini-batch of `batch` rows, drawn.
 * @param text  out: a string; release it with gpp_string_free
 */
GPP_API gpp_status gpp_pipe_draw(gpp_pipe *pipe, gpp_picture picture, int64_t batch, char **text,
                                 gpp_error *err);

/** Releases a string the library returned. NULL is fine. */
GPP_API void gpp_string_free(char *text);

GPP_END_DECLS
#endif
