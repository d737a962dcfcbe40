/*
 * graph/data/loader.c: mini-batches gathered ahead of the pipeline.
 *
 * The mini-batches of all epochs are one sequence. Slot k % slots holds the k-th mini-batch since
 * the last seek. The caller has taken `taken` mini-batches, and the last `lent` of them are still
 * lent to it. The thread has filled `filled` slots and stays at most `ahead` in front:
 *
 *     taken - lent ... taken - 1   taken ... filled - 1   filled
 *     lent                         ready                  being filled, when filled - taken < ahead
 *
 * So ahead + lent slots are enough, and the thread never writes to a slot that is lent or ready. A
 * seek starts a new sequence. Its number, `turn`, tells the thread that the mini-batch in hand is
 * no longer wanted.
 *
 * Only the caller's thread uses the caller's position (epoch, index). The mutex guards what both
 * threads use, except the tensors' rows, and `turn`, which the thread reads between two rows.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/ints.h"
#include "base/status.h"
#include <gridpipe/data.h>

#include "codelets/cpu/philox.h"

enum { MOST_AHEAD = 1000 };

/* A training begins here at the latest: numbers of the epochs that follow must not overflow. */
#define LAST_EPOCH (INT64_C(1) << 62)

/* --- the order of an epoch -------------------------------------------------------------------- */

/* A uniform number in 0 ... bound-1: the high word of a product with 64 random bits (Lemire, "Fast
 * random integer generation in an interval", arXiv 1805.10941). Its bias is below bound / 2^64. */
static int64_t below(uint64_t seed, int64_t epoch, int64_t draw, int64_t bound)
{
    uint64_t hi =
        (uint64_t)GPP__STREAM_SHUFFLE << 56 | ((uint64_t)epoch & UINT64_C(0xffffffffffffff));
    gpp__philox r = gpp__philox4x32(seed, hi, (uint64_t)draw);
    uint64_t bits = (uint64_t)r.v[1] << 32 | r.v[0];
    return (int64_t)((unsigned __int128)bits * (uint64_t)bound >> 64);
}

void gpp_shuffle(uint64_t seed, int64_t epoch, int64_t rows, int64_t order[])
{
    for (int64_t k = 0; k < rows; k++)
        order[k] = k;
    for (int64_t k = rows - 1; k > 0; k--) {
        int64_t other = below(seed, epoch, k, k + 1), keep = order[k];
        order[k] = order[other];
        order[other] = keep;
    }
}

/* --- the loader ------------------------------------------------------------------------------- */

typedef struct source {
    gpp_tensor tensor; /* the caller's */
    size_t row;        /* bytes of a row */
    size_t offset;     /* where its rows begin in a slot */
} source;

struct gpp_loader {
    gpp_loader_options options;
    int count, slots;
    int64_t rows, batch; /* rows of an epoch and of a mini-batch; batch <= rows */
    int64_t length;      /* mini-batches of an epoch */
    source source[GPP_MAX_TENSORS];
    char *slot; /* [slots * slot_bytes] */
    size_t slot_bytes;

    /* Used by the caller's thread only: */
    int64_t epoch, index;
    int64_t waits;
    double waited_ms;

    /* Used by the loader's thread only: */
    pthread_t thread;
    int64_t *order; /* [rows] order of the rows in order_epoch; NULL: no shuffling */
    int64_t order_epoch;

    pthread_mutex_t mutex;
    pthread_cond_t filled_one, wanted_one;
    int64_t taken, filled;
    int64_t next_epoch, next_index; /* the mini-batch that is filled next */
    bool stop;
    _Atomic int64_t turn;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int64_t rows_of(const gpp_loader *l, int64_t index)
{
    int64_t left = l->rows - index * l->batch;
    return left < l->batch ? left : l->batch;
}

static char *part(const gpp_loader *l, int64_t k, int t)
{
    return l->slot + (size_t)(k % l->slots) * l->slot_bytes + l->source[t].offset;
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Which of a mini-batch's rows are read. */
static void find_part(const gpp_loader *l, int64_t rows, int64_t *begin, int64_t *end)
{
    const gpp_part *part = &l->options.part;
    int64_t each = 0, last;
    *begin = 0;
    *end = rows;
    if (!part->chunks)
        return;
    gpp__chunk(rows, part->chunks, &each, &last);
    *begin = part->first * each < rows ? part->first * each : rows;
    *end = part->end * each < rows ? part->end * each : rows;
}

/* Fills the slot of mini-batch `k` of the sequence. Gives up when another turn has begun. */
static void gather(gpp_loader *l, int64_t k, int64_t epoch, int64_t index, int64_t turn)
{
    int64_t first = index * l->batch, begin, end;
    find_part(l, rows_of(l, index), &begin, &end);
    if (l->order && epoch != l->order_epoch) {
        gpp_shuffle(l->options.seed, epoch, l->rows, l->order);
        l->order_epoch = epoch;
    }
    for (int64_t r = begin; r < end && turn == atomic_load_explicit(&l->turn, memory_order_relaxed);
         r++) {
        size_t from = (size_t)(l->order ? l->order[first + r] : first + r);
        for (int t = 0; t < l->count; t++) {
            const source *s = &l->source[t];
            if (s->row)
                memcpy(part(l, k, t) + (size_t)r * s->row,
                       (const char *)s->tensor.data + from * s->row, s->row);
        }
    }
}

/* Fills one slot. The caller holds the mutex; it is free while rows are copied, so the caller of
 * the loader is not held up. A slot that was filled for an old turn is not counted. */
static void fill_one(gpp_loader *l)
{
    int64_t turn = atomic_load(&l->turn), k = l->filled, epoch = l->next_epoch,
            index = l->next_index;
    pthread_mutex_unlock(&l->mutex);
    gather(l, k, epoch, index, turn);
    pthread_mutex_lock(&l->mutex);
    if (turn != atomic_load(&l->turn))
        return;
    l->filled++;
    l->next_index++;
    pthread_cond_signal(&l->filled_one);
}

static void *loader_main(void *arg)
{
    gpp_loader *l = arg;
    pthread_mutex_lock(&l->mutex);
    while (!l->stop) {
        if (l->next_index >= l->length && l->length) {
            l->next_epoch++;
            l->next_index = 0;
        }
        if (l->length && l->filled - l->taken < l->options.ahead)
            fill_one(l);
        else
            pthread_cond_wait(&l->wanted_one, &l->mutex);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

/* The thread blocks all signals: handling them is for the application's own threads. */
static int start_thread(gpp_loader *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&l->thread, NULL, loader_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

/* --- making one ------------------------------------------------------------------------------- */

static gpp_status check_options(const gpp_loader_options *o, gpp_error *err)
{
    if (o->struct_size != sizeof *o)
        return gpp__fail(err, GPP_EINVAL,
                         "options must start from GPP_LOADER_OPTIONS_INIT (struct_size is %zu)",
                         o->struct_size);
    if (o->batch < 1)
        return gpp__fail(err, GPP_EINVAL, "a mini-batch of %" PRId64 " rows, 1 or more expected",
                         o->batch);
    if (o->ahead < 1 || o->ahead > MOST_AHEAD)
        return gpp__fail(err, GPP_EINVAL, "%d mini-batches ahead, 1 to %d expected", o->ahead,
                         MOST_AHEAD);
    if (o->lent < 1 || o->lent > MOST_AHEAD)
        return gpp__fail(err, GPP_EINVAL, "%d mini-batches lent at once, 1 to %d expected", o->lent,
                         MOST_AHEAD);
    if (o->epoch < 0 || o->epoch > LAST_EPOCH)
        return gpp__fail(err, GPP_EINVAL, "epoch %" PRId64 ", 0 to 2^62 expected", o->epoch);
    const gpp_part *part = &o->part;
    if (part->chunks < 0 || part->first < 0 || part->end < part->first || part->end > part->chunks)
        return gpp__fail(err, GPP_EINVAL, "a part of chunks %d to %d of %d", part->first, part->end,
                         part->chunks);
    return GPP_OK;
}

/* Sets the bytes of a row. All bytes of the tensor together must be addressable. */
static gpp_status measure(source *s, int t, gpp_error *err)
{
    const gpp_tensor *x = &s->tensor;
    size_t all;
    s->row = gpp_dtype_size(x->dtype);
    if (!s->row || x->rank < 1 || x->rank > GPP_MAX_RANK)
        return gpp__fail(err, GPP_ESHAPE,
                         "tensor %d of a loader has type %d and rank %d; float32 or int64 and rank "
                         "1 to %d expected",
                         t, (int)x->dtype, x->rank, GPP_MAX_RANK);
    for (int k = 0; k < x->rank; k++)
        if (x->dim[k] < 0 || (k && !gpp__mul(s->row, (size_t)x->dim[k], &s->row)))
            return gpp__fail(err, GPP_ESHAPE,
                             "tensor %d of a loader: dimension %d is %" PRId64
                             ", which is negative or too large",
                             t, k, x->dim[k]);
    if (!gpp__mul(s->row, (size_t)x->dim[0], &all) || all > PTRDIFF_MAX)
        return gpp__fail(err, GPP_ESHAPE, "tensor %d of a loader: %" PRId64 " rows of %zu bytes", t,
                         x->dim[0], s->row);
    if (all && !x->data)
        return gpp__fail(err, GPP_EINVAL, "tensor %d of a loader has %zu bytes, but data is NULL",
                         t, all);
    return GPP_OK;
}

/* Lays out a slot. Its size cannot overflow: the tensors' own sizes do not, and a mini-batch has no
 * more rows than they have. */
static gpp_status take_tensors(gpp_loader *l, const gpp_tensor tensors[], gpp_error *err)
{
    l->rows = tensors[0].dim[0];
    l->batch = l->options.batch < l->rows ? l->options.batch : l->rows;
    for (int t = 0; t < l->count; t++) {
        source *s = &l->source[t];
        s->tensor = tensors[t];
        gpp_status status = measure(s, t, err);
        if (status)
            return status;
        if (s->tensor.dim[0] != l->rows)
            return gpp__fail(err, GPP_ESHAPE,
                             "tensor %d of a loader has %" PRId64 " rows, tensor 0 has %" PRId64, t,
                             s->tensor.dim[0], l->rows);
        s->offset = l->slot_bytes;
        if (!gpp__add(l->slot_bytes, gpp__align(s->row * (size_t)l->batch), &l->slot_bytes))
            return gpp__fail(err, GPP_ENOMEM, "mini-batches of a loader: too large");
    }
    if (l->batch)
        l->length = l->options.drop_last ? l->rows / l->options.batch
                                         : l->rows / l->batch + (l->rows % l->batch != 0);
    return GPP_OK;
}

static void *get_slots(const gpp_loader *l, size_t bytes)
{
    void *memory = NULL;
    if (!l->options.pinned)
        return aligned_alloc(GPP__ALIGN, bytes ? bytes : GPP__ALIGN);
    gpp_host_memory_new(&memory, bytes, NULL);
    return memory;
}

static gpp_status allocate(gpp_loader *l, gpp_error *err)
{
    size_t bytes = 0;
    l->slots = l->options.ahead + l->options.lent;
    if (!gpp__mul((size_t)l->slots, l->slot_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return gpp__fail(err, GPP_ENOMEM, "%d mini-batches of %zu bytes", l->slots, l->slot_bytes);
    l->slot = get_slots(l, bytes);
    if (!l->slot)
        return gpp__fail(err, GPP_ENOMEM, "%d mini-batches of %zu bytes", l->slots, l->slot_bytes);
    if (!l->options.shuffle)
        return GPP_OK;
    l->order_epoch = -1;
    l->order = calloc((size_t)l->rows + 1, sizeof *l->order);
    if (!l->order)
        return gpp__fail(err, GPP_ENOMEM, "the order of %" PRId64 " rows", l->rows);
    return GPP_OK;
}

static void release_memory(gpp_loader *l)
{
    free(l->order);
    if (l->options.pinned)
        gpp_host_memory_free(l->slot);
    else
        free(l->slot);
    free(l);
}

static gpp_status start(gpp_loader *l, gpp_error *err)
{
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->filled_one, NULL);
    pthread_cond_init(&l->wanted_one, NULL);
    int code = start_thread(l);
    if (!code)
        return GPP_OK;
    pthread_cond_destroy(&l->wanted_one);
    pthread_cond_destroy(&l->filled_one);
    pthread_mutex_destroy(&l->mutex);
    return gpp__fail(err, GPP_ENOMEM, "a loader's thread could not be started: %s", strerror(code));
}

gpp_status gpp_loader_new(gpp_loader **out, const gpp_tensor tensors[], int count,
                          const gpp_loader_options *options, gpp_error *err)
{
    static const gpp_loader_options defaults = GPP_LOADER_OPTIONS_INIT;
    const gpp_loader_options *o = options ? options : &defaults;
    if (out)
        *out = NULL;
    if (!out || !tensors)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", out ? "tensors" : "loader");
    if (count < 1 || count > GPP_MAX_TENSORS)
        return gpp__fail(err, GPP_EINVAL, "a loader of %d tensors, 1 to %d expected", count,
                         GPP_MAX_TENSORS);
    gpp_status status = check_options(o, err);
    if (status)
        return status;
    gpp_loader *l = calloc(1, sizeof *l);
    if (!l)
        return gpp__fail(err, GPP_ENOMEM, "a loader");
    l->options = *o;
    l->count = count;
    l->epoch = l->next_epoch = o->epoch;
    status = take_tensors(l, tensors, err);
    if (!status)
        status = allocate(l, err);
    if (!status)
        status = start(l, err);
    if (status)
        release_memory(l);
    else
        *out = l;
    return status;
}

void gpp_loader_free(gpp_loader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    atomic_fetch_add(&l->turn, 1);
    pthread_cond_signal(&l->wanted_one);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->wanted_one);
    pthread_cond_destroy(&l->filled_one);
    pthread_mutex_destroy(&l->mutex);
    release_memory(l);
}

/* --- using it --------------------------------------------------------------------------------- */

static void lend(const gpp_loader *l, int64_t k, gpp_tensor batch[])
{
    for (int t = 0; t < l->count; t++) {
        batch[t] = l->source[t].tensor;
        batch[t].data = part(l, k, t);
        batch[t].dim[0] = rows_of(l, l->index);
    }
}

gpp_status gpp_loader_next(gpp_loader *l, gpp_tensor batch[], gpp_error *err)
{
    if (!l || !batch)
        return gpp__fail(err, GPP_EINVAL, "the next mini-batch: loader or batch is NULL");
    if (l->index >= l->length) {
        l->epoch++;
        l->index = 0;
        return GPP_ENOENT;
    }
    pthread_mutex_lock(&l->mutex);
    if (l->filled == l->taken) {
        double since = now_ms();
        while (l->filled == l->taken)
            pthread_cond_wait(&l->filled_one, &l->mutex);
        l->waits++;
        l->waited_ms += now_ms() - since;
    }
    int64_t k = l->taken++;
    pthread_cond_signal(&l->wanted_one);
    pthread_mutex_unlock(&l->mutex);
    lend(l, k, batch);
    l->index++;
    return GPP_OK;
}

gpp_status gpp_loader_seek(gpp_loader *l, int64_t epoch, int64_t index, gpp_error *err)
{
    if (!l)
        return gpp__fail(err, GPP_EINVAL, "loader is NULL");
    if (epoch < 0 || epoch > LAST_EPOCH || index < 0 || index > l->length)
        return gpp__fail(err, GPP_EINVAL,
                         "seeking epoch %" PRId64 ", mini-batch %" PRId64
                         "; 0 to 2^62, and 0 to %" PRId64 " expected",
                         epoch, index, l->length);
    l->epoch = epoch;
    l->index = index;
    pthread_mutex_lock(&l->mutex);
    atomic_fetch_add(&l->turn, 1);
    l->taken = l->filled = 0;
    l->next_epoch = epoch;
    l->next_index = index;
    pthread_cond_signal(&l->wanted_one);
    pthread_mutex_unlock(&l->mutex);
    return GPP_OK;
}

void gpp_loader_position(const gpp_loader *l, int64_t *epoch, int64_t *index)
{
    if (epoch)
        *epoch = l->epoch;
    if (index)
        *index = l->index;
}

void gpp_loader_waits(const gpp_loader *l, int64_t *waits, double *milliseconds)
{
    if (waits)
        *waits = l->waits;
    if (milliseconds)
        *milliseconds = l->waited_ms;
}
