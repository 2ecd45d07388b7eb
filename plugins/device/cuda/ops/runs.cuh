/* Sums over rows in runs: a block sums a run of rows into a part of its own, and these kernels add the parts in an
 * order that depends on their number alone. */
#ifndef CUDA_OPS_RUNS_CUH
#define CUDA_OPS_RUNS_CUH
#include <stdint.h>

#include "../cuda.h"
#include "kernel.h"

namespace {

enum {
    RUNS_COLUMNS = 32,
    RUNS_ROWS = 8
}; /* of a block: warp q adds the parts q, q + 8, ..., then the warps are added */

struct runs_room {
    float part[RUNS_ROWS][RUNS_COLUMNS];
};

/* out [groups,width] += the parts [from, to) of each group; part [n,width]. span(group, &from, &to) names them. */
template <class Span>
__global__ void __launch_bounds__(RUNS_COLUMNS *RUNS_ROWS)
    runs_add(const float *__restrict__ part, Span span, int64_t width, int strips, float *__restrict__ out) {
    KERNEL_SHARED(runs_room, room);
    const int group = (int)blockIdx.x / strips, lane = threadIdx.x % RUNS_COLUMNS, q = threadIdx.x / RUNS_COLUMNS;
    const int64_t column = (int64_t)((int)blockIdx.x % strips) * RUNS_COLUMNS + lane;
    int64_t from, to;
    float sum = 0;
    span(group, &from, &to);
    if (column < width)
#pragma unroll 4
        for (int64_t r = from + q; r < to; r += RUNS_ROWS) sum += part[r * width + column];
    room.part[q][lane] = sum;
    __syncthreads();
    if (q || column >= width || from >= to) return;
#pragma unroll
    for (int i = 1; i < RUNS_ROWS; i++) sum += room.part[i][lane];
    out[group * width + column] += sum;
}

struct runs_whole {
    int64_t runs;
    __device__ void operator()(int, int64_t *from, int64_t *to) const {
        *from = 0;
        *to = runs;
    }
};

template <class Span>
void runs_add_groups(const float *part, Span span, int groups, int64_t width, float *out, cudaStream_t stream) {
    const int64_t strips = (width + RUNS_COLUMNS - 1) / RUNS_COLUMNS;
    if (strips == 0) return;
    KERNEL_LAUNCH(runs_add<Span>, cuda_blocks(strips * groups, 1), RUNS_COLUMNS * RUNS_ROWS, 0, stream, part, span,
                  width, (int)strips, out);
}
/* out [width] += all `runs` parts. */
inline void runs_add_all(const float *part, int64_t runs, int64_t width, float *out, cudaStream_t stream) {
    runs_add_groups(part, runs_whole{runs}, 1, width, out, stream);
}

}  // namespace
#endif
