/* moehost bench dispatch: the command line, the plugins, and the figures as text. See bench_dispatch.h. All dispatchers
 * run in turn, and that several times: what a shared machine does meanwhile meets them all. */
#include <inttypes.h>
#include <math.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_dispatch.h"
#include "command.h"
#include "options.h"
#include "stop.h"
#include "value.h"
#include "wire.h"

enum { MOST_DISPATCHERS = 16, TRIES = 3 };
#define NAME "moehost bench dispatch"

typedef struct entry {
    char *name; /* owned */
    part_ref ref;
    options options;
    bench_dispatch_result result;
} entry;

typedef struct dispatch_bench {
    const command_args *args;
    bench_dispatch_cfg cfg;
    loader *loader;
    options device, comm;
    entry entries[MOST_DISPATCHERS];
    size_t n;
    int64_t runs;
} dispatch_bench;

/* ---- arguments ---- */
static int usage(const char *why) {
    fprintf(stderr, NAME ": %s\n", why);
    return EXIT_CODE_USAGE;
}

static int read_sizes(dispatch_bench *b) {
    const command_args *a = b->args;
    const char *dtype = command_value(a, "dtype");
    b->cfg = (bench_dispatch_cfg){.ranks = (uint32_t)command_int(a, "ranks", 4),
                                  .top_k = (uint32_t)command_int(a, "top-k", 8),
                                  .experts = (uint32_t)command_int(a, "experts", 32),
                                  .node_size = (uint32_t)command_int(a, "node-size", 0),
                                  .tokens = command_int(a, "tokens", 1024),
                                  .hidden = command_int(a, "hidden", 1024),
                                  .tries = command_int(a, "steps", TRIES),
                                  .dtype = dtype && strcmp(dtype, "bf16") == 0 ? MOE_BF16 : MOE_F32};
    b->runs = command_int(a, "runs", 3);
    char why[128];
    snprintf(why, sizeof why, "--experts %u is no multiple of --ranks %u, or less than --top-k %u", b->cfg.experts,
             b->cfg.ranks, b->cfg.top_k);
    if (b->cfg.experts % b->cfg.ranks || b->cfg.top_k > b->cfg.experts) return usage(why);
    snprintf(why, sizeof why, "--node-size %u does not divide --ranks %u", b->cfg.node_size, b->cfg.ranks);
    if (b->cfg.node_size && b->cfg.ranks % b->cfg.node_size) return usage(why);
    if (a->n_positional > 1) return usage("takes no recipes");
    if (command_value(a, "threads") || command_value(a, "set"))
        return usage("has no recipe: --threads and --set have no effect");
    return EXIT_CODE_OK;
}

static int read_names(dispatch_bench *b) {
    const char *list = command_value(b->args, "dispatchers"), *at = NULL;
    size_t length = 0;
    if (!list) list = "deepep,hier,alltoall,allgather";
    for (size_t i = 0; value_list_item(list, i, &at, &length); i++) {
        if (b->n == MOST_DISPATCHERS) return usage("--dispatchers: too many names");
        entry *e = &b->entries[b->n++];
        e->name = strndup(at, length);
        if (!e->name) return usage("out of memory");
    }
    return b->n ? EXIT_CODE_OK : usage("--dispatchers: the list is empty");
}

/* ---- plugins ---- */
static int load(dispatch_bench *b, const char *kind, const char *name, const recipe_option *given, size_t n,
                part_ref *out, options *o) {
    err_list errs = {.n = 0};
    const loader_request request = {kind, name, "cpu", NULL, NAME};
    loader_found found;
    int code = loader_find(b->loader, &request, &found, &errs) ? EXIT_CODE_OK : EXIT_CODE_PLUGIN;
    if (!code && !options_resolve(found.desc, given, n, NAME, o, &errs)) code = EXIT_CODE_USAGE;
    err_list_print(&errs, stderr);
    err_list_clear(&errs);
    if (!code) *out = (part_ref){.desc = found.desc, .table = found.vtable, .kv = o->kv, .n_kv = o->n};
    return code;
}

static int load_all(dispatch_bench *b) {
    const recipe_option one_thread = {.key = "threads", .value = "1", .where = NAME, .where_key = NAME};
    b->loader = command_loader();
    if (!b->loader) return EXIT_CODE_USAGE;
    int code = load(b, "device", "cpu", &one_thread, 1, &b->cfg.device, &b->device);
    if (!code) code = load(b, "comm", "threads", NULL, 0, &b->cfg.comm, &b->comm);
    for (size_t i = 0; i < b->n && !code; i++)
        code = load(b, "dispatcher", b->entries[i].name, NULL, 0, &b->entries[i].ref, &b->entries[i].options);
    return code;
}

static void close_all(dispatch_bench *b) {
    for (size_t i = 0; i < b->n; i++) {
        options_free(&b->entries[i].options);
        free(b->entries[i].name);
    }
    options_free(&b->device);
    options_free(&b->comm);
    loader_destroy(b->loader);
}

static int run_all(dispatch_bench *b) {
    moe_err err = {.size = sizeof err};
    for (int64_t run = 0; run < b->runs; run++)
        for (size_t i = 0; i < b->n; i++) {
            entry *e = &b->entries[i];
            if (stop_requested()) return 128 + stop_requested();
            fprintf(stderr, "bench dispatch: %s, run %" PRId64 " of %" PRId64 "\n", e->name, run + 1, b->runs);
            const moe_status s = bench_dispatch_run(&b->cfg, &e->ref, &e->result, &err);
            if (!s) continue;
            fprintf(stderr, "moehost: %s: %s\n", e->name, err.msg);
            return wire_exit_code(s);
        }
    return EXIT_CODE_OK;
}

/* ---- figures ---- */
typedef struct figure {
    const char *what, *unit;
    double value, peak; /* peak: NaN = none */
} figure;

enum { FIGURES = 10 };
static void figures_of(const bench_dispatch_result *r, figure *f) {
    const double rows = 1e-6 * (double)r->rows, copy = rows / r->seconds[DISPATCH_COPY], none = (double)NAN;
    const figure all[FIGURES] = {
        {"copy", "Mrow/s", copy, none},
        {"copy.streaming", "Mrow/s", rows / r->seconds[DISPATCH_STREAM], none},
        {"layout", "ms", 1e3 * r->seconds[DISPATCH_LAYOUT], none},
        {"dispatch.time", "ms", 1e3 * r->seconds[DISPATCH_OUT], none},
        {"combine.time", "ms", 1e3 * r->seconds[DISPATCH_BACK], none},
        {"dispatch", "Mrow/s", rows / r->seconds[DISPATCH_OUT], copy},
        {"combine", "Mrow/s", rows / r->seconds[DISPATCH_BACK], copy},
        {"dispatch.sent", "B", (double)r->sent[0], r->formula[0] == UINT64_MAX ? none : (double)r->formula[0]},
        {"combine.sent", "B", (double)r->sent[1], r->formula[1] == UINT64_MAX ? none : (double)r->formula[1]},
        {"dispatch.sent_far", "B", (double)r->sent_far[0],
         r->formula_far[0] == UINT64_MAX ? none : (double)r->formula_far[0]},
    };
    memcpy(f, all, sizeof all);
}

static double fraction(const figure *f) {
    return f->peak > 0 ? f->value / f->peak : f->value == f->peak ? 1.0 : (double)NAN;
}

static void show_json(const dispatch_bench *b, const entry *e) {
    figure f[FIGURES];
    figures_of(&e->result, f);
    for (int i = 0; i < FIGURES; i++) {
        printf("{\"name\":\"%s.%s\",\"value\":%.9g,\"unit\":\"%s\"", e->ref.desc->id, f[i].what, f[i].value, f[i].unit);
        if (!isnan(f[i].peak)) printf(",\"peak\":%.9g,\"fraction\":%.4f", f[i].peak, fraction(&f[i]));
        printf(",\"ranks\":%u,\"tokens\":%" PRId64 ",\"hidden\":%" PRId64 ",\"top_k\":%u,\"experts\":%u}\n",
               b->cfg.ranks, b->cfg.tokens, b->cfg.hidden, b->cfg.top_k, b->cfg.experts);
    }
}

static void show(const entry *e) {
    figure f[FIGURES];
    figures_of(&e->result, f);
    printf("%s\n", e->ref.desc->id);
    for (int i = 0; i < FIGURES; i++) {
        const int whole = f[i].unit[0] == 'B';
        printf("  %-18s %14.*f %-7s", f[i].what, whole ? 0 : 3, f[i].value, f[i].unit);
        if (!isnan(f[i].peak)) printf(" %6.1f%% of %.*f", 100 * fraction(&f[i]), whole ? 0 : 3, f[i].peak);
        putchar('\n');
    }
}

int cmd_bench_dispatch(const command_args *args) {
    dispatch_bench b = {.args = args};
    int code = read_sizes(&b);
    if (!code) code = read_names(&b);
    stop_install();
    if (!code) code = load_all(&b);
    if (!code) code = run_all(&b);
    if (!code && !command_flag(args, "json"))
        printf("%u ranks x %" PRId64 " tokens x hidden %" PRId64 " %s, top-%u of %u experts: best of %" PRId64
               " runs of %" PRId64 " tries; rates beside a memcpy of the rows that land\n",
               b.cfg.ranks, b.cfg.tokens, b.cfg.hidden, b.cfg.dtype == MOE_F32 ? "F32" : "BF16", b.cfg.top_k,
               b.cfg.experts, b.runs, b.cfg.tries);
    for (size_t i = 0; i < b.n && !code; i++)
        if (command_flag(args, "json"))
            show_json(&b, &b.entries[i]);
        else
            show(&b.entries[i]);
    close_all(&b);
    return command_finish(code);
}
