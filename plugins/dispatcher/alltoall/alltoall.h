/* Inside dispatcher/alltoall: the instance, what a handle holds, and the step calls of its table.
 *
 * MOE_DISPATCH: pack copies the rows of this member's slots in order of their global expert, so that what an ep rank
 * gets lies together (moe.permute/0); exchange is one all_to_all_v a plane, and one for the scalars; unpack sorts what
 * has come by local expert (moe.permute/0 with one slot a row). MOE_COMBINE is the reverse: pack takes expert rows in
 * the order in which they came, exchange sends them back, unpack sums over slots, and over the etp members of each, in
 * order (moe.unpermute/0). What a member gives to itself is packed and unpacked, but not exchanged.
 *
 * Bytes to others, with n the rows of this member's slots and c of them those of its own ep rank, w bytes a row of all
 * planes (and 4 more with scalars):
 *   MOE_DISPATCH (n * etp - c) w     MOE_COMBINE (landed - c) w, landed: the rows that came, its own included.
 * So k copies of a token, times etp.
 *
 * Staged rows: one array of rows a plane, laid out as moe.exchange_maps/0 says; the maps of the handle number its rows.
 * Where the host does not know how many rows go from whom to whom (disp.fixed), a part of an array has `slot` rows, the
 * most that a member can give an ep rank, and all of them travel; the payload that is counted is the same. */
#ifndef DISPATCHER_ALLTOALL_H
#define DISPATCHER_ALLTOALL_H
#include "ops.h"
#include "plan.h"

/* Constant after create. */
typedef struct alltoall {
    disp d;
    disp_ops ops;
    int64_t slot;                                              /* rows of a fixed part, or 0 */
    int64_t max_sent, max_landed, max_staged;                  /* rows: places of both kinds; in one staged array */
    uint64_t parts, runs, scratch;                             /* where a handle's arrays begin, bytes */
    uint64_t sent_slot, landed_row, row_from, slot_at, handle; /* and its end */
    uint64_t host_handle, workspace, rows;                     /* rows: where a workspace's staged rows begin */
    uint64_t ops_workspace;                                    /* where a workspace's part for operations begins */
} alltoall;

/* The handle of a (layer, microbatch), as the host sees its beginning (disp_host): this at 0, the arrays behind it. */
typedef struct routes {
    int64_t tokens;
} routes;
static inline int64_t *routes_array(const void *handle, uint64_t at) {
    return (int64_t *)(void *)((char *)(uintptr_t)handle + at);
}
/* me->parts [MOE_PARTS, members] and me->runs [2,2] of moe.exchange_maps/0: the host has them too, unless disp.fixed
 * me->scratch [4, members]: arrays of all_to_all_v, where the host's handle is not this one
 * me->sent_slot [max_sent], me->landed_row [max_landed], me->row_from [max_rows], me->slot_at [T, top_k * etp]: maps */

/* Plans the arrays of handle and workspace. [main] */
moe_status alltoall_place(alltoall *me, moe_err *err);

moe_status alltoall_layout(const void *self, const moe_layout_args *args, moe_err *err);
moe_status alltoall_pack(const void *self, const moe_move_args *args, moe_err *err);
moe_status alltoall_exchange(const void *self, const moe_move_args *args, moe_err *err);
moe_status alltoall_unpack(const void *self, const moe_move_args *args, moe_err *err);

#endif
