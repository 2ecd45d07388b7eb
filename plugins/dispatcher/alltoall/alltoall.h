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
 * Staged rows: one array of rows a plane. MOE_DISPATCH [sent | came from others], MOE_COMBINE [landed | returned by
 * others]. The maps of the handle number its rows. */
#ifndef DISPATCHER_ALLTOALL_H
#define DISPATCHER_ALLTOALL_H
#include "ops.h"
#include "plan.h"

/* Constant after create. */
typedef struct alltoall {
    disp d;
    disp_ops ops;
    int64_t max_sent, max_staged;                           /* rows: of this member's slots; in one staged array */
    uint64_t sent_slot, landed_row, row_from, slot_at;      /* where a handle's arrays begin, bytes */
    uint64_t send_rows, recv_rows, handle, workspace, rows; /* rows: where a workspace's staged rows begin */
    uint64_t ops_workspace;                                 /* where a workspace's part for operations begins */
} alltoall;

/* The handle of a (layer, microbatch): this at 0, the arrays behind it. */
typedef struct routes {
    int64_t tokens, staged_out, staged_back; /* staged rows of the two directions */
    int64_t sent[2], landed[2];              /* {0, rows}, as the row operations read them */
    int64_t own_sent, own_landed;            /* first row of what a member gives itself, in either order */
} routes;
static inline int64_t *routes_array(const void *handle, uint64_t at) {
    return (int64_t *)((char *)(uintptr_t)handle + at);
}
/* me->send_rows  [ep_size]: rows that this member gives to each member of an ep rank
 * me->recv_rows  [members]: rows that come from each member
 * me->sent_slot  [sent]: slot of a sent row          me->landed_row [landed]: expert row of a landed row
 * me->row_from   [total]: staged row of an expert row, -1 in padding
 * me->slot_at    [T, top_k * etp]: staged row of what a slot gets back from each etp member, -1 = nothing */

/* Plans the arrays of handle and workspace. [main] */
moe_status alltoall_place(alltoall *me, moe_err *err);

moe_status alltoall_layout(const void *self, const moe_layout_args *args, moe_err *err);
moe_status alltoall_pack(const void *self, const moe_move_args *args, moe_err *err);
moe_status alltoall_exchange(const void *self, const moe_move_args *args, moe_err *err);
moe_status alltoall_unpack(const void *self, const moe_move_args *args, moe_err *err);

#endif
