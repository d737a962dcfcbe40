/*
 * codelets/losses/cross_entropy.c: softmax and negative log likelihood of class t, for positions
 * with C scores each.
 *
 *     l(y, t) = log Σ_c exp(y_c - max y) + max y - y_t        dl/dy_c = softmax(y)_c - [c = t]
 *     sum: positions added up; mean: divided by the mini-batch's positions
 *
 * An output row is one position, (classes), or a sequence of them, (positions, classes): classes
 * come last, as sequence models give them. Its target is one class, or (positions).
 *
 * The largest exponential is 1, so nothing overflows and the sum is at least 1. Exponentials are
 * float32; they are added by halves within a chunk and in double from chunk to chunk, positions in
 * double in order: the value is fixed by the shape.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "codelets/cpu/exponential.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/loss.h"

enum { CHUNK = 256 };
enum { MEAN, SUM };

typedef struct cross_entropy_attr {
    int reduction;
} cross_entropy_attr;

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

VECTORISED static void scale(float *x, float factor, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        x[k] *= factor;
}

/* One position's loss; its gradient times `weight` into grad unless that is NULL. */
static double run_position(const float *y, int64_t classes, int64_t t, double weight, float *grad)
{
    float e[CHUNK], shift = gpp__largest(y, classes);
    double sum = 0;
    for (int64_t at = 0; at < classes; at += CHUNK) {
        int64_t n = classes - at < CHUNK ? classes - at : CHUNK;
        float *place = grad ? grad + at : e;
        gpp__exponentials(y + at, 1, shift, n, place);
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
    if (y->rank != 1 && y->rank != 2)
        return gpp__fail(err, GPP_ESHAPE,
                         "cross_entropy: takes outputs of shape (classes) or (positions, classes), "
                         "got %s; scores for each pixel are not supported",
                         gpp__desc_text(y, text, sizeof text));
    *target = *y;
    target->dtype = GPP_I64;
    target->rank = y->rank - 1;
    return GPP_OK;
}

static gpp_status check_targets(const gpp__loss_call *call, int64_t positions, int64_t classes)
{
    const int64_t *target = call->target;
    for (int64_t k = 0; k < call->rows * positions; k++) {
        char where[48] = "";
        if (target[k] >= 0 && target[k] < classes)
            continue;
        if (call->y_desc->rank == 2)
            snprintf(where, sizeof where, ", position %" PRId64 ",", k % positions);
        return gpp__fail(call->err, GPP_EINVAL,
                         "cross_entropy: target of row %" PRId64 "%s of the micro-batch is %" PRId64
                         ", must be 0 ... %" PRId64,
                         k / positions, where, target[k], classes - 1);
    }
    return GPP_OK;
}

static gpp_status cross_entropy_run(const gpp__loss_call *call)
{
    const cross_entropy_attr *attr = call->attr;
    const gpp__desc *y = call->y_desc;
    int64_t classes = y->dim[y->rank - 1], positions = y->rank == 2 ? y->dim[0] : 1;
    const int64_t *target = call->target;
    double all = (double)call->batch_rows * (double)positions, sum = 0;
    double divisor = attr->reduction == MEAN ? all : 1;
    gpp_status status = check_targets(call, positions, classes);
    if (status)
        return status;
    for (int64_t k = 0; k < call->rows * positions; k++)
        sum += run_position(call->y + k * classes, classes, target[k], 1 / divisor,
                            call->grad_y ? call->grad_y + k * classes : NULL);
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
