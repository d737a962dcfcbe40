/*
 * codelets/loss.h: what a loss is. One const struct at the bottom of one file in codelets/losses/.
 *
 * A loss sees one micro-batch at a time but is the loss of the whole mini-batch: its normaliser is
 * the mini-batch's
 * (`batch_rows`), so that the micro-batches' values add up to what an unpipelined model gives,
 * however uneven they are.
 */
#ifndef GPP_CODELETS_LOSS_H
#define GPP_CODELETS_LOSS_H

#include "codelets/op.h"

typedef struct gpp_loss gpp_loss;

typedef struct gpp__loss_call {
    const void *attr;
    const gpp__desc
        *y_desc; /* of one output row. Rank-3 samples arrive row-major (C, H, W): the model's end */
    int64_t rows, batch_rows;
    const float *y;
    const void *target;
    float *grad_y; /* assigned; NULL: not wanted */
    double *value; /* out: this micro-batch's part of the loss */
    gpp_error *err;
} gpp__loss_call;

struct gpp_loss {
    const char *name;
    const gpp__key *keys;
    size_t attr_size;
    /** What a target row must be, given an output row. */
    gpp_status (*target)(const void *attr, const gpp__desc *y, gpp__desc *target, gpp_error *err);
    /** Fails with GPP_EINVAL on a target out of range, naming row and value. */
    gpp_status (*run)(const gpp__loss_call *call);
};

extern const gpp_loss *const gpp__losses[]; /* NULL-terminated, codelets/losses.c */

#endif
