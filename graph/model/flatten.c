/*
 * graph/model/flatten.c: each composite layer that is a plain chain is replaced by the layers in
 * it.
 *
 * An operator in nested chains is named after the chains around it, joined by '_'. A chain or an
 * operator without a label goes by its position: "block_1_conv". The operators themselves stay
 * where they are; only their grouping changes. Invariant: a call that fails leaves the model as it
 * was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/model.h"

typedef struct flat {
    gpp__unit *unit; /* [count] */
    int count;
    int *moved; /* [layers before] index of the first new layer of each */
} flat;

static void flat_release(flat *f)
{
    for (int u = 0; u < f->count; u++)
        free(f->unit[u].device);
    free(f->unit);
    free(f->moved);
}

static gpp_status join(const gpp__unit *unit, const gpp__part *part, int index, char label[64],
                       gpp_error *err)
{
    char place[16];
    const char *own = part->labelled ? part->label : place;
    snprintf(place, sizeof place, "%d", part->place);
    int length = snprintf(label, 64, "%s_%s%s%s", unit->label, part->path ? part->path : "",
                          part->path ? "_" : "", own);
    if (length < 64)
        return GPP_OK;
    return gpp__fail_layer(err, GPP_EINVAL, index,
                           "flattening layer %d, \"%s\": the label of its operator %s (\"%s\") "
                           "would have %d characters, at most 63 are allowed",
                           index, unit->label, part->op->name, own, length);
}

/* Appends a copy of a unit, with a device's name of its own. */
static gpp_status put(flat *f, const gpp__unit *unit, gpp_error *err)
{
    gpp__unit *to = &f->unit[f->count];
    *to = *unit;
    if (unit->device) {
        to->device = strdup(unit->device);
        if (!to->device)
            return gpp__fail(err, GPP_ENOMEM, "device of a layer");
    }
    f->count++;
    return GPP_OK;
}

static gpp_status put_operators(flat *f, const gpp_model *model, int index, gpp_error *err)
{
    const gpp__unit *from = &model->unit[index];
    gpp_status status = GPP_OK;
    for (int k = 0; !status && k < from->count; k++) {
        const gpp__part *part = &model->part[from->first + k];
        gpp__unit unit = {.labelled = true,
                          .first = from->first + k,
                          .count = 1,
                          .outs = 1,
                          .out = {{0, GPP__ALL}},
                          .shares = from->shares,
                          .device = from->device};
        status = join(from, part, index, unit.label, err);
        if (!status)
            status = put(f, &unit, err);
    }
    return status;
}

/* Makes the new list of units; the model is not touched yet. */
static gpp_status build(flat *f, const gpp_model *model, gpp_error *err)
{
    size_t most = (size_t)model->parts + (size_t)model->count + 1;
    f->unit = malloc(most * sizeof *f->unit);
    f->moved = malloc(((size_t)model->count + 1) * sizeof *f->moved);
    if (!f->unit || !f->moved)
        return gpp__fail(err, GPP_ENOMEM, "layers of a flattened model");
    gpp_status status = GPP_OK;
    for (int u = 0; !status && u < model->count; u++) {
        f->moved[u] = f->count;
        status = gpp__unit_is_chain(model, &model->unit[u]) ? put_operators(f, model, u, err)
                                                            : put(f, &model->unit[u], err);
    }
    for (int u = 0; !status && u < f->count; u++)
        if (f->unit[u].shares >= 0)
            f->unit[u].shares = f->moved[f->unit[u].shares];
    return status;
}

static int by_label(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Two joined labels can become equal ("a_b" + "c", "a" + "b_c"). */
static gpp_status check_labels(const flat *f, gpp_error *err)
{
    const char **label = malloc(((size_t)f->count + 1) * sizeof *label);
    gpp_status status = GPP_OK;
    if (!label)
        return gpp__fail(err, GPP_ENOMEM, "labels of a flattened model");
    for (int u = 0; u < f->count; u++)
        label[u] = f->unit[u].label;
    qsort(label, (size_t)f->count, sizeof *label, by_label);
    for (int u = 1; !status && u < f->count; u++)
        if (strcmp(label[u - 1], label[u]) == 0)
            status = gpp__fail(err, GPP_EINVAL,
                               "flattening: two layers would have the label \"%s\"", label[u]);
    free(label);
    return status;
}

/* Makes the flat layers those of the model. Cannot fail: there is room for all labels. */
static void adopt(gpp_model *model, flat *f)
{
    for (int u = 0; u < f->count; u++) {
        const gpp__unit *unit = &f->unit[u];
        gpp__part *part = &model->part[unit->first];
        if (unit->composite)
            continue;
        memcpy(part->label, unit->label, sizeof part->label);
        free(part->path);
        part->path = NULL;
        part->place = 0;
        part->refs = 1;
        part->ref[0] = (gpp_ref){GPP_REF_INPUT, GPP__ALL};
    }
    flat old = {model->unit, model->count, f->moved};
    model->unit = f->unit;
    model->count = model->unit_room = f->count;
    gpp__model_enter_all(model);
    flat_release(&old);
}

gpp_status gpp_model_flatten(gpp_model *model, gpp_error *err)
{
    flat f = {NULL, 0, NULL};
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "flattening takes a model");
    gpp_status status = gpp__model_closed(model, "flattening", err);
    if (!status && model->open)
        status =
            gpp__fail(err, GPP_ESTATE, "flattening: a composite layer is begun and not ended yet");
    if (status || model->count == 0)
        return status;
    status = build(&f, model, err);
    if (!status)
        status = check_labels(&f, err);
    if (!status)
        status = gpp__model_reserve_labels(model, f.count, err);
    if (status) {
        flat_release(&f);
        return status;
    }
    adopt(model, &f);
    return GPP_OK;
}
