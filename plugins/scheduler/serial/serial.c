/* scheduler/serial: changes nothing and overlaps nothing on purpose - one piece, one bucket, nothing recomputed, and
 * the nodes in the order in which core built them. The baseline that other schedulers are measured against. */
#include <moe/plugin.h>
#include <stdlib.h>

#include "order.h"

/* It has no state: its instance is an address of its own. */
static moe_status serial_create(const moe_scheduler_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg; /* no options, and nothing is drawn from the seed */
    (void)host;
    void *me = malloc(1);
    if (!me) return moe_fail(err, MOE_E_NOMEM, "scheduler/serial: no memory for an instance");
    *self = me;
    return MOE_OK;
}

static void serial_destroy(void *self) {
    free(self);
}

/* Core's defaults stay as they are. */
static moe_status serial_shape(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err) {
    (void)self;
    (void)in;
    (void)out;
    (void)err;
    return MOE_OK;
}

static moe_status serial_order(const void *self, const moe_sched_view *view, uint32_t *order, moe_err *err) {
    (void)self;
    return order_by_index(view, order, err);
}

static const moe_scheduler_v0 table = {.size = sizeof table,
                                       .create = serial_create,
                                       .destroy = serial_destroy,
                                       .shape = serial_shape,
                                       .order = serial_order};
static const moe_desc desc = {.size = sizeof desc,
                              .kind = "scheduler",
                              .id = "serial",
                              .device = "any",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "Nodes in the order of the graph: no pieces, no recompute, the baseline",
                              .flags = MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
