/*
 * tests/support.h: what several tests share: memory that shows misuse, numbers, comparisons, and a
 * rig that runs one layer without a model, a pipe or the runtime.
 *
 * Everything here is for tests: what fails in a helper ends the test program.
 */
#ifndef GPP_TESTS_SUPPORT_H
#define GPP_TESTS_SUPPORT_H

#include "codelets/op.h"

/** A number from the environment: what a run by hand may choose. */
uint64_t test_setting(const char *name, uint64_t fallback);

/** Exactly `bytes` bytes, aligned as the library's buffers, filled with 0xff (as float32: NaN), so
 * that what is read before it is written shows. Release with free. */
void *test_room(size_t bytes);

/** Uniform in [lo, hi), a function of seed and position. */
void test_fill(float *x, int64_t count, uint64_t seed, double lo, double hi);
/** The numbers (k + 1/2 - count/2) · gap in random order: no two closer than gap, none closer to 0
 * than gap / 2. */
void test_fill_apart(float *x, int64_t count, uint64_t seed, double gap);
/** Each -1 or 1. */
void test_fill_signs(float *x, int64_t count, uint64_t seed);

/** Largest |got - want| over largest |want| (over 1 when that is 0); infinity for a NaN on one side
 * only. */
double test_distance(const float *got, const float *want, int64_t count);
/** Σ a·b in double. */
double test_dot(const float *a, const float *b, int64_t count);
/** Bit for bit. */
bool test_same(const float *a, const float *b, int64_t count);

/**
 * One operator, compiled for `rows` rows, with its parameters and buffers. Tensors are in the
 * user's layout (N, C, H, W); the rig converts. Between calls, fields of `run` and the flags may be
 * changed.
 */
typedef struct test_rig {
    gpp__layer layer;
    gpp__store store;
    gpp__kernel kernel;
    gpp__run run;   /* training, seed 1, step 0, row0 0 */
    bool in_place;  /* run as in_place allows: out[0] over in[0], grad_in[0] over grad_out[0] */
    bool discard;   /* forward without a backward: nowhere to save to */
    bool frozen;    /* backward without gradients of parameters */
    bool has_store; /* what has been made, for test_rig_free */
    bool has_kernel;
    char *params, *packed, *grads, *saved, *scratch;
    char *stats; /* [op->stats_bytes] what the last forward recorded; NULL: it records nothing */
    uint32_t absent; /* bit t: the last forward stashed none as out[t] */
    /* In the kernels' layout; floats, or int64_t where the tensor is. */
    char *in[GPP__MAX_TENSORS], *out[GPP__MAX_TENSORS];
    char *grad_in[GPP__MAX_TENSORS], *grad_out[GPP__MAX_TENSORS];
} test_rig;

/**
 * For an operator that takes one tensor.
 * @param spec   model text of one layer: "conv2d out=4 kernel=3 @stem"
 * @param index  its place in the model and its id, part of the random generator's key
 * @return a failure of the operator's, with err filled; *rig is then NULL
 */
gpp_status test_rig_new(test_rig **rig, const char *spec, int index, const gpp__desc *in,
                        int64_t rows, int threads, gpp_error *err);
/**
 * For any operator, those that only networks use among them ("fork outputs=3").
 * @param in     [count] the tuple, then the popped tensors
 * @param batch  rows of the micro-batch in each mini-batch; a tensor has those of its own
 */
gpp_status test_rig_new_tuple(test_rig **rig, const char *spec, int index, const gpp__desc in[],
                              int count, const int64_t batch[GPP__BATCHES], int threads,
                              gpp_error *err);
void test_rig_free(test_rig *rig);

/** Elements of input and output, all rows. */
int64_t test_rig_inputs(const test_rig *rig);
int64_t test_rig_outputs(const test_rig *rig);
int64_t test_rig_input(const test_rig *rig, int t);
int64_t test_rig_output(const test_rig *rig, int t);
/** Parameter or buffer `p`, row-major, to write before a forward. Parameters are NaN until they are
 * set, buffers as the operator initialises them. */
float *test_rig_param(test_rig *rig, int p);
/** The same for one of integers. */
int64_t *test_rig_counter(test_rig *rig, int p);
/** Every parameter and buffer as the operator initialises it. */
void test_rig_init(test_rig *rig, uint64_t seed);

/** Packs the parameters, then runs. @param y out; may be NULL */
gpp_status test_rig_forward(test_rig *rig, const float *x, float *y);
/** @param grad_x out; NULL: not wanted, and not computed  @param accumulate add to the gradients of
 * the call before */
gpp_status test_rig_backward(test_rig *rig, const float *grad_y, float *grad_x, bool accumulate);

/** The same for any operator. @param in [inputs] NULL: absent  @param out [outputs] NULL: not
 * interesting, but computed */
gpp_status test_rig_forward_tuple(test_rig *rig, const void *const in[], void *const out[]);
/** @param grad_out [outputs] NULL: zero  @param grad_in [inputs] out; NULL: not wanted */
gpp_status test_rig_backward_tuple(test_rig *rig, const float *const grad_out[],
                                   float *const grad_in[], bool accumulate);
/** Gradient of parameter `p`, row-major, into out [layer.param[p].count]. */
void test_rig_grad(test_rig *rig, int p, float *out);
/** Folds records of forwards (rig->stats, or copies of it) into the buffers. */
void test_rig_commit(test_rig *rig, int count, const char *const stats[]);

#endif
