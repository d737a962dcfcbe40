/*
 * tests/test_parity_batchnorm.c: batch normalisation over micro-batches, deferred and plain:
 * torchgpipe's test_deferred_batch_norm.py and parts of test_gpipe.py (PARITY.md). The oracle is
 * the plain layer on the mini-batch in one piece.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/parity.h"
#include "tests/support.h"

enum { N = 16, C = 3, S = 12, COUNT = N * C * S * S };

/* Images with channels of size 1, 10, 100 and rows around 1, 2, 4, ..., as in the originals. */
static void tilted(float *x, int rows, uint64_t seed)
{
    test_fill(x, rows * C * S * S, seed, 0, 1);
    for (int k = 0; k < rows * C * S * S; k++) {
        static const float size[] = {1, 10, 100};
        x[k] = x[k] * size[k / (S * S) % C] + ldexpf(1, k / (C * S * S));
    }
}

static gpp_pipe *images(const char *text, int partitions, int chunks, gpp_checkpoint mode,
                        bool deferred)
{
    gpp_model *model = parity_model(text);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    parity_input(model, 3, (int64_t[]){C, S, S});
    o.partitions = partitions;
    o.chunks = chunks;
    o.checkpoint = mode;
    o.seed = 3;
    o.deferred_batch_norm = deferred;
    o.optimizer = "sgd lr=1";
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

static gpp_tensor image(float *data, int rows)
{
    return (gpp_tensor){data, GPP_F32, 4, {rows, C, S, S}};
}

static void run(gpp_pipe *pipe, float *x, float *y, float *grad_y, float *grad_x, int rows)
{
    gpp_tensor tx = image(x, rows), ty = image(y, rows), gy = image(grad_y, rows);
    gpp_tensor gx = image(grad_x, rows);
    parity_pass(pipe, &tx, &ty, &gy, grad_x ? &gx : NULL);
}

static void evaluate(gpp_pipe *pipe, float *x, float *y, int rows)
{
    gpp_tensor tx = image(x, rows), ty = image(y, rows);
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_evaluate(pipe, &tx, NULL, &ty, NULL, &err), GPP_OK, "%s", err.msg);
}

typedef struct stats {
    float mean[C], var[C];
    int64_t tracked;
} stats;

static stats stats_of(gpp_pipe *pipe)
{
    stats s;
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_get_buffer(pipe, "bn.running_mean", s.mean, C, &err);
    gpp_pipe_get_buffer(pipe, "bn.running_var", s.var, C, &err);
    gpp_pipe_get_buffer(pipe, "bn.num_batches_tracked", &s.tracked, 1, &err);
    cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
    return s;
}

static void expect_close(const float *got, const float *want, int count, double tolerance,
                         const char *why)
{
    for (int k = 0; k < count; k++)
        cr_expect(fabs((double)got[k] - (double)want[k]) <= tolerance, "%s[%d]: %g, %g", why, k,
                  got[k], want[k]);
}

static float x[COUNT], y[2][COUNT], grad_y[COUNT], grad_x[2][COUNT];

/* --- test_gpipe.py ---------------------------------------------------------------------------- */

/* 400 values a channel: the biased variance, of about 0.08, is 2e-4 of itself smaller than the
 * unbiased one, a tenth of which enters. 1e-4 is the original's tolerance. */
Test(test_gpipe, test_deferred_batch_norm)
{
    test_fill(x, COUNT, 1, 0, 1);
    test_fill(grad_y, COUNT, 2, -1, 1);
    gpp_pipe *plain = images("batchnorm @bn", 1, 1, GPP_CHECKPOINT_NEVER, false);
    run(plain, x, y[0], grad_y, NULL, 4);
    stats want = stats_of(plain);
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe = images("batchnorm @bn", 1, 2, (gpp_checkpoint)mode, true);
        run(pipe, x, y[1], grad_y, NULL, 4);
        stats got = stats_of(pipe);
        expect_close(got.mean, want.mean, C, 1e-4, "mean");
        expect_close(got.var, want.var, C, 1e-4, "variance");
        cr_expect_eq(got.tracked, 1, "%s: once a mini-batch, %d", parity_modes[mode],
                     (int)got.tracked);
        gpp_pipe_free(pipe);
    }
    gpp_pipe_free(plain);
}

Test(test_gpipe, test_deferred_batch_norm_params)
{
    test_fill(x, COUNT, 1, 0, 1);
    test_fill(grad_y, COUNT, 2, -1, 1);
    gpp_pipe *plain = images("batchnorm @bn", 1, 1, GPP_CHECKPOINT_NEVER, false);
    run(plain, x, y[0], grad_y, NULL, 4);
    for (int mode = 1; mode < 3; mode++) { /* always, never */
        gpp_pipe *pipe = images("batchnorm @bn", 1, 1, (gpp_checkpoint)mode, true);
        run(pipe, x, y[1], grad_y, NULL, 4);
        parity_same_gradients(pipe, plain, 0, parity_modes[mode]);
        gpp_pipe_free(pipe);
    }
    gpp_pipe_free(plain);
}

/* --- test_deferred_batch_norm.py -------------------------------------------------------------- */

/* Each micro-batch is normalised by its own statistics, as the plain layer does on that piece. */
static void transparent(int chunks, bool input_gradient)
{
    float weight[2][C] = {{0}}, bias[2][C] = {{0}}, part[C];
    tilted(x, N, 1);
    test_fill(grad_y, COUNT, 2, -1, 1);
    gpp_pipe *pipe = images("batchnorm @bn", 1, chunks, GPP_CHECKPOINT_EXCEPT_LAST, true);
    gpp_pipe *plain = images("batchnorm @bn", 1, 1, GPP_CHECKPOINT_NEVER, false);
    run(pipe, x, y[0], grad_y, input_gradient ? grad_x[0] : NULL, N);
    cr_assert_eq(gpp_pipe_gradient(pipe, "bn.weight", weight[0], C, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_gradient(pipe, "bn.bias", bias[0], C, NULL), GPP_OK);
    for (int i = 0, rows = N / chunks; i < chunks; i++) {
        int at = i * rows * C * S * S;
        run(plain, x + at, y[1] + at, grad_y + at, grad_x[1] + at, rows);
        cr_assert_eq(gpp_pipe_gradient(plain, "bn.weight", part, C, NULL), GPP_OK);
        for (int c = 0; c < C; c++)
            weight[1][c] += part[c];
        cr_assert_eq(gpp_pipe_gradient(plain, "bn.bias", part, C, NULL), GPP_OK);
        for (int c = 0; c < C; c++)
            bias[1][c] += part[c];
    }
    cr_expect(test_distance(y[0], y[1], COUNT) <= PARITY_CLOSE, "outputs, chunks %d", chunks);
    cr_expect(test_distance(weight[0], weight[1], C) <= PARITY_CLOSE, "weight, chunks %d", chunks);
    cr_expect(test_distance(bias[0], bias[1], C) <= PARITY_CLOSE, "bias, chunks %d", chunks);
    if (input_gradient)
        cr_expect(test_distance(grad_x[0], grad_x[1], COUNT) <= PARITY_CLOSE, "input gradients");
    gpp_pipe_free(pipe);
    gpp_pipe_free(plain);
}

Test(test_deferred_batch_norm, test_transparency)
{
    for (int k = 0; k < 4; k++)
        transparent(k & 1 ? 4 : 1, k & 2);
}

/* Mean and biased variance of the whole mini-batch, however it was cut. */
Test(test_deferred_batch_norm, test_running_stats)
{
    static const char *const texts[] = {"batchnorm momentum=0.1 @bn",
                                        "batchnorm momentum=none @bn"};
    tilted(x, N, 1);
    for (int k = 0; k < 2; k++)
        for (int chunks = 1; chunks <= 32; chunks *= 2) {
            gpp_pipe *pipe = images(texts[k], 1, chunks, GPP_CHECKPOINT_EXCEPT_LAST, true);
            run(pipe, x, y[0], x, NULL, N);
            stats got = stats_of(pipe);
            for (int c = 0; c < C; c++) {
                double mean = 0, var = 0, factor = k ? 1 : 0.1;
                for (int e = 0; e < COUNT; e++)
                    mean += e / (S * S) % C == c ? (double)x[e] / (N * S * S) : 0;
                for (int e = 0; e < COUNT; e++)
                    var += e / (S * S) % C == c ? pow((double)x[e] - mean, 2) / (N * S * S) : 0;
                cr_expect_float_eq(got.mean[c], factor * mean, 1e-5 * mean);
                var = factor * var + (1 - factor);
                cr_expect_float_eq(got.var[c], var, 1e-5 * var, "chunks %d: %g, %g", chunks,
                                   got.var[c], var);
            }
            gpp_pipe_free(pipe);
        }
}

/* The worked numbers of the reference: 1 ... 7, 9 in four micro-batches, then twice that. */
Test(test_deferred_batch_norm, running_stats_are_the_worked_numbers)
{
    static const struct {
        const char *why, *text;
        bool deferred;
        float mean[2], var[2];
    } cases[] = {
        {"deferred", "batchnorm @bn", true, {0.4625f, 1.34125f}, {1.5234375f, 3.86484375f}},
        {"deferred, cumulative",
         "batchnorm momentum=none @bn",
         true,
         {4.625f, 6.9375f},
         {6.234375f, 15.5859375f}},
        {"plain, in one piece", "batchnorm @bn", false, {0.4625f, 1.34125f}, {1.6125f, 4.30125f}},
        {"plain, cumulative",
         "batchnorm momentum=none @bn",
         false,
         {4.625f, 6.9375f},
         {7.125f, 17.8125f}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        float v[] = {1, 2, 3, 4, 5, 6, 7, 9}, w[8], mean, var;
        gpp_model *model = parity_model(cases[k].text);
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *pipe;
        parity_input(model, 1, (int64_t[]){1});
        o.chunks = cases[k].deferred ? 4 : 1;
        o.deferred_batch_norm = cases[k].deferred;
        cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
        for (int step = 0; step < 2; step++) {
            gpp_tensor in = {v, GPP_F32, 2, {8, 1}}, out = {w, GPP_F32, 2, {8, 1}};
            parity_pass(pipe, &in, &out, &in, NULL);
            gpp_pipe_get_buffer(pipe, "bn.running_mean", &mean, 1, &err);
            gpp_pipe_get_buffer(pipe, "bn.running_var", &var, 1, &err);
            cr_assert_eq(err.code, GPP_OK, "%s", err.msg);
            cr_expect_float_eq(mean, cases[k].mean[step], 1e-6f, "%s: mean %g", cases[k].why, mean);
            cr_expect_float_eq(var, cases[k].var[step], 2e-6f, "%s: variance %g", cases[k].why,
                               var);
            for (int e = 0; e < 8; e++)
                v[e] *= 2;
        }
        gpp_pipe_free(pipe);
        gpp_model_free(model);
    }
}

/* Fewer micro-batches than chunks: upstream forgets these, and mixes them into the next ones. */
Test(test_deferred_batch_norm, statistics_of_few_rows_count_and_do_not_bleed)
{
    tilted(x, N, 1);
    gpp_pipe *few = images("batchnorm @bn", 1, 16, GPP_CHECKPOINT_EXCEPT_LAST, true);
    gpp_pipe *one = images("batchnorm @bn", 1, 1, GPP_CHECKPOINT_EXCEPT_LAST, true);
    for (int step = 0; step < 3; step++) {
        run(few, x, y[0], x, NULL, 3 + step);
        run(one, x, y[0], x, NULL, 3 + step);
        stats got = stats_of(few), want = stats_of(one);
        cr_expect_eq(got.tracked, step + 1);
        cr_expect(test_distance(got.mean, want.mean, C) <= PARITY_CLOSE);
        cr_expect(test_distance(got.var, want.var, C) <= PARITY_CLOSE);
    }
    gpp_pipe_free(few);
    gpp_pipe_free(one);
}

/* Converting a model does what the pipe's option does, twice is once, in composite layers too; a
 * layer without statistics stays as it is. */
Test(test_deferred_batch_norm, test_convert_deferred_batch_norm)
{
    static const char text[] = "chain { conv2d out=3 kernel=1; batchnorm @bn }; batchnorm track=0";
    stats got[2];
    tilted(x, N, 1);
    for (int k = 0; k < 2; k++) {
        gpp_model *model = parity_model(text);
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe *pipe;
        for (int again = 0; k && again < 2; again++)
            cr_assert_eq(gpp_model_defer_batch_norm(model, &err), GPP_OK, "%s", err.msg);
        parity_input(model, 3, (int64_t[]){C, S, S});
        o.chunks = 4;
        o.seed = 3;
        o.deferred_batch_norm = !k;
        cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(gpp_pipe_buffers(pipe), 3, "of the one layer that tracks");
        run(pipe, x, y[k], x, NULL, N);
        got[k] = stats_of(pipe);
        gpp_pipe_free(pipe);
        gpp_model_free(model);
    }
    cr_expect_eq(got[0].tracked, 1);
    cr_expect(test_same(y[0], y[1], COUNT) && test_same(got[0].mean, got[1].mean, C) &&
              test_same(got[0].var, got[1].var, C));
}

Test(test_deferred_batch_norm, test_eval)
{
    float mean[] = {0.5f, -3, 70}, var[] = {0.1f, 9, 800};
    tilted(x, N, 1);
    for (int k = 0; k < 2; k++) {
        gpp_pipe *pipe = images("batchnorm @bn", 1, k ? 4 : 1, GPP_CHECKPOINT_EXCEPT_LAST, k);
        cr_assert_eq(gpp_pipe_set_buffer(pipe, "bn.running_mean", mean, C, NULL), GPP_OK);
        cr_assert_eq(gpp_pipe_set_buffer(pipe, "bn.running_var", var, C, NULL), GPP_OK);
        evaluate(pipe, x, y[k], N);
        stats after = stats_of(pipe);
        cr_expect(test_same(after.mean, mean, C) && test_same(after.var, var, C));
        cr_expect_eq(after.tracked, 0);
        gpp_pipe_free(pipe);
    }
    cr_expect(test_same(y[0], y[1], COUNT));
}

/* Five updates from gradients of the same outputs: deferred and plain stay close when evaluated, by
 * the original's tolerance. */
Test(test_deferred_batch_norm, test_optimize)
{
    gpp_pipe *pipe[] = {images("batchnorm @bn", 1, 1, GPP_CHECKPOINT_NEVER, false),
                        images("batchnorm @bn", 1, 4, GPP_CHECKPOINT_NEVER, true)};
    for (int k = 0; k < COUNT; k++)
        grad_y[k] = 1.0f / COUNT;
    for (int step = 0; step < 5; step++) {
        tilted(x, N, (uint64_t)step);
        for (int k = 0; k < 2; k++) {
            run(pipe[k], x, y[k], grad_y, NULL, N);
            cr_assert_eq(gpp_pipe_update(pipe[k], NULL), GPP_OK);
            evaluate(pipe[k], x, y[k], N);
        }
        expect_close(y[1], y[0], COUNT, 0.1 * pow(10, step), "evaluated");
    }
    gpp_pipe_free(pipe[0]);
    gpp_pipe_free(pipe[1]);
}

/* Normalising micro-batches is another computation than normalising mini-batches: outputs and
 * weights part, and with them, one step later, the statistics. */
Test(test_deferred_batch_norm, test_conv_bn)
{
    gpp_pipe *pipe[] = {
        images("conv2d out=3 kernel=1 @conv; batchnorm @bn", 1, 1, GPP_CHECKPOINT_NEVER, false),
        images("conv2d out=3 kernel=1 @conv; batchnorm @bn", 1, 4, GPP_CHECKPOINT_NEVER, true)};
    stats s[2];
    float weight[2][9];
    tilted(x, N, 1);
    test_fill(grad_y, COUNT, 2, -1, 1);
    for (int step = 0; step < 2; step++) {
        for (int k = 0; k < 2; k++) {
            run(pipe[k], x, y[k], grad_y, NULL, N);
            cr_assert_eq(gpp_pipe_update(pipe[k], NULL), GPP_OK);
            cr_assert_eq(gpp_pipe_get(pipe[k], "conv.weight", weight[k], 9, NULL), GPP_OK);
            s[k] = stats_of(pipe[k]);
        }
        cr_expect(test_distance(y[1], y[0], COUNT) > 1e-3, "outputs differ");
        cr_expect(test_distance(weight[1], weight[0], 9) > 1e-6, "weights part");
        if (step == 0)
            cr_expect(test_distance(s[1].mean, s[0].mean, C) <= PARITY_CLOSE, "not yet the mean");
        else
            cr_expect(test_distance(s[1].mean, s[0].mean, C) > 1e-4, "the mean too");
    }
    gpp_pipe_free(pipe[0]);
    gpp_pipe_free(pipe[1]);
}

/* Statistics make no tasks of their own, and none is repeated for them. */
Test(test_deferred_batch_norm, test_input_requiring_grad)
{
    gpp_step_stats s[2];
    tilted(x, N, 1);
    for (int k = 0; k < 2; k++) {
        gpp_pipe *pipe = images("batchnorm @bn", 1, 4, GPP_CHECKPOINT_EXCEPT_LAST, k);
        run(pipe, x, y[k], x, grad_x[k], N);
        cr_assert_eq(gpp_pipe_last_step(pipe, &s[k], NULL), GPP_OK);
        gpp_pipe_free(pipe);
    }
    cr_expect_eq(s[0].tasks, s[1].tasks);
    cr_expect(test_same(y[0], y[1], COUNT) && test_same(grad_x[0], grad_x[1], COUNT));
}

/* Plain statistics are taken once for each micro-batch, in their order, never by a recomputation:
 * upstream takes 4, 7 or 8 of them by mode. */
Test(test_deferred_batch_norm, plain_statistics_do_not_depend_on_the_mode)
{
    stats s[3];
    tilted(x, N, 1);
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *pipe =
            images("batchnorm @bn; relu", 1 + mode % 2, 4, (gpp_checkpoint)mode, false);
        run(pipe, x, y[0], x, NULL, N);
        s[mode] = stats_of(pipe);
        cr_expect_eq(s[mode].tracked, 4, "%s: %d", parity_modes[mode], (int)s[mode].tracked);
        cr_expect(test_same(s[mode].mean, s[0].mean, C) && test_same(s[mode].var, s[0].var, C));
        gpp_pipe_free(pipe);
    }
}
