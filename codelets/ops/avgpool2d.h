/* codelets/ops/avgpool2d.h: what avgpool2d's kernels for all kinds of devices know of it. */
#ifndef GPP_CODELETS_OPS_AVGPOOL2D_H
#define GPP_CODELETS_OPS_AVGPOOL2D_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpp__avgpool2d_attr {
    int64_t kernel[2], stride[2], padding[2]; /* stride 0: the kernel's */
    bool ceil, count_include_pad;
} gpp__avgpool2d_attr;

#endif
