/*
 * base/names.h: names in alphabetical order, each with a number: for finding one, or two equal
 * ones.
 */
#ifndef GPP_GRAPH_NAMES_H
#define GPP_GRAPH_NAMES_H

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
/** Keeps the order. @return false: no memory */
bool gpp__names_add(gpp__names *names, const char *name, int at);
/** Append without order; gpp__names_sort afterwards. @return false: no memory */
bool gpp__names_append(gpp__names *names, const char *name, int at);
/** @return a name that is there twice, or NULL */
const char *gpp__names_sort(gpp__names *names);

/** Room for element [count] of a list [*room] of elements of `bytes`; it doubles. @return false: no
 * memory, the list is as it was */
bool gpp__make_room(void **list, int count, int *room, size_t bytes);

#endif
