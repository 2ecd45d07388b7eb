/* Operation tests: tensors with guard bytes, random fill, calls, comparison with an FP64 reference, and sampled central
 * differences. A test writes one case function that builds inputs from ot->seed, runs the operation, compares, and
 * returns a hash of the outputs; ot_everywhere runs it on every instruction set of the machine with 1, 2 and 3 threads
 * (on another device than the CPU: twice) and wants the same bits each time. What an operation reads through a pointer
 * - tensors, offsets and counts of rows, a step's number - is memory of ot_alloc or ot_put. Header-only; everything
 * fails the Check test. */
#ifndef TESTS_OPS_OT_H
#define TESTS_OPS_OT_H
#include <math.h>
#include <moe/ops.h>

#include "../device_open.h"

/* Like ck_assert, which notes every single success in a file: too slow inside loops. */
#define ot_want(e)                                \
    do {                                          \
        if (!(e)) ck_abort_msg("failed: %s", #e); \
    } while (0)
#define ot_want_msg(e, ...)                  \
    do {                                     \
        if (!(e)) ck_abort_msg(__VA_ARGS__); \
    } while (0)

enum { OT_TENSORS = 256, OT_GUARD = 256 }; /* the guard keeps every device's alignment */
typedef struct ot {
    device_open dev;
    uint64_t seed; /* of the next random number */
    int repeat;    /* the same bits have been checked with fewer threads: no differences again */
    char *memory[OT_TENSORS];
    uint64_t bytes[OT_TENSORS];
    int32_t space[OT_TENSORS];
    int n;
} ot;
static inline int ot_async(const ot *t) {
    return device_open_is_async(&t->dev);
}

/* ---- random numbers ---- */
static inline uint64_t ot_bits(ot *t) {
    uint64_t z = t->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline int64_t ot_below(ot *t, int64_t n) {
    return (int64_t)(ot_bits(t) % (uint64_t)n);
}
static inline double ot_uniform(ot *t, double lo, double hi) {
    return lo + (hi - lo) * (double)(ot_bits(t) >> 11) * 0x1p-53;
}

/* ---- tensors ---- */
static inline int64_t ot_count(const moe_tensor *x) {
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++) n *= x->shape[i];
    return n;
}
static inline uint64_t ot_dtype_bytes(int32_t dtype) {
    return dtype == MOE_BF16 ? 2 : dtype == MOE_F64 || dtype == MOE_I64 ? 8 : 4;
}
/* Bytes with a guard in front and behind, filled with 0xa5; freed and checked by ot_clear. In MOE_SPACE_HOST they are
 * readable here and by the device, in MOE_SPACE_DEVICE maybe by it alone. A device that works on this thread's memory
 * gets ordinary memory, whose ends the sanitizers know. */
static inline void *ot_alloc_in(ot *t, int32_t space, uint64_t bytes) {
    ck_assert_int_lt(t->n, OT_TENSORS);
    ck_assert_int_le((int64_t)t->dev.alignment, OT_GUARD);
    uint64_t all = (bytes + 2 * OT_GUARD + 63) / 64 * 64;
    char *p = ot_async(t) ? device_open_alloc_in(&t->dev, space, all) : aligned_alloc(64, all);
    ck_assert_ptr_nonnull(p);
    if (ot_async(t) && space == MOE_SPACE_DEVICE)
        device_open_fill(&t->dev, p, 0xa5, all);
    else
        memset(p, 0xa5, all);
    t->memory[t->n] = p;
    t->bytes[t->n] = bytes;
    t->space[t->n++] = space;
    return p + OT_GUARD;
}
static inline void *ot_alloc(ot *t, uint64_t bytes) {
    return ot_alloc_in(t, MOE_SPACE_HOST, bytes);
}
/* The bytes at `from`, where the device reads them too. */
static inline void *ot_put(ot *t, const void *from, uint64_t bytes) {
    return memcpy(ot_alloc(t, bytes), from, bytes);
}
/* Device memory as it is now, readable here. */
static inline void *ot_fetch(ot *t, const void *from, uint64_t bytes) {
    void *p = ot_alloc(t, bytes);
    if (bytes) device_open_copy(&t->dev, p, from, bytes);
    return p;
}
/* Rows in expert order, of which only the device knows the numbers: offsets [groups + 1], counts [groups]. */
static inline moe_rows ot_rows(ot *t, uint32_t groups, int64_t max, const int64_t *offsets, const int64_t *counts) {
    moe_rows rows = {.size = sizeof rows, .groups = groups, .max = max, .host_total = -1};
    rows.dev_offsets = ot_put(t, offsets, (groups + 1) * sizeof *offsets);
    rows.dev_counts = ot_put(t, counts, groups * sizeof *counts);
    return rows;
}
/* ot_tensor(t, MOE_F32, 8, 16): two dimensions, every byte 0xa5. */
#define ot_tensor(t, dtype, ...) \
    ot_tensor_n((t), (dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})
static inline moe_tensor ot_tensor_n(ot *t, int32_t dtype, int ndim, const int64_t *shape) {
    moe_tensor x = {.dtype = dtype, .ndim = ndim, .shape = {1, 1, 1, 1}};
    for (int i = 0; i < ndim; i++) x.shape[i] = shape[i];
    x.data = ot_alloc(t, (uint64_t)ot_count(&x) * ot_dtype_bytes(dtype));
    return x;
}
static inline double ot_get(const moe_tensor *x, int64_t i) {
    uint32_t u;
    float f;
    if (x->dtype == MOE_F32) return (double)((const float *)x->data)[i];
    if (x->dtype == MOE_F64) return ((const double *)x->data)[i];
    if (x->dtype == MOE_I32) return (double)((const int32_t *)x->data)[i];
    if (x->dtype == MOE_I64) return (double)((const int64_t *)x->data)[i];
    u = (uint32_t)((const uint16_t *)x->data)[i] << 16;
    memcpy(&f, &u, 4);
    return (double)f;
}
/* BF16: nearest, ties to even, by the definition (the neighbour whose distance is least). */
static inline uint16_t ot_bf16(float f) {
    uint32_t u, low;
    memcpy(&u, &f, 4);
    low = u & 0xffffu;
    u >>= 16;
    if (low > 0x8000u || (low == 0x8000u && (u & 1u))) u++;
    return (uint16_t)u;
}
static inline void ot_set(const moe_tensor *x, int64_t i, double v) {
    if (x->dtype == MOE_F32) ((float *)x->data)[i] = (float)v;
    if (x->dtype == MOE_F64) ((double *)x->data)[i] = v;
    if (x->dtype == MOE_I32) ((int32_t *)x->data)[i] = (int32_t)v;
    if (x->dtype == MOE_I64) ((int64_t *)x->data)[i] = (int64_t)v;
    if (x->dtype == MOE_BF16) ((uint16_t *)x->data)[i] = ot_bf16((float)v);
}
static inline moe_tensor ot_fill(const moe_tensor x, double v) {
    for (int64_t i = 0; i < ot_count(&x); i++) ot_set(&x, i, v);
    return x;
}
static inline moe_tensor ot_random(ot *t, moe_tensor x, double lo, double hi) {
    for (int64_t i = 0; i < ot_count(&x); i++) ot_set(&x, i, ot_uniform(t, lo, hi));
    return x;
}
static inline moe_tensor ot_clone(ot *t, const moe_tensor *x) {
    moe_tensor y = ot_tensor_n(t, x->dtype, x->ndim, x->shape);
    memcpy(y.data, x->data, (uint64_t)ot_count(x) * ot_dtype_bytes(x->dtype));
    return y;
}
/* The values as doubles; free with free(). */
static inline double *ot_doubles(const moe_tensor *x) {
    double *d = malloc(((uint64_t)ot_count(x) + 1) * sizeof(double));
    ck_assert_ptr_nonnull(d);
    for (int64_t i = 0; i < ot_count(x); i++) d[i] = ot_get(x, i);
    return d;
}
static inline double *ot_zeros(int64_t n) {
    double *d = calloc((uint64_t)n + 1, sizeof(double));
    ck_assert_ptr_nonnull(d);
    return d;
}
static inline moe_tensor ot_absent(void) {
    return (moe_tensor){.shape = {1, 1, 1, 1}};
}

/* ---- device ---- */
static inline moe_status ot_open(ot *t, const char *isa, const char *threads) {
    moe_err err = {.size = sizeof err};
    memset(t, 0, sizeof *t);
    t->seed = 1;
    return device_open_try(&t->dev, threads, isa, "20", &err);
}
/* The guard of tensor i at p, in memory that this thread reads. */
static inline void ot_check_guard(int i, const char *p, const char *where) {
    for (uint64_t j = 0; j < OT_GUARD; j++)
        ot_want_msg((unsigned char)p[j] == 0xa5u, "tensor %d was written %s", i, where);
}
/* Frees the tensors; their guards must be intact. */
static inline void ot_clear(ot *t) {
    for (int i = 0; i < t->n; i++) {
        char *front = t->memory[i], *back = front + OT_GUARD + t->bytes[i], *copy = NULL;
        uint64_t all = (t->bytes[i] + 2 * OT_GUARD + 63) / 64 * 64;
        if (ot_async(t) && t->space[i] == MOE_SPACE_DEVICE) {
            copy = device_open_alloc(&t->dev, 2 * OT_GUARD);
            device_open_copy(&t->dev, copy, front, OT_GUARD);
            device_open_copy(&t->dev, copy + OT_GUARD, back, OT_GUARD);
            front = copy;
            back = copy + OT_GUARD;
        }
        ot_check_guard(i, front, "before its begin");
        ot_check_guard(i, back, "past its end");
        if (copy) device_open_free(&t->dev, copy, 2 * OT_GUARD);
        if (ot_async(t))
            device_open_free_in(&t->dev, t->space[i], t->memory[i], all);
        else
            free(t->memory[i]);
    }
    t->n = 0;
}
static inline void ot_close(ot *t) {
    ot_clear(t);
    device_open_stop(&t->dev);
}

/* ---- calls ---- */
#define OT_LIST(...) \
    (const moe_tensor[]){__VA_ARGS__}, (uint32_t)(sizeof((moe_tensor[]){__VA_ARGS__}) / sizeof(moe_tensor))
typedef struct ot_call {
    const moe_op *op;
    moe_op_args args;
    moe_err err;
} ot_call;

static inline moe_status ot_sizes(ot *t, ot_call *call, const char *name, const moe_tensor *in, uint32_t n_in,
                                  const moe_tensor *out, uint32_t n_out, const void *attr, const moe_rows *rows,
                                  uint64_t *saved, uint64_t *workspace) {
    memset(call, 0, sizeof *call);
    call->err.size = sizeof call->err;
    call->op = device_open_find(&t->dev, name);
    ot_want_msg(call->op != NULL, "no %s", name);
    call->args = (moe_op_args){.size = sizeof(moe_op_args), .n_in = n_in, .n_out = n_out, .in = in, .out = out};
    call->args.attr = attr;
    call->args.rows = rows;
    return call->op->sizes(t->dev.self, &call->args, saved, workspace, &call->err);
}
/* sizes and forward; call keeps saved and workspace (guarded) for ot_backward. */
static inline moe_status ot_try(ot *t, ot_call *call, const char *name, const moe_tensor *in, uint32_t n_in,
                                const moe_tensor *out, uint32_t n_out, const void *attr, const moe_rows *rows) {
    uint64_t saved = 0, workspace = 0;
    moe_status s = ot_sizes(t, call, name, in, n_in, out, n_out, attr, rows, &saved, &workspace);
    if (s != MOE_OK) return s;
    call->args.saved = saved ? ot_alloc_in(t, MOE_SPACE_DEVICE, saved) : NULL;
    call->args.workspace = workspace ? ot_alloc_in(t, MOE_SPACE_DEVICE, workspace) : NULL;
    return device_open_run_step(&t->dev, call->op->forward, &call->args, &call->err);
}
#define ot_forward(t, call, ...) ot_want_msg(ot_try((t), (call), __VA_ARGS__) == MOE_OK, "forward: %s", (call)->err.msg)
static inline void ot_backward(ot *t, ot_call *call, const moe_tensor *in, uint32_t n_in, const moe_tensor *out,
                               uint32_t n_out) {
    call->args.in = in;
    call->args.n_in = n_in;
    call->args.out = out;
    call->args.n_out = n_out;
    moe_status s = device_open_run_step(&t->dev, call->op->backward, &call->args, &call->err);
    ot_want_msg(s == MOE_OK, "backward: %s", call->err.msg);
}
/* The status is `code` and the message contains `text`. */
#define ot_refused(call, status, code, text)                                                       \
    do {                                                                                           \
        moe_status status_ = (status);                                                             \
        ot_want_msg(status_ == (code), "status %d (%s)", status_, status_ ? (call)->err.msg : ""); \
        ot_want_msg(strstr((call)->err.msg, (text)) != NULL, "message: %s", (call)->err.msg);      \
    } while (0)

/* The call reported an error in the data: by its status, with `text` in its message, or, on a device whose steps have
 * returned by then, by a fault of this code that names the token and the value (or DEVICE_OPEN_ANY). */
static inline void ot_expect_data(const ot *t, const ot_call *call, moe_status status, moe_status code, int64_t token,
                                  int64_t value, const char *text) {
    device_open_expect(&t->dev, status, code, &call->err, token, value, text);
}

/* ---- comparison ---- */
/* |x - want| <= tol * max|want| + round * |want|, round = 2^-8 for BF16 storage (half a unit, and the neighbour when
 * FP32 error crosses a tie). */
static inline void ot_near(const char *what, const moe_tensor *x, const double *want, double tol) {
    double most = 0.0, round = x->dtype == MOE_BF16 ? 0x1.02p-8 : 0.0;
    int64_t n = ot_count(x);
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        double is = ot_get(x, i), error = fabs(is - want[i]), bound = tol * most + round * fabs(want[i]) + 1e-30;
        ot_want_msg(error <= bound, "%s[%lld of %lld] is %.9g, want %.9g, error %.3g > %.3g", what, (long long)i,
                    (long long)n, is, want[i], error, bound);
    }
}
/* Every byte of elements [from, to) is still 0xa5. */
static inline void ot_untouched(const char *what, const moe_tensor *x, int64_t from, int64_t to) {
    const unsigned char *p = x->data;
    uint64_t b = ot_dtype_bytes(x->dtype);
    for (uint64_t i = (uint64_t)from * b; i < (uint64_t)to * b; i++)
        ot_want_msg(p[i] == 0xa5u, "%s was written at element %llu", what, (unsigned long long)(i / b));
}
static inline uint64_t ot_hash(uint64_t h, const moe_tensor *x) {
    const unsigned char *p = x->data;
    uint64_t n = (uint64_t)ot_count(x) * ot_dtype_bytes(x->dtype);
    for (uint64_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* ---- central differences: grad of the scalar f(ctx) with respect to x[n], at up to `samples` random elements ---- */
typedef double (*ot_scalar)(void *ctx);
static inline void ot_differences(ot *t, const char *what, ot_scalar f, void *ctx, double *x, const moe_tensor *grad,
                                  int samples, double tol) {
    const double step = 1e-4;
    int64_t n = ot_count(grad);
    double most = 0.0, round = grad->dtype == MOE_BF16 ? 0x1.02p-8 : 0.0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(ot_get(grad, i)));
    for (int s = 0; s < samples && n > 0 && !t->repeat; s++) {
        int64_t i = n <= samples ? s % n : ot_below(t, n);
        double at = x[i];
        x[i] = at + step;
        double up = f(ctx);
        x[i] = at - step;
        double down = f(ctx);
        x[i] = at;
        double want = (up - down) / (2 * step), is = ot_get(grad, i), bound = tol * (most + 1e-2) + round * fabs(want);
        ot_want_msg(fabs(is - want) <= bound, "%s[%lld of %lld] is %.9g, differences give %.9g, bound %.3g", what,
                    (long long)i, (long long)n, is, want, bound);
    }
}

/* ---- everywhere ---- */
typedef uint64_t (*ot_case)(ot *t, const void *shape);
/* Runs `run` for n shapes of `bytes` bytes each on every instruction set with 1, 2, 3 threads, or on another device
 * twice: same hash for all. */
static inline void ot_everywhere(ot_case run, const void *shapes, size_t bytes, size_t n) {
    static const char *const isas[] = {"base", "v3", "v4"}, *const threads[] = {"1", "2", "3"};
    uint64_t *hash = calloc(n, sizeof *hash);
    for (size_t a = 0; a < 3; a++)
        for (size_t b = 0; b < (test_on_cpu() ? 3 : 2); b++) {
            ot t;
            moe_status s = ot_open(&t, isas[a], threads[b]);
            if (s == MOE_E_UNSUPPORTED) continue;
            ck_assert_int_eq(s, MOE_OK);
            t.repeat = b > 0;
            for (size_t i = 0; i < n; i++) {
                t.seed = 1000 + i;
                uint64_t h = run(&t, (const char *)shapes + i * bytes);
                ot_want_msg(b == 0 || h == hash[i], "isa %s: shape %zu gives other bits with %s threads", isas[a], i,
                            threads[b]);
                hash[i] = h;
                ot_clear(&t);
            }
            ot_close(&t);
        }
    free(hash);
}
#define OT_EVERYWHERE(run, shapes) ot_everywhere(run, shapes, sizeof shapes[0], sizeof shapes / sizeof shapes[0])
/* One device for a test that needs one only: on the CPU the widest instruction set, 2 threads. */
static inline void ot_start(ot *t) {
    ck_assert_int_eq(ot_open(t, "auto", "2"), MOE_OK);
}

/* main of a test program: one test case of the named tests. */
#define OT_MAIN(suite_name, ...)                                                                   \
    int main(void) {                                                                               \
        const TTest *tests[] = {__VA_ARGS__};                                                      \
        Suite *suite = suite_create(suite_name);                                                   \
        TCase *all = tcase_create("all");                                                          \
        for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) tcase_add_test(all, tests[i]); \
        suite_add_tcase(suite, all);                                                               \
        SRunner *runner = srunner_create(suite);                                                   \
        srunner_run_all(runner, CK_NORMAL);                                                        \
        int failed = srunner_ntests_failed(runner);                                                \
        srunner_free(runner);                                                                      \
        return failed ? 1 : 0;                                                                     \
    }
#endif
