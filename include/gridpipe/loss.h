/*
 * include/gridpipe/loss.h: losses of your own.
 */
#ifndef GRIDPIPE_LOSS_H
#define GRIDPIPE_LOSS_H

#include <gridpipe/error.h>

GPP_BEGIN_DECLS

/** One micro-batch's call of a loss. */
typedef struct gpp_loss_call {
    void *user;
    int micro_batch;
    int64_t row0;         /* first row of this micro-batch in the mini-batch */
    int64_t batch_rows;   /* of the mini-batch: what a mean is divided by; 0: no rows anywhere */
    gpp_tensor y, target; /* of this micro-batch; images are N, C, H, W */
    gpp_tensor grad_y;    /* to write, all of it: d loss / d y; data NULL: not wanted */
    gpp_error *err;       /* where to say what is wrong: its msg is shown behind the loss's name */
    void *stream;         /* run_cuda: cudaStream_t to launch on; run: NULL */

    /* run_cuda: [scratch_cuda] device memory, aligned to 64 bytes, with undefined content. NULL
     * without scratch_cuda. */
    void *scratch;
} gpp_loss_call;

/**
 * A loss. Values of the micro-batches are added up; they must be parts of the mini-batch's loss, so
 * a mean divides by batch_rows, not by its own rows. `run` is called on any thread, for several
 * micro-batches at once: it keeps nothing in static variables. Start from GPP_LOSS_FUNCTION_INIT;
 * fields may be added at the end.
 */
typedef struct gpp_loss_function {
    const char *name; /* for messages */
    /** What a target row must be, given an output row: the batch and rows are the output's. */
    gpp_status (*target)(const gpp_shape *y, gpp_shape *target, void *user, gpp_error *err);
    /** @param value out: this micro-batch's part; NaN when it is not set. A status other than
     * GPP_OK ends the step as a failing layer does. */
    gpp_status (*run)(const gpp_loss_call *call, double *value);
    void *user; /* must live as long as the pipe */

    /**
     * The same where the last partition is on a GPU (docs/gpu.md). NULL: the last partition must be
     * on cores, and without a list of devices all are.
     *
     * It is called on the host, while the GPU is the current one. It launches on call->stream and
     * returns; it must neither wait nor allocate. `value` and the data of y, target and grad_y are
     * device memory, so the function cannot look at them itself. A kernel reports an error by
     * writing NaN to `value`, which fails the step when options.nan_is_error is set. A status other
     * than GPP_OK, or a launch that CUDA refuses, ends the step as in `run`. For the same bits in
     * every run, let shapes alone fix the order of sums (no atomic additions of floats).
     */
    gpp_status (*run_cuda)(const gpp_loss_call *call, double *value);
    /** Bytes of call->scratch for a micro-batch of `rows` rows. It must not be fewer for more rows,
     * and is asked for when a size of mini-batches is planned, not in every step. NULL: none. */
    size_t (*scratch_cuda)(const gpp_shape *y, int64_t rows, void *user);
} gpp_loss_function;

#define GPP_LOSS_FUNCTION_INIT                                                                     \
    {                                                                                              \
        NULL, NULL, NULL, NULL, NULL, NULL                                                         \
    }

GPP_END_DECLS
#endif
