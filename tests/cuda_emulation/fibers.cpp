/*
 * tests/cuda_emulation/fibers.cpp: running the threads of a block.
 *
 * A fiber is a stack of its own on which threads run, one after another. A thread that comes to a
 * barrier keeps its fiber, and the next fiber goes on with the next threads; so a kernel without
 * barriers needs one fiber for all. When every thread has ended or waits, the waiting ones go on.
 *
 * Threads and blocks run in ascending order, or in descending (gpp_emulation_order); with
 * GPP_EMULATION_SHUFFLE=<number> in the environment in orders drawn anew for every launch and block
 * and after every barrier. No kernel's result may tell.
 *
 * The rule for barriers: all threads of a block come to each, and to the same one. A thread that
 * has ended while others wait, or waits somewhere else, ends the program.
 */
#include "emulation.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <new>
#include <numeric>
#include <vector>

#ifdef GPP_EMULATION_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#define GPP_EMULATION_UCONTEXT 1
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
/* The ends of the section that shared memory is in; missing where no kernel has any. */
extern char __start_gpp_shared[] __attribute__((weak));
extern char __stop_gpp_shared[] __attribute__((weak));
}

/* --- switching stacks ------------------------------------------------------------------------- */

namespace
{

const size_t stack_bytes = (size_t)256 << 10;

/* A point of execution: the host's, or a fiber's. */
struct place {
#ifdef GPP_EMULATION_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    const void *bottom; /* of its stack, and its size: for AddressSanitizer */
    size_t size;
    void *fake;
};

struct fiber {
    place here;
    uint3 thread; /* that runs on it, or waits */
    const char *file;
    int line; /* where it waits */
};

} // namespace

#ifndef GPP_EMULATION_UCONTEXT
/* Saves what a call preserves on this stack, and goes on on another where the same was done. */
extern "C" void gpp_emulation_switch(void **from, void *to);
asm(R"(
    .text
    .p2align 4
    .globl gpp_emulation_switch
    .hidden gpp_emulation_switch
    .type gpp_emulation_switch, @function
gpp_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size gpp_emulation_switch, .-gpp_emulation_switch
)");
#endif

/* --- a block ---------------------------------------------------------------------------------- */

namespace
{

bool from_last; /* threads and blocks in descending order */

/* Orders drawn from the environment's number; 0: none are. */
struct {
    bool asked;
    uint64_t state;
} shuffle;

uint64_t draw()
{
    if (!shuffle.asked) {
        const char *given = getenv("GPP_EMULATION_SHUFFLE");
        shuffle.asked = true;
        shuffle.state = given ? strtoull(given, nullptr, 0) : 0;
    }
    if (shuffle.state)
        shuffle.state =
            shuffle.state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return shuffle.state >> 33;
}

/* An order of 0 ... count - 1: k-th comes first + k · step, where step and count have no common
 * divisor. */
struct order {
    uint64_t first, step, count;
    uint64_t operator()(uint64_t k) const
    {
        if (step == 1 && first == 0)
            return k;
        if (first == count - 1 && step == count - 1)
            return count - 1 - k;
        return (first + k * step) % count;
    }
};

order order_of(uint64_t count)
{
    uint64_t step = draw(), first = draw();
    if (!step)
        return from_last ? order{count - 1, count - 1, count} : order{0, 1, count};
    step %= count;
    while (std::gcd(step, count) != 1)
        step = (step + 1) % count;
    return order{first % count, step, count};
}

/* The launch under way. */
struct {
    const char *kernel;
    void (*thread)(void *);
    void *closure;
    unsigned threads, begun, ended; /* of a block */
    order in;
} now;

place host;
fiber *running;
std::vector<fiber *> idle, waiting;

void jump(place *from, place *to)
{
#ifdef GPP_EMULATION_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
#ifdef GPP_EMULATION_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    gpp_emulation_switch(&from->stack_pointer, to->stack_pointer);
#endif
#ifdef GPP_EMULATION_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

uint3 position(uint64_t k, dim3 size)
{
    if (k < size.x) /* nearly always, and divisions take long */
        return uint3{(unsigned)k, 0, 0};
    return uint3{(unsigned)(k % size.x), (unsigned)(k / size.x % size.y),
                 (unsigned)(k / size.x / size.y)};
}

/* What a fiber does: threads, as long as there are any, then wait to be asked again. */
void work()
{
#ifdef GPP_EMULATION_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &host.bottom, &host.size);
#endif
    for (;;) {
        while (now.begun < now.threads) {
            running->thread = threadIdx = position(now.in(now.begun++), blockDim);
            now.thread(now.closure);
            now.ended++;
        }
        fiber *self = running;
        idle.push_back(self);
        jump(&self->here, &host);
    }
}

/* The fiber itself is at the top of its stack: the leak sanitizer does not look for pointers there,
 * nor does it need to. */
fiber *make()
{
    void *stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE))
        gpp_emulation::stop("no memory for the stack of a thread");
    size_t bytes = (stack_bytes - sizeof(fiber)) / 64 * 64;
    fiber *made = new ((char *)stack + bytes) fiber();
    made->here.bottom = stack;
    made->here.size = bytes;
#ifdef GPP_EMULATION_UCONTEXT
    getcontext(&made->here.context);
    made->here.context.uc_stack.ss_sp = stack;
    made->here.context.uc_stack.ss_size = bytes;
    makecontext(&made->here.context, work, 0);
#else
    /* Six registers, then where to return to; the stack is then as behind a call. */
    void **top = (void **)((char *)stack + bytes) - 2;
    top[0] = (void *)work;
    made->here.stack_pointer = top - 6;
#endif
    return made;
}

void resume(fiber *one)
{
    running = one;
    threadIdx = one->thread;
    jump(&host, &one->here);
}

/* Begin all threads: each ends or comes to its first barrier. */
void begin()
{
    while (now.begun < now.threads) {
        if (idle.empty())
            idle.push_back(make());
        fiber *one = idle.back();
        idle.pop_back();
        resume(one);
    }
}

void check_barrier()
{
    const fiber *first = waiting[0];
    if (now.ended > 0)
        gpp_emulation::stop("%s: %u of %u threads of a block have ended while %zu wait at %s:%d",
                            now.kernel, now.ended, now.threads, waiting.size(), first->file,
                            first->line);
    for (const fiber *other : waiting)
        if (other->line != first->line ||
            (other->file != first->file && strcmp(other->file, first->file) != 0))
            gpp_emulation::stop(
                "%s: of the threads of a block one waits at %s:%d, another at %s:%d", now.kernel,
                first->file, first->line, other->file, other->line);
}

/* Every block begins with it, and there are tens of kilobytes: not byte by byte where it need not be.
 * No call of memset, which AddressSanitizer would check against its fences. */
__attribute__((no_sanitize("address"))) void spoil_shared()
{
    char *begin = __start_gpp_shared;
    if (!begin)
        return;
#if defined(__x86_64__)
    size_t bytes = (size_t)(__stop_gpp_shared - begin);
    asm volatile("rep stosb" : "+D"(begin), "+c"(bytes) : "a"(0xff) : "memory");
#else
    for (volatile char *p = begin; p < __stop_gpp_shared; p++)
        *p = (char)0xff;
#endif
}

void run_block()
{
    std::vector<fiber *> on;
    now.begun = now.ended = 0;
    now.in = order_of(now.threads);
    spoil_shared();
    gpp_emulation::watch_block();
    begin();
    while (!waiting.empty()) {
        check_barrier();
        on.swap(waiting);
        gpp_emulation::watch_barrier();
        order next = draw() ? order_of(on.size()) : order{0, 1, on.size()};
        for (size_t k = 0; k < on.size(); k++)
            resume(on[next(k)]);
        on.clear();
    }
}

/* As the device's limits. */
bool fits(dim3 grid, dim3 block)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    return threads >= 1 && threads <= 1024 && block.z <= 64 && blocks >= 1 && grid.x < 1u << 31 &&
           grid.y < 65536 && grid.z < 65536;
}

} // namespace

void gpp_emulation_barrier(const char *file, int line)
{
    fiber *self = running;
    self->file = file;
    self->line = line;
    waiting.push_back(self);
    jump(&self->here, &host);
}

void gpp_emulation_order(bool descending)
{
    from_last = descending;
}

/* A stream is its device's, and kernels are launched on the thread's. */
static bool may_launch(cudaStream_t stream)
{
    return !stream || gpp_emulation::any_memory() ||
           stream->device == gpp_emulation::current_device();
}

void gpp_emulation_run(const char *kernel, dim3 grid, dim3 block, cudaStream_t stream,
                       void (*thread)(void *), void *closure)
{
    if (!fits(grid, block) || !may_launch(stream)) {
        gpp_emulation::remember(may_launch(stream) ? cudaErrorInvalidConfiguration
                                                   : cudaErrorInvalidResourceHandle);
        return;
    }
    gpp_emulation::opened open(kernel);
    gpp_emulation::begin_on(stream);
    gpp_emulation::watch_launch(kernel);
    now.kernel = kernel;
    now.thread = thread;
    now.closure = closure;
    now.threads = block.x * block.y * block.z;
    gridDim = grid;
    blockDim = block;
    order blocks = order_of((uint64_t)grid.x * grid.y * grid.z);
    for (uint64_t k = 0; k < blocks.count; k++) {
        blockIdx = position(blocks(k), grid);
        run_block();
    }
    gpp_emulation::watch_launch(nullptr);
}
