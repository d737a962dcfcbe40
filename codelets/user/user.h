/*
 * codelets/user/user.h: a user's operator (include/gridpipe/operator.h) as a gpp_op.
 *
 * A user operator is a copy of the caller's definition together with a gpp_op, whose functions find
 * the definition through the layer's op. Models, their clones and pipes share it. The last one to
 * drop it frees it.
 */
#ifndef GPP_CODELETS_USER_H
#define GPP_CODELETS_USER_H

#include <gridpipe/operator.h>

#include "codelets/op.h"

typedef struct gpp__user_op gpp__user_op;

/**
 * Copy and check a definition: its name, keys, skips and functions.
 * @param op  out, with one reference; NULL on failure
 * @return GPP_OK, GPP_EINVAL (the message says what is wrong with it), GPP_ENOMEM
 */
gpp_status gpp__user_op_new(gpp__user_op **op, const gpp_operator *def, gpp_error *err);

/** The gpp_op that layers refer to. Lives as long as the user operator. */
const gpp_op *gpp__user_op_op(const gpp__user_op *op);

/** Add a reference, on any thread; returns `op`. */
gpp__user_op *gpp__user_op_hold(gpp__user_op *op);
/** Remove a reference. NULL is fine. */
void gpp__user_op_drop(gpp__user_op *op);

#endif
