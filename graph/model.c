/*
 * graph/model.c: layers in order, their labels, and the shapes that follow from the input's.
 *
 * Invariant: a call that fails leaves the model as it was. A layer is complete before it is
 * counted; shapes are inferred from the first layer on and forgotten together if one does not fit.
 *
 * Labels are found through an open-addressing hash table, so that a model of n layers is built in
 * O(n). Layers go away only from the end (gpp__model_truncate), and the last one entered can be
 * taken out of such a table by emptying its slot: every later entry is gone already.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "graph/model.h"

/* Bytes of one sample or of one layer's parameters: more than any machine has, and few enough that
 * sums and small multiples cannot overflow. */
#define MOST_BYTES ((size_t)1 << 48)

/* --- labels ----------------------------------------------------------------------------------- */

/* FNV-1a. */
static size_t hash(const char *label)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *label; label++)
        h = (h ^ (unsigned char)*label) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

/* The slot that holds `label`, or the empty one where it would go. The table is never full. */
static int *find_slot(const gpp_model *model, const char *label)
{
    size_t at = hash(label) & (model->slots - 1);
    while (model->slot[at] >= 0 && strcmp(model->layer[model->slot[at]].label, label) != 0)
        at = (at + 1) & (model->slots - 1);
    return &model->slot[at];
}

static void enter(gpp_model *model, int index)
{
    *find_slot(model, model->layer[index].label) = index;
}

int gpp_model_find(const gpp_model *model, const char *label)
{
    return model && label && model->slots ? *find_slot(model, label) : -1;
}

static bool is_label(const char *label)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_-.";
    size_t length = strspn(label, allowed);
    return length >= 1 && length <= 63 && label[length] == '\0';
}

/* --- storage ---------------------------------------------------------------------------------- */

gpp_status gpp_model_new(gpp_model **model, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "model: no place for the new model");
    *model = calloc(1, sizeof **model);
    return *model ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "a new model");
}

void gpp_model_free(gpp_model *model)
{
    if (!model)
        return;
    gpp__model_truncate(model, 0);
    free(model->layer);
    free(model->slot);
    free(model);
}

void gpp__model_truncate(gpp_model *model, int count)
{
    while (model->count > count) {
        gpp__layer *last = &model->layer[model->count - 1];
        *find_slot(model, last->label) = -1;
        free(last->attr);
        model->count--;
    }
}

static gpp_status grow_slots(gpp_model *model, size_t slots, gpp_error *err)
{
    int *slot = malloc(slots * sizeof *slot);
    if (!slot)
        return gpp__fail(err, GPP_ENOMEM, "labels of a model, %zu of them", slots / 2);
    memset(slot, 0xff, slots * sizeof *slot);
    free(model->slot);
    model->slot = slot;
    model->slots = slots;
    for (int index = 0; index < model->count; index++)
        enter(model, index);
    return GPP_OK;
}

/* Room for one more layer and its label. */
static gpp_status reserve(gpp_model *model, gpp_error *err)
{
    if (model->count == GPP__MAX_LAYERS)
        return gpp__fail(err, GPP_EINVAL, "a model has at most %d layers", GPP__MAX_LAYERS);
    if (model->count == model->capacity) {
        int capacity = model->capacity ? 2 * model->capacity : 16;
        gpp__layer *layer = realloc(model->layer, (size_t)capacity * sizeof *layer);
        if (!layer)
            return gpp__fail(err, GPP_ENOMEM, "a model of more than %d layers", model->count);
        model->layer = layer;
        model->capacity = capacity;
    }
    if ((size_t)model->count * 2 >= model->slots)
        return grow_slots(model, model->slots ? 2 * model->slots : 64, err);
    return GPP_OK;
}

gpp_status gpp__model_clone(const gpp_model *model, gpp_model **copy, gpp_error *err)
{
    gpp_model *c = *copy = calloc(1, sizeof *c);
    if (!c)
        goto fail;
    c->layer = calloc((size_t)model->count + 1, sizeof *c->layer);
    if (!c->layer)
        goto free_copy;
    c->capacity = model->count + 1;
    if (model->slots && grow_slots(c, model->slots, NULL))
        goto free_copy;
    for (; c->count < model->count; c->count++) {
        gpp__layer *to = &c->layer[c->count];
        *to = model->layer[c->count];
        to->attr = malloc(to->op->attr_size + 1);
        if (!to->attr)
            goto free_copy;
        memcpy(to->attr, model->layer[c->count].attr, to->op->attr_size);
        enter(c, c->count);
    }
    c->has_input = model->has_input;
    c->input_count = model->input_count;
    memcpy(c->input, model->input, sizeof c->input);
    return GPP_OK;
free_copy:
    gpp_model_free(c);
    *copy = NULL;
fail:
    return gpp__fail(err, GPP_ENOMEM, "a copy of a model of %d layers", model->count);
}

/* --- adding layers ---------------------------------------------------------------------------- */

/* Writes the label of the layer that comes next: the given one, or its index. */
static gpp_status choose_label(const gpp_model *model, const gpp_op *op, const char *label,
                               char out[64], gpp_error *err)
{
    int index = model->count;
    if (label && !is_label(label))
        return gpp__fail_layer(err, GPP_EINVAL, index,
                               "%s (layer %d): label \"%.70s\" is not 1 ... 63 letters, digits, "
                               "'_', '-' and '.'",
                               op->name, index, label);
    if (label)
        memcpy(out, label, strlen(label) + 1);
    else
        snprintf(out, 64, "%d", index);
    int other = gpp_model_find(model, out);
    if (other < 0)
        return GPP_OK;
    return gpp__fail_layer(err, GPP_EINVAL, index,
                           "%s (layer %d): its %slabel \"%s\" is that of layer %d (%s) already",
                           op->name, index, label ? "" : "default ", out, other,
                           model->layer[other].op->name);
}

static gpp_status make_layer(const gpp_model *model, const gpp_op *op, const char *label,
                             const gpp_attr attrs[], size_t count, gpp__layer *layer,
                             gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    *layer = (gpp__layer){.op = op, .index = model->count};
    gpp_status status = choose_label(model, op, label, layer->label, err);
    if (status)
        return status;
    layer->attr = calloc(1, op->attr_size + 1);
    if (!layer->attr)
        return gpp__fail(err, GPP_ENOMEM, "attributes of a layer");
    status = gpp__attr_set(op->name, op->keys, layer->attr, attrs, count, &inner);
    if (status) {
        free(layer->attr);
        gpp__fail_layer(err, status, model->count, "%s", inner.msg);
    }
    return status;
}

gpp_status gpp__model_add_op(gpp_model *model, const gpp_op *op, const char *label,
                             const gpp_attr attrs[], size_t count, gpp_error *err)
{
    gpp__layer layer;
    if (model->has_input)
        return gpp__fail(err, GPP_ESTATE,
                         "%s: the input shape is set, after which a model cannot "
                         "be added to",
                         op->name);
    gpp_status status = reserve(model, err);
    if (!status)
        status = make_layer(model, op, label, attrs, count, &layer, err);
    if (status)
        return status;
    model->layer[model->count] = layer;
    enter(model, model->count++);
    return GPP_OK;
}

static gpp_status fail_no_op(const char *name, int layer, gpp_error *err)
{
    char known[200] = "";
    const char *alike = NULL;
    for (size_t k = 0; gpp__ops[k]; k++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", k ? ", " : "", gpp__ops[k]->name);
        if (!alike && gpp__alike(name, gpp__ops[k]->name))
            alike = gpp__ops[k]->name;
    }
    if (alike)
        return gpp__fail_layer(err, GPP_ENOENT, layer,
                               "no operator \"%.63s\"; did you mean \"%s\"? There are %s", name,
                               alike, known);
    return gpp__fail_layer(err, GPP_ENOENT, layer, "no operator \"%.63s\"; there are %s", name,
                           known);
}

gpp_status gpp_model_add(gpp_model *model, const char *name, const char *label,
                         const gpp_attr attrs[], size_t count, gpp_error *err)
{
    if (!model || !name)
        return gpp__fail(err, GPP_EINVAL, "adding a layer takes a model and an operator's name");
    const gpp_op *op = gpp__op_find(name);
    return op ? gpp__model_add_op(model, op, label, attrs, count, err)
              : fail_no_op(name, model->count, err);
}

/* --- shapes ----------------------------------------------------------------------------------- */

/* dim[0]·…·dim[rank-1]·size, or false when a dimension is below 1 or the bytes beyond MOST_BYTES.
 */
static bool measure(int rank, const int64_t dim[], size_t size, size_t *bytes)
{
    *bytes = size;
    for (int d = 0; d < rank; d++)
        if (dim[d] < 1 || !gpp__mul(*bytes, (size_t)dim[d], bytes) || *bytes > MOST_BYTES)
            return false;
    return size > 0;
}

static gpp_status check_outputs(const gpp__layer *layer, gpp_error *err)
{
    char text[96];
    size_t bytes;
    if (layer->out_count < 1 || layer->out_count > GPP__MAX_TENSORS)
        return gpp__fail(
            err, GPP_ESHAPE, "%s (layer %d, \"%s\"): %d outputs, possible are 1 ... %d",
            layer->op->name, layer->index, layer->label, layer->out_count, GPP__MAX_TENSORS);
    for (int t = 0; t < layer->out_count; t++) {
        const gpp__desc *out = &layer->out[t];
        if (out->rank < 0 || out->rank >= GPP_MAX_RANK ||
            !measure(out->rank, out->dim, gpp_dtype_size(out->dtype), &bytes))
            return gpp__fail(err, GPP_ESHAPE,
                             "%s (layer %d, \"%s\"): an output %s is empty or too large",
                             layer->op->name, layer->index, layer->label,
                             gpp__desc_text(out, text, sizeof text));
    }
    return GPP_OK;
}

/* Elements, offsets and bytes of the layer's parameters. */
static gpp_status place_parameters(gpp__layer *layer, gpp_error *err)
{
    size_t total = 0;
    for (int p = 0; p < layer->param_count; p++) {
        gpp__param *param = &layer->param[p];
        size_t bytes;
        if (!measure(param->rank, param->dim, sizeof(float), &bytes) || total + bytes > MOST_BYTES)
            return gpp__fail(err, GPP_ESHAPE,
                             "%s (layer %d, \"%s\"): parameter %s is empty or too large",
                             layer->op->name, layer->index, layer->label, param->name);
        param->count = (int64_t)(bytes / sizeof(float));
        param->offset = total;
        total += gpp__align(bytes);
    }
    layer->param_bytes = total;
    return GPP_OK;
}

static void forget_shapes(gpp__layer *layer)
{
    layer->in_count = layer->out_count = layer->param_count = 0;
    layer->param_bytes = 0;
}

static gpp_status infer_layer(gpp__layer *layer, int count, const gpp__desc in[], gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    forget_shapes(layer);
    layer->in_count = count;
    memcpy(layer->in, in, (size_t)count * sizeof *in);
    gpp_status status = layer->op->infer(layer, &inner);
    if (!status)
        status = check_outputs(layer, &inner);
    if (!status)
        status = place_parameters(layer, &inner);
    if (status)
        gpp__fail_layer(err, status, layer->index, "%s", inner.msg);
    return status;
}

static gpp_status check_input(gpp_dtype dtype, int rank, const int64_t dim[], gpp_error *err)
{
    size_t bytes;
    if (gpp_dtype_size(dtype) == 0)
        return gpp__fail(err, GPP_EINVAL, "input: %d is no data type", (int)dtype);
    if (rank < 0 || rank >= GPP_MAX_RANK)
        return gpp__fail(err, GPP_EINVAL, "input: rank of a sample must be 0 ... %d, got %d",
                         GPP_MAX_RANK - 1, rank);
    if (rank && !dim)
        return gpp__fail(err, GPP_EINVAL, "input: no dimensions given");
    for (int d = 0; d < rank; d++)
        if (dim[d] < 1)
            return gpp__fail(err, GPP_EINVAL, "input: dimension %d must be 1 or more, got %lld", d,
                             (long long)dim[d]);
    if (!measure(rank, dim, gpp_dtype_size(dtype), &bytes))
        return gpp__fail(err, GPP_EINVAL, "input: one sample is larger than 2^48 bytes");
    return GPP_OK;
}

const gpp__desc *gpp__model_output(const gpp_model *model, int *count)
{
    const gpp__layer *last = model->count ? &model->layer[model->count - 1] : NULL;
    *count = last ? last->out_count : model->input_count;
    return last ? last->out : model->input;
}

gpp_status gpp_model_set_input(gpp_model *model, gpp_dtype dtype, int rank, const int64_t dim[],
                               gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "input: no model");
    if (model->has_input)
        return gpp__fail(err, GPP_ESTATE, "input: the input shape is set already");
    gpp_status status = check_input(dtype, rank, dim, err);
    if (status)
        return status;
    gpp__desc input = {.dtype = dtype, .rank = rank};
    if (rank)
        memcpy(input.dim, dim, (size_t)rank * sizeof *dim);
    const gpp__desc *in = &input;
    for (int index = 0, count = 1; index < model->count; index++) {
        gpp__layer *layer = &model->layer[index];
        status = infer_layer(layer, count, in, err);
        if (status)
            goto forget;
        count = layer->out_count;
        in = layer->out;
    }
    model->has_input = true;
    model->input_count = 1;
    model->input[0] = input;
    return GPP_OK;
forget:
    for (int index = 0; index < model->count; index++)
        forget_shapes(&model->layer[index]);
    return status;
}

/* --- asking ----------------------------------------------------------------------------------- */

int gpp_model_layers(const gpp_model *model)
{
    return model ? model->count : 0;
}

static double flops_of(const gpp__layer *layer)
{
    return layer->op->flops ? layer->op->flops(layer) : (double)gpp__desc_count(&layer->out[0]);
}

gpp_status gpp_model_layer(const gpp_model *model, int layer, gpp_layer_info *info, gpp_error *err)
{
    if (!info)
        return gpp__fail(err, GPP_EINVAL, "info is NULL");
    int count = gpp_model_layers(model), index = layer < 0 ? layer + count : layer;
    if (index < 0 || index >= count)
        return gpp__fail(err, GPP_ENOENT, "no layer %d, the model has %d", layer, count);
    const gpp__layer *l = &model->layer[index];
    *info = (gpp_layer_info){.op = l->op->name, .label = l->label};
    if (!model->has_input)
        return GPP_OK;
    info->rank = l->out[0].rank;
    memcpy(info->dim, l->out[0].dim, sizeof l->out[0].dim);
    for (int p = 0; p < l->param_count; p++)
        info->parameters += l->param[p].count;
    info->flops = flops_of(l);
    return GPP_OK;
}
