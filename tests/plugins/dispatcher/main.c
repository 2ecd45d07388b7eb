/* Tests of dispatcher/local, and the case that they share: see local_case.h. */
#include "local_case.h"

static moe_tensor tensor(local_case *c, int32_t dtype, int32_t ndim, int64_t a, int64_t b) {
    const uint64_t bytes = (uint64_t)(a * b) * 8 + 64; /* as the widest type, and a guard */
    moe_tensor t = {.data = device_alloc(&c->dev, bytes), .dtype = dtype, .ndim = ndim, .shape = {a, b, 1, 1}};
    memset(t.data, 0xa5, bytes);
    return t;
}
static void tensor_free(local_case *c, moe_tensor *t) {
    device_free(&c->dev, t->data, (uint64_t)(t->shape[0] * t->shape[1]) * 8 + 64);
}

void local_open(local_case *c, const shape_case *s, int which) {
    memset(c, 0, sizeof *c);
    c->s = *s;
    c->err.size = sizeof c->err;
    if (!c->s.max_tokens) c->s.max_tokens = s->tokens;
    if (!c->s.n_planes) c->s.n_planes = 2;
    device_start(&c->dev, which);
    c->table = plugin_open("dispatcher", "local")->vtable;
    const moe_dispatcher_cfg cfg = {.size = sizeof cfg,
                                    .top_k = s->k,
                                    .n_experts = s->experts,
                                    .ep_size = 1,
                                    .etp_size = 1,
                                    .hidden = s->hidden,
                                    .max_tokens = c->s.max_tokens,
                                    .row_align = s->align,
                                    .min_rows = s->min_rows};
    ck_assert_msg(c->table->create(&cfg, &c->dev.host.host, &c->self, &c->err) == MOE_OK, "%s", c->err.msg);
    c->needs.size = sizeof c->needs;
    ck_assert_int_eq(c->table->needs(c->self, &c->needs, &c->err), MOE_OK);
    if (!c->s.max_rows) c->s.max_rows = c->needs.max_rows;
    const int64_t t = s->tokens, n = c->s.max_rows, e = s->experts;
    c->handle = device_alloc_in(&c->dev, device_private(&c->dev), c->needs.handle);
    c->workspace = device_alloc_in(&c->dev, device_private(&c->dev), c->needs.workspace);
    c->ids_t = tensor(c, MOE_I32, 2, t, s->k);
    c->offsets_t = tensor(c, MOE_I64, 1, e + 1, 1);
    c->counts_t = tensor(c, MOE_I64, 1, e, 1);
    c->slot_t = tensor(c, MOE_F32, 2, t, s->k);
    c->row_t = tensor(c, MOE_F32, 1, n, 1);
    c->planes[0] = (moe_plane){tensor(c, s->dtype, 2, t, s->hidden), tensor(c, s->dtype, 2, n, s->hidden)};
    c->planes[1] = (moe_plane){tensor(c, MOE_F32, 2, t, 1), tensor(c, MOE_F32, 2, n, 1)};
    c->ids = c->ids_t.data;
    c->offsets = c->offsets_t.data;
    c->counts = c->counts_t.data;
    c->rows = (moe_rows){.size = sizeof c->rows,
                         .groups = s->experts,
                         .max = n,
                         .dev_offsets = c->offsets,
                         .dev_counts = c->counts,
                         .host_total = 77};
}

void local_close(local_case *c) {
    c->table->destroy(c->self);
    device_free_in(&c->dev, device_private(&c->dev), c->handle, c->needs.handle);
    device_free_in(&c->dev, device_private(&c->dev), c->workspace, c->needs.workspace);
    moe_tensor *all[] = {&c->ids_t,
                         &c->offsets_t,
                         &c->counts_t,
                         &c->slot_t,
                         &c->row_t,
                         &c->planes[0].token_order,
                         &c->planes[0].expert_order,
                         &c->planes[1].token_order,
                         &c->planes[1].expert_order};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_free(c, all[i]);
    device_stop(&c->dev);
}

static moe_status enter_layout(const void *self, const void *args, void *fault, moe_err *err) {
    const local_case *c = self;
    moe_layout_args with = *(const moe_layout_args *)args;
    with.fault = fault;
    return c->table->layout(c->self, &with, err);
}
static moe_status enter_move(const void *self, const void *args, void *fault, moe_err *err) {
    (void)fault;
    const local_case *c = self;
    moe_status s = c->table->pack(c->self, args, err);
    if (s == MOE_OK) s = c->table->exchange(c->self, args, err);
    return s == MOE_OK ? c->table->unpack(c->self, args, err) : s;
}

moe_status local_layout_run(local_case *c) {
    const moe_layout_args args = {.size = sizeof args,
                                  .stream = c->dev.stream,
                                  .expert_ids = &c->ids_t,
                                  .handle = c->handle,
                                  .workspace = c->workspace,
                                  .rows = &c->rows,
                                  .offsets = &c->offsets_t,
                                  .counts = &c->counts_t};
    return device_run(&c->dev, enter_layout, c, &args, &c->err);
}

moe_status local_move_run(local_case *c, int32_t direction) {
    const moe_move_args args = {.size = sizeof args,
                                .n_planes = c->s.n_planes,
                                .direction = direction,
                                .stream = c->dev.stream,
                                .handle = c->handle,
                                .workspace = c->workspace,
                                .planes = c->planes,
                                .rows = &c->rows,
                                .slot_scalar = &c->slot_t,
                                .row_scalar = &c->row_t};
    return device_run(&c->dev, enter_move, c, &args, &c->err);
}

/* ---- what must come out ---- */

static float hidden_value(int64_t t, int64_t j) {
    return (float)((t * 7 + j * 3) % 15 - 7);
} /* exact in BF16, also * 8 */
static float second_value(int64_t t) {
    return (float)(t % 1000 + 1);
}
static float slot_value(int64_t slot) {
    return (float)(slot % 4096 + 1) * 0.5f;
}

static void fill_tokens(local_case *c) {
    const int64_t t_n = c->s.tokens, h = c->s.hidden;
    for (int64_t i = 0; i < t_n * h; i++) plain_put(&c->planes[0].token_order, i, hidden_value(i / h, i % h));
    for (int64_t t = 0; t < t_n; t++) plain_put(&c->planes[1].token_order, t, second_value(t));
    for (int64_t i = 0; i < t_n * c->s.k; i++) ((float *)c->slot_t.data)[i] = slot_value(i);
}

/* The row of the dispatched side must hold slot (-1: padding). */
static int row_is(const local_case *c, int64_t row, int64_t slot) {
    const int64_t h = c->s.hidden, t = slot < 0 ? 0 : slot / c->s.k;
    int same = ((const float *)c->row_t.data)[row] == (slot < 0 ? 0.0f : slot_value(slot));
    if (c->s.n_planes == 2) same &= plain_get(&c->planes[1].expert_order, row) == (slot < 0 ? 0.0f : second_value(t));
    for (int64_t j = 0; j < h; j++)
        same &= plain_get(&c->planes[0].expert_order, row * h + j) == (slot < 0 ? 0.0f : hidden_value(t, j));
    return same;
}

/* Offsets, counts, and every row: by expert, then token, then slot; padding zero; nothing past the end. */
static void check_dispatched(const local_case *c) {
    int64_t row = 0, wrong = 0;
    for (uint32_t e = 0; e < c->s.experts; e++) {
        ck_assert_int_eq(c->offsets[e], row);
        ck_assert_int_eq(row % c->s.align, 0);
        int64_t count = 0;
        for (int64_t slot = 0; slot < c->s.tokens * c->s.k; slot++)
            if (c->ids[slot] == (int32_t)e) {
                wrong += !row_is(c, row++, slot);
                count++;
            }
        ck_assert_int_eq(c->counts[e], count);
        while (row - c->offsets[e] < c->s.min_rows || row % c->s.align) wrong += !row_is(c, row++, -1);
    }
    ck_assert_msg(wrong == 0, "%lld of %lld rows are wrong", (long long)wrong, (long long)row);
    ck_assert_int_eq(c->offsets[c->s.experts], row);
    ck_assert_int_le(row, c->rows.max);
    const unsigned char *end = c->planes[0].expert_order.data;
    const int64_t width = c->s.hidden * (c->s.dtype == MOE_BF16 ? 2 : 4);
    for (int64_t i = row * width; i < c->rows.max * width + 64; i++) wrong += end[i] != 0xa5;
    ck_assert_msg(wrong == 0, "%lld bytes past the last row were written", (long long)wrong);
}

static void check_combined(const local_case *c) {
    const int64_t h = c->s.hidden;
    int64_t wrong = 0, scalars = 0;
    for (int64_t t = 0; t < c->s.tokens; t++) {
        int times = 0;
        for (int64_t s = t * c->s.k; s < (t + 1) * c->s.k; s++) {
            times += c->ids[s] >= 0;
            scalars += ((const float *)c->slot_t.data)[s] != (c->ids[s] >= 0 ? slot_value(s) : 0.0f);
        }
        for (int64_t j = 0; j < h; j++)
            wrong += plain_get(&c->planes[0].token_order, t * h + j) != (float)times * hidden_value(t, j);
        if (c->s.n_planes == 2) wrong += plain_get(&c->planes[1].token_order, t) != (float)times * second_value(t);
    }
    ck_assert_msg(wrong == 0, "%lld values are not multiplicity times what was sent", (long long)wrong);
    ck_assert_msg(scalars == 0, "%lld slot scalars did not return to their slots", (long long)scalars);
}

void local_round_trip(local_case *c) {
    fill_tokens(c);
    ck_assert_msg(local_layout_run(c) == MOE_OK, "%s", c->err.msg);
    ck_assert_msg(local_move_run(c, MOE_DISPATCH) == MOE_OK, "%s", c->err.msg);
    check_dispatched(c);
    memset(c->planes[0].token_order.data, 0xff, (size_t)(c->s.tokens * c->s.hidden) * 2); /* NaN in both types */
    memset(c->planes[1].token_order.data, 0xff, c->s.n_planes == 2 ? (size_t)c->s.tokens * 4 : 0);
    memset(c->slot_t.data, 0xff, (size_t)(c->s.tokens * c->s.k) * 4);
    ck_assert_msg(local_move_run(c, MOE_COMBINE) == MOE_OK, "%s", c->err.msg);
    check_combined(c);
}

uint32_t local_roll(uint64_t *x, uint32_t n) {
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*x >> 33) % n);
}

int main(void) {
    SRunner *r = srunner_create(suite_moves());
    srunner_add_suite(r, suite_refusals());
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
