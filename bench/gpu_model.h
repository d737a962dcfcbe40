/*
 * bench/gpu_model.h: the network that GPUs are measured with, ResNet-50 (He et al., arXiv
 * 1512.03385): 53 convolutions of 20 or so shapes. bench/gpu_pytorch.py has the same.
 */
#ifndef GPP_BENCH_GPU_MODEL_H
#define GPP_BENCH_GPU_MODEL_H

#include "bench/common.h"

/** The network for images of 3 channels and `side` x `side` pixels, with 1000 classes.
 * @param width  channels behind the first convolution: 64, or fewer for a small network of the same
 *               form */
gpp_model *bench_resnet50(int side, int width);

#endif
