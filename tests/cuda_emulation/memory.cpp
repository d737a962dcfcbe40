/*
 * tests/cuda_emulation/memory.cpp: device memory.
 *
 * One range of addresses that nobody can touch but while something of the device runs. Allocations
 * are cut from it, the first gap that is large enough, each on a boundary of 256 bytes as
 * cudaMalloc's and with a fence behind it: bytes of one value that are looked at whenever the
 * device has run, or, under AddressSanitizer, that may not be touched. What is allocated is NaN,
 * and so is what is freed.
 *
 * Functions without a stream use the default one, and do not wait where CUDA's need not: streams
 * that are not to wait for it find memory as it was before.
 */
#include "emulation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <utility>
#include <vector>

#ifdef GPP_EMULATION_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace
{

const size_t room = (size_t)4 << 30, fence = 256, grain = 256, page = 4096;
const unsigned char fence_value = 0xa5;

std::recursive_mutex lock;
bool all_memory; /* is the device's */
char *base;
size_t used; /* bytes from base that ever were allocated, whole pages */
int openings;
std::map<char *, size_t> allocations; /* first byte, bytes */

size_t whole(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Where the processor has protection keys, one opens and closes all pages for its thread at once,
 * without a call of the kernel's for each page. -1: there is none. */
int key()
{
    static const int allocated = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return allocated;
}

void protect(bool open)
{
    if (key() >= 0)
        pkey_set(key(), open ? 0 : PKEY_DISABLE_ACCESS);
    else if (used > 0 && mprotect(base, used, open ? PROT_READ | PROT_WRITE : PROT_NONE))
        gpp_emulation::stop("mprotect failed");
}

void grow(size_t bytes)
{
    if (bytes <= used)
        return;
    used = whole(bytes, page);
    if (key() >= 0 && pkey_mprotect(base, used, PROT_READ | PROT_WRITE, key()))
        gpp_emulation::stop("pkey_mprotect failed");
    protect(openings > 0);
}

/* The first gap for `bytes`; NULL: no room. */
char *gap(size_t bytes)
{
    char *begin = base;
    for (const auto &next : allocations) {
        if ((size_t)(next.first - begin) >= bytes)
            return begin;
        begin = next.first + whole(next.second + fence, grain);
    }
    return (size_t)(base + room - begin) >= bytes ? begin : nullptr;
}

void fill(char *begin, size_t bytes)
{
    gpp_emulation::fill_with_nan(begin, bytes);
#ifdef GPP_EMULATION_ASAN
    __asan_poison_memory_region(begin + bytes, fence);
#else
    memset(begin + bytes, fence_value, fence);
#endif
}

#ifndef GPP_EMULATION_ASAN
bool is_whole(const char *begin)
{
    static const std::vector<char> want(fence, (char)fence_value);
    return memcmp(begin, want.data(), fence) == 0;
}

void check_fences(const char *what)
{
    for (const auto &one : allocations)
        if (!is_whole(one.first + one.second))
            for (size_t k = 0; k < fence; k++)
                if ((unsigned char)one.first[one.second + k] != fence_value)
                    gpp_emulation::stop("%s wrote %zu bytes behind an allocation of %zu bytes",
                                        what, k, one.second);
}
#endif

/* --- the default stream ----------------------------------------------------------------------- */

/* To be done. `from` empty: `value` is set. */
struct job {
    char *to;
    size_t bytes;
    int value;
    std::vector<char> from;
};
std::vector<job> jobs;

void put_off(job one)
{
    std::lock_guard<std::recursive_mutex> alone(lock);
    jobs.push_back(std::move(one));
    if (all_memory)
        gpp_emulation::finish_default_stream();
}

} // namespace

namespace gpp_emulation
{

void finish_default_stream()
{
    std::lock_guard<std::recursive_mutex> alone(lock);
    if (jobs.empty())
        return;
    opened open("the default stream");
    for (const job &one : jobs)
        if (one.from.empty())
            memset(one.to, one.value, one.bytes);
        else
            memcpy(one.to, one.from.data(), one.bytes);
    jobs.clear();
}

bool any_memory()
{
    return all_memory;
}

opened::opened(const char *name) : what(name), alone(lock)
{
    if (openings++ == 0)
        protect(true);
}

opened::~opened()
{
    if (--openings > 0)
        return;
#ifndef GPP_EMULATION_ASAN
    check_fences(what);
#else
    (void)what;
#endif
    protect(false);
}

bool is_device(const void *pointer, size_t bytes)
{
    if (all_memory)
        return true;
    std::lock_guard<std::recursive_mutex> alone(lock);
    char *p = (char *)pointer;
    auto next = allocations.upper_bound(p);
    if (next == allocations.begin())
        return false;
    --next;
    size_t at = (size_t)(p - next->first);
    return at <= next->second && bytes <= next->second - at;
}

void need_device(const char *what, const void *pointer, size_t bytes)
{
    if (bytes > 0 && !is_device(pointer, bytes))
        stop("%s: %zu bytes at %p are not in one allocation of the device", what, bytes, pointer);
}

void spoil(const char *what, void *workspace, size_t bytes)
{
    if (bytes == 0)
        return;
    need_device(what, workspace, bytes);
    fill_with_nan(workspace, bytes);
}

/* Of what is large both ends have to do: pages that nobody touches cost nothing. */
void fill_with_nan(void *memory, size_t bytes)
{
    const size_t end = (size_t)256 << 10;
    if (bytes <= 2 * end) {
        memset(memory, 0xff, bytes);
        return;
    }
    memset(memory, 0xff, end);
    memset((char *)memory + bytes - end, 0xff, end);
}

void stop(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("CUDA emulation: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

} // namespace gpp_emulation

void gpp_emulation_device(const char *what, const void *pointer)
{
    if (pointer && !gpp_emulation::is_device(pointer, 0))
        gpp_emulation::stop("%s: an argument is %p, which is no device memory", what, pointer);
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> alone(lock);
    *pointer = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    if (!base) {
        void *range =
            mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED)
            gpp_emulation::stop("no address space");
        base = (char *)range;
        gpp_emulation::watch_memory(base, room);
    }
    char *begin = bytes < room ? gap(whole(bytes + fence, grain)) : nullptr;
    if (!begin) {
        gpp_emulation::remember(cudaErrorMemoryAllocation);
        return cudaErrorMemoryAllocation;
    }
    grow((size_t)(begin - base) + whole(bytes + fence, grain));
    gpp_emulation::opened open("cudaMalloc");
    fill(begin, bytes);
    allocations[begin] = bytes;
    *pointer = begin;
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
    if (!pointer)
        return cudaSuccess;
    gpp_emulation::finish_default_stream();
    gpp_emulation::opened open("cudaFree");
    auto found = allocations.find((char *)pointer);
    if (found == allocations.end()) {
        gpp_emulation::remember(cudaErrorInvalidValue);
        return cudaErrorInvalidValue;
    }
#ifdef GPP_EMULATION_ASAN
    __asan_unpoison_memory_region(found->first + found->second, fence);
#endif
    gpp_emulation::fill_with_nan(pointer, found->second);
    allocations.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t)
{
    return cudaMalloc(pointer, bytes);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t)
{
    return cudaFree(pointer);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    std::lock_guard<std::recursive_mutex> alone(lock);
    *total = *left = room;
    for (const auto &one : allocations)
        *left -= whole(one.second + fence, grain);
    return cudaSuccess;
}

void gpp_emulation_any_memory(void)
{
    all_memory = true;
}

/* --- copies ----------------------------------------------------------------------------------- */

static void check_ends(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault || all_memory)
        return;
    if (to_device != gpp_emulation::is_device(to, bytes))
        gpp_emulation::stop("cudaMemcpy of kind %d: the target %p is %sdevice memory of %zu bytes",
                            (int)kind, to, to_device ? "not " : "", bytes);
    if (from_device != gpp_emulation::is_device(from, bytes))
        gpp_emulation::stop("cudaMemcpy of kind %d: the source %p is %sdevice memory of %zu bytes",
                            (int)kind, from, from_device ? "not " : "", bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (bytes == 0)
        return cudaSuccess;
    check_ends(to, from, bytes, kind);
    gpp_emulation::begin_on(stream);
    gpp_emulation::opened open("cudaMemcpy");
    if ((const char *)from < (char *)to + bytes && (char *)to < (const char *)from + bytes)
        gpp_emulation::stop("cudaMemcpy: source %p and target %p overlap, %zu bytes", from, to,
                            bytes);
    memcpy(to, from, bytes);
    return cudaSuccess;
}

/* From the host: the call may return when it has read all, before anything is written. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    if (kind != cudaMemcpyHostToDevice || bytes == 0)
        return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    check_ends(to, from, bytes, kind);
    put_off(
        {(char *)to, bytes, 0, std::vector<char>((const char *)from, (const char *)from + bytes)});
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes,
                                cudaStream_t stream)
{
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (bytes == 0)
        return cudaSuccess;
    gpp_emulation::need_device("cudaMemset", to, bytes);
    gpp_emulation::begin_on(stream);
    gpp_emulation::opened open("cudaMemset");
    memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    gpp_emulation::need_device("cudaMemset", to, bytes);
    if (bytes > 0)
        put_off({(char *)to, bytes, value, {}});
    return cudaSuccess;
}

/* --- page-locked memory of the host ----------------------------------------------------------- */

namespace
{

std::mutex host_lock;
std::map<char *, size_t> locked; /* first byte, bytes */

} // namespace

/* Whole pages at least begin on a page. No more than the device has: a machine has a limit, too. */
static cudaError_t host_room(void **pointer, size_t bytes)
{
    std::lock_guard<std::mutex> alone(host_lock);
    *pointer = nullptr;
    if (bytes >= room || posix_memalign(pointer, page, bytes + (bytes == 0))) {
        gpp_emulation::remember(cudaErrorMemoryAllocation);
        return cudaErrorMemoryAllocation;
    }
    locked[(char *)*pointer] = bytes;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    return host_room(pointer, bytes);
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned)
{
    return host_room(pointer, bytes);
}

cudaError_t cudaFreeHost(void *pointer)
{
    std::lock_guard<std::mutex> alone(host_lock);
    if (pointer && locked.erase((char *)pointer) == 0) {
        gpp_emulation::remember(cudaErrorInvalidValue);
        return cudaErrorInvalidValue;
    }
    free(pointer);
    return cudaSuccess;
}

static bool is_locked(char *pointer)
{
    std::lock_guard<std::mutex> alone(host_lock);
    auto next = locked.upper_bound(pointer);
    return next != locked.begin() && (--next, (size_t)(pointer - next->first) < next->second);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    char *p = (char *)pointer;
    bool device = p >= base && p < base + used, host = !device && is_locked(p);
    *attributes = {};
    attributes->type = device ? cudaMemoryTypeDevice
                       : host ? cudaMemoryTypeHost
                              : cudaMemoryTypeUnregistered;
    attributes->devicePointer = device || host ? p : nullptr;
    attributes->hostPointer = device ? nullptr : p;
    return cudaSuccess;
}
