/* graph/search/forecast_list.c: see forecast_list.h. */
#include "graph/search/forecast_list.h"

#include <stdlib.h>

enum { NONE = -1 };

/* Copies of a buffer on other ranks than that of its device. */
typedef struct rank_copy {
    int32_t rank, buffer; /* of the list */
    int32_t next;
} rank_copy;

typedef struct maker {
    gpp__forecast_list *list;
    const gpp__recipe *recipe;
    const gpp__plan *plan;
    int32_t *first;  /* [plan->buffers] list of copies; NONE */
    rank_copy *copy; /* [room] */
    int32_t copies;
    size_t accesses; /* written */
} maker;

static int rank_of(const maker *m, int device)
{
    return gpp__plan_rank(m->plan, device);
}

/* --- nodes ------------------------------------------------------------------------------------ */

static gpp_status number_nodes(maker *m, const int node_of[], gpp_error *err)
{
    gpp__forecast_list *l = m->list;
    int ranks = m->recipe->ranks.count, devices = m->recipe->devices, next = 0;
    int *most = calloc((size_t)ranks, sizeof *most);
    l->node_of = calloc((size_t)devices, sizeof *l->node_of);
    l->host = calloc((size_t)ranks, sizeof *l->host);
    if (!most || !l->node_of || !l->host) {
        free(most);
        return gpp__fail(err, GPP_ENOMEM, "memory nodes of %d ranks", ranks);
    }
    for (int d = 0; d < devices; d++)
        if (node_of[d] > most[rank_of(m, d)])
            most[rank_of(m, d)] = node_of[d];
    for (int rank = 0; rank < ranks; rank++, next++) {
        l->host[rank] = next;
        next += most[rank];
    }
    for (int d = 0; d < devices; d++)
        l->node_of[d] = l->host[rank_of(m, d)] + node_of[d];
    l->spec.nodes = next;
    l->spec.node_of = l->node_of;
    l->spec.devices = devices;
    free(most);
    return GPP_OK;
}

/* --- buffers ---------------------------------------------------------------------------------- */

static void add_copy(maker *m, int32_t buffer, int device)
{
    gpp__forecast_list *l = m->list;
    l->buffer[l->spec.buffers] =
        (gpp__sim_buffer){.bytes = m->plan->buffer[buffer].bytes, .device = device, .other = -1};
    m->copy[m->copies] =
        (rank_copy){rank_of(m, device), (int32_t)l->spec.buffers++, m->first[buffer]};
    m->first[buffer] = m->copies++;
}

static void add_buffer(maker *m, size_t k)
{
    const gpp__buffer *b = &m->plan->buffer[k];
    const int *node_of = m->list->node_of;
    int rank = rank_of(m, b->device);
    bool here = b->other >= 0 && rank_of(m, b->other) == rank;
    m->list->buffer[k] = (gpp__sim_buffer){
        .bytes = b->bytes,
        .device = b->device,
        .other = here && node_of[b->other] != node_of[b->device] ? b->other : -1,
        .lasting = b->cls == GPP__PARAMS || b->cls == GPP__OPTIMIZER,
        .inside = gpp__plan_own_bytes(b) == 0,
        .fetched = b->cls == GPP__FETCHED,
        .host = m->list->host[rank],
    };
    m->first[k] = NONE;
}

static gpp_status make_buffers(maker *m, gpp_error *err)
{
    size_t count = m->plan->buffers, room = 2 * count + m->plan->copies + 1;
    m->list->buffer = calloc(room, sizeof *m->list->buffer);
    m->first = calloc(count + 1, sizeof *m->first);
    m->copy = calloc(room, sizeof *m->copy);
    if (!m->list->buffer || !m->first || !m->copy)
        return gpp__fail(err, GPP_ENOMEM, "%zu buffers", room);
    for (size_t k = 0; k < count; k++)
        add_buffer(m, k);
    m->list->spec.buffers = count;
    for (size_t k = 0; k < count; k++) {
        const gpp__buffer *b = &m->plan->buffer[k];
        if (b->other >= 0 && rank_of(m, b->other) != rank_of(m, b->device))
            add_copy(m, (int32_t)k, b->other);
    }
    for (size_t k = 0; k < m->plan->copies; k++)
        add_copy(m, m->plan->copy[k].buffer, m->plan->copy[k].device);
    m->list->spec.buffer = m->list->buffer;
    return GPP_OK;
}

static int32_t buffer_on(const maker *m, int32_t buffer, int rank)
{
    if (rank_of(m, m->plan->buffer[buffer].device) == rank)
        return buffer;
    for (int32_t c = m->first[buffer]; c != NONE; c = m->copy[c].next)
        if (m->copy[c].rank == rank)
            return m->copy[c].buffer;
    return buffer;
}

/* --- tasks ------------------------------------------------------------------------------------ */

static void add_task(maker *m, size_t k)
{
    const gpp__task *t = &m->plan->task[k];
    gpp__forecast_list *l = m->list;
    l->at[k] = l->spec.tasks;
    gpp__sim_task *to = &l->task[l->spec.tasks++];
    *to = (gpp__sim_task){.device = t->device, .accesses = t->access_count, .access = t->access};
    if (!l->access)
        return;
    to->access = l->access + m->accesses;
    for (int a = 0; a < t->access_count; a++) {
        gpp__access access = t->access[a];
        access.buffer = buffer_on(m, access.buffer, rank_of(m, t->device));
        l->access[m->accesses++] = access;
    }
}

static void add_message(maker *m, const gpp__message *message)
{
    gpp__forecast_list *l = m->list;
    const gpp_cluster *c = m->recipe->cluster;
    gpp__access *access = l->access + m->accesses;
    size_t bytes = m->plan->buffer[message->buffer].bytes;
    m->accesses += 2;
    access[0] =
        (gpp__access){.mode = GPP__READ, .buffer = buffer_on(m, message->buffer, message->from)};
    access[1] =
        (gpp__access){.mode = GPP__WRITE, .buffer = buffer_on(m, message->into, message->to)};
    l->task[l->spec.tasks++] =
        (gpp__sim_task){.device = -1,
                        .accesses = 2,
                        .access = access,
                        .ms = c ? gpp__cluster_link_ms(c, message->from, message->to, bytes) : 0,
                        .from = message->from,
                        .to = message->to};
}

static gpp_status make_tasks(maker *m, gpp_error *err)
{
    const gpp__plan *plan = m->plan;
    gpp__forecast_list *l = m->list;
    size_t accesses = 2 * plan->messages + 1;
    for (size_t k = 0; k < plan->tasks; k++)
        accesses += (size_t)plan->task[k].access_count;
    l->at = calloc(plan->tasks + 1, sizeof *l->at);
    l->task = calloc(plan->tasks + plan->messages + 1, sizeof *l->task);
    l->access = plan->messages ? calloc(accesses, sizeof *l->access) : NULL;
    if (!l->at || !l->task || (plan->messages && !l->access))
        return gpp__fail(err, GPP_ENOMEM, "%zu tasks and %zu messages", plan->tasks,
                         plan->messages);
    for (size_t k = 0, next = 0; k < plan->tasks; k++) {
        add_task(m, k);
        for (; next < plan->messages && plan->message[next].task == (int32_t)k; next++)
            add_message(m, &plan->message[next]);
    }
    l->spec.task = l->task;
    l->spec.ranks = m->recipe->ranks.count;
    return GPP_OK;
}

gpp_status gpp__forecast_list_init(gpp__forecast_list *list, const gpp__recipe *recipe,
                                   const gpp__plan *plan, const int node_of[], gpp_error *err)
{
    maker m = {.list = list, .recipe = recipe, .plan = plan};
    *list = (gpp__forecast_list){0};
    gpp_status status = number_nodes(&m, node_of, err);
    if (status == GPP_OK)
        status = make_buffers(&m, err);
    if (status == GPP_OK)
        status = make_tasks(&m, err);
    free(m.first);
    free(m.copy);
    return status;
}

void gpp__forecast_list_release(gpp__forecast_list *list)
{
    free(list->node_of);
    free(list->host);
    free(list->at);
    free(list->task);
    free(list->buffer);
    free(list->access);
    *list = (gpp__forecast_list){0};
}

void gpp__forecast_list_times(const gpp__forecast_list *list, const gpp__plan *plan,
                              gpp__sim_result *result)
{
    for (size_t k = 0; k < plan->tasks; k++) { /* list->at[k] >= k */
        result->start_ms[k] = result->start_ms[list->at[k]];
        result->stop_ms[k] = result->stop_ms[list->at[k]];
    }
}
