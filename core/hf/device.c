/* Copies between device memory and host memory, through one slab in our order. */
#include "hf/device.h"

#include <moe/options.h>
#include <stdlib.h>

#include "train/trainer_impl.h"

moe_status hf_map_of(const trainer *t, hf_map **out, moe_err *err) {
    return hf_map_create(t->model, out, err);
}

moe_status hf_device_open(hf_device *d, const trainer *t, int64_t most, moe_err *err) {
    *d = (hf_device){.t = t, .slab = malloc((size_t)most * sizeof *d->slab)};
    if (!d->slab) return moe_fail(err, MOE_E_NOMEM, "out of memory for %lld numbers", (long long)most);
    return t->parts->device->stream_create(t->parts->device_self, "hf", &d->stream, err);
}

void hf_device_close(hf_device *d) {
    if (d->stream) d->t->parts->device->stream_destroy(d->t->parts->device_self, d->stream);
    free(d->slab);
    *d = (hf_device){0};
}

/* Address of a slab in device memory, NULL where there is none. */
static float *address(const hf_device *d, const hf_tensor *x, const hf_slab *s, int gradient) {
    const model *m = d->t->model;
    if (x->state_layer < 0) return params_at(gradient ? m->params.grad : m->params.master, s->offset);
    return gradient ? NULL : params_at(m->routers[x->state_layer].state[x->state], s->offset);
}

static moe_status copy_now(const hf_device *d, void *dst, const void *src, int64_t count, moe_err *err) {
    const parts *p = d->t->parts;
    moe_status status = p->device->copy(p->device_self, d->stream, dst, src, (uint64_t)count * sizeof(float), err);
    return status ? status : p->device->stream_sync(p->device_self, d->stream, err);
}

moe_status hf_device_read(const hf_device *d, const hf_tensor *x, const hf_slab *s, int gradient, float *theirs,
                          moe_err *err) {
    const float *at = address(d, x, s, gradient);
    if (!at) return moe_fail(err, MOE_E_ARG, "%s has no %s in memory", x->name, gradient ? "gradient" : "values");
    moe_status status = copy_now(d, d->slab, at, s->count, err);
    if (!status) hf_gather(x, d->slab, theirs, s->count);
    return status;
}

moe_status hf_device_write(const hf_device *d, const hf_tensor *x, const hf_slab *s, const float *theirs,
                           moe_err *err) {
    float *at = address(d, x, s, 0);
    if (!at) return moe_fail(err, MOE_E_ARG, "%s has no values in memory", x->name);
    hf_scatter(x, theirs, d->slab, s->count);
    return copy_now(d, at, d->slab, s->count, err);
}

moe_status hf_read(const trainer *t, const hf_tensor *x, int gradient, float *out, moe_err *err) {
    enum { LIMIT = 1 << 20 };
    hf_device d;
    hf_slab s = {0};
    hf_map one = {.n = 1, .at = (hf_tensor *)x};
    moe_status status = hf_device_open(&d, t, hf_slab_most(&one, LIMIT), err);
    while (!status && hf_slab_next(x, LIMIT, &s)) status = hf_device_read(&d, x, &s, gradient, out + s.begin, err);
    hf_device_close(&d);
    return status;
}
