/*
 * tests/test_losses.c: losses of micro-batches against reference vectors, float64 formulas, numbers
 * of PyTorch's and central differences; losses of users.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "codelets/loss.h"
#include "codelets/user/loss.h"
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
    gpp__desc y, target, each;
    const float *weight;
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
    if (!status)
        status = rig->loss->target(rig->attr, y, &rig->target, err);
    if (!status)
        rig->loss->each(rig->attr, y, &rig->each);
    return status;
}

static loss_rig loss_of(const char *spec, int rank, const int64_t dim[])
{
    loss_rig rig;
    gpp_error err = GPP_ERROR_INIT;
    gpp__desc y = {.dtype = GPP_F32, .rank = rank};
    if (rank)
        memcpy(y.dim, dim, (size_t)rank * sizeof *dim);
    cr_assert_eq(open_loss(&rig, spec, &y, &err), GPP_OK, "%s: %s", spec, err.msg);
    return rig;
}

/* A micro-batch: rows row0 ... row0 + rows - 1 of a mini-batch whose first are at y and target. */
typedef struct part {
    int64_t row0, rows;
    double divisor; /* of the mini-batch */
    const float *y;
    const void *target;
    float *grad, *each; /* of the mini-batch; NULL: not wanted */
    gpp_error *err;
} part;

static double divisor_of(const loss_rig *rig, int64_t rows, const void *target)
{
    return rig->loss->divisor(rig->attr, &rig->y, rows, target, rig->weight);
}

static gpp_status run_part(const loss_rig *rig, const part *p, double *value)
{
    int64_t at = p->row0 * gpp__desc_count(&rig->y);
    gpp__loss_call call = {.attr = rig->attr,
                           .y_desc = &rig->y,
                           .target_desc = &rig->target,
                           .row0 = p->row0,
                           .rows = p->rows,
                           .divisor = p->divisor,
                           .weight = rig->weight,
                           .y = p->y + at,
                           .target = (const char *)p->target +
                                     (size_t)p->row0 * gpp__desc_bytes(&rig->target),
                           .grad_y = p->grad ? p->grad + at : NULL,
                           .each = p->each ? p->each + p->row0 * gpp__desc_count(&rig->each) : NULL,
                           .value = value,
                           .err = p->err};
    return rig->loss->run(&call);
}

/* The whole mini-batch at once. */
static gpp_status run_loss(const loss_rig *rig, int64_t rows, const float *y, const void *target,
                           float *grad, double *value, gpp_error *err)
{
    part all = {0, rows, divisor_of(rig, rows, target), y, target, grad, NULL, err};
    return run_part(rig, &all, value);
}

/* --- reference vectors ------------------------------------------------------------------------ */

/* cross_entropy 7, nll 2, mse, l1 and bce_with_logits 3 each, smooth_l1 1. */
#define VECTORS_KNOWN 19

/* A specification, without the remark that some of them end with. */
static const char *spec_of(const test_vector *v, char out[128])
{
    snprintf(out, 128, "%s", test_vector_word(v, "loss"));
    char *remark = strstr(out, " layout=");
    if (remark)
        *remark = '\0';
    return out;
}

/* Values of the file's array "loss": one, or one an element. */
static void check_values(const test_vector *v, const loss_rig *rig, int64_t rows, double value,
                         const float *each)
{
    const test_array *loss = test_vector_find(v, "loss");
    const float *want = loss->data;
    if (!strstr(test_vector_word(v, "loss"), "reduction=none")) {
        cr_expect_leq(fabs(value - (double)*want), 1e-6 * fabs((double)*want),
                      "%s: %.9g, want %.9g", v->file, value, (double)*want);
        return;
    }
    cr_assert_eq(loss->count, rows * gpp__desc_count(&rig->each), "%s", v->file);
    cr_expect_leq(test_distance(each, want, loss->count), 1e-5, "%s: unreduced", v->file);
}

/* Pieces of 1, 2, 3, ... rows: values add up, gradients and unreduced losses are the same bits. */
static void check_pieces(const test_vector *v, const loss_rig *rig, part all, double whole)
{
    int64_t count = all.rows * gpp__desc_count(&rig->y), rows = all.rows;
    int64_t losses = rows * gpp__desc_count(&rig->each);
    const float *grad = all.grad, *each = all.each;
    double sum = 0;
    all.grad = test_room((size_t)count * sizeof(float));
    all.each = test_room((size_t)losses * sizeof(float));
    for (int64_t piece = 1; all.row0 < rows; piece++) {
        double value;
        all.rows = rows - all.row0 < piece ? rows - all.row0 : piece;
        cr_assert_eq(run_part(rig, &all, &value), GPP_OK, "%s", v->file);
        sum += value;
        all.row0 += all.rows;
    }
    cr_expect_leq(fabs(sum - whole), 1e-6 * fabs(whole), "%s: %.9g in pieces, %.9g at once",
                  v->file, sum, whole);
    cr_expect(test_same(all.grad, grad, count), "%s: gradient in pieces", v->file);
    cr_expect(test_same(all.each, each, losses), "%s: unreduced in pieces", v->file);
    free(all.grad);
    free(all.each);
}

static void run_loss_vector(const test_vector *v)
{
    char spec[128];
    const test_array *x = test_vector_find(v, "x"), *target = test_vector_find(v, "target");
    const test_array *want = test_vector_find(v, "grad.x"), *weight = test_vector_find(v, "weight");
    cr_assert(x && target && want && test_vector_find(v, "loss"), "%s", v->file);
    loss_rig rig = loss_of(spec_of(v, spec), x->rank - 1, x->dim + 1);
    rig.weight = weight ? weight->data : NULL;
    int64_t rows = x->dim[0];
    part all = {0,    rows, divisor_of(&rig, rows, target->data), x->data, target->data, NULL,
                NULL, NULL};
    all.grad = test_room((size_t)x->count * sizeof(float));
    all.each = test_room((size_t)(rows * gpp__desc_count(&rig.each)) * sizeof(float));
    double value;
    cr_assert_eq(rig.target.dtype, target->dtype, "%s", v->file);
    cr_assert_eq(rows * gpp__desc_count(&rig.target), target->count, "%s", v->file);
    cr_assert(!weight || rig.loss->classes(rig.attr, &rig.y) == weight->count, "%s", v->file);
    cr_assert_eq(run_part(&rig, &all, &value), GPP_OK, "%s", v->file);
    check_values(v, &rig, rows, value, all.each);
    cr_expect_leq(test_distance(all.grad, want->data, x->count), 1e-5, "%s: gradient", v->file);
    check_pieces(v, &rig, all, value);
    free(all.grad);
    free(all.each);
    free(rig.attr);
}

Test(losses, reference_vectors_are_met_within_1e_5_of_the_largest_value)
{
    char **names, why[128];
    int count = test_vectors_list(&names), run = 0;
    if (count < 0) {
        fprintf(stderr, "loss vectors: no folder, at least %d not run\n", VECTORS_KNOWN);
        cr_skip_test("no folder of reference vectors");
    }
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        if (strcmp(test_vector_word(v, "kind"), "loss") == 0) {
            run_loss_vector(v);
            run++;
        }
        test_vector_close(v);
    }
    fprintf(stderr, "loss vectors: %d run\n", run);
    cr_expect_geq(run, VECTORS_KNOWN, "only %d vectors were run", run);
    test_vectors_free(names, count);
}

/* --- every loss ------------------------------------------------------------------------------- */

typedef struct loss_case {
    char spec[64];
    int rank;
    int64_t dim[4], rows;
    int axis; /* dimension of the classes */
    bool weights, ignoring;
    double extra; /* label_smoothing or beta */
    char why[40];
} loss_case;

/* clang-format off */
static const loss_case cases[] = {
    {.spec = "cross_entropy", .rank = 1, .dim = {10}, .rows = 8, .why = "as in most networks"},
    {.spec = "cross_entropy reduction=sum", .rank = 1, .dim = {3}, .rows = 5, .why = "sum"},
    {.spec = "cross_entropy reduction=none", .rank = 1, .dim = {3}, .rows = 5, .why = "none"},
    {.spec = "cross_entropy", .rank = 1, .dim = {1}, .rows = 4, .why = "one class"},
    {.spec = "cross_entropy", .rank = 1, .dim = {2}, .rows = 3, .why = "two classes"},
    {.spec = "cross_entropy", .rank = 1, .dim = {255}, .rows = 3, .why = "one less than a chunk"},
    {.spec = "cross_entropy", .rank = 1, .dim = {256}, .rows = 3, .why = "a chunk"},
    {.spec = "cross_entropy reduction=sum", .rank = 1, .dim = {257}, .rows = 3,
     .why = "one more than a chunk"},
    {.spec = "cross_entropy", .rank = 1, .dim = {1777}, .rows = 3, .why = "several chunks"},
    {.spec = "cross_entropy", .rank = 2, .dim = {8, 13}, .rows = 5, .axis = 1,
     .why = "a sequence of positions"},
    {.spec = "cross_entropy reduction=sum", .rank = 2, .dim = {3, 300}, .rows = 4, .axis = 1,
     .why = "a sequence, sum"},
    {.spec = "cross_entropy", .rank = 2, .dim = {1, 4}, .rows = 3, .axis = 1,
     .why = "a sequence of one"},
    {.spec = "cross_entropy classes=first", .rank = 2, .dim = {5, 7}, .rows = 4,
     .why = "a sequence, classes first"},
    {.spec = "cross_entropy", .rank = 3, .dim = {4, 3, 5}, .rows = 3, .why = "an image"},
    {.spec = "cross_entropy reduction=sum", .rank = 3, .dim = {3, 8, 8}, .rows = 3, .weights = true,
     .ignoring = true, .why = "an image, a block"},
    {.spec = "cross_entropy", .rank = 3, .dim = {3, 5, 13}, .rows = 3, .weights = true,
     .ignoring = true, .why = "an image, one more than a block"},
    {.spec = "cross_entropy label_smoothing=0.2", .rank = 3, .dim = {6, 3, 30}, .rows = 3,
     .weights = true, .ignoring = true, .extra = 0.2, .why = "an image, all"},
    {.spec = "cross_entropy label_smoothing=0.2", .rank = 3, .dim = {6, 3, 3}, .rows = 3,
     .extra = 0.2, .why = "image, smooth"},
    {.spec = "cross_entropy classes=last", .rank = 3, .dim = {3, 5, 4}, .rows = 3, .axis = 2,
     .ignoring = true, .why = "an image, classes last"},
    {.spec = "cross_entropy", .rank = 4, .dim = {3, 2, 3, 2}, .rows = 3, .why = "a volume"},
    {.spec = "cross_entropy", .rank = 1, .dim = {7}, .rows = 9, .weights = true, .why = "weights"},
    {.spec = "cross_entropy", .rank = 1, .dim = {7}, .rows = 9, .ignoring = true,
     .why = "ignored rows"},
    {.spec = "cross_entropy reduction=sum", .rank = 1, .dim = {7}, .rows = 9, .weights = true,
     .ignoring = true, .why = "weights, ignored rows, sum"},
    {.spec = "cross_entropy label_smoothing=0.1", .rank = 1, .dim = {300}, .rows = 5, .extra = 0.1,
     .why = "smoothing"},
    {.spec = "cross_entropy label_smoothing=1", .rank = 1, .dim = {5}, .rows = 5, .weights = true,
     .extra = 1, .why = "targets do not matter"},
    {.spec = "cross_entropy label_smoothing=0.3", .rank = 1, .dim = {5}, .rows = 9, .weights = true,
     .ignoring = true, .extra = 0.3, .why = "all there is"},
    {.spec = "cross_entropy label_smoothing=0.3", .rank = 2, .dim = {9, 300}, .rows = 3, .axis = 1,
     .weights = true, .ignoring = true, .extra = 0.3, .why = "a sequence, all"},
    {.spec = "nll", .rank = 1, .dim = {7}, .rows = 6, .why = "as in most networks"},
    {.spec = "nll", .rank = 1, .dim = {7}, .rows = 9, .weights = true, .ignoring = true,
     .why = "weights, ignored rows"},
    {.spec = "nll reduction=sum", .rank = 2, .dim = {6, 4}, .rows = 3, .axis = 1, .weights = true,
     .ignoring = true, .why = "a sequence"},
    {.spec = "nll", .rank = 3, .dim = {4, 3, 5}, .rows = 3, .weights = true, .ignoring = true,
     .why = "an image"},
    {.spec = "mse", .rank = 1, .dim = {7}, .rows = 6, .why = "vector"},
    {.spec = "mse reduction=sum", .rank = 3, .dim = {3, 4, 5}, .rows = 5, .why = "image"},
    {.spec = "mse reduction=none", .rank = 2, .dim = {4, 5}, .rows = 5, .why = "none"},
    {.spec = "mse", .dim = {0}, .rows = 5, .why = "one number a row"},
    {.spec = "mse", .rank = 1, .dim = {700}, .rows = 4, .why = "several chunks"},
    {.spec = "l1", .rank = 1, .dim = {7}, .rows = 6, .why = "vector"},
    {.spec = "l1 reduction=sum", .rank = 2, .dim = {3, 100}, .rows = 5,
     .why = "several chunks, sum"},
    {.spec = "smooth_l1", .rank = 1, .dim = {9}, .rows = 6, .extra = 1, .why = "vector"},
    {.spec = "smooth_l1 beta=0.3 reduction=sum", .rank = 2, .dim = {3, 100}, .rows = 5,
     .extra = 0.3, .why = "small beta"},
    {.spec = "smooth_l1 beta=100", .rank = 1, .dim = {9}, .rows = 6, .extra = 100,
     .why = "no far ones"},
    {.spec = "smooth_l1 beta=0", .rank = 1, .dim = {9}, .rows = 6, .why = "no near ones"},
    {.spec = "bce_with_logits", .rank = 1, .dim = {7}, .rows = 6, .why = "vector"},
    {.spec = "bce_with_logits reduction=sum", .rank = 3, .dim = {1, 20, 20}, .rows = 3,
     .why = "image, sum"},
    {.spec = "bce_with_logits reduction=none", .dim = {0}, .rows = 5, .why = "one number a row"},
};
/* clang-format on */

enum { IGNORED = -100 };

/* Outputs and targets for a case, and room for gradients. */
typedef struct loss_data {
    loss_rig rig;
    int64_t row, count; /* elements of an output row, of all */
    int64_t classes;    /* 1 for losses without */
    int64_t inner;      /* elements from one class to the next */
    int64_t losses;     /* unreduced ones */
    bool of_classes;
    float *y, *grad, *each, *reals, *weight;
    int64_t *labels;
    const void *target;
} loss_data;

static void fill_data(loss_data *d, const loss_case *c)
{
    test_fill(d->y, d->count, 21, -3, 3);
    test_fill(d->reals, d->count, 22, -3, 3);
    test_fill(d->weight, d->classes, 23, 0.25, 2);
    for (int64_t k = 0; k < d->losses && d->of_classes; k++) {
        d->labels[k] = (int64_t)((double)(d->reals[k] + 3) / 6 * (double)d->classes) % d->classes;
        if (c->ignoring && k % 3 == 1)
            d->labels[k] = IGNORED;
    }
}

static loss_data data_of(const loss_case *c)
{
    loss_data d = {.rig = loss_of(c->spec, c->rank, c->dim), .classes = 1, .inner = 1};
    d.of_classes = d.rig.target.dtype == GPP_I64;
    d.row = gpp__desc_count(&d.rig.y);
    d.count = d.row * c->rows;
    d.losses = gpp__desc_count(&d.rig.each) * c->rows;
    if (d.of_classes) {
        d.classes = c->dim[c->axis];
        for (int k = c->axis + 1; k < c->rank; k++)
            d.inner *= c->dim[k];
    }
    d.y = test_room((size_t)d.count * sizeof(float));
    d.grad = test_room((size_t)d.count * sizeof(float));
    d.each = test_room((size_t)d.losses * sizeof(float));
    d.reals = test_room((size_t)d.count * sizeof(float));
    d.weight = test_room((size_t)d.classes * sizeof(float));
    d.labels = test_room((size_t)d.losses * sizeof(int64_t));
    fill_data(&d, c);
    d.target = d.of_classes ? (const void *)d.labels : d.reals;
    d.rig.weight = c->weights ? d.weight : NULL;
    return d;
}

static void data_free(loss_data *d)
{
    free(d->y);
    free(d->grad);
    free(d->each);
    free(d->reals);
    free(d->weight);
    free(d->labels);
    free(d->rig.attr);
}

static part all_of(const loss_data *d, int64_t rows)
{
    return (part){0, rows, divisor_of(&d->rig, rows, d->target), d->y, d->target, NULL, NULL, NULL};
}

static double value_of(const loss_data *d, int64_t rows)
{
    double value;
    part all = all_of(d, rows);
    cr_assert_eq(run_part(&d->rig, &all, &value), GPP_OK);
    return value;
}

Test(losses, every_loss_has_cases_here)
{
    for (const gpp_loss *const *loss = gpp__losses; *loss; loss++) {
        int found = 0;
        size_t length = strlen((*loss)->name);
        for (size_t k = 0; k < COUNT(cases); k++)
            found += strncmp(cases[k].spec, (*loss)->name, length) == 0 &&
                     strchr(" ", cases[k].spec[length]) != NULL;
        cr_expect_gt(found, 0, "%s", (*loss)->name);
    }
}

/* The formulas at the top of the losses' files, in float64. */
static double element_loss(const loss_case *c, double y, double t)
{
    double off = fabs(y - t);
    if (strncmp(c->spec, "mse", 3) == 0)
        return off * off;
    if (strncmp(c->spec, "l1", 2) == 0)
        return off;
    if (strncmp(c->spec, "smooth_l1", 9) == 0)
        return off < c->extra ? off * off / (2 * c->extra) : off - c->extra / 2;
    double p = 1 / (1 + exp(-y));
    return -t * log(p) - (1 - t) * log(1 - p);
}

static double score(const loss_data *d, int64_t position, int64_t class)
{
    return d->y[(position / d->inner * d->classes + class) * d->inner + position % d->inner];
}

static double class_loss(const loss_data *d, const loss_case *c, int64_t k)
{
    int64_t t = d->labels[k];
    double sum = 0, smooth = 0, share = c->extra / (double)d->classes;
    if (t == IGNORED)
        return 0;
    double weight = c->weights ? (double)d->weight[t] : 1;
    if (strncmp(c->spec, "nll", 3) == 0)
        return -weight * score(d, k, t);
    for (int64_t i = 0; i < d->classes; i++)
        sum += exp(score(d, k, i));
    for (int64_t i = 0; i < d->classes; i++)
        smooth += share * (c->weights ? (double)d->weight[i] : 1) * (log(sum) - score(d, k, i));
    return (1 - c->extra) * weight * (log(sum) - score(d, k, t)) + smooth;
}

static double reference_divisor(const loss_data *d, const loss_case *c)
{
    double sum = 0;
    if (strstr(c->spec, "sum") || strstr(c->spec, "none"))
        return 1;
    for (int64_t k = 0; k < d->losses; k++)
        if (!d->of_classes || d->labels[k] != IGNORED)
            sum += d->of_classes && c->weights ? (double)d->weight[d->labels[k]] : 1;
    return sum;
}

static void expect_formula(const loss_case *c)
{
    loss_data d = data_of(c);
    part all = all_of(&d, c->rows);
    double value, want = 0, size = 0;
    all.each = d.each;
    cr_assert_eq(run_part(&d.rig, &all, &value), GPP_OK, "%s", c->spec);
    for (int64_t k = 0; k < d.losses; k++) {
        double l = d.of_classes ? class_loss(&d, c, k)
                                : element_loss(c, (double)d.y[k], (double)d.reals[k]);
        want += l;
        size += fabs(l);
        cr_expect_leq(fabs((double)d.each[k] - l), 3e-7 * fabs(l) + 1e-7,
                      "%s, %s: loss %d is %.9g, want %.9g", c->spec, c->why, (int)k,
                      (double)d.each[k], l);
    }
    /* Terms are sums of float32 numbers with relative errors of 1e-7. */
    double divisor = reference_divisor(&d, c);
    cr_expect_float_eq(all.divisor, divisor, 1e-12 * divisor, "%s, %s: divisor %.17g", c->spec,
                       c->why, all.divisor);
    cr_expect_leq(fabs(value - want / divisor), 3e-7 * size / divisor + 1e-15,
                  "%s, %s: %.9g, want %.9g", c->spec, c->why, value, want / divisor);
    data_free(&d);
}

Test(losses, values_are_those_of_the_formula)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        expect_formula(&cases[k]);
}

/*
 * Along random signs u, step h: truncation h²/6 times a third derivative that is no larger than the
 * gradient's terms, 2e-7 for h = 1e-3; rounding 1e-7 |value| / h = 1e-4 |value|, and the value is
 * of the order of the sum of the gradient's terms. Where a derivative jumps, no element is within h
 * of the jump.
 */
static void expect_slope(const loss_case *c)
{
    const float step = 0x1p-10f;
    loss_data d = data_of(c);
    float *u = test_room((size_t)d.count * sizeof(float)), *middle = d.y;
    double value;
    part all = all_of(&d, c->rows);
    all.grad = d.grad;
    run_part(&d.rig, &all, &value);
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

/* Pieces of 2 rows and a last one. */
static void expect_sum_of_pieces(const loss_case *c)
{
    loss_data d = data_of(c);
    part all = all_of(&d, c->rows), piece = all;
    double whole, sum = 0;
    all.grad = d.grad;
    all.each = d.each;
    run_part(&d.rig, &all, &whole);
    piece.grad = test_room((size_t)d.count * sizeof(float));
    piece.each = test_room((size_t)d.losses * sizeof(float));
    for (; piece.row0 < c->rows; piece.row0 += piece.rows) {
        double value;
        piece.rows = c->rows - piece.row0 < 2 ? c->rows - piece.row0 : 2;
        run_part(&d.rig, &piece, &value);
        sum += value;
    }
    /* Sums of doubles in another order; gradients are those of the same rows. */
    cr_expect_leq(fabs(sum - whole), 1e-13 * fabs(whole), "%s, %s: %.17g, %.17g", c->spec, c->why,
                  sum, whole);
    cr_expect(test_same(piece.grad, d.grad, d.count), "%s, %s", c->spec, c->why);
    cr_expect(test_same(piece.each, d.each, d.losses), "%s, %s", c->spec, c->why);
    free(piece.grad);
    free(piece.each);
    data_free(&d);
}

Test(losses, parts_of_uneven_micro_batches_add_up_to_the_whole)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        expect_sum_of_pieces(&cases[k]);
}

Test(losses, what_is_not_wanted_changes_nothing)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        loss_data d = data_of(&cases[k]);
        float *grad = test_room((size_t)d.count * sizeof(float));
        double value[3];
        part all = all_of(&d, cases[k].rows), alone = all;
        all.grad = d.grad;
        all.each = d.each;
        alone.grad = grad;
        run_part(&d.rig, &all, &value[0]);
        run_part(&d.rig, &alone, &value[1]);
        value[2] = value_of(&d, cases[k].rows);
        cr_expect(value[0] == value[1] && value[0] == value[2], "%s, %s", cases[k].spec,
                  cases[k].why);
        cr_expect(test_same(grad, d.grad, d.count), "%s, %s", cases[k].spec, cases[k].why);
        free(grad);
        data_free(&d);
    }
}

Test(losses, no_rows_give_a_mean_of_nan_and_a_sum_of_0)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        loss_data d = data_of(&cases[k]);
        double batch = value_of(&d, 0), value = 7;
        if (strstr(cases[k].spec, "sum") || strstr(cases[k].spec, "none"))
            cr_expect_eq(batch, 0, "%s", cases[k].spec);
        else
            cr_expect(isnan(batch), "%s", cases[k].spec);
        part empty = all_of(&d, cases[k].rows);
        empty.rows = 0;
        run_part(&d.rig, &empty, &value);
        cr_expect_eq(value, 0, "%s: an empty micro-batch of a batch with rows", cases[k].spec);
        data_free(&d);
    }
}

/* --- element by element ----------------------------------------------------------------------- */

Test(losses, single_elements_have_the_loss_and_the_slope_that_pytorch_gives)
{
    static const struct {
        char spec[40];
        float y, t;
        double value;
        float grad;
        char why[40];
    } elements[] = {
        {"l1", 2, 2, 0, 0, "equal"},
        {"l1", 2, 5, 3, -1, "below"},
        {"l1", 0x1p-149f, 0, 0x1p-149, 1, "the smallest difference"},
        {"l1", -INFINITY, 0, INFINITY, -1, "infinite"},
        {"smooth_l1 beta=0", 2, 2, 0, 0, "equal"},
        {"smooth_l1 beta=0", -1, 2, 3, -1, "as l1"},
        {"smooth_l1 beta=0", 0x1p-149f, 0, 0x1p-150, 1, "the smallest difference"},
        {"smooth_l1 beta=0.5", 1, 0, 0.75, 1, "far"},
        {"smooth_l1 beta=0.5", 0.5, 0, 0.25, 1, "at the border"},
        {"smooth_l1 beta=0.5", -0.25, 0, 0.0625, -0.5, "near"},
        {"smooth_l1 beta=2", 2, 0, 1, 1, "at the border"},
        {"smooth_l1 beta=2", 0.5, 0, 0.0625, 0.25, "near"},
        {"bce_with_logits", 0, 0, 0.693147180559945, 0.5, "undecided"},
        {"bce_with_logits", 0, 0.5, 0.693147180559945, 0, "undecided, rightly"},
        {"bce_with_logits", 1e4f, 0, 1e4, 1, "sure and wrong"},
        {"bce_with_logits", 1e4f, 1, 0, 0, "sure and right"},
        {"bce_with_logits", -1e4f, 0, 0, 0, "sure and right"},
        {"bce_with_logits", -1e4f, 0.5, 5e3, -0.5, "sure where nobody can be"},
        {"bce_with_logits", -INFINITY, 0.5f, INFINITY, -0.5, "infinite"},
        {"bce_with_logits", -INFINITY, 1, INFINITY, -1, "infinite"},
        {"bce_with_logits", 30, 1, 9.35762296883973e-14, -9.357623e-14f, "nearly right"},
        {"bce_with_logits", -30, 0, 9.35762296883973e-14, 9.357623e-14f, "nearly right"},
        {"mse", 3e20f, -3e20f, 3.6e41, 1.2e21f, "a square beyond float32"},
    };
    for (size_t k = 0; k < COUNT(elements); k++) {
        loss_rig rig = loss_of(elements[k].spec, 0, NULL);
        float grad;
        double value, want = elements[k].value, slope = (double)elements[k].grad;
        run_loss(&rig, 1, &elements[k].y, &elements[k].t, &grad, &value, NULL);
        /* One float32 exponential, or one rounding. */
        cr_expect(value == want || fabs(value - want) <= 2e-7 * fabs(want), "%s, %s: %.9g",
                  elements[k].spec, elements[k].why, value);
        cr_expect_leq(fabs((double)grad - slope), 2e-7 * fabs(slope), "%s, %s: slope %.9g",
                      elements[k].spec, elements[k].why, (double)grad);
        free(rig.attr);
    }
}

Test(losses, what_is_no_number_makes_the_loss_none)
{
    static const char specs[][32] = {"mse", "l1", "smooth_l1", "smooth_l1 beta=0",
                                     "bce_with_logits"};
    for (size_t k = 0; k < COUNT(specs); k++)
        for (int at = 0; at < 300; at += 7) {
            loss_rig rig = loss_of(specs[k], 1, (int64_t[]){300});
            float y[300] = {0}, t[300] = {0}, grad[300];
            double value;
            y[at] = NAN;
            run_loss(&rig, 1, y, t, grad, &value, NULL);
            cr_expect(isnan(value) && isnan(grad[at]), "%s at %d: %g, %g", specs[k], at, value,
                      (double)grad[at]);
            cr_expect(!isnan(grad[at ? 0 : 1]), "%s", specs[k]);
            free(rig.attr);
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
    loss_rig image = loss_of("cross_entropy reduction=sum", 3, (int64_t[]){3, 1, 2});
    for (size_t k = 0; k < COUNT(rows); k++) {
        float grad[6], y[6];
        double value, twice;
        int64_t target[2] = {rows[k].target, rows[k].target};
        for (int c = 0; c < 6; c++)
            y[c] = rows[k].y[c / 2];
        run_loss(&image, 1, y, target, grad, &twice, NULL);
        for (int c = 0; c < 6; c++)
            cr_expect_float_eq(grad[c], rows[k].grad[c / 2], 1e-6, "%s, image, class %d: %g",
                               rows[k].why, c / 2, (double)grad[c]);
        run_loss(&rig, 1, rows[k].y, &rows[k].target, grad, &value, NULL);
        cr_expect_leq(fabs(value - rows[k].value), 1e-7 * (1 + rows[k].value), "%s: %.9g",
                      rows[k].why, value);
        cr_expect_leq(fabs(twice - 2 * value), 1e-7 * (1 + value), "%s: %.9g", rows[k].why, twice);
        for (int c = 0; c < 3; c++)
            cr_expect_float_eq(grad[c], rows[k].grad[c], 1e-6, "%s, class %d: %g", rows[k].why, c,
                               (double)grad[c]);
    }
    free(rig.attr);
    free(image.attr);
}

Test(cross_entropy, a_score_that_is_no_number_makes_the_loss_none)
{
    static const float bad[] = {NAN, INFINITY};
    loss_rig rig = loss_of("cross_entropy", 1, (int64_t[]){40});
    loss_rig image = loss_of("cross_entropy classes=first", 2, (int64_t[]){10, 4});
    for (size_t k = 0; k < COUNT(bad); k++)
        for (int at = 0; at < 40; at++) {
            float y[40] = {0}, grad[40];
            int64_t target[4] = {3, 3, 3, 3};
            double value;
            y[at] = bad[k];
            run_loss(&rig, 1, y, target, grad, &value, NULL);
            cr_expect(isnan(value), "%g at %d gives %g", (double)bad[k], at, value);
            cr_expect(isnan(grad[at]), "%g at %d", (double)bad[k], at);
            run_loss(&image, 1, y, target, grad, &value, NULL);
            cr_expect(isnan(value), "image: %g at %d gives %g", (double)bad[k], at, value);
            cr_expect(isnan(grad[at]), "image: %g at %d", (double)bad[k], at);
        }
    free(rig.attr);
    free(image.attr);
}

Test(cross_entropy, gradients_of_50000_classes_sum_to_0_and_match_float64)
{
    enum { N = 50000 };
    const int64_t target = 49999;
    loss_rig rig = loss_of("cross_entropy reduction=sum", 1, (int64_t[]){N});
    float *y = test_room(N * sizeof(float)), *grad = test_room(N * sizeof(float));
    double value, sum = 0, total = 0, worst = 0;
    test_fill(y, N, 1, -10, 10);
    run_loss(&rig, 1, y, &target, grad, &value, NULL);
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

Test(cross_entropy, smoothing_and_weights_and_ignored_rows_together_give_pytorchs_numbers)
{
    static const float y[12] = {1, -2, 0.5f, 0.25f, 3, -1, 2, 2, -0.5f, -1, 0.75f, 1.5f};
    static const float weight[3] = {0.5f, 2, 1.25f};
    static const int64_t target[4] = {2, 0, -100, 1};
    static const float losses[4] = {1.572412795f, 1.576373531f, 0, 2.199410482f};
    static const struct {
        char spec[64];
        double value;
        float scale; /* of the gradient of the sum */
    } reductions[] = {
        {"cross_entropy label_smoothing=0.2", 1.426185815, 1 / 3.75f},
        {"cross_entropy label_smoothing=0.2 reduction=sum", 5.348196808, 1},
        {"cross_entropy label_smoothing=0.2 reduction=none", 5.348196808, 1},
    };
    static const float slopes[12] = {0.721352787f,
                                     -0.095759724f,
                                     -0.625593063f,
                                     -0.394937991f,
                                     0.467270874f,
                                     -0.072332884f,
                                     0,
                                     0,
                                     0,
                                     0.064358516f,
                                     -1.171155553f,
                                     1.106797037f};
    for (size_t k = 0; k < COUNT(reductions); k++) {
        loss_rig rig = loss_of(reductions[k].spec, 1, (int64_t[]){3});
        float grad[12], each[4], want[12];
        double value;
        rig.weight = weight;
        part all = {0, 4, divisor_of(&rig, 4, target), y, target, grad, each, NULL};
        cr_assert_eq(run_part(&rig, &all, &value), GPP_OK);
        for (int e = 0; e < 12; e++)
            want[e] = slopes[e] * reductions[k].scale;
        /* Numbers above have 9 digits, exponentials 7. */
        cr_expect_leq(fabs(value - reductions[k].value), 3e-7 * value, "%s: %.10g",
                      reductions[k].spec, value);
        cr_expect_leq(test_distance(each, losses, 4), 3e-7, "%s", reductions[k].spec);
        cr_expect_leq(test_distance(grad, want, 12), 3e-7, "%s", reductions[k].spec);
        free(rig.attr);
    }
}

Test(cross_entropy, positions_side_by_side_and_one_after_the_other_give_the_same)
{
    enum { N = 3, C = 6, P = 150 };
    static float there[N * C * P], across[N * C * P], grad[2][N * C * P], back[N * C * P];
    static int64_t target[N * P];
    loss_rig last = loss_of("cross_entropy label_smoothing=0.1", 2, (int64_t[]){P, C});
    loss_rig first =
        loss_of("cross_entropy label_smoothing=0.1 classes=first", 2, (int64_t[]){C, P});
    double value[2];
    test_fill(there, N * C * P, 4, -4, 4);
    for (int n = 0; n < N; n++)
        for (int p = 0; p < P; p++)
            for (int c = 0; c < C; c++)
                across[(n * C + c) * P + p] = there[(n * P + p) * C + c];
    for (int k = 0; k < N * P; k++)
        target[k] = k % 5 ? k * 7 % C : -100;
    run_loss(&last, N, there, target, grad[0], &value[0], NULL);
    run_loss(&first, N, across, target, grad[1], &value[1], NULL);
    for (int n = 0; n < N; n++)
        for (int p = 0; p < P; p++)
            for (int c = 0; c < C; c++)
                back[(n * P + p) * C + c] = grad[1][(n * C + c) * P + p];
    /* Six float32 exponentials, added in two ways. */
    cr_expect_leq(fabs(value[0] - value[1]), 2e-7 * value[0], "%.9g, %.9g", value[0], value[1]);
    cr_expect_leq(test_distance(back, grad[0], N * C * P), 3e-7);
    free(last.attr);
    free(first.attr);
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
    run_loss(&sequence, N, y, target, grad[0], &value[0], NULL);
    run_loss(&single, N * T, y, target, grad[1], &value[1], NULL);
    cr_expect_eq(value[0], value[1], "%.17g, %.17g", value[0], value[1]);
    cr_expect(test_same(grad[0], grad[1], N * T * C));
    free(sequence.attr);
    free(single.attr);
}

/* --- classes: targets ------------------------------------------------------------------------- */

Test(classes, a_target_out_of_range_fails_and_names_row_position_and_value)
{
    static const struct {
        char spec[40];
        int rank;
        int64_t dim[3], positions;
        int64_t at, value;
        char row[32], is[32], range[16];
    } bad[] = {
        {"cross_entropy", 1, {10}, 1, 3, 10, "row 7 ", " is 10,", "0 ... 9"},
        {"cross_entropy", 1, {10}, 1, 0, -1, "row 4 ", " is -1,", "0 ... 9"},
        {"cross_entropy ignore_index=-1", 1, {10}, 1, 4, -100, "row 8 ", " is -100,", "0 ... 9"},
        {"cross_entropy", 1, {10}, 1, 1, INT64_MIN, "row 5 ", " is -9223372036854775808,", "0"},
        {"cross_entropy", 2, {3, 4}, 3, 5, 4, "row 5, position 2,", " is 4,", "0 ... 3"},
        {"cross_entropy", 3, {4, 2, 3}, 6, 9, 4, "row 5, position 3,", " is 4,", "0 ... 3"},
        {"nll", 1, {10}, 1, 2, 10, "row 6 ", " is 10,", "0 ... 9"},
        {"nll", 3, {2, 2, 3}, 6, 7, 2, "row 5, position 1,", " is 2,", "0 ... 1"},
    };
    for (size_t k = 0; k < COUNT(bad); k++) {
        loss_rig rig = loss_of(bad[k].spec, bad[k].rank, bad[k].dim);
        float y[9 * 24] = {0}, grad[9 * 24];
        int64_t target[9 * 6] = {0};
        double value = 5;
        gpp_error err = GPP_ERROR_INIT;
        target[4 * bad[k].positions + bad[k].at] = bad[k].value;
        target[9 * bad[k].positions - 1] = bad[k].at == 4 ? bad[k].value : 77;
        part last = {4, 5, 1, y, target, grad, NULL, &err};
        cr_expect_eq(run_part(&rig, &last, &value), GPP_EINVAL, "%s", bad[k].spec);
        cr_expect(strstr(err.msg, rig.loss->name) && strstr(err.msg, bad[k].row) &&
                      strstr(err.msg, bad[k].is) && strstr(err.msg, bad[k].range),
                  "%s: %s", bad[k].spec, err.msg);
        free(rig.attr);
    }
}

Test(classes, a_target_out_of_range_adds_nothing_to_the_divisor)
{
    static const int64_t target[5] = {0, 7, -3, -100, 2};
    static const float weight[3] = {0.5f, 8, 0.25f};
    loss_rig rig = loss_of("nll", 1, (int64_t[]){3});
    cr_expect_eq(divisor_of(&rig, 5, target), 2);
    rig.weight = weight;
    cr_expect_eq(divisor_of(&rig, 5, target), 0.75);
    free(rig.attr);
}

Test(classes, ignored_positions_have_no_loss_and_no_gradient_whatever_their_scores)
{
    static const char specs[][64] = {"cross_entropy",
                                     "cross_entropy label_smoothing=0.5",
                                     "cross_entropy classes=first",
                                     "nll",
                                     "nll classes=first",
                                     "cross_entropy classes=first label_smoothing=0.5"};
    for (size_t k = 0; k < COUNT(specs); k++) {
        loss_rig rig = loss_of(specs[k], 2, (int64_t[]){3, 3});
        bool first = strstr(specs[k], "first");
        int64_t target[3] = {1, -100, 2};
        float y[9] = {0}, grad[9], each[3];
        double value;
        for (int c = 0; c < 3; c++)
            y[first ? c * 3 + 1 : 3 + c] = c ? NAN : INFINITY;
        part all = {0, 1, divisor_of(&rig, 1, target), y, target, grad, each, NULL};
        cr_assert_eq(run_part(&rig, &all, &value), GPP_OK);
        cr_expect_eq(all.divisor, 2, "%s", specs[k]);
        cr_expect(isfinite(value) && each[1] == 0, "%s: %g", specs[k], value);
        for (int c = 0; c < 3; c++)
            cr_expect_eq(grad[first ? c * 3 + 1 : 3 + c], 0, "%s, class %d", specs[k], c);
        cr_expect_neq(grad[first ? 3 : 1], 0, "%s", specs[k]);
        free(rig.attr);
    }
}

Test(classes, a_mean_over_ignored_targets_alone_is_nan_and_has_no_gradient)
{
    static const char specs[][64] = {"cross_entropy", "cross_entropy label_smoothing=0.5", "nll",
                                     "cross_entropy reduction=sum", "nll classes=first"};
    for (size_t k = 0; k < COUNT(specs); k++) {
        loss_rig rig = loss_of(specs[k], 2, (int64_t[]){3, 3});
        int64_t target[6] = {-100, -100, -100, -100, -100, -100};
        float y[18] = {1, 2, 3}, grad[18];
        double value;
        run_loss(&rig, 2, y, target, grad, &value, NULL);
        cr_expect(strstr(specs[k], "sum") ? value == 0 : isnan(value), "%s: %g", specs[k], value);
        for (int e = 0; e < 18; e++)
            cr_expect_eq(grad[e], 0, "%s at %d: %g", specs[k], e, (double)grad[e]);
        free(rig.attr);
    }
}

Test(classes, a_class_can_be_the_one_that_is_ignored)
{
    static const float y[6] = {1, 2, 3, 1, 2, 3};
    loss_rig rig = loss_of("cross_entropy ignore_index=1", 1, (int64_t[]){3});
    int64_t target[2] = {1, 2};
    float grad[6];
    double value;
    run_loss(&rig, 2, y, target, grad, &value, NULL);
    /* log(1 + e^-1 + e^-2) */
    cr_expect_leq(fabs(value - 0.407605964444380), 1e-7, "%.9g", value);
    cr_expect(grad[0] == 0 && grad[1] == 0 && grad[2] == 0);
    free(rig.attr);
}

Test(classes, the_dimension_that_counts_classes_is_the_one_documented)
{
    static const struct {
        char spec[40];
        int rank;
        int64_t dim[4], classes;
        int target_rank;
        int64_t target[3];
        char why[40];
    } shapes[] = {
        {"cross_entropy", 1, {10}, 10, 0, {0}, "scores of one position"},
        {"cross_entropy", 2, {8, 13}, 13, 1, {8}, "a sequence: last"},
        {"cross_entropy classes=last", 2, {8, 13}, 13, 1, {8}, "the same, said"},
        {"cross_entropy classes=first", 2, {8, 13}, 8, 1, {13}, "PyTorch's (N, C, L)"},
        {"cross_entropy", 3, {4, 3, 5}, 4, 2, {3, 5}, "an image: first"},
        {"cross_entropy classes=first", 3, {4, 3, 5}, 4, 2, {3, 5}, "the same, said"},
        {"cross_entropy classes=last", 3, {4, 3, 5}, 5, 2, {4, 3}, "an image, classes last"},
        {"cross_entropy classes=auto", 4, {4, 3, 5, 2}, 4, 3, {3, 5, 2}, "a volume: first"},
        {"nll", 2, {8, 13}, 13, 1, {8}, "a sequence: last"},
        {"nll", 3, {4, 3, 5}, 4, 2, {3, 5}, "an image: first"},
    };
    for (size_t k = 0; k < COUNT(shapes); k++) {
        loss_rig rig = loss_of(shapes[k].spec, shapes[k].rank, shapes[k].dim);
        gpp__desc want = {.dtype = GPP_I64, .rank = shapes[k].target_rank};
        memcpy(want.dim, shapes[k].target, sizeof shapes[k].target);
        cr_expect_eq(rig.loss->classes(rig.attr, &rig.y), shapes[k].classes, "%s", shapes[k].why);
        cr_expect(gpp__desc_equal(&rig.target, &want), "%s", shapes[k].why);
        want.dtype = GPP_F32;
        cr_expect(gpp__desc_equal(&rig.each, &want), "%s", shapes[k].why);
        free(rig.attr);
    }
}

/* --- what can be asked for -------------------------------------------------------------------- */

Test(losses, targets_and_unreduced_losses_have_the_rows_of_the_output)
{
    gpp__desc y = {GPP_F32, 2, {3, 4}, GPP_ROWS_FIXED, 6};
    for (const gpp_loss *const *loss = gpp__losses; *loss; loss++) {
        loss_rig rig;
        cr_assert_eq(open_loss(&rig, (*loss)->name, &y, NULL), GPP_OK);
        cr_expect(rig.target.batch == y.batch && rig.target.rows == 6, "%s", (*loss)->name);
        cr_expect(rig.each.batch == y.batch && rig.each.rows == 6, "%s", (*loss)->name);
        bool same = gpp__desc_equal(&rig.target, &y) && gpp__desc_equal(&rig.each, &y);
        cr_expect_eq(same, rig.loss->classes == NULL, "%s", (*loss)->name);
        free(rig.attr);
    }
}

Test(losses, what_is_not_supported_is_refused_with_a_reason)
{
    static const struct {
        char spec[40];
        gpp__desc y;
        gpp_status status;
        char says[32];
    } refused[] = {
        {"cross_entropy", {GPP_F32, 0, {0}, 0, 0}, GPP_ESHAPE, "(classes)"},
        {"cross_entropy", {GPP_I64, 1, {4}, 0, 0}, GPP_ESHAPE, "int64"},
        {"nll", {GPP_F32, 0, {0}, 0, 0}, GPP_ESHAPE, "nll: takes"},
        {"nll label_smoothing=0.1", {GPP_F32, 1, {4}, 0, 0}, GPP_ENOENT, "label_smoothing"},
        {"mse", {GPP_I64, 1, {4}, 0, 0}, GPP_ESHAPE, "int64"},
        {"l1", {GPP_I64, 1, {4}, 0, 0}, GPP_ESHAPE, "l1: takes float32"},
        {"smooth_l1", {GPP_I64, 1, {4}, 0, 0}, GPP_ESHAPE, "int64"},
        {"bce_with_logits", {GPP_I64, 1, {4}, 0, 0}, GPP_ESHAPE, "int64"},
        {"smooth_l1 beta=-1", {GPP_F32, 1, {4}, 0, 0}, GPP_EINVAL, "beta must be 0 or more"},
        {"mse reduction=average", {GPP_F32, 1, {4}, 0, 0}, GPP_EINVAL, "mean, sum, none"},
        {"cross_entropy weight=1", {GPP_F32, 1, {4}, 0, 0}, GPP_ENOENT, "label_smoothing"},
        {"cross_entropy classes=middle", {GPP_F32, 1, {4}, 0, 0}, GPP_EINVAL, "first, last"},
        {"cross_entropy label_smoothing=1.1", {GPP_F32, 1, {4}, 0, 0}, GPP_EINVAL, "0 ... 1"},
        {"cross_entropy ignore_index=0.5", {GPP_F32, 1, {4}, 0, 0}, GPP_EINVAL, "ignore_index"},
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

/* --- losses of users -------------------------------------------------------------------------- */

/* What a user's functions saw, and are to do. */
typedef struct seen {
    gpp_loss_call call;
    gpp_shape shape;   /* to declare */
    gpp_status status; /* to return */
    bool silent;       /* sets no value */
    char says[32];     /* to put into err->msg */
} seen;

static gpp_status seen_target(const gpp_shape *y, gpp_shape *target, void *user, gpp_error *err)
{
    seen *s = user;
    *target = s->shape.rank < 0 ? *y : s->shape;
    snprintf(err->msg, sizeof err->msg, "%s", s->says);
    return s->status;
}

/* Half the sum of squared differences, divided by the rows of the mini-batch. */
static gpp_status seen_run(const gpp_loss_call *call, double *value)
{
    seen *s = call->user;
    const float *y = call->y.data, *t = call->target.data;
    float *grad = call->grad_y.data;
    double sum = 0;
    s->call = *call;
    for (int64_t k = 0; k < call->y.dim[0] * call->y.dim[1]; k++) {
        sum += 0.5 * (double)(y[k] - t[k]) * (double)(y[k] - t[k]);
        if (grad)
            grad[k] = (y[k] - t[k]) / (float)call->batch_rows;
    }
    if (!s->silent)
        *value = sum / (double)call->batch_rows;
    snprintf(call->err->msg, sizeof call->err->msg, "%s", s->says);
    return s->status;
}

static size_t seen_scratch(const gpp_shape *y, int64_t rows, void *user)
{
    (void)y, (void)user;
    return (size_t)rows;
}

/* A pipe keeps the definition beside the loss: so do these. */
static void open_user(gpp_loss **loss, gpp_loss_function *attr, seen *s)
{
    char name[] = "half";
    gpp_loss_function def = {.name = name, .target = seen_target, .run = seen_run, .user = s};
    *s = (seen){.shape = {.rank = -1}};
    cr_assert_eq(gpp__user_loss_new(loss, &def, NULL), GPP_OK);
    memset(name, 'x', sizeof name - 1);
    cr_assert_eq((*loss)->attr_size, sizeof *attr);
    memcpy(attr, gpp__user_loss_attr(*loss), sizeof *attr);
}

Test(user_loss, a_run_sees_its_micro_batch_as_tensors)
{
    gpp_loss *loss;
    gpp_loss_function attr;
    seen s;
    gpp__desc y = {GPP_F32, 1, {2}, 0, 0}, target;
    const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {0};
    float grad[6];
    double value;
    open_user(&loss, &attr, &s);
    cr_assert_eq(loss->target(&attr, &y, &target, NULL), GPP_OK);
    gpp__loss_call call = {.attr = &attr,
                           .y_desc = &y,
                           .target_desc = &target,
                           .micro_batch = 2,
                           .row0 = 4,
                           .batch_rows = 8,
                           .rows = 3,
                           .divisor = 1,
                           .y = a,
                           .target = b,
                           .grad_y = grad,
                           .value = &value};
    cr_expect_eq(loss->divisor(&attr, &y, 8, b, NULL), 1);
    cr_expect(!loss->each && !loss->classes);
    cr_assert_eq(loss->run(&call), GPP_OK);
    cr_expect_eq(value, 91.0 / 16);
    cr_expect_eq(grad[5], 6.0f / 8);
    cr_expect(s.call.micro_batch == 2 && s.call.row0 == 4 && s.call.batch_rows == 8);
    cr_expect(s.call.y.rank == 2 && s.call.y.dim[0] == 3 && s.call.y.dim[1] == 2);
    cr_expect(s.call.y.data == a && s.call.target.data == b && s.call.grad_y.data == grad);
    call.grad_y = NULL;
    cr_assert_eq(loss->run(&call), GPP_OK);
    cr_expect_null(s.call.grad_y.data);
    cr_expect(!s.call.stream && !s.call.scratch, "on cores there are none");
    gpp__user_loss_free(loss);
}

Test(user_loss, a_target_has_the_rows_of_the_output_and_the_shape_declared)
{
    gpp_loss *loss;
    gpp_loss_function attr;
    seen s;
    gpp__desc y = {GPP_F32, 3, {2, 5, 5}, 2, 0}, target;
    open_user(&loss, &attr, &s);
    s.shape = (gpp_shape){GPP_I64, 2, {5, 5}, 0, 7};
    cr_assert_eq(loss->target(&attr, &y, &target, NULL), GPP_OK);
    gpp__desc want = {GPP_I64, 2, {5, 5}, 2, 0};
    cr_expect(gpp__desc_equal(&target, &want));
    y.batch = GPP_ROWS_FIXED;
    y.rows = 4;
    cr_assert_eq(loss->target(&attr, &y, &target, NULL), GPP_OK);
    cr_expect(target.batch == GPP_ROWS_FIXED && target.rows == 4);
    gpp__user_loss_free(loss);
}

Test(user_loss, a_target_that_cannot_be_is_refused_with_a_reason)
{
    static const struct {
        gpp_shape shape;
        gpp_status status, want;
        char says[32], message[48];
    } bad[] = {
        {{(gpp_dtype)9, 0, {0}, 0, 0}, GPP_OK, GPP_ESHAPE, "", "type 9"},
        {{GPP_F32, 8, {1, 1, 1, 1, 1, 1, 1}, 0, 0}, GPP_OK, GPP_ESHAPE, "", "rank 8"},
        {{GPP_F32, 2, {3, 0}, 0, 0}, GPP_OK, GPP_ESHAPE, "", "dimension 1 of its target is 0"},
        {{GPP_F32, 2, {INT64_MAX, 2}, 0, 0}, GPP_OK, GPP_ESHAPE, "", "memory"},
        {{GPP_F32, 1, {3}, 0, 0}, GPP_ESHAPE, GPP_ESHAPE, "wants 3", "\"half\": wants 3"},
        {{GPP_F32, 1, {3}, 0, 0}, GPP_EINVAL, GPP_EINVAL, "", "target returned GPP_EINVAL"},
        {{GPP_F32, 1, {3}, 0, 0}, (gpp_status)99, GPP_EKERNEL, "", "no gpp_status"},
    };
    for (size_t k = 0; k < COUNT(bad); k++) {
        gpp_loss *loss;
        gpp_loss_function attr;
        seen s;
        gpp__desc y = {GPP_F32, 1, {2}, 0, 0}, target = {GPP_I64, 5, {1}, 3, 0}, before = target;
        gpp_error err = GPP_ERROR_INIT;
        open_user(&loss, &attr, &s);
        s.shape = bad[k].shape;
        s.status = bad[k].status;
        snprintf(s.says, sizeof s.says, "%s", bad[k].says);
        cr_expect_eq(loss->target(&attr, &y, &target, &err), bad[k].want, "case %zu", k);
        cr_expect(strstr(err.msg, bad[k].message) && strstr(err.msg, "half"), "%s", err.msg);
        cr_expect(memcmp(&target, &before, sizeof target) == 0, "case %zu", k);
        gpp__user_loss_free(loss);
    }
}

Test(user_loss, a_run_that_fails_is_reported_in_its_own_words_or_in_ours)
{
    static const struct {
        gpp_status status, want;
        char says[32], message[48];
    } bad[] = {
        {GPP_ENUMERIC, GPP_ENUMERIC, "not a number", "loss \"half\": not a number"},
        {GPP_EKERNEL, GPP_EKERNEL, "", "its run returned GPP_EKERNEL"},
        {(gpp_status)-1, GPP_EKERNEL, "", "returned -1, which is no gpp_status"},
    };
    for (size_t k = 0; k < COUNT(bad); k++) {
        gpp_loss *loss;
        gpp_loss_function attr;
        seen s;
        gpp__desc y = {GPP_F32, 1, {2}, 0, 0};
        gpp_error err = GPP_ERROR_INIT;
        const float a[2] = {0};
        double value = 5;
        open_user(&loss, &attr, &s);
        s.status = bad[k].status;
        snprintf(s.says, sizeof s.says, "%s", bad[k].says);
        gpp__loss_call call = {.attr = &attr,
                               .y_desc = &y,
                               .target_desc = &y,
                               .batch_rows = 1,
                               .rows = 1,
                               .divisor = 1,
                               .y = a,
                               .target = a,
                               .value = &value,
                               .err = &err};
        cr_expect_eq(loss->run(&call), bad[k].want, "case %zu", k);
        cr_expect(strstr(err.msg, bad[k].message), "%s", err.msg);
        cr_expect_eq(value, 5, "case %zu", k);
        gpp__user_loss_free(loss);
    }
}

Test(user_loss, a_value_that_is_not_set_is_nan)
{
    gpp_loss *loss;
    gpp_loss_function attr;
    seen s;
    gpp__desc y = {GPP_F32, 1, {2}, 0, 0};
    const float a[2] = {0};
    double value = 5;
    open_user(&loss, &attr, &s);
    s.silent = true;
    gpp__loss_call call = {.attr = &attr,
                           .y_desc = &y,
                           .target_desc = &y,
                           .batch_rows = 1,
                           .rows = 1,
                           .divisor = 1,
                           .y = a,
                           .target = a,
                           .value = &value};
    cr_expect_eq(loss->run(&call), GPP_OK);
    cr_expect(isnan(value));
    gpp__user_loss_free(loss);
}

Test(user_loss, a_definition_without_name_or_function_is_refused)
{
    static const struct {
        gpp_loss_function def;
        char says[24];
    } bad[] = {
        {{.target = seen_target, .run = seen_run}, "name"},
        {{.name = "", .target = seen_target, .run = seen_run}, "name"},
        {{.name = "half", .run = seen_run}, "no function target"},
        {{.name = "half", .target = seen_target}, "no function run"},
        {{.name = "half", .target = seen_target, .run = seen_run, .scratch_cuda = seen_scratch},
         "no function run_cuda"},
    };
    for (size_t k = 0; k < COUNT(bad); k++) {
        gpp_loss *loss = (gpp_loss *)(void *)&loss;
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp__user_loss_new(&loss, &bad[k].def, &err), GPP_EINVAL);
        cr_expect_null(loss);
        cr_expect(strstr(err.msg, bad[k].says), "%s", err.msg);
    }
    gpp_loss *loss;
    cr_expect_eq(gpp__user_loss_new(&loss, NULL, NULL), GPP_EINVAL);
    gpp__user_loss_free(NULL);
}
