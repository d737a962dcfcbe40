/* The pipe's calls: what they refuse and how they say so, batches of every size, parameters by
 * name, evaluation. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(pipe, .init = test_keep_runtime, .fini = test_release_runtime);

static const test_model small = {
    "small", "linear out=6 @a; relu; dropout p=0.5; linear out=4 @b", 1, {5}, "mse"};

static void refused(const gpp_model *model, const gpp_pipe_options *o, gpp_status status,
                    const char *says)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe = (gpp_pipe *)&err;
    cr_expect_eq(gpp_pipe_new(&pipe, model, o, &err), status, "%s: got %s, \"%s\"", says,
                 gpp_status_name(err.code), err.msg);
    cr_expect_null(pipe, "%s", says);
    cr_expect(strstr(err.msg, says), "expected \"%s\" in \"%s\"", says, err.msg);
    cr_expect_neq(gpp_pipe_new(&pipe, model, o, NULL), GPP_OK, "a NULL record is fine");
}

Test(pipe, wrong_options_are_refused_with_what_is_allowed)
{
    gpp_model *model = test_model_new(&small);
    static const int zero[] = {4, 0}, longer[] = {3, 2}, whole[] = {2, 2}, negative[] = {-1, 5},
                     shorter[] = {3};
    static const char *const one[] = {"cpu:0"}, *const none[] = {"cpu:4096", "cpu:0"},
                             *const odd[] = {"gpu", "cpu"};
    gpp_pipe_options o;
#define CASE(status, says, ...)                                                                    \
    o = (gpp_pipe_options)GPP_PIPE_OPTIONS_INIT;                                                   \
    __VA_ARGS__;                                                                                   \
    refused(model, &o, status, says)
    CASE(GPP_EINVAL, "GPP_PIPE_OPTIONS_INIT", o.struct_size = 3);
    CASE(GPP_EINVAL, "chunks must be >= 1 and at most 1048576, got 0", o.chunks = 0);
    CASE(GPP_EINVAL, "got -1", o.chunks = -1);
    CASE(GPP_EINVAL, "got 2147483647", o.chunks = INT32_MAX);
    CASE(GPP_EINVAL, "devices are not given, device_count is 5", o.device_count = 5);
    CASE(GPP_EINVAL, "always, except_last, never or budget", o.checkpoint = (gpp_checkpoint)7);
    CASE(GPP_EINVAL, "1 ... 4", o.partitions = 5);
    CASE(GPP_EINVAL, "1 ... 4", o.partitions = -1);
    CASE(GPP_EINVAL, "balance[1] is 0", o.partitions = 2; o.balance = zero);
    CASE(GPP_EINVAL, "model: 4, sum of balance: 5", o.partitions = 2; o.balance = longer);
    CASE(GPP_EINVAL, "balance[0] is -1", o.partitions = 2; o.balance = negative);
    CASE(GPP_EINVAL, "sum of balance: 3", o.partitions = 1; o.balance = shorter);
    CASE(GPP_EINVAL, "gridpipe/balance.h", o.partitions = 1; o.balance = shorter);
    CASE(GPP_EINVAL, "gridpipe/balance.h", o.partitions = 2; o.balance = zero);
    CASE(GPP_EINVAL, "balance is required", o.balance = whole);
    CASE(GPP_EINVAL, "batch must be >= 0", o.batch = -2);
    CASE(GPP_ENODEV, "(devices: 1, partitions: 2)", o.partitions = 2; o.devices = one;
         o.device_count = 1);
    CASE(GPP_EINVAL, "sum of balance: 5", o.partitions = 2; o.balance = longer; o.devices = one;
         o.device_count = 1); /* the balance is looked at first */
    CASE(GPP_ENODEV, "4096", o.partitions = 2; o.devices = none; o.device_count = 2);
    CASE(GPP_EINVAL, "gpu", o.partitions = 2; o.devices = odd; o.device_count = 2);
    CASE(GPP_ENOENT, "hinge", o.loss = "hinge");
    CASE(GPP_EINVAL, "reduction", o.loss = "mse reduction=most");
    CASE(GPP_ENOENT, "newton", o.optimizer = "newton lr=1");
    CASE(GPP_EINVAL, "lr", o.optimizer = "sgd");
    CASE(GPP_EINVAL, "nesterov", o.optimizer = "sgd lr=0.1 nesterov=1");
    CASE(GPP_ESYNTAX, "optimizer \"sgd lr\"", o.optimizer = "sgd lr");
#undef CASE
    gpp_model_free(model);
    gpp_model_new(&model, NULL);
    refused(model, NULL, GPP_ESTATE, "input is not set");
    gpp_model_add_text(model, "relu", NULL);
    refused(model, NULL, GPP_ESTATE, "input is not set");
    gpp_model_free(model);
    refused(NULL, NULL, GPP_EINVAL, "model is NULL");
}

/* More devices than partitions: those that are left over are not looked at. */
Test(pipe, options_are_read_back)
{
    static const char *const devices[] = {"cpu:0", "cpu:0", "cpu:4095"};
    static const int balance[] = {1, 3};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe_info info;
    o.partitions = 2;
    o.balance = balance;
    o.devices = devices;
    o.device_count = 3;
    o.chunks = 42;
    o.checkpoint = GPP_CHECKPOINT_ALWAYS;
    gpp_pipe *p = test_pipe_new(&small, &o);
    gpp_pipe_get_info(p, &info);
    cr_expect(info.layers == 4 && info.partitions == 2 && info.chunks == 42 && info.devices == 1);
    cr_expect(info.balance[0] == 1 && info.balance[1] == 3);
    cr_expect_str_eq(gpp_checkpoint_name(info.checkpoint), "always");
    for (int j = 0; j < 2; j++)
        cr_expect_str_eq(info.device_name[info.device_of[j]], "cpu:0");
    static const int layer[] = {0, 1, 3, -1, -4, 4, -5}, partition[] = {0, 1, 1, 1, 0, -1, -1};
    for (int k = 0; k < 7; k++)
        cr_expect_eq(gpp_pipe_partition_of(p, layer[k]), partition[k], "layer %d", layer[k]);
    gpp_pipe_free(p);
}

Test(pipe, wrong_tensors_are_refused_and_change_nothing)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 2;
    gpp_pipe *p = test_pipe_new(&small, &o);
    test_batch b = test_batch_new(p, 4, 1);
    test_trace before = {0}, after = {0};
    test_trace_params(&before, p);
    gpp_error err = GPP_ERROR_INIT;
    gpp_tensor bad;
#define CASE(field, change, says)                                                                  \
    bad = b.field;                                                                                 \
    change;                                                                                        \
    {                                                                                              \
        test_batch c = b;                                                                          \
        c.field = bad;                                                                             \
        gpp_error_clear(&err);                                                                     \
        gpp_status status = gpp_pipe_step(p, &c.x, &c.target, &c.y, NULL, &err);                   \
        cr_expect(status == GPP_ESHAPE || status == GPP_EINVAL, "%s", says);                       \
        cr_expect(strstr(err.msg, says), "expected \"%s\" in \"%s\"", says, err.msg);              \
    }
    CASE(x, bad.dtype = GPP_I64, "x is int64 (4, 5), expected float32 with B rows of (5)");
    CASE(x, bad.dim[1] = 6, "x is float32 (4, 6)");
    CASE(x, bad.rank = 1, "x is float32 (4)");
    CASE(x, bad.rank = 99, "x is");
    CASE(x, bad.rank = 0, "x is");
    CASE(x, bad.rank = -1, "x is");
    CASE(x, bad.rank = 3; bad.dim[2] = 1, "x is");
    CASE(x, bad.dtype = (gpp_dtype)9, "x is of unknown type");
    CASE(x, bad.dim[0] = -1, "x is");
    CASE(x, bad.data = NULL, "x has 4 rows but no data");
    CASE(target, bad.dim[0] = 3, "target is float32 (3, 4), expected float32 with 4 rows of (4)");
    CASE(y, bad.dtype = (gpp_dtype)9, "y is of unknown type");
#undef CASE
    cr_expect_eq(gpp_pipe_step(p, NULL, &b.target, NULL, NULL, &err), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_step(p, &b.x, NULL, NULL, NULL, &err), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_step(NULL, &b.x, &b.target, NULL, NULL, &err), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, &err), GPP_ESTATE, "no forward");
    cr_expect_eq(gpp_pipe_update(p, &err), GPP_ESTATE, "no gradients");
    double loss;
    cr_expect_eq(gpp_pipe_evaluate(p, &b.x, NULL, NULL, &loss, &err), GPP_EINVAL,
                 "a loss without a target");
    test_trace_params(&after, p);
    cr_expect_eq(test_trace_differs(&before, &after), -1);
    test_trace_free(&before);
    test_trace_free(&after);
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_pipe_free(NULL);
}

Test(pipe, without_loss_or_optimizer_says_so)
{
    gpp_model *model = test_model_new(&small);
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p;
    cr_assert_eq(gpp_pipe_new(&p, model, NULL, &err), GPP_OK, "%s", err.msg);
    test_batch b = test_batch_new(p, 4, 1);
    cr_expect_eq(gpp_pipe_step(p, &b.x, &b.y, NULL, NULL, &err), GPP_ESTATE);
    cr_expect(strstr(err.msg, "options.optimizer"), "%s", err.msg);
    gpp_error_clear(&err);
    cr_expect_eq(gpp_pipe_gradients(p, &b.x, &b.y, NULL, NULL, NULL, &err), GPP_ESTATE);
    cr_expect(strstr(err.msg, "options.loss"), "%s", err.msg);
    cr_expect_eq(gpp_pipe_set_lr(p, 0.1, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_pipe_evaluate(p, &b.x, NULL, &b.y, NULL, NULL), GPP_OK);
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_model_free(model);
}

static void count_remark(gpp_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    ++*(int *)user;
}

Test(pipe, takes_batches_of_every_size_in_any_order)
{
    int remarks = 0;
    gpp_log_set(count_remark, GPP_LOG_WARN, &remarks);
    static const int64_t sizes[] = {7, 1, 10, 0, 3, 64, 2, 0, 9};
    static const int chunks[] = {1, 3, 4, 8};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = chunks[c];
        o.partitions = 3;
        gpp_pipe *p = test_pipe_new(&test_models[0], &o);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            gpp_error err = GPP_ERROR_INIT;
            test_batch b = test_batch_new(p, sizes[k], 1);
            double loss;
            cr_assert_eq(gpp_pipe_step(p, &b.x, &b.target, &b.y, &loss, &err), GPP_OK, "%s",
                         err.msg);
            cr_expect(sizes[k] ? isfinite(loss) : isnan(loss), "%d rows: loss %g", (int)sizes[k],
                      loss);
            gpp_step_stats stats;
            cr_assert_eq(gpp_pipe_last_step(p, &stats, &err), GPP_OK);
            int64_t size = (sizes[k] + chunks[c] - 1) / chunks[c];
            cr_expect_eq(stats.micro_batches, size ? (sizes[k] + size - 1) / size : chunks[c]);
            cr_expect_leq(stats.bound_ms, stats.step_ms * 1.0000001);
            for (int64_t i = 0; i < test_tensor_count(&b.y); i++)
                cr_assert(isfinite(((float *)b.y.data)[i]));
            test_batch_free(&b);
        }
        gpp_pipe_free(p);
    }
    gpp_log_set(NULL, GPP_LOG_WARN, NULL);
    cr_expect_eq(remarks, 0, "no size of a batch is worth a remark");
}

Test(pipe, an_empty_batch_gives_zero_gradients_and_its_update_takes_place)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 3;
    o.optimizer = "sgd lr=0.5 weight_decay=0.5";
    gpp_pipe *p = test_pipe_new(&small, &o);
    float before[4], after[4], grad[4];
    cr_assert_eq(gpp_pipe_get(p, "b.bias", before, 4, NULL), GPP_OK);
    test_batch b = test_batch_new(p, 0, 1);
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_step(p, &b.x, &b.target, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_gradient(p, "b.bias", grad, 4, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_get(p, "b.bias", after, 4, NULL), GPP_OK);
    for (int k = 0; k < 4; k++) {
        cr_expect_eq(grad[k], 0);
        cr_expect_float_eq(after[k], before[k] * 0.75f, 1e-6f);
    }
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(pipe, parameters_are_found_by_name)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    gpp_pipe *p = test_pipe_new(&small, &o);
    static const char *const names[] = {"a.weight", "a.bias", "b.weight", "b.bias"};
    static const int64_t counts[] = {30, 6, 24, 4};
    cr_assert_eq(gpp_pipe_parameters(p), 4);
    for (int k = 0; k < 4; k++) {
        gpp_parameter_info info;
        cr_assert_eq(gpp_pipe_parameter(p, k, &info, NULL), GPP_OK);
        cr_expect_str_eq(info.name, names[k]);
        cr_expect_eq(info.count, counts[k]);
        cr_expect(info.partition == k / 2 && info.layer == k / 2 * 3, "%s", names[k]);
        float value[30], back[30];
        for (int i = 0; i < 30; i++)
            value[i] = (float)(i + k);
        cr_assert_eq(gpp_pipe_set(p, names[k], value, counts[k], NULL), GPP_OK);
        cr_assert_eq(gpp_pipe_get(p, names[k], back, counts[k], NULL), GPP_OK);
        cr_expect(test_same(value, back, counts[k]));
    }
    float v[30];
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp_pipe_get(p, "c.weight", v, 30, &err), GPP_ENOENT);
    cr_expect(strstr(err.msg, "c.weight"), "%s", err.msg);
    gpp_error_clear(&err);
    cr_expect_eq(gpp_pipe_set(p, "a.weight", v, 29, &err), GPP_ESHAPE);
    cr_expect(strstr(err.msg, "30") && strstr(err.msg, "29"), "%s", err.msg);
    cr_expect_eq(gpp_pipe_gradient(p, "a.weight", v, 30, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_pipe_parameter(p, 4, &(gpp_parameter_info){0}, NULL), GPP_ENOENT);
    cr_expect_eq(gpp_pipe_parameter(p, -1, &(gpp_parameter_info){0}, NULL), GPP_ENOENT);
    gpp_pipe_free(p);
}

Test(pipe, set_parameters_are_the_ones_that_compute)
{
    static const test_model id = {
        "", "conv2d out=1 kernel=1 @c; flatten; linear out=2 @l", 3, {1, 2, 1}, "mse"};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *p = test_pipe_new(&id, &o);
    gpp_pipe_set(p, "c.weight", (float[]){3}, 1, NULL);
    gpp_pipe_set(p, "c.bias", (float[]){1}, 1, NULL);
    gpp_pipe_set(p, "l.weight", (float[]){1, 0, 1, 1}, 4, NULL);
    gpp_pipe_set(p, "l.bias", (float[]){0, 10}, 2, NULL);
    float x[4] = {1, 2, -1, 0}, y[4];
    gpp_tensor X = {x, GPP_F32, 4, {2, 1, 2, 1}}, Y = {y, GPP_F32, 2, {2, 2}};
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_evaluate(p, &X, NULL, &Y, NULL, &err), GPP_OK, "%s", err.msg);
    static const float want[] = {4, 21, -2, 9};
    cr_expect(test_same(y, want, 4), "%g %g %g %g", y[0], y[1], y[2], y[3]);
    gpp_pipe_free(p);
}

Test(pipe, seeds_decide_initial_values_whatever_the_cut)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    test_trace t[3] = {{0}};
    for (int k = 0; k < 3; k++) {
        o.partitions = k == 1 ? 3 : 1;
        o.seed = k == 2 ? 6 : 5;
        gpp_pipe *p = test_pipe_new(&small, &o);
        test_trace_params(&t[k], p);
        gpp_pipe_free(p);
    }
    cr_expect_eq(test_trace_differs(&t[0], &t[1]), -1);
    cr_expect_neq(test_trace_differs(&t[0], &t[2]), -1);
    for (int k = 0; k < 3; k++)
        test_trace_free(&t[k]);
}

Test(pipe, evaluation_drops_nothing_and_its_loss_is_the_outputs)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 3;
    o.chunks = 4;
    gpp_pipe *p = test_pipe_new(&small, &o);
    test_batch b = test_batch_new(p, 11, 3), again = test_batch_new(p, 11, 3);
    double loss, second;
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_evaluate(p, &b.x, &b.target, &b.y, &loss, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_pipe_evaluate(p, &b.x, &b.target, &again.y, &second, &err), GPP_OK, "%s",
                 err.msg);
    int64_t count = test_tensor_count(&b.y);
    cr_expect(test_same(b.y.data, again.y.data, count), "evaluation must not be random");
    double want = 0;
    for (int64_t k = 0; k < count; k++)
        want += pow((double)((float *)b.y.data)[k] - (double)((float *)b.target.data)[k], 2) /
                (double)count;
    cr_expect_float_eq(loss, want, 1e-6 * want);
    cr_expect_eq(loss, second);
    gpp_step_stats s;
    cr_assert_eq(gpp_pipe_last_step(p, &s, &err), GPP_OK);
    cr_expect_eq(s.tasks, 3 * 4 + 4 + 4, "forwards, outputs, losses; no recomputation: %d",
                 s.tasks);
    test_batch_free(&b);
    test_batch_free(&again);
    gpp_pipe_free(p);
}

Test(pipe, gradients_and_update_are_a_step)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    gpp_pipe *a = test_pipe_new(&test_models[0], &o), *b = test_pipe_new(&test_models[0], &o);
    gpp_error err = GPP_ERROR_INIT;
    for (int s = 0; s < 3; s++) {
        test_batch x = test_batch_new(a, 10, (uint64_t)s);
        double la, lb;
        cr_assert_eq(gpp_pipe_step(a, &x.x, &x.target, NULL, &la, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_pipe_gradients(b, &x.x, &x.target, NULL, NULL, &lb, &err), GPP_OK, "%s",
                     err.msg);
        cr_assert_eq(gpp_pipe_update(b, &err), GPP_OK, "%s", err.msg);
        cr_expect_eq(la, lb);
        test_batch_free(&x);
    }
    test_trace ta = {0}, tb = {0};
    test_trace_params(&ta, a);
    test_trace_params(&tb, b);
    cr_expect_eq(test_trace_differs(&ta, &tb), -1);
    test_trace_free(&ta);
    test_trace_free(&tb);
    gpp_pipe_free(a);
    gpp_pipe_free(b);
}

Test(pipe, the_learning_rate_can_change)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.optimizer = "sgd lr=0.5";
    gpp_pipe *p = test_pipe_new(&small, &o);
    test_batch b = test_batch_new(p, 4, 1);
    test_trace before = {0}, after = {0};
    test_trace_params(&before, p);
    cr_assert_eq(gpp_pipe_set_lr(p, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, NULL), GPP_OK);
    test_trace_params(&after, p);
    cr_expect_eq(test_trace_differs(&before, &after), -1, "lr 0 changes nothing");
    cr_assert_eq(gpp_pipe_set_lr(p, 0.1, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, NULL), GPP_OK);
    after.count = 0;
    test_trace_params(&after, p);
    cr_expect_neq(test_trace_differs(&before, &after), -1);
    cr_expect_eq(gpp_pipe_set_lr(p, -1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_set_lr(p, NAN, NULL), GPP_EINVAL);
    test_trace_free(&before);
    test_trace_free(&after);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(pipe, a_kept_forward_survives_what_does_not_update_and_goes_back_once)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *p = test_pipe_new(&small, &o);
    test_batch b = test_batch_new(p, 4, 1), other = test_batch_new(p, 3, 1);
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_pipe_backward(p, -1, &other.x, &other.grad_y, NULL, &err), GPP_ESHAPE,
                 "another number of rows");
    gpp_error_clear(&err);
    cr_assert_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, &err), GPP_ESTATE,
                 "once is enough");
    gpp_error_clear(&err);
    cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err), GPP_OK);
    cr_assert_eq(gpp_pipe_evaluate(p, &b.x, NULL, &b.y, NULL, &err), GPP_OK);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, &err), GPP_OK);
    cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err), GPP_OK);
    cr_expect_eq(gpp_pipe_discard(p, -1, &err), GPP_OK);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, &err), GPP_ESTATE);
    test_batch_free(&b);
    test_batch_free(&other);
    gpp_pipe_free(p);
}

Test(pipe, pictures_show_the_plan)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.chunks = 4;
    gpp_pipe *p = test_pipe_new(&small, &o);
    static const char *const contains[] = {"F3", "digraph", "R(2,1)"};
    for (int k = 0; k < 3; k++) {
        char *text;
        gpp_error err = GPP_ERROR_INIT;
        cr_assert_eq(gpp_pipe_draw(p, (gpp_picture)k, 16, &text, &err), GPP_OK, "%s", err.msg);
        cr_expect(strstr(text, contains[k]), "picture %d has no \"%s\":\n%s", k, contains[k], text);
        gpp_string_free(text);
    }
    char *text;
    cr_expect_eq(gpp_pipe_draw(p, (gpp_picture)7, 16, &text, NULL), GPP_EINVAL);
    cr_expect_null(text);
    gpp_pipe_info info;
    gpp_pipe_get_info(p, &info);
    cr_expect_eq(info.partitions, 2);
    cr_expect_eq(info.balance[0] + info.balance[1], 4);
    cr_expect(!strncmp(info.device_name[0], "cpu:", 4));
    gpp_pipe_free(p);
}

/* Ends of a partition that only renames: the caller's tensors end where they end. */
Test(pipe, partitions_of_nothing_but_views_stay_inside_the_callers_memory)
{
    static const char *const texts[] = {"identity; linear out=4", "dropout p=0; linear out=4",
                                        "flatten; linear out=4", "identity; identity",
                                        "dropout p=0.5; relu"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        for (int wants = 0; wants < 2; wants++) {
            test_model m = {texts[k], texts[k], 1, {3}, "mse"};
            gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
            o.partitions = 2;
            o.balance = (int[]){1, 1};
            gpp_pipe *p = test_pipe_new(&m, &o);
            test_batch b = test_batch_new(p, 5, 1);
            float *room = malloc(17 * sizeof *room); /* 15 of it are grad_x */
            for (int i = 0; i < 17; i++)
                room[i] = 7;
            gpp_tensor grad_x = b.grad_x;
            grad_x.data = room + 1;
            gpp_error err = GPP_ERROR_INIT;
            cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
            cr_assert_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, wants ? &grad_x : NULL, &err),
                         GPP_OK, "%s", err.msg);
            cr_expect(room[0] == 7 && room[16] == 7, "%s: wrote beside grad_x", texts[k]);
            if (wants && !strncmp(texts[k], "identity; identity", 18))
                cr_expect(test_same(room + 1, b.grad_y.data, 15));
            cr_assert_eq(gpp_pipe_step(p, &b.x, &b.target, &b.y, NULL, &err), GPP_OK, "%s",
                         err.msg);
            cr_assert_eq(gpp_pipe_evaluate(p, &b.x, NULL, &b.y, NULL, &err), GPP_OK, "%s", err.msg);
            free(room);
            test_batch_free(&b);
            gpp_pipe_free(p);
        }
}

Test(pipe, outputs_that_overlap_inputs_are_refused)
{
    static const test_model same = {"", "linear out=5; relu; linear out=5", 1, {5}, "mse"};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *p = test_pipe_new(&same, &o);
    test_batch b = test_batch_new(p, 6, 1);
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp_pipe_step(p, &b.x, &b.target, &b.x, NULL, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "y and x overlap"), "%s", err.msg);
    cr_expect_eq(gpp_pipe_step(p, &b.x, &b.target, &b.target, NULL, NULL), GPP_EINVAL);
    gpp_tensor inside = b.x;
    inside.data = (float *)b.x.data + 29;
    cr_expect_eq(gpp_pipe_evaluate(p, &b.x, NULL, &inside, NULL, NULL), GPP_EINVAL,
                 "the last element");
    cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, NULL, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, &b.grad_y, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, &b.x, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, &b.grad_x, NULL), GPP_OK);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(pipe, an_update_or_a_new_parameter_discards_a_kept_forward)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *p = test_pipe_new(&small, &o);
    test_batch b = test_batch_new(p, 4, 1);
    cr_assert_eq(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_update(p, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE);
    cr_assert_eq(gpp_pipe_forward(p, &b.x, &b.y, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp_pipe_set(p, "b.bias", (float[]){1, 2, 3, 4}, 4, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(pipe, row_counts_no_memory_can_hold_are_refused)
{
    gpp_model *model = test_model_new(&small);
    static const int64_t batches[] = {(int64_t)1 << 45, (int64_t)1 << 58, INT64_MAX};
    for (int k = 0; k < 3; k++) {
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.batch = batches[k];
        refused(model, &o, GPP_ENOMEM, "rows");
    }
    gpp_pipe *p;
    char *text;
    cr_assert_eq(gpp_pipe_new(&p, model, NULL, NULL), GPP_OK);
    cr_expect_eq(gpp_pipe_draw(p, GPP_PICTURE_GRID, INT64_MAX, &text, NULL), GPP_ENOMEM);
    gpp_pipe_free(p);
    gpp_model_free(model);
}

Test(pipe, missing_arguments_are_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_info info;
    gpp_pipe_get_info(NULL, &info);
    cr_expect_eq(info.partitions, 0);
    gpp_pipe_get_info(NULL, NULL);
    cr_expect_eq(gpp_checkpoint_parse("always", NULL, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "NULL"), "%s", err.msg);
    cr_expect_eq(gpp_checkpoint_parse(NULL, &(gpp_checkpoint){0}, NULL), GPP_EINVAL);
    gpp_checkpoint mode = GPP_CHECKPOINT_NEVER;
    gpp_error_clear(&err);
    cr_expect_eq(gpp_checkpoint_parse("sometimes", &mode, &err), GPP_EINVAL);
    for (int k = 0; k <= GPP_CHECKPOINT_BUDGET; k++)
        cr_expect(strstr(err.msg, gpp_checkpoint_name((gpp_checkpoint)k)), "%s", err.msg);
    cr_expect_eq(mode, GPP_CHECKPOINT_NEVER, "a failure changes nothing");
    cr_expect_eq(gpp_model_layer(NULL, 0, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_minmax(1, NULL, 1, &(int){0}, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_minmax(1, &(double){0}, 1, NULL, NULL), GPP_EINVAL);
}
