/* Who is missing, told to any other thread: members of this node by the calls that they have entered, others by the
 * messages that are still to come from them, or to be taken by them. */
#include <stdio.h>

#include "mpi_comm.h"

/* Does this rank wait for member i? */
static int misses(const group *g, uint32_t i) {
    if (i == g->index && g->waits != WAIT_FOR_MESSAGES) return 0;
    if (g->slot[i] && g->waits == WAIT_FOR_CALLS) return !group_has_come(g, i);
    return atomic_load_explicit(&g->owe[i], memory_order_relaxed);
}

static void add_missing(comm_text *t, const group *g) {
    comm_list ranks = {0}, missing = {0};
    for (uint32_t i = 0; i < g->n; i++) {
        comm_list_add(&ranks, g->ranks[i]);
        if (misses(g, i)) comm_list_add(&missing, g->ranks[i]);
    }
    if (!missing.n) return;
    if (t->at) comm_text_add(t, "; ");
    const comm_call call = node_call_of(&g->current);
    if (g->waits == WAIT_FOR_MESSAGES)
        comm_text_add(t, "p2p");
    else
        comm_call_describe(&call, t);
    comm_text_add(t, " on group %s of ranks ", g->name);
    comm_text_add_list(t, &ranks, " ");
    comm_text_add(t, missing.n > 1 ? ": ranks " : ": rank ");
    comm_text_add_list(t, &missing, ", ");
    const char *const one[] = {"", " has not come", " does not go on", " has not posted its part"};
    const char *const many[] = {"", " have not come", " do not go on", " have not posted their part"};
    comm_text_add(t, "%s", (missing.n > 1 ? many : one)[g->waits]);
}

void mpi_waiting(void *self, void *handle, char *text, uint64_t bytes) {
    instance *me = self;
    comm_text t = comm_text_begin(text, bytes);
    pthread_mutex_lock(&me->lock); /* held for moments, as the groups' are */
    for (group *g = me->groups; g; g = g->next) {
        if (handle && handle != g) continue;
        pthread_mutex_lock(&g->lock);
        if (g->waits != WAIT_NOT) add_missing(&t, g);
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&me->lock);
}
