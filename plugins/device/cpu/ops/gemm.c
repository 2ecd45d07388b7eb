/* One product, see gemm.h, after the scheme of Goto and van de Geijn ("Anatomy of high-performance matrix
 * multiplication", ACM TOMS 34(3), 2008): a panel of b, some columns wide and GEMM_DEPTH deep, is packed to stay in the
 * first-level cache while all rows of a pass by. Rows of a are read where they lie; a transposed a is packed by blocks
 * of BLOCK_ROWS. What sets it apart is memory: matrices of a step are too large and too many for any cache, and waiting
 * for them takes a sixth of a product (measured: 512^3, AVX-512, 272 GFLOP/s out of the caches, 225 without fetching
 * ahead, 250 with it). So each block of sums fetches what the next block, panel and depth will read. */
#include "gemm.h"

#include "tile.h"

#if defined(__AVX512F__)
enum { VECTORS = 4 };
#elif defined(__AVX2__)
enum { VECTORS = 3 };
#else
enum { VECTORS = 2 };
#endif
/* BLOCK_ROWS x VECTORS sums and VECTORS columns fill the registers: 16 of them, 32 for AVX-512. */
enum { BLOCK_ROWS = 4, COLUMNS = VECTORS * TILE_VECTOR, STEPS = 16 }; /* STEPS of depth between two fetches */
enum { FETCHED = 4 }; /* lines of a matrix that a block of sums fetches: twice as many are slower */
_Static_assert((int)COLUMNS <= (int)GEMM_MOST_COLUMNS && (int)FETCHED == (int)BLOCK_ROWS,
               "a panel; a row of sums a line");

/* A matrix that will be read soon, and how far it has been fetched. */
typedef struct ahead {
    const char *row;   /* NULL: nothing left */
    int64_t at, bytes; /* next byte of the row; bytes of a row */
    int64_t ld, rows;  /* bytes from row to row; rows left */
} ahead;

static ahead look_ahead(const float *m, int64_t ld, int64_t rows, int64_t columns) {
    return (ahead){.row = (const char *)m, .bytes = columns * 4, .ld = ld * 4, .rows = rows};
}

/* The next FETCHED lines of it; some that need no fetching where nothing is left. */
static const char *take_lines(ahead *f, const void *otherwise) {
    if (!f->row) return otherwise;
    const char *lines = f->row + f->at;
    f->at += FETCHED * ACT_LINE;
    if (f->at >= f->bytes) {
        f->at = 0;
        f->row = --f->rows > 0 ? f->row + f->ld : NULL;
    }
    return lines;
}

/* A block of sums: out [rows, COLUMNS] (+)= a [rows, depth] panel [depth, COLUMNS]. a is stored in rows a_row apart or,
 * packed, [depth, BLOCK_ROWS]. */
typedef struct block {
    const float *a, *panel;
    float *out;
    int64_t a_row, depth, ldo;
    int add;
    /* What is fetched meanwhile: lines of b, and of a transposed a; rows of a and of out, apart as above. */
    const char *next_panel, *next_rows;
    const float *next_a, *next_out;
} block;

#define GEMM_EACH _Pragma("GCC unroll 4")

/* What comes beside steps p .. p + STEPS - 1. */
static inline __attribute__((always_inline)) void fetch_beside(const int packed, const block *b, int64_t p) {
    int64_t i = p / STEPS;
    for (int r = 0; r < BLOCK_ROWS && !packed; r++)
        for (int64_t q = 0; q < STEPS; q += ACT_LINE / 4) __builtin_prefetch(b->next_a + r * b->a_row + p + q);
    if (i >= FETCHED) return;
    __builtin_prefetch(b->next_panel + i * ACT_LINE, 0, 2);
    if (packed) __builtin_prefetch(b->next_rows + i * ACT_LINE, 0, 2);
    for (int64_t j = 0; j < COLUMNS; j += ACT_LINE / 4) __builtin_prefetch(b->next_out + i * b->ldo + j, 1);
}

/* sum += a panel, `steps` of their depth. */
static inline __attribute__((always_inline)) void add_steps(const int rows, const int64_t steps, const float *a,
                                                            int64_t a_row, int64_t a_step, const float *panel,
                                                            tile_vector sum[BLOCK_ROWS][VECTORS]) {
    for (int64_t p = 0; p < steps; p++, panel += COLUMNS, a += a_step) {
        tile_vector x[VECTORS];
        GEMM_EACH
        for (int v = 0; v < VECTORS; v++) x[v] = *(const tile_vector *)(panel + v * TILE_VECTOR);
        GEMM_EACH
        for (int r = 0; r < rows; r++) {
            float factor = a[r * a_row];
            GEMM_EACH
            for (int v = 0; v < VECTORS; v++) sum[r][v] += factor * x[v];
        }
    }
}

static inline __attribute__((always_inline)) void run_block(const int rows, const int packed, const block *b) {
    const float *a = b->a;
    const int64_t a_row = packed ? 1 : b->a_row, a_step = packed ? BLOCK_ROWS : 1;
    float *out = b->out;
    const int64_t ldo = b->ldo;
    const int add = b->add;
    tile_vector sum[BLOCK_ROWS][VECTORS];
    GEMM_EACH
    for (int r = 0; r < rows; r++) GEMM_EACH
    for (int v = 0; v < VECTORS; v++) sum[r][v] = (tile_vector){0};
    int64_t p = 0;
    for (; p + STEPS <= b->depth; p += STEPS, a += STEPS * a_step) {
        fetch_beside(packed, b, p);
        add_steps(rows, STEPS, a, a_row, a_step, b->panel + p * COLUMNS, sum);
    }
    add_steps(rows, b->depth - p, a, a_row, a_step, b->panel + p * COLUMNS, sum);
    GEMM_EACH
    for (int r = 0; r < rows; r++) GEMM_EACH
    for (int v = 0; v < VECTORS; v++) {
        tile_vector *to = (tile_vector *)(out + r * ldo + v * TILE_VECTOR);
        if (add) sum[r][v] += *to;
        *to = sum[r][v];
    }
}

/* The kernels, by rows and by whether a is packed. */
#define GEMM_KERNEL(rows)                           \
    static void run_##rows(const block *b) {        \
        run_block(rows, 0, b);                      \
    }                                               \
    static void run_packed_##rows(const block *b) { \
        run_block(rows, 1, b);                      \
    }
GEMM_KERNEL(1)
GEMM_KERNEL(2)
GEMM_KERNEL(3)
GEMM_KERNEL(4)
static void (*const kernels[2][BLOCK_ROWS + 1])(const block *b) = {
    {NULL, run_1, run_2, run_3, run_4}, {NULL, run_packed_1, run_packed_2, run_packed_3, run_packed_4}};

/* The same for the last panel, of fewer columns: by way of a block of its own. */
static void run_edge(int packed, int64_t rows, int64_t columns, const block *b) {
    float own[BLOCK_ROWS * COLUMNS];
    block whole = *b;
    whole.out = own;
    whole.ldo = COLUMNS;
    whole.add = 0;
    whole.next_out = own;
    kernels[packed][rows](&whole);
    for (int64_t r = 0; r < rows; r++) {
        float *restrict to = b->out + r * b->ldo;
        for (int64_t i = 0; i < columns; i++) to[i] = b->add ? own[r * COLUMNS + i] + to[i] : own[r * COLUMNS + i];
    }
}

/* ---- packing ---- */
/* panel [depth, COLUMNS] = depth p.. and COLUMNS columns from j of b. */
static void pack_panel(const gemm_call *c, int64_t p, int64_t depth, int64_t j, float *restrict panel) {
    if (!c->trans_b) {
        const float *from = c->b + p * c->ldb + j;
        for (int64_t i = 0; i < depth; i++) GEMM_EACH
        for (int v = 0; v < VECTORS; v++)
            *(tile_vector *)(panel + i * COLUMNS + v * TILE_VECTOR) =
                *(const tile_vector *)(from + i * c->ldb + v * TILE_VECTOR);
        return;
    }
    const float *from = c->b + j * c->ldb + p;
    int64_t even = depth / 4 * 4;
    tile_transpose(from, c->ldb, COLUMNS, even, panel, COLUMNS);
    for (int64_t i = 0; i < COLUMNS; i++)
        for (int64_t q = even; q < depth; q++) panel[q * COLUMNS + i] = from[i * c->ldb + q];
}

/* The same for the last `columns` columns, with zeros behind them. */
static void pack_edge(const gemm_call *c, int64_t p, int64_t depth, int64_t j, int64_t columns, float *restrict panel) {
    const float *from = c->b + (c->trans_b ? j * c->ldb + p : p * c->ldb + j);
    int64_t step = c->trans_b ? 1 : c->ldb, next = c->trans_b ? c->ldb : 1;
    for (int64_t q = 0; q < depth; q++)
        for (int64_t i = 0; i < COLUMNS; i++) panel[q * COLUMNS + i] = i < columns ? from[q * step + i * next] : 0.0f;
}

/* to [blocks, depth, BLOCK_ROWS] = depth p.. of all rows of a transposed a. */
static void pack_rows(const gemm_call *c, int64_t p, int64_t depth, float *restrict to) {
    const float *from = c->a + p * c->lda;
    int64_t even = c->rows / BLOCK_ROWS * BLOCK_ROWS;
    for (int64_t q = 0; q < depth; q += 4) { /* four at once fill a line */
        int64_t end = cpu_min(depth, q + 4);
        for (int64_t r = 0; r < even; r += BLOCK_ROWS)
            for (int64_t i = q; i < end; i++)
                *(tile_four *)(to + r * depth + i * BLOCK_ROWS) = *(const tile_four *)(from + i * c->lda + r);
        for (int64_t i = q; i < end; i++)
            for (int64_t r = even; r < c->rows; r++)
                to[even * depth + i * BLOCK_ROWS + r - even] = from[i * c->lda + r];
    }
}

/* ---- one panel, all rows ---- */
static void run_panel(const gemm_call *c, int64_t p, int64_t depth, int64_t j, const float *panel, const float *rows,
                      ahead *next_panel, ahead *next_rows) {
    int64_t columns = cpu_min(c->columns - j, COLUMNS);
    int packed = c->trans_a != 0;
    block b = {.panel = panel, .depth = depth, .ldo = c->ldo, .add = c->add || p > 0, .a_row = c->lda};
    for (int64_t r = 0; r < c->rows; r += BLOCK_ROWS) {
        int64_t n = cpu_min(c->rows - r, BLOCK_ROWS);
        int more = r + 2 * BLOCK_ROWS <= c->rows;
        b.a = packed ? rows + r * depth : c->a + r * c->lda + p;
        b.out = c->out + r * c->ldo + j;
        b.next_panel = take_lines(next_panel, panel);
        b.next_rows = take_lines(next_rows, panel);
        b.next_a = more ? b.a + BLOCK_ROWS * c->lda : b.a;
        b.next_out = more ? b.out + BLOCK_ROWS * c->ldo : b.out;
        if (columns == COLUMNS)
            kernels[packed][n](&b);
        else
            run_edge(packed, n, columns, &b);
    }
}

/* Depth p.. of b for the columns from j on; nothing where there is none. */
static ahead look_at_panel(const gemm_call *c, int64_t p, int64_t part, int64_t j) {
    int64_t depth = cpu_min(c->depth - p, part), columns = cpu_min(c->columns - j, COLUMNS);
    if (depth <= 0) return (ahead){0};
    return c->trans_b ? look_ahead(c->b + j * c->ldb + p, c->ldb, columns, depth)
                      : look_ahead(c->b + p * c->ldb + j, c->ldb, depth, columns);
}

void gemm_run(const gemm_call *c, float *room) {
    float *panel = room, *rows = room + GEMM_MOST_COLUMNS * GEMM_DEPTH;
    int64_t parts = cpu_blocks(c->depth, GEMM_DEPTH), part = (cpu_blocks(c->depth, parts) + 3) / 4 * 4;
    for (int64_t p = 0; p < c->depth; p += part) {
        int64_t depth = cpu_min(c->depth - p, part), then = p + part, left = cpu_min(c->depth - then, part);
        ahead next_rows = {0};
        if (c->trans_a) pack_rows(c, p, depth, rows);
        if (c->trans_a && left > 0) next_rows = look_ahead(c->a + then * c->lda, c->lda, left, c->rows);
        for (int64_t j = 0; j < c->columns; j += COLUMNS) {
            int64_t beside = j + COLUMNS;
            ahead next_panel =
                beside < c->columns ? look_at_panel(c, p, part, beside) : look_at_panel(c, then, part, 0);
            if (beside <= c->columns)
                pack_panel(c, p, depth, j, panel);
            else
                pack_edge(c, p, depth, j, c->columns - j, panel);
            run_panel(c, p, depth, j, panel, rows, &next_panel, &next_rows);
        }
    }
}
