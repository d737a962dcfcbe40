/*
 * graph/search/forecast_times.h: times of operators from the profiles there are: for a number of
 * rows on a device, while other devices are busy for a part of the time.
 */
#ifndef GPP_GRAPH_FORECAST_TIMES_H
#define GPP_GRAPH_FORECAST_TIMES_H

#include <gridpipe/balance.h>

#include "base/status.h"

typedef struct gpp__profile_list {
    int count, room;
    const gpp_profile **profile; /* [count] */
} gpp__profile_list;

/** The kind of device that a profile was taken on: its number of cores, or 0 for a GPU. Its times
 * hold for all devices of this kind. */
static inline int gpp__profile_kind(const gpp_profile *profile)
{
    return profile->gpu[0] ? 0 : profile->threads;
}

/** There is a profile of this kind of device. */
bool gpp__profiles_have(const gpp__profile_list *list, int kind);
/** Rows of the first mini-batch that the model has. */
int64_t gpp__first_rows(const int64_t rows[GPP_MAX_BATCHES]);

/**
 * Times between two profiles: that of a device alone, where there is one, and the one with the
 * number of busy devices beside it nearest to `others`.
 *
 * @param kind     of the device (gpp__profile_kind); there must be a profile of it
 * @param others   other devices of the pipe that share memory with this one
 * @param busy     part of the device's working time in which the others work, too: 0 ... 1
 * @param op       [operators] out
 * @return bytes_per_us of the device, found in the same way
 */
double gpp__profiles_times(const gpp__profile_list *list, int kind, int64_t rows, int others,
                           double busy, gpp_operator_profile op[]);
/** Bytes per microsecond between the host's memory and a GPU, from the first profile that has it; 0:
 * none has. */
double gpp__profiles_link(const gpp__profile_list *list);

#endif
