/*
 * graph/run/record.c: records what steps do, and makes a trace of it.
 *
 * Recording adds no work to tasks: a cell has its times in any case, and its ticket has the time at
 * which the task became ready. They are copied when a step has ended. What moved between memory
 * nodes, and which bytes were alive, is computed from the plan's accesses in the order in which the
 * tasks ran. A read copies contents that are valid on other nodes only; a write makes the contents
 * on other nodes invalid. Contents are alive from the beginning of the task that writes them; if
 * the caller has written them, from the beginning of the first task that reads them. They are alive
 * until the end of the last task that uses them, or until the end of the step when no task has read
 * them since they were written.
 */
#include "graph/trace/trace.h"

#include <limits.h>
#include <math.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "graph/run/record.h"

/* --- memory ----------------------------------------------------------------------------------- */

void gpp__step_record_free(gpp__step_record *s)
{
    free(s->task);
    free(s->link);
    free(s->point);
    *s = (gpp__step_record){.tasks = 0};
}

void gpp__recorder_free(gpp_pipe *p)
{
    gpp__recorder *r = p->recorder;
    if (!r)
        return;
    gpp__recorder_release(r);
    free(r);
    p->recorder = NULL;
}

void gpp__recorder_release(gpp__recorder *r)
{
    for (int s = 0; s < r->begun; s++)
        gpp__step_record_free(&r->step[s]);
    free(r->step);
    free(r->lasting);
    *r = (gpp__recorder){.wanted = 0};
}

gpp_status gpp_pipe_record(gpp_pipe *p, int steps, gpp_error *err)
{
    if (!p || steps < 0)
        return gpp__fail(err, GPP_EINVAL, "recording needs a pipe and >= 0 steps, got %d", steps);
    gpp__settle(p);
    gpp__recorder_free(p);
    if (!steps)
        return GPP_OK;
    p->recorder = calloc(1, sizeof *p->recorder);
    if (!p->recorder)
        return gpp__fail(err, GPP_ENOMEM, "a recorder");
    p->recorder->wanted = steps;
    return GPP_OK;
}

/* Points at most: one at the begin and one at the end of each life, and a first one per device. */
static size_t most_points(const gpp__plan *plan)
{
    size_t count = (size_t)plan->shape.devices + 4 * plan->buffers;
    for (size_t k = 0; k < plan->tasks; k++)
        count += 4 * (size_t)plan->task[k].access_count;
    return count;
}

/* Links between memory nodes that StarPU measures. */
static int count_links(const gpp_pipe *p)
{
    return p->runtime.owned && starpu_memory_nodes_get_count() > 1 ? starpu_bus_get_count() : 0;
}

static gpp_status make_room(gpp_pipe *p, const gpp__task_graph *g, gpp_error *err)
{
    gpp__recorder *r = p->recorder;
    gpp__step_record *grown = realloc(r->step, ((size_t)r->begun + 1) * sizeof *grown);
    if (!grown)
        return gpp__fail(err, GPP_ENOMEM, "a record of %d steps", r->begun + 1);
    r->step = grown;
    gpp__step_record *s = &r->step[r->begun];
    *s = (gpp__step_record){.links = count_links(p)};
    s->task = calloc(g->step.plan->tasks + 1, sizeof *s->task);
    s->link = calloc((size_t)s->links + 1, sizeof *s->link);
    s->point = calloc(most_points(g->step.plan) + 1, sizeof *s->point);
    if (s->task && s->link && s->point)
        return GPP_OK;
    gpp__step_record_free(s);
    return gpp__fail(err, GPP_ENOMEM, "a record of %zu tasks", g->step.plan->tasks);
}

/* --- links ------------------------------------------------------------------------------------ */

/* Add what StarPU has counted since the last call: reading its counters sets them to zero. */
static void add_links(gpp__step_record *s)
{
    for (int k = 0; k < s->links; k++) {
        struct starpu_profiling_bus_info info = {.transferred_bytes = 0};
        starpu_bus_get_profiling_info(k, &info);
        s->link[k].from = starpu_bus_get_src(k);
        s->link[k].to = starpu_bus_get_dst(k);
        s->link[k].bytes += (size_t)info.transferred_bytes;
        s->link[k].transfers += info.transfer_count;
    }
}

/* Drop the links over which nothing went. */
static void keep_used_links(gpp__step_record *s)
{
    int used = 0;
    for (int k = 0; k < s->links; k++)
        if (s->link[k].transfers > 0)
            s->link[used++] = s->link[k];
    s->links = used;
}

/* --- what a step did -------------------------------------------------------------------------- */

/* What is known of each buffer's contents while a step's tasks are gone through. */
typedef struct contents {
    uint64_t *nodes; /* [buffers] memory nodes where the contents are valid, a bit for each */
    double *from;    /* [buffers] since when there are contents; NAN: there are none */
    double *until;   /* end of the last task that used it */
    bool *unread;    /* no task has read the contents since they were written */
} contents;

static bool contents_init(contents *v, const gpp_pipe *p, const gpp__plan *plan)
{
    size_t n = plan->buffers + 1;
    *v = (contents){calloc(n, sizeof *v->nodes), calloc(n, sizeof *v->from),
                    calloc(n, sizeof *v->until), calloc(n, sizeof *v->unread)};
    if (!v->nodes || !v->from || !v->until || !v->unread)
        return false;
    for (size_t k = 0; k < plan->buffers; k++) {
        const gpp__buffer *b = &plan->buffer[k];
        unsigned node = b->cls == GPP__FETCHED ? STARPU_MAIN_RAM : p->device[b->device].node;
        v->nodes[k] = (uint64_t)1 << node;
        if (b->other >= 0)
            v->nodes[k] |= (uint64_t)1 << p->device[b->other].node;
        v->from[k] = NAN;
    }
    return true;
}

static void contents_release(contents *v)
{
    free(v->nodes);
    free(v->from);
    free(v->until);
    free(v->unread);
}

/* A change of a device's live bytes is a point whose bytes wrap around below zero. */
static void add_change(gpp__step_record *s, double at, int device, size_t change)
{
    s->point[s->points++] = (gpp_forecast_point){at, device, change};
}

/* On the devices of this rank that have the buffer. */
static void add_life(gpp__step_record *s, const gpp_pipe *p, const gpp__plan *plan, size_t buffer,
                     double from, double until)
{
    const gpp__buffer *b = &plan->buffer[buffer];
    int device = gpp__plan_payer(plan, buffer, p->recipe->ranks.rank);
    bool copy = device == b->device && b->other >= 0 && gpp__recipe_has(p->recipe, b->other) &&
                p->device[b->other].node != p->device[b->device].node;
    for (int d = device, k = 0; d >= 0 && k <= copy; k++, d = b->other) {
        size_t bytes = d == b->device ? gpp__plan_own_bytes(b) : b->bytes;
        add_change(s, from, d, bytes);
        add_change(s, until, d, (size_t)0 - bytes);
    }
}

static bool lasts(const gpp__buffer *b)
{
    return b->cls == GPP__PARAMS || b->cls == GPP__OPTIMIZER;
}

/* A task that ran uses a buffer. */
static void use(gpp__step_record *s, const gpp_pipe *p, const gpp__plan *plan, contents *v,
                const gpp__access *a, gpp_trace_task *t)
{
    const gpp__buffer *b = &plan->buffer[a->buffer];
    uint64_t here = (uint64_t)1 << p->device[t->device].node;
    if (a->mode == GPP__WORKSPACE) {
        add_life(s, p, plan, (size_t)a->buffer, t->start_ms, t->end_ms);
        return;
    }
    bool reads = a->mode != GPP__WRITE, writes = a->mode != GPP__READ;
    t->read_bytes += reads ? b->bytes : 0;
    t->written_bytes += writes ? b->bytes : 0;
    if (reads && !(v->nodes[a->buffer] & here))
        t->fetched_bytes += b->bytes;
    v->nodes[a->buffer] = writes ? here : v->nodes[a->buffer] | here;
    if (lasts(b))
        return;
    if (!reads && !isnan(v->from[a->buffer]))
        add_life(s, p, plan, (size_t)a->buffer, v->from[a->buffer], v->until[a->buffer]);
    if (!reads || isnan(v->from[a->buffer]))
        v->from[a->buffer] = reads && b->cls != GPP__FETCHED ? s->step.begin_ms : t->start_ms;
    v->until[a->buffer] = t->end_ms;
    v->unread[a->buffer] = writes;
}

static int by_start(const void *x, const void *y)
{
    const gpp_trace_task *a = x, *b = y;
    if (a->start_ms != b->start_ms)
        return a->start_ms < b->start_ms ? -1 : 1;
    return a->end_ms < b->end_ms ? -1 : a->end_ms > b->end_ms;
}

static int find_tasks(gpp__step_record *s, const gpp_pipe *p, const gpp__task_graph *g)
{
    int ran = 0;
    for (size_t k = 0; k < g->step.plan->tasks; k++) {
        const gpp__task *t = &g->step.plan->task[k];
        const gpp__cell *c = &g->cell[k];
        if (!gpp__runs_here(p, g, k) || (s->step.status != GPP_OK && !(c->end > c->start)))
            continue;
        s->task[ran++] =
            (gpp_trace_task){.kind = gpp__kind_letter((gpp__kind)t->kind),
                             .step = (int)k, /* index of the task, until find_bytes has used it */
                             .micro_batch = t->i,
                             .partition = t->j,
                             .first_layer = p->recipe->first[t->j],
                             .last_layer = p->recipe->first[t->j] + p->recipe->balance[t->j] - 1,
                             .device = t->device,
                             .worker = c->worker,
                             .ready_ms = fmin(g->ticket[k].ready, c->start),
                             .start_ms = c->start,
                             .end_ms = c->end};
    }
    qsort(s->task, (size_t)ran, sizeof *s->task, by_start);
    return ran;
}

/* Without memory for `contents`, the trace has no bytes. */
static void find_bytes(gpp__step_record *s, const gpp_pipe *p, const gpp__plan *plan)
{
    contents v;
    bool made = contents_init(&v, p, plan);
    for (int k = 0; made && k < s->tasks; k++) {
        gpp_trace_task *t = &s->task[k];
        const gpp__task *task = &plan->task[t->step];
        for (int a = 0; a < task->access_count; a++)
            use(s, p, plan, &v, &task->access[a], t);
    }
    for (size_t k = 0; made && k < plan->buffers; k++)
        if (!lasts(&plan->buffer[k]) && !isnan(v.from[k]))
            add_life(s, p, plan, k, v.from[k], v.unread[k] ? s->step.end_ms : v.until[k]);
    contents_release(&v);
    for (int d = 0; made && d < p->recipe->devices; d++)
        if (gpp__recipe_has(p->recipe, d))
            add_change(s, s->step.begin_ms, d, 0);
}

gpp_status gpp__record_begin(gpp_pipe *p, const gpp__task_graph *g, int *step, gpp_error *err)
{
    gpp__recorder *r = p->recorder;
    *step = -1;
    if (!r || r->begun == r->wanted)
        return GPP_OK;
    gpp_status status = make_room(p, g, err);
    if (status != GPP_OK)
        return status;
    for (size_t k = 0; k < g->step.plan->tasks; k++)
        g->ticket[k].timed = true;
    *step = r->begun++;
    gpp__step_record *s = &r->step[*step];
    add_links(&r->step[r->steps]); /* count it for the oldest step in flight */
    if (r->steps == *step)
        memset(s->link, 0, (size_t)s->links * sizeof *s->link);
    s->step.begin_ms = gpp__cell_now();
    return GPP_OK;
}

void gpp__record_end(gpp_pipe *p, const gpp__flight *f)
{
    gpp__recorder *r = p->recorder;
    const gpp__task_graph *g = f->graph;
    if (!r || f->record < 0)
        return;
    gpp__step_record *s = &r->step[f->record];
    s->step.end_ms = f->job.ended;
    s->step.micro_batches = g->step.plan->shape.micro_batches;
    s->step.status = f->status;
    add_links(s);
    keep_used_links(s);
    s->tasks = find_tasks(s, p, g);
    find_bytes(s, p, g->step.plan);
    for (size_t k = 0; k < g->step.plan->tasks; k++)
        g->ticket[k].timed = false;
    for (int k = 0; k < s->tasks; k++)
        s->task[k].step = f->record;
    for (int k = 0; k < s->links; k++)
        s->link[k].step = f->record;
    r->steps = f->record + 1;
}

/* --- the trace -------------------------------------------------------------------------------- */

static bool count_all(const gpp__recorder *r, gpp_trace *t)
{
    size_t tasks = 0, links = 0, points = 0;
    for (int s = 0; s < r->steps; s++) {
        tasks += (size_t)r->step[s].tasks;
        links += (size_t)r->step[s].links;
        points += (size_t)r->step[s].points;
    }
    if (tasks > INT_MAX || links > INT_MAX || points > INT_MAX)
        return false;
    t->steps = r->steps;
    t->tasks = (int)tasks;
    t->links = (int)links;
    t->points = (int)points;
    t->step = calloc((size_t)t->steps + 1, sizeof *t->step);
    t->task = calloc(tasks + 1, sizeof *t->task);
    t->link = calloc(links + 1, sizeof *t->link);
    t->point = calloc(points + 1, sizeof *t->point);
    t->device = calloc((size_t)t->devices + 1, sizeof *t->device);
    return t->step && t->task && t->link && t->point && t->device;
}

static gpp_status copy_devices(const gpp_pipe *p, gpp_trace *t, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int d = 0; d < p->recipe->devices && status == GPP_OK; d++) {
        gpp_trace_device *device = &t->device[d];
        *device = (gpp_trace_device){.name = strdup(p->recipe->device_name[d]),
                                     .threads = p->recipe->device_threads[d],
                                     .node = p->node_of[d]};
        status = device->name ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "names of devices");
        if (status == GPP_OK)
            status = gpp_pipe_memory(p, d, &device->planned, &device->peak, err);
    }
    return status;
}

/* Rounded to nanoseconds as in files, so that a trace read back equals the one written. */
static double since(double origin, double seconds)
{
    return round(1e9 * (seconds - origin)) / 1e6;
}

static void copy_step(const gpp__step_record *s, double origin, gpp_trace *t, int *tasks,
                      int *links, int *points)
{
    for (int k = 0; k < s->tasks; k++) {
        gpp_trace_task *task = &t->task[(*tasks)++];
        *task = s->task[k];
        task->ready_ms = since(origin, task->ready_ms);
        task->start_ms = since(origin, task->start_ms);
        task->end_ms = since(origin, task->end_ms);
    }
    for (int k = 0; k < s->links; k++)
        t->link[(*links)++] = s->link[k];
    for (int k = 0; k < s->points; k++) {
        gpp_forecast_point *point = &t->point[(*points)++];
        *point = s->point[k];
        point->ms = since(origin, point->ms);
    }
}

/* At the same time, falls come before rises: contents that replace others must not seem to be alive
 * beside them. */
static int by_time(const void *x, const void *y)
{
    const gpp_forecast_point *a = x, *b = y;
    if (a->ms != b->ms)
        return a->ms < b->ms ? -1 : 1;
    bool up = a->bytes < SIZE_MAX / 2, other_up = b->bytes < SIZE_MAX / 2;
    return up - other_up;
}

size_t gpp__record_lasting(const gpp_pipe *p, int device)
{
    size_t bytes = 0;
    for (int j = 0; j < p->recipe->partitions; j++)
        if (p->recipe->device_of[j] == device && p->recipe->home[j] == j)
            bytes += gpp__align(gpp__recipe_block_end(p->recipe, j)->params_end) +
                     gpp__align(gpp__recipe_optimizer_bytes(p->recipe, j));
    return bytes;
}

/* Turn changes, of steps that may overlap, into sums. Without memory there are no points. */
static void sum_points(const gpp__recorder *r, gpp_trace *t)
{
    size_t *bytes = calloc((size_t)t->devices, sizeof *bytes);
    int points = 0;
    for (int d = 0; bytes && d < t->devices; d++)
        bytes[d] = r->lasting[d];
    qsort(t->point, (size_t)t->points, sizeof *t->point, by_time);
    for (int k = 0; bytes && k < t->points; k++) {
        gpp_forecast_point now = t->point[k];
        now.bytes = bytes[now.device] += now.bytes;
        const gpp_forecast_point *before = &t->point[points - 1];
        bool same = points && before->device == now.device && before->ms == now.ms;
        points -= same;
        t->point[points++] = now;
    }
    free(bytes);
    t->points = points;
}

static bool ascends(const gpp_trace *t)
{
    for (int k = 1; k < t->tasks; k++)
        if (t->task[k].start_ms < t->task[k - 1].start_ms)
            return false;
    return true;
}

static void copy_steps(const gpp__recorder *r, gpp_trace *t)
{
    int tasks = 0, links = 0, points = 0;
    double origin = r->steps ? r->step[0].step.begin_ms : 0;
    for (int s = 0; s < r->steps; s++) {
        t->step[s] = r->step[s].step;
        t->step[s].begin_ms = since(origin, t->step[s].begin_ms);
        t->step[s].end_ms = since(origin, t->step[s].end_ms);
        copy_step(&r->step[s], origin, t, &tasks, &links, &points);
    }
    if (!ascends(t))
        qsort(t->task, (size_t)t->tasks, sizeof *t->task, by_start);
    sum_points(r, t);
}

/* The trace of a recorder that has the steps of all ranks. */
static gpp_status make_trace(const gpp_pipe *p, const gpp__recorder *r, gpp_trace **trace,
                             gpp_error *err)
{
    gpp_trace *t = calloc(1, sizeof *t);
    if (t) {
        t->layers = p->recipe->model->count;
        t->partitions = p->recipe->partitions;
        t->devices = p->recipe->devices;
    }
    gpp_status status =
        t && count_all(r, t) ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "a trace of %d steps", r->steps);
    status = gpp__agree(p, "a trace", status, 0, err);
    if (status == GPP_OK)
        status = copy_devices(p, t, err);
    if (status == GPP_OK) {
        copy_steps(r, t);
        *trace = t;
    } else {
        gpp_trace_free(t);
    }
    return status;
}

gpp_status gpp_pipe_trace(const gpp_pipe *p, gpp_trace **trace, gpp_error *err)
{
    if (!p || !trace)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", p ? "trace" : "pipe");
    *trace = NULL;
    gpp__comm_begin(p->comm);
    if (!p->recorder || !p->recorder->steps)
        return gpp__fail(err, GPP_ESTATE, "no step has been noted (gpp_pipe_record)");
    gpp__recorder all = {.wanted = 0};
    gpp_status status = gpp__recorder_gather(p, &all, err);
    if (status == GPP_OK)
        status = make_trace(p, &all, trace, err);
    gpp__recorder_release(&all);
    return status;
}
