/*
 * graph/plan/plan.c: a step as data, put together from its parts, and questions to a finished plan.
 *
 * To make a plan, the spec is checked and its edges are sorted by their ends. Then come the
 * schedule's table, its tasks in an order of submission (order.c), what they access (access.c),
 * which items share a buffer (slots.c), the buffers (buffers.c), and the messages between ranks
 * (messages.c).
 */
#include "graph/plan/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- the spec --------------------------------------------------------------------------------- */

/* What the schedule and the stages add to the shape. */
static gpp_status complete_shape(gpp__plan_maker *p, gpp_error *err)
{
    const gpp__schedule *schedule = p->spec->schedule;
    p->shape.window = p->shape.backward || p->shape.keep ? 0 : p->spec->window;
    p->shape.wait_for_all = p->shape.backward && p->spec->wait_for_all;
    p->shape.ascending = p->shape.ascending || schedule->ascending;
    p->shape.split = p->shape.backward && (p->shape.split || schedule->split);
    p->shape.trains = NULL;
    return gpp__shape_check(&p->shape, err);
}

/* The plan's own copy of the shape, with what the spec adds to it. The table is made for that. */
static gpp_status copy_shape(gpp__plan_maker *p, gpp_error *err)
{
    p->shape = p->spec->shape;
    gpp_status status = complete_shape(p, err);
    if (status != GPP_OK)
        return status;
    p->n = p->shape.partitions;
    p->replicas = gpp__shape_replicas(&p->shape);
    p->depth = gpp__shape_depth(&p->shape);
    p->m = gpp__shape_share(&p->shape);
    p->cells = (size_t)p->n * (size_t)p->m;
    p->plan->device_of = malloc((size_t)p->n * sizeof *p->plan->device_of);
    p->plan->trains = malloc((size_t)p->n * sizeof *p->plan->trains);
    if (!p->plan->device_of || !p->plan->trains)
        return gpp__fail(err, GPP_ENOMEM, "plan of %d partitions", p->n);
    for (int j = 0; j < p->n; j++)
        p->plan->trains[j] = p->spec->stage[j].trains;
    memcpy(p->plan->device_of, p->shape.device_of, (size_t)p->n * sizeof *p->plan->device_of);
    if (p->spec->rank_of) {
        size_t bytes = (size_t)p->shape.devices * sizeof *p->plan->rank_of;
        p->plan->rank_of = malloc(bytes);
        if (!p->plan->rank_of)
            return gpp__fail(err, GPP_ENOMEM, "plan of %d devices", p->shape.devices);
        memcpy(p->plan->rank_of, p->spec->rank_of, bytes);
    }
    p->shape.device_of = p->plan->device_of;
    p->shape.trains = p->plan->trains;
    p->plan->shape = p->shape;
    p->plan->shape.cost = NULL;
    return GPP_OK;
}

static gpp_status check_home(const gpp__plan_maker *p, int j, gpp_error *err)
{
    int home = p->spec->stage[j].home;
    const int *device_of = p->shape.device_of;
    if (home < 0 || home > j || p->spec->stage[home].home != home ||
        home / p->depth != j / p->depth)
        return gpp__fail(err, GPP_EINVAL,
                         "partition %d has its parameters in partition %d, expected itself or an "
                         "earlier one that has its own",
                         j, home);
    if (device_of[home] != device_of[j])
        return gpp__fail(
            err, GPP_EINVAL,
            "partition %d on device %d has its parameters in partition %d on device %d", j,
            device_of[j], home, device_of[home]);
    return GPP_OK;
}

static gpp_status check_edge(const gpp__plan_maker *p, int r, gpp_error *err)
{
    const gpp__edge *edge = &p->spec->edge[r];
    char name[64] = "";
    if (edge->name)
        snprintf(name, sizeof name, " (\"%.50s\")", edge->name);
    bool inside = edge->to == p->n || edge->to / p->depth == edge->from / p->depth;
    if (edge->from < 0 || edge->from >= edge->to || edge->to > p->n || !inside)
        return gpp__fail(
            err, GPP_EINVAL,
            "edge %d%s goes from partition %d to %d, expected forwards within 0 ... %d", r, name,
            edge->from, edge->to, p->n);
    int port = edge->out_port >= 0 && edge->out_port <= UINT16_MAX ? edge->in_port : edge->out_port;
    if (port < 0 || port > UINT16_MAX)
        return gpp__fail(err, GPP_EINVAL, "edge %d%s has port %d, expected 0 ... %d", r, name, port,
                         UINT16_MAX);
    if (edge->bytes == 0)
        return gpp__fail(err, GPP_EINVAL, "edge %d%s has 0 bytes, expected some", r, name);
    return GPP_OK;
}

static gpp_status check_fetch(const gpp__plan_maker *p, int k, gpp_error *err)
{
    const gpp__fetch *f = &p->spec->fetch[k];
    int least = k > 0 ? p->spec->fetch[k - 1].to : 0;
    int most = p->n + p->replicas - 1;
    if (f->to < least || f->to > most)
        return gpp__fail(err, GPP_EINVAL, "fetch %d goes to partition %d, expected %d ... %d", k,
                         f->to, least, most);
    if (f->in_port < 0 || f->in_port > UINT16_MAX || f->bytes == 0)
        return gpp__fail(err, GPP_EINVAL,
                         "fetch %d has port %d and %zu bytes, expected 0 ... %d and some", k,
                         f->in_port, f->bytes, UINT16_MAX);
    return GPP_OK;
}

static gpp_status check_spec(gpp__plan_maker *p, gpp_error *err)
{
    gpp_status status = GPP_OK;
    p->edges = p->spec->edges;
    if (p->edges < 0 || 2 * (int64_t)p->edges + 3 * (int64_t)p->n > INT32_MAX / p->m)
        return gpp__fail(err, GPP_EINVAL,
                         "%d micro-batches of %d edges and %d partitions are too many values", p->m,
                         p->edges, p->n);
    p->pools = p->edges + 3 * p->n;
    p->items = (2 * p->edges + 3 * p->n) * p->m;
    for (int j = 0; j < p->n && status == GPP_OK; j++)
        status = check_home(p, j, err);
    for (int r = 0; r < p->edges && status == GPP_OK; r++)
        status = check_edge(p, r, err);
    if (p->spec->fetches < 0 || p->spec->fetches > INT32_MAX / p->m)
        return gpp__fail(err, GPP_EINVAL, "%d micro-batches of %d fetches are too many", p->m,
                         p->spec->fetches);
    for (int k = 0; k < p->spec->fetches && status == GPP_OK; k++)
        status = check_fetch(p, k, err);
    return status;
}

static gpp_status copy_fetches(gpp__plan_maker *p, gpp_error *err)
{
    size_t count = (size_t)p->spec->fetches;
    p->plan->fetch = malloc((count + 1) * sizeof *p->plan->fetch);
    if (!p->plan->fetch)
        return gpp__fail(err, GPP_ENOMEM, "%zu fetches", count);
    if (count > 0)
        memcpy(p->plan->fetch, p->spec->fetch, count * sizeof *p->plan->fetch);
    p->plan->fetches = (int)count;
    return GPP_OK;
}

/* --- edges ------------------------------------------------------------------------------------ */

/* Copy the edges into one piece of memory, with their names behind them. */
static bool copy_edges(gpp__plan_maker *p)
{
    size_t count = (size_t)p->edges, size = count * sizeof *p->plan->edge + 1;
    for (size_t r = 0; r < count; r++)
        size += p->spec->edge[r].name ? strlen(p->spec->edge[r].name) + 1 : 0;
    p->plan->edge = malloc(size);
    if (!p->plan->edge)
        return false;
    p->plan->edges = p->edges;
    char *text = (char *)(p->plan->edge + count);
    for (size_t r = 0; r < count; r++) {
        gpp__edge *edge = &p->plan->edge[r];
        *edge = p->spec->edge[r];
        if (!edge->name)
            continue;
        size_t length = strlen(edge->name) + 1;
        edge->name = memcpy(text, edge->name, length);
        text += length;
    }
    return true;
}

static int end_of(const gpp__plan_maker *p, int r, bool to)
{
    return to ? p->plan->edge[r].to : p->plan->edge[r].from;
}

/* Sort by counting. `first` is the end of a row until the row has been filled from its end. */
static void sort_edges(const gpp__plan_maker *p, gpp__links *links, bool to)
{
    memset(links->first, 0, ((size_t)p->n + 2) * sizeof *links->first);
    for (int r = 0; r < p->edges; r++)
        links->first[end_of(p, r, to)]++;
    for (int j = 0; j <= p->n; j++)
        links->first[j + 1] += links->first[j];
    for (int r = p->edges - 1; r >= 0; r--)
        links->list[--links->first[end_of(p, r, to)]] = r;
}

static gpp_status check_chain(const gpp__plan_maker *p, gpp_error *err)
{
    for (int j = 0; j < p->n; j++) {
        const int32_t *r = gpp__edges_from(p, j), *end = gpp__edges_from(p, j + 1);
        int next = gpp__shape_next(&p->shape, j);
        while (r < end && p->plan->edge[*r].to != next)
            r++;
        if (r == end && next < p->n)
            return gpp__fail(err, GPP_EINVAL, "there is no edge from partition %d to %d", j, next);
        if (r == end)
            return gpp__fail(err, GPP_EINVAL, "there is no edge from partition %d to the caller",
                             j);
    }
    return GPP_OK;
}

/* Find reach, gate, learns and commits of all partitions. */
static void find_roles(gpp__plan_maker *p)
{
    for (int j = p->n - 1; j >= 0; j--) {
        int next = gpp__shape_next(&p->shape, j);
        p->reach[j] = j;
        for (const int32_t *r = gpp__edges_from(p, j); r < gpp__edges_from(p, j + 1); r++)
            if (p->plan->edge[*r].to == next && p->plan->edge[*r].grad)
                p->reach[j] = next < p->n ? p->reach[next] : p->n;
        p->gate[j] = true;
        for (const int32_t *r = gpp__edges_to(p, j); r < gpp__edges_to(p, j + 1); r++)
            p->gate[j] = p->gate[j] && !p->plan->edge[*r].grad;
        if (p->spec->stage[j].trains)
            p->learns[p->spec->stage[j].home] = true;
        if (p->spec->stage[j].stats > 0 && p->spec->statistics && p->shape.update)
            p->commits[p->spec->stage[j].home] = true;
    }
}

static gpp_status take_edges(gpp__plan_maker *p, gpp_error *err)
{
    size_t n = (size_t)p->n, edges = (size_t)p->edges;
    p->in.first = malloc((3 * n + 4 + 2 * edges) * sizeof *p->in.first);
    p->gate = calloc(3 * n, sizeof *p->gate);
    if (!p->in.first || !p->gate || !copy_edges(p))
        return gpp__fail(err, GPP_ENOMEM, "%d edges of %d partitions", p->edges, p->n);
    p->in.list = p->in.first + n + 2;
    p->out.first = p->in.list + edges;
    p->out.list = p->out.first + n + 2;
    p->reach = p->out.list + edges;
    p->learns = p->gate + n;
    p->commits = p->learns + n;
    sort_edges(p, &p->in, true);
    sort_edges(p, &p->out, false);
    gpp_status status = check_chain(p, err);
    if (status != GPP_OK)
        return status;
    find_roles(p);
    return GPP_OK;
}

/* --- the plan --------------------------------------------------------------------------------- */

/* Make room in the plan for the table's tasks. */
static gpp_status make_room(gpp__plan_maker *p, gpp_error *err)
{
    gpp__plan *plan = p->plan;
    size_t devices = (size_t)p->shape.devices;
    plan->tasks = p->index.tasks;
    plan->count = calloc(devices, sizeof *plan->count);
    plan->table = calloc(devices, sizeof *plan->table);
    plan->bytes = calloc(devices, sizeof *plan->bytes);
    if (!plan->count || !plan->table || !plan->bytes)
        goto fail;
    for (size_t d = 0; d < devices; d++) {
        plan->count[d] = p->table.count[d];
        plan->table[d] = malloc((plan->count[d] + 1) * sizeof *plan->table[d]);
        if (!plan->table[d])
            goto fail;
    }
    plan->task = calloc(plan->tasks + 1, sizeof *plan->task);
    if (plan->task)
        return GPP_OK;
fail:
    return gpp__fail(err, GPP_ENOMEM, "plan of %zu cells", p->cells);
}

static gpp_status make(gpp__plan_maker *p, gpp_error *err)
{
    gpp_status status = copy_shape(p, err);
    if (status == GPP_OK)
        status = check_spec(p, err);
    if (status == GPP_OK)
        status = copy_fetches(p, err);
    if (status == GPP_OK)
        status = take_edges(p, err);
    if (status == GPP_OK)
        status = gpp__schedule_table(p->spec->schedule, &p->shape, &p->table, err);
    if (status == GPP_OK)
        status = gpp__index_init(&p->index, &p->table, &p->shape, err);
    if (status == GPP_OK)
        status = make_room(p, err);
    if (status == GPP_OK)
        status = gpp__plan_order(p, err);
    if (status == GPP_OK)
        status = gpp__plan_access(p, err);
    if (status == GPP_OK)
        status = gpp__plan_slots(p, err);
    if (status == GPP_OK)
        status = gpp__plan_buffers(p, err);
    if (status == GPP_OK)
        status = gpp__plan_messages(p, err);
    return status == GPP_OK ? gpp__plan_count(p, err) : status;
}

gpp_status gpp__plan_new(gpp__plan **plan, const gpp__plan_spec *spec, gpp_error *err)
{
    gpp__plan_maker p = {.spec = spec};
    *plan = NULL;
    p.plan = calloc(1, sizeof *p.plan);
    if (!p.plan)
        return gpp__fail(err, GPP_ENOMEM, "a plan");
    gpp_status status = make(&p, err);
    free(p.pool_slots);
    free(p.slot);
    free(p.first_b);
    gpp__index_release(&p.index);
    free(p.gate);
    free(p.in.first);
    gpp__table_release(&p.table);
    if (status == GPP_OK)
        *plan = p.plan;
    else
        gpp__plan_free(p.plan);
    return status;
}

void gpp__plan_free(gpp__plan *plan)
{
    if (!plan)
        return;
    for (int d = 0; plan->table && d < plan->shape.devices; d++)
        free(plan->table[d]);
    free(plan->table);
    free(plan->count);
    free(plan->bytes);
    free(plan->buffer);
    free(plan->need);
    free(plan->access);
    free(plan->edge);
    free(plan->fetch);
    free(plan->rank_of);
    free(plan->message);
    free(plan->copy);
    free(plan->task);
    free(plan->trains);
    free(plan->device_of);
    free(plan);
}

/* --- the longest path ------------------------------------------------------------------------- */

gpp_status gpp__plan_makespan(const gpp__plan *plan, const double ms[], double start[], double *end,
                              gpp_error *err)
{
    double *stop = calloc(plan->tasks + (size_t)plan->shape.devices, sizeof *stop), last = 0;
    if (!stop)
        return gpp__fail(err, GPP_ENOMEM, "longest path through %zu tasks", plan->tasks);
    double *device_free = stop + plan->tasks;
    for (size_t k = 0; k < plan->tasks; k++) {
        const gpp__task *t = &plan->task[k];
        double data = 0;
        for (int a = 0; a < t->needs; a++)
            data = stop[t->need[a]] > data ? stop[t->need[a]] : data;
        double begin = gpp__walk_start(&device_free[t->device], data, ms[k]);
        stop[k] = begin + ms[k];
        last = stop[k] > last ? stop[k] : last;
        if (start)
            start[k] = begin;
    }
    *end = last;
    free(stop);
    return GPP_OK;
}
