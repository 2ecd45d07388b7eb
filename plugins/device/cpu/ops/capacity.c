/* moe.capacity/0: which choices stay where an expert takes at most `capacity` of a run of tokens. By position a counter
 * suffices. By weight the capacity-th largest of an expert is found by its bits, eight at a time (a radix select, exact
 * and without comparisons), and a last pass in order of token keeps what is above it and the first of what equals it:
 * O(T k) whatever the capacity. */
#include "args.h"

static const char op[] = MOE_OP_CAPACITY;
enum { DIGITS = 256 };

typedef struct expert_state {
    int64_t count, begin; /* choices in this scope; where its keys begin */
    int64_t above, ties;  /* still to keep; of those that equal the threshold */
    uint32_t threshold, reserved;
} expert_state;
enum { MOST_EXPERTS = CPU_SCRATCH_BYTES / sizeof(expert_state) };

typedef struct capacity_call {
    const int32_t *ids;               /* [T,k] */
    const float *weights;             /* [T,k] */
    int32_t *kept_ids;                /* [T,k] */
    float *kept_weights;              /* [T,k] */
    int64_t *dropped;                 /* [scopes,2]: choices, dropped */
    uint32_t *keys;                   /* [T,k]: of a scope, by expert; MOE_DROP_PROB only */
    int64_t experts, capacity, pairs; /* pairs: of a scope */
    int32_t drop;
} capacity_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    moe_status s = op_check_capacity(a, MOST_EXPERTS, err);
    if (s != MOE_OK) return s;
    const moe_capacity_attr *at = a->attr;
    *saved = 0;
    *workspace = (uint64_t)(a->in[0].shape[0] / at->scope) * 2 * sizeof(int64_t);
    if (at->drop == MOE_DROP_PROB) *workspace += (uint64_t)op_elements(&a->in[0]) * sizeof(uint32_t);
    return MOE_OK;
}

/* The order of floats as the order of unsigned numbers; -0 is 0. */
static uint32_t key_of(float weight) {
    uint32_t u;
    memcpy(&u, &weight, sizeof u);
    if (u == 0x80000000u) u = 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The rank-th largest of key[n], 1 <= rank <= n; *ties: how many of those equal to it are among the largest `rank`. */
static uint32_t select_key(const uint32_t *key, int64_t n, int64_t rank, int64_t *ties) {
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[DIGITS] = {0};
        for (int64_t i = 0; i < n; i++)
            if ((key[i] & mask) == prefix) count[(key[i] >> shift) % DIGITS]++;
        uint32_t digit = DIGITS - 1;
        for (; count[digit] < rank; digit--) rank -= count[digit];
        prefix |= digit << shift;
        mask |= (uint32_t)(DIGITS - 1) << shift;
    }
    *ties = rank;
    return prefix;
}

/* Thresholds of the experts that have more than their capacity. */
static void set_thresholds(const capacity_call *c, int64_t first, expert_state *e) {
    uint32_t *keys = c->keys + first; /* [pairs] */
    int64_t begin = 0;
    for (int64_t j = 0; j < c->experts; begin += e[j++].count) e[j].begin = begin;
    for (int64_t i = first; i < first + c->pairs; i++)
        if (c->ids[i] >= 0) keys[e[c->ids[i]].begin++] = key_of(c->weights[i]);
    for (int64_t j = 0; j < c->experts; j++)
        if (e[j].count > c->capacity)
            e[j].threshold = select_key(keys + e[j].begin - e[j].count, e[j].count, c->capacity, &e[j].ties);
}

/* Does this choice of an expert with too many stay? Asked in order of token. */
static int stays(const capacity_call *c, expert_state *e, float weight) {
    if (c->drop == MOE_DROP_POSITION) return e->above-- > 0;
    uint32_t key = key_of(weight);
    return key > e->threshold || (key == e->threshold && e->ties-- > 0);
}

static void cut_scope(void *arg, int64_t scope, cpu_worker *w) {
    const capacity_call *c = arg;
    expert_state *e = (expert_state *)(void *)w->scratch; /* [E] */
    const int64_t first = scope * c->pairs;
    int64_t choices = 0, dropped = 0;
    memset(e, 0, (size_t)c->experts * sizeof *e);
    for (int64_t j = 0; j < c->experts; j++) e[j].above = c->capacity;
    for (int64_t i = first; i < first + c->pairs; i++)
        if (c->ids[i] >= 0) e[c->ids[i]].count++, choices++;
    if (c->drop == MOE_DROP_PROB) set_thresholds(c, first, e);
    for (int64_t i = first; i < first + c->pairs; i++) {
        int32_t id = c->ids[i];
        int keep = id >= 0 && (e[id].count <= c->capacity || stays(c, &e[id], c->weights[i]));
        dropped += id >= 0 && !keep;
        c->kept_ids[i] = keep ? id : -1;
        c->kept_weights[i] = keep ? c->weights[i] : 0.0f;
    }
    c->dropped[2 * scope] = choices;
    c->dropped[2 * scope + 1] = dropped;
}

/* An id that no expert has, or a choice whose weight is not a number. */
static moe_status check_data(const capacity_call *c, int64_t pairs, int64_t k, moe_err *err) {
    int64_t bad = cpu_find_i32(c->ids, pairs, -1, c->experts);
    if (bad >= 0)
        return moe_fail(err, MOE_E_DATA, "%s: token %lld slot %lld has expert %d, want -1 or below %lld", op,
                        (long long)(bad / k), (long long)(bad % k), c->ids[bad], (long long)c->experts);
    for (int64_t i = 0; i < pairs; i++)
        if (isnan(c->weights[i]) && c->ids[i] >= 0)
            return moe_fail(err, MOE_E_DATA, "%s: token %lld slot %lld has a weight that is not a number", op,
                            (long long)(i / k), (long long)(i % k));
    return MOE_OK;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    const moe_capacity_attr *at = a->attr;
    const int64_t tokens = a->in[0].shape[0], k = a->in[0].shape[1], scopes = tokens / at->scope;
    capacity_call c = {.ids = a->in[0].data, .weights = a->in[1].data, .kept_ids = a->out[0].data};
    c.kept_weights = a->out[1].data;
    c.dropped = a->workspace;
    if (c.dropped) c.keys = (uint32_t *)(void *)(c.dropped + 2 * scopes);
    c.experts = at->n_experts;
    c.capacity = at->capacity;
    c.pairs = at->scope * k;
    c.drop = at->drop;
    moe_status s = check_data(&c, tokens * k, k, err);
    if (s != MOE_OK) return s;
    cpu_run(dev, scopes, cut_scope, &c);
    int64_t *n = a->out[2].data; /* [2] */
    for (int64_t i = 0; i < scopes; i++) {
        n[0] += c.dropped[2 * i];
        n[1] += c.dropped[2 * i + 1];
    }
    return MOE_OK;
}

const moe_op CPU_OP(capacity) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
