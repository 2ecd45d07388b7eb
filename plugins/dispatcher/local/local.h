/* Inside dispatcher/local: the instance, and the step calls (move.c) of its table (local.c). */
#ifndef DISPATCHER_LOCAL_H
#define DISPATCHER_LOCAL_H
#include <moe/plugin.h>

/* Constant after create. The handle of a (layer, microbatch) is slot_row [T,k] I64 at 0 and row_slot [rows.max] I64 at
 * row_slot_at, as moe.expert_rows/0 writes them. */
typedef struct local {
    const moe_device_v0 *device;
    void *dev;
    const moe_op *expert_rows, *permute, *unpermute;
    moe_expert_rows_attr rows_attr;
    moe_permute_attr permute_attr;
    int64_t hidden, max_tokens, max_rows, top_k;
    uint64_t row_slot_at, handle, workspace; /* bytes */
    uint32_t n_experts, layer;
} local;

moe_status local_layout(const void *self, const moe_layout_args *args, moe_err *err);
moe_status local_pack(const void *self, const moe_move_args *args, moe_err *err);     /* all of MOE_DISPATCH */
moe_status local_exchange(const void *self, const moe_move_args *args, moe_err *err); /* nothing */
moe_status local_unpack(const void *self, const moe_move_args *args, moe_err *err);   /* all of MOE_COMBINE */

#endif
