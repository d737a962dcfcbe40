/*
 * codelets/ops.c: the list of built-in operators. A new one adds its file in codelets/ops/ and a
 * line here.
 */
#include "codelets/op.h"

#define GPP__OP_LIST(X)                                                                            \
    X(linear)                                                                                      \
    X(conv2d)                                                                                      \
    X(conv_transpose2d)                                                                            \
    X(relu)                                                                                        \
    X(maxpool2d)                                                                                   \
    X(flatten)                                                                                     \
    X(dropout)                                                                                     \
    X(dropout2d)                                                                                   \
    X(identity)                                                                                    \
    X(stash)                                                                                       \
    X(unstash)                                                                                     \
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
    X(self_attention)

#define GPP__OP_DECLARE(name) extern const gpp_op gpp_op_##name;
GPP__OP_LIST(GPP__OP_DECLARE)

#define GPP__OP_ENTRY(name) &gpp_op_##name,
const gpp_op *const gpp__ops[] = {GPP__OP_LIST(GPP__OP_ENTRY) NULL};

const char *gpp_op_name(size_t k)
{
    size_t count = sizeof gpp__ops / sizeof *gpp__ops - 1;
    return k < count ? gpp__ops[k]->name : NULL;
}
