/* metrics.jsonl: one JSON object a step, for tools and plots. A row holds what the step knows; a number that is not
 * there is left out, one that is not finite is null. Each line is one write(2), so readers of a live run see whole
 * lines, and a resumed run drops what it is about to compute again. */
#ifndef HOST_METRICS_H
#define HOST_METRICS_H
#include <moe/base.h>
#include <stdint.h>

/* name, type, in the order of the file; `step` comes first and is always there. Units as in the command-line contract:
 * tokens so far; losses are means over the valid tokens of the global batch; step_ms milliseconds; model_gflops 1e9
 * model FLOPs per second; mfu and dropped fractions; imbalance max / mean tokens per expert and dead experts without a
 * token, both of the worst layer; router_entropy nats; dispatch_bytes that rows took from rank to rank in the step,
 * dispatch_far_bytes those of them from node to node; peak_bytes of the largest rank. */
#define METRICS_FIELDS(X)          \
    X(tokens, int64_t)             \
    X(loss, double)                \
    X(aux_loss, double)            \
    X(z_loss, double)              \
    X(lr, double)                  \
    X(grad_norm, double)           \
    X(step_ms, double)             \
    X(tokens_per_s, double)        \
    X(model_gflops, double)        \
    X(mfu, double)                 \
    X(dropped, double)             \
    X(imbalance, double)           \
    X(dead, int64_t)               \
    X(router_entropy, double)      \
    X(dispatch_bytes, int64_t)     \
    X(dispatch_far_bytes, int64_t) \
    X(peak_bytes, int64_t)         \
    X(val_loss, double)

#define METRICS_INDEX(name, type) METRICS_##name,
enum { METRICS_FIELDS(METRICS_INDEX) METRICS_COUNT };
#undef METRICS_INDEX

#define METRICS_MEMBER(name, type) type name;
typedef struct metrics_row {
    int64_t step;                  /* from 1 */
    uint32_t has;                  /* bit METRICS_<name>: the member of that name is there */
    METRICS_FIELDS(METRICS_MEMBER) /* int64_t tokens; double loss; ... */
} metrics_row;
#undef METRICS_MEMBER

#define METRICS_SET(row, name, value) ((row)->name = (value), (row)->has |= 1u << METRICS_##name)
#define METRICS_HAS(row, name) ((row)->has >> METRICS_##name & 1u)

enum { METRICS_LINE = 1024 };
/* The row as one line with its newline; its length. Reals are as short as reads back to the same double. Any thread. */
int metrics_format(const metrics_row *row, char line[METRICS_LINE]);

typedef struct metrics metrics;
/* Opens for appending, after dropping the lines of steps >= first_step (1 for a new run) and a torn last line. The rest
 * is kept byte for byte. MOE_E_IO: unreadable or unwritable; MOE_E_DATA: a line before the last is no object with a
 * step. */
moe_status metrics_open(const char *path, int64_t first_step, metrics **out, moe_err *err);
/* Appends one line; a failed write (disk full) is MOE_E_IO and leaves the file as it was. One thread at a time. */
moe_status metrics_write(metrics *m, const metrics_row *row, moe_err *err);
/* Makes the lines durable: call it with every checkpoint. */
moe_status metrics_sync(metrics *m, moe_err *err);
void metrics_close(metrics *m); /* NULL is fine */
#endif
