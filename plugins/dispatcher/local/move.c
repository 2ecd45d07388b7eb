/* The step calls of dispatcher/local: each is one operation of the device, or one a plane. MOE_DISPATCH is done by pack
 * (moe.permute/0), MOE_COMBINE by unpack (moe.unpermute/0); the other phases do nothing. */
#include <inttypes.h>

#include "local.h"

static moe_tensor slot_row_of(const local *me, void *handle, int64_t tokens) {
    return (moe_tensor){.data = handle, .dtype = MOE_I64, .ndim = 2, .shape = {tokens, me->top_k, 1, 1}};
}
static moe_tensor row_slot_of(const local *me, void *handle, int64_t rows) {
    return (moe_tensor){
        .data = (char *)handle + me->row_slot_at, .dtype = MOE_I64, .ndim = 1, .shape = {rows, 1, 1, 1}};
}

static moe_status check_rows(const local *me, const moe_rows *rows, moe_err *err) {
    if (rows->groups != me->n_experts)
        return moe_fail(err, MOE_E_ARG, "layer %u: rows of %u experts, expected %u", me->layer, rows->groups,
                        me->n_experts);
    if (rows->max < 0 || rows->max > me->max_rows)
        return moe_fail(err, MOE_E_ARG, "layer %u: rows.max is %" PRId64 ", the handle holds 0 to %" PRId64, me->layer,
                        rows->max, me->max_rows);
    return MOE_OK;
}

static moe_status check_tokens(const local *me, int64_t tokens, moe_err *err) {
    if (tokens >= 0 && tokens <= me->max_tokens) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "layer %u: %" PRId64 " tokens; max_tokens is %" PRId64, me->layer, tokens,
                    me->max_tokens);
}

/* t is dtype [a] (b < 0) or [a,b]? */
static moe_status check_tensor(const local *me, const char *name, const moe_tensor *t, int32_t dtype, int64_t a,
                               int64_t b, moe_err *err) {
    const int32_t ndim = b < 0 ? 1 : 2;
    if (t->dtype == dtype && t->ndim == ndim && t->shape[0] == a && (b < 0 || t->shape[1] == b)) return MOE_OK;
    return moe_fail(err, MOE_E_ARG,
                    "layer %u: %s has dtype %d, %d axes, [%" PRId64 ",%" PRId64
                    "]; expected dtype %d, %d axes, [%" PRId64 ",%" PRId64 "]",
                    me->layer, name, t->dtype, t->ndim, t->shape[0], t->shape[1], dtype, ndim, a, b < 0 ? 1 : b);
}

moe_status local_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const local *me = self;
    const moe_tensor *ids = args->expert_ids;
    moe_status s = check_tokens(me, ids->shape[0], err);
    if (s == MOE_OK) s = check_tensor(me, "expert_ids", ids, MOE_I32, ids->shape[0], me->top_k, err);
    if (s == MOE_OK) s = check_rows(me, args->rows, err);
    if (s == MOE_OK) s = check_tensor(me, "offsets", args->offsets, MOE_I64, (int64_t)me->n_experts + 1, -1, err);
    if (s == MOE_OK) s = check_tensor(me, "counts", args->counts, MOE_I64, me->n_experts, -1, err);
    if (s != MOE_OK) return s;
    const moe_tensor out[] = {slot_row_of(me, args->handle, ids->shape[0]),
                              row_slot_of(me, args->handle, args->rows->max), *args->offsets, *args->counts};
    const moe_op_args op = {.size = sizeof op,
                            .n_in = 1,
                            .n_out = 4,
                            .stream = args->stream,
                            .in = ids,
                            .out = out,
                            .attr = &me->rows_attr,
                            .workspace = args->workspace};
    args->rows->host_total = -1; /* the offsets are the device's */
    return me->expert_rows->forward(me->dev, &op, err);
}

static int present(const moe_tensor *t) {
    return t && t->data;
}

static moe_status check_plane(const local *me, const moe_move_args *args, uint32_t i, moe_err *err) {
    const moe_tensor *x = &args->planes[i].token_order, *y = &args->planes[i].expert_order;
    if (x->ndim != 2 || y->ndim != 2 || x->dtype != y->dtype || x->shape[1] != y->shape[1] ||
        y->shape[0] != args->rows->max)
        return moe_fail(err, MOE_E_ARG,
                        "layer %u: plane %u: dtype %d [%" PRId64 ",%" PRId64 "] and dtype %d [%" PRId64 ",%" PRId64
                        "]; rows.max is %" PRId64,
                        me->layer, i, x->dtype, x->shape[0], x->shape[1], y->dtype, y->shape[0], y->shape[1],
                        args->rows->max);
    if (x->shape[0] != args->planes[0].token_order.shape[0])
        return moe_fail(err, MOE_E_ARG, "layer %u: plane %u has %" PRId64 " tokens, plane 0 %" PRId64, me->layer, i,
                        x->shape[0], args->planes[0].token_order.shape[0]);
    return check_tokens(me, x->shape[0], err);
}

static moe_status check_move(const local *me, const moe_move_args *args, moe_err *err) {
    const int scalars = present(args->slot_scalar), rows = present(args->row_scalar);
    moe_status s = check_rows(me, args->rows, err);
    for (uint32_t i = 0; i < args->n_planes && s == MOE_OK; i++) s = check_plane(me, args, i, err);
    if (s != MOE_OK) return s;
    if (scalars != rows)
        return moe_fail(err, MOE_E_ARG, "layer %u: %s without %s", me->layer, scalars ? "slot_scalar" : "row_scalar",
                        scalars ? "row_scalar" : "slot_scalar");
    if (!scalars) return MOE_OK;
    if (args->n_planes == 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: slot scalars travel with plane 0, and there is none", me->layer);
    s = check_tensor(me, "slot_scalar", args->slot_scalar, MOE_F32, args->planes[0].token_order.shape[0], me->top_k,
                     err);
    return s == MOE_OK ? check_tensor(me, "row_scalar", args->row_scalar, MOE_F32, args->rows->max, -1, err) : s;
}

/* One operation a plane; the scalars go with the first. */
static moe_status move_planes(const local *me, const moe_move_args *args, moe_err *err) {
    const int out_there = args->direction == MOE_DISPATCH;
    const moe_op *op = out_there ? me->permute : me->unpermute;
    const moe_tensor none = {.shape = {1, 1, 1, 1}};
    moe_status s = check_move(me, args, err);
    for (uint32_t i = 0; i < args->n_planes && s == MOE_OK; i++) {
        const moe_plane *p = &args->planes[i];
        const int with = i == 0 && present(args->slot_scalar);
        const moe_tensor slots = with ? *args->slot_scalar : none, rows = with ? *args->row_scalar : none;
        const moe_tensor map = out_there ? row_slot_of(me, args->handle, args->rows->max)
                                         : slot_row_of(me, args->handle, p->token_order.shape[0]);
        const moe_tensor in[] = {out_there ? p->token_order : p->expert_order, map, out_there ? slots : rows};
        const moe_tensor out[] = {out_there ? p->expert_order : p->token_order, out_there ? rows : slots};
        const moe_op_args call = {.size = sizeof call,
                                  .n_in = 3,
                                  .n_out = 2,
                                  .stream = args->stream,
                                  .in = in,
                                  .out = out,
                                  .attr = &me->permute_attr,
                                  .rows = args->rows,
                                  .workspace = args->workspace};
        s = op->forward(me->dev, &call, err);
    }
    return s;
}

moe_status local_pack(const void *self, const moe_move_args *args, moe_err *err) {
    return args->direction == MOE_DISPATCH ? move_planes(self, args, err) : MOE_OK;
}

moe_status local_exchange(const void *self, const moe_move_args *args, moe_err *err) {
    (void)self;
    (void)args;
    (void)err;
    return MOE_OK;
}

moe_status local_unpack(const void *self, const moe_move_args *args, moe_err *err) {
    return args->direction == MOE_COMBINE ? move_planes(self, args, err) : MOE_OK;
}
