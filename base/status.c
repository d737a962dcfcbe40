/*
 * base/status.c: the error record, the names of status codes, version and data types.
 *
 * Invariant: a record keeps the first failure. Callers that unwind may report a failure of their
 * own; the record still names the cause.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/status.h"

static gpp_status record(gpp_error *err, gpp_status code, int layer, const char *format,
                         va_list args)
{
    assert(code != GPP_OK);
    if (!err || err->code != GPP_OK)
        return code;
    err->code = code;
    err->layer = layer;
    err->micro_batch = err->partition = -1;
    vsnprintf(err->msg, sizeof err->msg, format, args);
    return code;
}

gpp_status gpp__fail(gpp_error *err, gpp_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record(err, code, -1, format, args);
    va_end(args);
    return code;
}

gpp_status gpp__fail_layer(gpp_error *err, gpp_status code, int layer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record(err, code, layer, format, args);
    va_end(args);
    return code;
}

const char *gpp_status_name(gpp_status status)
{
    switch (status) {
#define STATUS_NAME(name, value, text)                                                             \
    case name:                                                                                     \
        return #name;
        GPP_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "GPP_E?";
}

const char *gpp_status_text(gpp_status status)
{
    switch (status) {
#define STATUS_TEXT(name, value, text)                                                             \
    case name:                                                                                     \
        return text;
        GPP_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

void gpp_error_clear(gpp_error *err)
{
    if (err)
        *err = (gpp_error)GPP_ERROR_INIT;
}

const char *gpp_version(void)
{
    return GPP_VERSION_STRING;
}

size_t gpp_dtype_size(gpp_dtype dtype)
{
    switch (dtype) {
    case GPP_F32:
        return sizeof(float);
    case GPP_I64:
        return sizeof(int64_t);
    }
    return 0;
}
