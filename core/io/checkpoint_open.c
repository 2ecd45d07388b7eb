/* Reading checkpoints: meta.json, version, checksums, keys; see checkpoint.h. */
#include <dirent.h>
#include <inttypes.h>
#include <moe/options.h>
#include <xxhash.h>

#include "io/checkpoint.h"
#include "io/checkpoint_meta.h"
#include "io/fs.h"

enum { META_LIMIT = 1 << 30 }; /* bytes */

int ckpt_seal(const json_t *meta, char hash[CKPT_HASH_CHARS]) {
    json_t *bare = json_copy((json_t *)(uintptr_t)meta); /* shallow */
    if (!bare) return 0;
    json_object_del(bare, "meta_xxh3_64");
    char *text = json_dumps(bare, JSON_COMPACT | JSON_SORT_KEYS);
    if (text) snprintf(hash, CKPT_HASH_CHARS, "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    json_decref(bare);
    free(text);
    return text != NULL;
}

/* ---- meta.json ---- */

static moe_status check_version(const char *path, const json_t *meta, moe_err *err) {
    const char *format = json_string_value(json_object_get(meta, "format"));
    const json_t *version = json_object_get(meta, "version");
    if (!format || strcmp(format, CKPT_FORMAT) != 0 || !json_is_integer(version))
        return fs_fail(err, MOE_E_DATA, path, "is not the description of a checkpoint");
    if (json_integer_value(version) != CKPT_VERSION)
        return fs_fail(err, MOE_E_DATA, path, "is version %lld; this program reads version %d",
                       (long long)json_integer_value(version), CKPT_VERSION);
    return MOE_OK;
}

static moe_status check_seal(const char *path, const json_t *meta, moe_err *err) {
    char hash[CKPT_HASH_CHARS];
    const char *stored = json_string_value(json_object_get(meta, "meta_xxh3_64"));
    if (!ckpt_seal(meta, hash)) return fs_fail(err, MOE_E_NOMEM, path, "no memory for a checksum");
    if (!stored || strcmp(stored, hash) != 0)
        return fs_fail(err, MOE_E_DATA, path, "is damaged: checksum %s, written %s", hash, stored ? stored : "none");
    return MOE_OK;
}

/* Exactly the fields of this version: one that is new to us could change what the others mean. */
static moe_status check_fields(const char *path, const json_t *meta, moe_err *err) {
    static const struct {
        const char *name;
        json_type type;
    } fields[] = {{"format", JSON_STRING},      {"version", JSON_INTEGER}, {"step", JSON_INTEGER},
                  {"keys", JSON_ARRAY},         {"values", JSON_OBJECT},   {"files", JSON_OBJECT},
                  {"meta_xxh3_64", JSON_STRING}};
    enum { N_FIELDS = sizeof fields / sizeof fields[0] };
    const char *name;
    json_t *value;
    for (size_t i = 0; i < N_FIELDS; i++) {
        value = json_object_get(meta, fields[i].name);
        if (!value || json_typeof(value) != fields[i].type)
            return fs_fail(err, MOE_E_DATA, path, "lacks '%s', or it is of another type", fields[i].name);
    }
    json_object_foreach((json_t *)(uintptr_t)meta, name, value) {
        size_t i = 0;
        while (i < N_FIELDS && strcmp(fields[i].name, name) != 0) i++;
        if (i == N_FIELDS) return fs_fail(err, MOE_E_DATA, path, "has a field '%.100s', unknown here", name);
    }
    if (json_integer_value(json_object_get(meta, "step")) < 0)
        return fs_fail(err, MOE_E_DATA, path, "step is negative");
    json_object_foreach(json_object_get(meta, "values"), name, value) {
        if (!json_is_string(value)) return fs_fail(err, MOE_E_DATA, path, "values: '%.100s' is not a string", name);
    }
    return MOE_OK;
}

static moe_status load_meta(const char *dir, json_t **out, moe_err *err) {
    char *path = fs_join(dir, "meta.json"), *text = NULL;
    uint64_t bytes = 0;
    json_t *meta = NULL;
    json_error_t at;
    moe_status s = path ? fs_load(path, META_LIMIT, &text, &bytes, err) : fs_fail(err, MOE_E_NOMEM, dir, "no memory");
    if (s != MOE_OK) goto out;
    meta = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &at);
    if (!meta)
        s = fs_fail(err, MOE_E_DATA, path, "line %d, column %d: %s", at.line, at.column, at.text);
    else
        s = check_version(path, meta, err);
    if (s == MOE_OK) s = check_seal(path, meta, err);
    if (s == MOE_OK) s = check_fields(path, meta, err);
    if (s == MOE_OK)
        *out = meta;
    else
        json_decref(meta);
out:
    free(text);
    free(path);
    return s;
}

/* ---- the view ---- */

static moe_status list_keys(const char *dir, const json_t *keys, const char **out, moe_err *err) {
    json_t *seen = json_object();
    moe_status s = seen ? MOE_OK : fs_fail(err, MOE_E_NOMEM, dir, "no memory for keys");
    for (size_t i = 0; s == MOE_OK && i < json_array_size(keys); i++) {
        out[i] = json_string_value(json_array_get(keys, i));
        if (!out[i])
            s = fs_fail(err, MOE_E_DATA, dir, "meta.json: keys[%zu] is not a string", i);
        else if (json_object_get(seen, out[i]))
            s = fs_fail(err, MOE_E_DATA, dir, "meta.json: keys[%zu] '%.100s' is there twice", i, out[i]);
        else if (json_object_set_new(seen, out[i], json_true()) != 0)
            s = fs_fail(err, MOE_E_NOMEM, dir, "no memory for keys");
    }
    json_decref(seen);
    return s;
}

static moe_status verify_file(const char *path, const json_t *entry, moe_err *err) {
    uint64_t bytes = 0, hash = 0;
    char hex[CKPT_HASH_CHARS];
    const json_t *size = json_object_get(entry, "bytes");
    const char *stored = json_string_value(json_object_get(entry, "xxh3_64"));
    if (!json_is_integer(size) || !stored || json_object_size(entry) != 2)
        return fs_fail(err, MOE_E_DATA, path, "meta.json has not its size and checksum alone");
    moe_status s = fs_checksum(path, 0, &bytes, &hash, err);
    if (s != MOE_OK) return s;
    if ((json_int_t)bytes != json_integer_value(size))
        return fs_fail(err, MOE_E_DATA, path, "has %" PRIu64 " bytes, written were %lld", bytes,
                       (long long)json_integer_value(size));
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    if (strcmp(hex, stored) != 0)
        return fs_fail(err, MOE_E_DATA, path, "is damaged: checksum %s, written %s", hex, stored);
    return MOE_OK;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static moe_status verify_files(const char *dir, const json_t *files, char **out, uint64_t *n, moe_err *err) {
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)files, name, entry) {
        if (name[0] == 0 || name[0] == '.' || strchr(name, '/'))
            return fs_fail(err, MOE_E_DATA, dir, "meta.json: '%.100s' is no name of a file in it", name);
        char *path = fs_join(dir, name);
        if (!path) return fs_fail(err, MOE_E_NOMEM, dir, "no memory for a path");
        out[(*n)++] = path;
        moe_status s = verify_file(path, entry, err);
        if (s != MOE_OK) return s;
    }
    qsort(out, *n, sizeof *out, by_text);
    return MOE_OK;
}

/* Nothing but what meta.json lists: a file that is not listed was not verified, and might be read all the same. */
static moe_status refuse_strangers(const char *dir, const json_t *files, moe_err *err) {
    struct dirent **entries = NULL;
    moe_status s = MOE_OK;
    int n = scandir(dir, &entries, NULL, alphasort);
    if (n < 0) return fs_fail(err, MOE_E_IO, dir, "cannot list directory: %m");
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (s == MOE_OK && name[0] != '.' && strcmp(name, "meta.json") != 0 && !json_object_get(files, name))
            s = fs_fail(err, MOE_E_DATA, dir, "'%.100s' is no file of this checkpoint: meta.json does not list it",
                        name);
        free(entries[i]);
    }
    free(entries);
    return s;
}

moe_status ckpt_open(const char *dir, ckpt_view **out, moe_err *err) {
    json_t *meta = NULL;
    moe_status s = load_meta(dir, &meta, err);
    if (s != MOE_OK) return s;
    const json_t *keys = json_object_get(meta, "keys"), *files = json_object_get(meta, "files");
    ckpt_view *view = calloc(1, sizeof *view);
    const char **key_list = calloc(json_array_size(keys) + 1, sizeof *key_list);
    char **file_list = calloc(json_object_size(files) + 1, sizeof *file_list);
    char *dir_copy = strdup(dir);
    if (!view || !key_list || !file_list || !dir_copy) {
        free(view);
        free(key_list);
        free(file_list);
        free(dir_copy);
        json_decref(meta);
        return fs_fail(err, MOE_E_NOMEM, dir, "no memory for a checkpoint");
    }
    *view = (ckpt_view){.dir = dir_copy,
                        .step = json_integer_value(json_object_get(meta, "step")),
                        .n_keys = json_array_size(keys),
                        .keys = key_list,
                        .files = (const char *const *)file_list,
                        .meta = meta};
    s = list_keys(dir, keys, key_list, err);
    if (s == MOE_OK) s = verify_files(dir, files, file_list, &view->n_files, err);
    if (s == MOE_OK) s = refuse_strangers(dir, files, err);
    if (s == MOE_OK)
        *out = view;
    else
        ckpt_close(view);
    return s;
}

void ckpt_close(ckpt_view *view) {
    if (!view) return;
    for (const char *const *f = view->files; *f; f++) free((void *)(uintptr_t)*f);
    free((void *)(uintptr_t)view->files);
    free((void *)(uintptr_t)view->keys);
    free((void *)(uintptr_t)view->dir);
    json_decref(view->meta);
    free(view);
}

const char *ckpt_get(const ckpt_view *view, const char *name) {
    return json_string_value(json_object_get(json_object_get(view->meta, "values"), name));
}

moe_status ckpt_check_keys(const ckpt_view *view, const char *const *wanted, uint64_t n, moe_err *err) {
    const char *missing = NULL, *unknown = NULL;
    uint64_t n_missing = 0, n_unknown = 0;
    json_t *have = json_object(), *want = json_object();
    int whole = have && want;
    for (uint64_t i = 0; i < view->n_keys; i++)
        whole = whole && json_object_set_new(have, view->keys[i], json_true()) == 0;
    for (uint64_t i = 0; i < n; i++) whole = whole && json_object_set_new(want, wanted[i], json_true()) == 0;
    for (uint64_t i = n; whole && i-- > 0;)
        if (!json_object_get(have, wanted[i])) n_missing++, missing = wanted[i];
    for (uint64_t i = view->n_keys; whole && i-- > 0;)
        if (!json_object_get(want, view->keys[i])) n_unknown++, unknown = view->keys[i];
    json_decref(have);
    json_decref(want);
    if (!whole) return fs_fail(err, MOE_E_NOMEM, view->dir, "no memory to compare keys");
    if (!missing && !unknown) return MOE_OK;
    return fs_fail(err, MOE_E_DATA, view->dir,
                   "state keys differ: %" PRIu64 " missing%s%.80s, %" PRIu64 " unknown%s%.80s", n_missing,
                   missing ? ", first " : "", missing ? missing : "", n_unknown, unknown ? ", first " : "",
                   unknown ? unknown : "");
}
