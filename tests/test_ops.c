/*
 * tests/test_ops.c: what must hold for every operator: reference vectors, central differences,
 * independence of threads; and what must hold for the small ones.
 *
 * The list of operators is walked, and one without a case fails: who adds an operator adds it to
 * `cases`, or, when its own test has the like, to `elsewhere`.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/cpu/philox.h"
#include "tests/slopes.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* --- reference vectors ------------------------------------------------------------------------ */

Test(ops, reference_vectors_are_met_within_1e_5_of_the_largest_value)
{
    static const test_known known[] = {
        {"linear", 4}, {"conv2d", 16}, {"relu", 1}, {"maxpool2d", 5}};
    test_expect_vectors("layer", known, COUNT(known));
}

/* --- every operator --------------------------------------------------------------------------- */

typedef struct op_case {
    char spec[72];
    int rank;
    int64_t dim[3], rows;
    char why[56];
} op_case;

/* Small, for central differences. The first word is the operator. */
static const op_case cases[] = {
    {"linear out=5", 1, {7}, 4, "plain"},
    {"linear out=5 bias=0", 1, {7}, 1, "without bias, one row"},
    {"linear out=3", 2, {4, 6}, 2, "over the last of two dimensions"},
    {"linear out=33", 1, {65}, 17, "no size a multiple of a vector"},
    {"conv2d out=4 kernel=3 padding=1", 3, {3, 6, 5}, 2, "as in most networks"},
    {"conv2d out=4 kernel=3 bias=0", 3, {1, 5, 5}, 1, "one channel, without bias, one row"},
    {"conv2d out=5 kernel=1", 3, {6, 3, 4}, 3, "pointwise"},
    {"conv2d out=3 kernel=3,2 stride=2,1 padding=2,0", 3, {2, 7, 6}, 2, "nothing symmetric"},
    {"conv2d out=4 kernel=3 padding=2 dilation=2", 3, {2, 7, 7}, 2, "dilated"},
    {"conv2d out=6 kernel=3 padding=1 groups=2", 3, {4, 5, 5}, 2, "grouped"},
    {"conv2d out=4 kernel=3 groups=4", 3, {4, 5, 5}, 2, "depthwise"},
    {"conv2d out=16 kernel=3 padding=1", 3, {16, 4, 4}, 2, "channels of whole vectors"},
    {"conv2d out=2 kernel=5 stride=3", 3, {2, 10, 10}, 1, "last rows unused"},
    {"maxpool2d kernel=2", 3, {3, 6, 4}, 2, "as in most networks"},
    {"maxpool2d kernel=3 stride=2 padding=1", 3, {2, 7, 6}, 2, "overlapping, padded"},
    {"maxpool2d kernel=2,3 stride=1,2", 3, {2, 5, 7}, 2, "nothing symmetric"},
    {"maxpool2d kernel=2 dilation=2 stride=1", 3, {2, 5, 5}, 2, "dilated"},
    {"maxpool2d kernel=3 stride=2 ceil=1", 3, {2, 6, 6}, 2, "windows that stick out"},
    {"relu", 1, {37}, 3, "vector"},
    {"relu", 3, {3, 4, 5}, 2, "image"},
    {"relu", 0, {0}, 5, "one number a row"},
    {"flatten", 3, {3, 4, 5}, 2, "image"},
    {"flatten", 3, {1, 4, 5}, 2, "one channel: a view"},
    {"flatten", 2, {4, 5}, 3, "matrix: a view"},
    {"flatten", 3, {9, 3, 7}, 2, "tiles with edges"},
    {"dropout", 1, {50}, 3, "half"},
    {"dropout p=0.2", 3, {3, 4, 5}, 2, "image"},
    {"dropout p=0", 1, {9}, 2, "nothing dropped: a view"},
    {"dropout p=1", 1, {9}, 2, "everything dropped"},
    {"dropout2d", 3, {5, 4, 3}, 3, "half of the channels"},
    {"dropout2d p=0", 3, {5, 4, 3}, 2, "nothing dropped: a view"},
    {"identity", 3, {3, 4, 5}, 2, "image"},
    {"identity", 1, {4}, 2, "vector"},
};

/* Large enough for several units of work. */
static const op_case large_cases[] = {
    {"linear out=300", 1, {500}, 130, ""},
    {"conv2d out=24 kernel=3 padding=1", 3, {16, 28, 28}, 9, ""},
    {"conv2d out=32 kernel=3 padding=1", 3, {1, 28, 28}, 16, ""},
    {"conv2d out=32 kernel=3 stride=2 groups=4", 3, {32, 17, 17}, 7, ""},
    {"maxpool2d kernel=2", 3, {32, 28, 28}, 9, ""},
    {"maxpool2d kernel=3 stride=2 padding=1", 3, {19, 31, 30}, 9, ""},
    {"relu", 3, {30, 57, 59}, 3, ""},
    {"flatten", 3, {30, 57, 59}, 5, ""},
    {"dropout p=0.3", 3, {30, 57, 59}, 3, ""},
    {"dropout2d p=0.3", 3, {30, 57, 59}, 3, ""},
    {"identity", 1, {100000}, 3, ""},
};

static bool is_of(const op_case *c, const gpp_op *op)
{
    size_t length = strlen(op->name);
    return strncmp(c->spec, op->name, length) == 0 &&
           (c->spec[length] == ' ' || c->spec[length] == '\0');
}

/* Operators with their own file: test_arith.c, test_norm.c, test_attention.c. */
static const char *const elsewhere[] = {
    "stash",
    "unstash",
    "pop",
    "combine",
    "add",
    "mul",
    "cat",
    "split",
    "tanh",
    "sigmoid",
    "gelu",
    "leaky_relu",
    "silu",
    "elu",
    "relu6",
    "hardtanh",
    "softplus",
    "adaptive_avgpool2d",
    "avgpool2d",
    "upsample",
    "pad",
    "softmax",
    "log_softmax",
    "conv_transpose2d",
    "batchnorm",
    "layernorm",
    "instancenorm",
    "groupnorm",
    "embedding",
    "position_embedding",
    "self_attention",
};

static bool is_elsewhere(const gpp_op *op)
{
    for (size_t k = 0; k < COUNT(elsewhere); k++)
        if (strcmp(op->name, elsewhere[k]) == 0)
            return true;
    return false;
}

Test(ops, every_operator_has_cases)
{
    for (const gpp_op *const *op = gpp__ops; *op; op++) {
        if (is_elsewhere(*op))
            continue;
        int small = 0, large = 0;
        for (size_t k = 0; k < COUNT(cases); k++)
            small += is_of(&cases[k], *op);
        for (size_t k = 0; k < COUNT(large_cases); k++)
            large += is_of(&large_cases[k], *op);
        cr_expect(small > 0 && large > 0, "%s: %d small and %d large cases", (*op)->name, small,
                  large);
    }
}

/* A rig with everything it needs for f = Σ w·y and its gradient at x and the parameters. */
typedef struct probe {
    const op_case *c;
    test_rig *rig;
    float *x, *y, *w, *grad_x;
} probe;

static probe probe_new(const op_case *c, int threads)
{
    probe p = {c, test_rig_of(c->spec, c->rank, c->dim, c->rows, threads), 0, 0, 0, 0};
    p.x = test_floats(test_rig_inputs(p.rig));
    p.grad_x = test_floats(test_rig_inputs(p.rig));
    p.y = test_floats(test_rig_outputs(p.rig));
    p.w = test_floats(test_rig_outputs(p.rig));
    test_fill(p.w, test_rig_outputs(p.rig), 77, -1, 1);
    for (int k = 0; k < p.rig->layer.param_count; k++)
        test_fill(test_rig_param(p.rig, k), p.rig->layer.param[k].count, 100 + (uint64_t)k, -1, 1);
    return p;
}

static void probe_free(probe *p)
{
    free(p->x);
    free(p->y);
    free(p->w);
    free(p->grad_x);
    test_rig_free(p->rig);
}

static double probe_value(const probe *p)
{
    cr_assert_eq(test_rig_forward(p->rig, p->x, p->y), GPP_OK, "%s", p->c->spec);
    return test_dot(p->w, p->y, test_rig_outputs(p->rig));
}

/*
 * Half the difference of f at at + STEP·u and at - STEP·u, against Σ gradient·u, for random signs
 * u.
 *
 * Every operator here is linear in each of its arguments between kinks, and inputs keep more than
 * STEP away from these (0.1 apart, 0.05 from 0), so there is no truncation error and the step may
 * be large. What is left is rounding: outputs of about s carry errors of 2^-24 s, their sum over n
 * outputs divided by 2·STEP is about 1e-6 s √n, next to a derivative of about the root of the sum
 * of its squared terms, s √n. Gaps make s up to 20 times a gradient's size: below 1e-4.
 */
#define STEP      0.04f
#define GAP       0.1
#define TOLERANCE 5e-4

static double value_of(void *argument)
{
    return probe_value(argument);
}

static void expect_slopes(const op_case *c)
{
    probe p = probe_new(c, 2);
    const test_slopes s = {c->spec, c->why, value_of, &p, STEP, TOLERANCE, 0};
    test_fill_apart(p.x, test_rig_inputs(p.rig), 3, GAP);
    probe_value(&p);
    cr_assert_eq(test_rig_backward(p.rig, p.w, p.grad_x, false), GPP_OK, "%s", c->spec);
    test_expect_slope(&s, p.x, test_rig_inputs(p.rig), p.grad_x, "x");
    test_expect_param_slopes(&s, p.rig);
    probe_free(&p);
}

Test(ops, gradients_are_the_slopes_of_central_differences)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        expect_slopes(&cases[k]);
}

/* Everything a forward and a backward give, one behind the other. */
static float *results(const op_case *c, int threads, int64_t *count)
{
    probe p = probe_new(c, threads);
    int64_t inputs = test_rig_inputs(p.rig), outputs = test_rig_outputs(p.rig), at;
    *count = inputs + outputs;
    for (int k = 0; k < p.rig->layer.param_count; k++)
        *count += p.rig->layer.param[k].count;
    float *all = test_floats(*count);
    test_fill(p.x, inputs, 9, -1, 1);
    cr_assert_eq(test_rig_forward(p.rig, p.x, all), GPP_OK);
    cr_assert_eq(test_rig_backward(p.rig, p.w, all + outputs, false), GPP_OK);
    at = outputs + inputs;
    for (int k = 0; k < p.rig->layer.param_count; at += p.rig->layer.param[k++].count)
        test_rig_grad(p.rig, k, all + at);
    probe_free(&p);
    return all;
}

static void expect_independence(const op_case *c)
{
    int64_t count;
    float *one = results(c, 1, &count);
    for (int64_t k = 0; k < count; k++)
        cr_assert(isfinite(one[k]), "%s: element %d of the results is not written", c->spec,
                  (int)k);
    for (int threads = 1; threads <= 3; threads++) {
        float *many = results(c, threads, &count);
        cr_expect(test_same(one, many, count), "%s: %d threads change a bit", c->spec, threads);
        free(many);
    }
    free(one);
}

Test(ops, results_do_not_depend_on_threads)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        expect_independence(&cases[k]);
    for (size_t k = 0; k < COUNT(large_cases); k++)
        expect_independence(&large_cases[k]);
}

static void expect_accumulation(const op_case *c)
{
    probe p = probe_new(c, 2);
    test_fill(p.x, test_rig_inputs(p.rig), 9, -1, 1);
    probe_value(&p);
    test_rig_backward(p.rig, p.w, p.grad_x, false);
    for (int times = 2; times <= 3; times++) {
        test_rig_backward(p.rig, p.w, p.grad_x, true);
        for (int k = 0; k < p.rig->layer.param_count; k++) {
            int64_t count = p.rig->layer.param[k].count;
            float *sum = test_floats(count), *once = test_floats(count);
            test_rig_grad(p.rig, k, sum);
            probe q = probe_new(c, 2);
            memcpy(q.x, p.x, (size_t)test_rig_inputs(p.rig) * sizeof *p.x);
            probe_value(&q);
            test_rig_backward(q.rig, q.w, NULL, false);
            test_rig_grad(q.rig, k, once);
            for (int64_t e = 0; e < count; e++)
                once[e] *= (float)times;
            /* Sums of two or three equal numbers: rounding alone. */
            cr_expect(test_distance(sum, once, count) < 1e-6, "%s: %d times %s", c->spec, times,
                      p.rig->layer.param[k].name);
            probe_free(&q);
            free(sum);
            free(once);
        }
    }
    probe_free(&p);
}

Test(ops, parameter_gradients_add_up_when_asked_and_are_assigned_otherwise)
{
    for (size_t k = 0; k < COUNT(cases); k++)
        expect_accumulation(&cases[k]);
}

Test(ops, parameter_gradients_do_not_depend_on_whether_the_input_gradient_is_wanted)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        probe p = probe_new(&cases[k], 1);
        test_fill(p.x, test_rig_inputs(p.rig), 9, -1, 1);
        probe_value(&p);
        for (int param = 0; param < p.rig->layer.param_count; param++) {
            int64_t count = p.rig->layer.param[param].count;
            float *with = test_floats(count), *without = test_floats(count);
            test_rig_backward(p.rig, p.w, p.grad_x, false);
            test_rig_grad(p.rig, param, with);
            test_rig_backward(p.rig, p.w, NULL, false);
            test_rig_grad(p.rig, param, without);
            cr_expect(test_same(with, without, count), "%s: %s", cases[k].spec,
                      p.rig->layer.param[param].name);
            free(with);
            free(without);
        }
        probe_free(&p);
    }
}

Test(ops, outputs_do_not_depend_on_whether_a_backward_follows)
{
    for (size_t k = 0; k < COUNT(cases); k++) {
        probe p = probe_new(&cases[k], 1);
        int64_t outputs = test_rig_outputs(p.rig);
        float *dropped = test_floats(outputs);
        test_fill(p.x, test_rig_inputs(p.rig), 9, -1, 1);
        probe_value(&p);
        p.rig->discard = true;
        cr_assert_eq(test_rig_forward(p.rig, p.x, dropped), GPP_OK);
        cr_expect(test_same(p.y, dropped, outputs), "%s", cases[k].spec);
        free(dropped);
        probe_free(&p);
    }
}

Test(ops, working_in_place_changes_no_bit)
{
    int tried = 0;
    for (size_t k = 0; k < COUNT(large_cases) + COUNT(cases); k++) {
        const op_case *c = k < COUNT(cases) ? &cases[k] : &large_cases[k - COUNT(cases)];
        probe p = probe_new(c, 2);
        if (p.rig->layer.op->in_place) {
            int64_t inputs = test_rig_inputs(p.rig);
            float *y = test_floats(inputs), *grad = test_floats(inputs);
            test_fill(p.x, inputs, 9, -1, 1);
            probe_value(&p);
            test_rig_backward(p.rig, p.w, p.grad_x, false);
            p.rig->in_place = true;
            test_rig_forward(p.rig, p.x, y);
            test_rig_backward(p.rig, p.w, grad, false);
            cr_expect(test_same(y, p.y, inputs), "%s: forward", c->spec);
            cr_expect(test_same(grad, p.grad_x, inputs), "%s: backward", c->spec);
            free(y);
            free(grad);
            tried++;
        }
        probe_free(&p);
    }
    cr_expect_geq(tried, 2);
}

/* --- initial values --------------------------------------------------------------------------- */

Test(ops, initial_values_are_uniform_within_one_over_the_root_of_the_fan_in)
{
    static const struct {
        op_case c;
        double fan_in;
    } layers[] = {
        {{"linear out=200", 1, {300}, 1, ""}, 300},
        {{"conv2d out=64 kernel=3", 3, {32, 3, 3}, 1, ""}, 32 * 9},
        {{"conv2d out=256 kernel=5,3 groups=4", 3, {64, 5, 5}, 1, ""}, 16 * 15},
    };
    for (size_t k = 0; k < COUNT(layers); k++) {
        const op_case *c = &layers[k].c;
        test_rig *rig = test_rig_of(c->spec, c->rank, c->dim, c->rows, 1);
        double bound = 1 / sqrt(layers[k].fan_in);
        test_rig_init(rig, 5);
        for (int p = 0; p < rig->layer.param_count; p++) {
            const float *value = test_rig_param(rig, p);
            int64_t n = rig->layer.param[p].count;
            double mean = 0, square = 0, most = 0;
            for (int64_t e = 0; e < n; e++) {
                mean += value[e] / (double)n;
                square += (double)value[e] * value[e] / (double)n;
                most = fmax(most, fabs((double)value[e]));
            }
            /* Variance bound²/3, that of a square 4/45 bound⁴; five standard deviations each. */
            cr_expect_leq(most, bound * (1 + 1e-6), "%s", c->spec);
            cr_expect_gt(most, bound * (1 - 20 / (double)n), "%s", c->spec);
            cr_expect_leq(fabs(mean), 5 * bound / sqrt(3 * (double)n), "%s", c->spec);
            cr_expect_leq(fabs(square / (bound * bound) - 1 / 3.0), 5 * sqrt(4 / 45.0 / (double)n),
                          "%s", c->spec);
        }
        test_rig_free(rig);
    }
}

static bool differ_everywhere(const float *a, const float *b, int64_t count)
{
    int64_t equal = 0;
    for (int64_t k = 0; k < count; k++)
        equal += a[k] == b[k];
    return equal <= 1 + count / 1000;
}

Test(ops, initial_values_are_a_function_of_seed_layer_and_parameter)
{
    gpp__desc in = {.dtype = GPP_F32, .rank = 1, .dim = {40}};
    static const struct {
        int index;
        uint64_t seed;
        bool same;
        char why[24];
    } others[] = {
        {3, 7, true, "all equal"},
        {4, 7, false, "another layer"},
        {3, 8, false, "another seed"},
        {3, 7 + (UINT64_C(1) << 40), false, "another seed, high bits"},
    };
    test_rig *rig, *other;
    cr_assert_eq(test_rig_new(&rig, "linear out=40", 3, &in, 1, 1, NULL), GPP_OK);
    test_rig_init(rig, 7);
    for (size_t k = 0; k < COUNT(others); k++) {
        cr_assert_eq(test_rig_new(&other, "linear out=40", others[k].index, &in, 1, 1, NULL),
                     GPP_OK);
        test_rig_init(other, others[k].seed);
        const float *a = test_rig_param(rig, 0), *b = test_rig_param(other, 0);
        cr_expect(others[k].same ? test_same(a, b, 1600) : differ_everywhere(a, b, 1600), "%s",
                  others[k].why);
        test_rig_free(other);
    }
    cr_expect(differ_everywhere(test_rig_param(rig, 0), test_rig_param(rig, 1), 40),
              "weight and bias");
    test_rig_free(rig);
}

/* --- shapes ----------------------------------------------------------------------------------- */

Test(ops, small_operators_infer_their_shapes)
{
    static const struct {
        char spec[16];
        gpp__desc in, out;
    } shapes[] = {
        {"relu",
         {.dtype = GPP_F32, .rank = 3, .dim = {4, 5, 6}},
         {.dtype = GPP_F32, .rank = 3, .dim = {4, 5, 6}}},
        {"dropout",
         {.dtype = GPP_F32, .rank = 2, .dim = {4, 5}},
         {.dtype = GPP_F32, .rank = 2, .dim = {4, 5}}},
        {"identity",
         {.dtype = GPP_F32, .rank = 7, .dim = {1, 2, 3, 1, 2, 3, 1}},
         {.dtype = GPP_F32, .rank = 7, .dim = {1, 2, 3, 1, 2, 3, 1}}},
        {"identity",
         {.dtype = GPP_I64, .rank = 1, .dim = {4}},
         {.dtype = GPP_I64, .rank = 1, .dim = {4}}},
        {"flatten",
         {.dtype = GPP_F32, .rank = 3, .dim = {4, 5, 6}},
         {.dtype = GPP_F32, .rank = 1, .dim = {120}}},
        {"flatten",
         {.dtype = GPP_F32, .rank = 1, .dim = {7}},
         {.dtype = GPP_F32, .rank = 1, .dim = {7}}},
        {"flatten",
         {.dtype = GPP_F32, .rank = 0, .dim = {0}},
         {.dtype = GPP_F32, .rank = 1, .dim = {1}}},
    };
    for (size_t k = 0; k < COUNT(shapes); k++) {
        gpp__layer layer = {.op = gpp__op_find(shapes[k].spec), .in_count = 1};
        layer.in[0] = shapes[k].in;
        cr_assert_eq(layer.op->infer(&layer, NULL), GPP_OK, "%s", shapes[k].spec);
        cr_expect_eq(layer.out_count, 1);
        cr_expect_eq(layer.param_count, 0);
        cr_expect(gpp__desc_equal(&layer.out[0], &shapes[k].out), "%s, case %zu", shapes[k].spec,
                  k);
    }
}

Test(ops, small_operators_refuse_what_they_cannot_take)
{
    static const char *const names[] = {"relu", "dropout", "flatten"};
    for (size_t k = 0; k < COUNT(names); k++) {
        gpp__layer layer = {.op = gpp__op_find(names[k]), .in_count = 1, .index = 2};
        gpp_error err = GPP_ERROR_INIT;
        layer.in[0] = (gpp__desc){.dtype = GPP_I64, .rank = 1, .dim = {4}};
        cr_expect_eq(layer.op->infer(&layer, &err), GPP_ESHAPE, "%s", names[k]);
        cr_expect_eq(err.layer, 2);
        cr_expect(strstr(err.msg, names[k]) && strstr(err.msg, "int64"), "%s", err.msg);
    }
    gpp__layer two = {.op = gpp__op_find("relu"), .in_count = 2, .index = 5};
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(two.op->infer(&two, &err), GPP_ESHAPE);
    cr_expect(err.layer == 5 && strstr(err.msg, "got 2"), "%s", err.msg);
}

Test(ops, only_outputs_that_are_the_input_in_memory_are_views)
{
    static const struct {
        char spec[16];
        int rank;
        int64_t dim[3];
        bool view, in_evaluation;
    } views[] = {
        {"identity", 3, {3, 4, 5}, true, true},  {"flatten", 3, {3, 4, 5}, false, false},
        {"flatten", 3, {1, 4, 5}, true, true},   {"flatten", 3, {3, 1, 1}, true, true},
        {"flatten", 3, {3, 1, 2}, false, false}, {"flatten", 2, {3, 4}, true, true},
        {"dropout p=0.1", 1, {4}, false, true},  {"dropout p=0", 1, {4}, true, true},
        {"dropout p=1", 1, {4}, false, true},    {"relu", 1, {4}, false, false},
    };
    for (size_t k = 0; k < COUNT(views); k++) {
        test_rig *rig = test_rig_of(views[k].spec, views[k].rank, views[k].dim, 1, 1);
        const gpp_op *op = rig->layer.op;
        bool view = op->is_view && op->is_view(&rig->layer);
        bool passes = view || (op->passes_in_eval && op->passes_in_eval(&rig->layer));
        cr_expect_eq(view, views[k].view, "%s, case %zu", views[k].spec, k);
        cr_expect_eq(passes, views[k].in_evaluation, "%s, case %zu", views[k].spec, k);
        test_rig_free(rig);
    }
}

/* --- relu, maxpool2d, flatten ----------------------------------------------------------------- */

Test(ops, relu_has_slope_0_at_0_and_passes_nan_on)
{
    static const float x[] = {-INFINITY, -1, -0.0f, 0, 1e-40f, 2, INFINITY, NAN};
    static const float want_y[] = {0, 0, 0, 0, 1e-40f, 2, INFINITY, NAN};
    static const float want_grad[] = {0, 0, 0, 0, 3, 3, 3, 3};
    float y[8], grad[8], threes[8] = {3, 3, 3, 3, 3, 3, 3, 3};
    test_rig *rig = test_rig_of("relu", 1, (int64_t[]){8}, 1, 1);
    test_rig_forward(rig, x, y);
    test_rig_backward(rig, threes, grad, false);
    for (int k = 0; k < 8; k++) {
        cr_expect(y[k] == want_y[k] || (isnan(y[k]) && isnan(want_y[k])), "relu(%g) is %g",
                  (double)x[k], (double)y[k]);
        cr_expect_eq(grad[k], want_grad[k], "slope at %g is %g", (double)x[k], (double)grad[k] / 3);
    }
    test_rig_free(rig);
}

Test(ops, maxpool2d_gives_the_gradient_of_a_tie_to_the_first_and_passes_nan_on)
{
    /* 40 channels alike, so that vectors and what is left over are tried; two windows of 2 x 2. */
    static const float image[2][4] = {{5, 5, 1, NAN}, {5, 5, 7, 7}}; /* rows */
    static const float want[2][4] = {{1, 0, 0, 2}, {0, 0, 0, 0}};
    enum { C = 40 };
    float x[C * 8], y[C * 2], grad_y[C * 2], grad_x[C * 8];
    test_rig *rig = test_rig_of("maxpool2d kernel=2", 3, (int64_t[]){C, 2, 4}, 1, 1);
    for (int c = 0; c < C; c++) {
        memcpy(x + c * 8, image, sizeof image);
        grad_y[2 * c] = 1;
        grad_y[2 * c + 1] = 2;
    }
    test_rig_forward(rig, x, y);
    test_rig_backward(rig, grad_y, grad_x, false);
    for (int c = 0; c < C; c++) {
        cr_expect(y[2 * c] == 5 && isnan(y[2 * c + 1]), "channel %d: %g %g", c, (double)y[2 * c],
                  (double)y[2 * c + 1]);
        for (int k = 0; k < 8; k++)
            cr_expect_eq(grad_x[c * 8 + k], want[k / 4][k % 4], "channel %d, element %d: %g", c, k,
                         (double)grad_x[c * 8 + k]);
    }
    test_rig_free(rig);
}

Test(ops, flatten_keeps_the_order_of_indices_and_its_backward_undoes_it)
{
    static const int64_t shapes[][3] = {{3, 4, 5}, {64, 7, 7}, {2, 1, 9},   {17, 33, 2},
                                        {1, 6, 6}, {5, 1, 1},  {130, 9, 15}};
    for (size_t k = 0; k < COUNT(shapes); k++) {
        test_rig *rig = test_rig_of("flatten", 3, shapes[k], 3, 2);
        int64_t count = test_rig_inputs(rig);
        float *x = test_floats(count), *y = test_floats(count);
        test_fill(x, count, 4, -1, 1);
        test_rig_forward(rig, x, y);
        cr_expect(test_same(x, y, count), "forward, case %zu", k);
        test_rig_backward(rig, x, y, false);
        cr_expect(test_same(x, y, count), "backward, case %zu", k);
        free(x);
        free(y);
        test_rig_free(rig);
    }
}

/* --- dropout ---------------------------------------------------------------------------------- */

/* The mask (0, or the factor of kept ones) for `rows` rows of `row` elements. */
static void mask_of(const char *spec, int index, uint64_t seed, uint64_t step, int64_t row0,
                    int64_t rows, int64_t row, float *mask)
{
    gpp__desc in = {.dtype = GPP_F32, .rank = 1, .dim = {row}};
    test_rig *rig;
    float *ones = test_floats(rows * row);
    cr_assert_eq(test_rig_new(&rig, spec, index, &in, rows, 1, NULL), GPP_OK);
    test_fill(ones, rows * row, 0, 1, 1);
    rig->run.seed = seed;
    rig->run.step = step;
    rig->run.row0[0] = row0;
    cr_assert_eq(test_rig_forward(rig, ones, mask), GPP_OK);
    free(ones);
    test_rig_free(rig);
}

static int64_t count_kept(const float *mask, int64_t count)
{
    int64_t kept = 0;
    for (int64_t k = 0; k < count; k++)
        kept += mask[k] != 0;
    return kept;
}

Test(dropout, keeps_1_minus_p_of_the_elements_and_scales_them_up)
{
    static const double ps[] = {0, 1e-3, 0.1, 0.5, 0.9, 0.999, 1};
    enum { N = 400000 };
    float *mask = test_floats(N);
    for (size_t k = 0; k < COUNT(ps); k++) {
        char spec[32];
        double p = ps[k];
        snprintf(spec, sizeof spec, "dropout p=%g", p);
        mask_of(spec, 1, 11, 0, 0, 40, N / 40, mask);
        double kept = (double)count_kept(mask, N) / N;
        /* Five standard deviations of a binomial. */
        cr_expect_leq(fabs(kept - (1 - p)), 5 * sqrt(p * (1 - p) / N), "p = %g keeps %g", p, kept);
        for (int e = 0; e < N; e++)
            if (mask[e] != 0)
                cr_assert_float_eq(mask[e], 1 / (1 - p), 1e-6 / (1 - p), "p = %g", p);
    }
    free(mask);
}

Test(dropout, mask_is_the_documented_function_of_philox)
{
    /* Rows of 45 from row 3: blocks of 32 begin and end inside rows, units and vectors. */
    enum { ROW = 45, ROWS = 50, ROW0 = 3, LAYER = 9 };
    const uint64_t seed = UINT64_C(0x123456789abcdef0), step = 77;
    float mask[ROW * ROWS];
    mask_of("dropout p=0.25", LAYER, seed, step, ROW0, ROWS, ROW, mask);
    for (uint64_t k = 0; k < ROW * ROWS; k++) {
        uint64_t e = ROW0 * ROW + k;
        gpp__philox r = gpp__philox4x32(
            seed, (uint64_t)GPP__STREAM_DROPOUT << 56 | (uint64_t)LAYER << 32 | step,
            e / 32 * 8 + e % 8);
        float want = gpp__philox_uniform(r.v[e % 32 / 8]) >= 0.25f ? 1 / 0.75f : 0;
        cr_assert_eq(mask[k], want, "element %d", (int)k);
    }
}

Test(dropout, mask_is_the_same_however_the_rows_are_cut)
{
    static const int64_t rows_of[][2] = {{3, 5}, {1, 7}, {7, 1}};
    static const int64_t row_lengths[] = {1, 31, 32, 100, 70001};
    for (size_t l = 0; l < COUNT(row_lengths); l++) {
        int64_t row = row_lengths[l];
        float *whole = test_floats(8 * row), *parts = test_floats(8 * row);
        mask_of("dropout", 2, 5, 6, 10, 8, row, whole);
        for (size_t k = 0; k < COUNT(rows_of); k++) {
            int64_t first = rows_of[k][0];
            mask_of("dropout", 2, 5, 6, 10, first, row, parts);
            mask_of("dropout", 2, 5, 6, 10 + first, rows_of[k][1], row, parts + first * row);
            cr_expect(test_same(whole, parts, 8 * row), "rows of %d, cut after %d", (int)row,
                      (int)first);
        }
        free(whole);
        free(parts);
    }
}

Test(dropout, mask_differs_between_steps_layers_seeds_and_rows)
{
    enum { N = 4096 };
    static const struct {
        int index;
        uint64_t seed, step;
        int64_t row0;
        char why[24];
    } others[] = {
        {2, 5, 7, 0, "next step"},
        {2, 5, 6 + (UINT64_C(1) << 32), 0, "step beyond 2^32"},
        {3, 5, 6, 0, "next layer"},
        {2, 6, 6, 0, "next seed"},
        {2, 5 + (UINT64_C(1) << 32), 6, 0, "seed beyond 2^32"},
        {2, 5, 6, 1, "next row"},
    };
    float base[N], other[N];
    mask_of("dropout", 2, 5, 6, 0, 1, N, base);
    for (size_t k = 0; k < COUNT(others); k++) {
        int equal = 0;
        mask_of("dropout", others[k].index, others[k].seed, others[k].step, others[k].row0, 1, N,
                other);
        for (int e = 0; e < N; e++)
            equal += base[e] == other[e];
        /* Independent masks agree in half of the places, standard deviation 32. */
        cr_expect(abs(equal - N / 2) < 6 * 32, "%s: %d of %d agree", others[k].why, equal, N);
    }
}

Test(dropout, rows_of_a_tensor_that_is_not_cut_count_anew_in_each_micro_batch)
{
    enum { ROW = 40, ROWS = 3 };
    gpp__desc in = {.rank = 1, .dim = {ROW}, .batch = GPP_ROWS_FIXED, .rows = ROWS};
    const int64_t batch[GPP__BATCHES] = {7};
    float ones[ROW * ROWS], y[ROW * ROWS], whole[5 * ROW * ROWS];
    test_rig *rig;
    test_fill(ones, ROW * ROWS, 0, 1, 1);
    mask_of("dropout", 2, 1, 0, 0, 5 * ROWS, ROW, whole);
    cr_assert_eq(test_rig_new_tuple(&rig, "dropout", 2, &in, 1, batch, 1, NULL), GPP_OK);
    for (int i = 0; i < 5; i++) {
        rig->run.micro_batch = i;
        rig->run.row0[0] = 100; /* of a mini-batch it is no part of */
        test_rig_forward(rig, ones, y);
        cr_expect(test_same(y, whole + i * ROW * ROWS, ROW * ROWS), "micro-batch %d", i);
    }
    test_rig_free(rig);
}

Test(dropout, backward_uses_the_mask_of_the_forward)
{
    enum { N = 3 * 1000 };
    float ones[N], y[N], grad[N];
    test_rig *rig = test_rig_of("dropout p=0.4", 1, (int64_t[]){1000}, 3, 2);
    rig->run.step = 12;
    rig->run.row0[0] = 5;
    test_fill(ones, N, 0, 1, 1);
    test_rig_forward(rig, ones, y);
    test_rig_backward(rig, ones, grad, false);
    cr_expect(test_same(y, grad, N));
    test_rig_free(rig);
}

Test(dropout, evaluation_passes_everything_on)
{
    float x[100], y[100], out[100];
    test_rig *rig = test_rig_of("dropout p=0.9", 1, (int64_t[]){50}, 2, 1);
    rig->run.training = false;
    test_fill(x, 100, 8, -1, 1);
    test_rig_forward(rig, x, y);
    cr_expect(test_same(x, y, 100), "as programs do it");
    gpp__io io = {.in = {x}, .out = {out}};
    rig->layer.op->cpu.forward(&rig->kernel, &rig->run, &io);
    cr_expect(test_same(x, out, 100), "when its kernel is called all the same");
    test_rig_free(rig);
}

Test(dropout, probabilities_outside_0_1_are_refused)
{
    static const char *const specs[] = {"dropout p=-0.1", "dropout p=1.01", "dropout q=0.1"};
    gpp__desc in = {.dtype = GPP_F32, .rank = 1, .dim = {4}};
    for (size_t k = 0; k < COUNT(specs); k++) {
        gpp_error err = GPP_ERROR_INIT;
        test_rig *rig;
        cr_expect_neq(test_rig_new(&rig, specs[k], 0, &in, 1, 1, &err), GPP_OK);
        cr_expect_null(rig);
        cr_expect(strstr(err.msg, "dropout"), "%s", err.msg);
    }
}

/* oneDNN 2.6 does, in strided 1 x 1 convolutions of few channels, unless it is given more than it
 * asks for. */
Test(ops, nothing_is_written_behind_scratch_wherever_it_begins)
{
    enum { GUARD = 256 };
    static const char *const specs[] = {"conv2d out=8 kernel=1 stride=2 bias=0",
                                        "conv2d out=8 kernel=1",
                                        "conv2d out=5 kernel=3",
                                        "conv2d out=4 kernel=3 groups=4",
                                        "conv2d out=16 kernel=3 stride=2 padding=1",
                                        "conv_transpose2d out=6 kernel=2 stride=2"};
    const gpp__desc in = {GPP_F32, 3, {4, 16, 16}, 0, 0};
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++)
        for (size_t shift = 0; shift < 128; shift += 64) {
            gpp_error err = GPP_ERROR_INIT;
            test_rig *rig;
            cr_assert_eq(test_rig_new(&rig, specs[k], 0, &in, 3, 1, &err), GPP_OK, "%s", err.msg);
            size_t f = rig->kernel.forward_scratch, b = rig->kernel.backward_scratch;
            size_t bytes = gpp__align(f > b ? f : b);
            char *room = aligned_alloc(128, (bytes + 2 * GUARD + 127) & ~(size_t)127);
            char *own = rig->scratch, *end = room + shift + bytes;
            memset(room, 0x55, bytes + 2 * GUARD);
            rig->scratch = room + shift;
            int64_t x = test_rig_inputs(rig), y = test_rig_outputs(rig);
            float *values = test_room((size_t)(x > y ? x : y) * sizeof *values);
            test_fill(values, x > y ? x : y, 1, -1, 1);
            test_rig_init(rig, 1);
            cr_assert_eq(test_rig_forward(rig, values, NULL), GPP_OK);
            for (int again = 0; again < 2; again++)
                cr_assert_eq(test_rig_backward(rig, values, NULL, again), GPP_OK);
            for (int g = 0; g < GUARD; g++)
                cr_assert_eq(end[g], 0x55, "%s: byte %d behind scratch at %zu", specs[k], g, shift);
            rig->scratch = own;
            test_rig_free(rig);
            free(values);
            free(room);
        }
}
