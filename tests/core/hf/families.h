/* One tiny model of each Hugging Face family, and mixtures that no family has, for the tests of core/hf. */
#ifndef TESTS_CORE_HF_FAMILIES_H
#define TESTS_CORE_HF_FAMILIES_H
#include <hf/device.h>
#include <hf/load.h>
#include <hf/save.h>
#include <stdlib.h>

#include "core/io/scratch.h"
#include "rig.h"
#include "train/trainer_impl.h"

enum { FAMILY_MIXED = HF_STYLES, FAMILY_MIXED_LATENT, FAMILY_DENSE, FAMILIES };

static const char *const family_names[FAMILIES] = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3",
                                                   "gpt_oss", "mixed",     "latent",    "dense"};

static inline void family_deepseek(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    m->attention = ATTENTION_MLA;
    m->kv_heads = m->heads;
    m->q_lora = 12;
    m->kv_lora = 10;
    m->head_dim = 12;
    m->rope.dim = 4;
    m->v_dim = 6;
    m->dense_layers = 1;
    m->shared_ffn = 48;
    c->router[0] = (moe_kv){"score", "sigmoid"};
    c->router[1] = (moe_kv){"expert_bias", "true"};
}

static inline void family_gpt_oss(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    m->sinks = m->expert_biases = m->router_bias = m->qkv_bias = m->out_bias = 1;
    m->activation = ACTIVATION_CLAMPED_SWIGLU;
    m->window = 5;
    m->sliding[0] = 1;
    c->router[0] = (moe_kv){"order", "after"};
}

/* Programs for logits only: no data, no gradients. seed: of the initial values. */
static inline rig_cfg family_cfg(int family, uint64_t seed) {
    rig_cfg c = rig_default();
    model_cfg *m = &c.trainer.model;
    c.trainer.programs = TRAINER_LOGITS;
    m->seed = seed;
    m->vocab = 80;
    m->micro = 1;
    if (family == HF_QWEN2_MOE) m->qkv_bias = m->shared_gate = 1, m->shared_ffn = 20;
    if (family == HF_QWEN3_MOE) m->qk_norm = QK_NORM_HEAD, m->dense_layers = 1, m->head_dim = 6, m->tied = 1;
    if (family == HF_OLMOE) m->qk_norm = QK_NORM_FULL;
    if (family == HF_DEEPSEEK_V3) family_deepseek(&c);
    if (family == HF_GPT_OSS) family_gpt_oss(&c);
    if (family == FAMILY_MIXED) { /* shared experts with a gate, router bias, norms, and a bias that is state */
        m->qk_norm = QK_NORM_HEAD;
        m->qkv_bias = m->out_bias = m->router_bias = m->shared_gate = 1;
        m->shared_ffn = 20;
        m->dense_layers = 1;
        c.router[0] = (moe_kv){"expert_bias", "true"};
    }
    if (family == FAMILY_MIXED_LATENT) { /* latent attention with parts of gpt-oss */
        family_deepseek(&c);
        m->q_lora = 0;
        m->sinks = m->expert_biases = m->router_bias = m->out_bias = m->shared_gate = 1;
    }
    if (family == FAMILY_DENSE) m->experts = m->top_k = 0;
    return c;
}

static inline void family_open(rig *r, int family, uint64_t seed) {
    rig_cfg c = family_cfg(family, seed);
    rig_open(r, &c, NULL);
}

/* Other values than the initial ones, which are all alike for norms and biases, in every parameter and expert bias:
 * number k of the arena is k / 64 + seed, exact in BF16 only for some. */
static inline void family_fill(rig *r, float seed) {
    const model *m = r->t->model;
    int64_t n = 0;
    for (uint32_t i = 0; i < m->params.n; i++) {
        const param *p = &m->params.at[i];
        for (int64_t k = 0; k < p->count; k++) m->params.master[p->offset + k] = (float)n++ / 64 + seed;
    }
    for (uint32_t l = 0; l < m->cfg.layers; l++)
        for (uint32_t i = 0; i < m->routers[l].needs.n_state; i++)
            for (int64_t k = 0; k < m->routers[l].needs.state[i].shape[0]; k++)
                ((float *)m->routers[l].state[i])[k] = (float)(l + 1) / 7 - (float)k;
}

/* Do the two trainers hold the same bits in every parameter and state? */
static inline int family_same(const rig *a, const rig *b) {
    const model *x = a->t->model, *y = b->t->model;
    ck_assert_uint_eq(x->params.n, y->params.n);
    for (uint32_t i = 0; i < x->params.n; i++) {
        const param *p = &x->params.at[i];
        if (memcmp(x->params.master + p->offset, y->params.master + p->offset, (size_t)p->count * 4) != 0) return 0;
    }
    for (uint32_t l = 0; l < x->cfg.layers; l++)
        for (uint32_t i = 0; i < x->routers[l].needs.n_state; i++)
            if (memcmp(x->routers[l].state[i], y->routers[l].state[i],
                       (size_t)x->routers[l].needs.state[i].shape[0] * 4) != 0)
                return 0;
    return 1;
}

static inline const char *family_save(const rig *r, const char *name, int32_t dtype, uint64_t shard_bytes) {
    const char *dir = scratch_path(name);
    const hf_save_options o = {.dtype = dtype, .shard_bytes = shard_bytes, .config = "{}\n"};
    ck_ok(hf_save(r->t, dir, &o, err));
    return dir;
}

static inline const hf_tensor *family_find(const hf_map *map, const char *name) {
    for (uint32_t i = 0; i < map->n; i++)
        if (strcmp(map->at[i].name, name) == 0) return &map->at[i];
    return NULL;
}
#endif
