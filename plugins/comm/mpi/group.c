/* Groups, and the meeting of their members at the beginning of every call. On a node they meet in its shared
 * memory, across nodes by short messages; either way a call begins when all are known to make the same one. */
#include <moe/options.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "mpi_comm.h"

enum { PIECE_MOST = 256 << 10, PIECE_LEAST = 4 << 10, SCRATCH_MOST = 4 << 20 };

/* ---- waiting ---- */
/* Turns of a waiting loop: first at once (where every rank has a core), then giving the core away, then asleep. */
enum { SPINS_OWN_CORE = 2000, SPINS_SHARED_CORE = 20, YIELDS = 200, NAP_NS = 20000, NAP_MOST = 10 };

moe_status group_pause(const instance *me, uint32_t *turn, moe_err *err) {
    const uint32_t spins = me->crowded ? SPINS_SHARED_CORE : SPINS_OWN_CORE, t = (*turn)++;
    if (t < spins) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    } else if (t < spins + YIELDS) {
        sched_yield();
    } else {
        const uint32_t naps = (t - spins - YIELDS) / 50 + 1;
        nanosleep(&(struct timespec){0, NAP_NS * (long)(naps < NAP_MOST ? naps : NAP_MOST)}, NULL);
    }
    return node_watch(me->node, t, err);
}

static void begin_waiting(group *g, const comm_call *call, int what) {
    pthread_mutex_lock(&g->lock);
    g->current = node_call_pack(call);
    g->waits = what;
    pthread_mutex_unlock(&g->lock);
}

void group_tell_messages(group *g, uint32_t n_ops, uint32_t n) {
    pthread_mutex_lock(&g->lock);
    g->waits = WAIT_FOR_MESSAGES;
    g->n_ops = n_ops;
    g->shown = n;
    pthread_mutex_unlock(&g->lock);
}

static void now_waits(group *g, int what) {
    pthread_mutex_lock(&g->lock);
    g->waits = what;
    pthread_mutex_unlock(&g->lock);
}

moe_status group_leave(group *g, moe_status status) {
    now_waits(g, WAIT_NOT);
    return status;
}

moe_status group_refuse(instance *me, const group *g, const char *what, const char *why, moe_err *err) {
    moe_status s = moe_fail(err, MOE_E_ARG, "group %s: rank %u: %s: %s", g ? g->name : "(null)", me->rank, what, why);
    node_abort(me->node, err->msg);
    return s;
}

/* ---- meeting ---- */
/* The order of plain stores of this rank, the non-temporal ones too, and what others see of it. */
static void publish_stores(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_sfence();
#endif
    __sync_synchronize(); /* a fence of C11 is an error under ThreadSanitizer */
}

static moe_status exchange_calls(group *g, const node_call *call, moe_err *err) {
    moe_status s = MOE_OK;
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++) {
        if (g->slot[i]) continue;
        s = flight_receive(g, g->comm, &g->remote[i], sizeof *call, i, TAG_CALL, err);
        if (s == MOE_OK) s = flight_send(g, g->comm, call, sizeof *call, i, TAG_CALL, err);
    }
    return flight_land(g, s, err);
}

int group_has_come(const group *g, uint32_t i) {
    return (atomic_load_explicit(&g->slot[i]->calls, memory_order_acquire) & ~NODE_LEFT) >= g->calls;
}

static moe_status await_member(group *g, uint32_t i, moe_err *err) {
    uint32_t turn = 0;
    moe_status s = MOE_OK;
    while (s == MOE_OK && !group_has_come(g, i)) {
        s = group_pause(g->me, &turn, err);
        if (s == MOE_OK && atomic_load(&g->slot[i]->calls) & NODE_LEFT && !group_has_come(g, i))
            s = moe_fail(err, MOE_E_COMM, "group %s: rank %u has left", g->name, g->ranks[i]);
    }
    return s;
}

static const node_call *call_of(const group *g, uint32_t i) {
    return g->slot[i] ? &g->slot[i]->call[g->calls & 1] : &g->remote[i];
}

static moe_status compare_calls(group *g, moe_err *err) {
    const comm_call first = node_call_of(call_of(g, 0));
    for (uint32_t i = 1; i < g->n; i++) {
        const comm_call theirs = node_call_of(call_of(g, i));
        if (comm_call_same(&first, &theirs)) continue;
        comm_call_differ(g->name, g->ranks[0], &first, g->ranks[i], &theirs, err);
        node_abort(g->me->node, err->msg);
        return MOE_E_COMM;
    }
    return MOE_OK;
}

moe_status group_join(group *g, const comm_call *call, moe_err *err) {
    const uint64_t number = g->calls + 1;
    node_slot *own = g->slot[g->index];
    moe_status s = node_poll(g->me->node, err);
    if (s != MOE_OK) return s;
    begin_waiting(g, call, WAIT_FOR_CALLS);
    publish_stores();
    own->call[number & 1] = node_call_pack(call);
    g->calls = number;
    atomic_store_explicit(&own->calls, number, memory_order_release);
    if (g->me->nodes > 1) s = exchange_calls(g, &own->call[number & 1], err);
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++)
        if (g->slot[i]) s = await_member(g, i, err);
    __sync_synchronize(); /* a fence of C11 is an error under ThreadSanitizer */
    if (s == MOE_OK) s = compare_calls(g, err);
    now_waits(g, s == MOE_OK ? WAIT_FOR_DATA : WAIT_NOT);
    return s;
}

moe_status group_begin(instance *me, group *g, const comm_call *call, const void *in, const void *out, moe_err *err) {
    char why[COMM_WHY_BYTES] = "group is NULL (this rank is not a member)";
    if (!g || !comm_check(call, g->n, g->index, in, out, why))
        return group_refuse(me, g, comm_call_name(call->what), why, err);
    return group_join(g, call, err);
}

/* ---- life ---- */
group *group_new(instance *me, const char *name, MPI_Comm comm, MPI_Comm messages, const uint32_t *ranks,
                 const uint32_t *slots, uint32_t n, uint32_t index) {
    group *g = calloc(1, sizeof *g);
    moe_err err = {.size = sizeof err};
    if (!g) return NULL;
    g->me = me;
    g->comm = g->messages = MPI_COMM_NULL;
    g->n = n;
    g->index = index;
    g->own_slot = NODE_SLOTS;
    g->piece = SCRATCH_MOST / n < PIECE_LEAST  ? PIECE_LEAST
               : SCRATCH_MOST / n > PIECE_MOST ? PIECE_MOST
                                               : SCRATCH_MOST / n / 64 * 64;
    pthread_mutex_init(&g->lock, NULL);
    snprintf(g->name, sizeof g->name, "%s", name);
    g->ranks = calloc(n, sizeof *g->ranks);
    g->slot = calloc(n, sizeof *g->slot);
    g->remote = calloc(n, sizeof *g->remote);
    g->owe = calloc(n, sizeof *g->owe);
    g->sources = calloc(n, sizeof *g->sources);
    g->scratch = malloc(n * g->piece);
    if (!g->ranks || !g->slot || !g->remote || !g->owe || !g->sources || !g->scratch ||
        flight_reserve(&g->flight, 4 * n + 16, &err) != MOE_OK) {
        group_free(g);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        g->ranks[i] = ranks[i];
        g->slot[i] = node_slot_of(me->node, ranks[i], slots[i]);
    }
    g->own_slot = slots[index];
    g->comm = comm;
    g->messages = messages;
    pthread_mutex_lock(&me->lock);
    g->next = me->groups;
    me->groups = g;
    pthread_mutex_unlock(&me->lock);
    return g;
}

void group_free(group *g) {
    if (!g) return;
    if (g->own_slot < NODE_SLOTS) node_give_slot(g->me->node, g->own_slot);
    if (g->comm != MPI_COMM_NULL) MPI_Comm_free(&g->comm);
    if (g->messages != MPI_COMM_NULL) MPI_Comm_free(&g->messages);
    flight_free(&g->flight);
    free(g->ranks);
    free(g->slot);
    free(g->remote);
    free(g->owe);
    free(g->sources);
    free(g->scratch);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void mpi_group_destroy(void *self, void *handle) {
    instance *me = self;
    group **at = &me->groups, *g = handle;
    if (!g) return;
    pthread_mutex_lock(&me->lock);
    while (*at && *at != g) at = &(*at)->next;
    const int ours = *at != NULL;
    if (ours) *at = g->next;
    pthread_mutex_unlock(&me->lock);
    if (ours) group_free(g);
}

moe_status mpi_group_info(void *self, void *handle, uint32_t *n, uint32_t *index, moe_err *err) {
    const group *g = handle;
    (void)self;
    if (!g) return moe_fail(err, MOE_E_ARG, "group_info: group is NULL (this rank is not a member)");
    *n = g->n;
    *index = g->index;
    return MOE_OK;
}
