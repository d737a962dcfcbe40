/*
 * tests/parity.h: pipes with operators of a user, as the tests of torchgpipe and PyTorch's Pipe
 * have them (tests/PARITY.md).
 *
 * The oracle is a pipe of one partition and one micro-batch. It has the same seed, and so the same
 * parameters. One operator, `act`, passes its tensors on, takes a given time, keeps a diary and
 * fails on request.
 */
#ifndef GPP_TESTS_PARITY_H
#define GPP_TESTS_PARITY_H

#include <gridpipe.h>

/** One call of an `act`. */
typedef struct parity_event {
    char kind; /* F forward, R recomputation, B backward */
    int id, i; /* the operator's key `id`; the micro-batch */
    bool checkpointing, recomputing, training;
    int64_t rows; /* rows of its first tensor */
    unsigned long thread;
} parity_event;

/** The diary, in the order in which calls began, and where a call is to fail. */
typedef struct parity_diary {
    parity_event event[4096];
    int events;
    int ended; /* how many calls have returned */
    struct {
        char kind; /* 0: no call fails */
        int id, i; /* i -1: any micro-batch */
        gpp_status status;
        const char *says; /* NULL: no message */
    } fail;
} parity_diary;
extern parity_diary parity_diary_now; /* parity_model empties it */

/** Number of events. @param kind  0: any  @param id  -1: any */
int parity_count(char kind, int id);
/** Index of an event in the diary, or -1. */
int parity_find(char kind, int id, int i);

/**
 * A model with the layers of a text (NULL: none), which may use these operators:
 *   act id=K ms=F,B    passes every tensor on, after F and B milliseconds; saves a number
 *   muladd             (a, b) -> (a·b, a + b)
 *   rowsum             one row for each micro-batch: the sum of its rows
 */
gpp_model *parity_model(const char *text);
void parity_register(gpp_model *model, const gpp_operator *op);
/** Set a single float32 input. Ends the test on failure, like everything here. */
void parity_input(gpp_model *model, int rank, const int64_t dim[]);

/** A model whose inputs are set. */
gpp_model *parity_with(const char *text, const gpp_shape in[], int count);

/** A pipe without a loss. @param balance  NULL: by cost */
gpp_pipe *parity_pipe(const gpp_model *model, int partitions, const int balance[], int chunks,
                      gpp_checkpoint mode);
/** The oracle: a pipe of one partition and one micro-batch. */
gpp_pipe *parity_plain(const gpp_model *model);
/** A pipe from a text, with one float32 input of rank 1 and `in` features. */
gpp_pipe *parity_linear(const char *text, int64_t in, int partitions, const int balance[],
                        int chunks, gpp_checkpoint mode);

/** Run a forward, and a backward from grad_y. @param grad_x  may be NULL */
void parity_pass(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *y, const gpp_tensor *grad_y,
                 const gpp_tensor *grad_x);
/** Expect the parameters' gradients of both pipes to agree. PARITY_CLOSE allows for float32 sums
 * that are grouped differently. */
void parity_same_gradients(gpp_pipe *a, gpp_pipe *b, double tolerance, const char *why);
#define PARITY_CLOSE 1e-5

/** Number of tasks of a kind (gpp__kind) in the call that ran last. */
int parity_tasks(const gpp_pipe *pipe, int kind);

extern const char *const parity_modes[3]; /* by gpp_checkpoint */

#endif
