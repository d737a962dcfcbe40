/*
 * codelets/attr.c: attributes of operators, losses and optimizers: from text to numbers and words,
 * and from those to an attribute struct.
 *
 * Reading (gpp__attr_parse) knows nothing of tables: it splits "name key=1,2 key=word" and checks
 * the form alone. Setting (gpp__attr_set) checks values against a table of keys, whether they came
 * from text or from the C interface. Both are strict: what is not understood is an error that names
 * it, never a guess. Reading is linear in the text and independent of the locale.
 */
#define _GNU_SOURCE /* strtod_l */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"

#define MAX_NUMBERS ((int)(sizeof((gpp_attr *)0)->v / sizeof(double)))
#define EXACT       0x1p53 /* integers up to here are exact in a double */

/* --- setting ---------------------------------------------------------------------------------- */

static void store(const gpp__key *key, void *attr, int at, double value)
{
    char *place = (char *)attr + key->offset;
    switch (key->type) {
    case GPP__KEY_INT:
        ((int64_t *)(void *)place)[at] = (int64_t)value;
        return;
    case GPP__KEY_BOOL:
        *(bool *)(void *)place = value != 0;
        return;
    case GPP__KEY_REAL:
        *(double *)(void *)place = value;
        return;
    case GPP__KEY_CHOICE:
        *(int *)(void *)place = (int)value;
        return;
    }
}

void gpp__attr_defaults(const gpp__key *keys, void *attr)
{
    for (const gpp__key *key = keys; key && key->name; key++)
        for (int at = 0; at < (key->type == GPP__KEY_INT ? key->count : 1); at++)
            store(key, attr, at, key->fallback);
}

/* Appends to a string in a buffer; what does not fit is cut off. */
static void append(char *out, size_t size, const char *text)
{
    size_t used = strlen(out);
    strncat(out, text, size - used - 1);
}

static const char *list_keys(const gpp__key *keys, char *out, size_t size)
{
    out[0] = '\0';
    for (const gpp__key *key = keys; key && key->name; key++) {
        append(out, size, key == keys ? "" : ", ");
        append(out, size, key->name);
    }
    return out;
}

static const char *list_choices(const gpp__key *key, char *out, size_t size)
{
    out[0] = '\0';
    for (const char *const *choice = key->choices; *choice; choice++) {
        append(out, size, choice == key->choices ? "" : ", ");
        append(out, size, *choice);
    }
    return out;
}

/* Letters to insert, delete or replace to make one word of the other (Levenshtein). */
static size_t distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    size_t row[LONGEST + 1], n = strlen(b);
    if (n > LONGEST || strlen(a) > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t replace = diagonal + (a[i - 1] != b[j - 1]);
            size_t gap = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replace < gap ? replace : gap;
        }
    }
    return row[n];
}

bool gpp__alike(const char *given, const char *known)
{
    size_t changes = distance(given, known);
    return changes <= 2 && changes < strlen(known);
}

static gpp_status fail_unknown(const char *who, const gpp__key *keys, const char *name,
                               gpp_error *err)
{
    char known[160];
    if (!keys || !keys->name)
        return gpp__fail(err, GPP_ENOENT, "%s: no key \"%.40s\"; it takes none", who, name);
    list_keys(keys, known, sizeof known);
    for (const gpp__key *key = keys; key->name; key++)
        if (gpp__alike(name, key->name))
            return gpp__fail(err, GPP_ENOENT,
                             "%s: no key \"%.40s\"; did you mean \"%s\"? It knows %s", who, name,
                             key->name, known);
    return gpp__fail(err, GPP_ENOENT, "%s: no key \"%.40s\"; it knows %s", who, name, known);
}

static gpp_status fail_range(const char *who, const gpp__key *key, double got, gpp_error *err)
{
    const char *kind = key->type == GPP__KEY_INT ? "an integer, " : "";
    if (got == floor(got))
        kind = "";
    bool no_end = !isfinite(key->max) || (key->max >= EXACT && got < key->min);
    if (isfinite(key->min) && !no_end)
        return gpp__fail(err, GPP_EINVAL, "%s: %s must be %s%.15g ... %.15g, got %.15g", who,
                         key->name, kind, key->min, key->max, got);
    if (isfinite(key->min))
        return gpp__fail(err, GPP_EINVAL, "%s: %s must be %s%.15g or more, got %.15g", who,
                         key->name, kind, key->min, got);
    return gpp__fail(err, GPP_EINVAL, "%s: %s must be %sfinite, got %.15g", who, key->name, kind,
                     got);
}

static gpp_status set_choice(const char *who, const gpp__key *key, void *attr,
                             const gpp_attr *given, gpp_error *err)
{
    char known[120], got[48] = "a number";
    for (int k = 0; given->word && key->choices[k]; k++)
        if (strcmp(given->word, key->choices[k]) == 0) {
            store(key, attr, 0, k);
            return GPP_OK;
        }
    if (given->word) {
        strcpy(got, "\"");
        strncat(got, given->word, 40);
        strcat(got, "\"");
    }
    return gpp__fail(err, GPP_EINVAL, "%s: %s must be one of %s, got %s", who, key->name,
                     list_choices(key, known, sizeof known), got);
}

static gpp_status check_number(const char *who, const gpp__key *key, double v, gpp_error *err)
{
    if (key->type == GPP__KEY_BOOL)
        return v == 0 || v == 1 ? GPP_OK
                                : gpp__fail(err, GPP_EINVAL, "%s: %s must be 0 or 1, got %.15g",
                                            who, key->name, v);
    bool fits = isfinite(v) && v >= key->min && v <= key->max;
    if (key->type == GPP__KEY_INT)
        fits = fits && v == floor(v) && fabs(v) <= EXACT;
    return fits ? GPP_OK : fail_range(who, key, v, err);
}

static gpp_status set_numbers(const char *who, const gpp__key *key, void *attr,
                              const gpp_attr *given, gpp_error *err)
{
    if (given->word)
        return gpp__fail(err, GPP_EINVAL, "%s: %s must be a number, got \"%.40s\"", who, key->name,
                         given->word);
    int wanted = key->type == GPP__KEY_INT ? key->count : 1;
    if (given->count != 1 && given->count != wanted)
        return gpp__fail(err, GPP_EINVAL, "%s: %s takes %s%d number%s, got %d", who, key->name,
                         wanted > 1 ? "1 or " : "", wanted, wanted > 1 ? "s" : "", given->count);
    for (int at = 0; at < given->count; at++)
        if (check_number(who, key, given->v[at], err))
            return GPP_EINVAL;
    for (int at = 0; at < wanted; at++)
        store(key, attr, at, given->v[given->count == 1 ? 0 : at]);
    return GPP_OK;
}

static const gpp__key *find_key(const gpp__key *keys, const char *name)
{
    for (const gpp__key *key = keys; key && key->name; key++)
        if (strcmp(key->name, name) == 0)
            return key;
    return NULL;
}

static bool is_given(const gpp_attr given[], size_t count, const char *name)
{
    for (size_t k = 0; k < count; k++)
        if (strcmp(given[k].key, name) == 0)
            return true;
    return false;
}

static gpp_status set_one(const char *who, const gpp__key *keys, void *attr, const gpp_attr given[],
                          size_t at, gpp_error *err)
{
    const gpp_attr *one = &given[at];
    if (!one->key || (!one->word && (one->count < 1 || one->count > MAX_NUMBERS)))
        return gpp__fail(err, GPP_EINVAL, "%s: attribute %zu has no key or no value", who, at);
    const gpp__key *key = find_key(keys, one->key);
    if (!key)
        return fail_unknown(who, keys, one->key, err);
    if (is_given(given, at, one->key))
        return gpp__fail(err, GPP_EINVAL, "%s: %s is given twice", who, key->name);
    return key->type == GPP__KEY_CHOICE ? set_choice(who, key, attr, one, err)
                                        : set_numbers(who, key, attr, one, err);
}

gpp_status gpp__attr_set(const char *who, const gpp__key *keys, void *attr, const gpp_attr given[],
                         size_t count, gpp_error *err)
{
    if (count && !given)
        return gpp__fail(err, GPP_EINVAL, "%s: %zu attributes, but no list of them", who, count);
    gpp__attr_defaults(keys, attr);
    for (size_t at = 0; at < count; at++) {
        gpp_status status = set_one(who, keys, attr, given, at, err);
        if (status)
            return status;
    }
    for (const gpp__key *key = keys; key && key->name; key++)
        if (key->required && !is_given(given, count, key->name))
            return gpp__fail(err, GPP_EINVAL, "%s: %s is missing", who, key->name);
    return GPP_OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Own classes of characters: those of <ctype.h> depend on the locale. */
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
    return c == '\0' || c == '\n' || c == ';' || c == '#' || c == '@';
}

typedef struct reader {
    const char *at;
    char *pool; /* where the next key or word goes */
    size_t room;
    gpp_error *err;
} reader;

/* "'x'", "the end of the line", ...: what stands at `at`, for messages. */
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

/* A word of the pool, or NULL when it is full. */
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

/* The number [at, end), whatever the application's locale takes for a decimal point. */
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
    if (!is_end(*end) && !is_blank(*end) && *end != ',' && *end != '{')
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
    size_t length = word_length(r->at);
    one->word = keep(r, r->at, length);
    if (!one->word)
        return gpp__fail(r->err, GPP_ESYNTAX, "%s: the word is too long", one->key);
    r->at += length;
    if (!is_end(*r->at) && !is_blank(*r->at) && *r->at != '{')
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
    if (!is_end(*r->at) && !is_blank(*r->at) && *r->at != '{')
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
        if (*r->at == '{')
            return gpp__fail(r->err, GPP_ESYNTAX, "%s takes no block in braces", name);
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
