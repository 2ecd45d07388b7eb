/* Events as they come; the array is closed at the end. */
#include "trace.h"

#include <inttypes.h>
#include <io/fs.h>
#include <moe/options.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

static const char *const lane_names[MOE_LANES] = {"compute", "comm:ep", "comm:dp", "comm:pp", "comm:tp", "copy"};

struct trace {
    FILE *to;
    char *path;
    int64_t origin; /* ns: the first event begins at 0 */
    int some;       /* an event has been written */
    pthread_mutex_t lock;
};

moe_status trace_open(const char *path, trace **out, moe_err *err) {
    trace *x = calloc(1, sizeof *x);
    if (x) x->path = strdup(path);
    if (!x || !x->path) {
        free(x);
        return moe_fail(err, MOE_E_NOMEM, "out of memory for the trace");
    }
    x->to = fopen(path, "w");
    if (!x->to) {
        moe_status status = fs_fail(err, MOE_E_IO, path, "cannot create: %m");
        free(x->path);
        free(x);
        return status;
    }
    pthread_mutex_init(&x->lock, NULL);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", x->to);
    *out = x;
    return MOE_OK;
}

static void separate(trace *x) {
    if (x->some) fputs(",\n", x->to);
    x->some = 1;
}

/* Names of the process and its threads: the viewer takes the last ones given. */
static void name_rank(trace *x, uint32_t rank) {
    separate(x);
    fprintf(x->to, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u\"}}", rank, rank);
    for (int lane = 0; lane < MOE_LANES; lane++) {
        separate(x);
        fprintf(x->to, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", rank,
                lane, lane_names[lane]);
    }
}

static void add_span(trace *x, const trainer_span *s, uint32_t rank, int64_t step) {
    if (!x->origin) x->origin = s->begin;
    separate(x);
    fprintf(x->to,
            "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"step\":%" PRId64 ",\"layer\":%d,\"microbatch\":%d}}",
            s->name, lane_names[s->lane], rank, s->lane, (double)(s->begin - x->origin) * 1e-3,
            (double)(s->end - s->begin) * 1e-3, step, s->layer, s->microbatch);
}

void trace_add(trace *x, const trainer *t, uint32_t rank, int64_t step) {
    trainer_span s;
    pthread_mutex_lock(&x->lock);
    name_rank(x, rank);
    for (uint32_t i = 0; trainer_span_at(t, i, &s); i++) add_span(x, &s, rank, step);
    pthread_mutex_unlock(&x->lock);
}

/* A span as it travels; a rank's list ends with an empty name. */
typedef struct sent_span {
    char name[80];
    trainer_span span; /* its name means nothing */
} sent_span;

static void pack_spans(const trainer *t, sent_span *out, uint32_t n) {
    for (uint32_t i = 0; i < n && trainer_span_at(t, i, &out[i].span); i++)
        snprintf(out[i].name, sizeof out[i].name, "%s", out[i].span.name);
}

moe_status trace_gather(trace *x, const trainer *t, const moe_bootstrap *b, int64_t step, moe_err *err) {
    int64_t n = trainer_nodes(t);
    moe_status status = ranks_max(b, &n, err);
    if (status) return status;
    sent_span *own = calloc((size_t)n + 1, sizeof *own), *all = calloc(((size_t)n + 1) * b->world, sizeof *all);
    if (!own || !all) status = moe_fail(err, MOE_E_NOMEM, "out of memory for the times of %u ranks", b->world);
    if (!status) {
        pack_spans(t, own, (uint32_t)n);
        status = b->all_gather(b->ctx, own, (uint64_t)n * sizeof *own, all, err);
    }
    for (uint32_t r = 0; r < b->world && x && !status; r++) {
        sent_span *at = all + (size_t)n * r;
        name_rank(x, r);
        for (int64_t i = 0; i < n && at[i].name[0]; i++) {
            at[i].span.name = at[i].name;
            add_span(x, &at[i].span, r, step);
        }
    }
    free(own);
    free(all);
    return status;
}

moe_status trace_close(trace *x, moe_err *err) {
    if (!x) return MOE_OK;
    fputs("\n]}\n", x->to);
    int lost = ferror(x->to);
    lost |= fclose(x->to) != 0;
    moe_status status = lost ? fs_fail(err, MOE_E_IO, x->path, "cannot be written: %m") : MOE_OK;
    pthread_mutex_destroy(&x->lock);
    free(x->path);
    free(x);
    return status;
}
