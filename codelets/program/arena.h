/*
 * codelets/program/arena.h: where in one block of memory things with known lives lie.
 *
 * Two things may overlap in memory when their lives do not overlap in time. No placement can
 * undercut the largest sum of simultaneous lives. A chain, in which each thing meets only its
 * neighbours, reaches it by placing them at the two ends of the block in turn; where that fails,
 * things are placed largest first, each at the lowest offset where it fits.
 */
#ifndef GPP_CODELETS_ARENA_H
#define GPP_CODELETS_ARENA_H

#include "base/status.h"

typedef struct gpp__span {
    size_t bytes;    /* 0: takes no room */
    int first, last; /* life, both inclusive */
    size_t offset;   /* out */
} gpp__span;

/** Sets every offset, a multiple of GPP__ALIGN. @param total out: bytes of the block */
gpp_status gpp__arena_place(gpp__span span[], size_t count, size_t *total, gpp_error *err);

#endif
