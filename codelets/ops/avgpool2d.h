/* codelets/ops/avgpool2d.h: attributes of avgpool2d, for its kernels on all devices. */
#ifndef GPP_CODELETS_OPS_AVGPOOL2D_H
#define GPP_CODELETS_OPS_AVGPOOL2D_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpp__avgpool2d_attr {
    int64_t kernel[2], stride[2], padding[2]; /* stride 0: the kernel's */
    bool ceil, count_include_pad;
} gpp__avgpool2d_attr;

#endif
