/*
 * graph/exec.c: plans made executable: programs for the row counts that occur, buffers registered,
 * cells filled in.
 *
 * All plans of a pipe share its buffers (slot k of a class is the same block in every plan), so a
 * mini-batch of another size brings new tasks but no new memory unless it needs more. The last few
 * plans are kept: a steady state makes none.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/pipe.h"

/* --- slots
 * ---------------------------------------------------------------------------------------------------------
 */

static gpp__slots *slots_of(gpp_pipe *p, gpp__class cls, int j)
{
    return &p->slots[cls][j];
}

static int slot_lists(const gpp_pipe *p)
{
    int n = p->partitions + 1;
    return n > p->devices ? n : p->devices;
}

/** The device that pays for a copy on another memory node; -1: there is none. */
static int second_payer(const gpp_pipe *p, int device, int other)
{
    return other >= 0 && p->state[other].node != p->state[device].node ? other : -1;
}

static void set_charge(gpp_pipe *p, gpp__block_data *b, int c, int device)
{
    b->charge[c].node = p->state[device].node;
    b->charge[c].meter = &p->state[device].meter;
    p->state[device].planned += b->bytes;
}

/** Bytes count to a device's plan once, and again where another memory node holds a copy. */
static void charge(gpp_pipe *p, gpp__block_data *b, int device, int other)
{
    set_charge(p, b, 0, device);
    if (second_payer(p, device, other) >= 0)
        set_charge(p, b, 1, other);
}

static void uncharge(gpp_pipe *p, gpp__block_data *b)
{
    for (int d = 0; d < p->devices; d++)
        for (int c = 0; c < 2; c++)
            if (b->charge[c].meter == &p->state[d].meter)
                p->state[d].planned -= b->bytes;
    b->charge[0].meter = b->charge[1].meter = NULL;
}

static gpp_status add_slots(gpp__slots *s, int count, gpp_error *err)
{
    gpp__block_data **grown = realloc(s->block, (size_t)count * sizeof *grown);
    if (!grown)
        return gpp__fail(err, GPP_ENOMEM, "%d buffers", count);
    s->block = grown;
    for (; s->count < count; s->count++)
        if (!(s->block[s->count] = calloc(1, sizeof **s->block)))
            return gpp__fail(err, GPP_ENOMEM, "%d buffers", count);
    return GPP_OK;
}

gpp_status gpp__slot_get(gpp_pipe *p, gpp__class cls, int j, int slot, size_t bytes, int device,
                         int other, gpp__block_data **block, gpp_error *err)
{
    gpp__slots *s = slots_of(p, cls, j);
    if (slot >= s->count) {
        int room = slot < 8 ? 8 : 2 * slot;
        gpp_status status = add_slots(s, room, err);
        if (status != GPP_OK)
            return status;
    }
    gpp__block_data *b = s->block[slot];
    *block = b;
    if (b->handle && b->bytes >= bytes)
        return GPP_OK;
    if (b->handle) {
        gpp__block_unregister(b);
        uncharge(p, b);
    }
    b->bytes = bytes;
    charge(p, b, device, other);
    gpp_status status = gpp__block_register(b, gpp__class_name(cls), err);
    if (status != GPP_OK)
        uncharge(p, b);
    return status;
}

void gpp__slots_free_all(gpp_pipe *p)
{
    for (int c = 0; c < GPP__CLASSES; c++) {
        for (int j = 0; p->slots[c] && j < slot_lists(p); j++) {
            for (int k = 0; k < p->slots[c][j].count; k++) {
                gpp__block_unregister(p->slots[c][j].block[k]);
                free(p->slots[c][j].block[k]);
            }
            free(p->slots[c][j].block);
        }
        free(p->slots[c]);
        p->slots[c] = NULL;
    }
}

/* --- programs
 * ------------------------------------------------------------------------------------------------------
 */

static void progset_free(gpp_pipe *p, gpp__progset *s)
{
    for (int j = 0; s->program && j < p->partitions; j++)
        gpp__program_free(s->program[j]);
    free(s->program);
    free(s);
}

/** Whether partition j's backward gives a gradient: somebody before it learns, or the caller wants
 * it. */
static bool gives_grad_input(const gpp_pipe *p, int j, bool grad_input)
{
    bool gives = grad_input;
    for (int k = 0; k < j; k++)
        gives |= p->stage[k].trains;
    return gives;
}

static gpp_status progset_new(gpp_pipe *p, int64_t rows, bool grad_input, gpp__progset **set,
                              gpp_error *err)
{
    gpp__progset *s = calloc(1, sizeof *s);
    if (!s || !(s->program = calloc((size_t)p->partitions, sizeof *s->program))) {
        free(s);
        return gpp__fail(err, GPP_ENOMEM, "programs of %d partitions", p->partitions);
    }
    s->rows = rows;
    s->grad_input = grad_input;
    for (int j = 0; j < p->partitions; j++) {
        gpp_status status = gpp__program_new(&s->program[j], &p->stage[j], rows,
                                             gpp__pool_threads(p->state[p->device_of[j]].cpu.pool),
                                             gives_grad_input(p, j, grad_input), err);
        if (status != GPP_OK) {
            progset_free(p, s);
            return status;
        }
    }
    *set = s;
    return GPP_OK;
}

static gpp_status progset_get(gpp_pipe *p, int64_t rows, bool grad_input, gpp__progset **set,
                              gpp_error *err)
{
    gpp__progset **free_place = NULL;
    for (int k = 0; k < GPP__PROGSETS; k++) {
        gpp__progset *s = p->progset[k];
        if (s && s->rows == rows && s->grad_input == grad_input) {
            s->users++;
            *set = s;
            return GPP_OK;
        }
        if (!s)
            free_place = &p->progset[k];
    }
    gpp_status status = progset_new(p, rows, grad_input, free_place, err);
    *set = status == GPP_OK ? *free_place : NULL;
    if (*set)
        (*set)->users = 1;
    return status;
}

static void progset_put(gpp_pipe *p, gpp__progset *s)
{
    if (!s || --s->users)
        return;
    for (int k = 0; k < GPP__PROGSETS; k++)
        if (p->progset[k] == s)
            p->progset[k] = NULL;
    progset_free(p, s);
}

/* --- plans
 * ---------------------------------------------------------------------------------------------------------
 */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/** Scratch in which an update unpacks a layer's gradients. */
static size_t update_scratch(const gpp__stage *s)
{
    size_t most = 0;
    for (int k = 0; k < s->count; k++)
        if (s->layer[k].op->unpack_grads)
            most = larger(most, s->layer[k].param_bytes);
    return most;
}

static void stage_sizes(const gpp_pipe *p, int j, const gpp__progset *full,
                        const gpp__progset *last, bool updates, gpp__stage_sizes *z)
{
    const gpp__stage *s = &p->stage[j];
    const gpp__program_info *a = gpp__program_get_info(full->program[j]);
    const gpp__program_info *b = gpp__program_get_info(last->program[j]);
    *z = (gpp__stage_sizes){
        .params = s->params_bytes,
        .grads = s->grads_bytes,
        .input = larger(a->in_bytes, b->in_bytes),
        .output = larger(a->out_bytes, b->out_bytes),
        .tape = larger(a->tape_bytes, b->tape_bytes),
        .scratch =
            larger(larger(a->scratch_bytes, b->scratch_bytes), updates ? update_scratch(s) : 0),
        .backward_reads_input = a->backward_reads_input,
        .backward_reads_output = a->backward_reads_output,
        .recompute_reads_input = a->recompute_reads_input,
        .gives_grad_input = gives_grad_input(p, j, full->grad_input),
        .trains = s->trains,
        .may_fail = s->may_fail,
    };
    z->optimizer = gpp__optimizer_bytes(p, j);
}

static gpp__step_shape step_shape(const gpp_pipe *p, unsigned flags, int m)
{
    int checkpointed = p->checkpoint == GPP_CHECKPOINT_ALWAYS  ? m
                       : p->checkpoint == GPP_CHECKPOINT_NEVER ? 0
                                                               : m - 1;
    bool trains = flags & (GPP__DO_BACKWARD | GPP__DO_KEEP);
    return (gpp__step_shape){
        .partitions = p->partitions,
        .micro_batches = m,
        .devices = p->devices,
        .device_of = p->device_of,
        .checkpointed = trains ? checkpointed : 0,
        .forward = flags & GPP__DO_FORWARD,
        .backward = flags & GPP__DO_BACKWARD,
        .outputs = flags & GPP__DO_OUTPUTS,
        .loss = flags & GPP__DO_LOSS,
        .seeds = (flags & GPP__DO_BACKWARD) && !(flags & GPP__DO_LOSS),
        .update = flags & GPP__DO_UPDATE,
        .ascending = p->ascending,
        .keep = flags & GPP__DO_KEEP,
    };
}

/** How far a partition may run ahead of the next when nothing goes back: one in work, one waiting.
 */
enum { EVALUATE_WINDOW = 2 };

static gpp_status make_plan(gpp_pipe *p, unsigned flags, int m, const gpp__progset *full,
                            const gpp__progset *last, gpp__plan **plan, gpp_error *err)
{
    gpp__stage_sizes *sizes = calloc((size_t)p->partitions, sizeof *sizes);
    if (!sizes)
        return gpp__fail(err, GPP_ENOMEM, "a plan of %d partitions", p->partitions);
    bool may_fail = false;
    for (int j = 0; j < p->partitions; j++) {
        stage_sizes(p, j, full, last, flags & GPP__DO_UPDATE, &sizes[j]);
        may_fail |= sizes[j].may_fail;
    }
    gpp__plan_spec spec = {
        .shape = step_shape(p, flags, m),
        .schedule = &gpp__schedule_gpipe,
        .stage = sizes,
        .node_of = p->node_of,
        .window = flags & (GPP__DO_BACKWARD | GPP__DO_KEEP) ? 0 : EVALUATE_WINDOW,
        .wait_for_all = may_fail,
    };
    gpp_status status = gpp__plan_new(plan, &spec, err);
    free(sizes);
    return status;
}

static size_t bytes_now(const gpp_pipe *p, const gpp__buffer *b)
{
    const gpp__slots *s = &p->slots[b->cls][b->j];
    return b->slot < s->count && s->block[b->slot]->handle ? s->block[b->slot]->bytes : 0;
}

/** All plans share the buffers, so what counts is what is there already and what this plan adds. */
static gpp_status within_limit(const gpp_pipe *p, const gpp__plan *plan, int64_t rows,
                               gpp_error *err)
{
    for (int d = 0; p->memory_limit && d < p->devices; d++) {
        size_t need = p->state[d].planned;
        for (size_t k = 0; k < plan->buffers; k++) {
            const gpp__buffer *b = &plan->buffer[k];
            size_t now = bytes_now(p, b);
            if (b->bytes > now && (b->device == d || second_payer(p, b->device, b->other) == d))
                need += b->bytes - now;
        }
        if (need > p->memory_limit)
            return gpp__fail(
                err, GPP_ENOMEM,
                "device %s: with a mini-batch of %lld rows it needs %zu bytes by plan, "
                "the limit is %zu (more partitions or chunks, or checkpointing, need less)",
                p->device[d].name, (long long)rows, need, p->memory_limit);
    }
    return GPP_OK;
}

/* --- executables
 * ---------------------------------------------------------------------------------------------------
 */

static gpp_status get_blocks(gpp_pipe *p, gpp__exec *e, gpp_error *err)
{
    for (size_t k = 0; k < e->plan->buffers; k++) {
        const gpp__buffer *b = &e->plan->buffer[k];
        gpp_status status = gpp__slot_get(p, (gpp__class)b->cls, b->j, b->slot, b->bytes, b->device,
                                          b->other, &e->block[k], err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

static gpp__pass pass_of(const gpp__exec *e, const gpp__task *t)
{
    if (!(e->flags & (GPP__DO_BACKWARD | GPP__DO_KEEP)))
        return GPP__PASS_EVALUATE;
    return t->checkpointed ? GPP__PASS_DROP : GPP__PASS_KEEP;
}

static void fill_cell(gpp_pipe *p, gpp__exec *e, size_t k, int64_t size)
{
    const gpp__task *t = &e->plan->task[k];
    bool shorter = t->i == e->plan->shape.micro_batches - 1;
    const gpp__progset *set = shorter ? e->last : e->full;
    e->cell[k] = (gpp__cell){
        .job = &p->job,
        .device = &p->state[t->device].cpu,
        .stage = &p->stage[t->j],
        .program = set->program[t->j],
        .pass = pass_of(e, t),
        .i = t->i,
        .j = t->j,
        .clock = t->clock,
        .row0 = t->i < 0 ? 0 : t->i * size,
        .rows = set->rows,
        .first = t->first,
    };
    for (int r = 0; r < GPP__ROLES; r++)
        e->cell[k].at[r] = -1;
    for (int a = 0; a < t->access_count; a++)
        e->cell[k].at[t->access[a].role] = (int8_t)a;
    e->ticket[k].lane = p->state[t->device].lane;
}

static void exec_free(gpp_pipe *p, gpp__exec *e)
{
    if (!e)
        return;
    if (p->last == e)
        p->last = NULL;
    progset_put(p, e->full);
    progset_put(p, e->last);
    gpp__plan_free(e->plan);
    free(e->cell);
    free(e->ticket);
    free(e->block);
    free(e);
}

/* 64 TiB of activations: what is larger is a mistake, and below it no size overflows. */
#define MOST_BYTES 0x1p46

static gpp_status sane_rows(const gpp_pipe *p, int64_t rows, gpp_error *err)
{
    double bytes = 0;
    for (int k = 0; k < p->model->count; k++) {
        const gpp__layer *l = &p->model->layer[k];
        bytes += (double)gpp__boundary_bytes(l->in, l->in_count, 1, NULL) +
                 (double)gpp__boundary_bytes(l->out, l->out_count, 1, NULL);
    }
    bytes *= (double)rows;
    return bytes <= MOST_BYTES
               ? GPP_OK
               : gpp__fail(err, GPP_ENOMEM,
                           "a mini-batch of %lld rows has %.3g bytes of activations",
                           (long long)rows, bytes);
}

/** Programs and plan of what `e` is for. @param size out: rows of all micro-batches but the last */
static gpp_status plan_step(gpp_pipe *p, gpp__exec *e, int64_t *size, gpp_error *err)
{
    bool grad_input = e->flags & GPP__DO_GRAD_INPUT;
    bool has_cells = e->flags & (GPP__DO_FORWARD | GPP__DO_BACKWARD);
    int64_t last;
    int m = gpp__chunk(e->rows, has_cells ? p->chunks : 1, size, &last);
    gpp_status status = sane_rows(p, e->rows, err);
    if (status == GPP_OK)
        status = progset_get(p, *size, grad_input, &e->full, err);
    if (status == GPP_OK)
        status = progset_get(p, last, grad_input, &e->last, err);
    if (status == GPP_OK)
        status = make_plan(p, e->flags, m, e->full, e->last, &e->plan, err);
    return status;
}

static gpp_status exec_new(gpp_pipe *p, unsigned flags, int64_t rows, gpp__exec **exec,
                           gpp_error *err)
{
    gpp__exec *e = calloc(1, sizeof *e);
    if (!e)
        return gpp__fail(err, GPP_ENOMEM, "a plan");
    e->flags = flags;
    e->rows = rows;
    int64_t size;
    gpp_status status = plan_step(p, e, &size, err);
    if (status == GPP_OK)
        status = within_limit(p, e->plan, rows, err);
    if (status != GPP_OK)
        goto free_exec;
    e->cell = calloc(e->plan->tasks, sizeof *e->cell);
    e->ticket = calloc(e->plan->tasks, sizeof *e->ticket);
    e->block = calloc(e->plan->buffers, sizeof *e->block);
    if (!e->cell || !e->ticket || !e->block) {
        status = gpp__fail(err, GPP_ENOMEM, "a plan of %zu tasks", e->plan->tasks);
        goto free_exec;
    }
    status = get_blocks(p, e, err);
    if (status != GPP_OK)
        goto free_exec;
    for (size_t k = 0; k < e->plan->tasks; k++)
        fill_cell(p, e, k, size);
    *exec = e;
    return GPP_OK;
free_exec:
    exec_free(p, e);
    return status;
}

gpp_status gpp__exec_get(gpp_pipe *p, unsigned flags, int64_t rows, gpp__exec **exec,
                         gpp_error *err)
{
    gpp__exec **place = &p->exec[0];
    for (int k = 0; k < GPP__EXECS; k++) {
        gpp__exec *e = p->exec[k];
        if (e && e->flags == flags && e->rows == rows) {
            e->used = ++p->clock;
            *exec = e;
            return GPP_OK;
        }
        if (!e || (*place && e->used < (*place)->used))
            place = &p->exec[k];
    }
    exec_free(p, *place);
    *place = NULL;
    gpp_status status = exec_new(p, flags, rows, place, err);
    if (status == GPP_OK)
        (*place)->used = ++p->clock;
    *exec = *place;
    return status;
}

gpp_status gpp__exec_plan(gpp_pipe *p, unsigned flags, int64_t rows, gpp__plan **plan,
                          gpp_error *err)
{
    gpp__exec e = {.flags = flags, .rows = rows};
    int64_t size;
    gpp_status status = plan_step(p, &e, &size, err);
    *plan = e.plan;
    progset_put(p, e.full);
    progset_put(p, e.last);
    return status;
}

void gpp__exec_free_all(gpp_pipe *p)
{
    for (int k = 0; k < GPP__EXECS; k++)
        exec_free(p, p->exec[k]);
}
