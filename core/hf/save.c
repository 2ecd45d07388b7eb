/* Shards in the order of the map, then the index, then config.json: into a hidden folder within the target, and from
 * there into their places when all of them are whole and durable. Until then what the target holds is not touched. */
#include "hf/save.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf/device.h"
#include "hf/finite.h"
#include "hf/folder.h"
#include "io/fs.h"
#include "train/trainer_impl.h"

enum { SLAB_LIMIT = 1 << 20 };

typedef struct saving {
    const trainer *t;
    const char *dir;
    char *into; /* the hidden folder in dir; NULL: not made yet */
    const hf_save_options *o;
    hf_map *map;
    hf_device device;
    st_file *checkpoint;
    float *theirs;     /* [most] FP32 in the file's order */
    float *ours;       /* [most] as in the checkpoint */
    uint16_t *rounded; /* [most] */
    uint32_t *shard;   /* [map->n] file of each tensor, from 0 */
    uint32_t shards;
    uint64_t total; /* bytes of tensors */
} saving;

/* ---- values ---- */
static int32_t dtype_of(const saving *s, const hf_tensor *x) {
    return x->state_layer < 0 ? s->o->dtype : MOE_F32;
}

/* The tensor of a checkpoint that holds a slab, and where in it the slab begins. */
static const st_tensor *find_piece(const saving *s, const hf_tensor *x, const hf_slab *slab, char name[128],
                                   int64_t *begin) {
    const model *m = s->t->model;
    if (x->state_layer >= 0) {
        const char *state = m->routers[x->state_layer].needs.state[x->state].name;
        snprintf(name, 128, "layers.%" PRId64 ".router.%s", x->state_layer, state);
        *begin = slab->first;
        return st_find(s->checkpoint, name);
    }
    param_piece piece;
    param_piece_at(&m->params.at[slab->param], 0, &piece);
    int64_t each = piece.whole;
    param_piece_at(&m->params.at[slab->param], slab->first / each, &piece);
    snprintf(name, 128, "%s", piece.name);
    *begin = slab->first % each;
    return st_find(s->checkpoint, name);
}

/* A slab may span the stacked experts of a vector; then it is read piece by piece. */
static moe_status read_checkpoint(const saving *s, const hf_tensor *x, const hf_slab *slab, moe_err *err) {
    moe_status status = MOE_OK;
    for (int64_t done = 0; done < slab->count && !status;) {
        char name[128];
        int64_t begin = 0;
        hf_slab rest = {.count = slab->count - done, .param = slab->param, .first = slab->first + done};
        const st_tensor *t = find_piece(s, x, &rest, name, &begin);
        if (!t || t->dtype != MOE_F32 || begin >= t->elements)
            return fs_fail(err, MOE_E_DATA, s->o->checkpoint, "%s is %s", name,
                           t ? "of another shape than the model's" : "missing");
        int64_t n = rest.count < t->elements - begin ? rest.count : t->elements - begin;
        status = st_read_part(s->checkpoint, t, (uint64_t)begin * 4, s->ours + done, (uint64_t)n * 4, err);
        done += n;
    }
    if (!status) hf_gather(x, s->ours, s->theirs, slab->count);
    return status;
}

/* s->theirs, and s->rounded where the file is BF16, as the file will hold it. MOE_E_DATA: a value that is no number, or
 * becomes none in BF16. */
static moe_status check_values(const saving *s, const hf_tensor *x, const hf_slab *slab, moe_err *err) {
    const char *from = s->o->checkpoint ? s->o->checkpoint : "the trainer's memory";
    int64_t at = hf_find_odd(s->theirs, slab->count);
    if (at >= 0) return hf_refuse_odd(from, x, slab->begin + at, s->theirs[at], ": not written", err);
    if (dtype_of(s, x) == MOE_F32) return MOE_OK;
    params_round_bf16(s->theirs, s->rounded, slab->count);
    for (at = 0; at < slab->count && (s->rounded[at] & 0x7f80u) != 0x7f80u;) at++;
    if (at == slab->count) return MOE_OK;
    return hf_refuse_odd(from, x, slab->begin + at, s->theirs[at], ", too large for BF16: not written", err);
}

static moe_status write_tensor(const saving *s, const hf_tensor *x, st_writer *w, moe_err *err) {
    hf_slab slab = {0};
    moe_status status = MOE_OK;
    while (!status && hf_slab_next(x, SLAB_LIMIT, &slab)) {
        uint64_t n = (uint64_t)slab.count;
        status =
            s->checkpoint ? read_checkpoint(s, x, &slab, err) : hf_device_read(&s->device, x, &slab, 0, s->theirs, err);
        if (!status) status = check_values(s, x, &slab, err);
        if (status) break;
        if (dtype_of(s, x) == MOE_F32)
            status = st_write(w, s->theirs, n * 4, err);
        else
            status = st_write(w, s->rounded, n * 2, err);
    }
    return status;
}

/* Every tensor of the checkpoint is the model's: what the map does not read would be lost in silence. */
static moe_status check_checkpoint(const saving *s, moe_err *err) {
    const model *m = s->t->model;
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->params.n; i++) n += (uint64_t)param_pieces(&m->params.at[i]);
    for (uint32_t l = 0; l < m->cfg.layers; l++) n += m->routers[l].needs.n_state;
    if (n == st_count(s->checkpoint)) return MOE_OK;
    return fs_fail(err, MOE_E_DATA, s->o->checkpoint, "holds %" PRIu64 " tensors, the model has %" PRIu64,
                   st_count(s->checkpoint), n);
}

/* ---- files ---- */
static void plan_shards(saving *s) {
    uint64_t used = 0;
    s->shards = 1;
    for (uint32_t i = 0; i < s->map->n; i++) {
        uint64_t bytes = (uint64_t)s->map->at[i].count * st_dtype_bits(dtype_of(s, &s->map->at[i])) / 8;
        if (used && bytes > s->o->shard_bytes - (used < s->o->shard_bytes ? used : s->o->shard_bytes)) {
            s->shards++;
            used = 0;
        }
        used += bytes;
        s->total += bytes;
        s->shard[i] = s->shards - 1;
    }
}

enum { NAME_BYTES = 64 };

static void shard_name(const saving *s, uint32_t shard, char name[NAME_BYTES]) {
    if (s->shards == 1)
        snprintf(name, NAME_BYTES, HF_ONE_FILE);
    else
        snprintf(name, NAME_BYTES, "model-%05u-of-%05u.safetensors", shard + 1, s->shards);
}

static moe_status write_shard(const saving *s, uint32_t shard, moe_err *err) {
    char name[NAME_BYTES];
    st_writer *w = NULL;
    shard_name(s, shard, name);
    char *path = fs_join(s->into, name);
    moe_status status = path ? st_writer_create(path, &w, err) : fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory");
    if (!status) status = st_writer_meta(w, "format", "pt", err); /* transformers refuses files without it */
    for (uint32_t i = 0; i < s->map->n && !status; i++) {
        const hf_tensor *x = &s->map->at[i];
        if (s->shard[i] == shard) status = st_writer_declare(w, x->name, dtype_of(s, x), x->ndim, x->shape, err);
    }
    for (uint32_t i = 0; i < s->map->n && !status; i++)
        if (s->shard[i] == shard) status = write_tensor(s, &s->map->at[i], w, err);
    if (status)
        st_writer_abort(w);
    else
        status = st_writer_finish(w, err);
    free(path);
    return status;
}

static moe_status write_text(const saving *s, const char *name, const char *text, moe_err *err) {
    char *path = fs_join(s->into, name);
    moe_status status =
        path ? fs_save(path, text, strlen(text), err) : fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory");
    free(path);
    return status;
}

static moe_status write_index(const saving *s, moe_err *err) {
    json_t *map = json_object(), *root = NULL;
    int bad = !map;
    for (uint32_t i = 0; i < s->map->n && !bad; i++) {
        char name[NAME_BYTES];
        shard_name(s, s->shard[i], name);
        bad = json_object_set_new(map, s->map->at[i].name, json_string(name));
    }
    root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)s->total, "weight_map", map);
    char *text = root && !bad ? json_dumps(root, JSON_INDENT(2)) : NULL;
    moe_status status =
        text ? write_text(s, HF_INDEX, text, err) : fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory for the index");
    free(text);
    json_decref(root);
    json_decref(map);
    return status;
}

/* ---- places ---- */
#define HIDDEN ".moehost-export-" /* what a kill has left of such a folder, the next export removes */

static moe_status remove_named(const char *dir, const char *name, moe_err *err) {
    char *path = fs_join(dir, name);
    moe_status status = path ? fs_remove_tree(path, err) : fs_fail(err, MOE_E_NOMEM, dir, "out of memory");
    free(path);
    return status;
}

static int is_hidden(const char *name) {
    return strncmp(name, HIDDEN, strlen(HIDDEN)) == 0;
}

/* model.safetensors, its index, or a shard of any number of shards, with or without ".part". */
static int is_weights(const char *name) {
    static const char *const ends[] = {"", ".part"};
    for (int i = 0; i < 2; i++) {
        unsigned at, of;
        char again[64];
        snprintf(again, sizeof again, HF_ONE_FILE "%s", ends[i]);
        if (strcmp(name, again) == 0) return 1;
        snprintf(again, sizeof again, HF_INDEX "%s", ends[i]);
        if (strcmp(name, again) == 0) return 1;
        if (sscanf(name, "model-%5u-of-%5u", &at, &of) != 2) continue;
        snprintf(again, sizeof again, "model-%05u-of-%05u.safetensors%s", at, of, ends[i]);
        if (strcmp(name, again) == 0) return 1;
    }
    return 0;
}

/* Everything in dir that is `of` this kind. */
static moe_status remove_all(const char *dir, int (*of)(const char *name), moe_err *err) {
    DIR *d = opendir(dir);
    if (!d) return fs_fail(err, MOE_E_IO, dir, "cannot open directory: %m");
    moe_status status = MOE_OK;
    for (struct dirent *e; !status && (e = readdir(d)) != NULL;)
        if (of(e->d_name)) status = remove_named(dir, e->d_name, err);
    closedir(d);
    return status;
}

/* What stands in a place must be a file, or a link to one: a directory could not be replaced. */
static moe_status check_place(const saving *s, const char *name, moe_err *err) {
    struct stat st;
    char *path = fs_join(s->dir, name);
    moe_status status = path ? MOE_OK : fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory");
    if (path && stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        status = fs_fail(err, MOE_E_IO, path, "exists and is not a regular file");
    free(path);
    return status;
}

static moe_status move(const saving *s, const char *name, moe_err *err) {
    char *from = fs_join(s->into, name), *to = fs_join(s->dir, name);
    moe_status status = from && to ? MOE_OK : fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory");
    if (!status && rename(from, to)) status = fs_fail(err, MOE_E_IO, to, "cannot rename to it: %m");
    free(to);
    free(from);
    return status;
}

/* fn for the shards of this export and their index. */
static moe_status for_weights(const saving *s, moe_status (*fn)(const saving *, const char *, moe_err *),
                              moe_err *err) {
    moe_status status = MOE_OK;
    for (uint32_t i = 0; !status && i < s->shards; i++) {
        char name[NAME_BYTES];
        shard_name(s, i, name);
        status = fn(s, name, err);
    }
    if (!status && s->shards > 1) status = fn(s, HF_INDEX, err);
    return status;
}

static moe_status open_hidden(saving *s, moe_err *err) {
    moe_status status = fs_make_dirs(s->dir, err);
    if (!status) status = for_weights(s, check_place, err);
    if (!status) status = check_place(s, "config.json", err);
    if (!status) status = remove_all(s->dir, is_hidden, err);
    if (status) return status;
    s->into = fs_join(s->dir, HIDDEN "XXXXXX");
    if (!s->into) return fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory");
    if (mkdtemp(s->into)) return MOE_OK;
    status = fs_fail(err, MOE_E_IO, s->dir, "cannot make a folder in it: %m");
    free(s->into);
    s->into = NULL;
    return status;
}

/* The old model goes, first the files without which no other is read, and is gone for good before the new one comes:
 * shards of the two may have the same names. */
static moe_status replace(const saving *s, moe_err *err) {
    moe_status status = remove_named(s->dir, "config.json", err);
    if (!status) status = remove_named(s->dir, HF_INDEX, err);
    if (!status) status = remove_all(s->dir, is_weights, err);
    if (!status) status = fs_sync_dir(s->dir, err);
    if (!status) status = for_weights(s, move, err);
    if (!status) status = fs_sync_dir(s->dir, err);
    if (!status) status = move(s, "config.json", err);
    return status ? status : fs_sync_dir(s->dir, err);
}

int hf_folder_in_use(const char *dir) {
    DIR *d = opendir(dir);
    int used = 0;
    if (!d) return 0;
    for (struct dirent *e; !used && (e = readdir(d)) != NULL;)
        used = strcmp(e->d_name, "config.json") == 0 || is_weights(e->d_name);
    closedir(d);
    return used;
}

/* ---- the whole ---- */
static moe_status prepare(saving *s, moe_err *err) {
    moe_status status = hf_map_of(s->t, &s->map, err);
    if (status) return status;
    int64_t most = hf_slab_most(s->map, SLAB_LIMIT);
    s->theirs = malloc((size_t)most * sizeof *s->theirs);
    s->ours = malloc((size_t)most * sizeof *s->ours);
    s->rounded = malloc((size_t)most * sizeof *s->rounded);
    s->shard = calloc(s->map->n + 1, sizeof *s->shard);
    if (!s->theirs || !s->ours || !s->rounded || !s->shard)
        return fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory to write %lld numbers", (long long)most);
    plan_shards(s);
    if (!s->o->checkpoint) return hf_device_open(&s->device, s->t, most, err);
    char *path = fs_join(s->o->checkpoint, HF_ONE_FILE);
    status = path ? st_open(path, &s->checkpoint, err) : fs_fail(err, MOE_E_NOMEM, s->dir, "out of memory");
    free(path);
    return status ? status : check_checkpoint(s, err);
}

static void finish(saving *s) {
    moe_err ignored = {.size = sizeof ignored};
    if (s->into) fs_remove_tree(s->into, &ignored);
    free(s->into);
    hf_device_close(&s->device);
    st_close(s->checkpoint);
    free(s->shard);
    free(s->rounded);
    free(s->ours);
    free(s->theirs);
    hf_map_free(s->map);
}

moe_status hf_save(const trainer *t, const char *dir, const hf_save_options *o, moe_err *err) {
    saving s = {.t = t, .dir = dir, .o = o};
    moe_status status = prepare(&s, err);
    if (!status) status = open_hidden(&s, err);
    for (uint32_t i = 0; !status && i < s.shards; i++) status = write_shard(&s, i, err);
    if (!status && s.shards > 1) status = write_index(&s, err);
    if (!status) status = write_text(&s, "config.json", o->config, err);
    if (!status) status = replace(&s, err);
    finish(&s);
    return status;
}
