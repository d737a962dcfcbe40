/*
 * codelets/cpu/pool.c: a few threads that share one kernel's units.
 *
 * A job is one 64-bit ticket: its number in the high half, the number of free units in the low
 * half. A thread that lowers the ticket by a successful compare-and-swap owns a unit. The job
 * cannot end before that unit is done, so the job's function and argument stay valid for the owner.
 * A thread that wakes late finds no unit left and touches nothing, so the caller never waits for a
 * thread that took no part.
 *
 * Idle threads watch the ticket for SPIN_NS (kernels of one cell follow each other within
 * microseconds) and then sleep.
 */
#include "codelets/cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_NS 20000

typedef struct member {
    gpp__pool *pool;
    int thread; /* 1 … threads-1 */
    pthread_t id;
} member;

struct gpp__pool {
    int threads;
    gpp__pool_start_fn start;
    void *start_arg;

    /* The job; written by the caller while the ticket has no units. */
    gpp__unit_fn fn;
    void *arg;
    int units;

    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int done; /* units finished */
    _Atomic int sleepers;
    _Atomic bool caller_sleeps, stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake, finished;
    member member[];
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static bool has_units(uint64_t ticket)
{
    return (uint32_t)ticket != 0;
}

/* Take units until none is left. */
static void work(gpp__pool *pool, int thread)
{
    uint64_t ticket = atomic_load(&pool->ticket);
    while (has_units(ticket)) {
        if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket - 1))
            continue;
        int units = pool->units;
        pool->fn(pool->arg, units - (int)(uint32_t)ticket, thread);
        if (atomic_fetch_add(&pool->done, 1) + 1 == units && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->mutex);
        }
        ticket = atomic_load(&pool->ticket);
    }
}

static bool wanted(gpp__pool *pool)
{
    return has_units(atomic_load(&pool->ticket)) || atomic_load(&pool->stop);
}

/* Returns when there is work, or when the pool ends. No wake-up is lost: the sleeper counts itself
 * before it looks at the ticket, and the caller sets the ticket before it looks for sleepers, so at
 * least one of them sees the other. */
static void wait_for_work(gpp__pool *pool)
{
    for (int64_t end = now_ns() + SPIN_NS; now_ns() < end;)
        for (int i = 0; i < 16; i++, relax())
            if (wanted(pool))
                return;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!wanted(pool))
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void wait_for_units(gpp__pool *pool)
{
    for (int64_t end = now_ns() + SPIN_NS; now_ns() < end;)
        for (int i = 0; i < 16; i++, relax())
            if (atomic_load(&pool->done) == pool->units)
                return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while (atomic_load(&pool->done) != pool->units)
        pthread_cond_wait(&pool->finished, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
}

static void *member_main(void *arg)
{
    member *m = arg;
    gpp__pool *pool = m->pool;
    if (pool->start)
        pool->start(pool->start_arg, m->thread);
    while (!atomic_load(&pool->stop)) {
        wait_for_work(pool);
        work(pool, m->thread);
    }
    return NULL;
}

static void stop_members(gpp__pool *pool, int started)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < started; i++)
        pthread_join(pool->member[i].id, NULL);
}

/* Signals are the application's: none is delivered to a pool thread. */
static int start_members(gpp__pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int i = 0;
    for (; i < pool->threads - 1; i++) {
        pool->member[i] = (member){.pool = pool, .thread = i + 1};
        if (pthread_create(&pool->member[i].id, NULL, member_main, &pool->member[i]))
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return i;
}

gpp_status gpp__pool_new(gpp__pool **out, int threads, gpp__pool_start_fn start, void *arg,
                         gpp_error *err)
{
    *out = NULL;
    if (threads < 1)
        return gpp__fail(err, GPP_EINVAL, "a pool of %d threads; it needs 1 or more", threads);
    size_t bytes = sizeof(gpp__pool) + (size_t)(threads - 1) * sizeof(member);
    gpp__pool *pool = aligned_alloc(GPP__ALIGN, gpp__align(bytes));
    if (!pool)
        return gpp__fail(err, GPP_ENOMEM, "a pool of %d threads", threads);
    *pool = (gpp__pool){.threads = threads, .start = start, .start_arg = arg};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    int started = start_members(pool);
    if (started < threads - 1) {
        pool->threads = started + 1;
        gpp__pool_free(pool);
        return gpp__fail(err, GPP_ENOMEM, "only %d of a pool's %d threads could be started",
                         started + 1, threads);
    }
    *out = pool;
    return GPP_OK;
}

void gpp__pool_free(gpp__pool *pool)
{
    if (!pool)
        return;
    stop_members(pool, pool->threads - 1);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

int gpp__pool_threads(const gpp__pool *pool)
{
    return pool ? pool->threads : 1;
}

void gpp__parallel(gpp__pool *pool, int units, gpp__unit_fn fn, void *arg)
{
    if (!pool || pool->threads == 1 || units <= 1) {
        for (int u = 0; u < units; u++)
            fn(arg, u, 0);
        return;
    }
    pool->fn = fn, pool->arg = arg, pool->units = units;
    atomic_store(&pool->done, 0);
    uint64_t job = (atomic_load(&pool->ticket) >> 32) + 1;
    atomic_store(&pool->ticket, job << 32 | (uint32_t)units);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    work(pool, 0);
    wait_for_units(pool);
}
