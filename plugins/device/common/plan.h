/* The arithmetic of moe.dispatch_plan/0 and moe.exchange_maps/0 (<moe/ops.h> has what it means), once for all devices:
 * plain functions over arrays that the caller's memory holds, for C and for kernels. Each says what it writes; calls
 * for different ep ranks, experts or members may run at once. */
#ifndef DEVICE_COMMON_PLAN_H
#define DEVICE_COMMON_PLAN_H
#include <moe/dispatcher.h>
#include <moe/ops.h>

#if defined(__CUDACC__)
#define PLAN_FN static inline __host__ __device__
#else
#define PLAN_FN static inline
#endif

/* M, E, ep_size, G = E / ep_size, etp = M / ep_size. */
typedef struct plan_group {
    int64_t members, experts, ep_size, groups, etp;
} plan_group;

PLAN_FN plan_group plan_group_of(int64_t members, int64_t experts, int64_t ep_size) {
    plan_group g;
    g.members = members;
    g.experts = experts;
    g.ep_size = ep_size;
    g.groups = experts / ep_size;
    g.etp = members / ep_size;
    return g;
}

PLAN_FN int64_t plan_align(int64_t rows, int64_t align) {
    return (rows + align - 1) / align * align;
}
PLAN_FN int64_t plan_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
PLAN_FN int64_t plan_most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- moe.dispatch_plan/0, in three passes: chosen of every expert, take of every ep rank, share of every expert ----
 */
/* Choices of expert e by all members. all [M,S] */
PLAN_FN int64_t plan_chosen(const plan_group *g, const int64_t *all, int64_t stride, int64_t e) {
    int64_t m, n = 0;
    for (m = 0; m < g->members; m++) n += all[m * stride + e];
    return n;
}

/* take [G] of one ep rank: choices of its experts, becomes how many of them are kept. Writes offsets [G+1]; returns the
 * rows that all choices need. */
PLAN_FN int64_t plan_take(const plan_group *g, const moe_dispatch_plan_attr *at, int64_t *take, int64_t *offsets) {
    const int64_t least = plan_align(at->min_rows, at->align);
    int64_t i, row = 0, needed = 0;
    for (i = 0; i < g->groups; i++) {
        const int64_t after = least * (g->groups - 1 - i);
        const int64_t room = plan_most(at->limit - row - after, 0) / at->align * at->align;
        offsets[i] = row;
        needed += plan_align(plan_most(take[i], at->min_rows), at->align);
        take[i] = plan_least(take[i], room);
        row += plan_align(plan_most(take[i], at->min_rows), at->align);
    }
    offsets[g->groups] = row;
    return needed;
}

/* Which members' choices of expert e the `take` kept ones are, from `row` on: column e of kept and first [M,E]. */
PLAN_FN void plan_share(const plan_group *g, const int64_t *all, int64_t stride, int64_t e, int64_t row, int64_t take,
                        int64_t *kept, int64_t *first) {
    const int64_t end = row + take;
    int64_t m;
    for (m = 0; m < g->members; m++) {
        const int64_t keep = plan_least(all[m * stride + e], end - row);
        kept[m * g->experts + e] = keep;
        first[m * g->experts + e] = row;
        row += keep;
    }
}

/* ---- moe.exchange_maps/0 ---- */
/* Rows before each expert's in a part of n experts: before [n]. Returns the rows of the part. */
PLAN_FN int64_t plan_before(const int64_t *kept, int64_t n, int64_t *before) {
    int64_t i, rows = 0;
    for (i = 0; i < n; i++) {
        before[i] = rows;
        rows += kept[i];
    }
    return rows;
}

/* parts [MOE_PARTS,M] and runs [4] from to [ep_size], rows for each ep rank, and from [M], rows from each member. */
PLAN_FN void plan_parts(const plan_group *g, int64_t me, int64_t slot, const int64_t *to, const int64_t *from,
                        int64_t *parts, int64_t *runs) {
    const int64_t n = g->members;
    int64_t *gives = parts + MOE_PART_GIVES * n, *gets = parts + MOE_PART_GETS * n, *out = parts + MOE_PART_OUT_AT * n;
    int64_t *in = parts + MOE_PART_IN_AT * n, *landed = parts + MOE_PART_LANDED_AT * n;
    int64_t *back = parts + MOE_PART_RETURN_AT * n, m, ep, sent = 0, come = 0, others, returned;
    for (ep = 0; ep < g->ep_size; ep++) {
        for (m = ep * g->etp; m < (ep + 1) * g->etp; m++) out[m] = slot ? ep * slot : sent;
        sent += slot ? slot : to[ep];
    }
    for (m = 0; m < n; m++) {
        landed[m] = come;
        come += slot ? slot : from[m];
    }
    others = sent;
    returned = come;
    for (m = 0; m < n; m++) {
        const int64_t mine = m == me;
        gives[m] = mine ? 0 : to[m / g->etp];
        gets[m] = mine ? 0 : from[m];
        in[m] = mine ? out[m] : others;
        back[m] = mine ? landed[m] : returned;
        others += slot ? slot : gets[m];
        returned += slot ? slot : gives[m];
    }
    runs[0] = runs[2] = 0;
    runs[1] = sent;
    runs[3] = come;
}
#endif
