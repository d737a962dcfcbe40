/*
 * codelets/ops/self_attention.c: multi-head attention of a sequence to itself. Vaswani et al.,
 * "Attention is all you need", NeurIPS 2017.
 *
 * Shapes: x (rows, T, D), y as x; qkv.weight (3D, D), whose rows give q, k and v in this order,
 * qkv.bias (3D), proj.weight (D, D), proj.bias (D). Head h has columns h·d ... of each, d =
 * D/heads:
 *
 *   q, k, v = x · Wᵀ + b      P = softmax(q kᵀ / √d)      o = P v      y = o · Wpᵀ + bp
 *
 * With causal=1 position i sees only the positions up to i. All parameters are initially uniform in
 * ±1/√D, as in linear.
 *
 * P never exists as a whole. Queries are taken QUERIES at a time, and the exponentials of their
 * scores fill a strip. Only the largest score and the sum of each query are kept, from which the
 * backward computes the strip again (Dao et al., "FlashAttention", NeurIPS 2022). So the saved
 * memory grows with T, not T²:
 *
 *   dv = Pᵀ do     dP = do vᵀ     dS = P (dP - Σ_j P dP) / √d     dq = dS k     dk = dSᵀ q
 *
 * One (row, head) is one unit of work. The products with the weights are cut by rows (cpu/gemm.h:
 * cutting changes no bit).
 */
#include <math.h>
#include <string.h>

#include "codelets/cpu/exponential.h"
#include "codelets/cpu/gemm.h"
#include "codelets/cpu/vectorised.h"
#include "codelets/op.h"
#include "codelets/ops/self_attention.h"

#define BLOCK GPP__GEMM_BLOCK
#define QUERIES                                                                                    \
    64               /* of a strip; also the keys of one sum in o and dq, so that strips end where \
                        blocks of keys do */
#define ROWS      96 /* of a unit of a product */
#define GRAIN     12 /* rows: a whole number of tiles everywhere */
#define MAX_UNITS 256
#define UNIT      ((int64_t)1 << 18) /* multiplications below which (row, head)s share a unit */

enum { QKV_WEIGHT, QKV_BIAS, PROJ_WEIGHT, PROJ_BIAS };

static const gpp__key self_attention_keys[] = {
    {.name = "heads",
     .type = GPP__KEY_INT,
     .offset = offsetof(gpp__self_attention_attr, heads),
     .count = 1,
     .min = 1,
     .max = INT32_MAX,
     .required = true},
    {.name = "causal",
     .type = GPP__KEY_BOOL,
     .offset = offsetof(gpp__self_attention_attr, causal),
     .count = 1,
     .max = 1},
    {.name = NULL},
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- shapes ----------------------------------------------------------------------------------- */

static gpp_status self_attention_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__self_attention_attr *attr = layer->attr;
    gpp_status status = gpp__expect_float(layer, 2, 2, err);
    if (status)
        return status;
    int64_t width = layer->in[0].dim[1], three = 3 * width;
    if (width % attr->heads)
        return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                               "self_attention (layer %d, \"%s\"): %lld heads do not divide %lld "
                               "features",
                               layer->index, layer->label, (long long)attr->heads,
                               (long long)width);
    layer->out_count = 1;
    layer->out[0] = layer->in[0];
    gpp__add_param(layer, "qkv.weight", 2, (int64_t[]){three, width});
    gpp__add_param(layer, "qkv.bias", 1, &three);
    gpp__add_param(layer, "proj.weight", 2, (int64_t[]){width, width});
    gpp__add_param(layer, "proj.bias", 1, &width);
    return GPP_OK;
}

static void self_attention_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    gpp__init_uniform(layer, p, seed, (float)(1 / sqrt((double)layer->in[0].dim[1])), value);
}

static double self_attention_flops(const gpp__layer *layer)
{
    double T = (double)layer->in[0].dim[0], D = (double)layer->in[0].dim[1];
    return 8 * T * D * D + 4 * T * T * D;
}

/* --- products with the weights ---------------------------------------------------------------- */

/* c[m][n] = or += a[m][k] · b + bias; b is [k][n], or [n][k] when transposed. */
typedef struct product {
    int64_t m, n, k;
    const float *a, *b, *bias;
    bool transposed, add;
    float *panels, *c;
    int units;
} product;

static int64_t panel_floats(int64_t n, int64_t k)
{
    return gpp__gemm_padded(n) * k;
}

static void pack_unit(void *arg, int unit, int thread)
{
    const product *p = arg;
    int64_t begin, end, padded = gpp__gemm_padded(p->n);
    (void)thread;
    gpp__share(p->n, p->units, unit, gpp__gemm_width(), &begin, &end);
    for (int64_t k = 0; k < p->k; k += BLOCK) {
        int64_t deep = min64(p->k - k, BLOCK);
        float *to = p->panels + k * padded + begin * deep;
        if (p->transposed)
            gpp__gemm_pack_t(end - begin, deep, p->b + begin * p->k + k, p->k, to);
        else
            gpp__gemm_pack(end - begin, deep, p->b + k * p->n + begin, p->n, to);
    }
}

VECTORISED static void add_line(int64_t count, const float *restrict add, float *restrict to)
{
    for (int64_t k = 0; k < count; k++)
        to[k] += add[k];
}

static void multiply_unit(void *arg, int unit, int thread)
{
    const product *p = arg;
    int64_t begin, end, padded = gpp__gemm_padded(p->n);
    (void)thread;
    gpp__share(p->m, p->units, unit, GRAIN, &begin, &end);
    for (int64_t k = 0; k < p->k; k += BLOCK)
        gpp__gemm(end - begin, p->n, min64(p->k - k, BLOCK), p->a + begin * p->k + k, p->k,
                  p->panels + k * padded, p->c + begin * p->n, p->n, p->add || k > 0);
    for (int64_t r = begin; p->bias && r < end; r++)
        add_line(p->n, p->bias, p->c + r * p->n);
}

static void multiply(product p, gpp__pool *pool)
{
    p.units = (int)min64((p.n * p.k + (1 << 16) - 1) >> 16, MAX_UNITS);
    gpp__parallel(pool, p.units, pack_unit, &p);
    p.units = (int)min64((p.m + ROWS - 1) / ROWS, MAX_UNITS);
    gpp__parallel(pool, p.units, multiply_unit, &p);
}

/* dW[n][k] = or += dyᵀ · x, db = or += Σ dy, over m rows. */
typedef struct weights {
    int64_t m, n, k, rows; /* rows: of this block */
    const float *dy, *x;
    float *dy_t, *panels, *dw, *db;
    bool add;
    int units;
} weights;

/* Rows of dyᵀ; panels of x. */
static void pack_weights_unit(void *arg, int unit, int thread)
{
    const weights *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->n, p->units, unit, GRAIN, &begin, &end);
    gpp__transpose(p->rows, end - begin, p->dy + begin, p->n, p->dy_t + begin * p->rows, p->rows,
                   NULL);
    gpp__share(p->k, p->units, unit, gpp__gemm_width(), &begin, &end);
    gpp__gemm_pack(end - begin, p->rows, p->x + begin, p->k, p->panels + begin * p->rows);
}

static double sum_line(const float *x, int64_t count)
{
    double sum[4] = {0};
    for (int64_t k = 0; k < count; k++)
        sum[k % 4] += x[k];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

static void weights_unit(void *arg, int unit, int thread)
{
    const weights *p = arg;
    int64_t begin, end;
    (void)thread;
    gpp__share(p->n, p->units, unit, GRAIN, &begin, &end);
    gpp__gemm(end - begin, p->k, p->rows, p->dy_t + begin * p->rows, p->rows, p->panels,
              p->dw + begin * p->k, p->k, p->add);
    for (int64_t n = begin; n < end; n++)
        p->db[n] = (p->add ? p->db[n] : 0) + (float)sum_line(p->dy_t + n * p->rows, p->rows);
}

static int64_t weights_floats(int64_t m, int64_t n, int64_t k)
{
    return min64(m, BLOCK) * (n + gpp__gemm_padded(k));
}

static void add_weights(weights p, float *scratch, gpp__pool *pool)
{
    const float *dy = p.dy, *x = p.x;
    p.units = (int)min64((p.n + ROWS - 1) / ROWS, MAX_UNITS);
    for (int64_t r = 0; r < p.m; r += BLOCK) {
        p.rows = min64(p.m - r, BLOCK);
        p.dy = dy + r * p.n;
        p.x = x + r * p.k;
        p.dy_t = scratch;
        p.panels = scratch + p.n * p.rows;
        gpp__parallel(pool, p.units, pack_weights_unit, &p);
        gpp__parallel(pool, p.units, weights_unit, &p);
        p.add = true;
    }
}

/* --- one head of one row ---------------------------------------------------------------------- */

typedef struct pass {
    int64_t rows, length, width, heads, depth; /* T, D, columns of a head */
    bool causal;
    float scale;
    int units;
    const float *qkv; /* [rows · length][3 · width] */
    float *o;         /* [rows · length][width] */
    float *norm;      /* [rows][heads][length][2]: largest scaled score, 1 / sum. NULL: not kept */
    const float *grad_o;
    float *grad_qkv;
    float *own; /* thread k's part begins at own + k · own_floats */
    int64_t own_floats;
} pass;

/* Places of one (row, head): rows of q, k, v and their gradients are 3 · width apart, of o width.
 */
typedef struct head {
    const float *q, *k, *v, *grad_o;
    float *o, *norm, *grad_q, *grad_k, *grad_v;
} head;

static head head_of(const pass *p, int64_t which)
{
    int64_t row = which / p->heads, h = which % p->heads;
    int64_t at = row * p->length * p->width, first = h * p->depth;
    const float *q = p->qkv + 3 * at + first;
    head found = {.q = q, .k = q + p->width, .v = q + 2 * p->width};
    found.norm = p->norm ? p->norm + 2 * which * p->length : NULL;
    found.o = p->o ? p->o + at + first : NULL;
    if (p->grad_qkv) {
        found.grad_o = p->grad_o + at + first;
        found.grad_q = p->grad_qkv + 3 * at + first;
        found.grad_k = found.grad_q + p->width;
        found.grad_v = found.grad_q + 2 * p->width;
    }
    return found;
}

/* A thread's memory. */
typedef struct room {
    float *k_t, *v_t;  /* panels of kᵀ and vᵀ: [blocks of depth] of length columns */
    float *k, *v;      /* panels of k and v: [blocks of QUERIES rows] of depth columns */
    float *score, *dp; /* strips [QUERIES][padded(length)] */
    float *turned;     /* one transposed, [length][QUERIES] */
    float *narrow;     /* panels of a strip of q or do, QUERIES rows of depth columns */
    int64_t step;      /* padded(length) */
    int64_t floats;    /* of all */
} room;

static float *take(room *r, float *own, int64_t floats)
{
    float *place = own ? own + r->floats : NULL;
    r->floats += (floats + 15) / 16 * 16;
    return place;
}

static room room_of(const pass *p, float *own, bool backward)
{
    int64_t length = p->length, depth = gpp__gemm_padded(p->depth);
    room r = {.step = gpp__gemm_padded(length)};
    r.k_t = take(&r, own, r.step * p->depth);
    r.score = take(&r, own, QUERIES * r.step);
    if (!backward) {
        r.v = take(&r, own, length * depth);
        return r;
    }
    r.v_t = take(&r, own, r.step * p->depth);
    r.k = take(&r, own, length * depth);
    r.dp = take(&r, own, QUERIES * r.step);
    r.turned = take(&r, own, QUERIES * length);
    r.narrow = take(&r, own, QUERIES * depth);
    return r;
}

/* Panels of mᵀ, for products of rows of depth with rows of m. */
static void pack_turned(const pass *p, const float *m, float *panels)
{
    int64_t padded = gpp__gemm_padded(p->length), step = 3 * p->width;
    for (int64_t d = 0; d < p->depth; d += BLOCK)
        gpp__gemm_pack_t(p->length, min64(p->depth - d, BLOCK), m + d, step, panels + d * padded);
}

/* Panels of m, for products of strips with it. */
static void pack_straight(const pass *p, const float *m, float *panels)
{
    int64_t padded = gpp__gemm_padded(p->depth), step = 3 * p->width;
    for (int64_t t = 0; t < p->length; t += QUERIES)
        gpp__gemm_pack(p->depth, min64(p->length - t, QUERIES), m + t * step, step,
                       panels + t * padded);
}

/* strip[n][seen] = rows · mᵀ. Computes whole panels, so columns behind `seen` get some value too.
 */
static void strip_of(const pass *p, int64_t n, int64_t seen, const float *rows, int64_t row_step,
                     const float *panels, float *strip, int64_t step)
{
    for (int64_t d = 0; d < p->depth; d += BLOCK)
        gpp__gemm(n, gpp__gemm_padded(seen), min64(p->depth - d, BLOCK), rows + d, row_step,
                  panels + d * step, strip, step, d > 0);
}

/* out[n][depth] = strip[n][seen] · m */
static void strip_times(const pass *p, int64_t n, int64_t seen, const float *strip, int64_t step,
                        const float *panels, float *out, int64_t out_step)
{
    int64_t padded = gpp__gemm_padded(p->depth);
    for (int64_t t = 0; t < seen; t += QUERIES)
        gpp__gemm(n, p->depth, min64(seen - t, QUERIES), strip + t, step, panels + t * padded, out,
                  out_step, t > 0);
}

/* out[seen][depth] += stripᵀ · rows: adds the part of every query to every key it sees. */
static void add_turned(const pass *p, const room *m, int64_t n, int64_t seen, const float *strip,
                       const float *rows, int64_t row_step, float *out)
{
    gpp__transpose(n, seen, strip, m->step, m->turned, n, NULL);
    gpp__gemm_pack(p->depth, n, rows, row_step, m->narrow);
    gpp__gemm(seen, p->depth, n, m->turned, n, m->narrow, out, 3 * p->width, true);
}

enum { LANES = 16 };

VECTORISED static float sum_of(const float *x, int64_t count)
{
    float s[LANES] = {0};
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int l = 0; l < LANES; l++)
            s[l] += x[k + l];
    for (int l = 0; k < count; k++, l++)
        s[l] += x[k];
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

VECTORISED static float dot_of(const float *x, const float *y, int64_t count)
{
    float s[LANES] = {0};
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int l = 0; l < LANES; l++)
            s[l] += x[k + l] * y[k + l];
    for (int l = 0; k < count; k++, l++)
        s[l] += x[k] * y[k];
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

VECTORISED static void scale_by(float *x, float factor, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        x[k] *= factor;
}

/* dS of one query into dp. */
VECTORISED static void score_gradient(const float *restrict prob, float delta, float scale,
                                      int64_t count, float *restrict dp)
{
    for (int64_t k = 0; k < count; k++)
        dp[k] = prob[k] * (dp[k] - delta) * scale;
}

/* The number of keys that query i sees. In a strip of `seen` keys the others are 0. */
static int64_t keys_of(const pass *p, int64_t i)
{
    return p->causal ? i + 1 : p->length;
}

/* The strip of the queries from `first` on: exponentials of their scores, and in norm [n][2] the
 * numbers that turn them into probabilities. */
static void softmax_strip(const pass *p, int64_t first, int64_t n, int64_t seen, const room *m,
                          float *norm)
{
    for (int64_t i = 0; i < n; i++) {
        float *score = m->score + i * m->step;
        int64_t keys = keys_of(p, first + i);
        norm[2 * i] = gpp__largest(score, keys) * p->scale;
        gpp__exponentials(score, p->scale, norm[2 * i], keys, score);
        norm[2 * i + 1] = 1 / sum_of(score, keys);
        memset(score + keys, 0, (size_t)(seen - keys) * sizeof *score);
    }
}

static void forward_head(const pass *p, const head *h, const room *m)
{
    float here[2 * QUERIES];
    pack_turned(p, h->k, m->k_t);
    pack_straight(p, h->v, m->v);
    for (int64_t i = 0; i < p->length; i += QUERIES) {
        int64_t n = min64(p->length - i, QUERIES), seen = p->causal ? i + n : p->length;
        float *norm = h->norm ? h->norm + 2 * i : here, *o = h->o + i * p->width;
        strip_of(p, n, seen, h->q + i * 3 * p->width, 3 * p->width, m->k_t, m->score, m->step);
        softmax_strip(p, i, n, seen, m, norm);
        strip_times(p, n, seen, m->score, m->step, m->v, o, p->width);
        for (int64_t k = 0; k < n; k++)
            scale_by(o + k * p->width, norm[2 * k + 1], p->depth);
    }
}

/* Computes P again from what the forward kept, and replaces dP by dS. */
static void probabilities(const pass *p, const head *h, int64_t first, int64_t n, int64_t seen,
                          const room *m)
{
    for (int64_t i = 0; i < n; i++) {
        float *prob = m->score + i * m->step, *dp = m->dp + i * m->step;
        const float *norm = h->norm + 2 * (first + i);
        int64_t keys = keys_of(p, first + i);
        gpp__exponentials(prob, p->scale, norm[0], keys, prob);
        scale_by(prob, norm[1], keys);
        score_gradient(prob, dot_of(prob, dp, keys), p->scale, keys, dp);
        memset(prob + keys, 0, (size_t)(seen - keys) * sizeof *prob);
        memset(dp + keys, 0, (size_t)(seen - keys) * sizeof *dp);
    }
}

static void backward_head(const pass *p, const head *h, const room *m)
{
    int64_t step = 3 * p->width;
    pack_turned(p, h->k, m->k_t);
    pack_turned(p, h->v, m->v_t);
    pack_straight(p, h->k, m->k);
    for (int64_t t = 0; t < p->length; t++) {
        memset(h->grad_k + t * step, 0, (size_t)p->depth * sizeof *h->grad_k);
        memset(h->grad_v + t * step, 0, (size_t)p->depth * sizeof *h->grad_v);
    }
    for (int64_t i = 0; i < p->length; i += QUERIES) {
        int64_t n = min64(p->length - i, QUERIES), seen = p->causal ? i + n : p->length;
        const float *q = h->q + i * step, *grad_o = h->grad_o + i * p->width;
        strip_of(p, n, seen, q, step, m->k_t, m->score, m->step);
        strip_of(p, n, seen, grad_o, p->width, m->v_t, m->dp, m->step);
        probabilities(p, h, i, n, seen, m);
        add_turned(p, m, n, seen, m->score, grad_o, p->width, h->grad_v);
        add_turned(p, m, n, seen, m->dp, q, step, h->grad_k);
        strip_times(p, n, seen, m->dp, m->step, m->k, h->grad_q + i * step, step);
    }
}

static void head_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t begin, end;
    room m = room_of(p, p->own + thread * p->own_floats, p->grad_qkv != NULL);
    gpp__share(p->rows * p->heads, p->units, unit, 1, &begin, &end);
    for (int64_t which = begin; which < end; which++) {
        head h = head_of(p, which);
        if (p->grad_qkv)
            backward_head(p, &h, &m);
        else
            forward_head(p, &h, &m);
    }
}

/* --- one call --------------------------------------------------------------------------------- */

static pass pass_of(const gpp__kernel *kernel)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__self_attention_attr *attr = layer->attr;
    pass p = {.rows = kernel->rows, .length = layer->in[0].dim[0], .width = layer->in[0].dim[1]};
    p.heads = attr->heads;
    p.depth = p.width / p.heads;
    p.causal = attr->causal;
    p.scale = (float)(1 / sqrt((double)p.depth));
    int64_t each = 2 * p.length * p.length * p.depth, all = p.rows * p.heads;
    int64_t units = each < UNIT ? (all * each + UNIT - 1) / UNIT : all;
    p.units = (int)max64(1, min64(min64(units, all), MAX_UNITS));
    return p;
}

/* Saved, one after the other: q, k, v of all positions; o; largest scores and sums. */
static size_t qkv_bytes(const pass *p)
{
    return gpp__align((size_t)(3 * p->rows * p->length * p->width) * sizeof(float));
}

static size_t o_bytes(const pass *p)
{
    return gpp__align((size_t)(p->rows * p->length * p->width) * sizeof(float));
}

static size_t norm_bytes(const pass *p)
{
    return gpp__align((size_t)(2 * p->rows * p->heads * p->length) * sizeof(float));
}

static size_t floats(int64_t count)
{
    return gpp__align((size_t)count * sizeof(float));
}

/* Scratch: what is not saved or, in the backward, its gradients; panels; each thread's own memory.
 */
static gpp_status self_attention_prepare(gpp__kernel *kernel, gpp_error *err)
{
    (void)err;
    pass p = pass_of(kernel);
    int64_t D = p.width, m = p.rows * p.length, threads = kernel->threads;
    size_t forward = floats(panel_floats(3 * D, D)), backward = floats(panel_floats(D, 3 * D));
    size_t blocks = floats(weights_floats(m, 3 * D, D));
    kernel->saved_bytes = qkv_bytes(&p) + o_bytes(&p) + norm_bytes(&p);
    kernel->forward_scratch = qkv_bytes(&p) + o_bytes(&p);
    kernel->backward_scratch = qkv_bytes(&p) + o_bytes(&p);
    size_t own = floats(threads * room_of(&p, NULL, false).floats);
    kernel->forward_scratch += forward > own ? forward : own;
    own = floats(threads * room_of(&p, NULL, true).floats);
    backward = backward > blocks ? backward : blocks;
    kernel->backward_scratch += backward > own ? backward : own;
    return GPP_OK;
}

static gpp_status self_attention_forward(const gpp__kernel *kernel, const gpp__run *run,
                                         const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = pass_of(kernel);
    char *keep = io->saved ? io->saved : io->scratch;
    float *qkv = (float *)(void *)keep, *o = (float *)(void *)(keep + qkv_bytes(&p));
    float *rest = (float *)(void *)((char *)io->scratch + qkv_bytes(&p) + o_bytes(&p));
    p.qkv = qkv;
    p.o = o;
    p.norm = io->saved ? (float *)(void *)(keep + qkv_bytes(&p) + o_bytes(&p)) : NULL;
    p.own = rest;
    p.own_floats = room_of(&p, NULL, false).floats;
    product to_qkv = {p.rows * p.length, 3 * p.width, p.width, .transposed = true, .panels = rest};
    product to_y = {p.rows * p.length, p.width, p.width, .transposed = true, .panels = rest};
    to_qkv.a = io->in[0];
    to_qkv.b = gpp__param_at(layer, io->params, QKV_WEIGHT);
    to_qkv.bias = gpp__param_at(layer, io->params, QKV_BIAS);
    to_qkv.c = qkv;
    to_y.a = o;
    to_y.b = gpp__param_at(layer, io->params, PROJ_WEIGHT);
    to_y.bias = gpp__param_at(layer, io->params, PROJ_BIAS);
    to_y.c = io->out[0];
    multiply(to_qkv, run->pool);
    gpp__parallel(run->pool, p.units, head_unit, &p);
    multiply(to_y, run->pool);
    return GPP_OK;
}

static void weights_backward(const pass *p, const gpp__kernel *kernel, const gpp__run *run,
                             const gpp__io *io, int weight, const float *dy, const float *x,
                             float *scratch)
{
    const gpp__param *param = &kernel->layer->param[weight];
    weights w = {.m = p->rows * p->length, .n = param->dim[0], .k = param->dim[1]};
    if (!io->grads)
        return;
    w.dy = dy;
    w.x = x;
    w.dw = (float *)(void *)(io->grads + param[0].offset);
    w.db = (float *)(void *)(io->grads + param[1].offset);
    w.add = io->accumulate;
    add_weights(w, scratch, run->pool);
}

static gpp_status self_attention_backward(const gpp__kernel *kernel, const gpp__run *run,
                                          const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    pass p = pass_of(kernel);
    char *keep = io->saved, *scratch = io->scratch;
    float *grad_qkv = io->scratch, *grad_o = (float *)(void *)(scratch + qkv_bytes(&p));
    float *rest = (float *)(void *)(scratch + qkv_bytes(&p) + o_bytes(&p));
    const float *o = (const float *)(void *)(keep + qkv_bytes(&p));
    product to_o = {p.rows * p.length, p.width, p.width, .panels = rest};
    product to_x = {p.rows * p.length, p.width, 3 * p.width, .panels = rest};
    to_o.a = io->grad_out[0];
    to_o.b = gpp__param_at(layer, io->params, PROJ_WEIGHT);
    to_o.c = grad_o;
    to_x.a = grad_qkv;
    to_x.b = gpp__param_at(layer, io->params, QKV_WEIGHT);
    to_x.c = io->grad_in[0];
    p.qkv = io->saved;
    p.norm = (float *)(void *)(keep + qkv_bytes(&p) + o_bytes(&p));
    p.grad_o = grad_o;
    p.grad_qkv = grad_qkv;
    p.own = rest;
    p.own_floats = room_of(&p, NULL, true).floats;
    weights_backward(&p, kernel, run, io, PROJ_WEIGHT, io->grad_out[0], o, rest);
    multiply(to_o, run->pool);
    gpp__parallel(run->pool, p.units, head_unit, &p);
    weights_backward(&p, kernel, run, io, QKV_WEIGHT, grad_qkv, io->in[0], rest);
    if (io->grad_in[0])
        multiply(to_x, run->pool);
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_self_attention;

const gpp_op gpp_op_self_attention = {
    .name = "self_attention",
    .keys = self_attention_keys,
    .attr_size = sizeof(gpp__self_attention_attr),
    .infer = self_attention_infer,
    .backward_needs = GPP_NEEDS_INPUT,
    .init = self_attention_init,
    .flops = self_attention_flops,
    .cpu.prepare = self_attention_prepare,
    .cpu.forward = self_attention_forward,
    .cpu.backward = self_attention_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_self_attention),
};
