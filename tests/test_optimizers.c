/*
 * tests/test_optimizers.c: updates against reference vectors, the published formulas in float64 and
 * numbers of PyTorch's.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/attr.h"
#include "codelets/optimizer.h"
#include "tests/support.h"
#include "tests/vectors.h"

#define COUNT(table) (sizeof table / sizeof *table)

static const gpp_optimizer *find_optimizer(const char *name)
{
    for (const gpp_optimizer *const *o = gpp__optimizers; *o; o++)
        if (strcmp((*o)->name, name) == 0)
            return *o;
    return NULL;
}

/* An optimizer with its attributes and the state of `count` parameters. */
typedef struct optimizer_rig {
    const gpp_optimizer *optimizer;
    void *attr;
    int64_t count;
    double scalar[GPP__MAX_SCALARS];
    float *state[GPP__MAX_STATES];
} optimizer_rig;

static gpp_status open_optimizer(optimizer_rig *rig, const char *spec, int64_t count,
                                 gpp_error *err)
{
    char name[64], pool[256];
    gpp_attr given[8];
    size_t keys;
    gpp_status status = gpp__attr_parse_spec(spec, name, given, &keys, 8, pool, sizeof pool, err);
    *rig = (optimizer_rig){.optimizer = find_optimizer(name), .count = count};
    cr_assert(!status && rig->optimizer, "%s", spec);
    rig->attr = calloc(1, rig->optimizer->attr_size + 1);
    status = gpp__attr_set(name, rig->optimizer->keys, rig->attr, given, keys, err);
    if (!status && rig->optimizer->check)
        status = rig->optimizer->check(rig->attr, err);
    for (size_t k = 0; k < COUNT(rig->scalar); k++)
        rig->scalar[k] = 1;
    for (int k = 0; !status && k < rig->optimizer->states(rig->attr); k++) {
        rig->state[k] = test_room((size_t)count * sizeof(float));
        if (count)
            memset(rig->state[k], 0, (size_t)count * sizeof(float));
    }
    return status;
}

static void close_optimizer(optimizer_rig *rig)
{
    for (size_t k = 0; k < COUNT(rig->state); k++)
        free(rig->state[k]);
    free(rig->attr);
}

static void update(optimizer_rig *rig, int64_t t, float *p, const float *grad)
{
    if (rig->optimizer->advance)
        rig->optimizer->advance(rig->attr, t, rig->scalar);
    cr_assert_eq(rig->optimizer->update(rig->attr, t, rig->scalar, rig->count, p, grad, rig->state),
                 GPP_OK);
}

/* --- reference vectors ------------------------------------------------------------------------ */

/* sgd 6, adam 3, rmsprop 3, adagrad 2, adamw, adadelta and adamax 1 each. */
#define VECTORS_KNOWN 17

/* The steps of parameter p<which>; false when the file has no such parameter. */
static bool run_parameter(const test_vector *v, int which)
{
    char name[3][24];
    snprintf(name[0], sizeof name[0], "p%d", which);
    snprintf(name[1], sizeof name[1], "g%d", which);
    snprintf(name[2], sizeof name[2], "p%d_after", which);
    const test_array *p = test_vector_find(v, name[0]), *g = test_vector_find(v, name[1]);
    const test_array *after = test_vector_find(v, name[2]);
    if (!p || !g || !after)
        return false;
    optimizer_rig rig;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(open_optimizer(&rig, test_vector_word(v, "optimizer"), p->count, &err), GPP_OK,
                 "%s: %s", v->file, err.msg);
    for (int64_t t = 1; t <= g->dim[0]; t++) {
        int64_t at = (t - 1) * p->count;
        update(&rig, t, p->data, (const float *)g->data + at);
        double off = test_distance(p->data, (const float *)after->data + at, p->count);
        cr_expect_leq(off, 1e-5, "%s: %s off by %.3g after step %d", v->file, name[0], off, (int)t);
    }
    close_optimizer(&rig);
    return true;
}

/* Clipping is no optimizer: its file is of the pipe's tests. */
static bool is_optimizer(const test_vector *v)
{
    return strcmp(test_vector_word(v, "kind"), "optimizer") == 0 &&
           strcmp(test_vector_word(v, "type"), "clip_grad_norm") != 0;
}

Test(optimizers, reference_vectors_are_met_within_1e_5_of_the_largest_value)
{
    char **names, why[128];
    int count = test_vectors_list(&names), run = 0;
    if (count < 0) {
        fprintf(stderr, "optimizer vectors: no folder, at least %d not run\n", VECTORS_KNOWN);
        cr_skip_test("no folder of reference vectors");
    }
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        if (is_optimizer(v)) {
            cr_expect(run_parameter(v, 0) && run_parameter(v, 1), "%s", v->file);
            run++;
        }
        test_vector_close(v);
    }
    fprintf(stderr, "optimizer vectors: %d run\n", run);
    cr_expect_geq(run, VECTORS_KNOWN, "only %d vectors were run", run);
    test_vectors_free(names, count);
}

/* --- formulas --------------------------------------------------------------------------------- */

typedef struct options {
    double lr, decay, eps;
    double a, b; /* betas; momentum and dampening; momentum and alpha; rho; lr_decay and start */
    bool maximize, flag; /* nesterov, amsgrad, centered */
} options;

/* What an element has, in float64; s[] in the order of the optimizer's arrays. */
typedef struct element {
    double p, s[3], product;
} element;

/* The formulas of PyTorch's documentation, one element. */
typedef void (*reference_fn)(const options *o, int t, double g, element *e);

static void sgd_step(const options *o, int t, double g, element *e)
{
    if (o->a != 0) {
        e->s[0] = t == 1 ? g : o->a * e->s[0] + (1 - o->b) * g;
        g = o->flag ? g + o->a * e->s[0] : e->s[0];
    }
    e->p -= o->lr * g;
}

static void adam_step(const options *o, int t, double g, element *e)
{
    e->s[0] = o->a * e->s[0] + (1 - o->a) * g;
    e->s[1] = o->b * e->s[1] + (1 - o->b) * g * g;
    e->s[2] = fmax(e->s[1], e->s[2]);
    double mean = e->s[0] / (1 - pow(o->a, t));
    double square = (o->flag ? e->s[2] : e->s[1]) / (1 - pow(o->b, t));
    e->p -= o->lr * mean / (sqrt(square) + o->eps);
}

static void rmsprop_step(const options *o, int t, double g, element *e)
{
    (void)t;
    e->s[0] = o->b * e->s[0] + (1 - o->b) * g * g;
    e->s[2] = o->b * e->s[2] + (1 - o->b) * g;
    double variance = o->flag ? e->s[0] - e->s[2] * e->s[2] : e->s[0];
    e->s[1] = o->a * e->s[1] + g / (sqrt(variance) + o->eps);
    e->p -= o->lr * e->s[1];
}

static void adagrad_step(const options *o, int t, double g, element *e)
{
    e->s[0] += g * g + (t == 1 ? o->b : 0);
    e->p -= o->lr / (1 + (t - 1) * o->a) * g / (sqrt(e->s[0]) + o->eps);
}

static void adadelta_step(const options *o, int t, double g, element *e)
{
    (void)t;
    e->s[0] = o->a * e->s[0] + (1 - o->a) * g * g;
    double delta = sqrt(e->s[1] + o->eps) / sqrt(e->s[0] + o->eps) * g;
    e->s[1] = o->a * e->s[1] + (1 - o->a) * delta * delta;
    e->p -= o->lr * delta;
}

static void adamax_step(const options *o, int t, double g, element *e)
{
    e->s[0] = o->a * e->s[0] + (1 - o->a) * g;
    e->s[1] = fmax(o->b * e->s[1], fabs(g) + o->eps);
    e->p -= o->lr / (1 - pow(o->a, t)) * e->s[0] / e->s[1];
}

/* momentum_decay is 0.05 in every case. */
static void nadam_step(const options *o, int t, double g, element *e)
{
    double now = o->a * (1 - 0.5 * pow(0.96, t * 0.05));
    double next = o->a * (1 - 0.5 * pow(0.96, (t + 1) * 0.05));
    e->product = (t == 1 ? 1 : e->product) * now;
    e->s[0] = o->a * e->s[0] + (1 - o->a) * g;
    e->s[1] = o->b * e->s[1] + (1 - o->b) * g * g;
    double d = sqrt(e->s[1] / (1 - pow(o->b, t))) + o->eps;
    e->p -= o->lr * (1 - now) / (1 - e->product) * g / d;
    e->p -= o->lr * next / (1 - e->product * next) * e->s[0] / d;
}

typedef struct optimizer_case {
    char spec[104];
    reference_fn step;
    options o;
    int states;
} optimizer_case;

static const optimizer_case cases[] = {
    {"sgd lr=0.1", sgd_step, {0.1, 0, 0, 0, 0, 0, 0}, 0},
    {"sgd lr=0", sgd_step, {0, 0, 0, 0, 0, 0, 0}, 0},
    {"sgd lr=0.1 weight_decay=0.2", sgd_step, {0.1, 0.2, 0, 0, 0, 0, 0}, 0},
    {"sgd lr=0.1 maximize=1 weight_decay=0.2", sgd_step, {0.1, 0.2, 0, 0, 0, 1, 0}, 0},
    {"sgd lr=0.1 momentum=0.9", sgd_step, {0.1, 0, 0, 0.9, 0, 0, 0}, 1},
    {"sgd lr=0.1 momentum=0.9 dampening=0.4", sgd_step, {0.1, 0, 0, 0.9, 0.4, 0, 0}, 1},
    {"sgd lr=0.1 momentum=0.9 dampening=1 weight_decay=0.1",
     sgd_step,
     {0.1, 0.1, 0, 0.9, 1, 0, 0},
     1},
    {"sgd lr=0.1 momentum=0.8 nesterov=1", sgd_step, {0.1, 0, 0, 0.8, 0, 0, 1}, 1},
    {"sgd lr=0.1 momentum=0.8 nesterov=1 weight_decay=0.1 maximize=1",
     sgd_step,
     {0.1, 0.1, 0, 0.8, 0, 1, 1},
     1},
    {"adam", adam_step, {1e-3, 0, 1e-8, 0.9, 0.999, 0, 0}, 2},
    {"adam lr=0.05 betas=0.5", adam_step, {0.05, 0, 1e-8, 0.5, 0.5, 0, 0}, 2},
    {"adam lr=0.05 betas=0,0.5", adam_step, {0.05, 0, 1e-8, 0, 0.5, 0, 0}, 2},
    {"adam lr=0.05 amsgrad=1 betas=0.8,0.6", adam_step, {0.05, 0, 1e-8, 0.8, 0.6, 0, 1}, 3},
    {"adam lr=0.05 amsgrad=1 betas=0.8,0.6 weight_decay=0.3 maximize=1 eps=0.01",
     adam_step,
     {0.05, 0.3, 0.01, 0.8, 0.6, 1, 1},
     3},
    {"adamw lr=0.05 weight_decay=0", adam_step, {0.05, 0, 1e-8, 0.9, 0.999, 0, 0}, 2},
    {"rmsprop", rmsprop_step, {0.01, 0, 1e-8, 0, 0.99, 0, 0}, 1},
    {"rmsprop alpha=0.9 momentum=0.7 weight_decay=0.1",
     rmsprop_step,
     {0.01, 0.1, 1e-8, 0.7, 0.9, 0, 0},
     2},
    {"rmsprop alpha=0.9 centered=1 eps=0.001", rmsprop_step, {0.01, 0, 1e-3, 0, 0.9, 0, 1}, 3},
    {"rmsprop alpha=0.9 centered=1 eps=0.001 momentum=0.5 maximize=1 lr=0.02",
     rmsprop_step,
     {0.02, 0, 1e-3, 0.5, 0.9, 1, 1},
     3},
    {"adagrad", adagrad_step, {0.01, 0, 1e-10, 0, 0, 0, 0}, 1},
    {"adagrad lr=0.1 lr_decay=0.5 initial_accumulator_value=0.25 weight_decay=0.1 maximize=1",
     adagrad_step,
     {0.1, 0.1, 1e-10, 0.5, 0.25, 1, 0},
     1},
    {"adadelta", adadelta_step, {1, 0, 1e-6, 0.9, 0, 0, 0}, 2},
    {"adadelta lr=0.5 rho=0.6 eps=0.01 weight_decay=0.1 maximize=1",
     adadelta_step,
     {0.5, 0.1, 0.01, 0.6, 0, 1, 0},
     2},
    {"adamax", adamax_step, {2e-3, 0, 1e-8, 0.9, 0.999, 0, 0}, 2},
    {"adamax lr=0.05 betas=0.7,0.4 eps=0.1 weight_decay=0.1 maximize=1",
     adamax_step,
     {0.05, 0.1, 0.1, 0.7, 0.4, 1, 0},
     2},
    {"nadam momentum_decay=0.05", nadam_step, {2e-3, 0, 1e-8, 0.9, 0.999, 0, 0}, 2},
    {"nadam lr=0.05 betas=0.7,0.4 eps=0.01 weight_decay=0.1 momentum_decay=0.05",
     nadam_step,
     {0.05, 0.1, 0.01, 0.7, 0.4, 0, 0},
     2},
};

Test(optimizers, every_optimizer_has_cases_here)
{
    for (const gpp_optimizer *const *o = gpp__optimizers; *o; o++) {
        int found = 0;
        size_t length = strlen((*o)->name);
        for (size_t k = 0; k < COUNT(cases); k++)
            found += strncmp(cases[k].spec, (*o)->name, length) == 0 &&
                     strchr(" ", cases[k].spec[length]) != NULL;
        cr_expect_gt(found, 0, "%s", (*o)->name);
    }
}

enum { ELEMENTS = 19 };

/* One element's part of all updates is at `at`. */
static void reference_update(const optimizer_case *c, int t, const float *grad,
                             element at[ELEMENTS])
{
    for (int e = 0; e < ELEMENTS; e++) {
        double g = c->o.maximize ? -(double)grad[e] : (double)grad[e];
        c->step(&c->o, t, g + c->o.decay * at[e].p, &at[e]);
    }
}

/*
 * Each update has a few float32 roundings of numbers that are no larger than the largest, 6e-8
 * each. States of squares lose twice as much.
 */
static void expect_elements(const optimizer_case *c, int t, const optimizer_rig *rig,
                            const float *p, const element at[ELEMENTS])
{
    float want[ELEMENTS];
    for (int e = 0; e < ELEMENTS; e++)
        want[e] = (float)at[e].p;
    double off = test_distance(p, want, ELEMENTS);
    cr_expect_leq(off, 2e-6, "%s, step %d: off by %g", c->spec, t, off);
    for (int k = 0; k < c->states; k++) {
        if (c->step == rmsprop_step && k == 1 && c->o.a == 0)
            continue; /* its momentum's array, unused */
        for (int e = 0; e < ELEMENTS; e++)
            want[e] = (float)at[e].s[k];
        off = test_distance(rig->state[k], want, ELEMENTS);
        cr_expect_leq(off, 4e-6, "%s, step %d: %s is off by %g", c->spec, t,
                      rig->optimizer->state_names[k], off);
    }
}

Test(optimizers, updates_follow_the_published_formula)
{
    enum { STEPS = 12 };
    for (size_t k = 0; k < COUNT(cases); k++) {
        optimizer_rig rig;
        gpp_error err = GPP_ERROR_INIT;
        float p[ELEMENTS], grad[ELEMENTS];
        element at[ELEMENTS] = {0};
        cr_assert_eq(open_optimizer(&rig, cases[k].spec, ELEMENTS, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(rig.optimizer->states(rig.attr), cases[k].states, "%s", cases[k].spec);
        test_fill(p, ELEMENTS, 1, -1, 1);
        for (int e = 0; e < ELEMENTS; e++)
            at[e].p = p[e];
        for (int t = 1; t <= STEPS; t++) {
            test_fill(grad, ELEMENTS, 10 + (uint64_t)t, -1, 1);
            update(&rig, t, p, grad);
            reference_update(&cases[k], t, grad, at);
            expect_elements(&cases[k], t, &rig, p, at);
        }
        close_optimizer(&rig);
    }
}

/* NAdam's are those of PyTorch 1.13 with foreach=True: see nadam.c. */
Test(optimizers, five_updates_give_pytorchs_numbers)
{
    static const float grad[5][3] = {{0.5f, -1, 0.125f},
                                     {0.25f, 2, -0.75f},
                                     {-1.5f, 0.5f, 0.5f},
                                     {0.75f, -0.25f, 1},
                                     {1, 1, -2}};
    static const struct {
        char spec[104];
        float p[3];
    } after[] = {
        {"nadam", {0.996591608664f, -2.0012588285f, 0.499138593007f}},
        {"nadam lr=0.05 betas=0.8,0.95 eps=1e-6 weight_decay=0.1 momentum_decay=0.05",
         {0.894676812969f, -2.01632569653f, 0.469510877801f}},
        {"adagrad lr=0.1 lr_decay=0.2 weight_decay=0.1 initial_accumulator_value=0.3 eps=0.001 "
         "maximize=1",
         {1.0563850724f, -1.96359780773f, 0.471187861797f}},
        {"adamw lr=0.05 betas=0.8,0.95 weight_decay=0.1 amsgrad=1 maximize=1",
         {1.06361403896f, -1.91969021624f, 0.511151036347f}},
        {"adam lr=0.05 betas=0.8,0.95 weight_decay=0.1 amsgrad=1 maximize=1",
         {1.07123520693f, -1.94527530747f, 0.511316663155f}},
        {"adamax lr=0.05 betas=0.8,0.95 eps=0.001 weight_decay=0.1 maximize=1",
         {1.07052528225f, -1.97925743779f, 0.524436489707f}},
        {"adadelta lr=0.5 rho=0.8 eps=0.001 weight_decay=0.1 maximize=1",
         {1.06844167933f, -1.93386260417f, 0.495490828175f}},
        {"rmsprop lr=0.05 alpha=0.9 eps=0.001 weight_decay=0.1 centered=1 maximize=1",
         {1.19997361266f, -1.88383145833f, 0.555158133333f}},
        {"rmsprop lr=0.05 alpha=0.9 eps=0.001 weight_decay=0.1 centered=1 momentum=0.7 maximize=1",
         {1.42839537416f, -1.88523342818f, 0.760560944572f}},
        {"rmsprop lr=0.05 alpha=0.9 momentum=0.7",
         {0.49862928431f, -2.04296150676f, 0.187597112757f}},
    };
    for (size_t k = 0; k < COUNT(after); k++) {
        optimizer_rig rig;
        float p[3] = {1, -2, 0.5f};
        cr_assert_eq(open_optimizer(&rig, after[k].spec, 3, NULL), GPP_OK, "%s", after[k].spec);
        for (int t = 1; t <= 5; t++)
            update(&rig, t, p, grad[t - 1]);
        /* Five updates of a few roundings each, 6e-8. */
        cr_expect_leq(test_distance(p, after[k].p, 3), 1e-6, "%s: %.9g %.9g %.9g", after[k].spec,
                      (double)p[0], (double)p[1], (double)p[2]);
        close_optimizer(&rig);
    }
}

/* --- every optimizer -------------------------------------------------------------------------- */

/* Three updates of an array at once, and of its two parts. */
static void expect_same_in_parts(const char *spec, int cut)
{
    enum { N = 1003, STEPS = 3 };
    optimizer_rig whole, head, tail;
    float a[N], b[N], grad[N];
    open_optimizer(&whole, spec, N, NULL);
    open_optimizer(&head, spec, cut, NULL);
    open_optimizer(&tail, spec, N - cut, NULL);
    test_fill(a, N, 1, -1, 1);
    memcpy(b, a, sizeof a);
    for (int t = 1; t <= STEPS; t++) {
        test_fill(grad, N, 10 + (uint64_t)t, -1, 1);
        update(&whole, t, a, grad);
        update(&head, t, b, grad);
        update(&tail, t, b + cut, grad + cut);
    }
    cr_expect(test_same(a, b, N), "%s cut after %d", spec, cut);
    for (int k = 0; k < whole.optimizer->states(whole.attr); k++) {
        cr_expect(test_same(whole.state[k], head.state[k], cut), "%s, state %d", spec, k);
        cr_expect(test_same(whole.state[k] + cut, tail.state[k], N - cut), "%s, state %d", spec, k);
    }
    close_optimizer(&whole);
    close_optimizer(&head);
    close_optimizer(&tail);
}

Test(optimizers, a_parameter_does_not_depend_on_where_its_array_begins_and_ends)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        for (int cut = 0; cut < 40; cut += 13)
            expect_same_in_parts(cases[k].spec, cut);
}

Test(optimizers, defaults_are_pytorchs)
{
    static const struct {
        char brief[24], full[128];
    } same[] = {
        {"sgd lr=0.3", "sgd lr=0.3 momentum=0 dampening=0 weight_decay=0 nesterov=0 maximize=0"},
        {"adam", "adam lr=0.001 betas=0.9,0.999 eps=1e-8 weight_decay=0 amsgrad=0 maximize=0"},
        {"adamw", "adamw lr=0.001 betas=0.9,0.999 eps=1e-8 weight_decay=0.01 amsgrad=0 maximize=0"},
        {"rmsprop", "rmsprop lr=0.01 alpha=0.99 eps=1e-8 weight_decay=0 momentum=0 centered=0 "
                    "maximize=0"},
        {"adagrad", "adagrad lr=0.01 lr_decay=0 weight_decay=0 initial_accumulator_value=0 "
                    "eps=1e-10 maximize=0"},
        {"adadelta", "adadelta lr=1 rho=0.9 eps=1e-6 weight_decay=0 maximize=0"},
        {"adamax", "adamax lr=0.002 betas=0.9,0.999 eps=1e-8 weight_decay=0 maximize=0"},
        {"nadam", "nadam lr=0.002 betas=0.9,0.999 eps=1e-8 weight_decay=0 momentum_decay=0.004"},
    };
    for (size_t k = 0; k < COUNT(same); k++) {
        optimizer_rig rig[2];
        float p[2][8], grad[8];
        open_optimizer(&rig[0], same[k].brief, 8, NULL);
        open_optimizer(&rig[1], same[k].full, 8, NULL);
        test_fill(p[0], 8, 1, -1, 1);
        memcpy(p[1], p[0], sizeof p[0]);
        for (int t = 1; t <= 4; t++) {
            test_fill(grad, 8, 10 + (uint64_t)t, -1, 1);
            update(&rig[0], t, p[0], grad);
            update(&rig[1], t, p[1], grad);
        }
        cr_expect(test_same(p[0], p[1], 8), "%s", same[k].brief);
        close_optimizer(&rig[0]);
        close_optimizer(&rig[1]);
    }
}

Test(optimizers, arrays_have_the_names_that_pytorch_gives_them)
{
    static const struct {
        char spec[48], names[3][20];
        int count, scalars;
    } states[] = {
        {"sgd lr=1", {""}, 0, 0},
        {"sgd lr=1 momentum=0.5", {"momentum_buffer"}, 1, 0},
        {"adam", {"exp_avg", "exp_avg_sq"}, 2, 0},
        {"adam amsgrad=1", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, 3, 0},
        {"adamw amsgrad=1", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, 3, 0},
        {"rmsprop", {"square_avg"}, 1, 0},
        {"rmsprop momentum=0.5", {"square_avg", "momentum_buffer"}, 2, 0},
        {"rmsprop centered=1", {"square_avg", "momentum_buffer", "grad_avg"}, 3, 0},
        {"adagrad", {"sum"}, 1, 0},
        {"adadelta", {"square_avg", "acc_delta"}, 2, 0},
        {"adamax", {"exp_avg", "exp_inf"}, 2, 0},
        {"nadam", {"exp_avg", "exp_avg_sq"}, 2, 1},
    };
    for (size_t k = 0; k < COUNT(states); k++) {
        optimizer_rig rig;
        cr_assert_eq(open_optimizer(&rig, states[k].spec, 1, NULL), GPP_OK);
        cr_expect_eq(rig.optimizer->states(rig.attr), states[k].count, "%s", states[k].spec);
        cr_expect_eq(rig.optimizer->scalars, states[k].scalars, "%s", states[k].spec);
        cr_expect_eq(rig.optimizer->advance != NULL, states[k].scalars > 0, "%s", states[k].spec);
        for (int s = 0; s < states[k].count; s++)
            cr_expect_str_eq(rig.optimizer->state_names[s], states[k].names[s], "%s",
                             states[k].spec);
        close_optimizer(&rig);
    }
}

static double *real_at(const optimizer_rig *rig, size_t offset)
{
    return (double *)(void *)((char *)rig->attr + offset);
}

Test(optimizers, learning_rate_and_weight_decay_can_be_changed_in_place)
{
    for (const gpp_optimizer *const *o = gpp__optimizers; *o; o++) {
        optimizer_rig rig[2];
        char spec[2][64];
        float p[2][8], grad[8];
        snprintf(spec[0], sizeof spec[0], "%s lr=0.5 weight_decay=0.25", (*o)->name);
        snprintf(spec[1], sizeof spec[1], "%s lr=0.125 weight_decay=0.75", (*o)->name);
        for (int k = 0; k < 2; k++) {
            cr_assert_eq(open_optimizer(&rig[k], spec[k], 8, NULL), GPP_OK, "%s", spec[k]);
            test_fill(p[k], 8, 1, -1, 1);
        }
        cr_expect_eq(*real_at(&rig[0], (*o)->lr_offset), 0.5, "%s", (*o)->name);
        cr_expect_eq(*real_at(&rig[0], (*o)->weight_decay_offset), 0.25, "%s", (*o)->name);
        *real_at(&rig[0], (*o)->lr_offset) = 0.125;
        *real_at(&rig[0], (*o)->weight_decay_offset) = 0.75;
        for (int t = 1; t <= 3; t++) {
            test_fill(grad, 8, 10 + (uint64_t)t, -1, 1);
            update(&rig[0], t, p[0], grad);
            update(&rig[1], t, p[1], grad);
        }
        cr_expect(test_same(p[0], p[1], 8), "%s", (*o)->name);
        close_optimizer(&rig[0]);
        close_optimizer(&rig[1]);
    }
}

Test(optimizers, without_gradient_and_decay_nothing_moves)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        optimizer_rig rig;
        float p[9], before[9], grad[9] = {0};
        if (cases[k].o.decay != 0)
            continue;
        open_optimizer(&rig, cases[k].spec, 9, NULL);
        test_fill(p, 9, 1, -1, 1);
        p[0] = 0;
        memcpy(before, p, sizeof p);
        for (int t = 1; t <= 3; t++)
            update(&rig, t, p, grad);
        for (int e = 0; e < 9; e++)
            cr_expect_eq(p[e], before[e], "%s: %g", cases[k].spec, (double)p[e]);
        close_optimizer(&rig);
    }
}

Test(optimizers, a_gradient_that_is_no_number_shows_and_stays_where_it_is)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        optimizer_rig rig;
        float p[9], grad[9];
        open_optimizer(&rig, cases[k].spec, 9, NULL);
        test_fill(p, 9, 1, -1, 1);
        for (int t = 1; t <= 3; t++) {
            test_fill(grad, 9, 10 + (uint64_t)t, -1, 1);
            grad[4] = t == 2 ? NAN : grad[4];
            update(&rig, t, p, grad);
        }
        for (int e = 0; e < 9; e++)
            cr_expect_eq(isnan(p[e]) != 0, e == 4, "%s: element %d is %g", cases[k].spec, e,
                         (double)p[e]);
        close_optimizer(&rig);
    }
}

Test(optimizers, late_updates_are_as_good_as_early_ones)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        optimizer_rig rig;
        float p[4], grad[4];
        open_optimizer(&rig, cases[k].spec, 4, NULL);
        test_fill(p, 4, 1, -1, 1);
        for (int64_t t = 2000000000; t <= 2000000003; t++) {
            test_fill(grad, 4, 10 + (uint64_t)t, -1, 1);
            update(&rig, t, p, grad);
        }
        for (int e = 0; e < 4; e++)
            cr_expect(isfinite(p[e]), "%s: %g", cases[k].spec, (double)p[e]);
        close_optimizer(&rig);
    }
}

Test(rmsprop, a_constant_gradient_has_no_negative_variance)
{
    enum { N = 64 };
    optimizer_rig rig;
    float p[N] = {0}, grad[N];
    open_optimizer(&rig, "rmsprop centered=1 alpha=0.5", N, NULL);
    test_fill(grad, N, 3, 0.1, 1);
    for (int t = 1; t <= 200; t++)
        update(&rig, t, p, grad);
    for (int e = 0; e < N; e++)
        cr_expect(isfinite(p[e]), "%g for a gradient of %.9g", (double)p[e], (double)grad[e]);
    close_optimizer(&rig);
}

Test(adamw, its_decay_shrinks_parameters_and_leaves_gradients_alone)
{
    optimizer_rig rig;
    float p[2] = {2, -4}, grad[2] = {0, 0};
    open_optimizer(&rig, "adamw lr=0.25 weight_decay=0.5", 2, NULL);
    update(&rig, 1, p, grad);
    cr_expect(p[0] == 1.75f && p[1] == -3.5f, "%g %g", (double)p[0], (double)p[1]);
    cr_expect(rig.state[0][0] == 0 && rig.state[1][0] == 0);
    close_optimizer(&rig);
}

/* --- what can be asked for -------------------------------------------------------------------- */

Test(optimizers, wrong_options_are_refused_with_a_reason)
{
    static const struct {
        char spec[64], says[32];
    } bad[] = {
        {"sgd", "lr is missing"},
        {"sgd lr=-0.1", "lr"},
        {"sgd lr=0.1 momentum=-1", "momentum"},
        {"sgd lr=0.1 weight_decay=-1", "weight_decay"},
        {"sgd lr=0.1 nesterov=1", "nesterov"},
        {"sgd lr=0.1 nesterov=1 momentum=0.9 dampening=0.1", "nesterov"},
        {"sgd lr=0.1 nesterov=2 momentum=0.9", "nesterov"},
        {"sgd lr=0.1 beta=2", "beta"},
        {"adam lr=-1", "lr must be 0 or more"},
        {"adam betas=1,0.9", "below 1, got 1,0.9"},
        {"adam betas=0.9,1", "below 1, got 0.9,1"},
        {"adam betas=-0.1,0.9", "betas must be 0 or more"},
        {"adam betas=0.1,0.2,0.3", "betas takes"},
        {"adam eps=-1", "eps"},
        {"adam momentum=0.9", "amsgrad"},
        {"adamw betas=1", "adamw: betas"},
        {"adamw weight_decay=-1", "weight_decay"},
        {"adamax betas=0.9,1.5", "adamax: betas"},
        {"adamax amsgrad=1", "no key"},
        {"nadam betas=1", "nadam: betas"},
        {"nadam momentum_decay=-1", "momentum_decay"},
        {"nadam maximize=1", "no key"},
        {"rmsprop alpha=-0.1", "alpha"},
        {"rmsprop centered=0.5", "centered must be 0 or 1"},
        {"adagrad lr_decay=-1", "lr_decay"},
        {"adagrad initial_accumulator_value=-1", "initial_accumulator_value"},
        {"adadelta rho=1.5", "rho must be 0 ... 1"},
        {"adadelta eps=-1", "eps"},
    };
    for (size_t k = 0; k < COUNT(bad); k++) {
        optimizer_rig rig;
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_neq(open_optimizer(&rig, bad[k].spec, 1, &err), GPP_OK, "%s", bad[k].spec);
        cr_expect(strstr(err.msg, rig.optimizer->name) && strstr(err.msg, bad[k].says), "%s: %s",
                  bad[k].spec, err.msg);
        close_optimizer(&rig);
    }
    optimizer_rig rig;
    cr_assert_eq(open_optimizer(&rig, "sgd lr=0.1 dampening=-0.5", 1, NULL), GPP_OK);
    close_optimizer(&rig);
}
