/* Lists of rows that a warp works on: one row copied to several places, and several added to one. Where the rows lie is
 * found by the lanes together and kept in shared memory, so that each row is read once and written once. */
#ifndef DEEPEP_CUDA_LISTS_CUH
#define DEEPEP_CUDA_LISTS_CUH
#include "act.cuh"
#include "barrier.cuh"

namespace {

struct row_lists {
    char *rows[DEEPEP_WARPS][DEEPEP_ROWS];
};

/* The warp's; every lane gives a row or NULL; they follow the n that are there, in order of lanes. */
__device__ __forceinline__ int list_add(char **list, int n, char *row) {
    const unsigned all = __ballot_sync(0xffffffffu, row != nullptr);
    if (row) list[n + __popc(all & ((1u << lane_of()) - 1))] = row;
    return n + __popc(all);
}

/* Units that a lane holds at once, so that loads overlap. */
constexpr int AT_ONCE = 4;

/* from, n units, to `places` rows. */
template <class U>
__device__ __forceinline__ void copy_units(char *const *list, int places, const char *from, int n) {
    const U *x = reinterpret_cast<const U *>(from);
    for (int c = lane_of(); c < n; c += 32 * AT_ONCE) {
        U v[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (c + 32 * i < n) v[i] = x[c + 32 * i];
        for (int j = 0; j < places; j++) {
            U *y = reinterpret_cast<U *>(list[j]);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (c + 32 * i < n) y[c + 32 * i] = v[i];
        }
    }
}
__device__ __forceinline__ void copy_row(const deepep_plane &p, char *const *list, int places, const char *from) {
    __syncwarp();
    if (p.unit == 16)
        copy_units<uint4>(list, places, from, (int)(p.width / 16));
    else if (p.unit == 4)
        copy_units<uint32_t>(list, places, from, (int)(p.width / 4));
    else
        copy_units<uint16_t>(list, places, from, (int)(p.width / 2));
    __syncwarp();
}

/* sum += rows [from, to), in order. */
template <class T, int P>
__device__ __forceinline__ void add_rows(float sum[P], char *const *list, int from, int to, int c) {
#pragma unroll 4
    for (int j = from; j < to; j++) {
        float v[P];
        act_read<P>(reinterpret_cast<const T *>(list[j]) + c * P, v);
#pragma unroll
        for (int i = 0; i < P; i++) sum[i] += v[i];
    }
}
__device__ __forceinline__ float rounded(float v, const float *) {
    return v;
}
__device__ __forceinline__ float rounded(float v, const bf16 *) {
    return __bfloat162float(__float2bfloat16_rn(v));
}

/* `rows` rows of n packs; rows [part, part_end) are one sum that is rounded by itself, as if it had come from a peer.
 */
template <class T, int P>
__device__ __forceinline__ void sum_packs(char *to, char *const *list, int part, int part_end, int rows, int n) {
    for (int c = lane_of(); c < n; c += 32) {
        float sum[P] = {}, own[P] = {};
        add_rows<T, P>(sum, list, 0, part, c);
        if (part < part_end) {
            add_rows<T, P>(own, list, part, part_end, c);
#pragma unroll
            for (int i = 0; i < P; i++) sum[i] += rounded(own[i], static_cast<const T *>(nullptr));
        }
        add_rows<T, P>(sum, list, part_end, rows, c);
        act_write<P>(reinterpret_cast<T *>(to) + c * P, sum);
    }
}
__device__ __forceinline__ void sum_row(const deepep_plane &p, char *to, char *const *list, int part, int part_end,
                                        int rows) {
    __syncwarp();
    if (p.narrow && p.unit == 16)
        sum_packs<bf16, 8>(to, list, part, part_end, rows, (int)(p.width / 16));
    else if (p.narrow)
        sum_packs<bf16, 1>(to, list, part, part_end, rows, (int)(p.width / 2));
    else if (p.unit == 16)
        sum_packs<float, 4>(to, list, part, part_end, rows, (int)(p.width / 16));
    else
        sum_packs<float, 1>(to, list, part, part_end, rows, (int)(p.width / 4));
    __syncwarp();
}

/* ---- what lies where ---- */
/* Row of a plane at a position of what `from` has written to `to`, in half `turn`. */
__device__ __forceinline__ char *window_row(const deepep_move_call &a, const deepep_plane &p, unsigned turn,
                                            uint32_t to, uint32_t from, int64_t position) {
    const deepep_shape &s = a.rank.shape;
    return a.rank.peer[to] + s.halves + turn * s.half + p.at + (region_of(to, from) * s.tokens + position) * p.pitch;
}
/* [k] scalars of a position. */
__device__ __forceinline__ float *window_slots(const deepep_move_call &a, unsigned turn, uint32_t to, uint32_t from,
                                               int64_t position) {
    const deepep_shape &s = a.rank.shape;
    return reinterpret_cast<float *>(a.rank.peer[to] + s.halves + turn * s.half + a.slots_at) +
           (region_of(to, from) * s.tokens + position) * s.k;
}
/* [k] rows of expert order of a position of what comes from a member. */
__device__ __forceinline__ const int32_t *list_of(const deepep_move_call &a, uint32_t from, int64_t position) {
    return a.by.list + (from * a.rank.shape.tokens + position) * a.rank.shape.k;
}
/* Rows of a plane in expert order, by such a list. */
__device__ __forceinline__ int list_experts(const deepep_move_call &a, const deepep_plane &p, char **list, int n,
                                            const int32_t *rows) {
    for (uint32_t j = 0; j < a.rank.shape.k; j += 32) {
        const uint32_t slot = j + (uint32_t)lane_of();
        const int32_t row = slot < a.rank.shape.k ? rows[slot] : -1;
        n = list_add(list, n, row < 0 ? nullptr : p.experts + row * p.width);
    }
    return n;
}
/* Tokens of the call: as many as layout has seen. */
__device__ __forceinline__ int64_t tokens_of(const deepep_move_call &a) {
    const int64_t n = *a.by.tokens;
    return n < a.n ? n : a.n;
}

}  // namespace
#endif
