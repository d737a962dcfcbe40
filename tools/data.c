/*
 * tools/data.c: tensors from safetensors files and from the readers of gridpipe/data.h, converted
 * as the command line says.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

enum { MOST_CHANNELS = 4096 };

int64_t tool_count(const gpp_tensor *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++)
        count *= t->dim[d];
    return count;
}

gpp_tensor tool_room(gpp_dtype dtype, int rank, const int64_t dim[])
{
    gpp_tensor t = {NULL, dtype, rank, {0}};
    for (int d = 0; d < rank; d++)
        t.dim[d] = dim[d];
    size_t bytes = (size_t)tool_count(&t) * gpp_dtype_size(dtype);
    t.data = calloc(1, bytes ? bytes : 1);
    return t;
}

/* The first eight bytes are a length, and the header behind them is a JSON object. */
bool tool_is_safetensors(const char *path)
{
    char head[9] = {0};
    FILE *in = fopen(path, "rb");
    bool is = in && fread(head, 1, sizeof head, in) == sizeof head && head[8] == '{';
    if (in)
        fclose(in);
    return is;
}

/* --- conversion ------------------------------------------------------------------------------- */

static gpp_status reshape(gpp_array *a, const char *shape, gpp_error *err)
{
    int64_t dim[GPP_MAX_RANK];
    int rank = tool_whole_list(shape, dim + 1, GPP_MAX_RANK - 1);
    if (rank < 0)
        return tool_note(err, GPP_EINVAL,
                         "--shape must be that of a sample, such as 1,28,28, got "
                         "\"%.60s\"",
                         shape);
    dim[0] = a->tensor.dim[0];
    return gpp_array_reshape(a, rank + 1, dim, err);
}

/* A single mean, or a single deviation, serves for all channels. */
static gpp_status scale(gpp_array *a, const tool_convert *how, gpp_error *err)
{
    static const char *const names[] = {"mean", "std"};
    const char *const text[] = {how->mean, how->std};
    float value[2][MOST_CHANNELS] = {{0}, {1}};
    int count[2] = {1, 1}, most = 1;
    for (int k = 0; k < 2; k++) {
        if (text[k] && (count[k] = tool_real_list(text[k], value[k], MOST_CHANNELS)) < 0)
            return tool_note(err, GPP_EINVAL,
                             "--%s must be numbers, one for each channel, got "
                             "\"%.60s\"",
                             names[k], text[k]);
        most = count[k] > most ? count[k] : most;
    }
    for (int k = 0; k < 2; k++)
        for (int c = 1; c < most && count[k] == 1; c++)
            value[k][c] = value[k][0];
    if (count[0] != count[1] && count[0] != 1 && count[1] != 1)
        return tool_note(err, GPP_EINVAL, "--mean has %d numbers, --std %d", count[0], count[1]);
    return gpp_array_to_floats(a, value[0], value[1], most, err);
}

/* Integers become floats unless --integers: images are stored as integers, and layers want
 * floats. */
static gpp_status convert_input(gpp_array *a, const tool_convert *how, gpp_error *err)
{
    gpp_status status = how->shape ? reshape(a, how->shape, err) : GPP_OK;
    bool scales = how->mean || how->std || (a->tensor.dtype == GPP_I64 && !how->integers);
    return status == GPP_OK && scales ? scale(a, how, err) : status;
}

static gpp_status convert_target(gpp_array *a, const tool_convert *how, gpp_error *err)
{
    static const tool_convert plain = {0};
    bool floats = how->float_target && a->tensor.dtype == GPP_I64;
    return floats ? scale(a, &plain, err) : GPP_OK;
}

/* --- files ------------------------------------------------------------------------------------ */

static gpp_status add_input(tool_data *d, const gpp_tensor *x, const char *path, gpp_error *err)
{
    if (d->inputs == GPP_MAX_TENSORS)
        return tool_note(err, GPP_EINVAL, "more than %d inputs", GPP_MAX_TENSORS);
    d->x_path[d->inputs] = path;
    d->x[d->inputs++] = *x;
    return GPP_OK;
}

static gpp_status full(const tool_data *d, gpp_error *err)
{
    bool is = d->arrays > GPP_MAX_TENSORS || d->files > GPP_MAX_TENSORS;
    return is ? tool_note(err, GPP_EINVAL, "more than %d inputs", GPP_MAX_TENSORS) : GPP_OK;
}

static gpp_status take_target(tool_data *d, const gpp_tensor *target, const char *path,
                              gpp_error *err)
{
    if (d->has_target)
        return tool_note(err, GPP_EINVAL, "there are two targets");
    d->has_target = true;
    d->target = *target;
    d->target_path = path;
    return GPP_OK;
}

static gpp_status open_file(tool_data *d, const char *path, const gpp_file **file, gpp_error *err)
{
    gpp_status status = full(d, err);
    if (status == GPP_OK)
        status = gpp_file_read(&d->file[d->files], path, err);
    *file = status == GPP_OK ? d->file[d->files++] : NULL;
    return status;
}

/* Takes x or x0, x1, ..., and the target if the file has one. Arrays of other names are not an
 * error: a training needs only these. */
static gpp_status input_of_file(tool_data *d, const char *path, gpp_error *err)
{
    const gpp_file *file;
    gpp_tensor t;
    int before = d->inputs;
    gpp_status status = open_file(d, path, &file, err);
    if (status == GPP_OK && gpp_file_find(file, "x", &t, NULL) == GPP_OK)
        status = add_input(d, &t, path, err);
    for (int k = 0; status == GPP_OK && k < GPP_MAX_TENSORS; k++) {
        char name[8];
        snprintf(name, sizeof name, "x%d", k);
        if (gpp_file_find(file, name, &t, NULL) != GPP_OK)
            break;
        status = add_input(d, &t, path, err);
    }
    if (status == GPP_OK && d->inputs == before) {
        char names[TOOL_NAMES];
        tool_array_names(file, names);
        status = tool_note(err, GPP_ENOENT, "%.120s has neither x nor x0; it has %s", path, names);
    }
    if (status == GPP_OK && gpp_file_find(file, "target", &t, NULL) == GPP_OK)
        status = take_target(d, &t, path, err);
    return status;
}

static gpp_status open_array(tool_data *d, const char *path, gpp_array **array, gpp_error *err)
{
    gpp_status status = full(d, err);
    if (status == GPP_OK)
        status = gpp_array_read(path, &d->array[d->arrays], err);
    *array = status == GPP_OK ? &d->array[d->arrays++] : NULL;
    return status;
}

gpp_status tool_data_input(tool_data *d, const char *path, const tool_convert *how, gpp_error *err)
{
    gpp_array *array;
    if (tool_is_safetensors(path))
        return input_of_file(d, path, err);
    gpp_status status = open_array(d, path, &array, err);
    if (status == GPP_OK)
        status = convert_input(array, how, err);
    return status == GPP_OK ? add_input(d, &array->tensor, path, err) : status;
}

gpp_status tool_data_target(tool_data *d, const char *path, const tool_convert *how, gpp_error *err)
{
    const gpp_file *file;
    gpp_array *array;
    gpp_tensor t;
    if (!tool_is_safetensors(path)) {
        gpp_status status = open_array(d, path, &array, err);
        if (status == GPP_OK)
            status = convert_target(array, how, err);
        return status == GPP_OK ? take_target(d, &array->tensor, path, err) : status;
    }
    gpp_status status = open_file(d, path, &file, err);
    if (status == GPP_OK)
        status = gpp_file_find(file, "target", &t, err);
    return status == GPP_OK ? take_target(d, &t, path, err) : status;
}

gpp_status tool_data_cifar10(tool_data *d, const char *const paths[], int count,
                             const tool_convert *how, gpp_error *err)
{
    gpp_array *images = &d->array[0], *labels = &d->array[1];
    gpp_status status = gpp_array_read_cifar10(paths, count, images, labels, err);
    if (status != GPP_OK)
        return status;
    d->arrays = 2;
    status = convert_input(images, how, err);
    if (status == GPP_OK)
        status = add_input(d, &images->tensor, NULL, err);
    return status == GPP_OK ? take_target(d, &labels->tensor, NULL, err) : status;
}

void tool_data_release(tool_data *d)
{
    for (int k = 0; k < d->arrays; k++)
        gpp_array_free(&d->array[k]);
    for (int k = 0; k < d->files; k++)
        gpp_file_free(d->file[k]);
    *d = (tool_data){0};
}

/* --- describing them -------------------------------------------------------------------------- */

void tool_array_names(const gpp_file *file, char text[TOOL_NAMES])
{
    size_t at = 0;
    int count = gpp_file_count(file);
    snprintf(text, TOOL_NAMES, "no arrays");
    for (int k = 0; k < count; k++) {
        const char *name;
        gpp_tensor t;
        if (gpp_file_array(file, k, &name, &t, NULL) != GPP_OK)
            continue;
        if (at + strlen(name) + 8 > TOOL_NAMES) {
            snprintf(text + at, TOOL_NAMES - at, "%s...", at ? ", " : "");
            return;
        }
        at += (size_t)snprintf(text + at, TOOL_NAMES - at, "%s%s", at ? ", " : "", name);
    }
}

/* Says where an array is from, for a message. */
static const char *origin(const char *path, const char *otherwise)
{
    return path ? path : otherwise;
}

gpp_status tool_data_rows(const tool_data *d, gpp_error *err)
{
    if (!d->inputs)
        return GPP_OK;
    const gpp_tensor *target = d->has_target ? &d->target : &d->x[0];
    const char *other = origin(d->has_target ? d->target_path : d->x_path[0], "the target");
    for (int k = 0; k < d->inputs; k++) {
        const char *path = origin(d->x_path[k], "the input");
        if (d->x[k].rank < 1 || target->rank < 1)
            return tool_note(err, GPP_ESHAPE, "%.120s: a data set needs rows, got a scalar",
                             d->x[k].rank < 1 ? path : other);
        if (d->x[k].dim[0] != target->dim[0])
            return tool_note(err, GPP_ESHAPE,
                             "%.80s has %lld rows, %.80s has %lld: all must have as many", path,
                             (long long)d->x[k].dim[0], other, (long long)target->dim[0]);
    }
    return GPP_OK;
}

/* The state of a training is a safetensors file as well, so it can be given by mistake. */
static bool is_state(const char *path)
{
    gpp_file *file = NULL;
    bool is = gpp_file_read(&file, path, NULL) == GPP_OK && gpp_file_word(file, "gridpipe.state");
    gpp_file_free(file);
    return is;
}

gpp_status tool_load_params(gpp_pipe *pipe, const char *path, unsigned flags, gpp_error *err)
{
    gpp_error inner = GPP_ERROR_INIT;
    gpp_status status = gpp_pipe_load(pipe, path, flags, &inner);
    if (status == GPP_OK)
        return GPP_OK;
    if (is_state(path))
        return tool_note(err, status,
                         "--params %.80s: this is a training's state, for \"gridpipe train "
                         "--resume\"; --save-params writes parameters alone",
                         path);
    return tool_note(err, status, "%s", inner.msg);
}

void tool_hint_shape(gpp_error *err, const tool_data *d, const tool_convert *how)
{
    size_t at = strlen(err->msg);
    if (err->code == GPP_ESHAPE && err->layer == 0 && d->arrays && !how->shape)
        snprintf(err->msg + at, sizeof err->msg - at,
                 "; --shape gives samples another shape, such as 1,28,28");
}

/* --- what a model is given -------------------------------------------------------------------- */

gpp_status tool_set_inputs(gpp_model *model, const gpp_tensor x[], int count, gpp_error *err)
{
    gpp_shape in[GPP_MAX_TENSORS];
    int64_t rows[GPP_MAX_BATCHES];
    int batches = 0;
    for (int t = 0; t < count; t++) {
        in[t] = (gpp_shape){.dtype = x[t].dtype, .rank = x[t].rank - 1};
        if (x[t].rank == 0) {
            in[t] = (gpp_shape){.dtype = x[t].dtype, .batch = GPP_ROWS_FIXED, .rows = 1};
            continue;
        }
        for (int d = 1; d < x[t].rank; d++)
            in[t].dim[d - 1] = x[t].dim[d];
        while (in[t].batch < batches && rows[in[t].batch] != x[t].dim[0])
            in[t].batch++;
        if (in[t].batch == GPP_MAX_BATCHES)
            return tool_note(err, GPP_EINVAL, "inputs of more than %d numbers of rows",
                             GPP_MAX_BATCHES);
        if (in[t].batch == batches)
            rows[batches++] = x[t].dim[0];
    }
    return gpp_model_set_inputs(model, in, count, err);
}

/* Reads a shape such as "3,32,32" or "i64:128". "" and "f32:" mean one number a row. */
static gpp_status parse_shape(const char *text, gpp_shape *shape, gpp_error *err)
{
    const char *dims = text;
    *shape = (gpp_shape){.dtype = GPP_F32};
    if (!strncmp(text, "i64:", 4) || !strncmp(text, "f32:", 4)) {
        shape->dtype = *text == 'i' ? GPP_I64 : GPP_F32;
        dims += 4;
    }
    if (*dims)
        shape->rank = tool_whole_list(dims, shape->dim, GPP_MAX_RANK - 1);
    if (shape->rank >= 0)
        return GPP_OK;
    return tool_note(err, GPP_EINVAL,
                     "input must be the shape of a sample, such as 3,32,32 or "
                     "i64:128, got \"%.60s\"",
                     text);
}

gpp_status tool_model_of(gpp_model **model, const char *text, const tool_words *shapes,
                         gpp_error *err)
{
    gpp_shape in[GPP_MAX_TENSORS];
    gpp_status status = tool_model_new(model, text, err);
    for (int k = 0; k < shapes->count && status == GPP_OK; k++)
        status = parse_shape(shapes->word[k], &in[k], err);
    return status == GPP_OK ? gpp_model_set_inputs(*model, in, shapes->count, err) : status;
}
