/* Where the parts of a member's memory lie. See peers.h. */
#include "peers.h"

enum { PART = 256, PACK = 16 };

static uint64_t up(uint64_t n, uint64_t step) {
    return (n + step - 1) / step * step;
}
static uint64_t take(uint64_t *end, uint64_t bytes) {
    const uint64_t at = *end;
    *end = up(at + bytes, PART);
    return at;
}

void deepep_shape_fill(deepep_shape *s, int64_t elements) {
    const uint64_t regions = s->members - 1, positions = regions * (uint64_t)s->tokens;
    uint64_t end = 0;
    take(&end, sizeof(uint32_t) * DEEPEP_CHANNELS * DEEPEP_MEMBERS);
    s->numbers = take(&end, 8 * s->members * (uint64_t)s->stride);
    s->came = take(&end, 8 * (uint64_t)s->members);
    s->lists = take(&end, 4 * positions * s->k);
    s->half = up(positions * (4 * (uint64_t)elements + PACK * DEEPEP_PLANES) + PART * DEEPEP_PLANES, PART);
    s->half += up(4 * positions * s->k, PART);
    s->halves = take(&end, 2 * s->half);
    s->bytes = end;
}

uint64_t deepep_place(deepep_move_call *call) {
    const deepep_shape *s = &call->rank.shape;
    const uint64_t positions = (uint64_t)(s->members - 1) * (uint64_t)s->tokens;
    uint64_t end = 0;
    for (uint32_t i = 0; i < call->n_planes; i++) {
        deepep_plane *p = &call->planes[i];
        p->pitch = (int64_t)up((uint64_t)p->width, PACK);
        p->at = take(&end, positions * (uint64_t)p->pitch);
    }
    call->slots_at = take(&end, call->slots ? 4 * positions * s->k : 0);
    return end;
}

static void place_routing(const deepep_shape *s, uint64_t at[8], uint64_t *end) {
    const uint64_t m = s->members, t = (uint64_t)s->tokens;
    const uint64_t bytes[8] = {8, 8 * m, 8 * m, 8 * m, 8 * m, 4 * t * m, 4 * t * s->k, 4 * m * t * s->k};
    *end = 0;
    for (int i = 0; i < 8; i++) at[i] = take(end, bytes[i]);
}

uint64_t deepep_routing_bytes(const deepep_shape *s) {
    uint64_t at[8], end;
    place_routing(s, at, &end);
    return end;
}

deepep_routing deepep_routing_at(const deepep_shape *s, void *memory) {
    uint64_t at[8], end;
    char *block = memory;
    place_routing(s, at, &end);
    return (deepep_routing){.tokens = (int64_t *)(void *)(block + at[0]),
                            .out_rows = (int64_t *)(void *)(block + at[1]),
                            .out_slots = (int64_t *)(void *)(block + at[2]),
                            .in_rows = (int64_t *)(void *)(block + at[3]),
                            .in_slots = (int64_t *)(void *)(block + at[4]),
                            .position = (int32_t *)(void *)(block + at[5]),
                            .ep = (int32_t *)(void *)(block + at[6]),
                            .list = (int32_t *)(void *)(block + at[7])};
}
