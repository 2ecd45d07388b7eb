/* Opening a run directory without ever taking another's place. */
#include "run_dir.h"

#include <fcntl.h>
#include <io/checkpoint.h>
#include <io/fs.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static moe_status take_lock(run_dir *d, moe_err *err) {
    char *path = fs_join(d->path, ".lock");
    if (!path) return fs_fail(err, MOE_E_NOMEM, d->path, "out of memory");
    d->lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    moe_status status = MOE_OK;
    if (d->lock < 0)
        status = fs_fail(err, MOE_E_IO, path, "%m");
    else if (flock(d->lock, LOCK_EX | LOCK_NB))
        status = fs_fail(err, MOE_E_ARG, d->path, "another process is running in this directory");
    free(path);
    return status;
}

/* Bytes of dir/name, -1 when it is not there. */
static int64_t size_of(const char *dir, const char *name) {
    struct stat st;
    char *path = fs_join(dir, name);
    int64_t bytes = path && stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
    free(path);
    return bytes;
}

static moe_status remove_run(const run_dir *d, moe_err *err) {
    static const char *const names[] = {"ckpt", "metrics.jsonl", "recipe.ini"};
    moe_status status = MOE_OK;
    for (int i = 0; i < 3 && !status; i++) {
        char *path = fs_join(d->path, names[i]);
        status = path ? fs_remove_tree(path, err) : fs_fail(err, MOE_E_NOMEM, d->path, "out of memory");
        free(path);
    }
    return status;
}

static moe_status find_checkpoint(run_dir *d, moe_err *err) {
    int64_t step = -1;
    moe_status status = ckpt_latest(d->path, &d->checkpoint, &step, err);
    if (status) return status;
    d->again = !d->checkpoint;
    if (d->again && size_of(d->path, "recipe.ini") < 0)
        return fs_fail(err, MOE_E_ARG, d->path, "there is no run to resume: neither a checkpoint nor a recipe.ini");
    d->first_step = d->again ? 1 : step + 1;
    return MOE_OK;
}

moe_status run_dir_open(run_dir *d, const char *path, int mode, moe_err *err) {
    *d = (run_dir){.path = path, .lock = -1, .first_step = 1};
    moe_status status = fs_make_dirs(path, err);
    if (!status) status = take_lock(d, err);
    /* a run that ended before its first step leaves an empty file: nothing to protect */
    int there = !status && (size_of(path, "metrics.jsonl") > 0 || size_of(path, "ckpt") >= 0);
    if (!status && mode == RUN_RESUME)
        status = find_checkpoint(d, err);
    else if (there && mode == RUN_NEW)
        status = fs_fail(err, MOE_E_ARG, path, "holds a run already; give --resume, --overwrite or another --out");
    else
        d->replace = there;
    if (status) run_dir_close(d);
    return status;
}

static moe_status write_recipe(const run_dir *d, const char *text, moe_err *err) {
    char *path = fs_join(d->path, "recipe.ini"), *part = fs_join(d->path, ".recipe.ini.part");
    moe_status status = MOE_OK;
    if (!path || !part)
        status = fs_fail(err, MOE_E_NOMEM, d->path, "out of memory");
    else
        status = fs_save(part, text, strlen(text), err);
    if (!status && rename(part, path)) status = fs_fail(err, MOE_E_IO, path, "%m");
    if (status && part) unlink(part);
    free(path);
    free(part);
    return status;
}

static moe_status check_recipe(const run_dir *d, const char *text, moe_err *err) {
    char *path = fs_join(d->path, "recipe.ini"), *old = NULL;
    uint64_t n = 0;
    moe_status status =
        path ? fs_load(path, 1u << 30, &old, &n, err) : fs_fail(err, MOE_E_NOMEM, d->path, "out of memory");
    if (!status && (n != strlen(text) || memcmp(old, text, n) != 0))
        status = fs_fail(err, MOE_E_ARG, d->path,
                         "there is no checkpoint to resume from, and its recipe.ini is not this one; give --overwrite "
                         "or another --out");
    free(old);
    free(path);
    return status;
}

moe_status run_dir_begin(const run_dir *d, const char *recipe_text, moe_err *err) {
    moe_status status = MOE_OK;
    if (d->again) status = check_recipe(d, recipe_text, err);
    if (!status && d->replace) status = remove_run(d, err);
    return status ? status : write_recipe(d, recipe_text, err);
}

/* What the other ranks need of it. */
typedef struct run_start {
    int32_t status, again;
    int64_t first_step;
    moe_err err;
    char checkpoint[4096]; /* "" = none */
} run_start;

moe_status run_dir_share(run_dir *d, const moe_bootstrap *b, moe_status status, moe_err *err) {
    run_start own = {0}, *all = calloc(b->world, sizeof *all);
    if (b->rank == 0) {
        own = (run_start){.status = status, .again = d->again, .first_step = d->first_step, .err = *err};
        if (!status && d->checkpoint) snprintf(own.checkpoint, sizeof own.checkpoint, "%s", d->checkpoint);
    }
    moe_status met = all ? b->all_gather(b->ctx, &own, sizeof own, all, err)
                         : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", b->world);
    if (!met && b->rank) {
        *d = (run_dir){.path = d->path, .lock = -1, .first_step = all[0].first_step, .again = all[0].again};
        if (all[0].checkpoint[0]) d->checkpoint = strdup(all[0].checkpoint);
        if (all[0].checkpoint[0] && !d->checkpoint) met = moe_fail(err, MOE_E_NOMEM, "out of memory");
    }
    if (!met && all[0].status) *err = all[0].err, met = all[0].status;
    free(all);
    return met;
}

int run_dir_is_checkpoint(const char *path) {
    return size_of(path, "meta.json") >= 0;
}

moe_status run_dir_take_checkpoint(const char *given, char **dir, moe_err *err) {
    char *last = NULL;
    int64_t step = -1;
    moe_status status = MOE_OK;
    if (!run_dir_is_checkpoint(given) && size_of(given, "ckpt") >= 0) {
        status = ckpt_latest(given, &last, &step, err);
        if (!status && last)
            status =
                fs_fail(err, MOE_E_ARG, given, "is the directory of a run; give a checkpoint of it: --ckpt %s", last);
        else if (!status)
            status = fs_fail(err, MOE_E_ARG, given, "is the directory of a run without a checkpoint");
    }
    free(last);
    if (status) return status;
    *dir = strdup(given);
    return *dir ? MOE_OK : fs_fail(err, MOE_E_NOMEM, given, "out of memory");
}

void run_dir_close(run_dir *d) {
    if (d->lock >= 0) close(d->lock);
    free(d->checkpoint);
    *d = (run_dir){.lock = -1};
}
