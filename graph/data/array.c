/*
 * graph/data/array.c: arrays from files: IDX, .npy, CIFAR-10.
 *
 * Nothing that a file says about itself is believed before it is checked. Products of dimensions
 * may not overflow. Memory grows with the bytes that really come (at most FIRST elements or twice
 * what has come), so a short file with a huge header costs little. Numbers are put together byte by
 * byte, so the machine's own byte order does not matter.
 *
 * IDX: two zero bytes, the type, the number of dimensions, each dimension as 32 bits, big-endian
 * elements. .npy: graph/data/npy.h. CIFAR-10: records of a label byte and 3 · 32 · 32 bytes.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe/data.h>

#include "graph/data/npy.h"
#include "graph/data/source.h"

enum {
    PIECE = 1 << 14,         /* bytes of elements that are converted at a time */
    FIRST = 1 << 20,         /* elements that the first allocation has room for */
    LONGEST_HEADER = 1 << 20 /* bytes, of a .npy file; the headers that NumPy writes have 118 */
};

/* --- elements --------------------------------------------------------------------------------- */

typedef enum kind { BOOLEAN, SIGNED, UNSIGNED, REAL } kind;

typedef struct element {
    kind kind;
    int width; /* bytes of an element */
    bool big_endian;
} element;

static gpp_dtype dtype_of(element e)
{
    return e.kind == REAL ? GPP_F32 : GPP_I64;
}

static inline uint64_t bits(const unsigned char *raw, element e)
{
    uint64_t v = 0;
    for (int k = 0; k < e.width; k++)
        v = v << 8 | raw[e.big_endian ? k : e.width - 1 - k];
    return v;
}

static inline int64_t integer(uint64_t v, element e)
{
    if (e.kind == BOOLEAN)
        return v != 0;
    int unused = 64 - 8 * e.width;
    return e.kind == SIGNED ? (int64_t)(v << unused) >> unused : (int64_t)v;
}

static inline float real(uint64_t v, element e)
{
    if (e.width == 8) {
        double wide;
        memcpy(&wide, &v, sizeof wide);
        return (float)wide;
    }
    uint32_t low = (uint32_t)v;
    float narrow;
    memcpy(&narrow, &low, sizeof narrow);
    return narrow;
}

/* The first element that exceeds INT64_MAX, or -1. Only unsigned integers of 64 bits can. */
static int64_t first_too_large(const unsigned char *raw, int64_t count, element e)
{
    if (e.kind != UNSIGNED || e.width < 8)
        return -1;
    for (int64_t k = 0; k < count; k++)
        if (bits(raw + 8 * k, e) > INT64_MAX)
            return k;
    return -1;
}

/* Converts `count` elements, the first of which goes to position `at`. */
static void convert(gpp_tensor *t, int64_t at, const unsigned char *raw, int64_t count, element e)
{
    if (e.kind == UNSIGNED && e.width == 1) { /* images and labels: worth a loop of its own */
        int64_t *to = (int64_t *)t->data + at;
        for (int64_t k = 0; k < count; k++)
            to[k] = raw[k];
    } else if (e.kind == REAL) {
        float *to = (float *)t->data + at;
        for (int64_t k = 0; k < count; k++)
            to[k] = real(bits(raw + k * e.width, e), e);
    } else {
        int64_t *to = (int64_t *)t->data + at;
        for (int64_t k = 0; k < count; k++)
            to[k] = integer(bits(raw + k * e.width, e), e);
    }
}

/* --- arrays that grow ------------------------------------------------------------------------- */

/* Counts the elements of a tensor. False: memory cannot address that many. Dimensions of 0 are left
 * out of this check, so that the others may not overflow either. */
static bool count_elements(const gpp_tensor *t, int64_t *count)
{
    int64_t addressable = (int64_t)gpp_dtype_size(t->dtype);
    *count = 1;
    for (int k = 0; k < t->rank; k++) {
        int64_t dim = t->dim[k] ? t->dim[k] : 1;
        if (dim < 0 || __builtin_mul_overflow(addressable, dim, &addressable))
            return false;
        *count *= t->dim[k];
    }
    return addressable <= PTRDIFF_MAX;
}

static gpp_status resize(gpp__source *s, gpp_tensor *t, int64_t count, gpp_error *err)
{
    size_t bytes = (size_t)count * gpp_dtype_size(t->dtype);
    void *data = realloc(t->data, bytes ? bytes : 1);
    if (!data)
        return gpp__source_fail(s, err, GPP_ENOMEM, "no memory for %zu bytes of elements", bytes);
    t->data = data;
    return GPP_OK;
}

/* Makes room for `more` elements behind the first `have`. `count` is the number expected in the
 * end; it may be a guess. */
static gpp_status make_room(gpp__source *s, gpp_tensor *t, int64_t have, int64_t more,
                            int64_t count, int64_t *room, gpp_error *err)
{
    if (have + more <= *room)
        return GPP_OK;
    int64_t twice = *room > INT64_MAX / 2 ? count : 2 * *room, want = twice > FIRST ? twice : FIRST;
    if (want > count)
        want = count;
    if (want < have + more)
        want = have + more;
    gpp_status status = resize(s, t, want, err);
    if (!status)
        *room = want;
    return status;
}

/* Reads and converts one piece of at most PIECE bytes. */
static gpp_status read_piece(gpp__source *s, gpp_tensor *t, int64_t at, int64_t count, element e,
                             gpp_error *err)
{
    unsigned char raw[PIECE];
    gpp_status status = gpp__source_read(s, raw, (size_t)(count * e.width), "elements", err);
    if (status)
        return status;
    int64_t large = first_too_large(raw, count, e);
    if (large >= 0)
        return gpp__source_fail(s, err, GPP_EUNSUPPORTED,
                                "element %" PRId64 " is %" PRIu64 ", integers up to %" PRId64
                                " expected",
                                at + large, bits(raw + 8 * large, e), INT64_MAX);
    convert(t, at, raw, count, e);
    return GPP_OK;
}

/* Reads the elements of a tensor whose shape and type are set. They must be all that is left of the
 * file. */
static gpp_status read_elements(gpp__source *s, gpp_tensor *t, element e, gpp_error *err)
{
    int64_t count, room = 0;
    gpp_status status = GPP_OK;
    t->dtype = dtype_of(e);
    if (!count_elements(t, &count))
        return gpp__source_fail(s, err, GPP_ESYNTAX,
                                "its %d dimensions hold more elements than memory can", t->rank);
    status = gpp__source_holds(s, (uint64_t)count * (uint64_t)e.width, "elements", err);
    for (int64_t at = 0, some; !status && at < count; at += some) {
        some = count - at < PIECE / e.width ? count - at : PIECE / e.width;
        status = make_room(s, t, at, some, count, &room, err);
        if (!status)
            status = read_piece(s, t, at, some, e, err);
    }
    return status ? status : gpp__source_end(s, err);
}

/* --- IDX -------------------------------------------------------------------------------------- */

static const element idx_types[] = {
    [0x08] = {UNSIGNED, 1, true}, [0x09] = {SIGNED, 1, true}, [0x0B] = {SIGNED, 2, true},
    [0x0C] = {SIGNED, 4, true},   [0x0D] = {REAL, 4, true},   [0x0E] = {REAL, 8, true},
};

/* Reads what follows the first four bytes of an IDX file, which are 0, 0, type, rank. */
static gpp_status read_idx(gpp__source *s, gpp_tensor *t, int type, int rank, gpp_error *err)
{
    if ((size_t)type >= sizeof idx_types / sizeof *idx_types || !idx_types[type].width)
        return gpp__source_fail(
            s, err, GPP_ESYNTAX,
            "IDX type 0x%02x at byte 2; 0x08, 0x09, 0x0b, 0x0c, 0x0d or 0x0e expected",
            (unsigned)type);
    if (rank < 1 || rank > GPP_MAX_RANK)
        return gpp__source_fail(s, err, rank ? GPP_EUNSUPPORTED : GPP_ESYNTAX,
                                "%d dimensions at byte 3, 1 to %d expected", rank, GPP_MAX_RANK);
    t->rank = rank;
    for (int k = 0; k < rank; k++) {
        unsigned char raw[4];
        gpp_status status = gpp__source_read(s, raw, sizeof raw, "dimensions", err);
        if (status)
            return status;
        t->dim[k] = (int64_t)bits(raw, (element){UNSIGNED, 4, true});
    }
    return read_elements(s, t, idx_types[type], err);
}

/* --- .npy ------------------------------------------------------------------------------------- */

static gpp_status npy_element(gpp__source *s, const char *descr, element *e, gpp_error *err)
{
    static const struct {
        const char *type;
        kind kind;
        int width;
    } known[] = {
        {"b1", BOOLEAN, 1},  {"i1", SIGNED, 1},   {"i2", SIGNED, 2},   {"i4", SIGNED, 4},
        {"i8", SIGNED, 8},   {"u1", UNSIGNED, 1}, {"u2", UNSIGNED, 2}, {"u4", UNSIGNED, 4},
        {"u8", UNSIGNED, 8}, {"f4", REAL, 4},     {"f8", REAL, 8},
    };
    char order = descr[0];
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        bool ordered = order == '<' || order == '>' || (order == '|' && known[k].width == 1);
        if (!ordered || strcmp(descr + 1, known[k].type) != 0)
            continue;
        *e = (element){known[k].kind, known[k].width, order == '>'};
        return GPP_OK;
    }
    return gpp__source_fail(s, err, GPP_EUNSUPPORTED,
                            "npy elements of type '%s'; b1, i1 to i8, u1 to u8, f4 or f8 expected, "
                            "behind '<', '>' or for one byte '|'",
                            descr);
}

/* Reads what follows magic and version: the length, in 2 bytes or, since version 2, in 4; then the
 * text. */
static gpp_status npy_header(gpp__source *s, int version, gpp__npy *npy, gpp_error *err)
{
    unsigned char raw[4];
    int width = version == 1 ? 2 : 4;
    gpp_status status = gpp__source_read(s, raw, (size_t)width, "header", err);
    if (status)
        return status;
    size_t length = (size_t)bits(raw, (element){UNSIGNED, width, false}), at = gpp__source_at(s);
    if (length > LONGEST_HEADER)
        return gpp__source_fail(s, err, GPP_ESYNTAX,
                                "an npy header of %zu bytes, at most %d expected", length,
                                LONGEST_HEADER);
    char *text = malloc(length + 1);
    if (!text)
        return gpp__source_fail(s, err, GPP_ENOMEM, "no memory for a header of %zu bytes", length);
    status = gpp__source_read(s, text, length, "header", err);
    const char *wrong = status ? NULL : gpp__npy_parse(text, length, npy);
    if (wrong)
        status = gpp__source_fail(s, err, npy->code, "npy header, byte %zu of the file: %s",
                                  at + npy->offset, wrong);
    free(text);
    return status;
}

static void copy_element(gpp_tensor *to, int64_t a, const gpp_tensor *from, int64_t b)
{
    size_t size = gpp_dtype_size(to->dtype);
    memcpy((char *)to->data + (size_t)a * size, (const char *)from->data + (size_t)b * size, size);
}

/* Reorders a tensor whose first dimension runs fastest, so that the last one does. `index` counts
 * like an odometer through the new order, and `from` follows it with the file's strides. */
static gpp_status straighten(gpp__source *s, gpp_tensor *t, gpp_error *err)
{
    int64_t index[GPP_MAX_RANK] = {0}, stride[GPP_MAX_RANK], count = 1, from = 0;
    gpp_tensor out = *t;
    out.data = NULL;
    for (int k = 0; k < t->rank; count *= t->dim[k++])
        stride[k] = count;
    gpp_status status = resize(s, &out, count, err);
    if (status)
        return status;
    for (int64_t to = 0; to < count; to++) {
        copy_element(&out, to, t, from);
        for (int k = t->rank - 1; k >= 0; k--) {
            from += stride[k];
            if (++index[k] < t->dim[k])
                break;
            from -= index[k] * stride[k];
            index[k] = 0;
        }
    }
    free(t->data);
    t->data = out.data;
    return GPP_OK;
}

/* Reads what follows the first four bytes of the magic. */
static gpp_status read_npy(gpp__source *s, gpp_tensor *t, gpp_error *err)
{
    unsigned char raw[4];
    gpp__npy npy;
    element e = {0};
    gpp_status status = gpp__source_read(s, raw, sizeof raw, "header", err);
    if (status)
        return status;
    if (raw[0] != 'P' || raw[1] != 'Y' || raw[2] < 1 || raw[2] > 3 || raw[3] != 0)
        return gpp__source_fail(
            s, err, GPP_ESYNTAX,
            "bytes 4 to 7 are %02x %02x %02x %02x; \"PY\" and version 1.0, 2.0 or 3.0 expected",
            raw[0], raw[1], raw[2], raw[3]);
    status = npy_header(s, raw[2], &npy, err);
    if (!status)
        status = npy_element(s, npy.descr, &e, err);
    if (status)
        return status;
    t->rank = npy.rank;
    memcpy(t->dim, npy.dim, sizeof t->dim);
    status = read_elements(s, t, e, err);
    return status || !npy.fortran || t->rank < 2 ? status : straighten(s, t, err);
}

/* --- any format ------------------------------------------------------------------------------- */

static gpp_status read_any(gpp__source *s, gpp_tensor *t, gpp_error *err)
{
    unsigned char first[4];
    gpp_status status = gpp__source_read(s, first, sizeof first, "header", err);
    if (status)
        return status;
    if (first[0] == 0 && first[1] == 0)
        return read_idx(s, t, first[2], first[3], err);
    if (memcmp(first, "\x93NUM", 4) == 0)
        return read_npy(s, t, err);
    return gpp__source_fail(s, err, GPP_ESYNTAX,
                            "begins with %02x %02x %02x %02x; 00 00 (IDX) or 93 4e 55 4d (npy) "
                            "expected",
                            first[0], first[1], first[2], first[3]);
}

gpp_status gpp_array_read(const char *path, gpp_array *array, gpp_error *err)
{
    gpp__source *s;
    if (array)
        *array = (gpp_array){0};
    if (!path || !array)
        return gpp__fail(err, GPP_EINVAL, "reading an array: path or array is NULL");
    gpp_status status = gpp__source_open(&s, path, err);
    if (status)
        return status;
    status = read_any(s, &array->tensor, err);
    if (status)
        gpp_array_free(array);
    gpp__source_close(s);
    return status;
}

void gpp_array_free(gpp_array *array)
{
    if (!array)
        return;
    free(array->tensor.data);
    *array = (gpp_array){0};
}

/* --- CIFAR-10 --------------------------------------------------------------------------------- */

enum { CIFAR_PIXELS = 3 * 32 * 32, CIFAR_RECORD = 1 + CIFAR_PIXELS, CIFAR_CLASSES = 10 };

typedef struct cifar {
    gpp_tensor *images, *labels;
    int64_t room; /* records that the tensors have memory for */
} cifar;

static gpp_status add_record(cifar *c, gpp__source *s, const unsigned char raw[], gpp_error *err)
{
    int64_t at = c->labels->dim[0];
    if (raw[0] >= CIFAR_CLASSES)
        return gpp__source_fail(s, err, GPP_ESYNTAX,
                                "label %d at byte %" PRIu64 ", 0 to %d expected", raw[0],
                                gpp__source_at(s) - CIFAR_RECORD, CIFAR_CLASSES - 1);
    if (at == c->room) {
        int64_t room = c->room ? 2 * c->room : 1024;
        gpp_status status = resize(s, c->images, room * CIFAR_PIXELS, err);
        if (!status)
            status = resize(s, c->labels, room, err);
        if (status)
            return status;
        c->room = room;
    }
    float *image = (float *)c->images->data + at * CIFAR_PIXELS;
    for (int k = 0; k < CIFAR_PIXELS; k++)
        image[k] = raw[1 + k];
    ((int64_t *)c->labels->data)[at] = raw[0];
    c->images->dim[0] = c->labels->dim[0] = at + 1;
    return GPP_OK;
}

/* Reads one file: at least one record, and whole records only. */
static gpp_status read_records(cifar *c, gpp__source *s, gpp_error *err)
{
    unsigned char raw[CIFAR_RECORD];
    bool over = false;
    gpp_status status = GPP_OK;
    while (!status && !over) {
        status = gpp__source_read(s, raw, sizeof raw, "record of 3073 bytes", err);
        if (!status)
            status = add_record(c, s, raw, err);
        if (!status)
            status = gpp__source_over(s, &over, err);
    }
    return status;
}

static gpp_status read_cifar(cifar *c, const char *const paths[], int count, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; !status && k < count; k++) {
        gpp__source *s;
        if (!paths[k])
            return gpp__fail(err, GPP_EINVAL, "reading CIFAR-10: path %d of %d is NULL", k, count);
        status = gpp__source_open(&s, paths[k], err);
        if (!status)
            status = read_records(c, s, err);
        if (!status && k == count - 1) { /* the last file: give back room that was not needed */
            status = resize(s, c->images, c->images->dim[0] * CIFAR_PIXELS, err);
            status = status ? status : resize(s, c->labels, c->labels->dim[0], err);
        }
        gpp__source_close(s);
    }
    return status;
}

gpp_status gpp_array_read_cifar10(const char *const paths[], int count, gpp_array *images,
                                  gpp_array *labels, gpp_error *err)
{
    if (images)
        *images = (gpp_array){0};
    if (labels)
        *labels = (gpp_array){0};
    if (!paths || !images || !labels)
        return gpp__fail(err, GPP_EINVAL, "reading CIFAR-10: %s is NULL",
                         !paths    ? "paths"
                         : !images ? "images"
                                   : "labels");
    if (count < 1)
        return gpp__fail(err, GPP_EINVAL, "reading CIFAR-10: %d files, 1 or more expected", count);
    images->tensor = (gpp_tensor){NULL, GPP_F32, 4, {0, 3, 32, 32}};
    labels->tensor = (gpp_tensor){NULL, GPP_I64, 1, {0}};
    cifar c = {&images->tensor, &labels->tensor, 0};
    gpp_status status = read_cifar(&c, paths, count, err);
    if (status) {
        gpp_array_free(images);
        gpp_array_free(labels);
    }
    return status;
}

/* --- changing arrays -------------------------------------------------------------------------- */

static gpp_status check_scale(const gpp_tensor *t, const float mean[], const float std[],
                              int channels, gpp_error *err)
{
    int64_t have = t->rank > 1 ? t->dim[1] : 1;
    if (channels < 1 || (channels != 1 && channels != have))
        return gpp__fail(err, GPP_ESHAPE,
                         "scaling an array of rank %d: %d channels, 1 or %" PRId64 " expected",
                         t->rank, channels, have);
    for (int c = 0; c < channels; c++)
        if ((mean && !isfinite(mean[c])) || (std && (!isfinite(std[c]) || std[c] == 0)))
            return gpp__fail(err, GPP_EINVAL,
                             "scaling an array: channel %d has mean %g and deviation %g; finite "
                             "numbers and no deviation of 0 expected",
                             c, mean ? (double)mean[c] : 0, std ? (double)std[c] : 1);
    return GPP_OK;
}

/* Elements [begin, end) become floats in place. A float is not longer than an integer, so going up
 * overwrites no integer before it is read. */
static void scale(char *data, gpp_dtype dtype, int64_t begin, int64_t end, double mean, double std)
{
    for (int64_t k = begin; k < end; k++) {
        float x;
        if (dtype == GPP_I64) {
            int64_t whole;
            memcpy(&whole, data + k * (int64_t)sizeof whole, sizeof whole);
            x = (float)(((double)whole - mean) / std);
        } else {
            memcpy(&x, data + k * (int64_t)sizeof x, sizeof x);
            x = (float)(((double)x - mean) / std);
        }
        memcpy(data + k * (int64_t)sizeof x, &x, sizeof x);
    }
}

gpp_status gpp_array_to_floats(gpp_array *array, const float mean[], const float std[],
                               int channels, gpp_error *err)
{
    int64_t count, run = 1;
    if (!array || !count_elements(&array->tensor, &count))
        return gpp__fail(err, GPP_EINVAL, "scaling an array: it is NULL or has no valid shape");
    gpp_tensor *t = &array->tensor;
    if (count && !t->data)
        return gpp__fail(err, GPP_EINVAL, "scaling an array: it has no data");
    gpp_status status = check_scale(t, mean, std, channels, err);
    if (status)
        return status;
    for (int k = 2; k < t->rank; k++)
        run *= t->dim[k];
    if (channels == 1)
        run = count;
    for (int64_t at = 0, c = 0; at < count; at += run, c = (c + 1) % channels)
        scale(t->data, t->dtype, at, at + run, mean ? (double)mean[c] : 0,
              std ? (double)std[c] : 1);
    if (t->dtype != GPP_F32 && t->data) {
        void *smaller = realloc(t->data, count ? (size_t)count * sizeof(float) : 1);
        t->data = smaller ? smaller : t->data;
    }
    t->dtype = GPP_F32;
    return GPP_OK;
}

gpp_status gpp_array_reshape(gpp_array *array, int rank, const int64_t dim[], gpp_error *err)
{
    int64_t have, want;
    if (!array || (rank && !dim))
        return gpp__fail(err, GPP_EINVAL, "reshaping an array: %s is NULL",
                         array ? "dim" : "array");
    if (rank < 0 || rank > GPP_MAX_RANK)
        return gpp__fail(err, GPP_EINVAL, "reshaping an array to rank %d, 0 to %d expected", rank,
                         GPP_MAX_RANK);
    gpp_tensor t = {array->tensor.data, array->tensor.dtype, rank, {0}};
    for (int k = 0; k < rank; k++)
        t.dim[k] = dim[k];
    if (!count_elements(&array->tensor, &have) || !count_elements(&t, &want))
        return gpp__fail(err, GPP_ESHAPE,
                         "reshaping an array to rank %d: a dimension is negative, or the elements "
                         "are more than memory can hold",
                         rank);
    if (have != want)
        return gpp__fail(err, GPP_ESHAPE,
                         "reshaping an array of %" PRId64 " elements to rank %d with %" PRId64,
                         have, rank, want);
    array->tensor = t;
    return GPP_OK;
}
