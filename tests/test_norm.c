/*
 * tests/test_norm.c: batchnorm, layernorm, groupnorm and instancenorm against the formulas in
 * float64, for the rows of operators.c; and what becomes of batchnorm's statistics. What holds for
 * every operator: test_operators.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/operators.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* --- the formulas in float64 ------------------------------------------------------------------ */

/* Which statistics, and which element of weight and bias, element e of the logical tensor has. */
typedef struct place {
    int64_t group, param;
} place;

static place place_of(const test_op_case *c, const test_rig *rig, int64_t e)
{
    const gpp__desc *in = &rig->layer.in[0];
    int64_t row = gpp__desc_count(in), channels = in->dim[0];
    int64_t channel = e % row / (row / channels), r = e / row, groups = channels;
    if (test_op_is(c, "batchnorm"))
        return (place){channel, channel};
    if (test_op_is(c, "layernorm")) {
        int64_t length = 1, given[3];
        int count =
            sscanf(strstr(c->spec, "shape=") + 6, "%ld,%ld,%ld", &given[0], &given[1], &given[2]);
        for (int k = 0; k < count; k++)
            length *= given[k];
        return (place){e / length, e % length};
    }
    if (test_op_is(c, "groupnorm"))
        sscanf(c->spec, "groupnorm groups=%ld", &groups);
    return (place){r * groups + channel / (channels / groups), channel};
}

static double eps_of(const test_op_case *c)
{
    const char *at = strstr(c->spec, "eps=");
    return at ? atof(at + 4) : 1e-5;
}

/* A probe, and what it should give. */
typedef struct probe {
    test_probe is;
    const test_op_case *c;
    test_rig *rig;
    int64_t count, params;
    float *x, *y, *dy, *dx;
    double *want_y, *want_dx, *want_weight, *want_bias;
} probe;

static probe probe_new(const test_op_case *c, int threads)
{
    probe p = {.c = c, .is = test_probe_new(c, 0, threads)};
    p.rig = p.is.rig;
    bool affine = p.rig->layer.param_count > 0 && !p.rig->layer.param[0].buffer;
    p.count = test_rig_inputs(p.rig);
    p.params = affine ? p.rig->layer.param[0].count : 0;
    p.x = p.is.x[0];
    p.y = p.is.y[0];
    p.dy = p.is.w[0];
    p.dx = p.is.grad[0];
    return p;
}

static void probe_free(probe *p)
{
    void *all[] = {p->want_y, p->want_dx, p->want_weight, p->want_bias};
    for (size_t k = 0; k < COUNT(all); k++)
        free(all[k]);
    test_probe_free(&p->is);
}

static double weight_at(const probe *p, int which, int64_t k)
{
    return p->params ? (double)test_rig_param(p->rig, which)[k] : which == 0;
}

typedef struct group_sums {
    double n, mean, var, h, hx;
} group_sums;

static group_sums *statistics(const probe *p)
{
    group_sums *g = calloc((size_t)p->count, sizeof *g);
    for (int64_t e = 0; e < p->count; e++) {
        group_sums *of = &g[place_of(p->c, p->rig, e).group];
        of->n++;
        of->mean += p->x[e];
    }
    for (int64_t k = 0; k < p->count; k++)
        g[k].mean /= g[k].n;
    for (int64_t e = 0; e < p->count; e++) {
        group_sums *of = &g[place_of(p->c, p->rig, e).group];
        of->var += (p->x[e] - of->mean) * (p->x[e] - of->mean) / of->n;
    }
    return g;
}

static void reference(probe *p)
{
    group_sums *g = statistics(p);
    double eps = eps_of(p->c);
    p->want_y = calloc((size_t)p->count, sizeof(double));
    p->want_dx = calloc((size_t)p->count, sizeof(double));
    p->want_weight = calloc((size_t)p->params + 1, sizeof(double));
    p->want_bias = calloc((size_t)p->params + 1, sizeof(double));
    for (int64_t e = 0; e < p->count; e++) {
        place at = place_of(p->c, p->rig, e);
        group_sums *of = &g[at.group];
        double normal = (p->x[e] - of->mean) / sqrt(of->var + eps);
        p->want_y[e] = normal * weight_at(p, 0, at.param) + weight_at(p, 1, at.param);
        of->h += p->dy[e] * weight_at(p, 0, at.param) / of->n;
        of->hx += p->dy[e] * weight_at(p, 0, at.param) * normal / of->n;
        p->want_weight[p->params ? at.param : 0] += p->dy[e] * normal;
        p->want_bias[p->params ? at.param : 0] += p->dy[e];
    }
    for (int64_t e = 0; e < p->count; e++) {
        place at = place_of(p->c, p->rig, e);
        const group_sums *of = &g[at.group];
        double rstd = 1 / sqrt(of->var + eps), normal = (p->x[e] - of->mean) * rstd;
        p->want_dx[e] = rstd * (p->dy[e] * weight_at(p, 0, at.param) - of->h - normal * of->hx);
    }
    free(g);
}

static double distance(const float *got, const double *want, int64_t count)
{
    double most = 0, off = 0;
    for (int64_t k = 0; k < count; k++) {
        double d = fabs(got[k] - want[k]);
        off = isnan(d) ? INFINITY : fmax(d, off);
        most = fmax(most, fabs(want[k]));
    }
    return most > 0 ? off / most : off;
}

/* Float32 arithmetic of a few operations on numbers exact in float32; parameters' gradients are
 * sums of up to 1e5 terms in double. */
#define TOLERANCE 2e-6

static void expect_formula(const test_op_case *c)
{
    probe p = probe_new(c, 2);
    reference(&p);
    cr_assert_eq(test_rig_forward(p.rig, p.x, p.y), GPP_OK, "%s", c->spec);
    cr_assert_eq(test_rig_backward(p.rig, p.dy, p.dx, false), GPP_OK, "%s", c->spec);
    double y = distance(p.y, p.want_y, p.count), dx = distance(p.dx, p.want_dx, p.count);
    cr_expect(y < TOLERANCE, "%s (%s): y is off by %.3g", c->spec, c->why, y);
    cr_expect(dx < TOLERANCE, "%s (%s): dx is off by %.3g", c->spec, c->why, dx);
    for (int k = 0; k < 2 && p.params; k++) {
        float *grad = test_floats(p.params);
        test_rig_grad(p.rig, k, grad);
        double off = distance(grad, k ? p.want_bias : p.want_weight, p.params);
        cr_expect(off < TOLERANCE, "%s (%s): gradient %d is off by %.3g", c->spec, c->why, k, off);
        free(grad);
    }
    probe_free(&p);
}

Test(norm, outputs_and_gradients_are_those_of_the_formula_in_float64)
{
    EACH_CASE(c)
    if (c->bend == TEST_NORMAL)
        expect_formula(c);
}

/* --- properties of every one ------------------------------------------------------------------ */

Test(norm, constant_inputs_give_the_bias_and_not_a_number_stays_in_its_group)
{
    EACH_SMALL_CASE(c)
    {
        if (c->bend != TEST_NORMAL)
            continue;
        probe p = probe_new(c, 1);
        for (int64_t e = 0; e < p.count; e++)
            p.x[e] = 12345.678f;
        test_rig_forward(p.rig, p.x, p.y);
        for (int64_t e = 0; e < p.count; e++)
            cr_assert_eq(p.y[e], (float)weight_at(&p, 1, place_of(p.c, p.rig, e).param), "%s",
                         c->spec);
        p.x[p.count / 2] = NAN;
        int64_t bad = place_of(p.c, p.rig, p.count / 2).group;
        test_rig_forward(p.rig, p.x, p.y);
        for (int64_t e = 0; e < p.count; e++)
            cr_assert_eq(isnan(p.y[e]) != 0, place_of(p.c, p.rig, e).group == bad, "%s: element %d",
                         c->spec, (int)e);
        probe_free(&p);
    }
}

Test(norm, weights_begin_as_ones_and_biases_as_zeros)
{
    EACH_SMALL_CASE(c)
    {
        if (c->bend != TEST_NORMAL)
            continue;
        probe p = probe_new(c, 1);
        test_rig_init(p.rig, 5);
        for (int w = 0; w < p.rig->layer.param_count; w++) {
            const gpp__param *param = &p.rig->layer.param[w];
            bool one =
                strcmp(param->name, "weight") == 0 || strcmp(param->name, "running_var") == 0;
            for (int64_t e = 0; param->dtype == GPP_F32 && e < param->count; e++)
                cr_expect_eq(test_rig_param(p.rig, w)[e], one, "%s: %s", c->spec, param->name);
        }
        probe_free(&p);
    }
}

/* --- batchnorm's statistics ------------------------------------------------------------------- */

enum { AFFINE = 2 }; /* running_mean is parameter 2, or 0 without affine; running_var the next */

/* Runs `rows` rows of x in micro-batches of the given sizes, then commits their records. */
static void mini_batch(test_rig *state, const char *spec, const float *x, const int sizes[],
                       int count)
{
    const gpp__desc *in = &state->layer.in[0];
    int64_t row = gpp__desc_count(in), at = 0;
    char *stats[16] = {NULL};
    for (int i = 0; i < count; i++) {
        size_t bytes = state->layer.op->stats_bytes(&state->layer);
        stats[i] = calloc(1, bytes + 1);
        if (sizes[i] > 0) {
            test_rig *rig = test_rig_of(spec, in->rank, in->dim, sizes[i], 2);
            memcpy(rig->params, state->params, rig->layer.param_bytes);
            cr_assert_eq(test_rig_forward(rig, x + at * row, NULL), GPP_OK);
            memcpy(stats[i], rig->stats, bytes);
            test_rig_free(rig);
        }
        at += sizes[i];
    }
    test_rig_commit(state, count, (const char *const *)stats);
    for (int i = 0; i < count; i++)
        free(stats[i]);
}

static test_rig *fresh(const char *spec, int rank, const int64_t dim[])
{
    test_rig *rig = test_rig_of(spec, rank, dim, 4, 1);
    test_rig_init(rig, 1);
    return rig;
}

Test(batchnorm, deferred_statistics_of_four_micro_batches_are_the_worked_numbers)
{
    /* x = 1 2 3 4 5 6 7 9, then 2x: torchgpipe's results. */
    static const struct {
        char spec[48];
        double mean[2], var[2];
        int64_t tracked[2];
    } rows[] = {
        {"batchnorm momentum=0.1 deferred=1", .mean = {0.4625, 1.34125},
         .var = {1.5234375, 3.86484375}, .tracked = {1, 2}},
        {"batchnorm momentum=none deferred=1", .mean = {4.625, 6.9375},
         .var = {6.234375, 15.5859375}, .tracked = {1, 2}},
    };
    static const int pieces[] = {2, 2, 2, 2};
    for (size_t k = 0; k < COUNT(rows); k++) {
        float x[] = {1, 2, 3, 4, 5, 6, 7, 9};
        test_rig *state = fresh(rows[k].spec, 1, (int64_t[]){1});
        for (int batch = 0; batch < 2; batch++) {
            mini_batch(state, rows[k].spec, x, pieces, 4);
            double mean = *test_rig_param(state, AFFINE), var = *test_rig_param(state, AFFINE + 1);
            cr_expect_eq(*test_rig_counter(state, AFFINE + 2), rows[k].tracked[batch], "%s",
                         rows[k].spec);
            /* Rounding of the results to float32. */
            cr_expect_float_eq(mean, rows[k].mean[batch], 1e-6, "%s: %g", rows[k].spec, mean);
            cr_expect_float_eq(var, rows[k].var[batch], 2e-6, "%s: %g", rows[k].spec, var);
            for (int e = 0; e < 8; e++)
                x[e] *= 2;
        }
        test_rig_free(state);
    }
}

Test(batchnorm, one_plain_micro_batch_is_the_worked_number_of_plain_batch_norm)
{
    static const struct {
        char spec[32];
        double mean[2], var[2];
    } rows[] = {
        {"batchnorm", .mean = {0.4625, 1.34125}, .var = {1.6125, 4.30125}},
        {"batchnorm momentum=none", .mean = {4.625, 6.9375}, .var = {7.125, 17.8125}},
    };
    static const int whole[] = {8};
    for (size_t k = 0; k < COUNT(rows); k++) {
        float x[] = {1, 2, 3, 4, 5, 6, 7, 9};
        test_rig *state = fresh(rows[k].spec, 1, (int64_t[]){1});
        for (int batch = 0; batch < 2; batch++) {
            mini_batch(state, rows[k].spec, x, whole, 1);
            cr_expect_float_eq(*test_rig_param(state, AFFINE), rows[k].mean[batch], 1e-6);
            cr_expect_float_eq(*test_rig_param(state, AFFINE + 1), rows[k].var[batch], 2e-6);
            for (int e = 0; e < 8; e++)
                x[e] *= 2;
        }
        test_rig_free(state);
    }
}

Test(batchnorm, plain_statistics_are_updated_once_a_micro_batch_in_order)
{
    static const int pieces[] = {2, 2, 0, 2};
    const float x[] = {0, 2, 10, 14, -4, -6}; /* means 1, 12, -5, unbiased variances 2, 8, 2 */
    static const double means[] = {1, 12, -5}, vars[] = {2, 8, 2};
    static const char specs[][32] = {"batchnorm momentum=0.5", "batchnorm momentum=none"};
    for (size_t s = 0; s < COUNT(specs); s++) {
        test_rig *state = fresh(specs[s], 1, (int64_t[]){1});
        double mean = 0, var = 1;
        mini_batch(state, specs[s], x, pieces, 4);
        for (int i = 0; i < 3; i++) {
            double f = s == 0 ? 0.5 : 1.0 / (i + 1);
            mean = (1 - f) * mean + f * means[i];
            var = (1 - f) * var + f * vars[i];
        }
        cr_expect_float_eq(*test_rig_param(state, AFFINE), mean, 1e-6, "%s", specs[s]);
        cr_expect_float_eq(*test_rig_param(state, AFFINE + 1), var, 1e-6, "%s", specs[s]);
        cr_expect_eq(*test_rig_counter(state, AFFINE + 2), 3, "empty micro-batches do not count");
        test_rig_free(state);
    }
}

/* Mean and biased variance of channel c of `rows` rows, in long double and two passes. */
static void exact(const float *x, int64_t rows, int64_t channels, int64_t length, int64_t c,
                  double *mean, double *var)
{
    long double sum = 0, squares = 0, n = (long double)(rows * length);
    for (int64_t k = 0; k < rows * length; k++)
        sum += x[(k / length * channels + c) * length + k % length];
    for (int64_t k = 0; k < rows * length; k++) {
        long double off = x[(k / length * channels + c) * length + k % length] - sum / n;
        squares += off * off;
    }
    *mean = (double)(sum / n);
    *var = (double)(squares / n);
}

Test(batchnorm, deferred_statistics_are_those_of_the_mini_batch_however_it_is_cut)
{
    enum { ROWS = 16, C = 3, L = 4 };
    static const int cuts[][8] = {
        {16}, {8, 8}, {6, 6, 4}, {4, 4, 4, 4}, {2, 2, 2, 2, 2, 2, 2, 2}, {0, 16}, {15, 0, 1}};
    static const char spec[] = "batchnorm momentum=1 deferred=1";
    float x[ROWS * C * L];
    test_fill(x, ROWS * C * L, 3, -1, 1);
    for (int e = 0; e < ROWS * C * L; e++) {
        static const float scales[C] = {1, 10, 100};
        x[e] = x[e] * scales[e / L % C] + (float)(1 << (e / (C * L))); /* offsets 2^row */
    }
    for (size_t k = 0; k < COUNT(cuts); k++) {
        test_rig *state = fresh(spec, 2, (int64_t[]){C, L});
        mini_batch(state, spec, x, cuts[k], 8);
        for (int c = 0; c < C; c++) {
            double mean, var, got_mean = test_rig_param(state, AFFINE)[c];
            double got_var = test_rig_param(state, AFFINE + 1)[c];
            exact(x, ROWS, C, L, c, &mean, &var);
            /* A rounding to float32. */
            cr_expect_float_eq(got_mean, mean, 1e-7 * mean, "cut %zu: %.9g, %.9g", k, got_mean,
                               mean);
            cr_expect_float_eq(got_var, var, 1e-7 * var, "cut %zu: %.9g, %.9g", k, got_var, var);
        }
        cr_expect_eq(*test_rig_counter(state, AFFINE + 2), 1, "one update a mini-batch");
        test_rig_free(state);
    }
}

Test(batchnorm, records_far_from_0_lose_no_variance)
{
    enum { ROWS = 60, C = 4 };
    static const int pieces[] = {20, 20, 20};
    static const double offsets[] = {1e4, -1e5, 1e6, 1e7};
    static const char specs[][40] = {"batchnorm momentum=1 deferred=1", "batchnorm momentum=1"};
    for (size_t o = 0; o < COUNT(offsets); o++)
        for (size_t s = 0; s < COUNT(specs); s++) {
            float x[ROWS * C];
            test_rig *state = fresh(specs[s], 1, (int64_t[]){C});
            test_fill(x, ROWS * C, 3, offsets[o] - 2, offsets[o] + 2);
            mini_batch(state, specs[s], x, pieces, 3);
            for (int c = 0; c < C; c++) {
                double mean, var;
                if (s == 0)
                    exact(x, ROWS, C, 1, c, &mean, &var);
                else
                    exact(x + 40 * C, 20, C, 1, c, &mean, &var);
                var *= s == 0 ? 1 : 20.0 / 19;
                cr_expect_float_eq(test_rig_param(state, AFFINE + 1)[c], var, 1e-6 * var,
                                   "%s, offset %g: %.9g, %.9g", specs[s], offsets[o],
                                   (double)test_rig_param(state, AFFINE + 1)[c], var);
            }
            test_rig_free(state);
        }
}

Test(batchnorm, a_mini_batch_without_rows_changes_nothing)
{
    static const int none[] = {0, 0, 0};
    static const char specs[][24] = {"batchnorm", "batchnorm deferred=1"};
    for (size_t s = 0; s < COUNT(specs); s++) {
        test_rig *state = fresh(specs[s], 1, (int64_t[]){5});
        char *before = malloc(state->layer.param_bytes);
        memcpy(before, state->params, state->layer.param_bytes);
        mini_batch(state, specs[s], NULL, none, 3);
        cr_expect_eq(memcmp(before, state->params, state->layer.param_bytes), 0, "%s", specs[s]);
        free(before);
        test_rig_free(state);
    }
}

Test(batchnorm, evaluation_uses_running_statistics_and_records_nothing)
{
    const float x[] = {1, 2, 30, 40, 5, 6}, mean[] = {1, 20}, var[] = {4, 100};
    float y[6];
    test_rig *rig = test_rig_of("batchnorm affine=0 eps=0", 1, (int64_t[]){2}, 3, 1);
    memcpy(test_rig_param(rig, 0), mean, sizeof mean);
    memcpy(test_rig_param(rig, 1), var, sizeof var);
    rig->run.training = false;
    cr_assert_eq(test_rig_forward(rig, x, y), GPP_OK);
    for (int e = 0; e < 6; e++)
        cr_expect_float_eq(y[e], (x[e] - mean[e % 2]) / sqrtf(var[e % 2]), 1e-6);
    for (size_t k = 0; k < rig->layer.op->stats_bytes(&rig->layer); k++)
        cr_assert_eq((unsigned char)rig->stats[k], 0xff, "the record was written");
    test_rig_free(rig);
}

Test(batchnorm, without_tracking_there_is_no_state_and_evaluation_uses_the_batch)
{
    static const char specs[][32] = {"batchnorm track=0", "batchnorm track=0 deferred=1"};
    float x[12], training[12], evaluation[12];
    test_fill(x, 12, 1, -1, 1);
    for (size_t s = 0; s < COUNT(specs); s++) {
        test_rig *rig = test_rig_of(specs[s], 1, (int64_t[]){3}, 4, 1);
        cr_expect_eq(rig->layer.param_count, 2, "weight and bias alone");
        cr_expect_eq(rig->layer.op->stats_bytes(&rig->layer), 0);
        test_rig_init(rig, 1);
        test_rig_forward(rig, x, training);
        rig->run.training = false;
        test_rig_forward(rig, x, evaluation);
        cr_expect(test_same(training, evaluation, 12), "%s", specs[s]);
        test_rig_free(rig);
    }
}

Test(batchnorm, one_value_per_channel_fails_in_training_and_names_the_layer)
{
    static const struct {
        char spec[24];
        int rank;
        int64_t dim[3];
        bool training;
        gpp_status status;
    } rows[] = {
        {"batchnorm", .rank = 1, .dim = {4}, .training = true, .status = GPP_EINVAL},
        {"batchnorm", .rank = 3, .dim = {4, 1, 1}, .training = true, .status = GPP_EINVAL},
        {"batchnorm", .rank = 2, .dim = {4, 1}, .training = true, .status = GPP_EINVAL},
        {"batchnorm", .rank = 3, .dim = {4, 1, 2}, .training = true, .status = GPP_OK},
        {"batchnorm", .rank = 1, .dim = {4}, .status = GPP_OK},
        {"batchnorm track=0", .rank = 1, .dim = {4}, .status = GPP_EINVAL},
    };
    for (size_t k = 0; k < COUNT(rows); k++) {
        gpp_error err = GPP_ERROR_INIT;
        float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        test_rig *rig = test_rig_of(rows[k].spec, rows[k].rank, rows[k].dim, 1, 1);
        test_rig_init(rig, 1);
        rig->run.err = &err;
        rig->run.training = rows[k].training;
        rig->layer.index = 7;
        cr_expect_eq(test_rig_forward(rig, x, NULL), rows[k].status, "case %zu", k);
        if (rows[k].status)
            cr_expect(err.layer == 7 &&
                          strstr(err.msg, "expected more than 1 value per channel when training") &&
                          strstr(err.msg, "layer 7, \"layer\""),
                      "%s", err.msg);
        test_rig_free(rig);
    }
}

Test(batchnorm, buffers_are_no_parameters_that_learn)
{
    test_rig *rig = fresh("batchnorm", 3, (int64_t[]){6, 2, 2});
    static const char names[][24] = {"weight", "bias", "running_mean", "running_var",
                                     "num_batches_tracked"};
    cr_assert_eq(rig->layer.param_count, 5);
    for (int p = 0; p < 5; p++) {
        cr_expect_str_eq(rig->layer.param[p].name, names[p]);
        cr_expect_eq(rig->layer.param[p].buffer, p >= 2, "%s", names[p]);
        cr_expect_eq(rig->layer.param[p].count, p == 4 ? 1 : 6, "%s", names[p]);
        cr_expect_eq(rig->layer.param[p].dtype, p == 4 ? GPP_I64 : GPP_F32, "%s", names[p]);
    }
    test_rig_free(rig);
    rig = fresh("batchnorm affine=0", 1, (int64_t[]){6});
    cr_expect(!gpp__layer_trains(&rig->layer));
    test_rig_free(rig);
}
