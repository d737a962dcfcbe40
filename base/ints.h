/*
 * base/ints.h: small integer helpers.
 */
#ifndef GPP_BASE_INTS_H
#define GPP_BASE_INTS_H

#include <stdint.h>

#include "base/status.h"

/**
 * torch.chunk's rule: pieces of ceil(rows/chunks) until the rows are used up, so there may be fewer
 * than `chunks`; for rows == 0, `chunks` empty ones. Returns their number, sets the size of all but
 * the last and of the last.
 */
int gpp__chunk(int64_t rows, int chunks, int64_t *size, int64_t *last);

/** Bytes of each of `shards` parts of so many bytes; the last ones may have fewer, or none. */
static inline size_t gpp__shard_bytes(size_t bytes, int shards)
{
    return gpp__align((bytes + (size_t)shards - 1) / (size_t)shards);
}

#endif
