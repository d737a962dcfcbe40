/*
 * tests/test_parity_tensors.c: what goes into a pipe and comes out: tuples, what is no tensor,
 * integers, tensors on other devices. torchgpipe's test_copy.py and parts of test_gpipe.py;
 * PyTorch's test_pipe.py (PARITY.md).
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/parity.h"
#include "tests/support.h"

/* --- tuples in and out ------------------------------------------------------------------------ */

/* fc_a on the first input, fc_b on the second. */
static void add_pair(gpp_model *model)
{
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_begin(model, "pair", &err), GPP_OK, "%s", err.msg);
    gpp_model_from(model, (gpp_ref[]){{GPP_REF_INPUT, 0}}, 1, &err);
    gpp_model_add_text(model, "linear out=1 @fc_a", &err);
    gpp_model_from(model, (gpp_ref[]){{GPP_REF_INPUT, 1}}, 1, &err);
    gpp_model_add_text(model, "linear out=1 @fc_b", &err);
    gpp_model_end(model, (gpp_ref[]){{0, 0}, {1, 0}}, 2, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
}

static void input_pair(gpp_checkpoint mode)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {1}}};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    add_pair(model);
    cr_assert_eq(gpp_model_set_inputs(model, in, 2, &err), GPP_OK, "%s", err.msg);
    gpp_pipe *pipe = parity_pipe(model, 1, NULL, 2, mode);
    float a[10], b[10], ya[10], yb[10], ga[10], gb[10], one[10], wa, wb, g;
    test_fill(a, 10, 1, 0, 1);
    test_fill(b, 10, 2, 0, 1);
    for (int k = 0; k < 10; k++)
        one[k] = 0.1f;
    gpp_tensor x[] = {{a, GPP_F32, 2, {10, 1}}, {b, GPP_F32, 2, {10, 1}}};
    gpp_tensor y[] = {{ya, GPP_F32, 2, {10, 1}}, {yb, GPP_F32, 2, {10, 1}}};
    gpp_tensor gy[] = {{one, GPP_F32, 2, {10, 1}}, {one, GPP_F32, 2, {10, 1}}};
    gpp_tensor gx[] = {{ga, GPP_F32, 2, {10, 1}}, {gb, GPP_F32, 2, {10, 1}}};
    parity_pass(pipe, x, y, gy, gx);
    gpp_pipe_get(pipe, "fc_a.weight", &wa, 1, &err);
    gpp_pipe_get(pipe, "fc_b.weight", &wb, 1, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    for (int k = 0; k < 10; k++) {
        cr_expect_float_eq(ga[k], 0.1f * wa, 1e-6f);
        cr_expect_float_eq(gb[k], 0.1f * wb, 1e-6f);
    }
    cr_assert_eq(gpp_pipe_gradient(pipe, "fc_b.bias", &g, 1, NULL), GPP_OK);
    cr_expect_float_eq(g, 1, 1e-6f);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(test_gpipe, test_input_pair)
{
    input_pair(GPP_CHECKPOINT_EXCEPT_LAST);
}

Test(pipe_test_pipe, test_input_pair)
{
    for (int mode = 0; mode < 3; mode++)
        input_pair((gpp_checkpoint)mode);
}

/* One tensor is an array of one. */
Test(test_gpipe, test_input_singleton)
{
    gpp_pipe *pipe = parity_linear("linear out=1 @fc", 1, 1, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
    float v[10], w[10], g[10], one[10], grad;
    test_fill(v, 10, 1, 0.5, 1);
    for (int k = 0; k < 10; k++)
        one[k] = 1;
    gpp_tensor x[] = {{v, GPP_F32, 2, {10, 1}}}, y[] = {{w, GPP_F32, 2, {10, 1}}};
    gpp_tensor gy[] = {{one, GPP_F32, 2, {10, 1}}}, gx[] = {{g, GPP_F32, 2, {10, 1}}};
    cr_expect(gpp_model_inputs(gpp_pipe_model(pipe), NULL) == 1 &&
              gpp_model_outputs(gpp_pipe_model(pipe), NULL) == 1);
    parity_pass(pipe, x, y, gy, gx);
    for (int k = 0; k < 10; k++)
        cr_expect(g[k] != 0 && g[k] == g[0]);
    cr_expect(gpp_pipe_gradient(pipe, "fc.weight", &grad, 1, NULL) == GPP_OK && grad != 0);
    cr_expect(gpp_pipe_gradient(pipe, "fc.bias", &grad, 1, NULL) == GPP_OK && grad == 10);
    gpp_pipe_free(pipe);
}

Test(pipe_test_pipe, test_multiple_inputs)
{
    const gpp_shape in[] = {
        {.rank = 1, .dim = {2}}, {.rank = 1, .dim = {2}}, {.rank = 1, .dim = {2}}};
    const gpp_ref all[] = {{GPP_REF_INPUT, 0}, {GPP_REF_INPUT, 1}, {GPP_REF_INPUT, 2}};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model_begin(model, "three", &err);
    gpp_model_from(model, all, 3, &err);
    gpp_model_add_text(model, "add", &err);
    gpp_model_from(model, all, 3, &err);
    gpp_model_add_text(model, "mul", &err);
    gpp_model_end(model, (gpp_ref[]){{0, 0}, {1, 0}}, 2, &err);
    gpp_model_add_text(model, "add", &err);
    gpp_model_set_inputs(model, in, 3, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    float v[3][8], w[8], g[3][8], one[8];
    for (int t = 0; t < 3; t++)
        test_fill(v[t], 8, (uint64_t)t, 0, 1);
    for (int k = 0; k < 8; k++)
        one[k] = 1;
    gpp_tensor x[3], gx[3], y = {w, GPP_F32, 2, {4, 2}}, gy = {one, GPP_F32, 2, {4, 2}};
    for (int t = 0; t < 3; t++) {
        x[t] = (gpp_tensor){v[t], GPP_F32, 2, {4, 2}};
        gx[t] = (gpp_tensor){g[t], GPP_F32, 2, {4, 2}};
    }
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, 2, (gpp_checkpoint)mode);
        parity_pass(pipe, x, &y, &gy, gx);
        for (int k = 0; k < 8; k++) {
            float a = v[0][k], b = v[1][k], c = v[2][k];
            cr_expect_float_eq(w[k], a + b + c + a * b * c, 1e-6f);
            cr_expect_float_eq(g[0][k], 1 + b * c, 1e-6f);
            cr_expect_float_eq(g[1][k], 1 + a * c, 1e-6f);
            cr_expect_float_eq(g[2][k], 1 + a * b, 1e-6f);
        }
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}

/* --- what is no tensor ------------------------------------------------------------------------ */

static gpp_status odd_infer(gpp_signature *s)
{
    s->outputs = *(const int *)s->user;
    s->out[0] = s->out[1] = s->in[0];
    s->out[s->outputs > 0 ? s->outputs - 1 : 0].dtype = (gpp_dtype)9;
    return GPP_OK;
}

static gpp_status odd_forward(gpp_call *call)
{
    return gpp_call_fail(call, GPP_EKERNEL, "never called");
}

/* A layer that gives `outputs` tensors, the last of which is none, is refused before it can run. */
static void output_refused(int outputs, const char *says)
{
    const gpp_operator odd = {
        .name = "odd", .infer = odd_infer, .forward = odd_forward, .user = &outputs};
    gpp_model *model = parity_model("linear out=2");
    gpp_error err = GPP_ERROR_INIT;
    parity_register(model, &odd);
    cr_assert_eq(gpp_model_add_text(model, "odd; linear out=1", &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){2}, &err), GPP_ESHAPE);
    cr_expect(strstr(err.msg, says), "\"%s\"", err.msg);
    cr_expect_eq(err.layer, 1);
    gpp_model_free(model);
}

/* @param at  which of the inputs is not what the model takes */
static void input_refused(int count, int at)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {2}}, {.rank = 1, .dim = {2}}};
    gpp_model *model = parity_with("act", in, count);
    gpp_pipe *pipe = parity_pipe(model, 1, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
    float v[8] = {0}, w[2][8];
    const gpp_tensor fine = {v, GPP_F32, 2, {4, 2}};
    const gpp_tensor bad[] = {
        {NULL, GPP_F32, 2, {4, 2}}, {v, (gpp_dtype)9, 2, {4, 2}}, {v, GPP_I64, 2, {4, 2}},
        {v, GPP_F32, 0, {0}},       {v, GPP_F32, 99, {4, 2}},     {v, GPP_F32, -1, {4, 2}},
        {v, GPP_F32, 3, {4, 2, 1}}, {v, GPP_F32, 2, {4, 3}},      {v, GPP_F32, 2, {-4, 2}}};
    gpp_tensor y[] = {{w[0], GPP_F32, 2, {4, 2}}, {w[1], GPP_F32, 2, {4, 2}}};
    cr_expect_neq(gpp_pipe_evaluate(pipe, NULL, NULL, y, NULL, NULL), GPP_OK);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_tensor x[] = {fine, fine};
        x[at] = bad[k];
        gpp_status status = gpp_pipe_evaluate(pipe, x, NULL, y, NULL, &err);
        cr_expect(status == GPP_ESHAPE || status == GPP_EINVAL, "case %zu: %s", k,
                  gpp_status_name(status));
        cr_expect(err.msg[0], "case %zu", k);
    }
    gpp_tensor x[] = {fine, fine};
    cr_expect_eq(gpp_pipe_evaluate(pipe, x, NULL, y, NULL, NULL), GPP_OK, "still usable");
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(test_gpipe, test_non_tensor)
{
    output_refused(1, "output 0 is of type 9");
    input_refused(1, 0);
}

Test(test_gpipe, test_non_tensor_tuple)
{
    output_refused(2, "output 1 is of type 9");
    input_refused(2, 1);
}

Test(pipe_test_pipe, test_nested_input)
{
    input_refused(2, 0); /* nothing but a tensor can be in the array */
}

Test(pipe_test_pipe, test_no_tensor_output)
{
    output_refused(0, "declares 0 outputs");
}

Test(test_microbatch, test_check)
{
    input_refused(1, 0);
    input_refused(2, 0);
    input_refused(2, 1);
}

Test(pipe_test_pipe, test_input_varargs)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {1}}};
    gpp_model *model = parity_model("linear out=1");
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp_model_set_inputs(model, in, 2, &err), GPP_ESHAPE);
    cr_expect(strstr(err.msg, "takes 1 tensor, got 2"), "%s", err.msg);
    gpp_model_free(model);
}

/* No input, or none that would be cut: there would be no mini-batch. */
static void needs_a_tensor(void)
{
    const gpp_shape in[] = {{.dtype = GPP_I64, .batch = GPP_ROWS_FIXED, .rows = 1},
                            {.rank = 1, .dim = {2}, .batch = GPP_ROWS_FIXED, .rows = 3}};
    gpp_model *model = parity_model("act");
    gpp_error err = GPP_ERROR_INIT;
    for (int count = 0; count < 3; count++) {
        gpp_error_clear(&err);
        cr_expect_eq(gpp_model_set_inputs(model, in, count, &err), GPP_EINVAL, "%d inputs", count);
        cr_expect(err.msg[0]);
    }
    gpp_model_free(model);
}

Test(pipe_test_pipe, test_non_tensor)
{
    needs_a_tensor();
}

Test(pipe_test_microbatch, test_check)
{
    needs_a_tensor();
}

/* --- integers across a checkpointed boundary, devices ----------------------------------------- */

/* mask: (2x, x > 0), the integers first with attr 1; unmask gives the numbers back. */
static gpp_status mask_infer(gpp_signature *s)
{
    bool first = s->attr[0][0] != 0;
    s->outputs = 2;
    s->out[first] = s->out[!first] = s->in[0];
    s->out[!first].dtype = GPP_I64;
    return GPP_OK;
}
static gpp_status mask_forward(gpp_call *call)
{
    bool first = call->attr[0][0] != 0;
    const float *x = call->in[0].data;
    float *y = call->out[first].data;
    int64_t *positive = call->out[!first].data;
    for (int64_t k = 0; k < call->in[0].dim[0] * call->in[0].dim[1]; k++) {
        y[k] = 2 * x[k];
        positive[k] = x[k] > 0;
    }
    return GPP_OK;
}
static gpp_status mask_backward(gpp_call *call)
{
    const float *g = call->grad_out[call->attr[0][0] != 0].data;
    float *gx = call->grad_in[0].data;
    for (int64_t k = 0; g && gx && k < call->in[0].dim[0] * call->in[0].dim[1]; k++)
        gx[k] = 2 * g[k];
    return GPP_OK;
}
static gpp_status unmask_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[s->attr[0][0] != 0];
    return GPP_OK;
}
static gpp_status unmask_forward(gpp_call *call)
{
    bool first = call->attr[0][0] != 0;
    const float *x = call->in[first].data;
    const int64_t *positive = call->in[!first].data;
    float *y = call->out[0].data;
    for (int64_t k = 0; k < call->out[0].dim[0] * call->out[0].dim[1]; k++)
        y[k] = positive[k] ? x[k] : 0;
    return GPP_OK;
}
static gpp_status unmask_backward(gpp_call *call)
{
    bool first = call->attr[0][0] != 0;
    const int64_t *positive = call->in[!first].data;
    const float *g = call->grad_out[0].data;
    float *gx = call->grad_in[first].data;
    if (call->grad_in[!first].data)
        return gpp_call_fail(call, GPP_EKERNEL, "integers have no gradient");
    for (int64_t k = 0; gx && k < call->out[0].dim[0] * call->out[0].dim[1]; k++)
        gx[k] = positive[k] ? g[k] : 0;
    return GPP_OK;
}

static void integers_cross(const char *text)
{
    static const gpp_operator_key keys[] = {{"first", 1, false, 0, 0, 1}, {0}};
    const gpp_operator mask = {.name = "mask",
                               .keys = keys,
                               .infer = mask_infer,
                               .forward = mask_forward,
                               .backward = mask_backward};
    const gpp_operator unmask = {.name = "unmask",
                                 .keys = keys,
                                 .flags = GPP_OP_NEEDS_INPUT,
                                 .infer = unmask_infer,
                                 .forward = unmask_forward,
                                 .backward = unmask_backward};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = parity_model(NULL);
    parity_register(model, &mask);
    parity_register(model, &unmask);
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    parity_input(model, 1, (int64_t[]){2});
    float v[] = {1, -2, 3, -4, -5, 6}, w[6], one[] = {1, 1, 1, 1, 1, 1}, g[6];
    gpp_tensor x = {v, GPP_F32, 2, {3, 2}}, y = {w, GPP_F32, 2, {3, 2}};
    gpp_tensor gy = {one, GPP_F32, 2, {3, 2}}, gx = {g, GPP_F32, 2, {3, 2}};
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, 2, (gpp_checkpoint)mode);
        parity_pass(pipe, &x, &y, &gy, &gx);
        for (int k = 0; k < 6; k++)
            cr_expect(w[k] == (v[k] > 0 ? 2 * v[k] : 0) && g[k] == (v[k] > 0 ? 2 : 0));
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}

Test(pipe_test_pipe, test_checkpoint_non_float_input)
{
    integers_cross("mask; unmask");
}

Test(pipe_test_checkpoint, test_non_grad_output)
{
    integers_cross("mask; unmask");
    integers_cross("mask first=1; unmask first=1"); /* the order that the original fails with */
}

Test(test_copy, test_copy_wait_cpu_cpu)
{
    static const char *const devices[] = {"cpu:0", "cpu:1"}, *const same[] = {"cpu:0", "cpu:0"};
    gpp_model *model = parity_with("act; act", (gpp_shape[]){{.rank = 1, .dim = {100}}}, 1);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    static float v[1000], w[1000], g[1000];
    test_fill(v, 1000, 1, -1, 1);
    gpp_tensor x = {v, GPP_F32, 2, {10, 100}}, y = {w, GPP_F32, 2, {10, 100}};
    gpp_tensor gx = {g, GPP_F32, 2, {10, 100}};
    o.partitions = o.device_count = 2;
    o.chunks = 5;
    o.devices = devices;
    if (gpp_pipe_new(&pipe, model, &o, NULL) != GPP_OK) {
        o.devices = same;
        cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    }
    parity_pass(pipe, &x, &y, &x, &gx);
    cr_expect(test_same(v, w, 1000) && test_same(v, g, 1000));
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}
