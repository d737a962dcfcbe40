/* codelets/ops/batchnorm.h: what batchnorm's kernels for all kinds of devices know of it. */
#ifndef GPP_CODELETS_OPS_BATCHNORM_H
#define GPP_CODELETS_OPS_BATCHNORM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/op.h"

typedef struct gpp__batchnorm_attr {
    double eps, momentum; /* momentum NAN: cumulative */
    bool affine, track, deferred;
} gpp__batchnorm_attr;

/* In the layer's list, where it has them: weight and bias with affine, the others with track. */
enum {
    GPP__BATCHNORM_WEIGHT,
    GPP__BATCHNORM_BIAS,
    GPP__BATCHNORM_MEAN,
    GPP__BATCHNORM_VAR,
    GPP__BATCHNORM_TRACKED
};

/** Where a parameter is in the layer's list; -1: it has none. */
static inline int gpp__batchnorm_index(const gpp__layer *layer, int which)
{
    const gpp__batchnorm_attr *attr = (const gpp__batchnorm_attr *)layer->attr;
    if (which <= GPP__BATCHNORM_BIAS)
        return attr->affine ? which : -1;
    return attr->track ? which - (attr->affine ? 0 : 2) : -1;
}

/** The failure of a normalisation by statistics of one number. */
gpp_status gpp__batchnorm_too_few(const gpp__layer *layer, gpp_error *err);

#ifdef __cplusplus
}
#endif

#endif
