/*
 * codelets/ops/softmax.h: attributes of softmax and log_softmax.
 */
#ifndef GPP_CODELETS_OPS_SOFTMAX_H
#define GPP_CODELETS_OPS_SOFTMAX_H

#include <stdint.h>

typedef struct gpp__softmax_attr {
    int64_t dim;
} gpp__softmax_attr;

#endif
