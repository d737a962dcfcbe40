/*
 * graph/plan_access.c: what each task reads and writes, and the buffers behind it.
 *
 *   F(i,j)  reads parameters and b(i,j), writes b(i,j+1) and, unless it is checkpointed, t(i,j)
 *   R(i,j)  reads parameters and b(i,j), writes t(i,j)
 *   L(i)    reads b(i,n), adds to the losses, writes g(i,n); S(i) writes g(i,n); O(i) reads b(i,n)
 *   B(i,j)  reads parameters, t(i,j), g(i,j+1), and b(i,j) and b(i,j+1) where its layers ask for
 *           them; adds to the gradients, writes g(i,j)
 *   U(j)    reads gradients, writes parameters and optimizer state
 *
 * b(i,0) and its gradient are the caller's. Things without bytes do not appear; a boundary always
 * has some, since it also carries the order of the tasks on its two sides.
 */
#include "graph/plan_internal.h"

#include <assert.h>
#include <stdlib.h>

/* --- accesses */

static void add(gpp__task *t, gpp__role role, int mode, int32_t buffer)
{
    assert(t->access_count < GPP__MAX_ACCESSES);
    t->access[t->access_count++] = (gpp__access){(uint8_t)role, (uint8_t)mode, buffer};
}

static void add_params(gpp__task *t, const gpp__stage_sizes *stage, int mode)
{
    if (stage->params > 0)
        add(t, GPP__ROLE_PARAMS, mode, t->j);
}

static void add_scratch(gpp__task *t, const gpp__stage_sizes *stage)
{
    if (stage->scratch > 0)
        add(t, GPP__ROLE_SCRATCH, GPP__WORKSPACE, t->device);
}

static void access_forward(const gpp__plan_maker *p, gpp__task *t, const gpp__stage_sizes *stage)
{
    add_params(t, stage, GPP__READ);
    if (t->j > 0)
        add(t, GPP__ROLE_IN, GPP__READ, gpp__value_activation(p, t->i, t->j));
    add(t, GPP__ROLE_OUT, GPP__WRITE, gpp__value_activation(p, t->i, t->j + 1));
    if (stage->tape > 0 && !t->checkpointed && (p->shape.backward || p->shape.keep))
        add(t, GPP__ROLE_TAPE, GPP__WRITE, gpp__value_tape(p, t->i, t->j));
    add_scratch(t, stage);
}

static void access_recompute(const gpp__plan_maker *p, gpp__task *t, const gpp__stage_sizes *stage)
{
    add_params(t, stage, GPP__READ);
    if (t->j > 0 && stage->recompute_reads_input)
        add(t, GPP__ROLE_IN, GPP__READ, gpp__value_activation(p, t->i, t->j));
    if (stage->tape > 0)
        add(t, GPP__ROLE_TAPE, GPP__WRITE, gpp__value_tape(p, t->i, t->j));
    add_scratch(t, stage);
}

/* Gates open from the last partition to the first; the first of them assigns. */
static void add_gate(const gpp__plan_maker *p, gpp__task *t)
{
    if (!gpp__plan_is_gate(p, t->j) || t != &p->plan->task[p->last_b[t->j]])
        return;
    add(t, GPP__ROLE_GATE, p->gate_before[t->j] < 0 ? GPP__WRITE : GPP__READWRITE, 0);
}

static void access_backward(const gpp__plan_maker *p, gpp__task *t, const gpp__stage_sizes *stage)
{
    add_params(t, stage, GPP__READ);
    if (stage->trains && stage->grads > 0)
        add(t, GPP__ROLE_GRADS, t->first ? GPP__WRITE : GPP__READWRITE, t->j);
    if (t->j > 0 && stage->backward_reads_input)
        add(t, GPP__ROLE_IN, GPP__READ, gpp__value_activation(p, t->i, t->j));
    if (stage->backward_reads_output)
        add(t, GPP__ROLE_OUT, GPP__READ, gpp__value_activation(p, t->i, t->j + 1));
    if (t->j == p->n - 1 || stage[1].gives_grad_input)
        add(t, GPP__ROLE_GRAD_OUT, GPP__READ, gpp__value_gradient(p, t->i, t->j + 1));
    if (t->j > 0 && stage->gives_grad_input)
        add(t, GPP__ROLE_GRAD_IN, GPP__WRITE, gpp__value_gradient(p, t->i, t->j));
    if (stage->tape > 0)
        add(t, GPP__ROLE_TAPE, GPP__READ, gpp__value_tape(p, t->i, t->j));
    add_scratch(t, stage);
    add_gate(p, t);
}

static void access_output(const gpp__plan_maker *p, gpp__task *t, bool *has_losses)
{
    if (t->kind != GPP__SEED)
        add(t, GPP__ROLE_OUT, GPP__READ, gpp__value_activation(p, t->i, p->n));
    if (t->kind != GPP__OUTPUT && p->shape.backward)
        add(t, GPP__ROLE_GRAD_OUT, GPP__WRITE, gpp__value_gradient(p, t->i, p->n));
    if (t->kind == GPP__LOSS) {
        add(t, GPP__ROLE_LOSSES, *has_losses ? GPP__READWRITE : GPP__WRITE, 0);
        *has_losses = true;
    }
}

static void access_update(const gpp__plan_maker *p, gpp__task *t, const gpp__stage_sizes *stage)
{
    if (stage->trains) {
        add_params(t, stage, GPP__READWRITE);
        if (stage->grads > 0)
            add(t, GPP__ROLE_GRADS, GPP__READ, t->j);
        if (stage->optimizer > 0)
            add(t, GPP__ROLE_OPTIMIZER, GPP__READWRITE, t->j);
        add_scratch(t, stage);
    }
    if (p->shape.backward && p->shape.wait_for_all)
        add(t, GPP__ROLE_GATE, GPP__READ, 0);
}

void gpp__plan_access(gpp__plan_maker *p)
{
    bool has_losses = false;
    for (size_t k = 0; k < p->plan->tasks; k++) {
        gpp__task *t = &p->plan->task[k];
        const gpp__stage_sizes *stage = &p->spec->stage[t->j];
        if (t->kind == GPP__FORWARD)
            access_forward(p, t, stage);
        else if (t->kind == GPP__RECOMPUTE)
            access_recompute(p, t, stage);
        else if (t->kind == GPP__BACKWARD)
            access_backward(p, t, stage);
        else if (t->kind == GPP__UPDATE)
            access_update(p, t, stage);
        else
            access_output(p, t, &has_losses);
    }
}

/* --- buffers */

const char *gpp__class_name(gpp__class c)
{
    static const char *const name[GPP__CLASSES] = {
        [GPP__PARAMS] = "parameters", [GPP__GRADS] = "gradients", [GPP__OPTIMIZER] = "optimizer",
        [GPP__BOUNDARY] = "boundary", [GPP__TAPE] = "tape",       [GPP__SCRATCH] = "scratch",
        [GPP__LOSSES] = "losses",     [GPP__GATE] = "gate",
    };
    return (unsigned)c < GPP__CLASSES ? name[c] : "?";
}

static gpp__class class_of(int role)
{
    static const uint8_t of[GPP__ROLES] = {
        [GPP__ROLE_PARAMS] = GPP__PARAMS,       [GPP__ROLE_GRADS] = GPP__GRADS,
        [GPP__ROLE_OPTIMIZER] = GPP__OPTIMIZER, [GPP__ROLE_IN] = GPP__BOUNDARY,
        [GPP__ROLE_OUT] = GPP__BOUNDARY,        [GPP__ROLE_GRAD_OUT] = GPP__BOUNDARY,
        [GPP__ROLE_GRAD_IN] = GPP__BOUNDARY,    [GPP__ROLE_TAPE] = GPP__TAPE,
        [GPP__ROLE_SCRATCH] = GPP__SCRATCH,     [GPP__ROLE_LOSSES] = GPP__LOSSES,
        [GPP__ROLE_GATE] = GPP__GATE,
    };
    return (gpp__class)of[role];
}

static size_t bytes_of(const gpp__plan_maker *p, gpp__class cls, int j)
{
    const gpp__stage_sizes *stage = p->spec->stage;
    size_t most = 0;
    switch (cls) {
    case GPP__PARAMS:
        return stage[j].params;
    case GPP__GRADS:
        return stage[j].grads;
    case GPP__OPTIMIZER:
        return stage[j].optimizer;
    case GPP__BOUNDARY:
        return j < p->n ? stage[j].input : stage[j - 1].output;
    case GPP__TAPE:
        return stage[j].tape;
    case GPP__SCRATCH:
        for (int k = 0; k < p->n; k++)
            if (p->shape.device_of[k] == j && stage[k].scratch > most)
                most = stage[k].scratch;
        return most;
    case GPP__LOSSES:
        return (size_t)p->m * sizeof(double);
    default:
        return 1;
    }
}

static gpp__buffer buffer_of(const gpp__plan_maker *p, gpp__class cls, int j, int slot)
{
    const int *device_of = p->shape.device_of, *node_of = p->spec->node_of;
    gpp__buffer b = {.cls = (uint8_t)cls, .j = j, .slot = slot, .other = -1};
    size_t bytes = bytes_of(p, cls, j);
    b.bytes = gpp__align(bytes > 0 ? bytes : 1);
    b.device = cls == GPP__SCRATCH  ? j
               : cls == GPP__LOSSES ? device_of[p->n - 1]
               : cls == GPP__GATE   ? device_of[0]
                                    : device_of[j < p->n ? j : p->n - 1];
    if (cls == GPP__BOUNDARY && j < p->n && node_of) {
        int producer = device_of[j - 1];
        if (node_of[producer] != node_of[b.device])
            b.other = producer;
    }
    return b;
}

/* Whose buffers there are: a row for each class, in it the number of (then the first of) those of
 * partition, boundary or device j. */
typedef struct buffer_index {
    size_t width;
    int32_t *at; /* [GPP__CLASSES][width] */
} buffer_index;

static int32_t *at(const buffer_index *x, int cls, int j)
{
    return &x->at[(size_t)cls * x->width + (size_t)j];
}

static size_t count_buffers(const gpp__plan_maker *p, const buffer_index *x)
{
    size_t total = 0;
    for (size_t k = 0; k < p->plan->tasks; k++) {
        const gpp__task *t = &p->plan->task[k];
        for (int a = 0; a < t->access_count; a++)
            if (!gpp__role_is_value(t->access[a].role))
                *at(x, class_of(t->access[a].role), t->access[a].buffer) = 1;
    }
    for (int j = 0; j < p->n; j++) {
        *at(x, GPP__BOUNDARY, j + 1) = p->pool_slots[j];
        *at(x, GPP__TAPE, j) = p->pool_slots[p->n + j];
    }
    for (size_t k = 0; k < GPP__CLASSES * x->width; k++)
        total += (size_t)x->at[k];
    return total;
}

static void make_buffers(const gpp__plan_maker *p, const buffer_index *x)
{
    gpp__plan *plan = p->plan;
    for (int cls = 0; cls < GPP__CLASSES; cls++)
        for (int j = 0; j < (int)x->width; j++) {
            int count = *at(x, cls, j);
            *at(x, cls, j) = (int32_t)plan->buffers;
            for (int slot = 0; slot < count; slot++)
                plan->buffer[plan->buffers++] = buffer_of(p, (gpp__class)cls, j, slot);
        }
}

static void refer_to_buffers(const gpp__plan_maker *p, const buffer_index *x)
{
    for (size_t k = 0; k < p->plan->tasks; k++) {
        gpp__task *t = &p->plan->task[k];
        for (int a = 0; a < t->access_count; a++) {
            gpp__access *access = &t->access[a];
            int j = access->buffer, slot = 0;
            if (gpp__role_is_value(access->role)) {
                int pool = gpp__value_pool(p, access->buffer);
                slot = p->slot[access->buffer];
                j = pool < p->n ? pool + 1 : pool - p->n;
            }
            access->buffer = *at(x, class_of(access->role), j) + slot;
        }
    }
}

static bool count_bytes(gpp__plan *plan)
{
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        if (b->bytes == 0 || !gpp__add(plan->bytes[b->device], b->bytes, &plan->bytes[b->device]))
            return false;
        if (b->other >= 0 && !gpp__add(plan->bytes[b->other], b->bytes, &plan->bytes[b->other]))
            return false;
    }
    return true;
}

gpp_status gpp__plan_buffers(gpp__plan_maker *p, gpp_error *err)
{
    int devices = p->shape.devices;
    buffer_index x = {.width = (size_t)(p->n + 1 > devices ? p->n + 1 : devices)};
    x.at = calloc(GPP__CLASSES * x.width, sizeof *x.at);
    if (!x.at)
        return gpp__fail(err, GPP_ENOMEM, "buffers of %d partitions", p->n);
    size_t total = count_buffers(p, &x);
    gpp_status status = GPP_OK;
    p->plan->buffer = calloc(total + 1, sizeof *p->plan->buffer);
    if (!p->plan->buffer) {
        status = gpp__fail(err, GPP_ENOMEM, "list of %zu buffers", total);
        goto release;
    }
    make_buffers(p, &x);
    refer_to_buffers(p, &x);
    if (!count_bytes(p->plan))
        status = gpp__fail(err, GPP_ENOMEM, "a device needs more bytes than can be counted");
release:
    free(x.at);
    return status;
}
