/*
 * codelets/bare_device.c: CPU cores as a bare device (bare_device.h), and the bare device of a run.
 */
#include "codelets/bare_device.h"

#include <stdlib.h>
#include <time.h>

#ifdef GPP__WITH_CUDA
#include "codelets/cuda/bare_device.h"
#endif

struct gpp__laps {
    int64_t begin;
    int parts;
    int64_t at[]; /* [parts] 0: not noted */
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The thread that will use the memory writes it first, so the kernel places its pages nearby. */
static char *take_host(size_t bytes)
{
    size_t rounded = gpp__align(bytes ? bytes : 1);
    char *block = aligned_alloc(GPP__ALIGN, rounded);
    if (block)
        memset(block, 0, rounded);
    return block;
}

static char *take(const gpp__run *run, size_t bytes)
{
    (void)run;
    return take_host(bytes);
}

static void give(char *block)
{
    free(block);
}

static size_t large(const gpp__run *run)
{
    (void)run;
    return (size_t)32 << 20;
}

static gpp_status laps_new(gpp__laps **laps, const gpp__run *run, int count)
{
    *laps = calloc(1, sizeof **laps + (size_t)count * sizeof(*laps)->at[0]);
    return *laps ? GPP_OK : gpp__fail(run->err, GPP_ENOMEM, "times of %d operators", count);
}

static void laps_free(gpp__laps *laps)
{
    free(laps);
}

static void begin(gpp__laps *laps, int parts)
{
    memset(laps->at, 0, (size_t)parts * sizeof *laps->at);
    laps->parts = parts;
    laps->begin = now_ns();
}

static void lap(void *laps, int k)
{
    ((gpp__laps *)laps)->at[k] = now_ns();
}

static gpp_status read_laps(gpp__laps *laps, int64_t ns[])
{
    for (int k = 0; k < laps->parts; k++)
        ns[k] = laps->at[k] ? laps->at[k] - laps->begin : 0;
    return GPP_OK;
}

static const gpp__bare_device cores = {
    .take = take,
    .give = give,
    .take_host = take_host,
    .give_host = give,
    .large = large,
    .laps_new = laps_new,
    .laps_free = laps_free,
    .begin = begin,
    .lap = lap,
    .read = read_laps,
};

const gpp__bare_device *gpp__bare_device_of_gpus(void)
{
#ifdef GPP__WITH_CUDA
    return &gpp__cuda_bare_device;
#else
    return NULL;
#endif
}

const gpp__bare_device *gpp__bare_device_of(const struct gpp__cuda *cuda)
{
    return cuda ? gpp__bare_device_of_gpus() : &cores;
}
