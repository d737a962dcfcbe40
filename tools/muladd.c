/*
 * tools/muladd.c: models as the command makes them. They have one more operator, `muladd`:
 * (a, b) -> (a·b, a+b). Files of reference vectors use it.
 */
#include "tools/tools.h"

static bool alike(const gpp_shape *a, const gpp_shape *b)
{
    bool is = a->dtype == GPP_F32 && b->dtype == GPP_F32 && a->rank == b->rank &&
              a->batch == b->batch && a->rows == b->rows;
    for (int d = 0; is && d < a->rank; d++)
        is = a->dim[d] == b->dim[d];
    return is;
}

static gpp_status infer(gpp_signature *s)
{
    if (s->inputs != 2 || !alike(&s->in[0], &s->in[1]))
        return tool_note(s->err, GPP_ESHAPE,
                         "takes two float32 tensors of one shape, got %d "
                         "tensor%s",
                         s->inputs, s->inputs == 1 ? "" : "s");
    s->outputs = 2;
    s->out[0] = s->out[1] = s->in[0];
    return GPP_OK;
}

static gpp_status forward(gpp_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data;
    float *product = call->out[0].data, *sum = call->out[1].data;
    int64_t count = tool_count(&call->in[0]);
    for (int64_t k = 0; k < count; k++) {
        product[k] = a[k] * b[k];
        sum[k] = a[k] + b[k];
    }
    return GPP_OK;
}

static gpp_status backward(gpp_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data;
    const float *product = call->grad_out[0].data, *sum = call->grad_out[1].data;
    float *grad_a = call->grad_in[0].data, *grad_b = call->grad_in[1].data;
    int64_t count = tool_count(&call->in[0]);
    for (int64_t k = 0; k < count; k++) {
        float p = product ? product[k] : 0, s = sum ? sum[k] : 0;
        if (grad_a)
            grad_a[k] = p * b[k] + s;
        if (grad_b)
            grad_b[k] = p * a[k] + s;
    }
    return GPP_OK;
}

gpp_status tool_model_new(gpp_model **model, const char *text, gpp_error *err)
{
    gpp_operator muladd = GPP_OPERATOR_INIT;
    muladd.name = "muladd";
    muladd.flags = GPP_OP_NEEDS_INPUT;
    muladd.infer = infer;
    muladd.forward = forward;
    muladd.backward = backward;
    gpp_status status = gpp_model_new(model, err);
    if (status == GPP_OK)
        status = gpp_model_register(*model, &muladd, err);
    if (status == GPP_OK && *text)
        status = gpp_model_add_text(*model, text, err);
    if (status != GPP_OK) {
        gpp_model_free(*model);
        *model = NULL;
    }
    return status;
}
