/*
 * codelets/program/times.c: see times.h.
 *
 * Times add up: operators of a program run one after the other on all cores of its device. Where
 * nothing is kept, an operator that saves something for its backward does not, hence two times of a
 * forward. A view costs nothing forwards; backwards it may add gradients up.
 */
#include "codelets/program/times.h"

#include "codelets/program/internal.h"

bool gpp__program_runs(const gpp__program *p, gpp__pass pass, int k)
{
    const gpp__list *list = &p->list[pass];
    bool runs = false;
    for (int q = 0; q < list->actions && !runs; q++)
        runs = list->action[q].verb == GPP__ACT_FORWARD && list->action[q].k == k + 1;
    return runs;
}

/* What part of an operator's backward makes gradients of parameters. Matrix products for these and
 * for the gradient of the input are of the same size. */
static double weight_share(const gpp__program *p, const gpp__instruction *op)
{
    bool wanted = false;
    for (int t = 0; t < op->layer->in_count; t++)
        wanted |= p->local[op->in[t]].grad;
    return !op->trains ? 0 : wanted ? 0.5 : 1;
}

static double action_us(const gpp__program *p, const gpp__action *a, const gpp_operator_profile *op)
{
    if (a->verb == GPP__ACT_FORWARD)
        return a->keeps ? op->keep_us : op->forward_us;
    if (a->verb != GPP__ACT_BACKWARD && a->verb != GPP__ACT_SUM)
        return 0;
    double share = weight_share(p, &p->instruction[a->k]);
    return op->backward_us * ((a->inputs ? 1 - share : 0) + (a->params ? share : 0));
}

double gpp__program_us(const gpp__program *p, gpp__pass pass, const gpp_operator_profile op[])
{
    const gpp__list *list = &p->list[pass];
    double us = 0;
    for (int q = 0; q < list->actions; q++)
        if (list->action[q].k)
            us += action_us(p, &list->action[q], &op[p->stage->first + list->action[q].k - 1]);
    return us;
}

/* --- ports ------------------------------------------------------------------------------------ */

/* All of them, and once more those that are written by copy. */
static size_t forward_bytes(const gpp__program *p, gpp__pass pass)
{
    size_t bytes = 0;
    for (int k = 0; k < p->stage->ins + p->stage->outs; k++)
        bytes += p->port[k].bytes;
    for (int q = 0; q < p->list[pass].actions; q++) {
        const gpp__action *a = &p->list[pass].action[q];
        bytes += a->verb == GPP__ACT_COPY ? p->info.out[a->at[1].port].bytes : 0;
    }
    return bytes;
}

/* A recomputation leaves out-ports alone, but for what the backward finds there. A backward also
 * reads gradients of what went out, and writes those of what came in. */
static size_t bytes_of(const gpp__program *p, gpp__pass pass)
{
    size_t bytes = 0;
    if (pass < GPP__PASS_RECOMPUTE)
        return forward_bytes(p, pass);
    for (int k = 0; k < p->stage->ins + p->stage->outs; k++) {
        const gpp__port *port = &p->port[k];
        if (pass == GPP__PASS_RECOMPUTE)
            bytes += port->recompute_reads ? port->bytes : 0;
        else if (pass == GPP__PASS_BACKWARD)
            bytes += port->bytes * ((size_t)port->backward_reads + port->grad);
    }
    return bytes;
}

/* Each byte is moved twice: out of the cache of the one who writes it, into that of the one who
 * reads it; or, to be written, in and out of one's own. */
double gpp__program_ports_us(const gpp__program *p, gpp__pass pass, double bytes_per_us)
{
    return p->empty || bytes_per_us <= 0 ? 0 : 2 * (double)bytes_of(p, pass) / bytes_per_us;
}
