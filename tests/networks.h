/*
 * tests/networks.h: compiled models as text, and what holds for all of them.
 */
#ifndef GPP_TESTS_NETWORKS_H
#define GPP_TESTS_NETWORKS_H

#include "graph/model.h"

/** The network in short, an operator after the other: "layer:op<values in>values out". Returns
 * `out`. */
const char *test_sketch(const gpp_model *model, char *out, size_t size);

/** Every value has one producer and at most one consumer, operators and values agree about it, and
 * operators lie in their layers. @param why  for messages */
void test_check_network(const gpp_model *model, const char *why);

#endif
