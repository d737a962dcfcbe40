/*
 * tests/cuda/test_cuda_optimizers.c: updates on CUDA give the CPU's bits.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "codelets/optimizer.h"
#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* An optimizer with parameters, gradients and state on both sides. */
typedef struct update_rig {
    const gpp_optimizer *optimizer;
    void *attr;
    int64_t count;
    int states;
    double scalar[GPP__MAX_SCALARS];
    float *p, *grad, *scaled, *state[GPP__MAX_STATES];
    void *cuda_p, *cuda_grad, *cuda_factor, *cuda_state[GPP__MAX_STATES];
    gpp_error err;
} update_rig;

static void find_optimizer(update_rig *r, const char *spec)
{
    char name[64], pool[256];
    gpp_attr given[8];
    size_t keys;
    gpp_status status =
        gpp__attr_parse_spec(spec, name, given, &keys, 8, pool, sizeof pool, &r->err);
    for (const gpp_optimizer *const *o = gpp__optimizers; *o && !status; o++)
        if (strcmp((*o)->name, name) == 0)
            r->optimizer = *o;
    cr_assert(r->optimizer && r->optimizer->update_cuda, "%s", spec);
    r->attr = calloc(1, r->optimizer->attr_size);
    cr_assert(!gpp__attr_set(name, r->optimizer->keys, r->attr, given, keys, &r->err), "%s: %s",
              spec, r->err.msg);
}

static void open_rig(update_rig *r, const char *spec, int64_t count)
{
    size_t bytes = (size_t)count * sizeof(float);
    *r = (update_rig){.count = count, .err = GPP_ERROR_INIT};
    find_optimizer(r, spec);
    r->states = r->optimizer->states(r->attr);
    for (size_t k = 0; k < COUNT(r->scalar); k++)
        r->scalar[k] = 1;
    r->p = test_room(bytes);
    r->grad = test_room(bytes);
    r->scaled = test_room(bytes);
    test_fill(r->p, count, 3, -1, 1);
    r->cuda_p = cuda_copy_of(r->p, bytes);
    r->cuda_grad = cuda_room(bytes);
    r->cuda_factor = cuda_room(sizeof(float));
    for (int k = 0; k < r->states; k++) {
        r->state[k] = memset(test_room(bytes), 0, bytes);
        r->cuda_state[k] = cuda_copy_of(r->state[k], bytes);
    }
}

static void close_rig(update_rig *r)
{
    cuda_free(r->cuda_p), cuda_free(r->cuda_grad), cuda_free(r->cuda_factor);
    for (int k = 0; k < r->states; k++) {
        cuda_free(r->cuda_state[k]);
        free(r->state[k]);
    }
    free(r->p), free(r->grad), free(r->scaled), free(r->attr);
}

/* Gradients of all sizes; one of them 0. @param factor  NULL: none is given */
static void update_cuda(update_rig *r, int64_t t, const float *factor)
{
    test_fill(r->grad, r->count, 20 + (uint64_t)t, -1, 1);
    for (int64_t k = 0; k < r->count; k++)
        r->grad[k] *= k % 7 ? 1 : 1e-6f;
    r->grad[0] = 0;
    cuda_put(r->cuda_grad, r->grad, (size_t)r->count * sizeof(float));
    if (factor)
        cuda_put(r->cuda_factor, factor, sizeof *factor);
    if (r->optimizer->advance)
        r->optimizer->advance(r->attr, t, r->scalar);
    cr_assert_eq(r->optimizer->update_cuda(cuda_device(GPP__MATH_F32), r->attr, t, r->scalar,
                                           r->count, r->cuda_p, r->cuda_grad,
                                           factor ? r->cuda_factor : NULL,
                                           (float *const *)r->cuda_state, &r->err),
                 GPP_OK, "%s", r->err.msg);
    cuda_wait();
}

static void update_cpu(update_rig *r, int64_t t, float factor)
{
    for (int64_t k = 0; k < r->count; k++)
        r->scaled[k] = r->grad[k] * factor;
    cr_assert_eq(r->optimizer->update(r->attr, t, r->scalar, r->count, r->p, r->scaled, r->state),
                 GPP_OK);
}

static void expect_same(const update_rig *r, const char *spec, int64_t t)
{
    float *got = malloc((size_t)r->count * sizeof *got);
    cuda_get(got, r->cuda_p, (size_t)r->count * sizeof *got);
    cr_expect(test_same(got, r->p, r->count), "%s: parameters of update %d are off by %g", spec,
              (int)t, test_distance(got, r->p, r->count));
    for (int k = 0; k < r->states; k++) {
        cuda_get(got, r->cuda_state[k], (size_t)r->count * sizeof *got);
        cr_expect(test_same(got, r->state[k], r->count), "%s: \"%s\" of update %d is off by %g",
                  spec, r->optimizer->state_names[k], (int)t,
                  test_distance(got, r->state[k], r->count));
    }
    free(got);
}

struct update_case {
    char why[64], spec[96];
};

ParameterizedTestParameters(cuda_optimizers, updates_are_the_cpus_bits)
{
    static struct update_case cases[] = {
        {"plain", "sgd lr=0.1"},
        {"decay", "sgd lr=0.1 weight_decay=0.01"},
        {"momentum", "sgd lr=0.1 momentum=0.9 weight_decay=0.01"},
        {"dampened", "sgd lr=0.1 momentum=0.9 dampening=0.3"},
        {"nesterov", "sgd lr=0.1 momentum=0.9 nesterov=1"},
        {"upwards", "sgd lr=0.1 momentum=0.9 maximize=1"},
        {"plain", "adam"},
        {"all keys", "adam lr=0.01 betas=0.8,0.95 eps=1e-6 weight_decay=0.1 maximize=1"},
        {"the largest so far", "adam lr=0.01 amsgrad=1"},
        {"plain", "adamw lr=0.01"},
        {"the largest so far", "adamw lr=0.01 amsgrad=1 weight_decay=0.2"},
        {"plain", "rmsprop"},
        {"momentum", "rmsprop momentum=0.9 weight_decay=0.01"},
        {"centered", "rmsprop centered=1"},
        {"centered, momentum, upwards", "rmsprop centered=1 momentum=0.9 maximize=1"},
        {"plain", "adagrad"},
        {"all keys",
         "adagrad lr=0.1 lr_decay=0.1 weight_decay=0.01 initial_accumulator_value=0.5 maximize=1"},
        {"plain", "adadelta"},
        {"all keys", "adadelta lr=0.5 rho=0.8 eps=1e-4 weight_decay=0.01 maximize=1"},
        {"plain", "adamax"},
        {"all keys", "adamax lr=0.01 betas=0.8,0.9 weight_decay=0.01 maximize=1"},
        {"plain", "nadam"},
        {"all keys", "nadam lr=0.01 betas=0.8,0.9 weight_decay=0.01 momentum_decay=0.1"},
    };
    return cr_make_param_array(struct update_case, cases, COUNT(cases));
}
ParameterizedTest(struct update_case *c, cuda_optimizers, updates_are_the_cpus_bits)
{
    static const float factors[] = {1, 0.37f, 0};
    static const int64_t counts[] = {1, 255, 3001};
    cuda_device(GPP__MATH_F32);
    for (size_t n = 0; n < COUNT(counts); n++) {
        update_rig r;
        open_rig(&r, c->spec, counts[n]);
        update_cuda(&r, 1, NULL);
        update_cpu(&r, 1, 1);
        expect_same(&r, c->spec, 1);
        for (size_t k = 0; k < COUNT(factors); k++) {
            int64_t t = 2 + (int64_t)k;
            update_cuda(&r, t, &factors[k]);
            update_cpu(&r, t, factors[k]);
            expect_same(&r, c->spec, t);
        }
        close_rig(&r);
    }
}

Test(cuda_optimizers, a_factor_that_is_no_number_changes_nothing)
{
    static const char *const specs[] = {"sgd lr=0.1 momentum=0.9",
                                        "adam amsgrad=1",
                                        "adamw",
                                        "rmsprop centered=1",
                                        "adagrad",
                                        "adadelta",
                                        "adamax",
                                        "nadam",
                                        "sgd lr=1"};
    const float none = NAN;
    cuda_device(GPP__MATH_F32);
    for (size_t k = 0; k < COUNT(specs); k++) {
        update_rig r;
        open_rig(&r, specs[k], 700);
        update_cuda(&r, 1, &none);
        expect_same(&r, specs[k], 1);
        close_rig(&r);
    }
}

/* Equal gradients: their mean square and the square of their mean are the same but for rounding,
 * and a root of what that leaves would be no number. */
Test(cuda_optimizers, a_variance_that_rounding_makes_negative_is_nothing)
{
    const char *spec = "rmsprop centered=1 alpha=0.6";
    update_rig r;
    cuda_device(GPP__MATH_F32);
    open_rig(&r, spec, 500);
    test_fill(r.grad, r.count, 31, -1, 1);
    cuda_put(r.cuda_grad, r.grad, (size_t)r.count * sizeof(float));
    for (int64_t t = 1; t <= 60; t++) {
        cr_assert_eq(r.optimizer->update_cuda(cuda_device(GPP__MATH_F32), r.attr, t, r.scalar,
                                              r.count, r.cuda_p, r.cuda_grad, NULL,
                                              (float *const *)r.cuda_state, &r.err),
                     GPP_OK, "%s", r.err.msg);
        cuda_wait();
        update_cpu(&r, t, 1);
    }
    expect_same(&r, spec, 60);
    close_rig(&r);
}
