/*
 * tests/test_losses.c: losses of micro-batches against reference vectors, float64 formulas and
 * central differences.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "codelets/loss.h"
#include "tests/support.h"
#include "tests/vectors.h"

#define COUNT(table) (sizeof table / sizeof *table)

static const gpp_loss *find_loss(const char *name)
{
    for (const gpp_loss *const *loss = gpp__losses; *loss; loss++)
        if (strcmp((*loss)->name, name) == 0)
            return *loss;
    return NULL;
}

/* A loss with its attributes, for outputs of one shape. */
typedef struct loss_rig {
    const gpp_loss *loss;
    void *attr;
    gpp__desc y, target;
} loss_rig;

static gpp_status open_loss(loss_rig *rig, const char *spec, const gpp__desc *y, gpp_error *err)
{
    char name[64], pool[256];
    gpp_attr given[8];
    size_t count;
    gpp_status status = gpp__attr_parse_spec(spec, name, given, &count, 8, pool, sizeof pool, err);
    *rig = (loss_rig){.loss = find_loss(name), .y = *y};
    cr_assert(!status && rig->loss, "%s", spec);
    rig->attr = calloc(1, rig->loss->attr_size + 1);
    status = gpp__attr_set(name, rig->loss->keys, rig->attr, given, count, err);
    return status ? status : rig->loss->target(rig->attr, y, &rig->target, err);
}

static loss_rig loss_of(const char *spec, int rank, const int64_t dim[])
{
    loss_rig rig;
    gpp_error err = GPP_ERROR_INIT;
    gpp__desc y = {.dtype = GPP_F32, .rank = rank};
    memcpy(y.dim, dim, (size_t)rank * sizeof *dim);
    cr_assert_eq(open_loss(&rig, spec, &y, &err), GPP_OK, "%s: %s", spec, err.msg);
    return rig;
}

static gpp_status run_loss(const loss_rig *rig, int64_t rows, int64_t batch_rows, const float *y,
                           const void *target, float *grad, double *value, gpp_error *err)
{
    gpp__loss_call call = {.attr = rig->attr,
                           .y_desc = &rig->y,
                           .rows = rows,
                           .batch_rows = batch_rows,
                           .y = y,
                           .target = target,
                           .grad_y = grad,
                           .value = value,
                           .err = err};
    return rig->loss->run(&call);
}

/* --- reference vectors ------------------------------------------------------------------------ */

/* cross_entropy and mse, each mean and sum. */
#define VECTORS_KNOWN 4

/* Kinds of these losses that are not built: without reduction, with weights, for each pixel, with
 * keys there are not. */
static bool is_built(const test_vector *v)
{
    char spec[128];
    const test_array *x = test_vector_find(v, "x");
    snprintf(spec, sizeof spec, "%s", test_vector_word(v, "loss"));
    char *reduction = strstr(spec, "reduction=");
    if (!find_loss(test_vector_word(v, "type")) || !reduction || !x)
        return false;
    if (strcmp(reduction, "reduction=mean") != 0 && strcmp(reduction, "reduction=sum") != 0)
        return false;
    return x->rank == 2 && !test_vector_find(v, "weight");
}

static void run_loss_vector(const test_vector *v)
{
    const test_array *x = test_vector_find(v, "x"), *target = test_vector_find(v, "target");
    const test_array *loss = test_vector_find(v, "loss"), *want = test_vector_find(v, "grad.x");
    cr_assert(x && target && loss && want, "%s", v->file);
    loss_rig rig = loss_of(test_vector_word(v, "loss"), x->rank - 1, x->dim + 1);
    float *grad = test_room((size_t)x->count * sizeof(float));
    double value;
    cr_assert_eq(rig.target.dtype, target->dtype, "%s", v->file);
    cr_assert_eq(run_loss(&rig, x->dim[0], x->dim[0], x->data, target->data, grad, &value, NULL),
                 GPP_OK, "%s", v->file);
    double reference = *(const float *)loss->data;
    cr_expect_leq(fabs(value - reference), 1e-6 * fabs(reference), "%s: %.9g, want %.9g", v->file,
                  value, reference);
    cr_expect_leq(test_distance(grad, want->data, x->count), 1e-5, "%s: gradient", v->file);
    free(grad);
    free(rig.attr);
}

Test(losses, reference_vectors_are_met_within_1e_5_of_the_largest_value)
{
    char **names, why[128];
    int count = test_vectors_list(&names), run = 0, skipped = 0;
    if (count < 0) {
        fprintf(stderr, "loss vectors: no folder, at least %d not run\n", VECTORS_KNOWN);
        cr_skip_test("no folder of reference vectors");
    }
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        if (strcmp(test_vector_word(v, "kind"), "loss") == 0 && is_built(v)) {
            run_loss_vector(v);
            run++;
        } else if (strcmp(test_vector_word(v, "kind"), "loss") == 0) {
            skipped++;
        }
        test_vector_close(v);
    }
    fprintf(stderr, "loss vectors: %d run, %d skipped (loss or option not built)\n", run, skipped);
    cr_expect_geq(run, VECTORS_KNOWN, "only %d vectors were run", run);
    test_vectors_free(names, count);
}

/* --- every loss ------------------------------------------------------------------------------- */

typedef struct loss_case {
    char spec[40];
    int rank;
    int64_t dim[3], rows;
    char why[40];
} loss_case;

static const loss_case cases[] = {
    {"cross_entropy", 1, {10}, 8, "as in most networks"},
    {"cross_entropy reduction=sum", 1, {3}, 5, "sum"},
    {"cross_entropy", 1, {1}, 4, "one class"},
    {"cross_entropy", 1, {2}, 3, "two classes"},
    {"cross_entropy", 1, {255}, 3, "one less than a chunk"},
    {"cross_entropy", 1, {256}, 3, "a chunk"},
    {"cross_entropy reduction=sum", 1, {257}, 3, "one more than a chunk"},
    {"cross_entropy", 1, {1777}, 3, "several chunks"},
    {"cross_entropy", 2, {8, 13}, 5, "a sequence of positions"},
    {"cross_entropy reduction=sum", 2, {3, 300}, 4, "a sequence, sum"},
    {"cross_entropy", 2, {1, 4}, 3, "a sequence of one"},
    {"mse", 1, {7}, 6, "vector"},
    {"mse reduction=sum", 3, {3, 4, 5}, 5, "image"},
    {"mse", 0, {0}, 5, "one number a row"},
    {"mse", 1, {700}, 4, "several chunks"},
};

/* Outputs and targets for a case, and room for gradients. */
typedef struct loss_data {
    loss_rig rig;
    int64_t row, count; /* elements of an output row, of all */
    int64_t last;       /* of cross_entropy: classes */
    float *y, *grad;
    float *reals;
    int64_t *classes;
    const void *target;
} loss_data;

static loss_data data_of(const loss_case *c)
{
    loss_data d = {.rig = loss_of(c->spec, c->rank, c->dim)};
    d.row = gpp__desc_count(&d.rig.y);
    d.last = c->rank ? c->dim[c->rank - 1] : 1;
    d.count = d.row * c->rows;
    d.y = test_room((size_t)d.count * sizeof(float));
    d.grad = test_room((size_t)d.count * sizeof(float));
    d.reals = test_room((size_t)d.count * sizeof(float));
    d.classes = test_room((size_t)(d.count / d.last) * sizeof(int64_t));
    test_fill(d.y, d.count, 21, -3, 3);
    test_fill(d.reals, d.count, 22, -3, 3);
    for (int64_t k = 0; k < d.count / d.last; k++)
        d.classes[k] = (int64_t)((double)(d.reals[k * d.last] + 3) / 6 * (double)d.last) % d.last;
    d.target = d.rig.target.dtype == GPP_I64 ? (const void *)d.classes : d.reals;
    return d;
}

static void data_free(loss_data *d)
{
    free(d->y);
    free(d->grad);
    free(d->reals);
    free(d->classes);
    free(d->rig.attr);
}

/* Targets from row `r` on. */
static const void *target_at(const loss_data *d, int64_t r)
{
    int64_t at = r * d->row;
    return d->rig.target.dtype == GPP_I64 ? (const void *)(d->classes + at / d->last)
                                          : d->reals + at;
}

static double value_of(const loss_data *d, int64_t rows)
{
    double value;
    cr_assert_eq(run_loss(&d->rig, rows, rows, d->y, d->target, NULL, &value, NULL), GPP_OK);
    return value;
}

Test(losses, every_loss_has_cases_here)
{
    for (const gpp_loss *const *loss = gpp__losses; *loss; loss++) {
        int found = 0;
        for (size_t k = 0; k < COUNT(cases); k++)
            found += strncmp(cases[k].spec, (*loss)->name, strlen((*loss)->name)) == 0;
        cr_expect_gt(found, 0, "%s", (*loss)->name);
    }
}

/* The formulas at the top of the losses' files, in float64. */
static double reference_value(const loss_data *d, const loss_case *c)
{
    double sum = 0;
    bool entropy = d->rig.target.dtype == GPP_I64;
    for (int64_t p = 0; p < d->count / d->last; p++) {
        const float *y = d->y + p * d->last;
        double exponentials = 0;
        for (int64_t k = 0; k < d->last; k++) {
            double off = (double)y[k] - d->reals[p * d->last + k];
            exponentials += exp((double)y[k]);
            sum += entropy ? 0 : off * off;
        }
        sum += entropy ? log(exponentials) - y[d->classes[p]] : 0;
    }
    if (strstr(c->spec, "sum"))
        return sum;
    return sum / (double)(entropy ? d->count / d->last : d->count);
}

Test(losses, values_are_those_of_the_formula)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        loss_data d = data_of(&cases[k]);
        double got = value_of(&d, cases[k].rows), want = reference_value(&d, &cases[k]);
        /* Terms are sums of float32 numbers with relative errors of 1e-7. */
        cr_expect_leq(fabs(got - want), 3e-7 * fabs(want) + 1e-15, "%s, %s: %.9g, want %.9g",
                      cases[k].spec, cases[k].why, got, want);
        data_free(&d);
    }
}

/*
 * Along random signs u, step h: truncation h²/6 times a third derivative that is no larger than the
 * gradient's terms, 2e-7 for h = 1e-3; rounding 1e-7 |value| / h = 1e-4 |value|, and the value is
 * of the order of the sum of the gradient's terms.
 */
static void expect_slope(const loss_case *c)
{
    const float step = 0x1p-10f;
    loss_data d = data_of(c);
    float *u = test_room((size_t)d.count * sizeof(float)), *middle = d.y;
    double value;
    run_loss(&d.rig, c->rows, c->rows, d.y, d.target, d.grad, &value, NULL);
    d.y = test_room((size_t)d.count * sizeof(float));
    for (uint64_t direction = 0; direction < 6; direction++) {
        double f[2], slope, want, scale = sqrt(test_dot(d.grad, d.grad, d.count));
        test_fill_signs(u, d.count, direction);
        for (int side = 0; side < 2; side++) {
            for (int64_t k = 0; k < d.count; k++)
                d.y[k] = middle[k] + (side ? step : -step) * u[k];
            f[side] = value_of(&d, c->rows);
        }
        slope = (f[1] - f[0]) / (2 * (double)step);
        want = test_dot(d.grad, u, d.count);
        cr_expect(fabs(slope - want) <= 1e-3 * scale + 1e-4 * fabs(value),
                  "%s, %s: slope %.7g, gradient says %.7g", c->spec, c->why, slope, want);
    }
    free(u);
    free(middle);
    data_free(&d);
}

Test(losses, gradients_are_the_slopes_of_central_differences)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        expect_slope(&cases[k]);
}

Test(losses, parts_of_uneven_micro_batches_add_up_to_the_whole)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        const loss_case *c = &cases[k];
        loss_data d = data_of(c);
        float *grad = test_room((size_t)d.count * sizeof(float));
        double whole, sum = 0;
        run_loss(&d.rig, c->rows, c->rows, d.y, d.target, d.grad, &whole, NULL);
        for (int64_t r = 0, rows; r < c->rows; r += rows) {
            double part;
            rows = c->rows - r < 2 ? c->rows - r : 2;
            run_loss(&d.rig, rows, c->rows, d.y + r * d.row, target_at(&d, r), grad + r * d.row,
                     &part, NULL);
            sum += part;
        }
        /* Sums of doubles in another order; gradients are those of the same rows. */
        cr_expect_leq(fabs(sum - whole), 1e-14 * fabs(whole), "%s, %s: %.17g, %.17g", c->spec,
                      c->why, sum, whole);
        cr_expect(test_same(grad, d.grad, d.count), "%s, %s", c->spec, c->why);
        free(grad);
        data_free(&d);
    }
}

Test(losses, values_do_not_depend_on_whether_a_gradient_is_wanted)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        loss_data d = data_of(&cases[k]);
        double with;
        run_loss(&d.rig, cases[k].rows, cases[k].rows, d.y, d.target, d.grad, &with, NULL);
        cr_expect_eq(with, value_of(&d, cases[k].rows), "%s", cases[k].spec);
        data_free(&d);
    }
}

Test(losses, no_rows_give_a_mean_of_nan_and_a_sum_of_0)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        loss_data d = data_of(&cases[k]);
        double batch = value_of(&d, 0), part = 7;
        if (strstr(cases[k].spec, "sum"))
            cr_expect_eq(batch, 0, "%s", cases[k].spec);
        else
            cr_expect(isnan(batch), "%s", cases[k].spec);
        run_loss(&d.rig, 0, 4, d.y, d.target, d.grad, &part, NULL);
        cr_expect_eq(part, 0, "%s: an empty micro-batch of a batch with rows", cases[k].spec);
        data_free(&d);
    }
}

/* --- cross-entropy ---------------------------------------------------------------------------- */

Test(cross_entropy, extreme_scores_neither_overflow_nor_lose_the_answer)
{
    static const struct {
        float y[3];
        int64_t target;
        double value;
        float grad[3];
        char why[32];
    } rows[] = {
        {{1e30f, 0, 0}, 0, 0, {0, 0, 0}, "sure and right"},
        {{1e4f, 0, -1e4f}, 1, 1e4, {1, -1, 0}, "sure and wrong"},
        {{-1e30f, -1e30f, -1e30f}, 2, 1.09861228866811, {1 / 3.f, 1 / 3.f, -2 / 3.f}, "all low"},
        {{0, -INFINITY, 0}, 0, 0.693147180559945, {-0.5f, 0, 0.5f}, "a class ruled out"},
        {{-200, -100, -300}, 1, 0, {0, 0, 0}, "far below 0"},
        {{0, -87.5f, -104}, 2, 104, {1, 0, -1}, "at the smallest exponential"},
    };
    loss_rig rig = loss_of("cross_entropy reduction=sum", 1, (int64_t[]){3});
    for (size_t k = 0; k < COUNT(rows); k++) {
        float grad[3];
        double value;
        run_loss(&rig, 1, 1, rows[k].y, &rows[k].target, grad, &value, NULL);
        cr_expect_leq(fabs(value - rows[k].value), 1e-7 * (1 + rows[k].value), "%s: %.9g",
                      rows[k].why, value);
        for (int c = 0; c < 3; c++)
            cr_expect_float_eq(grad[c], rows[k].grad[c], 1e-6, "%s, class %d: %g", rows[k].why, c,
                               (double)grad[c]);
    }
    free(rig.attr);
}

Test(cross_entropy, a_score_that_is_no_number_makes_the_loss_none)
{
    static const float bad[] = {NAN, INFINITY};
    loss_rig rig = loss_of("cross_entropy", 1, (int64_t[]){40});
    for (size_t k = 0; k < COUNT(bad); k++)
        for (int at = 0; at < 40; at++) {
            float y[40] = {0}, grad[40];
            int64_t target = 3;
            double value;
            y[at] = bad[k];
            run_loss(&rig, 1, 1, y, &target, grad, &value, NULL);
            cr_expect(isnan(value), "%g at %d gives %g", (double)bad[k], at, value);
            cr_expect(isnan(grad[at]), "%g at %d", (double)bad[k], at);
        }
    free(rig.attr);
}

Test(cross_entropy, gradients_of_50000_classes_sum_to_0_and_match_float64)
{
    enum { N = 50000 };
    const int64_t target = 49999;
    loss_rig rig = loss_of("cross_entropy reduction=sum", 1, (int64_t[]){N});
    float *y = test_room(N * sizeof(float)), *grad = test_room(N * sizeof(float));
    double value, sum = 0, total = 0, worst = 0;
    test_fill(y, N, 1, -10, 10);
    run_loss(&rig, 1, 1, y, &target, grad, &value, NULL);
    for (int k = 0; k < N; k++) {
        sum += exp((double)y[k]);
        total += grad[k];
    }
    for (int k = 0; k < N - 1; k++)
        worst = fmax(worst, fabs(grad[k] / (exp((double)y[k]) / sum) - 1));
    cr_expect_leq(fabs(value - (log(sum) - y[target])), 1e-6);
    cr_expect_leq(fabs(total), 1e-6, "%g", total);
    /* An exponential, its argument, which is rounded at 20 (1e-6), and a product. */
    cr_expect_leq(worst, 1.5e-6, "%g", worst);
    free(y);
    free(grad);
    free(rig.attr);
}

Test(cross_entropy, a_target_out_of_range_fails_and_names_row_and_value)
{
    static const struct {
        int64_t value;
        char says[16];
    } bad[] = {{10, "10"}, {-1, "-1"}, {-100, "-100"}, {INT64_MIN, "-92233720"}};
    loss_rig rig = loss_of("cross_entropy", 1, (int64_t[]){10});
    for (size_t k = 0; k < COUNT(bad); k++) {
        float y[50] = {0}, grad[50];
        int64_t target[5] = {0, 9, 3, bad[k].value, 77};
        double value = 5;
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(run_loss(&rig, 5, 5, y, target, grad, &value, &err), GPP_EINVAL);
        cr_expect(strstr(err.msg, "cross_entropy") && strstr(err.msg, "row 3") &&
                      strstr(err.msg, bad[k].says) && strstr(err.msg, "0 ... 9"),
                  "%s", err.msg);
    }
    free(rig.attr);
}

Test(cross_entropy, a_sequence_counts_as_its_positions)
{
    enum { N = 4, T = 6, C = 9 };
    loss_rig sequence = loss_of("cross_entropy", 2, (int64_t[]){T, C});
    loss_rig single = loss_of("cross_entropy", 1, (int64_t[]){C});
    float y[N * T * C], grad[2][N * T * C];
    int64_t target[N * T];
    double value[2];
    test_fill(y, N * T * C, 8, -2, 2);
    for (int k = 0; k < N * T; k++)
        target[k] = k * 7 % C;
    run_loss(&sequence, N, N, y, target, grad[0], &value[0], NULL);
    run_loss(&single, N * T, N * T, y, target, grad[1], &value[1], NULL);
    cr_expect_eq(value[0], value[1], "%.17g, %.17g", value[0], value[1]);
    cr_expect(test_same(grad[0], grad[1], N * T * C));
    free(sequence.attr);
    free(single.attr);
}

Test(cross_entropy, a_target_out_of_range_in_a_sequence_is_named_by_row_and_position)
{
    loss_rig rig = loss_of("cross_entropy", 2, (int64_t[]){3, 4});
    float y[24] = {0};
    int64_t target[6] = {0, 1, 2, 3, 0, 4};
    double value;
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(run_loss(&rig, 2, 2, y, target, NULL, &value, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "row 1, position 2") && strstr(err.msg, "is 4"), "%s", err.msg);
    free(rig.attr);
}

/* --- what can be asked for -------------------------------------------------------------------- */

Test(losses, targets_have_the_type_and_shape_of_the_loss)
{
    loss_rig entropy = loss_of("cross_entropy", 1, (int64_t[]){10});
    loss_rig sequence = loss_of("cross_entropy", 2, (int64_t[]){7, 10});
    loss_rig square = loss_of("mse", 3, (int64_t[]){2, 3, 4});
    cr_expect_eq(entropy.target.dtype, GPP_I64);
    cr_expect_eq(entropy.target.rank, 0);
    cr_expect_eq(sequence.target.dtype, GPP_I64);
    cr_expect(sequence.target.rank == 1 && sequence.target.dim[0] == 7);
    cr_expect(gpp__desc_equal(&square.target, &square.y));
    free(entropy.attr);
    free(sequence.attr);
    free(square.attr);
}

Test(losses, what_is_not_supported_is_refused_with_a_reason)
{
    static const struct {
        char spec[32];
        gpp__desc y;
        gpp_status status;
        char says[24];
    } refused[] = {
        {"cross_entropy", {GPP_F32, 3, {4, 3, 5}, 0, 0}, GPP_ESHAPE, "(4, 3, 5)"},
        {"cross_entropy", {GPP_F32, 0, {0}, 0, 0}, GPP_ESHAPE, "(classes)"},
        {"cross_entropy", {GPP_I64, 1, {4}, 0, 0}, GPP_ESHAPE, "int64"},
        {"mse", {GPP_I64, 1, {4}, 0, 0}, GPP_ESHAPE, "int64"},
        {"mse reduction=none", {GPP_F32, 1, {4}, 0, 0}, GPP_EINVAL, "mean, sum"},
        {"cross_entropy weight=1", {GPP_F32, 1, {4}, 0, 0}, GPP_ENOENT, "reduction"},
    };
    for (size_t k = 0; k < COUNT(refused); k++) {
        gpp_error err = GPP_ERROR_INIT;
        loss_rig rig;
        cr_expect_eq(open_loss(&rig, refused[k].spec, &refused[k].y, &err), refused[k].status,
                     "%s: %s", refused[k].spec, err.msg);
        cr_expect(strstr(err.msg, refused[k].says), "%s", err.msg);
        free(rig.attr);
    }
}
