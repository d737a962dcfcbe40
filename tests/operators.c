/*
 * tests/operators.c: the table of operators, and a probe that runs a row of it.
 *
 * A new operator adds rows here: small ones, for central differences and for CUDA, and one with
 * several units of work. test_operators.c refuses an operator without them.
 *
 * On CUDA, counts that are no multiple of four take the way without packs of four.
 */
#include "tests/operators.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the table -------------------------------------------------------------------------------- */

/* clang-format off */
/* BEND(spec, why, rows, inputs...); LARGE(BEND, the same); FAR(offset, the same); WITH((other
 * fields), BEND, the same). */
#define STRAIGHT(...)      {TEST_OP(__VA_ARGS__), .bend = TEST_STRAIGHT}
#define SUMS(...)          {TEST_OP(__VA_ARGS__), .bend = TEST_SUMS}
#define CURVED(...)        {TEST_OP(__VA_ARGS__), .bend = TEST_CURVED}
#define NORMAL(...)        {TEST_OP(__VA_ARGS__), .bend = TEST_NORMAL}
#define ATTENDS(...)       {TEST_OP(__VA_ARGS__), .bend = TEST_ATTENDS}
#define FIELDS(...)        __VA_ARGS__
#define WITH(fields, bend_, ...) {TEST_OP(__VA_ARGS__), .bend = TEST_##bend_, FIELDS fields}
#define LARGE(bend_, ...)  WITH((.large = true), bend_, __VA_ARGS__)
#define FAR(offset_, ...)  WITH((.large = true, .offset = offset_), NORMAL, __VA_ARGS__)

/* Windows that a GPU adds up in double where a core does in float32. */
#define CUDA_DOUBLE 1e-5

const test_op_case test_op_cases[] = {
    STRAIGHT("linear out=5", "plain", 4, VECTOR(7)),
    STRAIGHT("linear out=5 bias=0", "without bias, one row", 1, VECTOR(7)),
    STRAIGHT("linear out=3", "over the last of two dimensions", 2, MATRIX(4, 6)),
    STRAIGHT("linear out=33", "no size a multiple of a vector", 17, VECTOR(65)),
    STRAIGHT("linear out=1", "one column out", 2, VECTOR(9)),
    STRAIGHT("linear out=4", "one column in", 2, VECTOR(1)),
    WITH((.rounds = true), STRAIGHT, "linear out=13", "rounded", 3, VECTOR(40)),
    WITH((.rounds = true), STRAIGHT, "linear out=6 bias=0", "rounded", 2, MATRIX(3, 5)),
    LARGE(STRAIGHT, "linear out=300", "", 130, VECTOR(500)),
    LARGE(STRAIGHT, "linear out=500", "columns in units, rows in blocks", 300, VECTOR(400)),
    LARGE(STRAIGHT, "linear out=2000 bias=0", "many outputs, few rows", 6, VECTOR(700)),
    WITH((.rounds = true), STRAIGHT, "conv2d out=4 kernel=3 padding=1", "as in most networks", 2,
         IMAGE(3, 6, 5)),
    STRAIGHT("conv2d out=4 kernel=3 bias=0", "one channel, without bias, one row", 1,
             IMAGE(1, 5, 5)),
    STRAIGHT("conv2d out=5 kernel=1", "pointwise", 3, IMAGE(6, 3, 4)),
    STRAIGHT("conv2d out=3 kernel=3,2 stride=2,1 padding=2,0", "nothing symmetric", 2,
             IMAGE(2, 7, 6)),
    STRAIGHT("conv2d out=4 kernel=3 padding=2 dilation=2", "dilated", 2, IMAGE(2, 7, 7)),
    STRAIGHT("conv2d out=6 kernel=3 padding=1 groups=2", "grouped", 2, IMAGE(4, 5, 5)),
    STRAIGHT("conv2d out=4 kernel=3 groups=4", "depthwise", 2, IMAGE(4, 5, 5)),
    WITH((.most = 7), STRAIGHT, "conv2d out=16 kernel=3 padding=1", "channels of whole vectors", 2,
         IMAGE(16, 4, 4)),
    WITH((.most = 7), STRAIGHT, "conv2d out=2 kernel=5 stride=3", "last rows unused", 1,
         IMAGE(2, 10, 10)),
    STRAIGHT("conv2d out=5 kernel=1 stride=2", "pointwise with a stride", 2, IMAGE(6, 3, 4)),
    STRAIGHT("conv2d out=6 kernel=1 groups=3", "pointwise in groups", 2, IMAGE(9, 3, 2)),
    STRAIGHT("conv2d out=4 kernel=2 dilation=3,2 groups=2", "grouped and dilated", 2,
             IMAGE(6, 5, 6)),
    STRAIGHT("conv2d out=6 kernel=3,2 stride=2 padding=1 groups=2", "grouped with a stride", 2,
             IMAGE(4, 6, 5)),
    STRAIGHT("conv2d out=3 kernel=4,3", "a kernel as large as the image", 2, IMAGE(2, 4, 3)),
    WITH((.rounds = true, .most = 7), STRAIGHT, "conv2d out=2 kernel=3 padding=1",
         "what the emulated cuDNN lists and then refuses", 2, IMAGE(2, 66, 2)),
    WITH((.rounds = true), STRAIGHT, "conv2d out=4 kernel=1 bias=0", "rounded, pointwise", 2,
         IMAGE(3, 6, 5)),
    WITH((.rounds = true), STRAIGHT, "conv2d out=4 kernel=2 dilation=2 groups=2",
         "rounded, by columns", 2, IMAGE(4, 5, 5)),
    LARGE(STRAIGHT, "conv2d out=24 kernel=3 padding=1", "", 9, IMAGE(16, 28, 28)),
    LARGE(STRAIGHT, "conv2d out=40 kernel=3 padding=1", "partial sums, the last unit smaller", 21,
          IMAGE(24, 28, 28)),
    LARGE(STRAIGHT, "conv2d out=64 kernel=3 padding=1", "one row a unit", 5, IMAGE(32, 48, 48)),
    LARGE(STRAIGHT, "conv2d out=64 kernel=3 padding=1 groups=2", "in groups", 9,
          IMAGE(64, 30, 30)),
    LARGE(STRAIGHT, "conv2d out=128 kernel=1", "1 x 1", 16, IMAGE(128, 28, 28)),
    LARGE(STRAIGHT, "conv2d out=32 kernel=3 padding=1", "", 16, IMAGE(1, 28, 28)),
    LARGE(STRAIGHT, "conv2d out=32 kernel=3 stride=2 groups=4", "", 7, IMAGE(32, 17, 17)),
    STRAIGHT("maxpool2d kernel=2", "as in most networks", 2, IMAGE(3, 6, 4)),
    STRAIGHT("maxpool2d kernel=3 stride=2 padding=1", "overlapping, padded", 2, IMAGE(2, 7, 6)),
    STRAIGHT("maxpool2d kernel=2,3 stride=1,2", "nothing symmetric", 2, IMAGE(2, 5, 7)),
    STRAIGHT("maxpool2d kernel=2 dilation=2 stride=1", "dilated", 2, IMAGE(2, 5, 5)),
    STRAIGHT("maxpool2d kernel=3 stride=2 ceil=1", "windows that stick out", 2, IMAGE(2, 6, 6)),
    WITH((.values = TEST_TIES), STRAIGHT, "maxpool2d kernel=3 stride=1 padding=1",
         "the first of equal ones wins", 2, IMAGE(3, 5, 5)),
    WITH((.values = TEST_SPECIAL), STRAIGHT, "maxpool2d kernel=2 stride=1", "a NaN wins", 2,
         IMAGE(4, 5, 5)),
    STRAIGHT("maxpool2d kernel=2,3 stride=2,1 padding=1 dilation=2,1", "gaps in the window", 2,
             IMAGE(4, 8, 7)),
    STRAIGHT("maxpool2d kernel=3 stride=1 padding=1 dilation=3", "gaps wider than the stride", 2,
             IMAGE(2, 9, 10)),
    STRAIGHT("maxpool2d kernel=2 stride=3 padding=1 ceil=1", "no last window in the padding", 2,
             IMAGE(3, 7, 6)),
    WITH((.most = 2), STRAIGHT, "maxpool2d kernel=17 stride=3 padding=8", "places of four bytes",
         2, IMAGE(2, 20, 19)),
    STRAIGHT("maxpool2d kernel=2 stride=3", "strides that leave inputs out", 2, IMAGE(3, 8, 8)),
    STRAIGHT("maxpool2d kernel=2", "one channel", 2, IMAGE(1, 4, 4)),
    LARGE(STRAIGHT, "maxpool2d kernel=2", "", 9, IMAGE(32, 28, 28)),
    LARGE(STRAIGHT, "maxpool2d kernel=3 stride=2 padding=1", "", 9, IMAGE(19, 31, 30)),
    LARGE(STRAIGHT, "maxpool2d kernel=3 stride=2 padding=1", "channels of whole vectors", 20,
          IMAGE(24, 31, 31)),
    STRAIGHT("relu", "vector", 3, VECTOR(37)),
    STRAIGHT("relu", "image", 2, IMAGE(3, 4, 5)),
    STRAIGHT("relu", "one number a row", 5, NUMBER),
    WITH((.values = TEST_TIES), STRAIGHT, "relu", "at its kink, in fours", 2, VECTOR(12)),
    LARGE(STRAIGHT, "relu", "", 3, IMAGE(30, 57, 59)),
    STRAIGHT("flatten", "image", 2, IMAGE(3, 4, 5)),
    STRAIGHT("flatten", "one channel: a view", 2, IMAGE(1, 4, 5)),
    STRAIGHT("flatten", "matrix: a view", 3, MATRIX(4, 5)),
    STRAIGHT("flatten", "tiles with edges", 2, IMAGE(9, 3, 7)),
    LARGE(STRAIGHT, "flatten", "", 5, IMAGE(30, 57, 59)),
    STRAIGHT("dropout", "half", 3, VECTOR(50)),
    STRAIGHT("dropout p=0.2", "image", 2, IMAGE(3, 4, 5)),
    STRAIGHT("dropout p=0", "nothing dropped: a view", 2, VECTOR(9)),
    STRAIGHT("dropout p=1", "everything dropped", 2, VECTOR(9)),
    STRAIGHT("dropout p=0.25", "whole blocks of 32", 2, VECTOR(96)),
    LARGE(STRAIGHT, "dropout p=0.3", "", 3, IMAGE(30, 57, 59)),
    STRAIGHT("dropout2d", "half of the channels", 3, IMAGE(5, 4, 3)),
    STRAIGHT("dropout2d p=0", "nothing dropped: a view", 2, IMAGE(5, 4, 3)),
    STRAIGHT("dropout2d p=0.3", "channels in fours", 2, IMAGE(8, 2, 3)),
    LARGE(STRAIGHT, "dropout2d p=0.3", "", 3, IMAGE(30, 57, 59)),
    STRAIGHT("identity", "image", 2, IMAGE(3, 4, 5)),
    STRAIGHT("identity", "vector", 2, VECTOR(4)),
    LARGE(STRAIGHT, "identity", "", 3, VECTOR(100000)),
    SUMS("add", "two", 3, MATRIX(3, 4), MATRIX(3, 4)),
    SUMS("add", "four", 2, IMAGE(3, 4, 5), IMAGE(3, 4, 5), IMAGE(3, 4, 5), IMAGE(3, 4, 5)),
    SUMS("add", "numbers", 5, NUMBER, NUMBER),
    SUMS("add", "four, no multiple of four", 2, IMAGE(3, 3, 1), IMAGE(3, 3, 1), IMAGE(3, 3, 1),
         IMAGE(3, 3, 1)),
    LARGE(SUMS, "add", "", 3, IMAGE(30, 57, 59), IMAGE(30, 57, 59), IMAGE(30, 57, 59)),
    CURVED("mul", "two", 3, MATRIX(3, 4), MATRIX(3, 4)),
    CURVED("mul", "three", 2, VECTOR(37), VECTOR(37), VECTOR(37)),
    WITH((.values = TEST_TIES), CURVED, "mul", "zeros here and there", 2, MATRIX(3, 5),
         MATRIX(3, 5), MATRIX(3, 5)),
    LARGE(CURVED, "mul", "", 3, VECTOR(100000), VECTOR(100000)),
    SUMS("cat dim=1", "channels", 2, IMAGE(3, 4, 5), IMAGE(2, 4, 5)),
    SUMS("cat dim=2", "lines", 2, IMAGE(3, 4, 5), IMAGE(3, 1, 5)),
    SUMS("cat dim=-1", "columns", 2, IMAGE(3, 4, 5), IMAGE(3, 4, 2), IMAGE(3, 4, 1)),
    SUMS("cat dim=1", "vectors", 3, VECTOR(5), VECTOR(7), VECTOR(1)),
    SUMS("cat dim=2", "rank 4", 2, VOLUME(2, 3, 4, 2), VOLUME(2, 5, 4, 2)),
    SUMS("cat dim=1", "channels, in fours", 2, IMAGE(4, 3, 2), IMAGE(8, 3, 2)),
    SUMS("cat dim=1", "channels, one of them in fours", 2, IMAGE(4, 3, 2), IMAGE(3, 3, 2),
         IMAGE(1, 3, 2)),
    SUMS("cat dim=-1", "the last of two", 2, MATRIX(3, 2), MATRIX(3, 6)),
    SUMS("cat dim=1", "the only one", 2, VECTOR(5)),
    LARGE(SUMS, "cat", "", 3, IMAGE(30, 57, 59), IMAGE(5, 57, 59)),
    SUMS("split dim=1 parts=3", "channels", 2, IMAGE(6, 4, 5)),
    SUMS("split dim=2 parts=2", "lines", 2, IMAGE(3, 4, 5)),
    SUMS("split dim=-1 parts=2", "the last", 3, MATRIX(3, 8)),
    SUMS("split dim=1 parts=1", "one part", 3, VECTOR(7)),
    SUMS("split dim=1 parts=3", "channels, in fours", 2, IMAGE(12, 2, 2)),
    SUMS("split dim=3 parts=2", "columns", 2, IMAGE(3, 2, 6)),
    SUMS("split dim=1 parts=4", "a vector", 2, VECTOR(20)),
    LARGE(SUMS, "split parts=2", "", 3, IMAGE(30, 57, 59)),
    SUMS("pop name=a mode=add", "add", 2, IMAGE(3, 4, 5), IMAGE(3, 4, 5)),
    SUMS("pop name=a mode=add pad=1", "add, both padded", 2, IMAGE(3, 4, 5), IMAGE(3, 5, 3)),
    SUMS("pop name=a mode=cat pad=1", "U-Net's", 2, IMAGE(3, 4, 4), IMAGE(2, 5, 5)),
    SUMS("pop name=a mode=cat pad=1 dim=3", "lines pad", 2, IMAGE(3, 4, 4), IMAGE(3, 5, 2)),
    SUMS("pop name=a mode=cat dim=1 pad=1", "vectors", 3, VECTOR(16), VECTOR(15)),
    SUMS("pop name=a mode=add pad=1", "add, the skip larger, in fours", 2, IMAGE(4, 2, 3),
         IMAGE(4, 3, 5)),
    SUMS("pop name=a mode=cat dim=1", "channels, in fours", 2, IMAGE(4, 3, 3), IMAGE(8, 3, 3)),
    SUMS("pop name=a mode=cat dim=1 pad=1", "each larger in one direction", 2, IMAGE(4, 3, 5),
         IMAGE(2, 4, 3)),
    LARGE(SUMS, "pop name=a mode=cat pad=1", "", 3, IMAGE(16, 56, 58), IMAGE(8, 57, 59)),
    LARGE(SUMS, "pop name=a mode=add pad=1", "", 3, IMAGE(16, 56, 58), IMAGE(16, 55, 59)),
    SUMS("combine mode=add", "add", 2, MATRIX(3, 4), MATRIX(3, 4)),
    SUMS("combine mode=cat dim=2", "cat", 2, MATRIX(3, 4), MATRIX(3, 2)),
    SUMS("combine mode=add", "no multiple of four", 2, MATRIX(3, 3), MATRIX(3, 3)),
    SUMS("combine mode=add", "single numbers", 2, NUMBER, NUMBER),
    SUMS("combine mode=cat dim=3", "columns", 2, IMAGE(4, 3, 2), IMAGE(4, 3, 1)),
    LARGE(SUMS, "combine mode=add", "", 3, VECTOR(50001), VECTOR(50001)),
    SUMS("stash name=a", "two views", 2, IMAGE(3, 4, 5)),
    SUMS("unstash name=a", "one view", 2, MATRIX(3, 4)),
    SUMS("fork outputs=3", "three views", 2, IMAGE(3, 4, 5)),
    SUMS("pass", "two views", 2, IMAGE(3, 4, 5), VECTOR(4)),
    SUMS("channels_last", "image", 2, IMAGE(3, 4, 5)),
    SUMS("channels_last", "a view", 2, IMAGE(1, 4, 5)),
    SUMS("channels_last", "few pixels: no tiles", 2, IMAGE(70, 2, 2)),
    SUMS("channels_last", "part of a tile", 2, IMAGE(9, 3, 4)),
    SUMS("channels_last", "parts of tiles on both sides", 2, IMAGE(45, 5, 7)),
    LARGE(SUMS, "channels_last", "", 3, IMAGE(30, 57, 59)),
    SUMS("channels_first", "three colours: no tiles", 2, IMAGE(3, 7, 9)),
    SUMS("channels_first", "parts of tiles", 2, IMAGE(33, 6, 11)),
    SUMS("channels_first", "whole tiles", 2, IMAGE(32, 8, 8)),
    CURVED("tanh", "", 2, MATRIX(5, 7)),
    CURVED("tanh", "one number", 2, VECTOR(1)),
    LARGE(CURVED, "tanh", "", 3, IMAGE(30, 57, 59)),
    CURVED("sigmoid", "", 2, VECTOR(37)),
    WITH((.least = 33), CURVED, "sigmoid", "more than a grid has threads", 2, VECTOR(4001)),
    LARGE(CURVED, "sigmoid", "", 3, VECTOR(50001)),
    CURVED("gelu", "erf", 2, IMAGE(3, 4, 5)),
    CURVED("gelu approximate=tanh", "tanh", 2, VECTOR(37)),
    LARGE(CURVED, "gelu", "", 3, IMAGE(30, 57, 59)),
    CURVED("silu", "", 2, VECTOR(37)),
    CURVED("silu", "in fours", 2, IMAGE(4, 4, 3)),
    LARGE(CURVED, "silu", "", 3, VECTOR(50001)),
    CURVED("softplus", "", 2, VECTOR(37)),
    CURVED("softplus beta=3 threshold=30", "beta", 2, VECTOR(37)),
    SUMS("softplus beta=2 threshold=-50", "above the threshold", 2, VECTOR(37)),
    CURVED("softplus", "in fours", 2, VECTOR(12)),
    SUMS("softplus beta=2 threshold=1", "on both sides of the threshold", 2, VECTOR(30)),
    LARGE(CURVED, "softplus", "", 3, IMAGE(30, 57, 59)),
    SUMS("leaky_relu", "", 2, VECTOR(37)),
    SUMS("leaky_relu slope=0.3", "slope", 2, IMAGE(3, 4, 5)),
    SUMS("leaky_relu slope=0", "as relu", 2, VECTOR(9)),
    WITH((.values = TEST_TIES), SUMS, "leaky_relu slope=0.1", "at its kink", 2, VECTOR(7)),
    LARGE(SUMS, "leaky_relu", "", 3, IMAGE(30, 57, 59)),
    SUMS("relu6", "", 1, VECTOR(150)),
    WITH((.values = TEST_TIES), SUMS, "relu6", "at its kink", 2, IMAGE(4, 3, 2)),
    LARGE(SUMS, "relu6", "", 3, VECTOR(50001)),
    SUMS("hardtanh", "", 2, VECTOR(37)),
    SUMS("hardtanh min=-0.5 max=2", "ends", 2, VECTOR(37)),
    WITH((.values = TEST_TIES), SUMS, "hardtanh min=-1 max=2", "at its ends", 2, VECTOR(10)),
    LARGE(SUMS, "hardtanh", "", 3, VECTOR(50001)),
    CURVED("elu alpha=1", "smooth at 0", 2, VECTOR(37)),
    SUMS("elu alpha=1.5", "a kink at 0", 2, VECTOR(13)),
    CURVED("elu", "in fours", 2, VECTOR(8)),
    LARGE(CURVED, "elu", "", 3, VECTOR(50001)),
    SUMS("adaptive_avgpool2d out=1", "mean of all", 2, IMAGE(4, 5, 6)),
    SUMS("adaptive_avgpool2d out=2,3", "overlapping", 2, IMAGE(3, 7, 8)),
    SUMS("adaptive_avgpool2d out=5,4", "larger", 2, IMAGE(9, 3, 3)),
    SUMS("adaptive_avgpool2d out=1", "the mean of small images", 2, IMAGE(33, 4, 5)),
    WITH((.off = CUDA_DOUBLE), SUMS, "adaptive_avgpool2d out=1", "the mean of images", 2,
         IMAGE(33, 9, 8)),
    WITH((.off = CUDA_DOUBLE, .most = 7), SUMS, "adaptive_avgpool2d out=2,3",
         "large uneven windows", 2, IMAGE(4, 19, 29)),
    LARGE(SUMS, "adaptive_avgpool2d out=3", "", 3, IMAGE(30, 57, 59)),
    SUMS("avgpool2d kernel=2", "", 2, IMAGE(3, 6, 4)),
    SUMS("avgpool2d kernel=3,2 stride=2,1 padding=1,0", "asymmetric", 2, IMAGE(34, 7, 6)),
    SUMS("avgpool2d kernel=3 stride=2 padding=1 count_include_pad=0", "", 2, IMAGE(3, 8, 9)),
    SUMS("avgpool2d kernel=3 stride=2 ceil=1", "windows stick out", 2, IMAGE(3, 6, 6)),
    SUMS("avgpool2d kernel=5 stride=5 padding=2 ceil=1", "only padding", 1, IMAGE(2, 4, 9)),
    SUMS("avgpool2d kernel=3 stride=2 padding=1", "means that overlap", 2, IMAGE(9, 7, 8)),
    SUMS("avgpool2d kernel=3,2 stride=2,1 padding=1 count_include_pad=0", "in fours", 2,
         IMAGE(4, 7, 5)),
    SUMS("avgpool2d kernel=3 stride=2 padding=1 ceil=1", "over edge and padding", 2,
         IMAGE(5, 6, 7)),
    WITH((.off = CUDA_DOUBLE, .large = true, .most = 7), SUMS, "avgpool2d kernel=9 stride=4 padding=2",
         "large windows", 2, IMAGE(35, 17, 14)),
    WITH((.off = CUDA_DOUBLE, .most = 7), SUMS,
         "avgpool2d kernel=9 stride=4 padding=3 count_include_pad=0", "large windows, padded", 2,
         IMAGE(3, 17, 14)),
    LARGE(SUMS, "avgpool2d kernel=3 stride=2 padding=1", "", 3, IMAGE(30, 57, 59)),
    SUMS("upsample scale=2", "nearest", 2, IMAGE(3, 4, 5)),
    SUMS("upsample scale=3,1", "of one side", 2, IMAGE(40, 2, 3)),
    SUMS("upsample size=3,5", "smaller: some inputs unused", 2, IMAGE(2, 8, 7)),
    SUMS("upsample scale=2 mode=bilinear", "bilinear", 2, IMAGE(3, 4, 5)),
    SUMS("upsample size=7,3 mode=bilinear align_corners=1", "corners", 2, IMAGE(3, 4, 5)),
    SUMS("upsample size=1 mode=bilinear align_corners=1", "one pixel", 2, IMAGE(3, 4, 5)),
    SUMS("upsample scale=2", "nearest, in fours", 2, IMAGE(4, 3, 5)),
    SUMS("upsample size=7,3", "nearest, to a size", 2, IMAGE(3, 4, 5)),
    SUMS("upsample scale=2 mode=bilinear", "bilinear, in fours", 2, IMAGE(8, 3, 4)),
    SUMS("upsample scale=3,5 mode=bilinear", "by two factors", 2, IMAGE(2, 3, 2)),
    SUMS("upsample size=9,7 mode=bilinear align_corners=1", "corners, in fours", 2,
         IMAGE(4, 4, 3)),
    SUMS("upsample size=1,6 mode=bilinear align_corners=1", "one line", 2, IMAGE(1, 4, 3)),
    SUMS("upsample size=2,3 mode=bilinear", "bilinear, some inputs unused", 2, IMAGE(4, 9, 10)),
    SUMS("upsample scale=4 mode=bilinear", "of one pixel", 2, IMAGE(3, 1, 1)),
    LARGE(SUMS, "upsample scale=2 mode=bilinear", "", 3, IMAGE(30, 33, 35)),
    SUMS("pad left=1 top=2", "some sides", 2, IMAGE(3, 4, 5)),
    SUMS("pad left=1 right=2 top=3 bottom=4 value=-4", "all sides", 2, IMAGE(9, 4, 5)),
    SUMS("pad", "none: a view", 2, IMAGE(2, 3, 3)),
    SUMS("pad right=1", "one side, in fours", 2, IMAGE(8, 3, 3)),
    LARGE(SUMS, "pad left=1 bottom=1", "", 3, IMAGE(30, 57, 59)),
    CURVED("softmax", "last", 3, VECTOR(9)),
    CURVED("softmax dim=1", "channels", 2, IMAGE(5, 3, 4)),
    CURVED("softmax dim=2", "lines", 2, IMAGE(5, 3, 4)),
    WITH((.most = 7), CURVED, "softmax dim=1", "strided, several blocks", 2, MATRIX(5, 70)),
    CURVED("softmax", "many lines to a block", 2, VECTOR(3)),
    CURVED("softmax", "one class", 2, VECTOR(1)),
    CURVED("softmax", "a block for a line", 2, VECTOR(700)),
    WITH((.least = 33), CURVED, "softmax", "more lines than blocks", 2, MATRIX(90, 33)),
    LARGE(CURVED, "softmax dim=1", "", 3, IMAGE(30, 57, 59)),
    CURVED("log_softmax", "last", 2, MATRIX(4, 17)),
    CURVED("log_softmax dim=1", "the first of two", 2, MATRIX(9, 40)),
    CURVED("log_softmax dim=3", "columns", 2, IMAGE(5, 3, 21)),
    WITH((.values = TEST_TIES), CURVED, "log_softmax", "ties", 2, VECTOR(33)),
    LARGE(CURVED, "log_softmax", "", 3, MATRIX(300, 500)),
    SUMS("conv_transpose2d out=3 kernel=3 stride=2 padding=1 output_padding=1", "doubles", 2,
         IMAGE(4, 4, 5)),
    SUMS("conv_transpose2d out=6 kernel=2,3 groups=2 bias=0", "groups", 2, IMAGE(4, 3, 4)),
    SUMS("conv_transpose2d out=2 kernel=3 dilation=2", "dilated", 1, IMAGE(3, 3, 3)),
    SUMS("conv_transpose2d out=3 kernel=2 stride=2", "no overlap", 2, IMAGE(4, 3, 5)),
    SUMS("conv_transpose2d out=2 kernel=3 stride=2 output_padding=1", "without padding", 2,
         IMAGE(3, 4, 3)),
    SUMS("conv_transpose2d out=4 kernel=3,2 stride=1,2 padding=1,0", "nothing symmetric", 2,
         IMAGE(3, 4, 3)),
    SUMS("conv_transpose2d out=4 kernel=1 bias=0", "pointwise", 2, IMAGE(3, 4, 3)),
    SUMS("conv_transpose2d out=4 kernel=2 dilation=2 groups=2", "grouped and dilated", 2,
         IMAGE(6, 3, 4)),
    SUMS("conv_transpose2d out=6 kernel=3 stride=2 groups=3", "grouped with a stride", 2,
         IMAGE(3, 3, 4)),
    WITH((.rounds = true), SUMS, "conv_transpose2d out=3 kernel=3 stride=2", "rounded", 2,
         IMAGE(4, 3, 3)),
    LARGE(SUMS, "conv_transpose2d out=16 kernel=2 stride=2", "", 9, IMAGE(32, 20, 20)),
    WITH((.least = 7), NORMAL, "batchnorm", "vector", 8, VECTOR(5)),
    WITH((.least = 7), NORMAL, "batchnorm", "one channel", 4, VECTOR(1)),
    WITH((.least = 7), NORMAL, "batchnorm", "wide lines, rows no multiple of eight", 33,
         VECTOR(70)),
    WITH((.least = 2), NORMAL, "batchnorm eps=0.5", "two rows: a gradient that nearly cancels", 2,
         VECTOR(3)),
    WITH((.least = 300, .most = 300), NORMAL, "batchnorm", "rows for several chunks", 40,
         VECTOR(40)),
    NORMAL("batchnorm", "row-major channels", 4, MATRIX(3, 7)),
    NORMAL("batchnorm", "row-major, one row", 1, MATRIX(2, 40)),
    NORMAL("batchnorm", "image", 4, IMAGE(5, 3, 6)),
    NORMAL("batchnorm", "one image", 1, IMAGE(3, 9, 11)),
    NORMAL("batchnorm affine=0", "no affine", 2, IMAGE(4, 3, 3)),
    NORMAL("batchnorm track=0 eps=0.1", "no tracking, large eps", 3, IMAGE(64, 2, 2)),
    NORMAL("batchnorm", "image of one channel", 3, IMAGE(1, 5, 5)),
    NORMAL("batchnorm", "more channels than a block is wide", 2, IMAGE(70, 3, 3)),
    WITH((.most = 2), NORMAL, "batchnorm", "lines longer than a block", 2, MATRIX(3, 700)),
    WITH((.most = 7), NORMAL, "batchnorm", "more lines than a chunk", 2, IMAGE(3, 40, 30)),
    NORMAL("batchnorm affine=0 track=0", "nothing but the numbers", 2, MATRIX(3, 5)),
    NORMAL("batchnorm momentum=none", "cumulative", 2, IMAGE(5, 2, 2)),
    NORMAL("batchnorm deferred=1", "deferred", 2, IMAGE(5, 2, 2)),
    NORMAL("batchnorm deferred=1 momentum=none", "deferred, cumulative", 2, MATRIX(2, 3)),
    WITH((.values = TEST_TIES), NORMAL, "batchnorm", "ties", 2, IMAGE(4, 3, 3)),
    LARGE(NORMAL, "batchnorm", "units of images", 9, IMAGE(19, 31, 30)),
    LARGE(NORMAL, "batchnorm", "units of rows", 1000, VECTOR(300)),
    LARGE(NORMAL, "batchnorm", "units of channels", 9, MATRIX(40, 900)),
    FAR(1e4, "batchnorm", "offset 1e4, few channels", 40, IMAGE(3, 64, 64)),
    FAR(-1e4, "batchnorm", "offset -1e4, row-major", 5, MATRIX(8, 4000)),
    NORMAL("layernorm shape=16", "as in a transformer", 3, MATRIX(4, 16)),
    NORMAL("layernorm shape=33 affine=0", "vector, no affine", 5, VECTOR(33)),
    NORMAL("layernorm shape=4,5", "the whole sample", 3, MATRIX(4, 5)),
    NORMAL("layernorm shape=5", "image, last dimension", 2, IMAGE(3, 4, 5)),
    NORMAL("layernorm shape=4,5", "image, channel by channel", 2, IMAGE(3, 4, 5)),
    NORMAL("layernorm shape=3,4,5", "whole image", 2, IMAGE(3, 4, 5)),
    NORMAL("layernorm shape=3 eps=0.01", "lines shorter than a vector", 3, MATRIX(30, 3)),
    NORMAL("layernorm shape=1", "one number a line leaves the bias", 2, MATRIX(3, 1)),
    NORMAL("layernorm shape=48", "lines of a sequence", 2, MATRIX(5, 48)),
    NORMAL("layernorm shape=9", "more lines than a chunk", 2, MATRIX(40, 9)),
    WITH((.large = true, .most = 7), NORMAL, "layernorm shape=5000", "a line for a block", 2,
         VECTOR(5000)),
    WITH((.large = true, .most = 2), NORMAL, "layernorm shape=9001", "a line for a large block", 2,
         VECTOR(9001)),
    LARGE(NORMAL, "layernorm shape=768", "units of lines", 3, MATRIX(128, 768)),
    FAR(1e4, "layernorm shape=500", "offset 1e4", 2, MATRIX(300, 500)),
    NORMAL("groupnorm groups=2", "image", 3, IMAGE(6, 4, 5)),
    NORMAL("groupnorm groups=1", "one group", 2, IMAGE(7, 3, 3)),
    NORMAL("groupnorm groups=2", "vector", 3, VECTOR(12)),
    NORMAL("groupnorm groups=3 affine=0", "row-major, no affine", 3, MATRIX(6, 9)),
    NORMAL("groupnorm groups=2", "groups wider than a block", 2, IMAGE(90, 2, 2)),
    WITH((.most = 7), NORMAL, "groupnorm groups=2", "more lines in a row than a chunk", 2,
         IMAGE(4, 30, 29)),
    NORMAL("groupnorm groups=2", "row-major", 2, MATRIX(4, 9)),
    NORMAL("groupnorm groups=2 affine=0", "image, no affine", 2, IMAGE(4, 3, 3)),
    LARGE(NORMAL, "groupnorm groups=8", "units of rows", 5, IMAGE(64, 28, 28)),
    FAR(1e4, "groupnorm groups=4", "offset 1e4", 7, IMAGE(12, 40, 40)),
    NORMAL("instancenorm", "image", 3, IMAGE(4, 5, 6)),
    WITH((.most = 7), NORMAL, "instancenorm affine=1", "affine, wide", 2, IMAGE(70, 3, 5)),
    NORMAL("instancenorm affine=1", "row-major", 2, MATRIX(3, 17)),
    FAR(1e4, "instancenorm affine=1", "offset 1e4", 5, IMAGE(32, 40, 40)),
    LARGE(NORMAL, "instancenorm affine=1", "row-major", 5, MATRIX(16, 5000)),
    ATTENDS("self_attention heads=2", "small", 2, MATRIX(5, 6)),
    ATTENDS("self_attention heads=3 causal=1", "small, causal", 2, MATRIX(7, 6)),
    ATTENDS("self_attention heads=1", "one position", 3, MATRIX(1, 4)),
    WITH((.most = 7), ATTENDS, "self_attention heads=4 causal=1", "heads of one column, one row", 1,
         MATRIX(6, 4)),
    ATTENDS("self_attention heads=1", "one head", 2, MATRIX(5, 4)),
    WITH((.rounds = true), ATTENDS, "self_attention heads=2", "rounded", 2, MATRIX(6, 8)),
    WITH((.rounds = true), ATTENDS, "self_attention heads=4 causal=1", "rounded, causal", 2,
         MATRIX(5, 8)),
    WITH((.most = 2), ATTENDS, "self_attention heads=2 causal=1",
         "two strips of a core, more keys than a warp has threads", 2, MATRIX(66, 10)),
    WITH((.large = true, .most = 1), ATTENDS, "self_attention heads=1",
         "two strips of a GPU, the second short", 1, MATRIX(515, 2)),
    WITH((.large = true, .most = 1), ATTENDS, "self_attention heads=1 causal=1",
         "causal: early strips see fewer keys", 1, MATRIX(515, 2)),
    LARGE(ATTENDS, "self_attention heads=2", "a whole strip, 320 positions", 5, MATRIX(64, 32)),
    LARGE(ATTENDS, "self_attention heads=2 causal=1", "two whole strips", 2, MATRIX(128, 48)),
    LARGE(ATTENDS, "self_attention heads=3 causal=1", "nothing a multiple of anything", 3,
          MATRIX(131, 51)),
    LARGE(ATTENDS, "self_attention heads=3", "the same, not causal", 3, MATRIX(131, 51)),
    LARGE(ATTENDS, "self_attention heads=1", "columns of a head beyond a block", 2, MATRIX(9, 300)),
    LARGE(ATTENDS, "self_attention heads=4 causal=1", "keys beyond a block", 1, MATRIX(290, 16)),
    LARGE(ATTENDS, "self_attention heads=8", "many rows", 40, MATRIX(16, 128)),
    SUMS("embedding num=7 dim=5", "sequences", 4, INDICES(6)),
    SUMS("embedding num=11 dim=3", "images of indices", 2, INDICES(4, 5)),
    SUMS("embedding num=11 dim=3", "three dimensions", 2, INDICES(2, 2, 3)),
    SUMS("embedding num=5 dim=2 padding_idx=-1", "padding, the last row", 3, INDICES(8)),
    SUMS("embedding num=5 dim=2 padding_idx=2", "padding", 3, INDICES(8)),
    SUMS("embedding num=7 dim=3", "one index a row", 9, INDEX),
    SUMS("embedding num=3 dim=2 padding_idx=0", "padding row 0", 2, INDICES(4)),
    SUMS("embedding num=5 dim=4 padding_idx=-4", "padding from the end", 2, INDICES(6)),
    SUMS("embedding num=2 dim=5", "most positions alike", 2, INDICES(9)),
    SUMS("embedding num=50 dim=8", "in fours", 2, INDICES(7)),
    SUMS("embedding num=255 dim=1", "just one digit", 2, INDICES(31)),
    SUMS("embedding num=256 dim=1", "just two digits", 2, INDICES(31)),
    SUMS("embedding num=900 dim=6", "two digits, several tiles", 2, INDICES(70)),
    WITH((.most = 7), SUMS, "embedding num=70000 dim=2", "three digits", 2, INDICES(31)),
    SUMS("embedding num=4 dim=300", "more columns than threads", 2, INDICES(3)),
    LARGE(SUMS, "embedding num=50 dim=100", "", 40, INDICES(90)),
    SUMS("position_embedding length=8", "as many as there are", 5, MATRIX(8, 6)),
    SUMS("position_embedding length=8", "fewer than there are", 4, MATRIX(3, 5)),
    SUMS("position_embedding length=9", "in fours", 2, MATRIX(6, 8)),
    SUMS("position_embedding length=1", "one number", 1, MATRIX(1, 1)),
    SUMS("position_embedding length=5", "more columns than a block's", 2, MATRIX(4, 37)),
    LARGE(SUMS, "position_embedding length=99", "", 33, MATRIX(90, 70)),
};
/* clang-format on */
const size_t test_op_count = sizeof test_op_cases / sizeof *test_op_cases;

bool test_op_is(const test_op_case *c, const char *name)
{
    size_t length = strlen(name);
    return strncmp(c->spec, name, length) == 0 &&
           (c->spec[length] == ' ' || c->spec[length] == '\0');
}

/* --- making a probe --------------------------------------------------------------------------- */

static test_rig *rig_of(const test_op_case *c, int64_t rows, int threads)
{
    const int64_t batch[GPP__BATCHES] = {rows};
    gpp_error err = GPP_ERROR_INIT;
    test_rig *rig;
    gpp_status status =
        test_rig_new_tuple(&rig, c->spec, 0, c->in, c->inputs, batch, threads, &err);
    cr_assert_eq(status, GPP_OK, "%s: %s", c->spec, err.msg);
    rig->run.err = NULL;
    return rig;
}

static void fill_indices(const test_op_case *c, int64_t *x, int64_t count, uint64_t seed)
{
    const char *num = strstr(c->spec, "num=");
    cr_assert(num, "%s: what may its integers be?", c->spec);
    for (uint64_t k = 0; k < (uint64_t)count; k++)
        x[k] = (int64_t)((k * 7919 + seed * 31) / 2 % strtoull(num + 4, NULL, 10));
}

static float special(int64_t k)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0.0f, -0.0f, 90.0f};
    return values[k % 8];
}

void test_op_fill(const test_op_case *c, int t, void *x, int64_t count, uint64_t seed, double lo,
                  double hi)
{
    float *f = x;
    if (c->in[t].dtype == GPP_I64) {
        fill_indices(c, x, count, seed);
        return;
    }
    test_fill(f, count, seed, lo, hi);
    for (int64_t k = 0; k < count && c->values == TEST_TIES; k++)
        f[k] = roundf(f[k]);
    for (int64_t k = (int64_t)seed % 5; k < count && c->values == TEST_SPECIAL; k += 11)
        f[k] = special(k / 11);
}

static void fill_input(test_probe *p, int t)
{
    const test_op_case *c = p->c;
    bool integers = c->in[t].dtype == GPP_I64;
    int64_t count = test_rig_input(p->rig, t);
    double most = c->bend == TEST_CURVED ? 2 : 1;
    p->x[t] = test_room((size_t)count * gpp_dtype_size(c->in[t].dtype));
    p->grad[t] = integers ? NULL : test_floats(count);
    test_op_fill(c, t, p->x[t], count, 30 + (uint64_t)t, c->offset - most, c->offset + most);
}

static void fill_params(test_probe *p)
{
    double lo = -1, hi = p->c->bend == TEST_NORMAL ? 2 : 1;
    if (p->c->bend == TEST_ATTENDS) {
        hi = 2 / sqrt((double)p->c->in[0].dim[1]);
        lo = -hi;
    }
    for (int k = 0; k < p->rig->layer.param_count; k++)
        if (!p->rig->layer.param[k].buffer)
            test_fill(test_rig_param(p->rig, k), p->rig->layer.param[k].count, 100 + (uint64_t)k,
                      lo, hi);
}

test_probe test_probe_new(const test_op_case *c, int64_t rows, int threads)
{
    test_probe p = {.c = c, .rig = rig_of(c, rows ? rows : c->rows, threads), .inputs = c->inputs};
    p.outputs = p.rig->layer.out_count;
    for (int t = 0; t < p.inputs; t++)
        fill_input(&p, t);
    for (int t = 0; t < p.outputs; t++) {
        int64_t count = test_rig_output(p.rig, t);
        p.y[t] = test_floats(count);
        p.w[t] = test_floats(count);
        test_fill(p.w[t], count, 70 + (uint64_t)t, -1, 1);
    }
    fill_params(&p);
    return p;
}

void test_probe_free(test_probe *p)
{
    for (int t = 0; t < GPP__MAX_TENSORS; t++) {
        free(p->x[t]);
        free(p->y[t]);
        free(p->w[t]);
        free(p->grad[t]);
    }
    test_rig_free(p->rig);
}

/* --- running it ------------------------------------------------------------------------------- */

double test_probe_value(test_probe *p)
{
    double sum = 0;
    cr_assert_eq(test_rig_forward_tuple(p->rig, (const void *const *)p->x, p->y), GPP_OK, "%s",
                 p->c->spec);
    for (int t = 0; t < p->outputs; t++)
        sum += test_dot(p->w[t], p->y[t], test_rig_output(p->rig, t));
    return sum;
}

void test_probe_back(test_probe *p, bool accumulate)
{
    gpp_status status =
        test_rig_backward_tuple(p->rig, (const float *const *)p->w, p->grad, accumulate);
    cr_assert_eq(status, GPP_OK, "%s", p->c->spec);
}

static int64_t result_count(const test_probe *p, size_t stats)
{
    int64_t count = (int64_t)(stats / sizeof(float));
    for (int t = 0; t < p->outputs; t++)
        count += test_rig_output(p->rig, t);
    for (int t = 0; t < p->inputs; t++)
        count += p->grad[t] ? test_rig_input(p->rig, t) : 0;
    for (int k = 0; k < p->rig->layer.param_count; k++)
        count += p->rig->layer.param[k].buffer ? 0 : p->rig->layer.param[k].count;
    return count;
}

static float *append(float *to, const void *from, int64_t count)
{
    memcpy(to, from, (size_t)count * sizeof *to);
    return to + count;
}

float *test_probe_results(test_probe *p, int64_t *count)
{
    size_t stats = p->rig->stats ? p->rig->layer.op->stats_bytes(&p->rig->layer) : 0;
    *count = result_count(p, stats);
    float *all = test_floats(*count), *to = all;
    test_probe_value(p);
    test_probe_back(p, false);
    test_probe_back(p, true);
    for (int t = 0; t < p->outputs; t++)
        to = append(to, p->y[t], test_rig_output(p->rig, t));
    for (int t = 0; t < p->inputs; t++)
        if (p->grad[t])
            to = append(to, p->grad[t], test_rig_input(p->rig, t));
    for (int k = 0; k < p->rig->layer.param_count; k++)
        if (!p->rig->layer.param[k].buffer) {
            test_rig_grad(p->rig, k, to);
            to += p->rig->layer.param[k].count;
        }
    if (stats)
        append(to, p->rig->stats, (int64_t)(stats / sizeof *to));
    return all;
}

/* --- central differences ---------------------------------------------------------------------- */

/*
 * Half the difference of f at at + step·u and at - step·u, against Σ gradient·u, for random signs
 * u: |slope - gradient| <= tolerance · (|gradient| + least). Inputs are a gap apart, or uniform.
 *
 * STRAIGHT: kinks are more than the step away, so there is no truncation error and the step may be
 * large. What is left is rounding: outputs of about s carry errors of 2^-24 s, their sum over n
 * outputs divided by 2·step is about 1e-6 s √n, next to a derivative of about the root of the sum
 * of its squared terms, s √n. Gaps make s up to 20 times a gradient's size: below 1e-4. SUMS:
 * rounding errors below 1e-6 · |x| √n / step next to slopes of √n, with |x| up to 20: 2e-3 at worst
 * for the largest cases, in fact far less, as errors are random. CURVED: a truncation error of
 * step² f'''/6, f''' below 27 (softplus with beta=3): below 5e-4. NORMAL: truncation step²/6 times
 * a third derivative that is some times the gradient's terms, since inputs vary by more than 0.5:
 * below 1e-3; rounding 1e-7 / step times outputs of about 2: 3e-5. All inputs lie within -1 ... 1,
 * apart so that no group has a small variance, whose slopes are steep. ATTENDS: truncation step²/6
 * times third derivatives of products of three and exponentials, some times the gradient's terms:
 * below 1e-3; rounding 1e-7 · √n / step next to a derivative of about √n: 2e-5.
 */
static const struct {
    float step;
    double tolerance, least;
    double gap, width; /* both 0: uniform; a width is that of all inputs together */
} bends[] = {
    [TEST_STRAIGHT] = {.step = 0.04f, .tolerance = 5e-4, .gap = 0.1},
    [TEST_SUMS] = {.step = 0.01f, .tolerance = 2e-3, .gap = 0.1},
    [TEST_CURVED] = {.step = 0.01f, .tolerance = 2e-3},
    [TEST_NORMAL] = {.step = 0x1p-7f, .tolerance = 3e-3, .least = 0.05, .width = 2},
    [TEST_ATTENDS] = {.step = 0x1p-7f, .tolerance = 4e-3, .least = 0.1},
};

static double value_of(void *argument)
{
    return test_probe_value(argument);
}

static void keep_apart(test_probe *p)
{
    for (int t = 0; t < p->inputs; t++) {
        int64_t count = test_rig_input(p->rig, t);
        double gap = bends[p->c->bend].gap + bends[p->c->bend].width / (double)count;
        if (p->grad[t] && gap > 0)
            test_fill_apart(p->x[t], count, 30 + (uint64_t)t, gap);
    }
}

void test_probe_slopes(test_probe *p)
{
    const test_op_case *c = p->c;
    const test_slopes s = {.spec = c->spec,
                           .why = c->why,
                           .value = value_of,
                           .argument = p,
                           .step = bends[c->bend].step,
                           .tolerance = bends[c->bend].tolerance,
                           .least = bends[c->bend].least};
    keep_apart(p);
    test_probe_value(p);
    test_probe_back(p, false);
    for (int t = 0; t < p->inputs; t++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", t);
        if (p->grad[t])
            test_expect_slope(&s, p->x[t], test_rig_input(p->rig, t), p->grad[t], name);
    }
    test_expect_param_slopes(&s, p->rig);
}
