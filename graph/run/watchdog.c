/*
 * graph/run/watchdog.c: reports who waits for whom in a step that has stopped moving.
 *
 * A device runs its tasks in the order of its table, so it always waits for exactly one task: the
 * one at its lane's next position. StarPU infers dependencies from the order of submission. So when
 * it has not reported the task ready, an earlier task that uses one of the same buffers in a
 * conflicting way has not ended. Naming both tasks for every device shows the cycle, or the task
 * that does not return.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "graph/run/pipe.h"

typedef struct message {
    char text[1024];
    size_t length;
} message;

__attribute__((format(printf, 2, 3))) static void say(message *m, const char *format, ...)
{
    size_t room = sizeof m->text - m->length;
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(m->text + m->length, room, format, args);
    va_end(args);
    if (wanted > 0)
        m->length += (size_t)wanted < room ? (size_t)wanted : room - 1;
}

/* --- names ------------------------------------------------------------------------------------ */

static void say_task(message *m, const gpp__task *t)
{
    const char *kind = gpp__kind_name((gpp__kind)t->kind);
    if (t->i >= 0)
        say(m, "%s (%d, %d)", kind, t->i, t->j);
    else
        say(m, "%s of partition %d", kind, t->j);
}

static void say_edge(message *m, const gpp__edge *e)
{
    if (e->name)
        say(m, "skip %s %d->%d", e->name, e->from, e->to);
    else if (e->to == e->from + 1)
        say(m, "boundary %d", e->to);
    else
        say(m, "edge %d->%d", e->from, e->to);
}

static void say_buffer(message *m, const gpp__plan *plan, const gpp__access *a)
{
    const gpp__buffer *b = &plan->buffer[a->buffer];
    bool gradient = a->role == GPP__ROLE_GRAD_IN || a->role == GPP__ROLE_GRAD_OUT;
    if (b->cls != GPP__EDGE) {
        say(m, "%s %d", gpp__class_name((gpp__class)b->cls), b->j);
        return;
    }
    if (gradient)
        say(m, "the gradient of ");
    say_edge(m, &plan->edge[b->j]);
}

/* --- what has not ended ----------------------------------------------------------------------- */

/* A cell keeps the number of the last run in which it began, and ended. Tasks may still be running,
 * so the reads are atomic. */
static bool has_begun(const gpp__cell *c)
{
    return atomic_load_explicit(&c->begun, memory_order_acquire) == c->job->run;
}

static bool has_ended(const gpp__cell *c)
{
    return atomic_load_explicit(&c->ended, memory_order_acquire) == c->job->run;
}

static const gpp__access *access_to(const gpp__task *t, int buffer)
{
    for (int a = 0; a < t->access_count; a++)
        if (t->access[a].buffer == buffer && t->access[a].mode != GPP__WORKSPACE)
            return &t->access[a];
    return NULL;
}

/* The nearest earlier task that must still end before `task` may use a buffer; -1: there is
 * none. */
static long holder_of(const gpp_pipe *p, const gpp__task_graph *g, size_t task,
                      const gpp__access *a)
{
    for (size_t k = task; k-- > 0;) {
        const gpp__access *other = access_to(&g->step.plan->task[k], a->buffer);
        if (!other || (other->mode == GPP__READ && a->mode == GPP__READ))
            continue;
        if (!gpp__runs_here(p, g, k) || !has_ended(&g->cell[k]))
            return (long)k;
        if (other->mode != GPP__READ)
            return -1;
    }
    return -1;
}

static void say_cause(message *m, const gpp_pipe *p, const gpp__task_graph *g, size_t task)
{
    const gpp__task *t = &g->step.plan->task[task];
    for (int a = 0; a < t->access_count; a++) {
        if (t->access[a].mode == GPP__WORKSPACE)
            continue;
        long k = holder_of(p, g, task, &t->access[a]);
        if (k < 0)
            continue;
        const gpp__task *other = &g->step.plan->task[k];
        const gpp__access *theirs = access_to(other, t->access[a].buffer);
        say_task(m, other);
        say(m, " on %s has not %s ", p->recipe->device_name[other->device],
            theirs->mode == GPP__READ ? "released" : "delivered");
        say_buffer(m, g->step.plan, theirs);
        return;
    }
    say(m, "all it needs is done, but the runtime has not reported it");
}

/* --- what a device does ----------------------------------------------------------------------- */

static void say_running(message *m, const gpp_pipe *p, const gpp__task_graph *g, size_t task)
{
    const gpp__cell *c = &g->cell[task];
    int first = p->recipe->first[c->j], last = first + p->recipe->balance[c->j] - 1;
    say(m, "runs ");
    say_task(m, &g->step.plan->task[task]);
    if (last >= first)
        say(m, ", layers %d to %d,", first, last);
    say(m, " for %.3g s", fmax(gpp__cell_now() - c->start, 0));
}

static void say_next(message *m, const gpp_pipe *p, const gpp__task_graph *g, size_t task,
                     bool ready)
{
    say(m, "waits for its next, ");
    say_task(m, &g->step.plan->task[task]);
    if (ready) {
        say(m, ", which is ready, but its worker does something else");
    } else {
        say(m, ": ");
        say_cause(m, p, g, task);
    }
}

/* @return the task that the device runs or waits for; -1: it has run all its tasks */
static long say_device(message *m, const gpp_pipe *p, const gpp__task_graph *g, int d)
{
    const int32_t *table = g->step.plan->table[d];
    size_t count = g->step.plan->count[d];
    /* The step's positions begin at `first`; positions before it are of earlier steps. */
    bool ready;
    uint64_t first = count ? g->ticket[table[0]].position : 0,
             next = gpp__lane_next(p->device[d].lane, &ready);
    say(m, "; %s ", p->recipe->device_name[d]);
    if (count && next < first) {
        say(m, "waits for position %llu of its order, to which no task was given",
            (unsigned long long)next);
        return table[0];
    }
    for (size_t k = 0; k < count && k < next - first; k++) {
        const gpp__cell *c = &g->cell[table[k]];
        if (has_ended(c))
            continue;
        if (has_begun(c)) {
            say_running(m, p, g, (size_t)table[k]);
        } else {
            say(m, "fetches the data of ");
            say_task(m, &g->step.plan->task[table[k]]);
        }
        return table[k];
    }
    if (next - first < count) {
        say_next(m, p, g, (size_t)table[next - first], ready);
        return table[next - first];
    }
    say(m, "has done all of its %zu tasks", count);
    return -1;
}

gpp_status gpp__stall_report(const gpp_pipe *p, const gpp__flight *f, bool *runs, gpp_error *err)
{
    const gpp__task_graph *g = f->graph;
    message m = {.length = 0};
    size_t left = 0;
    long blame = -1;
    for (size_t k = 0; k < g->step.plan->tasks; k++)
        left += gpp__runs_here(p, g, k) && !has_ended(&g->cell[k]);
    say(&m, "no task has ended for %.3g s, %zu of %zu are left", p->watchdog.seconds, left,
        g->here);
    for (int d = 0; d < p->recipe->devices; d++) {
        if (!gpp__recipe_has(p->recipe, d))
            continue;
        long k = say_device(&m, p, g, d);
        bool begun = k >= 0 && has_begun(&g->cell[k]);
        /* Rather blame a task that runs than one that waits. */
        if (k >= 0 && (blame < 0 || (begun && !has_begun(&g->cell[blame]))))
            blame = k;
    }
    *runs = blame >= 0 && has_begun(&g->cell[blame]);
    bool first = err && err->code == GPP_OK;
    gpp__fail(err, GPP_ETIMEDOUT, "%s", m.text);
    if (first && blame >= 0) {
        err->micro_batch = g->cell[blame].i;
        err->partition = g->cell[blame].j;
    }
    return GPP_ETIMEDOUT;
}

gpp_status gpp_pipe_set_watchdog(gpp_pipe *p, double seconds, gpp_error *err)
{
    if (!p || !(seconds >= 0) || seconds > 1e9)
        return gpp__fail(err, GPP_EINVAL, "a watchdog needs a pipe and 0 ... 1e9 seconds, got %g",
                         seconds);
    p->watchdog.seconds = seconds;
    return p->comm ? gpp_comm_set_timeout(p->comm, seconds, err) : GPP_OK;
}
