/*
 * balance/simulate.c: an event-driven run of a step that is given as data.
 *
 * First the list of tasks is read once, to find what each one depends on. A read depends on the
 * last write of the buffer; a write depends on the reads since then or, without any, on the last
 * write. Then events are taken from a heap, by time. Of the events at one time ends come first,
 * then tasks that have become ready, then starts, each by position in the list. So everything that
 * ends at a time has ended before anything begins, transfers that are asked for at one time queue
 * in the order of the list, and the answer is the same on every machine.
 *
 * A link serves first come, first served. So the arrival of a transfer is known as soon as it is
 * asked for:
 *
 *     arrival = max(now, end of the link's last transfer) + us + bytes / bytes_per_us
 *
 * Memory: a buffer counts as long as it has a holder. Its contents hold it from a WRITE until all
 * accesses before the next WRITE have ended, a task holds its WORKSPACE while it runs, and a
 * lasting buffer is always held. The next WRITE depends on all these accesses, so a buffer's
 * contents never overlap in time, and a device's live bytes never exceed the sum of its buffers.
 */
#include "balance/simulate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/heap.h"
#include "sched/walk.h"

#define NONE SIZE_MAX

/* Events of one time are in this order. */
enum { END, READY, START };

/* An entry of a linked list of tasks. */
typedef struct list_entry {
    size_t task, next;
} list_entry;

/* A copy of a buffer's contents on another node than the writer's. */
typedef struct copy {
    int node;
    double ms; /* when it arrives */
    size_t next;
} copy;

typedef struct task_state {
    size_t access;    /* position of its first access among those of all tasks */
    size_t missing;   /* dependencies that have not ended; one may count several times */
    size_t followers; /* list of the tasks that depend on it */
    size_t next;      /* the next task of its device */
    double ready;     /* when all dependencies have ended */
    double available; /* when all its data is there; < 0: not known yet */
} task_state;

typedef struct buffer_state {
    /* While the list is read. */
    size_t seen;    /* the last task that accesses it */
    size_t writer;  /* the last task that writes it */
    size_t readers; /* list of the tasks that have read it since */
    size_t written; /* position of the last WRITE among all accesses; NONE: there was none */
    size_t first;   /* number of accesses before the first WRITE */

    /* While events are taken. */
    int node;       /* the node that has the contents */
    size_t copies;  /* list of copies elsewhere */
    size_t left;    /* accesses to the present contents that have not ended yet */
    size_t holders; /* > 0: its bytes count */
} buffer_state;

typedef struct device_state {
    size_t last;      /* the last task so far, while the list is read */
    size_t next;      /* the next task; at first the first one */
    bool engaged;     /* `next` runs, or its start is known */
    double idle_from; /* the end of the last task whose start is known */
    size_t live;      /* bytes */
    size_t point;     /* its last point in the result */
    size_t before;    /* bytes of the point before that */
} device_state;

typedef struct simulation {
    const gpp__sim_spec *spec;
    gpp__sim_result *result;
    task_state *task;     /* [tasks] */
    buffer_state *buffer; /* [buffers] */
    device_state *device; /* [devices] */
    list_entry *list;     /* [3 accesses] entries of all lists */
    size_t listed;
    size_t *uses; /* [accesses] for a WRITE: how many accesses its contents get */
    copy *copy;   /* [accesses] */
    size_t copies;
    double *link_free;          /* [nodes][nodes] when a link's last transfer ends */
    double *out_free, *in_free; /* [ranks] when the last message that a rank sends, receives ends */
    gpp__heap events;           /* a task has at most one at a time */
    size_t points_room;
} simulation;

/* --- what is asked for ------------------------------------------------------------------------ */

static gpp_status check_nodes(const gpp__sim_spec *s, gpp_error *err)
{
    if (s->devices < 1)
        return gpp__fail(err, GPP_EINVAL, "a step on %d devices, expected at least 1", s->devices);
    if (!s->node_of)
        return GPP_OK;
    for (int d = 0; d < s->devices; d++)
        if (s->node_of[d] < 0 || s->node_of[d] >= s->nodes)
            return gpp__fail(err, GPP_EINVAL, "device %d has memory node %d, there are %d", d,
                             s->node_of[d], s->nodes);
    for (int from = 0; s->link && from < s->nodes; from++)
        for (int to = 0; to < s->nodes; to++) {
            const gpp__sim_link *l = &s->link[(size_t)from * (size_t)s->nodes + (size_t)to];
            if (from != to && !(isfinite(l->us) && l->us >= 0 && l->bytes_per_us > 0))
                return gpp__fail(err, GPP_EINVAL,
                                 "the link from memory node %d to %d has %g us and %g bytes/us, "
                                 "expected at least 0, finite, and more than 0",
                                 from, to, l->us, l->bytes_per_us);
        }
    return GPP_OK;
}

static gpp_status check_buffers(const gpp__sim_spec *s, gpp_error *err)
{
    for (size_t b = 0; b < s->buffers; b++) {
        const gpp__sim_buffer *buffer = &s->buffer[b];
        if (buffer->device < 0 || buffer->device >= s->devices)
            return gpp__fail(err, GPP_EINVAL, "buffer %zu is on device %d, there are %d", b,
                             (int)buffer->device, s->devices);
        if (buffer->other < -1 || buffer->other >= s->devices || buffer->other == buffer->device)
            return gpp__fail(err, GPP_EINVAL,
                             "buffer %zu on device %d has a second copy on device %d, expected "
                             "another of %d or -1",
                             b, (int)buffer->device, (int)buffer->other, s->devices);
    }
    return GPP_OK;
}

static gpp_status check_access(const gpp__sim_spec *s, size_t k, int a, gpp_error *err)
{
    const gpp__access *access = &s->task[k].access[a];
    if (access->mode < GPP__READ || access->mode > GPP__WORKSPACE)
        return gpp__fail(err, GPP_EINVAL, "access %d of task %zu has mode %d", a, k, access->mode);
    if (access->buffer < 0 || (size_t)access->buffer >= s->buffers)
        return gpp__fail(err, GPP_EINVAL, "access %d of task %zu is to buffer %d, there are %zu", a,
                         k, (int)access->buffer, s->buffers);
    return GPP_OK;
}

static gpp_status check_tasks(const gpp__sim_spec *s, gpp_error *err)
{
    if (s->tasks > INT32_MAX)
        return gpp__fail(err, GPP_EINVAL, "a step of %zu tasks is too long", s->tasks);
    for (size_t k = 0; k < s->tasks; k++) {
        const gpp__sim_task *t = &s->task[k];
        gpp_status status = GPP_OK;
        if (t->device < (s->ranks ? -1 : 0) || t->device >= s->devices)
            return gpp__fail(err, GPP_EINVAL, "task %zu is on device %d, there are %d", k,
                             (int)t->device, s->devices);
        if (t->device < 0 && (t->from < 0 || t->from >= s->ranks || t->to < 0 || t->to >= s->ranks))
            return gpp__fail(err, GPP_EINVAL, "message %zu goes from rank %d to %d, there are %d",
                             k, (int)t->from, (int)t->to, s->ranks);
        if (!isfinite(t->ms) || t->ms < 0)
            return gpp__fail(err, GPP_EINVAL, "task %zu takes %g ms, expected at least 0, finite",
                             k, t->ms);
        if (t->accesses < 0)
            return gpp__fail(err, GPP_EINVAL, "task %zu has %d accesses", k, (int)t->accesses);
        for (int a = 0; a < t->accesses && status == GPP_OK; a++)
            status = check_access(s, k, a, err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

static gpp_status check(const gpp__sim_spec *s, gpp_error *err)
{
    gpp_status status = check_nodes(s, err);
    if (status == GPP_OK)
        status = check_buffers(s, err);
    return status == GPP_OK ? check_tasks(s, err) : status;
}

/* --- what depends on what --------------------------------------------------------------------- */

static size_t push_entry(simulation *s, size_t task, size_t next)
{
    s->list[s->listed] = (list_entry){task, next};
    return s->listed++;
}

static void depend(simulation *s, size_t task, size_t on)
{
    s->task[on].followers = push_entry(s, task, s->task[on].followers);
    s->task[task].missing++;
}

static void depend_on_readers(simulation *s, size_t task, const buffer_state *b)
{
    for (size_t r = b->readers; r != NONE; r = s->list[r].next)
        depend(s, task, s->list[r].task);
}

/* Count an access to contents that begin with a WRITE, or that are there at first. */
static void count_use(simulation *s, buffer_state *b, size_t position, int mode)
{
    if (mode == GPP__WRITE)
        b->written = position;
    if (b->written == NONE)
        b->first++;
    else
        s->uses[b->written]++;
}

static void read_access(simulation *s, size_t k, int a)
{
    const gpp__access *access = &s->spec->task[k].access[a];
    buffer_state *b = &s->buffer[access->buffer];
    if (access->mode == GPP__WORKSPACE)
        return;
    if (b->writer != NONE && (!(access->mode & GPP__WRITE) || b->readers == NONE))
        depend(s, k, b->writer);
    if (access->mode & GPP__WRITE) {
        depend_on_readers(s, k, b);
        b->writer = k;
        b->readers = NONE;
    } else {
        b->readers = push_entry(s, k, b->readers);
    }
    count_use(s, b, s->task[k].access + (size_t)a, access->mode);
}

static gpp_status read_task(simulation *s, size_t k, gpp_error *err)
{
    const gpp__sim_task *t = &s->spec->task[k];
    if (t->device >= 0) {
        device_state *d = &s->device[t->device];
        *(d->last == NONE ? &d->next : &s->task[d->last].next) = k;
        d->last = k;
    }
    for (int a = 0; a < t->accesses; a++) {
        buffer_state *b = &s->buffer[t->access[a].buffer];
        if (b->seen == k)
            return gpp__fail(err, GPP_EINVAL, "task %zu has two accesses to buffer %d", k,
                             (int)t->access[a].buffer);
        b->seen = k;
        read_access(s, k, a);
    }
    return GPP_OK;
}

/* --- bytes over time -------------------------------------------------------------------------- */

static bool more_points(simulation *s)
{
    size_t room = 2 * s->points_room + 64;
    gpp__sim_point *point = realloc(s->result->point, room * sizeof *point);
    if (!point)
        return false;
    s->result->point = point;
    s->points_room = room;
    return true;
}

/* A device's live bytes have changed. A number of bytes that lasts for no time is left out, unless
 * it is more than the number before it and the one after it. So the largest point is the most that
 * was ever alive. */
static bool add_point(simulation *s, int device, double ms)
{
    device_state *d = &s->device[device];
    gpp__sim_result *r = s->result;
    gpp__sim_point *last = &r->point[d->point];
    bool peak = last->bytes > d->before && last->bytes > d->live;
    if (ms <= last->ms && !peak) {
        last->bytes = d->live;
        return true;
    }
    if (r->points == s->points_room && !more_points(s))
        return false;
    d->before = r->point[d->point].bytes;
    d->point = r->points++;
    r->point[d->point] = (gpp__sim_point){ms, device, d->live};
    return true;
}

static bool count_bytes(simulation *s, int device, size_t bytes, bool more, double ms)
{
    if (device < 0 || bytes == 0)
        return true;
    size_t *live = &s->device[device].live, *most = &s->result->device[device].live_bytes;
    *live = more ? *live + bytes : *live - bytes;
    *most = *live > *most ? *live : *most;
    return add_point(s, device, ms);
}

static bool hold(simulation *s, size_t buffer, double ms)
{
    const gpp__sim_buffer *b = &s->spec->buffer[buffer];
    if (s->buffer[buffer].holders++ > 0)
        return true;
    return count_bytes(s, b->device, b->inside ? 0 : b->bytes, true, ms) &&
           count_bytes(s, b->other, b->bytes, true, ms);
}

static bool let_go(simulation *s, size_t buffer, double ms)
{
    const gpp__sim_buffer *b = &s->spec->buffer[buffer];
    if (--s->buffer[buffer].holders > 0)
        return true;
    return count_bytes(s, b->device, b->inside ? 0 : b->bytes, false, ms) &&
           count_bytes(s, b->other, b->bytes, false, ms);
}

static bool hold_of_task(simulation *s, size_t k, double ms)
{
    const gpp__sim_task *t = &s->spec->task[k];
    for (int a = 0; a < t->accesses; a++) {
        const gpp__access *access = &t->access[a];
        if (access->mode == GPP__WRITE)
            s->buffer[access->buffer].left = s->uses[s->task[k].access + (size_t)a];
        else if (access->mode != GPP__WORKSPACE)
            continue;
        if (!hold(s, (size_t)access->buffer, ms))
            return false;
    }
    return true;
}

static bool let_go_of_task(simulation *s, size_t k, double ms)
{
    const gpp__sim_task *t = &s->spec->task[k];
    for (int a = 0; a < t->accesses; a++) {
        const gpp__access *access = &t->access[a];
        bool done = access->mode == GPP__WORKSPACE || --s->buffer[access->buffer].left == 0;
        if (done && !let_go(s, (size_t)access->buffer, ms))
            return false;
    }
    return true;
}

/* --- transfers -------------------------------------------------------------------------------- */

static int node_of(const simulation *s, int device)
{
    return s->spec->node_of ? s->spec->node_of[device] : 0;
}

/* Send a buffer to another node. @return when it arrives there if it is asked for at `now` */
static double transfer(simulation *s, int32_t buffer, int to, double now)
{
    size_t bytes = s->spec->buffer[buffer].bytes;
    size_t way = (size_t)s->buffer[buffer].node * (size_t)s->spec->nodes + (size_t)to;
    s->result->transfers++;
    s->result->transferred += (double)bytes;
    if (!s->spec->link)
        return now;
    const gpp__sim_link *l = &s->spec->link[way];
    double begin = s->link_free[way] > now ? s->link_free[way] : now;
    s->link_free[way] = begin + (l->us + (double)bytes / l->bytes_per_us) / 1000;
    return s->link_free[way];
}

/* Ask for the buffer's contents on a node. @return when they are there */
static double fetch(simulation *s, int32_t buffer, int node, double now)
{
    buffer_state *b = &s->buffer[buffer];
    if (b->node == node)
        return now;
    for (size_t c = b->copies; c != NONE; c = s->copy[c].next)
        if (s->copy[c].node == node)
            return s->copy[c].ms;
    double ms = transfer(s, buffer, node, now);
    s->copy[s->copies] = (copy){node, ms, b->copies};
    b->copies = s->copies++;
    return ms;
}

/* Ask for all that task k reads. All accesses before its own have ended, so what it will write can
 * count as written now. @return when all is there */
static double fetch_of_task(simulation *s, size_t k, double now)
{
    const gpp__sim_task *t = &s->spec->task[k];
    int node = node_of(s, t->device);
    double available = now;
    for (int a = 0; a < t->accesses; a++) {
        const gpp__access *access = &t->access[a];
        if (access->mode == GPP__WORKSPACE)
            continue;
        if (access->mode & GPP__READ) {
            double ms = fetch(s, access->buffer, node, now);
            available = ms > available ? ms : available;
        }
        if (access->mode & GPP__WRITE) {
            s->buffer[access->buffer].node = node;
            s->buffer[access->buffer].copies = NONE;
        }
    }
    return available;
}

/* --- events ----------------------------------------------------------------------------------- */

/* There is room: a task has one event at a time. */
static void push(simulation *s, double ms, int kind, size_t task)
{
    gpp__heap_push(&s->events, (gpp__heap_item){gpp__heap_key_of(ms), kind, (int32_t)task});
}

/* The device has ended a task, or the arrival of its next task's data is known: if both, plan the
 * start. */
static void engage(simulation *s, int device)
{
    device_state *d = &s->device[device];
    if (d->engaged || d->next == NONE || s->task[d->next].available < 0)
        return;
    d->engaged = true;
    push(s, gpp__walk_start(&d->idle_from, s->task[d->next].available, s->spec->task[d->next].ms),
         START, d->next);
}

static bool on_end(simulation *s, size_t k, double now)
{
    int device = s->spec->task[k].device;
    for (size_t f = s->task[k].followers; f != NONE; f = s->list[f].next)
        if (--s->task[s->list[f].task].missing == 0)
            push(s, now, READY, s->list[f].task);
    if (device >= 0) {
        s->device[device].engaged = false;
        s->device[device].next = s->task[k].next;
        engage(s, device);
    }
    return let_go_of_task(s, k, now);
}

/* Send a message as soon as the rank has sent those before it. The contents of a rank's buffer are
 * on the node where its last task wrote it, or where the buffer is at first; the way to and from
 * the host's memory is part of the message's. */
static void send_message(simulation *s, size_t k, double now)
{
    const gpp__sim_task *t = &s->spec->task[k];
    double *free_at = &s->out_free[t->from], begin = *free_at > now ? *free_at : now;
    for (int a = 0; a < t->accesses; a++)
        if (t->access[a].mode & GPP__WRITE) {
            buffer_state *b = &s->buffer[t->access[a].buffer];
            b->node = node_of(s, s->spec->buffer[t->access[a].buffer].device);
            b->copies = NONE;
        }
    *free_at = begin + t->ms;
    push(s, begin, START, k);
}

static bool on_ready(simulation *s, size_t k, double now)
{
    s->task[k].ready = now;
    if (s->spec->task[k].device < 0) {
        send_message(s, k, now);
        return true;
    }
    s->task[k].available = fetch_of_task(s, k, now);
    engage(s, s->spec->task[k].device);
    return true;
}

static bool on_start(simulation *s, size_t k, double now)
{
    const gpp__sim_task *t = &s->spec->task[k];
    double begin = now;
    if (t->device < 0) {
        begin = s->in_free[t->to] > now ? s->in_free[t->to] : now;
        s->in_free[t->to] = begin + t->ms;
    }
    s->result->start_ms[k] = now;
    s->result->stop_ms[k] = begin + t->ms;
    push(s, s->result->stop_ms[k], END, k);
    return hold_of_task(s, k, now);
}

/* Set up all that is there at first, with one point for each device. */
static bool begin(simulation *s)
{
    for (int d = 0; d < s->spec->devices; d++) {
        s->device[d].point = s->result->points++;
        s->result->point[d] = (gpp__sim_point){0, d, 0};
    }
    for (size_t b = 0; b < s->spec->buffers; b++) {
        buffer_state *buffer = &s->buffer[b];
        buffer->node = s->spec->buffer[b].fetched ? s->spec->buffer[b].host
                                                  : node_of(s, s->spec->buffer[b].device);
        buffer->left = buffer->first;
        if (buffer->first > 0 && !hold(s, b, 0))
            return false;
        if (s->spec->buffer[b].lasting && !hold(s, b, 0))
            return false;
    }
    for (int d = 0; d < s->spec->devices; d++)
        s->device[d].before = 0; /* so that the first point can be the largest */
    for (size_t k = 0; k < s->spec->tasks; k++)
        if (s->task[k].missing == 0)
            push(s, 0, READY, k);
    return true;
}

static bool run(simulation *s)
{
    static bool (*const on[])(simulation *, size_t,
                              double) = {[END] = on_end, [READY] = on_ready, [START] = on_start};
    if (!begin(s))
        return false;
    while (s->events.count > 0) {
        gpp__heap_item e = gpp__heap_pop(&s->events);
        if (!on[e.value](s, (size_t)e.stamp, gpp__heap_time_of(e.key)))
            return false;
    }
    return true;
}

/* --- what came of it -------------------------------------------------------------------------- */

static void sum_up_task(const simulation *s, size_t k, double *idle_from)
{
    const gpp__sim_result *r = s->result;
    gpp__sim_device *d = &r->device[s->spec->task[k].device];
    double ready = s->task[k].ready, start = r->start_ms[k];
    d->busy_ms += s->spec->task[k].ms;
    if (*idle_from < 0) {
        d->warm_up_ms = start;
    } else {
        double from = ready > *idle_from ? ready : *idle_from;
        d->transfer_ms += start - from;
        d->wait_ms += from - *idle_from;
    }
    *idle_from = r->stop_ms[k];
}

static gpp_status sum_up(simulation *s, gpp_error *err)
{
    gpp__sim_result *r = s->result;
    for (size_t k = 0; k < s->spec->tasks; k++)
        r->end_ms = r->stop_ms[k] > r->end_ms ? r->stop_ms[k] : r->end_ms;
    if (!isfinite(r->end_ms))
        return gpp__fail(err, GPP_EINVAL, "the step's tasks and transfers take for ever");
    for (int d = 0; d < s->spec->devices; d++)
        s->device[d].idle_from = -1;
    for (size_t k = 0; k < s->spec->tasks; k++)
        if (s->spec->task[k].device >= 0)
            sum_up_task(s, k, &s->device[s->spec->task[k].device].idle_from);
    for (int d = 0; d < s->spec->devices; d++) {
        if (s->device[d].idle_from < 0)
            r->device[d].warm_up_ms = r->end_ms;
        else
            r->device[d].drain_ms = r->end_ms - s->device[d].idle_from;
    }
    return GPP_OK;
}

static gpp_status sum_up_bytes(simulation *s, gpp_error *err)
{
    for (size_t b = 0; b < s->spec->buffers; b++) {
        const gpp__sim_buffer *buffer = &s->spec->buffer[b];
        const int32_t on[] = {buffer->device, buffer->other};
        for (int k = 0; k < 2; k++) {
            size_t *bytes = on[k] < 0 ? NULL : &s->result->device[on[k]].bytes;
            if (bytes && !gpp__add(*bytes, buffer->bytes, bytes))
                return gpp__fail(err, GPP_EINVAL,
                                 "device %d has more bytes in buffers than can be counted",
                                 (int)on[k]);
        }
    }
    return GPP_OK;
}

/* --- one simulation --------------------------------------------------------------------------- */

static void simulation_release(simulation *s)
{
    gpp__heap_release(&s->events);
    free(s->out_free);
    free(s->link_free);
    free(s->copy);
    free(s->uses);
    free(s->list);
    free(s->device);
    free(s->buffer);
    free(s->task);
}

static bool result_init(const gpp__sim_spec *spec, gpp__sim_result *r)
{
    r->start_ms = calloc(2 * spec->tasks + 1, sizeof *r->start_ms);
    r->device = calloc((size_t)spec->devices, sizeof *r->device);
    r->point = calloc((size_t)spec->devices, sizeof *r->point);
    if (!r->start_ms || !r->device || !r->point)
        return false;
    r->stop_ms = r->start_ms + spec->tasks;
    return true;
}

static bool simulation_init(simulation *s)
{
    const gpp__sim_spec *spec = s->spec;
    size_t nodes = spec->node_of && spec->link ? (size_t)spec->nodes : 0, accesses = 1;
    for (size_t k = 0; k < spec->tasks; k++)
        accesses += (size_t)spec->task[k].accesses;
    s->points_room = (size_t)spec->devices;
    s->task = calloc(spec->tasks + 1, sizeof *s->task);
    s->buffer = calloc(spec->buffers + 1, sizeof *s->buffer);
    s->device = calloc((size_t)spec->devices, sizeof *s->device);
    s->list = malloc(3 * accesses * sizeof *s->list);
    s->uses = calloc(accesses, sizeof *s->uses);
    s->copy = malloc(accesses * sizeof *s->copy);
    s->link_free = calloc(nodes * nodes + 1, sizeof *s->link_free);
    s->out_free = calloc(2 * (size_t)spec->ranks + 1, sizeof *s->out_free);
    s->in_free = s->out_free + spec->ranks;
    return s->task && s->buffer && s->device && s->list && s->uses && s->copy && s->link_free &&
           s->out_free && gpp__heap_reserve(&s->events, spec->tasks + 1);
}

static gpp_status read_list(simulation *s, gpp_error *err)
{
    gpp_status status = GPP_OK;
    size_t access = 0;
    for (int d = 0; d < s->spec->devices; d++)
        s->device[d].last = s->device[d].next = NONE;
    for (size_t b = 0; b < s->spec->buffers; b++) {
        buffer_state *buffer = &s->buffer[b];
        buffer->seen = buffer->writer = buffer->readers = buffer->written = buffer->copies = NONE;
    }
    for (size_t k = 0; k < s->spec->tasks && status == GPP_OK; k++) {
        s->task[k].access = access;
        s->task[k].followers = s->task[k].next = NONE;
        s->task[k].available = -1;
        status = read_task(s, k, err);
        access += (size_t)s->spec->task[k].accesses;
    }
    return status;
}

gpp_status gpp__simulate(const gpp__sim_spec *spec, gpp__sim_result *result, gpp_error *err)
{
    simulation s = {.spec = spec, .result = result};
    *result = (gpp__sim_result){0};
    gpp_status status = check(spec, err);
    if (status != GPP_OK)
        return status;
    if (!simulation_init(&s) || !result_init(spec, result)) {
        status = gpp__fail(err, GPP_ENOMEM, "simulation of %zu tasks", spec->tasks);
        goto release;
    }
    status = read_list(&s, err);
    if (status == GPP_OK)
        status = sum_up_bytes(&s, err);
    if (status == GPP_OK && !run(&s))
        status = gpp__fail(err, GPP_ENOMEM, "bytes over time of %zu tasks", spec->tasks);
    if (status == GPP_OK)
        status = sum_up(&s, err);
release:
    simulation_release(&s);
    return status;
}

void gpp__sim_release(gpp__sim_result *result)
{
    free(result->point);
    free(result->device);
    free(result->start_ms);
    *result = (gpp__sim_result){0};
}

double gpp__sim_bound(int partitions, int micro_batches, int recomputed, const double forward[],
                      const double recompute[], const double backward[])
{
    double bound = 0, through = 0;
    for (int k = 0; k < partitions; k++) {
        double cell = forward[k] + backward[k];
        double last = through + micro_batches * cell + recomputed * recompute[k];
        bound = last > bound ? last : bound;
        through += cell;
    }
    return through > bound ? through : bound;
}
