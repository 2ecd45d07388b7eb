/* moe.capacity/0: the choices of each scope are brought in order of expert (sort.cuh, stable: by token inside); then a
 * block an expert and scope keeps the first ones, or finds the capacity-th largest weight by its bits, eight at a time
 * (a radix select: exact, no comparisons), and keeps what is above it and the first of what equals it. Work: O(T k)
 * whatever the capacity - about nine reads of a choice - and scopes x experts x 4 bytes of counters for every 256th of
 * a scope. */
#include "call.cuh"
#include "sort.cuh"

namespace {

enum { THREADS = 256, DIGITS = THREADS, MOST_EXPERTS = 4096 };

struct choice_keys {
    const int32_t *ids;   /* [T,k] */
    const float *weights; /* [T,k] */
    int32_t *kept_ids;
    float *kept_weights;
    unsigned *order;   /* [T,k]: of a scope, its choices by expert */
    int experts, k, n; /* n: slots of a scope */
    moe_fault *fault;

    __device__ int bin(int64_t scope, int i) const {
        const int64_t at = scope * n + i;
        return ids[at] < 0 || ids[at] >= experts || !(weights[at] == weights[at]) ? -1 : ids[at];
    }
    __device__ void check(int64_t scope, int i) const {
        const int64_t at = scope * n + i;
        if (ids[at] < -1 || ids[at] >= experts)
            fault_set(fault, MOE_E_DATA, at / k, ids[at]);
        else if (ids[at] >= 0 && !(weights[at] == weights[at]))
            fault_set(fault, MOE_E_DATA, at / k, at % k);
    }
    __device__ void place(int64_t scope, int i, int64_t to) const {
        if (to >= 0) order[scope * n + to] = (unsigned)i;
        if (to < 0) keep(scope * n + i, false);
    }
    __device__ void keep(int64_t at, bool stays) const {
        kept_ids[at] = stays ? ids[at] : -1;
        kept_weights[at] = stays ? weights[at] : 0.0f;
    }
};

/* The order of floats as the order of unsigned numbers; -0 is 0. */
__device__ __forceinline__ unsigned key_of(float weight) {
    unsigned u = __float_as_uint(weight);
    if (u == 0x80000000u) u = 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct select_room {
    unsigned count[DIGITS];
    unsigned digit;
    int rank;
    block_room<int> sums;
};

/* The rank-th largest key of the n choices, 1 <= rank <= n; *ties: how many of those that equal it are among the
 * largest `rank`. */
__device__ unsigned select_key(const choice_keys &c, const unsigned *order, int64_t base, int n, int rank, int *ties,
                               select_room &room) {
    unsigned prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        room.count[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll 1 /* unrolled it spills */
        for (int j = threadIdx.x; j < n; j += THREADS) {
            const unsigned key = key_of(c.weights[base + order[j]]);
            if ((key & mask) == prefix) atomicAdd(&room.count[key >> shift & (DIGITS - 1)], 1u);
        }
        __syncthreads();
        const int digit = DIGITS - 1 - (int)threadIdx.x, mine = (int)room.count[digit]; /* from the largest down */
        int all;
        const int before = block_before(mine, room.sums, &all);
        if (before < rank && rank <= before + mine) {
            room.digit = (unsigned)digit;
            room.rank = rank - before;
        }
        __syncthreads();
        prefix |= room.digit << shift;
        rank = room.rank;
        mask |= (unsigned)(DIGITS - 1) << shift;
        __syncthreads();
    }
    *ties = rank;
    return prefix;
}

/* A block an expert of a scope. start [scopes,E+1]: where its choices begin. */
__global__ void __launch_bounds__(THREADS) cut(choice_keys c, const int64_t *__restrict__ start, int64_t capacity,
                                               int drop, unsigned long long *__restrict__ count) {
    KERNEL_SHARED(select_room, room);
    const int64_t scope = blockIdx.x / (unsigned)c.experts, base = scope * c.n;
    const int expert = (int)(blockIdx.x % (unsigned)c.experts);
    const int64_t begin = start[scope * (c.experts + 1) + expert];
    const int n = (int)(start[scope * (c.experts + 1) + expert + 1] - begin);
    const unsigned *order = c.order + base + begin;
    if (n == 0) return;
    if (threadIdx.x == 0) {
        atomicAdd(&count[0], (unsigned long long)n);
        if (n > capacity) atomicAdd(&count[1], (unsigned long long)(n - capacity));
    }
    if (n <= capacity || drop == MOE_DROP_POSITION) {
        for (int j = threadIdx.x; j < n; j += THREADS) c.keep(base + order[j], j < capacity);
        return;
    }
    int ties, seen = 0, all;
    const unsigned threshold = select_key(c, order, base, n, (int)capacity, &ties, room);
    for (int from = 0; from < n; from += THREADS) { /* in order of token */
        const int j = from + (int)threadIdx.x;
        const unsigned key = j < n ? key_of(c.weights[base + order[j]]) : 0;
        const int tie = j < n && key == threshold, before = seen + block_before(tie, room.sums, &all);
        if (j < n) c.keep(base + order[j], key > threshold || (tie && before < ties));
        seen += all;
    }
}

/* Parts of the workspace, in bytes. */
struct parts {
    uint64_t start, count, order, end;
};

sort_plan plan_of(const moe_op_args *a) {
    const moe_capacity_attr *at = static_cast<const moe_capacity_attr *>(a->attr);
    return sort_plan_of(a->in[0].shape[0] / at->scope, at->scope * a->in[0].shape[1], (int)at->n_experts);
}

parts parts_of(const moe_op_args *a, const sort_plan &p) {
    parts w = {};
    w.count = w.start + (uint64_t)(p.scopes * (p.bins + 1)) * sizeof(int64_t);
    w.order = w.count + (uint64_t)sort_counters(p) * sizeof(unsigned);
    w.end = w.order + (uint64_t)op_elements(&a->in[0]) * sizeof(unsigned);
    return w;
}

moe_status sizes(void *, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    moe_status s = op_check_capacity(a, MOST_EXPERTS, err);
    if (s != MOE_OK) return s;
    const int64_t tokens = a->in[0].shape[0], k = a->in[0].shape[1];
    const moe_capacity_attr *at = static_cast<const moe_capacity_attr *>(a->attr);
    *saved = *workspace = 0;
    if (op_elements(&a->in[0]) == 0) return MOE_OK;
    s = sort_want(MOE_OP_CAPACITY, at->scope * k, "choices of a scope", err);
    if (s == MOE_OK)
        s = cuda_want_int(MOE_OP_CAPACITY, tokens / at->scope * at->n_experts, "experts of all scopes", err);
    if (s == MOE_OK) *workspace = parts_of(a, plan_of(a)).end;
    return s;
}

moe_status forward(void *, const moe_op_args *a, moe_err *err) {
    if (op_elements(&a->in[0]) == 0) return MOE_OK;
    const moe_capacity_attr *at = static_cast<const moe_capacity_attr *>(a->attr);
    const sort_plan plan = plan_of(a);
    const parts w = parts_of(a, plan);
    char *room = static_cast<char *>(a->workspace);
    int64_t *start = reinterpret_cast<int64_t *>(room + w.start);
    moe_fault *fault = static_cast<moe_fault *>(a->fault);
    const choice_keys keys = {static_cast<const int32_t *>(a->in[0].data),
                              static_cast<const float *>(a->in[1].data),
                              static_cast<int32_t *>(a->out[0].data),
                              static_cast<float *>(a->out[1].data),
                              reinterpret_cast<unsigned *>(room + w.order),
                              (int)at->n_experts,
                              (int)a->in[0].shape[1],
                              plan.n,
                              fault};
    sort_run(keys, plan, sort_layout{0, 1, INT64_MAX}, reinterpret_cast<unsigned *>(room + w.count), start, nullptr,
             nullptr, fault, cuda_stream(a));
    KERNEL_LAUNCH(cut, cuda_blocks(plan.scopes * plan.bins, 1), THREADS, 0, cuda_stream(a), keys, start, at->capacity,
                  at->drop, static_cast<unsigned long long *>(a->out[2].data));
    return cuda_launched(MOE_OP_CAPACITY, err);
}

}  // namespace

extern const moe_op cuda_op_capacity = {sizeof(moe_op), 0, MOE_OP_CAPACITY, sizes, forward, nullptr};
