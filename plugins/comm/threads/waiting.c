/* Who is missing: what a rank's calls in flight wait for, told to any other thread. Calls leave what they are in atomic
 * words of their handle; messages are read under the lock of a mailbox, which nobody holds for long. */
#include <inttypes.h>
#include <stdio.h>

#include "threads.h"

/* The call in two words; not its name, which lives elsewhere (instance.splits). */
void member_tell(member *m, const comm_call *c) {
    const uint64_t kind = (uint64_t)(uint8_t)c->what | (uint64_t)(uint8_t)c->dtype << 8 |
                          (uint64_t)(uint8_t)(c->op + 1) << 16 | (uint64_t)c->root << 32;
    /* release: whoever sees one of these sees inside = 0, or a later call */
    atomic_store_explicit(&m->doing[0], kind, memory_order_release);
    atomic_store_explicit(&m->doing[1], c->count, memory_order_release);
}

/* 1 when m is inside of a call, with what member_tell was given and what post.came is of members that are as far. */
static int read_call(const member *m, comm_call *c, uint64_t *came) {
    *came = atomic_load_explicit(&m->inside, memory_order_acquire);
    const uint64_t kind = atomic_load_explicit(&m->doing[0], memory_order_acquire);
    c->count = atomic_load_explicit(&m->doing[1], memory_order_acquire);
    c->what = (int32_t)(kind & 0xff);
    c->dtype = (int32_t)(kind >> 8 & 0xff);
    c->op = (int32_t)(kind >> 16 & 0xff) - 1;
    c->root = (uint32_t)(kind >> 32);
    return *came && atomic_load_explicit(&m->inside, memory_order_acquire) == *came;
}

static void add_group(comm_text *t, const group *g) {
    comm_list ranks = {0};
    for (uint32_t i = 0; i < g->n; i++) comm_list_add(&ranks, g->ranks[i]);
    comm_text_add(t, " on group %s of ranks ", g->name);
    comm_text_add_list(t, &ranks, " ");
    comm_text_add(t, ": ");
}

static void begin_entry(comm_text *t) {
    if (t->at) comm_text_add(t, "; ");
}

/* A collective call: those who are not as far. */
static void add_call(comm_text *t, const instance *me, const member *m) {
    const group *g = m->g;
    comm_list missing = {0};
    comm_call c = {0};
    uint64_t came;
    if (!read_call(m, &c, &came)) return;
    for (uint32_t i = 0; i < g->n; i++)
        if (atomic_load_explicit(&g->posts[came >> 1 & 1][i].came, memory_order_acquire) < came)
            comm_list_add(&missing, g->ranks[i]);
    if (missing.n == 0) return;
    c.name = me->splits;
    begin_entry(t);
    comm_call_describe(&c, t);
    add_group(t, g);
    comm_text_add(t, missing.n > 1 ? "ranks " : "rank ");
    comm_text_add_list(t, &missing, ", ");
    comm_text_add(t, came & 1 ? (missing.n > 1 ? " are still copying" : " is still copying")
                              : (missing.n > 1 ? " have not come" : " has not come"));
}

/* A p2p call: messages whose other half is not there. Under the lock of m's box. */
static void add_messages(comm_text *t, const member *m) {
    uint32_t told = 0;
    for (uint32_t i = 0; i < m->n_messages; i++) {
        const message *x = &m->messages[i];
        if (atomic_load_explicit(&x->state, memory_order_acquire) != MESSAGE_WAITING) continue;
        if (told == 0) {
            begin_entry(t);
            comm_text_add(t, "p2p of %u messages", m->n_messages);
            add_group(t, m->g);
        }
        comm_text_add(t, "%srank %u has not posted a %s of %" PRIu64 " bytes with tag %d", told ? ", " : "",
                      m->g->ranks[x->receives ? x->from : x->to], x->receives ? "send" : "receive", x->bytes, x->tag);
        told++;
    }
}

void threads_waiting(void *self, void *handle, char *text, uint64_t bytes) {
    instance *me = self;
    comm_text t = comm_text_begin(text, bytes);
    pthread_mutex_lock(&me->lock); /* handles and the name of a split; held for moments */
    for (member *m = me->members; m; m = m->next) {
        if (handle && m != handle) continue;
        pthread_mutex_t *box = &m->g->boxes[m->index].lock;
        add_call(&t, me, m);
        pthread_mutex_lock(box);
        add_messages(&t, m);
        pthread_mutex_unlock(box);
    }
    pthread_mutex_unlock(&me->lock);
}
