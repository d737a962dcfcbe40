/*
 * codelets/cpu/dnnl.h: convolutions from oneDNN, 2.6 or 3. The only place that knows its interface.
 *
 * Images are channels-last. Weights have a layout of the library's choice for each of the three
 * ways through a convolution; it is chosen once (gpp__dnnl_conv) and every primitive, whatever its
 * number of rows, uses it. A call runs on the calling thread alone: oneDNN's OpenMP is held to one
 * thread meanwhile and the thread's own setting restored, so a host application keeps its own.
 */
#ifndef GPP_CODELETS_CPU_DNNL_H
#define GPP_CODELETS_CPU_DNNL_H

#include "base/status.h"

/** oneDNN's version and the instructions that it chooses kernels for, as text: equal where it chooses
 * the same kernels. */
void gpp__dnnl_text(char *text, size_t size);

/** A convolution of one row. Dimensions are height, width. */
typedef struct gpp__conv_shape {
    int64_t groups, in_channels, out_channels; /* channels of all groups together */
    int64_t in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];
    bool bias;
} gpp__conv_shape;

typedef enum gpp__conv_way {
    GPP__CONV_FORWARD, /* y from x, weights, bias */
    GPP__CONV_DATA,    /* dx from dy, weights */
    GPP__CONV_WEIGHTS, /* dweights, dbias from x, dy; assigned */
    GPP__CONV_WAYS
} gpp__conv_way;

/** The layouts of a convolution's weights, and conversions between them and (out, in/groups, kH,
 * kW). One thread at a time converts. */
typedef struct gpp__dnnl_conv gpp__dnnl_conv;

/** @param rows  the number the layouts are chosen for, > 0 */
gpp_status gpp__dnnl_conv_new(gpp__dnnl_conv **conv, const gpp__conv_shape *shape, int64_t rows,
                              gpp_error *err);
void gpp__dnnl_conv_free(gpp__dnnl_conv *conv);
/** Bytes of the weights as `way` wants (or makes) them. */
size_t gpp__dnnl_conv_bytes(const gpp__dnnl_conv *conv, gpp__conv_way way);
/** True when forward and backward data read the same layout. */
bool gpp__dnnl_conv_shared(const gpp__dnnl_conv *conv);
/** "jit:avx2", "jit:avx512_core", ...: oneDNN's name of what it chose for `way`. */
const char *gpp__dnnl_conv_name(const gpp__dnnl_conv *conv, gpp__conv_way way);
/** Weights from (out, in/groups, kH, kW) to the layout of FORWARD or DATA. */
gpp_status gpp__dnnl_conv_pack(const gpp__dnnl_conv *conv, gpp__conv_way way, const float *plain,
                               void *packed, gpp_error *err);
/** Gradients from WEIGHTS' layout to (out, in/groups, kH, kW). */
gpp_status gpp__dnnl_conv_unpack(const gpp__dnnl_conv *conv, const void *packed, float *plain,
                                 gpp_error *err);

/** One way compiled for one number of rows. */
typedef struct gpp__dnnl_kernel gpp__dnnl_kernel;

/** @param threads  threads that may run it at the same time, each under its number; `conv` must
 * outlive the kernel */
gpp_status gpp__dnnl_kernel_new(gpp__dnnl_kernel **kernel, const gpp__dnnl_conv *conv,
                                gpp__conv_way way, int64_t rows, int threads, gpp_error *err);
void gpp__dnnl_kernel_free(gpp__dnnl_kernel *kernel);
/** Bytes of scratch of one run. */
size_t gpp__dnnl_kernel_scratch(const gpp__dnnl_kernel *kernel);

/** Pointers of one run; which of them are read and which written follows from the way. */
typedef struct gpp__dnnl_args {
    const void *x, *weights, *bias, *y; /* or their gradients */
    void *scratch;
} gpp__dnnl_args;

/** @return GPP_OK or GPP_EKERNEL */
gpp_status gpp__dnnl_run(const gpp__dnnl_kernel *kernel, int thread, const gpp__dnnl_args *args);

#endif
