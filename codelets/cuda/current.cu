/*
 * codelets/cuda/current.cu: see current.h. Only CUDA's driver says whether a GPU has a context.
 * Programs are not linked to the driver, but the runtime has loaded it.
 */
#include "codelets/cuda/current.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

typedef int (*context_state)(int gpu, unsigned *flags, int *active); /* CUresult, CUdevice */

/* cuDevicePrimaryCtxGetState; NULL: there is no driver. */
static context_state ask_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver)
        return NULL;
    context_state state = (context_state)dlsym(driver, "cuDevicePrimaryCtxGetState");
    dlclose(driver); /* the runtime keeps it */
    return state;
}

static bool is_used(int gpu)
{
    unsigned flags;
    int active = 0;
    context_state state = ask_driver();
    return !state || state(gpu, &flags, &active) != 0 || active != 0;
}

int gpp__gpu_current(void)
{
    int gpu = -1;
    if (cudaGetDevice(&gpu) == cudaSuccess)
        return gpu;
    (void)cudaGetLastError();
    return -1;
}

void gpp__gpu_restore(int gpu)
{
    if (gpu >= 0 && gpu != gpp__gpu_current() && is_used(gpu))
        cudaSetDevice(gpu);
}

int gpp__gpu_in_use(void)
{
    int current = gpp__gpu_current(), count = 0;
    if (current < 0 || is_used(current) || cudaGetDeviceCount(&count) != cudaSuccess)
        return current;
    for (int gpu = 0; gpu < count; gpu++)
        if (is_used(gpu))
            return gpu;
    return current;
}
