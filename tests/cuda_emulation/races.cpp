/*
 * tests/cuda_emulation/races.cpp: what only threads that really run at once would show.
 *
 * With -fsanitize=thread a compiler calls a function in front of every access to memory that others
 * may see. Those functions are here, so kernels (and nothing else) are to be compiled with it, and
 * everything linked without: ThreadSanitizer's own runtime takes no part. Empty unless
 * GPP_EMULATION_RACES is defined.
 *
 * Two accesses to one byte, one of them writing, are a race unless one thread does both, or both
 * are of one block with a barrier between. That ends the program. So does an access to memory that
 * is not, or not wholly, within an allocation, and one that is not aligned to its size, as the
 * device demands. Of each byte the last write of a launch is known, the last read, and whether
 * others have read it as well; threads run one after another, so that is all there is to know.
 *
 * Atomics are left out (cuda_runtime.h), as is what functions of the C library access.
 */
#include "emulation.h"

#ifdef GPP_EMULATION_RACES

#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>

namespace
{

/* Blocks are counted through all launches, from 1. */
const uint16_t MANY = 0xffff; /* threads of a block, or blocks of a launch */

struct access {
    uint32_t block;
    uint16_t interval, thread; /* barriers before it; MANY: of several threads */
};

struct cell {
    access write, read;
    bool read_elsewhere; /* by other blocks of read.block's launch, too */
};

/* Memory that is watched: that of devices, and that of the program's variables, to which shared
 * memory belongs. */
struct watched {
    const char *begin;
    size_t bytes;
    cell *cells;
};

struct {
    const char *kernel; /* NULL: none runs */
    uint32_t first, block;
    uint16_t interval;
} now;

extern "C" char __data_start, _end;
watched device, variables;

void watch(watched *w, const char *begin, size_t bytes)
{
    void *cells = mmap(nullptr, bytes * sizeof(cell), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED)
        gpp_emulation::stop("no address space for what is known of each byte");
    *w = {begin, bytes, (cell *)cells};
}

const watched *watched_with(const char *p)
{
    if (p >= device.begin && p < device.begin + device.bytes)
        return &device;
    return p >= variables.begin && p < variables.begin + variables.bytes ? &variables : nullptr;
}

unsigned thread_number()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

/* Where in the program, for addr2line. */
unsigned long place_of(const void *caller)
{
    Dl_info info;
    bool known = dladdr(caller, &info) != 0;
    return (unsigned long)((const char *)caller - (known ? (const char *)info.dli_fbase : nullptr));
}

[[noreturn]] void report(const char *what, access other, const void *p, const void *caller)
{
    gpp_emulation::stop("%s: thread %u of block %u %s at %p, thread %d of block %d did, and no "
                        "barrier is between (addr2line %#lx)",
                        now.kernel, thread_number(), now.block - now.first, what, p,
                        other.thread == MANY ? -1 : other.thread, (int)(other.block - now.first),
                        place_of(caller));
}

/* `other` is of this launch, and by another thread than `mine` that nothing orders with it. */
inline bool races(access other, access mine, bool shared)
{
    if (other.block < now.first)
        return false;
    if (other.block != mine.block)
        return !shared; /* shared memory is another one in each block */
    return other.interval == mine.interval && other.thread != mine.thread;
}

inline void note_read(cell *c, access mine)
{
    access *r = &c->read;
    bool same_block = r->block == mine.block, same_launch = r->block >= now.first;
    c->read_elsewhere = same_launch && (c->read_elsewhere || !same_block);
    bool others = same_block && r->interval == mine.interval && r->thread != mine.thread;
    *r = {mine.block, mine.interval, others ? MANY : mine.thread};
}

inline void check_byte(cell *c, access mine, const char *p, bool write, bool shared,
                       const void *caller)
{
    if (races(c->write, mine, shared))
        report(write ? "writes what, too," : "reads what", c->write, p, caller);
    if (!write) {
        note_read(c, mine);
        return;
    }
    if (races(c->read, mine, shared) ||
        (!shared && c->read.block >= now.first && c->read_elsewhere))
        report("writes what is read", c->read, p, caller);
    c->write = mine;
}

void check(const void *at, size_t bytes, bool write, bool aligned, const void *caller)
{
    const char *p = (const char *)at;
    const watched *w = now.kernel ? watched_with(p) : nullptr;
    if (!w)
        return;
    if (aligned && (uintptr_t)p % bytes != 0)
        gpp_emulation::stop("%s: %zu bytes at %p are not aligned (addr2line %#lx)", now.kernel,
                            bytes, at, place_of(caller));
    if (w == &device && !gpp_emulation::is_device(at, bytes))
        gpp_emulation::stop("%s: %s %zu bytes at %p, which are not within an allocation (addr2line "
                            "%#lx)",
                            now.kernel, write ? "writes" : "reads", bytes, at, place_of(caller));
    const access mine = {now.block, now.interval, (uint16_t)thread_number()};
    for (size_t k = 0; k < bytes; k++)
        check_byte(&w->cells[p + k - w->begin], mine, p + k, write, w == &variables, caller);
}

} // namespace

namespace gpp_emulation
{

void watch_launch(const char *kernel)
{
    if (!variables.begin)
        watch(&variables, &__data_start, (size_t)(&_end - &__data_start));
    now.kernel = kernel;
    now.first = now.block + 1;
}

void watch_memory(const char *begin, size_t bytes)
{
    watch(&device, begin, bytes);
}

void watch_block(void)
{
    now.block++;
    now.interval = 0;
}

void watch_barrier(void)
{
    now.interval++;
}

} // namespace gpp_emulation

/* --- what the compiler calls ------------------------------------------------------------------ */

#define CALLED extern "C" __attribute__((visibility("default"))) void
#define HERE   __builtin_return_address(0)

#define ACCESSES(bytes)                                                                            \
    CALLED __tsan_read##bytes(void *p)                                                             \
    {                                                                                              \
        check(p, bytes, false, true, HERE);                                                        \
    }                                                                                              \
    CALLED __tsan_write##bytes(void *p)                                                            \
    {                                                                                              \
        check(p, bytes, true, true, HERE);                                                         \
    }                                                                                              \
    CALLED __tsan_unaligned_read##bytes(void *p)                                                   \
    {                                                                                              \
        check(p, bytes, false, false, HERE);                                                       \
    }                                                                                              \
    CALLED __tsan_unaligned_write##bytes(void *p)                                                  \
    {                                                                                              \
        check(p, bytes, true, false, HERE);                                                        \
    }                                                                                              \
    CALLED __tsan_volatile_read##bytes(void *p)                                                    \
    {                                                                                              \
        check(p, bytes, false, true, HERE);                                                        \
    }                                                                                              \
    CALLED __tsan_volatile_write##bytes(void *p)                                                   \
    {                                                                                              \
        check(p, bytes, true, true, HERE);                                                         \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

CALLED __tsan_read_range(void *p, size_t bytes)
{
    check(p, bytes, false, false, HERE);
}

CALLED __tsan_write_range(void *p, size_t bytes)
{
    check(p, bytes, true, false, HERE);
}

CALLED __tsan_init(void)
{
}

CALLED __tsan_func_entry(void *)
{
}

CALLED __tsan_func_exit(void)
{
}

#endif
