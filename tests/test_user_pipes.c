/*
 * tests/test_user_pipes.c: user operators in models and pipes: the same bits for every cut, images
 * in the order that the caller knows, tensors that nobody wants, names and owners.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/parity.h"
#include "tests/pipes.h"
#include "tests/support.h"
#include "tests/user_rig.h"

TestSuite(user_pipes, .init = test_keep_runtime, .fini = test_release_runtime);

/* gate with what it pops, and with who pops what it stashes */
static const char around_gate[] = "linear out=3; stash name=p; linear out=6; split dim=1 parts=2; "
                                  "gate scale=2 @gate; cat dim=1; linear out=3; "
                                  "pop name=s mode=add; linear out=2";

static gpp_model *gate_model(void)
{
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    parity_register(model, &user_gate);
    cr_assert_eq(gpp_model_add_text(model, around_gate, &err), GPP_OK, "%s", err.msg);
    parity_input(model, 1, (int64_t[]){4});
    return model;
}

static gpp_pipe *gate_pipe(const gpp_model *model, int partitions, gpp_checkpoint mode)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    o.partitions = partitions;
    o.chunks = 3;
    o.checkpoint = mode;
    o.loss = "mse";
    if (mode == GPP_CHECKPOINT_BUDGET)
        test_tighten(model, &o, 7, 1);
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    return pipe;
}

typedef struct gate_batch {
    float x[28], target[14];
    gpp_tensor tx, tt;
} gate_batch;

static void fill_batch(gate_batch *b)
{
    test_fill(b->x, 28, 1, -1, 1);
    test_fill(b->target, 14, 2, -1, 1);
    b->tx = (gpp_tensor){b->x, GPP_F32, 2, {7, 4}};
    b->tt = (gpp_tensor){b->target, GPP_F32, 2, {7, 2}};
}

Test(user_pipes, every_cut_and_mode_has_the_same_bits)
{
    gpp_model *model = gate_model();
    gpp_pipe *first = gate_pipe(model, 1, GPP_CHECKPOINT_NEVER);
    gpp_error err = GPP_ERROR_INIT;
    gate_batch b;
    double loss[2];
    fill_batch(&b);
    cr_assert_eq(gpp_pipe_gradients(first, &b.tx, &b.tt, NULL, NULL, &loss[0], &err), GPP_OK, "%s",
                 err.msg);
    for (int partitions = 1; partitions <= 9; partitions++)
        for (int mode = 0; mode <= GPP_CHECKPOINT_BUDGET; mode++) {
            gpp_pipe *pipe = gate_pipe(model, partitions, (gpp_checkpoint)mode);
            cr_assert_eq(gpp_pipe_gradients(pipe, &b.tx, &b.tt, NULL, NULL, &loss[1], &err), GPP_OK,
                         "%s", err.msg);
            cr_expect_eq(loss[0], loss[1]);
            parity_same_gradients(pipe, first, 0, gpp_checkpoint_name((gpp_checkpoint)mode));
            gpp_pipe_free(pipe);
        }
    gpp_pipe_free(first);
    gpp_model_free(model);
}

/* Central differences of the loss. It is of degree 2 in a weight of gate, so they are exact but for
 * rounding: 1e-7 of a loss near 1, over a step of 0.1. */
Test(user_pipes, the_gradient_of_a_parameter_is_the_slope_of_the_loss)
{
    gpp_model *model = gate_model();
    gpp_pipe *pipe = gate_pipe(model, 3, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_error err = GPP_ERROR_INIT;
    gate_batch b;
    float g[3], w[3];
    fill_batch(&b);
    gpp_pipe_gradients(pipe, &b.tx, &b.tt, NULL, NULL, NULL, &err);
    gpp_pipe_gradient(pipe, "gate.weight", g, 3, &err);
    gpp_pipe_get(pipe, "gate.weight", w, 3, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    for (int k = 0; k < 3; k++) {
        double loss[2];
        float before = w[k];
        for (int side = 0; side < 2; side++) {
            w[k] = before + (side ? 0.05f : -0.05f);
            gpp_pipe_set(pipe, "gate.weight", w, 3, &err);
            gpp_pipe_evaluate(pipe, &b.tx, &b.tt, NULL, &loss[side], &err);
        }
        w[k] = before;
        cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
        cr_expect(fabs((loss[1] - loss[0]) / 0.1 - g[k]) < 1e-5, "slope %g, gradient %g",
                  (loss[1] - loss[0]) / 0.1, g[k]);
    }
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(user_pipes, a_frozen_parameter_gets_no_gradient_and_costs_the_others_nothing)
{
    gpp_model *model = gate_model();
    gpp_pipe *frozen = gate_pipe(model, 2, GPP_CHECKPOINT_ALWAYS);
    gpp_pipe *free_one = gate_pipe(model, 2, GPP_CHECKPOINT_ALWAYS);
    gpp_error err = GPP_ERROR_INIT;
    gate_batch b;
    float g[2][12];
    fill_batch(&b);
    cr_assert_eq(gpp_pipe_freeze(frozen, "gate", true, &err), GPP_OK, "%s", err.msg);
    gpp_pipe_gradients(frozen, &b.tx, &b.tt, NULL, NULL, NULL, &err);
    gpp_pipe_gradients(free_one, &b.tx, &b.tt, NULL, NULL, NULL, &err);
    gpp_pipe_gradient(frozen, "0.weight", g[0], 12, &err);
    gpp_pipe_gradient(free_one, "0.weight", g[1], 12, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    cr_expect(test_same(g[0], g[1], 12));
    cr_expect_eq(gpp_pipe_gradient(frozen, "gate.weight", g[0], 3, NULL), GPP_ESTATE);
    gpp_pipe_free(frozen);
    gpp_pipe_free(free_one);
    gpp_model_free(model);
}

/* --- images ----------------------------------------------------------------------------------- */

enum { N = 2, C = 3, H = 4, W = 5, PIXELS = C * H * W };

/* y = x times a number of its place (c, h, w), which is also what is stashed; what is popped is
 * added times the same. */
static float weight_of(int64_t k)
{
    return (float)(1 + k / (H * W) % C * 100 + k / W % H * 10 + k % W);
}

static gpp_status places_infer(gpp_signature *s)
{
    if (s->in[0].rank != 3)
        return GPP_ESHAPE;
    s->outputs = 1;
    s->out[0] = s->stash[0] = s->in[0];
    return GPP_OK;
}
static gpp_status places_forward(gpp_call *call)
{
    const float *x = call->in[0].data, *p = gpp_call_pop(call, "in")->data;
    float *y = call->out[0].data, *s = gpp_call_stash(call, "out")->data;
    if (call->in[0].rank != 4 || call->in[0].dim[1] != C || call->in[0].dim[3] != W)
        return gpp_call_fail(call, GPP_EKERNEL, "not N, C, H, W");
    for (int64_t k = 0; k < call->in[0].dim[0] * PIXELS; k++) {
        s[k] = x[k] * weight_of(k);
        y[k] = s[k] + p[k] * weight_of(k);
    }
    return GPP_OK;
}
static gpp_status places_backward(gpp_call *call)
{
    const float *g = call->grad_out[0].data, *gs = gpp_call_grad_stash(call, "out")->data;
    float *gx = call->grad_in[0].data, *gp = gpp_call_grad_pop(call, "in")->data;
    for (int64_t k = 0; k < call->in[0].dim[0] * PIXELS; k++) {
        gx[k] = (g[k] + gs[k]) * weight_of(k);
        gp[k] = g[k] * weight_of(k);
    }
    return GPP_OK;
}

Test(user_pipes, images_are_row_major_as_the_callers_are)
{
    static const char *const in[] = {"in", NULL}, *const out[] = {"out", NULL};
    const gpp_operator places = {.name = "places",
                                 .stash = out,
                                 .pop = in,
                                 .infer = places_infer,
                                 .forward = places_forward,
                                 .backward = places_backward};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    float v[N * PIXELS], w[N * PIXELS], one[N * PIXELS], g[N * PIXELS];
    parity_register(model, &places);
    gpp_model_add_text(model, "relu; stash name=in; places; identity; pop name=out mode=add", &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    parity_input(model, 3, (int64_t[]){C, H, W});
    for (int k = 0; k < N * PIXELS; k++) {
        v[k] = (float)(k + 1);
        one[k] = 1;
    }
    gpp_tensor x = {v, GPP_F32, 4, {N, C, H, W}}, y = x, gy = x, gx = x;
    y.data = w;
    gy.data = one;
    gx.data = g;
    for (int partitions = 1; partitions <= 5; partitions++) {
        gpp_pipe *pipe = parity_pipe(model, partitions, NULL, 2, GPP_CHECKPOINT_ALWAYS);
        parity_pass(pipe, &x, &y, &gy, &gx);
        for (int k = 0; k < N * PIXELS; k++) {
            cr_assert_eq(w[k], 3 * v[k] * weight_of(k % PIXELS), "y, element %d: %g", k, w[k]);
            cr_assert_eq(g[k], 3 * weight_of(k % PIXELS), "gradient, element %d: %g", k, g[k]);
        }
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}

/* --- what nobody wants ------------------------------------------------------------------------ */

/* Only the second output of muladd goes on; that of another is for nobody. */
Test(user_pipes, outputs_that_nobody_wants_can_be_written_all_the_same)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {1}}};
    const gpp_ref both[] = {{GPP_REF_INPUT, 0}, {GPP_REF_INPUT, 1}};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model_begin(model, "part", &err);
    gpp_model_add_text(model, "muladd", &err);
    gpp_model_from(model, both, 2, &err);
    gpp_model_add_text(model, "muladd", &err);
    gpp_model_end(model, (gpp_ref[]){{0, 1}}, 1, &err);
    gpp_model_add_text(model, "act", &err);
    gpp_model_set_inputs(model, in, 2, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, w[4], one[] = {1, 1, 1, 1}, ga[4], gb[4];
    gpp_tensor x[] = {{a, GPP_F32, 2, {4, 1}}, {b, GPP_F32, 2, {4, 1}}};
    gpp_tensor gx[] = {{ga, GPP_F32, 2, {4, 1}}, {gb, GPP_F32, 2, {4, 1}}};
    gpp_tensor y = {w, GPP_F32, 2, {4, 1}}, gy = {one, GPP_F32, 2, {4, 1}};
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, 2, (gpp_checkpoint)mode);
        parity_pass(pipe, x, &y, &gy, gx);
        for (int k = 0; k < 4; k++)
            cr_expect(w[k] == a[k] + b[k] && ga[k] == 1 && gb[k] == 1, "%g, %g, %g", w[k], ga[k],
                      gb[k]);
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}

/* Without a backward, what is before the operator has the gradient zero. */
Test(user_pipes, no_gradient_passes_an_operator_without_a_backward)
{
    user_script todo = {0};
    gpp_operator stop = user_probe(&todo, false);
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    float v[3] = {1, 2, 3}, w[3], g[3] = {7, 8, 9}, grad;
    gpp_tensor x = {v, GPP_F32, 2, {3, 1}}, y = {w, GPP_F32, 2, {3, 1}};
    gpp_tensor gx = {g, GPP_F32, 2, {3, 1}};
    stop.name = "stop";
    stop.backward = NULL;
    parity_register(model, &stop);
    gpp_model_add_text(model, "linear out=1 @a; stop; linear out=1 @b", &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    parity_input(model, 1, (int64_t[]){1});
    for (int partitions = 1; partitions <= 3; partitions++) {
        gpp_pipe *pipe = parity_pipe(model, partitions, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
        parity_pass(pipe, &x, &y, &x, &gx);
        cr_expect(g[0] == 0 && g[1] == 0 && g[2] == 0, "%g %g %g", g[0], g[1], g[2]);
        cr_expect(gpp_pipe_gradient(pipe, "a.bias", &grad, 1, NULL) == GPP_OK && grad == 0);
        cr_expect(gpp_pipe_gradient(pipe, "b.bias", &grad, 1, NULL) == GPP_OK && grad == 6);
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}

/* --- names and owners ------------------------------------------------------------------------- */

Test(user_pipes, a_name_is_registered_once_and_before_the_input)
{
    gpp_model *model = parity_model("act");
    gpp_error err = GPP_ERROR_INIT;
    gpp_operator again = user_gate;
    again.name = "act";
    cr_expect_eq(gpp_model_register(model, &again, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "act"), "%s", err.msg);
    again.name = "relu";
    cr_expect_eq(gpp_model_register(model, &again, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_register(model, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_register(NULL, &user_gate, NULL), GPP_EINVAL);
    parity_input(model, 1, (int64_t[]){1});
    cr_expect_eq(gpp_model_register(model, &user_gate, NULL), GPP_ESTATE);
    gpp_model_free(model);
    gpp_model_new(&model, NULL);
    cr_expect_eq(gpp_model_add_text(model, "act", NULL), GPP_ENOENT, "other models do not know it");
    gpp_model_free(model);
}

/* Pipes and models made from a model keep its operators when it has gone. */
Test(user_pipes, an_operator_outlives_the_model_it_was_registered_with)
{
    gpp_model *model = parity_model("act id=3"), *other;
    gpp_error err = GPP_ERROR_INIT;
    float v[2] = {1, 2}, w[2];
    gpp_tensor x = {v, GPP_F32, 2, {2, 1}}, y = {w, GPP_F32, 2, {2, 1}};
    gpp_model_new(&other, &err);
    cr_assert_eq(gpp_model_append(other, model, "part", &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    parity_input(other, 1, (int64_t[]){1});
    gpp_pipe *pipe[2];
    for (int k = 0; k < 2; k++)
        pipe[k] = parity_pipe(other, 1, NULL, 1, GPP_CHECKPOINT_NEVER);
    gpp_model_free(other);
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(gpp_pipe_evaluate(pipe[k], &x, NULL, &y, NULL, &err), GPP_OK, "%s", err.msg);
        cr_expect(test_same(v, w, 2) && parity_count('F', 3) == k + 1);
        gpp_pipe_free(pipe[k]);
    }
}

/* --- what calls are told, and when they run --------------------------------------------------- */

/* The diary: kind, micro-batch, operator. */
static void expect_order(const char *order)
{
    char text[512] = "";
    size_t used = 0;
    for (int k = 0; k < parity_diary_now.events; k++) {
        const parity_event *e = &parity_diary_now.event[k];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%c%d%d", k ? " " : "", e->kind,
                                 e->i, e->id);
    }
    cr_expect_str_eq(text, order);
}

/* A forward, and a backward with gradients of the input, of numbers that `act` passes on. */
static void pass(gpp_pipe *pipe, int64_t rows)
{
    float v[16], w[16], g[16];
    test_fill(v, 16, 1, -1, 1);
    gpp_tensor x = {v, GPP_F32, 2, {rows, 1}}, y = {w, GPP_F32, 2, {rows, 1}};
    gpp_tensor gx = {g, GPP_F32, 2, {rows, 1}};
    parity_pass(pipe, &x, &y, &x, &gx);
    cr_expect(test_same(v, w, rows) && test_same(v, g, rows), "all of it passes everything on");
}

static void expect_told(int recomputed)
{
    for (int k = 0; k < parity_diary_now.events; k++) {
        const parity_event *e = &parity_diary_now.event[k];
        cr_expect_eq(e->checkpointing, e->kind == 'F' && e->i < recomputed, "%c%d", e->kind, e->i);
        cr_expect_eq(e->recomputing, e->kind == 'R', "%c%d", e->kind, e->i);
        cr_expect(e->training, "%c%d", e->kind, e->i);
    }
}

/* An evaluation repeats nothing and keeps nothing that a backward could use. */
static void expect_evaluation(gpp_pipe *pipe, int64_t rows, int micro_batches)
{
    float v[16] = {0}, w[16];
    gpp_tensor x = {v, GPP_F32, 2, {rows, 1}}, y = {w, GPP_F32, 2, {rows, 1}};
    parity_diary_now.events = 0;
    cr_assert_eq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, NULL), GPP_OK);
    cr_expect(parity_tasks(pipe, GPP__RECOMPUTE) == 0 && parity_tasks(pipe, GPP__BACKWARD) == 0);
    const gpp__plan *plan = pipe->flight[0].graph->step.plan;
    for (size_t k = 0; k < plan->buffers; k++)
        cr_expect_neq(plan->buffer[k].cls, GPP__TAPE);
    cr_expect_eq(parity_diary_now.events, 2 * micro_batches);
    for (int k = 0; k < parity_diary_now.events; k++) {
        const parity_event *e = &parity_diary_now.event[k];
        cr_expect(e->kind == 'F' && !e->checkpointing && !e->training);
    }
    cr_expect_eq(gpp_pipe_backward(pipe, -1, &x, &y, NULL, NULL), GPP_ESTATE);
}

Test(user_pipes, a_call_is_told_whether_it_is_repeated_repeats_or_trains)
{
    static const struct {
        int64_t rows;
        int chunks, micro_batches, recomputed[3]; /* by gpp_checkpoint */
    } cases[] = {
        {.rows = 1, .chunks = 1, .micro_batches = 1, .recomputed = {0, 1, 0}},
        {.rows = 2, .chunks = 2, .micro_batches = 2, .recomputed = {1, 2, 0}},
        {.rows = 7, .chunks = 4, .micro_batches = 4, .recomputed = {3, 4, 0}},
        {.rows = 3, .chunks = 8, .micro_batches = 3, .recomputed = {2, 3, 0}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int mode = 0; mode < 3; mode++) {
            gpp_pipe *pipe = parity_linear("act id=0; act id=1", 1, 2, NULL, cases[k].chunks,
                                           (gpp_checkpoint)mode);
            pass(pipe, cases[k].rows);
            for (int id = 0; id < 2; id++) {
                cr_expect_eq(parity_count('F', id), cases[k].micro_batches);
                cr_expect_eq(parity_count('R', id), cases[k].recomputed[mode], "%d rows, %s",
                             (int)cases[k].rows, parity_modes[mode]);
                cr_expect_eq(parity_count('B', id), cases[k].micro_batches);
            }
            expect_told(cases[k].recomputed[mode]);
            expect_evaluation(pipe, cases[k].rows, cases[k].micro_batches);
            gpp_pipe_free(pipe);
        }
}

/* @return the pipe's number of devices; 0: there are no such devices */
static int devices_of(const char *a, const char *b, gpp_checkpoint mode)
{
    gpp_model *model = parity_model("act id=0; act id=1");
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe_info info = {0};
    gpp_pipe *pipe;
    parity_input(model, 1, (int64_t[]){1});
    o.partitions = o.device_count = 2;
    o.devices = (const char *[]){a, b};
    o.checkpoint = mode;
    if (gpp_pipe_new(&pipe, model, &o, NULL) == GPP_OK) {
        gpp_pipe_get_info(pipe, &info);
        pass(pipe, 1);
    }
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    return info.devices;
}

Test(user_pipes, every_device_has_a_thread_that_goes_through_its_partitions)
{
    cr_expect_eq(devices_of("cpu:0", "cpu:0", GPP_CHECKPOINT_ALWAYS), 1);
    expect_order("F00 F01 R01 B01 R00 B00");
    cr_expect_eq(devices_of("cpu", "cpu", GPP_CHECKPOINT_NEVER), 1);
    if (devices_of("cpu:1", "cpu:1", GPP_CHECKPOINT_NEVER) != 1)
        cr_skip_test("one core: the rest needs two");
    cr_expect_eq(devices_of("cpu:0-1", "cpu:0,1", GPP_CHECKPOINT_NEVER), 1, "two spellings of one");
    cr_expect_eq(devices_of("cpu:0", "cpu:1", GPP_CHECKPOINT_NEVER), 2);
    cr_assert(parity_find('F', 0, 0) >= 0 && parity_find('F', 1, 0) >= 0);
    cr_expect_neq(parity_diary_now.event[parity_find('F', 0, 0)].thread,
                  parity_diary_now.event[parity_find('F', 1, 0)].thread,
                  "two devices are two threads");
}

Test(user_pipes, when_a_pipe_returns_all_calls_it_began_have_ended)
{
    for (int fails = 0; fails < 2; fails++) {
        gpp_pipe *pipe =
            parity_linear("act id=0; act id=1 ms=10,0", 1, 2, NULL, 5, GPP_CHECKPOINT_NEVER);
        struct timespec later = {0, 50000000};
        float v[5] = {0}, w[5];
        gpp_tensor x = {v, GPP_F32, 2, {5, 1}}, y = {w, GPP_F32, 2, {5, 1}};
        gpp_error err = GPP_ERROR_INIT;
        parity_diary_now.fail.kind = fails ? 'F' : 0;
        parity_diary_now.fail.status = GPP_ENUMERIC;
        parity_diary_now.fail.says = "as expected";
        cr_expect_eq(gpp_pipe_forward(pipe, &x, &y, NULL, &err), fails ? GPP_ENUMERIC : GPP_OK);
        cr_expect(!fails || (strstr(err.msg, "as expected") && err.layer == 0 &&
                             err.micro_batch == 0 && err.partition == 0),
                  "the layer's own status and words: %s", err.msg);
        int events = parity_diary_now.events, ended = parity_diary_now.ended;
        cr_expect(fails || (events == 10 && !err.msg[0]), "%d calls, \"%s\"", events, err.msg);
        cr_expect_eq(events, ended, "%d begun, %d ended", events, ended);
        nanosleep(&later, NULL);
        cr_expect_eq(parity_diary_now.events, events, "nothing runs afterwards");
        gpp_pipe_free(pipe);
    }
}
