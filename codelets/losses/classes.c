/*
 * codelets/losses/classes.c: losses whose target is one class for each position.
 *
 * An output row has the scores of one position, (classes), or of several. With several, one
 * dimension counts the classes and the others count the positions; the target has the others. The
 * dimension of the classes is the last one in rows of rank 2, (positions, classes), which sequence
 * models give, and the first one in rows of higher rank, (classes, H, W), as for images.
 * classes=first and classes=last override this. PyTorch's dimension 1 is classes=first.
 *
 * Positions whose target is ignore_index do not count. The divisor of a mean is the number of
 * positions that count or, with weights of classes, the sum of the weights of their targets.
 */
#include <inttypes.h>
#include <stdio.h>

#include "codelets/losses/internal.h"

const char *const gpp__class_axes[] = {"auto", "first", "last", NULL};

/* The dimension that counts the classes. */
static int axis_of(const void *attr, const gpp__desc *y)
{
    const gpp__class_attr *a = attr;
    bool last = a->axis == GPP__CLASSES_LAST || (a->axis == GPP__CLASSES_AUTO && y->rank <= 2);
    return last ? y->rank - 1 : 0;
}

gpp__class_view gpp__class_view_of(const void *attr, const gpp__desc *y)
{
    int axis = axis_of(attr, y);
    gpp__class_view v = {.classes = y->dim[axis], .inner = 1};
    for (int d = axis + 1; d < y->rank; d++)
        v.inner *= y->dim[d];
    v.positions = gpp__desc_count(y) / v.classes;
    return v;
}

static void without_classes(const void *attr, const gpp__desc *y, gpp_dtype dtype, gpp__desc *out)
{
    int axis = axis_of(attr, y), rank = 0;
    *out = *y;
    for (int d = 0; d < y->rank; d++)
        if (d != axis)
            out->dim[rank++] = y->dim[d];
    out->dim[rank] = 0;
    out->rank = rank;
    out->dtype = dtype;
}

gpp_status gpp__class_target(const char *who, const void *attr, const gpp__desc *y,
                             gpp__desc *target, gpp_error *err)
{
    if (y->dtype != GPP_F32)
        return gpp__fail(err, GPP_ESHAPE, "%s: takes float32 outputs, got int64", who);
    if (y->rank < 1)
        return gpp__fail(err, GPP_ESHAPE,
                         "%s: takes outputs of shape (classes), (positions, classes) or "
                         "(classes, height, width), got one number",
                         who);
    without_classes(attr, y, GPP_I64, target);
    return GPP_OK;
}

void gpp__class_each(const void *attr, const gpp__desc *y, gpp__desc *each)
{
    without_classes(attr, y, GPP_F32, each);
}

int64_t gpp__class_count(const void *attr, const gpp__desc *y)
{
    return gpp__class_view_of(attr, y).classes;
}

double gpp__class_divisor(const void *attr, const gpp__desc *y, int64_t rows, const void *target,
                          const float *weight)
{
    const gpp__class_attr *a = attr;
    gpp__class_view v = gpp__class_view_of(attr, y);
    const int64_t *t = target;
    double sum = 0;
    if (a->reduction != GPP__MEAN)
        return 1;
    for (int64_t k = 0; k < rows * v.positions; k++)
        if (t[k] != a->ignore_index && t[k] >= 0 && t[k] < v.classes)
            sum += weight ? (double)weight[t[k]] : 1;
    return sum;
}

gpp_status gpp__class_check(const char *who, const gpp__loss_call *call)
{
    const gpp__class_attr *a = call->attr;
    gpp__class_view v = gpp__class_view_of(a, call->y_desc);
    const int64_t *target = call->target;
    for (int64_t k = 0; k < call->rows * v.positions; k++) {
        char where[48] = "";
        if (target[k] == a->ignore_index || (target[k] >= 0 && target[k] < v.classes))
            continue;
        if (call->y_desc->rank > 1)
            snprintf(where, sizeof where, ", position %" PRId64 ",", k % v.positions);
        return gpp__fail(call->err, GPP_EINVAL,
                         "%s: target of row %" PRId64 "%s of the mini-batch is %" PRId64
                         ", must be 0 ... %" PRId64 " (or ignore_index, %" PRId64 ")",
                         who, call->row0 + k / v.positions, where, target[k], v.classes - 1,
                         a->ignore_index);
    }
    return GPP_OK;
}

gpp_status gpp__class_check_rows(const char *who, const void *attr, const gpp__desc *y,
                                 int64_t first, int64_t rows, const void *data, gpp_error *err)
{
    gpp__loss_call call = {
        .attr = attr, .y_desc = y, .row0 = first, .rows = rows, .target = data, .err = err};
    return gpp__class_check(who, &call);
}
