/* The step calls of dispatcher/local: each is one operation of the device, or one a plane. MOE_DISPATCH is done by pack
 * (moe.permute/0), MOE_COMBINE by unpack (moe.unpermute/0); the other phases do nothing. */
#include "local.h"

static moe_tensor slot_row_of(const local *me, void *handle, int64_t tokens) {
    return (moe_tensor){.data = handle, .dtype = MOE_I64, .ndim = 2, .shape = {tokens, me->d.top_k, 1, 1}};
}
static moe_tensor row_slot_of(const local *me, void *handle, int64_t rows) {
    return (moe_tensor){
        .data = (char *)handle + me->row_slot_at, .dtype = MOE_I64, .ndim = 1, .shape = {rows, 1, 1, 1}};
}

moe_status local_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const local *me = self;
    const moe_tensor *ids = args->expert_ids;
    moe_status s = disp_check_layout(&me->d, args, err);
    if (s != MOE_OK) return s;
    const moe_tensor out[] = {slot_row_of(me, args->handle, ids->shape[0]),
                              row_slot_of(me, args->handle, args->rows->max), *args->offsets, *args->counts};
    const moe_op_args op = {.size = sizeof op,
                            .n_in = 1,
                            .n_out = 4,
                            .stream = args->stream,
                            .in = ids,
                            .out = out,
                            .attr = &me->sort,
                            .workspace = args->workspace,
                            .fault = disp_fault(args)};
    args->rows->host_total = -1; /* the offsets are the device's */
    s = me->ops.expert_rows->forward(me->d.dev, &op, err);
    return s == MOE_OK && me->d.tells ? disp_tell(&me->d, args, 0, 0, err) : s;
}

static disp_rows rows_of(const moe_tensor *x, const moe_tensor *scalars, int with) {
    return (disp_rows){.data = x->data,
                       .scalars = with && disp_present(scalars) ? scalars->data : NULL,
                       .n = x->shape[0],
                       .width = x->shape[1],
                       .dtype = x->dtype};
}

/* One operation a plane; the scalars go with the first. */
static moe_status move_planes(const local *me, const moe_move_args *args, moe_err *err) {
    moe_status s = disp_check_move(&me->d, args, -1, err);
    for (uint32_t i = 0; i < args->n_planes && s == MOE_OK; i++) {
        const moe_plane *p = &args->planes[i];
        const disp_rows x = rows_of(&p->token_order, args->slot_scalar, i == 0),
                        y = rows_of(&p->expert_order, args->row_scalar, i == 0);
        if (args->direction == MOE_DISPATCH)
            s = disp_permute(&me->d, &me->ops, args->stream, &x, me->d.top_k, row_slot_of(me, args->handle, y.n).data,
                             args->rows, &y, args->workspace, err);
        else
            s = disp_unpermute(&me->d, &me->ops, args->stream, &y, me->d.top_k, slot_row_of(me, args->handle, x.n).data,
                               args->rows, &x, args->workspace, err);
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
