/*
 * tests/states.h: pipes that have every kind of state, and their whole state as bytes.
 */
#ifndef GPP_TESTS_STATES_H
#define GPP_TESTS_STATES_H

#include "tests/pipes.h"

/** A model with batch normalisation of images and of rows, dropout, and layers that pack
 * weights. */
extern const test_model test_stateful;

/** Options with 2 chunks and seed 7. */
gpp_pipe_options test_cut(int partitions, gpp_checkpoint mode);

/** The bytes of the pipe's state file. Two pipes with the same bytes are in the same state. Release
 * with free. @param folder  where the file is written */
char *test_state(gpp_pipe *pipe, const char *folder, size_t *size);
void test_expect_state(gpp_pipe *pipe, const char *folder, const char *bytes, size_t size,
                       const char *why);

#endif
