/* MOE_COMBINE: a warp a row that has come at dispatch adds what its experts made of it and stores one row into the
 * memory of the token's member; after the barrier a warp a token adds the rows that came back, in order of members, in
 * FP32. Memory: 2 h a row of an expert, 4 h a (token, member), 2 h a token in BF16. */
#include "launch.cuh"
#include "lists.cuh"

namespace {

/* To member `to`: the sum of the position's rows, and the scalars of its slots. */
__device__ __forceinline__ void give_back(const deepep_move_call &a, char **list, unsigned turn, uint32_t to,
                                          int64_t position) {
    const uint32_t k = a.rank.shape.k;
    const int32_t *rows = list_of(a, to, position);
    for (uint32_t i = 0; i < a.n_planes; i++) {
        const deepep_plane &p = a.planes[i];
        const int n = list_experts(a, p, list, 0, rows);
        sum_row(p, window_row(a, p, turn, to, a.rank.me, position), list, n, n, n);
    }
    if (!a.slots) return;
    float *slots = window_slots(a, turn, to, a.rank.me, position);
    for (uint32_t slot = (uint32_t)lane_of(); slot < k; slot += 32)
        if (rows[slot] >= 0) slots[slot] = a.rows[rows[slot]];
}

/* Rows of a plane that members [first, end) have given back for a token. */
__device__ __forceinline__ int list_members(const deepep_move_call &a, const deepep_plane &p, char **list, int n,
                                            unsigned turn, const int32_t *position, uint32_t first, uint32_t end) {
    for (uint32_t j = first; j < end; j += 32) {
        const uint32_t m = j + (uint32_t)lane_of();
        const int32_t at = m < end ? position[m] : -1;
        n = list_add(list, n, at < 0 ? nullptr : window_row(a, p, turn, a.rank.me, m, at));
    }
    return n;
}

__device__ __forceinline__ void sum_token(const deepep_move_call &a, char **list, unsigned turn, int64_t t) {
    const uint32_t members = a.rank.shape.members, me = a.rank.me;
    const int32_t *position = a.by.position + t * members;
    for (uint32_t i = 0; i < a.n_planes; i++) {
        const deepep_plane &p = a.planes[i];
        const int part = list_members(a, p, list, 0, turn, position, 0, me);
        const int part_end = position[me] < 0 ? part : list_experts(a, p, list, part, list_of(a, me, position[me]));
        const int n = list_members(a, p, list, part_end, turn, position, me + 1, members);
        sum_row(p, p.tokens + t * p.width, list, part, part_end, n);
    }
}

/* The scalar of a slot: what the members of its ep rank gave, in order. */
__device__ __forceinline__ float sum_slot(const deepep_move_call &a, unsigned turn, int64_t t, uint32_t slot) {
    const deepep_shape &s = a.rank.shape;
    const int32_t ep = a.by.ep[t * s.k + slot];
    float sum = 0.0f;
    if (ep < 0) return sum;
    for (uint32_t m = (uint32_t)ep * s.etp; m < ((uint32_t)ep + 1) * s.etp; m++) {
        const int64_t at = a.by.position[t * s.members + m];
        sum += m == a.rank.me ? a.rows[list_of(a, m, at)[slot]] : window_slots(a, turn, a.rank.me, m, at)[slot];
    }
    return sum;
}

__global__ void __launch_bounds__(DEEPEP_THREADS)
    combine(const __grid_constant__ deepep_move_call one, const deepep_move_call *all) {
    DEEPEP_CALL(deepep_move_call, one, all);
    KERNEL_SHARED(row_lists, lists);
    if (has_ended(a.rank, DEEPEP_LAYOUT)) return;
    char **list = lists.rows[threadIdx.x / 32];
    const unsigned turn = a.rank.sync[DEEPEP_MOVE].epoch % 2;
    const int64_t tokens = tokens_of(a);
    const uint32_t members = a.rank.shape.members, k = a.rank.shape.k;
    int64_t i = warp_of();
    for (uint32_t m = 0; m < members; m++) {
        if (m == a.rank.me) continue;
        const int64_t n = a.by.in_rows[m];
        for (; i < n; i += warps()) give_back(a, list, turn, m, i);
        i -= n;
    }
    if (members > 1 && !meet(a.rank, DEEPEP_MOVE, true)) return;
    for (int64_t t = warp_of(); t < tokens; t += warps()) {
        sum_token(a, list, turn, t);
        for (uint32_t slot = (uint32_t)lane_of(); a.slots && slot < k; slot += 32)
            a.slots[t * k + slot] = sum_slot(a, turn, t, slot);
    }
}

}  // namespace

extern "C" moe_status deepep_combine(const deepep_grid *grid, const deepep_move_call *one, const deepep_move_call *all,
                                     moe_err *err) {
    return LAUNCH(combine, grid, one, all, err);
}
