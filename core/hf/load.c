/* Checks everything first, then streams slab by slab, then reads back. */
#include "hf/load.h"

#include <inttypes.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "hf/device.h"
#include "hf/finite.h"
#include "hf/folder.h"
#include "io/fs.h"
#include "train/trainer_impl.h"

enum { SLAB_LIMIT = 1 << 20, NAMES_SHOWN = 8 };

typedef struct loading {
    const trainer *t;
    const char *dir;
    hf_folder *folder;
    hf_map *map;
    uint8_t **seen; /* [files][tensors of the file] 1: the model has it, or it may be left */
    hf_device device;
    char *bytes;        /* [most * 4] as in the file */
    float *theirs;      /* [most] FP32 in the file's order */
    int64_t extra;      /* layers past the model's that may be left */
    uint64_t *checksum; /* [map->n] XXH3-64 of what was written */
} loading;

/* ---- number formats ---- */
/* IEEE 754 half to single, exact. */
static float half_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u, bits;
    float out;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 */
        out = (float)fraction * 0x1p-24F;
        memcpy(&bits, &out, sizeof bits);
    } else if (exponent == 31) {
        bits = 0x7f800000u | fraction << 13;
    } else {
        bits = (exponent + 112) << 23 | fraction << 13;
    }
    bits |= sign;
    memcpy(&out, &bits, sizeof out);
    return out;
}

int hf_to_f32(int32_t dtype, const void *in, float *out, int64_t n) {
    if (dtype == MOE_F32) {
        memcpy(out, in, (size_t)n * sizeof *out);
        return 1;
    }
    if (dtype != MOE_BF16 && dtype != ST_F16) return 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)in + 2 * i, sizeof h);
        uint32_t bits = (uint32_t)h << 16;
        if (dtype == MOE_BF16)
            memcpy(&out[i], &bits, sizeof bits);
        else
            out[i] = half_to_f32(h);
    }
    return 1;
}

/* ---- what is missing, what is unknown ---- */
typedef struct names {
    char text[190];
    uint64_t n, shown;
} names;

static void note_name(names *list, const char *name) {
    size_t used = strlen(list->text);
    list->n++;
    if (list->shown == NAMES_SHOWN || list->shown + 1 < list->n || used + strlen(name) + 2 > sizeof list->text) return;
    snprintf(list->text + used, sizeof list->text - used, " %s", name);
    list->shown++;
}

static void shape_text(int32_t ndim, const int64_t *shape, char *out, size_t bytes) {
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < ndim && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%" PRId64, i ? "," : "", shape[i]);
}

static moe_status check_tensor(const loading *l, const hf_tensor *x, const st_tensor *f, moe_err *err) {
    int same = f->ndim == x->ndim;
    for (int i = 0; i < x->ndim && same; i++) same = f->shape[i] == x->shape[i];
    if (f->dtype != MOE_F32 && f->dtype != MOE_BF16 && f->dtype != ST_F16)
        return fs_fail(err, MOE_E_DATA, l->dir, "%s is %s: F32, BF16 and F16 are read", f->name,
                       st_dtype_name(f->dtype));
    if (same) return MOE_OK;
    char theirs[120], ours[120];
    shape_text(f->ndim, f->shape, theirs, sizeof theirs);
    shape_text(x->ndim, x->shape, ours, sizeof ours);
    return fs_fail(err, MOE_E_DATA, l->dir, "%s is [%s], the model's is [%s]", x->name, theirs, ours);
}

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A tensor without a place in the model that is known to be none. */
static int may_be_left(const loading *l, const char *name) {
    const model_cfg *c = &l->t->model->cfg;
    char *end = NULL;
    if (ends_with(name, ".rotary_emb.inv_freq")) return 1;
    if (c->tied && strcmp(name, "lm_head.weight") == 0) return 1;
    if (strncmp(name, "model.layers.", 13) != 0 || name[13] < '0' || name[13] > '9') return 0;
    long long layer = strtoll(name + 13, &end, 10);
    return *end == '.' && layer >= c->layers && layer - c->layers < l->extra;
}

static moe_status check_names(const loading *l, moe_err *err) {
    names missing = {{0}, 0, 0}, unknown = {{0}, 0, 0};
    moe_status status = MOE_OK;
    uint32_t file = 0;
    for (uint32_t i = 0; i < l->map->n && !status; i++) {
        const st_tensor *f = hf_folder_find(l->folder, l->map->at[i].name, &file);
        if (!f) {
            note_name(&missing, l->map->at[i].name);
            continue;
        }
        l->seen[file][f - st_at(l->folder->files[file], 0)] = 1;
        status = check_tensor(l, &l->map->at[i], f, err);
    }
    for (file = 0; file < l->folder->n; file++)
        for (uint64_t k = 0; k < st_count(l->folder->files[file]); k++) {
            const char *name = st_at(l->folder->files[file], k)->name;
            if (!l->seen[file][k] && !may_be_left(l, name)) note_name(&unknown, name);
        }
    if (status || (!missing.n && !unknown.n)) return status;
    char text[440] = "";
    size_t used = 0;
    if (missing.n)
        used = (size_t)snprintf(text, sizeof text, "%" PRIu64 " tensors of the model are missing:%s%s", missing.n,
                                missing.text, missing.n > missing.shown ? " ..." : "");
    if (unknown.n)
        snprintf(text + used, sizeof text - used, "%s%" PRIu64 " are unknown to it:%s%s",
                 used ? "; " : "tensors: ", unknown.n, unknown.text, unknown.n > unknown.shown ? " ..." : "");
    return fs_fail(err, MOE_E_DATA, l->dir, "%s", text);
}

/* ---- streaming ---- */
static moe_status read_slab(const loading *l, uint32_t file, const st_tensor *f, const hf_slab *s, float *out,
                            moe_err *err) {
    uint64_t size = st_dtype_bits(f->dtype) / 8;
    moe_status status =
        st_read_part(l->folder->files[file], f, (uint64_t)s->begin * size, l->bytes, (uint64_t)s->count * size, err);
    if (!status) hf_to_f32(f->dtype, l->bytes, out, s->count);
    return status;
}

static moe_status check_values(const loading *l, const hf_tensor *x, uint32_t file, const hf_slab *s, moe_err *err) {
    int64_t at = hf_find_odd(l->theirs, s->count);
    if (at < 0) return MOE_OK;
    char *path = fs_join(l->dir, l->folder->names[file]);
    moe_status status = hf_refuse_odd(path ? path : l->dir, x, s->begin + at, l->theirs[at], "", err);
    free(path);
    return status;
}

static moe_status load_tensor(const loading *l, uint32_t i, moe_err *err) {
    const hf_tensor *x = &l->map->at[i];
    uint32_t file = 0;
    const st_tensor *f = hf_folder_find(l->folder, x->name, &file);
    hf_slab s = {0};
    moe_status status = MOE_OK;
    l->checksum[i] = 0;
    while (!status && hf_slab_next(x, SLAB_LIMIT, &s)) {
        status = read_slab(l, file, f, &s, l->theirs, err);
        if (!status) status = check_values(l, x, file, &s, err);
        l->checksum[i] = XXH3_64bits_withSeed(l->theirs, (size_t)s.count * 4, l->checksum[i]);
        if (!status) status = hf_device_write(&l->device, x, &s, l->theirs, err);
    }
    return status;
}

/* What lies in the device now, after everything was written: a place that two tensors share would show here. */
static moe_status verify_tensor(const loading *l, uint32_t i, moe_err *err) {
    const hf_tensor *x = &l->map->at[i];
    hf_slab s = {0};
    moe_status status = MOE_OK;
    uint64_t sum = 0;
    while (!status && hf_slab_next(x, SLAB_LIMIT, &s)) {
        status = hf_device_read(&l->device, x, &s, 0, l->theirs, err);
        sum = XXH3_64bits_withSeed(l->theirs, (size_t)s.count * 4, sum);
    }
    if (!status && sum != l->checksum[i])
        status = fs_fail(err, MOE_E_INTERNAL, l->dir, "%s: the device holds other values than were written", x->name);
    return status;
}

/* A tied model's file may bring the head a second time; another head would be another model. */
static moe_status check_tied_head(const loading *l, moe_err *err) {
    uint32_t head_file = 0, file = 0;
    const st_tensor *head = hf_folder_find(l->folder, "lm_head.weight", &head_file);
    const hf_tensor *x = &l->map->at[0];
    if (!l->t->model->cfg.tied || !head) return MOE_OK;
    const st_tensor *embed = hf_folder_find(l->folder, x->name, &file);
    hf_slab s = {0};
    float *other = malloc(SLAB_LIMIT * sizeof *other);
    moe_status status = check_tensor(l, x, head, err);
    if (!status && !other) status = fs_fail(err, MOE_E_NOMEM, l->dir, "out of memory");
    while (!status && hf_slab_next(x, SLAB_LIMIT, &s)) {
        status = read_slab(l, file, embed, &s, l->theirs, err);
        if (!status) status = read_slab(l, head_file, head, &s, other, err);
        if (!status && memcmp(l->theirs, other, (size_t)s.count * 4) != 0)
            status =
                fs_fail(err, MOE_E_DATA, l->dir, "lm_head.weight differs from %s, but the model ties them", x->name);
    }
    free(other);
    return status;
}

/* ---- the whole ---- */
/* The folder's files and the model's names, held against each other. */
static moe_status open_folder(loading *l, moe_err *err) {
    moe_status status = hf_folder_open(l->dir, &l->folder, err);
    if (!status) status = hf_folder_extra_layers(l->dir, &l->extra, err);
    if (!status) status = hf_map_of(l->t, &l->map, err);
    if (status) return status;
    l->seen = calloc(l->folder->n + 1, sizeof *l->seen);
    int whole = l->seen != NULL;
    for (uint32_t i = 0; whole && i < l->folder->n; i++)
        whole = (l->seen[i] = calloc(st_count(l->folder->files[i]) + 1, 1)) != NULL;
    return whole ? check_names(l, err) : fs_fail(err, MOE_E_NOMEM, l->dir, "out of memory for its names");
}

static moe_status open_buffers(loading *l, moe_err *err) {
    int64_t most = hf_slab_most(l->map, SLAB_LIMIT);
    l->bytes = malloc((size_t)most * 4);
    l->theirs = malloc((size_t)most * sizeof *l->theirs);
    l->checksum = calloc(l->map->n + 1, sizeof *l->checksum);
    if (!l->bytes || !l->theirs || !l->checksum)
        return fs_fail(err, MOE_E_NOMEM, l->dir, "out of memory to read %lld numbers", (long long)most);
    return hf_device_open(&l->device, l->t, most, err);
}

static void finish(loading *l) {
    hf_device_close(&l->device);
    for (uint32_t i = 0; l->seen && l->folder && i < l->folder->n; i++) free(l->seen[i]);
    free(l->seen);
    free(l->checksum);
    free(l->theirs);
    free(l->bytes);
    hf_map_free(l->map);
    hf_folder_close(l->folder);
}

moe_status hf_check(const trainer *t, const char *dir, moe_err *err) {
    loading l = {.t = t, .dir = dir};
    moe_status status = open_folder(&l, err);
    finish(&l);
    return status;
}

moe_status hf_load(trainer *t, const char *dir, moe_err *err) {
    loading l = {.t = t, .dir = dir};
    if (!t->model->params.master) return moe_fail(err, MOE_E_ARG, "a trainer that only plans has no place for weights");
    moe_status status = open_folder(&l, err);
    if (!status) status = open_buffers(&l, err);
    if (!status) status = check_tied_head(&l, err);
    for (uint32_t i = 0; !status && i < l.map->n; i++) status = load_tensor(&l, i, err);
    for (uint32_t i = 0; !status && i < l.map->n; i++) status = verify_tensor(&l, i, err);
    finish(&l);
    return status;
}
