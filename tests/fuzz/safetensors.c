/*
 * tests/fuzz/safetensors.c: any bytes as a safetensors file: read or refused, and what was read is
 * written and read again as the same.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/data/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void insist(int holds)
{
    if (!holds)
        abort();
}

static void compare(const gpp_file *a, const gpp_file *b)
{
    insist(a->arrays == b->arrays && a->words == b->words);
    for (int k = 0; k < a->arrays; k++) {
        const struct gpp__file_array *x = &a->array[k], *y = &b->array[k];
        insist(!strcmp(x->name, y->name) && x->count == y->count);
        insist(x->tensor.dtype == y->tensor.dtype && x->tensor.rank == y->tensor.rank);
        insist(!memcmp(x->tensor.dim, y->tensor.dim, sizeof x->tensor.dim));
        insist(!memcmp(x->tensor.data, y->tensor.data, x->count * gpp_dtype_size(x->tensor.dtype)));
        insist(gpp_file_find(a, x->name, NULL, NULL) == GPP_OK);
    }
    for (int k = 0; k < a->words; k++) {
        const char *value = gpp_file_word(b, a->word[k].key);
        insist(value && !strcmp(value, a->word[k].value));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_file *f, *again;
    char *printed;
    gpp_status status = gpp__file_parse(&f, bytes, size, &err);
    insist((status == GPP_OK) == (f != NULL) && (status != GPP_OK) == (*err.msg != '\0'));
    if (status != GPP_OK)
        return 0;
    insist(gpp__file_print(f, &printed, &size, &err) == GPP_OK);
    insist(gpp__file_parse(&again, printed, size, &err) == GPP_OK);
    compare(f, again);
    free(printed);
    gpp_file_free(f);
    gpp_file_free(again);
    return 0;
}
