/*
 * graph/run/gather.c: one record of the steps of all ranks.
 *
 * Each rank has recorded its own tasks, by its own clock. Rank 0's clock counts. How far another
 * clock is ahead follows from messages that go to rank 0 and back: rank 0 reads its clock half-way,
 * and the shortest of several exchanges is off by at most half its length (Cristian, "Probabilistic
 * clock synchronization", 1989).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/record.h"

/* --- clocks ----------------------------------------------------------------------------------- */

enum { EXCHANGES = 8 };

static gpp_status answer(gpp_comm *c, int rank, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < EXCHANGES && status == GPP_OK; k++) {
        double now;
        status = gpp__comm_take(c, rank, &now, sizeof now, err);
        now = gpp__cell_now();
        if (status == GPP_OK)
            status = gpp__comm_put(c, rank, &now, sizeof now, err);
    }
    return status;
}

static gpp_status ask(gpp_comm *c, double *ahead, gpp_error *err)
{
    double least = INFINITY;
    gpp_status status = GPP_OK;
    for (int k = 0; k < EXCHANGES && status == GPP_OK; k++) {
        double theirs = 0, begin = gpp__cell_now();
        status = gpp__comm_put(c, 0, &begin, sizeof begin, err);
        if (status == GPP_OK)
            status = gpp__comm_take(c, 0, &theirs, sizeof theirs, err);
        double end = gpp__cell_now();
        if (end - begin < least) {
            least = end - begin;
            *ahead = (begin + end) / 2 - theirs;
        }
    }
    return status;
}

/* @param ahead  out: seconds by which this rank's clock is ahead of rank 0's */
static gpp_status compare_clocks(gpp_comm *c, double *ahead, gpp_error *err)
{
    gpp_status status = GPP_OK;
    *ahead = 0;
    if (c->rank > 0)
        return ask(c, ahead, err);
    for (int r = 1; r < c->size && status == GPP_OK; r++)
        status = answer(c, r, err);
    return status;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* @param ahead  of this rank's clock */
static bool copy_step(const gpp__step_record *from, gpp__step_record *to, double ahead)
{
    *to = *from;
    to->task = malloc(((size_t)from->tasks + 1) * sizeof *to->task);
    to->link = malloc(((size_t)from->links + 1) * sizeof *to->link);
    to->point = malloc(((size_t)from->points + 1) * sizeof *to->point);
    if (!to->task || !to->link || !to->point)
        return false;
    memcpy(to->task, from->task, (size_t)from->tasks * sizeof *to->task);
    memcpy(to->link, from->link, (size_t)from->links * sizeof *to->link);
    memcpy(to->point, from->point, (size_t)from->points * sizeof *to->point);
    to->step.begin_ms -= ahead;
    to->step.end_ms -= ahead;
    for (int k = 0; k < to->tasks; k++) {
        to->task[k].ready_ms -= ahead;
        to->task[k].start_ms -= ahead;
        to->task[k].end_ms -= ahead;
    }
    for (int k = 0; k < to->points; k++)
        to->point[k].ms -= ahead;
    return true;
}

static gpp_status copy_own(const gpp_pipe *p, gpp__recorder *all, double ahead, gpp_error *err)
{
    const gpp__recorder *r = p->recorder;
    bool made = true;
    all->lasting = calloc((size_t)p->recipe->devices + 1, sizeof *all->lasting);
    all->step = calloc((size_t)r->steps + 1, sizeof *all->step);
    if (!all->lasting || !all->step)
        return gpp__fail(err, GPP_ENOMEM, "a record of %d steps", r->steps);
    for (int d = 0; d < p->recipe->devices; d++)
        all->lasting[d] = gpp__recipe_has(p->recipe, d) ? gpp__record_lasting(p, d) : 0;
    for (; all->begun < r->steps && made; all->begun++)
        made = copy_step(&r->step[all->begun], &all->step[all->begun], ahead);
    all->steps = r->steps;
    return made ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "a record of %d steps", r->steps);
}

/* What a rank says of one of its steps before the tasks and points. */
typedef struct head {
    gpp_trace_step step;
    int tasks, points;
} head;

static bool make_room(gpp__step_record *s, const head *more)
{
    gpp_trace_task *task = realloc(s->task, ((size_t)(s->tasks + more->tasks) + 1) * sizeof *task);
    s->task = task ? task : s->task;
    gpp_forecast_point *point =
        realloc(s->point, ((size_t)(s->points + more->points) + 1) * sizeof *point);
    s->point = point ? point : s->point;
    return task && point;
}

/* Rank `from` gives what it has recorded of its own tasks, `own`; the others add it to `s`. */
static gpp_status add_step(const gpp_pipe *p, int from, const gpp__step_record *own,
                           gpp__step_record *s, gpp_error *err)
{
    gpp_comm *c = p->comm;
    bool mine = c->rank == from;
    head h = {own->step, own->tasks, own->points};
    gpp_status status = gpp__comm_spread(c, from, &h, sizeof h, err);
    if (status == GPP_OK && !mine && !make_room(s, &h))
        status = gpp__fail(err, GPP_ENOMEM, "a record of %d tasks", s->tasks + h.tasks);
    status = gpp__agree(p, "the record of a step", status, 0, err);
    if (status == GPP_OK)
        status = gpp__comm_spread(c, from, mine ? own->task : s->task + s->tasks,
                                  (size_t)h.tasks * sizeof *s->task, err);
    if (status == GPP_OK)
        status = gpp__comm_spread(c, from, mine ? own->point : s->point + s->points,
                                  (size_t)h.points * sizeof *s->point, err);
    if (status != GPP_OK || mine)
        return status;
    s->tasks += h.tasks;
    s->points += h.points;
    s->step.begin_ms = fmin(s->step.begin_ms, h.step.begin_ms);
    s->step.end_ms = fmax(s->step.end_ms, h.step.end_ms);
    return GPP_OK;
}

static gpp_status add_steps(const gpp_pipe *p, gpp__recorder *all, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int s = 0; s < all->steps && status == GPP_OK; s++) {
        gpp__step_record own = {.tasks = 0};
        bool made = copy_step(&all->step[s], &own, 0);
        status = made ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "the record of a step");
        status = gpp__agree(p, "the records of steps", status, (uint64_t)all->steps, err);
        for (int r = 0; r < p->comm->size && status == GPP_OK; r++)
            status = add_step(p, r, &own, &all->step[s], err);
        gpp__step_record_free(&own);
    }
    return status;
}

gpp_status gpp__recorder_gather(const gpp_pipe *p, gpp__recorder *all, gpp_error *err)
{
    double ahead = 0;
    bool several = gpp__ranks_are_several(&p->recipe->ranks);
    gpp_status status = gpp__agree(p, "gpp_pipe_trace", GPP_OK, 0, err);
    if (status == GPP_OK && several)
        status = compare_clocks(p->comm, &ahead, err);
    if (status == GPP_OK)
        status = copy_own(p, all, ahead, err);
    status = gpp__agree(p, "a copy of a record", status, 0, err);
    for (int d = 0; d < p->recipe->devices && status == GPP_OK && several; d++)
        status = gpp__comm_spread(p->comm, p->recipe->rank_of[d], &all->lasting[d],
                                  sizeof all->lasting[d], err);
    return status == GPP_OK && several ? add_steps(p, all, err) : status;
}
