/*
 * tests/networks.h: building models, what refuses to be one, compiled models as text, and what
 * holds for all of them.
 */
#ifndef GPP_TESTS_NETWORKS_H
#define GPP_TESTS_NETWORKS_H

#include "graph/model/model.h"

/* These calls must succeed; a failure ends the test. */
gpp_model *test_model_empty(void);
gpp_model *test_model_text(const char *text);
void test_add(gpp_model *model, const char *op);
void test_from(gpp_model *model, int op, int tensor);
/** Set the input to the first `rank` dimensions of (4, 6, 6). */
gpp_status test_set_input(gpp_model *model, int rank, gpp_error *err);

/** A model text that is refused. @param message  part of the record's text */
typedef struct test_refusal {
    const char *why, *text;
    gpp_status status;
    const char *message;
} test_refusal;
/** Expect each text to be refused with its place, and the model to stay as it was. It must have no
 * open layer. */
void test_expect_refusals(gpp_model *model, const test_refusal cases[], size_t count);

/** Write the network, one operator after the other, as "layer:op<values in>values out". Returns
 * `out`. */
const char *test_sketch(const gpp_model *model, char *out, size_t size);

/** Check that every value has one producer and at most one consumer, that operators and values
 * agree about both, and that operators lie in their layers. @param why  for messages */
void test_check_network(const gpp_model *model, const char *why);

#endif
