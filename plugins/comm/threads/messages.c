/* Messages of comm/threads, without copies in between: a send and its receive meet in the destination's mailbox, then
 * one of the two members copies from buffer to buffer. Small ones are copied by whoever came last; of large ones each
 * member copies what the other has not begun. See hub.h. */
#include <inttypes.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "threads.h"

enum { SMALL = 32768 }; /* bytes: a copy of some microseconds is over before the other member wakes up */

static int state_of(const message *x) {
    return atomic_load_explicit(&x->state, memory_order_acquire);
}
static void set_state(message *x, int32_t state) {
    atomic_store_explicit(&x->state, state, memory_order_release);
}
static uint32_t other_of(const message *x) {
    return x->receives ? x->from : x->to;
}

/* ---- boxes; under their lock ---- */

/* Takes x out of its list, which it is in. */
static void unlink_message(mailbox *b, message *x) {
    message **at = &b->first[x->receives], *before = NULL;
    while (*at != x) {
        before = *at;
        at = &before->next;
    }
    *at = x->next;
    if (b->last[x->receives] == x) b->last[x->receives] = before;
}

static void append(mailbox *b, message *x) {
    message *last = b->last[x->receives];
    *(last ? &last->next : &b->first[x->receives]) = x;
    b->last[x->receives] = x;
}

/* The first half that fits to x, or NULL. */
static message *find_half(const mailbox *b, const message *x) {
    message *y = b->first[!x->receives];
    while (y && (y->from != x->from || y->tag != x->tag)) y = y->next;
    return y;
}

/* ---- a pair ---- */

/* Copies a pair that this thread has claimed. The other half is its owner's again with the last store. */
static void carry(group *g, message *x) {
    message *y = x->pair, *send = x->receives ? y : x, *receive = x->receives ? x : y;
    if (send->bytes) memcpy(receive->buf, send->buf, send->bytes);
    set_state(x, MESSAGE_DONE);
    set_state(y, MESSAGE_DONE);
    mailbox_ring(&g->boxes[other_of(x)]);
}

static void fail_pair(group *g, message *x) {
    message *y = x->pair;
    const message *send = x->receives ? y : x, *receive = x->receives ? x : y;
    char text[REASON_BYTES];
    snprintf(text, sizeof text,
             "group %s: message with tag %d: rank %u sends %" PRIu64 " bytes, rank %u receives %" PRIu64, g->name,
             x->tag, g->ranks[x->from], send->bytes, g->ranks[x->to], receive->bytes);
    hub_abort(g->hub, text); /* first, so that the other finds the reason */
    set_state(x, MESSAGE_FAILED);
    set_state(y, MESSAGE_FAILED);
    mailbox_ring(&g->boxes[other_of(x)]);
}

/* Puts x in the box of its destination, or makes a pair with what waits there. */
static void post_message(group *g, message *x) {
    mailbox *b = &g->boxes[x->to];
    int32_t next = MESSAGE_WAITING;
    pthread_mutex_lock(&b->lock);
    message *y = find_half(b, x);
    if (y) {
        unlink_message(b, y);
        x->pair = y;
        y->pair = x;
        next = x->bytes > SMALL && x->bytes == y->bytes ? MESSAGE_MATCHED : MESSAGE_COPIED_NOW;
        set_state(x, next);
        set_state(y, next);
    } else
        append(b, x);
    pthread_mutex_unlock(&b->lock);
    if (next == MESSAGE_MATCHED) mailbox_ring(&g->boxes[other_of(x)]);
    if (next != MESSAGE_COPIED_NOW) return;
    if (x->bytes == y->bytes)
        carry(g, x);
    else
        fail_pair(g, x);
}

/* Copies x if it has its other half and nobody has begun. */
static void try_carry(group *g, message *x) {
    mailbox *b = &g->boxes[x->to];
    pthread_mutex_lock(&b->lock);
    const int mine = state_of(x) == MESSAGE_MATCHED;
    if (mine) {
        set_state(x, MESSAGE_COPIED_NOW);
        set_state(x->pair, MESSAGE_COPIED_NOW);
    }
    pthread_mutex_unlock(&b->lock);
    if (mine) carry(g, x);
}

static void try_cancel(group *g, message *x) {
    mailbox *b = &g->boxes[x->to];
    pthread_mutex_lock(&b->lock);
    if (state_of(x) == MESSAGE_WAITING) {
        unlink_message(b, x);
        set_state(x, MESSAGE_CANCELLED);
    }
    pthread_mutex_unlock(&b->lock);
}

/* ---- a call ---- */

/* Does what can be done; the number of messages that are not over. */
static uint32_t advance(member *m, int cancel) {
    uint32_t open = 0;
    for (uint32_t i = 0; i < m->n_messages; i++) {
        message *x = &m->messages[i];
        if (cancel && state_of(x) == MESSAGE_WAITING) try_cancel(m->g, x);
        if (state_of(x) == MESSAGE_MATCHED) try_carry(m->g, x);
        open += state_of(x) < MESSAGE_DONE;
    }
    return open;
}

/* Can all still come? */
static moe_status look_around(const member *m, moe_err *err) {
    group *g = m->g;
    moe_status s = hub_poll(g->hub, err);
    for (uint32_t i = 0; i < m->n_messages && s == MOE_OK; i++) {
        const message *x = &m->messages[i];
        if (state_of(x) == MESSAGE_WAITING && atomic_load(&g->boxes[other_of(x)].left))
            s = moe_fail(err, MOE_E_COMM, "group %s: rank %u has left", g->name, g->ranks[other_of(x)]);
    }
    return s;
}

/* Until there are news of this member, or of the group. */
static void await(const member *m, uint32_t news, uint32_t breaks) {
    group *g = m->g;
    mailbox *b = &g->boxes[m->index];
    for (uint32_t i = 0; i < g->hub->spins; i++) {
        if (atomic_load(&b->news) != news || atomic_load(&g->breaks) != breaks) return;
        hub_relax();
    }
    atomic_store(&b->sleeps, 1);
    while (atomic_load(&b->news) == news && atomic_load(&g->breaks) == breaks) hub_sleep(&b->news, news);
    atomic_store(&b->sleeps, 0);
}

static moe_status finish(member *m, moe_err *err) {
    moe_status s = MOE_OK;
    for (;;) {
        const uint32_t news = atomic_load(&m->g->boxes[m->index].news), breaks = atomic_load(&m->g->breaks);
        if (s == MOE_OK) s = look_around(m, err);
        if (advance(m, s != MOE_OK) == 0) break;
        await(m, news, breaks);
    }
    return s == MOE_OK ? hub_poll(m->g->hub, err) : s;
}

/* Room for n messages. Allocates when a call has more than every one before. */
static moe_status make_room(member *m, uint32_t n, moe_err *err) {
    if (n <= m->room) return MOE_OK;
    const uint32_t room = n > 16 ? n : 16;
    message *more = calloc(room, sizeof *more);
    if (!more) return moe_fail(err, MOE_E_NOMEM, "group %s: out of memory for %u messages", m->g->name, n);
    free(m->messages); /* none in flight */
    m->messages = more;
    m->room = room;
    return MOE_OK;
}

/* n 0 forgets. Under the lock of this member's box: `waiting` reads them. */
static void fill(member *m, const moe_p2p_op *ops, uint32_t n) {
    pthread_mutex_t *lock = &m->g->boxes[m->index].lock;
    pthread_mutex_lock(lock);
    for (uint32_t i = 0; i < n; i++) {
        const moe_p2p_op *o = &ops[i];
        m->messages[i] = (message){.buf = o->buf,
                                   .bytes = o->bytes,
                                   .from = o->receive ? o->peer : m->index,
                                   .to = o->receive ? m->index : o->peer,
                                   .tag = o->tag,
                                   .receives = o->receive != 0,
                                   .state = MESSAGE_WAITING};
    }
    m->n_messages = n;
    pthread_mutex_unlock(lock);
}

moe_status threads_p2p(void *self, void *handle, void *stream, const moe_p2p_op *ops, uint32_t n, moe_err *err) {
    (void)stream;
    instance *me = self;
    member *m = handle;
    char why[COMM_WHY_BYTES] = "group is NULL (this rank is not a member)";
    if (!m || !comm_check_p2p(ops, n, m->g->n, why)) return member_refuse(me, m, "p2p", why, err);
    moe_status s = hub_poll(me->h, err);
    if (s != MOE_OK) return s;
    s = make_room(m, n, err);
    if (s != MOE_OK) {
        hub_abort(me->h, err->msg);
        return s;
    }
    fill(m, ops, n);
    for (uint32_t i = 0; i < n; i++) post_message(m->g, &m->messages[i]);
    s = finish(m, err);
    fill(m, NULL, 0);
    if (s == MOE_OK && n) member_lag(m);
    return s;
}
