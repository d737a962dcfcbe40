/*
 * gridpipe: pipeline-parallel training of sequential neural networks on the StarPU task runtime.
 *
 *   gridpipe/base.h         version, data types, the caller's tensors
 *   gridpipe/error.h        status codes and the error record
 *   gridpipe/log.h          where remarks go
 *   gridpipe/model.h        layers and shapes
 *   gridpipe/pipe.h         partitions, steps, parameters, reports
 *   gridpipe/operator.h     layers of your own
 *   gridpipe/loss.h         losses of your own
 *   gridpipe/lr_schedule.h  learning rates that change
 *   gridpipe/data.h         data sets, mini-batches prepared ahead
 *   gridpipe/file.h         parameters and trainings in files
 *   gridpipe/balance.h      what layers cost, where to cut
 *   gridpipe/plan.h         steps predicted, the best pipe searched for
 *   gridpipe/trace.h        what steps did, written for viewers, summed up
 */
#ifndef GRIDPIPE_H
#define GRIDPIPE_H

#include <gridpipe/balance.h>
#include <gridpipe/base.h>
#include <gridpipe/comm.h>
#include <gridpipe/data.h>
#include <gridpipe/error.h>
#include <gridpipe/file.h>
#include <gridpipe/log.h>
#include <gridpipe/loss.h>
#include <gridpipe/lr_schedule.h>
#include <gridpipe/model.h>
#include <gridpipe/operator.h>
#include <gridpipe/pipe.h>
#include <gridpipe/plan.h>
#include <gridpipe/trace.h>

#endif
