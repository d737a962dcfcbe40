/*
 * codelets/user/call.c: calls a user operator's functions, with tensors instead of our pointers.
 *
 * A call lives on the stack: nothing is allocated, and any number of calls may run at once. A
 * forward has to name each declared skip, and each popped one once. This is checked after the
 * function has returned, stashes first. The failure reported is the first one: what the function
 * said with gpp_call_fail, or its first misuse. A function that only returns a status gets a
 * message of ours.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codelets/move.h"
#include "codelets/user/internal.h"

/* The saved tensors of a kernel. */
typedef struct savings {
    int count;
    gpp_shape shape[GPP__MAX_PARAMS];
    size_t at[GPP__MAX_PARAMS];
} savings;

static gpp_status place_saved(savings *v, const gpp_shape *shape, gpp__kernel *kernel,
                              gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    size_t bytes = 0, rows = (size_t)gpp__desc_rows(shape, kernel->batch);
    v->shape[v->count] = *shape;
    v->at[v->count] = kernel->saved_bytes;
    if (!gpp__mul(gpp__desc_bytes(shape), rows, &bytes) || bytes > SIZE_MAX / 2 ||
        !gpp__add(kernel->saved_bytes, gpp__align(bytes), &kernel->saved_bytes))
        return gpp__fail_layer(err, GPP_ENOMEM, layer->index,
                               "%s (layer %d, \"%s\"): saved tensor %d of %zu rows",
                               layer->op->name, layer->index, layer->label, v->count, rows);
    v->count++;
    return GPP_OK;
}

gpp_status gpp__user_prepare(gpp__kernel *kernel, gpp_error *err)
{
    const gpp__layer *layer = kernel->layer;
    gpp_signature s;
    gpp_status status = gpp__user_sign(layer, &s, err);
    if (status || s.saved == 0)
        return status;
    savings *v = calloc(1, sizeof *v);
    if (!v)
        return gpp__fail_layer(err, GPP_ENOMEM, layer->index, "%s (layer %d, \"%s\")",
                               layer->op->name, layer->index, layer->label);
    for (int k = 0; k < s.saved && !status; k++)
        status = place_saved(v, &s.saving[k], kernel, err);
    kernel->impl = v;
    if (status)
        gpp__user_release(kernel);
    return status;
}

void gpp__user_release(gpp__kernel *kernel)
{
    free(kernel->impl);
    kernel->impl = NULL;
}

/* Behind a gpp_call. */
struct gpp_call_inside {
    const gpp__user_op *user;
    const gpp__run *run;
    bool forward;
    uint32_t stashed, popped, absent; /* bit k: skip k of its list */
    gpp_error err;                    /* what went wrong first */
};

typedef struct frame {
    gpp_call call;
    struct gpp_call_inside inside;
    gpp_tensor in[GPP__MAX_TENSORS], out[GPP__MAX_TENSORS];
    gpp_tensor grad_in[GPP__MAX_TENSORS], grad_out[GPP__MAX_TENSORS];
    gpp_tensor param[GPP__MAX_PARAMS], grad_param[GPP__MAX_PARAMS], saving[GPP__MAX_PARAMS];
} frame;

static gpp_tensor tensor_of(const gpp__desc *d, const gpp__kernel *kernel, const void *data)
{
    gpp_tensor t = {(void *)(uintptr_t)data,
                    d->dtype,
                    d->rank + 1,
                    {gpp__desc_rows(d, kernel->batch), 0, 0, 0, 0, 0, 0, 0}};
    memcpy(t.dim + 1, d->dim, (size_t)d->rank * sizeof *d->dim);
    return t;
}

static void set_tensors(frame *f, const gpp__kernel *kernel, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    bool forward = f->inside.forward;
    for (int t = 0; t < layer->in_count; t++) {
        bool real = layer->in[t].dtype == GPP_F32;
        f->in[t] = tensor_of(&layer->in[t], kernel, io->in[t]);
        f->grad_in[t] = tensor_of(&layer->in[t], kernel, NULL);
        if (!forward && real)
            f->grad_in[t].data = io->grad_in[t];
    }
    for (int t = 0; t < layer->out_count; t++) {
        bool real = layer->out[t].dtype == GPP_F32;
        f->out[t] = tensor_of(&layer->out[t], kernel, io->out[t]);
        f->grad_out[t] =
            tensor_of(&layer->out[t], kernel, forward || !real ? NULL : io->grad_out[t]);
    }
}

/* The function always adds to gradients, so gradients that should be assigned are zeroed first. */
static void set_params(frame *f, const gpp__layer *layer, const gpp__run *run, const gpp__io *io)
{
    for (int p = 0; p < layer->param_count; p++) {
        const gpp__param *param = &layer->param[p];
        gpp_tensor *t = &f->param[p], *grad = &f->grad_param[p];
        *t = (gpp_tensor){.data = (void *)(uintptr_t)gpp__param_at(layer, io->params, p),
                          .rank = param->rank};
        memcpy(t->dim, param->dim, sizeof t->dim);
        *grad = *t;
        grad->data = NULL;
        if (f->inside.forward || !io->grads)
            continue;
        grad->data = io->grads + param->offset;
        if (!io->accumulate)
            gpp__zero(run, grad->data, (size_t)param->count * sizeof(float));
        if (param->frozen)
            grad->data = NULL;
    }
}

static void set_savings(frame *f, const gpp__kernel *kernel, const gpp__io *io)
{
    const savings *v = kernel->impl;
    f->call.saved = v ? v->count : 0;
    for (int k = 0; k < f->call.saved; k++)
        f->saving[k] =
            tensor_of(&v->shape[k], kernel, io->saved ? (char *)io->saved + v->at[k] : NULL);
}

/* First row in the mini-batch, taken from the first tensor that has rows of a mini-batch. */
static int64_t first_row(const gpp__layer *layer, const gpp__run *run)
{
    for (int t = 0; t < layer->in_count + layer->out_count; t++) {
        const gpp__desc *d = t < layer->in_count ? &layer->in[t] : &layer->out[t - layer->in_count];
        if (d->batch != GPP_ROWS_FIXED)
            return run->row0[d->batch];
    }
    return run->row0[0];
}

static void set_frame(frame *f, const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                      bool forward)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__user_op *user = gpp__user_of(layer);
    f->inside = (struct gpp_call_inside){
        .user = user, .run = run, .forward = forward, .err = GPP_ERROR_INIT};
    f->call = (gpp_call){
        .layer = layer->index,
        .label = layer->label,
        .attr = layer->attr,
        .user = user->def.user,
        .micro_batch = run->micro_batch,
        .row0 = first_row(layer, run),
        .training = run->training,
        .inputs = layer->in_count - user->pops,
        .outputs = layer->out_count - user->stashes,
        .params = layer->param_count,
        .in = f->in,
        .out = f->out,
        .param = f->param,
        .saving = f->saving,
        .grad_out = forward ? NULL : f->grad_out,
        .grad_in = forward ? NULL : f->grad_in,
        .grad_param = forward ? NULL : f->grad_param,
        .stream = run->mover ? run->mover->stream(run) : NULL,
        .inside = &f->inside,
    };
    set_tensors(f, kernel, io);
    set_params(f, layer, run, io);
    set_savings(f, kernel, io);
}

/* The status of a call. A failure gets the function's message, or one of ours. */
static gpp_status outcome(const frame *f, gpp_status status, const gpp__layer *layer)
{
    const struct gpp_call_inside *inside = &f->inside;
    const char *which = inside->forward ? "forward" : "backward";
    if (inside->err.code)
        return gpp__fail_layer(inside->run->err, inside->err.code, layer->index,
                               "%s (layer %d, \"%s\"): %s", layer->op->name, layer->index,
                               layer->label, inside->err.msg);
    if (status == GPP_OK)
        return GPP_OK;
    if (!gpp__is_status(status))
        return gpp__fail_layer(inside->run->err, GPP_EKERNEL, layer->index,
                               "%s (layer %d, \"%s\"): its %s returned %d, which is no gpp_status",
                               layer->op->name, layer->index, layer->label, which, (int)status);
    return gpp__fail_layer(inside->run->err, status, layer->index,
                           "%s (layer %d, \"%s\"): its %s returned %s (%s)", layer->op->name,
                           layer->index, layer->label, which, gpp_status_name(status),
                           gpp_status_text(status));
}

/* Writes the names of a list that have no bit in `seen`, as "'a', 'b'". */
static bool missing(int count, const char name[][GPP__NAME], uint32_t seen, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int k = 0; k < count; k++)
        if (!(seen >> k & 1) && used < size)
            used += (size_t)snprintf(out + used, size - used, "%s'%s'", used ? ", " : "", name[k]);
    return out[0] != '\0';
}

static void check_protocol(struct gpp_call_inside *inside)
{
    const gpp__user_op *user = inside->user;
    char names[GPP__USER_SKIPS * (GPP__NAME + 4)];
    if (missing(user->stashes, user->stash, inside->stashed, names, sizeof names))
        gpp__fail(&inside->err, GPP_EINVAL, "%s must be stashed but have not", names);
    else if (missing(user->pops, user->pop, inside->popped, names, sizeof names))
        gpp__fail(&inside->err, GPP_EINVAL, "%s must be popped but have not", names);
}

/* Only popped tensors may be absent. */
static void check_inputs(frame *f)
{
    for (int t = 0; t < f->call.inputs; t++)
        if (!f->in[t].data && f->in[t].dim[0] > 0)
            gpp__fail(&f->inside.err, GPP_EINVAL, "input %d is absent", t);
}

typedef gpp_status (*user_fn)(gpp_call *call);

static gpp_status call_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                               user_fn forward)
{
    frame f;
    gpp_status status = GPP_OK;
    set_frame(&f, kernel, run, io, true);
    check_inputs(&f);
    if (!f.inside.err.code)
        status = forward(&f.call);
    if (!status)
        check_protocol(&f.inside);
    if (io->absent)
        *io->absent = f.inside.absent << f.call.outputs;
    return outcome(&f, status, kernel->layer);
}

static gpp_status call_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io,
                                user_fn backward)
{
    frame f;
    set_frame(&f, kernel, run, io, false);
    return outcome(&f, backward(&f.call), kernel->layer);
}

gpp_status gpp__user_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return call_forward(kernel, run, io, gpp__user_of(kernel->layer)->def.forward);
}

gpp_status gpp__user_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return call_backward(kernel, run, io, gpp__user_of(kernel->layer)->def.backward);
}

gpp_status gpp__user_forward_cuda(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    return call_forward(kernel, run, io, gpp__user_of(kernel->layer)->def.forward_cuda);
}

gpp_status gpp__user_backward_cuda(const gpp__kernel *kernel, const gpp__run *run,
                                   const gpp__io *io)
{
    return call_backward(kernel, run, io, gpp__user_of(kernel->layer)->def.backward_cuda);
}

/* --- what a call may ask ---------------------------------------------------------------------- */

/* Index of a stash, or of a pop. -1 when it was not declared, which fails a forward. */
static int skip_of(gpp_call *call, const char *name, bool stash)
{
    if (!call)
        return -1;
    struct gpp_call_inside *inside = call->inside;
    const gpp__user_op *user = inside->user;
    int k = stash ? gpp__user_find(user->stashes, user->stash, name)
                  : gpp__user_find(user->pops, user->pop, name);
    if (k < 0 && inside->forward)
        gpp__fail(&inside->err, GPP_EINVAL, "'%.64s' has not been declared as %s",
                  name ? name : "(NULL)", stash ? "stashable" : "poppable");
    return k;
}

const gpp_tensor *gpp_call_stash(gpp_call *call, const char *name)
{
    int k = skip_of(call, name, true);
    if (k < 0)
        return NULL;
    call->inside->stashed |= 1u << k;
    call->inside->absent &= ~(1u << k);
    return &call->out[call->outputs + k];
}

void gpp_call_stash_none(gpp_call *call, const char *name)
{
    int k = skip_of(call, name, true);
    if (k < 0)
        return;
    call->inside->stashed |= 1u << k;
    call->inside->absent |= 1u << k;
}

const gpp_tensor *gpp_call_pop(gpp_call *call, const char *name)
{
    int k = skip_of(call, name, false);
    if (k < 0)
        return NULL;
    if (call->inside->forward && call->inside->popped >> k & 1)
        gpp__fail(&call->inside->err, GPP_EINVAL, "'%s' has been popped already", name);
    call->inside->popped |= 1u << k;
    return &call->in[call->inputs + k];
}

const gpp_tensor *gpp_call_grad_stash(gpp_call *call, const char *name)
{
    int k = call && call->grad_out ? skip_of(call, name, true) : -1;
    return k < 0 ? NULL : &call->grad_out[call->outputs + k];
}

const gpp_tensor *gpp_call_grad_pop(gpp_call *call, const char *name)
{
    int k = call && call->grad_in ? skip_of(call, name, false) : -1;
    return k < 0 ? NULL : &call->grad_in[call->inputs + k];
}

gpp_status gpp_call_fail(gpp_call *call, gpp_status status, const char *format, ...)
{
    char words[sizeof((gpp_error *)0)->msg];
    va_list args;
    if (status == GPP_OK || !gpp__is_status(status))
        status = GPP_EKERNEL; /* a function that reports a failure has failed, even with GPP_OK */
    if (!call)
        return status;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return gpp__fail(&call->inside->err, status, "%s", words);
}

bool gpp_is_checkpointing(const gpp_call *call)
{
    return call && call->inside->forward && call->inside->run->checkpointing;
}

bool gpp_is_recomputing(const gpp_call *call)
{
    return call && call->inside->forward && call->inside->run->recomputing;
}
