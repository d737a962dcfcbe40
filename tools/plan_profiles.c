/*
 * tools/plan_profiles.c: profiles of `gridpipe plan`: reading them from files and folders, and
 * saving those that a search has taken where the next search finds them.
 */
#define _GNU_SOURCE /* asprintf */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/plan.h"

static const char ending[] = ".profile";

/* --- reading ---------------------------------------------------------------------------------- */

/* Adds the profile of a file. @param path  belongs to the list afterwards */
static gpp_status read_file(plan_profiles *all, char *path, gpp_error *err)
{
    gpp_profile *profile = NULL;
    gpp_status status = path ? GPP_OK : tool_note(err, GPP_ENOMEM, "profiles");
    if (status == GPP_OK && all->count == PLAN_PROFILES)
        status = tool_note(err, GPP_EINVAL, "%.120s: more than %d profiles", path, PLAN_PROFILES);
    if (status == GPP_OK)
        status = gpp_profile_read(&profile, path, err);
    if (status != GPP_OK) {
        free(path);
        return status;
    }
    all->path[all->count] = path;
    all->profile[all->count++] = profile;
    return GPP_OK;
}

static int is_profile(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), own = sizeof ending - 1;
    return length > own && !strcmp(entry->d_name + length - own, ending);
}

/* Adds the profiles of a folder, sorted by name so that every run reads them in the same order. */
static gpp_status read_folder(plan_profiles *all, const char *folder, gpp_error *err)
{
    struct dirent **entry;
    int count = scandir(folder, &entry, is_profile, alphasort);
    if (count < 0)
        return tool_note(err, GPP_EIO, "%.160s: %s", folder, strerror(errno));
    gpp_status status = GPP_OK;
    for (int k = 0; k < count; k++) {
        char *path = NULL;
        if (status == GPP_OK && asprintf(&path, "%s/%s", folder, entry[k]->d_name) < 0)
            path = NULL;
        if (status == GPP_OK)
            status = read_file(all, path, err);
        free(entry[k]);
    }
    free(entry);
    return status;
}

gpp_status plan_profiles_read(plan_profiles *all, const char *path, gpp_error *err)
{
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return folder ? read_folder(all, path, err) : read_file(all, strdup(path), err);
}

void plan_profiles_release(plan_profiles *all)
{
    for (int k = 0; k < all->count; k++) {
        gpp_profile_free(all->profile[k]);
        free(all->path[k]);
    }
    all->count = 0;
}

/* --- writing ---------------------------------------------------------------------------------- */

int plan_profiles_writable(const char *folder)
{
    struct stat st;
    if (!folder)
        return -1;
    int failed = stat(folder, &st) ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (!failed && access(folder, W_OK | X_OK))
        failed = errno;
    return failed ? tool_fail(TOOL_FAILED, "--save-profiles %s: %s", folder, strerror(failed)) : -1;
}

char *plan_profile_path(const char *folder, const gpp_profile *p)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%lld-rows-%s-beside-%d%s", folder, (long long)p->rows[0], p->device,
                 p->beside, ending) < 0)
        return NULL;
    return path;
}

gpp_status plan_profiles_write(const char *folder, const gpp_plan_table *table, gpp_error *err)
{
    gpp_status status = GPP_OK;
    for (int k = 0; k < table->profiles && status == GPP_OK; k++) {
        char *path = plan_profile_path(folder, table->profile[k]);
        status = path ? gpp_profile_write(table->profile[k], path, err)
                      : tool_note(err, GPP_ENOMEM, "the name of a profile");
        free(path);
    }
    return status;
}
