/* Checks of what takes rows to experts and back: moe.expert_rows/0, moe.capacity/0, moe.permute/0, moe.unpermute/0; see
 * ../ops.h. */
#include <stddef.h>

#include "../ops.h"

/* ---- moe.expert_rows/0 ---- */
static const char expert_rows[] = MOE_OP_EXPERT_ROWS;

int64_t op_expert_rows_least(const moe_expert_rows_attr *at) {
    return MOE_REACH(at, moe_expert_rows_attr, min_rows) ? at->min_rows : 0;
}

static moe_status check_groups(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_attr(a, expert_rows, offsetof(moe_expert_rows_attr, min_rows), err);
    if (s != MOE_OK) return s;
    const moe_expert_rows_attr *at = a->attr;
    const int64_t least = op_expert_rows_least(at);
    if (at->groups == 0 || (uint64_t)at->first + at->groups > at->n_experts)
        return moe_fail(err, MOE_E_ARG, "%s: %u experts from %u on, want at least one and all below %u", expert_rows,
                        at->groups, at->first, at->n_experts);
    if (at->align < 1)
        return moe_fail(err, MOE_E_ARG, "%s: align is %lld, want >= 1", expert_rows, (long long)at->align);
    if (least < 0) return moe_fail(err, MOE_E_ARG, "%s: min_rows is %lld, want >= 0", expert_rows, (long long)least);
    return MOE_OK;
}

/* The rows that the experts take in any case fit: what a call adds to them is seen by the call. */
static moe_status check_least(const moe_expert_rows_attr *at, int64_t rows, moe_err *err) {
    int64_t padded, all, least = op_expert_rows_least(at);
    if (!__builtin_add_overflow(least, at->align - 1, &padded) &&
        !__builtin_mul_overflow(padded / at->align * at->align, (int64_t)at->groups, &all) && all <= rows)
        return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: %u experts of at least %lld rows (aligned to %lld), row_slot has %lld",
                    expert_rows, at->groups, (long long)least, (long long)at->align, (long long)rows);
}

moe_status op_check_expert_rows(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, expert_rows, 1, 1, 4, 4, err);
    if (s == MOE_OK) s = check_groups(a, err);
    if (s == MOE_OK) s = op_want(&a->in[0], expert_rows, "ids", MOE_I32, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    int64_t groups = ((const moe_expert_rows_attr *)a->attr)->groups;
    s = op_want(&a->out[0], expert_rows, "slot_row", MOE_I64, 2, a->in[0].shape, err);
    if (s == MOE_OK) s = op_want(&a->out[1], expert_rows, "row_slot", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->out[2], expert_rows, "offsets", MOE_I64, 1, OP_SHAPE(groups + 1), err);
    if (s == MOE_OK) s = op_want(&a->out[3], expert_rows, "counts", MOE_I64, 1, OP_SHAPE(groups), err);
    return s == MOE_OK ? check_least(a->attr, a->out[1].shape[0], err) : s;
}

/* ---- moe.capacity/0 ---- */
static const char capacity[] = MOE_OP_CAPACITY;

static moe_status check_drop(const moe_op_args *a, uint32_t most, moe_err *err) {
    moe_status s = op_want_attr(a, capacity, sizeof(moe_capacity_attr), err);
    if (s != MOE_OK) return s;
    const moe_capacity_attr *at = a->attr;
    if (at->n_experts < 1 || at->n_experts > most)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %u experts, want 1..%u", capacity, at->n_experts, most);
    if (at->drop != MOE_DROP_PROB && at->drop != MOE_DROP_POSITION)
        return moe_fail(err, MOE_E_ARG, "%s: drop is %d, want MOE_DROP_PROB (%d) or MOE_DROP_POSITION (%d)", capacity,
                        at->drop, MOE_DROP_PROB, MOE_DROP_POSITION);
    if (at->capacity < 1)
        return moe_fail(err, MOE_E_ARG, "%s: capacity is %lld, want >= 1", capacity, (long long)at->capacity);
    if (at->scope < 1) return moe_fail(err, MOE_E_ARG, "%s: scope is %lld, want >= 1", capacity, (long long)at->scope);
    return MOE_OK;
}

moe_status op_check_capacity(const moe_op_args *a, uint32_t most, moe_err *err) {
    moe_status s = op_want_lists(a, capacity, 2, 2, 3, 3, err);
    if (s == MOE_OK) s = check_drop(a, most, err);
    if (s == MOE_OK) s = op_want(&a->in[0], capacity, "ids", MOE_I32, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    const int64_t *shape = a->in[0].shape, scope = ((const moe_capacity_attr *)a->attr)->scope; /* T, k */
    s = op_want(&a->in[1], capacity, "weights", MOE_F32, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->out[0], capacity, "kept_ids", MOE_I32, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->out[1], capacity, "kept_weights", MOE_F32, 2, shape, err);
    if (s == MOE_OK) s = op_want(&a->out[2], capacity, "n", MOE_I64, 1, OP_SHAPE(2), err);
    if (s == MOE_OK && shape[0] % scope)
        s = moe_fail(err, MOE_E_ARG, "%s: %lld tokens are not a multiple of scope %lld", capacity, (long long)shape[0],
                     (long long)scope);
    return s;
}

/* ---- moe.permute/0, moe.unpermute/0 ---- */
/* What moves a scalar with each row: in[2] and out[1], of slots [T,k] and of rows [N] or the other way round. */
typedef struct scalars {
    const moe_tensor *from, *to; /* or NULL */
    const char *from_name, *to_name;
} scalars;

static scalars scalars_of(const moe_op_args *a, const char *from_name, const char *to_name) {
    scalars s = {op_optional(a->in, a->n_in, 2), op_optional(a->out, a->n_out, 1), from_name, to_name};
    return s;
}

/* k is there, and the scalars are given together. */
static moe_status check_k(const moe_op_args *a, const char *op, const scalars *c, moe_err *err) {
    if (((const moe_permute_attr *)a->attr)->k < 1) return moe_fail(err, MOE_E_ARG, "%s: k is 0", op);
    if (!c->from != !c->to)
        return moe_fail(err, MOE_E_ARG, "%s: %s is given exactly where %s is", op, c->to_name, c->from_name);
    return MOE_OK;
}

moe_status op_check_permute(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_PERMUTE;
    moe_status s = op_want_lists(a, op, 2, 3, 1, 2, err);
    if (s == MOE_OK) s = op_want_attr(a, op, sizeof(moe_permute_attr), err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "x", OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->in[1], op, "row_slot", MOE_I64, 1, OP_SHAPE(OP_ANY), err);
    if (s != MOE_OK) return s;
    const scalars c = scalars_of(a, "slot_scalar", "row_scalar");
    int64_t tokens = a->in[0].shape[0], width = a->in[0].shape[1], rows = a->in[1].shape[0];
    s = check_k(a, op, &c, err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, "y", a->in[0].dtype, 2, OP_SHAPE(rows, width), err);
    int64_t k = ((const moe_permute_attr *)a->attr)->k;
    if (s == MOE_OK && c.from) s = op_want(c.from, op, c.from_name, MOE_F32, 2, OP_SHAPE(tokens, k), err);
    if (s == MOE_OK && c.to) s = op_want(c.to, op, c.to_name, MOE_F32, 1, OP_SHAPE(rows), err);
    return s == MOE_OK ? op_want_rows(a, op, rows, err) : s;
}

moe_status op_check_unpermute(const moe_op_args *a, moe_err *err) {
    static const char op[] = MOE_OP_UNPERMUTE;
    moe_status s = op_want_lists(a, op, 2, 3, 1, 2, err);
    if (s == MOE_OK) s = op_want_attr(a, op, sizeof(moe_permute_attr), err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "y", OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    const scalars c = scalars_of(a, "row_scalar", "slot_scalar");
    int64_t k = ((const moe_permute_attr *)a->attr)->k;
    s = check_k(a, op, &c, err);
    if (s == MOE_OK) s = op_want(&a->in[1], op, "slot_row", MOE_I64, 2, OP_SHAPE(OP_ANY, k), err);
    if (s != MOE_OK) return s;
    int64_t rows = a->in[0].shape[0], width = a->in[0].shape[1], tokens = a->in[1].shape[0];
    s = op_want(&a->out[0], op, "x", a->in[0].dtype, 2, OP_SHAPE(tokens, width), err);
    if (s == MOE_OK && c.from) s = op_want(c.from, op, c.from_name, MOE_F32, 1, OP_SHAPE(rows), err);
    if (s == MOE_OK && c.to) s = op_want(c.to, op, c.to_name, MOE_F32, 2, OP_SHAPE(tokens, k), err);
    return s == MOE_OK && a->rows ? op_want_rows(a, op, rows, err) : s;
}
