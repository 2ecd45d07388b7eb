/* Checks of moe.embed/0, and what a part of a vocabulary is; see ../ops.h. */
#include "../ops.h"

static const char op[] = MOE_OP_EMBED;

moe_status op_vocabulary(const void *attr, const char *name, int64_t rows, moe_vocabulary_attr *out, moe_err *err) {
    const moe_vocabulary_attr whole = {.size = sizeof whole, .whole = rows};
    const moe_vocabulary_attr *part = attr ? attr : &whole;
    if (part->first < 0 || part->first > part->whole || rows > part->whole - part->first)
        return moe_fail(err, MOE_E_ARG, "%s: %lld words from word %lld, but the whole has %lld", name, (long long)rows,
                        (long long)part->first, (long long)part->whole);
    *out = *part;
    return MOE_OK;
}

/* The table's `rows` words lie in the vocabulary. */
static moe_status check_part(const moe_op_args *a, int64_t rows, moe_err *err) {
    moe_vocabulary_attr part;
    moe_status s = a->attr ? op_want_attr(a, op, sizeof part, err) : MOE_OK;
    return s == MOE_OK ? op_vocabulary(a->attr, op, rows, &part, err) : s;
}

moe_status op_check_embed(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 2, 2, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "ids", MOE_I32, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->in[1], op, "table", OP_ACT, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    s = op_want(&a->out[0], op, "x", a->in[1].dtype, 2, OP_SHAPE(a->in[0].shape[0], a->in[1].shape[1]), err);
    return s == MOE_OK ? check_part(a, a->in[1].shape[0], err) : s;
}

moe_status op_check_embed_backward(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 2, 2, 1, 1, err);
    if (s == MOE_OK) s = op_want(&a->in[0], op, "ids", MOE_I32, 1, OP_SHAPE(OP_ANY), err);
    if (s == MOE_OK) s = op_want(&a->out[0], op, "dtable", MOE_F32, 2, OP_SHAPE(OP_ANY, OP_ANY), err);
    if (s != MOE_OK) return s;
    s = op_want(&a->in[1], op, "dx", OP_ACT, 2, OP_SHAPE(a->in[0].shape[0], a->out[0].shape[1]), err);
    return s == MOE_OK ? check_part(a, a->out[0].shape[0], err) : s;
}
