/*
 * graph/model/compose.c: composite layers (begin, from, end), and models made of models (append,
 * copies).
 *
 * An operator in a composite layer has a list of references to outputs of operators before it. So
 * operators stand in an order in which they can run. "All outputs of an operator" is one reference:
 * how many they are is known only once shapes are.
 *
 * Invariant: a call that fails leaves the model as it was. The exception is gpp_model_end: when it
 * fails, it drops the layer that was begun.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "codelets/user/user.h"
#include "graph/model/model.h"

/* --- composite layers ------------------------------------------------------------------------- */

gpp_status gpp__model_open(gpp_model *model, gpp_error *err)
{
    gpp_status status = gpp__model_closed(model, "a composite layer", err);
    if (!status && model->open)
        return gpp__fail_layer(err, GPP_ESTATE, model->count,
                               "layer %d, a composite one, is begun and not ended yet",
                               model->count);
    if (!status)
        status = gpp__model_reserve_unit(model, err);
    if (status)
        return status;
    model->unit[model->count] = (gpp__unit){.composite = true, .first = model->parts, .shares = -1};
    model->open = true;
    model->chosen = false;
    return GPP_OK;
}

gpp_status gpp_model_begin(gpp_model *model, const char *label, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "beginning a layer takes a model");
    gpp_status status = gpp__model_open(model, err);
    if (status)
        return status;
    status = gpp__unit_label(model, &model->unit[model->count], label, err);
    if (status)
        model->open = false;
    return status;
}

/* Whether the operator has that many outputs is known only once shapes are. */
static gpp_status check_ref(const gpp_model *model, const gpp_ref *ref, gpp_error *err)
{
    int operators = model->unit[model->count].count;
    if (ref->op < GPP_REF_INPUT || ref->op >= operators)
        return gpp__fail_layer(err, GPP_EINVAL, model->count,
                               "composite layer %d: no operator %d, it has %d so far", model->count,
                               ref->op, operators);
    if (ref->tensor < 0 || ref->tensor >= GPP__MAX_TENSORS)
        return gpp__fail_layer(
            err, GPP_EINVAL, model->count,
            "composite layer %d: tensor %d of operator %d, possible are 0 ... %d", model->count,
            ref->tensor, ref->op, GPP__MAX_TENSORS - 1);
    return GPP_OK;
}

static gpp_status check_refs(const gpp_model *model, const gpp_ref refs[], int count, int least,
                             gpp_error *err)
{
    if (count < least || count > GPP__MAX_TENSORS || (count && !refs))
        return gpp__fail_layer(err, GPP_EINVAL, model->count,
                               "composite layer %d: %d references, expected a list of %d ... %d",
                               model->count, count, least, GPP__MAX_TENSORS);
    gpp_status status = GPP_OK;
    for (int k = 0; !status && k < count; k++)
        status = check_ref(model, &refs[k], err);
    return status;
}

gpp_status gpp_model_from(gpp_model *model, const gpp_ref refs[], int count, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "inputs of an operator: no model");
    if (!model->open)
        return gpp__fail(err, GPP_ESTATE,
                         "inputs are chosen inside composite layers, and none was begun");
    if (model->chosen)
        return gpp__fail_layer(err, GPP_ESTATE, model->count,
                               "composite layer %d: the next operator's inputs are chosen already",
                               model->count);
    gpp_status status = check_refs(model, refs, count, 0, err);
    if (status)
        return status;
    if (count)
        memcpy(model->ref, refs, (size_t)count * sizeof *refs);
    model->refs = count;
    model->chosen = true;
    return GPP_OK;
}

int gpp__model_next_refs(const gpp_model *model, gpp_ref refs[GPP__MAX_TENSORS])
{
    if (!model->chosen) {
        refs[0] = (gpp_ref){model->unit[model->count].count - 1, GPP__ALL};
        return 1;
    }
    memcpy(refs, model->ref, (size_t)model->refs * sizeof *refs);
    return model->refs;
}

/* Operators without a label of their own get "<label of the layer>.<k>". */
static gpp_status label_operators(gpp_model *model, gpp__unit *unit, gpp_error *err)
{
    for (int k = 0; k < unit->count; k++) {
        gpp__part *part = &model->part[unit->first + k];
        char label[sizeof part->label + 16];
        if (part->labelled)
            continue;
        size_t length = (size_t)snprintf(label, sizeof label, "%s.%d", unit->label, k);
        if (length >= sizeof part->label)
            return gpp__fail_layer(err, GPP_EINVAL, model->count,
                                   "%s (layer %d, \"%s\"): the default label of its operator %d "
                                   "has more than 63 characters; give it one",
                                   gpp__unit_kind(model, unit), model->count, unit->label, k);
        memcpy(part->label, label, length + 1);
    }
    return GPP_OK;
}

/* Completes the open unit, which has its label already. */
static gpp_status close_unit(gpp_model *model, const gpp_ref outs[], int count, gpp_error *err)
{
    gpp__unit *unit = &model->unit[model->count];
    gpp_status status = GPP_OK;
    if (unit->count == 0)
        return gpp__fail_layer(err, GPP_EINVAL, model->count,
                               "composite layer %d, \"%s\", is empty", model->count, unit->label);
    if (model->chosen)
        return gpp__fail_layer(err, GPP_EINVAL, model->count,
                               "composite layer %d, \"%s\": inputs are chosen, and no operator "
                               "follows that takes them",
                               model->count, unit->label);
    unit->outs = outs ? count : 1;
    unit->out[0] = (gpp_ref){unit->count - 1, GPP__ALL};
    if (outs)
        status = check_refs(model, outs, count, 1, err);
    if (outs && !status)
        memcpy(unit->out, outs, (size_t)count * sizeof *outs);
    return status ? status : label_operators(model, unit, err);
}

gpp_status gpp_model_end(gpp_model *model, const gpp_ref refs[], int count, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "ending a layer takes a model");
    if (!model->open)
        return gpp__fail(err, GPP_ESTATE, "there is no composite layer to end: none was begun");
    gpp_status status = close_unit(model, refs, count, err);
    if (status) {
        gpp__model_truncate(model, model->count);
        return status;
    }
    model->open = false;
    gpp__model_count_unit(model);
    return GPP_OK;
}

gpp_status gpp__model_close(gpp_model *model, const char *label, const gpp_ref outs[], int count,
                            gpp_error *err)
{
    gpp_status status = gpp__unit_label(model, &model->unit[model->count], label, err);
    if (!status)
        return gpp_model_end(model, outs, count, err);
    gpp__model_truncate(model, model->count);
    return status;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* A copy of `bytes` bytes at `from`. NULL when `from` is, and when there is no memory (*failed). */
static void *duplicate(const void *from, size_t bytes, bool *failed)
{
    if (!from)
        return NULL;
    void *copy = malloc(bytes ? bytes : 1);
    if (copy)
        memcpy(copy, from, bytes);
    else
        *failed = true;
    return copy;
}

static bool copy_part(gpp__part *to, const gpp__part *from)
{
    bool failed = false;
    *to = *from;
    to->attr = duplicate(from->attr, from->op->attr_size, &failed);
    to->skip = duplicate(from->skip, (size_t)from->skips * sizeof *from->skip, &failed);
    to->ref = duplicate(from->ref, (size_t)from->refs * sizeof *from->ref, &failed);
    to->path = duplicate(from->path, from->path ? strlen(from->path) + 1 : 0, &failed);
    if (failed)
        gpp__part_release(to);
    return !failed;
}

/* Copies unit `index` of `other` to unit[count], without counting it. The caller has made room. */
static bool copy_unit(gpp_model *model, const gpp_model *other, int index)
{
    gpp__unit *unit = &model->unit[model->count];
    bool failed = false;
    *unit = other->unit[index];
    int from = unit->first;
    unit->first = model->parts;
    for (int k = 0; k < unit->count; k++, model->parts++)
        if (!copy_part(&model->part[model->parts], &other->part[from + k]))
            goto drop;
    unit->device = duplicate(unit->device, unit->device ? strlen(unit->device) + 1 : 0, &failed);
    if (!failed)
        return true;
drop:
    while (model->parts > unit->first)
        gpp__part_release(&model->part[--model->parts]);
    return false;
}

/* Registered operators of `other` become known to `model`. Where two have the same name, new layers
 * get the first; layers that exist keep the operator that they have. */
static bool share_users(gpp_model *model, const gpp_model *other)
{
    for (int k = 0; k < other->users; k++) {
        int at = 0;
        while (at < model->users && model->user[at] != other->user[k])
            at++;
        if (at < model->users)
            continue;
        gpp__user_op **user = realloc(model->user, ((size_t)at + 1) * sizeof *user);
        if (!user)
            return false;
        model->user = user;
        user[model->users++] = gpp__user_op_hold(other->user[k]);
    }
    return true;
}

static gpp_status copy_all(gpp_model *c, const gpp_model *model)
{
    gpp_status status = gpp__model_reserve_parts(c, model->parts, NULL);
    for (int index = 0; !status && index < model->count; index++) {
        status = gpp__model_reserve_unit(c, NULL);
        if (!status && !copy_unit(c, model, index))
            status = GPP_ENOMEM;
        if (!status)
            gpp__model_count_unit(c);
    }
    return status || share_users(c, model) ? status : GPP_ENOMEM;
}

gpp_status gpp__model_clone(const gpp_model *model, gpp_model **copy, gpp_error *err)
{
    gpp_shape in[GPP__MAX_TENSORS];
    gpp_status status = gpp_model_new(copy, err);
    if (status)
        return status;
    gpp_model *c = *copy;
    c->namespaces = model->namespaces;
    status = copy_all(c, model);
    if (!status && model->has_input)
        status = gpp__model_compile(c, in, gpp_model_inputs(model, in), &c->network, err);
    c->has_input = !status && model->has_input;
    if (!status)
        return GPP_OK;
    gpp_model_free(c);
    *copy = NULL;
    return gpp__fail(err, status, "a copy of a model of %d layers", model->count);
}

/* --- append ----------------------------------------------------------------------------------- */

/* Puts "<prefix>_" in front of a label. */
static gpp_status prefixed(char label[64], const char *prefix, int index, gpp_error *err)
{
    char joined[200];
    int length = snprintf(joined, sizeof joined, "%s_%s", prefix, label);
    if (length > 63)
        return gpp__fail_layer(err, GPP_EINVAL, index,
                               "label \"%.70s_%.70s\" has %d characters, at most 63 are allowed",
                               prefix, label, length);
    memcpy(label, joined, (size_t)length + 1);
    return GPP_OK;
}

/* Namespaces that gpp_model_namespace gave out get new numbers, so that a block can be appended
 * repeatedly and each copy has its own. */
static void renew_namespaces(gpp__part *part, int base)
{
    for (int k = 0; k < part->skips; k++) {
        char *ns = part->skip[k].ns;
        if (ns[0] == '.')
            snprintf(ns, GPP__NAME, ".ns%d", atoi(ns + 3) + base);
    }
}

/* The unit at unit[count] is a copy from another model: fits its label, skips and sharing to this
 * one. */
static gpp_status adapt_unit(gpp_model *model, const char *prefix, int base, int namespaces,
                             gpp_error *err)
{
    gpp__unit *unit = &model->unit[model->count];
    char label[sizeof unit->label];
    gpp_status status = GPP_OK;
    memcpy(label, unit->label, sizeof label);
    if (prefix)
        status = prefixed(label, prefix, model->count, err);
    if (!status)
        status = gpp__unit_label(model, unit, prefix || unit->labelled ? label : NULL, err);
    for (int k = 0; !status && k < unit->count; k++) {
        gpp__part *part = &model->part[unit->first + k];
        renew_namespaces(part, namespaces);
        if (prefix && part->labelled && unit->composite)
            status = prefixed(part->label, prefix, model->count, err);
        if (!unit->composite)
            memcpy(part->label, unit->label, sizeof part->label);
    }
    if (!status && unit->composite)
        status = label_operators(model, unit, err);
    if (unit->shares >= 0)
        unit->shares += base;
    return status;
}

static gpp_status append_unit(gpp_model *model, const gpp_model *other, int index,
                              const char *prefix, int base, int namespaces, gpp_error *err)
{
    gpp_status status = gpp__model_reserve_unit(model, err);
    if (!status)
        status = gpp__model_reserve_parts(model, other->unit[index].count, err);
    if (status)
        return status;
    if (!copy_unit(model, other, index))
        return gpp__fail(err, GPP_ENOMEM, "a layer to append");
    status = adapt_unit(model, prefix, base, namespaces, err);
    if (!status) {
        gpp__model_count_unit(model);
        return GPP_OK;
    }
    gpp__unit *unit = &model->unit[model->count];
    while (model->parts > unit->first)
        gpp__part_release(&model->part[--model->parts]);
    free(unit->device);
    return status;
}

static gpp_status check_append(const gpp_model *model, const gpp_model *other, const char *prefix,
                               gpp_error *err)
{
    if (!model || !other)
        return gpp__fail(err, GPP_EINVAL, "appending takes two models");
    if (prefix && !gpp__is_word(prefix, 62))
        return gpp__fail(err, GPP_EINVAL,
                         "prefix \"%.70s\" is not 1 ... 62 letters, digits, '_', '-' and '.'",
                         prefix);
    if (model->open || other->open)
        return gpp__fail(err, GPP_ESTATE,
                         "appending: a composite layer is begun and not ended yet");
    return gpp__model_closed(model, "appending a model", err);
}

gpp_status gpp_model_append(gpp_model *model, const gpp_model *other, const char *prefix,
                            gpp_error *err)
{
    gpp_status status = check_append(model, other, prefix, err);
    if (status)
        return status;
    int base = model->count, count = other->count;
    int namespaces = model->namespaces, more = other->namespaces, users = model->users;
    if (!share_users(model, other))
        status = gpp__fail(err, GPP_ENOMEM, "operators of a model to append");
    for (int index = 0; !status && index < count; index++)
        status = append_unit(model, other, index, prefix, base, namespaces, err);
    if (!status) {
        model->namespaces += more;
        return GPP_OK;
    }
    gpp__model_truncate(model, base);
    while (model->users > users)
        gpp__user_op_drop(model->user[--model->users]);
    return status;
}
