/* Inside dispatcher/allgather: the instance, what a handle holds, and the step calls of its table.
 *
 * layout gathers what all members chose, so that each knows the rows of its own experts (moe.dispatch_slots/0).
 * MOE_DISPATCH: exchange gathers all members' token rows, and slot scalars [T,k]; unpack keeps the rows of the own
 * experts in their order (moe.permute/0). MOE_COMBINE: pack sums, for every token of all members, the rows of the own
 * experts in order of slots, in FP32 (moe.unpermute/0); exchange is a reduce-scatter of these sums in order of members;
 * unpack rounds (moe.convert/0). So a token's sum is over the members in order, and over the slots in order within a
 * member: the same bits in each run, and for rows whose sums are exact the same as in order of slots alone.
 *
 * Arrays of all members' tokens are [members, most, ..]: most is the number of tokens of the member that has the most,
 * or max_tokens where the host does not know it (disp.fixed). Known tokens alone travel, else all of max_tokens.
 *
 * Bytes to others, with T tokens of this member, S of all, M members, e elements and w bytes a row of all planes:
 *   MOE_DISPATCH (M - 1) T (w + 4 k with scalars)     MOE_COMBINE (S - T) 4 (e + k with scalars).
 * Rows beyond a member's tokens are no payload and not counted. */
#ifndef DISPATCHER_ALLGATHER_H
#define DISPATCHER_ALLGATHER_H
#include "ops.h"
#include "plan.h"

/* Constant after create. */
typedef struct allgather {
    disp d;
    disp_ops ops;
    int64_t all_tokens;                      /* of all members at most */
    uint64_t tokens, scratch, host_handle;   /* where a handle's arrays begin, the host's and their bytes */
    uint64_t slot_row, row_slot, handle;     /* and those of the device */
    uint64_t all, ids;                       /* of layout's workspace: the plan's end, ids of all */
    uint64_t workspace, ops_workspace, data; /* of a movement's; data: gathered rows, or sums */
} allgather;

/* The handle of a (layer, microbatch), as the host sees its beginning (disp_host): this at 0, the arrays behind it:
 *   me->tokens   [members]                  tokens of each member: the host has them too, unless disp.fixed
 *   me->scratch  [4, members]               arrays of all_to_all_v, where the host's handle is not this one
 *   me->slot_row [members, most, top_k]     row of a slot of any member, -1 where it has none here
 *   me->row_slot [max_rows]                 slot of a row, numbered as in slot_row, -1 in padding */
typedef struct gathered {
    int64_t mine, most; /* tokens of this member; see above */
} gathered;
static inline int64_t *gathered_array(const void *handle, uint64_t at) {
    return (int64_t *)(void *)((char *)(uintptr_t)handle + at);
}

/* Plans the arrays of handle and workspace. [main] */
moe_status allgather_place(allgather *me, moe_err *err);
/* Every member gets what every member has: out [members, most] rows of `width` bytes = in of each. g: the host's.
 * arrays [4, members] is scratch of the host. [collective] */
moe_status allgather_gather(const allgather *me, const gathered *g, void *group, void *stream, const void *in,
                            void *out, int64_t width, uint64_t *arrays, moe_err *err);

moe_status allgather_layout(const void *self, const moe_layout_args *args, moe_err *err);
moe_status allgather_pack(const void *self, const moe_move_args *args, moe_err *err);
moe_status allgather_exchange(const void *self, const moe_move_args *args, moe_err *err);
moe_status allgather_unpack(const void *self, const moe_move_args *args, moe_err *err);

#endif
