/*
 * graph/recipe/lr_schedule.h: a learning-rate schedule, read once and asked for every update. Pure.
 */
#ifndef GPP_GRAPH_LR_SCHEDULE_H
#define GPP_GRAPH_LR_SCHEDULE_H

#include <gridpipe/schedule.h>

/* Milestones that a schedule may have. */
enum { GPP__MILESTONES = 64 };

/** A value: it may be copied, and needs no release. */
typedef struct gpp__lr_schedule {
    int kind; /* index in the table of lr_schedule.c */
    int64_t warmup;
    int64_t size; /* updates: a step's, or how long it changes */
    double gamma; /* factor of a step */
    double min;   /* cosine's end */
    double from, to;
    double power;
    double max, start, div, final_div;
    int milestones;
    int64_t milestone[GPP__MILESTONES];
} gpp__lr_schedule;

/** @param text  a specification as in gridpipe/schedule.h
 * @return GPP_OK, GPP_ESYNTAX, GPP_ENOENT (no such schedule or key), GPP_EINVAL (a value) */
gpp_status gpp__lr_schedule_parse(gpp__lr_schedule *schedule, const char *text, gpp_error *err);

/** The rate of the update after `t` others, t >= 0, with base rate lr. */
double gpp__lr_schedule_at(const gpp__lr_schedule *schedule, int64_t t, double lr);

#endif
