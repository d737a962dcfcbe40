/*
 * tests/fuzz/model_text.c: any bytes as model text: read or refused, all of it or nothing. What was
 * read is compiled for an image, and where that does not fit, for a row.
 */
#include <stdlib.h>
#include <string.h>

#include <gridpipe/model.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void insist(int holds)
{
    if (!holds)
        abort();
}

static void compile(gpp_model *model)
{
    static const int64_t image[] = {4, 16, 16}, row[] = {12};
    gpp_error err = GPP_ERROR_INIT;
    if (gpp_model_set_input(model, GPP_F32, 3, image, &err) == GPP_OK)
        return;
    insist(*err.msg != '\0');
    gpp_model_set_input(model, GPP_F32, 1, row, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    char *text = malloc(size + 1);
    insist(text && gpp_model_new(&model, NULL) == GPP_OK);
    memcpy(text, bytes, size);
    text[size] = '\0';
    gpp_status status = gpp_model_add_text(model, text, &err);
    insist((status != GPP_OK) == (*err.msg != '\0'));
    insist((status == GPP_OK) == (gpp_model_layers(model) > 0));
    if (status == GPP_OK)
        compile(model);
    gpp_model_free(model);
    free(text);
    return 0;
}
