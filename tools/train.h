/*
 * tools/train.h: what the files of gridpipe train share: cmd_train.c, the training; train_state.c,
 * its state as words; train_test.c, tests of the model between epochs.
 */
#ifndef GPP_TOOLS_TRAIN_H
#define GPP_TOOLS_TRAIN_H

#include "tools/progress.h"
#include "tools/tools.h"

typedef struct settings {
    const char *model, *model_file, *params, *target, *test_target, *cifar10;
    const char *loss, *optimizer, *schedule, *save, *resume, *save_params;
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
    char *text, *plain; /* of the model; as words of the state have it */
    char *schedule;     /* of the state */
    tool_data data, test;
    gpp_model *model;
    gpp_pipe *pipe;
    gpp_loader *loader;
    gpp_error err;
    progress progress;
    uint64_t seed;
    bool traced;                       /* a step was made */
    int64_t flying[GPP_MAX_SUBMITTED]; /* rows of steps that were submitted and not waited for */

    /* where it is */
    int64_t first_epoch;  /* which this run began with */
    int64_t epoch, index; /* from 0; the mini-batch that comes next */
    double loss_sum;      /* of this epoch: losses times rows */
    int64_t loss_rows;
    /* of this epoch, since it was begun or resumed */
    int64_t submitted, steps, skipped;
    double began, efficiency;
    /* of the last test */
    bool tested;
    double test_loss, accuracy; /* NAN: not asked for */
} training;

/** Save everything that the training can go on from to t->how.save. */
gpp_status train_save(training *t);
/** Before there is a pipe, which is made with what the state in t->how.resume says. */
gpp_status train_read_state(training *t);
/** A model's text as words of the state have it. @return to be freed; NULL: no memory */
char *train_plain_text(const char *text);
/** Whether targets of a loss are classes, of which predictions can be right. */
bool train_has_classes(const char *loss);
/** Test the model on t->test. */
gpp_status train_test(training *t);

#endif
