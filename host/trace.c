/* Events as they come; the array is closed at the end. */
#include "trace.h"

#include <inttypes.h>
#include <io/fs.h>
#include <moe/options.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void trace_add(trace *x, const trainer *t, uint32_t rank, int64_t step) {
    trainer_span s;
    pthread_mutex_lock(&x->lock);
    name_rank(x, rank);
    for (uint32_t i = 0; trainer_span_at(t, i, &s); i++) {
        if (!x->origin) x->origin = s.begin;
        separate(x);
        fprintf(x->to,
                "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                "\"args\":{\"step\":%" PRId64 ",\"layer\":%d,\"microbatch\":%d}}",
                s.name, lane_names[s.lane], rank, s.lane, (double)(s.begin - x->origin) * 1e-3,
                (double)(s.end - s.begin) * 1e-3, step, s.layer, s.microbatch);
    }
    pthread_mutex_unlock(&x->lock);
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
