/*
 * graph/trace/formats.c: the list of trace formats, and traces written by it. A new format is a
 * file of its own, a number in the public enum and a line here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#include "graph/trace/trace.h"

extern const gpp__trace_format gpp__trace_csv, gpp__trace_chrome, gpp__trace_paje, gpp__trace_svg;

/* By the numbers of the public enum, which callers have compiled in: they never change. */
static const gpp__trace_format *const formats[] = {
    [GPP_TRACE_CSV] = &gpp__trace_csv,
    [GPP_TRACE_CHROME] = &gpp__trace_chrome,
    [GPP_TRACE_PAJE] = &gpp__trace_paje,
    [GPP_TRACE_SVG] = &gpp__trace_svg,
};
enum { FORMATS = sizeof formats / sizeof *formats };

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

/* " .csv .json ..." of all formats. */
static const char *list_ends(char out[128])
{
    size_t at = 0;
    out[0] = '\0';
    for (int k = 0; k < FORMATS; k++)
        for (const char *const *end = formats[k]->ends; *end && at < 128; end++)
            at += (size_t)snprintf(out + at, 128 - at, " %s", *end);
    return out;
}

const char *gpp_trace_format_name(size_t k)
{
    return k < FORMATS ? formats[k]->name : NULL;
}

const char *gpp_trace_format_about(size_t k)
{
    return k < FORMATS ? formats[k]->about : NULL;
}

gpp_status gpp_trace_format_of(const char *path, gpp_trace_format *format, gpp_error *err)
{
    if (!path || !format)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", path ? "format" : "path");
    for (int k = 0; k < FORMATS; k++)
        for (const char *const *end = formats[k]->ends; *end; end++)
            if (ends_with(path, *end)) {
                *format = (gpp_trace_format)k;
                return GPP_OK;
            }
    char known[128];
    return gpp__fail(err, GPP_EINVAL, "%s: a trace ends in one of%s", path, list_ends(known));
}

static gpp_status check(const gpp_trace *trace, gpp_trace_format format, gpp_error *err)
{
    if ((unsigned)format >= FORMATS)
        return gpp__fail(err, GPP_EINVAL, "no trace format %d", (int)format);
    return gpp__trace_check(trace, NULL, err);
}

gpp_status gpp_trace_text(const gpp_trace *trace, gpp_trace_format format, char **text,
                          gpp_error *err)
{
    if (!text)
        return gpp__fail(err, GPP_EINVAL, "text is NULL");
    *text = NULL;
    gpp_status status = check(trace, format, err);
    if (status != GPP_OK)
        return status;
    size_t size;
    FILE *out = open_memstream(text, &size);
    if (out)
        status = formats[format]->write(trace, out, err);
    bool done = out && !ferror(out);
    if (out && fclose(out))
        done = false;
    if (done && status == GPP_OK)
        return GPP_OK;
    free(*text);
    *text = NULL;
    return status != GPP_OK ? status : gpp__fail(err, GPP_ENOMEM, "a trace as text");
}

gpp_status gpp_trace_write(const gpp_trace *trace, const char *path, gpp_trace_format format,
                           gpp_error *err)
{
    if (!path)
        return gpp__fail(err, GPP_EINVAL, "path is NULL");
    gpp_status status = check(trace, format, err);
    if (status != GPP_OK)
        return status;
    FILE *out = fopen(path, "w");
    if (!out)
        return gpp__fail(err, GPP_EIO, "%s: %s", path, strerror(errno));
    status = formats[format]->write(trace, out, err);
    bool done = !ferror(out);
    if (fclose(out))
        done = false;
    if (status == GPP_OK && !done)
        status = gpp__fail(err, GPP_EIO, "%s: %s", path, strerror(errno));
    return status;
}
