/*
 * tests/cuda/test_cuda_ops.c: what single operators do on CUDA that others do not: numbers at the
 * edge, masks of dropout, absent tensors, embeddings of long runs of one index, batchnorm's
 * records. What all of them do: test_cuda_operators.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* --- numbers at the edge ---------------------------------------------------------------------- */

/* What both sides are given: far out, nearly nothing, and no number. */
static const float edges[] = {NAN,    INFINITY, -INFINITY, 1e30f, -1e30f, 0.0f,   -0.0f, 89.0f,
                              -89.0f, 20.5f,    -20.5f,    1e-6f, -1e-6f, 1e-40f, -9.0f, 6.0f};
enum { EDGES = sizeof edges / sizeof *edges };

/* NaN and infinities where the other has them; else close relative to the value, or to 1e-6, below
 * which tails may end at different places. */
static bool near(float got, float want)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs((double)got - want) <= 1e-5 * fabs((double)want) + 1e-11;
}

/* One call of a device's function with the rig's tensors; what the call gives into `to`. */
static void call_edges(const test_rig *rig, const float *grad, float *to)
{
    const gpp__kernels *op = rig->layer.op->cuda;
    gpp__run run = rig->run;
    gpp__io io = {.params = NULL};
    void *x = cuda_copy_of(edges, sizeof edges), *y = cuda_room(sizeof edges), *dy = NULL;
    gpp_error err = GPP_ERROR_INIT;
    run.cuda = cuda_device(GPP__MATH_F32);
    run.err = &err;
    io.in[0] = x;
    io.out[0] = y;
    if (grad) {
        dy = cuda_copy_of(grad, sizeof edges);
        io.grad_out[0] = dy;
        io.grad_in[0] = y;
        io.in[0] = io.out[0] = x; /* a backward reads one of them: both sides get x for either */
    }
    gpp_status status = (grad ? op->backward : op->forward)(&rig->kernel, &run, &io);
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
    cuda_get(to, y, sizeof edges);
    cuda_free(x);
    cuda_free(y);
    cuda_free(dy);
}

/* The same call of the CPU's. */
static void call_cpu(const test_rig *rig, const float *grad, float *to)
{
    gpp__io io = {.in = {edges}, .out = {to}};
    if (grad) {
        io.out[0] = (void *)edges;
        io.grad_out[0] = grad;
        io.grad_in[0] = to;
    }
    const gpp__kernels *op = &rig->layer.op->cpu;
    cr_assert_eq((grad ? op->backward : op->forward)(&rig->kernel, &rig->run, &io), GPP_OK);
}

static void check_edges(const char *spec)
{
    const gpp__desc in = VECTOR(EDGES);
    float grad[EDGES], got[EDGES], want[EDGES];
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    cr_assert_eq(test_rig_new(&rig, spec, 0, &in, 1, 1, &err), GPP_OK, "%s", err.msg);
    for (int k = 0; k < EDGES; k++)
        grad[k] = k % 5 == 4 ? -2.0f : 1.5f;
    for (int back = 0; back < 2; back++) {
        call_edges(rig, back ? grad : NULL, got);
        call_cpu(rig, back ? grad : NULL, want);
        for (int k = 0; k < EDGES; k++)
            cr_expect(near(got[k], want[k]), "%s, %s of %g: %.9g, the CPU's is %.9g", spec,
                      back ? "gradient" : "value", (double)edges[k], (double)got[k],
                      (double)want[k]);
    }
    test_rig_free(rig);
}

Test(cuda_ops, edges_and_no_numbers_give_what_the_cpu_gives)
{
    static const char *const specs[] = {
        "relu",    "relu6", "hardtanh", "leaky_relu", "elu",
        "sigmoid", "silu",  "tanh",     "gelu",       "gelu approximate=tanh",
        "softplus"};
    for (size_t k = 0; k < COUNT(specs); k++)
        check_edges(specs[k]);
}

/* --- dropout ---------------------------------------------------------------------------------- */

/* One forward of dropout of `row` ones a row, at a place in the run. */
static void mask_at(const char *spec, const gpp__run *run, int64_t row, int64_t rows)
{
    const gpp__desc in = VECTOR(row);
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    size_t bytes = (size_t)(rows * row) * sizeof(float);
    float *x = test_room(bytes), *got = test_room(bytes), *want = test_room(bytes);
    cr_assert_eq(test_rig_new(&rig, spec, 3, &in, rows, 1, &err), GPP_OK, "%s", err.msg);
    for (int64_t k = 0; k < rows * row; k++)
        x[k] = 1;
    gpp__pool *pool = rig->run.pool; /* the rig's */
    rig->run = *run;
    rig->run.pool = pool;
    cr_assert_eq(test_rig_forward(rig, x, want), GPP_OK);
    void *to = cuda_room(bytes);
    gpp__io io = {.in = {cuda_copy_of(x, bytes)}, .out = {to}};
    rig->run.cuda = cuda_device(GPP__MATH_F32);
    cr_assert_eq(rig->layer.op->cuda->forward(&rig->kernel, &rig->run, &io), GPP_OK);
    cuda_get(got, to, bytes);
    cr_expect(test_same(got, want, rows * row), "seed %llu, step %llu, row %lld",
              (unsigned long long)run->seed, (unsigned long long)run->step,
              (long long)run->row0[0]);
    cuda_free((void *)io.in[0]);
    cuda_free(to);
    test_rig_free(rig);
    free(x);
    free(got);
    free(want);
}

Test(cuda_ops, masks_are_a_function_of_seed_step_and_row)
{
    static const gpp__run runs[] = {
        {.training = true, .seed = 1, .row0 = {0}},
        {.training = true, .seed = UINT64_C(0xfedcba9876543210), .step = 77, .row0 = {13}},
        {.training = true, .seed = 2, .step = UINT64_C(0x300000001), .row0 = {1 << 20}},
        {.training = true, .seed = 3, .row0 = {INT64_C(1) << 40}},
    };
    for (size_t k = 0; k < COUNT(runs); k++) {
        mask_at("dropout p=0.5", &runs[k], 11, 5);
        mask_at("dropout p=0.1", &runs[k], 64, 3);
    }
}

Test(cuda_ops, dropout_evaluates_to_its_input)
{
    static const gpp__run run = {.training = false, .seed = 1};
    mask_at("dropout p=0.5", &run, 11, 5);
}

/* --- absent tensors --------------------------------------------------------------------------- */

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

Test(cuda_ops, an_absent_skip_is_refused_by_name)
{
    static const char *const specs[] = {"pop name=s mode=add", "combine mode=cat"};
    const gpp__desc in[] = {VECTOR(4), VECTOR(4)};
    for (size_t k = 0; k < COUNT(specs); k++) {
        test_rig *rig = rig_of(specs[k], in, 2, 1);
        gpp_error err = GPP_ERROR_INIT;
        gpp__io io = {.in = {cuda_room(16)}, .out = {cuda_room(64)}};
        rig->run.err = &err;
        cr_expect_eq(rig->layer.op->cuda->forward(&rig->kernel, &rig->run, &io), GPP_EUNSUPPORTED);
        cr_expect_eq(err.layer, 2);
        cr_expect(strstr(err.msg, "absent"), "%s", err.msg);
        cuda_free((void *)io.in[0]);
        cuda_free(io.out[0]);
        test_rig_free(rig);
    }
}

Test(cuda_ops, the_gradient_of_a_part_without_one_is_zero)
{
    enum { ROWS = 3, WIDTH = 8 };
    const gpp__desc in = VECTOR(WIDTH);
    test_rig *rig = rig_of("split dim=1 parts=2", &in, 1, ROWS);
    float part[ROWS * WIDTH / 2], got[ROWS * WIDTH];
    for (int k = 0; k < ROWS * WIDTH / 2; k++)
        part[k] = (float)(k + 1);
    gpp__io io = {.grad_out = {NULL, cuda_copy_of(part, sizeof part)}};
    io.grad_in[0] = cuda_room(sizeof got);
    cr_assert_eq(rig->layer.op->cuda->backward(&rig->kernel, &rig->run, &io), GPP_OK);
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

/* Runs of 1 ... 600 positions of one index: shorter and longer than what a thread asks for at once
 * and than a block. */
Test(cuda_ops, runs_of_equal_indices_of_any_length_are_summed)
{
    static const int64_t counts[] = {1, 7, 8, 9, 31, 32, 33, 64, 65, 600, 1024, 1025, 2100};
    const gpp__desc in = {.dtype = GPP_I64, .rank = 0};
    enum { NUM = 3, DIM = 40 };
    for (size_t n = 0; n < COUNT(counts); n++) {
        int64_t count = counts[n];
        test_rig *rig = rig_of("embedding num=3 dim=40", &in, 1, count);
        const gpp__kernels *op = rig->layer.op->cuda;
        gpp__kernel kernel = {.layer = &rig->layer, .rows = count};
        int64_t *x = test_room((size_t)count * sizeof *x);
        float *dy = test_room((size_t)count * DIM * sizeof *dy), got[NUM * DIM], want[NUM * DIM];
        for (int64_t k = 0; k < count; k++)
            x[k] = k % 50 == 49 ? 0 : 2;
        test_fill(dy, count * DIM, 5, -1, 1);
        memset(want, 0, sizeof want);
        for (int64_t k = 0; k < count * DIM; k++)
            want[x[k / DIM] * DIM + k % DIM] += dy[k];
        cr_assert_eq(op->prepare(&kernel, NULL), GPP_OK);
        gpp__io io = {.in = {cuda_copy_of(x, (size_t)count * sizeof *x)}};
        io.grad_out[0] = cuda_copy_of(dy, (size_t)count * DIM * sizeof *dy);
        io.grads = cuda_room(sizeof got);
        io.scratch = cuda_room(kernel.backward_scratch);
        cr_assert_eq(op->backward(&kernel, &rig->run, &io), GPP_OK);
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

Test(cuda_ops, an_index_out_of_range_gives_nan_and_no_gradient)
{
    enum { NUM = 3, DIM = 2, COUNTED = 5 };
    const int64_t x[COUNTED] = {1, NUM, -1, 0, INT64_MAX};
    const gpp__desc in = {.dtype = GPP_I64, .rank = 0};
    test_rig *rig = rig_of("embedding num=3 dim=2", &in, 1, COUNTED);
    const gpp__kernels *op = rig->layer.op->cuda;
    gpp__kernel kernel = {.layer = &rig->layer, .rows = COUNTED};
    const float table[NUM * DIM] = {1, 2, 3, 4, 5, 6};
    float dy[COUNTED * DIM], y[COUNTED * DIM], dw[NUM * DIM];
    for (int k = 0; k < COUNTED * DIM; k++)
        dy[k] = (float)(k + 1);
    cr_assert_eq(op->prepare(&kernel, NULL), GPP_OK);
    gpp__io io = {.in = {cuda_copy_of(x, sizeof x)}, .out = {cuda_room(sizeof y)}};
    io.params = cuda_copy_of(table, sizeof table);
    io.grad_out[0] = cuda_copy_of(dy, sizeof dy);
    io.grads = cuda_room(sizeof dw);
    io.scratch = cuda_room(kernel.backward_scratch);
    cr_assert_eq(op->forward(&kernel, &rig->run, &io), GPP_OK);
    cr_assert_eq(op->backward(&kernel, &rig->run, &io), GPP_OK);
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

/* --- batchnorm -------------------------------------------------------------------------------- */

Test(cuda_ops, batchnorm_of_one_number_a_channel_fails_as_on_the_cpu)
{
    const gpp__desc in = VECTOR(3);
    const float x[] = {1, 2, 3};
    gpp_error got = GPP_ERROR_INIT, want = GPP_ERROR_INIT;
    test_rig *rig = rig_of("batchnorm", &in, 1, 1);
    const gpp__kernels *op = rig->layer.op->cuda;
    gpp__kernel kernel = {.layer = &rig->layer, .rows = 1, .cuda = rig->run.cuda};
    test_rig_init(rig, 1);
    rig->run.err = &want;
    gpp_status status = test_rig_forward(rig, x, NULL);
    rig->run.err = &got;
    cr_assert_eq(op->prepare(&kernel, &got), GPP_OK);
    void *params = cuda_copy_of(rig->params, rig->layer.param_bytes);
    gpp__io io = {
        .in = {cuda_copy_of(x, sizeof x)}, .out = {cuda_room(sizeof x)}, .params = params};
    io.saved = cuda_room(kernel.saved_bytes);
    io.scratch = cuda_room(kernel.forward_scratch);
    io.stats = cuda_room(rig->layer.op->stats_bytes(&rig->layer));
    cr_expect_eq(op->forward(&kernel, &rig->run, &io), status);
    cr_expect_neq(status, GPP_OK);
    cr_expect_str_eq(got.msg, want.msg);
    cr_expect_eq(got.layer, want.layer);
    void *rooms[] = {(void *)io.in[0], io.out[0], params, io.saved, io.scratch, io.stats};
    for (size_t k = 0; k < COUNT(rooms); k++)
        cuda_free(rooms[k]);
    test_rig_free(rig);
}

/* Records of micro-batches, one of them without rows, into the buffers. */
static void check_commit(const char *spec)
{
    enum { C = 5, RECORDS = 4, NUMBERS = 1 + 2 * C };
    const gpp__desc in = VECTOR(C);
    double record[RECORDS][NUMBERS] = {{0}};
    const char *each[RECORDS];
    test_rig *rig = rig_of(spec, &in, 1, 4);
    test_rig_init(rig, 1);
    for (int i = 0; i < RECORDS; i++) {
        each[i] = (const char *)record[i];
        record[i][0] = i == 1 ? 0 : 3 + i; /* the second has no rows */
        for (int k = 1; k < NUMBERS && i != 1; k++)
            record[i][k] = 0.5 + 0.37 * k + 0.11 * i * k;
    }
    void *params = cuda_copy_of(rig->params, rig->layer.param_bytes);
    void *records = cuda_copy_of(record, sizeof record);
    char *got = malloc(rig->layer.param_bytes);
    test_rig_commit(rig, RECORDS, each);
    cr_assert_eq(rig->layer.op->cuda->commit(&rig->layer, &rig->run, RECORDS, records,
                                             sizeof record[0], params),
                 GPP_OK);
    cuda_get(got, params, rig->layer.param_bytes);
    for (int k = 0; k < rig->layer.param_count; k++) {
        const gpp__param *param = &rig->layer.param[k];
        size_t bytes = (size_t)param->count * gpp_dtype_size(param->dtype);
        /* The same double operations in the same order. */
        cr_expect_eq(memcmp(got + param->offset, rig->params + param->offset, bytes), 0,
                     "%s: %s differs", spec, param->name);
    }
    free(got);
    cuda_free(records);
    cuda_free(params);
    test_rig_free(rig);
}

Test(cuda_ops, commits_of_several_records_give_the_cpus_bits)
{
    check_commit("batchnorm");
    check_commit("batchnorm momentum=none");
    check_commit("batchnorm deferred=1");
    check_commit("batchnorm deferred=1 momentum=none");
}
