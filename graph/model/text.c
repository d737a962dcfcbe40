/*
 * graph/model/text.c: layers from text.
 *
 *     text  := layer { (newline | ';') layer }          '#' starts a comment
 *     layer := name { key=value } [ '{' text '}' ] [ '@' label ]
 *
 * Empty lines and a separator at the end are fine; a text or a block without any layer is an error.
 * A `chain` with a block is a composite layer. So is a `pop` with a block: `unstash` gives the
 * popped tensor, the block is applied to it, `combine` joins the result with the layer's input.
 * Blocks can be nested; inside a composite layer a block only groups operators.
 *
 * Every message begins with the place in the text. Invariant: all layers are appended, or none.
 * Reading takes linear time: lines are counted on the way, not from the start for each message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "graph/model/model.h"

enum { MOST_KEYS = 32, POOL = 2048, LONGEST_LABEL = 63, DEEPEST = 64 };

/* A place in the text. */
typedef struct spot {
    const char *at;
    int line; /* from 1 */
    const char *line_start;
} spot;

typedef struct scanner {
    spot now;
    gpp_model *model;
    gpp_error *err;
    int depth; /* blocks around `now` */
    size_t count;
    gpp_attr given[MOST_KEYS]; /* [count] keys of the layer read last; their words are in `pool` */
    char pool[POOL];
} scanner;

static gpp_status fail_at(const scanner *s, const spot *where, gpp_status code, const char *what)
{
    return gpp__fail_layer(s->err, code, s->model->count, "line %d, column %zu: %s", where->line,
                           (size_t)(where->at - where->line_start) + 1, what);
}

static gpp_status fail_here(const scanner *s, const char *what)
{
    return fail_at(s, &s->now, GPP_ESYNTAX, what);
}

static void skip_blanks(scanner *s)
{
    s->now.at += strspn(s->now.at, " \t\r");
}

/* Goes on to the next layer, the end of the block or the end of the text. */
static void skip_to_layer(scanner *s)
{
    for (;;) {
        s->now.at += strspn(s->now.at, " \t\r;");
        if (*s->now.at == '#')
            s->now.at += strcspn(s->now.at, "\n");
        if (*s->now.at != '\n')
            return;
        s->now.at++;
        s->now.line++;
        s->now.line_start = s->now.at;
    }
}

static gpp_status fail_behind_label(const scanner *s, bool block)
{
    if (*s->now.at == '{')
        return fail_here(s, block ? "a layer has one block"
                                  : "a label ends its layer, no block in braces may follow");
    if (*s->now.at == '}')
        return fail_here(s, "'}' ends no block");
    return fail_here(s, block ? "a block ends its layer, only a label may follow"
                              : "a label ends its layer; keys go before the '@'");
}

/* Reads "@label" if there is one, after which the layer must end. Sets *label to `room`, or to
 * NULL. `block`: the layer's block has been read. */
static gpp_status read_label(scanner *s, bool block, char room[LONGEST_LABEL + 1],
                             const char **label)
{
    static const char ends[] = " \t\r\n;#@{}=";
    skip_blanks(s);
    *label = NULL;
    if (*s->now.at == '@') {
        size_t length = strcspn(++s->now.at, ends);
        if (length == 0)
            return fail_here(s, "expected a label right after '@'");
        if (length > LONGEST_LABEL)
            return fail_here(s, "a label has at most 63 characters");
        memcpy(room, s->now.at, length);
        room[length] = '\0';
        *label = room;
        s->now.at += length;
        block = false;
    }
    skip_blanks(s);
    if (!strchr("\n;#", *s->now.at) && !(*s->now.at == '}' && s->depth))
        return fail_behind_label(s, block);
    return GPP_OK;
}

/* --- blocks ----------------------------------------------------------------------------------- */

static gpp_status read_layer(scanner *s, int *place);

/* Reads a block. `now` is at the opening brace, and afterwards behind the closing one. */
static gpp_status read_block(scanner *s, int *place)
{
    const spot open = s->now;
    int before = s->model->parts;
    gpp_status status = GPP_OK;
    if (s->depth == DEEPEST)
        return fail_here(s, "blocks are nested more than 64 deep");
    s->depth++;
    s->now.at++;
    for (skip_to_layer(s); !status && *s->now.at && *s->now.at != '}'; skip_to_layer(s))
        status = read_layer(s, place);
    if (status)
        return status;
    if (*s->now.at != '}')
        return fail_at(s, &open, GPP_ESYNTAX, "this block has no closing '}'");
    if (s->model->parts == before)
        return fail_at(s, &open, GPP_ESYNTAX, "the block is empty");
    s->now.at++;
    s->depth--;
    return GPP_OK;
}

/* Puts `name` in front of an operator's path: inner chains are read to their end first. */
static gpp_status extend_path(gpp__part *part, const char *name)
{
    size_t size = strlen(name) + (part->path ? strlen(part->path) + 1 : 0) + 1;
    char *path = malloc(size);
    if (!path)
        return GPP_ENOMEM;
    snprintf(path, size, "%s%s%s", name, part->path ? "_" : "", part->path ? part->path : "");
    free(part->path);
    part->path = path;
    return GPP_OK;
}

/* Reads a chain inside a composite layer. It is item `place` of the block around it. */
static gpp_status read_inner_chain(scanner *s, const spot *start, int place)
{
    char room[LONGEST_LABEL + 1], number[16];
    const char *label;
    int first = s->model->parts, inner = 0;
    gpp_status status = read_block(s, &inner);
    if (!status)
        status = read_label(s, true, room, &label);
    if (status)
        return status;
    if (label && !gpp__is_word(label, LONGEST_LABEL))
        return fail_at(s, start, GPP_EINVAL,
                       "chain: its label is not of letters, digits, '_', '-' and '.'");
    snprintf(number, sizeof number, "%d", place);
    for (int k = first; !status && k < s->model->parts; k++)
        status = extend_path(&s->model->part[k], label ? label : number);
    return status ? fail_at(s, start, status, "chain: names of its operators") : GPP_OK;
}

/* --- pop with a block ------------------------------------------------------------------------- */

static bool is_skip_key(const gpp_attr *one)
{
    return strcmp(one->key, "name") == 0 || strcmp(one->key, "ns") == 0;
}

/* Checks that a pop could have the keys that were read: messages about `unstash` or `combine` would
 * name operators that the caller did not write. */
static gpp_status check_pop(const scanner *s, gpp_error *err)
{
    gpp__part pop;
    const gpp_op *op = gpp__model_op(s->model, "pop", err);
    gpp_status status =
        op ? gpp__part_make(s->model, op, NULL, s->given, s->count, &pop, err) : GPP_ENOENT;
    if (!status)
        gpp__part_release(&pop);
    return status;
}

/* Splits the pop that was read in two: `unstash` gets the keys `name` and `ns`, `combine` the
 * others. */
static gpp_status make_halves(scanner *s, gpp__part *unstash, gpp__part *combine, gpp_error *err)
{
    gpp_attr skip[MOST_KEYS], other[MOST_KEYS];
    size_t skips = 0, others = 0;
    gpp_status status = check_pop(s, err);
    const gpp_op *first = status ? NULL : gpp__model_op(s->model, "unstash", err);
    const gpp_op *last = first ? gpp__model_op(s->model, "combine", err) : NULL;
    if (!last)
        return status ? status : GPP_ENOENT;
    for (size_t k = 0; k < s->count; k++)
        if (is_skip_key(&s->given[k]))
            skip[skips++] = s->given[k];
        else
            other[others++] = s->given[k];
    status = gpp__part_make(s->model, first, NULL, skip, skips, unstash, err);
    if (status)
        return status;
    status = gpp__part_make(s->model, last, NULL, other, others, combine, err);
    if (status)
        gpp__part_release(unstash);
    return status;
}

static gpp_status append(scanner *s, const spot *start, gpp__part *part, const gpp_ref refs[],
                         int count)
{
    gpp_error inner = GPP_ERROR_INIT;
    gpp_status status = gpp__model_append_part(s->model, part, refs, count, &inner);
    if (!status)
        return GPP_OK;
    gpp__part_release(part);
    return fail_at(s, start, status, inner.msg);
}

/* Reads a pop with a block into the open unit. `combine` takes the inputs that the pop would take,
 * then the block's result. */
static gpp_status read_pop(scanner *s, const spot *start, int *place)
{
    gpp_error inner = GPP_ERROR_INIT;
    gpp__part unstash, combine;
    gpp_ref refs[GPP__MAX_TENSORS];
    int count = gpp__model_next_refs(s->model, refs);
    gpp_status status = make_halves(s, &unstash, &combine, &inner);
    if (status)
        return fail_at(s, start, status, inner.msg);
    s->model->chosen = false;
    unstash.place = (*place)++;
    status = append(s, start, &unstash, NULL, 0);
    if (!status)
        status = read_block(s, place);
    if (!status && count == GPP__MAX_TENSORS)
        status = fail_at(s, start, GPP_EINVAL, "pop: too many inputs are chosen for it");
    if (status) {
        gpp__part_release(&combine);
        return status;
    }
    refs[count] = (gpp_ref){s->model->unit[s->model->count].count - 1, GPP__ALL};
    combine.place = (*place)++;
    return append(s, start, &combine, refs, count + 1);
}

/* --- layers ----------------------------------------------------------------------------------- */

/* Reads a pop with a block inside a composite layer. Its label goes to its last operator,
 * `combine`. */
static gpp_status read_inner_pop(scanner *s, const spot *start, int *place)
{
    char room[LONGEST_LABEL + 1];
    const char *label;
    gpp_status status = read_pop(s, start, place);
    if (!status)
        status = read_label(s, true, room, &label);
    if (status || !label)
        return status;
    if (!gpp__is_word(label, LONGEST_LABEL))
        return fail_at(s, start, GPP_EINVAL,
                       "pop: its label is not of letters, digits, '_', '-' and '.'");
    gpp__part *part = &s->model->part[s->model->parts - 1];
    strcpy(part->label, label);
    part->labelled = true;
    return GPP_OK;
}

/* Reads a chain or a pop inside the open unit. `place`: the next item of the block around it. */
static gpp_status read_operators(scanner *s, const spot *start, const char *name, int *place)
{
    return strcmp(name, "chain") == 0 ? read_inner_chain(s, start, (*place)++)
                                      : read_inner_pop(s, start, place);
}

/* Reads a layer of several operators. */
static gpp_status read_unit(scanner *s, const spot *start, const char *name)
{
    char room[LONGEST_LABEL + 1];
    const char *label;
    gpp_error inner = GPP_ERROR_INIT;
    int place = 0;
    gpp_status status = gpp__model_open(s->model, &inner);
    if (status)
        return fail_at(s, start, status, inner.msg);
    status = strcmp(name, "chain") == 0 ? read_block(s, &place) : read_pop(s, start, &place);
    if (!status)
        status = read_label(s, true, room, &label);
    if (status)
        return status;
    s->model->unit[s->model->count].items = place;
    status = gpp__model_close(s->model, label, NULL, 0, &inner);
    return status ? fail_at(s, start, status, inner.msg) : GPP_OK;
}

static gpp_status read_with_block(scanner *s, const spot *start, const char *name, int *place)
{
    char what[120];
    bool chain = strcmp(name, "chain") == 0;
    if (!chain && strcmp(name, "pop") != 0) {
        snprintf(what, sizeof what, "%s takes no block in braces; chain and pop do", name);
        return fail_here(s, what);
    }
    if (chain && s->count) {
        snprintf(what, sizeof what, "chain: no key \"%.40s\"; it takes none", s->given[0].key);
        return fail_at(s, start, GPP_ENOENT, what);
    }
    return s->model->open ? read_operators(s, start, name, place) : read_unit(s, start, name);
}

static gpp_status read_simple(scanner *s, const spot *start, const char *name, int *place)
{
    char room[LONGEST_LABEL + 1];
    const char *label;
    gpp_error inner = GPP_ERROR_INIT;
    if (strcmp(name, "chain") == 0)
        return fail_here(s, "chain: expected a block in braces");
    gpp_status status = read_label(s, false, room, &label);
    if (status)
        return status;
    status = gpp_model_add(s->model, name, label, s->given, s->count, &inner);
    if (status)
        return fail_at(s, start, status, inner.msg);
    if (s->model->open)
        s->model->part[s->model->parts - 1].place = (*place)++;
    return GPP_OK;
}

static gpp_status read_layer(scanner *s, int *place)
{
    char name[64];
    const spot start = s->now;
    gpp_error inner = GPP_ERROR_INIT;
    gpp_status status = gpp__attr_parse(s->now.at, &s->now.at, name, s->given, &s->count, MOST_KEYS,
                                        s->pool, sizeof s->pool, &inner);
    if (status)
        return fail_at(s, &s->now, status, inner.msg);
    return *s->now.at == '{' ? read_with_block(s, &start, name, place)
                             : read_simple(s, &start, name, place);
}

gpp_status gpp_model_add_text(gpp_model *model, const char *text, gpp_error *err)
{
    if (!model || !text)
        return gpp__fail(err, GPP_EINVAL, "model text takes a model and a text");
    scanner s = {.now = {text, 1, text}, .model = model, .err = err};
    const gpp__mark before = gpp__model_mark(model);
    int place = before.items;
    gpp_status status = GPP_OK;
    for (skip_to_layer(&s); !status && *s.now.at; skip_to_layer(&s))
        status = read_layer(&s, &place);
    if (!status && model->parts == before.parts)
        status = gpp__fail(err, GPP_ESYNTAX, "line %d, column %zu: the text ends without any layer",
                           s.now.line, (size_t)(s.now.at - s.now.line_start) + 1);
    if (status)
        gpp__model_rollback(model, &before);
    else if (before.open)
        model->unit[model->count].items = place;
    return status;
}
