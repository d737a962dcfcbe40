/*
 * tools/plan.h: what `gridpipe plan` was asked, what it found, and two ways to print that.
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

/** Add the profile of a file, or those of a folder: all of its files whose names end in
 * ".profile". */
gpp_status plan_profiles_read(plan_profiles *all, const char *path, gpp_error *err);
void plan_profiles_release(plan_profiles *all);
/** As tool_writable, for a folder. */
int plan_profiles_writable(const char *folder);
/** The path of a profile in a folder. Free it; NULL: no memory. */
char *plan_profile_path(const char *folder, const gpp_profile *profile);
/** Save the profiles that a search has taken. */
gpp_status plan_profiles_write(const char *folder, const gpp_plan_table *table, gpp_error *err);

typedef struct plan_settings {
    const char *model, *file, *loss, *optimizer, *svg, *nodes, *save_profiles, *machine;
    tool_words input, profile;                             /* shapes; files and folders */
    int64_t batch, candidates, max_partitions, max_chunks; /* 0: not given */
    double link_us, link_bandwidth, gpu_bandwidth;         /* -1: not given */
    double task_us, timeout;                               /* -1: not given */
    bool draw, json, pipe_text;
    tool_pipe_args pipe_args;
    tool_pipe pipe;
} plan_settings;

typedef struct plan_result {
    const plan_settings *how;
    gpp_cluster *cluster; /* of --machine; NULL: this machine */
    plan_profiles given;
    bool reading;           /* reading `given` or `cluster` has failed */
    gpp_plan_table *table;  /* NULL: the pipe was given, nothing was searched */
    gpp_pipe_options pipe;  /* the pipe that is predicted */
    gpp_forecast *forecast; /* NULL: nothing fits */
    size_t most_bytes;      /* the largest forecast of a device's bytes */
    bool fits;
    char *pipe_text; /* for --pipe; NULL: nothing fits */
    bool guesses;    /* pipe_text does not name the profile by which the budget was used */
    char *picture;   /* NULL: none is wanted */
} plan_result;

/** Print tables and sentences. */
void plan_print_text(const plan_result *result);
/** Print one JSON object. */
void plan_print_json(const plan_result *result);

#endif
