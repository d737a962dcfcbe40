/*
 * codelets/loss.h: what a loss is. One const struct at the bottom of one file in codelets/losses/.
 *
 * A loss sees one micro-batch at a time but is the loss of the whole mini-batch: what it is divided
 * by is the mini-batch's (`divisor`), so that the micro-batches' values add up to what an
 * unpipelined model gives, however uneven they are, also where the targets decide what counts.
 */
#ifndef GPP_CODELETS_LOSS_H
#define GPP_CODELETS_LOSS_H

#include "codelets/op.h"

typedef struct gpp_loss gpp_loss;

typedef struct gpp__loss_call {
    const void *attr;
    const gpp__desc
        *y_desc; /* of one output row. Rank-3 samples arrive row-major (C, H, W): the model's end */
    const gpp__desc *target_desc; /* of one target row, as `target` says it; only user losses ask */
    int micro_batch;
    int64_t row0, batch_rows; /* its first row in the mini-batch, whose rows these are */
    int64_t rows;             /* of this micro-batch */
    double divisor;           /* of the mini-batch */
    const float *weight;      /* [classes] of classes; NULL: all 1 */
    const float *y;
    const void *target;
    float *grad_y; /* assigned; NULL: not wanted */
    float *
        each; /* [rows · each's shape] unreduced losses, whatever the reduction; NULL: not wanted */
    void *scratch;          /* on CUDA: [scratch_cuda] */
    struct gpp__cuda *cuda; /* on CUDA: where to launch; pointers are device memory then */
    double *value; /* out: this micro-batch's part of the loss; with reduction none: the sum */
    gpp_error *err;
} gpp__loss_call;

struct gpp_loss {
    const char *name;
    const gpp__key *keys;
    size_t attr_size;
    /** What a target row must be, given an output row. */
    gpp_status (*target)(const void *attr, const gpp__desc *y, gpp__desc *target, gpp_error *err);
    /** Shape of one row's unreduced losses. NULL: it has none, and `each` is not asked for */
    void (*each)(const void *attr, const gpp__desc *y, gpp__desc *each);
    /** Number of class weights it can take, from an output row. NULL: none */
    int64_t (*classes)(const void *attr, const gpp__desc *y);
    /** What the values of a mini-batch of `rows` rows are divided by: with a mean the number, or
     * the weight, of all elements that count; else 1. A target out of range counts as nothing: run
     * says so. */
    double (*divisor)(const void *attr, const gpp__desc *y, int64_t rows, const void *target,
                      const float *weight);
    /** Fails with GPP_EINVAL on a target out of range, naming row and value. */
    gpp_status (*run)(const gpp__loss_call *call);

    /** The same on CUDA, where targets were checked by `check` before: an out of range one counts
     * as nothing there. NULL: none, or a build without CUDA. */
    gpp_status (*run_cuda)(const gpp__loss_call *call);
    /** Bytes of device memory that it wants besides. NULL: none */
    size_t (*scratch_cuda)(const void *attr, const gpp__desc *y, int64_t rows);
    /** In host memory, for targets that `run` would refuse: the same failure for the first of
     * `rows` rows. NULL: any target is fine. @param first number of the first row, for the message
     */
    gpp_status (*check)(const void *attr, const gpp__desc *y, const gpp__desc *target,
                        int64_t first, int64_t rows, const void *data, gpp_error *err);
};

extern const gpp_loss *const gpp__losses[]; /* NULL-terminated, codelets/losses.c */

#endif
