/* graph/plan/fetches.c: see fetches.h. */
#include "graph/plan/fetches.h"

enum { HOST_NODE = 0 }; /* memory node of the caller's memory */

/* The device does not reach the caller's memory. */
static bool has_to_fetch(const gpp__recipe *r, const int node_of[], int j)
{
    int d = r->device_of[j];
    return gpp__recipe_on_gpu(r, d) && node_of[d] != HOST_NODE;
}

const gpp__value *gpp__model_input(const gpp__recipe *r, int j, int k)
{
    const gpp__value *v = &r->network->value[r->stage[j].in[k]];
    return v->producer == GPP__CALLER ? v : NULL;
}

int gpp__fetches_most(const gpp__recipe *r)
{
    return r->replicas * (r->network->inputs + GPP__END_GRAD + r->network->outputs);
}

static size_t bytes_of(const gpp__desc *d, const gpp__desc *rows_of, const gpp__program_set *set)
{
    size_t bytes = (size_t)gpp__desc_rows(rows_of, set->rows.rows) * gpp__desc_bytes(d);
    return bytes ? bytes : 1; /* a buffer has at least a byte */
}

static size_t most_bytes(const gpp__desc *d, const gpp__desc *rows_of, const gpp__program_set *full,
                         const gpp__program_set *last)
{
    size_t a = bytes_of(d, rows_of, full), b = bytes_of(d, rows_of, last);
    return a > b ? a : b;
}

/* The fetches of a replica's losses and seeds: targets, class weights, gradients of outputs. */
static int find_ends(const gpp__recipe *r, int replica, const gpp__program_set *full,
                     const gpp__program_set *last, gpp__fetch fetch[])
{
    int count = 0, to = r->partitions + replica;
    if (r->loss)
        fetch[count++] = (gpp__fetch){.to = to,
                                      .in_port = GPP__END_TARGET,
                                      .bytes = most_bytes(&r->target_desc, &r->y_desc, full, last)};
    if (r->class_weight)
        fetch[count++] = (gpp__fetch){.to = to,
                                      .in_port = GPP__END_WEIGHTS,
                                      .bytes = (size_t)r->class_weights * sizeof(float),
                                      .whole = true};
    for (int k = 0; k < r->network->outputs; k++) {
        const gpp__desc *d = &r->network->value[r->network->output[k]].desc;
        fetch[count++] = (gpp__fetch){
            .to = to, .in_port = GPP__END_GRAD + k, .bytes = most_bytes(d, d, full, last)};
    }
    return count;
}

int gpp__fetches_find(const gpp__recipe *r, const int node_of[], const gpp__program_set *full,
                      const gpp__program_set *last, gpp__fetch fetch[])
{
    int count = 0;
    for (int j = 0; j < r->partitions; j++) {
        const gpp__port *port = gpp__set_in(r, full, j);
        for (int k = 0; has_to_fetch(r, node_of, j) && k < r->stage[j].ins; k++) {
            const gpp__value *v = gpp__model_input(r, j, k);
            if (v)
                fetch[count++] = (gpp__fetch){.to = j,
                                              .in_port = k,
                                              .bytes = most_bytes(&v->desc, &v->desc, full, last),
                                              .whole = v->desc.batch == GPP_ROWS_FIXED,
                                              .backward_reads = port[k].backward_reads,
                                              .recompute_reads = port[k].recompute_reads};
        }
    }
    for (int k = 0; k < r->replicas; k++)
        if (has_to_fetch(r, node_of, gpp__recipe_end(r, k)))
            count += find_ends(r, k, full, last, fetch + count);
    return count;
}
