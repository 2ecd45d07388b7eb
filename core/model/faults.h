/* Faults: errors in the data that asynchronous calls report after they have returned (moe_fault in abi/moe/device.h).
 * Every call that may find one has its own place in one array of device memory, so the place says which call it was:
 * plugins know neither layer nor node. The array is zeroed first; when all calls of a program are through,
 * moe.first_fault/0 finds the first, by the order of emission, and it goes to the host. Before the optimiser its code
 * is also spread over all ranks, so that no rank of a step with a fault changes its weights. */
#ifndef CORE_MODEL_FAULTS_H
#define CORE_MODEL_FAULTS_H
#include "graph/graph.h"

typedef struct emit emit; /* model/emit.h */

enum {               /* what a fault's value is */
       FAULT_ID,     /* a word outside of [0, limit) */
       FAULT_TARGET, /* a target outside of [-1, limit) */
       FAULT_CHOICE, /* an expert outside of [-1, limit); or the slot of a weight that is not a number */
       FAULT_LOGIT,  /* column of a logit that is not finite */
       FAULT_LAYOUT  /* an expert outside of [-1, limit), or twice; or the number of rows, at most `rows` */
};

/* A call that may report a fault. */
typedef struct fault_site {
    int32_t kind;     /* FAULT_* */
    uint32_t node;    /* filled by faults_add */
    const char *what; /* operation, or plugin; outlives the program */
    int32_t layer;    /* filled by faults_add; -1 = none */
    int64_t limit, rows;
} fault_site;

typedef struct faults {
    fault_site *at; /* [n] */
    uint32_t n, cap;
    buf_id buf; /* [n] moe_fault */
} faults;

/* Emits the zeroing; from here on calls get their places. Nothing, now and later, on a device that is synchronous:
 * there calls return their errors. f lives as long as the graph. */
void faults_open(emit *e, faults *f);
/* Gives the node a place, whose address becomes *where. */
void faults_add(emit *e, uint32_t node, void **where, fault_site site);
/* After the last such node: the first fault of this rank to host[0..3], and {code, ..} of all ranks to host[4..7];
 * emit.fault is then what moe.clip_coef/0 looks at. host: staging.fault. */
void faults_close(emit *e, int64_t *host);
void faults_free(faults *f);

/* The text of a fault as the host got it ({code, token, value, site}), as the synchronous call would have said it. */
void faults_say(const faults *f, const int64_t *fault, char *text, uint64_t bytes);

#endif
