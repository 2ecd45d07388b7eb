/* Tensor parallelism with sequence parallelism: a model that is cut over ranks has the gradients, losses and statistics
 * of one rank, whatever its parts - alone, beside data parallelism, and with experts on other ranks. */
#include <math.h>
#include <stdlib.h>

#include "plugin_open.h"
#include "rig.h"
#include "run_suite.h"
#include "train/trainer_impl.h"

enum { RANKS = 8, GLOBAL = 4, STEPS = 20 };

typedef struct outcome {
    rig_cfg cfg;
    int steps;                 /* 1: gradients are kept */
    step_result result[RANKS]; /* of the last step */
    double loss[RANKS][STEPS];
    float *tensors[RANKS]; /* gradients (steps 1) or weights, whole */
    int64_t n;
} outcome;

static void one_rank(rank_env *env) {
    outcome *o = env->arg;
    rig r;
    rig_open(&r, &o->cfg, env);
    for (int i = 0; i < o->steps; i++) {
        o->result[env->rank] = rig_step(&r, i + 1);
        o->loss[env->rank][i] = o->result[env->rank].loss;
    }
    int64_t n = 0;
    o->tensors[env->rank] = rig_tensors(&r, o->steps == 1, &n);
    if (env->rank == 0) o->n = n;
    rig_close(&r);
}

static void free_outcome(outcome *o) {
    for (int i = 0; i < RANKS; i++) free(o->tensors[i]);
}

/* ---- models ---- */
static void dense(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    m->dense_layers = 2;
    m->tied = m->qkv_bias = m->out_bias = 1;
    m->qk_norm = QK_NORM_HEAD;
}
static void shared_and_biases(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    m->shared_ffn = 16;
    m->dense_layers = 1;
    m->shared_gate = m->router_bias = m->expert_biases = m->sinks = 1;
    m->window = 5;
    m->sliding[0] = 2;
}
static void latents(rig_cfg *c) {
    model_cfg *m = &c->trainer.model;
    m->attention = ATTENTION_MLA;
    m->kv_heads = m->heads;
    m->rope.dim = 4;
    m->kv_lora = 12;
    m->q_lora = 10;
    m->v_dim = 6;
    m->sinks = m->tied = 1;
}
static void padding(rig_cfg *c) {
    c->trainer.model.documents = 1;
    c->trainer.model.shared_ffn = 16;
}
static void global_aux(rig_cfg *c) {
    c->router[1] = (moe_kv){"aux_scope", "global"};
    c->trainer.model.documents = 1;
}
static void microbatch_aux(rig_cfg *c) {
    c->router[1] = (moe_kv){"aux_scope", "microbatch"};
    c->trainer.model.shared_ffn = 16;
    c->trainer.model.shared_gate = 1;
}
static void capacity_and_jitter(rig_cfg *c) {
    c->trainer.model.capacity = 1;
    c->trainer.model.capacity_scope = CAPACITY_SEQUENCE;
    c->router[3] = (moe_kv){"jitter", "0.1"};
}
static void shard_capacity(rig_cfg *c) {
    c->trainer.model.capacity = 1.5F;
    c->trainer.model.capacity_drop = CAPACITY_DROP_POSITION;
    c->trainer.model.shared_ffn = 16;
}
static void (*const models[])(rig_cfg *) = {dense,          shared_and_biases,   latents,       padding, global_aux,
                                            microbatch_aux, capacity_and_jitter, shard_capacity};
enum { MODELS = sizeof models / sizeof models[0] };

/* ---- meshes: the microbatch of every dp rank is the same, as some results depend on it ---- */
typedef struct layout {
    uint32_t world, tp, ep, etp;
    const char *dispatcher;
} layout;
static const layout one = {1, 1, 1, 1, "local"}, two = {2, 2, 1, 1, "local"}, folded = {2, 2, 2, 1, "alltoall"},
                    crossed = {4, 2, 2, 1, "alltoall"}, wide = {4, 2, 4, 1, "deepep"};
/* Of every model FEW; of the one with a part of every kind (ALL) the others too. */
static const layout *const layouts[] = {&two,
                                        &crossed,
                                        &wide,
                                        &(layout){4, 4, 1, 1, "local"},
                                        &(layout){4, 2, 1, 1, "local"},
                                        &(layout){2, 2, 2, 1, "allgather"},
                                        &(layout){8, 4, 2, 2, "hier"},
                                        &(layout){4, 2, 1, 2, "alltoall"}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0], FEW = 2, ALL = 1 };

static outcome prepare(int kind, layout at, int steps) {
    outcome o = {.cfg = rig_default(), .steps = steps};
    trainer_cfg *t = &o.cfg.trainer;
    rig_balance(&o.cfg);
    t->global = GLOBAL;
    t->model.kv_heads = 4;
    t->model.micro = 2;
    models[kind](&o.cfg);
    t->mesh.tp = at.tp;
    t->mesh.ep = at.ep;
    t->mesh.etp = at.etp;
    o.cfg.world = at.world;
    o.cfg.dispatcher = at.dispatcher;
    return o;
}

static outcome run(int kind, layout at, int steps) {
    outcome o = prepare(kind, at, steps);
    ranks_run(at.world, one_rank, &o);
    return o;
}

static int close_to(double a, double b) {
    return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-5 * fabs(b);
}

static void compare(const outcome *o, const outcome *whole, const rig *names, layout at) {
    const step_result *a = &o->result[0], *b = &whole->result[0];
    double d = rig_difference(names, o->tensors[0], whole->tensors[0]);
    ck_assert_msg(d < 1e-5, "tp %u ep %u etp %u of %u ranks: gradients differ by %g", at.tp, at.ep, at.etp, at.world,
                  d);
    ck_assert_msg(close_to(a->loss, b->loss) && close_to(a->aux_loss, b->aux_loss) && close_to(a->z_loss, b->z_loss) &&
                      close_to(a->router_entropy, b->router_entropy) && close_to(a->grad_norm, b->grad_norm),
                  "tp %u ep %u etp %u of %u ranks: loss %.9g %.9g, aux %.9g %.9g, z %.9g %.9g, norm %.9g %.9g", at.tp,
                  at.ep, at.etp, at.world, a->loss, b->loss, a->aux_loss, b->aux_loss, a->z_loss, b->z_loss,
                  a->grad_norm, b->grad_norm);
    ck_assert(a->tokens == b->tokens && a->dropped == b->dropped && a->dead == b->dead);
    for (uint32_t r = 1; r < at.world; r++) { /* every rank says the same bits */
        ck_assert_mem_eq(&o->result[r].loss, &a->loss, sizeof a->loss);
        ck_assert_mem_eq(&o->result[r].grad_norm, &a->grad_norm, sizeof a->grad_norm);
        ck_assert_mem_eq(o->tensors[r], o->tensors[0], (size_t)o->n * sizeof(float));
    }
}

START_TEST(C023_C027_C049_C053_gradients_of_any_mesh_are_those_of_one_rank) {
    outcome whole = run(_i, one, 1);
    rig names;
    rig_open(&names, &whole.cfg, NULL);
    for (int i = 0; i < (_i == ALL ? LAYOUTS : FEW); i++) {
        outcome o = run(_i, *layouts[i], 1);
        compare(&o, &whole, &names, *layouts[i]);
        free_outcome(&o);
    }
    rig_close(&names);
    free_outcome(&whole);
}
END_TEST

START_TEST(losses_of_many_steps_are_those_of_one_rank) {
    const layout meshes[] = {two, wide};
    outcome whole = run(1, one, STEPS);
    for (int i = 0; i < 2; i++) {
        outcome o = run(1, meshes[i], STEPS);
        for (int s = 0; s < STEPS; s++)
            ck_assert_msg(close_to(o.loss[0][s], whole.loss[0][s]), "step %d: loss %.9g and %.9g", s + 1, o.loss[0][s],
                          whole.loss[0][s]);
        free_outcome(&o);
    }
    ck_assert(fabs(whole.loss[0][STEPS - 1] - whole.loss[0][0]) > 1e-2); /* it has learnt something */
    free_outcome(&whole);
}
END_TEST

/* ---- replicas ---- */
typedef struct replica_case {
    rig_cfg cfg;
    uint64_t sum[RANKS]; /* of the weights that every rank has whole */
    int tagged[RANKS];
} replica_case;

static uint64_t hash_bytes(uint64_t h, const void *from, size_t n) {
    const unsigned char *c = from;
    for (size_t i = 0; i < n; i++) h = (h ^ c[i]) * 0x100000001b3u;
    return h;
}

static int is_whole(const param *p) {
    return p->cut[0].parts <= 1 && p->cut[1].parts <= 1;
}

/* The memory itself, not what trainer_read makes of all ranks. Three steps over memory that was NaN before each. */
static void replica_rank(rank_env *env) {
    replica_case *c = env->arg;
    rig r;
    rig_open(&r, &c->cfg, env);
    for (int step = 1; step <= 3; step++) {
        rig_fill(&r, r.t->arena, 0xff, r.t->arena_bytes);
        step_result out = rig_step(&r, step);
        ck_assert(isfinite(out.loss) && isfinite(out.grad_norm));
    }
    const params *p = &r.t->model->params;
    for (uint32_t i = 0; i < p->n; i++) {
        const param *a = &p->at[i];
        if (a->experts || !is_whole(a)) continue;
        ck_assert_msg(a->over == PARAM_OVER_STAGE, "%s is whole on every rank, but its gradient is not summed over all",
                      a->name);
        c->tagged[env->rank]++;
        const size_t bytes = (size_t)a->count * sizeof(float);
        void *values = malloc(bytes);
        rig_get(&r, values, p->master + a->offset, bytes);
        c->sum[env->rank] = hash_bytes(c->sum[env->rank], values, bytes);
        free(values);
    }
    rig_close(&r);
}

START_TEST(C054_C055_C056_replicas_stay_equal_and_finite) {
    const layout meshes[] = {two, folded, crossed};
    for (int i = 0; i < 3; i++) {
        replica_case c = {.cfg = prepare(1, meshes[i], 3).cfg};
        ranks_run(meshes[i].world, replica_rank, &c);
        /* norms of two layers and the last, router and its bias, gate of the shared experts; sinks are cut */
        ck_assert_int_eq(c.tagged[0], 2 * 2 + 1 + 2 + 1);
        for (uint32_t r = 1; r < meshes[i].world; r++) ck_assert(c.sum[r] == c.sum[0] && c.tagged[r] == c.tagged[0]);
    }
}
END_TEST

/* ---- a router's own parameters ---- */
/* topk with parameters whose gradients are the number of tokens that it has seen, and the sum of what came back. */
static moe_status needs_with_params(void *self, moe_router_needs *needs, moe_err *err) {
    static const moe_param_spec spec = {"seen", "zeros", 1, MOE_F32, {2, 1, 1, 1}};
    moe_status status = ((const moe_router_v0 *)plugin_open("router", "topk")->vtable)->needs(self, needs, err);
    needs->params = &spec;
    needs->n_params = 1;
    return status;
}

static moe_status note_tokens(const void *self, const moe_route_args *a, moe_err *err) {
    float *seen = a->d_params[0].data;
    const float *d = a->d_weights->data;
    seen[0] += (float)a->d_weights->shape[0];
    for (int64_t i = 0; i < a->d_weights->shape[0] * a->d_weights->shape[1]; i++) seen[1] += fabsf(d[i]);
    return ((const moe_router_v0 *)plugin_open("router", "topk")->vtable)->route_bwd(self, a, err);
}

typedef struct seen_case {
    rig_cfg cfg;
    float seen[RANKS][2];
} seen_case;

static void seen_rank(rank_env *env) {
    seen_case *c = env->arg;
    moe_err err = {.size = sizeof err};
    rig r;
    rig_open(&r, &c->cfg, env);
    rig_step(&r, 1);
    ck_assert_int_eq(trainer_read(r.t, "layers.1.router.seen", 1, c->seen[env->rank], &err), 2);
    rig_close(&r);
}

START_TEST(parameters_of_routers_count_once) {
    if (!test_on_cpu()) return; /* a router in plain C */
    moe_router_v0 table = *(const moe_router_v0 *)plugin_open("router", "topk")->vtable;
    table.needs = needs_with_params;
    table.route_bwd = note_tokens;
    const layout meshes[] = {one, two, crossed};
    seen_case c[3];
    for (int i = 0; i < 3; i++) {
        c[i] = (seen_case){.cfg = prepare(ALL, meshes[i], 1).cfg};
        c[i].cfg.router_table = &table;
        ranks_run(meshes[i].world, seen_rank, &c[i]);
        for (uint32_t r = 0; r < meshes[i].world; r++) {
            const float *seen = c[i].seen[r];
            ck_assert_msg(seen[0] == (float)(GLOBAL * 16), "%g tokens", (double)seen[0]);
            ck_assert_msg(seen[1] > 0 && close_to((double)seen[1], (double)c[0].seen[0][1]), "%.9g came back, not %.9g",
                          (double)seen[1], (double)c[0].seen[0][1]);
        }
    }
}
END_TEST

/* ---- a capacity that experts are padded to ---- */
static void padded(rig_cfg *c) {
    c->trainer.model.capacity = 1;
    c->trainer.model.capacity_pad = 1;
}

START_TEST(padded_experts_of_any_mesh_are_those_of_one_rank) {
    const layout meshes[] = {one, folded, crossed, {4, 2, 2, 1, "deepep"}};
    outcome o[4];
    rig names;
    for (int i = 0; i < 4; i++) {
        o[i] = prepare(ALL, meshes[i], 1);
        padded(&o[i].cfg);
        ranks_run(meshes[i].world, one_rank, &o[i]);
        if (i == 0) rig_open(&names, &o[0].cfg, NULL);
        ck_assert(o[i].result[0].dropped > 0);
        compare(&o[i], &o[0], &names, meshes[i]);
    }
    rig_close(&names);
    for (int i = 0; i < 4; i++) free_outcome(&o[i]);
}
END_TEST

/* A rank's dispatcher would have half of a microbatch, whose experts have no capacity of their own. */
static void refused_rank(rank_env *env) {
    rig r;
    moe_err err = {.size = sizeof err};
    ck_assert_int_eq(rig_try_open(&r, env->arg, env, &err), MOE_E_UNSUPPORTED);
    ck_assert_msg(strstr(err.msg, "etp * ep = 1 * 1 to be a multiple of tp = 2"), "%s", err.msg);
}

START_TEST(padding_to_a_capacity_wants_whole_microbatches) {
    rig_cfg c = prepare(ALL, two, 1).cfg;
    padded(&c);
    ranks_run(2, refused_rank, &c);
}
END_TEST

/* ---- half of the tokens are padding ---- */
typedef struct mask_case {
    rig_cfg cfg;
    double loss[RANKS];
    float *gradients[RANKS];
} mask_case;

static void mask_rank(rank_env *env) {
    mask_case *c = env->arg;
    const model_cfg *m = &c->cfg.trainer.model;
    int32_t tokens[64];
    uint8_t mask[64];
    moe_err err = {.size = sizeof err};
    trainer_values v;
    int64_t n = 0;
    rig r;
    for (int64_t i = 0; i < m->micro * m->seq; i++) {
        tokens[i] = (int32_t)(i * 37 % m->vocab);
        mask[i] = i % m->seq < m->seq / 2;
    }
    rig_open(&r, &c->cfg, env);
    ck_assert_msg(!trainer_dump(r.t, tokens, mask, &v, &err), "%s", err.msg);
    ck_assert_int_eq(v.valid, m->micro * (m->seq / 2 - 1));
    c->loss[env->rank] = v.loss;
    c->gradients[env->rank] = rig_tensors(&r, 1, &n);
    rig_close(&r);
}

/* The balance losses are of the 16 live tokens, not of 32, and not of each rank's for itself: one tp rank has all of
 * one sequence, and so live tokens and padding. */
START_TEST(C027_half_padding_leaves_the_gradients) {
    const layout meshes[] = {one, two, folded};
    mask_case c[3];
    rig names;
    for (int i = 0; i < 3; i++) {
        c[i] = (mask_case){.cfg = prepare(3, meshes[i], 1).cfg};
        c[i].cfg.router[0] = (moe_kv){"aux_coef", "0.5"};
        c[i].cfg.trainer.programs = TRAINER_DUMP | TRAINER_DUMP_GRADS;
        ranks_run(meshes[i].world, mask_rank, &c[i]);
        if (i == 0) rig_open(&names, &c[0].cfg, NULL);
        double d = rig_difference(&names, c[i].gradients[0], c[0].gradients[0]);
        ck_assert_msg(d < 1e-5 && close_to(c[i].loss[0], c[0].loss[0]), "mesh %d: gradients differ by %g", i, d);
    }
    rig_close(&names);
    for (int i = 0; i < 3; i++)
        for (int r = 0; r < RANKS; r++) free(c[i].gradients[r]);
}
END_TEST

/* ---- the same bits again ---- */
/* In BF16, but under ThreadSanitizer: oneDNN's BF16 products start threads of OpenMP, which it cannot follow. */
#if defined(__SANITIZE_THREAD__)
static const char repeated[] = "fp32";
#else
static const char repeated[] = "bf16";
#endif

START_TEST(runs_repeat_bit_for_bit) {
    outcome o[2];
    for (int i = 0; i < 2; i++) {
        o[i] = prepare(ALL, crossed, 3);
        o[i].cfg.precision = repeated;
        ranks_run(crossed.world, one_rank, &o[i]);
        ck_assert(isfinite(o[i].loss[0][2]));
    }
    ck_assert_mem_eq(o[0].loss, o[1].loss, sizeof o[0].loss);
    ck_assert_mem_eq(o[0].tensors[0], o[1].tensors[0], (size_t)o[0].n * sizeof(float));
    for (int i = 0; i < 2; i++) free_outcome(&o[i]);
}
END_TEST

/* ---- logits ---- */
typedef struct logits_case {
    rig_cfg cfg;
    float *made[RANKS], *dumped[RANKS]; /* [T,V] */
    double loss[RANKS];
} logits_case;

static void logits_rank(rank_env *env) {
    logits_case *c = env->arg;
    const model_cfg *m = &c->cfg.trainer.model;
    int64_t T = m->micro * m->seq;
    int32_t tokens[64];
    moe_err err = {.size = sizeof err};
    trainer_values v;
    rig r;
    rig_open(&r, &c->cfg, env);
    for (int64_t i = 0; i < T; i++) tokens[i] = (int32_t)(i * 37 % m->vocab);
    c->made[env->rank] = malloc((size_t)(T * m->vocab) * sizeof(float));
    c->dumped[env->rank] = malloc((size_t)(T * m->vocab) * sizeof(float));
    ck_assert_msg(!trainer_logits(r.t, tokens, T, c->made[env->rank], &err), "%s", err.msg);
    ck_assert_msg(!trainer_dump(r.t, tokens, NULL, &v, &err), "%s", err.msg);
    trainer_dump_logits(r.t, c->dumped[env->rank]);
    c->loss[env->rank] = v.loss;
    rig_close(&r);
}

static logits_case logits_of(layout at) {
    logits_case c = {.cfg = prepare(2, at, 1).cfg};
    c.cfg.trainer.programs = TRAINER_LOGITS | TRAINER_DUMP;
    c.cfg.trainer.model.head_rows = 10; /* chunks of another size than the tokens of a rank */
    ranks_run(at.world, logits_rank, &c);
    return c;
}

START_TEST(logits_are_whole_on_every_rank) {
    logits_case whole = logits_of(one), cut = logits_of(two);
    const model_cfg *m = &whole.cfg.trainer.model;
    int64_t n = m->micro * m->seq * m->vocab;
    for (int r = 0; r < 2; r++) {
        for (int64_t i = 0; i < n; i++) {
            double want = (double)whole.made[0][i];
            if (fabs((double)cut.made[r][i] - want) > 1e-5 || fabs((double)cut.dumped[r][i] - want) > 1e-5)
                ck_abort_msg("rank %d, logit %lld: %g and %g, not %g", r, (long long)i, (double)cut.made[r][i],
                             (double)cut.dumped[r][i], want);
        }
        ck_assert(close_to(cut.loss[r], whole.loss[0]));
        free(cut.made[r]);
        free(cut.dumped[r]);
    }
    free(whole.made[0]);
    free(whole.dumped[0]);
}
END_TEST

/* ---- time in which rows travel ---- */
static uint32_t find_node(const graph *g, const char *name) {
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].info.name, name) == 0) return i;
    ck_abort_msg("no node %s", name);
    return 0;
}

/* `name` lies between begin and end in its lane, and does not wait for the exchange. */
static void between(const program *p, const char *begin, const char *exchange, const char *end, const char *name) {
    uint32_t a = find_node(p->g, begin), x = find_node(p->g, exchange), b = find_node(p->g, end);
    uint32_t n = find_node(p->g, name);
    ck_assert_msg(p->l.pos[a] < p->l.pos[n] && p->l.pos[n] < p->l.pos[b], "%s is not between %s and %s", name, begin,
                  end);
    ck_assert_msg(lanes_before(&p->l, n)[MOE_LANE_COMM_EP] < p->l.pos[x], "%s waits for %s", name, exchange);
}

static void busy_rank(rank_env *env) {
    static const char *const moves[2][3] = {
        {"L1.mb0.dispatch.pack.fwd", "L1.mb0.dispatch.exchange.fwd", "L1.mb0.dispatch.unpack.fwd"},
        {"L1.mb0.combine.pack.fwd", "L1.mb0.combine.exchange.fwd", "L1.mb0.combine.unpack.fwd"}};
    static const char *const back[2][3] = {
        {"L1.mb0.dispatch.pack.bwd", "L1.mb0.dispatch.exchange.bwd", "L1.mb0.dispatch.unpack.bwd"},
        {"L1.mb0.combine.pack.bwd", "L1.mb0.combine.exchange.bwd", "L1.mb0.combine.unpack.bwd"}};
    static const struct {
        const char *const *move, *name;
    } rows[] = {{moves[0], "L1.mb0.shared.w1.fwd"},       {moves[0], "L1.mb0.shared.swiglu.fwd"},
                {moves[1], "L1.mb0.shared.w2.fwd"},       {back[0], "L1.mb0.shared.w2.dgrad.bwd"},
                {back[0], "L1.mb0.shared.w1.dgrad.bwd"},  {back[1], "L1.mb0.shared.w1.wgrad.bwd"},
                {back[1], "L1.mb0.experts.w1.wgrad.bwd"}, {back[1], "L1.mb0.experts.w2.wgrad.bwd"}};
    rig r;
    rig_open(&r, env->arg, env);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        between(&r.t->programs[PROGRAM_TRAIN], rows[i].move[0], rows[i].move[1], rows[i].move[2], rows[i].name);
    rig_close(&r);
}

START_TEST(C087_shared_experts_and_weight_gradients_run_while_rows_travel) {
    const layout meshes[] = {folded, {2, 1, 2, 1, "alltoall"}};
    for (int i = 0; i < 2; i++) {
        rig_cfg c = prepare(ALL, meshes[i], 1).cfg;
        ranks_run(2, busy_rank, &c);
    }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("tensor");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, C023_C027_C049_C053_gradients_of_any_mesh_are_those_of_one_rank, 0, MODELS);
    tcase_add_test(t, losses_of_many_steps_are_those_of_one_rank);
    tcase_add_test(t, C054_C055_C056_replicas_stay_equal_and_finite);
    tcase_add_test(t, parameters_of_routers_count_once);
    tcase_add_test(t, C087_shared_experts_and_weight_gradients_run_while_rows_travel);
    tcase_add_test(t, padded_experts_of_any_mesh_are_those_of_one_rank);
    tcase_add_test(t, padding_to_a_capacity_wants_whole_microbatches);
    tcase_add_test(t, C027_half_padding_leaves_the_gradients);
    tcase_add_test(t, runs_repeat_bit_for_bit);
    tcase_add_test(t, logits_are_whole_on_every_rank);
    return run_suite("tensor", t);
}
