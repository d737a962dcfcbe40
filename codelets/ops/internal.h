/*
 * codelets/ops/internal.h: what several operators share.
 *
 * Nothing here knows an operator. Functions that take `units` split their work by shape alone, so
 * that results do not depend on threads. The end of the file is for .cu files.
 */
#ifndef GPP_CODELETS_OPS_INTERNAL_H
#define GPP_CODELETS_OPS_INTERNAL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/op.h"

#define GPP__UNIT_FLOATS ((int64_t)1 << 16) /* elements a thread takes at a time */

static inline int64_t gpp__min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t gpp__max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/** How many units to cut work into that moves `floats` numbers. */
static inline int gpp__units_of(int64_t floats)
{
    return (int)((floats + GPP__UNIT_FLOATS - 1) / GPP__UNIT_FLOATS);
}

/** gpp_op.is_view and passes_in_eval of operators for which it always holds; and gpp_op.flops of
 * operators that compute nothing. */
bool gpp__always(const gpp__layer *layer);
double gpp__no_flops(const gpp__layer *layer);

/** Fails unless the layer has `lo` to `hi` tuple inputs (popped tensors not counted). */
gpp_status gpp__expect_count(const gpp__layer *layer, int lo, int hi, gpp_error *err);

/** Fails unless all inputs, including popped ones, are float32, have rows of the same mini-batch
 * and are at least of rank `lo`. */
gpp_status gpp__expect_alike(const gpp__layer *layer, int lo, gpp_error *err);

/** gpp_op.infer of operators that take two or more float32 tensors of one shape and give one of
 * that shape. */
gpp_status gpp__infer_equal(gpp__layer *layer, gpp_error *err);

/**
 * Turn a dimension as PyTorch counts it into an index into desc->dim. In PyTorch 0 is the batch,
 * and negative numbers count from the end.
 * @return GPP_OK; GPP_ESHAPE with `err` filled when the sample has no such dimension
 */
gpp_status gpp__axis(const gpp__layer *layer, const gpp__desc *desc, int64_t dim, int *axis,
                     gpp_error *err);

/** Keys and first members of the attributes of operators with one skip: its name and namespace. */
typedef struct gpp__skip_attr {
    char name[GPP__NAME], ns[GPP__NAME];
} gpp__skip_attr;
#define GPP__SKIP_KEYS                                                                             \
    {.name = "name",                                                                               \
     .type = GPP__KEY_NAME,                                                                        \
     .offset = offsetof(gpp__skip_attr, name),                                                     \
     .count = 1,                                                                                   \
     .required = true},                                                                            \
    {                                                                                              \
        .name = "ns", .type = GPP__KEY_NAME, .offset = offsetof(gpp__skip_attr, ns), .count = 1    \
    }
/** gpp_op.skips of operators that stash this skip, and of those that pop it. */
void gpp__skips_stash(gpp__layer *layer);
void gpp__skips_pop(gpp__layer *layer);

/** The sample in memory order around dimension `axis`: [outer][dim[axis]][inner]. */
typedef struct gpp__around {
    int64_t outer, length, inner;
} gpp__around;
gpp__around gpp__split_around(const gpp__desc *desc, int axis);

/** Copies; with `from` NULL it writes zeros. */
void gpp__copy(gpp__pool *pool, const float *from, float *to, int64_t count);

/** out = in[0] + in[1] + ..., from first to last; inputs >= 2; out may be in[0]. */
void gpp__sum(gpp__pool *pool, const float *const in[], int inputs, float *out, int64_t count);

/**
 * A small tensor within a larger one: in each of `rows` rows small[0]·small[1]·small[2] floats lie
 * in the larger tensor's row, from position at[] on. The innermost dimension is the last.
 */
typedef struct gpp__box {
    int64_t rows, big[3], small[3], at[3];
} gpp__box;
typedef enum gpp__box_way {
    GPP__BOX_PUT, /* part of the larger tensor = small tensor, or zeros when that is NULL */
    GPP__BOX_ADD, /* part of the larger tensor += small tensor */
    GPP__BOX_GET  /* small tensor = part of the larger tensor */
} gpp__box_way;
void gpp__box_run(gpp__pool *pool, const gpp__box *box, gpp__box_way way, float *big, float *small);

/** The box of two tensors that differ only in dimension `axis`, where the smaller begins at `at`.
 */
gpp__box gpp__box_along(int64_t rows, const gpp__desc *big, const gpp__desc *small, int axis,
                        int64_t at);

/* --- on CUDA (internal.cu): launched on the device's stream ----------------------------------- */

struct gpp__cuda;

/** As gpp__sum. */
void gpp__cuda_sum(const struct gpp__cuda *cuda, const void *const in[], int inputs, void *out,
                   int64_t count);
/** As gpp__box_run, GPP__BOX_PUT and GPP__BOX_GET. */
void gpp__cuda_box_put(const struct gpp__cuda *cuda, const gpp__box *box, void *big,
                       const void *small);
void gpp__cuda_box_get(const struct gpp__cuda *cuda, const gpp__box *box, const void *big,
                       void *small);

/** How to make a tensor from one or two tensors that lie in it. Where neither lies it is `value`.
 * Where both lie it is their sum or, without `add`, the second. */
typedef struct gpp__overlay {
    gpp__box box[2]; /* equal rows and big[] */
    const void *part[2];
    int parts;
    bool add;
    float value;
} gpp__overlay;
void gpp__cuda_overlay(const struct gpp__cuda *cuda, const gpp__overlay *overlay, void *big);

#ifdef __cplusplus
} /* extern "C" */

#include "codelets/cuda/cuda.h"

/* Neighbouring floats that a thread loads and stores at once. 4 take a quarter of the instructions,
 * but need addresses and lengths that are multiples of 16 bytes; otherwise it is 1. */
template <int W> struct alignas(4 * W) gpp__pack {
    float v[W];
};

template <int W> __device__ static inline gpp__pack<W> gpp__pack_load(const float *x, int64_t k)
{
    return ((const gpp__pack<W> *)x)[k];
}

template <int W>
__device__ static inline void gpp__pack_store(float *x, int64_t k, gpp__pack<W> value)
{
    ((gpp__pack<W> *)x)[k] = value;
}

/** True when memory at these addresses (NULL is fine) can be taken in fours. @param counts  lengths
 * that must be multiples of 4, combined by | */
static inline bool gpp__in_fours(int64_t counts, const void *a, const void *b, const void *c)
{
    return counts % 4 == 0 && (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) & 15) == 0;
}

#endif
#endif
