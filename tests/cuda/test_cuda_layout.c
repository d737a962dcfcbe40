/*
 * tests/cuda/test_cuda_layout.c: operators that move elements, on CUDA against the CPU: joined, cut
 * and padded tensors, popped skips, embeddings, resampled images, layouts of images.
 *
 * What is copied must be the same numbers. Innermost dimensions that are no multiple of four take
 * the way without packs.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)
#define VECTOR(n)                                                                                  \
    {                                                                                              \
        .rank = 1, .dim = { n }                                                                    \
    }
#define MATRIX(a, b)                                                                               \
    {                                                                                              \
        .rank = 2, .dim = { a, b }                                                                 \
    }
#define IMAGE(c, h, w)                                                                             \
    {                                                                                              \
        .rank = 3, .dim = { c, h, w }                                                              \
    }
#define INDICES(n)                                                                                 \
    {                                                                                              \
        .dtype = GPP_I64, .rank = 1, .dim = { n }                                                  \
    }

/* --- boxes ------------------------------------------------------------------------------------ */

ParameterizedTestParameters(cuda_layout, joined_and_cut_tensors_are_the_cpus)
{
    static cuda_case cases[] = {
        {.why = "channels, in fours",
         .spec = "cat dim=1",
         .ins = 2,
         .in = {IMAGE(4, 3, 2), IMAGE(8, 3, 2)}},
        {.why = "channels, one of them no multiple of four",
         .spec = "cat dim=1",
         .ins = 3,
         .in = {IMAGE(4, 3, 2), IMAGE(3, 3, 2), IMAGE(1, 3, 2)}},
        {.why = "height: whole planes",
         .spec = "cat dim=2",
         .ins = 2,
         .in = {IMAGE(2, 1, 3), IMAGE(2, 4, 3)}},
        {.why = "width: parts of lines",
         .spec = "cat dim=3",
         .ins = 2,
         .in = {IMAGE(4, 2, 1), IMAGE(4, 2, 5)}},
        {.why = "the last of two",
         .spec = "cat dim=-1",
         .ins = 2,
         .in = {MATRIX(3, 2), MATRIX(3, 6)}},
        {.why = "the only one", .spec = "cat dim=1", .ins = 1, .in = {VECTOR(5)}},
        {.why = "channels, cut", .spec = "split dim=1 parts=3", .ins = 1, .in = {IMAGE(12, 2, 2)}},
        {.why = "width, cut", .spec = "split dim=3 parts=2", .ins = 1, .in = {IMAGE(3, 2, 6)}},
        {.why = "a vector, cut", .spec = "split dim=1 parts=4", .ins = 1, .in = {VECTOR(20)}},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_layout, joined_and_cut_tensors_are_the_cpus)
{
    cuda_check(c);
}

ParameterizedTestParameters(cuda_layout, skips_come_together_as_on_the_cpu)
{
    static cuda_case cases[] = {
        {.why = "added",
         .spec = "pop name=s mode=add",
         .ins = 2,
         .in = {IMAGE(4, 3, 3), IMAGE(4, 3, 3)}},
        {.why = "added, no multiple of four",
         .spec = "combine mode=add",
         .ins = 2,
         .in = {MATRIX(3, 3), MATRIX(3, 3)}},
        {.why = "added, the skip larger",
         .spec = "pop name=s mode=add pad=1",
         .ins = 2,
         .in = {IMAGE(4, 2, 3), IMAGE(4, 3, 5)}},
        {.why = "added, each larger in one direction",
         .spec = "combine mode=add pad=1",
         .ins = 2,
         .in = {IMAGE(3, 4, 2), IMAGE(3, 3, 5)}},
        {.why = "behind it along channels",
         .spec = "pop name=s mode=cat dim=1",
         .ins = 2,
         .in = {IMAGE(4, 3, 3), IMAGE(8, 3, 3)}},
        {.why = "behind it, filled up",
         .spec = "pop name=s mode=cat dim=1 pad=1",
         .ins = 2,
         .in = {IMAGE(4, 3, 5), IMAGE(2, 4, 3)}},
        {.why = "behind it along width",
         .spec = "combine mode=cat dim=3",
         .ins = 2,
         .in = {IMAGE(4, 3, 2), IMAGE(4, 3, 1)}},
        {.why = "vectors",
         .spec = "combine mode=cat dim=-1",
         .ins = 2,
         .in = {VECTOR(3), VECTOR(9)}},
        {.why = "single numbers",
         .spec = "combine mode=add",
         .ins = 2,
         .in = {{.rank = 0}, {.rank = 0}}},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_layout, skips_come_together_as_on_the_cpu)
{
    cuda_check(c);
}

ParameterizedTestParameters(cuda_layout, borders_are_filled_and_left_out)
{
    static cuda_case cases[] = {
        {.why = "all sides differ",
         .spec = "pad left=1 right=2 top=3 bottom=4 value=-1.5",
         .ins = 1,
         .in = {IMAGE(3, 2, 4)}},
        {.why = "in fours, one side", .spec = "pad right=1", .ins = 1, .in = {IMAGE(8, 3, 3)}},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_layout, borders_are_filled_and_left_out)
{
    cuda_check(c);
}

/* Of a tuple operator, with one input and gradient absent. */
static test_rig *rig_of(const char *spec, const gpp__desc in[], int ins, int64_t rows)
{
    const int64_t batch[GPP__BATCHES] = {rows, rows, rows, rows};
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    cr_assert_eq(test_rig_new_tuple(&rig, spec, 2, in, ins, batch, 1, &err), GPP_OK, "%s", err.msg);
    rig->run.cuda = cuda_device(GPP__MATH_F32);
    return rig;
}

Test(cuda_layout, an_absent_skip_is_refused_by_name)
{
    static const struct {
        const char *spec;
        const gpp__kernels *op;
    } cases[] = {
        {"pop name=s mode=add", &gpp__cuda_pop},
        {"combine mode=cat", &gpp__cuda_combine},
    };
    const gpp__desc in[] = {VECTOR(4), VECTOR(4)};
    for (size_t k = 0; k < COUNT(cases); k++) {
        test_rig *rig = rig_of(cases[k].spec, in, 2, 1);
        gpp_error err = GPP_ERROR_INIT;
        gpp__io io = {.in = {cuda_room(16)}, .out = {cuda_room(64)}};
        rig->run.err = &err;
        cr_expect_eq(cases[k].op->forward(&rig->kernel, &rig->run, &io), GPP_EUNSUPPORTED);
        cr_expect_eq(err.layer, 2);
        cr_expect(strstr(err.msg, "absent"), "%s", err.msg);
        cuda_free((void *)io.in[0]);
        cuda_free(io.out[0]);
        test_rig_free(rig);
    }
}

Test(cuda_layout, the_gradient_of_a_part_without_one_is_zero)
{
    enum { ROWS = 3, WIDTH = 8 };
    const gpp__desc in = VECTOR(WIDTH);
    test_rig *rig = rig_of("split dim=1 parts=2", &in, 1, ROWS);
    float part[ROWS * WIDTH / 2], got[ROWS * WIDTH];
    for (int k = 0; k < ROWS * WIDTH / 2; k++)
        part[k] = (float)(k + 1);
    gpp__io io = {.grad_out = {NULL, cuda_copy_of(part, sizeof part)}};
    io.grad_in[0] = cuda_room(sizeof got);
    cr_assert_eq(gpp__cuda_split.backward(&rig->kernel, &rig->run, &io), GPP_OK);
    cuda_get(got, io.grad_in[0], sizeof got);
    for (int k = 0; k < ROWS * WIDTH; k++) {
        int row = k / WIDTH, at = k % WIDTH - WIDTH / 2;
        cr_expect_eq(got[k], at < 0 ? 0 : part[row * WIDTH / 2 + at], "element %d", k);
    }
    cuda_free((void *)io.grad_out[1]);
    cuda_free(io.grad_in[0]);
    test_rig_free(rig);
}

/* --- embeddings ------------------------------------------------------------------------------- */

/* The CPU sums over rows in double and rounds once, a device in float32: 33 additions. */
#define ROW_SUMS 4e-6

ParameterizedTestParameters(cuda_layout, embeddings_are_the_cpus)
{
    static cuda_case cases[] = {
        {.why = "two rows, most positions alike",
         .spec = "embedding num=2 dim=5",
         .ins = 1,
         .in = {INDICES(9)},
         .limit = 2},
        {.why = "in fours",
         .spec = "embedding num=50 dim=8",
         .ins = 1,
         .in = {INDICES(7)},
         .limit = 50},
        {.why = "one index a row",
         .spec = "embedding num=7 dim=3",
         .ins = 1,
         .in = {{.dtype = GPP_I64, .rank = 0}},
         .limit = 7},
        {.why = "a padding row",
         .spec = "embedding num=5 dim=4 padding_idx=-4",
         .ins = 1,
         .in = {INDICES(6)},
         .limit = 5},
        {.why = "padding row 0",
         .spec = "embedding num=3 dim=2 padding_idx=0",
         .ins = 1,
         .in = {INDICES(4)},
         .limit = 3},
        {.why = "indices of two digits, several tiles",
         .spec = "embedding num=900 dim=6",
         .ins = 1,
         .in = {INDICES(70)},
         .limit = 900},
        {.why = "just one digit",
         .spec = "embedding num=255 dim=1",
         .ins = 1,
         .in = {INDICES(31)},
         .limit = 255},
        {.why = "just two",
         .spec = "embedding num=256 dim=1",
         .ins = 1,
         .in = {INDICES(31)},
         .limit = 256},
        {.why = "three",
         .spec = "embedding num=70000 dim=2",
         .ins = 1,
         .in = {INDICES(31)},
         .limit = 70000,
         .most_rows = 7},
        {.why = "more columns than threads",
         .spec = "embedding num=4 dim=300",
         .ins = 1,
         .in = {INDICES(3)},
         .limit = 4},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

/* Rows of dy are added in the CPU's order: the same numbers. */
ParameterizedTest(cuda_case *c, cuda_layout, embeddings_are_the_cpus)
{
    cuda_check(c);
}

/* Runs of 1 ... 600 positions of one index: shorter and longer than what a thread asks for at once
 * and than a block. */
Test(cuda_layout, runs_of_equal_indices_of_any_length_are_summed)
{
    static const int64_t counts[] = {1, 7, 8, 9, 31, 32, 33, 64, 65, 600, 1024, 1025, 2100};
    const gpp__desc in = {.dtype = GPP_I64, .rank = 0};
    enum { NUM = 3, DIM = 40 };
    for (size_t n = 0; n < COUNT(counts); n++) {
        int64_t count = counts[n];
        char spec[64] = "embedding num=3 dim=40";
        test_rig *rig = rig_of(spec, &in, 1, count);
        gpp__kernel kernel = {.layer = &rig->layer, .rows = count};
        int64_t *x = test_room((size_t)count * sizeof *x);
        float *dy = test_room((size_t)count * DIM * sizeof *dy), got[NUM * DIM], want[NUM * DIM];
        for (int64_t k = 0; k < count; k++)
            x[k] = k % 50 == 49 ? 0 : 2;
        test_fill(dy, count * DIM, 5, -1, 1);
        memset(want, 0, sizeof want);
        for (int64_t k = 0; k < count * DIM; k++)
            want[x[k / DIM] * DIM + k % DIM] += dy[k];
        cr_assert_eq(gpp__cuda_embedding.prepare(&kernel, NULL), GPP_OK);
        gpp__io io = {.in = {cuda_copy_of(x, (size_t)count * sizeof *x)}};
        io.grad_out[0] = cuda_copy_of(dy, (size_t)count * DIM * sizeof *dy);
        io.grads = cuda_room(sizeof got);
        io.scratch = cuda_room(kernel.backward_scratch);
        cr_assert_eq(gpp__cuda_embedding.backward(&kernel, &rig->run, &io), GPP_OK);
        cuda_get(got, io.grads, sizeof got);
        cr_expect(test_same(got, want, NUM * DIM), "%d positions", (int)count);
        cuda_free((void *)io.in[0]);
        cuda_free((void *)io.grad_out[0]);
        cuda_free(io.grads);
        cuda_free(io.scratch);
        test_rig_free(rig);
        free(x);
        free(dy);
    }
}

Test(cuda_layout, an_index_out_of_range_gives_nan_and_no_gradient)
{
    enum { NUM = 3, DIM = 2, COUNTED = 5 };
    const int64_t x[COUNTED] = {1, NUM, -1, 0, INT64_MAX};
    const gpp__desc in = {.dtype = GPP_I64, .rank = 0};
    test_rig *rig = rig_of("embedding num=3 dim=2", &in, 1, COUNTED);
    gpp__kernel kernel = {.layer = &rig->layer, .rows = COUNTED};
    const float table[NUM * DIM] = {1, 2, 3, 4, 5, 6};
    float dy[COUNTED * DIM], y[COUNTED * DIM], dw[NUM * DIM];
    for (int k = 0; k < COUNTED * DIM; k++)
        dy[k] = (float)(k + 1);
    cr_assert_eq(gpp__cuda_embedding.prepare(&kernel, NULL), GPP_OK);
    gpp__io io = {.in = {cuda_copy_of(x, sizeof x)}, .out = {cuda_room(sizeof y)}};
    io.params = cuda_copy_of(table, sizeof table);
    io.grad_out[0] = cuda_copy_of(dy, sizeof dy);
    io.grads = cuda_room(sizeof dw);
    io.scratch = cuda_room(kernel.backward_scratch);
    cr_assert_eq(gpp__cuda_embedding.forward(&kernel, &rig->run, &io), GPP_OK);
    cr_assert_eq(gpp__cuda_embedding.backward(&kernel, &rig->run, &io), GPP_OK);
    cuda_get(y, io.out[0], sizeof y);
    cuda_get(dw, io.grads, sizeof dw);
    for (int k = 0; k < COUNTED * DIM; k++) {
        int64_t row = x[k / DIM];
        if (row < 0 || row >= NUM)
            cr_expect(isnan(y[k]), "y[%d] is %g", k, (double)y[k]);
        else
            cr_expect_eq(y[k], table[row * DIM + k % DIM]);
    }
    const float want[NUM * DIM] = {7, 8, 1, 2, 0, 0};
    cr_expect(test_same(dw, want, NUM * DIM));
    void *rooms[] = {(void *)io.in[0],       io.out[0], (void *)io.params,
                     (void *)io.grad_out[0], io.grads,  io.scratch};
    for (size_t k = 0; k < COUNT(rooms); k++)
        cuda_free(rooms[k]);
    test_rig_free(rig);
}

ParameterizedTestParameters(cuda_layout, positions_are_added_and_their_gradients_summed)
{
    static cuda_case cases[] = {
        {.why = "all positions",
         .spec = "position_embedding length=3",
         .ins = 1,
         .in = {MATRIX(3, 5)},
         .tolerance = ROW_SUMS},
        {.why = "fewer than there are, in fours",
         .spec = "position_embedding length=9",
         .ins = 1,
         .in = {MATRIX(6, 8)},
         .tolerance = ROW_SUMS},
        {.why = "more columns than a block's",
         .spec = "position_embedding length=5",
         .ins = 1,
         .in = {MATRIX(4, 37)},
         .tolerance = ROW_SUMS},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_layout, positions_are_added_and_their_gradients_summed)
{
    cuda_check(c);
}

/* --- images ----------------------------------------------------------------------------------- */

/* The same products in the same order; a device may fuse them with the sums, and a gradient may be
 * that of many outputs. */
#define WEIGHTS 1e-6

ParameterizedTestParameters(cuda_layout, resampled_images_are_the_cpus)
{
    static cuda_case cases[] = {
        {.why = "nearest, doubled",
         .spec = "upsample scale=2",
         .ins = 1,
         .in = {IMAGE(4, 3, 5)},
         .tolerance = WEIGHTS},
        {.why = "nearest, to a size, no multiple of four",
         .spec = "upsample size=7,3",
         .ins = 1,
         .in = {IMAGE(3, 4, 5)},
         .tolerance = WEIGHTS},
        {.why = "bilinear, doubled",
         .spec = "upsample scale=2 mode=bilinear",
         .ins = 1,
         .in = {IMAGE(8, 3, 4)},
         .tolerance = WEIGHTS},
        {.why = "bilinear, by two factors",
         .spec = "upsample scale=3,5 mode=bilinear",
         .ins = 1,
         .in = {IMAGE(2, 3, 2)},
         .tolerance = WEIGHTS},
        {.why = "corners aligned",
         .spec = "upsample size=9,7 mode=bilinear align_corners=1",
         .ins = 1,
         .in = {IMAGE(4, 4, 3)},
         .tolerance = WEIGHTS},
        {.why = "corners aligned, to one line",
         .ins = 1,
         .in = {IMAGE(1, 4, 3)},
         .spec = "upsample size=1,6 mode=bilinear align_corners=1",
         .tolerance = WEIGHTS},
        {.why = "smaller: inputs that nobody takes",
         .spec = "upsample size=2,3 mode=bilinear",
         .ins = 1,
         .in = {IMAGE(4, 9, 10)},
         .tolerance = WEIGHTS},
        {.why = "nearest, smaller",
         .spec = "upsample size=2,3",
         .ins = 1,
         .in = {IMAGE(5, 9, 10)},
         .tolerance = WEIGHTS},
        {.why = "one pixel",
         .spec = "upsample scale=4 mode=bilinear",
         .ins = 1,
         .in = {IMAGE(3, 1, 1)},
         .tolerance = WEIGHTS},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_layout, resampled_images_are_the_cpus)
{
    cuda_check(c);
}

ParameterizedTestParameters(cuda_layout, channels_move_as_on_the_cpu)
{
    static cuda_case cases[] = {
        {.why = "three colours: no tiles",
         .spec = "channels_last",
         .ins = 1,
         .in = {IMAGE(3, 7, 9)}},
        {.why = "back", .spec = "channels_first", .ins = 1, .in = {IMAGE(3, 7, 9)}},
        {.why = "few pixels: no tiles", .spec = "channels_last", .ins = 1, .in = {IMAGE(70, 2, 2)}},
        {.why = "one tile, in part", .spec = "channels_last", .ins = 1, .in = {IMAGE(9, 3, 4)}},
        {.why = "whole tiles", .spec = "channels_first", .ins = 1, .in = {IMAGE(32, 8, 8)}},
        {.why = "parts of tiles on both sides",
         .spec = "channels_last",
         .ins = 1,
         .in = {IMAGE(45, 5, 7)}},
        {.why = "parts of tiles, back",
         .spec = "channels_first",
         .ins = 1,
         .in = {IMAGE(33, 6, 11)}},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}

ParameterizedTest(cuda_case *c, cuda_layout, channels_move_as_on_the_cpu)
{
    cuda_check(c);
}

/* --- the list of kernels under test ----------------------------------------------------------- */

Test(cuda_layout, no_operators_kernels_are_left_out_of_these_tests)
{
#define LISTED(kernels) &kernels,
    static const gpp__kernels *const listed[] = {RIG_KERNEL_LIST(LISTED)};
#undef LISTED
    for (const gpp_op *const *op = gpp__ops; *op; op++) {
        bool found = !(*op)->cuda;
        for (size_t k = 0; !found && k < COUNT(listed); k++)
            found = (*op)->cuda == listed[k];
        cr_expect(found, "%s", (*op)->name);
    }
}
