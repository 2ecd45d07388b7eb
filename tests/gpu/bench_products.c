/* Rows of precision bf16's products in TFLOP/s: a dense one, of which the others are fractions, and the experts' of
 * some models in each role, both of an expert's matrices one after the other: [2f,h] and [h,f]. Skewed: by Zipf's law
 * with exponent 1, where no expert is chosen twice by a token. Rows of the groups are known to the host as well (recv =
 * exact), or to the device alone. Padding rows do not count. */
#include "bench.h"
#include "bench_models.h"

enum { SIDE = 8192, KINDS = 12 };

/* Tensors of a product with M rows, weights [G,N,K] or, G = 0, [N,K]; rows are set where there are groups. */
static int make_product(bench *b, bench_product *p, int32_t role, int64_t m, int64_t n, int64_t k, int64_t groups) {
    moe_tensor *weights = role == MOE_WGRAD ? &p->out : &p->x;
    const int32_t dtype = role == MOE_WGRAD ? MOE_F32 : MOE_BF16;
    p->a = bench_random(b, MOE_BF16, m, role == MOE_FPROP ? k : n, 0);
    if (role == MOE_WGRAD)
        p->x = bench_random(b, MOE_BF16, m, k, 0);
    else
        p->out = bench_tensor(b, MOE_BF16, m, role == MOE_FPROP ? n : k, 0);
    *weights = groups ? bench_random(b, dtype, groups, n, k) : bench_random(b, dtype, n, k, 0);
    return bench_linear(b, p, role, groups > 0);
}

static void run_dense(bench *b, int arg) {
    (void)arg;
    const int64_t side = bench_size(b, SIDE, 64);
    bench_product p = {.b = b};
    if (!make_product(b, &p, MOE_FPROP, side, side, side, 0)) return;
    b->dense = 0;
    bench_product_figure(b, bench_multiply, &p, 2.0 * (double)side * (double)side * (double)side);
    if (b->state == BENCH_MEASURED) b->dense = b->value * 1e12;
}

/* ---- grouped ---- */
typedef struct loads {
    int64_t *counts, *offsets; /* [G], [G+1]; host memory */
    moe_tensor dev_counts, dev_offsets;
} loads;

static void make_loads(bench *b, const bench_model *m, int skewed, int64_t align, loads *l) {
    const int64_t g = m->experts;
    double weights = 0;
    int64_t left = m->tokens * m->k;
    l->counts = bench_alloc(b, MOE_SPACE_HOST, (uint64_t)g * 8);
    l->offsets = bench_alloc(b, MOE_SPACE_HOST, (uint64_t)(g + 1) * 8);
    for (int64_t i = 0; i < g; i++) weights += skewed ? 1.0 / (double)(i + 1) : 1;
    for (int64_t i = 0; i < g; i++) {
        const double weight = skewed ? 1.0 / (double)(i + 1) : 1;
        int64_t n = i == g - 1 ? left : (int64_t)((double)left * weight / weights + 0.5);
        l->counts[i] = n < m->tokens ? n : m->tokens;
        l->offsets[i + 1] = l->offsets[i] + (l->counts[i] + align - 1) / align * align;
        left -= l->counts[i];
        weights -= weight;
    }
    l->dev_counts = bench_tensor(b, MOE_I64, g, 0, 0);
    l->dev_offsets = bench_tensor(b, MOE_I64, g + 1, 0, 0);
    bench_put(b, &l->dev_counts, l->counts);
    bench_put(b, &l->dev_offsets, l->offsets);
}

typedef struct pair {
    bench_product first, second;
} pair;
static moe_status multiply_both(void *arg, moe_err *err) {
    pair *p = arg;
    moe_status s = bench_multiply(&p->first, err);
    return s == MOE_OK ? bench_multiply(&p->second, err) : s;
}

static void run_experts(bench *b, int arg) {
    const bench_model *m = b->tiny ? &bench_tiny_model : &bench_models[arg / KINDS];
    const int known = arg % 2, role = arg / 2 % 3, skewed = arg / 6 % 2;
    const int64_t align = bench_row_align(b), g = m->experts;
    loads l;
    pair p = {.first.b = b};
    if (!align) return;
    make_loads(b, m, skewed, align, &l);
    const moe_rows rows = {sizeof rows,
                           (uint32_t)g,
                           l.offsets[g],
                           l.dev_offsets.data,
                           l.dev_counts.data,
                           known ? l.offsets[g] : -1,
                           known ? l.offsets : NULL,
                           known ? l.counts : NULL};
    p.first.rows = p.second.rows = rows;
    if (!make_product(b, &p.first, role, rows.max, 2 * m->ffn, m->hidden, g)) return;
    if (!make_product(b, &p.second, role, rows.max, m->hidden, m->ffn, g)) return;
    bench_product_figure(b, multiply_both, &p, 6.0 * (double)(m->tokens * m->k) * (double)m->hidden * (double)m->ffn);
}

void bench_add_products(bench *b) {
    static const char *const roles[] = {"fprop", "dgrad", "wgrad"};
    char name[64];
    bench_add(b, "products", run_dense, 0, "dense product 8192^3");
    for (int i = 0; i < BENCH_MODELS * KINDS; i++) {
        snprintf(name, sizeof name, "%s %s %s%s", bench_models[i / KINDS].name, i / 6 % 2 ? "skewed" : "balanced",
                 roles[i / 2 % 3], i % 2 ? ", rows known" : "");
        bench_add(b, "products", run_experts, i, name);
    }
}
