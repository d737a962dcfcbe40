/*
 * tools/pipes.c: how to cut and run a model, as words: "balance=3,3 chunks=4 checkpoint=never
 * deferred_batch_norm=0". They come from a file's metadata or from options. Later words override
 * earlier ones.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

static const char *const keys[TOOL_PIPE_KEYS] = {
    [TOOL_BALANCE] = "balance",
    [TOOL_PARTS] = "partitions",
    [TOOL_REPLICAS] = "replicas",
    [TOOL_CHUNKS] = "chunks",
    [TOOL_CHECKPOINT] = "checkpoint",
    [TOOL_ACTIVATIONS] = "activation_limit",
    [TOOL_BUDGET] = "budget_profile",
    [TOOL_DEFERRED] = "deferred_batch_norm",
    [TOOL_DEVICES] = "devices",
    [TOOL_MEMORY] = "memory_limit",
    [TOOL_ASCENDING] = "ascending_backward",
    [TOOL_SCHEDULE] = "schedule",
    [TOOL_MATH] = "cuda_math",
    [TOOL_ANY_ALGORITHM] = "cuda_any_algorithm",
    [TOOL_SHARD] = "shard_optimizer",
};

/* The names come from the library, so that a new schedule is in the help at once. */
static const char *schedule_help(void)
{
    enum { WIDTH = 50 };
    static char text[512];
    const char *name;
    size_t at = (size_t)snprintf(text, sizeof text, "the order of tasks:"), line = 0;
    for (size_t k = 0; (name = gpp_schedule_name(k)) && at < sizeof text; k++) {
        bool full = at - line + strlen(name) + 2 > WIDTH;
        line = full ? at : line;
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s,", full ? "\n" : " ", name);
    }
    if (at < sizeof text)
        snprintf(text + at, sizeof text - at, "\nor \"table:...\" (gpipe)");
    return text;
}

void tool_pipe_options(tool_pipe_args *args, tool_option out[TOOL_PIPE_OPTIONS])
{
    static const tool_option table[TOOL_PIPE_OPTIONS] = {
        {NULL, TOOL_TITLE, NULL, NULL, "Pipe:", 0, 0},
        {"partitions", TOOL_WORD, NULL, "N", "parts of the model, each on its own device (1)", 0,
         0},
        {"balance", TOOL_WORD, NULL, "A,B,...",
         "layers of each partition (the costliest partition as\n"
         "cheap as possible)",
         0, 0},
        {"replicas", TOOL_WORD, NULL, "R",
         "copies of the pipeline, each for its part of every\nmini-batch (1)", 0, 0},
        {"chunks", TOOL_WORD, NULL, "M",
         "micro-batches that a mini-batch, or a replica's part\nof it, is cut into (1)", 0, 0},
        {"checkpoint", TOOL_WORD, NULL, "MODE",
         "always, except_last or never: which micro-batches\nare recomputed instead of kept "
         "(except_last);\nbudget: as little as --activation-limit allows",
         0, 0},
        {"activation-limit", TOOL_WORD, NULL, "BYTES",
         "bytes that a partition may keep for its backwards,\n"
         "with --checkpoint budget (what --memory-limit leaves)",
         0, 0},
        {"budget-profile", TOOL_WORD, NULL, "FILE",
         "times of gridpipe profile, which decide what a\nbudget keeps (a guess from sizes)", 0, 0},
        {"deferred-batch-norm", TOOL_WORD, NULL, "0|1",
         "statistics of the whole mini-batch instead of every\nmicro-batch (0)", 0, 0},
        {"devices", TOOL_WORD, NULL, "A;B;...",
         "devices of the partitions, in quotes: 'cpu:0;cpu:1';\n"
         "each \"cpu\", \"cpu:2\", \"cpu:0-1,4\" or \"cuda:0\" (GPUs,\n"
         "else each its share of the cores)",
         0, 0},
        {"memory-limit", TOOL_WORD, NULL, "BYTES",
         "bytes that a device may need, such as 67108864, 64M\n"
         "or 1.5G (none)",
         0, 0},
        {"ascending-backward", TOOL_WORD, NULL, "0|1", "backwards in the forwards' order (0)", 0,
         0},
        {"schedule", TOOL_WORD, NULL, "NAME", "" /* schedule_help */, 0, 0},
        {"cuda-math", TOOL_WORD, NULL, "NAME", "what products on GPUs use: f32, tf32, bf16 (f32)",
         0, 0},
        {"cuda-any-algorithm", TOOL_WORD, NULL, "0|1",
         "on GPUs, allow algorithms whose bits change from\nrun to run (0)", 0, 0},
        {"shard-optimizer", TOOL_WORD, NULL, "0|1",
         "each replica keeps and updates a part of the\noptimizer's state alone (0)", 0, 0},
        {"pipe", TOOL_WORD, NULL, "TEXT",
         "all of these: \"balance=3,3 chunks=4\n"
         "checkpoint=never deferred_batch_norm=0\"",
         0, 0},
    };
    static const int key_of[TOOL_PIPE_KEYS] = {
        TOOL_PARTS,       TOOL_BALANCE,  TOOL_REPLICAS, TOOL_CHUNKS,        TOOL_CHECKPOINT,
        TOOL_ACTIVATIONS, TOOL_BUDGET,   TOOL_DEFERRED, TOOL_DEVICES,       TOOL_MEMORY,
        TOOL_ASCENDING,   TOOL_SCHEDULE, TOOL_MATH,     TOOL_ANY_ALGORITHM, TOOL_SHARD};
    memcpy(out, table, sizeof table);
    for (int k = 0; k < TOOL_PIPE_KEYS; k++)
        out[k + 1].into = &args->word[key_of[k]];
    for (int k = 0; k < TOOL_PIPE_OPTIONS; k++)
        if (out[k].name && !strcmp(out[k].name, keys[TOOL_SCHEDULE]))
            out[k].help = schedule_help();
    out[TOOL_PIPE_KEYS + 1].into = &args->text;
}

/* --- values ----------------------------------------------------------------------------------- */

static gpp_status wrong(gpp_error *err, int key, const char *allowed, const char *text)
{
    return tool_note(err, GPP_EINVAL, "%s must be %s, got \"%.60s\"", keys[key], allowed, text);
}

static gpp_status set_count(gpp_error *err, int key, const char *text, int most, int *out)
{
    int64_t value;
    char allowed[64];
    if (tool_whole_list(text, &value, 1) == 1 && value >= 1 && value <= most) {
        *out = (int)value;
        return GPP_OK;
    }
    snprintf(allowed, sizeof allowed, "a whole number from 1 to %d", most);
    return wrong(err, key, allowed, text);
}

static gpp_status set_flag(gpp_error *err, int key, const char *text, bool *out)
{
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return wrong(err, key, "0 or 1", text);
    *out = *text == '1';
    return GPP_OK;
}

/* A balance also says how many partitions there are. */
static gpp_status set_balance(tool_pipe *p, const char *text, gpp_error *err)
{
    int64_t layers[TOOL_PARTITIONS];
    int count = tool_whole_list(text, layers, TOOL_PARTITIONS);
    for (int j = 0; j < count; j++)
        if (layers[j] < 1 || layers[j] > 1000000)
            count = -1;
    if (count < 0)
        return wrong(err, TOOL_BALANCE, "the layers of each partition, such as 3,4", text);
    for (int j = 0; j < count; j++)
        p->balance[j] = (int)layers[j];
    p->partitions = count;
    return GPP_OK;
}

/* A number of partitions that contradicts the balance drops it: the library then chooses one. */
static gpp_status set_partitions(tool_pipe *p, const char *text, gpp_error *err)
{
    int count = 0;
    gpp_status status = set_count(err, TOOL_PARTS, text, TOOL_PARTITIONS, &count);
    if (status == GPP_OK && count != p->partitions)
        p->balance[0] = 0;
    p->partitions = status == GPP_OK ? count : p->partitions;
    return status;
}

static gpp_status set_schedule(tool_pipe *p, const char *text, gpp_error *err)
{
    if (!*text || strlen(text) >= sizeof p->schedule)
        return wrong(err, TOOL_SCHEDULE, "a name or a table, not as long", text);
    strcpy(p->schedule, text);
    return GPP_OK;
}

static gpp_status set_math(tool_pipe *p, const char *text, gpp_error *err)
{
    static const char *const name[] = {
        [GPP_MATH_F32] = "f32", [GPP_MATH_TF32] = "tf32", [GPP_MATH_BF16] = "bf16"};
    for (int k = 0; k < 3; k++)
        if (!strcmp(text, name[k])) {
            p->math = k;
            return GPP_OK;
        }
    return wrong(err, TOOL_MATH, "f32, tf32 or bf16", text);
}

/* Devices are separated by semicolons, because their names can contain commas. */
static gpp_status set_devices(tool_pipe *p, const char *text, gpp_error *err)
{
    char *at, *name;
    if (strstr(text, ",cpu") || strstr(text, ", cpu") || strstr(text, ",cuda"))
        return wrong(err, TOOL_DEVICES, "parted by ';', in quotes, such as 'cpu:0;cpu:1'", text);
    if (strlen(text) >= sizeof p->device_text)
        return wrong(err, TOOL_DEVICES, "shorter", text);
    strcpy(p->device_text, text);
    p->devices = 0;
    for (name = strtok_r(p->device_text, ";", &at); name; name = strtok_r(NULL, ";", &at)) {
        if (p->devices == TOOL_PARTITIONS)
            return wrong(err, TOOL_DEVICES, "fewer", text);
        p->device[p->devices++] = name;
    }
    return p->devices ? GPP_OK : wrong(err, TOOL_DEVICES, "devices, such as cpu:0;cpu:1", text);
}

/* A mode without a budget drops the limit and the profile of an earlier mode that had one. */
static gpp_status set_checkpoint(tool_pipe *p, const char *text, gpp_error *err)
{
    gpp_status status = gpp_checkpoint_parse(text, &p->checkpoint, err);
    p->has_checkpoint = status == GPP_OK;
    if (p->checkpoint != GPP_CHECKPOINT_BUDGET) {
        p->activation_limit = 0;
        tool_pipe_release(p);
    }
    return status;
}

static gpp_status set_bytes(gpp_error *err, int key, const char *text, size_t *out)
{
    if (tool_bytes(text, out))
        return GPP_OK;
    return wrong(err, key, "a number of bytes, at least 1, such as 67108864, 64M or 1.5G", text);
}

static gpp_status set_profile(tool_pipe *p, const char *path, gpp_error *err)
{
    tool_pipe_release(p);
    if (strlen(path) >= sizeof p->profile_path)
        return wrong(err, TOOL_BUDGET, "shorter", path);
    strcpy(p->profile_path, path);
    return gpp_profile_read(&p->profile, path, err);
}

static gpp_status set(tool_pipe *p, int key, const char *text, gpp_error *err)
{
    switch (key) {
    case TOOL_BALANCE:
        return set_balance(p, text, err);
    case TOOL_PARTS:
        return set_partitions(p, text, err);
    case TOOL_REPLICAS:
        return set_count(err, key, text, 4096, &p->replicas);
    case TOOL_SHARD:
        return set_flag(err, key, text, &p->shard_optimizer);
    case TOOL_CHUNKS:
        return set_count(err, key, text, 1000000, &p->chunks);
    case TOOL_CHECKPOINT:
        return set_checkpoint(p, text, err);
    case TOOL_BUDGET:
        return set_profile(p, text, err);
    case TOOL_DEFERRED:
        return set_flag(err, key, text, &p->deferred);
    case TOOL_DEVICES:
        return set_devices(p, text, err);
    case TOOL_MEMORY:
        return set_bytes(err, key, text, &p->memory_limit);
    case TOOL_ACTIVATIONS:
        return set_bytes(err, key, text, &p->activation_limit);
    case TOOL_SCHEDULE:
        return set_schedule(p, text, err);
    case TOOL_MATH:
        return set_math(p, text, err);
    case TOOL_ANY_ALGORITHM:
        return set_flag(err, key, text, &p->any_algorithm);
    default:
        return set_flag(err, key, text, &p->ascending);
    }
}

/* --- from texts and options ------------------------------------------------------------------- */

static gpp_status set_named(tool_pipe *p, char *word, gpp_error *err)
{
    char *value = strchr(word, '=');
    if (!value)
        return tool_note(err, GPP_ESYNTAX, "pipe: \"%.60s\" is no key=value", word);
    *value++ = '\0';
    for (int k = 0; k < TOOL_PIPE_KEYS; k++)
        if (!strcmp(word, keys[k]))
            return set(p, k, value, err);
    return tool_note(err, GPP_ENOENT, "pipe: there is no \"%.60s\"", word);
}

gpp_status tool_pipe_parse(tool_pipe *p, const char *text, gpp_error *err)
{
    gpp_status status = GPP_OK;
    char *at, *copy = strdup(text);
    if (!copy)
        return tool_note(err, GPP_ENOMEM, "a pipe's text");
    for (char *word = strtok_r(copy, " ", &at); word && status == GPP_OK;
         word = strtok_r(NULL, " ", &at))
        status = set_named(p, word, err);
    free(copy);
    return status;
}

/* Takes a key's value from an option of its own. A message then begins with the option's name, not
 * with the key. */
static gpp_status set_option(tool_pipe *p, int key, const char *text, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    char option[32];
    size_t length = strlen(keys[key]);
    gpp_status status = set(p, key, text, &inner);
    if (status == GPP_OK)
        return GPP_OK;
    snprintf(option, sizeof option, "--%s", keys[key]);
    for (char *c = option; *c; c++)
        *c = *c == '_' ? '-' : *c;
    bool named = !strncmp(inner.msg, keys[key], length);
    return tool_note(err, status, "%s%s", named ? option : "",
                     named ? inner.msg + length : inner.msg);
}

gpp_status tool_pipe_take(tool_pipe *p, const tool_pipe_args *args, gpp_error *err)
{
    gpp_status status = args->text ? tool_pipe_parse(p, args->text, err) : GPP_OK;
    for (int k = 0; k < TOOL_PIPE_KEYS && status == GPP_OK; k++)
        if (args->word[k])
            status = set_option(p, k, args->word[k], err);
    if (status == GPP_OK && args->word[TOOL_BALANCE] && args->word[TOOL_PARTS] && !p->balance[0])
        status = tool_note(err, GPP_EINVAL, "--balance \"%.60s\" is not of %d partitions",
                           args->word[TOOL_BALANCE], p->partitions);
    return status;
}

gpp_status tool_pipe_take_steps(tool_pipe *p, const tool_pipe_args *args, gpp_error *err)
{
    tool_pipe_args some = {.word = {[TOOL_CHUNKS] = args->word[TOOL_CHUNKS],
                                    [TOOL_CHECKPOINT] = args->word[TOOL_CHECKPOINT]}};
    return tool_pipe_take(p, &some, err);
}

/* Settings that were not given leave the library's defaults. */
void tool_pipe_apply(const tool_pipe *p, gpp_pipe_options *o)
{
    o->partitions = p->partitions;
    o->balance = p->balance[0] ? p->balance : NULL;
    o->replicas = p->replicas ? p->replicas : 1;
    o->chunks = p->chunks ? p->chunks : 1;
    o->shard_optimizer = p->shard_optimizer;
    o->checkpoint = p->has_checkpoint ? p->checkpoint : o->checkpoint;
    o->deferred_batch_norm = p->deferred;
    o->ascending_backward = p->ascending;
    o->devices = p->devices ? p->device : NULL;
    o->device_count = p->devices;
    o->memory_limit = p->memory_limit;
    o->activation_limit = p->activation_limit;
    o->profile = p->profile;
    o->schedule = *p->schedule ? p->schedule : NULL;
    o->cuda_math = (gpp_math)p->math;
    o->cuda_any_algorithm = p->any_algorithm;
}

void tool_pipe_release(tool_pipe *p)
{
    gpp_profile_free(p->profile);
    p->profile = NULL;
}

static size_t write_balance(char *text, size_t size, const int balance[], int partitions)
{
    size_t at = 0;
    for (int j = 0; j < partitions && at < size; j++)
        at += (size_t)snprintf(text + at, size - at, "%s%d", j ? "," : "balance=", balance[j]);
    return at;
}

/* Says what the library has chosen (the balance) beside what was given. A table of one's own has
 * blanks, which words cannot have, so it is left out. */
void tool_pipe_describe(const gpp_pipe *pipe, const tool_pipe *how, char *text, size_t size)
{
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    size_t at = write_balance(text, size, info.balance, info.partitions);
    if (at < size)
        at += (size_t)snprintf(text + at, size - at, " chunks=%d checkpoint=%s", info.chunks,
                               gpp_checkpoint_name(info.checkpoint));
    if (info.replicas > 1 && at < size)
        at += (size_t)snprintf(text + at, size - at, " replicas=%d", info.replicas);
    if (how->activation_limit && at < size)
        at +=
            (size_t)snprintf(text + at, size - at, " activation_limit=%zu", how->activation_limit);
    if (*how->schedule && !strchr(how->schedule, ' ') && at < size)
        at += (size_t)snprintf(text + at, size - at, " schedule=%s", how->schedule);
    if (at < size)
        snprintf(text + at, size - at, " deferred_batch_norm=%d", how->deferred);
}

void tool_pipe_text(FILE *out, const gpp_pipe_options *o, const char *profile)
{
    for (int j = 0; j < o->partitions && o->balance; j++)
        fprintf(out, "%s%d", j ? "," : "balance=", o->balance[j]);
    fprintf(out, " chunks=%d checkpoint=%s", o->chunks, gpp_checkpoint_name(o->checkpoint));
    if (o->replicas > 1)
        fprintf(out, " replicas=%d shard_optimizer=%d", o->replicas, o->shard_optimizer);
    if (o->activation_limit)
        fprintf(out, " activation_limit=%zu", o->activation_limit);
    if (profile)
        fprintf(out, " budget_profile=%s", profile);
    for (int d = 0; d < o->device_count; d++)
        fprintf(out, "%s%s", d ? ";" : " devices=", o->devices[d]);
    if (o->memory_limit)
        fprintf(out, " memory_limit=%zu", o->memory_limit);
    if (o->deferred_batch_norm)
        fputs(" deferred_batch_norm=1", out);
    if (o->ascending_backward)
        fputs(" ascending_backward=1", out);
    if (o->schedule && !strchr(o->schedule, ' '))
        fprintf(out, " schedule=%s", o->schedule);
}

/* The runtime stops with the last pipe. A command that makes several pipes in turn keeps it up by
 * an idle one. */
gpp_status tool_idle_pipe(gpp_pipe **pipe, gpp_error *err)
{
    gpp_model *model = NULL;
    gpp_status status = gpp_model_new(&model, err);
    *pipe = NULL;
    if (status == GPP_OK)
        status = gpp_model_add(model, "identity", NULL, NULL, 0, err);
    if (status == GPP_OK)
        status = gpp_model_set_input(model, GPP_F32, 0, NULL, err);
    if (status == GPP_OK)
        status = gpp_pipe_new(pipe, model, NULL, err);
    gpp_model_free(model);
    return status;
}
