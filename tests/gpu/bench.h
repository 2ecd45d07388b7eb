/* gpu_bench: what operations, products and one MoE layer of the device under test reach (MOE_TEST_DEVICE, here "cuda"
 * by default; MOE_TEST_PLUGINS), through the plugin ABI. A row is one measurement, on its own: what one lacks or does
 * wrong is that row's, and the others go on. bench.c: the frame; each other file adds the rows of its part. */
#ifndef GPU_BENCH_H
#define GPU_BENCH_H
#include <moe/ops.h>
#include <moe/precision.h>

#include "plugins/device/device_open.h"

typedef struct bench bench;
typedef void bench_run_fn(bench *b, int arg);

enum { BENCH_FAILED, BENCH_MISSING, BENCH_RAN, BENCH_MEASURED }; /* RAN: at tiny shapes, whose times say nothing */
enum { BENCH_ROWS = 160, BENCH_MEMORY = 64 };

typedef struct bench_row {
    const char *part;
    char name[64];
    bench_run_fn *run;
    int arg;
} bench_row;

struct bench {
    device_open dev;
    int tiny;           /* 1: small shapes, each call once */
    double copy, dense; /* bytes/s, FLOP/s; 0 = not measured */
    bench_row rows[BENCH_ROWS];
    int n_rows;
    /* of the row that runs */
    void *memory[BENCH_MEMORY];
    uint64_t bytes[BENCH_MEMORY];
    int32_t space[BENCH_MEMORY];
    int n_memory, state;
    double value, fraction; /* NaN: none */
    const char *unit, *of;
    char why[400];
    /* kept */
    const moe_precision_v0 *precision; /* bf16; NULL until the first product */
    void *precision_self;
    moe_device_service service;
    test_service services[2];
    test_host host;
};

/* Adds a row: run(b, arg) under this name. */
void bench_add(bench *b, const char *part, bench_run_fn *run, int arg, const char *name);
void bench_add_memory(bench *b);
void bench_add_products(bench *b);
void bench_add_attention(bench *b);
void bench_add_layer(bench *b);

/* ---- set-up of a row; what it takes is given back behind it ---- */
static inline int64_t bench_size(const bench *b, int64_t real, int64_t tiny) {
    return b->tiny ? tiny : real;
}
void *bench_alloc(bench *b, int32_t space, uint64_t bytes);
/* Zeroed device memory; shape entries of 0 are absent axes. */
moe_tensor bench_tensor(bench *b, int32_t dtype, int64_t n0, int64_t n1, int64_t n2);
/* Numbers between -1 and 1, F32 or BF16. */
moe_tensor bench_random(bench *b, int32_t dtype, int64_t n0, int64_t n1, int64_t n2);
/* The elements from host memory. */
void bench_put(bench *b, const moe_tensor *to, const void *from);
uint64_t bench_bytes(const moe_tensor *t);
/* A number in [0, n), the same in every run. */
int64_t bench_draw(uint64_t i, int64_t n);

/* The row cannot be measured because something is not built. */
void bench_missing(bench *b, const char *what);
/* The descriptor of a plugin for this device, or NULL: the row is then "missing". */
const moe_desc *bench_plugin(bench *b, const char *kind, const char *id);

/* ---- a step: enqueues one repetition ---- */
typedef moe_status bench_step(void *arg, moe_err *err);

/* An operation with these lists, which live as long as the call. */
typedef struct bench_call {
    bench *b;
    const moe_op *op;
    moe_op_args args;
} bench_call;
/* saved and workspace by the lists of forward. 0: the device has no such operation, and the row is "missing". */
int bench_op(bench *b, bench_call *c, const char *name, const moe_tensor *in, uint32_t n_in, const moe_tensor *out,
             uint32_t n_out, const void *attr, const moe_rows *rows);
void bench_lists(bench_call *c, const moe_tensor *in, uint32_t n_in, const moe_tensor *out, uint32_t n_out);
bench_step bench_forward, bench_backward; /* arg: bench_call */
/* One repetition, done when it returns. */
void bench_once(bench *b, bench_step *step, void *arg);

/* Precision bf16's products. bench_linear fills args but for rows, workspace included; 0: missing. */
typedef struct bench_product {
    bench *b;
    moe_linear_args args;
    moe_tensor a, x, out; /* the role's two inputs, and its output */
    moe_rows rows;
} bench_product;
int bench_linear(bench *b, bench_product *p, int32_t role, int grouped);
bench_step bench_multiply; /* arg: bench_product */
/* Row alignment of its groups; 0: missing. */
int64_t bench_row_align(bench *b);

/* ---- the row's figure: repetitions of step, the median of several tries ---- */
void bench_memory_figure(bench *b, bench_step *step, void *arg, double bytes);
void bench_product_figure(bench *b, bench_step *step, void *arg, double flop);
void bench_token_figure(bench *b, bench_step *step, void *arg, double tokens);
/* Seconds of one repetition. */
double bench_seconds(bench *b, bench_step *step, void *arg);

#endif
