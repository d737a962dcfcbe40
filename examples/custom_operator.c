/*
 * examples/custom_operator.c: an operator of one's own, trained in a pipe.
 *
 * `gate` takes two tensors a and b of F features and gives two:
 *
 *     g = 1 / (1 + exp(-scale·w·a))     w: F learned weights; g is saved for the backward
 *     out 0 = g·b                       out 1 = a + b
 *
 * It also stashes a under the name "input" for a later layer, here a `pop` in another partition.
 * The task is that of examples/readme.c: which points have x·y > 0.
 */
#include <gridpipe.h>
#include <math.h>
#include <stdio.h>

enum { SCALE }; /* the operator's keys, in the order of the table below */

/* Shapes: two equal tensors come in. This runs once, when the model's input is set. */
static gpp_status gate_infer(gpp_signature *s)
{
    const gpp_shape *a = &s->in[0], *b = &s->in[1];
    if (s->inputs != 2 || a->dtype != GPP_F32 || a->rank != 1 || b->dtype != GPP_F32 ||
        b->rank != 1 || a->dim[0] != b->dim[0] || a->batch != b->batch) {
        snprintf(s->err->msg, sizeof s->err->msg,
                 "takes two float32 tensors of as many features, got %d tensors", s->inputs);
        return GPP_ESHAPE;
    }
    s->outputs = 2;
    s->out[0] = s->out[1] = s->stash[0] = *a;
    s->params = 1;
    s->param[0] = (gpp_param_shape){"weight", 1, {a->dim[0]}};
    s->saved = 1;
    s->saving[0] = *a;
    return GPP_OK;
}

static void gate_init(const gpp_signature *s, int index, uint64_t seed, int64_t count,
                      float value[])
{
    (void)s, (void)index, (void)seed;
    for (int64_t k = 0; k < count; k++)
        value[k] = 1;
}

/* Elements of a tensor (rows, features). */
static int64_t elements(const gpp_tensor *t)
{
    return t->dim[0] * t->dim[1];
}

static gpp_status gate_forward(gpp_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data, *w = call->param[0].data;
    float *gated = call->out[0].data, *sum = call->out[1].data;
    float *stashed = gpp_call_stash(call, "input")->data;
    float *saved = call->saving[0].data; /* NULL when no backward will come */
    int64_t features = call->in[0].dim[1];
    float scale = (float)call->attr[SCALE][0];
    for (int64_t k = 0; k < elements(&call->in[0]); k++) {
        float g = 1 / (1 + expf(-scale * w[k % features] * a[k]));
        if (!isfinite(g))
            return gpp_call_fail(call, GPP_ENUMERIC, "row %lld: the gate is not finite",
                                 (long long)(call->row0 + k / features));
        gated[k] = g * b[k];
        sum[k] = a[k] + b[k];
        stashed[k] = a[k];
        if (saved)
            saved[k] = g;
    }
    return GPP_OK;
}

/* The data of a gradient is NULL where the gradient is zero (outputs) or not wanted (inputs,
 * parameters). Gradients of inputs are zero when the function is called. Gradients of parameters
 * have to be added to what is there: other micro-batches may have come before. */
static gpp_status gate_backward(gpp_call *call)
{
    const float *a = call->in[0].data, *b = call->in[1].data, *w = call->param[0].data;
    const float *g = call->saving[0].data, *grad_gated = call->grad_out[0].data;
    const float *grad_sum = call->grad_out[1].data;
    const float *grad_stash = gpp_call_grad_stash(call, "input")->data;
    float *grad_a = call->grad_in[0].data, *grad_b = call->grad_in[1].data;
    float *grad_w = call->grad_param[0].data, scale = (float)call->attr[SCALE][0];
    int64_t features = call->in[0].dim[1];
    for (int64_t k = 0; k < elements(&call->in[0]); k++) {
        float d0 = grad_gated ? grad_gated[k] : 0, d1 = grad_sum ? grad_sum[k] : 0;
        float inner = d0 * b[k] * g[k] * (1 - g[k]) * scale; /* gradient of w·a */
        if (grad_a)
            grad_a[k] = inner * w[k % features] + d1 + (grad_stash ? grad_stash[k] : 0);
        if (grad_b)
            grad_b[k] = d0 * g[k] + d1;
        if (grad_w)
            grad_w[k % features] += inner * a[k];
    }
    return GPP_OK;
}

static const gpp_operator_key gate_keys[] = {
    [SCALE] = {"scale", 1, false, 1, 0.01, 100}, /* one number from 0.01 to 100; default 1 */
    {NULL, 0, false, 0, 0, 0},
};
static const char *const gate_stashes[] = {"input", NULL};

static gpp_operator gate(void)
{
    gpp_operator op = GPP_OPERATOR_INIT;
    op.name = "gate";
    op.keys = gate_keys;
    op.stash = gate_stashes;
    op.flags = GPP_OP_NEEDS_INPUT;
    op.infer = gate_infer;
    op.init = gate_init;
    op.forward = gate_forward;
    op.backward = gate_backward;
    return op;
}

/* Three partitions. The skip goes from the first to the last, and the second never sees it. */
static gpp_status make_pipe(gpp_pipe **pipe, gpp_error *err)
{
    static const char text[] = "linear out=32 @embed\n"
                               "split dim=1 parts=2     # one tensor becomes two\n"
                               "gate scale=2 @gate\n"
                               "cat dim=1               # and two become one\n"
                               "linear out=16; relu\n"
                               "pop mode=add name=input # what gate has stashed\n"
                               "linear out=2 @classify\n";
    static const int balance[] = {3, 3, 2};
    gpp_pipe_options options = GPP_PIPE_OPTIONS_INIT;
    gpp_model *model = NULL;
    gpp_operator op = gate();
    options.partitions = 3;
    options.balance = balance;
    options.chunks = 4;
    options.loss = "cross_entropy";
    options.optimizer = "sgd lr=0.05 momentum=0.9";
    if (gpp_model_new(&model, err) == GPP_OK && gpp_model_register(model, &op, err) == GPP_OK &&
        gpp_model_add_text(model, text, err) == GPP_OK &&
        gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){2}, err) == GPP_OK)
        gpp_pipe_new(pipe, model, &options, err);
    gpp_model_free(model);
    return err->code;
}

enum { ROWS = 64 };

static void make_points(float x[ROWS][2], int64_t target[ROWS])
{
    for (int k = 0; k < ROWS; k++) {
        x[k][0] = (float)(k % 8) - 3.5f;
        x[k][1] = (float)(k - k % 8) / 8 - 3.5f;
        target[k] = x[k][0] * x[k][1] > 0;
    }
}

int main(void)
{
    float x[ROWS][2], y[ROWS][2], weight[16];
    int64_t target[ROWS];
    gpp_tensor in = {x, GPP_F32, 2, {ROWS, 2}}, want = {target, GPP_I64, 1, {ROWS}};
    gpp_tensor out = {y, GPP_F32, 2, {ROWS, 2}};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe = NULL;
    double loss = 0;
    int right = 0;
    make_points(x, target);
    if (make_pipe(&pipe, &err) != GPP_OK)
        goto end;
    for (int step = 1; step <= 200; step++) {
        if (gpp_pipe_step(pipe, &in, &want, NULL, &loss, &err) != GPP_OK)
            goto end;
        if (step == 1 || step % 50 == 0)
            printf("step %3d: loss %.4f\n", step, loss);
    }
    if (gpp_pipe_evaluate(pipe, &in, NULL, &out, NULL, &err) != GPP_OK ||
        gpp_pipe_get(pipe, "gate.weight", weight, 16, &err) != GPP_OK)
        goto end;
    for (int k = 0; k < ROWS; k++)
        right += (y[k][1] > y[k][0]) == (target[k] == 1);
    printf("%d of %d points right; the first weight of the gate is %.3f\n", right, ROWS, weight[0]);
end:
    if (err.code)
        fprintf(stderr, "%s: %s\n", gpp_status_name(err.code), err.msg);
    gpp_pipe_free(pipe);
    return err.code != GPP_OK;
}
