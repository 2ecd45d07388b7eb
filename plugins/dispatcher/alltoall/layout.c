/* layout of dispatcher/alltoall: from the plan that all members share, this member's maps of staged rows. */
#include "alltoall.h"

/* Workspace of layout: the plan, then slot_row [T,k]. Of a movement: the arrays of all_to_all_v, what operations take,
 * staged rows of planes and scalars, slot scalars of each etp member. */
moe_status alltoall_place(alltoall *me, moe_err *err) {
    const disp *d = &me->d;
    const int64_t k = d->top_k, t = d->max_tokens;
    me->max_sent = t * disp_min(k, d->n_experts);
    me->max_staged = d->max_landed + me->max_sent * d->etp_size;
    moe_status s = disp_ops_ask_moves(d, &me->ops, t, me->max_sent, k, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, t, me->max_staged, k * d->etp_size, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, me->max_staged, d->max_rows, 1, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, d->max_rows, d->max_landed, 1, err);
    if (s != MOE_OK) return s;
    uint64_t end = sizeof(routes);
    me->send_rows = disp_place(d, &end, 8 * (uint64_t)d->ep_size);
    me->recv_rows = disp_place(d, &end, 8 * (uint64_t)d->members);
    me->sent_slot = disp_place(d, &end, 8 * (uint64_t)me->max_sent);
    me->landed_row = disp_place(d, &end, 8 * (uint64_t)d->max_landed);
    me->row_from = disp_place(d, &end, 8 * (uint64_t)d->max_rows);
    me->slot_at = disp_place(d, &end, 8 * (uint64_t)(t * k * d->etp_size));
    me->handle = end;
    end = plan_bytes(d, 0) + d->alignment + 8 * (uint64_t)(t * k);
    uint64_t move = 0;
    disp_place(d, &move, 4 * 8 * (uint64_t)d->members);
    me->ops_workspace = disp_place(d, &move, me->ops.workspace);
    me->rows = disp_place(d, &move, 0);
    move += (uint64_t)me->max_staged * 4 * (uint64_t)(disp_row_elements(d) + 1) + (DISP_PLANES + 2) * d->alignment;
    move += 4 * (uint64_t)(t * k * d->etp_size);
    me->workspace = end > move ? end : move;
    return MOE_OK;
}

/* Rows to each ep rank, and where each expert's begin among the sent ones (in p->next). */
static void count_sent(const alltoall *me, const plan *p, routes *r, int64_t *send_rows) {
    const disp *d = &me->d;
    int64_t at = 0;
    for (uint32_t e = 0; e < d->n_experts; e++) {
        if (e % d->groups == 0) send_rows[e / d->groups] = 0;
        if (e == d->first) r->own_sent = at;
        p->next[e] = at;
        at += plan_kept(d, p, d->me, e);
        send_rows[e / d->groups] += plan_kept(d, p, d->me, e);
    }
    r->sent[0] = 0;
    r->sent[1] = at;
}

static void count_landed(const alltoall *me, const plan *p, routes *r, int64_t *recv_rows) {
    const disp *d = &me->d;
    int64_t at = 0;
    for (uint32_t m = 0; m < d->members; m++) {
        if (m == d->me) r->own_landed = at;
        recv_rows[m] = 0;
        for (uint32_t g = 0; g < d->groups; g++) recv_rows[m] += plan_kept(d, p, m, d->first + g);
        at += recv_rows[m];
    }
    r->landed[0] = 0;
    r->landed[1] = at;
}

/* landed_row and row_from: rows that came lie behind those that were sent; this member's own stay among the sent. */
static void map_landed(const alltoall *me, const plan *p, void *handle) {
    const disp *d = &me->d;
    routes *r = handle;
    const int64_t *offsets = plan_offsets(d, p, d->ep_rank);
    int64_t *landed_row = routes_array(handle, me->landed_row), *row_from = routes_array(handle, me->row_from);
    int64_t landed = 0, other = r->sent[1], own = r->own_sent;
    for (uint32_t m = 0; m < d->members; m++)
        for (uint32_t g = 0; g < d->groups; g++) {
            const int64_t first = plan_first(d, p, m, d->first + g), n = plan_kept(d, p, m, d->first + g);
            int64_t *from = m == d->me ? &own : &other;
            for (int64_t j = 0; j < n; j++) {
                landed_row[landed++] = first + j;
                row_from[first + j] = (*from)++;
            }
        }
    r->staged_out = other;
    for (uint32_t g = 0; g < d->groups; g++) { /* the last member's rows end where padding begins */
        const uint32_t last = d->members - 1, e = d->first + g;
        for (int64_t row = plan_first(d, p, last, e) + plan_kept(d, p, last, e); row < offsets[g + 1]; row++)
            row_from[row] = -1;
    }
}

/* sent_slot and slot_at. What member (ep, etp) returns lies behind the landed rows, in order of members, in the order
 * in which it was sent; this member's own stay among the landed. */
static void map_slots(const alltoall *me, const plan *p, const moe_tensor *ids, const int64_t *slot_row, void *handle) {
    const disp *d = &me->d;
    routes *r = handle;
    const int64_t slots = ids->shape[0] * d->top_k, *send_rows = routes_array(handle, me->send_rows);
    const int32_t *id = ids->data;
    int64_t *sent_slot = routes_array(handle, me->sent_slot), *slot_at = routes_array(handle, me->slot_at);
    const int64_t etp = d->etp_size;
    for (int64_t i = 0; i < slots; i++) {
        for (int64_t f = 0; f < etp; f++) slot_at[i * etp + f] = -1;
        if (slot_row[i] < 0) continue;
        sent_slot[p->next[id[i]] + slot_row[i] - plan_first(d, p, d->me, (uint32_t)id[i])] = i;
    }
    int64_t sent = 0, back = r->landed[1];
    for (uint32_t ep = 0; ep < d->ep_size; ep++) {
        for (int64_t j = sent; j < sent + send_rows[ep]; j++) {
            const int64_t i = sent_slot[j];
            for (int64_t f = 0; f < etp; f++) {
                const int own = ep == d->ep_rank && f == d->etp_rank;
                const int64_t skip = ep == d->ep_rank && f > d->etp_rank; /* no room is kept for this member's own */
                slot_at[i * etp + f] = own ? r->own_landed + j - sent : back + (f - skip) * send_rows[ep] + j - sent;
            }
        }
        sent += send_rows[ep];
        back += (etp - (ep == d->ep_rank)) * send_rows[ep];
    }
    r->staged_back = back;
}

moe_status alltoall_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const alltoall *me = self;
    const disp *d = &me->d;
    plan p = plan_at(d, 0, args->workspace);
    uint64_t end = plan_bytes(d, 0);
    int64_t *slot_row = routes_array(args->workspace, disp_place(d, &end, 0));
    const moe_status s = plan_make(d, args, &p, slot_row, err);
    if (s != MOE_OK) return s;
    routes *r = args->handle;
    r->tokens = args->expert_ids->shape[0];
    count_sent(me, &p, r, routes_array(r, me->send_rows));
    count_landed(me, &p, r, routes_array(r, me->recv_rows));
    map_landed(me, &p, r);
    map_slots(me, &p, args->expert_ids, slot_row, r);
    return MOE_OK;
}
