/*
 * graph/run/ledger.h: the list of a pipe's arrays that a file may hold: the name and shape of each,
 * and where it is in the pipe's parameter blocks.
 *
 * A parameter or buffer keeps the name it has in the pipe. An array of the optimizer's state is
 * called "optimizer.<array>.<parameter>". Names and shapes do not depend on how the model is cut,
 * so files do not either.
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
    gpp__class cls; /* GPP__PARAMS or GPP__OPTIMIZER */
    int home;       /* whose parameter block, or optimizer state of that block */
    int array;      /* of the optimizer's state */
    size_t at;      /* in the block, or in that array */
    size_t bytes;
    void *data; /* the array in the file; NULL: the file has none */
} gpp__ledger_entry;

typedef struct gpp__ledger {
    gpp_pipe *pipe;
    int entries;
    gpp__ledger_entry *entry;
    gpp__names names;
    char *state_names;
} gpp__ledger;

/** @param ledger  out: release it; on failure it is empty, but knows its pipe
 * @param state   list the arrays of the optimizer's state too */
gpp_status gpp__ledger_init(gpp__ledger *ledger, gpp_pipe *pipe, bool state, gpp_error *err);
void gpp__ledger_release(gpp__ledger *ledger);

/** The part of an entry that a partition's block has: `bytes` of them from `from` on, which are at
 * `at` of the block. A replica may have but its shard of the optimizer's state. */
typedef struct gpp__ledger_part {
    size_t at, from, bytes;
} gpp__ledger_part;
gpp__ledger_part gpp__ledger_part_of(const gpp__ledger *ledger, const gpp__ledger_entry *entry,
                                     int partition);
/** The parts of an entry are in the blocks of all replicas; else each replica has all of it. */
static inline bool gpp__ledger_is_sharded(const gpp__ledger *l, const gpp__ledger_entry *e)
{
    return e->cls == GPP__OPTIMIZER && gpp__recipe_shard_bytes(l->pipe->recipe, e->home) > 0;
}

/** Add all arrays to a file. */
gpp_status gpp__ledger_save(gpp__ledger *ledger, gpp_file *file, gpp_error *err);

/**
 * Find every entry's array in a file. Nothing changes.
 * @param flags  GPP_LOAD_ALLOW_...
 * @return GPP_OK, GPP_ENOENT (the message lists missing and extra names), GPP_ESHAPE
 */
gpp_status gpp__ledger_match(gpp__ledger *ledger, const gpp_file *file, unsigned flags,
                             gpp_error *err);
/** Exchange the matched arrays with the pipe's. On failure everything is as it was. */
gpp_status gpp__ledger_exchange(gpp__ledger *ledger, gpp_error *err);
/** Copy the pipe's arrays into the matched ones. */
gpp_status gpp__ledger_copy(gpp__ledger *ledger, gpp_error *err);

/* --- where several ranks run the pipe (share.c). All call these, with their status so far. ------ */

/** This rank reads and writes the pipe's files. */
bool gpp__has_files(const gpp_pipe *pipe);
/** Other ranks get a file with the words of rank 0's. @param file  out, except on rank 0 */
gpp_status gpp__file_spread(gpp_pipe *pipe, gpp_file **file, gpp_status status, gpp_error *err);
/** Rank 0 gets the arrays that other ranks have. */
gpp_status gpp__ledger_collect(gpp__ledger *ledger, gpp_status status, gpp_error *err);
/** Other ranks get their arrays, which rank 0 has matched. They are in `file` afterwards. */
gpp_status gpp__ledger_deal(gpp__ledger *ledger, gpp_file *file, gpp_status status, gpp_error *err);
/** All ranks get what the optimizer counts. */
gpp_status gpp__learned_gather(gpp_pipe *pipe, gpp_status status, gpp_error *err);

#endif
