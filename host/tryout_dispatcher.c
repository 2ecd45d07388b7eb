/* probe of a dispatcher: layout, dispatch, identity experts, combine, on one rank or on several that are threads. The
 * weight of a slot travels with its row; the identity expert multiplies its row by it, so that
 *   combined[t] = sum over the slots of token t with a row, in order, of weight * hidden[t].
 * Of the ranks that share an expert (--etp) the first gives all of it, the others zeros. */
#include <inttypes.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "tryout.h"

enum { SENT_BYTES = 2 * sizeof(int64_t) };

typedef struct rank_try {
    tryout_rank rank;
    tryout_tensor in_hidden, in_ids, in_weights;
    int32_t dtype; /* of hidden rows */
    moe_dispatcher_needs needs;
    void *group, *layout_group; /* NULL with one rank */
    void *handle, *workspace;
    uint64_t *sent; /* [2] bytes given to others, out and back; host memory of the device */
    moe_rows rows;
    moe_tensor offsets, counts, row_weights, slot_weights, ids;
    moe_plane plane, back;
    moe_layout_args layout;
    moe_move_args move;
    moe_status (*phase)(const void *self, const moe_move_args *args, moe_err *err);
    tryout_tensor out_rows, out_counts, out_combined, out_sent;
} rank_try;

typedef struct dispatcher_try {
    tryout *t;
    rank_try *ranks; /* [t->ranks] */
    int64_t hidden, top_k, tokens, experts, row_align;
    uint32_t ep, etp, members; /* of a group: ep * etp */
} dispatcher_try;

/* ---- input ---- */
static moe_status read_rank(dispatcher_try *d, uint32_t rank, moe_err *err) {
    tryout *t = d->t;
    rank_try *r = &d->ranks[rank];
    char hidden[48], ids[48], weights[48];
    int64_t experts = command_int(t->args, "experts", 0);
    snprintf(hidden, sizeof hidden, "rank.%u.hidden", rank);
    snprintf(ids, sizeof ids, "rank.%u.expert_ids", rank);
    snprintf(weights, sizeof weights, "rank.%u.weights", rank);
    moe_status status = tryout_read_real(t, hidden, "[T,h]", 2, 0, &r->in_hidden, err);
    if (!status)
        status = tryout_read_whole(t, ids, "[T,k]", 2, 0, MOE_I32, -1, experts ? experts - 1 : INT32_MAX - 1,
                                   &r->in_ids, err);
    if (!status) status = tryout_read_real(t, weights, "[T,k]", 2, 0, &r->in_weights, err);
    if (status) return status;
    r->dtype = tryout_file_dtype(t, hidden);
    if (rank == 0) d->hidden = r->in_hidden.shape[1];
    if (rank == 0) d->top_k = r->in_ids.shape[1];
    int64_t tokens = r->in_hidden.shape[0];
    if (tokens > d->tokens) d->tokens = tokens;
    status = tryout_check_shape(t, &r->in_hidden, tokens, d->hidden, 0, err);
    if (!status) status = tryout_check_shape(t, &r->in_ids, tokens, d->top_k, 0, err);
    if (!status) status = tryout_check_shape(t, &r->in_weights, tokens, d->top_k, 0, err);
    const int32_t *id = r->in_ids.data;
    for (int64_t i = 0; i < r->in_ids.elements; i++)
        if (id[i] >= d->experts) d->experts = (int64_t)id[i] + 1;
    if (!status && r->dtype != d->ranks[0].dtype)
        status = moe_fail(err, MOE_E_DATA, "%.300s: %s is %s, rank.0.hidden is %s", t->in, hidden,
                          st_dtype_name(r->dtype), st_dtype_name(d->ranks[0].dtype));
    return status;
}

static moe_status read_input(dispatcher_try *d, moe_err *err) {
    tryout *t = d->t;
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < t->ranks && !status; i++) status = read_rank(d, i, err);
    if (!status) {
        char reads[96];
        snprintf(reads, sizeof reads, "rank.R.hidden, rank.R.expert_ids and rank.R.weights of R = 0..%u (--ranks)",
                 t->ranks - 1);
        status = tryout_refuse_rest(t, reads, err);
    }
    if (status) return status;
    d->etp = (uint32_t)command_int(t->args, "etp", 1);
    if (t->ranks % d->etp) return moe_fail(err, MOE_E_ARG, "--etp %u does not divide --ranks %u", d->etp, t->ranks);
    d->ep = (uint32_t)command_int(t->args, "ep", t->ranks / d->etp);
    d->members = d->ep * d->etp;
    d->row_align = command_int(t->args, "row-align", 1);
    if (t->ranks % d->members && d->etp > 1)
        return moe_fail(err, MOE_E_ARG, "--ep %u times --etp %u does not divide --ranks %u", d->ep, d->etp, t->ranks);
    if (t->ranks % d->ep) return moe_fail(err, MOE_E_ARG, "--ep %u does not divide --ranks %u", d->ep, t->ranks);
    int64_t given = command_int(t->args, "experts", 0);
    if (d->experts < d->top_k) d->experts = d->top_k;
    d->experts = given ? given : (d->experts + d->ep - 1) / d->ep * d->ep;
    if (d->experts % d->ep)
        return moe_fail(err, MOE_E_ARG, "--experts %" PRId64 " is no multiple of the %u ranks that share them (--ep)",
                        d->experts, d->ep);
    if (d->hidden < 1 || d->top_k < 1)
        return moe_fail(err, MOE_E_DATA,
                        "%.300s: hidden size %" PRId64 " and %" PRId64 " choices; want at least 1 each", t->in,
                        d->hidden, d->top_k);
    if (d->top_k > d->experts)
        return moe_fail(err, MOE_E_DATA, "%.300s: %" PRId64 " choices a token of %" PRId64 " experts (--experts)",
                        t->in, d->top_k, d->experts);
    return MOE_OK;
}

/* ---- one rank ---- */
/* The ranks of one group are neighbours. */
static moe_status make_groups(const dispatcher_try *d, rank_try *r, uint32_t rank, moe_err *err) {
    const parts *p = r->rank.parts;
    if (d->members == 1) return MOE_OK;
    const uint32_t color = rank / d->members;
    moe_status status = p->comm->group_split(p->comm_self, NULL, "ep", color, &r->group, err);
    if (!status) status = p->comm->group_split(p->comm_self, NULL, "ep.layout", color, &r->layout_group, err);
    return status;
}

static moe_status open_rank(const dispatcher_try *d, rank_try *r, uint32_t rank, const moe_bootstrap *bootstrap,
                            moe_err *err) {
    tryout *t = d->t;
    moe_status status = tryout_rank_open(&r->rank, t, rank, bootstrap, err);
    if (!status) status = make_groups(d, r, rank, err);
    if (status) return status;
    const char *overflow = command_value(t->args, "overflow");
    moe_dispatcher_cfg cfg = {.layer = t->layer,
                              .top_k = (uint32_t)d->top_k,
                              .n_experts = (uint32_t)d->experts,
                              .ep_rank = rank % d->members / d->etp,
                              .ep_size = d->ep,
                              .etp_rank = rank % d->etp,
                              .etp_size = d->etp,
                              .hidden = d->hidden,
                              .max_tokens = d->tokens,
                              .row_align = d->row_align,
                              .min_rows = command_int(t->args, "min-rows", 0),
                              .recv_rows = command_int(t->args, "recv-rows", 0),
                              .overflow = overflow && !strcmp(overflow, "drop") ? MOE_OVERFLOW_DROP : MOE_OVERFLOW_STOP,
                              .node_size = (uint32_t)command_int(t->args, "node-size", 0),
                              .group = r->group,
                              .layout_group = r->layout_group,
                              .first_rank = rank / d->members * d->members};
    status = parts_add_dispatcher(r->rank.parts, &cfg, err);
    if (!status) status = parts_dispatcher_needs(r->rank.parts, t->layer, &r->needs, err);
    if (status) return status;
    if (r->needs.groups < 1 || r->needs.groups > d->experts || r->needs.max_rows < 0)
        return tryout_broken(t, err, "declares %u local experts of %" PRId64 " and %" PRId64 " rows", r->needs.groups,
                             d->experts, r->needs.max_rows);
    return MOE_OK;
}

static moe_status fill_memory(const dispatcher_try *d, rank_try *r, moe_err *err) {
    tryout_rank *k = &r->rank;
    const int64_t T = r->in_hidden.shape[0], N = r->needs.max_rows, G = r->needs.groups;
    tryout_tensor narrow = r->in_hidden;
    int64_t size;
    if (__builtin_mul_overflow(N, d->hidden, &size) || size > INT64_MAX / 8)
        return tryout_broken(d->t, err, "declares %" PRId64 " rows of %" PRId64 " elements", N, d->hidden);
    narrow.dtype = r->dtype;
    narrow.data = arena_alloc(&k->memory, tryout_bytes(r->dtype, narrow.elements) + 1);
    if (!narrow.data) return moe_fail(err, MOE_E_NOMEM, "out of memory for hidden rows");
    tryout_narrow(r->in_hidden.data, r->dtype, narrow.data, narrow.elements);
    moe_status status = tryout_upload(k, &narrow, &r->plane.token_order, err);
    if (!status) status = tryout_upload(k, &r->in_ids, &r->ids, err);
    if (!status) status = tryout_upload(k, &r->in_weights, &r->slot_weights, err);
    if (!status) status = tryout_make(k, &r->plane.expert_order, r->dtype, 2, N, d->hidden, 1, err);
    r->back.expert_order = r->plane.expert_order;
    if (!status) status = tryout_make(k, &r->back.token_order, r->dtype, 2, T, d->hidden, 1, err);
    if (!status) status = tryout_make(k, &r->row_weights, MOE_F32, 1, N, 1, 1, err);
    if (!status) status = tryout_make(k, &r->offsets, MOE_I64, 1, G + 1, 1, 1, err);
    if (!status) status = tryout_make(k, &r->counts, MOE_I64, 1, G, 1, 1, err);
    if (!status)
        status = k->parts->device->alloc(k->parts->device_self, MOE_SPACE_HOST, SENT_BYTES, (void **)&r->sent, err);
    if (!status && r->needs.handle) status = tryout_alloc(k, r->needs.handle, &r->handle, err);
    if (!status && r->needs.workspace) status = tryout_alloc(k, r->needs.workspace, &r->workspace, err);
    return status;
}

static const void *self_of(const rank_try *r) {
    return r->rank.parts->dispatcher_self[r->rank.t->layer];
}

static moe_status run_layout(void *ctx, moe_err *err) {
    rank_try *r = ctx;
    return r->rank.parts->dispatcher->layout(self_of(r), &r->layout, err);
}

static moe_status run_phase(void *ctx, moe_err *err) {
    rank_try *r = ctx;
    return r->phase(self_of(r), &r->move, err);
}

static moe_status lay_out(const dispatcher_try *d, rank_try *r, int64_t *offsets, moe_err *err) {
    int64_t G = r->needs.groups;
    r->rows = (moe_rows){.size = sizeof r->rows, .groups = r->needs.groups, .max = r->needs.max_rows, .host_total = -1};
    r->rows.dev_offsets = r->offsets.data;
    r->rows.dev_counts = r->counts.data;
    r->layout = (moe_layout_args){.size = sizeof r->layout,
                                  .stream = r->rank.stream,
                                  .expert_ids = &r->ids,
                                  .handle = r->handle,
                                  .workspace = r->workspace,
                                  .rows = &r->rows,
                                  .offsets = &r->offsets,
                                  .counts = &r->counts,
                                  .fault = r->rank.fault};
    moe_status status = tryout_call(&r->rank, "layout", run_layout, r, err);
    if (!status) status = tryout_copy(&r->rank, offsets, r->offsets.data, (uint64_t)(G + 1) * sizeof *offsets, err);
    if (!status) status = tryout_download(&r->rank, &r->counts, &r->out_counts, err);
    const int64_t *n = r->out_counts.data;
    for (int64_t g = 0; g <= G && !status; g++)
        if (offsets[g] < (g ? offsets[g - 1] + n[g - 1] : 0) || offsets[g] > r->needs.max_rows ||
            (g < G && (n[g] < 0 || offsets[g] % d->row_align)) || (g == 0 && offsets[g]))
            status =
                tryout_broken(d->t, err, "layout gives offset %" PRId64 " of %" PRId64 " rows to local expert %" PRId64,
                              offsets[g], r->needs.max_rows, g);
    return status;
}

/* One movement: its phases in order, those that do something. */
static moe_status move(rank_try *r, int32_t direction, const moe_plane *plane, const moe_tensor *slots,
                       const moe_tensor *rows, moe_err *err) {
    const moe_dispatcher_v0 *table = r->rank.parts->dispatcher;
    uint32_t phases = direction == MOE_DISPATCH ? r->needs.dispatch_phases : r->needs.combine_phases;
    static const char *const names[2][3] = {{"dispatch pack", "dispatch exchange", "dispatch unpack"},
                                            {"combine pack", "combine exchange", "combine unpack"}};
    moe_status (*const calls[])(const void *, const moe_move_args *, moe_err *) = {table->pack, table->exchange,
                                                                                   table->unpack};
    r->move = (moe_move_args){.size = sizeof r->move,
                              .n_planes = 1,
                              .direction = direction,
                              .stream = r->rank.stream,
                              .handle = r->handle,
                              .workspace = r->workspace,
                              .planes = plane,
                              .rows = &r->rows,
                              .slot_scalar = slots,
                              .row_scalar = rows,
                              .sent = &r->sent[direction == MOE_COMBINE]};
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < 3 && !status; i++) {
        if (!(phases & (1u << i))) continue;
        r->phase = calls[i];
        status = tryout_call(&r->rank, names[direction == MOE_COMBINE][i], run_phase, r, err);
    }
    return status;
}

/* Identity experts: every row times its weight, in FP32, back to where it was; zeros unless `first` of those that share
 * an expert. Padding rows stay zero. */
static moe_status run_experts(const dispatcher_try *d, rank_try *r, const int64_t *offsets, int first, moe_err *err) {
    tryout_tensor weights;
    const int64_t h = d->hidden, total = offsets[r->needs.groups];
    uint64_t bytes = tryout_bytes(r->dtype, total * h);
    moe_tensor used = r->plane.expert_order, row_weights = r->row_weights;
    used.shape[0] = row_weights.shape[0] = total;
    float *row = arena_alloc(&r->rank.memory, (size_t)h * sizeof *row);
    void *out = arena_alloc(&r->rank.memory, bytes + 1);
    moe_status status = row && out ? tryout_download(&r->rank, &used, &r->out_rows, err)
                                   : moe_fail(err, MOE_E_NOMEM, "out of memory for %" PRId64 " rows", total);
    if (!status) status = tryout_download(&r->rank, &row_weights, &weights, err);
    for (int64_t i = 0; i < total && !status; i++) {
        uint64_t at = tryout_bytes(r->dtype, i * h);
        tryout_widen((char *)r->out_rows.data + at, r->dtype, row, h);
        for (int64_t j = 0; j < h; j++) row[j] *= first ? ((const float *)weights.data)[i] : 0.0f;
        tryout_narrow(row, r->dtype, (char *)out + at, h);
    }
    return status ? status : tryout_copy(&r->rank, r->back.expert_order.data, out, bytes, err);
}

/* The counters outlive the device in memory of the rank. */
static moe_status give_sent(rank_try *r, moe_err *err) {
    int64_t *sent = arena_alloc(&r->rank.memory, SENT_BYTES);
    if (!sent) return moe_fail(err, MOE_E_NOMEM, "out of memory for counters");
    memcpy(sent, r->sent, SENT_BYTES);
    r->out_sent = (tryout_tensor){.dtype = MOE_I64, .ndim = 1, .shape = {2, 1, 1, 1}, .elements = 2, .data = sent};
    return MOE_OK;
}

static void close_rank(rank_try *r) {
    parts *p = r->rank.parts;
    if (p && r->sent) p->device->free(p->device_self, MOE_SPACE_HOST, r->sent, SENT_BYTES);
    r->sent = NULL;
    if (p) parts_drop_layers(p);
    if (p && r->group) p->comm->group_destroy(p->comm_self, r->group);
    if (p && r->layout_group) p->comm->group_destroy(p->comm_self, r->layout_group);
    r->group = r->layout_group = NULL;
    tryout_rank_close(&r->rank);
}

static moe_status run_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    dispatcher_try *d = arg;
    rank_try *r = &d->ranks[rank];
    static const moe_tensor none = {.shape = {1, 1, 1, 1}};
    moe_status status = open_rank(d, r, rank, bootstrap, err);
    if (!status) status = fill_memory(d, r, err);
    int64_t *offsets = status ? NULL : arena_alloc(&r->rank.memory, (r->needs.groups + 1) * sizeof *offsets);
    if (!status && !offsets) status = moe_fail(err, MOE_E_NOMEM, "out of memory for offsets");
    if (!status) status = lay_out(d, r, offsets, err);
    if (!status) status = move(r, MOE_DISPATCH, &r->plane, &r->slot_weights, &r->row_weights, err);
    if (!status) status = run_experts(d, r, offsets, rank % d->etp == 0, err);
    if (!status) status = move(r, MOE_COMBINE, &r->back, &none, &none, err);
    if (!status) status = tryout_download(&r->rank, &r->back.token_order, &r->out_combined, err);
    if (!status) status = give_sent(r, err);
    const parts *p = r->rank.parts;
    if (status && p && p->comm_self) p->comm->abort(p->comm_self, err->msg);
    if (!status) status = ranks_meet(bootstrap, err); /* peers may read what this rank holds */
    if (!status) close_rank(r);
    return status;
}

/* ---- all ranks ---- */
static moe_status give_results(dispatcher_try *d, moe_err *err) {
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < d->t->ranks && !status; i++) {
        const struct {
            const char *name;
            const tryout_tensor *x;
        } all[] = {{"rows", &d->ranks[i].out_rows},
                   {"counts", &d->ranks[i].out_counts},
                   {"combined", &d->ranks[i].out_combined},
                   {"sent", &d->ranks[i].out_sent}};
        for (size_t j = 0; j < sizeof all / sizeof all[0] && !status; j++) {
            char name[48];
            snprintf(name, sizeof name, "rank.%u.%s", i, all[j].name);
            status = tryout_give(d->t, name, all[j].x, err);
        }
    }
    return status;
}

moe_status tryout_dispatcher(tryout *t, moe_err *err) {
    dispatcher_try d = {.t = t, .ranks = calloc(t->ranks, sizeof *d.ranks)};
    if (!d.ranks) return moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", t->ranks);
    moe_status status = read_input(&d, err);
    if (!status) status = ranks_run(t->ranks, run_rank, &d, err);
    if (!status) status = give_results(&d, err);
    if (!status) status = tryout_write(t, err);
    for (uint32_t i = 0; i < t->ranks; i++) {
        close_rank(&d.ranks[i]); /* after a failure: only now no other rank is inside of a call */
        tryout_rank_free(&d.ranks[i].rank);
    }
    free(d.ranks);
    return status;
}
