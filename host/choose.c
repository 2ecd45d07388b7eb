/* One rank is enough for `local`; else a short measurement by all ranks. */
#include "choose.h"

#include <exec/watchdog.h>
#include <moe/options.h>
#include <string.h>
#include <train/dispatch_choice.h>

#include "ranks.h"
#include "stop.h"

typedef struct choice {
    const session *s;
    dispatch_rates rates;
    int64_t element;
} choice;

static moe_status measure_rank(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    choice *c = arg;
    const session *s = c->s;
    parts_cfg with = {.device = s->parts.device,
                      .comm = s->parts.comm,
                      .precision = s->parts.precision,
                      .rank = rank,
                      .world = bootstrap->world,
                      .bootstrap = bootstrap,
                      .log = s->parts.log,
                      .log_arg = s->parts.log_arg};
    const watchdog_cfg watch = {.rank = rank,
                                .comm_async = (s->parts.comm.desc->flags & MOE_ASYNC) != 0,
                                .timeout = s->trainer.timeout,
                                .on_stuck = stop_give_up};
    watchdog *dog = NULL;
    parts *p = NULL;
    mesh_groups groups = {0};
    dispatch_rates rates;
    moe_status status = watchdog_create(&dog, &watch, err);
    watchdog_enter(dog, "the measurement for dispatcher = auto");
    if (!status) status = parts_create(&p, &with, err);
    if (status) {
        watchdog_destroy(dog);
        return status;
    }
    watchdog_attach(dog, p->comm, p->comm_self, NULL, NULL);
    status = mesh_groups_open(&groups, &s->mesh, rank, p->comm, p->comm_self, err);
    if (!status) status = dispatch_measure(p, &groups, &rates, err);
    if (!status && session_keeps(s, rank)) {
        c->rates = rates;
        c->element = p->precision_needs.act_dtype == MOE_F32 ? 4 : 2;
    }
    watchdog_leave(dog);
    watchdog_detach(dog);
    if (status) p->comm->abort(p->comm_self, err->msg);
    mesh_groups_close(&groups);
    parts_destroy(p);
    watchdog_destroy(dog);
    return status;
}

/* What the recipe of an earlier run has; NULL: it cannot be read, which resuming will say. */
static const char *chosen_before(const char *path) {
    err_list errs = {0};
    const char *id = NULL;
    recipe *r = recipe_load(path, NULL, 0, 0, &errs);
    for (int i = 0; r && i < DISPATCH_KINDS; i++)
        if (strcmp(recipe_plugin_of(r, "dispatcher")->name, dispatch_ids[i]) == 0) id = dispatch_ids[i];
    recipe_destroy(r);
    err_list_clear(&errs);
    return id;
}

moe_status choose_dispatcher(const session *s, const char *resumed, const char **id, moe_err *err) {
    const model_cfg *m = &s->trainer.model;
    const uint32_t *degree = s->mesh.degree;
    *id = "local";
    if (degree[MESH_ETP_EP] == 1) return MOE_OK;
    const char *before = resumed ? chosen_before(resumed) : NULL;
    if (before) return *id = before, MOE_OK;
    choice c = {.s = s, .element = 4};
    moe_status status = session_run(s, measure_rank, &c, err);
    const dispatch_load load = {.ep = degree[MESH_EP],
                                .etp = degree[MESH_ETP],
                                .node_size = s->trainer.node_size,
                                .tokens = m->micro * m->seq / degree[MESH_TP],
                                .hidden = m->hidden,
                                .top_k = m->top_k,
                                .element = c.element};
    if (!status) *id = dispatch_ids[dispatch_best(&load, &c.rates)];
    return status;
}
