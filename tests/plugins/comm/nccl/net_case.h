/* What the tests of comm/nccl's start share: ranks as threads, each with its end of the net, and free ports. */
#ifndef TESTS_NET_CASE_H
#define TESTS_NET_CASE_H
#include <arpa/inet.h>
#include <check.h>
#include <net_impl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { NET_RANKS = 8 };

typedef struct net_rank {
    environment e;
    uint32_t timeout_s;
    net *n;
    moe_status status;
    moe_err err;
    pthread_t thread;
    /* what it has heard */
    pthread_mutex_t lock;
    char ended[NET_TEXT];
    uint64_t left_group, left_calls;
    uint32_t left_rank, n_ended, n_left;
} net_rank;

static inline double net_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A port that nobody listened at a moment ago. */
static inline uint16_t net_free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(bind(fd, (struct sockaddr *)&a, n) == 0 && getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* Connected to that port of this machine, once somebody listens; -1 after 5 s. */
static inline int net_dial(uint16_t port) {
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 500; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (const struct sockaddr *)&a, sizeof a) == 0) return fd;
        close(fd);
        usleep(10000);
    }
    return -1;
}

/* n ranks that are to meet at that port. */
static inline void net_prepare(net_rank *ranks, uint32_t n, uint16_t port, uint32_t timeout_s) {
    for (uint32_t r = 0; r < n; r++) {
        ranks[r] = (net_rank){.e = {.rank = r, .world = n, .local = r}, .timeout_s = timeout_s};
        ranks[r].err.size = sizeof(moe_err);
        strcpy(ranks[r].e.address, "127.0.0.1");
        snprintf(ranks[r].e.port, sizeof ranks[r].e.port, "%hu", port);
        pthread_mutex_init(&ranks[r].lock, NULL);
    }
}

static inline void net_heard_end(void *arg, const char *reason) {
    net_rank *r = arg;
    pthread_mutex_lock(&r->lock);
    snprintf(r->ended, sizeof r->ended, "%s", reason);
    r->n_ended++;
    pthread_mutex_unlock(&r->lock);
}
static inline void net_heard_left(void *arg, uint64_t group, uint32_t rank, uint64_t calls) {
    net_rank *r = arg;
    pthread_mutex_lock(&r->lock);
    r->left_group = group;
    r->left_rank = rank;
    r->left_calls = calls;
    r->n_left++;
    pthread_mutex_unlock(&r->lock);
}

static inline void *net_open_main(void *arg) {
    net_rank *r = arg;
    const net_events events = {.arg = r, .ended = net_heard_end, .left = net_heard_left};
    r->status = net_open(&r->e, r->timeout_s, NULL, &r->n, &r->err);
    if (r->status == MOE_OK) r->status = net_listen(r->n, &events, &r->err);
    return NULL;
}
static inline void net_begin(net_rank *r) {
    ck_assert_int_eq(pthread_create(&r->thread, NULL, net_open_main, r), 0);
}
static inline void net_join(net_rank *ranks, uint32_t n) {
    for (uint32_t r = 0; r < n; r++) pthread_join(ranks[r].thread, NULL);
}
static inline void net_meet_all(net_rank *ranks, uint32_t n) {
    for (uint32_t r = 0; r < n; r++) net_begin(&ranks[r]);
    net_join(ranks, n);
    for (uint32_t r = 0; r < n; r++) ck_assert_msg(ranks[r].status == MOE_OK, "rank %u: %s", r, ranks[r].err.msg);
}

static inline void *net_close_main(void *arg) {
    net_close(((net_rank *)arg)->n);
    return NULL;
}
static inline void net_close_all(net_rank *ranks, uint32_t n) {
    for (uint32_t r = 0; r < n; r++) pthread_create(&ranks[r].thread, NULL, net_close_main, &ranks[r]);
    net_join(ranks, n);
}

/* Until that rank has heard the end, at most 5 s; its reason. */
static inline const char *net_wait_end(net_rank *r) {
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&r->lock);
        const uint32_t n = r->n_ended;
        pthread_mutex_unlock(&r->lock);
        if (n) return r->ended;
        usleep(10000);
    }
    return "(nothing heard)";
}
#endif
