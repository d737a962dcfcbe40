/*
 * tests/cuda/test_cuda_host_memory.c: where pipes may be on GPUs, memory that was asked for them is
 * page-locked, a loader's too; where it cannot be, it is ordinary memory.
 */
#include <criterion/criterion.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe.h>

#include "tests/support.h"

static bool is_locked(const void *memory)
{
    struct cudaPointerAttributes a;
    cudaError_t code = cudaPointerGetAttributes(&a, memory);
    cudaGetLastError();
    return code == cudaSuccess && a.type == cudaMemoryTypeHost;
}

/* Skips the test where pipes find no GPU. */
static void need_gpu(void)
{
    static const char *const gpu[] = {"cuda:0"};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_model *m = NULL;
    gpp_pipe *p = NULL;
    o.devices = gpu;
    o.device_count = 1;
    cr_assert_eq(gpp_model_new(&m, &err), GPP_OK);
    cr_assert_eq(gpp_model_add_text(m, "relu", &err), GPP_OK);
    cr_assert_eq(gpp_model_set_input(m, GPP_F32, 1, (int64_t[]){4}, &err), GPP_OK);
    gpp_status status = gpp_pipe_new(&p, m, &o, &err);
    gpp_pipe_free(p);
    gpp_model_free(m);
    if (status == GPP_EUNSUPPORTED || status == GPP_ENODEV)
        cr_skip_test("no GPU for pipes");
    cr_assert_eq(status, GPP_OK, "%s", err.msg);
}

static void *get(size_t bytes)
{
    gpp_error err = GPP_ERROR_INIT;
    void *memory = NULL;
    cr_assert_eq(gpp_host_memory_new(&memory, bytes, &err), GPP_OK, "%s", err.msg);
    cr_assert((uintptr_t)memory % 64 == 0, "%zu bytes at %p", bytes, memory);
    return memory;
}

Test(cuda_host_memory, is_page_locked_until_it_is_freed)
{
    need_gpu();
    char *one = get(1000), *none = get(0);
    cr_expect(is_locked(one) && is_locked(one + 999));
    memset(one, 1, 1000);
    gpp_host_memory_free(none);
    cr_expect(is_locked(one));
    gpp_host_memory_free(one);
    cr_expect(!is_locked(one));
}

static void *come_and_go(void *arg)
{
    for (int k = 0; k < 20; k++) {
        char *mine = get(1000);
        memset(mine, *(char *)arg, 1000);
        cr_assert(is_locked(mine) && mine[999] == *(char *)arg);
        gpp_host_memory_free(mine);
    }
    return NULL;
}

Test(cuda_host_memory, may_be_had_by_several_threads_at_once)
{
    pthread_t thread[4];
    char name[] = "abcd";
    need_gpu();
    for (int k = 0; k < 4; k++)
        pthread_create(&thread[k], NULL, come_and_go, &name[k]);
    for (int k = 0; k < 4; k++)
        pthread_join(thread[k], NULL);
}

/* --- where it cannot be page-locked ----------------------------------------------------------- */

#ifdef GPP_EMULATION

static void count_warnings(gpp_log_level level, const char *text, void *user)
{
    if (level == GPP_LOG_WARN && strstr(text, "page-locked"))
        ++*(int *)user;
}

Test(cuda_host_memory, is_ordinary_memory_where_no_more_can_be_locked_and_the_log_says_so)
{
    int warnings = 0;
    size_t much = (size_t)5 << 30; /* the emulation locks less than 4 GiB at once */
    gpp_log_set(count_warnings, GPP_LOG_WARN, &warnings);
    char *memory = get(much);
    cr_expect_eq(cudaGetLastError(), cudaSuccess, "nothing is left behind");
    cr_expect(!is_locked(memory));
    cr_expect_eq(warnings, 1);
    memory[0] = memory[much - 1] = 1;
    gpp_host_memory_free(memory);
    gpp_log_set(NULL, GPP_LOG_WARN, NULL);
}

Test(cuda_host_memory, is_ordinary_memory_where_there_is_no_gpu)
{
    int warnings = 0;
    setenv("GPP_EMULATION_DEVICES", "0", 1);
    gpp_log_set(count_warnings, GPP_LOG_WARN, &warnings);
    char *memory = get(1000);
    cr_expect_eq(cudaGetLastError(), cudaSuccess, "nothing is left behind");
    cr_expect(!is_locked(memory));
    cr_expect_eq(warnings, 0);
    gpp_host_memory_free(memory);
    gpp_log_set(NULL, GPP_LOG_WARN, NULL);
}

#endif

/* --- loaders ---------------------------------------------------------------------------------- */

Test(cuda_host_memory, is_what_a_loader_takes_for_its_mini_batches_where_it_is_told_to)
{
    enum { ROWS = 10, WIDTH = 3, BATCH = 4 };
    float x[ROWS * WIDTH];
    int64_t y[ROWS];
    need_gpu();
    for (int k = 0; k < ROWS * WIDTH; k++)
        x[k] = (float)(k / WIDTH);
    for (int k = 0; k < ROWS; k++)
        y[k] = k;
    const gpp_tensor data[] = {{x, GPP_F32, 2, {ROWS, WIDTH}}, {y, GPP_I64, 1, {ROWS}}};
    for (int pinned = 0; pinned < 2; pinned++) {
        gpp_error err = GPP_ERROR_INIT;
        gpp_loader_options o = GPP_LOADER_OPTIONS_INIT;
        gpp_loader *l = NULL;
        gpp_tensor batch[2];
        int64_t rows = 0;
        o.batch = BATCH;
        o.pinned = pinned;
        cr_assert_eq(gpp_loader_new(&l, data, 2, &o, &err), GPP_OK, "%s", err.msg);
        while (gpp_loader_next(l, batch, &err) == GPP_OK) {
            for (int t = 0; t < 2; t++)
                cr_expect_eq(is_locked(batch[t].data), pinned, "tensor %d", t);
            for (int64_t r = 0; r < batch[0].dim[0]; r++)
                cr_expect_eq(((float *)batch[0].data)[r * WIDTH],
                             (float)((int64_t *)batch[1].data)[r]);
            rows += batch[0].dim[0];
        }
        cr_expect_eq(rows, ROWS);
        void *slot = batch[0].data;
        gpp_loader_free(l);
        cr_expect(!is_locked(slot), "freed as it was had");
    }
}

/* A step whose copies are of such memory, its outputs too. */
Test(cuda_host_memory, serves_as_tensors_of_a_pipe)
{
    enum { ROWS = 6, IN = 4, OUT = 3 };
    static const char *const gpu[] = {"cuda:0", "cuda:0"};
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_model *m = NULL;
    float x[ROWS * IN], target[ROWS * OUT] = {0}, *locked[3], y[2][ROWS * OUT];
    double loss[2];
    need_gpu();
    test_fill(x, ROWS * IN, 1, -1, 1);
    locked[0] = memcpy(get(sizeof x), x, sizeof x);
    locked[1] = memcpy(get(sizeof target), target, sizeof target);
    locked[2] = get(sizeof *y);
    cr_assert_eq(gpp_model_new(&m, &err), GPP_OK);
    cr_assert_eq(gpp_model_add_text(m, "linear out=5; tanh; linear out=3", &err), GPP_OK);
    cr_assert_eq(gpp_model_set_input(m, GPP_F32, 1, (int64_t[]){IN}, &err), GPP_OK);
    o.partitions = o.device_count = 2;
    o.devices = gpu;
    o.chunks = 2;
    o.loss = "mse";
    o.optimizer = "sgd lr=0.1";
    for (int way = 0; way < 2; way++) {
        gpp_pipe *p = NULL;
        gpp_tensor tx = {way ? locked[0] : x, GPP_F32, 2, {ROWS, IN}},
                   tt = {way ? locked[1] : target, GPP_F32, 2, {ROWS, OUT}},
                   ty = {way ? locked[2] : y[0], GPP_F32, 2, {ROWS, OUT}};
        cr_assert_eq(gpp_pipe_new(&p, m, &o, &err), GPP_OK, "%s", err.msg);
        cr_assert_eq(gpp_pipe_step(p, &tx, &tt, &ty, &loss[way], &err), GPP_OK, "%s", err.msg);
        gpp_pipe_free(p);
    }
    memcpy(y[1], locked[2], sizeof *y);
    cr_expect_eq(loss[0], loss[1]);
    cr_expect(memcmp(y[0], y[1], sizeof *y) == 0);
    for (int k = 0; k < 3; k++)
        gpp_host_memory_free(locked[k]); /* after the pipes */
    gpp_model_free(m);
}
