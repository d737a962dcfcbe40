/*
 * balance/median.c: the median of measured times, and how well it is known.
 *
 * Of n independent times, sorted, number r and number n+1-r enclose the median of their
 * distribution with probability 1 - 2·P(Binomial(n, 1/2) < r), whatever the distribution is: each
 * time is above or below the median like the toss of a coin (David and Nagaraja, Order Statistics,
 * 3rd ed., 7.1).
 */
#include <stdlib.h>

#include "balance/internal.h"

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The largest r with 2·P(Binomial(n, 1/2) < r) <= 5 %; 0: there is none. n <= 1000. */
static int interval_rank(int n)
{
    double p = 1, below = 0;
    for (int k = 0; k < n; k++)
        p /= 2;
    for (int r = 0; r < n; r++) {
        below += p; /* P(Binomial <= r) */
        if (2 * below > 0.05)
            return r;
        p *= (double)(n - r) / (r + 1);
    }
    return 0;
}

int64_t gpp__median(int64_t ns[], int count, double *half, bool *sure)
{
    qsort(ns, (size_t)count, sizeof *ns, ascending);
    int rank = interval_rank(count);
    *sure = rank > 0;
    rank = rank ? rank : 1;
    *half = (double)(ns[count - rank] - ns[rank - 1]) / 2;
    return ns[(count - 1) / 2] + (ns[count / 2] - ns[(count - 1) / 2]) / 2;
}
