/*
 * tests/networks.c: building models, what refuses to be one, compiled models as text, and what
 * holds for all of them.
 */
#include "tests/networks.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

gpp_model *test_model_empty(void)
{
    gpp_model *model;
    cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
    return model;
}

gpp_model *test_model_text(const char *text)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = test_model_empty();
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    return model;
}

void test_add(gpp_model *model, const char *op)
{
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_add(model, op, NULL, NULL, 0, &err), GPP_OK, "%s", err.msg);
}

void test_from(gpp_model *model, int op, int tensor)
{
    gpp_error err = GPP_ERROR_INIT;
    cr_assert_eq(gpp_model_from(model, &(gpp_ref){op, tensor}, 1, &err), GPP_OK, "%s", err.msg);
}

gpp_status test_set_input(gpp_model *model, int rank, gpp_error *err)
{
    static const int64_t dim[] = {4, 6, 6};
    return gpp_model_set_input(model, GPP_F32, rank, dim, err);
}

void test_expect_refusals(gpp_model *model, const test_refusal cases[], size_t count)
{
    const int layers = gpp_model_layers(model), parts = model->parts;
    for (size_t k = 0; k < count; k++) {
        gpp_error err = GPP_ERROR_INIT;
        cr_expect_eq(gpp_model_add_text(model, cases[k].text, &err), cases[k].status, "%s: %s",
                     cases[k].why, err.msg);
        cr_expect(strstr(err.msg, cases[k].message), "%s: %s", cases[k].why, err.msg);
        cr_expect(strncmp(err.msg, "line ", 5) == 0, "%s: %s", cases[k].why, err.msg);
        cr_expect(gpp_model_layers(model) == layers && model->parts == parts && !model->open, "%s",
                  cases[k].why);
    }
}

const char *test_sketch(const gpp_model *model, char *out, size_t size)
{
    const gpp__network *n = &model->network;
    size_t used = 0;
    out[0] = '\0';
    for (int k = 0; k < n->nodes; k++) {
        const gpp__layer *l = &n->node[k];
        used += (size_t)snprintf(out + used, size - used, "%s%d:%s", k ? " " : "", l->index,
                                 l->op->name);
        for (int t = 0; t < l->in_count; t++)
            used += (size_t)snprintf(out + used, size - used, "%s%d", t ? "," : "<", l->from[t]);
        for (int t = 0; t < l->out_count; t++)
            used += (size_t)snprintf(out + used, size - used, "%s%d", t ? "," : ">", l->to[t]);
    }
    return out;
}

void test_check_network(const gpp_model *model, const char *why)
{
    const gpp__network *n = &model->network;
    for (int v = 0; v < n->values; v++) {
        const gpp__value *value = &n->value[v];
        int made = value->producer, used = value->consumer;
        if (made == GPP__CALLER)
            cr_expect_eq(n->input[value->producer_slot], v, "%s", why);
        else
            cr_expect_eq(n->node[made].to[value->producer_slot], v, "%s", why);
        if (used == GPP__CALLER)
            cr_expect_eq(n->output[value->consumer_slot], v, "%s", why);
        else if (used != GPP__NOBODY)
            cr_expect(n->node[used].from[value->consumer_slot] == v && used > made, "%s", why);
    }
    for (int k = 0; k < n->nodes; k++)
        for (int t = 0; t < n->node[k].in_count; t++) {
            const gpp__value *value = &n->value[n->node[k].from[t]];
            cr_expect(value->consumer == k && value->consumer_slot == t, "%s", why);
        }
    cr_expect_eq(n->units, model->count, "%s", why);
    cr_expect_eq(n->first[0], 0, "%s", why);
    cr_expect_eq(n->first[n->units], n->nodes, "%s", why);
    for (int u = 0; u < n->units; u++)
        for (int k = n->first[u]; k < n->first[u + 1]; k++)
            cr_expect_eq(n->node[k].index, u, "%s", why);
}
