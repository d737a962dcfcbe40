/*
 * tests/networks.h: building models, what refuses to be one, compiled models as text, and what
 * holds for all of them.
 */
#ifndef GPP_TESTS_NETWORKS_H
#define GPP_TESTS_NETWORKS_H

#include "graph/model/model.h"

/* Calls that must succeed; a failure ends the test. */
gpp_model *test_model_empty(void);
gpp_model *test_model_text(const char *text);
void test_add(gpp_model *model, const char *op);
void test_from(gpp_model *model, int op, int tensor);
/** The first `rank` of 4 channels, 6 by 6. */
gpp_status test_set_input(gpp_model *model, int rank, gpp_error *err);

/** A model text that is refused. @param message  part of the record's text */
typedef struct test_refusal {
    const char *why, *text;
    gpp_status status;
    const char *message;
} test_refusal;
/** Each is refused with its place, and leaves the model, which has no open layer, as it was. */
void test_expect_refusals(gpp_model *model, const test_refusal cases[], size_t count);

/** The network in short, an operator after the other: "layer:op<values in>values out". Returns
 * `out`. */
const char *test_sketch(const gpp_model *model, char *out, size_t size);

/** Every value has one producer and at most one consumer, operators and values agree about it, and
 * operators lie in their layers. @param why  for messages */
void test_check_network(const gpp_model *model, const char *why);

#endif
