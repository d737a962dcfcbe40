/*
 * tests/cuda_emulation/cublas.cpp: matrix products by their definition,
 *
 *   C = alpha op(A) op(B) + beta C,   op(A) m×k, op(B) k×n, column-major,
 *
 * summed in double. Where cuBLAS may round operands (to TF32 in its TF32 math mode, to TF32 or
 * bfloat16 by compute type) they are rounded, so that a product in the wrong mode is seen; the
 * pedantic types and mode never round. Arguments are refused as the documentation says, and every
 * product overwrites the beginning of the workspace, SPOILED bytes: more takes longer than the
 * product.
 */
#include <cublas_v2.h>

#include "emulation.h"

struct cublasContext {
    gpp_emulation::handle own;
    void *workspace;
    size_t bytes;
    cublasPointerMode_t pointers;
    cublasAtomicsMode_t atomics;
    cublasMath_t math;
};

namespace
{

const size_t SPOILED = 4096;

enum rounding { EXACT, TF32, BF16 };

struct matrix {
    const void *data;
    cudaDataType type;
    int ld;
    long long stride;
    bool transposed;
};

struct product {
    int m, n, k, batches;
    matrix a, b;
    void *c;
    cudaDataType c_type;
    int ldc;
    long long stride_c;
    float alpha, beta;
    rounding round;
};

size_t size_of(cudaDataType type)
{
    return type == CUDA_R_16BF ? 2 : 4;
}

float load(const void *data, cudaDataType type, int64_t at)
{
    return type == CUDA_R_16BF ? gpp_emulation::from_bf16(((const uint16_t *)data)[at])
                               : ((const float *)data)[at];
}

void store(void *data, cudaDataType type, int64_t at, float value)
{
    if (type == CUDA_R_16BF)
        ((uint16_t *)data)[at] = gpp_emulation::to_bf16(value);
    else
        ((float *)data)[at] = value;
}

float operand(const matrix &x, int64_t batch, int row, int column, rounding round)
{
    int64_t at = batch * x.stride +
                 (x.transposed ? column + (int64_t)row * x.ld : row + (int64_t)column * x.ld);
    float value = load(x.data, x.type, at);
    if (round == TF32)
        return gpp_emulation::to_tf32(value);
    return round == BF16 ? gpp_emulation::from_bf16(gpp_emulation::to_bf16(value)) : value;
}

/* From the first to the last element of `count` matrices of rows × columns. */
size_t extent(int rows, int columns, int ld, long long stride, int count, cudaDataType type)
{
    return ((size_t)(count - 1) * (size_t)stride + (size_t)(columns - 1) * (size_t)ld +
            (size_t)rows) *
           size_of(type);
}

void check_memory(const product &p)
{
    int a_rows = p.a.transposed ? p.k : p.m, b_rows = p.b.transposed ? p.n : p.k;
    int a_columns = p.a.transposed ? p.m : p.k, b_columns = p.b.transposed ? p.k : p.n;
    if (p.k > 0 && p.alpha != 0) {
        gpp_emulation::need_device(
            "gemm, A", p.a.data,
            extent(a_rows, a_columns, p.a.ld, p.a.stride, p.batches, p.a.type));
        gpp_emulation::need_device(
            "gemm, B", p.b.data,
            extent(b_rows, b_columns, p.b.ld, p.b.stride, p.batches, p.b.type));
    }
    gpp_emulation::need_device("gemm, C", p.c,
                               extent(p.m, p.n, p.ldc, p.stride_c, p.batches, p.c_type));
}

void element(const product &p, int64_t batch, int row, int column)
{
    double sum = 0;
    for (int l = 0; l < p.k && p.alpha != 0; l++)
        sum +=
            (double)operand(p.a, batch, row, l, p.round) * operand(p.b, batch, l, column, p.round);
    int64_t at = batch * p.stride_c + row + (int64_t)column * p.ldc;
    double old = p.beta != 0 ? p.beta * load(p.c, p.c_type, at) : 0;
    store(p.c, p.c_type, at, (float)(p.alpha * sum + old));
}

bool knows(cudaDataType a, cudaDataType b, cudaDataType c)
{
    return a == b && ((a == CUDA_R_32F && c == CUDA_R_32F) ||
                      (a == CUDA_R_16BF && (c == CUDA_R_16BF || c == CUDA_R_32F)));
}

rounding rounding_of(cublasHandle_t handle, cublasComputeType_t compute, cudaDataType type)
{
    if (type == CUDA_R_16BF || (handle->math & 15) == CUBLAS_PEDANTIC_MATH)
        return EXACT;
    switch (compute) {
    case CUBLAS_COMPUTE_32F:
        return (handle->math & 15) == CUBLAS_TF32_TENSOR_OP_MATH ? TF32 : EXACT;
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return EXACT;
    case CUBLAS_COMPUTE_32F_FAST_16BF:
        return BF16;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return TF32;
    }
    return EXACT;
}

bool good(int rows, int ld)
{
    return ld >= (rows > 1 ? rows : 1);
}

} // namespace

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long int strideA, const void *B,
                                          cudaDataType Btype, int ldb, long long int strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || batchCount < 0 || !alpha || !beta ||
        !good(transa == CUBLAS_OP_N ? m : k, lda) || !good(transb == CUBLAS_OP_N ? k : n, ldb) ||
        !good(m, ldc))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!knows(Atype, Btype, Ctype))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m == 0 || n == 0 || batchCount == 0)
        return CUBLAS_STATUS_SUCCESS;
    gpp_emulation::handle_use use("cublasGemm", &handle->own);
    gpp_emulation::opened open("cublasGemm");
    product p = {m,
                 n,
                 k,
                 batchCount,
                 {A, Atype, lda, strideA, transa != CUBLAS_OP_N},
                 {B, Btype, ldb, strideB, transb != CUBLAS_OP_N},
                 C,
                 Ctype,
                 ldc,
                 strideC,
                 *(const float *)alpha,
                 *(const float *)beta,
                 rounding_of(handle, computeType, Atype)};
    check_memory(p);
    gpp_emulation::spoil("cublasGemm, workspace", handle->workspace,
                         handle->bytes < SPOILED ? handle->bytes : SPOILED);
    for (int64_t batch = 0; batch < batchCount; batch++)
        for (int column = 0; column < n; column++)
            for (int row = 0; row < m; row++)
                element(p, batch, row, column);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo)
{
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B,
                                      Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1, computeType, algo);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const float *alpha, const float *A, int lda,
                                         long long int strideA, const float *B, int ldb,
                                         long long int strideB, const float *beta, float *C,
                                         int ldc, long long int strideC, int batchCount)
{
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, CUDA_R_32F, lda,
                                      strideA, B, CUDA_R_32F, ldb, strideB, beta, C, CUDA_R_32F,
                                      ldc, strideC, batchCount, CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa,
                           cublasOperation_t transb, int m, int n, int k, const float *alpha,
                           const float *A, int lda, const float *B, int ldb, const float *beta,
                           float *C, int ldc)
{
    return cublasSgemmStridedBatched(handle, transa, transb, m, n, k, alpha, A, lda, 0, B, ldb, 0,
                                     beta, C, ldc, 0, 1);
}

/* --- handles ---------------------------------------------------------------------------------- */

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    int count;
    if (cudaGetDeviceCount(&count))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

/* As documented: takes the workspace of the user away. */
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    handle->own.stream = stream;
    handle->workspace = nullptr;
    handle->bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream)
{
    *stream = handle->own.stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if ((uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    gpp_emulation::need_device("cublasSetWorkspace", workspace, bytes);
    handle->workspace = workspace;
    handle->bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode)
{
    handle->pointers = mode;
    return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t *mode)
{
    *mode = handle->pointers;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode)
{
    handle->atomics = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t *mode)
{
    *mode = handle->atomics;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_UNKNOWN";
    }
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return "unknown";
    }
}
