/*
 * tests/test_parity_transparency.c: a pipe computes what the plain model does: torchgpipe's
 * test_transparency.py, test_inplace.py and parts of test_bugs.py; pipes side by side as PyTorch's
 * pipe_with_ddp_test.py has them; fairscale's test_parity.py (PARITY.md).
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/parity.h"
#include "tests/support.h"

/* Outputs, input gradients and parameter gradients equal those of one partition and one
 * micro-batch. */
static void expect_transparent(const char *text, int64_t in, int64_t out, int partitions,
                               int chunks, gpp_checkpoint mode, const char *why)
{
    enum { ROWS = 10, MOST = 8 };
    float v[ROWS * MOST], gy[ROWS * MOST], before[ROWS * MOST], w[2][ROWS * MOST],
        g[2][ROWS * MOST];
    gpp_pipe *pipe[2];
    test_fill(v, ROWS * in, 1, -1, 1);
    test_fill(gy, ROWS * out, 2, -1, 1);
    memcpy(before, v, sizeof v);
    for (int k = 0; k < 2; k++) {
        pipe[k] = k ? parity_linear(text, in, partitions, NULL, chunks, mode)
                    : parity_linear(text, in, 1, NULL, 1, GPP_CHECKPOINT_NEVER);
        gpp_tensor x = {v, GPP_F32, 2, {ROWS, in}}, y = {w[k], GPP_F32, 2, {ROWS, out}};
        gpp_tensor grad_y = {gy, GPP_F32, 2, {ROWS, out}}, grad_x = {g[k], GPP_F32, 2, {ROWS, in}};
        parity_pass(pipe[k], &x, &y, &grad_y, &grad_x);
    }
    cr_expect(test_distance(w[1], w[0], ROWS * out) <= PARITY_CLOSE, "%s: outputs", why);
    cr_expect(test_distance(g[1], g[0], ROWS * in) <= PARITY_CLOSE, "%s: input gradients", why);
    parity_same_gradients(pipe[1], pipe[0], PARITY_CLOSE, why);
    cr_expect(!memcmp(v, before, sizeof v), "%s: the caller's tensor is read only", why);
    gpp_pipe_free(pipe[0]);
    gpp_pipe_free(pipe[1]);
}

Test(test_transparency, test_simple_linears)
{
    expect_transparent("linear out=2; linear out=4; linear out=2; linear out=1", 2, 1, 2, 4,
                       GPP_CHECKPOINT_EXCEPT_LAST, "four linears");
}

/* Operators that work in place never write a partition's input: the recomputation needs it. */
Test(test_inplace, test_inplace_on_requires_grad)
{
    for (int mode = 0; mode < 3; mode++)
        expect_transparent("linear out=4; relu; linear out=2", 3, 2, 3, 2, (gpp_checkpoint)mode,
                           "a partition that begins in place");
}

Test(test_inplace, test_inplace_on_not_requires_grad)
{
    for (int mode = 0; mode < 3; mode++)
        expect_transparent("relu; linear out=2", 3, 2, 1, 2, (gpp_checkpoint)mode,
                           "the model begins in place");
}

/* What was stashed is not what an operator in place makes of it afterwards. */
Test(test_inplace, test_inplace_incorrect_grad)
{
    for (int mode = 0; mode < 3; mode++)
        for (int partitions = 1; partitions <= 4; partitions++) {
            gpp_pipe *pipe = parity_linear("act; stash name=bar; relu; pop mode=add name=bar", 2,
                                           partitions, NULL, 2, (gpp_checkpoint)mode);
            float v[] = {1, -2, 3, -4}, w[4], one[] = {1, 1, 1, 1}, g[4];
            gpp_tensor x = {v, GPP_F32, 2, {2, 2}}, y = {w, GPP_F32, 2, {2, 2}};
            gpp_tensor gy = {one, GPP_F32, 2, {2, 2}}, gx = {g, GPP_F32, 2, {2, 2}};
            parity_pass(pipe, &x, &y, &gy, &gx);
            cr_expect(w[0] == 2 && w[1] == -2 && w[2] == 6 && w[3] == -4);
            cr_expect(g[0] == 2 && g[1] == 1 && g[2] == 2 && g[3] == 1, "%g %g %g %g", g[0], g[1],
                      g[2], g[3]);
            gpp_pipe_free(pipe);
        }
}

/* --- races, randomness ------------------------------------------------------------------------ */

/* (a, b) -> (a, 2b, 3b), the last gradient coming late; add, so that b's gradient is 5. */
static gpp_status triple_infer(gpp_signature *s)
{
    s->outputs = 3;
    s->out[0] = s->in[0];
    s->out[1] = s->out[2] = s->in[1];
    return GPP_OK;
}
static gpp_status triple_forward(gpp_call *call)
{
    for (int64_t k = 0; k < call->in[0].dim[0] * call->in[0].dim[1]; k++)
        for (int t = 0; t < 3; t++)
            ((float *)call->out[t].data)[k] =
                (t ? (float)(t + 1) : 1) * ((const float *)call->in[t > 0].data)[k];
    return GPP_OK;
}
static gpp_status triple_backward(gpp_call *call)
{
    for (int t = 0; t < 3; t++)
        for (int64_t k = 0; k < call->in[0].dim[0] * call->in[0].dim[1]; k++)
            if (call->grad_in[t > 0].data)
                ((float *)call->grad_in[t > 0].data)[k] +=
                    (t ? (float)(t + 1) : 1) * ((const float *)call->grad_out[t].data)[k];
    return GPP_OK;
}

Test(test_bugs, test_tuple_wait)
{
    const gpp_operator triple = {.name = "triple",
                                 .infer = triple_infer,
                                 .forward = triple_forward,
                                 .backward = triple_backward};
    const gpp_shape in[] = {{.rank = 1, .dim = {1000}}, {.rank = 1, .dim = {1000}}};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    static float a[2000], b[2000], w[2000], one[2000], ga[2000], gb[2000];
    parity_register(model, &triple);
    gpp_model_add_text(model, "triple; act ms=0,20; add", &err);
    gpp_model_set_inputs(model, in, 2, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    for (int k = 0; k < 2000; k++)
        one[k] = 1;
    gpp_tensor x[] = {{a, GPP_F32, 2, {2, 1000}}, {b, GPP_F32, 2, {2, 1000}}};
    gpp_tensor gx[] = {{ga, GPP_F32, 2, {2, 1000}}, {gb, GPP_F32, 2, {2, 1000}}};
    gpp_tensor y = {w, GPP_F32, 2, {2, 1000}}, gy = {one, GPP_F32, 2, {2, 1000}};
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 2}, 2, (gpp_checkpoint)mode);
        parity_pass(pipe, x, &y, &gy, gx);
        for (int k = 0; k < 2000; k++)
            cr_assert(ga[k] == 1 && gb[k] == 5, "element %d: %g, %g", k, ga[k], gb[k]);
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}

/* A hundred dropouts: where an element was dropped its gradient is, too. */
Test(test_bugs, test_parallel_randoms)
{
    gpp_model *model = parity_model(NULL);
    gpp_attr p[] = {GPP_REAL("p", 0.001)};
    static float v[10000], w[10000], g[10000];
    int zeros = 0;
    for (int k = 0; k < 100; k++)
        cr_assert_eq(gpp_model_add(model, "dropout", NULL, p, 1, NULL), GPP_OK);
    parity_input(model, 1, (int64_t[]){100});
    gpp_pipe *pipe = parity_pipe(model, 2, (int[]){50, 50}, 10, GPP_CHECKPOINT_ALWAYS);
    for (int k = 0; k < 10000; k++)
        v[k] = 1;
    gpp_tensor x = {v, GPP_F32, 2, {100, 100}}, y = {w, GPP_F32, 2, {100, 100}};
    gpp_tensor gx = {g, GPP_F32, 2, {100, 100}};
    parity_pass(pipe, &x, &y, &x, &gx);
    for (int k = 0; k < 10000; k++) {
        zeros += w[k] == 0;
        cr_assert((w[k] == 0) == (g[k] == 0), "element %d: %g, %g", k, w[k], g[k]);
    }
    /* 1 - 0.999^100 = 9.5 % of 10,000, standard deviation 29 */
    cr_expect(zeros > 800 && zeros < 1100, "%d zeros", zeros);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* --- pipes side by side, training ------------------------------------------------------------- */

/* Two replicas, each on half of the rows: the mean of their gradients is the gradient of all. */
Test(pipe_with_ddp_test, test_basic_ddp)
{
    static const char text[] = "linear out=8; relu; stash name=branch; linear out=4; "
                               "pop mode=cat name=branch; linear out=2";
    for (int mode = 0; mode < 3; mode++) {
        gpp_model *model = parity_model(text);
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *half[2], *whole;
        float v[16 * 3], t[16 * 2];
        parity_input(model, 1, (int64_t[]){3});
        test_fill(v, 48, 1, -1, 1);
        test_fill(t, 32, 2, -1, 1);
        o.loss = "mse";
        o.checkpoint = (gpp_checkpoint)mode;
        o.chunks = 2;
        o.partitions = 2;
        for (int k = 0; k < 2; k++) {
            gpp_tensor x = {v + 24 * k, GPP_F32, 2, {8, 3}}, y = {t + 16 * k, GPP_F32, 2, {8, 2}};
            cr_assert_eq(gpp_pipe_new(&half[k], model, &o, &err), GPP_OK, "%s", err.msg);
            cr_assert_eq(gpp_pipe_gradients(half[k], &x, &y, NULL, NULL, NULL, &err), GPP_OK);
        }
        o.partitions = o.chunks = 1;
        gpp_tensor x = {v, GPP_F32, 2, {16, 3}}, y = {t, GPP_F32, 2, {16, 2}};
        cr_assert_eq(gpp_pipe_new(&whole, model, &o, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_pipe_gradients(whole, &x, &y, NULL, NULL, NULL, &err), GPP_OK);
        for (int k = 0; k < gpp_pipe_parameters(whole); k++) {
            gpp_parameter_info info;
            float a[32], b[32], all[32];
            cr_assert_eq(gpp_pipe_parameter(whole, k, &info, NULL), GPP_OK);
            cr_assert(info.count <= 32 &&
                      !gpp_pipe_gradient(half[0], info.name, a, info.count, NULL) &&
                      !gpp_pipe_gradient(half[1], info.name, b, info.count, NULL) &&
                      !gpp_pipe_gradient(whole, info.name, all, info.count, NULL));
            for (int e = 0; e < info.count; e++)
                a[e] = (a[e] + b[e]) / 2;
            cr_expect(test_distance(a, all, info.count) <= PARITY_CLOSE, "%s, %s", info.name,
                      parity_modes[mode]);
        }
        gpp_pipe_free(half[0]);
        gpp_pipe_free(half[1]);
        gpp_pipe_free(whole);
        gpp_model_free(model);
    }
}

/* A parameter that nothing uses has a gradient: zero. */
Test(pipe_with_ddp_test, test_basic_ddp_unused_parameters)
{
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    float v[12], w[8], g[6], one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    gpp_tensor x = {v, GPP_F32, 2, {4, 3}}, y = {w, GPP_F32, 2, {4, 2}};
    gpp_tensor gy = {one, GPP_F32, 2, {4, 2}};
    test_fill(v, 12, 1, 0.5, 1);
    gpp_model_begin(model, NULL, &err);
    gpp_model_add_text(model, "linear out=2 @used", &err);
    gpp_model_from(model, (gpp_ref[]){{GPP_REF_INPUT, 0}}, 1, &err);
    gpp_model_add_text(model, "linear out=2 @unused", &err);
    gpp_model_end(model, (gpp_ref[]){{0, 0}}, 1, &err);
    gpp_model_add_text(model, "act", &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    parity_input(model, 1, (int64_t[]){3});
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, 2, (gpp_checkpoint)mode);
        parity_pass(pipe, &x, &y, &gy, NULL);
        cr_assert_eq(gpp_pipe_gradient(pipe, "unused.weight", g, 6, &err), GPP_OK, "%s", err.msg);
        cr_expect(test_same(g, (float[6]){0}, 6));
        cr_assert_eq(gpp_pipe_gradient(pipe, "used.weight", g, 6, &err), GPP_OK, "%s", err.msg);
        for (int k = 0; k < 6; k++)
            cr_expect(g[k] > 2, "%g: the sum of four inputs", g[k]);
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}

/* Everything a training leaves: parameters and buffers. */
static void train(const gpp_model *model, int partitions, int chunks, float *state, size_t room)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    size_t used = 0;
    o.partitions = partitions;
    o.chunks = chunks;
    o.loss = "mse";
    o.optimizer = "sgd lr=0.1 momentum=0.9";
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    for (int step = 0; step < 5; step++) {
        float v[8 * 3], t[8 * 2];
        test_fill(v, 24, (uint64_t)step, -1, 1);
        test_fill(t, 16, 100 + (uint64_t)step, -1, 1);
        gpp_tensor x = {v, GPP_F32, 2, {8, 3}}, y = {t, GPP_F32, 2, {8, 2}};
        cr_assert_eq(gpp_pipe_step(pipe, &x, &y, NULL, NULL, &err), GPP_OK, "%s", err.msg);
    }
    for (int k = 0; k < gpp_pipe_parameters(pipe); k++) {
        gpp_parameter_info info;
        cr_assert_eq(gpp_pipe_parameter(pipe, k, &info, NULL), GPP_OK);
        cr_assert(used + (size_t)info.count <= room);
        cr_assert_eq(gpp_pipe_get(pipe, info.name, state + used, info.count, NULL), GPP_OK);
        used += (size_t)info.count;
    }
    for (int k = 0; k < gpp_pipe_buffers(pipe); k++) {
        gpp_buffer_info info;
        cr_assert_eq(gpp_pipe_buffer(pipe, k, &info, NULL), GPP_OK);
        if (info.dtype != GPP_F32)
            continue;
        cr_assert(used + (size_t)info.count <= room);
        cr_assert_eq(gpp_pipe_get_buffer(pipe, info.name, state + used, info.count, NULL), GPP_OK);
        used += (size_t)info.count;
    }
    gpp_pipe_free(pipe);
}

Test(pipe_test_parity, test_correctness)
{
    static const struct {
        const char *why, *text;
        int chunks;
        double tolerance;
    } cases[] = {
        {"four micro-batches", "linear out=8; relu; linear out=8; relu; linear out=2", 4,
         PARITY_CLOSE},
        {"one, with buffers",
         "linear out=8; batchnorm; relu; linear out=8; batchnorm; linear out=2", 1, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        static float plain[512], cut[512];
        gpp_model *model = parity_model(cases[k].text);
        parity_input(model, 1, (int64_t[]){3});
        train(model, 1, 1, plain, 512);
        train(model, 3, cases[k].chunks, cut, 512);
        cr_expect(test_distance(cut, plain, 512) <= cases[k].tolerance, "%s", cases[k].why);
        gpp_model_free(model);
    }
}
