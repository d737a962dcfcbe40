/*
 * graph/run/handles.c: the buffers of a pipe: made when a plan first needs them, shared by all plans.
 *
 * Slot k of a class is the same block in every plan, so a mini-batch of another size brings no new
 * memory unless it needs more. Only what a kept forward leaves for its backward, on edges, on
 * tapes and besides, is an instance of its own.
 */
#include <starpu.h>
#include <stdlib.h>

#include "codelets/tasks/mode.h"
#include "graph/run/pipe.h"

static gpp__slots *lists_of(const gpp_pipe *p, int instance, gpp__class cls)
{
    static const int8_t of_its_own[GPP__CLASSES] = {
        [GPP__EDGE] = 1, [GPP__TAPE] = 2, [GPP__PARTIAL] = 3};
    int list = instance > 0 ? of_its_own[cls] - 1 : -1;
    return list >= 0 ? p->kept[instance - 1].slots[list] : p->slots[cls];
}

/** The device that pays for a copy on another memory node; -1: there is none. */
static int second_payer(const gpp_pipe *p, int device, int other)
{
    return other >= 0 && p->state[other].node != p->state[device].node ? other : -1;
}

static void set_charge(gpp_pipe *p, gpp__handle *b, int c, int device)
{
    b->charge[c].node = p->state[device].node;
    b->charge[c].meter = &p->state[device].meter;
    p->state[device].planned += b->bytes;
}

/** Bytes count to a device's plan once, and again where another memory node holds a copy. */
static void charge(gpp_pipe *p, gpp__handle *b, int device, int other)
{
    set_charge(p, b, 0, device);
    if (second_payer(p, device, other) >= 0)
        set_charge(p, b, 1, other);
}

static void uncharge(gpp_pipe *p, gpp__handle *b)
{
    for (int d = 0; d < p->recipe->devices; d++)
        for (int c = 0; c < 2; c++)
            if (b->charge[c].meter == &p->state[d].meter)
                p->state[d].planned -= b->bytes;
    b->charge[0].meter = b->charge[1].meter = NULL;
}

static gpp_status add_slots(gpp__slots *s, int count, gpp_error *err)
{
    gpp__handle **grown = realloc(s->block, (size_t)count * sizeof *grown);
    if (!grown)
        return gpp__fail(err, GPP_ENOMEM, "%d buffers", count);
    s->block = grown;
    for (; s->count < count; s->count++)
        if (!(s->block[s->count] = calloc(1, sizeof **s->block)))
            return gpp__fail(err, GPP_ENOMEM, "%d buffers", count);
    return GPP_OK;
}

gpp_status gpp__slot_get(gpp_pipe *p, int instance, gpp__class cls, int j, int slot, size_t bytes,
                         int device, int other, gpp__handle **block, gpp_error *err)
{
    gpp__slots *s = &lists_of(p, instance, cls)[j];
    if (slot >= s->count) {
        int room = slot < 8 ? 8 : 2 * slot;
        gpp_status status = add_slots(s, room, err);
        if (status != GPP_OK)
            return status;
    }
    gpp__handle *b = s->block[slot];
    *block = b;
    if (b->handle && b->bytes >= bytes)
        return GPP_OK;
    if (b->handle) {
        gpp__handle_unregister(b);
        uncharge(p, b);
    }
    b->bytes = bytes;
    b->fetches = cls == GPP__FETCHED;
    charge(p, b, device, other);
    gpp_status status = gpp__handle_register(b, gpp__class_name(cls), err);
    if (status == GPP_OK)
        starpu_data_set_coordinates(b->handle, 2, j, slot); /* for StarPU's own traces */
    else
        uncharge(p, b);
    return status;
}

int gpp__slot_of(const gpp__task_graph *e, const gpp__buffer *b)
{
    int slots = 0;
    if (b->cls == GPP__FETCHED)
        return b->slot * GPP__FLIGHTS + e->turn;
    if (b->cls != GPP__EDGE || b->slot != 0 || e->turn < 2 ||
        (e->step.flags & (GPP__DO_BACKWARD | GPP__DO_KEEP)))
        return b->slot;
    for (size_t k = 0; k < e->step.plan->buffers; k++)
        slots += e->step.plan->buffer[k].cls == b->cls && e->step.plan->buffer[k].j == b->j;
    return slots + e->turn - 2;
}

static size_t bytes_now(const gpp_pipe *p, const gpp__task_graph *e, const gpp__buffer *b)
{
    const gpp__slots *s = &lists_of(p, e->instance, (gpp__class)b->cls)[gpp__slot_list(e, b)];
    int slot = gpp__slot_of(e, b);
    return slot < s->count && s->block[slot]->handle ? s->block[slot]->bytes : 0;
}

size_t gpp__slots_missing(const gpp_pipe *p, const gpp__task_graph *e, int device)
{
    const gpp__plan *plan = e->step.plan;
    size_t missing = 0;
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        size_t now = bytes_now(p, e, b);
        bool pays = b->device == device || second_payer(p, b->device, b->other) == device;
        if (pays && b->bytes > now)
            missing += b->bytes - now;
    }
    return missing;
}

static void free_lists(gpp__slots *lists, int count)
{
    for (int j = 0; lists && j < count; j++) {
        for (int k = 0; k < lists[j].count; k++) {
            gpp__handle_unregister(lists[j].block[k]);
            free(lists[j].block[k]);
        }
        free(lists[j].block);
    }
    free(lists);
}

void gpp__slots_free_all(gpp_pipe *p)
{
    for (int c = 0; c < GPP__CLASSES; c++) {
        free_lists(p->slots[c], p->slot_lists);
        p->slots[c] = NULL;
    }
    for (int q = 0; q < p->kepts; q++)
        for (int c = 0; c < GPP__KEPT_LISTS; c++)
            free_lists(p->kept[q].slots[c], p->slot_lists);
    free(p->kept);
    p->kept = NULL;
    p->kepts = 0;
}

gpp__slots *gpp__slots_new(const gpp_pipe *p)
{
    return calloc((size_t)p->slot_lists, sizeof(gpp__slots));
}

/* --- kept forwards ---------------------------------------------------------------------------- */

static gpp_status add_kept(gpp_pipe *p, gpp_error *err)
{
    gpp__kept *kept = realloc(p->kept, (size_t)(p->kepts + 1) * sizeof *kept), new = {0};
    if (!kept)
        return gpp__fail(err, GPP_ENOMEM, "%d kept forwards", p->kepts + 1);
    p->kept = kept;
    bool made = true;
    for (int c = 0; c < GPP__KEPT_LISTS; c++)
        made &= (new.slots[c] = gpp__slots_new(p)) != NULL;
    if (made) {
        p->kept[p->kepts++] = new;
        return GPP_OK;
    }
    for (int c = 0; c < GPP__KEPT_LISTS; c++)
        free(new.slots[c]);
    return gpp__fail(err, GPP_ENOMEM, "%d kept forwards", p->kepts + 1);
}

gpp_status gpp__kept_find(gpp_pipe *p, int *index, gpp_error *err)
{
    for (*index = 0; *index < p->kepts; ++*index)
        if (!p->kept[*index].used)
            return GPP_OK;
    return add_kept(p, err);
}

void gpp__discard_kept(gpp_pipe *p)
{
    for (int q = 0; q < p->kepts; q++)
        p->kept[q].used = false;
}

/* --- for the host ----------------------------------------------------------------------------- */

/* Where the host uses a buffer: where its device has it, if the host can reach that. */
static int host_node(const gpp__handle *b)
{
    unsigned node = b->charge[0].node;
    return starpu_node_get_kind(node) == STARPU_CPU_RAM ? (int)node : STARPU_MAIN_RAM;
}

gpp_status gpp__host_acquire(gpp_pipe *p, gpp__class cls, int j, int mode, char **data,
                             gpp_error *err)
{
    gpp__handle *b = p->slots[cls][j].block[0];
    int node = host_node(b);
    if (starpu_data_acquire_on_node(b->handle, node, gpp__starpu_mode(mode)))
        return gpp__fail(err, GPP_ERUNTIME, "%s cannot be used here (inside a task?)",
                         gpp__class_name(cls));
    *data = starpu_data_handle_to_pointer(b->handle, (unsigned)node);
    return GPP_OK;
}

void gpp__host_release(gpp_pipe *p, gpp__class cls, int j)
{
    gpp__handle *b = p->slots[cls][j].block[0];
    starpu_data_release_on_node(b->handle, host_node(b));
}
