/*
 * tools/trace.c: --trace of run and train: the first steps of a pipe into a file.
 */
#include <string.h>

#include "tools/tools.h"

void tool_trace_options(tool_trace *t, tool_option out[TOOL_TRACE_OPTIONS])
{
    const tool_option all[TOOL_TRACE_OPTIONS] = {
        {"trace", TOOL_WORD, &t->path, "FILE",
         "every task of the first steps: .csv, .json\n(Chrome), .paje or .svg", 0, 0},
        {"trace-steps", TOOL_WHOLE, &t->steps, "N", "how many of them (10)", 1, 1e6},
        {"watchdog", TOOL_REAL, &t->watchdog, "S", "fail when no task has ended for S seconds",
         0.001, 1e9},
    };
    memcpy(out, all, sizeof all);
}

int tool_trace_check(const tool_trace *t)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace_format format;
    if (t->steps && !t->path)
        return tool_fail(TOOL_USAGE, "--trace-steps needs --trace");
    if (t->path && gpp_trace_format_of(t->path, &format, &err) != GPP_OK)
        return tool_refused(&err);
    return tool_writable("trace", t->path);
}

gpp_status tool_trace_begin(const tool_trace *t, gpp_pipe *pipe, gpp_error *err)
{
    gpp_status status = t->watchdog > 0 ? gpp_pipe_set_watchdog(pipe, t->watchdog, err) : GPP_OK;
    if (status == GPP_OK && t->path)
        status = gpp_pipe_record(pipe, t->steps ? (int)t->steps : 10, err);
    return status;
}

gpp_status tool_trace_end(const tool_trace *t, const gpp_pipe *pipe, gpp_error *err)
{
    gpp_trace *trace = NULL;
    gpp_trace_format format;
    if (!t->path)
        return GPP_OK;
    gpp_status status = gpp_trace_format_of(t->path, &format, err);
    if (status == GPP_OK)
        status = gpp_pipe_trace(pipe, &trace, err);
    if (status == GPP_OK)
        status = gpp_trace_write(trace, t->path, format, err);
    gpp_trace_free(trace);
    return status;
}
