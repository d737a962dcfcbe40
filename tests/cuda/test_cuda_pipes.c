/*
 * tests/cuda/test_cuda_pipes.c: whole pipes on GPUs: the same numbers as on CPU cores, and the same
 * bits however a model is cut.
 *
 * On the emulation there are two GPUs; in a library whose StarPU has CUDA, those of the machine.
 * Where pipes find none the tests skip themselves.
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>
#include <gridpipe.h>

#include "graph/trace/trace.h"
#include "tests/pipes.h"
#include "tests/support.h"

enum { ROWS = 7, CHANNELS = 4, SIDE = 8, ROW = CHANNELS * SIDE * SIDE, MOST = 1 << 16 };

#define OK(call)                                                                                   \
    do {                                                                                           \
        gpp_status ok_status = (call);                                                             \
        cr_assert_eq(ok_status, GPP_OK, "%s: %s", #call, err.msg);                                 \
    } while (0)

static const char *gpus[] = {"cuda:0", "cuda:1", "cuda:0", "cuda:1"}; /* or one alone */
static const char *const one_gpu[] = {"cuda:0", "cuda:0", "cuda:0", "cuda:0"};
static const char *const cores[] = {"cpu", "cpu", "cpu", "cpu"};

/** What training gives. */
typedef struct outcome {
    double loss[3];
    int count;
    float *value; /* [count] outputs, then parameters and buffers of floats, after three steps */
} outcome;

static gpp_model *model_of(const char *text)
{
    static const int64_t dim[] = {CHANNELS, SIDE, SIDE};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_add_text(m, text, &err));
    OK(gpp_model_set_input(m, GPP_F32, 3, dim, &err));
    return m;
}

static gpp_status try_gpus(int count, gpp_error *err)
{
    gpp_pipe *p;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_model *m = model_of("relu; tanh");
    o.partitions = count;
    o.devices = gpus;
    o.device_count = count;
    gpp_status status = gpp_pipe_new(&p, m, &o, err);
    gpp_model_free(m);
    gpp_pipe_free(p);
    return status;
}

/* Skips the test where pipes find no GPU. */
static void need_gpu(void)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_status status = try_gpus(1, &err);
    if (status == GPP_EUNSUPPORTED || status == GPP_ENODEV)
        cr_skip_test("no GPU for pipes");
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
    if (try_gpus(2, NULL) != GPP_OK)
        gpus[1] = gpus[3] = gpus[0];
}

static gpp_tensor image(float *x)
{
    return (gpp_tensor){x, GPP_F32, 4, {ROWS, CHANNELS, SIDE, SIDE}};
}

static void take(outcome *o, const float *x, int64_t count)
{
    cr_assert(o->count + count <= MOST);
    memcpy(o->value + o->count, x, (size_t)count * sizeof *x);
    o->count += (int)count;
}

static void take_state(outcome *to, gpp_pipe *p)
{
    gpp_error err = GPP_ERROR_INIT;
    float *room = malloc(MOST * sizeof *room);
    for (int k = 0; k < gpp_pipe_parameters(p); k++) {
        gpp_parameter_info i;
        OK(gpp_pipe_parameter(p, k, &i, &err));
        OK(gpp_pipe_get(p, i.name, room, i.count, &err));
        take(to, room, i.count);
        OK(gpp_pipe_gradient(p, i.name, room, i.count, &err));
        take(to, room, i.count);
    }
    for (int k = 0; k < gpp_pipe_buffers(p); k++) {
        gpp_buffer_info i;
        OK(gpp_pipe_buffer(p, k, &i, &err));
        if (i.dtype != GPP_F32)
            continue;
        OK(gpp_pipe_get_buffer(p, i.name, room, i.count, &err));
        take(to, room, i.count);
    }
    free(room);
}

/* Three steps: two submitted at once, one in halves. */
static void run_steps(gpp_pipe *p, const gpp_tensor *y, outcome *to)
{
    gpp_error err = GPP_ERROR_INIT;
    float x[2][ROWS * ROW], *target = calloc(MOST, sizeof *target), *grad = malloc(sizeof x[0]);
    gpp_tensor tx[2] = {image(x[0]), image(x[1])}, t = *y, g = image(grad);
    t.data = target;
    test_fill(x[0], ROWS * ROW, 1, -1, 1);
    test_fill(x[1], ROWS * ROW, 2, -1, 1);
    test_fill(target, MOST, 3, -1, 1);
    OK(gpp_pipe_submit(p, &tx[0], &t, NULL, &err));
    OK(gpp_pipe_submit(p, &tx[1], &t, y, &err));
    OK(gpp_pipe_wait(p, &to->loss[0], &err));
    OK(gpp_pipe_wait(p, &to->loss[1], &err));
    take(to, y->data, test_tensor_count(y));
    OK(gpp_pipe_gradients(p, &tx[0], &t, NULL, &g, &to->loss[2], &err));
    take(to, grad, ROWS * ROW);
    OK(gpp_pipe_update(p, &err));
    OK(gpp_pipe_evaluate(p, &tx[0], NULL, y, NULL, &err));
    take(to, y->data, test_tensor_count(y));
    free(target);
    free(grad);
}

static outcome train(const char *text, gpp_pipe_options o)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p;
    gpp_shape out[GPP_MAX_TENSORS];
    gpp_model *m = model_of(text);
    outcome to = {.value = malloc(MOST * sizeof *to.value)};
    float *y = calloc(MOST, sizeof *y);
    gpp_model_outputs(m, out);
    gpp_tensor ty = {y, GPP_F32, out[0].rank + 1, {ROWS}};
    memcpy(ty.dim + 1, out[0].dim, (size_t)out[0].rank * sizeof *out[0].dim);
    o.device_count = o.devices ? 4 : 0;
    OK(gpp_pipe_new(&p, m, &o, &err));
    run_steps(p, &ty, &to);
    take_state(&to, p);
    gpp_pipe_free(p);
    gpp_model_free(m);
    free(y);
    return to;
}

/* The first number that differs by more than `tolerance` of the largest; -1: none. */
static int differs(const outcome *a, const outcome *b, double tolerance)
{
    double most = 0;
    cr_assert_eq(a->count, b->count);
    if (tolerance == 0)
        return memcmp(a->loss, b->loss, sizeof a->loss)                          ? 0
               : memcmp(a->value, b->value, (size_t)a->count * sizeof *a->value) ? 1
                                                                                 : -1;
    for (int k = 0; k < a->count; k++)
        most = fmax(most, fabs(a->value[k]));
    for (int k = 0; k < a->count; k++)
        if (!(fabs((double)a->value[k] - b->value[k]) <= tolerance * most))
            return k;
    return -1;
}

static gpp_pipe_options usual(int partitions)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.chunks = 4;
    o.loss = "mse reduction=mean";
    o.optimizer = "adam lr=0.01";
    o.devices = gpus;
    o.ascending_backward = true;
    return o;
}

/* Operators between two convolutions and a linear layer: each meets images with a gradient. */
static const char *const operators[] = {
    "relu",
    "conv2d out=6 kernel=3 padding=1",
    "conv2d out=8 kernel=3 padding=1 groups=2",
    "conv_transpose2d out=3 kernel=2 stride=2",
    "batchnorm",
    "groupnorm groups=2",
    "instancenorm",
    "maxpool2d kernel=2",
    "avgpool2d kernel=2",
    "adaptive_avgpool2d out=3",
    "upsample scale=2",
    "dropout p=0.3",
    "dropout2d p=0.3",
    "gelu",
    "pad left=1",
    "softmax dim=1",
    "stash name=a; conv2d out=4 kernel=1; pop name=a mode=add",
    "flatten; layernorm shape=256; linear out=16; silu",
};

static void text_of(const char *operator, char text[512])
{
    snprintf(text, 512,
             "conv2d out=4 kernel=3 padding=1; tanh; %s; tanh; flatten; linear out=5", operator);
}

Test(cuda_pipes, the_cut_the_order_and_what_is_recomputed_change_no_bit)
{
    need_gpu();
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        char text[512];
        text_of(operators[k], text);
        outcome whole = train(text, usual(1));
        for (int way = 0; way < 4; way++) {
            gpp_pipe_options o = usual(way == 3 ? 3 : 2);
            o.schedule = way == 1 ? "zb-h1" : way == 2 ? "1f1b" : NULL;
            o.checkpoint = way % 2 ? GPP_CHECKPOINT_ALWAYS : GPP_CHECKPOINT_NEVER;
            o.devices = way == 2 ? one_gpu : gpus;
            outcome cut = train(text, o);
            cr_expect_eq(differs(&whole, &cut, 0), -1, "%s, way %d", operators[k], way);
            free(cut.value);
        }
        free(whole.value);
    }
}

/* Sums of a few hundred floats in another order, over three updates of Adam, which divides by small
 * numbers: 1e-3 of the largest value. */
Test(cuda_pipes, training_gives_nearly_the_numbers_of_cpu_cores)
{
    need_gpu();
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        char text[512];
        text_of(operators[k], text);
        gpp_pipe_options o = usual(2);
        o.optimizer = "sgd lr=0.05 momentum=0.9";
        outcome there = train(text, o);
        o.devices = cores;
        outcome here = train(text, o);
        for (int s = 0; s < 3; s++)
            cr_expect(fabs(there.loss[s] - here.loss[s]) <= 1e-5 * fabs(here.loss[s]),
                      "%s: loss %d is %.9g, on cores %.9g", operators[k], s, there.loss[s],
                      here.loss[s]);
        int at = differs(&here, &there, 1e-4);
        cr_expect_eq(at, -1, "%s: number %d is %g, on cores %g", operators[k], at,
                     there.value[at < 0 ? 0 : at], here.value[at < 0 ? 0 : at]);
        free(there.value);
        free(here.value);
    }
}

Test(cuda_pipes, a_pipe_may_be_on_gpus_and_cores_at_once)
{
    static const char *const both[] = {"cuda:0", "cpu", "cuda:1", "cuda:0"};
    need_gpu();
    char text[512];
    text_of("batchnorm", text);
    gpp_pipe_options o = usual(3);
    o.optimizer = "sgd lr=0.05";
    o.devices = cores;
    outcome here = train(text, o);
    o.devices = both;
    outcome mixed = train(text, o);
    cr_expect_eq(differs(&here, &mixed, 1e-4), -1);
    free(here.value);
    free(mixed.value);
}

Test(cuda_pipes, every_optimizer_clips_and_counts_as_on_cpu_cores)
{
    need_gpu();
    char text[512];
    text_of("relu", text);
    for (size_t k = 0; gpp_optimizer_name(k); k++) {
        gpp_pipe_options o = usual(2);
        char optimizer[48];
        snprintf(optimizer, sizeof optimizer, "%s lr=0.01", gpp_optimizer_name(k));
        o.optimizer = optimizer;
        o.clip_norm = 0.05;
        o.skip_nonfinite = k % 2;
        outcome there = train(text, o);
        gpp_pipe_options whole = usual(1);
        whole.optimizer = o.optimizer;
        whole.clip_norm = o.clip_norm;
        whole.skip_nonfinite = o.skip_nonfinite;
        outcome one = train(text, whole);
        o.devices = cores;
        outcome here = train(text, o);
        /* Where a gradient is nearly 0, these divide one small number by another. */
        cr_expect_eq(differs(&here, &there, 1e-2), -1, "%s: not near", o.optimizer);
        cr_expect_eq(differs(&one, &there, 0), -1, "%s: other bits", o.optimizer);
        free(there.value);
        free(one.value);
        free(here.value);
    }
}

/* Vectors go in as they are, so the first layer's backward reads the caller's memory again. */
static void first_gradient(const char *device, float gradient[])
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = usual(1);
    gpp_pipe *p;
    gpp_model *m;
    float x[ROWS * 9], target[ROWS * 5];
    gpp_tensor tx = {x, GPP_F32, 2, {ROWS, 9}}, t = {target, GPP_F32, 2, {ROWS, 5}};
    double loss;
    test_fill(x, ROWS * 9, 4, -1, 1);
    test_fill(target, ROWS * 5, 5, -1, 1);
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_add_text(m, "linear out=6 @first; tanh; linear out=5", &err));
    OK(gpp_model_set_input(m, GPP_F32, 1, (int64_t[]){9}, &err));
    o.devices = &device;
    o.device_count = 1;
    OK(gpp_pipe_new(&p, m, &o, &err));
    OK(gpp_pipe_gradients(p, &tx, &t, NULL, NULL, &loss, &err));
    OK(gpp_pipe_gradient(p, "first.weight", gradient, 54, &err));
    gpp_pipe_free(p);
    gpp_model_free(m);
}

Test(cuda_pipes, a_backward_reads_the_callers_rows_of_its_own_micro_batch)
{
    need_gpu();
    float there[54], here[54];
    first_gradient("cuda:0", there);
    first_gradient("cpu", here);
    /* Sums of seven products. */
    cr_expect(test_distance(there, here, 54) <= 1e-5);
}

/* --- failures --------------------------------------------------------------------------------- */

Test(cuda_pipes, a_gpu_that_is_not_there_is_refused)
{
    static const char *const far[] = {"cuda:31"};
    need_gpu();
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_model *m = model_of("relu");
    gpp_pipe *p;
    o.devices = far;
    o.device_count = 1;
    cr_expect_eq(gpp_pipe_new(&p, m, &o, &err), GPP_ENODEV);
    cr_expect(strstr(err.msg, "cuda:31"), "%s", err.msg);
    gpp_model_free(m);
}

static gpp_status same_shape(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static gpp_status copy_here(gpp_call *c)
{
    memcpy(c->out[0].data, c->in[0].data, (size_t)test_tensor_count(&c->in[0]) * sizeof(float));
    return GPP_OK;
}

static gpp_status back_here(gpp_call *c)
{
    if (c->grad_in[0].data)
        memcpy(c->grad_in[0].data, c->grad_out[0].data,
               (size_t)test_tensor_count(&c->in[0]) * sizeof(float));
    return GPP_OK;
}

static gpp_status copy_there(gpp_call *c)
{
    cudaError_t code = cudaMemcpyAsync(c->out[0].data, c->in[0].data,
                                       (size_t)test_tensor_count(&c->in[0]) * sizeof(float),
                                       cudaMemcpyDefault, (cudaStream_t)c->stream);
    return code == cudaSuccess ? GPP_OK : gpp_call_fail(c, GPP_EKERNEL, "a copy failed");
}

static gpp_status back_there(gpp_call *c)
{
    if (c->grad_in[0].data)
        cudaMemcpyAsync(c->grad_in[0].data, c->grad_out[0].data,
                        (size_t)test_tensor_count(&c->in[0]) * sizeof(float), cudaMemcpyDefault,
                        (cudaStream_t)c->stream);
    return GPP_OK;
}

static gpp_status refuse_there(gpp_call *c)
{
    return gpp_call_fail(c, GPP_EKERNEL, "the device has had enough");
}

static gpp_status user_pipe(const gpp_operator *op, gpp_pipe **p, gpp_error *err)
{
    static const int64_t dim[] = {CHANNELS, SIDE, SIDE};
    gpp_model *m;
    gpp_pipe_options o = usual(1);
    o.device_count = 1;
    gpp_status status = gpp_model_new(&m, err);
    if (status == GPP_OK)
        status = gpp_model_register(m, op, err);
    if (status == GPP_OK)
        status = gpp_model_add_text(m, "mine; flatten; linear out=5", err);
    if (status == GPP_OK)
        status = gpp_model_set_input(m, GPP_F32, 3, dim, err);
    if (status == GPP_OK)
        status = gpp_pipe_new(p, m, &o, err);
    gpp_model_free(m);
    return status;
}

static gpp_status step_of(gpp_pipe *p, gpp_error *err)
{
    static float x[ROWS * ROW], t[ROWS * 5];
    gpp_tensor tx = image(x), tt = {t, GPP_F32, 2, {ROWS, 5}};
    double loss;
    return gpp_pipe_step(p, &tx, &tt, NULL, &loss, err);
}

Test(cuda_pipes, an_operator_of_the_callers_runs_where_it_has_functions_for)
{
    need_gpu();
    gpp_operator op = {
        .name = "mine", .infer = same_shape, .forward = copy_here, .backward = back_here};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = NULL;
    cr_expect_eq(user_pipe(&op, &p, &err), GPP_EUNSUPPORTED);
    cr_expect(strstr(err.msg, "layer 0") && strstr(err.msg, "CUDA"), "%s", err.msg);
    gpp_error_clear(&err);
    op.forward_cuda = copy_there;
    op.backward_cuda = back_there;
    OK(user_pipe(&op, &p, &err));
    OK(step_of(p, &err));
    gpp_pipe_free(p);
}

Test(cuda_pipes, a_failure_names_the_layer_and_leaves_the_pipe_usable)
{
    need_gpu();
    gpp_operator op = {.name = "mine",
                       .infer = same_shape,
                       .forward = copy_here,
                       .backward = back_here,
                       .forward_cuda = refuse_there,
                       .backward_cuda = back_there};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = NULL;
    OK(user_pipe(&op, &p, &err));
    for (int again = 0; again < 2; again++) {
        gpp_error_clear(&err);
        cr_expect_eq(step_of(p, &err), GPP_EKERNEL);
        cr_expect(err.layer == 0 && err.partition == 0 && strstr(err.msg, "had enough"), "%s",
                  err.msg);
    }
    gpp_pipe_free(p);
}

Test(cuda_pipes, targets_out_of_range_are_refused_before_anything_runs)
{
    need_gpu();
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = usual(1);
    gpp_pipe *p;
    static float x[ROWS * ROW];
    int64_t classes[ROWS] = {0, 1, 2, 5, 0, 0, 0};
    gpp_tensor tx = image(x), t = {classes, GPP_I64, 1, {ROWS}};
    gpp_model *m = model_of("flatten; linear out=5");
    double loss;
    o.loss = "cross_entropy reduction=mean";
    o.device_count = 1;
    OK(gpp_pipe_new(&p, m, &o, &err));
    cr_expect_eq(gpp_pipe_step(p, &tx, &t, NULL, &loss, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "3") && strstr(err.msg, "5"), "row 3 has class 5: %s", err.msg);
    classes[3] = 4;
    gpp_error_clear(&err);
    OK(gpp_pipe_step(p, &tx, &t, NULL, &loss, &err));
    gpp_pipe_free(p);
    gpp_model_free(m);
}

Test(cuda_pipes, indices_out_of_range_are_refused_before_anything_runs)
{
    need_gpu();
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = usual(1);
    gpp_pipe *p;
    gpp_model *m;
    int64_t index[ROWS * 2] = {0, 1, 2, 0, 9, 0};
    static float y[ROWS * 6];
    gpp_tensor tx = {index, GPP_I64, 2, {ROWS, 2}}, ty = {y, GPP_F32, 3, {ROWS, 2, 3}};
    o.device_count = 1;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_add_text(m, "embedding num=9 dim=3", &err));
    OK(gpp_model_set_input(m, GPP_I64, 1, (int64_t[]){2}, &err));
    OK(gpp_pipe_new(&p, m, &o, &err));
    cr_expect_eq(gpp_pipe_evaluate(p, &tx, NULL, &ty, NULL, &err), GPP_EINVAL);
    cr_expect(err.layer == 0 && strstr(err.msg, "index 9 in row 2, position 0 of the mini-batch"),
              "%s", err.msg);
    index[4] = 8;
    gpp_error_clear(&err);
    OK(gpp_pipe_evaluate(p, &tx, NULL, &ty, NULL, &err));
    gpp_pipe_free(p);
    gpp_model_free(m);
}

Test(cuda_pipes, a_loss_that_is_not_finite_fails_where_that_is_asked_for)
{
    need_gpu();
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = usual(1);
    gpp_pipe *p;
    static float x[ROWS * ROW], t[ROWS * 5];
    gpp_tensor tx = image(x), tt = {t, GPP_F32, 2, {ROWS, 5}};
    gpp_model *m = model_of("flatten; linear out=5");
    double loss;
    o.nan_is_error = true;
    o.device_count = 1;
    OK(gpp_pipe_new(&p, m, &o, &err));
    t[2 * 5] = NAN;
    cr_expect_eq(gpp_pipe_step(p, &tx, &tt, NULL, &loss, &err), GPP_ENUMERIC, "%s", err.msg);
    cr_expect_eq(err.micro_batch, 1, "two rows a micro-batch");
    t[2 * 5] = 0;
    gpp_error_clear(&err);
    OK(gpp_pipe_step(p, &tx, &tt, NULL, &loss, &err));
    gpp_pipe_free(p);
    gpp_model_free(m);
}

/* Steps 0 to 3 in flight together, of which `bad` has gradients that are not finite. */
static void skip_steps(int bad, bool with_bad, outcome *to)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = usual(2);
    gpp_pipe *p;
    static float x[4][ROWS * ROW], t[ROWS * 5];
    gpp_tensor tt = {t, GPP_F32, 2, {ROWS, 5}};
    gpp_model *m = model_of("conv2d out=3 kernel=3; relu; flatten; linear out=5");
    *to = (outcome){.value = malloc(MOST * sizeof *to->value)};
    o.skip_nonfinite = true;
    o.device_count = 2;
    OK(gpp_pipe_new(&p, m, &o, &err));
    for (int k = 0; k < 4; k++) {
        gpp_tensor tx = image(x[k]);
        test_fill(x[k], ROWS * ROW, (uint64_t)k, -1, 1);
        x[k][3 * ROW] = k == bad ? INFINITY : x[k][3 * ROW];
        if (k != bad || with_bad)
            OK(gpp_pipe_submit(p, &tx, &tt, NULL, &err));
    }
    for (int k = 0; k < 4; k++) {
        gpp_step_stats stats;
        if (k == bad && !with_bad)
            continue;
        OK(gpp_pipe_wait(p, NULL, &err));
        OK(gpp_pipe_last_step(p, &stats, &err));
        cr_expect_eq(stats.skipped, k == bad, "step %d", k);
    }
    take_state(to, p);
    gpp_pipe_free(p);
    gpp_model_free(m);
}

/* Adam divides by what depends on the number of updates, so one that is counted and did not take
 * place changes bits. The random generator's steps are counted all the same; nothing draws here. */
Test(cuda_pipes, an_update_that_is_skipped_leaves_no_trace)
{
    need_gpu();
    for (int bad = 0; bad < 3; bad++) {
        outcome with, without;
        skip_steps(bad, true, &with);
        skip_steps(bad, false, &without);
        cr_expect_eq(differs(&with, &without, 0), -1, "step %d", bad);
        free(with.value);
        free(without.value);
    }
}

Test(cuda_pipes, a_task_has_ended_when_those_that_wait_for_it_become_ready)
{
    need_gpu();
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = usual(2);
    gpp_pipe *p;
    gpp_trace *t;
    int before[1024];
    static float x[ROWS * ROW], target[ROWS * 5];
    gpp_tensor tx = image(x), tt = {target, GPP_F32, 2, {ROWS, 5}};
    gpp_model *m = model_of("conv2d out=3 kernel=3; relu; flatten; linear out=5");
    o.device_count = 2;
    OK(gpp_pipe_new(&p, m, &o, &err));
    OK(gpp_pipe_record(p, 8, &err));
    for (int k = 0; k < 8; k++)
        OK(gpp_pipe_step(p, &tx, &tt, NULL, NULL, &err));
    OK(gpp_pipe_trace(p, &t, &err));
    cr_assert_lt(t->tasks, 1024);
    OK(gpp__trace_links(t, before, &err));
    for (int k = 0; k < t->tasks; k++)
        if (before[k] >= 0) /* times are to the nanosecond */
            cr_expect_geq(t->task[k].ready_ms, t->task[before[k]].end_ms - 2e-6, "%c %d %d",
                          t->task[k].kind, t->task[k].micro_batch, t->task[k].partition);
    gpp_trace_free(t);
    gpp_pipe_free(p);
    gpp_model_free(m);
}
