/*
 * tests/test_balance.c: cuts of a chain of layers, against every cut there is.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe/balance.h>

static const struct cut {
    const char *why;
    size_t layers, partitions;
    double cost[6];
    int balance[4];
} cuts[] = {
    {"one heavy layer stands alone", 4, 3, {1, 9, 1, 1}, {1, 1, 2}},
    {"free layers break no partition", 5, 2, {4, 0, 0, 0, 4}, {1, 4}},
    {"one partition has all", 3, 1, {1, 2, 3}, {3}},
    {"as many partitions as layers", 3, 3, {5, 0, 5}, {1, 1, 1}},
    {"equal layers, equal partitions", 6, 3, {2, 2, 2, 2, 2, 2}, {2, 2, 2}},
    {"of equal cuts the leftmost", 3, 2, {1, 1, 1}, {1, 2}},
    {"nothing costs anything", 4, 2, {0, 0, 0, 0}, {1, 3}},
    {"growing costs", 6, 2, {1, 2, 3, 4, 5, 6}, {4, 2}},
};

Test(balance, known_cuts)
{
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        int balance[4];
        gpp_status status =
            gpp_balance_minmax(cuts[k].layers, cuts[k].cost, cuts[k].partitions, balance, NULL);
        cr_assert_eq(status, GPP_OK, "%s", cuts[k].why);
        for (size_t j = 0; j < cuts[k].partitions; j++)
            cr_expect_eq(balance[j], cuts[k].balance[j], "%s: partition %zu has %d layers",
                         cuts[k].why, j, balance[j]);
    }
}

/* The slowest partition of the best of all cuts of layers l ... layers-1 into k partitions. */
static double best_of_all(const double cost[], int layers, int l, int k)
{
    double sum = 0, best = INFINITY;
    if (k == 1) {
        for (; l < layers; l++)
            sum += cost[l];
        return sum;
    }
    for (int end = l + 1; end <= layers - (k - 1); end++) {
        sum += cost[end - 1];
        best = fmin(best, fmax(sum, best_of_all(cost, layers, end, k - 1)));
    }
    return best;
}

Test(balance, the_slowest_partition_is_as_fast_as_in_the_best_of_all_cuts)
{
    srand(1);
    for (int round = 0; round < 2000; round++) {
        int layers = 1 + rand() % 12, partitions = 1 + rand() % layers, balance[12];
        double cost[12], slowest = 0;
        for (int l = 0; l < layers; l++)
            cost[l] = rand() % (round % 3 ? 100 : 3); /* whole numbers: sums are exact */
        cr_assert_eq(gpp_balance_minmax((size_t)layers, cost, (size_t)partitions, balance, NULL),
                     GPP_OK);
        int l = 0;
        for (int j = 0; j < partitions; j++) {
            double sum = 0;
            cr_assert_geq(balance[j], 1);
            for (int end = l + balance[j]; l < end; l++)
                sum += cost[l];
            slowest = fmax(slowest, sum);
        }
        cr_assert_eq(l, layers, "every layer is in a partition");
        cr_expect_eq(slowest, best_of_all(cost, layers, 0, partitions));
    }
}

static const struct refusal {
    const char *why;
    size_t layers, partitions;
    double cost[3];
    int layer;
    const char *msg;
} refusals[] = {
    {"no partition", 3, 0, {1, 1, 1}, -1, "at least 1 partition"},
    {"more partitions than layers", 2, 3, {1, 1}, -1, "(layers: 2, partitions: 3)"},
    {"a negative cost", 3, 2, {1, -1, 1}, 1, "cost of layer 1"},
    {"a cost that is no number", 3, 2, {1, 1, NAN}, 2, "cost of layer 2"},
    {"a cost without end", 3, 2, {INFINITY, 1, 1}, 0, "cost of layer 0"},
};

Test(balance, wrong_calls_are_refused_and_leave_the_balance_alone)
{
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        int balance[3] = {-7, -7, -7};
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp_balance_minmax(refusals[k].layers, refusals[k].cost,
                                        refusals[k].partitions, balance, &err),
                     GPP_EINVAL, "%s", refusals[k].why);
        cr_expect(strstr(err.msg, refusals[k].msg), "%s: %s", refusals[k].why, err.msg);
        cr_expect_eq(err.layer, refusals[k].layer, "%s", refusals[k].why);
        for (int j = 0; j < 3; j++)
            cr_expect_eq(balance[j], -7, "%s", refusals[k].why);
    }
}

Test(balance, a_thousand_layers_on_64_partitions)
{
    static double cost[1000];
    int balance[64], layers = 0;
    srand(2);
    for (int l = 0; l < 1000; l++)
        cost[l] = rand() % 1000;
    clock_t from = clock();
    cr_assert_eq(gpp_balance_minmax(1000, cost, 64, balance, NULL), GPP_OK);
    cr_log_info("1000 layers, 64 partitions: %.1f ms\n",
                (double)(clock() - from) * 1e3 / CLOCKS_PER_SEC);
    for (int j = 0; j < 64; j++)
        layers += balance[j];
    cr_expect_eq(layers, 1000);
}
