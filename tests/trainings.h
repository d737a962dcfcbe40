/*
 * tests/trainings.h: what pipes of tests are asked to do, and what comes of it: the same however and
 * wherever a pipe runs.
 */
#ifndef GPP_TESTS_TRAININGS_H
#define GPP_TESTS_TRAININGS_H

#include "tests/pipes.h"

/** What a training gives: what all ranks have, and the outputs. A rank has the outputs of the
 * replicas whose last partition it has; the others are NaN. */
typedef struct test_result {
    test_trace common, outputs;
} test_result;
void test_result_free(test_result *r);
/** Add a number with all its bits. */
void test_result_add(test_result *r, double value);

typedef void test_what(gpp_pipe *pipe, test_result *r);

/** Steps on mini-batches of different sizes. */
void test_steps(gpp_pipe *pipe, test_result *r);
/** Kept forwards and their backwards, accumulation, evaluation, an update alone. */
void test_halves(gpp_pipe *pipe, test_result *r);
/** Steps and evaluations in flight. */
void test_submitted(gpp_pipe *pipe, test_result *r);
/** Parameters set, frozen; the learning rate; evaluation mode. */
void test_settings(gpp_pipe *pipe, test_result *r);

/** A model with skips over partitions, batch normalisation and dropout. */
extern const test_model test_skips;

enum { TEST_MODES = 3 };
extern const gpp_checkpoint test_modes[TEST_MODES];

/** Ends the test on failure. */
void test_must(gpp_status status, const gpp_error *err);

#endif
