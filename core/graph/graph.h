/* Step graph: every operation of one step as nodes over buffers. A node says which buffers it reads and writes; the
 * edges follow from that and from the order of emission (read after write, write after read, write after write), so
 * every topological order computes the same bits. Built once on one thread, constant while it runs.
 *
 * Errors while building are sticky: the first is kept, later calls do nothing, graph_finish returns it. */
#ifndef CORE_GRAPH_GRAPH_H
#define CORE_GRAPH_GRAPH_H
#include <moe/base.h>
#include <moe/scheduler.h>

#include "util/arena.h"

typedef uint32_t buf_id;
enum { BUF_NONE = UINT32_MAX };

typedef struct graph_buffer {
    const char *name;
    uint64_t bytes;
    void *ptr; /* fixed buffers from the start; others once the plan has placed them (plan.h) */
    int fixed; /* lives outside the plan: parameters, state, staging */
    int lazy;  /* 1: planned in the second arena, whose memory comes when it is first written: rows of the worst routing
                */
    int host;  /* 1: fixed, and at `off` in a block of the device's host memory (graph.host_bytes) */
    uint64_t off; /* in the arena, or the block */
} graph_buffer;

/* What a node does. For a synchronous call it runs on its lane's worker; for an asynchronous one on the issuing
 * thread, and enqueues on `stream`. */
typedef moe_status (*graph_fn)(void *ctx, moe_err *err);

typedef struct graph_node {
    moe_sched_node info; /* info.name belongs to the graph */
    graph_fn fn;
    void *ctx;
    void **stream; /* where the executor writes the lane's stream before step 1; NULL = not needed */
    int async;     /* 1: fn only enqueues and is called by the issuing thread */
    /* Bytes that it moves at least: of what it reads and of what it writes, once each; scratch does not count. For
     * measuring, see emit_bind. */
    uint64_t bytes;
} graph_node;

typedef struct graph_use {
    uint32_t node;
    buf_id buf;
    int write;
} graph_use;

typedef struct graph_patch {
    void **where;
    buf_id buf;
    uint64_t offset;
} graph_patch;

typedef struct graph {
    arena memory; /* nodes' arguments, names */
    graph_node *nodes;
    graph_buffer *buffers;
    graph_use *uses;
    graph_patch *patches;
    uint32_t n_nodes, n_buffers, n_uses, n_patches;
    uint32_t cap_nodes, cap_buffers, cap_uses, cap_patches;
    /* after graph_finish: compressed rows, as moe_sched_view */
    uint32_t *pred_start, *pred, *use_start, *use;
    moe_sched_node *sched_nodes;
    moe_sched_buffer *sched_buffers;
    moe_sched_view view;
    uint64_t host_bytes; /* of host buffers, which no two share */
    moe_status status;   /* sticky */
    moe_err err;
} graph;

graph *graph_create(void); /* NULL when out of memory */
void graph_destroy(graph *g);
/* Keeps the first error. */
void graph_fail(graph *g, moe_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A buffer for the plan to place; 0 bytes is allowed. name is copied. */
buf_id graph_buffer_add(graph *g, uint64_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A buffer at a known address, owned by the caller, valid while the graph runs. */
buf_id graph_buffer_fixed(graph *g, void *ptr, uint64_t bytes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A buffer of its own in host memory of the device, for as long as the graph: what calls write when they are made, not
 * in stream order, shares no bytes. */
buf_id graph_buffer_host(graph *g, uint64_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
void graph_buffer_resize(graph *g, buf_id buf, uint64_t bytes); /* of a planned one, before graph_finish */
void graph_buffer_lazy(graph *g, buf_id buf);                   /* marks it (graph_buffer.lazy); BUF_NONE is nothing */
/* Set-up memory that lives as long as the graph; NULL after an error. */
void *graph_alloc(graph *g, size_t bytes);
/* *where becomes the buffer's address + offset when the plan is bound. BUF_NONE leaves NULL. */
void graph_patch_add(graph *g, void **where, buf_id buf, uint64_t offset);

/* Appends a node; info.name is copied. Returns its number. */
uint32_t graph_node_add(graph *g, const moe_sched_node *info, graph_fn fn, void *ctx, void **stream, int async);
void graph_reads(graph *g, uint32_t node, buf_id buf);     /* BUF_NONE is nothing */
void graph_writes(graph *g, uint32_t node, buf_id buf);    /* also for += and in place */
void graph_moves(graph *g, uint32_t node, uint64_t bytes); /* adds to the node's bytes */

/* Derives the edges, checks that every planned buffer is written before it is read, and makes the view. */
moe_status graph_finish(graph *g, moe_err *err);
/* Is `order` a valid order of the nodes? Names the first two nodes that are the wrong way round. */
moe_status graph_check_order(const graph *g, const uint32_t *order, moe_err *err);
/* Writes every patch; planned buffers live at base + off, lazy ones at lazy + off, host buffers at host + off. */
void graph_bind(graph *g, void *base, void *lazy, void *host);

#endif
