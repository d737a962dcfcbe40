/*
 * graph/run/step.c: the public calls that run something: whole steps and parts of steps. A call
 * either waits for its step or submits it; gpp_pipe_wait then waits for the oldest submitted step.
 * flight.c launches and lands the steps.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/pipe.h"

/* --- calls that wait -------------------------------------------------------------------------- */

/* Before a call that waits, or that changes what runs: land all submitted steps, and refuse when
 * one of them has failed. */
static gpp_status usable(gpp_pipe *p, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    gpp__comm_begin(p->comm);
    gpp__settle(p);
    if (p->broken)
        return gpp__fail(err, GPP_ESTATE, "an earlier failure has left this pipe unusable");
    if (atomic_load(&p->failed) != UINT64_MAX)
        return gpp__fail(err, GPP_ESTATE,
                         "a step that was submitted before has failed: gpp_pipe_wait says how");
    return GPP_OK;
}

static void report(gpp_pipe *p, const gpp__flight *f)
{
    p->last.stats = f->stats;
    p->last.graph = f->graph;
    p->last.known = f->status == GPP_OK;
}

/* The call does nothing, on any rank. Ranks that differ may have made different plans: drop them,
 * so that all ranks keep the same ones. */
static gpp_status refuse(gpp_pipe *p, gpp_status status, gpp_error *err)
{
    status = gpp__agree(p, "a step", status, 0, err);
    if (gpp__ranks_are_several(&p->recipe->ranks) && !p->broken) {
        gpp__settle(p);
        gpp__task_graph_free_all(p);
    }
    return status;
}

/* Launch a flight and wait for it. Forget the last step first: its task times may be
 * overwritten. */
static gpp_status fly(gpp_pipe *p, gpp__flight *f, gpp__task_graph *g, uint64_t step,
                      gpp_error *err)
{
    p->last.known = false;
    p->last.graph = NULL;
    p->ran = true;
    gpp_status status = gpp__flight_launch(p, f, g, step, err);
    if (status != GPP_OK)
        return refuse(p, status, err);
    status = gpp__flight_land(p, f);
    report(p, f);
    if (status == GPP_OK)
        return GPP_OK;
    gpp__failure_seen(p);
    if (err && err->code == GPP_OK)
        *err = f->error;
    return status;
}

/* Complete the call's flags, take its tensors and get its task graph.
 * @param kept  index of the kept forward whose buffers the call uses, -1: none */
static gpp_status prepare(gpp_pipe *p, gpp__flight *f, gpp__call *c, int kept, gpp__batch *rows,
                          gpp__task_graph **g, gpp_error *err)
{
    if ((c->flags & GPP__DO_BACKWARD) && p->adds && p->pending)
        c->flags |= GPP__DO_ADD;
    gpp_status status = gpp__take_tensors(p, &f->job, c, rows, err);
    return status == GPP_OK
               ? gpp__task_graph_get(p, c->flags, rows, kept + 1, gpp__flight_index(p, f), g, err)
               : status;
}

/* Run a call, unless it has been found wrong. */
static gpp_status run_call(gpp_pipe *p, gpp_status status, gpp__call c, int kept, uint64_t step,
                           gpp__batch *rows, gpp_error *err)
{
    char *room[GPP__MAX_TENSORS] = {NULL};
    gpp__flight *f = gpp__flight_free(p, true);
    gpp__job *job = &f->job;
    gpp__task_graph *g;
    if (status == GPP_OK)
        status = prepare(p, f, &c, kept, rows, &g, err);
    if (status != GPP_OK)
        return refuse(p, status, err);
    int pieces = g->step.plan->shape.micro_batches;
    status = gpp__split_fixed_gradients(p, job, pieces, room, err);
    status = status == GPP_OK ? fly(p, f, g, step, err) : refuse(p, status, err);
    /* Stuck tasks may still write these: gpp__stuck_settle frees them when the tasks have ended. */
    for (int k = 0; k < p->recipe->network->inputs && p->watchdog.stuck; k++)
        p->watchdog.late[k] = room[k] ? job->grad_x[k].data : NULL;
    if (!p->watchdog.stuck)
        gpp__join_fixed_gradients(p, job, pieces, room, status == GPP_OK);
    return status;
}

static gpp_status need_loss(const gpp_pipe *p, gpp_error *err)
{
    return p->recipe->loss
               ? GPP_OK
               : gpp__fail(err, GPP_ESTATE, "this pipe was made without a loss (options.loss)");
}

static gpp_status need_optimizer(const gpp_pipe *p, gpp_error *err)
{
    return p->recipe->optimizer
               ? GPP_OK
               : gpp__fail(err, GPP_ESTATE,
                           "this pipe was made without an optimizer (options.optimizer)");
}

/* Check what a training pass needs, and set the flags of its forward, loss and backward. */
static gpp_status check_train(const gpp_pipe *p, gpp__call *c, gpp_error *err)
{
    gpp_status status = need_loss(p, err);
    if (status != GPP_OK)
        return status;
    if (!c->target)
        return gpp__fail(err, GPP_EINVAL, "target is NULL");
    c->flags |= GPP__DO_FORWARD | GPP__DO_LOSS | GPP__DO_BACKWARD | (c->y ? GPP__DO_OUTPUTS : 0) |
                (c->grad_x ? GPP__DO_GRAD_INPUT : 0);
    return GPP_OK;
}

static gpp_status train(gpp_pipe *p, gpp_status status, gpp__call c, double *loss, gpp_error *err)
{
    gpp__batch rows;
    if (status == GPP_OK)
        status = check_train(p, &c, err);
    status = run_call(p, status, c, -1, p->steps, &rows, err);
    if (status != GPP_OK)
        return status;
    p->steps++; /* only now: a failed pass does not use up random numbers */
    if (loss)
        *loss = p->flight[0].loss;
    return GPP_OK;
}

gpp_status gpp_pipe_step(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                         const gpp_tensor *y, double *loss, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (!p)
        return status;
    if (status == GPP_OK)
        status = need_optimizer(p, err);
    gpp__call c = {.flags = GPP__DO_UPDATE, .x = x, .target = target, .y = y};
    return train(p, status, c, loss, err);
}

gpp_status gpp_pipe_gradients(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                              const gpp_tensor *y, const gpp_tensor *grad_x, double *loss,
                              gpp_error *err)
{
    gpp_status status = usable(p, err);
    gpp__call c = {.x = x, .target = target, .y = y, .grad_x = grad_x};
    return p ? train(p, status, c, loss, err) : status;
}

/* --- forward now, backward later -------------------------------------------------------------- */

enum { NAMELESS = -1 };

/* Index of the kept forward with this name, -1: there is none. */
static int kept_index(const gpp_pipe *p, int pass)
{
    for (int q = 0; q < p->kept.count; q++)
        if (p->kept.forward[q].used && p->kept.forward[q].name == pass)
            return q;
    return -1;
}

/* A name is not given out again, so the name of a forward that is gone never means another one. */
static int new_name(gpp_pipe *p)
{
    int name = p->kept.next_name;
    p->kept.next_name = name == INT_MAX ? 0 : name + 1;
    return name;
}

gpp_status gpp_pipe_forward(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *y, int *pass,
                            gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (!p)
        return status;
    if (status == GPP_OK && !y)
        status = gpp__fail(err, GPP_EINVAL, "y is NULL");
    /* There is at most one forward without a name: a new one takes its place. */
    int index = pass ? -1 : kept_index(p, NAMELESS);
    if (index < 0 && status == GPP_OK)
        status = gpp__kept_find(p, &index, err);
    gpp__call c = {.flags = GPP__DO_FORWARD | GPP__DO_KEEP | GPP__DO_GRAD_INPUT | GPP__DO_OUTPUTS,
                   .x = x,
                   .y = y};
    gpp__batch rows;
    p->ran = false;
    status = run_call(p, status, c, index, p->steps, &rows, err);
    if (p->ran)
        p->kept.forward[index].used = false; /* an earlier nameless one, now overwritten */
    if (status != GPP_OK)
        return status;
    gpp__kept_forward *k = &p->kept.forward[index];
    k->used = true;
    k->name = pass ? new_name(p) : NAMELESS;
    k->rows = rows;
    k->step = p->steps++; /* the backward repeats the forward's random numbers */
    if (pass)
        *pass = k->name;
    return GPP_OK;
}

/* A tape fits the rows of its forward only. */
static gpp_status same_rows(const gpp_pipe *p, const gpp__kept_forward *k, const gpp_tensor *x,
                            gpp_error *err)
{
    for (int t = 0; t < p->recipe->network->inputs; t++) {
        int batch = p->recipe->network->value[p->recipe->network->input[t]].desc.batch;
        if (batch != GPP_ROWS_FIXED && x[t].dim[0] != k->rows.rows[batch])
            return gpp__fail(err, GPP_ESHAPE, "x has %lld rows, the forward had %lld",
                             (long long)x[t].dim[0], (long long)k->rows.rows[batch]);
    }
    return GPP_OK;
}

/* @param index  out: of the kept forward */
static gpp_status check_backward(const gpp_pipe *p, int pass, const gpp_tensor *x,
                                 const gpp_tensor *grad_y, int *index, gpp_error *err)
{
    *index = kept_index(p, pass);
    if (*index < 0)
        return gpp__fail(err, GPP_ESTATE,
                         "there is no forward %d to go back from: call gpp_pipe_forward first (-1: "
                         "without a name); an update, or setting a parameter, discards it",
                         pass);
    if (!x || !grad_y)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", x ? "grad_y" : "x");
    return same_rows(p, &p->kept.forward[*index], x, err);
}

gpp_status gpp_pipe_backward(gpp_pipe *p, int pass, const gpp_tensor *x, const gpp_tensor *grad_y,
                             const gpp_tensor *grad_x, gpp_error *err)
{
    int index = -1;
    gpp_status status = usable(p, err);
    if (!p)
        return status;
    if (status == GPP_OK)
        status = check_backward(p, pass, x, grad_y, &index, err);
    gpp__call c = {
        .flags = GPP__DO_BACKWARD | GPP__DO_GRAD_INPUT, .x = x, .grad_y = grad_y, .grad_x = grad_x};
    gpp__batch rows;
    p->ran = false;
    status = run_call(p, status, c, index, index < 0 ? 0 : p->kept.forward[index].step, &rows, err);
    if (p->ran)
        p->kept.forward[index].used = false;
    return status;
}

gpp_status gpp_pipe_discard(gpp_pipe *p, int pass, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    gpp__settle(p);
    int index = kept_index(p, pass);
    if (index < 0)
        return gpp__fail(err, GPP_ESTATE, "there is no such forward");
    p->kept.forward[index].used = false;
    return GPP_OK;
}

static gpp__call evaluation(const gpp_tensor *x, const gpp_tensor *target, const gpp_tensor *y)
{
    return (gpp__call){.flags = GPP__DO_FORWARD | (target ? GPP__DO_LOSS : 0) |
                                (y ? GPP__DO_OUTPUTS : 0),
                       .x = x,
                       .target = target,
                       .y = y};
}

gpp_status gpp_pipe_evaluate(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                             const gpp_tensor *y, double *loss, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (!p)
        return status;
    if (status == GPP_OK && target)
        status = need_loss(p, err);
    if (status == GPP_OK && loss && !target)
        status = gpp__fail(err, GPP_EINVAL, "a loss is wanted but target is NULL");
    gpp__batch rows;
    status = run_call(p, status, evaluation(x, target, y), -1, p->steps, &rows, err);
    if (status == GPP_OK && loss)
        *loss = p->flight[0].loss;
    return status;
}

/* --- submitted now, waited for later ---------------------------------------------------------- */

/* Submit a call, unless it has been found wrong. */
static gpp_status submit(gpp_pipe *p, gpp_status status, gpp__call c, gpp_error *err)
{
    gpp__flight *f = gpp__flight_free(p, false);
    gpp__task_graph *g;
    gpp__batch rows;
    if (status == GPP_OK && !f)
        status = gpp__fail(err, GPP_ESTATE,
                           "%d steps are submitted and not waited for: that is the most",
                           p->submitted.count);
    if (status == GPP_OK)
        status = prepare(p, f, &c, -1, &rows, &g, err);
    if (status == GPP_OK)
        status = gpp__flight_launch(p, f, g, p->steps, err);
    if (status != GPP_OK)
        return refuse(p, status, err);
    /* Count it now: the next step may be submitted before this one lands, and a failure takes the
     * count back. */
    p->steps += (c.flags & GPP__DO_UPDATE) != 0;
    p->submitted.flight[p->submitted.count++] = gpp__flight_index(p, f);
    return GPP_OK;
}

static gpp_status submittable(const gpp_pipe *p, gpp_error *err)
{
    gpp__comm_begin(p->comm);
    return p->broken ? gpp__fail(err, GPP_ESTATE, "an earlier failure has left this pipe unusable")
                     : GPP_OK;
}

gpp_status gpp_pipe_submit(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                           const gpp_tensor *y, gpp_error *err)
{
    gpp__call c = {.flags = GPP__DO_UPDATE, .x = x, .target = target, .y = y};
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    gpp_status status = submittable(p, err);
    if (status == GPP_OK)
        status = need_optimizer(p, err);
    if (status == GPP_OK)
        status = check_train(p, &c, err);
    return submit(p, status, c, err);
}

gpp_status gpp_pipe_submit_evaluation(gpp_pipe *p, const gpp_tensor *x, const gpp_tensor *target,
                                      const gpp_tensor *y, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    gpp_status status = submittable(p, err);
    if (status == GPP_OK && target)
        status = need_loss(p, err);
    return submit(p, status, evaluation(x, target, y), err);
}

gpp_status gpp_pipe_wait(gpp_pipe *p, double *loss, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    if (!p->submitted.count)
        return gpp__fail(err, GPP_ESTATE, "no step is submitted that was not waited for");
    gpp__flight *f = &p->flight[p->submitted.flight[0]];
    gpp__comm_begin(p->comm);
    if (!p->submitted.landed) { /* gpp__settle may have landed it already */
        p->submitted.landed = 1;
        p->last.known = false; /* nobody can ask for the bound of the step before any more */
        p->last.graph = NULL;
        gpp__flight_land(p, f);
    }
    if (f->job.run == atomic_load(&p->failed))
        gpp__failure_seen(p); /* the caller hears of it now, so later steps run again */
    memmove(p->submitted.flight, p->submitted.flight + 1,
            (size_t)--p->submitted.count * sizeof *p->submitted.flight);
    p->submitted.landed--;
    report(p, f);
    if (f->status == GPP_OK && loss)
        *loss = f->loss;
    if (f->status != GPP_OK && err && err->code == GPP_OK)
        *err = f->error;
    return f->status;
}

int gpp_pipe_submitted(const gpp_pipe *p)
{
    return p ? p->submitted.count : 0;
}

/* --- gradients at hand ------------------------------------------------------------------------ */

gpp_status gpp_pipe_accumulate(gpp_pipe *p, bool on, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK)
        p->adds = on;
    return status;
}

gpp_status gpp_pipe_set_training(gpp_pipe *p, bool on, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status != GPP_OK || p->as_evaluation == !on)
        return status;
    p->as_evaluation = !on;
    gpp__discard_kept(p); /* a backward must run in the mode of its forward */
    return GPP_OK;
}

gpp_status gpp_pipe_discard_gradients(gpp_pipe *p, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (status == GPP_OK)
        p->has_grads = p->pending = false;
    return status;
}

gpp_status gpp_pipe_update(gpp_pipe *p, gpp_error *err)
{
    gpp_status status = usable(p, err);
    if (!p)
        return status;
    if (status == GPP_OK)
        status = need_optimizer(p, err);
    if (status == GPP_OK && !p->has_grads)
        status = gpp__fail(err, GPP_ESTATE, "there are no gradients to update from");
    gpp__task_graph *g;
    gpp__batch none = {{0}};
    if (status == GPP_OK)
        status = gpp__task_graph_get(p, GPP__DO_UPDATE, &none, 0, 0, &g, err);
    return status == GPP_OK ? fly(p, &p->flight[0], g, p->steps, err) : refuse(p, status, err);
}

/* --- reports ---------------------------------------------------------------------------------- */

gpp_status gpp_pipe_last_step(const gpp_pipe *p, gpp_step_stats *stats, gpp_error *err)
{
    if (!p || !stats)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "stats" : "pipe");
    if (!p->last.known)
        return gpp__fail(err, GPP_ESTATE, "no step has run, or the last one failed");
    gpp__comm_begin(p->comm);
    *stats = p->last.stats;
    gpp_status status = gpp__flight_bound(p, &stats->bound_ms, err);
    stats->efficiency = stats->step_ms > 0 ? stats->bound_ms / stats->step_ms : 1;
    return status;
}
