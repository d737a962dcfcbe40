/*
 * codelets/cuda/norms.h: the sums behind normalisations and the norm of gradients. Shapes alone fix
 * their order.
 *
 * A normalisation is over *channels*: in each of `sets` sets every channel has `lines` numbers, and
 * the channels of a group are normalised together. Batch normalisation has one set, the whole
 * micro-batch; group and instance normalisation have one for each row. What is kept of a group is
 * its mean and 1/std, in double.
 *
 * Sums over a set go in two steps: blocks add up a chunk of lines each, then the chunks' sums are
 * added. Chunks follow from the shape, never from the device. As on CPU cores (cpu/moments.h) sums
 * are double and around a value from the data, and maps subtract the float next to the mean first.
 */
#ifndef GPP_CODELETS_CUDA_NORMS_H
#define GPP_CODELETS_CUDA_NORMS_H

#include "codelets/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- normalisations --------------------------------------------------------------------------- */

/** The statistics of a group. */
typedef struct gpp__spread {
    double mean, rstd;
} gpp__spread;

/** How a tensor divides, and how its sums are cut. Made by gpp__channels_of. */
typedef struct gpp__channels {
    int64_t sets, channels, groups;
    int64_t lines;         /* numbers of a channel in a set */
    int64_t length;        /* those of them that lie side by side where channels are not last */
    bool last;             /* channels are last in memory */
    int wide, deep;        /* of a block: channels, lines at a time; powers of two */
    int64_t chunk, chunks; /* lines of a chunk; chunks of a set */
} gpp__channels;

/** @param in  of one row: (C), (C, L) or an image  @param together  one set, else one for each row
 */
gpp__channels gpp__channels_of(const gpp__desc *in, int64_t rows, bool together, int64_t groups);
/** Bytes of what the functions below call `room`. */
size_t gpp__channels_room(const gpp__channels *v);

/**
 * Mean and 1/sqrt(variance + eps) of each group.
 * @param spread  [sets · groups] out
 * @param record  [1 + 2 · channels] out, NULL: not wanted; only of one set with one channel a
 * group: the number of lines, then each channel's mean, then each one's Σ (x - mean)²
 */
void gpp__channels_moments(const gpp__cuda *cuda, const gpp__channels *v, const float *x,
                           double eps, gpp__spread *spread, double *record, void *room);
/** y = (x - mean) · rstd · weight_c + bias_c. Without weights, or bias, NULL. */
void gpp__channels_map(const gpp__cuda *cuda, const gpp__channels *v, const float *x,
                       const gpp__spread *spread, const float *weight, const float *bias, float *y);

/** What a backward writes. NULL: not wanted. */
typedef struct gpp__channels_grads {
    float *dx, *weight, *bias;
    bool accumulate; /* weight and bias: += */
} gpp__channels_grads;
/** @param constant  mean and rstd do not depend on x */
void gpp__channels_backward(const gpp__cuda *cuda, const gpp__channels *v, const float *x,
                            const float *dy, const gpp__spread *spread, const float *weight,
                            bool constant, gpp__channels_grads to, void *room);

/* --- norm of gradients ------------------------------------------------------------------------ */

/** *sum = Σ x[k]² in double, in an order that the count alone fixes. All in device memory.
 * @param room  [gpp__cuda_squares_room] */
gpp_status gpp__cuda_squares(const gpp__cuda *cuda, const float *x, int64_t count, double *sum,
                             void *room, gpp_error *err);
size_t gpp__cuda_squares_room(int64_t count);

/**
 * Compute the factor for the gradients. The norm is the root of sums[0] + ... + sums[count-1],
 * added in this order.
 *
 * @param clip_norm  the largest norm allowed; 0: any
 * @param factor     out, device memory: min(1, clip_norm / (norm + 1e-6)), or 1; NaN, for no
 *                   update, when skip_nonfinite and the norm is not finite
 */
gpp_status gpp__cuda_clip_factor(const gpp__cuda *cuda, const double *sums, int64_t count,
                                 double clip_norm, bool skip_nonfinite, float *factor,
                                 gpp_error *err);

#ifdef __cplusplus
} /* extern "C" */

/* --- within a block --------------------------------------------------------------------------- */

/* The smallest power of two that is no less than count, at most `most`, itself one. */
static inline int gpp__power_of_two(int64_t count, int most)
{
    int power = 1;
    while (power < count && power < most)
        power *= 2;
    return power;
}

/* Σ v over the block's threads of the same y, or of the same x: the same result in all of them. All
 * threads call it; blockDim.x, or .y, is a power of two. room: [threads of the block], shared. */
__device__ static inline double gpp__sum_across(double v, double *room)
{
    int x = (int)threadIdx.x, at = (int)(threadIdx.y * blockDim.x) + x;
    __syncthreads(); /* other threads may still be reading the old contents */
    room[at] = v;
    __syncthreads();
    for (int half = (int)blockDim.x / 2; half; half /= 2) {
        if (x < half)
            room[at] += room[at + half];
        __syncthreads();
    }
    return room[at - x];
}

__device__ static inline double gpp__sum_down(double v, double *room)
{
    int wide = (int)blockDim.x, x = (int)threadIdx.x, y = (int)threadIdx.y;
    __syncthreads();
    room[y * wide + x] = v;
    __syncthreads();
    for (int half = (int)blockDim.y / 2; half; half /= 2) {
        if (y < half)
            room[y * wide + x] += room[(y + half) * wide + x];
        __syncthreads();
    }
    return room[x];
}
#endif
#endif
