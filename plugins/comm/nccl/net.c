/* The connections of a job while it lives: the listening thread, blobs, abort, the end. See net.h. */
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <moe/options.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "net_impl.h"

enum { GOODBYE_S = 5 };

/* ---- bytes ---- */
int net_send(int fd, const void *data, size_t bytes) {
    const char *p = data;
    while (bytes) {
        const ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        p += n;
        bytes -= (size_t)n;
    }
    return 1;
}

int net_receive(int fd, void *data, size_t bytes) {
    char *p = data;
    while (bytes) {
        const ssize_t n = recv(fd, p, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = 0;
        if (n <= 0) return 0;
        p += n;
        bytes -= (size_t)n;
    }
    return 1;
}

int net_send_message(int fd, uint32_t type, uint32_t from, const void *data, uint64_t bytes) {
    const net_head head = {.magic = NET_MAGIC, .type = type, .from = from, .bytes = bytes};
    return net_send(fd, &head, sizeof head) && net_send(fd, data, bytes);
}

/* A peer that cannot be written to is found by the listening thread. */
static void tell(net *n, uint32_t to, uint32_t type, uint32_t from, const void *data, uint64_t bytes) {
    net_peer *p = &n->peers[to];
    pthread_mutex_lock(&p->send);
    if (p->fd >= 0) net_send_message(p->fd, type, from, data, bytes);
    pthread_mutex_unlock(&p->send);
}

/* To all ranks that this one is connected to, but `except`. */
static void tell_all(net *n, uint32_t except, uint32_t type, uint32_t from, const void *data, uint64_t bytes) {
    for (uint32_t r = 0; r < n->world; r++)
        if (r != except && n->peers[r].fd >= 0) tell(n, r, type, from, data, bytes);
}

/* ---- life ---- */
static void net_free(net *n) {
    for (uint32_t r = 0; n->peers && r < n->world; r++) {
        if (n->peers[r].fd >= 0) close(n->peers[r].fd);
        pthread_mutex_destroy(&n->peers[r].send);
    }
    for (int i = 0; i < 2; i++)
        if (n->wake[i] >= 0) close(n->wake[i]);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    pthread_mutex_destroy(&n->answer);
    free(n->peers);
    free(n->table);
    free(n->result);
    free(n);
}

moe_status net_open(const environment *e, uint32_t timeout_s, const moe_host *host, net **out, moe_err *err) {
    net *n = calloc(1, sizeof *n);
    if (!n) return moe_fail(err, MOE_E_NOMEM, "rank %u is out of memory", e->rank);
    n->rank = e->rank;
    n->world = e->world;
    n->timeout_s = timeout_s;
    n->host = host;
    n->wake[0] = n->wake[1] = -1;
    pthread_mutex_init(&n->answer, NULL);
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    n->peers = calloc(n->world, sizeof *n->peers);
    for (uint32_t r = 0; n->peers && r < n->world; r++) {
        n->peers[r].fd = -1;
        pthread_mutex_init(&n->peers[r].send, NULL);
    }
    moe_status s = n->peers ? net_meet(n, e, err) : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", e->world);
    n->host = NULL;
    if (s == MOE_OK && pipe2(n->wake, O_CLOEXEC) != 0)
        s = moe_fail(err, MOE_E_IO, "rank %u: pipe: %s", e->rank, strerror(errno));
    if (s == MOE_OK)
        *out = n;
    else
        net_free(n);
    return s;
}

/* ---- the end of the job ---- */
/* Under n->lock. Returns whether it is the first reason. */
static int note_end(net *n, const char *reason) {
    if (n->ended) return 0;
    snprintf(n->reason, sizeof n->reason, "%s", reason);
    n->ended = 1;
    pthread_cond_broadcast(&n->changed);
    return 1;
}

/* Heard by the listening thread. Rank 0 hands it on. */
static void end_all(net *n, uint32_t from, const char *reason) {
    char text[NET_TEXT];
    snprintf(text, sizeof text, "%s", reason);
    pthread_mutex_lock(&n->lock);
    const int first = note_end(n, text);
    pthread_mutex_unlock(&n->lock);
    if (!first) return;
    if (n->rank == 0) tell_all(n, from, NET_ABORT, from, text, strlen(text) + 1);
    n->events.ended(n->events.arg, text);
}

void net_abort(net *n, const char *reason) {
    pthread_mutex_lock(&n->lock);
    const int first = note_end(n, reason);
    pthread_mutex_unlock(&n->lock);
    if (first) tell_all(n, n->rank, NET_ABORT, n->rank, reason, strlen(reason) + 1);
}

void net_tell_left(net *n, uint64_t group_id, uint64_t calls) {
    const net_left left = {.group = group_id, .calls = calls};
    tell_all(n, n->rank, NET_LEFT, n->rank, &left, sizeof left);
}

/* ---- blobs ---- */
/* Rank 0, under n->lock: one more blob of the round. Returns the table when all are there, which is then the caller's.
 */
static char *put_blob(net *n, uint32_t rank, const void *data, uint64_t bytes, char *why, size_t room) {
    if (n->arrived == 0) {
        n->blob_bytes = bytes;
        n->table = calloc(n->world, bytes + 1);
    }
    if (!n->table || bytes != n->blob_bytes) {
        snprintf(why, room, "bootstrap: rank %u gives %" PRIu64 " bytes, others %" PRIu64, rank, bytes, n->blob_bytes);
        return NULL;
    }
    if (bytes) memcpy(n->table + rank * bytes, data, bytes);
    if (++n->arrived < n->world) return NULL;
    char *table = n->table;
    n->arrived = 0;
    n->table = NULL;
    return table;
}

/* A round's result, until this rank has fetched it: nobody begins the next one before. Takes it over. */
static void take_result(net *n, char *data, uint64_t bytes) {
    pthread_mutex_lock(&n->lock);
    free(n->result);
    n->result = data;
    n->result_bytes = bytes;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

/* No good-bye overtakes a result: rank 0 has it after the others, and theirs are handed on under n->answer too. */
static void gather_at_first(net *n, uint32_t rank, const void *data, uint64_t bytes) {
    char why[200] = "";
    pthread_mutex_lock(&n->answer);
    pthread_mutex_lock(&n->lock);
    char *table = put_blob(n, rank, data, bytes, why, sizeof why);
    pthread_mutex_unlock(&n->lock);
    if (table) {
        tell_all(n, 0, NET_BLOBS, 0, table, n->world * bytes);
        take_result(n, table, n->world * bytes);
    }
    pthread_mutex_unlock(&n->answer);
    if (why[0]) end_all(n, 0, why);
}

static uint32_t gone_rank(const net *n) { /* under n->lock; world: nobody */
    uint32_t r = 0;
    while (r < n->world && !n->peers[r].bye) r++;
    return r;
}

moe_status net_all_gather(net *n, const void *in, uint64_t bytes, void *out, moe_err *err) {
    moe_status s = MOE_OK;
    if (n->world == 1) {
        if (bytes) memcpy(out, in, bytes);
        return MOE_OK;
    }
    if (n->rank)
        tell(n, 0, NET_BLOB, n->rank, in, bytes);
    else
        gather_at_first(n, 0, in, bytes);
    pthread_mutex_lock(&n->lock);
    while (!n->result && !n->ended && gone_rank(n) == n->world) pthread_cond_wait(&n->changed, &n->lock);
    if (n->result && n->result_bytes == n->world * bytes) {
        if (bytes) memcpy(out, n->result, n->world * bytes);
    } else if (n->ended)
        s = moe_fail(err, MOE_E_COMM, "%s", n->reason);
    else if (n->result)
        s = moe_fail(err, MOE_E_COMM, "bootstrap: rank %u gives %" PRIu64 " bytes, others %" PRIu64, n->rank, bytes,
                     n->result_bytes / n->world);
    else
        s = moe_fail(err, MOE_E_COMM, "bootstrap: rank %u has left", gone_rank(n));
    free(n->result);
    n->result = NULL;
    pthread_mutex_unlock(&n->lock);
    return s;
}

/* ---- the listening thread ---- */
static void take_bye(net *n, uint32_t from) {
    pthread_mutex_lock(&n->lock);
    n->peers[from].bye = 1;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    if (n->rank) return;
    pthread_mutex_lock(&n->answer);
    tell_all(n, from, NET_BYE, from, NULL, 0);
    pthread_mutex_unlock(&n->answer);
}

/* data [bytes] ends with a zero more. Takes it over. */
static void handle(net *n, const net_head *head, char *data) {
    net_left left;
    switch (head->type) {
        case NET_BLOB:
            gather_at_first(n, head->from, data, head->bytes);
            break;
        case NET_BLOBS:
            take_result(n, data, head->bytes);
            return;
        case NET_ABORT:
            end_all(n, head->from, data);
            break;
        case NET_LEFT:
            memcpy(&left, data, sizeof left);
            if (n->rank == 0) tell_all(n, head->from, NET_LEFT, head->from, &left, sizeof left);
            n->events.left(n->events.arg, left.group, head->from, left.calls);
            break;
        case NET_BYE:
            take_bye(n, head->from);
            break;
        default:
            break;
    }
    free(data);
}

/* One message of that rank's connection; 0: it is closed. */
static int read_message(net *n, uint32_t rank) {
    net_head head;
    const int fd = n->peers[rank].fd;
    if (!net_receive(fd, &head, sizeof head)) return 0;
    if (n->rank == 0 && head.from != rank) return 0;
    if (head.magic != NET_MAGIC || head.from >= n->world || (head.type == NET_LEFT && head.bytes != sizeof(net_left)))
        return 0;
    char *data = calloc(1, head.bytes + 1);
    if (!data) return 0;
    if (!net_receive(fd, data, head.bytes)) {
        free(data);
        return 0;
    }
    handle(n, &head, data);
    return 1;
}

static void lost(net *n, uint32_t rank) {
    char text[120];
    pthread_mutex_lock(&n->lock);
    const int expected = n->peers[rank].bye || n->stopping;
    n->peers[rank].bye = 1;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    snprintf(text, sizeof text, "rank %u has ended: its process has closed the connection", rank);
    if (!expected) end_all(n, rank, text);
}

static void *listen_main(void *arg) {
    net *n = arg;
    struct pollfd *p = calloc(n->world + 1, sizeof *p);
    for (uint32_t r = 0; p && r < n->world; r++) p[r] = (struct pollfd){.fd = n->peers[r].fd, .events = POLLIN};
    if (p) p[n->world] = (struct pollfd){.fd = n->wake[0], .events = POLLIN};
    while (p && !p[n->world].revents) {
        if (poll(p, n->world + 1, -1) < 0) continue;
        for (uint32_t r = 0; r < n->world; r++) {
            if (!p[r].revents || read_message(n, r)) continue;
            p[r].fd = -1; /* the descriptor is closed at the end */
            lost(n, r);
        }
    }
    if (!p) end_all(n, n->rank, "out of memory for a list of connections");
    free(p);
    return NULL;
}

moe_status net_listen(net *n, const net_events *events, moe_err *err) {
    n->events = *events;
    if (n->world > 1 && pthread_create(&n->thread, NULL, listen_main, n) != 0)
        return moe_fail(err, MOE_E_NOMEM, "rank %u: the system refuses a thread", n->rank);
    n->listening = n->world > 1;
    return MOE_OK;
}

/* Rank 0 hands on what others say until all have said good-bye. */
static void wait_for_byes(net *n) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += GOODBYE_S;
    pthread_mutex_lock(&n->lock);
    for (uint32_t r = 1; r < n->world; r++)
        while (!n->peers[r].bye && !n->ended)
            if (pthread_cond_timedwait(&n->changed, &n->lock, &end) != 0) break;
    pthread_mutex_unlock(&n->lock);
}

void net_close(net *n) {
    if (!n) return;
    tell_all(n, n->rank, NET_BYE, n->rank, NULL, 0);
    if (n->listening && n->rank == 0) wait_for_byes(n);
    pthread_mutex_lock(&n->lock);
    n->stopping = 1;
    pthread_mutex_unlock(&n->lock);
    if (n->listening) {
        while (write(n->wake[1], "", 1) < 0 && errno == EINTR) continue;
        for (uint32_t r = 0; r < n->world; r++) /* should it wait for the rest of a message */
            if (n->peers[r].fd >= 0) shutdown(n->peers[r].fd, SHUT_RD);
        pthread_join(n->thread, NULL);
    }
    net_free(n);
}
