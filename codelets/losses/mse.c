/*
 * codelets/losses/mse.c: squared error. The target has the shape of the output.
 *
 *     sum:  l = Σ (y - t)²                 dl/dy = 2 (y - t)
 *     mean: the same divided by the mini-batch's elements, batch_rows · elements of a row
 *
 * Squares are exact in double and added in double: the elements of a chunk by halves, chunk after
 * chunk in order, so the value is fixed by the shape.
 */
#include <math.h>

#include "codelets/cpu/vectorised.h"
#include "codelets/loss.h"

enum { CHUNK = 256 };
enum { MEAN, SUM };

typedef struct mse_attr {
    int reduction;
} mse_attr;

/* Differences of a chunk into d, and the sum of their squares. */
VECTORISED static double squares(const float *y, const float *t, int64_t count, float *d)
{
    double q[CHUNK];
    for (int64_t k = 0; k < count; k++) {
        d[k] = y[k] - t[k];
        q[k] = ((double)y[k] - t[k]) * ((double)y[k] - t[k]);
    }
    for (int64_t k = count; k < CHUNK; k++)
        q[k] = 0;
    for (int half = CHUNK / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            q[k] += q[k + half];
    return q[0];
}

VECTORISED static void scale_into(const float *d, float factor, int64_t count, float *grad)
{
    for (int64_t k = 0; k < count; k++)
        grad[k] = d[k] * factor;
}

static gpp_status mse_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                             gpp_error *err)
{
    (void)attr;
    if (y->dtype != GPP_F32)
        return gpp__fail(err, GPP_ESHAPE, "mse: takes float32 outputs, got int64");
    *target = *y;
    return GPP_OK;
}

static gpp_status mse_run(const gpp__loss_call *call)
{
    const mse_attr *attr = call->attr;
    int64_t row = gpp__desc_count(call->y_desc), count = call->rows * row;
    double divisor = attr->reduction == MEAN ? (double)call->batch_rows * (double)row : 1;
    float factor = (float)(2 / divisor), d[CHUNK];
    const float *target = call->target;
    double sum = 0;
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        sum += squares(call->y + at, target + at, n, d);
        if (call->grad_y)
            scale_into(d, factor, n, call->grad_y + at);
    }
    *call->value = divisor > 0 ? sum / divisor : NAN;
    return GPP_OK;
}

static const char *const reductions[] = {"mean", "sum", NULL};
static const gpp__key mse_keys[] = {
    {.name = "reduction",
     .type = GPP__KEY_CHOICE,
     .offset = offsetof(mse_attr, reduction),
     .count = 1,
     .fallback = MEAN,
     .choices = reductions},
    {.name = NULL},
};

const gpp_loss gpp_loss_mse = {
    .name = "mse",
    .keys = mse_keys,
    .attr_size = sizeof(mse_attr),
    .target = mse_target,
    .run = mse_run,
};
