/*
 * codelets/user/infer.c: what a user operator declares for a layer: outputs, stashes, parameters
 * and saved tensors. All of it is checked before it is used.
 *
 * A gpp__layer has no field for what infer says about saved tensors. So infer is called again where
 * that is needed: when a kernel is compiled, parameters are initialised or flops are counted, but
 * never during a step.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codelets/cpu/philox.h"
#include "codelets/user/internal.h"

/* What is checked, for messages: "output 1". */
typedef struct place {
    const gpp__layer *layer;
    const char *what;
    int at;
} place;

#define FAIL(p, err, format, ...)                                                                  \
    gpp__fail_layer(err, GPP_ESHAPE, (p)->layer->index, "%s (layer %d, \"%s\"): %s %d " format,    \
                    (p)->layer->op->name, (p)->layer->index, (p)->layer->label, (p)->what,         \
                    (p)->at, __VA_ARGS__)

/* All dimensions are there, and so many elements can be counted. */
static gpp_status check_dims(const place *p, int64_t rows, int rank, int most, const int64_t dim[],
                             gpp_error *err)
{
    int64_t bytes = 0;
    bool fits = !__builtin_mul_overflow(rows, (int64_t)sizeof(double), &bytes);
    if (rank < 0 || rank > most)
        return FAIL(p, err, "has rank %d, expected 0 ... %d", rank, most);
    for (int d = 0; d < rank; d++) {
        if (dim[d] < 1)
            return FAIL(p, err, "has dimension %d of %lld, expected 1 or more", d,
                        (long long)dim[d]);
        fits = fits && !__builtin_mul_overflow(bytes, dim[d], &bytes);
    }
    return fits ? GPP_OK
                : FAIL(p, err, "of %d dimensions has more elements than memory can hold", rank);
}

/* Mini-batch 0 always exists. Another one exists when an input of the layer belongs to it. */
static bool batch_exists(const gpp__layer *layer, int batch)
{
    for (int t = 0; t < layer->in_count; t++)
        if (layer->in[t].batch == batch)
            return true;
    return batch == 0;
}

static gpp_status check_shape(const place *p, const gpp_shape *s, gpp_error *err)
{
    if (gpp_dtype_size(s->dtype) == 0)
        return FAIL(p, err, "is of type %d, expected GPP_F32 or GPP_I64", (int)s->dtype);
    if (s->batch == GPP_ROWS_FIXED && s->rows < 1)
        return FAIL(p, err, "has %lld fixed rows, expected 1 or more", (long long)s->rows);
    if (s->batch != GPP_ROWS_FIXED && !batch_exists(p->layer, s->batch))
        return FAIL(p, err, "has rows of batch %d, which no input of the layer has", s->batch);
    return check_dims(p, s->batch == GPP_ROWS_FIXED ? s->rows : 1, s->rank, GPP_MAX_RANK - 1,
                      s->dim, err);
}

static gpp_status check_shapes(const gpp__layer *layer, const char *what, int count,
                               const gpp_shape shape[], gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int t = 0; t < count && !status; t++)
        status = check_shape(&(place){layer, what, t}, &shape[t], err);
    return status;
}

static gpp_status check_count(const gpp__layer *layer, const char *what, int count, int least,
                              int most, gpp_error *err)
{
    if (count >= least && count <= most)
        return GPP_OK;
    return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                           "%s (layer %d, \"%s\"): declares %d %s, expected %d ... %d",
                           layer->op->name, layer->index, layer->label, count, what, least, most);
}

static gpp_status check_params(const gpp__layer *layer, const gpp_signature *s, gpp_error *err)
{
    for (int k = 0; k < s->params; k++) {
        const gpp_param_shape *param = &s->param[k];
        place p = {layer, "parameter", k};
        if (!memchr(param->name, '\0', sizeof param->name) ||
            !gpp__user_word(param->name, sizeof param->name - 1, "-."))
            return FAIL(&p, err, "has the name \"%.24s\", expected 1 ... %d letters or digits",
                        param->name, (int)sizeof param->name - 1);
        for (int other = 0; other < k; other++)
            if (strcmp(param->name, s->param[other].name) == 0)
                return FAIL(&p, err, "has the name \"%s\", as parameter %d has", param->name,
                            other);
        gpp_status status = check_dims(&p, 1, param->rank, GPP_MAX_RANK, param->dim, err);
        if (status)
            return status;
    }
    return GPP_OK;
}

static gpp_status check_signature(const gpp__layer *layer, const gpp_signature *s, gpp_error *err)
{
    int stashes = gpp__user_of(layer)->stashes;
    gpp_status status =
        check_count(layer, "outputs", s->outputs, 1, GPP__MAX_TENSORS - stashes, err);
    if (!status)
        status = check_count(layer, "parameters", s->params, 0, GPP__MAX_PARAMS, err);
    if (!status)
        status = check_count(layer, "saved tensors", s->saved, 0, GPP__MAX_PARAMS, err);
    if (!status)
        status = check_shapes(layer, "output", s->outputs, s->out, err);
    if (!status)
        status = check_shapes(layer, "stashed tensor", stashes, s->stash, err);
    if (!status)
        status = check_shapes(layer, "saved tensor", s->saved, s->saving, err);
    return status ? status : check_params(layer, s, err);
}

/* Reports a failure of infer with the function's own message, or with its status. */
static gpp_status report_infer(const gpp__layer *layer, gpp_status status, const gpp_error *said,
                               gpp_error *err)
{
    char words[128];
    if (status == GPP_OK)
        status = said->code;
    snprintf(words, sizeof words, "infer returned %s (%s)", gpp_status_name(status),
             gpp_status_text(status));
    if (!gpp__is_status(status)) {
        snprintf(words, sizeof words, "infer returned %d, which is no gpp_status", (int)status);
        status = GPP_EINVAL;
    }
    return gpp__fail_layer(err, status, layer->index, "%s (layer %d, \"%s\"): %s", layer->op->name,
                           layer->index, layer->label, said->msg[0] ? said->msg : words);
}

/* Clears the number of rows where rows are not fixed, since it means nothing there. */
static void forget_rows(int count, gpp_shape shape[])
{
    for (int t = 0; t < count; t++)
        shape[t].rows = shape[t].batch == GPP_ROWS_FIXED ? shape[t].rows : 0;
}

gpp_status gpp__user_sign(const gpp__layer *layer, gpp_signature *s, gpp_error *err)
{
    const gpp__user_op *user = gpp__user_of(layer);
    gpp_error said = GPP_ERROR_INIT;
    memset(s, 0, sizeof *s);
    s->layer = layer->index;
    s->label = layer->label;
    s->attr = layer->attr;
    s->user = user->def.user;
    s->inputs = layer->in_count - user->pops;
    s->in = layer->in;
    s->pop = layer->in + s->inputs;
    s->err = &said;
    gpp_status status = user->def.infer(s);
    said.msg[sizeof said.msg - 1] = '\0';
    if (status || said.code)
        return report_infer(layer, status, &said, err);
    s->err = NULL;
    return check_signature(layer, s, err);
}

gpp_status gpp__user_infer(gpp__layer *layer, gpp_error *err)
{
    gpp_signature s;
    int stashes = gpp__user_of(layer)->stashes;
    gpp_status status = gpp__user_sign(layer, &s, err);
    if (status)
        return status;
    layer->out_count = s.outputs + stashes;
    forget_rows(s.outputs, s.out);
    forget_rows(stashes, s.stash);
    memcpy(layer->out, s.out, (size_t)s.outputs * sizeof *s.out);
    memcpy(layer->out + s.outputs, s.stash, (size_t)stashes * sizeof *s.stash);
    layer->param_count = 0;
    for (int p = 0; p < s.params; p++)
        gpp__add_param(layer, s.param[p].name, s.param[p].rank, s.param[p].dim);
    return GPP_OK;
}

/* A seed of the parameter's own, which a function that knows nothing of layers can use directly. */
static uint64_t seed_of(const gpp__layer *layer, int p, uint64_t seed)
{
    uint64_t what =
        (uint64_t)GPP__STREAM_INIT << 56 | (uint64_t)(uint32_t)layer->id << 8 | (uint64_t)p;
    gpp__philox r = gpp__philox4x32(seed, what, UINT64_MAX);
    return (uint64_t)r.v[1] << 32 | r.v[0];
}

void gpp__user_init(const gpp__layer *layer, int p, uint64_t seed, float *value)
{
    const gpp__user_op *user = gpp__user_of(layer);
    const gpp__param *param = &layer->param[p];
    gpp_signature s;
    if (!user->def.init) {
        double fan = param->rank ? (double)(param->count / param->dim[0]) : 1;
        gpp__init_uniform(layer, p, seed, (float)(1 / sqrt(fan)), value);
    } else if (gpp__user_sign(layer, &s, NULL) == GPP_OK) {
        user->def.init(&s, p, seed_of(layer, p, seed), param->count, value);
    }
}

double gpp__user_flops(const gpp__layer *layer)
{
    gpp_signature s;
    return gpp__user_sign(layer, &s, NULL) == GPP_OK ? gpp__user_of(layer)->def.flops(&s) : 0;
}
