/* The plan of a routing: which row, at which member, each slot gets, and how many rows go from whom to whom. layout
 * all-gathers every member's counts, and from them each member computes the same plan without a further message. The
 * device computes it, by moe.expert_counts/0, moe.dispatch_plan/0 and moe.dispatch_slots/0 (ops.h of the ABI has the
 * order of rows and what happens on overflow); all etp members of an ep rank get the same rows, so a destination is an
 * ep rank here.
 *
 * Errors. On a device without MOE_ASYNC calls return them: MOE_E_OVERFLOW of plan_gather on every member, with layer,
 * ep rank, rows needed and recv_rows; MOE_E_DATA of plan_count (an id below -1 or at or above n_experts, an expert
 * chosen twice by a token) on the member that has the id, which then ends the calls of all. With MOE_ASYNC they are
 * written to args->fault, and the plan has no row for what is wrong. */
#ifndef DISPATCHER_COMMON_PLAN_H
#define DISPATCHER_COMMON_PLAN_H
#include "base.h"

/* Views into one block of device memory of the caller (plan_bytes of it, at the device's alignment): workspace, or the
 * handle where the plan must last until backward. m: member, e: global expert, d: ep rank, g: expert of that ep rank.
 * On device "cpu" also read by the functions at the end. */
typedef struct plan {
    int64_t *counts;  /* [members, stride]: choices of expert e by the tokens of m [n_experts]; tokens of m [1]; the
                       * caller's own numbers [extra] */
    int64_t *kept;    /* [members, n_experts]: choices that get a row */
    int64_t *first;   /* [members, n_experts]: row of the first of them at the expert's ep rank; the others follow it */
    int64_t *offsets; /* [ep_size, groups + 1]: moe_rows offsets of every ep rank */
    int64_t *tokens;  /* [members]: of the block, or where the caller wants them */
    void *workspace;  /* of the operations */
    int64_t stride, extra;
} plan;

/* [main] Finds the operations, asks for their workspace. MOE_E_UNSUPPORTED names one that the device lacks. */
moe_status plan_open(disp *d, moe_err *err);
/* [main] The workspace of plan_rows for ids of n members and `rows` rows. */
moe_status plan_ask_rows(disp *d, int64_t n, int64_t rows, moe_err *err);

/* extra: I64 numbers of the caller's own that travel with a member's counts. After plan_open and plan_ask_rows. */
uint64_t plan_bytes(const disp *d, int64_t extra);
plan plan_at(const disp *d, int64_t extra, void *memory);

/* The check of args, plan_count, plan_gather, without extra numbers. An error that only this member sees ends the calls
 * of all members. */
moe_status plan_make(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err);

/* 1. Counts the ids into this member's row of counts. What the caller wants to tell is then written to plan_extra. */
moe_status plan_count(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err);
/* 2. [collective on layout_group] Gathers the rows of counts; fills all of the plan, and offsets and counts of args. */
moe_status plan_gather(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err);
/* 2. The same where the caller has brought the rows of counts of all members. */
moe_status plan_derive(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err);
/* 3. slot_row [T,k] of this member: the final row at ep rank ids / groups; -1 where the id is, or the row is dropped.
 */
moe_status plan_slots(const disp *d, const moe_layout_args *args, const plan *p, int64_t *slot_row, moe_err *err);
/* 3. Of all members, the rows of the own experts: ids [members, most, k] -> slot_row alike, row_slot [rows]. */
typedef struct plan_all {
    const int32_t *ids;
    int64_t most, rows;
    int64_t *slot_row, *row_slot;
} plan_all;
moe_status plan_rows(const disp *d, const moe_layout_args *args, const plan *p, const plan_all *all, moe_err *err);

/* ---- for device "cpu" ---- */
static inline int64_t plan_counted(const disp *d, const plan *p, uint32_t m, uint32_t e) {
    (void)d;
    return p->counts[m * p->stride + e];
}
static inline int64_t plan_kept(const disp *d, const plan *p, uint32_t m, uint32_t e) {
    return p->kept[(int64_t)m * d->n_experts + e];
}
/* Choices without a row, of all members. */
static inline int64_t plan_dropped(const disp *d, const plan *p) {
    int64_t n = 0;
    for (uint32_t m = 0; m < d->members; m++)
        for (uint32_t e = 0; e < d->n_experts; e++) n += plan_counted(d, p, m, e) - plan_kept(d, p, m, e);
    return n;
}
/* [extra] numbers of member m; before plan_gather only this member's own. */
static inline int64_t *plan_extra(const disp *d, const plan *p, uint32_t m) {
    return p->counts + m * p->stride + d->n_experts + 1;
}
#endif
