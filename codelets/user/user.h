/*
 * codelets/user/user.h: operators of the caller's (include/gridpipe/operator.h) as operators of ours.
 *
 * A user operator is a copy of the caller's definition with a gpp_op in it whose functions find the
 * definition through the layer's op. Models, their clones and pipes share it; the last one that
 * drops it frees it.
 */
#ifndef GPP_CODELETS_USER_H
#define GPP_CODELETS_USER_H

#include <gridpipe/operator.h>

#include "codelets/op.h"

typedef struct gpp__user_op gpp__user_op;

/**
 * Copy and check a definition: its name, keys, skips and functions.
 * @param op  out, held once; NULL on failure
 * @return GPP_OK, GPP_EINVAL (the message says what is wrong with it), GPP_ENOMEM
 */
gpp_status gpp__user_op_new(gpp__user_op **op, const gpp_operator *def, gpp_error *err);

/** What layers refer to. Lives as long as the user operator is held. */
const gpp_op *gpp__user_op_op(const gpp__user_op *op);

/** Hold it once more, on any thread; returns `op`. */
gpp__user_op *gpp__user_op_hold(gpp__user_op *op);
/** Hold it once less. NULL is fine. */
void gpp__user_op_drop(gpp__user_op *op);

#endif
