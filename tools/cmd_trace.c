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

/* The report is made from CSV: of the formats it is the one that need not be written again. */
enum { FIRST = GPP_TRACE_CSV + 1, MOST_FORMATS = 16 };

typedef struct settings {
    const char *path[MOST_FORMATS]; /* [format] where to write it; NULL: not wanted */
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
    int status = -1;
    for (int k = FIRST; k < MOST_FORMATS && status < 0; k++)
        status = convert(trace, how->path[k], (gpp_trace_format)k);
    if (status < 0)
        status = print(trace, how->json);
    gpp_trace_free(trace);
    return status;
}

/* An option for each format, named as it is. */
static void add_formats(settings *how, tool_option options[])
{
    for (int k = FIRST; k < MOST_FORMATS && gpp_trace_format_name((size_t)k); k++)
        *options++ = (tool_option){gpp_trace_format_name((size_t)k),
                                   TOOL_WORD,
                                   &how->path[k],
                                   "FILE",
                                   gpp_trace_format_about((size_t)k),
                                   0,
                                   0};
}

static int run(int argc, char *argv[])
{
    settings how = {.json = false};
    int first;
    tool_option own[MOST_FORMATS + 3] = {
        {NULL, TOOL_TITLE, NULL, NULL, "Results:", 0, 0},
        {"json", TOOL_SWITCH, &how.json, NULL, "print the report as a JSON object", 0, 0},
    };
    add_formats(&how, own + 2);
    int status = tool_parse(&tool_trace_command, (const tool_option *const[]){own, NULL}, argc,
                            argv, &first);
    if (status >= 0)
        return status;
    if (argc - first != 1)
        return tool_fail(TOOL_USAGE, "one trace is needed, got %d", argc - first);
    for (int k = FIRST; k < MOST_FORMATS && status < 0; k++)
        status = tool_writable(gpp_trace_format_name((size_t)k), how.path[k]);
    return status < 0 ? work(&how, argv[first]) : status;
}

const tool_command tool_trace_command = {"trace",
                                         "FILE [OPTION]...",
                                         "What steps did: report on a saved trace, draw it",
                                         description,
                                         run,
                                         false};
