/*
 * codelets/ops/pad.h: attributes of pad.
 */
#ifndef GPP_CODELETS_OPS_PAD_H
#define GPP_CODELETS_OPS_PAD_H

#include "codelets/ops/internal.h"

typedef struct gpp__pad_attr {
    int64_t left, right, top, bottom;
    double value;
} gpp__pad_attr;

/** Where the input lies in the output. */
static inline gpp__box gpp__pad_box(const gpp__kernel *kernel)
{
    const int64_t *in = kernel->layer->in[0].dim, *out = kernel->layer->out[0].dim;
    const gpp__pad_attr *attr = (const gpp__pad_attr *)kernel->layer->attr;
    gpp__box box = {
        kernel->rows, {out[1], out[2], out[0]}, {in[1], in[2], in[0]}, {attr->top, attr->left, 0}};
    return box;
}

#endif
