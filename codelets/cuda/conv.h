/*
 * codelets/cuda/conv.h: one convolution on a device, for one number of rows, in its three ways
 * (cpu/dnnl.h): images and maps channels-last float32, weights and their gradients (out, kH, kW,
 * in/groups), which cuDNN calls KRSC.
 *
 * Each way is cuDNN's or, where cuDNN has nothing that fits, by columns: the windows of the image
 * are written out as rows of a matrix, and cuBLAS multiplies. Pointwise convolutions are products
 * as they stand and always take the second way, without writing anything out.
 *
 * cuDNN has convolutions behind two interfaces. The older one is used, cudnnConvolutionForward and
 * its kin: it lists its algorithms with what has to be chosen by, whether each is deterministic and
 * what it computes with, and takes a factor for what is in the result, so gradients add up in
 * place. From version 9 on its functions and descriptor types are declared CUDNN_DEPRECATED, which
 * is empty unless CUDNN_WARN_DEPRECATED is defined, so nothing has to be silenced. The newer one,
 * operation graphs, has neither the list nor the factor.
 *
 * Of cuDNN's own list, in the order in which it expects them to be fast, the first is taken that
 *   - supports the shape, with at most GPP__CUDA_CONV_WORKSPACE bytes;
 *   - is deterministic, where cuda->deterministic;
 *   - computes as cuda->math says: F32 with CUDNN_FMA_MATH, which excludes TF32.
 * The list depends on shape and kind of device, so the choice does, too. Where a call refuses what
 * was chosen, those after it on the list are tried, and in the end columns (conv_library.cu).
 *
 * With GPP__MATH_BF16 cuDNN gets bfloat16 tensors, sums in float32 and returns bfloat16, converted
 * back; the other way returns float32.
 */
#ifndef GPP_CODELETS_CUDA_CONV_H
#define GPP_CODELETS_CUDA_CONV_H

#include "codelets/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/cpu/dnnl.h"

/** The most an algorithm may ask for. Enough for every implicit product; what it excludes are
 * transforms of large images, which buy little speed for memory that belongs to activations. */
#define GPP__CUDA_CONV_WORKSPACE ((size_t)256 << 20)

typedef struct gpp__cuda_conv gpp__cuda_conv;

/**
 * @param layer    for messages; outlives the convolution
 * @param library  false: all ways by columns, to compare
 */
gpp_status gpp__cuda_conv_new(gpp__cuda_conv **conv, const gpp__cuda *cuda, const gpp__layer *layer,
                              const gpp__conv_shape *shape, int64_t rows, bool library,
                              gpp_error *err);
void gpp__cuda_conv_free(gpp__cuda_conv *conv);
/** True when cuDNN does `way`. */
bool gpp__cuda_conv_by_library(const gpp__cuda_conv *conv, gpp__conv_way way);
/** Bytes, aligned. */
size_t gpp__cuda_conv_scratch(const gpp__cuda_conv *conv, gpp__conv_way way);

/** One call. FORWARD reads image and writes map, DATA reads map and writes image, WEIGHTS reads
 * both. */
typedef struct gpp__cuda_conv_args {
    float *image, *map;
    const void *weights; /* as operands (cuda/gemm.h) */
    float *grad;         /* of the weights */
    bool add;            /* to grad; else it is assigned */
    void *scratch;
} gpp__cuda_conv_args;
gpp_status gpp__cuda_conv_run(const gpp__cuda_conv *conv, gpp__conv_way way, const gpp__run *run,
                              const gpp__cuda_conv_args *args);

#ifdef __cplusplus
}
#endif
#endif
