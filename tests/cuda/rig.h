/*
 * tests/cuda/rig.h: an operator's CUDA functions against its CPU functions.
 *
 * The rig runs a row of tests/operators.c on both, for several numbers of rows, with the same
 * inputs, parameters and gradients, and compares outputs, gradients, records of statistics and the
 * buffers after a commit. Beyond that it checks of the CUDA functions that
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
#include "tests/operators.h"

/** How a case is run. */
typedef struct cuda_way {
    gpp__math math;
    bool evaluate;    /* not training */
    double tolerance; /* of the largest value; 0: the same numbers */
} cuda_way;

/** Runs the case with 1, 2, 7 and 33 rows, as far as c->least and c->most allow, and with c->most
 * rows where these are more. What differs is reported as a failed assertion. Skips the test where
 * there is no device. */
void cuda_check(const test_op_case *c, cuda_way how);

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
