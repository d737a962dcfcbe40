/*
 * graph/recipe/ranks.h: the ranks that make and run a pipe together: which partition is on which
 * rank, and how ranks tell each other what only one of them knows.
 *
 * A rank is a process, or a thread that stands for one. All ranks make the same calls with the same
 * model and options. Each compiles and holds its own partitions only, but all make the same plan: a
 * rank learns the sizes of the others' partitions from them. So every rank knows from the plan what
 * to send, and when.
 */
#ifndef GPP_RECIPE_RANKS_H
#define GPP_RECIPE_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gpp__ranks {
    int rank;  /* this one; -1: all ranks are planned for here, and every partition is at hand */
    int count; /* >= 1 */
    const int *group; /* [count] ranks with the same number share the cores of a host; NULL: no two
                         ranks do */

    /**
     * Give every rank what each of them has. All ranks must come with the same `what`. If one of
     * them comes with a failure, or they come with different `bytes` or `key`, this fails on all of
     * them with the same record.
     * @param status  of this rank so far; a failure is in `err`
     * @param key     what must be the same on all ranks
     * @param mine    [bytes]
     * @param all     [count][bytes] out; may be NULL where there are no bytes
     * @return GPP_OK, the failure of a rank, GPP_ESTATE (the ranks do different things),
     * GPP_ETIMEDOUT (a rank does not answer)
     */
    gpp_status (*gather)(void *arg, const char *what, gpp_status status, uint64_t key,
                         const void *mine, size_t bytes, void *all, gpp_error *err);
    void *arg;
} gpp__ranks;

/** The rank of partition `j` of `n` where nobody chooses: partitions go to ranks in blocks. */
int gpp__ranks_default(const gpp__ranks *ranks, int j, int n);
/** The rank that "rank:2/cpu:0" names, -1: `spec` names none.
 * @param rest  out: what follows; "" where nothing does */
int gpp__ranks_read(const char *spec, const char **rest);

/** True where several processes or threads take part. */
static inline bool gpp__ranks_are_several(const gpp__ranks *ranks)
{
    return ranks->rank >= 0 && ranks->count > 1;
}
/** As ranks->gather. A rank that is alone only gets what it has. */
gpp_status gpp__ranks_gather(const gpp__ranks *ranks, const char *what, gpp_status status,
                             uint64_t key, const void *mine, size_t bytes, void *all,
                             gpp_error *err);

/** Add to a hash (FNV-1a of bytes), which begins with GPP__HASH. */
#define GPP__HASH UINT64_C(0xcbf29ce484222325)
uint64_t gpp__hash(uint64_t hash, const void *data, size_t bytes);
/** The same for a string, with its end; NULL is not "". */
uint64_t gpp__hash_text(uint64_t hash, const char *text);

#endif
