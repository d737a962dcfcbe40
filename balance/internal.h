/*
 * balance/internal.h: what the files of this folder share.
 *
 * Profiles are taken of a network layer by layer: each layer of the model is compiled as if it were
 * a partition of its own, with the network's values between them as boundaries. Everything here
 * runs operators without the task runtime.
 */
#ifndef GPP_BALANCE_INTERNAL_H
#define GPP_BALANCE_INTERNAL_H

#include <gridpipe/balance.h>

#include "codelets/program.h"

/** What all solvers want of a call: pointers, 1 ... layers partitions, finite costs >= 0. */
gpp_status gpp__balance_check(size_t layers, const double cost[], size_t partitions,
                              const int balance[], gpp_error *err);

/** A model's layers, each compiled alone for one micro-batch. */
typedef struct gpp__layers {
    const gpp__network *network;
    int64_t rows[GPP__BATCHES]; /* of the micro-batch */
    int count;
    gpp__stage *stage;      /* [count] in one block of parameters and one of gradients */
    gpp__program **program; /* [count] */
    uint8_t *flow;          /* [network->values] */
} gpp__layers;

/** @param threads  that will run it  @return also what operators say when they are compiled */
gpp_status gpp__layers_init(gpp__layers *layers, const gpp__network *network,
                            const int64_t rows[GPP__BATCHES], int threads, gpp_error *err);
void gpp__layers_release(gpp__layers *layers);

/** Fill in the bytes of every layer [count]. */
gpp_status gpp__layers_size(const gpp__layers *layers, gpp_layer_profile layer[], gpp_error *err);

/**
 * Fill in the times of every layer, and the profile's sweeps and precise.
 * @param sample  [network->inputs] checked; NULL: numbers of our own
 */
gpp_status gpp__layers_time(const gpp__layers *layers, gpp__pool *pool,
                            const gpp_profile_options *options, gpp_profile *profile,
                            gpp_error *err);

/** Times in nanoseconds: sorts them. @return the median  @param half out: half the width of its
 * interval  @return through `sure`: the interval has the confidence of 95 % */
int64_t gpp__median(int64_t ns[], int count, double *half, bool *sure);

/** Something to run on a device. @param pool of all its cores */
typedef gpp_status (*gpp__core_fn)(gpp__pool *pool, void *arg, gpp_error *err);

/**
 * Call fn on a thread of its own that is bound to a device's first core, with a pool on the others.
 * @param spec        "cpu:0"; NULL: the first device that would be chosen for so many partitions
 * @param name        [64] out   @param threads  out; both are set before fn is called
 */
gpp_status gpp__on_cores(const char *spec, int partitions, char name[64], int *threads,
                         gpp__core_fn fn, void *arg, gpp_error *err);

/** gpp_profile_new, on the device of `partitions` when none is named. */
gpp_status gpp__profile_take(gpp_profile **profile, const gpp_model *model, int64_t rows,
                             int partitions, const gpp_profile_options *options, gpp_error *err);

#endif
