/* The inside of the CPU device: instance, compute pool, streams, events. Operations do not include this (see cpu.h).
 * Streams and events follow CUDA: a stream is a ring of commands with one worker, an event is a position in a stream.
 * Every thread of the device is one of: a stream's worker, or one of the threads - 1 helpers of the pool. */
#ifndef CPU_RUNTIME_H
#define CPU_RUNTIME_H
#include <pthread.h>
#include <stdatomic.h>

#include "cpu.h"
#include "ops/list.h"

enum { CPU_ISA_BASE, CPU_ISA_V3, CPU_ISA_V4 };
enum { CPU_BF16_AUTO, CPU_BF16_CONVERT, CPU_BF16_NATIVE };

/* ---- options.c ---- */
extern const moe_option cpu_options[];
enum { CPU_N_OPTIONS = 4 };
typedef struct cpu_settings {
    uint32_t threads; /* >= 1 */
    uint32_t spin_us; /* 0 where the ranks of this process leave less than two cores for each */
    int32_t isa;      /* CPU_ISA_*, one that this machine has */
    int32_t bf16;     /* CPU_BF16_*, as the user says */
} cpu_settings;
/* [main] Reads and checks cfg; MOE_E_ARG names key and value, MOE_E_UNSUPPORTED an instruction set that is not there.
 */
moe_status cpu_settings_read(const moe_device_cfg *cfg, cpu_settings *s, moe_err *err);

/* ---- memory.c ---- */
/* [main] Zeroed pages, touched once. what: for the message of MOE_E_NOMEM. */
moe_status cpu_map(uint64_t bytes, const char *what, void **out, moe_err *err);
/* [main] Zeroed pages that come when they are first written; only addresses are taken. */
moe_status cpu_reserve(uint64_t bytes, int in_huge_pages, void **out, moe_err *err);
uint64_t cpu_resident(const void *ptr, uint64_t bytes); /* [any] of a reserved block: bytes that have come */
void cpu_unmap(void *ptr, uint64_t bytes);              /* NULL is nothing; bytes as given to cpu_map or cpu_reserve */
uint64_t cpu_memory_total(void);                        /* of the machine, or of the control group where that is less */

/* ---- thread.c ---- */
/* Starts a thread that takes no signals; on failure MOE_E_DEVICE with its name. */
moe_status cpu_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg, moe_err *err);
/* First thing in each of the device's threads: flush denormals, OpenMP off, `w` is what cpu_self finds. */
void cpu_thread_enter(cpu_device *dev, cpu_worker *w);
/* [main] Refuses a oneDNN whose own threads could not be kept out. */
moe_status cpu_thread_check(moe_err *err);

/* ---- pool.c ---- */
typedef struct cpu_helper {
    cpu_device *dev;
    cpu_worker worker;
    pthread_t thread;
} cpu_helper;
typedef struct cpu_pool {
    /* bit 0: a loop takes helpers; bits 1..11: helpers in it; bits 12..31: number of the loop */
    _Alignas(64) atomic_uint gate;
    _Alignas(64) atomic_llong next; /* piece to hand out */
    _Alignas(64) atomic_uint busy;  /* a caller owns the pool */
    atomic_uint sleepers;           /* helpers that sleep on gate, or are about to */
    atomic_uint caller_sleeps;
    atomic_uint stop;
    cpu_piece_fn fn; /* the loop; written by the caller while the gate is shut and empty */
    void *arg;
    int64_t n;
    cpu_helper *helpers; /* [n_helpers] */
    uint32_t n_helpers, reserved;
} cpu_pool;
moe_status cpu_pool_start(cpu_device *dev, moe_err *err); /* [main] dev->settings.threads - 1 helpers */
void cpu_pool_stop(cpu_device *dev);                      /* [main] no loop runs */

/* ---- stream.c ---- */
typedef struct cpu_stream cpu_stream;
/* [main] the position behind everything issued so far: cpu_stream_passed(s, it) once all that is done. */
uint64_t cpu_stream_position(const cpu_stream *s);
int cpu_stream_passed(cpu_stream *s, uint64_t position);
void cpu_stream_await(cpu_stream *s, uint64_t position); /* [any] blocks */
/* [step] `s` holds until `target` has passed `position`. */
void cpu_stream_hold(cpu_stream *s, cpu_stream *target, uint64_t position);

moe_status cpu_stream_create(void *self, const char *name, void **out, moe_err *err);
void cpu_stream_destroy(void *self, void *stream);
moe_status cpu_stream_sync(void *self, void *stream, moe_err *err);
moe_status cpu_stream_copy(void *self, void *stream, void *dst, const void *src, uint64_t bytes, moe_err *err);
moe_status cpu_stream_fill(void *self, void *stream, void *dst, uint8_t byte, uint64_t bytes, moe_err *err);
moe_status cpu_stream_call(void *self, void *stream, moe_host_fn fn, void *arg, moe_err *err);

/* ---- event.c ---- */
typedef struct cpu_event {
    cpu_stream *stream; /* of the latest record; NULL = never recorded, or that stream is gone (and so has passed) */
    uint64_t position;
    struct cpu_event *previous, *next; /* all events of the device */
} cpu_event;
void cpu_event_forget(cpu_device *dev, const cpu_stream *s); /* [main] s is drained and goes away */
moe_status cpu_event_create(void *self, void **out, moe_err *err);
void cpu_event_destroy(void *self, void *event);
moe_status cpu_event_record(void *self, void *event, void *stream, moe_err *err);
moe_status cpu_event_wait(void *self, void *stream, void *event, moe_err *err);
moe_status cpu_event_sync(void *self, void *event, moe_err *err);

/* ---- dispatch.c ---- */
/* The public records: static, one an operation, each calls the table of its instance. */
extern const moe_op *const cpu_dispatch[CPU_N_OPS];
/* The table of CPU_ISA_*, or NULL where this build has none. */
const moe_op *const *cpu_dispatch_table(int32_t isa);

/* ---- bf16.c ---- */
/* [main] Makes dev->bf16 where settings and machine allow; MOE_E_UNSUPPORTED where `native` is asked for and not there.
 */
moe_status cpu_bf16_start(cpu_device *dev, moe_err *err);
void cpu_bf16_stop(cpu_device *dev); /* [main] */

/* ---- the instance ---- */
/* A reserved block; what has come of it counts as the device's own memory. */
typedef struct cpu_lazy {
    void *ptr;
    uint64_t bytes;
    int scratch; /* a worker's, not of MOE_SPACE_LAZY */
    struct cpu_lazy *next;
} cpu_lazy;

struct cpu_device {
    cpu_settings settings;
    const moe_op *const *ops; /* [CPU_N_OPS] of the chosen instruction set */
    pthread_key_t key;        /* -> the calling thread's cpu_worker */
    cpu_worker outsider;      /* for an operation called from a thread that is not the device's ([main]) */
    cpu_event *events;        /* all of them */
    cpu_lazy *lazy;           /* all of them */
    cpu_bf16 *bf16;           /* NULL: converted products */
    atomic_ullong own_memory; /* bytes */
    moe_parallel parallel;
    cpu_pool pool;
};
/* Scratch of one worker. Its pages come with its first use, from the worker's part of the machine: most streams move
 * rows and never compute. */
moe_status cpu_worker_start(cpu_device *dev, cpu_worker *w, uint32_t index, moe_err *err);
void cpu_worker_stop(cpu_device *dev, cpu_worker *w);
#endif
