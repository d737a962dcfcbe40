/*
 * graph/run/ledger.h: every array of a pipe that a file may hold: its name, its shape, its place in the
 * pipe's blocks.
 *
 * Parameters and buffers have the pipe's names for them; array `s` of the optimizer's state has
 * "optimizer.<its name>.<parameter>". Names and shapes do not depend on how the model is cut, so
 * neither do files.
 */
#ifndef GPP_RUN_LEDGER_H
#define GPP_RUN_LEDGER_H

#include "graph/data/file.h"
#include "graph/run/pipe.h"

typedef struct gpp__ledger_entry {
    const char *name;
    gpp_dtype dtype;
    int rank;
    int64_t dim[GPP_MAX_RANK];
    gpp__class cls; /* parameters, or the optimizer's */
    int home;       /* whose block of that class */
    size_t at, bytes;
    void *data; /* of the array in a file; NULL: it has none */
} gpp__ledger_entry;

typedef struct gpp__ledger {
    gpp_pipe *pipe;
    int entries;
    gpp__ledger_entry *entry;
    gpp__names names;
    char *state_names;
} gpp__ledger;

/** @param state  with the optimizer's  @param ledger  out: release it; empty on failure */
gpp_status gpp__ledger_init(gpp__ledger *ledger, gpp_pipe *pipe, bool state, gpp_error *err);
void gpp__ledger_release(gpp__ledger *ledger);

/** Add all arrays to a file. */
gpp_status gpp__ledger_save(gpp__ledger *ledger, gpp_file *file, gpp_error *err);

/**
 * Find every entry's array in a file. Nothing changes.
 * @param flags  GPP_LOAD_ALLOW_...
 * @return GPP_OK, GPP_ENOENT (the message lists missing and extra names), GPP_ESHAPE
 */
gpp_status gpp__ledger_match(gpp__ledger *ledger, const gpp_file *file, unsigned flags,
                             gpp_error *err);
/** Exchange the arrays that were matched with the pipe's; on failure all is as it was. */
gpp_status gpp__ledger_exchange(gpp__ledger *ledger, gpp_error *err);
/** Copy the pipe's arrays into those that were matched. */
gpp_status gpp__ledger_copy(gpp__ledger *ledger, gpp_error *err);

#endif
