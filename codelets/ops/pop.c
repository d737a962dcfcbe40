/*
 * codelets/ops/pop.c: combines a skip with the tensor at hand: adds it, or appends it along a
 * dimension (cat dim=D, where 0 is the batch).
 *
 *   pop      (x, the popped tensor) -> x + popped, or x then popped along D
 *   combine  (x, z) -> the same of any two tensors: the end of a block applied to a skip
 *
 * With pad=1 images may differ in height and width: the smaller one is filled up with zeros at the
 * bottom and the right, which U-Nets need (Ronneberger, Fischer, Brox, "U-Net", MICCAI 2015, crop
 * instead). An absent skip adds nothing. Joining an absent skip fails the step.
 */
#include <stdio.h>

#include "codelets/ops/pop.h"

static const char *const modes[] = {"add", "cat", NULL};

#define HOW_KEYS                                                                                   \
    {.name = "mode",                                                                               \
     .type = GPP__KEY_CHOICE,                                                                      \
     .offset = offsetof(gpp__pop_attr, mode),                                                      \
     .count = 1,                                                                                   \
     .required = true,                                                                             \
     .choices = modes},                                                                            \
        {.name = "dim",                                                                            \
         .type = GPP__KEY_INT,                                                                     \
         .offset = offsetof(gpp__pop_attr, dim),                                                   \
         .count = 1,                                                                               \
         .min = -GPP_MAX_RANK,                                                                     \
         .max = GPP_MAX_RANK,                                                                      \
         .fallback = 1},                                                                           \
    {                                                                                              \
        .name = "pad", .type = GPP__KEY_BOOL, .offset = offsetof(gpp__pop_attr, pad), .count = 1,  \
        .max = 1                                                                                   \
    }
static const gpp__key combine_keys[] = {HOW_KEYS, {.name = NULL}};
static const gpp__key pop_keys[] = {GPP__SKIP_KEYS, HOW_KEYS, {.name = NULL}};

/* --- shapes ----------------------------------------------------------------------------------- */

/* Index of the dimension to join along; -1 when tensors are added. Checked by infer. */
static int join_axis(const gpp__layer *layer)
{
    const gpp__pop_attr *attr = layer->attr;
    int axis = -1;
    if (attr->mode == GPP__POP_CAT)
        gpp__axis(layer, &layer->in[0], attr->dim, &axis, NULL);
    return axis;
}

/* True when dimension k of an image may be filled up. */
static bool may_pad(const gpp__layer *layer, int k)
{
    return ((const gpp__pop_attr *)layer->attr)->pad && layer->in[0].rank == 3 && k > 0;
}

static gpp_status fail_shapes(const gpp__layer *layer, gpp_error *err)
{
    const gpp__pop_attr *attr = layer->attr;
    char one[80], other[80], but[48] = "";
    int axis = join_axis(layer);
    if (axis >= 0)
        snprintf(but, sizeof but, " but for dim %d", axis + 1);
    return gpp__fail_layer(err, GPP_ESHAPE, layer->index,
                           "%s (layer %d, \"%s\"): input is %s, %s is %s; mode=%s needs equal "
                           "shapes%s%s",
                           layer->op->name, layer->index, layer->label,
                           gpp__desc_text(&layer->in[0], one, sizeof one),
                           layer->pops ? "the popped tensor" : "the other",
                           gpp__desc_text(&layer->in[1], other, sizeof other), modes[attr->mode],
                           but, layer->in[0].rank == 3 && !attr->pad ? ", or pad=1" : "");
}

static gpp_status infer_out(gpp__layer *layer, gpp_error *err)
{
    const gpp__desc *a = &layer->in[0], *b = &layer->in[1];
    int axis = join_axis(layer);
    if (a->rank != b->rank)
        return fail_shapes(layer, err);
    layer->out_count = 1;
    layer->out[0] = *a;
    for (int k = 0; k < a->rank; k++) {
        int64_t *out = &layer->out[0].dim[k];
        if (k == axis)
            *out = a->dim[k] + b->dim[k];
        else if (a->dim[k] == b->dim[k] || may_pad(layer, k))
            *out = gpp__max64(a->dim[k], b->dim[k]);
        else
            return fail_shapes(layer, err);
    }
    return GPP_OK;
}

static gpp_status pop_infer(gpp__layer *layer, gpp_error *err)
{
    const gpp__pop_attr *attr = layer->attr;
    int axis;
    gpp_status status = gpp__expect_count(layer, 2 - layer->pops, 2 - layer->pops, err);
    if (status == GPP_OK)
        status = gpp__expect_alike(layer, attr->mode == GPP__POP_CAT, err);
    if (status == GPP_OK && attr->mode == GPP__POP_CAT)
        status = gpp__axis(layer, &layer->in[0], attr->dim, &axis, err);
    return status ? status : infer_out(layer, err);
}

static double pop_flops(const gpp__layer *layer)
{
    return ((const gpp__pop_attr *)layer->attr)->mode == GPP__POP_ADD
               ? (double)gpp__desc_count(&layer->out[0])
               : 0;
}

/* --- kernels ---------------------------------------------------------------------------------- */

gpp__box gpp__pop_box(const gpp__kernel *kernel, int t)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__desc *big = &layer->out[0], *small = &layer->in[t];
    int axis = join_axis(layer);
    int64_t at = axis >= 0 && t == 1 ? layer->in[0].dim[axis] : 0;
    if (!may_pad(layer, 1))
        return gpp__box_along(kernel->rows, big, small, axis < 0 ? 0 : axis, at);
    gpp__box box = {.rows = kernel->rows};
    for (int k = 0; k < 3; k++) {
        int in_memory = (k + 2) % 3;
        box.big[in_memory] = big->dim[k];
        box.small[in_memory] = small->dim[k];
        box.at[in_memory] = k == axis ? at : 0;
    }
    return box;
}

static gpp_status fail_absent(const gpp__kernel *kernel, const gpp__run *run)
{
    const gpp__layer *layer = kernel->layer;
    return gpp__fail_layer(run->err, GPP_EINVAL, layer->index,
                           "%s (layer %d, \"%s\"): the popped tensor is absent for micro-batch %d; "
                           "mode=cat needs it",
                           layer->op->name, layer->index, layer->label, run->micro_batch);
}

/* Puts the inputs where they lie in the output; what neither covers is zero. */
static void place(const gpp__kernel *kernel, gpp__pool *pool, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__pop_attr *attr = layer->attr;
    int64_t covered = gpp__desc_count(&layer->in[0]), all = gpp__desc_count(&layer->out[0]);
    if (attr->mode == GPP__POP_CAT)
        covered += gpp__desc_count(&layer->in[1]);
    if (covered < all)
        gpp__copy(pool, NULL, io->out[0], kernel->rows * all);
    for (int t = 0; t < 2; t++) {
        gpp__box box = gpp__pop_box(kernel, t);
        gpp__box_way way = attr->mode == GPP__POP_ADD && t == 1 ? GPP__BOX_ADD : GPP__BOX_PUT;
        if (io->in[t])
            gpp__box_run(pool, &box, way, io->out[0], (float *)io->in[t]);
    }
}

static gpp_status pop_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__layer *layer = kernel->layer;
    const gpp__pop_attr *attr = layer->attr;
    if (!io->in[1] && attr->mode == GPP__POP_CAT)
        return fail_absent(kernel, run);
    if (io->in[1] && attr->mode == GPP__POP_ADD && gpp__pop_fills(layer, 0) &&
        gpp__pop_fills(layer, 1)) {
        const float *both[] = {io->in[0], io->in[1]};
        gpp__sum(run->pool, both, 2, io->out[0], kernel->rows * gpp__desc_count(&layer->out[0]));
    } else {
        place(kernel, run->pool, io);
    }
    return GPP_OK;
}

static gpp_status pop_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    for (int t = 0; t < 2; t++) {
        gpp__box box = gpp__pop_box(kernel, t);
        if (io->grad_in[t])
            gpp__box_run(run->pool, &box, GPP__BOX_GET, (float *)io->grad_out[0], io->grad_in[t]);
    }
    return GPP_OK;
}

extern const gpp__kernels gpp__cuda_pop, gpp__cuda_combine;

const gpp_op gpp_op_pop = {
    .name = "pop",
    .keys = pop_keys,
    .attr_size = sizeof(gpp__pop_attr),
    .infer = pop_infer,
    .skips = gpp__skips_pop,
    .takes_none = true,
    .flops = pop_flops,
    .cpu.forward = pop_forward,
    .cpu.backward = pop_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_pop),
};

const gpp_op gpp_op_combine = {
    .name = "combine",
    .keys = combine_keys,
    .attr_size = sizeof(gpp__pop_attr),
    .infer = pop_infer,
    .takes_none = true,
    .flops = pop_flops,
    .cpu.forward = pop_forward,
    .cpu.backward = pop_backward,
    .cuda = GPP__IF_CUDA(&gpp__cuda_combine),
};
