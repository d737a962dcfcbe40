/*
 * base/status.h: what every folder may use: filling the error record, remarks, small checked
 * arithmetic. Implemented in base/status.c and base/log.c.
 */
#ifndef GPP_BASE_STATUS_H
#define GPP_BASE_STATUS_H

#include <gridpipe/error.h>
#include <gridpipe/log.h>

/** Return `code`, and record the failure unless `err` is NULL or already holds one. (GPP_API here
 * and in graph/run/comm.h: libgridpipe_mpi calls it.) */
GPP_API gpp_status gpp__fail(gpp_error *err, gpp_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** The same, naming the layer to blame. */
gpp_status gpp__fail_layer(gpp_error *err, gpp_status code, int layer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Hand a remark to the application's sink, if that wants remarks of this level. */
void gpp__log(gpp_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** a·b and a+b of sizes. False on overflow; *out is then untouched. */
static inline bool gpp__mul(size_t a, size_t b, size_t *out)
{
    size_t c;
    if (__builtin_mul_overflow(a, b, &c))
        return false;
    *out = c;
    return true;
}
static inline bool gpp__add(size_t a, size_t b, size_t *out)
{
    size_t c;
    if (__builtin_add_overflow(a, b, &c))
        return false;
    *out = c;
    return true;
}

/** Every buffer, and every part of one, starts on a cache line. The widest vector is as long. */
#define GPP__ALIGN ((size_t)64)
static inline size_t gpp__align(size_t bytes)
{
    return (bytes + GPP__ALIGN - 1) & ~(GPP__ALIGN - 1);
}

#endif
