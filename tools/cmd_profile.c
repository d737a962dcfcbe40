/*
 * tools/cmd_profile.c: gridpipe profile: what each layer of a model costs on a device for one
 * micro-batch. Times are measured and bytes are counted. The result is a table, and a file that
 * gridpipe plan reads. With --network, what links between ranks cost (profile_network.c).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/profile.h"

static const char description[] =
    "Runs a model, forwards and backwards, on a micro-batch of --rows rows, and lists what each\n"
    "layer takes: median times in microseconds; half the width of the 95 % interval of their\n"
    "sum; and bytes of parameters, of what is kept for the backward, of what goes to the next\n"
    "layer, and of skips on their way there. Nothing else should run on the device meanwhile.\n"
    "\"gridpipe plan --profile FILE\" predicts steps from what --save has written.\n";

typedef struct settings {
    const char *model, *file, *device, *save, *load;
    tool_words input, beside;
    int64_t rows;              /* 0: not given */
    double timeout, precision; /* -1: not given */
    bool sizes, operators, json, any_algorithm, network;
    const char *math; /* NULL: not given */
} settings;

static const char *const math_names[] = {"f32", "tf32", "bf16"}; /* by gpp_math */

enum { WIDTH = 100, MOST_LABEL = 28, TIMES = 3 };

/* --- sums ------------------------------------------------------------------------------------- */

/* The cost of a layer, or of all layers. */
typedef struct cost {
    double us[TIMES]; /* forward, recompute, backward */
    size_t parameters, activations;
} cost;

static cost cost_of(const gpp_layer_profile *l)
{
    return (cost){.us = {l->forward_us, l->recompute_us, l->backward_us},
                  .parameters = l->parameter_bytes,
                  .activations = l->activation_bytes};
}

static cost cost_of_all(const gpp_profile *p)
{
    cost all = {{0}, 0, 0};
    for (int l = 0; l < p->layers; l++) {
        cost one = cost_of(&p->layer[l]);
        for (int t = 0; t < TIMES; t++)
            all.us[t] += one.us[t];
        all.parameters += one.parameters;
        all.activations += one.activations;
    }
    return all;
}

static double sum_of(const cost *c)
{
    return c->us[0] + c->us[1] + c->us[2];
}

/* --- the table -------------------------------------------------------------------------------- */

typedef struct table {
    bool times, skips;
    int label; /* width of the column of labels */
    double total_us;
} table;

/* Labels get the width that is left of a line, and columns without any value are left out. */
static table layout(const gpp_profile *p)
{
    cost all = cost_of_all(p);
    table t = {.times = p->threads > 0, .label = 5, .total_us = sum_of(&all)};
    for (int l = 0; l < p->layers; l++) {
        int length = (int)strlen(p->layer[l].label);
        t.label = length > t.label ? length : t.label;
        t.skips = t.skips || p->layer[l].skip_bytes;
    }
    int others = 7 + 27 + (t.times ? 43 : 0) + (t.skips ? 9 : 0);
    int room = WIDTH - others < MOST_LABEL ? WIDTH - others : MOST_LABEL;
    t.label = t.label < room ? t.label : room;
    return t;
}

static void print_heading(const table *t)
{
    printf("layer  %-*s", t->label, "label");
    if (t->times)
        printf("%9s%10s%9s%7s", "forward", "recompute", "backward", "error");
    printf("%9s%9s%9s", "params", "kept", "boundary");
    if (t->skips)
        printf("%9s", "skips");
    if (t->times)
        printf("%8s", "share");
    putchar('\n');
}

static void print_times(const double us[TIMES])
{
    char text[TIMES][TOOL_AMOUNT];
    for (int k = 0; k < TIMES; k++)
        tool_time_text(text[k], us[k]);
    printf("%9s%10s%9s", text[0], text[1], text[2]);
}

/* A label that is too long loses its middle: its ends tell layers apart. */
static void print_label(const table *t, const char *label)
{
    int length = (int)strlen(label), behind = t->label / 2;
    if (length <= t->label)
        printf("%-*s", t->label, label);
    else
        printf("%.*s~%s", t->label - behind - 1, label, label + length - behind);
}

static void print_layer(const table *t, int index, const gpp_layer_profile *l)
{
    char text[5][TOOL_AMOUNT];
    cost c = cost_of(l);
    printf("%5d  ", index);
    print_label(t, l->label);
    if (t->times) {
        print_times(c.us);
        printf("%7s", tool_time_text(text[0], l->error_us));
    }
    printf("%9s%9s%9s", tool_bytes_text(text[1], l->parameter_bytes),
           tool_bytes_text(text[2], l->activation_bytes),
           tool_bytes_text(text[3], l->output_bytes));
    if (t->skips)
        printf("%9s", tool_bytes_text(text[4], l->skip_bytes));
    if (t->times)
        printf("%6.1f %%", t->total_us > 0 ? 100 * sum_of(&c) / t->total_us : 0);
    putchar('\n');
}

static void print_operators(const table *t, const gpp_profile *p, int layer)
{
    for (int k = 0; k < p->operators; k++) {
        const gpp_operator_profile *op = &p->op[k];
        if (op->layer != layer)
            continue;
        printf("%7s", "");
        printf(" %-*.*s", t->label - 1, t->label - 1, op->name);
        print_times((double[TIMES]){op->forward_us, op->keep_us, op->backward_us});
        putchar('\n');
    }
}

static void print_total(const table *t, const gpp_profile *p)
{
    char text[2][TOOL_AMOUNT];
    cost all = cost_of_all(p);
    printf("%5s  %-*s", "", t->label, "total");
    if (t->times) {
        print_times(all.us);
        printf("%7s", "");
    }
    printf("%9s%9s\n", tool_bytes_text(text[0], all.parameters),
           tool_bytes_text(text[1], all.activations));
}

static void print_origin(const gpp_profile *p)
{
    printf("%lld", (long long)p->rows[0]);
    for (int b = 1; b < GPP_MAX_BATCHES && p->rows[b]; b++)
        printf(", %lld", (long long)p->rows[b]);
    printf(" row%s", p->rows[0] == 1 && !p->rows[1] ? "" : "s");
    if (!p->threads) {
        puts("; bytes as they are counted, nothing was measured\n");
        return;
    }
    if (p->gpu[0])
        printf(" on %s (%s, %s%s)", p->device, p->gpu, math_names[p->cuda_math],
               p->cuda_any_algorithm ? ", any algorithm" : "");
    else
        printf(" on %s (%d core%s)", p->device, p->threads, p->threads == 1 ? "" : "s");
    if (p->beside)
        printf(" beside %d other%s", p->beside, p->beside == 1 ? "" : "s");
    printf("; medians of %d sweep%s in microseconds%s\n", p->sweeps, p->sweeps == 1 ? "" : "s",
           p->precise ? "" : ",\nnot all of them as precise as was asked for");
    if (p->bytes_per_us > 0)
        printf("memory is read and written at %.1f GB/s\n", p->bytes_per_us / 1000);
    if (p->link_bytes_per_us > 0)
        printf("the host's memory is reached at %.1f GB/s\n", p->link_bytes_per_us / 1000);
    putchar('\n');
}

static void print_text(const settings *how, const gpp_profile *p)
{
    table t = layout(p);
    print_origin(p);
    print_heading(&t);
    for (int l = 0; l < p->layers; l++) {
        print_layer(&t, l, &p->layer[l]);
        if (how->operators)
            print_operators(&t, p, l);
    }
    print_total(&t, p);
}

/* --- JSON ------------------------------------------------------------------------------------- */

/* A time that was not measured is null. */
static void json_us(tool_json *j, const gpp_profile *p, const char *key, double us)
{
    tool_json_real(j, key, p->threads ? us : NAN);
}

static void json_layer(tool_json *j, const gpp_profile *p, const gpp_layer_profile *l)
{
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "label", l->label);
    json_us(j, p, "forward_us", l->forward_us);
    json_us(j, p, "recompute_us", l->recompute_us);
    json_us(j, p, "recompute_last_us", l->recompute_last_us);
    json_us(j, p, "backward_us", l->backward_us);
    json_us(j, p, "error_us", l->error_us);
    tool_json_whole(j, "parameter_bytes", (int64_t)l->parameter_bytes);
    tool_json_whole(j, "activation_bytes", (int64_t)l->activation_bytes);
    tool_json_whole(j, "output_bytes", (int64_t)l->output_bytes);
    tool_json_whole(j, "skip_bytes", (int64_t)l->skip_bytes);
    tool_json_close(j, '}');
}

static void json_operators(tool_json *j, const gpp_profile *p)
{
    tool_json_open(j, "operators", '[');
    for (int k = 0; k < p->operators; k++) {
        tool_json_open(j, NULL, '{');
        tool_json_whole(j, "layer", p->op[k].layer);
        tool_json_text(j, "name", p->op[k].name);
        json_us(j, p, "forward_us", p->op[k].forward_us);
        json_us(j, p, "keep_us", p->op[k].keep_us);
        json_us(j, p, "backward_us", p->op[k].backward_us);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

static void print_json(const gpp_profile *p)
{
    tool_json json = {stdout, false}, *j = &json;
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "device", p->threads ? p->device : NULL);
    tool_json_text(j, "gpu", p->gpu[0] ? p->gpu : NULL);
    tool_json_text(j, "cuda_math", p->gpu[0] ? math_names[p->cuda_math] : NULL);
    tool_json_flag(j, "cuda_any_algorithm", p->cuda_any_algorithm);
    tool_json_whole(j, "threads", p->threads);
    tool_json_whole(j, "beside", p->beside);
    tool_json_open(j, "rows", '[');
    for (int b = 0; b < GPP_MAX_BATCHES && p->rows[b]; b++)
        tool_json_whole(j, NULL, p->rows[b]);
    tool_json_close(j, ']');
    tool_json_whole(j, "sweeps", p->sweeps);
    tool_json_flag(j, "precise", p->precise);
    tool_json_real(j, "bytes_per_us", p->bytes_per_us > 0 ? p->bytes_per_us : NAN);
    tool_json_real(j, "link_bytes_per_us", p->link_bytes_per_us > 0 ? p->link_bytes_per_us : NAN);
    tool_json_open(j, "layers", '[');
    for (int l = 0; l < p->layers; l++)
        json_layer(j, p, &p->layer[l]);
    tool_json_close(j, ']');
    json_operators(j, p);
    tool_json_close(j, '}');
    putchar('\n');
}

/* --- the command ------------------------------------------------------------------------------ */

static int report(const settings *how, const gpp_profile *p)
{
    gpp_error err = GPP_ERROR_INIT;
    if (how->save && gpp_profile_write(p, how->save, &err) != GPP_OK)
        return tool_error(&err);
    if (how->json)
        print_json(p);
    else
        print_text(how, p);
    return tool_flushed(TOOL_DONE);
}

static int load(const settings *how)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_profile *profile;
    if (gpp_profile_read(&profile, how->load, &err) != GPP_OK)
        return tool_error(&err);
    int status = report(how, profile);
    gpp_profile_free(profile);
    return status;
}

/* @return a gpp_math; -1: there is none of this name */
static int math_of(const char *name)
{
    int k = name ? (int)(sizeof math_names / sizeof *math_names) - 1 : 0;
    while (name && k >= 0 && strcmp(math_names[k], name) != 0)
        k--;
    return k;
}

static gpp_status measure(const settings *how, const gpp_model *model, gpp_profile **profile,
                          gpp_error *err)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    o.device = how->device;
    o.beside = how->beside.word;
    o.beside_count = how->beside.count;
    o.sizes_only = how->sizes;
    o.cuda_math = (gpp_math)math_of(how->math);
    o.cuda_any_algorithm = how->any_algorithm;
    o.timeout_ms = how->timeout >= 0 ? how->timeout : o.timeout_ms;
    o.precision = how->precision >= 0 ? how->precision : o.precision;
    return gpp_profile_new(profile, model, how->rows ? how->rows : 32, &o, err);
}

static int work(const settings *how)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = NULL;
    gpp_profile *profile = NULL;
    char *text;
    int status = tool_model_text(how->model, how->file, false, &text);
    if (status >= 0)
        return status;
    gpp_status made = tool_model_of(&model, text, &how->input, &err);
    if (made == GPP_OK)
        made = measure(how, model, &profile, &err);
    status = made == GPP_OK ? report(how, profile) : tool_refused(&err);
    gpp_profile_free(profile);
    gpp_model_free(model);
    free(text);
    return status;
}

/* --load shows a finished profile, and --network measures no model, so options that say what to
 * measure and how are refused. */
static int check_without_model(const settings *how)
{
    const bool load = how->load;
    const struct {
        bool given;
        const char *name;
    } others[] = {{how->model, "model"},
                  {how->file, "model-file"},
                  {how->input.count > 0, "input"},
                  {how->rows > 0, "rows"},
                  {how->device, "device"},
                  {how->beside.count > 0, "beside"},
                  {how->precision >= 0, "precision"},
                  {how->sizes, "sizes"},
                  {how->math, "cuda-math"},
                  {how->any_algorithm, "cuda-any-algorithm"},
                  {load && how->timeout >= 0, "timeout"},
                  {load && how->save, "save"},
                  {load && how->network, "network"},
                  {!load && how->operators, "operators"}};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        if (others[k].given)
            return tool_fail(TOOL_USAGE, "--%s and --%s exclude each other",
                             load ? "load" : "network", others[k].name);
    return load ? -1 : tool_writable("save", tool_rank() ? NULL : how->save);
}

static int check(const settings *how)
{
    bool timed = how->device || how->beside.count || how->timeout >= 0 || how->precision >= 0 ||
                 how->math || how->any_algorithm;
    if (how->load || how->network)
        return check_without_model(how);
    if (!how->input.count)
        return tool_fail(TOOL_USAGE, "the shape of a sample is needed: --input");
    if (how->sizes && (timed || how->operators))
        return tool_fail(TOOL_USAGE, "--sizes measures nothing: --device, --beside, --timeout, "
                                     "--precision, --cuda-math, --cuda-any-algorithm and "
                                     "--operators do not go with it");
    if (math_of(how->math) < 0)
        return tool_fail(TOOL_USAGE, "--cuda-math must be f32, tf32 or bf16, got \"%s\"",
                         how->math);
    if (how->json && how->operators)
        return tool_fail(TOOL_USAGE, "--json lists operators in any case, without --operators");
    return tool_writable("save", how->save);
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
        {"rows", TOOL_WHOLE, &how->rows, "N",
         "rows of the micro-batch: a mini-batch divided by\nchunks (32)", 1, 1e12},
        {NULL, TOOL_TITLE, NULL, NULL, "Where and how:", 0, 0},
        {"device", TOOL_WORD, &how->device, "A",
         "\"cpu\", \"cpu:2\", \"cpu:0-1,4\" or \"cuda:0\" (a GPU\n"
         "if there is one and all layers can run on it, else\n"
         "every core this process may use)",
         0, 0},
        {"cuda-math", TOOL_WORD, &how->math, "NAME",
         "what products on GPUs use: f32, tf32, bf16 (f32)", 0, 0},
        {"cuda-any-algorithm", TOOL_SWITCH, &how->any_algorithm, NULL,
         "on GPUs, let libraries use algorithms whose sums run\n"
         "in any order",
         0, 0},
        {"beside", TOOL_WORDS, &how->beside, "B",
         "another device that runs the same meanwhile, as in\n"
         "a pipe on both; repeat it for more",
         0, 0},
        {"timeout", TOOL_REAL, &how->timeout, "MS",
         "begin no sweep later than this, except the first\n(1000)", 0, 1e9},
        {"precision", TOOL_REAL, &how->precision, "P",
         "stop when the error of every layer is at most this\n"
         "part of its time (0.02); 0: only at the timeout",
         0, 1},
        {"sizes", TOOL_SWITCH, &how->sizes, NULL, "count bytes only; nothing runs", 0, 0},
        {"network", TOOL_SWITCH, &how->network, NULL,
         "measure the links between the ranks that mpirun has\n"
         "started, instead of a model; --save writes a file for\n"
         "gridpipe plan --machine",
         0, 0},
        {NULL, TOOL_TITLE, NULL, NULL, "Results:", 0, 0},
        {"save", TOOL_WORD, &how->save, "FILE", "save the profile for --load and gridpipe plan", 0,
         0},
        {"load", TOOL_WORD, &how->load, "FILE", "show this profile; nothing runs", 0, 0},
        {"operators", TOOL_SWITCH, &how->operators, NULL,
         "show times of each layer's operators, too", 0, 0},
        {"json", TOOL_SWITCH, &how->json, NULL, "print the profile as a JSON object", 0, 0},
        {0},
    };
    int status =
        tool_parse(&tool_profile, (const tool_option *const[]){own, NULL}, argc, argv, &first);
    if (status >= 0)
        return status;
    if (first < argc)
        return tool_fail(TOOL_USAGE, "\"%s\" is no option; a text is given by --model",
                         argv[first]);
    return check(how);
}

static int run(int argc, char *argv[])
{
    settings how = {.timeout = -1, .precision = -1};
    int status = parse(&how, argc, argv);
    if (status >= 0)
        return status;
    if (how.network)
        return profile_network(how.save, how.timeout >= 0 ? how.timeout : 1000, how.json);
    if (tool_ranks() > 1)
        return tool_fail(TOOL_USAGE, "%d processes were started, but only --network is for several",
                         tool_ranks());
    return how.load ? load(&how) : work(&how);
}

const tool_command tool_profile = {
    "profile",
    "((--model TEXT | --model-file FILE) --input SHAPE | --load FILE | --network) [OPTION]...",
    "What each layer costs: measured times, bytes",
    description,
    run,
    true};
