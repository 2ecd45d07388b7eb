/* dispatcher/local: all experts live on this rank, so rows move by two copies of the device and nothing is exchanged.
 * Knows no memory of its own: it calls the device's moe.expert_rows/0, moe.permute/0 and moe.unpermute/0, and runs
 * wherever a device has them. This file: descriptor, create, needs. move.c: the calls of a step. */
#include "local.h"

#include <inttypes.h>
#include <stdlib.h>

static const moe_op *find_op(const moe_device_v0 *device, const char *name) {
    for (uint32_t i = 0; i < device->n_ops; i++)
        if (strcmp(device->ops[i]->name, name) == 0) return device->ops[i];
    return NULL;
}

static moe_status find_ops(local *me, const moe_device_info *info, moe_err *err) {
    const struct {
        const char *name;
        const moe_op **to;
    } wanted[] = {
        {MOE_OP_EXPERT_ROWS, &me->expert_rows}, {MOE_OP_PERMUTE, &me->permute}, {MOE_OP_UNPERMUTE, &me->unpermute}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        *wanted[i].to = find_op(me->device, wanted[i].name);
        if (!*wanted[i].to)
            return moe_fail(err, MOE_E_UNSUPPORTED, "dispatcher/local needs operation %s; device \"%s\" has none",
                            wanted[i].name, info->name);
    }
    return MOE_OK;
}

static moe_status find_device(local *me, const moe_host *host, moe_device_info *info, moe_err *err) {
    const moe_device_service *s =
        MOE_REACH(host, moe_host, service) && host->service ? host->service(host->ctx, "moe.device/0") : NULL;
    if (!s || !s->table)
        return moe_fail(err, MOE_E_UNSUPPORTED, "dispatcher/local needs service moe.device/0; this host has none");
    me->device = s->table;
    me->dev = s->self;
    return me->device->info(me->dev, info, err);
}

/* The multiple of step at or above x; true where it does not fit. */
static int ceil_to(int64_t x, int64_t step, int64_t *out) {
    if (__builtin_add_overflow(x, step - 1, out)) return 1;
    *out = *out / step * step;
    return 0;
}

/* Rows at most where `full` experts have more than min_rows and share all n choices, and the others have min_rows:
 * an expert pads by less than one alignment, and gets each token once at most. True where they do not fit. */
static int rows_of(const local *me, int64_t n, int64_t full, int64_t *out) {
    const int64_t a = me->rows_attr.align;
    int64_t pad, most, least;
    if (__builtin_mul_overflow(full, a - 1, &pad) || __builtin_add_overflow(n, pad, out) || ceil_to(*out, a, out) ||
        ceil_to(me->rows_attr.min_rows, a, &least) || __builtin_mul_overflow(me->n_experts - full, least, &least))
        return 1;
    if (me->rows_attr.min_rows > 0 && !ceil_to(me->max_tokens, a, &most) &&
        !__builtin_mul_overflow(most, full, &most) && most < *out)
        *out = most;
    return __builtin_add_overflow(*out, least, out);
}

/* Rows at most: the worst number of experts above min_rows; without min_rows that is all of them. */
static moe_status count_rows(local *me, moe_err *err) {
    const int64_t e = me->n_experts, k = me->top_k < e ? me->top_k : e;
    int64_t n = 0, rows;
    int bad = __builtin_mul_overflow(me->max_tokens, k, &n);
    for (int64_t full = me->rows_attr.min_rows > 0 ? 0 : e; full <= e && !bad; full++) {
        bad = rows_of(me, n, full, &rows) || rows > INT64_MAX / 64;
        if (!bad && rows > me->max_rows) me->max_rows = rows;
    }
    if (bad)
        return moe_fail(err, MOE_E_ARG,
                        "layer %u: rows of %" PRId64 " tokens, top_k %" PRId64 ", %" PRId64
                        " experts aligned to %" PRId64 ", at least %" PRId64 " each, do not fit in 64 bits",
                        me->layer, me->max_tokens, me->top_k, e, me->rows_attr.align, me->rows_attr.min_rows);
    return MOE_OK;
}

static moe_tensor shape(int32_t dtype, int32_t ndim, int64_t a, int64_t b) {
    return (moe_tensor){.dtype = dtype, .ndim = ndim, .shape = {a, b, 1, 1}};
}

static moe_status ask_sizes(local *me, const moe_op *op, const moe_op_args *args, moe_err *err) {
    uint64_t saved = 0, workspace = 0;
    moe_status s = op->sizes(me->dev, args, &saved, &workspace, err);
    if (s != MOE_OK) return s;
    if (saved)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s of this device saves %" PRIu64 " bytes; it should save none",
                        op->name, saved);
    if (workspace > me->workspace) me->workspace = workspace;
    return MOE_OK;
}

/* Workspace of the two movements with rows of dtype at the largest shapes. */
static moe_status ask_moves(local *me, int32_t dtype, const moe_rows *rows, moe_err *err) {
    const int64_t t = me->max_tokens, k = me->top_k, n = me->max_rows, h = me->hidden;
    const moe_tensor x = shape(dtype, 2, t, h), y = shape(dtype, 2, n, h), slots = shape(MOE_F32, 2, t, k),
                     row_scalar = shape(MOE_F32, 1, n, 1);
    const moe_tensor in_p[] = {x, shape(MOE_I64, 1, n, 1), slots}, out_p[] = {y, row_scalar};
    const moe_tensor in_u[] = {y, shape(MOE_I64, 2, t, k), row_scalar}, out_u[] = {x, slots};
    moe_op_args args = {
        .size = sizeof args, .n_in = 3, .n_out = 2, .in = in_p, .out = out_p, .attr = &me->permute_attr, .rows = rows};
    moe_status s = ask_sizes(me, me->permute, &args, err);
    if (s != MOE_OK) return s;
    args.in = in_u;
    args.out = out_u;
    return ask_sizes(me, me->unpermute, &args, err);
}

static moe_status ask_workspace(local *me, moe_err *err) {
    const int64_t t = me->max_tokens, k = me->top_k, n = me->max_rows, e = me->n_experts;
    const moe_rows rows = {.size = sizeof rows, .groups = me->n_experts, .max = n, .host_total = -1};
    const moe_tensor ids = shape(MOE_I32, 2, t, k);
    const moe_tensor out[] = {shape(MOE_I64, 2, t, k), shape(MOE_I64, 1, n, 1), shape(MOE_I64, 1, e + 1, 1),
                              shape(MOE_I64, 1, e, 1)};
    const moe_op_args args = {
        .size = sizeof args, .n_in = 1, .n_out = 4, .in = &ids, .out = out, .attr = &me->rows_attr};
    moe_status s = ask_sizes(me, me->expert_rows, &args, err);
    if (s != MOE_OK) return s;
    /* Which of the two types the rows have is not known here, and a device may have one of them only. */
    s = ask_moves(me, MOE_F32, &rows, err);
    moe_err other = {.size = sizeof other};
    return ask_moves(me, MOE_BF16, &rows, &other) == MOE_OK ? MOE_OK : s;
}

static moe_status take_cfg(local *me, const moe_dispatcher_cfg *cfg, moe_err *err) {
    if (cfg->ep_size != 1 || cfg->etp_size != 1)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "dispatcher/local has all experts on one rank; ep_size is %u, etp_size %u", cfg->ep_size,
                        cfg->etp_size);
    if (cfg->top_k < 1 || cfg->n_experts < 1 || cfg->hidden < 1 || cfg->max_tokens < 0 || cfg->row_align < 1)
        return moe_fail(err, MOE_E_ARG,
                        "layer %u: top_k %u, n_experts %u, hidden %" PRId64 ", max_tokens %" PRId64
                        ", row_align %" PRId64 ": all must be positive",
                        cfg->layer, cfg->top_k, cfg->n_experts, cfg->hidden, cfg->max_tokens, cfg->row_align);
    const int64_t min_rows = MOE_REACH(cfg, moe_dispatcher_cfg, min_rows) ? cfg->min_rows : 0;
    if (min_rows < 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: min_rows is %" PRId64 ", want at least 0", cfg->layer, min_rows);
    me->rows_attr = (moe_expert_rows_attr){.size = sizeof me->rows_attr,
                                           .groups = cfg->n_experts,
                                           .n_experts = cfg->n_experts,
                                           .align = cfg->row_align,
                                           .min_rows = min_rows};
    me->permute_attr = (moe_permute_attr){.size = sizeof me->permute_attr, .k = cfg->top_k};
    me->hidden = cfg->hidden;
    me->max_tokens = cfg->max_tokens;
    me->top_k = cfg->top_k;
    me->n_experts = cfg->n_experts;
    me->layer = cfg->layer;
    return count_rows(me, err);
}

/* Both arrays of the handle begin at the device's alignment. */
static moe_status place_handle(local *me, const moe_device_info *info, moe_err *err) {
    const uint64_t a = info->alignment ? info->alignment : 1;
    int64_t slots;
    if (__builtin_mul_overflow(me->max_tokens, 8 * me->top_k, &slots))
        return moe_fail(err, MOE_E_ARG, "layer %u: %" PRId64 " tokens of %" PRId64 " slots do not fit in 64 bits",
                        me->layer, me->max_tokens, me->top_k);
    me->row_slot_at = ((uint64_t)slots + a - 1) / a * a;
    me->handle = me->row_slot_at + 8 * (uint64_t)me->max_rows;
    return MOE_OK;
}

static moe_status local_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    moe_device_info info = {.size = sizeof info};
    local *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/local: %zu bytes", sizeof *me);
    moe_status s = take_cfg(me, cfg, err);
    if (s == MOE_OK) s = find_device(me, host, &info, err);
    if (s == MOE_OK) s = find_ops(me, &info, err);
    if (s == MOE_OK) s = place_handle(me, &info, err);
    if (s == MOE_OK) s = ask_workspace(me, err);
    if (s == MOE_OK)
        *self = me;
    else
        free(me);
    return s;
}

static void local_destroy(void *self) {
    free(self);
}

static moe_status local_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    const local *me = self;
    (void)err;
    needs->dispatch_phases = MOE_PHASE_PACK;
    needs->combine_phases = MOE_PHASE_UNPACK;
    needs->groups = me->n_experts;
    needs->handle = me->handle;
    needs->workspace = me->workspace;
    needs->max_rows = me->max_rows;
    return MOE_OK;
}

static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = local_create,
                                        .destroy = local_destroy,
                                        .needs = local_needs,
                                        .layout = local_layout,
                                        .pack = local_pack,
                                        .exchange = local_exchange,
                                        .unpack = local_unpack};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "dispatcher",
                              .id = "local",
                              .device = "any",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "All experts on this rank: rows are sorted by expert and back, none travels",
                              .flags = MOE_DETERMINISTIC | MOE_FOLLOWS_DEVICE,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
