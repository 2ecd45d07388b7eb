/* The plan of a routing: which row, at which member, each slot gets, and how many rows go from whom to whom. layout
 * all-gathers every member's counts, and from them each member computes the same plan without a further message.
 *
 * Order. Rows of an expert are in order of members, then tokens, then slots; experts begin at multiples of row_align
 * and have min_rows at least. All etp members of an ep rank get the same rows, so a destination is an ep rank here.
 *
 * Overflow, where an ep rank would take more than recv_rows rows, aligned ends included (recv_rows 0: never).
 * MOE_OVERFLOW_STOP: MOE_E_OVERFLOW on every member, with layer, ep rank, rows needed and recv_rows.
 * MOE_OVERFLOW_DROP: experts take rows in order of number; expert g keeps the first
 *   min(count, room of g) rows of its order, room of g = (recv_rows - rows of the experts before g
 *                                                         - least rows of the experts after g), down to row_align,
 * where the least rows of an expert are min_rows, aligned. So the last rows of the order are dropped, ends never pass
 * recv_rows, and every member knows which rows of which member are gone. (moe_rows.dev_counts: without the dropped.) */
#ifndef DISPATCHER_COMMON_PLAN_H
#define DISPATCHER_COMMON_PLAN_H
#include "base.h"

/* Views into one block of memory of the caller (plan_bytes of it, at the device's alignment): workspace, or the handle
 * where the plan must last until backward. m: member, e: global expert, d: ep rank, g: expert of that ep rank. */
typedef struct plan {
    int64_t *counts;  /* [members, stride]: choices of expert e by the tokens of m [n_experts]; tokens of m [1]; the
                       * caller's own numbers [extra] */
    int64_t *kept;    /* [members, n_experts]: choices that get a row */
    int64_t *first;   /* [members, n_experts]: row of the first of them at the expert's ep rank; the others follow it */
    int64_t *offsets; /* [ep_size, groups + 1]: moe_rows offsets of every ep rank */
    int64_t *next;    /* [n_experts] scratch */
    int64_t stride, extra, dropped; /* dropped: choices without a row, of all members */
} plan;

/* extra: I64 numbers of the caller's own that travel with a member's counts. */
uint64_t plan_bytes(const disp *d, int64_t extra);
plan plan_at(const disp *d, int64_t extra, void *memory);

/* plan_make is these four in turn, without extra numbers. Errors that only this member sees (MOE_E_DATA: an id below -1
 * or at or above n_experts, an expert chosen twice by a token) end the calls of all members. */
moe_status plan_make(const disp *d, const moe_layout_args *args, plan *p, int64_t *slot_row, moe_err *err);

/* 1. Counts the ids into this member's row of counts. What the caller wants to tell is then written to plan_extra. */
moe_status plan_count(const disp *d, const moe_tensor *ids, plan *p, moe_err *err);
/* 2. [collective on layout_group] Gathers the rows of counts; fills all of the plan. MOE_E_OVERFLOW: see above. */
moe_status plan_gather(const disp *d, void *stream, plan *p, moe_err *err);
/* 3. offsets, counts and host_total of args; MOE_E_OVERFLOW when they exceed args->rows->max. */
moe_status plan_give(const disp *d, const plan *p, const moe_layout_args *args, moe_err *err);
/* 4. slot_row [T,k] of this member: the final row at ep rank ids / groups; -1 where the id is, or the row is dropped.
 */
void plan_slots(const disp *d, plan *p, const moe_tensor *ids, int64_t *slot_row);

static inline int64_t plan_counted(const disp *d, const plan *p, uint32_t m, uint32_t e) {
    (void)d;
    return p->counts[m * p->stride + e];
}
static inline int64_t plan_kept(const disp *d, const plan *p, uint32_t m, uint32_t e) {
    return p->kept[(int64_t)m * d->n_experts + e];
}
static inline int64_t plan_first(const disp *d, const plan *p, uint32_t m, uint32_t e) {
    return p->first[(int64_t)m * d->n_experts + e];
}
static inline int64_t plan_tokens(const disp *d, const plan *p, uint32_t m) {
    return p->counts[m * p->stride + d->n_experts];
}
/* [extra] numbers of member m; before plan_gather only this member's own. */
static inline int64_t *plan_extra(const disp *d, const plan *p, uint32_t m) {
    return p->counts + m * p->stride + d->n_experts + 1;
}
/* [groups + 1] */
static inline const int64_t *plan_offsets(const disp *d, const plan *p, uint32_t ep) {
    return p->offsets + ep * ((int64_t)d->groups + 1);
}
#endif
