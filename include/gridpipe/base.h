/* include/gridpipe/base.h: what every other public header needs: visibility, C++ guards, version,
 * data types. */
#ifndef GRIDPIPE_BASE_H
#define GRIDPIPE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define GPP_BEGIN_DECLS extern "C" {
#define GPP_END_DECLS   }
#else
#define GPP_BEGIN_DECLS
#define GPP_END_DECLS
#endif

#if defined(__GNUC__)
#define GPP_API __attribute__((visibility("default")))
#else
#define GPP_API
#endif

#define GPP_VERSION_MAJOR  0
#define GPP_VERSION_MINOR  1
#define GPP_VERSION_PATCH  0
#define GPP_VERSION_STRING "0.1.0"

/** Most dimensions of a tensor, the batch dimension included. */
#define GPP_MAX_RANK 8
/** Most tensors into or out of a model, a layer or an operator, skips included. */
#define GPP_MAX_TENSORS 16
/** Most parameters, most buffers and most saved tensors of one operator. */
#define GPP_MAX_PARAMS 16

GPP_BEGIN_DECLS

/** "0.1.0": the version of the library that is linked, which may differ from the header's. Static
 * storage. */
GPP_API const char *gpp_version(void);

/** Type of a tensor's elements. Values are stable: they may be stored. */
typedef enum gpp_dtype {
    GPP_F32 = 0, /* IEEE binary32 */
    GPP_I64 = 1, /* signed 64-bit integer: class indices, token indices */
} gpp_dtype;

/** Bytes of one element of `dtype`; 0 when it is none of the enum. */
GPP_API size_t gpp_dtype_size(gpp_dtype dtype);

/** Part of a mini-batch: pieces `first` up to, without, `end` of `chunks`, each of
 * ceil(rows / chunks) rows until the rows are used up. */
typedef struct gpp_part {
    int chunks, first, end;
} gpp_part;

/**
 * A tensor without values: its type and the shape of one row (a sample).
 *
 * How many rows it has depends on the micro-batch: as many as the piece of mini-batch `batch`.
 * Most models have one, 0; inputs may have others of their own size (gpp_model_set_inputs). With
 * batch == GPP_ROWS_FIXED the tensor has `rows` rows in every micro-batch: it does not grow with
 * the mini-batch, like an input that is not chunked, a scalar, or a sum over the rows.
 */
typedef struct gpp_shape {
    gpp_dtype dtype;
    int rank;                      /* of one row; 0: one element a row */
    int64_t dim[GPP_MAX_RANK - 1]; /* [rank]; images are C, H, W */
    int batch;                     /* 0 ... GPP_MAX_BATCHES - 1, or GPP_ROWS_FIXED */
    int64_t rows;                  /* with GPP_ROWS_FIXED: >= 1 */
} gpp_shape;

/** Most mini-batches of different size that go into a model side by side. */
#define GPP_MAX_BATCHES 4
#define GPP_ROWS_FIXED  (-1)

/**
 * The caller's view of a dense row-major tensor in main memory. The library neither keeps nor frees
 * it; it reads (or writes) `data` only between the call that takes it and that call's return
 * (gpp_pipe_submit: until the step was waited for).
 */
typedef struct gpp_tensor {
    void *data; /* dim[0]·…·dim[rank-1] elements; may be NULL when there are none */
    gpp_dtype dtype;
    int rank;                  /* 1 … GPP_MAX_RANK; 0 for a scalar */
    int64_t dim[GPP_MAX_RANK]; /* dim[0] counts the rows; images are N, C, H, W */
} gpp_tensor;

GPP_END_DECLS
#endif
