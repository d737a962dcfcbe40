/*
 * tests/test_parity_checkpoint.c: which micro-batches are recomputed, when, and what layers see of
 * it: torchgpipe's test_checkpoint.py and parts of test_gpipe.py (PARITY.md).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "graph/run/pipe.h"
#include "tests/parity.h"
#include "tests/support.h"

/* @param order  "F0 F1 R1 B1": the diary, ids instead of micro-batches where there is one */
static void expect_order(const char *order)
{
    char text[512];
    size_t used = 0;
    text[0] = '\0';
    for (int k = 0; k < parity_diary_now.events; k++) {
        const parity_event *e = &parity_diary_now.event[k];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%c%d%d", k ? " " : "", e->kind,
                                 e->i, e->id);
    }
    cr_expect_str_eq(text, order);
}

/* Forward and backward of `rows` rows of `in` numbers in [0.5, 1), gradients 1. */
static void pass(gpp_pipe *pipe, int64_t rows, int64_t in, int64_t out, float *y, float *grad_x)
{
    float v[64], w[64], one[64];
    test_fill(v, 64, 1, 0.5, 1);
    for (int k = 0; k < 64; k++)
        one[k] = 1;
    gpp_tensor x = {v, GPP_F32, 2, {rows, in}}, to = {y ? y : w, GPP_F32, 2, {rows, out}};
    gpp_tensor gy = {one, GPP_F32, 2, {rows, out}}, gx = {grad_x, GPP_F32, 2, {rows, in}};
    parity_pass(pipe, &x, &to, &gy, grad_x ? &gx : NULL);
}

/* --- how many --------------------------------------------------------------------------------- */

Test(test_gpipe, test_checkpoint_mode)
{
    static const struct {
        int64_t rows;
        int chunks, recomputed[3]; /* by gpp_checkpoint */
    } cases[] = {
        {2, 2, {1, 2, 0}},
        {1, 1, {0, 1, 0}},
        {7, 4, {3, 4, 0}},
        {3, 8, {2, 3, 0}}, /* the last one that there is, not the last of `chunks` */
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int mode = 0; mode < 3; mode++) {
            gpp_pipe *pipe = parity_linear("act; linear out=1", 1, 1, NULL, cases[k].chunks,
                                           (gpp_checkpoint)mode);
            pass(pipe, cases[k].rows, 1, 1, NULL, NULL);
            cr_expect_eq(parity_tasks(pipe, GPP__RECOMPUTE), cases[k].recomputed[mode],
                         "%d rows, %s: %d", (int)cases[k].rows, parity_modes[mode],
                         parity_tasks(pipe, GPP__RECOMPUTE));
            gpp_pipe_free(pipe);
        }
}

static int buffers(const gpp_pipe *pipe, gpp__class cls)
{
    int count = 0;
    for (size_t k = 0; k < pipe->flight[0].graph->step.plan->buffers; k++)
        count += pipe->flight[0].graph->step.plan->buffer[k].cls == cls;
    return count;
}

Test(test_gpipe, test_checkpoint_eval)
{
    gpp_pipe *pipe = parity_linear("act", 1, 1, NULL, 2, GPP_CHECKPOINT_ALWAYS);
    float v[2] = {1, 2}, w[2];
    gpp_tensor x = {v, GPP_F32, 2, {2, 1}}, y = {w, GPP_F32, 2, {2, 1}};
    pass(pipe, 2, 1, 1, NULL, w);
    cr_expect_eq(parity_count('R', -1), 2);
    parity_diary_now.events = 0;
    cr_assert_eq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, NULL), GPP_OK);
    cr_expect(parity_tasks(pipe, GPP__RECOMPUTE) == 0 && parity_tasks(pipe, GPP__BACKWARD) == 0);
    cr_expect(parity_count('F', -1) == 2 && parity_diary_now.events == 2);
    cr_expect(!parity_diary_now.event[0].checkpointing, "nothing will be repeated");
    gpp_pipe_free(pipe);
}

/* An evaluation keeps nothing that a backward could use. */
Test(test_gpipe, test_no_grad)
{
    gpp_pipe *pipe = parity_linear("act; linear out=1", 1, 1, NULL, 2, GPP_CHECKPOINT_NEVER);
    float v[2] = {1, 2}, w[2];
    gpp_tensor x = {v, GPP_F32, 2, {2, 1}}, y = {w, GPP_F32, 2, {2, 1}};
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, NULL), GPP_OK);
    cr_expect_eq(buffers(pipe, GPP__TAPE), 0);
    cr_expect_eq(gpp_pipe_backward(pipe, -1, &x, &y, NULL, &err), GPP_ESTATE, "%s", err.msg);
    gpp_pipe_free(pipe);
}

/* --- in which order --------------------------------------------------------------------------- */

/* On one device the order is that of nested checkpoints: recomputation and backward of the second,
 * then of the first. */
Test(test_checkpoint, test_serial_checkpoints)
{
    static const char *const devices[] = {"cpu:0", "cpu:0"};
    gpp_model *model = parity_model("act id=0; act id=1");
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    float g[1];
    parity_input(model, 1, (int64_t[]){1});
    o.partitions = o.device_count = 2;
    o.devices = devices;
    o.checkpoint = GPP_CHECKPOINT_ALWAYS;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    pass(pipe, 1, 1, 1, NULL, g);
    expect_order("F00 F01 R01 B01 R00 B00");
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* --- what gets a gradient --------------------------------------------------------------------- */

/* No gradient of the input is wanted, and the first partition has no parameter: the second one's
 * have gradients all the same. */
Test(test_checkpoint, test_not_requires_grad)
{
    for (int mode = 0; mode < 3; mode++) {
        gpp_model *model = parity_model("act; linear out=1 @fc");
        float g;
        parity_input(model, 1, (int64_t[]){1});
        gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, 2, (gpp_checkpoint)mode);
        pass(pipe, 4, 1, 1, NULL, NULL);
        cr_assert_eq(gpp_pipe_gradient(pipe, "fc.bias", &g, 1, NULL), GPP_OK);
        cr_expect_eq(g, 4, "%s: %g", parity_modes[mode], g);
        gpp_pipe_free(pipe);
        gpp_model_free(model);
    }
}

/* y = w·x, w a parameter of the caller's own layer. */
static gpp_status times_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    s->params = 1;
    s->param[0] = (gpp_param_shape){"w", 1, {1}};
    return GPP_OK;
}
static gpp_status times_forward(gpp_call *call)
{
    const float *w = call->param[0].data, *x = call->in[0].data;
    for (int64_t k = 0; k < call->in[0].dim[0]; k++)
        ((float *)call->out[0].data)[k] = w[0] * x[k];
    return GPP_OK;
}
static gpp_status times_backward(gpp_call *call)
{
    const float *g = call->grad_out[0].data, *x = call->in[0].data, *w = call->param[0].data;
    float *gw = call->grad_param[0].data, *gx = call->grad_in[0].data;
    for (int64_t k = 0; k < call->in[0].dim[0]; k++) {
        if (gw)
            gw[0] += g[k] * x[k];
        if (gx)
            gx[k] = g[k] * w[0];
    }
    return GPP_OK;
}

Test(test_checkpoint, test_not_requires_grad_with_parameter)
{
    const gpp_operator times = {.name = "times",
                                .flags = GPP_OP_NEEDS_INPUT,
                                .infer = times_infer,
                                .forward = times_forward,
                                .backward = times_backward};
    for (int mode = 0; mode < 3; mode++) {
        gpp_model *model = parity_model(NULL);
        gpp_error err = GPP_ERROR_INIT;
        float g, v[4], sum = 0;
        parity_register(model, &times);
        cr_assert_eq(gpp_model_add_text(model, "times @t", &err), GPP_OK, "%s", err.msg);
        parity_input(model, 1, (int64_t[]){1});
        gpp_pipe *pipe = parity_pipe(model, 1, NULL, 2, (gpp_checkpoint)mode);
        pass(pipe, 4, 1, 1, NULL, NULL);
        test_fill(v, 4, 1, 0.5, 1);
        for (int k = 0; k < 4; k++)
            sum += v[k];
        cr_assert_eq(gpp_pipe_gradient(pipe, "t.w", &g, 1, &err), GPP_OK, "%s", err.msg);
        cr_expect_float_eq(g, sum, 1e-6f, "%s: %g", parity_modes[mode], g);
        gpp_pipe_free(pipe);
        gpp_model_free(model);
    }
}

/* The mask of a recomputation is that of the forward. */
Test(test_checkpoint, test_random_in_checkpoint)
{
    float y[2][64], g[2][64];
    for (int k = 0; k < 2; k++) {
        gpp_pipe *pipe =
            parity_linear("linear out=16; dropout p=0.5; linear out=16; dropout p=0.5", 16, 2, NULL,
                          2, k ? GPP_CHECKPOINT_ALWAYS : GPP_CHECKPOINT_NEVER);
        pass(pipe, 4, 16, 16, y[k], g[k]);
        gpp_pipe_free(pipe);
    }
    int zeros = 0;
    for (int k = 0; k < 64; k++)
        zeros += y[0][k] == 0;
    cr_expect(zeros > 10 && zeros < 54, "%d of 64 dropped", zeros);
    cr_expect(test_same(y[0], y[1], 64) && test_same(g[0], g[1], 64));
}

/* --- what layers see -------------------------------------------------------------------------- */

static void expect_flags(int at, char kind, bool checkpointing, bool recomputing)
{
    const parity_event *e = &parity_diary_now.event[at];
    cr_assert(at < parity_diary_now.events);
    cr_expect(e->kind == kind && e->checkpointing == checkpointing && e->recomputing == recomputing,
              "call %d: %c, %d %d", at, e->kind, e->checkpointing, e->recomputing);
}

Test(test_checkpoint, test_detect_checkpointing_recomputing)
{
    gpp_pipe *pipe = parity_linear("act", 1, 1, NULL, 1, GPP_CHECKPOINT_ALWAYS);
    float g;
    pass(pipe, 1, 1, 1, NULL, &g);
    cr_assert_eq(parity_diary_now.events, 3);
    expect_flags(0, 'F', true, false);
    expect_flags(1, 'R', false, true);
    expect_flags(2, 'B', false, false);
    gpp_pipe_free(pipe);
}

Test(test_checkpoint, test_detect_checkpointing_recomputing_without_checkpoint)
{
    gpp_pipe *pipe = parity_linear("act", 1, 1, NULL, 1, GPP_CHECKPOINT_NEVER);
    float g;
    pass(pipe, 1, 1, 1, NULL, &g);
    cr_assert_eq(parity_diary_now.events, 2);
    expect_flags(0, 'F', false, false);
    expect_flags(1, 'B', false, false);
    cr_expect(!gpp_is_checkpointing(NULL) && !gpp_is_recomputing(NULL), "outside");
    gpp_pipe_free(pipe);
}

/* What is done once for each micro-batch: in forwards that repeat nothing. */
Test(test_checkpoint, side_effects_happen_once_for_each_micro_batch)
{
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_linear("act id=0; act id=1", 1, 2, NULL, 4, (gpp_checkpoint)mode);
        float g[7];
        static const int recomputed[] = {3, 4, 0};
        pass(pipe, 7, 1, 1, NULL, g);
        for (int id = 0; id < 2; id++) {
            cr_expect_eq(parity_count('F', id), 4);
            cr_expect_eq(parity_count('R', id), recomputed[mode], "%s", parity_modes[mode]);
            cr_expect_eq(parity_count('B', id), 4);
        }
        gpp_pipe_free(pipe);
    }
}
