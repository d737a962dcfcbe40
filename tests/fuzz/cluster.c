/*
 * tests/fuzz/cluster.c: any bytes as the description of a cluster: read or refused, and what was
 * read is written and read again as the same.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/recipe/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void insist(int holds)
{
    if (!holds)
        abort();
}

static char *print(const gpp_cluster *c, size_t *size)
{
    char *text;
    FILE *out = open_memstream(&text, size);
    insist(out != NULL);
    gpp__cluster_print(c, out);
    insist(fclose(out) == 0);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_cluster *c, *again;
    gpp_status status = gpp__cluster_parse(&c, "f", (const char *)bytes, size, &err);
    insist((status == GPP_OK) == (c != NULL) && (status != GPP_OK) == (*err.msg != '\0'));
    if (status != GPP_OK)
        return 0;
    insist(gpp__cluster_check(c, &err) == GPP_OK);
    char *first = print(c, &size);
    insist(gpp__cluster_parse(&again, "f", first, size, &err) == GPP_OK);
    insist(again->nodes == c->nodes && again->devices == c->devices);
    char *second = print(again, &size);
    insist(!strcmp(first, second));
    free(first);
    free(second);
    gpp_cluster_free(c);
    gpp_cluster_free(again);
    return 0;
}
