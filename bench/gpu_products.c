/*
 * bench/gpu_products.c: what gridpipe has to know about cuBLAS and the bus of a GPU. It measures
 * GPU 0 and does without StarPU.
 *
 *   bus       how fast copies are, from and to pageable and page-locked memory
 *   products  whether a product's bits depend on where its matrices begin, and on cuBLAS's pedantic
 *             mode. Tensors of pipes begin on cache lines, 64 bytes. If bits differed at 64 or 128,
 *             tensors would have to begin at multiples of 256, as cudaMalloc's addresses do
 *
 * The last line of each part is a summary.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu_device.h"
#include "codelets/cuda/gemm.h"

static const char *const part_names[] = {"bus", "products", NULL};
enum { BUS = 1, PRODUCTS = 2 };

typedef struct settings {
    bool json, quick;
    unsigned parts, maths;
    int batch, image;
    bench_patience patience;
} settings;

/* --- the bus ---------------------------------------------------------------------------------- */

typedef struct transfer {
    void *host[2], *device[2]; /* [0]: to the GPU, [1]: from it */
    bool way[2];
    size_t bytes;
    cudaStream_t to, back;
} transfer;

static void copy(const void *what)
{
    const transfer *t = what;
    if (t->way[0])
        BENCH_CUDA(
            cudaMemcpyAsync(t->device[0], t->host[0], t->bytes, cudaMemcpyHostToDevice, t->to));
    if (!t->way[1])
        return;
    BENCH_CUDA(
        cudaMemcpyAsync(t->host[1], t->device[1], t->bytes, cudaMemcpyDeviceToHost, t->back));
    if (t->way[0])
        BENCH_CUDA(cudaStreamSynchronize(t->back));
}

static const bench_column bus_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"memory", "memory", 12, BENCH_TEXT, 0},
    {"way", "way", 12, BENCH_TEXT, 0},
    {"bytes", "KiB", 8, 0, 1024},
    {"copy_ms", "ms", 9, 4, 0},
    {"gbs", "GB/s", 8, 2, 0},
    {NULL, NULL, 0, 0, 0},
};

static double measure_copy(const settings *s, const bench_report *report, transfer *t, bool locked,
                           int way)
{
    static const char *const ways[] = {"to GPU", "from GPU", "both at once"};
    t->way[0] = way != 1, t->way[1] = way != 0;
    double ms = bench_device_time(copy, t, s->patience),
           gbs = 1e-6 * (double)t->bytes * (way == 2 ? 2 : 1) / ms;
    bench_report_row(report, (bench_value[]){
                                 bench_text("bus"),
                                 bench_text(locked ? "page-locked" : "pageable"),
                                 bench_text(ways[way]),
                                 bench_number((double)t->bytes),
                                 bench_number(ms),
                                 bench_number(gbs),
                             });
    return gbs;
}

static void measure_memory(const settings *s, const bench_report *report, bool locked,
                           double gbs[3])
{
    size_t most = (size_t)(s->quick ? 1 : 64) << 20;
    cudaStream_t stream = bench_device(GPP__MATH_F32)->stream;
    transfer t = {.to = stream, .back = stream};
    for (int k = 0; k < 2; k++) {
        t.device[k] = bench_device_room(most);
        if (locked)
            BENCH_CUDA(cudaHostAlloc(&t.host[k], most, cudaHostAllocPortable));
        else
            t.host[k] = bench_room(most);
        memset(t.host[k], 1, most);
    }
    for (int way = 0; way < 2; way++) {
        t.bytes = 4096;
        measure_copy(s, report, &t, locked, way);
        t.bytes = most;
        gbs[way] = measure_copy(s, report, &t, locked, way);
    }
    BENCH_CUDA(cudaStreamCreateWithFlags(&t.back, cudaStreamNonBlocking));
    gbs[2] = measure_copy(s, report, &t, locked, 2);
    BENCH_CUDA(cudaStreamDestroy(t.back));
    for (int k = 0; k < 2; k++) {
        BENCH_CUDA(cudaFree(t.device[k]));
        if (locked)
            BENCH_CUDA(cudaFreeHost(t.host[k]));
        else
            free(t.host[k]);
    }
}

static void measure_bus(const settings *s)
{
    bench_report report = {s->json, bus_columns};
    double gbs[2][3];
    bench_report_begin(&report, "Copies between host and GPU");
    for (int locked = 0; locked < 2; locked++)
        measure_memory(s, &report, locked, gbs[locked]);
    bench_report_note(
        &report,
        "\nto and from the GPU: page-locked %.1f and %.1f GB/s, at once %.1f together; "
        "pageable %.1f and %.1f\n",
        gbs[1][0], gbs[1][1], gbs[1][2], gbs[0][0], gbs[0][1]);
}

/* --- products --------------------------------------------------------------------------------- */

typedef struct product_case {
    const char *what;
    int64_t m, n, k; /* 0: as many as a mini-batch has pixels in its maps of 56 x 56 */
    bool turned[2];
} product_case;

static const product_case product_cases[] = {
    {"linear, forward", 256, 1024, 1024, {false, true}},
    {"linear, input", 256, 1024, 1024, {false, false}},
    {"linear, weights", 1024, 1024, 256, {true, false}},
    {"one row", 1, 1000, 2048, {false, true}},
    {"classes", 64, 1000, 2048, {false, true}},
    {"odd sizes", 127, 65, 33, {false, true}},
    {"odd, weights", 65, 33, 127, {true, false}},
    {"1 x 1, forward", 0, 64, 256, {false, true}},
    {"1 x 1, image", 0, 256, 64, {false, false}},
    {"1 x 1, weights", 64, 256, 0, {true, false}},
};
enum { PRODUCT_CASES = sizeof product_cases / sizeof *product_cases };

/* A product. Its matrices begin `off` bytes behind the address that cudaMalloc returned. */
typedef struct product {
    gpp__cuda *cuda;
    gpp__cuda_product as;
    char *room[3];
    int64_t count[3];
    size_t size; /* of an operand */
    size_t off[3];
} product;

enum { FARTHEST = 256, SMALL = 72 };

static void multiply(const void *what)
{
    const product *p = what;
    gpp__cuda_product as = p->as;
    gpp_error err = GPP_ERROR_INIT;
    as.a.at = p->room[0] + p->off[0];
    as.b.at = p->room[1] + p->off[1];
    as.c = (float *)(p->room[2] + p->off[2]);
    bench_check(gpp__cuda_multiply(p->cuda, NULL, &as, &err), &err);
}

static void put_operands(const product *p)
{
    for (int k = 0; k < 2; k++)
        bench_device_fill(p->room[k] + p->off[k], p->count[k], p->size);
}

static product product_new(const settings *s, gpp__math math, const product_case *c)
{
    int64_t pixels = (int64_t)s->batch * (s->image / 4) * (s->image / 4);
    int64_t m = c->m ? c->m : pixels, n = c->n, k = c->k ? c->k : pixels;
    if (s->quick) /* only times need large matrices */
        m = m < SMALL ? m : SMALL, n = n < SMALL ? n : SMALL, k = k < SMALL ? k : SMALL;
    product p = {.cuda = bench_device(math), .count = {m * k, k * n, m * n}};
    p.size = gpp__cuda_operand_size(p.cuda);
    p.as = (gpp__cuda_product){.m = m, .n = n, .k = k, .c_step = n};
    p.as.a = gpp__cuda_matrix_of(NULL, c->turned[0] ? m : k, c->turned[0]);
    p.as.b = gpp__cuda_matrix_of(NULL, c->turned[1] ? k : n, c->turned[1]);
    for (int t = 0; t < 3; t++)
        p.room[t] =
            bench_device_room((size_t)p.count[t] * (t < 2 ? p.size : sizeof(float)) + FARTHEST);
    put_operands(&p);
    return p;
}

static void product_free(product *p)
{
    for (int t = 0; t < 3; t++)
        BENCH_CUDA(cudaFree(p->room[t]));
}

static float *result_of(const product *p)
{
    float *c = bench_room((size_t)p->count[2] * sizeof *c);
    multiply(p);
    bench_device_wait();
    BENCH_CUDA(cudaMemcpy(c, p->room[2] + p->off[2], (size_t)p->count[2] * sizeof *c,
                          cudaMemcpyDeviceToHost));
    return c;
}

static bool has_bits(const product *p, const float *want)
{
    float *got = result_of(p);
    bool same = memcmp(got, want, (size_t)p->count[2] * sizeof *got) == 0;
    free(got);
    return same;
}

/* Whether bits stay the same when all three matrices begin `off` bytes later, and each alone. */
static bool same_at(product *p, size_t off, const float *want)
{
    bool same = true;
    for (int which = 0; which < 4; which++) {
        for (int t = 0; t < 3; t++)
            p->off[t] = which == 3 || which == t ? off : 0;
        put_operands(p);
        same = has_bits(p, want) && same;
    }
    memset(p->off, 0, sizeof p->off);
    put_operands(p);
    return same;
}

static const bench_column product_columns[] = {
    {"bench", NULL, 0, BENCH_TEXT, 0},
    {"product", "product", 16, BENCH_TEXT, 0},
    {"math", "math", 4, BENCH_TEXT, 0},
    {"m", "m", 7, 0, 0},
    {"n", "n", 5, 0, 0},
    {"k", "k", 7, 0, 0},
    {"default_ms", "ms", 8, 4, 0},
    {"default_gflops", "GFLOP/s", 9, 0, 0},
    {"again", "again", 6, BENCH_TEXT, 0},
    {"at_64", "at 64", 6, BENCH_TEXT, 0},
    {"at_128", "at 128", 6, BENCH_TEXT, 0},
    {"at_256", "at 256", 6, BENCH_TEXT, 0},
    {"pedantic_ms", "pedantic", 8, 4, 0},
    {"pedantic", "bits", 6, BENCH_TEXT, 0},
    {NULL, NULL, 0, 0, 0},
};

/** Counts of products whose bits differ, and sums of the times of both modes. */
typedef struct product_sums {
    int products, again, at[3], pedantic;
    double default_ms, pedantic_ms;
} product_sums;

static bench_value same_text(bool same, int *others)
{
    *others += !same;
    return bench_text(same ? "same" : "DIFFER");
}

/* Only float32 has a pedantic mode. */
static double measure_pedantic(const settings *s, product *p, const float *want, bool *same)
{
    gpp_error err = GPP_ERROR_INIT;
    bench_check(GPP__CUBLAS(cublasSetMathMode(p->cuda->blas, CUBLAS_PEDANTIC_MATH), NULL, &err),
                &err);
    *same = has_bits(p, want);
    double ms = bench_device_time(multiply, p, s->patience);
    bench_check(GPP__CUBLAS(cublasSetMathMode(p->cuda->blas, CUBLAS_DEFAULT_MATH), NULL, &err),
                &err);
    return ms;
}

static void measure_product(const settings *s, const bench_report *report, gpp__math math,
                            const product_case *c, product_sums *sums)
{
    static const size_t offsets[] = {64, 128, 256};
    product p = product_new(s, math, c);
    float *want = result_of(&p);
    bool again = has_bits(&p, want), at[3], pedantic = true, f32 = math == GPP__MATH_F32;
    for (int k = 0; k < 3; k++)
        at[k] = same_at(&p, offsets[k], want);
    double ms = bench_device_time(multiply, &p, s->patience), pedantic_ms = 0;
    if (f32)
        pedantic_ms = measure_pedantic(s, &p, want, &pedantic);
    double flops = 2.0 * (double)p.as.m * (double)p.as.n * (double)p.as.k;
    bench_report_row(report, (bench_value[]){
                                 bench_text("product"),
                                 bench_text(c->what),
                                 bench_text(bench_maths[math]),
                                 bench_number((double)p.as.m),
                                 bench_number((double)p.as.n),
                                 bench_number((double)p.as.k),
                                 bench_number(ms),
                                 bench_number(1e-6 * flops / ms),
                                 same_text(again, &sums->again),
                                 same_text(at[0], &sums->at[0]),
                                 same_text(at[1], &sums->at[1]),
                                 same_text(at[2], &sums->at[2]),
                                 bench_number(f32 ? pedantic_ms : (double)NAN),
                                 f32 ? same_text(pedantic, &sums->pedantic) : bench_text("-"),
                             });
    sums->products++;
    sums->default_ms += f32 ? ms : 0;
    sums->pedantic_ms += pedantic_ms;
    free(want);
    product_free(&p);
}

static void measure_products(const settings *s)
{
    bench_report report = {s->json, product_columns};
    product_sums sums = {0};
    bench_report_begin(&report, "Products: bits where matrices begin elsewhere, and pedantic ones");
    for (int math = 0; bench_maths[math]; math++)
        for (int k = 0; k < PRODUCT_CASES && s->maths >> math & 1; k++)
            measure_product(s, &report, (gpp__math)math, &product_cases[k], &sums);
    bench_report_note(
        &report,
        "\nof %d products other bits: again %d, at 64 bytes %d, at 128 %d, at 256 %d; "
        "pedantic %d, %.2f times as long\n",
        sums.products, sums.again, sums.at[0], sums.at[1], sums.at[2], sums.pedantic,
        sums.pedantic_ms / sums.default_ms);
}

int main(int argc, char *argv[])
{
    settings s = {.parts = BUS | PRODUCTS, .maths = 7, .batch = 64, .image = 224};
    double seconds = 0.1;
    const bench_option options[] = {
        {"json", BENCH_FLAG, &s.json, "JSON lines instead of tables", NULL},
        {"quick", BENCH_FLAG, &s.quick, "a short run", NULL},
        {"part", BENCH_WORDS, &s.parts, "what to measure (all)", part_names},
        {"math", BENCH_WORDS, &s.maths, "what products compute with (all)", bench_maths},
        {"batch", BENCH_INT, &s.batch, "images of a mini-batch (64)", NULL},
        {"image", BENCH_INT, &s.image, "pixels a side (224)", NULL},
        {"seconds", BENCH_REAL, &seconds, "to measure each time (0.1)", NULL},
        {NULL, BENCH_FLAG, NULL, NULL, NULL},
    };
    bench_options_read("gpu_products", "What cuBLAS and a GPU's bus do.", options, argc, argv);
    s.patience = bench_patience_of(s.quick, seconds);
    if (s.parts & BUS)
        measure_bus(&s);
    if (s.parts & PRODUCTS)
        measure_products(&s);
    return 0;
}
