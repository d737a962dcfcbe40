/* codelets/program/ports.c: see program_ports.h. */
#include "codelets/program/ports.h"

#include "codelets/program/internal.h"

/* Each byte is moved twice: out of the cache of the one who writes it, into that of the one who
 * reads it; or, to be written, in and out of one's own. */
static double moving_us(size_t bytes, double bytes_per_us)
{
    return bytes_per_us > 0 ? 2 * (double)bytes / bytes_per_us : 0;
}

static size_t forward_bytes(const gpp__program *p, gpp__pass pass)
{
    size_t bytes = 0;
    for (int k = 0; k < p->stage->ins; k++)
        bytes += p->info.in[k].bytes;
    for (int k = 0; k < p->stage->outs; k++)
        bytes += p->info.out[k].bytes;
    for (int v = 0; v < p->locals; v++)
        bytes += p->way[pass].copies[v] ? p->local[v].bytes : 0;
    return bytes;
}

/* It leaves out-ports alone, and reads what a backward would find there. */
static size_t recompute_bytes(const gpp__program *p)
{
    size_t bytes = 0;
    for (int k = 0; k < p->stage->ins; k++)
        bytes += p->info.in[k].recompute_reads ? p->info.in[k].bytes : 0;
    for (int k = 0; k < p->stage->outs; k++)
        bytes += p->info.out[k].recompute_reads ? p->info.out[k].bytes : 0;
    return bytes;
}

double gpp__program_ports_us(const gpp__program *p, gpp__pass pass, double bytes_per_us)
{
    if (p->empty)
        return 0;
    return moving_us(pass == GPP__PASS_RECOMPUTE ? recompute_bytes(p) : forward_bytes(p, pass),
                     bytes_per_us);
}

/* Activations that it reads, gradients of what went out, and of what came in. */
double gpp__program_backward_ports_us(const gpp__program *p, double bytes_per_us)
{
    size_t bytes = 0;
    for (int k = 0; k < p->stage->ins + p->stage->outs && !p->empty; k++)
        bytes += p->port[k].bytes * ((size_t)p->port[k].backward_reads + p->port[k].grad);
    return moving_us(bytes, bytes_per_us);
}
