/*
 * codelets/cpu/gemm.h: single-precision matrix products of layers, on one thread, without a BLAS.
 *
 * Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3), 2008:
 * a register tile of C, a panel of B in the first-level cache, a block of A in the second. Callers
 * own the panels, so nothing is allocated and packing happens as rarely as the caller can arrange.
 *
 * Invariant: an element of C is the sum over k in ascending order, in blocks of GPP__GEMM_BLOCK,
 * whatever part of the matrix one call computes. Cutting C among threads changes no bit.
 */
#ifndef GPP_CODELETS_CPU_GEMM_H
#define GPP_CODELETS_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Longest sum in registers: a panel of B this deep takes half of a 32 KiB cache. */
#define GPP__GEMM_BLOCK 256

/** Columns of a panel on this machine: 16 or 32. A panel is [k][width], columns past the end 0. */
int gpp__gemm_width(void);
/** `columns` rounded up to whole panels. */
int64_t gpp__gemm_padded(int64_t columns);

/** Panels of bᵀ: b is [columns][k], rows ldb apart. @param panels [padded(columns)/width][k][width]
 */
void gpp__gemm_pack_t(int64_t columns, int64_t k, const float *b, int64_t ldb, float *panels);
/** Panels of b: b is [k][columns], rows ldb apart. */
void gpp__gemm_pack(int64_t columns, int64_t k, const float *b, int64_t ldb, float *panels);

/** c[m][columns] = or += a[m][k] · panels, k <= GPP__GEMM_BLOCK. Writes no column past the end. */
void gpp__gemm(int64_t m, int64_t columns, int64_t k, const float *a, int64_t lda,
               const float *panels, float *c, int64_t ldc, bool add);

/** c[m][width] = or += Σ a[row[i] + step[p]] · panel[p][width] over p < k: one panel, rows of `a`
 * wherever they lie. */
void gpp__gemm_gather(int64_t m, int64_t k, const float *a, const int32_t row[],
                      const int32_t step[], const float *panel, float *c, int64_t ldc, bool add);

/** dst[c][r] = src[r][c] + add[r] (NULL: nothing to add); src is [rows][columns]. */
void gpp__transpose(int64_t rows, int64_t columns, const float *src, int64_t lds, float *dst,
                    int64_t ldd, const float *add);

/** "avx512", "avx2" or "generic": what the machine was found to have. */
const char *gpp__gemm_isa(void);

#endif
