/*
 * codelets/ops/self_attention.h: attributes of self_attention, for its kernels on all devices.
 */
#ifndef GPP_CODELETS_OPS_SELF_ATTENTION_H
#define GPP_CODELETS_OPS_SELF_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpp__self_attention_attr {
    int64_t heads; /* divide the features */
    bool causal;
} gpp__self_attention_attr;

#endif
