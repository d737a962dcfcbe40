/*
 * balance/blocks.c: a chain cut into consecutive blocks of nearly equal sums, as torchgpipe does.
 *
 * Bárány and Grinberg, "Block partitions of sequences", Israel J. Math. 206 (2015), arXiv
 * 1308.2452: for numbers in [0, 1] there is a cut whose blocks differ by at most 1, and this
 * algorithm finds one. It begins with blocks of equally many numbers; the last one has the rest.
 * While the largest block p exceeds the smallest block q by more than 1, the neighbour of q towards
 * p gives q the number at their border. When that neighbour is p, the largest block is searched
 * anew; until then p and its size stay what they were.
 *
 * Of equally small blocks the proof takes the one closest to p. Everything between q and p is then
 * larger than q, so a block that gives its only number away is the next q and gets a number from
 * its neighbour; in the end no block is empty. torchgpipe takes the first such block instead. For
 * the sake of the same answers, that is tried first. It is given up where it would take from an
 * empty block, since from there torchgpipe may never end or may leave a block empty; and after
 * layers · partitions moves, more than twice of what was ever seen.
 *
 * The paper's numbers in [0, 1] are (c - min) / (max - min) for costs c. Here they are c - min in
 * units of a power of two, rounded to whole numbers whose sum fits 62 bits, and compared with
 * max - min instead of 1. Sums are exact, so the proof holds for what runs. Whole costs are not
 * rounded at all.
 */
#include <gridpipe/balance.h>

#include <math.h>
#include <stdlib.h>

#include "balance/internal.h"

typedef struct blocks {
    const int64_t *cost; /* [layers] */
    int64_t largest;     /* cost of all; blocks may differ by that much */
    size_t count;
    size_t *end;   /* [count] where each block ends */
    int64_t *size; /* [count] sum of its costs */
} blocks;

/* Make whole numbers in proportion to cost - min. Returns the largest. */
static int64_t to_whole(size_t layers, const double cost[], int64_t whole[])
{
    double low = cost[0], high = cost[0];
    int bits = 62, exponent;
    for (size_t l = 1; l < layers; l++) {
        low = cost[l] < low ? cost[l] : low;
        high = cost[l] > high ? cost[l] : high;
    }
    for (size_t room = 1; room < layers; room *= 2)
        bits--;
    frexp(high - low, &exponent);
    for (size_t l = 0; l < layers; l++)
        whole[l] = llrint(ldexp(cost[l] - low, bits - exponent));
    return llrint(ldexp(high - low, bits - exponent));
}

static void split_evenly(blocks *b, size_t layers)
{
    for (size_t j = 0, l = 0; j < b->count; j++) {
        b->end[j] = j + 1 < b->count ? (j + 1) * (layers / b->count) : layers;
        for (b->size[j] = 0; l < b->end[j]; l++)
            b->size[j] += b->cost[l];
    }
}

static size_t largest_block(const blocks *b)
{
    size_t p = 0;
    for (size_t j = 1; j < b->count; j++)
        if (b->size[j] >= b->size[p])
            p = j;
    return p;
}

static size_t distance(size_t a, size_t b)
{
    return a < b ? b - a : a - b;
}

static size_t smallest_block(const blocks *b, size_t p, bool closest)
{
    size_t q = 0;
    for (size_t j = 1; j < b->count; j++)
        if (b->size[j] < b->size[q] ||
            (closest && b->size[j] == b->size[q] && distance(j, p) < distance(q, p)))
            q = j;
    return q;
}

/* Give block q the number of `giver` at their border. False: `giver` has none. */
static bool feed(blocks *b, size_t q, size_t giver)
{
    if (b->end[giver] == (giver ? b->end[giver - 1] : 0))
        return false;
    size_t layer = giver < q ? --b->end[giver] : b->end[q]++;
    b->size[giver] -= b->cost[layer];
    b->size[q] += b->cost[layer];
    return true;
}

/* Move numbers until the blocks are even enough. False: `closest` has to be tried. */
static bool even_out(blocks *b, size_t layers, bool closest)
{
    for (size_t left = layers * b->count;;) {
        size_t p = largest_block(b), giver;
        int64_t most = b->size[p];
        do {
            size_t q = smallest_block(b, p, closest);
            if (most - b->size[q] <= b->largest)
                return true;
            giver = p < q ? q - 1 : q + 1;
            if (!feed(b, q, giver) || (!closest && left-- == 0))
                return false;
        } while (giver != p);
    }
}

gpp_status gpp_balance_blocks(size_t layers, const double cost[], size_t partitions, int balance[],
                              gpp_error *err)
{
    gpp_status status = gpp__balance_check(layers, cost, partitions, balance, err);
    if (status != GPP_OK)
        return status;
    int64_t *whole = calloc(layers, sizeof *whole);
    blocks b = {.cost = whole,
                .count = partitions,
                .end = calloc(partitions, sizeof *b.end),
                .size = calloc(partitions, sizeof *b.size)};
    if (!whole || !b.end || !b.size) {
        status = gpp__fail(err, GPP_ENOMEM, "cutting %zu layers into %zu partitions", layers,
                           partitions);
        goto release;
    }
    b.largest = to_whole(layers, cost, whole);
    split_evenly(&b, layers);
    if (!even_out(&b, layers, false)) {
        split_evenly(&b, layers);
        even_out(&b, layers, true);
    }
    for (size_t j = 0; j < partitions; j++)
        balance[j] = (int)(b.end[j] - (j ? b.end[j - 1] : 0));
release:
    free(b.size);
    free(b.end);
    free(whole);
    return status;
}
