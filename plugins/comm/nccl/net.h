/* Sockets between the processes of a job: each keeps a connection to rank 0, which hands on what it hears. A thread of
 * each listens, so that an abort, or the end of a process, is heard at any time. */
#ifndef COMM_NCCL_NET_H
#define COMM_NCCL_NET_H
#include <moe/base.h>

#include "environment.h"

typedef struct net net;

/* What the listening thread tells. */
typedef struct net_events {
    void *arg;
    void (*ended)(void *arg, const char *reason); /* an abort of another rank, or a rank that is gone */
    void (*left)(void *arg, uint64_t group_id, uint32_t rank, uint64_t calls);
} net_events;

/* [main, collective, blocks] Meets all ranks within timeout_s seconds. host: a connection that is not of this job is
 * logged, and closed. Nothing is told before net_listen. */
moe_status net_open(const environment *e, uint32_t timeout_s, const moe_host *host, net **out, moe_err *err);
moe_status net_listen(net *n, const net_events *events, moe_err *err);
/* Says good-bye; rank 0 waits some seconds for the others to say it, unless the job has ended badly. NULL is nothing.
 */
void net_close(net *n);
/* [main, collective, blocks] after net_listen; as moe_bootstrap. Fails once the job has ended. */
moe_status net_all_gather(net *n, const void *in, uint64_t bytes, void *out, moe_err *err);
/* [any] Tells all others; `ended` is not called here. */
void net_abort(net *n, const char *reason);
void net_tell_left(net *n, uint64_t group_id, uint64_t calls);

#endif
