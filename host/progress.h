/* What a user sees of a running training: on a terminal one line that is drawn over itself, elsewhere plain lines.
 * Messages printed in between (progress_message) never mix with the line. Display only: a failed write is ignored. */
#ifndef HOST_PROGRESS_H
#define HOST_PROGRESS_H
#include <moe/base.h>
#include <stdint.h>

#include "metrics.h"

typedef struct progress_config {
    int fd;                   /* of the line: one line drawn over itself when it is a terminal, plain lines when not */
    int message_fd;           /* of messages */
    int quiet;                /* no progress; messages only */
    int64_t total;            /* the last step; 0 = not known: no bar, no ETA */
    int64_t log_every;        /* plain: lines of steps that it divides, of the last, and of those with val_loss */
    double (*now)(void *ctx); /* seconds on a clock that never goes back; NULL = the system's */
    void *now_ctx;
} progress_config;

typedef struct progress progress;

/* MOE_E_ARG: log_every < 1; MOE_E_NOMEM. */
moe_status progress_create(const progress_config *cfg, progress **out, moe_err *err);
/* A step is done. Drawn at most ten times a second: step/total, loss, last validation loss, tokens/s, imbalance, time
 * to go (from an exponentially smoothed time per step) and a bar, as many as the width takes. Any thread. */
void progress_step(progress *p, const metrics_row *row);
/* One line (or several; a newline is added if none ends it) above the progress line. Any thread. */
void progress_message(progress *p, const char *text);
/* Shows the last step, ends the line with a newline, frees p. NULL is fine. */
void progress_finish(progress *p);
#endif
