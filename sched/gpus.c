/*
 * sched/gpus.c: see gpus.h.
 *
 * The distance of two GPUs is that of the deepest object of hwloc's tree which is above both: a
 * bridge below a root complex (a switch), the root complex itself, one NUMA node, one package, the
 * machine. Under a switch or a root complex the bridges between them count as well. So of two
 * switches below a third, the nearer one is preferred.
 *
 * The chain is the shortest Hamiltonian path over any `length` of the GPUs, by dynamic programming
 * over subsets (Held and Karp, 1962): least[S][v] is the least length of a path through all of S
 * that begins at v. Reading it off forwards, smallest number first, gives the lexicographically
 * first of all shortest paths. 2^12 · 12 numbers are 200 KB and a millisecond.
 */
#include "sched/gpus.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SAME_SWITCH = 1, SAME_ROOT = 2, SAME_NUMA = 3, SAME_PACKAGE = 4, SAME_MACHINE = 5 };
enum { STEPS = 64 }; /* more bridges than there are between any two GPUs */
enum { EXACT = 12 }; /* the most things for which all subsets are tried */

void gpp__gpus_release(gpp__gpus *gpus)
{
    for (int k = 0; k < gpus->count; k++)
        hwloc_bitmap_free(gpus->near[k]);
    memset(gpus, 0, sizeof *gpus);
}

/* --- distances -------------------------------------------------------------------------------- */

/* hwloc_get_common_ancestor_obj goes by depth, which I/O objects do not have. */
static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b, int *steps)
{
    *steps = 0;
    for (hwloc_obj_t x = a; x; x = x->parent, ++*steps) {
        int more = 0;
        for (hwloc_obj_t y = b; y; y = y->parent, more++)
            if (x == y) {
                *steps += more;
                return x;
            }
    }
    return NULL;
}

static int level_of(hwloc_obj_t above)
{
    if (!above)
        return SAME_MACHINE;
    if (above->type == HWLOC_OBJ_BRIDGE)
        return above->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? SAME_SWITCH : SAME_ROOT;
    if (above->nodeset && hwloc_bitmap_weight(above->nodeset) == 1)
        return SAME_NUMA;
    for (; above; above = above->parent)
        if (above->type == HWLOC_OBJ_PACKAGE)
            return SAME_PACKAGE;
    return SAME_MACHINE;
}

static int distance(hwloc_obj_t a, hwloc_obj_t b)
{
    int steps;
    if (!a || !b)
        return SAME_MACHINE * STEPS;
    int level = level_of(common_ancestor(a, b, &steps));
    int within = level <= SAME_ROOT ? steps : 0;
    return level * STEPS + (within < STEPS ? within : STEPS - 1);
}

gpp_status gpp__gpus_measure(gpp__gpus *gpus, hwloc_topology_t topology, const gpp__pci pci[],
                             gpp_error *err)
{
    hwloc_obj_t at[GPP__MAX_GPUS];
    for (int k = 0; k < gpus->count; k++) {
        at[k] = hwloc_get_pcidev_by_busid(topology, pci[k].domain, pci[k].bus, pci[k].device, 0);
        hwloc_obj_t core = at[k] ? hwloc_get_non_io_ancestor_obj(topology, at[k]) : NULL;
        hwloc_bitmap_free(gpus->near[k]);
        gpus->near[k] = core ? hwloc_bitmap_dup(core->cpuset) : NULL;
        if (core && !gpus->near[k])
            return gpp__fail(err, GPP_ENOMEM, "the cores near GPU %d", gpus->ordinal[k]);
    }
    for (int a = 0; a < gpus->count; a++)
        for (int b = 0; b < gpus->count; b++)
            gpus->distance[a][b] = a == b ? 0 : distance(at[a], at[b]);
    return GPP_OK;
}

/* --- chains ----------------------------------------------------------------------------------- */

typedef struct chain_search {
    int count, length;
    const int *distance; /* [count * count] */
    int *least;          /* [1 << count][count] */
} chain_search;

static int *least_of(const chain_search *s, unsigned set, int first)
{
    return &s->least[(size_t)set * (size_t)s->count + (size_t)first];
}

/* The least length of a path through `set` that begins at `first`, from those of smaller sets. */
static int shortest(const chain_search *s, unsigned set, int first)
{
    unsigned rest = set & ~(1u << first);
    int least = rest ? INT_MAX : 0;
    for (int next = 0; next < s->count; next++) {
        if (!(rest >> next & 1))
            continue;
        int length = s->distance[first * s->count + next] + *least_of(s, rest, next);
        least = length < least ? length : least;
    }
    return least;
}

/* The lexicographically first of the shortest paths through `set` from `first`. */
static void walk(const chain_search *s, unsigned set, int first, int chain[])
{
    for (int k = 0;; k++) {
        chain[k] = first;
        unsigned rest = set & ~(1u << first);
        if (!rest)
            return;
        int left = *least_of(s, set, first), next = 0;
        while (!(rest >> next & 1) ||
               s->distance[first * s->count + next] + *least_of(s, rest, next) != left)
            next++;
        set = rest;
        first = next;
    }
}

static bool comes_first(const int a[], const int b[], int length)
{
    for (int k = 0; k < length; k++)
        if (a[k] != b[k])
            return a[k] < b[k];
    return false;
}

static void exact_chain(const chain_search *s, int chain[])
{
    int best = INT_MAX, other[EXACT];
    for (unsigned set = 1; set < 1u << s->count; set++) {
        int size = __builtin_popcount(set);
        if (size > s->length)
            continue;
        for (int first = 0; first < s->count; first++) {
            if (!(set >> first & 1))
                continue;
            int length = *least_of(s, set, first) = shortest(s, set, first);
            if (size < s->length || length > best)
                continue;
            walk(s, set, first, other);
            if (length < best || comes_first(other, chain, s->length))
                memcpy(chain, other, (size_t)s->length * sizeof *chain);
            best = length;
        }
    }
}

/* The chain that begins at `first` and always goes on to the nearest thing left. Returns its
 * length. */
static int greedy_from(const chain_search *s, int first, bool used[], int chain[])
{
    int total = 0;
    memset(used, 0, (size_t)s->count * sizeof *used);
    for (int k = 0; k < s->length; k++) {
        int next = k ? -1 : first;
        for (int v = 0; k && v < s->count; v++)
            if (!used[v] && (next < 0 || s->distance[chain[k - 1] * s->count + v] <
                                             s->distance[chain[k - 1] * s->count + next]))
                next = v;
        total += k ? s->distance[chain[k - 1] * s->count + next] : 0;
        chain[k] = next;
        used[next] = true;
    }
    return total;
}

static void greedy_chain(const chain_search *s, bool used[], int other[], int chain[])
{
    int best = INT_MAX;
    for (int first = 0; first < s->count; first++) {
        int length = greedy_from(s, first, used, other);
        if (length >= best)
            continue;
        best = length;
        memcpy(chain, other, (size_t)s->length * sizeof *chain);
    }
}

gpp_status gpp__chain(int count, const int distance[], int length, int chain[], gpp_error *err)
{
    chain_search s = {.count = count, .length = length, .distance = distance};
    if (length <= 0)
        return GPP_OK;
    if (count <= EXACT) {
        s.least = malloc(((size_t)1 << count) * (size_t)count * sizeof *s.least);
        if (!s.least)
            return gpp__fail(err, GPP_ENOMEM, "an order of %d GPUs", count);
        exact_chain(&s, chain);
        free(s.least);
        return GPP_OK;
    }
    bool *used = malloc((size_t)count * sizeof *used);
    int *other = malloc((size_t)count * sizeof *other);
    if (used && other)
        greedy_chain(&s, used, other, chain);
    bool memory = used && other;
    free(used);
    free(other);
    return memory ? GPP_OK : gpp__fail(err, GPP_ENOMEM, "an order of %d GPUs", count);
}

gpp_status gpp__gpus_chain(const gpp__gpus *gpus, int length, int ordinal[], gpp_error *err)
{
    int table[GPP__MAX_GPUS * GPP__MAX_GPUS];
    for (int a = 0; a < gpus->count; a++)
        memcpy(&table[a * gpus->count], gpus->distance[a], (size_t)gpus->count * sizeof *table);
    gpp_status status = gpp__chain(gpus->count, table, length, ordinal, err);
    for (int k = 0; status == GPP_OK && k < length; k++)
        ordinal[k] = gpus->ordinal[ordinal[k]];
    return status;
}

/* --- by number -------------------------------------------------------------------------------- */

/* Write "GPUs 0, 2 and 3". */
static void write_list(const gpp__gpus *gpus, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, gpus->count == 1 ? "GPU" : "GPUs");
    for (int k = 0; k < gpus->count && at < size; k++) {
        const char *before = k == 0 ? " " : k + 1 == gpus->count ? " and " : ", ";
        at += (size_t)snprintf(out + at, size - at, "%s%d", before, gpus->ordinal[k]);
    }
}

gpp_status gpp__gpus_check(const gpp__gpus *gpus, const char *spec, int ordinal, gpp_error *err)
{
    for (int k = 0; k < gpus->count; k++)
        if (gpus->ordinal[k] == ordinal)
            return GPP_OK;
    gpp_status status = gpus->status == GPP_OK ? GPP_ENODEV : gpus->status;
    if (gpus->count == 0)
        return gpp__fail(err, status, "device \"%.64s\": %s", spec,
                         gpus->why[0] ? gpus->why : "there is no GPU");
    char list[96];
    write_list(gpus, list, sizeof list);
    return gpp__fail(err, status, "device \"%.64s\": no GPU %d (there %s %s)%s%s", spec, ordinal,
                     gpus->count == 1 ? "is" : "are", list, gpus->why[0] ? ": " : "", gpus->why);
}

/* How many GPUs before the k-th have the same near hardware threads. */
static int same_place_before(const gpp__gpus *gpus, int k)
{
    int before = 0;
    for (int g = 0; g < k; g++)
        before += !gpus->near[g] || !gpus->near[k]
                      ? gpus->near[g] == gpus->near[k]
                      : hwloc_bitmap_isequal(gpus->near[g], gpus->near[k]);
    return before;
}

/* Count from the last core down, since CPU devices with few cores begin at the first one. */
int gpp__gpus_core(const gpp__gpus *gpus, int k, hwloc_topology_t topology,
                   hwloc_const_bitmap_t usable)
{
    hwloc_bitmap_t set = hwloc_bitmap_dup(usable);
    if (!set)
        return -1;
    if (gpus->near[k] && hwloc_bitmap_intersects(gpus->near[k], set))
        hwloc_bitmap_and(set, set, gpus->near[k]);
    int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE), core = -1;
    if (cores > 0) {
        int at = cores - 1 - same_place_before(gpus, k) % cores;
        hwloc_obj_t obj =
            hwloc_get_obj_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE, (unsigned)at);
        core = obj ? (int)obj->logical_index : -1;
    }
    hwloc_bitmap_free(set);
    return core;
}
