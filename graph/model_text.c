/*
 * graph/model_text.c: layers from text.
 *
 *     text  := layer { (newline | ';') layer }          '#' starts a comment
 *     layer := name { key=value } [ '@' label ]
 *
 * Empty lines and a separator at the end are fine; a text without any layer is not. Every message
 * begins with the place in the text. Invariant: all layers are appended, or none. One pass, linear
 * in the text: lines are counted as they are passed, never again from the start.
 */
#include <string.h>

#include "codelets/attr.h"
#include "graph/model.h"

enum { MOST_KEYS = 32, POOL = 2048, LONGEST_LABEL = 63 };

typedef struct scanner {
    const char *at;
    int line; /* from 1 */
    const char *line_start;
} scanner;

static gpp_status fail_at(const scanner *s, const char *where, gpp_status code, int layer,
                          const char *what, gpp_error *err)
{
    return gpp__fail_layer(err, code, layer, "line %d, column %zu: %s", s->line,
                           (size_t)(where - s->line_start) + 1, what);
}

static void skip_blanks(scanner *s)
{
    s->at += strspn(s->at, " \t\r");
}

/* To the next layer or the end of the text. */
static void skip_to_layer(scanner *s)
{
    for (;;) {
        s->at += strspn(s->at, " \t\r;");
        if (*s->at == '#')
            s->at += strcspn(s->at, "\n");
        if (*s->at != '\n')
            return;
        s->at++;
        s->line++;
        s->line_start = s->at;
    }
}

/* "@label" when there is one; then the layer must be over. Sets *label to `room` or NULL. */
static gpp_status read_label(scanner *s, int layer, char room[LONGEST_LABEL + 1],
                             const char **label, gpp_error *err)
{
    static const char ends[] = " \t\r\n;#@{}=";
    *label = NULL;
    if (*s->at == '@') {
        const char *start = s->at + 1;
        size_t length = strcspn(start, ends);
        if (length == 0)
            return fail_at(s, start, GPP_ESYNTAX, layer, "expected a label right after '@'", err);
        if (length > LONGEST_LABEL)
            return fail_at(s, start, GPP_ESYNTAX, layer, "a label has at most 63 characters", err);
        memcpy(room, start, length);
        room[length] = '\0';
        *label = room;
        s->at = start + length;
    }
    skip_blanks(s);
    if (!strchr("\n;#", *s->at))
        return fail_at(s, s->at, GPP_ESYNTAX, layer,
                       *s->at == '{' ? "a label ends its layer, no block in braces may follow"
                                     : "a label ends its layer; keys go before the '@'",
                       err);
    return GPP_OK;
}

static gpp_status read_layer(scanner *s, gpp_model *model, gpp_error *err)
{
    char name[64], pool[POOL], room[LONGEST_LABEL + 1];
    gpp_attr given[MOST_KEYS];
    size_t count;
    const char *start = s->at, *label;
    gpp_error inner = GPP_ERROR_INIT;
    gpp_status status =
        gpp__attr_parse(s->at, &s->at, name, given, &count, MOST_KEYS, pool, sizeof pool, &inner);
    if (status)
        return fail_at(s, s->at, status, model->count, inner.msg, err);
    status = read_label(s, model->count, room, &label, err);
    if (status)
        return status;
    status = gpp_model_add(model, name, label, given, count, &inner);
    if (status)
        return fail_at(s, start, status, model->count, inner.msg, err);
    return GPP_OK;
}

gpp_status gpp_model_add_text(gpp_model *model, const char *text, gpp_error *err)
{
    if (!model || !text)
        return gpp__fail(err, GPP_EINVAL, "model text takes a model and a text");
    scanner s = {text, 1, text};
    int before = model->count;
    gpp_status status = GPP_OK;
    for (skip_to_layer(&s); !status && *s.at; skip_to_layer(&s))
        status = read_layer(&s, model, err);
    if (!status && model->count == before)
        status = fail_at(&s, s.at, GPP_ESYNTAX, -1, "the text ends without any layer", err);
    if (status)
        gpp__model_truncate(model, before);
    return status;
}
