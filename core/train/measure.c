/* A measurement is a batch of calls to one operation on a stream of its own. See measure.h. */
#include "train/measure.h"

#include <math.h>
#include <moe/options.h>
#include <stdlib.h>

#include "train/trainer_impl.h"
#include "util/clock.h"

enum {
    PEAK_TRIES = 10,
    ORDINARY = 0x3f,      /* this byte everywhere is 0.747 in FP32 and 0.746 in BF16 */
    COLD_BYTES = 1 << 27, /* written between operands and products: more than caches hold */
    FMA_NUMBERS = 6144    /* a compute thread: they stay in the first cache, and fill whole sets of vector registers */
};

struct measure {
    trainer *t;
    const parts *d;
    void *stream;
    void *own; /* [own_bytes] device memory, NULL while the step's is large enough */
    uint64_t own_bytes;
};

typedef struct call {
    moe_op_args args;
    moe_tensor in[2], out;
} call;

typedef struct batch {
    const moe_op *op;
    void *dev;
    call *calls; /* [n] */
    int64_t n;
    double seconds;
    moe_status status;
    moe_err err;
} batch;

/* ---- life ---- */
moe_status measure_open(measure **out, trainer *t, moe_err *err) {
    measure *m = calloc(1, sizeof *m);
    if (!m) return moe_fail(err, MOE_E_NOMEM, "out of memory for measuring");
    m->t = t;
    m->d = t->parts;
    moe_status status = m->d->device->stream_create(m->d->device_self, "measure", &m->stream, err);
    if (status)
        measure_close(m);
    else
        *out = m;
    return status;
}

void measure_close(measure *m) {
    if (!m) return;
    if (m->stream) m->d->device->stream_destroy(m->d->device_self, m->stream);
    m->d->device->free(m->d->device_self, MOE_SPACE_DEVICE, m->own, m->own_bytes);
    free(m);
}

uint32_t measure_threads(const measure *m) {
    return m->d->device_info.compute_units;
}

int32_t measure_dtype(const measure *m) {
    return m->t->model->act;
}

/* ---- memory ---- */
static uint64_t aligned(const measure *m, uint64_t bytes) {
    uint64_t a = m->d->device_info.alignment;
    return (bytes + a - 1) / a * a;
}

/* So many bytes that hold ordinary numbers; theirs until the next call. */
static moe_status take_memory(measure *m, uint64_t bytes, char **out, moe_err *err) {
    const moe_device_v0 *device = m->d->device;
    moe_status status = MOE_OK;
    int own = m->t->arena_bytes < bytes;
    if (own && m->own_bytes < bytes) {
        device->free(m->d->device_self, MOE_SPACE_DEVICE, m->own, m->own_bytes);
        m->own = NULL;
        m->own_bytes = 0;
        status = device->alloc(m->d->device_self, MOE_SPACE_DEVICE, bytes, &m->own, err);
        if (status) return status;
        m->own_bytes = bytes;
    }
    *out = own ? m->own : m->t->arena;
    status = device->fill(m->d->device_self, m->stream, *out, ORDINARY, bytes, err);
    return status ? status : device->stream_sync(m->d->device_self, m->stream, err);
}

/* ---- a batch ---- */
static void run_batch(void *arg) {
    batch *b = arg;
    double begin = clock_seconds();
    for (int64_t i = 0; i < b->n && !b->status; i++) b->status = b->op->forward(b->dev, &b->calls[i].args, &b->err);
    b->seconds = clock_seconds() - begin;
}

static moe_status run_once(const measure *m, batch *b, moe_err *err) {
    moe_status status = MOE_OK;
    double begin = clock_seconds();
    int async = parts_async(m->d, &m->d->cfg.device);
    b->status = MOE_OK;
    if (async)
        run_batch(b);
    else
        status = m->d->device->call_host(m->d->device_self, m->stream, run_batch, b, err);
    if (!status) status = m->d->device->stream_sync(m->d->device_self, m->stream, err);
    if (async) b->seconds = clock_seconds() - begin;
    if (!status && b->status) *err = b->err, status = b->status;
    return status;
}

static moe_status best_of(const measure *m, batch *b, int tries, double *seconds, moe_err *err) {
    moe_status status = MOE_OK;
    for (int i = 0; i < tries && !status; i++) {
        status = run_once(m, b, err);
        if (!status && (!i || b->seconds < *seconds)) *seconds = b->seconds;
    }
    return status;
}

/* Arguments of one call; workspace: what it needs of it. */
static moe_status describe(const measure *m, const moe_op *op, call *c, uint32_t n_in, const void *attr,
                           uint64_t *workspace, moe_err *err) {
    uint64_t saved = 0;
    c->args = (moe_op_args){.size = sizeof c->args,
                            .n_in = n_in,
                            .n_out = 1,
                            .stream = m->stream,
                            .in = c->in,
                            .out = &c->out,
                            .attr = attr};
    return op->sizes(m->d->device_self, &c->args, &saved, workspace, err);
}

/* ---- multiply-adds and copies ---- */
/* One call on n FP32 numbers, from one place to another. */
static moe_status time_flat(measure *m, const moe_op *op, const void *attr, int64_t n, int tries, double *seconds,
                            moe_err *err) {
    call c = {.in = {{.dtype = MOE_F32, .ndim = 1, .shape = {n, 1, 1, 1}}}};
    uint64_t workspace = 0, half = aligned(m, (uint64_t)n * sizeof(float));
    char *memory = NULL;
    c.out = c.in[0];
    moe_status status = describe(m, op, &c, 1, attr, &workspace, err);
    if (!status) status = take_memory(m, 2 * half + workspace, &memory, err);
    if (status) return status;
    c.in[0].data = memory;
    c.out.data = memory + half;
    c.args.workspace = workspace ? memory + 2 * half : NULL;
    batch b = {.op = op, .dev = m->d->device_self, .calls = &c, .n = 1, .err = {.size = sizeof b.err}};
    return best_of(m, &b, tries, seconds, err);
}

static double rate(double work, double seconds) {
    return seconds > 0 ? 1e-9 * work / seconds : 0;
}

moe_status measure_fma(measure *m, double flop, int tries, double *gflops, moe_err *err) {
    const moe_op *op = parts_op(m->d, MOE_OP_FMA);
    int64_t n = (int64_t)FMA_NUMBERS * measure_threads(m);
    moe_fma_attr attr = {.size = sizeof attr, .factor = 0.5f, .term = 0.25f};
    attr.rounds = (uint32_t)fmin(fmax(flop / (2.0 * (double)n), 1.0), UINT32_MAX);
    double seconds = 0;
    moe_status status = op ? time_flat(m, op, &attr, n, tries, &seconds, err) : MOE_OK;
    *gflops = rate(2.0 * (double)n * attr.rounds, seconds);
    return status;
}

moe_status measure_copy(measure *m, uint64_t bytes, int streaming, int tries, double *gbytes, moe_err *err) {
    const moe_op *op = parts_op(m->d, MOE_OP_COPY);
    const moe_copy_attr attr = {sizeof attr, streaming != 0};
    double seconds = 0;
    moe_status status = op ? time_flat(m, op, &attr, (int64_t)(bytes / sizeof(float)), tries, &seconds, err) : MOE_OK;
    *gbytes = rate(2.0 * (double)bytes, seconds);
    return status;
}

/* ---- products ---- */
static moe_tensor matrix(int32_t dtype, int64_t rows, int64_t columns) {
    return (moe_tensor){.dtype = dtype, .ndim = 2, .shape = {rows, columns, 1, 1}};
}

static uint64_t matrix_bytes(const measure *m, const moe_tensor *t) {
    return aligned(m, (uint64_t)(t->shape[0] * t->shape[1]) * dtype_bytes(t->dtype));
}

/* Shapes as under moe.linear/0. */
static call shape_of(const measure_product *p) {
    const moe_tensor x = matrix(p->dtype, p->rows, p->k), y = matrix(p->dtype, p->rows, p->n);
    const moe_tensor w = matrix(p->role == MOE_WGRAD ? MOE_F32 : p->dtype, p->n, p->k);
    if (p->role == MOE_FPROP) return (call){.in = {x, w}, .out = y};
    if (p->role == MOE_DGRAD) return (call){.in = {y, w}, .out = x};
    return (call){.in = {y, x}, .out = w};
}

/* Places every product's operands one behind the other. */
static void place(const measure *m, batch *b, char *memory, uint64_t workspace) {
    for (int64_t i = 0; i < b->n; i++) {
        call *c = &b->calls[i];
        moe_tensor *t[] = {&c->in[0], &c->in[1], &c->out};
        if (i) *c = b->calls[0];
        c->args.in = c->in;
        c->args.out = &c->out;
        for (int k = 0; k < 3; k++) {
            t[k]->data = memory;
            memory += matrix_bytes(m, t[k]);
        }
    }
    for (int64_t i = 0; i < b->n; i++) b->calls[i].args.workspace = workspace ? memory : NULL;
}

moe_status measure_products(measure *m, const measure_product *p, int tries, double *seconds, moe_err *err) {
    moe_linear_attr attr = {sizeof attr, p->role, 0, 0};
    batch b = {
        .op = parts_op(m->d, MOE_OP_LINEAR), .dev = m->d->device_self, .n = p->matrices, .err = {.size = sizeof b.err}};
    uint64_t workspace = 0;
    char *memory = NULL;
    *seconds = 0;
    if (!b.op) return MOE_OK;
    b.calls = calloc((size_t)b.n, sizeof *b.calls);
    if (!b.calls) return moe_fail(err, MOE_E_NOMEM, "out of memory for %lld products", (long long)b.n);
    b.calls[0] = shape_of(p);
    moe_status status = describe(m, b.op, &b.calls[0], 2, &attr, &workspace, err);
    uint64_t one = 0, scratch = aligned(m, workspace);
    for (int k = 0; k < 2; k++) one += matrix_bytes(m, &b.calls[0].in[k]);
    one += matrix_bytes(m, &b.calls[0].out);
    /* what is filled last is cold: it lies behind the operands */
    if (!status) status = take_memory(m, (uint64_t)b.n * one + scratch + (p->cold ? COLD_BYTES : 0), &memory, err);
    if (!status) {
        place(m, &b, memory, workspace);
        status = best_of(m, &b, p->cold ? 1 : tries, seconds, err);
    }
    free(b.calls);
    return status;
}

moe_status measure_peak(measure *m, int64_t side, int tries, double *gflops, moe_err *err) {
    *gflops = 0;
    for (int32_t role = MOE_FPROP; role <= MOE_WGRAD; role++) {
        const measure_product cube = {role, MOE_F32, side, side, side, 1, 0};
        double seconds = 0;
        moe_status status = measure_products(m, &cube, tries, &seconds, err);
        if (status) return status;
        double got = rate(2.0 * (double)side * (double)side * (double)side, seconds);
        if (got > *gflops) *gflops = got;
    }
    return MOE_OK;
}

moe_status trainer_peak(trainer *t, int64_t side, double *gflops, moe_err *err) {
    measure *m = NULL;
    moe_status status = measure_open(&m, t, err);
    if (!status) status = measure_peak(m, side, PEAK_TRIES, gflops, err);
    measure_close(m);
    return status;
}
