/*
 * tests/test_pool.c: a device's threads. Whatever the timing, every unit runs once and what it
 * wrote is seen afterwards; jobs of many sizes, back to back and with pauses long enough to fall
 * asleep in.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codelets/cpu/pool.h"

#define MOST_UNITS   1000
#define MOST_THREADS 4
#define ASLEEP_US    2000 /* a hundred times the spin */

typedef struct job {
    int ran[MOST_UNITS];              /* plain: a lost update or a race would show in the count */
    _Atomic int inside[MOST_THREADS]; /* units that run under this number right now */
    _Atomic int clashes, strangers;
    int threads;
} job;

static void run_unit(void *arg, int unit, int thread)
{
    job *j = arg;
    if (thread < 0 || thread >= j->threads) {
        atomic_fetch_add(&j->strangers, 1);
        return;
    }
    if (atomic_fetch_add(&j->inside[thread], 1))
        atomic_fetch_add(&j->clashes, 1);
    j->ran[unit]++;
    atomic_fetch_sub(&j->inside[thread], 1);
}

static gpp__pool *pool_of(int threads)
{
    gpp__pool *pool;
    cr_assert_eq(gpp__pool_new(&pool, threads, NULL, NULL, NULL), GPP_OK);
    return pool;
}

static void expect_each_once(gpp__pool *pool, int units)
{
    static job j;
    memset(&j, 0, sizeof j);
    j.threads = gpp__pool_threads(pool);
    gpp__parallel(pool, units, run_unit, &j);
    for (int u = 0; u < MOST_UNITS; u++)
        cr_assert_eq(j.ran[u], u < units, "unit %d of %d on %d threads ran %d times", u, units,
                     j.threads, j.ran[u]);
    cr_expect_eq(j.clashes, 0, "two units at once under one thread number");
    cr_expect_eq(j.strangers, 0, "a thread number outside the pool");
}

Test(pool, every_unit_runs_once_for_any_number_of_units_and_threads)
{
    static const int units[] = {0, 1, 2, 3, 4, 5, 7, 16, 100, MOST_UNITS};
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        gpp__pool *pool = pool_of(threads);
        cr_expect_eq(gpp__pool_threads(pool), threads);
        for (int round = 0; round < 20; round++)
            for (size_t k = 0; k < sizeof units / sizeof *units; k++)
                expect_each_once(pool, units[k]);
        gpp__pool_free(pool);
    }
}

/* Who comes to a unit waits there until all have come to one; a machine that is busy may take its
 * time with that. */
typedef struct meeting {
    _Atomic int took[3];
    _Atomic bool given_up;
} meeting;

enum { PATIENCE_MS = 20000 };

static bool all_there(meeting *m)
{
    return m->took[0] > 0 && m->took[1] > 0 && m->took[2] > 0;
}

static void meet(void *arg, int unit, int thread)
{
    meeting *m = arg;
    (void)unit;
    atomic_fetch_add(&m->took[thread], 1);
    for (int ms = 0; !all_there(m) && !m->given_up; ms++) {
        usleep(1000);
        if (ms == PATIENCE_MS)
            m->given_up = true;
    }
}

Test(pool, threads_that_fell_asleep_are_woken_and_take_part)
{
    gpp__pool *pool = pool_of(3);
    for (int round = 0; round < 5; round++) {
        meeting m = {.given_up = false};
        usleep(ASLEEP_US);
        gpp__parallel(pool, 12, meet, &m);
        cr_expect_eq(m.took[0] + m.took[1] + m.took[2], 12);
        cr_assert(!m.given_up, "took %d, %d, %d units", m.took[0], m.took[1], m.took[2]);
    }
    gpp__pool_free(pool);
}

/* The caller spins as briefly as the others, so it has to be woken as well. */
static void slow_unit(void *arg, int unit, int thread)
{
    (void)unit;
    if (thread > 0)
        usleep(ASLEEP_US);
    atomic_fetch_add((_Atomic int *)arg, 1);
}

Test(pool, caller_waits_for_a_unit_that_takes_long)
{
    gpp__pool *pool = pool_of(2);
    for (int round = 0; round < 20; round++) {
        _Atomic int done = 0;
        gpp__parallel(pool, 4, slow_unit, &done);
        cr_expect_eq(done, 4);
    }
    gpp__pool_free(pool);
}

typedef struct order {
    int next;
    bool ascending, caller;
    pthread_t self;
} order;

static void note_order(void *arg, int unit, int thread)
{
    order *o = arg;
    o->ascending &= unit == o->next++;
    o->caller &= thread == 0 && pthread_equal(o->self, pthread_self());
}

Test(pool, one_thread_or_no_pool_runs_the_units_in_order_on_the_caller)
{
    gpp__pool *one = pool_of(1);
    gpp__pool *const pools[] = {one, NULL};
    for (int k = 0; k < 2; k++) {
        order o = {.ascending = true, .caller = true, .self = pthread_self()};
        gpp__parallel(pools[k], 50, note_order, &o);
        cr_expect_eq(o.next, 50);
        cr_expect(o.ascending);
        cr_expect(o.caller);
        cr_expect_eq(gpp__pool_threads(pools[k]), 1);
    }
    gpp__pool_free(one);
}

typedef struct starts {
    _Atomic int times[MOST_THREADS];
    _Atomic int signals; /* pool threads that would take one */
} starts;

static void note_start(void *arg, int thread)
{
    starts *s = arg;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGALRM))
        atomic_fetch_add(&s->signals, 1);
    atomic_fetch_add(&s->times[thread], 1);
}

Test(pool, each_thread_starts_once_under_its_number_and_takes_no_signals)
{
    starts s = {.signals = 0};
    gpp__pool *pool;
    cr_assert_eq(gpp__pool_new(&pool, MOST_THREADS, note_start, &s, NULL), GPP_OK);
    gpp__pool_free(pool);
    cr_expect_eq(s.times[0], 0, "the caller is not started");
    for (int t = 1; t < MOST_THREADS; t++)
        cr_expect_eq(s.times[t], 1, "thread %d started %d times", t, s.times[t]);
    cr_expect_eq(s.signals, 0);
}

Test(pool, fewer_than_one_thread_is_refused)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp__pool *pool = (gpp__pool *)&err;
    cr_expect_eq(gpp__pool_new(&pool, 0, NULL, NULL, &err), GPP_EINVAL);
    cr_expect_null(pool);
    cr_expect_str_eq(err.msg, "a pool of 0 threads; it needs 1 or more");
    gpp__pool_free(NULL);
}

Test(pool, shares_cover_everything_once_in_multiples_of_the_grain)
{
    static const int64_t counts[] = {0, 1, 5, 16, 17, 64, 100, 1000}, grains[] = {1, 4, 12, 16};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
            for (int units = 1; units <= 20; units++) {
                int64_t at = 0, begin, end;
                for (int u = 0; u < units; u++) {
                    gpp__share(counts[c], units, u, grains[g], &begin, &end);
                    cr_assert_eq(begin, at);
                    cr_assert(end >= begin);
                    cr_assert(begin % grains[g] == 0 || begin == counts[c]);
                    at = end;
                }
                cr_assert_eq(at, counts[c], "%d units of %lld", units, (long long)counts[c]);
            }
}
