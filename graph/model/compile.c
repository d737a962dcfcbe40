/*
 * graph/model/compile.c: from layers to a network (codelets/program/network.h).
 *
 * The builder walks layers in order, with the tuple of tensors that goes from one to the next. It
 * adds three kinds of operators to those of the caller:
 * - forks (graph/model/builder.c);
 * - changes of layout, at the ends of the model and around operators that work row-major;
 * - a `pass` where a layer gives one of its inputs on as it is. What a layer gives is then always
 *   made in that layer, so every cut has something to carry.
 *
 * Invariant: the network depends on the model and the shapes of its inputs alone.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/model/builder.h"

/* --- operators -------------------------------------------------------------------------------- */

static gpp_status fail_many(const gpp__builder *b, const gpp__part *part, int count)
{
    return gpp__fail_layer(
        b->err, GPP_ESHAPE, b->index,
        "%s (layer %d, \"%s\"): %d tensors go in, skips included, at most %d can", part->op->name,
        b->index, part->label, count, GPP__MAX_TENSORS);
}

/* The values that go into a part: first those of its references, then those that it pops. Skips of
 * an operator are declared stashes first, which is why pops begin at decl[met + stashes]. */
static gpp_status gather(gpp__builder *b, const gpp__part *part, int values[], int *count)
{
    gpp_status status = GPP_OK;
    *count = 0;
    for (int k = 0; !status && k < part->refs; k++)
        status = gpp__build_take(b, &part->ref[k], values, count);
    int pops = 0, stashes = 0;
    for (int k = 0; k < part->skips; k++)
        *(part->skip[k].stash ? &stashes : &pops) += 1;
    if (!status && *count + pops > GPP__MAX_TENSORS)
        return fail_many(b, part, *count + pops);
    for (int k = 0; !status && k < pops; k++)
        values[(*count)++] = b->stashed[b->decl[b->met + stashes + k].partner];
    for (int k = 0; !status && part->op->row_major && k < *count; k++)
        status = gpp__build_convert(b, &gpp__op_channels_first, &values[k]);
    return status;
}

/* Copies a part's attributes and skips to its node, and counts the stashes and pops. */
static void describe(gpp__layer *node, const gpp__part *part, int id)
{
    memcpy(node->attr, part->attr, part->op->attr_size);
    node->id = id;
    node->skips = part->skips;
    for (int k = 0; k < part->skips; k++) {
        node->skip[k] = part->skip[k];
        *(part->skip[k].stash ? &node->stashes : &node->pops) += 1;
    }
}

/* Stash number `k` of a part left `value`: whoever pops its name gets this value. */
static gpp_status record_stash(gpp__builder *b, const gpp__part *part, int k, int value)
{
    gpp__value *v = &b->net->value[value];
    v->skip = true;
    v->name = *b->decl[b->met + k].skip;
    v->optional = v->optional || part->op->may_stash_none;
    gpp_status status =
        part->op->row_major ? gpp__build_convert(b, &gpp__op_channels_last, &value) : GPP_OK;
    b->stashed[b->met + k] = value;
    return status;
}

/* Publishes the outputs of operator `index` of the network, which is operator `k` of the layer. The
 * last outputs of an operator are its stashes. */
static gpp_status give(gpp__builder *b, const gpp__part *part, int index, int k)
{
    const gpp__layer *node = &b->net->node[index];
    int stashes = node->stashes, count = node->out_count - stashes, out[GPP__MAX_TENSORS];
    gpp_status status = GPP_OK;
    memcpy(out, node->to, (size_t)node->out_count * sizeof *out);
    for (int t = 0; !status && part->op->row_major && t < count; t++)
        status = gpp__build_convert(b, &gpp__op_channels_last, &out[t]);
    for (int s = 0; !status && s < stashes; s++)
        status = record_stash(b, part, s, out[count + s]);
    b->met += part->skips;
    return status ? status : gpp__build_publish(b, k, out, count);
}

static gpp_status build_part(gpp__builder *b, int k)
{
    int in[GPP__MAX_TENSORS], count, id = b->unit->first + k;
    const gpp__part *part = &b->model->part[id];
    gpp_status status = gather(b, part, in, &count);
    if (status)
        return status;
    gpp__layer *node = gpp__build_node(b, part->op, part->label);
    if (!node)
        return gpp__build_memory(b);
    int index = b->net->nodes - 1;
    describe(node, part, id);
    node->in_count = count;
    for (int t = 0; t < count; t++)
        gpp__build_feed(b, node, t, in[t]);
    status = gpp__layer_infer(node, b->batches, b->err);
    if (!status)
        status = gpp__build_outputs(b);
    if (b->unit->count == 1)
        b->node_of[b->index] = index;
    return status ? status : give(b, part, index, k);
}

/* --- layers ----------------------------------------------------------------------------------- */

static gpp_status fail_unit(const gpp__builder *b, const char *what)
{
    return gpp__fail_layer(b->err, GPP_ESHAPE, b->index, "%s (layer %d, \"%s\"): %s",
                           gpp__unit_kind(b->model, b->unit), b->index, b->unit->label, what);
}

/* A layer that ignores all its inputs would cut the network in two. */
static bool takes_something(const gpp__source *s)
{
    for (int t = 0; t < s->count; t++)
        if (s->tensor[t].uses)
            return true;
    return false;
}

/* The layer's outputs become the tuple. An output that no operator of this layer has made gets a
 * `pass`. */
static gpp_status finish_unit(gpp__builder *b)
{
    gpp_status status = GPP_OK;
    b->tuple_count = 0;
    for (int k = 0; !status && k < b->unit->outs; k++)
        status = gpp__build_take(b, &b->unit->out[k], b->tuple, &b->tuple_count);
    for (int t = 0; !status && t < b->tuple_count; t++)
        if (b->net->value[b->tuple[t]].producer < b->net->first[b->index]) {
            status = gpp__build_insert(b, &gpp__op_pass, b->tuple[t], 1);
            if (!status)
                b->tuple[t] = b->net->node[b->net->nodes - 1].to[0];
        }
    if (!status && b->tuple_count == 0)
        status = fail_unit(b, "it gives no tensor to what comes after it");
    return status;
}

/* Shared parameters are one memory, so types, shapes and names must agree. */
static bool same_parameters(const gpp__layer *a, const gpp__layer *b)
{
    if (a->op != b->op || a->param_count != b->param_count)
        return false;
    for (int p = 0; p < a->param_count; p++) {
        const gpp__param *x = &a->param[p], *y = &b->param[p];
        if (x->dtype != y->dtype || x->buffer != y->buffer || x->rank != y->rank ||
            memcmp(x->dim, y->dim, (size_t)x->rank * sizeof *x->dim) != 0 ||
            strcmp(x->name, y->name) != 0)
            return false;
    }
    return true;
}

static gpp_status share(gpp__builder *b)
{
    gpp__layer *node = &b->net->node[b->node_of[b->index]];
    int owner = b->node_of[b->unit->shares];
    const gpp__layer *with = &b->net->node[owner];
    if (!same_parameters(node, with))
        return gpp__fail_layer(b->err, GPP_ESHAPE, b->index,
                               "%s (layer %d, \"%s\") cannot share the parameters of %s (layer %d, "
                               "\"%s\"): their shapes differ",
                               node->op->name, b->index, node->label, with->op->name, with->index,
                               with->label);
    node->shares = with->shares >= 0 ? with->shares : owner;
    return GPP_OK;
}

static gpp_status build_unit(gpp__builder *b, int index)
{
    gpp__unit *unit = &b->model->unit[index];
    gpp_status status = gpp__build_begin(b, index);
    for (int t = 0; !status && index == 0 && t < b->tuple_count; t++)
        status = gpp__build_convert(b, &gpp__op_channels_last, &b->tuple[t]);
    unit->inputs = b->tuple_count;
    if (!status)
        status = gpp__build_publish(b, GPP_REF_INPUT, b->tuple, b->tuple_count);
    if (!status && !takes_something(&b->source[0]))
        status = fail_unit(b, "it takes none of the tensors that it is given");
    for (int k = 0; !status && k < unit->count; k++)
        status = build_part(b, k);
    if (!status)
        status = finish_unit(b);
    if (status)
        return status;
    unit->outputs = b->tuple_count;
    unit->shape = b->net->value[b->tuple[0]].desc;
    return unit->shares >= 0 ? share(b) : GPP_OK;
}

/* --- models ----------------------------------------------------------------------------------- */

static int by_label(const void *a, const void *b)
{
    const gpp__layer *x = *(gpp__layer *const *)a, *y = *(gpp__layer *const *)b;
    int order = strcmp(x->label, y->label);
    return order ? order : (x > y) - (x < y);
}

/* A parameter's name begins with its operator's label, so that label must be unique. */
static gpp_status check_labels(const gpp__builder *b)
{
    const gpp__network *n = b->net;
    const gpp__layer **owner = malloc(((size_t)n->nodes + 1) * sizeof *owner);
    size_t count = 0;
    gpp_status status = GPP_OK;
    if (!owner)
        return gpp__build_memory(b);
    for (int k = 0; k < n->nodes; k++)
        if (n->node[k].param_count && n->node[k].shares < 0)
            owner[count++] = &n->node[k];
    qsort(owner, count, sizeof *owner, by_label);
    for (size_t k = 1; !status && k < count; k++)
        if (strcmp(owner[k - 1]->label, owner[k]->label) == 0)
            status = gpp__fail_layer(
                b->err, GPP_EINVAL, owner[k]->index,
                "%s (layer %d): its label \"%s\" is that of another operator with parameters, %s "
                "(layer %d)",
                owner[k]->op->name, owner[k]->index, owner[k]->label, owner[k - 1]->op->name,
                owner[k - 1]->index);
    free(owner);
    return status;
}

/* A model without layers has one operator, which gives its inputs back. */
static gpp_status build_pass(gpp__builder *b)
{
    gpp__layer *node = gpp__build_node(b, &gpp__op_pass, gpp__op_pass.name);
    if (!node)
        return gpp__build_memory(b);
    node->in_count = node->out_count = b->tuple_count;
    for (int t = 0; t < b->tuple_count; t++) {
        gpp__build_feed(b, node, t, b->tuple[t]);
        node->out[t] = node->in[t];
    }
    gpp_status status = gpp__build_outputs(b);
    memcpy(b->tuple, node->to, sizeof b->tuple);
    return status;
}

static gpp_status add_inputs(gpp__builder *b, const gpp_shape in[], int count)
{
    gpp__network *n = b->net;
    for (int t = 0; t < count; t++) {
        gpp__desc desc = {.dtype = in[t].dtype, .rank = in[t].rank, .batch = in[t].batch};
        if (desc.rank)
            memcpy(desc.dim, in[t].dim, (size_t)desc.rank * sizeof *desc.dim);
        desc.rows = desc.batch == GPP_ROWS_FIXED ? in[t].rows : 0;
        n->input[t] = b->tuple[t] = gpp__build_value(b, &desc, GPP__CALLER, t);
        if (n->input[t] < 0)
            return gpp__build_memory(b);
    }
    n->inputs = b->tuple_count = count;
    return GPP_OK;
}

static gpp_status add_outputs(gpp__builder *b)
{
    gpp__network *n = b->net;
    gpp_status status = GPP_OK;
    for (int t = 0; !status && b->model->count && t < b->tuple_count; t++)
        status = gpp__build_convert(b, &gpp__op_channels_first, &b->tuple[t]);
    for (int t = 0; !status && t < b->tuple_count; t++) {
        n->output[t] = b->tuple[t];
        n->value[b->tuple[t]].consumer = GPP__CALLER;
        n->value[b->tuple[t]].consumer_slot = t;
    }
    n->outputs = b->tuple_count;
    n->first[b->model->count] = b->model->count ? n->nodes : 0;
    return status;
}

static gpp_status build(gpp__builder *b, const gpp_shape in[], int count)
{
    gpp_model *model = b->model;
    b->net->units = model->count;
    b->net->first = calloc((size_t)model->count + 1, sizeof *b->net->first);
    b->node_of = calloc((size_t)model->count + 1, sizeof *b->node_of);
    b->stashed = calloc((size_t)b->decls + 1, sizeof *b->stashed);
    if (!b->net->first || !b->node_of || !b->stashed)
        return gpp__build_memory(b);
    gpp_status status = add_inputs(b, in, count);
    for (int u = 0; !status && u < model->count; u++)
        status = build_unit(b, u);
    if (!status && model->count == 0)
        status = build_pass(b);
    if (!status)
        status = add_outputs(b);
    return status ? status : check_labels(b);
}

gpp_status gpp__model_compile(gpp_model *model, const gpp_shape in[], int count,
                              gpp__network *network, gpp_error *err)
{
    gpp__builder b = {.model = model, .net = network, .err = err};
    int faults;
    memset(network, 0, sizeof *network);
    gpp_status status = gpp__check_inputs(in, count, &b.batches, err);
    if (!status)
        status = gpp_verify_skips(model, NULL, err);
    if (!status)
        status = gpp__skips_match(model, &b.decl, &b.decls, &faults, err);
    if (!status)
        status = build(&b, in, count);
    if (status)
        gpp__network_release(network);
    free(b.node_of);
    free(b.decl);
    free(b.stashed);
    free(b.source);
    free(b.value_of);
    return status;
}

gpp_status gpp_model_set_inputs(gpp_model *model, const gpp_shape in[], int count, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "input: no model");
    if (model->has_input)
        return gpp__fail(err, GPP_ESTATE, "input: the input shape is set already");
    if (model->open)
        return gpp__fail_layer(err, GPP_ESTATE, model->count,
                               "input: layer %d, a composite one, is begun and not ended yet",
                               model->count);
    gpp_status status = gpp__model_compile(model, in, count, &model->network, err);
    model->has_input = status == GPP_OK;
    return status;
}

gpp_status gpp_model_set_input(gpp_model *model, gpp_dtype dtype, int rank, const int64_t dim[],
                               gpp_error *err)
{
    gpp_shape in = {.dtype = dtype, .rank = rank};
    if (rank > 0 && !dim)
        return gpp__fail(err, GPP_EINVAL, "input: no dimensions given");
    if (rank > 0 && rank < GPP_MAX_RANK)
        memcpy(in.dim, dim, (size_t)rank * sizeof *dim);
    return gpp_model_set_inputs(model, &in, 1, err);
}
