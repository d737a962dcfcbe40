/*
 * codelets/cuda/gemm.cu: matrix products by cuBLAS. gemm.h explains the precision.
 *
 * cuBLAS matrices are column-major, so it sees a row-major matrix as its transpose. Therefore
 * c = a · b is computed as cᵀ = bᵀ · aᵀ, which copies nothing and only swaps the operands.
 *
 * The bias is one pass over y, bound by memory.
 */
#include "codelets/cuda/gemm.h"

static cublasComputeType_t compute_of(const gpp__cuda *cuda)
{
    return cuda->math == GPP__MATH_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static cudaDataType_t type_of(const gpp__cuda *cuda)
{
    return cuda->math == GPP__MATH_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasOperation_t turn_of(const gpp__cuda_matrix *matrix)
{
    return matrix->turned ? CUBLAS_OP_T : CUBLAS_OP_N;
}

gpp_status gpp__cuda_multiply(const gpp__cuda *cuda, const gpp__layer *layer,
                              const gpp__cuda_product *p, gpp_error *err)
{
    const float one = 1, beta = p->add ? 1.0f : 0.0f;
    const gpp__cuda_matrix *a = &p->a, *b = &p->b;
    cudaDataType_t type = type_of(cuda);
    cublasComputeType_t compute = compute_of(cuda);
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    if (p->batch <= 1)
        return GPP__CUBLAS(cublasGemmEx(cuda->blas, turn_of(b), turn_of(a), n, m, k, &one, b->at,
                                        type, (int)b->step, a->at, type, (int)a->step, &beta, p->c,
                                        CUDA_R_32F, (int)p->c_step, compute, CUBLAS_GEMM_DEFAULT),
                           layer, err);
    return GPP__CUBLAS(cublasGemmStridedBatchedEx(cuda->blas, turn_of(b), turn_of(a), n, m, k, &one,
                                                  b->at, type, (int)b->step, b->next, a->at, type,
                                                  (int)a->step, a->next, &beta, p->c, CUDA_R_32F,
                                                  (int)p->c_step, p->c_next, (int)p->batch, compute,
                                                  CUBLAS_GEMM_DEFAULT),
                       layer, err);
}

gpp_status gpp__cuda_expect_size(const gpp__layer *layer, const char *what, int64_t size,
                                 gpp_error *err)
{
    if (size <= INT32_MAX)
        return GPP_OK;
    return gpp__fail_layer(err, GPP_EUNSUPPORTED, layer->index,
                           "%s (layer %d, \"%s\"): %lld %s, CUDA's libraries count to %d",
                           layer->op->name, layer->index, layer->label, (long long)size, what,
                           (int)INT32_MAX);
}

size_t gpp__cuda_operands_room(const gpp__cuda *cuda, int64_t count)
{
    return cuda->math == GPP__MATH_BF16 ? gpp__align((size_t)count * 2) : 0;
}

gpp_status gpp__cuda_operands(const gpp__cuda *cuda, const float *x, int64_t count, void *room,
                              const void **operands, gpp_error *err)
{
    bool convert = cuda->math == GPP__MATH_BF16;
    *operands = convert ? room : x;
    return convert ? gpp__cuda_to_bf16(cuda, x, room, count, err) : GPP_OK;
}

/* Finds the column by a division of 32 bits wherever these are enough. A division of 64 bits takes
 * longer than the memory access. */
template <typename index>
static __global__ void add_bias(const float *bias, index columns, int64_t count, float *y)
{
    for (GPP__EACH(k, count))
        y[k] += bias[(index)k % columns];
}

gpp_status gpp__cuda_add_bias(const gpp__cuda *cuda, const gpp__layer *layer, const float *bias,
                              int64_t rows, int64_t columns, float *y, gpp_error *err)
{
    int64_t count = rows * columns;
    if (!bias)
        return GPP_OK;
    unsigned blocks = gpp__blocks_of(cuda, count);
    if (count <= INT32_MAX)
        GPP__LAUNCH(add_bias<uint32_t>, blocks, GPP__THREADS, cuda, bias, (uint32_t)columns, count,
                    y);
    else
        GPP__LAUNCH(add_bias<uint64_t>, blocks, GPP__THREADS, cuda, bias, (uint64_t)columns, count,
                    y);
    return gpp__cuda_launched(layer, err);
}
