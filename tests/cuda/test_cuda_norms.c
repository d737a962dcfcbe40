/*
 * tests/cuda/test_cuda_norms.c: normalisations and pooling on CUDA against the CPU, and sums of
 * squares of gradients and what follows from them.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cuda/norms.h"
#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

#define SAMPLE(c)                                                                                  \
    {                                                                                              \
        {                                                                                          \
            .dtype = GPP_F32, .rank = 1, .dim = { c }                                              \
        }                                                                                          \
    }
#define LINE(c, l)                                                                                 \
    {                                                                                              \
        {                                                                                          \
            .dtype = GPP_F32, .rank = 2, .dim = { c, l }                                           \
        }                                                                                          \
    }
#define IMAGE(c, h, w)                                                                             \
    {                                                                                              \
        {                                                                                          \
            .dtype = GPP_F32, .rank = 3, .dim = { c, h, w }                                        \
        }                                                                                          \
    }

/* Sums are double on both sides and differ in their order alone: what is left are last bits of
 * coefficients, and of what nearly cancels in the gradient of x. */
#define NEAR 1e-5

/* --- normalisations --------------------------------------------------------------------------- */

ParameterizedTestParameters(cuda_norms, normalisations_are_the_cpus)
{
    static cuda_case cases[] = {
        {"channels of an image", "batchnorm", 0, IMAGE(5, 4, 3), .tolerance = NEAR},
        {"more channels than a block is wide", "batchnorm", 0, IMAGE(70, 3, 3), .tolerance = NEAR},
        {"a channel of lines", "batchnorm", 0, LINE(4, 6), .tolerance = NEAR},
        {"lines longer than a block", "batchnorm", 0, LINE(3, 700), .tolerance = NEAR,
         .most_rows = 2},
        {"more lines than a chunk", "batchnorm", 0, IMAGE(3, 40, 30), .tolerance = NEAR,
         .most_rows = 7},
        {"one channel", "batchnorm", 0, IMAGE(1, 2, 3), .tolerance = NEAR},
        {"no weights", "batchnorm affine=0", 0, IMAGE(6, 2, 2), .tolerance = NEAR},
        {"no running statistics", "batchnorm track=0", 0, IMAGE(6, 2, 2), .tolerance = NEAR},
        {"nothing but the numbers", "batchnorm affine=0 track=0", 0, LINE(3, 5), .tolerance = NEAR},
        {"cumulative", "batchnorm momentum=none", 0, IMAGE(5, 2, 2), .tolerance = NEAR},
        {"deferred", "batchnorm deferred=1", 0, IMAGE(5, 2, 2), .tolerance = NEAR},
        {"deferred, cumulative", "batchnorm deferred=1 momentum=none", 0, LINE(2, 3),
         .tolerance = NEAR},
        {"a large eps", "batchnorm eps=0.5", 0, IMAGE(5, 3, 2), .tolerance = NEAR},
        {"evaluation", "batchnorm", 0, IMAGE(5, 4, 3), .tolerance = NEAR, .evaluate = true},
        {"evaluation of samples", "batchnorm", 0, SAMPLE(40), .tolerance = NEAR, .evaluate = true},
        {"evaluation by its own statistics", "batchnorm track=0", 0, IMAGE(5, 4, 3),
         .tolerance = NEAR, .evaluate = true},
        {"equal numbers have no variance", "batchnorm", 0, IMAGE(4, 3, 3), .tolerance = NEAR,
         .fill = CUDA_FILL_TIES},

        {"groups of channels", "groupnorm groups=3", 0, IMAGE(6, 4, 5), .tolerance = NEAR},
        {"one group", "groupnorm groups=1", 0, IMAGE(6, 3, 3), .tolerance = NEAR},
        {"groups wider than a block", "groupnorm groups=2", 0, IMAGE(90, 2, 2), .tolerance = NEAR},
        {"more lines in a row than a chunk", "groupnorm groups=2", 0, IMAGE(4, 30, 29),
         .tolerance = NEAR, .most_rows = 7},
        {"groups of samples", "groupnorm groups=4", 0, SAMPLE(12), .tolerance = NEAR},
        {"groups of lines", "groupnorm groups=2", 0, LINE(4, 9), .tolerance = NEAR},
        {"groups without weights", "groupnorm groups=2 affine=0", 0, IMAGE(4, 3, 3),
         .tolerance = NEAR},
        {"channels alone", "instancenorm", 0, IMAGE(5, 4, 3), .tolerance = NEAR},
        {"channels alone, with weights", "instancenorm affine=1", 0, IMAGE(37, 2, 3),
         .tolerance = NEAR},
        {"channels alone, of lines", "instancenorm affine=1", 0, LINE(3, 11), .tolerance = NEAR},

        {"short lines", "layernorm shape=7", 0, SAMPLE(7), .tolerance = NEAR},
        {"one number a line leaves the bias", "layernorm shape=1", 0, LINE(3, 1),
         .tolerance = NEAR},
        {"lines of a sequence", "layernorm shape=48", 0, LINE(5, 48), .tolerance = NEAR},
        {"a line for a block", "layernorm shape=5000", 0, SAMPLE(5000), .tolerance = NEAR,
         .most_rows = 7},
        {"a line for a whole large block", "layernorm shape=9001", 0, SAMPLE(9001),
         .tolerance = NEAR, .most_rows = 2},
        {"several dimensions", "layernorm shape=4,3", 0, IMAGE(6, 4, 3), .tolerance = NEAR},
        {"all dimensions", "layernorm shape=3,4,5", 0, IMAGE(3, 4, 5), .tolerance = NEAR},
        {"lines without weights", "layernorm shape=48 affine=0", 0, LINE(5, 48), .tolerance = NEAR},
        {"more lines than a chunk", "layernorm shape=9", 0, LINE(40, 9), .tolerance = NEAR},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}
ParameterizedTest(cuda_case *c, cuda_norms, normalisations_are_the_cpus)
{
    cuda_check(c);
}

/* --- pooling ---------------------------------------------------------------------------------- */

ParameterizedTestParameters(cuda_norms, pooling_is_the_cpus)
{
    /* Maxima are copies, and small means are sums in the CPU's order: equal bits. Large windows
     * are summed in double instead. */
    static cuda_case cases[] = {
        {"windows side by side", "maxpool2d kernel=2", 0, IMAGE(5, 6, 4), .tolerance = 0},
        {"windows that overlap", "maxpool2d kernel=3 stride=2 padding=1", 0, IMAGE(9, 7, 8),
         .tolerance = 0},
        {"the first of equal ones wins", "maxpool2d kernel=3 stride=1 padding=1", 0, IMAGE(3, 5, 5),
         .tolerance = 0, .fill = CUDA_FILL_TIES},
        {"a NaN wins", "maxpool2d kernel=2 stride=1", 0, IMAGE(4, 5, 5), .tolerance = 0,
         .fill = CUDA_FILL_SPECIAL},
        {"gaps in the window", "maxpool2d kernel=2,3 stride=2,1 padding=1 dilation=2,1", 0,
         IMAGE(4, 8, 7), .tolerance = 0},
        {"gaps wider than the stride", "maxpool2d kernel=3 stride=1 padding=1 dilation=3", 0,
         IMAGE(2, 9, 10), .tolerance = 0},
        {"a last window over the edge", "maxpool2d kernel=3 stride=2 ceil=1", 0, IMAGE(5, 6, 8),
         .tolerance = 0},
        {"a last window in the padding is none", "maxpool2d kernel=2 stride=3 padding=1 ceil=1", 0,
         IMAGE(3, 7, 6), .tolerance = 0},
        {"places of four bytes", "maxpool2d kernel=17 stride=3 padding=8", 0, IMAGE(2, 20, 19),
         .tolerance = 0, .most_rows = 2},
        {"strides that leave inputs out", "maxpool2d kernel=2 stride=3", 0, IMAGE(3, 8, 8),
         .tolerance = 0},
        {"one channel", "maxpool2d kernel=2", 0, IMAGE(1, 4, 4), .tolerance = 0},

        {"means side by side", "avgpool2d kernel=2", 0, IMAGE(5, 6, 4), .tolerance = 0},
        {"means that overlap", "avgpool2d kernel=3 stride=2 padding=1", 0, IMAGE(9, 7, 8),
         .tolerance = 0},
        {"padding does not count", "avgpool2d kernel=3,2 stride=2,1 padding=1 count_include_pad=0",
         0, IMAGE(4, 7, 5), .tolerance = 0},
        {"a last mean over the edge", "avgpool2d kernel=3 stride=2 ceil=1", 0, IMAGE(5, 6, 8),
         .tolerance = 0},
        {"over edge and padding", "avgpool2d kernel=3 stride=2 padding=1 ceil=1", 0, IMAGE(5, 6, 7),
         .tolerance = 0},
        {"large windows", "avgpool2d kernel=9 stride=4 padding=2", 0, IMAGE(35, 17, 14),
         .tolerance = NEAR, .most_rows = 7},
        {"large windows, padding does not count",
         "avgpool2d kernel=9 stride=4 padding=3 count_include_pad=0", 0, IMAGE(3, 17, 14),
         .tolerance = NEAR, .most_rows = 7},

        {"the mean of small images", "adaptive_avgpool2d out=1", 0, IMAGE(33, 4, 5),
         .tolerance = 0},
        {"the mean of images", "adaptive_avgpool2d out=1", 0, IMAGE(33, 9, 8), .tolerance = NEAR},
        {"uneven windows", "adaptive_avgpool2d out=3,4", 0, IMAGE(6, 7, 9), .tolerance = 0},
        {"more outputs than inputs", "adaptive_avgpool2d out=5,7", 0, IMAGE(6, 3, 4),
         .tolerance = 0},
        {"large uneven windows", "adaptive_avgpool2d out=2,3", 0, IMAGE(4, 19, 29),
         .tolerance = NEAR, .most_rows = 7},
    };
    return cr_make_param_array(cuda_case, cases, COUNT(cases));
}
ParameterizedTest(cuda_case *c, cuda_norms, pooling_is_the_cpus)
{
    cuda_check(c);
}

/* --- batchnorm, call by call ------------------------------------------------------------------ */

/* Batchnorm with both sides' memory, for what the rig's cases do not do. */
typedef struct pair {
    test_rig *cpu;
    gpp__kernel kernel;
    gpp__run run;
    gpp_error err;
    int64_t rows, count;
    void *x, *y, *dy, *dx, *saved, *scratch, *stats, *params, *grads;
} pair;

static size_t bytes_of(const pair *p)
{
    return (size_t)p->count * sizeof(float);
}

static void open_pair(pair *p, const char *spec, gpp__desc in, int64_t rows, bool training)
{
    *p = (pair){.rows = rows, .err = GPP_ERROR_INIT};
    cr_assert_eq(test_rig_new(&p->cpu, spec, 3, &in, rows, 1, &p->err), GPP_OK, "%s", p->err.msg);
    test_rig_init(p->cpu, 1);
    p->count = test_rig_inputs(p->cpu);
    p->cpu->run.training = training;
    p->run = p->cpu->run;
    p->run.cuda = cuda_device(GPP__MATH_F32);
    p->run.err = &p->err;
    p->kernel = (gpp__kernel){.layer = &p->cpu->layer, .rows = rows, .cuda = p->run.cuda};
    gpp__cuda_batchnorm.prepare(&p->kernel, &p->err);
    size_t room = p->kernel.forward_scratch > p->kernel.backward_scratch
                      ? p->kernel.forward_scratch
                      : p->kernel.backward_scratch;
    p->x = cuda_room(bytes_of(p));
    p->y = cuda_room(bytes_of(p));
    p->dy = cuda_room(bytes_of(p));
    p->dx = cuda_room(bytes_of(p));
    p->saved = cuda_room(p->kernel.saved_bytes);
    p->scratch = cuda_room(room);
    p->stats = cuda_room(p->cpu->layer.op->stats_bytes(&p->cpu->layer));
    p->grads = cuda_room(p->cpu->layer.param_bytes);
}

static void close_pair(pair *p)
{
    void *rooms[] = {p->x, p->y, p->dy, p->dx, p->saved, p->scratch, p->stats, p->params, p->grads};
    for (size_t k = 0; k < COUNT(rooms); k++)
        cuda_free(rooms[k]);
    test_rig_free(p->cpu);
}

static gpp_status forward(pair *p, const float *x)
{
    gpp__io io = {.in = {p->x}, .out = {p->y}, .saved = p->saved, .scratch = p->scratch};
    cuda_put(p->x, x, bytes_of(p));
    p->params = cuda_copy_of(p->cpu->params, p->cpu->layer.param_bytes);
    io.params = p->params;
    io.stats = p->run.training ? p->stats : NULL;
    gpp_status status = gpp__cuda_batchnorm.forward(&p->kernel, &p->run, &io);
    cuda_wait();
    return status;
}

static void backward(pair *p, const float *dy)
{
    gpp__io io = {.in = {p->x}, .saved = p->saved, .scratch = p->scratch, .grads = p->grads};
    io.grad_out[0] = p->dy;
    io.grad_in[0] = p->dx;
    io.params = p->params;
    cuda_put(p->dy, dy, bytes_of(p));
    cr_assert_eq(gpp__cuda_batchnorm.backward(&p->kernel, &p->run, &io), GPP_OK, "%s", p->err.msg);
    cuda_wait();
}

static void expect_near(const void *room, const float *want, int64_t count, const char *what)
{
    float *got = malloc((size_t)count * sizeof *got);
    cuda_get(got, room, (size_t)count * sizeof *got);
    cr_expect_leq(test_distance(got, want, count), NEAR, "%s: off by %g", what,
                  test_distance(got, want, count));
    free(got);
}

/* Forward and backward on both sides; samples (C) are row-major in either layout. */
static void check_pair(const char *what, const char *spec, int64_t channels, int64_t rows,
                       bool training)
{
    pair p;
    open_pair(&p, spec, (gpp__desc){.dtype = GPP_F32, .rank = 1, .dim = {channels}}, rows,
              training);
    float *x = malloc(bytes_of(&p)), *y = malloc(bytes_of(&p)), *dx = malloc(bytes_of(&p)), *grad;
    test_fill(x, p.count, 5, -1, 3);
    cr_assert_eq(test_rig_forward(p.cpu, x, y), GPP_OK);
    cr_assert_eq(forward(&p, x), GPP_OK, "%s", p.err.msg);
    expect_near(p.y, y, p.count, what);
    test_fill(x, p.count, 6, -1, 1);
    cr_assert_eq(test_rig_backward(p.cpu, x, dx, false), GPP_OK);
    backward(&p, x);
    expect_near(p.dx, dx, p.count, what);
    grad = malloc((size_t)channels * sizeof *grad);
    for (int k = 0; k < 2; k++) {
        test_rig_grad(p.cpu, k, grad);
        expect_near((char *)p.grads + p.cpu->layer.param[k].offset, grad, channels, what);
    }
    free(x), free(y), free(dx), free(grad);
    close_pair(&p);
}

Test(cuda_norms, batchnorm_of_samples_is_the_cpus)
{
    check_pair("two rows, whose gradient nearly cancels", "batchnorm eps=0.5", 3, 2, true);
    check_pair("seven rows", "batchnorm", 5, 7, true);
    check_pair("rows for several chunks", "batchnorm", 40, 300, true);
    check_pair("constants: the gradient of what is evaluated", "batchnorm", 5, 7, false);
}

Test(cuda_norms, batchnorm_of_one_number_a_channel_fails_as_on_the_cpu)
{
    pair p;
    float x[3] = {1, 2, 3};
    gpp_error want = GPP_ERROR_INIT;
    open_pair(&p, "batchnorm", (gpp__desc){.dtype = GPP_F32, .rank = 1, .dim = {3}}, 1, true);
    p.cpu->run.err = &want;
    gpp_status status = test_rig_forward(p.cpu, x, NULL);
    cr_expect_eq(forward(&p, x), status);
    cr_expect_neq(status, GPP_OK);
    cr_expect_str_eq(p.err.msg, want.msg);
    cr_expect_eq(p.err.layer, want.layer);
    close_pair(&p);
}

/* Records of micro-batches, one of them without rows, into the buffers. */
static void check_commit(const char *spec)
{
    enum { C = 5, RECORDS = 4, NUMBERS = 1 + 2 * C };
    pair p;
    double record[RECORDS][NUMBERS] = {{0}};
    const char *each[RECORDS];
    open_pair(&p, spec, (gpp__desc){.dtype = GPP_F32, .rank = 1, .dim = {C}}, 4, true);
    p.params = cuda_copy_of(p.cpu->params, p.cpu->layer.param_bytes);
    for (int i = 0; i < RECORDS; i++) {
        each[i] = (const char *)record[i];
        record[i][0] = i == 1 ? 0 : 3 + i; /* the second has no rows */
        for (int k = 1; k < NUMBERS && i != 1; k++)
            record[i][k] = 0.5 + 0.37 * k + 0.11 * i * k;
    }
    void *records = cuda_copy_of(record, sizeof record);
    char *got = malloc(p.cpu->layer.param_bytes);
    test_rig_commit(p.cpu, RECORDS, each);
    cr_assert_eq(gpp__cuda_batchnorm.commit(&p.cpu->layer, &p.run, RECORDS, records,
                                            sizeof record[0], p.params),
                 GPP_OK);
    cuda_wait();
    cuda_get(got, p.params, p.cpu->layer.param_bytes);
    for (int k = 0; k < p.cpu->layer.param_count; k++) {
        const gpp__param *param = &p.cpu->layer.param[k];
        size_t bytes = (size_t)param->count * (param->dtype == GPP_I64 ? 8 : 4);
        /* The same double operations in the same order. */
        cr_expect_eq(memcmp(got + param->offset, p.cpu->params + param->offset, bytes), 0,
                     "%s: %s differs", spec, param->name);
    }
    free(got);
    cuda_free(records);
    close_pair(&p);
}

Test(cuda_norms, commits_of_several_records_give_the_cpus_bits)
{
    check_commit("batchnorm");
    check_commit("batchnorm momentum=none");
    check_commit("batchnorm deferred=1");
    check_commit("batchnorm deferred=1 momentum=none");
}

/* --- the norm of gradients -------------------------------------------------------------------- */

Test(cuda_norms, squares_are_added_in_double_by_the_count_alone)
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

struct factor_case {
    char why[64];
    int64_t count;
    double sum, clip_norm; /* each of the sums */
    bool skip_nonfinite;
    float factor;
};

ParameterizedTestParameters(cuda_norms, gradients_are_clipped_by_their_norm)
{
    static struct factor_case cases[] = {
        {"shorter than allowed", 4, 1, 3, false, 1},
        {"longer: down to it, nearly", 4, 4, 1, false, (float)(1 / (4 + 1e-6))},
        {"many sums", 600, 1.5, 10, false, (float)(10 / (30 + 1e-6))},
        {"no limit", 4, 1e300, 0, false, 1},
        {"nothing to clip", 4, 0, 1, false, 1},
        {"no parameters", 0, 0, 1, true, 1},
        {"infinite", 4, INFINITY, 1, false, 0},
        {"not a number compares with nothing", 4, NAN, 1, false, 1},
        {"infinite, to be skipped", 4, INFINITY, 1, true, NAN},
        {"not a number, to be skipped", 4, NAN, 0, true, NAN},
        {"finite, to be skipped were it not", 4, 4, 1, true, (float)(1 / (4 + 1e-6))},
    };
    return cr_make_param_array(struct factor_case, cases, COUNT(cases));
}
ParameterizedTest(struct factor_case *c, cuda_norms, gradients_are_clipped_by_their_norm)
{
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    gpp_error err = GPP_ERROR_INIT;
    double sums[600];
    float got;
    for (int64_t k = 0; k < c->count; k++)
        sums[k] = c->sum;
    void *on_device = cuda_copy_of(sums, (size_t)c->count * sizeof *sums);
    void *factor = cuda_room(sizeof got);
    cr_assert_eq(gpp__cuda_clip_factor(cuda, on_device, c->count, c->clip_norm, c->skip_nonfinite,
                                       factor, &err),
                 GPP_OK, "%s", err.msg);
    cuda_wait();
    cuda_get(&got, factor, sizeof got);
    cr_expect(got == c->factor || (isnan(got) && isnan(c->factor)), "%s: %.9g, want %.9g", c->why,
              (double)got, (double)c->factor);
    cuda_free(on_device), cuda_free(factor);
}
