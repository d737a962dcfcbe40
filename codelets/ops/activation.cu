/*
 * codelets/ops/activation.cu: functions of one number on CUDA: relu, relu6, leaky_relu, elu, gelu,
 * hardtanh, sigmoid, silu, softplus, tanh. Their formulas are at the top of their C files.
 *
 * Each is a pair of device functions; threads run them over tensors, four neighbours at a time.
 * Reading and writing memory once is what takes the time: even gelu's slope, the longest, is a few
 * dozen operations for 12 bytes. A NaN gives a NaN, as on the CPU.
 */
#include "codelets/ops/activation.h"

#include "codelets/cuda/cuda.h"
#include "codelets/cuda/kernels.h"

/* Attributes as the device functions want them. */
typedef struct numbers {
    float a, b;
} numbers;

/* y of x; x's gradient from `a`, which is x or y as the operator's backward_needs says, and y's. */
typedef float (*forward_fn)(numbers n, float x);
typedef float (*backward_fn)(numbers n, float a, float grad);

/* --- running them ----------------------------------------------------------------------------- */

template <forward_fn F, int W>
static __global__ void map(numbers n, const float *x, float *y, int64_t count)
{
    for (GPP__EACH(k, count)) {
        gpp__pack<W> v = gpp__pack_load<W>(x, k);
        for (int w = 0; w < W; w++)
            v.v[w] = F(n, v.v[w]);
        gpp__pack_store<W>(y, k, v);
    }
}

template <backward_fn F, int W>
static __global__ void map_back(numbers n, const float *a, const float *grad_y, float *grad_x,
                                int64_t count)
{
    for (GPP__EACH(k, count)) {
        gpp__pack<W> v = gpp__pack_load<W>(a, k), grad = gpp__pack_load<W>(grad_y, k);
        for (int w = 0; w < W; w++)
            v.v[w] = F(n, v.v[w], grad.v[w]);
        gpp__pack_store<W>(grad_x, k, v);
    }
}

template <forward_fn F>
static gpp_status activate(numbers n, const gpp__kernel *kernel, const gpp__run *run,
                           const gpp__io *io)
{
    int64_t count = kernel->rows * gpp__desc_count(&kernel->layer->in[0]);
    const float *x = (const float *)io->in[0];
    float *y = (float *)io->out[0];
    bool fours = gpp__in_fours(count, x, y, NULL);
    count = fours ? count / 4 : count;
    GPP__LAUNCH((fours ? map<F, 4> : map<F, 1>), gpp__blocks_of(run->cuda, count), GPP__THREADS,
                run->cuda, n, x, y, count);
    return gpp__cuda_launched(kernel->layer, run->err);
}

template <backward_fn F>
static gpp_status activate_back(numbers n, const gpp__kernel *kernel, const gpp__run *run,
                                const gpp__io *io)
{
    bool of_input = kernel->layer->op->backward_needs & GPP_NEEDS_INPUT;
    int64_t count = kernel->rows * gpp__desc_count(&kernel->layer->in[0]);
    const float *a = (const float *)(of_input ? io->in[0] : io->out[0]);
    const float *grad_y = (const float *)io->grad_out[0];
    float *grad_x = (float *)io->grad_in[0];
    if (!grad_x)
        return GPP_OK;
    bool fours = gpp__in_fours(count, a, grad_y, grad_x);
    count = fours ? count / 4 : count;
    GPP__LAUNCH((fours ? map_back<F, 4> : map_back<F, 1>), gpp__blocks_of(run->cuda, count),
                GPP__THREADS, run->cuda, n, a, grad_y, grad_x, count);
    return gpp__cuda_launched(kernel->layer, run->err);
}

/* The functions of the operator `name`: name##_of and name##_slope, with the numbers that
 * name##_numbers makes of its attributes. */
#define ACTIVATION(name, numbers_of)                                                               \
    static gpp_status name##_forward(const gpp__kernel *kernel, const gpp__run *run,               \
                                     const gpp__io *io)                                            \
    {                                                                                              \
        return activate<name##_of>(numbers_of(kernel->layer->attr), kernel, run, io);              \
    }                                                                                              \
    static gpp_status name##_backward(const gpp__kernel *kernel, const gpp__run *run,              \
                                      const gpp__io *io)                                           \
    {                                                                                              \
        return activate_back<name##_slope>(numbers_of(kernel->layer->attr), kernel, run, io);      \
    }                                                                                              \
    const gpp__kernels gpp__cuda_##name = {.forward = name##_forward, .backward = name##_backward};

static numbers no_numbers(const void *attr)
{
    numbers n = {0, 0};
    (void)attr;
    return n;
}

/* --- relu ------------------------------------------------------------------------------------- */

__device__ static inline float relu_of(numbers, float x)
{
    return 0.0f > x ? 0.0f : x;
}

__device__ static inline float relu_slope(numbers, float y, float grad)
{
    return y <= 0.0f ? 0.0f : grad;
}

ACTIVATION(relu, no_numbers)

/* --- hardtanh, and relu6, which is one -------------------------------------------------------- */

__device__ static inline float hardtanh_of(numbers n, float x)
{
    return gpp__clamp(x, n.a, n.b);
}

__device__ static inline float hardtanh_slope(numbers n, float y, float grad)
{
    return y <= n.a || y >= n.b ? 0.0f : grad;
}

static numbers hardtanh_numbers(const void *attr)
{
    const gpp__hardtanh_attr *of = (const gpp__hardtanh_attr *)attr;
    numbers n = {(float)of->min, (float)of->max};
    return n;
}

ACTIVATION(hardtanh, hardtanh_numbers)

#define relu6_of    hardtanh_of
#define relu6_slope hardtanh_slope

static numbers relu6_numbers(const void *attr)
{
    numbers n = {0, 6};
    (void)attr;
    return n;
}

ACTIVATION(relu6, relu6_numbers)

/* --- leaky_relu ------------------------------------------------------------------------------- */

__device__ static inline float leaky_relu_of(numbers n, float x)
{
    return x > 0.0f ? x : n.a * x;
}

__device__ static inline float leaky_relu_slope(numbers n, float y, float grad)
{
    return y > 0.0f ? grad : n.a * grad;
}

static numbers leaky_relu_numbers(const void *attr)
{
    numbers n = {(float)((const gpp__leaky_relu_attr *)attr)->slope, 0};
    return n;
}

ACTIVATION(leaky_relu, leaky_relu_numbers)

/* --- elu -------------------------------------------------------------------------------------- */

__device__ static inline float elu_of(numbers n, float x)
{
    return x > 0.0f ? x : n.a * gpp__expm1(x);
}

__device__ static inline float elu_slope(numbers n, float y, float grad)
{
    return y > 0.0f ? grad : grad * (y + n.a);
}

static numbers elu_numbers(const void *attr)
{
    numbers n = {(float)((const gpp__elu_attr *)attr)->alpha, 0};
    return n;
}

ACTIVATION(elu, elu_numbers)

/* --- sigmoid, silu, tanh ---------------------------------------------------------------------- */

__device__ static inline float sigmoid_of(numbers, float x)
{
    return gpp__sigmoid(x);
}

__device__ static inline float sigmoid_slope(numbers, float y, float grad)
{
    return grad * (y * (1.0f - y));
}

ACTIVATION(sigmoid, no_numbers)

__device__ static inline float silu_of(numbers, float x)
{
    return x * gpp__sigmoid(x);
}

__device__ static inline float silu_slope(numbers, float x, float grad)
{
    float s = gpp__sigmoid(x);
    return grad * (s * (1.0f + x * (1.0f - s)));
}

ACTIVATION(silu, no_numbers)

__device__ static inline float tanh_of(numbers, float x)
{
    return tanhf(x);
}

__device__ static inline float tanh_slope(numbers, float y, float grad)
{
    return grad * (1.0f - y * y);
}

ACTIVATION(tanh, no_numbers)

/* --- softplus: a is beta, b the threshold ----------------------------------------------------- */

__device__ static inline float softplus_of(numbers n, float x)
{
    float z = n.a * x;
    return z > n.b ? x : ((z > 0.0f ? z : 0.0f) + gpp__log1p(gpp__exp(-fabsf(z)))) / n.a;
}

__device__ static inline float softplus_slope(numbers n, float x, float grad)
{
    float z = n.a * x;
    return z > n.b ? grad : grad * gpp__sigmoid(z);
}

static numbers softplus_numbers(const void *attr)
{
    const gpp__softplus_attr *of = (const gpp__softplus_attr *)attr;
    numbers n = {(float)of->beta, (float)of->threshold};
    return n;
}

ACTIVATION(softplus, softplus_numbers)

/* --- gelu: a is 1 where it is approximate. erfc and not 1 + erf, which cancels in the left tail.
 */

/* What the sigmoid that stands for the distribution function is taken of. */
__device__ static inline float by_tanh(float x)
{
    return 1.59576912160573071f * (x + 0.044715f * (x * x * x));
}

__device__ static inline float normal(float x)
{
    return 0.5f * erfcf(-0.707106781186547524f * x);
}

__device__ static inline float gelu_of(numbers n, float x)
{
    return x * (n.a != 0.0f ? gpp__sigmoid(by_tanh(x)) : normal(x));
}

__device__ static inline float gelu_slope(numbers n, float x, float grad)
{
    if (n.a == 0.0f)
        return grad * (normal(x) + x * (expf(-0.5f * (x * x)) * 0.398942280401432678f));
    float s = gpp__sigmoid(by_tanh(x));
    float dv = 1.59576912160573071f * (1.0f + 0.134145f * (x * x));
    return grad * (s + x * (s * (1.0f - s)) * dv);
}

static numbers gelu_numbers(const void *attr)
{
    bool approximate = ((const gpp__gelu_attr *)attr)->approximate == GPP__GELU_TANH;
    numbers n = {approximate ? 1.0f : 0.0f, 0};
    return n;
}

ACTIVATION(gelu, gelu_numbers)
