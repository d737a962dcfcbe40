/*
 * balance/profile_file.c: profiles in text files.
 *
 *     gridpipe-profile 2
 *     device cpu:0
 *     threads 1
 *     beside 0
 *     bytes_per_us 20000
 *     rows 32 0 0 0
 *     sweeps 25
 *     precise 1
 *     layers 2
 *     operators 3
 *     # label forward_ns ... (a line that begins with '#' says nothing)
 *     layer conv1 12500 12800 0 30100 200 288 0 262144 0
 *     layer relu1 ...
 *     # its layer, name, ...
 *     operator 0 channels_last 500 500 0
 *     operator 0 conv2d 12000 12300 30100
 *     operator 1 relu ...
 *
 * A profile of a GPU, whose device is "cuda:K", has four more lines behind the line of the device:
 *
 *     gpu NVIDIA H200
 *     cuda_math 0 (of gpp_math)
 *     cuda_any_algorithm 0
 *     link_bytes_per_us 25000
 *
 * Numbers are whole, so a file means the same in every locale, and reading a profile gives back
 * what was written. One space separates fields, and every line has an end. Everything has a fixed
 * place; anything else is an error that names its line.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance/internal.h"

static const char heading[] = "gridpipe-profile 2", before[] = "gridpipe-profile 1";
enum { NUMBERS = 9, MOST_LAYERS = 1 << 20, MOST_OPERATORS = 1 << 24 };
#define MOST_NS    ((uint64_t)1 << 53)
#define MOST_SPEED ((uint64_t)1 << 53)

/* A label or a device is one word. */
static bool is_word(const char *text, size_t size)
{
    size_t length = strnlen(text, size);
    for (size_t k = 0; k < length; k++)
        if (!isalnum((unsigned char)text[k]) && !strchr("_-.:,", text[k]))
            return false;
    return length > 0 && length < size;
}

/* --- writing ---------------------------------------------------------------------------------- */

static bool is_time(double us)
{
    return us >= 0 && us * 1e3 <= (double)MOST_NS;
}

/* The name of a GPU is a line of visible characters and single spaces. */
static bool is_title(const char *text, size_t size)
{
    size_t length = strnlen(text, size);
    for (size_t k = 0; k < length; k++)
        if (!isgraph((unsigned char)text[k]) &&
            (text[k] != ' ' || k == 0 || k == length - 1 || text[k - 1] == ' '))
            return false;
    return length > 0 && length < size;
}

static bool is_gpu(const gpp_profile *p)
{
    return strncmp(p->device, "cuda:", 5) == 0;
}

static bool is_speed(double bytes_per_us)
{
    return bytes_per_us >= 0 && bytes_per_us <= (double)MOST_SPEED;
}

static gpp_status check_gpu(const gpp_profile *p, gpp_error *err)
{
    if (!is_gpu(p))
        return !p->gpu[0] ? GPP_OK
                          : gpp__fail(err, GPP_EINVAL, "a profile of device \"%.63s\" with a GPU",
                                      p->device);
    if (!is_title(p->gpu, sizeof p->gpu))
        return gpp__fail(err, GPP_EINVAL, "\"%.63s\" is no name of the GPU %.63s", p->gpu,
                         p->device);
    if ((int)p->cuda_math < 0 || (int)p->cuda_math > GPP_MATH_BF16)
        return gpp__fail(err, GPP_EINVAL, "cuda_math is %d, none of gpp_math", (int)p->cuda_math);
    return is_speed(p->link_bytes_per_us)
               ? GPP_OK
               : gpp__fail(err, GPP_EINVAL, "link_bytes_per_us is %g, not >= 0 and finite",
                           p->link_bytes_per_us);
}

static gpp_status check_head(const gpp_profile *p, gpp_error *err)
{
    if (p->layers < 0 || p->layers > MOST_LAYERS || p->operators < 0 ||
        p->operators > MOST_OPERATORS)
        return gpp__fail(err, GPP_EINVAL, "a profile of %d layers and %d operators", p->layers,
                         p->operators);
    if (!is_word(p->device, sizeof p->device) || p->threads < 0 || p->sweeps < 0 || p->beside < 0)
        return gpp__fail(err, GPP_EINVAL,
                         "a profile of \"%.63s\" and %d devices beside (%d threads, %d sweeps)",
                         p->device, p->beside, p->threads, p->sweeps);
    if (!is_speed(p->bytes_per_us))
        return gpp__fail(err, GPP_EINVAL, "bytes_per_us is %g, not >= 0 and finite",
                         p->bytes_per_us);
    for (int b = 0; b < GPP_MAX_BATCHES; b++)
        if (p->rows[b] < 0)
            return gpp__fail(err, GPP_EINVAL, "rows[%d] is %lld", b, (long long)p->rows[b]);
    return GPP_OK;
}

static gpp_status check_layers(const gpp_profile *p, gpp_error *err)
{
    for (int u = 0; u < p->layers; u++) {
        const gpp_layer_profile *l = &p->layer[u];
        if (!is_word(l->label, sizeof l->label))
            return gpp__fail_layer(err, GPP_EINVAL, u, "label \"%.63s\" of layer %d is no word",
                                   l->label, u);
        if (!is_time(l->forward_us) || !is_time(l->recompute_us) ||
            !is_time(l->recompute_last_us) || !is_time(l->backward_us) || !is_time(l->error_us))
            return gpp__fail_layer(err, GPP_EINVAL, u,
                                   "layer %d (\"%s\") has a time that is not >= 0 and finite", u,
                                   l->label);
    }
    return GPP_OK;
}

static gpp_status check_operators(const gpp_profile *p, gpp_error *err)
{
    for (int k = 0; k < p->operators; k++) {
        const gpp_operator_profile *o = &p->op[k];
        if (o->layer < (k ? o[-1].layer : 0) || o->layer >= p->layers)
            return gpp__fail(err, GPP_EINVAL, "operator %d is of layer %d of %d%s", k, o->layer,
                             p->layers, k ? ", or before the last one's" : "");
        if (!is_word(o->name, sizeof o->name))
            return gpp__fail_layer(err, GPP_EINVAL, o->layer,
                                   "name \"%.31s\" of operator %d is no word", o->name, k);
        if (!is_time(o->forward_us) || !is_time(o->keep_us) || !is_time(o->backward_us))
            return gpp__fail_layer(err, GPP_EINVAL, o->layer,
                                   "operator %d (%s) has a time that is not >= 0 and finite", k,
                                   o->name);
    }
    return GPP_OK;
}

static void write_operators(FILE *out, const gpp_profile *p)
{
    fprintf(out, "# layer name forward_ns keep_ns backward_ns\n");
    for (int k = 0; k < p->operators; k++) {
        const gpp_operator_profile *o = &p->op[k];
        fprintf(out, "operator %d %s %lld %lld %lld\n", o->layer, o->name,
                llround(o->forward_us * 1e3), llround(o->keep_us * 1e3),
                llround(o->backward_us * 1e3));
    }
}

static void write_gpu(FILE *out, const gpp_profile *p)
{
    fprintf(out, "gpu %s\ncuda_math %d\ncuda_any_algorithm %d\nlink_bytes_per_us %lld\n", p->gpu,
            (int)p->cuda_math, p->cuda_any_algorithm, llround(p->link_bytes_per_us));
}

static void write_profile(FILE *out, const gpp_profile *p)
{
    fprintf(out, "%s\ndevice %s\n", heading, p->device);
    if (is_gpu(p))
        write_gpu(out, p);
    fprintf(out, "threads %d\nbeside %d\nbytes_per_us %lld\nrows", p->threads, p->beside,
            llround(p->bytes_per_us));
    for (int b = 0; b < GPP_MAX_BATCHES; b++)
        fprintf(out, " %lld", (long long)p->rows[b]);
    fprintf(out, "\nsweeps %d\nprecise %d\nlayers %d\noperators %d\n", p->sweeps, p->precise,
            p->layers, p->operators);
    fprintf(out, "# label forward_ns recompute_ns recompute_last_ns backward_ns error_ns "
                 "parameter_bytes activation_bytes output_bytes skip_bytes\n");
    for (int u = 0; u < p->layers; u++) {
        const gpp_layer_profile *l = &p->layer[u];
        fprintf(out, "layer %s %lld %lld %lld %lld %lld %zu %zu %zu %zu\n", l->label,
                llround(l->forward_us * 1e3), llround(l->recompute_us * 1e3),
                llround(l->recompute_last_us * 1e3), llround(l->backward_us * 1e3),
                llround(l->error_us * 1e3), l->parameter_bytes, l->activation_bytes,
                l->output_bytes, l->skip_bytes);
    }
    write_operators(out, p);
}

gpp_status gpp_profile_write(const gpp_profile *profile, const char *path, gpp_error *err)
{
    if (!profile || !path)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", profile ? "path" : "profile");
    gpp_status status = check_head(profile, err);
    if (status == GPP_OK)
        status = check_gpu(profile, err);
    if (status == GPP_OK)
        status = check_layers(profile, err);
    if (status == GPP_OK)
        status = check_operators(profile, err);
    if (status != GPP_OK)
        return status;
    FILE *out = fopen(path, "w");
    if (!out)
        return gpp__fail(err, GPP_EIO, "%.200s: cannot be written: %s", path, strerror(errno));
    write_profile(out, profile);
    bool failed = ferror(out);
    failed |= fclose(out) != 0;
    return failed ? gpp__fail(err, GPP_EIO, "%.200s: cannot be written: %s", path, strerror(errno))
                  : GPP_OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    FILE *in;
    char *line, *at; /* the present line without its end, and the part not yet read */
    size_t room;
    int number; /* of the present line */
    gpp_error *err;
} reader;

static gpp_status refuse(const reader *r, const char *expected)
{
    return gpp__fail(r->err, GPP_ESYNTAX, "%.200s: line %d: expected %s, found \"%.60s\"", r->path,
                     r->number, expected, r->at);
}

/* Go to the next line that is no comment. @param expected  for messages */
static gpp_status next_line(reader *r, const char *expected)
{
    do {
        errno = 0;
        ssize_t length = getline(&r->line, &r->room, r->in);
        r->number++;
        if (length < 0 && errno)
            return gpp__fail(r->err, errno == ENOMEM ? GPP_ENOMEM : GPP_EIO,
                             "%.200s: cannot be read: %s", r->path, strerror(errno));
        if (length < 0)
            return gpp__fail(r->err, GPP_ESYNTAX, "%.200s: line %d: expected %s, the file ends",
                             r->path, r->number, expected);
        if (r->line[length - 1] != '\n' || strlen(r->line) != (size_t)length)
            return gpp__fail(r->err, GPP_ESYNTAX, "%.200s: line %d does not end as a line of text",
                             r->path, r->number);
        r->line[length - 1] = 0;
        r->at = r->line;
    } while (*r->line == '#');
    return GPP_OK;
}

static gpp_status take_text(reader *r, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(r->at, text, length) != 0) {
        char expected[40];
        snprintf(expected, sizeof expected, "\"%s\"", text);
        return refuse(r, expected);
    }
    r->at += length;
    return GPP_OK;
}

static gpp_status take_word(reader *r, char *word, size_t size, const char *expected)
{
    size_t length = strcspn(r->at, " ");
    if (length >= size)
        return refuse(r, expected);
    memcpy(word, r->at, length);
    word[length] = 0;
    if (!is_word(word, size))
        return refuse(r, expected);
    r->at += length;
    return GPP_OK;
}

static gpp_status take_number(reader *r, uint64_t most, uint64_t *number)
{
    uint64_t value = 0;
    char *at = r->at;
    bool fits = true;
    for (; isdigit((unsigned char)*at); at++)
        fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(*at - '0'), &value);
    if (at == r->at || !fits || value > most) {
        char expected[48];
        snprintf(expected, sizeof expected, "a whole number up to %llu", (unsigned long long)most);
        return refuse(r, expected);
    }
    r->at = at;
    *number = value;
    return GPP_OK;
}

static gpp_status take_end(reader *r)
{
    return *r->at ? refuse(r, "the end of the line") : GPP_OK;
}

/* Read a line "key N ... N" with `count` numbers. */
static gpp_status read_numbers(reader *r, const char *key, int count, uint64_t most,
                               uint64_t number[])
{
    gpp_status status = next_line(r, key);
    if (status == GPP_OK)
        status = take_text(r, key);
    for (int k = 0; status == GPP_OK && k < count; k++) {
        status = take_text(r, " ");
        if (status == GPP_OK)
            status = take_number(r, most, &number[k]);
    }
    return status == GPP_OK ? take_end(r) : status;
}

static gpp_status read_heading(reader *r)
{
    gpp_status status = next_line(r, heading);
    if (status == GPP_OK && strcmp(r->line, before) == 0)
        return gpp__fail(r->err, GPP_ESYNTAX,
                         "%.200s: line %d: expected \"%s\", found \"%s\", which has no times of "
                         "operators: take the profile anew",
                         r->path, r->number, heading, before);
    if (status == GPP_OK)
        status = take_text(r, heading);
    return status == GPP_OK ? take_end(r) : status;
}

static gpp_status read_device(reader *r, gpp_profile *p)
{
    gpp_status status = next_line(r, "device");
    if (status == GPP_OK)
        status = take_text(r, "device ");
    if (status == GPP_OK)
        status = take_word(r, p->device, sizeof p->device, "a device");
    return status == GPP_OK ? take_end(r) : status;
}

static gpp_status read_name(reader *r, gpp_profile *p)
{
    gpp_status status = next_line(r, "gpu");
    if (status == GPP_OK)
        status = take_text(r, "gpu ");
    if (status != GPP_OK)
        return status;
    if (!is_title(r->at, sizeof p->gpu))
        return refuse(r, "what the GPU is called");
    strcpy(p->gpu, r->at);
    return GPP_OK;
}

static gpp_status read_gpu(reader *r, gpp_profile *p)
{
    uint64_t math = 0, any = 0, speed = 0;
    gpp_status status = read_name(r, p);
    if (status == GPP_OK)
        status = read_numbers(r, "cuda_math", 1, GPP_MATH_BF16, &math);
    if (status == GPP_OK)
        status = read_numbers(r, "cuda_any_algorithm", 1, 1, &any);
    if (status == GPP_OK)
        status = read_numbers(r, "link_bytes_per_us", 1, MOST_SPEED, &speed);
    p->cuda_math = (gpp_math)math;
    p->cuda_any_algorithm = any;
    p->link_bytes_per_us = (double)speed;
    return status;
}

/* Read the lines that say how many layers and operators follow. */
typedef struct lengths {
    int layers, operators;
} lengths;

/* Read the lines of numbers between the device and the layers, in their order. */
static gpp_status read_head(reader *r, gpp_profile *p, lengths *length)
{
    enum { THREADS, BESIDE, SPEED, ROWS, SWEEPS, PRECISE, LAYERS, OPERATORS, LINES };
    static const struct {
        const char *key;
        int count;
        uint64_t most;
    } line[LINES] = {{"threads", 1, INT32_MAX},       {"beside", 1, INT32_MAX},
                     {"bytes_per_us", 1, MOST_SPEED}, {"rows", GPP_MAX_BATCHES, INT64_MAX},
                     {"sweeps", 1, INT32_MAX},        {"precise", 1, 1},
                     {"layers", 1, MOST_LAYERS},      {"operators", 1, MOST_OPERATORS}};
    uint64_t n[LINES][GPP_MAX_BATCHES];
    gpp_status status = read_heading(r);
    if (status == GPP_OK)
        status = read_device(r, p);
    if (status == GPP_OK && is_gpu(p))
        status = read_gpu(r, p);
    for (int k = 0; status == GPP_OK && k < LINES; k++)
        status = read_numbers(r, line[k].key, line[k].count, line[k].most, n[k]);
    if (status != GPP_OK)
        return status;
    p->threads = (int)n[THREADS][0];
    p->beside = (int)n[BESIDE][0];
    p->bytes_per_us = (double)n[SPEED][0];
    p->sweeps = (int)n[SWEEPS][0];
    p->precise = n[PRECISE][0];
    for (int b = 0; b < GPP_MAX_BATCHES; b++)
        p->rows[b] = (int64_t)n[ROWS][b];
    *length = (lengths){(int)n[LAYERS][0], (int)n[OPERATORS][0]};
    return GPP_OK;
}

static gpp_status read_layer(reader *r, gpp_layer_profile *l)
{
    uint64_t n[NUMBERS];
    gpp_status status = next_line(r, "layer");
    if (status == GPP_OK)
        status = take_text(r, "layer ");
    if (status == GPP_OK)
        status = take_word(r, l->label, sizeof l->label, "a label");
    for (int k = 0; status == GPP_OK && k < NUMBERS; k++) {
        status = take_text(r, " ");
        if (status == GPP_OK)
            status = take_number(r, k < 5 ? MOST_NS : SIZE_MAX, &n[k]);
    }
    if (status == GPP_OK)
        status = take_end(r);
    if (status != GPP_OK)
        return status;
    double *time[] = {&l->forward_us, &l->recompute_us, &l->recompute_last_us, &l->backward_us,
                      &l->error_us};
    size_t *bytes[] = {&l->parameter_bytes, &l->activation_bytes, &l->output_bytes, &l->skip_bytes};
    for (int k = 0; k < NUMBERS; k++)
        if (k < 5)
            *time[k] = (double)n[k] / 1e3;
        else
            *bytes[k - 5] = (size_t)n[k];
    return GPP_OK;
}

/* An operator belongs to the layer of the operator before it, or to a later one. */
static gpp_status read_operator(reader *r, const gpp_profile *p, gpp_operator_profile *o)
{
    uint64_t layer, n[3];
    gpp_status status = next_line(r, "operator");
    if (status == GPP_OK)
        status = take_text(r, "operator ");
    const char *at = r->at;
    if (status == GPP_OK)
        status = take_number(r, INT32_MAX, &layer);
    if (status == GPP_OK &&
        (layer < (uint64_t)(p->operators ? o[-1].layer : 0) || layer >= (uint64_t)p->layers)) {
        r->at = (char *)at;
        return refuse(r, "a layer from the last operator's on");
    }
    if (status == GPP_OK)
        status = take_text(r, " ");
    if (status == GPP_OK)
        status = take_word(r, o->name, sizeof o->name, "an operator's name");
    for (int k = 0; status == GPP_OK && k < 3; k++) {
        status = take_text(r, " ");
        if (status == GPP_OK)
            status = take_number(r, MOST_NS, &n[k]);
    }
    if (status == GPP_OK)
        status = take_end(r);
    if (status != GPP_OK)
        return status;
    o->layer = (int)layer;
    o->forward_us = (double)n[0] / 1e3;
    o->keep_us = (double)n[1] / 1e3;
    o->backward_us = (double)n[2] / 1e3;
    return GPP_OK;
}

/* Make room for one element more than `count`. Memory grows with the lines that are read, whatever
 * number the file claims. */
static gpp_status reserve(reader *r, void **list, int count, size_t size)
{
    if (count & (count - 1) || (count && count < 16))
        return GPP_OK; /* room grows at 0, 16, 32, 64, ... */
    void *more = realloc(*list, (count ? 2 * (size_t)count : 16) * size);
    if (!more)
        return gpp__fail(r->err, GPP_ENOMEM, "a profile of %d lines and more", count);
    *list = more;
    return GPP_OK;
}

static gpp_status read_layers(reader *r, gpp_profile *p, int layers)
{
    gpp_status status = GPP_OK;
    while (status == GPP_OK && p->layers < layers) {
        void *list = p->layer;
        status = reserve(r, &list, p->layers, sizeof *p->layer);
        p->layer = list;
        if (status != GPP_OK)
            break;
        p->layer[p->layers] = (gpp_layer_profile){.label = ""};
        status = read_layer(r, &p->layer[p->layers]);
        p->layers += status == GPP_OK;
    }
    return status;
}

static gpp_status read_operators(reader *r, gpp_profile *p, int operators)
{
    gpp_status status = GPP_OK;
    while (status == GPP_OK && p->operators < operators) {
        void *list = p->op;
        status = reserve(r, &list, p->operators, sizeof *p->op);
        p->op = list;
        if (status != GPP_OK)
            break;
        p->op[p->operators] = (gpp_operator_profile){.name = ""};
        status = read_operator(r, p, &p->op[p->operators]);
        p->operators += status == GPP_OK;
    }
    return status;
}

static gpp_status read_end(reader *r)
{
    int c = fgetc(r->in);
    if (c != EOF)
        return gpp__fail(r->err, GPP_ESYNTAX,
                         "%.200s: line %d: the file goes on after its last operator", r->path,
                         r->number + 1);
    return ferror(r->in) ? gpp__fail(r->err, GPP_EIO, "%.200s: cannot be read", r->path) : GPP_OK;
}

static gpp_status read_profile(reader *r, gpp_profile *p)
{
    lengths length;
    gpp_status status = read_head(r, p, &length);
    if (status == GPP_OK)
        status = read_layers(r, p, length.layers);
    if (status == GPP_OK)
        status = read_operators(r, p, length.operators);
    return status == GPP_OK ? read_end(r) : status;
}

gpp_status gpp_profile_read(gpp_profile **profile, const char *path, gpp_error *err)
{
    if (!profile)
        return gpp__fail(err, GPP_EINVAL, "profile is NULL");
    *profile = NULL;
    if (!path)
        return gpp__fail(err, GPP_EINVAL, "path is NULL");
    reader r = {.path = path, .in = fopen(path, "r"), .err = err};
    if (!r.in)
        return gpp__fail(err, GPP_EIO, "%.200s: cannot be read: %s", path, strerror(errno));
    gpp_profile *p = calloc(1, sizeof *p);
    gpp_status status =
        p ? read_profile(&r, p) : gpp__fail(err, GPP_ENOMEM, "a profile from %.200s", path);
    if (status == GPP_OK)
        *profile = p;
    else
        gpp_profile_free(p);
    free(r.line);
    fclose(r.in);
    return status;
}

void gpp_profile_free(gpp_profile *profile)
{
    if (!profile)
        return;
    free(profile->op);
    free(profile->layer);
    free(profile);
}
