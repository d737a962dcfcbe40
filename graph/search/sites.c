/*
 * graph/search/sites.c: the devices that pipes of a search would run on (a site), and profiles of
 * the model there.
 *
 * One profile serves all devices of a site with as many cores. It is taken while the site's other
 * devices do the same work; a second one is taken while they are idle. A profile that is taken on a
 * GPU, alone, serves all GPUs.
 *
 * Profiles are taken by ascending rows. So what is known about few rows tells what measuring more
 * rows would cost: where a single sweep would take longer than a profile may, or need more memory
 * than all devices are allowed to have or half of this machine's, times are taken in proportion
 * instead.
 *
 * A machine that does something else meanwhile only ever makes a profile slower. So profiles that
 * are slower than those of fewer and more rows suggest are taken once more in the end.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/search/search.h"

/* --- devices ---------------------------------------------------------------------------------- */

/* Devices in the order in which layers are placed on them.
 * @param list  [count] out; NULL: only their number is wanted */
static int placements(const gpp_model *m, const char *list[])
{
    const char *now = NULL;
    int count = 0;
    for (int u = 0; u < m->count; u++) {
        const char *device = m->unit[u].device;
        if (!device || (now && strcmp(device, now) == 0))
            continue;
        if (list)
            list[count] = device;
        now = device;
        count++;
    }
    return count;
}

static gpp_status copy_devices(gpp__site *site, const gpp__device *device, gpp_error *err)
{
    site->name = calloc((size_t)site->devices, sizeof *site->name);
    site->kind = calloc((size_t)site->devices, sizeof *site->kind);
    if (!site->name || !site->kind)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", site->devices);
    for (int d = 0; d < site->devices; d++) {
        memcpy(site->name[d], device[d].name, sizeof site->name[d]);
        site->kind[d] = device[d].cores;
    }
    return GPP_OK;
}

/* --- a cluster -------------------------------------------------------------------------------- */

/* The kind of the profile by which a device of a cluster is timed: as in forecasts. Without a given
 * profile, one of a core here is taken. */
static int kind_described(const gpp__search *s, const gpp_cluster_device *v)
{
    const gpp_forecast_options *o = &s->options.forecast;
    for (int k = 0; k < o->profiles; k++)
        if (gpp__profile_kind(o->profile[k]) == v->cores)
            return v->cores;
    return o->profiles ? gpp__profile_kind(o->profile[0]) : 1;
}

/* The device of the cluster that partition j is on, by name or, without names, device j. */
static int find_described(const gpp__search *s, const char *spec, int j, int partitions)
{
    const gpp_cluster *c = s->options.forecast.cluster;
    const char *name;
    if (!spec)
        return partitions <= c->devices ? j : (int)((int64_t)j * c->devices / partitions);
    int node = gpp__ranks_read(spec, &name);
    return gpp__cluster_find(c, node < 0 ? 0 : node, *name ? name : "cpu");
}

static void add_described(gpp__site *site, const gpp__search *s, int j, int device)
{
    const gpp_cluster *c = s->options.forecast.cluster;
    const gpp_cluster_device *v = &c->device[device];
    int d = 0;
    while (d < site->devices && site->described[d] != device)
        d++;
    site->device_of[j] = d;
    if (d < site->devices)
        return;
    site->devices++;
    site->described[d] = device;
    site->kind[d] = kind_described(s, v);
    if (c->nodes > 1)
        snprintf(site->name[d], sizeof site->name[d], "rank:%d/%s", v->node, v->name);
    else
        memcpy(site->name[d], v->name, sizeof v->name);
}

static gpp_status find_devices_described(gpp__site *site, const gpp__search *s, bool listed,
                                         gpp_error *err)
{
    size_t n = (size_t)gpp__site_all(site);
    site->name = calloc(n, sizeof *site->name);
    site->kind = calloc(n, sizeof *site->kind);
    site->described = calloc(n, sizeof *site->described);
    if (!site->name || !site->kind || !site->described)
        return gpp__fail(err, GPP_ENOMEM, "%zu devices", n);
    for (int j = 0; j < gpp__site_all(site); j++) {
        int device = find_described(s, listed ? site->spec[j] : NULL, j, gpp__site_all(site));
        if (device < 0)
            return gpp__fail(err, GPP_ENODEV,
                             "partition %d is to be on \"%s\", which the cluster does not have", j,
                             site->spec[j]);
        add_described(site, s, j, device);
    }
    return GPP_OK;
}

/* No candidate may need more than the smallest device of the cluster has. */
static void limit_described(gpp__search *s)
{
    const gpp_cluster *c = s->options.forecast.cluster;
    for (int d = 0; d < c->devices; d++) {
        size_t has = c->device[d].memory;
        if (has && (!s->pipe.memory_limit || has < s->pipe.memory_limit))
            s->pipe.memory_limit = has;
    }
}

static gpp_status find_devices(gpp__site *site, const gpp__search *s, bool listed, gpp_error *err)
{
    gpp__device *device;
    if (s->options.forecast.cluster)
        return find_devices_described(site, s, listed, err);
    gpp__offer offer = gpp__machine_offer(&s->machine);
    if (!listed && !s->gpus)
        offer.gpus = NULL;
    gpp_status status =
        gpp__devices_choose(&offer, listed ? site->spec : NULL, listed ? gpp__site_all(site) : 0,
                            gpp__site_all(site), &device, &site->devices, site->device_of, err);
    if (status != GPP_OK)
        return status;
    status = copy_devices(site, device, err);
    gpp__devices_free(device, site->devices);
    return status;
}

/* Some layer is placed on a GPU. */
static bool may_be_placed_on_gpus(const gpp_model *m)
{
    for (int u = 0; u < m->count; u++) {
        const char *device = m->unit[u].device;
        if (device && gpp__devices_may_be_gpus(&device, 1, 1))
            return true;
    }
    return false;
}

/* No candidate may need more than the smallest GPU has that may be used. */
static void limit_memory(gpp__search *s)
{
    const gpp_pipe_options *o = &s->pipe;
    for (int k = 0; k < s->machine.gpus.count; k++) {
        const gpp__device gpu = {.kind = GPP__DEVICE_CUDA, .ordinal = s->machine.gpus.ordinal[k]};
        char name[24];
        bool meant = !o->devices;
        snprintf(name, sizeof name, "cuda:%d", gpu.ordinal);
        for (int d = 0; o->devices && d < o->device_count; d++)
            meant |= strcmp(o->devices[d], name) == 0;
        size_t has = meant ? gpp__machine_memory(&gpu) : 0;
        if (has && (!o->memory_limit || has < o->memory_limit))
            s->pipe.memory_limit = has;
    }
}

gpp_status gpp__search_machine(gpp__search *s, gpp_error *err)
{
    const gpp_pipe_options *o = &s->pipe;
    if (s->options.forecast.cluster) {
        limit_described(s);
        return GPP_OK;
    }
    s->gpus = !o->devices && s->plain->device[0].kind == GPP__DEVICE_CUDA;
    bool may =
        s->gpus || may_be_placed_on_gpus(s->model) ||
        (o->devices && gpp__devices_may_be_gpus(o->devices, o->device_count, o->device_count));
    const gpp__device_request all = {.partitions = 1}, none = {0};
    gpp_status status = gpp__machine_find(&s->machine, may ? &all : &none, err);
    if (status == GPP_OK)
        limit_memory(s);
    return status;
}

gpp_status gpp__site_init(gpp__site *site, const gpp__search *s, int partitions, int replicas,
                          gpp_error *err)
{
    int all = partitions * replicas;
    size_t n = (size_t)all;
    *site = (gpp__site){.partitions = partitions, .replicas = replicas};
    site->device_of = calloc(n, sizeof *site->device_of);
    site->spec = calloc(n, sizeof *site->spec);
    if (!site->device_of || !site->spec)
        return gpp__fail(err, GPP_ENOMEM, "%d partitions", all);
    if (s->pipe.devices && all > s->pipe.device_count)
        return gpp__fail(err, GPP_EINVAL,
                         "%d replicas of %d partitions, but only %d devices are listed", replicas,
                         partitions, s->pipe.device_count);
    bool listed = s->pipe.devices || placements(s->model, NULL) == partitions;
    for (int j = 0; s->pipe.devices && j < all; j++)
        site->spec[j] = s->pipe.devices[j];
    if (listed && !s->pipe.devices)
        placements(s->model, site->spec);
    gpp_status status = find_devices(site, s, listed, err);
    for (int j = 0; status == GPP_OK && !listed && j < all; j++)
        site->spec[j] = site->name[site->device_of[j]];
    return status;
}

void gpp__site_release(gpp__site *site)
{
    free(site->device_of);
    free(site->name);
    free(site->kind);
    free(site->described);
    free(site->spec);
    free(site->profile);
}

/* --- profiles --------------------------------------------------------------------------------- */

int64_t gpp__profile_rows(const gpp_profile *p)
{
    int b = 0;
    while (b < GPP_MAX_BATCHES - 1 && p->rows[b] == 0)
        b++;
    return p->rows[b];
}

int gpp__site_others(const gpp__site *site, int device)
{
    int others = 0;
    for (int d = 0; d < site->devices && site->kind[device] && !site->described; d++)
        others += d != device && site->kind[d];
    return others;
}

const gpp_profile *gpp__site_profile(const gpp__site *site, int kind, int64_t rows)
{
    const gpp_profile *best = NULL;
    for (int k = 0; k < site->profiles; k++) {
        const gpp_profile *p = site->profile[k];
        if (gpp__profile_kind(p) != kind)
            continue;
        if (!best || llabs(gpp__profile_rows(p) - rows) < llabs(gpp__profile_rows(best) - rows))
            best = p;
    }
    return best;
}

/* A given profile of such a device and so many rows, with the number of busy devices beside it
 * nearest to `others`, or `exactly` that; else one that this search has taken. */
static const gpp_profile *find_profile(const gpp__search *s, int kind, int64_t rows, int others,
                                       bool exactly)
{
    const gpp_forecast_options *o = &s->options.forecast;
    const gpp_profile *best = NULL;
    for (int k = 0; k < o->profiles; k++) {
        const gpp_profile *p = o->profile[k];
        if (gpp__profile_kind(p) == kind && gpp__profile_rows(p) == rows &&
            (!exactly || p->beside == others) &&
            (!best || abs(p->beside - others) < abs(best->beside - others)))
            best = p;
    }
    for (int k = 0; !best && k < s->taken_count; k++) {
        const gpp_profile *p = s->taken[k];
        if (gpp__profile_kind(p) == kind && gpp__profile_rows(p) == rows && p->beside == others)
            best = p;
    }
    return best;
}

/* By what profiles of fewer rows say, measuring so many rows stays within the time and the memory
 * that a profile may take. */
static bool is_worth_taking(const gpp__search *s, const gpp__site *site, int kind, int64_t rows)
{
    const gpp_profile *p = gpp__site_profile(site, kind, rows);
    double sweep_us = 0, bytes = 0, scale;
    if (!p)
        return true;
    scale = (double)rows / (double)gpp__profile_rows(p);
    for (int u = 0; u < p->layers; u++) {
        const gpp_layer_profile *l = &p->layer[u];
        sweep_us += scale * (l->forward_us + l->recompute_us + l->backward_us);
        bytes += scale * (double)l->activation_bytes + (double)s->layer_bytes[u];
    }
    double half = 0.5 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (sweep_us > 1e3 * s->options.forecast.timeout_ms || bytes > half)
        return false;
    return !s->pipe.memory_limit || bytes <= (double)s->pipe.memory_limit * site->devices;
}

/* @param alone  the site's other devices are idle */
static gpp_status take(gpp__search *s, const gpp__site *site, int device, int64_t rows, bool alone,
                       gpp_error *err)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    const char **beside = calloc((size_t)site->devices, sizeof *beside);
    if (!beside)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", site->devices);
    for (int d = 0; d < site->devices && !alone && site->kind[device]; d++)
        if (d != device && site->kind[d] && !site->described)
            beside[o.beside_count++] = site->name[d];
    o.beside = o.beside_count ? beside : NULL;
    o.device = site->described ? "cpu:0" : site->name[device];
    o.timeout_ms = s->options.forecast.timeout_ms;
    o.seed = s->pipe.seed;
    o.cuda_math = s->pipe.cuda_math;
    o.cuda_any_algorithm = s->pipe.cuda_any_algorithm;
    gpp_status status = gpp_profile_new(&s->taken[s->taken_count], s->model, rows, &o, err);
    s->taken_count += status == GPP_OK;
    free(beside);
    return status;
}

static gpp_status add_profile(gpp__search *s, gpp__site *site, int device, int64_t rows,
                              gpp_error *err)
{
    int kind = site->kind[device];
    const gpp_profile *p = find_profile(s, kind, rows, gpp__site_others(site, device), false);
    if (!p && !is_worth_taking(s, site, kind, rows))
        return GPP_OK;
    gpp_status status = p ? GPP_OK : take(s, site, device, rows, false, err);
    if (status == GPP_OK)
        site->profile[site->profiles++] = p ? p : s->taken[s->taken_count - 1];
    return status;
}

static bool is_taken(const gpp__search *s, const gpp_profile *p)
{
    for (int k = 0; k < s->taken_count; k++)
        if (s->taken[k] == p)
            return true;
    return false;
}

/* A profile of the same device alone, for every second number of rows and the last: forecasts go
 * along lines in between. None is taken where the first one was given. */
static gpp_status add_alone(gpp__search *s, gpp__site *site, int k, gpp_error *err)
{
    const gpp_profile *p = site->profile[k];
    int64_t rows = gpp__profile_rows(p);
    const gpp_profile *alone = find_profile(s, gpp__profile_kind(p), rows, 0, true);
    bool wanted = is_taken(s, p) && (k % 2 == 0 || k == site->profiles - 1);
    int device = 0;
    if (p->beside == 0 || (!alone && !wanted))
        return GPP_OK;
    while (site->kind[device] != gpp__profile_kind(p))
        device++;
    gpp_status status = alone ? GPP_OK : take(s, site, device, rows, true, err);
    if (status == GPP_OK)
        site->profile[site->profiles + site->alone++] =
            alone ? alone : s->taken[s->taken_count - 1];
    return status;
}

static bool is_first_of_its_kind(const gpp__site *site, int device)
{
    for (int d = 0; d < device; d++)
        if (site->kind[d] == site->kind[device])
            return false;
    return true;
}

static gpp_status add_profiles(gpp__search *s, gpp__site *site, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int d = 0; d < site->devices; d++)
        for (int k = s->piece_count - 1; status == GPP_OK && k >= 0; k--)
            if (s->pieces[k].replicas == site->replicas && is_first_of_its_kind(site, d))
                status = add_profile(s, site, d, s->pieces[k].rows, err);
    for (int k = 0; status == GPP_OK && k < site->profiles; k++)
        status = add_alone(s, site, k, err);
    return status;
}

/* --- doubts ----------------------------------------------------------------------------------- */

static double sweep_us(const gpp_profile *p)
{
    double us = 0;
    for (int u = 0; u < p->layers; u++)
        us += p->layer[u].forward_us + p->layer[u].recompute_us + p->layer[u].backward_us;
    return us;
}

/* The site's next profile of the same kind, in the direction of `step`. */
static const gpp_profile *neighbour(const gpp__site *site, int k, int step)
{
    const gpp_profile *p = site->profile[k];
    for (k += step; k >= 0 && k < site->profiles + site->alone; k += step)
        if (gpp__profile_kind(site->profile[k]) == gpp__profile_kind(p) &&
            site->profile[k]->beside == p->beside)
            return site->profile[k];
    return NULL;
}

/* The profile is slower than its neighbours suggest: slower than the line through both, slower than
 * in proportion to the one with fewer rows, or slower than the one with more rows. */
static bool is_doubtful(const gpp__site *site, int k)
{
    const double much = 1.08; /* real times are not on lines */
    const gpp_profile *p = site->profile[k], *below = neighbour(site, k, -1),
                      *above = neighbour(site, k, 1);
    double us = sweep_us(p), rows = (double)gpp__profile_rows(p);
    if (above && us > sweep_us(above))
        return true;
    if (!below)
        return false;
    double low = (double)gpp__profile_rows(below), expected = sweep_us(below) * rows / low;
    if (above) {
        double share = (rows - low) / ((double)gpp__profile_rows(above) - low);
        expected = sweep_us(below) + share * (sweep_us(above) - sweep_us(below));
    }
    return us > much * expected;
}

/* Keep the faster of two profiles of the same. The second is the last one taken. */
static void keep_faster(gpp__search *s, const gpp_profile *first)
{
    gpp_profile *second = s->taken[--s->taken_count];
    bool better = sweep_us(second) < sweep_us(first);
    for (int k = 0; better && k < s->sites; k++)
        for (int q = 0; q < s->site[k].profiles + s->site[k].alone; q++)
            if (s->site[k].profile[q] == first)
                s->site[k].profile[q] = second;
    for (int k = 0; better && k < s->taken_count; k++)
        if (s->taken[k] == first) {
            gpp_profile *slower = s->taken[k];
            s->taken[k] = second;
            second = slower;
        }
    gpp_profile_free(second);
}

/* Measure again what something else may have slowed down. */
static gpp_status take_again(gpp__search *s, const gpp__site *site, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; status == GPP_OK && k < site->profiles + site->alone; k++) {
        const gpp_profile *p = site->profile[k];
        int device = 0;
        if (!is_taken(s, p) || !is_doubtful(site, k))
            continue;
        while (site->kind[device] != gpp__profile_kind(p))
            device++;
        status = take(s, site, device, gpp__profile_rows(p), k >= site->profiles, err);
        if (status == GPP_OK)
            keep_faster(s, p);
    }
    return status;
}

gpp_status gpp__search_profiles(gpp__search *s, gpp_error *err)
{
    size_t room = 0, pieces = (size_t)s->piece_count;
    gpp_status status = GPP_OK;
    for (int k = 0; k < s->sites; k++)
        room += 2 * (size_t)s->site[k].devices * pieces;
    s->taken = calloc(room + 1, sizeof *s->taken); /* and one to compare with */
    if (!s->taken)
        return gpp__fail(err, GPP_ENOMEM, "%zu profiles", room);
    for (int k = 0; status == GPP_OK && k < s->sites; k++) {
        gpp__site *site = &s->site[k];
        site->profile = calloc(2 * (size_t)site->devices * pieces + 1, sizeof *site->profile);
        status = site->profile ? add_profiles(s, site, err)
                               : gpp__fail(err, GPP_ENOMEM, "%zu profiles", pieces);
    }
    for (int k = 0; status == GPP_OK && k < s->sites; k++)
        status = take_again(s, &s->site[k], err);
    return status;
}
