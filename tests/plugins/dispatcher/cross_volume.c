/* Volumes of dispatcher/deepep and dispatcher/hier. See cross_volume.h. */
#include "cross_volume.h"

static uint64_t row_bytes(const group_case *c) { /* of all planes */
    return (uint64_t)c->s.hidden * (c->s.dtype == MOE_BF16 ? 2 : 4) + (c->s.bare ? 0 : 4);
}

/* Is a member of an expert's ep rank among members [low, high) of its group? */
static int is_there(const group_case *c, int32_t expert, uint32_t low, uint32_t high) {
    const uint32_t ep = (uint32_t)expert / (c->s.experts / c->s.ep), first = ep * c->s.etp;
    return first < high && first + c->s.etp > low;
}

/* Bytes of rank's tokens that have an expert there, and of their scalars. */
static uint64_t crossing(const group_case *c, uint32_t rank, uint32_t low, uint32_t high) {
    uint8_t *kept = oracle_kept(c, rank);
    uint64_t rows = 0, entries = 0;
    for (int64_t t = 0; t < c->s.tokens[rank]; t++) {
        uint64_t n = 0;
        for (int64_t i = t * c->s.k; i < (t + 1) * c->s.k; i++) n += kept[i] && is_there(c, c->ids[rank][i], low, high);
        rows += n > 0;
        entries += n;
    }
    free(kept);
    return rows * row_bytes(c) + (c->s.bare ? 0 : 4 * entries);
}

uint64_t sent_deepep(const group_case *c, uint32_t rank, int32_t direction) {
    const uint32_t base = rank / c->members * c->members, me = rank - base;
    uint64_t n = 0;
    for (uint32_t m = 0; m < c->members; m++) {
        if (m == me) continue;
        n += direction == MOE_DISPATCH ? crossing(c, rank, m, m + 1) : crossing(c, base + m, me, me + 1);
    }
    return n;
}

static uint32_t per_node(const group_case *c) {
    return c->s.node_size && c->s.node_size < c->members ? c->s.node_size : c->members;
}

uint64_t sent_hier_far(const group_case *c, uint32_t rank, int32_t direction) {
    const uint32_t size = per_node(c), base = rank / c->members * c->members, me = rank - base, home = me / size * size;
    uint64_t n = 0;
    for (uint32_t b = 0; b < c->members; b += size) {
        const uint32_t partner = base + b + me % size;
        if (b == home) continue;
        n += direction == MOE_DISPATCH ? crossing(c, rank, b, b + size) : crossing(c, partner, home, home + size);
    }
    return n;
}

uint64_t sent_hier(const group_case *c, uint32_t rank, int32_t direction) {
    const uint32_t size = per_node(c), base = rank / c->members * c->members, me = rank - base, home = me / size * size;
    uint64_t n = sent_hier_far(c, rank, direction);
    for (uint32_t m = home; m < home + size; m++) {
        if (m == me) continue;
        for (uint32_t b = 0; b < c->members; b += size) /* whose tokens this rank, or m, carries */
            n += direction == MOE_DISPATCH ? crossing(c, base + b + me % size, m, m + 1)
                                           : crossing(c, base + b + m % size, me, me + 1);
    }
    return n;
}
