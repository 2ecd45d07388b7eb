/* The movements of dispatcher/allgather. Each phase goes over the planes in order; the scalars go with plane 0. */
#include "allgather.h"

/* Where a movement's data lies in the workspace. MOE_DISPATCH: rows [members, most, width] of each plane, scalars
 * [members, most, k]. MOE_COMBINE, all F32: sums [members, most, width] of each plane, scalars [members, most, k]; and
 * this member's part of their reduction [most, ..]. */
typedef struct staging {
    const allgather *me;
    const moe_move_args *args;
    const gathered *g; /* what the host knows */
    int64_t all;       /* members * most */
    uint64_t plane[DISP_PLANES], reduced[DISP_PLANES], scalars, reduced_scalars;
    int with; /* scalars travel */
} staging;

static void *at(const staging *s, uint64_t bytes) {
    return (char *)s->args->workspace + bytes;
}
static int64_t *array(const staging *s, uint64_t bytes) { /* of the device */
    return gathered_array(s->args->handle, bytes);
}
static int64_t width(const staging *s, uint32_t plane) {
    return s->args->planes[plane].token_order.shape[1];
}

static moe_status stage(const allgather *me, const moe_move_args *args, staging *s, moe_err *err) {
    const disp *d = &me->d;
    *s = (staging){.me = me,
                   .args = args,
                   .g = disp_host(d, args->handle, args->host_handle),
                   .with = disp_present(args->slot_scalar)};
    moe_status status = disp_check_move(d, args, s->g->mine, err);
    if (status == MOE_OK) status = disp_check_staged(d, args, err);
    if (status != MOE_OK) return status;
    const int out = args->direction == MOE_DISPATCH;
    const int64_t k = d->top_k;
    s->all = d->members * s->g->most;
    uint64_t end = me->data;
    for (uint32_t i = 0; i < args->n_planes; i++) {
        const int64_t bytes = out ? disp_width_bytes(&args->planes[i].token_order) : 4 * width(s, i);
        s->plane[i] = disp_place(d, &end, (uint64_t)(s->all * bytes));
        s->reduced[i] = disp_place(d, &end, out ? 0 : (uint64_t)(s->g->most * bytes));
    }
    s->scalars = disp_place(d, &end, 4 * (uint64_t)(s->all * k));
    s->reduced_scalars = disp_place(d, &end, 0);
    return MOE_OK;
}

/* Plane i in expert order, and all tokens of it (of dtype) where they are staged, each with its scalars, if any. */
static disp_rows expert_rows(const staging *s, uint32_t i) {
    const moe_tensor *y = &s->args->planes[i].expert_order;
    return (disp_rows){.data = y->data,
                       .scalars = i == 0 && s->with ? s->args->row_scalar->data : NULL,
                       .n = y->shape[0],
                       .width = y->shape[1],
                       .dtype = y->dtype};
}
static disp_rows all_tokens(const staging *s, uint32_t i, int32_t dtype) {
    return (disp_rows){.data = at(s, s->plane[i]),
                       .scalars = i == 0 && s->with ? at(s, s->scalars) : NULL,
                       .n = s->all,
                       .width = width(s, i),
                       .dtype = dtype};
}

moe_status allgather_pack(const void *self, const moe_move_args *args, moe_err *err) {
    const allgather *me = self;
    if (args->direction == MOE_DISPATCH) return MOE_OK; /* tokens are gathered from where they lie */
    staging s;
    moe_status status = stage(me, args, &s, err);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const disp_rows y = expert_rows(&s, i), x = all_tokens(&s, i, MOE_F32);
        status = disp_unpermute(&me->d, &me->ops, args->stream, &y, me->d.top_k, array(&s, me->slot_row), args->rows,
                                &x, at(&s, me->ops_workspace), err);
    }
    return disp_end_all(&me->d, status, err);
}

/* ---- exchange ---- */
/* Both count rows of payload: this member's tokens to all, the tokens of each to it. */
static moe_status gather(const staging *s, const void *in, uint64_t out, int64_t bytes, moe_err *err) {
    const allgather *me = s->me;
    void *arrays = me->d.async ? (char *)s->args->host_handle + me->scratch : s->args->workspace;
    const moe_status status =
        disp_count_sent(&me->d, &me->ops, s->args, array(s, me->tokens) + me->d.me, 1, bytes, err);
    return status == MOE_OK
               ? allgather_gather(me, s->g, me->d.group, s->args->stream, in, at(s, out), bytes, arrays, err)
               : status;
}

static moe_status reduce(const staging *s, uint64_t in, uint64_t out, int64_t elements, moe_err *err) {
    const disp *d = &s->me->d;
    const moe_status status =
        disp_count_sent(d, &s->me->ops, s->args, array(s, s->me->tokens), d->members, 4 * elements, err);
    if (status != MOE_OK) return status;
    if (d->comm)
        return d->comm->reduce_scatter(d->comm_self, d->group, s->args->stream, at(s, in), at(s, out),
                                       (uint64_t)(s->g->most * elements), MOE_F32, MOE_SUM, err);
    return disp_copy(d, s->args->stream, at(s, out), at(s, in), s->g->most * elements * 4, err);
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
/* to = the first of the F32 sums at `from`, in its dtype. */
static moe_status round_sums(const staging *s, uint64_t from, const moe_tensor *to, moe_err *err) {
    const int64_t n = to->shape[0] * to->shape[1];
    const moe_tensor x = disp_tensor(at(s, from), MOE_F32, 1, n, 1), y = disp_tensor(to->data, to->dtype, 1, n, 1);
    const moe_op_args op = {.size = sizeof op,
                            .n_in = 1,
                            .n_out = 1,
                            .stream = s->args->stream,
                            .in = &x,
                            .out = &y,
                            .workspace = at(s, s->me->ops_workspace)};
    return s->me->ops.convert->forward(s->me->d.dev, &op, err);
}

moe_status allgather_unpack(const void *self, const moe_move_args *args, moe_err *err) {
    const allgather *me = self;
    const int out = args->direction == MOE_DISPATCH;
    staging s;
    moe_status status = stage(me, args, &s, err);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const disp_rows y = expert_rows(&s, i), x = all_tokens(&s, i, y.dtype);
        status = out ? disp_permute(&me->d, &me->ops, args->stream, &x, me->d.top_k, array(&s, me->row_slot),
                                    args->rows, &y, at(&s, me->ops_workspace), err)
                     : round_sums(&s, s.reduced[i], &args->planes[i].token_order, err);
    }
    if (status == MOE_OK && !out && s.with) status = round_sums(&s, s.reduced_scalars, args->slot_scalar, err);
    return disp_end_all(&me->d, status, err);
}
