/* tests/states.c: see tests/states.h. */
#include "tests/states.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/files.h"

const test_model test_stateful = {
    "every kind of state",
    "conv2d out=6 kernel=3 padding=1 bias=0 @c1; batchnorm @bn1; relu; dropout p=0.3; maxpool2d "
    "kernel=2; flatten; linear out=12 @l1; batchnorm momentum=none @bn2; relu; dropout p=0.5; "
    "linear out=5 @l2",
    3,
    {3, 8, 8},
    "cross_entropy reduction=mean"};

gpp_pipe_options test_cut(int partitions, gpp_checkpoint mode)
{
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    o.partitions = partitions;
    o.checkpoint = mode;
    o.chunks = 2;
    o.seed = 7;
    return o;
}

char *test_state(gpp_pipe *p, const char *folder, size_t *size)
{
    char path[512];
    gpp_error err = GPP_ERROR_INIT;
    test_path(folder, "state of a pipe", path);
    cr_assert_eq(gpp_pipe_save_state(p, path, NULL, 0, &err), GPP_OK, "%s", err.msg);
    char *bytes = test_bytes_read(path, size);
    cr_assert(bytes);
    unlink(path);
    return bytes;
}

void test_expect_state(gpp_pipe *p, const char *folder, const char *bytes, size_t size,
                       const char *why)
{
    size_t now;
    char *other = test_state(p, folder, &now);
    cr_expect(now == size && !memcmp(other, bytes, size), "%s", why);
    free(other);
}
