/* A whole rank for tests: a small model, the built plugins and a data reader over made-up text. The device is the one
 * that the environment names (plugin_open.h), and so are its plugins. */
#ifndef TESTS_CORE_RIG_H
#define TESTS_CORE_RIG_H
#include <check.h>
#include <train/trainer.h>

#include "plugins/comm/ranks.h"

enum { RIG_LAYERS = 1024 }; /* at most */

typedef struct rig_cfg {
    trainer_cfg trainer;
    const char *precision; /* "fp32", "bf16" */
    uint32_t world;
    const char *threads;               /* compute threads of each rank, on the CPU */
    moe_kv router[16];                 /* options that differ from the defaults; ends with key NULL */
    moe_kv comm_options[4];            /* the same of the comm */
    const moe_scheduler_v0 *scheduler; /* NULL = the built serial */
    const moe_kv *scheduler_kv;        /* [n] for it */
    uint64_t n_scheduler_kv;
    const moe_device_v0 *device;               /* NULL = the built one, whose instances it gets */
    const moe_comm_v0 *comm;                   /* NULL = the built threads */
    const moe_precision_v0 *precision_table;   /* for the options of `precision`; NULL = it */
    const moe_router_v0 *router_table;         /* for the options of topk; NULL = the built topk */
    const char *dispatcher;                    /* NULL = "local" */
    const moe_dispatcher_v0 *dispatcher_table; /* for the options of `dispatcher`; NULL = it */
} rig_cfg;

/* A model of 2 layers (first n dense), 4 experts, top-2, hidden 32, seq 16, on FP32, SGD, one rank. */
rig_cfg rig_default(void);

/* Balance loss per sequence, so that a choice never sees how sequences are grouped, and z-loss: router[0..2]. */
void rig_balance(rig_cfg *c);

/* Made-up text, the same in every process, of one file, or of many short ones that are documents. */
data_reader *rig_data(int64_t seq, int documents);

/* The trainer of one rank. env: from ranks_run, or NULL for one rank. parts are kept until rig_close. */
typedef struct rig {
    trainer *t;
    data_reader *data;
    parts_cfg parts;
    part_ref routers[RIG_LAYERS];
    moe_kv kv[5][24];
} rig;
void rig_open(rig *r, const rig_cfg *cfg, rank_env *env);
/* As rig_open, but returns the error instead of failing the test. */
moe_status rig_try_open(rig *r, const rig_cfg *cfg, rank_env *env, moe_err *err);
void rig_close(rig *r);

/* Can so many ranks be threads of this process? On device/cpu; elsewhere up to MOE_TEST_RANKS (default 1), as
 * comm/threads must read the device's memory. */
int rig_has_ranks(uint32_t n);

/* Bytes of the rank's device memory, between steps: read, written, all the same. */
void rig_get(const rig *r, void *to, const void *device_memory, uint64_t bytes);
void rig_set(const rig *r, void *device_memory, const void *from, uint64_t bytes);
void rig_fill(const rig *r, void *device_memory, uint8_t byte, uint64_t bytes);

/* Once, ahead of tests that start several ranks at once: what libraries make once for a process is made by one thread,
 * as ThreadSanitizer cannot see how they guard it. */
void rig_warm(void);

/* Runs optimiser step number `step`; fails the test when the step fails. */
step_result rig_step(rig *r, int64_t step);

/* trainer_save into dir, by all ranks: rank 0 makes it and writes. */
void rig_save(const rig *r, const char *dir);

/* All gradients (or weights), by all ranks, whole and in order of the table; owned by the caller (free). */
float *rig_tensors(const rig *r, int gradient, int64_t *count);
/* Largest |a - b| / largest |b| over whole tensors of the table. */
double rig_difference(const rig *r, const float *a, const float *b);

#endif
