/* Dispatchers: the configuration as read and checked, the services, and how many rows there may be. See base.h. */
#include "base.h"

#include <inttypes.h>

/* ---- rows at most ---- */
static int ceil_to(int64_t x, int64_t step, int64_t *out) {
    if (__builtin_add_overflow(x, step - 1, out)) return 1;
    *out = *out / step * step;
    return 0;
}

typedef struct worst {
    int64_t tokens, choices, groups, align, min_rows; /* choices: of all tokens together */
} worst;

/* Rows where `full` experts have more than min_rows and share all choices, and the others have min_rows. An expert
 * without a choice pads nothing, and what all have together is a multiple of the alignment. */
static int rows_of(const worst *w, int64_t full, int64_t *out) {
    int64_t pad, most, least;
    if (__builtin_mul_overflow(disp_min(full, w->choices), w->align - 1, &pad) ||
        __builtin_add_overflow(w->choices, pad, out) || ceil_to(w->min_rows, w->align, &least) ||
        __builtin_mul_overflow(w->groups - full, least, &least))
        return 1;
    *out -= *out % w->align;
    if (!ceil_to(w->tokens, w->align, &most) && !__builtin_mul_overflow(most, full, &most) && most < *out) *out = most;
    return __builtin_add_overflow(*out, least, out);
}

int disp_worst_rows(int64_t tokens, int64_t choices, int64_t groups, int64_t align, int64_t min_rows, int64_t *out) {
    worst w = {.tokens = tokens, .groups = groups, .align = align, .min_rows = min_rows};
    int bad = __builtin_mul_overflow(tokens, disp_min(choices, groups), &w.choices);
    *out = 0;
    for (int64_t full = min_rows > 0 ? 0 : groups; full <= groups && !bad; full++) { /* without: all are full */
        int64_t rows;
        bad = rows_of(&w, full, &rows) || rows > INT64_MAX / 64;
        if (!bad && rows > *out) *out = rows;
    }
    return bad;
}

/* ---- configuration ---- */
static moe_status check_sizes(const disp *d, moe_err *err) {
    if (d->top_k < 1 || d->n_experts < 1 || d->hidden < 1 || d->max_tokens < 0 || d->align < 1)
        return moe_fail(err, MOE_E_ARG,
                        "layer %u: top_k %u, n_experts %u, hidden %" PRId64 ", max_tokens %" PRId64
                        ", row_align %" PRId64 ": all must be positive",
                        d->layer, d->top_k, d->n_experts, d->hidden, d->max_tokens, d->align);
    if (d->min_rows < 0)
        return moe_fail(err, MOE_E_ARG, "layer %u: min_rows is %" PRId64 ", want at least 0", d->layer, d->min_rows);
    if (d->ep_size < 1 || d->n_experts % d->ep_size)
        return moe_fail(err, MOE_E_ARG, "layer %u: %u experts are not a multiple of ep_size %u", d->layer, d->n_experts,
                        d->ep_size);
    if (d->ep_rank >= d->ep_size || d->etp_rank >= d->etp_size)
        return moe_fail(err, MOE_E_ARG, "layer %u: ep_rank %u of %u, etp_rank %u of %u", d->layer, d->ep_rank,
                        d->ep_size, d->etp_rank, d->etp_size);
    if (d->overflow != MOE_OVERFLOW_STOP && d->overflow != MOE_OVERFLOW_DROP)
        return moe_fail(err, MOE_E_ARG, "layer %u: overflow is %d, want %d (stop) or %d (drop)", d->layer, d->overflow,
                        MOE_OVERFLOW_STOP, MOE_OVERFLOW_DROP);
    return MOE_OK;
}

/* max_rows, max_landed. The limit also bounds bytes: rows * hidden * 4 and slots * members fit in 64 bits. */
static moe_status count_rows(disp *d, moe_err *err) {
    int64_t tokens, bytes, slots;
    if (__builtin_mul_overflow((int64_t)d->members, d->max_tokens, &tokens) ||
        disp_worst_rows(tokens, d->top_k, d->groups, d->align, d->min_rows, &d->max_rows) ||
        __builtin_mul_overflow(tokens, (int64_t)d->top_k * 64, &slots) ||
        __builtin_add_overflow(d->max_rows, slots, &slots) || __builtin_add_overflow(d->hidden, 32, &bytes) ||
        __builtin_mul_overflow(bytes, 16, &bytes) || __builtin_mul_overflow(bytes, slots, &bytes))
        return moe_fail(err, MOE_E_ARG,
                        "layer %u: rows of %u x %" PRId64 " tokens, top_k %u, hidden %" PRId64
                        ", %u experts aligned to %" PRId64 ", at least %" PRId64 " each, do not fit in 64 bits",
                        d->layer, d->members, d->max_tokens, d->top_k, d->hidden, d->groups, d->align, d->min_rows);
    const int64_t least = d->groups * disp_align(d->min_rows, d->align);
    if (d->recv_rows < 0 || (d->recv_rows > 0 && d->recv_rows < least))
        return moe_fail(err, MOE_E_ARG,
                        "layer %u: recv_rows is %" PRId64 "; want 0, or at least the %" PRId64
                        " that %u experts of min_rows %" PRId64 " aligned to %" PRId64 " take in any case",
                        d->layer, d->recv_rows, least, d->groups, d->min_rows, d->align);
    d->max_landed = tokens * disp_min(d->top_k, d->groups);
    if (d->recv_rows > 0) d->max_rows = disp_min(d->max_rows, d->recv_rows);
    d->max_landed = disp_min(d->max_landed, d->max_rows);
    return MOE_OK;
}

static moe_status find_device(disp *d, const moe_host *host, moe_err *err) {
    const moe_device_service *s =
        MOE_REACH(host, moe_host, service) && host->service ? host->service(host->ctx, "moe.device/0") : NULL;
    if (!s || !s->table)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s needs service moe.device/0; this host has none", d->name);
    d->device = s->table;
    d->dev = s->self;
    d->async = (s->flags & MOE_ASYNC) != 0;
    moe_device_info info = {.size = sizeof info};
    const moe_status status = d->device->info(d->dev, &info, err);
    d->alignment = info.alignment ? info.alignment : 1;
    if (MOE_REACH(d->device, moe_device_v0, extension) && d->device->extension)
        d->pool = d->device->extension(d->dev, "moe.parallel/0");
    if (d->pool && d->pool->threads < 2) d->pool = NULL;
    return status;
}

static moe_status check_group(const disp *d, const char *name, void *group, moe_err *err) {
    uint32_t n = 0, index = 0;
    if (!group) return moe_fail(err, MOE_E_ARG, "layer %u: %u members, but %s is NULL", d->layer, d->members, name);
    const moe_status s = d->comm->group_info(d->comm_self, group, &n, &index, err);
    if (s != MOE_OK || (n == d->members && index == d->me)) return s;
    return moe_fail(err, MOE_E_ARG,
                    "layer %u: this is member %u of %s, which has %u; by ep_rank %u of %u and etp_rank %u of %u it is "
                    "member %u of %u",
                    d->layer, index, name, n, d->ep_rank, d->ep_size, d->etp_rank, d->etp_size, d->me, d->members);
}

static moe_status find_comm(disp *d, const moe_host *host, const moe_dispatcher_cfg *cfg, moe_err *err) {
    if (d->members == 1) return MOE_OK;
    const moe_comm_service *s = host->service(host->ctx, "moe.comm/0");
    if (!s || !s->table)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s over %u ranks needs service moe.comm/0; this host has none",
                        d->name, d->members);
    d->comm = s->table;
    d->comm_self = s->self;
    d->group = cfg->group;
    d->layout_group = cfg->layout_group;
    const moe_status status = check_group(d, "group", d->group, err);
    return status == MOE_OK ? check_group(d, "layout_group", d->layout_group, err) : status;
}

moe_status disp_open(disp *d, const char *name, const moe_dispatcher_cfg *given, const moe_host *host, moe_err *err) {
    moe_dispatcher_cfg cfg = {.etp_size = 0};
    memcpy(&cfg, given, given->size < sizeof cfg ? given->size : sizeof cfg);
    if (!cfg.etp_size) cfg.etp_size = 1;
    *d = (disp){.name = name,
                .ep_rank = cfg.ep_rank,
                .ep_size = cfg.ep_size,
                .etp_rank = cfg.etp_rank,
                .etp_size = cfg.etp_size,
                .n_experts = cfg.n_experts,
                .top_k = cfg.top_k,
                .layer = cfg.layer,
                .node_size = cfg.node_size,
                .first_rank = cfg.first_rank,
                .overflow = cfg.overflow,
                .hidden = cfg.hidden,
                .max_tokens = cfg.max_tokens,
                .align = cfg.row_align,
                .min_rows = cfg.min_rows,
                .recv_rows = cfg.recv_rows,
                .shared = cfg.shared};
    moe_status s = check_sizes(d, err);
    if (s != MOE_OK) return s;
    d->groups = cfg.n_experts / cfg.ep_size;
    d->first = cfg.ep_rank * d->groups;
    if (__builtin_mul_overflow(cfg.ep_size, cfg.etp_size, &d->members))
        return moe_fail(err, MOE_E_ARG, "layer %u: ep_size %u times etp_size %u", d->layer, cfg.ep_size, cfg.etp_size);
    d->me = cfg.ep_rank * cfg.etp_size + cfg.etp_rank;
    s = count_rows(d, err);
    if (s == MOE_OK) s = find_device(d, host, err);
    d->tells = d->async && cfg.host_counts;
    d->fixed = (d->async && !cfg.host_counts) || moe_kv_is(cfg.kv, cfg.n_kv, "slots", "fixed");
    return s == MOE_OK ? find_comm(d, host, &cfg, err) : s;
}

/* ---- what the host knows ---- */
static moe_status bring(const disp *d, const moe_layout_args *args, uint64_t at, uint64_t bytes, moe_err *err) {
    const uint64_t groups = d->groups;
    const struct {
        void *to;
        const void *from;
        uint64_t bytes;
    } all[] = {{args->host_offsets, args->offsets->data, 8 * (groups + 1)},
               {args->host_counts, args->counts->data, 8 * groups},
               {(char *)args->host_handle + at, (const char *)args->handle + at, bytes}};
    moe_status s = MOE_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && s == MOE_OK; i++)
        if (all[i].bytes) s = d->device->copy(d->dev, args->stream, all[i].to, all[i].from, all[i].bytes, err);
    if (s == MOE_OK) s = d->device->stream_sync(d->dev, args->stream, err);
    return s == MOE_OK && d->comm ? d->comm->poll(d->comm_self, err) : s; /* numbers of an exchange that was ended */
}

moe_status disp_tell(const disp *d, const moe_layout_args *args, uint64_t at, uint64_t bytes, moe_err *err) {
    const int64_t *offsets = d->async ? args->host_offsets : args->offsets->data;
    args->rows->host_total = -1;
    if (d->async && !d->tells) return MOE_OK;
    const moe_status s = d->async ? bring(d, args, at, bytes, err) : MOE_OK;
    if (s != MOE_OK) return s;
    if (offsets[d->groups] > args->rows->max)
        return moe_fail(err, MOE_E_OVERFLOW,
                        "layer %u: %" PRId64 " rows needed (aligned to %" PRId64 "), rows.max is %" PRId64, d->layer,
                        offsets[d->groups], d->align, args->rows->max);
    args->rows->host_total = offsets[d->groups];
    return MOE_OK;
}

moe_status disp_copy(const disp *d, void *stream, void *to, const void *from, int64_t bytes, moe_err *err) {
    if (bytes <= 0) return MOE_OK;
    if (d->async) return d->device->copy(d->dev, stream, to, from, (uint64_t)bytes, err);
    memcpy(to, from, (size_t)bytes); /* this is the lane's worker: a copy of the device would wait behind it */
    return MOE_OK;
}

uint64_t disp_place(const disp *d, uint64_t *end, uint64_t bytes) {
    const uint64_t at = (*end + d->alignment - 1) / d->alignment * d->alignment;
    *end = at + bytes;
    return at;
}

moe_status disp_end_all(const disp *d, moe_status status, const moe_err *err) {
    if (status != MOE_OK && d->comm) d->comm->abort(d->comm_self, err->msg);
    return status;
}

void disp_sent(const disp *d, const moe_move_args *args, uint32_t m, uint64_t bytes) {
    const uint32_t size = d->node_size;
    if (args->sent) *args->sent += bytes;
    if (!MOE_REACH(args, moe_move_args, sent_far) || !args->sent_far || !size) return;
    if ((d->first_rank + m) / size != (d->first_rank + d->me) / size) *args->sent_far += bytes;
}
