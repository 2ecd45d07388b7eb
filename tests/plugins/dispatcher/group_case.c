/* A routing through a dispatcher over ranks that are threads, and the comparison of its results with the oracle. See
 * group_case.h. */
#include "group_case.h"

/* oneDNN sets itself up when it is first used, and the loader a library when it is opened, by locks that
 * ThreadSanitizer does not see: once before there are threads. */
static void warm_up(void) {
    any_device d;
    device_start(&d, DEVICE_CPU);
    device_stop(&d);
}

void group_open(group_case *c, const char *id, const group_shape *s, int device) {
    memset(c, 0, sizeof *c);
    c->s = *s;
    c->id = id;
    c->device = device;
    c->repeats = 1;
    if (!c->s.etp) c->s.etp = 1;
    if (!c->s.copies) c->s.copies = 1;
    if (!c->s.align) c->s.align = 1;
    c->members = c->s.ep * c->s.etp;
    c->world = c->members * c->s.copies;
    c->groups = c->s.experts / c->s.ep;
    ck_assert_uint_le(c->world, GROUP_RANKS);
    if (device == DEVICE_CPU || !test_on_cpu()) warm_up();
    for (uint32_t r = 0; r < c->world; r++) {
        if (!s->max_tokens && c->s.tokens[r] > c->s.max_tokens) c->s.max_tokens = c->s.tokens[r];
        const size_t bytes = (size_t)(c->s.tokens[r] * c->s.k) * sizeof **c->ids;
        c->ids[r] = malloc(bytes + 1);
        memset(c->ids[r], 0xff, bytes);
    }
}

static void drop_result(group_rank *o) {
    void *all[] = {o->offsets, o->counts, o->rows, o->second, o->scalars, o->combined, o->combined2, o->slots};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    memset(o, 0, sizeof *o);
}

void group_close(group_case *c) {
    for (uint32_t r = 0; r < c->world; r++) {
        drop_result(&c->out[r]);
        free(c->ids[r]);
    }
}

/* ---- one rank ---- */
enum { N_BUFFERS = 24, GUARD = 256 }; /* a multiple of any alignment */
typedef struct buffer {
    unsigned char *data;
    uint64_t bytes;
    int32_t space;
} buffer;

/* The device as the dispatcher sees it: whoever waits for it on this rank's thread is counted. */
static _Thread_local struct {
    const moe_device_v0 *table;
    int64_t n;
} waits;
static moe_status wait_for_stream(void *self, void *stream, moe_err *err) {
    waits.n++;
    return waits.table->stream_sync(self, stream, err);
}
static moe_status wait_for_event(void *self, void *event, moe_err *err) {
    waits.n++;
    return waits.table->event_sync(self, event, err);
}

typedef struct member {
    group_case *c;
    rank_env *env;
    uint32_t rank, n_buffers;
    any_device dev;
    moe_device_v0 watched; /* dev's table */
    moe_device_service watched_service;
    moe_comm_service comm;
    int comm_async;
    void *group, *layout_group;
    test_service services[3];
    test_host host;
    const moe_dispatcher_v0 *table;
    void *self;
    moe_dispatcher_needs needs;
    moe_rows rows;
    void *handle, *workspace, *host_handle;
    int64_t *host_offsets, *host_counts; /* NULL: the device's are read */
    uint64_t *sent;                      /* [2]: to all, to other nodes */
    moe_tensor ids, offsets, counts, slots, slots_back, row, row_back;
    moe_plane there[2], back[2];
    buffer buffers[N_BUFFERS];
    moe_err err;
} member;

/* Poisoned memory between two guards. */
static void *poisoned_in(member *m, int32_t space, uint64_t bytes) {
    ck_assert_uint_lt(m->n_buffers, N_BUFFERS);
    buffer *b = &m->buffers[m->n_buffers++];
    *b = (buffer){(unsigned char *)device_alloc_in(&m->dev, space, bytes + 2 * GUARD) + GUARD, bytes, space};
    device_poison(&m->dev, b->data - GUARD, bytes + 2 * GUARD);
    return b->data;
}
static void *poisoned(member *m, uint64_t bytes) { /* that device and host see */
    return poisoned_in(m, MOE_SPACE_HOST, bytes);
}
static moe_tensor tensor(member *m, int32_t dtype, int32_t ndim, int64_t a, int64_t b) {
    const uint64_t size = dtype == MOE_I64 ? 8 : dtype == MOE_BF16 ? 2 : 4;
    return (moe_tensor){
        .data = poisoned(m, size * (uint64_t)(a * b)), .dtype = dtype, .ndim = ndim, .shape = {a, b, 1, 1}};
}

/* The status of a step, kept when it is the first that failed. */
static int failed(member *m, moe_status status, const char *where) {
    group_rank *o = &m->c->out[m->rank];
    if (status == MOE_OK || o->status != MOE_OK) return o->status != MOE_OK;
    o->status = status;
    o->where = where;
    memcpy(o->text, m->err.msg, sizeof o->text);
    return 1;
}

/* Of ranks that are threads, on the device under test. */
static void open_comm(member *m) {
    const char *id = strcmp(test_device(), "cuda") == 0 ? "nccl-threads" : "threads";
    const moe_desc *desc = plugin_open("comm", id);
    const moe_comm_v0 *table = desc->vtable;
    m->services[0] = (test_service){"moe.device/0", &m->dev.service};
    m->comm_async = (desc->flags & MOE_ASYNC) != 0;
    const moe_comm_cfg cfg = {.size = sizeof cfg, .rank = m->rank, .world = m->c->world};
    m->comm = (moe_comm_service){.size = sizeof m->comm, .table = table};
    moe_status s = table->create(&cfg, rank_host(m->env, m->services), &m->comm.self, &m->err);
    const uint32_t color = m->rank / m->c->members;
    if (s == MOE_OK) s = table->group_split(m->comm.self, NULL, "ep", color, &m->group, &m->err);
    if (s == MOE_OK) s = table->group_split(m->comm.self, NULL, "ep.layout", color, &m->layout_group, &m->err);
    ck_assert_msg(s == MOE_OK, "rank %u: %s", m->rank, m->err.msg);
}

static void close_comm(member *m) {
    m->comm.table->group_destroy(m->comm.self, m->group);
    m->comm.table->group_destroy(m->comm.self, m->layout_group);
    m->comm.table->destroy(m->comm.self);
}

static void open_dispatcher(member *m) {
    const group_kind *kind = group_kind_of(m->c->id);
    const moe_kv fixed = {"slots", "fixed"}, kv[] = {kind->fixed ? fixed : m->c->option, m->c->option};
    const group_shape *s = &m->c->s;
    const uint32_t index = m->rank % m->c->members;
    const moe_dispatcher_cfg cfg = {.size = sizeof cfg,
                                    .layer = 7,
                                    .top_k = s->k,
                                    .n_experts = s->experts,
                                    .ep_rank = index / s->etp,
                                    .ep_size = s->ep,
                                    .etp_rank = index % s->etp,
                                    .etp_size = s->etp,
                                    .hidden = s->hidden,
                                    .max_tokens = s->max_tokens,
                                    .row_align = s->align,
                                    .min_rows = s->min_rows,
                                    .recv_rows = s->recv_rows,
                                    .overflow = s->overflow,
                                    .node_size = s->node_size,
                                    .group = m->c->members > 1 ? m->group : NULL,
                                    .layout_group = m->c->members > 1 ? m->layout_group : NULL,
                                    .first_rank = m->rank - index,
                                    .host_counts = !kind->fixed,
                                    .kv = kv,
                                    .n_kv = (kind->fixed ? 1u : 0u) + (m->c->option.key ? 1u : 0u)};
    m->watched = *m->dev.table;
    m->watched.stream_sync = wait_for_stream;
    m->watched.event_sync = wait_for_event;
    m->watched_service = m->dev.service;
    m->watched_service.table = &m->watched;
    waits.table = m->dev.table;
    waits.n = 0;
    m->services[0] = (test_service){"moe.device/0", &m->watched_service};
    m->services[1] = (test_service){"moe.comm/0", &m->comm};
    m->table = plugin_open("dispatcher", kind->plugin)->vtable;
    m->needs.size = sizeof m->needs;
    if (failed(m, m->table->create(&cfg, test_host_init(&m->host, m->services), &m->self, &m->err), "create")) return;
    failed(m, m->table->needs(m->self, &m->needs, &m->err), "needs");
}

static void make_memory(member *m) {
    const group_shape *s = &m->c->s;
    const int64_t t = s->tokens[m->rank], h = s->hidden, n = m->needs.max_rows - s->short_by, g = m->needs.groups;
    m->ids = tensor(m, MOE_I32, 2, t, s->k);
    memcpy(m->ids.data, m->c->ids[m->rank], (size_t)(t * s->k) * sizeof(int32_t));
    m->sent = poisoned(m, 2 * sizeof *m->sent);
    m->handle = poisoned_in(m, device_private(&m->dev), m->needs.handle);
    m->host_handle = m->needs.host_handle ? poisoned(m, m->needs.host_handle) : NULL;
    if (device_is_async(&m->dev) && !group_kind_of(m->c->id)->fixed && !s->untold) {
        m->host_offsets = poisoned(m, (uint64_t)(g + 1) * sizeof *m->host_offsets);
        m->host_counts = poisoned(m, (uint64_t)g * sizeof *m->host_counts);
    }
    m->workspace = poisoned_in(m, device_private(&m->dev), m->needs.workspace);
    m->offsets = tensor(m, MOE_I64, 1, g + 1, 1);
    m->counts = tensor(m, MOE_I64, 1, g, 1);
    m->slots = tensor(m, MOE_F32, 2, t, s->k);
    m->slots_back = tensor(m, MOE_F32, 2, t, s->k);
    m->row = tensor(m, MOE_F32, 1, n, 1);
    m->row_back = tensor(m, MOE_F32, 1, n, 1);
    m->there[0] = (moe_plane){tensor(m, s->dtype, 2, t, h), tensor(m, s->dtype, 2, n, h)};
    m->there[1] = (moe_plane){tensor(m, MOE_F32, 2, t, 1), tensor(m, MOE_F32, 2, n, 1)};
    m->back[0] = (moe_plane){tensor(m, s->dtype, 2, t, h), tensor(m, s->dtype, 2, n, h)};
    m->back[1] = (moe_plane){tensor(m, MOE_F32, 2, t, 1), tensor(m, MOE_F32, 2, n, 1)};
    for (int64_t i = 0; i < t * h; i++)
        plain_put(&m->there[0].token_order, i, group_hidden(m->c, m->rank, i / h, i % h));
    for (int64_t i = 0; i < t; i++) plain_put(&m->there[1].token_order, i, group_second(m->c, m->rank, i));
    for (int64_t i = 0; i < t * s->k; i++) plain_put(&m->slots, i, group_slot(m->c, m->rank, i));
    m->rows = (moe_rows){.size = sizeof m->rows,
                         .groups = (uint32_t)g,
                         .max = n,
                         .dev_offsets = m->offsets.data,
                         .dev_counts = m->counts.data,
                         .host_total = 77,
                         .host_offsets = m->host_offsets,
                         .host_counts = m->host_counts};
}

static int64_t guards_hurt(member *m) {
    unsigned char *guards = device_alloc(&m->dev, 2 * GUARD);
    int64_t n = 0;
    for (uint32_t b = 0; b < m->n_buffers; b++) {
        device_peek(&m->dev, guards, m->buffers[b].data - GUARD, GUARD);
        device_peek(&m->dev, guards + GUARD, m->buffers[b].data + m->buffers[b].bytes, GUARD);
        for (int i = 0; i < 2 * GUARD; i++) n += guards[i] != GROUP_BYTES;
    }
    device_free(&m->dev, guards, 2 * GUARD);
    return n;
}

/* What an asynchronous call could not tell when it returned: an exchange that was ended has left no data to judge, and
 * what this rank alone has found ends the others; all see an overflow. */
static moe_status end_call(member *m, moe_status s) {
    moe_err err = {.size = sizeof err};
    if (!m->comm_async) return s;
    const moe_status ended = s == MOE_OK || s == MOE_E_DATA ? m->comm.table->poll(m->comm.self, &err) : MOE_OK;
    if (ended != MOE_OK) m->err = err;
    if (ended != MOE_OK) return ended;
    if (s != MOE_OK && s != MOE_E_OVERFLOW) m->comm.table->abort(m->comm.self, m->err.msg);
    return s;
}
/* Runs a call as core does, unless an earlier one failed. */
static void call(member *m, any_step *step, const void *args, const char *where) {
    if (failed(m, MOE_OK, where)) return;
    if (m->c->before) {
        snprintf(m->err.msg, sizeof m->err.msg, "stopped by the test");
        if (failed(m, m->c->before(m->c, m->rank, where, m->comm.table, m->comm.self), where)) return;
    }
    failed(m, end_call(m, device_run(&m->dev, step, m, args, &m->err)), where);
}
static moe_status enter_layout(const void *self, const void *args, void *fault, moe_err *err) {
    const member *m = self;
    moe_layout_args with = *(const moe_layout_args *)args;
    with.fault = fault;
    return m->table->layout(m->self, &with, err);
}
static moe_status enter_pack(const void *self, const void *args, void *fault, moe_err *err) {
    (void)fault;
    const member *m = self;
    return m->table->pack(m->self, args, err);
}
static moe_status enter_exchange(const void *self, const void *args, void *fault, moe_err *err) {
    (void)fault;
    const member *m = self;
    return m->table->exchange(m->self, args, err);
}
static moe_status enter_unpack(const void *self, const void *args, void *fault, moe_err *err) {
    (void)fault;
    const member *m = self;
    return m->table->unpack(m->self, args, err);
}

static void lay_out(member *m) {
    const moe_layout_args args = {.size = sizeof args,
                                  .stream = m->dev.stream,
                                  .expert_ids = &m->ids,
                                  .handle = m->handle,
                                  .workspace = m->workspace,
                                  .rows = &m->rows,
                                  .offsets = &m->offsets,
                                  .counts = &m->counts,
                                  .host_handle = m->host_handle,
                                  .host_offsets = m->host_offsets,
                                  .host_counts = m->host_counts};
    call(m, enter_layout, &args, "layout");
}

static void move(member *m, int32_t direction) {
    static const char *const names[2][3] = {{"dispatch pack", "dispatch exchange", "dispatch unpack"},
                                            {"combine pack", "combine exchange", "combine unpack"}};
    static any_step *const steps[3] = {enter_pack, enter_exchange, enter_unpack};
    const int out = direction == MOE_DISPATCH, bare = m->c->s.bare;
    const uint32_t phases = out ? m->needs.dispatch_phases : m->needs.combine_phases;
    static const moe_tensor none = {.shape = {1, 1, 1, 1}};
    group_rank *o = &m->c->out[m->rank];
    m->sent[0] = 1000; /* bytes are added */
    m->sent[1] = 0;
    device_poison(&m->dev, m->workspace, m->needs.workspace);
    const moe_move_args args = {.size = sizeof args,
                                .n_planes = bare ? 1 : 2,
                                .direction = direction,
                                .stream = m->dev.stream,
                                .handle = m->handle,
                                .workspace = m->workspace,
                                .planes = out ? m->there : m->back,
                                .rows = &m->rows,
                                .slot_scalar = bare  ? &none
                                               : out ? &m->slots
                                                     : &m->slots_back,
                                .row_scalar = bare  ? &none
                                              : out ? &m->row
                                                    : &m->row_back,
                                .sent = m->sent,
                                .sent_far = m->sent + 1,
                                .host_handle = m->host_handle};
    for (int i = 0; i < 3; i++)
        if (phases & (1u << i)) call(m, steps[i], &args, names[!out][i]);
    o->sent[direction] = m->sent[0] - 1000;
    o->sent_far[direction] = m->sent[1];
}

/* Each local expert multiplies its rows; rows past the end stay poisoned. */
static void run_experts(member *m) {
    const int64_t *offsets = m->offsets.data, h = m->c->s.hidden;
    const uint32_t index = m->rank % m->c->members, first = index / m->c->s.etp * m->c->groups;
    for (uint32_t g = 0; g < m->c->groups; g++) {
        const float factor = group_factor(first + g, index % m->c->s.etp);
        for (int64_t r = offsets[g]; r < offsets[g + 1]; r++) {
            for (int64_t j = r * h; j < (r + 1) * h; j++)
                plain_put(&m->back[0].expert_order, j, factor * plain_get(&m->there[0].expert_order, j));
            if (m->c->s.bare) continue;
            plain_put(&m->back[1].expert_order, r, factor * plain_get(&m->there[1].expert_order, r));
            plain_put(&m->row_back, r, (float)(index % m->c->s.etp + 1) * plain_get(&m->row, r));
        }
    }
}

/* ---- results ---- */
static float *floats(const moe_tensor *t, int64_t n) {
    float *x = malloc((size_t)n * sizeof *x + 1);
    for (int64_t i = 0; i < n; i++) x[i] = plain_get(t, i);
    return x;
}
static int64_t *integers(const moe_tensor *t) {
    int64_t *x = malloc((size_t)t->shape[0] * sizeof *x + 1);
    memcpy(x, t->data, (size_t)t->shape[0] * sizeof *x);
    return x;
}
/* Bytes of the expert side past the last row that are not as they were. */
static int64_t written_past(const moe_tensor *t, int64_t total) {
    const int64_t width = t->shape[1] * (t->dtype == MOE_BF16 ? 2 : 4);
    int64_t n = 0;
    for (int64_t i = total * width; i < t->shape[0] * width; i++)
        n += ((const unsigned char *)t->data)[i] != GROUP_BYTES;
    return n;
}

static void keep(member *m, group_rank *o) {
    const group_shape *s = &m->c->s;
    const int64_t t = s->tokens[m->rank], n = ((const int64_t *)m->offsets.data)[m->needs.groups];
    o->tokens = t;
    o->total = n;
    o->max_rows = m->needs.max_rows;
    o->host_total = m->rows.host_total;
    o->offsets = integers(&m->offsets);
    o->counts = integers(&m->counts);
    o->rows = floats(&m->there[0].expert_order, n * s->hidden);
    o->second = floats(&m->there[1].expert_order, n);
    o->scalars = floats(&m->row, n);
    o->combined = floats(&m->back[0].token_order, t * s->hidden);
    o->combined2 = floats(&m->back[1].token_order, t);
    o->slots = floats(&m->slots_back, t * s->k);
    for (int i = 0; i < (s->bare ? 1 : 2); i++) o->stray += written_past(&m->there[i].expert_order, n);
    if (!s->bare) o->stray += written_past(&m->row, n);
    o->stray += guards_hurt(m);
}

static int64_t other_bits(const group_rank *a, const group_rank *b, const group_shape *s) {
    return a->total != b->total || memcmp(a->rows, b->rows, (size_t)(a->total * s->hidden) * 4) ||
           memcmp(a->combined, b->combined, (size_t)(a->tokens * s->hidden) * 4) ||
           memcmp(a->slots, b->slots, (size_t)(a->tokens * s->k) * 4);
}

static void one_rank(rank_env *env) {
    member m = {.c = env->arg, .env = env, .rank = env->rank, .err.size = sizeof m.err};
    group_rank *o = &m.c->out[m.rank];
    device_start_at(&m.dev, m.c->device, m.rank);
    open_comm(&m);
    open_dispatcher(&m);
    if (!failed(&m, MOE_OK, "create")) make_memory(&m);
    pthread_barrier_wait(&m.c->end); /* nobody ends the others while they are being made */
    for (int i = 0; i < m.c->repeats && o->status == MOE_OK; i++) {
        group_rank now = {.status = MOE_OK};
        lay_out(&m);
        move(&m, MOE_DISPATCH);
        if (o->status == MOE_OK) run_experts(&m);
        move(&m, MOE_COMBINE);
        if (o->status != MOE_OK) break;
        keep(&m, i ? &now : o);
        if (i) m.c->differ[m.rank] += other_bits(o, &now, &m.c->s);
        drop_result(&now);
    }
    if (o->status != MOE_OK) o->stray += guards_hurt(&m);
    o->waits = waits.n;
    pthread_barrier_wait(&m.c->end);
    if (m.self) m.table->destroy(m.self);
    for (uint32_t i = 0; i < m.n_buffers; i++)
        device_free_in(&m.dev, m.buffers[i].space, m.buffers[i].data - GUARD, m.buffers[i].bytes + 2 * GUARD);
    close_comm(&m);
    device_stop(&m.dev);
}

void group_run(group_case *c) {
    for (uint32_t r = 0; r < c->world; r++) drop_result(&c->out[r]);
    memset(c->differ, 0, sizeof c->differ);
    pthread_barrier_init(&c->end, NULL, c->world);
    ranks_run_order(c->world, one_rank, c, c->start, c->delays);
    pthread_barrier_destroy(&c->end);
}

/* ---- comparison ---- */
static void check_dispatched(const group_case *c, uint32_t rank) {
    const group_rank *got = &c->out[rank];
    const int64_t h = c->s.hidden;
    oracle o = oracle_of(c, rank, rank % c->members / c->s.etp);
    int64_t wrong = 0, first = -1;
    ck_assert_mem_eq(got->offsets, o.offsets, (c->groups + 1) * sizeof *o.offsets);
    ck_assert_mem_eq(got->counts, o.counts, c->groups * sizeof *o.counts);
    ck_assert_int_le(got->total, got->max_rows);
    ck_assert(got->host_total == -1 || got->host_total == got->total);
    for (int64_t i = 0; i < got->total; i++) {
        const uint32_t from = (uint32_t)o.rows[i].rank;
        const int64_t slot = o.rows[i].slot, t = slot / c->s.k;
        int64_t bad = 0;
        for (int64_t j = 0; j < h; j++) bad += got->rows[i * h + j] != (slot < 0 ? 0.0f : group_hidden(c, from, t, j));
        if (!c->s.bare) bad += got->second[i] != (slot < 0 ? 0.0f : group_second(c, from, t));
        if (!c->s.bare) bad += got->scalars[i] != (slot < 0 ? 0.0f : group_slot(c, from, slot));
        if (bad && first < 0) first = i;
        wrong += bad;
    }
    ck_assert_msg(wrong == 0, "%s, rank %u of %u: %lld values of %lld rows are wrong, the first in row %lld", c->id,
                  rank, c->world, (long long)wrong, (long long)got->total, (long long)first);
    ck_assert_msg(got->stray == 0, "%s, rank %u: %lld bytes written where none may be", c->id, rank,
                  (long long)got->stray);
    oracle_free(&o);
}

/* The sum of a token's rows: by slots, then etp members; or, by_member, within each member and then over them. value is
 * of the token; both orders give the same where values are small integers. */
static float want_sum(const group_case *c, uint32_t rank, int64_t t, const uint8_t *kept, float value, int narrow) {
    const int64_t k = c->s.k;
    const int32_t *ids = c->ids[rank];
    float sum = 0;
    if (!group_kind_of(c->id)->by_member) {
        for (int64_t i = t * k; i < (t + 1) * k; i++)
            for (uint32_t f = 0; f < c->s.etp && kept[i]; f++) {
                const float y = group_factor((uint32_t)ids[i], f) * value;
                sum += narrow ? group_round(c, y) : y;
            }
        return narrow ? group_round(c, sum) : sum;
    }
    const int rounds = narrow ? group_kind_of(c->id)->rounds : 0;
    const uint32_t node = group_kind_of(c->id)->rounds == 2 && c->s.node_size ? c->s.node_size : c->members;
    float there = 0; /* of a node */
    for (uint32_t m = 0; m < c->members; m++) {
        float part = 0;
        for (int64_t i = t * k; i < (t + 1) * k; i++) {
            if (!kept[i] || (uint32_t)ids[i] / c->groups != m / c->s.etp) continue;
            const float y = group_factor((uint32_t)ids[i], m % c->s.etp) * value;
            part += narrow ? group_round(c, y) : y;
        }
        there += rounds ? group_round(c, part) : part;
        if ((m + 1) % node && m + 1 < c->members) continue;
        sum += rounds == 2 ? group_round(c, there) : there;
        there = 0;
    }
    return narrow ? group_round(c, sum) : sum;
}

static void check_combined(const group_case *c, uint32_t rank) {
    const group_rank *got = &c->out[rank];
    const int64_t h = c->s.hidden, k = c->s.k;
    uint8_t *kept = oracle_kept(c, rank);
    int64_t wrong = 0, scalars = 0;
    for (int64_t t = 0; t < got->tokens; t++) {
        for (int64_t j = 0; j < h; j++)
            wrong += got->combined[t * h + j] != want_sum(c, rank, t, kept, group_hidden(c, rank, t, j), 1);
        if (c->s.bare) continue;
        wrong += got->combined2[t] != want_sum(c, rank, t, kept, group_second(c, rank, t), 0);
        for (int64_t i = t * k; i < (t + 1) * k; i++) {
            float want = 0;
            for (uint32_t f = 0; f < c->s.etp && kept[i]; f++) want += (float)(f + 1) * group_slot(c, rank, i);
            scalars += got->slots[i] != want;
        }
    }
    free(kept);
    ck_assert_msg(wrong == 0, "%s, rank %u of %u: %lld combined values are wrong", c->id, rank, c->world,
                  (long long)wrong);
    ck_assert_msg(scalars == 0, "%s, rank %u: %lld slot scalars did not return to their slots", c->id, rank,
                  (long long)scalars);
}

void group_check(group_case *c) {
    for (uint32_t r = 0; r < c->world; r++) {
        const group_rank *got = &c->out[r];
        ck_assert_msg(got->status == MOE_OK, "%s, rank %u, %s: status %d: %s", c->id, r, got->where, got->status,
                      got->text);
        ck_assert_msg(c->differ[r] == 0, "%s, rank %u: %lld of %d repeats gave other bits", c->id, r,
                      (long long)c->differ[r], c->repeats);
        const int64_t waited = test_on_async() && !group_kind_of(c->id)->fixed ? c->repeats : 0; /* once a layout */
        ck_assert_msg(got->waits == waited, "%s, rank %u waited %lld times, expected %lld", c->id, r,
                      (long long)got->waits, (long long)waited);
        check_dispatched(c, r);
        check_combined(c, r);
        for (int32_t d = 0; d < 2; d++) {
            const uint64_t want = group_kind_of(c->id)->sent(c, r, d);
            ck_assert_msg(got->sent[d] == want, "%s, rank %u, direction %d: %llu bytes sent, expected %llu", c->id, r,
                          d, (unsigned long long)got->sent[d], (unsigned long long)want);
        }
    }
}

void group_fill_with(group_case *c, group_fill *fn) {
    for (uint32_t r = 0; r < c->world; r++)
        for (int64_t t = 0; t < c->s.tokens[r]; t++) fn(c, r, t, c->ids[r] + t * c->s.k);
}

void group_try(const char *id, const group_shape *s, int device, group_fill *fn) {
    group_case c;
    group_open(&c, id, s, device);
    if (group_kind_of(id)->one_rank && c.members > 1) {
        group_close(&c);
        return;
    }
    group_fill_with(&c, fn);
    group_run(&c);
    group_check(&c);
    group_close(&c);
}
