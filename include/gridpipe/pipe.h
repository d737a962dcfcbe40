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
    GPP_CHECKPOINT_BUDGET = 3, /* of every micro-batch what activation_limit has room for is kept,
                                  the rest is recomputed, piece by piece where even that of one
                                  micro-batch has no room: as little as possible */
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

    int partitions; /* 0: one; where layers are placed (gpp_model_place) and there is no balance:
                       as many as follow from them. Without a balance the cut makes the costliest
                       partition cheapest, by a guess from the layers' flops and bytes */
    const int *balance; /* [partitions] layers of each partition, all >= 1, sum = layers of the
                           model; NULL: automatic, or by placement */

    /*
     * [device_count] where partition j runs: "cpu" (every core this process may use),
     * "cpu:K" (core K), "cpu:A-B,C" (those cores); logical core numbers, from 0; "cuda:K" (GPU K,
     * as CUDA counts; docs/gpu.md). A device may be named repeatedly: those partitions share it.
     * Surplus entries are ignored. NULL: the GPUs, in an order in which neighbours are near each
     * other, or where there are none the cores this process may use, one set for each partition.
     *
     * Layers may be placed instead: consecutive ones on the same device (layers without a
     * placement are where the one before is) form a partition, and devices is not given. With a
     * balance, or devices, every placed layer must be in a partition on its device.
     */
    const char *const *devices;
    int device_count;

    int chunks; /* micro-batches to cut a mini-batch into, >= 1, by torch.chunk's rule: pieces of
                   ceil(B/chunks) */
    gpp_checkpoint checkpoint;
    uint64_t seed; /* of initial parameters and dropout */

    const char *loss; /* "cross_entropy reduction=mean label_smoothing=0.1"; docs/reference.md lists
                         losses, gpp_loss_name names them; NULL: none. With reduction=none the loss,
                         and what gradients are of, is the sum */
    const char
        *optimizer;    /* "adam lr=0.001 betas=0.9,0.98", likewise; gpp_optimizer_name; NULL: none
                        */
    bool nan_is_error; /* a loss that is not finite fails the step with GPP_ENUMERIC; nothing is
                          updated */

    int64_t batch; /* largest mini-batch expected: buffers are made for it at once; 0: at the first
                      step */
    size_t memory_limit;     /* bytes a device may need, by plan; a larger plan is refused with
                                GPP_ENOMEM. 0: none */
    bool ascending_backward; /* run backwards by ascending micro-batch; sums then differ in the last
                                bit */
    bool deferred_batch_norm; /* batch normalisations that track statistics take those of the whole
                                 mini-batch, once, and not of every micro-batch, with the
                                 biased variance, as torchgpipe does */

    const float *class_weights; /* [class_weight_count] of cross_entropy and nll; copied */
    int class_weight_count;
    const gpp_loss_function *loss_function; /* a loss of the caller's, instead of `loss`; copied */
    /* How the learning rate changes with the number of updates: gridpipe/lr_schedule.h. NULL: it
     * does not change. */
    const char *lr_schedule;
    double clip_norm;    /* > 0: gradients are scaled so that their norm, over all parameters that
                         learn, is at most this. It costs one reading of the gradients, and no
                         partition's update starts before every backward is done */
    bool skip_nonfinite; /* an update whose gradients are not all finite does not take place (same
                            cost); gpp_step_stats.skipped says so */

    size_t activation_limit; /* with GPP_CHECKPOINT_BUDGET: bytes that what a partition keeps or
                                makes again for its backwards may take, of all micro-batches
                                together (the classes "kept" and "tape" of GPP_PICTURE_TEXT); 0:
                                what memory_limit leaves */
    const struct gpp_profile *profile; /* with it: times by which it is chosen what to keep
                                          (gridpipe/balance.h); read during the call. NULL: a guess
                                          from flops and bytes */

    /*
     * The order in which devices run their tasks: a name (gpp_schedule_name lists them), or
     * "table:" and a table of the caller's; docs/reference.md explains both. NULL: gpipe. Only
     * gpipe's backwards go by descending micro-batch: the others give the bits of gpipe with
     * ascending_backward. Schedules whose gradients of parameters are tasks of their own (zb-h1,
     * auto) cannot be combined with GPP_CHECKPOINT_BUDGET.
     */
    const char *schedule;

    gpp_math cuda_math;      /* on GPUs: what matrix products and convolutions compute with */
    bool cuda_any_algorithm; /* on GPUs: libraries may use algorithms whose sums run in any order.
                                They may be faster; then two runs, or two cuts, give different last
                                bits */
} gpp_pipe_options;

#define GPP_PIPE_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(gpp_pipe_options), 0, NULL, NULL, 0, 1, GPP_CHECKPOINT_EXCEPT_LAST, 0, NULL, NULL,  \
            false, 0, 0, false, false, NULL, 0, NULL, NULL, 0, false, 0, NULL, NULL, GPP_MATH_F32, \
            false                                                                                  \
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
 * @param model    its input must be set (gpp_model_set_input); kept by copy, so the caller may free
 * it
 * @param options  NULL: all defaults
 * @return GPP_OK, GPP_EINVAL (an option is out of range; the message says what is allowed),
 *         GPP_ESYNTAX, GPP_ENOENT (loss or optimizer: unreadable, unknown), GPP_ESHAPE (the loss
 * cannot take the model's output), GPP_ESTATE (no input set), GPP_ENODEV (no such device, or fewer
 *         `devices` than partitions; without a list partitions share what there is), GPP_ENOMEM
 * (also: the plan exceeds memory_limit), GPP_EKERNEL, GPP_ERUNTIME (StarPU could not be started)
 */
GPP_API gpp_status gpp_pipe_new(gpp_pipe **pipe, const gpp_model *model,
                                const gpp_pipe_options *options, gpp_error *err);

/** Frees the pipe and everything it holds; NULL is fine. */
GPP_API void gpp_pipe_free(gpp_pipe *pipe);

/**
 * One training step: forward, loss, backward, update. Here and below, what is written (y, grad_x)
 * must not overlap what is read.
 *
 * Models with several inputs take, and those with several outputs give, arrays of tensors: x[k] is
 * input k. A loss needs a model with one output. A model without layers gives its inputs back.
 *
 * @param x       [inputs] (B, input shape), any B >= 0. Inputs of one batch have the same B; those
 * of different batches must be cut into the same number of pieces; with GPP_ROWS_FIXED: that many
 * rows (rank 0 allowed for one scalar)
 * @param target  cross_entropy, nll: GPP_I64, a class for each position; others: GPP_F32, the shape
 * of the output
 * @param y       [outputs] out: (B, output shape), or NULL when the outputs are not wanted; data
 * NULL for one that is not. An output with r fixed rows gives r rows for each micro-batch, so m·r
 * @param loss    out: the whole mini-batch's loss, as an unpipelined model gives it; NaN for a mean
 * over no rows; may be NULL
 * @return GPP_OK, GPP_ESHAPE, GPP_ESTATE (no loss or no optimizer was chosen), GPP_ENUMERIC,
 * GPP_EKERNEL, GPP_ECANCELED (another thread ends the program), ... After a failure inside the
 * step, parameters, optimizer state and buffers are as before it, its gradients are discarded and
 * the pipe is usable; what y holds is undefined. With B = 0, of all batches then, no layer runs:
 * outputs with fixed rows and gradients are zero, and the update takes place.
 */
GPP_API gpp_status gpp_pipe_step(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                 const gpp_tensor *y, double *loss, gpp_error *err);

/** Most steps that may be submitted and not waited for. */
#define GPP_MAX_SUBMITTED 4

/**
 * Submit a training step as gpp_pipe_step does one, without waiting for it. It may be submitted
 * before the one before has ended: a partition whose update is done begins the next step's forwards
 * at once, and the caller prepares the next mini-batch while this one runs. Results are those of
 * gpp_pipe_step, bit for bit.
 *
 *     gpp_pipe_submit(pipe, &x[0], &target[0], NULL, &err);
 *     for (int k = 1; k < steps; k++) {
 *         gpp_pipe_submit(pipe, &x[k], &target[k], NULL, &err);
 *         gpp_pipe_wait(pipe, &loss, &err);                         (of step k-1)
 *     }
 *     gpp_pipe_wait(pipe, &loss, &err);
 *
 * Everything but submitting and changing rates first waits for all submitted steps to end; their
 * results can still be waited for. A step of a new size waits likewise, once. The learning rate is
 * the one at the time of submission.
 *
 * When a step fails, those submitted before gpp_pipe_wait has reported that do nothing, and end
 * with GPP_ECANCELED; until then other calls that run something return GPP_ESTATE. What such steps
 * leave in y, and in the memory of gpp_pipe_keep_losses, is undefined: some of their tasks may have
 * written.
 *
 * A program may end with steps submitted, by exit or by returning from main. They are cancelled, as
 * is what other threads are running, and tasks that have begun are waited for, as long as one ends
 * within 10 seconds, or the watchdog's; a step whose updates have begun is waited for whole. What
 * the steps use must still be there. Of arrays local to main that is true when it calls exit; when
 * it returns, a task may be writing outputs to them at that instant.
 *
 * @param x, target, y  as in gpp_pipe_step; their elements must stay as they are, and y must not be
 *                      read, until gpp_pipe_wait has given this step
 * @return GPP_OK, GPP_ESTATE (GPP_MAX_SUBMITTED steps are submitted; no loss or no optimizer),
 * GPP_ESHAPE, GPP_EINVAL, GPP_ENOMEM: nothing was submitted then. What fails inside the step is
 * what gpp_pipe_wait returns
 */
GPP_API gpp_status gpp_pipe_submit(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                   const gpp_tensor *y, gpp_error *err);
/** The same for gpp_pipe_evaluate: mini-batches follow one another through the partitions without a
 * gap. @param target, y  may be NULL */
GPP_API gpp_status gpp_pipe_submit_evaluation(gpp_pipe *pipe, const gpp_tensor *x,
                                              const gpp_tensor *target, const gpp_tensor *y,
                                              gpp_error *err);
/**
 * Wait for the oldest step that was submitted and not waited for.
 * @param loss  out: as gpp_pipe_step's; NaN of an evaluation without target; may be NULL
 * @return what the step returns: GPP_OK, GPP_ENUMERIC, GPP_EKERNEL, ..., GPP_ECANCELED (one before
 * it has failed, or the program is ending); GPP_ESTATE with no step submitted, GPP_EINVAL
 */
GPP_API gpp_status gpp_pipe_wait(gpp_pipe *pipe, double *loss, gpp_error *err);
/** Steps that were submitted and not waited for. */
GPP_API int gpp_pipe_submitted(const gpp_pipe *pipe);

/**
 * Forward and backward as gpp_pipe_step, without the update: the gradients stay for
 * gpp_pipe_gradient and gpp_pipe_update. Gradients of an earlier call are replaced, unless they
 * accumulate (gpp_pipe_accumulate).
 *
 * @param grad_x  [inputs] out: gradient of the loss, shapes of x, zero where it depends on nothing;
 * NULL: none is wanted; data NULL for one that is not, and for integers
 */
GPP_API gpp_status gpp_pipe_gradients(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                      const gpp_tensor *y, const gpp_tensor *grad_x, double *loss,
                                      gpp_error *err);

/**
 * Whether passes that keep what a backward needs are in training mode; initially they are. When
 * not, layers behave as in an evaluation: dropout passes its input on, batch normalisation uses the
 * running statistics and leaves them alone; gradients and updates are as ever.
 */
GPP_API gpp_status gpp_pipe_set_training(gpp_pipe *pipe, bool on, gpp_error *err);

/**
 * Whether gradients add up over calls of gpp_pipe_gradients and gpp_pipe_backward until the next
 * gpp_pipe_update or gpp_pipe_discard_gradients (the update of gpp_pipe_step counts as well). A
 * failure inside a step discards what had added up. Initially they do not. They are summed: k calls
 * with a mean loss give k times the gradient of their mean.
 */
GPP_API gpp_status gpp_pipe_accumulate(gpp_pipe *pipe, bool on, gpp_error *err);
/** There are no gradients any more. */
GPP_API gpp_status gpp_pipe_discard_gradients(gpp_pipe *pipe, gpp_error *err);

/**
 * Outputs in training mode, keeping what gpp_pipe_backward needs. Several forwards may be kept at
 * once, each with memory of its own; setting a parameter or an update discards all of them.
 *
 * @param y     [outputs] out: (B, output shape)
 * @param pass  out: names this forward, and no later one; NULL: it has no name, and replaces an
 * earlier one without
 */
GPP_API gpp_status gpp_pipe_forward(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *y,
                                    int *pass, gpp_error *err);

/**
 * Backward of a kept forward, from the gradient of its outputs; after it that forward is gone.
 *
 * @param pass    from gpp_pipe_forward; -1: the one of a call with pass == NULL
 * @param x       the same tensors that were given to gpp_pipe_forward, unchanged
 * @param grad_y  [outputs] (B, output shape); data NULL: zero, and for integers
 * @param grad_x  [inputs] out: (B, input shape), or NULL when it is not wanted; data NULL for one
 * that is not, and for integers
 * @return GPP_OK, GPP_ESTATE (no such forward), GPP_ESHAPE, ...
 */
GPP_API gpp_status gpp_pipe_backward(gpp_pipe *pipe, int pass, const gpp_tensor *x,
                                     const gpp_tensor *grad_y, const gpp_tensor *grad_x,
                                     gpp_error *err);

/** Forget a kept forward. @param pass as in gpp_pipe_backward. @return GPP_OK or GPP_ESTATE */
GPP_API gpp_status gpp_pipe_discard(gpp_pipe *pipe, int pass, gpp_error *err);

/** Let the optimizer use the gradients at hand. @return GPP_OK or GPP_ESTATE (no optimizer, or no
 * gradients) */
GPP_API gpp_status gpp_pipe_update(gpp_pipe *pipe, gpp_error *err);

/**
 * Evaluation: dropout passes its input on, nothing is kept, nothing recomputed.
 *
 * @param target  NULL when no loss is wanted   @param y  NULL when outputs are not wanted   @param
 * loss  may be NULL
 */
GPP_API gpp_status gpp_pipe_evaluate(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *target,
                                     const gpp_tensor *y, double *loss, gpp_error *err);

/**
 * Write the unreduced losses of every call with a target to the caller's memory, whatever the
 * reduction.
 * @param each  float32: cross_entropy, nll: the target's shape; others: the output's. Its rows must
 * be those of the calls that follow. It must stay until NULL is given, which stops it and waits for
 * submitted steps: each writes where it was told to when it was submitted
 */
GPP_API gpp_status gpp_pipe_keep_losses(gpp_pipe *pipe, const gpp_tensor *each, gpp_error *err);

/**
 * Give parameters a learning rate and a weight decay of their own (a parameter group).
 * @param name          "<label>.<parameter>", or "<label>" of a layer for all of its parameters
 * @param lr            base rate, to which the schedule applies; NAN: the optimizer's
 * @param weight_decay  NAN: the optimizer's
 * @return GPP_OK, GPP_ENOENT, GPP_ESTATE (no optimizer), GPP_EINVAL (negative, or the optimizer
 * knows no weight decay)
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
    int64_t
        dim[GPP_MAX_RANK]; /* [rank] as PyTorch has it: conv2d weight (out, in/groups, kH, kW) */
    int64_t count;         /* elements */
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
 * or the step failed)
 */
GPP_API gpp_status gpp_pipe_get(gpp_pipe *pipe, const char *name, float data[], int64_t count,
                                gpp_error *err);
GPP_API gpp_status gpp_pipe_set(gpp_pipe *pipe, const char *name, const float data[], int64_t count,
                                gpp_error *err);
GPP_API gpp_status gpp_pipe_gradient(gpp_pipe *pipe, const char *name, float data[], int64_t count,
                                     gpp_error *err);

/**
 * Stop (or resume) learning parameters: no gradient is computed for them, none is passed to what
 * only they would need, the optimizer leaves them and their state alone.
 * @param name  "<label>.<parameter>", or "<label>" of a layer for all of its parameters
 * @return GPP_OK, GPP_ENOENT, GPP_ESTATE (the pipe is unusable). Kept forwards and gradients are
 * discarded
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
/** Copy one out or in. @param count elements of `data`, which are of the buffer's type */
GPP_API gpp_status gpp_pipe_get_buffer(gpp_pipe *pipe, const char *name, void *data, int64_t count,
                                       gpp_error *err);
GPP_API gpp_status gpp_pipe_set_buffer(gpp_pipe *pipe, const char *name, const void *data,
                                       int64_t count, gpp_error *err);

/** The model the pipe was made from, as it uses it (batch normalisation converted); lives as long
 * as the pipe. gpp_model_layer and gpp_model_find say what its layers are. */
GPP_API const gpp_model *gpp_pipe_model(const gpp_pipe *pipe);
/** Partition of a layer. @param layer index; negative counts from the end. @return -1: no such
 * layer
 */
GPP_API int gpp_pipe_partition_of(const gpp_pipe *pipe, int layer);

/** How the pipe was cut and placed. Pointers live as long as the pipe. */
typedef struct gpp_pipe_info {
    int layers, partitions, devices, chunks;
    gpp_checkpoint checkpoint;
    const int *balance;             /* [partitions] */
    const int *device_of;           /* [partitions] index of its device */
    const char *const *device_name; /* [devices] "cpu:0", "cpu:2-3" */
    const int *device_threads;      /* [devices] cores its kernels use */
} gpp_pipe_info;
GPP_API void gpp_pipe_get_info(const gpp_pipe *pipe, gpp_pipe_info *info);

/**
 * Let steps fail with GPP_ETIMEDOUT when no task of theirs has ended for so long; longer than any
 * task takes. The message says for each device which task it runs and since when, or for which it
 * waits, and which task on which device has not yet delivered what. Initially there is none.
 *
 * Tasks that have not begun by then run without effect; when all have ended within the same time
 * again, the step has failed like any other. A task that is running cannot be ended from outside:
 * when it does not come back, the pipe is unusable, tensors that were given to the step must stay
 * until gpp_pipe_free, and gpp_pipe_free, as everything that looks at parameters, waits for it.
 *
 * @param seconds  0: none
 * @return GPP_OK or GPP_EINVAL
 */
GPP_API gpp_status gpp_pipe_set_watchdog(gpp_pipe *pipe, double seconds, gpp_error *err);

/** What the last step did; of submitted ones, the last that was waited for. Times in milliseconds,
 * wall clock. */
typedef struct gpp_step_stats {
    int micro_batches; /* actually produced */
    int tasks;
    double step_ms;  /* from the start of its first task to the end of its last */
    double bound_ms; /* longest path through the schedule with the task times measured in this very
                        step: what no runtime could undercut without changing the tasks or their
                        order */
    double efficiency; /* bound_ms / step_ms */
    double lr;         /* of the update, by schedule; 0 when there was none */
    double grad_norm;  /* before clipping; NAN unless options.clip_norm or skip_nonfinite */
    bool skipped;      /* the update did not take place (options.skip_nonfinite) */
} gpp_step_stats;

/** @return GPP_OK or GPP_ESTATE (nothing has run) */
GPP_API gpp_status gpp_pipe_last_step(const gpp_pipe *pipe, gpp_step_stats *stats, gpp_error *err);

/**
 * Bytes of device `device`: by plan, for the steps seen so far (or options.batch), and the most
 * that was allocated. Parameters, gradients, optimizer state, boundaries, tapes and workspace; not
 * the caller's tensors.
 */
GPP_API gpp_status gpp_pipe_memory(const gpp_pipe *pipe, int device, size_t *planned, size_t *peak,
                                   gpp_error *err);

typedef enum gpp_picture {
    GPP_PICTURE_GRID = 0, /* text: a row for each device, a column for each unit of time, cells F0
                             F1 R0 B0 as in GPipe's figure */
    GPP_PICTURE_DOT = 1,  /* Graphviz: tasks, data and order */
    GPP_PICTURE_TEXT = 2, /* the plan, a line for each task: kind, cell, device, what it reads and
                             writes; then buffers */
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
