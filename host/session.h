/* Session: what a recipe and its plugins come to - everything that a run, a check or a generation needs, with no INI
 * and no file search left in it. Made by wire.c. */
#ifndef HOST_SESSION_H
#define HOST_SESSION_H
#include <parts/parts.h>
#include <train/trainer.h>

#include "ranks.h"

typedef struct session {
    char name[128];
    char out[4096]; /* run directory */
    int64_t steps, log_every, eval_every, eval_batches;
    int64_t trace; /* steps to trace */
    int64_t ckpt_every, ckpt_keep, ckpt_keep_every;
    uint32_t ranks;             /* all of the run */
    struct launch *launch;      /* owned; NULL: the ranks are threads of this process */
    mesh mesh;                  /* of trainer.mesh */
    const char *weights;        /* folder of a Hugging Face model to start from; NULL = initial values; the recipe's */
    trainer_cfg trainer;        /* programs and data as asked of wire */
    parts_cfg parts;            /* rank, world and bootstrap: by session_trainer */
    part_ref *routers;          /* [layers] owned */
    data_reader *data;          /* owned; NULL without data */
    char *resolved;             /* text of the fully resolved recipe, owned */
    char *loaded;               /* versions and hashes of the plugins, to compare across ranks; owned */
    struct wire_memory *memory; /* options of the plugins, owned */
    struct recipe *recipe;      /* owned, as the loader */
    struct loader *loader;
} session;

void session_free(session *s);

/* [main, collective] Runs the ranks of a session: as threads (ranks.h), or as this process and others (launch.h). */
moe_status session_run(const session *s, ranks_fn fn, void *arg, moe_err *err);
/* 1 where this process is to say what happens, and why something failed: rank 0, or all ranks are its threads. */
int session_speaks(const session *s);
/* 1 where values of this rank are needed: on rank 0, and on every process for itself. */
int session_keeps(const session *s, uint32_t rank);

/* [main, collective] The trainer of one rank, as cfg says: s->trainer, or a changed copy of it. bootstrap: of
 * session_run; it says which rank of how many. */
moe_status session_trainer(const session *s, const trainer_cfg *cfg, const moe_bootstrap *bootstrap, trainer **out,
                           moe_err *err);

#endif
