/*
 * tools/cmd_model.c: gridpipe model: what is in a model text (layers, shapes, parameters, work),
 * and how a pipe would cut and run it (partitions, memory, schedule, task graph).
 */
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

static const char description[] =
    "Lists the layers of a model: operator, shape of one output sample, parameters, millions of\n"
    "floating-point operations of a forward of one sample. With options of a pipe, or one of\n"
    "--grid, --dot and --plan, the model is cut and the training step of --batch rows is planned:\n"
    "the memory of each device, and the picture.\n";

typedef struct settings {
    const char *model, *file, *loss, *optimizer;
    tool_words input;
    bool grid, dot, plan, memory, json;
    int64_t batch;
    tool_pipe_args pipe_args;
    tool_pipe pipe;
} settings;

static gpp_status make_pipe(const settings *how, const gpp_model *model, gpp_pipe **pipe,
                            gpp_error *err)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    tool_pipe_apply(&how->pipe, &o);
    o.loss = how->loss;
    o.optimizer = how->optimizer;
    o.batch = how->batch;
    return gpp_pipe_new(pipe, model, &o, err);
}

/* --- layers ----------------------------------------------------------------------------------- */

/* Writes a shape as "3x32x32", with "+1" where there is another output. */
static void write_dims(const gpp_layer_info *info, char text[80])
{
    size_t at = 0;
    text[0] = '\0';
    for (int d = 0; d < info->rank && at < 80; d++)
        at += (size_t)snprintf(text + at, 80 - at, d ? "x%lld" : "%lld", (long long)info->dim[d]);
    if (!info->rank)
        snprintf(text, 80, "1");
    if (info->outputs > 1 && at < 80)
        snprintf(text + at, 80 - at, " +%d", info->outputs - 1);
}

static void print_layers(const gpp_model *model, const gpp_pipe *pipe)
{
    int64_t parameters = 0;
    double flops = 0;
    printf("%5s  %-28s %-20s %-18s %12s %12s%s\n", "layer", "label", "operator", "output",
           "parameters", "MFLOP", pipe ? "  partition" : "");
    for (int k = 0; k < gpp_model_layers(model); k++) {
        gpp_layer_info info;
        char dims[80];
        gpp_model_layer(model, k, &info, NULL);
        write_dims(&info, dims);
        printf("%5d  %-28s %-20s %-18s %12lld %12.4f", k, info.label, info.op, dims,
               (long long)info.parameters, info.flops / 1e6);
        if (pipe)
            printf("  %9d", gpp_pipe_partition_of(pipe, k));
        putchar('\n');
        parameters += info.parameters;
        flops += info.flops;
    }
    printf("%5s  %-28s %-20s %-18s %12lld %12.4f\n", "", "total", "", "", (long long)parameters,
           flops / 1e6);
}

static void json_layers(tool_json *j, const gpp_model *model, const gpp_pipe *pipe)
{
    tool_json_open(j, "layers", '[');
    for (int k = 0; k < gpp_model_layers(model); k++) {
        gpp_layer_info info;
        gpp_model_layer(model, k, &info, NULL);
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "label", info.label);
        tool_json_text(j, "operator", info.op);
        tool_json_open(j, "output", '[');
        for (int d = 0; d < info.rank; d++)
            tool_json_whole(j, NULL, info.dim[d]);
        tool_json_close(j, ']');
        tool_json_whole(j, "outputs", info.outputs);
        tool_json_whole(j, "operators", info.operators);
        tool_json_whole(j, "parameters", info.parameters);
        tool_json_real(j, "flops", info.flops);
        if (pipe)
            tool_json_whole(j, "partition", gpp_pipe_partition_of(pipe, k));
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

/* --- the pipe --------------------------------------------------------------------------------- */

static void print_pipe(const settings *how, const gpp_pipe *pipe)
{
    char text[8192];
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    tool_pipe_describe(pipe, &how->pipe, text, sizeof text);
    printf("\npipe  %s\n", text);
    for (int d = 0; d < info.devices; d++) {
        size_t planned = 0;
        gpp_pipe_memory(pipe, d, &planned, NULL, NULL);
        char bytes[TOOL_AMOUNT];
        printf("device %d  %s, %d thread%s: %s planned for a step of %lld rows\n", d,
               info.device_name[d], info.device_threads[d], info.device_threads[d] == 1 ? "" : "s",
               tool_bytes_text(bytes, planned), (long long)how->batch);
    }
}

static void json_pipe(tool_json *j, const settings *how, const gpp_pipe *pipe)
{
    char text[8192];
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    tool_pipe_describe(pipe, &how->pipe, text, sizeof text);
    tool_json_text(j, "pipe", text);
    tool_json_whole(j, "batch", how->batch);
    tool_json_open(j, "devices", '[');
    for (int d = 0; d < info.devices; d++) {
        size_t planned = 0;
        gpp_pipe_memory(pipe, d, &planned, NULL, NULL);
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "name", info.device_name[d]);
        tool_json_whole(j, "threads", info.device_threads[d]);
        tool_json_whole(j, "planned_bytes", (int64_t)planned);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

/* The options for pictures exclude each other, so there is one to draw. */
static gpp_status print_picture(const settings *how, gpp_pipe *pipe, gpp_error *err)
{
    char *text;
    gpp_picture picture = how->dot    ? GPP_PICTURE_DOT
                          : how->plan ? GPP_PICTURE_TEXT
                                      : GPP_PICTURE_GRID;
    gpp_status status = gpp_pipe_draw(pipe, picture, how->batch, &text, err);
    if (status == GPP_OK)
        fputs(text, stdout);
    gpp_string_free(text);
    return status;
}

/* --- the command ------------------------------------------------------------------------------ */

/* The table of layers needs no pipe, and making one starts the runtime. */
static bool wants_pipe(const settings *how)
{
    bool wants = how->pipe_args.text != NULL || how->memory || how->grid || how->dot || how->plan;
    for (int k = 0; k < TOOL_PIPE_KEYS; k++)
        wants = wants || how->pipe_args.word[k];
    return wants;
}

static void print_json(const settings *how, const gpp_model *model, const gpp_pipe *pipe)
{
    tool_json json = {stdout, false}, *j = &json;
    tool_json_open(j, NULL, '{');
    json_layers(j, model, pipe);
    if (pipe)
        json_pipe(j, how, pipe);
    tool_json_close(j, '}');
    putchar('\n');
}

/* A picture goes to another program, so nothing else is written beside it. */
static int report(const settings *how, const gpp_model *model, gpp_pipe *pipe)
{
    gpp_error err = GPP_ERROR_INIT;
    bool picture = how->dot || how->grid || how->plan;
    if (picture && print_picture(how, pipe, &err) != GPP_OK)
        return tool_error(&err);
    if (how->json && !picture)
        print_json(how, model, pipe);
    if (!how->json && !picture)
        print_layers(model, pipe);
    if (!how->json && !picture && pipe)
        print_pipe(how, pipe);
    return tool_flushed(TOOL_DONE);
}

static int work(const settings *how, const char *text)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = NULL;
    gpp_pipe *pipe = NULL;
    gpp_status made = tool_model_of(&model, text, &how->input, &err);
    if (made == GPP_OK && wants_pipe(how))
        made = make_pipe(how, model, &pipe, &err);
    int status = made == GPP_OK ? report(how, model, pipe) : tool_refused(&err);
    gpp_pipe_free(pipe);
    gpp_model_free(model);
    return status;
}

static int parse(settings *how, int argc, char *argv[])
{
    int first;
    const tool_option own[] = {
        {NULL, TOOL_TITLE, NULL, NULL, "What:", 0, 0},
        {"model", TOOL_WORD, &how->model, "TEXT", "layers, such as \"linear out=8; relu\"", 0, 0},
        {"model-file", TOOL_WORD, &how->file, "FILE", "file with that text, - for stdin", 0, 0},
        {"input", TOOL_WORDS, &how->input, "SHAPE",
         "shape of one sample, such as 3,32,32 or i64:128;\n"
         "repeat it for several inputs",
         0, 0},
        {"batch", TOOL_WHOLE, &how->batch, "B", "rows of the mini-batch that is planned (32)", 0,
         1e12},
        {"loss", TOOL_WORD, &how->loss, "SPEC",
         "loss of the step; without, it begins with gradients", 0, 0},
        {"optimizer", TOOL_WORD, &how->optimizer, "SPEC",
         "optimizer of the step; without, there is no update", 0, 0},
        {NULL, TOOL_TITLE, NULL, NULL, "What to show instead of the table:", 0, 0},
        {"grid", TOOL_SWITCH, &how->grid, NULL, "the schedule: devices down, time across", 0, 0},
        {"dot", TOOL_SWITCH, &how->dot, NULL, "the task graph, for Graphviz", 0, 0},
        {"plan", TOOL_SWITCH, &how->plan, NULL, "tasks and buffers, one a line", 0, 0},
        {"memory", TOOL_SWITCH, &how->memory, NULL,
         "also the memory of one device, below the table", 0, 0},
        {"json", TOOL_SWITCH, &how->json, NULL, "the table as a JSON object", 0, 0},
        {0},
    };
    tool_option pipe[TOOL_PIPE_OPTIONS];
    tool_pipe_options(&how->pipe_args, pipe);
    int status =
        tool_parse(&tool_model, (const tool_option *const[]){own, pipe, NULL}, argc, argv, &first);
    if (status >= 0)
        return status;
    if (first < argc)
        return tool_fail(TOOL_USAGE, "\"%s\" is no option; a text is given by --model",
                         argv[first]);
    if (how->grid + how->dot + how->plan > 1)
        return tool_fail(TOOL_USAGE, "--grid, --dot and --plan exclude each other");
    if (!how->input.count)
        return tool_fail(TOOL_USAGE, "the shape of a sample is needed: --input");
    return -1;
}

static int run(int argc, char *argv[])
{
    settings how = {.batch = 32};
    gpp_error err = GPP_ERROR_INIT;
    char *text = NULL;
    int status = parse(&how, argc, argv);
    if (status < 0 && tool_pipe_take(&how.pipe, &how.pipe_args, &err) != GPP_OK)
        status = tool_refused(&err);
    if (status < 0)
        status = tool_model_text(how.model, how.file, false, &text);
    if (status < 0)
        status = work(&how, text);
    tool_pipe_release(&how.pipe);
    free(text);
    return status;
}

const tool_command tool_model = {"model",
                                 "(--model TEXT | --model-file FILE) --input SHAPE [OPTION]...",
                                 "Layers, shapes, parameters, work, memory, schedule",
                                 description,
                                 run,
                                 false};
