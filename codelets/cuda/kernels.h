/*
 * codelets/cuda/kernels.h: the operators' functions for CUDA, each at the bottom of the .cu file
 * beside its operator. Included by both, so that a declaration that does not fit its definition is
 * found.
 */
#ifndef GPP_CODELETS_CUDA_KERNELS_H
#define GPP_CODELETS_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/op.h"

#define GPP__CUDA_OP_LIST(X)                                                                       \
    X(linear)                                                                                      \
    X(conv2d)                                                                                      \
    X(conv_transpose2d)                                                                            \
    X(relu)                                                                                        \
    X(maxpool2d)                                                                                   \
    X(dropout)                                                                                     \
    X(dropout2d)                                                                                   \
    X(pop)                                                                                         \
    X(combine)                                                                                     \
    X(add)                                                                                         \
    X(mul)                                                                                         \
    X(cat)                                                                                         \
    X(split)                                                                                       \
    X(tanh)                                                                                        \
    X(sigmoid)                                                                                     \
    X(gelu)                                                                                        \
    X(silu)                                                                                        \
    X(leaky_relu)                                                                                  \
    X(relu6)                                                                                       \
    X(hardtanh)                                                                                    \
    X(elu)                                                                                         \
    X(softplus)                                                                                    \
    X(avgpool2d)                                                                                   \
    X(adaptive_avgpool2d)                                                                          \
    X(upsample)                                                                                    \
    X(pad)                                                                                         \
    X(softmax)                                                                                     \
    X(log_softmax)                                                                                 \
    X(batchnorm)                                                                                   \
    X(layernorm)                                                                                   \
    X(instancenorm)                                                                                \
    X(groupnorm)                                                                                   \
    X(embedding)                                                                                   \
    X(position_embedding)                                                                          \
    X(self_attention)                                                                              \
    X(channels_last)                                                                               \
    X(channels_first)

#define GPP__CUDA_OP_DECLARE(name) extern const gpp__kernels gpp__cuda_##name;
GPP__CUDA_OP_LIST(GPP__CUDA_OP_DECLARE)
#undef GPP__CUDA_OP_DECLARE

/** For gpp_op.cuda: NULL in a build without CUDA. */
#ifdef GPP__WITH_CUDA
#define GPP__CUDA_KERNELS(name) (&gpp__cuda_##name)
#else
#define GPP__CUDA_KERNELS(name) NULL
#endif

#ifdef __cplusplus
}
#endif
#endif
