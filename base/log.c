/*
 * base/log.c: hands remarks to the application's sink.
 *
 * Invariant: the sink is called by one thread at a time, and the old sink is not called after
 * gpp_log_set has returned. Both hold because the lock is held during the call. The level is kept
 * in an atomic too, so that a silent library formats no text and takes no lock.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/status.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpp_log_sink current_sink;
static void *current_user;
static atomic_int loudest = -1; /* remarks of a higher level are dropped */

void gpp_log_set(gpp_log_sink sink, gpp_log_level level, void *user)
{
    pthread_mutex_lock(&lock);
    current_sink = sink;
    current_user = user;
    atomic_store(&loudest, sink ? (int)level : -1);
    pthread_mutex_unlock(&lock);
}

/* gridpipe/log.h promises the sink one line. */
static void join_lines(char *text)
{
    for (; *text; text++)
        if (*text == '\n' || *text == '\r')
            *text = ' ';
}

void gpp__log(gpp_log_level level, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&loudest, memory_order_relaxed))
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    join_lines(text);
    pthread_mutex_lock(&lock);
    /* The sink or the level may have changed before the lock was taken. */
    if (current_sink && (int)level <= atomic_load_explicit(&loudest, memory_order_relaxed))
        current_sink(level, text, current_user);
    pthread_mutex_unlock(&lock);
}
