/* moe.dispatch_plan/0: the rows of all members, and which of them are kept. The arithmetic is plan.h's. */
#include "../../common/plan.h"
#include "args.h"

static const char op[] = MOE_OP_DISPATCH_PLAN;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    const moe_status s = op_check_dispatch_plan(a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = 8 * (uint64_t)((const moe_dispatch_plan_attr *)a->attr)->n_experts;
    return MOE_OK;
}

/* Reported, and then nobody has chosen; 0: to be returned. */
static int reports(const moe_op_args *a, int64_t ep, int64_t needed) {
    if (!cpu_reports(a, MOE_E_OVERFLOW, ep, needed)) return 0;
    for (int i = 0; i < 5; i++) memset(a->out[i].data, 0, (size_t)op_elements(&a->out[i]) * sizeof(int64_t));
    return 1;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_dispatch_plan_attr *at = a->attr;
    const int64_t *all = a->in[0].data, stride = a->in[0].shape[1];
    const plan_group g = plan_group_of(a->in[0].shape[0], at->n_experts, at->ep_size);
    int64_t *kept = a->out[0].data, *first = a->out[1].data, *all_offsets = a->out[2].data, *tokens = a->out[5].data;
    int64_t *take = a->workspace; /* [E] */
    (void)dev;
    for (int64_t m = 0; m < g.members; m++) tokens[m] = all[m * stride + g.experts];
    for (int64_t e = 0; e < g.experts; e++) take[e] = plan_chosen(&g, all, stride, e);
    for (int64_t ep = 0; ep < g.ep_size; ep++) {
        int64_t *offsets = all_offsets + ep * (g.groups + 1);
        const int64_t needed = plan_take(&g, at, take + ep * g.groups, offsets);
        const int over = needed > at->limit && at->overflow == MOE_OVERFLOW_STOP;
        if (over && reports(a, ep, needed)) return MOE_OK;
        if (over)
            return moe_fail(err, MOE_E_OVERFLOW,
                            "%s: layer %lld: ep rank %lld needs %lld rows (aligned to %lld), recv_rows is %lld", op,
                            (long long)at->layer, (long long)ep, (long long)needed, (long long)at->align,
                            (long long)at->limit);
        for (int64_t e = ep * g.groups; e < (ep + 1) * g.groups; e++)
            plan_share(&g, all, stride, e, offsets[e - ep * g.groups], take[e], kept, first);
    }
    memcpy(a->out[3].data, all_offsets + at->ep_rank * (g.groups + 1), (size_t)(g.groups + 1) * sizeof *all_offsets);
    memcpy(a->out[4].data, take + at->ep_rank * g.groups, (size_t)g.groups * sizeof *take);
    return MOE_OK;
}

const moe_op CPU_OP(dispatch_plan) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
