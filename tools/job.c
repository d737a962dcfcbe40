/*
 * tools/job.c: a model, one layer or a loss, run on given arrays through a pipe.
 *
 * With a loss, the job is a training on one mini-batch. Its first step is made of its two parts, so
 * that its gradients can be seen: gradients (y, loss, grad.*), then the update. More steps follow
 * (after.*). Without a loss, the job is a forward, and a backward where grad_y is given.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

enum { NAME = 160 };

typedef struct run {
    tool_job *job;
    gpp_file *out;
    gpp_error *err;
    gpp_model *model;
    gpp_pipe *pipe;
    bool numbered; /* inputs are x0, x1, ... */
    int inputs, outputs;
    gpp_tensor x[GPP_MAX_TENSORS], y[GPP_MAX_TENSORS], grad_x[GPP_MAX_TENSORS];
    gpp_tensor grad_y[GPP_MAX_TENSORS];
    const gpp_tensor *wanted; /* grad_x; NULL: all inputs are integers, which have no gradient */
    bool has_target;
    gpp_tensor target, weight, each; /* each: data NULL unless losses stay unreduced */
} run;

/* --- what is given ---------------------------------------------------------------------------- */

bool tool_job_find(tool_job *job, const char *name, gpp_tensor *tensor)
{
    for (int k = 0; k < gpp_file_count(job->in); k++) {
        const char *own;
        if (gpp_file_array(job->in, k, &own, tensor, NULL) != GPP_OK || strcmp(own, name) != 0)
            continue;
        if (job->used)
            job->used[k] = true;
        return true;
    }
    return false;
}

/* A file calls a single tensor "x", and several ones "x0", "x1", ... */
int tool_job_inputs(tool_job *job, const char *letter, gpp_tensor tensor[GPP_MAX_TENSORS])
{
    int count = 0;
    if (tool_job_find(job, letter, &tensor[0]))
        return 1;
    for (; count < GPP_MAX_TENSORS; count++) {
        char name[NAME];
        snprintf(name, sizeof name, "%s%d", letter, count);
        if (!tool_job_find(job, name, &tensor[count]))
            break;
    }
    return count;
}

static bool given(const char *text)
{
    return text && *text;
}

/* Takes a loss such as "cross_entropy layout=x [N,C,H,W], target [N,H,W]". What follows layout= is
 * a remark for readers of the file. */
static gpp_status take_loss(tool_job *job, const char *loss, gpp_error *err)
{
    if (strlen(loss) >= sizeof job->loss_text)
        return tool_note(err, GPP_ESYNTAX, "loss \"%.60s...\" is too long", loss);
    strcpy(job->loss_text, loss);
    char *remark = strstr(job->loss_text, " layout=");
    if (remark)
        *remark = '\0';
    job->loss = job->loss_text;
    return GPP_OK;
}

static gpp_status word_whole(const gpp_file *file, const char *key, int64_t *out, gpp_error *err)
{
    const char *word = gpp_file_word(file, key);
    if (!word || (tool_whole_list(word, out, 1) == 1 && *out >= 0))
        return GPP_OK;
    return tool_note(err, GPP_ESYNTAX, "%s is \"%.60s\", expected a whole number", key, word);
}

/* A seed has 64 bits without a sign, more than word_whole takes. */
static gpp_status word_seed(tool_job *job, const gpp_file *file, gpp_error *err)
{
    const char *word = gpp_file_word(file, "seed");
    char *end;
    errno = 0;
    job->seed = word ? strtoull(word, &end, 10) : 0;
    if (!word || (*word >= '0' && *word <= '9' && !*end && !errno))
        return GPP_OK;
    return tool_note(err, GPP_ESYNTAX, "seed is \"%.60s\", expected a whole number", word);
}

static gpp_status word_clip(tool_job *job, const gpp_file *file, gpp_error *err)
{
    const char *word = gpp_file_word(file, "clip_norm");
    char *end;
    job->clip_norm = word ? strtod(word, &end) : 0;
    if (!word || (end != word && !*end && job->clip_norm >= 0))
        return GPP_OK;
    return tool_note(err, GPP_ESYNTAX, "clip_norm is \"%.60s\", expected a number", word);
}

gpp_status tool_job_words(tool_job *job, const gpp_file *file, gpp_error *err)
{
    int64_t training = 1, skip = 0;
    const char *loss = gpp_file_word(file, "loss"), *pipe = gpp_file_word(file, "pipe");
    job->model = gpp_file_word(file, "model");
    job->optimizer = gpp_file_word(file, "optimizer");
    /* The format of these files is older than the word lr_schedule: "schedule" is the lr_schedule. */
    job->lr_schedule = gpp_file_word(file, "schedule");
    gpp_status status = word_whole(file, "steps", &job->steps, err);
    if (status == GPP_OK)
        status = word_whole(file, "training", &training, err);
    if (status == GPP_OK)
        status = word_whole(file, "skip_nonfinite", &skip, err);
    if (status == GPP_OK)
        status = word_seed(job, file, err);
    if (status == GPP_OK)
        status = word_clip(job, file, err);
    if (status == GPP_OK && loss)
        status = take_loss(job, loss, err);
    job->evaluate = !training;
    job->skip_nonfinite = skip;
    return status == GPP_OK && pipe ? tool_pipe_parse(&job->pipe, pipe, err) : status;
}

static gpp_status no_input(run *r)
{
    char names[TOOL_NAMES];
    tool_array_names(r->job->in, names);
    return tool_note(r->err, GPP_ENOENT, "%.100s%sthere is no array x, or x0, but %s",
                     r->job->path ? r->job->path : "", r->job->path ? ": " : "", names);
}

static gpp_status make_model(run *r)
{
    gpp_tensor x;
    r->inputs = tool_job_inputs(r->job, "x", r->x);
    r->numbered = !tool_job_find(r->job, "x", &x);
    if (!r->inputs)
        return no_input(r);
    const char *text = r->job->model ? r->job->model : "";
    r->job->making = true;
    gpp_status status = tool_model_new(&r->model, text, r->err);
    return status == GPP_OK ? tool_set_inputs(r->model, r->x, r->inputs, r->err) : status;
}

static gpp_status set_weights(run *r, gpp_pipe_options *o)
{
    if (!tool_job_find(r->job, "weight", &r->weight))
        return GPP_OK;
    if (r->weight.dtype != GPP_F32 || r->weight.rank != 1)
        return tool_note(r->err, GPP_ESHAPE, "weight must be float32, one for each class");
    o->class_weights = r->weight.data;
    o->class_weight_count = (int)r->weight.dim[0];
    return GPP_OK;
}

/* A forecast needs the rows of the mini-batch, which inputs of batch 0 have. */
static gpp_status begin_trace(run *r, gpp_pipe_options o)
{
    gpp_shape in[GPP_MAX_TENSORS];
    gpp_model_inputs(r->model, in);
    for (int t = 0; t < r->inputs; t++)
        if (in[t].batch == 0)
            o.batch = r->x[t].dim[0];
    return tool_trace_begin(r->job->trace, r->pipe, r->model, &o, r->err);
}

/* While `making` is set, a failure is due to the words, which the command line or the file may
 * have wrong; afterwards it is due to the run. */
static gpp_status make_pipe(run *r)
{
    tool_job *job = r->job;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    tool_pipe_apply(&job->pipe, &o);
    o.seed = job->seed;
    o.loss = given(job->loss) ? job->loss : NULL;
    o.optimizer = given(job->optimizer) ? job->optimizer : NULL;
    o.lr_schedule = given(job->lr_schedule) ? job->lr_schedule : NULL;
    o.clip_norm = job->clip_norm;
    o.skip_nonfinite = job->skip_nonfinite;
    gpp_status status = set_weights(r, &o);
    if (status == GPP_OK)
        status = gpp_pipe_new(&r->pipe, r->model, &o, r->err);
    if (status == GPP_OK)
        status = begin_trace(r, o);
    if (status == GPP_OK)
        tool_pipe_describe(r->pipe, &job->pipe, job->pipe_text, sizeof job->pipe_text);
    job->making = status != GPP_OK;
    return status;
}

/* --- parameters and buffers by name ----------------------------------------------------------- */

/* A parameter or a buffer. */
typedef struct named {
    const char *name;
    bool buffer;
    gpp_dtype dtype;
    int rank;
    const int64_t *dim;
    int64_t count;
} named;

static int named_count(const run *r)
{
    return gpp_pipe_parameters(r->pipe) + gpp_pipe_buffers(r->pipe);
}

static gpp_status named_get(const run *r, int k, named *n, gpp_parameter_info *p,
                            gpp_buffer_info *b)
{
    int parameters = gpp_pipe_parameters(r->pipe);
    gpp_status status;
    if (k < parameters) {
        status = gpp_pipe_parameter(r->pipe, k, p, r->err);
        *n = (named){p->name, false, GPP_F32, p->rank, p->dim, p->count};
    } else {
        status = gpp_pipe_buffer(r->pipe, k - parameters, b, r->err);
        *n = (named){b->name, true, b->dtype, b->rank, b->dim, b->count};
    }
    return status;
}

static gpp_status named_load(run *r, const named *n, int *found)
{
    char name[NAME];
    gpp_tensor value;
    snprintf(name, sizeof name, "param.%s", n->name);
    if (!tool_job_find(r->job, name, &value))
        return GPP_OK;
    ++*found;
    if (value.dtype != n->dtype || tool_count(&value) != n->count)
        return tool_note(r->err, GPP_ESHAPE, "%s has %lld elements, the model's has %lld", name,
                         (long long)tool_count(&value), (long long)n->count);
    return n->buffer ? gpp_pipe_set_buffer(r->pipe, n->name, value.data, n->count, r->err)
                     : gpp_pipe_set(r->pipe, n->name, value.data, n->count, r->err);
}

/* Loads all parameters, or none: a file that has only some of them fails. */
static gpp_status load(run *r)
{
    gpp_parameter_info p;
    gpp_buffer_info b;
    gpp_status status = GPP_OK;
    named n;
    int found = 0, count = named_count(r), missing = -1;
    for (int k = 0; k < count && status == GPP_OK; k++) {
        int before = found;
        status = named_get(r, k, &n, &p, &b);
        if (status == GPP_OK)
            status = named_load(r, &n, &found);
        missing = found == before ? k : missing;
    }
    if (status == GPP_OK && found && found < count) {
        status = named_get(r, missing, &n, &p, &b);
        return tool_note(r->err, GPP_ENOENT, "there is no array param.%s", n.name);
    }
    return status == GPP_OK && given(r->job->params)
               ? tool_load_params(r->pipe, r->job->params, r->job->load_flags, r->err)
               : status;
}

/* --- results ---------------------------------------------------------------------------------- */

static gpp_status add(run *r, const char *name, const gpp_tensor *t)
{
    return gpp_file_add(r->out, name, t, r->err);
}

/* A tensor without data is one that nobody has asked for. */
static gpp_status add_numbered(run *r, const char *letter, bool numbered, int k,
                               const gpp_tensor *t)
{
    char name[NAME];
    snprintf(name, sizeof name, numbered ? "%s%d" : "%s", letter, k);
    return t->data ? add(r, name, t) : GPP_OK;
}

static gpp_status read_named(run *r, const char *prefix, const named *n, void *value)
{
    if (!strcmp(prefix, "grad."))
        return gpp_pipe_gradient(r->pipe, n->name, value, n->count, r->err);
    return n->buffer ? gpp_pipe_get_buffer(r->pipe, n->name, value, n->count, r->err)
                     : gpp_pipe_get(r->pipe, n->name, value, n->count, r->err);
}

static gpp_status add_named(run *r, const char *prefix, const named *n)
{
    char name[NAME];
    gpp_tensor value = tool_room(n->dtype, n->rank, n->dim);
    if (!value.data)
        return tool_note(r->err, GPP_ENOMEM, "%s%s", prefix, n->name);
    gpp_status status = read_named(r, prefix, n, value.data);
    snprintf(name, sizeof name, "%s%s", prefix, n->name);
    if (status == GPP_OK)
        status = add(r, name, &value);
    free(value.data);
    return status;
}

enum { PARAMETERS = 1, BUFFERS = 2 };

static gpp_status add_all(run *r, const char *prefix, int which)
{
    gpp_parameter_info p;
    gpp_buffer_info b;
    gpp_status status = GPP_OK;
    int count = named_count(r);
    for (int k = 0; k < count && status == GPP_OK; k++) {
        named n;
        status = named_get(r, k, &n, &p, &b);
        if (status == GPP_OK && (which & (n.buffer ? BUFFERS : PARAMETERS)))
            status = add_named(r, prefix, &n);
    }
    return status;
}

static gpp_status add_outputs(run *r, const char *letter)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < r->outputs && status == GPP_OK; k++)
        status = add_numbered(r, letter, r->outputs > 1, k, &r->y[k]);
    return status;
}

static gpp_status add_gradients(run *r)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < r->inputs && status == GPP_OK; k++)
        status = add_numbered(r, "grad.x", r->numbered, k, &r->grad_x[k]);
    return status == GPP_OK ? add_all(r, "grad.", PARAMETERS) : status;
}

/* --- memory for results ----------------------------------------------------------------------- */

/* The number of pieces that torch.chunk makes: each has ceil(rows / chunks) rows. */
static int64_t pieces(int64_t rows, int64_t chunks)
{
    int64_t piece = rows ? (rows + chunks - 1) / chunks : 1;
    return rows ? (rows + piece - 1) / piece : 1;
}

static void describe_pieces(tool_job *job)
{
    int64_t chunks = job->pipe.chunks ? job->pipe.chunks : 1, rows = job->rows;
    int64_t piece = (rows + chunks - 1) / chunks, count = pieces(rows, chunks);
    size_t at = 0, size = sizeof job->micro_batches;
    for (int64_t i = 0; i < count && at < size; i++)
        at += (size_t)snprintf(job->micro_batches + at, size - at, "%s%lld", i ? "," : "",
                               (long long)(i == count - 1 ? rows - i * piece : piece));
}

/* Rows of an output over the whole mini-batch. An output with fixed rows has them for every
 * micro-batch. */
static int64_t rows_of(const run *r, const gpp_shape in[], const gpp_shape *y)
{
    if (y->batch == GPP_ROWS_FIXED)
        return y->rows * pieces(r->job->rows, r->job->pipe.chunks ? r->job->pipe.chunks : 1);
    for (int t = 0; t < r->inputs; t++)
        if (in[t].batch == y->batch)
            return r->x[t].dim[0];
    return 0;
}

/* Makes memory for outputs, and for gradients of inputs that are floats. */
static gpp_status make_room(run *r)
{
    gpp_shape in[GPP_MAX_TENSORS], out[GPP_MAX_TENSORS];
    bool fine = true;
    gpp_model_inputs(r->model, in);
    r->outputs = gpp_model_outputs(r->model, out);
    for (int t = 0; t < r->inputs; t++)
        if (in[t].batch == 0)
            r->job->rows = r->x[t].dim[0];
    describe_pieces(r->job);
    for (int t = 0; t < r->inputs; t++) {
        r->grad_x[t] = r->x[t];
        r->grad_x[t].data = NULL; /* integers have no gradient */
        if (r->x[t].dtype != GPP_F32)
            continue;
        r->grad_x[t] = tool_room(GPP_F32, r->x[t].rank, r->x[t].dim);
        r->wanted = r->grad_x;
        fine = fine && r->grad_x[t].data;
    }
    for (int t = 0; t < r->outputs; t++) {
        int64_t dim[GPP_MAX_RANK] = {rows_of(r, in, &out[t])};
        memcpy(dim + 1, out[t].dim, (size_t)out[t].rank * sizeof *dim);
        r->y[t] = tool_room(out[t].dtype, out[t].rank + 1, dim);
        fine = fine && r->y[t].data;
    }
    return fine ? GPP_OK : tool_note(r->err, GPP_ENOMEM, "inputs' gradients and outputs");
}

/* --- without a loss --------------------------------------------------------------------------- */

static gpp_status check_gradients_given(run *r, int count)
{
    if (count && count != r->outputs)
        return tool_note(r->err, GPP_ENOENT, "%d outputs, but %d grad_y", r->outputs, count);
    return GPP_OK;
}

/* -1: the last forward. Without grad_y there is nothing to go back from. */
static gpp_status train_layers(run *r)
{
    int count = tool_job_inputs(r->job, "grad_y", r->grad_y);
    gpp_status status = check_gradients_given(r, count);
    if (status == GPP_OK)
        status = gpp_pipe_forward(r->pipe, r->x, r->y, NULL, r->err);
    if (status == GPP_OK && count) {
        status = gpp_pipe_backward(r->pipe, -1, r->x, r->grad_y, r->wanted, r->err);
        if (status == GPP_OK)
            status = add_gradients(r);
    }
    return status;
}

/* In evaluation mode a forward keeps nothing. A backward needs what a training's forward keeps,
 * also when layers are in evaluation mode. */
static gpp_status run_layers(run *r)
{
    bool goes_back = tool_job_inputs(r->job, "grad_y", r->grad_y) > 0;
    gpp_status status = gpp_pipe_set_training(r->pipe, !r->job->evaluate, r->err);
    if (status == GPP_OK)
        status = r->job->evaluate && !goes_back
                     ? gpp_pipe_evaluate(r->pipe, r->x, NULL, r->y, NULL, r->err)
                     : train_layers(r);
    if (status == GPP_OK)
        status = add_outputs(r, "y");
    return status == GPP_OK ? add_all(r, "after.", BUFFERS) : status;
}

/* --- with a loss ------------------------------------------------------------------------------ */

/* With reduction=none the single losses are the result. */
static gpp_status keep_losses(run *r)
{
    const gpp_tensor *like = r->target.dtype == GPP_I64 ? &r->target : &r->y[0];
    if (!strstr(r->job->loss, "reduction=none"))
        return GPP_OK;
    r->each = tool_room(GPP_F32, like->rank, like->dim);
    if (!r->each.data)
        return tool_note(r->err, GPP_ENOMEM, "unreduced losses");
    return gpp_pipe_keep_losses(r->pipe, &r->each, r->err);
}

/* The file has one loss for each step; with reduction=none, the losses of the last step. */
static gpp_status add_losses(run *r, const float loss[], int64_t count)
{
    gpp_tensor all = {r->each.data, GPP_F32, 1, {tool_count(&r->each)}};
    gpp_tensor reduced = {(void *)loss, GPP_F32, 1, {count}};
    return add(r, "loss", r->each.data ? &all : &reduced);
}

/* Notes the loss and the gradients' norm of step `s`. @param norm  [steps] */
static void note_step(run *r, double loss, int64_t s, float norm[])
{
    tool_job *job = r->job;
    norm[s] = (float)job->stats.grad_norm;
    if (s == 0)
        job->first_loss = loss;
    job->last_loss = loss;
    job->steps_done = s + 1;
}

/* To the library the update after the first gradients is a step of its own. Here both are step
 * 0. */
static gpp_status update(run *r)
{
    gpp_step_stats *all = &r->job->stats, pass = *all;
    gpp_status status = gpp_pipe_update(r->pipe, r->err);
    if (status == GPP_OK)
        status = gpp_pipe_last_step(r->pipe, all, r->err);
    all->micro_batches = pass.micro_batches;
    all->tasks += pass.tasks;
    all->step_ms += pass.step_ms;
    all->bound_ms += pass.bound_ms;
    all->efficiency = all->step_ms > 0 ? all->bound_ms / all->step_ms : 1;
    return status;
}

/* Runs the first step in its two parts, because the results have its gradients. */
static gpp_status first_step(run *r, double *loss)
{
    gpp_status status =
        gpp_pipe_gradients(r->pipe, r->x, &r->target, r->y, r->wanted, loss, r->err);
    if (status == GPP_OK)
        status = gpp_pipe_last_step(r->pipe, &r->job->stats, r->err);
    if (status == GPP_OK)
        status = add_outputs(r, "y");
    if (status == GPP_OK)
        status = add_gradients(r);
    return status == GPP_OK && given(r->job->optimizer) ? update(r) : status;
}

static gpp_status further_step(run *r, double *loss)
{
    gpp_status status = gpp_pipe_step(r->pipe, r->x, &r->target, NULL, loss, r->err);
    return status == GPP_OK ? gpp_pipe_last_step(r->pipe, &r->job->stats, r->err) : status;
}

static gpp_status train_steps(run *r, int64_t steps, float loss[], float norm[])
{
    gpp_status status = GPP_OK;
    for (int64_t s = 0; s < steps && status == GPP_OK; s++) {
        double value = NAN;
        status = s ? further_step(r, &value) : first_step(r, &value);
        if (status == GPP_OK)
            note_step(r, value, s, norm);
        loss[s] = (float)value;
    }
    return status;
}

static gpp_status after_steps(run *r)
{
    gpp_status status = GPP_OK;
    if (given(r->job->optimizer))
        status = add_all(r, "after.", PARAMETERS | BUFFERS);
    if (status != GPP_OK || !r->job->eval_after)
        return status;
    status = gpp_pipe_evaluate(r->pipe, r->x, NULL, r->y, NULL, r->err);
    return status == GPP_OK ? add_outputs(r, "y_eval_after") : status;
}

static gpp_status train(run *r)
{
    int64_t steps = given(r->job->optimizer) && r->job->steps > 0 ? r->job->steps : 1;
    float *loss = calloc((size_t)steps, sizeof *loss), *norm = calloc((size_t)steps, sizeof *norm);
    gpp_tensor norms = {norm, GPP_F32, 1, {steps}};
    gpp_status status =
        loss && norm ? GPP_OK
                     : tool_note(r->err, GPP_ENOMEM, "losses of %lld steps", (long long)steps);
    if (status == GPP_OK)
        status = train_steps(r, steps, loss, norm);
    if (status == GPP_OK)
        status = add_losses(r, loss, steps);
    if (status == GPP_OK && r->job->clip_norm > 0 && given(r->job->optimizer))
        status = add(r, "norm", &norms);
    if (status == GPP_OK)
        status = after_steps(r);
    free(loss);
    free(norm);
    return status;
}

static gpp_status evaluate(run *r)
{
    double value = NAN;
    gpp_status status = gpp_pipe_evaluate(r->pipe, r->x, &r->target, r->y, &value, r->err);
    float loss = (float)value;
    r->job->first_loss = r->job->last_loss = value;
    if (status == GPP_OK)
        status = add_outputs(r, "y");
    if (status == GPP_OK)
        status = add_losses(r, &loss, 1);
    return status == GPP_OK ? gpp_pipe_last_step(r->pipe, &r->job->stats, r->err) : status;
}

static gpp_status run_loss(run *r)
{
    if (!r->has_target)
        return tool_note(r->err, GPP_ENOENT, "%.100s%sthere is a loss, but no array target",
                         r->job->path ? r->job->path : "", r->job->path ? ": " : "");
    gpp_status status = keep_losses(r);
    if (status != GPP_OK)
        return status;
    return r->job->evaluate ? evaluate(r) : train(r);
}

/* --- all of it -------------------------------------------------------------------------------- */

static gpp_status start(run *r)
{
    gpp_status status = make_model(r);
    if (status == GPP_OK)
        status = make_pipe(r);
    if (status == GPP_OK)
        status = load(r);
    if (status == GPP_OK)
        status = make_room(r);
    if (status == GPP_OK && r->job->inputs)
        status = add_all(r, "param.", PARAMETERS | BUFFERS);
    r->has_target = given(r->job->loss) && tool_job_find(r->job, "target", &r->target);
    return status;
}

static void finish(run *r)
{
    for (int t = 0; t < GPP_MAX_TENSORS; t++) {
        free(r->y[t].data);
        free(r->grad_x[t].data);
    }
    gpp_pipe_free(r->pipe);
    gpp_model_free(r->model);
    free(r->each.data); /* the pipe may write to it until it is gone */
}

gpp_status tool_job_run(tool_job *job, gpp_file *out, gpp_error *err)
{
    run r = {.job = job, .out = out, .err = err};
    job->first_loss = job->last_loss = NAN;
    gpp_status status = start(&r);
    if (status == GPP_OK)
        status = given(job->loss) ? run_loss(&r) : run_layers(&r);
    if (status == GPP_OK && !given(job->loss))
        status = gpp_pipe_last_step(r.pipe, &job->stats, err);
    if (status == GPP_OK && given(job->save))
        status = gpp_pipe_save(r.pipe, job->save, err);
    if (status == GPP_OK)
        status = tool_trace_end(job->trace, r.pipe, err);
    finish(&r);
    return status;
}
