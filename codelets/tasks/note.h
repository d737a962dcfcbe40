/*
 * codelets/tasks/note.h: the note at the end of a buffer that other ranks may read: whether
 * something has failed before its data was written.
 *
 * A rank hears of a failure on another rank only through data. So each task that writes such a
 * buffer leaves a note in it, also when the task does nothing because the step has failed. Each
 * task that reads the buffer looks at the note first.
 */
#ifndef GPP_TASKS_NOTE_H
#define GPP_TASKS_NOTE_H

#include <stdint.h>

#include "base/status.h"

typedef struct gpp__note {
    uint64_t failed; /* first run that has failed; 0: none has */
    int32_t clock;   /* cycle of that failure, if it is of the run that has written the note */
    gpp_error error; /* likewise */
} gpp__note;

/** What a buffer has behind its data. */
#define GPP__NOTE_BYTES gpp__align(sizeof(gpp__note))

#endif
