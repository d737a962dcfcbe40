/*
 * tests/parity.h: what the ports of torchgpipe's and PyTorch Pipe's tests share (PARITY.md).
 *
 * The oracle is a pipe of one partition and one micro-batch with the same seed, which has the same
 * parameters. Layers that the originals write in Python are user operators here; `act` passes its
 * tensors on, takes its time, keeps a diary and fails on request.
 */
#ifndef GPP_TESTS_PARITY_H
#define GPP_TESTS_PARITY_H

#include <gridpipe.h>

/** One call of an `act`. */
typedef struct parity_event {
    char kind; /* F forward, R recomputation, B backward */
    int id, i; /* of the operator's key `id`; micro-batch */
    bool checkpointing, recomputing, training;
    int64_t rows; /* of its first tensor */
    unsigned long thread;
} parity_event;

/** The diary, in the order in which calls began, and what the next ones do. */
typedef struct parity_diary {
    parity_event event[4096];
    int events;
    int ended; /* calls that have returned */
    struct {
        char kind; /* 0: none fails */
        int id, i; /* i -1: any */
        gpp_status status;
        const char *says; /* NULL: nothing */
    } fail;
} parity_diary;
extern parity_diary parity_diary_now; /* emptied by parity_model */

/** Number of events of a kind, 0 for any kind; of an id, -1 for any. */
int parity_count(char kind, int id);
/** Place of an event in the diary, or -1. */
int parity_find(char kind, int id, int i);

/**
 * A model that knows these operators, and the layers of a text (NULL: none):
 *   act id=K ms=F,B    every tensor passed on, after F and B milliseconds; saves a number
 *   muladd             (a, b) -> (a·b, a + b)
 *   rowsum             one row for each micro-batch: the sum of its rows
 */
gpp_model *parity_model(const char *text);
void parity_register(gpp_model *model, const gpp_operator *op);
/** A single float32 input; ends the test on failure, as everything here. */
void parity_input(gpp_model *model, int rank, const int64_t dim[]);

/** A model whose inputs are set. */
gpp_model *parity_with(const char *text, const gpp_shape in[], int count);

/** A pipe without a loss. @param balance  NULL: by cost */
gpp_pipe *parity_pipe(const gpp_model *model, int partitions, const int balance[], int chunks,
                      gpp_checkpoint mode);
/** Of one partition and one micro-batch. */
gpp_pipe *parity_plain(const gpp_model *model);
/** From text to pipe: one float32 input of rank 1 and `in` features. */
gpp_pipe *parity_linear(const char *text, int64_t in, int partitions, const int balance[],
                        int chunks, gpp_checkpoint mode);

/** Forward, and backward from grad_y. @param grad_x may be NULL */
void parity_pass(gpp_pipe *pipe, const gpp_tensor *x, const gpp_tensor *y, const gpp_tensor *grad_y,
                 const gpp_tensor *grad_x);
/** Both pipes' parameter gradients agree. The default tolerance: sums of float32 in another
 * grouping. */
void parity_same_gradients(gpp_pipe *a, gpp_pipe *b, double tolerance, const char *why);
#define PARITY_CLOSE 1e-5

/** Tasks of a kind (gpp__kind) in what ran last. */
int parity_tasks(const gpp_pipe *pipe, int kind);

extern const char *const parity_modes[3]; /* by gpp_checkpoint */

#endif
