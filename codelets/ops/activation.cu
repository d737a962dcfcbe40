/*
 * codelets/ops/activation.cu: functions of one number on CUDA: relu, relu6, leaky_relu, elu, gelu,
 * hardtanh, sigmoid, silu, softplus, tanh. Their formulas are at the top of their C files.
 *
 * Each is a pair of device functions, which threads run over tensors, four neighbours at a time.
 * Memory limits all of them: even gelu's slope, the longest, is a few dozen operations for 12
 * bytes. A NaN gives a NaN, as on the CPU.
 */
#include "codelets/ops/activation.h"

#include "codelets/cuda/cuda.h"
#include "codelets/op.h"

extern "C" {
extern const gpp__kernels gpp__cuda_relu, gpp__cuda_hardtanh, gpp__cuda_relu6, gpp__cuda_leaky_relu,
    gpp__cuda_elu, gpp__cuda_sigmoid, gpp__cuda_silu, gpp__cuda_tanh, gpp__cuda_softplus,
    gpp__cuda_gelu;
}

/* Attributes as the device functions want them. */
typedef struct numbers {
    float a, b;
} numbers;

/* y from x; and the gradient of x from that of y and from `a`, which is x or y as the operator's
 * backward_needs says. */
typedef float (*forward_fn)(numbers n, float x);
typedef float (*backward_fn)(numbers n, float a, float grad);
typedef numbers (*numbers_fn)(const void *attr);

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

/* The functions of an operator, with the numbers that `numbers_of` makes of its attributes. */
template <forward_fn of, numbers_fn numbers_of>
static gpp_status activation_forward(const gpp__kernel *kernel, const gpp__run *run,
                                     const gpp__io *io)
{
    return activate<of>(numbers_of(kernel->layer->attr), kernel, run, io);
}

template <backward_fn slope, numbers_fn numbers_of>
static gpp_status activation_backward(const gpp__kernel *kernel, const gpp__run *run,
                                      const gpp__io *io)
{
    return activate_back<slope>(numbers_of(kernel->layer->attr), kernel, run, io);
}

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

const gpp__kernels gpp__cuda_relu = {.forward = activation_forward<relu_of, no_numbers>,
                                     .backward = activation_backward<relu_slope, no_numbers>};

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

const gpp__kernels gpp__cuda_hardtanh = {
    .forward = activation_forward<hardtanh_of, hardtanh_numbers>,
    .backward = activation_backward<hardtanh_slope, hardtanh_numbers>};

#define relu6_of    hardtanh_of
#define relu6_slope hardtanh_slope

static numbers relu6_numbers(const void *attr)
{
    numbers n = {0, 6};
    (void)attr;
    return n;
}

const gpp__kernels gpp__cuda_relu6 = {.forward = activation_forward<relu6_of, relu6_numbers>,
                                      .backward = activation_backward<relu6_slope, relu6_numbers>};

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

const gpp__kernels gpp__cuda_leaky_relu = {
    .forward = activation_forward<leaky_relu_of, leaky_relu_numbers>,
    .backward = activation_backward<leaky_relu_slope, leaky_relu_numbers>};

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

const gpp__kernels gpp__cuda_elu = {.forward = activation_forward<elu_of, elu_numbers>,
                                    .backward = activation_backward<elu_slope, elu_numbers>};

/* --- sigmoid, silu, tanh ---------------------------------------------------------------------- */

__device__ static inline float sigmoid_of(numbers, float x)
{
    return gpp__sigmoid(x);
}

__device__ static inline float sigmoid_slope(numbers, float y, float grad)
{
    return grad * (y * (1.0f - y));
}

const gpp__kernels gpp__cuda_sigmoid = {.forward = activation_forward<sigmoid_of, no_numbers>,
                                        .backward = activation_backward<sigmoid_slope, no_numbers>};

__device__ static inline float silu_of(numbers, float x)
{
    return x * gpp__sigmoid(x);
}

__device__ static inline float silu_slope(numbers, float x, float grad)
{
    float s = gpp__sigmoid(x);
    return grad * (s * (1.0f + x * (1.0f - s)));
}

const gpp__kernels gpp__cuda_silu = {.forward = activation_forward<silu_of, no_numbers>,
                                     .backward = activation_backward<silu_slope, no_numbers>};

__device__ static inline float tanh_of(numbers, float x)
{
    return tanhf(x);
}

__device__ static inline float tanh_slope(numbers, float y, float grad)
{
    return grad * (1.0f - y * y);
}

const gpp__kernels gpp__cuda_tanh = {.forward = activation_forward<tanh_of, no_numbers>,
                                     .backward = activation_backward<tanh_slope, no_numbers>};

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

const gpp__kernels gpp__cuda_softplus = {
    .forward = activation_forward<softplus_of, softplus_numbers>,
    .backward = activation_backward<softplus_slope, softplus_numbers>};

/* --- gelu: a is 1 where it is approximate. erfc and not 1 + erf, which cancels in the left tail.
 */

/* The argument of the sigmoid that approximates the distribution function. */
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

const gpp__kernels gpp__cuda_gelu = {.forward = activation_forward<gelu_of, gelu_numbers>,
                                     .backward = activation_backward<gelu_slope, gelu_numbers>};
