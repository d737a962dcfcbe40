/*
 * Forecasts: bytes are those that a pipe then allocates; times follow from the profile by the
 * formulas of the schedule. Profiles here have made-up times, so nothing depends on the machine.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

TestSuite(forecast, .init = test_keep_runtime, .fini = test_release_runtime);

static const test_model chain = {
    "eight equal linears",
    "linear out=16; linear out=16; linear out=16; linear out=16; linear out=16; linear out=16; "
    "linear out=16; linear out=16",
    1,
    {16},
    "mse"};
static const test_model skips = {
    "skips across and inside partitions",
    "conv2d out=4 kernel=3 padding=1; relu; stash name=a; maxpool2d kernel=2; "
    "conv2d out=8 kernel=3 padding=1; relu; stash name=b; maxpool2d kernel=2; "
    "conv2d out=8 kernel=3 padding=1; relu; upsample scale=2; pop name=b mode=cat dim=1; "
    "conv2d out=4 kernel=3 padding=1; relu; upsample scale=2; pop name=a mode=add; "
    "conv2d out=1 kernel=1",
    3,
    {2, 8, 8},
    "mse"};

/* A profile of `rows` rows with one time each for every operator, on one core. */
static gpp_profile *made_up(const gpp_model *model, int64_t rows, double forward, double keep,
                            double backward)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile *p;
    o.device = "cpu:0";
    o.max_sweeps = 1;
    o.warmup = 0;
    o.timeout_ms = 0;
    cr_assert_eq(gpp_profile_new(&p, model, rows, &o, &err), GPP_OK, "%s", err.msg);
    for (int k = 0; k < p->operators; k++) {
        p->op[k].forward_us = forward;
        p->op[k].keep_us = keep;
        p->op[k].backward_us = backward;
    }
    p->bytes_per_us = 0; /* losses and updates take no time */
    return p;
}

static gpp_pipe_options options(const test_model *m, int n, int chunks, gpp_checkpoint mode)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = n;
    o.chunks = chunks;
    o.checkpoint = mode;
    o.batch = 16;
    o.loss = m->loss;
    o.optimizer = "sgd lr=0.1 momentum=0.9";
    return o;
}

static const char *const cores[] = {"cpu:0", "cpu:0"};

/* On one core each: two devices where the machine has them, else both on one. */
static gpp_forecast *forecast(const gpp_model *model, gpp_pipe_options o, gpp_profile *p,
                              gpp_forecast_options *how)
{
    gpp_forecast_options defaults = GPP_FORECAST_OPTIONS_INIT;
    gpp_error err = GPP_ERROR_INIT;
    gpp_forecast *f;
    how = how ? how : &defaults;
    const gpp_profile *one[] = {p};
    how->profile = one;
    how->profiles = 1;
    cr_assert_eq(gpp_forecast_new(&f, model, &o, how, &err), GPP_OK, "%s", err.msg);
    return f;
}

static void expect_bytes(const test_model *m, const gpp_model *model, gpp_profile *p, int n,
                         int chunks, gpp_checkpoint mode)
{
    gpp_pipe_options o = options(m, n, chunks, mode);
    o.devices = cores;
    o.device_count = n;
    o.clip_norm = n == 2 ? 0.1 : 0;
    if (mode == GPP_CHECKPOINT_BUDGET)
        o.activation_limit = 70000;
    gpp_forecast *f = forecast(model, o, p, NULL);
    gpp_pipe *pipe = test_pipe_new(m, &o);
    test_trace t = {0};
    test_train(pipe, 2, (int64_t[]){16, 16}, &t);
    for (int d = 0; d < f->devices; d++) {
        size_t planned, peak;
        gpp_pipe_memory(pipe, d, &planned, &peak, NULL);
        /* test_train asks for outputs, whose copies to the caller take no memory of the device. */
        cr_expect_eq(f->device[d].bytes, planned, "%s, n=%d m=%d %s: %zu foretold, %zu planned",
                     m->why, n, chunks, gpp_checkpoint_name(mode), f->device[d].bytes, planned);
        cr_expect_leq(fabs((double)f->device[d].bytes - (double)peak), 0.05 * (double)peak);
        cr_expect_leq(f->device[d].live_bytes, f->device[d].bytes);
    }
    test_trace_free(&t);
    gpp_pipe_free(pipe);
    gpp_forecast_free(f);
}

Test(forecast, bytes_are_those_of_the_pipe)
{
    static const int chunks[] = {1, 4, 16};
    static const test_model *const models[] = {&skips, &chain};
    for (int k = 0; k < 2; k++) {
        gpp_model *model = test_model_new(models[k]);
        gpp_profile *p = made_up(model, 4, 1, 1, 2);
        for (int mode = 0; mode <= GPP_CHECKPOINT_BUDGET; mode++)
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
                for (int n = 1; n <= 2; n++)
                    expect_bytes(models[k], model, p, n, chunks[c], (gpp_checkpoint)mode);
        gpp_profile_free(p);
        gpp_model_free(model);
    }
}

/* Milliseconds of m micro-batches on one device by mode, with F, R, B milliseconds each. */
static double alone(gpp_checkpoint mode, int m, double f, double keep, double r, double b)
{
    return mode == GPP_CHECKPOINT_NEVER    ? m * (keep + b)
           : mode == GPP_CHECKPOINT_ALWAYS ? m * (f + r + b)
                                           : (m - 1) * (f + r) + keep + m * b;
}

Test(forecast, one_partition_takes_the_sum_of_its_operators)
{
    gpp_model *model = test_model_new(&chain);
    gpp_profile *p = made_up(model, 4, 1000, 1500, 2000);
    for (int mode = 0; mode < 3; mode++) {
        gpp_pipe_options o = options(&chain, 1, 4, (gpp_checkpoint)mode);
        gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
        o.devices = cores;
        o.device_count = 1;
        how.task_us = 0;
        gpp_forecast *f = forecast(model, o, p, &how);
        /* 8 linears; the last one's output is not made again, nothing reads it. */
        double expected = alone((gpp_checkpoint)mode, 4, 8, 12, 7 * 1.5, 16);
        cr_expect_float_eq(f->step_ms, expected, 1e-9, "%s: %g ms, expected %g",
                           gpp_checkpoint_name((gpp_checkpoint)mode), f->step_ms, expected);
        cr_expect_float_eq(f->bubble, 0, 1e-9);
        cr_expect_eq(f->micro_batches, 4);
        gpp_forecast_free(f);
    }
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(forecast, the_runtime_takes_its_time_for_each_task)
{
    gpp_model *model = test_model_new(&chain);
    gpp_profile *p = made_up(model, 4, 1000, 1000, 1000);
    gpp_pipe_options o = options(&chain, 1, 4, GPP_CHECKPOINT_NEVER);
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    o.devices = cores;
    o.device_count = 1;
    how.task_us = 0;
    gpp_forecast *bare = forecast(model, o, p, &how);
    how.task_us = 100;
    gpp_forecast *f = forecast(model, o, p, &how);
    cr_expect_eq(f->tasks, 4 + 4 + 4 + 1, "F, L, B of each and U: %d tasks", f->tasks);
    cr_expect_float_eq(f->step_ms - bare->step_ms, 0.1 * f->tasks, 1e-9);
    gpp_forecast_free(bare);
    gpp_forecast_free(f);
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(forecast, times_for_other_rows_lie_on_the_line_through_two_profiles)
{
    /* clang-format off */
    static const struct {
        int64_t a, b, rows;
        double us_a, us_b, expected;
    } cases[] = {
        {.a = 2, .b = 8, .rows = 4, .us_a = 100, .us_b = 400, .expected = 200},
        {.a = 2, .b = 8, .rows = 4, .us_a = 100, .us_b = 160, .expected = 120},
        {.a = 8, .b = 2, .rows = 4, .us_a = 160, .us_b = 100, .expected = 120},
        {.a = 8, .b = 16, .rows = 4, .us_a = 160, .us_b = 200, .expected = 80},
        {.a = 1, .b = 2, .rows = 4, .us_a = 30, .us_b = 50, .expected = 100},
        {.a = 4, .b = 16, .rows = 4, .us_a = 77, .us_b = 1000, .expected = 77},
    };
    /* clang-format on */
    gpp_model *model = test_model_new(&chain);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_profile *a = made_up(model, cases[k].a, 1, cases[k].us_a, 1),
                    *b = made_up(model, cases[k].b, 1, cases[k].us_b, 1);
        const gpp_profile *both[] = {a, b};
        gpp_pipe_options o = options(&chain, 1, 4, GPP_CHECKPOINT_NEVER);
        gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
        gpp_forecast *f;
        o.devices = cores;
        o.device_count = 1;
        how.profile = both;
        how.profiles = 2;
        cr_assert_eq(gpp_forecast_new(&f, model, &o, &how, NULL), GPP_OK);
        cr_expect_float_eq(f->cell_ms[0][0], 8e-3 * cases[k].expected, 1e-9,
                           "%lld and %lld rows: %g ms", (long long)cases[k].a,
                           (long long)cases[k].b, f->cell_ms[0][0]);
        gpp_forecast_free(f);
        gpp_profile_free(a);
        gpp_profile_free(b);
    }
    gpp_model_free(model);
}

/* Two devices on memory nodes of their own: the boundary crosses the link, there and back. */
Test(forecast, slow_links_make_steps_long)
{
    static const char *const two[] = {"cpu:0", "cpu:1"};
    gpp_model *model = test_model_new(&chain);
    gpp_profile *p = made_up(model, 16, 1000, 1000, 1000);
    gpp_pipe_options o = options(&chain, 2, 1, GPP_CHECKPOINT_NEVER);
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    gpp_forecast *near, *far;
    gpp_error err = GPP_ERROR_INIT;
    o.devices = two;
    o.device_count = 2;
    how.task_us = 0;
    how.link_us = 50;
    how.bytes_per_us = 2;
    const gpp_profile *one[] = {p};
    how.profile = one;
    how.profiles = 1;
    gpp_status status = gpp_forecast_new(&near, model, &o, &how, &err);
    if (status == GPP_ENODEV)
        cr_skip_test("one core: there are no two devices");
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
    how.node_of = (int[]){0, 1};
    cr_assert_eq(gpp_forecast_new(&far, model, &o, &how, &err), GPP_OK, "%s", err.msg);
    double transfer = 1e-3 * (50 + 16 * 16 * 4 / 2.0);
    cr_expect_float_eq(near->step_ms, 16, 1e-9, "%g", near->step_ms);
    cr_expect_float_eq(far->step_ms, 16 + 2 * transfer, 1e-9, "%g", far->step_ms);
    cr_expect_gt(far->device[0].bytes + far->device[1].bytes,
                 near->device[0].bytes + near->device[1].bytes, "copies on both nodes");
    for (int d = 0; d < 2; d++) {
        const gpp_forecast_device *v = &far->device[d];
        double sum = v->busy_ms + v->warm_up_ms + v->transfer_ms + v->wait_ms + v->drain_ms;
        cr_expect_float_eq(sum, far->step_ms, 1e-9);
    }
    gpp_forecast_free(near);
    gpp_forecast_free(far);
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(forecast, less_room_for_activations_takes_longer)
{
    gpp_model *model = test_model_new(&skips);
    gpp_profile *p = made_up(model, 4, 1000, 1000, 1000);
    double before = 0;
    int rounds = 0;
    for (size_t limit = 80000; limit > 4000; limit -= limit / 5) {
        gpp_pipe_options o = options(&skips, 1, 4, GPP_CHECKPOINT_BUDGET);
        gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
        const gpp_profile *one[] = {p};
        gpp_forecast *f;
        o.devices = cores;
        o.device_count = 1;
        o.activation_limit = limit;
        o.profile = p;
        how.profile = one;
        how.profiles = 1;
        gpp_status status = gpp_forecast_new(&f, model, &o, &how, NULL);
        if (status == GPP_ENOMEM)
            break;
        cr_assert_eq(status, GPP_OK);
        cr_expect_geq(f->step_ms, before - 1e-9, "%zu bytes: %g ms, %g with more", limit,
                      f->step_ms, before);
        before = f->step_ms;
        rounds++;
        gpp_forecast_free(f);
    }
    cr_expect_geq(rounds, 5, "%d limits fit", rounds);
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(forecast, wrong_calls_are_refused)
{
    gpp_model *model = test_model_new(&chain), *other = test_model_new(&skips);
    gpp_profile *p = made_up(model, 4, 1, 1, 1), *strange = made_up(other, 4, 1, 1, 1);
    const gpp_profile *list[1] = {p};
    static const struct {
        const char *message;
        int what;
    } cases[] = {
        {"needs the rows of the mini-batch", 0},
        {"is of another model", 1},
        {"GPP_FORECAST_OPTIONS_INIT", 2},
        {"profiles are given, their number is 0", 3},
        {"task_us and link_us must be >= 0", 4},
        {"bytes_per_us and gpu_bytes_per_us must be >= 0", 5},
        {"has no times", 6},
        {"no profile was taken on 1 cores", 7},
        {"node_of[0] must be 0 ... 1023", 8},
        {"profile 0 lacks what it counts", 9},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_pipe_options o = options(&chain, 1, 4, GPP_CHECKPOINT_NEVER);
        gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
        gpp_error err = GPP_ERROR_INIT;
        gpp_forecast *f = (gpp_forecast *)&f;
        int threads = p->threads, what = cases[k].what;
        gpp_operator_profile *op = p->op;
        o.devices = cores;
        o.device_count = 1;
        list[0] = what == 1 ? strange : p;
        how.profile = list;
        how.profiles = what == 3 ? 0 : 1;
        o.batch = what == 0 ? 0 : 16;
        how.struct_size -= what == 2;
        how.task_us = what == 4 ? -1 : 1;
        how.bytes_per_us = what == 5 ? -1 : 1;
        how.node_of = what == 8 ? (int[]){-1} : NULL;
        p->threads = what == 6 ? 0 : what == 7 ? 99 : threads;
        p->op = what == 9 ? NULL : op;
        cr_expect_eq(gpp_forecast_new(&f, model, &o, &how, &err), GPP_EINVAL, "%s",
                     cases[k].message);
        cr_expect(strstr(err.msg, cases[k].message), "expected \"%s\" in \"%s\"", cases[k].message,
                  err.msg);
        cr_expect_null(f);
        p->threads = threads;
        p->op = op;
    }
    gpp_pipe_options o = options(&chain, 1, 4, GPP_CHECKPOINT_BUDGET);
    gpp_profile empty = *p;
    gpp_pipe *pipe = NULL;
    empty.op = NULL;
    o.profile = &empty;
    cr_expect_eq(gpp_pipe_new(&pipe, model, &o, NULL), GPP_EINVAL, "times of no operators");
    gpp_profile_free(p);
    gpp_profile_free(strange);
    gpp_model_free(model);
    gpp_model_free(other);
}

/* Two partitions of four operators, a millisecond each alone, two while the other device is
 * busy. */
Test(forecast, a_device_is_as_slow_as_the_others_are_busy)
{
    static const char *const two[] = {"cpu:0", "cpu:1"};
    static const struct {
        int chunks, profiles;
        double ms;
    } cases[] = {{1, 2, 16}, {1, 1, 32}};
    gpp_model *model = test_model_new(&chain);
    gpp_profile *crowded = made_up(model, 16, 2000, 2000, 2000),
                *alone = made_up(model, 16, 1000, 1000, 1000);
    const gpp_profile *both[] = {crowded, alone};
    crowded->beside = 1;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_pipe_options o = options(&chain, 2, cases[k].chunks, GPP_CHECKPOINT_NEVER);
        gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
        gpp_error err = GPP_ERROR_INIT;
        gpp_forecast *f;
        o.devices = two;
        o.device_count = 2;
        how.task_us = 0;
        how.profile = both;
        how.profiles = cases[k].profiles;
        gpp_status status = gpp_forecast_new(&f, model, &o, &how, &err);
        if (status == GPP_ENODEV)
            cr_skip_test("one core: there are no two devices");
        cr_assert_eq(status, GPP_OK, "%s", err.msg);
        /* With one micro-batch one device works at a time. */
        cr_expect_float_eq(f->step_ms, cases[k].ms, 1e-9, "%d profiles: %g ms", cases[k].profiles,
                           f->step_ms);
        gpp_forecast_free(f);
    }
    gpp_profile_free(crowded);
    gpp_profile_free(alone);
    gpp_model_free(model);
}

/* Equal cells: GPipe's step is as short as any order's, (m + n - 1)(F + B). */
Test(forecast, equal_cells_reach_their_bound)
{
    static const char *const two[] = {"cpu:0", "cpu:1"};
    gpp_model *model = test_model_new(&chain);
    gpp_profile *p = made_up(model, 4, 1000, 1000, 1000);
    gpp_pipe_options o = options(&chain, 2, 4, GPP_CHECKPOINT_NEVER);
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    const gpp_profile *one[] = {p};
    gpp_error err = GPP_ERROR_INIT;
    gpp_forecast *f;
    o.devices = two;
    o.device_count = 2;
    how.task_us = 0;
    how.profile = one;
    how.profiles = 1;
    gpp_status status = gpp_forecast_new(&f, model, &o, &how, &err);
    if (status == GPP_ENODEV)
        cr_skip_test("one core: there are no two devices");
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
    cr_expect_float_eq(f->step_ms, (4 + 2 - 1) * 8, 1e-9, "%g", f->step_ms);
    cr_expect_float_eq(f->bound_ms, f->step_ms, 1e-9, "%g", f->bound_ms);
    gpp_forecast_free(f);
    gpp_profile_free(p);
    gpp_model_free(model);
}
