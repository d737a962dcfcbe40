/*
 * tools/given.c: an optimizer fed with given gradients. The model is one layer whose parameters p0,
 * p1, ... get the gradients g0, g1, ... of a file, whatever goes through it. So a real pipe makes
 * the updates.
 *
 * "clip_grad_norm max_norm=M" is SGD with rate 1 on parameters that are zero: it subtracts the
 * clipped gradients.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

typedef struct source {
    int params;
    gpp_tensor p[GPP_MAX_PARAMS], g[GPP_MAX_PARAMS], after[GPP_MAX_PARAMS];
    int64_t steps, step; /* step: the one whose gradients are next */
    double max_norm;     /* > 0: clip_grad_norm */
} source;

/* --- the layer -------------------------------------------------------------------------------- */

static gpp_status infer(gpp_signature *s)
{
    const source *from = s->user;
    s->outputs = 1;
    s->out[0] = s->in[0];
    s->params = from->params;
    for (int k = 0; k < from->params; k++) {
        snprintf(s->param[k].name, sizeof s->param[k].name, "p%d", k);
        s->param[k].rank = from->p[k].rank;
        for (int d = 0; d < from->p[k].rank; d++)
            s->param[k].dim[d] = from->p[k].dim[d];
    }
    return GPP_OK;
}

static gpp_status forward(gpp_call *call)
{
    memcpy(call->out[0].data, call->in[0].data, (size_t)tool_count(&call->in[0]) * sizeof(float));
    return GPP_OK;
}

static gpp_status backward(gpp_call *call)
{
    const source *from = call->user;
    for (int k = 0; k < from->params && call->micro_batch == 0; k++) {
        int64_t count = tool_count(&from->p[k]);
        const float *g = (const float *)from->g[k].data + from->step * count;
        float *grad = call->grad_param[k].data;
        for (int64_t n = 0; n < count && grad; n++)
            grad[n] += g[n];
    }
    return GPP_OK;
}

static gpp_status make_pipe(tool_job *job, source *from, gpp_pipe **pipe, gpp_error *err)
{
    gpp_operator given = GPP_OPERATOR_INIT;
    gpp_pipe_options o = GPP_PIPE_OPTIONS_INIT;
    gpp_model *model = NULL;
    given.name = "given";
    given.infer = infer;
    given.forward = forward;
    given.backward = backward;
    given.user = from;
    tool_pipe_apply(&job->pipe, &o);
    o.optimizer = from->max_norm > 0 ? "sgd lr=1" : job->optimizer;
    o.clip_norm = from->max_norm;
    o.lr_schedule = job->lr_schedule && *job->lr_schedule ? job->lr_schedule : NULL;
    gpp_status status = gpp_model_new(&model, err);
    if (status == GPP_OK)
        status = gpp_model_register(model, &given, err);
    if (status == GPP_OK)
        status = gpp_model_add(model, "given", "layer", NULL, 0, err);
    if (status == GPP_OK)
        status = gpp_model_set_input(model, GPP_F32, 1, (int64_t[]){1}, err);
    if (status == GPP_OK)
        status = gpp_pipe_new(pipe, model, &o, err);
    job->making = status != GPP_OK;
    gpp_model_free(model);
    return status;
}

/* --- what the file has ------------------------------------------------------------------------ */

/* The first dimension of gradients counts the steps. Those to be clipped have none: that is one
 * step. */
static gpp_status take_gradient(tool_job *job, source *from, int k, gpp_error *err)
{
    char name[16];
    gpp_tensor *p = &from->p[k], *g = &from->g[k];
    bool clips = from->max_norm > 0;
    snprintf(name, sizeof name, "p%d", k);
    bool has = tool_job_find(job, name, p);
    if (!has)
        *p = *g;
    if (!has && !clips)
        return tool_note(err, GPP_ENOENT, "there is a g%d, but no p%d", k, k);
    int64_t steps = clips ? 1 : g->rank ? g->dim[0] : 0;
    if (g->dtype != GPP_F32 || p->dtype != GPP_F32 || tool_count(g) != steps * tool_count(p))
        return tool_note(
            err, GPP_ESHAPE, "g%d has %lld elements, %lld steps of p%d would have %lld", k,
            (long long)tool_count(g), (long long)steps, k, (long long)(steps * tool_count(p)));
    if (k > 0 && steps != from->steps)
        return tool_note(err, GPP_ESHAPE, "g0 has %lld steps, g%d %lld", (long long)from->steps, k,
                         (long long)steps);
    from->steps = steps;
    from->after[k] = tool_room(GPP_F32, g->rank, g->dim);
    return from->after[k].data ? GPP_OK : tool_note(err, GPP_ENOMEM, "%s after the steps", name);
}

static gpp_status take_gradients(tool_job *job, source *from, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < GPP_MAX_PARAMS && status == GPP_OK; k++) {
        char name[16];
        snprintf(name, sizeof name, "g%d", k);
        if (!tool_job_find(job, name, &from->g[k]))
            break;
        status = take_gradient(job, from, k, err);
        from->params = k + 1;
    }
    if (status == GPP_OK && !from->params)
        status = tool_note(err, GPP_ENOENT, "there is no array g0");
    return status;
}

static gpp_status take_clipping(const tool_job *job, source *from, gpp_error *err)
{
    double type = 2;
    const char *text = job->optimizer ? job->optimizer : "";
    if (strncmp(text, "clip_grad_norm", 14) != 0)
        return GPP_OK;
    if (sscanf(text, "clip_grad_norm max_norm=%lf norm_type=%lf", &from->max_norm, &type) < 1 ||
        !(from->max_norm > 0))
        return tool_note(err, GPP_ESYNTAX, "\"%.80s\" has no max_norm above 0", text);
    return type == 2 ? GPP_OK
                     : tool_note(err, GPP_EUNSUPPORTED,
                                 "clip_grad_norm: norms are of type 2, got "
                                 "%g",
                                 type);
}

/* --- steps ------------------------------------------------------------------------------------ */

static gpp_status set_parameters(gpp_pipe *pipe, const source *from, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < from->params && status == GPP_OK; k++) {
        char name[32];
        int64_t count = tool_count(&from->p[k]);
        float *zero = from->max_norm > 0 ? calloc((size_t)count + 1, sizeof *zero) : NULL;
        snprintf(name, sizeof name, "layer.p%d", k);
        if (from->max_norm > 0 && !zero)
            return tool_note(err, GPP_ENOMEM, "%s", name);
        status = gpp_pipe_set(pipe, name, zero ? zero : from->p[k].data, count, err);
        free(zero);
    }
    return status;
}

static gpp_status read_parameters(gpp_pipe *pipe, const source *from, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < from->params && status == GPP_OK; k++) {
        char name[32];
        int64_t count = tool_count(&from->p[k]);
        float *after = (float *)from->after[k].data + from->step * count;
        snprintf(name, sizeof name, "layer.p%d", k);
        status = gpp_pipe_get(pipe, name, after, count, err);
        for (int64_t n = 0; n < count && from->max_norm > 0; n++)
            after[n] = -after[n];
    }
    return status;
}

static gpp_status run_steps(tool_job *job, gpp_pipe *pipe, source *from, gpp_error *err)
{
    float x = 1, y, g = 1;
    gpp_tensor in = {&x, GPP_F32, 2, {1, 1}}, out = {&y, GPP_F32, 2, {1, 1}};
    gpp_tensor grad = {&g, GPP_F32, 2, {1, 1}};
    gpp_status status = set_parameters(pipe, from, err);
    for (from->step = 0; from->step < from->steps && status == GPP_OK; from->step++) {
        status = gpp_pipe_forward(pipe, &in, &out, NULL, err);
        if (status == GPP_OK)
            status = gpp_pipe_backward(pipe, -1, &in, &grad, NULL, err);
        if (status == GPP_OK)
            status = gpp_pipe_update(pipe, err);
        if (status == GPP_OK)
            status = read_parameters(pipe, from, err);
    }
    job->steps_done = from->steps;
    return status == GPP_OK && from->steps ? gpp_pipe_last_step(pipe, &job->stats, err) : status;
}

static gpp_status add_results(const tool_job *job, const source *from, gpp_file *out,
                              gpp_error *err)
{
    float norm = (float)job->stats.grad_norm;
    gpp_tensor norms = {&norm, GPP_F32, 1, {1}};
    bool clips = from->max_norm > 0;
    gpp_status status = clips ? gpp_file_add(out, "norm", &norms, err) : GPP_OK;
    for (int k = 0; k < from->params && status == GPP_OK; k++) {
        char name[32];
        snprintf(name, sizeof name, "%c%d_after", clips ? 'g' : 'p', k);
        status = gpp_file_add(out, name, &from->after[k], err);
    }
    return status;
}

gpp_status tool_job_optimize(tool_job *job, gpp_file *out, gpp_error *err)
{
    source from = {0};
    gpp_pipe *pipe = NULL;
    job->first_loss = job->last_loss = NAN;
    gpp_status status = take_clipping(job, &from, err);
    if (status == GPP_OK)
        status = take_gradients(job, &from, err);
    if (status == GPP_OK)
        status = make_pipe(job, &from, &pipe, err);
    if (status == GPP_OK)
        status = run_steps(job, pipe, &from, err);
    if (status == GPP_OK)
        status = add_results(job, &from, out, err);
    gpp_pipe_free(pipe);
    for (int k = 0; k < from.params; k++)
        free(from.after[k].data);
    return status;
}
