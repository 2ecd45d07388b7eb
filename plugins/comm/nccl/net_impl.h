/* Between net.c, which runs the connections, and meet.c, which makes them. */
#ifndef COMM_NCCL_NET_IMPL_H
#define COMM_NCCL_NET_IMPL_H
#include <pthread.h>

#include "net.h"

enum { NET_VERSION = 1, NET_MAGIC = 0x6c636e6d, NET_TEXT = 400 };
enum { NET_HELLO = 1, NET_WELCOME, NET_REFUSED, NET_BLOB, NET_BLOBS, NET_ABORT, NET_LEFT, NET_BYE };

/* Before every message. Machines of one job have one byte order: another one has another magic. */
typedef struct net_head {
    uint32_t magic, type, from, reserved;
    uint64_t bytes; /* of what follows */
} net_head;

typedef struct net_hello {
    uint32_t version, world;
} net_hello;

typedef struct net_left {
    uint64_t group, calls;
} net_left;

typedef struct net_peer {
    int fd;               /* -1: none */
    int bye;              /* has said it; under net.lock */
    pthread_mutex_t send; /* one message at a time */
} net_peer;

struct net {
    uint32_t rank, world, local, timeout_s;
    const moe_host *host;
    net_peer *peers; /* [world]; rank 0 has all but itself, others rank 0 */
    int wake[2];     /* a pipe that ends the listening thread */
    net_events events;
    pthread_t thread;
    int listening;
    pthread_mutex_t answer; /* of rank 0: while it sends a round's result, or hands on a good-bye; taken before lock */
    pthread_mutex_t lock;   /* all below */
    pthread_cond_t changed;
    int stopping, ended;
    char reason[NET_TEXT];
    uint64_t blob_bytes;  /* of the round that rank 0 gathers */
    uint32_t arrived;     /* blobs of it */
    char *table, *result; /* [world * bytes]; result: complete, to be fetched */
    uint64_t result_bytes;
};

/* 1, or 0 with errno (0 = the other end is closed). */
int net_send(int fd, const void *data, size_t bytes);
int net_receive(int fd, void *data, size_t bytes);
int net_send_message(int fd, uint32_t type, uint32_t from, const void *data, uint64_t bytes);

/* Connects all: fills peers[].fd. */
moe_status net_meet(net *n, const environment *e, moe_err *err);

#endif
