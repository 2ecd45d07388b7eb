/* moe.expert_counts/0: how many tokens chose each expert. */
#include "args.h"

static const char op[] = MOE_OP_EXPERT_COUNTS;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    const moe_status s = op_check_expert_counts(a, err);
    if (s != MOE_OK) return s;
    *saved = 0;
    *workspace = 8 * (uint64_t)((const moe_expert_counts_attr *)a->attr)->n_experts;
    return MOE_OK;
}

/* Reported, and then nobody has chosen; 0: to be returned. */
static int reports(const moe_op_args *a, int64_t token, int64_t value) {
    const moe_expert_counts_attr *at = a->attr;
    if (!cpu_reports(a, MOE_E_DATA, token, value)) return 0;
    memset(a->out[0].data, 0, at->n_experts * sizeof(int64_t));
    return 1;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_expert_counts_attr *at = a->attr;
    const int32_t *id = a->in[0].data;
    int64_t *count = a->out[0].data, *last = a->workspace; /* last: 1 + the last token that chose an expert */
    const int64_t tokens = a->in[0].shape[0], k = a->in[0].shape[1], layer = at->layer;
    (void)dev;
    count[at->n_experts] = tokens;
    const int64_t bad = cpu_find_i32(id, tokens * k, -1, at->n_experts);
    if (bad >= 0 && reports(a, bad / k, id[bad])) return MOE_OK;
    if (bad >= 0)
        return moe_fail(err, MOE_E_DATA, "%s: layer %lld: token %lld slot %lld has expert %d, want -1 or below %u", op,
                        (long long)layer, (long long)(bad / k), (long long)(bad % k), id[bad], at->n_experts);
    memset(count, 0, (size_t)at->n_experts * sizeof *count);
    memset(last, 0, (size_t)at->n_experts * sizeof *last);
    for (int64_t t = 0; t < tokens; t++)
        for (const int32_t *e = id + t * k; e < id + (t + 1) * k; e++) {
            if (*e < 0) continue;
            if (last[*e] == t + 1 && reports(a, t, *e)) return MOE_OK;
            if (last[*e] == t + 1)
                return moe_fail(err, MOE_E_DATA, "%s: layer %lld: token %lld chose expert %d twice", op,
                                (long long)layer, (long long)t, *e);
            last[*e] = t + 1;
            count[*e]++;
        }
    return MOE_OK;
}

const moe_op CPU_OP(expert_counts) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
