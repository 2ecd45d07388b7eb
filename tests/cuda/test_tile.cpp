/* Tiles (plugins/cuda/tile.cuh) on the CPU: products of 64 x 64 x 64 by every pair of loads against plain loops. */
#include <check.h>

#include <vector>

#include "tile.cuh"

enum { N = 64, STRIDE = N + TILE_PAD };

namespace {

/* One warp: D [N,N] = A B, A as a[row][k] or (a_trans) a[k][row], B as b[column][k] or (b_trans) b[k][column]. */
__global__ void product(const bf16 *a, const bf16 *b, float *d, bool a_trans, bool b_trans) {
    KERNEL_DYNAMIC(bf16, as);
    bf16 *bs = as + N * STRIDE;
    for (int i = (int)threadIdx.x; i < N * N / 8; i += 32) {
        tile_copy_async(as + i / 8 * STRIDE + i % 8 * 8, a + i * 8, true);
        tile_copy_async(bs + i / 8 * STRIDE + i % 8 * 8, b + i * 8, true);
    }
    tile_copy_commit();
    tile_copy_wait<0>();
    __syncwarp();
    const int g = (int)threadIdx.x / 4, c = 2 * ((int)threadIdx.x % 4);
    for (int row = 0; row < N; row += 16)
        for (int column = 0; column < N; column += 16) {
            float sum[2][4] = {};
            for (int k = 0; k < N; k += 16) {
                uint32_t fa[4], fb[4];
                if (a_trans)
                    tile_load_a_trans(fa, as + k * STRIDE + row, STRIDE);
                else
                    tile_load_a(fa, as + row * STRIDE + k, STRIDE);
                if (b_trans)
                    tile_load_b_trans(fb, bs + k * STRIDE + column, STRIDE);
                else
                    tile_load_b(fb, bs + column * STRIDE + k, STRIDE);
                tile_mma_bf16(sum[0], fa, fb);
                tile_mma_bf16(sum[1], fa, fb + 2);
            }
            for (int i = 0; i < 8; i++)
                d[(row + g + i / 2 % 2 * 8) * N + column + i / 4 * 8 + c + i % 2] = sum[i / 4][i % 4];
        }
}

/* D [16,8] = (X X) Y with X [16,16], Y [16,8]: the first product goes on as the second's A. */
__global__ void chain(const bf16 *x, const bf16 *y, float *d) {
    KERNEL_DYNAMIC(bf16, xs);
    bf16 *ys = xs + 16 * 24;
    for (int i = (int)threadIdx.x; i < 256; i += 32) xs[i / 16 * 24 + i % 16] = x[i];
    for (int i = (int)threadIdx.x; i < 256; i += 32) ys[i / 16 * 24 + i % 16] = y[i];
    __syncwarp();
    uint32_t a[4], b[4];
    float sum[2][4] = {}, last[4] = {};
    tile_load_a(a, xs, 24);
    tile_load_b_trans(b, xs, 24);
    tile_mma_bf16(sum[0], a, b);
    tile_mma_bf16(sum[1], a, b + 2);
    tile_pack_a(a, sum[0], sum[1]);
    tile_load_b_trans(b, ys, 24);
    tile_mma_bf16(last, a, b);
    for (int i = 0; i < 4; i++)
        d[((int)threadIdx.x / 4 + i / 2 * 8) * 8 + 2 * ((int)threadIdx.x % 4) + i % 2] = last[i];
}

__global__ void absent(const bf16 *x, bf16 *y) {
    KERNEL_DYNAMIC(bf16, room);
    tile_copy_async(room + 8 * threadIdx.x, threadIdx.x % 2 ? nullptr : x, threadIdx.x % 2 == 0);
    tile_copy_wait<0>();
    for (int i = 0; i < 8; i++) y[8 * threadIdx.x + i] = room[8 * threadIdx.x + i];
}

/* Small whole numbers, of which all sums are exact. */
bf16 number(size_t i, size_t seed) {
    return __float2bfloat16_rn((float)((i * 7919 + seed * 104729 + i / 64 * 31) % 17) - 8.0f);
}
std::vector<bf16> numbers(size_t n, size_t seed) {
    std::vector<bf16> v(n);
    for (size_t i = 0; i < n; i++) v[i] = number(i, seed);
    return v;
}
float value(bf16 x) {
    return __bfloat162float(x);
}

START_TEST(products_hold) {
    const std::vector<bf16> a = numbers(N * N, 1), b = numbers(N * N, 2);
    for (int ways = 0; ways < 4; ways++) {
        const bool a_trans = ways & 1, b_trans = ways & 2;
        std::vector<float> d(N * N, -1.0f);
        KERNEL_LAUNCH(product, 1, 32, 2 * N * STRIDE * sizeof(bf16), nullptr, a.data(), b.data(), d.data(), a_trans,
                      b_trans);
        ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                float want = 0;
                for (int k = 0; k < N; k++)
                    want += value(a[a_trans ? k * N + i : i * N + k]) * value(b[b_trans ? k * N + j : j * N + k]);
                ck_assert_msg(d[i * N + j] == want, "ways %d: [%d,%d] is %g, want %g", ways, i, j, d[i * N + j], want);
            }
    }
}
END_TEST

START_TEST(sums_become_an_operand) {
    std::vector<bf16> x = numbers(256, 3), y = numbers(256, 4);
    for (bf16 &v : x) v = __float2bfloat16_rn(value(v) > 0 ? 1.0f : -1.0f); /* X X stays exact in BF16 */
    std::vector<float> d(128, -1.0f);
    KERNEL_LAUNCH(chain, 1, 32, 2 * 16 * 24 * sizeof(bf16), nullptr, x.data(), y.data(), d.data());
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float want = 0;
            for (int k = 0; k < 16; k++) {
                float sum = 0;
                for (int l = 0; l < 16; l++) sum += value(x[i * 16 + l]) * value(x[l * 16 + k]);
                want += sum * value(y[k * 16 + j]);
            }
            ck_assert_msg(d[i * 8 + j] == want, "[%d,%d] is %g, want %g", i, j, d[i * 8 + j], want);
        }
}
END_TEST

START_TEST(what_is_not_there_is_zero) {
    const std::vector<bf16> x = numbers(8, 5);
    std::vector<bf16> y(32 * 8);
    KERNEL_LAUNCH(absent, 1, 32, 32 * 16, nullptr, x.data(), y.data());
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    for (size_t i = 0; i < y.size(); i++) ck_assert(value(y[i]) == (i / 8 % 2 ? 0.0f : value(x[i % 8])));
}
END_TEST

}  // namespace

int main() {
    Suite *suite = suite_create("tile");
    TCase *all = tcase_create("all");
    tcase_add_test(all, products_hold);
    tcase_add_test(all, sums_become_an_operand);
    tcase_add_test(all, what_is_not_there_is_zero);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
