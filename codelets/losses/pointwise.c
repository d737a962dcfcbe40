/*
 * codelets/losses/pointwise.c: losses that are sums over elements of output and target, which have
 * the same shape.
 *
 *     value = Σ l(y, t) / divisor        dvalue/dy = l'(y, t) / divisor
 *
 * Losses are added in double: the elements of a chunk by halves, then the chunks in order. So the
 * shape fixes the order of the sum.
 */
#include "codelets/losses/internal.h"

#include "codelets/cpu/vectorised.h"

enum { CHUNK = GPP__LOSS_CHUNK };

const char *const gpp__reductions[] = {"mean", "sum", "none", NULL};

/* The sum of count <= CHUNK numbers, by halves. Overwrites x beyond them. */
VECTORISED static double sum_chunk(double x[CHUNK], int64_t count)
{
    for (int64_t k = count; k < CHUNK; k++)
        x[k] = 0;
    for (int half = CHUNK / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            x[k] += x[k + half];
    return x[0];
}

VECTORISED static void scale_into(const float *d, float factor, int64_t count, float *grad)
{
    for (int64_t k = 0; k < count; k++)
        grad[k] = d[k] * factor;
}

gpp_status gpp__pointwise_target(const char *who, const gpp__desc *y, gpp__desc *target,
                                 gpp_error *err)
{
    if (y->dtype != GPP_F32)
        return gpp__fail(err, GPP_ESHAPE, "%s: takes float32 outputs, got int64", who);
    *target = *y;
    return GPP_OK;
}

void gpp__pointwise_each(const void *attr, const gpp__desc *y, gpp__desc *each)
{
    (void)attr;
    *each = *y;
}

double gpp__pointwise_divisor(const void *attr, const gpp__desc *y, int64_t rows,
                              const void *target, const float *weight)
{
    (void)target;
    (void)weight;
    const int *reduction = attr;
    return *reduction == GPP__MEAN ? (double)rows * (double)gpp__desc_count(y) : 1;
}

gpp_status gpp__pointwise_run(const gpp__loss_call *call, gpp__pointwise_fn fn)
{
    int64_t count = call->rows * gpp__desc_count(call->y_desc);
    const float *target = call->target;
    float factor = (float)(1 / call->divisor), d[CHUNK];
    double l[CHUNK], sum = 0;
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        fn(call->attr, call->y + at, target + at, n, l, d);
        for (int64_t k = 0; call->each && k < n; k++)
            call->each[at + k] = (float)l[k];
        if (call->grad_y)
            scale_into(d, factor, n, call->grad_y + at);
        sum += sum_chunk(l, n);
    }
    *call->value = sum / call->divisor;
    return GPP_OK;
}
