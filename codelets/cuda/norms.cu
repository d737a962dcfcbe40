/*
 * codelets/cuda/norms.cu: see norms.h.
 *
 * A block has wide · deep threads: `wide` channels side by side, so that it reads whole lines of
 * memory where channels are last, and `deep` numbers of each at a time (all its threads for one
 * channel where the numbers of a channel lie side by side). It works on tiles: `wide` channels of
 * a chunk of lines of a set. A thread has one channel within a tile, whose coefficients stay in
 * registers. All of it is bound by memory: moments read x once, the map reads and writes once more,
 * the backward reads x and dy twice and writes once.
 */
#include "codelets/cuda/norms.h"

#include <float.h>
#include <math.h>

enum {
    WIDE = 32,
    NUMBERS = 16,     /* the fewest numbers that a thread has in a tile */
    MOST_CHUNKS = 512 /* the most chunks; tiles get longer rather than exceed it */
};

/* --- tiles ------------------------------------------------------------------------------------ */

static int64_t divided_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

gpp__channels gpp__channels_of(const gpp__desc *in, int64_t rows, bool together, int64_t groups)
{
    gpp__channels v = {};
    v.channels = in->dim[0];
    v.groups = groups;
    v.length = gpp__desc_count(in) / v.channels;
    v.sets = together ? 1 : rows;
    v.lines = together ? rows * v.length : v.length;
    v.last = in->rank != 2;
    v.wide = v.last ? gpp__power_of_two(v.channels, WIDE) : 1;
    v.deep = gpp__power_of_two(v.lines, GPP__THREADS / v.wide);
    v.chunk = (int64_t)v.deep * NUMBERS;
    if (v.chunk * MOST_CHUNKS < v.lines)
        v.chunk = divided_up(v.lines, MOST_CHUNKS);
    v.chunks = divided_up(v.lines, v.chunk);
    return v;
}

static int64_t tiles_of(const gpp__channels *v)
{
    return v->sets * v->chunks * divided_up(v->channels, v->wide);
}

/* [sets][chunks][2][channels] sums. */
static size_t sums_bytes(const gpp__channels *v)
{
    return gpp__align((size_t)(v->sets * v->chunks * 2 * v->channels) * sizeof(double));
}

/* Means over a group of dy · weight, and of that times the normalised x. */
typedef struct means {
    double h, hx;
} means;

size_t gpp__channels_room(const gpp__channels *v)
{
    return sums_bytes(v) + gpp__align((size_t)(v->sets * v->groups) * sizeof(means));
}

/* What a thread does in a tile: lines begin + threadIdx.y, + deep, ... of channel c. */
typedef struct tile {
    int64_t set, chunk, c, begin, end; /* c may be beyond the channels */
} tile;

__device__ static inline tile tile_of(const gpp__channels *v, int64_t t)
{
    int64_t across = (v->channels + v->wide - 1) / v->wide;
    tile o;
    o.c = t % across * v->wide + threadIdx.x;
    o.chunk = t / across % v->chunks;
    o.set = t / across / v->chunks;
    o.begin = o.chunk * v->chunk;
    o.end = o.begin + v->chunk < v->lines ? o.begin + v->chunk : v->lines;
    if (o.c >= v->channels)
        o.end = o.begin;
    return o;
}

__device__ static inline int64_t place_of(const gpp__channels *v, int64_t set, int64_t c,
                                          int64_t line)
{
    int64_t base = set * v->lines * v->channels;
    if (v->last)
        return base + line * v->channels + c;
    return base + (line / v->length * v->channels + c) * v->length + line % v->length;
}

__device__ static inline int64_t group_of(const gpp__channels *v, int64_t set, int64_t c)
{
    return set * v->groups + c / (v->channels / v->groups);
}

/* The first number of a group. */
__device__ static inline float first_of(const gpp__channels *v, const float *x, int64_t group)
{
    int64_t each = v->channels / v->groups;
    return x[place_of(v, group / v->groups, group % v->groups * each, 0)];
}

/* Where a channel's sums of a chunk are; the second one lies `channels` further. */
__device__ static inline int64_t sums_at(const gpp__channels *v, int64_t set, int64_t chunk,
                                         int64_t c)
{
    return (set * v->chunks + chunk) * 2 * v->channels + c;
}

/* --- moments ---------------------------------------------------------------------------------- */

__global__ static void sum_moments(gpp__channels v, int64_t tiles, const float *x, double *sums)
{
    __shared__ double room[2][GPP__THREADS];
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        tile o = tile_of(&v, t);
        double s1 = 0, s2 = 0, shift = 0;
        if (o.begin < o.end)
            shift = first_of(&v, x, group_of(&v, o.set, o.c));
        for (int64_t line = o.begin + threadIdx.y; line < o.end; line += blockDim.y) {
            double d = x[place_of(&v, o.set, o.c, line)] - shift;
            s1 += d;
            s2 += d * d;
        }
        s1 = gpp__sum_down(s1, room[0]);
        s2 = gpp__sum_down(s2, room[1]);
        if (threadIdx.y == 0 && o.c < v.channels) {
            sums[sums_at(&v, o.set, o.chunk, o.c)] = s1;
            sums[sums_at(&v, o.set, o.chunk, o.c) + v.channels] = s2;
        }
    }
}

/* A group's mean and Σ (x - mean)², from sums around `shift`. */
__device__ static inline void leave_spread(const gpp__channels *v, int64_t group, double shift,
                                           double s1, double s2, double eps, gpp__spread *spread,
                                           double *record)
{
    double n = (double)(v->channels / v->groups * v->lines), m2 = s2 - s1 * s1 / n;
    m2 = m2 < 0 ? 0 : m2; /* a NaN stays one */
    spread[group].mean = shift + s1 / n;
    spread[group].rstd = 1 / sqrt(m2 / n + eps);
    if (!record)
        return;
    if (group == 0)
        record[0] = n;
    record[1 + group] = spread[group].mean;
    record[1 + v->channels + group] = m2;
}

/* Threads of the same y share a group: they add its channels' and chunks' sums. */
__global__ static void spread_groups(gpp__channels v, const float *x, const double *sums,
                                     double eps, gpp__spread *spread, double *record)
{
    __shared__ double room[2][GPP__THREADS];
    int64_t each = v.channels / v.groups, groups = v.sets * v.groups;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.y; at < groups;
         at += (int64_t)gridDim.x * blockDim.y) {
        int64_t group = at + threadIdx.y, set = group / v.groups, c = group % v.groups * each;
        double s1 = 0, s2 = 0;
        for (int64_t k = threadIdx.x; k < each * v.chunks && group < groups; k += blockDim.x) {
            const double *one = sums + sums_at(&v, set, k / each, c + k % each);
            s1 += one[0];
            s2 += one[v.channels];
        }
        s1 = gpp__sum_across(s1, room[0]);
        s2 = gpp__sum_across(s2, room[1]);
        if (threadIdx.x == 0 && group < groups)
            leave_spread(&v, group, first_of(&v, x, group), s1, s2, eps, spread, record);
    }
}

/* Blocks that give each group as many threads as it has sums to add, at most a warp. */
static dim3 threads_for_groups(const gpp__channels *v)
{
    int across = gpp__power_of_two(v->channels / v->groups * v->chunks, WIDE);
    return dim3((unsigned)across, (unsigned)(GPP__THREADS / across));
}

static unsigned blocks_for_tiles(const gpp__cuda *cuda, const gpp__channels *v)
{
    return gpp__blocks_of(cuda, tiles_of(v) * GPP__THREADS);
}

static dim3 threads_for_tiles(const gpp__channels *v)
{
    return dim3((unsigned)v->wide, (unsigned)v->deep);
}

void gpp__channels_moments(const gpp__cuda *cuda, const gpp__channels *v, const float *x,
                           double eps, gpp__spread *spread, double *record, void *room)
{
    double *sums = (double *)room;
    dim3 threads = threads_for_groups(v);
    GPP__LAUNCH(sum_moments, blocks_for_tiles(cuda, v), threads_for_tiles(v), cuda, *v, tiles_of(v),
                x, sums);
    GPP__LAUNCH(spread_groups, gpp__blocks_of(cuda, v->sets * v->groups * threads.x), threads, cuda,
                *v, x, sums, eps, spread, record);
}

/* --- the map ---------------------------------------------------------------------------------- */

__global__ static void map_tiles(gpp__channels v, int64_t tiles, const float *x,
                                 const gpp__spread *spread, const float *weight, const float *bias,
                                 float *y)
{
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        tile o = tile_of(&v, t);
        if (o.begin >= o.end)
            continue;
        gpp__spread s = spread[group_of(&v, o.set, o.c)];
        double w = weight ? weight[o.c] : 1, b = bias ? bias[o.c] : 0;
        float shift = (float)s.mean, scale = (float)(w * s.rstd);
        float offset = (float)(b + (shift - s.mean) * s.rstd * w);
        for (int64_t line = o.begin + threadIdx.y; line < o.end; line += blockDim.y) {
            int64_t k = place_of(&v, o.set, o.c, line);
            y[k] = (x[k] - shift) * scale + offset;
        }
    }
}

void gpp__channels_map(const gpp__cuda *cuda, const gpp__channels *v, const float *x,
                       const gpp__spread *spread, const float *weight, const float *bias, float *y)
{
    GPP__LAUNCH(map_tiles, blocks_for_tiles(cuda, v), threads_for_tiles(v), cuda, *v, tiles_of(v),
                x, spread, weight, bias, y);
}

/* --- backward --------------------------------------------------------------------------------- */

/* Σ dy, and Σ dy · (x - mean) for the float next to the mean. */
__global__ static void sum_products(gpp__channels v, int64_t tiles, const float *x, const float *dy,
                                    const gpp__spread *spread, double *sums)
{
    __shared__ double room[2][GPP__THREADS];
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        tile o = tile_of(&v, t);
        double s1 = 0, s2 = 0, shift = 0;
        if (o.begin < o.end)
            shift = (float)spread[group_of(&v, o.set, o.c)].mean;
        for (int64_t line = o.begin + threadIdx.y; line < o.end; line += blockDim.y) {
            int64_t k = place_of(&v, o.set, o.c, line);
            double g = dy[k];
            s1 += g;
            s2 += g * (x[k] - shift);
        }
        s1 = gpp__sum_down(s1, room[0]);
        s2 = gpp__sum_down(s2, room[1]);
        if (threadIdx.y == 0 && o.c < v.channels) {
            sums[sums_at(&v, o.set, o.chunk, o.c)] = s1;
            sums[sums_at(&v, o.set, o.chunk, o.c) + v.channels] = s2;
        }
    }
}

/* From sums for the float next to the mean: Σ dy · (x - mean) / std. */
__device__ static inline double normalised(gpp__spread s, double s1, double s2)
{
    return (s2 - (s.mean - (float)s.mean) * s1) * s.rstd;
}

__global__ static void mean_groups(gpp__channels v, const double *sums, const gpp__spread *spread,
                                   const float *weight, double n, means *to)
{
    __shared__ double room[2][GPP__THREADS];
    int64_t each = v.channels / v.groups, groups = v.sets * v.groups;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.y; at < groups;
         at += (int64_t)gridDim.x * blockDim.y) {
        int64_t group = at + threadIdx.y, set = group / v.groups, first = group % v.groups * each;
        double h = 0, hx = 0;
        for (int64_t k = threadIdx.x; k < each * v.chunks && group < groups; k += blockDim.x) {
            int64_t c = first + k % each;
            const double *one = sums + sums_at(&v, set, k / each, c);
            double w = weight ? weight[c] : 1;
            h += w * one[0];
            hx += w * normalised(spread[group], one[0], one[v.channels]);
        }
        h = gpp__sum_across(h, room[0]);
        hx = gpp__sum_across(hx, room[1]);
        if (threadIdx.x == 0 && group < groups) {
            to[group].h = h / n;
            to[group].hx = hx / n;
        }
    }
}

/* Threads of the same x share a channel: they add its sums over sets and chunks. */
__global__ static void write_grads(gpp__channels v, const double *sums, const gpp__spread *spread,
                                   bool accumulate, float *weight, float *bias)
{
    __shared__ double room[2][GPP__THREADS];
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x; at < v.channels;
         at += (int64_t)gridDim.x * blockDim.x) {
        int64_t c = at + threadIdx.x;
        double w = 0, b = 0;
        for (int64_t k = threadIdx.y; k < v.sets * v.chunks && c < v.channels; k += blockDim.y) {
            const double *one = sums + k * 2 * v.channels + c;
            b += one[0];
            w += normalised(spread[group_of(&v, k / v.chunks, c)], one[0], one[v.channels]);
        }
        w = gpp__sum_down(w, room[0]);
        b = gpp__sum_down(b, room[1]);
        if (threadIdx.y == 0 && c < v.channels) {
            weight[c] = (accumulate ? weight[c] : 0) + (float)w;
            bias[c] = (accumulate ? bias[c] : 0) + (float)b;
        }
    }
}

/* dx = rstd · (h - mean(h) - x̂ · mean(h x̂)), h = dy · weight, x̂ = (x - mean) · rstd. */
__global__ static void mix_tiles(gpp__channels v, int64_t tiles, const float *x, const float *dy,
                                 const gpp__spread *spread, const float *weight, const means *m,
                                 float *dx)
{
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        tile o = tile_of(&v, t);
        if (o.begin >= o.end)
            continue;
        int64_t group = group_of(&v, o.set, o.c);
        gpp__spread s = spread[group];
        double w = weight ? weight[o.c] : 1, hx = m[group].hx;
        float shift = (float)s.mean, p = (float)(w * s.rstd), q = (float)(-s.rstd * s.rstd * hx);
        float r = (float)(-s.rstd * m[group].h - s.rstd * s.rstd * hx * (shift - s.mean));
        for (int64_t line = o.begin + threadIdx.y; line < o.end; line += blockDim.y) {
            int64_t k = place_of(&v, o.set, o.c, line);
            dx[k] = dy[k] * p + (x[k] - shift) * q + r;
        }
    }
}

void gpp__channels_backward(const gpp__cuda *cuda, const gpp__channels *v, const float *x,
                            const float *dy, const gpp__spread *spread, const float *weight,
                            bool constant, gpp__channels_grads to, void *room)
{
    double *sums = (double *)room;
    means *m = (means *)((char *)room + sums_bytes(v));
    double n = constant ? INFINITY : (double)(v->channels / v->groups * v->lines);
    dim3 threads = threads_for_groups(v);
    if (!to.dx && !to.weight)
        return;
    GPP__LAUNCH(sum_products, blocks_for_tiles(cuda, v), threads_for_tiles(v), cuda, *v,
                tiles_of(v), x, dy, spread, sums);
    if (to.weight)
        GPP__LAUNCH(write_grads, gpp__blocks_of(cuda, v->channels * (GPP__THREADS / WIDE)),
                    dim3(WIDE, GPP__THREADS / WIDE), cuda, *v, sums, spread, to.accumulate,
                    to.weight, to.bias);
    if (!to.dx)
        return;
    GPP__LAUNCH(mean_groups, gpp__blocks_of(cuda, v->sets * v->groups * threads.x), threads, cuda,
                *v, sums, spread, weight, n, m);
    GPP__LAUNCH(mix_tiles, blocks_for_tiles(cuda, v), threads_for_tiles(v), cuda, *v, tiles_of(v),
                x, dy, spread, weight, m, to.dx);
}

/* --- norm of gradients ------------------------------------------------------------------------ */

static const int64_t PART = 4096, MOST_PARTS = 1024;

/* How many blocks' sums there are. The count alone fixes that and what each block adds. */
static int64_t parts_of(int64_t count)
{
    int64_t parts = divided_up(count, PART);
    return parts < 1 ? 1 : parts < MOST_PARTS ? parts : MOST_PARTS;
}

size_t gpp__cuda_squares_room(int64_t count)
{
    return gpp__align((size_t)parts_of(count) * sizeof(double));
}

__global__ static void square(const float *x, int64_t count, double *part)
{
    __shared__ double room[GPP__THREADS];
    double sum = 0;
    for (GPP__EACH(k, count))
        sum += (double)x[k] * x[k];
    sum = gpp__sum_across(sum, room);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

__global__ static void add_parts(const double *part, int64_t parts, double *sum)
{
    __shared__ double room[GPP__THREADS];
    double s = 0;
    for (GPP__EACH(k, parts))
        s += part[k];
    s = gpp__sum_across(s, room);
    if (threadIdx.x == 0)
        *sum = s;
}

gpp_status gpp__cuda_squares(const gpp__cuda *cuda, const float *x, int64_t count, double *sum,
                             void *room, gpp_error *err)
{
    int64_t parts = parts_of(count);
    double *part = parts == 1 ? sum : (double *)room;
    GPP__LAUNCH(square, (unsigned)parts, GPP__THREADS, cuda, x, count, part);
    if (parts > 1)
        GPP__LAUNCH(add_parts, 1, GPP__THREADS, cuda, part, parts, sum);
    return gpp__cuda_launched(NULL, err);
}

/* Runs in one block. All threads load, but only the first one adds, in the order of a CPU core. */
__global__ static void choose_factor(const double *sums, int64_t count, double clip_norm,
                                     bool skip_nonfinite, float *factor)
{
    __shared__ double some[GPP__THREADS];
    double total = 0;
    for (int64_t at = 0; at < count; at += GPP__THREADS) {
        int64_t k = at + threadIdx.x;
        some[threadIdx.x] = k < count ? sums[k] : 0;
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < GPP__THREADS && at + i < count; i++)
            total += some[i];
        __syncthreads();
    }
    if (threadIdx.x)
        return;
    double norm = sqrt(total), wanted = clip_norm / (norm + 1e-6);
    *factor = 1;
    if (skip_nonfinite && !(norm <= DBL_MAX))
        *factor = NAN;
    else if (clip_norm > 0 && norm > 0 && wanted < 1)
        *factor = (float)wanted;
}

gpp_status gpp__cuda_clip_factor(const gpp__cuda *cuda, const double *sums, int64_t count,
                                 double clip_norm, bool skip_nonfinite, float *factor,
                                 gpp_error *err)
{
    GPP__LAUNCH(choose_factor, 1, GPP__THREADS, cuda, sums, count, clip_norm, skip_nonfinite,
                factor);
    return gpp__cuda_launched(NULL, err);
}
