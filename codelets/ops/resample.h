/*
 * codelets/ops/resample.h: images whose pixels are weighted sums over rectangles of another
 * image's, channel by channel: average pooling and interpolation.
 *
 *   y[o, q] = Σ_h Σ_w a(o, h) b(q, w) x[h, w]
 *
 * A weight is the product of one weight for each direction. So an operator only describes, for each
 * output along an axis, the window of its inputs. The backward is the same sum with the two tables
 * transposed. Every pixel is computed once and in one order; nothing is added to in memory.
 */
#ifndef GPP_CODELETS_OPS_RESAMPLE_H
#define GPP_CODELETS_OPS_RESAMPLE_H

#include "codelets/ops/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The inputs of one output along an axis: first ... first + count - 1, count >= 0, all inside. */
typedef struct gpp__window {
    int64_t first, count;
    double head, rest; /* weight of the first; of each other */
} gpp__window;

/** @param axis  0: height, 1: width  @param out  index of the output */
typedef gpp__window (*gpp__window_fn)(const gpp__layer *layer, int axis, int64_t out);

/** gpp_op.prepare of an operator from one image to one image with as many channels. */
gpp_status gpp__resample_prepare(gpp__kernel *kernel, gpp__window_fn window, gpp_error *err);
/* The other functions of gpp_op. */
void gpp__resample_release(gpp__kernel *kernel);
gpp_status gpp__resample_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io);
gpp_status gpp__resample_backward(const gpp__kernel *kernel, const gpp__run *run,
                                  const gpp__io *io);

/** Fails when a side of input or output is too long for the tables. */
gpp_status gpp__resample_check(const gpp__layer *layer, gpp_error *err);

#ifdef __cplusplus
}
#endif
#endif
