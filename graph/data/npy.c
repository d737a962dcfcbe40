/*
 * graph/data/npy.c: see npy.h.
 *
 * The reader is strict. It takes what NumPy writes, and every spelling that Python reads as the
 * same (another order of the entries, either kind of quote, blanks, a last comma or none), and
 * nothing else. Each function returns NULL, or what it expected; the cursor is then where that is
 * missing.
 */
#include "graph/data/npy.h"

#include <string.h>

typedef struct cursor {
    const char *at, *end;
    gpp__npy *npy;
} cursor;

enum { DESCR = 1, FORTRAN = 2, SHAPE = 4 };

static bool more(const cursor *c)
{
    return c->at < c->end;
}

static void skip_blanks(cursor *c)
{
    while (more(c) && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

/* Reads the character `what`, with blanks around it. */
static bool takes(cursor *c, char what)
{
    skip_blanks(c);
    if (!more(c) || *c->at != what)
        return false;
    c->at++;
    skip_blanks(c);
    return true;
}

static bool takes_word(cursor *c, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0)
        return false;
    c->at += length;
    return true;
}

static const char *unsupported(cursor *c, const char *what)
{
    c->npy->code = GPP_EUNSUPPORTED;
    return what;
}

/* Reads a string without escapes into text [size]. */
static const char *string(cursor *c, char text[], size_t size)
{
    if (!more(c) || (*c->at != '\'' && *c->at != '"'))
        return "a string expected";
    char quote = *c->at;
    const char *begin = c->at + 1, *stop = begin;
    while (stop < c->end && *stop != quote && *stop != '\\' && (unsigned char)*stop >= ' ')
        stop++;
    if (stop == c->end || *stop != quote)
        return "a string that ends expected";
    size_t length = (size_t)(stop - begin);
    if (length >= size)
        return "a shorter string expected";
    memcpy(text, begin, length);
    text[length] = '\0';
    c->at = stop + 1;
    return NULL;
}

static const char *descr(cursor *c)
{
    if (more(c) && *c->at == '[')
        return unsupported(c, "elements of one simple type expected, these have fields");
    return string(c, c->npy->descr, sizeof c->npy->descr);
}

static const char *truth(cursor *c)
{
    c->npy->fortran = takes_word(c, "True");
    return c->npy->fortran || takes_word(c, "False") ? NULL : "True or False expected";
}

static const char *whole(cursor *c, int64_t *value)
{
    const char *begin = c->at;
    int64_t v = 0;
    while (more(c) && *c->at >= '0' && *c->at <= '9') {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *c->at - '0', &v))
            return "a number below 2^63 expected";
        c->at++;
    }
    if (c->at == begin || (*begin == '0' && c->at - begin > 1))
        return "a whole number expected";
    *value = v;
    return NULL;
}

/* Reads (), (3,), (3, 4) or (3, 4,). As in Python, one number alone needs its comma. */
static const char *shape(cursor *c)
{
    bool comma = false;
    if (!takes(c, '('))
        return "'(' expected";
    for (c->npy->rank = 0; !takes(c, ')'); c->npy->rank++) {
        if (c->npy->rank && !comma)
            return "',' or ')' expected";
        if (c->npy->rank == GPP_MAX_RANK)
            return unsupported(c, "at most 8 dimensions expected");
        const char *wrong = whole(c, &c->npy->dim[c->npy->rank]);
        if (wrong)
            return wrong;
        comma = takes(c, ',');
    }
    return c->npy->rank == 1 && !comma ? "',' expected after the only dimension" : NULL;
}

static const char *entry(cursor *c, unsigned *seen)
{
    static const struct {
        const char *name;
        unsigned bit;
        const char *(*value)(cursor *);
    } known[] = {
        {"descr", DESCR, descr}, {"fortran_order", FORTRAN, truth}, {"shape", SHAPE, shape}};
    char key[16];
    const char *begin = c->at, *wrong = string(c, key, sizeof key);
    for (size_t k = 0; !wrong && k < sizeof known / sizeof *known; k++) {
        if (strcmp(key, known[k].name) != 0)
            continue;
        if (*seen & known[k].bit) {
            c->at = begin;
            return "a key that has not been there expected";
        }
        *seen |= known[k].bit;
        return takes(c, ':') ? known[k].value(c) : "':' expected";
    }
    c->at = wrong ? c->at : begin;
    return wrong ? wrong : "'descr', 'fortran_order' or 'shape' expected";
}

static const char *dictionary(cursor *c)
{
    unsigned seen = 0;
    bool comma = true;
    if (!takes(c, '{'))
        return "'{' expected";
    while (!takes(c, '}')) {
        const char *wrong = comma ? entry(c, &seen) : "',' or '}' expected";
        if (wrong)
            return wrong;
        comma = takes(c, ',');
    }
    if (seen != (DESCR | FORTRAN | SHAPE))
        return "'descr', 'fortran_order' and 'shape' expected, one of them is missing";
    return more(c) ? "nothing but blanks expected" : NULL;
}

const char *gpp__npy_parse(const char *text, size_t length, gpp__npy *npy)
{
    *npy = (gpp__npy){.code = GPP_ESYNTAX};
    cursor c = {.at = text, .end = text + length, .npy = npy};
    const char *wrong = dictionary(&c);
    npy->offset = (size_t)(c.at - text);
    if (!wrong)
        npy->code = GPP_OK;
    return wrong;
}
