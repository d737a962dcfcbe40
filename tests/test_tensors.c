/*
 * tests/test_tensors.c: what goes into a pipe and comes out: several tensors, integers, inputs with
 * rows of their own, inputs that every micro-batch gets whole.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/parity.h"
#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(tensors, .init = test_keep_runtime, .fini = test_release_runtime);

/* --- several tensors -------------------------------------------------------------------------- */

Test(tensors, three_inputs_get_the_gradients_of_the_formula)
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
    x[1].data = NULL;
    gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, 2, GPP_CHECKPOINT_NEVER);
    cr_expect_neq(gpp_pipe_evaluate(pipe, x, NULL, &y, NULL, &err), GPP_OK,
                  "the second is missing");
    cr_expect(strstr(err.msg, "x[1]"), "%s", err.msg);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* Two inputs, one of integers, that no layer touches. */
Test(tensors, a_model_without_layers_gives_two_tensors_back)
{
    gpp_model *model =
        parity_with(NULL, (gpp_shape[]){{.rank = 1, .dim = {2}}, {.dtype = GPP_I64}}, 2);
    gpp_pipe *pipe = parity_pipe(model, 0, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_error err = GPP_ERROR_INIT;
    float a[] = {1, 2, 3, 4, 5, 6}, ya[6];
    int64_t b[] = {7, 8, 9}, yb[3];
    gpp_tensor x[] = {{a, GPP_F32, 2, {3, 2}}, {b, GPP_I64, 1, {3}}};
    gpp_tensor y[] = {{ya, GPP_F32, 2, {3, 2}}, {yb, GPP_I64, 1, {3}}};
    cr_assert_eq(gpp_pipe_evaluate(pipe, x, NULL, y, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect(!memcmp(a, ya, sizeof a) && !memcmp(b, yb, sizeof b));
    x[0].data = NULL;
    cr_expect_neq(gpp_pipe_evaluate(pipe, x, NULL, y, NULL, NULL), GPP_OK, "no tensor");
    x[0] = (gpp_tensor){a, GPP_I64, 2, {3, 2}};
    cr_expect_neq(gpp_pipe_evaluate(pipe, x, NULL, y, NULL, NULL), GPP_OK, "a wrong one");
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* A parameter that nothing uses has a gradient: zero. */
Test(tensors, a_parameter_that_nothing_uses_has_the_gradient_zero)
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

/* --- integers between partitions -------------------------------------------------------------- */

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

Test(tensors, integers_pass_from_partition_to_partition_without_a_gradient)
{
    integers_cross("mask; unmask");
    integers_cross("mask first=1; unmask first=1");
}

/* --- rows ------------------------------------------------------------------------------------- */

/* rows: how many rows each of its inputs has in a micro-batch, as one row. */
static gpp_status rows_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = (gpp_shape){
        .dtype = GPP_F32, .rank = 1, .dim = {s->inputs}, .batch = GPP_ROWS_FIXED, .rows = 1};
    return GPP_OK;
}
static gpp_status rows_forward(gpp_call *call)
{
    for (int t = 0; t < call->inputs; t++)
        ((float *)call->out[0].data)[t] = (float)call->in[t].dim[0];
    return GPP_OK;
}
static const gpp_operator rows_op = {.name = "rows", .infer = rows_infer, .forward = rows_forward};

/* The rows that each micro-batch of each input has. */
static gpp_status rows_of(const gpp_shape in[], int count, const int64_t batch[], int chunks,
                          gpp_checkpoint mode, float *pieces, int64_t m)
{
    static float zero[200];
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    gpp_tensor x[2], y = {pieces, GPP_F32, 2, {m, count}};
    parity_register(model, &rows_op);
    gpp_model_add_text(model, "act; rows", &err);
    gpp_model_set_inputs(model, in, count, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, chunks, mode);
    for (int t = 0; t < count; t++)
        x[t] = (gpp_tensor){zero, GPP_F32, 2, {batch[t], in[t].dim[0]}};
    gpp_status status = gpp_pipe_forward(pipe, x, &y, NULL, &err);
    cr_expect_eq(status != GPP_OK, err.msg[0] != '\0');
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    return status;
}

/* The second input is of the same batch, or of one of its own. */
Test(tensors, every_batch_is_cut_into_as_many_micro_batches_by_its_own_rows)
{
    static const struct {
        const char *why;
        int batch; /* of the second input */
        int64_t rows[2];
        int chunks, micro_batches;
        float pieces[6]; /* rows of both in each micro-batch; none: refused */
    } cases[] = {
        {.why = "one batch",
         .batch = 0,
         .rows = {4, 4},
         .chunks = 2,
         .micro_batches = 2,
         .pieces = {2, 2, 2, 2}},
        {.why = "one batch, two sizes", .batch = 0, .rows = {2, 4}, .chunks = 2},
        {.why = "twice as many",
         .batch = 1,
         .rows = {2, 4},
         .chunks = 2,
         .micro_batches = 2,
         .pieces = {1, 2, 1, 2}},
        {.why = "fewer rows than chunks",
         .batch = 1,
         .rows = {3, 6},
         .chunks = 5,
         .micro_batches = 3,
         .pieces = {1, 2, 1, 2, 1, 2}},
        {.why = "3 pieces and 4", .batch = 1, .rows = {3, 4}, .chunks = 5},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int mode = 0; mode < 3; mode++) {
            const gpp_shape in[] = {{.rank = 1, .dim = {10}},
                                    {.rank = 1, .dim = {10}, .batch = cases[k].batch}};
            int m = cases[k].micro_batches;
            float pieces[8] = {0};
            cr_expect_eq(rows_of(in, 2, cases[k].rows, cases[k].chunks, (gpp_checkpoint)mode,
                                 pieces, m ? m : 3),
                         m ? GPP_OK : GPP_ESHAPE, "%s", cases[k].why);
            cr_expect(test_same(pieces, cases[k].pieces, 2 * m), "%s, %s", cases[k].why,
                      parity_modes[mode]);
        }
}

Test(tensors, rows_that_a_micro_batch_has_by_itself_are_gathered)
{
    gpp_model *model = parity_with("act; rowsum", (gpp_shape[]){{.rank = 1, .dim = {1}}}, 1);
    gpp_pipe *pipe = parity_pipe(model, 2, (int[]){1, 1}, 3, GPP_CHECKPOINT_EXCEPT_LAST);
    float v[] = {1, 2, 4, 8, 16, 32, 64}, w[3], one[] = {1, 10, 100}, g[7];
    gpp_tensor x = {v, GPP_F32, 2, {7, 1}}, y = {w, GPP_F32, 2, {3, 1}};
    gpp_tensor gy = {one, GPP_F32, 2, {3, 1}}, gx = {g, GPP_F32, 2, {7, 1}};
    parity_pass(pipe, &x, &y, &gy, &gx);
    cr_expect(w[0] == 7 && w[1] == 56 && w[2] == 64, "7 rows in 3 pieces give 3 rows: %g %g %g",
              w[0], w[1], w[2]);
    cr_expect(g[0] == 1 && g[2] == 1 && g[3] == 10 && g[5] == 10 && g[6] == 100);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(tensors, an_input_of_fixed_rows_goes_whole_to_every_micro_batch)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {2}},
                            {.rank = 1, .dim = {3}, .batch = GPP_ROWS_FIXED, .rows = 10}};
    static float a[20], b[30], ya[20], yb[150], ga[20], gb[30], wb[150];
    test_fill(a, 20, 1, -1, 1);
    test_fill(b, 30, 2, -1, 1);
    test_fill(wb, 150, 3, -1, 1);
    gpp_tensor x[] = {{a, GPP_F32, 2, {10, 2}}, {b, GPP_F32, 2, {10, 3}}};
    gpp_tensor y[] = {{ya, GPP_F32, 2, {10, 2}}, {yb, GPP_F32, 2, {50, 3}}};
    gpp_tensor gy[] = {{a, GPP_F32, 2, {10, 2}}, {wb, GPP_F32, 2, {50, 3}}};
    gpp_tensor gx[] = {{ga, GPP_F32, 2, {10, 2}}, {gb, GPP_F32, 2, {10, 3}}};
    gpp_model *model = parity_with("act; act", in, 2);
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_pipe(model, 2, NULL, 5, (gpp_checkpoint)mode);
        parity_pass(pipe, x, y, gy, gx);
        cr_expect(test_same(a, ya, 20) && test_same(a, ga, 20));
        for (int i = 0; i < 5; i++)
            cr_expect(test_same(b, yb + 30 * i, 30), "copy %d", i);
        for (int k = 0; k < 30; k++) {
            float sum = wb[k] + wb[k + 30] + wb[k + 60] + wb[k + 90] + wb[k + 120];
            cr_expect_float_eq(gb[k], sum, 1e-6f, "%s: the sum over micro-batches: %g, %g",
                               parity_modes[mode], gb[k], sum);
        }
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
    gpp_shape none[] = {in[0], in[1]};
    none[1].rows = 0;
    model = parity_model("act");
    cr_expect_eq(gpp_model_set_inputs(model, none, 2, NULL), GPP_EINVAL, "nothing to replicate");
    gpp_model_free(model);
}

/* Numbers beside the tensors: every micro-batch gets them, and they come back once for each. */
Test(tensors, numbers_go_to_every_micro_batch_and_come_back_once_for_each)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {2}},
                            {.dtype = GPP_I64, .batch = GPP_ROWS_FIXED, .rows = 1},
                            {.batch = GPP_ROWS_FIXED, .rows = 1}};
    float v[20], w[20], g[20], real = 0.5f, reals[5], ones[5] = {1, 1, 1, 1, 1}, greal = 7;
    int64_t number = 5, numbers[5];
    test_fill(v, 20, 1, -1, 1);
    gpp_tensor x[] = {
        {v, GPP_F32, 2, {10, 2}}, {&number, GPP_I64, 0, {0}}, {&real, GPP_F32, 0, {0}}};
    gpp_tensor y[] = {
        {w, GPP_F32, 2, {10, 2}}, {numbers, GPP_I64, 1, {5}}, {reals, GPP_F32, 1, {5}}};
    gpp_tensor gy[] = {{v, GPP_F32, 2, {10, 2}}, {NULL, GPP_I64, 1, {5}}, {ones, GPP_F32, 1, {5}}};
    gpp_tensor gx[] = {
        {g, GPP_F32, 2, {10, 2}}, {NULL, GPP_I64, 0, {0}}, {&greal, GPP_F32, 0, {0}}};
    gpp_model *model = parity_with("act; act", in, 3);
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = parity_pipe(model, 2, NULL, 5, (gpp_checkpoint)mode);
        parity_pass(pipe, x, y, gy, gx);
        cr_expect(test_same(v, w, 20) && test_same(v, g, 20), "%s", parity_modes[mode]);
        for (int i = 0; i < 5; i++)
            cr_expect(numbers[i] == 5 && reals[i] == 0.5f);
        cr_expect_eq(greal, 5, "its gradient is the sum: %g", greal);
        gpp_pipe_free(pipe);
    }
    gpp_model_free(model);
}
