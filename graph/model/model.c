/*
 * graph/model/model.c: layers in order, their operators and labels.
 *
 * Invariant: a call that fails leaves the model as it was. A layer is complete before it is
 * counted. An open composite layer stands behind the last one, at unit[count], and is not counted.
 *
 * Labels are found through an open-addressing hash table, so that a model of n layers is built in
 * O(n). Removing from such a table is easy here: layers go away only from the end
 * (gpp__model_truncate), so a removed label was the last one entered, and no search for another
 * label passes through its slot.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "codelets/user/user.h"
#include "graph/model/model.h"

/* --- labels ----------------------------------------------------------------------------------- */

/* FNV-1a. */
static size_t hash(const char *label)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *label; label++)
        h = (h ^ (unsigned char)*label) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

/* The slot that holds `label`, or the empty one where it belongs. The table is never full. */
static int *find_slot(const gpp_model *model, const char *label)
{
    size_t at = hash(label) & (model->slots - 1);
    while (model->slot[at] >= 0 && strcmp(model->unit[model->slot[at]].label, label) != 0)
        at = (at + 1) & (model->slots - 1);
    return &model->slot[at];
}

int gpp_model_find(const gpp_model *model, const char *label)
{
    return model && label && model->slots ? *find_slot(model, label) : -1;
}

/* The table has room for all labels, so this cannot fail for want of memory. */
int gpp__model_enter_all(gpp_model *model)
{
    memset(model->slot, 0xff, model->slots * sizeof *model->slot);
    for (int index = 0; index < model->count; index++) {
        int *slot = find_slot(model, model->unit[index].label);
        if (*slot >= 0)
            return *slot;
        *slot = index;
    }
    return -1;
}

gpp_status gpp__unit_label(const gpp_model *model, gpp__unit *unit, const char *label,
                           gpp_error *err)
{
    const char *kind = gpp__unit_kind(model, unit);
    int index = model->count;
    if (label && !gpp__is_word(label, sizeof unit->label - 1))
        return gpp__fail_layer(err, GPP_EINVAL, index,
                               "%s (layer %d): label \"%.70s\" is not 1 ... 63 letters, digits, "
                               "'_', '-' and '.'",
                               kind, index, label);
    snprintf(unit->label, sizeof unit->label, "%d", index);
    if (label)
        strcpy(unit->label, label);
    unit->labelled = label;
    int other = gpp_model_find(model, unit->label);
    if (other < 0)
        return GPP_OK;
    return gpp__fail_layer(err, GPP_EINVAL, index,
                           "%s (layer %d): its %slabel \"%s\" is that of layer %d (%s) already",
                           kind, index, label ? "" : "default ", unit->label, other,
                           gpp__unit_kind(model, &model->unit[other]));
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
    gpp__network_release(&model->network);
    for (int k = 0; k < model->users; k++)
        gpp__user_op_drop(model->user[k]);
    free(model->user);
    free(model->unit);
    free(model->part);
    free(model->slot);
    free(model);
}

void gpp__part_release(gpp__part *part)
{
    free(part->attr);
    free(part->skip);
    free(part->ref);
    free(part->path);
}

static void drop_parts(gpp_model *model, int count)
{
    while (model->parts > count)
        gpp__part_release(&model->part[--model->parts]);
}

void gpp__model_truncate(gpp_model *model, int count)
{
    if (model->open)
        drop_parts(model, model->unit[model->count].first);
    model->open = model->chosen = false;
    while (model->count > count) {
        gpp__unit *last = &model->unit[model->count - 1];
        *find_slot(model, last->label) = -1;
        drop_parts(model, last->first);
        free(last->device);
        model->count--;
    }
}

gpp__mark gpp__model_mark(const gpp_model *model)
{
    int items = model->open ? model->unit[model->count].items : 0;
    return (gpp__mark){model->count, model->parts, items, model->open, model->chosen};
}

/* Inside an open composite layer, only operators that were added since the mark go. Else all
 * layers that were added since, and a layer that was opened. */
void gpp__model_rollback(gpp_model *model, const gpp__mark *mark)
{
    if (mark->open) {
        drop_parts(model, mark->parts);
        model->unit[mark->count].items = mark->items;
        model->unit[mark->count].count = mark->parts - model->unit[mark->count].first;
        model->chosen = mark->chosen;
    } else {
        gpp__model_truncate(model, mark->count);
    }
}

/* The table stays at most half full, so searches are short and always meet an empty slot. */
gpp_status gpp__model_reserve_labels(gpp_model *model, int count, gpp_error *err)
{
    size_t slots = model->slots ? model->slots : 64;
    while (slots < 2 * ((size_t)count + 1))
        slots *= 2;
    if (slots == model->slots)
        return GPP_OK;
    int *slot = malloc(slots * sizeof *slot);
    if (!slot)
        return gpp__fail(err, GPP_ENOMEM, "labels of a model, %zu of them", slots / 2);
    free(model->slot);
    model->slot = slot;
    model->slots = slots;
    gpp__model_enter_all(model);
    return GPP_OK;
}

gpp_status gpp__model_reserve_unit(gpp_model *model, gpp_error *err)
{
    if (model->count == GPP__MAX_LAYERS)
        return gpp__fail(err, GPP_EINVAL, "a model has at most %d layers", GPP__MAX_LAYERS);
    if (model->count == model->unit_room) {
        int room = model->unit_room ? 2 * model->unit_room : 16;
        gpp__unit *unit = realloc(model->unit, (size_t)room * sizeof *unit);
        if (!unit)
            return gpp__fail(err, GPP_ENOMEM, "a model of more than %d layers", model->count);
        model->unit = unit;
        model->unit_room = room;
    }
    return gpp__model_reserve_labels(model, model->count + 1, err);
}

gpp_status gpp__model_reserve_parts(gpp_model *model, int more, gpp_error *err)
{
    if (model->parts > GPP__MAX_LAYERS - more)
        return gpp__fail(err, GPP_EINVAL, "a model has at most %d operators", GPP__MAX_LAYERS);
    int room = model->part_room ? model->part_room : 16;
    while (room < model->parts + more)
        room *= 2;
    if (room == model->part_room)
        return GPP_OK;
    gpp__part *part = realloc(model->part, (size_t)room * sizeof *part);
    if (!part)
        return gpp__fail(err, GPP_ENOMEM, "a model of more than %d operators", model->parts);
    model->part = part;
    model->part_room = room;
    return GPP_OK;
}

void gpp__model_count_unit(gpp_model *model)
{
    *find_slot(model, model->unit[model->count].label) = model->count;
    model->count++;
}

/* --- operators -------------------------------------------------------------------------------- */

/* Namespaces that begin with '.' are reserved for gpp_model_namespace, so that they cannot clash
 * with the caller's. */
gpp_status gpp__namespace_check(const gpp_model *model, const char *who, const char *ns,
                                gpp_error *err)
{
    char given_out[GPP__NAME];
    if (*ns && !gpp__is_word(ns, GPP__NAME - 1))
        return gpp__fail(
            err, GPP_EINVAL,
            "%s: namespace \"%.70s\" is not 1 ... %d letters, digits, '_', '-' and '.'", who, ns,
            GPP__NAME - 1);
    int k = strncmp(ns, ".ns", 3) == 0 ? atoi(ns + 3) : -1;
    snprintf(given_out, sizeof given_out, ".ns%d", k);
    bool ours = k >= 0 && k < model->namespaces && strcmp(ns, given_out) == 0;
    if (*ns != '.' || ours)
        return GPP_OK;
    return gpp__fail(err, GPP_EINVAL,
                     "%s: namespace \"%s\" begins with '.' and is not one of this model's "
                     "(gpp_model_namespace)",
                     who, ns);
}

/* Asks the operator for its stashes and pops. Their names are attributes, so they are known
 * without shapes. */
static gpp_status make_skips(const gpp_model *model, gpp__part *part, gpp_error *err)
{
    gpp__layer layer = {.op = part->op, .index = model->count, .attr = part->attr};
    if (!part->op->skips)
        return GPP_OK;
    part->op->skips(&layer);
    if (layer.skips == 0)
        return GPP_OK;
    part->skip = calloc((size_t)layer.skips, sizeof *part->skip);
    if (!part->skip)
        return gpp__fail(err, GPP_ENOMEM, "skips of a layer");
    part->skips = layer.skips;
    memcpy(part->skip, layer.skip, (size_t)layer.skips * sizeof *part->skip);
    gpp_status status = GPP_OK;
    for (int k = 0; !status && k < part->skips; k++)
        status = gpp__namespace_check(model, part->op->name, part->skip[k].ns, err);
    return status;
}

/* Messages about attributes and skips do not name the layer, so they go to a record of their own
 * and are then reported with the layer. */
gpp_status gpp__part_make(const gpp_model *model, const gpp_op *op, const char *label,
                          const gpp_attr attrs[], size_t count, gpp__part *part, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    *part = (gpp__part){.op = op, .labelled = label};
    if (label && !gpp__is_word(label, sizeof part->label - 1))
        return gpp__fail_layer(err, GPP_EINVAL, model->count,
                               "%s (layer %d): label \"%.70s\" is not 1 ... 63 letters, digits, "
                               "'_', '-' and '.'",
                               op->name, model->count, label);
    if (label)
        strcpy(part->label, label);
    part->attr = calloc(1, op->attr_size + 1);
    if (!part->attr)
        return gpp__fail(err, GPP_ENOMEM, "attributes of a layer");
    gpp_status status = gpp__attr_set(op->name, op->keys, part->attr, attrs, count, &inner);
    if (!status)
        status = make_skips(model, part, &inner);
    if (status) {
        gpp__part_release(part);
        *part = (gpp__part){.op = op};
        gpp__fail_layer(err, status, model->count, "%s", inner.msg);
    }
    return status;
}

gpp_status gpp__model_append_part(gpp_model *model, gpp__part *part, const gpp_ref refs[],
                                  int count, gpp_error *err)
{
    gpp_status status = gpp__model_reserve_parts(model, 1, err);
    if (status)
        return status;
    part->ref = malloc((size_t)(count ? count : 1) * sizeof *part->ref);
    if (!part->ref)
        return gpp__fail(err, GPP_ENOMEM, "inputs of an operator");
    if (count)
        memcpy(part->ref, refs, (size_t)count * sizeof *refs);
    part->refs = count;
    model->part[model->parts++] = *part;
    model->unit[model->count].count++;
    return GPP_OK;
}

/* A plain layer is a unit with one operator, which takes all tensors that come in. */
static gpp_status add_layer(gpp_model *model, gpp__part *part, const char *label, gpp_error *err)
{
    static const gpp_ref input = {GPP_REF_INPUT, GPP__ALL};
    gpp__unit *unit = &model->unit[model->count];
    *unit = (gpp__unit){.first = model->parts, .shares = -1, .outs = 1, .out = {{0, GPP__ALL}}};
    gpp_status status = gpp__model_append_part(model, part, &input, 1, err);
    if (status)
        return status;
    status = gpp__unit_label(model, unit, label, err);
    if (status) {
        model->parts--;
        return status;
    }
    strcpy(model->part[unit->first].label, unit->label);
    gpp__model_count_unit(model);
    return GPP_OK;
}

static gpp_status add_operator(gpp_model *model, gpp__part *part, gpp_error *err)
{
    gpp_ref refs[GPP__MAX_TENSORS];
    int count = gpp__model_next_refs(model, refs);
    part->place = model->unit[model->count].items;
    gpp_status status = gpp__model_append_part(model, part, refs, count, err);
    if (status)
        return status;
    model->unit[model->count].items++;
    model->chosen = false;
    return GPP_OK;
}

gpp_status gpp__model_add_op(gpp_model *model, const gpp_op *op, const char *label,
                             const gpp_attr attrs[], size_t count, gpp_error *err)
{
    gpp__part part;
    gpp_status status = gpp__model_closed(model, op->name, err);
    if (!status && !model->open)
        status = gpp__model_reserve_unit(model, err);
    if (!status)
        status = gpp__part_make(model, op, label, attrs, count, &part, err);
    if (status)
        return status;
    status = model->open ? add_operator(model, &part, err) : add_layer(model, &part, label, err);
    if (status)
        gpp__part_release(&part);
    return status;
}

/* --- operators by name ------------------------------------------------------------------------ */

/* Registered operators come before the built-in ones. */
static const gpp_op *nth_op(const gpp_model *model, int k)
{
    return k < model->users ? gpp__user_op_op(model->user[k]) : gpp__ops[k - model->users];
}

/* Lists all operators, and suggests one whose name is similar. */
static gpp_status fail_no_op(const gpp_model *model, const char *name, gpp_error *err)
{
    char known[800] = "";
    const char *alike = NULL;
    const gpp_op *op;
    for (int k = 0; (op = nth_op(model, k)); k++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", k ? ", " : "", op->name);
        if (!alike && gpp__alike(name, op->name))
            alike = op->name;
    }
    if (alike)
        return gpp__fail_layer(err, GPP_ENOENT, model->count,
                               "no operator \"%.63s\"; did you mean \"%s\"? There are %s", name,
                               alike, known);
    return gpp__fail_layer(err, GPP_ENOENT, model->count, "no operator \"%.63s\"; there are %s",
                           name, known);
}

const gpp_op *gpp__model_op(const gpp_model *model, const char *name, gpp_error *err)
{
    const gpp_op *op;
    for (int k = 0; (op = nth_op(model, k)); k++)
        if (strcmp(op->name, name) == 0)
            return op;
    fail_no_op(model, name, err);
    return NULL;
}

gpp_status gpp_model_add(gpp_model *model, const char *name, const char *label,
                         const gpp_attr attrs[], size_t count, gpp_error *err)
{
    if (!model || !name)
        return gpp__fail(err, GPP_EINVAL, "adding a layer takes a model and an operator's name");
    if (!strcmp(name, "chain"))
        return gpp__fail_layer(err, GPP_ENOENT, model->count,
                               "chain is no operator: a layer of several is begun with "
                               "gpp_model_begin and ended with gpp_model_end, or written as text");
    const gpp_op *op = gpp__model_op(model, name, err);
    return op ? gpp__model_add_op(model, op, label, attrs, count, err) : GPP_ENOENT;
}

gpp_status gpp_model_register(gpp_model *model, const gpp_operator *def, gpp_error *err)
{
    if (!model || !def)
        return gpp__fail(err, GPP_EINVAL, "registering takes a model and an operator");
    gpp_status status = gpp__model_closed(model, "registering an operator", err);
    gpp__user_op *op = NULL;
    if (!status)
        status = gpp__user_op_new(&op, def, err);
    if (status)
        return status;
    gpp__user_op **user = realloc(model->user, ((size_t)model->users + 1) * sizeof *user);
    if (user)
        model->user = user;
    const char *name = gpp__user_op_op(op)->name;
    if (!user)
        status = gpp__fail(err, GPP_ENOMEM, "a registered operator");
    else if (strcmp(name, "chain") == 0 || gpp__model_op(model, name, NULL))
        status = gpp__fail(err, GPP_EINVAL, "operator \"%s\": there is one of this name", name);
    if (status)
        gpp__user_op_drop(op);
    else
        model->user[model->users++] = op;
    return status;
}
