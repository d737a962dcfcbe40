/*
 * codelets/cuda/mover.cu: see mover.h.
 *
 * A copy or a fill that CUDA refuses leaves an error behind, as a launch does, and `check` finds
 * it. Host memory may be pageable. CUDA then reads it before the call returns, and has written it
 * when the stream has been waited for.
 */
#include "codelets/cuda/mover.h"

#include "codelets/cuda/norms.h"

static void begin(const gpp__run *run)
{
    (void)run;
    (void)cudaGetLastError();
}

static void zero(const gpp__run *run, void *to, size_t bytes)
{
    gpp__cuda_zero(run->cuda, to, bytes, run->err);
}

static void copy(const gpp__run *run, void *to, const void *from, size_t bytes)
{
    if (bytes > 0 && to != from)
        GPP__CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, run->cuda->stream), NULL,
                  run->err);
}

static void add(const gpp__run *run, float *sum, const float *x, int64_t count)
{
    gpp__cuda_accumulate(run->cuda, sum, x, count, run->err);
}

static gpp_status check(const gpp__run *run)
{
    if (run->err && run->err->code != GPP_OK)
        return run->err->code;
    return gpp__cuda_launched(NULL, run->err);
}

static gpp_status wait(const gpp__run *run)
{
    gpp_status status = GPP__CUDA(cudaStreamSynchronize(run->cuda->stream), NULL, run->err);
    return status == GPP_OK ? check(run) : status;
}

static void *stream(const gpp__run *run)
{
    return run->cuda->stream;
}

static gpp_status squares(const gpp__run *run, const float *x, int64_t count, double *sum,
                          void *room)
{
    return gpp__cuda_squares(run->cuda, x, count, sum, room, run->err);
}

static gpp_status clip(const gpp__run *run, const double *sums, int64_t count, double clip_norm,
                       bool skip_nonfinite, float *factor)
{
    return gpp__cuda_clip_factor(run->cuda, sums, count, clip_norm, skip_nonfinite, factor,
                                 run->err);
}

const struct gpp__mover gpp__cuda_mover = {
    .begin = begin,
    .zero = zero,
    .copy = copy,
    .add = add,
    .check = check,
    .wait = wait,
    .stream = stream,
    .squares = squares,
    .squares_room = gpp__cuda_squares_room,
    .clip = clip,
};
