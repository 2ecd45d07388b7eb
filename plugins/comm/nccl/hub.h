/* Where the ranks of one process find each other, so that an abort reaches all. */
#ifndef COMM_NCCL_HUB_H
#define COMM_NCCL_HUB_H
#include <stdint.h>

typedef struct hub hub;
struct instance;

hub *hub_new(uint32_t world); /* with a reference for every rank; NULL: no memory */
void hub_attach(hub *h, uint32_t rank, struct instance *me);
/* Detaches, and gives the reference back. */
void hub_leave(hub *h, uint32_t rank);
/* [any] */
void hub_abort(hub *h, const char *reason);
/* [any] group_left on all others. */
void hub_tell_left(hub *h, uint64_t group_id, uint32_t rank, uint64_t calls);

#endif
