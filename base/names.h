/*
 * base/names.h: names in alphabetical order, each with a number. For finding a name, or a name that
 * occurs twice.
 */
#ifndef GPP_BASE_NAMES_H
#define GPP_BASE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct gpp__names {
    int count, room;
    struct gpp__name {
        const char *name; /* lent */
        int at;
    } * entry; /* [count] */
} gpp__names;

void gpp__names_release(gpp__names *names);
/** @return the number of the name, or -1 */
int gpp__names_find(const gpp__names *names, const char *name);
/** Insert a name where the order wants it. @return false: no memory */
bool gpp__names_add(gpp__names *names, const char *name, int at);
/** Append a name; call gpp__names_sort after the last one. @return false: no memory */
bool gpp__names_append(gpp__names *names, const char *name, int at);
/** Sort what was appended. @return a name that is in the list twice, or NULL */
const char *gpp__names_sort(gpp__names *names);

/** Make room for element [count] of a list that has [*room] elements of `bytes` bytes. The list
 * doubles when it is full. @return false: no memory, and the list is as it was */
bool gpp__make_room(void **list, int count, int *room, size_t bytes);

#endif
