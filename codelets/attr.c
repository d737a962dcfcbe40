/*
 * codelets/attr.c: turns numbers and words into the attribute struct of an operator, a loss or an
 * optimizer.
 *
 * Values are checked against a table of keys, whether they came from text (attr_parse.c) or from
 * the C interface. Anything not understood is an error that names it, never a guess.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codelets/attr.h"

#define MAX_NUMBERS ((int)(sizeof((gpp_attr *)0)->v / sizeof(double)))
#define EXACT       0x1p53 /* integers up to here are exact in a double */

/* --- setting ---------------------------------------------------------------------------------- */

/* How many numbers a key takes at most. */
static int room_of(const gpp__key *key)
{
    bool many = key->type == GPP__KEY_INT || key->type == GPP__KEY_REAL;
    return many && key->count > 1 ? key->count : 1;
}

/* An INT value as stored; NAN stands for the word "none". */
static int64_t integer(double value)
{
    return isnan(value) ? INT64_MIN : (int64_t)value;
}

static void store(const gpp__key *key, void *attr, int at, double value)
{
    void *place = (char *)attr + key->offset;
    switch (key->type) {
    case GPP__KEY_INT:
        ((int64_t *)place)[at + key->list] = integer(value);
        return;
    case GPP__KEY_BOOL:
        *(bool *)place = value != 0;
        return;
    case GPP__KEY_REAL:
        ((double *)place)[at] = value;
        return;
    case GPP__KEY_CHOICE:
        *(int *)place = (int)value;
        return;
    case GPP__KEY_NAME:
        memset(place, 0, GPP__NAME);
        return;
    }
}

static void store_length(const gpp__key *key, void *attr, int length)
{
    if (key->list)
        *(int64_t *)(void *)((char *)attr + key->offset) = length;
}

void gpp__attr_defaults(const gpp__key *keys, void *attr)
{
    for (const gpp__key *key = keys; key && key->name; key++) {
        for (int at = 0; at < room_of(key); at++)
            store(key, attr, at, key->fallback);
        store_length(key, attr, 0);
    }
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

/* How many letters to insert, delete or replace to turn one word into the other (Levenshtein). */
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
    char known[480];
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
    char known[240], got[48] = "a number";
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

static gpp_status check_count(const char *who, const gpp__key *key, int count, gpp_error *err)
{
    int room = room_of(key);
    if (count == room || count == 1 || (key->list && count < room))
        return GPP_OK;
    return gpp__fail(err, GPP_EINVAL, "%s: %s takes %s%d number%s, got %d", who, key->name,
                     room == 1   ? ""
                     : key->list ? "1 ... "
                                 : "1 or ",
                     room, room > 1 ? "s" : "", count);
}

static gpp_status set_none(const char *who, const gpp__key *key, void *attr, const char *word,
                           gpp_error *err)
{
    if (!key->none || strcmp(word, "none") != 0)
        return gpp__fail(err, GPP_EINVAL, "%s: %s must be a number%s, got \"%.40s\"", who,
                         key->name, key->none ? " or none" : "", word);
    for (int at = 0; at < room_of(key); at++)
        store(key, attr, at, NAN);
    return GPP_OK;
}

static gpp_status set_numbers(const char *who, const gpp__key *key, void *attr,
                              const gpp_attr *given, gpp_error *err)
{
    if (given->word)
        return set_none(who, key, attr, given->word, err);
    if (check_count(who, key, given->count, err))
        return GPP_EINVAL;
    for (int at = 0; at < given->count; at++)
        if (check_number(who, key, given->v[at], err))
            return GPP_EINVAL;
    int wanted = key->list ? given->count : room_of(key);
    for (int at = 0; at < wanted; at++)
        store(key, attr, at, given->v[given->count == 1 ? 0 : at]);
    store_length(key, attr, wanted);
    return GPP_OK;
}

bool gpp__is_word(const char *text, size_t longest)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_-.";
    size_t length = strspn(text, allowed);
    return length >= 1 && length <= longest && text[length] == '\0';
}

/* A name is a word or an integer: "ns=2" is allowed. */
static gpp_status set_name(const char *who, const gpp__key *key, void *attr, const gpp_attr *given,
                           gpp_error *err)
{
    char number[32];
    const char *name = given->word;
    if (!name) {
        double v = given->v[0];
        if (given->count != 1 || !(fabs(v) <= EXACT) || v != floor(v))
            return gpp__fail(err, GPP_EINVAL, "%s: %s must be a word or one integer, got %.15g%s",
                             who, key->name, v, given->count > 1 ? ",..." : "");
        snprintf(number, sizeof number, "%lld", (long long)v);
        name = number;
    }
    bool empty = !key->required && *name == '\0';
    if (!empty && !gpp__is_word(name, GPP__NAME - 1))
        return gpp__fail(err, GPP_EINVAL,
                         "%s: %s must be 1 ... %d letters, digits, '_', '-' and '.', got \"%.40s\"",
                         who, key->name, GPP__NAME - 1, name);
    strcpy((char *)attr + key->offset, name);
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
    if (key->type == GPP__KEY_NAME)
        return set_name(who, key, attr, one, err);
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

bool gpp__attr_set_one(const gpp__key *keys, void *attr, const char *name, double value)
{
    const gpp__key *key = find_key(keys, name);
    if (key)
        store(key, attr, 0, value);
    return key;
}

bool gpp__attr_flag(const gpp__key *keys, const void *attr, const char *name)
{
    const gpp__key *key = find_key(keys, name);
    return key && key->type == GPP__KEY_BOOL && *(const bool *)((const char *)attr + key->offset);
}
