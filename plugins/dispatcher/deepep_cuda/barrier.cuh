/* Barriers: of a member's blocks, and of all members' blocks. Blocks of a member are resident together (a cooperative
 * launch), and every member launches the same. A barrier of all: the last block of a member to come tells the others,
 * in the flags of their memory, the number of this barrier, waits until all have told it theirs, and lets its own
 * blocks go on. Numbers (epochs) lie in device memory and only grow.
 *
 * Waiting ends when the host says so (deepep_watch), for what a member waits for may have died. Kernels that are on the
 * stream already still run then: they find what layout did not finish, and must not follow it. */
#ifndef DEEPEP_CUDA_BARRIER_CUH
#define DEEPEP_CUDA_BARRIER_CUH
#include "peers.h"
#include "signal.cuh"

namespace {

enum { LOOK = 64, LONG = 4096 }; /* turns of a spin: between looks at the host's word; until the host is told */

__device__ __forceinline__ int lane_of() {
    return (int)threadIdx.x % 32;
}
__device__ __forceinline__ uint32_t *flags_of(const deepep_rank &r, int channel, uint32_t member) {
    return reinterpret_cast<uint32_t *>(r.peer[member]) + channel * DEEPEP_MEMBERS;
}

/* One lane waits for one member. */
__device__ __forceinline__ bool wait_for(const deepep_rank &r, int channel, uint32_t member, uint32_t epoch) {
    const uint32_t *flag = flags_of(r, channel, r.me) + member;
    bool told = false;
    for (int turn = 1; (int32_t)(signal_get(flag) - epoch) < 0; turn++) {
        if (turn % LOOK == 0 && signal_get(&r.watch->end)) return false;
        if (turn == LONG) {
            signal_put(&r.watch->epoch[channel], epoch);
            signal_put(&r.watch->waits[channel], member + 1);
            told = true;
        }
        KERNEL_SPIN();
    }
    if (told) signal_put(&r.watch->waits[channel], 0);
    return true;
}

/* A warp of the last block. */
__device__ __forceinline__ void meet_members(const deepep_rank &r, int channel) {
    const uint32_t epoch = r.sync[channel].epoch + 1, members = r.shape.members;
    bool fine = true;
    __syncwarp(); /* what the first lane has seen of the other blocks, all lanes pass on */
    __threadfence_system();
    for (uint32_t m = (uint32_t)lane_of(); m < members; m += 32)
        if (m != r.me) signal_put(flags_of(r, channel, m) + r.me, epoch);
    for (uint32_t m = (uint32_t)lane_of(); m < members && fine; m += 32)
        if (m != r.me) fine = wait_for(r, channel, m, epoch);
    fine = __all_sync(0xffffffffu, fine) != 0;
    if (lane_of() == 0 && fine) r.sync[channel].epoch = epoch;
    __syncwarp();
}

/* The first lane of a block that is not the last. */
__device__ __forceinline__ void wait_for_last(const deepep_rank &r, const deepep_sync *s, uint32_t round) {
    for (int turn = 1; signal_get(&s->round) == round; turn++) {
        if (turn % LOOK == 0 && signal_get(&r.watch->end)) return;
        KERNEL_SPIN();
    }
}

/* All threads of all blocks of this member; of all members where `members`. false: ended, on all threads of the block;
 * the block ends too, then. */
__device__ __forceinline__ bool meet(const deepep_rank &r, int channel, bool members) {
    KERNEL_SHARED(int, fine);
    deepep_sync *s = r.sync + channel;
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t round = 0, last = 0;
        if (lane_of() == 0) {
            round = signal_get(&s->round);
            last = signal_add(&s->arrived, 1) == gridDim.x - 1;
        }
        if (__shfl_sync(0xffffffffu, last, 0)) {
            if (members) meet_members(r, channel);
            if (lane_of() == 0) {
                signal_put(&s->arrived, 0);
                signal_put(&s->round, round + 1);
            }
        } else if (lane_of() == 0) {
            wait_for_last(r, s, round);
        }
        if (lane_of() == 0) {
            fine = signal_get(&r.watch->end) == 0;
            if (!fine) signal_put(&s->ended, 1);
        }
    }
    __syncthreads();
    return fine != 0;
}

/* Has an earlier kernel of this channel ended too soon? */
__device__ __forceinline__ bool has_ended(const deepep_rank &r, int channel) {
    return signal_get(&r.sync[channel].ended) != 0;
}

/* ---- a member's memory ---- */
/* Number of the region of member `to` for what comes from `from`. */
__device__ __forceinline__ int64_t region_of(uint32_t to, uint32_t from) {
    return from < to ? from : from - 1;
}
__device__ __forceinline__ int warp_of() {
    return (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
}
__device__ __forceinline__ int warps() {
    return (int)(gridDim.x * blockDim.x / 32);
}

}  // namespace

/* The arguments of this block's member. */
#define DEEPEP_CALL(type, one, all) const type &a = (all) ? (all)[blockIdx.y] : (one)

#endif
