/* The device's row operations as dispatchers call them. See ops.h. */
#include "ops.h"

#include <inttypes.h>

static const moe_op *find_op(const moe_device_v0 *device, const char *name) {
    for (uint32_t i = 0; i < device->n_ops; i++)
        if (strcmp(device->ops[i]->name, name) == 0) return device->ops[i];
    return NULL;
}

moe_status disp_find(const disp *d, const disp_want *wanted, size_t n, moe_err *err) {
    for (size_t i = 0; i < n; i++) {
        *wanted[i].to = find_op(d->device, wanted[i].name);
        if (*wanted[i].to) continue;
        moe_device_info info = {.size = sizeof info};
        const moe_status s = d->device->info(d->dev, &info, err);
        return s != MOE_OK ? s
                           : moe_fail(err, MOE_E_UNSUPPORTED, "%s needs operation %s; device \"%s\" has none", d->name,
                                      wanted[i].name, info.name);
    }
    return MOE_OK;
}

moe_status disp_ask(const disp *d, const moe_op *op, const moe_op_args *args, uint64_t *most, moe_err *err) {
    uint64_t saved = 0, workspace = 0;
    const moe_status s = op->sizes(d->dev, args, &saved, &workspace, err);
    if (s != MOE_OK) return s;
    if (saved)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s of this device saves %" PRIu64 " bytes; it should save none",
                        op->name, saved);
    if (workspace > *most) *most = workspace;
    return MOE_OK;
}

moe_status disp_ops_ask_sort(const disp *d, disp_ops *ops, const moe_expert_rows_attr *attr, int64_t tokens, int64_t k,
                             int64_t rows, moe_err *err) {
    const int64_t groups = attr->groups;
    const moe_tensor ids = disp_tensor(NULL, MOE_I32, 2, tokens, k);
    const moe_tensor out[] = {disp_tensor(NULL, MOE_I64, 2, tokens, k), disp_tensor(NULL, MOE_I64, 1, rows, 1),
                              disp_tensor(NULL, MOE_I64, 1, groups + 1, 1), disp_tensor(NULL, MOE_I64, 1, groups, 1)};
    const moe_op_args args = {.size = sizeof args, .n_in = 1, .n_out = 4, .in = &ids, .out = out, .attr = attr};
    return disp_ask(d, ops->expert_rows, &args, &ops->workspace, err);
}

static moe_status ask_moves(const disp *d, disp_ops *ops, int32_t dtype, int64_t from, int64_t to, int64_t k,
                            moe_err *err) {
    const moe_permute_attr attr = {.size = sizeof attr, .k = (uint32_t)k};
    const moe_rows rows = {.size = sizeof rows, .groups = 1, .max = to, .host_total = -1};
    const moe_tensor x = disp_tensor(NULL, dtype, 2, from, d->hidden), y = disp_tensor(NULL, dtype, 2, to, d->hidden);
    const moe_tensor slots = disp_tensor(NULL, MOE_F32, 2, from, k), scalars = disp_tensor(NULL, MOE_F32, 1, to, 1);
    const moe_tensor in_p[] = {x, disp_tensor(NULL, MOE_I64, 1, to, 1), slots}, out_p[] = {y, scalars};
    const moe_tensor in_u[] = {y, disp_tensor(NULL, MOE_I64, 2, from, k), scalars}, out_u[] = {x, slots};
    moe_op_args args = {
        .size = sizeof args, .n_in = 3, .n_out = 2, .in = in_p, .out = out_p, .attr = &attr, .rows = &rows};
    moe_status s = disp_ask(d, ops->permute, &args, &ops->workspace, err);
    if (s != MOE_OK) return s;
    args.in = in_u;
    args.out = out_u;
    return disp_ask(d, ops->unpermute, &args, &ops->workspace, err);
}

moe_status disp_ops_ask_moves(const disp *d, disp_ops *ops, int64_t from, int64_t to, int64_t k, moe_err *err) {
    moe_err other = {.size = sizeof other};
    const moe_status s = ask_moves(d, ops, MOE_F32, from, to, k, err);
    return ask_moves(d, ops, MOE_BF16, from, to, k, &other) == MOE_OK ? MOE_OK : s;
}

/* ---- running ---- */
static moe_tensor plane_of(const disp_rows *x) {
    return disp_tensor(x->data, x->dtype, 2, x->n, x->width);
}
static moe_tensor scalars_of(const disp_rows *x, int64_t k) {
    if (!x->scalars) return (moe_tensor){.shape = {1, 1, 1, 1}};
    return disp_tensor(x->scalars, MOE_F32, k ? 2 : 1, x->n, k ? k : 1);
}

moe_status disp_permute(const disp *d, const disp_ops *ops, void *stream, const disp_rows *x, int64_t k,
                        const int64_t *map, const moe_rows *rows, const disp_rows *y, void *workspace, moe_err *err) {
    const moe_permute_attr attr = {.size = sizeof attr, .k = (uint32_t)k};
    const moe_tensor in[] = {plane_of(x), disp_tensor(map, MOE_I64, 1, y->n, 1), scalars_of(x, k)};
    const moe_tensor out[] = {plane_of(y), scalars_of(y, 0)};
    const moe_op_args args = {.size = sizeof args,
                              .n_in = 3,
                              .n_out = 2,
                              .stream = stream,
                              .in = in,
                              .out = out,
                              .attr = &attr,
                              .rows = rows,
                              .workspace = workspace};
    return ops->permute->forward(d->dev, &args, err);
}

moe_status disp_unpermute(const disp *d, const disp_ops *ops, void *stream, const disp_rows *y, int64_t k,
                          const int64_t *map, const moe_rows *rows, const disp_rows *x, void *workspace, moe_err *err) {
    const moe_permute_attr attr = {.size = sizeof attr, .k = (uint32_t)k};
    const moe_tensor in[] = {plane_of(y), disp_tensor(map, MOE_I64, 2, x->n, k), scalars_of(y, 0)};
    const moe_tensor out[] = {plane_of(x), scalars_of(x, k)};
    const moe_op_args args = {.size = sizeof args,
                              .n_in = 3,
                              .n_out = 2,
                              .stream = stream,
                              .in = in,
                              .out = out,
                              .attr = &attr,
                              .rows = rows,
                              .workspace = workspace};
    return ops->unpermute->forward(d->dev, &args, err);
}

moe_status disp_count_sent(const disp *d, const disp_ops *ops, const moe_move_args *args, const int64_t *rows,
                           int64_t n, int64_t bytes, moe_err *err) {
    const int far = MOE_REACH(args, moe_move_args, sent_far) && args->sent_far;
    const moe_sent_attr attr = {.size = sizeof attr,
                                .members = d->members,
                                .me = d->me,
                                .first_rank = d->first_rank,
                                .node_size = d->node_size,
                                .bytes = bytes};
    const moe_tensor in = disp_tensor(rows, MOE_I64, 1, n, 1), none = {.shape = {1, 1, 1, 1}};
    const moe_tensor out[] = {args->sent ? disp_tensor(args->sent, MOE_I64, 1, 1, 1) : none,
                              far ? disp_tensor(args->sent_far, MOE_I64, 1, 1, 1) : none};
    const moe_op_args op = {
        .size = sizeof op, .n_in = 1, .n_out = 2, .stream = args->stream, .in = &in, .out = out, .attr = &attr};
    return args->sent || far ? ops->sent->forward(d->dev, &op, err) : MOE_OK;
}
