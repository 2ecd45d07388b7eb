/* Opening a run directory without ever taking another's place. */
#include "run_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <io/checkpoint.h>
#include <io/fs.h>
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
        status = fs_fail(err, MOE_E_DATA, path, "%m");
    else if (flock(d->lock, LOCK_EX | LOCK_NB))
        status = fs_fail(err, MOE_E_ARG, d->path, "another process is running in this directory");
    free(path);
    return status;
}

static int exists(const char *dir, const char *name) {
    char *path = fs_join(dir, name);
    int yes = path && access(path, F_OK) == 0;
    free(path);
    return yes;
}

/* A run that ended before its first step leaves an empty file: nothing to protect. */
static int holds_bytes(const char *dir, const char *name) {
    struct stat st;
    char *path = fs_join(dir, name);
    int yes = path && stat(path, &st) == 0 && st.st_size > 0;
    free(path);
    return yes;
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
    if (!status && !d->checkpoint) status = fs_fail(err, MOE_E_ARG, d->path, "there is no checkpoint to resume from");
    if (!status) d->first_step = step + 1;
    return status;
}

moe_status run_dir_open(run_dir *d, const char *path, int mode, moe_err *err) {
    *d = (run_dir){.path = path, .lock = -1, .first_step = 1};
    moe_status status = fs_make_dirs(path, err);
    if (!status) status = take_lock(d, err);
    int there = !status && (holds_bytes(path, "metrics.jsonl") || exists(path, "ckpt"));
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
    if (!status && rename(part, path)) status = fs_fail(err, MOE_E_DATA, path, "%m");
    free(path);
    free(part);
    return status;
}

moe_status run_dir_begin(const run_dir *d, const char *recipe_text, moe_err *err) {
    moe_status status = d->replace ? remove_run(d, err) : MOE_OK;
    return status ? status : write_recipe(d, recipe_text, err);
}

void run_dir_close(run_dir *d) {
    if (d->lock >= 0) close(d->lock);
    free(d->checkpoint);
    *d = (run_dir){.lock = -1};
}
