/* tests/ranks.c: see tests/ranks.h. */
#include "tests/ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>

typedef struct rank_thread {
    pthread_t thread;
    gpp_comm *comm;
    test_rank_fn *run;
    void *arg;
    bool mortal;
} rank_thread;

static void *run_rank(void *arg)
{
    rank_thread *r = arg;
    r->run(r->comm, r->arg);
    if (r->mortal)
        gpp_comm_free(r->comm);
    return NULL;
}

static void run_all(int ranks, test_rank_fn *run, void *arg, bool mortal)
{
    gpp_error err = GPP_ERROR_INIT;
    gpp_comm *comm[TEST_MOST_RANKS];
    rank_thread thread[TEST_MOST_RANKS];
    cr_assert_leq(ranks, TEST_MOST_RANKS);
    cr_assert_eq(gpp_comm_threads(comm, ranks, &err), GPP_OK, "%s", err.msg);
    for (int r = 0; r < ranks; r++) {
        thread[r] = (rank_thread){.comm = comm[r], .run = run, .arg = arg, .mortal = mortal};
        cr_assert(!pthread_create(&thread[r].thread, NULL, run_rank, &thread[r]));
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(thread[r].thread, NULL);
    for (int r = 0; r < ranks && !mortal; r++)
        gpp_comm_free(comm[r]);
}

void test_on_ranks(int ranks, test_rank_fn *run, void *arg)
{
    run_all(ranks, run, arg, false);
}

void test_on_mortal_ranks(int ranks, test_rank_fn *run, void *arg)
{
    run_all(ranks, run, arg, true);
}
