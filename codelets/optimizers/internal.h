/*
 * codelets/optimizers/internal.h: what optimizers have in common: their keys.
 *
 * All optimizers follow PyTorch's formulas, with its keys and defaults. Elements are independent
 * and the arithmetic is float32 without contraction, so results do not depend on how parameters are
 * cut into arrays. Numbers that are the same for all elements are computed in double. An update is
 * one pass over memory.
 */
#ifndef GPP_CODELETS_OPTIMIZERS_INTERNAL_H
#define GPP_CODELETS_OPTIMIZERS_INTERNAL_H

#include <math.h>

#include "codelets/optimizer.h"

/* `const` tells the compiler that sqrtf need not set errno here, so that it can be vectorised. */
extern float sqrtf(float x) __attribute__((const));

/* A key whose name is also that of its field in the struct `attrs`. */
#define GPP__REAL_KEY(attrs, key, lowest, value)                                                   \
    {                                                                                              \
        .name = #key, .type = GPP__KEY_REAL, .offset = offsetof(attrs, key), .count = 1,           \
        .min = (lowest), .max = INFINITY, .fallback = (value)                                      \
    }
#define GPP__SWITCH_KEY(attrs, key)                                                                \
    {                                                                                              \
        .name = #key, .type = GPP__KEY_BOOL, .offset = offsetof(attrs, key), .count = 1, .max = 1  \
    }

/* Decay rates of the running means of the gradients and of their squares. They are NaN when not
 * given, so read them with gpp__beta. */
#define GPP__BETAS_KEY(attrs)                                                                      \
    {                                                                                              \
        .name = "betas", .type = GPP__KEY_REAL, .offset = offsetof(attrs, betas), .count = 2,      \
        .min = 0, .max = INFINITY, .fallback = NAN                                                 \
    }
static inline double gpp__beta(const double betas[2], int which)
{
    if (isnan(betas[which]))
        return which ? 0.999 : 0.9;
    return betas[which];
}
static inline gpp_status gpp__check_betas(const char *who, const double betas[2], gpp_error *err)
{
    double first = gpp__beta(betas, 0), second = gpp__beta(betas, 1);
    if (first < 1 && second < 1)
        return GPP_OK;
    return gpp__fail(err, GPP_EINVAL, "%s: betas must be below 1, got %.15g,%.15g", who, first,
                     second);
}

#endif
