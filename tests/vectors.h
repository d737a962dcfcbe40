/*
 * tests/vectors.h: the reference vectors, files of arrays in the safetensors format whose header
 * says which operator, loss or optimizer made them.
 *
 * They lie in $GRIDPIPE_VECTORS, else in shared/vectors beside the source tree. Where they are
 * missing, tests skip them and say so.
 */
#ifndef GPP_TESTS_VECTORS_H
#define GPP_TESTS_VECTORS_H

#include <gridpipe/base.h>

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

/** The files, by name. @param names out: [return value], free with test_vectors_free  @return -1
 * when there is no such folder */
int test_vectors_list(char ***names);
void test_vectors_free(char **names, int count);

/** Reads a file of the folder; NULL when it is no such file, with `why` filled. Release with
 * test_vector_close. */
test_vector *test_vector_open(const char *file, char why[128]);
void test_vector_close(test_vector *v);

/** A word of the header's metadata, "" when it has none of this name. */
const char *test_vector_word(const test_vector *v, const char *key);
/** NULL when there is none of this name. */
const test_array *test_vector_find(const test_vector *v, const char *name);

#endif
