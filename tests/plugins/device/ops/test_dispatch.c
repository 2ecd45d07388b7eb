/* moe.expert_counts/0, moe.dispatch_plan/0, moe.dispatch_slots/0, moe.exchange_maps/0, moe.sent/0 against the plain
 * loops of the dispatchers' tests, one routing through all of them; moe.convert/0 by bits. */
#include "../../dispatcher/plain_plan.h"
#include "ot.h"

typedef struct shape {
    uint32_t ep, etp, experts, me;
    int64_t tokens, k, align, min_rows, limit; /* tokens at most, of the members some less; limit 0: of all rows */
    int64_t slot;                              /* of moe.exchange_maps/0; -1: the largest part */
    int32_t overflow;
} shape;
static const shape shapes[] = {
    {1, 1, 4, 0, 9, 2, 1, 0, 0, 0, MOE_OVERFLOW_STOP},     {2, 1, 4, 1, 0, 2, 16, 1, 0, 3, MOE_OVERFLOW_STOP},
    {2, 1, 8, 0, 13, 3, 4, 0, 0, 0, MOE_OVERFLOW_STOP},    {2, 2, 8, 3, 13, 3, 4, 2, 0, -1, MOE_OVERFLOW_STOP},
    {4, 1, 8, 2, 21, 2, 1, 0, 0, -1, MOE_OVERFLOW_STOP},   {4, 2, 16, 5, 17, 4, 8, 3, 80, 0, MOE_OVERFLOW_DROP},
    {4, 2, 16, 0, 17, 4, 8, 3, 96, -1, MOE_OVERFLOW_DROP}, {2, 1, 600, 1, 40, 5, 2, 1, 0, 0, MOE_OVERFLOW_STOP},
    {2, 1, 600, 0, 40, 5, 1, 0, 30, 0, MOE_OVERFLOW_DROP}, {8, 1, 64, 7, 11, 6, 128, 0, 0, -1, MOE_OVERFLOW_STOP},
    {1, 3, 5, 2, 1500, 2, 32, 0, 0, 0, MOE_OVERFLOW_STOP},
};

static int64_t members_of(const shape *s) {
    return (int64_t)s->ep * s->etp;
}
static int64_t tokens_of(const shape *s, int64_t m) {
    return m % 3 == 1 ? s->tokens / 2 : s->tokens;
}

/* Distinct experts within a token, the first ones more often; -1 here and there. */
static void choose(ot *t, const shape *s, int32_t *ids, int64_t tokens) {
    for (int64_t i = 0; i < tokens * s->k; i++) {
        const int64_t slot = i % s->k;
        if (slot == 0) ids[i] = (int32_t)(ot_below(t, s->experts) * ot_below(t, s->experts) / s->experts);
        if (slot > 0) ids[i] = (int32_t)((ids[i - slot] + slot) % s->experts);
    }
    for (int64_t i = 0; i < tokens * s->k; i++)
        if (ot_below(t, 7) == 0) ids[i] = -1;
}

/* ---- the device's operation and the plain one from the same bytes ---- */
typedef moe_status plain_fn(void *dev, const moe_op_args *args, moe_err *err);
static void both(ot *t, const char *name, plain_fn *plain, const moe_tensor *in, uint32_t n_in, const moe_tensor *out,
                 uint32_t n_out, const void *attr) {
    moe_tensor want[6];
    ot_call call;
    moe_err err = {.size = sizeof err};
    void *room = calloc(1, 1 << 20);
    for (uint32_t i = 0; i < n_out; i++) want[i] = out[i].ndim ? ot_clone(t, &out[i]) : out[i];
    const moe_op_args args = {
        .size = sizeof args, .n_in = n_in, .n_out = n_out, .in = in, .out = want, .attr = attr, .workspace = room};
    ot_want_msg(plain(NULL, &args, &err) == MOE_OK, "%s, plain: %s", name, err.msg);
    ot_forward(t, &call, name, in, n_in, out, n_out, attr, NULL);
    for (uint32_t i = 0; i < n_out; i++)
        for (int64_t j = 0; out[i].ndim && j < ot_count(&out[i]); j++)
            ot_want_msg(((int64_t *)out[i].data)[j] == ((int64_t *)want[i].data)[j],
                        "%s: output %u, number %lld of %lld is %lld, want %lld", name, i, (long long)j,
                        (long long)ot_count(&out[i]), (long long)((int64_t *)out[i].data)[j],
                        (long long)((int64_t *)want[i].data)[j]);
    free(room);
}

/* ---- a routing ---- */
typedef struct routing {
    moe_tensor ids, tokens, all;                                      /* [M,T,k], [M], [M,S] */
    moe_tensor kept, first, all_offsets, offsets, counts;             /* of the plan; tokens too */
    moe_tensor own, parts, runs, sent_slot, landed_row, row_from, at; /* own: slot_row of me [T,k] */
} routing;

static moe_tensor view(const moe_tensor *x, int64_t row, int32_t ndim, int64_t a, int64_t b) {
    const int64_t each = ot_count(x) / (x->shape[0] ? x->shape[0] : 1);
    return (moe_tensor){.data = (char *)x->data + row * each * (int64_t)ot_dtype_bytes(x->dtype),
                        .dtype = x->dtype,
                        .ndim = ndim,
                        .shape = {a, b, 1, 1}};
}

/* Everybody's counts, one call a member. Numbers behind the first E + 1 are the caller's. */
static void count_all(ot *t, const shape *s, routing *r) {
    const int64_t m_n = members_of(s), stride = s->experts + 3;
    const moe_expert_counts_attr attr = {.size = sizeof attr, .n_experts = s->experts};
    r->ids = ot_tensor(t, MOE_I32, m_n, s->tokens, s->k);
    r->all = ot_tensor(t, MOE_I64, m_n, stride);
    for (int64_t m = 0; m < m_n; m++) {
        const moe_tensor ids = view(&r->ids, m, 2, tokens_of(s, m), s->k), row = view(&r->all, m, 1, stride, 1);
        choose(t, s, ids.data, tokens_of(s, m));
        both(t, MOE_OP_EXPERT_COUNTS, plain_expert_counts, &ids, 1, &row, 1, &attr);
        ot_untouched("the caller's numbers", &row, s->experts + 1, stride);
    }
}

static moe_dispatch_plan_attr plan_attr(const shape *s) {
    return (moe_dispatch_plan_attr){.size = sizeof(moe_dispatch_plan_attr),
                                    .n_experts = s->experts,
                                    .ep_rank = s->me / s->etp,
                                    .ep_size = s->ep,
                                    .overflow = s->overflow,
                                    .align = s->align,
                                    .min_rows = s->min_rows,
                                    .limit = s->limit ? s->limit : INT64_MAX / 64,
                                    .layer = 5};
}
static void plan_all(ot *t, const shape *s, routing *r) {
    const moe_dispatch_plan_attr attr = plan_attr(s);
    const int64_t m = members_of(s), e = s->experts, groups = e / s->ep;
    r->kept = ot_tensor(t, MOE_I64, m, e);
    r->first = ot_tensor(t, MOE_I64, m, e);
    r->all_offsets = ot_tensor(t, MOE_I64, s->ep, groups + 1);
    r->offsets = ot_tensor(t, MOE_I64, groups + 1);
    r->counts = ot_tensor(t, MOE_I64, groups);
    r->tokens = ot_tensor(t, MOE_I64, m);
    both(t, MOE_OP_DISPATCH_PLAN, plain_dispatch_plan, OT_LIST(r->all),
         OT_LIST(r->kept, r->first, r->all_offsets, r->offsets, r->counts, r->tokens), &attr);
}

/* Of all members the rows of the own experts, and of one the rows at every ep rank. Returns a hash. */
static uint64_t slots_all(ot *t, const shape *s, routing *r) {
    const int64_t e = s->experts, groups = e / s->ep, rows = ((int64_t *)r->offsets.data)[groups] + 2;
    const moe_dispatch_slots_attr own = {sizeof own, (uint32_t)(s->me / s->etp * groups), (uint32_t)groups, 0};
    const moe_dispatch_slots_attr every = {sizeof every, 0, s->experts, 0};
    const int64_t shape3[] = {1, tokens_of(s, s->me), s->k};
    moe_tensor slot_row = ot_tensor(t, MOE_I64, members_of(s), s->tokens, s->k);
    moe_tensor row_slot = ot_tensor(t, MOE_I64, rows), mine = view(&r->ids, s->me, 3, 1, shape3[1]);
    mine.shape[2] = s->k;
    both(t, MOE_OP_DISPATCH_SLOTS, plain_dispatch_slots, OT_LIST(r->ids, r->tokens, r->kept, r->first),
         OT_LIST(slot_row, row_slot), &own);
    r->own = ot_tensor_n(t, MOE_I64, 3, shape3);
    both(t, MOE_OP_DISPATCH_SLOTS, plain_dispatch_slots,
         OT_LIST(mine, view(&r->tokens, s->me, 1, 1, 1), view(&r->kept, s->me, 2, 1, e),
                 view(&r->first, s->me, 2, 1, e)),
         OT_LIST(r->own, ot_absent()), &every);
    return ot_hash(ot_hash(0, &slot_row), &row_slot);
}

/* The most rows that one member and one ep rank exchange here. */
static int64_t largest_part(const shape *s, const routing *r) {
    const int64_t groups = s->experts / s->ep, *kept = r->kept.data;
    int64_t most = 1;
    for (int64_t m = 0; m < members_of(s); m++)
        for (int64_t ep = 0; ep < s->ep; ep++) {
            int64_t n = 0;
            for (int64_t g = 0; g < groups; g++) n += kept[m * s->experts + ep * groups + g];
            if (n > most) most = n;
        }
    return most;
}
static moe_exchange_maps_attr maps_attr(const shape *s, const routing *r) {
    return (moe_exchange_maps_attr){.size = sizeof(moe_exchange_maps_attr),
                                    .me = s->me,
                                    .ep_size = s->ep,
                                    .etp_size = s->etp,
                                    .slot = s->slot < 0 ? largest_part(s, r) : s->slot};
}
static void maps_all(ot *t, const shape *s, routing *r) {
    const moe_exchange_maps_attr attr = maps_attr(s, r);
    const int64_t m = members_of(s), t_n = tokens_of(s, s->me), rows = ((int64_t *)r->offsets.data)[s->experts / s->ep];
    const moe_tensor ids = view(&r->ids, s->me, 2, t_n, s->k), slot_row = view(&r->own, 0, 2, t_n, s->k);
    r->parts = ot_tensor(t, MOE_I64, MOE_PARTS, m);
    r->runs = ot_tensor(t, MOE_I64, 2, 2);
    r->sent_slot = ot_tensor(t, MOE_I64, attr.slot ? s->ep * attr.slot : t_n * s->k + 1);
    r->landed_row = ot_tensor(t, MOE_I64, attr.slot ? m * attr.slot : rows + 1);
    r->row_from = ot_tensor(t, MOE_I64, rows + 3);
    r->at = ot_tensor(t, MOE_I64, t_n, s->k * s->etp);
    both(t, MOE_OP_EXCHANGE_MAPS, plain_exchange_maps, OT_LIST(ids, slot_row, r->kept, r->first, r->offsets),
         OT_LIST(r->parts, r->runs, r->sent_slot, r->landed_row, r->row_from, r->at), &attr);
}

/* What a member gives, with nodes of two and all on one; and by a number for each run of etp members. */
static void sent_all(ot *t, const shape *s, const routing *r) {
    for (uint32_t node = 0; node < 3; node += 2) {
        const moe_sent_attr attr = {.size = sizeof attr,
                                    .members = (uint32_t)members_of(s),
                                    .me = s->me,
                                    .first_rank = 3,
                                    .node_size = node,
                                    .bytes = 13};
        const moe_tensor gives = view(&r->parts, MOE_PART_GIVES, 1, members_of(s), 1),
                         few = view(&gives, 0, 1, s->ep, 1);
        moe_tensor sent = ot_fill(ot_tensor(t, MOE_I64, 1), 1000), far = ot_fill(ot_tensor(t, MOE_I64, 1), 7);
        both(t, MOE_OP_SENT, plain_sent, OT_LIST(gives), OT_LIST(sent, far), &attr);
        both(t, MOE_OP_SENT, plain_sent, OT_LIST(few), OT_LIST(ot_absent(), far), &attr);
        ot_want(node || ot_get(&far, 0) == 7);
    }
}

static uint64_t routing_case(ot *t, const void *arg) {
    const shape *s = arg;
    routing r;
    count_all(t, s, &r);
    plan_all(t, s, &r);
    uint64_t h = slots_all(t, s, &r);
    maps_all(t, s, &r);
    sent_all(t, s, &r);
    h = ot_hash(ot_hash(ot_hash(h, &r.kept), &r.parts), &r.sent_slot);
    return ot_hash(ot_hash(ot_hash(h, &r.landed_row), &r.row_from), &r.at);
}

START_TEST(a_routing_is_planned_as_plain_loops_do) {
    OT_EVERYWHERE(routing_case, shapes);
}
END_TEST

START_TEST(random_routings_hold) {
    shape random[12];
    ot r = {.seed = 31};
    for (size_t i = 0; i < sizeof random / sizeof random[0]; i++) {
        shape *s = &random[i];
        *s = (shape){.ep = 1 + (uint32_t)ot_below(&r, 4), .etp = 1 + (uint32_t)ot_below(&r, 2)};
        s->experts = s->ep * (1 + (uint32_t)ot_below(&r, 9));
        s->me = (uint32_t)ot_below(&r, members_of(s));
        s->tokens = ot_below(&r, 50);
        s->k = 1 + ot_below(&r, s->experts);
        s->align = 1 + ot_below(&r, 9);
        s->min_rows = ot_below(&r, 4);
        s->slot = -ot_below(&r, 2);
        s->overflow = i % 2 ? MOE_OVERFLOW_DROP : MOE_OVERFLOW_STOP;
        if (i % 2) s->limit = s->experts / s->ep * (s->min_rows + s->align) + ot_below(&r, 60);
    }
    OT_EVERYWHERE(routing_case, random);
}
END_TEST

/* ---- errors in the data: what has been reported leaves a routing in which nobody has chosen ---- */
static const shape faulty = {2, 1, 4, 0, 6, 2, 4, 0, 0, 0, MOE_OVERFLOW_STOP};

static void want_all(const ot *t, const char *what, const moe_tensor *x, int64_t value) {
    for (int64_t i = 0; ot_async(t) && i < ot_count(x); i++)
        ot_want_msg(((int64_t *)x->data)[i] == value, "%s: number %lld is %lld, want %lld", what, (long long)i,
                    (long long)((int64_t *)x->data)[i], (long long)value);
}

START_TEST(wrong_choices_count_as_none) {
    ot t;
    ot_call call;
    ot_start(&t);
    const moe_expert_counts_attr attr = {.size = sizeof attr, .n_experts = 4, .layer = 5};
    moe_tensor ids = ot_fill(ot_tensor(&t, MOE_I32, 6, 2), -1), row = ot_tensor(&t, MOE_I64, 6);
#define TRY() ot_try(&t, &call, MOE_OP_EXPERT_COUNTS, OT_LIST(ids), OT_LIST(row), &attr, NULL)
    static const int32_t bad[] = {4, -2, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        ot_set(&ids, 0, 1);
        ot_set(&ids, 7, bad[i]);
        char text[64];
        snprintf(text, sizeof text, "layer 5: token 3 slot 1 has expert %d", bad[i]);
        ot_expect_data(&t, &call, TRY(), MOE_E_DATA, 3, bad[i], text);
        const moe_tensor choices = view(&row, 0, 1, 4, 1);
        want_all(&t, "choices", &choices, 0);
        if (ot_async(&t)) ot_want(ot_get(&row, 4) == 6); /* its tokens are there */
    }
    ot_set(&ids, 7, 2);
    ot_set(&ids, 6, 2);
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, 3, 2, "layer 5: token 3 chose expert 2 twice");
    ot_set(&ids, 6, -1);
    ot_want(TRY() == MOE_OK);
    ot_want(ot_get(&row, 1) == 1 && ot_get(&row, 2) == 1 && ot_get(&row, 0) == 0 && ot_get(&row, 4) == 6);
#undef TRY
    ot_close(&t);
}
END_TEST

START_TEST(too_many_rows_plan_none) {
    ot t;
    ot_call call;
    routing r;
    ot_start(&t);
    moe_dispatch_plan_attr attr = plan_attr(&faulty);
    count_all(&t, &faulty, &r);
    plan_all(&t, &faulty, &r);
    const int64_t *ends = r.all_offsets.data; /* [2,3] */
    const int64_t most = ends[2] > ends[5] ? ends[2] : ends[5], who = ends[2] == most ? 0 : 1;
    moe_tensor out[6];
    for (int i = 0; i < 6; i++)
        out[i] = ot_clone(
            &t, (const moe_tensor *[]){&r.kept, &r.first, &r.all_offsets, &r.offsets, &r.counts, &r.tokens}[i]);
    attr.limit = most;
    ot_forward(&t, &call, MOE_OP_DISPATCH_PLAN, OT_LIST(r.all), out, 6, &attr, NULL); /* just enough */
    attr.limit = most - 1;
    char text[96];
    snprintf(text, sizeof text, "layer 5: ep rank %d needs %lld rows (aligned to 4), recv_rows is %lld", (int)who,
             (long long)most, (long long)most - 1);
    const moe_status s = ot_try(&t, &call, MOE_OP_DISPATCH_PLAN, OT_LIST(r.all), out, 6, &attr, NULL);
    if (ends[2] != ends[5]) ot_expect_data(&t, &call, s, MOE_E_OVERFLOW, who, most, text);
    for (int i = 0; i < 5; i++) want_all(&t, "the plan", &out[i], 0);
    for (int64_t m = 0; ot_async(&t) && m < 2; m++) ot_want(ot_get(&out[5], m) == (double)tokens_of(&faulty, m));
    ot_close(&t);
}
END_TEST

START_TEST(slots_outside_of_their_maps_move_nothing) {
    ot t;
    ot_call call;
    routing r;
    ot_start(&t);
    count_all(&t, &faulty, &r);
    plan_all(&t, &faulty, &r);
    slots_all(&t, &faulty, &r);
    const moe_dispatch_slots_attr own = {sizeof own, 0, 2, 0};
    moe_tensor slot_row = ot_tensor(&t, MOE_I64, 2, 6, 2), row_slot = ot_tensor(&t, MOE_I64, 40);
#define TRY(rows_)                                                                                                \
    ot_try(&t, &call, MOE_OP_DISPATCH_SLOTS, OT_LIST(r.ids, r.tokens, r.kept, r.first), OT_LIST(slot_row, rows_), \
           &own, NULL)
    for (int64_t bad = -1; bad < 8; bad += 8) {
        ot_set(&r.tokens, 1, (double)bad);
        ot_expect_data(&t, &call, TRY(row_slot), MOE_E_DATA, -1, bad, bad < 0 ? "has -1 tokens" : "has 7 tokens");
        want_all(&t, "slot_row", &slot_row, -1);
        want_all(&t, "row_slot", &row_slot, -1);
    }
    ot_set(&r.tokens, 1, 3);
    const moe_tensor few = view(&row_slot, 0, 1, 1, 1);
    ot_expect_data(&t, &call, TRY(few), MOE_E_DATA, -1, DEVICE_OPEN_ANY, "row_slot has 1");
#undef TRY
    maps_all(&t, &faulty, &r);
    moe_exchange_maps_attr attr = maps_attr(&faulty, &r);
    const moe_tensor ids = view(&r.ids, 0, 2, 6, 2), slots = view(&r.own, 0, 2, 6, 2);
    const int64_t sent = ((int64_t *)r.runs.data)[1], landed = ((int64_t *)r.runs.data)[3];
    moe_tensor out[] = {r.parts, r.runs, r.sent_slot, r.landed_row, r.row_from, r.at};
#define TRY() \
    ot_try(&t, &call, MOE_OP_EXCHANGE_MAPS, OT_LIST(ids, slots, r.kept, r.first, r.offsets), out, 6, &attr, NULL)
#define NOTHING()                                                           \
    do {                                                                    \
        want_all(&t, "parts", &out[0], 0);                                  \
        for (int i_ = 2; i_ < 6; i_++) want_all(&t, "a map", &out[i_], -1); \
    } while (0)
    ot_want(sent > 1 && landed > 1);
    out[2].shape[0] = sent - 1;
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, -1, 0, "rows to send, sent_slot has");
    NOTHING();
    out[2] = r.sent_slot;
    out[3].shape[0] = landed - 1;
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, -1, 0, "rows to come, landed_row has");
    NOTHING();
    out[3] = r.landed_row;
    out[4].shape[0] = ((int64_t *)r.offsets.data)[2] - 1;
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, -1, 0, "rows in expert order, row_from has");
    NOTHING();
    out[4] = r.row_from;
    const int64_t part = largest_part(&faulty, &r);
    attr.slot = part - 1;
    out[2] = ot_tensor(&t, MOE_I64, 2 * part);
    out[3] = ot_tensor(&t, MOE_I64, 2 * part);
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, -1, 0, "slot is");
    NOTHING();
    if (ot_async(&t)) ot_want(ot_get(&r.runs, 1) == (double)(2 * attr.slot)); /* the parts have their places */
    attr.slot = 0;
    out[2] = r.sent_slot;
    out[3] = r.landed_row;
    int64_t i = 0;
    while (((int64_t *)slots.data)[i] < 0) i++;
    ((int64_t *)slots.data)[i] += 1000;
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, -1, 0, "of expert");
    NOTHING();
    ((int64_t *)slots.data)[i] -= 1000;
    ((int64_t *)r.kept.data)[1] = -1;
    ot_expect_data(&t, &call, TRY(), MOE_E_DATA, -1, 0, "");
    NOTHING();
#undef NOTHING
#undef TRY
    ot_close(&t);
}
END_TEST

/* ---- arguments ---- */
START_TEST(arguments_that_contradict_are_refused) {
    ot t;
    ot_call call;
    ot_start(&t);
    moe_tensor ids = ot_tensor(&t, MOE_I32, 6, 2), row = ot_tensor(&t, MOE_I64, 4), all = ot_tensor(&t, MOE_I64, 3, 5);
    moe_tensor cells = ot_tensor(&t, MOE_I64, 3, 4), one = ot_tensor(&t, MOE_I64, 3),
               many = ot_tensor(&t, MOE_I64, 2, 3);
    const moe_expert_counts_attr counts = {.size = sizeof counts, .n_experts = 4};
    ot_refused(&call, ot_try(&t, &call, MOE_OP_EXPERT_COUNTS, OT_LIST(ids), OT_LIST(row), &counts, NULL), MOE_E_ARG,
               "row has 4 numbers");
    moe_dispatch_plan_attr plan = plan_attr(&faulty);
#define PLAN()                                            \
    ot_try(&t, &call, MOE_OP_DISPATCH_PLAN, OT_LIST(all), \
           OT_LIST(cells, cells, many, one, view(&one, 0, 1, 2, 1), one), &plan, NULL)
    ot_refused(&call, PLAN(), MOE_E_ARG, "all is [3,5], want a multiple of 2 rows");
    plan.ep_size = 3;
    ot_refused(&call, PLAN(), MOE_E_ARG, "4 experts on ep rank 0 of 3");
    plan.ep_size = 1;
    plan.align = 0;
    ot_refused(&call, PLAN(), MOE_E_ARG, "align is 0");
    plan.align = 1;
    plan.overflow = 7;
    ot_refused(&call, PLAN(), MOE_E_ARG, "overflow is 7");
#undef PLAN
    const moe_dispatch_slots_attr beyond = {sizeof beyond, 3, 2, 0};
    const moe_tensor deep = {.data = ids.data, .dtype = MOE_I32, .ndim = 3, .shape = {3, 2, 2, 1}};
    const moe_tensor rows = {.data = cells.data, .dtype = MOE_I64, .ndim = 3, .shape = {3, 2, 2, 1}};
    ot_refused(&call,
               ot_try(&t, &call, MOE_OP_DISPATCH_SLOTS, OT_LIST(deep, one, cells, cells), OT_LIST(rows), &beyond, NULL),
               MOE_E_ARG, "2 experts from 3 on");
    const moe_exchange_maps_attr maps = {.size = sizeof maps, .me = 4, .ep_size = 3, .etp_size = 1};
    ot_refused(&call,
               ot_try(&t, &call, MOE_OP_EXCHANGE_MAPS,
                      OT_LIST(ids, view(&cells, 0, 2, 6, 2), cells, cells, view(&one, 0, 1, 2, 1)),
                      OT_LIST(cells, cells, one, one, one, cells), &maps, NULL),
               MOE_E_ARG, "want ep_size * etp_size members");
    const moe_sent_attr sent = {.size = sizeof sent, .members = 4, .me = 0, .bytes = 1};
    ot_refused(&call, ot_try(&t, &call, MOE_OP_SENT, OT_LIST(one), OT_LIST(view(&row, 0, 1, 1, 1)), &sent, NULL),
               MOE_E_ARG, "3 numbers for 4 members");
    ot_refused(&call, ot_try(&t, &call, MOE_OP_CONVERT, OT_LIST(ids), OT_LIST(ids), NULL, NULL), MOE_E_ARG,
               "x is [6,2] I32");
    ot_close(&t);
}
END_TEST

/* ---- moe.convert/0 ---- */
typedef struct conversion {
    int64_t n, skip; /* skip: elements before the tensors, so that they begin at odd addresses */
    int32_t from, to;
} conversion;

static moe_tensor after(const moe_tensor *x, int64_t skip) {
    moe_tensor y = view(x, 0, 1, x->shape[0] - skip, 1);
    y.data = (char *)x->data + skip * (int64_t)ot_dtype_bytes(x->dtype);
    return y;
}
static uint64_t convert_case(ot *t, const void *arg) {
    static const float edges[] = {0.0f, -0.0f, 1.00390625f, 1.01171875f, 1e-40f, -3.4e38f, INFINITY, -INFINITY, NAN};
    const conversion *c = arg;
    ot_call call;
    moe_tensor x = ot_random(t, ot_tensor(t, c->from, c->n + c->skip), -9, 9), y = ot_tensor(t, c->to, c->n + c->skip);
    for (int64_t i = c->skip; i < c->n + c->skip && i < 9; i++) ot_set(&x, i, edges[i]);
    const moe_tensor in = after(&x, c->skip), out = after(&y, c->skip);
    ot_forward(t, &call, MOE_OP_CONVERT, OT_LIST(in), OT_LIST(out), NULL, NULL);
    ot_untouched("y", &y, 0, c->skip);
    for (int64_t i = 0; i < c->n; i++) {
        const float v = (float)ot_get(&in, i), is = (float)ot_get(&out, i);
        const uint16_t want = ot_bf16(v);
        if (isnan(v))
            ot_want(isnan(is));
        else if (c->to == MOE_BF16)
            ot_want_msg(((uint16_t *)out.data)[i] == want, "%g is 0x%x, want 0x%x", (double)v,
                        ((uint16_t *)out.data)[i], want);
        else
            ot_want(memcmp(&v, &is, sizeof v) == 0);
    }
    return ot_hash(0, &out);
}
START_TEST(conversions_round_to_nearest_even) {
    static const conversion all[] = {
        {0, 0, MOE_F32, MOE_BF16},   {1, 0, MOE_F32, MOE_BF16}, {4096, 0, MOE_F32, MOE_BF16},
        {777, 1, MOE_F32, MOE_BF16}, {7, 0, MOE_BF16, MOE_F32}, {1027, 0, MOE_BF16, MOE_F32},
        {555, 3, MOE_BF16, MOE_F32}, {33, 1, MOE_F32, MOE_F32}, {64, 0, MOE_BF16, MOE_BF16}};
    OT_EVERYWHERE(convert_case, all);
}
END_TEST

OT_MAIN("dispatch", a_routing_is_planned_as_plain_loops_do, random_routings_hold, wrong_choices_count_as_none,
        too_many_rows_plan_none, slots_outside_of_their_maps_move_nothing, arguments_that_contradict_are_refused,
        conversions_round_to_nearest_even)
