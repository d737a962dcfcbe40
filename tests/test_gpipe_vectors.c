/*
 * Whole models against the reference vectors gpipe_*: outputs, losses, every gradient, parameters
 * and statistics after training, for the pipe that the file names; and the same bits for other
 * balances and checkpoint modes.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"
#include "tests/vectors.h"

enum { MOST_PARTS = 64, RANDOM_PIPES = 20 };

/* The references are float64, rounded; float32 sums of a few thousand products are 1e-6 to 5e-6 off
 * the largest value. */
static const double tolerance = 1e-5;

typedef struct pipe_text {
    int balance[MOST_PARTS], parts, chunks;
    gpp_checkpoint mode;
    bool deferred;
} pipe_text;

/* "balance=3,3,6 chunks=4 checkpoint=except_last deferred_batch_norm=0" */
static pipe_text parse_pipe(const char *text)
{
    pipe_text t = {.chunks = 1};
    char mode[32] = "", *at = (char *)strchr(text, '=') + 1;
    int deferred = 0;
    while (t.parts < MOST_PARTS) {
        t.balance[t.parts++] = (int)strtol(at, &at, 10);
        if (*at++ != ',')
            break;
    }
    int read =
        sscanf(at, "chunks=%d checkpoint=%31s deferred_batch_norm=%d", &t.chunks, mode, &deferred);
    cr_assert_eq(read, 3, "%s", text);
    cr_assert_eq(gpp_checkpoint_parse(mode, &t.mode, NULL), GPP_OK);
    t.deferred = deferred;
    return t;
}

static gpp_model *model_of(const test_vector *v)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    const test_array *x = test_vector_find(v, "x");
    cr_assert_eq(gpp_model_new(&model, &err), GPP_OK);
    cr_assert_eq(gpp_model_register(model, &test_op_muladd, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_add_text(model, test_vector_word(v, "model"), &err), GPP_OK, "%s: %s",
                 v->file, err.msg);
    cr_assert_eq(gpp_model_set_input(model, x->dtype, x->rank - 1, x->dim + 1, &err), GPP_OK,
                 "%s: %s", v->file, err.msg);
    return model;
}

static gpp_pipe *pipe_of(const test_vector *v, const gpp_model *model, const pipe_text *t)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.balance = t->balance;
    o.partitions = t->parts;
    o.chunks = t->chunks;
    o.checkpoint = t->mode;
    o.deferred_batch_norm = t->deferred;
    o.loss = test_vector_word(v, "loss");
    o.optimizer = test_vector_word(v, "optimizer");
    cr_assert_eq(gpp_pipe_new(&pipe, model, &o, &err), GPP_OK, "%s: %s", v->file, err.msg);
    return pipe;
}

static const test_array *need(const test_vector *v, const char *kind, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", kind, name);
    const test_array *a = test_vector_find(v, full);
    cr_assert(a, "%s has no %s", v->file, full);
    return a;
}

static void load(const test_vector *v, gpp_pipe *pipe)
{
    gpp_error err = GPP_ERROR_INIT;
    for (int k = 0; k < gpp_pipe_parameters(pipe); k++) {
        gpp_parameter_info info;
        gpp_pipe_parameter(pipe, k, &info, &err);
        const test_array *a = need(v, "param.", info.name);
        cr_assert_eq(gpp_pipe_set(pipe, info.name, a->data, a->count, &err), GPP_OK, "%s", err.msg);
    }
    for (int k = 0; k < gpp_pipe_buffers(pipe); k++) {
        gpp_buffer_info info;
        gpp_pipe_buffer(pipe, k, &info, &err);
        const test_array *a = need(v, "param.", info.name);
        cr_assert_eq(a->dtype, info.dtype);
        cr_assert_eq(gpp_pipe_set_buffer(pipe, info.name, a->data, a->count, &err), GPP_OK, "%s",
                     err.msg);
    }
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
    t.data = test_room((size_t)a->count * gpp_dtype_size(a->dtype));
    return t;
}

/* Where results go, and whether they are compared with the file on the way. */
typedef struct run {
    const test_vector *v;
    gpp_pipe *pipe;
    bool compare;
    int compared;
    test_trace trace;
} run;

static void result(run *r, const char *kind, const char *name, const float *got, int64_t count,
                   double limit)
{
    test_trace_add(&r->trace, got, (size_t)count);
    if (!r->compare)
        return;
    const test_array *want = need(r->v, kind, name);
    cr_assert_eq(want->count, count, "%s%s", kind, name);
    double off = test_distance(got, want->data, count);
    cr_expect(off <= limit, "%s: %s%s is off by %g", r->v->file, kind, name, off);
    r->compared++;
}

static void gradients(run *r)
{
    gpp_error err = GPP_ERROR_INIT;
    const test_vector *v = r->v;
    gpp_tensor x = tensor_of(need(v, "x", "")), target = tensor_of(need(v, "target", ""));
    gpp_tensor y = room_for(need(v, "y", "")), grad_x = room_for(need(v, "x", ""));
    bool wants = test_vector_find(v, "grad.x") != NULL;
    double loss;
    cr_assert_eq(gpp_pipe_gradients(r->pipe, &x, &target, &y, wants ? &grad_x : NULL, &loss, &err),
                 GPP_OK, "%s: %s", v->file, err.msg);
    result(r, "y", "", y.data, test_tensor_count(&y), tolerance);
    if (wants)
        result(r, "grad.x", "", grad_x.data, test_tensor_count(&grad_x), tolerance);
    for (int k = 0; k < gpp_pipe_parameters(r->pipe); k++) {
        gpp_parameter_info info;
        gpp_pipe_parameter(r->pipe, k, &info, &err);
        float *grad = test_room((size_t)info.count * sizeof *grad);
        cr_assert_eq(gpp_pipe_gradient(r->pipe, info.name, grad, info.count, &err), GPP_OK, "%s",
                     err.msg);
        result(r, "grad.", info.name, grad, info.count, tolerance);
        free(grad);
    }
    free(y.data);
    free(grad_x.data);
}

static void after(run *r)
{
    gpp_error err = GPP_ERROR_INIT;
    for (int k = 0; k < gpp_pipe_parameters(r->pipe); k++) {
        gpp_parameter_info info;
        gpp_pipe_parameter(r->pipe, k, &info, &err);
        float *value = test_room((size_t)info.count * sizeof *value);
        cr_assert_eq(gpp_pipe_get(r->pipe, info.name, value, info.count, &err), GPP_OK);
        result(r, "after.", info.name, value, info.count, tolerance);
        free(value);
    }
    for (int k = 0; k < gpp_pipe_buffers(r->pipe); k++) {
        gpp_buffer_info info;
        gpp_pipe_buffer(r->pipe, k, &info, &err);
        float *value = test_room((size_t)info.count * 8);
        cr_assert_eq(gpp_pipe_get_buffer(r->pipe, info.name, value, info.count, &err), GPP_OK);
        if (info.dtype == GPP_F32) {
            result(r, "after.", info.name, value, info.count, tolerance);
        } else if (r->compare) {
            const test_array *want = need(r->v, "after.", info.name);
            cr_expect_eq(*(int64_t *)value, *(int64_t *)want->data, "%s %s", r->v->file, info.name);
            r->compared++;
        }
        free(value);
    }
}

static void train(run *r)
{
    gpp_error err = GPP_ERROR_INIT;
    const test_vector *v = r->v;
    gpp_tensor x = tensor_of(need(v, "x", "")), target = tensor_of(need(v, "target", ""));
    const test_array *losses = need(v, "loss", ""), *eval = test_vector_find(v, "y_eval_after");
    float *loss = test_room((size_t)losses->count * sizeof *loss);
    cr_assert_eq(atoi(test_vector_word(v, "steps")), losses->count);
    for (int64_t s = 0; s < losses->count; s++) {
        double value;
        cr_assert_eq(gpp_pipe_step(r->pipe, &x, &target, NULL, &value, &err), GPP_OK, "%s: %s",
                     v->file, err.msg);
        loss[s] = (float)value;
    }
    result(r, "loss", "", loss, losses->count, tolerance);
    after(r);
    free(loss);
    if (!eval)
        return;
    gpp_tensor y = room_for(eval);
    cr_assert_eq(gpp_pipe_evaluate(r->pipe, &x, NULL, &y, NULL, &err), GPP_OK, "%s", err.msg);
    result(r, "y_eval_after", "", y.data, eval->count, tolerance);
    free(y.data);
}

/* Everything the file has results of, on the pipe `t`. Release the trace. */
static run run_pipe(const test_vector *v, const gpp_model *model, const pipe_text *t, bool compare)
{
    run r = {.v = v, .compare = compare};
    for (int part = 0; part < 2; part++) {
        r.pipe = pipe_of(v, model, t);
        load(v, r.pipe);
        if (part)
            train(&r);
        else
            gradients(&r);
        gpp_pipe_free(r.pipe);
    }
    return r;
}

static bool is_result(const char *name)
{
    return strncmp(name, "param.", 6) != 0 && strcmp(name, "x") != 0 && strcmp(name, "target") != 0;
}

static void expect_nothing_left(const run *r)
{
    int results = 0;
    for (int k = 0; k < r->v->count; k++)
        results += is_result(r->v->array[k].name);
    cr_expect_eq(r->compared, results, "%s: %d of %d arrays were compared", r->v->file, r->compared,
                 results);
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static pipe_text random_pipe(const pipe_text *like, int layers, uint64_t *state)
{
    pipe_text t = *like;
    int most = layers < MOST_PARTS ? layers : MOST_PARTS, left = layers;
    t.parts = 1 + (int)(next(state) % (uint64_t)most);
    t.mode = (gpp_checkpoint)(next(state) % 3);
    for (int j = 0; j < t.parts; j++) {
        int room = left - (t.parts - 1 - j);
        t.balance[j] = j == t.parts - 1 ? left : 1 + (int)(next(state) % (uint64_t)room);
        left -= t.balance[j];
    }
    return t;
}

static void run_file(const char *file)
{
    char why[128] = "";
    test_vector *v = test_vector_open(file, why);
    cr_assert(v, "%s: %s", file, why);
    gpp_model *model = model_of(v);
    pipe_text given = parse_pipe(test_vector_word(v, "pipe"));
    run first = run_pipe(v, model, &given, true);
    expect_nothing_left(&first);
    uint64_t state = 17;
    for (int k = 0; k < RANDOM_PIPES; k++) {
        pipe_text t = random_pipe(&given, gpp_model_layers(model), &state);
        run r = run_pipe(v, model, &t, false);
        cr_expect_eq(test_trace_differs(&first.trace, &r.trace), -1,
                     "%s: pipe %d, %d partitions, first of %d layers, %s: bits differ", file, k,
                     t.parts, t.balance[0], gpp_checkpoint_name(t.mode));
        test_trace_free(&r.trace);
    }
    test_trace_free(&first.trace);
    gpp_model_free(model);
    test_vector_close(v);
}

Test(gpipe_vectors, every_model_agrees_and_no_balance_or_mode_changes_a_bit)
{
    char **names;
    int count = test_vectors_list(&names), models = 0;
    if (count < 0)
        cr_skip_test("no reference vectors");
    gpp_model *model; /* keeps the runtime up between pipes */
    gpp_pipe *idle;
    gpp_model_new(&model, NULL);
    gpp_model_add_text(model, "relu", NULL);
    gpp_model_set_input(model, GPP_F32, 0, NULL, NULL);
    cr_assert_eq(gpp_pipe_new(&idle, model, NULL, NULL), GPP_OK);
    for (int k = 0; k < count; k++)
        if (!strncmp(names[k], "gpipe_", 6)) {
            run_file(names[k]);
            models++;
        }
    cr_expect_geq(models, 12);
    gpp_pipe_free(idle);
    gpp_model_free(model);
    test_vectors_free(names, count);
}
