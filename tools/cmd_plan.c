/*
 * tools/cmd_plan.c: gridpipe plan: predicts the training step of a pipe, or searches for the pipe
 * with the fastest predicted step. Nothing is trained. Without a profile, layers are timed first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan.h"

static const char description[] =
    "Predicts the training step of a mini-batch of --batch rows and searches for the fastest pipe\n"
    "that fits: partitions, where to cut, micro-batches, what to recompute. What options say of "
    "the\n"
    "pipe (--partitions, --balance, --chunks, --checkpoint) is not searched. With --pipe only "
    "that\n"
    "pipe is predicted. Times are from profiles: given ones (\"gridpipe profile --save\"), and,\n"
    "where these lack rows or cores, profiles that are taken now, while nothing else should run.\n";

/* --- profiles and pipes ----------------------------------------------------------------------- */

static gpp_status read_files(plan_result *r, gpp_error *err)
{
    gpp_status status = GPP_OK;
    if (r->how->machine)
        status = gpp_cluster_read(&r->cluster, r->how->machine, err);
    for (int k = 0; k < r->how->profile.count && status == GPP_OK; k++)
        status = plan_profiles_read(&r->given, r->how->profile.word[k], err);
    r->reading = status != GPP_OK;
    return status;
}

/* What is not given keeps the library's default. Bandwidths are GB/s here and bytes per
 * microsecond there. */
static void set_links(const plan_settings *how, gpp_forecast_options *o)
{
    o->link_us = how->link_us >= 0 ? how->link_us : o->link_us;
    o->bytes_per_us = how->link_bandwidth >= 0 ? 1000 * how->link_bandwidth : o->bytes_per_us;
    o->gpu_bytes_per_us = how->gpu_bandwidth >= 0 ? 1000 * how->gpu_bandwidth : o->gpu_bytes_per_us;
    o->task_us = how->task_us >= 0 ? how->task_us : o->task_us;
    o->timeout_ms = how->timeout >= 0 ? how->timeout : o->timeout_ms;
}

static gpp_pipe_options pipe_of(const plan_settings *how)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    tool_pipe_apply(&how->pipe, &o);
    o.loss = how->loss;
    o.optimizer = how->optimizer;
    o.batch = how->batch;
    return o;
}

/* Counts the names of --devices, each once. */
static int count_devices(const tool_pipe *p)
{
    int count = 0;
    for (int d = 0; d < p->devices; d++) {
        int k = 0;
        while (k < d && strcmp(p->device[k], p->device[d]) != 0)
            k++;
        count += k == d;
    }
    return count;
}

/* Reads --nodes. @param node  [TOOL_PARTITIONS] out: zero behind the last one given */
static int take_nodes(const plan_settings *how, int node[])
{
    int64_t list[TOOL_PARTITIONS];
    int devices = count_devices(&how->pipe);
    int count = how->nodes ? tool_whole_list(how->nodes, list, TOOL_PARTITIONS) : 0;
    memset(node, 0, TOOL_PARTITIONS * sizeof *node);
    for (int d = 0; d < count; d++) {
        if (list[d] < 0 || list[d] >= TOOL_PARTITIONS)
            count = -1;
        else
            node[d] = (int)list[d];
    }
    if (count < 0)
        return tool_fail(TOOL_USAGE,
                         "--nodes must be memory nodes from 0, such as 0,0,1,1, got "
                         "\"%s\"",
                         how->nodes);
    if (how->nodes && !devices)
        return tool_fail(TOOL_USAGE, "--nodes are those of --devices, which are needed");
    if (how->nodes && count != devices)
        return tool_fail(TOOL_USAGE, "--nodes are of %d devices, --devices are %d", count, devices);
    return -1;
}

/* --- searching and predicting ----------------------------------------------------------------- */

/* Profiles are saved even if the search has failed: taking them is what takes time. */
static gpp_status search(plan_result *r, const gpp_model *model, const gpp_forecast_options *fo,
                         gpp_error *err)
{
    const plan_settings *how = r->how;
    gpp_plan_options o = GPP_PLAN_OPTIONS_INIT;
    o.forecast = *fo;
    o.partitions = how->pipe.partitions;
    o.keep_balance = how->pipe.balance[0] != 0;
    o.chunks = how->pipe.chunks;
    o.replicas = how->pipe.replicas ? how->pipe.replicas : r->cluster ? 0 : 1;
    o.any_checkpoint = !how->pipe.has_checkpoint;
    o.max_partitions = (int)how->max_partitions;
    o.max_chunks = how->max_chunks ? (int)how->max_chunks : o.max_chunks;
    gpp_status status = gpp_plan_search(&r->table, model, &r->pipe, &o, err);
    gpp_status written = r->table && how->save_profiles
                             ? plan_profiles_write(how->save_profiles, r->table, err)
                             : GPP_OK;
    status = status == GPP_OK ? written : status;
    if (status == GPP_OK)
        status = gpp_plan_apply(r->table, r->table->best, &r->pipe, err);
    return status;
}

/* How many other sets of cores are at work beside one set of the candidate's cores. */
static int other_cores(const gpp_candidate *c)
{
    int count = 0;
    for (int j = 0; j < c->replicas * c->partitions; j++) {
        int k = 0;
        while (k < j && strcmp(c->device[k], c->device[j]) != 0)
            k++;
        count += k == j && strncmp(c->device[j], "cuda:", 5) != 0;
    }
    return count > 0 ? count - 1 : 0;
}

/* Predicts the chosen pipe from the given profiles and those of the search. Of the latter only
 * those that fit: taken on a GPU, or with as many other sets of cores at work as the pipe has. All
 * fit a cluster. */
static gpp_status predict(plan_result *r, const gpp_model *model, const gpp_forecast_options *fo,
                          gpp_error *err)
{
    int taken = r->table ? r->table->profiles : 0, count = 0;
    int others = r->table ? other_cores(&r->table->candidate[r->table->best]) : 0;
    gpp_forecast_options o = *fo;
    const gpp_profile **all =
        calloc((size_t)(r->given.count + taken) + 1, sizeof(const gpp_profile *));
    if (!all)
        return tool_note(err, GPP_ENOMEM, "%d profiles", r->given.count + taken);
    for (int k = 0; k < r->given.count; k++)
        all[count++] = r->given.profile[k];
    for (int k = 0; k < taken; k++)
        if (r->cluster || r->table->profile[k]->gpu[0] || r->table->profile[k]->beside == others)
            all[count++] = r->table->profile[k];
    o.profile = count ? all : NULL;
    o.profiles = count;
    gpp_status status = gpp_forecast_new(&r->forecast, model, &r->pipe, &o, err);
    free(all);
    return status;
}

static void judge(plan_result *r)
{
    const gpp_forecast *f = r->forecast;
    for (int d = 0; d < f->devices; d++)
        r->most_bytes = f->device[d].bytes > r->most_bytes ? f->device[d].bytes : r->most_bytes;
    r->fits = !r->pipe.memory_limit || r->most_bytes <= r->pipe.memory_limit;
    for (int d = 0; d < f->devices; d++)
        r->fits = r->fits && (!f->device[d].limit || f->device[d].bytes <= f->device[d].limit);
}

/* The file of the profile by which the pipe uses its budget. In a pipe's text a path cannot contain
 * blanks. @return free it; NULL: no profile, or its path cannot be written */
static char *budget_file(const plan_result *r)
{
    const gpp_profile *p = r->pipe.profile;
    char *path = NULL;
    if (p && p == r->how->pipe.profile)
        path = strdup(r->how->pipe.profile_path);
    for (int k = 0; k < r->given.count && p && !path; k++)
        if (r->given.profile[k] == p)
            path = strdup(r->given.path[k]);
    if (p && !path && r->how->save_profiles)
        path = plan_profile_path(r->how->save_profiles, p);
    if (!path || !path[strcspn(path, " \t\n")])
        return path;
    free(path);
    return NULL;
}

/* Writes the pipe as words that leave nothing to choose: with its cut and its devices. */
static gpp_status write_pipe(plan_result *r, gpp_error *err)
{
    const gpp_forecast *f = r->forecast;
    const char *device[TOOL_PARTITIONS];
    gpp_pipe_options o = r->pipe;
    size_t size;
    FILE *out = f->partitions <= TOOL_PARTITIONS ? open_memstream(&r->pipe_text, &size) : NULL;
    if (!out)
        return tool_note(err, GPP_ENOMEM, "the text of %d partitions", f->partitions);
    for (int j = 0; j < f->partitions; j++)
        device[j] = f->device[f->device_of[j]].name;
    o.partitions = f->partitions / f->replicas;
    o.device_count = f->partitions;
    o.balance = f->balance;
    o.devices = device;
    char *profile = budget_file(r);
    r->guesses = o.profile && !profile;
    tool_pipe_text(out, &o, profile);
    free(profile);
    return fclose(out) == 0 ? GPP_OK : tool_note(err, GPP_ENOMEM, "the text of a pipe");
}

static gpp_status make(plan_result *r, const gpp_model *model, const int node[], gpp_error *err)
{
    gpp_forecast_options o = GPP_FORECAST_OPTIONS_INIT;
    gpp_status status = read_files(r, err);
    set_links(r->how, &o);
    o.node_of = r->how->nodes ? node : NULL;
    o.cluster = r->cluster;
    o.profile = r->given.count ? (const gpp_profile *const *)r->given.profile : NULL;
    o.profiles = r->given.count;
    r->pipe = pipe_of(r->how);
    if (status == GPP_OK && !r->how->pipe_args.text)
        status = search(r, model, &o, err);
    if (status == GPP_OK)
        status = predict(r, model, &o, err);
    if (status == GPP_OK)
        status = write_pipe(r, err);
    if (status == GPP_OK)
        judge(r);
    if (status == GPP_OK && r->how->draw)
        status = gpp_forecast_draw(r->forecast, GPP_FORECAST_TEXT, &r->picture, err);
    return status;
}

/* --- results ---------------------------------------------------------------------------------- */

static int write_svg(const plan_result *r)
{
    gpp_error err = GPP_ERROR_INIT;
    char *text;
    if (gpp_forecast_draw(r->forecast, GPP_FORECAST_SVG, &text, &err) != GPP_OK)
        return tool_error(&err);
    FILE *out = fopen(r->how->svg, "w");
    bool written = out && fputs(text, out) >= 0;
    written = out && fclose(out) == 0 && written;
    gpp_string_free(text);
    return written ? -1 : tool_fail(TOOL_FAILED, "--svg %s: %s", r->how->svg, strerror(errno));
}

/* --pipe-text prints nothing when no pipe fits, so that a script does not run one. */
static void print(const plan_result *r)
{
    if (r->how->json)
        plan_print_json(r);
    else if (!r->how->pipe_text)
        plan_print_text(r);
    else if (r->fits)
        puts(r->pipe_text);
}

static int too_large(const plan_result *r)
{
    char most[TOOL_AMOUNT], limit[TOOL_AMOUNT];
    if (r->table)
        return tool_fail(TOOL_FAILED, "%s", r->table->advice);
    return tool_fail(TOOL_FAILED,
                     "this pipe does not fit: a device needs %s (%zu bytes), --memory-limit is %s",
                     tool_bytes_text(most, r->most_bytes), r->most_bytes,
                     tool_bytes_text(limit, r->pipe.memory_limit));
}

/* A search that finds no pipe fits the question, so its table is printed; the exit status says
 * that nothing fits. */
static int report(plan_result *r, gpp_status made, const gpp_error *err)
{
    bool empty = made == GPP_ENOMEM && r->table && r->table->best < 0;
    if (made != GPP_OK && !empty)
        return r->reading ? tool_error(err) : tool_refused(err);
    int status = r->forecast && r->how->svg ? write_svg(r) : -1;
    if (status >= 0)
        return status;
    print(r);
    status = tool_flushed(TOOL_DONE);
    return status == TOOL_DONE && !r->fits ? too_large(r) : status;
}

/* --- the command ------------------------------------------------------------------------------ */

static int work(const plan_settings *how, const int node[])
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model = NULL;
    plan_result r = {.how = how};
    char *text;
    int status = tool_model_text(how->model, how->file, false, &text);
    if (status >= 0)
        return status;
    gpp_status made = tool_model_of(&model, text, &how->input, &err);
    if (made == GPP_OK)
        made = make(&r, model, node, &err);
    status = report(&r, made, &err);
    gpp_string_free(r.picture);
    free(r.pipe_text);
    gpp_forecast_free(r.forecast);
    gpp_plan_free(r.table);
    plan_profiles_release(&r.given);
    gpp_cluster_free(r.cluster);
    gpp_model_free(model);
    free(text);
    return status;
}

/* For other commands these options describe the pipe to run. Here they restrict the search, so
 * their help texts differ. */
static void reword(tool_option table[TOOL_PIPE_OPTIONS])
{
    static const char *const words[][2] = {
        {"partitions", "this many, instead of any number of devices"},
        {"balance", "layers of each partition; cuts are not searched then"},
        {"replicas", "this many copies of the pipeline (1; with --machine\nany number)"},
        {"chunks", "this many, instead of any number of micro-batches"},
        {"checkpoint", "always, except_last, never or budget, instead of any"},
        {"activation-limit", "bytes that a partition may keep for its backwards,\n"
                             "with --checkpoint budget (what --memory-limit leaves)"},
        {"budget-profile", "times of gridpipe profile, which decide what the\nbudget of a --pipe "
                           "keeps (a guess from sizes)"},
        {"devices", "in quotes: 'cpu:0;cpu:1'; pipes of fewer partitions\n"
                    "use the first ones (each its share of the cores)"},
        {"pipe", "predict this pipe and search nothing:\n\"balance=3,3 chunks=4 "
                 "checkpoint=never\""},
    };
    for (int k = 0; k < TOOL_PIPE_OPTIONS; k++)
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            if (table[k].name && !strcmp(table[k].name, words[w][0]))
                table[k].help = words[w][1];
}

static int check(plan_settings *how)
{
    gpp_error err = GPP_ERROR_INIT;
    bool fixed = how->pipe_args.text;
    if (!how->input.count)
        return tool_fail(TOOL_USAGE, "the shape of a sample is needed: --input");
    if (!how->batch)
        return tool_fail(TOOL_USAGE, "the rows of a mini-batch are needed: --batch");
    if (how->json + how->pipe_text + how->draw > 1)
        return tool_fail(TOOL_USAGE, "--draw, --json and --pipe-text exclude each other");
    if (fixed && (how->candidates || how->max_partitions || how->max_chunks || how->save_profiles))
        return tool_fail(TOOL_USAGE, "--pipe searches nothing: --candidates, --max-partitions, "
                                     "--max-chunks and --save-profiles do not go with it");
    if (how->machine &&
        (how->nodes || how->link_us >= 0 || how->link_bandwidth >= 0 || how->gpu_bandwidth >= 0))
        return tool_fail(TOOL_USAGE, "--machine says what links there are: --nodes, --link-us, "
                                     "--link-bandwidth and --gpu-bandwidth do not go with it");
    if (tool_pipe_take(&how->pipe, &how->pipe_args, &err) != GPP_OK)
        return tool_refused(&err);
    if (how->pipe.partitions && how->max_partitions)
        return tool_fail(TOOL_USAGE, "--partitions and --max-partitions exclude each other");
    if (how->pipe.chunks && how->max_chunks)
        return tool_fail(TOOL_USAGE, "--chunks and --max-chunks exclude each other");
    int status = tool_writable("svg", how->svg);
    return status < 0 ? plan_profiles_writable(how->save_profiles) : status;
}

static int parse(plan_settings *how, int argc, char *argv[])
{
    int first;
    const tool_option own[] = {
        {NULL, TOOL_TITLE, NULL, NULL, "What is trained:", 0, 0},
        {"model", TOOL_WORD, &how->model, "TEXT", "layers, such as \"linear out=8; relu\"", 0, 0},
        {"model-file", TOOL_WORD, &how->file, "FILE", "file with that text, - for stdin", 0, 0},
        {"input", TOOL_WORDS, &how->input, "SHAPE",
         "shape of one sample, such as 3,32,32 or i64:128;\n"
         "repeat it for several inputs",
         0, 0},
        {"batch", TOOL_WHOLE, &how->batch, "B", "rows of the mini-batch", 1, 1e12},
        {"loss", TOOL_WORD, &how->loss, "SPEC",
         "loss of the step; without, it begins with gradients", 0, 0},
        {"optimizer", TOOL_WORD, &how->optimizer, "SPEC",
         "optimizer of the step; without, there is no update", 0, 0},
        {NULL, TOOL_TITLE, NULL, NULL, "What it is predicted from:", 0, 0},
        {"profile", TOOL_WORDS, &how->profile, "FILE",
         "profile of this model, from gridpipe profile, or a\n"
         "folder of them (*.profile); repeat it for more",
         0, TOOL_WORDS_MOST},
        {"save-profiles", TOOL_WORD, &how->save_profiles, "FOLDER",
         "save profiles that are taken now in this folder", 0, 0},
        {"timeout", TOOL_REAL, &how->timeout, "MS",
         "timeout of each profile that is taken now (1000)", 0, 1e9},
        {"task-us", TOOL_REAL, &how->task_us, "US", "the runtime's own time for each task (10)", 0,
         1e9},
        {"machine", TOOL_WORD, &how->machine, "FILE",
         "plan for the cluster that this file describes: nodes,\n"
         "devices, memory, links (see gridpipe(1))",
         0, 0},
        {"nodes", TOOL_WORD, &how->nodes, "A,B,...",
         "memory nodes of --devices, from 0 (by topology, if\n"
         "the runtime tells them apart)",
         0, 0},
        {"link-us", TOOL_REAL, &how->link_us, "US", "time to start a transfer between nodes (10)",
         0, 1e9},
        {"link-bandwidth", TOOL_REAL, &how->link_bandwidth, "GB/S",
         "speed of such a transfer (8; to and from GPUs, as\n"
         "their profiles have measured)",
         1e-6, 1e9},
        {"gpu-bandwidth", TOOL_REAL, &how->gpu_bandwidth, "GB/S",
         "speed from GPU to GPU, if it differs (NVLink)", 1e-6, 1e9},
        {NULL, TOOL_TITLE, NULL, NULL, "What is searched:", 0, 0},
        {"max-partitions", TOOL_WHOLE, &how->max_partitions, "N",
         "at most this many (one for each device)", 1, TOOL_PARTITIONS},
        {"max-chunks", TOOL_WHOLE, &how->max_chunks, "M", "at most this many (64)", 1, 1e6},
        {NULL, TOOL_TITLE, NULL, NULL, "Results:", 0, 0},
        {"candidates", TOOL_WHOLE, &how->candidates, "K", "rows of the table (10)", 1, 1e6},
        {"draw", TOOL_SWITCH, &how->draw, NULL, "also print a picture of the predicted schedule", 0,
         0},
        {"svg", TOOL_WORD, &how->svg, "FILE", "draw the same picture, with memory over time", 0, 0},
        {"json", TOOL_SWITCH, &how->json, NULL,
         "print everything as a JSON object: candidates,\n"
         "forecast, tasks, bytes over time",
         0, 0},
        {"pipe-text", TOOL_SWITCH, &how->pipe_text, NULL,
         "print only the pipe, as --pipe of other commands\ntakes it", 0, 0},
        {0},
    };
    tool_option pipe[TOOL_PIPE_OPTIONS];
    tool_pipe_options(&how->pipe_args, pipe);
    reword(pipe);
    int status =
        tool_parse(&tool_plan, (const tool_option *const[]){own, pipe, NULL}, argc, argv, &first);
    if (status >= 0)
        return status;
    if (first < argc)
        return tool_fail(TOOL_USAGE, "\"%s\" is no option; a text is given by --model",
                         argv[first]);
    return check(how);
}

static int run(int argc, char *argv[])
{
    plan_settings how = {
        .link_us = -1, .link_bandwidth = -1, .gpu_bandwidth = -1, .task_us = -1, .timeout = -1};
    int node[TOOL_PARTITIONS];
    int status = parse(&how, argc, argv);
    if (status < 0)
        status = take_nodes(&how, node);
    if (status < 0)
        status = work(&how, node);
    tool_pipe_release(&how.pipe);
    return status;
}

const tool_command tool_plan = {
    "plan",
    "(--model TEXT | --model-file FILE) --input SHAPE --batch B [OPTION]...",
    "Predict a training step; find the fastest pipe that fits",
    description,
    run,
    false};
