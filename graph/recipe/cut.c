/*
 * graph/recipe/cut.c: which layers form which partition, the edges between partitions, and which
 * partitions share a parameter block.
 */
#include <stdlib.h>
#include <string.h>

#include <gridpipe/balance.h>

#include "graph/recipe/recipe.h"

#define ADVICE                                                                                     \
    "; without a balance the library cuts by a guess of costs, gpp_balance_by_time "               \
    "(gridpipe/balance.h) by measured ones"

/* --- balance ---------------------------------------------------------------------------------- */

static gpp_status given_balance(gpp__recipe *r, const int *balance, gpp_error *err)
{
    char text[128];
    size_t at = 0;
    int64_t sum = 0;
    int least = 1, at_least = 0;
    for (int j = 0; j < gpp__recipe_depth(r); j++) {
        if (at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", j ? ", " : "", balance[j]);
        sum += balance[j];
        if (balance[j] < least) {
            least = balance[j];
            at_least = j;
        }
        r->balance[j] = balance[j];
    }
    if (sum != r->model->count)
        return gpp__fail(err, GPP_EINVAL,
                         "model and sum of balance have different length (model: %d, sum of "
                         "balance: %lld)" ADVICE,
                         r->model->count, (long long)sum);
    if (least < 1)
        return gpp__fail(
            err, GPP_EINVAL,
            "all balance numbers must be positive, balance[%d] is %d (balance: %s%s)" ADVICE,
            at_least, least, text, at >= sizeof text ? "..." : "");
    return GPP_OK;
}

/*
 * A guess of an operator's time, used until there is a profile: its arithmetic, plus ten flops for
 * each byte it reads or writes, which is roughly what a core can do while a byte comes from memory.
 * A view renames a tensor and costs nothing.
 */
double gpp__guess_cost(const gpp__layer *l)
{
    enum { FLOPS_PER_BYTE = 10 };
    if (l->op->is_view && l->op->is_view(l))
        return 1;
    double elements = 0, bytes = 0;
    for (int t = 0; t < l->in_count; t++)
        bytes += (double)gpp__desc_bytes(&l->in[t]);
    for (int t = 0; t < l->out_count; t++) {
        bytes += (double)gpp__desc_bytes(&l->out[t]);
        elements += (double)gpp__desc_count(&l->out[t]);
    }
    return 1 + (l->op->flops ? l->op->flops(l) : elements) + FLOPS_PER_BYTE * bytes;
}

static gpp_status automatic_balance(gpp__recipe *r, gpp_error *err)
{
    double *cost = calloc((size_t)r->model->count + 1, sizeof *cost);
    if (!cost)
        return gpp__fail(err, GPP_ENOMEM, "costs of %d layers", r->model->count);
    for (int u = 0; u < r->model->count; u++)
        for (int k = r->network->first[u]; k < r->network->first[u + 1]; k++)
            cost[u] += gpp__guess_cost(&r->network->node[k]);
    gpp_status status = gpp_balance_minmax((size_t)r->model->count, cost,
                                           (size_t)gpp__recipe_depth(r), r->balance, err);
    free(cost);
    return status;
}

/* --- placed layers ---------------------------------------------------------------------------- */

static bool is_placed(const gpp_model *m)
{
    for (int u = 0; u < m->count; u++)
        if (m->unit[u].device)
            return true;
    return false;
}

/* The device of layer `u`: its own placement, else that of the nearest placed layer before it, else
 * of the next one behind it. */
static const char *device_of_unit(const gpp_model *m, int u)
{
    int at = u;
    while (at >= 0 && !m->unit[at].device)
        at--;
    for (at = at < 0 ? u : at; at < m->count; at++)
        if (m->unit[at].device)
            return m->unit[at].device;
    return NULL;
}

static bool begins_partition(const gpp_model *m, int u)
{
    return u == 0 ||
           (m->unit[u].device && strcmp(device_of_unit(m, u), device_of_unit(m, u - 1)) != 0);
}

static void balance_by_placement(gpp__recipe *r)
{
    int j = -1;
    for (int u = 0; u < r->model->count; u++) {
        if (begins_partition(r->model, u))
            r->requested[++j] = device_of_unit(r->model, u);
        r->balance[j]++;
    }
}

/* --- partitions ------------------------------------------------------------------------------- */

static gpp_status count_partitions(gpp__recipe *r, const gpp_pipe_options *o, bool *derive,
                                   gpp_error *err)
{
    int derived = 0;
    *derive = !o->balance && !o->devices && is_placed(r->model);
    for (int u = 0; *derive && u < r->model->count; u++)
        derived += begins_partition(r->model, u);
    if (*derive && o->partitions && o->partitions != derived)
        return gpp__fail(err, GPP_EINVAL,
                         "the devices that layers are placed on make %d partitions, not %d",
                         derived, o->partitions);
    r->partitions = r->replicas * (*derive ? derived : o->partitions ? o->partitions : 1);
    return GPP_OK;
}

static gpp_status allocate(gpp__recipe *r, gpp_error *err)
{
    size_t n = (size_t)r->partitions;
    r->balance = calloc(n, sizeof *r->balance);
    r->first = calloc(n, sizeof *r->first);
    r->home = calloc(n, sizeof *r->home);
    r->requested = calloc(n, sizeof *r->requested);
    r->device_of = calloc(n, sizeof *r->device_of);
    r->stage = calloc(n, sizeof *r->stage);
    return r->balance && r->first && r->home && r->requested && r->device_of && r->stage
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM, "%d partitions", r->partitions);
}

/* All replicas are cut alike. */
static void repeat_cut(gpp__recipe *r)
{
    for (int j = gpp__recipe_depth(r), k = 0; j < r->partitions; j++, k++) {
        r->balance[j] = r->balance[k];
        r->first[j] = r->first[k];
        r->requested[j] = r->requested[k];
    }
}

gpp_status gpp__cut(gpp__recipe *r, const gpp_pipe_options *o, gpp_error *err)
{
    bool derive;
    gpp_status status = count_partitions(r, o, &derive, err);
    if (status == GPP_OK)
        status = allocate(r, err);
    if (status != GPP_OK)
        return status;
    if (derive)
        balance_by_placement(r);
    else if (o->balance)
        status = given_balance(r, o->balance, err);
    else if (r->model->count)
        status = automatic_balance(r, err);
    for (int j = 1; status == GPP_OK && j < gpp__recipe_depth(r); j++)
        r->first[j] = r->first[j - 1] + r->balance[j - 1];
    if (status == GPP_OK)
        repeat_cut(r);
    return status;
}

int gpp__recipe_partition_of(const gpp__recipe *r, int layer)
{
    int count = r->model->count, j = 0, at = layer < 0 ? layer + count : layer;
    if (at < 0 || at >= count)
        return -1;
    while (at >= r->first[j] + r->balance[j])
        j++;
    return j;
}

/* --- shared parameters ------------------------------------------------------------------------ */

static int partition_of_node(const gpp__recipe *r, int node)
{
    int j = gpp__recipe_partition_of(r, r->network->node[node].index);
    return j < 0 ? 0 : j;
}

static void join(gpp__recipe *r, int a, int b)
{
    int low = r->home[a] < r->home[b] ? r->home[a] : r->home[b];
    int high = r->home[a] + r->home[b] - low;
    for (int j = 0; j < r->partitions; j++)
        if (r->home[j] == high)
            r->home[j] = low;
    r->shares = true;
}

/* Partition b has a layer that shares parameters with one of partition a. */
static gpp_status share_home(gpp__recipe *r, const gpp__layer *l, int a, int b, gpp_error *err)
{
    const gpp__layer *owner = &r->network->node[l->shares];
    if (r->device_of[a] != r->device_of[b])
        return gpp__fail_layer(err, GPP_EINVAL, l->index,
                               "layers %d (\"%s\") and %d (\"%s\") share parameters and must be "
                               "on one device, but are on %s and %s",
                               owner->index, owner->label, l->index, l->label,
                               r->device_name[r->device_of[a]], r->device_name[r->device_of[b]]);
    if (a != b && r->home[a] != r->home[b])
        join(r, a, b);
    return GPP_OK;
}

gpp_status gpp__cut_homes(gpp__recipe *r, gpp_error *err)
{
    for (int j = 0; j < r->partitions; j++)
        r->home[j] = j;
    for (int k = 0; k < r->network->nodes; k++) {
        const gpp__layer *l = &r->network->node[k];
        if (l->shares < 0)
            continue;
        int a = partition_of_node(r, l->shares), b = partition_of_node(r, k);
        gpp_status status = GPP_OK;
        for (int at = 0; at < r->partitions && status == GPP_OK; at += gpp__recipe_depth(r))
            status = share_home(r, l, at + a, at + b, err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

/* --- edges -------------------------------------------------------------------------------- */

static int in_port_of(const gpp__stage *s, int value)
{
    int port = 0;
    while (s->in[port] != value)
        port++;
    return port;
}

static gpp__recipe_edge edge_of(const gpp__recipe *r, int from, int port)
{
    int value = r->stage[from].out[port];
    const gpp__value *v = &r->network->value[value];
    gpp__recipe_edge c = {value, from, r->partitions, port, v->consumer_slot, ""};
    if (v->skip)
        snprintf(c.name, sizeof c.name, "%s%s%s", v->name.ns, *v->name.ns ? "." : "", v->name.name);
    if (v->consumer != GPP__CALLER) {
        c.to = from - from % gpp__recipe_depth(r) + partition_of_node(r, v->consumer);
        c.in_port = in_port_of(&r->stage[c.to], value);
    }
    return c;
}

gpp_status gpp__cut_edges(gpp__recipe *r, gpp_error *err)
{
    int count = 0;
    for (int j = 0; j < r->partitions; j++)
        count += r->stage[j].outs;
    r->edge = calloc((size_t)count + 1, sizeof *r->edge);
    if (!r->edge)
        return gpp__fail(err, GPP_ENOMEM, "%d tensors between partitions", count);
    for (int j = 0; j < r->partitions; j++)
        for (int port = 0; port < r->stage[j].outs; port++)
            r->edge[r->edges++] = edge_of(r, j, port);
    return GPP_OK;
}
