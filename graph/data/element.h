/*
 * graph/data/element.h: types of elements in files.
 */
#ifndef GPP_GRAPH_ELEMENT_H
#define GPP_GRAPH_ELEMENT_H

#include <gridpipe/base.h>

typedef struct gpp__element {
    char name[8]; /* "F16" */
    int bytes;    /* of one element in a file */
    gpp_dtype dtype;
    /* Converts `count` elements to `dtype`. */
    void (*decode)(const unsigned char *from, size_t count, void *to);
} gpp__element;

/** The type of this name, or NULL. */
const gpp__element *gpp__element_find(const char *name);

#endif
