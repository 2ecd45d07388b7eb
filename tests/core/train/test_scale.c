/* A model of the size of DeepSeek-V3 on 16,384 ranks: one rank's groups, graph, order, check and memory plan, and the
 * groups of all ranks. Prints what it took. */
#include <mesh/mesh.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/rig.h"
#include "core/run_suite.h"

enum { WORLD = 16384 };
#define MOST_SECONDS 5.0
#define MOST_BYTES 2e9

/* ---- what it takes ---- */
/* Of this process's own threads: what others do on the machine does not count. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* High-water mark of resident memory in bytes. */
static double peak_bytes(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "VmHWM: %llu", &kib);
    if (f) fclose(f);
    return (double)kib * 1024;
}

/* ---- a device and a comm of any size ---- */
static moe_status boundless_info(void *self, moe_device_info *info, moe_err *err) {
    const moe_device_v0 *cpu = plugin_open("device", "cpu")->vtable;
    moe_status status = cpu->info(self, info, err);
    info->memory_total = 0;
    return status;
}
/* A rank of a mesh, which talks to nobody: enough for a plan; any other call would crash. A group is its axis. */
typedef struct quiet_rank {
    mesh mesh;
    uint32_t rank;
    mesh_axis axes[MESH_AXES];
} quiet_rank;
static quiet_rank quiet; /* of the test of this process */

static moe_status quiet_create(const moe_comm_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg;
    (void)host;
    (void)err;
    *self = &quiet;
    return MOE_OK;
}
static void quiet_destroy(void *self) {
    (void)self;
}
static moe_status quiet_split(void *self, void *parent, const char *name, uint32_t color, void **group, moe_err *err) {
    quiet_rank *q = self;
    (void)parent;
    int axis = 0;
    while (axis < MESH_AXES && strcmp(name, mesh_axis_name((mesh_axis)axis)) != 0) axis++;
    if (axis == MESH_AXES) axis = MESH_ETP_EP; /* "layout" */
    if (color != mesh_first(&q->mesh, (mesh_axis)axis, q->rank)) return moe_fail(err, MOE_E_ARG, "color %u", color);
    q->axes[axis] = (mesh_axis)axis;
    *group = &q->axes[axis];
    return MOE_OK;
}
static void quiet_drop(void *self, void *group) {
    (void)self;
    (void)group;
}
static moe_status quiet_info(void *self, void *group, uint32_t *n, uint32_t *index, moe_err *err) {
    const quiet_rank *q = self;
    const mesh_axis axis = *(const mesh_axis *)group;
    (void)err;
    *n = q->mesh.degree[axis];
    *index = mesh_coord(&q->mesh, axis, q->rank);
    return MOE_OK;
}
static void quiet_abort(void *self, const char *reason) {
    (void)self;
    (void)reason;
}
static moe_status quiet_poll(void *self, moe_err *err) {
    (void)self;
    (void)err;
    return MOE_OK;
}
static const moe_comm_v0 quiet_comm = {.size = sizeof quiet_comm,
                                       .launch = MOE_LAUNCH_PROCESSES,
                                       .create = quiet_create,
                                       .destroy = quiet_destroy,
                                       .group_split = quiet_split,
                                       .group_destroy = quiet_drop,
                                       .group_info = quiet_info,
                                       .abort = quiet_abort,
                                       .poll = quiet_poll};

/* arXiv 2412.19437, section 4.2. */
static rig_cfg large_model(uint32_t layers) {
    rig_cfg c = rig_default();
    c.precision = "bf16";
    c.comm = &quiet_comm;
    c.trainer.model = (model_cfg){.layers = layers,
                                  .dense_layers = 3,
                                  .heads = 128,
                                  .kv_heads = 128,
                                  .head_dim = 192,
                                  .v_dim = 128,
                                  .attention = ATTENTION_MLA,
                                  .q_lora = 1536,
                                  .kv_lora = 512,
                                  .experts = 256,
                                  .top_k = 8,
                                  .hidden = 7168,
                                  .vocab = 129280,
                                  .expert_ffn = 2048,
                                  .dense_ffn = 18432,
                                  .shared_ffn = 2048,
                                  .seq = 4096,
                                  .micro = 1,
                                  .head_rows = 1024,
                                  .rope = {.theta = 10000, .dim = 64, .interleaved = 1},
                                  .norm_eps = 1e-6F,
                                  .init_std = 0.006F,
                                  .seed = 3};
    c.trainer.optimizer = (optimizer_cfg){.kind = OPTIMIZER_ADAMW,
                                          .beta1 = 0.9F,
                                          .beta2 = 0.95F,
                                          .eps = 1e-8F,
                                          .weight_decay = 0.1F,
                                          .clip = 1,
                                          .distributed = 1};
    c.trainer.programs = TRAINER_TRAIN;
    c.trainer.plan_only = 1;
    return c;
}

static double plan(rig_cfg *c, uint32_t rank, const char *what) {
    rig *r = malloc(sizeof *r);
    ck_assert_ptr_nonnull(r);
    static moe_device_v0 boundless; /* the cpu's, without its limit */
    boundless = *(const moe_device_v0 *)plugin_open("device", "cpu")->vtable;
    boundless.info = boundless_info;
    c->device = &boundless;
    rank_env env = {.rank = rank, .world = c->world};
    env.bootstrap = (moe_bootstrap){.size = sizeof env.bootstrap, .rank = rank, .world = 1};
    moe_err err = {.size = sizeof err};
    c->trainer.mesh.world = c->world;
    quiet.rank = rank;
    ck_assert_msg(!mesh_init(&quiet.mesh, &c->trainer.mesh, &err), "%s", err.msg);
    double begin = cpu_seconds();
    moe_status status = rig_try_open(r, c, &env, &err);
    double took = cpu_seconds() - begin;
    ck_assert_msg(!status, "%s", err.msg);
    const trainer_memory m = trainer_memory_of(r->t);
    printf("%s: %u nodes, %.1f GB of activations, planned in %.2f s with %.0f MB\n", what, trainer_nodes(r->t),
           (double)m.arena * 1e-9, took, peak_bytes() * 1e-6);
    fflush(stdout);
    rig_close(r);
    free(r);
    return took;
}

START_TEST(one_rank_of_16384) {
    static const struct {
        uint32_t tp, ep, etp, rank;
        const char *dispatcher, *what;
    } at[] = {{1, 1, 1, 0, "local", "61 layers, dp 16384"},
              {1, 64, 1, 16383, "alltoall", "61 layers, dp 16384, ep 64"},
              {8, 64, 1, 777, "alltoall", "61 layers, tp 8, dp 2048, ep 64"},
              {2, 32, 2, 8192, "allgather", "61 layers, tp 2, dp 8192, etp 2, ep 32"}};
    rig_cfg c = large_model(61);
    c.world = WORLD;
    c.trainer.global = WORLD;
    c.trainer.mesh.tp = at[_i].tp;
    c.trainer.mesh.ep = at[_i].ep;
    c.trainer.mesh.etp = at[_i].etp;
    c.dispatcher = at[_i].dispatcher;
    double took = plan(&c, at[_i].rank, at[_i].what);
    if (UNDER_SANITIZER) return;
    ck_assert_double_lt(took, MOST_SECONDS);
    ck_assert_double_lt(peak_bytes(), MOST_BYTES);
}
END_TEST

START_TEST(many_layers) {
    rig_cfg c = large_model(UNDER_SANITIZER ? 128 : 512);
    c.world = 1;
    c.trainer.global = 1;
    double took = plan(&c, 0, "512 layers");
    if (!UNDER_SANITIZER) ck_assert_double_lt(took, MOST_SECONDS);
}
END_TEST

START_TEST(many_microbatches) {
    rig_cfg c = large_model(61);
    c.world = WORLD;
    c.trainer.global = (UNDER_SANITIZER ? 4 : 64) * WORLD;
    double took = plan(&c, 0, "61 layers, 64 microbatches");
    if (!UNDER_SANITIZER) ck_assert_double_lt(took, 2 * MOST_SECONDS);
}
END_TEST

/* ---- the groups of all ranks ---- */
/* Every rank is in one group of the axis, under the same first rank as its other members, and knows its place there. */
static int cuts_the_world(const mesh *m, mesh_axis axis, uint32_t *ranks, uint32_t *first, uint32_t *groups) {
    int good = 1;
    *groups = 0;
    for (uint32_t r = 0; r < WORLD; r++) first[r] = UINT32_MAX;
    for (uint32_t r = 0; r < WORLD; r++) {
        if (mesh_first(m, axis, r) != r) continue;
        uint32_t n = mesh_group(m, axis, r, ranks);
        good &= n == m->degree[axis];
        for (uint32_t i = 0; i < n; i++) {
            good &= ranks[i] < WORLD && first[ranks[i]] == UINT32_MAX && mesh_coord(m, axis, ranks[i]) == i;
            if (ranks[i] < WORLD) first[ranks[i]] = r;
        }
        ++*groups;
    }
    for (uint32_t r = 0; r < WORLD; r++) good &= first[r] == mesh_first(m, axis, r);
    return good;
}

START_TEST(all_groups_of_16384_ranks) {
    static const mesh_cfg foldings[] = {{WORLD, 1, 1, 0, 1, 1, 1},   {WORLD, 1, 1, 0, 1, 1, 64},
                                        {WORLD, 1, 1, 0, 16, 1, 64}, {WORLD, 8, 1, 0, 16, 1, 64},
                                        {WORLD, 8, 4, 0, 8, 2, 128}, {WORLD, 4, 2, 0, 1, 1, 256},
                                        {WORLD, 2, 1, 0, 4, 8, 32},  {WORLD, 1, 1, 0, WORLD, 1, 1}};
    uint32_t *ranks = malloc(WORLD * sizeof *ranks), *first = malloc(WORLD * sizeof *first), total = 0;
    double begin = cpu_seconds();
    for (size_t i = 0; i < sizeof foldings / sizeof foldings[0]; i++) {
        mesh m;
        check_ok(mesh_init(&m, &foldings[i], err));
        for (int axis = 0; axis < MESH_AXES; axis++) {
            uint32_t groups = 0;
            if (!cuts_the_world(&m, (mesh_axis)axis, ranks, first, &groups))
                ck_abort_msg("folding %zu: axis %s of degree %u does not cut %d ranks", i,
                             mesh_axis_name((mesh_axis)axis), m.degree[axis], WORLD);
            ck_assert_uint_eq(groups, WORLD / m.degree[axis]);
            total += groups;
        }
    }
    printf("%u groups of %d ranks in %.2f s\n", total, WORLD, cpu_seconds() - begin);
    fflush(stdout);
    if (!UNDER_SANITIZER) ck_assert_double_lt(cpu_seconds() - begin, MOST_SECONDS);
    free(ranks);
    free(first);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("scale");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, one_rank_of_16384, 0, 4);
    tcase_add_test(t, many_layers);
    tcase_add_test(t, many_microbatches);
    tcase_add_test(t, all_groups_of_16384_ranks);
    return run_suite("scale", t);
}
