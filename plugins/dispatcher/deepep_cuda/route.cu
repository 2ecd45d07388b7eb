/* Layout. tell: every member's row of numbers goes to all. route: where tokens go. Each warp of a member has a run of
 * its tokens: it counts how many go to each ep rank, and when all warps have, gives each token its position there, the
 * number of those before it, and writes the rows that its slots have there into the members' lists. After the barrier
 * what has come is taken over. Positions are prefix sums, so every run gives the same. */
#include "launch.cuh"
#include "lists.cuh"

namespace {

/* ---- tell ---- */
__global__ void __launch_bounds__(DEEPEP_THREADS)
    tell(const __grid_constant__ deepep_tell_call one, const deepep_tell_call *all) {
    DEEPEP_CALL(deepep_tell_call, one, all);
    const deepep_shape &s = a.rank.shape;
    const int64_t step = (int64_t)gridDim.x * blockDim.x, first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t *mine = a.numbers + a.rank.me * s.stride;
    for (uint32_t m = 0; m < s.members; m++) {
        int64_t *there = reinterpret_cast<int64_t *>(a.rank.peer[m] + s.numbers) + a.rank.me * s.stride;
        for (int64_t i = first; m != a.rank.me && i < s.stride; i += step) there[i] = mine[i];
    }
    if (!meet(a.rank, DEEPEP_LAYOUT, true)) return;
    const int64_t *came = reinterpret_cast<const int64_t *>(a.rank.peer[a.rank.me] + s.numbers);
    for (uint32_t m = 0; m < s.members; m++)
        for (int64_t i = first; m != a.rank.me && i < s.stride; i += step)
            a.numbers[m * s.stride + i] = came[m * s.stride + i];
}

/* ---- route ---- */
/* A warp's tokens. */
struct run {
    int64_t first, end;
};
__device__ __forceinline__ run run_of(int64_t n) {
    const int64_t each = (n + warps() - 1) / warps();
    const int64_t first = each * warp_of(), end = first + each;
    return run{first < n ? first : n, end < n ? end : n};
}
__device__ __forceinline__ uint32_t eps_of(const deepep_shape &s) {
    return s.members / s.etp;
}

/* A number of each ep rank, in registers: lane l of the warp has those of l and of 32 + l. */
struct per_ep {
    int32_t low, high;
    __device__ __forceinline__ void add(uint32_t ep, int32_t n) {
        if ((uint32_t)lane_of() != ep % 32) return;
        low += ep < 32 ? n : 0;
        high += ep < 32 ? 0 : n;
    }
    __device__ __forceinline__ int32_t get(uint32_t ep) const { /* of this lane's */
        return ep < 32 ? low : high;
    }
};

/* Ep ranks that a token goes to, bit by bit; its slots' are written. */
__device__ __forceinline__ uint64_t goes_of(const deepep_route_call &a, int64_t t, bool there) {
    const deepep_shape &s = a.rank.shape;
    uint64_t to = 0;
    for (uint32_t j = 0; there && j < s.k; j++) {
        const int64_t slot = t * s.k + j;
        const int32_t ep = a.slot_row[slot] < 0 ? -1 : a.ids[slot] / (int32_t)s.groups;
        a.to.ep[slot] = ep;
        if (ep >= 0) to |= 1ull << ep;
    }
    return to;
}

/* How many tokens of the warp's run go to each ep rank. */
__device__ __forceinline__ void count_run(const deepep_route_call &a, const run &mine) {
    const uint32_t eps = eps_of(a.rank.shape);
    per_ep count = {};
    for (int64_t first = mine.first; first < mine.end; first += 32) {
        const uint64_t to = goes_of(a, first + lane_of(), first + lane_of() < mine.end);
        for (uint32_t ep = 0; ep < eps; ep++) count.add(ep, __popc(__ballot_sync(0xffffffffu, to >> ep & 1)));
    }
    for (uint32_t ep = (uint32_t)lane_of(); ep < eps; ep += 32) a.partial[warp_of() * eps + ep] = count.get(ep);
}

/* Token t has a position at every member of an ep rank: in its list, the rows of the slots that go there. */
__device__ __forceinline__ void write_list(const deepep_route_call &a, int64_t t, uint32_t ep, int32_t position) {
    const deepep_shape &s = a.rank.shape;
    for (uint32_t m = ep * s.etp; m < (ep + 1) * s.etp; m++) {
        a.to.position[t * s.members + m] = position;
        int32_t *list = m == a.rank.me ? a.to.list + (m * s.tokens + position) * s.k
                                       : reinterpret_cast<int32_t *>(a.rank.peer[m] + s.lists) +
                                             (region_of(m, a.rank.me) * s.tokens + position) * s.k;
        for (uint32_t j = 0; j < s.k; j++)
            list[j] = a.to.ep[t * s.k + j] == (int32_t)ep ? (int32_t)a.slot_row[t * s.k + j] : -1;
    }
}
__device__ __forceinline__ void write_nowhere(const deepep_route_call &a, int64_t t, uint32_t ep) {
    const deepep_shape &s = a.rank.shape;
    for (uint32_t m = ep * s.etp; m < (ep + 1) * s.etp; m++) a.to.position[t * s.members + m] = -1;
}

/* Tells the members of ep ranks how many rows they get: the last warp, whose run ends where all tokens end. */
__device__ __forceinline__ void write_ends(const deepep_route_call &a, const per_ep &end) {
    const deepep_shape &s = a.rank.shape;
    for (uint32_t ep = (uint32_t)lane_of(); ep < eps_of(s); ep += 32)
        for (uint32_t m = ep * s.etp; m < (ep + 1) * s.etp; m++) {
            a.to.out_rows[m] = end.get(ep);
            if (m == a.rank.me)
                a.to.in_rows[m] = end.get(ep);
            else
                reinterpret_cast<int64_t *>(a.rank.peer[m] + s.came)[a.rank.me] = end.get(ep);
        }
    if (lane_of() == 0) *a.to.tokens = a.n;
}

__device__ __forceinline__ void place_run(const deepep_route_call &a, const run &mine) {
    const uint32_t eps = eps_of(a.rank.shape);
    per_ep base = {};
    for (uint32_t ep = (uint32_t)lane_of(); ep < eps; ep += 32)
        for (int w = 0; w < warp_of(); w++) base.add(ep, a.partial[w * eps + ep]);
    for (int64_t first = mine.first; first < mine.end; first += 32) {
        const int64_t t = first + lane_of();
        const bool there = t < mine.end;
        const uint64_t to = goes_of(a, t, there);
        for (uint32_t ep = 0; ep < eps; ep++) {
            const unsigned all = __ballot_sync(0xffffffffu, to >> ep & 1);
            const int32_t before = __shfl_sync(0xffffffffu, base.get(ep), (int)(ep % 32));
            if (to >> ep & 1)
                write_list(a, t, ep, before + __popc(all & ((1u << lane_of()) - 1)));
            else if (there)
                write_nowhere(a, t, ep);
            base.add(ep, __popc(all));
        }
    }
    if (warp_of() == warps() - 1) write_ends(a, base);
}

/* Slots that go to a member, and come from it: those of its tokens that have rows at an ep rank. */
__device__ __forceinline__ int64_t kept_of(const deepep_route_call &a, uint32_t member, uint32_t ep) {
    const deepep_shape &s = a.rank.shape;
    const int64_t experts = (int64_t)eps_of(s) * s.groups;
    int64_t n = 0;
    for (uint32_t g = 0; g < s.groups; g++) n += a.kept[member * experts + ep * s.groups + g];
    return n;
}

/* The lists that have come, from this member's memory to the routing; the first warp: how many. */
__device__ __forceinline__ void take_over(const deepep_route_call &a) {
    const deepep_shape &s = a.rank.shape;
    const char *memory = a.rank.peer[a.rank.me];
    const int64_t *came = reinterpret_cast<const int64_t *>(memory + s.came);
    for (uint32_t m = 0; m < s.members; m++) {
        if (m == a.rank.me) continue;
        const int32_t *from =
            reinterpret_cast<const int32_t *>(memory + s.lists) + region_of(a.rank.me, m) * s.tokens * s.k;
        int32_t *to = a.to.list + m * s.tokens * s.k;
        for (int64_t i = warp_of() * 32 + lane_of(); i < came[m] * s.k; i += warps() * 32) to[i] = from[i];
    }
    for (uint32_t m = (uint32_t)lane_of(); warp_of() == 0 && m < s.members; m += 32) {
        if (m != a.rank.me) a.to.in_rows[m] = came[m];
        a.to.out_slots[m] = kept_of(a, a.rank.me, m / s.etp);
        a.to.in_slots[m] = kept_of(a, m, a.rank.me / s.etp);
    }
}

__global__ void __launch_bounds__(DEEPEP_THREADS)
    route(const __grid_constant__ deepep_route_call one, const deepep_route_call *all) {
    DEEPEP_CALL(deepep_route_call, one, all);
    if (has_ended(a.rank, DEEPEP_LAYOUT)) return;
    const run mine = run_of(a.n);
    count_run(a, mine);
    if (!meet(a.rank, DEEPEP_LAYOUT, false)) return;
    place_run(a, mine);
    if (a.rank.shape.members > 1 && !meet(a.rank, DEEPEP_LAYOUT, true)) return;
    take_over(a);
}

}  // namespace

extern "C" moe_status deepep_tell(const deepep_grid *grid, const deepep_tell_call *one, const deepep_tell_call *all,
                                  moe_err *err) {
    return LAUNCH(tell, grid, one, all, err);
}
extern "C" moe_status deepep_route(const deepep_grid *grid, const deepep_route_call *one, const deepep_route_call *all,
                                   moe_err *err) {
    return LAUNCH(route, grid, one, all, err);
}
