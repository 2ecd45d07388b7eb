/* layout of dispatcher/allgather: the choices of all members that get a row, and the rows of this member's experts. */
#include "allgather.h"

/* Where a workspace's arrays begin during layout. */
typedef struct layout_memory {
    uint64_t slot_row, kept, all, parts, operations, bytes;
} layout_memory;

static layout_memory place_layout(const allgather *me) {
    const disp *d = &me->d;
    const uint64_t slots = (uint64_t)d->max_tokens * d->top_k, all = (uint64_t)me->all_tokens * d->top_k;
    layout_memory m;
    m.bytes = plan_bytes(d, 0);
    m.slot_row = disp_place(d, &m.bytes, 8 * slots); /* [T, k] I64 of this member */
    m.kept = disp_place(d, &m.bytes, 4 * slots);     /* [T, k] I32 ids, -1 where dropped */
    m.all = disp_place(d, &m.bytes, 4 * all);        /* the same of all members */
    m.parts = disp_place(d, &m.bytes, 4 * 8 * (uint64_t)d->members);
    m.operations = disp_place(d, &m.bytes, me->ops.workspace);
    return m;
}

moe_status allgather_place(allgather *me, moe_err *err) {
    const disp *d = &me->d;
    const int64_t k = d->top_k;
    me->all_tokens = (int64_t)d->members * d->max_tokens;
    me->sort = (moe_expert_rows_attr){.size = sizeof me->sort,
                                      .first = d->first,
                                      .groups = d->groups,
                                      .n_experts = d->n_experts,
                                      .align = d->align,
                                      .min_rows = d->min_rows};
    moe_status s = disp_ops_ask_sort(d, &me->ops, &me->sort, me->all_tokens, k, d->max_rows, err);
    if (s == MOE_OK) s = disp_ops_ask_moves(d, &me->ops, me->all_tokens, d->max_rows, k, err);
    if (s != MOE_OK) return s;
    uint64_t end = sizeof(gathered);
    me->tokens = disp_place(d, &end, 8 * (uint64_t)d->members);
    me->head = disp_place(d, &end, 8 * (uint64_t)d->members);
    me->slot_row = disp_place(d, &end, 8 * (uint64_t)(me->all_tokens * k));
    me->row_slot = disp_place(d, &end, 8 * (uint64_t)d->max_rows);
    me->handle = end;
    const uint64_t layout = place_layout(me).bytes;
    end = 4 * 8 * (uint64_t)d->members; /* of a movement: the arrays of all_to_all_v */
    me->ops_workspace = disp_place(d, &end, me->ops.workspace);
    me->data = disp_place(d, &end, 0);
    end += 4 * (uint64_t)(me->all_tokens + d->max_tokens) * (uint64_t)(disp_row_elements(d) + k);
    end += (2 * DISP_PLANES + 4) * d->alignment;
    me->workspace = end > layout ? end : layout;
    return MOE_OK;
}

static void count_tokens(const allgather *me, const plan *p, gathered *g) {
    int64_t *tokens = gathered_array(g, me->tokens), *head = gathered_array(g, me->head);
    g->all = g->most = 0;
    for (uint32_t m = 0; m < me->d.members; m++) {
        tokens[m] = plan_tokens(&me->d, p, m);
        head[m] = g->all;
        g->all += tokens[m];
        g->most = disp_max(g->most, tokens[m]);
    }
    g->mine = tokens[me->d.me];
}

moe_status allgather_gather(const allgather *me, const gathered *g, void *group, void *stream, const void *in,
                            void *out, int64_t width, uint64_t *parts, moe_err *err) {
    const disp *d = &me->d;
    const int64_t *tokens = gathered_array(g, me->tokens), *head = gathered_array(g, me->head);
    if (!d->comm) {
        if (g->mine) memcpy(out, in, (size_t)(g->mine * width));
        return MOE_OK;
    }
    uint64_t *at = parts, *bytes = at + d->members, *mine = bytes + d->members, *zero = mine + d->members;
    for (uint32_t m = 0; m < d->members; m++) {
        zero[m] = 0;
        at[m] = (uint64_t)(head[m] * width);
        bytes[m] = (uint64_t)(tokens[m] * width);
        mine[m] = (uint64_t)(g->mine * width);
    }
    const moe_a2a_args a = {
        .size = sizeof a, .in = in, .out = out, .in_at = zero, .in_bytes = mine, .out_at = at, .out_bytes = bytes};
    return d->comm->all_to_all_v(d->comm_self, group, stream, &a, err);
}

/* Every member's choices that get a row, in order of members: [all, k] ids. */
static moe_status gather_ids(const allgather *me, const moe_layout_args *args, const layout_memory *m,
                             const gathered *g, moe_err *err) {
    char *w = args->workspace;
    const int64_t *slot_row = (const int64_t *)(w + m->slot_row);
    const int32_t *ids = args->expert_ids->data;
    int32_t *kept = (int32_t *)(w + m->kept);
    for (int64_t i = 0; i < g->mine * me->d.top_k; i++) kept[i] = slot_row[i] < 0 ? -1 : ids[i];
    return allgather_gather(me, g, me->d.layout_group, args->stream, kept, w + m->all, 4 * (int64_t)me->d.top_k,
                            (uint64_t *)(w + m->parts), err);
}

/* The rows of the own experts: the same that the plan has counted. */
static moe_status sort_rows(const allgather *me, const moe_layout_args *args, const layout_memory *m, const gathered *g,
                            moe_err *err) {
    const int64_t k = me->d.top_k;
    const moe_tensor ids = {
        .data = (char *)args->workspace + m->all, .dtype = MOE_I32, .ndim = 2, .shape = {g->all, k, 1, 1}};
    const moe_tensor out[] = {
        {.data = gathered_array(g, me->slot_row), .dtype = MOE_I64, .ndim = 2, .shape = {g->all, k, 1, 1}},
        {.data = gathered_array(g, me->row_slot), .dtype = MOE_I64, .ndim = 1, .shape = {args->rows->max, 1, 1, 1}},
        *args->offsets,
        *args->counts};
    const moe_op_args op = {.size = sizeof op,
                            .n_in = 1,
                            .n_out = 4,
                            .stream = args->stream,
                            .in = &ids,
                            .out = out,
                            .attr = &me->sort,
                            .workspace = (char *)args->workspace + m->operations};
    return me->ops.expert_rows->forward(me->d.dev, &op, err);
}

moe_status allgather_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const allgather *me = self;
    const layout_memory m = place_layout(me);
    plan p = plan_at(&me->d, 0, args->workspace);
    moe_status s = plan_make(&me->d, args, &p, (int64_t *)((char *)args->workspace + m.slot_row), err);
    if (s != MOE_OK) return s;
    gathered *g = args->handle;
    count_tokens(me, &p, g);
    s = gather_ids(me, args, &m, g, err);
    if (s == MOE_OK) s = sort_rows(me, args, &m, g, err);
    return disp_end_all(&me->d, s, err);
}
