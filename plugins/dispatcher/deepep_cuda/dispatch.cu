/* MOE_DISPATCH: a warp a token stores its row to each member that it goes to, straight into their memory; what stays
 * here, and padding, is written meanwhile; after the barrier a warp a row that has come spreads it to the rows of
 * expert order that want it. Memory: a row is read once and written once to each member, then read once and written
 * once an expert. */
#include "launch.cuh"
#include "lists.cuh"

namespace {

/* To others: the row, and the scalars of the slots that go there. */
__device__ __forceinline__ void send_token(const deepep_move_call &a, char **list, unsigned turn, int64_t t) {
    const deepep_shape &s = a.rank.shape;
    const int32_t *position = a.by.position + t * s.members;
    for (uint32_t i = 0; i < a.n_planes; i++) {
        const deepep_plane &p = a.planes[i];
        int n = 0;
        for (uint32_t j = 0; j < s.members; j += 32) {
            const uint32_t m = j + (uint32_t)lane_of();
            const int32_t at = m < s.members && m != a.rank.me ? position[m] : -1;
            n = list_add(list, n, at < 0 ? nullptr : window_row(a, p, turn, m, a.rank.me, at));
        }
        copy_row(p, list, n, p.tokens + t * p.width);
    }
    for (uint32_t c = (uint32_t)lane_of(); a.slots && c < s.k * s.etp; c += 32) {
        const uint32_t slot = c / s.etp, m = (uint32_t)a.by.ep[t * s.k + slot] * s.etp + c % s.etp;
        if (a.by.ep[t * s.k + slot] < 0 || m == a.rank.me) continue;
        window_slots(a, turn, m, a.rank.me, position[m])[slot] = a.slots[t * s.k + slot];
    }
}

/* What has come at a position of member `from` (rows of plane 0, .. by `row`): to expert order. */
struct come {
    uint32_t from;
    int64_t position;
    int64_t token; /* of this member, where from is this member */
};
__device__ __forceinline__ void spread(const deepep_move_call &a, char **list, unsigned turn, const come &x) {
    const deepep_shape &s = a.rank.shape;
    const int32_t *rows = list_of(a, x.from, x.position);
    const bool own = x.from == a.rank.me;
    for (uint32_t i = 0; i < a.n_planes; i++) {
        const deepep_plane &p = a.planes[i];
        const int n = list_experts(a, p, list, 0, rows);
        copy_row(p, list, n,
                 own ? p.tokens + x.token * p.width : window_row(a, p, turn, a.rank.me, x.from, x.position));
    }
    if (!a.slots) return;
    const float *slots = own ? a.slots + x.token * s.k : window_slots(a, turn, a.rank.me, x.from, x.position);
    for (uint32_t slot = (uint32_t)lane_of(); slot < s.k; slot += 32)
        if (rows[slot] >= 0) a.rows[rows[slot]] = slots[slot];
}

/* Padding rows, a warp each: zero. */
__device__ __forceinline__ void clear_padding(const deepep_move_call &a) {
    for (uint32_t g = 0; g < a.groups; g++) {
        const int64_t end = a.offsets[g + 1];
        for (int64_t row = a.offsets[g] + a.counts[g] + warp_of(); row < end; row += warps()) {
            for (uint32_t i = 0; i < a.n_planes; i++) {
                const deepep_plane &p = a.planes[i];
                uint16_t *to = reinterpret_cast<uint16_t *>(p.experts + row * p.width);
                for (int c = lane_of(); c < (int)(p.width / 2); c += 32) to[c] = 0;
            }
            if (a.rows && lane_of() == 0) a.rows[row] = 0.0f;
        }
    }
}

__global__ void __launch_bounds__(DEEPEP_THREADS)
    dispatch(const __grid_constant__ deepep_move_call one, const deepep_move_call *all) {
    DEEPEP_CALL(deepep_move_call, one, all);
    KERNEL_SHARED(row_lists, lists);
    if (has_ended(a.rank, DEEPEP_LAYOUT)) return;
    char **list = lists.rows[threadIdx.x / 32];
    const unsigned turn = a.rank.sync[DEEPEP_MOVE].epoch % 2;
    const int64_t tokens = tokens_of(a);
    const uint32_t me = a.rank.me, members = a.rank.shape.members;
    if (members > 1)
        for (int64_t t = warp_of(); t < tokens; t += warps()) send_token(a, list, turn, t);
    for (int64_t t = warp_of(); t < tokens; t += warps()) {
        const int32_t position = a.by.position[t * members + me];
        if (position >= 0) spread(a, list, turn, come{me, position, t});
    }
    clear_padding(a);
    if (members == 1 || !meet(a.rank, DEEPEP_MOVE, true)) return;
    int64_t i = warp_of(); /* of what has come, member by member */
    for (uint32_t m = 0; m < members; m++) {
        if (m == me) continue;
        const int64_t n = a.by.in_rows[m];
        for (; i < n; i += warps()) spread(a, list, turn, come{m, i, 0});
        i -= n;
    }
}

}  // namespace

extern "C" moe_status deepep_dispatch(const deepep_grid *grid, const deepep_move_call *one, const deepep_move_call *all,
                                      moe_err *err) {
    return LAUNCH(dispatch, grid, one, all, err);
}
