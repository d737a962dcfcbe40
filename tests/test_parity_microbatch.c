/*
 * tests/test_parity_microbatch.c: how mini-batches are cut and gathered: torchgpipe's
 * test_microbatch.py; uneven batches, tensors that are not cut and side inputs of PyTorch's
 * test_pipe.py (PARITY.md).
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/parity.h"
#include "tests/support.h"

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

Test(test_microbatch, test_batch_atomic)
{
    gpp_shape shape[GPP_MAX_TENSORS];
    gpp_model *model = parity_with("act", (gpp_shape[]){{.rank = 1, .dim = {42}}}, 1);
    cr_assert_eq(gpp_model_inputs(model, shape), 1);
    cr_expect(shape[0].rank == 1 && shape[0].dim[0] == 42 && shape[0].batch == 0);
    cr_assert_eq(gpp_model_outputs(model, shape), 1);
    cr_expect(shape[0].rank == 1 && shape[0].dim[0] == 42);
    gpp_model_free(model);
}

Test(test_microbatch, test_batch_non_atomic)
{
    gpp_shape shape[GPP_MAX_TENSORS];
    gpp_model *model =
        parity_with("act", (gpp_shape[]){{.rank = 1, .dim = {4}}, {.dtype = GPP_I64}}, 2);
    cr_assert_eq(gpp_model_outputs(model, shape), 2);
    cr_expect(shape[0].dtype == GPP_F32 && shape[0].rank == 1 && shape[0].dim[0] == 4);
    cr_expect(shape[1].dtype == GPP_I64 && shape[1].rank == 0);
    gpp_model_free(model);
}

/* Layers replace what is passed on: one tensor by two, two by two others, two by one. */
static void replaced(int partitions, const int balance[])
{
    gpp_pipe *pipe = parity_linear("split dim=1 parts=2; muladd; cat dim=1", 2, partitions, balance,
                                   3, GPP_CHECKPOINT_ALWAYS);
    float v[] = {1, 2, 3, 4, 5, 6, 7, 8}, w[8];
    gpp_tensor x = {v, GPP_F32, 2, {4, 2}}, y = {w, GPP_F32, 2, {4, 2}};
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, &err), GPP_OK, "%s", err.msg);
    static const float want[] = {2, 3, 12, 7, 30, 11, 56, 15};
    cr_expect(test_same(w, want, 8));
    gpp_pipe_free(pipe);
}

Test(test_microbatch, test_batch_setitem_by_index)
{
    replaced(1, NULL);
}

Test(test_microbatch, test_batch_setitem_by_slice)
{
    replaced(3, (int[]){1, 1, 1});
}

Test(test_microbatch, test_gather_tensors)
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

Test(test_microbatch, test_gather_tuples)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {2}}};
    gpp_model *model = parity_with("act", in, 2);
    gpp_pipe *pipe = parity_pipe(model, 1, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
    float a[4], b[8], ya[4], yb[8];
    test_fill(a, 4, 1, -1, 1);
    test_fill(b, 8, 2, -1, 1);
    gpp_tensor x[] = {{a, GPP_F32, 2, {4, 1}}, {b, GPP_F32, 2, {4, 2}}};
    gpp_tensor y[] = {{ya, GPP_F32, 2, {4, 1}}, {yb, GPP_F32, 2, {4, 2}}};
    cr_assert_eq(gpp_pipe_evaluate(pipe, x, NULL, y, NULL, NULL), GPP_OK);
    cr_expect(test_same(a, ya, 4) && test_same(b, yb, 8));
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

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

Test(test_microbatch, test_scatter_tensor)
{
    static const struct {
        int64_t batch;
        int chunks, m;
        float pieces[8];
    } cases[] = {
        {2, 2, 2, {1, 1}},       {8, 4, 4, {2, 2, 2, 2}}, {10, 4, 4, {3, 3, 3, 1}},
        {7, 4, 4, {2, 2, 2, 1}}, {9, 4, 3, {3, 3, 3}},    {6, 4, 3, {2, 2, 2}},
        {5, 4, 3, {2, 2, 1}},    {2, 4, 2, {1, 1}},       {3, 8, 3, {1, 1, 1}},
        {7, 3, 3, {3, 3, 1}},
    };
    const gpp_shape in = {.rank = 1, .dim = {1}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        float pieces[8];
        cr_assert_eq(rows_of(&in, 1, &cases[k].batch, cases[k].chunks, GPP_CHECKPOINT_NEVER, pieces,
                             cases[k].m),
                     GPP_OK);
        cr_expect(test_same(pieces, cases[k].pieces, cases[k].m), "%d rows, chunks %d",
                  (int)cases[k].batch, cases[k].chunks);
    }
}

Test(test_microbatch, test_scatter_tuple)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {2}, .batch = 1}};
    float pieces[4];
    cr_assert_eq(rows_of(in, 2, (int64_t[]){2, 4}, 2, GPP_CHECKPOINT_NEVER, pieces, 2), GPP_OK);
    cr_expect(test_same(pieces, (float[]){1, 2, 1, 2}, 4));
}

Test(pipe_test_microbatch, test_scatter_multiple_tensors)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.rank = 1, .dim = {2}}};
    float pieces[4];
    cr_assert_eq(rows_of(in, 2, (int64_t[]){4, 4}, 2, GPP_CHECKPOINT_NEVER, pieces, 2), GPP_OK);
    cr_expect(test_same(pieces, (float[]){2, 2, 2, 2}, 4));
    cr_expect_neq(rows_of(in, 2, (int64_t[]){2, 4}, 2, GPP_CHECKPOINT_NEVER, pieces, 2), GPP_OK,
                  "one batch, two sizes");
}

Test(pipe_test_pipe, test_uneven_batch_size)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {10}}, {.rank = 1, .dim = {10}, .batch = 1}};
    for (int mode = 0; mode < 3; mode++) {
        float pieces[8];
        cr_assert_eq(rows_of(in, 2, (int64_t[]){3, 6}, 5, (gpp_checkpoint)mode, pieces, 3), GPP_OK);
        cr_expect(test_same(pieces, (float[]){1, 2, 1, 2, 1, 2}, 6), "%s", parity_modes[mode]);
        cr_expect_eq(rows_of(in, 2, (int64_t[]){3, 4}, 5, (gpp_checkpoint)mode, pieces, 3),
                     GPP_ESHAPE, "3 pieces and 4");
    }
}

Test(pipe_test_pipe, test_no_chunk)
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
Test(pipe_test_pipe, test_valid_non_tensor)
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
