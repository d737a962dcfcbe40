/*
 * examples/options.c: see examples/options.h. Every value is checked to its last character. A
 * message about a wrong one says what is allowed.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "options.h"

static const char help[] =
    "Trains a convolutional network on Fashion-MNIST through a pipeline of partitions.\n"
    "\n"
    "  --partitions N     parts of the model, each on its own device (2)\n"
    "  --chunks M         micro-batches that a mini-batch is cut into (4)\n"
    "  --checkpoint MODE  always, except_last or never: which micro-batches are recomputed\n"
    "                     instead of kept (except_last)\n"
    "  --schedule NAME    order of tasks (gpipe); the names are below\n"
    "  --balance A,B,...  layers of each partition, 11 in all (4,7 for two, else automatic)\n"
    "  --batch B          images of a mini-batch (256)\n"
    "  --epochs E         times to go through all images (3)\n"
    "  --lr RATE          highest learning rate (0.15)\n"
    "  --seed S           of initial parameters, order of images and dropout (1)\n"
    "  --data DIRECTORY   where the four .gz files are (/usr/share/datasets/fashion-mnist)\n"
    "  --limit N          use only the first N images, of those to train on and of those to test "
    "on\n"
    "  --help             this text\n";

enum choice {
    PARTITIONS,
    CHUNKS,
    CHECKPOINT,
    BALANCE,
    BATCH,
    EPOCHS,
    LR,
    SEED,
    DATA,
    LIMIT,
    SCHEDULE,
    HELP
};

static const struct option known[] = {
    {"partitions", required_argument, NULL, PARTITIONS},
    {"chunks", required_argument, NULL, CHUNKS},
    {"checkpoint", required_argument, NULL, CHECKPOINT},
    {"balance", required_argument, NULL, BALANCE},
    {"batch", required_argument, NULL, BATCH},
    {"epochs", required_argument, NULL, EPOCHS},
    {"lr", required_argument, NULL, LR},
    {"seed", required_argument, NULL, SEED},
    {"data", required_argument, NULL, DATA},
    {"limit", required_argument, NULL, LIMIT},
    {"schedule", required_argument, NULL, SCHEDULE},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

static void refuse(const char *name, const char *allowed, const char *text)
{
    fprintf(stderr, "fashion_mnist: --%s must be %s, got \"%s\"\n", name, allowed, text);
    exit(2);
}

/* Reads a whole number from 1 to `most`, and refuses anything else. */
static long whole(const char *name, const char *text, long most)
{
    char *end, allowed[64];
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end != text && !*end && !errno && value >= 1 && value <= most)
        return value;
    snprintf(allowed, sizeof allowed, "a whole number from 1 to %ld", most);
    refuse(name, allowed, text);
    return 0;
}

static double rate(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value <= 0)
        refuse("lr", "a number above 0", text);
    return value;
}

static uint64_t seed(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end || errno || text[0] < '0' || text[0] > '9')
        refuse("seed", "a whole number from 0 to 18446744073709551615", text);
    return value;
}

static int layer_counts(const char *text, int balance[MOST_PARTITIONS])
{
    const char *at = text;
    for (int count = 0; count < MOST_PARTITIONS; at++) {
        char *end;
        long layers = strtol(at, &end, 10);
        if (*at < '0' || *at > '9' || layers < 1 || layers > 1000 || (*end && *end != ','))
            break;
        balance[count++] = (int)layers;
        at = end;
        if (!*at)
            return count;
    }
    refuse("balance", "the layers of each partition, such as 4,7", text);
    return 0;
}

static gpp_checkpoint mode(const char *text)
{
    gpp_checkpoint checkpoint;
    if (gpp_checkpoint_parse(text, &checkpoint, NULL))
        refuse("checkpoint", "always, except_last or never", text);
    return checkpoint;
}

static void print_help(void)
{
    fputs(help, stdout);
    fputs("\nSchedules:", stdout);
    for (size_t k = 0; gpp_schedule_name(k); k++)
        printf(" %s", gpp_schedule_name(k));
    putchar('\n');
}

static void read_one(options *o, int which, const char *text, int *balanced)
{
    switch (which) {
    case PARTITIONS:
        o->partitions = (int)whole("partitions", text, MOST_PARTITIONS);
        return;
    case CHUNKS:
        o->chunks = (int)whole("chunks", text, 4096);
        return;
    case CHECKPOINT:
        o->checkpoint = mode(text);
        return;
    case SCHEDULE:
        o->schedule = text;
        return;
    case BALANCE:
        *balanced = layer_counts(text, o->balance);
        return;
    case BATCH:
        o->batch = (int)whole("batch", text, 60000);
        return;
    case EPOCHS:
        o->epochs = (int)whole("epochs", text, 10000);
        return;
    case LR:
        o->lr = rate(text);
        return;
    case SEED:
        o->seed = seed(text);
        return;
    case DATA:
        o->data = text;
        return;
    case LIMIT:
        o->limit = whole("limit", text, 60000);
        return;
    case HELP:
        print_help();
        exit(0);
    default: /* getopt has printed what is wrong */
        fputs("fashion_mnist: --help lists the options\n", stderr);
        exit(2);
    }
}

void options_read(options *o, int argc, char *argv[])
{
    int which, balanced = 0;
    *o = (options){.chunks = 4, .epochs = 3, .batch = 256, .lr = 0.15, .seed = 1};
    o->data = "/usr/share/datasets/fashion-mnist";
    while ((which = getopt_long(argc, argv, "", known, NULL)) != -1)
        read_one(o, which, optarg, &balanced);
    if (optind < argc) {
        fprintf(stderr, "fashion_mnist: \"%s\" is no option; --help lists them\n", argv[optind]);
        exit(2);
    }
    if (balanced && o->partitions && o->partitions != balanced) {
        fprintf(stderr, "fashion_mnist: --balance names %d partitions, --partitions %d\n", balanced,
                o->partitions);
        exit(2);
    }
    o->has_balance = balanced > 0;
    if (!o->partitions)
        o->partitions = balanced ? balanced : 2;
}
