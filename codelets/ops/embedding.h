/*
 * codelets/ops/embedding.h: attributes of embedding.
 */
#ifndef GPP_CODELETS_OPS_EMBEDDING_H
#define GPP_CODELETS_OPS_EMBEDDING_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/op.h"

typedef struct gpp__embedding_attr {
    int64_t num, dim, padding_idx; /* INT64_MIN: none */
} gpp__embedding_attr;

/** The row without gradient; -1: there is none. */
static inline int64_t gpp__embedding_padding(const gpp__layer *layer)
{
    const gpp__embedding_attr *attr = (const gpp__embedding_attr *)layer->attr;
    if (attr->padding_idx == INT64_MIN)
        return -1;
    return attr->padding_idx < 0 ? attr->padding_idx + attr->num : attr->padding_idx;
}

#ifdef __cplusplus
}
#endif
#endif
