/*
 * balance/minmax.c: the cut of a chain into contiguous partitions whose costliest one is cheapest.
 *
 * Dynamic programming over prefixes (the linear partition problem):
 *
 *     best(1, l) = cost(0 .. l),   best(k, l) = min over c < l of max(best(k-1, c), cost(c .. l))
 *
 * where k partitions have the first l layers and the last of them begins at c. Of equally good c
 * the lowest is taken. As c goes down, cost(c .. l) only grows, so the search for c stops where
 * that alone exceeds the best. Each sum is formed from right to left on its own, so that equal sets
 * of layers compare equal.
 */
#include <gridpipe/balance.h>

#include <math.h>
#include <stdlib.h>

#include "balance/internal.h"

gpp_status gpp__balance_check(size_t layers, const double cost[], size_t partitions,
                              const int balance[], gpp_error *err)
{
    if (!cost || !balance)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", cost ? "balance" : "cost");
    if (partitions < 1)
        return gpp__fail(err, GPP_EINVAL, "there must be at least 1 partition");
    if (layers < partitions)
        return gpp__fail(err, GPP_EINVAL,
                         "too few layers for the partitions (layers: %zu, "
                         "partitions: %zu)",
                         layers, partitions);
    for (size_t l = 0; l < layers; l++)
        if (!isfinite(cost[l]) || cost[l] < 0)
            return gpp__fail_layer(err, GPP_EINVAL, (int)l,
                                   "cost of layer %zu must be finite and >= 0, got %g", l, cost[l]);
    return GPP_OK;
}

/* best(k, l) from best(k-1, ...) in `fewer`, and where its last partition begins. */
static double cut_last(const double cost[], size_t k, size_t l, const double fewer[], int *begin)
{
    double sum = 0, best = INFINITY;
    for (size_t c = l; c-- > k - 1;) {
        sum += cost[c];
        if (sum > best)
            break;
        double slowest = fewer[c] > sum ? fewer[c] : sum;
        if (slowest <= best) {
            best = slowest;
            *begin = (int)c;
        }
    }
    return best;
}

/* @param best   [2][layers + 1] work space   @param begin  [partitions][layers + 1] out: where the
 * last of k partitions of the first l layers begins, at [k - 1][l] */
static void cut_prefixes(size_t layers, const double cost[], size_t partitions, double best[],
                         int begin[])
{
    size_t row = layers + 1;
    best[0] = 0;
    for (size_t l = 1; l <= layers; l++) {
        best[l] = 0;
        for (size_t c = l; c-- > 0;)
            best[l] += cost[c];
        begin[l] = 0;
    }
    for (size_t k = 2; k <= partitions; k++) {
        double *fewer = best + (k % 2) * row, *now = best + (1 - k % 2) * row;
        for (size_t l = k; l <= layers; l++)
            now[l] = cut_last(cost, k, l, fewer, &begin[(k - 1) * row + l]);
    }
}

gpp_status gpp_balance_minmax(size_t layers, const double cost[], size_t partitions, int balance[],
                              gpp_error *err)
{
    gpp_status status = gpp__balance_check(layers, cost, partitions, balance, err);
    if (status != GPP_OK)
        return status;
    size_t row = layers + 1;
    double *best = calloc(row, 2 * sizeof *best);
    int *begin = calloc(row, partitions * sizeof *begin);
    if (!best || !begin) {
        status = gpp__fail(err, GPP_ENOMEM, "cutting %zu layers into %zu partitions", layers,
                           partitions);
        goto release;
    }
    cut_prefixes(layers, cost, partitions, best, begin);
    for (size_t k = partitions, l = layers; k > 0; k--) {
        int from = begin[(k - 1) * row + l];
        balance[k - 1] = (int)l - from;
        l = (size_t)from;
    }
release:
    free(begin);
    free(best);
    return status;
}
