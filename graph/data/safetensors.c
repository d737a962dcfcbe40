/*
 * graph/data/safetensors.c: the header of a safetensors file
 * (https://github.com/huggingface/safetensors).
 *
 * The grammar is a small part of JSON (RFC 8259): three levels of objects, strings, natural
 * numbers, and flat arrays of those. It is read strictly, in one pass, without recursion. A name
 * that occurs twice is refused, and so is a key that the format does not have. For a header of n
 * bytes, reading takes O(n log n) time and O(n) memory, whatever the header claims.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/data/safetensors.h"

/* --- small things ----------------------------------------------------------------------------- */

bool gpp__count_elements(int rank, const int64_t dim[], size_t element_bytes, size_t *count,
                         size_t *bytes)
{
    *count = 1;
    for (int d = 0; d < rank; d++)
        if (dim[d] < 0 || !gpp__mul(*count, (size_t)dim[d], count))
            return false;
    return gpp__mul(*count, element_bytes, bytes) && *bytes <= PTRDIFF_MAX;
}

const char *gpp__dims_text(int rank, const int64_t dim[], char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "(");
    for (int d = 0; d < rank && used < size; d++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, d ? ", " : "", dim[d]);
    if (used < size)
        snprintf(out + used, size - used, ")");
    return out;
}

/* Refuses what RFC 3629 does: overlong forms, surrogates, code points beyond U+10FFFF. */
size_t gpp__utf8_length(const char *at, size_t room)
{
    const unsigned char *p = (const unsigned char *)at;
    size_t length = room == 0       ? 0
                    : *p < 0x80     ? 1
                    : *p >> 5 == 6  ? 2
                    : *p >> 4 == 14 ? 3
                    : *p >> 3 == 30 ? 4
                                    : 0;
    if (length < 2 || length > room)
        return length == 1;
    uint32_t code = *p & (0xffu >> (length + 1));
    for (size_t k = 1; k < length; k++) {
        if (p[k] >> 6 != 2)
            return 0;
        code = code << 6 | (p[k] & 63);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    bool surrogate = code >= 0xd800 && code < 0xe000;
    return code < least[length] || code > 0x10ffff || surrogate ? 0 : length;
}

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    const char *begin, *end;
    char *at;
    gpp_error *err;
} reader;

/* Names what stands at `at`, for messages: "'x'", "the end of the header". */
static const char *what_is(const reader *r, const char *at, char out[16])
{
    if (at >= r->end)
        return "the end of the header";
    unsigned char c = (unsigned char)*at;
    snprintf(out, 16, c > ' ' && c < 127 ? "'%c'" : "byte 0x%02x", c);
    return out;
}

static gpp_status fail_here(const reader *r, const char *expected)
{
    char found[16];
    return gpp__fail(r->err, GPP_ESYNTAX, "header, byte %zu: expected %s, found %s",
                     (size_t)(r->at - r->begin), expected, what_is(r, r->at, found));
}

static gpp_status fail_at(const reader *r, const char *at, const char *what)
{
    return gpp__fail(r->err, GPP_ESYNTAX, "header, byte %zu: %s", (size_t)(at - r->begin), what);
}

static gpp_status no_memory(const reader *r)
{
    return gpp__fail(r->err, GPP_ENOMEM, "what a header of %zu bytes says",
                     (size_t)(r->end - r->begin));
}

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

/* Passes `c` if it comes next, and says whether it did. */
static bool take(reader *r, char c)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* Reads what is between two elements of a list that ends with `close`. *more: there is another
 * element. */
static gpp_status next_element(reader *r, char close, bool *first, bool *more)
{
    *more = false;
    if (take(r, close))
        return GPP_OK;
    if (!*first && !take(r, ','))
        return fail_here(r, close == '}' ? "',' or '}'" : "',' or ']'");
    skip_blanks(r);
    *first = false;
    *more = true;
    return GPP_OK;
}

/* Reads four hexadecimal digits. -1: they are not there. */
static int32_t hex4(reader *r)
{
    int32_t value = 0;
    for (int k = 0; k < 4; k++, r->at++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *d = r->at < r->end && *r->at ? strchr(digits, *r->at) : NULL;
        if (!d)
            return -1;
        value = value << 4 | (int32_t)(d - digits < 16 ? d - digits : d - digits - 6);
    }
    return value;
}

static char *put_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        *out++ = (char)code;
        return out;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *out++ = (char)(0xff00u >> (more + 1) | code >> (6 * more));
    while (more--)
        *out++ = (char)(0x80 | (code >> (6 * more) & 63));
    return out;
}

/* Reads what follows "\u". A character beyond U+FFFF is written as two escapes: a high surrogate,
 * then a low surrogate. */
static gpp_status read_unicode(reader *r, char **out)
{
    const char *start = r->at - 2;
    int32_t code = hex4(r), low;
    if (code < 0)
        return fail_here(r, "four hexadecimal digits");
    if (code == 0)
        return fail_at(r, start, "a string with a NUL character");
    if (code >= 0xd800 && code < 0xdc00) {
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
            return fail_at(r, start, "half of a surrogate pair");
        r->at += 2;
        low = hex4(r);
        if (low < 0xdc00 || low >= 0xe000)
            return fail_at(r, start, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return fail_at(r, start, "half of a surrogate pair");
    }
    *out = put_utf8(*out, (uint32_t)code);
    return GPP_OK;
}

static gpp_status read_escape(reader *r, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    r->at++;
    if (r->at < r->end && *r->at == 'u') {
        r->at++;
        return read_unicode(r, out);
    }
    const char *known = r->at < r->end && *r->at ? strchr(from, *r->at) : NULL;
    if (!known)
        return fail_here(r, "one of \"\\/bfnrtu behind '\\'");
    *(*out)++ = to[known - from];
    r->at++;
    return GPP_OK;
}

/* Copies one character of a string, unescaped. Control characters must be escaped in JSON. */
static gpp_status read_character(reader *r, char **out)
{
    if (*r->at == '\\')
        return read_escape(r, out);
    if ((unsigned char)*r->at < ' ')
        return fail_here(r, "no control character in a string");
    size_t length = gpp__utf8_length(r->at, (size_t)(r->end - r->at));
    if (!length)
        return fail_here(r, "UTF-8");
    memmove(*out, r->at, length);
    *out += length;
    r->at += length;
    return GPP_OK;
}

/* Reads a string, and unescapes it in place: an escape is never shorter than the character that it
 * stands for, and the NUL takes the place of the closing quote. */
static gpp_status read_string(reader *r, const char **string)
{
    skip_blanks(r);
    const char *start = r->at;
    if (r->at == r->end || *r->at != '"')
        return fail_here(r, "a string");
    char *out = ++r->at;
    *string = out;
    while (r->at < r->end && *r->at != '"') {
        gpp_status status = read_character(r, &out);
        if (status != GPP_OK)
            return status;
    }
    if (r->at == r->end)
        return fail_at(r, start, "a string without an end");
    r->at++;
    *out = '\0';
    return GPP_OK;
}

static gpp_status read_key(reader *r, const char **key)
{
    gpp_status status = read_string(r, key);
    if (status != GPP_OK)
        return status;
    return take(r, ':') ? GPP_OK : fail_here(r, "':'");
}

/* As in JSON, a number has no leading zeros. Signs, fractions and exponents are not of this
 * format. */
static gpp_status read_natural(reader *r, int64_t *value)
{
    skip_blanks(r);
    const char *start = r->at;
    *value = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, *r->at - '0', value))
            return fail_at(r, start, "a number of 2^63 or more");
    if (r->at == start)
        return fail_here(r, "a number, 0 or more");
    if (*start == '0' && r->at - start > 1)
        return fail_at(r, start, "a number with a zero in front");
    return GPP_OK;
}

/* Reads a list such as "[1, 2]" of at most `most` numbers. */
static gpp_status read_naturals(reader *r, int most, int64_t value[], int *count)
{
    bool first = true, more;
    *count = 0;
    if (!take(r, '['))
        return fail_here(r, "'['");
    for (;;) {
        gpp_status status = next_element(r, ']', &first, &more);
        if (status != GPP_OK || !more)
            return status;
        if (*count == most)
            return gpp__fail(r->err, GPP_EUNSUPPORTED,
                             "header, byte %zu: more than %d numbers in a list",
                             (size_t)(r->at - r->begin), most);
        if ((status = read_natural(r, &value[(*count)++])) != GPP_OK)
            return status;
    }
}

/* --- arrays ----------------------------------------------------------------------------------- */

/* What an array's object says, and which of its keys have been seen. */
typedef struct description {
    bool type, shape, offsets;
    const char *type_name;
    int64_t offset[2];
} description;

/* Reads one of an array's three properties. They may come in any order, each once. */
static gpp_status read_property(reader *r, description *d, gpp__stored_array *a)
{
    const char *key, *start = r->at;
    int count;
    gpp_status status = read_key(r, &key);
    if (status != GPP_OK)
        return status;
    bool *seen = !strcmp(key, "dtype")          ? &d->type
                 : !strcmp(key, "shape")        ? &d->shape
                 : !strcmp(key, "data_offsets") ? &d->offsets
                                                : NULL;
    if (!seen)
        return fail_at(r, start, "an array has dtype, shape and data_offsets, and nothing else");
    if (*seen)
        return fail_at(r, start, "a key that is there twice");
    *seen = true;
    if (seen == &d->type)
        return read_string(r, &d->type_name);
    if (seen == &d->shape)
        return read_naturals(r, GPP_MAX_RANK, a->dim, &a->rank);
    status = read_naturals(r, 2, d->offset, &count);
    return status == GPP_OK && count != 2 ? fail_at(r, start, "data_offsets are two numbers")
                                          : status;
}

/* Checks that type, shape and offsets agree with each other and lie in the file. They come from
 * a stranger, so nothing may be computed from them before. */
static gpp_status check_array(const reader *r, const description *d, uint64_t data_bytes,
                              gpp__stored_array *a)
{
    char shape[64];
    size_t bytes;
    a->element = gpp__element_find(d->type_name);
    if (!a->element)
        return gpp__fail(r->err, GPP_EUNSUPPORTED, "array \"%.80s\": its type \"%.20s\" is unknown",
                         a->name, d->type_name);
    gpp__dims_text(a->rank, a->dim, shape, sizeof shape);
    if (!gpp__count_elements(a->rank, a->dim, (size_t)a->element->bytes, &a->count, &bytes))
        return gpp__fail(r->err, GPP_ESYNTAX, "array \"%.80s\": shape %s is too large to count",
                         a->name, shape);
    a->begin = (uint64_t)d->offset[0];
    a->end = (uint64_t)d->offset[1];
    if (a->begin > a->end || a->end > data_bytes)
        return gpp__fail(r->err, GPP_ESYNTAX,
                         "array \"%.80s\": data_offsets %" PRIu64 " ... %" PRIu64
                         ", the file has %" PRIu64 " bytes of data",
                         a->name, a->begin, a->end, data_bytes);
    if (a->end - a->begin != bytes)
        return gpp__fail(r->err, GPP_ESYNTAX,
                         "array \"%.80s\": %" PRIu64
                         " bytes by its data_offsets, but %s %s takes %zu",
                         a->name, a->end - a->begin, a->element->name, shape, bytes);
    return GPP_OK;
}

static gpp_status read_array(reader *r, const char *name, uint64_t data_bytes, gpp__stored_array *a)
{
    description d = {0};
    bool first = true, more = true;
    const char *start = r->at;
    *a = (gpp__stored_array){.name = name};
    if (!take(r, '{'))
        return fail_here(r, "'{'");
    for (;;) {
        gpp_status status = next_element(r, '}', &first, &more);
        if (status == GPP_OK && more)
            status = read_property(r, &d, a);
        if (status != GPP_OK)
            return status;
        if (!more)
            break;
    }
    if (!d.type || !d.shape || !d.offsets)
        return fail_at(r, start, "an array without dtype, shape or data_offsets");
    return check_array(r, &d, data_bytes, a);
}

static gpp_status add_array(reader *r, const char *name, uint64_t data_bytes, gpp__safetensors *s)
{
    gpp__stored_array a;
    gpp_status status = read_array(r, name, data_bytes, &a);
    if (status != GPP_OK)
        return status;
    void *list = s->array;
    bool room = gpp__make_room(&list, s->arrays, &s->array_room, sizeof *s->array);
    s->array = list;
    if (!room || !gpp__names_append(&s->array_names, name, s->arrays))
        return no_memory(r);
    s->array[s->arrays++] = a;
    return GPP_OK;
}

/* --- metadata --------------------------------------------------------------------------------- */

static gpp_status read_word(reader *r, gpp__safetensors *s)
{
    gpp__stored_word w;
    gpp_status status = read_key(r, &w.key);
    if (status == GPP_OK)
        status = read_string(r, &w.value);
    if (status != GPP_OK)
        return status;
    void *list = s->word;
    bool room = gpp__make_room(&list, s->words, &s->word_room, sizeof *s->word);
    s->word = list;
    if (!room || !gpp__names_append(&s->word_names, w.key, s->words))
        return no_memory(r);
    s->word[s->words++] = w;
    return GPP_OK;
}

static gpp_status read_words(reader *r, gpp__safetensors *s)
{
    bool first = true, more;
    if (!take(r, '{'))
        return fail_here(r, "'{'");
    for (;;) {
        gpp_status status = next_element(r, '}', &first, &more);
        if (status == GPP_OK && more)
            status = read_word(r, s);
        if (status != GPP_OK || !more)
            return status;
    }
}

/* --- the header ------------------------------------------------------------------------------- */

static gpp_status read_header(reader *r, uint64_t data_bytes, gpp__safetensors *s)
{
    bool first = true, more, words = false;
    if (r->at == r->end || *r->at != '{')
        return fail_here(r, "'{'");
    r->at++;
    for (;;) {
        const char *name, *start;
        gpp_status status = next_element(r, '}', &first, &more);
        if (status != GPP_OK || !more)
            return status;
        start = r->at;
        status = read_key(r, &name);
        if (status == GPP_OK && strcmp(name, GPP__SAFETENSORS_WORDS)) {
            status = add_array(r, name, data_bytes, s);
        } else if (status == GPP_OK) {
            if (words)
                return fail_at(r, start, "a second \"" GPP__SAFETENSORS_WORDS "\"");
            words = true;
            status = read_words(r, s);
        }
        if (status != GPP_OK)
            return status;
    }
}

/* Empty arrays may share an offset with their neighbour, so the end decides between equal
 * beginnings. */
static int by_offset(const void *a, const void *b)
{
    const gpp__stored_array *x = *(gpp__stored_array *const *)a,
                            *y = *(gpp__stored_array *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Checks that the arrays, sorted by offset, cover the data without overlap and without gap. */
static gpp_status check_cover(gpp__stored_array *const sorted[], int count, uint64_t data_bytes,
                              gpp_error *err)
{
    uint64_t covered = 0;
    for (int k = 0; k < count; k++) {
        const gpp__stored_array *a = sorted[k];
        if (a->begin < covered)
            return gpp__fail(err, GPP_ESYNTAX,
                             "array \"%.80s\" begins at byte %" PRIu64
                             " of the data, inside \"%.80s\", which ends at %" PRIu64,
                             a->name, a->begin, sorted[k - 1]->name, covered);
        if (a->begin > covered)
            return gpp__fail(err, GPP_ESYNTAX,
                             "bytes %" PRIu64 " ... %" PRIu64
                             " of the data, in front of \"%.80s\", are no array's",
                             covered, a->begin, a->name);
        covered = a->end;
    }
    if (covered != data_bytes)
        return gpp__fail(err, GPP_ESYNTAX,
                         "the arrays end at byte %" PRIu64 " of the data, the file has %" PRIu64,
                         covered, data_bytes);
    return GPP_OK;
}

static gpp_status check_offsets(const reader *r, uint64_t data_bytes, const gpp__safetensors *s)
{
    gpp__stored_array **sorted = calloc((size_t)s->arrays + 1, sizeof *sorted);
    if (!sorted)
        return no_memory(r);
    for (int k = 0; k < s->arrays; k++)
        sorted[k] = &s->array[k];
    qsort(sorted, (size_t)s->arrays, sizeof *sorted, by_offset);
    gpp_status status = check_cover(sorted, s->arrays, data_bytes, r->err);
    free(sorted);
    return status;
}

/* Names are checked after the header has been read: sorting them once takes O(n log n). */
static gpp_status check_names(const reader *r, gpp__safetensors *s)
{
    const char *twice = gpp__names_sort(&s->array_names);
    if (twice)
        return gpp__fail(r->err, GPP_ESYNTAX, "two arrays are called \"%.80s\"", twice);
    twice = gpp__names_sort(&s->word_names);
    if (twice)
        return gpp__fail(r->err, GPP_ESYNTAX, "the metadata has \"%.80s\" twice", twice);
    return GPP_OK;
}

gpp_status gpp__safetensors_parse(gpp__safetensors *out, char *header, size_t length,
                                  uint64_t data_bytes, gpp_error *err)
{
    reader r = {header, header + length, header, err};
    *out = (gpp__safetensors){0};
    gpp_status status = read_header(&r, data_bytes, out);
    skip_blanks(&r);
    if (status == GPP_OK && r.at != r.end)
        status = fail_here(&r, "nothing but blanks behind the object");
    if (status == GPP_OK)
        status = check_names(&r, out);
    if (status == GPP_OK)
        status = check_offsets(&r, data_bytes, out);
    if (status != GPP_OK)
        gpp__safetensors_release(out);
    return status;
}

void gpp__safetensors_release(gpp__safetensors *s)
{
    free(s->array);
    free(s->word);
    gpp__names_release(&s->array_names);
    gpp__names_release(&s->word_names);
    *s = (gpp__safetensors){0};
}
