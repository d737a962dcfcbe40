/*
 * tests/test_philox.c: the counter-based generator.
 */
#include <criterion/criterion.h>

#include "codelets/cpu/philox.h"

/* Words in the order of the paper's software: counter c0 c1 c2 c3, key k0 k1. */
static gpp__philox generate(const uint32_t c[4], const uint32_t k[2])
{
    return gpp__philox4x32((uint64_t)k[1] << 32 | k[0], (uint64_t)c[3] << 32 | c[2],
                           (uint64_t)c[1] << 32 | c[0]);
}

Test(philox, known_answers_come_out)
{
    /* The known answers of Random123's Philox4x32-10: zeros, ones, digits of pi. */
    static const struct {
        uint32_t counter[4], key[2], want[4];
        char why[24];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, "zeros"},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
         "ones"},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
         "pi"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp__philox got = generate(cases[k].counter, cases[k].key);
        for (int w = 0; w < 4; w++)
            cr_expect_eq(got.v[w], cases[k].want[w], "%s, word %d: %08x", cases[k].why, w,
                         got.v[w]);
    }
}

Test(philox, uniform_numbers_are_in_0_1_and_exact_multiples_of_2_to_the_minus_24)
{
    cr_expect_eq(gpp__philox_uniform(0), 0.0f);
    cr_expect_eq(gpp__philox_uniform(255), 0.0f);
    cr_expect_eq(gpp__philox_uniform(256), 0x1p-24f);
    cr_expect_eq(gpp__philox_uniform(0x80000000u), 0.5f);
    cr_expect_eq(gpp__philox_uniform(0xffffffffu), 1.0f - 0x1p-24f);
}

Test(philox, every_bit_of_key_and_counter_changes_about_half_of_the_result)
{
    for (int bit = 0; bit < 192; bit++) {
        uint64_t at[3] = {42, 7, 1};
        gpp__philox before = gpp__philox4x32(at[0], at[1], at[2]), after;
        at[bit / 64] ^= UINT64_C(1) << bit % 64;
        after = gpp__philox4x32(at[0], at[1], at[2]);
        int changed = 0;
        for (int w = 0; w < 4; w++)
            changed += __builtin_popcount(before.v[w] ^ after.v[w]);
        /* 64 of 128 expected, standard deviation 5.7: six of them either way. */
        cr_expect(changed > 30 && changed < 98, "bit %d changes %d of 128", bit, changed);
    }
}
