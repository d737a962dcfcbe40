/*
 * tests/test_balance.c: cuts of a chain of layers: the best one against every cut there is, block
 * partition against torchgpipe's answers and its own promise; cuts of models by time, by size and
 * by what operators say of their cost.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gridpipe/balance.h>

#include "tests/parity.h"
#include "tests/support.h"

static const struct cut {
    const char *why;
    size_t layers, partitions;
    double cost[6];
    int balance[4];
} cuts[] = {
    {"one heavy layer stands alone", 4, 3, {1, 9, 1, 1}, {1, 1, 2}},
    {"free layers break no partition", 5, 2, {4, 0, 0, 0, 4}, {1, 4}},
    {"one partition has all", 3, 1, {1, 2, 3}, {3}},
    {"as many partitions as layers", 3, 3, {5, 0, 5}, {1, 1, 1}},
    {"equal layers, equal partitions", 6, 3, {2, 2, 2, 2, 2, 2}, {2, 2, 2}},
    {"of equal cuts the leftmost", 3, 2, {1, 1, 1}, {1, 2}},
    {"nothing costs anything", 4, 2, {0, 0, 0, 0}, {1, 3}},
    {"growing costs", 6, 2, {1, 2, 3, 4, 5, 6}, {4, 2}},
};

Test(balance, known_cuts)
{
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        int balance[4];
        gpp_status status =
            gpp_balance_minmax(cuts[k].layers, cuts[k].cost, cuts[k].partitions, balance, NULL);
        cr_assert_eq(status, GPP_OK, "%s", cuts[k].why);
        for (size_t j = 0; j < cuts[k].partitions; j++)
            cr_expect_eq(balance[j], cuts[k].balance[j], "%s: partition %zu has %d layers",
                         cuts[k].why, j, balance[j]);
    }
}

/* The slowest partition of the best of all cuts of layers l ... layers-1 into k partitions. */
static double best_of_all(const double cost[], int layers, int l, int k)
{
    double sum = 0, best = INFINITY;
    if (k == 1) {
        for (; l < layers; l++)
            sum += cost[l];
        return sum;
    }
    for (int end = l + 1; end <= layers - (k - 1); end++) {
        sum += cost[end - 1];
        best = fmin(best, fmax(sum, best_of_all(cost, layers, end, k - 1)));
    }
    return best;
}

Test(balance, the_slowest_partition_is_as_fast_as_in_the_best_of_all_cuts)
{
    srand(1);
    for (int round = 0; round < 2000; round++) {
        int layers = 1 + rand() % 12, partitions = 1 + rand() % layers, balance[12];
        double cost[12], slowest = 0;
        for (int l = 0; l < layers; l++)
            cost[l] = rand() % (round % 3 ? 100 : 3); /* whole numbers: sums are exact */
        cr_assert_eq(gpp_balance_minmax((size_t)layers, cost, (size_t)partitions, balance, NULL),
                     GPP_OK);
        int l = 0;
        for (int j = 0; j < partitions; j++) {
            double sum = 0;
            cr_assert_geq(balance[j], 1);
            for (int end = l + balance[j]; l < end; l++)
                sum += cost[l];
            slowest = fmax(slowest, sum);
        }
        cr_assert_eq(l, layers, "every layer is in a partition");
        cr_expect_eq(slowest, best_of_all(cost, layers, 0, partitions));
    }
}

static const struct refusal {
    const char *why;
    size_t layers, partitions;
    double cost[3];
    int layer;
    const char *msg;
} refusals[] = {
    {"no partition", 3, 0, {1, 1, 1}, -1, "at least 1 partition"},
    {"no layer", 0, 1, {0}, -1, "(layers: 0, partitions: 1)"},
    {"more partitions than layers", 2, 3, {1, 1}, -1, "(layers: 2, partitions: 3)"},
    {"a negative cost", 3, 2, {1, -1, 1}, 1, "cost of layer 1"},
    {"a cost that is no number", 3, 2, {1, 1, NAN}, 2, "cost of layer 2"},
    {"a cost without end", 3, 2, {INFINITY, 1, 1}, 0, "cost of layer 0"},
};

Test(balance, wrong_calls_are_refused_and_leave_the_balance_alone)
{
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        static gpp_status (*const solvers[])(size_t, const double[], size_t, int[], gpp_error *) = {
            gpp_balance_minmax, gpp_balance_blocks};
        for (int s = 0; s < 2; s++) {
            int balance[3] = {-7, -7, -7};
            gpp_error err = GPP_ERROR_INIT;
            cr_expect_eq(solvers[s](refusals[k].layers, refusals[k].cost, refusals[k].partitions,
                                    balance, &err),
                         GPP_EINVAL, "%s", refusals[k].why);
            cr_expect(strstr(err.msg, refusals[k].msg), "%s: %s", refusals[k].why, err.msg);
            cr_expect_eq(err.layer, refusals[k].layer, "%s", refusals[k].why);
            for (int j = 0; j < 3; j++)
                cr_expect_eq(balance[j], -7, "%s", refusals[k].why);
        }
    }
    cr_expect_eq(gpp_balance_blocks(1, NULL, 1, &(int){0}, NULL), GPP_EINVAL);
    cr_expect_eq(gpp_balance_blocks(1, &(double){0}, 1, NULL, NULL), GPP_EINVAL);
}

Test(balance, a_thousand_layers_on_64_partitions)
{
    static double cost[1000];
    int balance[64], layers = 0;
    srand(2);
    for (int l = 0; l < 1000; l++)
        cost[l] = rand() % 1000;
    clock_t from = clock();
    cr_assert_eq(gpp_balance_minmax(1000, cost, 64, balance, NULL), GPP_OK);
    cr_log_info("1000 layers, 64 partitions: %.1f ms\n",
                (double)(clock() - from) * 1e3 / CLOCKS_PER_SEC);
    for (int j = 0; j < 64; j++)
        layers += balance[j];
    cr_expect_eq(layers, 1000);
}

/* --- block partition -------------------------------------------------------------------------- */

static const struct blocks {
    const char *why;
    size_t layers, partitions;
    double cost[11];
    int balance[4];
} known_blocks[] = {
    {"growing", 6, 2, {1, 2, 3, 4, 5, 6}, {4, 2}},
    {"shrinking", 6, 2, {6, 5, 4, 3, 2, 1}, {2, 4}},
    {"nothing costs anything", 2, 2, {0, 0}, {1, 1}},
    {"what is left over goes last", 7, 3, {1, 1, 1, 1, 1, 1, 1}, {2, 2, 3}},
    {"and stays there", 10, 4, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 4}},
    {"whatever the unit", 5, 2, {4, 4, 4, 4, 4}, {2, 3}},
    {"a heavy one in front", 6, 3, {5, 1, 1, 1, 1, 1}, {2, 2, 2}},
    {"heavy ends", 10, 4, {10, 1, 1, 1, 1, 1, 1, 1, 1, 10}, {2, 2, 2, 4}},
    {"digits of pi", 11, 4, {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}, {3, 3, 2, 3}},
    {"ten layers", 10, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {6, 2, 2}},
    {"a larger unit", 8, 3, {10, 20, 30, 40, 50, 60, 70, 80}, {4, 2, 2}},
    {"alternating", 8, 3, {2, 8, 2, 8, 2, 8, 2, 8}, {2, 2, 4}},
    {"of equally large blocks the last gives first", 6, 3, {3, 3, 0, 1, 3, 3}, {2, 3, 1}},
    {"one heavy layer", 4, 2, {1, 100, 1, 1}, {2, 2}},
    {"a heavy one alone", 4, 3, {100, 1, 1, 1}, {1, 1, 2}},
    {"costs that no float32 holds", 3, 2, {0, 1e300, 1e300}, {2, 1}},
    {"the smallest there are", 3, 2, {0, 5e-324, 5e-324}, {2, 1}},
};

Test(balance, known_blocks)
{
    for (size_t k = 0; k < sizeof known_blocks / sizeof *known_blocks; k++) {
        const struct blocks *c = &known_blocks[k];
        int balance[4];
        cr_assert_eq(gpp_balance_blocks(c->layers, c->cost, c->partitions, balance, NULL), GPP_OK,
                     "%s", c->why);
        for (size_t j = 0; j < c->partitions; j++)
            cr_expect_eq(balance[j], c->balance[j], "%s: partition %zu has %d layers", c->why, j,
                         balance[j]);
    }
}

/* Numbers up to `end`. Returns how many. */
static size_t read_numbers(char **at, double number[], size_t room)
{
    size_t count = 0;
    for (char *end; count < room; count++, *at = end) {
        number[count] = strtod(*at, &end);
        if (end == *at)
            break;
    }
    *at += strspn(*at, " |\n");
    return count;
}

Test(balance, blocks_are_torchgpipes_on_every_reference_case)
{
    static char line[1 << 16];
    static double partitions[1], cost[4096], want[256];
    char path[1024];
    const char *given = getenv("GRIDPIPE_VECTORS");
    int cases = 0;
    if (given && *given)
        snprintf(path, sizeof path, "%s/blockpartition.txt", given);
    else
        snprintf(path, sizeof path, "%s/../shared/vectors/blockpartition.txt", GPP_SOURCE_DIR);
    FILE *in = fopen(path, "r");
    if (!in)
        cr_skip_test("there are no reference vectors");
    while (fgets(line, sizeof line, in)) {
        char *at = line;
        int balance[256];
        if (*line == '#')
            continue;
        cr_assert_eq(read_numbers(&at, partitions, 1), 1, "line \"%.40s\"", line);
        size_t layers = read_numbers(&at, cost, 4096), count = read_numbers(&at, want, 256);
        cr_assert(count == (size_t)partitions[0] && layers >= count && !*at, "line \"%.40s\"",
                  line);
        cr_assert_eq(gpp_balance_blocks(layers, cost, count, balance, NULL), GPP_OK);
        for (size_t j = 0; j < count; j++)
            cr_expect_eq(balance[j], (int)want[j], "case %d: partition %zu has %d layers, not %g",
                         cases, j, balance[j], want[j]);
        cases++;
    }
    fclose(in);
    cr_expect_geq(cases, 100);
}

/* Costs of round `round`: few values, many, all sizes, one that stands out. */
static double draw(int round)
{
    switch (round % 5) {
    case 0:
        return rand() % 3;
    case 1:
        return rand() % 100;
    case 2:
        return exp(rand() % 14);
    case 3:
        return rand() % 10 ? 1 : 1000;
    default:
        return (double)rand() / RAND_MAX;
    }
}

Test(balance, blocks_are_never_empty_and_differ_by_less_than_the_costliest_layer)
{
    srand(3);
    for (int round = 0; round < 20000; round++) {
        int layers = 1 + rand() % (round % 10 ? 14 : 200), partitions = 1 + rand() % layers;
        int balance[200], l = 0;
        double cost[200], low = INFINITY, high = 0, least = INFINITY, most = 0;
        for (int k = 0; k < layers; k++) {
            cost[k] = draw(round);
            low = fmin(low, cost[k]);
            high = fmax(high, cost[k]);
        }
        cr_assert_eq(gpp_balance_blocks((size_t)layers, cost, (size_t)partitions, balance, NULL),
                     GPP_OK);
        for (int j = 0; j < partitions; j++) {
            double sum = 0;
            cr_assert_geq(balance[j], 1, "round %d: partition %d is empty", round, j);
            for (int end = l + balance[j]; l < end; l++)
                sum += cost[l] - low;
            least = fmin(least, sum);
            most = fmax(most, sum);
        }
        cr_assert_eq(l, layers, "every layer is in a partition");
        /* The sums here are rounded: 200 times half a unit of the largest, 2e-14 of it. */
        cr_expect(most - least <= (high - low) * (1 + 1e-12) + 1e-12 * most,
                  "round %d: blocks differ by %g, layers by %g", round, most - least, high - low);
    }
}

Test(balance, blocks_do_not_depend_on_the_unit)
{
    srand(4);
    for (int round = 0; round < 1000; round++) {
        int layers = 2 + rand() % 40, partitions = 1 + rand() % layers, a[42], b[42];
        double cost[42], scaled[42];
        for (int k = 0; k < layers; k++) {
            cost[k] = rand() % 50;
            scaled[k] = ldexp(cost[k] + 7, -30); /* exact */
        }
        gpp_balance_blocks((size_t)layers, cost, (size_t)partitions, a, NULL);
        gpp_balance_blocks((size_t)layers, scaled, (size_t)partitions, b, NULL);
        cr_expect_eq(memcmp(a, b, (size_t)partitions * sizeof *a), 0, "round %d", round);
    }
}

Test(balance, parameters_count_as_often_as_the_optimizer_keeps_them)
{
    static const struct {
        const char *optimizer;
        double scale;
    } cases[] = {{NULL, 2},
                 {"sgd lr=0.1", 2},
                 {"sgd lr=0.1 momentum=0.9", 3},
                 {"rmsprop lr=0.1", 3},
                 {"adam lr=0.1", 4}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_error err = GPP_ERROR_INIT;
        double scale = 0;
        cr_expect_eq(gpp_optimizer_param_scale(cases[k].optimizer, &scale, &err), GPP_OK, "%s",
                     err.msg);
        cr_expect_eq(scale, cases[k].scale, "%s: %g",
                     cases[k].optimizer ? cases[k].optimizer : "none", scale);
    }
    double scale = 7;
    gpp_error err = GPP_ERROR_INIT;
    cr_expect_eq(gpp_optimizer_param_scale("adamant", &scale, &err), GPP_ENOENT);
    cr_expect_eq(gpp_optimizer_param_scale("adam", NULL, NULL), GPP_EINVAL);
    cr_expect_eq(scale, 7);
}

/* --- cuts of models --------------------------------------------------------------------------- */

static gpp_profile_options sweeps(int count)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    o.device = "cpu:0";
    o.timeout_ms = 60000;
    o.precision = 0;
    o.max_sweeps = count;
    return o;
}

/* Layers sleep, so that they take their time on any machine. The heavy ones part as long as no
 * light one takes half of a heavy one's time in most sweeps. */
Test(balance, a_cut_by_time_parts_the_slow_layers)
{
    static const struct {
        const char *text;
        int inputs, balance[2];
    } cases[] = {
        {"act ms=0.2; act ms=0.2; act ms=0.2; act ms=0.2; act ms=20; act ms=20", 1, {5, 1}},
        {"act ms=20; act ms=20; act ms=0.2; act ms=0.2; act ms=0.2; act ms=0.2", 2, {1, 5}},
    };
    const gpp_shape in[] = {{.rank = 1, .dim = {1}}, {.dtype = GPP_I64}};
    const gpp_profile_options o = sweeps(5);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gpp_model *model = parity_with(cases[k].text, in, cases[k].inputs);
        gpp_error err = GPP_ERROR_INIT;
        int balance[2];
        cr_assert_eq(gpp_balance_by_time(model, 2, 3, &o, balance, &err), GPP_OK, "%s", err.msg);
        cr_expect(balance[0] == cases[k].balance[0] && balance[1] == cases[k].balance[1],
                  "balance %d, %d", balance[0], balance[1]);
        gpp_model_free(model);
    }
}

/* Shapes change on the way, and the next sweep begins with the first one's again. */
Test(balance, every_sweep_begins_with_the_shapes_of_the_first)
{
    gpp_model *model = parity_model("act id=1; conv2d out=2 kernel=1; flatten; linear out=10; act");
    parity_input(model, 3, (int64_t[]){3, 8, 8});
    const gpp_profile_options o = sweeps(4);
    gpp_error err = GPP_ERROR_INIT;
    int balance[2];
    cr_assert_eq(gpp_balance_by_time(model, 2, 7, &o, balance, &err), GPP_OK, "%s", err.msg);
    cr_expect(balance[0] >= 1 && balance[1] >= 1 && balance[0] + balance[1] == 5);
    cr_expect_eq(parity_count('F', 1), 5, "a sweep for warming up, and 4");
    cr_expect_eq(parity_count('F', 0), 5);
    for (int e = 0; e < parity_diary_now.events; e++)
        cr_expect_eq(parity_diary_now.event[e].rows, 7);
    gpp_model_free(model);
}

/* size params=P latents=L: the first tensor passed on, P·P parameters, its value kept L times. */
static gpp_status size_infer(gpp_signature *s)
{
    int64_t side = (int64_t)s->attr[0][0];
    s->outputs = s->inputs;
    memcpy(s->out, s->in, (size_t)s->inputs * sizeof *s->in);
    s->params = side > 0;
    s->param[0] = (gpp_param_shape){"weight", 2, {side, side}};
    s->saved = (int)s->attr[1][0];
    for (int k = 0; k < s->saved; k++)
        s->saving[k] = s->in[0];
    return GPP_OK;
}
static gpp_status never(gpp_call *call)
{
    return gpp_call_fail(call, GPP_EKERNEL, "only its size is of interest");
}

static gpp_model *of_sizes(const char *text, const gpp_shape in[], int count)
{
    static const gpp_operator_key keys[] = {
        {"params", 1, false, 0, 0, 100}, {"latents", 1, false, 0, 0, GPP_MAX_PARAMS}, {0}};
    const gpp_operator size = {
        .name = "size", .keys = keys, .infer = size_infer, .forward = never, .backward = never};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    parity_register(model, &size);
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_inputs(model, in, count, &err), GPP_OK, "%s", err.msg);
    return model;
}

/* Tapes of 8 rows of 32 KiB, parameters, or both, by their scale. Every layer has a parameter, so
 * that it has a backward. */
Test(balance, a_cut_by_size_goes_by_tapes_and_parameters)
{
    static const char tradeoff[] = "size params=10 latents=6; size params=20 latents=5; "
                                   "size params=30 latents=4; size params=40 latents=3; "
                                   "size params=50 latents=2; size params=60 latents=1";
    static const struct {
        const char *text;
        int inputs;
        int64_t features;
        double scale;
        int balance[2];
    } cases[] = {
        {.text = "size params=1 latents=1; size params=1 latents=2; size params=1 latents=3; "
                 "size params=1 latents=4; size params=1 latents=5; size params=1 latents=6",
         .inputs = 1,
         .features = 1024,
         .balance = {4, 2}},
        {.text = "size params=1 latents=6; size params=1 latents=5; size params=1 latents=4; "
                 "size params=1 latents=3; size params=1 latents=2; size params=1 latents=1",
         .inputs = 1,
         .features = 1024,
         .balance = {2, 4}},
        {.text = "linear out=2; linear out=3; linear out=4; linear out=5; linear out=6; "
                 "linear out=7",
         .inputs = 1,
         .features = 1,
         .scale = 100,
         .balance = {4, 2}},
        {.text = "linear out=6; linear out=5; linear out=4; linear out=3; linear out=2; "
                 "linear out=1",
         .inputs = 1,
         .features = 7,
         .scale = 100,
         .balance = {2, 4}},
        {.text = tradeoff, .inputs = 1, .features = 1024, .balance = {2, 4}},
        {.text = tradeoff, .inputs = 1, .features = 1024, .scale = 100, .balance = {4, 2}},
        {.text = tradeoff, .inputs = 2, .features = 1024, .balance = {2, 4}},
        {.text = tradeoff, .inputs = 2, .features = 1024, .scale = 100, .balance = {4, 2}},
    };
    gpp_error err = GPP_ERROR_INIT;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const gpp_shape in[] = {{.rank = 1, .dim = {cases[k].features}}, {.dtype = GPP_I64}};
        gpp_model *model = of_sizes(cases[k].text, in, cases[k].inputs);
        int balance[2];
        cr_assert_eq(gpp_balance_by_size(model, 2, 16, 2, cases[k].scale, balance, &err), GPP_OK,
                     "%s", err.msg);
        cr_expect(balance[0] == cases[k].balance[0] && balance[1] == cases[k].balance[1],
                  "case %zu: balance %d, %d", k, balance[0], balance[1]);
        gpp_model_free(model);
    }
    const gpp_shape wide = {.rank = 1, .dim = {1024}};
    gpp_model *model = of_sizes(tradeoff, &wide, 1);
    int whole[2], pieces[2]; /* fewer rows, less to keep: parameters decide */
    cr_assert_eq(gpp_balance_by_size(model, 2, 64, 1, GPP_PARAM_SCALE, whole, NULL), GPP_OK);
    cr_assert_eq(gpp_balance_by_size(model, 2, 64, 64, GPP_PARAM_SCALE, pieces, NULL), GPP_OK);
    cr_expect_eq(whole[0], 2, "%d", whole[0]);
    cr_expect_gt(pieces[0], 3, "%d", pieces[0]);
    gpp_model_free(model);
}

/* Everything a pipe has by name, one after the other, gradients too if there are any. @return bytes */
static size_t state_of(gpp_pipe *pipe, char *to)
{
    size_t at = 0;
    for (int k = 0; k < gpp_pipe_parameters(pipe); k++) {
        gpp_parameter_info info;
        gpp_pipe_parameter(pipe, k, &info, NULL);
        cr_assert_eq(gpp_pipe_get(pipe, info.name, (float *)(to + at), info.count, NULL), GPP_OK);
        at += ((size_t)info.count * sizeof(float) + 7) / 8 * 8;
        if (gpp_pipe_gradient(pipe, info.name, (float *)(to + at), info.count, NULL) == GPP_OK)
            at += ((size_t)info.count * sizeof(float) + 7) / 8 * 8;
    }
    for (int k = 0; k < gpp_pipe_buffers(pipe); k++) {
        gpp_buffer_info info;
        gpp_pipe_buffer(pipe, k, &info, NULL);
        cr_assert_eq(gpp_pipe_get_buffer(pipe, info.name, to + at, info.count, NULL), GPP_OK);
        at += ((size_t)info.count * gpp_dtype_size(info.dtype) + 7) / 8 * 8;
    }
    return at;
}

/* A profile trains, whatever else runs, and leaves the model and its pipes as they are. */
Test(balance, a_profile_leaves_models_and_pipes_alone)
{
    gpp_model *model = parity_model("linear out=3; batchnorm; act; linear out=2");
    static char before[4096], after[4096];
    float x[12], y[8], grad[8];
    const gpp_tensor tx = {x, GPP_F32, 2, {4, 3}}, ty = {y, GPP_F32, 2, {4, 2}},
                     tg = {grad, GPP_F32, 2, {4, 2}};
    const gpp_profile_options o = sweeps(1);
    gpp_error err = GPP_ERROR_INIT;
    gpp_layer_info info[4], now;
    parity_input(model, 1, (int64_t[]){3});
    gpp_pipe *pipe = parity_plain(model);
    test_fill(x, 12, 1, -1, 1);
    test_fill(grad, 8, 2, -1, 1);
    parity_pass(pipe, &tx, &ty, &tg, NULL);
    size_t bytes = state_of(pipe, before);
    for (int u = 0; u < 4; u++)
        gpp_model_layer(model, u, &info[u], NULL);
    parity_diary_now.events = 0;
    for (int k = 0; k < 2; k++) {
        gpp_profile *p;
        cr_assert_eq(gpp_profile_new(&p, model, 4, &o, &err), GPP_OK, "%s", err.msg);
        gpp_profile_free(p);
    }
    int profiled = parity_diary_now.events;
    cr_expect_gt(profiled, 0);
    for (int u = 0; u < 4; u++) {
        gpp_model_layer(model, u, &now, NULL);
        cr_expect(!memcmp(now.dim, info[u].dim, sizeof now.dim) && now.op == info[u].op &&
                  now.label == info[u].label && now.parameters == info[u].parameters &&
                  now.device == info[u].device);
    }
    cr_expect_eq(state_of(pipe, after), bytes);
    cr_expect_eq(memcmp(before, after, bytes), 0, "parameters, gradients and running statistics");
    cr_assert_eq(gpp_pipe_evaluate(pipe, &tx, NULL, &ty, NULL, NULL), GPP_OK);
    for (int e = 0; e < parity_diary_now.events; e++)
        cr_expect_eq(parity_diary_now.event[e].training, e < profiled, "event %d", e);
    cr_expect_eq(parity_diary_now.events, profiled + 1);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

/* load cost=C: every tensor passed on, at C million flops a row. */
static gpp_status load_infer(gpp_signature *s)
{
    s->outputs = s->inputs;
    memcpy(s->out, s->in, (size_t)s->inputs * sizeof *s->in);
    return GPP_OK;
}
static double load_flops(const gpp_signature *s)
{
    return s->attr[0][0] * 1e6;
}

static void expect_cut(gpp_model *model, const int want[2])
{
    gpp_pipe *pipe = parity_pipe(model, 2, NULL, 1, GPP_CHECKPOINT_EXCEPT_LAST);
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    cr_expect(info.balance[0] == want[0] && info.balance[1] == want[1], "balance %d, %d",
              info.balance[0], info.balance[1]);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
}

static gpp_model *loads(const char *text, const gpp_shape in[], int count)
{
    static const gpp_operator_key keys[] = {{"cost", 1, true, 0, 0, 1000}, {0}};
    const gpp_operator load = {
        .name = "load", .keys = keys, .infer = load_infer, .forward = never, .flops = load_flops};
    gpp_model *model = parity_model(NULL);
    gpp_error err = GPP_ERROR_INIT;
    parity_register(model, &load);
    cr_assert_eq(gpp_model_add_text(model, text, &err), GPP_OK, "%s", err.msg);
    cr_assert_eq(gpp_model_set_inputs(model, in, count, &err), GPP_OK, "%s", err.msg);
    return model;
}

static const char rising[] = "load cost=10; load cost=20; load cost=30; load cost=40; "
                             "load cost=50; load cost=60";
static const char falling[] = "load cost=60; load cost=50; load cost=40; load cost=30; "
                              "load cost=20; load cost=10";

Test(balance, without_a_balance_a_pipe_is_cut_by_what_operators_say)
{
    const gpp_shape in = {.rank = 1, .dim = {1}}, pair[] = {in, {.dtype = GPP_I64}};
    expect_cut(loads(rising, &in, 1), (int[]){4, 2});
    expect_cut(loads(falling, &in, 1), (int[]){2, 4});
    expect_cut(loads(rising, pair, 2), (int[]){4, 2});
    gpp_model *model = parity_model("conv2d out=2 kernel=1; flatten; linear out=10");
    parity_input(model, 3, (int64_t[]){3, 8, 8});
    expect_cut(model, (int[]){1, 2});
}
