/*
 * graph/data/host_memory.c: memory of the host that GPUs copy from and to without a detour.
 *
 * CUDA copies pageable memory through a page-locked buffer of its own. Memory that is page-locked
 * already it copies directly, while kernels run (CUDA C++ Programming Guide, "Page-Locked Host
 * Memory"). A cache line in front of every piece says how to free it. So there is no list of
 * pieces, and no lock.
 */
#include <stdlib.h>

#include "base/status.h"
#include <gridpipe/data.h>

/* Stands in GPP__ALIGN bytes, so that the memory behind it is aligned, too. */
typedef struct front {
    bool locked;
} front;

/* CMake defines this where pipes may be on GPUs, emulated ones included. */
#ifdef GPP__WITH_CUDA

#include <cuda_runtime.h>

#include "codelets/cuda/current.h"

static bool has_gpu(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess)
        return count > 0;
    cudaGetLastError(); /* forget the failure: no later call is to report it as its own */
    return false;
}

/* Page-locked memory that every GPU may use. NULL: there is no GPU, or no more such memory. */
static void *get_locked(size_t bytes)
{
    void *memory = NULL;
    if (!has_gpu())
        return NULL;
    int before = gpp__gpu_current();
    cudaSetDevice(gpp__gpu_in_use());
    cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    gpp__gpu_restore(before);
    if (code == cudaSuccess)
        return memory;
    cudaGetLastError();
    gpp__log(GPP_LOG_WARN, "%zu bytes for copies to GPUs cannot be page-locked: %s (%s)", bytes,
             cudaGetErrorName(code), cudaGetErrorString(code));
    return NULL;
}

static void free_locked(void *memory)
{
    if (cudaFreeHost(memory) != cudaSuccess)
        cudaGetLastError(); /* the program ends, and CUDA has shut down already */
}

#else

static void *get_locked(size_t bytes)
{
    (void)bytes;
    return NULL;
}

static void free_locked(void *memory)
{
    (void)memory;
}

#endif

gpp_status gpp_host_memory_new(void **memory, size_t bytes, gpp_error *err)
{
    if (!memory)
        return gpp__fail(err, GPP_EINVAL, "where to put host memory is NULL");
    *memory = NULL;
    if (bytes > PTRDIFF_MAX - 2 * GPP__ALIGN)
        return gpp__fail(err, GPP_ENOMEM, "%zu bytes of host memory", bytes);
    size_t all = GPP__ALIGN + gpp__align(bytes);
    front *f = get_locked(all);
    bool locked = f;
    if (!f)
        f = aligned_alloc(GPP__ALIGN, all);
    if (!f)
        return gpp__fail(err, GPP_ENOMEM, "%zu bytes of host memory", bytes);
    f->locked = locked;
    *memory = (char *)f + GPP__ALIGN;
    return GPP_OK;
}

void gpp_host_memory_free(void *memory)
{
    if (!memory)
        return;
    front *f = (front *)(void *)((char *)memory - GPP__ALIGN);
    if (f->locked)
        free_locked(f);
    else
        free(f);
}
