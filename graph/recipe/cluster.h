/*
 * graph/recipe/cluster.h: a described cluster (gpp_cluster): checked, and as text.
 */
#ifndef GPP_RECIPE_CLUSTER_H
#define GPP_RECIPE_CLUSTER_H

#include <stdio.h>

#include <gridpipe/plan.h>

#include "base/status.h"

/** Whether everything in it is in range. @return GPP_OK or GPP_EINVAL */
gpp_status gpp__cluster_check(const gpp_cluster *cluster, gpp_error *err);
/** Read the text of a file. @param path  for messages */
gpp_status gpp__cluster_parse(gpp_cluster **cluster, const char *path, const char *text,
                              size_t size, gpp_error *err);
void gpp__cluster_print(const gpp_cluster *cluster, FILE *out);
/** The device of this name on a node, -1: there is none. "cpu" is the first one with cores. */
int gpp__cluster_find(const gpp_cluster *cluster, int node, const char *name);

/** The link from one node to another, or of one node. */
static inline gpp_cluster_link gpp__cluster_link(const gpp_cluster *c, int from, int to)
{
    return c->link[(size_t)from * (size_t)c->nodes + (size_t)to];
}
/** Milliseconds of one transfer. */
static inline double gpp__cluster_link_ms(const gpp_cluster *c, int from, int to, size_t bytes)
{
    gpp_cluster_link l = gpp__cluster_link(c, from, to);
    return (l.latency_us + (double)bytes / l.bytes_per_us) / 1000;
}

#endif
