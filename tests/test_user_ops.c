/*
 * tests/test_user_ops.c: functions of user operators called: what they are given, what becomes of
 * what they return, the protocol of skips. Without models and pipes.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/support.h"
#include "tests/user_rig.h"

static gpp_status forward(user_rig *r)
{
    gpp_error_clear(&r->err);
    return r->layer.op->cpu.forward(&r->kernel, &r->run, &r->io);
}

static gpp_status backward(user_rig *r)
{
    gpp_error_clear(&r->err);
    return r->layer.op->cpu.backward(&r->kernel, &r->run, &r->io);
}

/* Values of gate's tensors: a, b, p; y0, y1, s; their gradients. */
typedef struct gate_data {
    float in[3][ROWS * F], out[3][ROWS * F], grad_out[3][ROWS * F], grad_in[3][ROWS * F];
    uint32_t absent;
} gate_data;

static void gate_rig(user_rig *r, gate_data *d)
{
    cr_assert_eq(user_rig_init(r, &user_gate, 3,
                               (gpp__desc[]){user_features(0), user_features(0), user_features(0)}),
                 GPP_OK, "%s", r->err.msg);
    memset(d, 0, sizeof *d);
    for (int t = 0; t < 3; t++) {
        test_fill(d->in[t], ROWS * F, (uint64_t)t, -1, 1);
        test_fill(d->grad_out[t], ROWS * F, 7 + (uint64_t)t, -1, 1);
        r->io.in[t] = d->in[t];
        r->io.out[t] = d->out[t];
        r->io.grad_out[t] = d->grad_out[t];
        r->io.grad_in[t] = d->grad_in[t];
    }
    r->io.absent = &d->absent;
    r->io.saved = r->saved;
    r->io.params = r->params;
    r->io.grads = r->grads;
    r->layer.op->init(&r->layer, 0, 1, (float *)(void *)r->params);
}

/* Σ outputs · their gradients: what the backward differentiates. */
static double gate_value(user_rig *r, gate_data *d)
{
    double sum = 0;
    cr_assert_eq(forward(r), GPP_OK, "%s", r->err.msg);
    for (int t = 0; t < 3; t++)
        sum += test_dot(d->out[t], d->grad_out[t], ROWS * F);
    return sum;
}

/* The function is a polynomial of degree 2: central differences are exact but for rounding, 1e-7 of
 * values near 1 over a step of 0.1. */
static void expect_slope(user_rig *r, gate_data *d, float *x, float gradient, const char *what)
{
    float before = *x;
    *x = before + 0.05f;
    double up = gate_value(r, d);
    *x = before - 0.05f;
    double slope = (up - gate_value(r, d)) / 0.1;
    *x = before;
    cr_expect(fabs(slope - gradient) < 1e-4, "%s: slope %g, gradient %g", what, slope, gradient);
}

Test(user_ops, gradients_of_two_inputs_a_pop_and_a_parameter_are_slopes)
{
    user_rig r;
    gate_data d;
    gate_rig(&r, &d);
    gate_value(&r, &d);
    cr_assert_eq(backward(&r), GPP_OK, "%s", r.err.msg);
    static const char *const names[] = {"first input", "second input", "popped"};
    for (int t = 0; t < 3; t++)
        for (int k = 0; k < ROWS * F; k++)
            expect_slope(&r, &d, &d.in[t][k], d.grad_in[t][k], names[t]);
    for (int c = 0; c < F; c++)
        expect_slope(&r, &d, (float *)(void *)r.params + c, ((float *)(void *)r.grads)[c],
                     "parameter");
    user_rig_release(&r);
}

Test(user_ops, parameter_gradients_are_assigned_first_and_added_to_afterwards)
{
    user_rig r;
    gate_data d;
    gate_rig(&r, &d);
    gate_value(&r, &d);
    float once[F], *grads = (float *)(void *)r.grads;
    cr_assert_eq(backward(&r), GPP_OK, "grads were NaN before");
    memcpy(once, grads, sizeof once);
    r.io.accumulate = true;
    cr_assert_eq(backward(&r), GPP_OK);
    for (int c = 0; c < F; c++)
        cr_expect_eq(grads[c], 2 * once[c], "%g after %g", grads[c], once[c]);
    r.io.accumulate = false;
    r.layer.param[0].frozen = true;
    cr_assert_eq(backward(&r), GPP_OK);
    for (int c = 0; c < F; c++)
        cr_expect_eq(grads[c], 0, "a frozen parameter's gradient: %g", grads[c]);
    user_rig_release(&r);
}

Test(user_ops, gradients_that_are_zero_or_not_wanted_have_no_data)
{
    user_rig r;
    gate_data d;
    gate_rig(&r, &d);
    gate_value(&r, &d);
    r.io.grad_out[0] = r.io.grad_out[2] = NULL;
    r.io.grad_in[0] = r.io.grad_in[2] = NULL;
    r.io.grads = NULL;
    cr_assert_eq(backward(&r), GPP_OK, "%s", r.err.msg);
    for (int k = 0; k < ROWS * F; k++) {
        cr_expect_eq(d.grad_in[1][k], d.in[0][k] * d.grad_out[1][k]);
        cr_expect(d.grad_in[0][k] == 0 && d.grad_in[2][k] == 0);
    }
    user_rig_release(&r);
}

Test(user_ops, an_absent_popped_tensor_has_no_data)
{
    user_rig r;
    gate_data d;
    gate_rig(&r, &d);
    r.io.in[2] = NULL;
    cr_assert_eq(forward(&r), GPP_OK, "%s", r.err.msg);
    for (int k = 0; k < ROWS * F; k++)
        cr_expect_eq(d.out[1][k], d.in[0][k] * d.in[1][k]);
    r.io.in[1] = NULL;
    cr_expect_eq(forward(&r), GPP_EINVAL, "an input of the tuple must be there");
    cr_expect(strstr(r.err.msg, "gate (layer 5, \"mine\"): input 1 is absent"), "%s", r.err.msg);
    user_rig_release(&r);
}

/* --- the protocol, and what is reported ------------------------------------------------------- */

Test(user_ops, every_declared_skip_is_named_and_each_pop_once)
{
    static const struct {
        const char *why, *acts, *message;
        uint32_t absent;
    } cases[] = {
        {"all, in any order", "pd sb pc sa", NULL, 0},
        {"a stash twice", "sa sa sb pc pd", NULL, 0},
        {"none, and one", "na sb pc pd", NULL, 1u << 1},
        {"none of both", "na nb pc pd", NULL, 3u << 1},
        {"none, then something", "na sa sb pc pd", NULL, 0},
        {"something, then none", "sb nb sa pc pd", NULL, 1u << 2},
        {"stash forgotten", "sb pc pd", "'a' must be stashed but have not", 0},
        {"both stashes forgotten", "pc pd", "'a', 'b' must be stashed but have not", 0},
        {"pop forgotten", "sa sb pc", "'d' must be popped but have not", 0},
        {"nothing done: stashes are checked first", "", "'a', 'b' must be stashed but have not", 0},
        {"popped twice", "sa sb pc pd pc", "'c' has been popped already", 0},
        {"stash not declared", "sx sa sb pc pd", "'x' has not been declared as stashable", 0},
        {"none of what is not declared", "nx sa sb pc pd", "'x' has not been declared as stash", 0},
        {"pop not declared", "sa sb pc pd px", "'x' has not been declared as poppable", 0},
        {"a pop stashed", "sc", "'c' has not been declared as stashable", 0},
        {"a stash popped", "pa", "'a' has not been declared as poppable", 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        user_rig r;
        user_script todo = {.acts = cases[k].acts};
        gpp_operator def = user_probe(&todo, true);
        float x[ROWS * F] = {0}, y[3][ROWS * F];
        uint32_t absent = 0;
        cr_assert_eq(
            user_rig_init(&r, &def, 3,
                          (gpp__desc[]){user_features(0), user_features(0), user_features(0)}),
            GPP_OK);
        r.io = (gpp__io){.in = {x, x, x}, .out = {y[0], y[1], y[2]}, .absent = &absent};
        gpp_status status = forward(&r);
        cr_expect_eq(status, cases[k].message ? GPP_EINVAL : GPP_OK, "%s: %s", cases[k].why,
                     r.err.msg);
        cr_expect(!cases[k].message || strstr(r.err.msg, cases[k].message), "%s: %s", cases[k].why,
                  r.err.msg);
        if (cases[k].message) {
            cr_expect_eq(strncmp(r.err.msg, "probe (layer 5, \"mine\"): '", 26), 0, "%s",
                         r.err.msg);
            cr_expect_eq(r.err.layer, 5);
        } else {
            cr_expect_eq(absent, cases[k].absent, "%s: bits 0x%x", cases[k].why, absent);
        }
        cr_expect_eq(backward(&r), GPP_OK, "%s: nothing is enforced in a backward", cases[k].why);
        user_rig_release(&r);
    }
}

Test(user_ops, what_a_function_returns_and_says_is_what_is_reported)
{
    static const struct {
        const char *why;
        gpp_status status;
        const char *says;
        gpp_status expected;
        const char *message;
    } cases[] = {
        {"fine", GPP_OK, NULL, GPP_OK, ""},
        {"a status alone", GPP_ENUMERIC, NULL, GPP_ENUMERIC,
         "returned GPP_ENUMERIC (a value is not finite)"},
        {"a status with words", GPP_ENOMEM, "no room for 7", GPP_ENOMEM,
         "probe (layer 5, \"mine\"): no room for 7"},
        {"no status of the library's", (gpp_status)77, NULL, GPP_EKERNEL,
         "returned 77, which is no gpp_status"},
        {"a negative one", (gpp_status)-1, NULL, GPP_EKERNEL, "-1"},
        {"words, and success", GPP_OK, "but it did not work", GPP_EKERNEL, "but it did not work"},
        {"words, and no status", (gpp_status)77, "seventy-seven", GPP_EKERNEL, "seventy-seven"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int back = 0; back < 2; back++) {
            user_rig r;
            user_script todo = {.status = cases[k].status, .says = cases[k].says};
            gpp_operator def = user_probe(&todo, false);
            float x[ROWS * F] = {0}, y[ROWS * F];
            cr_assert_eq(user_rig_init(&r, &def, 1, (gpp__desc[]){user_features(0)}), GPP_OK);
            r.io = (gpp__io){.in = {x}, .out = {y}};
            gpp_status status = back ? backward(&r) : forward(&r);
            cr_expect_eq(status, cases[k].expected, "%s: %s", cases[k].why,
                         gpp_status_name(status));
            cr_expect(strstr(r.err.msg, cases[k].message), "%s: %s", cases[k].why, r.err.msg);
            r.run.err = NULL;
            cr_expect_eq(back ? backward(&r) : forward(&r), cases[k].expected, "without a record");
            user_rig_release(&r);
        }
}

/* --- what functions are given ----------------------------------------------------------------- */

typedef struct seen {
    bool checkpointing, recomputing;
    gpp_call call;
    gpp_tensor in[3], out[2], saving[2];
} seen;

static void look(gpp_call *call, void *arg)
{
    seen *s = arg;
    *s = (seen){gpp_is_checkpointing(call), gpp_is_recomputing(call), *call, {{0}}, {{0}}, {{0}}};
    memcpy(s->in, call->in, (size_t)call->inputs * sizeof *s->in);
    memcpy(s->out, call->out, (size_t)call->outputs * sizeof *s->out);
    memcpy(s->saving, call->saving, (size_t)call->saved * sizeof *s->saving);
}

/* Outputs of batch 1 and of one fixed row; two saved tensors, one of integers. */
static void declare_many(gpp_signature *s)
{
    s->outputs = 2;
    s->out[0] = s->in[1];
    s->out[1] = (gpp_shape){.dtype = GPP_F32, .batch = GPP_ROWS_FIXED, .rows = 1};
    s->saved = 2;
    s->saving[0] = (gpp_shape){.dtype = GPP_I64, .rank = 2, .dim = {2, 5}, .batch = 1};
    s->saving[1] = (gpp_shape){.dtype = GPP_F32, .rank = 1, .dim = {3}};
}

Test(user_ops, tensors_come_with_their_rows)
{
    user_rig r;
    seen s;
    user_script todo = {.result = look, .arg = &s, .declare = declare_many};
    gpp_operator def = user_probe(&todo, false);
    gpp__desc in[] = {user_features(0), user_features(1), user_features(0)};
    in[2] = (gpp__desc){.dtype = GPP_I64, .batch = GPP_ROWS_FIXED, .rows = 6};
    cr_assert_eq(user_rig_init(&r, &def, 3, in), GPP_OK, "%s", r.err.msg);
    float a[ROWS * F], b[2 * ROWS * F], y[2 * ROWS * F], one;
    int64_t ids[6];
    r.io = (gpp__io){.in = {a, b, ids}, .out = {y, &one}, .saved = r.saved};
    cr_assert_eq(forward(&r), GPP_OK, "%s", r.err.msg);
    cr_expect(s.call.layer == 5 && s.call.micro_batch == 2 && s.call.row0 == 8 && s.call.training);
    cr_expect_str_eq(s.call.label, "mine");
    cr_expect(s.call.inputs == 3 && s.call.outputs == 2 && s.call.saved == 2);
    static const int64_t rows[] = {ROWS, 2 * ROWS, 6};
    for (int t = 0; t < 3; t++)
        cr_expect_eq(s.in[t].dim[0], rows[t], "input %d: %d rows", t, (int)s.in[t].dim[0]);
    cr_expect(s.in[0].rank == 2 && s.in[0].dim[1] == F && s.in[0].data == a);
    cr_expect(s.in[2].rank == 1 && s.in[2].dtype == GPP_I64 && s.in[2].data == ids);
    cr_expect(s.out[0].dim[0] == 2 * ROWS && s.out[1].dim[0] == 1 && s.out[1].data == &one);
    cr_expect(s.saving[0].dim[0] == 2 * ROWS && s.saving[1].dim[0] == ROWS);
    cr_expect_eq((char *)s.saving[0].data, r.saved);
    cr_expect_eq((char *)s.saving[1].data, r.saved + gpp__align(2 * ROWS * 10 * 8));
    cr_expect_eq(r.kernel.saved_bytes, gpp__align(2 * ROWS * 10 * 8) + gpp__align(ROWS * 3 * 4));
    r.io.saved = NULL;
    cr_assert_eq(forward(&r), GPP_OK);
    cr_expect(!s.saving[0].data && !s.saving[1].data, "no backward comes");
    user_rig_release(&r);
}

Test(user_ops, gradients_of_integers_have_no_data)
{
    user_rig r;
    seen s;
    user_script todo = {.result = look, .arg = &s};
    gpp_operator def = user_probe(&todo, false);
    gpp__desc in[] = {user_features(0)};
    in[0].dtype = GPP_I64;
    cr_assert_eq(user_rig_init(&r, &def, 1, in), GPP_OK);
    int64_t x[ROWS * F], g[ROWS * F];
    r.io = (gpp__io){.in = {x}, .out = {x}, .grad_out = {g}, .grad_in = {g}};
    cr_assert_eq(backward(&r), GPP_OK);
    cr_expect(!s.call.grad_in[0].data && !s.call.grad_out[0].data);
    user_rig_release(&r);
}

Test(user_ops, flags_tell_a_checkpointed_forward_from_its_repetition)
{
    user_rig r;
    seen s;
    user_script todo = {.result = look, .arg = &s};
    gpp_operator def = user_probe(&todo, false);
    float x[ROWS * F] = {0}, y[ROWS * F];
    cr_assert_eq(user_rig_init(&r, &def, 1, (gpp__desc[]){user_features(0)}), GPP_OK);
    r.io = (gpp__io){.in = {x}, .out = {y}};
    for (int k = 0; k < 4; k++) {
        r.run.checkpointing = k & 1;
        r.run.recomputing = k & 2;
        cr_assert_eq(forward(&r), GPP_OK);
        cr_expect(s.checkpointing == (k & 1) && s.recomputing == !!(k & 2));
        cr_assert_eq(backward(&r), GPP_OK);
        cr_expect(!s.checkpointing && !s.recomputing, "not in a backward");
    }
    cr_expect(!gpp_is_checkpointing(NULL) && !gpp_is_recomputing(NULL));
    user_rig_release(&r);
}
