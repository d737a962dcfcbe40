/*
 * codelets/cuda/conv.cu: convolutions by cuDNN or by columns. Which and why: conv.h.
 *
 * Columns. For `pixels` pixels of maps (some rows at a time, COLUMNS bytes or one row) and group g,
 * col[g][pixel][r][s][c] is what the window of that pixel sees of the image, 0 in the padding; its
 * rows are ordered like those of W[k][r][s][c]. Then, with _g for the channels of the group,
 *
 *   forward    map_g = col[g] · W_gᵀ      data     image = Σ over windows of (map_g · W_g)
 *   weights    dW_g = map_gᵀ · col[g]
 *
 * The sum over windows is gathered by pixel of the image, in the order of r, s. For a pointwise
 * convolution the image is col.
 *
 * Limits: cuDNN's algorithms and cuBLAS's products by arithmetic, where a group has enough
 * channels; writing and gathering columns by memory, which is kH·kW times the image.
 */
#include "codelets/cuda/conv.h"

#include <stdlib.h>

#include "codelets/cuda/gemm.h"

/* Bytes, written and read again before they leave the second cache. */
#define COLUMNS ((int64_t)16 << 20)
/* Entries of a list of algorithms: fewer than 8 of each way, some with two kinds of arithmetic. */
enum { LISTED = 16 };

typedef struct choice {
    bool columns;
    int algorithm; /* cuDNN's, and its descriptor and workspace */
    cudnnConvolutionDescriptor_t how;
    size_t workspace;
    size_t scratch;
} choice;

struct gpp__cuda_conv {
    gpp__conv_shape shape;
    const gpp__layer *layer;
    int64_t rows, chunk; /* rows whose columns exist at a time */
    bool library, plain; /* cuDNN can be asked; pointwise */
    cudnnTensorDescriptor_t image, map;
    cudnnFilterDescriptor_t weights;
    choice way[GPP__CONV_WAYS];
};

/* --- sizes --- */

/* Of one group. */
static int64_t channels_in(const gpp__conv_shape *s)
{
    return s->in_channels / s->groups;
}

static int64_t channels_out(const gpp__conv_shape *s)
{
    return s->out_channels / s->groups;
}

static int64_t window(const gpp__conv_shape *s)
{
    return s->kernel[0] * s->kernel[1] * channels_in(s);
}

static int64_t weight_count(const gpp__conv_shape *s)
{
    return s->out_channels * window(s);
}

static int64_t image_count(const gpp__conv_shape *s, int64_t rows)
{
    return rows * s->in[0] * s->in[1] * s->in_channels;
}

static int64_t map_count(const gpp__conv_shape *s, int64_t rows)
{
    return rows * s->out[0] * s->out[1] * s->out_channels;
}

static int64_t column_count(const gpp__conv_shape *s, int64_t rows)
{
    return rows * s->out[0] * s->out[1] * s->groups * window(s);
}

static bool is_plain(const gpp__conv_shape *s)
{
    bool plain = true;
    for (int k = 0; k < 2; k++)
        plain = plain && s->kernel[k] == 1 && s->stride[k] == 1 && s->padding[k] == 0;
    return plain;
}

/* --- cuDNN: descriptors --- */

/* From version 9 on there are kinds of it, 3000 to 3999. */
static bool unsupported(cudnnStatus_t code)
{
    return code == CUDNN_STATUS_NOT_SUPPORTED ||
           (CUDNN_STATUS_NOT_SUPPORTED >= 1000 && code / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000);
}

/* What cuDNN does not support goes by columns; other failures are failures. */
static gpp_status tolerate(const gpp__cuda_conv *c, cudnnStatus_t code, const char *call,
                           gpp_error *err)
{
    return code == CUDNN_STATUS_SUCCESS || unsupported(code)
               ? GPP_OK
               : gpp__cudnn_failed(code, call, c->layer, err);
}

static cudnnStatus_t describe_tensors(gpp__cuda_conv *c, cudnnDataType_t type)
{
    const gpp__conv_shape *s = &c->shape;
    cudnnStatus_t code =
        cudnnSetTensor4dDescriptor(c->image, CUDNN_TENSOR_NHWC, type, (int)c->rows,
                                   (int)s->in_channels, (int)s->in[0], (int)s->in[1]);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetTensor4dDescriptor(c->map, CUDNN_TENSOR_NHWC, type, (int)c->rows,
                                          (int)s->out_channels, (int)s->out[0], (int)s->out[1]);
    if (code == CUDNN_STATUS_SUCCESS)
        code =
            cudnnSetFilter4dDescriptor(c->weights, type, CUDNN_TENSOR_NHWC, (int)s->out_channels,
                                       (int)channels_in(s), (int)s->kernel[0], (int)s->kernel[1]);
    return code;
}

static cudnnStatus_t describe_way(const gpp__cuda_conv *c, choice *w, cudnnMathType_t math)
{
    const gpp__conv_shape *s = &c->shape;
    cudnnStatus_t code = cudnnSetConvolution2dDescriptor(
        w->how, (int)s->padding[0], (int)s->padding[1], (int)s->stride[0], (int)s->stride[1],
        (int)s->dilation[0], (int)s->dilation[1], CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetConvolutionGroupCount(w->how, (int)s->groups);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetConvolutionMathType(w->how, math);
    return code;
}

static gpp_status create_descriptors(gpp__cuda_conv *c, gpp_error *err)
{
    gpp_status status = GPP__CUDNN(cudnnCreateTensorDescriptor(&c->image), c->layer, err);
    if (status == GPP_OK)
        status = GPP__CUDNN(cudnnCreateTensorDescriptor(&c->map), c->layer, err);
    if (status == GPP_OK)
        status = GPP__CUDNN(cudnnCreateFilterDescriptor(&c->weights), c->layer, err);
    for (int k = 0; k < GPP__CONV_WAYS && status == GPP_OK; k++)
        status = GPP__CUDNN(cudnnCreateConvolutionDescriptor(&c->way[k].how), c->layer, err);
    return status;
}

/* What cuDNN's lists are asked for; which of an entry's are taken says `fits`. */
static cudnnMathType_t math_of(const gpp__cuda *cuda)
{
    return cuda->math == GPP__MATH_F32    ? CUDNN_FMA_MATH
           : cuda->math == GPP__MATH_TF32 ? CUDNN_DEFAULT_MATH
                                          : CUDNN_TENSOR_OP_MATH;
}

static gpp_status describe(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    cudnnDataType_t type = cuda->math == GPP__MATH_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    gpp_status status = create_descriptors(c, err);
    if (status != GPP_OK)
        return status;
    cudnnStatus_t code = describe_tensors(c, type);
    for (int k = 0; k < GPP__CONV_WAYS && code == CUDNN_STATUS_SUCCESS; k++)
        code = describe_way(c, &c->way[k], math_of(cuda));
    c->library = code == CUDNN_STATUS_SUCCESS;
    return tolerate(c, code, "descriptors of a convolution", err);
}

/* --- cuDNN: the choice --- */

static cudnnStatus_t workspace_of(const gpp__cuda_conv *c, const gpp__cuda *cuda, const choice *w,
                                  cudnnConvolutionFwdAlgo_t algorithm, size_t *bytes)
{
    return cudnnGetConvolutionForwardWorkspaceSize(cuda->dnn, c->image, c->weights, w->how, c->map,
                                                   algorithm, bytes);
}

static cudnnStatus_t workspace_of(const gpp__cuda_conv *c, const gpp__cuda *cuda, const choice *w,
                                  cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes)
{
    return cudnnGetConvolutionBackwardDataWorkspaceSize(cuda->dnn, c->weights, c->map, w->how,
                                                        c->image, algorithm, bytes);
}

static cudnnStatus_t workspace_of(const gpp__cuda_conv *c, const gpp__cuda *cuda, const choice *w,
                                  cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *bytes)
{
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(cuda->dnn, c->image, c->map, w->how,
                                                          c->weights, algorithm, bytes);
}

/* Never one that rounds float32 to float16. */
template <typename entry> static bool fits(const gpp__cuda *cuda, const entry *e)
{
    bool math = cuda->math == GPP__MATH_F32 ? e->mathType != CUDNN_TENSOR_OP_MATH : true;
    return e->status == CUDNN_STATUS_SUCCESS && math &&
           e->mathType != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION &&
           (!cuda->deterministic || e->determinism == CUDNN_DETERMINISTIC);
}

/* The descriptor keeps FMA for float32 whatever the entry calls its arithmetic. */
template <typename entry>
static gpp_status take_first(const gpp__cuda_conv *c, const gpp__cuda *cuda, choice *w,
                             const entry *list, int count, gpp_error *err)
{
    for (int k = 0; k < count; k++) {
        if (!fits(cuda, &list[k]))
            continue;
        size_t bytes = 0;
        cudnnMathType_t math = cuda->math == GPP__MATH_F32 ? CUDNN_FMA_MATH : list[k].mathType;
        cudnnStatus_t code = cudnnSetConvolutionMathType(w->how, math);
        if (code == CUDNN_STATUS_SUCCESS)
            code = workspace_of(c, cuda, w, list[k].algo, &bytes);
        gpp_status status = tolerate(c, code, "workspace of a convolution", err);
        if (status != GPP_OK)
            return status;
        if (code == CUDNN_STATUS_SUCCESS && bytes <= GPP__CUDA_CONV_WORKSPACE) {
            w->algorithm = (int)list[k].algo;
            w->workspace = bytes;
            w->columns = false;
            return GPP_OK;
        }
    }
    return GPP_OK;
}

static gpp_status choose_forward(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    cudnnConvolutionFwdAlgoPerf_t list[LISTED];
    int count = 0;
    choice *w = &c->way[GPP__CONV_FORWARD];
    cudnnStatus_t code = cudnnGetConvolutionForwardAlgorithm_v7(
        cuda->dnn, c->image, c->weights, w->how, c->map, LISTED, &count, list);
    if (code != CUDNN_STATUS_SUCCESS)
        return tolerate(c, code, "cudnnGetConvolutionForwardAlgorithm_v7", err);
    return take_first(c, cuda, w, list, count, err);
}

static gpp_status choose_data(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    cudnnConvolutionBwdDataAlgoPerf_t list[LISTED];
    int count = 0;
    choice *w = &c->way[GPP__CONV_DATA];
    cudnnStatus_t code = cudnnGetConvolutionBackwardDataAlgorithm_v7(
        cuda->dnn, c->weights, c->map, w->how, c->image, LISTED, &count, list);
    if (code != CUDNN_STATUS_SUCCESS)
        return tolerate(c, code, "cudnnGetConvolutionBackwardDataAlgorithm_v7", err);
    return take_first(c, cuda, w, list, count, err);
}

static gpp_status choose_weights(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    cudnnConvolutionBwdFilterAlgoPerf_t list[LISTED];
    int count = 0;
    choice *w = &c->way[GPP__CONV_WEIGHTS];
    cudnnStatus_t code = cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        cuda->dnn, c->image, c->map, w->how, c->weights, LISTED, &count, list);
    if (code != CUDNN_STATUS_SUCCESS)
        return tolerate(c, code, "cudnnGetConvolutionBackwardFilterAlgorithm_v7", err);
    return take_first(c, cuda, w, list, count, err);
}

static gpp_status choose(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    gpp_status status = describe(c, cuda, err);
    if (status != GPP_OK || !c->library)
        return status;
    status = choose_forward(c, cuda, err);
    if (status == GPP_OK)
        status = choose_data(c, cuda, err);
    return status == GPP_OK ? choose_weights(c, cuda, err) : status;
}

/* --- one call --- */

/* Operands, and what is to become a result, in one way's scratch. */
typedef struct call {
    const gpp__cuda_conv *conv;
    const gpp__cuda *cuda;
    const gpp__cuda_conv_args *args;
    gpp_error *err;
    void *image, *map, *grad; /* operands, or bfloat16 results; NULL where the tensor itself is */
    float *sum;               /* the gradient again in float32, to be added */
    void *rest;               /* workspace or columns */
} call;

static size_t columns_bytes(const gpp__cuda_conv *c, const gpp__cuda *cuda, gpp__conv_way which)
{
    size_t each = which == GPP__CONV_DATA ? sizeof(float) : gpp__cuda_operand_size(cuda);
    return c->plain ? 0 : (size_t)column_count(&c->shape, c->chunk) * each;
}

/* cuDNN's bfloat16 tensors are both operands and results; the other way's results are float32. */
static void place(call *k, gpp__conv_way which, gpp__cuda_room *room)
{
    const gpp__cuda_conv *c = k->conv;
    const gpp__conv_shape *s = &c->shape;
    const choice *w = &c->way[which];
    if (k->cuda->math == GPP__MATH_BF16) {
        if (!w->columns || which != GPP__CONV_DATA)
            k->image = gpp__cuda_take(room, (size_t)image_count(s, c->rows) * 2);
        if (!w->columns || which != GPP__CONV_FORWARD)
            k->map = gpp__cuda_take(room, (size_t)map_count(s, c->rows) * 2);
        if (!w->columns && which == GPP__CONV_WEIGHTS) {
            k->grad = gpp__cuda_take(room, (size_t)weight_count(s) * 2);
            k->sum = (float *)gpp__cuda_take(room, (size_t)weight_count(s) * sizeof(float));
        }
    }
    k->rest = gpp__cuda_take(room, w->columns ? columns_bytes(c, k->cuda, which) : w->workspace);
}

static gpp_status read_operands(const call *k, gpp__conv_way which)
{
    const gpp__conv_shape *s = &k->conv->shape;
    int64_t rows = k->conv->rows;
    gpp_status status = GPP_OK;
    if (k->cuda->math != GPP__MATH_BF16)
        return GPP_OK;
    if (which != GPP__CONV_DATA)
        status = gpp__cuda_to_bf16(k->cuda, k->args->image, k->image, image_count(s, rows), k->err);
    if (status == GPP_OK && which != GPP__CONV_FORWARD)
        status = gpp__cuda_to_bf16(k->cuda, k->args->map, k->map, map_count(s, rows), k->err);
    return status;
}

static gpp_status write_results(const call *k, gpp__conv_way which)
{
    const gpp__cuda_conv_args *a = k->args;
    const gpp__conv_shape *s = &k->conv->shape;
    int64_t rows = k->conv->rows, weights = weight_count(s);
    if (k->cuda->math != GPP__MATH_BF16)
        return GPP_OK;
    if (which == GPP__CONV_FORWARD)
        return gpp__cuda_from_bf16(k->cuda, k->map, a->map, map_count(s, rows), k->err);
    if (which == GPP__CONV_DATA)
        return gpp__cuda_from_bf16(k->cuda, k->image, a->image, image_count(s, rows), k->err);
    gpp_status status =
        gpp__cuda_from_bf16(k->cuda, k->grad, a->add ? k->sum : a->grad, weights, k->err);
    if (status == GPP_OK && a->add)
        status = gpp__cuda_accumulate(k->cuda, a->grad, k->sum, weights, k->err);
    return status;
}

/* --- cuDNN: one call --- */

static gpp_status run_library(const call *k, gpp__conv_way which)
{
    const gpp__cuda_conv *c = k->conv;
    const gpp__cuda_conv_args *a = k->args;
    const choice *w = &c->way[which];
    const float one = 1, none = 0;
    cudnnHandle_t dnn = k->cuda->dnn;
    void *image = k->image ? k->image : a->image, *map = k->map ? k->map : a->map;
    void *grad = k->grad ? k->grad : a->grad;
    if (which == GPP__CONV_FORWARD)
        return GPP__CUDNN(cudnnConvolutionForward(dnn, &one, c->image, image, c->weights,
                                                  a->weights, w->how,
                                                  (cudnnConvolutionFwdAlgo_t)w->algorithm, k->rest,
                                                  w->workspace, &none, c->map, map),
                          c->layer, k->err);
    if (which == GPP__CONV_DATA)
        return GPP__CUDNN(
            cudnnConvolutionBackwardData(dnn, &one, c->weights, a->weights, c->map, map, w->how,
                                         (cudnnConvolutionBwdDataAlgo_t)w->algorithm, k->rest,
                                         w->workspace, &none, c->image, image),
            c->layer, k->err);
    return GPP__CUDNN(cudnnConvolutionBackwardFilter(
                          dnn, &one, c->image, image, c->map, map, w->how,
                          (cudnnConvolutionBwdFilterAlgo_t)w->algorithm, k->rest, w->workspace,
                          a->add && !k->grad ? &one : &none, c->weights, grad),
                      c->layer, k->err);
}

/* --- columns --- */

/* Of a convolution, in the kernels' integers; a line of either tensor has less than 2^31 numbers.
 */
typedef struct lines {
    int64_t rows;
    int groups, channels; /* of a group */
    int height, width, map_height, map_width;
    int kernel[2], stride[2], padding[2], dilation[2];
} lines;

static lines lines_of(const gpp__conv_shape *s, int64_t rows)
{
    lines l;
    l.rows = rows;
    l.groups = (int)s->groups, l.channels = (int)channels_in(s);
    l.height = (int)s->in[0], l.width = (int)s->in[1];
    l.map_height = (int)s->out[0], l.map_width = (int)s->out[1];
    for (int k = 0; k < 2; k++) {
        l.kernel[k] = (int)s->kernel[k], l.stride[k] = (int)s->stride[k];
        l.padding[k] = (int)s->padding[k], l.dilation[k] = (int)s->dilation[k];
    }
    return l;
}

/* Lines (group, row, line of the map) by blocks; threads next to each other write, and within a
 * window read, numbers next to each other. */
template <typename number>
__global__ void write_columns(lines l, const number *image, number *columns)
{
    int window = l.kernel[0] * l.kernel[1] * l.channels, length = l.map_width * window;
    int64_t all = l.groups * l.rows * l.map_height;
    for (int64_t line = blockIdx.x; line < all; line += gridDim.x) {
        int p = (int)(line % l.map_height);
        int64_t row = line / l.map_height % l.rows, group = line / l.map_height / l.rows;
        const number *from =
            image + row * l.height * l.width * l.groups * l.channels + group * l.channels;
        for (int e = (int)threadIdx.x; e < length; e += (int)blockDim.x) {
            int c = e % l.channels, tap = e % window / l.channels, q = e / window;
            int64_t y = (int64_t)p * l.stride[0] - l.padding[0] +
                        (int64_t)(tap / l.kernel[1]) * l.dilation[0];
            int64_t x = (int64_t)q * l.stride[1] - l.padding[1] +
                        (int64_t)(tap % l.kernel[1]) * l.dilation[1];
            bool inside = y >= 0 && y < l.height && x >= 0 && x < l.width;
            columns[line * length + e] =
                inside ? from[(y * l.width + x) * l.groups * l.channels + c] : (number)0;
        }
    }
}

/* The pixel of the map whose tap `tap` falls on `at`, or -1. */
__device__ static inline int64_t source(int64_t at, int tap, int padding, int dilation, int stride,
                                        int size)
{
    int64_t from = at + padding - (int64_t)tap * dilation;
    return from >= 0 && from % stride == 0 && from / stride < size ? from / stride : -1;
}

/* Lines (row, line of the image) by blocks. */
__global__ void gather_columns(lines l, const float *columns, float *image)
{
    int all = l.groups * l.channels, length = l.width * all;
    int taps = l.kernel[0] * l.kernel[1];
    for (int64_t line = blockIdx.x; line < l.rows * l.height; line += gridDim.x) {
        int64_t row = line / l.height, y = line % l.height;
        for (int e = (int)threadIdx.x; e < length; e += (int)blockDim.x) {
            int c = e % all % l.channels, group = e % all / l.channels;
            float sum = 0;
            for (int tap = 0; tap < taps; tap++) {
                int64_t p = source(y, tap / l.kernel[1], l.padding[0], l.dilation[0], l.stride[0],
                                   l.map_height);
                int64_t q = source(e / all, tap % l.kernel[1], l.padding[1], l.dilation[1],
                                   l.stride[1], l.map_width);
                int64_t pixel = ((group * l.rows + row) * l.map_height + p) * l.map_width + q;
                if (p >= 0 && q >= 0)
                    sum += columns[(pixel * taps + tap) * l.channels + c];
            }
            image[line * length + e] = sum;
        }
    }
}

static unsigned blocks_of_lines(const gpp__cuda *cuda, int64_t lines)
{
    int64_t most = (int64_t)cuda->multiprocessors * 16;
    return (unsigned)(lines < most ? lines : most);
}

static gpp_status write_out(const call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    lines l = lines_of(s, rows);
    unsigned blocks = blocks_of_lines(k->cuda, s->groups * rows * s->out[0]);
    int64_t at = image_count(s, row);
    if (k->conv->plain)
        return GPP_OK;
    if (k->image)
        GPP__LAUNCH(write_columns<uint16_t>, blocks, GPP__THREADS, k->cuda, l,
                    (const uint16_t *)k->image + at, (uint16_t *)k->rest);
    else
        GPP__LAUNCH(write_columns<float>, blocks, GPP__THREADS, k->cuda, l, k->args->image + at,
                    (float *)k->rest);
    return gpp__cuda_launched(k->conv->layer, k->err);
}

static gpp_status gather(const call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    lines l = lines_of(s, rows);
    if (k->conv->plain)
        return GPP_OK;
    GPP__LAUNCH(gather_columns, blocks_of_lines(k->cuda, rows * s->in[0]), GPP__THREADS, k->cuda, l,
                (const float *)k->rest, k->args->image + image_count(s, row));
    return gpp__cuda_launched(k->conv->layer, k->err);
}

/* The matrix of columns, or the image as one, from `row` on; `numbers` of `size` bytes. */
static gpp__cuda_matrix columns_of(const call *k, const void *image, int64_t row, int64_t rows,
                                   size_t size)
{
    const gpp__conv_shape *s = &k->conv->shape;
    gpp__cuda_matrix m = gpp__cuda_matrix_of(k->rest, window(s), false);
    m.next = rows * s->out[0] * s->out[1] * window(s);
    if (k->conv->plain) {
        m.at = (const char *)image + (size_t)image_count(s, row) * size;
        m.step = s->in_channels;
        m.next = channels_in(s);
    }
    return m;
}

static gpp__cuda_matrix map_of(const call *k, int64_t row, bool turned)
{
    const gpp__conv_shape *s = &k->conv->shape;
    const char *at = k->map ? (const char *)k->map : (const char *)k->args->map;
    gpp__cuda_matrix m = gpp__cuda_matrix_of(
        at + (size_t)map_count(s, row) * gpp__cuda_operand_size(k->cuda), s->out_channels, turned);
    m.next = channels_out(s);
    return m;
}

static gpp__cuda_matrix weights_of(const call *k, bool turned)
{
    const gpp__conv_shape *s = &k->conv->shape;
    gpp__cuda_matrix m = gpp__cuda_matrix_of(k->args->weights, window(s), turned);
    m.next = channels_out(s) * window(s);
    return m;
}

static gpp_status multiply(const call *k, const gpp__cuda_product *p)
{
    return gpp__cuda_multiply(k->cuda, k->conv->layer, p, k->err);
}

static gpp_status forward_columns(const call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    const void *image = k->image ? k->image : k->args->image;
    gpp__cuda_product p = {rows * s->out[0] * s->out[1], channels_out(s), window(s)};
    p.a = columns_of(k, image, row, rows, gpp__cuda_operand_size(k->cuda));
    p.b = weights_of(k, true);
    p.c = k->args->map + map_count(s, row);
    p.c_step = s->out_channels, p.c_next = channels_out(s), p.batch = s->groups;
    gpp_status status = write_out(k, row, rows);
    return status == GPP_OK ? multiply(k, &p) : status;
}

static gpp_status data_columns(const call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    gpp__cuda_matrix to = columns_of(k, k->args->image, row, rows, sizeof(float));
    gpp__cuda_product p = {rows * s->out[0] * s->out[1], window(s), channels_out(s)};
    p.a = map_of(k, row, false);
    p.b = weights_of(k, false);
    p.c = (float *)to.at, p.c_step = to.step, p.c_next = to.next, p.batch = s->groups;
    gpp_status status = multiply(k, &p);
    return status == GPP_OK ? gather(k, row, rows) : status;
}

static gpp_status weights_columns(const call *k, int64_t row, int64_t rows)
{
    const gpp__conv_shape *s = &k->conv->shape;
    const void *image = k->image ? k->image : k->args->image;
    gpp__cuda_product p = {channels_out(s), window(s), rows * s->out[0] * s->out[1]};
    p.a = map_of(k, row, true);
    p.b = columns_of(k, image, row, rows, gpp__cuda_operand_size(k->cuda));
    p.c = k->args->grad, p.c_step = window(s), p.c_next = channels_out(s) * window(s);
    p.batch = s->groups;
    p.add = k->args->add || row > 0;
    gpp_status status = write_out(k, row, rows);
    return status == GPP_OK ? multiply(k, &p) : status;
}

static gpp_status run_columns(const call *k, gpp__conv_way which)
{
    const gpp__cuda_conv *c = k->conv;
    gpp_status status = GPP_OK;
    for (int64_t row = 0; row < c->rows && status == GPP_OK; row += c->chunk) {
        int64_t rows = c->rows - row < c->chunk ? c->rows - row : c->chunk;
        status = which == GPP__CONV_FORWARD ? forward_columns(k, row, rows)
                 : which == GPP__CONV_DATA  ? data_columns(k, row, rows)
                                            : weights_columns(k, row, rows);
    }
    return status;
}

/* --- the convolution --- */

static gpp_status check_sizes(const gpp__cuda_conv *c, gpp_error *err)
{
    const gpp__conv_shape *s = &c->shape;
    const char *what[] = {"rows", "pixels of a map", "numbers in a line of an image",
                          "numbers in the windows of a line"};
    int64_t size[] = {c->rows, s->out[0] * s->out[1], s->in[1] * s->in_channels,
                      s->out[1] * window(s)};
    gpp_status status = GPP_OK;
    for (int k = 0; k < 4 && status == GPP_OK; k++)
        status = gpp__cuda_expect_size(c->layer, what[k], size[k], err);
    return status;
}

/* Rows whose columns take COLUMNS bytes, at least one; or, for a pointwise convolution, which has
 * none, as many as can be counted. */
static int64_t chunk_of(const gpp__cuda_conv *c)
{
    const gpp__conv_shape *s = &c->shape;
    int64_t countable = INT32_MAX / (s->out[0] * s->out[1]);
    int64_t rows = c->plain ? c->rows : COLUMNS / (int64_t)sizeof(float) / column_count(s, 1);
    rows = rows < 1 ? 1 : rows;
    rows = rows < countable ? rows : countable;
    return rows < c->rows ? rows : c->rows;
}

static void measure(gpp__cuda_conv *c, const gpp__cuda *cuda)
{
    for (int k = 0; k < GPP__CONV_WAYS; k++) {
        gpp__cuda_room room = {NULL, 0};
        call measured = {c, cuda};
        place(&measured, (gpp__conv_way)k, &room);
        c->way[k].scratch = room.used;
    }
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
        status = choose(c, cuda, err);
    if (status != GPP_OK) {
        gpp__cuda_conv_free(c);
        *out = NULL;
        return status;
    }
    c->chunk = chunk_of(c);
    measure(c, cuda);
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

gpp_status gpp__cuda_conv_run(const gpp__cuda_conv *conv, gpp__conv_way which, const gpp__run *run,
                              const gpp__cuda_conv_args *args)
{
    call k = {conv, run->cuda, args, run->err};
    gpp__cuda_room room = {(char *)args->scratch, 0};
    place(&k, which, &room);
    gpp_status status = read_operands(&k, which);
    if (status == GPP_OK && conv->way[which].columns)
        return run_columns(&k, which);
    if (status == GPP_OK)
        status = run_library(&k, which);
    return status == GPP_OK ? write_results(&k, which) : status;
}
