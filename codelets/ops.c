/*
 * codelets/ops.c: the list of built-in operators. A new one adds its file in codelets/ops/ and a
 * line here.
 */
#include "codelets/op.h"

#include <string.h>

#define GPP__OP_LIST(X)                                                                            \
    X(gpp_op_linear)                                                                               \
    X(gpp_op_conv2d)                                                                               \
    X(gpp_op_conv_transpose2d)                                                                     \
    X(gpp_op_relu)                                                                                 \
    X(gpp_op_maxpool2d)                                                                            \
    X(gpp_op_flatten)                                                                              \
    X(gpp_op_dropout)                                                                              \
    X(gpp_op_dropout2d)                                                                            \
    X(gpp_op_identity)                                                                             \
    X(gpp_op_stash)                                                                                \
    X(gpp_op_unstash)                                                                              \
    X(gpp_op_pop)                                                                                  \
    X(gpp_op_combine)                                                                              \
    X(gpp_op_add)                                                                                  \
    X(gpp_op_mul)                                                                                  \
    X(gpp_op_cat)                                                                                  \
    X(gpp_op_split)                                                                                \
    X(gpp_op_tanh)                                                                                 \
    X(gpp_op_sigmoid)                                                                              \
    X(gpp_op_gelu)                                                                                 \
    X(gpp_op_silu)                                                                                 \
    X(gpp_op_leaky_relu)                                                                           \
    X(gpp_op_relu6)                                                                                \
    X(gpp_op_hardtanh)                                                                             \
    X(gpp_op_elu)                                                                                  \
    X(gpp_op_softplus)                                                                             \
    X(gpp_op_avgpool2d)                                                                            \
    X(gpp_op_adaptive_avgpool2d)                                                                   \
    X(gpp_op_upsample)                                                                             \
    X(gpp_op_pad)                                                                                  \
    X(gpp_op_softmax)                                                                              \
    X(gpp_op_log_softmax)                                                                          \
    X(gpp_op_batchnorm)                                                                            \
    X(gpp_op_layernorm)                                                                            \
    X(gpp_op_instancenorm)                                                                         \
    X(gpp_op_groupnorm)                                                                            \
    X(gpp_op_embedding)                                                                            \
    X(gpp_op_position_embedding)                                                                   \
    X(gpp_op_self_attention)

#define GPP__OP_DECLARE(op) extern const gpp_op op;
GPP__OP_LIST(GPP__OP_DECLARE)

#define GPP__OP_ENTRY(op) &op,
const gpp_op *const gpp__ops[] = {GPP__OP_LIST(GPP__OP_ENTRY) NULL};

const char *gpp_op_name(size_t k)
{
    size_t count = sizeof gpp__ops / sizeof *gpp__ops - 1;
    return k < count ? gpp__ops[k]->name : NULL;
}

const gpp_op *gpp__op_find(const char *name)
{
    for (const gpp_op *const *op = gpp__ops; *op; op++)
        if (!strcmp((*op)->name, name))
            return *op;
    return NULL;
}
