/* Precisions whose products are the device's moe.linear/0: checks that dtypes and shapes of a call fit the format and
 * each other, then passes it on. See linear.h. */
#include "linear.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct linear {
    const linear_format *format;
    const moe_op *op;
    void *dev;
} linear;

/* The operands of a role, as under moe.linear/0: axes by letter, and which dtypes they may have. */
enum { ACT, WEIGHT, ACT_OR_F32, ONLY_F32 };
typedef struct operand {
    const char *name, *axes;
    int32_t kind;
} operand;
static const struct {
    const char *name;
    operand operands[3];
} roles[] = {[MOE_FPROP] = {"fprop", {{"x", "MK", ACT}, {"w", "NK", WEIGHT}, {"y", "MN", ACT_OR_F32}}},
             [MOE_DGRAD] = {"dgrad", {{"dy", "MN", ACT}, {"w", "NK", WEIGHT}, {"dx", "MK", ACT_OR_F32}}},
             [MOE_WGRAD] = {"wgrad", {{"dy", "MN", ACT}, {"x", "MK", ACT}, {"dw", "NK", ONLY_F32}}}};

static const char *dtype_name(int32_t dtype) {
    static const char *const names[] = {"F32", "BF16",   "F64",    "I32",      "I64",
                                        "U8",  "F8E4M3", "F8E5M2", "F4E2M1X2", "E8M0"};
    return dtype >= 0 && (size_t)dtype < sizeof names / sizeof names[0] ? names[dtype] : "unknown";
}

static int dtype_fits(const linear_format *f, int32_t kind, int32_t dtype) {
    switch (kind) {
        case ACT:
            return dtype == f->act;
        case WEIGHT:
            return dtype == f->weight;
        case ACT_OR_F32:
            return dtype == f->act || dtype == MOE_F32;
        default:
            return dtype == MOE_F32;
    }
}

static moe_status refuse_dtype(const linear *me, int32_t role, const operand *o, int32_t dtype, moe_err *err) {
    const linear_format *f = me->format;
    const char *want = dtype_name(o->kind == ACT || o->kind == ACT_OR_F32 ? f->act
                                  : o->kind == WEIGHT                     ? f->weight
                                                                          : MOE_F32);
    return moe_fail(err, MOE_E_ARG, "precision/%s: %s: %s is %s, expected %s%s", f->id, roles[role].name, o->name,
                    dtype_name(dtype), want, o->kind == ACT_OR_F32 && f->act != MOE_F32 ? " or F32" : "");
}

/* The size of an axis of the call, and which operand said so first. */
typedef struct axis {
    int64_t size;
    const char *from;
} axis;
typedef struct axes {
    axis m, n, k;
} axes;

static axis *find_axis(axes *a, char letter) {
    return letter == 'M' ? &a->m : letter == 'N' ? &a->n : &a->k;
}

static moe_status check_operand(const linear *me, const moe_linear_args *args, const operand *o, const moe_tensor *t,
                                axes *a, moe_err *err) {
    const char *id = me->format->id, *role = roles[args->role].name;
    if (!dtype_fits(me->format, o->kind, t->dtype)) return refuse_dtype(me, args->role, o, t->dtype, err);
    const int lead = args->rows && o->axes[0] == 'N'; /* weights of groups: [G,N,K] */
    if (t->ndim != 2 + lead)
        return moe_fail(err, MOE_E_ARG, "precision/%s: %s: %s has %d axes, expected %s[%s%c,%c]", id, role, o->name,
                        t->ndim, args->rows ? "grouped " : "", lead ? "G," : "", o->axes[0], o->axes[1]);
    if (lead && t->shape[0] != (int64_t)args->rows->groups)
        return moe_fail(err, MOE_E_ARG, "precision/%s: %s: %s has G = %" PRId64 ", but rows has %u groups", id, role,
                        o->name, t->shape[0], args->rows->groups);
    for (int i = 0; i < 2; i++) {
        axis *x = find_axis(a, o->axes[i]);
        const int64_t size = t->shape[i + lead];
        if (x->from && x->size != size)
            return moe_fail(err, MOE_E_ARG, "precision/%s: %s: %s has %c = %" PRId64 ", but %s has %c = %" PRId64, id,
                            role, o->name, o->axes[i], size, x->from, o->axes[i], x->size);
        if (!x->from) *x = (axis){size, o->name};
    }
    return MOE_OK;
}

static const moe_tensor *filled_of(const moe_linear_args *args) {
    return MOE_REACH(args, moe_linear_args, filled) ? args->filled : NULL;
}

static moe_status check_filled(const linear *me, const moe_linear_args *args, moe_err *err) {
    const moe_tensor *t = filled_of(args);
    const char *id = me->format->id, *role = roles[args->role].name;
    if (!t) return MOE_OK;
    if (!me->format->takes_filled)
        return moe_fail(err, MOE_E_UNSUPPORTED, "precision/%s: %s: filled is not taken on this device", id, role);
    if (args->role != MOE_WGRAD || !args->rows)
        return moe_fail(err, MOE_E_ARG, "precision/%s: %s: filled is for grouped wgrad alone", id, role);
    if (t->dtype != MOE_I32 || t->ndim != 1 || t->shape[0] != (int64_t)args->rows->groups)
        return moe_fail(err, MOE_E_ARG,
                        "precision/%s: %s: filled is %s of %d axes, the first of %" PRId64 ", expected I32 [%u]", id,
                        role, dtype_name(t->dtype), t->ndim, t->shape[0], args->rows->groups);
    return MOE_OK;
}

static moe_status check_call(const linear *me, const moe_linear_args *args, moe_err *err) {
    if (args->role < MOE_FPROP || args->role > MOE_WGRAD)
        return moe_fail(err, MOE_E_ARG, "precision/%s: role %d is none of fprop, dgrad, wgrad", me->format->id,
                        args->role);
    axes a = {{0, NULL}, {0, NULL}, {0, NULL}};
    if (args->rows) a.m = (axis){args->rows->max, "rows.max"};
    const moe_tensor *const tensors[] = {args->a, args->b, args->out};
    moe_status s = MOE_OK;
    for (int i = 0; i < 3 && s == MOE_OK; i++)
        s = check_operand(me, args, &roles[args->role].operands[i], tensors[i], &a, err);
    return s == MOE_OK ? check_filled(me, args, err) : s;
}

/* What one call to moe.linear/0 needs around it; borrowed for the call. */
typedef struct op_call {
    moe_tensor in[2], out[2];
    moe_linear_attr attr;
    moe_op_args args;
} op_call;

static void fill_call(op_call *c, const moe_linear_args *args) {
    c->in[0] = *args->a;
    c->in[1] = *args->b;
    c->out[0] = *args->out;
    const moe_tensor *filled = filled_of(args);
    if (filled) c->out[1] = *filled;
    c->attr = (moe_linear_attr){.size = sizeof c->attr, .role = args->role, .accumulate = args->accumulate};
    c->args = (moe_op_args){.size = sizeof c->args,
                            .n_in = 2,
                            .n_out = filled ? 2 : 1,
                            .stream = args->stream,
                            .in = c->in,
                            .out = c->out,
                            .attr = &c->attr,
                            .rows = args->rows,
                            .workspace = args->workspace};
}

moe_status linear_create(const linear_format *format, const moe_host *host, void **self, moe_err *err) {
    const moe_device_service *d =
        MOE_REACH(host, moe_host, service) && host->service ? host->service(host->ctx, "moe.device/0") : NULL;
    if (!d || !d->table)
        return moe_fail(err, MOE_E_UNSUPPORTED, "precision/%s needs service moe.device/0; this host has none",
                        format->id);
    const moe_op *op = NULL;
    for (uint32_t i = 0; i < d->table->n_ops && !op; i++)
        if (strcmp(d->table->ops[i]->name, MOE_OP_LINEAR) == 0) op = d->table->ops[i];
    if (!op) {
        moe_device_info info = {.size = sizeof info};
        moe_status s = d->table->info(d->self, &info, err);
        return s != MOE_OK ? s
                           : moe_fail(err, MOE_E_UNSUPPORTED,
                                      "precision/%s needs operation " MOE_OP_LINEAR "; device \"%s\" has none",
                                      format->id, info.name);
    }
    linear *me = malloc(sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "precision/%s: %zu bytes", format->id, sizeof *me);
    *me = (linear){.format = format, .op = op, .dev = d->self};
    *self = me;
    return MOE_OK;
}

void linear_destroy(void *self) {
    free(self);
}

moe_status linear_needs(void *self, moe_precision_needs *needs, moe_err *err) {
    const linear *me = self;
    (void)err;
    needs->act_dtype = me->format->act;
    needs->weight_dtype = me->format->weight;
    needs->row_align = me->format->row_align;
    needs->takes_filled = me->format->takes_filled;
    return MOE_OK;
}

moe_status linear_sizes(void *self, const moe_linear_args *args, uint64_t *workspace, moe_err *err) {
    const linear *me = self;
    uint64_t saved = 0;
    op_call c;
    moe_status s = check_call(me, args, err);
    if (s != MOE_OK) return s;
    fill_call(&c, args);
    s = me->op->sizes(me->dev, &c.args, &saved, workspace, err);
    if (s == MOE_OK && saved)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        MOE_OP_LINEAR " of this device saves %" PRIu64 " bytes; it should save none", saved);
    return s;
}

moe_status linear_linear(const void *self, const moe_linear_args *args, moe_err *err) {
    const linear *me = self;
    op_call c;
    moe_status s = check_call(me, args, err);
    if (s != MOE_OK) return s;
    fill_call(&c, args);
    return me->op->forward(me->dev, &c.args, err);
}
