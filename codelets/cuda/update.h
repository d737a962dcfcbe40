/*
 * codelets/cuda/update.h: the factors of an optimizer, which its own file computes once a call, in
 * double, for all kinds of devices; and its update on CUDA.
 *
 * The updates on CUDA do what gpp_optimizer.update does, element by element, operation by
 * operation: float32 without contraction (the file is compiled with -fmad=false), so that the same
 * gradients give the same bits.
 */
#ifndef GPP_CODELETS_CUDA_UPDATE_H
#define GPP_CODELETS_CUDA_UPDATE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/optimizer.h"

/* sign: -1 with maximize. decay: of weights. keep and fresh: of running means. */

typedef struct gpp__adadelta_factors {
    float lr, sign, decay, keep, fresh, eps;
} gpp__adadelta_factors;

typedef struct gpp__adagrad_factors {
    float lr, sign, decay, eps, begin;
} gpp__adagrad_factors;

/* x = shrink·p, g = sign·grad + decay·x. Factors of 0 and 1 change no finite number. */
typedef struct gpp__adam_factors {
    float sign, decay, shrink, keep_m, fresh_m, keep_v, fresh_v, step, root, eps;
    bool amsgrad;
} gpp__adam_factors;

typedef struct gpp__adamax_factors {
    float sign, decay, keep_m, fresh_m, keep_u, step, eps;
} gpp__adamax_factors;

typedef struct gpp__nadam_factors {
    float decay, keep_m, fresh_m, keep_v, fresh_v, step_g, step_m, root, eps;
} gpp__nadam_factors;

/* Each variant has one state array more than the one before. */
typedef enum gpp__rmsprop_way {
    GPP__RMSPROP_PLAIN,
    GPP__RMSPROP_MOMENTUM,
    GPP__RMSPROP_CENTERED
} gpp__rmsprop_way;
typedef struct gpp__rmsprop_factors {
    float lr, sign, decay, keep, fresh, eps, momentum;
    gpp__rmsprop_way way;
} gpp__rmsprop_factors;

typedef enum gpp__sgd_way { GPP__SGD_PLAIN, GPP__SGD_FIRST, GPP__SGD_FURTHER } gpp__sgd_way;
/* With the signs and cases folded in: g = sign·grad + decay·p, b = keep·b + fresh·g,
 * p -= lr·(direct·g + via·b). A factor of 0 or 1 changes no finite number. */
typedef struct gpp__sgd_factors {
    float lr, sign, decay, keep, fresh, direct, via;
    gpp__sgd_way way;
} gpp__sgd_factors;

/* For update t, with the numbers that a parameter has besides (gpp_optimizer.scalars). */
#define GPP__OPTIMIZER_LIST(X)                                                                     \
    X(gpp__cuda_update_adadelta, gpp__adadelta_factors_of, gpp__adadelta_factors)                  \
    X(gpp__cuda_update_adagrad, gpp__adagrad_factors_of, gpp__adagrad_factors)                     \
    X(gpp__cuda_update_adam, gpp__adam_factors_of, gpp__adam_factors)                              \
    X(gpp__cuda_update_adamw, gpp__adamw_factors_of, gpp__adam_factors)                            \
    X(gpp__cuda_update_adamax, gpp__adamax_factors_of, gpp__adamax_factors)                        \
    X(gpp__cuda_update_nadam, gpp__nadam_factors_of, gpp__nadam_factors)                           \
    X(gpp__cuda_update_rmsprop, gpp__rmsprop_factors_of, gpp__rmsprop_factors)                     \
    X(gpp__cuda_update_sgd, gpp__sgd_factors_of, gpp__sgd_factors)

#define GPP__DECLARE_FACTORS(update, factors_of, type)                                             \
    type factors_of(const void *attr, int64_t t, const double scalar[]);                           \
    gpp_status update(struct gpp__cuda *cuda, const void *attr, int64_t t, const double scalar[],  \
                      int64_t count, float *param, const float *grad, const float *factor,         \
                      float *const state[], gpp_error *err);
GPP__OPTIMIZER_LIST(GPP__DECLARE_FACTORS)
#undef GPP__DECLARE_FACTORS

#ifdef __cplusplus
}
#endif
#endif
