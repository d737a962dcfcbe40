/*
 * codelets/losses/bce_with_logits.c: binary cross-entropy of σ(y) and t, for scores y. The target
 * has the shape of the output; it is usually in [0, 1].
 *
 *     l = -t log σ(y) - (1 - t) log(1 - σ(y)) = max(y, 0) - y t + log(1 + exp(-|y|))
 *     dl/dy = σ(y) - t
 *
 * The exponential is at most 1, so nothing overflows. It is float32; what follows is double.
 * log(1 + e) = 2 artanh(e / (2 + e)), by its series: the argument is at most 1/3, so that twelve
 * terms leave an error below 1e-12.
 */
#include <math.h>

#include "codelets/cpu/exponential.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/losses/internal.h"

enum { CHUNK = GPP__LOSS_CHUNK };

typedef struct bce_attr {
    int reduction;
} bce_attr;

VECTORISED static void negate_sizes(const float *restrict y, int64_t count, float *restrict e)
{
    for (int64_t k = 0; k < count; k++)
        e[k] = -fabsf(y[k]);
}

static inline double log_1_plus(double e)
{
    double s = e / (2 + e), q = s * s, sum = 0;
    for (int term = 23; term > 0; term -= 2)
        sum = sum * q + 1.0 / term;
    return 2 * s * sum;
}

/* σ(y) is e / (1 + e), or 1 minus that. So the small difference from a nearly right answer is not
 * lost to rounding. */
VECTORISED static void from_exponentials(const float *restrict y, const float *restrict t,
                                         const float *restrict e, int64_t count, double *restrict l,
                                         float *restrict d)
{
    for (int64_t k = 0; k < count; k++) {
        double x = y[k], sign = copysign(1, x), side = 0.5 + 0.5 * sign;
        l[k] = (x < 0 ? 0 : x) - x * t[k] + log_1_plus(e[k]);
        d[k] = (float)((side - t[k]) - sign * (e[k] / (1.0 + e[k])));
    }
}

static void bce_chunk(const void *attr, const float *y, const float *t, int64_t count, double *l,
                      float *d)
{
    float e[CHUNK];
    (void)attr;
    negate_sizes(y, count, e);
    gpp__exponentials(e, 1, 0, count, e);
    from_exponentials(y, t, e, count, l, d);
}

static gpp_status bce_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                             gpp_error *err)
{
    (void)attr;
    return gpp__pointwise_target("bce_with_logits", y, target, err);
}

static gpp_status bce_run(const gpp__loss_call *call)
{
    return gpp__pointwise_run(call, bce_chunk);
}

static const gpp__key bce_keys[] = {GPP__REDUCTION_KEY, {.name = NULL}};

const gpp_loss gpp_loss_bce_with_logits = {
    .name = "bce_with_logits",
    .keys = bce_keys,
    .attr_size = sizeof(bce_attr),
    .target = bce_target,
    .each = gpp__pointwise_each,
    .divisor = gpp__pointwise_divisor,
    .run = bce_run,
    .run_cuda = GPP__IF_CUDA(gpp__bce_with_logits_run_cuda),
    .scratch_cuda = GPP__IF_CUDA(gpp__pointwise_scratch_cuda),
};
