/*
 * codelets/losses.c: the list of losses. To add one, add a file in codelets/losses/ and a line
 * here.
 */
#include "codelets/loss.h"

extern const gpp_loss gpp_loss_bce_with_logits, gpp_loss_cross_entropy, gpp_loss_l1, gpp_loss_mse,
    gpp_loss_nll, gpp_loss_smooth_l1;

const gpp_loss *const gpp__losses[] = {
    &gpp_loss_bce_with_logits,
    &gpp_loss_cross_entropy,
    &gpp_loss_l1,
    &gpp_loss_mse,
    &gpp_loss_nll,
    &gpp_loss_smooth_l1,
    NULL,
};
