/* See hub.h. */
#include "hub.h"

#include <stdlib.h>

#include "nccl_comm.h"

struct hub {
    pthread_mutex_t lock;
    uint32_t world, refs;
    instance *members[]; /* [world] */
};

hub *hub_new(uint32_t world) {
    hub *h = calloc(1, sizeof *h + world * sizeof h->members[0]);
    if (!h) return NULL;
    pthread_mutex_init(&h->lock, NULL);
    h->world = h->refs = world;
    return h;
}

void hub_attach(hub *h, uint32_t rank, instance *me) {
    pthread_mutex_lock(&h->lock);
    h->members[rank] = me;
    pthread_mutex_unlock(&h->lock);
}

void hub_leave(hub *h, uint32_t rank) {
    pthread_mutex_lock(&h->lock);
    h->members[rank] = NULL;
    const uint32_t left = --h->refs;
    pthread_mutex_unlock(&h->lock);
    if (left) return;
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void hub_abort(hub *h, const char *reason) {
    pthread_mutex_lock(&h->lock);
    for (uint32_t r = 0; r < h->world; r++)
        if (h->members[r]) instance_end(h->members[r], reason);
    pthread_mutex_unlock(&h->lock);
}

void hub_tell_left(hub *h, uint64_t group_id, uint32_t rank, uint64_t calls) {
    char why[REASON_BYTES];
    int waits = 0;
    pthread_mutex_lock(&h->lock);
    for (uint32_t r = 0; r < h->world && !waits; r++)
        if (h->members[r] && r != rank) waits = group_left(h->members[r], group_id, rank, calls, why);
    pthread_mutex_unlock(&h->lock);
    if (waits) hub_abort(h, why);
}
