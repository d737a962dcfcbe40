/*
 * tests/cuda/rig.h: an operator's CUDA functions against its CPU functions.
 *
 * A case is an operator with its inputs' shapes; the rig runs it on both, for several numbers of
 * rows, with the same inputs, parameters and gradients, and compares outputs, gradients, records of
 * statistics and the buffers after a commit. Beyond that it checks of the CUDA functions that
 *   - two runs give the same bits, in the emulation also with threads and blocks in reversed order;
 *   - so do a forward that saves nothing, one that repeats another, and one in place;
 *   - so do backwards without gradients of parameters, without those of inputs, and in place;
 *   - the second backward adds to the first one's gradients of parameters;
 *   - what is only to be read stays as it is, and nothing is written beyond the bytes asked for.
 * Memory that a function has to write is NaN before.
 *
 * The same tests run on the emulation (tests/cuda_emulation) and on a device; where there is none
 * they skip themselves.
 */
#ifndef GPP_TESTS_CUDA_RIG_H
#define GPP_TESTS_CUDA_RIG_H

#include <criterion/criterion.h>

#include "codelets/cuda/cuda.h"
#include "tests/support.h"

/* The kernels under test: gpp_op.cuda is NULL in a library without CUDA. Emulated, test_cuda_layout.c
 * checks that no operator's kernels are missing here. */
#define RIG_KERNEL_LIST(X)                                                                         \
    X(gpp__cuda_linear)                                                                            \
    X(gpp__cuda_conv2d)                                                                            \
    X(gpp__cuda_conv_transpose2d)                                                                  \
    X(gpp__cuda_relu)                                                                              \
    X(gpp__cuda_maxpool2d)                                                                         \
    X(gpp__cuda_dropout)                                                                           \
    X(gpp__cuda_dropout2d)                                                                         \
    X(gpp__cuda_pop)                                                                               \
    X(gpp__cuda_combine)                                                                           \
    X(gpp__cuda_add)                                                                               \
    X(gpp__cuda_mul)                                                                               \
    X(gpp__cuda_cat)                                                                               \
    X(gpp__cuda_split)                                                                             \
    X(gpp__cuda_tanh)                                                                              \
    X(gpp__cuda_sigmoid)                                                                           \
    X(gpp__cuda_gelu)                                                                              \
    X(gpp__cuda_silu)                                                                              \
    X(gpp__cuda_leaky_relu)                                                                        \
    X(gpp__cuda_relu6)                                                                             \
    X(gpp__cuda_hardtanh)                                                                          \
    X(gpp__cuda_elu)                                                                               \
    X(gpp__cuda_softplus)                                                                          \
    X(gpp__cuda_avgpool2d)                                                                         \
    X(gpp__cuda_adaptive_avgpool2d)                                                                \
    X(gpp__cuda_upsample)                                                                          \
    X(gpp__cuda_pad)                                                                               \
    X(gpp__cuda_softmax)                                                                           \
    X(gpp__cuda_log_softmax)                                                                       \
    X(gpp__cuda_batchnorm)                                                                         \
    X(gpp__cuda_layernorm)                                                                         \
    X(gpp__cuda_instancenorm)                                                                      \
    X(gpp__cuda_groupnorm)                                                                         \
    X(gpp__cuda_embedding)                                                                         \
    X(gpp__cuda_position_embedding)                                                                \
    X(gpp__cuda_self_attention)                                                                    \
    X(gpp__cuda_channels_last)                                                                     \
    X(gpp__cuda_channels_first)

#define RIG_KERNEL_DECLARE(kernels) extern const gpp__kernels kernels;
RIG_KERNEL_LIST(RIG_KERNEL_DECLARE)
#undef RIG_KERNEL_DECLARE

/** Kernels of a built-in operator; NULL: it has none for CUDA. */
const gpp__kernels *cuda_kernels_of(const char *name);

/** What inputs are filled with. Tensors of integers get 0 ... limit-1 in any case. */
typedef enum cuda_fill {
    CUDA_FILL_UNIFORM, /* in [-2, 2) */
    CUDA_FILL_APART,   /* no two nearly equal, none near 0: for maxima and kinks */
    CUDA_FILL_TIES,    /* -2, -1, 0, 1 or 2: many equal ones */
    CUDA_FILL_SPECIAL  /* uniform, with NaN, infinities, large numbers and zeros of both signs */
} cuda_fill;

enum { CUDA_INS = 4 }; /* the most inputs of a case */

/** Without pointers, as Criterion's parameters have to be. */
typedef struct cuda_case {
    char why[64];
    char spec[128]; /* model text of one layer: "conv2d out=8 kernel=3"; or "fork outputs=3" */
    int ins;        /* 0: one */
    gpp__desc in[CUDA_INS]; /* the tuple, then the popped tensors */
    double tolerance;       /* of the largest value; 0: the same numbers */
    cuda_fill fill;
    int64_t limit; /* of integers; 0: 2 */
    bool evaluate; /* not training: forward alone */
    gpp__math math;
    int64_t most_rows; /* leaves larger numbers of rows out; 0: none */
} cuda_case;

/** Runs the case with 1, 2, 7 and 33 rows; what differs is reported as a failed assertion. Skips
 * the test where there is no device. */
void cuda_check(const cuda_case *c);

/** A device to call other functions with, made once for a process; skips the test where there is
 * none. */
gpp__cuda *cuda_device(gpp__math math);

/* Device memory of exactly `bytes` bytes, each 0xff; whatever fails ends the test, no device skips
 * it. */
void *cuda_room(size_t bytes);
/** Fails the test if something was written behind it. NULL is fine. */
void cuda_free(void *room);
void *cuda_copy_of(const void *host, size_t bytes);
void cuda_put(void *room, const void *host, size_t bytes);
void cuda_get(void *host, const void *room, size_t bytes);
/** Waits for everything launched, and fails the test if it went wrong. */
void cuda_wait(void);
/** In the emulation threads and blocks run in descending order from now on, or as usual. */
void cuda_order(bool descending);

#endif
