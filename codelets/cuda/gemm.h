/*
 * codelets/cuda/gemm.h: matrix products of row-major matrices by cuBLAS, and what goes with them:
 * conversion of operands, checks of sizes, a bias.
 *
 * Precision, cuda->math:
 *   F32   CUBLAS_COMPUTE_32F: cuBLAS promises intermediates of at least float32. It uses TF32 only
 *         when the compute type or the handle's math mode asks for it, and here neither does.
 *   TF32  CUBLAS_COMPUTE_32F_FAST_TF32
 *   BF16  operands in bfloat16, sums and result in float32 (CUBLAS_COMPUTE_32F). The alternative,
 *         CUBLAS_COMPUTE_32F_FAST_16BF with float32 operands, only *allows* cuBLAS to round. Then
 *         the precision would depend on the shape, and twice the bytes would be read. Weights are
 *         converted once a step (pack), other operands by the call, into its scratch.
 *
 * A product's bits depend only on sizes, steps and alignment. Every tensor begins on a cache line.
 */
#ifndef GPP_CODELETS_CUDA_GEMM_H
#define GPP_CODELETS_CUDA_GEMM_H

#include "codelets/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A row-major matrix of operands: float32 or, with GPP__MATH_BF16, bfloat16. */
typedef struct gpp__cuda_matrix {
    const void *at;
    int64_t step; /* elements from one row to the next */
    bool turned;  /* memory holds the transpose of this matrix */
    int64_t next; /* elements from one matrix of a batch to the next */
} gpp__cuda_matrix;
/** A single matrix, not a batch. */
static inline gpp__cuda_matrix gpp__cuda_matrix_of(const void *at, int64_t step, bool turned)
{
    gpp__cuda_matrix matrix = {at, step, turned, 0};
    return matrix;
}

/** c[m][n] = (add ? c : 0) + a · b, once or for a batch whose c's have no element in common. */
typedef struct gpp__cuda_product {
    int64_t m, n, k;
    gpp__cuda_matrix a, b;
    float *c;
    int64_t c_step, c_next;
    bool add;
    int64_t batch; /* 0 is 1 */
} gpp__cuda_product;

/** All sizes and steps are at most INT32_MAX (gpp__cuda_expect_sizes). */
gpp_status gpp__cuda_multiply(const gpp__cuda *cuda, const gpp__layer *layer,
                              const gpp__cuda_product *product, gpp_error *err);
/** For prepare: GPP_EUNSUPPORTED unless a size is at most INT32_MAX, which is what the libraries
 * count with. @param what  for the message: "rows of a product" */
gpp_status gpp__cuda_expect_size(const gpp__layer *layer, const char *what, int64_t size,
                                 gpp_error *err);

/** Bytes of one operand. */
static inline size_t gpp__cuda_operand_size(const gpp__cuda *cuda)
{
    return cuda->math == GPP__MATH_BF16 ? 2 : sizeof(float);
}
/** Bytes, aligned, that gpp__cuda_operands needs: 0 unless it converts. */
size_t gpp__cuda_operands_room(const gpp__cuda *cuda, int64_t count);
/** `count` numbers as operands: x itself or, converted, `room`. */
gpp_status gpp__cuda_operands(const gpp__cuda *cuda, const float *x, int64_t count, void *room,
                              const void **operands, gpp_error *err);

/** y[r][c] += bias[c]; nothing when bias is NULL. */
gpp_status gpp__cuda_add_bias(const gpp__cuda *cuda, const gpp__layer *layer, const float *bias,
                              int64_t rows, int64_t columns, float *y, gpp_error *err);

/** Divides a buffer into parts, each on a cache line. With `at` NULL it only measures. A part of no
 * bytes is NULL. */
typedef struct gpp__cuda_scratch {
    char *at;
    size_t used;
} gpp__cuda_scratch;
static inline void *gpp__cuda_take(gpp__cuda_scratch *room, size_t bytes)
{
    char *place = room->at && bytes ? room->at + room->used : NULL;
    room->used += gpp__align(bytes);
    return place;
}

#ifdef __cplusplus
} /* extern "C" */

/** An operand's number from a float32: itself, or a bfloat16's bits, rounded to nearest even. */
__device__ static inline void gpp__cuda_store(float *to, float x)
{
    *to = x;
}
__device__ static inline void gpp__cuda_store(uint16_t *to, float x)
{
    union {
        float number;
        uint32_t bits;
    } as;
    as.number = x;
    bool nan = (as.bits & 0x7fffffffu) > 0x7f800000u;
    uint32_t rounded = (as.bits + 0x7fffu + (as.bits >> 16 & 1)) >> 16;
    *to = (uint16_t)(nan ? as.bits >> 16 | 0x40u : rounded);
}

#endif
#endif
