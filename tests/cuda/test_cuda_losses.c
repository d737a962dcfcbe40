/*
 * tests/cuda/test_cuda_losses.c: losses of micro-batches on CUDA against the CPU: their values,
 * unreduced losses and gradients, and what is said of targets that are no class.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "codelets/losses/internal.h"
#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* By name: built without CUDA, a loss does not have them. */
static const struct {
    char name[20];
    gpp_status (*run)(const gpp__loss_call *call);
    size_t (*scratch)(const void *attr, const gpp__desc *y, int64_t rows);
} functions[] = {
    {"bce_with_logits", gpp__bce_with_logits_run_cuda, gpp__pointwise_scratch_cuda},
    {"cross_entropy", gpp__cross_entropy_run_cuda, gpp__class_scratch_cuda},
    {"l1", gpp__l1_run_cuda, gpp__pointwise_scratch_cuda},
    {"mse", gpp__mse_run_cuda, gpp__pointwise_scratch_cuda},
    {"nll", gpp__nll_run_cuda, gpp__class_scratch_cuda},
    {"smooth_l1", gpp__smooth_l1_run_cuda, gpp__pointwise_scratch_cuda},
};

enum { NO_WEIGHTS, WEIGHTS };

struct loss_case {
    char why[64], spec[80];
    gpp__desc y;
    int64_t rows;
    int weights;
    double ignored;   /* part of the targets */
    double tolerance; /* of values, losses and gradients, of the largest; 0: the same numbers */
};

/* A loss with the tensors of one call, the host's and the device's. */
typedef struct loss_rig {
    const gpp_loss *loss;
    int which; /* of the functions */
    void *attr;
    gpp__loss_call call;
    gpp__desc y, target, each;
    gpp_error err;
    size_t y_bytes, target_bytes, each_bytes, scratch_bytes;
    float *grad, *losses; /* the host's results */
    double value;
    void *device[6]; /* y, target, weight, grad, losses, value */
    void *scratch;
} loss_rig;

/* --- making ----------------------------------------------------------------------------------- */

static void find_loss(loss_rig *r, const char *spec)
{
    char name[64], pool[256];
    gpp_attr given[8];
    size_t count;
    gpp_status status =
        gpp__attr_parse_spec(spec, name, given, &count, 8, pool, sizeof pool, &r->err);
    for (const gpp_loss *const *loss = gpp__losses; *loss && !status; loss++)
        if (strcmp((*loss)->name, name) == 0)
            r->loss = *loss;
    while (r->which < (int)COUNT(functions) - 1 && strcmp(functions[r->which].name, name) != 0)
        r->which++;
    cr_assert(r->loss && strcmp(functions[r->which].name, name) == 0, "%s", spec);
    r->attr = calloc(1, r->loss->attr_size);
    status = gpp__attr_set(name, r->loss->keys, r->attr, given, count, &r->err);
    cr_assert(!status && !r->loss->target(r->attr, &r->y, &r->target, &r->err), "%s: %s", spec,
              r->err.msg);
    r->loss->each(r->attr, &r->y, &r->each);
}

/* Classes, a part of them ignored; or numbers in [0, 1), as all other losses take them. */
static void *targets_of(const loss_rig *r, const struct loss_case *c)
{
    int64_t count = c->rows * gpp__desc_count(&r->target);
    void *target = test_room(r->target_bytes ? r->target_bytes : 1);
    float *uniform = malloc((size_t)(2 * count + 1) * sizeof *uniform);
    test_fill(uniform, 2 * count, 9, 0, 1);
    for (int64_t k = 0; k < count; k++)
        if (r->target.dtype != GPP_I64)
            ((float *)target)[k] = uniform[k];
        else if (uniform[count + k] < c->ignored)
            ((int64_t *)target)[k] = ((const gpp__class_attr *)r->attr)->ignore_index;
        else
            ((int64_t *)target)[k] =
                (int64_t)(uniform[k] * (float)r->loss->classes(r->attr, &r->y));
    free(uniform);
    return target;
}

static float *weights_of(const loss_rig *r)
{
    int64_t classes = r->loss->classes(r->attr, &r->y);
    float *weight = malloc((size_t)classes * sizeof *weight);
    test_fill(weight, classes, 10, 0.25, 2);
    return weight;
}

static void open_loss(loss_rig *r, const struct loss_case *c)
{
    *r = (loss_rig){.y = c->y, .err = GPP_ERROR_INIT};
    find_loss(r, c->spec);
    r->y_bytes = (size_t)c->rows * gpp__desc_bytes(&r->y);
    r->target_bytes = (size_t)c->rows * gpp__desc_bytes(&r->target);
    r->each_bytes = (size_t)c->rows * gpp__desc_bytes(&r->each);
    r->scratch_bytes = functions[r->which].scratch(r->attr, &r->y, c->rows);
    r->grad = test_room(r->y_bytes ? r->y_bytes : 1);
    r->losses = test_room(r->each_bytes ? r->each_bytes : 1);
    float *y = test_room(r->y_bytes ? r->y_bytes : 1);
    test_fill(y, c->rows * gpp__desc_count(&r->y), 8, -4, 4);
    r->call = (gpp__loss_call){.attr = r->attr, .y_desc = &r->y, .target_desc = &r->target};
    r->call.row0 = 3;
    r->call.rows = c->rows;
    r->call.weight = c->weights == WEIGHTS ? weights_of(r) : NULL;
    r->call.y = y;
    r->call.target = targets_of(r, c);
    r->call.err = &r->err;
    /* As of a mini-batch with another micro-batch like this one. */
    r->call.divisor = 2 * r->loss->divisor(r->attr, &r->y, c->rows, r->call.target, r->call.weight);
}

static void furnish(loss_rig *r)
{
    size_t weights = r->call.weight ? (size_t)r->loss->classes(r->attr, &r->y) * sizeof(float) : 0;
    r->device[0] = cuda_copy_of(r->call.y, r->y_bytes);
    r->device[1] = cuda_copy_of(r->call.target, r->target_bytes);
    r->device[2] = weights ? cuda_copy_of(r->call.weight, weights) : NULL;
    r->device[3] = cuda_room(r->y_bytes);
    r->device[4] = cuda_room(r->each_bytes);
    r->device[5] = cuda_room(sizeof(double));
    r->scratch = cuda_room(r->scratch_bytes);
}

static void close_loss(loss_rig *r)
{
    for (size_t k = 0; k < COUNT(r->device); k++)
        cuda_free(r->device[k]);
    cuda_free(r->scratch);
    free((void *)r->call.y), free((void *)r->call.target), free((void *)r->call.weight);
    free(r->grad), free(r->losses), free(r->attr);
}

/* --- running ---------------------------------------------------------------------------------- */

static void run_cpu(loss_rig *r)
{
    gpp__loss_call call = r->call;
    call.grad_y = r->grad;
    call.each = r->losses;
    call.value = &r->value;
    cr_assert_eq(r->loss->run(&call), GPP_OK, "%s", r->err.msg);
}

/* Into the device's memory, which is NaN before; what is not wanted must stay so. */
static void run_cuda(loss_rig *r, bool grad, bool each)
{
    static const double none = NAN;
    gpp__loss_call call = r->call;
    char *ones = malloc(r->y_bytes + r->each_bytes + r->scratch_bytes + 1);
    memset(ones, 0xff, r->y_bytes + r->each_bytes + r->scratch_bytes);
    cuda_put(r->device[3], ones, r->y_bytes);
    cuda_put(r->device[4], ones, r->each_bytes);
    cuda_put(r->device[5], &none, sizeof none);
    cuda_put(r->scratch, ones, r->scratch_bytes);
    free(ones);
    call.y = r->device[0];
    call.target = r->device[1];
    call.weight = r->device[2];
    call.grad_y = grad ? r->device[3] : NULL;
    call.each = each ? r->device[4] : NULL;
    call.value = r->device[5];
    call.scratch = r->scratch;
    call.cuda = cuda_device(GPP__MATH_F32);
    cr_assert_eq(functions[r->which].run(&call), GPP_OK, "%s", r->err.msg);
    cuda_wait();
}

static double value_of(const loss_rig *r)
{
    double value;
    cuda_get(&value, r->device[5], sizeof value);
    return value;
}

static float *fetched(const void *room, size_t bytes)
{
    float *x = malloc(bytes + 1);
    if (bytes)
        cuda_get(x, room, bytes);
    return x;
}

static void expect_near(const struct loss_case *c, const char *what, const void *room,
                        const float *want, size_t bytes)
{
    float *got = fetched(room, bytes);
    double off = test_distance(got, want, (int64_t)(bytes / sizeof *got));
    cr_expect_leq(off, c->tolerance, "%s (%s): %s is off by %.3g", c->why, c->spec, what, off);
    free(got);
}

/* Once more, in another order of threads, and without what is not wanted: the same bits. */
static void run_again(loss_rig *r, const struct loss_case *c)
{
    double value = value_of(r), again;
    float *grad = fetched(r->device[3], r->y_bytes), *each = fetched(r->device[4], r->each_bytes);
    for (int way = 0; way < 3; way++) {
        cuda_order(way == 0);
        run_cuda(r, way != 1, way != 2);
        float *g = fetched(r->device[3], r->y_bytes), *l = fetched(r->device[4], r->each_bytes);
        again = value_of(r);
        cr_expect_eq(memcmp(&value, &again, sizeof value), 0, "%s: value, way %d", c->why, way);
        cr_expect(way == 1 || memcmp(g, grad, r->y_bytes) == 0, "%s: gradient, way %d", c->why,
                  way);
        cr_expect(way == 2 || memcmp(l, each, r->each_bytes) == 0, "%s: losses, way %d", c->why,
                  way);
        cr_expect(way != 1 || r->y_bytes == 0 || isnan(g[0]), "%s: not wanted", c->why);
        cr_expect(way != 2 || r->each_bytes == 0 || isnan(l[0]), "%s: not wanted", c->why);
        free(g), free(l);
    }
    cuda_order(false);
    free(grad), free(each);
}

/* --- against the CPU -------------------------------------------------------------------------- */

/* Exponentials of float32 differ in their last bits; what is added is double. */
#define NEAR 1e-6

ParameterizedTestParameters(cuda_losses, are_the_cpus)
{
    static struct loss_case cases[] = {
        {"classes of rows", "cross_entropy", VECTOR(10), 33, NO_WEIGHTS, 0, NEAR},
        {"two classes", "cross_entropy", VECTOR(2), 7, NO_WEIGHTS, 0, NEAR},
        {"one class is certain", "cross_entropy", VECTOR(1), 7, NO_WEIGHTS, 0, NEAR},
        {"more classes than a block has threads", "cross_entropy", VECTOR(1000), 5, NO_WEIGHTS, 0,
         NEAR},
        {"a sum", "cross_entropy reduction=sum", VECTOR(10), 7, NO_WEIGHTS, 0, NEAR},
        {"no reduction", "cross_entropy reduction=none", VECTOR(10), 7, NO_WEIGHTS, 0, NEAR},
        {"weights of classes", "cross_entropy", VECTOR(10), 33, WEIGHTS, 0, NEAR},
        {"some ignored", "cross_entropy", VECTOR(10), 33, NO_WEIGHTS, 0.4, NEAR},
        {"a class ignored", "cross_entropy ignore_index=3", VECTOR(6), 40, WEIGHTS, 0.3, NEAR},
        {"smoothed", "cross_entropy label_smoothing=0.2", VECTOR(10), 33, NO_WEIGHTS, 0, NEAR},
        {"smoothed, weights, ignored", "cross_entropy label_smoothing=0.2", VECTOR(300), 9, WEIGHTS,
         0.4, NEAR},
        {"nothing but smoothing", "cross_entropy label_smoothing=1", VECTOR(5), 9, WEIGHTS, 0.2,
         NEAR},
        {"positions of a sequence", "cross_entropy", MATRIX(6, 20), 7, WEIGHTS, 0.2, NEAR},
        {"classes first", "cross_entropy classes=first", MATRIX(6, 20), 7, WEIGHTS, 0.2, NEAR},
        {"pixels", "cross_entropy", IMAGE(5, 9, 8), 7, NO_WEIGHTS, 0.2, NEAR},
        {"pixels, weights, smoothed", "cross_entropy label_smoothing=0.1", IMAGE(5, 9, 8), 9,
         WEIGHTS, 0.2, NEAR},
        {"pixels, classes last", "cross_entropy classes=last", IMAGE(5, 9, 8), 3, WEIGHTS, 0.2,
         NEAR},
        {"no rows", "cross_entropy reduction=sum", VECTOR(10), 0, NO_WEIGHTS, 0, NEAR},
        {"all ignored, a sum", "cross_entropy reduction=sum", VECTOR(10), 7, NO_WEIGHTS, 1, NEAR},
        {"a mean of nothing is no number", "cross_entropy", VECTOR(10), 7, NO_WEIGHTS, 1, NEAR},

        /* No exponential: the sum's order is all that differs, in double. */
        {"likelihoods", "nll", VECTOR(10), 33, NO_WEIGHTS, 0, 1e-14},
        {"likelihoods of many positions", "nll", MATRIX(50, 12), 33, WEIGHTS, 0.3, 1e-14},
        {"likelihoods of pixels", "nll", IMAGE(5, 9, 8), 7, WEIGHTS, 0.2, 1e-14},
        {"likelihoods, no reduction", "nll reduction=none", VECTOR(10), 300, WEIGHTS, 0.1, 1e-14},
        {"no likelihoods", "nll reduction=sum", VECTOR(10), 0, NO_WEIGHTS, 0, 1e-14},

        {"squares", "mse", VECTOR(10), 33, NO_WEIGHTS, 0, 1e-14},
        {"many squares", "mse reduction=sum", IMAGE(3, 40, 41), 3, NO_WEIGHTS, 0, 1e-14},
        {"one number", "mse", VECTOR(1), 1, NO_WEIGHTS, 0, 1e-14},
        {"no squares", "mse reduction=sum", VECTOR(10), 0, NO_WEIGHTS, 0, 1e-14},
        {"sizes", "l1", VECTOR(10), 33, NO_WEIGHTS, 0, 1e-14},
        {"sizes, no reduction", "l1 reduction=none", MATRIX(7, 3), 33, NO_WEIGHTS, 0, 1e-14},
        {"smooth sizes", "smooth_l1", VECTOR(10), 33, NO_WEIGHTS, 0, 1e-14},
        {"smooth sizes, near", "smooth_l1 beta=0.25", VECTOR(10), 33, NO_WEIGHTS, 0, 1e-14},
        {"smooth sizes that are not", "smooth_l1 beta=0", VECTOR(10), 33, NO_WEIGHTS, 0, 1e-14},
        {"logits", "bce_with_logits", VECTOR(10), 33, NO_WEIGHTS, 0, NEAR},
        {"many logits", "bce_with_logits reduction=sum", IMAGE(3, 40, 41), 3, NO_WEIGHTS, 0, NEAR},
    };
    return cr_make_param_array(struct loss_case, cases, COUNT(cases));
}
ParameterizedTest(struct loss_case *c, cuda_losses, are_the_cpus)
{
    loss_rig r;
    cuda_device(GPP__MATH_F32);
    open_loss(&r, c);
    furnish(&r);
    run_cpu(&r);
    run_cuda(&r, true, true);
    double got = value_of(&r), off = fabs(got - r.value);
    cr_expect((isnan(got) && isnan(r.value)) || off <= c->tolerance * fmax(1, fabs(r.value)),
              "%s (%s): value %.17g, want %.17g", c->why, c->spec, got, r.value);
    expect_near(c, "the gradient", r.device[3], r.grad, r.y_bytes);
    expect_near(c, "a loss", r.device[4], r.losses, r.each_bytes);
    run_again(&r, c);
    close_loss(&r);
}

/* --- odd numbers ------------------------------------------------------------------------------ */

/* Near, or both no number; below the smallest normal number the CPU's exponential is 0. */
static void check_odd(const char *spec)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 100, -100, 3e38f, -3e38f, 1};
    struct loss_case c = {.why = "odd", .rows = 10, .y = VECTOR(10)};
    loss_rig r;
    strcpy(c.spec, spec);
    open_loss(&r, &c);
    for (int k = 0; k < 100; k++) {
        ((float *)r.call.y)[k] = odd[k / 10];
        ((float *)r.call.target)[k] = odd[k % 10];
    }
    furnish(&r);
    run_cpu(&r);
    run_cuda(&r, true, true);
    float *grad = fetched(r.device[3], r.y_bytes), *each = fetched(r.device[4], r.each_bytes);
    for (int k = 0; k < 100; k++) {
        const float *pairs[2][2] = {{&grad[k], &r.grad[k]}, {&each[k], &r.losses[k]}};
        for (int which = 0; which < 2; which++) {
            float got = *pairs[which][0], want = *pairs[which][1];
            bool near = fabsf(got - want) <= (float)NEAR * fabsf(want) + FLT_MIN;
            cr_expect(got == want || (isnan(got) && isnan(want)) || near,
                      "%s of %g and %g: %s %.9g, want %.9g", spec, (double)odd[k / 10],
                      (double)odd[k % 10], which ? "loss" : "gradient", (double)got, (double)want);
        }
    }
    free(grad), free(each);
    close_loss(&r);
}

Test(cuda_losses, of_odd_numbers_are_the_cpus)
{
    cuda_device(GPP__MATH_F32);
    check_odd("mse");
    check_odd("l1");
    check_odd("smooth_l1 beta=0.5");
    check_odd("bce_with_logits");
}

Test(cuda_losses, of_scores_with_infinities_and_nans_are_the_cpus)
{
    static const float odd[7][4] = {
        {1, INFINITY, 0, 2}, {-INFINITY, 1, 2, 3},  {NAN, 1, 2, 3},        {1, 2, NAN, 3},
        {-200, 200, 0, 1},   {3e38f, -3e38f, 0, 1}, {-INFINITY, 0, -90, 0}};
    struct loss_case c = {.why = "odd", .spec = "cross_entropy", .rows = 7, .y = VECTOR(4)};
    loss_rig r;
    cuda_device(GPP__MATH_F32);
    open_loss(&r, &c);
    memcpy((void *)r.call.y, odd, sizeof odd);
    furnish(&r);
    run_cpu(&r);
    run_cuda(&r, true, true);
    float *grad = fetched(r.device[3], r.y_bytes), *each = fetched(r.device[4], r.each_bytes);
    for (int k = 0; k < 28; k++) {
        float got = grad[k], want = r.grad[k];
        cr_expect((isnan(got) && isnan(want)) || fabsf(got - want) <= (float)NEAR,
                  "gradient of row %d: %.9g, want %.9g", k / 4, (double)got, (double)want);
    }
    for (int k = 0; k < 7; k++)
        cr_expect(each[k] == r.losses[k] || (isnan(each[k]) && isnan(r.losses[k])) ||
                      fabsf(each[k] - r.losses[k]) <= (float)NEAR * fabsf(r.losses[k]),
                  "loss of row %d: %.9g, want %.9g", k, (double)each[k], (double)r.losses[k]);
    free(grad), free(each);
    close_loss(&r);
}

/* --- targets that are no class ---------------------------------------------------------------- */

struct target_case {
    char why[64], spec[40];
    gpp__desc y;
    int64_t at, target;
};

ParameterizedTestParameters(cuda_losses, the_check_says_of_a_target_what_the_cpu_says)
{
    static struct target_case cases[] = {
        {"too large", "cross_entropy", VECTOR(5), 4, 5},
        {"negative", "cross_entropy", VECTOR(5), 0, -1},
        {"of a position", "cross_entropy", MATRIX(3, 5), 7, 99},
        {"of a pixel", "nll", IMAGE(5, 3, 2), 13, 1000000000000},
        {"of a row", "nll", VECTOR(5), 6, INT64_MIN},
        {"ignored is fine", "cross_entropy", VECTOR(5), 6, -100},
        {"a class is fine", "nll", VECTOR(5), 6, 4},
    };
    return cr_make_param_array(struct target_case, cases, COUNT(cases));
}
ParameterizedTest(struct target_case *t, cuda_losses, the_check_says_of_a_target_what_the_cpu_says)
{
    struct loss_case c = {.rows = 7, .y = t->y};
    loss_rig r;
    strcpy(c.spec, t->spec);
    open_loss(&r, &c);
    ((int64_t *)r.call.target)[t->at] = t->target;
    gpp__loss_call call = r.call;
    gpp_error want = GPP_ERROR_INIT, got = GPP_ERROR_INIT;
    call.grad_y = r.grad;
    call.value = &r.value;
    call.err = &want;
    gpp_status status = r.loss->run(&call);
    cr_assert_not_null(r.loss->check);
    cr_expect_eq(r.loss->check(r.attr, &r.y, &r.target, call.row0, call.rows, call.target, &got),
                 status, "%s", t->why);
    cr_expect_str_eq(got.msg, want.msg, "%s", t->why);
    cr_expect_eq(got.code, want.code);
    close_loss(&r);
}

/* Row 2 has such a target: all else is as if it were ignored. */
static void check_out_of_range(const char *spec, gpp__desc y)
{
    struct loss_case c = {.why = "out of range", .rows = 7, .y = y, .tolerance = NEAR};
    loss_rig r;
    strcpy(c.spec, spec);
    open_loss(&r, &c);
    int64_t at = 2 * gpp__desc_count(&r.target);
    for (int64_t target = -1; target <= 1000; target += 1001) {
        int64_t *targets = (int64_t *)r.call.target;
        targets[at] = target;
        furnish(&r);
        run_cuda(&r, true, true);
        targets[at] = -100;
        run_cpu(&r);
        cr_expect_leq(fabs(value_of(&r) - r.value), NEAR * fabs(r.value), "%s", spec);
        expect_near(&c, "the gradient", r.device[3], r.grad, r.y_bytes);
        expect_near(&c, "a loss", r.device[4], r.losses, r.each_bytes);
        for (size_t k = 0; k < COUNT(r.device); k++)
            cuda_free(r.device[k]);
        cuda_free(r.scratch);
    }
    memset(r.device, 0, sizeof r.device);
    r.scratch = NULL;
    close_loss(&r);
}

Test(cuda_losses, a_target_that_is_no_class_counts_as_nothing)
{
    cuda_device(GPP__MATH_F32);
    check_out_of_range("cross_entropy", (gpp__desc)VECTOR(5));
    check_out_of_range("cross_entropy label_smoothing=0.1", (gpp__desc)MATRIX(3, 5));
    check_out_of_range("cross_entropy", (gpp__desc)IMAGE(5, 3, 3));
    check_out_of_range("nll", (gpp__desc)VECTOR(5));
    check_out_of_range("nll", (gpp__desc)IMAGE(5, 3, 3));
}
