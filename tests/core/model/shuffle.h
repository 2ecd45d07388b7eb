/* A scheduler for tests that draws a random topological order. Options: "seed" of the order, and "buckets" of the
 * gradients (0 or absent: 1 to 5, by the seed). */
#ifndef TESTS_SHUFFLE_H
#define TESTS_SHUFFLE_H
#include <moe/options.h>
#include <moe/random.h>
#include <moe/scheduler.h>
#include <stdlib.h>

typedef struct shuffler {
    uint64_t seed;
    uint32_t buckets;
} shuffler;

static moe_status shuffle_create(const moe_scheduler_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)host;
    shuffler *s = malloc(sizeof *s);
    if (!s) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    s->seed = (uint64_t)moe_kv_int(cfg->kv, cfg->n_kv, "seed", 0);
    s->buckets = (uint32_t)moe_kv_int(cfg->kv, cfg->n_kv, "buckets", 0);
    if (s->buckets == 0) s->buckets = 1 + (uint32_t)(s->seed % 5);
    *self = s;
    return MOE_OK;
}
static moe_status shuffle_shape(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err) {
    (void)in;
    (void)err;
    out->n_buckets = ((const shuffler *)self)->buckets;
    return MOE_OK;
}
static moe_status shuffle_order(const void *self, const moe_sched_view *v, uint32_t *order, moe_err *err) {
    const shuffler *s = self;
    uint32_t *ready = malloc((v->n_nodes + 1) * sizeof *ready), *left = calloc(v->n_nodes + 1, sizeof *left);
    if (!ready || !left) return moe_fail(err, MOE_E_NOMEM, "out of memory");
    uint32_t n_ready = 0;
    moe_random_key key = moe_random_key_make(s->seed, MOE_RANDOM_SAMPLE, "order");
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        left[i] = v->pred_start[i + 1] - v->pred_start[i];
        if (!left[i]) ready[n_ready++] = i;
    }
    for (uint32_t at = 0; at < v->n_nodes; at++) {
        uint32_t k = moe_random_words(key, at, 0).v[0] % n_ready, node = ready[k];
        ready[k] = ready[--n_ready];
        order[at] = node;
        for (uint32_t i = node + 1; i < v->n_nodes; i++)
            for (uint32_t e = v->pred_start[i]; e < v->pred_start[i + 1]; e++)
                if (v->pred[e] == node && --left[i] == 0) ready[n_ready++] = i;
    }
    free(ready);
    free(left);
    return MOE_OK;
}
static const moe_scheduler_v0 shuffle_table = {.size = sizeof shuffle_table,
                                               .create = shuffle_create,
                                               .destroy = free,
                                               .shape = shuffle_shape,
                                               .order = shuffle_order};
#endif
