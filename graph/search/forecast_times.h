/*
 * graph/search/forecast_times.h: what operators take on a device, for a number of rows, while other
 * devices are busy for a part of the time: from whatever profiles there are.
 */
#ifndef GPP_GRAPH_FORECAST_TIMES_H
#define GPP_GRAPH_FORECAST_TIMES_H

#include <gridpipe/balance.h>

#include "base/status.h"

typedef struct gpp__profile_list {
    int count, room;
    const gpp_profile **profile; /* [count] */
} gpp__profile_list;

/** What a profile and a device have in common where times of the one are those of the other: so
 * many cores; 0: a GPU. */
static inline int gpp__profile_kind(const gpp_profile *profile)
{
    return profile->gpu[0] ? 0 : profile->threads;
}

/** A profile was taken on such a device. */
bool gpp__profiles_have(const gpp__profile_list *list, int kind);
/** Rows of the first mini-batch there is. */
int64_t gpp__first_rows(const int64_t rows[GPP_MAX_BATCHES]);

/**
 * Times between those of a device alone (beside 0), where there is such a profile, and those beside
 * as many others as come nearest.
 *
 * @param kind     of the device (gpp__profile_kind); there must be a profile of it
 * @param others   other devices of the pipe that share memory with this one
 * @param busy     part of the device's working time in which the others work, too: 0 ... 1
 * @param op       [operators] out
 * @return bytes_per_us, likewise
 */
double gpp__profiles_times(const gpp__profile_list *list, int kind, int64_t rows, int others,
                           double busy, gpp_operator_profile op[]);
/** Between the host's memory and a GPU, by the first profile of one that knows it; 0: none does. */
double gpp__profiles_link(const gpp__profile_list *list);

#endif
