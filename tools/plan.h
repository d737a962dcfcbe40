/*
 * tools/plan.h: what `gridpipe plan` was asked, what it found, and the two ways to write it down.
 */
#ifndef GPP_TOOLS_PLAN_H
#define GPP_TOOLS_PLAN_H

#include "tools/tools.h"

enum { PLAN_PROFILES = 256 };

/** Profiles from files. All zero: none. */
typedef struct plan_profiles {
    int count;
    gpp_profile *profile[PLAN_PROFILES];
    char *path[PLAN_PROFILES];
} plan_profiles;

/** Add that of a file, or those of a folder: all of its files whose names end in ".profile". */
gpp_status plan_profiles_read(plan_profiles *all, const char *path, gpp_error *err);
void plan_profiles_release(plan_profiles *all);
/** As tool_writable, for a folder. */
int plan_profiles_writable(const char *folder);
/** Where a profile goes in a folder. Free it; NULL: no memory. */
char *plan_profile_path(const char *folder, const gpp_profile *profile);
/** Those that a search has taken. */
gpp_status plan_profiles_write(const char *folder, const gpp_plan_table *table, gpp_error *err);

typedef struct plan_settings {
    const char *model, *file, *loss, *optimizer, *svg, *nodes, *save_profiles;
    tool_words input, profile;                             /* shapes; files and folders */
    int64_t batch, candidates, max_partitions, max_chunks; /* 0: not said */
    double link_us, link_bandwidth, gpu_bandwidth;         /* -1: not said */
    double task_us, timeout;                               /* the same */
    bool draw, json, pipe_text;
    tool_pipe_args pipe_args;
    tool_pipe pipe;
} plan_settings;

typedef struct plan_result {
    const plan_settings *how;
    plan_profiles given;
    bool reading;           /* it has failed where these are read */
    gpp_plan_table *table;  /* NULL: the pipe was given, nothing was searched */
    gpp_pipe_options pipe;  /* the one that is predicted */
    gpp_forecast *forecast; /* NULL: nothing fits */
    size_t most_bytes;      /* of any device, by forecast */
    bool fits;
    char *pipe_text; /* for --pipe; NULL: nothing fits */
    bool guesses;    /* a pipe of that text lacks the profile by which its budget is used */
    char *picture;   /* NULL: none is wanted */
} plan_result;

/** Tables and sentences on stdout. */
void plan_print_text(const plan_result *result);
/** One object on stdout. */
void plan_print_json(const plan_result *result);

#endif
