/*
 * codelets/optimizer.h: what an optimizer is. One const struct at the bottom of one file in
 * codelets/optimizers/.
 *
 * It updates flat arrays of floats, element by element: which parameter they belong to does not
 * matter, so one call serves a layer's parameters, wherever they live.
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
    /** State arrays, each as large as the parameters: 1 for SGD's momentum buffer, 0 without
     * momentum; at most GPP__MAX_STATES. Zero before the first update. */
    int (*states)(const void *attr);
    const char *const *state_names; /* [most states] as PyTorch calls them, for files */
    /** Byte offsets of the learning rate and the weight decay (doubles) in the attributes. */
    size_t lr_offset, weight_decay_offset;
    /** Numbers that one parameter has besides (NAdam's product of momenta), at most
     * GPP__MAX_SCALARS: `advance` makes those for update t from those for t - 1, which are 1 before
     * the first. NULL: none */
    int scalars;
    void (*advance)(const void *attr, int64_t t, double scalar[]);
    /**
     * Update param[0 … count-1] from grad. `t` counts the updates of this parameter from 1. Calls
     * for parts of one array run at the same time.
     */
    gpp_status (*update)(const void *attr, int64_t t, const double scalar[], int64_t count,
                         float *param, const float *grad, float *const state[]);
    /** The same on CUDA, launched on cuda->stream. @param factor of the gradient, on the device;
     * NULL: 1. NaN: no update, nothing changes. NULL: none, or a build without CUDA */
    gpp_status (*update_cuda)(struct gpp__cuda *cuda, const void *attr, int64_t t,
                              const double scalar[], int64_t count, float *param, const float *grad,
                              const float *factor, float *const state[], gpp_error *err);
    bool may_fail; /* an update may fail in a sound program: what was updated is then put back, for
                      which a copy is kept */
} gpp_optimizer;

extern const gpp_optimizer *const gpp__optimizers[]; /* NULL-terminated, codelets/optimizers.c */

#endif
