/*
 * graph/plan/messages.c: what goes from rank to rank.
 *
 * Ranks share no memory. A buffer that several ranks use has a copy on each of them, and what a
 * task writes on one rank is sent to the others that read it before it is written again. The tasks
 * are gone through in their order of submission. Both ends of a message take it into their own
 * order right behind the task that has written the data.
 *
 * No deadlock: take the first element of that order, task or message, that has not ended. A task
 * comes after all tasks that it needs (graph/plan/order.c) and after the messages with what it
 * reads, so it can run. A message comes after everything that has used its two copies before, so
 * both ends are ready.
 *
 * Shards of parameters are the exception: each replica has buffers of its own for them, and a shard
 * goes from that of the replica that has updated it into those of the others.
 *
 * What is in a buffer at the beginning is valid on every rank: it stays from an earlier plan, which
 * has sent it to the ranks that read it.
 */
#include "graph/plan/internal.h"

#include <stdlib.h>

#include "base/names.h"

enum { NOBODY = -1 };

typedef struct state {
    gpp__plan *plan;
    int32_t *update; /* [partitions] its update; NOBODY so far */
    int ranks;
    int32_t *writer;  /* [buffers] the task that has written it last; NOBODY */
    uint64_t *valid;  /* [buffers][words] bit r: rank r has what is in it */
    uint64_t *copied; /* [buffers][words] bit r: a copy counts to a device of rank r */
    size_t words;
    int message_room, copy_room;
} state;

static bool has(const state *s, const uint64_t *set, size_t buffer, int rank)
{
    return set[buffer * s->words + (size_t)rank / 64] >> rank % 64 & 1;
}

static void put(const state *s, uint64_t *set, size_t buffer, int rank)
{
    set[buffer * s->words + (size_t)rank / 64] |= (uint64_t)1 << rank % 64;
}

static bool add_message(state *s, int32_t task, int32_t buffer, int from, int to, int32_t into)
{
    if (!gpp__make_room((void **)&s->plan->message, (int)s->plan->messages, &s->message_room,
                        sizeof *s->plan->message))
        return false;
    s->plan->message[s->plan->messages++] = (gpp__message){task, buffer, from, to, into};
    return true;
}

/* The first device of a rank that uses a buffer which counts to no device there pays for the copy. */
static bool note_copy(state *s, int32_t buffer, int device)
{
    const gpp__buffer *b = &s->plan->buffer[buffer];
    int rank = gpp__plan_rank(s->plan, device);
    if (rank == gpp__plan_rank(s->plan, b->device) ||
        (b->other >= 0 && rank == gpp__plan_rank(s->plan, b->other)) ||
        has(s, s->copied, (size_t)buffer, rank))
        return true;
    put(s, s->copied, (size_t)buffer, rank);
    if (!gpp__make_room((void **)&s->plan->copy, (int)s->plan->copies, &s->copy_room,
                        sizeof *s->plan->copy))
        return false;
    s->plan->copy[s->plan->copies++] = (gpp__copy){buffer, device};
    return true;
}

static bool use(state *s, size_t task, const gpp__access *a)
{
    size_t b = (size_t)a->buffer;
    int rank = gpp__plan_rank(s->plan, s->plan->task[task].device);
    if (!note_copy(s, a->buffer, s->plan->task[task].device))
        return false;
    if ((a->mode & GPP__READ) && s->writer[b] != NOBODY && !has(s, s->valid, b, rank)) {
        int from = gpp__plan_rank(s->plan, s->plan->task[s->writer[b]].device);
        put(s, s->valid, b, rank);
        if (!add_message(s, s->writer[b], a->buffer, from, rank, a->buffer))
            return false;
    }
    if (!(a->mode & GPP__WRITE))
        return true;
    for (size_t w = 0; w < s->words; w++)
        s->valid[b * s->words + w] = 0;
    put(s, s->valid, b, rank);
    s->writer[b] = (int32_t)task;
    return true;
}

/* Which buffer a task has in a role. */
static int32_t buffer_of(const gpp__task *t, gpp__role role, int port)
{
    for (int a = 0; a < t->access_count; a++)
        if (t->access[a].role == role && t->access[a].port == port)
            return t->access[a].buffer;
    return -1;
}

/* A shard that another rank has updated goes straight into these parameters. Behind all updates of
 * the partition: each reads and writes the buffers of layers among its own parameters. */
static bool bring_shards(state *s, const gpp__task *t)
{
    int depth = gpp__shape_depth(&s->plan->shape), rank = gpp__plan_rank(s->plan, t->device);
    int32_t last = NOBODY;
    for (int j = t->j % depth; j < s->plan->shape.partitions; j += depth)
        last = s->update[j] > last ? s->update[j] : last;
    for (int a = 0; a < t->access_count; a++) {
        int there = t->access[a].port * depth + t->j % depth;
        if (t->access[a].role != GPP__ROLE_PARAM_SHARD)
            continue;
        const gpp__task *update = &s->plan->task[s->update[there]];
        int from = gpp__plan_rank(s->plan, update->device);
        if (from != rank &&
            !add_message(s, last, buffer_of(update, GPP__ROLE_PARAM_SHARD, t->access[a].port), from,
                         rank, t->access[a].buffer))
            return false;
    }
    return true;
}

static bool go_through_shards(state *s)
{
    for (size_t k = 0; k < s->plan->tasks; k++) {
        const gpp__task *t = &s->plan->task[k];
        if (t->kind == GPP__UPDATE)
            s->update[t->j] = (int32_t)k;
        if (t->kind == GPP__COLLECT && !bring_shards(s, t))
            return false;
    }
    return true;
}

static bool go_through(state *s)
{
    for (size_t k = 0; k < s->plan->tasks; k++)
        for (int a = 0; a < s->plan->task[k].access_count; a++)
            if (s->plan->task[k].access[a].mode != GPP__WORKSPACE &&
                !use(s, k, &s->plan->task[k].access[a]))
                return false;
    return true;
}

static int by_task(const void *x, const void *y)
{
    const gpp__message *a = x, *b = y;
    if (a->task != b->task)
        return a->task < b->task ? -1 : 1;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    if (a->buffer != b->buffer)
        return a->buffer < b->buffer ? -1 : 1;
    return (a->into > b->into) - (a->into < b->into);
}

gpp_status gpp__plan_messages(gpp__plan_maker *p, gpp_error *err)
{
    state s = {.plan = p->plan};
    size_t buffers = p->plan->buffers + 1;
    for (int d = 0; p->plan->rank_of && d < p->shape.devices; d++)
        s.ranks = p->plan->rank_of[d] >= s.ranks ? p->plan->rank_of[d] + 1 : s.ranks;
    if (s.ranks <= 1)
        return GPP_OK;
    s.words = (size_t)s.ranks / 64 + 1;
    s.writer = malloc(buffers * sizeof *s.writer);
    s.valid = calloc(2 * buffers, s.words * sizeof *s.valid);
    s.update = malloc((size_t)p->n * sizeof *s.update);
    bool done = s.writer && s.valid && s.update;
    if (done) {
        s.copied = s.valid + buffers * s.words;
        for (size_t k = 0; k < buffers; k++)
            s.writer[k] = NOBODY;
        for (int j = 0; j < p->n; j++)
            s.update[j] = NOBODY;
        done = go_through(&s) && go_through_shards(&s);
    }
    free(s.update);
    free(s.writer);
    free(s.valid);
    if (!done)
        return gpp__fail(err, GPP_ENOMEM, "messages of %zu tasks", p->plan->tasks);
    if (p->plan->messages)
        qsort(p->plan->message, p->plan->messages, sizeof *p->plan->message, by_task);
    return GPP_OK;
}

/* Classes that more than two devices use. */
static bool has_copies(gpp__class cls)
{
    return cls == GPP__NORMS || cls == GPP__GATE || cls == GPP__STATS;
}

int gpp__plan_payer(const gpp__plan *plan, size_t buffer, int rank)
{
    const gpp__buffer *b = &plan->buffer[buffer];
    if (gpp__plan_rank(plan, b->device) == rank)
        return b->device;
    if (b->other >= 0 && gpp__plan_rank(plan, b->other) == rank)
        return b->other;
    for (size_t k = 0; has_copies((gpp__class)b->cls) && k < plan->copies; k++)
        if (plan->copy[k].buffer == (int32_t)buffer &&
            gpp__plan_rank(plan, plan->copy[k].device) == rank)
            return plan->copy[k].device;
    return -1;
}
