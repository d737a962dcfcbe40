/* Placing things with known lives in one block: nothing that lives at the same time overlaps, and
 * for chains the block is as small as the largest sum of simultaneous lives. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "codelets/program/arena.h"

static size_t most_alive(const gpp__span *s, size_t count, int times)
{
    size_t most = 0;
    for (int t = 0; t < times; t++) {
        size_t sum = 0;
        for (size_t k = 0; k < count; k++)
            if (s[k].first <= t && t <= s[k].last)
                sum += gpp__align(s[k].bytes);
        most = sum > most ? sum : most;
    }
    return most;
}

static void expect_apart(const gpp__span *s, size_t count, size_t total)
{
    for (size_t a = 0; a < count; a++) {
        cr_expect_eq(s[a].offset % GPP__ALIGN, 0);
        cr_expect_leq(s[a].bytes ? s[a].offset + s[a].bytes : 0, total);
        for (size_t b = 0; b < a; b++) {
            bool meet =
                s[a].first <= s[b].last && s[b].first <= s[a].last && s[a].bytes && s[b].bytes;
            bool apart =
                s[a].offset + s[a].bytes <= s[b].offset || s[b].offset + s[b].bytes <= s[a].offset;
            cr_expect(!meet || apart, "%zu and %zu share memory while both live", a, b);
        }
    }
}

Test(arena, what_lives_together_never_overlaps)
{
    srand(1);
    for (int round = 0; round < 300; round++) {
        gpp__span s[24];
        size_t count = 1 + (size_t)rand() % 24, total;
        for (size_t k = 0; k < count; k++) {
            int first = rand() % 20;
            s[k] = (gpp__span){(size_t)rand() % 1000, first, first + rand() % 6, 0};
        }
        cr_assert_eq(gpp__arena_place(s, count, &total, NULL), GPP_OK);
        expect_apart(s, count, total);
    }
}

Test(arena, a_chain_takes_no_more_than_its_two_largest_neighbours)
{
    srand(2);
    for (int round = 0; round < 300; round++) {
        gpp__span s[16];
        size_t total;
        for (int k = 0; k < 16; k++)
            s[k] = (gpp__span){(size_t)rand() % 5000, k, k + 1, 0};
        cr_assert_eq(gpp__arena_place(s, 16, &total, NULL), GPP_OK);
        expect_apart(s, 16, total);
        cr_expect_eq(total, most_alive(s, 16, 17), "round %d: %zu for %zu", round, total,
                     most_alive(s, 16, 17));
    }
}

Test(arena, nothing_takes_nothing)
{
    size_t total = 1;
    gpp__span empty = {0, 3, 5, 7};
    cr_expect_eq(gpp__arena_place(NULL, 0, &total, NULL), GPP_OK);
    cr_expect_eq(total, 0);
    cr_expect_eq(gpp__arena_place(&empty, 1, &total, NULL), GPP_OK);
    cr_expect_eq(total, 0);
}
