/*
 * tests/test_parity_api.c: torchgpipe's tests/test_gpipe.py in C: what a pipe is made from, what it
 * says about itself, what it refuses (PARITY.md). Text that the originals match is matched here.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "sched/table.h"
#include "tests/parity.h"
#include "tests/support.h"

/* Refused with a status and some words. */
static void refused(const gpp_model *model, const gpp_pipe_options *o, gpp_status status,
                    const char *says)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    cr_expect_eq(gpp_pipe_new(&pipe, model, o, &err), status, "%s: %s, \"%s\"", says,
                 gpp_status_name(err.code), err.msg);
    cr_expect_null(pipe);
    cr_expect(strstr(err.msg, says), "expected \"%s\" in \"%s\"", says, err.msg);
}

static gpp_model *two_linears(void)
{
    gpp_model *model = parity_model("linear out=1 @a; linear out=1 @b");
    parity_input(model, 1, (int64_t[]){1});
    return model;
}

Test(test_gpipe, test_parameters)
{
    gpp_pipe *pipe =
        parity_linear("linear out=1 @a; linear out=1 @b", 1, 2, NULL, 1, GPP_CHECKPOINT_NEVER);
    static const char *const names[] = {"a.weight", "a.bias", "b.weight", "b.bias"};
    cr_assert_eq(gpp_pipe_parameters(pipe), 4);
    for (int k = 0; k < 4; k++) {
        gpp_parameter_info info;
        cr_assert_eq(gpp_pipe_parameter(pipe, k, &info, NULL), GPP_OK);
        cr_expect_str_eq(info.name, names[k]);
        cr_expect_eq(info.partition, k / 2);
    }
    gpp_pipe_free(pipe);
}

Test(test_gpipe, test_public_attrs)
{
    static const char *const devices[] = {"cpu:0", "cpu:0"};
    static const int balance[] = {1, 1};
    gpp_model *model = two_linears();
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *pipe;
    gpp_pipe_info info;
    o.partitions = 2;
    o.balance = balance;
    o.devices = devices;
    o.device_count = 2;
    o.chunks = 42;
    o.checkpoint = GPP_CHECKPOINT_ALWAYS;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, NULL), GPP_OK);
    gpp_pipe_get_info(pipe, &info);
    cr_expect(info.layers == 2 && info.partitions == 2 && info.chunks == 42);
    cr_expect(info.balance[0] == 1 && info.balance[1] == 1);
    cr_expect_str_eq(gpp_checkpoint_name(info.checkpoint), "always");
    for (int j = 0; j < 2; j++)
        cr_expect_str_eq(info.device_name[info.device_of[j]], "cpu:0");
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(test_gpipe, test_sequential_like)
{
    for (int partitions = 1; partitions <= 2; partitions++) {
        gpp_model *given = two_linears();
        gpp_pipe *pipe = parity_pipe(given, partitions, NULL, 1, GPP_CHECKPOINT_NEVER);
        const gpp_model *model = gpp_pipe_model(pipe);
        gpp_layer_info info;
        cr_assert_eq(gpp_model_layers(model), 2);
        static const int index[] = {0, 1, -1, -2};
        for (int k = 0; k < 4; k++) {
            cr_assert_eq(gpp_model_layer(model, index[k], &info, NULL), GPP_OK);
            cr_expect_str_eq(info.label, index[k] == 0 || index[k] == -2 ? "a" : "b");
            cr_expect_eq(gpp_pipe_partition_of(pipe, index[k]),
                         partitions == 2 && (index[k] == 1 || index[k] == -1));
        }
        cr_expect_eq(gpp_model_layer(model, 2, &info, NULL), GPP_ENOENT);
        cr_expect_eq(gpp_model_layer(model, -3, &info, NULL), GPP_ENOENT);
        cr_expect_eq(gpp_pipe_partition_of(pipe, 2), -1);
        gpp_pipe_free(pipe);
        gpp_model_free(given);
    }
}

static void balance_refused(int partitions, const int balance[], const char *says)
{
    gpp_model *model = two_linears();
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.balance = balance;
    refused(model, &o, GPP_EINVAL, says);
    gpp_model_free(model);
}

Test(test_gpipe, test_balance_wrong_length)
{
    balance_refused(1, (int[]){1}, "sum of balance: 1");
    balance_refused(1, (int[]){3}, "sum of balance: 3");
}

Test(test_gpipe, test_balance_less_than_1)
{
    balance_refused(2, (int[]){0, 2}, "balance[0] is 0");
    balance_refused(2, (int[]){-1, 3}, "balance[0] is -1");
}

Test(test_gpipe, test_chunks_less_than_1)
{
    gpp_model *model = two_linears();
    for (int chunks = 0; chunks >= -1; chunks--) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = chunks;
        refused(model, &o, GPP_EINVAL, "chunks must be >= 1");
    }
    gpp_model_free(model);
}

Test(test_gpipe, test_too_few_devices)
{
    static const char *const devices[] = {"cpu:0"};
    gpp_model *model = parity_model("linear out=1; linear out=1; linear out=1; linear out=1");
    parity_input(model, 1, (int64_t[]){1});
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 4;
    o.balance = (int[]){1, 1, 1, 1};
    o.devices = devices;
    o.device_count = 1;
    refused(model, &o, GPP_ENODEV, "(devices: 1, partitions: 4)");
    o.balance = (int[]){1, 1, 1, 2};
    refused(model, &o, GPP_EINVAL, "sum of balance: 5"); /* the balance is looked at first */
    gpp_model_free(model);
}

static void count_remark(gpp_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    ++*(int *)user;
}

/* A legal batch gives no remark of level WARN or above, and m pieces. */
static void no_warning(int64_t rows, int chunks, int pieces)
{
    int remarks = 0;
    gpp_pipe *pipe = parity_linear("linear out=1", 1, 1, NULL, chunks, GPP_CHECKPOINT_EXCEPT_LAST);
    float v[7] = {0}, w[7], g[7] = {0};
    gpp_tensor x = {v, GPP_F32, 2, {rows, 1}}, y = {w, GPP_F32, 2, {rows, 1}};
    gpp_tensor grad = {g, GPP_F32, 2, {rows, 1}};
    gpp_step_stats stats;
    gpp_log_set(count_remark, GPP_LOG_WARN, &remarks);
    parity_pass(pipe, &x, &y, &grad, NULL);
    gpp_log_set(NULL, GPP_LOG_WARN, NULL);
    cr_expect_eq(remarks, 0);
    cr_assert_eq(gpp_pipe_last_step(pipe, &stats, NULL), GPP_OK);
    cr_expect_eq(stats.micro_batches, pieces);
    gpp_pipe_free(pipe);
}

Test(test_gpipe, test_batch_size_indivisible)
{
    no_warning(7, 4, 4);
}

Test(test_gpipe, test_batch_size_small)
{
    no_warning(2, 4, 2);
}

Test(test_gpipe, test_checkpoint_mode_invalid)
{
    gpp_model *model = two_linears();
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_checkpoint mode = GPP_CHECKPOINT_NEVER;
    o.checkpoint = (gpp_checkpoint)4;
    refused(model, &o, GPP_EINVAL, "always, except_last, never or budget");
    cr_expect_eq(gpp_checkpoint_parse("INVALID_CHECKPOINT", &mode, &err), GPP_EINVAL);
    for (int k = 0; k < 3; k++)
        cr_expect(strstr(err.msg, parity_modes[k]), "%s", err.msg);
    cr_expect_eq(mode, GPP_CHECKPOINT_NEVER, "a failure changes nothing");
    gpp_model_free(model);
}

Test(test_gpipe, test_checkpoint_mode_when_chunks_1)
{
    for (int mode = 0; mode < 3; mode++)
        gpp_pipe_free(parity_linear("linear out=1", 1, 1, NULL, 1, (gpp_checkpoint)mode));
}

Test(test_gpipe, test_devices)
{
    static const char *const devices[] = {"cpu:0", "cpu:0", "cpu:0", "cpu:4095"};
    gpp_model *model = two_linears();
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *pipe;
    gpp_pipe_info info;
    gpp_error err = GPP_ERROR_INIT;
    o.partitions = 2;
    o.devices = devices;
    o.device_count = 4;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "surplus ones are dropped: %s",
                 err.msg);
    gpp_pipe_get_info(pipe, &info);
    cr_expect_eq(info.devices, 1);
    cr_expect(info.device_of[0] == 0 && info.device_of[1] == 0);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(test_gpipe, test_partitions)
{
    gpp_pipe *pipe =
        parity_linear("linear out=1; linear out=1", 1, 2, NULL, 1, GPP_CHECKPOINT_NEVER);
    gpp_parameter_info info;
    for (int j = 0; j < 2; j++) {
        cr_expect_eq(gpp_pipe_partition_of(pipe, j), j);
        cr_assert_eq(gpp_pipe_parameter(pipe, 2 * j, &info, NULL), GPP_OK);
        cr_expect_str_eq(info.name, j ? "1.weight" : "0.weight", "names do not depend on the cut");
        cr_expect(info.layer == j && info.partition == j);
    }
    gpp_pipe_free(pipe);
}

Test(test_gpipe, test_named_children)
{
    gpp_model *given = two_linears();
    gpp_pipe *pipe = parity_pipe(given, 2, NULL, 1, GPP_CHECKPOINT_NEVER);
    const gpp_model *model = gpp_pipe_model(pipe);
    cr_expect_eq(gpp_model_find(model, "a"), 0);
    cr_expect_eq(gpp_model_find(model, "b"), 1);
    cr_expect_eq(gpp_model_find(model, "0"), -1);
    float weight;
    cr_expect_eq(gpp_pipe_get(pipe, "a.weight", &weight, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_get(pipe, "0.a.weight", &weight, 1, NULL), GPP_ENOENT);
    gpp_pipe_free(pipe);
    gpp_model_free(given);
}

Test(test_gpipe, test_empty_module)
{
    gpp_model *model = parity_model(NULL);
    parity_input(model, 1, (int64_t[]){3});
    gpp_pipe *pipe = parity_pipe(model, 0, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
    float v[12], w[12], g[12];
    test_fill(v, 12, 1, -1, 1);
    gpp_tensor x = {v, GPP_F32, 2, {4, 3}}, y = {w, GPP_F32, 2, {4, 3}};
    gpp_tensor grad = {g, GPP_F32, 2, {4, 3}};
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp_model_layers(gpp_pipe_model(pipe)), 0);
    cr_assert_eq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect(test_same(v, w, 12), "its input comes back");
    memset(w, 0, sizeof w);
    parity_pass(pipe, &x, &y, &x, &grad);
    cr_expect(test_same(v, w, 12) && test_same(v, g, 12));
    x.data = NULL;
    cr_expect_neq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, NULL), GPP_OK, "no tensor");
    x = (gpp_tensor){v, GPP_I64, 2, {4, 3}};
    cr_expect_neq(gpp_pipe_evaluate(pipe, &x, NULL, &y, NULL, NULL), GPP_OK, "a wrong one");
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

Test(test_gpipe, test_empty_module_with_two_tensors)
{
    gpp_model *model = parity_model(NULL);
    gpp_shape in[] = {{.rank = 1, .dim = {2}}, {.dtype = GPP_I64}};
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_set_inputs(model, in, 2, &err), GPP_OK, "%s", err.msg);
    gpp_pipe *pipe = parity_pipe(model, 0, NULL, 2, GPP_CHECKPOINT_EXCEPT_LAST);
    float a[] = {1, 2, 3, 4, 5, 6}, ya[6];
    int64_t b[] = {7, 8, 9}, yb[3];
    gpp_tensor x[] = {{a, GPP_F32, 2, {3, 2}}, {b, GPP_I64, 1, {3}}};
    gpp_tensor y[] = {{ya, GPP_F32, 2, {3, 2}}, {yb, GPP_I64, 1, {3}}};
    cr_assert_eq(gpp_pipe_evaluate(pipe, x, NULL, y, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect(!memcmp(a, ya, sizeof a) && !memcmp(b, yb, sizeof b));
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* The originals match the name of the balancing package. */
Test(test_gpipe, test_recommend_auto_balance)
{
    balance_refused(1, (int[]){1}, "gridpipe/balance.h");
    balance_refused(1, (int[]){3}, "gridpipe/balance.h");
    balance_refused(2, (int[]){0, 2}, "gridpipe/balance.h");
}

/* A model is a sequence by construction; only an unfinished layer can stand in for another. */
Test(test_gpipe, test_verify_module_non_sequential)
{
    gpp_model *model = parity_model("linear out=1");
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_begin(model, "open", &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){1}, &err), GPP_ESTATE);
    gpp_model_free(model);
}

/* The same object twice is here the same label twice. */
Test(test_gpipe, test_verify_module_duplicate_children)
{
    gpp_model *model = parity_model("linear out=1 @conv");
    gpp_error err = GPP_ERROR_INIT;
    gpp_attr out[] = {GPP_INT("out", 1)};
    cr_expect_eq(gpp_model_add(model, "linear", "conv", out, 1, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "\"conv\""), "%s", err.msg);
    gpp_model_free(model);
}

static gpp_model *shared(void)
{
    gpp_model *model = parity_model("linear out=2 @a; relu; linear out=2 @b");
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_share(model, 2, 0, &err), GPP_OK, "%s", err.msg);
    parity_input(model, 1, (int64_t[]){2});
    return model;
}

static const char *const two_devices[] = {"cpu:0", "cpu:1"}, *const one_device[] = {"cpu:0",
                                                                                    "cpu:0"};

static bool has_two_cores(void)
{
    gpp_model *model = two_linears();
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *pipe;
    o.partitions = o.device_count = 2;
    o.devices = two_devices;
    bool has = gpp_pipe_new(&pipe, model, &o, NULL) == GPP_OK;
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    return has;
}

/* Refused across devices, allowed within one: the rule of PyTorch's Pipe. */
Test(test_gpipe, test_verify_module_duplicate_parameters_in_distinct_children)
{
    if (!has_two_cores())
        cr_skip_test("needs two cores");
    gpp_model *model = shared();
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = o.device_count = 2;
    o.balance = (int[]){2, 1};
    o.devices = two_devices;
    refused(model, &o, GPP_EINVAL, "\"a\"");
    refused(model, &o, GPP_EINVAL, "\"b\"");
    gpp_model_free(model);
}

Test(pipe_test_pipe, test_verify_module_duplicate_parameters_on_same_device)
{
    gpp_model *model = shared();
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = o.device_count = 2;
    o.balance = (int[]){2, 1};
    o.devices = one_device;
    o.chunks = 2;
    o.seed = 3;
    gpp_pipe *pipe, *plain = parity_plain(model);
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_pipe_parameters(pipe), 2, "one weight, one bias");
    float v[8], w[8], g[8];
    test_fill(v, 8, 1, -1, 1);
    test_fill(g, 8, 2, -1, 1);
    gpp_tensor x = {v, GPP_F32, 2, {4, 2}}, y = {w, GPP_F32, 2, {4, 2}};
    gpp_tensor grad = {g, GPP_F32, 2, {4, 2}};
    parity_pass(pipe, &x, &y, &grad, NULL);
    parity_pass(plain, &x, &y, &grad, NULL);
    parity_same_gradients(pipe, plain, PARITY_CLOSE, "two layers, one weight");
    gpp_pipe_free(pipe);
    gpp_pipe_free(plain);
    gpp_model_free(model);
}

/* fairscale: the same, in its own words. */
Test(pipe_test_pipe, test_verify_module_duplicate_parameters_on_distinct_devices)
{
    if (!has_two_cores())
        cr_skip_test("needs two cores");
    gpp_model *model = parity_model("linear out=2 @a; relu; linear out=2 @b");
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_share(model, 2, 0, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_place(model, 0, "cpu:0", &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_place(model, 2, "cpu:1", &err), GPP_OK, "%s", err.msg);
    parity_input(model, 1, (int64_t[]){2});
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    refused(model, &o, GPP_EINVAL, "\"a\"");
    gpp_model_free(model);
}

/* --- devices derived from layers -------------------------------------------------------------- */

static gpp_pipe *placed(const char *text, int layers, const char *const device[], int64_t in)
{
    gpp_model *model = parity_model(text);
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    for (int k = 0; k < layers; k++)
        cr_assert_eq(gpp_model_place(model, k, device[k], &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_flatten(model, &err), GPP_OK, "%s", err.msg);
    parity_input(model, 1, &in);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    return pipe;
}

/* A nested chain's layers join the partition of their neighbours on the same device. */
Test(pipe_test_pipe, test_merged_partitions)
{
    static const char *const device[] = {"cpu:0", "cpu:0", "cpu:1", "cpu:0"};
    if (!has_two_cores())
        cr_skip_test("needs two cores");
    gpp_pipe *pipe = placed("linear out=4; chain { linear out=2; linear out=1 }; linear out=3; "
                            "linear out=1",
                            4, device, 5);
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    cr_assert_eq(info.partitions, 3);
    cr_expect(info.balance[0] == 3 && info.balance[1] == 1 && info.balance[2] == 1);
    gpp_pipe_free(pipe);
}

Test(pipe_test_pipe, test_verify_nested_modules)
{
    static const char *const device[] = {"cpu:0", "cpu:1"};
    if (!has_two_cores())
        cr_skip_test("needs two cores");
    gpp_pipe *pipe = placed("chain { linear out=16; linear out=8 } @first; "
                            "chain { linear out=4; linear out=2 } @second",
                            2, device, 32);
    gpp_pipe_info info;
    gpp_shape y;
    gpp_pipe_get_info(pipe, &info);
    cr_expect_eq(info.partitions, 2);
    cr_expect_str_eq(info.device_name[info.device_of[1]], "cpu:1");
    cr_assert_eq(gpp_model_outputs(gpp_pipe_model(pipe), &y), 1);
    cr_expect(y.rank == 1 && y.dim[0] == 2);
    cr_expect_eq(gpp_model_find(gpp_pipe_model(pipe), "second_1"), 3, "labels are joined");
    gpp_pipe_free(pipe);
}

/* A layer lies on one device: a partition that needs two is refused. */
Test(pipe_test_pipe, test_verify_module_params_on_same_device)
{
    if (!has_two_cores())
        cr_skip_test("needs two cores");
    gpp_model *model = parity_model("linear out=5 @a; linear out=5 @b");
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_place(model, 0, "cpu:0", &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_place(model, 1, "cpu:1", &err), GPP_OK, "%s", err.msg);
    parity_input(model, 1, (int64_t[]){10});
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 1;
    o.balance = (int[]){2};
    refused(model, &o, GPP_EINVAL, "cpu:");
    gpp_model_free(model);
}

Test(pipe_test_pipe, test_with_device_wrapper)
{
    static const struct {
        const char *why, *device[4];
        int partitions, balance[3];
    } cases[] = {
        {"a dropout follows the layer before it", {"cpu:0", "cpu:1", NULL}, 2, {1, 2}},
        {"and may be placed", {"cpu:0", "cpu:1", "cpu:0"}, 3, {1, 1, 1}},
        {"layers with parameters too", {"cpu:1", "cpu:1", "cpu:1"}, 1, {3}},
    };
    if (!has_two_cores())
        cr_skip_test("needs two cores");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_pipe *pipe = placed("linear out=3; linear out=2; dropout p=0.5", 3, cases[k].device, 4);
        gpp_pipe_info info;
        gpp_pipe_get_info(pipe, &info);
        cr_expect_eq(info.partitions, cases[k].partitions, "%s: %d", cases[k].why, info.partitions);
        for (int j = 0; j < info.partitions && j < 3; j++)
            cr_expect_eq(info.balance[j], cases[k].balance[j], "%s: balance[%d] is %d",
                         cases[k].why, j, info.balance[j]);
        gpp_pipe_free(pipe);
    }
}
