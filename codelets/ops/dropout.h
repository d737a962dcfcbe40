/*
 * codelets/ops/dropout.h: the mask of dropout and dropout2d, the same function on every device.
 */
#ifndef GPP_CODELETS_OPS_DROPOUT_H
#define GPP_CODELETS_OPS_DROPOUT_H

#include "codelets/cpu/philox.h"
#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/op.h"

/* Eight calls of Philox decide about 32 elements: element e is in block e / 32, its bits are word
 * (e % 32) / 8 of the block's call e % 8. */
enum { GPP__DROPOUT_LANES = 8, GPP__DROPOUT_BLOCK = 4 * GPP__DROPOUT_LANES };

typedef struct gpp__dropout_attr {
    double p;
} gpp__dropout_attr;

/* The mask as a function of the element, and what a kept one is multiplied by. */
typedef struct gpp__dropout_mask {
    uint64_t key, hi;
    int32_t threshold;
    float scale;
} gpp__dropout_mask;

gpp__dropout_mask gpp__dropout_mask_of(const gpp__layer *layer, const gpp__run *run);

/** The first row of this call among all that the mask is a function of. */
uint64_t gpp__dropout_first_row(const gpp__layer *layer, const gpp__run *run);

/** What the element with these bits is multiplied by. */
GPP__HOST_DEVICE static inline float gpp__dropout_factor(const gpp__dropout_mask *m, uint32_t bits)
{
    return (int32_t)(bits >> 8) >= m->threshold ? m->scale : 0.0f;
}

#ifdef __cplusplus
}
#endif
#endif
