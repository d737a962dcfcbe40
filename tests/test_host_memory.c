/*
 * tests/test_host_memory.c: memory for tensors of pipes, as ordinary memory is: here no GPU is to
 * be found. tests/cuda/test_cuda_host_memory.c tests it where there is one.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include <gridpipe/data.h>

static void *get(size_t bytes)
{
    gpp_error err = GPP_ERROR_INIT;
    void *memory = NULL;
    cr_assert_eq(gpp_host_memory_new(&memory, bytes, &err), GPP_OK, "%s", err.msg);
    cr_assert(memory && (uintptr_t)memory % 64 == 0, "%zu bytes at %p", bytes, memory);
    return memory;
}

Test(host_memory, of_any_size_is_aligned_and_the_callers_alone)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1000003};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    unsigned char *room[SIZES];
    for (size_t k = 0; k < SIZES; k++) {
        room[k] = get(sizes[k]);
        memset(room[k], (int)k + 1, sizes[k]);
    }
    for (size_t k = 0; k < SIZES; k++) {
        for (size_t b = 0; b < sizes[k]; b++)
            cr_assert_eq(room[k][b], k + 1, "byte %zu of %zu", b, sizes[k]);
        gpp_host_memory_free(room[k]);
    }
    gpp_host_memory_free(NULL);
}

Test(host_memory, that_cannot_be_is_refused)
{
    static const size_t bytes[] = {SIZE_MAX, SIZE_MAX - 64, (size_t)PTRDIFF_MAX + 1};
    for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++) {
        gpp_error err = GPP_ERROR_INIT;
        void *memory = &err;
        cr_expect_eq(gpp_host_memory_new(&memory, bytes[k], &err), GPP_ENOMEM);
        cr_expect_null(memory);
        cr_expect(strstr(err.msg, "bytes of host memory"), "%s", err.msg);
    }
    cr_expect_eq(gpp_host_memory_new(NULL, 1, NULL), GPP_EINVAL);
}

static void *come_and_go(void *arg)
{
    for (int k = 0; k < 200; k++) {
        char *mine = get(1000);
        memset(mine, *(char *)arg, 1000);
        cr_assert_eq(mine[999], *(char *)arg);
        gpp_host_memory_free(mine);
    }
    return NULL;
}

Test(host_memory, may_be_had_by_several_threads_at_once)
{
    pthread_t thread[4];
    char name[] = "abcd";
    for (int k = 0; k < 4; k++)
        pthread_create(&thread[k], NULL, come_and_go, &name[k]);
    for (int k = 0; k < 4; k++)
        pthread_join(thread[k], NULL);
}
