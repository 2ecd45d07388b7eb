/* A small whole checkpoint in the scratch directory, and the check that the newest one is whole: what the tests of
 * checkpoints share. */
#ifndef TESTS_CORE_IO_PUT_CHECKPOINT_H
#define TESTS_CORE_IO_PUT_CHECKPOINT_H
#include "core/io/scratch.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"

/* Writes one tensor "w" of `bytes` bytes of this value into the checkpoint. */
static inline moe_status put_tensor(const ckpt *c, const char *file, int64_t bytes, int value, moe_err *err) {
    char block[4096], path[600];
    st_writer *w = NULL;
    memset(block, value, sizeof block);
    snprintf(path, sizeof path, "%s/%s", ckpt_path(c), file);
    moe_status s = st_writer_create(path, &w, err);
    if (s != MOE_OK) return s;
    s = st_writer_declare(w, "w", MOE_U8, 1, &bytes, err);
    for (int64_t at = 0; s == MOE_OK && at < bytes; at += (int64_t)sizeof block) {
        int64_t n = bytes - at < (int64_t)sizeof block ? bytes - at : (int64_t)sizeof block;
        s = st_write(w, block, (uint64_t)n, err);
    }
    if (s == MOE_OK) return st_writer_finish(w, err);
    st_writer_abort(w);
    return s;
}

/* A whole checkpoint of two files and two keys. */
static inline moe_status put_checkpoint(const char *run, int64_t step, int64_t bytes, int value, moe_err *err) {
    ckpt *c = NULL;
    moe_status s = ckpt_begin(run, step, &c, err);
    if (s != MOE_OK) return s;
    s = put_tensor(c, "model.safetensors", bytes, value, err);
    if (s == MOE_OK) s = put_tensor(c, "optimizer.safetensors", 100, value + 1, err);
    if (s == MOE_OK) s = ckpt_add_key(c, "w", err);
    if (s == MOE_OK) s = ckpt_add_key(c, "adam.w", err);
    if (s == MOE_OK) s = ckpt_set(c, "recipe", "[run]\nsteps = 3\n", err);
    if (s == MOE_OK) return ckpt_commit(c, err);
    ckpt_abort(c);
    return s;
}

/* The newest one opens and verifies; its step. */
static inline int64_t check_latest(void) {
    char *dir = NULL;
    int64_t step = -1;
    ckpt_view *view = NULL;
    ck_ok(ckpt_latest(scratch_dir, &dir, &step, err));
    ck_assert_ptr_nonnull(dir);
    ck_ok(ckpt_open(dir, &view, err));
    ck_assert_int_eq(view->step, step);
    ckpt_close(view);
    free(dir);
    return step;
}

#endif
