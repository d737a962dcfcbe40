/*
 * codelets/user/loss.h: a user's loss (gridpipe/loss.h) as a gpp_loss.
 *
 * Its divisor is 1, it has no unreduced losses (each is NULL) and takes no class weights. Its
 * attributes are the definition, so a pipe can keep them like those of any loss: it copies
 * attr_size bytes from gpp__user_loss_attr.
 */
#ifndef GPP_CODELETS_USER_LOSS_H
#define GPP_CODELETS_USER_LOSS_H

#ifdef __cplusplus
extern "C" {
#endif

#include <gridpipe/loss.h>

#include "codelets/loss.h"

/** @param loss  out; NULL on failure. Free with gpp__user_loss_free
 * @param def   copied, its name too
 * @return GPP_OK, GPP_EINVAL (no definition, no name, a function is missing, scratch for none),
 * GPP_ENOMEM */
gpp_status gpp__user_loss_new(gpp_loss **loss, const gpp_loss_function *def, gpp_error *err);
/** NULL is fine. */
void gpp__user_loss_free(gpp_loss *loss);

/** What the loss's functions take as attributes, attr_size bytes; lives as long as the loss. */
const void *gpp__user_loss_attr(const gpp_loss *loss);

/* --- a call, on cores and on CUDA ------------------------------------------------------------- */

/** A call as the user's functions see it, with `said` as their error record. */
gpp_loss_call gpp__user_loss_call(const gpp__loss_call *call, gpp_error *said);
/** The status of a call of the user's `function` ("run"), which has returned `status` and may have
 * written a message. */
gpp_status gpp__user_loss_outcome(const gpp_loss_function *def, const char *function,
                                  gpp_status status, const gpp_error *said, gpp_error *err);
/** gpp_loss.run_cuda (codelets/user/loss.cu), where the definition has one. */
gpp_status gpp__user_loss_run_cuda(const gpp__loss_call *call);

#ifdef __cplusplus
}
#endif
#endif
