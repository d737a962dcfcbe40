/*
 * tests/test_model.c: building a model by calls and from text, labels, shapes.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe.h>

#include "tests/networks.h"

static const char convnet[] = "conv2d out=32 kernel=3 padding=1 @stem\n"
                              "relu; maxpool2d kernel=2   # halves the image\n"
                              "\n"
                              "conv2d out=64 kernel=3,3 padding=1,1; relu; maxpool2d kernel=2\n"
                              "flatten; linear out=128; relu\r\n"
                              "dropout p=0.25;\n"
                              "linear out=10 bias=0 @head.out-1\n"
                              "# the end";

/* --- building --------------------------------------------------------------------------------- */

Test(model, text_gives_layers_in_order_with_labels)
{
    static const char *const ops[] = {"conv2d", "relu",      "maxpool2d", "conv2d",
                                      "relu",   "maxpool2d", "flatten",   "linear",
                                      "relu",   "dropout",   "linear"};
    gpp_model *model = test_model_text(convnet);
    cr_assert_eq(gpp_model_layers(model), 11);
    for (int k = 0; k < 11; k++) {
        gpp_layer_info info;
        char label[16];
        snprintf(label, sizeof label, "%d", k);
        cr_assert_eq(gpp_model_layer(model, k, &info, NULL), GPP_OK);
        cr_expect_str_eq(info.op, ops[k]);
        cr_expect_str_eq(info.label, k == 0 ? "stem" : k == 10 ? "head.out-1" : label);
        cr_expect_eq(gpp_model_find(model, info.label), k);
        cr_expect(info.rank == 0 && info.parameters == 0 && info.flops == 0,
                  "shapes are not known before the input");
    }
    cr_expect_eq(gpp_model_find(model, "0"), -1, "a label replaces the index");
    cr_expect_eq(gpp_model_find(model, "none"), -1);
    gpp_model_free(model);
}

Test(model, calls_and_text_build_the_same_model)
{
    static const int64_t dim[] = {3, 9, 11};
    gpp_model *text = test_model_text("conv2d out=8 kernel=3,5 stride=2,1 bias=0 @a; flatten");
    gpp_model *calls = test_model_empty();
    const gpp_attr attrs[] = {GPP_INT("out", 8), GPP_INTS("kernel", 3, 5), GPP_INTS("stride", 2, 1),
                              GPP_INT("bias", 0)};
    cr_assert_eq(gpp_model_add(calls, "conv2d", "a", attrs, 4, NULL), GPP_OK);
    cr_assert_eq(gpp_model_add(calls, "flatten", NULL, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_set_input(text, GPP_F32, 3, dim, NULL), GPP_OK);
    cr_assert_eq(gpp_model_set_input(calls, GPP_F32, 3, dim, NULL), GPP_OK);
    for (int k = 0; k < 2; k++) {
        gpp_layer_info a, b;
        cr_assert_eq(gpp_model_layer(text, k, &a, NULL), GPP_OK);
        cr_assert_eq(gpp_model_layer(calls, k, &b, NULL), GPP_OK);
        cr_expect_str_eq(a.op, b.op);
        cr_expect_str_eq(a.label, b.label);
        cr_expect_eq(a.rank, b.rank);
        cr_expect_arr_eq(a.dim, b.dim, sizeof a.dim);
        cr_expect_eq(a.parameters, b.parameters);
        cr_expect_eq(a.flops, b.flops);
    }
    gpp_model_free(text);
    gpp_model_free(calls);
}

Test(model, wrong_text_is_refused_with_its_place_and_changes_nothing)
{
    static const test_refusal cases[] = {
        {"no layer", "", GPP_ESYNTAX, "line 1, column 1: the text ends without any layer"},
        {"comments alone", "# a\n  # b\n", GPP_ESYNTAX, "line 3, column 1: the text ends"},
        {"a second line", "relu\n  linear out=x", GPP_EINVAL,
         "line 2, column 3: linear: out must be a number, got \"x\""},
        {"trailing garbage", "relu\n\nlinear out=1.5x", GPP_ESYNTAX,
         "line 3, column 15: out: 'x' after a number"},
        {"a column counts from its line", "relu; relu\nrelu; relu =", GPP_ESYNTAX,
         "line 2, column 12: expected key=value, found '='"},
        {"no such operator", "relu; con2d out=3", GPP_ENOENT,
         "line 1, column 7: no operator \"con2d\"; did you mean \"conv2d\"?"},
        {"nothing alike", "transmogrify", GPP_ENOENT, "no operator \"transmogrify\"; there are "},
        {"no such key", "linear out=3 size=3", GPP_ENOENT,
         "line 1, column 1: linear: no key \"size\""},
        {"a slip of the pen", "conv2d out=3 kernle=3", GPP_ENOENT, "did you mean \"kernel\"?"},
        {"key missing", "relu; linear bias=1", GPP_EINVAL,
         "line 1, column 7: linear: out is missing"},
        {"key doubled", "linear out=3 out=3", GPP_EINVAL, "linear: out is given twice"},
        {"key of a keyless operator", "relu out=3", GPP_ENOENT, "relu: no key \"out\""},
        {"out of range", "linear out=0", GPP_EINVAL, "linear: out must be 1 "},
        {"far out of range", "linear out=1e300", GPP_EINVAL, "linear: out must be 1 "},
        {"block in braces", "relu\nflatten { relu }", GPP_ESYNTAX,
         "line 2, column 9: flatten takes no block in braces; chain and pop do"},
        {"block after a label", "flatten @a { relu }", GPP_ESYNTAX,
         "line 1, column 12: a label ends its layer, no block in braces may follow"},
        {"closing brace", "relu; }", GPP_ESYNTAX, "line 1, column 7: expected a name, found '}'"},
        {"label missing", "relu @", GPP_ESYNTAX, "line 1, column 7: expected a label right after"},
        {"blank before the label", "relu @ a", GPP_ESYNTAX, "column 7: expected a label right"},
        {"key behind the label", "linear @a out=3", GPP_ESYNTAX,
         "line 1, column 11: a label ends its layer; keys go before the '@'"},
        {"two labels", "relu @a @b", GPP_ESYNTAX, "line 1, column 9: a label ends its layer"},
        {"label with a slash", "relu @a/b", GPP_EINVAL, "label \"a/b\" is not 1 ... 63 letters"},
        {"label of 64 characters",
         "relu @aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", GPP_ESYNTAX,
         "line 1, column 7: a label has at most 63 characters"},
        {"label in use", "relu @a\nflatten @a", GPP_EINVAL,
         "line 2, column 1: flatten (layer 3): its label \"a\" is that of layer 2 (relu) already"},
        {"label in use before the text", "flatten @first", GPP_EINVAL,
         "its label \"first\" is that of layer 0 (linear) already"},
        {"label that a later index takes", "relu @4; relu; relu", GPP_EINVAL,
         "line 1, column 16: relu (layer 4): its default label \"4\" is that of layer 2 (relu)"},
    };
    gpp_model *model = test_model_text("linear out=4 @first; relu");
    test_expect_refusals(model, cases, sizeof cases / sizeof *cases);
    cr_expect_eq(gpp_model_find(model, "a"), -1);
    cr_expect_eq(gpp_model_add_text(model, "relu @a; relu @4b; relu", NULL), GPP_OK,
                 "labels of refused layers are free again");
    gpp_model_free(model);
}

Test(model, a_refused_call_names_the_layer_and_changes_nothing)
{
    static const gpp_attr none[] = {GPP_INT("out", 3)};
    char long_label[65];
    memset(long_label, 'x', 64);
    long_label[64] = '\0';
    gpp_model *model = test_model_text("relu @a");
    const struct {
        const char *why, *op, *label;
        size_t count;
        gpp_status status;
    } cases[] = {
        {"no name", NULL, NULL, 0, GPP_EINVAL},
        {"empty name", "", NULL, 0, GPP_ENOENT},
        {"unknown", "rely", NULL, 0, GPP_ENOENT},
        {"key", "relu", NULL, 1, GPP_ENOENT},
        {"missing", "linear", NULL, 0, GPP_EINVAL},
        {"label in use", "relu", "a", 0, GPP_EINVAL},
        {"empty label", "relu", "", 0, GPP_EINVAL},
        {"blank", "relu", "a b", 0, GPP_EINVAL},
        {"not ASCII", "relu", "\xc3\xa9", 0, GPP_EINVAL},
        {"64 characters", "relu", long_label, 0, GPP_EINVAL},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp_model_add(model, cases[k].op, cases[k].label, none, cases[k].count, &err),
                     cases[k].status, "%s: %s", cases[k].why, err.msg);
        cr_expect_eq(err.layer, cases[k].op ? 1 : -1, "%s", cases[k].why);
        cr_expect_eq(gpp_model_layers(model), 1, "%s", cases[k].why);
    }
    cr_expect_eq(gpp_model_add(model, "relu", long_label + 1, NULL, 0, NULL), GPP_OK, "63 fit");
    cr_expect_eq(gpp_model_add(NULL, "relu", NULL, NULL, 0, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_add_text(model, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_add_text(NULL, "relu", NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_new(NULL, NULL), GPP_EINVAL);
    gpp_model_free(model);
    gpp_model_free(NULL);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* `line` repeated until the text has at least `bytes`. */
static char *repeat(const char *line, size_t bytes)
{
    size_t n = strlen(line), used = 0;
    char *text = malloc(bytes + n + 1);
    cr_assert_not_null(text);
    for (; used < bytes; used += n)
        memcpy(text + used, line, n);
    text[used] = '\0';
    return text;
}

Test(model, a_huge_text_is_read_in_linear_time)
{
    static const char *const lines[] = {"relu\n", "#\n", ";", " ", "\n", "\t#;;@{\n"};
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
        char *text = repeat(lines[k], k ? 10000000 : 500000);
        gpp_model *model = test_model_empty();
        double start = seconds();
        cr_expect_eq(gpp_model_add_text(model, text, NULL), k ? GPP_ESYNTAX : GPP_OK);
        /* Some 0.1 s when linear; quadratic would be hours. */
        cr_expect_lt(seconds() - start, 20, "\"%s\" repeated", lines[k]);
        cr_expect_eq(gpp_model_layers(model), k ? 0 : 100000);
        cr_expect_eq(gpp_model_find(model, "99999"), k ? -1 : 99999);
        gpp_model_free(model);
        free(text);
    }
}

Test(model, one_huge_token_is_refused)
{
    static const struct {
        char start[16], more[8];
    } cases[] = {{"", "a"},
                 {"linear out=", "9"},
                 {"linear ", "k"},
                 {"relu @", "l"},
                 {"linear out=", "w"},
                 {"linear out=0.", "0"},
                 {"linear out=", "1,"},
                 {"linear", " k=1"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char *more = repeat(cases[k].more, 1000000), *text = malloc(1000100);
        gpp_model *model = test_model_empty();
        sprintf(text, "%s%s", cases[k].start, more);
        cr_expect_neq(gpp_model_add_text(model, text, NULL), GPP_OK, "%s", cases[k].start);
        gpp_model_free(model);
        free(more);
        free(text);
    }
}

Test(model, operators_have_names_that_can_be_added)
{
    size_t count = 0;
    for (; gpp_op_name(count); count++)
        for (size_t k = 0; k < count; k++)
            cr_expect_str_neq(gpp_op_name(k), gpp_op_name(count));
    cr_expect_geq(count, 7);
    cr_expect_null(gpp_op_name(count + 1));
    cr_expect_null(gpp_op_name((size_t)-1));
    gpp_model *model = test_model_empty();
    for (size_t k = 0; k < count; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_status status = gpp_model_add(model, gpp_op_name(k), NULL, NULL, 0, &err);
        cr_expect(status == GPP_OK || strstr(err.msg, "is missing"), "%s", err.msg);
    }
    gpp_model_free(model);
}

/* --- shapes ----------------------------------------------------------------------------------- */

Test(model, shapes_follow_from_the_input)
{
    static const int64_t dim[] = {1, 28, 28};
    static const struct {
        int rank;
        int64_t dim[3], parameters;
    } expected[] = {
        {3, {32, 28, 28}, 320}, {3, {32, 28, 28}, 0},
        {3, {32, 14, 14}, 0},   {3, {64, 14, 14}, 18496},
        {3, {64, 14, 14}, 0},   {3, {64, 7, 7}, 0},
        {1, {3136}, 0},         {1, {128}, 401536},
        {1, {128}, 0},          {1, {128}, 0},
        {1, {10}, 1280},
    };
    gpp_error err = GPP_ERROR_INIT;
    gpp_layer_info info;
    gpp_model *model = test_model_text(convnet);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 3, dim, &err), GPP_OK, "%s", err.msg);
    for (int k = 0; k < 11; k++) {
        cr_assert_eq(gpp_model_layer(model, k, &info, NULL), GPP_OK);
        cr_expect_eq(info.rank, expected[k].rank, "layer %d", k);
        cr_expect_arr_eq(info.dim, expected[k].dim, (size_t)info.rank * sizeof *info.dim,
                         "layer %d", k);
        cr_expect_eq(info.parameters, expected[k].parameters, "layer %d", k);
    }
    cr_expect_eq(info.flops, 2.0 * 128 * 10, "linear: 2 per multiply-add");
    gpp_model_free(model);
}

Test(model, a_layer_is_asked_for_from_either_end)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_layer_info info;
    gpp_model *model = test_model_text("linear out=4 @a; relu @b; relu @c");
    static const struct {
        int index;
        gpp_status status;
        char label[2];
    } cases[] = {{0, GPP_OK, "a"},
                 {2, GPP_OK, "c"},
                 {-1, GPP_OK, "c"},
                 {-3, GPP_OK, "a"},
                 {3, GPP_ENOENT, ""},
                 {-4, GPP_ENOENT, ""},
                 {INT32_MAX, GPP_ENOENT, ""},
                 {INT32_MIN, GPP_ENOENT, ""}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error_clear(&err);
        cr_expect_eq(gpp_model_layer(model, cases[k].index, &info, &err), cases[k].status);
        if (!cases[k].status)
            cr_expect_str_eq(info.label, cases[k].label);
    }
    cr_expect(strstr(err.msg, "the model has 3"), "%s", err.msg);
    gpp_model_free(model);
}

Test(model, a_wrong_input_is_refused_and_can_be_put_right)
{
    static const struct {
        const char *why;
        gpp_dtype dtype;
        int rank;
        int64_t dim[8];
        gpp_status status;
        int layer;
    } cases[] = {
        {"no such type", (gpp_dtype)9, 1, {4}, GPP_EINVAL, -1},
        {"negative rank", GPP_F32, -1, {4}, GPP_EINVAL, -1},
        {"no room for the batch", GPP_F32, 8, {1, 1, 1, 1, 1, 1, 1, 1}, GPP_EINVAL, -1},
        {"an empty dimension", GPP_F32, 3, {1, 0, 4}, GPP_EINVAL, -1},
        {"a negative dimension", GPP_F32, 3, {1, -4, 4}, GPP_EINVAL, -1},
        {"negative twice", GPP_F32, 3, {1, -4, -4}, GPP_EINVAL, -1},
        {"overflow", GPP_F32, 3, {INT64_MAX, INT64_MAX, 2}, GPP_EINVAL, -1},
        {"overflow to a small number", GPP_F32, 3, {1, INT64_C(1) << 62, 4}, GPP_EINVAL, -1},
        {"too small for the third layer", GPP_F32, 3, {1, 2, 2}, GPP_ESHAPE, 2},
        {"a vector for an image", GPP_F32, 1, {4}, GPP_ESHAPE, 0},
        {"integers for an image", GPP_I64, 3, {1, 28, 28}, GPP_ESHAPE, 0},
        {"parameters beyond any memory", GPP_F32, 3, {INT64_C(1) << 40, 4, 4}, GPP_ESHAPE, 0},
    };
    static const int64_t good[] = {1, 8, 8};
    gpp_model *model =
        test_model_text("conv2d out=64 kernel=2; relu; conv2d out=8 kernel=2; flatten");
    gpp_layer_info info;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp_model_set_input(model, cases[k].dtype, cases[k].rank, cases[k].dim, &err),
                     cases[k].status, "%s: %s", cases[k].why, err.msg);
        cr_expect_eq(err.layer, cases[k].layer, "%s: %s", cases[k].why, err.msg);
        cr_expect_gt(strlen(err.msg), 10, "%s", cases[k].why);
        cr_assert_eq(gpp_model_layer(model, 0, &info, NULL), GPP_OK);
        cr_expect(info.rank == 0 && info.parameters == 0, "%s: shapes are forgotten", cases[k].why);
        cr_expect(model->network.nodes == 0 && gpp_model_outputs(model, NULL) == 0, "%s",
                  cases[k].why);
    }
    cr_expect_eq(gpp_model_set_input(model, GPP_F32, 3, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_set_input(NULL, GPP_F32, 3, good, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_set_input(model, GPP_F32, 3, good, NULL), GPP_OK);
    cr_assert_eq(gpp_model_layer(model, -1, &info, NULL), GPP_OK);
    cr_expect(info.rank == 1 && info.dim[0] == 8 * 6 * 6);
    gpp_model_free(model);
}

Test(model, after_its_input_is_set_a_model_is_closed)
{
    static const int64_t dim[] = {4};
    gpp_model *model = test_model_text("linear out=3");
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, dim, NULL), GPP_OK);
    cr_expect_eq(gpp_model_set_input(model, GPP_F32, 1, dim, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_model_add(model, "relu", NULL, NULL, 0, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_model_add_text(model, "relu", NULL), GPP_ESTATE);
    cr_expect_eq(gpp_model_layers(model), 1);
    gpp_model_free(model);
}

/* An operator that claims what its attributes say. */
typedef struct claim_attr {
    int64_t outputs, width, params, rows, batch;
} claim_attr;

static gpp_status claim_infer(gpp__layer *layer, gpp_error *err)
{
    const claim_attr *a = layer->attr;
    (void)err;
    layer->out_count = (int)a->outputs;
    for (int t = 0; t < layer->out_count && t < GPP__MAX_TENSORS; t++)
        layer->out[t] = (gpp__desc){.rank = 1, .dim = {a->width}, .batch = (int)a->batch};
    for (int p = 0; p < a->params; p++)
        layer->param[layer->param_count++] = (gpp__param){.name = "w",
                                                          .dtype = p == 2 ? GPP_I64 : GPP_F32,
                                                          .rank = 2,
                                                          .dim = {a->rows, a->width},
                                                          .offset = 99};
    return GPP_OK;
}

#define CLAIM(member, least, most, otherwise)                                                      \
    {                                                                                              \
        .name = #member, .type = GPP__KEY_INT, .offset = offsetof(claim_attr, member), .count = 1, \
        .min = least, .max = most, .fallback = otherwise                                           \
    }
static const gpp__key claim_keys[] = {CLAIM(outputs, -1, 99, 1), CLAIM(width, -1, 0x1p53, 5),
                                      CLAIM(params, 0, 16, 0),   CLAIM(rows, -1, 0x1p53, 3),
                                      CLAIM(batch, -9, 99, 0),   {.name = NULL}};
static const gpp_op claim = {
    .name = "claim", .keys = claim_keys, .attr_size = sizeof(claim_attr), .infer = claim_infer};

Test(model, parameters_are_placed_one_after_the_other_aligned)
{
    static const int64_t dim[] = {4};
    const gpp_attr attrs[] = {GPP_INT("params", 3)};
    gpp_model *model = test_model_empty();
    cr_assert_eq(gpp__model_add_op(model, &claim, "mine", attrs, 1, NULL), GPP_OK);
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, dim, NULL), GPP_OK);
    const gpp__layer *layer = &model->network.node[0];
    for (int p = 0; p < 3; p++) {
        cr_expect_eq(layer->param[p].count, 15);
        cr_expect_eq(layer->param[p].offset, (size_t)p * gpp__align(15 * sizeof(float)));
    }
    cr_expect_eq(layer->param_bytes,
                 2 * gpp__align(15 * sizeof(float)) + gpp__align(15 * sizeof(int64_t)),
                 "the third is of integers");
    gpp_model_free(model);
}

Test(model, an_operator_that_infers_nonsense_is_refused)
{
    static const int64_t dim[] = {4};
    static const gpp_attr cases[][2] = {
        {GPP_INT("outputs", 0), GPP_INT("width", 1)},
        {GPP_INT("outputs", -1), GPP_INT("width", 1)},
        {GPP_INT("outputs", GPP__MAX_TENSORS + 1), GPP_INT("width", 1)},
        {GPP_INT("outputs", 2), GPP_INT("width", 0)},
        {GPP_INT("outputs", 1), GPP_INT("width", 0x1p53)},
        {GPP_INT("params", 1), GPP_INT("rows", 0)},
        {GPP_INT("params", 1), GPP_INT("rows", 0x1p53)},
        {GPP_INT("batch", 1), GPP_INT("width", 1)},
        {GPP_INT("batch", 99), GPP_INT("width", 1)},
        {GPP_INT("batch", -2), GPP_INT("width", 1)},
        {GPP_INT("batch", -1), GPP_INT("width", 1)}, /* fixed rows, 0 of them */
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_text("linear out=3");
        cr_assert_eq(gpp__model_add_op(model, &claim, NULL, cases[k], 2, NULL), GPP_OK);
        cr_expect_eq(gpp_model_set_input(model, GPP_F32, 1, dim, &err), GPP_ESHAPE, "case %zu", k);
        cr_expect(strncmp(err.msg, "claim (layer 1, \"1\"): ", 22) == 0, "%s", err.msg);
        cr_expect_eq(err.layer, 1);
        gpp_model_free(model);
    }
}

Test(model, a_model_without_layers_passes_its_inputs_on)
{
    const gpp_shape in[] = {{GPP_I64, 2, {3, 4}, 0, 0}, {GPP_F32, 3, {3, 4, 5}, 0, 0}};
    gpp_shape out[GPP_MAX_TENSORS];
    gpp_model *model = test_model_empty();
    cr_assert_eq(gpp_model_set_inputs(model, in, 2, NULL), GPP_OK);
    cr_assert_eq(gpp_model_outputs(model, out), 2);
    cr_expect(gpp__desc_equal(&out[0], &in[0]) && gpp__desc_equal(&out[1], &in[1]));
    const gpp__network *n = &model->network;
    cr_assert(n->nodes == 1 && n->units == 0 && n->first[0] == 0);
    cr_expect_eq(n->node[0].op, &gpp__op_pass);
    cr_expect(n->value[n->input[1]].consumer == 0 && n->value[n->output[1]].producer == 0);
    gpp_model_free(model);
}

Test(model, a_copy_shares_nothing_with_its_original)
{
    static const int64_t dim[] = {4};
    gpp_model *copy, *model = test_model_text("linear out=3 @a; relu; linear out=5 bias=0 @z");
    cr_assert_eq(gpp_model_set_input(model, GPP_F32, 1, dim, NULL), GPP_OK);
    cr_assert_eq(gpp__model_clone(model, &copy, NULL), GPP_OK);
    cr_assert_eq(copy->network.nodes, 3);
    for (int k = 0; k < 3; k++) {
        const gpp__part *x = &copy->part[k], *y = &model->part[k];
        const gpp__layer *a = &copy->network.node[k], *b = &model->network.node[k];
        cr_expect(x->attr != y->attr && a->attr != b->attr && a->attr != x->attr);
        cr_expect_arr_eq((char *)a->attr, (char *)b->attr, a->op->attr_size, "layer %d", k);
        cr_expect_arr_eq((char *)a->attr, (char *)x->attr, a->op->attr_size, "layer %d", k);
    }
    gpp_model_free(model);
    gpp_layer_info info;
    cr_expect_eq(gpp_model_find(copy, "z"), 2);
    cr_assert_eq(gpp_model_layer(copy, 2, &info, NULL), GPP_OK);
    cr_expect_eq(info.parameters, 15);
    cr_expect_eq(gpp_model_add(copy, "relu", NULL, NULL, 0, NULL), GPP_ESTATE);
    gpp_model_free(copy);

    model = test_model_empty();
    cr_assert_eq(gpp__model_clone(model, &copy, NULL), GPP_OK);
    gpp_model_free(model);
    cr_expect_eq(gpp_model_add_text(copy, "relu; relu @b", NULL), GPP_OK, "an open copy grows");
    cr_expect_eq(gpp_model_find(copy, "b"), 1);
    gpp_model_free(copy);
}

/* --- several inputs --------------------------------------------------------------------------- */

Test(model, wrong_inputs_are_refused_by_number)
{
    static const struct {
        const char *why;
        int count;
        gpp_shape in[3];
        const char *message;
    } cases[] = {
        {"none", 0, {{GPP_F32, 0, {0}, 0, 0}}, "input: 0 shapes, expected a list of 1 ... 16"},
        {"too many", 17, {{GPP_F32, 0, {0}, 0, 0}}, "input: 17 shapes"},
        {"negative", -1, {{GPP_F32, 0, {0}, 0, 0}}, "input: -1 shapes"},
        {"the second is wrong",
         2,
         {{GPP_F32, 1, {4}, 0, 0}, {GPP_F32, 1, {0}, 0, 0}},
         "input 1: dimension 0 must be 1 or more, got 0"},
        {"a batch beyond the last", 1, {{GPP_F32, 1, {4}, 4, 0}}, "input: batch must be 0 ... 3"},
        {"a negative batch", 1, {{GPP_F32, 1, {4}, -2, 0}}, "or GPP_ROWS_FIXED, got -2"},
        {"fixed at nothing",
         2,
         {{GPP_F32, 1, {4}, 0, 0}, {GPP_F32, 1, {4}, GPP_ROWS_FIXED, 0}},
         "input 1: fixed rows must be 1 or more, got 0"},
        {"fixed beyond any memory",
         2,
         {{GPP_F32, 1, {4}, 0, 0}, {GPP_F32, 1, {4}, GPP_ROWS_FIXED, INT64_MAX / 2}},
         "input 1: its rows are larger than 2^48 bytes"},
        {"all fixed",
         2,
         {{GPP_F32, 1, {4}, GPP_ROWS_FIXED, 1}, {GPP_F32, 1, {4}, GPP_ROWS_FIXED, 2}},
         "input: all have fixed rows"},
        {"a gap", 1, {{GPP_F32, 1, {4}, 1, 0}}, "there is a batch 1, and none of number 0"},
        {"a gap in between",
         3,
         {{GPP_F32, 1, {4}, 3, 0}, {GPP_F32, 1, {4}, 0, 0}, {GPP_F32, 1, {4}, 2, 0}},
         "there is a batch 3, and none of number 1"},
    };
    gpp_model *model = test_model_text("add");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp_model_set_inputs(model, cases[k].in, cases[k].count, &err), GPP_EINVAL,
                     "%s", cases[k].why);
        cr_expect(strncmp(err.msg, "input", 5) == 0 && strstr(err.msg, cases[k].message), "%s: %s",
                  cases[k].why, err.msg);
        cr_expect_eq(gpp_model_inputs(model, NULL), 0, "%s", cases[k].why);
    }
    cr_expect_eq(gpp_model_set_inputs(model, NULL, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_set_inputs(NULL, cases[3].in, 1, NULL), GPP_EINVAL);
    gpp_model_free(model);
}

Test(model, inputs_and_outputs_are_told_with_their_rows)
{
    const gpp_shape in[] = {
        {GPP_F32, 1, {4}, 1, 77}, {GPP_I64, 0, {0}, 0, 0}, {GPP_F32, 0, {0}, GPP_ROWS_FIXED, 1}};
    gpp_shape shape[GPP_MAX_TENSORS];
    gpp_layer_info info;
    const gpp_ref all[] = {{GPP_REF_INPUT, 2}, {GPP_REF_INPUT, 0}, {GPP_REF_INPUT, 1}};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_empty();
    cr_assert_eq(gpp_model_begin(model, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp_model_from(model, &all[1], 1, NULL), GPP_OK);
    cr_assert_eq(gpp_model_add(model, "relu", NULL, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_end(model, all, 3, NULL), GPP_OK);
    cr_expect_eq(gpp_model_inputs(model, NULL), 0, "none before");
    cr_assert_eq(gpp_model_set_inputs(model, in, 3, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_inputs(model, shape), 3);
    cr_expect(shape[0].batch == 1 && shape[0].rows == 0, "rows mean nothing where not fixed");
    cr_expect(shape[2].batch == GPP_ROWS_FIXED && shape[2].rows == 1 && shape[2].rank == 0);
    cr_assert_eq(gpp_model_outputs(model, shape), 3);
    cr_expect(shape[0].batch == GPP_ROWS_FIXED && shape[2].dtype == GPP_I64);
    cr_assert_eq(gpp_model_layer(model, 0, &info, NULL), GPP_OK);
    cr_expect(info.inputs == 3 && info.outputs == 3 && info.operators == 1 && info.rank == 0);
    gpp_model_free(model);
}
