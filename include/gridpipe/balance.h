/* include/gridpipe/balance.h: where to cut a chain of layers. Pure functions. */
#ifndef GRIDPIPE_BALANCE_H
#define GRIDPIPE_BALANCE_H

#include <gridpipe/error.h>

GPP_BEGIN_DECLS

/**
 * Cut a chain of layers into contiguous partitions so that the slowest one is as fast as possible.
 *
 * @param layers      number of layers, >= partitions
 * @param cost        [layers] cost of a layer, in any unit, >= 0 and finite
 * @param partitions  >= 1
 * @param balance     [partitions] out: layers of each partition, all >= 1; untouched on failure
 * @param err         filled on failure; may be NULL
 * @return GPP_OK, GPP_EINVAL (no partition, fewer layers than partitions, a negative or non-finite
 * cost) or GPP_ENOMEM
 *
 * Exact, by dynamic programming over prefixes: best(k, l) = min over c < l of max(best(k-1, c),
 * cost(c .. l)). O(partitions · layers²), thread-safe. Ties go to the leftmost cut: the same answer
 * on every machine.
 */
GPP_API gpp_status gpp_balance_minmax(size_t layers, const double cost[], size_t partitions,
                                      int balance[], gpp_error *err);

GPP_END_DECLS
#endif
