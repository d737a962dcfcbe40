/*
 * tests/cuda/test_cuda_operators.c: every operator on CUDA against the CPU, for the rows of
 * tests/operators.c. rig.h lists the properties that are checked.
 *
 * What single operators do is in test_cuda_ops.c and test_cuda_products.c.
 */
#include <criterion/criterion.h>

#include "tests/cuda/rig.h"

#define COUNT(table) (sizeof table / sizeof *table)

/* How far an operator's results may be from the CPU's, of the largest value. Those that are not
 * listed move, select, add or multiply numbers in the CPU's order: they give the same bits. */

/* Both sides do the same operations; a device's compiler may fuse some, and a gradient may be that
 * of many outputs. */
#define ROUNDINGS 1e-6
/* A device's library against polynomials of the CPU: a few units in the last place of each. Sums of
 * a softmax are in another order, of other exponentials. */
#define LIBRARIES 2e-6
/* The CPU sums over rows in double and rounds once, a device in float32: 33 additions. */
#define ROW_SUMS 4e-6
/* Sums are double on both sides and differ in their order alone: what is left are last bits of
 * coefficients, and of what nearly cancels in the gradient of x. */
#define NORMS 1e-5
/* Sums of float32 in another order than the CPU's. */
#define PRODUCTS 1e-5
/* Convolutions on a device also by Winograd's transforms, which lose another digit. */
#ifdef GPP_EMULATION
#define CONVOLUTIONS PRODUCTS
#else
#define CONVOLUTIONS 1e-4
#endif

static const struct {
    const char *op;
    double off;
} allowed[] = {
    {"leaky_relu", ROUNDINGS},
    {"elu", ROUNDINGS},
    {"sigmoid", ROUNDINGS},
    {"silu", ROUNDINGS},
    {"softplus", ROUNDINGS},
    {"upsample", ROUNDINGS},
    {"tanh", LIBRARIES},
    {"gelu", LIBRARIES},
    {"softmax", LIBRARIES},
    {"log_softmax", LIBRARIES},
    {"batchnorm", NORMS},
    {"layernorm", NORMS},
    {"groupnorm", NORMS},
    {"instancenorm", NORMS},
    {"linear", PRODUCTS},
    {"self_attention", PRODUCTS},
    {"conv2d", CONVOLUTIONS},
    {"conv_transpose2d", CONVOLUTIONS},
    {"position_embedding", ROW_SUMS},
};

/* TF32 cuts an operand after 10 bits, 2^-10 of it, so a product is off by up to 2^-9. Errors of a
 * sum cancel; those of attention's stages add up, to no more than twice that. bfloat16 rounds after
 * 7 bits: 2^-9 of an operand, 2^-8 of a product, four times that after several stages, of which
 * cuDNN's results are one. */
static const double rounded[] = {[GPP__MATH_TF32] = 4e-3, [GPP__MATH_BF16] = 1.6e-2};

static double tolerance_of(const test_op_case *c, gpp__math math)
{
    if (math != GPP__MATH_F32)
        return rounded[math];
    for (size_t k = 0; k < COUNT(allowed) && c->off == 0; k++)
        if (test_op_is(c, allowed[k].op))
            return allowed[k].off;
    return c->off;
}

/* @return the operator of the case; NULL where its outputs are views of its inputs */
static const gpp_op *op_that_computes(const test_op_case *c)
{
    const int64_t batch[GPP__BATCHES] = {c->rows};
    test_rig *rig;
    cr_assert_eq(test_rig_new_tuple(&rig, c->spec, 0, c->in, c->inputs, batch, 1, NULL), GPP_OK,
                 "%s", c->spec);
    const gpp_op *op = rig->layer.op;
    bool view = op->is_view && op->is_view(&rig->layer);
    test_rig_free(rig);
    return view ? NULL : op;
}

/* --- the rows --------------------------------------------------------------------------------- */

/* A large case has several units of a core's work; a GPU has no such units. */
#define EACH_CUDA_CASE(c) EACH_CASE(c) if (!c->large || c->most > 0)

Test(cuda_operators, every_one_that_computes_has_kernels)
{
    EACH_CASE(c)
    {
        const gpp_op *op = op_that_computes(c);
        cr_expect(!op || op->cuda, "%s (%s)", c->spec, c->why);
    }
}

Test(cuda_operators, results_are_the_cpus)
{
    EACH_CUDA_CASE(c)
    if (op_that_computes(c))
        cuda_check(c, (cuda_way){.tolerance = tolerance_of(c, GPP__MATH_F32)});
}

Test(cuda_operators, results_of_rounded_products_are_the_cpus)
{
    EACH_CUDA_CASE(c)
    for (int math = GPP__MATH_TF32; math <= GPP__MATH_BF16 && c->rounds; math++)
        cuda_check(
            c, (cuda_way){.math = (gpp__math)math, .tolerance = tolerance_of(c, (gpp__math)math)});
}

Test(cuda_operators, results_in_evaluation_are_the_cpus)
{
    EACH_CUDA_CASE(c)
    {
        /* The others have kernels that do not ask, or none run. */
        const gpp_op *op = op_that_computes(c);
        if (op && op->stats_bytes)
            cuda_check(c,
                       (cuda_way){.evaluate = true, .tolerance = tolerance_of(c, GPP__MATH_F32)});
    }
}
