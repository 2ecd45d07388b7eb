/* Making, listing and pruning checkpoints; see checkpoint.h. Names in <run>/ckpt: step-N whole, .tmp-step-N being made
 * or being removed, .old-step-N the one being replaced where names cannot be exchanged in one go. */
#include "io/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <moe/options.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/checkpoint_meta.h"
#include "io/fs.h"

struct ckpt {
    int64_t step;
    char *dir, *temp, *final, *aside; /* <run>/ckpt and three names in it */
    json_t *keys, *values;            /* set of keys (to true) in order; map of strings */
    int prepared;
};

/* ---- names ---- */

/* "<dir>/<prefix>step-00000100" in new memory. */
static char *step_path(const char *dir, const char *prefix, int64_t step) {
    char *out = NULL;
    return asprintf(&out, "%s/%sstep-%08" PRId64, dir, prefix, step) < 0 ? NULL : out;
}

/* The step of "<prefix>step-00000100", or -1. */
static int64_t step_of(const char *name, const char *prefix) {
    char again[64];
    size_t skip = strlen(prefix);
    if (strncmp(name, prefix, skip) != 0 || strncmp(name + skip, "step-", 5) != 0) return -1;
    errno = 0;
    int64_t step = strtoll(name + skip + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08" PRId64, step);
    return errno == 0 && step >= 0 && strcmp(name + skip, again) == 0 ? step : -1;
}

static int exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

static int by_step(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Steps of the names "<prefix>step-N" in dir, ascending, in new memory. A missing directory has none. */
static moe_status list_steps(const char *dir, const char *prefix, int64_t **out, uint64_t *n, moe_err *err) {
    int64_t *steps = NULL;
    uint64_t count = 0, room = 0;
    DIR *d = opendir(dir);
    *out = NULL;
    *n = 0;
    if (!d) return errno == ENOENT ? MOE_OK : fs_fail(err, MOE_E_IO, dir, "cannot open directory: %m");
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        int64_t step = step_of(e->d_name, prefix);
        if (step < 0) continue;
        if (count == room) {
            room = 2 * room + 16;
            int64_t *moved = reallocarray(steps, room, sizeof *steps);
            if (!moved) {
                free(steps);
                closedir(d);
                return fs_fail(err, MOE_E_NOMEM, dir, "no memory for a list of checkpoints");
            }
            steps = moved;
        }
        steps[count++] = step;
    }
    closedir(d);
    if (count) qsort(steps, count, sizeof *steps, by_step);
    *out = steps;
    *n = count;
    return MOE_OK;
}

/* ---- begin ---- */

/* Removes what a killed run left; a replaced checkpoint whose successor did not arrive gets its name back. */
static moe_status clean_up(const char *dir, moe_err *err) {
    int64_t *steps;
    uint64_t n;
    moe_status s = list_steps(dir, ".tmp-", &steps, &n, err);
    for (uint64_t i = 0; s == MOE_OK && i < n; i++) {
        char *path = step_path(dir, ".tmp-", steps[i]);
        s = path ? fs_remove_tree(path, err) : fs_fail(err, MOE_E_NOMEM, dir, "no memory for a path");
        free(path);
    }
    free(steps);
    if (s == MOE_OK) s = list_steps(dir, ".old-", &steps, &n, err);
    if (s != MOE_OK) return s;
    for (uint64_t i = 0; s == MOE_OK && i < n; i++) {
        char *aside = step_path(dir, ".old-", steps[i]), *final = step_path(dir, "", steps[i]);
        if (!aside || !final)
            s = fs_fail(err, MOE_E_NOMEM, dir, "no memory for a path");
        else if (exists(final))
            s = fs_remove_tree(aside, err);
        else if (rename(aside, final) != 0)
            s = fs_fail(err, MOE_E_IO, aside, "cannot put back: %m");
        free(aside);
        free(final);
    }
    free(steps);
    return s;
}

static void destroy(ckpt *c) {
    json_decref(c->keys);
    json_decref(c->values);
    free(c->dir);
    free(c->temp);
    free(c->final);
    free(c->aside);
    free(c);
}

moe_status ckpt_begin(const char *run_dir, int64_t step, ckpt **out, moe_err *err) {
    if (step < 0) return fs_fail(err, MOE_E_ARG, run_dir, "no checkpoint of step %" PRId64, step);
    ckpt *c = calloc(1, sizeof *c);
    if (!c) return fs_fail(err, MOE_E_NOMEM, run_dir, "no memory for a checkpoint");
    c->step = step;
    c->dir = fs_join(run_dir, "ckpt");
    c->temp = c->dir ? step_path(c->dir, ".tmp-", step) : NULL;
    c->final = c->dir ? step_path(c->dir, "", step) : NULL;
    c->aside = c->dir ? step_path(c->dir, ".old-", step) : NULL;
    c->keys = json_object();
    c->values = json_object();
    moe_status s = MOE_OK;
    if (!c->temp || !c->final || !c->aside || !c->keys || !c->values)
        s = fs_fail(err, MOE_E_NOMEM, run_dir, "no memory for a checkpoint");
    if (s == MOE_OK) s = fs_make_dirs(c->dir, err);
    if (s == MOE_OK) s = fs_sync_dir(run_dir, err);
    if (s == MOE_OK) s = clean_up(c->dir, err);
    if (s == MOE_OK && mkdir(c->temp, 0777) != 0) s = fs_fail(err, MOE_E_IO, c->temp, "cannot make directory: %m");
    if (s == MOE_OK)
        *out = c;
    else
        destroy(c);
    return s;
}

const char *ckpt_path(const ckpt *c) {
    return c->temp;
}

moe_status ckpt_add_key(ckpt *c, const char *key, moe_err *err) {
    if (json_object_get(c->keys, key))
        return fs_fail(err, MOE_E_ARG, c->temp, "state key '%.100s' is given twice", key);
    if (json_object_set_new(c->keys, key, json_true()) != 0)
        return fs_fail(err, MOE_E_ARG, c->temp, "state key '%.100s' is not UTF-8, or no memory for it", key);
    return MOE_OK;
}

moe_status ckpt_set(ckpt *c, const char *name, const char *value, moe_err *err) {
    if (json_object_set_new(c->values, name, json_string(value)) != 0)
        return fs_fail(err, MOE_E_ARG, c->temp, "value '%.100s' is not UTF-8, or no memory for it", name);
    return MOE_OK;
}

/* ---- commit ---- */

static moe_status describe_file(const ckpt *c, const char *name, json_t *files, moe_err *err) {
    uint64_t bytes = 0, hash = 0;
    char hex[CKPT_HASH_CHARS];
    size_t length = strlen(name);
    char *path = fs_join(c->temp, name);
    moe_status s = path ? MOE_OK : fs_fail(err, MOE_E_NOMEM, c->temp, "no memory for a path");
    if (s == MOE_OK && (name[0] == '.' || (length > 5 && strcmp(name + length - 5, ".part") == 0)))
        s = fs_fail(err, MOE_E_ARG, path, "is hidden or not finished, and cannot be in a checkpoint");
    if (s == MOE_OK) s = fs_checksum(path, 1, &bytes, &hash, err);
    free(path);
    if (s != MOE_OK) return s;
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    json_t *entry = json_pack("{s:I, s:s}", "bytes", (json_int_t)bytes, "xxh3_64", hex);
    if (json_object_set_new(files, name, entry) != 0)
        return fs_fail(err, MOE_E_ARG, c->temp, "file name '%.100s' is not UTF-8, or no memory for it", name);
    return MOE_OK;
}

static moe_status describe_files(const ckpt *c, json_t *files, moe_err *err) {
    struct dirent **entries = NULL;
    moe_status s = MOE_OK;
    int n = scandir(c->temp, &entries, NULL, alphasort);
    if (n < 0) return fs_fail(err, MOE_E_IO, c->temp, "cannot list directory: %m");
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (s == MOE_OK && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) s = describe_file(c, name, files, err);
        free(entries[i]);
    }
    free(entries);
    return s;
}

static moe_status write_meta(const ckpt *c, moe_err *err) {
    json_t *files = json_object(), *keys = json_array(), *unused, *meta = NULL;
    const char *key;
    char hash[CKPT_HASH_CHARS], *text = NULL, *path = fs_join(c->temp, "meta.json");
    int whole = keys != NULL;
    moe_status s = describe_files(c, files, err);
    if (s != MOE_OK) goto out;
    json_object_foreach(c->keys, key, unused) whole = whole && json_array_append_new(keys, json_string(key)) == 0;
    meta = json_pack("{s:s, s:i, s:I, s:O, s:O, s:O}", "format", CKPT_FORMAT, "version", CKPT_VERSION, "step",
                     (json_int_t)c->step, "keys", keys, "values", c->values, "files", files);
    if (whole && path && meta && ckpt_seal(meta, hash) &&
        json_object_set_new(meta, "meta_xxh3_64", json_string(hash)) == 0)
        text = json_dumps(meta, JSON_INDENT(1));
    s = text ? fs_save(path, text, strlen(text), err) : fs_fail(err, MOE_E_NOMEM, c->temp, "no memory for meta.json");
out:
    json_decref(meta);
    json_decref(files);
    json_decref(keys);
    free(text);
    free(path);
    return s;
}

moe_status ckpt_replace_by_renames(const char *temp, const char *final, const char *aside, moe_err *err) {
    if (rename(final, aside) != 0) return fs_fail(err, MOE_E_IO, final, "cannot move aside: %m");
    if (rename(temp, final) == 0) return MOE_OK;
    fs_fail(err, MOE_E_IO, temp, "cannot rename to %s: %m", final);
    rename(aside, final);
    return err->code;
}

static moe_status put_in_place(const ckpt *c, moe_err *err) {
    if (rename(c->temp, c->final) == 0) return MOE_OK;
    if (errno != ENOTEMPTY && errno != EEXIST) return fs_fail(err, MOE_E_IO, c->temp, "cannot rename: %m");
    if (renameat2(AT_FDCWD, c->temp, AT_FDCWD, c->final, RENAME_EXCHANGE) == 0) return MOE_OK;
    if (errno != EINVAL && errno != ENOSYS) return fs_fail(err, MOE_E_IO, c->temp, "cannot exchange names: %m");
    return ckpt_replace_by_renames(c->temp, c->final, c->aside, err);
}

moe_status ckpt_prepare(ckpt *c, moe_err *err) {
    moe_status s = write_meta(c, err);
    if (s == MOE_OK) s = fs_sync_dir(c->temp, err);
    c->prepared = s == MOE_OK;
    return s;
}

moe_status ckpt_commit(ckpt *c, moe_err *err) {
    moe_err ignored;
    moe_status s = c->prepared ? MOE_OK : ckpt_prepare(c, err);
    if (s == MOE_OK) s = put_in_place(c, err);
    if (s == MOE_OK) s = fs_sync_dir(c->dir, err);
    /* Left: after a failure what was made, after an exchange what was replaced. Should this fail, ckpt_begin removes
     * it. */
    fs_remove_tree(c->temp, &ignored);
    if (s == MOE_OK) fs_remove_tree(c->aside, &ignored);
    destroy(c);
    return s;
}

void ckpt_abort(ckpt *c) {
    moe_err ignored;
    if (!c) return;
    fs_remove_tree(c->temp, &ignored);
    destroy(c);
}

/* ---- the checkpoints of a run ---- */

/* Hides the checkpoint under a temporary name first: killed in between, no half of it bears its name. */
static moe_status remove_step(const char *dir, int64_t step, moe_err *err) {
    char *final = step_path(dir, "", step), *temp = step_path(dir, ".tmp-", step);
    moe_status s = MOE_OK;
    if (!final || !temp)
        s = fs_fail(err, MOE_E_NOMEM, dir, "no memory for a path");
    else if ((s = fs_remove_tree(temp, err)) == MOE_OK && rename(final, temp) != 0)
        s = fs_fail(err, MOE_E_IO, final, "cannot rename: %m");
    else if (s == MOE_OK)
        s = fs_remove_tree(temp, err);
    free(final);
    free(temp);
    return s;
}

moe_status ckpt_prune(const char *run_dir, int64_t keep, int64_t keep_every, moe_err *err) {
    int64_t *steps = NULL;
    uint64_t n = 0;
    if (keep < 1) return fs_fail(err, MOE_E_ARG, run_dir, "cannot keep %" PRId64 " checkpoints", keep);
    if (keep_every < 0)
        return fs_fail(err, MOE_E_ARG, run_dir, "cannot keep a checkpoint every %" PRId64 " steps", keep_every);
    char *dir = fs_join(run_dir, "ckpt");
    if (!dir) return fs_fail(err, MOE_E_NOMEM, run_dir, "no memory for a path");
    moe_status s = clean_up(dir, err);
    if (s == MOE_OK) s = list_steps(dir, "", &steps, &n, err);
    for (uint64_t i = 0; s == MOE_OK && n - i > (uint64_t)keep; i++)
        if (!keep_every || steps[i] % keep_every) s = remove_step(dir, steps[i], err);
    free(steps);
    free(dir);
    return s;
}

moe_status ckpt_latest(const char *run_dir, char **out, int64_t *step, moe_err *err) {
    int64_t *steps = NULL, *aside = NULL, best = -1;
    uint64_t n = 0, n_aside = 0;
    const char *prefix = "";
    char *dir = fs_join(run_dir, "ckpt"), *path = NULL;
    if (!dir) return fs_fail(err, MOE_E_NOMEM, run_dir, "no memory for a path");
    moe_status s = list_steps(dir, "", &steps, &n, err);
    if (s == MOE_OK) s = list_steps(dir, ".old-", &aside, &n_aside, err);
    if (s != MOE_OK) goto out;
    if (n) best = steps[n - 1];
    if (n_aside && aside[n_aside - 1] > best) {
        best = aside[n_aside - 1];
        prefix = ".old-";
    }
    if (best >= 0 && (path = step_path(dir, prefix, best)) == NULL)
        s = fs_fail(err, MOE_E_NOMEM, run_dir, "no memory for a path");
    if (s == MOE_OK) {
        *out = path;
        *step = best;
    }
out:
    free(steps);
    free(aside);
    free(dir);
    return s;
}
