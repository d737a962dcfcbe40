/*
 * codelets/cuda/conv.cu: convolutions by cuDNN or by columns: how to make one, its memory, and
 * calls. conv.h says which is used and why. conv_columns.cu says what limits the columns.
 */
#include <stdio.h>
#include <stdlib.h>

#include "codelets/cuda/conv_internal.h"

/* Alignment of a workspace, the same as cudaMalloc's. Scratch itself is only aligned to a cache
 * line and lies at another address in every partition, but an algorithm must not see a difference.
 */
static const uintptr_t grain = 256;

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool is_plain(const gpp__conv_shape *s)
{
    bool plain = true;
    for (int k = 0; k < 2; k++)
        plain = plain && s->kernel[k] == 1 && s->stride[k] == 1 && s->padding[k] == 0;
    return plain;
}

/* --- one call --------------------------------------------------------------------------------- */

static void *aligned(void *at)
{
    return (void *)(((uintptr_t)at + grain - 1) & ~(grain - 1));
}

/* With bfloat16, cuDNN's operands and results both are bfloat16. By columns, results are float32.
 */
static void place(gpp__conv_call *k, gpp__conv_way which, bool columns, gpp__cuda_scratch *room)
{
    const gpp__cuda_conv *c = k->conv;
    const gpp__conv_shape *s = &c->shape;
    size_t rest = columns ? gpp__conv_columns_bytes(c, k->cuda, which) : c->way[which].workspace;
    if (k->cuda->math == GPP__MATH_BF16) {
        if (!columns || which != GPP__CONV_DATA)
            k->image = gpp__cuda_take(room, (size_t)gpp__conv_images(s, c->rows) * 2);
        if (!columns || which != GPP__CONV_FORWARD)
            k->map = gpp__cuda_take(room, (size_t)gpp__conv_maps(s, c->rows) * 2);
        if (!columns && which == GPP__CONV_WEIGHTS) {
            k->grad = gpp__cuda_take(room, (size_t)gpp__conv_weights(s) * 2);
            k->sum = (float *)gpp__cuda_take(room, (size_t)gpp__conv_weights(s) * sizeof(float));
        }
    }
    k->rest = aligned(gpp__cuda_take(room, rest ? rest + grain - GPP__ALIGN : 0));
}

static gpp_status read_operands(const gpp__conv_call *k, gpp__conv_way which)
{
    const gpp__conv_shape *s = &k->conv->shape;
    int64_t rows = k->conv->rows;
    gpp_status status = GPP_OK;
    if (k->cuda->math != GPP__MATH_BF16)
        return GPP_OK;
    if (which != GPP__CONV_DATA)
        status =
            gpp__cuda_to_bf16(k->cuda, k->args->image, k->image, gpp__conv_images(s, rows), k->err);
    if (status == GPP_OK && which != GPP__CONV_FORWARD)
        status = gpp__cuda_to_bf16(k->cuda, k->args->map, k->map, gpp__conv_maps(s, rows), k->err);
    return status;
}

static gpp_status write_results(const gpp__conv_call *k, gpp__conv_way which)
{
    const gpp__cuda_conv_args *a = k->args;
    const gpp__conv_shape *s = &k->conv->shape;
    int64_t rows = k->conv->rows, weights = gpp__conv_weights(s);
    if (k->cuda->math != GPP__MATH_BF16)
        return GPP_OK;
    if (which == GPP__CONV_FORWARD)
        return gpp__cuda_from_bf16(k->cuda, k->map, a->map, gpp__conv_maps(s, rows), k->err);
    if (which == GPP__CONV_DATA)
        return gpp__cuda_from_bf16(k->cuda, k->image, a->image, gpp__conv_images(s, rows), k->err);
    gpp_status status =
        gpp__cuda_from_bf16(k->cuda, k->grad, a->add ? k->sum : a->grad, weights, k->err);
    if (status == GPP_OK && a->add)
        status = gpp__cuda_accumulate(k->cuda, a->grad, k->sum, weights, k->err);
    return status;
}

/* @param refused  out: true when cuDNN refused the call, and nothing was done */
static gpp_status run_one(const gpp__cuda_conv *conv, gpp__conv_way which, const gpp__run *run,
                          const gpp__cuda_conv_args *args, bool columns, bool *refused)
{
    gpp__conv_call k = {conv, run->cuda, args, run->err};
    gpp__cuda_scratch room = {(char *)args->scratch, 0};
    place(&k, which, columns, &room);
    gpp_status status = read_operands(&k, which);
    *refused = false;
    if (status == GPP_OK && columns)
        return gpp__conv_by_columns(&k, which);
    if (status == GPP_OK)
        status = gpp__conv_by_library(&k, which, refused);
    return status == GPP_OK && !*refused ? write_results(&k, which) : status;
}

gpp_status gpp__cuda_conv_run(const gpp__cuda_conv *conv, gpp__conv_way which, const gpp__run *run,
                              const gpp__cuda_conv_args *args)
{
    bool refused;
    gpp_status status = run_one(conv, which, run, args, conv->way[which].columns, &refused);
    return status == GPP_OK && refused ? run_one(conv, which, run, args, true, &refused) : status;
}

/* --- the convolution -------------------------------------------------------------------------- */

static gpp_status check_sizes(const gpp__cuda_conv *c, gpp_error *err)
{
    const gpp__conv_shape *s = &c->shape;
    const char *what[] = {"rows", "pixels of a map", "numbers in a line of an image",
                          "numbers in the windows of a line"};
    int64_t size[] = {c->rows, s->out[0] * s->out[1], s->in[1] * s->in_channels,
                      s->out[1] * gpp__conv_window(s)};
    gpp_status status = GPP_OK;
    for (int k = 0; k < 4 && status == GPP_OK; k++)
        status = gpp__cuda_expect_size(c->layer, what[k], size[k], err);
    return status;
}

static size_t measure(const gpp__cuda_conv *c, const gpp__cuda *cuda, gpp__conv_way which,
                      bool columns)
{
    gpp__cuda_scratch room = {NULL, 0};
    gpp__conv_call measured = {c, cuda};
    place(&measured, which, columns, &room);
    return room.used;
}

/* Sets the sizes of columns. A way of cuDNN also gets room for columns in case cuDNN refuses a
 * call, unless the columns of a row are so many that a failure is preferable. */
static void reserve(const gpp__cuda_conv *c, const gpp__cuda *cuda, gpp__conv_way which,
                    gpp__conv_choice *w)
{
    int64_t less = max64(GPP__CONV_STANDING_BY, (int64_t)w->workspace);
    w->chunk = gpp__conv_chunk(c, w->columns ? GPP__CONV_COLUMNS : less);
    size_t columns = measure(c, cuda, which, true);
    w->scratch = w->columns ? columns : measure(c, cuda, which, false);
    w->instead = columns <= w->scratch ||
                 gpp__conv_columns_bytes(c, cuda, which) <= (size_t)GPP__CONV_COLUMNS;
    if (w->instead && columns > w->scratch)
        w->scratch = columns;
}

/* What a way is computed by: "cuDNN 1, 0", as they are tried. */
static void name_way(const gpp__cuda_conv *c, const gpp__conv_choice *w, char *name, size_t size)
{
    if (w->columns) {
        snprintf(name, size, "%s", c->plain ? "cuBLAS" : "columns");
        return;
    }
    int at = snprintf(name, size, "cuDNN %d", w->algorithm[0]);
    for (int k = 1; k < w->algorithms && at < (int)size; k++)
        at += snprintf(name + at, size - (size_t)at, ", %d", w->algorithm[k]);
}

static void tell_choice(const gpp__cuda_conv *c)
{
    char by[GPP__CONV_WAYS][80];
    for (int k = 0; k < GPP__CONV_WAYS; k++)
        name_way(c, &c->way[k], by[k], sizeof by[k]);
    gpp__log(GPP_LOG_DEBUG,
             "%s (layer %d, \"%s\"), %lld rows: maps by %s; gradients of images by %s, of weights "
             "by %s",
             c->layer->op->name, c->layer->index, c->layer->label, (long long)c->rows,
             by[GPP__CONV_FORWARD], by[GPP__CONV_DATA], by[GPP__CONV_WEIGHTS]);
}

gpp_status gpp__cuda_conv_new(gpp__cuda_conv **out, const gpp__cuda *cuda, const gpp__layer *layer,
                              const gpp__conv_shape *shape, int64_t rows, bool library,
                              gpp_error *err)
{
    gpp__cuda_conv *c = (gpp__cuda_conv *)calloc(1, sizeof *c);
    *out = c;
    if (!c)
        return gpp__fail_layer(err, GPP_ENOMEM, layer->index, "%s (layer %d, \"%s\"): kernels",
                               layer->op->name, layer->index, layer->label);
    c->shape = *shape, c->layer = layer, c->rows = rows, c->plain = is_plain(shape);
    for (int k = 0; k < GPP__CONV_WAYS; k++)
        c->way[k].columns = true;
    gpp_status status = check_sizes(c, err);
    if (status == GPP_OK && library && !c->plain)
        status = gpp__conv_choose(c, cuda, err);
    if (status != GPP_OK) {
        gpp__cuda_conv_free(c);
        *out = NULL;
        return status;
    }
    for (int k = 0; k < GPP__CONV_WAYS; k++)
        reserve(c, cuda, (gpp__conv_way)k, &c->way[k]);
    tell_choice(c);
    return GPP_OK;
}

void gpp__cuda_conv_free(gpp__cuda_conv *c)
{
    if (!c)
        return;
    for (int k = 0; k < GPP__CONV_WAYS; k++)
        if (c->way[k].how)
            cudnnDestroyConvolutionDescriptor(c->way[k].how);
    if (c->weights)
        cudnnDestroyFilterDescriptor(c->weights);
    if (c->map)
        cudnnDestroyTensorDescriptor(c->map);
    if (c->image)
        cudnnDestroyTensorDescriptor(c->image);
    free(c);
}

bool gpp__cuda_conv_by_library(const gpp__cuda_conv *conv, gpp__conv_way which)
{
    return !conv->way[which].columns;
}

size_t gpp__cuda_conv_scratch(const gpp__cuda_conv *conv, gpp__conv_way which)
{
    return conv->way[which].scratch;
}
