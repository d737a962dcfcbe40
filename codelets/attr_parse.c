/*
 * codelets/attr_parse.c: "name key=1,2 key=word" from text.
 *
 * The parser knows nothing of tables of keys: it splits the text and checks its form only. It takes
 * time linear in the text and does not depend on the locale.
 */
#define _GNU_SOURCE /* strtod_l */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"

#define MAX_NUMBERS ((int)(sizeof((gpp_attr *)0)->v / sizeof(double)))

/* Not <ctype.h>: its classes of characters depend on the locale. */
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_end(char c)
{
    return c == '\0' || c == '\n' || c == ';' || c == '#' || c == '@' || c == '{' || c == '}';
}

typedef struct reader {
    const char *at;
    char *pool; /* where the next key or word goes */
    size_t room;
    gpp_error *err;
} reader;

/* What stands at `at`, for messages: "'x'", "the end of the line", ... */
static const char *found(const char *at, char out[24])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char c = (unsigned char)*at;
    if (c == '\0')
        return "the end of the text";
    if (c == '\n')
        return "the end of the line";
    if (is_blank(*at))
        return "a blank";
    if (c > ' ' && c < 127) {
        char quoted[] = {'\'', *at, '\'', '\0'};
        return strcpy(out, quoted);
    }
    char code[] = {'b', 'y', 't', 'e', ' ', '0', 'x', hex[c >> 4], hex[c & 15], '\0'};
    return strcpy(out, code);
}

static size_t word_length(const char *at)
{
    size_t n = 0;
    if (!is_letter(*at))
        return 0;
    while (is_letter(at[n]) || is_digit(at[n]))
        n++;
    return n;
}

/* Unlike a key, a value may contain '-' and '.', because it may be a name. */
static size_t value_length(const char *at)
{
    size_t n = word_length(at);
    while (n && (is_letter(at[n]) || is_digit(at[n]) || at[n] == '-' || at[n] == '.'))
        n++;
    return n;
}

/* Copies a word into the pool. NULL when the pool is full. */
static const char *keep(reader *r, const char *from, size_t length)
{
    if (length >= r->room)
        return NULL;
    char *kept = r->pool;
    memcpy(kept, from, length);
    kept[length] = '\0';
    r->pool += length + 1;
    r->room -= length + 1;
    return kept;
}

static const char *skip_digits(const char *at)
{
    while (is_digit(*at))
        at++;
    return at;
}

/* The end of a decimal number, or NULL when there is none: -12, 0.5, .5, 1e-3. */
static const char *number_end(const char *at)
{
    at += *at == '-';
    const char *whole = at, *end = skip_digits(at);
    size_t digits = (size_t)(end - whole);
    if (*end == '.') {
        const char *fraction = end + 1;
        end = skip_digits(fraction);
        digits += (size_t)(end - fraction);
    }
    if (digits == 0)
        return NULL;
    if (*end == 'e' || *end == 'E') {
        const char *power = end + 1;
        power += *power == '-' || *power == '+';
        end = skip_digits(power);
        if (end == power)
            return NULL;
    }
    return end;
}

/* Reads a number with '.' as its decimal point, whatever the application's locale says. */
static bool convert(const char *at, double *value)
{
    locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (c == (locale_t)0)
        return false;
    int before = errno;
    errno = 0;
    *value = strtod_l(at, NULL, c);
    bool fits = isfinite(*value) && !(errno == ERANGE && *value == 0);
    errno = before;
    freelocale(c);
    return fits;
}

static gpp_status read_number(reader *r, const char *key, double *value)
{
    char what[24];
    const char *end = number_end(r->at);
    if (!end)
        return gpp__fail(r->err, GPP_ESYNTAX, "%s: expected a decimal number, found %s", key,
                         found(r->at, what));
    if (!convert(r->at, value))
        return gpp__fail(r->err, GPP_ESYNTAX, "%s: %.*s is beyond what a double holds", key,
                         (int)(end - r->at < 32 ? end - r->at : 32), r->at);
    r->at = end;
    if (!is_end(*end) && !is_blank(*end) && *end != ',')
        return gpp__fail(r->err, GPP_ESYNTAX, "%s: %s after a number", key, found(end, what));
    return GPP_OK;
}

static gpp_status read_numbers(reader *r, gpp_attr *one)
{
    for (;;) {
        if (one->count == MAX_NUMBERS)
            return gpp__fail(r->err, GPP_ESYNTAX, "%s: more than %d numbers", one->key,
                             MAX_NUMBERS);
        gpp_status status = read_number(r, one->key, &one->v[one->count]);
        if (status)
            return status;
        one->count++;
        if (*r->at != ',')
            return GPP_OK;
        r->at++;
    }
}

static gpp_status read_word(reader *r, gpp_attr *one)
{
    char what[24];
    size_t length = value_length(r->at);
    one->word = keep(r, r->at, length);
    if (!one->word)
        return gpp__fail(r->err, GPP_ESYNTAX, "%s: the word is too long", one->key);
    r->at += length;
    if (!is_end(*r->at) && !is_blank(*r->at))
        return gpp__fail(r->err, GPP_ESYNTAX, "%s: %s after a word", one->key, found(r->at, what));
    return GPP_OK;
}

static gpp_status read_pair(reader *r, gpp_attr *one)
{
    char what[24];
    size_t length = word_length(r->at);
    if (length == 0)
        return gpp__fail(r->err, GPP_ESYNTAX, "expected key=value, found %s", found(r->at, what));
    *one = (gpp_attr){.key = keep(r, r->at, length)};
    if (!one->key)
        return gpp__fail(r->err, GPP_ESYNTAX, "the keys and words are too long");
    r->at += length;
    if (*r->at != '=')
        return gpp__fail(r->err, GPP_ESYNTAX, "%.40s: expected '=' and a value, found %s", one->key,
                         found(r->at, what));
    r->at++;
    if (is_letter(*r->at))
        return read_word(r, one);
    if (is_digit(*r->at) || *r->at == '-' || *r->at == '.')
        return read_numbers(r, one);
    return gpp__fail(r->err, GPP_ESYNTAX, "%.40s: expected a value after '=', found %s", one->key,
                     found(r->at, what));
}

static gpp_status read_name(reader *r, char name[64])
{
    char what[24];
    size_t length = word_length(r->at);
    if (length == 0)
        return gpp__fail(r->err, GPP_ESYNTAX, "expected a name, found %s", found(r->at, what));
    if (length > 63)
        return gpp__fail(r->err, GPP_ESYNTAX, "a name of %zu letters, at most 63 are allowed",
                         length);
    memcpy(name, r->at, length);
    name[length] = '\0';
    r->at += length;
    if (!is_end(*r->at) && !is_blank(*r->at))
        return gpp__fail(r->err, GPP_ESYNTAX, "%s after the name \"%s\"", found(r->at, what), name);
    return GPP_OK;
}

static void skip_blanks(reader *r)
{
    while (is_blank(*r->at))
        r->at++;
}

static gpp_status read_all(reader *r, char name[64], gpp_attr given[], size_t *count, size_t max)
{
    skip_blanks(r);
    gpp_status status = read_name(r, name);
    for (; !status; ++*count) {
        skip_blanks(r);
        if (is_end(*r->at))
            return GPP_OK;
        if (*count == max)
            return gpp__fail(r->err, GPP_ESYNTAX, "%s: more than %zu keys", name, max);
        status = read_pair(r, &given[*count]);
    }
    return status;
}

gpp_status gpp__attr_parse(const char *text, const char **end, char name[64], gpp_attr given[],
                           size_t *count, size_t max, char *pool, size_t pool_size, gpp_error *err)
{
    reader r = {text, pool, pool_size, err};
    *count = 0;
    gpp_status status = read_all(&r, name, given, count, max);
    *end = r.at;
    return status;
}

gpp_status gpp__attr_parse_spec(const char *text, char name[64], gpp_attr given[], size_t *count,
                                size_t max, char *pool, size_t pool_size, gpp_error *err)
{
    char what[24];
    gpp_error inner = GPP_ERROR_INIT;
    const char *end = text;
    gpp_status status =
        gpp__attr_parse(text, &end, name, given, count, max, pool, pool_size, &inner);
    if (!status && *end)
        status = gpp__fail(&inner, GPP_ESYNTAX, "nothing may follow, found %s", found(end, what));
    return status ? gpp__fail(err, status, "column %zu: %s", (size_t)(end - text) + 1, inner.msg)
                  : GPP_OK;
}
