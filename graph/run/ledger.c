/*
 * graph/run/ledger.c: moves arrays between a pipe's parameter blocks and a file.
 *
 * Loading exchanges the bytes of each array in the file's memory with those in the parameter block.
 * So a load that fails half-way is undone by exchanging again, and no second copy of the parameters
 * is needed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/ledger.h"

/* --- the list --------------------------------------------------------------------------------- */

static const gpp__param *param_of(const gpp_pipe *p, const gpp__named *n)
{
    return &p->recipe->network->node[n->node].param[n->param];
}

static int states_of(const gpp_pipe *p)
{
    return p->recipe->optimizer ? p->recipe->optimizer->states(p->recipe->optimizer_attr) : 0;
}

/* PyTorch keeps a count of batches in a tensor of rank 0. */
static bool is_counter(const gpp__param *q)
{
    return q->dtype == GPP_I64 && q->count == 1 && q->rank <= 1;
}

static gpp__ledger_entry entry_of(const gpp_pipe *p, const gpp__named *n)
{
    const gpp__param *q = param_of(p, n);
    gpp__ledger_entry e = {.name = n->name,
                           .dtype = q->dtype,
                           .rank = is_counter(q) ? 0 : q->rank,
                           .cls = GPP__PARAMS,
                           .home = p->recipe->home[n->partition],
                           .at = p->recipe->stage[n->partition].param_at[n->k] + q->offset,
                           .bytes = (size_t)q->count * gpp_dtype_size(q->dtype)};
    for (int d = 0; d < e.rank; d++)
        e.dim[d] = q->dim[d];
    return e;
}

/* The entry of array `s` of the optimizer's state. Its name is written at *name, which moves on. */
static gpp__ledger_entry state_entry(const gpp_pipe *p, const gpp__named *n, int s, char **name)
{
    gpp__ledger_entry e = entry_of(p, n);
    e.name = *name;
    *name += sprintf(*name, "optimizer.%s.%s", p->recipe->optimizer->state_names[s], n->name) + 1;
    e.cls = GPP__OPTIMIZER;
    e.array = s;
    e.at = p->recipe->stage[n->partition].state_at[n->k] + param_of(p, n)->offset;
    return e;
}

static size_t state_name_bytes(const gpp_pipe *p, int states)
{
    size_t bytes = 1;
    for (int s = 0; s < states; s++)
        for (int k = 0; k < p->recipe->parameters; k++)
            bytes += strlen("optimizer..") + strlen(p->recipe->optimizer->state_names[s]) +
                     strlen(p->recipe->named[k].name) + 1;
    return bytes;
}

static gpp_status fill(gpp__ledger *l, int states, gpp_error *err)
{
    const gpp_pipe *p = l->pipe;
    char *name = l->state_names;
    for (int k = 0; k < p->recipe->parameters + p->recipe->buffers; k++)
        l->entry[l->entries++] = entry_of(p, &p->recipe->named[k]);
    for (int s = 0; s < states; s++)
        for (int k = 0; k < p->recipe->parameters; k++)
            l->entry[l->entries++] = state_entry(p, &p->recipe->named[k], s, &name);
    for (int k = 0; k < l->entries; k++)
        if (!gpp__names_append(&l->names, l->entry[k].name, k))
            return gpp__fail(err, GPP_ENOMEM, "names of %d arrays", l->entries);
    /* A parameter of the caller's may have a name that begins with "optimizer.". */
    const char *twice = gpp__names_sort(&l->names);
    return twice ? gpp__fail(err, GPP_EINVAL,
                             "\"%.80s\" is the name of a parameter, and of a parameter's state",
                             twice)
                 : GPP_OK;
}

gpp_status gpp__ledger_init(gpp__ledger *l, gpp_pipe *p, bool state, gpp_error *err)
{
    int states = state ? states_of(p) : 0;
    *l = (gpp__ledger){.pipe = p};
    l->entry = calloc((size_t)(p->recipe->parameters * (1 + states) + p->recipe->buffers) + 1,
                      sizeof *l->entry);
    l->state_names = malloc(state_name_bytes(p, states));
    gpp_status status =
        l->entry && l->state_names
            ? fill(l, states, err)
            : gpp__fail(err, GPP_ENOMEM, "names of %d parameters", p->recipe->parameters);
    if (status != GPP_OK) {
        gpp__ledger_release(l);
        l->pipe = p;
    }
    return status;
}

void gpp__ledger_release(gpp__ledger *l)
{
    gpp__names_release(&l->names);
    free(l->entry);
    free(l->state_names);
    *l = (gpp__ledger){0};
}

/* --- between blocks and memory ---------------------------------------------------------------- */

static void copy_out(char *block, void *data, size_t bytes)
{
    memcpy(data, block, bytes);
}

/* In small pieces: a second copy of a large array might not fit. */
static void exchange(char *block, void *data, size_t bytes)
{
    char piece[4096], *other = data;
    for (size_t at = 0; at < bytes; at += sizeof piece) {
        size_t some = bytes - at < sizeof piece ? bytes - at : sizeof piece;
        memcpy(piece, block + at, some);
        memcpy(block + at, other + at, some);
        memcpy(other + at, piece, some);
    }
}

static bool is_of(const gpp__ledger_entry *e, gpp__class cls, int home)
{
    return e->cls == cls && e->home == home && e->data && e->bytes;
}

static bool has_any(const gpp__ledger *l, gpp__class cls, int home)
{
    for (int k = 0; k < l->entries; k++)
        if (is_of(&l->entry[k], cls, home))
            return true;
    return false;
}

gpp__ledger_part gpp__ledger_part_of(const gpp__ledger *l, const gpp__ledger_entry *e, int j)
{
    size_t begin, end, last = e->at + e->bytes;
    if (e->cls == GPP__PARAMS)
        return (gpp__ledger_part){e->at, 0, e->bytes};
    gpp__recipe_state_range(l->pipe->recipe, j, &begin, &end);
    size_t from = e->at > begin ? e->at : begin, to = last < end ? last : end;
    return (gpp__ledger_part){(size_t)e->array * (end - begin) + from - begin, from - e->at,
                              to > from ? to - from : 0};
}

static gpp_status move_all(const gpp__ledger *l, gpp__class cls, int home, int at, bool write,
                           void (*move)(char *, void *, size_t), gpp_error *err)
{
    char *block = NULL;
    gpp_status status =
        gpp__host_acquire(l->pipe, cls, at, write ? GPP__READWRITE : GPP__READ, &block, err);
    if (status != GPP_OK)
        return status;
    for (int k = 0; k < l->entries; k++) {
        gpp__ledger_part part = gpp__ledger_part_of(l, &l->entry[k], at);
        if (is_of(&l->entry[k], cls, home) && part.bytes)
            move(block + part.at, (char *)l->entry[k].data + part.from, part.bytes);
    }
    gpp__host_release(l->pipe, cls, at);
    return GPP_OK;
}

/* The partition of the next replica, from `at` on, that has the block on this rank; -1: none. */
static int next_here(const gpp__ledger *l, int at)
{
    const gpp__recipe *r = l->pipe->recipe;
    while (at < r->partitions && !gpp__recipe_holds(r, at))
        at += gpp__recipe_depth(r);
    return at < r->partitions ? at : -1;
}

/* Give the arrays of a block to the same block of another replica. */
static gpp_status give(const gpp__ledger *l, gpp__class cls, int home, int from, int to,
                       gpp_error *err)
{
    char *theirs = NULL, *ours = NULL;
    gpp_status status = gpp__host_acquire(l->pipe, cls, from, GPP__READ, &ours, err);
    if (status != GPP_OK)
        return status;
    status = gpp__host_acquire(l->pipe, cls, to, GPP__READWRITE, &theirs, err);
    for (int k = 0; k < l->entries && status == GPP_OK; k++) {
        gpp__ledger_part part = gpp__ledger_part_of(l, &l->entry[k], from);
        if (is_of(&l->entry[k], cls, home))
            memcpy(theirs + part.at, ours + part.at, part.bytes);
    }
    if (status == GPP_OK)
        gpp__host_release(l->pipe, cls, to);
    gpp__host_release(l->pipe, cls, from);
    return status;
}

/* The block of the first replica here has changed: so do the others, and weights are packed. */
static gpp_status follow(const gpp__ledger *l, gpp__class cls, int home, int first, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int at = first; at >= 0 && status == GPP_OK;
         at = next_here(l, at + gpp__recipe_depth(l->pipe->recipe))) {
        if (at != first)
            status = give(l, cls, home, first, at, err);
        if (status == GPP_OK && cls == GPP__PARAMS)
            status = gpp__pack_block(l->pipe, at, err);
    }
    return status;
}

/* Each replica here has a part of the state, of which nothing else follows. */
static gpp_status with_shards(const gpp__ledger *l, int home, int first, bool write,
                              void (*move)(char *, void *, size_t), gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int at = first; at >= 0 && status == GPP_OK;
         at = next_here(l, at + gpp__recipe_depth(l->pipe->recipe)))
        if (gpp__recipe_optimizer_bytes(l->pipe->recipe, at))
            status = move_all(l, GPP__OPTIMIZER, home, at, write, move, err);
    return status;
}

/* @param write  the block changes: let all replicas here follow, or change it back on failure */
static gpp_status with_block(const gpp__ledger *l, gpp__class cls, int home, bool write,
                             void (*move)(char *, void *, size_t), gpp_error *err)
{
    int first = has_any(l, cls, home) ? next_here(l, home) : -1;
    if (first < 0)
        return GPP_OK;
    if (cls == GPP__OPTIMIZER && gpp__recipe_shard_bytes(l->pipe->recipe, home))
        return with_shards(l, home, first, write, move, err);
    gpp_status status = move_all(l, cls, home, first, write, move, err);
    if (status != GPP_OK || !write)
        return status;
    status = follow(l, cls, home, first, err);
    if (status != GPP_OK && move_all(l, cls, home, first, true, move, NULL) == GPP_OK)
        follow(l, cls, home, first, NULL); /* the old weights: packing them has worked before */
    return status;
}

static const gpp__class classes[] = {GPP__PARAMS, GPP__OPTIMIZER};
enum { CLASSES = sizeof classes / sizeof *classes };

static int blocks(const gpp__ledger *l)
{
    return CLASSES * gpp__recipe_depth(l->pipe->recipe);
}

gpp_status gpp__ledger_copy(gpp__ledger *l, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int at = 0; at < blocks(l) && status == GPP_OK; at++)
        status = with_block(l, classes[at % CLASSES], at / CLASSES, false, copy_out, err);
    return status;
}

/* @param at  out: how many blocks were exchanged */
static gpp_status exchange_all(const gpp__ledger *l, int *at, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (*at = 0; *at < blocks(l); ++*at) {
        status = with_block(l, classes[*at % CLASSES], *at / CLASSES, true, exchange, err);
        if (status != GPP_OK)
            break;
    }
    return status;
}

gpp_status gpp__ledger_exchange(gpp__ledger *l, gpp_error *err)
{
    int at;
    gpp_status status = exchange_all(l, &at, err);
    status = gpp__agree(l->pipe, "the end of loading", status, 0, err);
    while (status != GPP_OK && at-- > 0) /* exchanging again undoes an exchange */
        with_block(l, classes[at % CLASSES], at / CLASSES, true, exchange, NULL);
    return status;
}

gpp_status gpp__ledger_save(gpp__ledger *l, gpp_file *f, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < l->entries && status == GPP_OK; k++) {
        gpp__ledger_entry *e = &l->entry[k];
        if (gpp__has_files(l->pipe) || gpp__recipe_holds(l->pipe->recipe, e->home) ||
            (gpp__ledger_is_sharded(l, e) && next_here(l, e->home) >= 0))
            status = gpp__file_room(f, e->name, e->dtype, e->rank, e->dim, &e->data, err);
    }
    if (status == GPP_OK)
        status = gpp__ledger_copy(l, err);
    return gpp__ledger_collect(l, status, err);
}

/* --- finding arrays in a file ----------------------------------------------------------------- */

/* Names for a message: as many as it has room for. */
typedef struct name_list {
    int count, shown;
    size_t used;
    char text[400];
} name_list;

static void list_name(name_list *list, const char *name)
{
    size_t room = sizeof list->text - list->used;
    int length = snprintf(NULL, 0, "%s\"%.80s\"", list->count ? ", " : "", name);
    list->count++;
    if ((size_t)length >= room || list->shown + 1 < list->count)
        return;
    list->used += (size_t)snprintf(list->text + list->used, room, "%s\"%.80s\"",
                                   list->shown ? ", " : "", name);
    list->shown++;
}

static const char *and_more(const name_list *list, char out[32])
{
    out[0] = '\0';
    if (list->shown < list->count)
        snprintf(out, 32, " and %d more", list->count - list->shown);
    return out;
}

static gpp_status fail_names(const name_list *missing, const name_list *extra, gpp_error *err)
{
    char more[2][32];
    bool both = missing->count && extra->count;
    return gpp__fail(err, GPP_ENOENT, "%s%s%s%s%s%s%s", missing->count ? "missing: " : "",
                     missing->text, and_more(missing, more[0]), both ? "; " : "",
                     extra->count ? "not known to this pipe: " : "", extra->text,
                     and_more(extra, more[1]));
}

static gpp_status check_names(const gpp__ledger *l, const gpp_file *f, unsigned flags,
                              gpp_error *err)
{
    name_list missing = {0}, extra = {0};
    for (int k = 0; k < l->entries && !(flags & GPP_LOAD_ALLOW_MISSING); k++)
        if (!l->entry[k].data)
            list_name(&missing, l->entry[k].name);
    for (int k = 0; k < f->arrays && !(flags & GPP_LOAD_ALLOW_EXTRA); k++)
        if (gpp__names_find(&l->names, f->array[k].name) < 0)
            list_name(&extra, f->array[k].name);
    return missing.count || extra.count ? fail_names(&missing, &extra, err) : GPP_OK;
}

static bool same_shape(const gpp__ledger_entry *e, const gpp_tensor *t)
{
    /* A count may be an array of one element in the file. */
    bool one = e->dtype == GPP_I64 && e->rank == 0 && t->rank == 1 && t->dim[0] == 1;
    bool same = e->dtype == t->dtype && (e->rank == t->rank || one);
    for (int d = 0; same && d < e->rank; d++)
        same = e->dim[d] == t->dim[d];
    return same;
}

static const char *type_name(gpp_dtype dtype)
{
    return dtype == GPP_F32 ? "float32" : "int64";
}

static gpp_status check_shape(const gpp__ledger_entry *e, const gpp_tensor *t, gpp_error *err)
{
    char found[80], expected[80];
    if (same_shape(e, t))
        return GPP_OK;
    return gpp__fail(err, GPP_ESHAPE, "\"%.80s\" is %s %s, expected %s %s", e->name,
                     type_name(t->dtype), gpp__dims_text(t->rank, t->dim, found, sizeof found),
                     type_name(e->dtype),
                     gpp__dims_text(e->rank, e->dim, expected, sizeof expected));
}

gpp_status gpp__ledger_match(gpp__ledger *l, const gpp_file *f, unsigned flags, gpp_error *err)
{
    int at;
    for (int k = 0; k < l->entries; k++) {
        at = gpp__names_find(&f->array_names, l->entry[k].name);
        l->entry[k].data = at < 0 ? NULL : f->array[at].tensor.data;
    }
    gpp_status status = check_names(l, f, flags, err);
    for (int k = 0; k < l->entries && status == GPP_OK; k++) {
        at = gpp__names_find(&f->array_names, l->entry[k].name);
        if (at >= 0)
            status = check_shape(&l->entry[k], &f->array[at].tensor, err);
    }
    return status;
}
