/* dispatcher/deepep for CUDA: a token crosses once to each member that has one of its experts, straight into that
 * member's memory over NVLink, and is spread there; on the way back each member sums its rows of a token and returns
 * one. (the idea: DeepSeek, DeepEP; methods of DeepSeek-V3, arXiv 2412.19437, 3.2.2) The same bits as the CPU's.
 *
 * The plan of a routing is the device's (../common/plan.h); everything else is kernels of this plugin: peers.h. Nothing
 * waits for the device, but for layout with cfg.host_counts. A movement is one kernel; numbers of barriers, and with
 * them which half of the windows is used, lie in device memory. */
#include <moe/options.h>
#include <stdlib.h>

#include "../common/ops.h"
#include "../common/plan.h"
#include "memory.h"

enum { BLOCKS = 32, TIMEOUT_S = 600 };

typedef struct deepep {
    disp d;
    disp_ops ops;
    deepep_shape shape;
    memory *memory;
    uint32_t blocks;
    uint64_t slot_row, partial, workspace; /* bytes: where they begin in layout's workspace; all of it */
    uint64_t own_memory;
} deepep;

/* ---- set-up ---- */
static moe_status check_sizes(const disp *d, moe_err *err) {
    const uint64_t most = (uint64_t)disp_min((int64_t)d->top_k * d->etp_size, d->members) + d->top_k;
    if (d->members > DEEPEP_MEMBERS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: layer %u: %u members; at most %d are possible", d->name, d->layer,
                        d->members, DEEPEP_MEMBERS);
    if (most > DEEPEP_ROWS)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "%s: layer %u: top_k %u over %u members may sum %llu rows a token; at most %d are possible",
                        d->name, d->layer, d->top_k, d->members, (unsigned long long)most, DEEPEP_ROWS);
    if (d->max_rows > INT32_MAX || d->max_tokens > INT32_MAX || d->hidden > (1 << 28))
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s: layer %u: %lld rows of hidden %lld; want at most %d of %d",
                        d->name, d->layer, (long long)disp_max(d->max_rows, d->max_tokens), (long long)d->hidden,
                        INT32_MAX, 1 << 28);
    return MOE_OK;
}

/* As few as have work: all of a member's blocks take part in every barrier. */
static uint32_t count_blocks(const disp *d, int64_t most) {
    return (uint32_t)disp_max(1, disp_min(most, (d->max_tokens + DEEPEP_WARPS - 1) / DEEPEP_WARPS));
}

static void place(deepep *me) {
    const disp *d = &me->d;
    const uint64_t slots = (uint64_t)d->max_tokens * d->top_k;
    uint64_t end = plan_bytes(d, 0);
    me->shape = (deepep_shape){.members = d->members,
                               .etp = d->etp_size,
                               .k = d->top_k,
                               .groups = d->groups,
                               .tokens = d->max_tokens,
                               .stride = plan_at(d, 0, NULL).stride};
    deepep_shape_fill(&me->shape, disp_row_elements(d));
    me->slot_row = disp_place(d, &end, 8 * slots);
    me->partial = disp_place(d, &end, 4ull * me->blocks * DEEPEP_WARPS * d->ep_size);
    me->workspace = end;
}

static void deepep_destroy(void *self) {
    deepep *me = self;
    memory_close(&me->d, me->memory);
    free(me);
}

static moe_status deepep_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    deepep *me = calloc(1, sizeof *me);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "dispatcher/deepep: %zu bytes", sizeof *me);
    const disp_want wanted[] = {{MOE_OP_SENT, &me->ops.sent}};
    const double timeout = moe_kv_float(cfg->kv, cfg->n_kv, "timeout_s", TIMEOUT_S);
    moe_status s = disp_open(&me->d, "dispatcher/deepep", cfg, host, err);
    if (s == MOE_OK) s = check_sizes(&me->d, err);
    if (s == MOE_OK) s = disp_find(&me->d, wanted, 1, err);
    if (s == MOE_OK) s = plan_open(&me->d, err);
    if (s == MOE_OK) {
        me->blocks = count_blocks(&me->d, moe_kv_int(cfg->kv, cfg->n_kv, "blocks", BLOCKS));
        place(me);
        const void *before = me->d.shared ? *me->d.shared : NULL;
        s = memory_open(&me->d, &me->shape, timeout, &me->memory, err);
        if (s == MOE_OK && me->memory != before) me->own_memory = me->memory->window.n ? me->shape.bytes : 0;
    }
    if (s == MOE_OK)
        *self = me;
    else
        deepep_destroy(me);
    return s;
}

static moe_status deepep_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    const deepep *me = self;
    (void)err;
    needs->dispatch_phases = needs->combine_phases = MOE_PHASE_EXCHANGE; /* see peers.h: halves are used in turn */
    needs->groups = me->d.groups;
    needs->handle = deepep_routing_bytes(&me->shape);
    needs->workspace = me->workspace;
    needs->max_rows = me->d.max_rows;
    needs->own_memory = me->own_memory;
    return MOE_OK;
}

/* ---- steps ---- */
static deepep_grid grid_of(const deepep *me, void *stream) {
    return (deepep_grid){.ranks = 1, .blocks = me->blocks, .threads = DEEPEP_THREADS, .stream = stream};
}

static moe_status tell(const deepep *me, const moe_layout_args *args, const plan *p, moe_err *err) {
    const deepep_grid grid = grid_of(me, args->stream);
    const deepep_tell_call call = {.rank = memory_rank(me->memory, &me->shape, me->d.me), .numbers = p->counts};
    return me->d.members > 1 ? deepep_tell(&grid, &call, NULL, err) : MOE_OK;
}

static moe_status route(const deepep *me, const moe_layout_args *args, const plan *p, const int64_t *slot_row,
                        moe_err *err) {
    const deepep_grid grid = grid_of(me, args->stream);
    const deepep_route_call call = {.rank = memory_rank(me->memory, &me->shape, me->d.me),
                                    .to = deepep_routing_at(&me->shape, args->handle),
                                    .ids = args->expert_ids->data,
                                    .slot_row = slot_row,
                                    .kept = p->kept,
                                    .partial = (int32_t *)(void *)((char *)args->workspace + me->partial),
                                    .n = args->expert_ids->shape[0]};
    return deepep_route(&grid, &call, NULL, err);
}

static moe_status deepep_layout(const void *self, const moe_layout_args *args, moe_err *err) {
    const deepep *me = self;
    const disp *d = &me->d;
    const plan p = plan_at(d, 0, args->workspace);
    int64_t *slot_row = (int64_t *)(void *)((char *)args->workspace + me->slot_row);
    moe_status s = memory_poll(me->memory, err);
    if (s == MOE_OK) s = disp_check_layout(d, args, err);
    if (s == MOE_OK) s = disp_check_room(d, args, err);
    if (s == MOE_OK) s = plan_count(d, args, &p, err);
    if (s == MOE_OK) s = tell(me, args, &p, err);
    if (s == MOE_OK) s = plan_derive(d, args, &p, err);
    if (s == MOE_OK) s = disp_tell(d, args, 0, 0, err);
    if (s == MOE_OK) s = plan_slots(d, args, &p, slot_row, err);
    if (s == MOE_OK) s = route(me, args, &p, slot_row, err);
    return disp_end_all(d, s, err);
}

static void fill_plane(const moe_plane *plane, deepep_plane *p) {
    const moe_tensor *x = &plane->token_order, *y = &plane->expert_order;
    const uint32_t element = x->dtype == MOE_BF16 ? 2 : 4;
    *p = (deepep_plane){.tokens = x->data,
                        .experts = y->data,
                        .width = disp_width_bytes(x),
                        .narrow = x->dtype == MOE_BF16,
                        .unit = element};
    if (p->width % 16 == 0 && (uintptr_t)x->data % 16 == 0 && (uintptr_t)y->data % 16 == 0) p->unit = 16;
}

static moe_status move(const deepep *me, const moe_move_args *args, const deepep_routing *by, moe_err *err) {
    const deepep_grid grid = grid_of(me, args->stream);
    deepep_move_call call = {.rank = memory_rank(me->memory, &me->shape, me->d.me),
                             .by = *by,
                             .n_planes = args->n_planes,
                             .groups = me->d.groups,
                             .offsets = args->rows->dev_offsets,
                             .counts = args->rows->dev_counts,
                             .n = args->n_planes ? args->planes[0].token_order.shape[0] : 0};
    for (uint32_t i = 0; i < args->n_planes; i++) fill_plane(&args->planes[i], &call.planes[i]);
    if (disp_present(args->slot_scalar)) {
        call.slots = args->slot_scalar->data;
        call.rows = args->row_scalar->data;
    }
    deepep_place(&call);
    return args->direction == MOE_DISPATCH ? deepep_dispatch(&grid, &call, NULL, err)
                                           : deepep_combine(&grid, &call, NULL, err);
}

static moe_status count_sent(const deepep *me, const moe_move_args *args, const deepep_routing *by, moe_err *err) {
    const int out = args->direction == MOE_DISPATCH;
    int64_t width = 0;
    for (uint32_t i = 0; i < args->n_planes; i++) width += disp_width_bytes(&args->planes[i].token_order);
    moe_status s = disp_count_sent(&me->d, &me->ops, args, out ? by->out_rows : by->in_rows, me->d.members, width, err);
    if (s == MOE_OK && disp_present(args->slot_scalar))
        s = disp_count_sent(&me->d, &me->ops, args, out ? by->out_slots : by->in_slots, me->d.members, 4, err);
    return s;
}

static moe_status deepep_exchange(const void *self, const moe_move_args *args, moe_err *err) {
    const deepep *me = self;
    const deepep_routing by = deepep_routing_at(&me->shape, args->handle);
    moe_status s = memory_poll(me->memory, err);
    if (s == MOE_OK) s = disp_check_move(&me->d, args, -1, err);
    if (s == MOE_OK) s = disp_check_staged(&me->d, args, err);
    if (s == MOE_OK) s = move(me, args, &by, err);
    if (s == MOE_OK) s = count_sent(me, args, &by, err);
    return disp_end_all(&me->d, s, err);
}

static moe_status deepep_nothing(const void *self, const moe_move_args *args, moe_err *err) {
    (void)self, (void)args, (void)err;
    return MOE_OK;
}

static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = deepep_create,
                                        .destroy = deepep_destroy,
                                        .needs = deepep_needs,
                                        .layout = deepep_layout,
                                        .pack = deepep_nothing,
                                        .exchange = deepep_exchange,
                                        .unpack = deepep_nothing};
static const moe_option options[] = {
    {"blocks", "int 1..128", "32", "thread blocks of a movement: they hold that many places of the GPU while it lasts"},
    {"timeout_s", "float 0..1000000", "600", "seconds that a member may keep the others waiting; 0 = for ever"}};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "dispatcher",
                              .id = "deepep",
                              .device = "cuda",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary =
                                  "A token crosses once to each rank of its experts, into that rank's window; "
                                  "sums come back as one row. Needs windows between all ranks of its group",
                              .options = options,
                              .n_options = sizeof options / sizeof options[0],
                              .flags = MOE_ASYNC | MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
