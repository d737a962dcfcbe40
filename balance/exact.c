/*
 * balance/exact.c: the cut of a chain into contiguous partitions, one to a device, whose slowest
 * one is as fast as possible while each fits into its device's memory.
 *
 * Dynamic programming over prefixes, where j partitions hold the first b layers and the last of
 * them begins at a:
 *
 *     best(j, b) = min over a < b of max(best(j-1, a), price(j, a, b))
 *
 * The price is the partition's time, or infinite when it does not fit. Of equally good a the lowest
 * is taken. Where nothing fits, the same program runs again with the bytes over the limit as the
 * price, so that the message can tell what is missing.
 *
 * The bytes of layers a ... b-1 and of the tensors at their two ends are a *span*, the same for
 * every device. For each b, one walk down measures the spans of all a; it looks at a skip where the
 * skip begins and where it ends. Tensors and bytes are whole numbers, and times are summed from
 * right to left, so equal sets of layers compare equal. As a goes down, the layers' times and bytes
 * grow. So do the bytes that leave at b, since no lower a keeps them inside. The bytes that come in
 * may shrink. So the search for a stops where the price without what comes in exceeds the best.
 *
 * Sums of bytes fit 64 bits and sums of times are finite: costs whose total does not are refused
 * first.
 */
#include <gridpipe/balance.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

typedef struct traffic {
    uint64_t tensors, bytes;
} traffic;

/* Layers a ... b-1. */
typedef struct span {
    traffic out; /* leaves at b */
    traffic in;  /* comes in at a */
    uint64_t layer_bytes, tape_bytes, scratch_bytes;
} span;

/* A skip as seen from the layer at one of its ends. */
typedef struct skip_end {
    int other;
    uint64_t bytes;
} skip_end;

typedef struct problem {
    const gpp_cut_costs *costs;
    size_t row;     /* layers + 1 */
    bool excess;    /* the price is the bytes over the limit */
    size_t *first;  /* [layers + 1] where `ends` has those of a layer */
    skip_end *ends; /* [2 · skips] */
    span *spans;    /* [layers] the spans that end at the present b, by their a */
    double *best;   /* [partitions + 1][row]; INFINITY: there is no such cut */
    int *begin;     /* [partitions + 1][row] the first layer of the last partition */
} problem;

/* --- what is refused -------------------------------------------------------------------------- */

/* gpp__fail_layer that names the partition as well. */
__attribute__((format(printf, 5, 6))) static gpp_status
fail_at(gpp_error *err, gpp_status code, int layer, int partition, const char *format, ...)
{
    bool first = err && err->code == GPP_OK;
    char msg[sizeof err->msg];
    va_list args;
    va_start(args, format);
    vsnprintf(msg, sizeof msg, format, args);
    va_end(args);
    gpp__fail_layer(err, code, layer, "%s", msg);
    if (first)
        err->partition = partition;
    return code;
}

static gpp_status check_call(const gpp_cut_costs *c, const int balance[], gpp_error *err)
{
    if (!c || !balance)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", c ? "balance" : "costs");
    if (c->struct_size != sizeof *c)
        return gpp__fail(err, GPP_EINVAL,
                         "costs must start from GPP_CUT_COSTS_INIT (struct_size is %zu)",
                         c->struct_size);
    if (c->partitions < 1)
        return gpp__fail(err, GPP_EINVAL, "there must be at least 1 partition, got %d",
                         c->partitions);
    if (c->layers < c->partitions)
        return gpp__fail(err, GPP_EINVAL,
                         "too few layers for the partitions (layers: %d, partitions: %d)",
                         c->layers, c->partitions);
    if (!c->device)
        return gpp__fail(err, GPP_EINVAL, "device is NULL");
    if (c->skips < 0 || (c->skips > 0 && !c->skip))
        return gpp__fail(err, GPP_EINVAL, c->skips < 0 ? "%d skips" : "%d skips, and skip is NULL",
                         c->skips);
    return GPP_OK;
}

static gpp_status check_skips(const gpp_cut_costs *c, gpp_error *err)
{
    for (int k = 0; k < c->skips; k++) {
        const gpp_skip_cost *s = &c->skip[k];
        if (s->from < 0 || s->from >= s->to || s->to >= c->layers)
            return gpp__fail(err, GPP_EINVAL,
                             "skip %d goes from layer %d to layer %d, must go forwards, from layer "
                             "0 at the earliest to layer %d at most",
                             k, s->from, s->to, c->layers - 1);
    }
    return GPP_OK;
}

static gpp_status check_times(const gpp_cut_costs *c, int j, double *sum, gpp_error *err)
{
    const double *time = c->device[j].time_us;
    if (!time)
        return fail_at(err, GPP_EINVAL, -1, j, "time_us of partition %d's device is NULL", j);
    for (int l = 0; l < c->layers; l++) {
        if (!(time[l] >= 0)) /* NaN */
            return fail_at(err, GPP_EINVAL, l, j,
                           "time of layer %d on partition %d must be >= 0, got %g", l, j, time[l]);
        *sum += time[l] < INFINITY ? time[l] : 0;
    }
    return GPP_OK;
}

static double link_us(double us, double bytes_per_us, traffic x)
{
    return (double)x.tensors * us + (double)x.bytes / bytes_per_us;
}

/* What comes into partition j and what goes out of it. */
static double transfer_us(const gpp_cut_costs *c, int j, traffic in, traffic out)
{
    const gpp_device_cost *d = &c->device[j];
    double us = 0;
    if (!c->link) {
        us = link_us(d->link_us, d->bytes_per_us,
                     (traffic){in.tensors + out.tensors, in.bytes + out.bytes});
    } else {
        us += j > 0 ? link_us(c->link[j].us, c->link[j].bytes_per_us, in) : 0;
        us += j + 1 < c->partitions ? link_us(c->link[j + 1].us, c->link[j + 1].bytes_per_us, out)
                                    : 0;
    }
    return c->forward_only ? us : 2 * us;
}

static gpp_status check_link(const gpp_cut_costs *c, int j, gpp_error *err)
{
    const gpp_link_cost *l = c->link && j > 0 ? &c->link[j] : NULL;
    if (l && !(l->us >= 0 && l->us < INFINITY && l->bytes_per_us > 0))
        return fail_at(err, GPP_EINVAL, -1, j,
                       "the link to partition %d must have finite us >= 0 and bytes_per_us > 0, "
                       "got %g and %g",
                       j, l->us, l->bytes_per_us);
    return GPP_OK;
}

/* @param all  all tensors that could be sent */
static gpp_status check_device(const gpp_cut_costs *c, int j, traffic all, gpp_error *err)
{
    const gpp_device_cost *d = &c->device[j];
    double sum = 0;
    gpp_status status = check_times(c, j, &sum, err);
    if (status != GPP_OK)
        return status;
    if (!(d->link_us >= 0 && d->link_us < INFINITY))
        return fail_at(err, GPP_EINVAL, -1, j,
                       "link_us of partition %d's device must be finite and >= 0, got %g", j,
                       d->link_us);
    if (!(d->bytes_per_us > 0))
        return fail_at(err, GPP_EINVAL, -1, j,
                       "bytes_per_us of partition %d's device must be > 0, got %g", j,
                       d->bytes_per_us);
    status = check_link(c, j, err);
    if (status != GPP_OK)
        return status;
    if (!isfinite(sum + transfer_us(c, j, (traffic){0}, all) +
                  transfer_us(c, j, all, (traffic){0})))
        return fail_at(err, GPP_EINVAL, -1, j,
                       "times on partition %d's device add up to infinity (of layers: %g, of "
                       "transfers: %g)",
                       j, sum, transfer_us(c, j, (traffic){0}, all));
    return GPP_OK;
}

/* Set *most to the largest of count[partitions], at least 1. */
static gpp_status check_counts(const gpp_cut_costs *c, const int count[], const char *name,
                               uint64_t *most, gpp_error *err)
{
    *most = 1;
    for (int j = 0; count && j < c->partitions; j++) {
        if (count[j] < 0)
            return fail_at(err, GPP_EINVAL, -1, j, "%s of partition %d must be >= 0, got %d", name,
                           j, count[j]);
        if ((uint64_t)count[j] > *most)
            *most = (uint64_t)count[j];
    }
    return GPP_OK;
}

static size_t at(const size_t bytes[], int l)
{
    return bytes ? bytes[l] : 0;
}

/* False: the sum does not fit 64 bits. */
static bool add(uint64_t *sum, uint64_t times, size_t bytes)
{
    uint64_t product;
    return !__builtin_mul_overflow(times, bytes, &product) &&
           !__builtin_add_overflow(*sum, product, sum);
}

static void add_tensor(traffic *x, uint64_t bytes)
{
    x->tensors += bytes > 0;
    x->bytes += bytes;
}

/* @param all  out: all tensors that could be sent */
static gpp_status check_bytes(const gpp_cut_costs *c, traffic *all, gpp_error *err)
{
    uint64_t sum = 0, tapes, boundaries;
    gpp_status status = check_counts(c, c->tapes, "tapes", &tapes, err);
    if (status == GPP_OK)
        status = check_counts(c, c->boundaries, "boundaries", &boundaries, err);
    for (int l = 0; status == GPP_OK && l < c->layers; l++) {
        add_tensor(all, at(c->boundary_bytes, l));
        if (!add(&sum, 1, at(c->layer_bytes, l)) || !add(&sum, tapes, at(c->tape_bytes, l)) ||
            !add(&sum, boundaries, at(c->boundary_bytes, l)) ||
            !add(&sum, 1, at(c->scratch_bytes, l)))
            status = gpp__fail_layer(err, GPP_EINVAL, l,
                                     "bytes of layers 0 ... %d add up to more than 2^64", l);
    }
    for (int k = 0; status == GPP_OK && k < c->skips; k++) {
        add_tensor(all, c->skip[k].bytes);
        if (!add(&sum, boundaries, c->skip[k].bytes))
            status =
                gpp__fail(err, GPP_EINVAL,
                          "bytes of all layers and of skips 0 ... %d add up to more than 2^64", k);
    }
    return status;
}

static gpp_status check(const gpp_cut_costs *c, const int balance[], gpp_error *err)
{
    traffic all = {0, 0};
    gpp_status status = check_call(c, balance, err);
    if (status == GPP_OK)
        status = check_skips(c, err);
    if (status == GPP_OK)
        status = check_bytes(c, &all, err);
    for (int j = 0; status == GPP_OK && j < c->partitions; j++)
        status = check_device(c, j, all, err);
    return status;
}

/* --- spans and their price -------------------------------------------------------------------- */

/* Both ends of every skip, sorted by layer. */
static void sort_skips(problem *p)
{
    const gpp_cut_costs *c = p->costs;
    size_t sum = 0;
    for (int k = 0; k < c->skips; k++) {
        p->first[c->skip[k].from]++;
        p->first[c->skip[k].to]++;
    }
    for (int l = 0; l <= c->layers; l++)
        p->first[l] = sum += p->first[l];
    for (int k = 0; k < c->skips; k++) {
        const gpp_skip_cost *s = &c->skip[k];
        p->ends[--p->first[s->from]] = (skip_end){s->to, s->bytes};
        p->ends[--p->first[s->to]] = (skip_end){s->from, s->bytes};
    }
}

/* Put layer l in front of a span that ends at b. */
static void take_in_skips(const problem *p, int l, int b, span *s)
{
    for (size_t k = p->first[l]; k < p->first[l + 1]; k++) {
        const skip_end *e = &p->ends[k];
        if (e->other < l) {
            add_tensor(&s->in, e->bytes);
        } else if (e->other >= b) {
            add_tensor(&s->out, e->bytes);
        } else { /* the tensor came in until now */
            s->in.tensors -= e->bytes > 0;
            s->in.bytes -= e->bytes;
        }
    }
}

static void measure_spans(problem *p, int b)
{
    const gpp_cut_costs *c = p->costs;
    span s = {0};
    if (b < c->layers)
        add_tensor(&s.out, at(c->boundary_bytes, b - 1));
    for (int a = b; a-- > 0;) {
        take_in_skips(p, a, b, &s);
        s.layer_bytes += at(c->layer_bytes, a);
        s.tape_bytes += at(c->tape_bytes, a);
        if (at(c->scratch_bytes, a) > s.scratch_bytes)
            s.scratch_bytes = at(c->scratch_bytes, a);
        p->spans[a] = s;
        if (a > 0)
            add_tensor(&p->spans[a].in, at(c->boundary_bytes, a - 1));
    }
}

static uint64_t span_bytes(const gpp_cut_costs *c, int j, const span *s, traffic x)
{
    return s->layer_bytes + s->tape_bytes * (c->tapes ? (uint64_t)c->tapes[j] : 1) +
           x.bytes * (c->boundaries ? (uint64_t)c->boundaries[j] : 1) + s->scratch_bytes;
}

/* The bytes over the device's limit; 0: the span fits. */
static uint64_t over_limit(const gpp_cut_costs *c, int j, uint64_t bytes)
{
    uint64_t limit = c->device[j].memory_limit;
    return limit > 0 && bytes > limit ? bytes - limit : 0;
}

/* The price of a span on partition j. @param us the time of its layers */
static inline double price(const problem *p, int j, const span *s, traffic in, double us)
{
    const gpp_cut_costs *c = p->costs;
    traffic x = {in.tensors + s->out.tensors, in.bytes + s->out.bytes};
    const gpp_device_cost *d = &c->device[j];
    uint64_t over = d->memory_limit > 0 ? over_limit(c, j, span_bytes(c, j, s, x)) : 0;
    if (p->excess)
        return (double)over;
    if (over > 0)
        return INFINITY;
    if (x.tensors == 0)
        return us;
    double transfer = transfer_us(c, j, in, s->out);
    return c->overlap ? fmax(us, transfer) : us + transfer;
}

/* --- dynamic programming ---------------------------------------------------------------------- */

/* Compute best(j + 1, b): the last partition, j, ends at b. */
static void place_last(problem *p, int j, int b)
{
    const double *fewer = p->best + (size_t)j * p->row, *time = p->costs->device[j].time_us;
    double us = 0, best = INFINITY;
    int begin = 0;
    for (int a = b; a-- > j;) {
        const span *s = &p->spans[a];
        us += time[a];
        double least = us < INFINITY ? price(p, j, s, (traffic){0}, us) : INFINITY;
        if (least > best || least == INFINITY)
            break;
        if (fewer[a] > best || fewer[a] == INFINITY)
            continue;
        double full = price(p, j, s, s->in, us), slowest = fewer[a] > full ? fewer[a] : full;
        if (slowest <= best) {
            best = slowest;
            begin = a;
        }
    }
    p->best[(size_t)(j + 1) * p->row + (size_t)b] = best;
    p->begin[(size_t)(j + 1) * p->row + (size_t)b] = begin;
}

static bool may_end_at(const gpp_cut_costs *c, int b)
{
    return b == c->layers || !c->whole || !c->whole[b - 1];
}

/* @return best(partitions, layers) */
static double solve(problem *p, bool excess)
{
    const gpp_cut_costs *c = p->costs;
    p->excess = excess;
    for (size_t k = 0; k < p->row * (size_t)(c->partitions + 1); k++)
        p->best[k] = INFINITY;
    p->best[0] = 0;
    for (int b = 1; b <= c->layers; b++) {
        if (!may_end_at(c, b))
            continue;
        measure_spans(p, b);
        for (int j = 0; j < c->partitions && j < b; j++)
            place_last(p, j, b);
    }
    return p->best[p->row * (size_t)c->partitions + (size_t)c->layers];
}

static int begin_of(const problem *p, int j, int b)
{
    return p->begin[(size_t)(j + 1) * p->row + (size_t)b];
}

/* --- why there is no cut ---------------------------------------------------------------------- */

/* Write "layer 3" or "layers 3 ... 5" for a ... b-1. */
static const char *layers_text(char text[48], int a, int b)
{
    if (b - a == 1)
        snprintf(text, 48, "layer %d", a);
    else
        snprintf(text, 48, "layers %d ... %d", a, b - 1);
    return text;
}

/* The end of the block of layers that have to stay together with layer a. */
static int block_end(const gpp_cut_costs *c, int a)
{
    int b = a + 1;
    while (!may_end_at(c, b))
        b++;
    return b;
}

static bool can_run(const gpp_device_cost *d, int a, int b)
{
    for (; a < b; a++)
        if (d->time_us[a] == INFINITY)
            return false;
    return true;
}

/* Fail if there are too few blocks, or one that no device can run. GPP_OK: neither is the
 * reason. */
static gpp_status blame_blocks(const gpp_cut_costs *c, gpp_error *err)
{
    char text[48];
    int blocks = 0;
    for (int a = 0; a < c->layers; a = block_end(c, a))
        blocks++;
    if (blocks < c->partitions)
        return gpp__fail(err, GPP_ENOENT,
                         "layers that must stay together leave %d block%s for %d partitions",
                         blocks, blocks == 1 ? "" : "s", c->partitions);
    for (int a = 0, b; a < c->layers; a = b) {
        int j = 0;
        b = block_end(c, a);
        while (j < c->partitions && !can_run(&c->device[j], a, b))
            j++;
        if (j == c->partitions)
            return gpp__fail_layer(err, GPP_ENOENT, a, "%s can run %son none of the %d devices",
                                   layers_text(text, a, b), b - a > 1 ? "together " : "",
                                   c->partitions);
    }
    return GPP_OK;
}

/* The fewest and the most layers that the first j partitions can hold. False: there is no cut. */
static bool reach(const problem *p, int j, int most, int *low, int *high)
{
    *low = *high = -1;
    for (int l = 0; l <= most; l++)
        if (p->best[(size_t)j * p->row + (size_t)l] < INFINITY) {
            *low = *low < 0 ? l : *low;
            *high = l;
        }
    return *low >= 0;
}

/* Fail because every layer can run somewhere, but not in the order of the devices. */
static gpp_status blame_order(const problem *p, gpp_error *err)
{
    const gpp_cut_costs *c = p->costs;
    char text[48];
    int low = 0, high = 0, j = 1;
    while (j <= c->partitions && reach(p, j, c->layers, &low, &high))
        j++;
    if (j > c->partitions)
        return gpp__fail_layer(err, GPP_ENOENT, high,
                               "in the order of their devices %d partitions can hold %s at most, "
                               "not layer %d",
                               c->partitions, layers_text(text, 0, high), high);
    if (!reach(p, j - 1, c->layers - 1, &low, &high))
        return fail_at(err, GPP_ENOENT, -1, j - 1,
                       "the partitions before partition %d must hold all layers", j - 1);
    if (low == high)
        return fail_at(err, GPP_ENOENT, low, j - 1,
                       "partition %d must begin with layer %d, which its device cannot run", j - 1,
                       low);
    return fail_at(err, GPP_ENOENT, low, j - 1,
                   "partition %d must begin with one of layers %d ... %d, and its device can run "
                   "none with which it might",
                   j - 1, low, high);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Fail with the cut that exceeds limits least. Blame the first of the partitions that exceed theirs
 * most. */
static gpp_status blame_memory(problem *p, gpp_error *err)
{
    const gpp_cut_costs *c = p->costs;
    uint64_t most = 0, need = 0;
    int exceeded = 0, worst = 0, from = 0, to = 0;
    for (int j = c->partitions - 1, b = c->layers; j >= 0; b = begin_of(p, j--, b)) {
        int a = begin_of(p, j, b);
        measure_spans(p, b);
        const span *s = &p->spans[a];
        traffic x = {s->in.tensors + s->out.tensors, s->in.bytes + s->out.bytes};
        uint64_t bytes = span_bytes(c, j, s, x), over = over_limit(c, j, bytes);
        exceeded += over > 0;
        if (over >= most)
            most = over, need = bytes, worst = j, from = a, to = b;
    }
    char text[48], rest[80] = "";
    if (exceeded > 1)
        snprintf(rest, sizeof rest, "; %d other%s, by no more", exceeded - 1,
                 exceeded > 2 ? "s exceed theirs" : " exceeds its own");
    return fail_at(err, GPP_ENOMEM, -1, worst,
                   "no cut of %d layers into %d partitions fits. In the nearest one partition %d "
                   "(%s) needs %llu bytes (%.1f MiB), %llu bytes (%.1f MiB) more than its limit of "
                   "%llu%s",
                   c->layers, c->partitions, worst, layers_text(text, from, to),
                   (unsigned long long)need, mib(need), (unsigned long long)most, mib(most),
                   (unsigned long long)(need - most), rest);
}

static gpp_status explain(problem *p, gpp_error *err)
{
    gpp_status status;
    if (solve(p, true) < INFINITY)
        return blame_memory(p, err);
    status = blame_blocks(p->costs, err);
    return status == GPP_OK ? blame_order(p, err) : status;
}

/* --- the call --------------------------------------------------------------------------------- */

static void release(problem *p)
{
    free(p->begin);
    free(p->best);
    free(p->spans);
    free(p->ends);
    free(p->first);
}

/* Release the problem also after a failure. */
static gpp_status init(problem *p, const gpp_cut_costs *c, gpp_error *err)
{
    size_t row = (size_t)c->layers + 1, skips = (size_t)c->skips;
    *p = (problem){.costs = c,
                   .row = row,
                   .first = calloc(row, sizeof *p->first),
                   .ends = calloc(skips ? skips : 1, 2 * sizeof *p->ends),
                   .spans = calloc(row, sizeof *p->spans),
                   .best = calloc(row, ((size_t)c->partitions + 1) * sizeof *p->best),
                   .begin = calloc(row, ((size_t)c->partitions + 1) * sizeof *p->begin)};
    if (!p->first || !p->ends || !p->spans || !p->best || !p->begin)
        return gpp__fail(err, GPP_ENOMEM, "cutting %d layers into %d partitions", c->layers,
                         c->partitions);
    sort_skips(p);
    return GPP_OK;
}

gpp_status gpp_balance_exact(const gpp_cut_costs *costs, int balance[], double *slowest_us,
                             gpp_error *err)
{
    gpp_status status = check(costs, balance, err);
    if (status != GPP_OK)
        return status;
    problem p;
    status = init(&p, costs, err);
    if (status != GPP_OK)
        goto release;
    double slowest = solve(&p, false);
    if (slowest == INFINITY) {
        status = explain(&p, err);
        goto release;
    }
    for (int j = costs->partitions - 1, b = costs->layers; j >= 0; j--) {
        int a = begin_of(&p, j, b);
        balance[j] = b - a;
        b = a;
    }
    if (slowest_us)
        *slowest_us = slowest;
release:
    release(&p);
    return status;
}
