/*
 * Every reference vector through a real pipe, one test for each file: layers as models of one
 * layer, losses on a model without layers, optimizers on an operator whose gradients are the
 * file's, models as the file says. Every array of results must be met within 1e-5 of its largest
 * value.
 */
#ifdef GPP__WITH_CUDA
#include <cuda_runtime.h>
#endif
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/ranks.h"
#include "tests/support.h"
#include "tests/vectors.h"

TEST_STARPU_LOSES_REQUESTS

#define OK(call) cr_assert_eq((call), GPP_OK, "%s: %s", v->file, err.msg)

/* The references are float64, rounded; float32 sums of a few thousand products are 1e-6 to 5e-6 off
 * the largest value. */
static const double tolerance = 1e-5;

static _Thread_local gpp_error err = GPP_ERROR_INIT;
static _Thread_local bool is_first = true; /* of the ranks that have the same results */
static _Thread_local int replicated;       /* pipes with replicas so far */
static int compared;

static void result(const test_vector *v, const char *name, const float *got, int64_t count)
{
    if (!is_first)
        return;
    const test_array *want = test_vector_find(v, name);
    cr_assert(want && want->count == count, "%s: %s", v->file, name);
    double off = test_distance(got, want->data, count);
    cr_expect(off <= tolerance, "%s: %s is off by %g", v->file, name, off);
    compared++;
}

static gpp_tensor tensor_of(const test_array *a)
{
    gpp_tensor t = {a->data, a->dtype, a->rank, {0}};
    memcpy(t.dim, a->dim, sizeof t.dim);
    return t;
}

static gpp_tensor room_for(const test_array *a)
{
    gpp_tensor t = tensor_of(a);
    t.data = test_room((size_t)a->count * sizeof(float));
    return t;
}

/* Inputs x, or x0 and x1. */
static int inputs_of(const test_vector *v, const test_array *x[2])
{
    x[0] = test_vector_find(v, "x") ? test_vector_find(v, "x") : test_vector_find(v, "x0");
    x[1] = test_vector_find(v, "x1");
    return x[1] ? 2 : 1;
}

static gpp_model *model_of(const test_vector *v, const char *text)
{
    const test_array *x[2];
    gpp_shape in[2] = {{0}};
    gpp_model *m;
    int count = inputs_of(v, x);
    for (int t = 0; t < count; t++) {
        in[t].dtype = x[t]->dtype;
        in[t].rank = x[t]->rank - 1;
        memcpy(in[t].dim, x[t]->dim + 1, (size_t)in[t].rank * sizeof(int64_t));
    }
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_register(m, &test_op_muladd, &err));
    if (*text)
        OK(gpp_model_add_text(m, text, &err));
    OK(gpp_model_set_inputs(m, in, count, &err));
    return m;
}

static void load(const test_vector *v, gpp_pipe *p)
{
    char name[128];
    for (int k = 0; k < gpp_pipe_parameters(p); k++) {
        gpp_parameter_info info;
        OK(gpp_pipe_parameter(p, k, &info, &err));
        snprintf(name, sizeof name, "param.%s", info.name);
        const test_array *a = test_vector_find(v, name);
        cr_assert(a, "%s has no %s", v->file, name);
        OK(gpp_pipe_set(p, info.name, a->data, a->count, &err));
    }
    for (int k = 0; k < gpp_pipe_buffers(p); k++) {
        gpp_buffer_info info;
        OK(gpp_pipe_buffer(p, k, &info, &err));
        snprintf(name, sizeof name, "param.%s", info.name);
        const test_array *a = test_vector_find(v, name);
        cr_assert(a && a->dtype == info.dtype, "%s: %s", v->file, name);
        OK(gpp_pipe_set_buffer(p, info.name, a->data, a->count, &err));
    }
}

static void gradients(const test_vector *v, gpp_pipe *p)
{
    for (int k = 0; k < gpp_pipe_parameters(p); k++) {
        char name[128];
        gpp_parameter_info info;
        OK(gpp_pipe_parameter(p, k, &info, &err));
        float *grad = test_room((size_t)info.count * sizeof *grad);
        OK(gpp_pipe_gradient(p, info.name, grad, info.count, &err));
        snprintf(name, sizeof name, "grad.%s", info.name);
        result(v, name, grad, info.count);
        free(grad);
    }
}

/* Whatever the file says of the state afterwards. */
static void after(const test_vector *v, gpp_pipe *p)
{
    for (int k = 0; k < v->count; k++) {
        const test_array *a = &v->array[k];
        if (strncmp(a->name, "after.", 6) != 0)
            continue;
        float *value = test_room((size_t)a->count * 8);
        if (gpp_pipe_get(p, a->name + 6, value, a->count, NULL) != GPP_OK)
            OK(gpp_pipe_get_buffer(p, a->name + 6, value, a->count, &err));
        if (a->dtype == GPP_F32)
            result(v, a->name, value, a->count);
        else
            cr_expect_eq(*(int64_t *)value, *(int64_t *)a->data, "%s: %s", v->file, a->name);
        compared += a->dtype == GPP_I64 && is_first;
        free(value);
    }
}

/* --- kinds ------------------------------------------------------------------------------------ */

static void run_layer(const test_vector *v)
{
    static const char *const names[2][2] = {{"grad.x", NULL}, {"grad.x0", "grad.x1"}};
    char text[512];
    const test_array *a[2], *wanted = test_vector_find(v, "y");
    int count = inputs_of(v, a);
    gpp_tensor x[2], grad_x[2], y = room_for(wanted);
    gpp_tensor grad_y = tensor_of(test_vector_find(v, "grad_y"));
    snprintf(text, sizeof text, "%s", test_vector_word(v, "model"));
    gpp_model *m = model_of(v, text);
    gpp_pipe *p;
    OK(gpp_pipe_new(&p, m, NULL, &err));
    load(v, p);
    OK(gpp_pipe_set_training(p, strcmp(test_vector_word(v, "training"), "0") != 0, &err));
    for (int t = 0; t < count; t++) {
        x[t] = tensor_of(a[t]);
        grad_x[t] = room_for(a[t]);
    }
    bool floats = a[0]->dtype == GPP_F32;
    OK(gpp_pipe_forward(p, x, &y, NULL, &err));
    OK(gpp_pipe_backward(p, -1, x, &grad_y, floats ? grad_x : NULL, &err));
    result(v, "y", y.data, wanted->count);
    for (int t = 0; t < count; t++) {
        if (floats)
            result(v, names[count - 1][t], grad_x[t].data, a[t]->count);
        free(grad_x[t].data);
    }
    gradients(v, p);
    after(v, p);
    free(y.data);
    gpp_pipe_free(p);
    gpp_model_free(m);
}

static void run_loss(const test_vector *v)
{
    char spec[128];
    const test_array *x = test_vector_find(v, "x"), *weight = test_vector_find(v, "weight"),
                     *loss = test_vector_find(v, "loss");
    gpp_tensor in = tensor_of(x), target = tensor_of(test_vector_find(v, "target")),
               grad = room_for(x), each = tensor_of(test_vector_find(v, "target"));
    snprintf(spec, sizeof spec, "%s", test_vector_word(v, "loss"));
    if (strstr(spec, " layout=")) /* a remark on shapes */
        *strstr(spec, " layout=") = '\0';
    gpp_model *m = model_of(v, "");
    gpp_pipe *p;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.chunks = 3;
    o.loss = spec;
    o.class_weights = weight ? weight->data : NULL;
    o.class_weight_count = weight ? (int)weight->count : 0;
    OK(gpp_pipe_new(&p, m, &o, &err));
    float *values = test_room((size_t)loss->count * sizeof *values);
    double total;
    each.dtype = GPP_F32;
    each.data = values;
    bool none = strstr(spec, "reduction=none") != NULL;
    if (none)
        OK(gpp_pipe_keep_losses(p, &each, &err));
    OK(gpp_pipe_gradients(p, &in, &target, NULL, &grad, &total, &err));
    if (!none)
        values[0] = (float)total;
    result(v, "loss", values, loss->count);
    result(v, "grad.x", grad.data, x->count);
    free(values);
    free(grad.data);
    gpp_pipe_free(p);
    gpp_model_free(m);
}

/* An operator with the parameters p0, p1, ... of a file, whose gradients are the file's of step
 * `step`; y = 0. */
typedef struct feed {
    const test_vector *v;
    int count, step;
    const test_array *p[4], *g[4];
} feed;

static gpp_status feed_infer(gpp_signature *s)
{
    const feed *f = s->user;
    s->outputs = 1;
    s->out[0] = s->in[0];
    for (s->params = 0; s->params < f->count; s->params++) {
        gpp_param_shape *q = &s->param[s->params];
        snprintf(q->name, sizeof q->name, "p%d", s->params);
        q->rank = f->p[s->params]->rank;
        memcpy(q->dim, f->p[s->params]->dim, sizeof q->dim);
    }
    return GPP_OK;
}

static gpp_status feed_forward(gpp_call *c)
{
    memset(c->out[0].data, 0, (size_t)test_tensor_count(&c->out[0]) * sizeof(float));
    return GPP_OK;
}

static gpp_status feed_backward(gpp_call *c)
{
    const feed *f = c->user;
    for (int k = 0; k < f->count; k++) {
        int64_t count = test_tensor_count(&c->param[k]);
        const float *g = (const float *)f->g[k]->data + (int64_t)f->step * count;
        for (int64_t e = 0; e < count; e++)
            ((float *)c->grad_param[k].data)[e] += g[e];
    }
    return GPP_OK;
}

#ifdef GPP__WITH_CUDA
static gpp_status feed_forward_cuda(gpp_call *c)
{
    size_t bytes = (size_t)test_tensor_count(&c->out[0]) * sizeof(float);
    cudaMemsetAsync(c->out[0].data, 0, bytes, (cudaStream_t)c->stream);
    return GPP_OK;
}

/* By way of the host, which waits. */
static gpp_status feed_backward_cuda(gpp_call *c)
{
    const feed *f = c->user;
    for (int k = 0; k < f->count; k++) {
        int64_t count = test_tensor_count(&c->param[k]);
        size_t bytes = (size_t)count * sizeof(float);
        const float *g = (const float *)f->g[k]->data + (int64_t)f->step * count;
        float *sum = malloc(bytes + 1);
        cudaMemcpyAsync(sum, c->grad_param[k].data, bytes, cudaMemcpyDefault, c->stream);
        cudaStreamSynchronize(c->stream);
        for (int64_t e = 0; e < count; e++)
            sum[e] += g[e];
        cudaMemcpyAsync(c->grad_param[k].data, sum, bytes, cudaMemcpyDefault, c->stream);
        cudaStreamSynchronize(c->stream);
        free(sum);
    }
    return GPP_OK;
}
#endif

static gpp_pipe *feed_pipe(feed *f, gpp_pipe_options o)
{
    const test_vector *v = f->v;
    const gpp_operator op = {.name = "feed",
                             .infer = feed_infer,
                             .forward = feed_forward,
                             .backward = feed_backward,
#ifdef GPP__WITH_CUDA
                             .forward_cuda = feed_forward_cuda,
                             .backward_cuda = feed_backward_cuda,
#endif
                             .user = f};
    gpp_model *m;
    gpp_pipe *p;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_register(m, &op, &err));
    OK(gpp_model_add_text(m, "feed @f", &err));
    OK(gpp_model_set_input(m, GPP_F32, 0, NULL, &err));
    o.loss = "mse";
    OK(gpp_pipe_new(&p, m, &o, &err));
    gpp_model_free(m);
    return p;
}

static void feed_step(const feed *f, gpp_pipe *p)
{
    const test_vector *v = f->v;
    float x = 0, target = 1;
    gpp_tensor in = {&x, GPP_F32, 1, {1}}, want = {&target, GPP_F32, 1, {1}};
    OK(gpp_pipe_step(p, &in, &want, NULL, NULL, &err));
}

static void find_feed(const test_vector *v, const char *value, feed *f)
{
    char name[16];
    for (f->v = v; f->count < 4; f->count++) {
        snprintf(name, sizeof name, "%s%d", value, f->count);
        f->p[f->count] = test_vector_find(v, name);
        snprintf(name, sizeof name, "g%d", f->count);
        f->g[f->count] = test_vector_find(v, name);
        if (!f->p[f->count])
            return;
    }
}

static void run_optimizer(const test_vector *v)
{
    feed f = {0};
    find_feed(v, "p", &f);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.optimizer = test_vector_word(v, "optimizer");
    gpp_pipe *p = feed_pipe(&f, o);
    int64_t steps = f.g[0]->dim[0];
    float *trace[4];
    char name[16];
    for (int k = 0; k < f.count; k++) {
        trace[k] = test_room((size_t)(steps * f.p[k]->count) * sizeof(float));
        snprintf(name, sizeof name, "f.p%d", k);
        OK(gpp_pipe_set(p, name, f.p[k]->data, f.p[k]->count, &err));
    }
    for (f.step = 0; f.step < steps; f.step++) {
        feed_step(&f, p);
        for (int k = 0; k < f.count; k++) {
            int64_t count = f.p[k]->count;
            snprintf(name, sizeof name, "f.p%d", k);
            OK(gpp_pipe_get(p, name, trace[k] + f.step * count, count, &err));
        }
    }
    for (int k = 0; k < f.count; k++) {
        snprintf(name, sizeof name, "p%d_after", k);
        result(v, name, trace[k], steps * f.p[k]->count);
        free(trace[k]);
    }
    gpp_pipe_free(p);
}

/* What gradients are scaled to is seen by a step of sgd with rate 1 from 0. */
static void run_clipping(const test_vector *v)
{
    feed f = {0};
    gpp_step_stats stats;
    find_feed(v, "g", &f);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.optimizer = "sgd lr=1";
    cr_assert_eq(
        sscanf(test_vector_word(v, "optimizer"), "clip_grad_norm max_norm=%lf", &o.clip_norm), 1);
    gpp_pipe *p = feed_pipe(&f, o);
    for (int k = 0; k < f.count; k++) {
        char name[16];
        float *zero = calloc((size_t)f.p[k]->count, sizeof *zero);
        snprintf(name, sizeof name, "f.p%d", k);
        OK(gpp_pipe_set(p, name, zero, f.p[k]->count, &err));
        free(zero);
    }
    feed_step(&f, p);
    OK(gpp_pipe_last_step(p, &stats, &err));
    result(v, "norm", &(float){(float)stats.grad_norm}, 1);
    for (int k = 0; k < f.count; k++) {
        char name[16];
        int64_t count = f.p[k]->count;
        float *value = test_room((size_t)count * sizeof *value);
        snprintf(name, sizeof name, "f.p%d", k);
        OK(gpp_pipe_get(p, name, value, count, &err));
        for (int64_t e = 0; e < count; e++)
            value[e] = -value[e];
        snprintf(name, sizeof name, "g%d_after", k);
        result(v, name, value, count);
        free(value);
    }
    gpp_pipe_free(p);
}

/* "balance=3,3,6 chunks=4 checkpoint=except_last deferred_batch_norm=0". Replicas share the
 * micro-batches, if they can be shared evenly. */
static gpp_pipe *model_pipe(const test_vector *v, const gpp_model *m, gpp_comm *comm, int replicas)
{
    int balance[64], parts = 0, deferred;
    char mode[32], *at = (char *)strchr(test_vector_word(v, "pipe"), '=') + 1;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_pipe *p;
    do
        balance[parts++] = (int)strtol(at, &at, 10);
    while (*at++ == ',' && parts < 64);
    cr_assert_eq(
        sscanf(at, "chunks=%d checkpoint=%31s deferred_batch_norm=%d", &o.chunks, mode, &deferred),
        3);
    OK(gpp_checkpoint_parse(mode, &o.checkpoint, &err));
    o.balance = balance;
    o.partitions = parts;
    o.deferred_batch_norm = deferred;
    replicas = replicas > 1 && o.chunks % 3 == 0 ? 3 : replicas;
    if (replicas > 1 && o.chunks % replicas == 0) {
        o.replicas = replicas;
        o.chunks /= replicas;
        o.shard_optimizer = true;
        replicated++;
    }
    o.loss = test_vector_word(v, "loss");
    o.optimizer = test_vector_word(v, "optimizer");
    o.comm = comm;
    gpp_status status = gpp_pipe_new(&p, m, &o, &err);
    if (status == GPP_EUNSUPPORTED)
        cr_skip_test("an operator of the test's own has no functions for CUDA");
    OK(status);
    load(v, p);
    return p;
}

/* What a model case is run with: where several ranks run it, they share the tensors. */
typedef struct model_case {
    const test_vector *v;
    gpp_model *model;
    gpp_tensor x, target, y, grad_x;
    bool floats;
    int replicas;
} model_case;

static void run_model_on(gpp_comm *comm, void *arg)
{
    const model_case *c = arg;
    const test_vector *v = c->v;
    const test_array *losses = test_vector_find(v, "loss"),
                     *eval = test_vector_find(v, "y_eval_after");
    is_first = gpp_comm_rank(comm) <= 0;
    gpp_pipe *p = model_pipe(v, c->model, comm, c->replicas);
    OK(gpp_pipe_gradients(p, &c->x, &c->target, &c->y, c->floats ? &c->grad_x : NULL, NULL, &err));
    result(v, "y", c->y.data, test_tensor_count(&c->y));
    if (c->floats)
        result(v, "grad.x", c->grad_x.data, test_tensor_count(&c->grad_x));
    gradients(v, p);
    gpp_pipe_free(p);
    p = model_pipe(v, c->model, comm, c->replicas);
    float *loss = test_room((size_t)losses->count * sizeof *loss);
    for (int64_t s = 0; s < losses->count; s++) {
        double value;
        OK(gpp_pipe_step(p, &c->x, &c->target, NULL, &value, &err));
        loss[s] = (float)value;
    }
    result(v, "loss", loss, losses->count);
    after(v, p);
    if (eval) {
        OK(gpp_pipe_evaluate(p, &c->x, NULL, &c->y, NULL, &err));
        result(v, "y_eval_after", c->y.data, eval->count);
    }
    free(loss);
    gpp_pipe_free(p);
}

/* @param ranks  1: this process alone */
static void run_model(const test_vector *v, int ranks, int replicas)
{
    const test_array *x = test_vector_find(v, "x");
    model_case c = {v,
                    model_of(v, test_vector_word(v, "model")),
                    tensor_of(x),
                    tensor_of(test_vector_find(v, "target")),
                    room_for(test_vector_find(v, "y")),
                    room_for(x),
                    test_vector_find(v, "grad.x") != NULL,
                    replicas};
    if (ranks == 1)
        run_model_on(NULL, &c);
    else
        test_on_ranks(ranks, run_model_on, &c);
    free(c.y.data);
    free(c.grad_x.data);
    gpp_model_free(c.model);
}

/* --- all of them ------------------------------------------------------------------------------ */

typedef struct file_name {
    char name[64]; /* "": there is no folder */
} file_name;

ParameterizedTestParameters(vectors, every_file_is_met_by_a_pipe)
{
    static file_name files[256];
    char **names;
    int count = test_vectors_list(&names);
    for (int k = 0; k < count && k < 256; k++)
        snprintf(files[k].name, sizeof files[k].name, "%s", names[k]);
    if (count > 0)
        test_vectors_free(names, count);
    return cr_make_param_array(file_name, files, count > 0 ? (size_t)count : 1);
}

/* Arrays that are given; the others are results. */
static bool is_given(const test_vector *v, const char *name)
{
    static const char *const exact[] = {"x", "x0", "x1", "target", "grad_y", "weight"};
    bool optimizer = !strcmp(test_vector_word(v, "kind"), "optimizer");
    for (size_t k = 0; k < sizeof exact / sizeof *exact; k++)
        if (!strcmp(name, exact[k]))
            return true;
    return !strncmp(name, "param.", 6) || (optimizer && strlen(name) == 2);
}

ParameterizedTest(file_name *file, vectors, every_file_is_met_by_a_pipe)
{
    char why[128] = "";
    int results = 0;
    if (!*file->name)
        cr_skip_test("no reference vectors");
    test_vector *v = test_vector_open(file->name, why);
    cr_assert(v, "%s: %s", file->name, why);
    const char *kind = test_vector_word(v, "kind");
    if (!strcmp(kind, "layer"))
        run_layer(v);
    else if (!strcmp(kind, "loss"))
        run_loss(v);
    else if (!strcmp(kind, "model"))
        run_model(v, 1, 1);
    else if (!strncmp(test_vector_word(v, "optimizer"), "clip_grad_norm", 14))
        run_clipping(v);
    else
        run_optimizer(v);
    for (int k = 0; k < v->count; k++)
        results += !is_given(v, v->array[k].name);
    cr_expect_eq(compared, results, "%s: %d of %d arrays of results were compared", v->file,
                 compared, results);
    test_vector_close(v);
}

#ifndef GPP__WITH_CUDA
Test(vectors, every_model_is_met_by_a_pipe_over_ranks)
{
    char **names, why[128] = "";
    int count = test_vectors_list(&names), models = 0;
    if (count <= 0)
        cr_skip_test("no reference vectors");
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        bool model = !strcmp(test_vector_word(v, "kind"), "model");
        for (int ranks = 2; ranks <= 3 && model; ranks++)
            run_model(v, ranks, 1);
        models += model;
        test_vector_close(v);
    }
    test_vectors_free(names, count);
    cr_expect_gt(models, 0);
}
#endif

Test(vectors, every_model_is_met_by_replicas)
{
    char **names, why[128] = "";
    int count = test_vectors_list(&names);
    if (count <= 0)
        cr_skip_test("no reference vectors");
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        cr_assert(v, "%s: %s", names[k], why);
        if (!strcmp(test_vector_word(v, "kind"), "model"))
            run_model(v, 1, 2);
        test_vector_close(v);
    }
    test_vectors_free(names, count);
    cr_expect_gt(replicated, 10, "%d pipes with replicas", replicated);
}
