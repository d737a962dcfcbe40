/*
 * examples/idx.c: see idx.h. Files are checked before they are believed: a wrong header, a short
 * file or one that goes on too long is an error with its name in it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "idx.h"

enum { UNSIGNED_BYTES = 0x08, LARGEST = 1 << 30 };

typedef struct source {
    gzFile file;
    char path[1024];
    char *why;
    size_t size;
} source;

static bool wrong(source *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool wrong(source *s, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(s->why, s->size, "%s: %s", s->path, what);
    return false;
}

static bool read_bytes(source *s, void *to, size_t count)
{
    int got = gzread(s->file, to, (unsigned)count), code;
    if (got == (int)count)
        return true;
    if (got >= 0)
        return wrong(s, "ends too early: %zu bytes expected, %d found", count, got);
    return wrong(s, "%s", gzerror(s->file, &code));
}

static bool read_header(source *s, int rank, idx *out, size_t *count)
{
    unsigned char head[4], d[4];
    if (!read_bytes(s, head, sizeof head))
        return false;
    if (head[0] || head[1] || head[2] != UNSIGNED_BYTES || head[3] != rank)
        return wrong(s, "no IDX file of unsigned bytes with %d dimensions", rank);
    *count = 1;
    out->rank = rank;
    for (int k = 0; k < rank; k++) {
        if (!read_bytes(s, d, sizeof d))
            return false;
        out->dim[k] = (size_t)d[0] << 24 | (size_t)d[1] << 16 | (size_t)d[2] << 8 | d[3];
        if (out->dim[k] == 0 || out->dim[k] > LARGEST / *count)
            return wrong(s, "dimension %d is %zu, which is not plausible", k, out->dim[k]);
        *count *= out->dim[k];
    }
    return true;
}

static bool read_array(source *s, int rank, idx *out)
{
    size_t count = 0;
    char more;
    int code, extra;
    if (!read_header(s, rank, out, &count))
        return false;
    out->data = malloc(count);
    if (!out->data)
        return wrong(s, "no memory for %zu bytes", count);
    if (!read_bytes(s, out->data, count))
        return false;
    extra = gzread(s->file, &more, 1); /* at the end of the file its checksum is compared, too */
    if (extra < 0)
        return wrong(s, "%s", gzerror(s->file, &code));
    return extra == 0 || wrong(s, "goes on after its last element");
}

bool idx_read(const char *directory, const char *name, int rank, idx *out, char *why, size_t size)
{
    source s = {.why = why, .size = size};
    memset(out, 0, sizeof *out);
    snprintf(s.path, sizeof s.path, "%s/%s", directory, name);
    s.file = gzopen(s.path, "rb");
    if (!s.file)
        return wrong(&s, "cannot be opened");
    bool good = read_array(&s, rank, out);
    gzclose(s.file);
    if (!good)
        idx_release(out);
    return good;
}

void idx_release(idx *array)
{
    free(array->data);
    memset(array, 0, sizeof *array);
}
