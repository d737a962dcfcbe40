/*
 * codelets/cuda/context.cu: the device context that kernels get, and CUDA's failures as gpp_status.
 *
 * A device's handles are made once, where memory may be allocated, and belong to one stream. The
 * workspace of cuBLAS is the handle's own and of fixed size: results are the same from run to run
 * where streams share no workspace (cuBLAS documentation, "Results Reproducibility"). Setting the
 * stream takes a workspace away, so it is set last ("cublasSetStream").
 *
 * float32 is float32 in the default mode: it computes with at least the bits that are asked for,
 * and every product here (cublasGemmEx) asks for plain float32. The pedantic mode would promise no
 * more, and is documented as one for debugging that may be slower.
 */
#include "codelets/cuda/cuda.h"

#include <stdlib.h>

/* What the documentation of cublasSetWorkspace recommends for Hopper; for others it is 4 MiB. */
static const size_t workspace_bytes = (size_t)32 << 20;

/* A gpp__cuda with the fields that its user does not see. */
typedef struct context {
    gpp__cuda cuda;
    void *workspace; /* of blas */
} context;

/* --- failures --------------------------------------------------------------------------------- */

/* Where the failure was: the number of the layer or -1. */
static gpp_status failed(gpp_status status, const char *library, const char *name, const char *text,
                         const char *call, const gpp__layer *layer, gpp_error *err)
{
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess)
        device = -1;
    if (layer)
        return gpp__fail_layer(err, status, layer->index,
                               "%s (layer %d): %s on device cuda:%d: %s (%s) from %.80s",
                               layer->op->name, layer->index, library, device, name, text, call);
    return gpp__fail(err, status, "%s on device cuda:%d: %s (%s) from %.80s", library, device, name,
                     text, call);
}

gpp_status gpp__cuda_failed(cudaError_t code, const char *call, const gpp__layer *layer,
                            gpp_error *err)
{
    gpp_status status = GPP_EKERNEL;
    if (code == cudaErrorMemoryAllocation)
        status = GPP_ENOMEM;
    else if (code == cudaErrorNoDevice || code == cudaErrorInvalidDevice ||
             code == cudaErrorInsufficientDriver)
        status = GPP_ENODEV;
    (void)cudaGetLastError(); /* reported now, so the next launch must not report it again */
    return failed(status, "CUDA", cudaGetErrorName(code), cudaGetErrorString(code), call, layer,
                  err);
}

gpp_status gpp__cublas_failed(cublasStatus_t code, const char *call, const gpp__layer *layer,
                              gpp_error *err)
{
    gpp_status status = code == CUBLAS_STATUS_ALLOC_FAILED ? GPP_ENOMEM : GPP_EKERNEL;
    return failed(status, "cuBLAS", cublasGetStatusName(code), cublasGetStatusString(code), call,
                  layer, err);
}

gpp_status gpp__cudnn_failed(cudnnStatus_t code, const char *call, const gpp__layer *layer,
                             gpp_error *err)
{
    char text[128] = "";
    bool memory = code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                  code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    cudnnGetLastErrorString(text, sizeof text);
    return failed(memory ? GPP_ENOMEM : GPP_EKERNEL, "cuDNN", cudnnGetErrorString(code), text, call,
                  layer, err);
}

gpp_status gpp__cuda_launched(const gpp__layer *layer, gpp_error *err)
{
    return GPP__CUDA(cudaGetLastError(), layer, err);
}

/* --- handles ---------------------------------------------------------------------------------- */

static cublasMath_t math_mode(gpp__math math)
{
    return math == GPP__MATH_TF32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH;
}

static gpp_status make_blas(context *made, gpp_error *err)
{
    gpp__cuda *cuda = &made->cuda;
    cublasAtomicsMode_t atomics =
        cuda->deterministic ? CUBLAS_ATOMICS_NOT_ALLOWED : CUBLAS_ATOMICS_ALLOWED;
    gpp_status status = GPP__CUBLAS(cublasCreate(&cuda->blas), NULL, err);
    if (!status)
        status = GPP__CUBLAS(cublasSetStream(cuda->blas, cuda->stream), NULL, err);
    if (!status)
        status = GPP__CUBLAS(cublasSetPointerMode(cuda->blas, CUBLAS_POINTER_MODE_HOST), NULL, err);
    if (!status)
        status = GPP__CUBLAS(cublasSetAtomicsMode(cuda->blas, atomics), NULL, err);
    if (!status)
        status = GPP__CUBLAS(cublasSetMathMode(cuda->blas, math_mode(cuda->math)), NULL, err);
    if (!status)
        status = GPP__CUDA(cudaMalloc(&made->workspace, workspace_bytes), NULL, err);
    if (!status)
        status = GPP__CUBLAS(cublasSetWorkspace(cuda->blas, made->workspace, workspace_bytes), NULL,
                             err);
    return status;
}

static gpp_status make_dnn(gpp__cuda *cuda, gpp_error *err)
{
    gpp_status status = GPP__CUDNN(cudnnCreate(&cuda->dnn), NULL, err);
    return status ? status : GPP__CUDNN(cudnnSetStream(cuda->dnn, cuda->stream), NULL, err);
}

/* The device must be the calling thread's current one. Otherwise memory and handles would belong to
 * another device. */
static gpp_status check_device(int ordinal, gpp_error *err)
{
    int current;
    gpp_status status = GPP__CUDA(cudaGetDevice(&current), NULL, err);
    if (status)
        return status;
    if (current != ordinal)
        return gpp__fail(err, GPP_ENODEV, "cuda:%d is wanted where cuda:%d is the thread's device",
                         ordinal, current);
    return GPP_OK;
}

gpp_status gpp__cuda_new(gpp__cuda **cuda, int ordinal, cudaStream_t stream, gpp__math math,
                         bool deterministic, gpp_error *err)
{
    *cuda = NULL;
    gpp_status status = check_device(ordinal, err);
    if (status)
        return status;
    context *made = (context *)calloc(1, sizeof *made);
    if (!made)
        return gpp__fail(err, GPP_ENOMEM, "handles of cuda:%d", ordinal);
    made->cuda.ordinal = ordinal;
    made->cuda.stream = stream;
    made->cuda.math = math;
    made->cuda.deterministic = deterministic;
    status = GPP__CUDA(cudaDeviceGetAttribute(&made->cuda.multiprocessors,
                                              cudaDevAttrMultiProcessorCount, ordinal),
                       NULL, err);
    if (!status)
        status = make_blas(made, err);
    if (!status)
        status = make_dnn(&made->cuda, err);
    if (status) {
        gpp__cuda_free(&made->cuda);
        return status;
    }
    *cuda = &made->cuda;
    return GPP_OK;
}

/* Ignores failures: the caller cannot do anything about them. */
void gpp__cuda_free(gpp__cuda *cuda)
{
    context *made = (context *)cuda;
    if (!made)
        return;
    if (cuda->dnn)
        (void)cudnnDestroy(cuda->dnn);
    if (cuda->blas)
        (void)cublasDestroy(cuda->blas);
    (void)cudaFree(made->workspace);
    free(made);
}
