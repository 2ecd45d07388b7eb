/* NCCL on a CPU: communicators of ranks that are threads of a process, or processes of one machine. What the members of
 * a communicator share lies in one segment of POSIX memory, named by its unique id; every member maps it by itself, so
 * that threads and processes go the same way. Calls run on their stream (runtime.h). Only the functions that comm/nccl
 * calls are there, and they are as hard to use as NCCL's: a communicator is unfit for calls while it is in progress,
 * ncclCommAbort ends this rank's calls only, sizes that differ hang or fail, and nobody tells the others.
 *
 * Environment, for tests. MOE_DOUBLE_NCCL_FAIL="rank=1 call=7 error=6": from its 7th call on, world rank 1's
 * communicators have that ncclResult_t as asynchronous error, and the calls do not end. "rank=1 never": that rank's
 * communicators do not come to be, so that those of the others do not either. MOE_DOUBLE_NCCL_LSA=2: so many neighbours
 * reach each other's memory.
 *
 * nccl_shared.c: the segment. nccl_life.c: communicators, windows. nccl_calls.c: calls and groups. nccl_run.c: what
 * runs on streams. */
#ifndef NCCL_DOUBLE_H
#define NCCL_DOUBLE_H
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { NAME_BYTES = 64, STAGE_BYTES = 1 << 16, CHUNK_BYTES = 1 << 13, MAX_RANKS = 256 };

/* ---- what members share ---- */
/* What all members of a collective call say: it must be the same. */
typedef struct double_call {
    int32_t kind, dtype, op, root;
    uint64_t count;
} double_call;

/* What a member says in set-up: color and key of a split; memory of a window (descriptor fd of process pid). */
typedef struct double_offer {
    int32_t color, key;
    int32_t pid, fd;
    uint64_t offset, bytes;
} double_offer;

typedef struct shared_rank {
    _Atomic uint32_t pid, bell; /* bell: a futex that rings when a chunk to or from this rank has moved */
    double_call calls[2];       /* of even and odd rounds: a member is at most one round ahead */
    double_offer offers[2];
    char stage[2][STAGE_BYTES];
} shared_rank;

/* Bytes on their way from one member to another: one chunk at a time. */
typedef struct shared_pair {
    _Atomic uint64_t sent, taken; /* chunks */
    uint64_t total, bytes;        /* of the message; of the chunk */
    char data[CHUNK_BYTES];
} shared_pair;

enum { LANE_DATA, LANE_SETUP, LANES }; /* the streams' meetings, and the host's */
typedef struct shared {
    _Atomic uint32_t attached, bell;
    _Atomic uint64_t arrived[LANES]; /* round r of n members is complete from r * n on */
    shared_rank ranks[];             /* [n], then shared_pair [n * n]: from * n + to */
} shared;

/* ---- a member ---- */
/* One rank of the job, for all its communicators. */
typedef struct double_fate {
    _Atomic uint32_t refs;
    _Atomic uint64_t calls;
    uint64_t fail_call; /* 0 = never */
    int fail_error, never;
} double_fate;

enum { SETUP_NONE, SETUP_INIT, SETUP_SPLIT, SETUP_WINDOW, SETUP_WINDOW_END };
typedef struct double_job double_job;

struct ncclComm {
    shared *s;
    size_t bytes;
    uint32_t n, rank;
    char name[NAME_BYTES];
    double_fate *fate;
    int unnamed; /* the segment has no name any more */
    /* lock: all below. Set-up is done by whoever asks ncclCommGetAsyncError. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic int aborted, error; /* error: ncclResult_t */
    int setup, deferrals, finalizing;
    uint64_t setup_round, splits;
    ncclComm_t *split_out, child;
    struct double_window *windows, *window;
    ncclWindow_t *window_out;
    double_job *deferred;
    uint64_t turn_next, turn_now, jobs; /* calls run in the order they were made, whatever their stream */
    uint64_t round;                     /* of LANE_DATA; by the running call */
    char text[256];
};

struct double_window {
    void *record; /* struct ncclWindow_vidmem */
    char *flat;   /* all members of the team, a stride apart */
    size_t bytes;
    struct double_window *next;
};

/* ---- nccl_shared.c ---- */
shared *shared_open(const char *name, uint32_t n, size_t *bytes); /* NULL: errno */
shared_pair *shared_pair_of(const struct ncclComm *c, uint32_t from, uint32_t to);
void bell_ring(_Atomic uint32_t *bell);
/* Sleeps until the bell rings, or a moment; 0: the communicator has ended, by an abort, an error, or a process that is
 * gone. seen: what the bell was before the caller looked. */
int bell_wait(struct ncclComm *c, _Atomic uint32_t *bell, uint32_t seen);
/* Meets all members in the next round of LANE_DATA; 0: ended. */
int shared_meet(struct ncclComm *c);

/* ---- nccl_life.c ---- */
/* Asynchronous error, told by ncclGetLastError; the first stays. */
__attribute__((format(printf, 3, 4))) void comm_fail(struct ncclComm *c, ncclResult_t error, const char *format, ...);
/* ncclSuccess when it may be used now. */
ncclResult_t comm_ready(struct ncclComm *c);
/* Waits for its calls, and frees it. */
void comm_end(struct ncclComm *c);

/* ---- nccl_calls.c ---- */
/* 1: an open group of this thread ends c at its own end. */
int group_puts_off(ncclComm_t c);

/* ---- nccl_run.c ---- */
enum { DO_ALL_REDUCE, DO_ALL_GATHER, DO_REDUCE_SCATTER, DO_BROADCAST, DO_SEND, DO_RECEIVE };
typedef struct double_op {
    double_call call; /* root: the peer of a message */
    const void *in;
    void *out;
} double_op;
struct double_job {
    struct ncclComm *c;
    cudaStream_t stream;
    uint64_t turn;
    uint32_t n, room;
    double_op *ops; /* [n] */
};
size_t nccl_type_bytes(int dtype); /* 0: unknown */
void job_run(void *job);           /* frees it */
void job_free(double_job *job);

#endif
