/* Which elements of every parameter a rank has, element by element against rules of this file's own: initial values are
 * the whole model's, what is written whole lands in its places, and what all ranks have together is the whole again. */
#include <model/values.h>
#include <stdlib.h>

#include "rig.h"
#include "run_suite.h"
#include "train/trainer_impl.h"

/* world, tp, cp, dp, pp, etp, ep */
static const mesh_cfg meshes[] = {
    {2, 1, 1, 2, 1, 1, 2}, {2, 2, 1, 1, 1, 1, 1}, {2, 1, 1, 2, 1, 2, 1},
    {4, 4, 1, 1, 1, 2, 2}, {4, 2, 1, 2, 1, 1, 4}, {8, 2, 1, 4, 1, 2, 2},
};
enum { N_MESHES = sizeof meshes / sizeof meshes[0], MOST = 64 };

static rig_cfg with_everything(int latent) {
    rig_cfg c = rig_default();
    model_cfg *m = &c.trainer.model;
    m->dense_layers = 1;
    m->heads = m->kv_heads = 4;
    m->shared_ffn = 16;
    m->out_bias = m->sinks = m->expert_biases = m->router_bias = m->shared_gate = 1;
    m->qkv_bias = !latent;
    m->qk_norm = latent ? QK_NORM_NONE : QK_NORM_HEAD;
    if (latent) {
        m->attention = ATTENTION_MLA;
        m->q_lora = 12;
        m->kv_lora = 20;
        m->v_dim = 6;
        m->rope.dim = 4;
    }
    c.trainer.programs = TRAINER_EVAL;
    c.dispatcher = "alltoall";
    return c;
}

/* ---- the rules ---- */
static int is(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Part r of n of each of two halves of `width`. */
static int64_t of_halves(int64_t i, int64_t width, uint32_t n, uint32_t r) {
    int64_t own = width / n;
    return i / own * width + r * own + i % own;
}

static int64_t of_heads(int64_t i, const model_cfg *c, const model_split *s) {
    int64_t q = (int64_t)c->heads * c->head_dim, k = (int64_t)c->kv_heads * c->head_dim, v = c->kv_heads * c->v_dim;
    int64_t n = s->tp, r = s->tp_rank;
    if (i < q / n) return r * q / n + i;
    if (i < (q + k) / n) return q + r * k / n + i - q / n;
    return q + k + r * v / n + i - (q + k) / n;
}

/* Of whom a gradient is the sum, and the place in the whole tensor of coordinate i of this dimension. */
static param_reduce rule(const char *name, const model *m, int dim, int64_t i, int64_t *whole) {
    const model_cfg *c = &m->cfg;
    const model_split *s = &m->split;
    int expert = strstr(name, ".experts.") != NULL;
    int rows = is(name, "embed") || is(name, "head") || is(name, ".sinks") || is(name, ".q_up") || is(name, ".kv_up");
    int heads = is(name, ".qkv") || is(name, ".qkv_bias");
    int gated = is(name, "mlp.w1") || is(name, "shared.w1");
    int columns = is(name, "attention.out") || is(name, "mlp.w2") || is(name, "shared.w2");
    const param *p = &m->params.at[params_find(&m->params, name)];
    *whole = i;
    if (expert && dim == 0) *whole = s->ep_rank * (c->experts / s->ep) + i;
    if (expert && dim == 1 && (is(name, ".w1") || is(name, ".b1")))
        *whole = of_halves(i, c->expert_ffn, s->etp, s->etp_rank);
    if (expert && dim == 2 && is(name, ".w2")) *whole = s->etp_rank * (c->expert_ffn / s->etp) + i;
    if (rows && dim == 0) *whole = s->tp_rank * (p->whole[0] / s->tp) + i;
    if (columns && dim == 1) *whole = s->tp_rank * (p->whole[1] / s->tp) + i;
    if (heads && dim == 0) *whole = of_heads(i, c, s);
    if (gated && dim == 0) *whole = of_halves(i, p->whole[0] / 2, s->tp, s->tp_rank);
    return expert ? PARAM_OVER_EDP : rows || heads || gated || columns ? PARAM_OVER_DP_CP : PARAM_OVER_STAGE;
}

/* Place in the whole tensor of this rank's element k. */
static int64_t place(const model *m, const param *p, int64_t k) {
    int64_t at[4], index = 0, whole = 0;
    for (int d = p->ndim - 1; d >= 0; d--) {
        at[d] = k % p->shape[d];
        k /= p->shape[d];
    }
    for (int d = 0; d < p->ndim; d++) {
        rule(p->name, m, d, at[d], &whole);
        if (whole < 0 || whole >= p->whole[d]) ck_abort_msg("%s: %lld is out of range", p->name, (long long)whole);
        index = index * p->whole[d] + whole;
    }
    return index;
}

/* ---- the ranks ---- */
typedef struct cut_case {
    rig_cfg cfg;
    float *initial[MOST]; /* of one rank, in its order */
    char names[MOST][96];
    int64_t count[MOST];
    uint32_t n;
} cut_case;

static void check_param(const rig *r, const param *p, const float *whole) {
    const model *m = r->t->model;
    const int has_copy = m->params.copy && p->kind == PARAM_LINEAR;
    float *own = malloc((size_t)p->count * sizeof *own);
    uint16_t *copy = malloc((size_t)p->count * sizeof *copy);
    rig_get(r, own, params_address(&m->params, PARAM_MASTER, NULL, p->offset), (uint64_t)p->count * sizeof *own);
    if (has_copy) rig_get(r, copy, m->params.copy + p->offset, (uint64_t)p->count * sizeof *copy);
    for (int64_t k = 0; k < p->count; k++) {
        int64_t at = place(m, p, k);
        if (memcmp(&own[k], &whole[at], sizeof *own) != 0)
            ck_abort_msg("%s[%lld] is %g, element %lld of the whole is %g", p->name, (long long)k, (double)own[k],
                         (long long)at, (double)whole[at]);
        if (!has_copy) continue;
        uint16_t rounded;
        params_round_bf16(&whole[at], &rounded, 1);
        if (copy[k] != rounded) ck_abort_msg("%s: copy %lld", p->name, (long long)k);
    }
    free(own);
    free(copy);
}

static void check_rank(rank_env *env) {
    cut_case *c = env->arg;
    rig r;
    moe_err err = {.size = sizeof err};
    rig_open(&r, &c->cfg, env);
    const model *m = r.t->model;
    ck_assert_uint_eq(m->params.n, c->n);
    for (uint32_t i = 0; i < c->n; i++) {
        int64_t n = 0, ignored, id = params_find(&m->params, c->names[i]);
        ck_assert_msg(id >= 0, "no %s", c->names[i]);
        const param *p = &m->params.at[id];
        trainer_param_name(r.t, (uint32_t)id, &n);
        ck_assert_int_eq(n, c->count[i]);
        ck_assert_msg(rule(p->name, m, 0, 0, &ignored) == p->over, "%s: group %d", p->name, p->over);
        ck_assert_int_eq(p->idle, is(p->name, "experts.b2") && m->split.etp_rank > 0);
        check_param(&r, p, c->initial[i]);
        float *numbers = malloc((size_t)n * sizeof *numbers), *back = malloc((size_t)n * sizeof *back);
        for (int64_t k = 0; k < n; k++) numbers[k] = (float)(k + 1) * 0.5F;
        ck_assert_msg(!trainer_write(r.t, p->name, numbers, &err), "%s", err.msg);
        check_param(&r, p, numbers);
        ck_assert_msg(trainer_read(r.t, p->name, 0, back, &err) == n, "%s", err.msg);
        ck_assert_msg(memcmp(back, numbers, (size_t)n * sizeof *back) == 0, "%s does not come back", p->name);
        free(numbers);
        free(back);
    }
    rig_close(&r);
}

static void read_initial(cut_case *c) {
    rig r;
    moe_err err = {.size = sizeof err};
    const char *name;
    rig_open(&r, &c->cfg, NULL);
    for (; (name = trainer_param_name(r.t, c->n, &c->count[c->n])); c->n++) {
        ck_assert_uint_lt(c->n, MOST);
        snprintf(c->names[c->n], sizeof c->names[0], "%s", name);
        c->initial[c->n] = malloc((size_t)c->count[c->n] * sizeof(float));
        ck_assert_int_eq(trainer_read(r.t, name, 0, c->initial[c->n], &err), c->count[c->n]);
    }
    rig_close(&r);
}

static void check_meshes(rig_cfg cfg, int step) {
    cut_case c = {.cfg = cfg};
    read_initial(&c);
    for (int i = 0; i < N_MESHES; i += step) {
        c.cfg.trainer.mesh = meshes[i];
        c.cfg.world = meshes[i].world;
        ranks_run(c.cfg.world, check_rank, &c);
    }
    for (uint32_t i = 0; i < c.n; i++) free(c.initial[i]);
}

START_TEST(C101_every_rank_has_its_elements_of_grouped_attention) {
    check_meshes(with_everything(0), 1);
}
END_TEST

START_TEST(C101_every_rank_has_its_elements_of_latent_attention) {
    check_meshes(with_everything(1), 3);
}
END_TEST

START_TEST(copies_are_cut_as_masters_are) {
    rig_cfg c = with_everything(0);
    c.precision = "bf16";
    check_meshes(c, 3);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("cuts");
    tcase_add_test(t, C101_every_rank_has_its_elements_of_grouped_attention);
    tcase_add_test(t, C101_every_rank_has_its_elements_of_latent_attention);
    tcase_add_test(t, copies_are_cut_as_masters_are);
    return run_suite("cuts", t);
}
