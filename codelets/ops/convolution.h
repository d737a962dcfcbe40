/*
 * codelets/ops/convolution.h: what conv2d and conv_transpose2d share: their keys and parameters,
 * and kernels that run a convolution in three ways.
 *
 * A convolution leads from an image to a map. conv2d is one; conv_transpose2d has its map as x and
 * its image as y, so each of the layer's ways is another one of the convolution's:
 *
 *                      conv2d             conv_transpose2d
 *   forward            FORWARD            DATA, then the bias is added
 *   backward, data     DATA               FORWARD
 *   backward, weights  WEIGHTS            WEIGHTS, then the bias's gradient is summed
 *
 * In memory images are channels-last. Weights and their gradients have a layout that the kernels
 * choose, the same for every number of rows, so that no micro-batch converts anything.
 *
 * Work is cut into units of whole rows, by flops. Forward and the data gradient write each row
 * once. Each unit makes a partial sum of the weights' gradients. The partial sums are added to the
 * gradients in the order of the units, in waves of as many units as there are threads. So the sum
 * does not depend on the number of threads, and the memory is one partial sum a thread.
 */
#ifndef GPP_CODELETS_OPS_CONVOLUTION_H
#define GPP_CODELETS_OPS_CONVOLUTION_H

#include "codelets/cpu/dnnl.h"
#include "codelets/op.h"

enum { GPP__CONVOLUTION_WEIGHT, GPP__CONVOLUTION_BIAS };

typedef struct gpp__convolution_attr {
    int64_t out, kernel[2], stride[2], padding[2], dilation[2], groups;
    int64_t output_padding[2]; /* 0 in conv2d, which has no such key */
    bool bias;
} gpp__convolution_attr;

#define GPP__CONVOLUTION_KEY(key, numbers, lo, given, otherwise)                                   \
    {                                                                                              \
        .name = #key, .type = GPP__KEY_INT, .offset = offsetof(gpp__convolution_attr, key),        \
        .count = numbers, .min = lo, .max = INT32_MAX / 4, .required = given,                      \
        .fallback = otherwise                                                                      \
    }
/** Entries of gpp_op.keys; an operator puts its own keys between them. */
#define GPP__CONVOLUTION_SIZES                                                                     \
    GPP__CONVOLUTION_KEY(out, 1, 1, true, 0), GPP__CONVOLUTION_KEY(kernel, 2, 1, true, 0),         \
        GPP__CONVOLUTION_KEY(stride, 2, 1, false, 1),                                              \
        GPP__CONVOLUTION_KEY(padding, 2, 0, false, 0)
#define GPP__CONVOLUTION_REST                                                                      \
    GPP__CONVOLUTION_KEY(dilation, 2, 1, false, 1), GPP__CONVOLUTION_KEY(groups, 1, 1, false, 1),  \
    {                                                                                              \
        .name = "bias", .type = GPP__KEY_BOOL, .offset = offsetof(gpp__convolution_attr, bias),    \
        .count = 1, .max = 1, .fallback = 1                                                        \
    }

/** Fails unless the layer has one float image, and unless the groups divide the channels of both
 * the image and the output. */
gpp_status gpp__convolution_expect(const gpp__layer *layer, gpp_error *err);
/** Sets the output, of height and width `side`, and adds the parameters weight (first, second, kH,
 * kW) and bias. */
void gpp__convolution_shapes(gpp__layer *layer, const int64_t side[2], int64_t first,
                             int64_t second);
/** The product of all dimensions of the weight but the first. */
double gpp__convolution_fan(const gpp__layer *layer);
/** gpp_op.init, with PyTorch's bound: 1/√fan. */
void gpp__convolution_init(const gpp__layer *layer, int p, uint64_t seed, float *value);
/** The convolution between descriptions of its image and its map. */
gpp__conv_shape gpp__convolution_shape(const gpp__layer *layer, const gpp__desc *image,
                                       const gpp__desc *map);

/** How an operator is computed by a convolution. Tensors of these functions are channels-last. */
typedef struct gpp__convolution {
    bool transposed; /* x is the map, y the image */
    /** True where cpu/conv.h computes dW instead of oneDNN. NULL: nowhere */
    bool (*own_gradient)(const gpp__dnnl_conv *conv, const gpp__conv_shape *shape);
    /** Add the bias where oneDNN does not: y += bias, and db = sums over `lines` lines of `width`
     * pixels. NULL: oneDNN does it */
    void (*add_bias)(const float *bias, float *y, int64_t pixels, int64_t channels);
    void (*sum_pixels)(const float *dy, int64_t lines, int64_t width, int64_t channels, float *db);
} gpp__convolution;

/** gpp_op.store_init; `how` outlives the store. */
gpp_status gpp__convolution_store_init(gpp__store *store, const gpp__convolution *how,
                                       const gpp__conv_shape *shape, int64_t rows, gpp_error *err);
/* The other functions of gpp_op. Packed are the weights for the forward, followed by those for the
 * data gradient unless they are the same. Gradients are dW, then db. */
void gpp__convolution_store_release(gpp__store *store);
gpp_status gpp__convolution_pack(const gpp__store *store, const gpp__run *run, const char *params,
                                 char *packed);
gpp_status gpp__convolution_unpack(const gpp__store *store, const gpp__run *run, const char *grads,
                                   char *params_like);
gpp_status gpp__convolution_prepare(gpp__kernel *kernel, gpp_error *err);
void gpp__convolution_release(gpp__kernel *kernel);
gpp_status gpp__convolution_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io);
gpp_status gpp__convolution_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io);

#endif
