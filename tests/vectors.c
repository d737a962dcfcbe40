/*
 * tests/vectors.c: reading safetensors files, and running what they describe. A file is eight bytes
 * of little-endian header length, a JSON object {name: {dtype, shape, data_offsets},
 * "__metadata__": {...}}, and raw row-major data.
 */
#include "tests/vectors.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void folder(char *out, size_t size)
{
    const char *given = getenv("GRIDPIPE_VECTORS");
    if (given && *given)
        snprintf(out, size, "%s", given);
    else
        snprintf(out, size, "%s/../shared/vectors", GPP_SOURCE_DIR);
}

/* Names must fit into test_vector.file. */
static int is_vector(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    return end && strcmp(end, ".safetensors") == 0 && strlen(entry->d_name) < 64;
}

int test_vectors_list(char ***names)
{
    char path[1024];
    struct dirent **entry;
    folder(path, sizeof path);
    int count = scandir(path, &entry, is_vector, alphasort);
    if (count < 0)
        return -1;
    *names = calloc((size_t)count + 1, sizeof **names);
    for (int k = 0; k < count; k++) {
        if (*names)
            (*names)[k] = strdup(entry[k]->d_name);
        free(entry[k]);
    }
    free(entry);
    return *names ? count : -1;
}

void test_vectors_free(char **names, int count)
{
    for (int k = 0; k < count; k++)
        free(names[k]);
    free(names);
}

/* The whole file; NULL when it cannot be read. */
static char *slurp(const char *file, size_t *size)
{
    char path[1200], dir[1024], *bytes = NULL;
    folder(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *in = fopen(path, "rb");
    if (!in)
        return NULL;
    if (fseek(in, 0, SEEK_END) == 0 && ftell(in) >= 0) {
        *size = (size_t)ftell(in);
        rewind(in);
        bytes = malloc(*size + 1);
        if (bytes && fread(bytes, 1, *size, in) != *size) {
            free(bytes);
            bytes = NULL;
        }
    }
    fclose(in);
    return bytes;
}

/* Reads an entry of the header. Its data is copied to memory of its own, because offsets need not
 * be aligned. */
static bool read_array(test_array *a, const char *name, json_t *entry, const char *data,
                       size_t size)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_t *shape = json_object_get(entry, "shape"), *at = json_object_get(entry, "data_offsets");
    size_t begin = (size_t)json_integer_value(json_array_get(at, 0));
    size_t end = (size_t)json_integer_value(json_array_get(at, 1));
    if (!dtype || json_array_size(shape) > GPP_MAX_RANK || begin > end || end > size)
        return false;
    if (strcmp(dtype, "F32") != 0 && strcmp(dtype, "I64") != 0)
        return false;
    snprintf(a->name, sizeof a->name, "%s", name);
    a->dtype = strcmp(dtype, "F32") == 0 ? GPP_F32 : GPP_I64;
    a->rank = (int)json_array_size(shape);
    a->count = 1;
    for (int d = 0; d < a->rank; d++)
        a->count *= a->dim[d] = json_integer_value(json_array_get(shape, (size_t)d));
    if ((size_t)a->count * (a->dtype == GPP_F32 ? 4 : 8) != end - begin)
        return false;
    a->data = malloc(end - begin + 1);
    if (a->data)
        memcpy(a->data, data + begin, end - begin);
    return a->data != NULL;
}

static bool read_arrays(test_vector *v, const char *data, size_t size, char why[128])
{
    const char *name;
    json_t *entry, *header = v->header;
    v->array = calloc(json_object_size(header) + 1, sizeof *v->array);
    if (!v->array)
        return false;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        snprintf(why, 128, "array %.60s cannot be read", name);
        if (!read_array(&v->array[v->count++], name, entry, data, size))
            return false;
    }
    return true;
}

test_vector *test_vector_open(const char *file, char why[128])
{
    size_t size = 0;
    uint64_t length = 0;
    char *bytes = slurp(file, &size);
    test_vector *v = calloc(1, sizeof *v);
    snprintf(why, 128, "no such file, or no safetensors header");
    if (!bytes || !v || size < 8)
        goto fail;
    for (int k = 7; k >= 0; k--)
        length = length << 8 | (unsigned char)bytes[k];
    if (length > size - 8)
        goto fail;
    v->header = json_loadb(bytes + 8, length, 0, NULL);
    if (!v->header || !read_arrays(v, bytes + 8 + length, size - 8 - length, why))
        goto fail;
    snprintf(v->file, sizeof v->file, "%.63s", file);
    free(bytes);
    return v;
fail:
    free(bytes);
    test_vector_close(v);
    return NULL;
}

void test_vector_close(test_vector *v)
{
    if (!v)
        return;
    for (int k = 0; k < v->count; k++)
        free(v->array[k].data);
    free(v->array);
    json_decref(v->header);
    free(v);
}

const char *test_vector_word(const test_vector *v, const char *key)
{
    const char *word =
        json_string_value(json_object_get(json_object_get(v->header, "__metadata__"), key));
    return word ? word : "";
}

const test_array *test_vector_find(const test_vector *v, const char *name)
{
    for (int k = 0; k < v->count; k++)
        if (strcmp(v->array[k].name, name) == 0)
            return &v->array[k];
    return NULL;
}

/* --- running a layer case --------------------------------------------------------------------- */

typedef struct run {
    const test_vector *v;
    test_rig *rig;
    test_vector_check check;
    int used; /* arrays given or compared */
} run;

/* A wrong file is a wrong test: the program ends. */
static void insist(const run *r, bool fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "%s: %s\n", r->v->file, what);
    abort();
}

/* The array "x0", "x1", ...; where there is only one it is called "x". NULL: there is none. */
static const test_array *find_numbered(const test_vector *v, const char *name, int t)
{
    char full[64];
    snprintf(full, sizeof full, "%s%d", name, t);
    const test_array *a = test_vector_find(v, full);
    return a || t > 0 ? a : test_vector_find(v, name);
}

/* Integers must be equal; floats may be off, and the caller judges by how much. */
static void compare(run *r, const test_array *want, const void *got, int64_t count)
{
    insist(r, want->count == count, want->name);
    double off = want->dtype == GPP_F32 ? test_distance(got, want->data, count)
                 : memcmp(got, want->data, (size_t)count * sizeof(int64_t)) ? INFINITY
                                                                            : 0;
    r->check(r->v->file, want->name, off);
    r->used++;
}

/* An input has its rows as first dimension. Messages of kernels are not kept. */
static void make_rig(run *r, int threads)
{
    const test_vector *v = r->v;
    gpp__desc in[GPP__MAX_TENSORS];
    int64_t batch[GPP__BATCHES] = {0};
    gpp_error err = GPP_ERROR_INIT;
    int count = 0;
    for (const test_array *x; (x = find_numbered(v, "x", count)) != NULL; count++) {
        in[count] = (gpp__desc){.dtype = x->dtype, .rank = x->rank - 1};
        memcpy(in[count].dim, x->dim + 1, (size_t)(x->rank - 1) * sizeof *x->dim);
        batch[0] = x->dim[0];
    }
    gpp_status status = test_rig_new_tuple(&r->rig, test_vector_word(v, "model"), 0, in, count,
                                           batch, threads, &err);
    insist(r, status == GPP_OK, err.msg);
    r->rig->run.err = NULL;
    r->rig->run.training = strcmp(test_vector_word(v, "training"), "0") != 0;
}

static void load_params(run *r)
{
    for (int p = 0; p < r->rig->layer.param_count; p++) {
        char name[64];
        const gpp__param *param = &r->rig->layer.param[p];
        snprintf(name, sizeof name, "param.layer.%s", param->name);
        const test_array *value = test_vector_find(r->v, name);
        insist(r, value && value->rank == param->rank && value->dtype == param->dtype, name);
        for (int d = 0; d < param->rank; d++)
            insist(r, value->dim[d] == param->dim[d], name);
        memcpy(test_rig_param(r->rig, p), value->data,
               (size_t)value->count * gpp_dtype_size(param->dtype));
        r->used++;
    }
}

static void run_forward(run *r)
{
    const gpp__layer *layer = &r->rig->layer;
    const void *in[GPP__MAX_TENSORS];
    void *out[GPP__MAX_TENSORS];
    for (int t = 0; t < layer->in_count; t++, r->used++)
        in[t] = find_numbered(r->v, "x", t)->data;
    for (int t = 0; t < layer->out_count; t++)
        out[t] = test_room((size_t)test_rig_output(r->rig, t) * sizeof(int64_t));
    insist(r, test_rig_forward_tuple(r->rig, in, out) == GPP_OK, "the forward failed");
    for (int t = 0; t < layer->out_count; t++) {
        const test_array *y = find_numbered(r->v, "y", t);
        insist(r, y != NULL, "y is missing");
        compare(r, y, out[t], test_rig_output(r->rig, t));
        free(out[t]);
    }
}

static void run_backward(run *r)
{
    const gpp__layer *layer = &r->rig->layer;
    const float *grad_out[GPP__MAX_TENSORS];
    float *grad_in[GPP__MAX_TENSORS] = {NULL};
    for (int t = 0; t < layer->out_count; t++, r->used++) {
        const test_array *grad = find_numbered(r->v, "grad_y", t);
        insist(r, grad != NULL, "grad_y is missing");
        grad_out[t] = grad->data;
    }
    for (int t = 0; t < layer->in_count; t++)
        if (find_numbered(r->v, "grad.x", t))
            grad_in[t] = test_room((size_t)test_rig_input(r->rig, t) * sizeof(float));
    insist(r, test_rig_backward_tuple(r->rig, grad_out, grad_in, false) == GPP_OK,
           "the backward failed");
    for (int t = 0; t < layer->in_count; t++)
        if (grad_in[t]) {
            compare(r, find_numbered(r->v, "grad.x", t), grad_in[t], test_rig_input(r->rig, t));
            free(grad_in[t]);
        }
}

/* A parameter is compared by its gradient, a buffer by its value after the forward was
 * committed. */
static void compare_params(run *r)
{
    for (int p = 0; p < r->rig->layer.param_count; p++) {
        char name[64];
        const gpp__param *param = &r->rig->layer.param[p];
        snprintf(name, sizeof name, "%s.layer.%s", param->buffer ? "after" : "grad", param->name);
        const test_array *want = test_vector_find(r->v, name);
        insist(r, want != NULL, name);
        float *grad = test_room((size_t)param->count * sizeof *grad);
        if (!param->buffer)
            test_rig_grad(r->rig, p, grad);
        compare(r, want, param->buffer ? test_rig_param(r->rig, p) : grad, param->count);
        free(grad);
    }
}

void test_vector_run(const test_vector *v, int threads, test_vector_check check)
{
    run r = {.v = v, .check = check};
    make_rig(&r, threads);
    load_params(&r);
    run_forward(&r);
    run_backward(&r);
    if (r.rig->stats && r.rig->run.training)
        test_rig_commit(r.rig, 1, (const char *const[]){r.rig->stats});
    compare_params(&r);
    insist(&r, r.used == v->count, "not every array was used");
    test_rig_free(r.rig);
}

static bool is_case_of(const test_vector *v, const char *op)
{
    const char *model = test_vector_word(v, "model");
    size_t length = strlen(op);
    return strcmp(test_vector_word(v, "kind"), "layer") == 0 && strncmp(model, op, length) == 0 &&
           strchr(" @\n", model[length]) != NULL;
}

int test_vectors_run(const char *op, int threads, test_vector_check check)
{
    char **names, why[128];
    int count = test_vectors_list(&names), done = 0;
    if (count < 0)
        return -1;
    for (int k = 0; k < count; k++) {
        test_vector *v = test_vector_open(names[k], why);
        if (!v) {
            fprintf(stderr, "%s: %s\n", names[k], why);
            abort();
        }
        if (is_case_of(v, op)) {
            test_vector_run(v, threads, check);
            done++;
        }
        test_vector_close(v);
    }
    test_vectors_free(names, count);
    return done;
}
