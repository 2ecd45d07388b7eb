/* The longest prefix decides. */
#include "bench_parts.h"

#include <moe/scheduler.h>
#include <string.h>

const char *const bench_part_names[BENCH_PARTS] = {"projections", "attention", "routing", "experts", "dense",
                                                   "head",        "norms",     "update",  "other"};

static const struct {
    const char *prefix;
    int part;
} rows[] = {
    {"qkv", BENCH_PROJECTIONS},     {"out", BENCH_PROJECTIONS},    {"q_up", BENCH_PROJECTIONS},
    {"q_down", BENCH_PROJECTIONS},  {"kv_", BENCH_PROJECTIONS},    {"k_rope", BENCH_PROJECTIONS},
    {"q_down_norm", BENCH_NORMS},   {"kv_down_norm", BENCH_NORMS}, {"mla_pack", BENCH_NORMS},
    {"attention", BENCH_ATTENTION}, {"route", BENCH_ROUTING},      {"layout", BENCH_ROUTING},
    {"dispatch", BENCH_ROUTING},    {"combine", BENCH_ROUTING},    {"capacity", BENCH_ROUTING},
    {"jitter", BENCH_ROUTING},      {"experts", BENCH_EXPERTS},    {"shared", BENCH_DENSE},
    {"mlp", BENCH_DENSE},           {"swiglu", BENCH_DENSE},       {"head", BENCH_HEAD},
    {"cross_entropy", BENCH_HEAD},  {"norm", BENCH_NORMS},         {"final_norm", BENCH_NORMS},
    {"q_norm", BENCH_NORMS},        {"k_norm", BENCH_NORMS},       {"rope", BENCH_NORMS},
    {"embed", BENCH_NORMS},
};

/* "L2.mb0.experts.w1.fwd" -> "experts.w1.fwd" */
static const char *own_name(const char *name) {
    if (name[0] == 'L' && name[1] >= '0' && name[1] <= '9') name = strchr(name, '.') + 1;
    if (strncmp(name, "mb", 2) == 0 && name[2] >= '0' && name[2] <= '9') name = strchr(name, '.') + 1;
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
        if (n > best && strncmp(name, rows[i].prefix, n) == 0) best = n, part = rows[i].part;
    }
    return part;
}
