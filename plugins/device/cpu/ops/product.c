/* Products on tiles; see product.h. Two limits decide a tile: its edges, and its share of the whole work. A group that
 * is large enough is gemm.h's, whose sums do not depend on tiles: these are as large as the threads allow. Others are
 * oneDNN's, on tiles that depend on sizes alone; measured on 2048^3, one core with AVX-512: edges of 512 reach 96 % of
 * one call, 256 88 %, 128 some 5 points less, 64 half; with few columns and rows a call of 1024 rows is 4 % ahead of
 * two of 512. Tiles of the groups with most rows come first, so that the threads end together. */
#include "product.h"

#include <dnnl.h>
#include <stdatomic.h>

#include "act.h"
#include "gemm.h"

enum { EDGE = 512, EDGE_LEAST = 128, DEPTH = 512 }; /* rows and columns of a tile; most depth of a converted call */
enum { EDGE_PLAIN = 1024 };                         /* where all is FP32, and no scratch is needed */
enum { TILES_WANTED = 16, TILE_WORK = 8 * 1024 * 1024 }; /* work: multiplications of a tile worth its own call */
enum { GEMM_ROWS = 192, GEMM_EDGE = 512 };               /* least rows of gemm.h; columns of a tile */
enum { GEMM_TILES = 2 };                                 /* wanted of each thread, unless there is but one */
_Static_assert(2 * EDGE * DEPTH + EDGE * EDGE + GEMM_ROOM <= (int64_t)(CPU_SCRATCH_BYTES / sizeof(float)),
               "scratch of a tile");
_Static_assert((int)EDGE_PLAIN <= (int)GEMM_MOST_ROWS, "a tile is a call");

typedef struct span {
    int64_t begin, size;
} span;

/* out[R,C] (+)= sum over D of a(r,d) b(d,c), for one group. Which of a, b are stored transposed, and which of R and D
 * counts rows of the group, is the role's. */
typedef struct shape {
    int64_t r, c, d;
} shape;

typedef struct job {
    const product *p;
    const cpu_bf16 *bf16; /* NULL: BF16 operands are converted */
    int64_t *first;       /* [groups + 1] tiles before place i of the order */
    int64_t *order;       /* [groups] groups, most rows first */
    double most_work[2];  /* multiplications of a tile that is not halved: of oneDNN, of gemm.h */
    atomic_int failed;    /* first dnnl_status_t that is not success */
} job;

/* Part i of n things cut into `parts` nearly equal parts, at multiples of `grain` where that leaves no part empty. */
static span cut(int64_t n, int64_t parts, int64_t i, int64_t grain) {
    int64_t size = cpu_blocks(n, parts);
    int64_t even = (size + grain - 1) / grain * grain;
    if (even * (parts - 1) < n) size = even;
    int64_t begin = cpu_min(n, i * size);
    return (span){begin, cpu_min(size, n - begin)};
}

/* Is nothing to be converted? */
static int is_plain(const product *p) {
    return p->a.dtype == MOE_F32 && p->b.dtype == MOE_F32 && p->out.dtype == MOE_F32;
}

static shape shape_of(const product *p, int64_t g) {
    switch (p->role) {
        case MOE_FPROP:
            return (shape){p->count[g], p->n, p->k};
        case MOE_DGRAD:
            return (shape){p->count[g], p->k, p->n};
        default: /* MOE_WGRAD */
            return (shape){p->n, p->k, p->count[g]};
    }
}

/* Is the group gemm.h's: with rows that make packing columns worth while, and few columns that are only padding? oneDNN
 * is as fast with 128 rows, and with 16 up to half as fast again (measured). */
static int is_large(const job *j, shape whole) {
    if (j->bf16 || whole.r < GEMM_ROWS) return 0;
    return whole.c >= 4 * GEMM_MOST_COLUMNS || whole.c % GEMM_MOST_COLUMNS == 0;
}

/* ---- one tile ---- */
/* Rows r, columns c and depth d of group g: first elements of the operands, and their leading dimensions. */
typedef struct place {
    int64_t a, lda, b, ldb; /* elements */
    int trans_a, trans_b;   /* a stored [D,R], b stored [C,D] */
} place;

static place place_of(const product *p, int64_t g, span r, span c, span d) {
    int64_t row = p->begin[g], w = g * p->n * p->k, n = p->n, k = p->k;
    switch (p->role) {
        case MOE_FPROP:
            return (place){(row + r.begin) * k + d.begin, k, w + c.begin * k + d.begin, k, 0, 1};
        case MOE_DGRAD:
            return (place){(row + r.begin) * n + d.begin, n, w + d.begin * k + c.begin, k, 0, 0};
        default: /* MOE_WGRAD */
            return (place){(row + d.begin) * n + r.begin, n, (row + d.begin) * k + c.begin, k, 1, 0};
    }
}

/* A stored matrix [rows, cols] at element `at` with leading dimension *ld, as floats: itself, or converted into room.
 */
static const float *load_panel(const moe_tensor *t, int64_t at, int64_t *ld, int64_t rows, int64_t cols, float *room) {
    if (t->dtype == MOE_F32) return (const float *)t->data + at;
    const uint16_t *from = (const uint16_t *)t->data + at;
    for (int64_t i = 0; i < rows; i++) cpu_from_bf16_n(room + i * cols, from + i * *ld, cols);
    *ld = cols;
    return room;
}

/* Rows r and columns c of acc (leading dimension acc_ld) (+)= their products of depth d. large: by gemm.h. */
static dnnl_status_t multiply(const product *p, int large, int64_t g, span r, span c, span d, int add, float *acc,
                              int64_t acc_ld, float *room) {
    place at = place_of(p, g, r, c, d);
    const float *a = load_panel(&p->a, at.a, &at.lda, at.trans_a ? d.size : r.size, at.trans_a ? r.size : d.size, room);
    room += EDGE * DEPTH;
    const float *b = load_panel(&p->b, at.b, &at.ldb, at.trans_b ? c.size : d.size, at.trans_b ? d.size : c.size, room);
    if (large) {
        const gemm_call call = {a, b, acc, at.lda, at.ldb, acc_ld, r.size, c.size, d.size, at.trans_a, at.trans_b, add};
        gemm_run(&call, room + EDGE * DEPTH);
        return dnnl_success;
    }
    return dnnl_sgemm(at.trans_a ? 'T' : 'N', at.trans_b ? 'T' : 'N', r.size, c.size, d.size, 1.0f, a, at.lda, b,
                      at.ldb, add ? 1.0f : 0.0f, acc, acc_ld);
}

/* The same by products of BF16 itself, all depth at once. */
static dnnl_status_t multiply_bf16(const job *j, int64_t g, span r, span c, int64_t depth, int add, float *acc,
                                   int64_t acc_ld) {
    const product *p = j->p;
    place at = place_of(p, g, r, c, (span){0, depth});
    const cpu_bf16_call call = {.a = (const uint16_t *)p->a.data + at.a,
                                .b = (const uint16_t *)p->b.data + at.b,
                                .out = acc,
                                .lda = at.lda,
                                .ldb = at.ldb,
                                .ldo = acc_ld,
                                .rows = r.size,
                                .columns = c.size,
                                .depth = depth,
                                .trans_a = at.trans_a,
                                .trans_b = at.trans_b,
                                .add = add};
    return (dnnl_status_t)cpu_bf16_multiply(j->bf16, &call);
}

/* Is the group's part of out added to? A block that is not filled holds nothing to add to. */
static int adds(const product *p, int64_t g) {
    return p->accumulate && (!p->filled || p->filled[g]);
}

/* A tile without depth: a group without rows has a weight gradient of zeros. */
static void zero_tile(const product *p, span r, span c, int64_t at, int64_t ld) {
    int64_t item = p->out.dtype == MOE_BF16 ? 2 : 4, rows = r.size, bytes = c.size * item;
    int past = p->groups * p->n * p->k * item >= ACT_LARGE_BYTES;
    if (c.size == ld) bytes *= rows, rows = 1;
    for (int64_t i = 0; i < rows && !p->accumulate; i++)
        act_zero((char *)p->out.data + (at + i * ld) * item, bytes, past);
    act_copied();
}

/* One tile of group g: all depth, not 0, then rounding where out is BF16. `at` is its first element in out. */
static dnnl_status_t run_tile(const job *j, int64_t g, span r, span c, int64_t depth, int64_t at, int64_t ld,
                              float *scratch) {
    const product *p = j->p;
    int narrow = p->out.dtype == MOE_BF16, add = adds(p, g);
    float *acc = narrow ? scratch : (float *)p->out.data + at;
    int64_t acc_ld = narrow ? c.size : ld;
    for (int64_t i = 0; i < r.size && narrow && add; i++) cpu_load(&p->out, at + i * ld, c.size, acc + i * acc_ld);
    dnnl_status_t s = dnnl_success;
    if (j->bf16) {
        s = multiply_bf16(j, g, r, c, depth, add, acc, acc_ld);
    } else {
        int large = is_large(j, shape_of(p, g));
        int64_t parts = is_plain(p) && large ? 1 : cpu_blocks(depth, DEPTH);
        for (int64_t i = 0; i < parts && s == dnnl_success; i++)
            s = multiply(p, large, g, r, c, cut(depth, parts, i, 8), i > 0 || add, acc, acc_ld, scratch + EDGE * EDGE);
    }
    for (int64_t i = 0; i < r.size && narrow && s == dnnl_success; i++)
        cpu_store(&p->out, at + i * ld, c.size, acc + i * acc_ld);
    return s;
}

/* ---- all tiles ---- */
/* Halves the longer edge of a tile while it has too much of the work. */
static shape tile_of(const job *j, shape s) {
    int64_t edge = is_plain(j->p) ? EDGE_PLAIN : EDGE;
    int large = is_large(j, s);
    s.r = cpu_min(edge, s.r > 0 ? s.r : 1);
    s.c = cpu_min(large ? GEMM_EDGE : edge, s.c > 0 ? s.c : 1);
    while ((double)s.r * (double)s.c * (double)s.d > j->most_work[large]) {
        int64_t *longer = s.r >= s.c ? &s.r : &s.c;
        if (*longer < 2 * EDGE_LEAST) break;
        *longer = (*longer + 1) / 2;
    }
    return s;
}

/* Tiles of group g: none where its block of dw is left alone. */
static int64_t count_tiles(const job *j, int64_t g) {
    shape whole = shape_of(j->p, g), edges = tile_of(j, whole);
    if (j->p->filled && !whole.d) return 0;
    return cpu_blocks(whole.r, edges.r) * cpu_blocks(whole.c, edges.c);
}

/* The last place of the order whose first tile is not behind i (groups without tiles share their first). */
static int64_t find_place(const job *j, int64_t i) {
    int64_t lo = 0, hi = j->p->groups;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (j->first[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static void run_piece(void *arg, int64_t i, cpu_worker *w) {
    job *j = arg;
    const product *p = j->p;
    int64_t at = find_place(j, i), g = j->order[at], tile = i - j->first[at];
    shape whole = shape_of(p, g), edges = tile_of(j, whole);
    int64_t tiles_r = cpu_blocks(whole.r, edges.r), tiles_c = cpu_blocks(whole.c, edges.c);
    int64_t grain = is_large(j, whole) ? GEMM_MOST_COLUMNS : 8;
    span r = cut(whole.r, tiles_r, tile / tiles_c, 8), c = cut(whole.c, tiles_c, tile % tiles_c, grain);
    if (r.size <= 0 || c.size <= 0) return;
    int64_t row = p->role == MOE_WGRAD ? g * p->n : p->begin[g], first = (row + r.begin) * whole.c + c.begin;
    if (whole.d == 0) {
        zero_tile(p, r, c, first, whole.c);
        return;
    }
    dnnl_status_t s = run_tile(j, g, r, c, whole.d, first, whole.c, w->scratch);
    int success = dnnl_success;
    if (s != dnnl_success) atomic_compare_exchange_strong(&j->failed, &success, (int)s);
}

/* Shell sort: most rows first, equal ones by number. */
static void order_groups(const job *j) {
    const int64_t *count = j->p->count;
    int64_t n = j->p->groups, *order = j->order;
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t gap = n / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < n; i++) {
            int64_t g = order[i], at = i;
            for (; at >= gap; at -= gap) {
                int64_t h = order[at - gap];
                if (count[h] > count[g] || (count[h] == count[g] && h < g)) break;
                order[at] = h;
            }
            order[at] = g;
        }
}

moe_status product_run(cpu_device *dev, const product *p, const char *op, moe_err *err) {
    job j = {.p = p, .first = p->room, .order = p->room + p->groups + 1};
    double work = 0, threads = cpu_threads(dev);
    if (p->a.dtype == MOE_BF16 && p->b.dtype == MOE_BF16) j.bf16 = cpu_bf16_products(dev);
    atomic_init(&j.failed, dnnl_success);
    for (int64_t g = 0; g < p->groups; g++) work += (double)p->count[g] * (double)p->n * (double)p->k;
    double wanted[2] = {TILES_WANTED, threads > 1 ? GEMM_TILES * threads : 1};
    for (int i = 0; i < 2; i++) j.most_work[i] = work / wanted[i] > TILE_WORK ? work / wanted[i] : TILE_WORK;
    order_groups(&j);
    j.first[0] = 0;
    for (int64_t i = 0; i < p->groups; i++) j.first[i + 1] = j.first[i] + count_tiles(&j, j.order[i]);
    cpu_run(dev, j.first[p->groups], run_piece, &j);
    int failed = atomic_load(&j.failed);
    if (failed != dnnl_success) return moe_fail(err, MOE_E_DEVICE, "%s: oneDNN returned status %d", op, failed);
    return MOE_OK;
}
