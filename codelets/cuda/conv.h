/*
 * codelets/cuda/conv.h: one convolution on a device, for one number of rows, in its three ways
 * (cpu/dnnl.h): images and maps channels-last float32, weights and their gradients (out, kH, kW,
 * in/groups), which cuDNN calls KRSC.
 *
 * Each way is computed by cuDNN or, where cuDNN has nothing that fits, by columns: the windows of
 * the image are written out as rows of a matrix, which cuBLAS multiplies. A pointwise convolution
 * is such a product as it stands, so it always goes by columns, without writing anything out.
 *
 * cuDNN has two interfaces for convolutions. This code uses the older one (cudnnConvolutionForward
 * and the like), for two reasons. It lists the algorithms with all that the choice depends on:
 * whether each is deterministic and what it computes with. And it takes a factor for the previous
 * content of the result, so gradients add up in place. The newer interface, operation graphs, has
 * neither. From version 9 on the older functions and types are declared CUDNN_DEPRECATED, which is
 * empty unless CUDNN_WARN_DEPRECATED is defined, so no warning has to be silenced.
 *
 * From cuDNN's list, which is sorted by expected speed, the first algorithm is taken that
 *   - supports the shape, with at most GPP__CUDA_CONV_WORKSPACE bytes;
 *   - is deterministic, where cuda->deterministic;
 *   - computes as cuda->math says: F32 with CUDNN_FMA_MATH, which excludes TF32.
 * The list depends on the shape and the kind of device, and so does the choice. When a call refuses
 * the chosen algorithm, the ones after it on the list are tried, and in the end columns
 * (conv_library.cu).
 *
 * With GPP__MATH_BF16 cuDNN gets bfloat16 tensors, sums in float32 and returns bfloat16, which is
 * converted back; columns return float32.
 */
#ifndef GPP_CODELETS_CUDA_CONV_H
#define GPP_CODELETS_CUDA_CONV_H

#include "codelets/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/cpu/dnnl.h"

/** The most workspace an algorithm may ask for. It is enough for every implicit product. It
 * excludes transforms of large images, which gain little speed for memory that activations need. */
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
