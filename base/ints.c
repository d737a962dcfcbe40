/* base/ints.c: see ints.h. */
#include "base/ints.h"

#include <assert.h>

int gpp__chunk(int64_t rows, int chunks, int64_t *size, int64_t *last)
{
    assert(rows >= 0 && chunks >= 1);
    if (rows == 0) {
        *size = *last = 0;
        return chunks;
    }
    *size = (rows - 1) / chunks + 1;
    int64_t pieces = (rows - 1) / *size + 1;
    *last = rows - (pieces - 1) * *size;
    return (int)pieces;
}
