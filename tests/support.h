/*
 * tests/support.h: what several tests share: memory that shows misuse, numbers, comparisons, and a
 * rig that runs one layer without a model, a pipe or the runtime.
 *
 * Everything here is for tests: a helper that fails ends the test program.
 */
#ifndef GPP_TESTS_SUPPORT_H
#define GPP_TESTS_SUPPORT_H

#include "codelets/op.h"

/** A number from the environment, for runs by hand; `fallback` where the variable is not set. */
uint64_t test_setting(const char *name, uint64_t fallback);

/** Exactly `bytes` bytes, aligned like the library's buffers. They are filled with 0xff, which is
 * NaN as float32, so that reading what was not written shows. Release with free. */
void *test_room(size_t bytes);

/** Fill with numbers that are uniform in [lo, hi) and depend on seed and position only. */
void test_fill(float *x, int64_t count, uint64_t seed, double lo, double hi);
/** Fill with the numbers (k + 1/2 - count/2) · gap in random order. No two are closer than gap, and
 * none is closer to 0 than gap / 2. */
void test_fill_apart(float *x, int64_t count, uint64_t seed, double gap);
/** Fill with -1 and 1 at random. */
void test_fill_signs(float *x, int64_t count, uint64_t seed);

/** The largest |got - want|, divided by the largest |want| (by 1 when that is 0). Infinity where
 * only one of them is NaN. */
double test_distance(const float *got, const float *want, int64_t count);
/** Σ a·b, added up in double. */
double test_dot(const float *a, const float *b, int64_t count);
/** Whether both are equal bit for bit. */
bool test_same(const float *a, const float *b, int64_t count);

/**
 * One operator, compiled for `rows` rows, with its parameters and buffers. The caller's tensors are
 * in the user's layout (N, C, H, W); the rig converts them. Between calls the caller may change
 * fields of `run` and the flags.
 */
typedef struct test_rig {
    gpp__layer layer;
    gpp__store store;
    gpp__kernel kernel;
    gpp__run run;   /* training, seed 1, step 0, row0 0 */
    bool in_place;  /* where the operator allows it: out[0] is in[0], grad_in[0] is grad_out[0] */
    bool discard;   /* no backward follows the forward, so nothing is saved */
    bool frozen;    /* the backward gives no gradients of parameters */
    bool has_store; /* for test_rig_free: what has been made */
    bool has_kernel;
    char *params, *packed, *grads, *saved, *scratch;
    char *stats; /* [op->stats_bytes] what the last forward recorded; NULL: it records nothing */
    uint32_t absent; /* bit t: the last forward stashed no tensor as out[t] */
    /* In the kernels' layout; floats, or int64_t where the tensor is of integers. */
    char *in[GPP__MAX_TENSORS], *out[GPP__MAX_TENSORS];
    char *grad_in[GPP__MAX_TENSORS], *grad_out[GPP__MAX_TENSORS];
} test_rig;

/**
 * Make a rig for an operator that takes one tensor.
 * @param spec   model text of one layer: "conv2d out=4 kernel=3 @stem"
 * @param index  its place in the model and its id, which is part of the random generator's key
 * @return the operator's status. After a failure err is filled and *rig is NULL
 */
gpp_status test_rig_new(test_rig **rig, const char *spec, int index, const gpp__desc *in,
                        int64_t rows, int threads, gpp_error *err);
/**
 * Make a rig for any operator, also for those that only networks use ("fork outputs=3").
 * @param in     [count] the tuple, then the popped tensors
 * @param batch  rows of the micro-batch, for each mini-batch; a tensor has those of its own one
 */
gpp_status test_rig_new_tuple(test_rig **rig, const char *spec, int index, const gpp__desc in[],
                              int count, const int64_t batch[GPP__BATCHES], int threads,
                              gpp_error *err);
void test_rig_free(test_rig *rig);

/** Elements of the input, of the output, of output `t`, over all rows. */
int64_t test_rig_inputs(const test_rig *rig);
int64_t test_rig_outputs(const test_rig *rig);
int64_t test_rig_input(const test_rig *rig, int t);
int64_t test_rig_output(const test_rig *rig, int t);
/** Parameter or buffer `p`, row-major, to be written before a forward. Parameters are NaN until
 * then; buffers are as the operator initialises them. */
float *test_rig_param(test_rig *rig, int p);
/** The same, for a buffer of integers. */
int64_t *test_rig_counter(test_rig *rig, int p);
/** Have the operator initialise every parameter and buffer. */
void test_rig_init(test_rig *rig, uint64_t seed);

/** Pack the parameters, then run the forward. @param y  out; may be NULL */
gpp_status test_rig_forward(test_rig *rig, const float *x, float *y);
/**
 * @param grad_x      out; NULL: not wanted, and not computed
 * @param accumulate  add to the parameters' gradients of the call before
 */
gpp_status test_rig_backward(test_rig *rig, const float *grad_y, float *grad_x, bool accumulate);

/**
 * The same for any operator.
 * @param in   [inputs] NULL: absent
 * @param out  [outputs] NULL: computed, but not given back
 */
gpp_status test_rig_forward_tuple(test_rig *rig, const void *const in[], void *const out[]);
/**
 * @param grad_out  [outputs] NULL: zero
 * @param grad_in   [inputs] out; NULL: not wanted
 */
gpp_status test_rig_backward_tuple(test_rig *rig, const float *const grad_out[],
                                   float *const grad_in[], bool accumulate);
/** Write the gradient of parameter `p`, row-major, to out [layer.param[p].count]. */
void test_rig_grad(test_rig *rig, int p, float *out);
/** Fold what forwards recorded (rig->stats, or copies of it) into the buffers. */
void test_rig_commit(test_rig *rig, int count, const char *const stats[]);

#endif
