/* codelets/ops/batchnorm.h: attributes and parameters of batchnorm, for its kernels on all devices.
 */
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

/* Parameters and buffers. A layer has weight and bias only with affine, the others only with track.
 */
enum {
    GPP__BATCHNORM_WEIGHT,
    GPP__BATCHNORM_BIAS,
    GPP__BATCHNORM_MEAN,
    GPP__BATCHNORM_VAR,
    GPP__BATCHNORM_TRACKED
};

/** Index of a parameter in the layer's list; -1: the layer does not have it. */
static inline int gpp__batchnorm_index(const gpp__layer *layer, int which)
{
    const gpp__batchnorm_attr *attr = (const gpp__batchnorm_attr *)layer->attr;
    if (which <= GPP__BATCHNORM_BIAS)
        return attr->affine ? which : -1;
    return attr->track ? which - (attr->affine ? 0 : 2) : -1;
}

/** Fails: statistics of a single number cannot normalise. */
gpp_status gpp__batchnorm_too_few(const gpp__layer *layer, gpp_error *err);

#ifdef __cplusplus
}
#endif

#endif
