/*
 * bench/layers.c: every operator alone on one core, beside what that core can do at most.
 *
 * An operator is bound by arithmetic or by memory, whichever would take longer at the machine's
 * ceilings (Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009). Its rate is given in
 * GFLOP/s or in GB/s accordingly. Bytes are the least that must move: tensors, parameters and what
 * is kept for the backward, each once.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ceiling.h"
#include "bench/common.h"
#include "bench/kernel.h"
#include "graph/model/model.h"

/* --- what is measured ------------------------------------------------------------------------- */

typedef struct layer_case {
    const char *op, *text; /* text: a model that has the operator; NULL: its name alone */
    int inputs;            /* how many tensors of shape `in` */
    gpp_shape in;
    int64_t rows;
} layer_case;

#define SHAPE(type, ...)                                                                           \
    {                                                                                              \
        .dtype = type, .rank = sizeof(int[]){__VA_ARGS__} / sizeof(int), .dim = { __VA_ARGS__ }    \
    }
#define IMAGE  SHAPE(GPP_F32, 64, 56, 56), 64
#define TOKENS SHAPE(GPP_F32, 128, 768), 128

static const layer_case cases[] = {
    {"linear", "linear out=1024", 1, SHAPE(GPP_F32, 1024), 256},
    {"conv2d", "conv2d out=64 kernel=3 padding=1", 1, SHAPE(GPP_F32, 64, 56, 56), 8},
    {"conv_transpose2d", "conv_transpose2d out=64 kernel=2 stride=2", 1,
     SHAPE(GPP_F32, 128, 28, 28), 8},
    {"relu", NULL, 1, IMAGE},
    {"maxpool2d", "maxpool2d kernel=2", 1, IMAGE},
    {"flatten", NULL, 1, IMAGE},
    {"dropout", "dropout p=0.5", 1, IMAGE},
    {"dropout2d", "dropout2d p=0.5", 1, IMAGE},
    {"identity", NULL, 1, IMAGE},
    {"stash", "stash name=a; pop name=a mode=add", 1, IMAGE},
    {"unstash", "stash name=a; pop name=a mode=add { relu }", 1, IMAGE},
    {"pop", "stash name=a; pop name=a mode=add", 1, IMAGE},
    {"combine", "stash name=a; pop name=a mode=cat { relu }", 1, IMAGE},
    {"add", NULL, 2, IMAGE},
    {"mul", NULL, 2, IMAGE},
    {"cat", "cat dim=1", 2, IMAGE},
    {"split", "split dim=1 parts=2", 1, IMAGE},
    {"tanh", NULL, 1, IMAGE},
    {"sigmoid", NULL, 1, IMAGE},
    {"gelu", NULL, 1, IMAGE},
    {"silu", NULL, 1, IMAGE},
    {"leaky_relu", NULL, 1, IMAGE},
    {"relu6", NULL, 1, IMAGE},
    {"hardtanh", NULL, 1, IMAGE},
    {"elu", NULL, 1, IMAGE},
    {"softplus", NULL, 1, IMAGE},
    {"avgpool2d", "avgpool2d kernel=2", 1, IMAGE},
    {"adaptive_avgpool2d", "adaptive_avgpool2d out=1", 1, IMAGE},
    {"upsample", "upsample scale=2", 1, SHAPE(GPP_F32, 64, 28, 28), 64},
    {"pad", "pad left=1 right=1 top=1 bottom=1", 1, IMAGE},
    {"softmax", NULL, 1, SHAPE(GPP_F32, 1000), 16384},
    {"log_softmax", NULL, 1, SHAPE(GPP_F32, 1000), 16384},
    {"batchnorm", NULL, 1, IMAGE},
    {"layernorm", "layernorm shape=768", 1, TOKENS},
    {"instancenorm", NULL, 1, IMAGE},
    {"groupnorm", "groupnorm groups=8", 1, IMAGE},
    {"embedding", "embedding num=32000 dim=768", 1, SHAPE(GPP_I64, 128), 128},
    {"position_embedding", "position_embedding length=128", 1, TOKENS},
    {"self_attention", "self_attention heads=8", 1, SHAPE(GPP_F32, 128, 256), 16},
};

static gpp_model *make_model(const layer_case *c)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_shape in[2] = {c->in, c->in};
    bench_check(gpp_model_new(&model, &err), &err);
    bench_check(gpp_model_add_text(model, c->text ? c->text : c->op, &err), &err);
    bench_check(gpp_model_set_inputs(model, in, c->inputs, &err), &err);
    return model;
}

static const gpp__layer *find_layer(const gpp_model *model, const char *op)
{
    for (int k = 0; k < model->network.nodes; k++)
        if (!strcmp(model->network.node[k].op->name, op))
            return &model->network.node[k];
    fprintf(stderr, "bench: the model of %s has no such operator\n", op);
    exit(1);
}

/* Fails when an operator of the library has no line above. */
static void expect_all(void)
{
    for (size_t k = 0; gpp_op_name(k); k++) {
        size_t c = 0, count = sizeof cases / sizeof *cases;
        while (c < count && strcmp(cases[c].op, gpp_op_name(k)) != 0)
            c++;
        if (c < count)
            continue;
        fprintf(stderr, "bench: no shape is known for %s\n", gpp_op_name(k));
        exit(1);
    }
}

/* --- rates ------------------------------------------------------------------------------------ */

typedef struct work {
    double ms, flops, bytes;
    bool views; /* a view: there is nothing to do */
} work;

typedef struct figure {
    double gflops, gbs, rate, share; /* rate: that of `gflops` and `gbs` which bounds it */
    const char *unit;
} figure;

static double tensor_bytes(const gpp__desc desc[], int count, int64_t rows)
{
    const int64_t batch[GPP__BATCHES] = {rows};
    double bytes = 0;
    for (int t = 0; t < count; t++)
        bytes += (double)gpp__desc_rows(&desc[t], batch) * (double)gpp__desc_bytes(&desc[t]);
    return bytes;
}

/* Bytes of parameters that are read. An embedding reads no more of its table than comes out. */
static double param_bytes(const gpp__layer *l, double out)
{
    bool table = l->in[0].dtype == GPP_I64;
    return table && out < (double)l->param_bytes ? out : (double)l->param_bytes;
}

static void measure(const layer_case *c, const gpp__layer *l, bench_budget budget, work *forward,
                    work *backward)
{
    bool floats = l->in_count == 0 || l->in[0].dtype == GPP_F32;
    double in = tensor_bytes(l->in, l->in_count, c->rows);
    double out = tensor_bytes(l->out, l->out_count, c->rows), params = param_bytes(l, out);
    if (l->op->is_view && l->op->is_view(l)) {
        *forward = *backward = (work){.ms = NAN, .views = true};
        return;
    }
    bench_kernel_times t = bench_kernel_time(l, c->rows, floats, budget);
    *forward = (work){.ms = t.forward_ms, .flops = t.forward_flops};
    forward->bytes = in + out + params + t.saved_bytes;
    *backward = (work){.ms = t.backward_ms, .flops = t.backward_flops};
    backward->bytes = in + out + 2 * params + t.saved_bytes; /* 2: gradients are read and written */
    if (floats && l->param_count)
        backward->bytes += params;
    if (l->op->backward_needs & GPP_NEEDS_INPUT)
        backward->bytes += in;
    if (l->op->backward_needs & GPP_NEEDS_OUTPUT)
        backward->bytes += out;
}

static figure figure_of(const work *w, const bench_ceiling *top)
{
    if (w->views)
        return (figure){NAN, NAN, NAN, NAN, "view"};
    figure f = {.gflops = 1e-6 * w->flops / w->ms, .gbs = 1e-6 * w->bytes / w->ms};
    bool arithmetic = w->flops / top->gflops > w->bytes / top->gbs;
    f.rate = arithmetic ? f.gflops : f.gbs;
    f.share = f.rate / (arithmetic ? top->gflops : top->gbs);
    f.unit = arithmetic ? "GFLOP/s" : "GB/s";
    return f;
}

/* --- the report ------------------------------------------------------------------------------- */

static const bench_column ceiling_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"gflops_core", "GFLOP/s", 9, 1, 0},
    {"gbs_core", "GB/s", 9, 1, 0},
    {NULL, NULL, 0, 0, 0},
};

static const bench_column layer_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"op", "op", 18, BENCH_TEXT, 0},
    {"model", NULL, 0, BENCH_TEXT, 0},
    {"shape", "input -> output", 28, BENCH_TEXT, 0},
    {"rows", "rows", 5, 0, 0},
    {"forward_ms", "forward ms", 10, 3, 0},
    {"forward_rate", "rate", 7, 1, 0},
    {"forward_unit", "", 7, BENCH_TEXT, 0},
    {"forward_share", "of top", 6, 2, 0},
    {"backward_ms", "backward ms", 11, 3, 0},
    {"backward_rate", "rate", 7, 1, 0},
    {"backward_unit", "", 7, BENCH_TEXT, 0},
    {"backward_share", "of top", 6, 2, 0},
    {"forward_gflops_core", NULL, 0, 1, 0},
    {"forward_gbs_core", NULL, 0, 1, 0},
    {"backward_gflops_core", NULL, 0, 1, 0},
    {"backward_gbs_core", NULL, 0, 1, 0},
    {NULL, NULL, 0, 0, 0},
};

static void report_case(const bench_report *report, const layer_case *c, const bench_ceiling *top,
                        bench_budget budget)
{
    char in[32], out[32], shape[80];
    work forward, backward;
    gpp_model *model = make_model(c);
    const gpp__layer *l = find_layer(model, c->op);
    measure(c, l, budget, &forward, &backward);
    figure f = figure_of(&forward, top), b = figure_of(&backward, top);
    snprintf(shape, sizeof shape, "%s -> %s", gpp__desc_text(&l->in[0], in, sizeof in),
             gpp__desc_text(&l->out[0], out, sizeof out));
    bench_report_row(report, (bench_value[]){
                                 bench_text("layer"),
                                 bench_text(c->op),
                                 bench_text(c->text ? c->text : c->op),
                                 bench_text(shape),
                                 bench_number((double)c->rows),
                                 bench_number(forward.ms),
                                 bench_number(f.rate),
                                 bench_text(f.unit),
                                 bench_number(f.share),
                                 bench_number(backward.ms),
                                 bench_number(b.rate),
                                 bench_text(b.unit),
                                 bench_number(b.share),
                                 bench_number(f.gflops),
                                 bench_number(f.gbs),
                                 bench_number(b.gflops),
                                 bench_number(b.gbs),
                             });
    gpp_model_free(model);
}

int main(int argc, char *argv[])
{
    bool json = false, quick = false;
    double seconds = 0;
    const bench_option options[] = {
        {"json", BENCH_FLAG, &json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &quick, "a short run", NULL},
        {"seconds", BENCH_REAL, &seconds, "to measure each pass (0.5)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("layers", "Every operator alone, beside the machine's ceilings.", options,
                       argc, argv);
    expect_all();
    bench_ceiling top = bench_ceiling_measure();
    bench_report report = {json, ceiling_columns};
    bench_report_begin(&report, "Ceilings: multiply-adds and copies, one core");
    bench_report_row(&report, (bench_value[]){bench_text("ceiling"), bench_number(top.gflops),
                                              bench_number(top.gbs)});
    bench_report_note(&report, "\n");
    report.column = layer_columns;
    bench_report_begin(&report, "Layers, one core");
    bench_budget budget = {quick ? 3 : 9, seconds > 0 ? seconds : quick ? 0.05 : 0.5};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        report_case(&report, &cases[k], &top, budget);
    return 0;
}
