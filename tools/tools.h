/*
 * tools/tools.h: what the subcommands of `gridpipe` share: options, errors, JSON, pipes as text,
 * data from files, and jobs. A job runs a model (or one layer, a loss, an optimizer) on given
 * arrays; its results have the names that files of reference vectors use.
 *
 * The command uses the public interface alone.
 */
#ifndef GPP_TOOLS_H
#define GPP_TOOLS_H

#include <gridpipe.h>
#include <stdio.h>

/* Exit statuses. */
enum { TOOL_DONE = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* --- subcommands and their options (options.c) ------------------------------------------------ */

typedef struct tool_command {
    const char *name, *arguments, *summary, *description;
    int (*run)(int argc, char *argv[]); /* argv[0]: the command's name. Returns the exit status */
    bool over_ranks;                    /* several processes may run it together */
} tool_command;

extern const tool_command tool_run, tool_check, tool_train, tool_info, tool_model, tool_profile,
    tool_plan, tool_trace_command;

typedef enum tool_kind {
    TOOL_TITLE,  /* a line of the help text */
    TOOL_SWITCH, /* bool */
    TOOL_WORD,   /* const char * */
    TOOL_WORDS,  /* tool_words: may be repeated, `max` times; 0: GPP_MAX_TENSORS times */
    TOOL_WHOLE,  /* int64_t from min to max */
    TOOL_REAL,   /* double from min to max */
    TOOL_SEED,   /* tool_seed */
} tool_kind;

enum { TOOL_WORDS_MOST = 64 };
typedef struct tool_words {
    int count;
    const char *word[TOOL_WORDS_MOST];
} tool_words;

typedef struct tool_seed {
    bool given;
    uint64_t value;
} tool_seed;

typedef struct tool_option {
    const char *name; /* without its dashes; NULL: a title */
    tool_kind kind;
    void *into;
    const char *argument;
    const char *help; /* may have several lines; NULL ends a table */
    double min, max;
} tool_option;

/**
 * Read a command's options. Its arguments stay in argv.
 * @param tables  tables of options, NULL-terminated. --help needs no entry
 * @param first   out: index of the first argument
 * @return -1: go on; else the exit status, and the message is printed
 */
int tool_parse(const tool_command *command, const tool_option *const tables[], int argc,
               char *argv[], int *first);
/** Print "gridpipe COMMAND: ..." to stderr. @return status */
int tool_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** The same with the library's message. @return TOOL_FAILED */
int tool_error(const gpp_error *err);
/** The same, for a failure that the command line has probably caused. @return TOOL_USAGE, or
 * TOOL_FAILED where the code says that it cannot be the command line's fault */
int tool_refused(const gpp_error *err);
/** Fill an error record. @return status */
gpp_status tool_note(gpp_error *err, gpp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Flush stdout. @return status; a failure where stdout did not take everything */
int tool_flushed(int status);
/** Check that a file can be written to this path, before work that would be lost otherwise.
 * @param path  NULL: nothing to check
 * @return -1: it can; else the exit status, and the message is printed */
int tool_writable(const char *option, const char *path);
/** Read numbers such as "3,32,32". @return how many; -1: not a list of 1 to `most` numbers */
int tool_whole_list(const char *text, int64_t out[], int most);
int tool_real_list(const char *text, float out[], int most);
/** The whole text of a file; free() it. NULL: it cannot be read, and the message is printed. */
char *tool_read_text(const char *path);
/** The model text of --model or --model-file. Exactly one of them must be given; `optional`: none
 * may be. @param text  out: free it. @return -1: go on; else the exit status */
int tool_model_text(const char *model, const char *file, bool optional, char **text);

/* --- ranks (ranks.c) -------------------------------------------------------------------------- */

/** Join the other processes that a launcher has started with this one, if there are any.
 * @return -1: go on; else the exit status, and the message is printed */
int tool_ranks_begin(const tool_command *command);
/** Leave them. A failure ends them all. @return status */
int tool_ranks_end(int status);
/** For options.comm; NULL: this process is alone. */
gpp_comm *tool_comm(void);
/** 0: the rank that prints, reads and writes. */
int tool_rank(void);
/** How many there are; 1: this process is alone. */
int tool_ranks(void);
/** Give all ranks what `from` has. */
gpp_status tool_share(int from, void *data, size_t bytes, gpp_error *err);
/** The rank with the pipe's last partition, which has the outputs. */
int tool_end_rank(const gpp_pipe *pipe, int replica);

/* --- amounts (amounts.c) ---------------------------------------------------------------------- */

enum { TOOL_AMOUNT = 24 };

/** Read bytes such as "67108864", "64M", "1.5GiB". @return false: no number of bytes, or below 1 */
bool tool_bytes(const char *text, size_t *out);
/** Write bytes such as "64.0 MiB", in at most 8 characters. @return text */
const char *tool_bytes_text(char text[TOOL_AMOUNT], size_t bytes);
/** Write a time with three digits, or more where more stand before the point. @return text */
const char *tool_time_text(char text[TOOL_AMOUNT], double value);
/** Print words in lines of `width` columns that begin at `indent`, and a newline.
 * @param column  where the first line begins; the caller has printed what stands before it */
void tool_print_wrapped(const char *text, int indent, int column, int width);

/* --- JSON (json.c) ---------------------------------------------------------------------------- */

typedef struct tool_json {
    FILE *out;
    bool comma;
} tool_json;

void tool_json_open(tool_json *json, const char *key, char bracket);
void tool_json_close(tool_json *json, char bracket);
/** @param key  NULL in an array. A text that is NULL becomes null, and so do infinities and NAN. */
void tool_json_text(tool_json *json, const char *key, const char *text);
void tool_json_real(tool_json *json, const char *key, double value);
void tool_json_whole(tool_json *json, const char *key, int64_t value);
void tool_json_flag(tool_json *json, const char *key, bool value);

/* --- pipes (pipes.c) -------------------------------------------------------------------------- */

enum { TOOL_PARTITIONS = 1024 };

/* The words of a pipe, by their index in tool_pipe_args. A key that others depend on precedes
 * them. */
enum {
    TOOL_BALANCE,
    TOOL_PARTS,
    TOOL_REPLICAS,
    TOOL_CHUNKS,
    TOOL_CHECKPOINT,
    TOOL_ACTIVATIONS,
    TOOL_BUDGET,
    TOOL_DEFERRED,
    TOOL_DEVICES,
    TOOL_MEMORY,
    TOOL_ASCENDING,
    TOOL_SCHEDULE,
    TOOL_MATH,
    TOOL_ANY_ALGORITHM,
    TOOL_SHARD,
    TOOL_PIPE_KEYS
};

/** How to cut and run a model. All zero: nothing is given. Release it, also after a failure. */
typedef struct tool_pipe {
    int partitions, balance[TOOL_PARTITIONS]; /* balance[0] == 0: automatic */
    int chunks, replicas;                     /* 0: 1 */
    bool shard_optimizer;
    bool has_checkpoint;
    gpp_checkpoint checkpoint;
    bool deferred, ascending, any_algorithm;
    int math;            /* gpp_math */
    char schedule[4096]; /* "": nothing is said */
    int devices;
    char device_text[512];
    const char *device[TOOL_PARTITIONS];
    size_t memory_limit, activation_limit;
    gpp_profile *profile; /* of checkpoint=budget; NULL: none */
    char profile_path[512];
} tool_pipe;

/** Options of the command line for a pipe: --pipe, with a text as in a vector's metadata, and an
 * option for each word. */
typedef struct tool_pipe_args {
    const char *text;
    const char *word[TOOL_PIPE_KEYS];
} tool_pipe_args;

enum { TOOL_PIPE_OPTIONS = TOOL_PIPE_KEYS + 3 };

/** Fill a table with these options. */
void tool_pipe_options(tool_pipe_args *args, tool_option out[TOOL_PIPE_OPTIONS]);
/** Take settings from "balance=3,3 chunks=4 checkpoint=never deferred_batch_norm=0". */
gpp_status tool_pipe_parse(tool_pipe *pipe, const char *text, gpp_error *err);
/** Let the command line override the settings. */
gpp_status tool_pipe_take(tool_pipe *pipe, const tool_pipe_args *args, gpp_error *err);
/** The same, for chunks and checkpoint only. */
gpp_status tool_pipe_take_steps(tool_pipe *pipe, const tool_pipe_args *args, gpp_error *err);
void tool_pipe_apply(const tool_pipe *pipe, gpp_pipe_options *options);
void tool_pipe_release(tool_pipe *pipe);
/** Write a pipe as tool_pipe_parse reads it. @param how  the settings that the pipe was made
 * with */
void tool_pipe_describe(const gpp_pipe *pipe, const tool_pipe *how, char *text, size_t size);
/** The same for a pipe that does not exist yet, with its devices and limits; no newline.
 * @param profile  file of its profile; NULL: none */
void tool_pipe_text(FILE *out, const gpp_pipe_options *options, const char *profile);
/** Make a pipe that does nothing but keep the runtime up: it stays up while there is a pipe. */
gpp_status tool_idle_pipe(gpp_pipe **pipe, gpp_error *err);

/* --- traces (trace.c) ------------------------------------------------------------------------- */

struct plan_profiles;

/** --trace, --trace-steps, --profile and --watchdog. All zero: nothing is given. Release it, also
 * after a failure. */
typedef struct tool_trace {
    const char *path;           /* NULL: none */
    int64_t steps;              /* 0: ten */
    double watchdog;            /* seconds; 0: none */
    tool_words profile;         /* files and folders */
    struct plan_profiles *read; /* the profiles read from them; NULL: none */
    gpp_forecast *forecast;     /* the pipe's, from these profiles */
} tool_trace;

enum { TOOL_TRACE_OPTIONS = 4 };

/** Fill a table with these options. */
void tool_trace_options(tool_trace *trace, tool_option out[TOOL_TRACE_OPTIONS]);
/** @return -1: go on; else the exit status, and the message is printed */
int tool_trace_check(tool_trace *trace);
/** Call tool_trace_begin before the first step and tool_trace_end after the last one. They do
 * nothing when no trace is wanted, or `trace` is NULL.
 * @param model, options  what the pipe was made from, with the rows of a mini-batch as batch */
gpp_status tool_trace_begin(tool_trace *trace, gpp_pipe *pipe, const gpp_model *model,
                            const gpp_pipe_options *options, gpp_error *err);
gpp_status tool_trace_end(const tool_trace *trace, const gpp_pipe *pipe, gpp_error *err);
void tool_trace_release(tool_trace *trace);

/* --- tensors and data (data.c) ---------------------------------------------------------------- */

int64_t tool_count(const gpp_tensor *tensor);
/** A tensor of this shape with memory; free its data. data NULL: no memory */
gpp_tensor tool_room(gpp_dtype dtype, int rank, const int64_t dim[]);

/** How to convert files to inputs. All zero: take them as they are. */
typedef struct tool_convert {
    const char *shape, *mean, *std; /* lists, as given; NULL: none */
    bool integers;                  /* inputs stay int64 */
    bool float_target;
} tool_convert;

/** Inputs and target of a data set. Release it, also after a failure. */
typedef struct tool_data {
    int inputs, arrays, files;
    bool has_target;
    gpp_tensor x[GPP_MAX_TENSORS], target;
    const char *x_path[GPP_MAX_TENSORS], *target_path; /* as given; NULL: CIFAR-10 */
    gpp_array array[GPP_MAX_TENSORS + 1];
    gpp_file *file[GPP_MAX_TENSORS + 1];
} tool_data;

/** Add a file as an input; of a safetensors file, its x, x0, x1, ... and its target. */
gpp_status tool_data_input(tool_data *data, const char *path, const tool_convert *how,
                           gpp_error *err);
gpp_status tool_data_target(tool_data *data, const char *path, const tool_convert *how,
                            gpp_error *err);
/** Images and labels of CIFAR-10. */
gpp_status tool_data_cifar10(tool_data *data, const char *const paths[], int count,
                             const tool_convert *how, gpp_error *err);
void tool_data_release(tool_data *data);
/** Whether this is a safetensors file. Its ninth byte, the first of the header, tells. */
bool tool_is_safetensors(const char *path);

/** Check that inputs and target have rows, and all the same number. */
gpp_status tool_data_rows(const tool_data *data, gpp_error *err);
enum { TOOL_NAMES = 96 };
/** List the names of a file's arrays as "a, b, c", cut off where there are too many. */
void tool_array_names(const gpp_file *file, char text[TOOL_NAMES]);
/** As gpp_pipe_load. When it fails and the file is a training's state, the message says so. */
gpp_status tool_load_params(gpp_pipe *pipe, const char *path, unsigned flags, gpp_error *err);
/** Mention --shape in the message when the first layer has refused the shape of arrays and --shape
 * was not given. */
void tool_hint_shape(gpp_error *err, const tool_data *data, const tool_convert *how);
/** Set a model's inputs to samples of x. Tensors with the same number of rows are of one batch. */
gpp_status tool_set_inputs(gpp_model *model, const gpp_tensor x[], int count, gpp_error *err);
/** Make a model that also has the operators which this command adds to the built-in ones. */
gpp_status tool_model_new(gpp_model **model, const char *text, gpp_error *err);
/** The same, and set its inputs by shapes of samples such as "3,32,32" or "i64:128". */
gpp_status tool_model_of(gpp_model **model, const char *text, const tool_words *shapes,
                         gpp_error *err);

/* --- jobs (job.c; given.c for optimizers) ----------------------------------------------------- */

/** What to run. Strings may be NULL or "". */
typedef struct tool_job {
    const gpp_file *in; /* the arrays given */
    const char *path;   /* the file that all of them are from; NULL: not from one file */
    bool *used;         /* [gpp_file_count(in)] out: which arrays were inputs */
    const char *model;  /* "": a model without layers */
    const char *loss, *optimizer, *lr_schedule;
    bool evaluate;   /* no training, only outputs */
    bool eval_after; /* outputs in evaluation mode after the last step */
    bool inputs;     /* the results have param.* as well */
    int64_t steps;
    double clip_norm;
    bool skip_nonfinite;
    uint64_t seed;
    tool_pipe pipe;
    const char *params; /* a file to take parameters from */
    unsigned load_flags;
    const char *save;  /* where to put parameters afterwards */
    tool_trace *trace; /* NULL: none */

    char loss_text[512]; /* for tool_job_words */

    /* Out: */
    bool making; /* making model and pipe from the words has failed */
    int64_t rows;
    char pipe_text[8192], micro_batches[4096];
    gpp_step_stats stats;
    double first_loss, last_loss; /* NAN: none */
    int64_t steps_done;
} tool_job;

/** Take model, loss, optimizer, pipe, ... from a file's metadata. */
gpp_status tool_job_words(tool_job *job, const gpp_file *file, gpp_error *err);
/** Run a job. Results go into `out` under the names of the vectors: y, loss, grad.*, after.*,
 * y_eval_after. */
gpp_status tool_job_run(tool_job *job, gpp_file *out, gpp_error *err);
/** Update p<k> by the given gradients g<k>. Results are p<k>_after; for clip_grad_norm, g<k>_after
 * and norm. */
gpp_status tool_job_optimize(tool_job *job, gpp_file *out, gpp_error *err);
/** Find an array given to the job, and mark it as used. @return false: there is none */
bool tool_job_find(tool_job *job, const char *name, gpp_tensor *tensor);
/** Find the arrays `letter`, or `letter`0, `letter`1, ... @return their number */
int tool_job_inputs(tool_job *job, const char *letter, gpp_tensor tensor[GPP_MAX_TENSORS]);

#endif
