/* Copies between the device memory of the ranks and host memory, through one slab in our order. */
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
    return values_open(&d->values, t->model, most, err);
}

void hf_device_close(hf_device *d) {
    values_close(&d->values);
    free(d->slab);
    *d = (hf_device){0};
}

static moe_status copy_now(const hf_device *d, void *dst, const void *src, int64_t count, moe_err *err) {
    const parts *p = d->t->parts;
    moe_status status =
        p->device->copy(p->device_self, d->values.stream, dst, src, (uint64_t)count * sizeof(float), err);
    return status ? status : p->device->stream_sync(p->device_self, d->values.stream, err);
}

/* Router state in device memory, the same on all ranks. */
static float *state_of(const hf_device *d, const hf_tensor *x, const hf_slab *s) {
    float *at = d->t->model->routers[x->state_layer].state[x->state];
    return at ? at + s->first : NULL;
}

/* Is there memory for what is asked? */
static int is_there(const hf_device *d, const hf_tensor *x, const hf_slab *s, int gradient) {
    const params *p = &d->t->model->params;
    if (x->state_layer < 0) return (gradient ? p->grad : p->master) != NULL;
    return !gradient && state_of(d, x, s);
}

moe_status hf_device_read(const hf_device *d, const hf_tensor *x, const hf_slab *s, int gradient, float *theirs,
                          moe_err *err) {
    if (!is_there(d, x, s, gradient))
        return moe_fail(err, MOE_E_ARG, "%s has no %s in memory", x->name, gradient ? "gradient" : "values");
    char what[160];
    snprintf(what, sizeof what, "the gathering of %.130s", x->name);
    watchdog_enter(d->t->dog, what);
    moe_status status = x->state_layer < 0
                            ? values_get(&d->values, &d->t->model->params.at[s->param],
                                         gradient ? PARAM_GRAD : PARAM_MASTER, s->first, s->count, d->slab, err)
                            : copy_now(d, d->slab, state_of(d, x, s), s->count, err);
    watchdog_leave(d->t->dog);
    if (!status) hf_gather(x, d->slab, theirs, s->count);
    return status;
}

moe_status hf_device_write(const hf_device *d, const hf_tensor *x, const hf_slab *s, const float *theirs,
                           moe_err *err) {
    if (!is_there(d, x, s, 0)) return moe_fail(err, MOE_E_ARG, "%s has no values in memory", x->name);
    hf_scatter(x, theirs, d->slab, s->count);
    if (x->state_layer >= 0) return copy_now(d, state_of(d, x, s), d->slab, s->count, err);
    return values_put(&d->values, &d->t->model->params.at[s->param], PARAM_MASTER, s->first, s->count, d->slab, err);
}

moe_status hf_device_whole(const hf_device *d, const hf_tensor *x, int gradient, float *out, moe_err *err) {
    moe_status status = MOE_OK;
    hf_slab s = {0};
    while (!status && hf_slab_next(x, HF_SLAB, &s)) status = hf_device_read(d, x, &s, gradient, out + s.begin, err);
    return status;
}

moe_status hf_read(const trainer *t, const hf_tensor *x, int gradient, float *out, moe_err *err) {
    hf_device d;
    hf_map one = {.n = 1, .at = (hf_tensor *)x};
    moe_status status = hf_device_open(&d, t, hf_slab_most(&one, HF_SLAB), err);
    if (!status) status = hf_device_whole(&d, x, gradient, out, err);
    hf_device_close(&d);
    return status;
}
