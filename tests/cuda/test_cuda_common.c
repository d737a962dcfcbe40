/*
 * tests/cuda/test_cuda_common.c: what operators are called with and use in common: handles,
 * failures, copies, sums of columns, bfloat16, the norm of gradients.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cuda/norms.h"
#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* --- handles ---------------------------------------------------------------------------------- */

Test(cuda_handles, are_set_as_the_options_say)
{
    static const struct {
        gpp__math math;
        bool deterministic;
        int mode;
    } cases[] = {
        {GPP__MATH_F32, true, CUBLAS_DEFAULT_MATH},
        {GPP__MATH_F32, false, CUBLAS_DEFAULT_MATH},
        {GPP__MATH_BF16, true, CUBLAS_DEFAULT_MATH},
        {GPP__MATH_TF32, true, CUBLAS_TF32_TENSOR_OP_MATH},
    };
    cuda_device(GPP__MATH_F32);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cudaStream_t stream, of_blas, of_dnn;
        gpp__cuda *cuda;
        cublasMath_t mode;
        cublasAtomicsMode_t atomics;
        cublasPointerMode_t pointers;
        cr_assert(!cudaStreamCreate(&stream));
        cr_assert(!gpp__cuda_new(&cuda, 0, stream, cases[k].math, cases[k].deterministic, &err),
                  "%s", err.msg);
        cr_assert(!cublasGetMathMode(cuda->blas, &mode) &&
                  !cublasGetAtomicsMode(cuda->blas, &atomics) &&
                  !cublasGetPointerMode(cuda->blas, &pointers) &&
                  !cublasGetStream(cuda->blas, &of_blas) && !cudnnGetStream(cuda->dnn, &of_dnn));
        cr_expect(of_blas == stream && of_dnn == stream && cuda->stream == stream);
        cr_expect_eq((int)mode, cases[k].mode, "case %zu", k);
        cr_expect_eq(atomics == CUBLAS_ATOMICS_NOT_ALLOWED, cases[k].deterministic);
        cr_expect_eq(pointers, CUBLAS_POINTER_MODE_HOST);
        cr_expect(cuda->multiprocessors > 0 && cuda->ordinal == 0 && cuda->math == cases[k].math &&
                  cuda->deterministic == cases[k].deterministic);
        gpp__cuda_free(cuda);
        cr_assert(!cudaStreamDestroy(stream));
    }
}

Test(cuda_handles, keep_no_memory_when_they_are_freed)
{
    gpp__cuda *first = cuda_device(GPP__MATH_F32), *cuda;
    size_t before, after, total;
    cr_assert(!cudaMemGetInfo(&before, &total));
    for (int k = 0; k < 8; k++) {
        cr_assert(!gpp__cuda_new(&cuda, 0, first->stream, GPP__MATH_F32, true, NULL));
        gpp__cuda_free(cuda);
    }
    gpp__cuda_free(NULL);
    cr_assert(!cudaMemGetInfo(&after, &total));
    /* On a device others may come and go, and the runtime takes memory by the 2 MiB: eight
     * workspaces of 32 MiB would show. */
    cr_expect(after + ((size_t)64 << 20) > before, "%zu bytes less than before", before - after);
}

Test(cuda_handles, of_another_device_than_the_current_one_are_refused)
{
    cuda_device(GPP__MATH_F32);
    gpp_error err = GPP_ERROR_INIT;
    gpp__cuda *cuda = (gpp__cuda *)&err;
    cr_expect_eq(gpp__cuda_new(&cuda, 5, NULL, GPP__MATH_F32, true, &err), GPP_ENODEV);
    cr_expect_null(cuda);
    cr_expect(strstr(err.msg, "cuda:5") && strstr(err.msg, "cuda:0"), "%s", err.msg);
}

/* --- failures --------------------------------------------------------------------------------- */

Test(cuda_failures, say_the_call_the_layer_the_device_and_what_it_was)
{
    cuda_device(GPP__MATH_F32);
    gpp_op op = {.name = "conv2d"};
    gpp__layer layer = {.op = &op, .index = 7};
    static const struct {
        int library, code;
        gpp_status status;
        char text[48];
    } cases[] = {
        {0, cudaErrorIllegalAddress, GPP_EKERNEL, "cudaErrorIllegalAddress"},
        {0, cudaErrorMemoryAllocation, GPP_ENOMEM, "out of memory"},
        {0, cudaErrorNoDevice, GPP_ENODEV, "no CUDA-capable device"},
        {1, CUBLAS_STATUS_INVALID_VALUE, GPP_EKERNEL, "CUBLAS_STATUS_INVALID_VALUE"},
        {1, CUBLAS_STATUS_ALLOC_FAILED, GPP_ENOMEM, "CUBLAS_STATUS_ALLOC_FAILED"},
        {2, CUDNN_STATUS_BAD_PARAM, GPP_EKERNEL, "CUDNN_STATUS_BAD_PARAM"},
        {2, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, GPP_ENOMEM, "cuDNN"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int with = 0; with < 2; with++) {
            gpp_error err = GPP_ERROR_INIT;
            const gpp__layer *whose = with ? &layer : NULL;
            gpp_status status =
                cases[k].library == 0   ? GPP__CUDA((cudaError_t)cases[k].code, whose, &err)
                : cases[k].library == 1 ? GPP__CUBLAS((cublasStatus_t)cases[k].code, whose, &err)
                                        : GPP__CUDNN((cudnnStatus_t)cases[k].code, whose, &err);
            cr_expect_eq(status, cases[k].status, "%s", err.msg);
            cr_expect(strstr(err.msg, cases[k].text) && strstr(err.msg, "cases[k].code") &&
                          strstr(err.msg, "cuda:0"),
                      "%s", err.msg);
            cr_expect_eq(err.layer, with ? 7 : -1);
            cr_expect(!with || strstr(err.msg, "conv2d (layer 7)"), "%s", err.msg);
        }
    }
}

Test(cuda_failures, of_launches_are_told_once)
{
    cuda_device(GPP__MATH_F32);
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp__cuda_launched(NULL, &err), GPP_OK);
    cr_expect_neq(cudaSetDevice(1000), cudaSuccess); /* leaves an error, as a launch would */
    cr_expect_neq(gpp__cuda_launched(NULL, &err), GPP_OK);
    cr_expect(err.msg[0] != '\0');
    cr_expect_eq(gpp__cuda_launched(NULL, NULL), GPP_OK);
}

/* --- copies ----------------------------------------------------------------------------------- */

Test(cuda_common, zeroes_copies_and_adds_any_number_of_elements)
{
    static const int64_t counts[] = {0, 1, 31, 256, 257, 100003};
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        int64_t n = counts[k];
        size_t bytes = (size_t)n * sizeof(float);
        float *x = malloc(bytes + 1), *y = malloc(bytes + 1), *got = malloc(bytes + 1);
        test_fill(x, n, 1, -1, 1);
        test_fill(y, n, 2, -1, 1);
        float *a = cuda_copy_of(x, bytes), *b = cuda_copy_of(y, bytes), *c = cuda_room(bytes);
        cr_expect(!gpp__cuda_copy(cuda, c, a, bytes, NULL) &&
                  !gpp__cuda_accumulate(cuda, c, b, n, NULL) &&
                  !gpp__cuda_zero(cuda, a, bytes, NULL) &&
                  !gpp__cuda_copy(cuda, b, b, bytes, NULL));
        for (int64_t i = 0; i < n; i++)
            y[i] += x[i];
        memset(x, 0, bytes);
        cuda_get(got, c, bytes);
        cr_expect(test_same(got, y, n), "a sum of %d", (int)n);
        cuda_get(got, a, bytes);
        cr_expect(test_same(got, x, n), "%d zeros", (int)n);
        cuda_free(a);
        cuda_free(b);
        cuda_free(c);
        free(x);
        free(y);
        free(got);
    }
}

/* --- sums of columns -------------------------------------------------------------------------- */

static void sum_columns(int64_t rows, int64_t columns)
{
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    int64_t count = rows * columns;
    size_t room_bytes = gpp__cuda_columns_room(rows, columns);
    float *x = malloc((size_t)count * sizeof *x), *want = malloc((size_t)columns * sizeof *want);
    float *got[3];
    test_fill(x, count, 5, -1, 1);
    float *device = cuda_copy_of(x, (size_t)count * sizeof *x);
    float *sums = cuda_room((size_t)columns * sizeof *sums);
    for (int run = 0; run < 3; run++) { /* assign, add, assign in the other order of threads */
        void *room = cuda_room(room_bytes);
        cuda_order(run == 2);
        cr_assert(!gpp__cuda_sum_columns(cuda, device, rows, columns, run == 1, sums, room, NULL));
        cuda_order(false);
        got[run] = malloc((size_t)columns * sizeof(float));
        cuda_get(got[run], sums, (size_t)columns * sizeof(float));
        cuda_free(room);
    }
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += x[r * columns + c];
        want[c] = (float)sum;
    }
    /* Rounding: about the square root of the rows' number times 2^-24 of sums near that root. */
    double allowed = 1e-5;
    cr_expect(test_distance(got[0], want, columns) < allowed, "%d x %d", (int)rows, (int)columns);
    cr_expect(test_same(got[2], got[0], columns), "%d x %d, again", (int)rows, (int)columns);
    for (int64_t c = 0; c < columns; c++)
        want[c] = got[0][c] + got[0][c];
    cr_expect(test_same(got[1], want, columns), "%d x %d, added", (int)rows, (int)columns);
    for (int run = 0; run < 3; run++)
        free(got[run]);
    free(x);
    free(want);
    cuda_free(device);
    cuda_free(sums);
}

Test(cuda_common, sums_columns_of_any_size_in_an_order_of_its_own)
{
    static const int64_t sizes[][2] = {{1, 1},    {1, 40},   {5, 32},    {8, 33},    {127, 3},
                                       {129, 3},  {1000, 1}, {5000, 7},  {300, 65},  {20000, 2},
                                       {64, 700}, {130, 64}, {70001, 1}, {257, 2000}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        sum_columns(sizes[k][0], sizes[k][1]);
}

Test(cuda_common, needs_room_for_sums_only_where_rows_are_cut)
{
    cr_expect_eq(gpp__cuda_columns_room(100, 10), 0);
    cr_expect_eq(gpp__cuda_columns_room(7, 0), 0);
    cr_expect_eq(gpp__cuda_columns_room(100000, 1 << 20), 0, "columns alone occupy a device");
    cr_expect_gt(gpp__cuda_columns_room(100000, 10), 0);
}

/* --- bfloat16 --------------------------------------------------------------------------------- */

static float bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

Test(cuda_common, rounds_to_bfloat16_to_nearest_even)
{
    static const struct {
        char why[48];
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {"exact", 0x3f800000, 0x3f80},
        {"below half goes down", 0x3f807fff, 0x3f80},
        {"half goes to the even one, down", 0x3f808000, 0x3f80},
        {"half goes to the even one, up", 0x3f818000, 0x3f82},
        {"above half goes up", 0x3f808001, 0x3f81},
        {"the carry goes into the exponent", 0x3fffffff, 0x4000},
        {"negative zero", 0x80000000, 0x8000},
        {"smallest denormal", 0x00000001, 0x0000},
        {"infinity", 0x7f800000, 0x7f80},
        {"the largest becomes infinity", 0x7f7fffff, 0x7f80},
        {"a negative one", 0xc0490fdb, 0xc049},
    };
    enum { COUNT = sizeof cases / sizeof *cases };
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    float x[COUNT], back[COUNT];
    uint16_t half[COUNT];
    for (int k = 0; k < COUNT; k++)
        x[k] = bits(cases[k].from);
    float *device = cuda_copy_of(x, sizeof x), *again = cuda_room(sizeof x);
    uint16_t *halves = cuda_room(sizeof half);
    cr_assert(!gpp__cuda_to_bf16(cuda, device, halves, COUNT, NULL));
    cr_assert(!gpp__cuda_from_bf16(cuda, halves, again, COUNT, NULL));
    cuda_get(half, halves, sizeof half);
    cuda_get(back, again, sizeof back);
    for (int k = 0; k < COUNT; k++) {
        cr_expect_eq(half[k], cases[k].to, "%s: %#x", cases[k].why, half[k]);
        float want = bits((uint32_t)cases[k].to << 16);
        cr_expect(memcmp(&back[k], &want, sizeof want) == 0, "%s, back", cases[k].why);
    }
    cuda_free(device);
    cuda_free(again);
    cuda_free(halves);
}

Test(cuda_common, keeps_nan_in_bfloat16)
{
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    float x[] = {bits(0x7fffffff), bits(0x7f800001), bits(0xffffffff)}, back[3];
    float *device = cuda_copy_of(x, sizeof x), *again = cuda_room(sizeof x);
    uint16_t *halves = cuda_room(3 * sizeof *halves);
    cr_assert(!gpp__cuda_to_bf16(cuda, device, halves, 3, NULL));
    cr_assert(!gpp__cuda_from_bf16(cuda, halves, again, 3, NULL));
    cr_assert(!gpp__cuda_to_bf16(cuda, device, halves, 0, NULL), "nothing to do");
    cuda_get(back, again, sizeof back);
    for (int k = 0; k < 3; k++)
        cr_expect(isnan(back[k]), "%d", k);
    cuda_free(device);
    cuda_free(again);
    cuda_free(halves);
}

/* --- the norm of gradients -------------------------------------------------------------------- */

Test(cuda_common, squares_are_added_in_double_by_the_count_alone)
{
    static const int64_t counts[] = {1, 2, 255, 256, 257, 4096, 4097, 70001};
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    gpp_error err = GPP_ERROR_INIT;
    for (size_t k = 0; k < COUNT(counts); k++) {
        int64_t n = counts[k];
        float *x = malloc((size_t)n * sizeof *x);
        test_fill(x, n, (uint64_t)n, -1000, 1000);
        double want = test_dot(x, x, n), got[2];
        void *grad = cuda_copy_of(x, (size_t)n * sizeof *x), *sums = cuda_room(sizeof got);
        void *room = cuda_room(gpp__cuda_squares_room(n));
        for (int order = 0; order < 2; order++) {
            cuda_order(order > 0);
            cr_assert_eq(gpp__cuda_squares(cuda, grad, n, (double *)sums + order, room, &err),
                         GPP_OK, "%s", err.msg);
            cuda_wait();
        }
        cuda_order(false);
        cuda_get(got, sums, sizeof got);
        /* Squares are exact; a sum of n doubles in another order is off by no more than n units of
         * its last place. */
        cr_expect_leq(fabs(got[0] - want), 1e-11 * want, "%d numbers: %.17g, want %.17g", (int)n,
                      got[0], want);
        cr_expect_eq(memcmp(&got[0], &got[1], sizeof(double)), 0, "%d numbers", (int)n);
        cuda_free(grad), cuda_free(sums), cuda_free(room);
        free(x);
    }
}

/* What `count` equal sums give. */
static float factor_of(int64_t count, double sum, double clip_norm, bool skip_nonfinite)
{
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    gpp_error err = GPP_ERROR_INIT;
    double sums[600];
    float factor;
    for (int64_t k = 0; k < count; k++)
        sums[k] = sum;
    void *on_device = cuda_copy_of(sums, (size_t)count * sizeof *sums);
    void *to = cuda_room(sizeof factor);
    cr_assert_eq(gpp__cuda_clip_factor(cuda, on_device, count, clip_norm, skip_nonfinite, to, &err),
                 GPP_OK, "%s", err.msg);
    cuda_wait();
    cuda_get(&factor, to, sizeof factor);
    cuda_free(on_device);
    cuda_free(to);
    return factor;
}

Test(cuda_common, gradients_are_clipped_by_their_norm)
{
    static const struct {
        const char *why;
        int64_t count;
        double sum, clip_norm; /* each of the sums */
        bool skip_nonfinite;
        float factor;
    } cases[] = {
        {"shorter than allowed", .count = 4, .sum = 1, .clip_norm = 3, .factor = 1},
        {"longer: down to it, nearly", .count = 4, .sum = 4, .clip_norm = 1,
         .factor = (float)(1 / (4 + 1e-6))},
        {"many sums", .count = 600, .sum = 1.5, .clip_norm = 10,
         .factor = (float)(10 / (30 + 1e-6))},
        {"no limit", .count = 4, .sum = 1e300, .clip_norm = 0, .factor = 1},
        {"nothing to clip", .count = 4, .sum = 0, .clip_norm = 1, .factor = 1},
        {"no parameters", .count = 0, .clip_norm = 1, .skip_nonfinite = true, .factor = 1},
        {"infinite", .count = 4, .sum = INFINITY, .clip_norm = 1, .factor = 0},
        {"not a number compares with nothing", .count = 4, .sum = NAN, .clip_norm = 1, .factor = 1},
        {"infinite, to be skipped", .count = 4, .sum = INFINITY, .clip_norm = 1,
         .skip_nonfinite = true, .factor = NAN},
        {"not a number, to be skipped", .count = 4, .sum = NAN, .skip_nonfinite = true,
         .factor = NAN},
        {"finite, to be skipped were it not", .count = 4, .sum = 4, .clip_norm = 1,
         .skip_nonfinite = true, .factor = (float)(1 / (4 + 1e-6))},
    };
    for (size_t k = 0; k < COUNT(cases); k++) {
        float got =
            factor_of(cases[k].count, cases[k].sum, cases[k].clip_norm, cases[k].skip_nonfinite);
        float want = cases[k].factor;
        cr_expect(got == want || (isnan(got) && isnan(want)), "%s: %.9g, want %.9g", cases[k].why,
                  (double)got, (double)want);
    }
}
