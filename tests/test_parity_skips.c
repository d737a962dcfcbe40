/*
 * tests/test_parity_skips.c: skips from layer to layer: torchgpipe's tests/skip/test_api.py,
 * test_gpipe.py, test_portal.py, test_stash_pop.py and test_verify_skippables.py (PARITY.md).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/parity.h"
#include "tests/support.h"

/* --- a layer that stashes and pops by a script ------------------------------------------------ */

/* Passes its first tensor on, adding what it pops; "s" stashes the last one under the name, "n"
 * nothing where the first number of a micro-batch is negative, "p" pops: "sfoo pbar". */
static gpp_status skipper_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    for (int k = 0; k < GPP_MAX_TENSORS; k++)
        s->stash[k] = s->in[s->inputs - 1];
    return GPP_OK;
}

static int64_t elements(const gpp_tensor *t)
{
    return t->dim[0] * t->dim[1];
}

static void skip_one(gpp_call *call, char what, const char *name)
{
    const gpp_tensor *t = what == 'p' ? gpp_call_pop(call, name) : gpp_call_stash(call, name);
    const float *x = call->in[call->inputs - 1].data;
    float *y = call->out[0].data;
    for (int64_t k = 0; what == 'p' && t && t->data && k < elements(t); k++)
        y[k] += ((const float *)t->data)[k];
    if (what != 'p' && t)
        memcpy(t->data, x, (size_t)elements(t) * sizeof *x);
    if (what == 'n' && x[0] < 0)
        gpp_call_stash_none(call, name);
}

static gpp_status skipper_forward(gpp_call *call)
{
    char script[64], *rest = NULL;
    snprintf(script, sizeof script, "%s", (const char *)call->user);
    memcpy(call->out[0].data, call->in[0].data, (size_t)elements(&call->in[0]) * sizeof(float));
    for (char *word = strtok_r(script, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        skip_one(call, word[0], word + 1);
    return GPP_OK;
}

static void add_gradient(const gpp_tensor *from, const gpp_tensor *to)
{
    if (!from || !to || !from->data || !to->data)
        return;
    for (int64_t k = 0; k < elements(from); k++)
        ((float *)to->data)[k] += ((const float *)from->data)[k];
}

static gpp_status skipper_backward(gpp_call *call)
{
    char script[64], *rest = NULL;
    snprintf(script, sizeof script, "%s", (const char *)call->user);
    add_gradient(&call->grad_out[0], &call->grad_in[0]);
    for (char *word = strtok_r(script, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (word[0] == 'p')
            add_gradient(&call->grad_out[0], gpp_call_grad_pop(call, word + 1));
        else
            add_gradient(gpp_call_grad_stash(call, word + 1), &call->grad_in[call->inputs - 1]);
    return GPP_OK;
}

static void add_skipper(gpp_model *model, const char *name, const char *const stash[],
                        const char *const pop[], const char *script)
{
    const gpp_operator op = {.name = name,
                             .stash = stash,
                             .pop = pop,
                             .infer = skipper_infer,
                             .forward = skipper_forward,
                             .backward = skipper_backward,
                             .user = (void *)(uintptr_t)script};
    parity_register(model, &op);
    cr_assert_eq(gpp_model_add(model, name, NULL, NULL, 0, NULL), GPP_OK);
}

static const char *const foo[] = {"foo", NULL}, *const bar[] = {"bar", NULL},
                         *const both[] = {"foo", "bar", NULL};

/* --- test_api.py ------------------------------------------------------------------------------ */

Test(skip_api, test_namespace_difference)
{
    gpp_model *model = parity_model(NULL);
    char a[32], b[32];
    cr_assert_eq(gpp_model_namespace(model, a, NULL), GPP_OK);
    cr_assert_eq(gpp_model_namespace(model, b, NULL), GPP_OK);
    cr_expect_str_neq(a, b);
    gpp_model_free(model);
}

Test(skip_api, test_namespace_copy)
{
    gpp_model *model = parity_model("stash name=foo; pop name=foo mode=add");
    char ns[32], copy[32];
    cr_assert_eq(gpp_model_namespace(model, ns, NULL), GPP_OK);
    strcpy(copy, ns);
    cr_assert_eq(gpp_model_isolate(model, 0, ns, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_EINVAL, "one of them is elsewhere");
    cr_assert_eq(gpp_model_isolate(model, -1, copy, foo, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_OK, "a copy is the same namespace");
    gpp_model_free(model);
}

/* --- test_gpipe.py ---------------------------------------------------------------------------- */

enum { IMAGES = 30, SIDE = 8, PIXELS = IMAGES * 3 * SIDE * SIDE };

/* Three convolutions; the third layer adds the first one's input. */
Test(skip_gpipe, test_1to3)
{
    static const int balance[4][3] = {{3}, {1, 2}, {2, 1}, {1, 1, 1}}, partitions[] = {1, 2, 2, 3};
    static float v[PIXELS], one[PIXELS], w[2][PIXELS], g[2][PIXELS];
    gpp_model *model =
        parity_model("chain { stash name=skip1to3; conv2d out=3 kernel=1 @c1 }\n"
                     "conv2d out=3 kernel=1 @c2\n"
                     "chain { conv2d out=3 kernel=1 @c3; pop name=skip1to3 mode=add }");
    parity_input(model, 3, (int64_t[]){3, SIDE, SIDE});
    test_fill(v, PIXELS, 1, 0, 1);
    for (int k = 0; k < PIXELS; k++)
        one[k] = 1.0f / PIXELS;
    gpp_tensor x = {v, GPP_F32, 4, {IMAGES, 3, SIDE, SIDE}}, gy = x, y = x, gx = x;
    gy.data = one;
    y.data = w[0];
    gx.data = g[0];
    gpp_pipe *plain = parity_plain(model), *first = NULL;
    parity_pass(plain, &x, &y, &gy, &gx);
    for (int b = 0; b < 4; b++)
        for (int mode = 0; mode < 3; mode++) {
            gpp_pipe *pipe = parity_pipe(model, partitions[b], balance[b], 3, (gpp_checkpoint)mode);
            y.data = w[1];
            gx.data = g[1];
            parity_pass(pipe, &x, &y, &gy, &gx);
            cr_expect(test_distance(w[1], w[0], PIXELS) <= PARITY_CLOSE);
            cr_expect(test_distance(g[1], g[0], PIXELS) <= PARITY_CLOSE);
            /* sums of 1,920 float32 in another grouping: 1,920 · 6e-8 at worst */
            parity_same_gradients(pipe, plain, 1e-4, parity_modes[mode]);
            if (first)
                parity_same_gradients(pipe, first, 0, "the same bits for every cut and mode");
            first = first ? first : pipe;
            if (first != pipe)
                gpp_pipe_free(pipe);
        }
    gpp_pipe_free(first);
    gpp_pipe_free(plain);
    gpp_model_free(model);
}

/* @param script  of the stashing layer  @param want  gradients of 1 and -1 */
static void absent_skip(const char *script, const float want[2])
{
    for (int mode = 0; mode < 3; mode++)
        for (int partitions = 1; partitions <= 2; partitions++) {
            gpp_model *model = parity_model(NULL);
            add_skipper(model, "stashes", foo, NULL, script);
            add_skipper(model, "pops", NULL, foo, "pfoo");
            parity_input(model, 1, (int64_t[]){1});
            gpp_pipe *pipe = parity_pipe(model, partitions, NULL, 2, (gpp_checkpoint)mode);
            float v[] = {want[0] == 1 ? -1 : 1, -1}, w[2], one[] = {1, 1}, g[2];
            gpp_tensor x = {v, GPP_F32, 2, {2, 1}}, y = {w, GPP_F32, 2, {2, 1}};
            gpp_tensor gy = {one, GPP_F32, 2, {2, 1}}, gx = {g, GPP_F32, 2, {2, 1}};
            parity_pass(pipe, &x, &y, &gy, &gx);
            for (int k = 0; k < 2; k++)
                cr_expect(g[k] == want[k] && w[k] == want[k] * v[k], "%s, %d partitions: %g %g",
                          parity_modes[mode], partitions, g[k], w[k]);
            gpp_pipe_free(pipe);
            gpp_model_free(model);
        }
}

Test(skip_gpipe, test_none_skip)
{
    absent_skip("nfoo", (float[]){1, 1});
}

Test(skip_gpipe, a_skip_may_be_absent_in_some_micro_batches)
{
    absent_skip("nfoo", (float[]){2, 1});
}

/* --- test_portal.py --------------------------------------------------------------------------- */

/* Inputs t1 and t2; t2 is stashed by the first layer, popped by the last: out = 2·t1 + t2. */
static gpp_pipe *blue_orange(gpp_checkpoint mode, int partitions)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {1}}};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    add_skipper(model, "blue", foo, NULL, "sfoo");
    gpp_model_begin(model, NULL, &err);
    gpp_model_from(model, (gpp_ref[]){{GPP_REF_INPUT, 0}, {GPP_REF_INPUT, 0}}, 2, &err);
    gpp_model_add_text(model, "add", &err);
    gpp_model_end(model, NULL, 0, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    add_skipper(model, "orange", NULL, foo, "pfoo");
    cr_assert_eq(gpp_model_set_inputs(model, in, 2, &err), GPP_OK, "%s", err.msg);
    gpp_pipe *pipe = parity_pipe(model, partitions, NULL, 1, mode);
    gpp_model_free(model);
    return pipe;
}

static void expect_blue_orange(bool second_wanted)
{
    for (int mode = 0; mode < 3; mode++)
        for (int partitions = 1; partitions <= 3; partitions++) {
            gpp_pipe *pipe = blue_orange((gpp_checkpoint)mode, partitions);
            float t1[] = {3}, t2[] = {5}, w[1], one[] = {1}, g1[] = {9}, g2[] = {9};
            gpp_tensor x[] = {{t1, GPP_F32, 2, {1, 1}}, {t2, GPP_F32, 2, {1, 1}}};
            gpp_tensor gx[] = {{g1, GPP_F32, 2, {1, 1}},
                               {second_wanted ? g2 : NULL, GPP_F32, 2, {1, 1}}};
            gpp_tensor y = {w, GPP_F32, 2, {1, 1}}, gy = {one, GPP_F32, 2, {1, 1}};
            parity_pass(pipe, x, &y, &gy, gx);
            cr_expect_eq(w[0], 11);
            cr_expect(g1[0] == 2 && g2[0] == (second_wanted ? 1 : 9), "%s: %g, %g",
                      parity_modes[mode], g1[0], g2[0]);
            gpp_pipe_free(pipe);
        }
}

Test(skip_portal, test_blue_orange)
{
    expect_blue_orange(true);
}

Test(skip_portal, test_blue_orange_not_requires_grad)
{
    expect_blue_orange(false);
}

/* A kept forward has one backward. */
Test(skip_portal, test_use_grad)
{
    gpp_pipe *pipe = blue_orange(GPP_CHECKPOINT_ALWAYS, 3);
    float t1[] = {3}, t2[] = {5}, w[1], one[] = {1};
    gpp_tensor x[] = {{t1, GPP_F32, 2, {1, 1}}, {t2, GPP_F32, 2, {1, 1}}};
    gpp_tensor y = {w, GPP_F32, 2, {1, 1}}, gy = {one, GPP_F32, 2, {1, 1}};
    int kept;
    cr_assert_eq(gpp_pipe_forward(pipe, x, &y, &kept, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_backward(pipe, kept, x, &gy, NULL, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_backward(pipe, kept, x, &gy, NULL, NULL), GPP_ESTATE);
    gpp_pipe_free(pipe);
}

/* --- test_stash_pop.py ------------------------------------------------------------------------ */

/* One layer between one that stashes bar and one that pops foo: what it does wrong is said. */
static void protocol(const char *const stash[], const char *const pop[], const char *script,
                     const char *says)
{
    gpp_model *model = parity_model("stash name=bar");
    add_skipper(model, "mine", stash, pop, script);
    cr_assert_eq(gpp_model_add_text(model, "pop name=foo mode=add", NULL), GPP_OK);
    parity_input(model, 1, (int64_t[]){1});
    gpp_pipe *pipe = parity_pipe(model, 1, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
    float v[] = {1, 2}, w[2];
    gpp_tensor x = {v, GPP_F32, 2, {2, 1}}, y = {w, GPP_F32, 2, {2, 1}};
    gpp_error err = GPP_ERROR_INIT;
    gpp_status status = gpp_pipe_forward(pipe, &x, &y, NULL, &err);
    cr_expect_eq(status, says ? GPP_EINVAL : GPP_OK, "%s: %s", script, err.msg);
    if (says)
        cr_expect(strstr(err.msg, says) && strstr(err.msg, "mine (layer 1"), "%s", err.msg);
    else
        cr_expect(w[0] == 3 && w[1] == 6, "x + the popped x, + the stashed x: %g %g", w[0], w[1]);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(skip_stash_pop, test_stash)
{
    protocol(foo, bar, "sfoo pbar", NULL);
}

Test(skip_stash_pop, test_pop)
{
    protocol(foo, bar, "pbar sfoo", NULL);
}

Test(skip_stash_pop, test_declare_but_not_use)
{
    protocol(foo, bar, "pbar", "'foo' must be stashed but have not");
    protocol(foo, bar, "sfoo", "'bar' must be popped but have not");
}

Test(skip_stash_pop, test_stash_not_declared)
{
    protocol(foo, bar, "pbar sfoo sbaz", "'baz' has not been declared as stashable");
}

Test(skip_stash_pop, test_pop_not_declared)
{
    protocol(foo, bar, "pbar sfoo pfoo", "'foo' has not been declared as poppable");
}

/* Known before anything runs. */
Test(skip_stash_pop, test_pop_not_stashed)
{
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    add_skipper(model, "mine", NULL, foo, "pfoo");
    cr_expect_eq(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){1}, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "\"foo\" as poppable but it was not stashed"), "%s", err.msg);
    gpp_model_free(model);
}

Test(skip_stash_pop, test_stash_none)
{
    absent_skip("nfoo", (float[]){1, 1});
}

/* --- test_verify_skippables.py ---------------------------------------------------------------- */

/* Layers are "s", "p" or "b" (both) and a name: "sfoo pfoo". */
static gpp_model *layers_of(const char *text)
{
    gpp_model *model = parity_model(NULL);
    char script[64], *rest = NULL;
    const gpp_operator op = {.name = "both",
                             .stash = foo,
                             .pop = foo,
                             .infer = skipper_infer,
                             .forward = skipper_forward};
    parity_register(model, &op);
    snprintf(script, sizeof script, "%s", text);
    for (char *word = strtok_r(script, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        gpp_attr attrs[] = {GPP_WORD("name", word + 1), GPP_WORD("mode", "add")};
        if (word[0] == 'b')
            cr_assert_eq(gpp_model_add(model, "both", NULL, NULL, 0, NULL), GPP_OK);
        else
            cr_assert_eq(gpp_model_add(model, word[0] == 's' ? "stash" : "pop", NULL, attrs,
                                       word[0] == 's' ? 1 : 2, NULL),
                         GPP_OK);
    }
    return model;
}

/* @param says  every violation, in order; NULL-terminated, empty when there is none */
static void expect_report(gpp_model *model, const char *const says[])
{
    char *report = NULL;
    gpp_error err = GPP_ERROR_INIT;
    int bullets = 0, expected = 0;
    gpp_status status = gpp_verify_skips(model, &report, &err);
    cr_expect_eq(status, says[0] ? GPP_EINVAL : GPP_OK, "%s", err.msg);
    const char *at = report;
    for (; says[expected]; expected++) {
        at = at ? strstr(at, says[expected]) : NULL;
        cr_expect(at, "expected \"%s\" in \"%s\"", says[expected], report ? report : "");
        cr_expect(strstr(err.msg, says[expected]), "the record has it, too: %s", err.msg);
    }
    for (at = report; at && (at = strstr(at, "\n* ")); at++)
        bullets++;
    cr_expect_eq(bullets, expected, "%d violations: %s", bullets, report ? report : "");
    gpp_string_free(report);
    gpp_model_free(model);
}

Test(skip_verify_skippables, test_matching)
{
    expect_report(layers_of("sfoo pfoo"), (const char *[]){NULL});
}

Test(skip_verify_skippables, test_stash_not_pop)
{
    expect_report(layers_of("sfoo"), (const char *[]){"declared \"foo\" as poppable but", NULL});
}

Test(skip_verify_skippables, test_pop_unknown)
{
    expect_report(
        layers_of("pfoo"),
        (const char *[]){"\"0\" declared \"foo\" as poppable but it was not stashed", NULL});
    expect_report(layers_of("pfoo sfoo"),
                  (const char *[]){"\"0\" declared \"foo\" as poppable but it was not stashed",
                                   "no layer declared \"foo\" as poppable", NULL});
}

Test(skip_verify_skippables, test_stash_again)
{
    expect_report(layers_of("sfoo sfoo pfoo"),
                  (const char *[]){"\"1\" redeclared \"foo\" as stashable", NULL});
}

Test(skip_verify_skippables, test_pop_again)
{
    expect_report(layers_of("sfoo pfoo pfoo"),
                  (const char *[]){"\"2\" redeclared \"foo\" as poppable", NULL});
}

Test(skip_verify_skippables, test_stash_pop_together_different_names)
{
    gpp_model *model = parity_model("stash name=foo");
    add_skipper(model, "mine", bar, foo, "sbar pfoo");
    cr_assert_eq(gpp_model_add_text(model, "pop name=bar mode=add", NULL), GPP_OK);
    expect_report(model, (const char *[]){NULL});
}

Test(skip_verify_skippables, test_stash_pop_together_same_name)
{
    expect_report(
        layers_of("bfoo"),
        (const char *[]){"\"0\" declared \"foo\" both as stashable and as poppable", NULL});
}

Test(skip_verify_skippables, test_double_stash_pop)
{
    expect_report(layers_of("sfoo pfoo sfoo pfoo"),
                  (const char *[]){"\"2\" redeclared \"foo\" as stashable",
                                   "\"3\" redeclared \"foo\" as poppable", NULL});
}

Test(skip_verify_skippables, test_double_stash_pop_but_isolated)
{
    gpp_model *model = layers_of("sfoo pfoo sfoo pfoo");
    for (int k = 0; k < 4; k++)
        cr_assert_eq(gpp_model_isolate(model, k, k < 2 ? "ns1" : "ns2", NULL, 0, NULL), GPP_OK);
    expect_report(model, (const char *[]){NULL});
}

/* What upstream accepts in silence. */
Test(skip_verify_skippables, unknown_names_are_not_isolated)
{
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    add_skipper(model, "mine", both, NULL, "sfoo sbar");
    cr_expect_eq(gpp_model_isolate(model, 0, "ns", (const char *[]){"baz"}, 1, &err), GPP_ENOENT);
    cr_expect(strstr(err.msg, "baz"), "%s", err.msg);
    cr_expect_eq(gpp_model_isolate(model, 0, "a", foo, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_model_isolate(model, 0, "b", bar, 1, NULL), GPP_OK);
    gpp_model_free(model);
}
