/*
 * What a training loop may do besides whole steps: several forwards before their backwards,
 * gradients added up over calls, frozen parameters, gradients of the inputs; parameters that layers
 * share; and layers with a device of their own.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(modes, .init = test_keep_runtime, .fini = test_release_runtime);

static const test_model model = {
    "linears and a skip over two cuts",
    "linear out=12 @a; stash name=s; tanh; linear out=10 @b; relu; linear out=12 @c; "
    "pop name=s mode=add; dropout p=0.3; linear out=5 @d",
    1,
    {9},
    "mse reduction=sum"};

static gpp_pipe *pipe_new(int partitions, gpp_checkpoint mode)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.checkpoint = mode;
    o.chunks = 3;
    if (mode == GPP_CHECKPOINT_BUDGET) {
        gpp_model *m = test_model_new(&model);
        test_tighten(m, &o, 7, 64);
        gpp_model_free(m);
    }
    return test_pipe_new(&model, &o);
}

#define OK(call) cr_assert_eq((call), GPP_OK, "%s", err.msg)

/* --- kept forwards ---------------------------------------------------------------------------- */

static void gradients_of(gpp_pipe *p, test_trace *t, const test_batch *b)
{
    test_trace_grads(t, p);
    test_trace_add(t, b->grad_x.data, (size_t)test_tensor_count(&b->grad_x));
}

Test(modes, forwards_may_wait_for_their_backwards_in_any_order)
{
    for (int n = 1; n <= 4; n++)
        for (int mode = 0; mode <= GPP_CHECKPOINT_BUDGET; mode++) {
            gpp_error err = GPP_ERROR_INIT;
            gpp_pipe *alone = pipe_new(n, (gpp_checkpoint)mode);
            gpp_pipe *both = pipe_new(n, (gpp_checkpoint)mode);
            test_batch b[3];
            int pass[3];
            test_trace one[3] = {{0}}, other[3] = {{0}};
            for (int k = 0; k < 3; k++) {
                b[k] = test_batch_new(alone, 7 - k, (uint64_t)k);
                OK(gpp_pipe_forward(alone, &b[k].x, &b[k].y, &pass[k], &err));
                OK(gpp_pipe_backward(alone, pass[k], &b[k].x, &b[k].grad_y, &b[k].grad_x, &err));
                gradients_of(alone, &one[k], &b[k]);
            }
            for (int k = 0; k < 3; k++)
                OK(gpp_pipe_forward(both, &b[k].x, &b[k].y, &pass[k], &err));
            OK(gpp_pipe_evaluate(both, &b[0].x, NULL, &b[0].y, NULL, &err));
            static const int order[] = {1, 2, 0};
            for (int q = 0; q < 3; q++) {
                int k = order[q];
                OK(gpp_pipe_backward(both, pass[k], &b[k].x, &b[k].grad_y, &b[k].grad_x, &err));
                gradients_of(both, &other[k], &b[k]);
            }
            for (int k = 0; k < 3; k++) {
                cr_expect_eq(test_trace_differs(&one[k], &other[k]), -1,
                             "%d partitions, %s: forward %d", n,
                             gpp_checkpoint_name((gpp_checkpoint)mode), k);
                test_trace_free(&one[k]);
                test_trace_free(&other[k]);
                test_batch_free(&b[k]);
            }
            gpp_pipe_free(alone);
            gpp_pipe_free(both);
        }
}

Test(modes, a_forward_goes_back_once_and_only_if_it_is_there)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_new(2, GPP_CHECKPOINT_EXCEPT_LAST);
    test_batch b = test_batch_new(p, 6, 1);
    int first, second, third;
    OK(gpp_pipe_forward(p, &b.x, &b.y, &first, &err));
    OK(gpp_pipe_forward(p, &b.x, &b.y, &second, &err));
    cr_expect_neq(first, second);
    cr_expect_eq(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_pipe_backward(p, 99, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_pipe_backward(p, -2, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE);
    OK(gpp_pipe_backward(p, first, &b.x, &b.grad_y, NULL, &err));
    cr_expect_eq(gpp_pipe_backward(p, first, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE);
    OK(gpp_pipe_discard(p, second, &err));
    cr_expect_eq(gpp_pipe_discard(p, second, NULL), GPP_ESTATE);
    OK(gpp_pipe_forward(p, &b.x, &b.y, &third, &err));
    cr_expect_eq(gpp_pipe_backward(p, second, &b.x, &b.grad_y, NULL, NULL), GPP_ESTATE,
                 "the name of one that is gone means another");
    OK(gpp_pipe_backward(p, third, &b.x, &b.grad_y, NULL, &err));
    test_batch_free(&b);
    gpp_pipe_free(p);
}

/* --- accumulation ----------------------------------------------------------------------------- */

/* Gradients after calls on the given batches, one after the other. */
static test_trace accumulated(int n, const uint64_t seeds[], int count)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_new(n, GPP_CHECKPOINT_EXCEPT_LAST);
    OK(gpp_pipe_accumulate(p, true, &err));
    for (int k = 0; k < count; k++) {
        test_batch b = test_batch_new(p, 6, seeds[k]);
        p->steps = seeds[k]; /* dropout's step: each batch has its own masks, whoever is first */
        OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err));
        test_batch_free(&b);
    }
    test_trace t = {0};
    test_trace_grads(&t, p);
    gpp_pipe_free(p);
    return t;
}

Test(modes, gradients_add_up_over_calls_when_asked_to)
{
    static const uint64_t seeds[] = {3, 8, 11};
    test_trace sum = accumulated(1, seeds, 3), part[3];
    for (int k = 0; k < 3; k++)
        part[k] = accumulated(1, &seeds[k], 1);
    for (size_t e = 0; e < sum.count; e++)
        part[0].value[e] += part[1].value[e] + part[2].value[e];
    /* the same 18 products each, added in another order */
    cr_expect_leq(test_distance(sum.value, part[0].value, (int64_t)sum.count), 1e-6);
    for (int n = 2; n <= 4; n++) {
        test_trace cut = accumulated(n, seeds, 3);
        cr_expect_eq(test_trace_differs(&sum, &cut), -1, "%d partitions", n);
        test_trace_free(&cut);
    }
    for (int k = 0; k < 3; k++)
        test_trace_free(&part[k]);
    test_trace_free(&sum);
}

Test(modes, an_update_uses_what_has_added_up_and_begins_anew)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_new(3, GPP_CHECKPOINT_ALWAYS);
    test_batch b = test_batch_new(p, 6, 1);
    test_trace once = {0}, twice = {0}, anew = {0}, after = {0};
    cr_expect_eq(gpp_pipe_accumulate(NULL, true, NULL), GPP_EINVAL);
    OK(gpp_pipe_accumulate(p, true, &err));
    for (int k = 0; k < 3; k++) {
        p->steps = 0;
        OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err));
        test_trace_grads(k == 0 ? &once : k == 1 ? &twice : &anew, p);
        if (k == 1)
            OK(gpp_pipe_discard_gradients(p, &err));
    }
    cr_expect_eq(test_trace_differs(&once, &anew), -1);
    for (size_t e = 0; e < once.count; e++)
        once.value[e] *= 2;
    cr_expect_leq(test_distance(twice.value, once.value, (int64_t)once.count), 1e-6);
    OK(gpp_pipe_update(p, &err));
    OK(gpp_pipe_accumulate(p, false, &err));
    OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err));
    OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err));
    test_trace_grads(&after, p);
    cr_expect_neq(test_trace_differs(&twice, &after), -1);
    test_trace_free(&once);
    test_trace_free(&twice);
    test_trace_free(&anew);
    test_trace_free(&after);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

/* --- frozen parameters ------------------------------------------------------------------------ */

static float *copy_of(gpp_pipe *p, const char *name, int64_t count)
{
    float *value = test_room((size_t)count * sizeof *value);
    cr_assert_eq(gpp_pipe_get(p, name, value, count, NULL), GPP_OK);
    return value;
}

/* Routes that bring a gradient back, in the plan of the last step. */
static int gradient_routes(const gpp_pipe *p)
{
    int count = 0;
    for (int r = 0; r < p->flight[0].graph->step.plan->edges; r++)
        count += p->flight[0].graph->step.plan->edge[r].grad;
    return count;
}

Test(modes, frozen_parameters_stay_and_cost_nothing)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_new(4, GPP_CHECKPOINT_EXCEPT_LAST);
    test_batch b = test_batch_new(p, 6, 1);
    OK(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err));
    int all = gradient_routes(p);
    OK(gpp_pipe_freeze(p, "a", true, &err));
    OK(gpp_pipe_freeze(p, "c.bias", true, &err));
    cr_expect_eq(gpp_pipe_freeze(p, "nobody", true, NULL), GPP_ENOENT);
    float *a = copy_of(p, "a.weight", 108), *bias = copy_of(p, "c.bias", 12),
          *weight = copy_of(p, "c.weight", 120);
    for (int k = 0; k < 3; k++)
        OK(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err));
    float *a2 = copy_of(p, "a.weight", 108), *bias2 = copy_of(p, "c.bias", 12),
          *weight2 = copy_of(p, "c.weight", 120);
    cr_expect(test_same(a, a2, 108) && test_same(bias, bias2, 12));
    cr_expect_not(test_same(weight, weight2, 120));
    cr_expect_lt(gradient_routes(p), all, "what only frozen layers would need is not sent back");
    cr_expect_eq(gpp_pipe_gradient(p, "a.weight", a, 108, NULL), GPP_ESTATE);
    OK(gpp_pipe_freeze(p, "a", false, &err));
    OK(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err));
    cr_expect_eq(gradient_routes(p), all);
    float *a3 = copy_of(p, "a.weight", 108);
    cr_expect_not(test_same(a, a3, 108));
    float *all_copies[] = {a, a2, a3, bias, bias2, weight, weight2};
    for (int k = 0; k < 7; k++)
        free(all_copies[k]);
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(modes, freezing_changes_no_other_gradient)
{
    for (int n = 1; n <= 4; n++) {
        gpp_error err = GPP_ERROR_INIT;
        float g[2][60];
        for (int frozen = 0; frozen < 2; frozen++) {
            gpp_pipe *p = pipe_new(n, GPP_CHECKPOINT_ALWAYS);
            test_batch b = test_batch_new(p, 6, 1);
            if (frozen) {
                OK(gpp_pipe_freeze(p, "a", true, &err));
                OK(gpp_pipe_freeze(p, "b.weight", true, &err));
            }
            OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err));
            OK(gpp_pipe_gradient(p, "d.weight", g[frozen], 60, &err));
            test_batch_free(&b);
            gpp_pipe_free(p);
        }
        cr_expect(test_same(g[0], g[1], 60), "%d partitions", n);
    }
}

Test(modes, everything_may_be_frozen_and_the_input_gradient_still_comes)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_new(3, GPP_CHECKPOINT_EXCEPT_LAST);
    test_batch b = test_batch_new(p, 6, 1), c = test_batch_new(p, 6, 1);
    OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, &b.grad_x, NULL, &err));
    for (int k = 0; k < 4; k++)
        OK(gpp_pipe_freeze(p, ((const char *[]){"a", "b", "c", "d"})[k], true, &err));
    p->steps = 0;
    OK(gpp_pipe_gradients(p, &c.x, &c.target, NULL, &c.grad_x, NULL, &err));
    cr_expect(test_same(b.grad_x.data, c.grad_x.data, test_tensor_count(&b.grad_x)));
    OK(gpp_pipe_step(p, &c.x, &c.target, NULL, NULL, &err));
    cr_expect_eq(gradient_routes(p), 0, "nothing learns, nothing is sent back");
    test_batch_free(&b);
    test_batch_free(&c);
    gpp_pipe_free(p);
}

/* --- shared parameters ------------------------------------------------------------------------ */

/* Three layers, the last with the first one's parameters. */
static gpp_model *tied(bool share)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    int64_t dim = 6;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_add_text(m, "linear out=6 @a; tanh; linear out=6 @b; relu; linear out=6 @c; tanh",
                          &err));
    if (share)
        OK(gpp_model_share(m, 4, 0, &err));
    OK(gpp_model_set_input(m, GPP_F32, 1, &dim, &err));
    return m;
}

static gpp_pipe *tied_pipe(const gpp_model *m, int n, const char *const *devices)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = n;
    o.devices = devices;
    o.device_count = devices ? n : 0;
    o.chunks = 3;
    o.loss = "mse reduction=sum";
    o.optimizer = "sgd lr=0.05 momentum=0.9";
    OK(gpp_pipe_new(&p, m, &o, &err));
    return p;
}

Test(modes, shared_parameters_get_the_sum_of_the_gradients)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *shared = tied(true), *apart = tied(false);
    gpp_pipe *p = tied_pipe(shared, 1, NULL), *q = tied_pipe(apart, 1, NULL);
    test_batch b = test_batch_new(p, 7, 1);
    float w[36], bias[6], g[36], g1[36], g2[36];
    cr_expect_eq(gpp_pipe_parameters(p), 4, "the owner's are listed, once");
    OK(gpp_pipe_get(p, "a.weight", w, 36, &err));
    OK(gpp_pipe_get(p, "a.bias", bias, 6, &err));
    cr_expect_eq(gpp_pipe_get(p, "c.weight", w, 36, NULL), GPP_ENOENT);
    OK(gpp_pipe_set(q, "c.weight", w, 36, &err));
    OK(gpp_pipe_set(q, "c.bias", bias, 6, &err));
    OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, NULL, NULL, &err));
    OK(gpp_pipe_gradients(q, &b.x, &b.target, NULL, NULL, NULL, &err));
    OK(gpp_pipe_gradient(p, "a.weight", g, 36, &err));
    OK(gpp_pipe_gradient(q, "a.weight", g1, 36, &err));
    OK(gpp_pipe_gradient(q, "c.weight", g2, 36, &err));
    for (int k = 0; k < 36; k++)
        cr_expect_float_eq(g[k], g1[k] + g2[k], 1e-7f);
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_pipe_free(q);
    gpp_model_free(shared);
    gpp_model_free(apart);
}

Test(modes, shared_parameters_may_be_in_partitions_of_one_device)
{
    static const char *const same[] = {"cpu:0", "cpu:0", "cpu:0"};
    static const int64_t rows[] = {7, 9, 4};
    gpp_model *m = tied(true);
    gpp_pipe *one = tied_pipe(m, 1, NULL);
    test_trace a = {0};
    test_train(one, 3, rows, &a);
    for (int n = 2; n <= 3; n++) {
        gpp_pipe *p = tied_pipe(m, n, same);
        test_trace b = {0};
        test_train(p, 3, rows, &b);
        cr_expect_eq(test_trace_differs(&a, &b), -1, "%d partitions", n);
        test_trace_free(&b);
        gpp_pipe_free(p);
    }
    test_trace_free(&a);
    gpp_pipe_free(one);
    gpp_model_free(m);
}

Test(modes, shared_parameters_on_two_devices_are_refused_by_name)
{
    static const char *const two[] = {"cpu:0", "cpu:1"};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = tied(true);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *p;
    o.partitions = 2;
    o.devices = two;
    o.device_count = 2;
    cr_expect_eq(gpp_pipe_new(&p, m, &o, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "\"a\"") && strstr(err.msg, "\"c\"") && strstr(err.msg, "cpu:0") &&
                  strstr(err.msg, "cpu:1"),
              "%s", err.msg);
    gpp_model_free(m);
    for (int placed = 0; placed < 2; placed++) { /* the devices are those of the layers */
        m = NULL;
        gpp_error_clear(&err);
        OK(gpp_model_new(&m, &err));
        OK(gpp_model_add_text(m, "linear out=6 @a; relu; linear out=6 @c", &err));
        OK(gpp_model_share(m, 2, 0, &err));
        OK(gpp_model_place(m, 0, "cpu:0", &err));
        OK(gpp_model_place(m, 2, placed ? "cpu:1" : "cpu:0", &err));
        OK(gpp_model_set_input(m, GPP_F32, 1, (int64_t[]){6}, &err));
        cr_expect_eq(gpp_pipe_new(&p, m, NULL, &err), placed ? GPP_EINVAL : GPP_OK);
        cr_expect(!placed || strstr(err.msg, "\"a\""), "%s", err.msg);
        gpp_pipe_free(p);
        gpp_model_free(m);
    }
}

/* --- placed layers ---------------------------------------------------------------------------- */

static gpp_model *placed(const char *const device[6])
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    int64_t dim = 6;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_add_text(m, "linear out=6; tanh; linear out=6; relu; linear out=6; tanh", &err));
    for (int k = 0; k < 6; k++)
        OK(gpp_model_place(m, k, device[k], &err));
    OK(gpp_model_set_input(m, GPP_F32, 1, &dim, &err));
    return m;
}

Test(modes, partitions_follow_from_where_layers_are_placed)
{
    static const struct {
        const char *why, *device[6];
        int n, balance[4];
    } cases[] = {
        {"the device changes once", {"cpu:0", NULL, "cpu:0", "cpu:1", NULL, NULL}, 2, {3, 3}},
        {"the first is placed by the next", {NULL, "cpu:1", NULL, NULL, "cpu:0", NULL}, 2, {4, 2}},
        {"there and back", {"cpu:0", NULL, "cpu:1", NULL, "cpu:0", NULL}, 3, {2, 2, 2}},
        {"one device", {NULL, NULL, NULL, "cpu:1", NULL, NULL}, 1, {6}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *m = placed(cases[c].device);
        gpp_pipe *p;
        gpp_pipe_info info;
        OK(gpp_pipe_new(&p, m, NULL, &err));
        gpp_pipe_get_info(p, &info);
        cr_assert_eq(info.partitions, cases[c].n, "%s", cases[c].why);
        for (int j = 0; j < cases[c].n; j++)
            cr_expect_eq(info.balance[j], cases[c].balance[j], "%s: %d", cases[c].why, j);
        for (int k = 0; k < 6; k++)
            if (cases[c].device[k])
                cr_expect_str_eq(info.device_name[info.device_of[gpp_pipe_partition_of(p, k)]],
                                 cases[c].device[k], "%s: layer %d", cases[c].why, k);
        gpp_pipe_free(p);
        gpp_model_free(m);
    }
}

Test(modes, a_placement_that_the_balance_contradicts_is_refused)
{
    static const char *const device[6] = {NULL, NULL, NULL, NULL, "cpu:1", NULL};
    static const char *const devices[] = {"cpu:0", "cpu:1"};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = placed(device);
    gpp_pipe *p;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = 2;
    o.balance = (int[]){5, 1};
    o.devices = devices;
    o.device_count = 2;
    cr_expect_eq(gpp_pipe_new(&p, m, &o, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "layer 4") && strstr(err.msg, "cpu:1"), "%s", err.msg);
    gpp_error_clear(&err);
    o.balance = (int[]){4, 2};
    OK(gpp_pipe_new(&p, m, &o, &err));
    gpp_pipe_free(p);
    o = (gpp_pipe_options)GPP_PIPE_OPTIONS_INIT;
    o.partitions = 3;
    cr_expect_eq(gpp_pipe_new(&p, m, &o, &err), GPP_EINVAL, "one device, three partitions");
    gpp_model_free(m);
}

/* --- a model without layers ------------------------------------------------------------------- */

Test(modes, a_model_without_layers_gives_its_inputs_back)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    gpp_pipe *p;
    gpp_pipe_info info;
    int64_t dim[3] = {2, 3, 4};
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_set_input(m, GPP_F32, 3, dim, &err));
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 3;
    o.loss = "mse";
    OK(gpp_pipe_new(&p, m, &o, &err));
    gpp_pipe_get_info(p, &info);
    cr_expect_eq(info.layers, 0);
    cr_expect_eq(info.partitions, 0);
    test_batch b = test_batch_new(p, 7, 1);
    int64_t count = test_tensor_count(&b.x);
    OK(gpp_pipe_evaluate(p, &b.x, NULL, &b.y, NULL, &err));
    cr_expect(test_same(b.x.data, b.y.data, count));
    memset(b.y.data, 0, (size_t)count * 4);
    OK(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err));
    OK(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, &b.grad_x, &err));
    cr_expect(test_same(b.x.data, b.y.data, count));
    cr_expect(test_same(b.grad_y.data, b.grad_x.data, count));
    double loss;
    OK(gpp_pipe_gradients(p, &b.x, &b.target, NULL, &b.grad_x, &loss, &err));
    cr_expect(loss > 0);
    o.partitions = 1;
    o.balance = (int[]){1};
    gpp_pipe *none;
    cr_expect_eq(gpp_pipe_new(&none, m, &o, &err), GPP_EINVAL, "there is no layer to balance");
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_model_free(m);
}

/* --- gradients of what nobody asks for -------------------------------------------------------- */

/* relu(x) + linear(x) in one layer: the sum works in place, back to the input. */
static gpp_model *residual(void)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    gpp_ref x = {GPP_REF_INPUT, 0}, both[2] = {{0, 0}, {1, 0}};
    int64_t dim = 4;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_begin(m, "block", &err));
    OK(gpp_model_from(m, &x, 1, &err));
    OK(gpp_model_add_text(m, "relu", &err));
    OK(gpp_model_from(m, &x, 1, &err));
    OK(gpp_model_add_text(m, "linear out=4 @l", &err));
    OK(gpp_model_from(m, both, 2, &err));
    OK(gpp_model_add_text(m, "add", &err));
    OK(gpp_model_end(m, NULL, 0, &err));
    OK(gpp_model_add_text(m, "linear out=3 @last", &err));
    OK(gpp_model_set_input(m, GPP_F32, 1, &dim, &err));
    return m;
}

Test(modes, parameter_gradients_are_the_same_whether_the_inputs_is_wanted_or_not)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = residual();
    gpp_pipe *p;
    OK(gpp_pipe_new(&p, m, NULL, &err));
    test_batch b = test_batch_new(p, 5, 1);
    float g[2][16];
    for (int wanted = 0; wanted < 2; wanted++) {
        OK(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err));
        OK(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, wanted ? &b.grad_x : NULL, &err));
        OK(gpp_pipe_gradient(p, "l.weight", g[wanted], 16, &err));
    }
    cr_expect(test_same(g[0], g[1], 16));
    cr_expect_gt(test_dot(g[0], g[0], 16), 0);
    test_batch_free(&b);
    gpp_pipe_free(p);
    gpp_model_free(m);
}

Test(modes, a_wrong_forward_leaves_the_kept_one_as_it_is)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_new(2, GPP_CHECKPOINT_EXCEPT_LAST);
    test_batch b = test_batch_new(p, 6, 1);
    gpp_tensor wrong = b.x;
    wrong.dim[1]++;
    OK(gpp_pipe_forward(p, &b.x, &b.y, NULL, &err));
    cr_expect_eq(gpp_pipe_forward(p, &wrong, &b.y, NULL, NULL), GPP_ESHAPE);
    OK(gpp_pipe_backward(p, -1, &b.x, &b.grad_y, NULL, &err));
    test_batch_free(&b);
    gpp_pipe_free(p);
}

Test(modes, an_empty_mini_batch_beside_one_with_rows_is_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    gpp_pipe *p;
    float z[2] = {1, 2}, y[2];
    gpp_shape in[2] = {{GPP_F32, 0, {0}, 0, 0}, {GPP_F32, 0, {0}, 1, 0}};
    gpp_tensor x[2] = {{NULL, GPP_F32, 1, {0}}, {z, GPP_F32, 1, {2}}};
    gpp_tensor out[2] = {{NULL, GPP_F32, 1, {0}}, {y, GPP_F32, 1, {2}}};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_add_text(m, "identity", &err));
    OK(gpp_model_set_inputs(m, in, 2, &err));
    o.chunks = 2;
    OK(gpp_pipe_new(&p, m, &o, &err));
    cr_expect_eq(gpp_pipe_evaluate(p, x, NULL, out, NULL, &err), GPP_ESHAPE);
    gpp_pipe_free(p);
    gpp_model_free(m);
}

/* --- statistics ------------------------------------------------------------------------------- */

/* Micro-batches of mean 2 and 12: 0.9 · (0.1 · 2) + 0.1 · 12, and not the other way round. */
Test(modes, statistics_are_folded_in_by_micro_batch_also_when_backwards_ascend)
{
    static const test_model m = {"a norm", "batchnorm @bn", 1, {1}, "mse"};
    for (int ascending = 0; ascending < 2; ascending++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
        o.chunks = 2;
        o.checkpoint = GPP_CHECKPOINT_ALWAYS;
        o.ascending_backward = ascending;
        gpp_pipe *p = test_pipe_new(&m, &o);
        test_batch b = test_batch_new(p, 4, 1);
        memcpy(b.x.data, (float[]){1, 3, 11, 13}, 4 * sizeof(float));
        OK(gpp_pipe_step(p, &b.x, &b.target, NULL, NULL, &err));
        float mean;
        int64_t tracked;
        OK(gpp_pipe_get_buffer(p, "bn.running_mean", &mean, 1, &err));
        OK(gpp_pipe_get_buffer(p, "bn.num_batches_tracked", &tracked, 1, &err));
        cr_expect_float_eq(mean, 1.38f, 1e-6f, "%g", mean);
        cr_expect_eq(tracked, 2);
        test_batch_free(&b);
        gpp_pipe_free(p);
    }
}

typedef struct norm_state {
    float mean[3], var[3];
    int64_t tracked;
} norm_state;

static gpp_pipe *norm_pipe(bool deferred, int chunks, int partitions, gpp_checkpoint mode)
{
    static const test_model m = {"a norm", "batchnorm @bn; relu", 3, {3, 4, 4}, "mse"};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.deferred_batch_norm = deferred;
    o.chunks = chunks;
    o.partitions = partitions;
    o.checkpoint = mode;
    return test_pipe_new(&m, &o);
}

/* Rows around 1, 2, 4, ...: statistics of a part are not those of the whole. */
static test_batch tilted(const gpp_pipe *p, int64_t rows)
{
    test_batch b = test_batch_new(p, rows, (uint64_t)rows);
    for (int64_t k = 0; k < rows * 48; k++)
        ((float *)b.x.data)[k] += ldexpf(1, (int)(k / 48));
    return b;
}

static norm_state state_after(gpp_pipe *p, test_batch *b)
{
    norm_state s;
    gpp_error err = GPP_ERROR_INIT;
    OK(gpp_pipe_gradients(p, &b->x, &b->target, &b->y, &b->grad_x, NULL, &err));
    OK(gpp_pipe_get_buffer(p, "bn.running_mean", s.mean, 3, &err));
    OK(gpp_pipe_get_buffer(p, "bn.running_var", s.var, 3, &err));
    OK(gpp_pipe_get_buffer(p, "bn.num_batches_tracked", &s.tracked, 1, &err));
    return s;
}

/* Fewer rows than chunks, too: none is forgotten, and none is left over for the next mini-batch.
 * 1e-5 of the largest: sums of float32 in other groups. */
Test(modes, deferred_statistics_are_those_of_the_rows_at_once_in_every_mode)
{
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe *cut = norm_pipe(true, 16, 1 + mode % 2, (gpp_checkpoint)mode);
        gpp_pipe *whole = norm_pipe(true, 1, 1, GPP_CHECKPOINT_NEVER);
        for (int64_t rows = 3; rows <= 5; rows++) {
            test_batch b = tilted(cut, rows);
            norm_state got = state_after(cut, &b), want = state_after(whole, &b);
            cr_expect(got.tracked == rows - 2 && want.tracked == rows - 2, "once a mini-batch");
            cr_expect_leq(test_distance(got.mean, want.mean, 3), 1e-5, "mode %d", mode);
            cr_expect_leq(test_distance(got.var, want.var, 3), 1e-5, "mode %d", mode);
            test_batch_free(&b);
        }
        gpp_pipe_free(cut);
        gpp_pipe_free(whole);
    }
}

/* Plain statistics are taken once for each micro-batch, in their order, never by a recomputation.
 * Deferring them adds no task and changes no output and no gradient. */
Test(modes, plain_statistics_do_not_depend_on_the_mode_and_deferring_changes_nothing_else)
{
    norm_state first;
    float y[768], grad_x[768];
    int tasks = 0;
    for (int mode = 0; mode < 6; mode++) {
        bool deferred = mode % 2;
        gpp_pipe *p = norm_pipe(deferred, 4, 1 + mode / 2 % 2, (gpp_checkpoint)(mode / 2));
        test_batch b = tilted(p, 16);
        norm_state s = state_after(p, &b);
        gpp_step_stats stats;
        cr_assert_eq(gpp_pipe_last_step(p, &stats, NULL), GPP_OK);
        first = mode ? first : s;
        cr_expect_eq(s.tracked, deferred ? 1 : 4, "mode %d", mode / 2);
        cr_expect(deferred || (test_same(s.mean, first.mean, 3) && test_same(s.var, first.var, 3)));
        cr_expect(!deferred || stats.tasks == tasks, "%d and %d tasks", stats.tasks, tasks);
        cr_expect(!mode || (test_same(y, b.y.data, 768) && test_same(grad_x, b.grad_x.data, 768)));
        tasks = stats.tasks;
        memcpy(y, b.y.data, sizeof y);
        memcpy(grad_x, b.grad_x.data, sizeof grad_x);
        test_batch_free(&b);
        gpp_pipe_free(p);
    }
}
