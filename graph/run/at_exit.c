/*
 * graph/run/at_exit.c: ends the steps that run when the program ends.
 *
 * exit() runs the destructors of libraries that tasks use, and tensors in main's frame are gone
 * once main has returned, but StarPU's workers run until the process is gone. So a handler cancels
 * the steps that run and waits for the tasks that have begun. Handlers run in the reverse order of
 * their registration, and some libraries register their destructors when they are first used. So
 * our handler is registered at the first launch, after kernels have been prepared, and again when
 * the first pass, and when the first training step, has succeeded.
 *
 * Handlers of the application that run after ours may still wait for steps, read parameters and
 * free pipes: a cancelled step ends like any other failed step, with the parameters from before it.
 * A step whose updates have begun cannot be undone, so the handler waits for it instead. None of
 * this holds when an operator calls exit(): its own task never ends, so no step does.
 */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "graph/run/pipe.h"
#include "sched/starpu.h"

/* The program ends even if a task does not: the handler stops waiting for a pipe when no task of
 * its steps has ended for so many seconds, or for the seconds of its watchdog. */
#define PATIENCE 10.0

static struct {
    pthread_mutex_t lock;
    gpp_pipe *pipes; /* that have launched something, linked by at_exit.next */
    pid_t pid; /* the process of these pipes: a forked child has copies of them, but no workers */
    bool registered, registered_again, ending;
    pthread_t ended_by; /* the thread in exit() */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void cancel_steps(gpp_pipe *p, bool also_updating)
{
    for (int t = 0; t < GPP__FLIGHTS; t++)
        gpp__job_cancel(&p->flight[t].job, "the program is ending", also_updating);
}

/* A task of the step is running on another worker than `worker`. */
static bool runs_elsewhere(gpp__flight *f, int worker)
{
    if (gpp__job_wait_while_moving(&f->job, 0))
        return false; /* all tasks have ended, and the task graph may be gone */
    for (size_t k = 0; k < f->graph->step.plan->tasks; k++) {
        gpp__cell *c = &f->graph->cell[k];
        if (atomic_load(&c->begun) == f->job.run && atomic_load(&c->ended) != f->job.run &&
            c->worker != worker)
            return true;
    }
    return false;
}

/* An operator has called exit(): its own task will never end, nor will the tasks that wait for
 * it. */
static void wait_on_worker(gpp__flight *f, int worker, double seconds)
{
    double until = gpp__cell_now() + seconds;
    while (runs_elsewhere(f, worker) && gpp__cell_now() < until)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void wait_for_steps(gpp_pipe *p, int worker)
{
    double seconds = p->watchdog.seconds > 0 ? p->watchdog.seconds : PATIENCE;
    bool moves = !p->watchdog.stuck;
    for (int t = 0; t < GPP__FLIGHTS && moves; t++)
        if (worker >= 0)
            wait_on_worker(&p->flight[t], worker, seconds);
        else
            moves = gpp__job_wait_while_moving(&p->flight[t].job, seconds);
}

static void end_steps(void)
{
    if (process.pid != getpid())
        return;
    pthread_mutex_lock(&process.lock);
    if (process.ending && !process.registered_again) { /* a second registration of this handler */
        pthread_mutex_unlock(&process.lock);
        return;
    }
    int worker = process.pipes ? gpp__starpu_worker() : -1;
    process.ending = true;
    process.registered_again = false;
    process.ended_by = pthread_self();
    for (gpp_pipe *p = process.pipes; p; p = p->at_exit.next)
        cancel_steps(p, worker >= 0);
    for (gpp_pipe *p = process.pipes; p; p = p->at_exit.next)
        wait_for_steps(p, worker);
    pthread_mutex_unlock(&process.lock);
}

gpp_status gpp__exit_watch(gpp_pipe *p, gpp_error *err)
{
    if (p->at_exit.listed)
        return GPP_OK;
    pthread_mutex_lock(&process.lock);
    if (process.pid != getpid())
        process.pipes = NULL;
    process.pid = getpid();
    process.registered = process.registered || !atexit(end_steps);
    if (process.registered) {
        p->at_exit.listed = true;
        p->at_exit.next = process.pipes;
        process.pipes = p;
    }
    pthread_mutex_unlock(&process.lock);
    return p->at_exit.listed ? GPP_OK
                             : gpp__fail(err, GPP_ENOMEM, "a handler for the program's end");
}

void gpp__exit_forget(gpp_pipe *p)
{
    pthread_mutex_lock(&process.lock);
    gpp_pipe **at = &process.pipes;
    while (*at && *at != p)
        at = &(*at)->at_exit.next;
    if (*at)
        *at = p->at_exit.next;
    pthread_mutex_unlock(&process.lock);
}

void gpp__exit_begin_job(gpp__job *job, uint64_t run, size_t tasks)
{
    pthread_mutex_lock(&process.lock);
    gpp__job_begin(job, run, tasks);
    bool by_handler = process.ending && pthread_equal(process.ended_by, pthread_self());
    if (by_handler && !process.registered_again) /* end_steps has run, but this step needs it too */
        process.registered_again = !atexit(end_steps);
    else if (process.ending && !by_handler)
        gpp__job_cancel(job, "the program is ending", true);
    pthread_mutex_unlock(&process.lock);
}

void gpp__exit_note_success(bool trained)
{
    static atomic_uint noted;
    unsigned now = trained ? 3 : 1;
    if ((atomic_load_explicit(&noted, memory_order_relaxed) & now) == now ||
        (atomic_fetch_or(&noted, now) & now) == now)
        return;
    atexit(end_steps); /* if this fails, the first registration has to do */
}
