/*
 * graph/recipe/cut.c: which layers form which partition, what goes between partitions, and which
 * partitions keep their parameters together.
 */
#include <stdlib.h>
#include <string.h>

#include <gridpipe/balance.h>

#include "graph/run/pipe.h"

#define ADVICE                                                                                     \
    "; without a balance the library cuts by a guess of costs, gpp_balance_by_time "               \
    "(gridpipe/balance.h) by measured ones"

/* --- balance ---------------------------------------------------------------------------------- */

static gpp_status given_balance(gpp_pipe *p, const int *balance, gpp_error *err)
{
    char text[128];
    size_t at = 0;
    int64_t sum = 0;
    int least = 1, at_least = 0;
    for (int j = 0; j < p->partitions; j++) {
        if (at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", j ? ", " : "", balance[j]);
        sum += balance[j];
        if (balance[j] < least) {
            least = balance[j];
            at_least = j;
        }
        p->balance[j] = balance[j];
    }
    if (sum != p->model->count)
        return gpp__fail(err, GPP_EINVAL,
                         "model and sum of balance have different length (model: %d, sum of "
                         "balance: %lld)" ADVICE,
                         p->model->count, (long long)sum);
    if (least < 1)
        return gpp__fail(
            err, GPP_EINVAL,
            "all balance numbers must be positive, balance[%d] is %d (balance: %s%s)" ADVICE,
            at_least, least, text, at >= sizeof text ? "..." : "");
    return GPP_OK;
}

/*
 * A guess of a layer's time until there is a profile: arithmetic, and the bytes it reads and writes
 * at the roughly ten flops a core can do while one byte comes from memory. Renaming a tensor costs
 * nothing.
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

static gpp_status automatic_balance(gpp_pipe *p, gpp_error *err)
{
    double *cost = calloc((size_t)p->model->count + 1, sizeof *cost);
    if (!cost)
        return gpp__fail(err, GPP_ENOMEM, "costs of %d layers", p->model->count);
    for (int u = 0; u < p->model->count; u++)
        for (int k = p->network->first[u]; k < p->network->first[u + 1]; k++)
            cost[u] += gpp__guess_cost(&p->network->node[k]);
    gpp_status status =
        gpp_balance_minmax((size_t)p->model->count, cost, (size_t)p->partitions, p->balance, err);
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

/* Where layer `u` is: where it was put, else where the one before is, else where the next one is.
 */
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

static void balance_by_placement(gpp_pipe *p)
{
    int j = -1;
    for (int u = 0; u < p->model->count; u++) {
        if (begins_partition(p->model, u))
            p->requested[++j] = device_of_unit(p->model, u);
        p->balance[j]++;
    }
}

/* Every placed layer is in a partition that runs there. */
gpp_status gpp__cut_check_placement(const gpp_pipe *p, const gpp_pipe_options *o, gpp_error *err)
{
    for (int u = 0; u < p->model->count; u++) {
        const gpp__unit *unit = &p->model->unit[u];
        int j = gpp_pipe_partition_of(p, u);
        const char *given = o->devices ? o->devices[j] : p->requested[j] ? p->requested[j] : "";
        const char *name = p->device_name[p->device_of[j]];
        if (unit->device && strcmp(unit->device, given) != 0 && strcmp(unit->device, name) != 0)
            return gpp__fail_layer(err, GPP_EINVAL, u,
                                   "layer %d (\"%s\") is placed on %s, but its partition %d is on "
                                   "%s",
                                   u, unit->label, unit->device, j, name);
    }
    return GPP_OK;
}

/* --- partitions ------------------------------------------------------------------------------- */

static gpp_status count_partitions(gpp_pipe *p, const gpp_pipe_options *o, bool *derive,
                                   gpp_error *err)
{
    int derived = 0;
    *derive = !o->balance && !o->devices && is_placed(p->model);
    for (int u = 0; *derive && u < p->model->count; u++)
        derived += begins_partition(p->model, u);
    if (*derive && o->partitions && o->partitions != derived)
        return gpp__fail(err, GPP_EINVAL,
                         "the devices that layers are placed on make %d partitions, not %d",
                         derived, o->partitions);
    p->partitions = *derive ? derived : o->partitions ? o->partitions : 1;
    return GPP_OK;
}

static gpp_status allocate(gpp_pipe *p, gpp_error *err)
{
    size_t n = (size_t)p->partitions;
    p->balance = calloc(n, sizeof *p->balance);
    p->first = calloc(n, sizeof *p->first);
    p->home = calloc(n, sizeof *p->home);
    p->requested = calloc(n, sizeof *p->requested);
    p->device_of = calloc(n, sizeof *p->device_of);
    p->stage = calloc(n, sizeof *p->stage);
    return p->balance && p->first && p->home && p->requested && p->device_of && p->stage
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM, "%d partitions", p->partitions);
}

gpp_status gpp__cut(gpp_pipe *p, const gpp_pipe_options *o, gpp_error *err)
{
    bool derive;
    gpp_status status = count_partitions(p, o, &derive, err);
    if (status == GPP_OK)
        status = allocate(p, err);
    if (status != GPP_OK)
        return status;
    if (derive)
        balance_by_placement(p);
    else if (o->balance)
        status = given_balance(p, o->balance, err);
    else if (p->model->count)
        status = automatic_balance(p, err);
    for (int j = 1; status == GPP_OK && j < p->partitions; j++)
        p->first[j] = p->first[j - 1] + p->balance[j - 1];
    return status;
}

int gpp_pipe_partition_of(const gpp_pipe *p, int layer)
{
    int count = p ? p->model->count : 0, j = 0, at = layer < 0 ? layer + count : layer;
    if (at < 0 || at >= count)
        return -1;
    while (at >= p->first[j] + p->balance[j])
        j++;
    return j;
}

/* --- shared parameters ------------------------------------------------------------------------ */

static int partition_of_node(const gpp_pipe *p, int node)
{
    int j = gpp_pipe_partition_of(p, p->network->node[node].index);
    return j < 0 ? 0 : j;
}

static void join(gpp_pipe *p, int a, int b)
{
    int low = p->home[a] < p->home[b] ? p->home[a] : p->home[b];
    int high = p->home[a] + p->home[b] - low;
    for (int j = 0; j < p->partitions; j++)
        if (p->home[j] == high)
            p->home[j] = low;
    p->shares = true;
}

gpp_status gpp__cut_homes(gpp_pipe *p, gpp_error *err)
{
    for (int j = 0; j < p->partitions; j++)
        p->home[j] = j;
    for (int k = 0; k < p->network->nodes; k++) {
        const gpp__layer *l = &p->network->node[k];
        if (l->shares < 0)
            continue;
        const gpp__layer *owner = &p->network->node[l->shares];
        int a = partition_of_node(p, l->shares), b = partition_of_node(p, k);
        if (p->device_of[a] != p->device_of[b])
            return gpp__fail_layer(
                err, GPP_EINVAL, l->index,
                "layers %d (\"%s\") and %d (\"%s\") share parameters and must be "
                "on one device, but are on %s and %s",
                owner->index, owner->label, l->index, l->label, p->device_name[p->device_of[a]],
                p->device_name[p->device_of[b]]);
        if (a != b && p->home[a] != p->home[b])
            join(p, a, b);
    }
    return GPP_OK;
}

/* --- crossings -------------------------------------------------------------------------------- */

static int in_port_of(const gpp__stage *s, int value)
{
    int port = 0;
    while (s->in[port] != value)
        port++;
    return port;
}

static gpp__crossing crossing_of(const gpp_pipe *p, int from, int port)
{
    int value = p->stage[from].out[port];
    const gpp__value *v = &p->network->value[value];
    gpp__crossing c = {value, from, p->partitions, port, v->consumer_slot, ""};
    if (v->skip)
        snprintf(c.name, sizeof c.name, "%s%s%s", v->name.ns, *v->name.ns ? "." : "", v->name.name);
    if (v->consumer != GPP__CALLER) {
        c.to = partition_of_node(p, v->consumer);
        c.in_port = in_port_of(&p->stage[c.to], value);
    }
    return c;
}

gpp_status gpp__cut_crossings(gpp_pipe *p, gpp_error *err)
{
    int count = 0;
    for (int j = 0; j < p->partitions; j++)
        count += p->stage[j].outs;
    p->crossing = calloc((size_t)count + 1, sizeof *p->crossing);
    if (!p->crossing)
        return gpp__fail(err, GPP_ENOMEM, "%d tensors between partitions", count);
    for (int j = 0; j < p->partitions; j++)
        for (int port = 0; port < p->stage[j].outs; port++)
            p->crossing[p->crossings++] = crossing_of(p, j, port);
    return GPP_OK;
}
