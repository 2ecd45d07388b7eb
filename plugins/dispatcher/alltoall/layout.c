/* layout of dispatcher/alltoall: the plan that all members share, and this member's maps of staged rows. */
#include "alltoall.h"

/* The largest number of rows of each array. */
static void count_rows(alltoall *me) {
    const disp *d = &me->d;
    const int64_t pair = disp_min(d->max_tokens * disp_min(d->top_k, d->groups), d->max_rows);
    me->slot = d->fixed ? disp_max(pair, 1) : 0;
    me->max_sent = d->fixed ? d->ep_size * me->slot : d->max_tokens * disp_min(d->top_k, d->n_experts);
    me->max_landed = d->fixed ? d->members * me->slot : d->max_landed;
    me->max_staged = d->fixed ? 2 * d->members * me->slot : me->max_landed + me->max_sent * d->etp_size;
}

/* moe.exchange_maps/0 over a handle and a plan; with NULL for both, of any shape: to ask. */
static moe_status map_rows(const alltoall *me, uint64_t *most, const moe_tensor *ids, const void *slot_row,
                           const plan *p, const moe_tensor *offsets, const moe_layout_args *args, moe_err *err) {
    const disp *d = &me->d;
    const int64_t m = d->members, e = d->n_experts, t = ids->shape[0], k = d->top_k;
    const moe_exchange_maps_attr attr = {
        .size = sizeof attr, .me = d->me, .ep_size = d->ep_size, .etp_size = d->etp_size, .slot = me->slot};
    const moe_tensor in[] = {*ids, disp_tensor(slot_row, MOE_I64, 2, t, k), disp_tensor(p->kept, MOE_I64, 2, m, e),
                             disp_tensor(p->first, MOE_I64, 2, m, e), *offsets};
    const void *h = args ? args->handle : NULL;
    const moe_tensor out[] = {disp_tensor(routes_array(h, me->parts), MOE_I64, 2, MOE_PARTS, m),
                              disp_tensor(routes_array(h, me->runs), MOE_I64, 2, 2, 2),
                              disp_tensor(routes_array(h, me->sent_slot), MOE_I64, 1, me->max_sent, 1),
                              disp_tensor(routes_array(h, me->landed_row), MOE_I64, 1, me->max_landed, 1),
                              disp_tensor(routes_array(h, me->row_from), MOE_I64, 1, d->max_rows, 1),
                              disp_tensor(routes_array(h, me->slot_at), MOE_I64, 2, t, k * d->etp_size)};
    const moe_op_args op = {.size = sizeof op,
                            .n_in = 5,
                            .n_out = 6,
                            .stream = args ? args->stream : NULL,
                            .in = in,
                            .out = out,
                            .attr = &attr,
                            .workspace = p->workspace,
                            .fault = args ? disp_fault(args) : NULL};
    return most ? disp_ask(d, me->ops.maps, &op, most, err) : me->ops.maps->forward(d->dev, &op, err);
}

static moe_status ask(alltoall *me, moe_err *err) {
    disp *d = &me->d;
    const int64_t t = d->max_tokens, k = d->top_k;
    const moe_tensor ids = disp_tensor(NULL, MOE_I32, 2, t, k);
    const moe_tensor offsets = disp_tensor(NULL, MOE_I64, 1, (int64_t)d->groups + 1, 1);
    moe_status s = disp_ops_ask_moves(d, &me->ops, t, me->max_sent, k, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, t, me->max_staged, k * d->etp_size, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, me->max_staged, d->max_rows, 1, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, d->max_rows, me->max_landed, 1, err);
    return s == MOE_OK ? map_rows(me, &d->plan.workspace, &ids, NULL, &(plan){.stride = 0}, &offsets, NULL, err) : s;
}

/* Workspace of layout: the plan, then slot_row [T,k]. Of a movement: the arrays of all_to_all_v, what operations take,
 * staged rows of planes and scalars. */
moe_status alltoall_place(alltoall *me, moe_err *err) {
    disp *d = &me->d;
    const int64_t k = d->top_k, t = d->max_tokens;
    const uint64_t m = d->members;
    count_rows(me);
    const moe_status s = ask(me, err);
    if (s != MOE_OK) return s;
    uint64_t end = sizeof(routes);
    me->parts = disp_place(d, &end, 8 * MOE_PARTS * m);
    me->runs = disp_place(d, &end, 8 * 4);
    me->scratch = end;
    me->host_handle = d->async ? end + 4 * 8 * m : 0;
    me->sent_slot = disp_place(d, &end, 8 * (uint64_t)me->max_sent);
    me->landed_row = disp_place(d, &end, 8 * (uint64_t)me->max_landed);
    me->row_from = disp_place(d, &end, 8 * (uint64_t)d->max_rows);
    me->slot_at = disp_place(d, &end, 8 * (uint64_t)(t * k * d->etp_size));
    me->handle = end;
    end = plan_bytes(d, 0);
    disp_place(d, &end, 8 * (uint64_t)(t * k));
    uint64_t move = 0;
    disp_place(d, &move, 4 * 8 * m);
    me->ops_workspace = disp_place(d, &move, me->ops.workspace);
    me->rows = disp_place(d, &move, 0);
    move += (uint64_t)me->max_staged * 4 * (uint64_t)(disp_row_elements(d) + 1) + (DISP_PLANES + 2) * d->alignment;
    me->workspace = end > move ? end : move;
    return MOE_OK;
}

moe_status alltoall_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const alltoall *me = self;
    const disp *d = &me->d;
    const plan p = plan_at(d, 0, args->workspace);
    uint64_t end = plan_bytes(d, 0);
    int64_t *slot_row = routes_array(args->workspace, disp_place(d, &end, 0));
    moe_status s = plan_make(d, args, &p, err);
    if (s != MOE_OK) return s;
    s = plan_slots(d, args, &p, slot_row, err);
    if (s == MOE_OK) s = map_rows(me, NULL, args->expert_ids, slot_row, &p, args->offsets, args, err);
    if (s == MOE_OK) s = disp_tell(d, args, me->parts, me->scratch - me->parts, err);
    if (s != MOE_OK) return disp_end_all(d, s, err);
    routes *r = disp_host(d, args->handle, args->host_handle);
    r->tokens = args->expert_ids->shape[0];
    return MOE_OK;
}
