/*
 * tests/test_attention.c: what sequence models are made of: embedding, position_embedding and
 * self_attention, against formulas in float64. What holds for every operator: test_operators.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/operators.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* --- self_attention --------------------------------------------------------------------------- */

enum { QKV_WEIGHT, QKV_BIAS, PROJ_WEIGHT, PROJ_BIAS, PARAMS };

/* A probe, and what its case says. */
typedef struct probe {
    test_probe is;
    const test_op_case *c;
    test_rig *rig;
    int64_t length, width, rows, count;
    int heads;
    bool causal;
    float *x, *y, *dy, *dx;
} probe;

static probe probe_new(const test_op_case *c, int threads)
{
    probe p = {.c = c, .is = test_probe_new(c, 0, threads), .rows = c->rows};
    p.rig = p.is.rig;
    p.length = c->in[0].dim[0];
    p.width = c->in[0].dim[1];
    p.heads = atoi(strstr(c->spec, "heads=") + 6);
    p.causal = strstr(c->spec, "causal=1") != NULL;
    p.count = test_rig_inputs(p.rig);
    p.x = p.is.x[0];
    p.y = p.is.y[0];
    p.dy = p.is.w[0];
    p.dx = p.is.grad[0];
    return p;
}

static void probe_free(probe *p)
{
    test_probe_free(&p->is);
}

/* The formulas at the top of self_attention.c in float64, with P whole. */
typedef struct truth {
    double *qkv, *prob, *o, *y; /* prob [rows][heads][T][T] */
    double *grad_qkv, *grad_o, *dx, *grad[PARAMS];
} truth;

static double *doubles(int64_t count)
{
    return calloc((size_t)count, sizeof(double));
}

/* c[m][n] = a[m][k] · w[n][k]ᵀ + bias */
static void dense(int64_t m, int64_t n, int64_t k, const double *a, const float *w,
                  const float *bias, double *c)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = bias[j];
            for (int64_t l = 0; l < k; l++)
                sum += a[i * k + l] * w[j * k + l];
            c[i * n + j] = sum;
        }
}

/* Its backward: gradients of a (unless NULL), w and bias. */
static void dense_back(int64_t m, int64_t n, int64_t k, const double *a, const float *w,
                       const double *grad_c, double *grad_a, double *grad_w, double *grad_bias)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double g = grad_c[i * n + j];
            grad_bias[j] += g;
            for (int64_t l = 0; l < k; l++) {
                grad_w[j * k + l] += g * a[i * k + l];
                grad_a[i * k + l] += g * w[j * k + l];
            }
        }
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++)
        sum += a[k] * b[k];
    return sum;
}

/* One head of one row, forward; or backward. */
static void head(const probe *c, truth *t, int64_t row, int64_t h, bool backward)
{
    int64_t T = c->length, D = c->width, d = D / c->heads, at = row * T;
    double scale = 1 / sqrt((double)d), *prob = t->prob + (row * c->heads + h) * T * T;
    for (int64_t i = 0; i < T; i++) {
        const double *q = t->qkv + (at + i) * 3 * D + h * d;
        double *p = prob + i * T, *o = t->o + (at + i) * D + h * d, sum = 0, delta = 0;
        int64_t keys = c->causal ? i + 1 : T;
        for (int64_t j = 0; j < keys && !backward; j++)
            sum += p[j] = exp(dot(q, t->qkv + (at + j) * 3 * D + D + h * d, d) * scale);
        for (int64_t j = 0; j < keys && !backward; j++) {
            p[j] /= sum;
            for (int64_t k = 0; k < d; k++)
                o[k] += p[j] * t->qkv[(at + j) * 3 * D + 2 * D + h * d + k];
        }
        if (!backward)
            continue;
        const double *grad_o = t->grad_o + (at + i) * D + h * d;
        double *dq = t->grad_qkv + (at + i) * 3 * D + h * d;
        delta = dot(grad_o, o, d);
        for (int64_t j = 0; j < keys; j++) {
            const double *k = t->qkv + (at + j) * 3 * D + D + h * d, *v = k + D;
            double *dk = t->grad_qkv + (at + j) * 3 * D + D + h * d, *dv = dk + D;
            double ds = p[j] * (dot(grad_o, v, d) - delta) * scale;
            for (int64_t e = 0; e < d; e++) {
                dv[e] += p[j] * grad_o[e];
                dq[e] += ds * k[e];
                dk[e] += ds * q[e];
            }
        }
    }
}

static truth truth_of(const probe *p)
{
    const probe *c = p;
    int64_t m = c->rows * c->length, D = c->width;
    truth t = {.qkv = doubles(3 * p->count),
               .prob = doubles(m * c->heads * c->length),
               .o = doubles(p->count),
               .y = doubles(p->count),
               .grad_qkv = doubles(3 * p->count),
               .grad_o = doubles(p->count),
               .dx = doubles(p->count)};
    double *x = doubles(p->count), *dy = doubles(p->count);
    for (int64_t k = 0; k < p->count; k++) {
        x[k] = p->x[k];
        dy[k] = p->dy[k];
    }
    for (int k = 0; k < PARAMS; k++)
        t.grad[k] = doubles(p->rig->layer.param[k].count);
    const float *qkv = test_rig_param(p->rig, QKV_WEIGHT), *proj;
    proj = test_rig_param(p->rig, PROJ_WEIGHT);
    dense(m, 3 * D, D, x, qkv, test_rig_param(p->rig, QKV_BIAS), t.qkv);
    for (int64_t h = 0; h < c->rows * c->heads; h++)
        head(c, &t, h / c->heads, h % c->heads, false);
    dense(m, D, D, t.o, proj, test_rig_param(p->rig, PROJ_BIAS), t.y);
    dense_back(m, D, D, t.o, proj, dy, t.grad_o, t.grad[PROJ_WEIGHT], t.grad[PROJ_BIAS]);
    for (int64_t h = 0; h < c->rows * c->heads; h++)
        head(c, &t, h / c->heads, h % c->heads, true);
    dense_back(m, 3 * D, D, x, qkv, t.grad_qkv, t.dx, t.grad[QKV_WEIGHT], t.grad[QKV_BIAS]);
    free(x);
    free(dy);
    return t;
}

static void truth_free(truth *t)
{
    double *all[] = {t->qkv, t->prob, t->o, t->y, t->grad_qkv, t->grad_o, t->dx};
    for (size_t k = 0; k < COUNT(all); k++)
        free(all[k]);
    for (int k = 0; k < PARAMS; k++)
        free(t->grad[k]);
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

/* Five products one after the other, each of up to a few hundred float32 terms. */
#define TOLERANCE 5e-6

static void expect_formula(const test_op_case *c)
{
    probe p = probe_new(c, 2);
    truth t = truth_of(&p);
    cr_assert_eq(test_rig_forward(p.rig, p.x, p.y), GPP_OK, "%s", c->spec);
    cr_assert_eq(test_rig_backward(p.rig, p.dy, p.dx, false), GPP_OK, "%s", c->spec);
    double y = distance(p.y, t.y, p.count), dx = distance(p.dx, t.dx, p.count);
    cr_expect(y < TOLERANCE, "%s (%s): y is off by %.3g", c->spec, c->why, y);
    cr_expect(dx < TOLERANCE, "%s (%s): dx is off by %.3g", c->spec, c->why, dx);
    for (int k = 0; k < PARAMS; k++) {
        int64_t count = p.rig->layer.param[k].count;
        float *grad = test_floats(count);
        test_rig_grad(p.rig, k, grad);
        double off = distance(grad, t.grad[k], count);
        cr_expect(off < TOLERANCE, "%s (%s): gradient of %s is off by %.3g", c->spec, c->why,
                  p.rig->layer.param[k].name, off);
        free(grad);
    }
    truth_free(&t);
    probe_free(&p);
}

Test(self_attention, outputs_and_gradients_are_those_of_the_formula_in_float64)
{
    EACH_CASE(c)
    if (c->bend == TEST_ATTENDS)
        expect_formula(c);
}

Test(self_attention, causal_outputs_do_not_depend_on_later_positions)
{
    static const int64_t changed[] = {1, 40, 64, 100, 130};
    static const test_op_case c = {
        TEST_OP("self_attention heads=3 causal=1", "", 3, MATRIX(131, 51)), .bend = TEST_ATTENDS};
    probe p = probe_new(&c, 1);
    float *other = test_floats(p.count);
    test_rig_forward(p.rig, p.x, p.y);
    for (size_t k = 0; k < COUNT(changed); k++) {
        int64_t before = changed[k] * p.width, row = p.length * p.width;
        test_fill(p.x + before, row - before, 90 + k, -1, 1);
        test_rig_forward(p.rig, p.x, other);
        cr_expect(test_same(other, p.y, before), "positions before %d", (int)changed[k]);
        cr_expect(!test_same(other + before, p.y + before, p.width), "position %d",
                  (int)changed[k]);
        test_fill(p.x, p.count, 30, -1, 1); /* as it was */
    }
    free(other);
    probe_free(&p);
}

Test(self_attention, huge_scores_do_not_overflow)
{
    /* With q = k = v = x and no more, a position of 1000s scores 1e6 with itself: it attends to
     * itself alone. */
    gpp__desc in = {.dtype = GPP_F32, .rank = 2, .dim = {3, 2}};
    const float x[] = {1000, 0, 0, 1000, -1000, -1000};
    float y[6], dx[6], dy[6] = {1, 1, 1, 1, 1, 1};
    test_rig *rig = test_rig_on("self_attention heads=1", &in, 1, 1);
    for (int k = 0; k < PARAMS; k++)
        memset(test_rig_param(rig, k), 0, (size_t)rig->layer.param[k].count * sizeof(float));
    for (int k = 0; k < 6; k++)
        test_rig_param(rig, QKV_WEIGHT)[2 * k + k % 2] = 1;
    for (int k = 0; k < 2; k++)
        test_rig_param(rig, PROJ_WEIGHT)[3 * k] = 1;
    cr_assert_eq(test_rig_forward(rig, x, y), GPP_OK);
    cr_assert_eq(test_rig_backward(rig, dy, dx, false), GPP_OK);
    for (int k = 0; k < 6; k++) {
        cr_expect_eq(y[k], x[k], "element %d: %g", k, (double)y[k]);
        cr_expect_eq(dx[k], 1, "gradient %d: %g", k, (double)dx[k]);
    }
    test_rig_free(rig);
}

/* --- embedding -------------------------------------------------------------------------------- */

static test_rig *embedding_of(const char *spec, int rank, const int64_t dim[], int64_t rows,
                              int threads)
{
    gpp__desc in = {.dtype = GPP_I64, .rank = rank};
    memcpy(in.dim, dim, (size_t)rank * sizeof *dim);
    return test_rig_on(spec, &in, rows, threads);
}

/* The row of the table that has no gradient; -1: none. */
static int64_t padding_of(const test_op_case *c, int64_t num)
{
    const char *at = strstr(c->spec, "padding_idx=");
    if (!at)
        return -1;
    int64_t row = atoll(at + strlen("padding_idx="));
    return row < 0 ? row + num : row;
}

static void expect_look_up(const test_op_case *c)
{
    test_probe p = test_probe_new(c, 0, 2);
    const gpp__param *param = &p.rig->layer.param[0];
    int64_t width = param->dim[1], padding = padding_of(c, param->dim[0]);
    int64_t count = test_rig_output(p.rig, 0);
    const int64_t *x = p.x[0];
    const float *y = p.y[0], *table = test_rig_param(p.rig, 0);
    float *grad = test_floats(param->count);
    double *want = doubles(param->count);
    cr_assert_eq(count, test_rig_input(p.rig, 0) * width, "%s", c->why);
    test_probe_value(&p);
    for (int64_t e = 0; e < count; e++) {
        int64_t at = x[e / width] * width + e % width;
        cr_assert_eq(y[e], table[at], "%s: element %d", c->why, (int)e);
        want[at] += x[e / width] == padding ? 0 : p.w[0][e];
    }
    test_probe_back(&p, false);
    test_rig_grad(p.rig, 0, grad);
    /* Sums of some hundred numbers below 1. */
    double off = distance(grad, want, param->count);
    cr_expect(off < 2e-6, "%s (%s): off by %.3g", c->spec, c->why, off);
    free(grad);
    free(want);
    test_probe_free(&p);
}

Test(embedding, rows_are_looked_up_and_their_gradients_added_for_indices_of_any_rank)
{
    EACH_CASE(c)
    if (test_op_is(c, "embedding"))
        expect_look_up(c);
}

Test(embedding, an_index_out_of_range_fails_and_names_row_position_and_value)
{
    static const int64_t bad[] = {9, -1, INT64_MAX, INT64_MIN};
    for (size_t k = 0; k < COUNT(bad); k++) {
        gpp_error err = GPP_ERROR_INIT;
        int64_t x[] = {0, 8, 3, 4, 5, bad[k]};
        char value[32];
        float y[12];
        test_rig *rig = embedding_of("embedding num=9 dim=2", 1, (int64_t[]){3}, 2, 1);
        test_rig_init(rig, 1);
        rig->run.err = &err;
        rig->layer.index = 4;
        cr_expect_eq(test_rig_forward_tuple(rig, (const void *const[]){x}, (void *const[]){y}),
                     GPP_EINVAL);
        snprintf(value, sizeof value, "index %lld ", (long long)bad[k]);
        cr_expect(err.layer == 4 && strstr(err.msg, value) &&
                      strstr(err.msg, "row 1, position 2") && strstr(err.msg, "0 ... 8"),
                  "%s", err.msg);
        test_rig_free(rig);
    }
}

/* Mean and standard deviation of `count` numbers. */
static void spread_of(const float *x, int64_t count, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < count; k++)
        sum += x[k];
    for (int64_t k = 0; k < count; k++)
        squares += (x[k] - sum / (double)count) * (x[k] - sum / (double)count);
    *mean = sum / (double)count;
    *deviation = sqrt(squares / (double)count);
}

Test(embedding, tables_begin_normal_with_the_documented_deviation)
{
    enum { N = 500 * 80 };
    static const struct {
        char spec[48];
        double deviation;
    } rows[] = {{"embedding num=500 dim=80", 1}, {"position_embedding length=500", 0.02}};
    for (size_t k = 0; k < COUNT(rows); k++) {
        gpp__desc in = {
            .dtype = k == 0 ? GPP_I64 : GPP_F32, .rank = k == 0 ? 1 : 2, .dim = {500, 80}};
        test_rig *rig = test_rig_on(rows[k].spec, &in, 1, 1);
        double mean, deviation, s = rows[k].deviation;
        int64_t beyond = 0;
        test_rig_init(rig, 12);
        spread_of(test_rig_param(rig, 0), N, &mean, &deviation);
        for (int64_t e = 0; e < N; e++)
            beyond += fabsf(test_rig_param(rig, 0)[e]) > 2 * s;
        /* Five standard errors: 1 / sqrt(N), 1 / sqrt(2 N), sqrt(0.0455 · 0.9545 / N). */
        cr_expect_leq(fabs(mean), 5 * s / sqrt(N), "%s: %g", rows[k].spec, mean);
        cr_expect_leq(fabs(deviation - s), 5 * s / sqrt(2.0 * N), "%s: %g", rows[k].spec,
                      deviation);
        cr_expect_leq(fabs((double)beyond / N - 0.0455), 5 * sqrt(0.0455 * 0.9545 / N), "%s: %d",
                      rows[k].spec, (int)beyond);
        float first = test_rig_param(rig, 0)[0];
        test_rig_init(rig, 13);
        cr_expect_neq(first, test_rig_param(rig, 0)[0], "another seed");
        test_rig_init(rig, 12);
        cr_expect_eq(first, test_rig_param(rig, 0)[0], "the same seed");
        test_rig_free(rig);
    }
}

Test(embedding, the_padding_row_begins_as_zeros)
{
    test_rig *rig = embedding_of("embedding num=4 dim=3 padding_idx=-2", 1, (int64_t[]){2}, 1, 1);
    test_rig_init(rig, 1);
    for (int e = 0; e < 12; e++)
        cr_expect_eq(test_rig_param(rig, 0)[e] == 0, e / 3 == 2, "element %d", e);
    test_rig_free(rig);
}

/* --- position_embedding ----------------------------------------------------------------------- */

static void expect_positions(const test_op_case *c)
{
    test_probe p = test_probe_new(c, 0, 2);
    int64_t count = test_rig_inputs(p.rig), row = count / c->rows;
    int64_t table = p.rig->layer.param[0].count;
    const float *x = p.x[0], *y = p.y[0];
    float *grad = test_floats(table);
    double *want = doubles(table);
    test_probe_value(&p);
    test_probe_back(&p, false);
    for (int64_t e = 0; e < count; e++) {
        cr_assert_eq(y[e], x[e] + test_rig_param(p.rig, 0)[e % row], "%s: element %d", c->spec,
                     (int)e);
        want[e % row] += p.w[0][e];
    }
    cr_expect(test_same(p.grad[0], p.w[0], count), "%s", c->spec);
    for (int times = 1; times <= 2; times++) {
        test_rig_grad(p.rig, 0, grad);
        for (int64_t e = 0; e < table; e++)
            cr_assert_eq(grad[e], (float)times * (float)want[e], "%s: element %d, %d times",
                         c->spec, (int)e, times);
        test_probe_back(&p, true);
    }
    free(grad);
    free(want);
    test_probe_free(&p);
}

Test(position_embedding, rows_of_the_table_are_added_and_their_gradients_summed)
{
    EACH_CASE(c)
    if (test_op_is(c, "position_embedding"))
        expect_positions(c);
}
