/*
 * codelets/cpu/dnnl.c: see dnnl.h. Written to the C interfaces of oneDNN 2.6 and 3: in 3 memory
 * descriptions are objects, and a convolution is described in one call.
 *
 * Each thread has memory objects of its own, which are made once and get their pointers at every
 * run. A pointer that has not changed is not set again, because oneDNN clears the padding of
 * blocked layouts whenever a pointer is set.
 */
#include "codelets/cpu/dnnl.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- one thread ------------------------------------------------------------------------------- */

/* Of the OpenMP runtime that oneDNN is linked with; omp.h belongs to a compiler, not to it. */
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);

static int enter(void)
{
    int threads = omp_get_max_threads();
    if (threads != 1)
        omp_set_num_threads(1);
    return threads;
}

static void leave(int threads)
{
    if (threads != 1)
        omp_set_num_threads(threads);
}

void gpp__dnnl_text(char *text, size_t size)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, size, "oneDNN %d.%d.%d isa %#x", v->major, v->minor, v->patch,
             (unsigned)dnnl_get_effective_cpu_isa());
}

static const char *const way_name[GPP__CONV_WAYS] = {"forward", "backward (data)",
                                                     "backward (weights)"};

static gpp_status fail(gpp_error *err, dnnl_status_t status, const char *what)
{
    if (status == dnnl_out_of_memory)
        return gpp__fail(err, GPP_ENOMEM, "oneDNN: %s: out of memory", what);
    return gpp__fail(err, GPP_EKERNEL, "oneDNN: %s: status %d", what, (int)status);
}

/* --- descriptions of memory ------------------------------------------------------------------- */

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t md_view;

static md_view view(const dnnl_memory_desc_t *d)
{
    return *d;
}

static dnnl_status_t md_new(dnnl_memory_desc_t *d, int rank, const dnnl_dims_t dims,
                            dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(d, rank, dims, dnnl_f32, tag);
}

static dnnl_status_t md_copy(dnnl_memory_desc_t *d, md_view from)
{
    return dnnl_memory_desc_clone(d, from);
}

static void md_free(dnnl_memory_desc_t *d)
{
    if (*d)
        dnnl_memory_desc_destroy(*d);
}
#else
typedef const dnnl_memory_desc_t *md_view;

static md_view view(const dnnl_memory_desc_t *d)
{
    return d;
}

static dnnl_status_t md_new(dnnl_memory_desc_t *d, int rank, const dnnl_dims_t dims,
                            dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(d, rank, dims, dnnl_f32, tag);
}

static dnnl_status_t md_copy(dnnl_memory_desc_t *d, md_view from)
{
    *d = *from;
    return dnnl_success;
}

static void md_free(dnnl_memory_desc_t *d)
{
    (void)d;
}
#endif

/* --- descriptions of convolutions ------------------------------------------------------------- */

struct gpp__dnnl_conv {
    gpp__conv_shape shape;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_desc_t plain, weights[GPP__CONV_WAYS];
    dnnl_primitive_t reorder[GPP__CONV_WAYS]; /* plain to packed; WEIGHTS: packed to plain */
    dnnl_memory_t plain_memory, packed_memory[GPP__CONV_WAYS];
    int64_t rows;
    char name[GPP__CONV_WAYS][48];
};

static dnnl_status_t plain_desc(const gpp__conv_shape *s, dnnl_format_tag_t tag,
                                dnnl_memory_desc_t *d)
{
    int64_t g = s->groups;
    dnnl_dims_t dense = {s->out_channels, s->in_channels, s->kernel[0], s->kernel[1]};
    dnnl_dims_t grouped = {g, s->out_channels / g, s->in_channels / g, s->kernel[0], s->kernel[1]};
    if (tag == dnnl_format_tag_undef)
        tag = g > 1 ? dnnl_goihw : dnnl_oihw;
    return g > 1 ? md_new(d, 5, grouped, tag) : md_new(d, 4, dense, tag);
}

/* The tensors of a convolution, and where it is. */
typedef struct tensors {
    dnnl_memory_desc_t x, y, bias;
    dnnl_dims_t stride, dilation, pad;
} tensors;

static void tensors_free(tensors *t)
{
    md_free(&t->x);
    md_free(&t->y);
    md_free(&t->bias);
}

static dnnl_status_t tensors_init(tensors *t, const gpp__conv_shape *s, int64_t rows)
{
    dnnl_dims_t xd = {rows, s->in_channels, s->in[0], s->in[1]}, bd = {s->out_channels};
    dnnl_dims_t yd = {rows, s->out_channels, s->out[0], s->out[1]};
    *t = (tensors){.stride = {s->stride[0], s->stride[1]},
                   .dilation = {s->dilation[0] - 1, s->dilation[1] - 1},
                   .pad = {s->padding[0], s->padding[1]}};
    dnnl_status_t status = md_new(&t->x, 4, xd, dnnl_nhwc);
    if (status == dnnl_success)
        status = md_new(&t->y, 4, yd, dnnl_nhwc);
    return status == dnnl_success ? md_new(&t->bias, 1, bd, dnnl_a) : status;
}

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t make_desc(const tensors *t, gpp__conv_way way, dnnl_engine_t engine,
                               md_view weights, md_view bias, const_dnnl_primitive_desc_t hint,
                               dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    if (way == GPP__CONV_FORWARD)
        return dnnl_convolution_forward_primitive_desc_create(
            out, engine, dnnl_forward_training, dnnl_convolution_direct, t->x, weights, bias, t->y,
            t->stride, t->dilation, t->pad, t->pad, attr);
    if (way == GPP__CONV_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(
            out, engine, dnnl_convolution_direct, t->x, weights, t->y, t->stride, t->dilation,
            t->pad, t->pad, hint, attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(
        out, engine, dnnl_convolution_direct, t->x, weights, bias, t->y, t->stride, t->dilation,
        t->pad, t->pad, hint, attr);
}
#else
static dnnl_status_t make_desc(const tensors *t, gpp__conv_way way, dnnl_engine_t engine,
                               md_view weights, md_view bias, const_dnnl_primitive_desc_t hint,
                               dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t status;
    if (way == GPP__CONV_FORWARD)
        status = dnnl_dilated_convolution_forward_desc_init(
            &d, dnnl_forward_training, dnnl_convolution_direct, &t->x, weights, bias, &t->y,
            t->stride, t->dilation, t->pad, t->pad);
    else if (way == GPP__CONV_DATA)
        status = dnnl_dilated_convolution_backward_data_desc_init(&d, dnnl_convolution_direct,
                                                                  &t->x, weights, &t->y, t->stride,
                                                                  t->dilation, t->pad, t->pad);
    else
        status = dnnl_dilated_convolution_backward_weights_desc_init(
            &d, dnnl_convolution_direct, &t->x, weights, bias, &t->y, t->stride, t->dilation,
            t->pad, t->pad);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &d, attr, engine, hint)
                                  : status;
}
#endif

/* Describe `way` for `rows` with the given weights. `hint`: the forward's description. */
static dnnl_status_t describe(const gpp__conv_shape *s, gpp__conv_way way, int64_t rows,
                              dnnl_engine_t engine, md_view weights,
                              const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    tensors t;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = tensors_init(&t, s, rows);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status =
            make_desc(&t, way, engine, weights, s->bias ? view(&t.bias) : NULL, hint, attr, out);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    tensors_free(&t);
    return status;
}

/* As describe, making the forward's description first where `way` needs it as a hint. */
static dnnl_status_t describe_way(const gpp__dnnl_conv *c, gpp__conv_way way, int64_t rows,
                                  md_view forward, md_view weights, dnnl_primitive_desc_t *out)
{
    if (way == GPP__CONV_FORWARD)
        return describe(&c->shape, way, rows, c->engine, weights, NULL, out);
    dnnl_primitive_desc_t hint;
    dnnl_status_t status =
        describe(&c->shape, GPP__CONV_FORWARD, rows, c->engine, forward, NULL, &hint);
    if (status != dnnl_success)
        return status;
    status = describe(&c->shape, way, rows, c->engine, weights, hint, out);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

/* --- layouts of weights ----------------------------------------------------------------------- */

static dnnl_status_t make_reorder(dnnl_engine_t engine, md_view from, md_view to,
                                  dnnl_primitive_t *out)
{
    dnnl_primitive_desc_t desc;
    dnnl_status_t status =
        dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, NULL);
    if (status != dnnl_success)
        return status;
    status = dnnl_primitive_create(out, desc);
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static dnnl_status_t choose_weights(gpp__dnnl_conv *c, gpp__conv_way way, md_view any)
{
    dnnl_primitive_desc_t desc;
    dnnl_status_t status = describe_way(c, way, c->rows, any, any, &desc);
    if (status != dnnl_success)
        return status;
    dnnl_query_t what =
        way == GPP__CONV_WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    status = md_copy(&c->weights[way], dnnl_primitive_desc_query_md(desc, what, 0));
    const char *name = "";
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name);
    strncpy(c->name[way], name, sizeof c->name[way] - 1);
    dnnl_primitive_desc_destroy(desc);
    if (status != dnnl_success)
        return status;
    md_view plain = view(&c->plain), packed = view(&c->weights[way]);
    bool unpack = way == GPP__CONV_WEIGHTS;
    status =
        make_reorder(c->engine, unpack ? packed : plain, unpack ? plain : packed, &c->reorder[way]);
    if (status == dnnl_success)
        status = dnnl_memory_create(&c->packed_memory[way], packed, c->engine, DNNL_MEMORY_NONE);
    return status;
}

static dnnl_status_t conv_init(gpp__dnnl_conv *c, const char **what)
{
    dnnl_memory_desc_t any;
    dnnl_status_t status;
    *what = "no CPU engine";
    if ((status = dnnl_engine_create(&c->engine, dnnl_cpu, 0)) != dnnl_success ||
        (status = dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags)) !=
            dnnl_success)
        return status;
    *what = "weights of a convolution";
    if ((status = plain_desc(&c->shape, dnnl_format_tag_undef, &c->plain)) != dnnl_success ||
        (status = dnnl_memory_create(&c->plain_memory, view(&c->plain), c->engine,
                                     DNNL_MEMORY_NONE)) != dnnl_success ||
        (status = plain_desc(&c->shape, dnnl_format_tag_any, &any)) != dnnl_success)
        return status;
    for (int way = 0; way < GPP__CONV_WAYS && status == dnnl_success; way++) {
        *what = way_name[way];
        status = choose_weights(c, (gpp__conv_way)way, view(&any));
    }
    md_free(&any);
    return status;
}

gpp_status gpp__dnnl_conv_new(gpp__dnnl_conv **out, const gpp__conv_shape *shape, int64_t rows,
                              gpp_error *err)
{
    *out = NULL;
    gpp__dnnl_conv *c = calloc(1, sizeof *c);
    if (!c)
        return gpp__fail(err, GPP_ENOMEM, "a convolution");
    c->shape = *shape;
    c->rows = rows;
    const char *what;
    int threads = enter();
    dnnl_status_t status = conv_init(c, &what);
    leave(threads);
    if (status != dnnl_success) {
        gpp__dnnl_conv_free(c);
        return fail(err, status, what);
    }
    *out = c;
    return GPP_OK;
}

void gpp__dnnl_conv_free(gpp__dnnl_conv *c)
{
    if (!c)
        return;
    for (int way = 0; way < GPP__CONV_WAYS; way++) {
        dnnl_memory_destroy(c->packed_memory[way]);
        dnnl_primitive_destroy(c->reorder[way]);
        md_free(&c->weights[way]);
    }
    dnnl_memory_destroy(c->plain_memory);
    md_free(&c->plain);
    dnnl_stream_destroy(c->stream);
    dnnl_engine_destroy(c->engine);
    free(c);
}

size_t gpp__dnnl_conv_bytes(const gpp__dnnl_conv *conv, gpp__conv_way way)
{
    return dnnl_memory_desc_get_size(view(&conv->weights[way]));
}

bool gpp__dnnl_conv_shared(const gpp__dnnl_conv *conv)
{
    return dnnl_memory_desc_equal(view(&conv->weights[GPP__CONV_FORWARD]),
                                  view(&conv->weights[GPP__CONV_DATA]));
}

const char *gpp__dnnl_conv_name(const gpp__dnnl_conv *conv, gpp__conv_way way)
{
    return conv->name[way];
}

/* oneDNN has no pointers to const; a source is only read. */
static void *unconst(const void *p)
{
    return (void *)(uintptr_t)p;
}

static gpp_status convert(const gpp__dnnl_conv *c, gpp__conv_way way, const void *plain,
                          const void *packed, gpp_error *err)
{
    bool unpack = way == GPP__CONV_WEIGHTS;
    dnnl_memory_t a = c->plain_memory, b = c->packed_memory[way];
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, unpack ? b : a}, {DNNL_ARG_TO, unpack ? a : b}};
    int threads = enter();
    dnnl_status_t status = dnnl_memory_set_data_handle(a, unconst(plain));
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(b, unconst(packed));
    if (status == dnnl_success)
        status = dnnl_primitive_execute(c->reorder[way], c->stream, 2, args);
    leave(threads);
    return status == dnnl_success ? GPP_OK : fail(err, status, "reordering weights");
}

gpp_status gpp__dnnl_conv_pack(const gpp__dnnl_conv *conv, gpp__conv_way way, const float *plain,
                               void *packed, gpp_error *err)
{
    return convert(conv, way, plain, packed, err);
}

gpp_status gpp__dnnl_conv_unpack(const gpp__dnnl_conv *conv, const void *packed, float *plain,
                                 gpp_error *err)
{
    return convert(conv, GPP__CONV_WEIGHTS, plain, packed, err);
}

/* --- kernels ---------------------------------------------------------------------------------- */

enum { X, WEIGHTS, BIAS, Y, SCRATCH, ARGS };

typedef struct set { /* of one thread */
    dnnl_stream_t stream;
    dnnl_memory_t memory[ARGS];
    const void *data[ARGS];
} set;

struct gpp__dnnl_kernel {
    gpp__conv_way way;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t desc[ARGS];
    int arg[ARGS]; /* DNNL_ARG_…; 0: not there */
    int threads;
    size_t missing_scratch; /* more than oneDNN asks for */
    set *set;
};

/* What x, weights, bias and y are to oneDNN in each way. */
static const int argument[GPP__CONV_WAYS][ARGS] = {
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD},
    {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST,
     DNNL_ARG_SCRATCHPAD},
};

static dnnl_status_t make_sets(gpp__dnnl_kernel *k, dnnl_engine_t engine)
{
    dnnl_status_t status = dnnl_success;
    for (int t = 0; t < k->threads && status == dnnl_success; t++) {
        set *s = &k->set[t];
        status = dnnl_stream_create(&s->stream, engine, dnnl_stream_default_flags);
        for (int a = 0; a < ARGS && status == dnnl_success; a++)
            if (k->arg[a])
                status =
                    dnnl_memory_create(&s->memory[a], view(&k->desc[a]), engine, DNNL_MEMORY_NONE);
    }
    return status;
}

static dnnl_status_t kernel_init(gpp__dnnl_kernel *k, const gpp__dnnl_conv *c, int64_t rows)
{
    dnnl_primitive_desc_t desc;
    dnnl_status_t status = describe_way(c, k->way, rows, view(&c->weights[GPP__CONV_FORWARD]),
                                        view(&c->weights[k->way]), &desc);
    if (status != dnnl_success)
        return status;
    for (int a = 0; a < ARGS && status == dnnl_success; a++) {
        k->arg[a] = a == BIAS && !c->shape.bias ? 0 : argument[k->way][a];
        if (k->arg[a])
            status = md_copy(&k->desc[a],
                             dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, k->arg[a]));
    }
    if (status == dnnl_success)
        status = dnnl_primitive_create(&k->primitive, desc);
    dnnl_primitive_desc_destroy(desc);
    return status == dnnl_success ? make_sets(k, c->engine) : status;
}

/*
 * A defect of oneDNN 2.6: it packs the input of a strided 1 x 1 convolution in blocks of a vector's
 * width, but asks for scratch for the actual channels only. With few channels the weights' gradient
 * writes up to 1.1 KiB behind its scratchpad at 8 x 8 outputs. A vector of 16 floats more for each
 * output pixel is enough.
 */
static size_t missing_scratch(const gpp__dnnl_conv *conv, gpp__conv_way way)
{
    const gpp__conv_shape *s = &conv->shape;
    bool packs = s->kernel[0] * s->kernel[1] == 1 && s->stride[0] * s->stride[1] > 1;
    bool partial = s->in_channels / s->groups % 16 != 0;
    if (way != GPP__CONV_WEIGHTS || !packs || !partial)
        return 0;
    return (size_t)(s->out[0] * s->out[1]) * 16 * sizeof(float) + 2 * GPP__ALIGN;
}

gpp_status gpp__dnnl_kernel_new(gpp__dnnl_kernel **out, const gpp__dnnl_conv *conv,
                                gpp__conv_way way, int64_t rows, int threads, gpp_error *err)
{
    *out = NULL;
    gpp__dnnl_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return gpp__fail(err, GPP_ENOMEM, "a convolution's kernel");
    k->way = way;
    k->threads = threads;
    k->missing_scratch = missing_scratch(conv, way);
    k->set = calloc((size_t)threads, sizeof *k->set);
    int before = enter();
    dnnl_status_t status = k->set ? kernel_init(k, conv, rows) : dnnl_out_of_memory;
    leave(before);
    if (status != dnnl_success) {
        gpp__dnnl_kernel_free(k);
        return fail(err, status, way_name[way]);
    }
    *out = k;
    return GPP_OK;
}

void gpp__dnnl_kernel_free(gpp__dnnl_kernel *k)
{
    if (!k)
        return;
    for (int t = 0; k->set && t < k->threads; t++) {
        for (int a = 0; a < ARGS; a++)
            dnnl_memory_destroy(k->set[t].memory[a]);
        dnnl_stream_destroy(k->set[t].stream);
    }
    dnnl_primitive_destroy(k->primitive);
    for (int a = 0; a < ARGS; a++)
        md_free(&k->desc[a]);
    free(k->set);
    free(k);
}

size_t gpp__dnnl_kernel_scratch(const gpp__dnnl_kernel *kernel)
{
    return dnnl_memory_desc_get_size(view(&kernel->desc[SCRATCH])) + kernel->missing_scratch;
}

gpp_status gpp__dnnl_run(const gpp__dnnl_kernel *k, int thread, const gpp__dnnl_args *args)
{
    const void *data[ARGS] = {args->x, args->weights, args->bias, args->y, args->scratch};
    dnnl_exec_arg_t exec[ARGS];
    int count = 0;
    set *s = &k->set[thread];
    dnnl_status_t status = dnnl_success;
    int threads = enter();
    for (int a = 0; a < ARGS && status == dnnl_success; a++) {
        if (!k->arg[a])
            continue;
        if (data[a] != s->data[a])
            status = dnnl_memory_set_data_handle(s->memory[a], unconst(data[a]));
        s->data[a] = data[a];
        exec[count++] = (dnnl_exec_arg_t){k->arg[a], s->memory[a]};
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(k->primitive, s->stream, count, exec);
    leave(threads);
    return status == dnnl_success ? GPP_OK : GPP_EKERNEL;
}
