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
    int64_t batch_rows;   /* of the mini-batch: what a mean is divided by */
    gpp_tensor y, target; /* of this micro-batch; images are N, C, H, W */
    gpp_tensor grad_y;    /* to write, all of it: d loss / d y; data NULL: not wanted */
    gpp_error *err;       /* where to say what is wrong: its msg is shown behind the loss's name */
} gpp_loss_call;

/**
 * A loss. Values of the micro-batches are added up; they must be parts of the mini-batch's loss, so
 * a mean divides by batch_rows, not by its own rows. `run` is called on any thread, for several
 * micro-batches at once: it keeps nothing in static variables.
 */
typedef struct gpp_loss_function {
    const char *name; /* for messages */
    /** What a target row must be, given an output row: the batch and rows are the output's. */
    gpp_status (*target)(const gpp_shape *y, gpp_shape *target, void *user, gpp_error *err);
    /** @param value out: this micro-batch's part. A status other than GPP_OK ends the step as a
     * failing layer does. */
    gpp_status (*run)(const gpp_loss_call *call, double *value);
    void *user; /* must live as long as the pipe */
} gpp_loss_function;

GPP_END_DECLS
#endif
