/*
 * tests/test_optimizers.c: updates against reference vectors and the published formulas.
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
    float *state[4];
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
    for (int k = 0; !status && k < rig->optimizer->states(rig->attr); k++)
        rig->state[k] = test_room((size_t)count * sizeof(float)); /* full of NaN */
    return status;
}

static void close_optimizer(optimizer_rig *rig)
{
    for (size_t k = 0; k < COUNT(rig->state); k++)
        free(rig->state[k]);
    free(rig->attr);
}

static void update(const optimizer_rig *rig, int64_t t, float *p, const float *grad)
{
    rig->optimizer->update(rig->attr, t, rig->count, p, grad, rig->state);
}

/* --- reference vectors ------------------------------------------------------------------------ */

/* Plain, momentum, Nesterov, both with weight decay, maximize. */
#define VECTORS_KNOWN 6

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

Test(optimizers, reference_vectors_are_met_within_1e_5_of_the_largest_value)
{
    char **names, why[128];
    int count = test_vectors_list(&names), run = 0, skipped = 0;
    if (count < 0) {
        fprintf(stderr, "optimizer vectors: no folder, at least %d not run\n", VECTORS_KNOWN);
        cr_skip_test("no folder of reference vectors");
    }
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        if (strcmp(test_vector_word(v, "kind"), "optimizer") == 0) {
            bool built = find_optimizer(test_vector_word(v, "type")) != NULL;
            run += built;
            skipped += !built;
            if (built)
                cr_expect(run_parameter(v, 0) && run_parameter(v, 1), "%s", v->file);
        }
        test_vector_close(v);
    }
    fprintf(stderr, "optimizer vectors: %d run, %d skipped (optimizer not built)\n", run, skipped);
    cr_expect_geq(run, VECTORS_KNOWN, "only %d vectors were run", run);
    test_vectors_free(names, count);
}

/* --- sgd -------------------------------------------------------------------------------------- */

/* PyTorch's documentation of SGD, one element, in float64. */
typedef struct sgd_case {
    char spec[80];
    double lr, momentum, dampening, decay;
    bool nesterov, maximize;
} sgd_case;

static const sgd_case cases[] = {
    {"sgd lr=0.1", 0.1, 0, 0, 0, false, false},
    {"sgd lr=0", 0, 0, 0, 0, false, false},
    {"sgd lr=0.1 weight_decay=0.2", 0.1, 0, 0, 0.2, false, false},
    {"sgd lr=0.1 maximize=1 weight_decay=0.2", 0.1, 0, 0, 0.2, false, true},
    {"sgd lr=0.1 momentum=0.9", 0.1, 0.9, 0, 0, false, false},
    {"sgd lr=0.1 momentum=0.9 dampening=0.4", 0.1, 0.9, 0.4, 0, false, false},
    {"sgd lr=0.1 momentum=0.9 dampening=1 weight_decay=0.1", 0.1, 0.9, 1, 0.1, false, false},
    {"sgd lr=0.1 momentum=0.8 nesterov=1", 0.1, 0.8, 0, 0, true, false},
    {"sgd lr=0.1 momentum=0.8 nesterov=1 weight_decay=0.1 maximize=1", 0.1, 0.8, 0, 0.1, true,
     true},
};

static void reference_step(const sgd_case *c, int t, double *p, double *buffer, double grad)
{
    double g = (c->maximize ? -grad : grad) + c->decay * *p;
    if (c->momentum != 0) {
        *buffer = t == 1 ? g : c->momentum * *buffer + (1 - c->dampening) * g;
        g = c->nesterov ? g + c->momentum * *buffer : *buffer;
    }
    *p -= c->lr * g;
}

Test(sgd, updates_follow_the_published_formula)
{
    enum { N = 19, STEPS = 6 };
    for (size_t k = 0; k < COUNT(cases); k++) {
        optimizer_rig rig;
        float p[N], grad[N], want[N];
        double exact[N], buffer[N];
        cr_assert_eq(open_optimizer(&rig, cases[k].spec, N, NULL), GPP_OK);
        test_fill(p, N, 1, -1, 1);
        for (int e = 0; e < N; e++)
            exact[e] = p[e];
        for (int t = 1; t <= STEPS; t++) {
            test_fill(grad, N, 10 + (uint64_t)t, -1, 1);
            update(&rig, t, p, grad);
            for (int e = 0; e < N; e++) {
                reference_step(&cases[k], t, &exact[e], &buffer[e], grad[e]);
                want[e] = (float)exact[e];
            }
            /* A few float32 roundings a step. */
            cr_expect_leq(test_distance(p, want, N), 2e-6, "%s, step %d", cases[k].spec, t);
        }
        close_optimizer(&rig);
    }
}

Test(sgd, a_parameter_does_not_depend_on_where_its_array_begins_and_ends)
{
    enum { N = 1003, STEPS = 3 };
    for (size_t k = 0; k < COUNT(cases); k++)
        for (int cut = 0; cut < 40; cut += 13) {
            optimizer_rig whole, head, tail;
            float a[N], b[N], grad[N];
            open_optimizer(&whole, cases[k].spec, N, NULL);
            open_optimizer(&head, cases[k].spec, cut, NULL);
            open_optimizer(&tail, cases[k].spec, N - cut, NULL);
            test_fill(a, N, 1, -1, 1);
            memcpy(b, a, sizeof a);
            for (int t = 1; t <= STEPS; t++) {
                test_fill(grad, N, 10 + (uint64_t)t, -1, 1);
                update(&whole, t, a, grad);
                update(&head, t, b, grad);
                update(&tail, t, b + cut, grad + cut);
            }
            cr_expect(test_same(a, b, N), "%s cut after %d", cases[k].spec, cut);
            close_optimizer(&whole);
            close_optimizer(&head);
            close_optimizer(&tail);
        }
}

Test(sgd, only_momentum_needs_state)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        optimizer_rig rig;
        cr_assert_eq(open_optimizer(&rig, cases[k].spec, 1, NULL), GPP_OK);
        cr_expect_eq(rig.optimizer->states(rig.attr), cases[k].momentum != 0, "%s", cases[k].spec);
        close_optimizer(&rig);
    }
}

Test(sgd, the_learning_rate_can_be_changed_in_place)
{
    optimizer_rig rig;
    float p = 1, grad = 1;
    cr_assert_eq(open_optimizer(&rig, "sgd lr=0.5", 1, NULL), GPP_OK);
    double *lr = (double *)(void *)((char *)rig.attr + rig.optimizer->lr_offset);
    cr_expect_eq(*lr, 0.5);
    *lr = 0.25;
    update(&rig, 1, &p, &grad);
    cr_expect_eq(p, 0.75f);
    close_optimizer(&rig);
}

Test(sgd, wrong_options_are_refused_with_a_reason)
{
    static const struct {
        char spec[64], says[16];
    } bad[] = {
        {"sgd", "lr is missing"},
        {"sgd lr=-0.1", "lr"},
        {"sgd lr=0.1 momentum=-1", "momentum"},
        {"sgd lr=0.1 weight_decay=-1", "weight_decay"},
        {"sgd lr=0.1 nesterov=1", "nesterov"},
        {"sgd lr=0.1 nesterov=1 momentum=0.9 dampening=0.1", "nesterov"},
        {"sgd lr=0.1 nesterov=2 momentum=0.9", "nesterov"},
        {"sgd lr=0.1 beta=2", "beta"},
    };
    for (size_t k = 0; k < COUNT(bad); k++) {
        optimizer_rig rig;
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_neq(open_optimizer(&rig, bad[k].spec, 1, &err), GPP_OK, "%s", bad[k].spec);
        cr_expect(strstr(err.msg, "sgd") && strstr(err.msg, bad[k].says), "%s", err.msg);
        close_optimizer(&rig);
    }
    optimizer_rig rig;
    cr_assert_eq(open_optimizer(&rig, "sgd lr=0.1 dampening=-0.5", 1, NULL), GPP_OK);
    close_optimizer(&rig);
}
