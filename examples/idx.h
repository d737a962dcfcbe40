/*
 * examples/idx.h: reads the gzipped IDX files in which MNIST and its relatives come.
 *
 * An IDX file is a big-endian header (two zero bytes, the element type, the number of dimensions,
 * then each dimension as 32 bits) followed by the elements. Here: unsigned bytes only.
 */
#ifndef EXAMPLES_IDX_H
#define EXAMPLES_IDX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct idx {
    int rank;
    size_t dim[4];
    unsigned char *data; /* dim[0]·…·dim[rank-1] bytes */
} idx;

/**
 * Read DIRECTORY/NAME, an array of `rank` dimensions.
 * @param why  [size] filled with what is wrong, when false is returned
 */
bool idx_read(const char *directory, const char *name, int rank, idx *out, char *why, size_t size);

/** Fine on a zeroed one. */
void idx_release(idx *array);

#endif
