/* scheduler/odd: two pieces forward, three buckets, and deferrable nodes last of all that could run. */
#include <string.h>

#include "odd.h"

static moe_status create(const moe_scheduler_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    char *fault = calloc(1, 16);
    (void)host;
    if (!fault) return moe_fail(err, MOE_E_NOMEM, "no memory");
    snprintf(fault, 16, "%s", moe_kv_find(cfg->kv, cfg->n_kv, "fault"));
    *self = fault;
    return MOE_OK;
}

static void destroy(void *self) {
    free(self);
}

static moe_status shape(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err) {
    if (strcmp(self, "shape") == 0) return moe_fail(err, MOE_E_UNSUPPORTED, "%u layers are no shape", in->n_layers);
    out->pieces_fwd = strcmp(self, "pieces") == 0 ? 0 : 2;
    out->n_buckets = 3;
    return MOE_OK;
}

static int ready(const moe_sched_view *v, const uint8_t *done, uint32_t i) {
    for (uint32_t e = v->pred_start[i]; e < v->pred_start[i + 1]; e++)
        if (!done[v->pred[e]]) return 0;
    return !done[i];
}

static moe_status order(const void *self, const moe_sched_view *v, uint32_t *out, moe_err *err) {
    uint8_t *done = calloc(v->n_nodes, 1);
    if (!done) return moe_fail(err, MOE_E_NOMEM, "no memory");
    for (uint32_t n = 0; n < v->n_nodes; n++) {
        uint32_t pick = v->n_nodes;
        for (uint32_t i = 0; i < v->n_nodes; i++)
            if (ready(v, done, i) && (pick == v->n_nodes || v->nodes[i].deferrable < v->nodes[pick].deferrable))
                pick = i;
        done[pick] = 1;
        out[n] = pick;
    }
    free(done);
    if (strcmp(self, "early") == 0) out[0] = v->n_nodes - 1, out[v->n_nodes - 1] = 0;
    if (strcmp(self, "twice") == 0) out[1] = out[0];
    return MOE_OK;
}

static const moe_option options[] = {{"fault", "enum none|shape|pieces|early|twice", "none", "what to do wrong"}};
static const moe_scheduler_v0 table = {
    .size = sizeof table, .create = create, .destroy = destroy, .shape = shape, .order = order};
const moe_desc odd_scheduler = {.size = sizeof odd_scheduler,
                                .kind = "scheduler",
                                .id = "odd",
                                .device = "any",
                                .version = "1",
                                .vendor = "test",
                                .license = "MIT",
                                .summary = "for tests",
                                .options = options,
                                .n_options = 1,
                                .vtable = &table};
