/*
 * balance/chain.h: what a partition keeps of a micro-batch between forward and backward, and what
 * it computes again, so that it fits into a given number of bytes and takes the least time.
 *
 * Dynamic programming over a chain of blocks in the manner of Beaumont, Eyraud-Dubois, Herrmann,
 * Joly and Shilova, "Optimal checkpointing for heterogeneous chains" (arXiv 1911.13214), with one
 * addition. Between forward and backward other micro-batches run, so there are `copies` of what is
 * kept from the forward, while what the backward phase makes is there once.
 *
 * The forward runs all blocks and keeps some. The *backward phase* of a micro-batch is a list of
 * operations:
 *
 *   DROP b      forward of block b; only what block b + 1 takes of it is there afterwards
 *   KEEP b      forward of block b; what its backward needs is there afterwards, too
 *   BACKWARD b  backward of block b, after which nothing of it is needed
 *
 * Blocks go back from the last to the first. Kept blocks have only their BACKWARD.
 *
 * Memory. In front of block b is the *cut* b. `input(b)` are the bytes alive across it, without
 * what came into the partition (so 0 for the first block); `extra(b)` is the part of them that no
 * backward reads. A maximal run of kept blocks u ... v leaves, in each copy,
 *
 *     the sum of tape over u ... v, input(u), and extra(v + 1) when v is not the last block.
 *
 * A run s ... t of other blocks has input(s) in memory at that time. It can use M bytes besides, if
 * they are enough for it to go back
 *
 *   all at once   KEEP s ... KEEP t, BACKWARD t ... BACKWARD s, where for every b of them
 *                   the sum of tape over s ... b, + extra(b) (not for s) + extra(b + 1) (not for t)
 *                     + forward_scratch(b) <= M,
 *                   the sum of tape over s ... b, + backward_scratch(b) <= M;
 *   one by one    KEEP s, the run s + 1 ... t, BACKWARD s, where tape(s) + extra(s + 1) +
 *                   forward_scratch(s) <= M, the rest has M - tape(s) - extra(s + 1) and
 *                   tape(s) + backward_scratch(s) <= M;
 *   in two        for some c in s + 1 ... t: DROP s ... DROP c - 1, the run c ... t with
 *                   M - input(c), then the run s ... c - 1 with M; where for every dropped b
 *                   input(b) (not for s) + input(b + 1) + forward_scratch(b) <= M.
 *
 * Pure.
 */
#ifndef GPP_BALANCE_CHAIN_H
#define GPP_BALANCE_CHAIN_H

#include "base/status.h"

typedef struct gpp__chain_block {
    double drop_us, keep_us; /* of its forward, >= 0. Its backward always runs once */
    size_t tape;             /* what its forward makes and its backward needs */
    size_t input, extra;     /* of the cut in front of it; input >= extra */
    size_t forward_scratch, backward_scratch; /* while it runs, besides all of these */
} gpp__chain_block;

typedef enum gpp__chain_what {
    GPP__CHAIN_DROP,
    GPP__CHAIN_KEEP,
    GPP__CHAIN_BACKWARD
} gpp__chain_what;

typedef struct gpp__chain_op {
    uint8_t what;
    int32_t block;
} gpp__chain_op;

typedef struct gpp__chain_plan {
    bool *kept; /* [blocks] the forward keeps it */
    size_t ops;
    gpp__chain_op *op;    /* of the backward phase */
    double again_us;      /* time of its DROPs and KEEPs */
    size_t partial_bytes; /* of one copy */
    size_t phase_bytes;   /* of the backward phase, by the formulas above */
} gpp__chain_plan;

/**
 * The least again_us with copies · partial_bytes + phase_bytes <= limit.
 *
 * Bytes of the runs are rounded up to 1/256 of the limit. So the answer always fits, and it is the
 * best of the plans that fit when rounded up. Keeping everything, and recomputing everything at
 * once, are compared exactly.
 *
 * @param block   [blocks], blocks >= 1; at most GPP__CHAIN_BLOCKS
 * @param copies  >= 1: micro-batches between forward and backward at a time
 * @param plan    out; release with gpp__chain_release, also after a failure
 * @param least   out: when nothing fits, the fewest bytes with which a plan was found; may be NULL
 * @return GPP_OK, GPP_EINVAL, GPP_ENOMEM (nothing fits; the message says what would; or no memory
 * to compute in). O(blocks³ · 256)
 */
gpp_status gpp__chain_solve(const gpp__chain_block block[], int blocks, int copies, size_t limit,
                            gpp__chain_plan *plan, size_t *least, gpp_error *err);
void gpp__chain_release(gpp__chain_plan *plan);
enum { GPP__CHAIN_BLOCKS = 96 };

#endif
