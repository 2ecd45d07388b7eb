/* Inside dispatcher/allgather: the instance, what a handle holds, and the step calls of its table.
 *
 * layout gathers what all members chose, so that each sorts all tokens by its own experts (moe.expert_rows/0).
 * MOE_DISPATCH: exchange gathers all members' token rows, and slot scalars [T,k]; unpack keeps the rows of the own
 * experts in their order (moe.permute/0). MOE_COMBINE: pack sums, for every token of all members, the rows of the own
 * experts in order of slots, in FP32; exchange is a reduce-scatter of these sums in order of members; unpack rounds.
 * So a token's sum is over the members in order, and over the slots in order within a member: the same bits in each
 * run, and for rows whose sums are exact the same as in order of slots alone.
 *
 * Bytes to others, with T tokens of this member, S of all, M members, e elements and w bytes a row of all planes:
 *   MOE_DISPATCH (M - 1) T (w + 4 k with scalars)     MOE_COMBINE (S - T) 4 (e + k with scalars).
 * The reduce-scatter gives every member as many rows as the largest takes; rows beyond a member's tokens are no payload
 * and not counted. */
#ifndef DISPATCHER_ALLGATHER_H
#define DISPATCHER_ALLGATHER_H
#include "ops.h"
#include "plan.h"

/* Constant after create. */
typedef struct allgather {
    disp d;
    disp_ops ops;
    moe_expert_rows_attr sort;
    int64_t all_tokens;                                /* of all members at most */
    uint64_t tokens, head, slot_row, row_slot, handle; /* where a handle's arrays begin, its bytes */
    uint64_t workspace, ops_workspace, data;           /* the same of a workspace; data: gathered rows, or sums */
} allgather;

/* The handle of a (layer, microbatch): this at 0, the arrays behind it:
 *   me->tokens   [members]           tokens of each member
 *   me->head     [members]           tokens before them
 *   me->slot_row [all, top_k]        row of a slot of any member, -1 where it has none here
 *   me->row_slot [max_rows]          slot of a row, -1 in padding */
typedef struct gathered {
    int64_t mine, all, most; /* tokens of this member, of all, of the largest */
} gathered;
static inline int64_t *gathered_array(const void *handle, uint64_t at) {
    return (int64_t *)((char *)(uintptr_t)handle + at);
}

/* The sums of the own experts' rows: for token i of member m
 *   x[m, i] = sum over its slots j in order, of those with a row here, of y[slot_row[t, j]]
 *   slots[m, i, j] = rows[slot_row[t, j]], 0 without a row
 * and zeros for i past the tokens of m. */
typedef struct sums {
    const void *y;                /* [N, width] of dtype */
    float *x;                     /* [members, most, width] */
    const float *rows;            /* [N], or NULL */
    float *slots;                 /* [members, most, k], or NULL */
    const int64_t *slot_row;      /* [all, k] */
    const int64_t *tokens, *head; /* [members] tokens of a member, and before it */
    int64_t members, most, width, k;
    int32_t dtype;
} sums;
void sums_run(const disp *d, const sums *s);
/* to [n] of dtype = from, rounded to nearest even. */
void sums_round(const disp *d, const float *from, void *to, int32_t dtype, int64_t n);

/* Plans the arrays of handle and workspace. [main] */
moe_status allgather_place(allgather *me, moe_err *err);
/* Every member gets what every member has: out = in of member 0, of member 1, .., rows of `width` bytes. One
 * all_to_all_v; parts [4, members] is scratch. [collective] */
moe_status allgather_gather(const allgather *me, const gathered *g, void *group, void *stream, const void *in,
                            void *out, int64_t width, uint64_t *parts, moe_err *err);

moe_status allgather_layout(const void *self, const moe_layout_args *args, moe_err *err);
moe_status allgather_pack(const void *self, const moe_move_args *args, moe_err *err);
moe_status allgather_exchange(const void *self, const moe_move_args *args, moe_err *err);
moe_status allgather_unpack(const void *self, const moe_move_args *args, moe_err *err);

#endif
