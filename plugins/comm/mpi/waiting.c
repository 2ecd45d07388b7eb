/* Who is missing, told to any other thread: members of this node by the calls that they have entered, others by the
 * messages that are still to come from them, or to be taken by them. */
#include <inttypes.h>

#include "mpi_comm.h"

static void begin_entry(comm_text *t) {
    if (t->at) comm_text_add(t, "; ");
}

static void add_group(comm_text *t, const group *g) {
    comm_list ranks = {0};
    for (uint32_t i = 0; i < g->n; i++) comm_list_add(&ranks, g->ranks[i]);
    comm_text_add(t, " on group %s of ranks ", g->name);
    comm_text_add_list(t, &ranks, " ");
    comm_text_add(t, ": ");
}

/* Does this rank wait for member i? */
static int misses(const group *g, uint32_t i) {
    if (i == g->index) return 0;
    if (g->slot[i] && g->waits == WAIT_FOR_CALLS) return !group_has_come(g, i);
    return atomic_load_explicit(&g->owe[i], memory_order_relaxed);
}

static void add_call(comm_text *t, const group *g) {
    comm_list missing = {0};
    for (uint32_t i = 0; i < g->n; i++)
        if (misses(g, i)) comm_list_add(&missing, g->ranks[i]);
    if (!missing.n) return;
    const comm_call call = node_call_of(&g->current);
    begin_entry(t);
    comm_call_describe(&call, t);
    add_group(t, g);
    comm_text_add(t, missing.n > 1 ? "ranks " : "rank ");
    comm_text_add_list(t, &missing, ", ");
    if (g->waits == WAIT_FOR_CALLS)
        comm_text_add(t, missing.n > 1 ? " have not come" : " has not come");
    else
        comm_text_add(t, missing.n > 1 ? " do not go on" : " does not go on");
}

/* Messages that are not through. A short send is through when MPI has it. */
static void add_messages(comm_text *t, const group *g) {
    uint32_t told = 0;
    for (uint32_t i = 0; i < g->shown; i++) {
        const transfer *x = &g->flight.transfers[i];
        if (atomic_load_explicit(&x->landed, memory_order_relaxed)) continue;
        if (!told) {
            begin_entry(t);
            comm_text_add(t, "p2p of %u messages", g->n_ops);
            add_group(t, g);
        }
        comm_text_add(t, "%srank %u has not posted a %s of %" PRIu64 " bytes with tag %d", told ? ", " : "",
                      g->ranks[x->peer], x->receive ? "send" : "receive", x->bytes, x->tag);
        told++;
    }
}

void mpi_waiting(void *self, void *handle, char *text, uint64_t bytes) {
    instance *me = self;
    comm_text t = comm_text_begin(text, bytes);
    pthread_mutex_lock(&me->lock); /* held for moments, as the groups' are */
    for (group *g = me->groups; g; g = g->next) {
        if (handle && handle != g) continue;
        pthread_mutex_lock(&g->lock);
        if (g->waits == WAIT_FOR_MESSAGES)
            add_messages(&t, g);
        else if (g->waits != WAIT_NOT)
            add_call(&t, g);
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&me->lock);
}
