/*
 * tests/vectors.h: the reference vectors, files of arrays in the safetensors format whose header
 * says which operator, loss or optimizer made them.
 *
 * They lie in $GRIDPIPE_VECTORS, else in shared/vectors beside the source tree. Where that is
 * missing, tests are skipped and say so.
 */
#ifndef GPP_TESTS_VECTORS_H
#define GPP_TESTS_VECTORS_H

#include "tests/support.h"

typedef struct test_array {
    char name[64];
    gpp_dtype dtype;
    int rank;
    int64_t dim[GPP_MAX_RANK];
    int64_t count; /* elements */
    void *data;
} test_array;

typedef struct test_vector {
    char file[64]; /* "relu.safetensors" */
    void *header;  /* the JSON header */
    int count;
    test_array *array; /* [count] */
} test_vector;

/** List the files by name. @param names  out: [return value], free with test_vectors_free
 * @return -1: there is no such folder */
int test_vectors_list(char ***names);
void test_vectors_free(char **names, int count);

/** Read a file of the folder. NULL: it is no file of vectors, and `why` is filled. Release with
 * test_vector_close. */
test_vector *test_vector_open(const char *file, char why[128]);
void test_vector_close(test_vector *v);

/** A word of the header's metadata, or "". */
const char *test_vector_word(const test_vector *v, const char *key);
/** The array of this name, or NULL. */
const test_array *test_vector_find(const test_vector *v, const char *name);

/** Is told how far a computed array is off its reference values: test_distance; for integers 0 when
 * all are equal, else infinity. */
typedef void (*test_vector_check)(const char *file, const char *array, double off);

/**
 * Run a layer case on a rig. Its arrays are the inputs x, or x0, x1, ...; the outputs y, or y0, y1,
 * ...; parameters and buffers param.layer.*; gradients grad.*; and after.layer.*, once the forward
 * is committed. Every array of the file is either given to the operator or compared. One that is
 * left over, is missing or has another shape ends the test program.
 */
void test_vector_run(const test_vector *v, int threads, test_vector_check check);

/** The same for every layer case of an operator. @return their number; -1: there is no folder */
int test_vectors_run(const char *op, int threads, test_vector_check check);

#endif
