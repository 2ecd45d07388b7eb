/* Checks of what plans a dispatch and counts it: moe.expert_counts/0, moe.dispatch_plan/0, moe.dispatch_slots/0,
 * moe.exchange_maps/0, moe.sent/0; and of moe.convert/0. See ../ops.h. */
#include <moe/dispatcher.h>

#include "../ops.h"

/* ---- moe.expert_counts/0 ---- */
static const char expert_counts[] = MOE_OP_EXPERT_COUNTS;

moe_status op_check_expert_counts(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, expert_counts, 1, 1, 1, 1, err);
    if (s == MOE_OK) s = op_want_attr(a, expert_counts, sizeof(moe_expert_counts_attr), err);
    if (s == MOE_OK) s = op_want(&a->in[0], expert_counts, "ids", MOE_I32, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->out[0], expert_counts, "row", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    if (s != MOE_OK) return s;
    const moe_expert_counts_attr *at = a->attr;
    if (at->n_experts > 0 && a->out[0].shape[0] > at->n_experts) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: row has %lld numbers, want at least one expert's and one more than %u",
                    expert_counts, (long long)a->out[0].shape[0], at->n_experts);
}

/* ---- moe.dispatch_plan/0 ---- */
static const char dispatch_plan[] = MOE_OP_DISPATCH_PLAN;

static moe_status check_plan(const moe_op_args *a, moe_err *err) {
    const moe_dispatch_plan_attr *at = a->attr;
    if (at->ep_size < 1 || at->n_experts < 1 || at->n_experts % at->ep_size || at->ep_rank >= at->ep_size)
        return moe_fail(err, MOE_E_ARG, "%s: %u experts on ep rank %u of %u", dispatch_plan, at->n_experts, at->ep_rank,
                        at->ep_size);
    if (at->align < 1 || at->min_rows < 0 || at->limit < 0)
        return moe_fail(err, MOE_E_ARG, "%s: align is %lld, min_rows %lld, limit %lld; want >= 1, >= 0, >= 0",
                        dispatch_plan, (long long)at->align, (long long)at->min_rows, (long long)at->limit);
    if (at->overflow == MOE_OVERFLOW_STOP || at->overflow == MOE_OVERFLOW_DROP) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: overflow is %d, want %d (stop) or %d (drop)", dispatch_plan, at->overflow,
                    MOE_OVERFLOW_STOP, MOE_OVERFLOW_DROP);
}

moe_status op_check_dispatch_plan(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, dispatch_plan, 1, 1, 6, 6, err);
    if (s == MOE_OK) s = op_want_attr(a, dispatch_plan, sizeof(moe_dispatch_plan_attr), err);
    if (s == MOE_OK) s = check_plan(a, err);
    if (s == MOE_OK) s = op_want(&a->in[0], dispatch_plan, "all", MOE_I64, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    const moe_dispatch_plan_attr *at = a->attr;
    const int64_t m = a->in[0].shape[0], e = at->n_experts, groups = e / at->ep_size;
    if (a->in[0].shape[1] <= e || m < 1 || m % at->ep_size)
        return moe_fail(err, MOE_E_ARG, "%s: all is [%lld,%lld], want a multiple of %u rows of more than %lld",
                        dispatch_plan, (long long)m, (long long)a->in[0].shape[1], at->ep_size, (long long)e);
    s = op_want(&a->out[0], dispatch_plan, "kept", MOE_I64, 2, OP_SHAPE(m, e), err);
    if (s == MOE_OK) s = op_want(&a->out[1], dispatch_plan, "first", MOE_I64, 2, OP_SHAPE(m, e), err);
    if (s == MOE_OK)
        s = op_want(&a->out[2], dispatch_plan, "all_offsets", MOE_I64, 2, OP_SHAPE(at->ep_size, groups + 1), err);
    if (s == MOE_OK) s = op_want(&a->out[3], dispatch_plan, "offsets", MOE_I64, 1, OP_SHAPE(groups + 1), err);
    if (s == MOE_OK) s = op_want(&a->out[4], dispatch_plan, "counts", MOE_I64, 1, OP_SHAPE(groups), err);
    return s == MOE_OK ? op_want(&a->out[5], dispatch_plan, "tokens", MOE_I64, 1, OP_SHAPE(m), err) : s;
}

/* ---- moe.dispatch_slots/0 ---- */
static const char dispatch_slots[] = MOE_OP_DISPATCH_SLOTS;

moe_status op_check_dispatch_slots(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, dispatch_slots, 4, 4, 1, 2, err);
    if (s == MOE_OK) s = op_want_attr(a, dispatch_slots, sizeof(moe_dispatch_slots_attr), err);
    if (s == MOE_OK) s = op_want(&a->in[0], dispatch_slots, "ids", MOE_I32, 3, OP_SHAPE(OP_ANY, OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->in[1], dispatch_slots, "tokens", MOE_I64, 1, a->in[0].shape, err);
    if (s == MOE_OK)
        s = op_want(&a->in[2], dispatch_slots, "kept", MOE_I64, 2, OP_SHAPE(a->in[0].shape[0], OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->in[3], dispatch_slots, "first", MOE_I64, 2, a->in[2].shape, err);
    if (s == MOE_OK) s = op_want(&a->out[0], dispatch_slots, "slot_row", MOE_I64, 3, a->in[0].shape, err);
    const moe_tensor *row_slot = s == MOE_OK ? op_optional(a->out, a->n_out, 1) : NULL;
    if (row_slot) s = op_want(row_slot, dispatch_slots, "row_slot", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    if (s != MOE_OK) return s;
    const moe_dispatch_slots_attr *at = a->attr;
    const int64_t experts = a->in[2].shape[1];
    if (at->groups > 0 && (int64_t)at->first + at->groups <= experts) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: %u experts from %u on, want at least one and all below %lld", dispatch_slots,
                    at->groups, at->first, (long long)experts);
}

/* ---- moe.exchange_maps/0 ---- */
static const char exchange_maps[] = MOE_OP_EXCHANGE_MAPS;

static moe_status check_members(const moe_op_args *a, moe_err *err) {
    const moe_exchange_maps_attr *at = a->attr;
    const int64_t m = a->in[2].shape[0], e = a->in[2].shape[1], etp = at->etp_size;
    if (at->ep_size < 1 || etp < 1 || m % at->ep_size || m / at->ep_size != etp || at->me >= m || e % at->ep_size)
        return moe_fail(err, MOE_E_ARG,
                        "%s: kept is [%lld,%lld]; ep_size %u, etp_size %u, member %u: want ep_size * etp_size members, "
                        "and experts a multiple of ep_size",
                        exchange_maps, (long long)m, (long long)e, at->ep_size, at->etp_size, at->me);
    if (at->slot < 0)
        return moe_fail(err, MOE_E_ARG, "%s: slot is %lld, want >= 0", exchange_maps, (long long)at->slot);
    return MOE_OK;
}

moe_status op_check_exchange_maps(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, exchange_maps, 5, 5, 6, 6, err);
    if (s == MOE_OK) s = op_want_attr(a, exchange_maps, sizeof(moe_exchange_maps_attr), err);
    if (s == MOE_OK) s = op_want(&a->in[0], exchange_maps, "ids", MOE_I32, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->in[1], exchange_maps, "slot_row", MOE_I64, 2, a->in[0].shape, err);
    if (s == MOE_OK) s = op_want(&a->in[2], exchange_maps, "kept", MOE_I64, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = check_members(a, err);
    if (s == MOE_OK) s = op_want(&a->in[3], exchange_maps, "first", MOE_I64, 2, a->in[2].shape, err);
    if (s != MOE_OK) return s;
    const moe_exchange_maps_attr *at = a->attr;
    const int64_t *slots = a->in[0].shape, m = a->in[2].shape[0], groups = a->in[2].shape[1] / at->ep_size;
    s = op_want(&a->in[4], exchange_maps, "offsets", MOE_I64, 1, OP_SHAPE(groups + 1), err);
    if (s == MOE_OK) s = op_want(&a->out[0], exchange_maps, "parts", MOE_I64, 2, OP_SHAPE(MOE_PARTS, m), err);
    if (s == MOE_OK) s = op_want(&a->out[1], exchange_maps, "runs", MOE_I64, 2, OP_SHAPE(2, 2), err);
    if (s == MOE_OK) s = op_want(&a->out[2], exchange_maps, "sent_slot", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->out[3], exchange_maps, "landed_row", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->out[4], exchange_maps, "row_from", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    return s == MOE_OK ? op_want(&a->out[5], exchange_maps, "slot_at", MOE_I64, 2,
                                 OP_SHAPE(slots[0], slots[1] * at->etp_size), err)
                       : s;
}

/* ---- moe.sent/0 ---- */
moe_status op_check_sent(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_SENT;
    moe_status s = op_want_lists(a, op, 1, 1, 1, 2, err);
    if (s == MOE_OK) s = op_want_attr(a, op, sizeof(moe_sent_attr), err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "rows", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    if (s != MOE_OK) return s;
    const moe_tensor *all = op_optional(a->out, a->n_out, 0), *away = op_optional(a->out, a->n_out, 1);
    if (all) s = op_want(all, op, "sent", MOE_I64, 1, OP_SHAPE(1), err);
    if (s == MOE_OK && away) s = op_want(away, op, "far", MOE_I64, 1, OP_SHAPE(1), err);
    if (s != MOE_OK) return s;
    const moe_sent_attr *at = a->attr;
    const int64_t n = a->in[0].shape[0];
    if (n >= 1 && at->me < at->members && at->members % n == 0 && at->bytes >= 0) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: %lld numbers for %u members, member %u, rows of %lld bytes", op, (long long)n,
                    at->members, at->me, (long long)at->bytes);
}

/* ---- moe.convert/0 ---- */
static const char convert[] = MOE_OP_CONVERT;

moe_status op_check_convert(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, convert, 1, 1, 1, 1, err);
    if (s != MOE_OK) return s;
    const moe_tensor *x = &a->in[0];
    if (x->ndim < 1 || x->ndim > 4) return moe_fail(err, MOE_E_ARG, "%s: x has ndim %d", convert, x->ndim);
    s = op_want(x, convert, "x", OP_ACT, x->ndim, x->shape, err);
    return s == MOE_OK ? op_want(&a->out[0], convert, "y", OP_ACT, x->ndim, x->shape, err) : s;
}
