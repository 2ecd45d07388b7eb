/* A router whose counts cannot be: the step that sees them is refused, and names plugin and layer. */
#include <string.h>

#include "core/run_suite.h"
#include "rig.h"

static moe_status create(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    static char nothing;
    (void)cfg, (void)host, (void)err;
    *self = &nothing;
    return MOE_OK;
}
static void destroy(void *self) {
    (void)self;
}
static moe_status needs(void *self, moe_router_needs *n, moe_err *err) {
    (void)self, (void)err;
    n->inputs = MOE_ROUTER_LOGITS;
    return MOE_OK;
}

/* Experts 0 and 1 for all; counts: what is added to those of expert 1 besides, once. */
static moe_status choose(const moe_route_args *a, int64_t besides) {
    int64_t n = a->expert_ids->shape[0] * a->expert_ids->shape[1], *counts = a->counts->data;
    for (int64_t i = 0; i < n; i++) {
        int32_t id = (int32_t)(i % a->expert_ids->shape[1]);
        ((int32_t *)a->expert_ids->data)[i] = id;
        ((float *)a->weights->data)[i] = 0.5F;
        if (counts) counts[id] = (int64_t)((uint64_t)counts[id] + 1); /* of an earlier call: may be any number */
    }
    if (counts && besides) counts[1] = besides;
    return MOE_OK;
}
#define ROUTE(name, besides)                                                             \
    static moe_status name(const void *self, const moe_route_args *args, moe_err *err) { \
        (void)self, (void)err;                                                           \
        return choose(args, besides);                                                    \
    }
ROUTE(right, 0)
ROUTE(least, INT64_MIN)
ROUTE(negative, -1)
ROUTE(most, INT64_MAX)

static moe_status route_bwd(const void *self, const moe_route_args *a, moe_err *err) {
    (void)self, (void)err;
    memset(a->d_logits->data, 0, (size_t)(a->d_logits->shape[0] * a->d_logits->shape[1]) * sizeof(float));
    return MOE_OK;
}

static const struct {
    moe_status (*route)(const void *, const moe_route_args *, moe_err *);
    const char *say; /* NULL: no fault */
} rows[] = {{right, NULL},
            {least, "router/topk layer 0: counts -9223372036854775808 choices of expert 1"},
            {negative, "router/topk layer 0: counts -1 choices of expert 1"},
            {most, "router/topk layer 0: counts 9223372036854775807 choices of expert 1"}};

START_TEST(impossible_counts_are_refused) {
    moe_router_v0 table = {.size = sizeof table,
                           .create = create,
                           .destroy = destroy,
                           .needs = needs,
                           .route = rows[_i].route,
                           .route_bwd = route_bwd};
    rig_cfg c = rig_default();
    rig r;
    step_result out;
    moe_err err = {.size = sizeof err};
    c.router_table = &table;
    c.trainer.model.dense_layers = 0;
    rig_open(&r, &c, NULL);
    moe_status status = trainer_step(r.t, 1, 0, &out, &err);
    ck_assert_msg(status == (rows[_i].say ? MOE_E_UNSUPPORTED : MOE_OK), "%d: %s", status, err.msg);
    if (rows[_i].say) ck_assert_msg(strstr(err.msg, rows[_i].say) == err.msg, "%s", err.msg);
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("counts");
    tcase_add_loop_test(t, impossible_counts_are_refused, 0, 4);
    return run_suite("counts", t);
}
