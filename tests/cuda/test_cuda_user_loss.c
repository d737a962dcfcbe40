/*
 * tests/cuda/test_cuda_user_loss.c: losses of the caller's in pipes on GPUs: the bits of a built-in
 * loss that does the same, nearly the numbers of their own function for cores, and what becomes of
 * failures.
 *
 * The loss is a mean of squares. For cores it is a loop; for GPUs it launches the kernels of "mse".
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>
#include <gridpipe.h>

#include "codelets/losses/internal.h"
#include "codelets/user/loss.h"
#include "tests/cuda/rig.h"

enum { ROWS = 7, IN = 6, OUT = 4, CHUNKS = 3, PARAMS = 9 * IN + 9 + OUT * 9 + OUT };

#define OK(call)                                                                                   \
    do {                                                                                           \
        gpp_status ok_status = (call);                                                             \
        cr_assert_eq(ok_status, GPP_OK, "%s: %s", #call, err.msg);                                 \
    } while (0)

static const char *gpus[] = {"cuda:0", "cuda:1", "cuda:0"}; /* or one alone */
static const char *const cores[] = {"cpu", "cpu", "cpu"};

/* --- the loss --------------------------------------------------------------------------------- */

/** What its functions do, and have seen of each micro-batch. */
typedef struct script {
    int fails_at; /* micro-batch; -1: none */
    gpp_status status;
    const char *says;
    bool silent; /* no value is set */
    bool spoils; /* asks CUDA for what it refuses, and does not look */
    int64_t row0[CHUNKS], rows[CHUNKS], batch_rows[CHUNKS];
    bool there[CHUNKS], graded[CHUNKS]; /* run on a GPU; with a gradient */
} script;

static script well(void)
{
    return (script){.fails_at = -1};
}

static gpp_status squares_target(const gpp_shape *y, gpp_shape *target, void *user, gpp_error *err)
{
    (void)user, (void)err;
    *target = *y;
    return GPP_OK;
}

static int64_t count_of(const gpp_tensor *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++)
        count *= t->dim[d];
    return count;
}

/* The elements of the whole mini-batch. */
static double divisor_of(const gpp_loss_call *c)
{
    return (double)(c->batch_rows * (count_of(&c->y) / c->y.dim[0]));
}

static void note(const gpp_loss_call *c)
{
    script *s = c->user;
    s->row0[c->micro_batch] = c->row0;
    s->rows[c->micro_batch] = c->y.dim[0];
    s->batch_rows[c->micro_batch] = c->batch_rows;
    s->there[c->micro_batch] = c->stream || c->scratch;
    s->graded[c->micro_batch] = c->grad_y.data;
}

static gpp_status squares_here(const gpp_loss_call *c, double *value)
{
    const float *y = c->y.data, *t = c->target.data;
    float *g = c->grad_y.data;
    note(c);
    *value = 0;
    for (int64_t k = 0; k < count_of(&c->y); k++) {
        *value += (double)(y[k] - t[k]) * (double)(y[k] - t[k]) / divisor_of(c);
        if (g)
            g[k] = 2 * (y[k] - t[k]) / (float)divisor_of(c);
    }
    return GPP_OK;
}

static gpp__desc desc_of(const gpp_tensor *t)
{
    gpp__desc d = {.dtype = t->dtype, .rank = t->rank - 1};
    memcpy(d.dim, t->dim + 1, (size_t)d.rank * sizeof *d.dim);
    return d;
}

/* The kernels need a stream and no library. */
static gpp_status launch_squares(const gpp_loss_call *c, double *value)
{
    static const int mean = GPP__MEAN;
    gpp__cuda device = {.stream = c->stream, .multiprocessors = 4};
    gpp__desc y = desc_of(&c->y);
    gpp__loss_call call = {.attr = &mean,
                           .y_desc = &y,
                           .target_desc = &y,
                           .rows = c->y.dim[0],
                           .divisor = divisor_of(c),
                           .y = c->y.data,
                           .target = c->target.data,
                           .grad_y = c->grad_y.data,
                           .scratch = c->scratch,
                           .cuda = &device,
                           .value = value,
                           .err = c->err};
    return gpp__mse_run_cuda(&call);
}

static gpp_status squares_there(const gpp_loss_call *c, double *value)
{
    const script *s = c->user;
    bool here = c->micro_batch == s->fails_at;
    note(c);
    if (here && s->spoils)
        cudaSetDevice(99);
    if (here && s->says)
        snprintf(c->err->msg, sizeof c->err->msg, "%s", s->says);
    if (here && s->status)
        return s->status;
    return here && (s->silent || s->spoils) ? GPP_OK : launch_squares(c, value);
}

static size_t squares_room(const gpp_shape *y, int64_t rows, void *user)
{
    (void)user;
    return gpp__pointwise_scratch_cuda(NULL, y, rows);
}

static gpp_loss_function squares(script *s)
{
    gpp_loss_function def = GPP_LOSS_FUNCTION_INIT;
    def.name = "squares";
    def.target = squares_target;
    def.run = squares_here;
    def.run_cuda = squares_there;
    def.scratch_cuda = squares_room;
    def.user = s;
    return def;
}

/* --- pipes ------------------------------------------------------------------------------------ */

static gpp_status try_pipe(const gpp_pipe_options *o, gpp_pipe **p, gpp_error *err)
{
    static const int64_t dim[] = {IN};
    gpp_model *m = NULL;
    gpp_status status = gpp_model_new(&m, err);
    if (status == GPP_OK)
        status = gpp_model_add_text(m, "linear out=9 @a; tanh; linear out=4 @b", err);
    if (status == GPP_OK)
        status = gpp_model_set_input(m, GPP_F32, 1, dim, err);
    if (status == GPP_OK)
        status = gpp_pipe_new(p, m, o, err);
    gpp_model_free(m);
    return status;
}

static gpp_pipe_options usual(int partitions, const char *const devices[])
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.chunks = CHUNKS;
    o.optimizer = "sgd lr=0.1 momentum=0.9";
    o.devices = devices;
    o.device_count = devices ? partitions : 0;
    return o;
}

static gpp_status try_gpus(int count, gpp_error *err)
{
    gpp_pipe *p = NULL;
    gpp_pipe_options o = usual(count, gpus);
    gpp_status status = try_pipe(&o, &p, err);
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
        gpus[1] = gpus[0];
}

static gpp_pipe *pipe_with(gpp_pipe_options o, const gpp_loss_function *def)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = NULL;
    if (def)
        o.loss_function = def;
    else
        o.loss = "mse";
    OK(try_pipe(&o, &p, &err));
    return p;
}

/** A mini-batch. */
typedef struct batch {
    float x[ROWS * IN], target[ROWS * OUT];
    gpp_tensor tx, tt;
} batch;

static batch *batch_of(unsigned seed)
{
    batch *b = malloc(sizeof *b);
    test_fill(b->x, ROWS * IN, seed, -1, 1);
    test_fill(b->target, ROWS * OUT, seed + 1, -1, 1);
    b->tx = (gpp_tensor){b->x, GPP_F32, 2, {ROWS, IN}};
    b->tt = (gpp_tensor){b->target, GPP_F32, 2, {ROWS, OUT}};
    return b;
}

/** What training gives: losses of steps, an evaluation's, the parameters. */
typedef struct outcome {
    double loss[4];
    float param[PARAMS];
} outcome;

static void take_params(gpp_pipe *p, float param[PARAMS])
{
    gpp_error err = GPP_ERROR_INIT;
    int64_t at = 0;
    for (int k = 0; k < gpp_pipe_parameters(p); k++) {
        gpp_parameter_info i;
        OK(gpp_pipe_parameter(p, k, &i, &err));
        cr_assert(at + i.count <= PARAMS);
        OK(gpp_pipe_get(p, i.name, param + at, i.count, &err));
        at += i.count;
    }
    cr_assert_eq(at, PARAMS);
}

/* Two steps in flight, one alone, an evaluation. */
static outcome train(gpp_pipe_options o, const gpp_loss_function *def)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = pipe_with(o, def);
    batch *b = batch_of(1), *c = batch_of(5);
    outcome to;
    OK(gpp_pipe_submit(p, &b->tx, &b->tt, NULL, &err));
    OK(gpp_pipe_submit(p, &c->tx, &c->tt, NULL, &err));
    OK(gpp_pipe_wait(p, &to.loss[0], &err));
    OK(gpp_pipe_wait(p, &to.loss[1], &err));
    OK(gpp_pipe_step(p, &b->tx, &b->tt, NULL, &to.loss[2], &err));
    OK(gpp_pipe_evaluate(p, &c->tx, &c->tt, NULL, &to.loss[3], &err));
    take_params(p, to.param);
    gpp_pipe_free(p);
    free(b);
    free(c);
    return to;
}

/* --- the numbers ------------------------------------------------------------------------------ */

Test(cuda_user_loss, has_the_bits_of_a_built_in_loss_that_does_the_same)
{
    static const char *const schedules[] = {NULL, "1f1b", "zb-h1"};
    need_gpu();
    for (int n = 1; n <= 3; n++)
        for (size_t k = 0; k < sizeof schedules / sizeof *schedules; k++) {
            script s = well();
            gpp_loss_function def = squares(&s);
            gpp_pipe_options o = usual(n, gpus);
            o.schedule = schedules[k];
            outcome mine = train(o, &def), built_in = train(o, NULL);
            cr_expect(memcmp(mine.loss, built_in.loss, sizeof mine.loss) == 0,
                      "%d partitions, way %zu: %.17g, built in %.17g", n, k, mine.loss[2],
                      built_in.loss[2]);
            cr_expect(memcmp(mine.param, built_in.param, sizeof mine.param) == 0,
                      "%d partitions, way %zu", n, k);
        }
}

Test(cuda_user_loss, gives_nearly_the_numbers_of_its_function_for_cores)
{
    static const char *const mixed[] = {"cpu", "cuda:0"}, *const back[] = {"cuda:0", "cpu"};
    static const struct {
        const char *const *devices;
        bool there; /* where the loss runs */
    } ways[] = {{mixed, true}, {back, false}, {gpus, true}};
    need_gpu();
    script s = well();
    gpp_loss_function def = squares(&s);
    outcome here = train(usual(2, cores), &def);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        s = well();
        outcome there = train(usual(2, ways[k].devices), &def);
        for (int i = 0; i < CHUNKS; i++)
            cr_expect_eq(s.there[i], ways[k].there, "way %zu, micro-batch %d", k, i);
        /* Sums of up to nine products, three updates. */
        for (int l = 0; l < 4; l++)
            cr_expect(fabs(there.loss[l] - here.loss[l]) <= 1e-5 * here.loss[l],
                      "way %zu, loss %d: %.9g, on cores %.9g", k, l, there.loss[l], here.loss[l]);
        cr_expect_leq(test_distance(there.param, here.param, PARAMS), 1e-5, "way %zu", k);
    }
}

Test(cuda_user_loss, sees_of_each_micro_batch_what_it_sees_on_cores)
{
    static const int64_t row0[] = {0, 3, 6}, rows[] = {3, 3, 1};
    gpp_error err = GPP_ERROR_INIT;
    need_gpu();
    script s = well();
    gpp_loss_function def = squares(&s);
    gpp_pipe *p = pipe_with(usual(2, gpus), &def);
    batch *b = batch_of(1);
    for (int trains = 0; trains < 2; trains++) {
        OK(trains ? gpp_pipe_step(p, &b->tx, &b->tt, NULL, NULL, &err)
                  : gpp_pipe_evaluate(p, &b->tx, &b->tt, NULL, &(double){0}, &err));
        for (int i = 0; i < CHUNKS; i++) {
            cr_expect(s.row0[i] == row0[i] && s.rows[i] == rows[i] && s.batch_rows[i] == ROWS);
            cr_expect_eq(s.graded[i], trains, "a gradient is wanted in training alone");
        }
    }
    gpp_pipe_free(p);
    free(b);
}

/* --- a call ----------------------------------------------------------------------------------- */

/* The only call, with what it was given in a script's place. */
static gpp_status look(const gpp_loss_call *c, double *value)
{
    *(gpp_loss_call *)c->user = *c;
    return value ? GPP_OK : GPP_EINVAL;
}

Test(cuda_user_loss, that_sets_no_value_leaves_nan_and_gets_scratch_only_where_it_asked)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp__cuda *cuda = cuda_device(GPP__MATH_F32);
    gpp__desc d = {.dtype = GPP_F32, .rank = 3, .dim = {2, 3, 5}};
    gpp_loss_call seen;
    double value = 1;
    void *room = cuda_copy_of(&value, sizeof value);
    for (int asks = 0; asks < 2; asks++) {
        gpp_loss_function def = {.name = "look", .run_cuda = look, .user = &seen};
        def.scratch_cuda = asks ? squares_room : NULL;
        gpp__loss_call call = {.attr = &def,
                               .y_desc = &d,
                               .target_desc = &d,
                               .rows = 4,
                               .batch_rows = 9,
                               .divisor = 1,
                               .scratch = room,
                               .cuda = cuda,
                               .value = room,
                               .err = &err};
        cuda_put(room, &value, sizeof value);
        OK(gpp__user_loss_run_cuda(&call));
        double got = 1;
        cuda_get(&got, room, sizeof got);
        cr_expect(isnan(got), "%g", got);
        cr_expect(seen.scratch == (asks ? room : NULL) && seen.stream == (void *)cuda->stream);
        cr_expect(seen.y.rank == 4 && seen.y.dim[0] == 4 && seen.y.dim[3] == 5);
    }
    cuda_free(room);
}

/* --- failures --------------------------------------------------------------------------------- */

static void check_failure(gpp_pipe *p, script *s, int micro_batch, gpp_status want,
                          const char *says)
{
    float before[PARAMS], after[PARAMS];
    gpp_error err = GPP_ERROR_INIT;
    batch *b = batch_of(1);
    double loss;
    take_params(p, before);
    s->fails_at = micro_batch;
    cr_expect_eq(gpp_pipe_step(p, &b->tx, &b->tt, NULL, &loss, &err), want, "%s: %s", says,
                 err.msg);
    cr_expect(strstr(err.msg, says) && err.micro_batch == micro_batch, "%d: %s, not %s",
              err.micro_batch, err.msg, says);
    take_params(p, after);
    cr_expect(memcmp(before, after, sizeof before) == 0, "%s: updated", says);
    gpp_error_clear(&err);
    s->fails_at = -1;
    OK(gpp_pipe_step(p, &b->tx, &b->tt, NULL, &loss, &err));
    cr_expect(isfinite(loss));
    free(b);
}

Test(cuda_user_loss, that_fails_is_reported_as_on_cores_and_leaves_the_pipe_usable)
{
    static const struct {
        script todo;
        gpp_status want;
        char says[64], why[40];
    } bad[] = {
        {{.status = GPP_ENUMERIC, .says = "too steep"},
         GPP_ENUMERIC,
         "loss \"squares\": too steep",
         "in its own words"},
        {{.status = GPP_EINVAL}, GPP_EINVAL, "its run_cuda returned GPP_EINVAL", "in ours"},
        {{.status = (gpp_status)-1}, GPP_EKERNEL, "returned -1, which is no gpp_status", "unknown"},
        {{.spoils = true}, GPP_ENODEV, "loss \"squares\": CUDA on device", "refused: no GPU 99"},
    };
    need_gpu();
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        for (int i = 0; i < CHUNKS; i++) {
            script s = bad[k].todo;
            gpp_loss_function def = squares(&s);
            gpp_pipe *p = pipe_with(usual(2, gpus), &def);
            check_failure(p, &s, i, bad[k].want, bad[k].says);
            gpp_pipe_free(p);
        }
}

Test(cuda_user_loss, without_a_value_fails_where_a_finite_one_is_asked_for)
{
    gpp_error err = GPP_ERROR_INIT;
    need_gpu();
    for (int asked = 0; asked < 2; asked++) {
        script s = well();
        gpp_loss_function def = squares(&s);
        gpp_pipe_options o = usual(2, gpus);
        o.nan_is_error = asked;
        gpp_pipe *p = pipe_with(o, &def);
        s.silent = true;
        if (asked) {
            check_failure(p, &s, 1, GPP_ENUMERIC, "loss of micro-batch 1 is");
        } else {
            batch *b = batch_of(1);
            double loss = 0;
            s.fails_at = 1;
            OK(gpp_pipe_evaluate(p, &b->tx, &b->tt, NULL, &loss, &err));
            cr_expect(isnan(loss), "%g", loss);
            free(b);
        }
        gpp_pipe_free(p);
    }
}

Test(cuda_user_loss, has_no_single_values_as_on_cores)
{
    float each[ROWS * OUT];
    gpp_tensor room = {each, GPP_F32, 2, {ROWS, OUT}};
    need_gpu();
    for (int there = 0; there < 2; there++) {
        script s = well();
        gpp_loss_function def = squares(&s);
        gpp_pipe *p = pipe_with(usual(1, there ? gpus : cores), &def);
        cr_expect_eq(gpp_pipe_keep_losses(p, &room, NULL), GPP_ESTATE);
        gpp_pipe_free(p);
    }
}

/* --- where it runs ---------------------------------------------------------------------------- */

Test(cuda_user_loss, without_a_function_for_cuda_keeps_the_last_partition_on_cores)
{
    static const char *const mixed[] = {"cuda:0", "cpu"};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = NULL;
    gpp_pipe_info info;
    need_gpu();
    script s = well();
    gpp_loss_function def = squares(&s);
    def.run_cuda = NULL;
    def.scratch_cuda = NULL;
    gpp_pipe_options o = usual(2, gpus);
    o.loss_function = &def;
    cr_expect_eq(try_pipe(&o, &p, &err), GPP_EUNSUPPORTED);
    cr_expect(strstr(err.msg, "squares"), "%s", err.msg);
    outcome there = train(usual(2, mixed), &def), here = train(usual(2, cores), &def);
    cr_expect_leq(test_distance(there.param, here.param, PARAMS), 1e-5);
    for (int has = 0; has < 2; has++) { /* without a list */
        def.run_cuda = has ? squares_there : NULL;
        def.scratch_cuda = has ? squares_room : NULL;
        p = pipe_with(usual(2, NULL), &def);
        gpp_pipe_get_info(p, &info);
        const char *name = info.device_name[info.device_of[1]];
        cr_expect_eq(strncmp(name, "cuda", 4) == 0, has, "%s", name);
        gpp_pipe_free(p);
    }
}

static size_t endless_room(const gpp_shape *y, int64_t rows, void *user)
{
    (void)y, (void)rows, (void)user;
    return SIZE_MAX;
}

Test(cuda_user_loss, that_wants_more_memory_than_there_is_is_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *p = NULL;
    need_gpu();
    script s = well();
    gpp_loss_function def = squares(&s);
    def.scratch_cuda = endless_room;
    gpp_pipe_options o = usual(1, gpus);
    o.loss_function = &def;
    o.batch = ROWS;
    o.memory_limit = (size_t)1 << 40;
    cr_expect_eq(try_pipe(&o, &p, &err), GPP_ENOMEM, "%s", err.msg);
    cr_expect_null(p);
}
