/*
 * graph/forecast_times.h: what operators take on a device, for a number of rows, while other
 * devices are busy for a part of the time: from whatever profiles there are.
 */
#ifndef GPP_GRAPH_FORECAST_TIMES_H
#define GPP_GRAPH_FORECAST_TIMES_H

#include <gridpipe/balance.h>

#include <private/status.h>

typedef struct gpp__profile_list {
    int count, room;
    const gpp_profile **profile; /* [count] */
} gpp__profile_list;

/** A profile was taken on so many cores. */
bool gpp__profiles_have(const gpp__profile_list *list, int threads);
/** Rows of the first mini-batch there is. */
int64_t gpp__first_rows(const int64_t rows[GPP_MAX_BATCHES]);

/**
 * Times between those of a device alone (beside 0), where there is such a profile, and those beside
 * as many others as come nearest.
 *
 * @param threads  cores of the device; there must be a profile for them
 * @param others   other devices of the pipe
 * @param busy     part of the device's working time in which the others work, too: 0 ... 1
 * @param op       [operators] out
 * @return bytes_per_us, likewise
 */
double gpp__profiles_times(const gpp__profile_list *list, int threads, int64_t rows, int others,
                           double busy, gpp_operator_profile op[]);

#endif
