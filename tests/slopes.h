/*
 * tests/slopes.h: what tests of operators share: rigs that must work, reference vectors, and
 * gradients against central differences.
 */
#ifndef GPP_TESTS_SLOPES_H
#define GPP_TESTS_SLOPES_H

#include "tests/support.h"

/** Room for `count` floats, NaN until they are written. Release with free. */
float *test_floats(int64_t count);

/** test_rig_new, as layer 0. A failure ends the test. Messages of kernels are dropped. */
test_rig *test_rig_on(const char *spec, const gpp__desc *in, int64_t rows, int threads);
/** The same, for a tensor of floats. @param dim  [rank] */
test_rig *test_rig_of(const char *spec, int rank, const int64_t dim[], int64_t rows, int threads);

/** An operator, and the number of reference vectors for it. */
typedef struct test_known {
    char op[20];
    int files;
} test_known;
/** Expect all reference vectors to be met within 1e-5 of the largest value. Without their folder
 * the test is skipped; a line on stderr says how many vectors, and of `what`. */
void test_expect_vectors(const char *what, const test_known known[], size_t count);

/** A function of tensors and parameters, and how close its slopes must come to its gradients. */
typedef struct test_slopes {
    const char *spec, *why;          /* for messages */
    double (*value)(void *argument); /* the function at what the tensors hold now */
    void *argument;
    float step;
    double tolerance, least; /* |slope - gradient| <= tolerance · (|gradient| + least) */
} test_slopes;

/**
 * For random signs u, expect half the difference between the function at (at + step·u) and at
 * (at - step·u) to be step · Σ gradient·u. `at` is restored afterwards.
 * @param grad  [count] the gradient by the backward
 */
void test_expect_slope(const test_slopes *s, float *at, int64_t count, const float *grad,
                       const char *name);
/** The same at every parameter; the gradients are those of the rig's last backward. */
void test_expect_param_slopes(const test_slopes *s, test_rig *rig);

#endif
