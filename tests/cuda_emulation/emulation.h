/*
 * tests/cuda_emulation/emulation.h: what the emulated libraries share: device memory and its
 * checks.
 */
#ifndef GPP_TESTS_CUDA_EMULATION_H
#define GPP_TESTS_CUDA_EMULATION_H

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#define GPP_EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GPP_EMULATION_ASAN 1
#endif
#endif

struct CUstream_st {
    int device;
    bool waits; /* for the default stream, and that one for it: not made non-blocking */
};

namespace gpp_emulation
{

/* --- devices and streams ---------------------------------------------------------------------- */

/** The calling thread's device. */
int current_device();
/** Something is to be done on a stream: whatever it waits for is done first. */
void begin_on(cudaStream_t stream);
/** Does what the default stream still has to do. Without a stream memory is set, and copied from
 * the host's, as late as a device might: when something waits for it. */
void finish_default_stream();
/** Host memory is the device's, too (gpp_emulation_any_memory): threads then are StarPU's CPU
 * workers, which have no device. */
bool any_memory();

/** A library's handle belongs to the device that was current when it was made, and to one thread at
 * a time; ends the program where one is used otherwise. */
class handle
{
  public:
    handle();
    cudaStream_t stream;

  private:
    friend class handle_use;
    int device;
    std::atomic_flag used = ATOMIC_FLAG_INIT;
};
class handle_use
{
  public:
    handle_use(const char *what, handle *of);
    ~handle_use();
    handle_use(const handle_use &) = delete;
    handle_use &operator=(const handle_use &) = delete;

  private:
    handle *of;
};

/* --- memory ----------------------------------------------------------------------------------- */

/** While one lives device memory can be read and written, by its thread alone. `what` is named when
 * the end finds memory written behind an allocation. */
class opened
{
  public:
    explicit opened(const char *what);
    ~opened();
    opened(const opened &) = delete;
    opened &operator=(const opened &) = delete;

  private:
    const char *what;
    std::lock_guard<std::recursive_mutex> alone;
};

/** All of [pointer, pointer + bytes) is within one allocation. */
bool is_device(const void *pointer, size_t bytes);
/** Ends the program unless it is; no bytes are always fine. */
void need_device(const char *what, const void *pointer, size_t bytes);
/** Fills a library's workspace, as a library would. */
void spoil(const char *what, void *workspace, size_t bytes);
void fill_with_nan(void *memory, size_t bytes);
[[noreturn]] void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** For the next cudaGetLastError of this thread, unless there is one already. */
void remember(cudaError_t error);

/* --- accesses of kernels (races.cpp) ---------------------------------------------------------- */

#ifdef GPP_EMULATION_RACES
void watch_memory(const char *begin, size_t bytes);
void watch_launch(const char *kernel); /* NULL: it has ended */
void watch_block(void);
void watch_barrier(void);
#else
inline void watch_memory(const char *, size_t)
{
}
inline void watch_launch(const char *)
{
}
inline void watch_block(void)
{
}
inline void watch_barrier(void)
{
}
#endif

/* --- numbers ---------------------------------------------------------------------------------- */

float from_bf16(uint16_t bits);
/** To nearest, ties to even; NaN stays NaN. */
uint16_t to_bf16(float x);
/** The nearest number of ten bits behind the point, ties to even. */
float to_tf32(float x);

} // namespace gpp_emulation

#endif
