/* From emitted nodes to a running step. */
#include "train/program.h"

#include <moe/options.h>
#include <stdlib.h>

#include "plan/plan.h"

moe_status program_order(program *p, const parts *with, moe_err *err) {
    moe_status status = graph_finish(p->g, err);
    if (status) return status;
    p->order = calloc(p->g->n_nodes + 1, sizeof *p->order);
    if (!p->order) return moe_fail(err, MOE_E_NOMEM, "out of memory for the order of %u nodes", p->g->n_nodes);
    status = with->scheduler->order(with->scheduler_self, &p->g->view, p->order, err);
    if (!status) status = graph_check_order(p->g, p->order, err);
    if (!status) status = lanes_init(&p->l, p->g, p->order, err);
    uint64_t align = with->device_info.alignment;
    if (!status) status = plan_memory(p->g, &p->l, p->order, align, 0, &p->arena, err);
    if (!status) status = plan_memory(p->g, &p->l, p->order, align, 1, &p->lazy, err);
    return status;
}

moe_status program_start(program *p, void *base, void *lazy, void *host, exec_lanes *streams, exec_fail_fn on_fail,
                         void *arg, moe_err *err) {
    graph_bind(p->g, base, lazy, host);
    return exec_create(&p->x, p->g, p->order, &p->l, streams, on_fail, arg, err);
}

moe_status program_run(program *p, moe_err *err) {
    moe_err issue = {.size = sizeof issue};
    moe_status issued = exec_issue(p->x, &issue), status = exec_finish(p->x, err);
    if (issued && !status) *err = issue;
    return status ? status : issued;
}

void program_free(program *p) {
    exec_destroy(p->x);
    lanes_free(&p->l);
    free(p->order);
    faults_free(&p->faults);
    graph_destroy(p->g);
    *p = (program){0};
}
