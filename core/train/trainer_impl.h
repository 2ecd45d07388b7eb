/* What the files of the trainer share: trainer.c, watch.c, staging.c, ends.c, dump.c, state.c, measure.c. */
#ifndef CORE_TRAIN_TRAINER_IMPL_H
#define CORE_TRAIN_TRAINER_IMPL_H
#include "exec/watchdog.h"
#include "train/trainer.h"

enum { PROGRAM_TRAIN, PROGRAM_EVAL, PROGRAM_LOGITS, PROGRAM_DUMP, PROGRAMS };

struct trainer {
    trainer_cfg cfg;
    mesh mesh;
    parts *parts;
    model *model;
    mesh_groups groups;
    exec_group group_names[MESH_GROUPS]; /* the same with names and members */
    exec_groups named_groups;
    uint32_t *group_ranks;
    watchdog *dog; /* NULL with one rank */
    uint32_t dp_rank, n_micro;
    staging staging;
    void *staging_block; /* host memory of the device, holds all of staging */
    uint64_t staging_bytes;
    program programs[PROGRAMS];
    exec_lanes lanes;
    exec_span *spans;          /* [nodes of the training program], NULL = nobody watches */
    void *arena, *lazy, *host; /* of all programs: one runs at a time */
    uint64_t arena_bytes, lazy_bytes, host_bytes;
};

/* watch.c: starts the watchdog; then, with the groups made or not, names them and shows it the lanes. */
moe_status watch_start(trainer *t, const parts_cfg *with, moe_err *err);
moe_status watch_groups(trainer *t, moe_err *err);
/* ends.c: runs a program. Besides what program_run returns: an error that a call has reported in its data, on this rank
 * or another, which ends the run of all; and the end of an asynchronous comm. */
moe_status trainer_run(trainer *t, int which, moe_err *err);
/* staging.c: allocates and lays out t->staging; logits of the staging [T, vocab] as FP32. */
moe_status staging_make(trainer *t, moe_err *err);
void staging_logits(const trainer *t, float *out);

#endif
