/* What follows from a model's sizes. */
#include "model/config.h"

#include <math.h>

#include "model/model.h"

void model_cfg_complete(model_cfg *c) {
    if (!c->v_dim) c->v_dim = c->head_dim;
    if (!c->rope.dim) c->rope.dim = c->head_dim;
    if (c->rope.factor < 1) c->rope.factor = 1;
    if (c->activation != ACTIVATION_CLAMPED_SWIGLU) return;
    if (c->activation_alpha <= 0) c->activation_alpha = 1.702f;
    if (c->activation_limit <= 0) c->activation_limit = 7;
}

/* ceil(factor * tokens * k / experts) as Megatron Core counts it, at least 1, and at most every token of the scope. */
model_capacity model_capacity_of(const model_cfg *c) {
    model_capacity cap = {.scope = c->capacity_scope == CAPACITY_SEQUENCE ? c->seq : c->seq * c->micro};
    if (c->capacity <= 0 || !c->experts) return cap;
    double share = ceil((double)c->capacity * (double)cap.scope * c->top_k / c->experts);
    cap.choices = share < 1 ? 1 : share > (double)cap.scope ? cap.scope : (int64_t)share;
    cap.rows = cap.choices * (c->seq * c->micro / cap.scope);
    return cap;
}
