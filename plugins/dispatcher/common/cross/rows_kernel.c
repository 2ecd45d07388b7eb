/* The loops of rows.h for one instruction set, ROWS_ISA. A row is taken line by line (64 bytes), in vectors
 * of the set's size. Sanitizers do not see non-temporal stores, so their builds make plain
 * ones. */
#include <string.h>

#include "rows.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define ROWS_WATCHED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROWS_WATCHED 1
#endif
#if defined(__SSE2__) && !defined(ROWS_WATCHED)
#include <immintrin.h>
#define ROWS_STREAM 1
#endif

#define ROWS_INLINE static inline __attribute__((always_inline))
#if defined(__AVX512F__)
enum { LINE = 64, VECTOR = 64 };
#elif defined(__AVX2__)
enum { LINE = 64, VECTOR = 32 };
#else
enum { LINE = 64, VECTOR = 16 };
#endif
enum { PER_LINE = LINE / VECTOR };

typedef char bytes __attribute__((vector_size(VECTOR), aligned(1), may_alias));
typedef float floats __attribute__((vector_size(VECTOR), aligned(1), may_alias));
typedef uint32_t words __attribute__((vector_size(VECTOR), may_alias));
typedef uint16_t halves __attribute__((vector_size(VECTOR / 2), aligned(1), may_alias));

/* Stores a vector at an address that is a multiple of its size, past the caches. */
ROWS_INLINE void stream(char *to, bytes x) {
#if defined(ROWS_STREAM) && defined(__AVX512F__)
    _mm512_stream_si512((__m512i *)(void *)to, (__m512i)x);
#elif defined(ROWS_STREAM) && defined(__AVX2__)
    _mm256_stream_si256((__m256i *)(void *)to, (__m256i)x);
#elif defined(ROWS_STREAM)
    _mm_stream_si128((__m128i *)(void *)to, (__m128i)x);
#else
    *(bytes *)to = x;
#endif
}
ROWS_INLINE void store(char *to, bytes x, int past) {
    if (past)
        stream(to, x);
    else
        *(bytes *)to = x;
}

/* Past the caches only whole lines go: the bytes before the first one and after the last are stored plainly. */
ROWS_INLINE int64_t to_line(const char *to, int64_t n) {
    int64_t head = (int64_t)(-(uintptr_t)to % LINE);
    return head < n ? head : n;
}

ROWS_INLINE int64_t copy_lines(char *y, const char *x, int64_t i, int64_t n, int past) {
    for (; i + LINE <= n; i += LINE)
        for (int64_t j = i; j < i + LINE; j += VECTOR) store(y + j, *(const bytes *)(x + j), past);
    return i;
}

static void copy(void *to, const void *from, int64_t n, int past) {
    char *y = to;
    const char *x = from;
    int64_t i = 0;
    if (past) {
        i = to_line(y, n);
        memcpy(y, x, (size_t)i);
        i = copy_lines(y, x, i, n, 1);
    }
    i = copy_lines(y, x, i, n, 0);
    memcpy(y + i, x + i, (size_t)(n - i));
}

static void zero(void *to, int64_t n, int past) {
    char *y = to;
    int64_t i = 0;
    if (past) {
        i = to_line(y, n);
        memset(y, 0, (size_t)i);
        for (; i + VECTOR <= n; i += VECTOR) stream(y + i, (bytes){0});
    }
    memset(y + i, 0, (size_t)(n - i));
}

ROWS_INLINE floats widen(const char *x) {
    return (floats)(__builtin_convertvector(*(const halves *)x, words) << 16);
}

/* The upper halves of the lanes, to the nearest, ties to even; what is not a number stays one. */
ROWS_INLINE words rounded(floats v) {
    words u = (words)v, high = u >> 16, nan = (words)(v != v);
    words near = (u + 0x7fffu + (high & 1u)) >> 16;
    return (near & ~nan) | ((high | 0x40u) & nan);
}
ROWS_INLINE void narrow_to(void *to, floats v) {
    const halves h = __builtin_convertvector(rounded(v), halves);
    memcpy(to, &h, sizeof h);
}

/* Asks for the line at byte i of the rows of the next sum. */
ROWS_INLINE void fetch_ahead(const rows_list *list, int64_t i) {
    for (int64_t j = 0; j < list->n_ahead; j++) __builtin_prefetch((const char *)list->ahead[j] + i, 0, 2);
}

/* sum += line i of rows [from, to). */
ROWS_INLINE void add_lines(floats *sum, const rows_list *list, int64_t from, int64_t to, int64_t i, int narrow) {
    const int vectors = narrow ? 2 * PER_LINE : PER_LINE;
    for (int64_t j = from; j < to; j++) {
        const char *x = (const char *)list->rows[j] + i;
        for (int v = 0; v < vectors; v++)
            sum[v] += narrow ? widen(x + v * VECTOR / 2) : *(const floats *)(x + v * VECTOR);
    }
}

/* The line at byte i of the rows' sum. */
ROWS_INLINE void sum_line(char *y, const rows_list *list, int64_t i, int narrow, int past) {
    floats sum[2 * PER_LINE] = {0}, part[2 * PER_LINE] = {0};
    add_lines(sum, list, 0, list->part, i, narrow);
    if (list->part < list->part_end) {
        add_lines(part, list, list->part, list->part_end, i, narrow);
        for (int v = 0; v < (narrow ? 2 * PER_LINE : PER_LINE); v++)
            sum[v] += narrow ? (floats)(rounded(part[v]) << 16) : part[v];
    }
    add_lines(sum, list, list->part_end, list->n, i, narrow);
    for (int v = 0; v < PER_LINE; v++) {
        bytes out = (bytes)sum[v];
        if (narrow) {
            narrow_to(&out, sum[2 * v]);
            narrow_to((char *)&out + VECTOR / 2, sum[2 * v + 1]);
        }
        store(y + i + v * VECTOR, out, past);
    }
}

/* One element at byte i of row j. */
ROWS_INLINE float element(const rows_list *list, int64_t j, int64_t i, int narrow) {
    const char *x = (const char *)list->rows[j] + i;
    uint16_t half = 0;
    uint32_t word = 0;
    float value;
    memcpy(narrow ? (void *)&half : (void *)&word, x, narrow ? 2 : 4);
    if (narrow) word = (uint32_t)half << 16;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* `n` < LINE bytes of it. */
static void sum_rest(char *y, const rows_list *list, int64_t i, int64_t n, int narrow) {
    for (const int64_t end = i + n; i < end; i += narrow ? 2 : 4) {
        floats sum = {0}, part = {0};
        for (int64_t j = 0; j < list->part; j++) sum[0] += element(list, j, i, narrow);
        for (int64_t j = list->part; j < list->part_end; j++) part[0] += element(list, j, i, narrow);
        if (list->part < list->part_end) sum[0] += narrow ? ((floats)(rounded(part) << 16))[0] : part[0];
        for (int64_t j = list->part_end; j < list->n; j++) sum[0] += element(list, j, i, narrow);
        bytes out = (bytes)sum;
        if (narrow) narrow_to(&out, sum);
        memcpy(y + i, &out, narrow ? 2 : 4);
    }
}

ROWS_INLINE int64_t sum_lines(char *y, const rows_list *list, int64_t i, int64_t n, int narrow, int past) {
    for (; i + LINE <= n; i += LINE) {
        fetch_ahead(list, i);
        sum_line(y, list, i, narrow, past);
    }
    return i;
}

ROWS_INLINE void sum_row(char *y, const rows_list *list, int64_t n, int narrow, int past) {
    int64_t i = 0;
    if (past) {
        i = to_line(y, n);
        sum_rest(y, list, 0, i, narrow);
        i = sum_lines(y, list, i, n, narrow, 1);
    }
    i = sum_lines(y, list, i, n, narrow, 0);
    sum_rest(y, list, i, n - i, narrow);
}

static void sum(void *to, const rows_list *list, int64_t count, int narrow, int past) {
    if (narrow)
        sum_row(to, list, count * 2, 1, past);
    else
        sum_row(to, list, count * 4, 0, past);
}

static void done(void) {
#if defined(ROWS_STREAM)
    _mm_sfence();
#endif
}

#define ROWS_NAME_(isa) rows_kernel_##isa
#define ROWS_NAME(isa) ROWS_NAME_(isa)
const rows_kernel ROWS_NAME(ROWS_ISA) = {copy, zero, sum, done};
