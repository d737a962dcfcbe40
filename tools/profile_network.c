/*
 * tools/profile_network.c: gridpipe profile --network: what ranks run on, and the links between
 * them.
 */
#include "tools/profile.h"

static void print_text(const gpp_cluster *c)
{
    char bytes[TOOL_AMOUNT], us[TOOL_AMOUNT], speed[TOOL_AMOUNT];
    printf("%4s  %-20s %5s %12s\n", "rank", "device", "cores", "memory");
    for (int d = 0; d < c->devices; d++) {
        const gpp_cluster_device *v = &c->device[d];
        printf("%4d  %-20s %5d %12s\n", v->node, v->name, v->cores,
               v->memory ? tool_bytes_text(bytes, v->memory) : "unknown");
    }
    printf("\n%4s %4s %12s %12s\n", "from", "to", "latency us", "MB/s");
    for (int a = 0; a < c->nodes; a++)
        for (int b = a + 1; b < c->nodes; b++) {
            const gpp_cluster_link *l = &c->link[a * c->nodes + b];
            printf("%4d %4d %12s %12s\n", a, b, tool_time_text(us, l->latency_us),
                   tool_time_text(speed, l->bytes_per_us));
        }
}

static void print_json(const gpp_cluster *c)
{
    tool_json json = {stdout, false}, *j = &json;
    tool_json_open(j, NULL, '{');
    tool_json_whole(j, "nodes", c->nodes);
    tool_json_open(j, "devices", '[');
    for (int d = 0; d < c->devices; d++) {
        const gpp_cluster_device *v = &c->device[d];
        tool_json_open(j, NULL, '{');
        tool_json_whole(j, "node", v->node);
        tool_json_text(j, "name", v->name);
        tool_json_whole(j, "cores", v->cores);
        tool_json_whole(j, "memory", (int64_t)v->memory);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
    tool_json_open(j, "links", '[');
    for (int k = 0; k < c->nodes * c->nodes; k++) {
        if (k / c->nodes == k % c->nodes)
            continue;
        tool_json_open(j, NULL, '{');
        tool_json_whole(j, "from", k / c->nodes);
        tool_json_whole(j, "to", k % c->nodes);
        tool_json_real(j, "latency_us", c->link[k].latency_us);
        tool_json_real(j, "bytes_per_us", c->link[k].bytes_per_us);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
    tool_json_close(j, '}');
    putchar('\n');
}

int profile_network(const char *save, double timeout_ms, bool json)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_cluster *c;
    if (tool_ranks() == 1)
        return tool_fail(TOOL_USAGE, "--network is for several ranks: mpirun -n 2 gridpipe "
                                     "profile --network");
    if (gpp_cluster_measure(&c, tool_comm(), timeout_ms, &err) != GPP_OK)
        return tool_error(&err);
    gpp_status status = GPP_OK;
    if (save && tool_rank() == 0)
        status = gpp_cluster_write(c, save, &err);
    if (status == GPP_OK)
        (json ? print_json : print_text)(c);
    gpp_cluster_free(c);
    return status == GPP_OK ? tool_flushed(TOOL_DONE) : tool_error(&err);
}
