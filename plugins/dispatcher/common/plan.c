/* The plan of a routing, by operations of the device. See plan.h. */
#include "plan.h"

#include <moe/ops.h>

#include "ops.h"

static uint64_t counts_bytes(const disp *d, int64_t extra) {
    return 8 * (uint64_t)d->members * (d->n_experts + 1 + (uint64_t)extra);
}

/* Where the parts of a block begin; *end: bytes of it. */
static void place(const disp *d, int64_t extra, uint64_t at[6], uint64_t *end) {
    const uint64_t shares = 8 * (uint64_t)d->members * d->n_experts;
    *end = 0;
    at[0] = disp_place(d, end, counts_bytes(d, extra));
    at[1] = disp_place(d, end, shares);
    at[2] = disp_place(d, end, shares);
    at[3] = disp_place(d, end, 8 * (uint64_t)d->ep_size * ((uint64_t)d->groups + 1));
    at[4] = disp_place(d, end, 8 * (uint64_t)d->members);
    at[5] = disp_place(d, end, d->plan.workspace);
}

uint64_t plan_bytes(const disp *d, int64_t extra) {
    uint64_t at[6], end;
    place(d, extra, at, &end);
    return end;
}

plan plan_at(const disp *d, int64_t extra, void *memory) {
    uint64_t at[6], end;
    char *block = memory;
    place(d, extra, at, &end);
    return (plan){.counts = (int64_t *)(void *)(block + at[0]),
                  .kept = (int64_t *)(void *)(block + at[1]),
                  .first = (int64_t *)(void *)(block + at[2]),
                  .offsets = (int64_t *)(void *)(block + at[3]),
                  .tokens = (int64_t *)(void *)(block + at[4]),
                  .workspace = d->plan.workspace ? block + at[5] : NULL,
                  .stride = d->n_experts + 1 + extra,
                  .extra = extra};
}

/* ---- the calls, each once: in a step they run (most NULL); in set-up, without data, they ask for workspace ---- */
static moe_status call(const disp *d, uint64_t *most, const moe_op *op, const moe_op_args *args, moe_err *err) {
    return most ? disp_ask(d, op, args, most, err) : op->forward(d->dev, args, err);
}

static moe_status call_counts(const disp *d, uint64_t *most, moe_op_args *op, const plan *p, const moe_tensor *ids,
                              moe_err *err) {
    const moe_expert_counts_attr attr = {.size = sizeof attr, .n_experts = d->n_experts, .layer = d->layer};
    int64_t *mine = p->counts ? p->counts + d->me * p->stride : NULL;
    const moe_tensor out = disp_tensor(mine, MOE_I64, 1, p->stride, 1);
    op->in = ids;
    op->n_in = 1;
    op->out = &out;
    op->n_out = 1;
    op->attr = &attr;
    return call(d, most, d->plan.counts, op, err);
}

static moe_status call_plan(const disp *d, uint64_t *most, moe_op_args *op, const plan *p, const moe_tensor *offsets,
                            const moe_tensor *counts, moe_err *err) {
    const moe_dispatch_plan_attr attr = {.size = sizeof attr,
                                         .n_experts = d->n_experts,
                                         .ep_rank = d->ep_rank,
                                         .ep_size = d->ep_size,
                                         .overflow = d->overflow,
                                         .align = d->align,
                                         .min_rows = d->min_rows,
                                         .limit = d->recv_rows ? d->recv_rows : d->max_rows,
                                         .layer = d->layer};
    const int64_t m = d->members, e = d->n_experts;
    const moe_tensor in = disp_tensor(p->counts, MOE_I64, 2, m, p->stride);
    const moe_tensor out[] = {disp_tensor(p->kept, MOE_I64, 2, m, e),
                              disp_tensor(p->first, MOE_I64, 2, m, e),
                              disp_tensor(p->offsets, MOE_I64, 2, d->ep_size, (int64_t)d->groups + 1),
                              *offsets,
                              *counts,
                              disp_tensor(p->tokens, MOE_I64, 1, m, 1)};
    op->in = &in;
    op->n_in = 1;
    op->out = out;
    op->n_out = 6;
    op->attr = &attr;
    return call(d, most, d->plan.plan, op, err);
}

/* Members [m, m + n) of the plan. */
static moe_status call_slots(const disp *d, uint64_t *most, moe_op_args *op, const plan *p, int64_t m, int64_t n,
                             const moe_dispatch_slots_attr *attr, const plan_all *all, moe_err *err) {
    const int64_t e = d->n_experts, k = d->top_k, at = p->kept ? m * e : 0;
    const moe_tensor ids = {
        .data = (void *)(uintptr_t)all->ids, .dtype = MOE_I32, .ndim = 3, .shape = {n, all->most, k, 1}};
    const moe_tensor in[] = {ids, disp_tensor(p->tokens ? p->tokens + m : NULL, MOE_I64, 1, n, 1),
                             disp_tensor(p->kept ? p->kept + at : NULL, MOE_I64, 2, n, e),
                             disp_tensor(p->first ? p->first + at : NULL, MOE_I64, 2, n, e)};
    const moe_tensor out[] = {
        {.data = all->slot_row, .dtype = MOE_I64, .ndim = 3, .shape = {n, all->most, k, 1}},
        all->rows < 0 ? (moe_tensor){.shape = {1, 1, 1, 1}} : disp_tensor(all->row_slot, MOE_I64, 1, all->rows, 1)};
    op->in = in;
    op->n_in = 4;
    op->out = out;
    op->n_out = 2;
    op->attr = attr;
    return call(d, most, d->plan.slots, op, err);
}

static moe_dispatch_slots_attr experts_all(const disp *d) {
    return (moe_dispatch_slots_attr){.size = sizeof(moe_dispatch_slots_attr), .groups = d->n_experts};
}
static moe_dispatch_slots_attr experts_own(const disp *d) {
    return (moe_dispatch_slots_attr){.size = sizeof(moe_dispatch_slots_attr), .first = d->first, .groups = d->groups};
}

/* ---- set-up ---- */
moe_status plan_open(disp *d, moe_err *err) {
    const disp_want wanted[] = {{MOE_OP_EXPERT_COUNTS, &d->plan.counts},
                                {MOE_OP_DISPATCH_PLAN, &d->plan.plan},
                                {MOE_OP_DISPATCH_SLOTS, &d->plan.slots}};
    const plan none = {.stride = d->n_experts + 1};
    const moe_tensor ids = disp_tensor(NULL, MOE_I32, 2, d->max_tokens, d->top_k);
    const moe_tensor offsets = disp_tensor(NULL, MOE_I64, 1, (int64_t)d->groups + 1, 1);
    const moe_tensor counts = disp_tensor(NULL, MOE_I64, 1, d->groups, 1);
    const moe_dispatch_slots_attr every = experts_all(d);
    moe_op_args op = {.size = sizeof op};
    moe_status s = disp_find(d, wanted, sizeof wanted / sizeof wanted[0], err);
    if (s == MOE_OK) s = call_counts(d, &d->plan.workspace, &op, &none, &ids, err);
    if (s == MOE_OK) s = call_plan(d, &d->plan.workspace, &op, &none, &offsets, &counts, err);
    const plan_all own = {.most = d->max_tokens, .rows = -1};
    return s == MOE_OK ? call_slots(d, &d->plan.workspace, &op, &none, 0, 1, &every, &own, err) : s;
}

moe_status plan_ask_rows(disp *d, int64_t n, int64_t rows, moe_err *err) {
    const plan none = {.stride = d->n_experts + 1};
    const moe_dispatch_slots_attr own = experts_own(d);
    moe_op_args op = {.size = sizeof op};
    return call_slots(d, &d->plan.workspace, &op, &none, 0, n, &own, &(plan_all){.most = d->max_tokens, .rows = rows},
                      err);
}

/* ---- steps ---- */
static moe_op_args begin(const moe_layout_args *args, const plan *p) {
    return (moe_op_args){
        .size = sizeof(moe_op_args), .stream = args->stream, .workspace = p->workspace, .fault = disp_fault(args)};
}

moe_status plan_count(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err) {
    moe_op_args op = begin(args, p);
    return call_counts(d, NULL, &op, p, args->expert_ids, err);
}

moe_status plan_gather(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err) {
    if (d->comm) {
        const moe_status s =
            d->comm->all_gather(d->comm_self, d->layout_group, args->stream, p->counts + d->me * p->stride, p->counts,
                                (uint64_t)p->stride, MOE_I64, err);
        if (s != MOE_OK) return s;
    }
    return plan_derive(d, args, p, err);
}

moe_status plan_derive(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err) {
    moe_op_args op = begin(args, p);
    return call_plan(d, NULL, &op, p, args->offsets, args->counts, err);
}

moe_status plan_slots(const disp *d, const moe_layout_args *args, const plan *p, int64_t *slot_row, moe_err *err) {
    const moe_tensor *ids = args->expert_ids;
    const moe_dispatch_slots_attr every = experts_all(d);
    const plan_all own = {.ids = ids->data, .most = ids->shape[0], .rows = -1, .slot_row = slot_row};
    moe_op_args op = begin(args, p);
    return call_slots(d, NULL, &op, p, d->me, 1, &every, &own, err);
}

moe_status plan_rows(const disp *d, const moe_layout_args *args, const plan *p, const plan_all *all, moe_err *err) {
    const moe_dispatch_slots_attr own = experts_own(d);
    moe_op_args op = begin(args, p);
    return call_slots(d, NULL, &op, p, 0, d->members, &own, all, err);
}

moe_status plan_make(const disp *d, const moe_layout_args *args, const plan *p, moe_err *err) {
    moe_status s = disp_check_layout(d, args, err);
    if (s == MOE_OK) s = disp_check_room(d, args, err);
    if (s == MOE_OK) s = plan_count(d, args, p, err);
    if (s != MOE_OK) return disp_end_all(d, s, err);
    return plan_gather(d, args, p, err); /* all members see the same */
}
