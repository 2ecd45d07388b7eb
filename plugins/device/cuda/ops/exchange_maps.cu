/* moe.exchange_maps/0, in three launches: scans of the rows of every part, beside checks of the plan and of the slots;
 * one block that makes the parts of them (common/plan.h) and sees whether they fit; and a grid that fills the maps, a
 * thread a place. Every place is written by one thread. Memory: 8 bytes a place of each map, and what a slot has (12
 * bytes) read twice. */
#include "../../common/plan.h"
#include "call.cuh"
#include "fault.cuh"
#include "reduce.cuh"

namespace {

enum { THREADS = 256 };

struct maps_io {
    plan_group g;
    int64_t me, ep, slot;
    const int32_t *ids;                                   /* [T,k] */
    const int64_t *slot_row, *kept, *first, *offsets;     /* [T,k], [M,E], [M,E], [G+1] */
    int64_t *parts, *runs;                                /* [MOE_PARTS,M], [2,2] */
    int64_t *sent_slot, *landed_row, *row_from, *slot_at; /* [A], [B], [N], [T,k*etp] */
    int64_t *out_before, *in_before, *to, *from;          /* [E], [M,G], [ep_size], [M]: workspace */
    int64_t *broken;                                      /* [1], behind them */
    int64_t slots, places_sent, places_landed, rows;      /* T*k, A, B, N */
};

__device__ __forceinline__ void refuse(const maps_io &c) {
    atomicExch(reinterpret_cast<unsigned long long *>(c.broken), 1ull);
}

/* The block's threads: before [n] = rows before each expert's; *all = rows of the part. */
__device__ void scan(const int64_t *__restrict__ kept, int64_t n, int64_t *__restrict__ before, int64_t *all,
                     block_room<int64_t> &room) {
    int64_t rows = 0;
    for (int64_t at = 0; at < n; at += THREADS) {
        const int64_t i = at + threadIdx.x;
        int64_t sum;
        const int64_t mine = block_before(i < n ? kept[i] : 0, room, &sum);
        if (i < n) before[i] = rows + mine;
        rows += sum;
    }
    if (threadIdx.x == 0) *all = rows;
}

/* A plan whose rows lie in their experts', and slots of which one with a row has an expert, and one of its rows. */
__device__ void check(const maps_io &c, int64_t i) {
    if (i < c.g.members * c.g.experts) {
        const int64_t g = i % c.g.experts - c.ep * c.g.groups;
        const int64_t room = g >= 0 && g < c.g.groups ? plan_least(c.offsets[g + 1], c.rows) : INT64_MAX;
        if (c.kept[i] < 0 || c.first[i] < 0 || c.kept[i] > room || c.first[i] > room - c.kept[i]) refuse(c);
    }
    if (i >= c.slots || c.slot_row[i] < 0) return;
    const int64_t e = c.ids[i], cell = c.me * c.g.experts + e;
    if (e < 0 || e >= c.g.experts || c.slot_row[i] < c.first[cell] || c.slot_row[i] - c.first[cell] >= c.kept[cell])
        refuse(c);
}

__global__ void __launch_bounds__(THREADS) before(maps_io c) {
    KERNEL_SHARED(block_room<int64_t>, room);
    const int64_t groups = c.g.groups, ranks = c.g.ep_size, b = blockIdx.x, m = b - ranks;
    if (m >= c.g.members)
        check(c, (m - c.g.members) * THREADS + threadIdx.x);
    else if (m >= 0)
        scan(c.kept + m * c.g.experts + c.ep * groups, groups, c.in_before + m * groups, &c.from[m], room);
    else
        scan(c.kept + c.me * c.g.experts + b * groups, groups, c.out_before + b * groups, &c.to[b], room);
}

__global__ void __launch_bounds__(THREADS, 1) make_parts(maps_io c, moe_fault *fault) {
    for (int64_t m = threadIdx.x; c.slot && m < c.g.members; m += THREADS)
        if (c.from[m] > c.slot || c.to[m / c.g.etp] > c.slot) refuse(c);
    __syncthreads();
    if (threadIdx.x == 0) {
        plan_parts(&c.g, c.me, c.slot, c.to, c.from, c.parts, c.runs);
        if (c.runs[1] > c.places_sent || c.runs[3] > c.places_landed || c.offsets[c.g.groups] > c.rows) refuse(c);
    }
    __syncthreads();
    if (!*c.broken) return;
    for (int64_t i = threadIdx.x; i < MOE_PARTS * c.g.members; i += THREADS) c.parts[i] = 0;
    if (threadIdx.x) return;
    c.runs[1] = c.slot ? c.g.ep_size * c.slot : 0;
    c.runs[3] = c.slot ? c.g.members * c.slot : 0;
    fault_set(fault, MOE_E_DATA, -1, 0);
}

/* The last of the n ascending numbers that is at most x; the first is. */
__device__ __forceinline__ int64_t last_at_most(const int64_t *__restrict__ from, int64_t n, int64_t x) {
    int64_t lo = 0;
    while (n - lo > 1) {
        const int64_t mid = lo + (n - lo) / 2;
        if (from[mid] <= x)
            lo = mid;
        else
            n = mid;
    }
    return lo;
}

/* Place p of what has come. */
__device__ void fill_landed(const maps_io &c, int64_t p) {
    const int64_t n = c.g.members, groups = c.g.groups, *landed = c.parts + MOE_PART_LANDED_AT * n;
    if (p >= c.runs[3]) return;
    const int64_t m = c.slot ? p / c.slot : last_at_most(landed, n, p), j = p - landed[m];
    if (j >= c.from[m]) {
        c.landed_row[p] = -1;
        return;
    }
    const int64_t g = last_at_most(c.in_before + m * groups, groups, j);
    const int64_t row = c.first[m * c.g.experts + c.ep * groups + g] + j - c.in_before[m * groups + g];
    c.landed_row[p] = row;
    c.row_from[row] = c.parts[MOE_PART_IN_AT * n + m] + j;
}

/* The last member's rows end where padding begins. */
__device__ void fill_padding(const maps_io &c, int64_t row) {
    const int64_t groups = c.g.groups, last = (c.g.members - 1) * c.g.experts + c.ep * groups;
    if (row >= c.offsets[groups]) return;
    const int64_t g = last_at_most(c.offsets, groups, row);
    if (row >= c.first[last + g] + c.kept[last + g]) c.row_from[row] = -1;
}

__device__ void fill_slot(const maps_io &c, int64_t i) {
    const int64_t n = c.g.members, row = c.slot_row[i], e = c.ids[i];
    const int64_t m = row < 0 ? 0 : e / c.g.groups * c.g.etp;
    const int64_t j = row < 0 ? -1 : c.out_before[e] + row - c.first[c.me * c.g.experts + e];
    if (j >= 0) c.sent_slot[c.parts[MOE_PART_OUT_AT * n + m] + j] = i;
    for (int64_t f = 0; f < c.g.etp; f++)
        c.slot_at[i * c.g.etp + f] = j < 0 ? -1 : c.parts[MOE_PART_RETURN_AT * n + m + f] + j;
}

/* Nothing moves. */
__device__ void fill_none(const maps_io &c, int64_t i) {
    if (i < c.places_landed) c.landed_row[i] = -1;
    if (i < c.rows) c.row_from[i] = -1;
    for (int64_t f = 0; i < c.slots && f < c.g.etp; f++) c.slot_at[i * c.g.etp + f] = -1;
    if (i < c.places_sent) c.sent_slot[i] = -1;
}

/* A thread the i-th place of each map. */
__global__ void __launch_bounds__(THREADS) fill(maps_io c) {
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (*c.broken) return fill_none(c, i);
    fill_landed(c, i);
    fill_padding(c, i);
    if (i < c.slots) fill_slot(c, i);
    if (c.slot && i < c.runs[1] && i % c.slot >= c.to[i / c.slot]) c.sent_slot[i] = -1;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    const moe_status s = op_check_exchange_maps(a, err);
    if (s != MOE_OK) return s;
    const uint64_t m = (uint64_t)a->in[2].shape[0], e = (uint64_t)a->in[2].shape[1];
    const uint64_t ep_size = static_cast<const moe_exchange_maps_attr *>(a->attr)->ep_size;
    *saved = 0;
    *workspace = 8 * (e + m * (e / ep_size) + ep_size + m + 1);
    return MOE_OK;
}

const int64_t *given(const moe_op_args *a, int i) {
    return static_cast<const int64_t *>(a->in[i].data);
}
int64_t *made(const moe_op_args *a, int i) {
    return static_cast<int64_t *>(a->out[i].data);
}

maps_io call_of(const moe_op_args *a) {
    const moe_exchange_maps_attr *at = static_cast<const moe_exchange_maps_attr *>(a->attr);
    maps_io c = {};
    c.g = plan_group_of(a->in[2].shape[0], a->in[2].shape[1], at->ep_size);
    c.me = at->me;
    c.ep = at->me / at->etp_size;
    c.slot = at->slot;
    c.ids = static_cast<const int32_t *>(a->in[0].data);
    c.slot_row = given(a, 1);
    c.kept = given(a, 2);
    c.first = given(a, 3);
    c.offsets = given(a, 4);
    c.parts = made(a, 0);
    c.runs = made(a, 1);
    c.sent_slot = made(a, 2);
    c.landed_row = made(a, 3);
    c.row_from = made(a, 4);
    c.slot_at = made(a, 5);
    c.out_before = static_cast<int64_t *>(a->workspace);
    c.in_before = c.out_before + c.g.experts;
    c.to = c.in_before + c.g.members * c.g.groups;
    c.from = c.to + c.g.ep_size;
    c.broken = c.from + c.g.members;
    c.slots = op_elements(&a->in[0]);
    c.places_sent = a->out[2].shape[0];
    c.places_landed = a->out[3].shape[0];
    c.rows = a->out[4].shape[0];
    return c;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    const maps_io c = call_of(a);
    const cudaStream_t stream = cuda_stream(a);
    const moe_status s = cuda_status(cudaMemsetAsync(c.broken, 0, sizeof *c.broken, stream), MOE_OP_EXCHANGE_MAPS, err);
    if (s != MOE_OK) return s;
    const int64_t checks = plan_most(c.g.members * c.g.experts, c.slots);
    const int64_t blocks = c.g.ep_size + c.g.members + (checks + THREADS - 1) / THREADS;
    const int64_t places = plan_most(plan_most(c.places_sent, c.places_landed), plan_most(c.rows, c.slots));
    KERNEL_LAUNCH(before, cuda_blocks(blocks, 1), THREADS, 0, stream, c);
    KERNEL_LAUNCH(make_parts, 1, THREADS, 0, stream, c, static_cast<moe_fault *>(a->fault));
    KERNEL_LAUNCH(fill, cuda_blocks(places, THREADS), THREADS, 0, stream, c);
    return cuda_launched(MOE_OP_EXCHANGE_MAPS, err);
}

}  // namespace

extern const moe_op cuda_op_exchange_maps = {sizeof(moe_op), 0, MOE_OP_EXCHANGE_MAPS, sizes, forward, nullptr};
