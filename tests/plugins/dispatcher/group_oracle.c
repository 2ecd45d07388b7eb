/* What must come out of a dispatcher, as plain loops over the inputs of all ranks; and the dispatchers there are. */
#include "cross_volume.h"
#include "group_case.h"

/* ---- values ---- */
uint32_t group_roll(uint64_t *x, uint32_t n) {
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*x >> 33) % n);
}

/* A float of 24 random bits around 0. */
static float real_value(uint64_t key) {
    uint64_t x = key * 0x9e3779b97f4a7c15ull + 1;
    group_roll(&x, 2);
    return ((float)group_roll(&x, 1u << 24) - (float)(1 << 23)) / (float)(1 << 21);
}

float group_hidden(const group_case *c, uint32_t rank, int64_t t, int64_t j) {
    if (c->s.real) return group_round(c, real_value((uint64_t)(rank * 1000003 + t * 1009 + j)));
    return (float)((rank * 5 + t * 7 + j * 3) % 15 - 7);
}
float group_second(const group_case *c, uint32_t rank, int64_t t) {
    (void)c;
    return (float)(rank * 1000 + t % 1000 + 1);
}
float group_slot(const group_case *c, uint32_t rank, int64_t slot) {
    if (c->s.real) return real_value((uint64_t)slot * 31 + rank * 77777 + 5);
    return (float)(slot % 4096 + 1 + rank) * 0.5f;
}
float group_factor(uint32_t e, uint32_t etp) {
    return (float)((e % 3 + 1) * (etp + 1));
}
float group_round(const group_case *c, float x) {
    return c->s.dtype == MOE_BF16 ? plain_from_bf16(plain_to_bf16(x)) : x;
}

/* ---- rows ---- */
static int64_t up(const group_case *c, int64_t rows) {
    return (rows + c->s.align - 1) / c->s.align * c->s.align;
}

/* The next row of expert `id` in order of members, tokens, slots after *at; false at the end. */
static int next_choice(const group_case *c, uint32_t base, int32_t id, oracle_row *at) {
    for (; at->rank < base + c->members; at->rank++, at->slot = -1)
        while (++at->slot < c->s.tokens[at->rank] * c->s.k)
            if (c->ids[at->rank][at->slot] == id) return 1;
    return 0;
}

/* Rows are given one at a time, while their aligned end and what later experts take in any case fit. */
oracle oracle_of(const group_case *c, uint32_t rank, uint32_t ep) {
    const uint32_t base = rank / c->members * c->members, G = c->s.experts / c->s.ep;
    int64_t most = G * up(c, c->s.min_rows);
    for (uint32_t m = 0; m < c->members; m++) most += c->s.tokens[base + m] * c->s.k + G * c->s.align;
    oracle o = {.offsets = calloc(G + 1, sizeof *o.offsets), .counts = calloc(G, sizeof *o.counts)};
    o.rows = calloc((size_t)most + 1, sizeof *o.rows);
    for (uint32_t g = 0; g < G; g++) {
        const uint32_t e = ep * G + g;
        const int64_t later = (G - 1 - g) * up(c, c->s.min_rows);
        oracle_row at = {.rank = base, .slot = -1, .expert = e};
        int64_t row = o.offsets[g], all = 0;
        while (next_choice(c, base, (int32_t)e, &at)) {
            all++;
            if (c->s.recv_rows && o.offsets[g] + up(c, row + 1 - o.offsets[g]) + later > c->s.recv_rows) continue;
            o.rows[row++] = at;
        }
        o.counts[g] = row - o.offsets[g];
        o.offsets[g + 1] = o.offsets[g] + up(c, o.counts[g] > c->s.min_rows ? o.counts[g] : c->s.min_rows);
        while (row < o.offsets[g + 1]) o.rows[row++] = (oracle_row){-1, -1, e};
        o.needed += up(c, all > c->s.min_rows ? all : c->s.min_rows);
    }
    return o;
}

void oracle_free(oracle *o) {
    free(o->offsets);
    free(o->counts);
    free(o->rows);
}

uint8_t *oracle_kept(const group_case *c, uint32_t rank) {
    uint8_t *kept = calloc((size_t)(c->s.tokens[rank] * c->s.k) + 1, 1);
    for (uint32_t ep = 0; ep < c->s.ep; ep++) {
        oracle o = oracle_of(c, rank, ep);
        for (int64_t i = 0; i < o.offsets[c->s.experts / c->s.ep]; i++)
            if (o.rows[i].slot >= 0 && o.rows[i].rank == rank) kept[o.rows[i].slot] = 1;
        oracle_free(&o);
    }
    return kept;
}

/* ---- dispatchers ---- */
static uint64_t row_bytes(const group_case *c) { /* of all planes */
    return (uint64_t)c->s.hidden * (c->s.dtype == MOE_BF16 ? 2 : 4) + (c->s.bare ? 0 : 4);
}
/* Rows of `rank`'s slots at ep rank `ep`. */
static uint64_t rows_at(const group_case *c, uint32_t rank, uint32_t ep) {
    uint8_t *kept = oracle_kept(c, rank);
    uint64_t n = 0;
    for (int64_t i = 0; i < c->s.tokens[rank] * c->s.k; i++)
        n += kept[i] && (uint32_t)c->ids[rank][i] / (c->s.experts / c->s.ep) == ep;
    free(kept);
    return n;
}

static uint64_t sent_none(const group_case *c, uint32_t rank, int32_t direction) {
    (void)c, (void)rank, (void)direction;
    return 0;
}

/* k copies of a token, times etp, without what stays. */
static uint64_t sent_alltoall(const group_case *c, uint32_t rank, int32_t direction) {
    const uint32_t base = rank / c->members * c->members, ep = (rank - base) / c->s.etp;
    const uint64_t own = rows_at(c, rank, ep);
    uint64_t n = 0;
    if (direction == MOE_DISPATCH)
        for (uint32_t d = 0; d < c->s.ep; d++) n += rows_at(c, rank, d) * c->s.etp;
    else
        for (uint32_t m = 0; m < c->members; m++) n += rows_at(c, base + m, ep);
    return (n - own) * (row_bytes(c) + (c->s.bare ? 0 : 4));
}

static uint64_t sent_allgather(const group_case *c, uint32_t rank, int32_t direction) {
    const uint32_t base = rank / c->members * c->members;
    const uint64_t scalars = c->s.bare ? 0 : c->s.k, elements = (uint64_t)c->s.hidden + (c->s.bare ? 0 : 1);
    uint64_t others = 0;
    for (uint32_t m = 0; m < c->members; m++)
        if (base + m != rank) others += (uint64_t)c->s.tokens[base + m];
    if (direction == MOE_COMBINE) return others * 4 * (elements + scalars);
    return (c->members - 1) * (uint64_t)c->s.tokens[rank] * (row_bytes(c) + 4 * scalars);
}

const group_kind group_kinds[] = {
    {.id = "local", .plugin = "local", .one_rank = 1, .sent = sent_none},
    {.id = "allgather", .plugin = "allgather", .by_member = 1, .sent = sent_allgather},
    {.id = "alltoall", .plugin = "alltoall", .sent = sent_alltoall},
    {.id = "allgather, slots fixed", .plugin = "allgather", .fixed = 1, .by_member = 1, .sent = sent_allgather},
    {.id = "alltoall, slots fixed", .plugin = "alltoall", .fixed = 1, .sent = sent_alltoall},
    {.id = "deepep", .plugin = "deepep", .cpu = 1, .cuda = 1, .by_member = 1, .rounds = 1, .sent = sent_deepep},
    {.id = "deepep, no counts",
     .plugin = "deepep",
     .cpu = 1,
     .cuda = 1,
     .fixed = 1,
     .by_member = 1,
     .rounds = 1,
     .sent = sent_deepep},
    {.id = "hier", .plugin = "hier", .cpu = 1, .by_member = 1, .rounds = 2, .sent = sent_hier},
};
enum { KINDS = sizeof group_kinds / sizeof group_kinds[0] };

int n_group_kinds(void) {
    const int cuda = strcmp(test_device(), "cuda") == 0;
    int n = 0;
    while (n < KINDS && (test_on_cpu() || !group_kinds[n].cpu || (cuda && group_kinds[n].cuda))) n++;
    return n;
}

int group_runs(const char *id) {
    for (int i = 0; i < n_group_kinds(); i++)
        if (strcmp(group_kinds[i].id, id) == 0) return 1;
    return 0;
}

const group_kind *group_kind_of(const char *id) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(group_kinds[i].id, id) == 0) return &group_kinds[i];
    return NULL;
}
