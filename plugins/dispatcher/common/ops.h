/* The device's operations as dispatchers call them: found once, asked once for their workspace at the largest shapes,
 * and run: on an asynchronous device enqueued. */
#ifndef DISPATCHER_COMMON_OPS_H
#define DISPATCHER_COMMON_OPS_H
#include "base.h"

typedef struct disp_ops {
    const moe_op *expert_rows, *permute, *unpermute, *maps, *sent, *convert; /* those that the dispatcher has found */
    uint64_t workspace;                                                      /* bytes that any call of them takes */
} disp_ops;

/* An operation by name, and where it is kept. */
typedef struct disp_want {
    const char *name;
    const moe_op **to;
} disp_want;
/* [main] MOE_E_UNSUPPORTED names an operation that the device lacks. */
moe_status disp_find(const disp *d, const disp_want *wanted, size_t n, moe_err *err);
/* [main] *workspace becomes what this call takes where that is more; args as for moe_op.sizes. */
moe_status disp_ask(const disp *d, const moe_op *op, const moe_op_args *args, uint64_t *workspace, moe_err *err);
static inline moe_tensor disp_tensor(const void *data, int32_t dtype, int32_t ndim, int64_t a, int64_t b) {
    return (moe_tensor){.data = (void *)(uintptr_t)data, .dtype = dtype, .ndim = ndim, .shape = {a, b, 1, 1}};
}

/* Rows of one movement: a plane, and a scalar a row beside it (NULL: none). */
typedef struct disp_rows {
    void *data;     /* [n, width] of dtype */
    float *scalars; /* [n], or of slots [n, k] */
    int64_t n, width;
    int32_t dtype;
} disp_rows;

/* [main] The workspace of sorting [tokens,k] ids to `groups` experts and max_rows rows. */
moe_status disp_ops_ask_sort(const disp *d, disp_ops *ops, const moe_expert_rows_attr *attr, int64_t tokens, int64_t k,
                             int64_t rows, moe_err *err);
/* [main] The workspace of moving rows of d->hidden elements: permute from `from` rows to `to`, k slots a row, and
 * unpermute back, F32 or BF16 (a device may have one of them only). */
moe_status disp_ops_ask_moves(const disp *d, disp_ops *ops, int64_t from, int64_t to, int64_t k, moe_err *err);

/* y[r] = x[map[r] / k] for the rows below rows->dev_offsets[groups], zero where map[r] is -1; y.scalars[r] =
 * x.scalars[map[r]], [x.n, k]. map [y.n]: slots. */
moe_status disp_permute(const disp *d, const disp_ops *ops, void *stream, const disp_rows *x, int64_t k,
                        const int64_t *map, const moe_rows *rows, const disp_rows *y, void *workspace, moe_err *err);
/* x[t] = sum over j in order of y[map[t,j]], map [x.n, k], -1 adds nothing; FP32, rounded once. x.scalars[t,j] =
 * y.scalars[map[t,j]], 0 for -1. rows: of y; NULL: all of them. */
moe_status disp_unpermute(const disp *d, const disp_ops *ops, void *stream, const disp_rows *y, int64_t k,
                          const int64_t *map, const moe_rows *rows, const disp_rows *x, void *workspace, moe_err *err);

/* Of a movement's exchange of rows of `bytes` bytes: adds to args->sent and sent_far, in stream order. rows [n]: rows
 * to each member, or to each of n runs of members; device memory. */
moe_status disp_count_sent(const disp *d, const disp_ops *ops, const moe_move_args *args, const int64_t *rows,
                           int64_t n, int64_t bytes, moe_err *err);

/* Rows in one run: total is {0, rows} in device memory. */
static inline moe_rows disp_run(const int64_t *total, int64_t max) {
    return (moe_rows){.size = sizeof(moe_rows),
                      .groups = 1,
                      .max = max,
                      .dev_offsets = total,
                      .dev_counts = total + 1,
                      .host_total = -1};
}
#endif
