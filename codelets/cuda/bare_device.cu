/*
 * codelets/cuda/bare_device.cu: see codelets/cuda/bare_device.h.
 *
 * Laps are events in the stream, whose times the device records when it reaches them. The host does
 * not wait between operators, so it launches the next one while one runs, as in a pipe. An event
 * itself takes a microsecond or so. This is measured as the least time between two events with
 * nothing between them, and subtracted from every lap.
 */
#include "codelets/cuda/bare_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "codelets/cuda/mover.h"

/* --- the device ------------------------------------------------------------------------------- */

static gpp_status open_gpu(int ordinal, int math, bool deterministic, struct gpp__cuda **cuda,
                           gpp_error *err)
{
    cudaStream_t stream;
    *cuda = NULL;
    (void)cudaGetLastError(); /* forget earlier failures: they are not this device's */
    gpp_status status = GPP__CUDA(cudaSetDevice(ordinal), NULL, err);
    if (!status)
        status = GPP__CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), NULL, err);
    if (status)
        return status;
    status = gpp__cuda_new(cuda, ordinal, stream, (gpp__math)math, deterministic, err);
    if (status)
        cudaStreamDestroy(stream);
    return status;
}

static void close_gpu(struct gpp__cuda *cuda)
{
    cudaStream_t stream = cuda->stream;
    cudaStreamSynchronize(stream);
    gpp__cuda_free(cuda);
    cudaStreamDestroy(stream);
}

static void name_gpu(int ordinal, char name[64])
{
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess) {
        snprintf(name, 64, "%.63s", properties.name);
        return;
    }
    (void)cudaGetLastError();
    snprintf(name, 64, "GPU");
}

/* --- memory ----------------------------------------------------------------------------------- */

static char *take(const gpp__run *run, size_t bytes)
{
    void *block;
    if (cudaMalloc(&block, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller reports it */
        return NULL;
    }
    gpp__cuda_zero(run->cuda, block, bytes, run->err);
    return (char *)block;
}

static void give(char *block)
{
    cudaFree(block);
}

static char *take_host(size_t bytes)
{
    void *block;
    if (cudaMallocHost(&block, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    memset(block, 0, bytes);
    return (char *)block;
}

static void give_host(char *block)
{
    cudaFreeHost(block);
}

/* Second-level caches have less than half a MiB a multiprocessor. */
static size_t large(const gpp__run *run)
{
    return (size_t)run->cuda->multiprocessors << 21;
}

/* --- laps ------------------------------------------------------------------------------------- */

struct gpp__laps {
    const gpp__run *run;
    int count; /* of events, not counting that of the beginning */
    int parts, noted;
    int64_t own_ns;     /* what an event itself takes */
    cudaEvent_t *event; /* [1 + count] that of the beginning, then by part */
    int *order;         /* [count] parts that were noted */
};

static void note(gpp__laps *laps, int event)
{
    GPP__CUDA(cudaEventRecord(laps->event[event], laps->run->cuda->stream), NULL, laps->run->err);
}

static void begin(gpp__laps *laps, int parts)
{
    laps->parts = parts;
    laps->noted = 0;
    note(laps, 0);
}

static void lap(void *arg, int k)
{
    gpp__laps *laps = (gpp__laps *)arg;
    laps->order[laps->noted++] = k;
    note(laps, 1 + k);
}

static gpp_status between(const gpp__laps *laps, int from, int to, int64_t *ns)
{
    float ms = 0;
    gpp_status status = GPP__CUDA(cudaEventElapsedTime(&ms, laps->event[from], laps->event[to]),
                                  NULL, laps->run->err);
    *ns = llround(1e6 * (double)ms);
    return status;
}

static gpp_status read_laps(gpp__laps *laps, int64_t ns[])
{
    gpp_status status = gpp__cuda_mover.wait(laps->run);
    int64_t at = 0;
    memset(ns, 0, (size_t)laps->parts * sizeof *ns);
    for (int q = 0; !status && q < laps->noted; q++) {
        int64_t lasted;
        status = between(laps, q ? 1 + laps->order[q - 1] : 0, 1 + laps->order[q], &lasted);
        at += lasted > laps->own_ns ? lasted - laps->own_ns : 0;
        ns[laps->order[q]] = at;
    }
    return status;
}

/* Measures own_ns: records some events with nothing between them, a few times. */
static gpp_status time_events(gpp__laps *laps, int64_t ns[])
{
    enum { TIMES = 5, MOST = 64 };
    int parts = laps->count < MOST ? laps->count : MOST;
    int64_t least = INT64_MAX;
    gpp_status status = GPP_OK;
    for (int time = 0; !status && time < TIMES; time++) {
        begin(laps, parts);
        for (int k = 0; k < parts; k++)
            lap(laps, k);
        status = read_laps(laps, ns);
        for (int k = 0; !status && k < parts; k++) {
            int64_t lasted = ns[k] - (k ? ns[k - 1] : 0);
            least = lasted < least ? lasted : least;
        }
    }
    laps->own_ns = status || least == INT64_MAX ? 0 : least;
    return status;
}

static void laps_free(gpp__laps *laps)
{
    if (!laps)
        return;
    for (int k = 0; laps->event && k <= laps->count; k++)
        if (laps->event[k])
            cudaEventDestroy(laps->event[k]);
    free(laps->event);
    free(laps->order);
    free(laps);
}

static gpp_status make_events(gpp__laps *laps)
{
    gpp_status status = GPP_OK;
    for (int k = 0; !status && k <= laps->count; k++)
        status = GPP__CUDA(cudaEventCreate(&laps->event[k]), NULL, laps->run->err);
    return status;
}

static gpp_status laps_new(gpp__laps **made, const gpp__run *run, int count)
{
    gpp__laps *laps = *made = (gpp__laps *)calloc(1, sizeof *laps);
    int64_t *ns = (int64_t *)calloc((size_t)count + 1, sizeof *ns);
    gpp_status status = GPP_OK;
    if (laps) {
        laps->run = run;
        laps->count = count;
        laps->event = (cudaEvent_t *)calloc((size_t)count + 1, sizeof *laps->event);
        laps->order = (int *)calloc((size_t)count + 1, sizeof *laps->order);
    }
    if (!laps || !ns || !laps->event || !laps->order)
        status = gpp__fail(run->err, GPP_ENOMEM, "times of %d operators", count);
    if (!status)
        status = make_events(laps);
    if (!status)
        status = time_events(laps, ns);
    free(ns);
    if (status) {
        laps_free(laps);
        *made = NULL;
    }
    return status;
}

const gpp__bare_device gpp__cuda_bare_device = {
    .mover = &gpp__cuda_mover,
    .open = open_gpu,
    .close = close_gpu,
    .name = name_gpu,
    .take = take,
    .give = give,
    .take_host = take_host,
    .give_host = give_host,
    .large = large,
    .laps_new = laps_new,
    .laps_free = laps_free,
    .begin = begin,
    .lap = lap,
    .read = read_laps,
};
