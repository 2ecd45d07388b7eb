/* A device for tests of plugins that only call operations: host memory, streams that run at once, and the operations of
 * expert order and moe.linear/0 as plain loops, straight from ops.h. Slow and obvious; also what device/cpu is compared
 * with through those plugins. plain_device_table gives a table that lacks one operation where the test wants that. */
#ifndef TESTS_PLAIN_DEVICE_H
#define TESTS_PLAIN_DEVICE_H
#include <stdlib.h>

#include "plain_plan.h"

static inline float plain_from_bf16(uint16_t b) {
    const uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t plain_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16); /* tests give it no NaN */
}
static inline float plain_get(const moe_tensor *t, int64_t i) {
    return t->dtype == MOE_BF16 ? plain_from_bf16(((const uint16_t *)t->data)[i]) : ((const float *)t->data)[i];
}
static inline void plain_put(const moe_tensor *t, int64_t i, float x) {
    if (t->dtype == MOE_BF16)
        ((uint16_t *)t->data)[i] = plain_to_bf16(x);
    else
        ((float *)t->data)[i] = x;
}

/* ---- moe.expert_rows/0: workspace is one I64 an expert, so that a caller who forgets it is found ---- */
static inline moe_status plain_expert_rows_sizes(void *dev, const moe_op_args *args, uint64_t *saved,
                                                 uint64_t *workspace, moe_err *err) {
    (void)dev, (void)err;
    *saved = 0;
    *workspace = 8 * (uint64_t)((const moe_expert_rows_attr *)args->attr)->groups;
    return MOE_OK;
}
static inline moe_status plain_expert_rows(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev;
    const moe_expert_rows_attr *at = args->attr;
    const int64_t slots = args->in[0].shape[0] * args->in[0].shape[1], n = args->out[1].shape[0];
    const int32_t *ids = args->in[0].data;
    int64_t *slot_row = args->out[0].data, *row_slot = args->out[1].data, *offsets = args->out[2].data,
            *counts = args->out[3].data, *next = args->workspace;
    for (uint32_t g = 0; g < at->groups; g++) counts[g] = 0;
    for (int64_t i = 0; i < slots; i++) {
        if (ids[i] >= (int32_t)at->n_experts)
            return moe_fail(err, MOE_E_DATA, "id %d of slot %lld", ids[i], (long long)i);
        const int64_t g = (int64_t)ids[i] - at->first;
        if (ids[i] >= 0 && g >= 0 && g < at->groups) counts[g]++;
    }
    offsets[0] = 0;
    for (uint32_t g = 0; g < at->groups; g++) {
        next[g] = offsets[g];
        const int64_t takes = counts[g] > at->min_rows ? counts[g] : at->min_rows;
        offsets[g + 1] = offsets[g] + (takes + at->align - 1) / at->align * at->align;
    }
    if (offsets[at->groups] > n)
        return moe_fail(err, MOE_E_OVERFLOW, "%lld rows, but room for %lld", (long long)offsets[at->groups],
                        (long long)n);
    for (int64_t i = 0; i < n; i++) row_slot[i] = -1;
    for (int64_t i = 0; i < slots; i++) {
        const int64_t g = (int64_t)ids[i] - at->first;
        slot_row[i] = ids[i] >= 0 && g >= 0 && g < at->groups ? next[g]++ : -1;
        if (slot_row[i] >= 0) row_slot[slot_row[i]] = i;
    }
    return MOE_OK;
}

/* ---- moe.permute/0, moe.unpermute/0 ---- */
static inline moe_status plain_no_sizes(void *dev, const moe_op_args *args, uint64_t *saved, uint64_t *workspace,
                                        moe_err *err) {
    (void)dev, (void)args, (void)err;
    *saved = *workspace = 0;
    return MOE_OK;
}
static inline moe_status plain_permute(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev, (void)err;
    const moe_tensor *x = &args->in[0], *y = &args->out[0];
    const int64_t h = x->shape[1], *row_slot = args->in[1].data, k = ((const moe_permute_attr *)args->attr)->k,
                  total = args->rows->dev_offsets[args->rows->groups];
    for (int64_t r = 0; r < total; r++) {
        const int64_t slot = row_slot[r];
        for (int64_t j = 0; j < h; j++) plain_put(y, r * h + j, slot < 0 ? 0.0f : plain_get(x, slot / k * h + j));
        if (args->out[1].data)
            ((float *)args->out[1].data)[r] = slot < 0 ? 0.0f : ((const float *)args->in[2].data)[slot];
    }
    return MOE_OK;
}
static inline moe_status plain_unpermute(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev, (void)err;
    const moe_tensor *y = &args->in[0], *x = &args->out[0];
    const int64_t t_n = x->shape[0], h = x->shape[1], k = ((const moe_permute_attr *)args->attr)->k,
                  *slot_row = args->in[1].data;
    for (int64_t t = 0; t < t_n; t++) {
        for (int64_t j = 0; j < h; j++) {
            float sum = 0;
            for (int64_t s = 0; s < k; s++)
                if (slot_row[t * k + s] >= 0) sum += plain_get(y, slot_row[t * k + s] * h + j);
            plain_put(x, t * h + j, sum);
        }
        for (int64_t s = t * k; args->out[1].data && s < (t + 1) * k; s++)
            ((float *)args->out[1].data)[s] = slot_row[s] < 0 ? 0.0f : ((const float *)args->in[2].data)[slot_row[s]];
    }
    return MOE_OK;
}

/* ---- moe.convert/0 ---- */
static inline moe_status plain_convert(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev, (void)err;
    for (int64_t i = 0; i < args->in[0].shape[0]; i++) plain_put(&args->out[0], i, plain_get(&args->in[0], i));
    return MOE_OK;
}

/* ---- moe.linear/0 ---- */

/* Rows [from, to) of one group with weights or their gradient at w0 elements; rows at and past valid are padding. */
static inline void plain_linear_rows(const moe_op_args *args, int64_t from, int64_t valid, int64_t to, int64_t w0,
                                     int add) {
    const moe_linear_attr *at = args->attr;
    const moe_tensor *a = &args->in[0], *b = &args->in[1], *out = &args->out[0];
    const moe_tensor *w = at->role == MOE_WGRAD ? out : b;
    const int64_t n = w->shape[w->ndim - 2], k = w->shape[w->ndim - 1];
    const int64_t columns = at->role == MOE_FPROP ? n : k, inner = at->role == MOE_FPROP ? k : n;
    if (at->role == MOE_WGRAD) { /* dw[i][j] = sum of dy[r][i] x[r][j] */
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < k; j++) {
                float sum = add ? plain_get(out, w0 + i * k + j) : 0.0f;
                for (int64_t r = from; r < valid; r++) sum += plain_get(a, r * n + i) * plain_get(b, r * k + j);
                plain_put(out, w0 + i * k + j, sum);
            }
        return;
    }
    for (int64_t r = from; r < to; r++)
        for (int64_t c = 0; c < columns; c++) {
            float sum = add ? plain_get(out, r * columns + c) : 0.0f;
            for (int64_t i = 0; i < inner && r < valid; i++)
                sum +=
                    plain_get(a, r * inner + i) * plain_get(b, at->role == MOE_FPROP ? w0 + c * k + i : w0 + i * k + c);
            plain_put(out, r * columns + c, sum);
        }
}
static inline moe_status plain_linear(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev, (void)err;
    const moe_linear_attr *at = args->attr;
    const moe_tensor *w = at->role == MOE_WGRAD ? &args->out[0] : &args->in[1];
    const int64_t per_group = w->shape[w->ndim - 2] * w->shape[w->ndim - 1], rows = args->in[0].shape[0];
    if (!args->rows) {
        plain_linear_rows(args, 0, rows, rows, 0, at->accumulate != 0);
        return MOE_OK;
    }
    int32_t *filled = args->n_out > 1 ? args->out[1].data : NULL;
    for (uint32_t g = 0; g < args->rows->groups; g++) {
        const int64_t from = args->rows->dev_offsets[g], count = args->rows->dev_counts[g];
        const int add = at->accumulate && (!filled || filled[g]);
        if (filled && (count || !at->accumulate)) filled[g] = count > 0;
        if (filled && !count) continue;
        plain_linear_rows(args, from, from + count, args->rows->dev_offsets[g + 1], g * per_group, add);
    }
    return MOE_OK;
}

/* ---- the device ---- */
static inline moe_status plain_info(void *self, moe_device_info *info, moe_err *err) {
    (void)self, (void)err;
    info->compute_units = 1;
    info->alignment = 64;
    strcpy(info->name, "plain loops");
    return MOE_OK;
}
static inline moe_status plain_alloc(void *self, int32_t space, uint64_t bytes, void **out, moe_err *err) {
    (void)self, (void)space;
    *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!*out) return moe_fail(err, MOE_E_NOMEM, "%llu bytes", (unsigned long long)bytes);
    memset(*out, 0, bytes);
    return MOE_OK;
}
static inline void plain_free(void *self, int32_t space, void *p, uint64_t bytes) {
    (void)self, (void)space, (void)bytes;
    free(p);
}
static inline moe_status plain_call_host(void *self, void *stream, moe_host_fn fn, void *arg, moe_err *err) {
    (void)self, (void)stream, (void)err;
    fn(arg);
    return MOE_OK;
}
static inline moe_status plain_stream_sync(void *self, void *stream, moe_err *err) {
    (void)self, (void)stream, (void)err;
    return MOE_OK;
}

/* All operations but the one named (NULL: all). ops is the caller's, and lives as long as the table. */
enum { PLAIN_OPS = 10 };
static inline moe_device_v0 plain_device_table(const moe_op *ops[PLAIN_OPS], const char *without) {
    static const moe_op all[] = {
        {.size = sizeof(moe_op),
         .name = MOE_OP_EXPERT_ROWS,
         .sizes = plain_expert_rows_sizes,
         .forward = plain_expert_rows},
        {.size = sizeof(moe_op), .name = MOE_OP_PERMUTE, .sizes = plain_no_sizes, .forward = plain_permute},
        {.size = sizeof(moe_op), .name = MOE_OP_UNPERMUTE, .sizes = plain_no_sizes, .forward = plain_unpermute},
        {.size = sizeof(moe_op), .name = MOE_OP_LINEAR, .sizes = plain_no_sizes, .forward = plain_linear},
        {.size = sizeof(moe_op),
         .name = MOE_OP_EXPERT_COUNTS,
         .sizes = plain_expert_counts_sizes,
         .forward = plain_expert_counts},
        {.size = sizeof(moe_op),
         .name = MOE_OP_DISPATCH_PLAN,
         .sizes = plain_dispatch_plan_sizes,
         .forward = plain_dispatch_plan},
        {.size = sizeof(moe_op),
         .name = MOE_OP_DISPATCH_SLOTS,
         .sizes = plain_no_sizes,
         .forward = plain_dispatch_slots},
        {.size = sizeof(moe_op),
         .name = MOE_OP_EXCHANGE_MAPS,
         .sizes = plain_exchange_maps_sizes,
         .forward = plain_exchange_maps},
        {.size = sizeof(moe_op), .name = MOE_OP_SENT, .sizes = plain_no_sizes, .forward = plain_sent},
        {.size = sizeof(moe_op), .name = MOE_OP_CONVERT, .sizes = plain_no_sizes, .forward = plain_convert}};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!without || strcmp(all[i].name, without) != 0) ops[n++] = &all[i];
    return (moe_device_v0){.size = sizeof(moe_device_v0),
                           .n_ops = n,
                           .ops = ops,
                           .info = plain_info,
                           .alloc = plain_alloc,
                           .free = plain_free,
                           .call_host = plain_call_host,
                           .stream_sync = plain_stream_sync};
}
#endif
