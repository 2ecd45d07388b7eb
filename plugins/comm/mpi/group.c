/* Groups: split, and the meeting of their members at the beginning of every call. On a node they meet in its shared
 * memory, across nodes by short messages; either way a call begins when all are known to make the same one. */
#include <moe/options.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static void begin_waiting(group *g, const node_call *call, int what) {
    pthread_mutex_lock(&g->lock);
    g->current = *call;
    g->waits = what;
    pthread_mutex_unlock(&g->lock);
}

void group_begin_messages(group *g, const node_call *call) {
    begin_waiting(g, call, WAIT_FOR_MESSAGES);
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
    atomic_thread_fence(memory_order_seq_cst);
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

/* Has member i, of this node, entered this rank's call? */
static int has_come(const group *g, uint32_t i) {
    return (atomic_load_explicit(&g->slot[i]->calls, memory_order_acquire) & ~NODE_LEFT) >= g->calls;
}

static moe_status await_member(group *g, uint32_t i, moe_err *err) {
    uint32_t turn = 0;
    moe_status s = MOE_OK;
    while (s == MOE_OK && !has_come(g, i)) {
        s = group_pause(g->me, &turn, err);
        if (s == MOE_OK && atomic_load(&g->slot[i]->calls) & NODE_LEFT && !has_come(g, i))
            s = moe_fail(err, MOE_E_COMM, "group %s: rank %u has left", g->name, g->ranks[i]);
    }
    return s;
}

static const node_call *call_of(const group *g, uint32_t i) {
    return g->slot[i] ? &g->slot[i]->call[g->calls & 1] : &g->remote[i];
}

moe_status group_join(group *g, const node_call *call, moe_err *err) {
    const uint64_t number = g->calls + 1;
    node_slot *own = g->slot[g->index];
    moe_status s = node_poll(g->me->node, err);
    if (s != MOE_OK) return s;
    begin_waiting(g, call, WAIT_FOR_CALLS);
    window_sync(g);
    publish_stores();
    own->call[number & 1] = *call;
    atomic_store_explicit(&own->calls, number, memory_order_release);
    g->calls = number;
    if (g->me->nodes > 1) s = exchange_calls(g, call, err);
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++)
        if (g->slot[i]) s = await_member(g, i, err);
    atomic_thread_fence(memory_order_seq_cst);
    window_sync(g);
    for (uint32_t i = 0; i < g->n && s == MOE_OK; i++) {
        const node_call *theirs = call_of(g, i);
        if (node_same_call(call_of(g, 0), theirs)) continue;
        char first[120], other[120];
        node_describe(call_of(g, 0), first, sizeof first);
        node_describe(theirs, other, sizeof other);
        s = moe_fail(err, MOE_E_COMM, "group %s: rank %u calls %s, rank %u calls %s", g->name, g->ranks[0], first,
                     g->ranks[i], other);
        node_abort(g->me->node, err->msg);
    }
    now_waits(g, s == MOE_OK ? WAIT_FOR_DATA : WAIT_NOT);
    return s;
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
    const instance *me = self;
    const group *g = handle ? handle : me->whole;
    (void)err;
    *n = g->n;
    *index = g->index;
    return MOE_OK;
}

/* ---- split ---- */
/* What a member says of itself. */
typedef struct choice {
    uint32_t color, slot; /* NODE_SLOTS: none was left */
    uint32_t rank, ok;
} choice;

/* The members of this rank's color: their ranks and slots, in the order of the parent. Returns their number. */
static uint32_t gather_color(const choice *all, uint32_t n, uint32_t own, uint32_t *ranks, uint32_t *slots,
                             uint32_t *index, uint32_t *first) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].color != all[own].color) continue;
        if (!found) *first = i;
        if (i == own) *index = found;
        ranks[found] = all[i].rank;
        slots[found++] = all[i].slot;
    }
    return found;
}

static moe_status check_choices(const choice *all, uint32_t n, const char *name, moe_err *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (!all[i].ok) return moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory", name, all[i].rank);
        if (all[i].color != MOE_NO_GROUP && all[i].slot >= NODE_SLOTS)
            return moe_fail(err, MOE_E_UNSUPPORTED, "group %s: rank %u has %d groups already", name, all[i].rank,
                            NODE_SLOTS);
    }
    return MOE_OK;
}

/* All members of the parent are here: MPI's own calls, which block, end soon. */
static moe_status make_comms(const group *parent, int color, MPI_Comm out[2], moe_err *err) {
    for (int i = 0; i < 2; i++) {
        int code = MPI_Comm_split(parent->comm, color, (int)parent->index, &out[i]);
        if (code != MPI_SUCCESS) return mpi_fail("MPI_Comm_split", code, err);
        if (out[i] != MPI_COMM_NULL) MPI_Comm_set_errhandler(out[i], MPI_ERRORS_RETURN);
    }
    return MOE_OK;
}

moe_status mpi_group_split(void *self, void *handle, const char *name, uint32_t color, void **out, moe_err *err) {
    instance *me = self;
    group *parent = handle ? handle : me->whole, *made = NULL;
    const uint32_t n = parent->n;
    node_call call = {.what = CALL_GROUP_SPLIT, .dtype = -1, .op = -1};
    choice *all = calloc(n, sizeof *all), own = {.color = color, .rank = me->rank, .slot = NODE_SLOTS};
    uint32_t *members = calloc((size_t)n * 2, sizeof *members), index = 0, first = 0, found = 0;
    MPI_Comm comms[2] = {MPI_COMM_NULL, MPI_COMM_NULL};
    snprintf(call.name, sizeof call.name, "%s", name);
    own.ok = all && members;
    if (color != MOE_NO_GROUP) own.slot = node_take_slot(me->node);
    moe_status s =
        own.ok ? group_join(parent, &call, err) : group_refuse(me, parent, "group_split", "out of memory", err);
    if (s == MOE_OK) s = collect_blobs(parent, &own, sizeof own, all, err);
    if (s == MOE_OK) s = check_choices(all, n, name, err);
    if (s == MOE_OK) {
        found = gather_color(all, n, parent->index, members, members + n, &index, &first);
        s = make_comms(parent, color == MOE_NO_GROUP ? MPI_UNDEFINED : (int)first, comms, err);
    }
    if (s == MOE_OK && color != MOE_NO_GROUP) {
        made = group_new(me, name, comms[0], comms[1], members, members + n, found, index);
        if (!made) s = moe_fail(err, MOE_E_NOMEM, "group %s: out of memory for %u ranks", name, found);
        if (!made) node_abort(me->node, err->msg); /* the others have theirs */
    }
    if (s == MOE_OK) *out = made;
    if (!made) node_give_slot(me->node, own.slot);
    free(all);
    free(members);
    return group_leave(parent, s);
}

/* ---- who is missing ---- */
/* Does this rank wait for member i? */
static int misses(const group *g, uint32_t i) {
    if (i == g->index) return 0;
    if (g->slot[i] && g->waits == WAIT_FOR_CALLS) return !has_come(g, i);
    return atomic_load_explicit(&g->owe[i], memory_order_relaxed);
}

static size_t put(char *text, size_t bytes, size_t used, const char *word, uint32_t number) {
    char one[32];
    int n = snprintf(one, sizeof one, "%s%u", word, number);
    if (used + (size_t)n < bytes) memcpy(text + used, one, (size_t)n + 1);
    return used + (size_t)n < bytes ? used + (size_t)n : used;
}

static void list_missing(const group *g, char *text, size_t bytes) {
    enum { SHOWN = 16 };
    char call[120], missing[160] = "", members[120] = "";
    size_t used = 0, told = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        if (i < SHOWN) told = put(members, sizeof members, told, " ", g->ranks[i]);
        if (!misses(g, i)) continue;
        if (n++ < SHOWN) used = put(missing, sizeof missing, used, used ? ", " : " ", g->ranks[i]);
    }
    if (!n) return;
    node_describe(&g->current, call, sizeof call);
    snprintf(text, bytes, "%s on group %s of ranks%s%s: %s%s%s %s", call, g->name, members, g->n > SHOWN ? " ..." : "",
             n == 1 ? "rank" : "ranks", missing, n > SHOWN ? " ..." : "",
             g->waits == WAIT_FOR_DATA ? (n == 1 ? "does not go on" : "do not go on")
                                       : (n == 1 ? "has not come" : "have not come"));
}

static void waiting_in(group *g, char *text, size_t bytes) {
    pthread_mutex_lock(&g->lock);
    if (g->waits != WAIT_NOT) list_missing(g, text, bytes);
    pthread_mutex_unlock(&g->lock);
}

void mpi_waiting(void *self, void *handle, char *text, uint64_t bytes) {
    instance *me = self;
    if (!bytes) return;
    text[0] = 0;
    pthread_mutex_lock(&me->lock);
    for (group *g = me->groups; g && !text[0]; g = g->next)
        if (!handle || handle == g) waiting_in(g, text, bytes);
    pthread_mutex_unlock(&me->lock);
}
