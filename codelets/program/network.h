/*
 * codelets/program/network.h: a model as a graph of operators and the values between them.
 *
 * A model (graph/model/model.h) is a sequence of layers, each an operator or a few of them, with
 * skips from one layer to a later one. Compiled, it is a list of operators in an order in which
 * they can run, and values with exactly one producer and at most one consumer. Where a tensor is
 * wanted several times, a *fork* makes several values of it, which cost no memory. The fork adds
 * their gradients up, so the order of every sum of gradients is part of the network, not of how it
 * is cut.
 *
 * A partition is a run of consecutive layers. Values that are made in one partition and used in
 * another are its ports: the boundary to the next one, and skips to later ones.
 */
#ifndef GPP_CODELETS_NETWORK_H
#define GPP_CODELETS_NETWORK_H

#include "codelets/op.h"

enum { GPP__NOBODY = -2, GPP__CALLER = -1 };

typedef struct gpp__value {
    gpp__desc desc;
    int producer, producer_slot; /* operator and its output; GPP__CALLER: input of the model */
    int consumer, consumer_slot; /* operator and its input; GPP__CALLER: output of the model;
                                    GPP__NOBODY: nobody wants it */
    bool optional;  /* may be absent: in memory a cache line in front of it says whether it is */
    bool skip;      /* stashed */
    gpp__skip name; /* of a skip */
} gpp__value;

typedef struct gpp__network {
    int nodes, values, units;
    gpp__layer *node;  /* [nodes] */
    gpp__value *value; /* [values] */
    int *first;        /* [units + 1] of layer u of the model: operators first[u] ... first[u+1]-1.
                          A model without layers has one operator (pass) in no layer */
    int inputs, outputs;
    int input[GPP__MAX_TENSORS], output[GPP__MAX_TENSORS]; /* values */
} gpp__network;

/** What flows through a value's gradient. */
enum {
    GPP__LEARNS = 1,  /* something at or before its producer wants a gradient */
    GPP__REACHES = 2, /* an output depends on it differentiably */
    GPP__HAS_GRAD = GPP__LEARNS | GPP__REACHES
};

/**
 * Which values have a gradient: float32, and both flags.
 * @param grad_input  the gradients of the model's inputs are wanted
 * @param flow        [values] out
 */
void gpp__network_flow(const gpp__network *network, bool grad_input, uint8_t flow[]);

/** Bytes of a value in memory in a micro-batch, rounded up, with what an optional one has in front.
 */
size_t gpp__value_bytes(const gpp__value *value, const int64_t batch[GPP__BATCHES]);
#define GPP__HEAD GPP__ALIGN /* of an optional value: an int64_t, 1: present, 0: absent */

#endif
