/*
 * tests/operators.h: one table of cases for every operator, and a probe that runs a case.
 *
 * A row says what an operator is given and how far its results may be from what they should be. The
 * properties that hold for all operators are checked by test_operators.c on the CPU and by
 * cuda/test_cuda_operators.c on CUDA. What only one operator does is in a test of its own.
 */
#ifndef GPP_TESTS_OPERATORS_H
#define GPP_TESTS_OPERATORS_H

#include "tests/slopes.h"

enum { TEST_OP_INPUTS = 4 }; /* the most inputs of a case */

/** How an operator bends: what it is given, and how close slopes come to its gradients. */
typedef enum test_bend {
    TEST_STRAIGHT, /* linear in each argument between kinks */
    TEST_SUMS,     /* the same, of so many terms that rounding shows more */
    TEST_CURVED,   /* smooth, a function of single numbers or of lines */
    TEST_NORMAL,   /* divides by a standard deviation */
    TEST_ATTENDS   /* products of three and exponentials */
} test_bend;

/** What inputs of float32 are filled with, where no central differences are taken. */
typedef enum test_op_values {
    TEST_UNIFORM,
    TEST_TIES,   /* whole numbers near 0: many equal ones, and the kinks of most functions */
    TEST_SPECIAL /* uniform, with NaN, infinities, large numbers and zeros of both signs */
} test_op_values;

typedef struct test_op_case {
    const char *spec, *why; /* the first word of spec is the operator */
    int inputs;
    gpp__desc in[TEST_OP_INPUTS];
    int64_t rows;
    test_bend bend;
    bool large;    /* several units of work; too large for central differences */
    double offset; /* of what it is given from 0 */
    test_op_values values;

    /* On CUDA, where a case is run with several numbers of rows instead of `rows`. */
    int64_t least, most; /* rows; most 0: any number, but none at all of a large case */
    bool rounds;         /* also with TF32 and bfloat16 */
    double off;          /* allowed error instead of the operator's; 0: the operator's */
} test_op_case;

extern const test_op_case test_op_cases[];
extern const size_t test_op_count;
bool test_op_is(const test_op_case *c, const char *name);

#define EACH_CASE(c)                                                                               \
    for (const test_op_case *c = test_op_cases; c < test_op_cases + test_op_count; c++)

/** For what a program asks for: how work is cut into units has no part in it. */
#define EACH_SMALL_CASE(c) EACH_CASE(c) if (!c->large)

/** Fill `count` elements of input `t`: numbers of [lo, hi) or what c->values says, or indices below
 * the operator's "num=". */
void test_op_fill(const test_op_case *c, int t, void *x, int64_t count, uint64_t seed, double lo,
                  double hi);

/** A case with all that f = Σ w·y over all outputs and its gradients need. */
typedef struct test_probe {
    const test_op_case *c;
    test_rig *rig;
    int inputs, outputs;
    void *x[GPP__MAX_TENSORS], *y[GPP__MAX_TENSORS];
    float *w[GPP__MAX_TENSORS], *grad[GPP__MAX_TENSORS]; /* grad of an input of integers: NULL */
} test_probe;

/** For `rows` rows; 0: those of the case. Filled the same for the same case. A failure ends the
 * test. */
test_probe test_probe_new(const test_op_case *c, int64_t rows, int threads);
void test_probe_free(test_probe *p);
/** Runs the forward. @return f */
double test_probe_value(test_probe *p);
/** Runs the backward: all gradients. */
void test_probe_back(test_probe *p, bool accumulate);
/** Outputs, gradients of inputs, gradients of parameters after two backwards, the second of which
 * adds, and the record of statistics, one behind the other. Release with free. */
float *test_probe_results(test_probe *p, int64_t *count);
/** Gradients against central differences. */
void test_probe_slopes(test_probe *p);

/** Fields of a case. */
#define TEST_OP(spec_, why_, rows_, ...)                                                           \
    .spec = spec_, .why = why_, .rows = rows_, .in = {__VA_ARGS__},                                \
    .inputs = sizeof((gpp__desc[]){__VA_ARGS__}) / sizeof(gpp__desc)

/* Tensors of a case. */
#define NUMBER                                                                                     \
    {                                                                                              \
        .rank = 0                                                                                  \
    }
#define VECTOR(n)                                                                                  \
    {                                                                                              \
        .rank = 1, .dim = { n }                                                                    \
    }
#define MATRIX(a, b)                                                                               \
    {                                                                                              \
        .rank = 2, .dim = { a, b }                                                                 \
    }
#define IMAGE(c, h, w)                                                                             \
    {                                                                                              \
        .rank = 3, .dim = { c, h, w }                                                              \
    }
#define VOLUME(a, b, c, d)                                                                         \
    {                                                                                              \
        .rank = 4, .dim = { a, b, c, d }                                                           \
    }
#define INDEX                                                                                      \
    {                                                                                              \
        .dtype = GPP_I64, .rank = 0                                                                \
    }
#define INDICES(...)                                                                               \
    {                                                                                              \
        .dtype = GPP_I64, .rank = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {             \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#endif
