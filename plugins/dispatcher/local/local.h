/* Inside dispatcher/local: the instance, and the step calls (move.c) of its table (local.c). */
#ifndef DISPATCHER_LOCAL_H
#define DISPATCHER_LOCAL_H
#include "ops.h"

/* Constant after create. The handle of a (layer, microbatch) is slot_row [T,k] I64 at 0 and row_slot [rows.max] I64 at
 * row_slot_at, as moe.expert_rows/0 writes them. Device memory, which the host never reads: runs on any device. */
typedef struct local {
    disp d;
    disp_ops ops;
    moe_expert_rows_attr sort;
    uint64_t row_slot_at, handle; /* bytes */
} local;

moe_status local_layout(const void *self, const moe_layout_args *args, moe_err *err);
moe_status local_pack(const void *self, const moe_move_args *args, moe_err *err);     /* all of MOE_DISPATCH */
moe_status local_exchange(const void *self, const moe_move_args *args, moe_err *err); /* nothing */
moe_status local_unpack(const void *self, const moe_move_args *args, moe_err *err);   /* all of MOE_COMBINE */

#endif
