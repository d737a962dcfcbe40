/*
 * graph/model/shapes.c: shapes of a model's inputs, and shapes of an operator's outputs.
 *
 * Sizes are checked here, once: the bytes of a sample, of a tensor with fixed rows and of an
 * operator's parameters stay below a bound. So sums and small multiples of them cannot overflow
 * anywhere else.
 */
#include <stdio.h>
#include <string.h>

#include "graph/model/model.h"

/* More than any machine has. */
#define MOST_BYTES ((size_t)1 << 48)

/* *bytes = dim[0]·…·dim[rank-1]·size. False: a dimension is below 1, or the bytes exceed
 * MOST_BYTES. */
static bool measure(int rank, const int64_t dim[], size_t size, size_t *bytes)
{
    *bytes = size;
    for (int d = 0; d < rank; d++)
        if (dim[d] < 1 || !gpp__mul(*bytes, (size_t)dim[d], bytes) || *bytes > MOST_BYTES)
            return false;
    return size > 0;
}

/* Whether the bytes of a row are sound, and those of all rows where their number is fixed. */
static bool is_sound(const gpp__desc *d)
{
    size_t bytes;
    if (d->rank < 0 || d->rank >= GPP_MAX_RANK ||
        !measure(d->rank, d->dim, gpp_dtype_size(d->dtype), &bytes))
        return false;
    if (d->batch != GPP_ROWS_FIXED)
        return true;
    return d->rows >= 1 && gpp__mul(bytes, (size_t)d->rows, &bytes) && bytes <= MOST_BYTES;
}

/* --- operators -------------------------------------------------------------------------------- */

static gpp_status fail_output(const gpp__layer *layer, int t, const char *what, gpp_error *err)
{
    char text[96];
    return gpp__fail(err, GPP_ESHAPE, "%s (layer %d, \"%s\"): output %d, %s, %s", layer->op->name,
                     layer->index, layer->label, t,
                     gpp__desc_text(&layer->out[t], text, sizeof text), what);
}

static gpp_status check_outputs(const gpp__layer *layer, unsigned batches, gpp_error *err)
{
    int least = layer->stashes > 1 ? layer->stashes : 1;
    if (layer->out_count < least || layer->out_count > GPP__MAX_TENSORS)
        return gpp__fail(
            err, GPP_ESHAPE, "%s (layer %d, \"%s\"): %d outputs, possible are %d ... %d",
            layer->op->name, layer->index, layer->label, layer->out_count, least, GPP__MAX_TENSORS);
    for (int t = 0; t < layer->out_count; t++) {
        const gpp__desc *out = &layer->out[t];
        if (out->rank < 0 || out->rank >= GPP_MAX_RANK)
            return gpp__fail(err, GPP_ESHAPE, "%s (layer %d, \"%s\"): output %d has rank %d",
                             layer->op->name, layer->index, layer->label, t, out->rank);
        if (!is_sound(out))
            return fail_output(layer, t, "is empty or too large", err);
        if (out->batch != GPP_ROWS_FIXED &&
            (out->batch < 0 || out->batch >= GPP__BATCHES || !(batches >> out->batch & 1)))
            return fail_output(layer, t, "has rows of a mini-batch that no input has", err);
    }
    return GPP_OK;
}

/* Sets elements, offsets and bytes of the layer's parameters. */
static gpp_status place_parameters(gpp__layer *layer, gpp_error *err)
{
    size_t total = 0;
    if (layer->param_count < 0 || layer->param_count > GPP__MAX_PARAMS)
        return gpp__fail(err, GPP_ESHAPE, "%s (layer %d, \"%s\"): %d parameters, at most %d",
                         layer->op->name, layer->index, layer->label, layer->param_count,
                         GPP__MAX_PARAMS);
    for (int p = 0; p < layer->param_count; p++) {
        gpp__param *param = &layer->param[p];
        size_t bytes, size = gpp_dtype_size(param->dtype);
        if (param->rank < 0 || param->rank > GPP_MAX_RANK ||
            !measure(param->rank, param->dim, size, &bytes) || total + bytes > MOST_BYTES)
            return gpp__fail(err, GPP_ESHAPE,
                             "%s (layer %d, \"%s\"): parameter %s is empty or too large",
                             layer->op->name, layer->index, layer->label, param->name);
        param->count = (int64_t)(bytes / size);
        param->offset = total;
        total += gpp__align(bytes);
    }
    layer->param_bytes = total;
    return GPP_OK;
}

gpp_status gpp__layer_infer(gpp__layer *layer, unsigned batches, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    gpp_status status = layer->op->infer(layer, &inner);
    if (!status)
        status = check_outputs(layer, batches, &inner);
    if (!status)
        status = place_parameters(layer, &inner);
    if (status)
        gpp__fail_layer(err, status, layer->index, "%s", inner.msg);
    return status;
}

/* --- inputs ----------------------------------------------------------------------------------- */

static gpp_status check_input(const gpp_shape *in, const char *name, gpp_error *err)
{
    if (gpp_dtype_size(in->dtype) == 0)
        return gpp__fail(err, GPP_EINVAL, "%s: %d is no data type", name, (int)in->dtype);
    if (in->rank < 0 || in->rank >= GPP_MAX_RANK)
        return gpp__fail(err, GPP_EINVAL, "%s: rank of a sample must be 0 ... %d, got %d", name,
                         GPP_MAX_RANK - 1, in->rank);
    for (int d = 0; d < in->rank; d++)
        if (in->dim[d] < 1)
            return gpp__fail(err, GPP_EINVAL, "%s: dimension %d must be 1 or more, got %lld", name,
                             d, (long long)in->dim[d]);
    if (in->batch != GPP_ROWS_FIXED && (in->batch < 0 || in->batch >= GPP_MAX_BATCHES))
        return gpp__fail(err, GPP_EINVAL, "%s: batch must be 0 ... %d or GPP_ROWS_FIXED, got %d",
                         name, GPP_MAX_BATCHES - 1, in->batch);
    if (in->batch == GPP_ROWS_FIXED && in->rows < 1)
        return gpp__fail(err, GPP_EINVAL, "%s: fixed rows must be 1 or more, got %lld", name,
                         (long long)in->rows);
    if (!is_sound(in))
        return gpp__fail(err, GPP_EINVAL, "%s: %s larger than 2^48 bytes", name,
                         in->batch == GPP_ROWS_FIXED ? "its rows are" : "one sample is");
    return GPP_OK;
}

gpp_status gpp__check_inputs(const gpp_shape in[], int count, unsigned *batches, gpp_error *err)
{
    char name[24] = "input";
    *batches = 0;
    if (count < 1 || count > GPP_MAX_TENSORS || !in)
        return gpp__fail(err, GPP_EINVAL, "input: %d shapes, expected a list of 1 ... %d", count,
                         GPP_MAX_TENSORS);
    for (int k = 0; k < count; k++) {
        if (count > 1)
            snprintf(name, sizeof name, "input %d", k);
        if (check_input(&in[k], name, err))
            return GPP_EINVAL;
        if (in[k].batch != GPP_ROWS_FIXED)
            *batches |= 1u << in[k].batch;
    }
    if (*batches == 0)
        return gpp__fail(err, GPP_EINVAL,
                         "input: all have fixed rows, at least one must have those of a batch");
    for (int b = 0; *batches >> b; b++)
        if (!(*batches >> b & 1))
            return gpp__fail(err, GPP_EINVAL,
                             "input: there is a batch %d, and none of number %d; they are numbered "
                             "without gaps",
                             31 - __builtin_clz(*batches), b);
    return GPP_OK;
}
