/* graph/recipe/ranks.c: see ranks.h. */
#include "graph/recipe/ranks.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "rank:"

int gpp__ranks_default(const gpp__ranks *ranks, int j, int n)
{
    return (int)((int64_t)j * ranks->count / n);
}

int gpp__ranks_read(const char *spec, const char **rest)
{
    *rest = spec;
    if (!spec || strncmp(spec, PREFIX, strlen(PREFIX)) != 0)
        return -1;
    const char *digits = spec + strlen(PREFIX);
    size_t length = strspn(digits, "0123456789");
    if (length == 0 || length > 6 || (digits[length] && digits[length] != '/'))
        return -1;
    *rest = digits + length + (digits[length] == '/');
    return atoi(digits);
}

gpp_status gpp__ranks_gather(const gpp__ranks *ranks, const char *what, gpp_status status,
                             uint64_t key, const void *mine, size_t bytes, void *all,
                             gpp_error *err)
{
    if (gpp__ranks_are_several(ranks))
        return ranks->gather(ranks->arg, what, status, key, mine, bytes, all, err);
    if (bytes)
        memcpy(all, mine, bytes);
    return status;
}

uint64_t gpp__hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t k = 0; k < bytes; k++)
        hash = (hash ^ byte[k]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t gpp__hash_text(uint64_t hash, const char *text)
{
    return gpp__hash(hash, text ? text : "\1", text ? strlen(text) + 1 : 1);
}
