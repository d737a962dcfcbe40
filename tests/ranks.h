/*
 * tests/ranks.h: ranks that are threads of the test.
 */
#ifndef GPP_TESTS_RANKS_H
#define GPP_TESTS_RANKS_H

#include <gridpipe/comm.h>

enum { TEST_MOST_RANKS = 8 };

typedef void test_rank_fn(gpp_comm *comm, void *arg);

/** Run a function on each of so many ranks, and wait for all. */
void test_on_ranks(int ranks, test_rank_fn *run, void *arg);
/** The same, but the communicator of a rank is freed as soon as its function has returned, as when a
 * process ends. */
void test_on_mortal_ranks(int ranks, test_rank_fn *run, void *arg);

/**
 * StarPU 1.3.10 loses 48 bytes for each handle that an acquisition has ever had to wait for: a node
 * of its list of waiting requests. Programs with messages between ranks say so to the leak checker.
 * Other programs still have leaks through StarPU found.
 */
#ifdef __SANITIZE_ADDRESS__
#define TEST_STARPU_LOSES_REQUESTS                                                                 \
    const char *__lsan_default_suppressions(void);                                                 \
    const char *__lsan_default_suppressions(void)                                                  \
    {                                                                                              \
        return "leak:libstarpu-1.3";                                                               \
    }
#else
#define TEST_STARPU_LOSES_REQUESTS
#endif

#endif
