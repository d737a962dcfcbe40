/*
 * codelets/losses/cross_entropy.c: softmax and negative log likelihood of class t, for positions
 * with C scores each. See classes.c for shapes and what is divided by.
 *
 *     L_c = log Σ_k exp(y_k - max y) + max y - y_c          -log softmax(y)_c
 *     l(y, t) = (1 - ε) w_t L_t + ε/C Σ_c w_c L_c           ε label_smoothing, w weights of classes
 *     dl/dy_c = ((1 - ε) w_t + ε/C Σ_k w_k) softmax(y)_c - ε/C w_c - (1 - ε) w_t [c = t]
 *
 * Smoothing as in Szegedy et al., "Rethinking the Inception architecture", CVPR 2016; weighted as
 * PyTorch does it.
 *
 * The largest exponential is 1, so nothing overflows and the sum is at least 1. Exponentials are
 * float32. Where classes lie side by side, they are added by halves within a chunk and in double
 * from chunk to chunk. Where positions lie side by side, several of them are worked on at once, and
 * classes are added in double in order. Positions are added in double in order. So the shape fixes
 * the order of every sum.
 */
#include <math.h>
#include <string.h>

#include "codelets/cpu/exponential.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/losses/internal.h"

enum { CHUNK = 256, BLOCK = 64 };

/* The factors of the formulas above. */
typedef struct terms {
    const float *weight; /* [classes] or NULL */
    int64_t classes;
    double hit;     /* 1 - ε */
    double each;    /* ε/C */
    double all;     /* Σ w_c */
    double inverse; /* 1 / divisor */
} terms;

static double weight_of(const terms *o, int64_t c)
{
    return o->weight ? (double)o->weight[c] : 1;
}

static terms terms_of(const gpp__loss_call *call, int64_t classes)
{
    const gpp__class_attr *attr = call->attr;
    terms o = {.weight = call->weight,
               .classes = classes,
               .hit = 1 - attr->label_smoothing,
               .each = attr->label_smoothing / (double)classes,
               .inverse = 1 / call->divisor};
    for (int64_t c = 0; c < classes && o.each != 0; c++)
        o.all += weight_of(&o, c);
    return o;
}

/* Loss of a position with target t. @param log_sum  log Σ exp(y_c - shift)
 * @param others  Σ w_c (shift - y_c); it counts only with smoothing */
static double loss_of(const terms *o, int64_t t, double log_sum, double shift, double y_t,
                      double others)
{
    double l = o->hit * weight_of(o, t) * (log_sum + (shift - y_t));
    return o->each != 0 ? l + o->each * (o->all * log_sum + others) : l;
}

/* The factor of the exponentials in the gradient of every class but the target. From that product
 * `less` times the weight is subtracted. */
static float factor_of(const terms *o, int64_t t, double sum)
{
    return (float)((o->hit * weight_of(o, t) + o->each * o->all) * o->inverse / sum);
}

static float less_of(const terms *o)
{
    return (float)(o->each * o->inverse);
}

/* The gradient of the target class, computed such that no two rounded numbers cancel. */
static float grad_of_target(const terms *o, int64_t t, double e, double sum)
{
    double hit = o->hit * weight_of(o, t), p = e / sum;
    double smooth = o->each * (o->all * p - weight_of(o, t));
    return (float)((hit * (p - 1) + smooth) * o->inverse);
}

/* --- classes side by side --------------------------------------------------------------------- */

/* The sum of count <= CHUNK numbers, by halves. */
VECTORISED static float sum_numbers(const float *x, int64_t count)
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

VECTORISED static void scale(float *x, float factor, float less, const float *weight, int64_t count)
{
    if (less == 0)
        for (int64_t k = 0; k < count; k++)
            x[k] *= factor;
    else if (!weight)
        for (int64_t k = 0; k < count; k++)
            x[k] = x[k] * factor - less;
    else
        for (int64_t k = 0; k < count; k++)
            x[k] = x[k] * factor - less * weight[k];
}

static double weighted_gaps(const terms *o, const float *y, float shift)
{
    double sum = 0;
    for (int64_t c = 0; c < o->classes && o->each != 0; c++)
        sum += weight_of(o, c) * ((double)shift - y[c]);
    return sum;
}

/* Returns one position's loss; writes its gradient unless grad is NULL. */
static double run_position(const terms *o, const float *y, int64_t t, float *grad)
{
    float e[CHUNK], shift = gpp__largest(y, o->classes);
    double sum = 0;
    for (int64_t at = 0; at < o->classes; at += CHUNK) {
        int64_t n = o->classes - at < CHUNK ? o->classes - at : CHUNK;
        float *place = grad ? grad + at : e;
        gpp__exponentials(y + at, 1, shift, n, place);
        sum += (double)sum_numbers(place, n);
    }
    if (grad) {
        float of_target = grad_of_target(o, t, grad[t], sum);
        scale(grad, factor_of(o, t, sum), less_of(o), o->weight, o->classes);
        grad[t] = of_target;
    }
    return loss_of(o, t, log(sum), shift, y[t], weighted_gaps(o, y, shift));
}

static double run_positions(const gpp__loss_call *call, const terms *o, int64_t count)
{
    const gpp__class_attr *attr = call->attr;
    const int64_t *target = call->target;
    double sum = 0;
    for (int64_t k = 0; k < count; k++) {
        bool counts = target[k] != attr->ignore_index;
        float *grad = call->grad_y ? call->grad_y + k * o->classes : NULL;
        double l = counts ? run_position(o, call->y + k * o->classes, target[k], grad) : 0;
        if (grad && !counts)
            memset(grad, 0, (size_t)o->classes * sizeof *grad);
        if (call->each)
            call->each[k] = (float)l;
        sum += l;
    }
    return sum;
}

/* --- positions side by side ------------------------------------------------------------------- */

/* Some positions side by side. The scores of one class lie `stride` before those of the next. */
typedef struct block {
    const float *y;
    float *grad; /* or NULL */
    const int64_t *target;
    int64_t count, stride;
    float shift[BLOCK], factor[BLOCK], less[BLOCK], of_target[BLOCK];
    double sum[BLOCK], others[BLOCK];
} block;

VECTORISED static void find_largest(block *b, int64_t classes)
{
    for (int64_t p = 0; p < b->count; p++)
        b->shift[p] = b->y[p];
    for (int64_t c = 1; c < classes; c++) {
        const float *y = b->y + c * b->stride;
        for (int64_t p = 0; p < b->count; p++)
            b->shift[p] = y[p] > b->shift[p] ? y[p] : b->shift[p];
    }
}

VECTORISED static void subtract(const float *restrict y, const float *restrict shift, int64_t count,
                                float *restrict d)
{
    for (int64_t p = 0; p < count; p++)
        d[p] = y[p] - shift[p];
}

VECTORISED static void add(const float *restrict e, int64_t count, double *restrict sum)
{
    for (int64_t p = 0; p < count; p++)
        sum[p] += (double)e[p];
}

/* Sums of exponentials, which are left in grad, and of weighted gaps. */
static void add_classes(block *b, const terms *o)
{
    float e[BLOCK];
    find_largest(b, o->classes);
    for (int64_t p = 0; p < b->count; p++)
        b->sum[p] = b->others[p] = 0;
    for (int64_t c = 0; c < o->classes; c++) {
        const float *y = b->y + c * b->stride;
        float *place = b->grad ? b->grad + c * b->stride : e;
        subtract(y, b->shift, b->count, place);
        gpp__exponentials(place, 1, 0, b->count, place);
        add(place, b->count, b->sum);
        for (int64_t p = 0; p < b->count && o->each != 0; p++)
            b->others[p] += weight_of(o, c) * ((double)b->shift[p] - y[p]);
    }
}

VECTORISED static void scale_class(const block *b, float weight, float *restrict grad)
{
    for (int64_t p = 0; p < b->count; p++)
        grad[p] = grad[p] * b->factor[p] - b->less[p] * weight;
}

/* From exponentials to gradients. */
static void finish_gradients(block *b, const terms *o, int64_t ignored)
{
    for (int64_t p = 0; p < b->count; p++) {
        int64_t t = b->target[p] == ignored ? 0 : b->target[p];
        b->factor[p] = factor_of(o, t, b->sum[p]);
        b->less[p] = less_of(o);
        b->of_target[p] = grad_of_target(o, t, b->grad[t * b->stride + p], b->sum[p]);
    }
    for (int64_t c = 0; c < o->classes; c++)
        scale_class(b, (float)weight_of(o, c), b->grad + c * b->stride);
    for (int64_t p = 0; p < b->count; p++)
        if (b->target[p] != ignored)
            b->grad[b->target[p] * b->stride + p] = b->of_target[p];
        else
            for (int64_t c = 0; c < o->classes; c++)
                b->grad[c * b->stride + p] = 0;
}

static double run_block(block *b, const terms *o, int64_t ignored, float *each)
{
    double sum = 0;
    add_classes(b, o);
    for (int64_t p = 0; p < b->count; p++) {
        int64_t t = b->target[p];
        double l = t == ignored ? 0
                                : loss_of(o, t, log(b->sum[p]), b->shift[p],
                                          b->y[t * b->stride + p], b->others[p]);
        if (each)
            each[p] = (float)l;
        sum += l;
    }
    if (b->grad)
        finish_gradients(b, o, ignored);
    return sum;
}

/* `groups` times `inner` positions, each group with its classes. */
static double run_blocks(const gpp__loss_call *call, const terms *o, int64_t groups, int64_t inner)
{
    const gpp__class_attr *attr = call->attr;
    const int64_t *target = call->target;
    double sum = 0;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t at = 0; at < inner; at += BLOCK) {
            int64_t y = g * o->classes * inner + at, position = g * inner + at;
            block b = {.y = call->y + y,
                       .grad = call->grad_y ? call->grad_y + y : NULL,
                       .target = target + position,
                       .count = inner - at < BLOCK ? inner - at : BLOCK,
                       .stride = inner};
            sum += run_block(&b, o, attr->ignore_index, call->each ? call->each + position : NULL);
        }
    return sum;
}

/* --- the loss --------------------------------------------------------------------------------- */

static gpp_status cross_entropy_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                                       gpp_error *err)
{
    return gpp__class_target("cross_entropy", attr, y, target, err);
}

static gpp_status cross_entropy_run(const gpp__loss_call *call)
{
    gpp__class_view v = gpp__class_view_of(call->attr, call->y_desc);
    int64_t positions = call->rows * v.positions;
    terms o = terms_of(call, v.classes);
    gpp_status status = gpp__class_check("cross_entropy", call);
    if (status)
        return status;
    double sum = v.inner == 1 ? run_positions(call, &o, positions)
                              : run_blocks(call, &o, positions / v.inner, v.inner);
    *call->value = sum / call->divisor;
    return GPP_OK;
}

static gpp_status cross_entropy_check(const void *attr, const gpp__desc *y, const gpp__desc *target,
                                      int64_t first, int64_t rows, const void *data, gpp_error *err)
{
    (void)target;
    return gpp__class_check_rows("cross_entropy", attr, y, first, rows, data, err);
}

static const gpp__key cross_entropy_keys[] = {
    GPP__CLASS_KEYS,
    {.name = "label_smoothing",
     .type = GPP__KEY_REAL,
     .offset = offsetof(gpp__class_attr, label_smoothing),
     .count = 1,
     .max = 1},
    {.name = NULL},
};

const gpp_loss gpp_loss_cross_entropy = {
    .name = "cross_entropy",
    .keys = cross_entropy_keys,
    .attr_size = sizeof(gpp__class_attr),
    .target = cross_entropy_target,
    .each = gpp__class_each,
    .classes = gpp__class_count,
    .divisor = gpp__class_divisor,
    .run = cross_entropy_run,
    .run_cuda = GPP__IF_CUDA(gpp__cross_entropy_run_cuda),
    .scratch_cuda = GPP__IF_CUDA(gpp__class_scratch_cuda),
    .check = cross_entropy_check,
};
