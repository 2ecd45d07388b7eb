/* Threads of CUDA blocks on a CPU: a block is run by one thread of the machine, which switches between the fibres of
 * the block's CUDA threads where these wait for each other. Kernels see this through model.h; nothing else includes it.
 * All functions: called by fibres of a running block. */
#ifndef CUDA_DOUBLE_FIBRE_H
#define CUDA_DOUBLE_FIBRE_H
#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cuda_double {

/* Fibre code that ThreadSanitizer must not take for the kernel's own accesses. */
#if defined(__SANITIZE_THREAD__)
#define DOUBLE_UNSEEN __attribute__((no_sanitize_thread, noinline))
#else
#define DOUBLE_UNSEEN
#endif

/* The CUDA thread that runs now, and its block and grid. */
struct place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    unsigned lane; /* of the warp */
};
extern __thread const place *now __attribute__((tls_model("initial-exec"))); /* asked for at every step of a kernel */
static inline const place &here() {
    return *now;
}
static inline unsigned lane() {
    return now->lane;
}

/* Shared memory: `bytes` for the object that this site (any address that is its own) declares, the same for all
 * threads of the block, filled with 0xcb. dynamic(): the bytes asked for at launch, of that filling too. */
void *shared(const void *site, size_t bytes);
void *dynamic();

void sync_block();
/* __syncthreads_or and friends: the number of threads of the block whose `predicate` is not 0. */
int count_block(int predicate);

/* All lanes of `mask` meet; when the last has come it calls finish with what each lane of the mask gave, then all go
 * on. Lanes that have ended count as out of the mask. finish NULL is __syncwarp, which orders memory; shuffles and
 * votes do not (the programming guide says so), and ThreadSanitizer is told nothing of them. */
void meet_warp(unsigned mask, void *mine, void (*finish)(void *const lanes[32], unsigned mask));

/* The thread waits for something that another block or stream does: others run meanwhile. */
void yield();

/* Runs all threads of block number `index` of the grid, on the calling thread. */
void run_block(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &kernel, uint64_t index);

}  // namespace cuda_double
#endif
