/* tests/files.c: see tests/files.h. */
#include "tests/files.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void test_folder_new(char path[256])
{
    const char *base = getenv("TMPDIR");
    snprintf(path, 256, "%.180s/gridpipe-XXXXXX", base && *base ? base : P_tmpdir);
    cr_assert(mkdtemp(path), "no folder %s", path);
}

const char *test_path(const char *folder, const char *name, char out[512])
{
    snprintf(out, 512, "%.230s/%.270s", folder, name);
    return out;
}

void test_folder_remove(const char *path)
{
    char name[512];
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && (e = readdir(folder)) != NULL;)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            remove(test_path(path, e->d_name, name));
    if (folder)
        closedir(folder);
    rmdir(path);
}

int test_folder_count(const char *path, const char *part)
{
    int count = 0;
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && (e = readdir(folder)) != NULL;)
        count += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strstr(e->d_name, part);
    if (folder)
        closedir(folder);
    return count;
}

void test_bytes_write(const char *path, const void *bytes, size_t size)
{
    FILE *out = fopen(path, "wb");
    cr_assert(out && fwrite(bytes, 1, size, out) == size && !fclose(out), "%s", path);
}

char *test_bytes_read(const char *path, size_t *size)
{
    FILE *in = fopen(path, "rb");
    char *bytes = NULL;
    *size = 0;
    if (in && !fseek(in, 0, SEEK_END) && ftell(in) >= 0) {
        *size = (size_t)ftell(in);
        rewind(in);
        bytes = calloc(*size + 1, 1);
        if (bytes && fread(bytes, 1, *size, in) != *size) {
            free(bytes);
            bytes = NULL;
        }
    }
    if (in)
        fclose(in);
    return bytes;
}

char *test_safetensors(const char *header, size_t length, const void *data, size_t data_bytes,
                       size_t *size)
{
    *size = 8 + length + data_bytes;
    char *bytes = calloc(*size + 1, 1);
    cr_assert(bytes);
    for (int k = 0; k < 8; k++)
        bytes[k] = (char)((unsigned long long)length >> (8 * k));
    memcpy(bytes + 8, header, length);
    if (data)
        memcpy(bytes + 8 + length, data, data_bytes);
    return bytes;
}
