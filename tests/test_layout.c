/*
 * tests/test_layout.c: what op.c gives all operators: descriptions of tensors, their two layouts in
 * memory, checks of inputs.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

static const gpp__desc shapes[] = {
    {GPP_F32, 3, {1, 28, 28}, 0, 0},  {GPP_F32, 3, {3, 5, 7}, 0, 0},
    {GPP_F32, 3, {8, 8, 8}, 0, 0},    {GPP_F32, 3, {17, 9, 4}, 0, 0},
    {GPP_F32, 3, {64, 1, 1}, 0, 0},   {GPP_F32, 3, {64, 33, 40}, 0, 0},
    {GPP_F32, 3, {7, 1, 200}, 0, 0},  {GPP_F32, 2, {5, 6}, 0, 0},
    {GPP_F32, 1, {10}, 0, 0},         {GPP_F32, 0, {0}, 0, 0},
    {GPP_F32, 4, {2, 3, 4, 5}, 0, 0},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Where logical element (c, h, w) of an image is in channels-last memory. */
static int64_t last(const gpp__desc *d, int64_t c, int64_t pixel)
{
    return pixel * d->dim[0] + c;
}

static void expect_layout(const gpp__desc *d, int64_t rows, int threads)
{
    int64_t one = gpp__desc_count(d), all = rows * one, wrong = 0;
    float *first = test_room((size_t)all * 4), *moved = test_room((size_t)all * 4);
    float *back = test_room((size_t)all * 4);
    gpp__pool *pool;
    char text[64];
    cr_assert_eq(gpp__pool_new(&pool, threads, NULL, NULL, NULL), GPP_OK);
    test_fill(first, all, 1, -1, 1);
    gpp__to_channels_last(pool, d, rows, first, moved);
    gpp__to_channels_first(pool, d, rows, moved, back);
    int64_t pixels = d->rank == 3 ? d->dim[1] * d->dim[2] : 1;
    for (int64_t e = 0; e < all; e++) {
        int64_t in_row = e % one, at = in_row;
        if (d->rank == 3)
            at = last(d, in_row / pixels, in_row % pixels);
        wrong += moved[e - in_row + at] != first[e];
    }
    cr_expect_eq(wrong, 0, "%s: %lld elements in the wrong place",
                 gpp__desc_text(d, text, sizeof text), (long long)wrong);
    cr_expect(test_same(first, back, all), "%s: not the same after going there and back", text);
    if (gpp__layout_free(d))
        cr_expect(test_same(first, moved, all), "%s: both layouts should be the same bytes", text);
    gpp__pool_free(pool);
    free(first);
    free(moved);
    free(back);
}

Test(layout, channels_last_holds_element_c_h_w_at_h_w_c_and_converting_back_undoes_it)
{
    for (size_t k = 0; k < SHAPES; k++)
        for (int threads = 1; threads <= 3; threads += 2) {
            expect_layout(&shapes[k], 1, threads);
            expect_layout(&shapes[k], 5, threads);
        }
}

Test(layout, is_free_unless_an_image_has_several_channels_and_several_pixels)
{
    static const bool is_free[SHAPES] = {true,  false, false, false, true, false,
                                         false, true,  true,  true,  true};
    char text[64];
    for (size_t k = 0; k < SHAPES; k++)
        cr_expect_eq(gpp__layout_free(&shapes[k]), is_free[k], "%s",
                     gpp__desc_text(&shapes[k], text, sizeof text));
}

Test(layout, descriptions_count_their_elements_and_bytes_and_print_their_shape)
{
    static const struct {
        gpp__desc d;
        int64_t count;
        size_t bytes;
        const char *text;
    } cases[] = {
        {{GPP_F32, 3, {32, 28, 28}, 0, 0}, 25088, 100352, "(32, 28, 28)"},
        {{GPP_F32, 1, {10}, 0, 0}, 10, 40, "(10)"},
        {{GPP_I64, 0, {0}, 0, 0}, 1, 8, "()"},
        {{GPP_I64, 2, {3, 4}, 0, 0}, 12, 96, "(3, 4)"},
    };
    char text[64], brief[5];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        cr_expect_eq(gpp__desc_count(&cases[k].d), cases[k].count);
        cr_expect_eq(gpp__desc_bytes(&cases[k].d), cases[k].bytes);
        cr_expect_str_eq(gpp__desc_text(&cases[k].d, text, sizeof text), cases[k].text);
    }
    cr_expect_str_eq(gpp__desc_text(&cases[0].d, brief, sizeof brief), "(32,", "cut, terminated");
}

Test(layout, descriptions_are_equal_when_type_and_all_dimensions_are)
{
    gpp__desc a = {GPP_F32, 2, {3, 4, 99}, 0, 0}, b = {GPP_F32, 2, {3, 4}, 0, 0};
    cr_expect(gpp__desc_equal(&a, &b), "what lies behind the last dimension does not count");
    b.dim[1] = 5;
    cr_expect_not(gpp__desc_equal(&a, &b));
    b.dim[1] = 4, b.rank = 1;
    cr_expect_not(gpp__desc_equal(&a, &b));
    b.rank = 2, b.dtype = GPP_I64;
    cr_expect_not(gpp__desc_equal(&a, &b));
}

Test(layout, operators_refuse_inputs_of_another_type_rank_or_number)
{
    static const gpp_op op = {.name = "op"};
    static const struct {
        const char *why;
        int count;
        gpp__desc in;
        int lo, hi;
        const char *msg;
    } cases[] = {
        {"fine", 1, {GPP_F32, 3, {1, 2, 3}, 0, 0}, 3, 3, ""},
        {"two tensors",
         2,
         {GPP_F32, 1, {4}, 0, 0},
         1,
         1,
         "op (layer 3, \"stem\"): takes 1 tensor, got 2"},
        {"integers",
         1,
         {GPP_I64, 1, {4}, 0, 0},
         1,
         1,
         "op (layer 3, \"stem\"): takes float32, got int64"},
        {"a vector where an image is wanted",
         1,
         {GPP_F32, 1, {10}, 0, 0},
         3,
         3,
         "op (layer 3, \"stem\"): input (10) has 1 dimensions besides the batch, expected 3"},
        {"a range of ranks",
         1,
         {GPP_F32, 3, {1, 2, 3}, 0, 0},
         1,
         2,
         "op (layer 3, \"stem\"): input (1, 2, 3) has 3 dimensions besides the batch, expected 1 "
         "to 2"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp__layer layer = {.op = &op, .index = 3, .label = "stem", .in_count = cases[k].count};
        gpp_error err = GPP_ERROR_INIT;
        layer.in[0] = layer.in[1] = cases[k].in;
        gpp_status status = gpp__expect_float(&layer, cases[k].lo, cases[k].hi, &err);
        cr_expect_eq(status, *cases[k].msg ? GPP_ESHAPE : GPP_OK, "%s", cases[k].why);
        cr_expect_str_eq(err.msg, cases[k].msg);
        cr_expect_eq(err.layer, *cases[k].msg ? 3 : -1, "%s", cases[k].why);
    }
}

Test(layout, a_parameter_too_large_to_count_is_not_counted_wrong)
{
    gpp__layer layer = {.index = 0};
    gpp__add_param(&layer, "weight", 2, (int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40});
    cr_expect_eq(layer.param_count, 1);
    cr_expect_eq(layer.param[0].count, INT64_MAX);
    gpp__add_param(&layer, "bias", 1, (int64_t[]){7});
    cr_expect_eq(layer.param[1].count, 7);
    cr_expect_str_eq(layer.param[1].name, "bias");
}

Test(layout, operators_are_found_by_name_and_listed)
{
    size_t k = 0;
    for (; gpp_op_name(k); k++) {
        const gpp_op *op = gpp__op_find(gpp_op_name(k));
        cr_assert(op);
        cr_expect_str_eq(op->name, gpp_op_name(k));
    }
    cr_expect(k >= 7);
    cr_expect_null(gpp__op_find("linea"));
    cr_expect_null(gpp_op_name(k + 1));
}
