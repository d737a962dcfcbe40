/*
 * tests/test_parity_balance.c: torchgpipe's test_balance.py (PARITY.md), and cuts without a
 * balance, which go by what operators say of their cost.
 *
 * Layers that take their time sleep, so that they take it on any machine; where a cut by measured
 * times is expected, they differ by a factor of 100.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/parity.h"
#include "tests/support.h"

/* --- block partition -------------------------------------------------------------------------- */

static void expect_blocks(size_t layers, const double cost[], size_t partitions, const int want[])
{
    int balance[8];
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_balance_blocks(layers, cost, partitions, balance, &err), GPP_OK, "%s",
                 err.msg);
    for (size_t j = 0; j < partitions; j++)
        cr_expect_eq(balance[j], want[j], "partition %zu: %d", j, balance[j]);
}

Test(test_balance, test_blockpartition)
{
    expect_blocks(6, (double[]){1, 2, 3, 4, 5, 6}, 2, (int[]){4, 2});
    expect_blocks(6, (double[]){6, 5, 4, 3, 2, 1}, 2, (int[]){2, 4});
}

Test(test_balance, test_blockpartition_zeros)
{
    expect_blocks(2, (double[]){0, 0}, 2, (int[]){1, 1});
}

/* Upstream leaves a partition empty, or never ends. */
Test(test_balance, no_partition_is_empty_where_upstream_has_one)
{
    static const struct {
        size_t layers, partitions;
        double cost[8];
    } cases[] = {
        {4, 3, {0, 0, 1, 1}}, {7, 6, {1, 0, 0, 0, 0, 2, 1}}, {8, 7, {1, 1, 2, 1, 1, 2, 2, 2}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int balance[8];
        size_t sum = 0;
        cr_assert_eq(
            gpp_balance_blocks(cases[k].layers, cases[k].cost, cases[k].partitions, balance, NULL),
            GPP_OK);
        for (size_t j = 0; j < cases[k].partitions; j++) {
            cr_expect_geq(balance[j], 1);
            sum += (size_t)balance[j];
        }
        cr_expect_eq(sum, cases[k].layers);
    }
}

Test(test_balance, test_blockpartition_non_positive_partitions)
{
    gpp_error err = GPP_ERROR_INIT;
    int balance[1] = {7};
    cr_expect_eq(gpp_balance_blocks(1, (double[]){42}, 0, balance, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "at least 1 partition") && balance[0] == 7, "%s", err.msg);
}

Test(test_balance, test_blockpartition_short_sequence)
{
    gpp_error err = GPP_ERROR_INIT;
    int balance[2] = {7, 7};
    cr_expect_eq(gpp_balance_blocks(0, (double[]){0}, 1, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_blocks(1, (double[]){42}, 2, balance, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "(layers: 1, partitions: 2)") && balance[0] == 7, "%s", err.msg);
}

/* --- by time ---------------------------------------------------------------------------------- */

static gpp_profile_options sweeps(int count)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    o.device = "cpu:0";
    o.timeout_ms = 60000;
    o.precision = 0;
    o.max_sweeps = count;
    return o;
}

static void expect_cut_by_time(gpp_model *model, const int want[2])
{
    const gpp_profile_options o = sweeps(5);
    gpp_error err = GPP_ERROR_INIT;
    int balance[2];
    cr_assert_eq(gpp_balance_by_time(model, 2, 3, &o, balance, &err), GPP_OK, "%s", err.msg);
    cr_expect(balance[0] == want[0] && balance[1] == want[1], "balance %d, %d", balance[0],
              balance[1]);
    gpp_model_free(model);
}

/* The heavy layers part as long as no light one takes half of a heavy one's time in most sweeps. */
static const char heavy_end[] = "act ms=0.2; act ms=0.2; act ms=0.2; act ms=0.2; act ms=20; "
                                "act ms=20";
static const char heavy_begin[] = "act ms=20; act ms=20; act ms=0.2; act ms=0.2; act ms=0.2; "
                                  "act ms=0.2";

Test(test_balance, test_balance_by_time)
{
    const gpp_shape in = {.rank = 1, .dim = {1}};
    expect_cut_by_time(parity_with(heavy_end, &in, 1), (int[]){5, 1});
    expect_cut_by_time(parity_with(heavy_begin, &in, 1), (int[]){1, 5});
}

Test(test_balance, test_balance_by_time_tuple)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.dtype = GPP_I64}};
    expect_cut_by_time(parity_with(heavy_end, in, 2), (int[]){5, 1});
    expect_cut_by_time(parity_with(heavy_begin, in, 2), (int[]){1, 5});
}

/* Shapes change on the way, and the next sweep begins with the first one's again. */
Test(test_balance, test_balance_by_time_loop_resets_input)
{
    gpp_model *model = parity_model("act id=1; conv2d out=2 kernel=1; flatten; linear out=10; act");
    parity_input(model, 3, (int64_t[]){3, 8, 8});
    const gpp_profile_options o = sweeps(4);
    gpp_error err = GPP_ERROR_INIT;
    int balance[2];
    cr_assert_eq(gpp_balance_by_time(model, 2, 7, &o, balance, &err), GPP_OK, "%s", err.msg);
    cr_expect(balance[0] >= 1 && balance[1] >= 1 && balance[0] + balance[1] == 5);
    cr_expect_eq(parity_count('F', 1), 5, "a sweep for warming up, and 4");
    cr_expect_eq(parity_count('F', 0), 5);
    for (int e = 0; e < parity_diary_now.events; e++)
        cr_expect_eq(parity_diary_now.event[e].rows, 7);
    gpp_model_free(model);
}

/* --- by size ---------------------------------------------------------------------------------- */

/* size params=P latents=L: the first tensor passed on, P·P parameters, its value kept L times. */
static gpp_status size_infer(gpp_signature *s)
{
    int64_t side = (int64_t)s->attr[0][0];
    s->outputs = s->inputs;
    memcpy(s->out, s->in, (size_t)s->inputs * sizeof *s->in);
    s->params = side > 0;
    s->param[0] = (gpp_param_shape){"weight", 2, {side, side}};
    s->saved = (int)s->attr[1][0];
    for (int k = 0; k < s->saved; k++)
        s->saving[k] = s->in[0];
    return GPP_OK;
}
static gpp_status never(gpp_call *call)
{
    return gpp_call_fail(call, GPP_EKERNEL, "only its size is of interest");
}

static gpp_model *of_sizes(const char *text, const gpp_shape in[], int count)
{
    static const gpp_operator_key keys[] = {
        {"params", 1, false, 0, 0, 100}, {"latents", 1, false, 0, 0, GPP_MAX_PARAMS}, {0}};
    const gpp_operator size = {
        .name = "size", .keys = keys, .infer = size_infer, .forward = never, .backward = never};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    parity_register(model, &size);
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_inputs(model, in, count, &err), GPP_OK, "%s", err.msg);
    return model;
}

static void expect_cut_by_size(gpp_model *model, double param_scale, const int want[2])
{
    gpp_error err = GPP_ERROR_INIT;
    int balance[2];
    cr_assert_eq(gpp_balance_by_size(model, 2, 16, 2, param_scale, balance, &err), GPP_OK, "%s",
                 err.msg);
    cr_expect(balance[0] == want[0] && balance[1] == want[1], "balance %d, %d", balance[0],
              balance[1]);
    gpp_model_free(model);
}

static const gpp_shape wide = {.rank = 1, .dim = {1024}}; /* 8 rows of it are 32 KiB */

/* A parameter each, so that every layer has a backward. */
Test(test_balance, test_balance_by_size_latent)
{
    expect_cut_by_size(of_sizes("size params=1 latents=1; size params=1 latents=2; "
                                "size params=1 latents=3; size params=1 latents=4; "
                                "size params=1 latents=5; size params=1 latents=6",
                                &wide, 1),
                       0, (int[]){4, 2});
    expect_cut_by_size(of_sizes("size params=1 latents=6; size params=1 latents=5; "
                                "size params=1 latents=4; size params=1 latents=3; "
                                "size params=1 latents=2; size params=1 latents=1",
                                &wide, 1),
                       0, (int[]){2, 4});
}

Test(test_balance, test_balance_by_size_param)
{
    const gpp_shape one = {.rank = 1, .dim = {1}}, seven = {.rank = 1, .dim = {7}};
    expect_cut_by_size(of_sizes("linear out=2; linear out=3; linear out=4; linear out=5; "
                                "linear out=6; linear out=7",
                                &one, 1),
                       100, (int[]){4, 2});
    expect_cut_by_size(of_sizes("linear out=6; linear out=5; linear out=4; linear out=3; "
                                "linear out=2; linear out=1",
                                &seven, 1),
                       100, (int[]){2, 4});
}

static const char tradeoff[] = "size params=10 latents=6; size params=20 latents=5; "
                               "size params=30 latents=4; size params=40 latents=3; "
                               "size params=50 latents=2; size params=60 latents=1";

Test(test_balance, test_balance_by_size_param_scale)
{
    expect_cut_by_size(of_sizes(tradeoff, &wide, 1), 0, (int[]){2, 4});
    expect_cut_by_size(of_sizes(tradeoff, &wide, 1), 100, (int[]){4, 2});
}

Test(test_balance, test_balance_by_size_tuple)
{
    const gpp_shape in[] = {wide, {.dtype = GPP_I64}};
    expect_cut_by_size(of_sizes(tradeoff, in, 2), 0, (int[]){2, 4});
    expect_cut_by_size(of_sizes(tradeoff, in, 2), 100, (int[]){4, 2});
}

/* Fewer rows, less to keep: parameters decide. */
Test(test_balance, more_chunks_leave_less_to_keep)
{
    gpp_model *model = of_sizes(tradeoff, &wide, 1);
    int whole[2], pieces[2];
    cr_assert_eq(gpp_balance_by_size(model, 2, 64, 1, GPP_PARAM_SCALE, whole, NULL), GPP_OK);
    cr_assert_eq(gpp_balance_by_size(model, 2, 64, 64, GPP_PARAM_SCALE, pieces, NULL), GPP_OK);
    cr_expect_eq(whole[0], 2, "%d", whole[0]);
    cr_expect_gt(pieces[0], 3, "%d", pieces[0]);
    gpp_model_free(model);
}

/* --- sandboxes: what a profile leaves alone --------------------------------------------------- */

static gpp_model *with_features(const char *text, int64_t features)
{
    gpp_model *model = parity_model(text);
    parity_input(model, 1, &features);
    return model;
}

static void profile_twice(const gpp_model *model)
{
    for (int k = 0; k < 2; k++) {
        const gpp_profile_options o = sweeps(1);
        gpp_error err = GPP_ERROR_INIT;
        gpp_profile *p;
        cr_assert_eq(gpp_profile_new(&p, model, 4, &o, &err), GPP_OK, "%s", err.msg);
        gpp_profile_free(p);
    }
}

/* Everything a pipe has by name, one after the other. @return bytes */
static size_t state_of(gpp_pipe *pipe, char *to)
{
    size_t at = 0;
    for (int k = 0; k < gpp_pipe_parameters(pipe); k++) {
        gpp_parameter_info info;
        gpp_pipe_parameter(pipe, k, &info, NULL);
        cr_assert_eq(gpp_pipe_get(pipe, info.name, (float *)(to + at), info.count, NULL), GPP_OK);
        at += ((size_t)info.count * sizeof(float) + 7) / 8 * 8;
    }
    for (int k = 0; k < gpp_pipe_buffers(pipe); k++) {
        gpp_buffer_info info;
        gpp_pipe_buffer(pipe, k, &info, NULL);
        cr_assert_eq(gpp_pipe_get_buffer(pipe, info.name, to + at, info.count, NULL), GPP_OK);
        at += ((size_t)info.count * gpp_dtype_size(info.dtype) + 7) / 8 * 8;
    }
    return at;
}

Test(test_balance, test_layerwise_sandbox)
{
    gpp_model *model = with_features("linear out=3; batchnorm; act; linear out=2", 3);
    static char before[4096], after[4096];
    gpp_pipe *pipe = parity_plain(model);
    size_t bytes = state_of(pipe, before);
    gpp_layer_info info[4], now;
    for (int u = 0; u < 4; u++)
        gpp_model_layer(model, u, &info[u], NULL);
    profile_twice(model);
    for (int u = 0; u < 4; u++) {
        gpp_model_layer(model, u, &now, NULL);
        cr_expect(!memcmp(now.dim, info[u].dim, sizeof now.dim) && now.op == info[u].op &&
                  now.label == info[u].label && now.parameters == info[u].parameters &&
                  now.device == info[u].device);
    }
    gpp_pipe_free(pipe);
    pipe = parity_plain(model);
    cr_expect_eq(state_of(pipe, after), bytes);
    cr_expect_eq(memcmp(before, after, bytes), 0, "the same seed, the same parameters");
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(test_balance, test_sandbox_during_profiling)
{
    gpp_model *model = with_features("batchnorm", 3);
    gpp_pipe *pipe = parity_plain(model);
    static char before[256], after[256];
    float x[12], y[12], grad[12];
    const gpp_tensor tx = {x, GPP_F32, 2, {4, 3}}, ty = {y, GPP_F32, 2, {4, 3}},
                     tg = {grad, GPP_F32, 2, {4, 3}};
    test_fill(x, 12, 1, -1, 1);
    test_fill(grad, 12, 2, -1, 1);
    parity_pass(pipe, &tx, &ty, &tg, NULL);
    size_t bytes = state_of(pipe, before);
    profile_twice(model);
    cr_expect_eq(state_of(pipe, after), bytes);
    cr_expect_eq(memcmp(before, after, bytes), 0, "running statistics of the pipe");
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* Profiled in training, whatever runs elsewhere. */
Test(test_balance, test_not_training)
{
    gpp_model *model = with_features("act", 3);
    gpp_pipe *pipe = parity_plain(model);
    float x[3] = {1, 2, 3}, y[3];
    const gpp_tensor tx = {x, GPP_F32, 2, {1, 3}}, ty = {y, GPP_F32, 2, {1, 3}};
    profile_twice(model);
    int profiled = parity_diary_now.events;
    cr_expect_gt(profiled, 0);
    cr_assert_eq(gpp_pipe_evaluate(pipe, &tx, NULL, &ty, NULL, NULL), GPP_OK);
    for (int e = 0; e < parity_diary_now.events; e++)
        cr_expect_eq(parity_diary_now.event[e].training, e < profiled, "event %d", e);
    cr_expect_eq(parity_diary_now.events, profiled + 1);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* Gradients are a pipe's: there is nothing to refuse, and they stay. */
Test(test_balance, test_already_has_grad)
{
    gpp_model *model = with_features("linear out=3", 3);
    gpp_pipe *pipe = parity_plain(model);
    float x[12], y[12], grad[12], before[9], after[9];
    const gpp_tensor tx = {x, GPP_F32, 2, {4, 3}}, ty = {y, GPP_F32, 2, {4, 3}},
                     tg = {grad, GPP_F32, 2, {4, 3}};
    test_fill(x, 12, 1, -1, 1);
    test_fill(grad, 12, 2, -1, 1);
    parity_pass(pipe, &tx, &ty, &tg, NULL);
    cr_assert_eq(gpp_pipe_gradient(pipe, "0.weight", before, 9, NULL), GPP_OK);
    profile_twice(model);
    cr_assert_eq(gpp_pipe_gradient(pipe, "0.weight", after, 9, NULL), GPP_OK);
    cr_expect(test_same(before, after, 9));
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* --- cuts without a balance ------------------------------------------------------------------- */

/* load cost=C: every tensor passed on, at C million flops a row. */
static gpp_status load_infer(gpp_signature *s)
{
    s->outputs = s->inputs;
    memcpy(s->out, s->in, (size_t)s->inputs * sizeof *s->in);
    return GPP_OK;
}
static double load_flops(const gpp_signature *s)
{
    return s->attr[0][0] * 1e6;
}

static void expect_cut(gpp_model *model, const int want[2])
{
    gpp_pipe *pipe = parity_pipe(model, 2, NULL, 1, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    cr_expect(info.balance[0] == want[0] && info.balance[1] == want[1], "balance %d, %d",
              info.balance[0], info.balance[1]);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

static gpp_model *loads(const char *text, const gpp_shape in[], int count)
{
    static const gpp_operator_key keys[] = {{"cost", 1, true, 0, 0, 1000}, {0}};
    const gpp_operator load = {
        .name = "load", .keys = keys, .infer = load_infer, .forward = never, .flops = load_flops};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    parity_register(model, &load);
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_inputs(model, in, count, &err), GPP_OK, "%s", err.msg);
    return model;
}

static const char rising[] = "load cost=10; load cost=20; load cost=30; load cost=40; "
                             "load cost=50; load cost=60";
static const char falling[] = "load cost=60; load cost=50; load cost=40; load cost=30; "
                              "load cost=20; load cost=10";

Test(test_balance, without_a_balance_a_pipe_is_cut_by_what_operators_say)
{
    const gpp_shape in = {.rank = 1, .dim = {1}}, pair[] = {in, {.dtype = GPP_I64}};
    expect_cut(loads(rising, &in, 1), (int[]){4, 2});
    expect_cut(loads(falling, &in, 1), (int[]){2, 4});
    expect_cut(loads(rising, pair, 2), (int[]){4, 2});
    gpp_model *model = parity_model("conv2d out=2 kernel=1; flatten; linear out=10");
    parity_input(model, 3, (int64_t[]){3, 8, 8});
    expect_cut(model, (int[]){1, 2});
}
