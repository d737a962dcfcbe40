/*
 * codelets/ops/pad.cu: an image with a border, on CUDA. Every element of the output is written
 * once, from the input or with the value. The backward copies the inner part. Memory limits both.
 */
#include "codelets/ops/pad.h"

#include "codelets/cuda/cuda.h"
#include "codelets/op.h"

extern "C" {
extern const gpp__kernels gpp__cuda_pad;
}

static gpp_status pad_forward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    const gpp__pad_attr *attr = (const gpp__pad_attr *)kernel->layer->attr;
    gpp__overlay o = {{gpp__pad_box(kernel)}, {io->in[0]}, 1, false, (float)attr->value};
    gpp__cuda_overlay(run->cuda, &o, io->out[0]);
    return gpp__cuda_launched(kernel->layer, run->err);
}

static gpp_status pad_backward(const gpp__kernel *kernel, const gpp__run *run, const gpp__io *io)
{
    gpp__box box = gpp__pad_box(kernel);
    if (io->grad_in[0])
        gpp__cuda_box_get(run->cuda, &box, io->grad_out[0], io->grad_in[0]);
    return gpp__cuda_launched(kernel->layer, run->err);
}

const gpp__kernels gpp__cuda_pad = {.forward = pad_forward, .backward = pad_backward};
