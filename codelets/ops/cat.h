/*
 * codelets/ops/cat.h: attributes of cat and split.
 */
#ifndef GPP_CODELETS_OPS_CAT_H
#define GPP_CODELETS_OPS_CAT_H

#include <stdint.h>

typedef struct gpp__cat_attr {
    int64_t dim, parts;
} gpp__cat_attr;

#endif
