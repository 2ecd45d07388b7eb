/* Memory that the ranks of one node share: whether the job was aborted and why, and for every group and rank a slot
 * that counts the calls which the rank has entered, so that a rank which does not answer - ended, stopped, elsewhere -
 * can still be named. Ranks of other nodes are told of an abort by messages. */
#ifndef COMM_MPI_NODE_H
#define COMM_MPI_NODE_H
#include <moe/base.h>
#include <mpi.h>
#include <stdatomic.h>

#include "call.h"

enum { NODE_NAME = 48, NODE_REASON = 400, NODE_SLOTS = 512, NODE_CACHE_LINE = 64 };

/* What a rank calls, as it travels: the name lies inside, and call.name means nothing. */
typedef struct node_call {
    comm_call call;
    char name[NODE_NAME]; /* of group_split */
} node_call;
node_call node_call_pack(const comm_call *c);
/* With its name, which lives as long as c. */
comm_call node_call_of(const node_call *c);

/* One rank's place in one group. A member is at most one call ahead of the slowest, so two descriptions do. */
typedef struct node_slot {
    _Atomic uint64_t calls; /* entered; NODE_LEFT is added when the rank has destroyed its handle */
    node_call call[2];      /* of even and odd calls */
} __attribute__((aligned(NODE_CACHE_LINE))) node_slot;
#define NODE_LEFT (UINT64_C(1) << 63)

typedef struct node node;

/* [collective over all] virtual_node: that many neighbours by number count as a node; 0 = those that share memory. */
moe_status node_create(MPI_Comm all, uint32_t virtual_node, node **out, moe_err *err);
void node_free(node *n); /* not collective; NULL is nothing */

/* A slot for a group of this rank, zero calls; NODE_SLOTS when all are taken. Those given back are used again last. */
uint32_t node_take_slot(node *n);
void node_give_slot(node *n, uint32_t slot);
/* A rank's slot, or NULL where it is on another node. */
node_slot *node_slot_of(const node *n, uint32_t rank, uint32_t slot);
/* The lowest rank of the node that a rank is on. */
uint32_t node_of(const node *n, uint32_t rank);

/* [any] The first reason stays, on every node. */
void node_abort(node *n, const char *reason);
/* [any] MOE_OK, or MOE_E_COMM with the reason. Never blocks. */
moe_status node_poll(node *n, moe_err *err);
/* The same from within a waiting loop: looks now and then for ranks of this node that have ended, and aborts then. */
moe_status node_watch(node *n, uint32_t turn, moe_err *err);
int node_is_crowded(const node *n); /* more ranks here than processors */
uint32_t node_count(const node *n); /* nodes of the job */

#endif
