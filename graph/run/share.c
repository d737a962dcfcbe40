/*
 * graph/run/share.c: files of a pipe that several ranks run. Rank 0 reads and writes them; what is
 * in them goes from and to the ranks that have it. Alone, a rank has everything and nothing goes
 * anywhere.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/run/ledger.h"

static bool several(const gpp_pipe *p)
{
    return gpp__ranks_are_several(&p->recipe->ranks);
}

bool gpp__has_files(const gpp_pipe *p)
{
    return p->recipe->ranks.rank == 0;
}

/* --- words ------------------------------------------------------------------------------------ */

static gpp_status print_words(const gpp_file *f, char **bytes, size_t *size, gpp_error *err)
{
    gpp_file *words = NULL;
    gpp_status status = gpp_file_new(&words, err);
    for (int k = 0; k < f->words && status == GPP_OK; k++)
        status = gpp_file_set_word(words, f->word[k].key, f->word[k].value, err);
    if (status == GPP_OK)
        status = gpp__file_print(words, bytes, size, err);
    gpp_file_free(words);
    return status;
}

gpp_status gpp__file_spread(gpp_pipe *p, gpp_file **file, gpp_status status, gpp_error *err)
{
    char *bytes = NULL;
    size_t size = 0;
    if (!several(p))
        return status;
    if (status == GPP_OK && gpp__has_files(p))
        status = print_words(*file, &bytes, &size, err);
    status = gpp__agree(p, "a file", status, 0, err);
    if (status == GPP_OK)
        status = gpp__comm_spread(p->comm, 0, &size, sizeof size, err);
    if (status == GPP_OK && !gpp__has_files(p) && !(bytes = malloc(size + 1)))
        status = gpp__fail(err, GPP_ENOMEM, "the words of a file");
    status = gpp__agree(p, "the words of a file", status, 0, err);
    if (status == GPP_OK)
        status = gpp__comm_spread(p->comm, 0, bytes, size, err);
    if (status == GPP_OK && !gpp__has_files(p))
        status = gpp__file_parse(file, bytes, size, err);
    free(bytes);
    return status;
}

/* --- arrays ----------------------------------------------------------------------------------- */

/* Rank 0 gets the part of an entry that a partition's block has. */
static gpp_status collect_part(gpp_comm *comm, const gpp__ledger *l, const gpp__ledger_entry *e,
                               int j, gpp_error *err)
{
    const gpp__recipe *r = l->pipe->recipe;
    int owner = r->rank_of[r->device_of[j]];
    gpp__ledger_part part = gpp__ledger_part_of(l, e, j);
    char *data = (char *)e->data + part.from;
    if (owner == 0 || part.bytes == 0)
        return GPP_OK;
    if (owner == comm->rank)
        return gpp__comm_put(comm, 0, data, part.bytes, err);
    return comm->rank == 0 ? gpp__comm_take(comm, owner, data, part.bytes, err) : GPP_OK;
}

gpp_status gpp__ledger_collect(gpp__ledger *l, gpp_status status, gpp_error *err)
{
    gpp_comm *comm = l->pipe->comm;
    if (!several(l->pipe))
        return status;
    status = gpp__agree(l->pipe, "the arrays of a file", status, 0, err);
    for (int k = 0; k < l->entries && status == GPP_OK; k++) {
        const gpp__ledger_entry *e = &l->entry[k];
        int last = gpp__ledger_is_sharded(l, e) ? l->pipe->recipe->partitions - 1 : e->home;
        for (int j = e->home; j <= last && status == GPP_OK;
             j += gpp__recipe_depth(l->pipe->recipe))
            status = collect_part(comm, l, e, j, err);
    }
    return status;
}

/* The rank has a replica of the array. */
static bool wants(const gpp__ledger *l, const gpp__ledger_entry *e, int rank)
{
    const gpp__recipe *r = l->pipe->recipe;
    bool has = false;
    for (int j = e->home; j < r->partitions; j += gpp__recipe_depth(r))
        has |= r->rank_of[r->device_of[j]] == rank;
    return has;
}

/* Which arrays the file has, and memory for those that come to this rank. */
static gpp_status prepare(gpp__ledger *l, gpp_file *f, gpp_error *err)
{
    gpp_pipe *p = l->pipe;
    char *there = calloc((size_t)l->entries + 1, 1);
    gpp_status status = there ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "%d arrays", l->entries);
    for (int k = 0; k < l->entries && there; k++)
        there[k] = l->entry[k].data != NULL;
    status = gpp__agree(p, "which arrays a file has", status, 0, err);
    if (status == GPP_OK)
        status = gpp__comm_spread(p->comm, 0, there, (size_t)l->entries, err);
    for (int k = 0; k < l->entries && status == GPP_OK; k++) {
        gpp__ledger_entry *e = &l->entry[k];
        if (there[k] && !gpp__has_files(p) && wants(l, e, p->comm->rank))
            status = gpp__file_room(f, e->name, e->dtype, e->rank, e->dim, &e->data, err);
    }
    free(there);
    return gpp__agree(p, "memory for the arrays of a file", status, 0, err);
}

gpp_status gpp__ledger_deal(gpp__ledger *l, gpp_file *f, gpp_status status, gpp_error *err)
{
    gpp_comm *comm = l->pipe->comm;
    if (!several(l->pipe))
        return status;
    status = gpp__agree(l->pipe, "loading a file", status, 0, err);
    if (status == GPP_OK)
        status = prepare(l, f, err);
    for (int k = 0; k < l->entries && status == GPP_OK; k++) {
        gpp__ledger_entry *e = &l->entry[k];
        if (!e->data)
            continue;
        if (comm->rank > 0)
            status = gpp__comm_take(comm, 0, e->data, e->bytes, err);
        for (int rank = 1; rank < comm->size && comm->rank == 0 && status == GPP_OK; rank++)
            if (wants(l, e, rank))
                status = gpp__comm_put(comm, rank, e->data, e->bytes, err);
    }
    return status;
}

/* --- what the optimizer counts ---------------------------------------------------------------- */

gpp_status gpp__learned_gather(gpp_pipe *p, gpp_status status, gpp_error *err)
{
    const gpp__recipe *r = p->recipe;
    size_t count = (size_t)r->parameters, bytes = count * sizeof(gpp__learned);
    if (!several(p))
        return status;
    gpp__learned *all = calloc((size_t)r->ranks.count * count + 1, sizeof *all);
    if (!all && status == GPP_OK)
        status = gpp__fail(err, GPP_ENOMEM, "counts of %zu parameters", count);
    status = gpp__ranks_gather(&r->ranks, "the counts of the optimizer", status, 0,
                               p->learning.learned, bytes, all, err);
    for (size_t k = 0; k < count && status == GPP_OK; k++) {
        int owner = r->rank_of[r->device_of[r->named[k].partition]];
        p->learning.learned[k] = all[(size_t)owner * count + k];
    }
    free(all);
    return status;
}
