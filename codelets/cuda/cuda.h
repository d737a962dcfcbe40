/*
 * codelets/cuda/cuda.h: what code for CUDA works with: the device's stream and library handles.
 *
 * Functions of operators for CUDA (gpp_op.cuda, in the .cu file beside the operator) are called by
 * the host, launch on `stream` and return: they neither wait nor allocate, and do not know the task
 * runtime. All pointers of a gpp__io are device memory. What goes wrong asynchronously is found by
 * whoever waits for the stream.
 *
 * Invariant: as on CPU cores, a result depends on inputs, number of rows and attributes alone. Sums
 * run in an order that shapes fix: no atomic additions of floats, library algorithms that are
 * deterministic.
 *
 * Kernels are written so that they can also be compiled by a C++ compiler and run on the host,
 * thread by thread (tests/cuda_emulation): they are launched with GPP__LAUNCH, have shared memory
 * of constant size only, and use no warp intrinsics.
 */
#ifndef GPP_CODELETS_CUDA_CUDA_H
#define GPP_CODELETS_CUDA_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

#include "codelets/op.h"

/** What matrix products and convolutions compute with. Tensors are float32 in any case. */
typedef enum gpp__math {
    GPP__MATH_F32,  /* float32 */
    GPP__MATH_TF32, /* products of operands rounded to TF32, sums in float32 */
    GPP__MATH_BF16, /* products of operands rounded to bfloat16, sums in float32 */
} gpp__math;

/** A device as kernels see it. One thread at a time uses one. */
typedef struct gpp__cuda {
    int ordinal; /* of the device, for cudaSetDevice */
    cudaStream_t stream;
    cublasHandle_t
        blas; /* on that stream, host pointers, math mode as `math` says, a fixed workspace */
    cudnnHandle_t dnn; /* on that stream */
    gpp__math math;
    bool deterministic; /* false: library algorithms may be faster ones whose sums run in any order
                         */
    int multiprocessors;
} gpp__cuda;

/** Make one with handles of its own on `stream`, for the calling thread's current device. @return
 * GPP_OK, GPP_ENODEV, GPP_ENOMEM, GPP_EKERNEL */
gpp_status gpp__cuda_new(gpp__cuda **cuda, int ordinal, cudaStream_t stream, gpp__math math,
                         bool deterministic, gpp_error *err);
/** NULL is fine. The stream is the caller's. */
void gpp__cuda_free(gpp__cuda *cuda);

/* Failures of the three libraries as our status. The message says the call, and the layer when
 * there is one. */
gpp_status gpp__cuda_failed(cudaError_t code, const char *call, const gpp__layer *layer,
                            gpp_error *err);
gpp_status gpp__cublas_failed(cublasStatus_t code, const char *call, const gpp__layer *layer,
                              gpp_error *err);
gpp_status gpp__cudnn_failed(cudnnStatus_t code, const char *call, const gpp__layer *layer,
                             gpp_error *err);

/** Evaluate a call once; GPP_OK, or its failure. `layer` may be NULL. */
#define GPP__CUDA(expression, layer, err) gpp__cuda_check((expression), #expression, (layer), (err))
#define GPP__CUBLAS(expression, layer, err)                                                        \
    gpp__cublas_check((expression), #expression, (layer), (err))
#define GPP__CUDNN(expression, layer, err)                                                         \
    gpp__cudnn_check((expression), #expression, (layer), (err))

static inline gpp_status gpp__cuda_check(cudaError_t code, const char *call,
                                         const gpp__layer *layer, gpp_error *err)
{
    return code == cudaSuccess ? GPP_OK : gpp__cuda_failed(code, call, layer, err);
}
static inline gpp_status gpp__cublas_check(cublasStatus_t code, const char *call,
                                           const gpp__layer *layer, gpp_error *err)
{
    return code == CUBLAS_STATUS_SUCCESS ? GPP_OK : gpp__cublas_failed(code, call, layer, err);
}
static inline gpp_status gpp__cudnn_check(cudnnStatus_t code, const char *call,
                                          const gpp__layer *layer, gpp_error *err)
{
    return code == CUDNN_STATUS_SUCCESS ? GPP_OK : gpp__cudnn_failed(code, call, layer, err);
}

/** The status of the launches so far, for a function that has launched kernels to return. */
gpp_status gpp__cuda_launched(const gpp__layer *layer, gpp_error *err);

/* --- what several operators use (cuda/common.cu) ---------------------------------------------- */

/** Bytes set, or copied, on the stream; 0 bytes are fine. */
gpp_status gpp__cuda_zero(const gpp__cuda *cuda, void *to, size_t bytes, gpp_error *err);
gpp_status gpp__cuda_copy(const gpp__cuda *cuda, void *to, const void *from, size_t bytes,
                          gpp_error *err);
/** sum[k] += x[k] */
gpp_status gpp__cuda_accumulate(const gpp__cuda *cuda, float *sum, const float *x, int64_t count,
                                gpp_error *err);
/**
 * to[c] = (accumulate ? to[c] : 0) + sum over r of x[r][c], in an order that rows and columns fix.
 * @param room  [gpp__cuda_columns_room]
 */
gpp_status gpp__cuda_sum_columns(const gpp__cuda *cuda, const float *x, int64_t rows,
                                 int64_t columns, bool accumulate, float *to, void *room,
                                 gpp_error *err);
size_t gpp__cuda_columns_room(int64_t rows, int64_t columns);
/** float32 to bfloat16 and back, rounding to nearest even; NaN stays NaN. */
gpp_status gpp__cuda_to_bf16(const gpp__cuda *cuda, const float *x, void *to, int64_t count,
                             gpp_error *err);
gpp_status gpp__cuda_from_bf16(const gpp__cuda *cuda, const void *x, float *to, int64_t count,
                               gpp_error *err);

/* --- losses, optimizers: their functions on a device ------------------------------------------ */

struct gpp__loss_call;
struct gpp_optimizer;

#ifdef __cplusplus
} /* extern "C" */

/* Launching: blocks and threads of a block are plain numbers or dim3. */
#ifndef GPP__LAUNCH
#define GPP__LAUNCH(kernel, blocks, threads, cuda, ...)                                            \
    kernel<<<(blocks), (threads), 0, (cuda)->stream>>>(__VA_ARGS__)
#endif

enum { GPP__THREADS = 256 }; /* of a block, where nothing else is better */

/** Blocks for work on `count` elements by loops that stride over the grid; at least 1. */
static inline unsigned gpp__blocks_of(const gpp__cuda *cuda, int64_t count)
{
    int64_t blocks = (count + GPP__THREADS - 1) / GPP__THREADS,
            most = (int64_t)cuda->multiprocessors * 16;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/** for (GPP__EACH(k, count)): elements of this thread, striding over the grid. */
#define GPP__EACH(k, count)                                                                        \
    int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                                    \
    k < (count);                                                                                   \
    k += (int64_t)gridDim.x * blockDim.x

#endif
#endif
