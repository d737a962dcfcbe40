/*
 * graph/model/layers.c: what a layer has besides its operators (shared parameters, a device,
 * deferred normalisation), and what callers can ask about layers.
 */
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "graph/model/model.h"

/* Layers, skips and sharing decide the network, which exists once the input is set. */
gpp_status gpp__model_closed(const gpp_model *model, const char *what, gpp_error *err)
{
    if (!model->has_input)
        return GPP_OK;
    return gpp__fail(err, GPP_ESTATE,
                     "%s: the input shape is set, after which a model cannot be added to", what);
}

int gpp__model_index(const gpp_model *model, int layer, gpp_error *err)
{
    int count = gpp_model_layers(model), index = layer < 0 ? layer + count : layer;
    if (index >= 0 && index < count)
        return index;
    gpp__fail(err, GPP_ENOENT, "no layer %d, the model has %d", layer, count);
    return -1;
}

bool gpp__unit_is_chain(const gpp_model *model, const gpp__unit *unit)
{
    if (!unit->composite || unit->outs > 1 || (unit->outs && unit->out[0].tensor != GPP__ALL) ||
        (unit->outs && unit->out[0].op != unit->count - 1))
        return false;
    for (int k = 0; k < unit->count; k++) {
        const gpp__part *part = &model->part[unit->first + k];
        if (part->refs != 1 || part->ref[0].op != k - 1 || part->ref[0].tensor != GPP__ALL)
            return false;
    }
    return true;
}

const char *gpp__unit_kind(const gpp_model *model, const gpp__unit *unit)
{
    if (!unit->composite)
        return model->part[unit->first].op->name;
    return gpp__unit_is_chain(model, unit) ? "chain" : "graph";
}

/* --- what layers are given -------------------------------------------------------------------- */

/* An owner comes before those that share its parameters, so chains of sharing end at one owner. */
static gpp_status check_share(const gpp_model *model, int layer, int with, gpp_error *err)
{
    const gpp__unit *a = &model->unit[layer], *b = &model->unit[with];
    const char *kind = gpp__unit_kind(model, a), *other = gpp__unit_kind(model, b);
    if (with >= layer)
        return gpp__fail_layer(err, GPP_EINVAL, layer,
                               "%s (layer %d, \"%s\"): parameters are shared with an earlier "
                               "layer, and %s (layer %d, \"%s\") is not",
                               kind, layer, a->label, other, with, b->label);
    if (a->count != 1 || b->count != 1)
        return gpp__fail_layer(err, GPP_EINVAL, layer,
                               "%s (layer %d, \"%s\") and %s (layer %d, \"%s\"): only layers of "
                               "one operator share parameters",
                               kind, layer, a->label, other, with, b->label);
    if (model->part[a->first].op != model->part[b->first].op)
        return gpp__fail_layer(err, GPP_EINVAL, layer,
                               "%s (layer %d, \"%s\") and %s (layer %d, \"%s\"): layers that "
                               "share parameters have the same operator",
                               kind, layer, a->label, other, with, b->label);
    return GPP_OK;
}

gpp_status gpp_model_share(gpp_model *model, int layer, int with, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "sharing parameters takes a model");
    gpp_status status = gpp__model_closed(model, "sharing parameters", err);
    if (status)
        return status;
    int a = gpp__model_index(model, layer, err);
    int b = a < 0 ? -1 : gpp__model_index(model, with, err);
    if (b < 0)
        return GPP_ENOENT;
    status = check_share(model, a, b, err);
    if (!status)
        model->unit[a].shares = b;
    return status;
}

/* Allowed also after the input is set: the network does not depend on devices. */
gpp_status gpp_model_place(gpp_model *model, int layer, const char *device, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "placing a layer takes a model");
    if (device && !*device)
        return gpp__fail(err, GPP_EINVAL, "placing layer %d: the device has no name", layer);
    int index = gpp__model_index(model, layer, err);
    if (index < 0)
        return GPP_ENOENT;
    char *copy = device ? strdup(device) : NULL;
    if (device && !copy)
        return gpp__fail(err, GPP_ENOMEM, "device of a layer");
    free(model->unit[index].device);
    model->unit[index].device = copy;
    return GPP_OK;
}

/* Without tracked statistics there is nothing that deferring could change. */
static void defer(const gpp_op *op, void *attr)
{
    if (strcmp(op->name, "batchnorm") == 0 && gpp__attr_flag(op->keys, attr, "track"))
        gpp__attr_set_one(op->keys, attr, "deferred", 1);
}

/* Allowed also after the input is set: deferring changes no shape, so the network only needs the
 * attribute. */
gpp_status gpp_model_defer_batch_norm(gpp_model *model, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "deferring batch normalisation takes a model");
    for (int k = 0; k < model->parts; k++)
        defer(model->part[k].op, model->part[k].attr);
    for (int k = 0; model->has_input && k < model->network.nodes; k++)
        defer(model->network.node[k].op, model->network.node[k].attr);
    return GPP_OK;
}

/* --- asking ----------------------------------------------------------------------------------- */

int gpp_model_layers(const gpp_model *model)
{
    return model ? model->count : 0;
}

static int ends(const gpp__network *network, int count, const int value[], gpp_shape shape[])
{
    for (int k = 0; shape && k < count; k++)
        shape[k] = network->value[value[k]].desc;
    return count;
}

int gpp_model_inputs(const gpp_model *model, gpp_shape shape[])
{
    if (!model || !model->has_input)
        return 0;
    const gpp__network *n = &model->network;
    return ends(n, n->inputs, n->input, shape);
}

int gpp_model_outputs(const gpp_model *model, gpp_shape shape[])
{
    if (!model || !model->has_input)
        return 0;
    const gpp__network *n = &model->network;
    return ends(n, n->outputs, n->output, shape);
}

/* Operators that declare no flops count as one operation per element of their first output. */
static double flops_of(const gpp__layer *layer)
{
    return layer->op->flops ? layer->op->flops(layer) : (double)gpp__desc_count(&layer->out[0]);
}

static void add_up(const gpp_model *model, int index, gpp_layer_info *info)
{
    const gpp__network *n = &model->network;
    for (int k = n->first[index]; k < n->first[index + 1]; k++) {
        const gpp__layer *l = &n->node[k];
        for (int p = 0; p < l->param_count; p++)
            info->parameters += l->param[p].buffer ? 0 : l->param[p].count;
        info->flops += flops_of(l);
    }
}

gpp_status gpp_model_layer(const gpp_model *model, int layer, gpp_layer_info *info, gpp_error *err)
{
    if (!info)
        return gpp__fail(err, GPP_EINVAL, "info is NULL");
    int index = gpp__model_index(model, layer, err);
    if (index < 0)
        return GPP_ENOENT;
    const gpp__unit *unit = &model->unit[index];
    *info = (gpp_layer_info){.op = gpp__unit_kind(model, unit),
                             .label = unit->label,
                             .operators = unit->count,
                             .device = unit->device};
    if (!model->has_input)
        return GPP_OK;
    info->inputs = unit->inputs;
    info->outputs = unit->outputs;
    info->rank = unit->shape.rank;
    memcpy(info->dim, unit->shape.dim, sizeof unit->shape.dim);
    add_up(model, index, info);
    return GPP_OK;
}
