/*
 * tests/test_user_defs.c: definitions of user operators and what they declare: what is refused, in
 * which words, and what becomes of parameters and keys.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "codelets/attr.h"
#include "tests/user_rig.h"

/* --- parameters ------------------------------------------------------------------------------- */

static void declare_params(gpp_signature *s)
{
    s->params = 3;
    s->param[0] = (gpp_param_shape){"matrix", 2, {5, 16}};
    s->param[1] = (gpp_param_shape){"vector", 1, {64}};
    s->param[2] = (gpp_param_shape){"number", 0, {0}};
}

static void init_with_seed(const gpp_signature *s, int index, uint64_t seed, int64_t count,
                           float value[])
{
    cr_assert(s->params == 3 && count == (index == 0 ? 80 : index == 1 ? 64 : 1));
    memcpy(value, &seed, sizeof *value);
}

Test(user_defs, parameters_start_within_one_over_the_root_of_a_row)
{
    user_rig r;
    user_script todo = {.declare = declare_params};
    gpp_operator def = user_probe(&todo, false);
    static const float bound[] = {0.25f, 1, 1};
    cr_assert_eq(user_rig_init(&r, &def, 1, (gpp__desc[]){user_features(0)}), GPP_OK, "%s",
                 r.err.msg);
    for (int p = 0; p < 3; p++) {
        float value[80], most = 0;
        r.layer.op->init(&r.layer, p, 3, value);
        for (int k = 0; k < r.layer.param[p].count; k++)
            most = fmaxf(most, fabsf(value[k]));
        cr_expect(most <= bound[p], "parameter %d: %g", p, most);
        cr_expect(p == 2 || most > bound[p] * 0.8f, "parameter %d: %g of %g", p, most, bound[p]);
    }
    user_rig_release(&r);
}

Test(user_defs, each_parameter_of_each_layer_has_a_seed_of_its_own)
{
    user_rig r;
    user_script todo = {.declare = declare_params};
    gpp_operator def = user_probe(&todo, false);
    def.init = init_with_seed;
    cr_assert_eq(user_rig_init(&r, &def, 1, (gpp__desc[]){user_features(0)}), GPP_OK, "%s",
                 r.err.msg);
    float value[6], same;
    for (int k = 0; k < 6; k++) {
        r.layer.id = k / 3;
        r.layer.op->init(&r.layer, k % 3, 11, &value[k]);
        r.layer.op->init(&r.layer, k % 3, 11, &same);
        cr_expect(!memcmp(&same, &value[k], sizeof same), "the same seed gives the same");
        for (int other = 0; other < k; other++)
            cr_expect(memcmp(&value[other], &value[k], sizeof *value), "%d and %d", other, k);
    }
    user_rig_release(&r);
}

/* --- declarations that are refused ------------------------------------------------------------ */

static void no_output(gpp_signature *s)
{
    s->outputs = 0;
}
static void many_outputs(gpp_signature *s)
{
    s->outputs = 15;
}
static void many_params(gpp_signature *s)
{
    s->params = 17;
}
static void many_saved(gpp_signature *s)
{
    s->saved = -1;
}
static void high_rank(gpp_signature *s)
{
    s->out[0].rank = 8;
}
static void zero_dim(gpp_signature *s)
{
    s->out[0].dim[0] = 0;
}
static void odd_type(gpp_signature *s)
{
    s->out[0].dtype = (gpp_dtype)9;
}
static void odd_batch(gpp_signature *s)
{
    s->out[0].batch = 2;
}
static void lower_batch(gpp_signature *s)
{
    s->out[0].batch = -2;
}
static void no_rows(gpp_signature *s)
{
    s->out[0].batch = GPP_ROWS_FIXED;
}
static void odd_stash(gpp_signature *s)
{
    s->stash[1].rank = -1;
}
static void odd_saved(gpp_signature *s)
{
    s->saved = 1;
    s->saving[0] = (gpp_shape){.rank = 1};
}
static void nameless(gpp_signature *s)
{
    s->params = 1;
}
static void endless(gpp_signature *s)
{
    s->params = 1;
    memset(s->param[0].name, 'x', 24);
}
static void twins(gpp_signature *s)
{
    s->params = 2;
    s->param[0] = s->param[1] = (gpp_param_shape){"w", 1, {2}};
}
static void huge(gpp_signature *s)
{
    s->params = 1;
    s->param[0] = (gpp_param_shape){"w", 3, {(int64_t)1 << 40, (int64_t)1 << 20, 8}};
}
static void huge_rows(gpp_signature *s)
{
    s->out[0] = (gpp_shape){.rank = 1, .dim = {4}, .batch = GPP_ROWS_FIXED, .rows = INT64_MAX / 9};
}
static void says(gpp_signature *s)
{
    s->err->code = GPP_ESHAPE;
    strcpy(s->err->msg, "takes 2 tensors, got 1");
}

Test(user_defs, declarations_that_cannot_be_are_refused_with_the_layer_named)
{
    static const struct {
        const char *why;
        void (*declare)(gpp_signature *);
        gpp_status returned, expected;
        const char *message;
    } cases[] = {
        {"no output", no_output, GPP_OK, GPP_ESHAPE, "declares 0 outputs, expected 1 ... 14"},
        {"no room for the stashes", many_outputs, GPP_OK, GPP_ESHAPE, "declares 15 outputs"},
        {"parameters", many_params, GPP_OK, GPP_ESHAPE, "17 parameters, expected 0 ... 16"},
        {"saved tensors", many_saved, GPP_OK, GPP_ESHAPE, "declares -1 saved tensors"},
        {"rank", high_rank, GPP_OK, GPP_ESHAPE, "output 0 has rank 8, expected 0 ... 7"},
        {"dimension", zero_dim, GPP_OK, GPP_ESHAPE, "output 0 has dimension 0 of 0, expected 1"},
        {"type", odd_type, GPP_OK, GPP_ESHAPE, "output 0 is of type 9"},
        {"batch", odd_batch, GPP_OK, GPP_ESHAPE, "output 0 has rows of batch 2, which no input"},
        {"negative batch", lower_batch, GPP_OK, GPP_ESHAPE, "has rows of batch -2"},
        {"fixed rows", no_rows, GPP_OK, GPP_ESHAPE, "output 0 has 0 fixed rows, expected 1"},
        {"a stash", odd_stash, GPP_OK, GPP_ESHAPE, "stashed tensor 1 has rank -1"},
        {"a saved one", odd_saved, GPP_OK, GPP_ESHAPE, "saved tensor 0 has dimension 0 of 0"},
        {"name", nameless, GPP_OK, GPP_ESHAPE, "parameter 0 has the name \"\""},
        {"name without an end", endless, GPP_OK, GPP_ESHAPE,
         "the name \"xxxxxxxxxxxxxxxxxxxxxxxx\""},
        {"two of a name", twins, GPP_OK, GPP_ESHAPE,
         "parameter 1 has the name \"w\", as parameter 0"},
        {"size", huge, GPP_OK, GPP_ESHAPE, "parameter 0 of 3 dimensions has more elements than"},
        {"size by rows", huge_rows, GPP_OK, GPP_ESHAPE, "output 0 of 1 dimensions has more elem"},
        {"own words", says, GPP_EINVAL, GPP_EINVAL, "takes 2 tensors, got 1"},
        {"own words, and success", says, GPP_OK, GPP_ESHAPE, "takes 2 tensors, got 1"},
        {"a status alone", no_output, GPP_ESHAPE, GPP_ESHAPE, "infer returned GPP_ESHAPE (shapes"},
        {"no status", no_output, (gpp_status)55, GPP_EINVAL, "infer returned 55, which is no"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        user_rig r;
        user_script todo = {.declare = cases[k].declare, .status = cases[k].returned};
        gpp_operator def = user_probe(&todo, true);
        gpp_status status = user_rig_init(
            &r, &def, 3, (gpp__desc[]){user_features(1), user_features(0), user_features(0)});
        cr_expect_eq(status, cases[k].expected, "%s: %s", cases[k].why, gpp_status_name(status));
        cr_expect(strstr(r.err.msg, cases[k].message), "%s: %s", cases[k].why, r.err.msg);
        cr_expect_eq(strncmp(r.err.msg, "probe (layer 5, \"mine\"): ", 25), 0, "%s", r.err.msg);
        cr_expect_eq(r.err.layer, 5, "%s", cases[k].why);
        user_rig_release(&r);
    }
}

/* --- definitions ------------------------------------------------------------------------------ */

Test(user_defs, definitions_that_cannot_be_used_are_refused)
{
    static const gpp_operator_key no_numbers[] = {{"k", 0, 0, 0, 0, 0}, {0}};
    static const gpp_operator_key five[] = {{"k", 5, 0, 0, 0, 0}, {0}};
    static const gpp_operator_key nothing[] = {{"k", 1, 0, 0, 2, 1}, {0}};
    static const gpp_operator_key twice[] = {{"k", 1, 0, 0, 0, 0}, {"k", 1, 0, 0, 0, 0}, {0}};
    static const gpp_operator_key odd_key[] = {{"k-1", 1, 0, 0, 0, 0}, {0}};
    static const char *const doubled[] = {"a", "b", "a", NULL}, *const blank[] = {"a b", NULL};
    static const char *const empty[] = {"", NULL};
    static const char *const seventeen[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8",
                                            "9", "a", "b", "c", "d", "e", "f", "g", NULL};
    gpp_operator_key many[18];
    char key_name[17][3];
    memset(many, 0, sizeof many);
    for (int k = 0; k < 17; k++) {
        memcpy(key_name[k], (char[]){'k', (char)('a' + k), '\0'}, 3);
        many[k] = (gpp_operator_key){key_name[k], 1, false, 0, 0, 0};
    }
    user_script todo = {0};
    gpp_operator def;
    gpp__user_op *op;
#define CASE(says, change)                                                                         \
    {                                                                                              \
        gpp_error err = GPP_ERROR_INIT;                                                            \
        def = user_probe(&todo, true);                                                             \
        change;                                                                                    \
        cr_expect_eq(gpp__user_op_new(&op, &def, &err), GPP_EINVAL, "%s", says);                   \
        cr_expect_null(op);                                                                        \
        cr_expect(strstr(err.msg, says), "expected \"%s\" in \"%s\"", says, err.msg);              \
    }
    CASE("without a name", def.name = NULL);
    CASE("\"\": its name must be", def.name = "");
    CASE("\"my op\": its name", def.name = "my op");
    CASE("\"2fast\": its name", def.name = "2fast");
    CASE("\"linear\": its name is that of a built-in one", def.name = "linear");
    CASE("built-in", def.name = "chain");
    CASE("infer is missing", def.infer = NULL);
    CASE("forward is missing", def.forward = NULL);
    CASE("flags 0x8 are not all known", def.flags = 8);
    CASE("key \"k\" takes 0 numbers, expected 1 ... 4", def.keys = no_numbers);
    CASE("takes 5 numbers", def.keys = five);
    CASE("key \"k\" must be 2 ... 1: nothing is", def.keys = nothing);
    CASE("two keys \"k\"", def.keys = twice);
    CASE("key \"k-1\" is not", def.keys = odd_key);
    CASE("more than 16 keys", def.keys = many);
    CASE("skip \"a\" is declared twice", def.stash = doubled);
    CASE("skip \"a b\" is not", def.pop = blank);
    CASE("skip \"\" is not", def.pop = empty);
    CASE("too many skips, \"f\"", def.stash = seventeen);
    CASE("too many skips, \"e\"", def.pop = seventeen);
#undef CASE
    cr_expect_eq(gpp__user_op_new(&op, NULL, NULL), GPP_EINVAL);
    gpp__user_op_drop(NULL);
}

Test(user_defs, a_definition_is_copied_and_lives_until_nobody_holds_it)
{
    user_script todo = {0};
    char name[] = "copied", key[] = "size", stash[] = "kept", pop[] = "taken";
    gpp_operator_key keys[] = {{key, 2, true, 0, 1, 8}, {0}};
    const char *stashes[] = {stash, NULL}, *pops[] = {pop, NULL};
    gpp_operator def = user_probe(&todo, true);
    gpp__user_op *op;
    def.name = name;
    def.keys = keys;
    def.stash = stashes;
    def.pop = pops;
    cr_assert_eq(gpp__user_op_new(&op, &def, NULL), GPP_OK);
    name[0] = key[0] = stash[0] = pop[0] = '!';
    memset(keys, 0, sizeof keys);
    memset(&def, 0xff, sizeof def);
    cr_expect_eq(gpp__user_op_hold(op), op);
    gpp__user_op_drop(op);
    const gpp_op *inside = gpp__user_op_op(op);
    gpp__layer layer = {.op = inside};
    inside->skips(&layer);
    cr_expect_str_eq(inside->name, "copied");
    cr_expect_str_eq(inside->keys[0].name, "size");
    cr_expect(inside->keys[0].count == 2 && inside->keys[0].required && !inside->keys[1].name);
    cr_expect(layer.skips == 2 && layer.stashes == 1 && layer.pops == 1);
    cr_expect_str_eq(layer.skip[0].name, "kept");
    cr_expect_str_eq(layer.skip[1].name, "taken");
    cr_expect(layer.skip[0].stash && !layer.skip[1].stash);
    gpp__user_op_drop(op);
}

Test(user_defs, keys_read_as_rows_of_numbers)
{
    user_script todo = {0};
    static const gpp_operator_key keys[] = {
        {"one", 1, false, 7, 0, 0}, {"three", 3, true, 0, -1, 1}, {"pair", 2, false, 5, 0, 9}, {0}};
    gpp_operator def = user_probe(&todo, true);
    gpp__user_op *op;
    gpp_error err = GPP_ERROR_INIT;
    double attr[16][4] = {{0}};
    def.keys = keys;
    cr_assert_eq(gpp__user_op_new(&op, &def, NULL), GPP_OK);
    const gpp_op *inside = gpp__user_op_op(op);
    cr_assert_eq(inside->attr_size, sizeof attr);
    gpp_attr given[] = {{"three", 3, {0.5, -1, 1, 0}, NULL}, GPP_REAL("pair", 2.5)};
    cr_assert_eq(gpp__attr_set("probe", inside->keys, attr, given, 2, &err), GPP_OK, "%s", err.msg);
    static const double expected[3][3] = {{7, 0, 0}, {0.5, -1, 1}, {2.5, 2.5, 0}};
    for (int k = 0; k < 3; k++)
        for (int n = 0; n < 3; n++)
            cr_expect_eq(attr[k][n], expected[k][n], "key %d number %d: %g", k, n, attr[k][n]);
    gpp_attr any[] = {{"three", 1, {0}, NULL}, GPP_REAL("one", -1e9)};
    cr_expect_eq(gpp__attr_set("probe", inside->keys, attr, any, 2, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(attr[0][0], -1e9, "without limits any number is fine");
    given[0].v[1] = -1.5;
    cr_expect_eq(gpp__attr_set("probe", inside->keys, attr, given, 2, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "three must be -1 ... 1, got -1.5"), "%s", err.msg);
    gpp__user_op_drop(op);
}

Test(user_defs, without_a_backward_no_gradient_passes)
{
    user_script todo = {0};
    gpp_operator def = user_probe(&todo, true);
    gpp__user_op *op;
    def.backward = NULL;
    def.flags = GPP_OP_NEEDS_OUTPUT;
    cr_assert_eq(gpp__user_op_new(&op, &def, NULL), GPP_OK);
    const gpp_op *inside = gpp__user_op_op(op);
    cr_expect_null(inside->cpu.backward);
    cr_expect_eq(inside->backward_needs, (unsigned)GPP_NEEDS_OUTPUT);
    cr_expect(inside->may_fail && inside->row_major && inside->zero_grads && inside->takes_none &&
              inside->may_stash_none && !inside->in_place);
    gpp__user_op_drop(op);
}
