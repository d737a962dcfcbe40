/*
 * AmoebaNet-D (Real et al., arXiv 1802.01548) as GPipe's paper and torchgpipe's benchmarks have it:
 * a sequence of cells, each a small graph of operators in one layer, with two tensors across every
 * cut. The published numbers of parameters say whether the graphs are right; small ones are
 * trained.
 */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipes.h"
#include "tests/support.h"

#define OK(call) cr_assert_eq((call), GPP_OK, "%s", err.msg)

static gpp_error err = GPP_ERROR_INIT;

/* --- an operator of its own: the image without its first line and column, zeros at the end ---- */

static gpp_status shift_infer(gpp_signature *s)
{
    s->outputs = 1;
    s->out[0] = s->in[0];
    return GPP_OK;
}

static void shift(const gpp_tensor *from, const gpp_tensor *to, int by)
{
    int64_t planes = from->dim[0] * from->dim[1], height = from->dim[2], width = from->dim[3];
    const float *x = from->data;
    float *y = to->data;
    for (int64_t p = 0; p < planes; p++)
        for (int64_t h = 0; h < height; h++)
            for (int64_t w = 0; w < width; w++) {
                int64_t a = h + by, b = w + by;
                bool inside = a >= 0 && a < height && b >= 0 && b < width;
                y[(p * height + h) * width + w] = inside ? x[(p * height + a) * width + b] : 0;
            }
}

static gpp_status shift_forward(gpp_call *c)
{
    shift(&c->in[0], &c->out[0], 1);
    return GPP_OK;
}

static gpp_status shift_backward(gpp_call *c)
{
    if (c->grad_in[0].data && c->grad_out[0].data)
        shift(&c->grad_out[0], &c->grad_in[0], -1);
    return GPP_OK;
}

static const gpp_operator op_shift = {
    .name = "shift", .infer = shift_infer, .forward = shift_forward, .backward = shift_backward};

/* --- cells ------------------------------------------------------------------------------------ */

typedef struct builder {
    gpp_model *model;
    int ops;         /* in the cell that is being built */
    int channels[2]; /* of the two tensors that the next cell gets; the second 0: there is one */
    bool after_reduction;
    int cells;
} builder;

/* Operators one behind the other, the first on `from`. Returns the last one's output. */
__attribute__((format(printf, 3, 4))) static gpp_ref seq(builder *b, gpp_ref from,
                                                         const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    OK(gpp_model_from(b->model, &from, 1, &err));
    OK(gpp_model_add_text(b->model, text, &err));
    for (const char *at = text; at; at = strchr(at + 1, ';'))
        b->ops++;
    return (gpp_ref){b->ops - 1, 0};
}

static gpp_ref join(builder *b, const char *text, const gpp_ref from[], int count)
{
    OK(gpp_model_from(b->model, from, count, &err));
    OK(gpp_model_add_text(b->model, text, &err));
    return (gpp_ref){b->ops++, 0};
}

static gpp_ref conv1(builder *b, gpp_ref x, int c, int stride)
{
    return seq(b, x, "relu; conv2d out=%d kernel=1 stride=%d bias=0; batchnorm", c, stride);
}

static gpp_ref conv3(builder *b, gpp_ref x, int c, int stride)
{
    return seq(b, x,
               "relu; conv2d out=%d kernel=1 bias=0; batchnorm; relu; "
               "conv2d out=%d kernel=3 stride=%d padding=1 bias=0; batchnorm; relu; "
               "conv2d out=%d kernel=1 bias=0; batchnorm",
               c / 4, c / 4, stride, c);
}

static gpp_ref conv7(builder *b, gpp_ref x, int c)
{
    return seq(b, x,
               "relu; conv2d out=%d kernel=1 bias=0; batchnorm; relu; "
               "conv2d out=%d kernel=1,7 padding=0,3 bias=0; batchnorm; relu; "
               "conv2d out=%d kernel=7,1 padding=3,0 bias=0; batchnorm; relu; "
               "conv2d out=%d kernel=1 bias=0; batchnorm",
               c / 4, c / 4, c / 4, c);
}

static gpp_ref pool3(builder *b, gpp_ref x, int stride)
{
    return seq(b, x, "avgpool2d kernel=3 stride=%d padding=1 count_include_pad=0", stride);
}

static gpp_ref halve(builder *b, gpp_ref x, int c) /* FactorizedReduce */
{
    gpp_ref r = seq(b, x, "relu");
    gpp_ref parts[2];
    parts[0] = seq(b, r, "conv2d out=%d kernel=1 stride=2 bias=0", c / 2);
    parts[1] = seq(b, r, "shift; conv2d out=%d kernel=1 stride=2 bias=0", c / 2);
    return seq(b, join(b, "cat dim=1", parts, 2), "batchnorm");
}

static gpp_ref sum(builder *b, gpp_ref x, gpp_ref y)
{
    return join(b, "add", (gpp_ref[]){x, y}, 2);
}

static void normal(builder *b, gpp_ref s[7], int c)
{
    s[2] = sum(b, conv1(b, s[1], c, 1), pool3(b, s[1], 1));
    s[3] = sum(b, s[1], conv7(b, s[0], c));
    s[4] = sum(b, conv1(b, s[0], c, 1), conv7(b, s[0], c));
    s[5] = sum(b, pool3(b, s[2], 1), s[2]);
    s[6] = sum(b, pool3(b, s[1], 1), conv1(b, s[5], c, 1));
}

static void reduction(builder *b, gpp_ref s[7], int c)
{
    s[2] = sum(b, seq(b, s[0], "maxpool2d kernel=2 stride=2"), pool3(b, s[0], 2));
    s[3] = sum(b, s[2], conv3(b, s[1], c, 2));
    s[4] = sum(b, conv7(b, s[2], c), pool3(b, s[2], 1));
    s[5] = sum(b, s[3], seq(b, s[1], "maxpool2d kernel=2 stride=2"));
    s[6] = sum(b, pool3(b, s[2], 1), conv1(b, s[3], c, 1));
}

static void cell(builder *b, int c, bool reduces)
{
    static const int normal_out[] = {0, 3, 4, 6}, reduction_out[] = {4, 5, 6};
    char label[16];
    bool two = b->channels[1] > 0;
    gpp_ref raw = {GPP_REF_INPUT, 0}, before = {GPP_REF_INPUT, two}, s[7], out[4];
    int count = reduces ? 3 : 4;
    snprintf(label, sizeof label, "cell%d", b->cells++);
    OK(gpp_model_begin(b->model, label, &err));
    b->ops = 0;
    s[0] = conv1(b, raw, c, 1);
    s[1] = b->after_reduction      ? halve(b, before, c)
           : b->channels[two] != c ? conv1(b, before, c, 1)
                                   : before;
    if (reduces)
        reduction(b, s, c);
    else
        normal(b, s, c);
    for (int k = 0; k < count; k++)
        out[k] = s[reduces ? reduction_out[k] : normal_out[k]];
    gpp_ref result[2] = {join(b, "cat dim=1", out, count), raw};
    OK(gpp_model_end(b->model, result, 2, &err));
    b->channels[1] = b->channels[0];
    b->channels[0] = count * c;
    b->after_reduction = reduces;
}

/* @param layers  L, a multiple of 3  @param width  D */
static gpp_model *amoebanet(int layers, int width, int side, int classes)
{
    builder b = {.channels = {width / 4, 0}};
    char text[128];
    int c = width / 4;
    OK(gpp_model_new(&b.model, &err));
    OK(gpp_model_register(b.model, &op_shift, &err));
    snprintf(text, sizeof text,
             "chain { relu; conv2d out=%d kernel=3 stride=2 padding=1 bias=0; batchnorm } @stem1",
             width / 4);
    OK(gpp_model_add_text(b.model, text, &err));
    cell(&b, c *= 2, true);
    cell(&b, c *= 2, true);
    for (int third = 0; third < 3; third++) {
        if (third)
            cell(&b, c *= 2, true);
        for (int k = 0; k < layers / 3; k++)
            cell(&b, c, false);
    }
    OK(gpp_model_begin(b.model, "classify", &err));
    b.ops = 0;
    gpp_ref y = seq(&b, (gpp_ref){GPP_REF_INPUT, 0},
                    "adaptive_avgpool2d out=1; flatten; linear out=%d", classes);
    OK(gpp_model_end(b.model, &y, 1, &err));
    OK(gpp_model_set_input(b.model, GPP_F32, 3, (int64_t[]){3, side, side}, &err));
    return b.model;
}

Test(amoebanet, has_the_published_numbers_of_layers_and_parameters)
{
    static const struct {
        int layers, width, count;
        int64_t parameters;
    } published[] = {
        {18, 208, 24, 81505540},  {18, 256, 24, 122470120},  {18, 416, 24, 319024120},
        {18, 544, 24, 542734840}, {36, 544, 42, 1055832376}, {72, 512, 78, 1844858344},
    };
    for (size_t k = 0; k < sizeof published / sizeof *published; k++) {
        gpp_model *m = amoebanet(published[k].layers, published[k].width, 224, 1000);
        int64_t parameters = 0;
        for (int l = 0; l < gpp_model_layers(m); l++) {
            gpp_layer_info info;
            OK(gpp_model_layer(m, l, &info, &err));
            parameters += info.parameters;
        }
        cr_expect_eq(gpp_model_layers(m), published[k].count, "(%d, %d)", published[k].layers,
                     published[k].width);
        cr_expect_eq(parameters, published[k].parameters, "(%d, %d): %lld parameters",
                     published[k].layers, published[k].width, (long long)parameters);
        gpp_model_free(m);
    }
}

static test_trace train(const gpp_model *m, gpp_pipe_options o)
{
    gpp_pipe *p;
    o.chunks = 2;
    o.loss = "cross_entropy";
    o.optimizer = "sgd lr=0.05 momentum=0.9";
    OK(gpp_pipe_new(&p, m, &o, &err));
    test_trace t = {0};
    static const int64_t rows[] = {6, 6};
    test_train(p, 2, rows, &t);
    for (int k = 0; k < gpp_pipe_buffers(p); k++) {
        gpp_buffer_info info;
        float value[512];
        OK(gpp_pipe_buffer(p, k, &info, &err));
        if (info.dtype != GPP_F32)
            continue;
        cr_assert_leq(info.count, 512);
        OK(gpp_pipe_get_buffer(p, info.name, value, info.count, &err));
        test_trace_add(&t, value, (size_t)info.count);
    }
    gpp_pipe_free(p);
    return t;
}

Test(amoebanet, trains_to_the_same_bits_however_it_is_cut)
{
    static const int cuts[][4] = {{4, 5}, {1, 8}, {3, 3, 3}, {2, 2, 2, 3}};
    static const int parts[] = {2, 2, 3, 4};
    gpp_model *m = amoebanet(3, 16, 32, 10);
    cr_assert_eq(gpp_model_layers(m), 9);
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    test_trace one = train(m, o);
    for (int k = 0; k < 4; k++)
        for (int mode = 0; mode < 3; mode++) {
            o.partitions = parts[k];
            o.balance = cuts[k];
            o.checkpoint = (gpp_checkpoint)mode;
            test_trace t = train(m, o);
            cr_expect_eq(test_trace_differs(&one, &t), -1, "cut %d, mode %d", k, mode);
            test_trace_free(&t);
        }
    test_trace_free(&one);
    gpp_model_free(m);
}
