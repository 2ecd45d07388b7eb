/* What precision/fp32 and precision/bf16 share: a number format without scales, whose products are the device's
 * moe.linear/0. A plugin gives a format and makes its table from these functions; only create is its own. */
#ifndef PRECISION_LINEAR_H
#define PRECISION_LINEAR_H
#include <moe/plugin.h>

typedef struct linear_format {
    const char *id;      /* for messages: "fp32" */
    int32_t act, weight; /* dtypes */
    int64_t row_align;   /* rows */
} linear_format;

/* format lives as long as the instance */
moe_status linear_create(const linear_format *format, const moe_host *host, void **self, moe_err *err);
void linear_destroy(void *self);
moe_status linear_needs(void *self, moe_precision_needs *needs, moe_err *err);
moe_status linear_sizes(void *self, const moe_linear_args *args, uint64_t *workspace, moe_err *err);
moe_status linear_linear(const void *self, const moe_linear_args *args, moe_err *err);

#endif
