/*
 * codelets/tasks/job.c: what the cells of a step share (cell.h): how many are left, which failure
 * is the one to report, waiting.
 */
#include <limits.h>
#include <time.h>

#include "codelets/move.h"
#include "codelets/tasks/internal.h"
#include "codelets/tasks/note.h"

double gpp__cell_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void gpp__job_init(gpp__job *job, atomic_uint_fast64_t *failed)
{
    *job = (gpp__job){.failed = failed};
    pthread_mutex_init(&job->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&job->done, &attr);
    pthread_condattr_destroy(&attr);
}

void gpp__job_release(gpp__job *job)
{
    pthread_mutex_destroy(&job->lock);
    pthread_cond_destroy(&job->done);
}

void gpp__job_begin(gpp__job *job, uint64_t run, size_t tasks)
{
    gpp_error_clear(&job->error);
    job->error_clock = INT_MAX;
    job->left = tasks;
    job->run = run;
    atomic_store(&job->updates, 0);
    atomic_store(&job->stop_clock, INT_MAX);
}

void gpp__job_finished(gpp__job *job)
{
    pthread_mutex_lock(&job->lock);
    if (--job->left == 0) {
        job->ended = gpp__cell_now();
        if (job->over)
            job->over(job->over_arg);
        pthread_cond_broadcast(&job->done);
    }
    pthread_mutex_unlock(&job->lock);
}

void gpp__cell_finished(void *cell)
{
    gpp__job *job = ((gpp__cell *)cell)->job;
    if (job->ended_here)
        atomic_fetch_add(job->ended_here, 1);
    gpp__job_finished(job);
}

static void fail_from(const gpp__job *job, uint64_t run)
{
    uint64_t failed = atomic_load(job->failed);
    while (run < failed && !atomic_compare_exchange_weak(job->failed, &failed, run))
        ;
}

static void fail_later(const gpp__job *job)
{
    fail_from(job, job->run);
}

void gpp__job_stop(gpp__job *job)
{
    atomic_store(&job->stop_clock, -1);
    fail_later(job);
}

bool gpp__job_begin_update(gpp__job *job, int clock)
{
    pthread_mutex_lock(&job->lock);
    bool may = clock <= atomic_load(&job->stop_clock) && job->run <= atomic_load(job->failed);
    if (may)
        atomic_fetch_add(&job->updates, 1);
    pthread_mutex_unlock(&job->lock);
    return may;
}

void gpp__job_cancel(gpp__job *job, const char *why, bool also_updating)
{
    pthread_mutex_lock(&job->lock);
    if (job->left && (also_updating || !atomic_load(&job->updates))) {
        gpp__fail(&job->error, GPP_ECANCELED, "%s", why);
        job->error_clock = -1; /* no failure is earlier */
        gpp__job_stop(job);
    }
    pthread_mutex_unlock(&job->lock);
}

gpp_status gpp__job_wait(gpp__job *job, gpp_error *err)
{
    pthread_mutex_lock(&job->lock);
    while (job->left)
        pthread_cond_wait(&job->done, &job->lock);
    pthread_mutex_unlock(&job->lock);
    if (job->error.code != GPP_OK && err && err->code == GPP_OK)
        *err = job->error;
    return job->error.code;
}

static struct timespec time_of(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timespec){whole, (long)(1e9 * (seconds - (double)whole))};
}

/* Only the last task wakes the waiting thread, so it checks now and then how many are left. */
bool gpp__job_wait_while_moving(gpp__job *job, double seconds)
{
    enum { CHECKS = 16 };
    pthread_mutex_lock(&job->lock);
    size_t left = job->left;
    uint64_t moves = job->moves ? job->moves(job->moves_arg) : 0, moved = moves;
    double since = gpp__cell_now(), now = since;
    while (job->left && now - since < seconds && moved != GPP__NEVER) {
        struct timespec until = time_of(now + seconds / CHECKS);
        pthread_cond_timedwait(&job->done, &job->lock, &until);
        now = gpp__cell_now();
        if (job->moves)
            moved = job->moves(job->moves_arg);
        if (job->left != left || moved != moves) {
            left = job->left;
            moves = moved;
            since = now;
        }
    }
    pthread_mutex_unlock(&job->lock);
    return left == 0;
}

static void note_failure(gpp__job *job, int clock, const gpp_error *error)
{
    pthread_mutex_lock(&job->lock);
    if (clock < job->error_clock ||
        (clock == job->error_clock && error->partition < job->error.partition)) {
        job->error = *error;
        job->error_clock = clock;
        atomic_store(&job->stop_clock, clock);
        fail_later(job);
    }
    pthread_mutex_unlock(&job->lock);
}

void gpp__cell_failed(gpp__cell *c, gpp_status status, gpp_error *error)
{
    if (error->code == GPP_OK)
        gpp__fail(error, status, "micro-batch %d of partition %d: %s", c->i, c->j,
                  gpp_status_text(status));
    error->micro_batch = c->i;
    error->partition = c->j;
    note_failure(c->job, c->clock, error);
}

/* --- notes ------------------------------------------------------------------------------------ */

/* A note may be older than this step: a failure that was reported does not count any more. */
static void hear(gpp__job *job, const gpp__note *note)
{
    if (!note || !note->failed || note->failed <= job->settled || note->failed > job->run)
        return;
    if (note->failed == job->run)
        note_failure(job, note->clock, &note->error);
    else
        fail_from(job, note->failed);
}

void gpp__cell_hear(const gpp__cell *c, void *buffers[])
{
    for (int a = 0; a < c->accesses; a++)
        if (c->access[a].mode == GPP__READ || c->access[a].mode == GPP__READWRITE)
            hear(c->job, c->device->mover ? gpp__handle_host_note(buffers[a])
                                          : gpp__handle_note(buffers[a]));
}

static void write_note(gpp__job *job, gpp__note *note)
{
    uint64_t failed = atomic_load(job->failed);
    note->failed = failed <= job->run ? failed : 0;
    if (note->failed != job->run)
        return;
    pthread_mutex_lock(&job->lock);
    note->clock = job->error_clock;
    note->error = job->error;
    pthread_mutex_unlock(&job->lock);
}

void gpp__cell_tell(const gpp__cell *c, void *buffers[], const gpp__run *run)
{
    for (int a = 0; a < c->accesses; a++) {
        bool writes = c->access[a].mode == GPP__WRITE || c->access[a].mode == GPP__READWRITE;
        gpp__note *note = writes ? gpp__handle_note(buffers[a]) : NULL;
        gpp__note ours = {.clock = 0};
        if (!note)
            continue;
        write_note(c->job, run->mover ? &ours : note);
        if (run->mover)
            gpp__copy_bytes(run, (char *)note, (const char *)&ours, sizeof ours);
    }
}
