/* Products on tiles; see product.h. Tile sizes are measured: 256 x 256 x 512 reaches 85-95 % of one large product on
 * one core, 128 x 128 about 5 points less, 64 x 64 half. */
#include "product.h"

#include <dnnl.h>
#include <stdatomic.h>

enum { EDGE = 256, EDGE_GOOD = 128, EDGE_LEAST = 64, DEPTH = 512 }; /* rows and columns of a tile; most depth a call */
enum { TILES_WANTED = 64, TILES_FEW = 12, TILE_WORK = 8 * 1024 * 1024 }; /* work: multiplications of a tile */
_Static_assert(2 * EDGE * DEPTH + EDGE * EDGE <= (int64_t)(CPU_SCRATCH_BYTES / sizeof(float)), "scratch of a tile");

/* out[R,C] (+)= sum over D of a(r,d) b(d,c), for one group. Which of a, b are stored transposed, and which of R and D
 * counts rows of the group, is the role's. */
typedef struct job {
    const product *p;
    int64_t edge_r, edge_c; /* most rows and columns of a tile */
    int64_t tiles_c;        /* column tiles, the same in every group */
    int64_t columns;        /* C */
    atomic_int failed;      /* first dnnl_status_t that is not success */
} job;
typedef struct span {
    int64_t begin, size;
} span;

/* Part i of n things cut into `parts` nearly equal parts, at multiples of 8 where that leaves no part empty. */
static span cut(int64_t n, int64_t parts, int64_t i) {
    int64_t size = cpu_blocks(n, parts);
    int64_t even = (size + 7) / 8 * 8;
    if (even * (parts - 1) < n) size = even;
    int64_t begin = cpu_min(n, i * size);
    return (span){begin, cpu_min(size, n - begin)};
}

/* ---- one tile ---- */
/* A stored matrix [rows, cols] at element `at` with leading dimension ld, as floats: itself, or converted into room. */
typedef struct panel {
    const float *data;
    int64_t ld;
} panel;
static panel load_panel(const moe_tensor *t, int64_t at, int64_t ld, int64_t rows, int64_t cols, float *room) {
    if (t->dtype == MOE_F32) return (panel){(const float *)t->data + at, ld};
    const uint16_t *from = (const uint16_t *)t->data + at;
    for (int64_t i = 0; i < rows; i++) cpu_from_bf16_n(room + i * cols, from + i * ld, cols);
    return (panel){room, cols};
}

/* Rows r and columns c of out += their products of depth d, onto acc with leading dimension acc_ld. */
static dnnl_status_t multiply(const product *p, int64_t g, span r, span c, span d, float beta, float *acc,
                              int64_t acc_ld, float *room) {
    int64_t row = p->begin[g], w = g * p->n * p->k, n = p->n, k = p->k;
    float *room_b = room + EDGE * DEPTH;
    panel a, b;
    switch (p->role) {
        case MOE_FPROP:
            a = load_panel(&p->a, (row + r.begin) * k + d.begin, k, r.size, d.size, room);
            b = load_panel(&p->b, w + c.begin * k + d.begin, k, c.size, d.size, room_b);
            break;
        case MOE_DGRAD:
            a = load_panel(&p->a, (row + r.begin) * n + d.begin, n, r.size, d.size, room);
            b = load_panel(&p->b, w + d.begin * k + c.begin, k, d.size, c.size, room_b);
            break;
        default: /* MOE_WGRAD */
            a = load_panel(&p->a, (row + d.begin) * n + r.begin, n, d.size, r.size, room);
            b = load_panel(&p->b, (row + d.begin) * k + c.begin, k, d.size, c.size, room_b);
            break;
    }
    char trans_a = p->role == MOE_WGRAD ? 'T' : 'N', trans_b = p->role == MOE_FPROP ? 'T' : 'N';
    return dnnl_sgemm(trans_a, trans_b, r.size, c.size, d.size, 1.0f, a.data, a.ld, b.data, b.ld, beta, acc, acc_ld);
}

/* One tile of group g: all depth, then rounding where out is BF16. `at` is its first element in out. */
static dnnl_status_t run_tile(const product *p, int64_t g, span r, span c, int64_t depth, int64_t at, int64_t ld,
                              float *scratch) {
    int narrow = p->out.dtype == MOE_BF16;
    float *acc = narrow ? scratch : (float *)p->out.data + at;
    int64_t acc_ld = narrow ? c.size : ld;
    for (int64_t i = 0; i < r.size && (narrow || depth == 0); i++) {
        float *row = acc + i * acc_ld;
        if (!p->accumulate)
            memset(row, 0, (size_t)c.size * sizeof *row);
        else if (narrow)
            cpu_load(&p->out, at + i * ld, c.size, row);
    }
    int64_t parts = cpu_blocks(depth, DEPTH);
    for (int64_t i = 0; i < parts; i++) {
        float beta = i > 0 || p->accumulate ? 1.0f : 0.0f;
        dnnl_status_t s = multiply(p, g, r, c, cut(depth, parts, i), beta, acc, acc_ld, scratch + EDGE * EDGE);
        if (s != dnnl_success) return s;
    }
    for (int64_t i = 0; i < r.size && narrow; i++) cpu_store(&p->out, at + i * ld, c.size, acc + i * acc_ld);
    return dnnl_success;
}

/* ---- all tiles ---- */
/* R of group g: rows of the group, or N where the output is a weight gradient. */
static int64_t height(const product *p, int64_t g) {
    return p->role == MOE_WGRAD ? p->n : p->count[g];
}

/* The last group whose first piece is not behind i (groups without pieces share their first with the next). */
static int64_t find_group(const product *p, int64_t i) {
    int64_t lo = 0, hi = p->groups;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (p->first[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static void run_piece(void *arg, int64_t i, cpu_worker *w) {
    job *j = arg;
    const product *p = j->p;
    int64_t g = find_group(p, i), tile = i - p->first[g];
    int64_t tiles_r = cpu_blocks(height(p, g), j->edge_r);
    span r = cut(height(p, g), tiles_r, tile / j->tiles_c), c = cut(j->columns, j->tiles_c, tile % j->tiles_c);
    if (r.size <= 0 || c.size <= 0) return;
    int64_t depth = p->role == MOE_FPROP ? p->k : p->role == MOE_DGRAD ? p->n : p->count[g];
    int64_t base = p->role == MOE_WGRAD ? g * p->n : p->begin[g];
    int64_t at = (base + r.begin) * j->columns + c.begin;
    dnnl_status_t s = run_tile(p, g, r, c, depth, at, j->columns, w->scratch);
    int success = dnnl_success;
    if (s != dnnl_success) atomic_compare_exchange_strong(&j->failed, &success, (int)s);
}

/* Halves the longer edge while there are few tiles and each has much to do; below EDGE_GOOD only where very few. */
static void choose_edges(job *j) {
    const product *p = j->p;
    int64_t rows = 0;
    for (int64_t g = 0; g < p->groups; g++) rows += p->count[g];
    int wgrad = p->role == MOE_WGRAD;
    int64_t high = wgrad ? p->groups * p->n : rows, depth = p->role == MOE_FPROP ? p->k : p->n;
    if (wgrad) depth = p->groups ? rows / p->groups : 0;
    j->edge_r = cpu_min(EDGE, high > 0 ? high : 1);
    j->edge_c = cpu_min(EDGE, j->columns > 0 ? j->columns : 1);
    for (;;) {
        int64_t tiles = cpu_blocks(high, j->edge_r) * cpu_blocks(j->columns, j->edge_c);
        double work = (double)j->edge_r * (double)j->edge_c * (double)depth;
        int64_t *longer = j->edge_r >= j->edge_c ? &j->edge_r : &j->edge_c;
        if (tiles >= TILES_WANTED || work <= TILE_WORK) return;
        if (*longer < 2 * (tiles < TILES_FEW ? EDGE_LEAST : EDGE_GOOD)) return;
        *longer = (*longer + 1) / 2;
    }
}

moe_status product_run(cpu_device *dev, const product *p, const char *op, moe_err *err) {
    job j = {.p = p, .columns = p->role == MOE_FPROP ? p->n : p->k};
    atomic_init(&j.failed, dnnl_success);
    choose_edges(&j);
    j.tiles_c = cpu_blocks(j.columns, j.edge_c);
    p->first[0] = 0;
    for (int64_t g = 0; g < p->groups; g++)
        p->first[g + 1] = p->first[g] + cpu_blocks(height(p, g), j.edge_r) * j.tiles_c;
    cpu_run(dev, p->first[p->groups], run_piece, &j);
    int failed = atomic_load(&j.failed);
    if (failed != dnnl_success) return moe_fail(err, MOE_E_DEVICE, "%s: dnnl_sgemm returned status %d", op, failed);
    return MOE_OK;
}
