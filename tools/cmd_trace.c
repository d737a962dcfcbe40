/*
 * tools/cmd_trace.c: gridpipe trace: what a saved trace says, and the trace in other formats.
 */
#include <stdlib.h>

#include "tools/tools.h"

static const char description[] =
    "Summarises a trace that --trace of gridpipe run or gridpipe train has written as .csv: how\n"
    "long its steps took, what each device did, why it was idle, and how long each kind of task\n"
    "takes. Planned times (--profile of these commands) stand beside measured ones. Also writes\n"
    "pictures and files for other viewers.\n";

typedef struct settings {
    const char *chrome, *paje, *svg;
    bool json;
} settings;

static int convert(const gpp_trace *trace, const char *path, gpp_trace_format format)
{
    gpp_error err = GPP_ERROR_INIT;
    if (!path || gpp_trace_write(trace, path, format, &err) == GPP_OK)
        return -1;
    return tool_error(&err);
}

static int print(const gpp_trace *trace, bool json)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace_report *report;
    char *text = NULL;
    gpp_status status = gpp_trace_report_new(&report, trace, NULL, &err);
    if (status == GPP_OK)
        status = gpp_trace_report_text(report, json ? GPP_TRACE_REPORT_JSON : GPP_TRACE_REPORT_TEXT,
                                       &text, &err);
    if (status == GPP_OK)
        fputs(text, stdout);
    gpp_string_free(text);
    gpp_trace_report_free(report);
    return status == GPP_OK ? tool_flushed(TOOL_DONE) : tool_error(&err);
}

static int work(const settings *how, const char *path)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace *trace;
    if (gpp_trace_read(&trace, path, &err) != GPP_OK)
        return tool_error(&err);
    int status = convert(trace, how->chrome, GPP_TRACE_CHROME);
    if (status < 0)
        status = convert(trace, how->paje, GPP_TRACE_PAJE);
    if (status < 0)
        status = convert(trace, how->svg, GPP_TRACE_SVG);
    if (status < 0)
        status = print(trace, how->json);
    gpp_trace_free(trace);
    return status;
}

static int run(int argc, char *argv[])
{
    settings how = {.json = false};
    int first;
    const tool_option own[] = {
        {NULL, TOOL_TITLE, NULL, NULL, "Results:", 0, 0},
        {"json", TOOL_SWITCH, &how.json, NULL, "print the report as a JSON object", 0, 0},
        {"svg", TOOL_WORD, &how.svg, "FILE", "write a picture: devices by time, bytes over time", 0,
         0},
        {"chrome", TOOL_WORD, &how.chrome, "FILE",
         "write JSON for chrome://tracing, ui.perfetto.dev", 0, 0},
        {"paje", TOOL_WORD, &how.paje, "FILE", "write a file for ViTE and pajeng", 0, 0},
        {0},
    };
    int status = tool_parse(&tool_trace_command, (const tool_option *const[]){own, NULL}, argc,
                            argv, &first);
    if (status >= 0)
        return status;
    if (argc - first != 1)
        return tool_fail(TOOL_USAGE, "one trace is needed, got %d", argc - first);
    status = tool_writable("svg", how.svg);
    if (status < 0)
        status = tool_writable("chrome", how.chrome);
    if (status < 0)
        status = tool_writable("paje", how.paje);
    return status < 0 ? work(&how, argv[first]) : status;
}

const tool_command tool_trace_command = {"trace", "FILE [OPTION]...",
                                         "What steps did: report on a saved trace, draw it",
                                         description, run};
