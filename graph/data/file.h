/*
 * graph/data/file.h: the inside of gpp_file, shared by file.c (memory, reading) and file_write.c.
 */
#ifndef GPP_GRAPH_FILE_H
#define GPP_GRAPH_FILE_H

#include <gridpipe/file.h>

#include "graph/data/safetensors.h"

struct gpp_file {
    int arrays, array_room, words, word_room;
    struct gpp__file_array {
        char *name;
        gpp_tensor tensor; /* with memory of its own */
        size_t count;      /* elements */
    } * array;             /* [arrays] as they were added */
    struct gpp__file_word {
        char *key, *value;
    } * word; /* [words] */
    gpp__names array_names, word_names;
};

/** As gpp_file_add, but the caller writes the array's values to *data afterwards. */
gpp_status gpp__file_room(gpp_file *file, const char *name, gpp_dtype dtype, int rank,
                          const int64_t dim[], void **data, gpp_error *err);

/** As gpp_file_read, from memory. */
gpp_status gpp__file_parse(gpp_file **file, const void *bytes, size_t size, gpp_error *err);
/** As gpp_file_write, to memory. @param bytes  out: [*size], free it */
gpp_status gpp__file_print(const gpp_file *file, char **bytes, size_t *size, gpp_error *err);

#endif
