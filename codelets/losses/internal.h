/*
 * codelets/losses/internal.h: what losses have in common. Two families: those that compare output
 * and target element by element (pointwise.c), and those that have one class as target for a
 * position with scores (classes.c).
 *
 * A loss is the sum of its unreduced losses divided by a divisor, which is 1 for sum and none. A
 * mean of nothing has the divisor 0, and its value is 0/0, NaN, as in PyTorch.
 */
#ifndef GPP_CODELETS_LOSSES_INTERNAL_H
#define GPP_CODELETS_LOSSES_INTERNAL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "codelets/loss.h"

enum { GPP__MEAN, GPP__SUM, GPP__NONE };

/* "mean", "sum", "none". */
extern const char *const gpp__reductions[];

/* Every loss's attributes begin with its reduction, an int. */
#define GPP__REDUCTION_KEY                                                                         \
    {                                                                                              \
        .name = "reduction", .type = GPP__KEY_CHOICE, .offset = 0, .count = 1,                     \
        .fallback = GPP__MEAN, .choices = gpp__reductions                                          \
    }

/* --- element by element ----------------------------------------------------------------------- */

/* Elements at a time. */
enum { GPP__LOSS_CHUNK = 256 };

/* Losses l of count <= GPP__LOSS_CHUNK elements, and their derivatives by y in d. */
typedef void (*gpp__pointwise_fn)(const void *attr, const float *y, const float *t, int64_t count,
                                  double *l, float *d);

/* The target is float32 and has the output's shape. */
gpp_status gpp__pointwise_target(const char *who, const gpp__desc *y, gpp__desc *target,
                                 gpp_error *err);
void gpp__pointwise_each(const void *attr, const gpp__desc *y, gpp__desc *each);
double gpp__pointwise_divisor(const void *attr, const gpp__desc *y, int64_t rows,
                              const void *target, const float *weight);
gpp_status gpp__pointwise_run(const gpp__loss_call *call, gpp__pointwise_fn fn);

typedef struct gpp__smooth_l1_attr {
    int reduction;
    double beta;
} gpp__smooth_l1_attr;
/* The beta to compute with. For 0 it is the smallest float32, so that only a difference of 0 is
 * below it and no division by 0 occurs. */
static inline double gpp__smooth_l1_beta(const void *attr)
{
    double beta = ((const gpp__smooth_l1_attr *)attr)->beta;
    return beta > 0x1p-149 ? beta : 0x1p-149;
}

/* --- classes ---------------------------------------------------------------------------------- */

typedef struct gpp__class_attr {
    int reduction;
    int axis; /* GPP__CLASSES_...: which dimension of an output row counts the classes */
    int64_t ignore_index;
    double label_smoothing;
} gpp__class_attr;

enum { GPP__CLASSES_AUTO, GPP__CLASSES_FIRST, GPP__CLASSES_LAST };

/* "auto", "first", "last". */
extern const char *const gpp__class_axes[];

#define GPP__CLASS_KEYS                                                                            \
    GPP__REDUCTION_KEY,                                                                            \
        {.name = "classes",                                                                        \
         .type = GPP__KEY_CHOICE,                                                                  \
         .offset = offsetof(gpp__class_attr, axis),                                                \
         .count = 1,                                                                               \
         .fallback = GPP__CLASSES_AUTO,                                                            \
         .choices = gpp__class_axes},                                                              \
    {                                                                                              \
        .name = "ignore_index", .type = GPP__KEY_INT,                                              \
        .offset = offsetof(gpp__class_attr, ignore_index), .count = 1, .min = -0x1p53,             \
        .max = 0x1p53, .fallback = -100                                                            \
    }

/* How an output row divides: score c of position k is at (k / inner · classes + c) · inner +
 * k % inner. Positions are numbered through all rows. */
typedef struct gpp__class_view {
    int64_t classes, inner;
    int64_t positions; /* of a row */
} gpp__class_view;

gpp__class_view gpp__class_view_of(const void *attr, const gpp__desc *y);
gpp_status gpp__class_target(const char *who, const void *attr, const gpp__desc *y,
                             gpp__desc *target, gpp_error *err);
void gpp__class_each(const void *attr, const gpp__desc *y, gpp__desc *each);
int64_t gpp__class_count(const void *attr, const gpp__desc *y);
double gpp__class_divisor(const void *attr, const gpp__desc *y, int64_t rows, const void *target,
                          const float *weight);
/* Fails on a target that is no class and not ignored. */
gpp_status gpp__class_check(const char *who, const gpp__loss_call *call);
/* The same check for gpp_loss.check. */
gpp_status gpp__class_check_rows(const char *who, const void *attr, const gpp__desc *y,
                                 int64_t first, int64_t rows, const void *data, gpp_error *err);

/* --- on CUDA ---------------------------------------------------------------------------------- */

size_t gpp__pointwise_scratch_cuda(const void *attr, const gpp__desc *y, int64_t rows);
size_t gpp__class_scratch_cuda(const void *attr, const gpp__desc *y, int64_t rows);
gpp_status gpp__bce_with_logits_run_cuda(const gpp__loss_call *call);
gpp_status gpp__cross_entropy_run_cuda(const gpp__loss_call *call);
gpp_status gpp__l1_run_cuda(const gpp__loss_call *call);
gpp_status gpp__mse_run_cuda(const gpp__loss_call *call);
gpp_status gpp__nll_run_cuda(const gpp__loss_call *call);
gpp_status gpp__smooth_l1_run_cuda(const gpp__loss_call *call);

#ifdef __cplusplus
}
#endif
#endif
