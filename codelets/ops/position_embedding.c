/*
 * codelets/ops/position_embedding.c: y[r, t, :] = x[r, t, :] + W[t, :], a learned row for each
 * position.
 *
 * Shapes: x (rows, T, D) with T <= length, W (length, D), y as x. dx = dy; dW[t] is the sum of
 * dy[r, t] over the rows, in their order; rows of W beyond T get no gradient. Initially W is
 * N(0, 0.02²), as in GPT-2 (Radford et al., 2019).
 */
#include <string.h>

#include "codelets/cpu/normal.h"
#include "codelets/cpu/vectorised.h"

#define UNIT  ((int64_t)1 << 15) /* elements a thread takes at a time */
#define CHUNK 256                /* elements of W whose sums are taken together */

typedef struct position_embedding_attr {
    int64_t length;
} position_embedding_attr;

static const gpp__key position_embedding_keys[] = {
    {.name = "length",
     .type = GPP__KEY_INT,
     .offset = offsetof(position_embedding_attr, length),
     .count = 1,
     .min = 1,
     .max = INT32_MAX,
     .required = true},
    {.name = NULL},
};

static gpp_status position_embedding_infer(gpp__layer *layer, gpp_error *err)
{
    int64_t length = ((const position_embedding_attr *)layer->attr)->length;
    gpp_status status = gpp__expect_float(layer, 2, 2, err);
    if (status)
        return status;
    const gpp__desc *in = &layer->in[0];
    if (in->dim[0] > length)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "position_embedding (layer %d, \"%s\"): input has %lld positions, "
                               "length is %lld",
                               layer->index, layer->label, (long long)in->dim[0],
                               (long long)length);
    layer->out_count = 1;
    layer->out[0] = *in;
    gpp__add_param(layer, "weight", 2, (int64_t[]){length, in->dim[1]});
    return GPP_OK;
}

static void position_embedding_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    gpp__init_normal(layer, p, seed, 0.02, value);
}

typedef struct pass {
    int64_t rows, row; /* elements of a row */
    int units;
    const float *x, *w; /* backward: dy */
    float *y, *dw;
    bool add;
} pass;

static pass pass_of(const gpp__kernel *kernel)
{
    pass p = {.rows = kernel->rows, .row = gpp__desc_count(&kernel->layer->in[0])};
    int64_t units = (p.rows * p.row + UNIT - 1) / UNIT, most = (p.row + CHUNK - 1) / CHUNK;
    p.units = (int)(units < most ? units : most);
    return p;
}

/* Independent: x and y are the same memory or apart. */
VECTORISED static void add_position(int64_t count, const float *x, const float *w, float *y)
{
    INDEPENDENT
    for (int64_t k = 0; k < count; k++)
        y[k] = x[k] + w[k];
}

/* count <= CHUNK elements of every row. */
VECTORISED static void sum_rows(int64_t rows, int64_t row, int64_t count, const float *dy,
                                double sum[CHUNK])
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < count; k++)
            sum[k] += dy[r * row + k];
}

/* Elements of W: the same ones of every row. */
static void forward_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->row, p->units, unit, CHUNK, &begin, &end);
    for (int64_t r = 0; r < p->rows; r++)
        add_position(end - begin, p->x + r * p->row + begin, p->w + begin,
                     p->y + r * p->row + begin);
}

static void backward_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->row, p->units, unit, CHUNK, &begin, &end);
    for (int64_t at = begin; at < end; at += CHUNK) {
        double sum[CHUNK] = {0};
        int64_t count = end - at < CHUNK ? end - at : CHUNK;
        sum_rows(p->rows, p->row, count, p->x + at, sum);
        for (int64_t k = 0; k < count; k++)
            p->dw[at + k] = (p->add ? p->dw[at + k] : 0) + (float)sum[k];
    }
}

static gpp_status position_embedding_forward(const gpp__kernel *kernel, const gpp__run *run,
                                             const gpp__io *io)
{
    pass p = pass_of(kernel);
    p.x = io->in[0];
    p.y = io->out[0];
    p.w = gpp__param_at(kernel->layer, io->params, 0);
    gpp__parallel(run->pool, p.units, forward_unit, &p);
    return GPP_OK;
}

static gpp_status position_embedding_backward(const gpp__kernel *kernel, const gpp__run *run,
                                              const gpp__io *io)
{
    const gpp__param *weight = &kernel->layer->param[0];
    pass p = pass_of(kernel);
    p.x = io->grad_out[0];
    if (io->grads) {
        p.dw = (float *)(void *)(io->grads + weight->offset);
        p.add = io->accumulate;
        if (!p.add)
            memset(p.dw + p.row, 0, (size_t)(weight->count - p.row) * sizeof *p.dw);
        gpp__parallel(run->pool, p.units, backward_unit, &p);
    }
    if (io->grad_in[0] && io->grad_in[0] != io->grad_out[0])
        memcpy(io->grad_in[0], io->grad_out[0], (size_t)(p.rows * p.row) * sizeof *p.x);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_position_embedding;

const gpp_op gpp_op_position_embedding = {
    .name = "position_embedding",
    .keys = position_embedding_keys,
    .attr_size = sizeof(position_embedding_attr),
    .infer = position_embedding_infer,
    .in_place = true,
    .init = position_embedding_init,
    .cpu.forward = position_embedding_forward,
    .cpu.backward = position_embedding_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_position_embedding),
};
