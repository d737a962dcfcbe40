/* graph/run/comm.c: what ranks agree on, over any transport. See comm.h. */
#include "graph/run/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- a communicator --------------------------------------------------------------------------- */

gpp_status gpp__comm_init(gpp_comm *c, const gpp__transport *transport, int rank, int size,
                          gpp_error *err)
{
    *c = (gpp_comm){.transport = transport, .rank = rank, .size = size, .why = GPP_ERROR_INIT};
    c->group = calloc((size_t)size, sizeof *c->group);
    c->peer = calloc((size_t)size, sizeof *c->peer);
    if (!c->group || !c->peer) {
        gpp__comm_release(c);
        return gpp__fail(err, GPP_ENOMEM, "a communicator of %d ranks", size);
    }
    for (int r = 0; r < size; r++)
        atomic_store(&c->peer[r].heard, now());
    return GPP_OK;
}

void gpp__comm_release(gpp_comm *c)
{
    free(c->group);
    free(c->peer);
    c->group = NULL;
    c->peer = NULL;
}

int gpp_comm_rank(const gpp_comm *c)
{
    return c ? c->rank : -1;
}

int gpp_comm_size(const gpp_comm *c)
{
    return c ? c->size : 0;
}

gpp_status gpp_comm_set_timeout(gpp_comm *c, double seconds, gpp_error *err)
{
    if (!c || !(seconds >= 0) || seconds > 1e9)
        return gpp__fail(err, GPP_EINVAL,
                         "a timeout needs a communicator and 0 ... 1e9 seconds, "
                         "got %g",
                         seconds);
    atomic_store(&c->timeout, seconds);
    return GPP_OK;
}

void gpp_comm_free(gpp_comm *c)
{
    if (c)
        c->transport->free(c);
}

/* --- signs of life ---------------------------------------------------------------------------- */

int gpp__comm_silent(gpp_comm *c)
{
    double timeout = atomic_load(&c->timeout), since = now() - timeout;
    if (timeout > 0)
        c->transport->listen(c);
    for (int r = 0; timeout > 0 && r < c->size; r++)
        if (r != c->rank && atomic_load(&c->peer[r].heard) < since)
            return r;
    return -1;
}

gpp_status gpp__comm_bury(gpp_comm *c, int rank, gpp_error *err)
{
    if (!atomic_load(&c->dead)) {
        gpp__fail(&c->why, GPP_ETIMEDOUT,
                  "rank %d has given no sign of life for %.3g s: this pipe cannot go on", rank,
                  atomic_load(&c->timeout));
        atomic_store(&c->dead, true);
    }
    if (err && err->code == GPP_OK)
        *err = c->why;
    return c->why.code;
}

uint64_t gpp__comm_moves(gpp_comm *c)
{
    uint64_t moves = 0;
    c->transport->listen(c);
    for (int r = 0; r < c->size; r++)
        moves += atomic_load(&c->peer[r].ended);
    return moves;
}

/* --- bytes ------------------------------------------------------------------------------------ */

gpp_status gpp__comm_put(gpp_comm *c, int to, const void *data, size_t bytes, gpp_error *err)
{
    if (atomic_load(&c->dead))
        return gpp__comm_bury(c, -1, err);
    return bytes ? c->transport->put(c, to, data, bytes, err) : GPP_OK;
}

gpp_status gpp__comm_take(gpp_comm *c, int from, void *data, size_t bytes, gpp_error *err)
{
    bool got = bytes == 0;
    gpp_status status = GPP_OK;
    while (!got && status == GPP_OK) {
        int silent = gpp__comm_silent(c);
        if (silent >= 0 || atomic_load(&c->dead))
            return gpp__comm_bury(c, silent, err);
        status = c->transport->take(c, from, data, bytes, &got, err);
        if (!got && status == GPP_OK)
            c->transport->pause(c);
    }
    return status;
}

gpp_status gpp__comm_spread(gpp_comm *c, int from, void *data, size_t bytes, gpp_error *err)
{
    gpp_status status = GPP_OK;
    if (c->rank != from)
        return gpp__comm_take(c, from, data, bytes, err);
    for (int r = 0; r < c->size && status == GPP_OK; r++)
        if (r != from)
            status = gpp__comm_put(c, r, data, bytes, err);
    return status;
}

gpp_status gpp_comm_broadcast(gpp_comm *c, int from, void *data, size_t bytes, gpp_error *err)
{
    if (!c || from < 0 || from >= c->size || (bytes && !data))
        return gpp__fail(err, GPP_EINVAL,
                         "a broadcast needs a communicator, one of its ranks and "
                         "memory; the rank is %d",
                         from);
    return gpp__comm_spread(c, from, data, bytes, err);
}

/* Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing
 * Systems" (1997): the number of blocks that a rank has doubles in every round. */
gpp_status gpp__comm_gather(gpp_comm *c, const void *mine, size_t bytes, void *all, gpp_error *err)
{
    gpp_status status = GPP_OK;
    char *block = malloc((size_t)c->size * bytes + 1);
    if (!block)
        return gpp__fail(err, GPP_ENOMEM, "%zu bytes of %d ranks", bytes, c->size);
    memcpy(block, mine, bytes);
    for (int have = 1, count; have < c->size && status == GPP_OK; have += count) {
        count = have < c->size - have ? have : c->size - have;
        status = gpp__comm_put(c, (c->rank - have + c->size) % c->size, block,
                               (size_t)count * bytes, err);
        if (status == GPP_OK)
            status = gpp__comm_take(c, (c->rank + have) % c->size, block + (size_t)have * bytes,
                                    (size_t)count * bytes, err);
    }
    for (int k = 0; k < c->size && status == GPP_OK; k++)
        memcpy((char *)all + (size_t)((c->rank + k) % c->size) * bytes, block + (size_t)k * bytes,
               bytes);
    free(block);
    return status;
}

/* --- agreements ------------------------------------------------------------------------------- */

/* What ranks compare before they exchange anything. */
typedef struct header {
    char what[48];
    int32_t status;
    uint64_t key, bytes;
} header;

/* The record of the first rank that comes with a failure becomes that of all. */
static gpp_status fail_together(gpp_comm *c, const header all[], gpp_error *err)
{
    gpp_error *records = calloc((size_t)c->size, sizeof *records), mine = GPP_ERROR_INIT;
    int first = 0;
    while (all[first].status == GPP_OK)
        first++;
    if (!records)
        return gpp__fail(err, (gpp_status)all[first].status, "rank %d has failed", first);
    if (err)
        mine = *err;
    gpp_status status = gpp__comm_gather(c, &mine, sizeof mine, records, err);
    if (status == GPP_OK) {
        gpp_error ours = records[first];
        status = (gpp_status)all[first].status;
        ours.code = status;
        snprintf(ours.msg, sizeof ours.msg, "rank %d: %.*s", first, (int)sizeof ours.msg - 32,
                 records[first].msg);
        if (err)
            *err = ours;
    }
    free(records);
    return status;
}

static gpp_status compare(const gpp_comm *c, const header all[], gpp_error *err)
{
    for (int r = 1; r < c->size; r++) {
        if (strcmp(all[r].what, all[0].what) != 0)
            return gpp__fail(err, GPP_ESTATE,
                             "rank 0 is at %s, rank %d at %s: all ranks must make the same calls",
                             all[0].what, r, all[r].what);
        if (all[r].key != all[0].key || all[r].bytes != all[0].bytes)
            return gpp__fail(err, GPP_EINVAL, "rank %d differs from rank 0 in %s", r, all[0].what);
    }
    return GPP_OK;
}

static gpp_status agree(void *arg, const char *what, gpp_status status, uint64_t key,
                        const void *mine, size_t bytes, void *all, gpp_error *err)
{
    gpp_comm *c = arg;
    header ours = {.status = (int32_t)status, .key = key, .bytes = bytes};
    bool failed = false;
    snprintf(ours.what, sizeof ours.what, "%s", what);
    if (status != GPP_OK && (c->failed || atomic_load(&c->dead)))
        return status;
    if (atomic_load(&c->dead))
        return gpp__comm_bury(c, -1, err);
    header *theirs = calloc((size_t)c->size, sizeof *theirs);
    if (!theirs)
        return gpp__fail(err, GPP_ENOMEM, "an agreement of %d ranks", c->size);
    gpp_error unheard = GPP_ERROR_INIT;
    gpp_status heard = gpp__comm_gather(c, &ours, sizeof ours, theirs, &unheard);
    for (int r = 0; r < c->size && heard == GPP_OK; r++)
        failed |= theirs[r].status != GPP_OK;
    if (heard != GPP_OK) {
        if (err && status == GPP_OK)
            *err = unheard;
        status = heard;
    } else if (failed) {
        status = fail_together(c, theirs, err);
    } else {
        status = compare(c, theirs, err);
    }
    free(theirs);
    c->failed = status != GPP_OK;
    return status == GPP_OK && bytes ? gpp__comm_gather(c, mine, bytes, all, err) : status;
}

gpp__ranks gpp__comm_ranks(gpp_comm *c)
{
    return c ? (gpp__ranks){c->rank, c->size, c->group, agree, c} : (gpp__ranks){.count = 1};
}
