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

/**
 * The caller's view of a dense row-major tensor in main memory. The library neither keeps nor frees
 * it; it reads (or writes) `data` only between the call that takes it and that call's return.
 */
typedef struct gpp_tensor {
    void *data; /* dim[0]·…·dim[rank-1] elements; may be NULL when there are none */
    gpp_dtype dtype;
    int rank;                  /* 1 … GPP_MAX_RANK */
    int64_t dim[GPP_MAX_RANK]; /* dim[0] is the batch; images are N, C, H, W */
} gpp_tensor;

GPP_END_DECLS
#endif
