/* The movements of dispatcher/allgather. Each phase goes over the planes in order; the scalars go with plane 0. */
#include "allgather.h"

/* Where a movement's data lies in the workspace. MOE_DISPATCH: rows [all, width] of each plane, scalars [all, k].
 * MOE_COMBINE, all F32: sums [members, most, width] of each plane, scalars [members, most, k]; and this member's part
 * of their reduction [most, ..]. */
typedef struct staging {
    const allgather *me;
    const moe_move_args *args;
    const gathered *g;
    uint64_t plane[DISP_PLANES], reduced[DISP_PLANES], scalars, reduced_scalars;
    int with; /* scalars travel */
} staging;

static void *at(const staging *s, uint64_t bytes) {
    return (char *)s->args->workspace + bytes;
}
static int64_t *array(const staging *s, uint64_t bytes) {
    return gathered_array(s->g, bytes);
}
static int64_t width(const staging *s, uint32_t plane) {
    return s->args->planes[plane].token_order.shape[1];
}

static moe_status stage(const allgather *me, const moe_move_args *args, staging *s, moe_err *err) {
    const disp *d = &me->d;
    *s = (staging){.me = me, .args = args, .g = args->handle, .with = disp_present(args->slot_scalar)};
    moe_status status = disp_check_move(d, args, s->g->mine, err);
    if (status == MOE_OK) status = disp_check_staged(d, args, err);
    if (status != MOE_OK) return status;
    const int out = args->direction == MOE_DISPATCH;
    const int64_t rows = out ? s->g->all : (int64_t)d->members * s->g->most, k = d->top_k;
    uint64_t end = me->data;
    for (uint32_t i = 0; i < args->n_planes; i++) {
        const int64_t bytes = out ? disp_width_bytes(&args->planes[i].token_order) : 4 * width(s, i);
        s->plane[i] = disp_place(d, &end, (uint64_t)(rows * bytes));
        s->reduced[i] = disp_place(d, &end, out ? 0 : (uint64_t)(s->g->most * bytes));
    }
    s->scalars = disp_place(d, &end, 4 * (uint64_t)(rows * k));
    s->reduced_scalars = disp_place(d, &end, 0);
    return MOE_OK;
}

moe_status allgather_pack(const void *self, const moe_move_args *args, moe_err *err) {
    const allgather *me = self;
    if (args->direction == MOE_DISPATCH) return MOE_OK; /* tokens are gathered from where they lie */
    staging s;
    const moe_status status = stage(me, args, &s, err);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const moe_tensor *y = &args->planes[i].expert_order;
        const int with = i == 0 && s.with;
        sums_run(&me->d, &(sums){.y = y->data,
                                 .x = at(&s, s.plane[i]),
                                 .rows = with ? args->row_scalar->data : NULL,
                                 .slots = with ? at(&s, s.scalars) : NULL,
                                 .slot_row = array(&s, me->slot_row),
                                 .tokens = array(&s, me->tokens),
                                 .head = array(&s, me->head),
                                 .members = me->d.members,
                                 .most = s.g->most,
                                 .width = y->shape[1],
                                 .k = me->d.top_k,
                                 .dtype = y->dtype});
    }
    return disp_end_all(&me->d, status, err);
}

/* ---- exchange ---- */
static moe_status gather(const staging *s, const void *in, uint64_t out, int64_t bytes, moe_err *err) {
    const disp *d = &s->me->d;
    for (uint32_t m = 0; m < d->members; m++) disp_sent(d, s->args, m, m == d->me ? 0 : (uint64_t)(s->g->mine * bytes));
    return allgather_gather(s->me, s->g, d->group, s->args->stream, in, at(s, out), bytes, s->args->workspace, err);
}

static moe_status reduce(const staging *s, uint64_t in, uint64_t out, int64_t elements, moe_err *err) {
    const disp *d = &s->me->d;
    const int64_t *tokens = array(s, s->me->tokens);
    for (uint32_t m = 0; m < d->members; m++)
        disp_sent(d, s->args, m, m == d->me ? 0 : (uint64_t)(tokens[m] * elements * 4));
    if (d->comm)
        return d->comm->reduce_scatter(d->comm_self, d->group, s->args->stream, at(s, in), at(s, out),
                                       (uint64_t)(s->g->most * elements), MOE_F32, MOE_SUM, err);
    memcpy(at(s, out), at(s, in), (size_t)(s->g->most * elements) * 4);
    return MOE_OK;
}

moe_status allgather_exchange(const void *self, const moe_move_args *args, moe_err *err) {
    const allgather *me = self;
    const int64_t k = me->d.top_k;
    const int out = args->direction == MOE_DISPATCH;
    staging s;
    moe_status status = stage(me, args, &s, err);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const moe_tensor *x = &args->planes[i].token_order;
        status = out ? gather(&s, x->data, s.plane[i], disp_width_bytes(x), err)
                     : reduce(&s, s.plane[i], s.reduced[i], x->shape[1], err);
    }
    if (status == MOE_OK && s.with)
        status = out ? gather(&s, args->slot_scalar->data, s.scalars, 4 * k, err)
                     : reduce(&s, s.scalars, s.reduced_scalars, k, err);
    return disp_end_all(&me->d, status, err);
}

/* ---- unpack ---- */
static moe_status keep_rows(const staging *s, uint32_t i, moe_err *err) {
    const allgather *me = s->me;
    const moe_tensor *y = &s->args->planes[i].expert_order;
    const int with = i == 0 && s->with;
    const disp_rows from = {.data = at(s, s->plane[i]),
                            .scalars = with ? at(s, s->scalars) : NULL,
                            .n = s->g->all,
                            .width = y->shape[1],
                            .dtype = y->dtype};
    const disp_rows to = {.data = y->data,
                          .scalars = with ? s->args->row_scalar->data : NULL,
                          .n = y->shape[0],
                          .width = y->shape[1],
                          .dtype = y->dtype};
    return disp_permute(&me->d, &me->ops, s->args->stream, &from, me->d.top_k, array(s, me->row_slot), s->args->rows,
                        &to, at(s, me->ops_workspace), err);
}

moe_status allgather_unpack(const void *self, const moe_move_args *args, moe_err *err) {
    const allgather *me = self;
    staging s;
    moe_status status = stage(me, args, &s, err);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const moe_tensor *x = &args->planes[i].token_order;
        if (args->direction == MOE_DISPATCH)
            status = keep_rows(&s, i, err);
        else
            sums_round(&me->d, at(&s, s.reduced[i]), x->data, x->dtype, s.g->mine * x->shape[1]);
    }
    if (status == MOE_OK && args->direction == MOE_COMBINE && s.with)
        sums_round(&me->d, at(&s, s.reduced_scalars), args->slot_scalar->data, MOE_F32, s.g->mine * me->d.top_k);
    return disp_end_all(&me->d, status, err);
}
