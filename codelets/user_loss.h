/*
 * codelets/user_loss.h: a loss of the user's (gridpipe/loss.h) as a gpp_loss.
 *
 * It divides by nothing (its divisor is 1), has no unreduced losses (each is NULL) and no class
 * weights. Its attributes are the definition, so that they may be kept as those of any loss: a pipe
 * copies attr_size bytes from gpp__user_loss_attr.
 */
#ifndef GPP_CODELETS_USER_LOSS_H
#define GPP_CODELETS_USER_LOSS_H

#include <gridpipe/loss.h>

#include "codelets/loss.h"

/** @param loss  out; NULL on failure. Free with gpp__user_loss_free
 * @param def   copied, its name too
 * @return GPP_OK, GPP_EINVAL (no definition, no name or a function is missing), GPP_ENOMEM */
gpp_status gpp__user_loss_new(gpp_loss **loss, const gpp_loss_function *def, gpp_error *err);
/** NULL is fine. */
void gpp__user_loss_free(gpp_loss *loss);

/** What its functions take as attributes, attr_size bytes; lives as long as the loss. */
const void *gpp__user_loss_attr(const gpp_loss *loss);

#endif
