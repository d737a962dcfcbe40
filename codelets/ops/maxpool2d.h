/* codelets/ops/maxpool2d.h: attributes of maxpool2d, for its kernels on all devices. */
#ifndef GPP_CODELETS_OPS_MAXPOOL2D_H
#define GPP_CODELETS_OPS_MAXPOOL2D_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpp__maxpool2d_attr {
    int64_t kernel[2], stride[2], padding[2], dilation[2]; /* stride 0: the kernel's */
    bool ceil;
} gpp__maxpool2d_attr;

#endif
