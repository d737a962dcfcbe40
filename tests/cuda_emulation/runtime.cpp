/*
 * tests/cuda_emulation/runtime.cpp: devices, errors, streams and events. Everything a stream is
 * given is done at once, so there is nothing to wait for but what memory.cpp puts off; an event is
 * a time.
 */
#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct CUevent_st {
    double at; /* milliseconds */
};

static thread_local cudaError_t last_error = cudaSuccess;
static thread_local int device_of_thread;

namespace gpp_emulation
{

void remember(cudaError_t error)
{
    if (last_error == cudaSuccess)
        last_error = error;
}

int current_device()
{
    return device_of_thread;
}

void begin_on(cudaStream_t stream)
{
    if (!stream || stream->waits)
        finish_default_stream();
}

handle::handle() : stream(nullptr), device(device_of_thread)
{
}

handle_use::handle_use(const char *what, handle *h) : of(h)
{
    if (h->used.test_and_set())
        stop("%s: another thread is using this handle", what);
    if (!any_memory() &&
        (h->device != device_of_thread || (h->stream && h->stream->device != device_of_thread)))
        stop("%s: the handle is of device %d, its stream of device %d, and device %d is current",
             what, h->device, h->stream ? h->stream->device : h->device, device_of_thread);
    begin_on(h->stream);
}

handle_use::~handle_use()
{
    of->used.clear();
}

float from_bf16(uint16_t bits)
{
    return __uint_as_float((unsigned)bits << 16);
}

uint16_t to_bf16(float x)
{
    unsigned bits = __float_as_uint(x);
    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float to_tf32(float x)
{
    unsigned bits = __float_as_uint(x);
    if (!isfinite(x))
        return x;
    return __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

} // namespace gpp_emulation

static cudaError_t failed(cudaError_t error)
{
    gpp_emulation::remember(error);
    return error;
}

/* --- errors ----------------------------------------------------------------------------------- */

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (const auto &known : errors)
        if (known.code == error)
            return known.name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (const auto &known : errors)
        if (known.code == error)
            return known.text;
    return "unknown error";
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

/* --- devices ---------------------------------------------------------------------------------- */

static int devices(void)
{
    const char *given = getenv("GPP_EMULATION_DEVICES");
    return given ? atoi(given) : 1;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = devices();
    return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = device_of_thread;
    return devices() > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (devices() == 0)
        return failed(cudaErrorNoDevice);
    if (device < 0 || device >= devices())
        return failed(cudaErrorInvalidDevice);
    device_of_thread = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    if (device < 0 || device >= devices())
        return failed(cudaErrorInvalidDevice);
    size_t left;
    memset(prop, 0, sizeof *prop);
    strcpy(prop->name, "emulated device");
    cudaMemGetInfo(&left, &prop->totalGlobalMem);
    prop->sharedMemPerBlock = 48 << 10;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->major = 9;
    prop->multiProcessorCount = 4;
    prop->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceProperties(&prop, device);
    if (error)
        return error;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = prop.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)prop.sharedMemPerBlock;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = prop.warpSize;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = prop.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = prop.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = prop.minor;
        return cudaSuccess;
    }
    return failed(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    if (device < 0 || device >= devices())
        return failed(cudaErrorInvalidDevice);
    return snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1) < size
               ? cudaSuccess
               : failed(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize(void)
{
    gpp_emulation::finish_default_stream();
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = devices() > 0 ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* --- streams, events -------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    if (devices() == 0)
        return failed(cudaErrorNoDevice);
    *stream = new CUstream_st{device_of_thread, flags != cudaStreamNonBlocking};
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (!stream)
        gpp_emulation::finish_default_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new CUevent_st{0};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->at = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    *milliseconds = (float)(end->at - begin->at);
    return cudaSuccess;
}
