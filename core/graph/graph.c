/* Building of the step graph: growing tables and the sticky error. Edges are in edges.c. */
#include "graph/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

graph *graph_create(void) {
    return calloc(1, sizeof(graph));
}

void graph_destroy(graph *g) {
    if (!g) return;
    arena_free(&g->memory);
    free(g->nodes);
    free(g->buffers);
    free(g->uses);
    free(g->patches);
    free(g);
}

void graph_fail(graph *g, moe_status code, const char *format, ...) {
    if (g->status) return;
    va_list ap;
    va_start(ap, format);
    g->err = (moe_err){.size = sizeof(moe_err), .code = code};
    vsnprintf(g->err.msg, sizeof g->err.msg, format, ap);
    va_end(ap);
    g->status = code;
}

/* Room for one more entry; 0 after the sticky error. */
static int grow(graph *g, void **table, uint32_t n, uint32_t *cap, size_t entry) {
    if (g->status) return 0;
    if (n < *cap) return 1;
    uint32_t more = *cap ? *cap * 2 : 64;
    void *p = more > *cap ? realloc(*table, more * entry) : NULL;
    if (!p) {
        graph_fail(g, MOE_E_NOMEM, "out of memory for the step graph");
        return 0;
    }
    *table = p;
    *cap = more;
    return 1;
}

void *graph_alloc(graph *g, size_t bytes) {
    if (g->status) return NULL;
    void *p = arena_alloc(&g->memory, bytes);
    if (!p) graph_fail(g, MOE_E_NOMEM, "out of memory for the step graph");
    return p;
}

static buf_id add_buffer(graph *g, graph_buffer buffer, const char *format, va_list ap) {
    char name[160];
    vsnprintf(name, sizeof name, format, ap);
    if (!grow(g, (void **)&g->buffers, g->n_buffers, &g->cap_buffers, sizeof *g->buffers)) return BUF_NONE;
    buffer.name = arena_printf(&g->memory, "%s", name);
    if (!buffer.name) {
        graph_fail(g, MOE_E_NOMEM, "out of memory for the step graph");
        return BUF_NONE;
    }
    g->buffers[g->n_buffers] = buffer;
    return g->n_buffers++;
}

buf_id graph_buffer_add(graph *g, uint64_t bytes, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    buf_id id = add_buffer(g, (graph_buffer){.bytes = bytes}, format, ap);
    va_end(ap);
    return id;
}

buf_id graph_buffer_fixed(graph *g, void *ptr, uint64_t bytes, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    buf_id id = add_buffer(g, (graph_buffer){.bytes = bytes, .ptr = ptr, .fixed = 1}, format, ap);
    va_end(ap);
    return id;
}

buf_id graph_buffer_host(graph *g, uint64_t bytes, const char *format, ...) {
    enum { APART = 64 }; /* bytes */
    va_list ap;
    va_start(ap, format);
    buf_id id = add_buffer(g, (graph_buffer){.bytes = bytes, .fixed = 1, .host = 1, .off = g->host_bytes}, format, ap);
    va_end(ap);
    g->host_bytes += (bytes + APART - 1) / APART * APART;
    return id;
}

void graph_buffer_resize(graph *g, buf_id buf, uint64_t bytes) {
    if (buf < g->n_buffers) g->buffers[buf].bytes = bytes;
}

void graph_buffer_lazy(graph *g, buf_id buf) {
    if (buf < g->n_buffers) g->buffers[buf].lazy = 1;
}

static int known_buffer(graph *g, buf_id buf) {
    if (buf < g->n_buffers) return 1;
    graph_fail(g, MOE_E_INTERNAL, "the step graph has no buffer %u: it has %u", buf, g->n_buffers);
    return 0;
}

void graph_patch_add(graph *g, void **where, buf_id buf, uint64_t offset) {
    if (buf == BUF_NONE) return;
    if (!known_buffer(g, buf)) return;
    if (!grow(g, (void **)&g->patches, g->n_patches, &g->cap_patches, sizeof *g->patches)) return;
    g->patches[g->n_patches++] = (graph_patch){where, buf, offset};
}

uint32_t graph_node_add(graph *g, const moe_sched_node *info, graph_fn fn, void *ctx, void **stream, int async) {
    if (!grow(g, (void **)&g->nodes, g->n_nodes, &g->cap_nodes, sizeof *g->nodes)) return 0;
    if (info->lane < 0 || info->lane >= MOE_LANES) {
        graph_fail(g, MOE_E_INTERNAL, "node %s is on lane %d of %d", info->name, info->lane, MOE_LANES);
        return 0;
    }
    graph_node *node = &g->nodes[g->n_nodes];
    *node = (graph_node){.info = *info, .fn = fn, .ctx = ctx, .stream = stream, .async = async};
    node->info.name = arena_printf(&g->memory, "%s", info->name);
    if (!node->info.name) graph_fail(g, MOE_E_NOMEM, "out of memory for the step graph");
    return g->n_nodes++;
}

static void add_use(graph *g, uint32_t node, buf_id buf, int write) {
    if (buf == BUF_NONE || !known_buffer(g, buf)) return;
    if (node >= g->n_nodes) {
        graph_fail(g, MOE_E_INTERNAL, "the step graph has no node %u: it has %u", node, g->n_nodes);
        return;
    }
    if (!grow(g, (void **)&g->uses, g->n_uses, &g->cap_uses, sizeof *g->uses)) return;
    g->uses[g->n_uses++] = (graph_use){node, buf, write};
}

void graph_reads(graph *g, uint32_t node, buf_id buf) {
    add_use(g, node, buf, 0);
}
void graph_writes(graph *g, uint32_t node, buf_id buf) {
    add_use(g, node, buf, 1);
}

void graph_moves(graph *g, uint32_t node, uint64_t bytes) {
    if (node < g->n_nodes) g->nodes[node].bytes += bytes;
}

void graph_bind(graph *g, void *base, void *lazy, void *host) {
    for (uint32_t i = 0; i < g->n_buffers; i++) {
        graph_buffer *b = &g->buffers[i];
        if (b->host)
            b->ptr = (char *)host + b->off;
        else if (!b->fixed)
            b->ptr = (char *)(b->lazy ? lazy : base) + b->off;
    }
    for (uint32_t i = 0; i < g->n_patches; i++) {
        const graph_patch *p = &g->patches[i];
        *p->where = (char *)g->buffers[p->buf].ptr + p->offset;
    }
}
