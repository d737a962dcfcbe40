/*
 * sched/schedules.c: the list of built-in schedules. A new schedule is a file of its own and a line
 * here.
 */
#include <string.h>

#include "sched/table.h"

const gpp__schedule *const gpp__schedules[] = {
    &gpp__schedule_gpipe, &gpp__schedule_1f1b, &gpp__schedule_interleaved,
    &gpp__schedule_zb_h1, &gpp__schedule_auto, NULL,
};

const gpp__schedule *gpp__schedule_find(const char *name)
{
    for (const gpp__schedule *const *s = gpp__schedules; *s; s++)
        if (strcmp((*s)->name, name) == 0)
            return *s;
    return NULL;
}
