/* The longest prefix decides. */
#include "bench_parts.h"

#include <moe/ops.h>
#include <moe/scheduler.h>
#include <string.h>

const char *const bench_part_names[BENCH_PARTS] = {"projections", "attention", "routing",       "experts", "activation",
                                                   "dense",       "head",      "cross_entropy", "norms",   "rope",
                                                   "embedding",   "update",    "other"};
const char *const bench_role_names[BENCH_ROLES] = {[MOE_FPROP] = "fprop", [MOE_DGRAD] = "dgrad", [MOE_WGRAD] = "wgrad"};

static const struct {
    const char *prefix;
    int part;
} rows[] = {
    {"qkv", BENCH_PROJECTIONS},
    {"out", BENCH_PROJECTIONS},
    {"q_up", BENCH_PROJECTIONS},
    {"q_down", BENCH_PROJECTIONS},
    {"kv_", BENCH_PROJECTIONS},
    {"k_rope", BENCH_PROJECTIONS},
    {"mla_pack", BENCH_PROJECTIONS},
    {"attention", BENCH_ATTENTION},
    {"route", BENCH_ROUTING},
    {"layout", BENCH_ROUTING},
    {"dispatch", BENCH_ROUTING},
    {"combine", BENCH_ROUTING},
    {"capacity", BENCH_ROUTING},
    {"jitter", BENCH_ROUTING},
    {"experts", BENCH_EXPERTS},
    {"experts.swiglu", BENCH_ACTIVATION},
    {"shared", BENCH_DENSE},
    {"mlp", BENCH_DENSE},
    {"head", BENCH_HEAD},
    {"cross_entropy", BENCH_CROSS_ENTROPY},
    {"norm", BENCH_NORMS},
    {"final_norm", BENCH_NORMS},
    {"q_norm", BENCH_NORMS},
    {"k_norm", BENCH_NORMS},
    {"q_down_norm", BENCH_NORMS},
    {"kv_down_norm", BENCH_NORMS},
    {"rope", BENCH_ROPE},
    {"embed", BENCH_EMBEDDING},
};

static int begins(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* "L2.mb0.experts.w1.fwd" -> "experts.w1.fwd" */
static const char *own_name(const char *name) {
    if (name[0] == 'L' && name[1] >= '0' && name[1] <= '9') name = strchr(name, '.') + 1;
    if (begins(name, "mb") && name[2] >= '0' && name[2] <= '9') name = strchr(name, '.') + 1;
    return name;
}

int bench_part_of(const trainer_span *s) {
    const char *name = own_name(s->name);
    size_t best = 0;
    int part = BENCH_OTHER;
    if (s->phase == MOE_SCHED_REDUCE || s->phase == MOE_SCHED_UPDATE) return BENCH_UPDATE;
    if (s->phase == MOE_SCHED_PREPARE) return BENCH_OTHER;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t n = strlen(rows[i].prefix);
        if (n > best && begins(name, rows[i].prefix)) best = n, part = rows[i].part;
    }
    return part;
}

int bench_expert_role_of(const trainer_span *s) {
    const char *name = own_name(s->name);
    if (!begins(name, "experts.w1.") && !begins(name, "experts.w2.")) return -1;
    name += strlen("experts.w1.");
    return begins(name, "dgrad") ? MOE_DGRAD : begins(name, "wgrad") ? MOE_WGRAD : MOE_FPROP;
}
