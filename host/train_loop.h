/* The run itself: ranks, steps, evaluations, metrics, progress, checkpoints. */
#ifndef HOST_TRAIN_LOOP_H
#define HOST_TRAIN_LOOP_H
#include "run_dir.h"
#include "session.h"

typedef struct train_options {
    int quiet;
} train_options;

/* Runs to the last step, to a signal (*signal_number, else 0) or to the first error. The last step that was done is in
 * a checkpoint, except after an error. [main] */
moe_status train_loop(session *s, run_dir *dir, const train_options *o, int *signal_number, moe_err *err);

#endif
