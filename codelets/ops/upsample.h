/*
 * codelets/ops/upsample.h: attributes of upsample, and which inputs an output is made of.
 */
#ifndef GPP_CODELETS_OPS_UPSAMPLE_H
#define GPP_CODELETS_OPS_UPSAMPLE_H

#include <math.h>

#include "codelets/cpu/philox.h"
#include "codelets/ops/resample.h"

enum { GPP__NEAREST, GPP__BILINEAR };

typedef struct gpp__upsample_attr {
    int64_t scale[2], size[2]; /* 0: not given */
    int mode;                  /* GPP__NEAREST, GPP__BILINEAR */
    bool align_corners;
} gpp__upsample_attr;

/** The inputs of output `o` along an axis with `in` inputs and `out` outputs. */
GPP__HOST_DEVICE static inline gpp__window gpp__upsample_window(int mode, bool align_corners,
                                                                int64_t in, int64_t out, int64_t o)
{
    gpp__window one = {o * in / out, 1, 1, 0};
    double at = 0;
    if (mode == GPP__NEAREST)
        return one;
    if (!align_corners)
        at = fmax(0.0, ((double)o + 0.5) * (double)in / (double)out - 0.5);
    else if (out > 1)
        at = (double)o * (double)(in - 1) / (double)(out - 1);
    one.first = (int64_t)at < in - 1 ? (int64_t)at : in - 1;
    double rest = at - (double)one.first;
    gpp__window two = {one.first, 2, 1 - rest, rest};
    return one.first == in - 1 || rest == 0 ? one : two;
}

#endif
