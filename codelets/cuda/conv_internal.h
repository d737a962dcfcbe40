/*
 * codelets/cuda/conv_internal.h: what the files of a convolution share: conv.cu makes it and gives
 * each call its memory, conv_library.cu is cuDNN's way, conv_columns.cu the other one.
 */
#ifndef GPP_CODELETS_CUDA_CONV_INTERNAL_H
#define GPP_CODELETS_CUDA_CONV_INTERNAL_H

#include "codelets/cuda/conv.h"
#include "codelets/cuda/gemm.h"

/** Bytes of columns at a time: so few that they are read again before they leave the second cache.
 * Where columns only stand in for cuDNN, they get no more than its workspace. */
#define GPP__CONV_COLUMNS     ((int64_t)16 << 20)
#define GPP__CONV_STANDING_BY ((int64_t)1 << 20)
/** Entries of a list of algorithms: fewer than 8 of each way, some with two kinds of arithmetic. */
enum { GPP__CONV_LISTED = 16 };

/** One way of a convolution. */
typedef struct gpp__conv_choice {
    bool columns;                    /* not cuDNN's */
    bool instead;                    /* cuDNN's, with room for columns in case it refuses a call */
    int64_t chunk;                   /* rows whose columns exist at a time */
    int algorithm[GPP__CONV_LISTED]; /* cuDNN's, in the order in which they are tried */
    int algorithms;
    size_t workspace; /* for any of them */
    cudnnConvolutionDescriptor_t how;
    size_t scratch;
} gpp__conv_choice;

struct gpp__cuda_conv {
    gpp__conv_shape shape;
    const gpp__layer *layer;
    int64_t rows;
    bool plain; /* pointwise */
    cudnnTensorDescriptor_t image, map;
    cudnnFilterDescriptor_t weights;
    gpp__conv_choice way[GPP__CONV_WAYS];
};

/** One call: operands and results-to-be, in one way's scratch. */
typedef struct gpp__conv_call {
    const gpp__cuda_conv *conv;
    const gpp__cuda *cuda;
    const gpp__cuda_conv_args *args;
    gpp_error *err;
    void *image, *map, *grad; /* operands, or bfloat16 results; NULL where the tensor itself is */
    float *sum;               /* the gradient again in float32, to be added */
    void *rest;               /* workspace or columns */
} gpp__conv_call;

/** Chooses algorithms for the ways that cuDNN can compute, and leaves the others to columns. */
gpp_status gpp__conv_choose(gpp__cuda_conv *conv, const gpp__cuda *cuda, gpp_error *err);
/** Computes one way by cuDNN. @param refused  out: cuDNN does not support the call after all, and
 * nothing was done. The status is then GPP_OK where there is room for columns, else the failure */
gpp_status gpp__conv_by_library(const gpp__conv_call *call, gpp__conv_way way, bool *refused);

/** How many rows' columns fit into `bytes`, at least one. A pointwise convolution has no columns,
 * so there it is as many rows as can be counted. */
int64_t gpp__conv_chunk(const gpp__cuda_conv *conv, int64_t bytes);
/** Bytes of a chunk's columns. */
size_t gpp__conv_columns_bytes(const gpp__cuda_conv *conv, const gpp__cuda *cuda,
                               gpp__conv_way way);
gpp_status gpp__conv_by_columns(const gpp__conv_call *call, gpp__conv_way way);

/* --- sizes ------------------------------------------------------------------------------------ */

/** Of one group. */
static inline int64_t gpp__conv_channels_in(const gpp__conv_shape *s)
{
    return s->in_channels / s->groups;
}
static inline int64_t gpp__conv_channels_out(const gpp__conv_shape *s)
{
    return s->out_channels / s->groups;
}
/** Numbers in a window, of a group. */
static inline int64_t gpp__conv_window(const gpp__conv_shape *s)
{
    return s->kernel[0] * s->kernel[1] * gpp__conv_channels_in(s);
}
/** Numbers in the weights; in rows of images, of maps and of columns. */
static inline int64_t gpp__conv_weights(const gpp__conv_shape *s)
{
    return s->out_channels * gpp__conv_window(s);
}
static inline int64_t gpp__conv_images(const gpp__conv_shape *s, int64_t rows)
{
    return rows * s->in[0] * s->in[1] * s->in_channels;
}
static inline int64_t gpp__conv_maps(const gpp__conv_shape *s, int64_t rows)
{
    return rows * s->out[0] * s->out[1] * s->out_channels;
}

#endif
