/* The directory of a run: recipe.ini, metrics.jsonl, ckpt/, and a lock that keeps a second process out. */
#ifndef HOST_RUN_DIR_H
#define HOST_RUN_DIR_H
#include <moe/base.h>
#include <stdint.h>

enum { RUN_NEW, RUN_RESUME, RUN_OVERWRITE };

typedef struct run_dir {
    const char *path;
    int lock;           /* descriptor, -1 = none */
    int64_t first_step; /* to compute next: 1, or the checkpoint's + 1 */
    char *checkpoint;   /* directory to load, NULL = none; owned */
    int replace;        /* an old run is to be removed by run_dir_begin */
    int again;          /* the run that is resumed has no checkpoint yet */
} run_dir;

/* Makes the directory (and its parents), takes the lock, decides what a run that is already there means: RUN_NEW
 * refuses it with MOE_E_ARG, RUN_RESUME finds the newest checkpoint, RUN_OVERWRITE will remove it. Resuming a run that
 * ended before its first checkpoint starts it again; where there is no run (no checkpoint, no recipe.ini): MOE_E_ARG.
 * Nothing of an old run is touched before run_dir_begin. */
moe_status run_dir_open(run_dir *d, const char *path, int mode, moe_err *err);
/* The run is sure to start: removes the old one where it is to be replaced, and writes recipe.ini, whole or not at all.
 * A run that starts again must be the same, to the byte of recipe.ini: else its lines of metrics would be lost, which
 * only the same recipe brings back (MOE_E_ARG). */
moe_status run_dir_begin(const run_dir *d, const char *recipe_text, moe_err *err);
/* [main, collective] Every rank gets what rank 0 has opened, or its failure; only rank 0 has the lock and writes.
 * status: of rank 0's run_dir_open. On the other ranks d needs a path only. */
moe_status run_dir_share(run_dir *d, const moe_bootstrap *b, moe_status status, moe_err *err);
void run_dir_close(run_dir *d);

/* A checkpoint's folder as a user gives it: *dir is a copy, which the caller frees. MOE_E_ARG where it is the directory
 * of a run, with the name of its last checkpoint. What else is wrong with it ckpt_open says. */
moe_status run_dir_take_checkpoint(const char *given, char **dir, moe_err *err);
/* Is path itself a checkpoint's folder (meta.json)? */
int run_dir_is_checkpoint(const char *path);

#endif
