/*
 * graph/data/npy.h: the header of a .npy file: a Python dictionary of exactly three entries,
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }
 *
 * followed by blanks and a newline. (numpy/lib/format.py describes the format.) Pure text: nothing
 * is read or allocated.
 */
#ifndef GPP_GRAPH_NPY_H
#define GPP_GRAPH_NPY_H

#include "base/status.h"

typedef struct gpp__npy {
    char descr[16]; /* "<f4" */
    bool fortran;   /* the first dimension runs fastest */
    int rank;
    int64_t dim[GPP_MAX_RANK];

    gpp_status code; /* after a failure: GPP_ESYNTAX or GPP_EUNSUPPORTED */
    size_t offset;   /* after a failure: where in the text it is */
} gpp__npy;

/** @return NULL, or static text that says what is wrong; code and offset are then in *npy */
const char *gpp__npy_parse(const char *text, size_t length, gpp__npy *npy);

#endif
