/* The frame of gpu_bench: arguments, rows, time. One JSON object a row on stdout; see bench.h.
 * gpu_bench [--tiny] [--list] [PART...]    parts: memory products attention layer; exit code 1: a row failed, or what
 * it measures is missing. Each row is a Check test without a process of its own, because the helpers that it shares
 * with the tests assert. */
#include "bench.h"

#include <assert.h>
#include <math.h>
#include <time.h>

enum { TRIES = 5, MOST_REPEATS = 500, PATTERN = 1 << 20 };
static const double TRY_SECONDS = 0.02, SLOW_SECONDS = 0.25; /* of one repetition: it is tried once */
static bench all;

/* ---- rows ---- */
void bench_add(bench *b, const char *part, bench_run_fn *run, int arg, const char *name) {
    assert(b->n_rows < BENCH_ROWS);
    bench_row *r = &b->rows[b->n_rows++];
    *r = (bench_row){.part = part, .run = run, .arg = arg};
    snprintf(r->name, sizeof r->name, "%s", name);
}

void bench_missing(bench *b, const char *what) {
    b->state = BENCH_MISSING;
    snprintf(b->why, sizeof b->why, "%s", what);
}

static void release(bench *b) {
    moe_err err = {.size = sizeof err};
    if (b->n_memory) b->dev.table->stream_sync(b->dev.self, b->dev.stream, &err);
    while (b->n_memory) {
        b->n_memory--;
        device_open_free_in(&b->dev, b->space[b->n_memory], b->memory[b->n_memory], b->bytes[b->n_memory]);
    }
}

/* ---- memory ---- */
void *bench_alloc(bench *b, int32_t space, uint64_t bytes) {
    ck_assert_int_lt(b->n_memory, BENCH_MEMORY);
    void *p = device_open_alloc_in(&b->dev, space, bytes);
    b->memory[b->n_memory] = p;
    b->bytes[b->n_memory] = bytes;
    b->space[b->n_memory++] = space;
    return p;
}

static uint64_t dtype_bytes(int32_t dtype) {
    return dtype == MOE_BF16 ? 2 : dtype == MOE_F64 || dtype == MOE_I64 ? 8 : dtype == MOE_U8 ? 1 : 4;
}
uint64_t bench_bytes(const moe_tensor *t) {
    return (uint64_t)(t->shape[0] * t->shape[1] * t->shape[2]) * dtype_bytes(t->dtype);
}

moe_tensor bench_tensor(bench *b, int32_t dtype, int64_t n0, int64_t n1, int64_t n2) {
    moe_tensor t = {.dtype = dtype, .ndim = n2 ? 3 : n1 ? 2 : 1, .shape = {n0, n1 ? n1 : 1, n2 ? n2 : 1, 1}};
    t.data = bench_alloc(b, MOE_SPACE_DEVICE, bench_bytes(&t));
    return t;
}

int64_t bench_draw(uint64_t i, int64_t n) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((x ^ (x >> 31)) % (uint64_t)n);
}

/* A pattern from the host, then twice as much of it again and again on the device. */
moe_tensor bench_random(bench *b, int32_t dtype, int64_t n0, int64_t n1, int64_t n2) {
    moe_tensor t = bench_tensor(b, dtype, n0, n1, n2);
    const uint64_t bytes = bench_bytes(&t), first = bytes < PATTERN ? bytes : PATTERN, each = dtype_bytes(dtype);
    char *pattern = device_open_alloc(&b->dev, first);
    for (uint64_t i = 0; i < first / each; i++) {
        union {
            float f;
            uint16_t half[2]; /* [1]: the upper one, BF16 */
        } v = {.f = (float)bench_draw(i, 2001) * 1e-3f - 1.0f};
        memcpy(pattern + i * each, each == 2 ? (void *)&v.half[1] : (void *)&v.f, each);
    }
    device_open_copy(&b->dev, t.data, pattern, first);
    device_open_free(&b->dev, pattern, first);
    for (uint64_t done = first; done < bytes; done *= 2)
        device_open_copy(&b->dev, (char *)t.data + done, t.data, bytes - done < done ? bytes - done : done);
    return t;
}

void bench_put(bench *b, const moe_tensor *to, const void *from) {
    device_open_copy(&b->dev, to->data, from, bench_bytes(to));
}

/* ---- plugins and operations ---- */
const moe_desc *bench_plugin(bench *b, const char *kind, const char *id) {
    char own[1024], any[1024], why[200];
    snprintf(own, sizeof own, "%s/%s/%s-%s.so", test_plugins(), kind, id, test_device());
    snprintf(any, sizeof any, "%s/%s/%s.so", test_plugins(), kind, id);
    const moe_desc *d = access(own, F_OK) == 0 ? plugin_in(own, kind, id, test_device()) : NULL;
    if (!d && access(any, F_OK) == 0) d = plugin_in(any, kind, id, test_device());
    snprintf(why, sizeof why, "no %s/%s for device %s", kind, id, test_device());
    if (!d) bench_missing(b, why);
    return d;
}

int bench_op(bench *b, bench_call *c, const char *name, const moe_tensor *in, uint32_t n_in, const moe_tensor *out,
             uint32_t n_out, const void *attr, const moe_rows *rows) {
    uint64_t saved = 0, workspace = 0;
    moe_err err = {.size = sizeof err};
    *c = (bench_call){.b = b, .op = device_open_find(&b->dev, name)};
    if (!c->op) {
        bench_missing(b, name);
        return 0;
    }
    c->args = (moe_op_args){.size = sizeof c->args, .stream = b->dev.stream, .attr = attr, .rows = rows};
    c->args.fault = b->dev.fault;
    bench_lists(c, in, n_in, out, n_out);
    moe_status s = c->op->sizes(b->dev.self, &c->args, &saved, &workspace, &err);
    ck_assert_msg(s == MOE_OK, "%s: %s", name, err.msg);
    if (saved) c->args.saved = bench_alloc(b, MOE_SPACE_DEVICE, saved);
    if (workspace) c->args.workspace = bench_alloc(b, MOE_SPACE_DEVICE, workspace);
    return 1;
}

void bench_lists(bench_call *c, const moe_tensor *in, uint32_t n_in, const moe_tensor *out, uint32_t n_out) {
    c->args.in = in;
    c->args.n_in = n_in;
    c->args.out = out;
    c->args.n_out = n_out;
}

moe_status bench_forward(void *arg, moe_err *err) {
    bench_call *c = arg;
    return c->op->forward(c->b->dev.self, &c->args, err);
}
moe_status bench_backward(void *arg, moe_err *err) {
    bench_call *c = arg;
    return c->op->backward(c->b->dev.self, &c->args, err);
}

/* ---- products ---- */
static int open_precision(bench *b) {
    if (b->precision) return 1;
    const moe_desc *d = bench_plugin(b, "precision", "bf16");
    moe_precision_cfg cfg = {.size = sizeof cfg};
    moe_err err = {.size = sizeof err};
    if (!d) return 0;
    if (!device_open_find(&b->dev, MOE_OP_LINEAR)) {
        bench_missing(b, MOE_OP_LINEAR);
        return 0;
    }
    const moe_precision_v0 *table = d->vtable;
    moe_status s = table->create(&cfg, &b->host.host, &b->precision_self, &err);
    ck_assert_msg(s == MOE_OK, "precision/bf16: %s", err.msg);
    b->precision = table;
    return 1;
}

int64_t bench_row_align(bench *b) {
    moe_precision_needs needs = {.size = sizeof needs};
    moe_err err = {.size = sizeof err};
    if (!open_precision(b)) return 0;
    ck_assert_msg(b->precision->needs(b->precision_self, &needs, &err) == MOE_OK, "%s", err.msg);
    return needs.row_align;
}

int bench_linear(bench *b, bench_product *p, int32_t role, int grouped) {
    uint64_t workspace = 0;
    moe_err err = {.size = sizeof err};
    if (!open_precision(b)) return 0;
    p->b = b;
    p->args = (moe_linear_args){.size = sizeof p->args, .role = role, .stream = b->dev.stream};
    p->args.a = &p->a;
    p->args.b = &p->x;
    p->args.out = &p->out;
    p->args.rows = grouped ? &p->rows : NULL;
    moe_status s = b->precision->sizes(b->precision_self, &p->args, &workspace, &err);
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    if (workspace) p->args.workspace = bench_alloc(b, MOE_SPACE_DEVICE, workspace);
    return 1;
}

moe_status bench_multiply(void *arg, moe_err *err) {
    bench_product *p = arg;
    return p->b->precision->linear(p->b->precision_self, &p->args, err);
}

/* ---- time ---- */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Seconds of n repetitions with the stream empty before and after. */
static double repeat(bench *b, bench_step *step, void *arg, int n) {
    moe_err err = {.size = sizeof err};
    double at = now();
    for (int i = 0; i < n; i++) {
        moe_status s = step(arg, &err);
        ck_assert_msg(s == MOE_OK, "%s", err.msg);
    }
    moe_status s = b->dev.table->stream_sync(b->dev.self, b->dev.stream, &err);
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    return now() - at;
}

/* No repetition has found an error in the data. */
static void want_no_fault(bench *b) {
    device_open_copy(&b->dev, b->dev.seen, b->dev.fault, sizeof *b->dev.seen);
    device_open_fill(&b->dev, b->dev.fault, 0, sizeof *b->dev.fault);
    const moe_fault *f = b->dev.seen;
    ck_assert_msg(f->code == MOE_OK, "fault %lld at token %lld, value %lld", (long long)f->code, (long long)f->token,
                  (long long)f->value);
}

void bench_once(bench *b, bench_step *step, void *arg) {
    repeat(b, step, arg, 1);
    want_no_fault(b);
}

double bench_seconds(bench *b, bench_step *step, void *arg) {
    double tries[TRIES];
    bench_once(b, step, arg); /* chooses algorithms, loads code */
    b->state = BENCH_RAN;
    if (b->tiny) return (double)NAN;
    const double once = repeat(b, step, arg, 1), n = TRY_SECONDS / once;
    const int times = n < 1 ? 1 : n > MOST_REPEATS ? MOST_REPEATS : (int)n, most = once > SLOW_SECONDS ? 1 : TRIES;
    for (int i = 0; i < most; i++) tries[i] = repeat(b, step, arg, times) / times;
    want_no_fault(b);
    qsort(tries, (size_t)most, sizeof tries[0], by_value);
    b->state = BENCH_MEASURED;
    return tries[most / 2];
}

static void figure(bench *b, double value, const char *unit, double peak, const char *of) {
    b->value = value;
    b->unit = unit;
    b->fraction = peak > 0 ? value / peak : (double)NAN;
    b->of = of;
}
void bench_memory_figure(bench *b, bench_step *step, void *arg, double bytes) {
    figure(b, bytes / bench_seconds(b, step, arg) * 1e-12, "TB/s", b->copy * 1e-12, "copy");
}
void bench_product_figure(bench *b, bench_step *step, void *arg, double flop) {
    figure(b, flop / bench_seconds(b, step, arg) * 1e-12, "TFLOP/s", b->dense * 1e-12, "dense product");
}
void bench_token_figure(bench *b, bench_step *step, void *arg, double tokens) {
    figure(b, tokens / bench_seconds(b, step, arg), "tokens/s", 0, "");
}

/* ---- the program ---- */
static void put_text(const char *text) {
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar((unsigned char)*text < ' ' ? ' ' : *text);
}

static void show(const bench *b, const bench_row *r) {
    static const char *const states[] = {"failed", "missing", "ran", "measured"};
    printf("{\"part\":\"%s\",\"row\":\"%s\",\"state\":\"%s\"", r->part, r->name, states[b->state]);
    if (b->state == BENCH_MEASURED) {
        printf(",\"value\":%.6g,\"unit\":\"%s\"", b->value, b->unit);
        if (!isnan(b->fraction)) printf(",\"fraction\":%.4f,\"of\":\"%s\"", b->fraction, b->of);
    }
    if (b->state <= BENCH_MISSING) {
        printf(",\"why\":\"");
        put_text(b->why);
        putchar('"');
    }
    printf("}\n");
    fflush(stdout);
}

static void open_device(bench *b) {
    moe_err err = {.size = sizeof err};
    if (b->dev.self) return;
    ck_assert_msg(device_open_with(&b->dev, NULL, 0, &err) == MOE_OK, "%s", err.msg);
    ck_assert_msg(device_open_is_async(&b->dev), "device/%s is not asynchronous", test_device());
    b->service = (moe_device_service){sizeof b->service, b->dev.flags, b->dev.table, b->dev.self};
    b->services[0] = (test_service){"moe.device/0", &b->service};
    test_host_init(&b->host, b->services);
}

START_TEST(run_row) {
    const bench_row *r = &all.rows[_i];
    open_device(&all);
    r->run(&all, r->arg);
}
END_TEST

/* Runs and shows a row. Returns 0 where it failed or misses something. */
static int try_row(bench *b, int i) {
    Suite *s = suite_create("row");
    TCase *t = tcase_create("row");
    tcase_add_loop_test(t, run_row, i, i + 1);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_set_fork_status(runner, CK_NOFORK);
    b->state = BENCH_FAILED;
    b->value = b->fraction = (double)NAN;
    snprintf(b->why, sizeof b->why, "it ended without a figure");
    srunner_run_all(runner, CK_SILENT);
    if (srunner_ntests_failed(runner)) {
        TestResult **results = srunner_failures(runner);
        b->state = BENCH_FAILED;
        snprintf(b->why, sizeof b->why, "%s", tr_msg(results[0]));
        free(results);
    }
    srunner_free(runner);
    show(b, &b->rows[i]);
    release(b);
    return b->state >= BENCH_RAN;
}

static int wanted(const bench_row *r, int argc, char **argv) {
    int named = 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') continue;
        named = 1;
        if (strcmp(argv[i], r->part) == 0) return 1;
    }
    return !named;
}

static int check_arguments(bench *b, int argc, char **argv, int *list) {
    static const char *const parts[] = {"memory", "products", "attention", "layer"};
    for (int i = 1; i < argc; i++) {
        int known = 0;
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) known |= strcmp(argv[i], parts[k]) == 0;
        if (strcmp(argv[i], "--tiny") == 0) {
            b->tiny = 1;
        } else if (strcmp(argv[i], "--list") == 0) {
            *list = 1;
        } else if (!known) {
            fprintf(stderr, "gpu_bench: %s: want [--tiny] [--list] [memory] [products] [attention] [layer]\n", argv[i]);
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    int list = 0, failed = 0;
    if (!check_arguments(&all, argc, argv, &list)) return 2;
    setenv("MOE_TEST_DEVICE", "cuda", 0);
    bench_add_memory(&all);
    bench_add_products(&all);
    bench_add_attention(&all);
    bench_add_layer(&all);
    for (int i = 0; i < all.n_rows; i++) {
        if (!wanted(&all.rows[i], argc, argv)) continue;
        if (list)
            printf("%s\t%s\n", all.rows[i].part, all.rows[i].name);
        else
            failed |= !try_row(&all, i);
    }
    if (all.precision) all.precision->destroy(all.precision_self);
    if (all.dev.self) device_open_stop(&all.dev);
    return failed;
}
