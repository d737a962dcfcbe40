/*
 * tests/slopes.c: what tests of operators share: rigs that must work, reference vectors, and
 * gradients against central differences.
 */
#include "tests/slopes.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vectors.h"

float *test_floats(int64_t count)
{
    return test_room((size_t)count * sizeof(float));
}

test_rig *test_rig_on(const char *spec, const gpp__desc *in, int64_t rows, int threads)
{
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    gpp_status status = test_rig_new(&rig, spec, 0, in, rows, threads, &err);
    cr_assert_eq(status, GPP_OK, "%s: %s", spec, err.msg);
    rig->run.err = NULL;
    return rig;
}

test_rig *test_rig_of(const char *spec, int rank, const int64_t dim[], int64_t rows, int threads)
{
    gpp__desc in = {.dtype = GPP_F32, .rank = rank};
    memcpy(in.dim, dim, (size_t)rank * sizeof *dim);
    return test_rig_on(spec, &in, rows, threads);
}

/* --- reference vectors ------------------------------------------------------------------------ */

/* Reference values are float64 results rounded to float32. */
#define VECTOR_TOLERANCE 1e-5

static void expect_close(const char *file, const char *array, double off)
{
    cr_expect(off <= VECTOR_TOLERANCE, "%s: %s is off by %.3g", file, array, off);
}

void test_expect_vectors(const char *what, const test_known known[], size_t count)
{
    int files = 0;
    for (size_t k = 0; k < count; k++)
        files += known[k].files;
    for (size_t k = 0; k < count; k++) {
        int run = test_vectors_run(known[k].op, 2, expect_close);
        if (run < 0) {
            fprintf(stderr, "%s vectors: no folder, %d not run\n", what, files);
            cr_skip_test("no folder of reference vectors");
        }
        cr_expect_eq(run, known[k].files, "%s: %d files were run", known[k].op, run);
    }
}

/* --- central differences ---------------------------------------------------------------------- */

void test_expect_slope(const test_slopes *s, float *at, int64_t count, const float *grad,
                       const char *name)
{
    float *middle = test_floats(count), *u = test_floats(count);
    double scale = sqrt(test_dot(grad, grad, count)) + s->least;
    memcpy(middle, at, (size_t)count * sizeof *at);
    for (uint64_t direction = 0; direction < 6; direction++) {
        double f[2];
        test_fill_signs(u, count, 500 + direction);
        for (int side = 0; side < 2; side++) {
            for (int64_t k = 0; k < count; k++)
                at[k] = middle[k] + (side ? s->step : -s->step) * u[k];
            f[side] = s->value(s->argument);
        }
        double slope = (f[1] - f[0]) / (2 * (double)s->step), want = test_dot(grad, u, count);
        cr_expect(fabs(slope - want) <= s->tolerance * scale,
                  "%s (%s), %s: slope %.7g, gradient says %.7g, scale %.3g", s->spec, s->why, name,
                  slope, want, scale);
    }
    memcpy(at, middle, (size_t)count * sizeof *at);
    free(middle);
    free(u);
}

void test_expect_param_slopes(const test_slopes *s, test_rig *rig)
{
    for (int k = 0; k < rig->layer.param_count; k++) {
        const gpp__param *param = &rig->layer.param[k];
        if (param->buffer)
            continue;
        float *grad = test_floats(param->count);
        test_rig_grad(rig, k, grad);
        test_expect_slope(s, test_rig_param(rig, k), param->count, grad, param->name);
        free(grad);
    }
}
