/*
 * balance/internal.h: what the files of this folder share.
 *
 * The bytes of a profile are those of layers that are each compiled as a partition of their own,
 * with the network's values between them as boundaries. Its times are those of the operators of the
 * whole model, compiled as one partition. Everything here runs operators without the task runtime.
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
    gpp__pool *pool;        /* threads on all its cores; NULL: a GPU, or the calling thread */
    struct gpp__cuda *cuda; /* a GPU; NULL: cores */
} gpp__bench;

/** What all solvers require: no NULL pointer, 1 ... layers partitions, finite costs >= 0. */
gpp_status gpp__balance_check(size_t layers, const double cost[], size_t partitions,
                              const int balance[], gpp_error *err);

/** Fails when there are absurdly many rows. With fewer, no size overflows. */
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

/** @param bench  the device that would run them  @return also errors of operators being compiled */
gpp_status gpp__layers_init(gpp__layers *layers, const gpp__network *network,
                            const int64_t rows[GPP__BATCHES], const gpp__bench *bench,
                            gpp_error *err);
void gpp__layers_release(gpp__layers *layers);

/** Fill in the bytes of every layer [count]. */
gpp_status gpp__layers_size(const gpp__layers *layers, gpp_layer_profile layer[], gpp_error *err);

/* --- running on devices ----------------------------------------------------------------------- */

/** The threads that run something on several devices at a time. */
typedef struct gpp__crew gpp__crew;

/** Wait until all threads are here. @return false: one of them has returned already */
bool gpp__crew_gather(gpp__crew *crew);
/** One thread has returned, so the others should. */
bool gpp__crew_is_over(gpp__crew *crew);

/** Something to run on a device. @param device  0 ... beside_count */
typedef gpp_status (*gpp__bench_fn)(const gpp__bench *bench, gpp__crew *crew, int device, void *arg,
                                    gpp_error *err);

/** The devices to run on. Device 0 is options.device or, without one, the first device that a pipe
 * of `partitions` would get. Devices 1, 2, ... are those of options.beside. */
typedef struct gpp__benches {
    const gpp_profile_options *options;
    int partitions;
    const gpp__gpus *gpus; /* GPUs that may be among the devices; NULL: cores only */
} gpp__benches;

/**
 * Call fn for all devices at the same time, each on a thread of its own. For cores, the thread is
 * bound to the first one and a pool has the others. For a GPU, the thread is near it and has
 * handles on it.
 * @param profile  out: device, gpu and threads of device 0, before the calls
 * @return GPP_OK, or the failure of the lowest device that failed
 */
gpp_status gpp__on_benches(const gpp__benches *benches, gpp_profile *profile, gpp__bench_fn fn,
                           void *arg, gpp_error *err);

/* --- times ------------------------------------------------------------------------------------ */

/**
 * Fill in the times of every layer and operator, and the profile's sweeps, precise, bytes_per_us
 * and link_bytes_per_us. Measuring begins when the crew has gathered. If the crew is over before
 * that, the profile is not filled in.
 */
gpp_status gpp__layers_time(const gpp__layers *layers, const gpp__bench *bench, gpp__crew *crew,
                            const gpp_profile_options *options, gpp_profile *profile,
                            gpp_error *err);

/** The work of device 1, 2, ...: one part of the model over and over, until the crew is over. */
gpp_status gpp__network_sweep(const gpp__network *network, const int64_t rows[GPP__BATCHES],
                              int device, const gpp__bench *bench, gpp__crew *crew,
                              const gpp_profile_options *options, gpp_error *err);

/** Bytes that all cores of a device, or a GPU, read and write in a microsecond when they add a
 * block of memory to another. A whole number; 0: there is not enough memory to measure. */
double gpp__memory_speed(const gpp__run *run);
/** Bytes that go from the host to a GPU in a microsecond, or back if that is slower. 0: the device
 * is cores, or there is not enough memory to measure. */
double gpp__link_speed(const gpp__run *run);

/**
 * The median of times in nanoseconds, which are sorted.
 * @param half  out: half the width of its confidence interval
 * @param sure  out: the interval has a confidence of 95 %
 */
int64_t gpp__median(int64_t ns[], int count, double *half, bool *sure);

/** gpp_profile_new. If no device is named, the first that a pipe of `partitions` would get. */
gpp_status gpp__profile_take(gpp_profile **profile, const gpp_model *model, int64_t rows,
                             int partitions, const gpp_profile_options *options, gpp_error *err);

#endif
