/* Runs of one dispatcher on thread ranks. See bench_dispatch.h. */
#include "bench_dispatch.h"

#include <moe/ops.h>
#include <moe/options.h>
#include <moe/random.h>
#include <stdlib.h>
#include <string.h>
#include <util/clock.h>

#include "errors.h"
#include "ranks.h"

typedef struct span {
    double begin, end;
} span;

typedef struct run {
    const bench_dispatch_cfg *cfg;
    const part_ref *dispatcher;
    const part_ref *layers; /* [1] of parts_cfg; not used */
    int32_t *ids;           /* [ranks, tokens, top_k] */
    span *spans;            /* [ranks] of the call that is being timed */
    bench_dispatch_result *result;
} run;

/* One rank's instances and memory. */
typedef struct bench_rank {
    run *r;
    uint32_t rank, reserved;
    parts *parts;
    void *stream, *groups[2];
    moe_dispatcher_needs needs;
    moe_rows rows;
    moe_tensor ids, offsets, counts, slots, row_scalars;
    moe_plane plane;
    moe_layout_args layout;
    moe_move_args move;
    uint64_t sent, sent_far;
    void *copy_from; /* [landing rows] */
    uint64_t copy_bytes;
    int what; /* DISPATCH_* */
    moe_status status;
    moe_err err;
} bench_rank;

/* ---- set-up ---- */
/* Deals k experts a token; a deck that has fewer left is put away. */
static void deal(const bench_dispatch_cfg *cfg, uint32_t rank, int32_t *ids, int32_t *deck) {
    const moe_random_key key = moe_random_key_make(1, MOE_RANDOM_DATA, "bench.dispatch");
    uint32_t left = 0;
    uint64_t drawn = (uint64_t)rank << 40;
    for (int64_t t = 0; t < cfg->tokens; t++) {
        if (left < cfg->top_k) {
            for (uint32_t e = 0; e < cfg->experts; e++) deck[e] = (int32_t)e;
            left = cfg->experts;
        }
        for (uint32_t j = 0; j < cfg->top_k; j++) {
            const uint32_t i = moe_random_words(key, drawn++, 0).v[0] % left;
            ids[t * cfg->top_k + j] = deck[i];
            deck[i] = deck[--left];
        }
    }
}

static moe_status tensor(bench_rank *b, moe_tensor *t, int32_t dtype, int32_t ndim, int64_t rows, int64_t width,
                         moe_err *err) {
    const parts *p = b->parts;
    *t = (moe_tensor){.dtype = dtype, .ndim = ndim, .shape = {rows, width, 1, 1}};
    return p->device->alloc(p->device_self, MOE_SPACE_DEVICE, (uint64_t)(rows * width) * 8 + 64, &t->data, err);
}

static void tensor_free(bench_rank *b, moe_tensor *t) {
    const parts *p = b->parts;
    p->device->free(p->device_self, MOE_SPACE_DEVICE, t->data, (uint64_t)(t->shape[0] * t->shape[1]) * 8 + 64);
}

static moe_status block(bench_rank *b, uint64_t bytes, void **out, moe_err *err) {
    const parts *p = b->parts;
    return bytes ? p->device->alloc(p->device_self, MOE_SPACE_DEVICE, bytes, out, err) : MOE_OK;
}

static moe_status open_parts(bench_rank *b, const moe_bootstrap *bootstrap, moe_err *err) {
    const bench_dispatch_cfg *cfg = b->r->cfg;
    const parts_cfg pc = {.device = cfg->device,
                          .comm = cfg->comm,
                          .dispatcher = *b->r->dispatcher,
                          .routers = b->r->layers,
                          .n_layers = 1,
                          .rank = b->rank,
                          .world = cfg->ranks,
                          .bootstrap = bootstrap,
                          .log = plugin_log};
    moe_status s = parts_create(&b->parts, &pc, err);
    const parts *p = b->parts;
    if (!s) s = p->device->stream_create(p->device_self, "bench", &b->stream, err);
    for (int i = 0; i < 2 && !s; i++)
        s = p->comm->group_split(p->comm_self, NULL, i ? "layout" : "ep", 0, &b->groups[i], err);
    if (s) return s;
    moe_dispatcher_cfg dc = {.top_k = cfg->top_k,
                             .n_experts = cfg->experts,
                             .ep_rank = b->rank,
                             .ep_size = cfg->ranks,
                             .etp_size = 1,
                             .hidden = cfg->hidden,
                             .max_tokens = cfg->tokens,
                             .row_align = 1,
                             .node_size = cfg->node_size,
                             .group = b->groups[0],
                             .layout_group = b->groups[1]};
    s = parts_add_dispatcher(b->parts, &dc, err);
    return s ? s : parts_dispatcher_needs(b->parts, 0, &b->needs, err);
}

static moe_status make_memory(bench_rank *b, moe_err *err) {
    const bench_dispatch_cfg *cfg = b->r->cfg;
    const int64_t n = b->needs.max_rows, slots = cfg->tokens * cfg->top_k;
    moe_status s = tensor(b, &b->ids, MOE_I32, 2, cfg->tokens, cfg->top_k, err);
    if (!s) s = tensor(b, &b->offsets, MOE_I64, 1, (int64_t)b->needs.groups + 1, 1, err);
    if (!s) s = tensor(b, &b->counts, MOE_I64, 1, b->needs.groups, 1, err);
    if (!s) s = tensor(b, &b->slots, MOE_F32, 2, cfg->tokens, cfg->top_k, err);
    if (!s) s = tensor(b, &b->row_scalars, MOE_F32, 1, n, 1, err);
    if (!s) s = tensor(b, &b->plane.token_order, cfg->dtype, 2, cfg->tokens, cfg->hidden, err);
    if (!s) s = tensor(b, &b->plane.expert_order, cfg->dtype, 2, n, cfg->hidden, err);
    b->rows = (moe_rows){.size = sizeof b->rows, .groups = b->needs.groups, .max = n, .host_total = -1};
    if (!s) s = block(b, b->needs.handle, &b->layout.handle, err);
    if (!s) s = block(b, b->needs.workspace, &b->layout.workspace, err);
    if (s) return s;
    b->rows.dev_offsets = b->offsets.data;
    b->rows.dev_counts = b->counts.data;
    memcpy(b->ids.data, b->r->ids + b->rank * slots, (size_t)slots * sizeof(int32_t));
    for (int64_t i = 0; i < slots; i++) ((float *)b->slots.data)[i] = 1.0f / (float)cfg->top_k;
    memset(b->plane.token_order.data, 0x3c, (size_t)(cfg->tokens * cfg->hidden) * (cfg->dtype == MOE_F32 ? 4 : 2));
    return MOE_OK;
}

static void set_calls(bench_rank *b) {
    b->layout.size = sizeof b->layout;
    b->layout.stream = b->stream;
    b->layout.expert_ids = &b->ids;
    b->layout.rows = &b->rows;
    b->layout.offsets = &b->offsets;
    b->layout.counts = &b->counts;
    b->move = (moe_move_args){.size = sizeof b->move,
                              .n_planes = 1,
                              .stream = b->stream,
                              .handle = b->layout.handle,
                              .workspace = b->layout.workspace,
                              .planes = &b->plane,
                              .rows = &b->rows,
                              .slot_scalar = &b->slots,
                              .row_scalar = &b->row_scalars,
                              .sent = &b->sent,
                              .sent_far = &b->sent_far};
}

static void close_rank(bench_rank *b) {
    const parts *p = b->parts;
    if (!p) return;
    moe_tensor *all[] = {
        &b->ids, &b->offsets, &b->counts, &b->slots, &b->row_scalars, &b->plane.token_order, &b->plane.expert_order};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_free(b, all[i]);
    p->device->free(p->device_self, MOE_SPACE_DEVICE, b->layout.handle, b->needs.handle);
    p->device->free(p->device_self, MOE_SPACE_DEVICE, b->layout.workspace, b->needs.workspace);
    p->device->free(p->device_self, MOE_SPACE_DEVICE, b->copy_from, b->copy_bytes);
    parts_drop_layers(b->parts);
    for (int i = 1; i >= 0; i--) p->comm->group_destroy(p->comm_self, b->groups[i]);
    if (b->stream) p->device->stream_destroy(p->device_self, b->stream);
    parts_destroy(b->parts);
}

/* ---- what is timed ---- */
static int64_t landing(const bench_rank *b) {
    return ((const int64_t *)b->offsets.data)[b->needs.groups];
}

static moe_status copy_past_caches(bench_rank *b) {
    const parts *p = b->parts;
    const moe_op *op = parts_op(p, MOE_OP_COPY);
    const moe_copy_attr attr = {.size = sizeof attr, .streaming = 1};
    const int64_t n = landing(b) * (int64_t)b->r->result->bytes / 4;
    const moe_tensor from = {.data = b->copy_from, .dtype = MOE_F32, .ndim = 1, .shape = {n, 1, 1, 1}};
    moe_tensor to = from;
    to.data = b->plane.expert_order.data;
    const moe_op_args args = {
        .size = sizeof args, .n_in = 1, .n_out = 1, .stream = b->stream, .in = &from, .out = &to, .attr = &attr};
    if (!op) return moe_fail(&b->err, MOE_E_UNSUPPORTED, "the device has no %s", MOE_OP_COPY);
    return op->forward(p->device_self, &args, &b->err);
}

static void call(bench_rank *b) {
    const moe_dispatcher_v0 *table = b->parts->dispatcher;
    const void *self = b->parts->dispatcher_self[0];
    const uint64_t bytes = b->r->result->bytes;
    const uint32_t phases = b->what == DISPATCH_OUT ? b->needs.dispatch_phases : b->needs.combine_phases;
    moe_status (*const fns[3])(const void *, const moe_move_args *, moe_err *) = {table->pack, table->exchange,
                                                                                  table->unpack};
    if (b->what == DISPATCH_COPY)
        memcpy(b->plane.expert_order.data, b->copy_from, (size_t)landing(b) * bytes);
    else if (b->what == DISPATCH_STREAM)
        b->status = copy_past_caches(b);
    else if (b->what == DISPATCH_LAYOUT)
        b->status = table->layout(self, &b->layout, &b->err);
    else
        for (int i = 0; i < 3 && !b->status; i++)
            if (phases & (1u << i)) b->status = fns[i](self, &b->move, &b->err);
}

static void timed(void *arg) {
    bench_rank *b = arg;
    const parts *p = b->parts;
    b->status = p->comm->barrier(p->comm_self, b->groups[0], b->stream, &b->err);
    b->r->spans[b->rank].begin = clock_seconds();
    if (!b->status) call(b);
    b->r->spans[b->rank].end = clock_seconds();
}

static void keep(run *r, int what) {
    span all = r->spans[0];
    for (uint32_t i = 1; i < r->cfg->ranks; i++) {
        if (r->spans[i].begin < all.begin) all.begin = r->spans[i].begin;
        if (r->spans[i].end > all.end) all.end = r->spans[i].end;
    }
    const double took = all.end - all.begin;
    double *best = &r->result->seconds[what];
    if (*best <= 0 || took < *best) *best = took;
}

static moe_status once(bench_rank *b, const moe_bootstrap *bootstrap, int what, moe_err *err) {
    const parts *p = b->parts;
    b->what = what;
    b->status = MOE_OK;
    b->move.direction = what == DISPATCH_BACK ? MOE_COMBINE : MOE_DISPATCH;
    b->sent = b->sent_far = 0;
    moe_status s = p->device->call_host(p->device_self, b->stream, timed, b, err);
    if (!s) s = p->device->stream_sync(p->device_self, b->stream, err);
    if (!s && b->status) {
        *err = b->err;
        s = b->status;
    }
    if (!s) s = ranks_meet(bootstrap, err);
    if (!s && b->rank == 0) keep(b->r, what);
    return s ? s : ranks_meet(bootstrap, err);
}

/* ---- volume ---- */
typedef struct volume {
    uint64_t rows, entries;
} volume;

/* Rows and slots of `rank` for the experts of ranks [low, high): one row a token that has one there. */
static volume crossing(const run *r, uint32_t rank, uint32_t low, uint32_t high) {
    const bench_dispatch_cfg *cfg = r->cfg;
    const uint32_t groups = cfg->experts / cfg->ranks;
    volume v = {0, 0};
    for (int64_t t = 0; t < cfg->tokens; t++) {
        const int32_t *ids = r->ids + (rank * cfg->tokens + t) * cfg->top_k;
        uint64_t n = 0;
        for (uint32_t j = 0; j < cfg->top_k; j++)
            n += (uint32_t)ids[j] / groups >= low && (uint32_t)ids[j] / groups < high;
        v.rows += n > 0;
        v.entries += n;
    }
    return v;
}

/* Of all ranks together, so both directions are alike: k copies (alltoall), one a rank (deepep), one a node and inside
 * of it one a rank (hier). */
static void set_formulas(const run *r) {
    const bench_dispatch_cfg *cfg = r->cfg;
    const char *id = r->dispatcher->desc->id;
    const uint32_t n = cfg->ranks, node = cfg->node_size && strcmp(id, "hier") == 0 ? cfg->node_size : n;
    const uint64_t bytes = r->result->bytes;
    uint64_t all = 0, far = 0;
    for (uint32_t rank = 0; rank < n; rank++)
        for (uint32_t b = 0; b < n; b += node) {
            const int home = rank / node == b / node;
            const uint32_t carrier = b + rank % node; /* holds the row on that node */
            const volume over = crossing(r, rank, b, b + node);
            if (!home) far += over.rows * bytes + 4 * over.entries;
            for (uint32_t m = b; m < b + node; m++) {
                const volume v = crossing(r, rank, m, m + 1);
                if (m != carrier) all += (strcmp(id, "alltoall") ? v.rows : v.entries) * bytes + 4 * v.entries;
            }
        }
    const int known = strcmp(id, "alltoall") == 0 || strcmp(id, "deepep") == 0 || strcmp(id, "hier") == 0;
    for (int i = 0; i < 2; i++) {
        r->result->formula[i] = known ? all + far : UINT64_MAX;
        r->result->formula_far[i] = strcmp(id, "hier") == 0 ? far : UINT64_MAX;
    }
}

static moe_status add_up(bench_rank *b, const moe_bootstrap *bootstrap, int direction, moe_err *err) {
    const uint64_t mine[3] = {b->sent, b->sent_far, (uint64_t)landing(b)};
    uint64_t(*all)[3] = calloc(b->r->cfg->ranks, sizeof *all);
    if (!all) return moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", b->r->cfg->ranks);
    moe_status s = bootstrap->all_gather(bootstrap->ctx, mine, sizeof mine, all, err);
    bench_dispatch_result *r = b->r->result;
    if (!s && b->rank == 0) {
        r->sent[direction] = r->sent_far[direction] = 0;
        r->rows = 0;
        for (uint32_t i = 0; i < b->r->cfg->ranks; i++) {
            r->sent[direction] += all[i][0];
            r->sent_far[direction] += all[i][1];
            r->rows += (int64_t)all[i][2];
        }
    }
    free(all);
    return s;
}

/* ---- a run ---- */
static moe_status measure(bench_rank *b, const moe_bootstrap *bootstrap, moe_err *err) {
    const bench_dispatch_cfg *cfg = b->r->cfg;
    moe_status s = once(b, bootstrap, DISPATCH_LAYOUT, err);
    if (s) return s;
    const size_t bytes = (size_t)landing(b) * b->r->result->bytes;
    b->copy_bytes = bytes + 64;
    s = block(b, b->copy_bytes, &b->copy_from, err); /* the same kind of pages */
    if (s) return s;
    memset(b->copy_from, 1, bytes);
    memset(b->plane.expert_order.data, 1, bytes);
    for (int64_t i = 0; i < cfg->tries && !s; i++) {
        s = once(b, bootstrap, DISPATCH_COPY, err);
        if (!s) s = once(b, bootstrap, DISPATCH_STREAM, err);
        if (!s) s = once(b, bootstrap, DISPATCH_LAYOUT, err);
        if (!s) s = once(b, bootstrap, DISPATCH_OUT, err);
        if (!s && i == 0) s = add_up(b, bootstrap, MOE_DISPATCH, err);
        if (!s) s = once(b, bootstrap, DISPATCH_BACK, err);
        if (!s && i == 0) s = add_up(b, bootstrap, MOE_COMBINE, err);
    }
    return s;
}

static moe_status run_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    run *r = arg;
    bench_rank b = {.r = r, .rank = rank, .err = {.size = sizeof b.err}};
    b.needs.size = sizeof b.needs;
    moe_status s = open_parts(&b, bootstrap, err);
    if (!s) s = make_memory(&b, err);
    if (!s) set_calls(&b);
    if (!s) s = measure(&b, bootstrap, err);
    if (s && b.parts && b.parts->comm_self) b.parts->comm->abort(b.parts->comm_self, err->msg);
    if (!s) s = ranks_meet(bootstrap, err);
    close_rank(&b);
    return s;
}

moe_status bench_dispatch_run(const bench_dispatch_cfg *cfg, const part_ref *dispatcher, bench_dispatch_result *result,
                              moe_err *err) {
    const part_ref none = {0};
    run r = {.cfg = cfg, .dispatcher = dispatcher, .layers = &none, .result = result};
    const size_t slots = (size_t)(cfg->tokens * cfg->top_k);
    int32_t *deck = malloc(cfg->experts * sizeof *deck);
    moe_status s = MOE_E_NOMEM;
    r.ids = malloc(cfg->ranks * slots * sizeof *r.ids + 1);
    r.spans = calloc(cfg->ranks, sizeof *r.spans);
    result->bytes = (uint64_t)cfg->hidden * (cfg->dtype == MOE_F32 ? 4 : 2);
    if (r.ids && r.spans && deck) {
        for (uint32_t i = 0; i < cfg->ranks; i++) deal(cfg, i, r.ids + i * slots, deck);
        set_formulas(&r);
        s = ranks_run(cfg->ranks, run_rank, &r, err);
    } else
        moe_fail(err, s, "out of memory for the routing of %u ranks", cfg->ranks);
    free(deck);
    free(r.ids);
    free(r.spans);
    return s;
}
