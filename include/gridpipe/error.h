/* include/gridpipe/error.h: how every function reports failure: a code to branch on, a record to
 * read. */
#ifndef GRIDPIPE_ERROR_H
#define GRIDPIPE_ERROR_H

#include <gridpipe/base.h>

GPP_BEGIN_DECLS

/* One list makes the enum, the names and the texts. Values are stable. */
#define GPP_STATUS_LIST(X)                                                                         \
    X(GPP_OK, 0, "success")                                                                        \
    X(GPP_EINVAL, 1, "invalid argument")                                                           \
    X(GPP_ENOMEM, 2, "out of memory, or over a memory limit")                                      \
    X(GPP_ESYNTAX, 3, "a text or a file cannot be understood")                                     \
    X(GPP_ESHAPE, 4, "shapes or types do not fit")                                                 \
    X(GPP_ENOENT, 5, "no such layer, parameter, key or file")                                      \
    X(GPP_ESTATE, 6, "not possible in the present state")                                          \
    X(GPP_ENODEV, 7, "no such device, or too few of them")                                         \
    X(GPP_ERUNTIME, 8, "the task runtime refused or failed")                                       \
    X(GPP_EKERNEL, 9, "a compute kernel failed")                                                   \
    X(GPP_ENUMERIC, 10, "a value is not finite")                                                   \
    X(GPP_EIO, 11, "reading or writing failed")                                                    \
    X(GPP_EUNSUPPORTED, 12, "not supported by this build")                                         \
    X(GPP_ETIMEDOUT, 13, "nothing has moved for too long")                                         \
    X(GPP_ECANCELED, 14, "not done: something before it has failed, or the program is ending")

typedef enum gpp_status {
#define GPP_STATUS_ENUM(name, value, text) name = value,
    GPP_STATUS_LIST(GPP_STATUS_ENUM)
#undef GPP_STATUS_ENUM
} gpp_status;

/** The record of a failure. Start from GPP_ERROR_INIT; the first failure fills it and later ones
 * keep it. */
typedef struct gpp_error {
    gpp_status code;
    int layer, micro_batch, partition; /* -1 when none is to blame */
    char msg[1024]; /* what was found, what was expected, and where; truncated, always terminated */
} gpp_error;

#define GPP_ERROR_INIT                                                                             \
    {                                                                                              \
        GPP_OK, -1, -1, -1,                                                                        \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/** "GPP_EINVAL". Static storage; "GPP_E?" for a value outside the enum. */
GPP_API const char *gpp_status_name(gpp_status status);

/** "invalid argument". Static storage; "unknown status" for a value outside the enum. */
GPP_API const char *gpp_status_text(gpp_status status);

/** Empties `err` so that it can record the next failure. NULL is fine. */
GPP_API void gpp_error_clear(gpp_error *err);

GPP_END_DECLS
#endif
