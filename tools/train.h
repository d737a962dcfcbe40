/*
 * tools/train.h: what the files of gridpipe train share: cmd_train.c (the training), train_state.c
 * (its state as words), train_test.c (tests of the model between epochs).
 */
#ifndef GPP_TOOLS_TRAIN_H
#define GPP_TOOLS_TRAIN_H

#include "tools/progress.h"
#include "tools/tools.h"

typedef struct settings {
    const char *model, *model_file, *params, *target, *test_target, *cifar10;
    const char *loss, *optimizer, *lr_schedule, *save, *resume, *save_params;
    tool_words input, test_input;
    tool_convert convert;
    bool no_shuffle, drop_last, skip_nonfinite, json, progress, quiet;
    int64_t epochs, batch, every, limit, ahead, in_flight;
    double clip_norm;
    tool_seed seed;
    tool_pipe_args pipe_args;
    tool_pipe pipe;
    tool_trace trace;
} settings;

typedef struct training {
    settings how;
    char *text, *plain; /* the model's text, as given and as the state keeps it */
    char *lr_schedule;  /* the one that the state names */
    tool_data data, test;
    gpp_model *model;
    gpp_pipe *pipe;
    gpp_loader *loader;
    gpp_error err;
    progress progress;
    uint64_t seed;
    bool stopped;                      /* a signal has ended the training */
    bool traced;                       /* a step has ended, so the trace has something */
    int64_t flying[GPP_MAX_SUBMITTED]; /* rows of the steps that are submitted and not waited for */

    /* Where the training is: */
    int64_t first_epoch;  /* the one in which this run began */
    int64_t epoch, index; /* from 0: the mini-batch that comes next */
    double loss_sum;      /* in this epoch: the sum of losses times rows */
    int64_t loss_rows;
    /* Since this epoch was begun or resumed: */
    int64_t submitted, steps, skipped;
    double began, efficiency;
    /* Of the last test: */
    bool tested;
    double test_loss, accuracy; /* NAN: not asked for */
} training;

/** Save everything that resuming the training needs to t->how.save. */
gpp_status train_save(training *t);
/** Read the state of t->how.resume. To be called before the pipe is made: the state decides some of
 * its options. */
gpp_status train_read_state(training *t);
/** A model's text as the state keeps it. @return free it; NULL: no memory */
char *train_plain_text(const char *text);
/** Whether the targets of a loss are classes, so that there is an accuracy. */
bool train_has_classes(const char *loss);
/** Test the model on t->test. */
gpp_status train_test(training *t);

#endif
