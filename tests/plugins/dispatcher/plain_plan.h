/* The planning operations of plain_device.h as plain loops, straight from ops.h: rows are given one at a time, and maps
 * are written by walking the arrays in the order in which their rows lie. */
#ifndef TESTS_PLAIN_PLAN_H
#define TESTS_PLAIN_PLAN_H
#include <moe/plugin.h>

/* One I64 an expert, so that a caller who forgets the workspace is found. */
static inline moe_status plain_expert_counts_sizes(void *dev, const moe_op_args *args, uint64_t *saved,
                                                   uint64_t *workspace, moe_err *err) {
    (void)dev, (void)err;
    *saved = 0;
    *workspace = 8 * (uint64_t)((const moe_expert_counts_attr *)args->attr)->n_experts;
    return MOE_OK;
}
static inline moe_status plain_expert_counts(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev;
    const moe_expert_counts_attr *at = args->attr;
    const int64_t t_n = args->in[0].shape[0], k = args->in[0].shape[1];
    const int32_t *ids = args->in[0].data;
    int64_t *row = args->out[0].data, *last = args->workspace;
    for (uint32_t e = 0; e < at->n_experts; e++) row[e] = last[e] = 0;
    row[at->n_experts] = t_n;
    for (int64_t i = 0; i < t_n * k; i++) {
        if (ids[i] == -1) continue;
        if (ids[i] < -1 || ids[i] >= (int32_t)at->n_experts)
            return moe_fail(err, MOE_E_DATA, "layer %lld: id %d of slot %lld", (long long)at->layer, ids[i],
                            (long long)i);
        if (last[ids[i]] == i / k + 1)
            return moe_fail(err, MOE_E_DATA, "layer %lld: token %lld chose expert %d twice", (long long)at->layer,
                            (long long)(i / k), ids[i]);
        last[ids[i]] = i / k + 1;
        row[ids[i]]++;
    }
    return MOE_OK;
}

static inline int64_t plain_up(int64_t rows, int64_t align) {
    return (rows + align - 1) / align * align;
}

/* ---- moe.dispatch_plan/0 ---- */
/* Ep rank `ep`: rows in order of experts and members, each kept while its aligned end and what later experts take in
 * any case fit. Returns the rows that all of them need. */
static inline int64_t plain_plan_rank(const moe_op_args *args, uint32_t ep, int64_t *counts) {
    const moe_dispatch_plan_attr *at = args->attr;
    const int64_t *all = args->in[0].data, members = args->in[0].shape[0], stride = args->in[0].shape[1];
    const int64_t n = at->n_experts, groups = n / at->ep_size;
    int64_t *kept = args->out[0].data, *first = args->out[1].data, needed = 0;
    int64_t *offsets = (int64_t *)args->out[2].data + ep * (groups + 1);
    offsets[0] = 0;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t e = ep * groups + g, later = (groups - 1 - g) * plain_up(at->min_rows, at->align);
        int64_t rows = 0, chosen = 0;
        for (int64_t m = 0; m < members; m++) {
            first[m * n + e] = offsets[g] + rows;
            kept[m * n + e] = 0;
            for (int64_t i = 0; i < all[m * stride + e]; i++, chosen++) {
                if (offsets[g] + plain_up(rows + 1, at->align) + later > at->limit) continue;
                kept[m * n + e]++;
                rows++;
            }
        }
        counts[g] = rows;
        offsets[g + 1] = offsets[g] + plain_up(rows > at->min_rows ? rows : at->min_rows, at->align);
        needed += plain_up(chosen > at->min_rows ? chosen : at->min_rows, at->align);
    }
    return needed;
}
static inline moe_status plain_dispatch_plan_sizes(void *dev, const moe_op_args *args, uint64_t *saved,
                                                   uint64_t *workspace, moe_err *err) {
    (void)dev, (void)err;
    const moe_dispatch_plan_attr *at = args->attr;
    *saved = 0;
    *workspace = 8 * (uint64_t)(at->n_experts / at->ep_size);
    return MOE_OK;
}
static inline moe_status plain_dispatch_plan(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev;
    const moe_dispatch_plan_attr *at = args->attr;
    const int64_t *all = args->in[0].data, members = args->in[0].shape[0], groups = at->n_experts / at->ep_size;
    for (int64_t m = 0; m < members; m++)
        ((int64_t *)args->out[5].data)[m] = all[m * args->in[0].shape[1] + at->n_experts];
    for (uint32_t ep = 0; ep < at->ep_size; ep++) {
        const int64_t needed = plain_plan_rank(args, ep, ep == at->ep_rank ? args->out[4].data : args->workspace);
        if (needed > at->limit && at->overflow == MOE_OVERFLOW_STOP)
            return moe_fail(err, MOE_E_OVERFLOW, "layer %lld: ep rank %u needs %lld rows, recv_rows is %lld",
                            (long long)at->layer, ep, (long long)needed, (long long)at->limit);
    }
    for (int64_t g = 0; g <= groups; g++)
        ((int64_t *)args->out[3].data)[g] = ((int64_t *)args->out[2].data)[at->ep_rank * (groups + 1) + g];
    return MOE_OK;
}

/* ---- moe.dispatch_slots/0 ---- */
static inline moe_status plain_dispatch_slots(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev, (void)err;
    const moe_dispatch_slots_attr *at = args->attr;
    const int64_t most = args->in[0].shape[1], k = args->in[0].shape[2], n = args->in[2].shape[1];
    const int64_t *tokens = args->in[1].data, *kept = args->in[2].data, *first = args->in[3].data;
    const int32_t *ids = args->in[0].data;
    int64_t *slot_row = args->out[0].data, *row_slot = args->out[1].data;
    for (int64_t r = 0; row_slot && r < args->out[1].shape[0]; r++) row_slot[r] = -1;
    for (int64_t i = 0; i < args->in[0].shape[0] * most * k; i++) {
        const int64_t m = i / (most * k), e = ids[i];
        int64_t before = 0;
        slot_row[i] = -1;
        if (i % (most * k) >= tokens[m] * k || e < at->first || e >= (int64_t)at->first + at->groups) continue;
        for (int64_t j = m * most * k; j < i; j++) before += ids[j] == e;
        if (before >= kept[m * n + e]) continue;
        slot_row[i] = first[m * n + e] + before;
        if (row_slot) row_slot[slot_row[i]] = i;
    }
    return MOE_OK;
}

/* ---- moe.exchange_maps/0 ---- */
static inline moe_status plain_exchange_maps_sizes(void *dev, const moe_op_args *args, uint64_t *saved,
                                                   uint64_t *workspace, moe_err *err) {
    (void)dev, (void)err;
    *saved = 0;
    *workspace = 8 * (uint64_t)(args->in[0].shape[0] * args->in[0].shape[1]);
    return MOE_OK;
}
/* What is sent, part by part; within [slot]: the number of a slot's row in its part, -1 = none. Returns where it ends.
 */
static inline int64_t plain_map_sent(const moe_op_args *args, int64_t *within) {
    const moe_exchange_maps_attr *at = args->attr;
    const int64_t n = args->in[2].shape[0], groups = args->in[2].shape[1] / at->ep_size;
    const int64_t slots = args->in[0].shape[0] * args->in[0].shape[1], *slot_row = args->in[1].data;
    const int32_t *ids = args->in[0].data;
    int64_t *out_at = (int64_t *)args->out[0].data + MOE_PART_OUT_AT * n, *gives = args->out[0].data;
    int64_t *sent_slot = args->out[2].data, at_row = 0;
    for (int64_t i = 0; i < slots; i++) within[i] = -1;
    for (uint32_t ep = 0; ep < at->ep_size; ep++) {
        const int64_t begin = at_row;
        for (int64_t e = ep * groups; e < (ep + 1) * groups; e++)
            for (int64_t i = 0; i < slots; i++) {
                if (ids[i] != e || slot_row[i] < 0) continue;
                within[i] = at_row - begin;
                sent_slot[at_row++] = i;
            }
        for (uint32_t m = ep * at->etp_size; m < (ep + 1) * at->etp_size; m++) {
            out_at[m] = begin;
            gives[m] = m == at->me ? 0 : at_row - begin;
        }
        while (at_row < begin + at->slot) sent_slot[at_row++] = -1;
    }
    return at_row;
}
/* What comes, member by member, behind `sent` rows; and the same where it is returned. Returns the rows there. */
static inline int64_t plain_map_landed(const moe_op_args *args, int64_t sent) {
    const moe_exchange_maps_attr *at = args->attr;
    const int64_t n = args->in[2].shape[0], experts = args->in[2].shape[1], groups = experts / at->ep_size;
    const int64_t *kept = args->in[2].data, *first = args->in[3].data, *offsets = args->in[4].data;
    int64_t *parts = args->out[0].data, *landed_row = args->out[3].data, *row_from = args->out[4].data, land = 0;
    for (int64_t r = 0; r < offsets[groups]; r++) row_from[r] = -1;
    for (int64_t m = 0; m < n; m++) {
        const int64_t begin = land, from = m == at->me ? parts[MOE_PART_OUT_AT * n + m] : sent;
        for (int64_t e = at->me / at->etp_size * groups; e < (at->me / at->etp_size + 1) * groups; e++)
            for (int64_t r = first[m * experts + e]; r < first[m * experts + e] + kept[m * experts + e]; r++) {
                row_from[r] = from + land - begin;
                landed_row[land++] = r;
            }
        parts[MOE_PART_GETS * n + m] = m == at->me ? 0 : land - begin;
        parts[MOE_PART_IN_AT * n + m] = from;
        parts[MOE_PART_LANDED_AT * n + m] = begin;
        sent += at->slot ? at->slot : m == at->me ? 0 : land - begin;
        while (land < begin + at->slot) landed_row[land++] = -1;
    }
    return land;
}
static inline moe_status plain_exchange_maps(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev, (void)err;
    const moe_exchange_maps_attr *at = args->attr;
    const int64_t n = args->in[2].shape[0], groups = args->in[2].shape[1] / at->ep_size;
    const int64_t slots = args->in[0].shape[0] * args->in[0].shape[1];
    int64_t *within = args->workspace, *parts = args->out[0].data, *runs = args->out[1].data;
    runs[0] = runs[2] = 0;
    runs[1] = plain_map_sent(args, within);
    int64_t back = runs[3] = plain_map_landed(args, runs[1]);
    for (int64_t m = 0; m < n; m++) {
        parts[MOE_PART_RETURN_AT * n + m] = m == at->me ? parts[MOE_PART_LANDED_AT * n + m] : back;
        back += at->slot ? at->slot : parts[MOE_PART_GIVES * n + m];
    }
    for (int64_t i = 0; i < slots; i++)
        for (int64_t f = 0; f < at->etp_size; f++) {
            const int64_t m = within[i] < 0 ? 0 : ((const int32_t *)args->in[0].data)[i] / groups * at->etp_size + f;
            ((int64_t *)args->out[5].data)[i * at->etp_size + f] =
                within[i] < 0 ? -1 : parts[MOE_PART_RETURN_AT * n + m] + within[i];
        }
    return MOE_OK;
}

/* ---- moe.sent/0 ---- */
static inline moe_status plain_sent(void *dev, const moe_op_args *args, moe_err *err) {
    (void)dev, (void)err;
    const moe_sent_attr *at = args->attr;
    const int64_t *rows = args->in[0].data, n = args->in[0].shape[0];
    for (uint32_t m = 0; m < at->members; m++) {
        const int64_t bytes = m == at->me ? 0 : rows[m * n / at->members] * at->bytes;
        const int away =
            at->node_size && (at->first_rank + m) / at->node_size != (at->first_rank + at->me) / at->node_size;
        if (args->out[0].data) *(int64_t *)args->out[0].data += bytes;
        if (args->out[1].data && away) *(int64_t *)args->out[1].data += bytes;
    }
    return MOE_OK;
}
#endif
