/* Small dense products on tiles that lie in a worker's scratch, for operations whose products are too small or too
 * oddly laid out for a library call. One register block is TILE_M rows by TILE_N lanes; tiles are padded with zeros so
 * that no edge has to be handled. */
#ifndef CPU_OPS_TILE_H
#define CPU_OPS_TILE_H
#include "act.h"
#include "args.h"
#include "vmath.h"

#if defined(__AVX512F__)
enum { TILE_VECTOR = 16, TILE_M = 8 };
#elif defined(__AVX2__)
enum { TILE_VECTOR = 8, TILE_M = 4 };
#else
enum { TILE_VECTOR = 4, TILE_M = 4 };
#endif
enum { TILE_N = 2 * TILE_VECTOR, TILE_PAD = 16 }; /* rows and columns of tiles are padded to multiples of TILE_PAD */
typedef float tile_vector __attribute__((vector_size(4 * TILE_VECTOR), aligned(4), may_alias));

static inline int64_t tile_pad(int64_t n) {
    return (n + TILE_PAD - 1) / TILE_PAD * TILE_PAD;
}

/* c [TILE_M, vectors * TILE_VECTOR] (+)= a [TILE_M, k] b [k, ...]; a[r][p] lies at a[r * a_row + p * a_step]. */
static inline __attribute__((always_inline)) void tile_block(const int vectors, int64_t k, const float *a,
                                                             int64_t a_row, int64_t a_step, const float *b,
                                                             int64_t b_row, float *c, int64_t c_row, int add) {
    tile_vector sum[TILE_M][2];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_M; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = (tile_vector){0};
    for (int64_t p = 0; p < k; p++, a += a_step, b += b_row) {
        tile_vector b0 = *(const tile_vector *)b, b1 = b0;
        if (vectors == 2) b1 = *(const tile_vector *)(b + TILE_VECTOR);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_M; r++) {
            float x = a[r * a_row];
            sum[r][0] += x * b0;
            if (vectors == 2) sum[r][1] += x * b1;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE_M; r++)
        for (int v = 0; v < vectors; v++) {
            tile_vector *to = (tile_vector *)(c + r * c_row + v * TILE_VECTOR);
            if (add) sum[r][v] += *to;
            *to = sum[r][v];
        }
}

/* c [m,n] (+)= a [m,k] b [k,n]. m a multiple of TILE_M, n of TILE_VECTOR; rows of b and c lie b_row and c_row apart,
 * a[r][p] at a[r * a_row + p * a_step]. Sums run over p in order. */
static inline void tile_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                                const float *b, int64_t b_row, float *c, int64_t c_row, int add) {
    int64_t j = 0;
    for (; j + TILE_N <= n; j += TILE_N)
        for (int64_t i = 0; i < m; i += TILE_M)
            tile_block(2, k, a + i * a_row, a_row, a_step, b + j, b_row, c + i * c_row + j, c_row, add);
    for (; j < n; j += TILE_VECTOR)
        for (int64_t i = 0; i < m; i += TILE_M)
            tile_block(1, k, a + i * a_row, a_row, a_step, b + j, b_row, c + i * c_row + j, c_row, add);
}

/* Four rows of four: columns become rows. Compilers find no good way from scalar code. */
typedef float tile_four __attribute__((vector_size(16), aligned(4), may_alias));
static inline __attribute__((always_inline)) void tile_transpose_four(const float *restrict from, int64_t from_row,
                                                                      float *restrict to, int64_t to_row) {
    const tile_four a = *(const tile_four *)from, b = *(const tile_four *)(from + from_row),
                    c = *(const tile_four *)(from + 2 * from_row), d = *(const tile_four *)(from + 3 * from_row);
    const tile_four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                    ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(tile_four *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(tile_four *)(to + to_row) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(tile_four *)(to + 2 * to_row) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
    *(tile_four *)(to + 3 * to_row) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}

/* to [columns, to_row] = transpose of from [rows, from_row]; rows and columns multiples of 4. */
static inline void tile_transpose(const float *restrict from, int64_t from_row, int64_t rows, int64_t columns,
                                  float *restrict to, int64_t to_row) {
    for (int64_t r = 0; r < rows; r += 4)
        for (int64_t j = 0; j < columns; j += 4)
            tile_transpose_four(from + r * from_row + j, from_row, to + j * to_row + r, to_row);
}

/* Rows between the one that is loaded and the one that is fetched: hardware fetches ahead within a page, and these lie
 * apart. */
enum { TILE_AHEAD = 16 };

/* to [padded, d_padded] = scale * elements [column, column + d) of rows [row, row + n) of an act tensor; zero around.
 */
static inline void tile_load(const moe_tensor *t, int64_t row, int64_t n, int64_t column, int64_t d, float scale,
                             float *restrict to) {
    int64_t padded = tile_pad(n), d_padded = tile_pad(d), width = t->shape[1], item = t->dtype == MOE_BF16 ? 2 : 4;
    for (int64_t r = 0; r < n; r++) {
        const char *later = (const char *)t->data + (cpu_row_at(row + r + TILE_AHEAD, width) + column) * item;
        if (r + TILE_AHEAD < n) act_fetch(later, d * item);
        float *restrict at = to + r * d_padded;
        const float *from = cpu_load(t, cpu_row_at(row + r, width) + column, d, at);
        CPU_IN_PLACE
        for (int64_t i = 0; i < d; i++) at[i] = scale * from[i];
        for (int64_t i = d; i < d_padded; i++) at[i] = 0.0f;
    }
    memset(to + n * d_padded, 0, (size_t)((padded - n) * d_padded) * sizeof(float));
}
#endif
