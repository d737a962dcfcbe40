/*
 * graph/run/handles.c: the handles behind a pipe's buffers. They are made when a plan first needs
 * them, and all plans share them.
 *
 * Slot k of a class has the same handle in every plan, so a mini-batch of another size takes new
 * memory only where it needs more. A kept forward is the exception: the edges, tapes and partial
 * tapes that its backward will read are in lists of its own, so that other steps leave them alone.
 */
#include <starpu.h>
#include <stdlib.h>

#include "codelets/tasks/mode.h"
#include "graph/run/pipe.h"

/** The lists of a class. @param instance  0, or index + 1 of a kept forward */
static gpp__slots *lists_of(const gpp_pipe *p, int instance, gpp__class cls)
{
    static const int8_t of_its_own[GPP__CLASSES] = {
        [GPP__EDGE] = 1, [GPP__TAPE] = 2, [GPP__PARTIAL] = 3};
    int list = instance > 0 ? of_its_own[cls] - 1 : -1;
    return list >= 0 ? p->kept.forward[instance - 1].slots[list] : p->slots[cls];
}

/** The device that pays for the copy on a second memory node; -1: there is no such copy. */
static int second_payer(const gpp_pipe *p, int device, int other)
{
    return other >= 0 && p->device[other].node != p->device[device].node ? other : -1;
}

static void set_charge(gpp_pipe *p, gpp__handle *h, int c, int device)
{
    h->charge[c].node = p->device[device].node;
    if (h->whole && c == 0)
        return;
    h->charge[c].meter = &p->device[device].meter;
    p->device[device].planned += h->bytes;
}

/** A handle's bytes count for its device, and for a second device whose memory node gets a copy. */
static void charge(gpp_pipe *p, gpp__handle *h, int device, int other)
{
    set_charge(p, h, 0, device);
    if (second_payer(p, device, other) >= 0)
        set_charge(p, h, 1, other);
}

static void uncharge(gpp_pipe *p, gpp__handle *h)
{
    for (int d = 0; d < p->recipe->devices; d++)
        for (int c = 0; c < 2; c++)
            if (h->charge[c].meter == &p->device[d].meter)
                p->device[d].planned -= h->bytes;
    h->charge[0].meter = h->charge[1].meter = NULL;
}

static size_t shard_bytes(const gpp_pipe *p, int home)
{
    return gpp__shard_bytes(gpp__recipe_block_end(p->recipe, home)->grads_end, p->recipe->replicas);
}

static gpp_status add_slots(gpp__slots *s, int count, gpp_error *err)
{
    gpp__handle **grown = realloc(s->handle, (size_t)count * sizeof *grown);
    if (!grown)
        return gpp__fail(err, GPP_ENOMEM, "%d buffers", count);
    s->handle = grown;
    for (; s->count < count; s->count++)
        if (!(s->handle[s->count] = calloc(1, sizeof **s->handle)))
            return gpp__fail(err, GPP_ENOMEM, "%d buffers", count);
    return GPP_OK;
}

gpp_status gpp__slot_get(gpp_pipe *p, int instance, gpp__class cls, int j, int slot, size_t bytes,
                         int device, int other, gpp__handle **handle, gpp_error *err)
{
    gpp__slots *s = &lists_of(p, instance, cls)[j];
    if (slot >= s->count) {
        int room = slot < 8 ? 8 : 2 * slot;
        gpp_status status = add_slots(s, room, err);
        if (status != GPP_OK)
            return status;
    }
    gpp__handle *h = s->handle[slot];
    *handle = h;
    if (h->handle && h->bytes >= bytes)
        return GPP_OK;
    if (h->handle) { /* too small: StarPU cannot let it grow */
        gpp__handle_unregister(h);
        uncharge(p, h);
    }
    h->bytes = bytes;
    h->whole = NULL;
    if (cls == GPP__SHARD && gpp__recipe_holds(p->recipe, j)) {
        h->whole = p->slots[GPP__GRADS][j].handle[0];
        h->at = (size_t)slot * shard_bytes(p, j);
    } else if (cls == GPP__PARAM_SHARD) {
        h->whole = p->slots[GPP__PARAMS][j].handle[0];
        h->at = (size_t)slot * gpp__recipe_shard_bytes(p->recipe, j);
    }
    h->fetches = cls == GPP__FETCHED;
    charge(p, h, device, other);
    gpp_status status = gpp__handle_register(h, gpp__class_name(cls), err);
    if (status == GPP_OK)
        starpu_data_set_coordinates(h->handle, 2, j, slot); /* for StarPU's own traces */
    else
        uncharge(p, h);
    return status;
}

int gpp__slot_of(const gpp__task_graph *g, const gpp__buffer *b)
{
    int slots = 0;
    if (b->cls == GPP__FETCHED)
        return b->slot * GPP__FLIGHTS + g->flight;
    if (b->cls != GPP__EDGE || b->slot != 0 || g->flight < 2 ||
        (g->step.flags & (GPP__DO_BACKWARD | GPP__DO_KEEP)))
        return b->slot;
    for (size_t k = 0; k < g->step.plan->buffers; k++)
        slots += g->step.plan->buffer[k].cls == b->cls && g->step.plan->buffer[k].j == b->j;
    return slots + g->flight - 2;
}

/* Bytes that a buffer's handle has already. */
static size_t bytes_now(const gpp_pipe *p, const gpp__task_graph *g, const gpp__buffer *b)
{
    const gpp__slots *s = &lists_of(p, g->instance, (gpp__class)b->cls)[gpp__slot_list(g, b)];
    int slot = gpp__slot_of(g, b);
    return slot < s->count && s->handle[slot]->handle ? s->handle[slot]->bytes : 0;
}

/* The device, of those that share a buffer, that this rank's handle of it is for; -1: no handle. */
static int device_here(const gpp_pipe *p, const gpp__plan *plan, size_t k, int *other)
{
    const gpp__buffer *b = &plan->buffer[k];
    int device = gpp__plan_payer(plan, k, p->recipe->ranks.rank);
    bool shared = b->other >= 0 && device == b->device && gpp__recipe_has(p->recipe, b->other);
    *other = shared ? b->other : -1;
    return device;
}

gpp_status gpp__slots_fill(gpp_pipe *p, gpp__task_graph *g, gpp_error *err)
{
    const gpp__plan *plan = g->step.plan;
    gpp_status status = GPP_OK;
    for (size_t k = 0; k < plan->buffers && status == GPP_OK; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        int other, device = device_here(p, plan, k, &other);
        if (device < 0)
            continue;
        status = gpp__slot_get(p, g->instance, (gpp__class)b->cls, gpp__slot_list(g, b),
                               gpp__slot_of(g, b), b->bytes, device, other, &g->handle[k], err);
        if (status == GPP_OK)
            g->handle[k]->noted = gpp__plan_has_note(plan, b);
    }
    return status;
}

size_t gpp__slots_missing(const gpp_pipe *p, const gpp__task_graph *g, int device)
{
    const gpp__plan *plan = g->step.plan;
    size_t missing = 0;
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        int other, payer = device_here(p, plan, k, &other);
        if (payer < 0)
            continue;
        size_t now = bytes_now(p, g, b);
        bool inside = gpp__plan_own_bytes(b) == 0 && payer == b->device;
        bool pays = (payer == device && !inside) || second_payer(p, payer, other) == device;
        if (pays && b->bytes > now)
            missing += b->bytes - now;
    }
    return missing;
}

static void free_lists(gpp__slots *lists, int count)
{
    for (int j = 0; lists && j < count; j++) {
        for (int k = 0; k < lists[j].count; k++) {
            gpp__handle_unregister(lists[j].handle[k]);
            free(lists[j].handle[k]);
        }
        free(lists[j].handle);
    }
    free(lists);
}

void gpp__slots_free_all(gpp_pipe *p)
{
    for (int c = GPP__CLASSES - 1; c >= 0;
         c--) { /* shards before the gradients whose memory they use */
        free_lists(p->slots[c], p->slot_lists);
        p->slots[c] = NULL;
    }
    for (int q = 0; q < p->kept.count; q++)
        for (int c = 0; c < GPP__KEPT_LISTS; c++)
            free_lists(p->kept.forward[q].slots[c], p->slot_lists);
    free(p->kept.forward);
    p->kept.forward = NULL;
    p->kept.count = 0;
}

gpp__slots *gpp__slots_new(const gpp_pipe *p)
{
    return calloc((size_t)p->slot_lists, sizeof(gpp__slots));
}

/* --- kept forwards ---------------------------------------------------------------------------- */

static gpp_status add_kept(gpp_pipe *p, gpp_error *err)
{
    gpp__kept_forward *kept = realloc(p->kept.forward, (size_t)(p->kept.count + 1) * sizeof *kept),
                      new = {0};
    if (!kept)
        return gpp__fail(err, GPP_ENOMEM, "%d kept forwards", p->kept.count + 1);
    p->kept.forward = kept;
    bool made = true;
    for (int c = 0; c < GPP__KEPT_LISTS; c++)
        made &= (new.slots[c] = gpp__slots_new(p)) != NULL;
    if (made) {
        p->kept.forward[p->kept.count++] = new;
        return GPP_OK;
    }
    for (int c = 0; c < GPP__KEPT_LISTS; c++)
        free(new.slots[c]);
    return gpp__fail(err, GPP_ENOMEM, "%d kept forwards", p->kept.count + 1);
}

gpp_status gpp__kept_find(gpp_pipe *p, int *index, gpp_error *err)
{
    for (*index = 0; *index < p->kept.count; ++*index)
        if (!p->kept.forward[*index].used)
            return GPP_OK;
    return add_kept(p, err);
}

void gpp__discard_kept(gpp_pipe *p)
{
    for (int q = 0; q < p->kept.count; q++)
        p->kept.forward[q].used = false;
}

/* --- for the host ----------------------------------------------------------------------------- */

/* The memory node on which the host uses a buffer. */
static int host_node(const gpp__handle *h)
{
    unsigned node = h->charge[0].node;
    return starpu_node_get_kind(node) == STARPU_CPU_RAM ? (int)node : STARPU_MAIN_RAM;
}

gpp_status gpp__slot_acquire(gpp_pipe *p, gpp__class cls, int j, int slot, int mode, char **data,
                             gpp_error *err)
{
    gpp__handle *h = p->slots[cls][j].handle[slot];
    int node = host_node(h);
    if (starpu_data_acquire_on_node(h->handle, node, gpp__starpu_mode(mode)))
        return gpp__fail(err, GPP_ERUNTIME, "%s cannot be used here (inside a task?)",
                         gpp__class_name(cls));
    *data = starpu_data_handle_to_pointer(h->handle, (unsigned)node);
    return GPP_OK;
}

void gpp__slot_release(gpp_pipe *p, gpp__class cls, int j, int slot)
{
    gpp__handle *h = p->slots[cls][j].handle[slot];
    starpu_data_release_on_node(h->handle, host_node(h));
}
