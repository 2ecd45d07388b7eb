/* Host memory of a rank that batches and results pass through. */
#include <string.h>

#include "train/trainer_impl.h"

/* One block of host memory, cut in pieces at 64-byte boundaries; without a base only the size is counted. */
typedef struct cutter {
    char *base;
    uint64_t used;
} cutter;

static void *cut(cutter *c, uint64_t bytes) {
    char *piece = c->base ? c->base + c->used : NULL;
    c->used += (bytes + 63) / 64 * 64;
    return piece;
}

static void lay_taps(trainer *t, cutter *at, uint64_t tokens) {
    const model_cfg *c = &t->cfg.model;
    taps *to = &t->staging.taps;
    to->logits = t->staging.logits;
    to->router_logits = cut(at, c->layers * sizeof *to->router_logits);
    to->expert_ids = cut(at, c->layers * sizeof *to->expert_ids);
    to->expert_weights = cut(at, c->layers * sizeof *to->expert_weights);
    for (uint32_t l = 0; l < c->layers; l++) {
        if (!model_layer_is_moe(c, l)) continue;
        float *logits = cut(at, tokens * c->experts * 4);
        int32_t *ids = cut(at, tokens * c->top_k * 4);
        float *weights = cut(at, tokens * c->top_k * 4);
        if (!at->base) continue;
        to->router_logits[l] = logits;
        to->expert_ids[l] = ids;
        to->expert_weights[l] = weights;
    }
}

static void lay(trainer *t, char *base) {
    const model_cfg *c = &t->cfg.model;
    uint64_t tokens = (uint64_t)(c->micro * c->seq), all = tokens * t->n_micro;
    cutter at = {base, 0};
    staging *s = &t->staging;
    s->tokens = cut(&at, all * 4);
    s->targets = cut(&at, all * 4);
    if (c->documents) {
        s->docs = cut(&at, all * 4);
        s->mask = cut(&at, all);
    }
    s->hyper = cut(&at, 16);
    s->stop = cut(&at, 8);
    s->stats = cut(&at, (2 + (uint64_t)c->layers * MODEL_MAX_LOSSES) * 8);
    s->counts = cut(&at, (uint64_t)c->layers * c->experts * 8);
    s->drops = cut(&at, 16);
    s->valid = cut(&at, 8);
    s->sent = cut(&at, 64);
    s->routed = cut(&at, 16);
    s->fault = cut(&at, 64);
    s->norm = cut(&at, 8);
    s->step = cut(&at, sizeof *s->step);
    if (t->cfg.programs & (TRAINER_LOGITS | TRAINER_DUMP)) s->logits = cut(&at, tokens * (uint64_t)c->vocab * 4);
    if (t->cfg.programs & TRAINER_DUMP) lay_taps(t, &at, tokens);
    t->staging_bytes = at.used;
}

moe_status staging_make(trainer *t, moe_err *err) {
    lay(t, NULL);
    moe_status status =
        t->parts->device->alloc(t->parts->device_self, MOE_SPACE_HOST, t->staging_bytes, &t->staging_block, err);
    if (!status) lay(t, t->staging_block);
    return status;
}

void staging_logits(const trainer *t, float *out) {
    const model_cfg *c = &t->cfg.model;
    int64_t n = c->micro * c->seq * c->vocab;
    const uint16_t *half = t->staging.logits;
    if (t->model->act == MOE_F32) {
        memcpy(out, t->staging.logits, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)half[i] << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}
