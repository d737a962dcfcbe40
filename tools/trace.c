/*
 * tools/trace.c: --trace of run and train: records the first steps of a pipe in a file. With
 * profiles, the file has what was predicted for these steps as well.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/plan.h"

void tool_trace_options(tool_trace *t, tool_option out[TOOL_TRACE_OPTIONS])
{
    const tool_option all[TOOL_TRACE_OPTIONS] = {
        {"trace", TOOL_WORD, &t->path, "FILE",
         "record every task of the first steps: .csv, .json\n"
         "(Chrome), .paje or .svg",
         0, 0},
        {"trace-steps", TOOL_WHOLE, &t->steps, "N", "number of steps to record (10)", 1, 1e6},
        {"profile", TOOL_WORDS, &t->profile, "FILE",
         "profile of this model, from gridpipe profile, or a\n"
         "folder of them; repeat it for more. The trace then\n"
         "shows predicted times beside measured ones",
         0, TOOL_WORDS_MOST},
        {"watchdog", TOOL_REAL, &t->watchdog, "S", "fail when no task has ended for S seconds",
         0.001, 1e9},
    };
    memcpy(out, all, sizeof all);
}

/* --- what is planned -------------------------------------------------------------------------- */

static int read_profiles(tool_trace *t)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_status status = GPP_OK;
    if (!t->profile.count)
        return -1;
    t->read = calloc(1, sizeof *t->read);
    if (!t->read)
        return tool_fail(TOOL_FAILED, "out of memory");
    for (int k = 0; k < t->profile.count && status == GPP_OK; k++)
        status = plan_profiles_read(t->read, t->profile.word[k], &err);
    if (status != GPP_OK)
        return tool_error(&err);
    if (!t->read->count)
        return tool_fail(TOOL_FAILED, "--profile: no file in %s ends in .profile",
                         t->profile.word[0]);
    return -1;
}

/* Completes the options by the pipe's own cut and devices, so that the forecast is of this pipe. */
static gpp_status fix(const gpp_pipe *pipe, gpp_pipe_options *o, const char *device[],
                      gpp_error *err)
{
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    int all = info.replicas * info.partitions;
    if (all > TOOL_PARTITIONS)
        return tool_note(err, GPP_EINVAL, "--profile: %d partitions, at most %d can be planned",
                         all, TOOL_PARTITIONS);
    for (int j = 0; j < all; j++)
        device[j] = info.device_name[info.device_of[j]];
    o->partitions = info.partitions;
    o->device_count = all;
    o->balance = info.balance;
    o->devices = device;
    return GPP_OK;
}

/* The forecast is made before the first step: it needs time and memory that the steps should not
 * see. */
static gpp_status predict(tool_trace *t, const gpp_pipe *pipe, const gpp_model *model,
                          gpp_pipe_options o, gpp_error *err)
{
    const char *device[TOOL_PARTITIONS];
    gpp_forecast_options how = GPP_FORECAST_OPTIONS_INIT;
    how.profile = (const gpp_profile *const *)t->read->profile;
    how.profiles = t->read->count;
    gpp_status status = fix(pipe, &o, device, err);
    return status == GPP_OK ? gpp_forecast_new(&t->forecast, model, &o, &how, err) : status;
}

/* --- before, and after ------------------------------------------------------------------------ */

/* All that can be wrong with these options is found before the training starts. */
int tool_trace_check(tool_trace *t)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_trace_format format = GPP_TRACE_CSV;
    if (t->steps && !t->path)
        return tool_fail(TOOL_USAGE, "--trace-steps needs --trace");
    if (t->profile.count && !t->path)
        return tool_fail(TOOL_USAGE, "--profile needs --trace, into which goes what it predicts");
    if (t->path && gpp_trace_format_of(t->path, &format, &err) != GPP_OK)
        return tool_refused(&err);
    if (t->profile.count && format != GPP_TRACE_CSV && format != GPP_TRACE_CHROME)
        return tool_fail(TOOL_USAGE,
                         "--profile: only .csv and .json keep what was planned, --trace is %s",
                         t->path);
    int status = read_profiles(t);
    return status < 0 ? tool_writable("trace", t->path) : status;
}

gpp_status tool_trace_begin(tool_trace *t, gpp_pipe *pipe, const gpp_model *model,
                            const gpp_pipe_options *options, gpp_error *err)
{
    gpp_status status = GPP_OK;
    if (t && t->watchdog > 0)
        status = gpp_pipe_set_watchdog(pipe, t->watchdog, err);
    if (status == GPP_OK && t && t->read)
        status = predict(t, pipe, model, *options, err);
    if (status == GPP_OK && t && t->path)
        status = gpp_pipe_record(pipe, t->steps ? (int)t->steps : 10, err);
    return status;
}

gpp_status tool_trace_end(const tool_trace *t, const gpp_pipe *pipe, gpp_error *err)
{
    gpp_trace *trace = NULL;
    gpp_trace_format format;
    if (!t || !t->path)
        return GPP_OK;
    gpp_status status = gpp_trace_format_of(t->path, &format, err);
    if (status == GPP_OK)
        status = gpp_pipe_trace(pipe, &trace, err);
    if (status == GPP_OK && t->forecast)
        status = gpp_trace_set_forecast(trace, t->forecast, err);
    if (status == GPP_OK && tool_rank() == 0)
        status = gpp_trace_write(trace, t->path, format, err);
    gpp_trace_free(trace);
    return status;
}

void tool_trace_release(tool_trace *t)
{
    if (t->read)
        plan_profiles_release(t->read);
    free(t->read);
    gpp_forecast_free(t->forecast);
    t->read = NULL;
    t->forecast = NULL;
}
