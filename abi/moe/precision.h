/* Kind "precision": the number format of linear layers on one device - storage dtypes and the products in their three
 * roles, dense and grouped. One instance a part of the model and rank. */
#ifndef MOE_PRECISION_H
#define MOE_PRECISION_H
#include "ops.h" /* MOE_FPROP, MOE_DGRAD, MOE_WGRAD */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_precision_cfg {
    uint32_t size, reserved;
    const moe_kv *kv; /* [n_kv] */
    uint64_t n_kv;
} moe_precision_cfg;

typedef struct moe_precision_needs {
    uint32_t size;
    int32_t act_dtype;     /* activations and their gradients in memory */
    int32_t weight_dtype;  /* weights that products read; a copy of the FP32 master where it is not MOE_F32 */
    uint32_t takes_filled; /* 1: linear takes `filled`, and the device's moe.sumsq/0, moe.adamw/0 and moe.sgd/0 do; 0 */
    int64_t row_align;     /* rows of a group begin at multiples of it; >= 1 */
} moe_precision_needs;

typedef struct moe_linear_args {
    uint32_t size;
    int32_t role; /* MOE_FPROP, MOE_DGRAD, MOE_WGRAD: operands as under moe.linear/0 */
    uint32_t accumulate, reserved;
    void *stream;
    const moe_tensor *a, *b; /* the role's two inputs */
    const moe_tensor *out;
    const moe_rows *rows;     /* NULL = dense */
    void *workspace;          /* device memory at the device's info.alignment; NULL where 0 bytes */
    const moe_tensor *filled; /* [groups] I32, updated, as under moe.linear/0; NULL = every block of dw is written */
} moe_linear_args;

typedef struct moe_precision_v0 {
    uint32_t size, reserved;
    moe_status (*create)(const moe_precision_cfg *cfg, const moe_host *host, void **self, moe_err *err); /* [main] */
    void (*destroy)(void *self);                                               /* [main] idle */
    moe_status (*needs)(void *self, moe_precision_needs *needs, moe_err *err); /* [main] pure; caller sets size */
    /* [main] pure: bytes of workspace of one call with these shapes (data may be NULL); refuses what it cannot do */
    moe_status (*sizes)(void *self, const moe_linear_args *args, uint64_t *workspace, moe_err *err);
    moe_status (*linear)(const void *self, const moe_linear_args *args, moe_err *err); /* [step] */
    const void *(*extension)(const void *self, const char *id);                        /* [any] (optional: NULL) */
} moe_precision_v0;

#ifdef __cplusplus
}
#endif
#endif
