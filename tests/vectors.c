/*
 * tests/vectors.c: reading safetensors: eight bytes of little-endian header length, a JSON object
 * {name: {dtype, shape, data_offsets}, "__metadata__": {...}}, raw row-major data.
 */
#include "tests/vectors.h"

#include <dirent.h>
#include <jansson.h>
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

/* One entry of the header, its data copied to memory of its own: offsets need not be aligned. */
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
