/*
 * codelets/cuda/conv_library.cu: convolutions by cuDNN: what describes them, which of its
 * algorithms are taken (conv.h says how they are chosen), and a call.
 *
 * A call may refuse an algorithm although cuDNN lists it and says how much memory it needs: the
 * lists are estimates (github.com/pytorch/pytorch/issues/31336). Then the next one on the list that
 * needs no more memory than the first is tried, and in the end columns, where there is room for
 * them. Whether a call refuses depends on the shape, as the list does. So results still depend on
 * the shape alone.
 */
#include "codelets/cuda/conv_internal.h"

/* --- descriptors ------------------------------------------------------------------------------ */

/* From version 9 on there are kinds of it, 3000 to 3999. */
static bool unsupported(cudnnStatus_t code)
{
    return code == CUDNN_STATUS_NOT_SUPPORTED ||
           (CUDNN_STATUS_NOT_SUPPORTED >= 1000 && code / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000);
}

/* Turns "not supported" into GPP_OK, because columns take over then. Other failures stay. */
static gpp_status tolerate(const gpp__cuda_conv *c, cudnnStatus_t code, const char *call,
                           gpp_error *err)
{
    return code == CUDNN_STATUS_SUCCESS || unsupported(code)
               ? GPP_OK
               : gpp__cudnn_failed(code, call, c->layer, err);
}

static cudnnStatus_t describe_tensors(gpp__cuda_conv *c, cudnnDataType_t type)
{
    const gpp__conv_shape *s = &c->shape;
    cudnnStatus_t code =
        cudnnSetTensor4dDescriptor(c->image, CUDNN_TENSOR_NHWC, type, (int)c->rows,
                                   (int)s->in_channels, (int)s->in[0], (int)s->in[1]);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetTensor4dDescriptor(c->map, CUDNN_TENSOR_NHWC, type, (int)c->rows,
                                          (int)s->out_channels, (int)s->out[0], (int)s->out[1]);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetFilter4dDescriptor(c->weights, type, CUDNN_TENSOR_NHWC, (int)s->out_channels,
                                          (int)gpp__conv_channels_in(s), (int)s->kernel[0],
                                          (int)s->kernel[1]);
    return code;
}

static cudnnStatus_t describe_way(const gpp__cuda_conv *c, gpp__conv_choice *w,
                                  cudnnMathType_t math)
{
    const gpp__conv_shape *s = &c->shape;
    cudnnStatus_t code = cudnnSetConvolution2dDescriptor(
        w->how, (int)s->padding[0], (int)s->padding[1], (int)s->stride[0], (int)s->stride[1],
        (int)s->dilation[0], (int)s->dilation[1], CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetConvolutionGroupCount(w->how, (int)s->groups);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetConvolutionMathType(w->how, math);
    return code;
}

static gpp_status create_descriptors(gpp__cuda_conv *c, gpp_error *err)
{
    gpp_status status = GPP__CUDNN(cudnnCreateTensorDescriptor(&c->image), c->layer, err);
    if (status == GPP_OK)
        status = GPP__CUDNN(cudnnCreateTensorDescriptor(&c->map), c->layer, err);
    if (status == GPP_OK)
        status = GPP__CUDNN(cudnnCreateFilterDescriptor(&c->weights), c->layer, err);
    for (int k = 0; k < GPP__CONV_WAYS && status == GPP_OK; k++)
        status = GPP__CUDNN(cudnnCreateConvolutionDescriptor(&c->way[k].how), c->layer, err);
    return status;
}

/* The arithmetic for which cuDNN is asked to list algorithms. `fits` decides which entries are
 * taken. */
static cudnnMathType_t math_of(const gpp__cuda *cuda)
{
    return cuda->math == GPP__MATH_F32    ? CUDNN_FMA_MATH
           : cuda->math == GPP__MATH_TF32 ? CUDNN_DEFAULT_MATH
                                          : CUDNN_TENSOR_OP_MATH;
}

/* @param known  out: cuDNN can be asked */
static gpp_status describe(gpp__cuda_conv *c, const gpp__cuda *cuda, bool *known, gpp_error *err)
{
    cudnnDataType_t type = cuda->math == GPP__MATH_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    gpp_status status = create_descriptors(c, err);
    if (status != GPP_OK)
        return status;
    cudnnStatus_t code = describe_tensors(c, type);
    for (int k = 0; k < GPP__CONV_WAYS && code == CUDNN_STATUS_SUCCESS; k++)
        code = describe_way(c, &c->way[k], math_of(cuda));
    *known = code == CUDNN_STATUS_SUCCESS;
    return tolerate(c, code, "descriptors of a convolution", err);
}

/* --- the choice ------------------------------------------------------------------------------- */

static cudnnStatus_t workspace_of(const gpp__cuda_conv *c, const gpp__cuda *cuda,
                                  const gpp__conv_choice *w, cudnnConvolutionFwdAlgo_t algorithm,
                                  size_t *bytes)
{
    return cudnnGetConvolutionForwardWorkspaceSize(cuda->dnn, c->image, c->weights, w->how, c->map,
                                                   algorithm, bytes);
}

static cudnnStatus_t workspace_of(const gpp__cuda_conv *c, const gpp__cuda *cuda,
                                  const gpp__conv_choice *w,
                                  cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes)
{
    return cudnnGetConvolutionBackwardDataWorkspaceSize(cuda->dnn, c->weights, c->map, w->how,
                                                        c->image, algorithm, bytes);
}

static cudnnStatus_t workspace_of(const gpp__cuda_conv *c, const gpp__cuda *cuda,
                                  const gpp__conv_choice *w,
                                  cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *bytes)
{
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(cuda->dnn, c->image, c->map, w->how,
                                                          c->weights, algorithm, bytes);
}

/* Never one that rounds float32 to float16. */
template <typename entry> static bool fits(const gpp__cuda *cuda, const entry *e)
{
    bool math = cuda->math == GPP__MATH_F32 ? e->mathType != CUDNN_TENSOR_OP_MATH : true;
    return e->status == CUDNN_STATUS_SUCCESS && math &&
           e->mathType != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION &&
           (!cuda->deterministic || e->determinism == CUDNN_DETERMINISTIC);
}

static bool is_taken(const gpp__conv_choice *w, int algorithm)
{
    bool found = false;
    for (int k = 0; k < w->algorithms; k++)
        found = found || w->algorithm[k] == algorithm;
    return found;
}

/* Adds an algorithm, unless it needs more memory than the first one. */
static void take(gpp__conv_choice *w, int algorithm, size_t bytes)
{
    size_t most = w->algorithms ? w->workspace : GPP__CUDA_CONV_WORKSPACE;
    if (bytes > most)
        return;
    if (w->algorithms == 0)
        w->workspace = bytes;
    w->algorithm[w->algorithms++] = algorithm;
    w->columns = false;
}

/* The descriptor keeps FMA for float32 whatever an entry calls its arithmetic; else it gets the
 * first taken entry's, with which later ones have to do. */
template <typename entry>
static gpp_status take_listed(const gpp__cuda_conv *c, const gpp__cuda *cuda, gpp__conv_choice *w,
                              const entry *list, int count, gpp_error *err)
{
    for (int k = 0; k < count; k++) {
        if (!fits(cuda, &list[k]) || is_taken(w, (int)list[k].algo))
            continue;
        size_t bytes = 0;
        cudnnMathType_t math = cuda->math == GPP__MATH_F32 ? CUDNN_FMA_MATH : list[k].mathType;
        cudnnStatus_t code =
            w->algorithms ? CUDNN_STATUS_SUCCESS : cudnnSetConvolutionMathType(w->how, math);
        if (code == CUDNN_STATUS_SUCCESS)
            code = workspace_of(c, cuda, w, list[k].algo, &bytes);
        gpp_status status = tolerate(c, code, "workspace of a convolution", err);
        if (status != GPP_OK)
            return status;
        if (code == CUDNN_STATUS_SUCCESS)
            take(w, (int)list[k].algo, bytes);
    }
    return GPP_OK;
}

static gpp_status choose_forward(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    cudnnConvolutionFwdAlgoPerf_t list[GPP__CONV_LISTED];
    int count = 0;
    gpp__conv_choice *w = &c->way[GPP__CONV_FORWARD];
    cudnnStatus_t code = cudnnGetConvolutionForwardAlgorithm_v7(
        cuda->dnn, c->image, c->weights, w->how, c->map, GPP__CONV_LISTED, &count, list);
    if (code != CUDNN_STATUS_SUCCESS)
        return tolerate(c, code, "cudnnGetConvolutionForwardAlgorithm_v7", err);
    return take_listed(c, cuda, w, list, count, err);
}

static gpp_status choose_data(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    cudnnConvolutionBwdDataAlgoPerf_t list[GPP__CONV_LISTED];
    int count = 0;
    gpp__conv_choice *w = &c->way[GPP__CONV_DATA];
    cudnnStatus_t code = cudnnGetConvolutionBackwardDataAlgorithm_v7(
        cuda->dnn, c->weights, c->map, w->how, c->image, GPP__CONV_LISTED, &count, list);
    if (code != CUDNN_STATUS_SUCCESS)
        return tolerate(c, code, "cudnnGetConvolutionBackwardDataAlgorithm_v7", err);
    return take_listed(c, cuda, w, list, count, err);
}

static gpp_status choose_weights(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    cudnnConvolutionBwdFilterAlgoPerf_t list[GPP__CONV_LISTED];
    int count = 0;
    gpp__conv_choice *w = &c->way[GPP__CONV_WEIGHTS];
    cudnnStatus_t code = cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        cuda->dnn, c->image, c->map, w->how, c->weights, GPP__CONV_LISTED, &count, list);
    if (code != CUDNN_STATUS_SUCCESS)
        return tolerate(c, code, "cudnnGetConvolutionBackwardFilterAlgorithm_v7", err);
    return take_listed(c, cuda, w, list, count, err);
}

gpp_status gpp__conv_choose(gpp__cuda_conv *c, const gpp__cuda *cuda, gpp_error *err)
{
    bool known = false;
    gpp_status status = describe(c, cuda, &known, err);
    if (status != GPP_OK || !known)
        return status;
    status = choose_forward(c, cuda, err);
    if (status == GPP_OK)
        status = choose_data(c, cuda, err);
    return status == GPP_OK ? choose_weights(c, cuda, err) : status;
}

/* --- one call --------------------------------------------------------------------------------- */

static cudnnStatus_t try_one(const gpp__conv_call *k, gpp__conv_way which, int algorithm)
{
    const gpp__cuda_conv *c = k->conv;
    const gpp__cuda_conv_args *a = k->args;
    const gpp__conv_choice *w = &c->way[which];
    const float one = 1, none = 0;
    cudnnHandle_t dnn = k->cuda->dnn;
    void *image = k->image ? k->image : a->image, *map = k->map ? k->map : a->map;
    void *grad = k->grad ? k->grad : a->grad;
    if (which == GPP__CONV_FORWARD)
        return cudnnConvolutionForward(dnn, &one, c->image, image, c->weights, a->weights, w->how,
                                       (cudnnConvolutionFwdAlgo_t)algorithm, k->rest, w->workspace,
                                       &none, c->map, map);
    if (which == GPP__CONV_DATA)
        return cudnnConvolutionBackwardData(dnn, &one, c->weights, a->weights, c->map, map, w->how,
                                            (cudnnConvolutionBwdDataAlgo_t)algorithm, k->rest,
                                            w->workspace, &none, c->image, image);
    return cudnnConvolutionBackwardFilter(
        dnn, &one, c->image, image, c->map, map, w->how, (cudnnConvolutionBwdFilterAlgo_t)algorithm,
        k->rest, w->workspace, a->add && !k->grad ? &one : &none, c->weights, grad);
}

/* Only a remark in the log: the library copes with the refusal. */
static void tell_refusal(const gpp__conv_call *k, const char *name, int algorithm,
                         cudnnStatus_t code)
{
    const gpp__layer *layer = k->conv->layer;
    gpp__log(GPP_LOG_DEBUG, "%s (layer %d, \"%s\"): algorithm %d is refused by %s: %s",
             layer->op->name, layer->index, layer->label, algorithm, name,
             cudnnGetErrorString(code));
}

gpp_status gpp__conv_by_library(const gpp__conv_call *k, gpp__conv_way which, bool *refused)
{
    static const char *const name[] = {"cudnnConvolutionForward", "cudnnConvolutionBackwardData",
                                       "cudnnConvolutionBackwardFilter"};
    const gpp__conv_choice *w = &k->conv->way[which];
    cudnnStatus_t code = CUDNN_STATUS_NOT_SUPPORTED;
    for (int tried = 0; tried < w->algorithms && unsupported(code); tried++) {
        code = try_one(k, which, w->algorithm[tried]);
        if (unsupported(code))
            tell_refusal(k, name[which], w->algorithm[tried], code);
    }
    *refused = unsupported(code);
    if (code == CUDNN_STATUS_SUCCESS || (*refused && w->instead))
        return GPP_OK;
    return gpp__cudnn_failed(code, name[which], k->conv->layer, k->err);
}
