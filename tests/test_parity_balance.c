/*
 * tests/test_parity_balance.c: torchgpipe's test_balance.py as far as cuts by given costs go
 * (PARITY.md).
 */
#include <criterion/criterion.h>
#include <string.h>

#include <gridpipe.h>

static void expect_balance(size_t layers, const double cost[], size_t partitions, const int want[])
{
    int balance[8];
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_balance_minmax(layers, cost, partitions, balance, &err), GPP_OK, "%s",
                 err.msg);
    for (size_t j = 0; j < partitions; j++)
        cr_expect_eq(balance[j], want[j], "partition %zu: %d", j, balance[j]);
}

Test(test_balance, test_blockpartition)
{
    expect_balance(6, (double[]){1, 2, 3, 4, 5, 6}, 2, (int[]){4, 2});
    expect_balance(6, (double[]){6, 5, 4, 3, 2, 1}, 2, (int[]){2, 4});
}

Test(test_balance, test_blockpartition_zeros)
{
    expect_balance(2, (double[]){0, 0}, 2, (int[]){1, 1});
}

/* Upstream leaves a partition empty, or never ends. */
Test(test_balance, no_partition_is_empty_where_upstream_has_one)
{
    int balance[8];
    static const double costs[2][8] = {{0, 0, 1, 1}, {1, 0, 0, 0, 0, 2, 1}};
    static const size_t layers[] = {4, 7}, partitions[] = {3, 6};
    for (int k = 0; k < 2; k++) {
        size_t sum = 0;
        cr_assert_eq(gpp_balance_minmax(layers[k], costs[k], partitions[k], balance, NULL), GPP_OK);
        for (size_t j = 0; j < partitions[k]; j++) {
            cr_expect_geq(balance[j], 1);
            sum += (size_t)balance[j];
        }
        cr_expect_eq(sum, layers[k]);
    }
}

Test(test_balance, test_blockpartition_non_positive_partitions)
{
    gpp_error err = GPP_ERROR_INIT;
    int balance[1] = {7};
    cr_expect_eq(gpp_balance_minmax(1, (double[]){42}, 0, balance, &err), GPP_EINVAL);
    cr_expect(err.msg[0] && balance[0] == 7);
}

Test(test_balance, test_blockpartition_short_sequence)
{
    gpp_error err = GPP_ERROR_INIT;
    int balance[2] = {7, 7};
    cr_expect_eq(gpp_balance_minmax(0, (double[]){0}, 1, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_minmax(1, (double[]){42}, 2, balance, &err), GPP_EINVAL);
    cr_expect(err.msg[0] && balance[0] == 7);
}
