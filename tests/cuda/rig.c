/*
 * tests/cuda/rig.c: devices, their memory, and the comparison of rig.h.
 *
 * The CPU's side is a test_rig; of the other side there are device copies of the same tensors in
 * the kernels' layout. Parameters' gradients and packed weights have layouts of their own, so those
 * are compared after unpack_grads.
 */
#include "tests/cuda/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- devices and their memory ----------------------------------------------------------------- */

#define FINE(expression)                                                                           \
    do {                                                                                           \
        cudaError_t fine_code = (expression);                                                      \
        cr_assert(fine_code == cudaSuccess, "%s: %s", #expression, cudaGetErrorName(fine_code));   \
    } while (0)

static void need_device(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        cr_skip_test("no CUDA device");
}

gpp__cuda *cuda_device(gpp__math math)
{
    static gpp__cuda *made[GPP__MATH_BF16 + 1];
    need_device();
    if (!made[math]) {
        gpp_error err = GPP_ERROR_INIT;
        cudaStream_t stream;
        FINE(cudaSetDevice(0));
        FINE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        cr_assert(!gpp__cuda_new(&made[math], 0, stream, math, true, &err), "%s", err.msg);
    }
    return made[math];
}

void cuda_wait(void)
{
    FINE(cudaGetLastError());
    FINE(cudaDeviceSynchronize());
}

void cuda_order(bool descending)
{
#ifdef GPP_EMULATION
    gpp_emulation_order(descending);
#else
    (void)descending;
#endif
}

/* What is set or copied without a stream is done on the default one, and maybe not before the call
 * returns; streams that are non-blocking, as those of kernels here, do not wait for it. */
static void settle(void)
{
    FINE(cudaDeviceSynchronize());
}

static void set_room(void *room, int value, size_t bytes)
{
    FINE(cudaMemset(room, value, bytes));
    settle();
}

/* The emulation has a fence of its own behind every allocation; on a device the rooms have one.
 * What is in front of a room is its size. */
#ifdef GPP_EMULATION
enum { FRONT = 0, FENCE = 0 };
#else
enum { FRONT = 256, FENCE = 4096 };
#endif
enum { FENCE_VALUE = 0xa5 };

void *cuda_room(size_t bytes)
{
    char *room;
    need_device();
    if (bytes == 0)
        return NULL;
    FINE(cudaMalloc((void **)&room, FRONT + bytes + FENCE));
    set_room(room + FRONT, 0xff, bytes);
    if (FENCE > 0) {
        FINE(cudaMemcpy(room, &bytes, sizeof bytes, cudaMemcpyHostToDevice));
        set_room(room + FRONT + bytes, FENCE_VALUE, FENCE);
    }
    return room + FRONT;
}

static void check_fence(const char *begin)
{
    unsigned char fence[FENCE + 1];
    size_t bytes;
    int off = 0;
    FINE(cudaMemcpy(&bytes, begin, sizeof bytes, cudaMemcpyDeviceToHost));
    FINE(cudaMemcpy(fence, begin + FRONT + bytes, FENCE, cudaMemcpyDeviceToHost));
    while (off < FENCE && fence[off] == FENCE_VALUE)
        off++;
    cr_expect(off == FENCE, "written %d bytes behind a room of %zu bytes", off, bytes);
}

void cuda_free(void *room)
{
    if (!room)
        return;
    cuda_wait();
    if (FENCE > 0)
        check_fence((char *)room - FRONT);
    FINE(cudaFree((char *)room - FRONT));
}

void cuda_put(void *room, const void *host, size_t bytes)
{
    cuda_wait();
    FINE(cudaMemcpy(room, host, bytes, cudaMemcpyHostToDevice));
    settle();
}

void cuda_get(void *host, const void *room, size_t bytes)
{
    cuda_wait();
    FINE(cudaMemcpy(host, room, bytes, cudaMemcpyDeviceToHost));
}

void *cuda_copy_of(const void *host, size_t bytes)
{
    void *room = cuda_room(bytes);
    if (room)
        cuda_put(room, host, bytes);
    return room;
}

static void spoil(void *room, size_t bytes)
{
    if (room && bytes > 0)
        set_room(room, 0xff, bytes);
}

/* --- the two sides ---------------------------------------------------------------------------- */

enum { CALLS = 2 }; /* backwards, the second of which accumulates */

typedef struct sides {
    const test_op_case *c;
    cuda_way how;
    int64_t rows;
    char name[256]; /* for messages */
    bool fine;      /* nothing differed so far */
    gpp_error err;

    test_rig *cpu;
    const gpp__layer *layer;
    float *grad_y[CALLS][GPP__MAX_TENSORS]; /* in the user's layout */
    void *want_out[GPP__MAX_TENSORS], *want_grad_in[CALLS][GPP__MAX_TENSORS]; /* in the kernels' */

    const gpp__kernels *op;
    gpp__run run;
    gpp__store store;
    gpp__kernel kernel;
    char *params, *packed, *grads, *saved, *stats, *scratch, *scratch_room;
    char *in[GPP__MAX_TENSORS], *out[GPP__MAX_TENSORS], *grad_in[GPP__MAX_TENSORS];
    char *grad_out[CALLS][GPP__MAX_TENSORS];
} sides;

static size_t bytes_of(const sides *s, const gpp__desc *d)
{
    return (size_t)gpp__desc_rows(d, s->kernel.batch) * gpp__desc_bytes(d);
}

static int64_t count_of(const sides *s, const gpp__desc *d)
{
    return gpp__desc_rows(d, s->kernel.batch) * gpp__desc_count(d);
}

static size_t stats_bytes(const sides *s)
{
    return s->layer->op->stats_bytes ? s->layer->op->stats_bytes(s->layer) : 0;
}

static size_t scratch_bytes(const gpp__kernel *k)
{
    return k->forward_scratch > k->backward_scratch ? k->forward_scratch : k->backward_scratch;
}

static void *copy_host(const void *from, size_t bytes)
{
    return bytes ? memcpy(test_room(bytes), from, bytes) : NULL;
}

/* --- reporting -------------------------------------------------------------------------------- */

static void differs(sides *s, const char *what, double off)
{
    s->fine = false;
    cr_expect(false, "%s: %s is off by %.3g of the largest, allowed is %.3g", s->name, what, off,
              s->how.tolerance);
}

/* As test_distance, but equal infinities are equal, and the largest is the largest finite value. */
static double distance(const float *got, const float *want, int64_t count)
{
    double most = 0, off = 0;
    for (int64_t k = 0; k < count; k++) {
        most = isfinite(want[k]) ? fmax(most, fabs((double)want[k])) : most;
        if (got[k] == want[k] || (isnan(got[k]) && isnan(want[k])))
            continue;
        if (!isfinite(got[k]) || !isfinite(want[k]))
            return INFINITY;
        off = fmax(off, fabs((double)got[k] - want[k]));
    }
    return most > 0 ? off / most : off;
}

static void compare(sides *s, const char *what, const float *got, const float *want, int64_t count)
{
    double off = distance(got, want, count);
    if (!(off <= s->how.tolerance))
        differs(s, what, off);
}

/* A tensor of the device, in the kernels' layout. */
static void compare_room(sides *s, const char *what, const void *room, const void *want,
                         int64_t count)
{
    float *got = malloc((size_t)count * sizeof *got);
    cuda_get(got, room, (size_t)count * sizeof *got);
    compare(s, what, got, want, count);
    free(got);
}

/* Bit for bit, against what was seen before. */
static void same_room(sides *s, const char *what, const void *room, const void *want, size_t bytes)
{
    char *got = malloc(bytes + 1);
    size_t at = 0;
    if (bytes > 0)
        cuda_get(got, room, bytes);
    while (at < bytes && got[at] == ((const char *)want)[at])
        at++;
    if (at < bytes) {
        s->fine = false;
        cr_expect(false, "%s: %s: byte %zu of %zu differs", s->name, what, at, bytes);
    }
    free(got);
}

static void need(sides *s, gpp_status status, const char *what)
{
    cr_assert(status == GPP_OK, "%s: %s: %s", s->name, what, s->err.msg);
}

/* --- making ----------------------------------------------------------------------------------- */

/* Parameters that differ from each other; buffers near 1, as a variance may be. */
static void fill_params(sides *s)
{
    test_rig_init(s->cpu, 3);
    for (int p = 0; p < s->layer->param_count; p++) {
        const gpp__param *param = &s->layer->param[p];
        double lo = param->buffer ? 0.5 : -0.5, hi = param->buffer ? 1.5 : 0.5;
        if (param->dtype == GPP_F32)
            test_fill(test_rig_param(s->cpu, p), param->count, 17 + (uint64_t)p, lo, hi);
    }
}

static void make_cpu(sides *s)
{
    const int64_t batch[GPP__BATCHES] = {s->rows, s->rows, s->rows, s->rows};
    const test_op_case *c = s->c;
    need(s, test_rig_new_tuple(&s->cpu, c->spec, 5, c->in, c->inputs, batch, 1, &s->err), "CPU");
    s->cpu->run.training = !s->how.evaluate;
    s->layer = &s->cpu->layer;
    fill_params(s);
}

static void make_cuda(sides *s)
{
    gpp__cuda *cuda = cuda_device(s->how.math);
    s->op = s->layer->op->cuda;
    cr_assert(s->op != NULL, "%s: this operator has no CUDA functions", s->name);
    s->run = s->cpu->run;
    s->run.pool = NULL;
    s->run.cuda = cuda;
    s->run.err = &s->err;
    s->store = (gpp__store){.layer = s->layer, .grad_bytes = s->layer->param_bytes, .cuda = cuda};
    if (s->op->store_init)
        need(s, s->op->store_init(&s->store, s->rows, &s->err), "store_init");
    s->kernel = (gpp__kernel){
        .layer = s->layer, .store = &s->store, .rows = s->cpu->kernel.rows, .threads = 1};
    s->kernel.cuda = cuda;
    memcpy(s->kernel.batch, s->cpu->kernel.batch, sizeof s->kernel.batch);
    if (s->op->prepare)
        need(s, s->op->prepare(&s->kernel, &s->err), "prepare");
}

static void furnish(sides *s)
{
    const gpp__layer *layer = s->layer;
    s->params = cuda_copy_of(s->cpu->params, layer->param_bytes);
    s->packed = cuda_room(s->store.packed_bytes);
    s->grads = cuda_room(s->store.grad_bytes);
    s->saved = cuda_room(s->kernel.saved_bytes);
    s->stats = cuda_room(stats_bytes(s));
    s->scratch_room = cuda_room(GPP__ALIGN + scratch_bytes(&s->kernel));
    s->scratch = s->scratch_room + GPP__ALIGN; /* anywhere in a pipe's, on a cache line */
    for (int t = 0; t < layer->in_count; t++) {
        s->in[t] = cuda_room(bytes_of(s, &layer->in[t]));
        s->grad_in[t] = cuda_room(bytes_of(s, &layer->in[t]));
    }
    for (int t = 0; t < layer->out_count; t++) {
        s->out[t] = cuda_room(bytes_of(s, &layer->out[t]));
        for (int call = 0; call < CALLS; call++) {
            int64_t count = count_of(s, &layer->out[t]);
            s->grad_out[call][t] = cuda_room(bytes_of(s, &layer->out[t]));
            s->grad_y[call][t] = malloc((size_t)count * sizeof(float));
            test_fill(s->grad_y[call][t], count, 40 + (uint64_t)(8 * call + t), -1, 1);
        }
    }
}

static void release(sides *s)
{
    if (s->op && s->op->release)
        s->op->release(&s->kernel);
    if (s->op && s->op->store_release)
        s->op->store_release(&s->store);
    void *rooms[] = {s->params, s->packed, s->grads, s->saved, s->stats, s->scratch_room};
    for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++)
        cuda_free(rooms[k]);
    for (int t = 0; t < GPP__MAX_TENSORS; t++) {
        cuda_free(s->in[t]);
        cuda_free(s->out[t]);
        cuda_free(s->grad_in[t]);
        free(s->want_out[t]);
        for (int call = 0; call < CALLS; call++) {
            cuda_free(s->grad_out[call][t]);
            free(s->grad_y[call][t]);
            free(s->want_grad_in[call][t]);
        }
    }
    test_rig_free(s->cpu);
}

/* --- the CPU's results ------------------------------------------------------------------------ */

static void forward_cpu(sides *s)
{
    const gpp__layer *layer = s->layer;
    void *x[GPP__MAX_TENSORS] = {NULL}, *none[GPP__MAX_TENSORS] = {NULL};
    for (int t = 0; t < layer->in_count; t++) {
        x[t] = test_room(bytes_of(s, &layer->in[t]));
        test_op_fill(s->c, t, x[t], count_of(s, &layer->in[t]), 60 + (uint64_t)t, -2, 2);
    }
    need(s, test_rig_forward_tuple(s->cpu, (const void *const *)x, none), "the CPU's forward");
    for (int t = 0; t < layer->in_count; t++) {
        cuda_put(s->in[t], s->cpu->in[t], bytes_of(s, &layer->in[t]));
        free(x[t]);
    }
    for (int t = 0; t < layer->out_count; t++)
        s->want_out[t] = copy_host(s->cpu->out[t], bytes_of(s, &layer->out[t]));
}

static bool has_grad(const sides *s, int t)
{
    return s->layer->in[t].dtype == GPP_F32;
}

static void backward_cpu(sides *s, int call)
{
    const gpp__layer *layer = s->layer;
    float *grad_x[GPP__MAX_TENSORS] = {NULL};
    for (int t = 0; t < layer->in_count; t++)
        if (has_grad(s, t))
            grad_x[t] = test_room(bytes_of(s, &layer->in[t]));
    need(s,
         test_rig_backward_tuple(s->cpu, (const float *const *)s->grad_y[call], grad_x, call > 0),
         "the CPU's backward");
    for (int t = 0; t < layer->in_count; t++) {
        if (grad_x[t])
            s->want_grad_in[call][t] = copy_host(s->cpu->grad_in[t], bytes_of(s, &layer->in[t]));
        free(grad_x[t]);
    }
    for (int t = 0; t < layer->out_count; t++)
        cuda_put(s->grad_out[call][t], s->cpu->grad_out[t], bytes_of(s, &layer->out[t]));
}

/* --- calls on the device ---------------------------------------------------------------------- */

typedef struct forward_call {
    bool discard, recompute, in_place;
} forward_call;

static void forward_cuda(sides *s, forward_call how)
{
    gpp__io io = {.params = s->params, .packed = s->packed, .scratch = s->scratch};
    uint32_t absent = 0;
    io.absent = &absent;
    spoil(s->scratch, scratch_bytes(&s->kernel));
    spoil(s->packed, s->store.packed_bytes);
    if (!how.discard) {
        spoil(s->saved, s->kernel.saved_bytes);
        io.saved = s->saved;
    }
    if (s->run.training && !how.recompute) {
        spoil(s->stats, stats_bytes(s));
        io.stats = s->stats;
    }
    for (int t = 0; t < s->layer->in_count; t++)
        io.in[t] = s->in[t];
    for (int t = 0; t < s->layer->out_count; t++) {
        spoil(s->out[t], bytes_of(s, &s->layer->out[t]));
        io.out[t] = how.in_place && t == 0 ? s->in[0] : s->out[t];
    }
    s->run.recomputing = how.recompute;
    if (s->op->pack)
        need(s, s->op->pack(&s->store, &s->run, s->params, s->packed), "pack");
    need(s, s->op->forward(&s->kernel, &s->run, &io), "forward");
    s->run.recomputing = false;
    cuda_wait();
}

typedef struct backward_call {
    bool frozen, parameters_only, in_place;
} backward_call;

static void backward_cuda(sides *s, int call, backward_call how)
{
    const gpp__layer *layer = s->layer;
    gpp__io io = {.params = s->params, .packed = s->packed, .scratch = s->scratch};
    io.saved = s->saved;
    io.accumulate = call > 0;
    io.grads = how.frozen ? NULL : s->grads;
    spoil(s->scratch, scratch_bytes(&s->kernel));
    if (!io.accumulate)
        spoil(s->grads, s->store.grad_bytes);
    for (int t = 0; t < layer->in_count; t++) {
        size_t bytes = bytes_of(s, &layer->in[t]);
        io.in[t] = layer->op->backward_needs & GPP_NEEDS_INPUT ? s->in[t] : NULL;
        spoil(s->grad_in[t], bytes);
        if (layer->op->zero_grads)
            set_room(s->grad_in[t], 0, bytes);
        if (has_grad(s, t) && !how.parameters_only)
            io.grad_in[t] = how.in_place && t == 0 ? s->grad_out[call][0] : s->grad_in[t];
    }
    for (int t = 0; t < layer->out_count; t++) {
        io.out[t] = layer->op->backward_needs & GPP_NEEDS_OUTPUT ? s->out[t] : NULL;
        io.grad_out[t] = s->grad_out[call][t];
    }
    need(s, s->op->backward(&s->kernel, &s->run, &io), "backward");
    cuda_wait();
}

/* --- forwards --------------------------------------------------------------------------------- */

static void compare_stats(sides *s)
{
    size_t count = stats_bytes(s) / sizeof(double);
    double *got = malloc(stats_bytes(s) + 1), most = 0, off = 0;
    const double *want = (const double *)(const void *)s->cpu->stats;
    cuda_get(got, s->stats, stats_bytes(s));
    for (size_t k = 0; k < count; k++) {
        most = fmax(most, fabs(want[k]));
        off = fmax(off, isnan(got[k]) && !isnan(want[k]) ? INFINITY : fabs(got[k] - want[k]));
    }
    if (!(off <= s->how.tolerance * most))
        differs(s, "the record of statistics", most > 0 ? off / most : off);
    free(got);
}

static void first_forward(sides *s)
{
    char what[32];
    forward_cuda(s, (forward_call){.discard = false});
    for (int t = 0; t < s->layer->out_count; t++) {
        snprintf(what, sizeof what, "output %d", t);
        compare_room(s, what, s->out[t], s->want_out[t], count_of(s, &s->layer->out[t]));
    }
    if (s->stats && s->run.training)
        compare_stats(s);
}

/* What the first forward gave is what every other has to give. */
static void other_forward(sides *s, const char *what, forward_call how)
{
    char *first[GPP__MAX_TENSORS], *x = malloc(bytes_of(s, &s->layer->in[0]) + 1);
    cuda_get(x, s->in[0], bytes_of(s, &s->layer->in[0]));
    for (int t = 0; t < s->layer->out_count; t++) {
        first[t] = malloc(bytes_of(s, &s->layer->out[t]));
        cuda_get(first[t], s->out[t], bytes_of(s, &s->layer->out[t]));
    }
    forward_cuda(s, how);
    for (int t = 0; t < s->layer->out_count; t++) {
        size_t bytes = bytes_of(s, &s->layer->out[t]);
        same_room(s, what, how.in_place && t == 0 ? s->in[0] : s->out[t], first[t], bytes);
        cuda_put(s->out[t], first[t], bytes);
        free(first[t]);
    }
    cuda_put(s->in[0], x, bytes_of(s, &s->layer->in[0]));
    free(x);
}

static void forwards(sides *s)
{
    first_forward(s);
    cuda_order(true);
    other_forward(s, "a second forward", (forward_call){.discard = false});
    cuda_order(false);
    other_forward(s, "a forward that saves nothing", (forward_call){.discard = true});
    if (s->layer->op->in_place && s->layer->in_count > 0)
        other_forward(s, "a forward in place", (forward_call){.in_place = true});
    other_forward(s, "a forward again", (forward_call){.recompute = true});
    for (int t = 0; t < s->layer->in_count; t++)
        same_room(s, "an input after the forwards", s->in[t], s->cpu->in[t],
                  bytes_of(s, &s->layer->in[t]));
}

/* --- backwards -------------------------------------------------------------------------------- */

static void compare_grads(sides *s)
{
    const gpp__layer *layer = s->layer;
    char *plain = s->grads, *room = NULL, what[64];
    if (!s->grads)
        return;
    if (s->op->unpack_grads) {
        plain = room = cuda_room(layer->param_bytes);
        need(s, s->op->unpack_grads(&s->store, &s->run, s->grads, room), "unpack_grads");
    }
    for (int p = 0; p < layer->param_count; p++) {
        const gpp__param *param = &layer->param[p];
        float *want = malloc((size_t)param->count * sizeof *want);
        if (!param->buffer) {
            snprintf(what, sizeof what, "the gradient of %s", param->name);
            test_rig_grad(s->cpu, p, want);
            compare_room(s, what, plain + param->offset, want, param->count);
        }
        free(want);
    }
    cuda_free(room);
}

/* The gradients in the parameters' layout, to be freed. */
static char *unpacked(sides *s)
{
    char *host = test_room(s->layer->param_bytes ? s->layer->param_bytes : 1);
    if (s->grads && s->op->unpack_grads) {
        void *room = cuda_room(s->layer->param_bytes);
        need(s, s->op->unpack_grads(&s->store, &s->run, s->grads, room), "unpack_grads");
        cuda_get(host, room, s->layer->param_bytes);
        cuda_free(room);
    } else if (s->grads) {
        cuda_get(host, s->grads, s->layer->param_bytes);
    }
    return host;
}

static void first_backwards(sides *s)
{
    char what[64];
    for (int call = 0; call < CALLS; call++) {
        backward_cuda(s, call, (backward_call){.frozen = false});
        for (int t = 0; t < s->layer->in_count; t++)
            if (has_grad(s, t)) {
                snprintf(what, sizeof what, "the gradient of input %d, backward %d", t, call);
                compare_room(s, what, s->grad_in[t], s->want_grad_in[call][t],
                             count_of(s, &s->layer->in[t]));
            }
    }
    compare_grads(s);
}

static void same_unpacked(sides *s, const char *what, const char *want)
{
    char *got = unpacked(s);
    for (int p = 0; p < s->layer->param_count && s->grads; p++) {
        const gpp__param *param = &s->layer->param[p];
        if (!param->buffer && memcmp(got + param->offset, want + param->offset,
                                     (size_t)param->count * sizeof(float)) != 0) {
            s->fine = false;
            cr_expect(false, "%s: %s: the gradient of %s differs", s->name, what, param->name);
        }
    }
    free(got);
}

/* Both backwards once more; what they give is what the first two gave. */
static void other_backwards(sides *s, const char *what, backward_call how)
{
    const gpp__layer *layer = s->layer;
    char *grads = unpacked(s), *x[GPP__MAX_TENSORS];
    for (int t = 0; t < layer->in_count; t++) {
        x[t] = malloc(bytes_of(s, &layer->in[t]));
        cuda_get(x[t], s->grad_in[t], bytes_of(s, &layer->in[t]));
    }
    for (int call = 0; call < CALLS; call++)
        backward_cuda(s, call, how);
    for (int t = 0; t < layer->in_count; t++) {
        bool over = how.in_place && t == 0;
        size_t bytes = bytes_of(s, &layer->in[t]);
        if (has_grad(s, t) && !how.parameters_only)
            same_room(s, what, over ? s->grad_out[CALLS - 1][0] : s->grad_in[t], x[t], bytes);
        cuda_put(s->grad_in[t], x[t], bytes);
        free(x[t]);
    }
    if (!how.frozen)
        same_unpacked(s, what, grads);
    free(grads);
}

static void check_frozen(sides *s)
{
    size_t bytes = s->store.grad_bytes;
    char *before = malloc(bytes + 1), *grads = malloc(bytes + 1);
    memset(grads, 0xff, bytes);
    if (s->grads)
        cuda_get(before, s->grads, bytes);
    spoil(s->grads, bytes);
    other_backwards(s, "a backward without gradients of parameters",
                    (backward_call){.frozen = true});
    if (s->grads) {
        same_room(s, "gradients that are not wanted", s->grads, grads, bytes);
        cuda_put(s->grads, before, bytes);
    }
    free(before);
    free(grads);
}

static void check_in_place(sides *s)
{
    if (!s->layer->op->in_place || s->layer->in_count == 0)
        return;
    other_backwards(s, "a backward in place", (backward_call){.in_place = true});
}

static void backwards(sides *s)
{
    size_t saved_bytes = s->kernel.saved_bytes;
    char *saved = malloc(saved_bytes + 1);
    if (s->saved)
        cuda_get(saved, s->saved, saved_bytes);
    first_backwards(s);
    cuda_order(true);
    other_backwards(s, "a second backward", (backward_call){.frozen = false});
    cuda_order(false);
    if (s->grads)
        other_backwards(s, "a backward for parameters alone",
                        (backward_call){.parameters_only = true});
    same_room(s, "what was saved, after the backwards", s->saved, saved, saved_bytes);
    for (int t = 0; t < s->layer->out_count; t++)
        same_room(s, "an output's gradient after the backwards", s->grad_out[CALLS - 1][t],
                  s->cpu->grad_out[t], bytes_of(s, &s->layer->out[t]));
    check_frozen(s);
    check_in_place(s);
    free(saved);
}

/* --- commit ----------------------------------------------------------------------------------- */

/* Two records, as of two micro-batches, with a gap between them. */
static void commits(sides *s)
{
    size_t bytes = stats_bytes(s), stride = bytes + 64;
    if (bytes == 0 || !s->run.training)
        return;
    const char *both[2] = {s->cpu->stats, s->cpu->stats};
    char *records = test_room(2 * stride);
    for (int i = 0; i < 2; i++)
        memcpy(records + (size_t)i * stride, s->cpu->stats, bytes);
    char *room = cuda_copy_of(records, 2 * stride), *got = malloc(s->layer->param_bytes);
    cr_assert(s->op->commit != NULL, "%s: nothing commits the statistics", s->name);
    need(s, s->op->commit(s->layer, &s->run, 2, room, stride, s->params), "commit");
    test_rig_commit(s->cpu, 2, both);
    cuda_get(got, s->params, s->layer->param_bytes);
    for (int p = 0; p < s->layer->param_count; p++) {
        const gpp__param *param = &s->layer->param[p];
        const void *mine = got + param->offset, *its = s->cpu->params + param->offset;
        if (param->dtype == GPP_F32)
            compare(s, param->name, mine, its, param->count);
        else if (memcmp(mine, its, (size_t)param->count * gpp_dtype_size(param->dtype)) != 0)
            differs(s, param->name, 1);
    }
    cuda_free(room);
    free(records);
    free(got);
}

/* --- a case ----------------------------------------------------------------------------------- */

/* @return whether nothing differed */
static bool check_rows(const test_op_case *c, cuda_way how, int64_t rows)
{
    sides s = {.c = c, .how = how, .rows = rows, .fine = true, .err = GPP_ERROR_INIT};
    snprintf(s.name, sizeof s.name, "%s (%s, %d rows, arithmetic %d%s)", c->spec, c->why, (int)rows,
             (int)how.math, how.evaluate ? ", evaluating" : "");
    make_cpu(&s);
    make_cuda(&s);
    furnish(&s);
    forward_cpu(&s);
    forwards(&s);
    for (int call = 0; call < CALLS; call++)
        backward_cpu(&s, call);
    backwards(&s);
    if (s.params)
        same_room(&s, "the parameters", s.params, s.cpu->params, s.layer->param_bytes);
    commits(&s);
    release(&s);
    return s.fine;
}

void cuda_check(const test_op_case *c, cuda_way how)
{
    static const int64_t rows[] = {1, 2, 7, 33};
    cuda_device(how.math);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k] >= c->least && (c->most == 0 || rows[k] <= c->most))
            if (!check_rows(c, how, rows[k]))
                return; /* more of the same would not say more */
    if (c->most > 33)
        check_rows(c, how, c->most);
}
