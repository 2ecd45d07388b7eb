/* Dispatchers: checks of the arguments of layout and of movements. See base.h. */
#include <inttypes.h>

#include "base.h"

static moe_status check_rows(const disp *d, const moe_rows *rows, moe_err *err) {
    if (rows->groups != d->groups)
        return moe_fail(err, MOE_E_ARG, "layer %u: rows of %u experts, expected %u", d->layer, rows->groups, d->groups);
    if (rows->max < 0 || rows->max > d->max_rows)
        return moe_fail(err, MOE_E_ARG, "layer %u: rows.max is %" PRId64 ", want 0 to %" PRId64, d->layer, rows->max,
                        d->max_rows);
    return MOE_OK;
}

static moe_status check_tokens(const disp *d, int64_t tokens, moe_err *err) {
    if (tokens >= 0 && tokens <= d->max_tokens) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "layer %u: %" PRId64 " tokens; max_tokens is %" PRId64, d->layer, tokens,
                    d->max_tokens);
}

/* t is dtype [a] (b < 0) or [a,b]? */
static moe_status check_tensor(const disp *d, const char *name, const moe_tensor *t, int32_t dtype, int64_t a,
                               int64_t b, moe_err *err) {
    const int32_t ndim = b < 0 ? 1 : 2;
    if (t->dtype == dtype && t->ndim == ndim && t->shape[0] == a && (b < 0 || t->shape[1] == b)) return MOE_OK;
    return moe_fail(err, MOE_E_ARG,
                    "layer %u: %s has dtype %d, %d axes, [%" PRId64 ",%" PRId64
                    "]; expected dtype %d, %d axes, [%" PRId64 ",%" PRId64 "]",
                    d->layer, name, t->dtype, t->ndim, t->shape[0], t->shape[1], dtype, ndim, a, b < 0 ? 1 : b);
}

/* Where layout tells the host. */
static moe_status check_host(const disp *d, const moe_layout_args *args, moe_err *err) {
    if (args->host_offsets && args->host_counts) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "layer %u: host_counts is 1, but host_offsets or host_counts is NULL", d->layer);
}

moe_status disp_check_room(const disp *d, const moe_layout_args *args, moe_err *err) {
    if (!d->async || d->tells || args->rows->max == d->max_rows) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "layer %u: rows.max is %" PRId64 ", want all %" PRId64 ": nobody counts the rows",
                    d->layer, args->rows->max, d->max_rows);
}

moe_status disp_check_layout(const disp *d, const moe_layout_args *args, moe_err *err) {
    const moe_tensor *ids = args->expert_ids;
    moe_status s = check_tokens(d, ids->shape[0], err);
    if (s == MOE_OK) s = check_tensor(d, "expert_ids", ids, MOE_I32, ids->shape[0], d->top_k, err);
    if (s == MOE_OK) s = check_rows(d, args->rows, err);
    if (s == MOE_OK) s = check_tensor(d, "offsets", args->offsets, MOE_I64, (int64_t)d->groups + 1, -1, err);
    if (s == MOE_OK) s = check_tensor(d, "counts", args->counts, MOE_I64, d->groups, -1, err);
    return s == MOE_OK && d->tells ? check_host(d, args, err) : s;
}

static moe_status check_plane(const disp *d, const moe_move_args *args, uint32_t i, int64_t tokens, moe_err *err) {
    const moe_tensor *x = &args->planes[i].token_order, *y = &args->planes[i].expert_order;
    if (x->ndim != 2 || y->ndim != 2 || x->dtype != y->dtype || x->shape[1] != y->shape[1] ||
        y->shape[0] != args->rows->max)
        return moe_fail(err, MOE_E_ARG,
                        "layer %u: plane %u: dtype %d [%" PRId64 ",%" PRId64 "] and dtype %d [%" PRId64 ",%" PRId64
                        "]; rows.max is %" PRId64,
                        d->layer, i, x->dtype, x->shape[0], x->shape[1], y->dtype, y->shape[0], y->shape[1],
                        args->rows->max);
    if (x->dtype != MOE_F32 && x->dtype != MOE_BF16)
        return moe_fail(err, MOE_E_UNSUPPORTED, "layer %u: plane %u has dtype %d; %s moves rows of F32 and BF16",
                        d->layer, i, x->dtype, d->name);
    if (x->shape[0] != tokens)
        return moe_fail(err, MOE_E_ARG, "layer %u: plane %u has %" PRId64 " tokens, expected %" PRId64, d->layer, i,
                        x->shape[0], tokens);
    return MOE_OK;
}

moe_status disp_check_staged(const disp *d, const moe_move_args *args, moe_err *err) {
    int64_t elements = 0;
    if (args->n_planes > DISP_PLANES)
        return moe_fail(err, MOE_E_UNSUPPORTED, "layer %u: %u planes; %s moves %d at most", d->layer, args->n_planes,
                        d->name, DISP_PLANES);
    for (uint32_t i = 0; i < args->n_planes; i++) elements += args->planes[i].token_order.shape[1];
    if (elements <= disp_row_elements(d)) return MOE_OK;
    return moe_fail(err, MOE_E_ARG,
                    "layer %u: %u planes of %" PRId64 " elements a row; the workspace is made for hidden %" PRId64
                    " and %d more",
                    d->layer, args->n_planes, elements, d->hidden, DISP_EXTRA_ELEMENTS);
}

moe_status disp_check_move(const disp *d, const moe_move_args *args, int64_t tokens, moe_err *err) {
    const int scalars = disp_present(args->slot_scalar), rows = disp_present(args->row_scalar);
    moe_status s = check_rows(d, args->rows, err);
    if (tokens < 0 && args->n_planes > 0) tokens = args->planes[0].token_order.shape[0];
    if (s == MOE_OK && args->n_planes > 0) s = check_tokens(d, tokens, err);
    for (uint32_t i = 0; i < args->n_planes && s == MOE_OK; i++) s = check_plane(d, args, i, tokens, err);
    if (s != MOE_OK) return s;
    if (scalars != rows)
        return moe_fail(err, MOE_E_ARG, "layer %u: %s without %s", d->layer, scalars ? "slot_scalar" : "row_scalar",
                        scalars ? "row_scalar" : "slot_scalar");
    if (!scalars) return MOE_OK;
    if (args->n_planes == 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: slot scalars travel with plane 0, and there is none", d->layer);
    s = check_tensor(d, "slot_scalar", args->slot_scalar, MOE_F32, tokens, d->top_k, err);
    return s == MOE_OK ? check_tensor(d, "row_scalar", args->row_scalar, MOE_F32, args->rows->max, -1, err) : s;
}
