/*
 * tests/test_layout.c: what op.c gives all operators: descriptions of tensors, and their two
 * layouts in memory.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/operators.h"

static const gpp__desc shapes[] = {
    IMAGE(1, 28, 28),   IMAGE(3, 5, 7),   IMAGE(8, 8, 8), IMAGE(17, 9, 4), IMAGE(64, 1, 1),
    IMAGE(64, 33, 40),  IMAGE(7, 1, 200), MATRIX(5, 6),   VECTOR(10),      NUMBER,
    VOLUME(2, 3, 4, 5),
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
        {IMAGE(32, 28, 28), 25088, 100352, "(32, 28, 28)"},
        {VECTOR(10), 10, 40, "(10)"},
        {INDEX, 1, 8, "()"},
        {INDICES(3, 4), 12, 96, "(3, 4)"},
    };
    char text[64], brief[5];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        cr_expect_eq(gpp__desc_count(&cases[k].d), cases[k].count);
        cr_expect_eq(gpp__desc_bytes(&cases[k].d), cases[k].bytes);
        cr_expect_str_eq(gpp__desc_text(&cases[k].d, text, sizeof text), cases[k].text);
    }
    cr_expect_str_eq(gpp__desc_text(&cases[0].d, brief, sizeof brief), "(32,", "cut, terminated");
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
