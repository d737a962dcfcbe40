/*
 * codelets/optimizers.c: the list of optimizers. To add one, add a file in codelets/optimizers/ and
 * a line here.
 */
#include "codelets/optimizer.h"

extern const gpp_optimizer gpp_optimizer_adadelta, gpp_optimizer_adagrad, gpp_optimizer_adam,
    gpp_optimizer_adamax, gpp_optimizer_adamw, gpp_optimizer_nadam, gpp_optimizer_rmsprop,
    gpp_optimizer_sgd;

const gpp_optimizer *const gpp__optimizers[] = {
    &gpp_optimizer_adadelta, &gpp_optimizer_adagrad, &gpp_optimizer_adam,
    &gpp_optimizer_adamax,   &gpp_optimizer_adamw,   &gpp_optimizer_nadam,
    &gpp_optimizer_rmsprop,  &gpp_optimizer_sgd,     NULL,
};
