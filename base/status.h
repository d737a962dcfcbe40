/*
 * include/private/status.h: what every folder may use: filling the error record, remarks, small
 * checked arithmetic. Not installed. Implemented in base/status.c and base/log.c.
 */
#ifndef GPP_PRIVATE_STATUS_H
#define GPP_PRIVATE_STATUS_H

#include <gridpipe/error.h>
#include <gridpipe/log.h>

/** Record a failure unless `err` already holds one (NULL is fine) and return `code`. */
gpp_status gpp__fail(gpp_error *err, gpp_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** The same, naming the layer to blame. */
gpp_status gpp__fail_layer(gpp_error *err, gpp_status code, int layer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

void gpp__log(gpp_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** a·b and a+b of sizes; false on overflow, then *out is untouched. */
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

/** Every buffer, and every part of one, starts on a cache line, which is also the widest vector. */
#define GPP__ALIGN ((size_t)64)
static inline size_t gpp__align(size_t bytes)
{
    return (bytes + GPP__ALIGN - 1) & ~(GPP__ALIGN - 1);
}

#endif
