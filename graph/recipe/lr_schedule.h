/*
 * graph/recipe/lr_schedule.h: a learning-rate schedule, read once and asked for every update. Pure.
 */
#ifndef GPP_GRAPH_LR_SCHEDULE_H
#define GPP_GRAPH_LR_SCHEDULE_H

#include <gridpipe/lr_schedule.h>

/* The most milestones of a schedule. */
enum { GPP__MILESTONES = 64 };

/** May be copied; needs no release. */
typedef struct gpp__lr_schedule {
    int kind; /* index in the table of lr_schedule.c */
    int64_t warmup;
    int64_t size; /* updates: of a step, or of the whole change */
    double gamma; /* factor of a step */
    double min;   /* cosine's end */
    double from, to;
    double power;
    double max, start, div, final_div;
    int milestones;
    int64_t milestone[GPP__MILESTONES];
} gpp__lr_schedule;

/** @param text  a specification as in gridpipe/lr_schedule.h
 * @return GPP_OK, GPP_ESYNTAX, GPP_ENOENT (no such schedule or key), GPP_EINVAL (a value) */
gpp_status gpp__lr_schedule_parse(gpp__lr_schedule *schedule, const char *text, gpp_error *err);

/** The rate of update number t >= 0, counted from 0, with base rate lr. */
double gpp__lr_schedule_at(const gpp__lr_schedule *schedule, int64_t t, double lr);

#endif
