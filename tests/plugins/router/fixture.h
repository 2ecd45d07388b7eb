/* Drives one router instance of a built plugin as the host does: options with defaults, buffers between guard bytes,
 * route, route_bwd and end_step. Tests fill the public arrays, call, and read them. Where the environment names another
 * device than the CPU (plugin_open.h), a process opens it once: the arrays are its memory that both sides see, and
 * calls go on its stream. */
#ifndef TESTS_ROUTER_FIXTURE_H
#define TESTS_ROUTER_FIXTURE_H
#include <moe/plugin.h>

#include "plugins/device/device_open.h"

/* For inner loops: an assert of Check writes to a pipe even when it holds. */
#define check_that(cond, ...)                   \
    do {                                        \
        if (!(cond)) ck_abort_msg(__VA_ARGS__); \
    } while (0)

typedef struct rig {
    const moe_router_v0 *table;
    void *self;
    moe_router_needs needs;
    moe_err err;
    test_host host;
    char warning[256]; /* the last line that the plugin logged as warning or error */
    int64_t tokens, experts, k, seq_len, divisor, first_token;
    uint64_t step; /* 1 after rig_open */
    uint32_t flags;
    int silent;    /* 1: counts and losses absent, as in evaluation and recompute */
    float *logits; /* [T,E] */
    uint8_t *mask; /* [T], all live; given only while masked is 1 */
    int masked;
    int32_t *ids;    /* [T,k] */
    float *weights;  /* [T,k] */
    int64_t *counts; /* [E] */
    /* [E] choices over the global batch, for an instance whose losses depend on it. Unless batch_given is 1, backward
     * takes the call for the whole batch: it sets batch and divisor from ids and mask */
    int64_t *batch;
    int batch_given;
    double *losses;          /* [3] aux_loss, z_loss, entropy */
    float *d_weights;        /* [T,k] */
    float *d_logits;         /* [T,E] */
    float *bias;             /* [E], the state if the instance has one */
    float *update;           /* [2] gradient norm, clip coefficient: 1, 1 */
    void *workspace, *saved; /* device memory */
    uint64_t *step_there;    /* [1] step and divisor where the device sees them, from each call on */
    int64_t *divisor_there;  /* [1] */
    void *blocks[16];        /* what the arrays above lie in */
    int n_blocks;
} rig;

/* Creates an instance only. options: "key=value key=value" over the published defaults. *self is NULL on failure. */
moe_status rig_create(const char *id, int64_t experts, int64_t k, int64_t tokens, const char *options,
                      const moe_host *host, void **self, moe_err *err);
/* The same with layer and seed, which are 3 and 1 above. */
moe_status rig_create_at(const char *id, uint32_t layer, uint64_t seed, int64_t experts, int64_t k, int64_t tokens,
                         const char *options, const moe_host *host, void **self, moe_err *err);
/* Creation fails, and the message, one line, holds both words. */
void rig_refuses(const char *id, int64_t experts, int64_t k, const char *options, const char *a, const char *b);
/* The same of identity experts and of negative tokens; without options, the published defaults are taken. */
void rig_refuses_cfg(const char *id);
/* The published options are keys [n], each with a default and some help. */
void rig_has_options(const char *id, const char *const *keys, uint32_t n);
/* Of an instance for 4 tokens, 8 experts, top-2: calls with other shapes fail and name them. The shapes are as before.
 */
void rig_refuses_shapes(rig *r);
/* Instance (layer 3) and zeroed buffers; fails the test on an error. services may be NULL. */
void rig_open(rig *r, const char *id, int64_t tokens, int64_t experts, int64_t k, const char *options,
              const test_service *services);
void rig_close(rig *r); /* fails the test when a guard byte has changed */
void rig_check_guards(const rig *r);

/* Every byte of the workspace. */
void rig_fill_workspace(rig *r, unsigned char byte);

/* Does a call return what it finds in the data? Then it has written nothing. Otherwise it has returned by then. */
int rig_is_synchronous(void);
/* A call, whose status is s, found bad data: MOE_E_DATA with exactly this text, or a fault of layer 3 at this token and
 * column (DEVICE_OPEN_ANY: any; of several bad tokens a device may name any). */
void rig_expect_data(const rig *r, moe_status s, int64_t token, int64_t column, const char *text);
/* The same of numbers that no layer of the host lets through: a status and words on the CPU, any error elsewhere. */
void rig_expect_bad(const rig *r, moe_status s, moe_status code, const char *words);

moe_status rig_route(rig *r);
moe_status rig_bwd(rig *r);
moe_status rig_end_step(rig *r); /* bias, counts and update of the rig */

/* Reproducible values: uniform in [0,1), and arrays of about normal ones. */
double rig_uniform(uint64_t *seed);
void rig_random(float *out, int64_t n, double spread, uint64_t seed);

#endif
