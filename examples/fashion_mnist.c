/*
 * examples/fashion_mnist.c: a convolutional network learns to tell clothes apart, in a pipeline.
 *
 * The model is cut into partitions, each mini-batch into micro-batches; while one partition works
 * on a micro-batch the other works on the next. What comes out does not depend on the cut.
 *
 * Data: Xiao, Rasul, Vollgraf, "Fashion-MNIST", arXiv 1708.07747 (Debian: dataset-fashion-mnist).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe.h>

#include "idx.h"
#include "options.h"
#include "progress.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10 };

static const char network[] = "conv2d out=32 kernel=3 padding=1\n"
                              "relu\n"
                              "maxpool2d kernel=2\n"
                              "conv2d out=64 kernel=3 padding=1\n"
                              "relu\n"
                              "maxpool2d kernel=2\n"
                              "flatten\n"
                              "linear out=128\n"
                              "relu\n"
                              "dropout p=0.25\n"
                              "linear out=10\n";

/* Mean and standard deviation of the training images' pixels, which lie in 0 ... 1. */
#define PIXEL_MEAN 0.2860f
#define PIXEL_STD  0.3530f

/* --- failing ---------------------------------------------------------------------------------- */

/* A wrong choice of options ends the program with status 2, everything else with 1. */
static void check(gpp_status status, const gpp_error *err)
{
    if (!status)
        return;
    fprintf(stderr, "fashion_mnist: %s\n", err->msg[0] ? err->msg : gpp_status_text(status));
    exit(status == GPP_EINVAL || status == GPP_ENODEV ? 2 : 1);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) {
        fputs("fashion_mnist: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* --- data ------------------------------------------------------------------------------------- */

typedef struct dataset {
    idx images, labels;
    long count;
} dataset;

static void load(dataset *d, const char *directory, const char *images, const char *labels)
{
    char why[1400];
    if (!idx_read(directory, images, 3, &d->images, why, sizeof why) ||
        !idx_read(directory, labels, 1, &d->labels, why, sizeof why)) {
        fprintf(stderr, "fashion_mnist: %s (Debian's package dataset-fashion-mnist has the data)\n",
                why);
        exit(1);
    }
    d->count = (long)d->images.dim[0];
    bool good = d->images.dim[1] == SIDE && d->images.dim[2] == SIDE &&
                d->labels.dim[0] == d->images.dim[0];
    for (long k = 0; good && k < d->count; k++)
        good = d->labels.data[k] < CLASSES;
    if (!good) {
        fprintf(stderr, "fashion_mnist: %s/%s and its labels are not Fashion-MNIST\n", directory,
                images);
        exit(1);
    }
}

static void unload(dataset *d)
{
    idx_release(&d->images);
    idx_release(&d->labels);
}

/* Room for one mini-batch and the tensors that describe it. */
typedef struct batch {
    gpp_tensor x, target, y;
} batch;

static void batch_new(batch *b, long rows)
{
    b->x = (gpp_tensor){
        allocate((size_t)rows * PIXELS, sizeof(float)), GPP_F32, 4, {rows, 1, SIDE, SIDE}};
    b->target = (gpp_tensor){allocate((size_t)rows, sizeof(int64_t)), GPP_I64, 1, {rows}};
    b->y =
        (gpp_tensor){allocate((size_t)rows * CLASSES, sizeof(float)), GPP_F32, 2, {rows, CLASSES}};
}

static void batch_free(batch *b)
{
    free(b->x.data);
    free(b->target.data);
    free(b->y.data);
}

/* Images order[0 ... rows-1] of the data, in any order of which NULL is the data's own from `at`.
 */
static void batch_fill(batch *b, const dataset *d, const long *order, long at, long rows)
{
    float *x = b->x.data;
    int64_t *target = b->target.data;
    b->x.dim[0] = b->target.dim[0] = b->y.dim[0] = rows;
    for (long row = 0; row < rows; row++) {
        long image = order ? order[at + row] : at + row;
        const unsigned char *pixel = d->images.data + image * PIXELS;
        for (int k = 0; k < PIXELS; k++)
            x[row * PIXELS + k] = ((float)pixel[k] / 255.0f - PIXEL_MEAN) / PIXEL_STD;
        target[row] = d->labels.data[image];
    }
}

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA'14. */
static uint64_t random64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Fisher and Yates: the order of an epoch depends on the seed and the epoch alone. */
static void shuffle(long *order, long count, uint64_t seed, int epoch)
{
    uint64_t state = seed ^ (uint64_t)epoch << 32;
    for (long k = 0; k < count; k++)
        order[k] = k;
    for (long k = count - 1; k > 0; k--) {
        long other = (long)(random64(&state) % (uint64_t)(k + 1)), keep = order[k];
        order[k] = order[other];
        order[other] = keep;
    }
}

/* --- training --------------------------------------------------------------------------------- */

typedef struct training {
    const options *options;
    gpp_pipe *pipe;
    batch batch;
    long count, steps; /* images of an epoch; steps of all epochs */
    long step;         /* steps done */
    double *step_ms;   /* [steps] */
    double efficiency; /* sum over steps */
    double epoch_s;    /* sum over epochs */
} training;

/* The learning rate rises during the first tenth of the steps and then falls, straight, to 0. */
static double rate(const training *t)
{
    double done = ((double)t->step + 0.5) / (double)t->steps, rising = 0.1;
    return t->options->lr * (done < rising ? done / rising : (1 - done) / (1 - rising));
}

static double train_step(training *t)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_step_stats stats;
    double loss;
    check(gpp_pipe_set_lr(t->pipe, rate(t), &err), &err);
    check(gpp_pipe_step(t->pipe, &t->batch.x, &t->batch.target, NULL, &loss, &err), &err);
    check(gpp_pipe_last_step(t->pipe, &stats, &err), &err);
    t->step_ms[t->step++] = stats.step_ms;
    t->efficiency += stats.efficiency;
    return loss;
}

static void train_epoch(training *t, const dataset *d, int epoch)
{
    progress bar;
    long *order = allocate((size_t)t->count, sizeof *order);
    shuffle(order, t->count, t->options->seed, epoch);
    progress_begin(&bar, epoch, t->options->epochs, t->count);
    for (long at = 0, rows; at < t->count; at += rows) {
        rows = t->count - at < t->options->batch ? t->count - at : t->options->batch;
        batch_fill(&t->batch, d, order, at, rows);
        double loss = train_step(t);
        progress_show(&bar, at + rows, loss);
    }
    t->epoch_s += progress_end(&bar);
    free(order);
}

static long count_right(const batch *b)
{
    const float *y = b->y.data;
    const int64_t *target = b->target.data;
    long right = 0;
    for (long row = 0; row < b->y.dim[0]; row++) {
        int best = 0;
        for (int k = 1; k < CLASSES; k++)
            if (y[row * CLASSES + k] > y[row * CLASSES + best])
                best = k;
        right += best == target[row];
    }
    return right;
}

static double accuracy(training *t, const dataset *d)
{
    gpp_error err = GPP_ERROR_INIT;
    long right = 0;
    for (long at = 0, rows; at < d->count; at += rows) {
        rows = d->count - at < t->options->batch ? d->count - at : t->options->batch;
        batch_fill(&t->batch, d, NULL, at, rows);
        check(gpp_pipe_evaluate(t->pipe, &t->batch.x, NULL, &t->batch.y, NULL, &err), &err);
        right += count_right(&t->batch);
    }
    return (double)right / (double)d->count;
}

/* --- what is said about it ----------------------------------------------------------------------
 */

static void print_cut(const options *o, const gpp_pipe *pipe)
{
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    printf("%d layers in %d partition%s:", info.layers, info.partitions,
           info.partitions > 1 ? "s" : "");
    for (int j = 0; j < info.partitions; j++)
        printf("%s %d on %s", j ? "," : "", info.balance[j], info.device_name[info.device_of[j]]);
    printf("; batch %d in %d micro-batches, checkpoint %s\n", o->batch, info.chunks,
           gpp_checkpoint_name(info.checkpoint));
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_summary(training *t, double right)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_pipe_info info;
    size_t planned_all = 0, peak_all = 0;
    double epoch_s = t->epoch_s / t->options->epochs;
    double efficiency = t->efficiency / (double)t->steps;
    qsort(t->step_ms, (size_t)t->steps, sizeof *t->step_ms, ascending);
    double step_ms = t->step_ms[t->steps / 2];
    printf("\ntest accuracy  %.2f %%\n", 100 * right);
    printf("epoch          %.1f s (training, mean of %d)\n", epoch_s, t->options->epochs);
    printf("step           %.1f ms (median)\n", step_ms);
    printf("efficiency     %.1f %% of what the schedule allows\n", 100 * efficiency);
    gpp_pipe_get_info(t->pipe, &info);
    for (int device = 0; device < info.devices; device++) {
        size_t planned, peak;
        check(gpp_pipe_memory(t->pipe, device, &planned, &peak, &err), &err);
        printf("memory         %s: planned %.1f MiB, measured peak %.1f MiB\n",
               info.device_name[device], (double)planned / 0x1p20, (double)peak / 0x1p20);
        planned_all += planned;
        peak_all += peak;
    }
    printf("accuracy=%.4f epoch_s=%.1f step_ms=%.1f efficiency=%.3f planned_bytes=%zu "
           "peak_bytes=%zu\n",
           right, epoch_s, step_ms, efficiency, planned_all, peak_all);
}

/* --- the program --------------------------------------------------------------------------------
 */

static gpp_pipe *build(const options *o)
{
    /* Two partitions part behind the second convolution, the costliest layer: what it makes is the
     * boundary, which is kept, so it is never recomputed. */
    static const int behind_second_conv[] = {4, 7};
    static const int64_t image[] = {1, SIDE, SIDE};
    gpp_error err = GPP_ERROR_INIT;
    gpp_model *model;
    gpp_pipe *pipe;
    char optimizer[80];
    check(gpp_model_new(&model, &err), &err);
    check(gpp_model_add_text(model, network, &err), &err);
    check(gpp_model_set_input(model, GPP_F32, 3, image, &err), &err);

    gpp_pipe_options how = GPP_PIPE_OPTIONS_INIT;
    snprintf(optimizer, sizeof optimizer, "sgd lr=%.17g momentum=0.9", o->lr);
    how.partitions = o->partitions;
    how.balance = o->has_balance ? o->balance : o->partitions == 2 ? behind_second_conv : NULL;
    how.chunks = o->chunks;
    how.checkpoint = o->checkpoint;
    how.seed = o->seed;
    how.loss = "cross_entropy reduction=mean";
    how.optimizer = optimizer;
    how.batch = o->batch;
    gpp_status status = gpp_pipe_new(&pipe, model, &how, &err);
    gpp_model_free(model);
    check(status, &err);
    return pipe;
}

static void start(training *t, const options *o, long images)
{
    *t = (training){.options = o, .pipe = build(o)};
    t->count = o->limit && o->limit < images ? o->limit : images;
    t->steps = (t->count + o->batch - 1) / o->batch * o->epochs;
    t->step_ms = allocate((size_t)t->steps, sizeof *t->step_ms);
    batch_new(&t->batch, o->batch);
}

int main(int argc, char *argv[])
{
    options o;
    dataset train, test;
    training t;
    double right = 0;
    options_read(&o, argc, argv);
    load(&train, o.data, "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz");
    load(&test, o.data, "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz");
    start(&t, &o, train.count);
    print_cut(&o, t.pipe);
    for (int epoch = 1; epoch <= o.epochs; epoch++) {
        train_epoch(&t, &train, epoch);
        right = accuracy(&t, &test);
        printf("epoch %d/%d  test accuracy %.2f %%\n", epoch, o.epochs, 100 * right);
        fflush(stdout);
    }
    print_summary(&t, right);
    gpp_pipe_free(t.pipe);
    free(t.step_ms);
    batch_free(&t.batch);
    unload(&train);
    unload(&test);
    return 0;
}
