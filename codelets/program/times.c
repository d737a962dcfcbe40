/*
 * codelets/program/times.c: see program_times.h.
 *
 * Times add up: operators of a program run one after the other on all cores of its device. Where
 * nothing is kept, an operator that saves something for its backward does not, hence two times of a
 * forward. A view costs nothing forwards; backwards it may add gradients up.
 */
#include "codelets/program/times.h"

#include "codelets/program/internal.h"

bool gpp__program_runs(const gpp__program *p, gpp__pass pass, int k)
{
    return !p->empty && p->way[pass].runs[k + 1];
}

/* A script's calls from `first` to before `end`. */
static double script_us(const gpp__program *p, int first, int end, const gpp_operator_profile op[])
{
    double us = 0;
    for (int q = first; q < end && !p->empty; q++) {
        const gpp__action *c = &p->phase->call[q];
        const gpp_operator_profile *o = &op[p->stage->first + c->step - 1];
        if (!c->back)
            us += c->keeps ? o->keep_us : o->forward_us;
        else if (p->step[c->step].active)
            us += o->backward_us;
    }
    return us;
}

double gpp__program_us(const gpp__program *p, gpp__pass pass, const gpp_operator_profile op[])
{
    bool tape = pass == GPP__PASS_KEEP || pass == GPP__PASS_RECOMPUTE;
    double us = 0;
    if (pass == GPP__PASS_RECOMPUTE && p->phase)
        return script_us(p, 0, p->phase->split, op);
    for (int k = 0; k < p->steps; k++) {
        const gpp_operator_profile *o = &op[p->stage->first + k];
        bool part = pass == GPP__PASS_DROP && p->phase &&
                    p->phase->kept_saved[k + 1].block != GPP__AT_NOWHERE;
        if (gpp__program_runs(p, pass, k))
            us += tape || part ? o->keep_us : o->forward_us;
    }
    return us;
}

/* What part of a step's backward makes gradients of parameters. Matrix products for these and for
 * the gradient of the input are of the same size. */
static double weight_share(const gpp__program *p, int k)
{
    const gpp__step *s = &p->step[k + 1];
    bool wanted = false;
    for (int t = 0; t < s->layer->in_count; t++)
        wanted |= p->local[s->in[t]].grad;
    return !s->trains ? 0 : wanted ? 0.5 : 1;
}

double gpp__program_backward_us(const gpp__program *p, const gpp_operator_profile op[])
{
    double us = 0;
    if (p->phase)
        return script_us(p, p->phase->split, p->phase->calls, op);
    for (int k = 0; k < p->steps && !p->empty; k++)
        if (p->step[k + 1].active)
            us += op[p->stage->first + k].backward_us * (p->held ? 1 - weight_share(p, k) : 1);
    return us;
}

double gpp__program_weight_us(const gpp__program *p, const gpp_operator_profile op[])
{
    double us = 0;
    for (int k = 0; k < p->steps && !p->empty && p->held; k++)
        if (p->step[k + 1].active)
            us += op[p->stage->first + k].backward_us * weight_share(p, k);
    return us;
}
