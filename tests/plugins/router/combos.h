/* Every combination of options of the topk router, as text for the plugin and as numbers for the reference. */
#ifndef TESTS_ROUTER_COMBOS_H
#define TESTS_ROUTER_COMBOS_H
#include <stdio.h>

#include "reference.h"

enum { COMBOS = 144 };

/* Groups of combination i, where experts and choices allow them: 4 of which 2 are kept, by each of the scores. */
static inline void combo_groups(int i, int64_t experts, int64_t k, char *text, size_t size, ref_options *o) {
    static const char *const words[] = {"max", "sum2", "sum"};
    int word = i % 5 - 1;
    text[0] = '\0';
    if (word < 0 || word > 2 || experts % 4 != 0 || experts < 8 || k > experts / 2 || (word == 2 && k % 2)) return;
    o->groups = 4;
    o->kept = 2;
    o->best_of = word == 2 ? k / 2 : word + 1;
    snprintf(text, size, " groups=4 groups_kept=2 group_score=%s", words[word]);
}

/* Combination i in [0, COMBOS) for k choices of experts; returns 0 where the router refuses it. */
static inline int combo(int i, int64_t experts, int64_t k, char *text, size_t size, ref_options *o) {
    static const char *const scopes[] = {"microbatch", "sequence", "global"};
    int style = i % 6, scope = i / 12 % 3, losses = i / 36; /* losses: none, aux, z, both */
    char groups[64];
    *o = (ref_options){.sigmoid = style >= 4,
                       .after = style == 2 || style == 3,
                       .renormalise = style % 2,
                       .bias = i / 6 % 2,
                       .sequence = scope == 1,
                       .global = scope == 2,
                       .scale = i % 5 == 0 ? 2.5 : 1,
                       .aux_coef = losses & 1 ? 0.25 : 0,
                       .z_coef = losses & 2 ? 0.125 : 0};
    combo_groups(i, experts, k, groups, sizeof groups, o);
    snprintf(text, size,
             "score=%s order=%s renormalise=%s expert_bias=%s aux_scope=%s scale=%g aux_coef=%g z_coef=%g%s",
             o->sigmoid ? "sigmoid" : "softmax", o->after ? "after" : "before", o->renormalise ? "true" : "false",
             o->bias ? "true" : "false", scopes[scope], o->scale, o->aux_coef, o->z_coef, groups);
    return (k > 1 || !(o->after || o->renormalise)) && !(o->global && o->aux_coef <= 0);
}

#endif
