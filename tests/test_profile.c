/*
 * What layers cost: that bytes are those of the partitions they add up to, that times are of what
 * was run and as often as said, that nothing is left of a profile in the model, and profiles in
 * files. No test depends on how fast a machine is: times are only bounded from below, by layers
 * that take at least theirs.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include <criterion/criterion.h>
#include <hwloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "balance/internal.h"
#include "codelets/program/times.h"
#include "graph/model/model.h"
#include "tests/parity.h"

/* --- models ----------------------------------------------------------------------------------- */

enum { MODELS = 9 };

static const struct some_model {
    const char *why, *text;
    gpp_shape in[2];
    bool pair;        /* it has two inputs */
    int shares, with; /* layers that share parameters */
    bool ends_kept;   /* a backward reads the model's output */
} models[MODELS] = {
    {.why = "a convnet",
     .text = "conv2d out=6 kernel=3 padding=1; batchnorm; relu; maxpool2d kernel=2; "
             "dropout p=0.25; conv2d out=4 kernel=3; relu; flatten; linear out=10",
     .in = {{.rank = 3, .dim = {3, 8, 8}}}},
    {.why = "layers that need nothing, their input, their output, in the end of the model",
     .text = "linear out=5; tanh; identity; gelu; flatten; relu",
     .in = {{.rank = 1, .dim = {7}}},
     .ends_kept = true},
    {.why = "skips that cross layers, with a block",
     .text = "conv2d out=4 kernel=3 padding=1; stash name=a; relu; stash name=b ns=n; "
             "conv2d out=4 kernel=1; pop name=a mode=add { conv2d out=4 kernel=1; relu }; "
             "sigmoid; pop name=b ns=n mode=cat dim=1; flatten; linear out=2",
     .in = {{.rank = 3, .dim = {2, 4, 4}}}},
    {.why = "tuples, and composite layers",
     .text = "muladd; chain { muladd; act }; add; chain { linear out=6; relu; linear out=3 }; "
             "layernorm shape=3; linear out=1",
     .in = {{.rank = 1, .dim = {5}}, {.rank = 1, .dim = {5}}},
     .pair = true},
    {.why = "integers",
     .text = "embedding num=11 dim=8; position_embedding length=6; self_attention heads=2; "
             "layernorm shape=8; linear out=4",
     .in = {{.dtype = GPP_I64, .rank = 1, .dim = {6}}}},
    {.why = "integers beside numbers, all passed on",
     .text = "act; act id=1; first; linear out=2",
     .in = {{.rank = 1, .dim = {3}}, {.dtype = GPP_I64}},
     .pair = true},
    {.why = "shared parameters",
     .text = "linear out=4 @a; relu; linear out=4 @b; relu; linear out=4 @c; linear out=1",
     .in = {{.rank = 1, .dim = {4}}},
     .shares = 4,
     .with = 2},
    {.why = "a fixed number of rows",
     .text = "rowsum; linear out=3",
     .in = {{.rank = 1, .dim = {6}}}},
    {.why = "skips that are absent",
     .text = "linear out=4; hide; linear out=4; seek; linear out=2",
     .in = {{.rank = 1, .dim = {4}}}},
};

/* first: the first tensor, twice as large. hide: the same, and an absent skip; seek: finds it
 * absent. */
static gpp_status first_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->stash[0] = s->in[0];
    return GPP_OK;
}
static gpp_status first_forward(gpp_call *call)
{
    for (int64_t k = 0; k < call->in[0].dim[0] * call->in[0].dim[1]; k++)
        ((float *)call->out[0].data)[k] = 2 * ((const float *)call->in[0].data)[k];
    return GPP_OK;
}
static gpp_status first_backward(gpp_call *call)
{
    float *to = call->grad_in[0].data;
    for (int64_t k = 0; to && k < call->grad_in[0].dim[0] * call->grad_in[0].dim[1]; k++)
        to[k] = 2 * ((const float *)call->grad_out[0].data)[k];
    return GPP_OK;
}
static gpp_status hide_forward(gpp_call *call)
{
    gpp_call_stash_none(call, "s");
    return first_forward(call);
}
static gpp_status seek_forward(gpp_call *call)
{
    return gpp_call_pop(call, "s")->data ? GPP_EKERNEL : first_forward(call);
}
static gpp_status seek_backward(gpp_call *call)
{
    return gpp_call_grad_pop(call, "s")->data ? GPP_EKERNEL : first_backward(call);
}
static const char *const skip_s[] = {"s", NULL};
static const gpp_operator first = {.name = "first",
                                   .infer = first_infer,
                                   .forward = first_forward,
                                   .backward = first_backward},
                          hide = {.name = "hide",
                                  .stash = skip_s,
                                  .infer = first_infer,
                                  .forward = hide_forward,
                                  .backward = first_backward},
                          seek = {.name = "seek",
                                  .pop = skip_s,
                                  .infer = first_infer,
                                  .forward = seek_forward,
                                  .backward = seek_backward};

static gpp_model *make(const struct some_model *m)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = parity_model(NULL);
    parity_register(model, &first);
    parity_register(model, &hide);
    parity_register(model, &seek);
    cr_assert_eq(gpp_model_add_text(model, m->text, &err), GPP_OK, "%s: %s", m->why, err.msg);
    if (m->shares)
        cr_assert_eq(gpp_model_share(model, m->shares, m->with, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_inputs(model, m->in, m->pair ? 2 : 1, &err), GPP_OK, "%s: %s",
                 m->why, err.msg);
    return model;
}

/* On one core, so that it is the same everywhere. */
static gpp_profile_options quick(void)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    o.device = "cpu:0";
    o.timeout_ms = 60000;
    o.precision = 0;
    o.max_sweeps = 3;
    return o;
}

static gpp_profile *take(const gpp_model *model, int64_t rows, const gpp_profile_options *o)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile *profile;
    cr_assert_eq(gpp_profile_new(&profile, model, rows, o, &err), GPP_OK, "%s", err.msg);
    return profile;
}

static gpp_profile *sizes(const gpp_model *model, int64_t rows)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    o.sizes_only = true;
    return take(model, rows, &o);
}

static bool is_time(double us)
{
    return isfinite(us) && us >= 0;
}

Test(profile, every_kind_of_layer_has_times_and_bytes)
{
    for (int k = 0; k < MODELS; k++) {
        gpp_model *model = make(&models[k]);
        const gpp_profile_options o = quick();
        gpp_profile *p = take(model, 5, &o), *s = sizes(model, 5);
        cr_assert_eq(p->layers, gpp_model_layers(model), "%s", models[k].why);
        cr_expect_eq(p->sweeps, 3, "%s: %d sweeps", models[k].why, p->sweeps);
        cr_expect(p->rows[0] == 5 && p->rows[1] == 0, "%s", models[k].why);
        cr_expect_str_eq(p->device, "cpu:0");
        cr_expect_eq(p->threads, 1);
        cr_expect_str_eq(s->device, "none");
        for (int u = 0; u < p->layers; u++) {
            gpp_layer_profile *a = &p->layer[u], *b = &s->layer[u];
            gpp_layer_info info;
            gpp_model_layer(model, u, &info, NULL);
            cr_expect_str_eq(a->label, info.label);
            cr_expect(is_time(a->forward_us) && is_time(a->recompute_us) &&
                          is_time(a->recompute_last_us) && is_time(a->backward_us) &&
                          is_time(a->error_us),
                      "%s: layer %d", models[k].why, u);
            cr_expect(b->forward_us == 0 && b->backward_us == 0, "nothing ran");
            cr_expect(a->parameter_bytes == b->parameter_bytes &&
                          a->activation_bytes == b->activation_bytes &&
                          a->output_bytes == b->output_bytes && a->skip_bytes == b->skip_bytes,
                      "%s: layer %d has other bytes when nothing runs", models[k].why, u);
        }
        gpp_profile_free(p);
        gpp_profile_free(s);
        gpp_model_free(model);
    }
}

static double sum_of(const gpp_profile *p, int u, int which)
{
    double sum = 0;
    for (int k = 0; k < p->operators; k++) {
        const gpp_operator_profile *o = &p->op[k];
        if (o->layer == u)
            sum += which == 0 ? o->forward_us : which == 1 ? o->keep_us : o->backward_us;
    }
    return sum;
}

Test(profile, times_of_layers_are_sums_over_their_operators)
{
    for (int k = 0; k < MODELS; k++) {
        gpp_model *model = make(&models[k]);
        const gpp__network *n = &model->network;
        const gpp_profile_options o = quick();
        gpp_profile *p = take(model, 5, &o), *s = sizes(model, 5);
        cr_assert(p->operators == n->nodes && s->operators == n->nodes);
        for (int q = 0; q < p->operators; q++) {
            cr_expect_eq(p->op[q].layer, n->node[q].index);
            cr_expect_str_eq(p->op[q].name, n->node[q].op->name);
            cr_expect_str_eq(s->op[q].name, n->node[q].op->name);
            cr_expect(is_time(p->op[q].forward_us) && is_time(p->op[q].keep_us) &&
                      is_time(p->op[q].backward_us));
            cr_expect_eq(s->op[q].forward_us, 0, "nothing ran");
        }
        for (int u = 0; u < p->layers; u++) {
            const gpp_layer_profile *l = &p->layer[u];
            /* whole nanoseconds, in doubles of microseconds */
            cr_expect_float_eq(l->forward_us, sum_of(p, u, 0), 1e-6, "%s: %d", models[k].why, u);
            cr_expect_float_eq(l->recompute_us, sum_of(p, u, 1), 1e-6, "%s: %d", models[k].why, u);
            cr_expect_float_eq(l->backward_us, sum_of(p, u, 2), 1e-6, "%s: %d", models[k].why, u);
            cr_expect_leq(l->recompute_last_us, l->recompute_us + 1e-6);
        }
        gpp_profile_free(p);
        gpp_profile_free(s);
        gpp_model_free(model);
    }
}

/* --- bytes: the oracle is the partition, compiled as a pipe compiles it ----------------------- */

typedef struct partition {
    gpp__stage stage;
    gpp__program *program;
} partition;

static void compile(partition *p, const gpp_model *model, int from, int to, int64_t rows)
{
    const gpp__network *n = &model->network;
    gpp_error err = GPP_ERROR_INIT;
    uint8_t *flow = calloc((size_t)n->values, 1);
    int begin = n->first[from];
    gpp__network_flow(n, false, flow);
    cr_assert_eq(gpp__stage_init(&p->stage, n, begin, n->first[to] - begin, NULL, rows, NULL, &err),
                 GPP_OK, "%s", err.msg);
    cr_assert_eq(
        gpp__program_new(&p->program, &p->stage, (int64_t[GPP__BATCHES]){rows}, 1, flow, &err),
        GPP_OK, "%s", err.msg);
    free(flow);
}

static void drop(partition *p)
{
    gpp__program_free(p->program);
    gpp__stage_release(&p->stage);
}

static size_t tape_of(const gpp_model *model, int from, int to, int64_t rows)
{
    partition p;
    compile(&p, model, from, to, rows);
    size_t bytes = gpp__program_get_info(p.program)->tape_bytes;
    drop(&p);
    return bytes;
}

Test(profile, activations_of_layers_add_up_to_the_tape_of_a_partition)
{
    for (int k = 0; k < MODELS; k++) {
        gpp_model *model = make(&models[k]);
        gpp_profile *p = sizes(model, 5);
        for (int from = 0; from < p->layers; from++) {
            size_t sum = 0;
            for (int to = from + 1; to <= p->layers; to++) {
                const gpp_layer_profile *last = &p->layer[to - 1];
                size_t tape = tape_of(model, from, to, 5);
                sum += last->activation_bytes;
                if (to == p->layers && !models[k].ends_kept)
                    cr_expect_eq(tape, sum, "%s: layers %d on: tape %zu, sum %zu", models[k].why,
                                 from, tape, sum);
                cr_expect(tape <= sum && sum - tape <= last->output_bytes + last->skip_bytes,
                          "%s: layers %d ... %d: tape %zu, sum %zu", models[k].why, from, to - 1,
                          tape, sum);
            }
        }
        gpp_profile_free(p);
        gpp_model_free(model);
    }
}

Test(profile, boundaries_are_what_leaves_the_layers_before)
{
    for (int k = 0; k < MODELS; k++) {
        gpp_model *model = make(&models[k]);
        gpp_profile *p = sizes(model, 4);
        for (int u = 0; u < p->layers; u++) {
            partition before;
            size_t output = 0, skip = 0;
            compile(&before, model, 0, u + 1, 4);
            const gpp__program_info *info = gpp__program_get_info(before.program);
            for (int port = 0; port < before.stage.outs; port++)
                *(model->network.value[before.stage.out[port]].skip ? &skip : &output) +=
                    info->out[port].bytes;
            cr_expect_eq(p->layer[u].output_bytes, output, "%s: behind layer %d: %zu, not %zu",
                         models[k].why, u, p->layer[u].output_bytes, output);
            cr_expect_eq(p->layer[u].skip_bytes, skip, "%s: behind layer %d: %zu, not %zu",
                         models[k].why, u, p->layer[u].skip_bytes, skip);
            drop(&before);
        }
        gpp_profile_free(p);
        gpp_model_free(model);
    }
}

Test(profile, skips_are_counted_while_they_are_alive)
{
    gpp_model *model = make(&models[2]);
    gpp_profile *p = sizes(model, 4);
    /* a: layers 1 to 5, b: 3 to 7; 4 rows of (4, 4, 4) floats are 1024 bytes */
    static const size_t alive[] = {0, 1, 1, 2, 2, 1, 1, 0, 0, 0};
    cr_assert_eq(p->layers, 10);
    for (int u = 0; u < p->layers; u++)
        cr_expect_eq(p->layer[u].skip_bytes, alive[u] * 1024, "layer %d: %zu", u,
                     p->layer[u].skip_bytes);
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(profile, parameters_count_once_and_buffers_do_not)
{
    for (int k = 0; k < MODELS; k++) {
        gpp_model *model = make(&models[k]);
        gpp_profile *p = sizes(model, 1);
        gpp_pipe *pipe = parity_plain(model);
        size_t sum = 0, all = 0;
        for (int u = 0; u < p->layers; u++)
            sum += p->layer[u].parameter_bytes;
        for (int q = 0; q < gpp_pipe_parameters(pipe); q++) {
            gpp_parameter_info info;
            gpp_pipe_parameter(pipe, q, &info, NULL);
            all += (size_t)info.count * sizeof(float);
        }
        cr_expect_eq(sum, all, "%s: %zu bytes, not %zu", models[k].why, sum, all);
        gpp_pipe_free(pipe);
        gpp_profile_free(p);
        gpp_model_free(model);
    }
}

/* --- what runs, and how often ----------------------------------------------------------------- */

static gpp_model *acts(const char *text)
{
    gpp_model *model = parity_model(text);
    parity_input(model, 1, (int64_t[]){4});
    return model;
}

Test(profile, a_sweep_is_a_forward_a_recomputation_and_a_backward_of_every_layer)
{
    gpp_model *model = acts("linear out=4; act id=1; act id=2");
    gpp_profile_options o = quick();
    o.warmup = 2;
    gpp_profile *p = take(model, 6, &o);
    for (int id = 1; id <= 2; id++) {
        cr_expect_eq(parity_count('F', id), 5, "2 for warming up and 3: %d", parity_count('F', id));
        cr_expect_eq(parity_count('R', id), 5, "%d", parity_count('R', id));
        cr_expect_eq(parity_count('B', id), 5, "%d", parity_count('B', id));
    }
    for (int e = 0; e < parity_diary_now.events; e++) {
        const parity_event *now = &parity_diary_now.event[e];
        cr_expect_eq(now->kind, "FFRRBB"[e % 6], "event %d is %c", e, now->kind);
        cr_expect_eq(now->id, "121221"[e % 6] - '0', "event %d is of %d", e, now->id);
        cr_expect(now->training && now->rows == 6 && now->i == 0);
        cr_expect_eq(now->checkpointing, now->kind == 'F');
        cr_expect_eq(now->recomputing, now->kind == 'R');
    }
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(profile, at_least_one_sweep_is_measured_and_at_most_as_many_as_allowed)
{
    /* clang-format off */
    static const struct {
        const char *why;
        double timeout_ms, precision;
        int warmup, max_sweeps, sweeps;
    } cases[] = {
        {.why = "no time", .max_sweeps = 1000, .sweeps = 1},
        {.why = "no time, but a warm-up", .warmup = 1, .max_sweeps = 1000, .sweeps = 1},
        {.why = "nothing is ever precise enough", .timeout_ms = 1e6, .warmup = 1, .max_sweeps = 20,
         .sweeps = 20},
        {.why = "anything is precise enough, once there is an interval", .timeout_ms = 1e6,
         .precision = 1e9, .max_sweeps = 1000, .sweeps = 6},
    };
    /* clang-format on */
    gpp_model *model = acts("linear out=4; act");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_profile_options o = quick();
        o.timeout_ms = cases[k].timeout_ms;
        o.precision = cases[k].precision;
        o.warmup = cases[k].warmup;
        o.max_sweeps = cases[k].max_sweeps;
        gpp_profile *p = take(model, 2, &o);
        /* With precision 0 an interval of width 0 is precise: clocks are coarse. */
        bool lucky = cases[k].precision == 0 && p->precise;
        cr_expect(p->sweeps == cases[k].sweeps || lucky, "%s: %d", cases[k].why, p->sweeps);
        cr_expect(p->precise == (cases[k].precision > 0) || lucky, "%s", cases[k].why);
        gpp_profile_free(p);
    }
    gpp_model_free(model);
}

/* They sleep, so that each takes its time at least, on any machine. */
Test(profile, times_are_not_below_what_layers_take)
{
    gpp_model *model = acts("act ms=2,0; linear out=4; act ms=0,3; act ms=1,1");
    gpp_profile_options o = quick();
    gpp_profile *p = take(model, 3, &o);
    static const double least[][2] = {{2000, 0}, {0, 0}, {0, 3000}, {1000, 1000}};
    for (int u = 0; u < 4; u++) {
        const gpp_layer_profile *l = &p->layer[u];
        cr_expect_geq(l->forward_us, least[u][0], "forward of layer %d: %g", u, l->forward_us);
        cr_expect_geq(l->recompute_us, least[u][0], "recompute of layer %d", u);
        cr_expect_geq(l->backward_us, u ? least[u][1] : 0, "backward of layer %d", u);
    }
    /* Nothing learns before layer 1: no backward of layer 0. */
    cr_expect_eq(parity_count('B', -1), 2 * 4);
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(profile, a_layer_that_fails_ends_it_and_is_named)
{
    static const char kinds[] = "FRB";
    for (int k = 0; kinds[k]; k++) {
        gpp_model *model = acts("linear out=4; act id=1; act id=7 @culprit; act id=3");
        gpp_error err = GPP_ERROR_INIT;
        gpp_profile *p = (gpp_profile *)&err;
        gpp_profile_options o = quick();
        int balance[2] = {-1, -1};
        parity_diary_now.fail.kind = kinds[k];
        parity_diary_now.fail.id = 7;
        parity_diary_now.fail.status = GPP_ENUMERIC;
        parity_diary_now.fail.says = "out of luck";
        cr_expect_eq(gpp_profile_new(&p, model, 2, &o, &err), GPP_ENUMERIC, "%c", kinds[k]);
        cr_expect_null(p);
        cr_expect_eq(err.layer, 2, "%c: layer %d", kinds[k], err.layer);
        cr_expect(strstr(err.msg, "out of luck"), "%s", err.msg);
        cr_expect_eq(gpp_balance_by_time(model, 2, 2, &o, balance, NULL), GPP_ENUMERIC);
        cr_expect(balance[0] == -1 && balance[1] == -1);
        gpp_model_free(model);
    }
}

/* --- times of partitions ---------------------------------------------------------------------- */

/* Operator k takes 2^k microseconds forwards: which ones a sum has can be read from it. */
static unsigned ran(const partition *p, gpp__pass pass)
{
    gpp_operator_profile op[16] = {{0}};
    for (int k = 0; k < 16; k++) {
        bool keeps = pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE;
        *(keeps ? &op[k].keep_us : &op[k].forward_us) = (double)(1 << k);
    }
    return (unsigned)gpp__program_us(p->program, pass, op);
}

static unsigned went_back(const partition *p)
{
    gpp_operator_profile op[16] = {{0}};
    for (int k = 0; k < 16; k++)
        op[k].backward_us = (double)(1 << k);
    return (unsigned)gpp__program_us(p->program, GPP__PASS_BACKWARD, op);
}

Test(profile, a_partition_takes_the_time_of_the_operators_that_run)
{
    /* clang-format off */
    static const struct {
        const char *why;
        int from, to;
        unsigned drop, keep, evaluate, recompute, backward; /* bit k: operator k */
    } cases[] = {
        {.why = "nothing learns before the first linear layer", .to = 2, .drop = 3, .keep = 3,
         .evaluate = 3, .recompute = 1, .backward = 2},
        {.why = "a view runs nowhere, but passes gradients on", .from = 2, .to = 4, .drop = 8,
         .keep = 8, .evaluate = 8, .backward = 12},
        {.why = "dropout passes on in evaluation", .from = 4, .to = 7, .drop = 112, .keep = 112,
         .evaluate = 96, .recompute = 48, .backward = 112},
        {.why = "what is in the boundary is not computed again", .from = 4, .to = 6, .drop = 48,
         .keep = 48, .evaluate = 32, .backward = 48},
        {.why = "what no backward needs is not", .to = 6, .drop = 59, .keep = 59, .evaluate = 43,
         .recompute = 3, .backward = 62},
    };
    /* clang-format on */
    /* bits 1: tanh, 2: linear, 4: flatten, 8: linear, 16: dropout, 32: tanh, 64: linear */
    gpp_model *model =
        acts("tanh; linear out=4; flatten; linear out=4; dropout p=0.5; tanh; linear out=2");
    cr_assert_eq(model->network.nodes, 7);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        partition p;
        compile(&p, model, cases[k].from, cases[k].to, 3);
        const unsigned is[] = {ran(&p, GPP__PASS_DROP), ran(&p, GPP__PASS_KEEP),
                               ran(&p, GPP__PASS_EVALUATE), ran(&p, GPP__PASS_RECOMPUTE),
                               went_back(&p)};
        const unsigned want[] = {cases[k].drop, cases[k].keep, cases[k].evaluate,
                                 cases[k].recompute, cases[k].backward};
        for (int w = 0; w < 5; w++)
            cr_expect_eq(is[w], want[w], "%s: way %d: %#x, not %#x", cases[k].why, w, is[w],
                         want[w]);
        drop(&p);
    }
    gpp_model_free(model);
}

/* 3 rows of 4 floats are one cache line; a megabyte a second is a byte a microsecond. */
Test(profile, ports_of_a_partition_cost_what_their_bytes_take)
{
    gpp_model *model = acts("linear out=4; tanh; linear out=4; relu; linear out=4");
    partition p;
    compile(&p, model, 1, 4, 3);
    static const struct {
        const char *why;
        gpp__pass pass;
        double lines;
    } cases[] = {
        {"it reads what comes in, and writes what goes out", GPP__PASS_KEEP, 2},
        {"so it does without a backward", GPP__PASS_EVALUATE, 2},
        {"a recomputation only reads", GPP__PASS_RECOMPUTE, 1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        cr_expect_eq(gpp__program_ports_us(p.program, cases[k].pass, 1), 2 * 64 * cases[k].lines,
                     "%s: %g", cases[k].why, gpp__program_ports_us(p.program, cases[k].pass, 1));
    /* The gradients on both sides, and what relu has left in the boundary behind it. */
    cr_expect_eq(gpp__program_ports_us(p.program, GPP__PASS_BACKWARD, 1), 2 * 64 * 3.0);
    cr_expect_eq(gpp__program_ports_us(p.program, GPP__PASS_BACKWARD, 4), 2 * 64 * 3 / 4.0);
    cr_expect_eq(gpp__program_ports_us(p.program, GPP__PASS_KEEP, 0), 0, "nothing is known");
    cr_expect_eq(gpp__program_ports_us(p.program, GPP__PASS_BACKWARD, 0), 0);
    drop(&p);
    gpp_model_free(model);
}

/* --- what goes in ----------------------------------------------------------------------------- */

/* look: passes its tensors on and remembers the bits of what it saw: a sum for each forward. */
static struct {
    double sum[64];
    int64_t first[64];
    int calls;
    cpu_set_t cores; /* where the last call may have run */
} seen;

static gpp_status look_infer(gpp_signature *s)
{
    s->outputs = s->inputs;
    memcpy(s->out, s->in, (size_t)s->inputs * sizeof *s->in);
    return GPP_OK;
}
static gpp_status look_forward(gpp_call *call)
{
    int k = seen.calls++ % 64;
    sched_getaffinity(0, sizeof seen.cores, &seen.cores);
    const gpp_tensor *x = &call->in[0], *last = &call->in[call->inputs - 1];
    seen.sum[k] = 0;
    for (int64_t e = 0; e < x->dim[0] * x->dim[1]; e++)
        seen.sum[k] += (double)(e + 1) * ((const float *)x->data)[e];
    seen.first[k] = last->dtype == GPP_I64 ? *(const int64_t *)last->data : -1;
    for (int t = 0; t < call->inputs; t++) {
        size_t bytes = gpp_dtype_size(call->in[t].dtype);
        for (int d = 0; d < call->in[t].rank; d++)
            bytes *= (size_t)call->in[t].dim[d];
        memcpy(call->out[t].data, call->in[t].data, bytes);
    }
    return GPP_OK;
}
static gpp_status look_backward(gpp_call *call)
{
    if (call->grad_in[0].data)
        memcpy(call->grad_in[0].data, call->grad_out[0].data,
               (size_t)(call->grad_in[0].dim[0] * call->grad_in[0].dim[1]) * sizeof(float));
    return GPP_OK;
}
static const gpp_operator look = {
    .name = "look", .infer = look_infer, .forward = look_forward, .backward = look_backward};

static gpp_model *looking(const char *text, const gpp_shape in[], int count)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = parity_model(NULL);
    memset(&seen, 0, sizeof seen);
    parity_register(model, &look);
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_inputs(model, in, count, &err), GPP_OK, "%s", err.msg);
    return model;
}

Test(profile, every_sweep_begins_with_the_same_sample)
{
    const gpp_shape in = {.rank = 1, .dim = {6}};
    gpp_model *model = looking("linear out=6; dropout p=0.5; relu; batchnorm; look", &in, 1);
    gpp_profile_options o = quick();
    o.max_sweeps = 4;
    gpp_profile_free(take(model, 7, &o));
    cr_assert_eq(seen.calls, 2 * (1 + 4), "%d", seen.calls); /* at its end nobody needs it again */
    cr_expect_neq(seen.sum[0], 0);
    for (int k = 1; k < seen.calls; k++)
        cr_expect_eq(seen.sum[k], seen.sum[0], "call %d: %g", k, seen.sum[k]);
    o.seed = 1;
    gpp_profile_free(take(model, 7, &o));
    cr_expect_neq(seen.sum[10], seen.sum[0], "another seed, other numbers");
    gpp_model_free(model);
}

Test(profile, a_sample_is_what_the_first_layer_gets)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {2}}, {.dtype = GPP_I64}};
    float x[6] = {1, 2, 3, 4, 5, 6};
    int64_t which[3] = {42, 43, 44};
    const gpp_tensor sample[] = {{x, GPP_F32, 2, {3, 2}}, {which, GPP_I64, 1, {3}}};
    gpp_model *model = looking("look", in, 2);
    gpp_profile_options o = quick();
    o.sample = sample;
    gpp_profile_free(take(model, 3, &o));
    cr_expect_eq(seen.sum[0], 1 + 4 + 9 + 16 + 25 + 36);
    cr_expect_eq(seen.first[0], 42);
    o.sample = NULL;
    gpp_profile_free(take(model, 3, &o));
    cr_expect_eq(seen.first[seen.calls - 1], 0, "integers are 0");
    gpp_model_free(model);
}

Test(profile, mini_batches_of_their_own_have_rows_of_their_own)
{
    const gpp_shape in[] = {{.rank = 1, .dim = {2}},
                            {.rank = 1, .dim = {2}, .batch = 1},
                            {.rank = 1, .dim = {3}, .batch = GPP_ROWS_FIXED, .rows = 2}};
    gpp_model *model = looking("look", in, 3);
    gpp_profile_options o = quick();
    o.rows = (int64_t[GPP_MAX_BATCHES]){3, 5};
    gpp_profile *p = take(model, 0, &o);
    cr_expect(p->rows[0] == 3 && p->rows[1] == 5 && p->rows[2] == 0);
    cr_expect_eq(p->layer[0].output_bytes, 3 * 64, "each in a cache line");
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(profile, wrong_calls_are_refused)
{
    float x[8] = {0};
    const gpp_tensor few = {x, GPP_F32, 2, {1, 4}}, wide = {x, GPP_F32, 2, {2, 3}},
                     kind = {x, GPP_I64, 2, {2, 4}}, none = {NULL, GPP_F32, 2, {2, 4}},
                     flat = {x, GPP_F32, 1, {8}};
    const char *const same[] = {"cpu:0"}, *const odd[] = {"toaster"}, *const missing[] = {NULL};
    gpp_model *model = acts("linear out=3"), *open = parity_model("linear out=3");
    const struct {
        const char *why;
        const gpp_model *model;
        int64_t rows;
        gpp_profile_options o;
        gpp_status status;
        const char *says;
    } cases[] = {
        {"no model", NULL, 2, GPP_PROFILE_OPTIONS_INIT, GPP_EINVAL, "model is NULL"},
        {"no input", open, 2, GPP_PROFILE_OPTIONS_INIT, GPP_ESTATE, "gpp_model_set_input"},
        {"no rows", model, 0, GPP_PROFILE_OPTIONS_INIT, GPP_EINVAL, "got 0"},
        {"too many rows", model, INT64_MAX / 2, GPP_PROFILE_OPTIONS_INIT, GPP_ENOMEM, "bytes"},
        {"no initialiser", model, 2, {0}, GPP_EINVAL, "GPP_PROFILE_OPTIONS_INIT"},
        {"negative time",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, -1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
         GPP_EINVAL,
         "timeout_ms"},
        {"no time",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, NAN, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
         GPP_EINVAL,
         "timeout_ms"},
        {"precision",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, NAN, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
         GPP_EINVAL,
         "precision"},
        {"warm-up",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, -1, 1, 0, 0, 0, 0, 0, 0, 0, 0},
         GPP_EINVAL,
         "warmup"},
        {"no sweeps",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
         GPP_EINVAL,
         "max_sweeps"},
        {"no such device",
         model,
         2,
         {sizeof(gpp_profile_options), "cpu:9999", 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
         GPP_ENODEV,
         "no core 9999"},
        {"no device",
         model,
         2,
         {sizeof(gpp_profile_options), "toaster", 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
         GPP_EINVAL,
         "toaster"},
        {"rows of the sample",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, &few, 0, 0, 0, 0, 0, 0},
         GPP_ESHAPE,
         "2 rows of (4)"},
        {"its width",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, &wide, 0, 0, 0, 0, 0, 0},
         GPP_ESHAPE,
         "sample[0]"},
        {"its type",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, &kind, 0, 0, 0, 0, 0, 0},
         GPP_ESHAPE,
         "float32"},
        {"its data",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, &none, 0, 0, 0, 0, 0, 0},
         GPP_ESHAPE,
         "sample[0]"},
        {"its rank",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, &flat, 0, 0, 0, 0, 0, 0},
         GPP_ESHAPE,
         "sample[0]"},
        {"fewer than none beside",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, 0, 0, 0, same, -1, 0, 0},
         GPP_EINVAL,
         "got -1"},
        {"no list of devices beside",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, 0, 0, 0, NULL, 1, 0, 0},
         GPP_EINVAL,
         "beside is NULL"},
        {"no device in it",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, 0, 0, 0, missing, 1, 0, 0},
         GPP_EINVAL,
         "beside[0]"},
        {"no such kind of device beside",
         model,
         2,
         {sizeof(gpp_profile_options), "cpu:0", 1, 0, 0, 1, 0, 0, 0, 0, odd, 1, 0, 0},
         GPP_EINVAL,
         "toaster"},
        {"the device itself beside",
         model,
         2,
         {sizeof(gpp_profile_options), "cpu:0", 1, 0, 0, 1, 0, 0, 0, 0, same, 1, 0, 0},
         GPP_EINVAL,
         "overlaps device \"cpu:0\""},
        {"a part of it beside",
         model,
         2,
         {sizeof(gpp_profile_options), NULL, 1, 0, 0, 1, 0, 0, 0, 0, same, 1, 0, 0},
         GPP_EINVAL,
         "overlaps"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_profile *p = (gpp_profile *)&err;
        gpp_status status = gpp_profile_new(&p, cases[k].model, cases[k].rows, &cases[k].o, &err);
        cr_expect_eq(status, cases[k].status, "%s: %s", cases[k].why, gpp_status_name(status));
        cr_expect_null(p, "%s", cases[k].why);
        cr_expect(strstr(err.msg, cases[k].says), "%s: \"%s\"", cases[k].why, err.msg);
    }
    cr_expect_eq(gpp_profile_new(NULL, model, 2, NULL, NULL), GPP_EINVAL);
    gpp_profile_free(NULL);
    gpp_model_free(model);
    gpp_model_free(open);
}

Test(profile, wrong_cuts_are_refused_and_leave_the_balance_alone)
{
    gpp_model *model = acts("linear out=3; relu; linear out=2");
    gpp_profile_options only_sizes = GPP_PROFILE_OPTIONS_INIT;
    int balance[4] = {-7, -7, -7, -7};
    only_sizes.sizes_only = true;
    cr_expect_eq(gpp_balance_by_time(NULL, 2, 1, NULL, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_time(model, 2, 1, NULL, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_time(model, 0, 1, NULL, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_time(model, 4, 1, NULL, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_time(model, 2, 1, &only_sizes, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_time(model, 2, 0, NULL, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_size(NULL, 2, 1, 1, 2, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_size(model, -1, 1, 1, 2, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_size(model, 2, 0, 1, 2, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_size(model, 2, 1, 0, 2, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_size(model, 2, 1, 1, -1, balance, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_by_size(model, 2, 1, 1, INFINITY, balance, NULL), GPP_EINVAL);
    for (int j = 0; j < 4; j++)
        cr_expect_eq(balance[j], -7);
    gpp_model_free(model);
}

/* --- surroundings ----------------------------------------------------------------------------- */

Test(profile, the_callers_thread_stays_where_it_is)
{
    cpu_set_t before, after;
    gpp_model *model = acts("linear out=3");
    gpp_profile_options o = quick();
    sched_getaffinity(0, sizeof before, &before);
    gpp_profile_free(take(model, 1, &o));
    sched_getaffinity(0, sizeof after, &after);
    cr_expect(CPU_EQUAL(&before, &after));
    gpp_model_free(model);
}

Test(profile, layers_run_on_the_cores_of_the_device)
{
    const gpp_shape in = {.rank = 1, .dim = {2}};
    gpp_model *model = looking("look", &in, 1);
    gpp_profile_options o = quick();
    hwloc_topology_t topology;
    hwloc_topology_init(&topology);
    hwloc_topology_load(topology);
    hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, 0);
    gpp_profile_free(take(model, 1, &o));
    for (int pu = 0; core && pu < CPU_SETSIZE; pu++)
        if (CPU_ISSET(pu, &seen.cores))
            cr_expect(hwloc_bitmap_isset(core->cpuset, (unsigned)pu), "unit %d is not core 0's",
                      pu);
    hwloc_topology_destroy(topology);
    gpp_model_free(model);
}

/* --- devices beside --------------------------------------------------------------------------- */

/* meet: as look, on several threads; each of them waits once until `expected` are in a sweep. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int expected, here;
    bool too_late;
    cpu_set_t cores[2]; /* of those who met */
    int fails_on;       /* a forward on this core alone fails, after `well` that do not; -1: none */
    atomic_int well;
    atomic_bool closed; /* the profile has been taken */
    atomic_bool late;   /* a call when it was closed */
} meeting = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, .fails_on = -1};

static void meet_others(const cpu_set_t *cores)
{
    static _Thread_local bool met;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60; /* only a profile that runs one after the other waits so long */
    pthread_mutex_lock(&meeting.lock);
    if (!met && meeting.here < 2)
        meeting.cores[meeting.here++] = *cores;
    met = true;
    pthread_cond_broadcast(&meeting.changed);
    while (meeting.here < meeting.expected && !meeting.too_late)
        meeting.too_late |= pthread_cond_timedwait(&meeting.changed, &meeting.lock, &end) != 0;
    pthread_mutex_unlock(&meeting.lock);
}

static gpp_status meet_forward(gpp_call *call)
{
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    if (atomic_load(&meeting.closed))
        atomic_store(&meeting.late, true);
    if (meeting.fails_on >= 0 && CPU_ISSET(meeting.fails_on, &cores) &&
        atomic_fetch_sub(&meeting.well, 1) <= 0)
        return gpp_call_fail(call, GPP_ENUMERIC, "on that core");
    if (meeting.expected)
        meet_others(&cores);
    memcpy(call->out[0].data, call->in[0].data,
           (size_t)(call->in[0].dim[0] * call->in[0].dim[1]) * sizeof(float));
    return GPP_OK;
}

static const gpp_operator meet = {
    .name = "meet", .infer = look_infer, .forward = meet_forward, .backward = look_backward};

/* A hardware thread of core `core`, as the system counts them; -1: there is no such core, or it may
 * not be used. */
static int unit_of(int core)
{
    cpu_set_t may;
    hwloc_topology_t topology;
    hwloc_topology_init(&topology);
    hwloc_topology_load(topology);
    hwloc_obj_t obj = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)core);
    int unit = obj ? hwloc_bitmap_first(obj->cpuset) : -1;
    hwloc_topology_destroy(topology);
    sched_getaffinity(0, sizeof may, &may);
    return unit >= 0 && CPU_ISSET(unit, &may) ? unit : -1;
}

static const char *const core_1[] = {"cpu:1"};

/* Then it is cut into parts. */
Test(profile, every_kind_of_layer_can_be_measured_with_devices_beside)
{
    if (unit_of(0) < 0 || unit_of(1) < 0)
        cr_skip_test("cores 0 and 1 are not both there");
    for (int k = 0; k < MODELS; k++) {
        gpp_model *model = make(&models[k]);
        gpp_profile_options o = quick();
        o.beside = core_1;
        o.beside_count = 1;
        o.warmup = k % 2;
        gpp_profile *p = take(model, 5, &o), *s = sizes(model, 5);
        cr_assert(p->layers == s->layers && p->operators == s->operators && p->sweeps == 3);
        for (int u = 0; u < p->layers; u++) {
            const gpp__layer *first_of = &model->network.node[model->network.first[u]];
            bool view = first_of->op->is_view && first_of->op->is_view(first_of);
            cr_expect(view || (p->layer[u].forward_us > 0 && p->layer[u].recompute_us > 0),
                      "%s: layer %d takes time, in whichever part it is", models[k].why, u);
            cr_expect_eq(p->layer[u].activation_bytes, s->layer[u].activation_bytes);
        }
        gpp_profile_free(s);
        gpp_profile_free(p);
        gpp_model_free(model);
    }
}

/* The diary is of both devices: device 0 goes through both parts in every sweep, device 1 only
 * while it gets ready. */
static unsigned long measured_thread(void)
{
    const parity_diary *d = &parity_diary_now;
    unsigned long best = 0;
    int most = 0;
    for (int e = 0; e < d->events; e++) {
        int count = 0;
        for (int f = 0; f < d->events; f++)
            count += d->event[f].thread == d->event[e].thread && d->event[f].id == 1;
        if (count > most)
            best = d->event[e].thread;
        most = count > most ? count : most;
    }
    return best;
}

Test(profile, with_a_device_beside_a_sweep_goes_through_one_part_after_the_other_twice)
{
    if (unit_of(0) < 0 || unit_of(1) < 0)
        cr_skip_test("cores 0 and 1 are not both there");
    /* Sleep, so that the diary does not fill up while device 0 waits for its core. */
    gpp_model *model = acts("linear out=4; act id=1; linear out=4; act id=2 ms=1,1");
    gpp_profile_options o = quick();
    o.beside = core_1;
    o.beside_count = 1;
    gpp_profile_free(take(model, 6, &o));
    static const char once[] = "F1R1F2R2B2B1", sweep[] = "F1F1R1B1R1B1F2F2R2B2R2B2";
    unsigned long thread = measured_thread();
    int at = 0; /* in what device 0 has done */
    for (int e = 0; e < parity_diary_now.events; e++) {
        const parity_event *now = &parity_diary_now.event[e];
        if (now->thread != thread)
            continue;
        const char *want = at < 6 ? &once[2 * at] : &sweep[(at - 6) % 12 * 2];
        cr_expect(now->kind == want[0] && now->id == want[1] - '0', "event %d is %c of %d", at,
                  now->kind, now->id);
        at++;
    }
    cr_expect_eq(at, 6 + 4 * 12, "once all, a sweep for warming up, and 3: %d events", at);
    gpp_model_free(model);
}

static gpp_model *meeting_model(void)
{
    gpp_model *model = parity_model(NULL);
    parity_register(model, &meet);
    cr_assert_eq(gpp_model_add_text(model, "linear out=4; meet", NULL), GPP_OK);
    parity_input(model, 1, (int64_t[]){4});
    return model;
}

Test(profile, a_device_beside_runs_the_same_at_the_same_time)
{
    if (unit_of(0) < 0 || unit_of(1) < 0)
        cr_skip_test("cores 0 and 1 are not both there");
    gpp_model *model = meeting_model();
    gpp_profile_options o = quick();
    o.beside = core_1;
    o.beside_count = 1;
    meeting.expected = 2;
    gpp_profile *p = take(model, 3, &o);
    atomic_store(&meeting.closed, true);
    cr_expect_not(meeting.too_late, "they have never met");
    for (int core = 0; core < 2; core++)
        cr_expect_neq(CPU_ISSET(unit_of(core), &meeting.cores[0]),
                      CPU_ISSET(unit_of(core), &meeting.cores[1]), "one of them is on core %d",
                      core);
    cr_expect(p->beside == 1 && p->threads == 1 && p->sweeps == 3);
    cr_expect_str_eq(p->device, "cpu:0");
    gpp_profile_free(p);
    usleep(10000);
    cr_expect_not(atomic_load(&meeting.late), "it is over when the profile is there");
    gpp_model_free(model);
}

Test(profile, a_failure_on_any_device_ends_it)
{
    if (unit_of(0) < 0 || unit_of(1) < 0)
        cr_skip_test("cores 0 and 1 are not both there");
    gpp_model *model = meeting_model();
    gpp_profile_options o = quick();
    o.beside = core_1;
    o.beside_count = 1;
    o.max_sweeps = 1000;
    for (int core = 0; core < 2; core++)
        for (int well = 0; well < 6;
             well++) { /* 2 forwards a sweep, the first of them to warm up */
            gpp_error err = GPP_ERROR_INIT;
            gpp_profile *p = (gpp_profile *)&err;
            meeting.fails_on = unit_of(core);
            atomic_store(&meeting.well, well);
            cr_expect_eq(gpp_profile_new(&p, model, 3, &o, &err), GPP_ENUMERIC, "core %d, %d", core,
                         well);
            cr_expect(!p && err.layer == 1 && strstr(err.msg, "on that core"), "%s", err.msg);
        }
    gpp_model_free(model);
}

Test(profile, without_a_device_it_takes_every_core)
{
    gpp_model *model = acts("linear out=3; act");
    gpp_profile_options o = quick();
    o.device = NULL;
    gpp_profile *p = take(model, 64, &o);
    cr_expect(p->threads >= 1 && strncmp(p->device, "cpu:", 4) == 0, "%s", p->device);
    gpp_profile_free(p);
    gpp_model_free(model);
}

Test(profile, a_model_without_layers_has_a_profile_without_layers)
{
    gpp_model *model = acts(NULL);
    gpp_profile_options o = quick();
    gpp_profile *p = take(model, 1, &o);
    cr_expect_eq(p->layers, 0);
    gpp_profile_free(p);
    gpp_model_free(model);
}

/* --- medians ---------------------------------------------------------------------------------- */

/* Ranks from the binomial distribution, by hand for few, from printed tables for many. */
Test(profile, intervals_of_medians_are_those_of_order_statistics)
{
    static const int ranks[][2] = {{6, 1},  {7, 1},  {8, 1},  {9, 2},   {10, 2},  {12, 3},
                                   {15, 4}, {20, 6}, {25, 8}, {50, 18}, {100, 40}};
    int64_t ns[1000];
    double half;
    bool sure;
    for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++) {
        int n = ranks[k][0];
        for (int e = 0; e < n; e++)
            ns[e] = 10 * (e % 2 ? e / 2 : n - 1 - e / 2); /* 0, 10, 20, ... in disorder */
        int64_t median = gpp__median(ns, n, &half, &sure);
        cr_expect(sure, "%d", n);
        cr_expect_eq(median, 5 * (n - 1), "%d: median %lld", n, (long long)median);
        cr_expect_eq(half, 5.0 * (n + 1 - 2 * ranks[k][1]), "%d: half %g", n, half);
    }
    for (int n = 1; n < 6; n++) {
        memcpy(ns, (int64_t[]){5, 1, 4, 2, 3}, 5 * sizeof *ns);
        gpp__median(ns, n, &half, &sure);
        cr_expect_not(sure, "%d times make no interval of 95 %%", n);
    }
    for (int n = 6; n <= 1000; n++) {
        for (int e = 0; e < n; e++)
            ns[e] = e;
        gpp__median(ns, n, &half, &sure);
        cr_expect(sure && half > 0 && half <= n / 2.0);
        /* The normal approximation: n/2 ± 1.96 √n / 2; ranks are whole: 1 on either side. */
        cr_expect_float_eq(half, 0.98 * sqrt(n) + 0.5, 1, "%d: %g", n, half);
    }
}

/* --- files ------------------------------------------------------------------------------------ */

typedef struct scratch {
    char path[64];
} scratch;

static scratch scratch_file(void)
{
    scratch s = {P_tmpdir "/gridpipe-profile-XXXXXX"};
    int fd = mkstemp(s.path);
    cr_assert_geq(fd, 0);
    close(fd);
    return s;
}

static void put(const scratch *s, const char *text, size_t length)
{
    FILE *out = fopen(s->path, "wb");
    cr_assert(out && fwrite(text, 1, length, out) == length);
    fclose(out);
}

static char *get(const scratch *s, size_t *length)
{
    static char text[4096];
    FILE *in = fopen(s->path, "rb");
    *length = fread(text, 1, sizeof text - 1, in);
    text[*length] = 0;
    fclose(in);
    return text;
}

static const char golden[] =
    "gridpipe-profile 2\n"
    "device cpu:0-3,8\n"
    "threads 5\n"
    "beside 3\n"
    "bytes_per_us 17000\n"
    "rows 32 0 7 0\n"
    "sweeps 25\n"
    "precise 1\n"
    "layers 2\n"
    "operators 3\n"
    "# label forward_ns recompute_ns recompute_last_ns backward_ns error_ns parameter_bytes "
    "activation_bytes output_bytes skip_bytes\n"
    "layer conv_1 12500 12801 0 30100 200 288 0 262144 9\n"
    "layer b.relu-2 1 2 3 4 5 0 18446744073709551615 7 8\n"
    "# layer name forward_ns keep_ns backward_ns\n"
    "operator 0 channels_last 500 501 100\n"
    "operator 0 conv2d 12000 12300 30000\n"
    "operator 1 my_relu 1 2 4\n";

/* A profile of a GPU has the same, and what is said of the GPU. */
static const char gpu_lines[] = "device cuda:1\n"
                                "gpu NVIDIA H200 (1)\n"
                                "cuda_math 2\n"
                                "cuda_any_algorithm 1\n"
                                "link_bytes_per_us 25000\n";

/* @param text  [2048] out */
static const char *golden_of_gpu(char *text)
{
    static const char device[] = "device cpu:0-3,8\n";
    const char *at = strstr(golden, device);
    snprintf(text, 2048, "%.*s%s%s", (int)(at - golden), golden, gpu_lines, at + sizeof device - 1);
    return text;
}

Test(profile, a_profile_of_a_gpu_in_a_file_says_which_and_how_it_computes)
{
    scratch s = scratch_file();
    char text[2048];
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile *p;
    size_t length;
    put(&s, golden_of_gpu(text), strlen(golden_of_gpu(text)));
    cr_assert_eq(gpp_profile_read(&p, s.path, &err), GPP_OK, "%s", err.msg);
    cr_expect_str_eq(p->device, "cuda:1");
    cr_expect_str_eq(p->gpu, "NVIDIA H200 (1)");
    cr_expect(p->cuda_math == GPP_MATH_BF16 && p->cuda_any_algorithm &&
              p->link_bytes_per_us == 25000 && p->bytes_per_us == 17000 && p->threads == 5);
    cr_assert_eq(gpp_profile_write(p, s.path, &err), GPP_OK, "%s", err.msg);
    cr_expect_str_eq(get(&s, &length), text);
    const struct {
        const char *says;
        const char *device, *gpu;
        int math;
        double speed;
    } wrong[] = {{"with a GPU", "cpu:0", "NVIDIA H200", 0, 1},
                 {"no name of the GPU", "cuda:0", "", 0, 1},
                 {"no name of the GPU", "cuda:0", "NVIDIA\nH200", 0, 1},
                 {"cuda_math is 3", "cuda:0", "NVIDIA H200", 3, 1},
                 {"link_bytes_per_us is", "cuda:0", "NVIDIA H200", 0, NAN}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        gpp_error own = GPP_ERROR_INIT;
        strcpy(p->device, wrong[k].device);
        strcpy(p->gpu, wrong[k].gpu);
        p->cuda_math = (gpp_math)wrong[k].math;
        p->link_bytes_per_us = wrong[k].speed;
        cr_expect_eq(gpp_profile_write(p, s.path, &own), GPP_EINVAL, "%s", wrong[k].says);
        cr_expect(strstr(own.msg, wrong[k].says), "%s", own.msg);
    }
    gpp_profile_free(p);
    unlink(s.path);
}

Test(profile, a_profile_in_a_file_is_the_one_that_was_written)
{
    scratch s = scratch_file();
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile *p, *again;
    size_t length;
    put(&s, golden, sizeof golden - 1);
    cr_assert_eq(gpp_profile_read(&p, s.path, &err), GPP_OK, "%s", err.msg);
    cr_assert(p->layers == 2 && p->operators == 3);
    cr_expect_str_eq(p->device, "cpu:0-3,8");
    cr_expect(p->threads == 5 && p->beside == 3 && p->bytes_per_us == 17000 && p->sweeps == 25 &&
              p->precise);
    cr_expect(p->rows[0] == 32 && p->rows[1] == 0 && p->rows[2] == 7 && p->rows[3] == 0);
    cr_expect_str_eq(p->layer[0].label, "conv_1");
    cr_expect_eq(p->layer[0].forward_us, 12.5);
    cr_expect_eq(p->layer[0].recompute_us, 12.801);
    cr_expect_eq(p->layer[1].activation_bytes, SIZE_MAX);
    cr_expect_eq(p->layer[1].skip_bytes, 8);
    cr_expect(p->op[0].layer == 0 && p->op[1].layer == 0 && p->op[2].layer == 1);
    cr_expect_str_eq(p->op[2].name, "my_relu");
    cr_expect(p->op[0].forward_us == 0.5 && p->op[1].keep_us == 12.3 &&
              p->op[2].backward_us == 0.004);
    cr_assert_eq(gpp_profile_write(p, s.path, &err), GPP_OK, "%s", err.msg);
    cr_expect_str_eq(get(&s, &length), golden);
    gpp_profile_free(p);

    gpp_model *model = make(&models[0]);
    gpp_profile_options o = quick();
    p = take(model, 3, &o);
    cr_assert_eq(gpp_profile_write(p, s.path, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_profile_read(&again, s.path, &err), GPP_OK, "%s", err.msg);
    cr_expect(p->layers == again->layers && p->sweeps == again->sweeps);
    cr_expect(p->bytes_per_us > 0 && p->bytes_per_us == again->bytes_per_us);
    cr_assert_eq(p->operators, again->operators);
    for (int k = 0; k < p->operators; k++) {
        const gpp_operator_profile *a = &p->op[k], *b = &again->op[k];
        cr_expect(a->layer == b->layer && strcmp(a->name, b->name) == 0);
        cr_expect(a->forward_us == b->forward_us && a->keep_us == b->keep_us &&
                      a->backward_us == b->backward_us,
                  "times of operator %d are kept to the bit", k);
    }
    for (int u = 0; u < p->layers; u++) {
        const gpp_layer_profile *a = &p->layer[u], *b = &again->layer[u];
        cr_expect_str_eq(a->label, b->label);
        cr_expect(a->forward_us == b->forward_us && a->recompute_us == b->recompute_us &&
                      a->recompute_last_us == b->recompute_last_us &&
                      a->backward_us == b->backward_us && a->error_us == b->error_us,
                  "times of layer %d are kept to the bit", u);
        cr_expect(a->parameter_bytes == b->parameter_bytes && a->skip_bytes == b->skip_bytes &&
                  a->activation_bytes == b->activation_bytes && a->output_bytes == b->output_bytes);
    }
    gpp_profile_free(again);
    gpp_profile_free(p);
    gpp_model_free(model);
    unlink(s.path);
}

static const struct damage {
    const char *why, *old, *new;
    int line;
    bool gpu;
} damages[] = {
    {"another kind of file", "gridpipe-profile", "gridpipe-model", 1, false},
    {"an earlier version", "profile 2", "profile 1", 1, false},
    {"a later version", "profile 2", "profile 20", 1, false},
    {"two spaces", "device ", "device  ", 2, false},
    {"no device", "device cpu:0-3,8", "device ", 2, false},
    {"two devices", "cpu:0-3,8", "cpu:0-3 cpu:8", 2, false},
    {"too long a device", "cpu:0-3,8",
     "cpu:00000000000000000000000000000000000000000000000000000000000000000000000", 2, false},
    {"a negative number", "threads 5", "threads -5", 3, false},
    {"no number", "threads 5", "threads five", 3, false},
    {"too large a number", "threads 5", "threads 2147483648", 3, false},
    {"a line of the version before", "beside 3\n", "", 4, false},
    {"a speed with a fraction", "us 17000", "us 1.7", 5, false},
    {"three rows", "rows 32 0 7 0", "rows 32 0 7", 6, false},
    {"five rows", "rows 32 0 7 0", "rows 32 0 7 0 0", 6, false},
    {"a number with something behind", "sweeps 25", "sweeps 25x", 7, false},
    {"a number no type holds", "sweeps 25", "sweeps 99999999999999999999999999", 7, false},
    {"neither 0 nor 1", "precise 1", "precise 2", 8, false},
    {"a key that is not expected", "layers 2", "layer 2", 9, false},
    {"too many layers", "layers 2", "layers 1048577", 9, false},
    {"more layers than there are", "layers 2", "layers 3", 15, false},
    {"fewer layers than there are", "layers 2", "layers 1", 13, false},
    {"too many operators", "operators 3", "operators 16777217", 10, false},
    {"more operators than there are", "operators 3", "operators 4", 18, false},
    {"fewer operators than there are", "operators 3", "operators 2", 17, false},
    {"no label", "layer conv_1 ", "layer ", 12, false},
    {"a label that is none", "conv_1", "conv\"1", 12, false},
    {"too long a label", "conv_1",
     "c0000000000000000000000000000000000000000000000000000000000000000", 12, false},
    {"a time below zero", "12500", "-1", 12, false},
    {"a time with a fraction", "12500", "12.5", 12, false},
    {"a time that is too long", "12500", "9007199254740993", 12, false},
    {"more bytes than there can be", "18446744073709551615", "18446744073709551616", 13, false},
    {"many more", "18446744073709551615", "184467440737095516160", 13, false},
    {"a number too many", "7 8\n", "7 8 9\n", 13, false},
    {"a number too few", "7 8\n", "7\n", 13, false},
    {"a space at the end", "7 8\n", "7 8 \n", 13, false},
    {"an operator of no layer", "operator 1 ", "operator 2 ", 17, false},
    {"an operator of an earlier layer", "operator 0 channels_last", "operator 1 channels_last", 16,
     false},
    {"an operator without a layer", "operator 1 my_relu", "operator my_relu", 17, false},
    {"an operator without a name", "operator 1 my_relu", "operator 1", 17, false},
    {"a name that is none", "my_relu", "my/relu", 17, false},
    {"too long a name", "my_relu", "m0000000000000000000000000000000", 17, false},
    {"an operator's time that is too long", "30000", "9007199254740993", 16, false},
    {"a time too few", "1 2 4\n", "1 2\n", 17, false},
    {"a time too many", "1 2 4\n", "1 2 4 8\n", 17, false},
    {"a line too many", "1 2 4\n", "1 2 4\n\n", 18, false},
    {"no end of the last line", "1 2 4\n", "1 2 4", 17, false},
    {"a carriage return", "threads 5\n", "threads 5\r\n", 3, false},
    {"a GPU without a name", "gpu NVIDIA H200 (1)\n", "", 3, true},
    {"an empty name", "NVIDIA H200 (1)", "", 3, true},
    {"a name that is too long", "H200",
     "H00000000000000000000000000000000000000000000000000000000000000", 3, true},
    {"a name that ends with a space", "(1)\n", "(1) \n", 3, true},
    {"products of another kind", "cuda_math 2", "cuda_math 3", 4, true},
    {"no word on algorithms", "cuda_any_algorithm 1\n", "", 5, true},
    {"a speed below zero", "link_bytes_per_us 25000", "link_bytes_per_us -1", 6, true},
    {"cores with a GPU", "device cuda:1", "device cpu:1", 3, true},
};

Test(profile, files_that_are_no_profiles_are_refused_with_the_line)
{
    scratch s = scratch_file();
    for (size_t k = 0; k < sizeof damages / sizeof *damages; k++) {
        const struct damage *d = &damages[k];
        char text[2048], line[24], gpu[2048];
        const char *whole = d->gpu ? golden_of_gpu(gpu) : golden;
        const char *at = strstr(whole, d->old);
        gpp_error err = GPP_ERROR_INIT;
        gpp_profile *p = (gpp_profile *)&err;
        cr_assert(at, "%s", d->why);
        int length = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, d->new,
                              at + strlen(d->old));
        put(&s, text, (size_t)length);
        gpp_status status = gpp_profile_read(&p, s.path, &err);
        snprintf(line, sizeof line, "line %d", d->line);
        cr_expect_eq(status, GPP_ESYNTAX, "%s: %s", d->why, gpp_status_name(status));
        cr_expect_null(p);
        cr_expect(strstr(err.msg, line) && strstr(err.msg, s.path), "%s: %s", d->why, err.msg);
    }
    unlink(s.path);
}

Test(profile, a_file_that_ends_too_early_anywhere_is_refused)
{
    scratch s = scratch_file();
    for (size_t length = 0; length < sizeof golden - 1; length++) {
        gpp_profile *p;
        put(&s, golden, length);
        cr_expect_eq(gpp_profile_read(&p, s.path, NULL), GPP_ESYNTAX, "%zu bytes", length);
    }
    put(&s, "gridpipe-profile 2\ndevice a\0b\n", 30);
    gpp_profile *p;
    cr_expect_eq(gpp_profile_read(&p, s.path, NULL), GPP_ESYNTAX, "a zero byte");
    unlink(s.path);
}

Test(profile, what_cannot_be_written_or_read_is_an_error)
{
    gpp_error err = GPP_ERROR_INIT;
    scratch s = scratch_file();
    gpp_layer_profile layer = {.label = "a"};
    gpp_profile p = {.layers = 1, .layer = &layer, .device = "none"}, *q;
    cr_expect_eq(gpp_profile_write(&p, "/nowhere/at/all", &err), GPP_EIO);
    cr_expect(strstr(err.msg, "/nowhere/at/all"), "%s", err.msg);
    cr_expect_eq(gpp_profile_write(&p, "/dev/full", NULL), GPP_EIO);
    cr_expect_eq(gpp_profile_read(&q, "/nowhere/at/all", NULL), GPP_EIO);
    cr_expect_eq(gpp_profile_read(&q, "/", NULL), GPP_EIO, "a folder");
    cr_expect_eq(gpp_profile_write(&p, s.path, NULL), GPP_OK);
    const double wrong[] = {-1, NAN, INFINITY, 1e18};
    for (int k = 0; k < 4; k++) {
        layer.backward_us = wrong[k];
        gpp_error_clear(&err);
        cr_expect_eq(gpp_profile_write(&p, s.path, &err), GPP_EINVAL, "%g", wrong[k]);
        cr_expect_eq(err.layer, 0);
    }
    layer.backward_us = 0;
    p.bytes_per_us = INFINITY;
    cr_expect_eq(gpp_profile_write(&p, s.path, NULL), GPP_EINVAL, "no speed");
    p.bytes_per_us = 0;
    gpp_operator_profile op = {.layer = 1, .name = "b"};
    p.operators = 1;
    p.op = &op;
    cr_expect_eq(gpp_profile_write(&p, s.path, NULL), GPP_EINVAL, "of no layer");
    op.layer = 0;
    cr_expect_eq(gpp_profile_write(&p, s.path, NULL), GPP_OK);
    op.keep_us = NAN;
    cr_expect_eq(gpp_profile_write(&p, s.path, NULL), GPP_EINVAL, "no time");
    op.keep_us = 0;
    op.name[0] = 0;
    cr_expect_eq(gpp_profile_write(&p, s.path, NULL), GPP_EINVAL, "no name");
    p.operators = 0;
    layer.label[0] = ' ';
    cr_expect_eq(gpp_profile_write(&p, s.path, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_profile_write(NULL, s.path, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_profile_write(&p, NULL, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_profile_read(NULL, s.path, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_profile_read(&q, NULL, NULL), GPP_EINVAL);
    unlink(s.path);
}
