/* Shared memory of a node, and messages of an abort to others. */
#include "node.h"

#include <errno.h>
#include <inttypes.h>
#include <moe/options.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory.h"

enum { TAG_ABORT = 1, ABORTING = 1, ABORTED = 2 };
enum { LOOK_TURNS = 32, LOOK_NS = 250000000 };

/* One rank's part of the memory. */
typedef struct segment {
    int64_t pid;
    uint64_t pid_space; /* numbers of processes mean the same to ranks that have the same */
    node_slot slots[NODE_SLOTS];
} segment;

typedef struct shared {
    _Atomic uint32_t aborted; /* 0, ABORTING while the reason is written, ABORTED */
    char reason[NODE_REASON];
    segment of[] __attribute__((aligned(NODE_CACHE_LINE))); /* [ranks of the node] */
} shared;

struct node {
    MPI_Comm all;
    uint32_t rank, world, n, nodes; /* n: ranks of this node */
    uint32_t *home, *place;         /* [world] lowest rank of the node, and which rank of it */
    uint32_t *here;                 /* [n] the ranks of this node */
    shared *s;
    size_t bytes;
    pthread_mutex_t lock; /* used, next */
    uint8_t used[NODE_SLOTS];
    uint32_t next;
    _Atomic int64_t looked; /* ns, last look for ranks that have ended */
    char told[NODE_REASON]; /* what is sent to other nodes */
};

node_call node_call_pack(const comm_call *c) {
    node_call out = {.call = *c};
    if (c->name) snprintf(out.name, sizeof out.name, "%s", c->name);
    out.call.name = NULL;
    return out;
}

comm_call node_call_of(const node_call *c) {
    comm_call out = c->call;
    out.name = c->name;
    return out;
}

/* ---- who is where ---- */
static uint64_t pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static moe_status mpi_says(const char *what, int code, moe_err *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    return moe_fail(err, MOE_E_COMM, "%s: %.300s", what, text);
}

/* The ranks that share memory, or virtual_node of them. */
static int split_node(MPI_Comm all, int rank, uint32_t virtual_node, MPI_Comm *out) {
    MPI_Comm sharing = MPI_COMM_NULL;
    int place = 0, code = MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &sharing);
    if (code != MPI_SUCCESS || !virtual_node) {
        *out = sharing;
        return code;
    }
    MPI_Comm_rank(sharing, &place);
    code = MPI_Comm_split(sharing, place / (int)virtual_node, rank, out);
    MPI_Comm_free(&sharing);
    return code;
}

static moe_status find_homes(node *n, MPI_Comm here, moe_err *err) {
    int size = 0, place = 0;
    uint32_t mine[2] = {n->rank, 0};
    MPI_Comm_size(here, &size);
    MPI_Comm_rank(here, &place);
    n->n = (uint32_t)size;
    n->here = calloc(n->n, sizeof *n->here);
    n->home = calloc((size_t)n->world * 2, sizeof *n->home);
    uint32_t *both = calloc((size_t)n->world * 2, sizeof *both);
    int fits = n->here && n->home && both, all_fit = 0;
    int code = MPI_Allreduce(&fits, &all_fit, 1, MPI_INT, MPI_MIN, n->all);
    if (code == MPI_SUCCESS && all_fit) code = MPI_Bcast(&mine[0], 1, MPI_UINT32_T, 0, here);
    mine[1] = (uint32_t)place;
    if (code == MPI_SUCCESS && all_fit) code = MPI_Allgather(mine, 2, MPI_UINT32_T, both, 2, MPI_UINT32_T, n->all);
    if (code == MPI_SUCCESS && all_fit) {
        n->place = n->home + n->world;
        for (uint32_t r = 0; r < n->world; r++) {
            n->home[r] = both[2 * r];
            n->place[r] = both[2 * r + 1];
            n->nodes += n->home[r] == r;
            if (n->home[r] == mine[0]) n->here[n->place[r]] = r;
        }
    }
    free(both);
    if (code != MPI_SUCCESS) return mpi_says("finding the ranks of a node", code, err);
    return all_fit ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", n->world);
}

/* ---- the memory ---- */
static moe_status share_memory(node *n, MPI_Comm here, moe_err *err) {
    const int first = n->home[n->rank] == n->rank;
    char name[MEMORY_NAME] = "";
    n->bytes = sizeof(shared) + n->n * sizeof(segment);
    if (first) n->s = memory_make(n->bytes, name);
    const int why = errno;
    int code = MPI_Bcast(name, MEMORY_NAME, MPI_CHAR, 0, here);
    if (!first && code == MPI_SUCCESS) n->s = memory_open(n->bytes, name);
    int fits = n->s != NULL, all_fit = 0;
    if (n->s) {
        segment *own = &n->s->of[n->place[n->rank]];
        own->pid = (int64_t)getpid();
        own->pid_space = pid_space();
    }
    if (code == MPI_SUCCESS) code = MPI_Allreduce(&fits, &all_fit, 1, MPI_INT, MPI_MIN, n->all);
    if (first) memory_unname(name);
    if (code != MPI_SUCCESS) return mpi_says("sharing memory", code, err);
    if (!fits)
        return moe_fail(err, MOE_E_NOMEM, "rank %u cannot share %zu bytes of memory with its node: %s", n->rank,
                        n->bytes, strerror(first ? why : errno));
    return all_fit ? MOE_OK : moe_fail(err, MOE_E_COMM, "a rank cannot share memory with its node");
}

moe_status node_create(MPI_Comm all, uint32_t virtual_node, node **out, moe_err *err) {
    int rank = 0, world = 0;
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &world);
    node *n = calloc(1, sizeof *n);
    int fits = n != NULL, all_fit = 0, code = MPI_Allreduce(&fits, &all_fit, 1, MPI_INT, MPI_MIN, all);
    if (code != MPI_SUCCESS || !all_fit) {
        free(n);
        return code == MPI_SUCCESS ? moe_fail(err, MOE_E_NOMEM, "a rank is out of memory")
                                   : mpi_says("MPI_Allreduce", code, err);
    }
    pthread_mutex_init(&n->lock, NULL);
    n->all = all;
    n->rank = (uint32_t)rank;
    n->world = (uint32_t)world;
    code = split_node(all, rank, virtual_node, &here);
    moe_status s = code == MPI_SUCCESS ? find_homes(n, here, err) : mpi_says("MPI_Comm_split_type", code, err);
    if (s == MOE_OK) s = share_memory(n, here, err);
    if (here != MPI_COMM_NULL) MPI_Comm_free(&here);
    if (s == MOE_OK)
        *out = n;
    else
        node_free(n);
    return s;
}

void node_free(node *n) {
    if (!n) return;
    memory_close(n->s, n->bytes);
    free(n->home);
    free(n->here);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* ---- slots ---- */
uint32_t node_take_slot(node *n) {
    uint32_t found = NODE_SLOTS;
    pthread_mutex_lock(&n->lock);
    for (uint32_t i = 0; i < NODE_SLOTS && found == NODE_SLOTS; i++) {
        const uint32_t k = (n->next + i) % NODE_SLOTS;
        if (!n->used[k]) found = k;
    }
    if (found < NODE_SLOTS) {
        n->used[found] = 1;
        n->next = found + 1; /* a slow peer may still look at those given back of late */
        atomic_store(&n->s->of[n->place[n->rank]].slots[found].calls, 0);
    }
    pthread_mutex_unlock(&n->lock);
    return found;
}

void node_give_slot(node *n, uint32_t slot) {
    if (slot >= NODE_SLOTS) return;
    atomic_fetch_or(&n->s->of[n->place[n->rank]].slots[slot].calls, NODE_LEFT);
    pthread_mutex_lock(&n->lock);
    n->used[slot] = 0;
    pthread_mutex_unlock(&n->lock);
}

node_slot *node_slot_of(const node *n, uint32_t rank, uint32_t slot) {
    return n->home[rank] == n->home[n->rank] ? &n->s->of[n->place[rank]].slots[slot] : NULL;
}

uint32_t node_of(const node *n, uint32_t rank) {
    return n->home[rank];
}

int node_is_crowded(const node *n) {
    return sysconf(_SC_NPROCESSORS_ONLN) < (long)n->n;
}

uint32_t node_count(const node *n) {
    return n->nodes;
}

/* ---- abort ---- */
/* 1: this reason is the node's. */
static int note_abort(node *n, const char *reason) {
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&n->s->aborted, &none, ABORTING)) return 0;
    snprintf(n->s->reason, sizeof n->s->reason, "%s", reason);
    atomic_store(&n->s->aborted, ABORTED);
    return 1;
}

void node_abort(node *n, const char *reason) {
    if (!note_abort(n, reason) || n->nodes == 1) return;
    snprintf(n->told, sizeof n->told, "%s", reason);
    for (uint32_t r = 0; r < n->world; r++) {
        MPI_Request request;
        if (n->home[r] == n->home[n->rank]) continue;
        if (MPI_Isend(n->told, NODE_REASON, MPI_CHAR, (int)r, TAG_ABORT, n->all, &request) == MPI_SUCCESS)
            MPI_Request_free(&request); /* short: MPI has it already */
    }
}

/* Did another node send its reason? */
static void hear_abort(node *n) {
    char reason[NODE_REASON] = "";
    MPI_Message message;
    int there = 0;
    if (MPI_Improbe(MPI_ANY_SOURCE, TAG_ABORT, n->all, &there, &message, MPI_STATUS_IGNORE) != MPI_SUCCESS || !there)
        return;
    if (MPI_Mrecv(reason, NODE_REASON, MPI_CHAR, &message, MPI_STATUS_IGNORE) == MPI_SUCCESS) note_abort(n, reason);
}

static moe_status poll_here(node *n, moe_err *err) {
    const uint32_t state = atomic_load_explicit(&n->s->aborted, memory_order_acquire);
    if (!state) return MOE_OK;
    return moe_fail(err, MOE_E_COMM, "%s", state == ABORTED ? n->s->reason : "aborted");
}

moe_status node_poll(node *n, moe_err *err) {
    if (n->nodes > 1) hear_abort(n);
    return poll_here(n, err);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void find_ended(node *n) {
    const segment *own = &n->s->of[n->place[n->rank]];
    for (uint32_t i = 0; i < n->n; i++) {
        const segment *s = &n->s->of[i];
        if (s->pid_space != own->pid_space || !own->pid_space || kill((pid_t)s->pid, 0) == 0 || errno != ESRCH)
            continue;
        char reason[NODE_REASON];
        snprintf(reason, sizeof reason, "rank %u (process %" PRId64 ") has ended", n->here[i], s->pid);
        node_abort(n, reason);
        return;
    }
}

moe_status node_watch(node *n, uint32_t turn, moe_err *err) {
    if (turn % LOOK_TURNS == 0) {
        if (n->nodes > 1) hear_abort(n);
        const int64_t now = now_ns();
        int64_t last = atomic_load(&n->looked);
        if (now - last > LOOK_NS && atomic_compare_exchange_strong(&n->looked, &last, now)) find_ended(n);
    }
    return poll_here(n, err);
}
