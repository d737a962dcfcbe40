/* tests/consumer/consumer.cc: the same outside program, as C++. */
#include "consumer.c"
