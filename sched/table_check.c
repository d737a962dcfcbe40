/*
 * sched/table_check.c: is a table complete, and can it run? The walk (walk.h) goes through it. When
 * a device is stuck, the message names the task at which it waits, the task that this one needs,
 * and why it needs it.
 *
 * The check assumes that data goes from every partition to the next and that every gradient goes
 * back. In a model where fewer gradients go back, more tables can run than this check accepts.
 */
#include "sched/walk.h"

#include <stdlib.h>

typedef struct need {
    int32_t task;
    const char *why;
} need;

typedef struct checker {
    const gpp__walk *walk;
    const gpp__step_shape *s;
    int whole; /* partitions 0 ... whole - 1 lack no backward or W */
    int *from; /* [partitions] micro-batches below this lack none */
} checker;

static bool lacks(const checker *c, int kind, int i, int j, const char *why, need *out)
{
    *out = (need){gpp__index_find(c->walk->index, kind, i, j), why};
    return out->task >= 0 && !gpp__walk_is_done(c->walk, out->task);
}

/* A backward or a W of partition j. What is done stays done, so each is looked at once. */
static bool lacks_backward(const checker *c, int j, const char *why, need *out)
{
    for (int *i = &c->from[j]; *i < c->s->micro_batches; ++*i)
        if (lacks(c, GPP__BACKWARD, *i, j, why, out) || lacks(c, GPP__WEIGHT, *i, j, why, out))
            return true;
    return false;
}

/* A backward or a W of any partition. */
static bool lacks_any_backward(checker *c, need *out)
{
    int n = c->s->partitions;
    while (c->whole < n && !lacks_backward(c, c->whole, "which it waits for", out))
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

static int32_t missing_task(const gpp__walk *walk, const gpp__entry *e)
{
    need lack;
    return missing(walk->data, e, &lack) ? lack.task : -1;
}

static gpp_status say_stuck(checker *c, const gpp__stuck *at, gpp_error *err)
{
    need lack;
    gpp__task_text a, b, x;
    missing(c, at->at, &lack);
    gpp__task_name(at->at->kind, at->at->i, at->at->j, a);
    gpp__task_name(at->needs->kind, at->needs->i, at->needs->j, b);
    if (at->other == at->device)
        return gpp__fail(err, GPP_EINVAL, "device %d: %s comes before %s, %s", at->device, a, b,
                         lack.why);
    gpp__task_name(at->other_at->kind, at->other_at->i, at->other_at->j, x);
    return gpp__fail(
        err, GPP_EINVAL,
        "device %d waits for ever at %s: needs %s, %s, of device %d, which waits at %s", at->device,
        a, b, lack.why, at->other, x);
}

static gpp_status check_order(const gpp__task_index *index, gpp_error *err)
{
    checker c = {.s = index->shape};
    gpp__walk walk = {.index = index, .missing = missing_task, .data = &c};
    gpp_status status = GPP_OK;
    c.walk = &walk;
    c.from = calloc((size_t)c.s->partitions, sizeof *c.from);
    if (!c.from || !gpp__walk_run(&walk))
        status = gpp__fail(err, GPP_ENOMEM, "check of a schedule table");
    else if (walk.stuck.device >= 0)
        status = say_stuck(&c, &walk.stuck, err);
    free(walk.rank);
    free(c.from);
    return status;
}

gpp_status gpp__table_check(const gpp__table *table, const gpp__step_shape *s, gpp_error *err)
{
    gpp__task_index index;
    gpp_status status = gpp__shape_check(s, err);
    if (status != GPP_OK)
        return status;
    if (table->devices != s->devices)
        return gpp__fail(err, GPP_EINVAL, "a table of %d devices for a step on %d", table->devices,
                         s->devices);
    status = gpp__index_init(&index, table, s, err);
    if (status == GPP_OK)
        status = check_order(&index, err);
    gpp__index_release(&index);
    return status;
}
