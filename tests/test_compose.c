/*
 * tests/test_compose.c: composite layers, models from models, and what layers are given.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe.h>

#include "tests/networks.h"
#include "tests/pipes.h"

/* --- the C calls ------------------------------------------------------------------------------ */

Test(compose, composite_layers_are_one_layer)
{
    gpp_layer_info info;
    gpp_model *model = test_model_text("linear out=8 @in");
    cr_assert_eq(gpp_model_begin(model, "block", NULL), GPP_OK);
    cr_expect_eq(gpp_model_layers(model), 1, "not counted before it ends");
    cr_assert_eq(gpp_model_add_text(model, "linear out=16; relu; linear out=8 @mine", NULL),
                 GPP_OK);
    cr_assert_eq(gpp_model_from(model, (gpp_ref[]){{2, 0}, {GPP_REF_INPUT, 0}}, 2, NULL), GPP_OK);
    test_add(model, "add");
    cr_assert_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    test_add(model, "relu");
    cr_assert_eq(gpp_model_layers(model), 3);
    cr_assert_eq(gpp_model_layer(model, 1, &info, NULL), GPP_OK);
    cr_expect_str_eq(info.op, "graph");
    cr_expect_str_eq(info.label, "block");
    cr_expect_eq(info.operators, 4);
    cr_expect_eq(gpp_model_find(model, "block"), 1);
    cr_expect_eq(gpp_model_find(model, "mine"), -1, "labels inside are no layers");
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_assert_eq(gpp_model_layer(model, 1, &info, NULL), GPP_OK);
    cr_expect_eq(info.parameters, (8 + 1) * 16 + (16 + 1) * 8);
    cr_expect_eq(info.flops, 2.0 * 8 * 16 + 16 + 2.0 * 16 * 8 + 8, "forks cost nothing");
    cr_expect(info.rank == 1 && info.dim[0] == 8 && info.inputs == 1 && info.outputs == 1);
    const gpp__network *n = &model->network;
    static const char *const label[] = {"in",   "block",   "block.0", "block.1",
                                        "mine", "block.3", "2"};
    for (int k = 0; k < n->nodes; k++)
        cr_expect_str_eq(n->node[k].label, label[k]);
    cr_expect(n->node[2].id == 1 && n->node[5].id == 4 && n->node[6].id == 5,
              "ids count the operators that were added");
    gpp_model_free(model);
}

Test(compose, buffers_are_no_parameters)
{
    gpp_layer_info info;
    gpp_model *model = test_model_text("batchnorm");
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_assert_eq(gpp_model_layer(model, 0, &info, NULL), GPP_OK);
    cr_expect_eq(info.parameters, 2 * 4, "weight and bias, but no running statistics");
    gpp_model_free(model);
}

Test(compose, wrong_calls_are_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_text("relu @a");
    const gpp_ref input = {GPP_REF_INPUT, 0}, bad[] = {{1, 0}, {-2, 0}, {0, 16}, {0, -1}};
    cr_expect_eq(gpp_model_end(model, NULL, 0, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_model_from(model, &input, 1, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_model_begin(NULL, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_from(NULL, &input, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_end(NULL, NULL, 0, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_begin(model, "a", &err), GPP_EINVAL, "label in use");
    cr_expect(strstr(err.msg, "is that of layer 0 (relu) already"), "%s", err.msg);
    cr_expect_eq(gpp_model_begin(model, "a/b", NULL), GPP_EINVAL);
    cr_assert_eq(gpp_model_begin(model, "b", NULL), GPP_OK);
    cr_expect_eq(gpp_model_begin(model, "c", NULL), GPP_ESTATE, "one level");
    test_add(model, "relu");
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        cr_expect_eq(gpp_model_from(model, &bad[k], 1, NULL), GPP_EINVAL, "%zu", k);
    cr_expect_eq(gpp_model_from(model, NULL, 1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_from(model, &input, -1, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_from(model, &input, 17, NULL), GPP_EINVAL);
    test_from(model, 0, 0);
    cr_expect_eq(gpp_model_from(model, &input, 1, NULL), GPP_ESTATE, "chosen already");
    cr_expect_eq(gpp_model_add(model, "rely", NULL, NULL, 0, NULL), GPP_ENOENT);
    cr_expect(model->chosen, "a refused operator does not use up the choice");
    cr_expect_eq(test_set_input(model, 1, NULL), GPP_ESTATE, "a layer is open");
    cr_expect_eq(gpp_model_append(model, model, NULL, NULL), GPP_ESTATE);
    cr_expect_eq(gpp_model_flatten(model, NULL), GPP_ESTATE);
    test_add(model, "relu");
    cr_expect_eq(model->part[2].ref[0].op, 0);
    cr_assert_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_model_begin(model, NULL, NULL), GPP_ESTATE);
    gpp_model_free(model);
}

Test(compose, a_layer_that_cannot_be_ended_is_dropped)
{
    static const struct {
        const char *why, *text;
        bool choose;
        int count;
        gpp_ref out;
    } cases[] = {
        {"empty", NULL, false, -1, {0, 0}},
        {"inputs chosen for nothing", "relu", true, -1, {0, 0}},
        {"no outputs", "relu", false, 0, {0, 0}},
        {"an operator that is not there", "relu", false, 1, {1, 0}},
        {"a tensor out of range", "relu", false, 1, {0, 16}},
        {"too many outputs", "relu", false, 17, {0, 0}},
    };
    gpp_model *model = test_model_text("relu @a");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cr_assert_eq(gpp_model_begin(model, "b", NULL), GPP_OK, "%s", cases[k].why);
        if (cases[k].text)
            cr_assert_eq(gpp_model_add_text(model, cases[k].text, NULL), GPP_OK);
        if (cases[k].choose)
            test_from(model, 0, 0);
        bool all = cases[k].count < 0;
        cr_expect_eq(
            gpp_model_end(model, all ? NULL : &cases[k].out, all ? 0 : cases[k].count, &err),
            GPP_EINVAL, "%s", cases[k].why);
        cr_expect_eq(err.layer, 1, "%s: %s", cases[k].why, err.msg);
        cr_expect(gpp_model_layers(model) == 1 && model->parts == 1 && !model->open, "%s",
                  cases[k].why);
    }
    test_add(model, "relu");
    cr_expect_eq(test_set_input(model, 1, NULL), GPP_OK);
    gpp_model_free(model);
}

Test(compose, a_model_is_freed_with_a_layer_open)
{
    gpp_model *model = test_model_text("relu");
    cr_assert_eq(gpp_model_begin(model, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp_model_add_text(model, "stash name=a; relu", NULL), GPP_OK);
    gpp_model_free(model);
}

Test(compose, shapes_that_do_not_fit_name_the_layer)
{
    static const struct {
        const char *why;
        gpp_ref in, out;
        const char *message;
    } cases[] = {
        {"no such output",
         {0, 0},
         {0, 1},
         "output 1 of its operator 0 (relu) is taken, which has 1"},
        {"no such output inside", {0, 3}, {1, 0}, "output 3 of its operator 0 (relu) is taken"},
        {"no such input", {GPP_REF_INPUT, 1}, {1, 0}, "its input 1 is taken, it gets 1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_text("relu");
        cr_assert_eq(gpp_model_begin(model, "b", NULL), GPP_OK);
        test_add(model, "relu");
        cr_assert_eq(gpp_model_from(model, &cases[k].in, 1, NULL), GPP_OK);
        test_add(model, "relu");
        cr_assert_eq(gpp_model_end(model, &cases[k].out, 1, NULL), GPP_OK);
        cr_expect_eq(test_set_input(model, 1, &err), GPP_ESHAPE, "%s", cases[k].why);
        cr_expect(strstr(err.msg, cases[k].message), "%s: %s", cases[k].why, err.msg);
        cr_expect(strncmp(err.msg, "graph (layer 1, \"b\"): ", 22) == 0, "%s", err.msg);
        cr_expect_eq(err.layer, 1);
        gpp_model_free(model);
    }
}

Test(compose, every_layer_takes_and_gives_something)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_text("stash name=a");
    cr_assert_eq(gpp_model_begin(model, "b", NULL), GPP_OK);
    cr_assert_eq(gpp_model_from(model, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_add_text(model, "unstash name=a", NULL), GPP_OK);
    cr_assert_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(test_set_input(model, 1, &err), GPP_ESHAPE);
    cr_expect(strstr(err.msg, "\"b\"): it takes none of the tensors that it is given"), "%s",
              err.msg);
    gpp_model_free(model);
}

/* --- text ------------------------------------------------------------------------------------- */

Test(compose, wrong_blocks_are_refused_with_their_place_and_change_nothing)
{
    static const test_refusal cases[] = {
        {"no block", "chain", GPP_ESYNTAX, "line 1, column 6: chain: expected a block in braces"},
        {"no block but a label", "chain @a", GPP_ESYNTAX, "column 7: chain: expected a block"},
        {"empty", "relu\nchain { }", GPP_ESYNTAX, "line 2, column 7: the block is empty"},
        {"nothing but comments", "chain { # a\n ; \n }", GPP_ESYNTAX,
         "line 1, column 7: the block is empty"},
        {"not closed", "chain {\n relu\n", GPP_ESYNTAX,
         "line 1, column 7: this block has no closing '}'"},
        {"the inner one not closed", "chain { chain { relu }\n", GPP_ESYNTAX,
         "line 1, column 7: this block has no closing '}'"},
        {"closed twice", "chain { relu } }", GPP_ESYNTAX, "column 16: '}' ends no block"},
        {"closed on the next line", "chain { relu }\n}", GPP_ESYNTAX,
         "line 2, column 1: expected a name, found '}'"},
        {"closed without being opened", "relu }", GPP_ESYNTAX, "column 6: '}' ends no block"},
        {"something behind the block", "chain { relu } relu", GPP_ESYNTAX,
         "column 16: a block ends its layer, only a label may follow"},
        {"two blocks", "chain { relu } { relu }", GPP_ESYNTAX, "column 16: a layer has one block"},
        {"keys behind the block", "pop { relu } mode=add", GPP_EINVAL, "pop: name is missing"},
        {"keys behind the block", "pop name=a mode=add { relu } pad=1", GPP_ESYNTAX,
         "column 30: a block ends its layer"},
        {"keys of a chain", "chain a=1 { relu }", GPP_ENOENT,
         "line 1, column 1: chain: no key \"a\"; it takes none"},
        {"keys of a pop are those of pop", "pop name=a mode=add size=1 { relu }", GPP_ENOENT,
         "line 1, column 1: pop: no key \"size\""},
        {"a block on another operator", "chain {\n relu { relu }\n}", GPP_ESYNTAX,
         "line 2, column 7: relu takes no block in braces; chain and pop do"},
        {"a wrong operator inside", "chain {\n relu\n  con2d out=1 }", GPP_ENOENT,
         "line 3, column 3: no operator \"con2d\""},
        {"a wrong value inside", "chain { linear out=0 }", GPP_EINVAL,
         "column 9: linear: out must be 1"},
        {"a label that is in use", "relu\nchain { relu } @first", GPP_EINVAL,
         "line 2, column 1: chain (layer 3): its label \"first\" is that of layer 0"},
        {"a label with a slash", "chain { relu } @a/b", GPP_EINVAL,
         "label \"a/b\" is not 1 ... 63"},
        {"a label with a slash inside", "chain { relu @a/b }", GPP_EINVAL, "label \"a/b\""},
        {"an inner chain's label with a slash", "chain { chain { relu } @a/b }", GPP_EINVAL,
         "column 9: chain: its label is not of letters"},
        {"an inner pop's label with a slash", "chain { pop name=a mode=add { relu } @a/b }",
         GPP_EINVAL, "column 9: pop: its label is not of letters"},
        {"a label missing", "chain { relu } @", GPP_ESYNTAX, "column 17: expected a label right"},
        {"a default label that is too long",
         "chain { relu } @aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         GPP_EINVAL, "the default label of its operator 0 has more than 63 characters"},
        {"a label in use, all of the text goes",
         "stash name=a ns=0\nchain { relu }; flatten @first", GPP_EINVAL,
         "line 2, column 17: flatten (layer 4): its label"},
    };
    gpp_model *model = test_model_text("linear out=4 @first; relu");
    test_expect_refusals(model, cases, sizeof cases / sizeof *cases);
    cr_expect_eq(test_set_input(model, 1, NULL), GPP_OK);
    gpp_model_free(model);
}

Test(compose, a_text_refused_inside_an_open_layer_leaves_it_as_it_was)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_text("relu");
    cr_assert_eq(gpp_model_begin(model, "b", NULL), GPP_OK);
    test_add(model, "relu");
    test_from(model, GPP_REF_INPUT, 0);
    static const char *const texts[] = {"relu; rely", "chain { relu; relu } @x; rely",
                                        "pop name=a mode=add { relu; rely }", "", "relu; chain {"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        cr_expect_neq(gpp_model_add_text(model, texts[k], &err), GPP_OK, "%s", texts[k]);
        cr_expect(model->open && model->chosen && model->parts == 2, "%s", texts[k]);
        cr_expect(model->unit[1].count == 1 && model->unit[1].items == 1, "%s", texts[k]);
    }
    cr_expect_eq(gpp_model_add_text(model, "chain { relu; relu @y } @x; relu", NULL), GPP_OK);
    cr_expect_eq(model->part[2].ref[0].op, GPP_REF_INPUT, "the choice was kept");
    cr_expect_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    cr_expect_eq(test_set_input(model, 1, NULL), GPP_OK);
    gpp_model_free(model);
}

static char *nested(int depth)
{
    char *text = malloc((size_t)depth * 10 + 16), *at = text;
    cr_assert_not_null(text);
    for (int k = 0; k < depth; k++)
        at = stpcpy(at, "chain { ");
    at = stpcpy(at, "relu");
    for (int k = 0; k < depth; k++)
        at = stpcpy(at, " }");
    return text;
}

Test(compose, blocks_nest_to_a_limit)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_empty();
    char *deepest = nested(64), *deeper = nested(65), *absurd = nested(200000);
    cr_expect_eq(gpp_model_add_text(model, deepest, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_model_add_text(model, deeper, &err), GPP_ESYNTAX);
    cr_expect(strstr(err.msg, "line 1, column 519: blocks are nested more than 64 deep"), "%s",
              err.msg);
    cr_expect_eq(gpp_model_add_text(model, absurd, NULL), GPP_ESYNTAX);
    cr_expect_eq(gpp_model_layers(model), 1);
    free(deepest);
    free(deeper);
    free(absurd);
    gpp_model_free(model);
}

Test(compose, labels_of_operators_with_parameters_are_unique)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"chain { linear out=3 @a }; linear out=3 @a", "linear (layer 1): its label \"a\" is that "
                                                       "of another operator with parameters, "
                                                       "linear (layer 0)"},
        {"chain { linear out=3 @a; linear out=3 @a }", "its label \"a\""},
        {"chain { linear out=3 @b.1; linear out=3 } @b", "its label \"b.1\""},
        {"chain { relu @a; linear out=3 @a }", NULL},
        {"chain { relu @a }; linear out=3 @a", NULL},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_text(cases[k].text);
        cr_expect_eq(test_set_input(model, 1, &err), cases[k].message ? GPP_EINVAL : GPP_OK, "%s",
                     err.msg);
        cr_expect(!cases[k].message || strstr(err.msg, cases[k].message), "%s", err.msg);
        gpp_model_free(model);
    }
}

/* --- append, flatten -------------------------------------------------------------------------- */

/* "label label ..." of all layers. */
static const char *labels(const gpp_model *model, char *out, size_t size)
{
    size_t used = 0;
    gpp_layer_info info;
    out[0] = '\0';
    for (int k = 0; k < gpp_model_layers(model); k++) {
        cr_assert_eq(gpp_model_layer(model, k, &info, NULL), GPP_OK);
        cr_expect_eq(gpp_model_find(model, info.label), k);
        used += (size_t)snprintf(out + used, size - used, "%s%s", k ? " " : "", info.label);
    }
    return out;
}

Test(compose, models_are_appended_with_a_prefix)
{
    char text[200];
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_text("relu @stem; relu");
    gpp_model *block =
        test_model_text("linear out=4 @a; relu; linear out=4 @b; chain { linear out=4 @c; "
                        "linear out=4 } @d");
    cr_assert_eq(gpp_model_share(block, 2, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_place(block, 1, "cpu:1", NULL), GPP_OK);
    cr_assert_eq(gpp_model_append(model, block, "x", &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_append(model, block, "y", &err), GPP_OK, "%s", err.msg);
    cr_expect_str_eq(labels(model, text, sizeof text), "stem 1 x_a x_1 x_b x_d y_a y_1 y_b y_d");
    cr_expect_eq(gpp_model_append(model, block, "y", &err), GPP_EINVAL, "labels in use");
    cr_expect(strstr(err.msg, "its label \"y_a\" is that of layer 6 (linear)"), "%s", err.msg);
    cr_expect_eq(gpp_model_layers(model), 10);
    cr_assert_eq(gpp_model_append(model, block, NULL, NULL), GPP_OK, "labels as they are");
    cr_expect_str_eq(labels(model, text, sizeof text),
                     "stem 1 x_a x_1 x_b x_d y_a y_1 y_b y_d a 11 b d");
    gpp_model_free(block);
    gpp_layer_info info;
    cr_assert_eq(gpp_model_layer(model, 7, &info, NULL), GPP_OK);
    cr_expect_str_eq(info.device, "cpu:1");
    cr_assert_eq(test_set_input(model, 1, &err), GPP_OK, "%s", err.msg);
    const gpp__network *n = &model->network;
    cr_expect_eq(n->node[n->first[8]].shares, n->first[6]);
    cr_expect_eq(n->node[n->first[12]].shares, n->first[10]);
    cr_expect_str_eq(n->node[n->first[9]].label, "y_c");
    cr_expect_str_eq(n->node[n->first[9] + 1].label, "y_d.1");
    gpp_model_free(model);
}

Test(compose, a_model_can_be_appended_to_itself)
{
    char text[200];
    gpp_model *model =
        test_model_text("linear out=4 @a; stash name=x ns=1; pop name=x ns=1 mode=add");
    cr_assert_eq(gpp_model_append(model, model, "again", NULL), GPP_OK);
    cr_expect_str_eq(labels(model, text, sizeof text), "a 1 2 again_a again_1 again_2");
    cr_expect_eq(gpp_verify_skips(model, NULL, NULL), GPP_EINVAL,
                 "a namespace of one's own choice");
    gpp_model_free(model);
}

Test(compose, namespaces_that_were_given_out_are_new_in_every_copy)
{
    char ns[32];
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_text("stash name=x @s; relu; pop name=x mode=add @p"), *other;
    cr_assert_eq(gpp_model_namespace(model, ns, NULL), GPP_OK);
    cr_assert_eq(gpp_model_isolate(model, 0, ns, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_isolate(model, 2, ns, NULL, 0, NULL), GPP_OK);
    other = test_model_text("relu");
    for (int k = 0; k < 3; k++) {
        char prefix[4] = {'b', (char)('0' + k), '\0'};
        cr_assert_eq(gpp_model_append(other, model, prefix, NULL), GPP_OK);
    }
    cr_assert_eq(gpp_model_append(other, other, "twice", NULL), GPP_OK);
    cr_expect_eq(gpp_verify_skips(other, NULL, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(model);
    gpp_model_free(other);
}

Test(compose, wrong_appends_are_refused_and_change_nothing)
{
    char text[100], prefix[64];
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_text("relu @a; relu @b"),
              *other = test_model_text("relu @c; relu @a");
    memset(prefix, 'p', 63);
    prefix[63] = '\0';
    cr_expect_eq(gpp_model_append(model, other, NULL, &err), GPP_EINVAL);
    cr_expect_eq(gpp_model_append(model, other, "", NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_append(model, other, "a/b", NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_append(model, other, prefix, NULL), GPP_EINVAL);
    gpp_error_clear(&err);
    cr_expect_eq(gpp_model_append(model, other, prefix + 1, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "has 64 characters"), "%s", err.msg);
    cr_expect_eq(gpp_model_append(model, NULL, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_append(NULL, model, NULL, NULL), GPP_EINVAL);
    cr_expect_str_eq(labels(model, text, sizeof text), "a b");
    cr_expect_eq(model->parts, 2);
    cr_expect_eq(gpp_model_append(model, other, prefix + 2, NULL), GPP_OK, "63 characters");
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_expect_eq(gpp_model_append(model, other, "q", NULL), GPP_ESTATE);
    gpp_model *third = test_model_empty();
    cr_expect_eq(gpp_model_append(third, model, NULL, NULL), GPP_OK, "of a model with an input");
    cr_expect_eq(gpp_model_layers(third), 4);
    gpp_model_free(third);
    gpp_model_free(model);
    gpp_model_free(other);
}

Test(compose, plain_chains_are_flattened_with_joined_names)
{
    static const struct {
        const char *text, *labels;
    } cases[] = {
        {"relu @a; chain { relu; relu @x } @b; relu @c", "a b_0 b_x c"},
        {"chain { relu; chain { relu; relu @x }; chain { chain { relu @z } } @in; relu } @b",
         "b_0 b_1_0 b_1_x b_in_0_z b_3"},
        {"chain { relu }; chain { relu }", "0_0 1_0"},
        {"chain { relu }", "0_0"},
        {"relu; relu", "0 1"},
        {"chain { stash name=a; relu @r } @b; pop name=a mode=add @p", "b_0 b_r p"},
        {"stash name=a @s; pop name=a mode=add { relu } @g; chain { relu; relu } @h",
         "s g h_0 h_1"},
        {"stash name=a @s; chain { relu; pop name=a mode=add { relu } } @h", "s h"},
    };
    char text[200], before[600], after[600];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_text(cases[k].text), *copy;
        cr_assert_eq(gpp__model_clone(model, &copy, NULL), GPP_OK);
        cr_assert_eq(gpp_model_flatten(model, &err), GPP_OK, "%s", err.msg);
        cr_expect_str_eq(labels(model, text, sizeof text), cases[k].labels, "%s", cases[k].text);
        cr_assert_eq(test_set_input(model, 1, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(test_set_input(copy, 1, &err), GPP_OK, "%s", err.msg);
        test_sketch(model, after, sizeof after);
        test_sketch(copy, before, sizeof before);
        for (char *c = after, *d = before; *c; c++, d++)
            if (c[1] == ':')
                *c = *d; /* the same operators, in other layers */
        cr_expect_str_eq(after, before, "%s", cases[k].text);
        test_check_network(model, cases[k].text);
        gpp_model_free(model);
        gpp_model_free(copy);
    }
}

Test(compose, graphs_and_what_layers_were_given_survive_flattening)
{
    char text[100];
    gpp_layer_info info;
    gpp_model *model = test_model_text("chain { relu; relu } @c; linear out=4 @l; linear out=4 @m");
    cr_assert_eq(gpp_model_begin(model, "g", NULL), GPP_OK);
    test_from(model, GPP_REF_INPUT, 0);
    test_add(model, "relu");
    cr_assert_eq(gpp_model_from(model, (gpp_ref[]){{0, 0}, {0, 0}}, 2, NULL), GPP_OK);
    test_add(model, "add");
    cr_assert_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_share(model, 2, 1, NULL), GPP_OK);
    cr_assert_eq(gpp_model_place(model, 0, "cpu:2", NULL), GPP_OK);
    cr_assert_eq(gpp_model_flatten(model, NULL), GPP_OK);
    cr_expect_str_eq(labels(model, text, sizeof text), "c_0 c_1 l m g");
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(gpp_model_layer(model, k, &info, NULL), GPP_OK);
        cr_expect_str_eq(info.device, "cpu:2");
        cr_expect_str_eq(info.op, "relu");
    }
    cr_expect_eq(gpp_model_add_text(model, "relu @last", NULL), GPP_OK, "it can be added to");
    cr_expect_eq(gpp_model_find(model, "last"), 5);
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_expect_eq(model->network.node[3].shares, 2);
    gpp_model_free(model);
}

Test(compose, flattening_that_gives_bad_labels_changes_nothing)
{
    static const char *const texts[] = {
        "relu @b_0; chain { relu } @b",
        "chain { chain { relu } } @b; relu @b_0_0",
        "chain { relu @aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa } @b",
    };
    char before[300], after[300];
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_text(texts[k]);
        labels(model, before, sizeof before);
        cr_expect_eq(gpp_model_flatten(model, &err), GPP_EINVAL, "%s", texts[k]);
        cr_expect_gt(strlen(err.msg), 20);
        cr_expect_str_eq(labels(model, after, sizeof after), before);
        cr_expect_eq(test_set_input(model, 1, NULL), GPP_OK);
        cr_expect_eq(gpp_model_flatten(model, NULL), GPP_ESTATE);
        gpp_model_free(model);
    }
    cr_expect_eq(gpp_model_flatten(NULL, NULL), GPP_EINVAL);
    gpp_model *empty = test_model_empty();
    cr_expect_eq(gpp_model_flatten(empty, NULL), GPP_OK);
    gpp_model_free(empty);
}

/* --- what layers are given -------------------------------------------------------------------- */

Test(compose, parameters_are_shared_with_an_earlier_layer_of_one_kind)
{
    gpp_model *model = test_model_text("linear out=4 @a; linear out=4 @b; relu; linear out=4 @c; "
                                       "linear out=5 @d; chain { linear out=4; relu } @e");
    static const struct {
        const char *why;
        int layer, with;
        gpp_status status;
        const char *message;
    } cases[] = {
        {"no layer", 6, 0, GPP_ENOENT, "no layer 6"},
        {"no layer to share with", 1, 6, GPP_ENOENT, "no layer 6"},
        {"itself", 1, 1, GPP_EINVAL, "with an earlier layer"},
        {"a later one", 0, 1, GPP_EINVAL, "linear (layer 0, \"a\"): parameters are shared with an"},
        {"another operator", 3, 2, GPP_EINVAL,
         "\"c\") and relu (layer 2, \"2\"): layers that share"},
        {"several operators", 5, 0, GPP_EINVAL, "only layers of one operator"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp_model_share(model, cases[k].layer, cases[k].with, &err), cases[k].status,
                     "%s", cases[k].why);
        cr_expect(strstr(err.msg, cases[k].message), "%s: %s", cases[k].why, err.msg);
    }
    cr_expect_eq(gpp_model_share(NULL, 1, 0, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_share(model, -5, 0, NULL), GPP_OK, "counted from the end");
    cr_expect_eq(gpp_model_share(model, 3, 1, NULL), GPP_OK, "a chain of sharing");
    cr_expect_eq(gpp_model_share(model, 4, 3, NULL), GPP_OK, "shapes are not known yet");
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(test_set_input(model, 1, &err), GPP_ESHAPE);
    cr_expect_str_eq(err.msg,
                     "linear (layer 4, \"d\") cannot share the parameters of linear (layer "
                     "3, \"c\"): their shapes differ");
    cr_expect_eq(gpp_model_share(model, 4, 1, NULL), GPP_OK, "can be put right");
    gpp_model_free(model);

    model = test_model_text("linear out=4; linear out=4; relu; linear out=4");
    cr_assert_eq(gpp_model_share(model, 1, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_share(model, 3, 1, NULL), GPP_OK);
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    const gpp__network *n = &model->network;
    cr_expect(n->node[0].shares == -1 && n->node[1].shares == 0 && n->node[3].shares == 0);
    cr_expect_eq(gpp_model_share(model, 3, 0, NULL), GPP_ESTATE);
    gpp_model_free(model);
}

Test(compose, layers_are_placed_and_replaced)
{
    gpp_layer_info info;
    gpp_model *model = test_model_text("relu; relu"), *copy;
    cr_expect_eq(gpp_model_place(model, 2, "cpu:0", NULL), GPP_ENOENT);
    cr_expect_eq(gpp_model_place(model, 0, "", NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_place(NULL, 0, "cpu", NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_place(model, 0, "cpu:0", NULL), GPP_OK);
    cr_expect_eq(gpp_model_place(model, -1, "cpu:1", NULL), GPP_OK);
    cr_expect_eq(gpp_model_place(model, 1, "cpu:2", NULL), GPP_OK);
    cr_expect_eq(gpp_model_place(model, 0, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp__model_clone(model, &copy, NULL), GPP_OK);
    gpp_model_free(model);
    cr_assert_eq(gpp_model_layer(copy, 1, &info, NULL), GPP_OK);
    cr_expect_str_eq(info.device, "cpu:2");
    cr_assert_eq(gpp_model_layer(copy, 0, &info, NULL), GPP_OK);
    cr_expect_null(info.device);
    gpp_model_free(copy);
}

/* Stands in for the built-in one: what matters is its name and two of its keys. */
typedef struct norm_attr {
    bool track, deferred;
} norm_attr;
#define FLAG(member, otherwise)                                                                    \
    {                                                                                              \
        .name = #member, .type = GPP__KEY_BOOL, .offset = offsetof(norm_attr, member), .count = 1, \
        .max = 1, .fallback = otherwise                                                            \
    }
static const gpp__key norm_keys[] = {FLAG(track, 1), FLAG(deferred, 0), {.name = NULL}};
static gpp_status same_infer(gpp__layer *layer, gpp_error *err)
{
    (void)err;
    layer->out_count = layer->in_count;
    memcpy(layer->out, layer->in, sizeof layer->out);
    return GPP_OK;
}

static const gpp_op norm = {
    .name = "batchnorm", .keys = norm_keys, .attr_size = sizeof(norm_attr), .infer = same_infer};

Test(compose, batch_normalisations_that_track_are_deferred)
{
    const gpp_attr untracked = GPP_INT("track", 0);
    gpp_model *model = test_model_text("relu");
    cr_assert_eq(gpp__model_add_op(model, &norm, NULL, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp__model_add_op(model, &norm, NULL, &untracked, 1, NULL), GPP_OK);
    cr_assert_eq(gpp_model_begin(model, NULL, NULL), GPP_OK);
    cr_assert_eq(gpp__model_add_op(model, &norm, NULL, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_assert_eq(gpp_model_defer_batch_norm(model, NULL), GPP_OK);
    for (int k = 1; k < 4; k++) {
        const norm_attr *part = model->part[k].attr, *node = model->network.node[k].attr;
        cr_expect_eq(part->deferred, k != 2, "layer %d", k);
        cr_expect_eq(node->deferred, k != 2, "layer %d, in the network", k);
    }
    cr_expect_eq(gpp_model_defer_batch_norm(NULL, NULL), GPP_EINVAL);
    gpp_model_free(model);
}

/* --- operators of one's own ------------------------------------------------------------------- */

static gpp_status twin_infer(gpp_signature *s)
{
    s->outputs = 2;
    s->out[0] = s->out[1] = s->in[0];
    return GPP_OK;
}

static gpp_status twin_forward(gpp_call *call)
{
    (void)call;
    return GPP_OK;
}

Test(compose, registered_operators_are_found_before_built_in_ones_and_go_along)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_operator twin = GPP_OPERATOR_INIT;
    twin.name = "twin";
    twin.infer = twin_infer;
    twin.forward = twin_forward;
    gpp_model *model = test_model_text("relu"), *copy, *other = test_model_empty();
    cr_expect_eq(gpp_model_add_text(model, "twin", &err), GPP_ENOENT);
    cr_assert_eq(gpp_model_register(model, &twin, NULL), GPP_OK);
    cr_expect_eq(gpp_model_register(model, &twin, NULL), GPP_EINVAL, "taken");
    twin.name = "chain";
    cr_expect_eq(gpp_model_register(model, &twin, NULL), GPP_EINVAL, "means something in text");
    twin.name = "relu";
    cr_expect_eq(gpp_model_register(model, &twin, NULL), GPP_EINVAL, "built in");
    cr_expect_eq(gpp_model_register(NULL, &twin, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_model_register(model, NULL, NULL), GPP_EINVAL);
    gpp_error_clear(&err);
    cr_expect_eq(gpp_model_add_text(model, "twins", &err), GPP_ENOENT);
    cr_expect(strstr(err.msg, "did you mean \"twin\"? There are twin, linear"), "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(model, "chain { twin; add }; twin; mul", NULL), GPP_OK);
    cr_assert_eq(gpp__model_clone(model, &copy, NULL), GPP_OK);
    cr_assert_eq(gpp_model_append(other, model, "m", NULL), GPP_OK);
    gpp_model_free(model);
    cr_expect_eq(gpp_model_add_text(copy, "twin; add", NULL), GPP_OK);
    cr_expect_eq(gpp_model_add_text(other, "twin; add", NULL), GPP_OK);
    gpp_error_clear(&err);
    cr_expect_eq(test_set_input(copy, 1, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(test_set_input(other, 1, &err), GPP_OK, "%s", err.msg);
    twin.name = "triple";
    cr_expect_eq(gpp_model_register(copy, &twin, NULL), GPP_ESTATE);
    gpp_model_free(copy);
    gpp_model_free(other);
}

Test(compose, a_failed_append_registers_nothing)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *a, *b;
    cr_assert_eq(gpp_model_new(&a, &err), GPP_OK);
    cr_assert_eq(gpp_model_new(&b, &err), GPP_OK);
    cr_assert_eq(gpp_model_register(b, &test_op_muladd, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(a, "relu @same", &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(b, "relu @same", &err), GPP_OK, "%s", err.msg);
    cr_expect_neq(gpp_model_append(a, b, NULL, NULL), GPP_OK);
    cr_expect_eq(gpp_model_register(a, &test_op_muladd, &err), GPP_OK, "%s", err.msg);
    gpp_model_free(a);
    gpp_model_free(b);
}
