/*
 * codelets/ops/self_attention.cu: self_attention on a device. Formulas: self_attention.c.
 *
 * Work goes by strips: the scores of some queries of several heads with all keys that they see.
 * Batched products of cuBLAS compute the scores; a kernel here turns them into probabilities and,
 * in the backward, into their gradients. A strip has at most QUERIES queries, and as few as FEWEST
 * where they would take more than SCORES bytes, so the scratch does not grow with the square of the
 * sequence. With causal=1 keys after a strip's last query are left out. As on CPU cores q, k, v, o
 * and each query's largest score and sum are saved, and the backward makes the strips again.
 *
 * A head of a row is found by two steps, over rows and over heads. The longer of the two is a batch
 * of cuBLAS (`inner`); the other is a loop (`outer`), of which several passes make a chunk. Strips,
 * chunks and the choice of inner and outer follow from the shape alone. The backward starts with
 * the last strip: that strip sees every key, so its products can assign dk and dv, to which the
 * other strips add.
 *
 * The products are limited by arithmetic (those with d columns by memory when d is small). The
 * kernels of the strips are limited by memory: they read each score two or three times, mostly from
 * the second cache.
 */
#include <math.h>

#include "codelets/cuda/gemm.h"
#include "codelets/op.h"
#include "codelets/ops/self_attention.h"

extern "C" {
extern const gpp__kernels gpp__cuda_self_attention;
}

/* A strip and its gradient fit the second cache of an A100. */
#define SCORES ((int64_t)16 << 20)
enum { QUERIES = 512, FEWEST = 16 };
enum { QKV_WEIGHT, QKV_BIAS, PROJ_WEIGHT, PROJ_BIAS };

/* Rows, or heads: how many, and the steps to the next one in q, k and v, in o, and in norm. */
typedef struct level {
    int64_t count, qkv, o, norm;
} level;

typedef struct plan {
    int64_t positions, length, width, depth; /* rows · T, T, D, columns of a head */
    bool causal;
    float scale;
    level outer, inner;
    int64_t strip, step, chunk; /* queries; scores from one query to the next; of outer */
} plan;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static plan plan_of(const gpp__kernel *kernel)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__self_attention_attr *attr = (const gpp__self_attention_attr *)layer->attr;
    int64_t T = layer->in[0].dim[0], D = layer->in[0].dim[1], depth = D / attr->heads;
    level rows = {kernel->rows, T * 3 * D, T * D, attr->heads * T * 2};
    level heads = {attr->heads, depth, depth, T * 2};
    bool many = rows.count > heads.count;
    plan p = {kernel->rows * T, T, D, depth, attr->causal};
    p.scale = (float)(1 / sqrt((double)depth));
    p.outer = many ? heads : rows;
    p.inner = many ? rows : heads;
    p.step = (T + 7) / 8 * 8;
    int64_t line = p.inner.count * p.step * (int64_t)sizeof(float);
    p.strip = min64(max64(SCORES / line / FEWEST * FEWEST, FEWEST), min64(QUERIES, T));
    p.chunk = max64(1, min64(p.outer.count, SCORES / (line * p.strip)));
    return p;
}

/* --- memory ----------------------------------------------------------------------------------- */

static size_t norm_bytes(const plan *p)
{
    return (size_t)(p->outer.count * p->inner.count * p->length * 2) * sizeof(float);
}

static size_t floats(int64_t count)
{
    return (size_t)count * sizeof(float);
}

static int64_t score_count(const plan *p)
{
    return p->chunk * p->inner.count * p->strip * p->step;
}

/* What a forward leaves. */
typedef struct saved_parts {
    float *qkv, *o, *norm;
} saved_parts;

static saved_parts keep(const plan *p, gpp__cuda_scratch *room)
{
    saved_parts k;
    k.qkv = (float *)gpp__cuda_take(room, floats(3 * p->positions * p->width));
    k.o = (float *)gpp__cuda_take(room, floats(p->positions * p->width));
    k.norm = (float *)gpp__cuda_take(room, norm_bytes(p));
    return k;
}

/* Scratch. Those of operands are there with GPP__MATH_BF16 only, else NULL. */
typedef struct places {
    float *score, *slope;     /* strips: S, then P; dP, then dS */
    float *grad_qkv, *grad_o; /* of qkv and o */
    void *qkv, *x, *dy;       /* operands: qkv, then grad_qkv; x or o; dy, then grad_o */
    void *prob, *ds;          /* operands: P; dS */
    void *sums;               /* of bias gradients */
} places;

static places place(const gpp__cuda *cuda, const plan *p, bool backward, gpp__cuda_scratch *room)
{
    places s = {NULL, NULL};
    int64_t all = p->positions * p->width;
    s.score = (float *)gpp__cuda_take(room, floats(score_count(p)));
    s.prob = gpp__cuda_take(room, gpp__cuda_operands_room(cuda, score_count(p)));
    s.qkv = gpp__cuda_take(room, gpp__cuda_operands_room(cuda, 3 * all));
    s.x = gpp__cuda_take(room, gpp__cuda_operands_room(cuda, all));
    if (backward) {
        s.dy = gpp__cuda_take(room, gpp__cuda_operands_room(cuda, all));
        s.slope = (float *)gpp__cuda_take(room, floats(score_count(p)));
        s.ds = gpp__cuda_take(room, gpp__cuda_operands_room(cuda, score_count(p)));
        s.grad_qkv = (float *)gpp__cuda_take(room, floats(3 * all));
        s.grad_o = (float *)gpp__cuda_take(room, floats(all));
        s.sums = gpp__cuda_take(room, gpp__cuda_columns_room(p->positions, 3 * p->width));
    }
    return s;
}

static size_t packed_offset(const gpp__cuda *cuda, const gpp__layer *layer)
{
    return gpp__cuda_operands_room(cuda, layer->param[QKV_WEIGHT].count);
}

static gpp_status attention_store_init(gpp__store *store, int64_t rows, gpp_error *err)
{
    const gpp__layer *layer = store->layer;
    (void)rows, (void)err;
    store->packed_bytes = packed_offset(store->cuda, layer) +
                          gpp__cuda_operands_room(store->cuda, layer->param[PROJ_WEIGHT].count);
    return GPP_OK;
}

static gpp_status attention_pack(const gpp__store *store, const gpp__run *run, const char *params,
                                 char *packed)
{
    const gpp__layer *layer = store->layer;
    if (!store->packed_bytes)
        return GPP_OK;
    gpp_status status = gpp__cuda_to_bf16(run->cuda, gpp__param_at(layer, params, QKV_WEIGHT),
                                          packed, layer->param[QKV_WEIGHT].count, run->err);
    if (status == GPP_OK)
        status = gpp__cuda_to_bf16(run->cuda, gpp__param_at(layer, params, PROJ_WEIGHT),
                                   packed + packed_offset(run->cuda, layer),
                                   layer->param[PROJ_WEIGHT].count, run->err);
    return status;
}

static gpp_status attention_prepare(gpp__kernel *kernel, gpp_error *err)
{
    plan p = plan_of(kernel);
    gpp__cuda_scratch saved = {NULL, 0}, forward = {NULL, 0}, backward = {NULL, 0};
    keep(&p, &saved);
    keep(&p, &forward); /* when nothing is saved */
    place(kernel->cuda, &p, false, &forward);
    place(kernel->cuda, &p, true, &backward);
    kernel->saved_bytes = saved.used;
    kernel->forward_scratch = forward.used;
    kernel->backward_scratch = backward.used;
    gpp_status status = gpp__cuda_expect_size(kernel->layer, "positions", p.positions, err);
    if (status == GPP_OK)
        status = gpp__cuda_expect_size(kernel->layer, "features of q, k and v", 3 * p.width, err);
    return status;
}

/* --- kernels: one block a query of a strip ---------------------------------------------------- */

/* Scores of query i of slot s (of outer and inner) are at (s · most + i) · step. */
typedef struct strip {
    float *score, *slope;
    float *norm;                  /* [2] a query: largest scaled score, 1 / sum */
    int64_t most, step;           /* queries of a full strip; scores from one to the next */
    int64_t first, queries, seen; /* this strip's; keys seen by one of them */
    int64_t length;               /* keys in all */
    int64_t inner, outer_norm, inner_norm;
    bool causal;
    float scale;
} strip;

typedef struct query {
    int64_t at, keys; /* of its scores; keys it sees */
    float *norm;
} query;

__device__ static inline query query_of(const strip *s)
{
    int64_t slot = blockIdx.x / s->queries, i = blockIdx.x % s->queries;
    query q;
    q.at = (slot * s->most + i) * s->step;
    q.keys = s->causal ? s->first + i + 1 : s->length;
    q.norm = s->norm + slot / s->inner * s->outer_norm + slot % s->inner * s->inner_norm +
             2 * (s->first + i);
    return q;
}

/* Sum, or largest, of all threads' values, by halves; every thread gets it. */
__device__ static inline float fold(float value, bool largest, float *room)
{
    room[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) {
            float a = room[threadIdx.x], b = room[threadIdx.x + half];
            room[threadIdx.x] = largest ? (b > a ? b : a) : a + b;
        }
        __syncthreads();
    }
    float folded = room[0];
    __syncthreads();
    return folded;
}

/* P into prob, which may be where the scores are; 0 where a key is not seen. */
template <typename operand> static __global__ void probabilities(strip s, operand *prob)
{
    __shared__ float room[GPP__THREADS];
    query q = query_of(&s);
    float *score = s.score + q.at, most = -INFINITY, sum = 0;
    for (int64_t k = threadIdx.x; k < q.keys; k += blockDim.x)
        most = score[k] > most ? score[k] : most;
    most = fold(most, true, room) * s.scale;
    for (int64_t k = threadIdx.x; k < q.keys; k += blockDim.x) {
        score[k] = expf(score[k] * s.scale - most);
        sum += score[k];
    }
    float factor = 1 / fold(sum, false, room);
    for (int64_t k = threadIdx.x; k < s.seen; k += blockDim.x)
        gpp__cuda_store(&prob[q.at + k], k < q.keys ? score[k] * factor : 0.0f);
    if (threadIdx.x == 0) {
        q.norm[0] = most;
        q.norm[1] = factor;
    }
}

/* P again, and dS from dP. */
template <typename operand> static __global__ void slopes(strip s, operand *prob, operand *ds)
{
    __shared__ float room[GPP__THREADS];
    query q = query_of(&s);
    float *score = s.score + q.at, *slope = s.slope + q.at, dot = 0;
    for (int64_t k = threadIdx.x; k < q.keys; k += blockDim.x) {
        score[k] = expf(score[k] * s.scale - q.norm[0]) * q.norm[1];
        dot += score[k] * slope[k];
    }
    dot = fold(dot, false, room);
    for (int64_t k = threadIdx.x; k < s.seen; k += blockDim.x) {
        bool seen = k < q.keys;
        gpp__cuda_store(&ds[q.at + k], seen ? score[k] * (slope[k] - dot) * s.scale : 0.0f);
        gpp__cuda_store(&prob[q.at + k], seen ? score[k] : 0.0f);
    }
}

/* --- strips ----------------------------------------------------------------------------------- */

typedef struct call {
    const gpp__kernel *kernel;
    const gpp__run *run;
    const gpp__io *io;
    plan p;
    saved_parts kept;
    places at;
    size_t size;              /* bytes of an operand */
    const char *qkv, *grad_o; /* operands */
    int64_t chunk, chunks;    /* of outer: the first, and how many */
    int64_t first, queries;   /* the strip */
} call;

static int64_t seen_of(const call *c)
{
    return c->p.causal ? c->first + c->queries : c->p.length;
}

/* Rows `row`... of q, k or v (part 0, 1, 2) of one of outer and all of inner. */
static gpp__cuda_matrix part_of(const call *c, int64_t outer, int part, int64_t row, bool turned)
{
    int64_t at = outer * c->p.outer.qkv + part * c->p.width + row * 3 * c->p.width;
    gpp__cuda_matrix m = gpp__cuda_matrix_of(c->qkv + (size_t)at * c->size, 3 * c->p.width, turned);
    m.next = c->p.inner.qkv;
    return m;
}

static gpp__cuda_matrix grad_o_of(const call *c, int64_t outer)
{
    int64_t at = outer * c->p.outer.o + c->first * c->p.width;
    gpp__cuda_matrix m = gpp__cuda_matrix_of(c->grad_o + (size_t)at * c->size, c->p.width, false);
    m.next = c->p.inner.o;
    return m;
}

/* Numbers from the start of a buffer of scores to those of one of outer. */
static int64_t strip_at(const call *c, int64_t outer)
{
    return (outer - c->chunk) * c->p.inner.count * c->p.strip * c->p.step;
}

/* P or dS as an operand: the converted numbers, or the float32 strip itself when nothing was
 * converted. */
static gpp__cuda_matrix strip_of(const call *c, int64_t outer, const void *converted,
                                 const float *plain, bool turned)
{
    const char *from = converted ? (const char *)converted : (const char *)plain;
    gpp__cuda_matrix m =
        gpp__cuda_matrix_of(from + (size_t)strip_at(c, outer) * c->size, c->p.step, turned);
    m.next = c->p.strip * c->p.step;
    return m;
}

static gpp_status multiply(const call *c, gpp__cuda_product *product)
{
    product->batch = c->p.inner.count;
    return gpp__cuda_multiply(c->run->cuda, c->kernel->layer, product, c->run->err);
}

/* strip = rows · (k or v)ᵀ */
static gpp_status make_strip(const call *c, int64_t outer, gpp__cuda_matrix rows, int part,
                             float *to)
{
    gpp__cuda_product product = {c->queries, seen_of(c), c->p.depth};
    product.a = rows;
    product.b = part_of(c, outer, part, 0, true);
    product.c = to + strip_at(c, outer);
    product.c_step = c->p.step, product.c_next = c->p.strip * c->p.step;
    return multiply(c, &product);
}

/* to[queries] = strip · (k or v) */
static gpp_status strip_times(const call *c, int64_t outer, gpp__cuda_matrix strip, int part,
                              float *to, int64_t step, int64_t next)
{
    gpp__cuda_product product = {c->queries, c->p.depth, seen_of(c)};
    product.a = strip;
    product.b = part_of(c, outer, part, 0, false);
    product.c = to, product.c_step = step, product.c_next = next;
    return multiply(c, &product);
}

/* Gradients of all keys, or of all values, that the strip sees: = or += stripᵀ · rows. */
static gpp_status add_turned(const call *c, int64_t outer, gpp__cuda_matrix strip,
                             gpp__cuda_matrix rows, int part)
{
    gpp__cuda_product product = {seen_of(c), c->p.depth, c->queries};
    product.a = strip;
    product.b = rows;
    product.c = c->at.grad_qkv + outer * c->p.outer.qkv + part * c->p.width;
    product.c_step = 3 * c->p.width, product.c_next = c->p.inner.qkv;
    product.add = c->first + c->queries < c->p.length;
    return multiply(c, &product);
}

static strip strip_for_kernel(const call *c)
{
    const plan *p = &c->p;
    strip s = {c->at.score, c->at.slope, c->kept.norm + c->chunk * p->outer.norm};
    s.most = p->strip, s.step = p->step, s.length = p->length;
    s.first = c->first, s.queries = c->queries, s.seen = seen_of(c);
    s.inner = p->inner.count, s.outer_norm = p->outer.norm, s.inner_norm = p->inner.norm;
    s.causal = p->causal, s.scale = p->scale;
    return s;
}

/* Threads of a block: a power of two, no more than there are keys. */
static unsigned threads_for(int64_t keys)
{
    unsigned threads = 32;
    while (threads < GPP__THREADS && threads < keys)
        threads *= 2;
    return threads;
}

static gpp_status launch_probabilities(const call *c)
{
    strip s = strip_for_kernel(c);
    unsigned blocks = (unsigned)(c->chunks * c->p.inner.count * c->queries);
    unsigned threads = threads_for(s.seen);
    if (c->at.prob)
        GPP__LAUNCH(probabilities<uint16_t>, blocks, threads, c->run->cuda, s,
                    (uint16_t *)c->at.prob);
    else
        GPP__LAUNCH(probabilities<float>, blocks, threads, c->run->cuda, s, s.score);
    return gpp__cuda_launched(c->kernel->layer, c->run->err);
}

static gpp_status launch_slopes(const call *c)
{
    strip s = strip_for_kernel(c);
    unsigned blocks = (unsigned)(c->chunks * c->p.inner.count * c->queries);
    unsigned threads = threads_for(s.seen);
    if (c->at.prob)
        GPP__LAUNCH(slopes<uint16_t>, blocks, threads, c->run->cuda, s, (uint16_t *)c->at.prob,
                    (uint16_t *)c->at.ds);
    else
        GPP__LAUNCH(slopes<float>, blocks, threads, c->run->cuda, s, s.score, s.slope);
    return gpp__cuda_launched(c->kernel->layer, c->run->err);
}

static gpp_status forward_strip(const call *c)
{
    gpp_status status = GPP_OK;
    int64_t end = c->chunk + c->chunks;
    for (int64_t o = c->chunk; o < end && status == GPP_OK; o++)
        status = make_strip(c, o, part_of(c, o, 0, c->first, false), 1, c->at.score);
    if (status == GPP_OK)
        status = launch_probabilities(c);
    for (int64_t o = c->chunk; o < end && status == GPP_OK; o++)
        status = strip_times(c, o, strip_of(c, o, c->at.prob, c->at.score, false), 2,
                             c->kept.o + o * c->p.outer.o + c->first * c->p.width, c->p.width,
                             c->p.inner.o);
    return status;
}

static gpp_status backward_outer(const call *c, int64_t o)
{
    gpp__cuda_matrix prob = strip_of(c, o, c->at.prob, c->at.score, true);
    gpp__cuda_matrix ds = strip_of(c, o, c->at.ds, c->at.slope, true);
    float *grad_q = c->at.grad_qkv + o * c->p.outer.qkv + c->first * 3 * c->p.width;
    gpp_status status = add_turned(c, o, prob, grad_o_of(c, o), 2);
    if (status == GPP_OK)
        status = add_turned(c, o, ds, part_of(c, o, 0, c->first, false), 1);
    ds.turned = false;
    if (status == GPP_OK)
        status = strip_times(c, o, ds, 1, grad_q, 3 * c->p.width, c->p.inner.qkv);
    return status;
}

static gpp_status backward_strip(const call *c)
{
    gpp_status status = GPP_OK;
    int64_t end = c->chunk + c->chunks;
    for (int64_t o = c->chunk; o < end && status == GPP_OK; o++) {
        status = make_strip(c, o, part_of(c, o, 0, c->first, false), 1, c->at.score);
        if (status == GPP_OK)
            status = make_strip(c, o, grad_o_of(c, o), 2, c->at.slope);
    }
    if (status == GPP_OK)
        status = launch_slopes(c);
    for (int64_t o = c->chunk; o < end && status == GPP_OK; o++)
        status = backward_outer(c, o);
    return status;
}

/* Calls `strip` for the strips from the last to the first, and within each for its chunks. */
static gpp_status every_strip(call *c, gpp_status (*strip)(const call *))
{
    const plan *p = &c->p;
    gpp_status status = GPP_OK;
    for (int64_t s = (p->length - 1) / p->strip; s >= 0; s--) {
        c->first = s * p->strip;
        c->queries = min64(p->strip, p->length - c->first);
        for (c->chunk = 0; c->chunk < p->outer.count && status == GPP_OK; c->chunk += p->chunk) {
            c->chunks = min64(p->chunk, p->outer.count - c->chunk);
            status = strip(c);
        }
    }
    return status;
}

/* --- the products around ---------------------------------------------------------------------- */

static const void *weights_of(const call *c, int weight)
{
    const char *packed = c->io->packed;
    if (c->run->cuda->math != GPP__MATH_BF16)
        return gpp__param_at(c->kernel->layer, c->io->params, weight);
    return weight == QKV_WEIGHT ? packed : packed + packed_offset(c->run->cuda, c->kernel->layer);
}

static gpp_status operands(const call *c, const float *x, int64_t columns, void *room,
                           const void **as)
{
    return gpp__cuda_operands(c->run->cuda, x, c->p.positions * columns, room, as, c->run->err);
}

/* y[positions][out] = x · Wᵀ + b */
static gpp_status project(const call *c, const float *x, int weight, float *y)
{
    const gpp__layer *layer = c->kernel->layer;
    const gpp__cuda *cuda = c->run->cuda;
    int64_t out = layer->param[weight].dim[0], in = c->p.width;
    const void *from;
    gpp_status status = operands(c, x, in, c->at.x, &from);
    gpp__cuda_product product = {c->p.positions, out, in};
    product.a = gpp__cuda_matrix_of(from, in, false);
    product.b = gpp__cuda_matrix_of(weights_of(c, weight), in, true);
    product.c = y, product.c_step = out;
    if (status == GPP_OK)
        status = gpp__cuda_multiply(cuda, layer, &product, c->run->err);
    if (status == GPP_OK)
        status = gpp__cuda_add_bias(cuda, layer, gpp__param_at(layer, c->io->params, weight + 1),
                                    c->p.positions, out, y, c->run->err);
    return status;
}

/* dx[positions][in] = dy · W, dy an operand */
static gpp_status project_back(const call *c, const void *dy, int weight, float *dx)
{
    int64_t out = c->kernel->layer->param[weight].dim[0], in = c->p.width;
    gpp__cuda_product product = {c->p.positions, in, out};
    product.a = gpp__cuda_matrix_of(dy, out, false);
    product.b = gpp__cuda_matrix_of(weights_of(c, weight), in, false);
    product.c = dx, product.c_step = in;
    return gpp__cuda_multiply(c->run->cuda, c->kernel->layer, &product, c->run->err);
}

/* dW = or += dyᵀ · x, db = or += column sums of dy; dy also as an operand */
static gpp_status add_weights(const call *c, int weight, const float *dy, const void *dy_operand,
                              const float *x)
{
    const gpp__layer *layer = c->kernel->layer;
    const gpp__io *io = c->io;
    int64_t out = layer->param[weight].dim[0], in = c->p.width;
    const void *from;
    gpp_status status = operands(c, x, in, c->at.x, &from);
    gpp__cuda_product product = {out, in, c->p.positions};
    product.a = gpp__cuda_matrix_of(dy_operand, out, true);
    product.b = gpp__cuda_matrix_of(from, in, false);
    product.c = (float *)(io->grads + layer->param[weight].offset), product.c_step = in;
    product.add = io->accumulate;
    if (status == GPP_OK)
        status = gpp__cuda_multiply(c->run->cuda, layer, &product, c->run->err);
    if (status == GPP_OK)
        status = gpp__cuda_sum_columns(c->run->cuda, dy, c->p.positions, out, io->accumulate,
                                       (float *)(io->grads + layer->param[weight + 1].offset),
                                       c->at.sums, c->run->err);
    return status;
}

/* --- one call --------------------------------------------------------------------------------- */

static call call_of(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    call c = {kernel, run, io, plan_of(kernel)};
    c.size = gpp__cuda_operand_size(run->cuda);
    return c;
}

static gpp_status attention_forward(const gpp__kernel *kernel, const gpp__run *run,
                                    const gpp__io *io)
{
    call c = call_of(kernel, run, io);
    gpp__cuda_scratch saved = {(char *)io->saved, 0}, scratch = {(char *)io->scratch, 0};
    const void *qkv;
    c.kept = keep(&c.p, io->saved ? &saved : &scratch);
    c.at = place(run->cuda, &c.p, false, &scratch);
    gpp_status status = project(&c, (const float *)io->in[0], QKV_WEIGHT, c.kept.qkv);
    if (status == GPP_OK)
        status = operands(&c, c.kept.qkv, 3 * c.p.width, c.at.qkv, &qkv);
    if (status != GPP_OK)
        return status;
    c.qkv = (const char *)qkv;
    status = every_strip(&c, forward_strip);
    if (status == GPP_OK)
        status = project(&c, c.kept.o, PROJ_WEIGHT, (float *)io->out[0]);
    return status == GPP_OK ? gpp__cuda_launched(kernel->layer, run->err) : status;
}

/* From dy to do, with the gradients of the projection. */
static gpp_status backward_projection(call *c)
{
    const float *dy = (const float *)c->io->grad_out[0];
    const void *from;
    gpp_status status = operands(c, dy, c->p.width, c->at.dy, &from);
    if (status == GPP_OK && c->io->grads)
        status = add_weights(c, PROJ_WEIGHT, dy, from, c->kept.o);
    if (status == GPP_OK)
        status = project_back(c, from, PROJ_WEIGHT, c->at.grad_o);
    return status;
}

/* From do to the gradients of q, k and v. */
static gpp_status backward_heads(call *c)
{
    const void *qkv, *grad_o;
    gpp_status status = operands(c, c->kept.qkv, 3 * c->p.width, c->at.qkv, &qkv);
    if (status == GPP_OK)
        status = operands(c, c->at.grad_o, c->p.width, c->at.dy, &grad_o);
    if (status != GPP_OK)
        return status;
    c->qkv = (const char *)qkv;
    c->grad_o = (const char *)grad_o;
    return every_strip(c, backward_strip);
}

static gpp_status attention_backward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    call c = call_of(kernel, run, io);
    gpp__cuda_scratch saved = {(char *)io->saved, 0}, scratch = {(char *)io->scratch, 0};
    const void *from = NULL;
    c.kept = keep(&c.p, &saved);
    c.at = place(run->cuda, &c.p, true, &scratch);
    gpp_status status = backward_projection(&c);
    if (status == GPP_OK)
        status = backward_heads(&c);
    if (status == GPP_OK)
        status = operands(&c, c.at.grad_qkv, 3 * c.p.width, c.at.qkv, &from);
    if (status == GPP_OK && io->grads)
        status = add_weights(&c, QKV_WEIGHT, c.at.grad_qkv, from, (const float *)io->in[0]);
    if (status == GPP_OK && io->grad_in[0])
        status = project_back(&c, from, QKV_WEIGHT, (float *)io->grad_in[0]);
    return status == GPP_OK ? gpp__cuda_launched(kernel->layer, run->err) : status;
}

const gpp__kernels gpp__cuda_self_attention = {
    attention_store_init,
    NULL,
    attention_pack,
    NULL, /* gradients in the parameters' layout */
    attention_prepare,
    NULL,
    attention_forward,
    attention_backward,
    NULL,
};
