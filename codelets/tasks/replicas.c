/*
 * codelets/tasks/replicas.c: the cells in which replicas meet: sums of their gradients, and the
 * gathering of sums, statistics and updated parameters.
 *
 * The sum goes over a binary tree of replica numbers, ((0 + 1) + (2 + 3)) + ..., element by element.
 * So its bits depend on the replicas alone, not on where they are or on who is ready first.
 */
#include "codelets/move.h"
#include "codelets/tasks/internal.h"

/** Shards of one range of the gradients, one of each replica. Those that have worked come first. */
typedef struct shards {
    float **shard;  /* [count] */
    int count, sum; /* the first `sum` have gradients */
    int64_t length;
    int units;
} shards;

static void sum_range(const shards *s, const gpp__run *run, int64_t at, int64_t count)
{
    for (int64_t span = 1; span < s->sum; span *= 2)
        for (int64_t r = 0; r + span < s->sum; r += 2 * span)
            gpp__add_floats(run, s->shard[r] + at, s->shard[r + span] + at, count);
    for (int r = 1; r < s->count; r++)
        gpp__copy_bytes(run, s->shard[r] + at, s->shard[0] + at, (size_t)count * sizeof(float));
}

/* In parts that stay in a core's caches until all replicas have them. */
static void sum_unit(void *arg, int unit, int thread)
{
    enum { PART = 2048 };
    const shards *s = arg;
    const gpp__run here = {.pool = NULL};
    int64_t begin, end;
    (void)thread;
    gpp__share(s->length, s->units, unit, 64, &begin, &end);
    for (int64_t at = begin; at < end; at += PART)
        sum_range(s, &here, at, end - at < PART ? end - at : PART);
}

gpp_status gpp__cell_reduce(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    shards s = {.shard = (float **)c->device->ports, .length = c->shard_floats};
    for (int a = 0; a < c->accesses; a++) {
        s.shard[s.count++] = (float *)gpp__handle_pointer(buffers[a]);
        s.sum += c->access[a].mode == GPP__READWRITE;
    }
    s.units = (int)(s.length / 65536 + 1);
    if (s.count > 0 && run->mover)
        sum_range(&s, run, 0, s.length);
    else if (s.count > 0)
        gpp__parallel(run->pool, s.units, sum_unit, &s);
    return GPP_OK;
}

/* The sums are in the gradients' memory by now. Statistics are copied, replica after replica. */
gpp_status gpp__cell_gather(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *all = gpp__cell_buffer(c, buffers, GPP__ROLE_ALL_STATS);
    size_t each = c->stage->stats_bytes;
    int left = c->job->micro_batches;
    for (int a = 0; a < c->accesses; a++) {
        if (c->access[a].role != GPP__ROLE_STATS)
            continue;
        int pieces = left < c->share ? left : c->share;
        gpp__copy_bytes(run, all, gpp__handle_pointer(buffers[a]), (size_t)pieces * each);
        all += (size_t)pieces * each;
        left -= pieces;
    }
    return GPP_OK;
}

/* Parameters that other ranks have updated are there by now; those of replicas on this rank are
 * copied. */
gpp_status gpp__cell_collect(gpp__cell *c, void *buffers[], const gpp__run *run)
{
    char *params = gpp__cell_buffer(c, buffers, GPP__ROLE_PARAMS), *to = NULL;
    for (int a = 0; a < c->accesses; a++) {
        if (c->access[a].role == GPP__ROLE_PARAM_SHARD)
            to = gpp__handle_pointer(buffers[a]);
        else if (c->access[a].role == GPP__ROLE_UPDATED) /* right behind the same shard here */
            gpp__copy_bytes(run, to, gpp__handle_pointer(buffers[a]),
                            gpp__handle_bytes(buffers[a]));
    }
    return params ? gpp__stage_pack(c->stage, run, params) : GPP_OK;
}
