/*
 * codelets/ops/activation.c: running a function of one number over tensors.
 */
#include "codelets/ops/activation.h"

typedef struct pass {
    const gpp__activation *f;
    const void *attr;
    const float *a, *grad; /* grad NULL: forward */
    float *to;
    int64_t count;
} pass;

static void run_unit(void *arg, int unit, int thread)
{
    const pass *p = arg;
    int64_t at = unit * GPP__UNIT_FLOATS, count = gpp__min64(p->count - at, GPP__UNIT_FLOATS);
    (void)thread;
    if (p->grad)
        p->f->backward(p->attr, p->a + at, p->grad + at, p->to + at, count);
    else
        p->f->forward(p->attr, p->a + at, p->to + at, count);
}

static gpp_status run_all(pass *p, const gpp__kernel *kernel, gpp__pool *pool)
{
    p->attr = kernel->layer->attr;
    p->count = kernel->rows * gpp__desc_count(&kernel->layer->in[0]);
    gpp__parallel(pool, gpp__units_of(p->count), run_unit, p);
    return GPP_OK;
}

gpp_status gpp__activate(const gpp__activation *f, const gpp__kernel *kernel, const gpp__run *run,
                         const gpp__io *io)
{
    pass p = {.f = f, .a = io->in[0], .to = io->out[0]};
    return run_all(&p, kernel, run->pool);
}

gpp_status gpp__activate_back(const gpp__activation *f, const gpp__kernel *kernel,
                              const gpp__run *run, const gpp__io *io)
{
    bool of_input = kernel->layer->op->backward_needs & GPP_NEEDS_INPUT;
    pass p = {.f = f, .grad = io->grad_out[0], .to = io->grad_in[0]};
    p.a = of_input ? io->in[0] : io->out[0];
    return p.to ? run_all(&p, kernel, run->pool) : GPP_OK;
}
