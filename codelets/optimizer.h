/*
 * codelets/optimizer.h: what an optimizer is. One const struct at the bottom of one file in
 * codelets/optimizers/.
 *
 * An optimizer updates flat arrays of floats, element by element. It need not know which parameter
 * an element belongs to, so one call can update all parameters of a layer.
 */
#ifndef GPP_CODELETS_OPTIMIZER_H
#define GPP_CODELETS_OPTIMIZER_H

#include "codelets/op.h"

enum { GPP__MAX_STATES = 4, GPP__MAX_SCALARS = 2 };

typedef struct gpp_optimizer {
    const char *name;
    const gpp__key *keys;
    size_t attr_size;
    /** Cross-checks of attributes (Nesterov needs momentum, ...). May be NULL. */
    gpp_status (*check)(const void *attr, gpp_error *err);
    /** Number of state arrays, at most GPP__MAX_STATES: for SGD 1 with momentum, else 0. Each is as
     * large as the parameters, and zero before the first update. */
    int (*states)(const void *attr);
    const char *const *state_names; /* [most states] as PyTorch calls them, for files */
    /** Byte offsets of the learning rate and the weight decay (doubles) in the attributes. */
    size_t lr_offset, weight_decay_offset;
    /** How many numbers each parameter has beside its arrays (NAdam's product of momenta), at most
     * GPP__MAX_SCALARS. `advance` turns those of update t - 1 into those of update t; before the
     * first update they are 1. NULL: none */
    int scalars;
    void (*advance)(const void *attr, int64_t t, double scalar[]);
    /**
     * Update param[0 … count-1] from grad. `t` counts the updates of this parameter from 1. Several
     * threads may call it at once for parts of one array.
     */
    gpp_status (*update)(const void *attr, int64_t t, const double scalar[], int64_t count,
                         float *param, const float *grad, float *const state[]);
    /**
     * The same on CUDA, launched on cuda->stream. NULL: none, or a build without CUDA.
     * @param factor  what the gradient is multiplied by, in device memory; NULL: 1. When it is NaN,
     *                nothing is updated
     */
    gpp_status (*update_cuda)(struct gpp__cuda *cuda, const void *attr, int64_t t,
                              const double scalar[], int64_t count, float *param, const float *grad,
                              const float *factor, float *const state[], gpp_error *err);
    /* True when an update may fail although the program is sound. The pipe then keeps a copy, from
     * which it restores what was already updated. */
    bool may_fail;
} gpp_optimizer;

extern const gpp_optimizer *const gpp__optimizers[]; /* NULL-terminated, codelets/optimizers.c */

#endif
