/* Checkpoints: a directory <run>/ckpt/step-00000100/ of safetensors (or any) files and meta.json: version, step, the
 * list of state keys, a free map of strings, and size and XXH3-64 of every file. It is made under a temporary name,
 * synced, and renamed, so at every moment - full disk, kill, power loss - the names step-* are whole checkpoints.
 * One rank begins and commits; other ranks may write files of their own into ckpt_path in between. */
#ifndef CORE_IO_CHECKPOINT_H
#define CORE_IO_CHECKPOINT_H
#include <moe/base.h>
#include <stdint.h>

enum { CKPT_VERSION = 1 };

/* ---- writing; one thread at a time ---- */
typedef struct ckpt ckpt;

/* Makes <run_dir>/ckpt and an empty temporary directory in it, after removing what killed runs left there. step >= 0.
 * MOE_E_ARG: negative step; MOE_E_IO: the directory cannot be made. */
moe_status ckpt_begin(const char *run_dir, int64_t step, ckpt **out, moe_err *err);
/* The directory to write files into: flat, no subdirectories. Lives until commit or abort. */
const char *ckpt_path(const ckpt *c);
/* Adds a state key (a tensor's or state's global name). MOE_E_ARG: a duplicate, not UTF-8. */
moe_status ckpt_add_key(ckpt *c, const char *key, moe_err *err);
/* Sets a string of the free map (resolved recipe, counters, ...), replacing an earlier value. */
moe_status ckpt_set(ckpt *c, const char *name, const char *value, moe_err *err);
/* Checksums, meta.json, sync: the long part of ckpt_commit, which does it too. Nothing is added to c afterwards. */
moe_status ckpt_prepare(ckpt *c, moe_err *err);
/* Prepares, renames; replaces a checkpoint of the same step. Frees c; on failure the temporary
 * directory is gone and earlier checkpoints are as they were. */
moe_status ckpt_commit(ckpt *c, moe_err *err);
void ckpt_abort(ckpt *c); /* removes the temporary directory, frees c; NULL is fine */

/* ---- the checkpoints of a run ---- */
/* Removes what killed runs left, and all checkpoints but the newest `keep` (>= 1) and those of steps that keep_every
 * (>= 0; 0 = none) divides. MOE_E_ARG: another number. Not between begin and commit. */
moe_status ckpt_prune(const char *run_dir, int64_t keep, int64_t keep_every, moe_err *err);
/* The newest: its directory, in new memory that the caller frees, and step. None: *dir = NULL, *step = -1, MOE_OK. */
moe_status ckpt_latest(const char *run_dir, char **dir, int64_t *step, moe_err *err);

/* ---- reading; an open view is constant: any thread ---- */
typedef struct ckpt_view {
    const char *dir;
    int64_t step;
    uint64_t n_keys, n_files;
    const char *const *keys;  /* [n_keys], in the order of ckpt_add_key */
    const char *const *files; /* [n_files], whole paths, sorted */
    struct json_t *meta;      /* owns the strings */
} ckpt_view;

/* Reads meta.json and verifies version, fields and every checksum. MOE_E_IO: not there; MOE_E_DATA: a version unknown
 * here; damaged, naming the file; a field or file that does not belong - what is not listed was not verified. Hidden
 * names (.nfs0123, .DS_Store) are let be: nothing reads them. *out is set on success only; ckpt_close frees it. */
moe_status ckpt_open(const char *dir, ckpt_view **out, moe_err *err);
void ckpt_close(ckpt_view *view); /* NULL is fine */
/* A string of the free map, NULL when not there; lives as long as the view. */
const char *ckpt_get(const ckpt_view *view, const char *name);
/* Strict load: the checkpoint's keys are exactly wanted[n], in any order. Else MOE_E_DATA with the first missing and
 * the first unknown key and how many there are of each. */
moe_status ckpt_check_keys(const ckpt_view *view, const char *const *wanted, uint64_t n, moe_err *err);
#endif
