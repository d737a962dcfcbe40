/*
 * graph/data/safetensors.h: the header of a safetensors file, read and checked. Pure: memory in,
 * structs out.
 *
 *     file   := 8 bytes of little-endian length, header [length], data
 *     header := { "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *                 "__metadata__": {"key": "value", ...} }, then blanks
 *
 * Offsets count from the start of the data. Sorted by offset, the arrays cover the data exactly: no
 * overlap, no gap, nothing behind the last array. So a file has one meaning and hides nothing.
 */
#ifndef GPP_GRAPH_SAFETENSORS_H
#define GPP_GRAPH_SAFETENSORS_H

#include "base/status.h"

#include "base/names.h"
#include "graph/data/element.h"

#define GPP__SAFETENSORS_LENGTH  8                   /* bytes in front of the header */
#define GPP__SAFETENSORS_LONGEST ((size_t)100000000) /* header, bytes: the format's own limit */
#define GPP__SAFETENSORS_WORDS   "__metadata__"

typedef struct gpp__stored_array {
    const char *name;
    const gpp__element *element;
    int rank;
    int64_t dim[GPP_MAX_RANK];
    size_t count;        /* elements */
    uint64_t begin, end; /* its bytes in the data */
} gpp__stored_array;

typedef struct gpp__stored_word {
    const char *key, *value;
} gpp__stored_word;

typedef struct gpp__safetensors {
    int arrays, words, array_room, word_room;
    gpp__stored_array *array; /* [arrays] in the header's order */
    gpp__stored_word *word;   /* [words] */
    gpp__names array_names, word_names;
} gpp__safetensors;

/**
 * Read a header.
 *
 * @param header      [length + 1] strings are unescaped in place, and the results point at them
 * @param data_bytes  bytes of the file behind the header
 * @param out         release with gpp__safetensors_release; empty on failure
 * @return GPP_OK, GPP_ESYNTAX (no header, or one that contradicts itself or the data),
 *         GPP_EUNSUPPORTED (a type or rank that gpp_tensor does not have), GPP_ENOMEM
 */
gpp_status gpp__safetensors_parse(gpp__safetensors *out, char *header, size_t length,
                                  uint64_t data_bytes, gpp_error *err);
void gpp__safetensors_release(gpp__safetensors *s);

/** Count the elements of a shape, and their bytes. @return false: too many to count */
bool gpp__count_elements(int rank, const int64_t dim[], size_t element_bytes, size_t *count,
                         size_t *bytes);
/** Write a shape as "(2, 3)", cut off where `out` ends. @return `out` */
const char *gpp__dims_text(int rank, const int64_t dim[], char *out, size_t size);
/** Bytes of the UTF-8 character at `at` [room]; 0: there is no valid character. */
size_t gpp__utf8_length(const char *at, size_t room);

#endif
