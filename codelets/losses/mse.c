/*
 * codelets/losses/mse.c: squared error. The target has the shape of the output.
 *
 *     l = (y - t)²        dl/dy = 2 (y - t)
 *
 * Squares are exact in double.
 */
#include "codelets/cpu/vectorised.h"
#include "codelets/losses/internal.h"

typedef struct mse_attr {
    int reduction;
} mse_attr;

VECTORISED static void mse_chunk(const void *attr, const float *restrict y, const float *restrict t,
                                 int64_t count, double *restrict l, float *restrict d)
{
    (void)attr;
    for (int64_t k = 0; k < count; k++) {
        double off = (double)y[k] - t[k];
        l[k] = off * off;
        d[k] = 2 * (y[k] - t[k]);
    }
}

static gpp_status mse_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                             gpp_error *err)
{
    (void)attr;
    return gpp__pointwise_target("mse", y, target, err);
}

static gpp_status mse_run(const gpp__loss_call *call)
{
    return gpp__pointwise_run(call, mse_chunk);
}

static const gpp__key mse_keys[] = {GPP__REDUCTION_KEY, {.name = NULL}};

const gpp_loss gpp_loss_mse = {
    .name = "mse",
    .keys = mse_keys,
    .attr_size = sizeof(mse_attr),
    .target = mse_target,
    .each = gpp__pointwise_each,
    .divisor = gpp__pointwise_divisor,
    .run = mse_run,
    .run_cuda = GPP__IF_CUDA(gpp__mse_run_cuda),
    .scratch_cuda = GPP__IF_CUDA(gpp__pointwise_scratch_cuda),
};
