/* The device's product peak, measured in this process: what utilisation is a fraction of. */
#include <moe/options.h>
#include <string.h>
#include <time.h>

#include "train/trainer_impl.h"

enum { ROUNDS = 10 };

typedef struct product {
    const moe_op *op;
    void *dev;
    moe_op_args args;
    moe_tensor in[2], out;
    moe_linear_attr attr;
    moe_status status;
    moe_err err;
} product;

static void run_product(void *arg) {
    product *p = arg;
    p->status = p->op->forward(p->dev, &p->args, &p->err);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static moe_status one(const parts *d, product *p, void *stream, moe_err *err) {
    moe_status status = MOE_OK;
    if (parts_async(d, &d->cfg.device)) {
        p->args.stream = stream;
        run_product(p);
    } else {
        status = d->device->call_host(d->device_self, stream, run_product, p, err);
    }
    if (!status) status = d->device->stream_sync(d->device_self, stream, err);
    if (!status && p->status) *err = p->err, status = p->status;
    return status;
}

moe_status trainer_peak(trainer *t, int64_t side, double *gflops, moe_err *err) {
    const parts *d = t->parts;
    product p = {.op = parts_op(d, MOE_OP_LINEAR), .dev = d->device_self, .attr = {sizeof p.attr, MOE_FPROP, 0, 0}};
    uint64_t saved, workspace, bytes = (uint64_t)(side * side) * 4;
    void *stream = NULL, *block = NULL;
    *gflops = 0;
    if (!p.op) return MOE_OK; /* a device without products: no peak to name */
    p.in[0] = p.in[1] = p.out = (moe_tensor){.dtype = MOE_F32, .ndim = 2, .shape = {side, side, 1, 1}};
    p.args = (moe_op_args){.size = sizeof p.args, .n_in = 2, .n_out = 1, .in = p.in, .out = &p.out, .attr = &p.attr};
    moe_status status = p.op->sizes(p.dev, &p.args, &saved, &workspace, err);
    if (status) return status;
    uint64_t whole = 3 * bytes + workspace + 64;
    int own = t->arena_bytes < whole; /* between steps the step's memory is free to use */
    if (own)
        status = d->device->alloc(d->device_self, MOE_SPACE_DEVICE, whole, &block, err);
    else
        block = t->arena;
    if (status) return status;
    p.in[0].data = block;
    p.in[1].data = (char *)block + bytes;
    p.out.data = (char *)block + 2 * bytes;
    p.args.workspace = workspace ? (char *)block + 3 * bytes : NULL;
    status = d->device->stream_create(d->device_self, "peak", &stream, err);
    for (int i = 0; i < ROUNDS && !status; i++) {
        double begin = now();
        status = one(d, &p, stream, err);
        double rate = 2e-9 * (double)side * (double)side * (double)side / (now() - begin);
        if (rate > *gflops) *gflops = rate;
    }
    if (stream) d->device->stream_destroy(d->device_self, stream);
    if (own) d->device->free(d->device_self, MOE_SPACE_DEVICE, block, whole);
    return status;
}
