/* How the processes of a job come together: rank 0 listens where MASTER_ADDR and MASTER_PORT say, the others come and
 * say who they are, and are let in when all are there and everything fits. Without an address, processes of a named job
 * on one machine meet at an abstract local socket. See net.h. */
#include <errno.h>
#include <fcntl.h>
#include <moe/options.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "net_impl.h"
#include "text.h"

enum { HELLO_MS = 5000, CONNECT_MS = 5000, RETRY_MS = 50, LOOK_MS = 200, CALLERS = 64 };

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int left_ms(int64_t end, int most) {
    const int64_t left = end - now_ms();
    return left < 0 ? 0 : left < most ? (int)left : most;
}

/* Where rank 0 is, for messages. */
static void describe(const environment *e, char *text, size_t bytes) {
    if (e->address[0])
        snprintf(text, bytes, "%.200s port %s", e->address, e->port);
    else
        snprintf(text, bytes, "the local socket of job %s", e->job);
}

static void describe_peer(int fd, char *text, size_t bytes) {
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    char host[64], port[16];
    if (getpeername(fd, (struct sockaddr *)&a, &n) == 0 && a.ss_family != AF_UNIX &&
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) ==
            0)
        snprintf(text, bytes, "%s port %s", host, port);
    else
        snprintf(text, bytes, "this machine");
}

static socklen_t job_address(const environment *e, struct sockaddr_un *a) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX}; /* abstract: begins with a zero */
    const int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "moehost-nccl-%.80s", e->job);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void set_up(int fd) {
    const int one = 1;
    const struct timeval patience = {.tv_sec = 30};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

static int is_loopback(const char *address) {
    return strcmp(address, "localhost") == 0 || strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* ---- rank 0 ---- */
static int listen_at(const struct sockaddr *a, socklen_t n) {
    const int one = 1, fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int zero = 0;
    if (fd < 0) return -1;
    if (a->sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, a, n) == 0 && listen(fd, 128) == 0) return fd;
    const int failed = errno;
    close(fd);
    errno = failed;
    return -1;
}

/* An address of this machine's own network is for this machine; else all its addresses, as a name may mean another one
 * here than it does elsewhere. */
static moe_status open_listener(const environment *e, int *out, moe_err *err) {
    struct sockaddr_un local;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    int fd = -1, failed = 0;
    char where[300];
    describe(e, where, sizeof where);
    if (!e->address[0]) {
        const socklen_t n = job_address(e, &local);
        fd = listen_at((struct sockaddr *)&local, n);
        failed = errno;
    } else {
        const int code = getaddrinfo(is_loopback(e->address) ? e->address : NULL, e->port, &hints, &list);
        if (code) return moe_fail(err, MOE_E_COMM, "rank 0: MASTER_ADDR %.200s: %s", e->address, gai_strerror(code));
        for (int pass = 0; pass < 2 && fd < 0 && failed != EADDRINUSE; pass++) /* IPv6 takes both kinds */
            for (const struct addrinfo *a = list; a && fd < 0 && failed != EADDRINUSE; a = a->ai_next)
                if ((a->ai_family == AF_INET6) == (pass == 0) && (fd = listen_at(a->ai_addr, a->ai_addrlen)) < 0)
                    failed = errno;
        freeaddrinfo(list);
    }
    *out = fd;
    if (fd >= 0) return MOE_OK;
    if (failed == EADDRINUSE)
        return moe_fail(err, MOE_E_COMM,
                        "rank 0: %s is in use: by another job, or a second process that is rank 0, or the launcher's "
                        "own store; set another MASTER_PORT for all",
                        where);
    return moe_fail(err, MOE_E_COMM, "rank 0 cannot listen at %s: %s", where, strerror(failed));
}

static void refuse_stranger(const net *n, int fd) {
    char who[120], text[240];
    describe_peer(fd, who, sizeof who);
    snprintf(text, sizeof text, "comm/nccl: rank 0: a connection from %s is not of this job: closed", who);
    if (n->host && n->host->log) n->host->log(n->host->ctx, MOE_LOG_WARN, text);
    close(fd);
}

static moe_status admit(net *n, int fd, const net_head *head, const net_hello *hello, moe_err *err) {
    char who[120], first[120];
    describe_peer(fd, who, sizeof who);
    if (hello->version != NET_VERSION)
        return moe_fail(err, MOE_E_COMM, "the process at %s has version %u of comm/nccl's start, rank 0 has %d", who,
                        hello->version, NET_VERSION);
    if (hello->world != n->world)
        return moe_fail(err, MOE_E_COMM, "rank %u at %s was started as one of %u ranks, rank 0 as one of %u",
                        head->from, who, hello->world, n->world);
    if (head->from == 0 || head->from >= n->world)
        return moe_fail(err, MOE_E_COMM, "the process at %s says that it is rank %u of %u", who, head->from, n->world);
    if (n->peers[head->from].fd >= 0) {
        describe_peer(n->peers[head->from].fd, first, sizeof first);
        return moe_fail(err, MOE_E_COMM, "two processes are rank %u: one at %s, one at %s", head->from, first, who);
    }
    n->peers[head->from].fd = fd;
    return MOE_OK;
}

static moe_status fail_missing(const net *n, const environment *e, moe_err *err) {
    char where[300], ranks[160];
    comm_list missing = {0};
    comm_text t = comm_text_begin(ranks, sizeof ranks);
    for (uint32_t r = 1; r < n->world; r++)
        if (n->peers[r].fd < 0) comm_list_add(&missing, r);
    comm_text_add_list(&t, &missing, ", ");
    describe(e, where, sizeof where);
    return moe_fail(err, MOE_E_COMM, "rank 0 waited %u s at %s for %s %s of %u", n->timeout_s, where,
                    missing.n > 1 ? "ranks" : "rank", ranks, n->world);
}

/* Whoever connects says who it is within moments, or is a stranger; nobody waits for another's words. */
typedef struct caller {
    int fd;
    int64_t end; /* of its time */
    size_t got;  /* bytes of `said` */
    struct {
        net_head head;
        net_hello hello;
    } said;
} caller;
typedef struct door {
    int listener;
    uint32_t n, missing;
    caller callers[CALLERS];
} door;

static void add_caller(door *d) {
    const int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    set_up(fd);
    d->callers[d->n++] = (caller){.fd = fd, .end = now_ms() + HELLO_MS};
}

/* 1: it has said all; 0: not yet; -1: it is not of this job. */
static int hear(caller *c) {
    const ssize_t n = recv(c->fd, (char *)&c->said + c->got, sizeof c->said - c->got, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return -1;
    if (n > 0) c->got += (size_t)n;
    const net_head *h = &c->said.head;
    if (c->got >= sizeof h->magic && h->magic != NET_MAGIC) return -1;
    if (c->got >= sizeof *h && (h->type != NET_HELLO || h->bytes != sizeof c->said.hello)) return -1;
    return c->got == sizeof c->said ? 1 : 0;
}

/* Lets callers in, or sends them away. The first of this job that does not fit is the end of the start. */
static moe_status hear_all(net *n, door *d, moe_err *err) {
    moe_status s = MOE_OK;
    for (uint32_t i = d->n; i-- > 0 && s == MOE_OK;) {
        caller *c = &d->callers[i];
        const int heard = hear(c);
        if (heard == 0 && now_ms() < c->end) continue;
        if (heard > 0) s = admit(n, c->fd, &c->said.head, &c->said.hello, err);
        if (s != MOE_OK) return s;
        if (heard > 0)
            d->missing--;
        else
            refuse_stranger(n, c->fd);
        *c = d->callers[--d->n];
    }
    return s;
}

static moe_status accept_all(net *n, const environment *e, int listener, moe_err *err) {
    const int64_t end = now_ms() + (int64_t)n->timeout_s * 1000;
    door *d = calloc(1, sizeof *d);
    moe_status s = d ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "rank 0 is out of memory");
    if (d) *d = (door){.listener = listener, .missing = n->world - 1};
    while (s == MOE_OK && d->missing) {
        struct pollfd p[CALLERS + 1];
        for (uint32_t i = 0; i < d->n; i++) p[i] = (struct pollfd){.fd = d->callers[i].fd, .events = POLLIN};
        p[d->n] = (struct pollfd){.fd = d->n < CALLERS ? listener : -1, .events = POLLIN};
        poll(p, d->n + 1, left_ms(end, LOOK_MS));
        if (p[d->n].revents) add_caller(d);
        s = hear_all(n, d, err);
        if (s == MOE_OK && d->missing && now_ms() >= end) s = fail_missing(n, e, err);
    }
    for (uint32_t i = 0; d && i < d->n; i++) {
        if (s != MOE_OK) net_send_message(d->callers[i].fd, NET_REFUSED, 0, err->msg, strlen(err->msg) + 1);
        close(d->callers[i].fd);
    }
    free(d);
    return s;
}

static moe_status meet_as_first(net *n, const environment *e, moe_err *err) {
    int listener = -1;
    moe_status s = open_listener(e, &listener, err);
    if (s != MOE_OK) return s;
    s = accept_all(n, e, listener, err);
    close(listener); /* before anybody goes on, and perhaps comes again for another instance */
    for (uint32_t r = 1; r < n->world; r++) {
        const int fd = n->peers[r].fd;
        if (fd < 0) continue;
        if (s != MOE_OK)
            net_send_message(fd, NET_REFUSED, 0, err->msg, strlen(err->msg) + 1);
        else if (!net_send_message(fd, NET_WELCOME, 0, NULL, 0))
            s = moe_fail(err, MOE_E_COMM, "rank %u has ended at the start", r);
    }
    return s;
}

/* ---- the others ---- */
static int connect_to(const struct sockaddr *a, socklen_t n, int ms) {
    const int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int failed = connect(fd, a, n) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t size = sizeof failed;
        if (poll(&p, 1, ms) <= 0)
            failed = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0)
            failed = errno;
    }
    if (!failed) {
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
        set_up(fd);
        return fd;
    }
    close(fd);
    errno = failed;
    return -1;
}

/* *why: of the last address tried. */
static int connect_once(const environment *e, int ms, char *why, size_t bytes) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    struct sockaddr_un local;
    int fd = -1;
    if (!e->address[0]) {
        const socklen_t n = job_address(e, &local);
        fd = connect_to((struct sockaddr *)&local, n, ms);
        if (fd < 0) snprintf(why, bytes, "%s", strerror(errno));
        return fd;
    }
    const int code = getaddrinfo(e->address, e->port, &hints, &list);
    if (code) {
        snprintf(why, bytes, "%s", gai_strerror(code));
        return -1;
    }
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = connect_to(a->ai_addr, a->ai_addrlen, ms);
        if (fd < 0) snprintf(why, bytes, "%s", strerror(errno));
    }
    freeaddrinfo(list);
    return fd;
}

/* As net_receive, but no longer than that. */
static int receive_until(int fd, void *data, size_t bytes, int64_t end) {
    char *p = data;
    while (bytes) {
        struct pollfd f = {.fd = fd, .events = POLLIN};
        const int ready = poll(&f, 1, left_ms(end, LOOK_MS));
        if (ready <= 0 && now_ms() >= end) return 0;
        if (ready <= 0) continue;
        const ssize_t n = recv(fd, p, bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n <= 0) return 0;
        p += n;
        bytes -= (size_t)n;
    }
    return 1;
}

/* What rank 0 answers: 1 = come in, -1 = refused, with err; 0 = try again, it was not there for this. */
static int ask_to_enter(const net *n, int fd, int64_t end, moe_err *err) {
    const net_hello hello = {.version = NET_VERSION, .world = n->world};
    net_head head;
    char text[sizeof err->msg] = "";
    if (!net_send_message(fd, NET_HELLO, n->rank, &hello, sizeof hello)) return 0;
    if (!receive_until(fd, &head, sizeof head, end)) return 0;
    if (head.magic != NET_MAGIC) {
        moe_fail(err, MOE_E_COMM, "what listens there is not rank 0 of comm/nccl");
        return -1;
    }
    if (head.type == NET_WELCOME) return 1;
    if (head.type != NET_REFUSED || head.bytes > sizeof text || !receive_until(fd, text, head.bytes, end)) return 0;
    text[sizeof text - 1] = 0;
    moe_fail(err, MOE_E_COMM, "%s", text);
    return -1;
}

static moe_status meet_as_other(net *n, const environment *e, moe_err *err) {
    const int64_t end = now_ms() + (int64_t)n->timeout_s * 1000;
    char why[120] = "no answer", where[300];
    describe(e, where, sizeof where);
    do {
        const int fd = connect_once(e, left_ms(end, CONNECT_MS), why, sizeof why);
        const int answer = fd < 0 ? 0 : ask_to_enter(n, fd, end, err);
        if (answer > 0) n->peers[0].fd = fd;
        if (answer > 0) return MOE_OK;
        if (fd >= 0) {
            close(fd);
            snprintf(why, sizeof why, "it closed the connection");
        }
        if (answer < 0) return MOE_E_COMM;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
    } while (now_ms() < end);
    return moe_fail(err, MOE_E_COMM, "rank %u did not reach rank 0 at %s within %u s: %s", n->rank, where, n->timeout_s,
                    why);
}

moe_status net_meet(net *n, const environment *e, moe_err *err) {
    moe_status s = environment_check_meeting(e, err);
    if (s != MOE_OK || n->world == 1) return s;
    return n->rank == 0 ? meet_as_first(n, e, err) : meet_as_other(n, e, err);
}
