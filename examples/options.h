/*
 * examples/options.h: the command line of the Fashion-MNIST program.
 */
#ifndef EXAMPLES_OPTIONS_H
#define EXAMPLES_OPTIONS_H

#include <gridpipe.h>

enum { MOST_PARTITIONS = 64 };

typedef struct options {
    int partitions, chunks, epochs, batch;
    long limit; /* images to train on, and to test on; 0: all */
    int balance[MOST_PARTITIONS];
    bool has_balance;
    gpp_checkpoint checkpoint;
    const char *schedule; /* NULL: the library's choice */
    double lr;
    uint64_t seed;
    const char *data;
} options;

/** Read the command line. Exits with status 0 after --help, and with status 2 after a message about
 * a wrong option. */
void options_read(options *o, int argc, char *argv[]);

#endif
