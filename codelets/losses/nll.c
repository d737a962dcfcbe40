/*
 * codelets/losses/nll.c: negative log likelihood of class t, for positions with C log-probabilities
 * each (log_softmax gives them). See classes.c for shapes and what is divided by.
 *
 *     l(y, t) = -w_t y_t        dl/dy_c = -w_t [c = t]
 *
 * Positions are added in double, in order.
 */
#include <string.h>

#include "codelets/losses/internal.h"

static gpp_status nll_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                             gpp_error *err)
{
    return gpp__class_target("nll", attr, y, target, err);
}

static gpp_status nll_run(const gpp__loss_call *call)
{
    const gpp__class_attr *attr = call->attr;
    gpp__class_view v = gpp__class_view_of(attr, call->y_desc);
    const int64_t *target = call->target;
    double sum = 0;
    gpp_status status = gpp__class_check("nll", call);
    if (status)
        return status;
    size_t bytes = (size_t)call->rows * gpp__desc_bytes(call->y_desc);
    if (call->grad_y && bytes)
        memset(call->grad_y, 0, bytes);
    for (int64_t k = 0; k < call->rows * v.positions; k++) {
        bool counts = target[k] != attr->ignore_index;
        int64_t at = (k / v.inner * v.classes + (counts ? target[k] : 0)) * v.inner + k % v.inner;
        double weight = call->weight && counts ? (double)call->weight[target[k]] : 1;
        double l = counts ? -weight * call->y[at] : 0;
        if (call->each)
            call->each[k] = (float)l;
        if (call->grad_y && counts)
            call->grad_y[at] = (float)(-weight / call->divisor);
        sum += l;
    }
    *call->value = sum / call->divisor;
    return GPP_OK;
}

static gpp_status nll_check(const void *attr, const gpp__desc *y, const gpp__desc *target,
                            int64_t first, int64_t rows, const void *data, gpp_error *err)
{
    (void)target;
    return gpp__class_check_rows("nll", attr, y, first, rows, data, err);
}

static const gpp__key nll_keys[] = {GPP__CLASS_KEYS, {.name = NULL}};

const gpp_loss gpp_loss_nll = {
    .name = "nll",
    .keys = nll_keys,
    .attr_size = sizeof(gpp__class_attr),
    .target = nll_target,
    .each = gpp__class_each,
    .classes = gpp__class_count,
    .divisor = gpp__class_divisor,
    .run = nll_run,
    .run_cuda = GPP__IF_CUDA(gpp__nll_run_cuda),
    .scratch_cuda = GPP__IF_CUDA(gpp__class_scratch_cuda),
    .check = nll_check,
};
