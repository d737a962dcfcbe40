/*
 * graph/model/skips.c: skips of a model: which stash belongs to which pop, and namespaces.
 *
 * The key of a skip is (namespace, name). Declarations are checked in order: layer by layer, in a
 * layer operator by operator, of an operator stashes before pops.
 *
 *   1. An operator that stashes and pops the same name is at fault, whatever the namespaces. The
 *      other rules do not look at that name of that operator.
 *   2. A stash whose key was stashed before is at fault.
 *   3. A pop whose key was popped before is at fault, and so is a pop of a key not stashed yet.
 *   4. A key that is stashed and never popped is at fault.
 *
 * So a key is used once in a model, even where a second use would begin after the first has ended.
 * These are torchgpipe's rules, extended to operators inside a layer. All violations are collected.
 * Sorting brings the declarations of one key together: O(d log d) for d declarations.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "graph/model/model.h"

enum { FINE, BOTH, STASHED_AGAIN, POPPED_AGAIN, NOT_STASHED };

/* --- matching --------------------------------------------------------------------------------- */

static int count_decls(const gpp_model *model)
{
    int count = 0;
    for (int u = 0; u < model->count; u++)
        for (int k = 0; k < model->unit[u].count; k++)
            count += model->part[model->unit[u].first + k].skips;
    return count;
}

/* Rule 1 looks at names only, whatever the namespaces. */
static bool declares(const gpp__part *part, const char *name, bool stash)
{
    for (int k = 0; k < part->skips; k++)
        if (part->skip[k].stash == stash && strcmp(part->skip[k].name, name) == 0)
            return true;
    return false;
}

/* Appends an operator's stashes, or its pops. Returns the new count. */
static int list_part(const gpp_model *model, int unit, int part, bool stash, gpp__decl decl[],
                     int count)
{
    const gpp__part *p = &model->part[part];
    for (int k = 0; k < p->skips; k++) {
        const gpp__skip *skip = &p->skip[k];
        if (skip->stash != stash)
            continue;
        decl[count] = (gpp__decl){.skip = skip,
                                  .unit = unit,
                                  .part = part,
                                  .order = count,
                                  .partner = -1,
                                  .both = declares(p, skip->name, !stash)};
        count++;
    }
    return count;
}

static void list(const gpp_model *model, gpp__decl decl[])
{
    int count = 0;
    for (int u = 0; u < model->count; u++)
        for (int k = 0; k < model->unit[u].count; k++) {
            int part = model->unit[u].first + k;
            count = list_part(model, u, part, true, decl, count);
            count = list_part(model, u, part, false, decl, count);
        }
}

static int by_key(const gpp__decl *a, const gpp__decl *b)
{
    int order = strcmp(a->skip->ns, b->skip->ns);
    return order ? order : strcmp(a->skip->name, b->skip->name);
}

static int by_key_and_order(const void *a, const void *b)
{
    const gpp__decl *x = *(gpp__decl *const *)a, *y = *(gpp__decl *const *)b;
    int order = by_key(x, y);
    return order ? order : x->order - y->order;
}

/* Matches the declarations of one key, which are in order. Returns the number of violations. */
static int match_key(gpp__decl *const decl[], int count)
{
    gpp__decl *stash = NULL;
    bool popped = false;
    int faults = 0;
    for (int k = 0; k < count; k++) {
        gpp__decl *d = decl[k];
        if (d->both)
            d->fault = d->skip->stash ? BOTH : FINE; /* the report names the pair once */
        else if (d->skip->stash)
            d->fault = stash ? STASHED_AGAIN : FINE;
        else
            d->fault = popped ? POPPED_AGAIN : stash ? FINE : NOT_STASHED;
        faults += d->fault != FINE;
        if (d->both || d->fault != FINE)
            continue;
        if (d->skip->stash) {
            stash = d;
        } else {
            popped = true;
            d->partner = stash->order;
        }
    }
    if (stash && !popped)
        stash->unpopped = true;
    return faults + (stash && !popped);
}

static int match(gpp__decl *sorted[], int count)
{
    int faults = 0;
    qsort(sorted, (size_t)count, sizeof *sorted, by_key_and_order);
    for (int k = 0; k < count;) {
        int end = k + 1;
        while (end < count && by_key(sorted[k], sorted[end]) == 0)
            end++;
        faults += match_key(sorted + k, end - k);
        k = end;
    }
    return faults;
}

gpp_status gpp__skips_match(const gpp_model *model, gpp__decl **decls, int *count, int *faults,
                            gpp_error *err)
{
    *count = count_decls(model);
    *faults = 0;
    gpp__decl *decl = *decls = calloc((size_t)*count + 1, sizeof *decl);
    gpp__decl **sorted = calloc((size_t)*count + 1, sizeof *sorted);
    if (!decl || !sorted) {
        free(decl);
        free(sorted);
        *decls = NULL;
        return gpp__fail(err, GPP_ENOMEM, "skips of a model, %d of them", *count);
    }
    list(model, decl);
    for (int k = 0; k < *count; k++)
        sorted[k] = &decl[k];
    *faults = match(sorted, *count);
    free(sorted);
    return GPP_OK;
}

/* --- the report ------------------------------------------------------------------------------- */

static const char header[] = "stashes and pops do not match:";
enum { LONGEST_LINE = 256 };

/* The name in quotes, with the namespace unless that is the default one. */
static const char *key_text(const gpp__skip *skip, char out[96])
{
    const char *ns = skip->ns;
    snprintf(out, 96, "\"%s\"%s%s%s", skip->name, *ns ? " (namespace \"" : "", ns,
             *ns ? "\")" : "");
    return out;
}

static void fault_text(const gpp_model *model, const gpp__decl *d, char out[LONGEST_LINE])
{
    static const char *const format[] = {
        [BOTH] = "\n* \"%s\" declared %s both as stashable and as poppable",
        [STASHED_AGAIN] = "\n* \"%s\" redeclared %s as stashable but not isolated by namespace",
        [POPPED_AGAIN] = "\n* \"%s\" redeclared %s as poppable but not isolated by namespace",
        [NOT_STASHED] = "\n* \"%s\" declared %s as poppable but it was not stashed",
    };
    char key[96];
    const char *label = model->unit[d->unit].label;
    key_text(d->skip, key);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(out, LONGEST_LINE, format[d->fault], label, key);
#pragma GCC diagnostic pop
}

static void unpopped_text(const gpp_model *model, const gpp__decl *d, char out[LONGEST_LINE])
{
    char key[96];
    snprintf(out, LONGEST_LINE, "\n* no layer declared %s as poppable but \"%s\" stashed it",
             key_text(d->skip, key), model->unit[d->unit].label);
}

typedef struct report {
    char *text;
    size_t used, room;
    size_t line; /* lines so far, without the header */
    size_t most; /* lines in all, without the header */
    gpp_error *err;
    bool full; /* no further line fits into err's text */
} report;

/* Adds the line to err's text. Only whole lines go there, and room stays to say how many did not
 * fit. */
static void add_to_error(report *r, const char *line)
{
    enum { TAIL = 40 };
    if (!r->err || r->full)
        return;
    size_t used = strlen(r->err->msg), length = strlen(line), left = r->most - r->line;
    if (used + length + (left > 1 ? TAIL : 1) <= sizeof r->err->msg) {
        memcpy(r->err->msg + used, line, length + 1);
        return;
    }
    r->full = true;
    snprintf(r->err->msg + used, sizeof r->err->msg - used, "\n... and %zu more", left);
}

static void add_line(report *r, const char *line)
{
    size_t length = strlen(line);
    add_to_error(r, line);
    memcpy(r->text + r->used, line, length + 1);
    r->used += length;
    r->line++;
}

static void add_faults(report *r, const gpp_model *model, const gpp__decl decl[], int count)
{
    char line[LONGEST_LINE];
    for (int k = 0; k < count; k++)
        if (decl[k].fault != FINE) {
            fault_text(model, &decl[k], line);
            add_line(r, line);
        }
    for (int k = 0; k < count; k++)
        if (decl[k].unpopped) {
            unpopped_text(model, &decl[k], line);
            add_line(r, line);
        }
}

static int first_at_fault(const gpp__decl decl[], int count)
{
    for (int k = 0; k < count; k++)
        if (decl[k].fault != FINE)
            return decl[k].unit;
    for (int k = 0; k < count; k++)
        if (decl[k].unpopped)
            return decl[k].unit;
    return -1;
}

/* The report has all violations. The error record has as many whole lines as fit, and names the
 * first layer at fault. */
static gpp_status write_report(const gpp_model *model, const gpp__decl decl[], int count,
                               int faults, char **out, gpp_error *err)
{
    report r = {.most = (size_t)faults, .err = err && err->code == GPP_OK ? err : NULL};
    r.room = sizeof header + (size_t)faults * LONGEST_LINE;
    r.text = malloc(r.room);
    if (!r.text)
        return gpp__fail(err, GPP_ENOMEM, "a report of %d skips that do not match", faults);
    memcpy(r.text, header, sizeof header);
    r.used = sizeof header - 1;
    gpp__fail_layer(err, GPP_EINVAL, first_at_fault(decl, count), "%s", header);
    add_faults(&r, model, decl, count);
    if (out)
        *out = r.text;
    else
        free(r.text);
    return GPP_EINVAL;
}

gpp_status gpp_verify_skips(const gpp_model *model, char **out, gpp_error *err)
{
    gpp__decl *decl;
    int count, faults;
    if (out)
        *out = NULL;
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "verifying skips takes a model");
    gpp_status status = gpp__skips_match(model, &decl, &count, &faults, err);
    if (!status && faults)
        status = write_report(model, decl, count, faults, out, err);
    free(decl);
    return status;
}

/* --- namespaces ------------------------------------------------------------------------------- */

gpp_status gpp_model_namespace(gpp_model *model, char ns[32], gpp_error *err)
{
    if (!model || !ns)
        return gpp__fail(err, GPP_EINVAL, "a namespace takes a model and a place for its name");
    snprintf(ns, GPP__NAME, ".ns%d", model->namespaces++);
    return GPP_OK;
}

static bool unit_declares(const gpp_model *model, const gpp__unit *unit, const char *name)
{
    for (int k = 0; k < unit->count; k++)
        for (int n = 0; n < model->part[unit->first + k].skips; n++)
            if (!name || strcmp(model->part[unit->first + k].skip[n].name, name) == 0)
                return true;
    return false;
}

static gpp_status check_isolate(const gpp_model *model, int index, const char *ns,
                                const char *const names[], int count, gpp_error *err)
{
    const gpp__unit *unit = &model->unit[index];
    const char *kind = gpp__unit_kind(model, unit);
    gpp_status status = gpp__namespace_check(model, kind, ns, err);
    if (status)
        return status;
    if (names && count < 0)
        return gpp__fail(err, GPP_EINVAL, "isolating layer %d: %d names", index, count);
    if (!names && !unit_declares(model, unit, NULL))
        return gpp__fail_layer(err, GPP_ENOENT, index,
                               "%s (layer %d, \"%s\") declares no skip to isolate", kind, index,
                               unit->label);
    for (int k = 0; names && k < count; k++) {
        if (!names[k])
            return gpp__fail(err, GPP_EINVAL, "isolating layer %d: name %d is NULL", index, k);
        if (!unit_declares(model, unit, names[k]))
            return gpp__fail_layer(err, GPP_ENOENT, index,
                                   "%s (layer %d, \"%s\") declares no skip \"%.40s\"", kind, index,
                                   unit->label, names[k]);
    }
    return GPP_OK;
}

static bool is_meant(const char *name, const char *const names[], int count)
{
    for (int k = 0; names && k < count; k++)
        if (strcmp(names[k], name) == 0)
            return true;
    return !names;
}

gpp_status gpp_model_isolate(gpp_model *model, int layer, const char *ns, const char *const names[],
                             int count, gpp_error *err)
{
    if (!model)
        return gpp__fail(err, GPP_EINVAL, "isolating skips takes a model");
    gpp_status status = gpp__model_closed(model, "isolating skips", err);
    if (status)
        return status;
    int index = gpp__model_index(model, layer, err);
    if (index < 0)
        return GPP_ENOENT;
    status = check_isolate(model, index, ns ? ns : "", names, count, err);
    if (status)
        return status;
    const gpp__unit *unit = &model->unit[index];
    for (int k = 0; k < unit->count; k++) {
        gpp__part *part = &model->part[unit->first + k];
        for (int n = 0; n < part->skips; n++)
            if (is_meant(part->skip[n].name, names, count))
                snprintf(part->skip[n].ns, GPP__NAME, "%s", ns ? ns : "");
    }
    return GPP_OK;
}
