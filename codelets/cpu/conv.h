/*
 * codelets/cpu/conv.h: the weights' gradient of a convolution without groups, on one thread.
 *
 * This is for machines without AVX-512. There oneDNN's weights gradient reaches only half to two
 * thirds of a core's peak, while its other kernels reach far more.
 *
 * With x channels-last, each (tap, channel) pair of the kernel is a row of dW and each output
 * channel a column:  dW[tap, c][o] = Σ over positions  x[position + tap][c] · dy[position][o],  a
 * matrix product whose left operand is gathered from x (gemm.h) and never written out.
 */
#ifndef GPP_CODELETS_CPU_CONV_H
#define GPP_CODELETS_CPU_CONV_H

#include "codelets/cpu/dnnl.h"

typedef struct gpp__conv_grad gpp__conv_grad;

/** @return GPP_OK, GPP_ENOMEM or GPP_EUNSUPPORTED (groups, or a line of the image too long) */
gpp_status gpp__conv_grad_new(gpp__conv_grad **grad, const gpp__conv_shape *shape, gpp_error *err);
void gpp__conv_grad_free(gpp__conv_grad *grad);
/** Bytes of the gradients in the layout of gpp__conv_grad_run, without the bias; and bytes of its
 * scratch. */
size_t gpp__conv_grad_bytes(const gpp__conv_grad *grad);
size_t gpp__conv_grad_scratch(const gpp__conv_grad *grad);
/** Assigns weights and (unless NULL) bias, out_channels floats, from x and dy of `rows` images. */
void gpp__conv_grad_run(const gpp__conv_grad *grad, int64_t rows, const float *x, const float *dy,
                        float *weights, float *bias, void *scratch);
/** To (out, in, kH, kW). */
void gpp__conv_grad_unpack(const gpp__conv_grad *grad, const float *weights, float *plain);

#endif
