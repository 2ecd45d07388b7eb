/* The plan of a routing from the counts of all members. See plan.h. */
#include "plan.h"

#include <inttypes.h>

uint64_t plan_bytes(const disp *d, int64_t extra) {
    const uint64_t m = d->members, e = d->n_experts;
    return 8 * (m * (e + 1 + (uint64_t)extra) + 2 * m * e + d->ep_size * ((uint64_t)d->groups + 1) + e);
}

plan plan_at(const disp *d, int64_t extra, void *memory) {
    const int64_t m = d->members, e = d->n_experts;
    plan p = {.counts = memory, .stride = e + 1 + extra, .extra = extra};
    p.kept = p.counts + m * p.stride;
    p.first = p.kept + m * e;
    p.offsets = p.first + m * e;
    p.next = p.offsets + d->ep_size * ((int64_t)d->groups + 1);
    return p;
}

/* ---- this member's ids ---- */
moe_status plan_count(const disp *d, const moe_tensor *ids, plan *p, moe_err *err) {
    const int64_t tokens = ids->shape[0], k = d->top_k, n = d->n_experts;
    const int32_t *id = ids->data;
    int64_t *count = p->counts + d->me * p->stride, *last = p->next; /* last: 1 + the last token that chose e */
    memset(count, 0, (size_t)p->stride * sizeof *count);
    memset(last, 0, (size_t)n * sizeof *last);
    count[n] = tokens;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t j = 0; j < k; j++) {
            const int32_t e = id[t * k + j];
            if (e == -1) continue;
            if (e < -1 || e >= n)
                return moe_fail(err, MOE_E_DATA,
                                "layer %u: token %" PRId64 " slot %" PRId64 " has expert %d, want -1 or below %u",
                                d->layer, t, j, e, d->n_experts);
            if (last[e] == t + 1)
                return moe_fail(err, MOE_E_DATA, "layer %u: token %" PRId64 " chose expert %d twice", d->layer, t, e);
            last[e] = t + 1;
            count[e]++;
        }
    return MOE_OK;
}

void plan_slots(const disp *d, plan *p, const moe_tensor *ids, int64_t *slot_row) {
    const int64_t slots = ids->shape[0] * d->top_k, n = d->n_experts;
    const int64_t *kept = p->kept + d->me * n, *first = p->first + d->me * n;
    const int32_t *id = ids->data;
    memset(p->next, 0, (size_t)n * sizeof *p->next);
    for (int64_t i = 0; i < slots; i++) {
        const int32_t e = id[i];
        slot_row[i] = e >= 0 && p->next[e] < kept[e] ? first[e] + p->next[e] : -1;
        if (e >= 0) p->next[e]++;
    }
}

/* ---- all members' counts ---- */
/* Choices of expert e by all members. */
static int64_t chosen(const disp *d, const plan *p, uint32_t e) {
    int64_t n = 0;
    for (uint32_t m = 0; m < d->members; m++) n += plan_counted(d, p, m, e);
    return n;
}

/* Of `chosen` rows of an expert `take` are kept: which members' they are, and their first rows. */
static void share(const disp *d, plan *p, uint32_t e, int64_t row, int64_t take) {
    const int64_t end = row + take;
    for (uint32_t m = 0; m < d->members; m++) {
        const int64_t count = plan_counted(d, p, m, e), keep = disp_min(count, end - row);
        p->kept[(int64_t)m * d->n_experts + e] = keep;
        p->first[(int64_t)m * d->n_experts + e] = row;
        p->dropped += count - keep;
        row += keep;
    }
}

/* Offsets of one ep rank, and what its experts keep within `limit` rows. Returns the rows that it needs for all. */
static int64_t place_rank(const disp *d, plan *p, uint32_t ep, int64_t limit) {
    int64_t *offsets = p->offsets + ep * ((int64_t)d->groups + 1), row = 0, needed = 0;
    const int64_t least = disp_align(d->min_rows, d->align);
    for (uint32_t g = 0; g < d->groups; g++) {
        const uint32_t e = ep * d->groups + g;
        const int64_t all = chosen(d, p, e), after = least * (d->groups - 1 - g);
        const int64_t room = disp_max(limit - row - after, 0) / d->align * d->align, take = disp_min(all, room);
        offsets[g] = row;
        share(d, p, e, row, take);
        row += disp_align(disp_max(take, d->min_rows), d->align);
        needed += disp_align(disp_max(all, d->min_rows), d->align);
    }
    offsets[d->groups] = row;
    return needed;
}

moe_status plan_gather(const disp *d, void *stream, plan *p, moe_err *err) {
    if (d->comm) {
        const moe_status s = d->comm->all_gather(d->comm_self, d->layout_group, stream, p->counts + d->me * p->stride,
                                                 p->counts, (uint64_t)p->stride, MOE_I64, err);
        if (s != MOE_OK) return s;
    }
    const int64_t limit = d->recv_rows ? d->recv_rows : d->max_rows;
    moe_status status = MOE_OK;
    p->dropped = 0;
    for (uint32_t ep = 0; ep < d->ep_size; ep++) {
        const int64_t needed = place_rank(d, p, ep, limit);
        if (needed > limit && d->overflow == MOE_OVERFLOW_STOP && status == MOE_OK)
            status =
                moe_fail(err, MOE_E_OVERFLOW,
                         "layer %u: ep rank %u needs %" PRId64 " rows (aligned to %" PRId64 "), recv_rows is %" PRId64,
                         d->layer, ep, needed, d->align, d->recv_rows);
    }
    return status;
}

moe_status plan_give(const disp *d, const plan *p, const moe_layout_args *args, moe_err *err) {
    const int64_t *offsets = plan_offsets(d, p, d->ep_rank);
    int64_t *counts = args->counts->data;
    if (offsets[d->groups] > args->rows->max)
        return moe_fail(err, MOE_E_OVERFLOW,
                        "layer %u: %" PRId64 " rows needed (aligned to %" PRId64 "), rows.max is %" PRId64, d->layer,
                        offsets[d->groups], d->align, args->rows->max);
    memcpy(args->offsets->data, offsets, ((size_t)d->groups + 1) * sizeof *offsets);
    for (uint32_t g = 0; g < d->groups; g++) {
        counts[g] = 0;
        for (uint32_t m = 0; m < d->members; m++) counts[g] += plan_kept(d, p, m, d->first + g);
    }
    args->rows->host_total = offsets[d->groups];
    return MOE_OK;
}

moe_status plan_make(const disp *d, const moe_layout_args *args, plan *p, int64_t *slot_row, moe_err *err) {
    moe_status s = disp_check_layout(d, args, err);
    if (s == MOE_OK) s = plan_count(d, args->expert_ids, p, err);
    if (s != MOE_OK) return disp_end_all(d, s, err);
    s = plan_gather(d, args->stream, p, err);
    if (s != MOE_OK) return s; /* all members see the same */
    s = plan_give(d, p, args, err);
    if (s != MOE_OK) return disp_end_all(d, s, err);
    plan_slots(d, p, args->expert_ids, slot_row);
    return MOE_OK;
}
