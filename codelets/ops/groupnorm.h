/* codelets/ops/groupnorm.h: attributes of groupnorm and instancenorm, for their kernels on all
 * devices. */
#ifndef GPP_CODELETS_OPS_GROUPNORM_H
#define GPP_CODELETS_OPS_GROUPNORM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpp__groupnorm_attr {
    int64_t groups; /* 0: as many as channels */
    double eps;
    bool affine;
} gpp__groupnorm_attr;

#endif
