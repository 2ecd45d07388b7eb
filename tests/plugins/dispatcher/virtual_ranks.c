/* See virtual_ranks.h. */
#include "virtual_ranks.h"

#include "plain_plan.h"

enum { POISON = 0xa5 };

/* ---- memory ---- */
static void good(cudaError_t e) {
    ck_assert_msg(e == cudaSuccess, "%s", cudaGetErrorString(e));
}
static void *room(int64_t bytes) { /* poisoned */
    void *p = NULL;
    good(cudaHostAlloc(&p, (size_t)bytes + 1, cudaHostAllocDefault));
    memset(p, POISON, (size_t)bytes);
    return p;
}
static void *zeros(virtual_world *w, uint64_t bytes) { /* of the device alone */
    void *p = NULL;
    good(cudaMalloc(&p, bytes));
    good(cudaMemsetAsync(p, 0, bytes, w->stream));
    return p;
}
static moe_tensor plane(int32_t dtype, int64_t n, int64_t width) {
    return (moe_tensor){
        .data = room(n * width * (dtype == MOE_BF16 ? 2 : 4)), .dtype = dtype, .ndim = 2, .shape = {n, width, 1, 1}};
}

/* A float of 24 random bits around 0. */
static float value(uint64_t key) {
    key = (key + 1) * 0x9e3779b97f4a7c15ull;
    key ^= key >> 29;
    key *= 0xbf58476d1ce4e5b9ull;
    return ((float)(key >> 40) - (float)(1 << 23)) / (float)(1 << 21);
}

static void make_rank(virtual_world *w, uint32_t m, virtual_fill *fill) {
    virtual_rank *r = &w->rank[m];
    const virtual_shape *s = &w->s;
    const int64_t n = r->n = s->tokens[m], k = s->k, e = s->experts, stride = w->shape.stride;
    int64_t all = 0;
    for (uint32_t i = 0; i < s->ranks; i++) all += s->tokens[i];
    r->max_rows = all * (k < w->groups ? k : w->groups) + w->groups * s->align;
    r->ids = room(4 * n * k);
    for (int64_t t = 0; t < n; t++) fill(s, m, t, r->ids + t * k);
    r->numbers = room(8 * s->ranks * stride);
    r->kept = room(8 * s->ranks * e);
    r->first = room(8 * s->ranks * e);
    r->offsets = room(8 * (w->groups + 1));
    r->counts = room(8 * w->groups);
    r->slot_row = room(8 * n * k);
    r->partial = room(4 * w->s.blocks * (w->s.threads / 32) * (s->ranks / s->etp));
    r->handle = room((int64_t)deepep_routing_bytes(&w->shape));
    r->sync = zeros(w, DEEPEP_CHANNELS * sizeof *r->sync);
    r->watch = room(sizeof *r->watch);
    memset(r->watch, 0, sizeof *r->watch);
    r->memory = zeros(w, w->shape.bytes);
    for (int i = 0; i < 2; i++) {
        const int64_t width = i ? 1 : s->hidden;
        r->x[i] = plane(i ? MOE_F32 : s->dtype, n, width);
        r->back[i] = plane(i ? MOE_F32 : s->dtype, n, width);
        r->y[i] = plane(i ? MOE_F32 : s->dtype, r->max_rows, width);
        for (int64_t j = 0; j < n * width; j++)
            plain_put(&r->x[i], j, value(((uint64_t)m << 40) + ((uint64_t)i << 36) + (uint64_t)j));
    }
    r->slots = room(4 * n * k);
    r->slots_back = room(4 * n * k);
    r->rows = room(4 * r->max_rows);
    for (int64_t j = 0; j < n * k; j++) r->slots[j] = value(((uint64_t)m << 40) + (7ull << 36) + (uint64_t)j);
}

static void fill_move(const virtual_world *w, uint32_t m, deepep_move_call *c, int out) {
    const virtual_rank *r = &w->rank[m];
    c->by = deepep_routing_at(&w->shape, r->handle);
    c->n_planes = 2;
    c->groups = w->groups;
    c->slots = out ? r->slots : r->slots_back;
    c->rows = r->rows;
    c->offsets = r->offsets;
    c->counts = r->counts;
    c->n = r->n;
    for (uint32_t i = 0; i < 2; i++) {
        const int64_t size = r->x[i].dtype == MOE_BF16 ? 2 : 4, width = r->x[i].shape[1] * size;
        c->planes[i] = (deepep_plane){.tokens = out ? r->x[i].data : r->back[i].data,
                                      .experts = r->y[i].data,
                                      .width = width,
                                      .narrow = r->x[i].dtype == MOE_BF16,
                                      .unit = width % 16 ? (uint32_t)size : 16};
    }
    ck_assert_uint_le(deepep_place(c), w->shape.half);
}

static void fill_calls(virtual_world *w) {
    for (uint32_t m = 0; m < w->s.ranks; m++) {
        virtual_rank *r = &w->rank[m];
        deepep_rank rank = {.shape = w->shape, .me = m, .sync = r->sync, .watch = r->watch};
        for (uint32_t i = 0; i < w->s.ranks; i++) rank.peer[i] = w->rank[i].memory;
        w->tells[m] = (deepep_tell_call){.rank = rank, .numbers = r->numbers};
        w->routes[m] = (deepep_route_call){.rank = rank,
                                           .to = deepep_routing_at(&w->shape, r->handle),
                                           .ids = r->ids,
                                           .slot_row = r->slot_row,
                                           .kept = r->kept,
                                           .partial = r->partial,
                                           .n = r->n};
        w->dispatches[m] = w->combines[m] = (deepep_move_call){.rank = rank};
        fill_move(w, m, &w->dispatches[m], 1);
        fill_move(w, m, &w->combines[m], 0);
    }
}

void virtual_open(virtual_world *w, const virtual_shape *s, virtual_fill *fill) {
    memset(w, 0, sizeof *w);
    w->s = *s;
    w->err.size = sizeof w->err;
    if (!w->s.etp) w->s.etp = 1;
    if (!w->s.align) w->s.align = 1;
    if (!w->s.blocks) w->s.blocks = 2;
    if (!w->s.threads) w->s.threads = 64;
    const uint32_t ranks = s->ranks;
    w->groups = s->experts / (ranks / w->s.etp);
    w->shape =
        (deepep_shape){.members = ranks, .etp = w->s.etp, .k = s->k, .groups = w->groups, .stride = s->experts + 1};
    for (uint32_t m = 0; m < ranks; m++)
        if (s->tokens[m] > w->shape.tokens) w->shape.tokens = s->tokens[m];
    deepep_shape_fill(&w->shape, s->hidden + 1);
    good(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
    for (uint32_t m = 0; m < ranks; m++) make_rank(w, m, fill);
    w->tells = room((int64_t)(ranks * sizeof *w->tells));
    w->routes = room((int64_t)(ranks * sizeof *w->routes));
    w->dispatches = room((int64_t)(ranks * sizeof *w->dispatches));
    w->combines = room((int64_t)(ranks * sizeof *w->combines));
    fill_calls(w);
}

void virtual_close(virtual_world *w) {
    virtual_wait(w);
    for (uint32_t m = 0; m < w->s.ranks; m++) {
        virtual_rank *r = &w->rank[m];
        void *const all[] = {r->ids,          r->numbers,   r->kept,       r->first,     r->offsets,
                             r->counts,       r->slot_row,  r->partial,    r->handle,    r->watch,
                             r->x[0].data,    r->x[1].data, r->y[0].data,  r->y[1].data, r->back[0].data,
                             r->back[1].data, r->slots,     r->slots_back, r->rows};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) good(cudaFreeHost(all[i]));
        good(cudaFree(r->sync));
        good(cudaFree(r->memory));
    }
    void *const calls[] = {w->tells, w->routes, w->dispatches, w->combines};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) good(cudaFreeHost(calls[i]));
    good(cudaStreamDestroy(w->stream));
}

/* ---- calls ---- */
deepep_grid virtual_grid(const virtual_world *w, uint32_t ranks) {
    return (deepep_grid){.ranks = ranks, .blocks = w->s.blocks, .threads = w->s.threads, .stream = w->stream};
}
void virtual_wait(virtual_world *w) {
    good(cudaStreamSynchronize(w->stream));
}
static void fine(virtual_world *w, moe_status s) {
    ck_assert_msg(s == MOE_OK, "%s", w->err.msg);
}
static moe_tensor array(void *data, int32_t dtype, int64_t a, int64_t b) {
    return (moe_tensor){.data = data, .dtype = dtype, .ndim = 2, .shape = {a, b, 1, 1}};
}

/* The plan as the device's operations make it. */
static void plan_rank(virtual_world *w, uint32_t m) {
    virtual_rank *r = &w->rank[m];
    const int64_t n = w->s.ranks, e = w->s.experts, k = w->s.k;
    const uint32_t eps = w->s.ranks / w->s.etp;
    int64_t *work = calloc((size_t)(eps * (w->groups + 1)) + w->groups + (size_t)n, 8);
    const moe_dispatch_plan_attr plan = {.size = sizeof plan,
                                         .n_experts = w->s.experts,
                                         .ep_rank = m / w->s.etp,
                                         .ep_size = eps,
                                         .align = w->s.align,
                                         .limit = r->max_rows};
    const moe_tensor numbers = array(r->numbers, MOE_I64, n, e + 1);
    int64_t *tokens = work + eps * (w->groups + 1) + w->groups;
    const moe_tensor out[] = {array(r->kept, MOE_I64, n, e),
                              array(r->first, MOE_I64, n, e),
                              array(work, MOE_I64, eps, w->groups + 1),
                              array(r->offsets, MOE_I64, w->groups + 1, 1),
                              array(r->counts, MOE_I64, w->groups, 1),
                              array(tokens, MOE_I64, n, 1)};
    moe_op_args args = {.size = sizeof args,
                        .in = &numbers,
                        .n_in = 1,
                        .out = out,
                        .n_out = 6,
                        .attr = &plan,
                        .workspace = work + eps * (w->groups + 1)};
    fine(w, plain_dispatch_plan(NULL, &args, &w->err));
    const moe_dispatch_slots_attr slots = {.size = sizeof slots, .groups = w->s.experts};
    const moe_tensor ids = {.data = r->ids, .dtype = MOE_I32, .ndim = 3, .shape = {1, r->n, k, 1}};
    const moe_tensor in[] = {ids, array(tokens + m, MOE_I64, 1, 1), array(r->kept + m * e, MOE_I64, 1, e),
                             array(r->first + m * e, MOE_I64, 1, e)};
    const moe_tensor to[] = {{.data = r->slot_row, .dtype = MOE_I64, .ndim = 3, .shape = {1, r->n, k, 1}}, {0}};
    moe_op_args more = {.size = sizeof more, .in = in, .n_in = 4, .out = to, .n_out = 2, .attr = &slots};
    fine(w, plain_dispatch_slots(NULL, &more, &w->err));
    free(work);
}

void virtual_layout(virtual_world *w) {
    const deepep_grid grid = virtual_grid(w, w->s.ranks);
    const int64_t stride = w->shape.stride;
    for (uint32_t m = 0; m < w->s.ranks; m++) {
        virtual_rank *r = &w->rank[m];
        int64_t *mine = r->numbers + m * stride;
        memset(r->numbers, POISON, (size_t)(8 * w->s.ranks * stride));
        memset(mine, 0, (size_t)(8 * stride));
        for (int64_t i = 0; i < r->n * w->s.k; i++)
            if (r->ids[i] >= 0) mine[r->ids[i]]++;
        mine[w->s.experts] = r->n;
    }
    fine(w, deepep_tell(&grid, NULL, w->tells, &w->err));
    virtual_wait(w);
    for (uint32_t m = 0; m < w->s.ranks; m++) {
        for (uint32_t i = 0; i < w->s.ranks; i++)
            ck_assert_mem_eq(w->rank[m].numbers + i * stride, w->rank[i].numbers + i * stride, (size_t)(8 * stride));
        plan_rank(w, m);
    }
    fine(w, deepep_route(&grid, NULL, w->routes, &w->err));
}

void virtual_dispatch(virtual_world *w) {
    const deepep_grid grid = virtual_grid(w, w->s.ranks);
    fine(w, deepep_dispatch(&grid, NULL, w->dispatches, &w->err));
}

static float factor(uint32_t expert, uint32_t f) {
    return (float)(expert % 5 + 1) + 0.25f * (float)f;
}

void virtual_combine(virtual_world *w) {
    const deepep_grid grid = virtual_grid(w, w->s.ranks);
    virtual_wait(w);
    for (uint32_t m = 0; m < w->s.ranks; m++) {
        const virtual_rank *r = &w->rank[m];
        for (uint32_t g = 0; g < w->groups; g++)
            for (int64_t row = r->offsets[g]; row < r->offsets[g + 1]; row++)
                for (int i = 0; i < 2; i++)
                    for (int64_t j = row * r->y[i].shape[1]; j < (row + 1) * r->y[i].shape[1]; j++)
                        plain_put(&r->y[i], j,
                                  factor(m / w->s.etp * w->groups + g, m % w->s.etp) * plain_get(&r->y[i], j));
    }
    fine(w, deepep_combine(&grid, NULL, w->combines, &w->err));
}

/* ---- what must come out ---- */
/* Slot j of token t of rank `from` has this row at member m, or -1. */
static int64_t row_at(const virtual_world *w, uint32_t m, uint32_t from, int64_t slot) {
    const int32_t id = w->rank[from].ids[slot];
    return id >= 0 && (uint32_t)id / w->groups == m / w->s.etp ? w->rank[from].slot_row[slot] : -1;
}

/* Values of a plane's row that differ from the token's, or from 0. */
static int64_t differ(const moe_tensor *y, int64_t row, const moe_tensor *x, int64_t token) {
    const int64_t width = y->shape[1];
    int64_t n = 0;
    for (int64_t j = 0; j < width; j++)
        n += plain_get(y, row * width + j) != (x ? plain_get(x, token * width + j) : 0.0f);
    return n;
}

static void check_rows(const virtual_world *w, uint32_t m) {
    const virtual_rank *r = &w->rank[m];
    const int64_t total = r->offsets[w->groups], k = w->s.k;
    unsigned char *seen = calloc((size_t)total + 1, 1);
    int64_t wrong = 0;
    for (uint32_t from = 0; from < w->s.ranks; from++)
        for (int64_t slot = 0; slot < w->rank[from].n * k; slot++) {
            const int64_t row = row_at(w, m, from, slot);
            if (row < 0) continue;
            ck_assert_int_lt(row, total);
            seen[row] = 1;
            for (int i = 0; i < 2; i++) wrong += differ(&r->y[i], row, &w->rank[from].x[i], slot / k);
            wrong += r->rows[row] != w->rank[from].slots[slot];
        }
    for (int64_t row = 0; row < total; row++)
        if (!seen[row]) wrong += differ(&r->y[0], row, NULL, 0) + differ(&r->y[1], row, NULL, 0) + (r->rows[row] != 0);
    for (int i = 0; i < 2; i++) {
        const int64_t width = r->y[i].shape[1] * (r->y[i].dtype == MOE_BF16 ? 2 : 4);
        for (int64_t j = total * width; j < r->max_rows * width; j++)
            wrong += ((const unsigned char *)r->y[i].data)[j] != POISON;
    }
    free(seen);
    ck_assert_msg(wrong == 0, "rank %u of %u: %lld values of %lld rows are wrong", m, w->s.ranks, (long long)wrong,
                  (long long)total);
}

void virtual_check_dispatch(const virtual_world *w) {
    for (uint32_t m = 0; m < w->s.ranks; m++) check_rows(w, m);
}

static float in_type(int32_t dtype, float x) {
    return dtype == MOE_BF16 ? plain_from_bf16(plain_to_bf16(x)) : x;
}

/* Column c of token t: each member adds its rows, by slots; then over members. */
static float want(const virtual_world *w, uint32_t m, int i, int64_t t, int64_t c) {
    const int32_t dtype = w->rank[m].x[i].dtype;
    float sum = 0;
    for (uint32_t to = 0; to < w->s.ranks; to++) {
        float part = 0;
        int any = 0;
        for (int64_t slot = t * w->s.k; slot < (t + 1) * w->s.k; slot++) {
            const int64_t row = row_at(w, to, m, slot);
            if (row < 0) continue;
            part += plain_get(&w->rank[to].y[i], row * w->rank[to].y[i].shape[1] + c);
            any = 1;
        }
        if (any) sum += in_type(dtype, part);
    }
    return in_type(dtype, sum);
}
static float want_slot(const virtual_world *w, uint32_t m, int64_t slot) {
    float sum = 0;
    for (uint32_t to = 0; to < w->s.ranks; to++) {
        const int64_t row = row_at(w, to, m, slot);
        if (row >= 0) sum += w->rank[to].rows[row];
    }
    return sum;
}

void virtual_check_combine(const virtual_world *w) {
    for (uint32_t m = 0; m < w->s.ranks; m++) {
        const virtual_rank *r = &w->rank[m];
        int64_t wrong = 0;
        for (int i = 0; i < 2; i++)
            for (int64_t j = 0; j < r->n * r->x[i].shape[1]; j++)
                wrong += plain_get(&r->back[i], j) != want(w, m, i, j / r->x[i].shape[1], j % r->x[i].shape[1]);
        ck_assert_msg(wrong == 0, "rank %u of %u: %lld combined values are wrong", m, w->s.ranks, (long long)wrong);
        for (int64_t slot = 0; slot < r->n * w->s.k; slot++) wrong += r->slots_back[slot] != want_slot(w, m, slot);
        ck_assert_msg(wrong == 0, "rank %u of %u: %lld scalars of slots are wrong", m, w->s.ranks, (long long)wrong);
    }
}
