/*
 * sched/table_check.c: is a table complete, and can it run? Every device goes through its list as
 * far as it can, until all are at their ends or none can go on. Then a task is named that comes
 * before another it needs, with what it needs it for.
 *
 * Data is taken to go from every partition to the next and every gradient back; a model in which
 * less goes back may run with more tables than this.
 */
#include <stdlib.h>

#include "sched/table.h"

typedef struct need {
    gpp__entry task;
    const char *why;
} need;

typedef struct checker {
    const gpp__table *table;
    const gpp__step_shape *s;
    int32_t *at;  /* [kind][partition][micro-batch] position in its device's list, -1: not there */
    size_t *next; /* [devices] */
    size_t whole; /* B's and W's known to be done, in the order of `whole_task` */
} checker;

static int32_t *at(const checker *c, int kind, int i, int j)
{
    size_t m = (size_t)c->s->micro_batches, n = (size_t)c->s->partitions;
    return &c->at[((size_t)kind * n + (size_t)j) * m + (size_t)(i < 0 ? 0 : i)];
}

static int32_t *where(const checker *c, const gpp__entry *e)
{
    return at(c, e->kind, e->i, e->j);
}

static bool is_done(const checker *c, const gpp__entry *e)
{
    return (size_t)*where(c, e) < c->next[c->s->device_of[e->j]];
}

/* --- is every task there, once? --------------------------------------------------------------- */

static gpp_status enter(checker *c, int device, size_t k, gpp_error *err)
{
    const gpp__entry *e = &c->table->entry[device][k];
    gpp__task_text text;
    gpp__task_name(e->kind, e->i, e->j, text);
    if (!gpp__shape_has(c->s, e->kind, e->i, e->j))
        return gpp__fail(err, GPP_EINVAL,
                         "the table of device %d has %s, which is not of this step", device, text);
    if (c->s->device_of[e->j] != device)
        return gpp__fail(err, GPP_EINVAL,
                         "the table of device %d has %s, but partition %d is on device %d", device,
                         text, e->j, c->s->device_of[e->j]);
    if (*where(c, e) >= 0)
        return gpp__fail(err, GPP_EINVAL, "the table of device %d has %s twice", device, text);
    *where(c, e) = (int32_t)k;
    return GPP_OK;
}

static gpp_status check_present(const checker *c, int kind, int i, int j, gpp_error *err)
{
    gpp__task_text text;
    if (!gpp__shape_has(c->s, kind, i, j) || *at(c, kind, i, j) >= 0)
        return GPP_OK;
    return gpp__fail(err, GPP_EINVAL, "the table of device %d lacks %s", c->s->device_of[j],
                     gpp__task_name(kind, i, j, text));
}

static gpp_status check_entries(checker *c, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int d = 0; d < c->table->devices; d++)
        for (size_t k = 0; k < c->table->count[d] && status == GPP_OK; k++)
            status = enter(c, d, k, err);
    for (int j = 0; j < c->s->partitions && status == GPP_OK; j++) {
        for (int i = 0; i < c->s->micro_batches && status == GPP_OK; i++)
            for (int kind = 0; kind < GPP__NORM && status == GPP_OK; kind++)
                status = check_present(c, kind, i, j, err);
        for (int kind = GPP__NORM; kind <= GPP__UPDATE && status == GPP_OK; kind++)
            status = check_present(c, kind, -1, j, err);
    }
    return status;
}

/* --- can it run? ------------------------------------------------------------------------------ */

static bool lacks(const checker *c, int kind, int i, int j, const char *why, need *out)
{
    *out = (need){{(uint8_t)kind, i, j}, why};
    return gpp__shape_has(c->s, kind, i, j) && !is_done(c, &out->task);
}

/* B's, then W's, that an update waits for, counted from partition `from` on. */
static bool lacks_backward(const checker *c, int j, const char *why, need *out)
{
    for (int i = 0; i < c->s->micro_batches; i++)
        if (lacks(c, GPP__BACKWARD, i, j, why, out) || lacks(c, GPP__WEIGHT, i, j, why, out))
            return true;
    return false;
}

/* The same of all partitions; those done stay done. */
static bool lacks_any_backward(checker *c, need *out)
{
    size_t n = (size_t)c->s->partitions;
    while (c->whole < n && !lacks_backward(c, (int)c->whole, "which it waits for", out))
        c->whole++;
    return c->whole < n;
}

static bool lacks_gradient(const checker *c, const gpp__entry *e, need *out)
{
    const char *why = "whose gradient it reads";
    if (e->j < c->s->partitions - 1)
        return lacks(c, GPP__BACKWARD, e->i, e->j + 1, why, out);
    return lacks(c, GPP__LOSS, e->i, e->j, why, out) || lacks(c, GPP__SEED, e->i, e->j, why, out);
}

/* A task that e needs and that is not done. */
static bool missing(checker *c, const gpp__entry *e, need *out)
{
    const gpp__step_shape *s = c->s;
    switch (e->kind) {
    case GPP__FORWARD:
        if (lacks(c, GPP__FORWARD, e->i, e->j - 1, "whose output it reads", out))
            return true;
        return !s->backward && s->window > 0 &&
               lacks(c, GPP__FORWARD, e->i - s->window, e->j + 1, "whose input's place it takes",
                     out);
    case GPP__OUTPUT:
    case GPP__LOSS:
        return lacks(c, GPP__FORWARD, e->i, e->j, "whose output it reads", out);
    case GPP__RECOMPUTE:
        return lacks(c, GPP__FORWARD, e->i, e->j, "which it does again", out);
    case GPP__BACKWARD:
        return lacks(c, e->i < s->checkpointed ? GPP__RECOMPUTE : GPP__FORWARD, e->i, e->j,
                     "whose tape it reads", out) ||
               lacks_gradient(c, e, out);
    case GPP__WEIGHT:
        return lacks(c, GPP__BACKWARD, e->i, e->j, "whose gradients it reads", out);
    case GPP__NORM:
        return lacks_backward(c, e->j, "whose gradients it reads", out) ||
               lacks(c, GPP__NORM, -1, e->j + 1, "whose sums it adds to", out);
    case GPP__UPDATE:
        return lacks_backward(c, e->j, "whose gradients it reads", out) ||
               lacks(c, GPP__NORM, -1, 0, "whose sums it reads", out) ||
               (s->wait_for_all && lacks_any_backward(c, out));
    default:
        return false;
    }
}

static const gpp__entry *next_of(const checker *c, int d)
{
    return c->next[d] < c->table->count[d] ? &c->table->entry[d][c->next[d]] : NULL;
}

/* No device can go on. Blame one whose own list is to blame, else the first. */
static gpp_status stuck(checker *c, gpp_error *err)
{
    int first = -1;
    need lack;
    gpp__task_text a, b, x;
    for (int d = 0; d < c->table->devices; d++) {
        const gpp__entry *e = next_of(c, d);
        if (!e)
            continue;
        missing(c, e, &lack);
        first = first < 0 ? d : first;
        if (c->s->device_of[lack.task.j] != d)
            continue;
        gpp__task_name(e->kind, e->i, e->j, a);
        gpp__task_name(lack.task.kind, lack.task.i, lack.task.j, b);
        return gpp__fail(err, GPP_EINVAL, "device %d: %s comes before %s, %s", d, a, b, lack.why);
    }
    const gpp__entry *e = next_of(c, first);
    missing(c, e, &lack);
    int other = c->s->device_of[lack.task.j];
    const gpp__entry *o = next_of(c, other);
    gpp__task_name(e->kind, e->i, e->j, a);
    gpp__task_name(lack.task.kind, lack.task.i, lack.task.j, b);
    gpp__task_name(o->kind, o->i, o->j, x);
    return gpp__fail(
        err, GPP_EINVAL,
        "device %d waits for ever at %s: needs %s, %s, of device %d, which waits at %s", first, a,
        b, lack.why, other, x);
}

static gpp_status check_order(checker *c, gpp_error *err)
{
    bool goes = true, left = false;
    need lack;
    while (goes) {
        goes = left = false;
        for (int d = 0; d < c->table->devices; d++) {
            const gpp__entry *e;
            while ((e = next_of(c, d)) && !missing(c, e, &lack)) {
                c->next[d]++;
                goes = true;
            }
            left |= e != NULL;
        }
    }
    return left ? stuck(c, err) : GPP_OK;
}

gpp_status gpp__table_check(const gpp__table *table, const gpp__step_shape *s, gpp_error *err)
{
    checker c = {.table = table, .s = s};
    gpp_status status = gpp__shape_check(s, err);
    if (status != GPP_OK)
        return status;
    if (table->devices != s->devices)
        return gpp__fail(err, GPP_EINVAL, "a table of %d devices for a step on %d", table->devices,
                         s->devices);
    size_t places = (size_t)GPP__KINDS * (size_t)s->partitions * (size_t)s->micro_batches;
    c.at = malloc(places * sizeof *c.at);
    c.next = calloc((size_t)s->devices, sizeof *c.next);
    if (!c.at || !c.next) {
        status = gpp__fail(err, GPP_ENOMEM, "check of a schedule table");
        goto release;
    }
    for (size_t k = 0; k < places; k++)
        c.at[k] = -1;
    status = check_entries(&c, err);
    if (status == GPP_OK)
        status = check_order(&c, err);
release:
    free(c.next);
    free(c.at);
    return status;
}
