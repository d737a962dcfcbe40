/*
 * bench/gpu_convolutions.c: which algorithm computes every convolution of ResNet-50 on GPU 0, in
 * each of its three directions. The program lists cuDNN's algorithms in the order in which they are
 * tried, each with its time or with the remark that a call refuses it, and the library's own way,
 * by columns. It does without StarPU.
 *
 * It compares bits as well: tensors begin where cudaMalloc puts them, or on a cache line (64
 * bytes), as they may in a pipe. The last line is a summary.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu_device.h"
#include "bench/gpu_model.h"
#include "codelets/cuda/conv_internal.h"
#include "codelets/ops/convolution.h"
#include "graph/model/model.h"

typedef struct settings {
    bool json, quick;
    unsigned maths;
    int batch, image, width;
    bench_patience patience;
} settings;

enum { LINE = 64 };

static const char *const way_names[] = {"forward", "image", "weights"};

/* A convolution's tensors. They begin `off` bytes behind the address that cudaMalloc returned. */
typedef struct tensors {
    char *image, *map, *weights, *grad, *scratch;
    int64_t images, maps, numbers;
    size_t operand, off;
} tensors;

typedef struct conv_call {
    const gpp__cuda_conv *conv;
    gpp__cuda *cuda;
    gpp__conv_way way;
    const tensors *t;
} conv_call;

static int refusals; /* remarks of the library about refused algorithms */

static void count_refusals(gpp_log_level level, const char *text, void *user)
{
    (void)level, (void)user;
    refusals += strstr(text, "refused") != NULL;
}

static gpp_status try_conv(const conv_call *k, gpp_error *err)
{
    const tensors *t = k->t;
    gpp__run run = {.cuda = k->cuda, .err = err};
    gpp__cuda_conv_args args = {.image = (float *)(t->image + t->off),
                                .map = (float *)(t->map + t->off),
                                .weights = t->weights + t->off,
                                .grad = (float *)(t->grad + t->off),
                                .scratch = t->scratch + t->off};
    return gpp__cuda_conv_run(k->conv, k->way, &run, &args);
}

static void convolve(const void *what)
{
    gpp_error err = GPP_ERROR_INIT;
    bench_check(try_conv(what, &err), &err);
}

/* Fills the tensors that are read. The result needs no zeros: it is assigned, not added to. */
static void put_tensors(const tensors *t)
{
    bench_device_fill(t->image + t->off, t->images, sizeof(float));
    bench_device_fill(t->map + t->off, t->maps, sizeof(float));
    bench_device_fill(t->weights + t->off, t->numbers, t->operand);
}

static tensors tensors_new(const gpp__cuda *cuda, const gpp__conv_shape *s, int64_t rows,
                           size_t scratch)
{
    tensors t = {.images = gpp__conv_images(s, rows),
                 .maps = gpp__conv_maps(s, rows),
                 .numbers = gpp__conv_weights(s),
                 .operand = gpp__cuda_operand_size(cuda)};
    t.image = bench_device_room((size_t)t.images * sizeof(float) + LINE);
    t.map = bench_device_room((size_t)t.maps * sizeof(float) + LINE);
    t.weights = bench_device_room((size_t)t.numbers * t.operand + LINE);
    t.grad = bench_device_room((size_t)t.numbers * sizeof(float) + LINE);
    t.scratch = bench_device_room(scratch + LINE);
    put_tensors(&t);
    return t;
}

static void tensors_free(tensors *t)
{
    BENCH_CUDA(cudaFree(t->image));
    BENCH_CUDA(cudaFree(t->map));
    BENCH_CUDA(cudaFree(t->weights));
    BENCH_CUDA(cudaFree(t->grad));
    BENCH_CUDA(cudaFree(t->scratch));
}

static float *conv_result(const conv_call *k)
{
    const tensors *t = k->t;
    const char *from[] = {t->map, t->image, t->grad};
    int64_t count[] = {t->maps, t->images, t->numbers};
    float *host = bench_room((size_t)count[k->way] * sizeof *host);
    convolve(k);
    bench_device_wait();
    BENCH_CUDA(cudaMemcpy(host, from[k->way] + t->off, (size_t)count[k->way] * sizeof *host,
                          cudaMemcpyDeviceToHost));
    return host;
}

/* Whether tensors that begin on a cache line only give the same bits. */
static bool same_on_a_line(conv_call *k, tensors *t)
{
    int64_t count[] = {t->maps, t->images, t->numbers};
    float *want = conv_result(k);
    t->off = LINE;
    put_tensors(t);
    float *got = conv_result(k);
    bool same = memcmp(got, want, (size_t)count[k->way] * sizeof *got) == 0;
    t->off = 0;
    put_tensors(t);
    free(want);
    free(got);
    return same;
}

/** The result of trying cuDNN's list of algorithms. */
typedef struct tried {
    int listed, refused;
    int chosen;               /* the first that is not refused; -1: none */
    double first_ms, best_ms; /* times of the chosen one and of the fastest; NaN: there is none */
    char text[256];           /* "1 (0.52 ms), 0 (refused)" */
} tried;

/* Tries each algorithm of the list alone. */
static tried try_list(const settings *s, const conv_call *k)
{
    const gpp__conv_choice *w = &k->conv->way[k->way];
    tried t = {.listed = w->algorithms, .chosen = -1, .first_ms = NAN, .best_ms = NAN};
    for (int a = 0; a < w->algorithms; a++) {
        gpp__cuda_conv only = *k->conv;
        conv_call one = {&only, k->cuda, k->way, k->t};
        gpp_error err = GPP_ERROR_INIT;
        only.way[k->way].algorithm[0] = w->algorithm[a];
        only.way[k->way].algorithms = 1;
        refusals = 0;
        bool fine = try_conv(&one, &err) == GPP_OK && refusals == 0;
        bench_device_wait();
        double ms = fine ? bench_device_time(convolve, &one, s->patience) : (double)NAN;
        t.refused += !fine;
        if (fine && t.chosen < 0)
            t.chosen = w->algorithm[a], t.first_ms = ms;
        t.best_ms = t.best_ms <= ms ? t.best_ms : ms;
        size_t at = strlen(t.text);
        if (fine)
            snprintf(t.text + at, sizeof t.text - at, "%s%d (%.3f)", at ? ", " : "",
                     w->algorithm[a], ms);
        else
            snprintf(t.text + at, sizeof t.text - at, "%s%d (refused)", at ? ", " : "",
                     w->algorithm[a]);
    }
    return t;
}

static const bench_column conv_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"layer", "layer", 5, 0, 0},
    {"times", "times", 5, 0, 0},
    {"shape", "image -> map", 30, BENCH_TEXT, 0},
    {"kernel", "k, stride", 9, BENCH_TEXT, 0},
    {"way", "way", 7, BENCH_TEXT, 0},
    {"math", "math", 4, BENCH_TEXT, 0},
    {"by", "by", 8, BENCH_TEXT, 0},
    {"ms", "ms", 8, 3, 0},
    {"gflops", "GFLOP/s", 8, 0, 0},
    {"columns_ms", "columns", 8, 3, 0},
    {"workspace_bytes", "MiB", 7, 1, 1 << 20},
    {"at_64", "at 64", 6, BENCH_TEXT, 0},
    {"listed", "cuDNN's list (ms)", 20, BENCH_TEXT, 0},
    {NULL, NULL, 0, 0, 0},
};

/** Sums over all directions of all convolutions, each as often as the network has it. */
typedef struct conv_sums {
    int ways, library, plain, tried, refused, differ;
    double ms, columns_ms, best_ms;
} conv_sums;

static void count_way(conv_sums *sums, const gpp__cuda_conv *conv, const tried *list, double ms,
                      double columns_ms, int times, bool library)
{
    double best = list->best_ms < ms ? list->best_ms : ms;
    sums->ways++;
    sums->library += library;
    sums->plain += conv->plain;
    sums->tried += list->listed;
    sums->refused += list->refused;
    sums->ms += times * ms;
    sums->columns_ms += times * (conv->plain ? ms : columns_ms);
    sums->best_ms += times * (columns_ms < best ? columns_ms : best);
}

/** A convolution of the network, as cuDNN's and by columns. */
typedef struct subject {
    const gpp__layer *layer;
    gpp__math math;
    gpp__conv_shape shape;
    int times; /* how often the network has it */
    gpp__cuda_conv *conv, *columns;
} subject;

static void report_way(const bench_report *report, const subject *c, const conv_call *k,
                       const tried *list, const double ms[2], bool same)
{
    const gpp__conv_shape *s = &c->shape;
    char in[32], out[32], shape[80], kernel[24], by[24];
    snprintf(shape, sizeof shape, "%s -> %s", gpp__desc_text(&c->layer->in[0], in, sizeof in),
             gpp__desc_text(&c->layer->out[0], out, sizeof out));
    snprintf(kernel, sizeof kernel, "%d, %d", (int)s->kernel[0], (int)s->stride[0]);
    if (list->chosen >= 0)
        snprintf(by, sizeof by, "cuDNN %d", list->chosen);
    else
        snprintf(by, sizeof by, "%s", c->conv->plain ? "cuBLAS" : "columns");
    double flops = 2.0 * (double)k->t->maps * (double)gpp__conv_window(s);
    bench_report_row(report, (bench_value[]){
                                 bench_text("convolution"),
                                 bench_number(c->layer->index),
                                 bench_number(c->times),
                                 bench_text(shape),
                                 bench_text(kernel),
                                 bench_text(way_names[k->way]),
                                 bench_text(bench_maths[c->math]),
                                 bench_text(by),
                                 bench_number(ms[0]),
                                 bench_number(1e-6 * flops / ms[0]),
                                 bench_number(ms[1]),
                                 bench_number((double)c->conv->way[k->way].workspace),
                                 bench_text(same ? "same" : "DIFFER"),
                                 bench_text(list->text[0] ? list->text : "-"),
                             });
}

static void measure_way(const settings *s, const bench_report *report, const subject *c,
                        gpp__conv_way way, conv_sums *sums)
{
    gpp__cuda *cuda = bench_device(c->math);
    size_t scratch = gpp__cuda_conv_scratch(c->conv, way),
           other = gpp__cuda_conv_scratch(c->columns, way);
    tensors t = tensors_new(cuda, &c->shape, c->conv->rows, scratch > other ? scratch : other);
    conv_call k = {c->conv, cuda, way, &t}, columns = {c->columns, cuda, way, &t};
    tried list = try_list(s, &k);
    bool library = list.chosen >= 0, same = same_on_a_line(&k, &t);
    double ms[2] = {list.first_ms, NAN};
    if (!c->conv->plain) /* a plain one is the same either way */
        ms[1] = bench_device_time(convolve, &columns, s->patience);
    if (!library)
        ms[0] = bench_device_time(convolve, &k, s->patience);
    report_way(report, c, &k, &list, ms, same);
    count_way(sums, c->conv, &list, ms[0], ms[1], c->times, library);
    sums->differ += !same;
    tensors_free(&t);
}

static void measure_convolution(const settings *s, const bench_report *report, subject *c,
                                conv_sums *sums)
{
    gpp_error err = GPP_ERROR_INIT;
    const gpp__layer *l = c->layer;
    gpp__cuda *cuda = bench_device(c->math);
    c->shape = gpp__convolution_shape(l, &l->in[0], &l->out[0]);
    bench_check(gpp__cuda_conv_new(&c->conv, cuda, l, &c->shape, s->batch, true, &err), &err);
    bench_check(gpp__cuda_conv_new(&c->columns, cuda, l, &c->shape, s->batch, false, &err), &err);
    for (int way = 0; way < GPP__CONV_WAYS; way++)
        if (way != GPP__CONV_DATA || l->in[0].dim[0] > 3) /* images need no gradient */
            measure_way(s, report, c, (gpp__conv_way)way, sums);
    gpp__cuda_conv_free(c->conv);
    gpp__cuda_conv_free(c->columns);
}

static bool same_shape(const gpp__layer *a, const gpp__layer *b)
{
    if (strcmp(a->op->name, b->op->name) != 0 || strcmp(a->op->name, "conv2d") != 0)
        return false;
    gpp__conv_shape x = gpp__convolution_shape(a, &a->in[0], &a->out[0]),
                    y = gpp__convolution_shape(b, &b->in[0], &b->out[0]);
    return x.in_channels == y.in_channels && x.out_channels == y.out_channels &&
           x.in[0] == y.in[0] && x.kernel[0] == y.kernel[0] && x.stride[0] == y.stride[0];
}

/* How often the network has such a convolution; 0 where an earlier one is the same. */
static int times_of(const gpp__network *network, int node)
{
    int times = 0;
    for (int k = 0; k < network->nodes; k++) {
        bool same = same_shape(&network->node[k], &network->node[node]);
        if (same && k < node)
            return 0;
        times += same;
    }
    return times;
}

static void print_sums(const bench_report *report, const conv_sums *sums)
{
    bench_report_note(
        report,
        "\n%d ways: %d by cuDNN, %d pointwise by cuBLAS, %d by columns; of %d listed "
        "algorithms %d refused; all convolutions %.2f ms, at best %.2f, by columns and "
        "cuBLAS alone %.2f; other bits at 64 bytes: %d ways\n",
        sums->ways, sums->library, sums->plain, sums->ways - sums->library - sums->plain,
        sums->tried, sums->refused, sums->ms, sums->best_ms, sums->columns_ms, sums->differ);
}

static void measure_convolutions(const settings *s)
{
    gpp_model *model = bench_resnet50(s->image, s->width);
    bench_report report = {s->json, conv_columns};
    gpp_log_set(count_refusals, GPP_LOG_DEBUG, NULL);
    for (int math = 0; bench_maths[math]; math++) {
        if (!(s->maths >> math & 1))
            continue;
        char title[128];
        conv_sums sums = {0};
        snprintf(title, sizeof title, "Convolutions of ResNet-50, batch %d, %s", s->batch,
                 bench_maths[math]);
        bench_report_begin(&report, title);
        for (int k = 0; k < model->network.nodes; k++) {
            subject c = {.layer = &model->network.node[k], .math = (gpp__math)math};
            c.times = times_of(&model->network, k);
            if (c.times > 0)
                measure_convolution(s, &report, &c, &sums);
        }
        print_sums(&report, &sums);
    }
    gpp_log_set(NULL, GPP_LOG_ERROR, NULL);
    gpp_model_free(model);
}

int main(int argc, char *argv[])
{
    settings s = {.maths = 7, .batch = 64, .image = 224, .width = 64};
    double seconds = 0.1;
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run", NULL},
        {"math", BENCH_WORDS, &s.maths, "what products compute with (all)", bench_maths},
        {"batch", BENCH_INT, &s.batch, "images of a mini-batch (64)", NULL},
        {"image", BENCH_INT, &s.image, "pixels a side (224)", NULL},
        {"width", BENCH_INT, &s.width, "channels behind the first convolution (64)", NULL},
        {"seconds", BENCH_REAL, &seconds, "to measure each time (0.1)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("gpu_convolutions", "What ResNet-50's convolutions are computed by.",
                       options, argc, argv);
    s.patience = bench_patience_of(s.quick, seconds);
    measure_convolutions(&s);
    return 0;
}
