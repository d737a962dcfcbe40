/*
 * codelets/losses/smooth_l1.c: squared error near 0, absolute error beyond. The target has the
 * shape of the output.
 *
 *     |y - t| < beta:  l = (y - t)² / (2 beta)     dl/dy = (y - t) / beta
 *     else:            l = |y - t| - beta / 2      dl/dy = sign(y - t)
 *
 * Girshick, "Fast R-CNN", ICCV 2015. With beta 0 it is l1.
 */
#include <math.h>

#include "codelets/cpu/vectorised.h"
#include "codelets/losses/internal.h"

/* With d = y - t and c = min(|d|, beta): l = c/beta (|d| - c/2). */
VECTORISED static void smooth_l1_chunk(const void *attr, const float *restrict y,
                                       const float *restrict t, int64_t count, double *restrict l,
                                       float *restrict d)
{
    const double beta = gpp__smooth_l1_beta(attr), scale = 1 / beta;
    for (int64_t k = 0; k < count; k++) {
        double off = (double)y[k] - t[k], size = fabs(off);
        double capped = size < beta ? size : beta, cut = off > beta ? beta : off;
        cut = cut < -beta ? -beta : cut;
        l[k] = capped * scale * (size - 0.5 * capped);
        d[k] = (float)(cut * scale);
    }
}

static gpp_status smooth_l1_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                                   gpp_error *err)
{
    (void)attr;
    return gpp__pointwise_target("smooth_l1", y, target, err);
}

static gpp_status smooth_l1_run(const gpp__loss_call *call)
{
    return gpp__pointwise_run(call, smooth_l1_chunk);
}

static const gpp__key smooth_l1_keys[] = {
    GPP__REDUCTION_KEY,
    {.name = "beta",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__smooth_l1_attr, beta),
     .count = 1,
     .max = INFINITY,
     .fallback = 1},
    {.name = NULL},
};

const gpp_loss gpp_loss_smooth_l1 = {
    .name = "smooth_l1",
    .keys = smooth_l1_keys,
    .attr_size = sizeof(gpp__smooth_l1_attr),
    .target = smooth_l1_target,
    .each = gpp__pointwise_each,
    .divisor = gpp__pointwise_divisor,
    .run = smooth_l1_run,
    .run_cuda = GPP__IF_CUDA(gpp__smooth_l1_run_cuda),
    .scratch_cuda = GPP__IF_CUDA(gpp__pointwise_scratch_cuda),
};
