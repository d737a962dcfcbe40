/*
 * graph/recipe/cluster.c: see cluster.h and, for the text, gpp_cluster_read.
 */
#include "graph/recipe/cluster.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 1024, MOST_DEVICES = 4096, MOST_CORES = 4096, MOST_GPUS = 64 };
#define MOST_NUMBER ((uint64_t)1 << 53)

static const char heading[] = "gridpipe-cluster 1";

/* --- checking --------------------------------------------------------------------------------- */

static bool is_gpu(const char *name)
{
    size_t digits = strspn(name + (strncmp(name, "cuda:", 5) ? 0 : 5), "0123456789");
    return !strncmp(name, "cuda:", 5) && digits >= 1 && digits <= 2 && !name[5 + digits] &&
           atoi(name + 5) < MOST_GPUS;
}

/* "cpu:" and what sched/devices.c reads behind it, or a GPU. */
static bool is_name(const char *name, bool gpu)
{
    if (gpu)
        return is_gpu(name);
    return !strncmp(name, "cpu:", 4) && name[4] && !name[4 + strspn(name + 4, "0123456789-,")];
}

static gpp_status check_device(const gpp_cluster *c, int d, gpp_error *err)
{
    const gpp_cluster_device *v = &c->device[d];
    int before = d ? v[-1].node : -1;
    if (v->node < 0 || v->node >= c->nodes || (v->node != before && v->node != before + 1))
        return gpp__fail(err, GPP_EINVAL,
                         "device %d of the cluster is on node %d, expected %d or the next of %d", d,
                         v->node, before < 0 ? 0 : before, c->nodes);
    if (!memchr(v->name, 0, sizeof v->name) || v->cores < 0 || v->cores > MOST_CORES ||
        !is_name(v->name, v->cores == 0))
        return gpp__fail(err, GPP_EINVAL,
                         "device %d of the cluster is \"%.*s\" with %d cores, expected \"cpu:A-B\" "
                         "with 1 ... %d or \"cuda:K\", K < %d, with 0",
                         d, (int)sizeof v->name, v->name, v->cores, MOST_CORES, MOST_GPUS);
    if (!(v->speed > 0) || !isfinite(v->speed))
        return gpp__fail(err, GPP_EINVAL, "device %d of the cluster has speed %g, expected > 0", d,
                         v->speed);
    for (int k = d - 1; k >= 0 && c->device[k].node == v->node; k--)
        if (!strcmp(c->device[k].name, v->name))
            return gpp__fail(err, GPP_EINVAL, "node %d of the cluster has two devices %s", v->node,
                             v->name);
    return GPP_OK;
}

static gpp_status check_links(const gpp_cluster *c, gpp_error *err)
{
    for (int from = 0; from < c->nodes; from++)
        for (int to = 0; to < c->nodes; to++) {
            gpp_cluster_link l = gpp__cluster_link(c, from, to);
            if (!(l.latency_us >= 0) || !isfinite(l.latency_us) || !(l.bytes_per_us > 0))
                return gpp__fail(err, GPP_EINVAL,
                                 "the link from node %d to node %d has %g us and %g bytes/us, "
                                 "expected at least 0, finite, and more than 0",
                                 from, to, l.latency_us, l.bytes_per_us);
        }
    return GPP_OK;
}

gpp_status gpp__cluster_check(const gpp_cluster *c, gpp_error *err)
{
    if (c->nodes < 1 || c->nodes > MOST_NODES || c->devices < 1 || c->devices > MOST_DEVICES ||
        !c->device || !c->link)
        return gpp__fail(err, GPP_EINVAL,
                         "a cluster of %d nodes and %d devices, expected 1 ... %d and 1 ... %d",
                         c->nodes, c->devices, MOST_NODES, MOST_DEVICES);
    gpp_status status = GPP_OK;
    for (int d = 0; status == GPP_OK && d < c->devices; d++)
        status = check_device(c, d, err);
    if (status == GPP_OK && c->device[c->devices - 1].node != c->nodes - 1)
        return gpp__fail(err, GPP_EINVAL, "node %d of the cluster has no device", c->nodes - 1);
    return status == GPP_OK ? check_links(c, err) : status;
}

int gpp__cluster_find(const gpp_cluster *c, int node, const char *name)
{
    for (int d = 0; d < c->devices; d++) {
        const gpp_cluster_device *v = &c->device[d];
        if (v->node == node && (!strcmp(v->name, name) || (v->cores && !strcmp(name, "cpu"))))
            return d;
    }
    return -1;
}

/* --- writing ---------------------------------------------------------------------------------- */

static long long whole(double number, long long least)
{
    double most = (double)MOST_NUMBER;
    long long value = number < most ? llround(number) : (long long)most;
    return value > least ? value : least;
}

static int first_of(const gpp_cluster *c, int node)
{
    int d = 0;
    while (d < c->devices && c->device[d].node < node)
        d++;
    return d;
}

static bool same_device(const gpp_cluster_device *a, const gpp_cluster_device *b)
{
    return !strcmp(a->name, b->name) && a->cores == b->cores && a->memory == b->memory &&
           whole(100 * a->speed, 1) == whole(100 * b->speed, 1);
}

static bool same_devices(const gpp_cluster *c, int a, int b)
{
    int x = first_of(c, a), y = first_of(c, b), count = first_of(c, a + 1) - x;
    bool same = count == first_of(c, b + 1) - y;
    for (int k = 0; same && k < count; k++)
        same = same_device(&c->device[x + k], &c->device[y + k]);
    return same;
}

/* Nodes in a row with the same devices have one list. */
static void print_devices(const gpp_cluster *c, FILE *out)
{
    for (int node = 0, last; node < c->nodes; node = last + 1) {
        last = node;
        while (last + 1 < c->nodes && same_devices(c, node, last + 1))
            last++;
        for (int d = first_of(c, node); d < c->devices && c->device[d].node == node; d++) {
            const gpp_cluster_device *v = &c->device[d];
            fprintf(out, "device %d-%d %s %d %lld %zu\n", node, last, v->name, v->cores,
                    whole(100 * v->speed, 1), v->memory);
        }
    }
}

static bool same_link(gpp_cluster_link a, gpp_cluster_link b)
{
    return whole(1e3 * a.latency_us, 0) == whole(1e3 * b.latency_us, 0) &&
           whole(a.bytes_per_us, 1) == whole(b.bytes_per_us, 1);
}

static void print_numbers(gpp_cluster_link l, FILE *out)
{
    fprintf(out, " %lld %lld\n", whole(1e3 * l.latency_us, 0), whole(l.bytes_per_us, 1));
}

/* The first link of a kind is written for all of them, then those that differ from it. */
static void print_links(const gpp_cluster *c, FILE *out)
{
    fprintf(out, "inside 0-%d", c->nodes - 1);
    print_numbers(c->link[0], out);
    for (int k = 1; k < c->nodes; k++)
        if (!same_link(gpp__cluster_link(c, k, k), c->link[0])) {
            fprintf(out, "inside %d", k);
            print_numbers(gpp__cluster_link(c, k, k), out);
        }
    if (c->nodes == 1)
        return;
    fprintf(out, "link 0-%d 0-%d", c->nodes - 1, c->nodes - 1);
    print_numbers(c->link[1], out);
    for (int from = 0; from < c->nodes; from++)
        for (int to = 0; to < c->nodes; to++)
            if (from != to && !same_link(gpp__cluster_link(c, from, to), c->link[1])) {
                fprintf(out, "link %d %d", from, to);
                print_numbers(gpp__cluster_link(c, from, to), out);
            }
}

void gpp__cluster_print(const gpp_cluster *c, FILE *out)
{
    fprintf(out, "%s\nnodes %d\n", heading, c->nodes);
    fprintf(out, "# nodes, name, cores (0: a GPU), speed in percent, bytes (0: unknown)\n");
    print_devices(c, out);
    fprintf(out, "# nodes (from, to), latency in ns, bytes per microsecond\n");
    print_links(c, out);
}

gpp_status gpp_cluster_write(const gpp_cluster *cluster, const char *path, gpp_error *err)
{
    if (!cluster || !path)
        return gpp__fail(err, GPP_EINVAL, "%s is NULL", cluster ? "path" : "cluster");
    gpp_status status = gpp__cluster_check(cluster, err);
    if (status != GPP_OK)
        return status;
    FILE *out = fopen(path, "w");
    if (!out)
        return gpp__fail(err, GPP_EIO, "%.200s: cannot be written: %s", path, strerror(errno));
    gpp__cluster_print(cluster, out);
    bool failed = ferror(out);
    failed |= fclose(out) != 0;
    return failed ? gpp__fail(err, GPP_EIO, "%.200s: cannot be written: %s", path, strerror(errno))
                  : GPP_OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path, *text, *end;
    const char *line, *at, *stop; /* the present line, what is not read of it, its end */
    int number;                   /* of the present line, from 1 */
    int room;                     /* for devices */
    gpp_cluster *cluster;
    gpp_error *err;
} reader;

static gpp_status refuse(const reader *r, const char *expected)
{
    int length = r->stop - r->at < 40 ? (int)(r->stop - r->at) : 40;
    return gpp__fail(r->err, GPP_ESYNTAX, "%.120s: line %d, column %d: expected %s, found \"%.*s\"",
                     r->path, r->number, (int)(r->at - r->line) + 1, expected, length, r->at);
}

/* Go to the next line that is no comment. @param more  out: there is one */
static gpp_status next_line(reader *r, bool *more)
{
    do {
        r->line = r->at = r->text;
        *more = r->text < r->end;
        if (!*more)
            return GPP_OK;
        r->number++;
        r->stop = memchr(r->text, '\n', (size_t)(r->end - r->text));
        if (!r->stop || memchr(r->line, 0, (size_t)(r->stop - r->line)))
            return gpp__fail(r->err, GPP_ESYNTAX, "%.120s: line %d does not end as a line of text",
                             r->path, r->number);
        r->text = r->stop + 1;
    } while (*r->line == '#');
    return GPP_OK;
}

static bool take_text(reader *r, const char *text)
{
    size_t length = strlen(text);
    bool there = (size_t)(r->stop - r->at) >= length && !memcmp(r->at, text, length);
    r->at += there ? length : 0;
    return there;
}

static gpp_status take_number(reader *r, uint64_t least, uint64_t most, uint64_t *number)
{
    uint64_t value = 0;
    const char *at = r->at;
    bool fits = true;
    for (; at < r->stop && isdigit((unsigned char)*at); at++)
        fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(*at - '0'), &value);
    if (at == r->at || !fits || value < least || value > most) {
        char expected[64];
        snprintf(expected, sizeof expected, "a whole number from %llu to %llu",
                 (unsigned long long)least, (unsigned long long)most);
        return refuse(r, expected);
    }
    r->at = at;
    *number = value;
    return GPP_OK;
}

/* A field behind a space. */
static gpp_status take_field(reader *r, uint64_t least, uint64_t most, uint64_t *number)
{
    return take_text(r, " ") ? take_number(r, least, most, number) : refuse(r, "a space");
}

static gpp_status take_end(reader *r)
{
    return r->at < r->stop ? refuse(r, "the end of the line") : GPP_OK;
}

/* "5" or "0-63" behind a space. */
static gpp_status take_nodes(reader *r, int *first, int *last)
{
    uint64_t a, b, most = (uint64_t)r->cluster->nodes - 1;
    gpp_status status = take_field(r, 0, most, &a);
    b = a;
    if (status == GPP_OK && take_text(r, "-"))
        status = take_number(r, a, most, &b);
    *first = (int)a;
    *last = (int)b;
    return status;
}

static gpp_status take_name(reader *r, char name[32])
{
    const char *at = r->at + (r->at < r->stop), *end = at;
    while (end < r->stop && *end != ' ')
        end++;
    size_t length = (size_t)(end - at);
    if (!take_text(r, " "))
        return refuse(r, "a space");
    if (length < 32) {
        memcpy(name, at, length);
        name[length] = 0;
    }
    if (length >= 32 || (!is_name(name, false) && !is_name(name, true)))
        return refuse(r, "\"cpu:A-B\" or \"cuda:K\", K < 64");
    r->at = end;
    return GPP_OK;
}

static gpp_status add_device(reader *r, const gpp_cluster_device *device)
{
    gpp_cluster *c = r->cluster;
    if (c->devices == MOST_DEVICES)
        return gpp__fail(r->err, GPP_ESYNTAX, "%.120s: line %d: more than %d devices", r->path,
                         r->number, MOST_DEVICES);
    if (c->devices == r->room) {
        int room = 2 * r->room + 16;
        gpp_cluster_device *grown = realloc(c->device, (size_t)room * sizeof *grown);
        if (!grown)
            return gpp__fail(r->err, GPP_ENOMEM, "%d devices of a cluster", room);
        c->device = grown;
        r->room = room;
    }
    c->device[c->devices++] = *device;
    return GPP_OK;
}

static gpp_status read_device(reader *r)
{
    int first, last;
    gpp_cluster_device v = {.node = 0};
    uint64_t cores = 0, percent = 100, memory = 0;
    gpp_status status = take_nodes(r, &first, &last);
    if (status == GPP_OK)
        status = take_name(r, v.name);
    bool gpu = status == GPP_OK && is_gpu(v.name);
    if (status == GPP_OK)
        status = take_field(r, gpu ? 0 : 1, gpu ? 0 : MOST_CORES, &cores);
    if (status == GPP_OK)
        status = take_field(r, 1, MOST_NUMBER, &percent);
    if (status == GPP_OK)
        status = take_field(r, 0, SIZE_MAX, &memory);
    if (status == GPP_OK)
        status = take_end(r);
    v.cores = (int)cores;
    v.speed = (double)percent / 100;
    v.memory = (size_t)memory;
    for (v.node = first; status == GPP_OK && v.node <= last; v.node++)
        status = add_device(r, &v);
    return status;
}

static gpp_status take_link(reader *r, gpp_cluster_link *link)
{
    uint64_t ns = 0, speed = 1;
    gpp_status status = take_field(r, 0, MOST_NUMBER, &ns);
    if (status == GPP_OK)
        status = take_field(r, 1, MOST_NUMBER, &speed);
    *link = (gpp_cluster_link){(double)ns / 1e3, (double)speed};
    return status == GPP_OK ? take_end(r) : status;
}

static gpp_status read_inside(reader *r)
{
    int first, last;
    gpp_cluster_link link;
    gpp_status status = take_nodes(r, &first, &last);
    if (status == GPP_OK)
        status = take_link(r, &link);
    for (int k = first; status == GPP_OK && k <= last; k++)
        r->cluster->link[(size_t)k * (size_t)r->cluster->nodes + (size_t)k] = link;
    return status;
}

static gpp_status read_link(reader *r)
{
    int from, from_last, to, to_last, nodes = r->cluster->nodes;
    gpp_cluster_link link;
    gpp_status status = take_nodes(r, &from, &from_last);
    if (status == GPP_OK)
        status = take_nodes(r, &to, &to_last);
    if (status == GPP_OK && from == from_last && from == to && to == to_last)
        return refuse(r, "another node than the first one");
    if (status == GPP_OK)
        status = take_link(r, &link);
    for (int a = from; status == GPP_OK && a <= from_last; a++)
        for (int b = to; b <= to_last; b++)
            if (a != b)
                r->cluster->link[(size_t)a * (size_t)nodes + (size_t)b] = link;
    return status;
}

static gpp_status read_line(reader *r)
{
    if (take_text(r, "device"))
        return read_device(r);
    if (take_text(r, "inside"))
        return read_inside(r);
    return take_text(r, "link") ? read_link(r)
                                : refuse(r, "\"device\", \"inside\", \"link\" or '#'");
}

static gpp_status read_head(reader *r)
{
    bool more;
    uint64_t nodes = 0;
    gpp_status status = next_line(r, &more);
    if (status == GPP_OK && (!more || !take_text(r, heading)))
        return more ? refuse(r, "\"gridpipe-cluster 1\"")
                    : gpp__fail(r->err, GPP_ESYNTAX, "%.120s: expected \"%s\", the file is empty",
                                r->path, heading);
    if (status == GPP_OK)
        status = take_end(r);
    if (status == GPP_OK)
        status = next_line(r, &more);
    if (status == GPP_OK && (!more || !take_text(r, "nodes")))
        return more ? refuse(r, "\"nodes\"")
                    : gpp__fail(r->err, GPP_ESYNTAX, "%.120s: expected \"nodes\", the file ends",
                                r->path);
    if (status == GPP_OK)
        status = take_field(r, 1, MOST_NODES, &nodes);
    if (status == GPP_OK)
        status = take_end(r);
    r->cluster->nodes = (int)nodes;
    return status;
}

/* Devices by ascending node, those of a node in the order of their lines. */
static gpp_status sort_devices(reader *r)
{
    gpp_cluster *c = r->cluster;
    gpp_cluster_device *sorted = calloc((size_t)c->devices + 1, sizeof *sorted);
    if (!sorted)
        return gpp__fail(r->err, GPP_ENOMEM, "%d devices of a cluster", c->devices);
    for (int node = 0, count = 0; node < c->nodes; node++)
        for (int d = 0; d < c->devices; d++)
            if (c->device[d].node == node)
                sorted[count++] = c->device[d];
    free(c->device);
    c->device = sorted;
    return GPP_OK;
}

/* What no line alone can tell: devices of all nodes, links of all pairs. Bytes per microsecond of a
 * pair without a line are 0. */
static gpp_status check_all(reader *r)
{
    gpp_error own = GPP_ERROR_INIT;
    gpp_cluster *c = r->cluster;
    for (int from = 0; from < c->nodes; from++)
        for (int to = 0; to < c->nodes; to++)
            if (gpp__cluster_link(c, from, to).bytes_per_us <= 0)
                return gpp__fail(r->err, GPP_ESYNTAX,
                                 "%.120s: no line \"%s\" says how node %d sends to node %d",
                                 r->path, from == to ? "inside" : "link", from, to);
    for (int d = 0, node = 0; node < c->nodes; node++) {
        if (d == c->devices || c->device[d].node != node)
            return gpp__fail(r->err, GPP_ESYNTAX, "%.120s: node %d has no device", r->path, node);
        while (d < c->devices && c->device[d].node == node)
            d++;
    }
    return gpp__cluster_check(c, &own) == GPP_OK
               ? GPP_OK
               : gpp__fail(r->err, GPP_ESYNTAX, "%.120s: %.120s", r->path, own.msg);
}

static gpp_status read_all(reader *r)
{
    bool more = true;
    gpp_status status = read_head(r);
    if (status != GPP_OK)
        return status;
    size_t nodes = (size_t)r->cluster->nodes;
    r->cluster->link = calloc(nodes * nodes, sizeof *r->cluster->link);
    if (!r->cluster->link)
        return gpp__fail(r->err, GPP_ENOMEM, "links of %zu nodes", nodes);
    while (more) {
        status = next_line(r, &more);
        if (status == GPP_OK && more)
            status = read_line(r);
        if (status != GPP_OK)
            return status;
    }
    status = sort_devices(r);
    return status == GPP_OK ? check_all(r) : status;
}

gpp_status gpp__cluster_parse(gpp_cluster **cluster, const char *path, const char *text,
                              size_t size, gpp_error *err)
{
    reader r = {.path = path, .text = text, .end = text + size, .err = err};
    *cluster = NULL;
    r.cluster = calloc(1, sizeof *r.cluster);
    if (!r.cluster)
        return gpp__fail(err, GPP_ENOMEM, "a cluster from %.200s", path);
    gpp_status status = read_all(&r);
    if (status == GPP_OK)
        *cluster = r.cluster;
    else
        gpp_cluster_free(r.cluster);
    return status;
}

static char *read_text(FILE *in, size_t *size)
{
    char *text = NULL;
    size_t room = 0;
    *size = 0;
    do {
        if (*size == room) {
            char *grown = realloc(text, room = 2 * room + 4096);
            if (!grown) {
                free(text);
                return NULL;
            }
            text = grown;
        }
        *size += fread(text + *size, 1, room - *size, in);
    } while (!feof(in) && !ferror(in));
    return text;
}

gpp_status gpp_cluster_read(gpp_cluster **cluster, const char *path, gpp_error *err)
{
    if (!cluster)
        return gpp__fail(err, GPP_EINVAL, "cluster is NULL");
    *cluster = NULL;
    if (!path)
        return gpp__fail(err, GPP_EINVAL, "path is NULL");
    FILE *in = fopen(path, "r");
    if (!in)
        return gpp__fail(err, GPP_EIO, "%.200s: cannot be read: %s", path, strerror(errno));
    size_t size;
    char *text = read_text(in, &size);
    gpp_status status = GPP_OK;
    if (!text)
        status = gpp__fail(err, GPP_ENOMEM, "the text of %.200s", path);
    else if (ferror(in))
        status = gpp__fail(err, GPP_EIO, "%.200s: cannot be read: %s", path, strerror(errno));
    if (status == GPP_OK)
        status = gpp__cluster_parse(cluster, path, text, size, err);
    free(text);
    fclose(in);
    return status;
}

void gpp_cluster_free(gpp_cluster *cluster)
{
    if (!cluster)
        return;
    free(cluster->device);
    free(cluster->link);
    free(cluster);
}
