/*
 * codelets/ops/pop.h: attributes of pop and combine, and where their inputs lie in the output.
 */
#ifndef GPP_CODELETS_OPS_POP_H
#define GPP_CODELETS_OPS_POP_H

#include "codelets/ops/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GPP__POP_ADD, GPP__POP_CAT };

typedef struct gpp__pop_attr {
    gpp__skip_attr skip; /* of combine: unused */
    int mode;            /* GPP__POP_ADD, GPP__POP_CAT */
    int64_t dim;
    bool pad;
} gpp__pop_attr;

/** Where input `t` lies in the output. Images that are filled up need a box of three dimensions;
 * otherwise input and output differ in one dimension at most. */
gpp__box gpp__pop_box(const gpp__kernel *kernel, int t);

/** Whether input `t` is as large as the output, so that nothing else lies there. */
static inline bool gpp__pop_fills(const gpp__layer *layer, int t)
{
    return gpp__desc_count(&layer->in[t]) == gpp__desc_count(&layer->out[0]);
}

#ifdef __cplusplus
}
#endif
#endif
