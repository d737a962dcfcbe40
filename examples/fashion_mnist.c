/*
 * examples/fashion_mnist.c: a convolutional network learns to tell clothes apart, in a pipeline.
 *
 * The model is cut into partitions and each mini-batch into micro-batches. While one partition
 * works on a micro-batch, the other works on the next. Results do not depend on the cut.
 *
 * Data: Xiao, Rasul, Vollgraf, "Fashion-MNIST", arXiv 1708.07747 (Debian: dataset-fashion-mnist).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gridpipe.h>

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

/* Mean and standard deviation of the training images' pixels, which lie in 0 ... 255. */
static const float pixel_mean = 0.2860f * 255, pixel_std = 0.3530f * 255;

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

enum { IMAGES, LABELS, TENSORS };
enum { IN_FLIGHT = 2 }; /* one step runs while the next mini-batch is fetched and submitted */

typedef struct dataset {
    gpp_array array[TENSORS];
    gpp_loader *loader;
    long count; /* images in use */
} dataset;

static void read_array(gpp_array *array, const char *directory, const char *name)
{
    gpp_error err = GPP_ERROR_INIT;
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (!gpp_array_read(path, array, &err))
        return;
    fprintf(stderr, "fashion_mnist: %s (Debian's package dataset-fashion-mnist has the data)\n",
            err.msg);
    exit(1);
}

static bool is_fashion_mnist(const gpp_tensor *images, const gpp_tensor *labels)
{
    if (images->dtype != GPP_I64 || images->rank != 3 || images->dim[1] != SIDE ||
        images->dim[2] != SIDE || images->dim[0] < 1)
        return false;
    if (labels->dtype != GPP_I64 || labels->rank != 1 || labels->dim[0] != images->dim[0])
        return false;
    const int64_t *label = labels->data;
    for (int64_t k = 0; k < labels->dim[0]; k++)
        if (label[k] < 0 || label[k] >= CLASSES)
            return false;
    return true;
}

/* Loads the first `limit` images, or all if there are fewer. */
static void load(dataset *d, const char *directory, const char *images, const char *labels,
                 long limit)
{
    gpp_error err = GPP_ERROR_INIT;
    read_array(&d->array[IMAGES], directory, images);
    read_array(&d->array[LABELS], directory, labels);
    if (!is_fashion_mnist(&d->array[IMAGES].tensor, &d->array[LABELS].tensor)) {
        fprintf(stderr, "fashion_mnist: %s/%s and its labels are not Fashion-MNIST\n", directory,
                images);
        exit(1);
    }
    d->count = (long)d->array[LABELS].tensor.dim[0];
    const int64_t shape[] = {d->count, 1, SIDE, SIDE};
    check(gpp_array_reshape(&d->array[IMAGES], 4, shape, &err), &err);
    check(gpp_array_to_floats(&d->array[IMAGES], &pixel_mean, &pixel_std, 1, &err), &err);
    if (limit && limit < d->count)
        d->count = limit;
}

/* Copies to a GPU want page-locked memory. Allocating that may start CUDA, so ask for it only where
 * the pipe uses a GPU. */
static bool is_on_gpu(const gpp_pipe *pipe)
{
    gpp_pipe_info info;
    gpp_pipe_get_info(pipe, &info);
    for (int device = 0; device < info.devices; device++)
        if (strncmp(info.device_name[device], "cuda:", 5) == 0)
            return true;
    return false;
}

static void serve(dataset *d, const options *o, const gpp_pipe *pipe, bool shuffle)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_loader_options how = GPP_LOADER_OPTIONS_INIT;
    gpp_tensor tensor[TENSORS];
    for (int k = 0; k < TENSORS; k++) {
        tensor[k] = d->array[k].tensor;
        tensor[k].dim[0] = d->count;
    }
    how.batch = o->batch;
    how.lent = IN_FLIGHT;
    how.shuffle = shuffle;
    how.seed = o->seed;
    how.pinned = is_on_gpu(pipe);
    check(gpp_loader_new(&d->loader, tensor, TENSORS, &how, &err), &err);
}

/* Takes the next mini-batch. False: the epoch has ended. */
static bool next(dataset *d, gpp_tensor batch[TENSORS])
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_status status = gpp_loader_next(d->loader, batch, &err);
    if (status != GPP_ENOENT)
        check(status, &err);
    return status == GPP_OK;
}

static void unload(dataset *d)
{
    gpp_loader_free(d->loader);
    for (int k = 0; k < TENSORS; k++)
        gpp_array_free(&d->array[k]);
}

/* --- training --------------------------------------------------------------------------------- */

typedef struct training {
    const options *options;
    gpp_pipe *pipe;
    float *y;          /* [batch * CLASSES] what the model says in an evaluation */
    long steps;        /* of all epochs */
    long submitted;    /* steps begun */
    long step;         /* steps done */
    double *step_ms;   /* [steps] */
    double efficiency; /* sum over steps */
    double epoch_s;    /* sum over epochs */
    int64_t first;     /* how often the first step waited for data, */
    double first_ms;   /* and for how long in all */
} training;

/* The learning rate rises during the first tenth of the steps, then falls to 0. Both are linear. */
static double rate(const training *t)
{
    double done = ((double)t->submitted + 0.5) / (double)t->steps, rising = 0.1;
    return t->options->lr * (done < rising ? done / rising : (1 - done) / (1 - rising));
}

static void submit_step(training *t, const gpp_tensor batch[TENSORS])
{
    gpp_error err = GPP_ERROR_INIT;
    check(gpp_pipe_set_lr(t->pipe, rate(t), &err), &err);
    check(gpp_pipe_submit(t->pipe, &batch[IMAGES], &batch[LABELS], NULL, &err), &err);
    t->submitted++;
}

/* Waits for the oldest submitted step. */
static double wait_for_step(training *t)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_step_stats stats;
    double loss;
    check(gpp_pipe_wait(t->pipe, &loss, &err), &err);
    check(gpp_pipe_last_step(t->pipe, &stats, &err), &err);
    t->step_ms[t->step++] = stats.step_ms;
    t->efficiency += stats.efficiency;
    return loss;
}

static void train_epoch(training *t, dataset *d, int epoch)
{
    progress bar;
    gpp_tensor batch[TENSORS];
    long done = 0;
    progress_begin(&bar, epoch, t->options->epochs, d->count);
    for (bool more = true; more || gpp_pipe_submitted(t->pipe);) {
        if (more && (more = next(d, batch))) {
            if (!t->submitted)
                gpp_loader_waits(d->loader, &t->first, &t->first_ms);
            submit_step(t, batch);
        }
        if (gpp_pipe_submitted(t->pipe) < (more ? IN_FLIGHT : 1))
            continue;
        double loss = wait_for_step(t);
        done += t->options->batch;
        progress_show(&bar, done < d->count ? done : d->count, loss);
    }
    t->epoch_s += progress_end(&bar);
}

static long count_right(const float *y, const gpp_tensor *labels)
{
    const int64_t *label = labels->data;
    long right = 0;
    for (int64_t row = 0; row < labels->dim[0]; row++) {
        int best = 0;
        for (int k = 1; k < CLASSES; k++)
            if (y[row * CLASSES + k] > y[row * CLASSES + best])
                best = k;
        right += best == label[row];
    }
    return right;
}

static double accuracy(training *t, dataset *d)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_tensor batch[TENSORS];
    long right = 0;
    while (next(d, batch)) {
        gpp_tensor y = {t->y, GPP_F32, 2, {batch[LABELS].dim[0], CLASSES}};
        check(gpp_pipe_evaluate(t->pipe, &batch[IMAGES], NULL, &y, NULL, &err), &err);
        right += count_right(t->y, &batch[LABELS]);
    }
    return (double)right / (double)d->count;
}

/* --- what is said about it -------------------------------------------------------------------- */

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

static void print_waits(const training *t, const dataset *d)
{
    int64_t waits;
    double ms;
    gpp_loader_waits(d->loader, &waits, &ms);
    printf("data           %lld waits in %ld steps, %.1f ms (and %.1f ms before the first step)\n",
           (long long)(waits - t->first), t->steps, ms - t->first_ms, t->first_ms);
}

static void print_summary(training *t, const dataset *d, double right)
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
    print_waits(t, d);
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

/* --- the program ------------------------------------------------------------------------------ */

static gpp_pipe *build(const options *o)
{
    /* Two partitions are cut behind the second convolution, the costliest layer. Its output is the
     * boundary. A boundary is kept, so that convolution is never recomputed. */
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
    how.schedule = o->schedule;
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
    t->steps = (images + o->batch - 1) / o->batch * o->epochs;
    t->step_ms = allocate((size_t)t->steps, sizeof *t->step_ms);
    t->y = allocate((size_t)o->batch * CLASSES, sizeof *t->y);
}

int main(int argc, char *argv[])
{
    options o;
    dataset train, test;
    training t;
    double right = 0;
    options_read(&o, argc, argv);
    load(&train, o.data, "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", o.limit);
    load(&test, o.data, "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", o.limit);
    start(&t, &o, train.count);
    serve(&train, &o, t.pipe, true);
    serve(&test, &o, t.pipe, false);
    print_cut(&o, t.pipe);
    for (int epoch = 1; epoch <= o.epochs; epoch++) {
        train_epoch(&t, &train, epoch);
        right = accuracy(&t, &test);
        printf("epoch %d/%d  test accuracy %.2f %%\n", epoch, o.epochs, 100 * right);
        fflush(stdout);
    }
    print_summary(&t, &train, right);
    gpp_pipe_free(t.pipe);
    free(t.step_ms);
    free(t.y);
    unload(&train);
    unload(&test);
    return 0;
}
