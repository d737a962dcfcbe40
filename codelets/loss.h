/*
 * codelets/loss.h: what a loss is. One const struct at the bottom of one file in codelets/losses/.
 *
 * A loss sees one micro-batch at a time, but its value is a part of the mini-batch's loss. So it
 * divides by a number of the mini-batch (`divisor`), not of the micro-batch. Then the values of the
 * micro-batches add up to what an unpipelined model gives, even when the micro-batches differ in
 * size or when the targets decide which elements count.
 */
#ifndef GPP_CODELETS_LOSS_H
#define GPP_CODELETS_LOSS_H

#include "codelets/op.h"

typedef struct gpp_loss gpp_loss;

typedef struct gpp__loss_call {
    const void *attr;

    /* Shape of one output row. Images arrive row-major (C, H, W): a loss stands at the model's end,
     * where programs convert to the caller's layout. */
    const gpp__desc *y_desc;
    const gpp__desc *target_desc; /* of one target row, from `target`; only user losses read it */
    int micro_batch;
    int64_t row0;        /* the micro-batch's first row in the mini-batch */
    int64_t batch_rows;  /* of the mini-batch */
    int64_t rows;        /* of this micro-batch */
    double divisor;      /* of the mini-batch */
    const float *weight; /* [classes] weights of classes; NULL: all 1 */
    const float *y;
    const void *target;
    float *grad_y; /* assigned; NULL: not wanted */

    /* [rows · each's shape] out: unreduced losses, whatever the reduction; NULL: not wanted */
    float *each;
    void *scratch;          /* on CUDA: [scratch_cuda] */
    struct gpp__cuda *cuda; /* on CUDA: where to launch; pointers are then device memory */

    /* out: this micro-batch's part of the loss. With reduction none it is the sum. */
    double *value;
    gpp_error *err;
} gpp__loss_call;

struct gpp_loss {
    const char *name;
    const gpp__key *keys;
    size_t attr_size;
    /** What a target row must be, given an output row. */
    gpp_status (*target)(const void *attr, const gpp__desc *y, gpp__desc *target, gpp_error *err);
    /** Shape of one row's unreduced losses. NULL: the loss has none, and `each` is never wanted */
    void (*each)(const void *attr, const gpp__desc *y, gpp__desc *each);
    /** Number of class weights that the loss takes for such output rows. NULL: none */
    int64_t (*classes)(const void *attr, const gpp__desc *y);
    /** What the loss of a mini-batch of `rows` rows is divided by. For a mean this is the number
     * (or the weight) of all elements that count, otherwise 1. A target out of range is not
     * counted; it is `run` that fails on it. */
    double (*divisor)(const void *attr, const gpp__desc *y, int64_t rows, const void *target,
                      const float *weight);
    /** Compute value, gradient and unreduced losses. Fails with GPP_EINVAL on a target out of
     * range, naming row and value. */
    gpp_status (*run)(const gpp__loss_call *call);

    /** The same on CUDA. `check` has checked the targets before, so a target out of range is not an
     * error here: it counts as nothing. NULL: none, or a build without CUDA. */
    gpp_status (*run_cuda)(const gpp__loss_call *call);
    /** Bytes of scratch that run_cuda needs. NULL: none */
    size_t (*scratch_cuda)(const void *attr, const gpp__desc *y, int64_t rows);
    /** Fail as `run` would on the first of `rows` target rows that is out of range. The rows are in
     * host memory. NULL: any target is fine. @param first  number of the first row, for messages */
    gpp_status (*check)(const void *attr, const gpp__desc *y, const gpp__desc *target,
                        int64_t first, int64_t rows, const void *data, gpp_error *err);
};

extern const gpp_loss *const gpp__losses[]; /* NULL-terminated, codelets/losses.c */

#endif
