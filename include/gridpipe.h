/*
 * gridpipe: pipeline-parallel training of sequential neural networks on the StarPU task runtime.
 *
 *   gridpipe/base.h     version, data types, the caller's tensors
 *   gridpipe/error.h    status codes and the error record
 *   gridpipe/log.h      where remarks go
 *   gridpipe/model.h    layers and shapes
 *   gridpipe/pipe.h     partitions, steps, parameters, reports
 *   gridpipe/balance.h  where to cut
 */
#ifndef GRIDPIPE_H
#define GRIDPIPE_H

#include <gridpipe/balance.h>
#include <gridpipe/base.h>
#include <gridpipe/error.h>
#include <gridpipe/log.h>
#include <gridpipe/model.h>
#include <gridpipe/operator.h>
#include <gridpipe/pipe.h>

#endif
