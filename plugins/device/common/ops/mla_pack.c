/* Checks of moe.mla_pack/0; see ../ops.h. */
#include <stddef.h>

#include "../ops.h"

static const char op[] = MOE_OP_MLA_PACK;

static moe_status check_attr(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_attr(a, op, offsetof(moe_mla_pack_attr, reserved), err);
    if (s != MOE_OK) return s;
    const moe_mla_pack_attr *at = a->attr;
    const struct {
        const char *name;
        uint32_t is;
    } sizes[] = {{"heads", at->heads}, {"nope", at->nope}, {"rope", at->rope}, {"v_dim", at->v_dim}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].is < 1 || sizes[i].is > OP_MLA_MOST)
            return moe_fail(err, MOE_E_ARG, "%s: %s is %u, want 1..%d", op, sizes[i].name, sizes[i].is, OP_MLA_MOST);
    return MOE_OK;
}

/* The four tensors by the attribute; qkv first, it gives T and the type. parts: q, kv, k_rope. prefix: "" or "d". */
static moe_status check_tensors(const moe_op_args *a, const moe_tensor *parts, const moe_tensor *qkv,
                                const char *prefix, moe_err *err) {
    const moe_mla_pack_attr *at = a->attr;
    const int64_t n = at->heads, nope = at->nope, rope = at->rope, v = at->v_dim, qk = n * (nope + rope);
    const struct {
        const char *name;
        const moe_tensor *t;
        int64_t columns;
    } wanted[] = {{"qkv", qkv, 2 * qk + n * v},
                  {"q", &parts[0], qk},
                  {"kv", &parts[1], n * (nope + v)},
                  {"k_rope", &parts[2], rope}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s%s", prefix, wanted[i].name);
        moe_status s = op_want(wanted[i].t, op, name, i ? qkv->dtype : OP_ACT, 2,
                               OP_SHAPE(i ? qkv->shape[0] : OP_ANY, wanted[i].columns), err);
        if (s != MOE_OK) return s;
    }
    return MOE_OK;
}

moe_status op_check_mla_pack(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 3, 3, 1, 1, err);
    if (s == MOE_OK) s = check_attr(a, err);
    return s == MOE_OK ? check_tensors(a, a->in, a->out, "", err) : s;
}

moe_status op_check_mla_pack_backward(const moe_op_args *a, moe_err *err) {
    moe_status s = op_want_lists(a, op, 1, 1, 3, 3, err);
    if (s == MOE_OK) s = check_attr(a, err);
    return s == MOE_OK ? check_tensors(a, a->out, a->in, "d", err) : s;
}
