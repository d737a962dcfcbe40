/*
 * tests/test_network.c: what models are compiled to, and where gradients flow in it.
 */
#include <criterion/criterion.h>
#include <string.h>

#include <gridpipe.h>

#include "tests/networks.h"

/* --- networks --------------------------------------------------------------------------------- */

Test(network, layers_become_operators_with_values_between_them)
{
    static const struct {
        const char *text;
        int rank;
        const char *network;
    } cases[] = {
        {"relu; linear out=3", 1, "0:relu<0>1 1:linear<1>2"},
        {"chain { relu; linear out=3; relu }; relu", 1,
         "0:relu<0>1 0:linear<1>2 0:relu<2>3 1:relu<3>4"},
        {"chain { chain { relu }; chain { chain { relu; relu } } }", 1,
         "0:relu<0>1 0:relu<1>2 0:relu<2>3"},
        {"stash name=a; relu; pop name=a mode=add", 1, "0:stash<0>1,2 1:relu<1>3 2:pop<3,2>4"},
        {"stash name=a; relu; pop name=a mode=add { relu; relu }", 1,
         "0:stash<0>1,2 1:relu<1>3 2:unstash<2>4 2:relu<4>5 2:relu<5>6 2:combine<3,6>7"},
        {"stash name=a; chain { relu; pop name=a mode=add { relu }; relu }", 1,
         "0:stash<0>1,2 1:relu<1>3 1:unstash<2>4 1:relu<4>5 1:combine<3,5>6 1:relu<6>7"},
        {"split dim=1 parts=2; add", 1, "0:split<0>1,2 1:add<1,2>3"},
        {"relu; relu", 3, "0:channels_last<0>1 0:relu<1>2 1:relu<2>3 1:channels_first<3>4"},
        {"conv2d out=2 kernel=1; flatten", 3, "0:channels_last<0>1 0:conv2d<1>2 1:flatten<2>3"},
        {"chain { stash name=a; stash name=b; pop name=a mode=add; pop name=b mode=add }", 1,
         "0:stash<0>1,2 0:stash<1>3,4 0:pop<3,2>5 0:pop<5,4>6"},
    };
    char text[1000];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_text(cases[k].text), *copy;
        cr_assert_eq(test_set_input(model, cases[k].rank, &err), GPP_OK, "%s", err.msg);
        cr_expect_str_eq(test_sketch(model, text, sizeof text), cases[k].network, "%s",
                         cases[k].text);
        test_check_network(model, cases[k].text);
        cr_assert_eq(gpp__model_clone(model, &copy, &err), GPP_OK, "%s", err.msg);
        gpp_model_free(model);
        cr_expect_str_eq(test_sketch(copy, text, sizeof text), cases[k].network, "a copy");
        test_check_network(copy, cases[k].text);
        gpp_model_free(copy);
    }
}

Test(network, a_tensor_that_is_taken_repeatedly_is_forked_in_order)
{
    char text[600];
    gpp_model *model = test_model_empty();
    cr_assert_eq(gpp_model_begin(model, "cell", NULL), GPP_OK);
    test_from(model, GPP_REF_INPUT, 0);
    test_add(model, "relu"); /* 0 */
    test_add(model, "relu"); /* 1, of 0 */
    cr_assert_eq(gpp_model_from(model, (gpp_ref[]){{0, 0}, {GPP_REF_INPUT, 0}, {1, 0}}, 3, NULL),
                 GPP_OK);
    test_add(model, "add"); /* 2 */
    cr_assert_eq(gpp_model_end(model, (gpp_ref[]){{2, 0}, {0, 0}}, 2, NULL), GPP_OK);
    test_add(model, "mul");
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_expect_str_eq(test_sketch(model, text, sizeof text),
                     "0:fork<0>1,2 0:relu<1>3 0:fork<3>4,5,6 0:relu<4>7 0:add<5,2,7>8 1:mul<8,6>9");
    test_check_network(model, "forks");
    cr_expect_str_eq(model->network.node[0].label, "cell");
    cr_expect_eq(*(int64_t *)model->network.node[2].attr, 3);
    gpp_model_free(model);
}

Test(network, a_tensor_may_be_taken_any_number_of_times)
{
    enum { TIMES = 40 };
    gpp_model *model = test_model_empty();
    cr_assert_eq(gpp_model_begin(model, NULL, NULL), GPP_OK);
    for (int k = 0; k < TIMES; k++) {
        test_from(model, GPP_REF_INPUT, 0);
        test_add(model, "relu");
    }
    cr_assert_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    test_check_network(model, "many");
    const gpp__network *n = &model->network;
    int relus = 0, unused = 0;
    for (int k = 0; k < n->nodes; k++)
        relus += n->node[k].op != &gpp__op_fork;
    for (int v = 0; v < n->values; v++)
        unused += n->value[v].consumer == GPP__NOBODY;
    cr_expect_eq(relus, TIMES);
    cr_expect_eq(unused, TIMES - 1, "only the last one goes on");
    gpp_model_free(model);
}

Test(network, what_a_layer_gives_on_as_it_is_passes_an_operator_of_it)
{
    char text[400];
    gpp_model *model = test_model_text("split dim=1 parts=2");
    cr_assert_eq(gpp_model_begin(model, NULL, NULL), GPP_OK);
    test_from(model, GPP_REF_INPUT, 1);
    test_add(model, "relu");
    cr_assert_eq(gpp_model_end(model, (gpp_ref[]){{GPP_REF_INPUT, 0}, {0, 0}}, 2, NULL), GPP_OK);
    test_add(model, "add");
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_expect_str_eq(test_sketch(model, text, sizeof text),
                     "0:split<0>1,2 1:relu<2>3 1:pass<1>4 2:add<4,3>5");
    test_check_network(model, "pass");
    gpp_model_free(model);
}

Test(network, a_pop_with_a_block_takes_the_inputs_that_were_chosen)
{
    char text[400];
    gpp_model *model = test_model_text("stash name=a");
    cr_assert_eq(gpp_model_begin(model, NULL, NULL), GPP_OK);
    test_add(model, "relu");
    test_from(model, GPP_REF_INPUT, 0);
    cr_assert_eq(gpp_model_add_text(model, "pop name=a mode=add { relu }", NULL), GPP_OK);
    cr_assert_eq(gpp_model_end(model, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_expect_str_eq(test_sketch(model, text, sizeof text),
                     "0:stash<0>1,2 1:fork<1>3,4 1:relu<3>5 1:unstash<2>6 1:relu<6>7 "
                     "1:combine<4,7>8");
    gpp_model_free(model);
}

/* --- operators that work row-major ------------------------------------------------------------ */

static gpp_status same_infer(gpp__layer *layer, gpp_error *err)
{
    (void)err;
    layer->out_count = layer->in_count;
    memcpy(layer->out, layer->in, sizeof layer->out);
    return GPP_OK;
}

static const gpp_op plain = {.name = "plain", .infer = same_infer, .row_major = true};

Test(network, row_major_operators_stand_between_changes_of_layout)
{
    char text[600];
    const gpp_shape in[] = {{GPP_F32, 3, {4, 6, 6}, 0, 0},
                            {GPP_I64, 3, {4, 6, 6}, 0, 0},
                            {GPP_F32, 3, {1, 6, 6}, 0, 0},
                            {GPP_F32, 3, {6, 1, 1}, 0, 0}};
    gpp_model *model = test_model_empty();
    cr_assert_eq(gpp__model_add_op(model, &plain, NULL, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_set_inputs(model, in, 4, NULL), GPP_OK);
    cr_expect_str_eq(test_sketch(model, text, sizeof text),
                     "0:channels_last<0>4 0:channels_first<4>5 0:plain<5,1,2,3>6,7,8,9 "
                     "0:channels_last<6>10 0:channels_first<10>11",
                     "only images of float32 with a layout to change");
    test_check_network(model, "row-major");
    gpp_model_free(model);
}

/* --- gradients -------------------------------------------------------------------------------- */

static const char *flow_text(const gpp_model *model, bool grad_input, char *out)
{
    uint8_t flow[64];
    cr_assert_leq(model->network.values, 64);
    gpp__network_flow(&model->network, grad_input, flow);
    for (int v = 0; v < model->network.values; v++)
        out[v] = ".lrg"[flow[v]];
    out[model->network.values] = '\0';
    return out;
}

static const gpp_op wall = {.name = "wall", .infer = same_infer};

Test(network, gradients_flow_where_something_learns_and_the_output_is_reached)
{
    static const struct {
        const char *why, *text, *flow, *with_input;
        int frozen; /* operator; -1: none */
    } cases[] = {
        {"from the first parameter on", "relu; linear out=3; relu", "rrgg", "gggg", -1},
        {"no parameters", "relu; relu", "rrr", "ggg", -1},
        {"frozen parameters want nothing", "linear out=3; linear out=3", "rrg", "ggg", 0},
        {"both ways of a stash", "linear out=4; stash name=a; relu; pop name=a mode=add", "rggggg",
         "gggggg", -1},
    };
    char text[80];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *model = test_model_text(cases[k].text);
        cr_assert_eq(test_set_input(model, 1, &err), GPP_OK, "%s", err.msg);
        if (cases[k].frozen >= 0)
            for (int p = 0; p < model->network.node[cases[k].frozen].param_count; p++)
                model->network.node[cases[k].frozen].param[p].frozen = true;
        cr_expect_str_eq(flow_text(model, false, text), cases[k].flow, "%s", cases[k].why);
        cr_expect_str_eq(flow_text(model, true, text), cases[k].with_input, "%s", cases[k].why);
        gpp_model_free(model);
    }
}

Test(network, gradients_end_at_integers_at_walls_and_at_what_nobody_uses)
{
    char text[80];
    gpp_model *model = test_model_text("linear out=4; linear out=4");
    cr_assert_eq(gpp__model_add_op(model, &wall, NULL, NULL, 0, NULL), GPP_OK);
    cr_assert_eq(gpp_model_add_text(model, "linear out=4", NULL), GPP_OK);
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    cr_expect_str_eq(flow_text(model, true, text), "lllrg");
    gpp_model_free(model);

    const gpp_shape in[] = {{GPP_F32, 1, {4}, 0, 0}, {GPP_I64, 1, {4}, 0, 0}};
    model = test_model_empty();
    cr_assert_eq(gpp_model_begin(model, NULL, NULL), GPP_OK);
    test_from(model, GPP_REF_INPUT, 0);
    cr_assert_eq(gpp_model_add_text(model, "linear out=3; linear out=2", NULL), GPP_OK);
    cr_assert_eq(gpp_model_end(model, (gpp_ref[]){{0, 0}, {GPP_REF_INPUT, 1}}, 2, NULL), GPP_OK);
    cr_assert_eq(gpp_model_set_inputs(model, in, 2, NULL), GPP_OK);
    char shape[400];
    cr_expect_str_eq(test_sketch(model, shape, sizeof shape),
                     "0:linear<0>2 0:fork<2>3,4 0:linear<3>5 0:pass<1>6");
    cr_expect_str_eq(flow_text(model, true, text), "g.glgl.", "3 leads to 5, which nobody wants");
    cr_expect_eq(model->network.value[5].consumer, GPP__NOBODY);
    gpp_model_free(model);
}

Test(network, shared_parameters_learn_where_they_belong)
{
    char text[80];
    gpp_model *model = test_model_text("linear out=4; relu; linear out=4");
    cr_assert_eq(gpp_model_share(model, 2, 0, NULL), GPP_OK);
    cr_assert_eq(test_set_input(model, 1, NULL), GPP_OK);
    for (int p = 0; p < 2; p++)
        model->network.node[0].param[p].frozen = true;
    cr_expect_str_eq(flow_text(model, false, text), "rrrr", "frozen there, frozen here");
    gpp_model_free(model);
}

Test(network, a_value_takes_whole_lines_and_a_head_when_it_may_be_absent)
{
    const int64_t batch[GPP__BATCHES] = {3, 5, 0, 0};
    gpp__value v = {.desc = {GPP_F32, 1, {7}, 0, 0}};
    cr_expect_eq(gpp__value_bytes(&v, batch), 128, "84 bytes");
    v.desc.batch = 1;
    cr_expect_eq(gpp__value_bytes(&v, batch), 192, "140 bytes");
    v.desc.batch = 2;
    cr_expect_eq(gpp__value_bytes(&v, batch), 0);
    v.optional = true;
    cr_expect_eq(gpp__value_bytes(&v, batch), GPP__HEAD);
    v.desc.batch = GPP_ROWS_FIXED;
    v.desc.rows = 2;
    cr_expect_eq(gpp__value_bytes(&v, batch), 64 + GPP__HEAD, "56 bytes, whatever the batches");
}
