/*
 * tests/test_model_vectors.c: every model text of the reference vectors, compiled: the outputs have
 * the shapes that PyTorch gave, and parameters and buffers are those of the file, with its names.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include <gridpipe.h>

#include "graph/model/model.h"
#include "tests/vectors.h"

static gpp_status muladd_infer(gpp_signature *s)
{
    s->outputs = 2;
    s->out[0] = s->out[1] = s->in[0];
    return GPP_OK;
}

static gpp_status muladd_forward(gpp_call *call)
{
    (void)call;
    return GPP_OK;
}

/* x, or x0, x1, ...; without the batch. */
static int inputs_of(const test_vector *v, const char *letter, gpp_shape shape[])
{
    int count = 0;
    for (int k = -1; k < GPP_MAX_TENSORS; k++) {
        char name[16];
        snprintf(name, sizeof name, k < 0 ? "%s" : "%s%d", letter, k);
        const test_array *a = test_vector_find(v, name);
        if (!a)
            continue;
        gpp_shape *s = &shape[count++];
        *s = (gpp_shape){.dtype = a->dtype, .rank = a->rank - 1};
        memcpy(s->dim, a->dim + 1, (size_t)s->rank * sizeof *s->dim);
    }
    return count;
}

/* "param.<label>.<parameter>" of every operator with parameters of its own; returns their
 * number. */
static int check_parameters(const test_vector *v, const gpp__network *n)
{
    int count = 0;
    for (int k = 0; k < n->nodes; k++)
        for (int p = 0; p < n->node[k].param_count; p++, count++) {
            const gpp__param *param = &n->node[k].param[p];
            char name[128];
            snprintf(name, sizeof name, "param.%s.%s", n->node[k].label, param->name);
            const test_array *a = test_vector_find(v, name);
            cr_expect(a, "%s: no %s", v->file, name);
            cr_expect(a && a->count == param->count && a->dtype == param->dtype, "%s: %s", v->file,
                      name);
        }
    return count;
}

static int parameters_in(const test_vector *v)
{
    int count = 0;
    for (int k = 0; k < v->count; k++)
        count += strncmp(v->array[k].name, "param.", 6) == 0;
    return count;
}

static void check_vector(const test_vector *v)
{
    gpp_shape in[GPP_MAX_TENSORS], y[GPP_MAX_TENSORS], out[GPP_MAX_TENSORS];
    gpp_operator muladd = GPP_OPERATOR_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    muladd.name = "muladd";
    muladd.infer = muladd_infer;
    muladd.forward = muladd_forward;
    cr_assert_eq(gpp_model_new(&model, NULL), GPP_OK);
    cr_assert_eq(gpp_model_register(model, &muladd, &err), GPP_OK, "%s", err.msg);
    cr_expect_eq(gpp_model_add_text(model, test_vector_word(v, "model"), &err), GPP_OK, "%s: %s",
                 v->file, err.msg);
    int count = inputs_of(v, "x", in);
    if (!err.code && gpp_model_set_inputs(model, in, count, &err) == GPP_OK) {
        int outputs = inputs_of(v, "y", y);
        cr_expect_eq(gpp_model_outputs(model, out), outputs, "%s", v->file);
        for (int k = 0; k < outputs; k++)
            cr_expect(gpp__desc_equal(&out[k], &y[k]), "%s: output %d", v->file, k);
        cr_expect_eq(check_parameters(v, &model->network), parameters_in(v), "%s", v->file);
    }
    cr_expect_eq(err.code, GPP_OK, "%s: %s", v->file, err.msg);
    gpp_model_free(model);
}

Test(model_vectors, every_model_text_gives_the_shapes_and_parameters_of_its_file)
{
    char **names, why[128];
    int count = test_vectors_list(&names), texts = 0;
    if (count < 0)
        cr_skip_test("there are no reference vectors");
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s", why);
        if (*test_vector_word(v, "model")) {
            check_vector(v);
            texts++;
        }
        test_vector_close(v);
    }
    test_vectors_free(names, count);
    cr_expect_geq(texts, 80, "%d model texts", texts);
}
