/*
 * tests/cuda_emulation/emulation.h: what the emulated libraries share: device memory and its
 * checks.
 */
#ifndef GPP_TESTS_CUDA_EMULATION_H
#define GPP_TESTS_CUDA_EMULATION_H

#include <cuda_runtime.h>

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
};

namespace gpp_emulation
{

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

float from_bf16(uint16_t bits);
/** To nearest, ties to even; NaN stays NaN. */
uint16_t to_bf16(float x);
/** The nearest number of ten bits behind the point, ties to even. */
float to_tf32(float x);

} // namespace gpp_emulation

#endif
