/* Tiles: BF16 matrix products of a warp (mma.sync m16n8k16, FP32 sums), the loads of their operands from shared memory
 * (ldmatrix), and copies from global to shared memory that the thread does not wait for (cp.async). sm_80 and later.
 *
 * All functions but the copies are the warp's: its 32 lanes call together. Which lane holds what is the PTX ISA's
 * (section "Matrix fragments for mma.m16n8k16"); with g = lane / 4 and c = 2 * (lane % 4):
 *   a[4]  of A [16,16]: rows g, g+8, g, g+8; columns c, c+1 of the left half (a[0], a[1]) and of the right one
 *   b[2]  of B [16,8]: column g; rows c, c+1 of the upper half (b[0]) and of the lower one
 *   d[4]  of D [16,8]: d[0], d[1] row g, d[2], d[3] row g+8; columns c, c+1
 * so that the sums of two neighbouring D [16,8], packed, are an A [16,16]: see tile_pack_a.
 *
 * Shared memory: `p` is element (0, 0) of a tile there, `stride` elements lie between its rows. p and rows begin at
 * multiples of 16 bytes. ldmatrix has no bank conflicts where the bytes of a row are an odd multiple of 16: pad rows of
 * 64 elements to 72 (TILE_PAD).
 *
 * For a CPU, the last lane that comes does the work for all, with these layouts (meet_warp in fibre.h). It touches what
 * are registers of other lanes; what is in shared memory each lane reads itself, so that a race is seen. */
#ifndef CUDA_TILE_CUH
#define CUDA_TILE_CUH
#include "act.cuh"

enum { TILE_PAD = 8 }; /* elements behind each row of a multiple of 16 */

#if defined(__CUDACC__)
__device__ __forceinline__ unsigned tile_lane() {
    return threadIdx.x % 32;
}
__device__ __forceinline__ unsigned tile_shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
#else
namespace cuda_double {

static inline float tile_element(uint32_t two, int i) {
    return __uint_as_float(i ? two & 0xffff0000u : two << 16);
}

struct tile_product {
    const uint32_t *a, *b;
    float *d;
    DOUBLE_UNSEEN static void finish(void *const lanes[32], unsigned) {
        float a[16][16], b[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const tile_product *p = static_cast<tile_product *>(lanes[lane]);
            const int g = lane / 4, c = 2 * (lane % 4);
            for (int i = 0; i < 8; i++) a[g + i / 2 % 2 * 8][c + i % 2 + i / 4 * 8] = tile_element(p->a[i / 2], i % 2);
            for (int i = 0; i < 4; i++) b[c + i % 2 + i / 2 * 8][g] = tile_element(p->b[i / 2], i % 2);
        }
        for (int row = 0; row < 16; row++) {
            float sum[8] = {};
            for (int k = 0; k < 16; k++)
                for (int n = 0; n < 8; n++) sum[n] += a[row][k] * b[k][n];
            for (int n = 0; n < 8; n++)
                static_cast<tile_product *>(lanes[row % 8 * 4 + n / 2])->d[n % 2 + row / 8 * 2] += sum[n];
        }
    }
};

/* Four matrices [8,8]; lanes 8i .. 8i+7 give the rows of the i-th, which they have read themselves, r[i] gets its part.
 */
struct tile_matrices {
    uint16_t row[8];
    uint32_t *r;
    DOUBLE_UNSEEN static uint32_t at(void *const lanes[32], int row, int column) {
        return static_cast<tile_matrices *>(lanes[row])->row[column];
    }
    DOUBLE_UNSEEN static void get(void *const lanes[32], bool transposed) {
        for (int i = 0; i < 4; i++)
            for (int lane = 0; lane < 32; lane++) {
                const int g = lane / 4, c = 2 * (lane % 4), first = 8 * i;
                const uint32_t low = transposed ? at(lanes, first + c, g) : at(lanes, first + g, c),
                               high = transposed ? at(lanes, first + c + 1, g) : at(lanes, first + g, c + 1);
                static_cast<tile_matrices *>(lanes[lane])->r[i] = low | high << 16;
            }
    }
    DOUBLE_UNSEEN static void plain(void *const lanes[32], unsigned) { get(lanes, false); }
    DOUBLE_UNSEEN static void transposed(void *const lanes[32], unsigned) { get(lanes, true); }
};

static inline void tile_matrices_meet(uint32_t r[4], const void *row, void (*finish)(void *const lanes[32], unsigned)) {
    tile_matrices load;
    memcpy(load.row, row, sizeof load.row);
    load.r = r;
    meet_warp(~0u, &load, finish);
}

}  // namespace cuda_double

static inline unsigned tile_lane() {
    return ::cuda_double::lane();
}
#endif

/* d += a b. */
__device__ __forceinline__ void tile_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#if defined(__CUDACC__)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    ::cuda_double::tile_product product = {a, b, d};
    ::cuda_double::meet_warp(~0u, &product, ::cuda_double::tile_product::finish);
#endif
}

/* ldmatrix.x4 and ldmatrix.x4.trans: row is this lane's, see tile_matrices above. */
__device__ __forceinline__ void tile_matrices_load(uint32_t r[4], const void *row) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tile_shared_address(row))
                 : "memory");
#else
    ::cuda_double::tile_matrices_meet(r, row, ::cuda_double::tile_matrices::plain);
#endif
}
__device__ __forceinline__ void tile_matrices_load_trans(uint32_t r[4], const void *row) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tile_shared_address(row))
                 : "memory");
#else
    ::cuda_double::tile_matrices_meet(r, row, ::cuda_double::tile_matrices::transposed);
#endif
}

/* a = A [16,16], where A lies as p[row][k]. */
__device__ __forceinline__ void tile_load_a(uint32_t a[4], const bf16 *p, int stride) {
    const int lane = (int)tile_lane();
    tile_matrices_load(a, p + lane % 16 * stride + lane / 16 * 8);
}
/* The same, where A lies transposed: p[k][row]. */
__device__ __forceinline__ void tile_load_a_trans(uint32_t a[4], const bf16 *p, int stride) {
    const int lane = (int)tile_lane();
    tile_matrices_load_trans(a, p + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}
/* b[0], b[1] and b[2], b[3] = the left and the right half of B [16,16], where B lies as p[column][k]. */
__device__ __forceinline__ void tile_load_b(uint32_t b[4], const bf16 *p, int stride) {
    const int lane = (int)tile_lane();
    tile_matrices_load(b, p + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}
/* The same, where B lies as p[k][column]. */
__device__ __forceinline__ void tile_load_b_trans(uint32_t b[4], const bf16 *p, int stride) {
    const int lane = (int)tile_lane();
    tile_matrices_load_trans(b, p + lane % 16 * stride + lane / 16 * 8);
}

/* Two FP32, rounded to BF16: low in the lower half. */
__device__ __forceinline__ uint32_t tile_pack(float low, float high) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&two);
}
/* a = [left | right], two D [16,8], rounded to BF16. The lane's own numbers only. */
__device__ __forceinline__ void tile_pack_a(uint32_t a[4], const float left[4], const float right[4]) {
    a[0] = tile_pack(left[0], left[1]);
    a[1] = tile_pack(left[2], left[3]);
    a[2] = tile_pack(right[0], right[1]);
    a[3] = tile_pack(right[2], right[3]);
}

/* ---- copies of 16 bytes, by each thread its own ---- */
/* Both aligned to 16 bytes. Not `there`: 16 bytes of 0, and nothing is read. The bytes are there for this thread after
 * tile_copy_wait, for others after a barrier behind it. */
__device__ __forceinline__ void tile_copy_async(void *shared, const void *global, bool there) {
#if defined(__CUDACC__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :
                 : "r"(tile_shared_address(shared)), "l"(global), "r"(there ? 16 : 0)
                 : "memory");
#else
    if (there)
        memcpy(shared, global, 16);
    else
        memset(shared, 0, 16);
#endif
}
/* The copies since the last commit are a group. */
__device__ __forceinline__ void tile_copy_commit() {
#if defined(__CUDACC__)
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
/* All groups but the newest PENDING are there. */
template <int PENDING>
__device__ __forceinline__ void tile_copy_wait() {
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
#endif
}
#endif
