/* The state of a run as tensors with global names: model.safetensors holds FP32 weights and router state,
 * optimizer.safetensors the moments as "m.NAME" and "v.NAME". Experts are written one by one under their global ids.
 * Tensors are whole whatever the mesh: all ranks give what they own of each (values.h), one of them writes. */
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"
#include "model/values.h"
#include "train/trainer_impl.h"

/* One tensor of the state. */
typedef struct state_entry {
    char name[128];
    int32_t dtype, ndim;
    int64_t shape[4];
    uint64_t bytes;
    const param
        *param; /* whose elements from `first` on, in this arena; or NULL: router state, the same on all ranks */
    param_arena arena;
    int64_t first;
    void *data; /* of router state: device memory */
} state_entry;

typedef moe_status (*entry_fn)(void *arg, const state_entry *e, moe_err *err);

static moe_status each_param(const trainer *t, const char *prefix, param_arena from, entry_fn fn, void *arg,
                             moe_err *err) {
    const params *p = &t->model->params;
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < p->n; i++)
        for (int64_t k = 0; k < param_pieces(&p->at[i]) && !status; k++) {
            param_piece piece;
            param_piece_at(&p->at[i], k, &piece);
            state_entry e = {.dtype = MOE_F32,
                             .ndim = piece.ndim,
                             .bytes = (uint64_t)piece.whole * 4,
                             .param = &p->at[i],
                             .arena = from,
                             .first = k * piece.whole};
            snprintf(e.name, sizeof e.name, "%s%s", prefix, piece.name);
            memcpy(e.shape, piece.shape, sizeof e.shape);
            status = fn(arg, &e, err);
        }
    return status;
}

static moe_status each_router_state(const trainer *t, entry_fn fn, void *arg, moe_err *err) {
    const model *m = t->model;
    moe_status status = MOE_OK;
    for (uint32_t l = 0; l < m->cfg.layers; l++)
        for (uint32_t i = 0; i < m->routers[l].needs.n_state && !status; i++) {
            const moe_param_spec *s = &m->routers[l].needs.state[i];
            state_entry e = {.dtype = s->dtype, .ndim = s->ndim, .data = m->routers[l].state[i]};
            snprintf(e.name, sizeof e.name, "layers.%u.router.%s", l, s->name);
            e.bytes = s->dtype == MOE_I64 ? 8 : 4;
            for (int d = 0; d < s->ndim; d++) e.bytes *= (uint64_t)(e.shape[d] = s->shape[d]);
            status = fn(arg, &e, err);
        }
    return status;
}

static moe_status each_weight(const trainer *t, entry_fn fn, void *arg, moe_err *err) {
    moe_status status = each_param(t, "", PARAM_MASTER, fn, arg, err);
    return status ? status : each_router_state(t, fn, arg, err);
}

static moe_status each_moment(const trainer *t, entry_fn fn, void *arg, moe_err *err) {
    moe_status status = each_param(t, "m.", PARAM_M, fn, arg, err);
    return status ? status : each_param(t, "v.", PARAM_V, fn, arg, err);
}

typedef moe_status (*each_fn)(const trainer *t, entry_fn fn, void *arg, moe_err *err);

/* ---- device to file and back, through a chunk of host memory ---- */
enum { CHUNK = VALUES_ROOM * (int)sizeof(float) };

typedef struct mover {
    const trainer *t;
    value_mover values;
    char *chunk;       /* [CHUNK] */
    st_writer *writer; /* NULL: another rank writes */
    st_file *file;
    moe_status (*add_key)(void *arg, const char *key, moe_err *err);
    void *arg;
    uint8_t *seen; /* [st_count(file)] 1: the model has this tensor */
    uint64_t n_seen, n_missing;
    char missing[256]; /* the first names */
} mover;

static moe_status mover_open(mover *m, moe_err *err) {
    m->chunk = malloc(CHUNK);
    if (!m->chunk) return moe_fail(err, MOE_E_NOMEM, "out of memory for a checkpoint");
    return values_open(&m->values, m->t->model, VALUES_ROOM, err);
}

static void mover_close(mover *m) {
    values_close(&m->values);
    free(m->chunk);
}

static moe_status copy_now(const mover *m, void *dst, const void *src, uint64_t bytes, moe_err *err) {
    const parts *p = m->t->parts;
    moe_status status = p->device->copy(p->device_self, m->values.stream, dst, src, bytes, err);
    return status ? status : p->device->stream_sync(p->device_self, m->values.stream, err);
}

static moe_status declare(void *arg, const state_entry *e, moe_err *err) {
    mover *m = arg;
    moe_status status = st_writer_declare(m->writer, e->name, e->dtype, e->ndim, e->shape, err);
    return status ? status : m->add_key(m->arg, e->name, err);
}

/* Values of all ranks together, which the watchdog sees to. */
static moe_status get(const trainer *t, const value_mover *v, const char *name, const param *p, param_arena from,
                      int64_t first, int64_t count, float *out, moe_err *err) {
    char what[160];
    snprintf(what, sizeof what, "the gathering of %s", name);
    watchdog_enter(t->dog, what);
    moe_status status = values_get(v, p, from, first, count, out, err);
    watchdog_leave(t->dog);
    return status;
}

static moe_status write_entry(void *arg, const state_entry *e, moe_err *err) {
    mover *m = arg;
    moe_status status = MOE_OK;
    for (uint64_t at = 0; at < e->bytes && !status; at += CHUNK) {
        uint64_t n = e->bytes - at < CHUNK ? e->bytes - at : CHUNK;
        if (e->param)
            status = get(m->t, &m->values, e->name, e->param, e->arena, e->first + (int64_t)(at / 4), (int64_t)(n / 4),
                         (float *)m->chunk, err);
        else if (m->writer)
            status = copy_now(m, m->chunk, (const char *)e->data + at, n, err);
        if (!status && m->writer) status = st_write(m->writer, m->chunk, n, err);
    }
    return status;
}

/* Before anything is overwritten: is the tensor there, and of the right shape? */
static moe_status check_entry(void *arg, const state_entry *e, moe_err *err) {
    mover *m = arg;
    const st_tensor *t = st_find(m->file, e->name);
    if (!t) {
        size_t used = strlen(m->missing);
        if (used + strlen(e->name) + 2 < sizeof m->missing)
            snprintf(m->missing + used, sizeof m->missing - used, " %s", e->name);
        m->n_missing++;
        return MOE_OK;
    }
    int same = t->dtype == e->dtype && t->ndim == e->ndim;
    for (int i = 0; i < e->ndim && same; i++) same = t->shape[i] == e->shape[i];
    if (!same)
        return moe_fail(
            err, MOE_E_DATA, "tensor %s is %s of %d dimensions, %lld x %lld; the model's is %s of %d, %lld x %lld",
            e->name, st_dtype_name(t->dtype), t->ndim, (long long)t->shape[0], (long long)t->shape[1],
            st_dtype_name(e->dtype), e->ndim, (long long)e->shape[0], (long long)(e->ndim > 1 ? e->shape[1] : 1));
    m->seen[t - st_at(m->file, 0)] = 1;
    m->n_seen++;
    return MOE_OK;
}

static moe_status check_file(mover *m, each_fn each, moe_err *err) {
    uint64_t n = st_count(m->file), extra = 0;
    m->n_seen = m->n_missing = 0;
    m->missing[0] = 0;
    m->seen = calloc(n + 1, 1);
    if (!m->seen) return moe_fail(err, MOE_E_NOMEM, "out of memory for %llu tensors", (unsigned long long)n);
    moe_status status = each(m->t, check_entry, m, err);
    while (extra < n && m->seen[extra]) extra++;
    if (!status && m->n_missing)
        status = moe_fail(err, MOE_E_DATA, "%llu tensors of the model are missing:%s", (unsigned long long)m->n_missing,
                          m->missing);
    if (!status && extra < n)
        status = moe_fail(err, MOE_E_DATA, "holds %llu tensors that the model does not have: %s",
                          (unsigned long long)(n - m->n_seen), st_at(m->file, extra)->name);
    free(m->seen);
    return status;
}

static moe_status read_entry(void *arg, const state_entry *e, moe_err *err) {
    mover *m = arg;
    const st_tensor *t = st_find(m->file, e->name);
    moe_status status = MOE_OK;
    for (uint64_t at = 0; at < e->bytes && !status; at += CHUNK) {
        uint64_t n = e->bytes - at < CHUNK ? e->bytes - at : CHUNK;
        status = st_read_part(m->file, t, at, m->chunk, n, err);
        if (!status && e->param)
            status = values_put(&m->values, e->param, e->arena, e->first + (int64_t)(at / 4), (int64_t)(n / 4),
                                (const float *)m->chunk, err);
        else if (!status)
            status = copy_now(m, (char *)e->data + at, m->chunk, n, err);
    }
    return status;
}

enum { PATH_BYTES = 4096 };

static moe_status join(char path[PATH_BYTES], const char *dir, const char *name, moe_err *err) {
    if ((size_t)snprintf(path, PATH_BYTES, "%s/%s", dir, name) < PATH_BYTES) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "path too long: %.200s.../%s", dir, name);
}

static moe_status save_file(mover *m, const char *dir, const char *name, each_fn each, moe_err *err) {
    char path[PATH_BYTES];
    moe_status status = MOE_OK;
    m->writer = NULL;
    if (!dir) return each(m->t, write_entry, m, err);
    status = join(path, dir, name, err);
    if (!status) status = st_writer_create(path, &m->writer, err);
    if (status) return status;
    status = each(m->t, declare, m, err);
    if (!status) status = each(m->t, write_entry, m, err);
    if (!status) return st_writer_finish(m->writer, err);
    st_writer_abort(m->writer);
    return status;
}

static moe_status load_file(mover *m, const char *dir, const char *name, each_fn each, moe_err *err) {
    char path[PATH_BYTES];
    moe_status status = join(path, dir, name, err);
    if (!status) status = st_open(path, &m->file, err);
    if (status) return status;
    moe_err why = {.size = sizeof why};
    status = check_file(m, each, &why);
    if (!status) status = each(m->t, read_entry, m, &why);
    if (status) moe_fail(err, status, "%.150s: %.340s", path, why.msg);
    st_close(m->file);
    return status;
}

moe_status trainer_save(trainer *t, const char *dir, moe_status (*add_key)(void *arg, const char *key, moe_err *err),
                        void *arg, moe_err *err) {
    mover m = {.t = t, .add_key = add_key, .arg = arg};
    moe_status status = mover_open(&m, err);
    if (!status) status = save_file(&m, dir, "model.safetensors", each_weight, err);
    if (!status && t->model->params.m) status = save_file(&m, dir, "optimizer.safetensors", each_moment, err);
    mover_close(&m);
    if (status && t->parts->cfg.world > 1) trainer_abort(t, err->msg); /* the others wait for this rank's values */
    return status;
}

moe_status trainer_load(trainer *t, const char *dir, int with_optimizer, moe_err *err) {
    mover m = {.t = t};
    moe_status status = mover_open(&m, err);
    if (!status) status = load_file(&m, dir, "model.safetensors", each_weight, err);
    if (!status && with_optimizer && t->model->params.m)
        status = load_file(&m, dir, "optimizer.safetensors", each_moment, err);
    mover_close(&m);
    return status;
}

/* ---- single tensors ---- */
static int64_t count_whole(const param *p) {
    int64_t n = 1;
    for (int i = 0; i < p->ndim; i++) n *= p->whole[i];
    return n;
}

const char *trainer_param_name(const trainer *t, uint32_t i, int64_t *count) {
    if (i >= t->model->params.n) return NULL;
    *count = count_whole(&t->model->params.at[i]);
    return t->model->params.at[i].name;
}

int64_t trainer_read(const trainer *t, const char *name, int gradient, float *out, moe_err *err) {
    const params *p = &t->model->params;
    int64_t id = params_find(p, name);
    if (id < 0 || !(gradient ? p->grad : p->master)) {
        moe_fail(err, MOE_E_ARG, "there is no %s named %s", gradient ? "gradient" : "parameter", name);
        return -1;
    }
    value_mover v = {0};
    int64_t count = count_whole(&p->at[id]);
    moe_status status = values_open(&v, t->model, count, err);
    if (!status) status = get(t, &v, name, &p->at[id], gradient ? PARAM_GRAD : PARAM_MASTER, 0, count, out, err);
    values_close(&v);
    return status ? -1 : count;
}

moe_status trainer_write(trainer *t, const char *name, const float *in, moe_err *err) {
    const params *p = &t->model->params;
    int64_t id = params_find(p, name);
    if (id < 0) return moe_fail(err, MOE_E_ARG, "there is no parameter named %s", name);
    value_mover v = {0};
    int64_t count = count_whole(&p->at[id]);
    moe_status status = values_open(&v, t->model, count, err);
    if (!status) status = values_put(&v, &p->at[id], PARAM_MASTER, 0, count, in, err);
    values_close(&v);
    return status;
}
