/* codelets/ops/layernorm.h: attributes of layernorm, for its kernels on all devices. */
#ifndef GPP_CODELETS_OPS_LAYERNORM_H
#define GPP_CODELETS_OPS_LAYERNORM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpp__layernorm_attr {
    int64_t dims, shape[4];
    double eps;
    bool affine;
} gpp__layernorm_attr;

#endif
