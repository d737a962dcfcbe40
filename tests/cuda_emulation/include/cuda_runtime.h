/*
 * tests/cuda_emulation/include/cuda_runtime.h: as much of the CUDA runtime as the library's kernels
 * and their hosts use, on a CPU: found in front of the toolkit's header of this name.
 *
 * A kernel is an ordinary function. GPP__LAUNCH runs the blocks of its grid one after another, and
 * a block's threads one after another, too, each from barrier to barrier (fibers.cpp). What goes
 * wrong on a device in some other order of threads is to go wrong here every time: order of threads
 * and blocks can be turned around or shuffled (fibers.cpp), shared memory is NaN when a block
 * begins, and accesses that race can be found (races.cpp).
 *
 * Device memory is the host's, but open only while a kernel, a copy or a library call runs: a host
 * that follows a device pointer ends with a segmentation fault. Names, values and signatures are
 * those of CUDA 13; what is not here is not used, atomics of floats among it on purpose.
 */
#ifndef GPP_EMULATION_CUDA_RUNTIME_H
#define GPP_EMULATION_CUDA_RUNTIME_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __cplusplus
#include <type_traits>
#endif

#define GPP_EMULATION  1
#define CUDART_VERSION 13000

#ifdef __cplusplus
extern "C" {
#endif

/* --- the host's functions --------------------------------------------------------------------- */

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999
} cudaError_t;

/** From now on memory of the host's may be used as the device's, as pipes use StarPU's. */
void gpp_emulation_any_memory(void);

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock;
    int warpSize, maxThreadsPerBlock;
    int major, minor;
    int multiProcessorCount;
    int pciBusID, pciDeviceID, pciDomainID;
};

enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0,
    cudaHostAllocPortable = 1
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

/** One device, unless GPP_EMULATION_DEVICES says how many (0: none). */
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);

cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMallocHost(void **pointer, size_t bytes);
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *pointer);
/** `device` is 0 whatever the device. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);

/** From now on threads and blocks run from the last to the first, or as usual. Results must not
 * tell. */
void gpp_emulation_order(bool descending);

#ifdef __cplusplus
} /* extern "C" */

/* --- what device code is written with --------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __constant__ static
/* Blocks run one after another, so one piece of memory serves all. In a section of its own, which
 * is filled with NaN in front of every block; compilers that leave what is in templates out of it
 * merely find less. */
#define __shared__      static __attribute__((section("gpp_shared")))
#define __syncthreads() gpp_emulation_barrier(__FILE__, __LINE__)
#define __syncwarp()    ((void)0)
#define __threadfence() ((void)0)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned X = 1, unsigned Y = 1, unsigned Z = 1) : x(X), y(Y), z(Z)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct float3 {
    float x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};

static inline float2 make_float2(float x, float y)
{
    return float2{x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}
static inline int2 make_int2(int x, int y)
{
    return int2{x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{x, y, z, w};
}
static inline double2 make_double2(double x, double y)
{
    return double2{x, y};
}

extern "C" uint3 threadIdx, blockIdx;
extern "C" dim3 blockDim, gridDim;
extern "C" void gpp_emulation_barrier(const char *file, int line);

/* Of integers alone: sums of floats would depend on who comes first. They do not race. */
#define GPP_EMULATION_ATOMIC static inline __attribute__((no_sanitize("thread")))
#define GPP_EMULATION_ATOMICS(type)                                                                \
    GPP_EMULATION_ATOMIC type atomicAdd(type *p, type x)                                           \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = (type)(old + x);                                                                      \
        return old;                                                                                \
    }                                                                                              \
    GPP_EMULATION_ATOMIC type atomicMax(type *p, type x)                                           \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = old < x ? x : old;                                                                    \
        return old;                                                                                \
    }                                                                                              \
    GPP_EMULATION_ATOMIC type atomicMin(type *p, type x)                                           \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = x < old ? x : old;                                                                    \
        return old;                                                                                \
    }                                                                                              \
    GPP_EMULATION_ATOMIC type atomicExch(type *p, type x)                                          \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = x;                                                                                    \
        return old;                                                                                \
    }                                                                                              \
    GPP_EMULATION_ATOMIC type atomicOr(type *p, type x)                                            \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = old | x;                                                                              \
        return old;                                                                                \
    }                                                                                              \
    GPP_EMULATION_ATOMIC type atomicCAS(type *p, type expected, type x)                            \
    {                                                                                              \
        type old = *p;                                                                             \
        if (old == expected)                                                                       \
            *p = x;                                                                                \
        return old;                                                                                \
    }
GPP_EMULATION_ATOMICS(int)
GPP_EMULATION_ATOMICS(unsigned)
GPP_EMULATION_ATOMICS(unsigned long long)
#undef GPP_EMULATION_ATOMICS

#define GPP_EMULATION_MIN_MAX(type)                                                                \
    static inline type min(type a, type b)                                                         \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static inline type max(type a, type b)                                                         \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
GPP_EMULATION_MIN_MAX(int)
GPP_EMULATION_MIN_MAX(unsigned)
GPP_EMULATION_MIN_MAX(long)
GPP_EMULATION_MIN_MAX(unsigned long)
GPP_EMULATION_MIN_MAX(long long)
GPP_EMULATION_MIN_MAX(unsigned long long)
#undef GPP_EMULATION_MIN_MAX
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

/* Rounded each on its own: compile without contraction (-ffp-contract=off). */
#define GPP_EMULATION_ROUNDED(type, prefix, root)                                                  \
    static inline type __##prefix##add_rn(type a, type b)                                          \
    {                                                                                              \
        return a + b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##sub_rn(type a, type b)                                          \
    {                                                                                              \
        return a - b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##mul_rn(type a, type b)                                          \
    {                                                                                              \
        return a * b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##div_rn(type a, type b)                                          \
    {                                                                                              \
        return a / b;                                                                              \
    }                                                                                              \
    static inline type __##prefix##sqrt_rn(type a)                                                 \
    {                                                                                              \
        return root(a);                                                                            \
    }
GPP_EMULATION_ROUNDED(float, f, sqrtf)
GPP_EMULATION_ROUNDED(double, d, sqrt)
#undef GPP_EMULATION_ROUNDED

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

/* Functions that a device's library computes otherwise than the host's: off by a unit in the last
 * place for about every other argument, as by the argument's bits, so that no test can demand the
 * host's. A device's are off by a few (CUDA C++ Programming Guide, "Mathematical Functions"): erfcf
 * by up to 4, tanhf and rsqrtf by 2, the others by 1; roots and divisions by none. */
static inline float gpp_emulation_off(float x, float y)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits * 2654435761u >> 31 && isfinite(y) && y != 0 ? nextafterf(y, 2 * y) : y;
}
static inline double gpp_emulation_off(double x, double y)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits * UINT64_C(0x9e3779b97f4a7c15) >> 63 && isfinite(y) && y != 0 ? nextafter(y, 2 * y)
                                                                              : y;
}
#define GPP_EMULATION_INEXACT(type, name)                                                          \
    static inline type gpp_emulation_##name(type x)                                                \
    {                                                                                              \
        return gpp_emulation_off(x, name(x));                                                      \
    }
GPP_EMULATION_INEXACT(float, expf)
GPP_EMULATION_INEXACT(float, logf)
GPP_EMULATION_INEXACT(float, log1pf)
GPP_EMULATION_INEXACT(float, expm1f)
GPP_EMULATION_INEXACT(float, tanhf)
GPP_EMULATION_INEXACT(float, erff)
GPP_EMULATION_INEXACT(float, erfcf)
GPP_EMULATION_INEXACT(double, exp)
GPP_EMULATION_INEXACT(double, log)
GPP_EMULATION_INEXACT(double, log1p)
#undef GPP_EMULATION_INEXACT
static inline float gpp_emulation_rsqrtf(float x)
{
    return gpp_emulation_off(x, 1.0f / sqrtf(x));
}
#define expf(x)   gpp_emulation_expf(x)
#define logf(x)   gpp_emulation_logf(x)
#define log1pf(x) gpp_emulation_log1pf(x)
#define expm1f(x) gpp_emulation_expm1f(x)
#define tanhf(x)  gpp_emulation_tanhf(x)
#define erff(x)   gpp_emulation_erff(x)
#define erfcf(x)  gpp_emulation_erfcf(x)
#define exp(x)    gpp_emulation_exp(x)
#define log(x)    gpp_emulation_log(x)
#define log1p(x)  gpp_emulation_log1p(x)
#define rsqrtf(x) gpp_emulation_rsqrtf(x)

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}
static inline float __int_as_float(int bits)
{
    return __uint_as_float((unsigned)bits);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

/* --- launching -------------------------------------------------------------------------------- */

extern "C" void gpp_emulation_run(const char *kernel, dim3 grid, dim3 block, cudaStream_t stream,
                                  void (*thread)(void *), void *closure);
/** Ends the program when a pointer given to `what` is the host's. */
extern "C" void gpp_emulation_device(const char *what, const void *pointer);

template <class T> static inline void gpp_emulation_argument(const char *kernel, T *const &pointer)
{
    gpp_emulation_device(kernel, (const void *)pointer);
}
template <class T> static inline void gpp_emulation_argument(const char *, const T &)
{
}

template <class Thread, class... Arguments>
static inline void gpp_emulation_launch(const char *kernel, dim3 grid, dim3 block,
                                        cudaStream_t stream, Thread &&thread,
                                        const Arguments &...argument)
{
    (gpp_emulation_argument(kernel, argument), ...);
    gpp_emulation_run(
        kernel, grid, block, stream,
        [](void *closure) {
            (*static_cast<typename std::remove_reference<Thread>::type *>(closure))();
        },
        &thread);
}

#define GPP__LAUNCH(kernel, blocks, threads, cuda, ...)                                            \
    gpp_emulation_launch(                                                                          \
        #kernel, dim3(blocks), dim3(threads), (cuda)->stream, [&] { kernel(__VA_ARGS__); },        \
        __VA_ARGS__)

#endif
#endif
