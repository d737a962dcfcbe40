/*
 * graph/run/tensors.c: checks the caller's tensors against the model and enters them in the job. A
 * wrong call is refused here, before anything runs.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/run/pipe.h"

static void tensor_text(const gpp_tensor *t, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "(");
    for (int k = 0; k < t->rank && k < GPP_MAX_RANK && at < size; k++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", k ? ", " : "", (long long)t->dim[k]);
    if (at < size)
        snprintf(out + at, size - at, ")");
}

static gpp_status mismatch(const char *name, const gpp_tensor *t, const gpp__desc *d, int64_t rows,
                           gpp_error *err)
{
    char found[96], expected[96], batch[24] = "B";
    tensor_text(t, found, sizeof found);
    gpp__desc_text(d, expected, sizeof expected);
    if (rows >= 0)
        snprintf(batch, sizeof batch, "%lld", (long long)rows);
    return gpp__fail(err, GPP_ESHAPE, "%s is %s %s, expected %s with %s rows of %s", name,
                     t->dtype == GPP_F32   ? "float32"
                     : t->dtype == GPP_I64 ? "int64"
                                           : "of unknown type",
                     found, d->dtype == GPP_F32 ? "float32" : "int64", batch, expected);
}

static bool fits(const gpp_tensor *t, const gpp__desc *d, int64_t rows)
{
    if (t->dtype != d->dtype)
        return false;
    if (t->rank == 0)
        return d->rank == 0 && rows == 1; /* a scalar */
    if (t->rank != d->rank + 1 || t->dim[0] < 0 || (rows >= 0 && t->dim[0] != rows))
        return false;
    for (int k = 0; k < d->rank; k++)
        if (t->dim[k + 1] != d->dim[k])
            return false;
    return true;
}

/** Check that `t` is rows of `d`. @param rows  in: expected, or -1 for any; out: the tensor's
 * @param used  by tasks of this rank; else its data does not matter */
static gpp_status take_rows(const char *name, const gpp_tensor *t, const gpp__desc *d,
                            int64_t *rows, bool optional, bool used, gpp__rows *out, gpp_error *err)
{
    if (!t)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", name);
    if (optional && !t->data)
        return GPP_OK;
    if (!fits(t, d, *rows))
        return mismatch(name, t, d, *rows, err);
    *rows = t->rank ? t->dim[0] : 1;
    if (used && !t->data && *rows > 0)
        return gpp__fail(err, GPP_EINVAL, "%s has %lld rows but no data", name, (long long)*rows);
    *out = (gpp__rows){used ? t->data : NULL, gpp__desc_bytes(d), d->batch, d->rows};
    return GPP_OK;
}

/* All tensors of a call that have one role, one for each input or output of the model. */
typedef struct kind {
    const char *name;
    const gpp_tensor *tensor; /* [count] */
    const int *value;         /* [count] index among the network's values */
    int count;
    bool optional;  /* one without data is not given, or not wanted */
    bool per_piece; /* a fixed number of rows comes once for each micro-batch */
    gpp__rows *rows;
} kind;

/* A replica's partition j is on this rank. */
static bool has_partition(const gpp_pipe *p, int j)
{
    bool has = false;
    for (; j < p->recipe->partitions; j += gpp__recipe_depth(p->recipe))
        has |= gpp__recipe_holds(p->recipe, j);
    return has;
}

/* A last partition, with outputs and losses, is on this rank. */
static bool has_end(const gpp_pipe *p)
{
    return has_partition(p, gpp__recipe_end(p->recipe, 0));
}

/* The partition of replica 0 that has an operator. */
static int partition_of(const gpp_pipe *p, int node)
{
    int j = 0;
    while (j < gpp__recipe_depth(p->recipe) - 1 &&
           node >= p->recipe->stage[j].first + p->recipe->stage[j].count)
        j++;
    return j;
}

/* A task of this rank reads or writes the caller's tensor. Outputs are the last partition's. */
static bool is_used(const gpp_pipe *p, int value)
{
    const gpp__value *v = &p->recipe->network->value[value];
    if (v->consumer == GPP__CALLER)
        return has_end(p);
    return v->consumer < 0 || has_partition(p, partition_of(p, v->consumer));
}

static gpp_status take_kind(const gpp_pipe *p, const kind *k, gpp__batch *batch, int pieces,
                            gpp_error *err)
{
    for (int t = 0; t < k->count; t++) {
        const gpp__desc *d = &p->recipe->network->value[k->value[t]].desc;
        char name[32];
        snprintf(name, sizeof name, k->count > 1 ? "%s[%d]" : "%s", k->name, t);
        int64_t fixed = d->rows * (k->per_piece ? pieces : 1);
        int64_t *rows = d->batch == GPP_ROWS_FIXED ? &fixed : &batch->rows[d->batch];
        gpp_status status = take_rows(name, &k->tensor[t], d, rows, k->optional,
                                      is_used(p, k->value[t]), &k->rows[t], err);
        if (status != GPP_OK)
            return status;
    }
    return GPP_OK;
}

/* --- overlaps --------------------------------------------------------------------------------- */

static size_t bytes_of(const kind *k, int t, const gpp__batch *batch, int pieces)
{
    const gpp__rows *r = &k->rows[t];
    int64_t rows =
        r->batch == GPP_ROWS_FIXED ? r->rows * (k->per_piece ? pieces : 1) : batch->rows[r->batch];
    return (size_t)rows * r->bytes;
}

/** Tasks write outputs while other tasks still read inputs, so the two must not share memory. */
static gpp_status check_apart(const kind *out, const kind *in, const gpp__batch *batch, int pieces,
                              gpp_error *err)
{
    for (int a = 0; a < out->count; a++)
        for (int b = 0; b < in->count; b++) {
            uintptr_t x = (uintptr_t)out->rows[a].data, y = (uintptr_t)in->rows[b].data;
            bool overlap = x && y && x < y + bytes_of(in, b, batch, pieces) &&
                           y < x + bytes_of(out, a, batch, pieces);
            if (overlap && (out->rows != in->rows || a < b))
                return gpp__fail(err, GPP_EINVAL, "%s and %s overlap in memory", out->name,
                                 in->name);
        }
    return GPP_OK;
}

/* --- values that a device cannot check -------------------------------------------------------- */

/* A kernel on a GPU cannot report a wrong value (an index out of range), so check the values of
 * inputs that go to one here. */
static gpp_status check_values(const gpp_pipe *p, const gpp_tensor *x, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int t = 0; t < p->recipe->network->inputs && status == GPP_OK; t++) {
        int node = p->recipe->network->value[p->recipe->network->input[t]].consumer;
        if (node < 0 || !p->recipe->stage[partition_of(p, node)].cuda ||
            !p->recipe->network->node[node].op->check)
            continue;
        const gpp__desc *d = &p->recipe->network->value[p->recipe->network->input[t]].desc;
        int64_t rows = d->batch == GPP_ROWS_FIXED ? d->rows : x[t].dim[0];
        status = p->recipe->network->node[node].op->check(&p->recipe->network->node[node],
                                                          x[t].data, rows, "mini-batch", err);
    }
    return status;
}

/* --- a call ----------------------------------------------------------------------------------- */

/* The loss's divisor by each replica's part of the mini-batch. flight.c adds them up. */
static void take_divisors(const gpp_pipe *p, const gpp_tensor *target, int64_t rows)
{
    const gpp__recipe *r = p->recipe;
    int64_t each = r->y_desc.rows, last;
    size_t row = gpp__desc_bytes(&r->target_desc);
    if (r->y_desc.batch != GPP_ROWS_FIXED)
        gpp__chunk(rows, gpp__recipe_chunks(r), &each, &last);
    for (int k = 0; k < r->replicas; k++) {
        int64_t first = k * r->chunks * each, end = first + r->chunks * each;
        first = first < rows ? first : rows;
        end = end < rows ? end : rows;
        if (gpp__recipe_holds(r, gpp__recipe_end(r, k)))
            p->divisor[k] =
                r->loss->divisor(r->loss_attr, &r->y_desc, end - first,
                                 (const char *)target->data + (size_t)first * row, r->class_weight);
    }
}

static gpp_status take_target(gpp_pipe *p, gpp__job *job, const gpp__call *c, gpp__batch *batch,
                              int pieces, gpp_error *err)
{
    const gpp__desc *d = &p->recipe->target_desc;
    int64_t fixed = p->recipe->y_desc.rows * pieces;
    int64_t *rows =
        p->recipe->y_desc.batch == GPP_ROWS_FIXED ? &fixed : &batch->rows[p->recipe->y_desc.batch];
    gpp_status status =
        take_rows("target", c->target, d, rows, false, has_end(p), &job->target, err);
    job->target.batch = p->recipe->y_desc.batch;
    job->target.rows = p->recipe->y_desc.rows;
    if (status == GPP_OK)
        take_divisors(p, c->target, *rows);
    bool on_gpu =
        p->recipe->stage[gpp__recipe_end(p->recipe, 0)].cuda; /* so check the target here */
    if (status == GPP_OK && on_gpu && p->recipe->loss->check)
        status = p->recipe->loss->check(p->recipe->loss_attr, &p->recipe->y_desc, d, 0, *rows,
                                        c->target->data, err);
    if (status == GPP_OK && p->losses.each.data && p->losses.rows != *rows)
        return gpp__fail(err, GPP_ESHAPE, "losses are kept for %lld rows, the mini-batch has %lld",
                         (long long)p->losses.rows, (long long)*rows);
    return status;
}

gpp_status gpp_pipe_keep_losses(gpp_pipe *p, const gpp_tensor *each, gpp_error *err)
{
    if (!p)
        return gpp__fail(err, GPP_EINVAL, "pipe is NULL");
    p->losses.each = (gpp__rows){0};
    if (!each) {
        gpp__settle(p); /* steps in flight may still write there */
        return GPP_OK;
    }
    if (!p->recipe->loss || !p->recipe->loss->each)
        return gpp__fail(err, GPP_ESTATE, "this pipe has no loss, or one without single values");
    gpp__desc d;
    p->recipe->loss->each(p->recipe->loss_attr, &p->recipe->y_desc, &d);
    d.batch = p->recipe->y_desc.batch;
    d.rows = p->recipe->y_desc.rows;
    p->losses.rows = -1;
    return take_rows("each", each, &d, &p->losses.rows, false, has_end(p), &p->losses.each, err);
}

gpp_status gpp__take_tensors(gpp_pipe *p, gpp__job *job, const gpp__call *c, gpp__batch *batch,
                             gpp_error *err)
{
    const gpp__network *n = p->recipe->network;
    int ins = n->inputs, outs = n->outputs, pieces = 1;
    int64_t size, last;
    for (int k = 0; k < GPP__MAX_TENSORS; k++)
        job->x[k] = job->y[k] = job->grad_y[k] = job->grad_x[k] = (gpp__rows){0};
    job->target = (gpp__rows){0};
    for (int b = 0; b < GPP__BATCHES; b++)
        batch->rows[b] = b < p->recipe->batches ? -1 : 0;
    if (!c->x)
        return gpp__fail(err, GPP_EINVAL, "x is NULL");
    const kind x = {"x", c->x, n->input, ins, false, false, job->x},
               grad_x = {"grad_x", c->grad_x, n->input,   c->grad_x ? ins : 0,
                         true,     false,     job->grad_x},
               y = {"y", c->y, n->output, c->y ? outs : 0, true, true, job->y},
               grad_y = {"grad_y", c->grad_y, n->output,  c->grad_y ? outs : 0,
                         true,     true,      job->grad_y};
    /* x comes first: its rows say how many micro-batches there are, which the others must match. */
    gpp_status status = take_kind(p, &x, batch, 1, err);
    if (status == GPP_OK)
        status = check_values(p, c->x, err);
    if (status == GPP_OK)
        pieces = gpp__chunk(batch->rows[0], gpp__recipe_chunks(p->recipe), &size, &last);
    if (status == GPP_OK && c->target)
        status = take_target(p, job, c, batch, pieces, err);
    const kind *rest[] = {&y, &grad_y, &grad_x},
               target = {"target", c->target, NULL, c->target != NULL, false, true, &job->target};
    for (int k = 0; k < 3 && status == GPP_OK; k++)
        status = take_kind(p, rest[k], batch, pieces, err);
    const kind *out[] = {&y, &grad_x}, *in[] = {&x, &target, &grad_y, &y, &grad_x};
    for (int o = 0; o < 2; o++)
        for (int i = 0; i < 5 && status == GPP_OK; i++)
            status = check_apart(out[o], in[i], batch, pieces, err);
    job->loss_rows = p->recipe->y_desc.batch == GPP_ROWS_FIXED
                         ? p->recipe->y_desc.rows * pieces
                         : batch->rows[p->recipe->y_desc.batch];
    return status;
}

/* --- gradients of inputs that are not cut ----------------------------------------------------- */

gpp_status gpp__split_fixed_gradients(const gpp_pipe *p, gpp__job *job, int pieces, char *room[],
                                      gpp_error *err)
{
    for (int k = 0; k < p->recipe->network->inputs; k++) {
        gpp__rows *r = &job->grad_x[k];
        if (!r->data || r->batch != GPP_ROWS_FIXED)
            continue;
        room[k] = malloc((size_t)pieces * (size_t)r->rows * r->bytes);
        if (!room[k])
            return gpp__fail(err, GPP_ENOMEM, "gradients of input %d for %d micro-batches", k,
                             pieces);
        char *caller = r->data;
        r->data = room[k];
        room[k] = caller;
    }
    return GPP_OK;
}

/* Add in the order of the micro-batches, so that the sum is the same in every run. */
static void add_pieces(const gpp__rows *r, int pieces, float *sum)
{
    size_t count = (size_t)r->rows * r->bytes / sizeof *sum;
    const float *piece = (const float *)r->data;
    memcpy(sum, piece, count * sizeof *sum);
    for (int i = 1; i < pieces; i++)
        for (size_t k = 0; k < count; k++)
            sum[k] += piece[(size_t)i * count + k];
}

void gpp__join_fixed_gradients(const gpp_pipe *p, gpp__job *job, int pieces, char *room[],
                               bool done)
{
    for (int k = 0; k < p->recipe->network->inputs; k++) {
        gpp__rows *r = &job->grad_x[k];
        if (!room[k])
            continue;
        if (done)
            add_pieces(r, pieces, (float *)room[k]);
        free(r->data);
        r->data = NULL;
    }
}
