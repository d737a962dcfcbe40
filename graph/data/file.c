/*
 * graph/data/file.c: named arrays and words in memory, and reading them from a safetensors file.
 *
 * Memory has the two types of gpp_tensor. Narrower floats become float32 and narrower integers
 * int64, without loss; float64 is rounded to nearest. No array is allocated before the file has
 * turned out to be as long as its header says.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/data/file.h"

/* --- in memory -------------------------------------------------------------------------------- */

gpp_status gpp_file_new(gpp_file **file, gpp_error *err)
{
    if (!file)
        return gpp__fail(err, GPP_EINVAL, "file is NULL");
    *file = calloc(1, sizeof **file);
    return *file ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "a file in memory");
}

void gpp_file_free(gpp_file *f)
{
    if (!f)
        return;
    for (int k = 0; k < f->arrays; k++) {
        free(f->array[k].name);
        free(f->array[k].tensor.data);
    }
    for (int k = 0; k < f->words; k++) {
        free(f->word[k].key);
        free(f->word[k].value);
    }
    gpp__names_release(&f->array_names);
    gpp__names_release(&f->word_names);
    free(f->array);
    free(f->word);
    free(f);
}

int gpp_file_count(const gpp_file *f)
{
    return f ? f->arrays : 0;
}

gpp_status gpp_file_array(const gpp_file *f, int index, const char **name, gpp_tensor *tensor,
                          gpp_error *err)
{
    if (!f)
        return gpp__fail(err, GPP_EINVAL, "file is NULL");
    if (index < 0 || index >= f->arrays)
        return gpp__fail(err, GPP_ENOENT, "array %d of %d", index, f->arrays);
    if (name)
        *name = f->array[index].name;
    if (tensor)
        *tensor = f->array[index].tensor;
    return GPP_OK;
}

gpp_status gpp_file_find(const gpp_file *f, const char *name, gpp_tensor *tensor, gpp_error *err)
{
    if (!f || !name)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", f ? "name" : "file");
    int at = gpp__names_find(&f->array_names, name);
    if (at < 0)
        return gpp__fail(err, GPP_ENOENT, "the file has no array \"%.80s\"", name);
    if (tensor)
        *tensor = f->array[at].tensor;
    return GPP_OK;
}

/* The format requires UTF-8, and readers of other languages refuse anything else. */
static bool is_utf8(const char *text)
{
    size_t room = strlen(text), length = 1;
    for (; room && length; room -= length, text += length)
        length = gpp__utf8_length(text, room);
    return !room;
}

/* Whether an array of this name may be added. The name of the metadata is taken. */
static gpp_status check_new(const gpp_file *f, const char *name, int rank, gpp_error *err)
{
    if (!f || !name)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", f ? "name" : "file");
    if (!is_utf8(name) || !strcmp(name, GPP__SAFETENSORS_WORDS))
        return gpp__fail(err, GPP_EINVAL, "no array can be called \"%.80s\"", name);
    if (gpp__names_find(&f->array_names, name) >= 0)
        return gpp__fail(err, GPP_EINVAL, "a second array \"%.80s\"", name);
    if (rank < 0 || rank > GPP_MAX_RANK)
        return gpp__fail(err, GPP_EINVAL, "array \"%.80s\": its rank must be 0 ... %d, got %d",
                         name, GPP_MAX_RANK, rank);
    return GPP_OK;
}

/* @param sorted  keep the names in order; else the caller sorts them in the end
 *                (gpp__names_sort) */
static gpp_status append_array(gpp_file *f, const char *name, const gpp_tensor *shape, size_t count,
                               size_t bytes, bool sorted, gpp_error *err)
{
    void *list = f->array;
    bool room = gpp__make_room(&list, f->arrays, &f->array_room, sizeof *f->array);
    f->array = list;
    struct gpp__file_array a = {.tensor = *shape, .count = count};
    if (!room)
        return gpp__fail(err, GPP_ENOMEM, "%d arrays", f->arrays + 1);
    a.name = strdup(name);
    a.tensor.data = malloc(bytes ? bytes : 1);
    if (!a.name || !a.tensor.data ||
        !(sorted ? gpp__names_add : gpp__names_append)(&f->array_names, a.name, f->arrays)) {
        free(a.name);
        free(a.tensor.data);
        return gpp__fail(err, GPP_ENOMEM, "array \"%.80s\", %zu bytes", name, bytes);
    }
    f->array[f->arrays++] = a;
    return GPP_OK;
}

gpp_status gpp__file_room(gpp_file *f, const char *name, gpp_dtype dtype, int rank,
                          const int64_t dim[], void **data, gpp_error *err)
{
    char text[80];
    size_t count, bytes;
    gpp_status status = check_new(f, name, rank, err);
    if (status != GPP_OK)
        return status;
    if (!gpp_dtype_size(dtype))
        return gpp__fail(err, GPP_EINVAL, "array \"%.80s\": %d is no type", name, (int)dtype);
    gpp_tensor shape = {.dtype = dtype, .rank = rank};
    for (int d = 0; d < rank; d++)
        shape.dim[d] = dim[d];
    if (!gpp__count_elements(rank, dim, gpp_dtype_size(dtype), &count, &bytes))
        return gpp__fail(err, GPP_EINVAL, "array \"%.80s\": there is no shape %s", name,
                         gpp__dims_text(rank, dim, text, sizeof text));
    status = append_array(f, name, &shape, count, bytes, true, err);
    if (status == GPP_OK)
        *data = f->array[f->arrays - 1].tensor.data;
    return status;
}

gpp_status gpp_file_add(gpp_file *f, const char *name, const gpp_tensor *t, gpp_error *err)
{
    void *data = NULL;
    size_t count, bytes;
    if (!t)
        return gpp__fail(err, GPP_EINVAL, "tensor is NULL");
    bool countable = t->rank >= 0 && t->rank <= GPP_MAX_RANK &&
                     gpp__count_elements(t->rank, t->dim, gpp_dtype_size(t->dtype), &count, &bytes);
    if (countable && bytes && !t->data)
        return gpp__fail(err, GPP_EINVAL, "array \"%.80s\" has %zu elements but no data",
                         name ? name : "", count);
    gpp_status status = gpp__file_room(f, name, t->dtype, t->rank, t->dim, &data, err);
    if (status == GPP_OK && bytes)
        memcpy(data, t->data, bytes);
    return status;
}

const char *gpp_file_word(const gpp_file *f, const char *key)
{
    int at = f && key ? gpp__names_find(&f->word_names, key) : -1;
    return at < 0 ? NULL : f->word[at].value;
}

static bool append_word(gpp_file *f, char *key, char *value, bool sorted)
{
    void *list = f->word;
    bool room = gpp__make_room(&list, f->words, &f->word_room, sizeof *f->word);
    f->word = list;
    if (!room || !(sorted ? gpp__names_add : gpp__names_append)(&f->word_names, key, f->words))
        return false;
    f->word[f->words++] = (struct gpp__file_word){key, value};
    return true;
}

gpp_status gpp_file_set_word(gpp_file *f, const char *key, const char *value, gpp_error *err)
{
    if (!f || !key || !value)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", !f ? "file" : !key ? "key" : "value");
    if (!is_utf8(key) || !is_utf8(value))
        return gpp__fail(err, GPP_EINVAL, "word \"%.80s\" is not UTF-8", key);
    int at = gpp__names_find(&f->word_names, key);
    char *copy = strdup(value), *name = at < 0 ? strdup(key) : NULL;
    if (at >= 0 && copy) {
        free(f->word[at].value);
        f->word[at].value = copy;
        return GPP_OK;
    }
    if (copy && name && append_word(f, name, copy, true))
        return GPP_OK;
    free(copy);
    free(name);
    return gpp__fail(err, GPP_ENOMEM, "word \"%.80s\"", key);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Where bytes come from: a file, or memory. */
typedef struct source {
    int fd; /* -1: memory */
    const char *bytes;
    uint64_t size;
} source;

/* Reads exactly `bytes` bytes. The header has been checked against the file's size, so an end of
 * the file here means that somebody else has cut the file. */
static gpp_status fetch(const source *s, uint64_t at, void *to, size_t bytes, gpp_error *err)
{
    if (s->fd < 0) {
        memcpy(to, s->bytes + at, bytes);
        return GPP_OK;
    }
    for (char *out = to; bytes;) {
        ssize_t got = pread(s->fd, out, bytes, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return gpp__fail(err, GPP_EIO, "%s", strerror(errno));
        if (got == 0)
            return gpp__fail(err, GPP_EIO, "it has become shorter while it was read");
        out += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return GPP_OK;
}

/* Reads and converts an array in pieces: the stored type may be of another width, and a buffer
 * for all of it would double the memory. */
static gpp_status read_values(const source *s, uint64_t at, const gpp__stored_array *a, void *data,
                              gpp_error *err)
{
    enum { PIECE = 1 << 14 };
    unsigned char raw[PIECE];
    const gpp__element *e = a->element;
    size_t width = gpp_dtype_size(e->dtype), most = PIECE / (size_t)e->bytes;
    for (size_t done = 0; done < a->count;) {
        size_t count = a->count - done < most ? a->count - done : most;
        gpp_status status =
            fetch(s, at + done * (size_t)e->bytes, raw, count * (size_t)e->bytes, err);
        if (status != GPP_OK)
            return status;
        e->decode(raw, count, (char *)data + done * width);
        done += count;
    }
    return GPP_OK;
}

static gpp_status take_array(gpp_file *f, const source *s, uint64_t data_at,
                             const gpp__stored_array *a, gpp_error *err)
{
    gpp_tensor shape = {.dtype = a->element->dtype, .rank = a->rank};
    size_t bytes;
    memcpy(shape.dim, a->dim, sizeof shape.dim);
    if (!gpp__mul(a->count, gpp_dtype_size(shape.dtype), &bytes))
        return gpp__fail(err, GPP_ENOMEM, "array \"%.80s\"", a->name);
    gpp_status status = append_array(f, a->name, &shape, a->count, bytes, false, err);
    return status == GPP_OK
               ? read_values(s, data_at + a->begin, a, f->array[f->arrays - 1].tensor.data, err)
               : status;
}

static gpp_status take_word(gpp_file *f, const gpp__stored_word *w, gpp_error *err)
{
    char *key = strdup(w->key), *value = strdup(w->value);
    if (key && value && append_word(f, key, value, false))
        return GPP_OK;
    free(key);
    free(value);
    return gpp__fail(err, GPP_ENOMEM, "word \"%.80s\"", w->key);
}

/* Appends what the header describes. Names are sorted once, when all are there: keeping them in
 * order meanwhile would take quadratic time. */
static gpp_status take_contents(gpp_file *f, const source *s, uint64_t data_at,
                                const gpp__safetensors *h, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < h->words && status == GPP_OK; k++)
        status = take_word(f, &h->word[k], err);
    for (int k = 0; k < h->arrays && status == GPP_OK; k++)
        status = take_array(f, s, data_at, &h->array[k], err);
    gpp__names_sort(&f->array_names);
    gpp__names_sort(&f->word_names);
    return status;
}

/* Reads the length of the header. Any file begins with some eight bytes, so the length is
 * checked before memory for it is allocated. */
static gpp_status read_length(const source *s, size_t *length, gpp_error *err)
{
    unsigned char bytes[GPP__SAFETENSORS_LENGTH];
    uint64_t value = 0;
    if (s->size < sizeof bytes)
        return gpp__fail(err, GPP_ESYNTAX,
                         "%llu bytes are no safetensors file: it begins with the 8 of a length",
                         (unsigned long long)s->size);
    gpp_status status = fetch(s, 0, bytes, sizeof bytes, err);
    if (status != GPP_OK)
        return status;
    for (int k = sizeof bytes - 1; k >= 0; k--)
        value = value << 8 | bytes[k];
    if (value > GPP__SAFETENSORS_LONGEST)
        return gpp__fail(err, GPP_ESYNTAX,
                         "no safetensors file: its header would have %llu bytes, the most is %zu",
                         (unsigned long long)value, GPP__SAFETENSORS_LONGEST);
    if (value > s->size - sizeof bytes)
        return gpp__fail(
            err, GPP_ESYNTAX,
            "cut off, or no safetensors file: a header of %llu bytes in a file of %llu",
            (unsigned long long)value, (unsigned long long)s->size);
    *length = (size_t)value;
    return GPP_OK;
}

static gpp_status read_source(gpp_file *f, const source *s, gpp_error *err)
{
    size_t length = 0;
    gpp__safetensors h = {0};
    gpp_status status = read_length(s, &length, err);
    if (status != GPP_OK)
        return status;
    char *header = malloc(length + 1);
    if (!header)
        return gpp__fail(err, GPP_ENOMEM, "a header of %zu bytes", length);
    uint64_t data_at = GPP__SAFETENSORS_LENGTH + length;
    status = fetch(s, GPP__SAFETENSORS_LENGTH, header, length, err);
    if (status == GPP_OK)
        status = gpp__safetensors_parse(&h, header, length, s->size - data_at, err);
    if (status == GPP_OK)
        status = take_contents(f, s, data_at, &h, err);
    gpp__safetensors_release(&h);
    free(header);
    return status;
}

gpp_status gpp__file_parse(gpp_file **file, const void *bytes, size_t size, gpp_error *err)
{
    const source s = {-1, bytes, size};
    gpp_status status = gpp_file_new(file, err);
    if (status == GPP_OK)
        status = read_source(*file, &s, err);
    if (status != GPP_OK) {
        gpp_file_free(*file);
        *file = NULL;
    }
    return status;
}

static gpp_status open_source(source *s, const char *path, gpp_error *err)
{
    struct stat st;
    /* O_NONBLOCK: opening a named pipe would otherwise wait for its writer. */
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0)
        return gpp__fail(err, GPP_EIO, "%s", strerror(errno));
    if (fstat(s->fd, &st))
        gpp__fail(err, GPP_EIO, "%s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        gpp__fail(err, GPP_EIO, "it is not a regular file");
    else {
        s->size = (uint64_t)st.st_size;
        return GPP_OK;
    }
    close(s->fd);
    return GPP_EIO;
}

gpp_status gpp_file_read(gpp_file **file, const char *path, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    source s = {-1, NULL, 0};
    if (!file || !path)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", file ? "path" : "file");
    *file = NULL;
    gpp_status status = open_source(&s, path, &inner);
    if (status != GPP_OK)
        return gpp__fail(err, status, "reading \"%.300s\": %s", path, inner.msg);
    status = gpp_file_new(file, &inner);
    if (status == GPP_OK)
        status = read_source(*file, &s, &inner);
    close(s.fd);
    if (status == GPP_OK)
        return GPP_OK;
    gpp_file_free(*file);
    *file = NULL;
    return gpp__fail(err, status, "reading \"%.300s\": %s", path, inner.msg);
}
