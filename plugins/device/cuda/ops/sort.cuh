/* A stable counting sort by a small number (an expert, eight bits of a word): items of each bin in the order in which
 * they came, the bins one after another. Three launches: blocks count their items by bin; one block a scope turns the
 * counts into first places; the blocks go through their items again, a warp over consecutive ones, and give each its
 * place. Counters are integers, and places come from prefix sums: the result does not depend on the order of execution.
 *
 * `Keys` is a struct of device functions over item i of scope `scope`, i in [0, n):
 *   int bin(scope, i)               in [0, bins), or -1: the item is left out
 *   void check(scope, i)            once an item, in the first launch: errors in the data
 *   void place(scope, i, place)     once an item, in the last one: its place, or -1 */
#ifndef CUDA_OPS_SORT_CUH
#define CUDA_OPS_SORT_CUH
#include "../cuda.h"
#include "fault.cuh"
#include "reduce.cuh"

namespace {

enum {
    SORT_THREADS = 256,
    SORT_WARPS = SORT_THREADS / WARP,
    SORT_BLOCKS = 256,     /* of a scope at most */
    SORT_LEAST = 1024,     /* items of a block */
    SORT_MOST_BINS = 6144, /* each warp's counters lie in shared memory */
    SORT_SCAN = 512        /* threads of the block that scans */
};

struct sort_plan {
    int n, bins, each, blocks; /* items of a scope; of a block, a multiple of SORT_THREADS; blocks of a scope */
    int64_t scopes;
};

inline sort_plan sort_plan_of(int64_t scopes, int64_t n, int bins) {
    int64_t each = (n + SORT_BLOCKS - 1) / SORT_BLOCKS;
    each = each < SORT_LEAST ? (int64_t)SORT_LEAST : (each + SORT_THREADS - 1) / SORT_THREADS * SORT_THREADS;
    return {(int)n, bins, (int)each, n > 0 ? (int)((n + each - 1) / each) : 1, scopes};
}
/* Elements of `count`: a counter a block and bin. */
inline int64_t sort_counters(const sort_plan &p) {
    return p.scopes * p.blocks * p.bins;
}

/* How the bins lie: each takes `least` places at least and begins at a multiple of `align`; more than `most` places in
 * all, or *broken, and there are none at all. */
struct sort_layout {
    int64_t least, align, most;
};

template <class Keys>
__global__ void __launch_bounds__(SORT_THREADS) sort_count(Keys keys, sort_plan p, unsigned *__restrict__ count) {
    KERNEL_DYNAMIC(unsigned, mine); /* [bins] */
    const int64_t scope = blockIdx.x / (unsigned)p.blocks;
    const int begin = (int)(blockIdx.x % (unsigned)p.blocks) * p.each,
              end = p.n - begin < p.each ? p.n : begin + p.each;
    for (int b = threadIdx.x; b < p.bins; b += SORT_THREADS) mine[b] = 0;
    __syncthreads();
    for (int i = begin + (int)threadIdx.x; i < end; i += SORT_THREADS) {
        const int bin = keys.bin(scope, i);
        keys.check(scope, i);
        if (bin >= 0) atomicAdd(&mine[bin], 1u);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < p.bins; b += SORT_THREADS) count[blockIdx.x * (int64_t)p.bins + b] = mine[b];
}

/* Places of n items: a multiple of align, and never so many that a sum over all bins overflows. */
__device__ __forceinline__ int64_t sort_padded(const sort_layout &l, int64_t n, int bins) {
    const int64_t most = INT64_MAX / (bins + 1), wanted = n > l.least ? n : l.least;
    if (l.align == 1) return wanted < most ? wanted : most;
    const int64_t units = wanted / l.align + (wanted % l.align != 0);
    return units > most / l.align ? (units ? most : 0) : units * l.align;
}

/* count becomes each block's first place inside of the bin; offsets [scopes,bins+1], counts? [scopes,bins]. */
__global__ void __launch_bounds__(SORT_SCAN)
    sort_scan(unsigned *__restrict__ count, sort_plan p, sort_layout l, int64_t *__restrict__ offsets,
              int64_t *__restrict__ counts, const int *__restrict__ broken, moe_fault *fault) {
    KERNEL_SHARED(block_room<int64_t>, room);
    count += blockIdx.x * (int64_t)p.blocks * p.bins;
    offsets += blockIdx.x * (int64_t)(p.bins + 1);
    if (counts) counts += blockIdx.x * (int64_t)p.bins;
    int64_t first = 0;
    for (int from = 0; from < p.bins; from += SORT_SCAN) {
        const int bin = from + (int)threadIdx.x;
        unsigned all = 0;
        if (bin < p.bins)
            for (int b = 0; b < p.blocks; b++) {
                const unsigned n = count[b * (int64_t)p.bins + bin];
                count[b * (int64_t)p.bins + bin] = all;
                all += n;
            }
        int64_t taken;
        const int64_t before = block_before(bin < p.bins ? sort_padded(l, all, p.bins) : 0, room, &taken);
        if (bin < p.bins) offsets[bin] = first + before;
        if (bin < p.bins && counts) counts[bin] = all;
        first += taken;
    }
    const bool none = first > l.most || (broken && *broken);
    if (threadIdx.x == 0) offsets[p.bins] = none ? 0 : first;
    if (threadIdx.x == 0 && first > l.most) fault_set(fault, MOE_E_OVERFLOW, -1, first);
    for (int bin = threadIdx.x; none && bin < p.bins; bin += SORT_SCAN) { /* what follows finds nothing to do */
        offsets[bin] = 0;
        if (counts) counts[bin] = 0;
    }
}

/* none: sort_scan decided that there are no places (offsets[bins] is 0 although there is an item). */
template <class Keys>
__global__ void __launch_bounds__(SORT_THREADS, 4)
    sort_place(Keys keys, sort_plan p, const unsigned *__restrict__ count, const int64_t *__restrict__ offsets) {
    KERNEL_DYNAMIC(unsigned, next); /* [SORT_WARPS,bins] */
    const int64_t scope = blockIdx.x / (unsigned)p.blocks;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, each = p.each / SORT_WARPS;
    const int begin = (int)(blockIdx.x % (unsigned)p.blocks) * p.each + warp * each;
    const int end = p.n - begin < each ? p.n : begin + each;
    unsigned *mine = next + warp * p.bins;
    offsets += scope * (p.bins + 1);
    const bool none = offsets[p.bins] == 0;
    for (int b = threadIdx.x; b < SORT_WARPS * p.bins; b += SORT_THREADS) next[b] = 0;
    __syncthreads();
    for (int from = begin; from < end; from += WARP) { /* what this warp has of each bin */
        const int i = from + lane, bin = i < end ? keys.bin(scope, i) : -1;
        const unsigned same = __match_any_sync(0xffffffffu, bin);
        if (bin >= 0 && lane == __ffs((int)same) - 1) mine[bin] += (unsigned)__popc(same);
        __syncwarp();
    }
    __syncthreads();
    for (int b = threadIdx.x; b < p.bins; b += SORT_THREADS) {
        unsigned at = count[blockIdx.x * (int64_t)p.bins + b];
        for (int w = 0; w < SORT_WARPS; w++) {
            const unsigned n = next[w * p.bins + b];
            next[w * p.bins + b] = at;
            at += n;
        }
    }
    __syncthreads();
    for (int from = begin; from < end; from += WARP) {
        const int i = from + lane, bin = i < end ? keys.bin(scope, i) : -1;
        const unsigned same = __match_any_sync(0xffffffffu, bin);
        const unsigned before = (unsigned)__popc(same & ((1u << lane) - 1u)), at = bin >= 0 ? mine[bin] + before : 0;
        __syncwarp();
        if (bin >= 0 && before == 0) mine[bin] = at + (unsigned)__popc(same);
        __syncwarp();
        if (i < end) keys.place(scope, i, bin < 0 || none ? -1 : offsets[bin] + at);
    }
}

/* The three launches. offsets and counts as sort_scan has them; broken: an int that check
 * may have set, or NULL. */
template <class Keys>
void sort_run(const Keys &keys, const sort_plan &p, const sort_layout &layout, unsigned *count, int64_t *offsets,
              int64_t *counts, const int *broken, moe_fault *fault, cudaStream_t stream) {
    const size_t bins = (size_t)p.bins * sizeof(unsigned);
    const unsigned blocks = cuda_blocks(p.scopes * p.blocks, 1);
    KERNEL_LARGE_SHARED(sort_place<Keys>, SORT_WARPS * bins);
    KERNEL_LAUNCH(sort_count<Keys>, blocks, SORT_THREADS, bins, stream, keys, p, count);
    KERNEL_LAUNCH(sort_scan, cuda_blocks(p.scopes, 1), SORT_SCAN, 0, stream, count, p, layout, offsets, counts, broken,
                  fault);
    KERNEL_LAUNCH(sort_place<Keys>, blocks, SORT_THREADS, SORT_WARPS * bins, stream, keys, p, count, offsets);
}

/* Items of a scope are counted with int, and a block may begin behind the last one. */
inline moe_status sort_want(const char *op, int64_t n, const char *what, moe_err *err) {
    const int most = INT32_MAX - INT32_MAX / SORT_BLOCKS - SORT_LEAST;
    if (n <= most) return MOE_OK;
    return moe_fail(err, MOE_E_UNSUPPORTED, "%s: %lld %s, device/cuda takes %d", op, (long long)n, what, most);
}

}  // namespace
#endif
