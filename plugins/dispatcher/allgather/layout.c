/* layout of dispatcher/allgather: the choices of all members, and the rows of this member's experts. */
#include "allgather.h"

static moe_status ask(allgather *me, moe_err *err) {
    disp *d = &me->d;
    const int64_t k = d->top_k, elements = me->all_tokens * disp_row_elements(d);
    const moe_tensor flat[] = {disp_tensor(NULL, MOE_F32, 1, elements, 1), disp_tensor(NULL, MOE_F32, 1, elements, 1)};
    const moe_op_args convert = {.size = sizeof convert, .n_in = 1, .n_out = 1, .in = flat, .out = flat + 1};
    moe_status s = disp_ops_ask_moves(d, &me->ops, me->all_tokens, d->max_rows, k, err);
    if (s == MOE_OK) s = disp_ask(d, me->ops.convert, &convert, &me->ops.workspace, err);
    return s == MOE_OK ? plan_ask_rows(d, d->members, d->max_rows, err) : s;
}

moe_status allgather_place(allgather *me, moe_err *err) {
    const disp *d = &me->d;
    const int64_t k = d->top_k;
    const uint64_t m = d->members;
    me->all_tokens = (int64_t)d->members * d->max_tokens;
    const moe_status s = ask(me, err);
    if (s != MOE_OK) return s;
    uint64_t end = sizeof(gathered);
    me->tokens = disp_place(d, &end, 8 * m);
    me->scratch = end;
    me->host_handle = d->async ? end + 4 * 8 * m : 0;
    me->slot_row = disp_place(d, &end, 8 * (uint64_t)(me->all_tokens * k));
    me->row_slot = disp_place(d, &end, 8 * (uint64_t)d->max_rows);
    me->handle = end;
    uint64_t layout = plan_bytes(d, 0);
    me->ids = disp_place(d, &layout, 4 * (uint64_t)(me->all_tokens * k)); /* [members, most, k] I32 */
    me->all = disp_place(d, &layout, 4 * 8 * m);
    end = 4 * 8 * m;
    me->ops_workspace = disp_place(d, &end, me->ops.workspace);
    me->data = disp_place(d, &end, 0);
    end += 4 * (uint64_t)(me->all_tokens + d->max_tokens) * (uint64_t)(disp_row_elements(d) + k);
    end += (2 * DISP_PLANES + 4) * d->alignment;
    me->workspace = end > layout ? end : layout;
    return MOE_OK;
}

static moe_status gather_known(const allgather *me, const gathered *g, void *group, void *stream, const void *in,
                               void *out, int64_t width, uint64_t *arrays, moe_err *err) {
    const uint32_t n = me->d.members;
    const int64_t *tokens = gathered_array(g, me->tokens);
    uint64_t *at = arrays, *bytes = at + n, *mine = bytes + n, *zero = mine + n;
    for (uint32_t m = 0; m < n; m++) {
        zero[m] = 0;
        at[m] = (uint64_t)(m * g->most * width);
        bytes[m] = (uint64_t)(tokens[m] * width);
        mine[m] = (uint64_t)(g->mine * width);
    }
    const moe_a2a_args a = {
        .size = sizeof a, .in = in, .out = out, .in_at = zero, .in_bytes = mine, .out_at = at, .out_bytes = bytes};
    return me->d.comm->all_to_all_v(me->d.comm_self, group, stream, &a, err);
}

moe_status allgather_gather(const allgather *me, const gathered *g, void *group, void *stream, const void *in,
                            void *out, int64_t width, uint64_t *arrays, moe_err *err) {
    const disp *d = &me->d;
    if (d->comm && !d->fixed) return gather_known(me, g, group, stream, in, out, width, arrays, err);
    char *own = (char *)out + d->me * g->most * width;
    const moe_status s = disp_copy(d, stream, own, in, g->mine * width, err);
    if (s != MOE_OK || !d->comm) return s;
    return d->comm->all_gather(d->comm_self, group, stream, own, out, (uint64_t)(g->most * width), MOE_U8, err);
}

static void count_tokens(const allgather *me, int64_t mine, gathered *g) {
    g->mine = mine;
    g->most = me->d.max_tokens;
    if (me->d.fixed) return;
    g->most = 0;
    for (uint32_t m = 0; m < me->d.members; m++) g->most = disp_max(g->most, gathered_array(g, me->tokens)[m]);
}

moe_status allgather_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const allgather *me = self;
    const disp *d = &me->d;
    char *w = args->workspace;
    plan p = plan_at(d, 0, w);
    p.tokens = gathered_array(args->handle, me->tokens);
    moe_status s = plan_make(d, args, &p, err);
    if (s != MOE_OK) return s;
    s = disp_tell(d, args, me->tokens, me->scratch - me->tokens, err);
    if (s != MOE_OK) return disp_end_all(d, s, err);
    gathered *g = disp_host(d, args->handle, args->host_handle);
    count_tokens(me, args->expert_ids->shape[0], g);
    uint64_t *arrays = d->async ? (uint64_t *)gathered_array(g, me->scratch) : (uint64_t *)(void *)(w + me->all);
    s = allgather_gather(me, g, d->layout_group, args->stream, args->expert_ids->data, w + me->ids,
                         4 * (int64_t)d->top_k, arrays, err);
    const plan_all all = {.ids = (const int32_t *)(const void *)(w + me->ids),
                          .most = g->most,
                          .rows = args->rows->max,
                          .slot_row = gathered_array(args->handle, me->slot_row),
                          .row_slot = gathered_array(args->handle, me->row_slot)};
    if (s == MOE_OK) s = plan_rows(d, args, &p, &all, err);
    return disp_end_all(d, s, err);
}
