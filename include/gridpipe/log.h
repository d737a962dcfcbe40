/* include/gridpipe/log.h: where the library's remarks go. The library itself never prints. */
#ifndef GRIDPIPE_LOG_H
#define GRIDPIPE_LOG_H

#include <gridpipe/base.h>

GPP_BEGIN_DECLS

typedef enum gpp_log_level {
    GPP_LOG_ERROR = 0,
    GPP_LOG_WARN = 1,
    GPP_LOG_INFO = 2,
    GPP_LOG_DEBUG = 3
} gpp_log_level;

/**
 * Receives one remark. `text` is one line without a newline and lives only during the call. Called
 * from any thread, one call at a time; it must not call back into the library.
 */
typedef void (*gpp_log_sink)(gpp_log_level level, const char *text, void *user);

/**
 * Send remarks of `level` and more serious ones to `sink`; NULL silences the library, which is how
 * it starts. The only global state of the library. Thread-safe.
 */
GPP_API void gpp_log_set(gpp_log_sink sink, gpp_log_level level, void *user);

GPP_END_DECLS
#endif
