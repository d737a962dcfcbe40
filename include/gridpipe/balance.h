/*
 * include/gridpipe/balance.h: where to cut a chain of layers: what layers cost, measured or
 * counted, and cuts by cost.
 *
 * Nothing here needs the task runtime or changes a model. A *profile* says what layers cost: how
 * long each takes alone on a device, and its bytes. A profile can be kept in a file and used again.
 *
 *     int balance[2];
 *     gpp_balance_by_time(model, 2, 32, NULL, balance, &err);
 *     options.partitions = 2, options.balance = balance;      (gpp_pipe_options)
 */
#ifndef GRIDPIPE_BALANCE_H
#define GRIDPIPE_BALANCE_H

#include <gridpipe/error.h>
#include <gridpipe/model.h>
#include <gridpipe/pipe.h>

GPP_BEGIN_DECLS

/* --- cuts by given costs ---------------------------------------------------------------------- */

/**
 * Cut a chain of layers into contiguous partitions so that the slowest one is as fast as possible.
 *
 * @param layers      number of layers, >= partitions
 * @param cost        [layers] cost of a layer, in any unit, >= 0 and finite
 * @param partitions  >= 1
 * @param balance     [partitions] out: layers of each partition, all >= 1; untouched on failure
 * @param err         filled on failure; may be NULL
 * @return GPP_OK, GPP_EINVAL (no partition, fewer layers than partitions, a negative or non-finite
 * cost) or GPP_ENOMEM
 *
 * Exact, by dynamic programming over prefixes: best(k, l) = min over c < l of max(best(k-1, c),
 * cost(c .. l)). O(partitions · layers²), thread-safe. Ties go to the leftmost cut: the same answer
 * on every machine.
 */
GPP_API gpp_status gpp_balance_minmax(size_t layers, const double cost[], size_t partitions,
                                      int balance[], gpp_error *err);

/**
 * The same by block partition (Bárány and Grinberg, arXiv 1308.2452), as torchgpipe cuts: with
 * c(l) = cost[l] - min, sums of c of any two partitions differ by at most max - min. An even cut,
 * but not the best one: the slowest partition may be slower than gpp_balance_minmax's.
 *
 * Parameters and failures are those of gpp_balance_minmax. Unlike torchgpipe's, this version always
 * ends and leaves no partition empty. Both give the same answer wherever torchgpipe's does not take
 * a layer from an empty partition. The answer is the same on every machine. Thread-safe.
 */
GPP_API gpp_status gpp_balance_blocks(size_t layers, const double cost[], size_t partitions,
                                      int balance[], gpp_error *err);

/** A skip: what layer `from` stashes and layer `to` pops, from < to. */
typedef struct gpp_skip_cost {
    int from, to;
    size_t bytes; /* of one micro-batch */
} gpp_skip_cost;

/** What a partition's device can do. */
typedef struct gpp_device_cost {
    const double *time_us; /* [layers] all work on a layer for one micro-batch, microseconds, >= 0;
                              INFINITY: that layer cannot run here */
    double link_us;        /* to start one transfer to or from it, >= 0 */
    double bytes_per_us;   /* of transfers, > 0; INFINITY: bytes cost no time */
    size_t memory_limit;   /* bytes; 0: none */
} gpp_device_cost;

/** The link between the devices of two neighbouring partitions. */
typedef struct gpp_link_cost {
    double us;           /* to start one transfer, >= 0 */
    double bytes_per_us; /* > 0; INFINITY: bytes cost no time */
} gpp_link_cost;

/** What cutting a chain of layers costs. Start from GPP_CUT_COSTS_INIT; arrays that are NULL are
 * all zero. */
typedef struct gpp_cut_costs {
    size_t struct_size; /* set by GPP_CUT_COSTS_INIT */
    int layers, partitions;
    const gpp_device_cost *device; /* [partitions] where partition j runs */

    const size_t *boundary_bytes; /* [layers] from layer l to the next, of one micro-batch; that of
                                     the last layer goes to the caller and is not transferred */
    const gpp_skip_cost *skip;    /* [skips] */
    int skips;
    bool forward_only; /* nothing comes back; else a gradient as large as each of them does */
    bool overlap;      /* a device computes while it transfers: a partition takes the longer of both
                          instead of their sum */
    const bool *whole; /* [layers] no cut behind layer l (shared parameters) */

    const size_t *layer_bytes;   /* [layers] once: parameters, gradients, optimizer state */
    const size_t *tape_bytes;    /* [layers] of one micro-batch, from forward to backward */
    const size_t *scratch_bytes; /* [layers] while the layer runs: the largest counts, once */
    const int *tapes;            /* [partitions] tapes a partition holds at a time: 1 when it
                                    recomputes, under GPipe else the micro-batches; NULL: 1 each */
    const int *boundaries;       /* [partitions] the same for tensors that come in or go out, a
                                    tensor and its gradient counting as two if both are there at a
                                    time; NULL: 1 each */

    /* [partitions] between partition j - 1 and j; the first one does not count. What comes in or
     * goes out, skips also, is transferred over the link to that neighbour. NULL: by link_us and
     * bytes_per_us of the device. */
    const gpp_link_cost *link;
} gpp_cut_costs;
#define GPP_CUT_COSTS_INIT                                                                         \
    {                                                                                              \
        sizeof(gpp_cut_costs), 0, 0, NULL, NULL, NULL, 0, false, false, NULL, NULL, NULL, NULL,    \
            NULL, NULL, NULL                                                                       \
    }

/**
 * Cut a chain of layers into contiguous partitions, partition j on device j, so that the slowest
 * one is as fast as possible and none needs more memory than its device has.
 *
 * For layers a ... b-1 on device j, with x(a, b) the tensors that cross into or out of them
 * (boundaries and skips),
 *
 *     time  = sum of time_us + sum over x of 2 · (link_us + bytes / bytes_per_us)
 *     bytes = sum of layer_bytes + tapes · sum of tape_bytes + boundaries · sum over x of bytes
 *             + the largest scratch_bytes
 *
 * (once instead of twice when forward_only; tensors of 0 bytes do not cross.) What comes from and
 * goes to the caller costs nothing.
 *
 * @param costs       what is cut
 * @param balance     [partitions] out: layers of each partition, all >= 1; untouched on failure
 * @param slowest_us  out: time of the slowest partition; may be NULL
 * @param err         filled on failure; may be NULL
 * @return GPP_OK, GPP_EINVAL (a number out of range; the record says which), GPP_ENOENT (no cut is
 * possible: `whole`, or layers that cannot run where they would be), GPP_ENOMEM (no cut fits; the
 * message says by how much the best one exceeds which limit; or there is no memory to compute in)
 *
 * Exact, by dynamic programming over prefixes: best(j, b) = min over a < b of max(best(j-1, a),
 * time(j, a, b)), over those (j, a, b) that fit. O(partitions · layers²) at worst. Ties go to the
 * leftmost cut: the same answer on every machine. Thread-safe.
 */
GPP_API gpp_status gpp_balance_exact(const gpp_cut_costs *costs, int balance[], double *slowest_us,
                                     gpp_error *err);

/* --- profiles --------------------------------------------------------------------------------- */

/**
 * What one layer costs for one micro-batch. Times are sums over the layer's operators, in
 * microseconds, kept to the nanosecond; bytes are counted from how the layer is compiled, not
 * measured.
 *
 * Activations of layers inside one partition add up: a partition's tape is the sum of its layers'
 * activation_bytes, less what its last one leaves in the boundary behind it.
 */
typedef struct gpp_layer_profile {
    char label[64];
    double forward_us;        /* of a checkpointed micro-batch: nothing is kept */
    double recompute_us;      /* of a forward that keeps what the backward needs, in the middle of a
                                 partition: a recomputation, or the forward of a micro-batch that is
                                 not checkpointed */
    double recompute_last_us; /* the same for the last layer of a partition. Operators whose results
                                 no backward needs are not computed again */
    double backward_us;
    double error_us;         /* half the width of the 95 % interval of the median, over sweeps, of
                                forward + recompute + backward */
    size_t parameter_bytes;  /* of parameters that learn; 0 when they are another layer's */
    size_t activation_bytes; /* kept from forward (or recomputation) to backward */
    size_t output_bytes;     /* of the tensors from this layer to the next */
    size_t skip_bytes;       /* of skips that are alive between this layer and the next */
} gpp_layer_profile;

/** One of the operators a layer is made of. A layer's times are sums of its operators' times. Times
 * of partitions are predicted from operators, since not every operator runs in a recomputation.
 * Changes of memory layout are operators, too, and so are the forks of a tensor that is wanted
 * several times. */
typedef struct gpp_operator_profile {
    int layer;         /* whose it is */
    char name[32];     /* "conv2d" */
    double forward_us; /* nothing is kept */
    double keep_us;    /* forward that keeps what the backward needs */
    double backward_us;
} gpp_operator_profile;

typedef struct gpp_profile {
    int layers;
    gpp_layer_profile *layer;      /* [layers] */
    int64_t rows[GPP_MAX_BATCHES]; /* of the micro-batch, by mini-batch; 0: there is none */
    char device[64];               /* "cpu:0-3", "cuda:0"; "none": nothing was measured */
    int threads;                   /* cores it uses, of a GPU 1; 0: nothing was measured */
    int sweeps;                    /* that were measured */
    bool precise; /* every layer is known as precisely as was asked for (gpp_profile_options) */
    int operators;
    gpp_operator_profile *op; /* [operators] in the order in which they run */
    int beside;               /* other devices that ran the model at the same time */
    double bytes_per_us; /* of memory that the device reads and writes in a microsecond, when it
                                 adds two blocks that no cache holds; 0: not measured */
    char gpu[64];        /* name of the GPU: "NVIDIA H200"; "": cores */
    gpp_math cuda_math;  /* of a GPU, as in gpp_pipe_options */
    bool cuda_any_algorithm;
    double link_bytes_per_us; /* from the host's memory to the GPU's, or back if that is slower; 0:
                                 not measured */
} gpp_profile;

/** Start from GPP_PROFILE_OPTIONS_INIT; fields may be added at the end. */
typedef struct gpp_profile_options {
    size_t struct_size; /* set by GPP_PROFILE_OPTIONS_INIT */
    const char
        *device; /* as in gpp_pipe_options.devices. NULL: the device of a pipe of one partition
                           without a list: a GPU or, where there is none or a layer has no functions
                           for it, every core this process may use */
    double timeout_ms; /* no sweep begins later than this after the begin of the first measured one.
                          One sweep is always measured */
    double precision;  /* stop when every layer's error_us is at most this part of the layer's time,
                          or of the mean over layers where that is more; 0: stop at the timeout */
    int warmup;        /* sweeps before the first measured one, >= 0 */
    int max_sweeps;    /* >= 1 */
    uint64_t seed;     /* of initial parameters, dropout, and the sample */
    const gpp_tensor *sample; /* [inputs] a micro-batch, with `rows` rows; NULL: float32
                                        uniform in [-1, 1), integers 0 */
    const int64_t *rows; /* [GPP_MAX_BATCHES] rows of each mini-batch's piece; NULL: all the same */
    bool sizes_only;     /* nothing runs: no times, and no device */
    const char *const *beside; /* [beside_count] other devices that run the model at the same time.
                                  What devices share (memory, caches, power) is then as scarce as in
                                  a pipe on all of them */
    int beside_count;
    gpp_math cuda_math; /* on GPUs, as in gpp_pipe_options */
    bool cuda_any_algorithm;
} gpp_profile_options;

#define GPP_PROFILE_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(gpp_profile_options), NULL, 1000, 0.02, 1, 1000, 0, NULL, NULL, false, NULL, 0,     \
            GPP_MATH_F32, false                                                                    \
    }

/**
 * Run a model, forwards and backwards, and measure each of its operators.
 *
 * The model is compiled as the only partition of a pipe. A sweep is a training step of one
 * checkpointed micro-batch without loss and update: all operators forwards, keeping nothing; all
 * operators again, keeping what the backward needs; all backwards. Every sweep starts from the same
 * sample, and the backwards from the same gradient of the outputs (uniform in [-1, 1)). Gradients
 * of parameters add up. So every operator finds its tensors where they are in a step, and as warm
 * in the caches. An operator's time goes from the end of the one before it to its own end. The
 * profile has the medians over sweeps.
 *
 * Sweeps go on until the medians are known well enough. Their confidence intervals are those of
 * order statistics, which assume nothing about how times are distributed: of n sorted times, number
 * r and number n+1-r, with the largest r for which 2·P(Binomial(n, 1/2) < r) <= 5 % (David and
 * Nagaraja, Order Statistics, 3rd ed., 7.1). At least six sweeps are needed for that.
 *
 * With options.beside, other devices run the model at the same time, each with parameters and
 * memory of its own, from before the first measured sweep until after the last. The model is then
 * cut into as many parts as there are devices, with about equal arithmetic, as in a pipe on them. A
 * sweep goes through one part after the other. It runs each part twice, and the second time counts.
 * A device beside goes through one part over and over. If one of them fails, the profile fails.
 *
 * On a GPU a sweep is launched as a whole. Events between the operators say when each of them has
 * ended; the time of an event itself is subtracted. An operator that is shorter than its launch
 * takes as long as its launch, as in a pipe. The profile has a stream, handles and memory of its
 * own. Bytes are those of the model as it is compiled for the GPU.
 *
 * Parameters have their initial values, in memory of the profile's own. For each device the profile
 * needs the memory of a pipe of one partition without checkpointing for one micro-batch, and 64 MiB
 * more; on a GPU the addition is 4 MiB for each multiprocessor. Statistics of batch normalisation
 * are made and thrown away. Operators of the caller's are called as in training, on threads of the
 * profile's own. With devices beside, several of these calls run at once. An operator that fails
 * ends the profile. Nothing else should run on the cores meanwhile.
 *
 * @param profile  out; NULL on failure. Release with gpp_profile_free
 * @param model    its input must be set; it is not changed
 * @param rows     of the micro-batch, >= 1: a mini-batch divided by chunks
 * @param options  NULL: all defaults
 * @return GPP_OK, GPP_EINVAL, GPP_ESTATE (no input set), GPP_ESHAPE (the sample does not fit),
 * GPP_ENODEV, GPP_EUNSUPPORTED (a GPU where none can be used, or a layer that has no functions for
 * one), GPP_ENOMEM, GPP_ERUNTIME (no thread could be started), GPP_EKERNEL, or what a layer
 * returned; the record names it. GPP_EINVAL also where a device beside overlaps another one
 */
GPP_API gpp_status gpp_profile_new(gpp_profile **profile, const gpp_model *model, int64_t rows,
                                   const gpp_profile_options *options, gpp_error *err);
/** NULL is fine. */
GPP_API void gpp_profile_free(gpp_profile *profile);

/**
 * Write a profile to a text file: "gridpipe-profile 2", then a line for each field, each layer and
 * each operator. Times are in nanoseconds. Profiles of GPUs have some lines more. An existing file
 * is replaced.
 * @return GPP_OK, GPP_EINVAL (the profile has a time or a label that cannot be written), GPP_EIO
 */
GPP_API gpp_status gpp_profile_write(const gpp_profile *profile, const char *path, gpp_error *err);
/**
 * Read a profile. Nothing is guessed: a line that is missing, malformed or left over is an error,
 * and the message names the file and the line. Files of version 1 have no times of operators and
 * are refused.
 * @return GPP_OK, GPP_EINVAL, GPP_EIO (it cannot be read), GPP_ESYNTAX (it is no profile),
 * GPP_ENOMEM; *profile is NULL then
 */
GPP_API gpp_status gpp_profile_read(gpp_profile **profile, const char *path, gpp_error *err);

/* --- cuts of a model -------------------------------------------------------------------------- */

/**
 * Cut a model by measured time, as torchgpipe's balance_by_time: gpp_balance_blocks of
 *
 *     cost(l) = forward_us(l) + backward_us(l)
 *
 * of a profile. (torchgpipe adds up times over sweeps; these are medians, after a warm-up.)
 *
 * @param rows     of a micro-batch
 * @param options  as of gpp_profile_new. Without a device, the model is measured on the first device
 *                 that a pipe of so many partitions would get
 * @param balance  [partitions] out: layers of each partition, for gpp_pipe_options.balance;
 * untouched on failure
 * @return as gpp_balance_blocks and gpp_profile_new
 */
GPP_API gpp_status gpp_balance_by_time(const gpp_model *model, int partitions, int64_t rows,
                                       const gpp_profile_options *options, int balance[],
                                       gpp_error *err);

/**
 * Cut a model by memory, as torchgpipe's balance_by_size: gpp_balance_blocks of
 *
 *     cost(l) = activation_bytes(l) of a micro-batch of ceil(rows / chunks) rows
 *               + param_scale · parameter_bytes(l)
 *
 * GPipe holds one micro-batch's activations at a time, and for each parameter its gradient and what
 * the optimizer keeps: param_scale is 2 for plain SGD, 3 with momentum, 4 for Adam. Bytes are
 * counted, not measured: nothing runs, and the answer is the same on every machine with the same
 * kernels.
 *
 * @param rows         of a mini-batch, >= 1
 * @param chunks       >= 1
 * @param param_scale  >= 0; gpp_optimizer_param_scale knows an optimizer's,
 *                     GPP_PARAM_SCALE is plain SGD's
 * @param balance      [partitions] out; untouched on failure
 * @return as gpp_balance_blocks and gpp_profile_new
 */
GPP_API gpp_status gpp_balance_by_size(const gpp_model *model, int partitions, int64_t rows,
                                       int chunks, double param_scale, int balance[],
                                       gpp_error *err);
#define GPP_PARAM_SCALE 2.0

/**
 * The param_scale of an optimizer: copies of each parameter that a training holds, the parameter
 * itself, its gradient, and what the optimizer keeps: 2 for "sgd", 3 with momentum, 4 for "adam".
 * @param optimizer  as in gpp_pipe_options; NULL: none, GPP_PARAM_SCALE
 * @return GPP_OK, GPP_EINVAL, GPP_ESYNTAX, GPP_ENOENT; *scale is untouched on failure
 */
GPP_API gpp_status gpp_optimizer_param_scale(const char *optimizer, double *scale, gpp_error *err);

GPP_END_DECLS
#endif
