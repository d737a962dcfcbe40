/*
 * base/ints.h: small integer helpers.
 */
#ifndef GPP_BASE_INTS_H
#define GPP_BASE_INTS_H

#include <stdint.h>

/**
 * torch.chunk's rule: pieces of ceil(rows/chunks) until the rows are used up, so there may be fewer
 * than `chunks`; for rows == 0, `chunks` empty ones. Returns their number, sets the size of all but
 * the last and of the last.
 */
int gpp__chunk(int64_t rows, int chunks, int64_t *size, int64_t *last);

#endif
