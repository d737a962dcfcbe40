/*
 * tools/train_test.c: the loss and the accuracy of the model on the test rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train.h"

bool train_has_classes(const char *loss)
{
    return !strncmp(loss, "cross_entropy", 13) || !strncmp(loss, "nll", 3);
}

/* Rows [from, from + rows) of a tensor. */
static gpp_tensor slice(const gpp_tensor *t, int64_t from, int64_t rows)
{
    gpp_tensor part = *t;
    part.dim[0] = 1;
    size_t row = (size_t)tool_count(&part) * gpp_dtype_size(t->dtype);
    part.data = (char *)t->data + (size_t)from * row;
    part.dim[0] = rows;
    return part;
}

/* The dimension of y that holds the classes. The rule is that of the losses: see `classes` in
 * docs/reference.md. */
static int class_axis(const training *t, const gpp_tensor *y)
{
    bool last = strstr(t->how.loss, "classes=last") ||
                (y->rank <= 3 && !strstr(t->how.loss, "classes=first"));
    return last ? y->rank - 1 : 1;
}

/* Counts positions where the target has the largest score. Targets that are out of range are
 * ignored ones and do not count. @param all  the number of positions that count is added to it */
static int64_t count_right(const training *t, const gpp_tensor *y, const gpp_tensor *target,
                           int64_t *all)
{
    const float *score = y->data;
    const int64_t *want = target->data;
    int axis = class_axis(t, y);
    int64_t inner = 1, classes = y->dim[axis], right = 0, count = tool_count(target);
    for (int d = axis + 1; d < y->rank; d++)
        inner *= y->dim[d];
    for (int64_t k = 0; k < count; k++) {
        const float *at = score + k / inner * inner * classes + k % inner;
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++)
            best = at[c * inner] > at[best * inner] ? c : best;
        *all += want[k] >= 0 && want[k] < classes;
        right += want[k] == best;
    }
    return right;
}

/* Counts in the rows of each replica. Only the rank with its outputs counts right. */
static int64_t count_replicas(const training *t, gpp_tensor y, gpp_tensor target, int64_t right[],
                              int replicas)
{
    gpp_pipe_info info;
    gpp_pipe_get_info(t->pipe, &info);
    int64_t rows = y.dim[0], all = 0, pieces = (int64_t)replicas * info.chunks;
    int64_t each = (rows + pieces - 1) / pieces * info.chunks;
    for (int r = 0; r < replicas; r++) {
        int64_t from = r * each < rows ? r * each : rows,
                end = from + each < rows ? from + each : rows;
        gpp_tensor some = slice(&y, from, end - from), want = slice(&target, from, end - from);
        right[r] += count_right(t, &some, &want, &all);
    }
    return all;
}

/* @param y  room for a whole mini-batch */
static gpp_status test_batch(training *t, int64_t from, int64_t rows, gpp_tensor *y, double *loss)
{
    gpp_tensor x[GPP_MAX_TENSORS], target = slice(&t->test.target, from, rows);
    for (int k = 0; k < t->test.inputs; k++)
        x[k] = slice(&t->test.x[k], from, rows);
    y->dim[0] = rows;
    return gpp_pipe_evaluate(t->pipe, x, &target, y, loss, &t->err);
}

static gpp_status test_all(training *t, gpp_tensor *y)
{
    gpp_status status = GPP_OK;
    int replicas = t->how.pipe.replicas ? t->how.pipe.replicas : 1;
    int64_t rows = t->test.x[0].dim[0], sum_right = 0, all = 0;
    int64_t *right = calloc((size_t)replicas, sizeof *right);
    double sum = 0;
    if (!right)
        return tool_note(&t->err, GPP_ENOMEM, "%d replicas", replicas);
    for (int64_t from = 0; from < rows && status == GPP_OK; from += t->how.batch) {
        int64_t some = rows - from < t->how.batch ? rows - from : t->how.batch;
        double loss = NAN;
        status = test_batch(t, from, some, y, &loss);
        if (status != GPP_OK)
            break;
        sum += loss * (double)some;
        gpp_tensor target = slice(&t->test.target, from, some);
        if (train_has_classes(t->how.loss))
            all += count_replicas(t, *y, target, right, replicas);
    }
    for (int r = 0; r < replicas && status == GPP_OK; r++) { /* other ranks have no outputs */
        status = tool_share(tool_end_rank(t->pipe, r), &right[r], sizeof *right, &t->err);
        sum_right += right[r];
    }
    free(right);
    t->test_loss = sum / (double)rows;
    t->accuracy = all ? (double)sum_right / (double)all : NAN;
    return status;
}

gpp_status train_test(training *t)
{
    gpp_shape out[GPP_MAX_TENSORS];
    int64_t dim[GPP_MAX_RANK] = {t->how.batch};
    t->test_loss = t->accuracy = NAN;
    t->tested = true;
    if (!t->test.inputs)
        return GPP_OK;
    gpp_model_outputs(t->model, out);
    memcpy(dim + 1, out[0].dim, (size_t)out[0].rank * sizeof *dim);
    gpp_tensor y = tool_room(out[0].dtype, out[0].rank + 1, dim);
    gpp_status status =
        y.data ? test_all(t, &y) : tool_note(&t->err, GPP_ENOMEM, "outputs of a mini-batch");
    free(y.data);
    return status;
}
