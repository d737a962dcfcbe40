/*
 * tests/cuda_emulation/cudnn.cpp: convolutions by their definition (cross-correlations, as
 * PyTorch's and cuDNN's convolutions are),
 *
 *   y[n,k,o] = sum over c in k's group and taps t of  x[n, c, o·stride - pad + t·dilation]
 * w[k,c,t],
 *
 * its gradient by x and its gradient by w, each result = alpha·that + beta·result, summed in
 * double.
 *
 * The lists of algorithms have what a choice has to get right: one that fails, one that wants
 * absurdly much memory, one that is not deterministic (its results are not), one that rounds
 * operands to TF32 although the descriptor's math type leaves that to it, and a plain one. Each
 * wants a workspace, and overwrites it. As in cuDNN there are shapes for which nothing, or nothing
 * deterministic, is to be had: the gradient by w in dilated groups; the gradient by x in groups
 * with a stride; and shapes for which what is listed refuses when it is called: tall images.
 */
#include <cudnn.h>

#include <stdio.h>

#include "emulation.h"

enum { SPACE = 3, RANK = 2 + SPACE }; /* of any tensor here; dimensions that are not there are 1 */

struct cudnnContext {
    gpp_emulation::handle own;
};
struct cudnnTensorStruct {
    cudnnDataType_t type;
    int rank;
    cudnnTensorFormat_t format;      /* unless strides say else */
    int64_t dim[RANK], stride[RANK]; /* n, c, then space */
};
struct cudnnFilterStruct {
    cudnnTensorStruct tensor;
};
struct cudnnConvolutionStruct {
    int space; /* dimensions */
    int64_t pad[SPACE], stride[SPACE], dilation[SPACE];
    int groups;
    cudnnConvolutionMode_t mode;
    cudnnMathType_t math;
};

namespace
{

typedef cudnnTensorStruct tensor;

/* --- descriptors ------------------------------------------------------------------------------ */

/* Dimensions into the last places of space, so that (n, c, w) is (n, c, 1, 1, w). */
cudnnStatus_t set(tensor *t, cudnnDataType_t type, int rank, const int dim[])
{
    if (rank < 3 || rank > RANK || (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16))
        return CUDNN_STATUS_BAD_PARAM;
    t->type = type;
    t->rank = rank;
    for (int k = 0; k < RANK; k++)
        t->dim[k] = 1;
    for (int k = 0; k < rank; k++) {
        if (dim[k] < 1)
            return CUDNN_STATUS_BAD_PARAM;
        t->dim[k < 2 ? k : k + RANK - rank] = dim[k];
    }
    return CUDNN_STATUS_SUCCESS;
}

/* No more than cuDNN's integers count. */
cudnnStatus_t set_strides(tensor *t, cudnnTensorFormat_t format)
{
    static const int inward[2][RANK] = {{0, 1, 2, 3, 4}, {0, 2, 3, 4, 1}};
    int64_t stride = 1;
    t->format = format;
    for (int k = RANK - 1; k >= 0; k--) {
        int axis = inward[format == CUDNN_TENSOR_NHWC][k];
        t->stride[axis] = stride;
        stride *= t->dim[axis];
        if (stride > INT32_MAX)
            return CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_packed(tensor *t, cudnnTensorFormat_t format, cudnnDataType_t type, int rank,
                         const int dim[])
{
    cudnnStatus_t status = set(t, type, rank, dim);
    return status == CUDNN_STATUS_SUCCESS ? set_strides(t, format) : status;
}

size_t bytes_of(const tensor &t)
{
    int64_t last = 0;
    for (int k = 0; k < RANK; k++)
        last += (t.dim[k] - 1) * t.stride[k];
    return (size_t)(last + 1) * (t.type == CUDNN_DATA_BFLOAT16 ? 2 : 4);
}

/* --- elements --------------------------------------------------------------------------------- */

struct index {
    int64_t at[RANK];
};

int64_t offset(const tensor &t, const index &i)
{
    int64_t sum = 0;
    for (int k = 0; k < RANK; k++)
        sum += i.at[k] * t.stride[k];
    return sum;
}

float load(const tensor &t, const void *data, int64_t at)
{
    return t.type == CUDNN_DATA_BFLOAT16 ? gpp_emulation::from_bf16(((const uint16_t *)data)[at])
                                         : ((const float *)data)[at];
}

void store(const tensor &t, void *data, int64_t at, float value)
{
    if (t.type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)data)[at] = gpp_emulation::to_bf16(value);
    else
        ((float *)data)[at] = value;
}

/* The next element in row-major order; false: that was the last. */
bool next(const tensor &t, index *i)
{
    for (int k = RANK - 1; k >= 0; k--) {
        if (++i->at[k] < t.dim[k])
            return true;
        i->at[k] = 0;
    }
    return false;
}

/* --- a convolution ---------------------------------------------------------------------------- */

struct problem {
    const tensor *x, *w, *y;
    const cudnnConvolutionStruct *conv;
};

int64_t output_size(const problem &p, int k)
{
    const cudnnConvolutionStruct *c = p.conv;
    int64_t taps = c->dilation[k] * (p.w->dim[2 + k] - 1) + 1;
    return (p.x->dim[2 + k] + 2 * c->pad[k] - taps) / c->stride[k] + 1;
}

cudnnStatus_t check(const problem &p)
{
    const cudnnConvolutionStruct *c = p.conv;
    if (c->mode != CUDNN_CROSS_CORRELATION || p.x->type != p.w->type || p.x->type != p.y->type)
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (p.x->format != p.w->format || p.x->format != p.y->format)
        return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    if (p.x->rank != p.w->rank || p.x->rank != p.y->rank || p.x->rank != c->space + 2)
        return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    if (p.x->dim[1] != p.w->dim[1] * c->groups || p.w->dim[0] % c->groups != 0 ||
        p.y->dim[1] != p.w->dim[0] || p.y->dim[0] != p.x->dim[0])
        return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    for (int k = 0; k < SPACE; k++)
        if (p.y->dim[2 + k] != output_size(p, k))
            return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    return CUDNN_STATUS_SUCCESS;
}

/* The input that output `o`, which is in `group`, multiplies with the tap of `w`; false: padding. */
inline bool input_of(const problem &p, const index &o, int64_t group, const index &w, index *x)
{
    x->at[0] = o.at[0];
    x->at[1] = group * p.w->dim[1] + w.at[1];
    for (int k = 0; k < SPACE; k++) {
        x->at[2 + k] =
            o.at[2 + k] * p.conv->stride[k] - p.conv->pad[k] + w.at[2 + k] * p.conv->dilation[k];
        if (x->at[2 + k] < 0 || x->at[2 + k] >= p.x->dim[2 + k])
            return false;
    }
    return true;
}

/* All products of one element each of x, w and y: the three functions differ in which of them is
 * the sum's. */
template <class Product> void each_product(const problem &p, Product product)
{
    index o = {};
    do {
        const int64_t group = o.at[1] / (p.w->dim[0] / p.conv->groups), y = offset(*p.y, o);
        index w = {}, x;
        w.at[0] = o.at[1];
        do {
            if (input_of(p, o, group, w, &x))
                product(offset(*p.x, x), offset(*p.w, w), y);
        } while (next(*p.w, &w) && w.at[0] == o.at[1]);
    } while (next(*p.y, &o));
}

float rounded(const tensor &t, const void *data, int64_t at, bool tf32)
{
    float value = load(t, data, at);
    return tf32 ? gpp_emulation::to_tf32(value) : value;
}

/* result = alpha sums + beta result; an algorithm that is not deterministic is off by a little that
 * differs from call to call. */
void finish(const tensor &t, const double *sums, void *result, const void *alpha, const void *beta,
            bool determined)
{
    static unsigned calls;
    float a = *(const float *)alpha, b = *(const float *)beta;
    double noise = determined ? 1 : 1 + 1e-6 * (++calls % 7);
    index i = {};
    do {
        int64_t at = offset(t, i);
        double old = b != 0 ? b * load(t, result, at) : 0;
        store(t, result, at, (float)(a * sums[at] * noise + old));
    } while (next(t, &i));
}

/* --- algorithms ------------------------------------------------------------------------------- */

struct algorithm {
    int number;
    cudnnStatus_t status;
    size_t memory;
    bool determined, tensor_op;
};

const size_t absurd = (size_t)1 << 40;
const algorithm forward_algorithms[] = {
    {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, CUDNN_STATUS_NOT_SUPPORTED, 0, true, false},
    {CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_STATUS_SUCCESS, absurd, true, false},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_STATUS_SUCCESS, 4096, true, true},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_STATUS_SUCCESS, 4104, true, false},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_STATUS_SUCCESS, 0, true, false},
};
const algorithm data_algorithms[] = {
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_STATUS_NOT_SUPPORTED, 0, true, false},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_STATUS_SUCCESS, absurd, true, false},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_STATUS_SUCCESS, 0, false, false},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_STATUS_SUCCESS, 8192, true, true},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_STATUS_SUCCESS, 8200, true, false},
};
const algorithm filter_algorithms[] = {
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD, CUDNN_STATUS_NOT_SUPPORTED, 0, true, false},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, CUDNN_STATUS_SUCCESS, absurd, true, false},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_STATUS_SUCCESS, 0, false, false},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, CUDNN_STATUS_SUCCESS, 512, false, false},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_STATUS_SUCCESS, 12288, true, true},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_STATUS_SUCCESS, 12296, true, false},
};

bool grouped(const problem &p, const int64_t (&steps)[SPACE])
{
    int64_t most = 1;
    for (int64_t step : steps)
        most = step > most ? step : most;
    return p.conv->groups > 1 && most > 1;
}

/* Images for which an algorithm is listed, says what memory it wants, and then is not supported
 * after all. cuDNN has such, tall ones among them: github.com/pytorch/pytorch/issues/31336. */
bool refuses(const problem &p, const algorithm *one)
{
    return one->memory > 0 && p.x->dim[RANK - 2] > 64;
}

/* Those that the math type allows, as cuDNN lists them: with tensor operations unless it is FMA. */
template <class Perf, size_t count>
cudnnStatus_t list(const algorithm (&known)[count], const problem &p, int requested, int *returned,
                   Perf *results, bool wild_only = false)
{
    cudnnStatus_t status = check(p);
    if (status || requested < 1)
        return status ? status : CUDNN_STATUS_BAD_PARAM;
    *returned = 0;
    for (size_t k = 0; k < count && *returned < requested; k++) {
        if ((known[k].tensor_op && p.conv->math == CUDNN_FMA_MATH) ||
            (known[k].determined && wild_only))
            continue;
        Perf *result = &results[(*returned)++];
        memset(result, 0, sizeof *result);
        result->algo = (decltype(result->algo))known[k].number;
        result->status = known[k].status;
        result->time = -1;
        result->memory = known[k].memory;
        result->determinism = known[k].determined ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
        result->mathType = known[k].tensor_op ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* That of the number and the descriptor's math type; NULL: there is none. */
template <size_t count>
const algorithm *find(const algorithm (&known)[count], const problem &p, int number)
{
    const algorithm *found = nullptr;
    for (const algorithm &one : known)
        if (one.number == number && one.status == CUDNN_STATUS_SUCCESS &&
            (!found || one.tensor_op == (p.conv->math != CUDNN_FMA_MATH)))
            found = &one;
    return found;
}

template <size_t count>
cudnnStatus_t workspace_size(const algorithm (&known)[count], const problem &p, int number,
                             size_t *bytes)
{
    cudnnStatus_t status = check(p);
    const algorithm *found = find(known, p, number);
    if (status || !found)
        return status ? status : CUDNN_STATUS_NOT_SUPPORTED;
    *bytes = found->memory;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t begin(const problem &p, const algorithm *found, void *workspace, size_t bytes,
                    const void *x, const void *w, const void *y)
{
    cudnnStatus_t status = check(p);
    if (status || !found || refuses(p, found))
        return status ? status : CUDNN_STATUS_NOT_SUPPORTED;
    if (bytes < found->memory)
        return CUDNN_STATUS_BAD_PARAM;
    if ((uintptr_t)workspace % 256 != 0)
        gpp_emulation::stop("cuDNN: the workspace %p is not aligned as cudaMalloc does", workspace);
    gpp_emulation::need_device("cuDNN, input or its gradient", x, bytes_of(*p.x));
    gpp_emulation::need_device("cuDNN, filter or its gradient", w, bytes_of(*p.w));
    gpp_emulation::need_device("cuDNN, output or its gradient", y, bytes_of(*p.y));
    gpp_emulation::spoil("cuDNN, workspace", workspace, found->memory);
    return CUDNN_STATUS_SUCCESS;
}

bool rounds(const problem &p)
{
    return p.x->type == CUDNN_DATA_FLOAT && p.conv->math != CUDNN_FMA_MATH;
}

double *sums_for(const tensor &t)
{
    return new double[bytes_of(t) / 2]();
}

} // namespace

/* --- handles, descriptors --------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
    case CUDNN_STATUS_SUCCESS:
        return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
        return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
        return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH:
        return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
        return "CUDNN_STATUS_UNKNOWN";
    }
}

void cudnnGetLastErrorString(char *message, size_t size)
{
    snprintf(message, size, "emulated");
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    int count;
    if (cudaGetDeviceCount(&count))
        return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = new cudnnContext();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->own.stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    *stream = handle->own.stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *desc)
{
    *desc = new cudnnTensorStruct();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc)
{
    delete desc;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w)
{
    const int dim[] = {n, c, h, w};
    return set_packed(desc, format, type, 4, dim);
}

cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int nbDims, const int dimA[])
{
    return set_packed(desc, format, type, nbDims, dimA);
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t desc, cudnnDataType_t type,
                                         int nbDims, const int dimA[], const int strideA[])
{
    cudnnStatus_t status = set_packed(desc, CUDNN_TENSOR_NCHW, type, nbDims, dimA);
    for (int k = 0; !status && k < nbDims; k++)
        desc->stride[k < 2 ? k : k + RANK - nbDims] = strideA[k];
    return status;
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t desc, cudnnDataType_t type,
                                           int n, int c, int h, int w, int nStride, int cStride,
                                           int hStride, int wStride)
{
    const int dim[] = {n, c, h, w}, stride[] = {nStride, cStride, hStride, wStride};
    return cudnnSetTensorNdDescriptor(desc, type, 4, dim, stride);
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *desc)
{
    *desc = new cudnnFilterStruct();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc)
{
    delete desc;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int nbDims,
                                         const int filterDimA[])
{
    return set_packed(&desc->tensor, format, type, nbDims, filterDimA);
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    const int dim[] = {k, c, h, w};
    return set_packed(&desc->tensor, format, type, 4, dim);
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *desc)
{
    *desc = new cudnnConvolutionStruct();
    (*desc)->groups = 1;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t desc)
{
    delete desc;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t desc, int arrayLength,
                                              const int padA[], const int filterStrideA[],
                                              const int dilationA[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t computeType)
{
    if (arrayLength < 1 || arrayLength > SPACE || computeType != CUDNN_DATA_FLOAT)
        return CUDNN_STATUS_BAD_PARAM;
    desc->space = arrayLength;
    desc->mode = mode;
    for (int k = 0; k < SPACE; k++) {
        int from = k - (SPACE - arrayLength);
        desc->pad[k] = from < 0 ? 0 : padA[from];
        desc->stride[k] = from < 0 ? 1 : filterStrideA[from];
        desc->dilation[k] = from < 0 ? 1 : dilationA[from];
        if (desc->pad[k] < 0 || desc->stride[k] < 1 || desc->dilation[k] < 1)
            return CUDNN_STATUS_BAD_PARAM;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t desc, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t computeType)
{
    const int pad[] = {pad_h, pad_w}, stride[] = {u, v}, dilation[] = {dilation_h, dilation_w};
    return cudnnSetConvolutionNdDescriptor(desc, 2, pad, stride, dilation, mode, computeType);
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t desc, cudnnMathType_t type)
{
    desc->math = type;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t desc, int groups)
{
    if (groups < 1)
        return CUDNN_STATUS_BAD_PARAM;
    desc->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

/* --- forward ---------------------------------------------------------------------------------- */

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t, int *count)
{
    *count = sizeof forward_algorithms / sizeof *forward_algorithms;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t conv,
                                                     const cudnnTensorDescriptor_t y,
                                                     const int requested, int *returned,
                                                     cudnnConvolutionFwdAlgoPerf_t *results)
{
    return list(forward_algorithms, {x, &w->tensor, y, conv}, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t,
                                                      const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t conv,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *bytes)
{
    return workspace_size(forward_algorithms, {x, &w->tensor, y, conv}, algo, bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t xDesc, const void *x,
                                      const cudnnFilterDescriptor_t wDesc, const void *w,
                                      const cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algo, void *workspace,
                                      size_t workspaceBytes, const void *beta,
                                      const cudnnTensorDescriptor_t yDesc, void *y)
{
    gpp_emulation::handle_use use("cudnnConvolutionForward", &handle->own);
    gpp_emulation::opened open("cudnnConvolutionForward");
    problem p = {xDesc, &wDesc->tensor, yDesc, conv};
    const algorithm *found = find(forward_algorithms, p, algo);
    cudnnStatus_t status = begin(p, found, workspace, workspaceBytes, x, w, y);
    if (status)
        return status;
    bool tf32 = rounds(p);
    double *sums = sums_for(*p.y);
    each_product(p, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
        sums[at_y] += (double)rounded(*p.x, x, at_x, tf32) * rounded(*p.w, w, at_w, tf32);
    });
    finish(*p.y, sums, y, alpha, beta, found->determined);
    delete[] sums;
    return CUDNN_STATUS_SUCCESS;
}

/* --- gradient by the input -------------------------------------------------------------------- */

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t, int *count)
{
    *count = sizeof data_algorithms / sizeof *data_algorithms;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx, const int requested,
    int *returned, cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    problem p = {dx, &w->tensor, dy, conv};
    return list(data_algorithms, p, requested, returned, results, grouped(p, conv->stride));
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes)
{
    return workspace_size(data_algorithms, {dx, &w->tensor, dy, conv}, algo, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t wDesc, const void *w,
                                           const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                           const cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workspace,
                                           size_t workspaceBytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxDesc, void *dx)
{
    gpp_emulation::handle_use use("cudnnConvolutionBackwardData", &handle->own);
    gpp_emulation::opened open("cudnnConvolutionBackwardData");
    problem p = {dxDesc, &wDesc->tensor, dyDesc, conv};
    const algorithm *found = find(data_algorithms, p, algo);
    cudnnStatus_t status = begin(p, found, workspace, workspaceBytes, dx, w, dy);
    if (status)
        return status;
    bool tf32 = rounds(p);
    double *sums = sums_for(*p.x);
    each_product(p, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
        sums[at_x] += (double)rounded(*p.y, dy, at_y, tf32) * rounded(*p.w, w, at_w, tf32);
    });
    finish(*p.x, sums, dx, alpha, beta, found->determined);
    delete[] sums;
    return CUDNN_STATUS_SUCCESS;
}

/* --- gradient by the filter ------------------------------------------------------------------- */

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t, int *count)
{
    *count = sizeof filter_algorithms / sizeof *filter_algorithms;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw, const int requested,
    int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    problem p = {x, &dw->tensor, dy, conv};
    if (grouped(p, conv->dilation))
        return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
    return list(filter_algorithms, p, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes)
{
    return workspace_size(filter_algorithms, {x, &dw->tensor, dy, conv}, algo, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t xDesc, const void *x,
                                             const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
                                             size_t workspaceBytes, const void *beta,
                                             const cudnnFilterDescriptor_t dwDesc, void *dw)
{
    gpp_emulation::handle_use use("cudnnConvolutionBackwardFilter", &handle->own);
    gpp_emulation::opened open("cudnnConvolutionBackwardFilter");
    problem p = {xDesc, &dwDesc->tensor, dyDesc, conv};
    const algorithm *found = find(filter_algorithms, p, algo);
    cudnnStatus_t status = begin(p, found, workspace, workspaceBytes, x, dw, dy);
    if (status)
        return status;
    bool tf32 = rounds(p);
    double *sums = sums_for(*p.w);
    each_product(p, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
        sums[at_w] += (double)rounded(*p.x, x, at_x, tf32) * rounded(*p.y, dy, at_y, tf32);
    });
    finish(*p.w, sums, dw, alpha, beta, found->determined);
    delete[] sums;
    return CUDNN_STATUS_SUCCESS;
}
