/*
 * balance/internal.h: what the files of this folder share.
 *
 * Bytes of a profile are of layers, each compiled as if it were a partition of its own, with the
 * network's values between them as boundaries; times are of the operators of the whole model,
 * compiled as one partition. Everything here runs operators without the task runtime.
 */
#ifndef GPP_BALANCE_INTERNAL_H
#define GPP_BALANCE_INTERNAL_H

#include <gridpipe/balance.h>

#include "codelets/bare_device.h"
#include "codelets/program/program.h"
#include "sched/gpus.h"

/** A device to run something on, from one thread. */
typedef struct gpp__bench {
    const char *device;     /* its name */
    gpp__pool *pool;        /* of all its cores; NULL: a GPU, or the calling thread */
    struct gpp__cuda *cuda; /* NULL: cores */
} gpp__bench;

/** What all solvers want of a call: pointers, 1 ... layers partitions, finite costs >= 0. */
gpp_status gpp__balance_check(size_t layers, const double cost[], size_t partitions,
                              const int balance[], gpp_error *err);

/** Fails when so many rows cannot be meant: below that, no size overflows. */
gpp_status gpp__rows_check(const gpp__network *network, const int64_t rows[GPP__BATCHES],
                           gpp_error *err);

/** A model's layers, each compiled alone for one micro-batch. */
typedef struct gpp__layers {
    const gpp__network *network;
    int64_t rows[GPP__BATCHES]; /* of the micro-batch */
    int count;
    gpp__stage *stage;      /* [count] in one block of parameters and one of gradients */
    gpp__program **program; /* [count] */
    uint8_t *flow;          /* [network->values] */
} gpp__layers;

/** @param bench  that would run it  @return also what operators say when they are compiled */
gpp_status gpp__layers_init(gpp__layers *layers, const gpp__network *network,
                            const int64_t rows[GPP__BATCHES], const gpp__bench *bench,
                            gpp_error *err);
void gpp__layers_release(gpp__layers *layers);

/** Fill in the bytes of every layer [count]. */
gpp_status gpp__layers_size(const gpp__layers *layers, gpp_layer_profile layer[], gpp_error *err);

/* --- running on devices ----------------------------------------------------------------------- */

/** Those who run something on several devices at a time. */
typedef struct gpp__crew gpp__crew;

/** Wait until all are here. @return false: it is over already */
bool gpp__crew_gather(gpp__crew *crew);
/** One of them has returned: the others should. */
bool gpp__crew_is_over(gpp__crew *crew);

/** Something to run on a device. @param device  0 ... beside_count */
typedef gpp_status (*gpp__bench_fn)(const gpp__bench *bench, gpp__crew *crew, int device, void *arg,
                                    gpp_error *err);

/** Which devices: options.device, or the first that would be chosen for so many partitions, is
 * device 0, those of options.beside are 1, 2, ... */
typedef struct gpp__benches {
    const gpp_profile_options *options;
    int partitions;
    const gpp__gpus *gpus; /* that may be among them; NULL: cores only */
} gpp__benches;

/**
 * Call fn for every device at a time, on threads of their own: bound to its first core, with a pool
 * on the others, or near its GPU, with handles there.
 * @param profile  out: device, gpu and threads of device 0, before the calls
 * @return of several failures, that of the lowest device
 */
gpp_status gpp__on_benches(const gpp__benches *benches, gpp_profile *profile, gpp__bench_fn fn,
                           void *arg, gpp_error *err);

/* --- times ------------------------------------------------------------------------------------ */

/**
 * Fill in the times of every layer and operator, and the profile's sweeps, precise, bytes_per_us
 * and link_bytes_per_us. Begins to measure when the crew is there; when that is over before, the
 * profile is not filled in.
 */
gpp_status gpp__layers_time(const gpp__layers *layers, const gpp__bench *bench, gpp__crew *crew,
                            const gpp_profile_options *options, gpp_profile *profile,
                            gpp_error *err);

/** The same work over and over, as device 1, 2, ..., until the crew is over. */
gpp_status gpp__network_sweep(const gpp__network *network, const int64_t rows[GPP__BATCHES],
                              int device, const gpp__bench *bench, gpp__crew *crew,
                              const gpp_profile_options *options, gpp_error *err);

/** Bytes that all cores of a device together, or a GPU, read and write in a microsecond when they
 * add a block of memory to another, as a whole number; 0: there is no memory to do so. */
double gpp__memory_speed(const gpp__run *run);
/** Bytes that go to a GPU from the host, or the other way if that is slower; 0: cores, or there is
 * no memory. */
double gpp__link_speed(const gpp__run *run);

/** Times in nanoseconds: sorts them. @return the median  @param half out: half the width of its
 * interval  @return through `sure`: the interval has the confidence of 95 % */
int64_t gpp__median(int64_t ns[], int count, double *half, bool *sure);

/** gpp_profile_new, on the device of `partitions` when none is named. */
gpp_status gpp__profile_take(gpp_profile **profile, const gpp_model *model, int64_t rows,
                             int partitions, const gpp_profile_options *options, gpp_error *err);

#endif
