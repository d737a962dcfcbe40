/*
 * sched/policy.c: see policy.h. The rule is in pop_next: the task at the lane's next position, or
 * nothing.
 */
#include "sched/policy.h"

#include <linux/futex.h>
#include <sched.h>
#include <starpu.h>
#include <starpu_scheduler.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A worker that finds no task polls so many times, then lets others have its core between polls. */
enum { YIELD_POLLS = 64 };
/* While a step runs it sleeps as soon as another thread wants its core, which a yield of more than
 * this tells. Sleeping on a core that nobody else wants would cost the time it takes to wake up. */
#define CORE_IS_WANTED 50e-6
/* Between steps it sleeps after so many polls: a step that follows another at once finds it awake. */
enum { IDLE_POLLS = 2000 };
/* A sleeping worker wakes up this often: StarPU may want to stop it or to move data through it. */
enum { SLEEP_MS = 5 };

struct gpp__lane {
    gpp__lane *next_on_worker;
    unsigned context;
    int worker;
    size_t mask; /* capacity - 1, a power of two minus one */
    _Atomic(struct starpu_task *)
        *ready;                /* [mask + 1] by position: tasks StarPU has reported ready */
    atomic_uint_fast64_t next; /* position to run next; written by the worker alone */
    atomic_bool abandoned;     /* tasks run in any order (gpp__lane_abandon) */
    uint64_t end;              /* positions given out; written by the submitting thread alone */
};

typedef struct worker_state {
    pthread_mutex_t lock; /* lanes */
    gpp__lane *lanes;
    unsigned polls;    /* since the last task; used by the worker alone */
    atomic_uint wakes; /* futex: changes when there may be a task */
    atomic_bool sleeps;
} worker_state;

typedef struct policy_state {
    worker_state worker[STARPU_NMAXWORKERS];
    bool may_sleep;       /* all tasks of the workers come through this policy and wake them */
    atomic_int busy;      /* steps running */
    pthread_mutex_t lock; /* others */
    struct starpu_task *others,
        **others_end; /* the application's tasks, linked through prev/next */
    atomic_int others_count;
} policy_state;

static policy_state *state_of(unsigned context)
{
    return starpu_sched_ctx_get_policy_data(context);
}

static void init_sched(unsigned context)
{
    policy_state *s = calloc(1, sizeof *s);
    starpu_sched_ctx_set_policy_data(context, s);
    if (!s)
        return; /* gpp__policy_ready tells */
    for (int w = 0; w < STARPU_NMAXWORKERS; w++)
        pthread_mutex_init(&s->worker[w].lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->others_end = &s->others;
    s->may_sleep = context == 0;
}

bool gpp__policy_ready(unsigned context)
{
    return state_of(context) != NULL;
}

static void deinit_sched(unsigned context)
{
    policy_state *s = state_of(context);
    if (!s)
        return;
    for (int w = 0; w < STARPU_NMAXWORKERS; w++)
        pthread_mutex_destroy(&s->worker[w].lock);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* --- sleeping --------------------------------------------------------------------------------- */

/* The worker sets `sleeps` before the futex compares `wakes`, and others change `wakes` before they
 * read `sleeps`, so no change is missed. */
static void wake(worker_state *w)
{
    atomic_fetch_add(&w->wakes, 1);
    if (atomic_load(&w->sleeps))
        syscall(SYS_futex, &w->wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void wake_all(policy_state *s)
{
    for (unsigned w = 0; w < starpu_worker_get_count(); w++)
        wake(&s->worker[w]);
}

static void sleep_unless(worker_state *w, unsigned wakes)
{
    struct timespec t = {.tv_nsec = SLEEP_MS * 1000000L};
    starpu_worker_relax_on();
    atomic_store(&w->sleeps, true);
    syscall(SYS_futex, &w->wakes, FUTEX_WAIT_PRIVATE, wakes, &t, NULL, 0);
    atomic_store(&w->sleeps, false);
    starpu_worker_relax_off();
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool core_is_wanted(void)
{
    double begin = now();
    sched_yield();
    return now() - begin > CORE_IS_WANTED;
}

/* Wait a little for a task. Where there are several memory nodes a worker moves data between polls,
 * so it does not sleep while a step runs. @param wakes  before the worker looked for a task */
static void wait_for_task(policy_state *s, worker_state *w, unsigned wakes, bool has_lane)
{
    bool busy = (has_lane && atomic_load(&s->busy)) || atomic_load(&s->others_count);
    if (++w->polls < YIELD_POLLS || !(busy ? core_is_wanted() : w->polls >= IDLE_POLLS))
        return;
    if (!s->may_sleep || (busy && starpu_memory_nodes_get_count() > 1))
        return;
    sleep_unless(w, wakes);
    if (atomic_load(&w->wakes) != wakes)
        w->polls = 0;
}

void gpp__policy_busy(unsigned context)
{
    policy_state *s = state_of(context);
    if (atomic_fetch_add(&s->busy, 1) == 0)
        wake_all(s);
}

void gpp__policy_idle(unsigned context)
{
    atomic_fetch_sub(&state_of(context)->busy, 1);
}

/* --- pushing and popping ---------------------------------------------------------------------- */

static int push_other(policy_state *s, struct starpu_task *task)
{
    task->next = NULL;
    starpu_worker_relax_on();
    pthread_mutex_lock(&s->lock);
    starpu_worker_relax_off();
    *s->others_end = task;
    s->others_end = &task->next;
    atomic_fetch_add(&s->others_count, 1);
    starpu_push_task_end(task);
    pthread_mutex_unlock(&s->lock);
    wake_all(s);
    for (unsigned w = 0; w < starpu_worker_get_count(); w++)
        if (starpu_worker_can_execute_task_first_impl(w, task, NULL))
            starpu_wake_worker_relax_light((int)w);
    return 0;
}

static int push_task(struct starpu_task *task)
{
    gpp__ticket *ticket = task->sched_data;
    if (!ticket)
        return push_other(state_of(task->sched_ctx), task);
    gpp__lane *lane = ticket->lane;
    int worker = lane->worker;
    unsigned context = task->sched_ctx;
    if (ticket->timed)
        ticket->ready = now();
    if (starpu_memory_nodes_get_count() > 1)
        starpu_prefetch_task_input_for(task, (unsigned)worker);
    starpu_push_task_end(task);
    /* After this store the worker may take and finish the task: do not touch the task or its ticket
     * again. */
    atomic_store(&lane->ready[ticket->position & lane->mask], task);
    wake(&state_of(context)->worker[worker]);
    starpu_wake_worker_relax_light(worker);
    return 0;
}

static void task_done(struct starpu_task *task, unsigned context)
{
    const gpp__ticket *ticket = task->sched_ctx == context ? task->sched_data : NULL;
    if (ticket && ticket->done)
        ticket->done(ticket->arg);
}

static struct starpu_task *pop_other(policy_state *s, unsigned worker)
{
    if (!atomic_load(&s->others_count))
        return NULL;
    starpu_worker_relax_on();
    pthread_mutex_lock(&s->lock);
    starpu_worker_relax_off();
    struct starpu_task **at = &s->others, *task;
    unsigned impl;
    while ((task = *at) && !starpu_worker_can_execute_task_first_impl(worker, task, &impl))
        at = &task->next;
    if (task) {
        starpu_task_set_implementation(task, impl);
        *at = task->next;
        if (s->others_end == &task->next)
            s->others_end = at;
        task->next = NULL;
        atomic_fetch_sub(&s->others_count, 1);
    }
    pthread_mutex_unlock(&s->lock);
    return task;
}

static struct starpu_task *pop_any(gpp__lane *lane)
{
    for (size_t k = 0; k <= lane->mask; k++) {
        struct starpu_task *task = atomic_exchange(&lane->ready[k], NULL);
        if (task)
            return task;
    }
    return NULL;
}

static struct starpu_task *pop_next(gpp__lane *lane)
{
    uint64_t position = atomic_load_explicit(&lane->next, memory_order_relaxed);
    _Atomic(struct starpu_task *) *place = &lane->ready[position & lane->mask];
    struct starpu_task *task = atomic_load(place);
    if (!task)
        return atomic_load(&lane->abandoned) ? pop_any(lane) : NULL;
    atomic_store_explicit(place, NULL, memory_order_relaxed);
    atomic_store(&lane->next, position + 1);
    return task;
}

/* Lanes take turns: a lane that was served goes to the end of the list. */
static struct starpu_task *pop_lanes(worker_state *w, bool *has_lane)
{
    struct starpu_task *task = NULL;
    starpu_worker_relax_on();
    pthread_mutex_lock(&w->lock);
    starpu_worker_relax_off();
    *has_lane = w->lanes != NULL;
    for (gpp__lane **at = &w->lanes; *at && !task; at = &(*at)->next_on_worker) {
        gpp__lane *lane = *at;
        task = pop_next(lane);
        if (!task || !lane->next_on_worker)
            continue;
        *at = lane->next_on_worker;
        while (*at)
            at = &(*at)->next_on_worker;
        lane->next_on_worker = NULL;
        *at = lane;
        break;
    }
    pthread_mutex_unlock(&w->lock);
    return task;
}

static struct starpu_task *pop_task(unsigned context)
{
    policy_state *s = state_of(context);
    if (!s)
        return NULL;
    unsigned id = starpu_worker_get_id_check();
    worker_state *w = &s->worker[id];
    unsigned wakes = atomic_load(&w->wakes);
    bool has_lane;
    struct starpu_task *task = pop_lanes(w, &has_lane);
    if (!task)
        task = pop_other(s, id);
    if (task)
        w->polls = 0;
    else
        wait_for_task(s, w, wakes, has_lane);
    return task;
}

/* --- lanes ------------------------------------------------------------------------------------ */

gpp_status gpp__lane_new(gpp__lane **lane, unsigned context, int worker, size_t capacity,
                         gpp_error *err)
{
    *lane = NULL;
    size_t size = 64;
    while (size < capacity)
        size *= 2;
    gpp__lane *l = calloc(1, sizeof *l);
    if (!l || !(l->ready = calloc(size, sizeof *l->ready))) {
        free(l);
        return gpp__fail(err, GPP_ENOMEM, "an order of %zu tasks", size);
    }
    l->context = context;
    l->worker = worker;
    l->mask = size - 1;
    worker_state *w = &state_of(context)->worker[worker];
    pthread_mutex_lock(&w->lock);
    l->next_on_worker = w->lanes;
    w->lanes = l;
    pthread_mutex_unlock(&w->lock);
    *lane = l;
    return GPP_OK;
}

void gpp__lane_free(gpp__lane *lane)
{
    if (!lane)
        return;
    worker_state *w = &state_of(lane->context)->worker[lane->worker];
    pthread_mutex_lock(&w->lock);
    gpp__lane **at = &w->lanes;
    while (*at != lane)
        at = &(*at)->next_on_worker;
    *at = lane->next_on_worker;
    pthread_mutex_unlock(&w->lock);
    free((void *)lane->ready);
    free(lane);
}

/* Move the lane to a larger ring. Nothing may be outstanding. */
static bool grow(gpp__lane *lane, size_t size)
{
    _Atomic(struct starpu_task *) *ready = calloc(size, sizeof *ready);
    if (!ready)
        return false;
    worker_state *w = &state_of(lane->context)->worker[lane->worker];
    pthread_mutex_lock(&w->lock);
    free((void *)lane->ready);
    lane->ready = ready;
    lane->mask = size - 1;
    pthread_mutex_unlock(&w->lock);
    return true;
}

bool gpp__lane_has_room(const gpp__lane *lane, size_t count)
{
    return (size_t)(lane->end - atomic_load(&lane->next)) + count <= lane->mask + 1;
}

gpp_status gpp__lane_reserve(gpp__lane *lane, size_t count, gpp_error *err)
{
    size_t outstanding = (size_t)(lane->end - atomic_load(&lane->next)), size = lane->mask + 1;
    while (size < outstanding + count)
        size *= 2;
    if (size == lane->mask + 1)
        return GPP_OK;
    if (outstanding)
        return gpp__fail(err, GPP_ESTATE, "%zu tasks are still to run before %zu more fit",
                         outstanding, count);
    return grow(lane, size) ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "an order of %zu tasks", size);
}

uint64_t gpp__lane_extend(gpp__lane *lane, size_t count)
{
    uint64_t first = lane->end;
    lane->end += count;
    return first;
}

void gpp__lane_abandon(gpp__lane *lane)
{
    atomic_store(&lane->abandoned, true);
    wake(&state_of(lane->context)->worker[lane->worker]);
}

/* Go on behind all positions given out, since an abandoned lane has not counted them. */
void gpp__lane_restore(gpp__lane *lane)
{
    worker_state *w = &state_of(lane->context)->worker[lane->worker];
    pthread_mutex_lock(&w->lock);
    atomic_store(&lane->next, lane->end);
    atomic_store(&lane->abandoned, false);
    pthread_mutex_unlock(&w->lock);
}

uint64_t gpp__lane_next(const gpp__lane *lane, bool *ready)
{
    uint64_t next = atomic_load(&lane->next);
    *ready = atomic_load(&lane->ready[next & lane->mask]) != NULL;
    return next;
}

struct starpu_sched_policy gpp__policy = {
    .init_sched = init_sched,
    .deinit_sched = deinit_sched,
    .push_task = push_task,
    .pop_task = pop_task,
    .post_exec_hook = task_done,
#if STARPU_MAJOR_VERSION > 1 || STARPU_MINOR_VERSION >= 4
    .prefetches = 1, /* push_task prefetches; StarPU ends the program if it has done so before */
#endif
    .policy_name = "gridpipe",
    .policy_description = "each device runs its tasks in the order of a table",
    .worker_type = STARPU_WORKER_LIST,
};
