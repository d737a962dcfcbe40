/*
 * base/names.c: a sorted list of names. Finding a name takes logarithmic time, whatever the names
 * are: a hash table's worst case would be up to whoever writes the file that they come from.
 */
#include <stdlib.h>
#include <string.h>

#include "base/names.h"

void gpp__names_release(gpp__names *names)
{
    free(names->entry);
    *names = (gpp__names){0};
}

/* Where the name is, or where it belongs. */
static int place_of(const gpp__names *names, const char *name, bool *found)
{
    int lo = 0, hi = names->count;
    *found = false;
    while (lo < hi) {
        int middle = lo + (hi - lo) / 2, order = strcmp(names->entry[middle].name, name);
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

int gpp__names_find(const gpp__names *names, const char *name)
{
    bool found;
    int place = place_of(names, name, &found);
    return found ? names->entry[place].at : -1;
}

bool gpp__make_room(void **list, int count, int *room, size_t bytes)
{
    if (count < *room)
        return true;
    int wanted = *room ? 2 * *room : 8;
    void *grown = reallocarray(*list, (size_t)wanted, bytes);
    if (!grown)
        return false;
    *list = grown;
    *room = wanted;
    return true;
}

bool gpp__names_append(gpp__names *names, const char *name, int at)
{
    void *list = names->entry;
    bool done = gpp__make_room(&list, names->count, &names->room, sizeof *names->entry);
    names->entry = list;
    if (done)
        names->entry[names->count++] = (struct gpp__name){name, at};
    return done;
}

bool gpp__names_add(gpp__names *names, const char *name, int at)
{
    bool found;
    int place = place_of(names, name, &found);
    if (!gpp__names_append(names, name, at))
        return false;
    struct gpp__name *e = names->entry + place, added = names->entry[names->count - 1];
    memmove(e + 1, e, (size_t)(names->count - 1 - place) * sizeof *e);
    *e = added;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct gpp__name *)a)->name, ((const struct gpp__name *)b)->name);
}

const char *gpp__names_sort(gpp__names *names)
{
    if (names->count)
        qsort(names->entry, (size_t)names->count, sizeof *names->entry, by_name);
    for (int k = 1; k < names->count; k++)
        if (!strcmp(names->entry[k - 1].name, names->entry[k].name))
            return names->entry[k].name;
    return NULL;
}
