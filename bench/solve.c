/*
 * bench/solve.c: how long the solvers take to cut a chain of layers: 1,000 layers on 64 devices
 * unless options say otherwise.
 *
 * Every line adds something to the problem. The exact solver stops a search early where a partition
 * gets too slow or too large. With one heavy layer in front it hardly can, and where no cut fits it
 * runs twice.
 */
#include <math.h>
#include <stdlib.h>

#include "bench/common.h"

/* --- what is cut ------------------------------------------------------------------------------ */

enum { SPREAD = 40 }; /* most layers that a skip passes */

typedef struct chain {
    gpp_cut_costs costs;
    double *time; /* [partitions][layers]; only the first row if all devices are alike */
    gpp_device_cost *device;
    size_t *boundary, *layer, *tape;
    gpp_skip_cost *skip;
    int *tapes;
} chain;

/* Multiples of the golden ratio, modulo 1: evenly spread in [0, 1). */
static double spread(double k)
{
    return fmod((k + 1) * 0.6180339887498949, 1);
}

static chain make_chain(int layers, int partitions)
{
    size_t l = (size_t)layers, n = (size_t)partitions;
    chain c = {.costs = GPP_CUT_COSTS_INIT,
               .time = bench_room(n * l * sizeof *c.time),
               .device = bench_room(n * sizeof *c.device),
               .boundary = bench_room(l * sizeof *c.boundary),
               .layer = bench_room(l * sizeof *c.layer),
               .tape = bench_room(l * sizeof *c.tape),
               .tapes = bench_room(n * sizeof *c.tapes)};
    c.costs.layers = layers, c.costs.partitions = partitions, c.costs.device = c.device;
    for (size_t k = 0; k < l; k++)
        c.time[k] = 1000 * spread((double)k);
    for (size_t j = 0; j < n; j++)
        c.device[j] = (gpp_device_cost){c.time, 10, 1e4, 0};
    return c;
}

static void free_chain(chain *c)
{
    free(c->tapes);
    free(c->skip);
    free(c->tape);
    free(c->layer);
    free(c->boundary);
    free(c->device);
    free(c->time);
}

static void add_transfers(chain *c, int skips)
{
    int layers = c->costs.layers;
    c->skip = bench_room((size_t)skips * sizeof *c->skip);
    c->costs.skip = c->skip, c->costs.skips = layers > 1 ? skips : 0;
    c->costs.boundary_bytes = c->boundary;
    for (int l = 0; l < layers; l++)
        c->boundary[l] = (size_t)(1e6 * spread(7 * l));
    for (int k = 0; k < c->costs.skips; k++) {
        int from = (int)((layers - 1) * spread(3 * k)), room = layers - 1 - from;
        int to = from + 1 + (int)(spread(5 * k) * (room < SPREAD ? room : SPREAD));
        c->skip[k] = (gpp_skip_cost){from, to, (size_t)(1e6 * spread(11 * k))};
    }
}

static void add_devices(chain *c)
{
    int layers = c->costs.layers;
    for (int j = c->costs.partitions - 1; j >= 0; j--) {
        double *time = c->time + (size_t)j * (size_t)layers, slower = 1 + spread(j);
        for (int l = 0; l < layers; l++)
            time[l] = slower * c->time[l] + spread(l + 13 * j);
        c->device[j].time_us = time;
    }
}

/* Limits the devices' bytes. @param room  of all devices together; 1: exactly the bytes of all
 * layers with one tape of each */
static void add_limits(chain *c, double room)
{
    int layers = c->costs.layers, partitions = c->costs.partitions;
    double sum = 0;
    for (int l = 0; l < layers; l++) {
        c->layer[l] = (size_t)(1e8 * spread(17 * l)), c->tape[l] = (size_t)(1e7 * spread(19 * l));
        sum += (double)c->layer[l] + (double)c->tape[l];
    }
    for (int j = 0; j < partitions; j++) {
        c->tapes[j] = partitions - j;
        c->device[j].memory_limit = 1 + (size_t)(room * sum / partitions);
    }
    c->costs.layer_bytes = c->layer, c->costs.tape_bytes = c->tape, c->costs.tapes = c->tapes;
}

/* --- measuring -------------------------------------------------------------------------------- */

typedef gpp_status (*solver)(const chain *c, int balance[], double *slowest, gpp_error *err);

static double slowest_of(const chain *c, const int balance[])
{
    double slowest = 0;
    for (int j = 0, l = 0; j < c->costs.partitions; j++) {
        double sum = 0;
        for (int end = l + balance[j]; l < end; l++)
            sum += c->time[l];
        slowest = fmax(slowest, sum);
    }
    return slowest;
}

static gpp_status solve_blocks(const chain *c, int balance[], double *slowest, gpp_error *err)
{
    gpp_status status = gpp_balance_blocks((size_t)c->costs.layers, c->time,
                                           (size_t)c->costs.partitions, balance, err);
    if (status == GPP_OK)
        *slowest = slowest_of(c, balance);
    return status;
}

static gpp_status solve_minmax(const chain *c, int balance[], double *slowest, gpp_error *err)
{
    gpp_status status = gpp_balance_minmax((size_t)c->costs.layers, c->time,
                                           (size_t)c->costs.partitions, balance, err);
    if (status == GPP_OK)
        *slowest = slowest_of(c, balance);
    return status;
}

static gpp_status solve_exact(const chain *c, int balance[], double *slowest, gpp_error *err)
{
    return gpp_balance_exact(&c->costs, balance, slowest, err);
}

static const bench_column columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"solver", "solver", 8, BENCH_TEXT, 0},
    {"costs", "costs", 26, BENCH_TEXT, 0},
    {"layers", "layers", 7, 0, 0},
    {"partitions", "partitions", 10, 0, 0},
    {"skips", "skips", 7, 0, 0},
    {"solve_ms", "ms", 9, 2, 0},
    {"slowest_us", "slowest us", 11, 1, 0},
    {"runs", NULL, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};

enum { MOST_RUNS = 1000 };

/* Measures and prints a line. `fails`: no cut fits. */
static void measure(const bench_report *report, bench_budget budget, const char *name,
                    const char *what, const chain *c, solver solve, bool fails)
{
    static double ms[MOST_RUNS];
    int *balance = bench_room((size_t)c->costs.partitions * sizeof *balance);
    double slowest = NAN, begin = bench_now();
    size_t runs = 0;
    while (runs < MOST_RUNS &&
           (runs < (size_t)budget.least || bench_now() - begin < budget.seconds)) {
        gpp_error err = GPP_ERROR_INIT;
        double from = bench_now();
        gpp_status status = solve(c, balance, &slowest, &err);
        ms[runs++] = 1e3 * (bench_now() - from);
        if (!fails || status != GPP_ENOMEM)
            bench_check(status, &err);
    }
    bench_report_row(
        report, (bench_value[]){bench_text("solve"), bench_text(name), bench_text(what),
                                bench_number(c->costs.layers), bench_number(c->costs.partitions),
                                bench_number(c->costs.skips), bench_number(bench_median(ms, runs)),
                                bench_number(slowest), bench_number((double)runs)});
    free(balance);
}

static void measure_all(const bench_report *report, bench_budget budget, int layers, int partitions,
                        int skips)
{
    chain c = make_chain(layers, partitions);
    measure(report, budget, "blocks", "times", &c, solve_blocks, false);
    measure(report, budget, "minmax", "times", &c, solve_minmax, false);
    measure(report, budget, "exact", "times", &c, solve_exact, false);
    add_transfers(&c, skips);
    measure(report, budget, "exact", "+ boundaries and skips", &c, solve_exact, false);
    add_devices(&c);
    measure(report, budget, "exact", "+ devices that differ", &c, solve_exact, false);
    add_limits(&c, 3.3);
    measure(report, budget, "exact", "+ memory limits", &c, solve_exact, false);
    add_limits(&c, 0.5);
    measure(report, budget, "exact", "that nothing fits into", &c, solve_exact, true);
    add_limits(&c, 1e3);
    for (int j = 0; j < partitions; j++)
        c.time[(size_t)j * (size_t)layers] = 1e9;
    measure(report, budget, "exact", "a heavy layer in front", &c, solve_exact, false);
    free_chain(&c);
}

int main(int argc, char *argv[])
{
    bool json = false, quick = false;
    double seconds = 0;
    int layers = 1000, partitions = 64, skips = 2000;
    const bench_option options[] = {
        {"json", BENCH_FLAG, &json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &quick, "a short run", NULL},
        {"layers", BENCH_INT, &layers, "to cut (1000)", NULL},
        {"partitions", BENCH_INT, &partitions, "to cut them into (64)", NULL},
        {"skips", BENCH_INT, &skips, "between them (2000)", NULL},
        {"seconds", BENCH_REAL, &seconds, "to measure each line (1)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("solve", "Time to cut a chain of layers into partitions.", options, argc,
                       argv);
    bench_report report = {json, columns};
    bench_budget budget = {quick ? 3 : 9, seconds > 0 ? seconds : quick ? 0.05 : 1};
    bench_report_begin(&report, "Solvers: one core");
    measure_all(&report, budget, layers, partitions, skips);
    return 0;
}
