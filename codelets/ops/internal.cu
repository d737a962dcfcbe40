/*
 * codelets/ops/internal.cu: sums of tensors, and boxes within tensors, on CUDA.
 *
 * All of it is bound by memory. Threads stride over the elements of the tensor that is written, by
 * fours where they can. Finding an element's place takes divisions. They are done in 32 bits where
 * the numbers fit, which is fast enough to hide behind the loads.
 */
#include "codelets/ops/internal.h"

/* --- sums ------------------------------------------------------------------------------------- */

typedef struct sum {
    const float *in[GPP__MAX_TENSORS];
    int inputs;
    float *out;
    int64_t count; /* of packs */
} sum;

/* out may be an input's memory: an element is read before it is written. */
template <int W> static __global__ void add_all(sum s)
{
    for (GPP__EACH(k, s.count)) {
        gpp__pack<W> all = gpp__pack_load<W>(s.in[0], k);
        for (int t = 1; t < s.inputs; t++) {
            gpp__pack<W> x = gpp__pack_load<W>(s.in[t], k);
            for (int w = 0; w < W; w++)
                all.v[w] += x.v[w];
        }
        gpp__pack_store<W>(s.out, k, all);
    }
}

void gpp__cuda_sum(const gpp__cuda *cuda, const void *const in[], int inputs, void *out,
                   int64_t count)
{
    sum s = {{NULL}, inputs, (float *)out, count};
    bool fours = true;
    for (int t = 0; t < inputs; t++) {
        s.in[t] = (const float *)in[t];
        fours = fours && gpp__in_fours(count, in[t], out, NULL);
    }
    s.count = fours ? count / 4 : count;
    GPP__LAUNCH((fours ? add_all<4> : add_all<1>), gpp__blocks_of(cuda, s.count), GPP__THREADS,
                cuda, s);
}

/* --- boxes ------------------------------------------------------------------------------------ */

static bool box_in_fours(const gpp__box *box, const void *big, const void *small)
{
    return gpp__in_fours(box->big[2] | box->small[2] | box->at[2], big, small, NULL);
}

/* The innermost dimension counted in fours. */
static gpp__box fours_of(gpp__box box)
{
    box.big[2] /= 4;
    box.small[2] /= 4;
    box.at[2] /= 4;
    return box;
}

/* Merges dimensions that the smaller tensor fills completely: neighbouring lines become one line.
 */
static gpp__box merged(gpp__box box)
{
    for (int times = 0; times < 2 && box.small[2] == box.big[2]; times++) {
        gpp__box to = {box.rows,
                       {1, box.big[0], box.big[1] * box.big[2]},
                       {1, box.small[0], box.small[1] * box.small[2]},
                       {0, box.at[0], box.at[1] * box.big[2]}};
        box = to;
    }
    return box;
}

static int64_t count_of(const gpp__box *box)
{
    return box->rows * box->small[0] * box->small[1] * box->small[2];
}

/* Where element `k` of the smaller tensor is in the larger one. */
__device__ static inline int64_t place_of(const gpp__box *box, int64_t k)
{
    int64_t line = k / box->small[2], plane = line / box->small[1], row = plane / box->small[0];
    int64_t at = row * box->big[0] + box->at[0] + (plane - row * box->small[0]);
    at = at * box->big[1] + box->at[1] + (line - plane * box->small[1]);
    return at * box->big[2] + box->at[2] + (k - line * box->small[2]);
}

template <int W>
static __global__ void put(gpp__box box, int64_t count, float *big, const float *small)
{
    for (GPP__EACH(k, count)) {
        gpp__pack<W> x = {{0}};
        if (small)
            x = gpp__pack_load<W>(small, k);
        gpp__pack_store<W>(big, place_of(&box, k), x);
    }
}

template <int W>
static __global__ void get(gpp__box box, int64_t count, const float *big, float *small)
{
    for (GPP__EACH(k, count))
        gpp__pack_store<W>(small, k, gpp__pack_load<W>(big, place_of(&box, k)));
}

void gpp__cuda_box_put(const gpp__cuda *cuda, const gpp__box *box, void *big, const void *small)
{
    gpp__box b = merged(*box);
    bool fours = box_in_fours(&b, big, small);
    if (fours)
        b = fours_of(b);
    GPP__LAUNCH((fours ? put<4> : put<1>), gpp__blocks_of(cuda, count_of(&b)), GPP__THREADS, cuda,
                b, count_of(&b), (float *)big, (const float *)small);
}

void gpp__cuda_box_get(const gpp__cuda *cuda, const gpp__box *box, const void *big, void *small)
{
    gpp__box b = merged(*box);
    bool fours = box_in_fours(&b, big, small);
    if (fours)
        b = fours_of(b);
    GPP__LAUNCH((fours ? get<4> : get<1>), gpp__blocks_of(cuda, count_of(&b)), GPP__THREADS, cuda,
                b, count_of(&b), (const float *)big, (float *)small);
}

/* --- overlays --------------------------------------------------------------------------------- */

/* The element of the smaller tensor that lies at place[] in the larger one; -1: none does. */
__device__ static inline int64_t inside(const gpp__box *box, int64_t row, const int64_t place[3])
{
    int64_t at = row;
    for (int k = 0; k < 3; k++) {
        int64_t in = place[k] - box->at[k];
        if (in < 0 || in >= box->small[k])
            return -1;
        at = at * box->small[k] + in;
    }
    return at;
}

template <int W>
__device__ static inline gpp__pack<W> overlaid(const gpp__overlay *o, int64_t row,
                                               const int64_t place[3])
{
    gpp__pack<W> y;
    for (int w = 0; w < W; w++)
        y.v[w] = o->value;
    for (int t = 0; t < o->parts; t++) {
        int64_t at = inside(&o->box[t], row, place);
        if (at < 0)
            continue;
        gpp__pack<W> x = gpp__pack_load<W>((const float *)o->part[t], at);
        for (int w = 0; w < W; w++)
            y.v[w] = t && o->add ? y.v[w] + x.v[w] : x.v[w];
    }
    return y;
}

template <int W> static __global__ void lay_over(gpp__overlay o, int64_t count, float *big)
{
    const int64_t *size = o.box[0].big;
    for (GPP__EACH(k, count)) {
        int64_t line = k / size[2], plane = line / size[1], row = plane / size[0];
        int64_t place[3] = {plane - row * size[0], line - plane * size[1], k - line * size[2]};
        gpp__pack_store<W>(big, k, overlaid<W>(&o, row, place));
    }
}

void gpp__cuda_overlay(const gpp__cuda *cuda, const gpp__overlay *overlay, void *big)
{
    gpp__overlay o = *overlay;
    bool fours = true;
    for (int t = 0; t < o.parts; t++)
        fours = fours && box_in_fours(&o.box[t], big, o.part[t]);
    for (int t = 0; fours && t < o.parts; t++)
        o.box[t] = fours_of(o.box[t]);
    const int64_t *size = o.box[0].big;
    int64_t count = o.box[0].rows * size[0] * size[1] * size[2];
    GPP__LAUNCH((fours ? lay_over<4> : lay_over<1>), gpp__blocks_of(cuda, count), GPP__THREADS,
                cuda, o, count, (float *)big);
}
