/* What precision/fp32 and precision/bf16 share: a number format without scales, whose products are the device's
 * moe.linear/0. A plugin gives a format for each device and makes its tables from these functions; only create is its
 * own. */
#ifndef PRECISION_LINEAR_H
#define PRECISION_LINEAR_H
#include <moe/plugin.h>

typedef struct linear_format {
    const char *id;        /* for messages: "fp32" */
    int32_t act, weight;   /* dtypes */
    int64_t row_align;     /* rows */
    uint32_t takes_filled; /* as in moe_precision_needs */
} linear_format;

/* row_align on device "cuda": rows of a tile of its tensor cores. */
enum { LINEAR_CUDA_ROWS = 128 };

/* format lives as long as the instance */
moe_status linear_create(const linear_format *format, const moe_host *host, void **self, moe_err *err);
void linear_destroy(void *self);
moe_status linear_needs(void *self, moe_precision_needs *needs, moe_err *err);
moe_status linear_sizes(void *self, const moe_linear_args *args, uint64_t *workspace, moe_err *err);
moe_status linear_linear(const void *self, const moe_linear_args *args, moe_err *err);

/* Their moe_precision_v0 and moe_desc. */
#define LINEAR_TABLE(create_)                                                                                    \
    {                                                                                                            \
        .size = sizeof(moe_precision_v0), .create = (create_), .destroy = linear_destroy, .needs = linear_needs, \
        .sizes = linear_sizes, .linear = linear_linear                                                           \
    }
#define LINEAR_DESC(id_, device_, summary_, table)                                                                     \
    {                                                                                                                  \
        .size = sizeof(moe_desc), .kind = "precision", .id = (id_), .device = (device_), .version = "0.1.0",           \
        .vendor = "moehost", .license = "MIT", .summary = (summary_), .flags = MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE, \
        .vtable = &(table)                                                                                             \
    }

#endif
