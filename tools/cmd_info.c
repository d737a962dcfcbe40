/*
 * tools/cmd_info.c: gridpipe info: the library, what it stands on, its limits, and the devices that
 * a pipe would get here.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tools.h"

#ifndef GRIDPIPE_STARPU
#define GRIDPIPE_STARPU NULL
#endif

enum { MOST_DEVICES = 64 };

static const char description[] =
    "Says which library this is, its limits, its layers, and the devices that a pipe gets on this\n"
    "machine when none are named: each its share of the cores that this process may use.\n";

typedef struct fact {
    const char *name, *what;
    int64_t value;
} fact;

static const fact limits[] = {
    {"max_rank", "dimensions of a tensor, the batch included", GPP_MAX_RANK},
    {"max_tensors", "tensors into or out of a layer, skips included", GPP_MAX_TENSORS},
    {"max_params", "parameters of a layer", GPP_MAX_PARAMS},
    {"max_batches", "mini-batches of different size side by side", GPP_MAX_BATCHES},
    {NULL, NULL, 0},
};

/* Counts the cores that this process may use. */
static int allowed_cores(void)
{
    cpu_set_t *set = CPU_ALLOC(65536);
    size_t size = CPU_ALLOC_SIZE(65536);
    int count = 0;
    if (set && sched_getaffinity(0, size, set) == 0)
        count = CPU_COUNT_S(size, set);
    if (set)
        CPU_FREE(set);
    return count;
}

/* Makes a pipe with a partition for each device, so that it names all devices. */
static gpp_status devices_pipe(int partitions, gpp_pipe **pipe, gpp_error *err)
{
    gpp_model *model = NULL;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.comm = tool_comm();
    *pipe = NULL;
    gpp_status status = gpp_model_new(&model, err);
    for (int j = 0; j < partitions && status == GPP_OK; j++)
        status = gpp_model_add(model, "identity", NULL, NULL, 0, err);
    if (status == GPP_OK)
        status = gpp_model_set_input(model, GPP_F32, 0, NULL, err);
    if (status == GPP_OK)
        status = gpp_pipe_new(pipe, model, &o, err);
    gpp_model_free(model);
    return status;
}

/* Lists of the library whose names are got by number. */
typedef const char *(*name_of)(size_t k);
static const struct {
    const char *what;
    name_of name;
} lists[] = {
    {"layers", gpp_op_name}, {"losses", gpp_loss_name}, {"optimizers", gpp_optimizer_name}};
enum { LISTS = sizeof lists / sizeof *lists };

static int count_names(name_of name)
{
    int count = 0;
    while (name((size_t)count))
        count++;
    return count;
}

static void print_json(const gpp_pipe_info *info, int cores, long machine)
{
    tool_json json = {stdout, false}, *j = &json;
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "gridpipe", gpp_version());
    tool_json_text(j, "starpu", GRIDPIPE_STARPU);
    tool_json_whole(j, "ranks", tool_ranks());
    tool_json_whole(j, "cores", machine);
    tool_json_whole(j, "cores_allowed", cores);
    tool_json_open(j, "devices", '[');
    for (int d = 0; d < info->devices; d++) {
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "name", info->device_name[d]);
        tool_json_whole(j, "threads", info->device_threads[d]);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
    tool_json_open(j, "limits", '{');
    for (const fact *f = limits; f->name; f++)
        tool_json_whole(j, f->name, f->value);
    tool_json_close(j, '}');
    for (int l = 0; l < LISTS; l++) {
        tool_json_open(j, lists[l].what, '[');
        for (size_t k = 0; lists[l].name(k); k++)
            tool_json_text(j, NULL, lists[l].name(k));
        tool_json_close(j, ']');
    }
    tool_json_close(j, '}');
    putchar('\n');
}

static void print_names(const char *what, name_of name)
{
    int column = printf("%-10s %d:", what, count_names(name));
    for (size_t k = 0; name(k); k++) {
        if (column + (int)strlen(name(k)) > 78)
            column = printf("\n          ") - 1;
        column += printf(" %s", name(k));
    }
    putchar('\n');
}

static void print_text(const gpp_pipe_info *info, int cores, long machine)
{
    const char *starpu = GRIDPIPE_STARPU;
    printf("gridpipe   %s\n", gpp_version());
    if (starpu)
        printf("StarPU     %s, which it was built with\n", starpu);
    if (tool_ranks() > 1)
        printf("ranks      %d\n", tool_ranks());
    printf("cores      %ld, of which this process may use %d\n", machine, cores);
    for (int d = 0; d < info->devices; d++)
        printf("%-9s  %s, %d thread%s\n", d ? "" : "devices", info->device_name[d],
               info->device_threads[d], info->device_threads[d] == 1 ? "" : "s");
    for (const fact *f = limits; f->name; f++)
        printf("%-9s  %lld %s\n", f == limits ? "limits" : "", (long long)f->value, f->what);
    for (int l = 0; l < LISTS; l++)
        print_names(lists[l].what, lists[l].name);
}

/* Makes a pipe with as many devices as this process has cores, or as many as the runtime has. */
static gpp_status ask(int cores, gpp_pipe **pipe, gpp_error *err)
{
    int count = cores < 1 ? 1 : cores > MOST_DEVICES ? MOST_DEVICES : cores;
    gpp_status status = tool_share(0, &count, sizeof count, err);
    count *= tool_ranks();
    if (status == GPP_OK)
        status = devices_pipe(count, pipe, err);
    while (status == GPP_ENODEV && count > 1) {
        gpp_error_clear(err);
        status = devices_pipe(--count, pipe, err);
    }
    return status;
}

static int run(int argc, char *argv[])
{
    bool json = false;
    int first;
    const tool_option own[] = {
        {NULL, TOOL_TITLE, NULL, NULL, "Form:", 0, 0},
        {"json", TOOL_SWITCH, &json, NULL, "print a JSON object", 0, 0},
        {0},
    };
    int status =
        tool_parse(&tool_info, (const tool_option *const[]){own, NULL}, argc, argv, &first);
    if (status >= 0)
        return status;
    if (first < argc)
        return tool_fail(TOOL_USAGE, "\"%s\" is no option", argv[first]);
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe *pipe;
    gpp_pipe_info info;
    int cores = allowed_cores();
    if (ask(cores, &pipe, &err) != GPP_OK)
        return tool_error(&err);
    gpp_pipe_get_info(pipe, &info);
    (json ? print_json : print_text)(&info, cores, sysconf(_SC_NPROCESSORS_ONLN));
    gpp_pipe_free(pipe);
    return tool_flushed(TOOL_DONE);
}

const tool_command tool_info = {
    "info",      "[OPTION]...", "The library, its limits and this machine's devices",
    description, run,           true};
