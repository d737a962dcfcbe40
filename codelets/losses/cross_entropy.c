/*
 * codelets/losses/cross_entropy.c: softmax and negative log likelihood of class t, for rows of C
 * scores.
 *
 *     l(y, t) = log Σ_c exp(y_c - max y) + max y - y_t        dl/dy_c = softmax(y)_c - [c = t]
 *     sum: rows added up; mean: divided by the mini-batch's rows
 *
 * The largest exponential is 1, so nothing overflows and the sum is at least 1. Exponentials are
 * float32, by a polynomial (below); they are added by halves within a chunk and in double from
 * chunk to chunk, rows in double in order: the value is fixed by the shape.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "codelets/cpu/vectorised.h"
#include "codelets/loss.h"

enum { CHUNK = 256 };
enum { MEAN, SUM };

typedef struct cross_entropy_attr {
    int reduction;
} cross_entropy_attr;

/*
 * e[k] = exp(x[k] - shift) for x <= shift, relative error below 1e-7; NaN stays NaN. With
 * n = round(x / ln 2) and r = x - n ln 2 (ln 2 in two parts, the first of which times n is exact)
 * exp x = 2^n exp r, |r| <= ln 2 / 2, exp r by its Taylor series. Adding and subtracting 1.5·2^23
 * rounds to an integer, which is then found in the lowest bits. Below -87 the result would be
 * denormal: it is 0.
 */
VECTORISED static void exponentials(const float *x, float shift, int64_t count, float *e)
{
    for (int64_t k = 0; k < count; k++) {
        const float rounder = 0x1.8p23f;
        float v = x[k] - shift;
        uint32_t alive = -(uint32_t) !(v < -87.0f);
        float shifted = v * 0x1.715476p0f + rounder, n = shifted - rounder, power;
        float r = v - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
        float p = 1.0f / 5040 * r + 1.0f / 720;
        p = p * r + 1.0f / 120;
        p = p * r + 1.0f / 24;
        p = p * r + 1.0f / 6;
        p = p * r + 0.5f;
        p = p * (r * r) + r + 1.0f;
        uint32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        bits = (bits << 23) + 0x3F800000u;
        memcpy(&power, &bits, sizeof power);
        p *= power;
        memcpy(&bits, &p, sizeof bits);
        bits &= alive;
        memcpy(&e[k], &bits, sizeof bits);
    }
}

/* The sum of count <= CHUNK numbers, by halves. */
VECTORISED static float sum_chunk(const float *x, int64_t count)
{
    float s[CHUNK];
    int64_t width = 1;
    while (width < count)
        width *= 2;
    for (int64_t k = 0; k < count; k++)
        s[k] = x[k];
    for (int64_t k = count; k < width; k++)
        s[k] = 0;
    for (int64_t half = width / 2; half; half /= 2)
        for (int64_t k = 0; k < half; k++)
            s[k] += s[k + half];
    return s[0];
}

/* The largest number of a row; numbers that compare with nothing may or may not be passed over. */
VECTORISED static float largest(const float *x, int64_t count)
{
    enum { LANES = 16 };
    float top[LANES], most;
    for (int l = 0; l < LANES; l++)
        top[l] = x[0];
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int l = 0; l < LANES; l++)
            top[l] = x[k + l] > top[l] ? x[k + l] : top[l];
    most = top[0];
    for (int l = 1; l < LANES; l++)
        most = top[l] > most ? top[l] : most;
    for (; k < count; k++)
        most = x[k] > most ? x[k] : most;
    return most;
}

VECTORISED static void scale(float *x, float factor, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        x[k] *= factor;
}

/* One row's loss; its gradient times `weight` into grad unless that is NULL. */
static double run_row(const float *y, int64_t classes, int64_t t, double weight, float *grad)
{
    float e[CHUNK], shift = largest(y, classes);
    double sum = 0;
    for (int64_t at = 0; at < classes; at += CHUNK) {
        int64_t n = classes - at < CHUNK ? classes - at : CHUNK;
        float *place = grad ? grad + at : e;
        exponentials(y + at, shift, n, place);
        sum += (double)sum_chunk(place, n);
    }
    if (grad) {
        double of_target = grad[t] / sum - 1;
        scale(grad, (float)(weight / sum), classes);
        grad[t] = (float)(of_target * weight);
    }
    return log(sum) + ((double)shift - y[t]);
}

static gpp_status cross_entropy_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                                       gpp_error *err)
{
    char text[128];
    (void)attr;
    if (y->dtype != GPP_F32)
        return gpp__fail(err, GPP_ESHAPE, "cross_entropy: takes float32 outputs, got int64");
    if (y->rank != 1)
        return gpp__fail(err, GPP_ESHAPE,
                         "cross_entropy: takes outputs of shape (classes), got %s; scores for each "
                         "pixel are not supported",
                         gpp__desc_text(y, text, sizeof text));
    *target = (gpp__desc){.dtype = GPP_I64, .rank = 0};
    return GPP_OK;
}

static gpp_status check_targets(const gpp__loss_call *call, int64_t classes)
{
    const int64_t *target = call->target;
    for (int64_t r = 0; r < call->rows; r++)
        if (target[r] < 0 || target[r] >= classes)
            return gpp__fail(call->err, GPP_EINVAL,
                             "cross_entropy: target of row %" PRId64
                             " of the micro-batch is %" PRId64 ", must be 0 ... %" PRId64,
                             r, target[r], classes - 1);
    return GPP_OK;
}

static gpp_status cross_entropy_run(const gpp__loss_call *call)
{
    const cross_entropy_attr *attr = call->attr;
    int64_t classes = call->y_desc->dim[0];
    const int64_t *target = call->target;
    double divisor = attr->reduction == MEAN ? (double)call->batch_rows : 1, sum = 0;
    gpp_status status = check_targets(call, classes);
    if (status)
        return status;
    for (int64_t r = 0; r < call->rows; r++)
        sum += run_row(call->y + r * classes, classes, target[r], 1 / divisor,
                       call->grad_y ? call->grad_y + r * classes : NULL);
    *call->value = divisor > 0 ? sum / divisor : NAN;
    return GPP_OK;
}

static const char *const reductions[] = {"mean", "sum", NULL};
static const gpp__key cross_entropy_keys[] = {
    {.name = "reduction",
     .type = GPP__KEY_CHOICE,
     .offset = offsetof(cross_entropy_attr, reduction),
     .count = 1,
     .fallback = MEAN,
     .choices = reductions},
    {.name = NULL},
};

const gpp_loss gpp_loss_cross_entropy = {
    .name = "cross_entropy",
    .keys = cross_entropy_keys,
    .attr_size = sizeof(cross_entropy_attr),
    .target = cross_entropy_target,
    .run = cross_entropy_run,
};
