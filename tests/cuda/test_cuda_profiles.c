/*
 * tests/cuda/test_cuda_profiles.c: what layers cost on a GPU, cuts by it, and steps predicted from
 * it.
 *
 * On the emulation there are two GPUs; in a library whose StarPU has CUDA, those of the machine.
 * Where profiles find none the tests skip themselves.
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <gridpipe.h>

#include "tests/pipes.h"
#include "tests/support.h"

#ifdef GPP_EMULATION
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif
enum {
    CHANNELS = 3,
    SIDE = 8,
    ROWS = 4,
    SLOW_US = 100000 /* as no other layer is, on a busy machine either */
};

#define OK(call)                                                                                   \
    do {                                                                                           \
        gpp_status ok_status = (call);                                                             \
        cr_assert_eq(ok_status, GPP_OK, "%s: %s", #call, err.msg);                                 \
    } while (0)

/* --- models ----------------------------------------------------------------------------------- */

/* What `slow` does, and has done. On a GPU whoever launches late is as slow as who runs long. */
static struct {
    int forwards, backwards, on_stream;
    gpp_status fails;
} slow;

static gpp_status same_shape(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static gpp_status slow_forward(gpp_call *c)
{
    size_t bytes = (size_t)test_tensor_count(&c->in[0]) * sizeof(float);
    slow.forwards++;
    slow.on_stream += c->stream != NULL;
    if (slow.fails)
        return gpp_call_fail(c, slow.fails, "the device has had enough");
    usleep(SLOW_US);
    cudaMemcpyAsync(c->out[0].data, c->in[0].data, bytes, cudaMemcpyDefault,
                    (cudaStream_t)c->stream);
    return GPP_OK;
}

static gpp_status slow_backward(gpp_call *c)
{
    size_t bytes = (size_t)test_tensor_count(&c->in[0]) * sizeof(float);
    slow.backwards++;
    if (c->grad_in[0].data)
        cudaMemcpyAsync(c->grad_in[0].data, c->grad_out[0].data, bytes, cudaMemcpyDefault,
                        (cudaStream_t)c->stream);
    return GPP_OK;
}

static gpp_status nothing(gpp_call *c)
{
    (void)c;
    return GPP_OK;
}

static const gpp_operator slow_op = {.name = "slow",
                                     .infer = same_shape,
                                     .forward = nothing,
                                     .backward = nothing,
                                     .forward_cuda = slow_forward,
                                     .backward_cuda = slow_backward},
                          home_op = {.name = "home",
                                     .infer = same_shape,
                                     .forward = nothing,
                                     .backward = nothing};

static const char small[] = "conv2d out=4 kernel=3; relu; flatten; linear out=5";

static gpp_model *model_of(const char *text)
{
    static const int64_t dim[] = {CHANNELS, SIDE, SIDE};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    memset(&slow, 0, sizeof slow);
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_register(m, &slow_op, &err));
    OK(gpp_model_register(m, &home_op, &err));
    OK(gpp_model_add_text(m, text, &err));
    OK(gpp_model_set_input(m, GPP_F32, 3, dim, &err));
    return m;
}

/* --- profiles --------------------------------------------------------------------------------- */

static gpp_profile_options quick(const char *device)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    o.device = device;
    o.timeout_ms = 60000;
    o.precision = 0;
    o.max_sweeps = 3;
    return o;
}

static gpp_profile *take(const gpp_model *m, int64_t rows, const gpp_profile_options *o)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile *p;
    OK(gpp_profile_new(&p, m, rows, o, &err));
    return p;
}

/* Skips the test where there are fewer. */
static void need_gpus(int count)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = model_of("relu");
    gpp_profile_options o = quick(count > 1 ? "cuda:1" : "cuda:0");
    gpp_profile *p;
    gpp_status status = gpp_profile_new(&p, m, 1, &o, &err);
    gpp_profile_free(p);
    gpp_model_free(m);
    if (status == GPP_EUNSUPPORTED || status == GPP_ENODEV)
        cr_skip_test("fewer than %d GPUs", count);
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
}

static bool is_time(double us)
{
    return isfinite(us) && us >= 0;
}

struct some_model {
    char why[40], text[200];
};

ParameterizedTestParameters(cuda_profiles, every_kind_of_layer_has_times_and_bytes_on_a_gpu)
{
    static struct some_model models[] = {
        {"images, then rows", "conv2d out=4 kernel=3; relu; maxpool2d kernel=2; flatten; linear "
                              "out=5"},
        {"statistics", "conv2d out=4 kernel=1; batchnorm; relu; dropout p=0.5"},
        {"an operator of the user's", "slow; relu"},
        {"layers that are views", "flatten; identity; linear out=3"},
    };
    return cr_make_param_array(struct some_model, models, sizeof models / sizeof *models);
}

ParameterizedTest(struct some_model *c, cuda_profiles,
                  every_kind_of_layer_has_times_and_bytes_on_a_gpu)
{
    need_gpus(1);
    gpp_model *m = model_of(c->text);
    gpp_profile_options o = quick("cuda:0");
    gpp_profile *p = take(m, ROWS, &o);
    double total = 0;
    cr_expect_str_eq(p->device, "cuda:0");
    cr_expect(p->gpu[0] && p->threads == 1 && p->sweeps == 3, "%s", c->why);
    cr_expect(p->bytes_per_us > 0 && p->link_bytes_per_us > 0, "%s", c->why);
    for (int u = 0; u < p->layers; u++) {
        const gpp_layer_profile *l = &p->layer[u];
        cr_expect(is_time(l->forward_us) && is_time(l->recompute_us) && is_time(l->backward_us),
                  "%s, layer %d", c->why, u);
        total += l->forward_us + l->recompute_us + l->backward_us;
        cr_expect(l->output_bytes > 0 || u == p->layers - 1, "%s, layer %d", c->why, u);
    }
    cr_expect_gt(total, 0, "%s", c->why);
    gpp_profile_free(p);
    gpp_model_free(m);
}

/* A forward, and one more that is a recomputation, twice a sweep, and once to warm up. */
Test(cuda_profiles, a_sweep_runs_every_layer_on_the_gpus_stream)
{
    need_gpus(1);
    gpp_model *m = model_of("relu; conv2d out=3 kernel=1; slow; relu");
    gpp_profile_options o = quick("cuda:0");
    gpp_profile *p = take(m, ROWS, &o);
    cr_expect_eq(slow.forwards, 4 * (3 + o.warmup));
    cr_expect_eq(slow.backwards, 2 * (3 + o.warmup));
    cr_expect_eq(slow.on_stream, slow.forwards);
    for (int k = 0; k < p->operators; k++) {
        const gpp_operator_profile *op = &p->op[k];
        bool slow_one = strcmp(op->name, "slow") == 0;
        cr_expect_eq(op->forward_us >= 0.9 * SLOW_US, slow_one, "%s, operator %d: %g us", op->name,
                     k, op->forward_us); /* timers end early by microseconds */
        cr_expect_eq(op->keep_us >= 0.9 * SLOW_US, slow_one, "%s, operator %d: %g us", op->name, k,
                     op->keep_us);
    }
    gpp_profile_free(p);
    gpp_model_free(m);
}

Test(cuda_profiles, layers_are_cut_by_their_times_on_a_gpu)
{
    need_gpus(1);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = model_of("slow; slow; relu; tanh; relu; tanh");
    gpp_profile_options o = quick("cuda:0");
    int balance[2];
    OK(gpp_balance_by_time(m, 2, ROWS, &o, balance, &err));
    cr_expect(balance[0] == 1 && balance[1] == 5, "%d and %d: a slow layer on either side",
              balance[0], balance[1]);
    cr_expect_gt(slow.forwards, 0);
    gpp_model_free(m);
}

Test(cuda_profiles, without_a_device_it_is_a_gpu_where_all_layers_have_functions_for_one)
{
    need_gpus(1);
    gpp_profile_options o = quick(NULL);
    const struct {
        const char *text;
        bool gpu;
    } cases[] = {{small, true}, {"slow; relu", true}, {"relu; home", false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_model *m = model_of(cases[k].text);
        gpp_profile *p = take(m, ROWS, &o);
        cr_expect_eq(strncmp(p->device, "cuda:", 5) == 0, cases[k].gpu, "%s: %s", cases[k].text,
                     p->device);
        cr_expect_eq(p->gpu[0] != 0, cases[k].gpu);
        gpp_profile_free(p);
        gpp_model_free(m);
    }
}

Test(cuda_profiles, gpus_and_cores_run_beside_each_other)
{
    need_gpus(2);
    const struct {
        const char *device, *beside;
    } cases[] = {{"cuda:0", "cuda:1"}, {"cuda:1", "cpu:0"}, {"cpu:0", "cuda:0"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_model *m = model_of(small);
        gpp_profile_options o = quick(cases[k].device);
        o.beside = &cases[k].beside;
        o.beside_count = 1;
        gpp_profile *p = take(m, ROWS, &o);
        cr_expect_str_eq(p->device, cases[k].device);
        cr_expect(p->beside == 1 && p->sweeps == 3);
        gpp_profile_free(p);
        gpp_model_free(m);
    }
}

Test(cuda_profiles, what_cannot_be_measured_is_refused_with_the_reason)
{
    need_gpus(1);
    static const char *const same[] = {"cuda:0"};
    const struct {
        const char *why, *text, *device;
        const char *const *beside;
        gpp_status fails, status;
        const char *says;
    } cases[] = {
        {"a GPU that is not there", small, "cuda:31", NULL, GPP_OK, GPP_ENODEV, "cuda:31"},
        {"no number", small, "cuda:x", NULL, GPP_OK, GPP_EINVAL, "cuda:x"},
        {"twice the same", small, "cuda:0", same, GPP_OK, GPP_EINVAL, "overlaps"},
        {"no functions for a GPU", "relu; home", "cuda:0", NULL, GPP_OK, GPP_EUNSUPPORTED,
         "layer 1"},
        {"a layer that fails", "relu; slow", "cuda:0", NULL, GPP_EKERNEL, GPP_EKERNEL,
         "had enough"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *m = model_of(cases[k].text);
        gpp_profile_options o = quick(cases[k].device);
        gpp_profile *p;
        o.beside = cases[k].beside;
        o.beside_count = o.beside ? 1 : 0;
        slow.fails = cases[k].fails;
        cr_expect_eq(gpp_profile_new(&p, m, ROWS, &o, &err), cases[k].status, "%s: %s",
                     cases[k].why, err.msg);
        cr_expect(strstr(err.msg, cases[k].says), "%s: %s", cases[k].why, err.msg);
        cr_expect_null(p);
        gpp_model_free(m);
    }
}

Test(cuda_profiles, indices_of_a_sample_that_are_out_of_range_are_refused)
{
    need_gpus(1);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m;
    gpp_profile *p;
    gpp_profile_options o = quick("cuda:0");
    int64_t index[] = {0, 1, 2, 0, 9, 0};
    gpp_tensor sample = {index, GPP_I64, 2, {3, 2}};
    o.sample = &sample;
    OK(gpp_model_new(&m, &err));
    OK(gpp_model_add_text(m, "embedding num=9 dim=3; linear out=2", &err));
    OK(gpp_model_set_input(m, GPP_I64, 1, (int64_t[]){2}, &err));
    cr_expect_eq(gpp_profile_new(&p, m, 3, &o, &err), GPP_EINVAL);
    cr_expect(strstr(err.msg, "index 9 in row 2, position 0 of the sample"), "%s", err.msg);
    index[4] = 8;
    gpp_error_clear(&err);
    OK(gpp_profile_new(&p, m, 3, &o, &err));
    gpp_profile_free(p);
    gpp_model_free(m);
}

static size_t memory_left(void)
{
    size_t left = 0, total;
    cudaSetDevice(0);
    cudaMemGetInfo(&left, &total);
    return left;
}

Test(cuda_profiles, memory_of_the_gpu_is_given_back)
{
    need_gpus(1);
    gpp_model *m = model_of(small), *failing = model_of("conv2d out=4 kernel=3; slow");
    gpp_profile_options o = quick("cuda:0");
    gpp_profile *p;
    gpp_profile_free(take(m, ROWS, &o)); /* what libraries keep, they have now */
    size_t before = memory_left();
    gpp_profile_free(take(m, 2 * ROWS, &o));
    slow.fails = GPP_EKERNEL;
    cr_expect_eq(gpp_profile_new(&p, failing, ROWS, &o, NULL), GPP_EKERNEL);
    cr_expect_eq(memory_left(), before);
    gpp_model_free(failing);
    gpp_model_free(m);
}

Test(cuda_profiles, a_model_that_is_too_large_for_the_gpu_is_refused_with_its_bytes)
{
    need_gpus(1);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = model_of("conv2d out=64 kernel=1; tanh; tanh; tanh");
    gpp_profile_options o = quick("cuda:0");
    size_t left = memory_left();
    gpp_profile *p;
    int64_t rows = (int64_t)(left / (64 * SIDE * SIDE * sizeof(float)));
    cr_expect_eq(gpp_profile_new(&p, m, rows, &o, &err), GPP_ENOMEM, "%s", err.msg);
    cr_expect(strstr(err.msg, "bytes on cuda:0"), "%s", err.msg);
    cr_expect_eq(memory_left(), left);
    gpp_model_free(m);
}

/* --- forecasts -------------------------------------------------------------------------------- */

static const char *const two_gpus[] = {"cuda:0", "cuda:1", "cuda:0"};
static const char *const gpu_and_core[] = {"cuda:0", "cpu:0"};
static const char *const core[] = {"cpu:0"};

static gpp_pipe_options pipe_on(const char *const devices[], int partitions)
{
    static const int balance[] = {2, 2};
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.balance = partitions == 2 ? balance : NULL;
    o.devices = devices;
    o.device_count = partitions;
    o.chunks = 2;
    o.batch = 2 * ROWS;
    o.loss = "mse";
    o.optimizer = "adam";
    return o;
}

/* A profile whose operators take times that are easily told apart. */
static gpp_profile *made_up(const gpp_model *m, const char *device)
{
    gpp_profile_options o = quick(device);
    gpp_profile *p = take(m, ROWS, &o);
    for (int k = 0; k < p->operators; k++) {
        p->op[k].forward_us = 100;
        p->op[k].keep_us = 200;
        p->op[k].backward_us = 400;
    }
    p->bytes_per_us = p->link_bytes_per_us = 1e9; /* bytes take no time */
    return p;
}

static gpp_forecast *foresee(const gpp_model *m, const gpp_pipe_options *pipe,
                             const gpp_forecast_options *how)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_forecast *f;
    OK(gpp_forecast_new(&f, m, pipe, how, &err));
    return f;
}

Test(cuda_profiles, a_forecast_has_the_bytes_of_the_pipe_on_its_gpus)
{
    need_gpus(2);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = model_of(small);
    gpp_pipe_options o = pipe_on(two_gpus, 2);
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    gpp_pipe *pipe;
    static const int one[] = {0,
                              0}; /* emulated GPUs have no memory of their own in StarPU's eyes */
    how.timeout_ms = 1;
    how.node_of = EMULATED ? one : NULL;
    gpp_forecast *f = foresee(m, &o, &how);
    OK(gpp_pipe_new(&pipe, m, &o, &err));
    cr_assert_eq(f->devices, 2);
    for (int d = 0; d < 2; d++) {
        size_t planned, peak;
        OK(gpp_pipe_memory(pipe, d, &planned, &peak, &err));
        cr_expect_str_eq(f->device[d].name, two_gpus[d]);
        cr_expect_eq(f->device[d].bytes, planned, "%s: %zu, the pipe %zu", two_gpus[d],
                     f->device[d].bytes, planned);
    }
    cr_expect_gt(f->step_ms, 0);
    gpp_pipe_free(pipe);
    gpp_forecast_free(f);
    gpp_model_free(m);
}

/* What crosses from GPU to GPU takes as long as what is known of the link says. */
Test(cuda_profiles, links_of_gpus_are_as_fast_as_measured_or_said)
{
    need_gpus(2);
    gpp_model *m = model_of(small);
    gpp_pipe_options o = pipe_on(two_gpus, 2);
    gpp_profile *p = made_up(m, "cuda:0");
    const double fast = 1e6, snail = 0.1;
    const struct {
        const char *why;
        double measured, said, gpus;
        bool slow;
    } cases[] = {
        {"measured fast", fast, 0, 0, false},
        {"measured slow", snail, 0, 0, true},
        {"said to be fast", snail, fast, 0, false},
        {"said to be slow", fast, snail, 0, true},
        {"from GPU to GPU as fast", snail, fast, fast, false},
        {"from GPU to GPU slow", fast, fast, snail, true},
        {"not measured, not said: not slow", 0, 0, 0, false},
    };
    double bytes = (double)p->layer[1].output_bytes;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
        how.profile = (const gpp_profile *const *)&p;
        how.profiles = 1;
        how.bytes_per_us = cases[k].said;
        how.gpu_bytes_per_us = cases[k].gpus;
        p->link_bytes_per_us = cases[k].measured;
        gpp_forecast *f = foresee(m, &o, &how);
        bool slow_link = f->step_ms > 1e-3 * bytes / snail;
        cr_expect_eq(slow_link, cases[k].slow, "%s: %g ms for %g bytes", cases[k].why, f->step_ms,
                     bytes);
        gpp_forecast_free(f);
    }
    gpp_profile_free(p);
    gpp_model_free(m);
}

/* Also with one GPU. */
Test(cuda_profiles, the_callers_tensors_come_from_the_host)
{
    need_gpus(1);
    gpp_model *m = model_of(small);
    gpp_pipe_options o = pipe_on(two_gpus, 1);
    gpp_profile *p = made_up(m, "cuda:0");
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    double bytes = 2.0 * ROWS * CHANNELS * SIDE * SIDE * sizeof(float), step[2];
    how.profile = (const gpp_profile *const *)&p;
    how.profiles = 1;
    for (int slowly = 0; slowly < 2; slowly++) {
        p->link_bytes_per_us = slowly ? 0.1 : 1e9;
        gpp_forecast *f = foresee(m, &o, &how);
        step[slowly] = f->step_ms;
        gpp_forecast_free(f);
    }
    cr_expect_gt(step[1], 1e-3 * bytes / 0.1, "%g ms, %g ms for %g bytes", step[0], step[1], bytes);
    cr_expect_lt(step[0], 1e-3 * bytes / 0.1);
    gpp_profile_free(p);
    gpp_model_free(m);
}

/* Twice the times on the GPU: of its partition alone. */
Test(cuda_profiles, each_device_of_a_mixed_pipe_goes_by_the_profile_of_its_kind)
{
    need_gpus(1);
    gpp_model *m = model_of(small);
    gpp_pipe_options o = pipe_on(gpu_and_core, 2);
    gpp_profile *both[] = {made_up(m, "cpu:0"), made_up(m, "cuda:0")};
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    how.profile = (const gpp_profile *const *)both;
    how.profiles = 2;
    gpp_forecast *f = foresee(m, &o, &how);
    for (int k = 0; k < both[1]->operators; k++)
        both[1]->op[k].backward_us *= 2;
    gpp_forecast *slower = foresee(m, &o, &how);
    cr_expect_float_eq(slower->cell_ms[2][0], 2 * f->cell_ms[2][0], 1e-3 * f->cell_ms[2][0],
                       "but for the time of bytes");
    cr_expect_eq(slower->cell_ms[2][1], f->cell_ms[2][1]);
    gpp_forecast_free(slower);
    gpp_forecast_free(f);
    gpp_profile_free(both[0]);
    gpp_profile_free(both[1]);
    gpp_model_free(m);
}

Test(cuda_profiles, profiles_of_other_devices_are_refused)
{
    need_gpus(1);
    gpp_model *m = model_of(small);
    gpp_profile *on_core = made_up(m, "cpu:0"), *on_gpu = made_up(m, "cuda:0");
    gpp_profile *other_gpu = made_up(m, "cuda:0"), *other_math = made_up(m, "cuda:0");
    strcpy(other_gpu->gpu, "another GPU");
    other_math->cuda_math = GPP_MATH_TF32;
    const struct {
        const char *why;
        const char *const *devices;
        int partitions;
        const gpp_profile *profile;
        const char *says;
    } cases[] = {
        {"a GPU by a core", two_gpus, 1, on_core, "no profile was taken on a GPU"},
        {"a core by a GPU", core, 1, on_gpu, "no profile was taken on 1 cores"},
        {"both by a core", gpu_and_core, 2, on_core, "no profile was taken on a GPU"},
        {"both by a GPU", gpu_and_core, 2, on_gpu, "no profile was taken on 1 cores"},
        {"another GPU", two_gpus, 1, other_gpu, "another GPU"},
        {"other products", two_gpus, 1, other_math, "cuda_math 1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_pipe_options o = pipe_on(cases[k].devices, cases[k].partitions);
        gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
        gpp_forecast *f;
        how.profile = &cases[k].profile;
        how.profiles = 1;
        cr_expect_eq(gpp_forecast_new(&f, m, &o, &how, &err), GPP_EINVAL, "%s", cases[k].why);
        cr_expect(strstr(err.msg, cases[k].says), "%s: %s", cases[k].why, err.msg);
    }
    gpp_profile_free(on_core);
    gpp_profile_free(on_gpu);
    gpp_profile_free(other_gpu);
    gpp_profile_free(other_math);
    gpp_model_free(m);
}

/* --- plans ------------------------------------------------------------------------------------ */

static gpp_plan_options few(void)
{
    gpp_plan_options o = GPP_PLAN_OPTIONS_INIT;
    o.max_chunks = 2;
    o.max_partitions = 2;
    o.forecast.timeout_ms = 1;
    return o;
}

static bool all_on_gpus(const gpp_candidate *c)
{
    for (int j = 0; j < c->partitions; j++)
        if (strncmp(c->device[j], "cuda:", 5) != 0)
            return false;
    return true;
}

Test(cuda_profiles, the_planner_finds_a_pipe_on_gpus_that_runs)
{
    need_gpus(2);
    const struct {
        const char *why;
        const char *const *devices;
        bool gpus;
    } cases[] = {
        {"listed", two_gpus, true}, {"not listed", NULL, true}, {"mixed", gpu_and_core, false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_model *m = model_of(small);
        gpp_pipe_options o = pipe_on(cases[k].devices, 2);
        gpp_plan_options how = few();
        gpp_plan_table *t;
        gpp_pipe *pipe;
        int most = 0;
        o.balance = NULL;
        OK(gpp_plan_search(&t, m, &o, &how, &err));
        for (int c = 0; c < t->candidates; c++) {
            most = t->candidate[c].partitions > most ? t->candidate[c].partitions : most;
            cr_expect(!cases[k].gpus || all_on_gpus(&t->candidate[c]), "%s", cases[k].why);
        }
        cr_expect_eq(most, 2, "%s: two devices were tried", cases[k].why);
        for (int q = 0; cases[k].gpus && q < t->profiles; q++)
            cr_expect(t->profile[q]->gpu[0] && t->profile[q]->beside == 0);
        OK(gpp_plan_apply(t, t->best, &o, &err));
        OK(gpp_pipe_new(&pipe, m, &o, &err));
        gpp_pipe_free(pipe);
        gpp_plan_free(t);
        gpp_model_free(m);
    }
}

/* Of as many GPUs as there are, and for all numbers of rows. */
Test(cuda_profiles, a_profile_of_one_gpu_serves_the_planner_for_all)
{
    need_gpus(2);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = model_of(small);
    gpp_pipe_options o = pipe_on(two_gpus, 2);
    gpp_plan_options how = few();
    gpp_plan_table *t;
    gpp_profile *p[] = {made_up(m, "cuda:1"), made_up(m, "cuda:0")};
    p[0]->rows[0] = 2 * ROWS;
    o.balance = NULL;
    how.forecast.profile = (const gpp_profile *const *)p;
    how.forecast.profiles = 2;
    OK(gpp_plan_search(&t, m, &o, &how, &err));
    cr_expect_eq(t->profiles, 0, "%d were taken", t->profiles);
    gpp_plan_free(t);
    how.forecast.profile = NULL;
    how.forecast.profiles = 0;
    OK(gpp_plan_search(&t, m, &o, &how, &err));
    cr_expect(t->profiles == 1 || t->profiles == 2, "one for each number of rows, at most: %d",
              t->profiles);
    gpp_plan_free(t);
    gpp_profile_free(p[0]);
    gpp_profile_free(p[1]);
    gpp_model_free(m);
}

Test(cuda_profiles, no_candidate_that_fits_needs_more_than_a_gpu_has)
{
    if (!EMULATED)
        cr_skip_test("only an emulated GPU can be made small");
    need_gpus(2);
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *m = model_of(small);
    gpp_pipe_options o = pipe_on(two_gpus, 2);
    gpp_plan_options how = few();
    gpp_plan_table *t;
    size_t least = SIZE_MAX, most = 0;
    o.balance = NULL;
    OK(gpp_plan_search(&t, m, &o, &how, &err));
    for (int c = 0; c < t->candidates; c++) {
        least = t->candidate[c].most_bytes < least ? t->candidate[c].most_bytes : least;
        most = t->candidate[c].most_bytes > most ? t->candidate[c].most_bytes : most;
    }
    gpp_plan_free(t);
    cr_assert_lt(least, most);
    char bytes[24];
    size_t limit = least + (most - least) / 2;
    snprintf(bytes, sizeof bytes, "%zu", limit);
    setenv("GPP_EMULATION_MEMORY", bytes, 1);
    OK(gpp_plan_search(&t, m, &o, &how, &err));
    cr_expect_eq(t->memory_limit, limit);
    cr_expect_leq(t->candidate[t->best].most_bytes, limit);
    for (int c = 0; c < t->candidates; c++)
        cr_expect_eq(t->candidate[c].fits, t->candidate[c].most_bytes <= limit);
    gpp_plan_free(t);
    unsetenv("GPP_EMULATION_MEMORY");
    gpp_model_free(m);
}

Test(cuda_profiles, a_budget_without_a_limit_keeps_what_a_gpu_has_room_for)
{
    if (!EMULATED)
        cr_skip_test("only an emulated GPU can be made small");
    need_gpus(1);
    gpp_model *m = model_of("tanh; sigmoid; tanh; sigmoid; tanh; sigmoid; flatten; linear out=5");
    gpp_pipe_options o = pipe_on(two_gpus, 1);
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    gpp_profile *p = made_up(m, "cuda:0");
    how.profile = (const gpp_profile *const *)&p;
    how.profiles = 1;
    o.chunks = 4;
    o.checkpoint = GPP_CHECKPOINT_BUDGET;
    gpp_forecast *all = foresee(m, &o, &how);
    o.checkpoint = GPP_CHECKPOINT_ALWAYS;
    gpp_forecast *least = foresee(m, &o, &how);
    char bytes[24];
    size_t limit = (all->device[0].bytes + least->device[0].bytes) / 2;
    cr_assert_gt(all->device[0].bytes, limit);
    snprintf(bytes, sizeof bytes, "%zu", limit);
    setenv("GPP_EMULATION_MEMORY", bytes, 1);
    o.checkpoint = GPP_CHECKPOINT_BUDGET;
    gpp_forecast *some = foresee(m, &o, &how);
    cr_expect_leq(some->device[0].bytes, limit);
    cr_expect_lt(some->step_ms, least->step_ms, "it keeps a part");
    unsetenv("GPP_EMULATION_MEMORY");
    gpp_forecast_free(some);
    gpp_forecast_free(least);
    gpp_forecast_free(all);
    gpp_profile_free(p);
    gpp_model_free(m);
}
