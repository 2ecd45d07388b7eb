/* Every combination of options of the topk router, as text for the plugin and as numbers for the reference. */
#ifndef TESTS_ROUTER_COMBOS_H
#define TESTS_ROUTER_COMBOS_H
#include <stdio.h>

#include "reference.h"

enum { COMBOS = 96 };

/* Combination i in [0, COMBOS) for k choices; returns 0 where the router refuses it. */
static inline int combo(int i, int64_t k, char *text, size_t size, ref_options *o) {
    int style = i % 6, losses = i / 24; /* losses: none, aux, z, both */
    *o = (ref_options){.sigmoid = style >= 4,
                       .after = style == 2 || style == 3,
                       .renormalise = style % 2,
                       .bias = i / 6 % 2,
                       .sequence = i / 12 % 2,
                       .scale = i % 5 == 0 ? 2.5 : 1,
                       .aux_coef = losses & 1 ? 0.25 : 0,
                       .z_coef = losses & 2 ? 0.125 : 0};
    snprintf(text, size, "score=%s order=%s renormalise=%s expert_bias=%s aux_scope=%s scale=%g aux_coef=%g z_coef=%g",
             o->sigmoid ? "sigmoid" : "softmax", o->after ? "after" : "before", o->renormalise ? "true" : "false",
             o->bias ? "true" : "false", o->sequence ? "sequence" : "microbatch", o->scale, o->aux_coef, o->z_coef);
    return k > 1 || !(o->after || o->renormalise);
}

#endif
