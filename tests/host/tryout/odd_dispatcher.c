/* dispatcher/odd: over any number of ranks, in the plainest way. Every rank gathers all tokens of its group and keeps
 * the rows of its own experts; combine sums what every rank has for every token. F32 rows only. */
#include <string.h>

#include "odd.h"

typedef struct odd {
    moe_dispatcher_cfg cfg;
    const moe_comm_service *comm; /* NULL on one rank */
    int64_t slots, elements;      /* of one rank: T k, T h */
    uint32_t local;               /* experts */
    char fault[16];
} odd;

/* The handle: ids of all ranks [R,T,k], then the source (rank, slot) of each row, -1 = padding. */
static int32_t *ids_of(const odd *o, void *handle) {
    (void)o;
    return handle;
}
static int64_t *source_of(const odd *o, void *handle) {
    return (int64_t *)(void *)((char *)handle + ((size_t)(o->cfg.ep_size * o->slots) * 4 + 63) / 64 * 64);
}
static int64_t most_rows(const odd *o) {
    return o->cfg.ep_size * o->slots + o->local * (o->cfg.row_align - 1);
}

static moe_status create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    odd *o = calloc(1, sizeof *o);
    if (!o) return moe_fail(err, MOE_E_NOMEM, "no memory");
    o->cfg = *cfg;
    o->comm = host->service(host->ctx, "moe.comm/0");
    o->slots = cfg->max_tokens * cfg->top_k;
    o->elements = cfg->max_tokens * cfg->hidden;
    o->local = cfg->n_experts / cfg->ep_size;
    snprintf(o->fault, sizeof o->fault, "%s", moe_kv_find(cfg->kv, cfg->n_kv, "fault"));
    *self = o;
    return MOE_OK;
}

static void destroy(void *self) {
    free(self);
}

static moe_status needs(void *self, moe_dispatcher_needs *n, moe_err *err) {
    const odd *o = self;
    uint64_t ranks = o->cfg.ep_size;
    (void)err;
    n->dispatch_phases = MOE_PHASE_PACK | MOE_PHASE_EXCHANGE | MOE_PHASE_UNPACK;
    n->combine_phases = MOE_PHASE_PACK | MOE_PHASE_EXCHANGE | MOE_PHASE_UNPACK;
    n->groups = o->local;
    n->max_rows = most_rows(o);
    n->handle = (ranks * (uint64_t)o->slots * 4 + 63) / 64 * 64 + (uint64_t)most_rows(o) * 8;
    /* hidden rows and weights: of this rank, then of all */
    n->workspace = (uint64_t)(o->elements + o->slots) * (ranks + 1) * 4;
    return MOE_OK;
}

static moe_status gather(const odd *o, void *stream, const void *in, void *out, int64_t count, int32_t dtype,
                         moe_err *err) {
    if (o->cfg.ep_size == 1) {
        memcpy(out, in, (size_t)count * 4);
        return MOE_OK;
    }
    return o->comm->table->all_gather(o->comm->self, o->cfg.group, stream, in, out, (uint64_t)count, dtype, err);
}

static moe_status layout(const void *self, const moe_layout_args *a, moe_err *err) {
    const odd *o = self;
    int32_t *all = ids_of(o, a->handle), *mine = a->workspace;
    int64_t *offsets = a->offsets->data, *counts = a->counts->data, *source = source_of(o, a->handle), row = 0;
    if (strcmp(o->fault, "layout") == 0 && o->cfg.ep_rank == o->cfg.ep_size - 1)
        return moe_fail(err, MOE_E_DATA, "rank %u gives up", o->cfg.ep_rank);
    for (int64_t i = 0; i < o->slots; i++) mine[i] = -1;
    memcpy(mine, a->expert_ids->data, (size_t)(a->expert_ids->shape[0] * o->cfg.top_k) * 4);
    moe_status status = gather(o, a->stream, mine, all, o->slots, MOE_I32, err);
    if (status) return status;
    for (uint32_t e = 0; e < o->local; e++) {
        offsets[e] = row;
        for (int64_t i = 0; i < o->cfg.ep_size * o->slots; i++)
            if (all[i] == (int32_t)(o->cfg.ep_rank * o->local + e)) source[row++] = i;
        counts[e] = row - offsets[e];
        while (row % o->cfg.row_align) source[row++] = -1;
    }
    offsets[o->local] = strcmp(o->fault, "offsets") == 0 ? most_rows(o) + 1 : row;
    return MOE_OK;
}

typedef struct space {
    float *rows, *weights, *all_rows, *all_weights;
} space;

static space cut(const odd *o, void *workspace) {
    float *at = workspace;
    return (space){at, at + o->elements, at + o->elements + o->slots,
                   at + o->elements + o->slots + o->cfg.ep_size * o->elements};
}

static int64_t used_rows(const moe_move_args *a) {
    return a->rows->dev_offsets[a->rows->groups];
}

static moe_status pack(const void *self, const moe_move_args *a, moe_err *err) {
    const odd *o = self;
    space s = cut(o, a->workspace);
    const moe_plane *p = a->planes;
    int64_t h = o->cfg.hidden;
    (void)err;
    if (a->direction == MOE_DISPATCH) {
        memcpy(s.rows, p->token_order.data, (size_t)(p->token_order.shape[0] * h) * 4);
        memcpy(s.weights, a->slot_scalar->data, (size_t)(a->slot_scalar->shape[0] * o->cfg.top_k) * 4);
        return MOE_OK;
    }
    const int64_t *source = source_of(o, a->handle);
    memset(s.all_rows, 0, (size_t)(o->cfg.ep_size * o->elements) * 4);
    for (int64_t r = 0; r < used_rows(a); r++)
        for (int64_t i = 0; i < h && source[r] >= 0; i++)
            s.all_rows[source[r] / o->cfg.top_k * h + i] += ((const float *)p->expert_order.data)[r * h + i];
    return MOE_OK;
}

static moe_status exchange(const void *self, const moe_move_args *a, moe_err *err) {
    const odd *o = self;
    space s = cut(o, a->workspace);
    if (a->direction == MOE_DISPATCH) {
        moe_status status = gather(o, a->stream, s.rows, s.all_rows, o->elements, MOE_F32, err);
        return status ? status : gather(o, a->stream, s.weights, s.all_weights, o->slots, MOE_F32, err);
    }
    if (o->cfg.ep_size == 1) return MOE_OK;
    return o->comm->table->all_reduce(o->comm->self, o->cfg.group, a->stream, s.all_rows, s.all_rows,
                                      (uint64_t)(o->cfg.ep_size * o->elements), MOE_F32, MOE_SUM, err);
}

static moe_status unpack(const void *self, const moe_move_args *a, moe_err *err) {
    const odd *o = self;
    space s = cut(o, a->workspace);
    const moe_plane *p = a->planes;
    int64_t h = o->cfg.hidden;
    (void)err;
    if (a->direction == MOE_COMBINE) {
        memcpy(p->token_order.data, s.all_rows + o->cfg.ep_rank * o->elements,
               (size_t)(p->token_order.shape[0] * h) * 4);
        return MOE_OK;
    }
    const int64_t *source = source_of(o, a->handle);
    for (int64_t r = 0; r < used_rows(a); r++) {
        ((float *)a->row_scalar->data)[r] = source[r] < 0 ? 0 : s.all_weights[source[r]];
        for (int64_t i = 0; i < h; i++)
            ((float *)p->expert_order.data)[r * h + i] =
                source[r] < 0 ? 0 : s.all_rows[source[r] / o->cfg.top_k * h + i];
    }
    return MOE_OK;
}

static const moe_option options[] = {{"fault", "enum none|layout|offsets", "none", "what to do wrong"}};
static const moe_dispatcher_v0 table = {.size = sizeof table,
                                        .create = create,
                                        .destroy = destroy,
                                        .needs = needs,
                                        .layout = layout,
                                        .pack = pack,
                                        .exchange = exchange,
                                        .unpack = unpack};
const moe_desc odd_dispatcher = {.size = sizeof odd_dispatcher,
                                 .kind = "dispatcher",
                                 .id = "odd",
                                 .device = "cpu",
                                 .version = "1",
                                 .vendor = "test",
                                 .license = "MIT",
                                 .summary = "for tests",
                                 .options = options,
                                 .n_options = 1,
                                 .vtable = &table};
