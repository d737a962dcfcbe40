/*
 * codelets/ops.c: the list of built-in operators. A new one adds its file in codelets/ops/ and a
 * line here.
 */
#include "codelets/op.h"

#define GPP__OP_LIST(X)                                                                            \
    X(linear)                                                                                      \
    X(conv2d)                                                                                      \
    X(relu)                                                                                        \
    X(maxpool2d)                                                                                   \
    X(flatten)                                                                                     \
    X(dropout)                                                                                     \
    X(identity)

#define GPP__OP_DECLARE(name) extern const gpp_op gpp_op_##name;
GPP__OP_LIST(GPP__OP_DECLARE)

#define GPP__OP_ENTRY(name) &gpp_op_##name,
const gpp_op *const gpp__ops[] = {GPP__OP_LIST(GPP__OP_ENTRY) NULL};

const char *gpp_op_name(size_t k)
{
    size_t count = sizeof gpp__ops / sizeof *gpp__ops - 1;
    return k < count ? gpp__ops[k]->name : NULL;
}
