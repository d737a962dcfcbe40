/*
 * graph/search_sites.c: where pipes of a search would run, and profiles of the model there.
 *
 * One profile serves all devices of a site with as many cores, and is taken while the others of
 * that site are busy with the same. Rows are taken by ascending number, so that what is known about
 * few tells what it would cost to measure more: from where a single sweep takes longer than a
 * profile may, or needs more memory than all devices are allowed to have, times are taken in
 * proportion.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/search.h"

/* --- devices ---------------------------------------------------------------------------------- */

/* Devices in the order in which layers are placed on them. @param list  [count] out; NULL: only
 * their number is asked for */
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
    site->threads = calloc((size_t)site->devices, sizeof *site->threads);
    if (!site->name || !site->threads)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", site->devices);
    for (int d = 0; d < site->devices; d++) {
        memcpy(site->name[d], device[d].name, sizeof site->name[d]);
        site->threads[d] = device[d].cores;
    }
    return GPP_OK;
}

static gpp_status find_devices(gpp__site *site, const gpp__search *s, bool listed, gpp_error *err)
{
    gpp__device *device;
    const gpp__runtime *runtime = &s->plain->runtime;
    gpp_status status = gpp__devices_new(
        runtime->topology, listed ? site->spec : NULL, listed ? site->partitions : 0,
        site->partitions, runtime->workers, &device, &site->devices, site->device_of, err);
    if (status != GPP_OK)
        return status;
    status = copy_devices(site, device, err);
    gpp__devices_free(device, site->devices);
    return status;
}

gpp_status gpp__site_init(gpp__site *site, const gpp__search *s, int partitions, gpp_error *err)
{
    size_t n = (size_t)partitions;
    *site = (gpp__site){.partitions = partitions};
    site->device_of = calloc(n, sizeof *site->device_of);
    site->spec = calloc(n, sizeof *site->spec);
    if (!site->device_of || !site->spec)
        return gpp__fail(err, GPP_ENOMEM, "%d partitions", partitions);
    bool listed = s->pipe.devices || placements(s->model, NULL) == partitions;
    for (int j = 0; s->pipe.devices && j < partitions; j++)
        site->spec[j] = s->pipe.devices[j];
    if (listed && !s->pipe.devices)
        placements(s->model, site->spec);
    gpp_status status = find_devices(site, s, listed, err);
    for (int j = 0; status == GPP_OK && !listed && j < partitions; j++)
        site->spec[j] = site->name[site->device_of[j]];
    return status;
}

void gpp__site_release(gpp__site *site)
{
    free(site->device_of);
    free(site->name);
    free(site->threads);
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

const gpp_profile *gpp__site_profile(const gpp__site *site, int threads, int64_t rows)
{
    const gpp_profile *best = NULL;
    for (int k = 0; k < site->profiles; k++) {
        const gpp_profile *p = site->profile[k];
        if (p->threads != threads)
            continue;
        if (!best || llabs(gpp__profile_rows(p) - rows) < llabs(gpp__profile_rows(best) - rows))
            best = p;
    }
    return best;
}

static bool is_of(const gpp_profile *p, int threads, int64_t rows)
{
    return p->threads == threads && gpp__profile_rows(p) == rows;
}

/* One that was given, or taken before. */
static const gpp_profile *find_profile(const gpp__search *s, const gpp__site *site, int threads,
                                       int64_t rows)
{
    const gpp_forecast_options *o = &s->options.forecast;
    const gpp_profile *best = NULL;
    int others = site->devices - 1;
    for (int k = 0; k < o->profiles; k++) {
        const gpp_profile *p = o->profile[k];
        if (is_of(p, threads, rows) &&
            (!best || abs(p->beside - others) < abs(best->beside - others)))
            best = p;
    }
    for (int k = 0; !best && k < s->taken_count; k++)
        if (is_of(s->taken[k], threads, rows) && s->taken[k]->beside == others)
            best = s->taken[k];
    return best;
}

/* Measuring so many rows is possible within the time and memory there is, for all that is known
 * from fewer. */
static bool is_worth_taking(const gpp__search *s, const gpp__site *site, int threads, int64_t rows)
{
    const gpp_profile *p = gpp__site_profile(site, threads, rows);
    double sweep_us = 0, bytes = 0, scale;
    if (!p)
        return true;
    scale = (double)rows / (double)gpp__profile_rows(p);
    for (int u = 0; u < p->layers; u++) {
        const gpp_layer_profile *l = &p->layer[u];
        sweep_us += scale * (l->forward_us + l->recompute_us + l->backward_us);
        bytes += scale * (double)l->activation_bytes + (double)s->layer_bytes[u];
    }
    if (sweep_us > 1e3 * s->options.forecast.timeout_ms)
        return false;
    return !s->pipe.memory_limit || bytes <= (double)s->pipe.memory_limit * site->devices;
}

static gpp_status take(gpp__search *s, const gpp__site *site, int device, int64_t rows,
                       gpp_error *err)
{
    gpp_profile_options o = GPP_PROFILE_OPTIONS_INIT;
    const char **beside = calloc((size_t)site->devices, sizeof *beside);
    if (!beside)
        return gpp__fail(err, GPP_ENOMEM, "%d devices", site->devices);
    for (int d = 0; d < site->devices; d++)
        if (d != device)
            beside[o.beside_count++] = site->name[d];
    o.beside = o.beside_count ? beside : NULL;
    o.device = site->name[device];
    o.timeout_ms = s->options.forecast.timeout_ms;
    o.seed = s->pipe.seed;
    gpp_status status = gpp_profile_new(&s->taken[s->taken_count], s->model, rows, &o, err);
    s->taken_count += status == GPP_OK;
    free(beside);
    return status;
}

static gpp_status add_profile(gpp__search *s, gpp__site *site, int device, int64_t rows,
                              gpp_error *err)
{
    int threads = site->threads[device];
    const gpp_profile *p = find_profile(s, site, threads, rows);
    if (!p && !is_worth_taking(s, site, threads, rows))
        return GPP_OK;
    gpp_status status = p ? GPP_OK : take(s, site, device, rows, err);
    if (status == GPP_OK)
        site->profile[site->profiles++] = p ? p : s->taken[s->taken_count - 1];
    return status;
}

static bool is_first_of_its_kind(const gpp__site *site, int device)
{
    for (int d = 0; d < device; d++)
        if (site->threads[d] == site->threads[device])
            return false;
    return true;
}

static gpp_status add_profiles(gpp__search *s, gpp__site *site, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int d = 0; d < site->devices; d++)
        for (int k = s->piece_count - 1; status == GPP_OK && k >= 0; k--)
            if (is_first_of_its_kind(site, d))
                status = add_profile(s, site, d, s->pieces[k].rows, err);
    return status;
}

gpp_status gpp__search_profiles(gpp__search *s, gpp_error *err)
{
    size_t room = 0, pieces = (size_t)s->piece_count;
    gpp_status status = GPP_OK;
    for (int k = 0; k < s->sites; k++)
        room += (size_t)s->site[k].devices * pieces;
    s->taken = calloc(room + 1, sizeof *s->taken);
    if (!s->taken)
        return gpp__fail(err, GPP_ENOMEM, "%zu profiles", room);
    for (int k = 0; status == GPP_OK && k < s->sites; k++) {
        gpp__site *site = &s->site[k];
        site->profile = calloc((size_t)site->devices * pieces + 1, sizeof *site->profile);
        status = site->profile ? add_profiles(s, site, err)
                               : gpp__fail(err, GPP_ENOMEM, "%zu profiles", pieces);
    }
    return status;
}
