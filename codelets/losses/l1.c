/*
 * codelets/losses/l1.c: absolute error. The target has the shape of the output.
 *
 *     l = |y - t|        dl/dy = sign(y - t), 0 where they are equal
 */
#include <math.h>

#include "codelets/cpu/vectorised.h"
#include "codelets/losses/internal.h"

typedef struct l1_attr {
    int reduction;
} l1_attr;

/* A NaN has no sign, so the gradient of a NaN difference is NaN. */
VECTORISED static void l1_chunk(const void *attr, const float *restrict y, const float *restrict t,
                                int64_t count, double *restrict l, float *restrict d)
{
    (void)attr;
    for (int64_t k = 0; k < count; k++) {
        float off = y[k] - t[k], sign = off < 0 ? -1.0f : off;
        l[k] = fabs((double)y[k] - t[k]);
        d[k] = sign > 0 ? 1.0f : sign;
    }
}

static gpp_status l1_target(const void *attr, const gpp__desc *y, gpp__desc *target, gpp_error *err)
{
    (void)attr;
    return gpp__pointwise_target("l1", y, target, err);
}

static gpp_status l1_run(const gpp__loss_call *call)
{
    return gpp__pointwise_run(call, l1_chunk);
}

static const gpp__key l1_keys[] = {GPP__REDUCTION_KEY, {.name = NULL}};

const gpp_loss gpp_loss_l1 = {
    .name = "l1",
    .keys = l1_keys,
    .attr_size = sizeof(l1_attr),
    .target = l1_target,
    .each = gpp__pointwise_each,
    .divisor = gpp__pointwise_divisor,
    .run = l1_run,
    .run_cuda = GPP__IF_CUDA(gpp__l1_run_cuda),
    .scratch_cuda = GPP__IF_CUDA(gpp__pointwise_scratch_cuda),
};
