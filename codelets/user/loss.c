/*
 * codelets/user/loss.c: calls a user's loss, with tensors instead of our pointers.
 *
 * A call lives on the stack: nothing is allocated, and any number of calls may run at once. A
 * failure's message is the loss's name and what the function wrote into its error record. A
 * function that only returns a status gets a message of ours. The declared target is checked before
 * it is used. Calls on a GPU are in codelets/user/loss.cu.
 */
#include "codelets/user/loss.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct user_loss {
    gpp_loss loss; /* first: a gpp_loss of ours is a user_loss */
    gpp_loss_function def;
    char name[];
} user_loss;

static bool is_status(gpp_status status)
{
    switch (status) {
#define GPP_STATUS_CASE(name, value, text) case name:
        GPP_STATUS_LIST(GPP_STATUS_CASE)
#undef GPP_STATUS_CASE
        return true;
    }
    return false;
}

gpp_status gpp__user_loss_outcome(const gpp_loss_function *def, const char *function,
                                  gpp_status status, const gpp_error *said, gpp_error *err)
{
    if (status == GPP_OK)
        status = said->code;
    if (status == GPP_OK)
        return GPP_OK;
    if (!is_status(status))
        return gpp__fail(err, GPP_EKERNEL,
                         "loss \"%.64s\": its %s returned %d, which is no gpp_status", def->name,
                         function, (int)status);
    if (said->msg[0])
        return gpp__fail(err, status, "loss \"%.64s\": %.900s", def->name, said->msg);
    return gpp__fail(err, status, "loss \"%.64s\": its %s returned %s (%s)", def->name, function,
                     gpp_status_name(status), gpp_status_text(status));
}

/* --- the target ------------------------------------------------------------------------------- */

static gpp_status check_target(const char *name, const gpp_shape *t, gpp_error *err)
{
    int64_t bytes = sizeof(double);
    if (gpp_dtype_size(t->dtype) == 0)
        return gpp__fail(err, GPP_ESHAPE,
                         "loss \"%.64s\": its target is of type %d, expected GPP_F32 or GPP_I64",
                         name, (int)t->dtype);
    if (t->rank < 0 || t->rank > GPP_MAX_RANK - 1)
        return gpp__fail(err, GPP_ESHAPE,
                         "loss \"%.64s\": its target has rank %d, expected 0 ... %d", name, t->rank,
                         GPP_MAX_RANK - 1);
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] < 1 || __builtin_mul_overflow(bytes, t->dim[d], &bytes))
            return gpp__fail(err, GPP_ESHAPE,
                             "loss \"%.64s\": dimension %d of its target is %lld, expected 1 or "
                             "more, and no more elements than memory can hold",
                             name, d, (long long)t->dim[d]);
    return GPP_OK;
}

static gpp_status user_target(const void *attr, const gpp__desc *y, gpp__desc *target,
                              gpp_error *err)
{
    const gpp_loss_function *def = attr;
    gpp_error said = GPP_ERROR_INIT;
    gpp_shape shape = *y;
    gpp_status status =
        gpp__user_loss_outcome(def, "target", def->target(y, &shape, def->user, &said), &said, err);
    if (!status)
        status = check_target(def->name, &shape, err);
    if (status)
        return status;
    shape.batch = y->batch;
    shape.rows = y->rows;
    *target = shape;
    return GPP_OK;
}

static double user_divisor(const void *attr, const gpp__desc *y, int64_t rows, const void *target,
                           const float *weight)
{
    (void)attr;
    (void)y;
    (void)rows;
    (void)target;
    (void)weight;
    return 1;
}

/* --- a call ----------------------------------------------------------------------------------- */

static gpp_tensor tensor_of(const gpp__desc *d, int64_t rows, const void *data)
{
    gpp_tensor t = {(void *)(uintptr_t)data, d->dtype, d->rank + 1, {rows, 0, 0, 0, 0, 0, 0, 0}};
    memcpy(t.dim + 1, d->dim, (size_t)d->rank * sizeof *d->dim);
    return t;
}

gpp_loss_call gpp__user_loss_call(const gpp__loss_call *call, gpp_error *said)
{
    const gpp_loss_function *def = call->attr;
    assert(call->target_desc);
    return (gpp_loss_call){
        .user = def->user,
        .micro_batch = call->micro_batch,
        .row0 = call->row0,
        .batch_rows = call->batch_rows,
        .y = tensor_of(call->y_desc, call->rows, call->y),
        .target = tensor_of(call->target_desc, call->rows, call->target),
        .grad_y = tensor_of(call->y_desc, call->rows, call->grad_y),
        .err = said,
    };
}

/* The value is NaN unless the function sets it. */
static gpp_status user_run(const gpp__loss_call *call)
{
    const gpp_loss_function *def = call->attr;
    gpp_error said = GPP_ERROR_INIT;
    double value = NAN;
    gpp_loss_call theirs = gpp__user_loss_call(call, &said);
    gpp_status status =
        gpp__user_loss_outcome(def, "run", def->run(&theirs, &value), &said, call->err);
    if (status == GPP_OK)
        *call->value = value / call->divisor;
    return status;
}

/* --- the object ------------------------------------------------------------------------------- */

static gpp_status check_definition(const gpp_loss_function *def, gpp_error *err)
{
    if (!def || !def->name || !def->name[0])
        return gpp__fail(err, GPP_EINVAL, "a loss function needs a name");
    if (!def->target || !def->run)
        return gpp__fail(err, GPP_EINVAL, "loss \"%.64s\": no function %s", def->name,
                         def->target ? "run" : "target");
    if (def->scratch_cuda && !def->run_cuda)
        return gpp__fail(err, GPP_EINVAL, "loss \"%.64s\": scratch_cuda, but no function run_cuda",
                         def->name);
    return GPP_OK;
}

#ifdef GPP__WITH_CUDA
/* A size that no memory can hold is cut to the largest one that can still be added up and refused.
 */
static size_t user_scratch(const void *attr, const gpp__desc *y, int64_t rows)
{
    const gpp_loss_function *def = attr;
    size_t bytes = def->scratch_cuda(y, rows, def->user);
    return bytes < SIZE_MAX / 8 ? bytes : SIZE_MAX / 8;
}

static void add_cuda(user_loss *u)
{
    if (u->def.run_cuda)
        u->loss.run_cuda = gpp__user_loss_run_cuda;
    if (u->def.scratch_cuda)
        u->loss.scratch_cuda = user_scratch;
}
#else
static void add_cuda(user_loss *u)
{
    (void)u; /* nobody calls them */
}
#endif

gpp_status gpp__user_loss_new(gpp_loss **loss, const gpp_loss_function *def, gpp_error *err)
{
    *loss = NULL;
    gpp_status status = check_definition(def, err);
    if (status)
        return status;
    size_t length = strlen(def->name) + 1;
    user_loss *u = calloc(1, sizeof *u + length);
    if (!u)
        return gpp__fail(err, GPP_ENOMEM, "loss \"%.64s\"", def->name);
    memcpy(u->name, def->name, length);
    u->def = *def;
    u->def.name = u->name;
    u->loss = (gpp_loss){
        .name = u->name,
        .attr_size = sizeof u->def,
        .target = user_target,
        .divisor = user_divisor,
        .run = user_run,
    };
    add_cuda(u);
    *loss = &u->loss;
    return GPP_OK;
}

void gpp__user_loss_free(gpp_loss *loss)
{
    free(loss);
}

const void *gpp__user_loss_attr(const gpp_loss *loss)
{
    return &((const user_loss *)loss)->def;
}
