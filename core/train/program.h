/* Program: a graph made ready to run - edges, order by the scheduler plugin, lanes, memory plan, executor. */
#ifndef CORE_TRAIN_PROGRAM_H
#define CORE_TRAIN_PROGRAM_H
#include "exec/exec.h"
#include "graph/graph.h"
#include "model/faults.h"
#include "parts/parts.h"

typedef struct program {
    graph *g;
    uint32_t *order; /* [g->n_nodes] */
    lanes l;
    exec *x;
    uint64_t arena, lazy; /* bytes of planned buffers, and of lazy ones; host buffers: g->host_bytes */
    faults faults;        /* the calls that may report an error in their data */
} program;

/* [main] after emission into p->g: finish, order, check, plan. */
moe_status program_order(program *p, const parts *with, moe_err *err);
/* [main] binds planned buffers to base [arena bytes] and lazy [lazy bytes], host buffers to host, and makes the
 * executor. */
moe_status program_start(program *p, void *base, void *lazy, void *host, exec_lanes *streams, exec_fail_fn on_fail,
                         void *arg, moe_err *err);
/* [step] issues the program and waits for its end. */
moe_status program_run(program *p, moe_err *err);
void program_free(program *p);

#endif
