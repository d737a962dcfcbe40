/*
 * graph/search/costs.c: the costs that gpp_balance_exact cuts by, for given devices, pieces and
 * checkpoint mode. Times come from profiles. Bytes are estimates: only a plan knows them exactly.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/search/search.h"

void gpp__search_costs_release(gpp__search_costs *c)
{
    free(c->device);
    free(c->time);
    free(c->boundary);
    free(c->skip);
    free(c->tapes);
    free(c->link);
}

static gpp_status costs_allocate(gpp__search_costs *c, const gpp__choice *choice, gpp_error *err)
{
    size_t n = (size_t)choice->site->partitions, layers = (size_t)choice->search->model->count;
    size_t values = (size_t)choice->search->model->network.values;
    *c = (gpp__search_costs){.cut = GPP_CUT_COSTS_INIT};
    c->device = calloc(n, sizeof *c->device);
    c->time = calloc(n * layers, sizeof *c->time);
    c->boundary = calloc(2 * layers, sizeof *c->boundary);
    c->skip = calloc(values + 1, sizeof *c->skip);
    c->tapes = calloc(3 * n, sizeof *c->tapes);
    c->link = calloc(n, sizeof *c->link);
    if (!c->device || !c->time || !c->boundary || !c->skip || !c->tapes || !c->link) {
        gpp__search_costs_release(c);
        return gpp__fail(err, GPP_ENOMEM, "costs of %zu layers in %zu partitions", layers, n);
    }
    c->tape = c->boundary + layers;
    c->boundaries = c->tapes + n;
    c->sharers = c->boundaries + n;
    return GPP_OK;
}

/* Micro-batches that are recomputed. A budget decides that later: assume half of them. */
static double recomputed(const gpp__choice *choice)
{
    switch (choice->checkpoint) {
    case GPP_CHECKPOINT_ALWAYS:
        return choice->pieces.count;
    case GPP_CHECKPOINT_NEVER:
        return 0;
    case GPP_CHECKPOINT_BUDGET:
        return 0.5 * choice->pieces.count;
    default:
        return choice->pieces.count - 1;
    }
}

/* Layer `u` is not placed, or it is placed on the device of partition j. */
static bool may_be_on(const gpp__choice *choice, int u, int j)
{
    const char *placed = choice->search->model->unit[u].device;
    return !placed || strcmp(placed, choice->site->spec[j]) == 0 ||
           strcmp(placed, choice->site->name[choice->site->device_of[j]]) == 0;
}

/* The device of a cluster that partition j is on; NULL: there is no cluster. */
static const gpp_cluster_device *described_at(const gpp__choice *choice, int j)
{
    const gpp_cluster *c = choice->search->options.forecast.cluster;
    return c ? &c->device[choice->site->described[choice->site->device_of[j]]] : NULL;
}

static void time_layers(gpp__search_costs *c, const gpp__choice *choice)
{
    const gpp__site *site = choice->site;
    double again = recomputed(choice) / choice->pieces.count;
    for (int j = 0; j < site->partitions; j++) {
        double *time = c->time + (size_t)j * (size_t)choice->search->model->count;
        const gpp_profile *p =
            gpp__site_profile(site, site->kind[site->device_of[j]], choice->pieces.rows);
        double scale = (double)choice->pieces.rows / (double)gpp__profile_rows(p);
        const gpp_cluster_device *described = described_at(choice, j);
        scale /= described ? described->speed : 1;
        for (int u = 0; u < p->layers; u++) {
            const gpp_layer_profile *l = &p->layer[u];
            time[u] = scale * (l->recompute_us + again * l->forward_us + l->backward_us);
            if (!may_be_on(choice, u, j))
                time[u] = INFINITY;
        }
        c->device[j] = (gpp_device_cost){time, 0, INFINITY, 0};
    }
}

/* A GPU has memory of its own. Other devices share memory unless the caller says otherwise. */
static bool are_apart(const gpp__choice *choice, int a, int b)
{
    const gpp_forecast_options *o = &choice->search->options.forecast;
    const gpp__site *site = choice->site;
    return o->node_of ? o->node_of[a] != o->node_of[b]
                      : a != b && (site->kind[a] == 0 || site->kind[b] == 0);
}

/* As in forecasts, except that all links of a device have one speed here. */
static double link_speed(const gpp__choice *choice, int device)
{
    const gpp_forecast_options *o = &choice->search->options.forecast;
    const gpp__site *site = choice->site;
    bool all_gpus = true;
    for (int d = 0; d < site->devices; d++)
        all_gpus = all_gpus && site->kind[d] == 0;
    if (all_gpus && o->gpu_bytes_per_us > 0)
        return o->gpu_bytes_per_us;
    if (o->bytes_per_us > 0)
        return o->bytes_per_us;
    for (int d = 0; d < site->devices; d++) {
        const gpp_profile *p =
            site->kind[d] ? NULL : gpp__site_profile(site, 0, choice->pieces.rows);
        if (p && p->link_bytes_per_us > 0 && (d == device || are_apart(choice, d, device)))
            return p->link_bytes_per_us;
    }
    return GPP_FORECAST_BYTES_PER_US;
}

/* One price for each partition. It ignores where the other end is: the cut is only a start, which
 * forecasts improve. */
static void price_links(gpp__search_costs *c, const gpp__choice *choice)
{
    const gpp_forecast_options *o = &choice->search->options.forecast;
    const gpp__site *site = choice->site;
    for (int j = 0; j < site->partitions; j++) {
        bool apart = false;
        for (int d = 0; d < site->devices; d++)
            apart |= are_apart(choice, d, site->device_of[j]);
        if (!apart)
            continue;
        c->device[j].link_us = o->link_us;
        c->device[j].bytes_per_us = link_speed(choice, site->device_of[j]);
    }
}

/* In a cluster every pair of neighbours has a link. Cores of one node share memory. */
static void price_pairs(gpp__search_costs *c, const gpp__choice *choice)
{
    const gpp_cluster *cluster = choice->search->options.forecast.cluster;
    c->link[0] = (gpp_link_cost){0, INFINITY};
    for (int j = 1; cluster && j < choice->site->partitions; j++) {
        const gpp_cluster_device *a = described_at(choice, j - 1), *b = described_at(choice, j);
        gpp_cluster_link l = gpp__cluster_link(cluster, a->node, b->node);
        bool apart = a->node != b->node || (a != b && (a->cores == 0 || b->cores == 0));
        c->link[j] =
            apart ? (gpp_link_cost){l.latency_us, l.bytes_per_us} : (gpp_link_cost){0, INFINITY};
    }
    c->cut.link = cluster ? c->link : NULL;
}

static void size_layers(gpp__search_costs *c, const gpp__choice *choice)
{
    const gpp_profile *p =
        gpp__site_profile(choice->site, choice->site->kind[0], choice->pieces.rows);
    double scale = (double)choice->pieces.rows / (double)gpp__profile_rows(p);
    for (int u = 0; u < p->layers; u++)
        c->tape[u] = (size_t)(scale * (double)p->layer[u].activation_bytes);
}

/* Bytes of the values between layers: to the next one, or further. */
static void size_crossings(gpp__search_costs *c, const gpp__choice *choice)
{
    const gpp__network *n = &choice->search->model->network;
    int64_t rows[GPP__BATCHES];
    for (int b = 0; b < GPP__BATCHES; b++)
        rows[b] = choice->pieces.rows;
    for (int v = 0; v < n->values; v++) {
        const gpp__value *value = &n->value[v];
        if (value->producer < 0 || value->consumer < 0)
            continue;
        int from = n->node[value->producer].index, to = n->node[value->consumer].index;
        size_t bytes = gpp__value_bytes(value, rows);
        if (to == from + 1 && !value->skip)
            c->boundary[from] += bytes;
        else if (to > from)
            c->skip[c->cut.skips++] = (gpp_skip_cost){from, to, bytes};
    }
}

static void count_copies(gpp__search_costs *c, const gpp__choice *choice)
{
    int m = choice->pieces.count;
    for (int j = 0; j < choice->site->partitions; j++) {
        c->tapes[j] = choice->checkpoint == GPP_CHECKPOINT_NEVER ? m : 1;
        c->boundaries[j] = m + 1;
        c->sharers[choice->site->device_of[j]]++;
    }
}

gpp_status gpp__search_costs_init(gpp__search_costs *c, const gpp__choice *choice, gpp_error *err)
{
    const gpp__search *s = choice->search;
    gpp_status status = costs_allocate(c, choice, err);
    if (status != GPP_OK)
        return status;
    time_layers(c, choice);
    if (!s->options.forecast.cluster)
        price_links(c, choice);
    price_pairs(c, choice);
    size_layers(c, choice);
    size_crossings(c, choice);
    count_copies(c, choice);
    c->cut.layers = s->model->count;
    c->cut.partitions = choice->site->partitions;
    c->cut.device = c->device;
    c->cut.boundary_bytes = c->boundary;
    c->cut.skip = c->skip;
    c->cut.whole = choice->site->devices > 1 ? s->joined : NULL;
    c->cut.layer_bytes = s->layer_bytes;
    c->cut.tape_bytes = c->tape;
    c->cut.tapes = c->tapes;
    c->cut.boundaries = c->boundaries;
    return GPP_OK;
}

double gpp__search_costs_bytes(const gpp__search_costs *c, int j, int a, int b)
{
    double once = 0, tape = 0, cross = 0;
    for (int u = a; u < b; u++) {
        once += (double)c->cut.layer_bytes[u];
        tape += (double)c->tape[u];
    }
    cross += a > 0 ? (double)c->boundary[a - 1] : 0;
    cross += b < c->cut.layers ? (double)c->boundary[b - 1] : 0;
    for (int k = 0; k < c->cut.skips; k++) {
        bool from = c->skip[k].from >= a && c->skip[k].from < b;
        bool to = c->skip[k].to >= a && c->skip[k].to < b;
        cross += from != to ? (double)c->skip[k].bytes : 0;
    }
    return once + c->tapes[j] * tape + c->boundaries[j] * cross;
}

bool gpp__search_costs_allow(const gpp__search_costs *c, const int balance[])
{
    for (int j = 0, u = 0; j < c->cut.partitions; j++) {
        for (int end = u + balance[j]; u < end; u++)
            if (isinf(c->device[j].time_us[u]))
                return false;
        if (u < c->cut.layers && c->cut.whole && c->cut.whole[u - 1])
            return false;
    }
    return true;
}
