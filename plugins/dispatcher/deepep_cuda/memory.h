/* What instances of a rank share: the memory that the others write, the barriers, and a small thread that sees to it
 * that no kernel waits for ever. */
#ifndef DEEPEP_CUDA_MEMORY_H
#define DEEPEP_CUDA_MEMORY_H
#include <pthread.h>

#include "../common/base.h"
#include "peers.h"

typedef struct memory {
    uint32_t users, stop; /* stop: of the thread, under lock */
    disp made_by;         /* a copy of the instance that made it: the device, the comm */
    moe_window window;    /* empty with one member */
    deepep_shape shape;   /* offsets are those of the instance that made it; others fit in */
    deepep_sync *sync;    /* [DEEPEP_CHANNELS] device memory */
    deepep_watch *watch;  /* host memory */
    double timeout;       /* seconds; 0 = for ever */
    int watching;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
} memory;

/* [main, collective over the group] The memory in d->shared, where the shape fits in; else a new one. Takes over its
 * offsets into *shape. timeout: seconds that a member may be late, before it ends the run. */
moe_status memory_open(const disp *d, deepep_shape *shape, double timeout, memory **out, moe_err *err);
void memory_close(const disp *d, memory *m); /* [main, collective] the last user ends it; NULL is nothing */
/* [step] What a kernel of this member is told. */
deepep_rank memory_rank(const memory *m, const deepep_shape *shape, uint32_t me);
/* [step] MOE_E_COMM with the reason once the run is aborted: kernels move nothing any more. */
moe_status memory_poll(const memory *m, moe_err *err);

#endif
