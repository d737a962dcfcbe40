/*
 * tests/pipes.h: what tests of whole pipes share: a pipe from a model text, a batch of numbers, the
 * state of a training as one list of floats to compare bit for bit, and operators that misbehave on
 * request.
 */
#ifndef GPP_TESTS_PIPES_H
#define GPP_TESTS_PIPES_H

#include <gridpipe.h>

#include "graph/run/pipe.h"

/** A model text with its input and loss. */
typedef struct test_model {
    const char *why, *text;
    int rank;
    int64_t dim[3];
    const char *loss;
} test_model;

extern const test_model
    test_models[]; /* ends with text == NULL: with convolutions, without, with dropout */

gpp_model *test_model_new(const test_model *m);

/** A pipe with the model's loss. The caller has set batch, chunks, mode and partitions. Ends the
 * test on failure. */
gpp_pipe *test_pipe_new(const test_model *m, const gpp_pipe_options *options);

/**
 * Keep the runtime up from one pipe of a test to the next: `.init` and `.fini` of a TestSuite. A
 * test starts it once instead of for each pipe, which saves 10 ms of CPU time for each.
 */
void test_keep_runtime(void);
void test_release_runtime(void);

/**
 * Set options for a pipe that keeps little: GPP_CHECKPOINT_BUDGET with an activation_limit of at
 * least `from`, and about as small as mini-batches of `rows` rows allow. It suffices for steps and
 * for passes that also want the gradient of the input.
 */
void test_tighten(const gpp_model *model, gpp_pipe_options *options, int64_t rows, size_t from);

/** A mini-batch of `rows` rows for the model's pipe. Its tensors have memory of their own. */
typedef struct test_batch {
    gpp_tensor x, target, y, grad_y, grad_x;
} test_batch;
test_batch test_batch_new(const gpp_pipe *pipe, int64_t rows, uint64_t seed);
void test_batch_free(test_batch *b);
int64_t test_tensor_count(const gpp_tensor *t);

/** Everything that a training produces: floats in a fixed order. Release with test_trace_free. */
typedef struct test_trace {
    float *value;
    size_t count, room;
} test_trace;
void test_trace_add(test_trace *t, const float *value, size_t count);
void test_trace_params(test_trace *t, gpp_pipe *pipe);
void test_trace_grads(test_trace *t, gpp_pipe *pipe);
void test_trace_free(test_trace *t);
/** Index of the first float whose bits differ; -1: none. */
long test_trace_differs(const test_trace *a, const test_trace *b);

/**
 * Run `steps` steps on mini-batches of the given rows. After each step the trace gets the loss,
 * outputs, gradients and parameters. Ends the test on failure.
 */
void test_train(gpp_pipe *pipe, int steps, const int64_t rows[], test_trace *trace);

/** Where an operator that passes its input on is to fail. */
typedef enum test_fault {
    TEST_NO_FAULT,
    TEST_FAIL_FORWARD,
    TEST_FAIL_RECOMPUTE,
    TEST_FAIL_BACKWARD
} test_fault;
typedef struct test_fault_at {
    test_fault when;
    int64_t row0; /* first row of the failing micro-batch; -1: any */
} test_fault_at;
extern test_fault_at test_faults[4]; /* by the operator's key `id` */
extern const gpp_op test_op_faulty;

/** An operator that passes its input on. With waits=1 its n-th backward of this process waits until
 * n recomputations of others with waits=0 have begun, and fails after a minute. */
extern const gpp_op test_op_meet;

/** (a, b) -> (a·b, a+b), as a user would register it. */
extern const gpp_operator test_op_muladd;

#endif
